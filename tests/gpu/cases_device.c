/* cases_device.c - the card as a device: opening, memory, transfers, and what its errors say.
 *
 * A kernel that faults ends the whole process' use of the card, so that test starts this program
 * again (--fault) and reads its exit code. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "tests/gpu/harness.h"
#include "tests/gpu/suites.h"

enum { MIB = 1 << 20, FAULT_WAIT_S = 60 };

static void fill(struct gpu_test *t, unsigned char *bytes, int64_t count) {
    for (int64_t i = 0; i < count; i += 8) {
        const uint64_t bits = gpu_next(t);
        memcpy(bytes + i, &bits, (size_t)(count - i < 8 ? count - i : 8));
    }
}

/* n: bytes. Up, copied on the card, down again. */
static enum status transfer_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    enum status status = STATUS_OK;
    const int64_t bytes = c->n[0];
    struct device *device = gpu_device(t, SIDE_GPU);
    char *at = gpu_scratch(t, SIDE_GPU, 2 * (bytes + 512));
    char *copy = at + (bytes + 511) / 512 * 512;
    unsigned char *sent = mem_new(1, (size_t)bytes), *got = mem_new(1, (size_t)bytes);
    fill(t, sent, bytes);
    GUARD(
        device_upload(device, at, sent, bytes, e)); /* once without the clock: pages of the ring */
    const int64_t began = clock_steady_ns();
    GUARD(device_upload(device, at, sent, bytes, e));
    GUARD(device_synchronize(device, e));
    const double ns = (double)(clock_steady_ns() - began);
    t->us = ns / 1e3;
    t->gbps = (double)bytes / ns;
    GUARD(device_copy(device, copy, at, bytes, e));
    GUARD(device_fill_zero(device, at, bytes, e));
    GUARD(device_download(device, got, copy, bytes, e));
    gpu_expect(t, memcmp(sent, got, (size_t)bytes) == 0, "what came back is not what was sent");
    const int64_t down = clock_steady_ns();
    GUARD(device_download(device, got, at, bytes, e));
    printf("{\"note\":\"download\",\"bytes\":%lld,\"gbps\":%.2f}\n", (long long)bytes,
           (double)bytes / (double)(clock_steady_ns() - down));
    for (int64_t i = 0; i < bytes; i++) {
        if (got[i]) gpu_expect(t, false, "byte %lld is not zero", (long long)i);
    }

done:
    mem_free(sent);
    mem_free(got);
    return status;
}

/* n: width, rows, bytes between rows on the host, on the card. Bytes between rows stay. */
static enum status rows_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    enum status status = STATUS_OK;
    const int64_t width = c->n[0], rows = c->n[1], host = c->n[2], card = c->n[3];
    struct device *device = gpu_device(t, SIDE_GPU);
    char *at = gpu_scratch(t, SIDE_GPU, rows * card);
    unsigned char *sent = mem_new(1, (size_t)(rows * host));
    unsigned char *all = mem_new(1, (size_t)(rows * card));
    unsigned char *got = mem_new(1, (size_t)(rows * host));
    struct transfer transfer = {at, card, sent, host, width, rows};
    fill(t, sent, rows * host);
    GUARD(device_fill_zero(device, at, rows * card, e));
    GUARD(device_upload_rows(device, &transfer, e));
    GUARD(device_download(device, all, at, rows * card, e));
    transfer.host = got;
    GUARD(device_download_rows(device, &transfer, e));
    for (int64_t r = 0; r < rows; r++) {
        gpu_expect(t, memcmp(all + r * card, sent + r * host, (size_t)width) == 0,
                   "row %lld on the card is wrong", (long long)r);
        gpu_expect(t, memcmp(got + r * host, sent + r * host, (size_t)width) == 0,
                   "row %lld came back wrong", (long long)r);
        for (int64_t i = width; i < card; i++) {
            if (all[r * card + i]) gpu_expect(t, false, "row %lld: padding written", (long long)r);
        }
        for (int64_t i = width; i < host; i++) {
            if (got[r * host + i]) gpu_expect(t, false, "row %lld: host padding", (long long)r);
        }
    }

done:
    mem_free(sent);
    mem_free(all);
    mem_free(got);
    return status;
}

/* Many small uploads from one buffer that changes at once: each must have been read in time. */
static enum status small_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    struct device *device = gpu_device(t, SIDE_GPU);
    const int64_t count = c->n[0];
    int64_t *at = gpu_scratch(t, SIDE_GPU, count * (int64_t)sizeof *at);
    int64_t *got = mem_new((size_t)count, sizeof *got);
    const int64_t began = clock_steady_ns();
    enum status status = STATUS_OK;
    for (int64_t i = 0; i < count && status == STATUS_OK; i++) {
        int64_t value = i * i + 1;
        status = device_upload(device, at + i, &value, sizeof value, e);
        value = -1;
    }
    t->us = (double)(clock_steady_ns() - began) / 1e3 / (double)count;
    if (status == STATUS_OK)
        status = device_download(device, got, at, count * (int64_t)sizeof *got, e);
    for (int64_t i = 0; i < count && status == STATUS_OK; i++) {
        gpu_expect(t, got[i] == i * i + 1, "value %lld is wrong", (long long)i);
    }
    mem_free(got);
    return status;
}

/* Bytes that go to the host and come back while the card writes over where they were. */
struct beside {
    int64_t bytes;
    char *from, *other, *back; /* on the card */
    void *host;
};

/* The source is made by copies that are still running when the stash is asked for, and spoiled as
 * soon as copies_wait allows it; the same on the way back. */
static enum status there_and_back(struct gpu_test *t, const struct beside *b, struct err *e) {
    struct device *device = gpu_device(t, SIDE_GPU);
    for (int i = 0; i < 20; i++) {
        TRY(device_copy(device, b->from, b->other, b->bytes, e));
    }
    TRY(device_stash(device, b->host, b->from, b->bytes, e));
    TRY(device_fill_zero(device, b->back, b->bytes, e)); /* beside the copy */
    TRY(device_copies_wait(device, e));
    TRY(device_fill_zero(device, b->from, b->bytes, e));
    TRY(device_fetch(device, b->back, b->host, b->bytes, e));
    TRY(device_copies_wait(device, e));
    return device_copy(device, b->from, b->back, b->bytes, e);
}

/* How long the card works on `count` copies, with a stash beside them or without. */
static enum status copying_ns(struct gpu_test *t, const struct beside *b, int count, bool stash,
                              double *ns, struct err *e) {
    struct device *device = gpu_device(t, SIDE_GPU);
    TRY(device_synchronize(device, e));
    const int64_t began = clock_steady_ns();
    if (stash) TRY(device_stash(device, b->host, b->from, b->bytes, e));
    for (int i = 0; i < count; i++) {
        TRY(device_copy(device, b->back, b->other, b->bytes, e));
    }
    TRY(device_copies_wait(device, e));
    TRY(device_synchronize(device, e));
    *ns = (double)(clock_steady_ns() - began);
    return STATUS_OK;
}

/* n: bytes. The card's copies, enough for four times the stash, must hide it. */
static enum status overlap(struct gpu_test *t, const struct beside *b, struct err *e) {
    double one = 0, alone = 0, both = 0;
    TRY(copying_ns(t, b, 0, true, &one, e));
    TRY(copying_ns(t, b, 50, false, &alone, e));
    const int count = (int)(4 * one / (alone / 50)) + 1;
    TRY(copying_ns(t, b, count, false, &alone, e));
    TRY(copying_ns(t, b, count, true, &both, e));
    t->us = one / 1e3;
    t->gbps = (double)b->bytes / one;
    printf("{\"note\":\"stash\",\"us\":%.1f,\"beside_us\":%.1f,\"hidden_in_us\":%.1f}\n", one / 1e3,
           alone / 1e3, both / 1e3);
    gpu_expect(t, both < alone + one / 2, "a stash of %.0f us beside %.0f us of work takes %.0f us",
               one / 1e3, alone / 1e3, both / 1e3);
    return STATUS_OK;
}

static enum status stash_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    enum status status = STATUS_OK;
    struct device *device = gpu_device(t, SIDE_GPU);
    struct beside b = {.bytes = c->n[0]};
    const int64_t pitch = (b.bytes + 511) / 512 * 512;
    unsigned char *sent = mem_new(1, (size_t)b.bytes), *got = mem_new(1, (size_t)b.bytes);
    b.from = gpu_scratch(t, SIDE_GPU, 3 * pitch);
    b.other = b.from + pitch;
    b.back = b.other + pitch;
    fill(t, sent, b.bytes);
    GUARD(device_stage_new(device, b.bytes, &b.host, e));
    for (int round = 0; round < 3; round++) {
        GUARD(device_fill_zero(device, b.from, b.bytes, e));
        GUARD(device_upload(device, b.other, sent, b.bytes, e));
        GUARD(there_and_back(t, &b, e));
        GUARD(device_download(device, got, b.from, b.bytes, e));
        gpu_expect(t, memcmp(sent, got, (size_t)b.bytes) == 0, "what came back is not what left");
        GUARD(device_synchronize(device, e));
        gpu_expect(t, memcmp(sent, b.host, (size_t)b.bytes) == 0, "the host has other bytes");
        sent[round] ^= 1;
    }
    if (b.bytes >= 16 * MIB) GUARD(overlap(t, &b, e));

done:
    (void)device_synchronize(device, e);
    device_stage_free(device, b.host);
    mem_free(sent);
    mem_free(got);
    return status;
}

/* The driver's own page tables come and go with what they map. */
static bool is_about(int64_t got, int64_t want) {
    return llabs(got - want) <= 8 * MIB;
}

static enum status grow_and_shrink(struct gpu_test *t, char *base, struct err *e) {
    struct device *device = gpu_device(t, SIDE_GPU);
    const int64_t page = device->page_bytes;
    struct device_memory before = {0}, full = {0}, half = {0}, after = {0};
    const int64_t value = INT64_C(0x1234567812345678);
    int64_t got = 0;
    TRY(device_memory(device, &before, e));
    TRY(device_commit(device, base, 32 * page, e));
    TRY(device_commit(device, base + 32 * page, 32 * page, e));
    TRY(device_memory(device, &full, e));
    TRY(device_upload(device, base + 31 * page, &value, sizeof value, e));
    TRY(device_fill_zero(device, base + 32 * page, 32 * page, e));
    device_decommit(device, base + 32 * page, 32 * page);
    TRY(device_memory(device, &half, e));
    TRY(device_download(device, &got, base + 31 * page, sizeof got, e));
    gpu_expect(t, got == value, "what lies below the part that was given back changed");
    gpu_expect(t, is_about(before.free - full.free, 64 * page),
               "64 pages took %lld bytes, not %lld", (long long)(before.free - full.free),
               (long long)(64 * page));
    gpu_expect(t, is_about(before.free - half.free, 32 * page), "32 pages given back are not free");
    TRY(device_commit(device, base + 32 * page, page, e));
    TRY(device_fill_zero(device, base + 32 * page, page, e));
    device_decommit(device, base, 33 * page);
    TRY(device_memory(device, &after, e));
    gpu_expect(t, is_about(after.free, before.free), "%lld bytes were not given back",
               (long long)(before.free - after.free));
    return STATUS_OK;
}

static enum status memory_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    (void)c;
    struct device *device = gpu_device(t, SIDE_GPU);
    void *base = NULL;
    TRY(device_reserve(device, 128 * device->page_bytes, &base, e));
    const enum status status = grow_and_shrink(t, base, e);
    device_unreserve(device, base, 128 * device->page_bytes);
    return status;
}

/* More than the card has: refused, with the numbers, and everything is as before. */
static enum status oom_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    (void)c;
    struct device *device = gpu_device(t, SIDE_GPU);
    const int64_t page = device->page_bytes;
    const int64_t bytes = (device->total_bytes / page + 1) * page;
    struct device_memory before = {0}, after = {0};
    struct err refusal = {0};
    void *base = NULL;
    TRY(device_reserve(device, bytes, &base, e));
    TRY(device_memory(device, &before, e));
    const int64_t began = clock_steady_ns();
    const enum status status = device_commit(device, base, bytes, &refusal);
    t->us = (double)(clock_steady_ns() - began) / 1e3;
    gpu_expect(t, status == STATUS_OOM, "status is %s: %s", status_name(status), refusal.text);
    gpu_expect(t, strstr(refusal.text, "free") != NULL, "the text is: %s", refusal.text);
    TRY(device_memory(device, &after, e));
    gpu_expect(t, is_about(after.free, before.free), "%lld bytes were not given back",
               (long long)(before.free - after.free));
    TRY(device_commit(device, base, page, e));
    TRY(device_fill_zero(device, base, page, e));
    TRY(device_synchronize(device, e));
    device_unreserve(device, base, bytes);
    return STATUS_OK;
}

static enum status ordinal_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    (void)c, (void)e;
    struct device *device = NULL;
    struct err refusal = {0};
    const enum status status =
        device_open(&device, "cuda:99", &(struct device_options){.blocking = false}, &refusal);
    gpu_expect(t, status == STATUS_UNSUPPORTED, "status is %s", status_name(status));
    gpu_expect(t, strstr(refusal.text, "cuda:99") && strstr(refusal.text, "last one is cuda:"),
               "the text is: %s", refusal.text);
    return STATUS_OK;
}

static enum status detail_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    (void)c, (void)e;
    const struct device *device = gpu_device(t, SIDE_GPU);
    gpu_expect(t, strstr(device->detail, "SMs") && strstr(device->detail, "cuBLASLt"),
               "the detail is: %s", device->detail);
    gpu_expect(t, device->total_bytes > INT64_C(1) << 30, "total_bytes is %lld",
               (long long)device->total_bytes);
    return STATUS_OK;
}

int gpu_fault(const char *card) {
    struct gpu_side side = {.device = NULL};
    struct err opening = {0}, first = {0}, second = {0};
    void *unbacked = NULL;
    if (gpu_side_open(&side, card, &(struct device_options){.blocking = true}, &opening)) return 2;
    char *base = side.base;
    if (device_reserve(side.device, side.device->page_bytes, &unbacked, &opening)) return 3;
    const enum status status = device_gather_rows(side.device,
                                                  &(struct rows_args){.rows = 64,
                                                                      .width = 64,
                                                                      .dtype = DTYPE_F32,
                                                                      .index = unbacked,
                                                                      .src = base,
                                                                      .ld_src = 64,
                                                                      .dst = base,
                                                                      .ld_dst = 64},
                                                  &first);
    const enum status again = device_synchronize(side.device, &second);
    printf("%s\n%s\n", first.text, second.text);
    if (status != STATUS_DEVICE || !strstr(first.text, "gather")) return 4;
    if (again != STATUS_DEVICE || strcmp(first.text, second.text) != 0) return 5;
    gpu_side_close(&side); /* must return although nothing works any more */
    return 0;
}

static enum status fault_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    (void)c;
    fflush(stdout);
    const pid_t child = fork();
    FAIL_IF(child < 0, STATUS_INTERNAL, "fork failed");
    if (child == 0) {
        alarm(FAULT_WAIT_S);
        execl(t->program, t->program, "--fault", t->card, (char *)NULL);
        _exit(127);
    }
    int code = 0;
    FAIL_IF(waitpid(child, &code, 0) != child, STATUS_INTERNAL, "waitpid failed");
    gpu_expect(t, WIFEXITED(code) && WEXITSTATUS(code) == 0,
               "the process that faults ended with %s %d", WIFEXITED(code) ? "code" : "signal",
               WIFEXITED(code) ? WEXITSTATUS(code) : WTERMSIG(code));
    return STATUS_OK;
}

static const struct gpu_case CASES[] = {
    {.name = "device/detail", .run = detail_case},
    {.name = "device/ordinal", .run = ordinal_case},
    {.name = "device/upload-1", .run = transfer_case, .n = {1}},
    {.name = "device/upload-255", .run = transfer_case, .n = {255}},
    {.name = "device/upload-16m", .run = transfer_case, .n = {16 * MIB}},
    {.name = "device/upload-16m+1", .run = transfer_case, .n = {16 * MIB + 1}},
    {.name = "device/upload-100m", .run = transfer_case, .n = {100 * MIB + 3}},
    {.name = "device/upload-1g", .run = transfer_case, .n = {1024 * MIB}},
    {.name = "device/upload-small", .run = small_case, .n = {20000}},
    {.name = "device/rows-odd", .run = rows_case, .n = {7, 1001, 11, 13}},
    {.name = "device/rows-dense", .run = rows_case, .n = {4096, 300, 4096, 4096}},
    {.name = "device/rows-tail", .run = rows_case, .n = {8192, 14336, 8192, 8320}},
    {.name = "device/rows-large", .run = rows_case, .n = {17 * MIB + 5, 5, 18 * MIB, 17 * MIB + 8}},
    {.name = "device/stash-5", .run = stash_case, .n = {5}},
    {.name = "device/stash-1m+3", .run = stash_case, .n = {MIB + 3}},
    {.name = "device/stash-64m", .run = stash_case, .n = {64 * MIB}},
    {.name = "device/memory", .run = memory_case},
    {.name = "device/out-of-memory", .run = oom_case},
    {.name = "device/fault", .run = fault_case},
};

const struct gpu_suite gpu_suite_device = {"device", CASES, COUNT_OF(CASES)};
