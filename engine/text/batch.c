/* batch.c - the order of samples and the laying out of micro-batches.
 *
 * Everything is a pure function of (seed, epoch, step), so a resumed run finds its place without
 * replaying anything; only the order of the epoch at hand is kept. Inside a step samples are dealt
 * longest first: that wastes the least padding and fills bins best (first-fit-decreasing), and it
 * changes nothing that is learned, the step being one sum over all its samples. */
#include "engine/text/batch.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/text/batch_ranks.h"

enum { POSITION_BITS = 24 }; /* of a row key */

/* One sample while a step is dealt out. */
struct dealt {
    int64_t index; /* in the step */
    int64_t count; /* tokens */
    int64_t cost;  /* tokens and trained tokens: what is trained passes the head as well */
};

/* What one rank gets of a step, to be cut into micro-batches. */
struct share {
    int64_t rank;
    const int64_t *owners;     /* [samples of the step] */
    const struct dealt *dealt; /* [count] its samples, longest first */
    int64_t count;
    int64_t *bins; /* [samples of the step] out: the micro-batch */
};

static int64_t min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static enum status check_options(const struct dataset *d, const struct batch_options *o,
                                 struct err *e) {
    FAIL_IF(d->counts.samples < 1, STATUS_INVALID, "the dataset has no samples to make batches of");
    FAIL_IF(o->micro_rows < 1 || o->global_rows < 1, STATUS_INVALID,
            "batch sizes must be at least 1, they are %lld a micro-batch and %lld a step",
            (long long)o->micro_rows, (long long)o->global_rows);
    FAIL_IF(o->world > 1 && (o->rank < 0 || o->rank >= o->world), STATUS_INVALID,
            "rank %lld does not exist among %lld ranks", (long long)o->rank, (long long)o->world);
    FAIL_IF(o->max_length < 1 || o->max_length >= (1 << POSITION_BITS), STATUS_INVALID,
            "max_length is %lld, it must be between 1 and %d", (long long)o->max_length,
            (1 << POSITION_BITS) - 1);
    FAIL_IF(o->micro_rows > INT32_MAX / o->max_length, STATUS_INVALID,
            "a micro-batch of %lld rows of %lld tokens has more than 2^31 tokens",
            (long long)o->micro_rows, (long long)o->max_length);
    FAIL_IF(d->counts.longest > o->max_length, STATUS_INVALID,
            "the longest sample has %lld tokens, max_length is %lld", (long long)d->counts.longest,
            (long long)o->max_length);
    return STATUS_OK;
}

enum status batcher_open(struct batcher *b, const struct dataset *dataset,
                         const struct batch_options *options, struct err *e) {
    *b = (struct batcher){.dataset = dataset, .options = *options, .epoch = -1};
    if (b->options.world < 1) b->options.world = 1;
    TRY(check_options(dataset, options, e));
    const int64_t samples = dataset->counts.samples;
    int64_t units = samples;
    if (options->strategy == BATCH_OF_ROWS) {
        batch_rows_pack(&b->rows, dataset, options->max_length, !options->shuffle);
        b->begins = mem_new((size_t)b->rows.count + 1, sizeof *b->begins);
        units = b->rows.count;
    }
    b->steps_per_epoch = (units - 1) / options->global_rows + 1;
    b->order = mem_new((size_t)samples, sizeof *b->order);
    return STATUS_OK;
}

void batcher_close(struct batcher *b) {
    if (!b) return;
    batch_rows_release(&b->rows);
    mem_free(b->order);
    mem_free(b->begins);
    mem_free(b->bins);
    *b = (struct batcher){0};
}

static void order_epoch(struct batcher *b, int64_t epoch) {
    const struct batch_options *const o = &b->options;
    const int64_t samples = b->dataset->counts.samples;
    b->epoch = epoch;
    if (o->strategy == BATCH_OF_ROWS) {
        batch_rows_order(&b->rows, o->seed, epoch, o->shuffle, b->order, b->begins);
        return;
    }
    for (int64_t i = 0; i < samples; i++) {
        b->order[i] = i;
    }
    if (o->shuffle) batch_shuffle(b->order, samples, o->seed, epoch, 0);
}

/* The samples of the step, as a stretch of `order`. */
static void find_step(struct batcher *b, int64_t step) {
    const int64_t first = step % b->steps_per_epoch * b->options.global_rows;
    if (b->options.strategy == BATCH_OF_ROWS) {
        const int64_t end = min_i64(first + b->options.global_rows, b->rows.count);
        b->row_first = first;
        b->step_first = b->begins[first];
        b->step_rows = b->begins[end] - b->step_first;
    } else {
        b->step_first = first;
        b->step_rows = min_i64(b->options.global_rows, b->dataset->counts.samples - first);
    }
    ASSERT(b->step_rows > 0);
    if (b->step_rows <= b->bins_capacity) return;
    b->bins_capacity = b->step_rows;
    b->bins = mem_resize(b->bins, (size_t)b->bins_capacity, sizeof *b->bins);
}

static int64_t count_trained(const struct sample *sample) {
    int64_t trained = 0;
    for (int64_t i = 1; i < sample->count; i++) {
        trained += sample->trained[i] != 0;
    }
    return trained;
}

/* Longest first; equal lengths keep their order, so that the deal does not depend on the sort's
 * whims. */
static int dealt_compare(const void *left, const void *right) {
    const struct dealt *const a = left, *const b = right;
    if (a->count != b->count) return a->count > b->count ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

static int64_t deal_padded(const struct batcher *b, const struct share *share) {
    for (int64_t i = 0; i < share->count; i++) {
        share->bins[share->dealt[i].index] = i / b->options.micro_rows;
    }
    return (share->count + b->options.micro_rows - 1) / b->options.micro_rows;
}

/* First-fit-decreasing: each sample goes to the first bin that still has room for it. */
static int64_t deal_packed(const struct batcher *b, const struct share *share) {
    const int64_t budget = batch_budget(&b->options);
    int64_t *const room = mem_new((size_t)share->count, sizeof *room);
    int64_t bins = 0;
    for (int64_t i = 0; i < share->count; i++) {
        const struct dealt *const d = &share->dealt[i];
        int64_t bin = 0;
        while (bin < bins && room[bin] < d->count) {
            bin++;
        }
        if (bin == bins) room[bins++] = d->count > budget ? d->count : budget;
        ASSERT(room[bin] >= d->count);
        room[bin] -= d->count;
        share->bins[d->index] = bin;
    }
    mem_free(room);
    return bins;
}

/* The row of each sample of the step, counted from the step's first. BATCH_OF_ROWS. */
static void find_rows(const struct batcher *b, int64_t *rows) {
    int64_t row = b->row_first;
    for (int64_t i = 0; i < b->step_rows; i++) {
        while (b->begins[row + 1] <= b->step_first + i) {
            row++;
        }
        rows[i] = row - b->row_first;
    }
}

/* Rows that are packed already: some after the other. */
static int64_t deal_rows(const struct batcher *b, const struct share *share) {
    int64_t *const rows = mem_new((size_t)b->step_rows, sizeof *rows);
    int64_t taken = 0, last = -1;
    find_rows(b, rows);
    for (int64_t i = 0; i < b->step_rows; i++) {
        if (share->owners[i] != share->rank) continue;
        taken += rows[i] != last;
        last = rows[i];
        share->bins[i] = (taken - 1) / b->options.micro_rows;
    }
    mem_free(rows);
    return (taken + b->options.micro_rows - 1) / b->options.micro_rows;
}

static int64_t deal(const struct batcher *b, const struct share *share) {
    if (!b->options.packing) return deal_padded(b, share);
    return b->options.strategy == BATCH_OF_ROWS ? deal_rows(b, share) : deal_packed(b, share);
}

static bool keeps_rows(const struct batch_options *o) {
    return o->packing && o->strategy == BATCH_OF_ROWS;
}

/* owners[i]: the rank of sample i of the step. Packed rows stay whole. */
static void find_owners(const struct batcher *b, const struct dealt *dealt, int64_t *owners) {
    const int64_t world = b->options.world, count = b->step_rows;
    if (world == 1) {
        memset(owners, 0, (size_t)count * sizeof *owners);
        return;
    }
    int64_t *const unit = mem_new((size_t)count, sizeof *unit);
    int64_t *const costs = mem_new((size_t)count, sizeof *costs);
    int64_t *const ranks = mem_new((size_t)count, sizeof *ranks);
    int64_t units = count;
    for (int64_t i = 0; i < count; i++) {
        unit[i] = i;
    }
    if (keeps_rows(&b->options)) {
        find_rows(b, unit);
        units = unit[count - 1] + 1;
    }
    for (int64_t i = 0; i < count; i++) {
        costs[unit[dealt[i].index]] += dealt[i].cost;
    }
    batch_deal_ranks(costs, units, world, ranks);
    for (int64_t i = 0; i < count; i++) {
        owners[i] = ranks[unit[i]];
    }
    mem_free(unit);
    mem_free(costs);
    mem_free(ranks);
}

/* Micro-batches of every rank: how many there are is known to all, the bins only of this one. */
static void deal_all(struct batcher *b, const struct dealt *dealt) {
    const size_t count = (size_t)b->step_rows;
    struct dealt *const part = mem_new(count, sizeof *part);
    int64_t *const owners = mem_new(count, sizeof *owners), *const others = mem_new(count, 8);
    find_owners(b, dealt, owners);
    b->micro_count_most = 0;
    for (int64_t rank = 0; rank < b->options.world; rank++) {
        const bool mine = rank == b->options.rank;
        struct share share = {
            .rank = rank, .owners = owners, .dealt = part, .bins = mine ? b->bins : others};
        for (int64_t i = 0; i < b->step_rows; i++) {
            if (owners[dealt[i].index] == rank) part[share.count++] = dealt[i];
        }
        for (int64_t i = 0; mine && i < b->step_rows; i++) {
            b->bins[i] = -1; /* in no micro-batch of this rank */
        }
        const int64_t micros = share.count ? deal(b, &share) : 0;
        if (mine) b->micro_count = micros;
        if (micros > b->micro_count_most) b->micro_count_most = micros;
    }
    b->rank_trained = b->rank_tokens = 0;
    for (int64_t i = 0; i < b->step_rows; i++) {
        if (owners[dealt[i].index] != b->options.rank) continue;
        b->rank_tokens += dealt[i].count;
        b->rank_trained += dealt[i].cost - dealt[i].count;
    }
    mem_free(part);
    mem_free(owners);
    mem_free(others);
}

void batcher_step(struct batcher *b, int64_t step) {
    ASSERT(b->order && step >= 0);
    const int64_t epoch = step / b->steps_per_epoch;
    if (b->epoch != epoch) order_epoch(b, epoch);
    find_step(b, step);
    b->step_trained = b->step_tokens = 0;
    struct dealt *const dealt = mem_new((size_t)b->step_rows, sizeof *dealt);
    for (int64_t i = 0; i < b->step_rows; i++) {
        const struct sample sample = dataset_sample(b->dataset, b->order[b->step_first + i]);
        const int64_t trained = count_trained(&sample);
        dealt[i] = (struct dealt){i, sample.count, sample.count + trained};
        b->step_trained += trained;
        b->step_tokens += sample.count;
    }
    qsort(dealt, (size_t)b->step_rows, sizeof *dealt, dealt_compare);
    deal_all(b, dealt);
    mem_free(dealt);
}

void batcher_take_rank(struct batcher *b, int64_t rank) {
    ASSERT(rank >= 0 && rank < b->options.world);
    b->options.rank = rank;
    b->micro_count = 0; /* nothing is handed out of what was another rank's */
}

int64_t batch_budget(const struct batch_options *o) {
    const int64_t rows = o->micro_rows * o->max_length;
    const bool fewer = o->packing && o->strategy == BATCH_OF_SAMPLES && o->micro_tokens > 0;
    return fewer ? min_i64(o->micro_tokens, rows) : rows;
}

void batcher_cut(struct batcher *b, int64_t micro_rows, int64_t micro_tokens) {
    ASSERT(micro_rows >= 1 && micro_rows <= INT32_MAX / b->options.max_length);
    ASSERT(micro_tokens >= 0);
    b->options.micro_rows = micro_rows;
    b->options.micro_tokens = micro_tokens;
    b->micro_count = 0; /* nothing is handed out of what was cut before */
}

int64_t batcher_segments_max(const struct batcher *b) {
    const struct batch_options *const o = &b->options;
    if (!o->packing) return min_i64(o->micro_rows, b->dataset->counts.samples);
    const int64_t each = (o->global_rows + o->world - 1) / o->world; /* batch_deal_ranks */
    if (o->strategy == BATCH_OF_SAMPLES) return min_i64(each, b->dataset->counts.samples);
    int64_t most = 0;
    for (int64_t row = 0; row < b->rows.count; row++) {
        const int64_t members = b->rows.first[row + 1] - b->rows.first[row];
        if (members > most) most = members;
    }
    return min_i64(most * o->micro_rows, b->dataset->counts.samples);
}

static void batch_reserve(struct batch *batch, int64_t tokens, int64_t segments) {
    if (tokens > batch->capacity_tokens) {
        const size_t count = (size_t)tokens;
        batch->ids = mem_resize(batch->ids, count, sizeof *batch->ids);
        batch->labels = mem_resize(batch->labels, count, sizeof *batch->labels);
        batch->positions = mem_resize(batch->positions, count, sizeof *batch->positions);
        batch->row_keys = mem_resize(batch->row_keys, count, sizeof *batch->row_keys);
        batch->capacity_tokens = tokens;
    }
    if (segments > batch->capacity_segments) {
        batch->cu_seqlens =
            mem_resize(batch->cu_seqlens, (size_t)segments + 1, sizeof *batch->cu_seqlens);
        batch->capacity_segments = segments;
    }
}

/* Appends one document of `length` tokens, of which the first sample->count are real. */
static void batch_append(struct batch *batch, const struct sample *sample, int64_t key,
                         int64_t length, int32_t pad_id) {
    const int64_t at = batch->tokens;
    ASSERT(sample->count <= length && at + length <= batch->capacity_tokens);
    ASSERT(batch->segments < batch->capacity_segments);
    for (int64_t i = 0; i < length; i++) {
        const bool predicts = i + 1 < sample->count && sample->trained[i + 1];
        batch->ids[at + i] = i < sample->count ? sample->ids[i] : pad_id;
        batch->labels[at + i] = predicts ? sample->ids[i + 1] : -100;
        batch->positions[at + i] = (int32_t)i;
        batch->row_keys[at + i] = (int64_t)((uint64_t)key << POSITION_BITS | (uint64_t)i);
        batch->trained += predicts;
    }
    batch->tokens += length;
    batch->real_tokens += sample->count;
    batch->cu_seqlens[++batch->segments] = (int32_t)batch->tokens;
    if (length > batch->max_seqlen) batch->max_seqlen = length;
}

static void batch_clear(struct batch *batch) {
    batch->tokens = batch->trained = batch->segments = batch->max_seqlen = batch->real_tokens = 0;
}

void batcher_micro(struct batcher *b, int64_t micro, struct batch *out) {
    ASSERT(micro >= 0 && micro < b->micro_count);
    int64_t rows = 0, longest = 0, tokens = 0;
    for (int64_t i = 0; i < b->step_rows; i++) {
        if (b->bins[i] != micro) continue;
        const struct sample sample = dataset_sample(b->dataset, b->order[b->step_first + i]);
        rows++;
        tokens += sample.count;
        if (sample.count > longest) longest = sample.count;
    }
    if (!b->options.packing) tokens = rows * longest;
    batch_reserve(out, tokens, rows);
    batch_clear(out);
    out->cu_seqlens[0] = 0;
    for (int64_t i = 0; i < b->step_rows; i++) {
        if (b->bins[i] != micro) continue;
        const int64_t key = b->order[b->step_first + i];
        const struct sample sample = dataset_sample(b->dataset, key);
        batch_append(out, &sample, key, b->options.packing ? sample.count : longest,
                     b->options.pad_id);
    }
    ASSERT(out->tokens == tokens);
}

void batch_release(struct batch *batch) {
    if (!batch) return;
    mem_free(batch->ids);
    mem_free(batch->labels);
    mem_free(batch->positions);
    mem_free(batch->cu_seqlens);
    mem_free(batch->row_keys);
    *batch = (struct batch){0};
}
