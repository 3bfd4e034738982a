/* claim.c - see claim.h.
 *
 * A process begins with the cap of its spec and hears of another one at its first step. So until it
 * has told its capacity, the larger of the two caps is what it may take. */
#include "server/run/claim.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "engine/rundir.h"

enum {
    CARDS_MAX = 64
}; /* of a machine; bounds the work on a spec that asks for thousands of ranks */

struct claim_terms claim_terms_of(const char *text) {
    struct claim_terms terms = {0};
    struct spec spec = {0};
    struct err ignored = {0};
    cJSON *object = NULL;
    if (text && json_parse(text, strlen(text), "spec", &object, &ignored) == STATUS_OK &&
        spec_parse(&spec, object, &ignored) == STATUS_OK) {
        /* Ranks on other machines take nothing of this one. */
        terms.ranks = strcmp(spec.parallel.launcher, "local") == 0 ? spec.parallel.ranks : 0;
        terms.cap = spec.memory.cap;
        snprintf(terms.device, sizeof terms.device, "%s", spec.device);
    }
    spec_release(&spec);
    cJSON_Delete(object);
    return terms;
}

bool claim_read_cap(const char *run, struct spec_cap *cap) {
    struct run_control control;
    struct err ignored = {0};
    uint64_t mark = 0;
    if (rundir_control_read(run, &mark, NULL, &control, &ignored) != STATUS_OK) return false;
    *cap = control.cap;
    return control.has_cap;
}

int64_t claim_capacity_told(const char *memory) {
    cJSON *event = NULL;
    struct err ignored = {0};
    int64_t capacity = -1;
    if (memory && json_parse(memory, strlen(memory), "memory", &event, &ignored) == STATUS_OK)
        (void)json_get_i64(event, "capacity", &capacity, &ignored);
    cJSON_Delete(event);
    return capacity > 0 ? capacity : -1;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* A share of what is unknown, and more than there is, are the whole of it. */
static int64_t bytes_of(const struct spec_cap *cap, int64_t total) {
    if (cap->bytes <= 0 && total < 0) return CLAIM_WHOLE;
    const int64_t bytes = spec_cap_bytes(cap, total);
    return bytes > 0 && (total < 0 || bytes < total) ? bytes : CLAIM_WHOLE;
}

static int64_t of_rank(const struct claim_terms *terms, const struct claim_news *news,
                       int64_t total) {
    const int64_t asked = bytes_of(&terms->cap, total);
    if (!news->has_cap) return asked;
    const int64_t now = bytes_of(&news->cap, total);
    return larger(now, news->capacity > 0 ? news->capacity : asked);
}

static void fill_part(struct claim_part *part, int64_t bytes, int64_t ranks) {
    const bool whole = bytes > (CLAIM_WHOLE - 1) / ranks;
    part->bytes = whole ? CLAIM_WHOLE : bytes * ranks;
}

void claim_make(struct claim *out, const struct claim_terms *terms, const struct claim_news *news,
                struct claim_totals totals) {
    *out = (struct claim){0};
    if (terms->ranks < 1) return;
    const bool spread = strcmp(terms->device, "cuda") == 0; /* rank N on cuda:N */
    out->count = spread ? terms->ranks : 1;
    if (out->count > CARDS_MAX) out->count = CARDS_MAX;
    out->parts = mem_new((size_t)out->count, sizeof *out->parts);
    for (int64_t i = 0; i < out->count; i++) {
        struct claim_part *const part = &out->parts[i];
        if (spread) {
            snprintf(part->device, sizeof part->device, "cuda:%lld", (long long)i);
        } else {
            snprintf(part->device, sizeof part->device, "%s", terms->device);
        }
        /* What is a number needs no look at the device. */
        const bool shares = terms->cap.share > 0 || (news->has_cap && news->cap.share > 0);
        const int64_t total = shares ? totals.of(part->device, totals.context) : -1;
        fill_part(part, of_rank(terms, news, total), spread ? 1 : terms->ranks);
    }
}
