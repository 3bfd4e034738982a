/* shapes.c - the largest micro-batches of a run, from its own batcher.
 *
 * So the plan is for these data, and not for the worst that the options would allow. */
#include "engine/train/shapes.h"

#include <math.h>

#include "base/mem.h"

/* About a second of copying; beyond it a bound is good enough. */
#define SCAN_TOKENS_MAX INT64_C(400000000)

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static bool covers(const struct batch_shape *a, const struct batch_shape *b) {
    return a->tokens >= b->tokens && a->trained >= b->trained && a->segments >= b->segments;
}

static void merge(struct batch_shape *into, const struct batch_shape *s) {
    into->tokens = larger(into->tokens, s->tokens);
    into->trained = larger(into->trained, s->trained);
    into->segments = larger(into->segments, s->segments);
    into->max_seqlen = larger(into->max_seqlen, s->max_seqlen);
}

static void add(struct batch_shapes *shapes, const struct batch_shape *s) {
    if (!shapes->exact) {
        merge(&shapes->items[0], s);
        return;
    }
    int64_t kept = 0;
    for (int64_t i = 0; i < shapes->count; i++) {
        if (covers(&shapes->items[i], s)) return;
        if (!covers(s, &shapes->items[i])) shapes->items[kept++] = shapes->items[i];
    }
    shapes->count = kept;
    if (kept < SHAPES_MAX) {
        shapes->items[shapes->count++] = *s;
        return;
    }
    for (int64_t i = 1; i < kept; i++) {
        merge(&shapes->items[0], &shapes->items[i]);
    }
    merge(&shapes->items[0], s);
    shapes->count = 1;
    shapes->exact = false;
}

static void sum(struct batch_shapes *shapes, const struct batch_shape *s) {
    shapes->micros++;
    shapes->sums.tokens += (double)s->tokens;
    shapes->sums.trained += (double)s->trained;
    shapes->sums.segments += (double)s->segments;
    shapes->sums.longest += (double)s->tokens * (double)s->max_seqlen;
}

void shapes_bound(struct batch_shapes *shapes, const struct batcher *b) {
    const struct dataset_counts *const counts = &b->dataset->counts;
    struct batch_options largest = b->options;
    if (!largest.packing) largest.max_length = counts->longest;
    shapes_full(shapes, &largest);
    shapes->exact = false;
    if (largest.packing) {
        struct batch_shape *const shape = &shapes->items[0];
        shape->segments = batcher_segments_max(b);
        shape->max_seqlen = counts->longest;
        if (batch_budget(&b->options) < shape->tokens) {
            shape->tokens = larger(batch_budget(&b->options), counts->longest);
            shape->trained = shape->tokens - 1;
        }
    }
}

void shapes_scan(struct batch_shapes *shapes, struct batcher *b, int64_t steps) {
    *shapes = (struct batch_shapes){.exact = true};
    const int64_t per_step = b->dataset->counts.tokens / larger(1, b->steps_per_epoch);
    if (steps > SCAN_TOKENS_MAX / larger(1, per_step)) {
        shapes_bound(shapes, b);
        return;
    }
    /* In file order every epoch is the same. */
    if (!b->options.shuffle && steps > b->steps_per_epoch) steps = b->steps_per_epoch;
    struct batch batch = {0};
    shapes->steps = steps;
    for (int64_t step = 0; step < steps; step++) {
        batcher_step(b, step);
        for (int64_t micro = 0; micro < b->micro_count; micro++) {
            batcher_micro(b, micro, &batch);
            const struct batch_shape s = {.tokens = batch.tokens,
                                          .trained = batch.trained,
                                          .segments = batch.segments,
                                          .max_seqlen = batch.max_seqlen};
            if (batch.trained == 0) continue;
            add(shapes, &s);
            sum(shapes, &s);
        }
    }
    batch_release(&batch);
}

void shapes_full(struct batch_shapes *shapes, const struct batch_options *options) {
    const int64_t rows = options->micro_rows;
    *shapes = (struct batch_shapes){.count = 1, .exact = true};
    shapes->items[0] = (struct batch_shape){.tokens = rows * options->max_length,
                                            .trained = rows * (options->max_length - 1),
                                            .segments = rows,
                                            .max_seqlen = options->max_length};
    shapes->steps = 1;
    const int64_t own = options->global_rows / larger(1, options->world);
    for (int64_t row = 0; row < own; row += rows) {
        sum(shapes, &shapes->items[0]);
    }
}

static int64_t rounded(double value, int64_t least) {
    return larger(least, (int64_t)llround(value));
}

struct batch_shape shapes_mean(const struct batch_shapes *shapes) {
    ASSERT(shapes->micros > 0);
    const double micros = (double)shapes->micros;
    struct batch_shape s = {
        .tokens = rounded(shapes->sums.tokens / micros, 1),
        .trained = rounded(shapes->sums.trained / micros, 1),
        .segments = rounded(shapes->sums.segments / micros, 1),
        .max_seqlen = rounded(shapes->sums.longest / shapes->sums.tokens, 1),
    };
    if (s.segments > s.tokens) s.segments = s.tokens;
    if (s.max_seqlen > s.tokens) s.max_seqlen = s.tokens;
    return s;
}

void shapes_cut(struct batch_shapes *shapes, int64_t rows, int64_t length) {
    for (int64_t i = 0; i < shapes->count; i++) {
        struct batch_shape *const s = &shapes->items[i];
        if (s->max_seqlen > length) s->max_seqlen = length;
        if (s->tokens > rows * length) s->tokens = rows * length;
        if (s->trained > s->tokens) s->trained = s->tokens;
    }
}

void shape_batch(const struct batch_shape *s, struct batch *out) {
    batch_release(out);
    const size_t tokens = (size_t)s->tokens, segments = (size_t)s->segments;
    *out = (struct batch){.tokens = s->tokens,
                          .trained = s->trained,
                          .segments = s->segments,
                          .max_seqlen = s->max_seqlen,
                          .real_tokens = s->tokens,
                          .ids = mem_new(tokens, sizeof *out->ids),
                          .labels = mem_new(tokens, sizeof *out->labels),
                          .positions = mem_new(tokens, sizeof *out->positions),
                          .cu_seqlens = mem_new(segments + 1, sizeof *out->cu_seqlens),
                          .row_keys = mem_new(tokens, sizeof *out->row_keys),
                          .capacity_tokens = s->tokens,
                          .capacity_segments = s->segments};
    for (int64_t t = 0; t < s->tokens; t++) {
        out->labels[t] = t < s->trained ? 0 : -100;
    }
    for (int64_t i = 0; i <= s->segments; i++) {
        out->cu_seqlens[i] = (int32_t)(s->tokens * i / s->segments);
    }
}
