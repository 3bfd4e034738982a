/* gemm_onednn.c - products by oneDNN: fp32 by dnnl_sgemm, bf16 by matmul primitives. The only file
 * that includes dnnl.h.
 *
 * Why two ways: dnnl_sgemm is one call that versions 2 and 3 share, takes alpha, beta and any
 * leading dimension, and keeps nothing; bf16 exists as a primitive only. GFLOP/s on an AMD EPYC
 * (Zen 4, 2 threads, 2026-11-29, best of 60, M 256 and 512, N and K of 16 to 49152): dnnl_sgemm 145
 * to 233, fp32 primitive 131 to 232 (better for x W^T, worse for the head's gradient), OpenBLAS 53
 * to 210, bf16 primitive 210 to 451. A primitive is compiled for one shape, in half a
 * millisecond, so the latest are kept. Both ways are one parallel region and pack in memory of the
 * library. */
#include "kernels/cpu/cpu.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#if PLIMSOLL_ONEDNN
#include <dnnl.h>

/* More than the products of a step with two sequence lengths; the least recently used goes. */
enum { PRIMITIVES_MAX = 128 };

/* Everything that a primitive is compiled for. */
struct shape {
    int64_t m, n, k, ld_a, ld_b, ld_c;
    float alpha, beta;
    bool trans_a, trans_b;
};

/* One compiled product; the memories are views whose addresses are set before each use. */
struct entry {
    struct shape shape;
    int64_t last_used; /* 0: the entry is free */
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c;
};

struct onednn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int64_t clock; /* counts uses */
    struct entry entries[PRIMITIVES_MAX];
};

/* What making an entry needs and what is thrown away when it is made. */
struct recipe {
    dnnl_memory_desc_t a, b, c;
    dnnl_post_ops_t post_ops;
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t primitive;
};

/* The library's calls in a row: the first failure stops them. */
#define CALL(call)                                                                                 \
    do {                                                                                           \
        const dnnl_status_t status_ = (call);                                                      \
        if (status_ != dnnl_success) return status_;                                               \
    } while (0)

/* A rows x cols operand; transposed, it is stored cols x rows. */
struct view {
    dnnl_dims_t sides, strides;
};

static struct view view_of(int64_t rows, int64_t cols, int64_t ld, bool transposed) {
    return (struct view){.sides = {rows, cols},
                         .strides = {transposed ? 1 : ld, transposed ? ld : 1}};
}

#if DNNL_VERSION_MAJOR >= 3
static dnnl_status_t describe(dnnl_memory_desc_t *out, dnnl_data_type_t type, struct view v) {
    return dnnl_memory_desc_create_with_strides(out, 2, v.sides, type, v.strides);
}

static dnnl_status_t append_sum(dnnl_post_ops_t to, float beta) {
    return dnnl_post_ops_append_sum(to, beta, 0, dnnl_data_type_undef);
}

static dnnl_status_t append_scale(dnnl_post_ops_t to, float alpha) {
    return dnnl_post_ops_append_eltwise(to, dnnl_eltwise_linear, alpha, 0);
}

static dnnl_status_t describe_product(struct recipe *r, dnnl_engine_t engine) {
    return dnnl_matmul_primitive_desc_create(&r->primitive, engine, r->a, r->b, NULL, r->c,
                                             r->attr);
}

static dnnl_status_t make_memory(dnnl_memory_t *out, const dnnl_memory_desc_t *desc,
                                 dnnl_engine_t engine) {
    return dnnl_memory_create(out, *desc, engine, DNNL_MEMORY_NONE);
}

static void drop_descriptions(struct recipe *r) {
    dnnl_memory_desc_destroy(r->a);
    dnnl_memory_desc_destroy(r->b);
    dnnl_memory_desc_destroy(r->c);
}
#else
static dnnl_status_t describe(dnnl_memory_desc_t *out, dnnl_data_type_t type, struct view v) {
    return dnnl_memory_desc_init_by_strides(out, 2, v.sides, type, v.strides);
}

static dnnl_status_t append_sum(dnnl_post_ops_t to, float beta) {
    return dnnl_post_ops_append_sum(to, beta);
}

static dnnl_status_t append_scale(dnnl_post_ops_t to, float alpha) {
    return dnnl_post_ops_append_eltwise(to, 1, dnnl_eltwise_linear, alpha, 0);
}

static dnnl_status_t describe_product(struct recipe *r, dnnl_engine_t engine) {
    dnnl_matmul_desc_t product;
    CALL(dnnl_matmul_desc_init(&product, &r->a, &r->b, NULL, &r->c));
    return dnnl_primitive_desc_create(&r->primitive, &product, r->attr, engine, NULL);
}

static dnnl_status_t make_memory(dnnl_memory_t *out, const dnnl_memory_desc_t *desc,
                                 dnnl_engine_t engine) {
    return dnnl_memory_create(out, desc, engine, DNNL_MEMORY_NONE);
}

static void drop_descriptions(struct recipe *r) {
    (void)r; /* plain values in this version */
}
#endif

static void drop_recipe(struct recipe *r) {
    if (r->primitive) dnnl_primitive_desc_destroy(r->primitive);
    if (r->attr) dnnl_primitive_attr_destroy(r->attr);
    if (r->post_ops) dnnl_post_ops_destroy(r->post_ops);
    drop_descriptions(r);
}

static void drop_entry(struct entry *entry) {
    if (entry->primitive) dnnl_primitive_destroy(entry->primitive);
    if (entry->a) dnnl_memory_destroy(entry->a);
    if (entry->b) dnnl_memory_destroy(entry->b);
    if (entry->c) dnnl_memory_destroy(entry->c);
    *entry = (struct entry){0};
}

/* alpha * (A B + beta/alpha * C): with the sum last, version 2 has no fast
 * kernel for rows that are not dense (50 times slower). alpha 0 is right, and slow. */
static dnnl_status_t make_attributes(const struct shape *s, struct recipe *r) {
    CALL(dnnl_post_ops_create(&r->post_ops));
    const bool sum_first = s->alpha != 0;
    if (s->beta != 0 && sum_first) CALL(append_sum(r->post_ops, s->beta / s->alpha));
    if (s->alpha != 1) CALL(append_scale(r->post_ops, s->alpha));
    if (s->beta != 0 && !sum_first) CALL(append_sum(r->post_ops, s->beta));
    CALL(dnnl_primitive_attr_create(&r->attr));
    return dnnl_primitive_attr_set_post_ops(r->attr, r->post_ops);
}

static dnnl_status_t make_entry(struct entry *entry, struct recipe *r, dnnl_engine_t engine) {
    const struct shape *s = &entry->shape;
    CALL(describe(&r->a, dnnl_bf16, view_of(s->m, s->k, s->ld_a, s->trans_a)));
    CALL(describe(&r->b, dnnl_bf16, view_of(s->k, s->n, s->ld_b, s->trans_b)));
    CALL(describe(&r->c, dnnl_f32, view_of(s->m, s->n, s->ld_c, false)));
    CALL(make_attributes(s, r));
    CALL(describe_product(r, engine));
    CALL(dnnl_primitive_create(&entry->primitive, r->primitive));
    CALL(make_memory(&entry->a, &r->a, engine));
    CALL(make_memory(&entry->b, &r->b, engine));
    return make_memory(&entry->c, &r->c, engine);
}

static bool same_shape(const struct shape *x, const struct shape *y) {
    return x->m == y->m && x->n == y->n && x->k == y->k && x->ld_a == y->ld_a &&
           x->ld_b == y->ld_b && x->ld_c == y->ld_c && x->alpha == y->alpha && x->beta == y->beta &&
           x->trans_a == y->trans_a && x->trans_b == y->trans_b;
}

/* The entry for this shape, made now when it is not there; NULL with *failure set when the library
 * refuses it. */
static struct entry *find_entry(struct onednn *dnnl, const struct shape *shape,
                                dnnl_status_t *failure) {
    struct entry *oldest = dnnl->entries;
    for (int i = 0; i < PRIMITIVES_MAX; i++) {
        struct entry *entry = dnnl->entries + i;
        if (entry->last_used && same_shape(&entry->shape, shape)) {
            entry->last_used = ++dnnl->clock;
            return entry;
        }
        if (entry->last_used < oldest->last_used) oldest = entry;
    }
    struct recipe recipe = {0};
    drop_entry(oldest);
    oldest->shape = *shape;
    *failure = make_entry(oldest, &recipe, dnnl->engine);
    drop_recipe(&recipe);
    if (*failure != dnnl_success) {
        drop_entry(oldest);
        return NULL;
    }
    oldest->last_used = ++dnnl->clock;
    return oldest;
}

static dnnl_status_t execute(struct onednn *dnnl, const struct entry *entry,
                             const struct gemm_args *a) {
    CALL(dnnl_memory_set_data_handle(entry->a, a->a.data));
    CALL(dnnl_memory_set_data_handle(entry->b, a->b.data));
    CALL(dnnl_memory_set_data_handle(entry->c, a->c.data));
    const dnnl_exec_arg_t operands[] = {
        {DNNL_ARG_SRC, entry->a}, {DNNL_ARG_WEIGHTS, entry->b}, {DNNL_ARG_DST, entry->c}};
    CALL(dnnl_primitive_execute(entry->primitive, dnnl->stream, 3, operands));
    return dnnl_stream_wait(dnnl->stream);
}

static dnnl_status_t multiply_bf16(struct onednn *dnnl, const struct gemm_args *a) {
    const struct shape shape = {.m = a->m,
                                .n = a->n,
                                .k = a->k,
                                .ld_a = a->a.ld,
                                .ld_b = a->b.ld,
                                .ld_c = a->c.ld,
                                .alpha = a->alpha,
                                .beta = a->beta,
                                .trans_a = a->trans_a,
                                .trans_b = a->trans_b};
    dnnl_status_t failure = dnnl_success;
    struct entry *entry = find_entry(dnnl, &shape, &failure);
    return entry ? execute(dnnl, entry, a) : failure;
}

static enum status onednn_product(void *state, const struct gemm_args *a, struct err *e) {
    const dnnl_status_t status =
        a->a.dtype == DTYPE_BF16
            ? multiply_bf16(state, a)
            : dnnl_sgemm(a->trans_a ? 'T' : 'N', a->trans_b ? 'T' : 'N', a->m, a->n, a->k, a->alpha,
                         a->a.data, a->a.ld, a->b.data, a->b.ld, a->beta, a->c.data, a->c.ld);
    FAIL_IF(status != dnnl_success, STATUS_DEVICE,
            "oneDNN refused a %s product of %lld x %lld x %lld (status %d)", dtype_name(a->a.dtype),
            (long long)a->m, (long long)a->n, (long long)a->k, (int)status);
    return STATUS_OK;
}

static void onednn_close(void *state) {
    struct onednn *dnnl = state;
    for (int i = 0; i < PRIMITIVES_MAX; i++) {
        drop_entry(dnnl->entries + i);
    }
    if (dnnl->stream) dnnl_stream_destroy(dnnl->stream);
    if (dnnl->engine) dnnl_engine_destroy(dnnl->engine);
    mem_free(dnnl);
}

enum status cpu_blas_open_onednn(struct cpu_blas *blas, const struct cpu_host *host,
                                 struct err *e) {
    const dnnl_version_t *version = dnnl_version();
    struct onednn *dnnl = mem_new(1, sizeof *dnnl);
    *blas = (struct cpu_blas){.name = "onednn",
                              .close = onednn_close,
                              .product = onednn_product,
                              .bf16 = host->avx512,
                              .state = dnnl};
    snprintf(blas->detail, sizeof blas->detail, "oneDNN %d.%d.%d", version->major, version->minor,
             version->patch);
    if (dnnl_engine_create(&dnnl->engine, dnnl_cpu, 0) == dnnl_success &&
        dnnl_stream_create(&dnnl->stream, dnnl->engine, dnnl_stream_default_flags) == dnnl_success)
        return STATUS_OK;
    onednn_close(dnnl);
    *blas = (struct cpu_blas){0};
    return err_set(e, STATUS_UNSUPPORTED, "oneDNN %d.%d.%d cannot use this processor",
                   version->major, version->minor, version->patch);
}
#else
enum status cpu_blas_open_onednn(struct cpu_blas *blas, const struct cpu_host *host,
                                 struct err *e) {
    (void)blas, (void)host;
    return err_set(e, STATUS_UNSUPPORTED,
                   "This build has no oneDNN (install libdnnl-dev and build again)");
}
#endif
