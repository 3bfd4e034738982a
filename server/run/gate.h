/* gate.h - how many of something may go on at one time, for work that is dear.
 *
 * Every connection has a thread of its own, so nothing else keeps a page that is opened five
 * hundred times from starting five hundred engines beside a running job. */
#ifndef PLIMSOLL_SERVER_RUN_GATE_H
#define PLIMSOLL_SERVER_RUN_GATE_H

#include <stdint.h>

#include "base/err.h"

struct gate;

/* A gate with so many places. Free with gate_free, when nobody is inside or waiting. */
struct gate *gate_new(int places);
void gate_free(struct gate *gate);

/* Takes a place, waiting for one at most `limit_ms`; STATUS_TIMEOUT says that all are taken. Every
 * STATUS_OK is paired with one gate_leave. Any thread. */
enum status gate_enter(struct gate *gate, int64_t limit_ms, struct err *e);
void gate_leave(struct gate *gate);

#endif
