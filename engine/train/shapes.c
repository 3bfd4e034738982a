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

int64_t step_shapes_count(const struct step_shapes *steps) {
    return steps->listed ? steps->count : steps->most > 0;
}

static int64_t begin_of(const struct step_shapes *steps, int64_t step) {
    return step > 0 ? steps->ends[step - 1] : 0;
}

int64_t step_shapes_micros(const struct step_shapes *steps, int64_t step) {
    return steps->listed ? steps->ends[step] - begin_of(steps, step) : steps->most;
}

const struct batch_shape *step_shapes_at(const struct step_shapes *steps, int64_t step,
                                         int64_t micro) {
    return steps->listed ? &steps->micros[begin_of(steps, step) + micro] : &steps->largest;
}

static bool covers_step(const struct batch_shape *a, int64_t a_count, const struct batch_shape *b,
                        int64_t b_count) {
    bool all = a_count >= b_count;
    for (int64_t i = 0; all && i < b_count; i++) {
        all = covers(&a[i], &b[i]);
    }
    return all;
}

/* Takes out the steps that this one exceeds. */
static void drop_covered(struct step_shapes *steps, const struct batch_shape *micros,
                         int64_t count) {
    int64_t kept = 0, used = 0;
    for (int64_t i = 0, begin = 0; i < steps->count; i++) {
        const int64_t end = steps->ends[i], own = end - begin;
        if (!covers_step(micros, count, &steps->micros[begin], own)) {
            for (int64_t k = 0; k < own; k++) {
                steps->micros[used++] = steps->micros[begin + k];
            }
            steps->ends[kept++] = used;
        }
        begin = end;
    }
    steps->count = kept;
}

/* The one step that there is becomes at least as large. */
static void merge_step(struct step_shapes *steps, const struct batch_shape *micros, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (i >= steps->ends[0]) steps->micros[i] = (struct batch_shape){0};
        const struct batch_shape s = micros[i];
        merge(&steps->micros[i], &s);
    }
    steps->ends[0] = larger(steps->ends[0], count);
}

/* All steps become one. What is written lies before what is still to be read. */
static void merge_all(struct step_shapes *steps) {
    int64_t merged = steps->count > 0 ? steps->ends[0] : 0;
    for (int64_t i = 1; i < steps->count; i++) {
        const int64_t begin = steps->ends[i - 1], count = steps->ends[i] - begin;
        for (int64_t k = 0; k < count; k++) {
            const struct batch_shape s = steps->micros[begin + k];
            if (k >= merged) steps->micros[k] = (struct batch_shape){0};
            merge(&steps->micros[k], &s);
        }
        merged = larger(merged, count);
    }
    steps->ends[0] = merged;
    steps->count = 1;
    steps->merged = true;
}

void step_shapes_add(struct step_shapes *steps, const struct batch_shape *micros, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        merge(&steps->largest, &micros[i]);
    }
    steps->most = larger(steps->most, count);
    if (count > STEP_MICROS_MAX) steps->listed = false;
    if (!steps->listed || count == 0) return;
    if (steps->merged) {
        merge_step(steps, micros, count);
        return;
    }
    for (int64_t i = 0; i < steps->count; i++) {
        if (covers_step(&steps->micros[begin_of(steps, i)], step_shapes_micros(steps, i), micros,
                        count))
            return;
    }
    drop_covered(steps, micros, count);
    const int64_t used = begin_of(steps, steps->count);
    if (steps->count == STEPS_MAX || used + count > STEP_MICROS_MAX) {
        merge_all(steps);
        merge_step(steps, micros, count);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        steps->micros[used + i] = micros[i];
    }
    steps->ends[steps->count++] = used + count;
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
    shapes->in_steps.largest = shapes->items[0];
    if (!largest.packing) return;
    /* Of any two bins of a first fit but one pair, the sum is beyond what one holds. */
    const int64_t own = largest.global_rows / larger(1, largest.world) + 1;
    shapes->in_steps.most =
        2 * own * b->options.max_length / larger(1, batch_budget(&b->options)) + 1;
}

void shapes_scan(struct batch_shapes *shapes, struct batcher *b, int64_t steps) {
    *shapes = (struct batch_shapes){.exact = true, .in_steps.listed = true};
    const int64_t per_step = b->dataset->counts.tokens / larger(1, b->steps_per_epoch);
    if (steps > SCAN_TOKENS_MAX / larger(1, per_step)) {
        shapes_bound(shapes, b);
        return;
    }
    /* In file order every epoch is the same. */
    if (!b->options.shuffle && steps > b->steps_per_epoch) steps = b->steps_per_epoch;
    struct batch batch = {0};
    struct batch_shape *micros = NULL;
    size_t capacity = 0;
    shapes->steps = steps;
    for (int64_t step = 0; step < steps; step++) {
        int64_t count = 0;
        batcher_step(b, step);
        for (int64_t micro = 0; micro < b->micro_count; micro++) {
            batcher_micro(b, micro, &batch);
            const struct batch_shape s = {.tokens = batch.tokens,
                                          .trained = batch.trained,
                                          .segments = batch.segments,
                                          .max_seqlen = batch.max_seqlen};
            if (batch.trained == 0) continue;
            micros = mem_grow(micros, (size_t)count, &capacity, sizeof *micros);
            micros[count++] = s;
            add(shapes, &s);
            sum(shapes, &s);
        }
        step_shapes_add(&shapes->in_steps, micros, count);
    }
    batch_release(&batch);
    mem_free(micros);
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
    shapes->in_steps.largest = shapes->items[0];
    shapes->in_steps.most = larger(1, shapes->micros);
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

static void cut(struct batch_shape *s, int64_t rows, int64_t length) {
    if (s->max_seqlen > length) s->max_seqlen = length;
    if (s->tokens > rows * length) s->tokens = rows * length;
    if (s->trained > s->tokens) s->trained = s->tokens;
}

void shapes_cut(struct batch_shapes *shapes, int64_t rows, int64_t length) {
    struct step_shapes *const steps = &shapes->in_steps;
    for (int64_t i = 0; i < shapes->count; i++) {
        cut(&shapes->items[i], rows, length);
    }
    for (int64_t i = 0; steps->listed && i < begin_of(steps, steps->count); i++) {
        cut(&steps->micros[i], rows, length);
    }
    cut(&steps->largest, rows, length);
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
