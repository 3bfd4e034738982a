/* cpu.c - opening the CPU device: reads the host, picks the operations table and the library for
 * products.
 *
 * PLIMSOLL_CPU_GEMM=onednn|openblas chooses the library and is read here only; without it oneDNN is
 * taken when the build has it. bf16 products are granted only where the library
 * has them and the processor has AMX: without AMX they are slower than fp32 (oneDNN 2.6.3 with AMX
 * masked, Intel), so asking is refused rather than granted and slow. */
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

static enum status check_bf16(const struct device *device, const struct cpu_state *state,
                              struct err *e) {
    if (!device->gemm_bf16) return STATUS_OK;
    FAIL_IF(!state->blas.bf16, STATUS_UNSUPPORTED,
            "the CPU device of this build multiplies in fp32 only (%s); leave bf16 off on the CPU",
            state->blas.detail);
    FAIL_IF(!state->host.amx_bf16, STATUS_UNSUPPORTED,
            "bf16 products are only faster than fp32 on processors with AMX, and this one (%s) has "
            "none that we may use; leave bf16 off on the CPU",
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
    snprintf(device->detail, sizeof device->detail, "%s, %d threads, %s, %s", state->host.processor,
             state->host.threads, state->blas.detail, level);

done:
    if (status != STATUS_OK) cpu_close(device);
    return status;
}
