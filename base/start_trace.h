/* start_trace.h - where the time between the start of a process and its first useful work goes.
 *
 * With PLIMSOLL_TRACE_START=1 in the environment each mark is a line on stderr: milliseconds since
 * the program was started (known to 10 ms; differences between lines are exact) and what is done
 * now. Without it a mark costs one look at the environment. May be called by any thread. */
#ifndef PLIMSOLL_BASE_START_TRACE_H
#define PLIMSOLL_BASE_START_TRACE_H

void start_trace(const char *done);

#endif
