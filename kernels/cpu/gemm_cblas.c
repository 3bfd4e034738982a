/* gemm_cblas.c - products by OpenBLAS, loaded at run time: the second choice, where oneDNN is not
 * there.
 *
 * Loaded with dlopen because the kernels must be chosen before the library starts: Debian's
 * OpenBLAS does not know processors newer than itself and then runs kernels 5 to 7 times slower.
 * OPENBLAS_CORETYPE, when the user has not set it, is set from what the processor can do. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "kernels/cpu/cpu.h"

enum { CBLAS_ROW_MAJOR = 101, CBLAS_NO_TRANS = 111, CBLAS_TRANS = 112 };
static const char LIBRARY[] = "libopenblas.so.0";

typedef void sgemm_function(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                            const float *a, int ld_a, const float *b, int ld_b, float beta,
                            float *c, int ld_c);

struct openblas {
    void *library;
    sgemm_function *sgemm;
};

static void openblas_close(void *state) {
    /* The library stays loaded: its threads do not survive an unload. */
    mem_free(state);
}

static bool fits_int(int64_t value) {
    return value <= INT32_MAX;
}

static enum status openblas_product(void *state, const struct gemm_args *a, struct err *e) {
    const struct openblas *blas = state;
    FAIL_IF(!fits_int(a->m) || !fits_int(a->n) || !fits_int(a->k) || !fits_int(a->a.ld) ||
                !fits_int(a->b.ld) || !fits_int(a->c.ld),
            STATUS_UNSUPPORTED, "OpenBLAS cannot multiply matrices with a side above 2^31-1");
    blas->sgemm(CBLAS_ROW_MAJOR, a->trans_a ? CBLAS_TRANS : CBLAS_NO_TRANS,
                a->trans_b ? CBLAS_TRANS : CBLAS_NO_TRANS, (int)a->m, (int)a->n, (int)a->k,
                a->alpha, a->a.data, (int)a->a.ld, a->b.data, (int)a->b.ld, a->beta, a->c.data,
                (int)a->c.ld);
    return STATUS_OK;
}

/* dlsym gives an object pointer; POSIX promises that it holds a function, ISO C has no cast for it.
 */
static void *symbol(void *library, const char *name) {
    return dlsym(library, name);
}

enum status cpu_blas_open_openblas(struct cpu_blas *blas, const struct cpu_host *host,
                                   struct err *e) {
    if (host->avx2) setenv("OPENBLAS_CORETYPE", host->avx512 ? "SKYLAKEX" : "HASWELL", 0);
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    FAIL_IF(!library, STATUS_UNSUPPORTED, "%s cannot be loaded (install libopenblas0)", LIBRARY);
    union {
        void *object;
        sgemm_function *sgemm;
        char *(*corename)(void);
        void (*set_threads)(int);
    } sgemm, corename, set_threads;
    sgemm.object = symbol(library, "cblas_sgemm");
    corename.object = symbol(library, "openblas_get_corename");
    set_threads.object = symbol(library, "openblas_set_num_threads");
    if (!sgemm.object) {
        dlclose(library);
        return err_set(e, STATUS_UNSUPPORTED, "%s has no cblas_sgemm", LIBRARY);
    }
    if (set_threads.object) set_threads.set_threads(host->threads);
    struct openblas *state = mem_new(1, sizeof *state);
    *state = (struct openblas){.library = library, .sgemm = sgemm.sgemm};
    *blas = (struct cpu_blas){
        .name = "openblas", .close = openblas_close, .product = openblas_product, .state = state};
    snprintf(blas->detail, sizeof blas->detail, "OpenBLAS %s",
             corename.object ? corename.corename() : "");
    return STATUS_OK;
}
