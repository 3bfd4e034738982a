/* environment.h - what the environment says about this process, for those few who may ask.
 *
 * Settings belong into a spec or an option; here is only what others set for a process that they
 * start (launchers of ranks), and what tests switch. One door, so that a search finds them all. */
#ifndef PLIMSOLL_BASE_ENVIRONMENT_H
#define PLIMSOLL_BASE_ENVIRONMENT_H

/* The value, or NULL when it is not set or empty. Borrowed until the environment changes. */
const char *environment(const char *name);

/* Sets a variable for libraries of this process, where the user has not set it. Before threads. */
void environment_preset(const char *name, const char *value);

/* Ends the process at once, with nothing but open files closed by the system: for a thread that
 * finds that the main one will not come back. */
#ifdef __cplusplus
[[noreturn]]
#else
_Noreturn
#endif
void environment_leave(int exit_code);

#endif
