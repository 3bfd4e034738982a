/* wire.h - the host channel: a thread of each rank that holds the connections, gives signs of life,
 * watches for those of others, and carries the records of gathers.
 *
 * Rank 0 is the hub: every other rank has one connection, to it. The thread alone touches the
 * connections; the trainer's thread hands it a record and waits for the answer. */
#ifndef PLIMSOLL_ENGINE_DIST_WIRE_H
#define PLIMSOLL_ENGINE_DIST_WIRE_H

#include "engine/dist/comm.h"

/* A rank that is lost, or failed and said why. */
struct loss {
    int64_t rank;
    enum status status;
    char text[ERR_TEXT_MAX];
};

/* Joins all ranks of the place; returns when all are here. Caller frees with wire_close. */
enum status wire_open(struct wire **out, const struct comm_place *place,
                      const struct comm_options *options, struct err *e);
/* Leaves in good order: all ranks must come here. After a loss it waits for nobody. */
void wire_close(struct wire *w);
/* Says why this rank fails, to all others, and stops. wire_close must follow. */
void wire_abandon(struct wire *w, const struct err *why);
/* What the trainer's thread is doing, for reports: "while the others met for step 7". Copied. */
void wire_doing(struct wire *w, const char *doing);
void wire_set_patience(struct wire *w, int64_t patience_ms);
/* See comm_gather. */
enum status wire_gather(struct wire *w, const void *mine, int64_t bytes, void *all, struct err *e);
/* STATUS_OK while nobody is lost. */
enum status wire_check(struct wire *w, struct err *e);
/* This rank finds that another one is lost: everybody is told, with what it was doing. Returns what
 * wire_check does then. */
enum status wire_report(struct wire *w, int64_t rank, const char *text, struct err *e);
/* Which process a rank is, and where: for those that rank 0 alone has spoken with. */
void wire_know(struct wire *w, int64_t rank, int64_t pid, const char *host);
/* How people call a rank: "rank 2 (process 4711)", with the machine when there may be several.
 * Returns `buffer`. */
const char *wire_name(struct wire *w, int64_t rank, char buffer[160]);

#endif
