/* cpu.c - opening the CPU device: reads the host, picks the operations table and the library for
 * products.
 *
 * PLIMSOLL_CPU_GEMM=onednn|openblas chooses the library and is read here only; without it oneDNN is
 * taken when the build has it. bf16 products are granted only where they are much faster than fp32:
 * asking elsewhere is refused rather than granted and slow. */
#include "kernels/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/str.h"

extern const struct device_ops cpu_ops_plain;
#if PLIMSOLL_X86
extern const struct device_ops cpu_ops_avx2;
extern const struct device_ops cpu_ops_avx512;
#endif

static const struct device_ops *pick_ops(const struct cpu_host *host, const char **level) {
#if PLIMSOLL_X86
    if (host->avx512) {
        *level = "avx512";
        return &cpu_ops_avx512;
    }
    if (host->avx2) {
        *level = "avx2";
        return &cpu_ops_avx2;
    }
#else
    (void)host;
#endif
    *level = "plain";
    return &cpu_ops_plain;
}

static enum status open_blas(struct cpu_state *state, struct err *e) {
    const char *wanted = getenv("PLIMSOLL_CPU_GEMM");
    if (wanted && *wanted) {
        if (str_equal(wanted, "onednn")) return cpu_blas_open_onednn(&state->blas, &state->host, e);
        if (str_equal(wanted, "openblas"))
            return cpu_blas_open_openblas(&state->blas, &state->host, e);
        return err_set(e, STATUS_INVALID,
                       "PLIMSOLL_CPU_GEMM is \"%s\"; it must be onednn or openblas", wanted);
    }
    struct err first = {0}, second = {0};
    if (cpu_blas_open_onednn(&state->blas, &state->host, &first) == STATUS_OK) return STATUS_OK;
    if (cpu_blas_open_openblas(&state->blas, &state->host, &second) == STATUS_OK) return STATUS_OK;
    return err_set(e, STATUS_UNSUPPORTED,
                   "the CPU device needs a library for matrix products. %s. %s", first.text,
                   second.text);
}

/* Measured with oneDNN 2.6.3 and two threads, against fp32 on the same processor: AMX 2 to 10 times
 * faster; AVX512_BF16 on an AMD EPYC (Zen 4, 2026-11-29) 1.8 to 2.2 times with a side of 576 or
 * more and never slower; AVX512_BF16 on an Intel processor with its AMX masked slower (0.6 times).
 */
static bool fast_bf16(const struct cpu_host *host) {
    return host->amx_bf16 || (host->avx512_bf16 && host->amd);
}

static enum status check_bf16(const struct device *device, const struct cpu_state *state,
                              struct err *e) {
    if (device->precision != PRECISION_BF16) return STATUS_OK;
    FAIL_IF(!state->blas.bf16, STATUS_UNSUPPORTED,
            "%s does not multiply bf16 on this processor (%s); set bf16 to false",
            state->blas.detail, state->host.processor);
    FAIL_IF(!fast_bf16(&state->host), STATUS_UNSUPPORTED,
            "bf16 products are faster than fp32 only on processors with AMX, or with AVX512_BF16 "
            "by AMD, and this one (%s) has neither; set bf16 to false",
            state->host.processor);
    return STATUS_OK;
}

void cpu_close(struct device *device) {
    struct cpu_state *state = device->state;
    if (!state) return;
    if (state->blas.close) state->blas.close(state->blas.state);
    mem_free(state);
    device->state = NULL;
}

enum status cpu_device_init(struct device *device, struct err *e) {
    enum status status = STATUS_OK;
    const char *level = NULL;
    struct cpu_state *state = mem_new(1, sizeof *state);
    device->state = state;
    cpu_host_read(&state->host);
    device->ops = pick_ops(&state->host, &level);
    device->computes = true;
    device->total_bytes = state->host.total_bytes;
    GUARD(open_blas(state, e));
    GUARD(check_bf16(device, state, e));
    snprintf(device->detail, sizeof device->detail, "%s, %d threads, %s, %s%s",
             state->host.processor, state->host.threads, state->blas.detail, level,
             device->precision == PRECISION_BF16 ? ", bf16 products" : "");

done:
    if (status != STATUS_OK) cpu_close(device);
    return status;
}
