/* batch_rows.c - first-fit-decreasing over a whole dataset, and the order of its rows.
 *
 * The first row with room is found in a tree of maxima, so that a million samples take a fraction
 * of a second. Rows are numbered as they are opened: the long samples come first, and what they
 * leave is filled up by the short ones. */
#include "engine/text/batch_rows.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "engine/text/dataset.h"

/* Keeps the order of rows apart from the order of samples within a length. */
#define ROWS_STREAM UINT64_C(0x5DEECE66D1CE4E5B)

/* ---- random order ---- */

/* SplitMix64's finaliser (Steele, Lea, Flood 2014): a bijection that scatters neighbouring inputs.
 */
static uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static uint64_t random_at(uint64_t seed, int64_t epoch, int64_t index) {
    return mix(mix(mix(seed) ^ (uint64_t)epoch) ^ (uint64_t)index);
}

void batch_shuffle(int64_t *items, int64_t count, uint64_t seed, int64_t epoch, int64_t base) {
    for (int64_t i = count - 1; i > 0; i--) {
        const unsigned __int128 product =
            (unsigned __int128)random_at(seed, epoch, base + i) * (uint64_t)(i + 1);
        const int64_t j = (int64_t)(product >> 64);
        const int64_t kept = items[i];
        items[i] = items[j];
        items[j] = kept;
    }
}

/* ---- the first row with room ---- */

/* A full binary tree over rows that may be opened; a node holds the largest room below it. */
struct rooms {
    int64_t *most;
    int64_t leaves;
};

static void rooms_open(struct rooms *t, int64_t rows, int64_t room) {
    t->leaves = 1;
    while (t->leaves < rows) {
        t->leaves *= 2;
    }
    t->most = mem_new((size_t)t->leaves * 2, sizeof *t->most);
    for (int64_t i = 1; i < t->leaves * 2; i++) {
        t->most[i] = room;
    }
}

/* Takes `tokens` from the first row that has them; there always is one, a row for each sample. */
static int64_t rooms_take(struct rooms *t, int64_t tokens) {
    int64_t at = 1;
    ASSERT(t->most[1] >= tokens);
    while (at < t->leaves) {
        at = t->most[at * 2] >= tokens ? at * 2 : at * 2 + 1;
    }
    const int64_t row = at - t->leaves;
    t->most[at] -= tokens;
    for (at /= 2; at > 0; at /= 2) {
        const int64_t left = t->most[at * 2], right = t->most[at * 2 + 1];
        t->most[at] = left > right ? left : right;
    }
    return row;
}

/* ---- packing ---- */

struct ranked {
    int64_t sample, tokens;
};

static int compare_ranked(const void *left, const void *right) {
    const struct ranked *const a = left, *const b = right;
    if (a->tokens != b->tokens) return a->tokens > b->tokens ? -1 : 1;
    return a->sample < b->sample ? -1 : a->sample > b->sample;
}

/* The row of each rank, and how many rows there are. */
static int64_t first_fit(const struct ranked *ranked, int64_t count, int64_t row_tokens,
                         int64_t *row_of) {
    struct rooms rooms = {0};
    int64_t rows = 0;
    rooms_open(&rooms, count, row_tokens);
    for (int64_t i = 0; i < count; i++) {
        row_of[i] = rooms_take(&rooms, ranked[i].tokens);
        if (row_of[i] >= rows) rows = row_of[i] + 1;
    }
    mem_free(rooms.most);
    return rows;
}

static int64_t next_fit(const struct ranked *ranked, int64_t count, int64_t row_tokens,
                        int64_t *row_of) {
    int64_t row = 0, room = row_tokens;
    for (int64_t i = 0; i < count; i++) {
        if (ranked[i].tokens > room) {
            row++;
            room = row_tokens;
        }
        room -= ranked[i].tokens;
        row_of[i] = row;
    }
    return row + 1;
}

/* Groups ranks by their row, by counting. */
static void group(struct batch_rows *r, const int64_t *row_of) {
    r->first = mem_new((size_t)r->count + 2, sizeof *r->first);
    r->members = mem_new((size_t)r->samples, sizeof *r->members);
    for (int64_t i = 0; i < r->samples; i++) {
        r->first[row_of[i] + 2]++;
    }
    for (int64_t row = 2; row <= r->count; row++) {
        r->first[row] += r->first[row - 1];
    }
    for (int64_t i = 0; i < r->samples; i++) {
        r->members[r->first[row_of[i] + 1]++] = i;
    }
}

void batch_rows_pack(struct batch_rows *r, const struct dataset *d, int64_t row_tokens,
                     bool in_order) {
    const int64_t samples = d->counts.samples;
    struct ranked *const ranked = mem_new((size_t)samples, sizeof *ranked);
    int64_t *const row_of = mem_new((size_t)samples, sizeof *row_of);
    *r = (struct batch_rows){.samples = samples};
    for (int64_t i = 0; i < samples; i++) {
        ranked[i] = (struct ranked){i, dataset_sample(d, i).count};
    }
    if (!in_order) qsort(ranked, (size_t)samples, sizeof *ranked, compare_ranked);
    r->count = in_order ? next_fit(ranked, samples, row_tokens, row_of)
                        : first_fit(ranked, samples, row_tokens, row_of);
    r->ranked = mem_new((size_t)samples, sizeof *r->ranked);
    r->classes = mem_new((size_t)samples + 1, sizeof *r->classes);
    for (int64_t i = 0; i < samples; i++) {
        r->ranked[i] = ranked[i].sample;
        if (i == 0 || ranked[i].tokens != ranked[i - 1].tokens) r->classes[r->class_count++] = i;
    }
    r->classes[r->class_count] = samples;
    group(r, row_of);
    mem_free(ranked);
    mem_free(row_of);
}

void batch_rows_release(struct batch_rows *r) {
    if (!r) return;
    mem_free(r->ranked);
    mem_free(r->members);
    mem_free(r->first);
    mem_free(r->classes);
    *r = (struct batch_rows){0};
}

void batch_rows_order(const struct batch_rows *r, uint64_t seed, int64_t epoch, bool shuffle,
                      int64_t *order, int64_t *begins) {
    int64_t *const placed = mem_new((size_t)r->samples, sizeof *placed);
    int64_t *const rows = mem_new((size_t)r->count, sizeof *rows);
    memcpy(placed, r->ranked, (size_t)r->samples * sizeof *placed);
    for (int64_t i = 0; i < r->count; i++) {
        rows[i] = i;
    }
    for (int64_t i = 0; i < r->class_count && shuffle; i++) {
        const int64_t from = r->classes[i];
        batch_shuffle(placed + from, r->classes[i + 1] - from, seed, epoch, from);
    }
    if (shuffle) batch_shuffle(rows, r->count, seed ^ ROWS_STREAM, epoch, 0);
    int64_t at = 0;
    for (int64_t k = 0; k < r->count; k++) {
        begins[k] = at;
        for (int64_t i = r->first[rows[k]]; i < r->first[rows[k] + 1]; i++) {
            order[at++] = placed[r->members[i]];
        }
    }
    begins[r->count] = at;
    ASSERT(at == r->samples);
    mem_free(placed);
    mem_free(rows);
}
