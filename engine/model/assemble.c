/* assemble.c - see assemble.h.
 *
 * Stored blocks are f32, so a narrower result is rounded once, as if the tensor had come from the
 * device: the same bytes, however many ranks had written. */
#include "engine/model/assemble.h"

#include "base/mem.h"

enum { ELEMENTS_AT_ONCE = 1 << 20 };

/* Rows row..row + rows of a tensor. */
struct lines {
    const struct param *tensor;
    int64_t row, rows;
    float *values;   /* [rows, whole_cols] */
    void *converted; /* the same in the dtype of the file */
};

static enum status write_lines(const struct lines *l, const struct block_set *blocks,
                               enum st_dtype dtype, struct st_writer *w, struct err *e) {
    const struct param *const t = l->tensor;
    const int64_t count = l->rows * t->whole_cols;
    const struct block wanted = {.tensor = t->name,
                                 .rank = t->rank,
                                 .whole_rows = t->whole_rows,
                                 .whole_cols = t->whole_cols,
                                 .at = {l->row, 0, l->rows, t->whole_cols}};
    TRY(blocks_read(blocks, &wanted, l->values, e));
    if (dtype == ST_F32) return st_writer_data(w, l->values, count * st_dtype_bytes(ST_F32), e);
    const struct st_tensor values = {.name = t->name,
                                     .dtype = ST_F32,
                                     .elements = count,
                                     .bytes = count * st_dtype_bytes(ST_F32),
                                     .data = (const unsigned char *)l->values};
    TRY(st_read_bf16(&values, 0, count, l->converted, e));
    return st_writer_data(w, l->converted, count * st_dtype_bytes(ST_BF16), e);
}

static enum status write_tensor(const struct param *t, const struct block_set *blocks,
                                enum st_dtype dtype, struct st_writer *w, struct err *e) {
    const int64_t most = t->whole_cols < ELEMENTS_AT_ONCE ? ELEMENTS_AT_ONCE / t->whole_cols : 1;
    const int64_t rows = most < t->whole_rows ? most : t->whole_rows;
    struct lines l = {.tensor = t};
    l.values = mem_new((size_t)(rows * t->whole_cols), sizeof *l.values);
    l.converted = mem_new((size_t)(rows * t->whole_cols), (size_t)st_dtype_bytes(dtype));
    enum status status = STATUS_OK;
    for (; status == STATUS_OK && l.row < t->whole_rows; l.row += rows) {
        l.rows = t->whole_rows - l.row < rows ? t->whole_rows - l.row : rows;
        status = write_lines(&l, blocks, dtype, w, e);
    }
    mem_free(l.values);
    mem_free(l.converted);
    return status;
}

enum status weights_assemble(const struct param *tensors, size_t count,
                             const struct block_set *blocks, enum st_dtype dtype, const char *path,
                             struct err *e) {
    ASSERT(dtype == ST_F32 || dtype == ST_BF16);
    struct st_writer w = {0};
    for (size_t i = 0; i < count; i++) {
        const int64_t shape[] = {tensors[i].whole_rows, tensors[i].whole_cols};
        st_writer_declare(&w, tensors[i].name, dtype, shape, tensors[i].rank);
    }
    enum status status = st_writer_begin(&w, path, e);
    for (size_t i = 0; status == STATUS_OK && i < count; i++) {
        status = write_tensor(&tensors[i], blocks, dtype, &w, e);
    }
    if (status == STATUS_OK) return st_writer_commit(&w, e);
    st_writer_abort(&w);
    return status;
}
