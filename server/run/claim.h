/* claim.h - what a job claims of its devices, from its spec and from what became of its cap since.
 *
 * memory.cap holds for each rank; ranks that share a device claim it once each. A cap that was
 * changed lies in the run directory, so a server that comes back makes the same claims. */
#ifndef PLIMSOLL_SERVER_RUN_CLAIM_H
#define PLIMSOLL_SERVER_RUN_CLAIM_H

#include "server/run/queue.h"

/* The part of a spec that matters here. */
struct claim_terms {
    char device[SPEC_DEVICE_MAX]; /* as the spec names it */
    int64_t ranks;
    struct spec_cap cap;
};
/* Reads a job's spec. One that cannot be read claims nothing (ranks 0): its planner refuses it. */
struct claim_terms claim_terms_of(const char *spec);

/* What is known beside the terms. */
struct claim_news {
    bool has_cap; /* the operator has set another cap */
    struct spec_cap cap;
    int64_t capacity; /* of a rank, as its process told last; -1: it has told nothing yet */
};
/* The cap that lies in the run directory; false when there is none. */
bool claim_read_cap(const char *run, struct spec_cap *cap);
/* The capacity in a `memory` event; -1 when there is none. */
int64_t claim_capacity_told(const char *memory);

/* Bytes of a device; -1: unknown. */
struct claim_totals {
    int64_t (*of)(const char *device, void *context);
    void *context;
};
/* Makes the claim; release with claim_release. A cap that was lowered counts only when the process
 * has come down to it, one that was raised at once. */
void claim_make(struct claim *out, const struct claim_terms *terms, const struct claim_news *news,
                struct claim_totals totals);

#endif
