/* cpu.h - what the parts of the CPU device know of each other. Private to kernels/cpu.
 *
 * The device is an operations table from kernels/cpu/simd (one per instruction level), memory from
 * memory.c, and products from one of two libraries behind struct cpu_blas. */
#ifndef PLIMSOLL_KERNELS_CPU_H
#define PLIMSOLL_KERNELS_CPU_H

#include "kernels/device.h"

/* What the processor is and can do, read once at device_open. */
struct cpu_host {
    char processor[64];  /* "AMD EPYC" */
    int threads;         /* omp_get_max_threads, so OMP_NUM_THREADS counts */
    bool avx2, avx512;   /* levels x86-64-v3 and v4 */
    bool amx_bf16;       /* tiles, and the system lets us use them */
    bool avx512_bf16;    /* the dot product of bf16 pairs */
    bool amd;            /* made by AMD: the same instructions run at other rates */
    int64_t total_bytes; /* physical memory, or the limit of our control group when that is less */
};
void cpu_host_read(struct cpu_host *host);
/* Bytes that may still be used without swapping, in the system and in our control group. */
enum status cpu_host_free_bytes(int64_t *bytes, struct err *e);

/* A library that multiplies: both operands f32, or both bf16 when `bf16` is set. The bias is not
 * its business: cpu_gemm adds it. */
struct cpu_blas {
    const char *name;
    void (*close)(void *state);
    enum status (*product)(void *state, const struct gemm_args *args, struct err *e);
    bool bf16;
    void *state;
    char detail[64]; /* "oneDNN 2.6.3" */
};

/* STATUS_UNSUPPORTED with the reason when this build or this machine does not have the library. */
enum status cpu_blas_open_onednn(struct cpu_blas *blas, const struct cpu_host *host, struct err *e);
enum status cpu_blas_open_openblas(struct cpu_blas *blas, const struct cpu_host *host,
                                   struct err *e);

struct cpu_state {
    struct cpu_host host;
    struct cpu_blas blas;
};

/* Makes `device` the CPU device; device->precision is what was asked for. */
enum status cpu_device_init(struct device *device, struct err *e);
void cpu_close(struct device *device);

/* memory.c */
enum status cpu_reserve(struct device *device, int64_t bytes, void **base, struct err *e);
void cpu_unreserve(struct device *device, void *base, int64_t bytes);
enum status cpu_commit(struct device *device, void *at, int64_t bytes, struct err *e);
void cpu_decommit(struct device *device, void *at, int64_t bytes);
enum status cpu_transfer(struct device *device, void *to, const void *from, int64_t bytes,
                         struct err *e);
enum status cpu_fill_zero(struct device *device, void *at, int64_t bytes, struct err *e);
enum status cpu_upload_rows(struct device *device, const struct transfer *t, struct err *e);
enum status cpu_stage_new(struct device *device, int64_t bytes, void **out, struct err *e);
void cpu_stage_free(struct device *device, void *at);
enum status cpu_stage_wait(struct device *device, int64_t pending, struct err *e);
enum status cpu_download_rows(struct device *device, const struct transfer *t, struct err *e);
enum status cpu_synchronize(struct device *device, struct err *e);
enum status cpu_memory(struct device *device, struct device_memory *memory, struct err *e);
/* The backward's delta [H, T] f32; the forward wants none. For null:cpu too. */
int64_t cpu_attention_scratch(const struct device *device, const struct attention_args *a,
                              bool backward);

/* gemm.c */
enum status cpu_gemm(struct device *device, const struct gemm_args *a, struct err *e);

#endif
