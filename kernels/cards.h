/* cards.h - which GPUs this machine has, told without starting any of them.
 *
 * For lists that people choose from: nothing is allocated on a card and no context is made, so
 * asking beside a running job costs it nothing. */
#ifndef PLIMSOLL_KERNELS_CARDS_H
#define PLIMSOLL_KERNELS_CARDS_H

#include <stdint.h>

#include "base/err.h"

enum { DEVICE_CARDS_MAX = 32 };

struct device_card {
    char id[16];         /* "cuda:0", as device_open takes it */
    char name[64];       /* "NVIDIA H200" */
    int capability;      /* 90 for 9.0 */
    int64_t total_bytes; /* of its memory */
    int64_t free_bytes;  /* now; -1 where the driver's management library does not tell */
    struct err problem;  /* STATUS_OK, or why it cannot be used */
};

struct device_cards {
    int count;
    struct device_card items[DEVICE_CARDS_MAX];
    char driver[64];    /* its version, or "" */
    struct err problem; /* STATUS_OK, or why there is no card to be had: a sentence for people */
};

/* Looks now. Never fails: what is missing is told in `problem`. */
void device_cards_find(struct device_cards *out);

#endif
