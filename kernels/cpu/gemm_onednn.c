/* gemm_onednn.c - fp32 products by oneDNN. The only file that includes dnnl.h.
 *
 * dnnl_sgemm is used, which versions 2 and 3 share: alpha, beta and any leading dimension are its
 * arguments, so there is nothing to cache. The library packs operands in memory of its own. */
#include "kernels/cpu/cpu.h"

#include <stdio.h>

#if PLIMSOLL_ONEDNN
#include <dnnl.h>

static void add_bias(const struct gemm_args *a) {
    for (int64_t i = 0; i < a->m; i++) {
        float *row = (float *)a->c.data + i * a->c.ld;
        for (int64_t j = 0; j < a->n; j++) {
            row[j] += a->bias[j];
        }
    }
}

static enum status onednn_product(void *state, const struct gemm_args *a, struct err *e) {
    (void)state;
    const dnnl_status_t status =
        dnnl_sgemm(a->trans_a ? 'T' : 'N', a->trans_b ? 'T' : 'N', a->m, a->n, a->k, a->alpha,
                   a->a.data, a->a.ld, a->b.data, a->b.ld, a->beta, a->c.data, a->c.ld);
    FAIL_IF(status != dnnl_success, STATUS_DEVICE,
            "oneDNN refused a product of %lld x %lld x %lld (status %d)", (long long)a->m,
            (long long)a->n, (long long)a->k, (int)status);
    if (a->bias) add_bias(a);
    return STATUS_OK;
}

enum status cpu_blas_open_onednn(struct cpu_blas *blas, const struct cpu_host *host,
                                 struct err *e) {
    (void)host, (void)e;
    const dnnl_version_t *version = dnnl_version();
    *blas = (struct cpu_blas){.name = "onednn", .product = onednn_product};
    snprintf(blas->detail, sizeof blas->detail, "oneDNN %d.%d.%d", version->major, version->minor,
             version->patch);
    return STATUS_OK;
}
#else
enum status cpu_blas_open_onednn(struct cpu_blas *blas, const struct cpu_host *host,
                                 struct err *e) {
    (void)blas, (void)host;
    return err_set(e, STATUS_UNSUPPORTED,
                   "This build has no oneDNN (install libdnnl-dev and build again)");
}
#endif
