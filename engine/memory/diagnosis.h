/* diagnosis.h - why memory was short, in one word and in one paragraph.
 *
 * Pure functions of a report: the same report gives the same answer on every rank and in every
 * test. A number that is not known is -1 in the report and is never printed; it must not look like
 * nothing. */
#ifndef PLIMSOLL_ENGINE_MEMORY_DIAGNOSIS_H
#define PLIMSOLL_ENGINE_MEMORY_DIAGNOSIS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/memory/arena.h"

enum diagnosis_kind {
    DIAGNOSIS_SHORTAGE,        /* the run needs more than there is; nothing stands out */
    DIAGNOSIS_FRAGMENTATION,   /* enough is free, but not in one piece */
    DIAGNOSIS_OTHER_PROCESS,   /* it would fit if nobody else were on the device */
    DIAGNOSIS_IMBALANCE,       /* this rank needs much more than the others */
    DIAGNOSIS_ONLY_ONE_GPU,    /* more cards are there than the run uses */
    DIAGNOSIS_HOST_MEMORY,     /* the machine's own memory, not the device's */
    DIAGNOSIS_SHM,             /* /dev/shm is too small: a container without --ipc=host */
    DIAGNOSIS_WEIGHTS,         /* real shortage, and this is what most of it is: */
    DIAGNOSIS_OPTIMIZER_STATE, /* gradients count here too: both follow what is trained */
    DIAGNOSIS_ACTIVATIONS,
    DIAGNOSIS_LOGITS,
    DIAGNOSIS_COUNT
};
/* "shortage", "other_process", ... as events and the API spell it. */
const char *diagnosis_name(enum diagnosis_kind kind);

/* What one rank posted before the micro-step: bytes reserved in all. */
struct diagnosis_rank {
    int64_t rank, need, can_back;
};

/* All that is known about a failed reservation or allocation. Start from diagnosis_unknown(). */
struct diagnosis_report {
    struct arena_shortage shortage;
    bool reservation;    /* `requested` is a total that should be backed, not one block */
    int64_t rank, world; /* world 1: no rank is named */
    int64_t device_total, device_used, others, overhead; /* bytes; see events.h */
    int64_t cap;                        /* what memory.cap allows; -1: it is not set */
    int64_t cards;                      /* GPUs that this process could use; 0: a CPU */
    const struct diagnosis_rank *ranks; /* [rank_count], borrowed */
    int64_t rank_count;
    bool host_failed; /* it was memory of the host that was refused */
    int64_t host_total, host_available;
    int64_t shm_total, shm_needed; /* of /dev/shm; needed 0: the run does not use it */
    const char *foreign;           /* what a library or the driver said, or NULL */
};
struct diagnosis_report diagnosis_unknown(void);

enum { DIAGNOSIS_TEXT_MAX = 1024 };
struct diagnosis {
    enum diagnosis_kind kind;
    char text[DIAGNOSIS_TEXT_MAX]; /* one paragraph: what was asked, what is there, what helps */
};
void diagnosis_make(struct diagnosis *out, const struct diagnosis_report *report);

/* What an error text of NCCL, the driver, a CUDA library or the C library means where it is about
 * memory: a sentence for the user. *kind (may be NULL) gets the diagnosis. NULL for any other text.
 */
const char *diagnosis_translate(const char *foreign, enum diagnosis_kind *kind);

/* "of 24.0 GiB" beside "23.1": bytes with one decimal and a unit. Returns `buffer`. */
const char *diagnosis_bytes(int64_t bytes, char buffer[24]);

#endif
