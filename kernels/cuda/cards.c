/* cards.c - describes the cards of this machine without making a context on any.
 *
 * Names and sizes come from the CUDA runtime, which reads them without starting a card; free memory
 * would need a context there, so it comes from the driver's management library, which is loaded at
 * run time and is part of every driver. Few functions of it are used and its interface has been
 * stable for a decade, so they are declared here. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cards.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda_open.h"

static const char LIBRARY[] = "libnvidia-ml.so.1";
enum { BUS_ID_BYTES = 32 };

struct nvml_memory {
    unsigned long long total, free, used;
};

/* The management library; `loaded` is NULL where it is missing. */
struct nvml {
    void *loaded;
    int (*init)(void);
    int (*shutdown)(void);
    int (*driver)(char *version, unsigned length);
    int (*by_bus)(const char *bus_id, void **card);
    int (*memory)(void *card, struct nvml_memory *out);
};

static bool find(void *library, const char *name, void *to) {
    void *const function = dlsym(library, name);
    memcpy(to, &function, sizeof function);
    return function != NULL;
}

static void nvml_open(struct nvml *n) {
    *n = (struct nvml){.loaded = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL)};
    if (!n->loaded) return;
    const bool all = find(n->loaded, "nvmlInit_v2", &n->init) &&
                     find(n->loaded, "nvmlShutdown", &n->shutdown) &&
                     find(n->loaded, "nvmlSystemGetDriverVersion", &n->driver) &&
                     find(n->loaded, "nvmlDeviceGetHandleByPciBusId_v2", &n->by_bus) &&
                     find(n->loaded, "nvmlDeviceGetMemoryInfo", &n->memory);
    if (all && n->init() == 0) return;
    dlclose(n->loaded);
    n->loaded = NULL;
}

static void nvml_close(const struct nvml *n) {
    if (!n->loaded) return;
    (void)n->shutdown();
    dlclose(n->loaded);
}

static int64_t free_bytes(const struct nvml *n, int ordinal) {
    char bus[BUS_ID_BYTES] = "";
    void *card = NULL;
    struct nvml_memory memory = {0};
    if (!n->loaded || cudaDeviceGetPCIBusId(bus, sizeof bus, ordinal) != cudaSuccess ||
        n->by_bus(bus, &card) != 0 || n->memory(card, &memory) != 0)
        return -1;
    return (int64_t)memory.free;
}

static void describe(struct device_card *card, const struct nvml *n, int ordinal) {
    struct cudaDeviceProp properties;
    snprintf(card->id, sizeof card->id, "cuda:%d", ordinal);
    const cudaError_t error = cudaGetDeviceProperties(&properties, ordinal);
    if (error != cudaSuccess) {
        err_set(&card->problem, STATUS_DEVICE, "%s does not answer: %s", card->id,
                cudaGetErrorString(error));
        return;
    }
    snprintf(card->name, sizeof card->name, "%s", properties.name);
    card->capability = 10 * properties.major + properties.minor;
    card->total_bytes = (int64_t)properties.totalGlobalMem;
    card->free_bytes = free_bytes(n, ordinal);
    (void)cuda_check_capability(card->id, card->name, card->capability, &card->problem);
}

void cuda_cards_find(struct device_cards *out) {
    /* Errors name the device that was asked for; here it is any. */
    const struct device any = {.name = "cuda"};
    int count = 0;
    if (cuda_count_cards(&any, &count, &out->problem) != STATUS_OK) return;
    struct nvml n;
    nvml_open(&n);
    if (n.loaded && n.driver(out->driver, sizeof out->driver) != 0) out->driver[0] = '\0';
    out->count = count < DEVICE_CARDS_MAX ? count : DEVICE_CARDS_MAX;
    for (int i = 0; i < out->count; i++) {
        describe(&out->items[i], &n, i);
    }
    nvml_close(&n);
}
