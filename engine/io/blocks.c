/* blocks.c - names of blocks, and finding the parts of one division in another.
 *
 * Nothing here knows models or ranks. What a name claims is believed only where the stored shape
 * agrees; that no element is there twice is checked when files are opened, so that a count of what
 * was found is also the proof that nothing is missing. */
#include "engine/io/blocks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/io/st_internal.h"

static const char FILE_SUFFIX[] = ".safetensors";

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

int block_cut(int64_t first, int64_t count, int64_t cols, struct block_place out[BLOCK_CUTS_MAX]) {
    int cuts = 0;
    ASSERT(first >= 0 && count >= 0 && cols > 0);
    while (count > 0) {
        const int64_t row = first / cols, col = first % cols;
        const bool rows = col == 0 && count >= cols;
        const struct block_place cut = {row, col, rows ? count / cols : 1,
                                        rows ? cols : least(count, cols - col)};
        ASSERT(cuts < BLOCK_CUTS_MAX);
        out[cuts++] = cut;
        first += cut.rows * cut.cols;
        count -= cut.rows * cut.cols;
    }
    return cuts;
}

void block_declare(struct st_writer *w, const struct block *b) {
    const struct block_place *const p = &b->at;
    const int64_t shape[] = {p->rows, p->cols};
    ASSERT(p->row >= 0 && p->rows > 0 && p->row + p->rows <= b->whole_rows);
    ASSERT(p->col >= 0 && p->cols > 0 && p->col + p->cols <= b->whole_cols);
    ASSERT(b->rank == 2 || (b->rank == 1 && b->whole_cols == 1));
    char name[SAFETENSORS_NAME_MAX];
    int length = 0;
    if (p->rows == b->whole_rows && p->cols == b->whole_cols) {
        length = snprintf(name, sizeof name, "%s", b->tensor);
    } else if (b->rank == 1) {
        length = snprintf(name, sizeof name, "%s[%lld:%lld]", b->tensor, (long long)p->row,
                          (long long)(p->row + p->rows));
    } else {
        length = snprintf(name, sizeof name, "%s[%lld:%lld,%lld:%lld]", b->tensor,
                          (long long)p->row, (long long)(p->row + p->rows), (long long)p->col,
                          (long long)(p->col + p->cols));
    }
    ASSERT(length > 0 && (size_t)length < sizeof name);
    st_writer_declare(w, name, ST_F32, shape, b->rank);
}

/* Digits without a leading zero; moves *at behind them. */
static bool read_number(const char **at, int64_t *n) {
    const char *s = *at;
    *n = 0;
    if (*s == '0' && s[1] >= '0' && s[1] <= '9') return false;
    for (; *s >= '0' && *s <= '9'; s++) {
        if (__builtin_mul_overflow(*n, 10, n) || __builtin_add_overflow(*n, *s - '0', n))
            return false;
    }
    const bool any = s > *at;
    *at = s;
    return any;
}

/* "3:7" and then `end`. */
static bool read_range(const char **at, char end, int64_t *first, int64_t *count) {
    int64_t last = 0;
    if (!read_number(at, first) || *(*at)++ != ':' || !read_number(at, &last)) return false;
    *count = last - *first;
    return *count > 0 && *(*at)++ == end;
}

/* What a name says; false: its brackets are no place. */
static bool read_name(const struct st_tensor *t, struct stored_block *b) {
    const char *const open = strchr(t->name, '[');
    b->placed = open != NULL;
    b->at = (struct block_place){.rows = t->rank ? t->shape[0] : 1,
                                 .cols = t->rank > 1 ? t->shape[1] : 1};
    b->tensor = open ? mem_strndup(t->name, (size_t)(open - t->name)) : mem_strdup(t->name);
    if (!open) return true;
    const char *at = open + 1;
    const bool rows = read_range(&at, t->rank == 2 ? ',' : ']', &b->at.row, &b->at.rows);
    if (!rows) return false;
    return (t->rank == 1 || read_range(&at, ']', &b->at.col, &b->at.cols)) && *at == 0;
}

static enum status add_block(struct block_set *set, const struct st_tensor *t, struct err *e) {
    FAIL_IF(t->dtype != ST_F32 || t->rank < 1 || t->rank > 2, STATUS_INVALID,
            "%s: \"%s\" is not a vector or matrix of F32", t->file, t->name);
    struct stored_block *const b = &set->blocks[set->count++];
    const bool named = read_name(t, b);
    b->stored = t;
    FAIL_IF(!named, STATUS_INVALID,
            "%s: \"%s\" does not end in a place such as [0:64,0:128] of as many dimensions as it "
            "has",
            t->file, t->name);
    const bool fits = b->at.rows == t->shape[0] && (t->rank == 1 || b->at.cols == t->shape[1]);
    FAIL_IF(!fits, STATUS_INVALID, "%s: \"%s\" has the shape [%lld, %lld], not that of its place",
            t->file, t->name, (long long)t->shape[0], (long long)(t->rank > 1 ? t->shape[1] : 1));
    return STATUS_OK;
}

static int compare(const void *a, const void *b) {
    const struct stored_block *const x = a, *const y = b;
    const int names = strcmp(x->tensor, y->tensor);
    if (names) return names;
    if (x->at.row != y->at.row) return x->at.row < y->at.row ? -1 : 1;
    return x->at.col < y->at.col ? -1 : x->at.col > y->at.col ? 1 : 0;
}

/* What two places have in common; nothing: rows or cols are not positive. */
static struct block_place common(const struct block_place *a, const struct block_place *b) {
    struct block_place c = {.row = most(a->row, b->row), .col = most(a->col, b->col)};
    c.rows = least(a->row + a->rows, b->row + b->rows) - c.row;
    c.cols = least(a->col + a->cols, b->col + b->cols) - c.col;
    return c;
}

/* Blocks are sorted: those that can reach into a block's rows follow it. */
static enum status check_apart(struct block_set *set, struct err *e) {
    for (int64_t i = 0; i < set->count; i++) {
        const struct stored_block *const a = &set->blocks[i];
        if (i == 0 || strcmp(set->blocks[i - 1].tensor, a->tensor) != 0) set->tensors++;
        for (int64_t k = i + 1; k < set->count; k++) {
            const struct stored_block *const b = &set->blocks[k];
            if (strcmp(a->tensor, b->tensor) != 0) break;
            FAIL_IF(!a->placed || !b->placed || a->stored->rank != b->stored->rank, STATUS_INVALID,
                    "%s: \"%s\" is all of a tensor of which %s has \"%s\"", a->stored->file,
                    a->stored->name, b->stored->file, b->stored->name);
            if (b->at.row >= a->at.row + a->at.rows) break;
            const struct block_place c = common(&a->at, &b->at);
            FAIL_IF(c.cols > 0, STATUS_INVALID, "\"%s\" in %s and \"%s\" in %s overlap",
                    a->stored->name, a->stored->file, b->stored->name, b->stored->file);
        }
    }
    return STATUS_OK;
}

static enum status open_files(struct st_set *files, const char *folder, const char *prefix,
                              struct err *e) {
    char **names = NULL;
    size_t count = 0;
    TRY(file_list(folder, &names, &count, e));
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < count; i++) {
        if (!str_starts_with(names[i], prefix) || !str_ends_with(names[i], FILE_SUFFIX)) continue;
        char *const path = file_join(folder, names[i]);
        status = st_add_file(files, path, e);
        mem_free(path);
    }
    file_names_free(names, count);
    TRY(status);
    FAIL_IF(files->map_count == 0, STATUS_NOT_FOUND, "%s has no file %s*%s", folder, prefix,
            FILE_SUFFIX);
    return st_finish(files, e);
}

static enum status list_blocks(struct block_set *set, struct err *e) {
    set->blocks = mem_new((size_t)set->files.count, sizeof *set->blocks);
    for (int64_t i = 0; i < set->files.count; i++) {
        TRY(add_block(set, &set->files.tensors[i], e));
    }
    if (set->count) qsort(set->blocks, (size_t)set->count, sizeof *set->blocks, compare);
    return check_apart(set, e);
}

enum status blocks_open(struct block_set *set, const char *folder, const char *prefix,
                        struct err *e) {
    *set = (struct block_set){0};
    TRY(open_files(&set->files, folder, prefix, e));
    return list_blocks(set, e);
}

enum status blocks_open_file(struct block_set *set, const char *path, struct err *e) {
    *set = (struct block_set){0};
    TRY(st_open_file(&set->files, path, e));
    return list_blocks(set, e);
}

void blocks_close(struct block_set *set) {
    if (!set) return;
    for (int64_t i = 0; i < set->count; i++) {
        mem_free(set->blocks[i].tensor);
    }
    mem_free(set->blocks);
    st_close(&set->files);
    *set = (struct block_set){0};
}

/* The first block of the tensor; set->count: there is none. */
static int64_t find(const struct block_set *set, const char *tensor) {
    int64_t low = 0, high = set->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (strcmp(set->blocks[middle].tensor, tensor) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static enum status check_inside(const struct stored_block *b, const struct block *wanted,
                                struct err *e) {
    const struct block_place *const p = &b->at;
    const bool inside =
        p->rows <= wanted->whole_rows - p->row && p->cols <= wanted->whole_cols - p->col &&
        (b->placed || (p->rows == wanted->whole_rows && p->cols == wanted->whole_cols)) &&
        b->stored->rank == wanted->rank;
    FAIL_IF(!inside, STATUS_INVALID,
            "%s: \"%s\" does not belong to this model, where that tensor is [%lld, %lld]",
            b->stored->file, b->stored->name, (long long)wanted->whole_rows,
            (long long)wanted->whole_cols);
    return STATUS_OK;
}

/* The common part `c` of a stored and a wanted block, in runs as long as they go. */
static enum status visit_common(const struct stored_block *b, const struct block_place *wanted,
                                const struct block_place *c, block_visit *visit, void *context,
                                struct err *e) {
    const bool together = c->rows == 1 || (c->cols == b->at.cols && c->cols == wanted->cols);
    const int64_t runs = together ? 1 : c->rows, count = c->rows * c->cols / runs;
    for (int64_t i = 0; i < runs; i++) {
        const int64_t row = c->row + i;
        const struct block_run run = {
            .stored = b->stored,
            .first = (row - b->at.row) * b->at.cols + (c->col - b->at.col),
            .count = count,
            .at = (row - wanted->row) * wanted->cols + (c->col - wanted->col)};
        TRY(visit(context, &run, e));
    }
    return STATUS_OK;
}

/* Names the first row that is not all there. */
static enum status say_missing(const struct block_set *set, const struct block *wanted,
                               struct err *e) {
    const struct block_place *const w = &wanted->at;
    int64_t row = w->row, there = w->cols;
    for (; there == w->cols && row < w->row + w->rows; row++) {
        const struct block_place line = {row, w->col, 1, w->cols};
        there = 0;
        for (int64_t i = find(set, wanted->tensor);
             i < set->count && strcmp(set->blocks[i].tensor, wanted->tensor) == 0; i++) {
            const struct block_place c = common(&set->blocks[i].at, &line);
            if (c.rows > 0 && c.cols > 0) there += c.cols;
        }
    }
    return err_set(e, STATUS_INVALID,
                   "the files have no complete row %lld of %s: of its elements %lld to %lld only "
                   "%lld are there",
                   (long long)row - 1, wanted->tensor, (long long)w->col,
                   (long long)(w->col + w->cols), (long long)there);
}

enum status blocks_each_run(const struct block_set *set, const struct block *wanted,
                            block_visit *visit, void *context, struct err *e) {
    int64_t found = 0;
    for (int64_t i = find(set, wanted->tensor);
         i < set->count && strcmp(set->blocks[i].tensor, wanted->tensor) == 0; i++) {
        const struct stored_block *const b = &set->blocks[i];
        if (b->at.row >= wanted->at.row + wanted->at.rows) break;
        TRY(check_inside(b, wanted, e));
        const struct block_place c = common(&b->at, &wanted->at);
        if (c.rows <= 0 || c.cols <= 0) continue;
        TRY(visit_common(b, &wanted->at, &c, visit, context, e));
        found += c.rows * c.cols;
    }
    return found == wanted->at.rows * wanted->at.cols ? STATUS_OK : say_missing(set, wanted, e);
}

static enum status read_run(void *context, const struct block_run *run, struct err *e) {
    return st_read_f32(run->stored, run->first, run->count, (float *)context + run->at, e);
}

enum status blocks_read(const struct block_set *set, const struct block *wanted, float *out,
                        struct err *e) {
    return blocks_each_run(set, wanted, read_run, out, e);
}
