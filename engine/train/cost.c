/* cost.c - seconds from counted work, and the published figures of cards.
 *
 * A call takes the longer of its arithmetic and its traffic. What share of the published peak is
 * reached in practice is one table for all cards (SHARES): measured on one H200 by ./dev bench gpu,
 * taken over to the others, hence "published" and never "measured". */
#include "engine/train/cost.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"

static const char *const CLASS_NAMES[WORK_CLASS_COUNT] = {
    [WORK_PRODUCT] = "products", [WORK_ATTENTION] = "attention", [WORK_LOSS] = "loss",
    [WORK_GATE] = "gated units", [WORK_UPDATE] = "optimizer",    [WORK_STREAM] = "norms and sums",
    [WORK_COPY] = "copies",
};

const char *work_class_name(enum work_class kind) {
    ASSERT(kind < WORK_CLASS_COUNT);
    return CLASS_NAMES[kind];
}

/* Between two measured sizes on the line through both, in logarithms; beyond them as at the end. */
static double rate_at(const struct rates *rates, enum work_class kind, double size) {
    const struct rate_point *const p = rates->points[kind];
    const int count = rates->counts[kind];
    ASSERT(count > 0);
    if (size <= p[0].size) return p[0].per_second;
    for (int i = 1; i < count; i++) {
        if (size > p[i].size) continue;
        const double at = log(size / p[i - 1].size) / log(p[i].size / p[i - 1].size);
        return p[i - 1].per_second * pow(p[i].per_second / p[i - 1].per_second, at);
    }
    return p[count - 1].per_second;
}

static double cell_seconds(const struct work_cell *cell, enum work_class kind,
                           const struct rates *rates) {
    if (cell->calls == 0) return 0;
    const bool arithmetic = kind == WORK_PRODUCT || kind == WORK_ATTENTION;
    const double traffic_size = cell->bytes / cell->calls;
    double seconds = 0;
    if (arithmetic) {
        seconds = cell->flops / rate_at(rates, kind, cell->flops / cell->calls);
        kind = WORK_STREAM;
    }
    const double traffic = cell->bytes / rate_at(rates, kind, traffic_size);
    return fmax(seconds, traffic) + cell->calls * rates->call_seconds;
}

double cost_seconds(const struct device_work *work, const struct rates *rates, double *by_class) {
    double total = 0;
    for (int i = 0; i < WORK_CLASS_COUNT; i++) {
        double seconds = 0;
        for (int k = 0; k < WORK_SIZES; k++) {
            seconds += cell_seconds(&work->cells[i][k], (enum work_class)i, rates);
        }
        if (by_class) by_class[i] = seconds;
        total += seconds;
    }
    return total;
}

double cost_flops(const struct device_work *work) {
    double flops = 0;
    for (int i = 0; i < WORK_CLASS_COUNT; i++) {
        for (int k = 0; k < WORK_SIZES; k++) {
            flops += work->cells[i][k].flops;
        }
    }
    return flops;
}

void cost_add(struct device_work *a, double times, const struct device_work *b) {
    for (int i = 0; i < WORK_CLASS_COUNT; i++) {
        for (int k = 0; k < WORK_SIZES; k++) {
            a->cells[i][k].flops += times * b->cells[i][k].flops;
            a->cells[i][k].bytes += times * b->cells[i][k].bytes;
            a->cells[i][k].calls += times * b->cells[i][k].calls;
        }
    }
}

#define MIB(n) ((int64_t)(n) << 20)
#define FLOPS(fp32, tf32, half)                                                                    \
    {                                                                                              \
        [PRECISION_F32] = (fp32)*1e12, [PRECISION_TF32] = (tf32)*1e12,                             \
        [PRECISION_BF16] = (half)*1e12, [PRECISION_F16] = (half)*1e12                              \
    }

/* Data sheets: dense products with accumulation in fp32; memory as the driver reports it. */
static const struct card CARDS[] = {
    {"b200-180gb", "NVIDIA B200", MIB(183359), FLOPS(75, 1125, 2250), 8.0e12},
    {"h200-141gb", "NVIDIA H200", MIB(143771), FLOPS(67, 495, 989), 4.8e12},
    {"h100-80gb", "NVIDIA H100 80GB HBM3", MIB(81559), FLOPS(67, 495, 989), 3.35e12},
    {"h100-pcie-80gb", "NVIDIA H100 PCIe", MIB(81559), FLOPS(51, 378, 756), 2.0e12},
    {"a100-80gb", "NVIDIA A100-SXM4-80GB", MIB(81920), FLOPS(19.5, 156, 312), 2.039e12},
    {"a100-40gb", "NVIDIA A100-SXM4-40GB", MIB(40960), FLOPS(19.5, 156, 312), 1.555e12},
    {"l40s-48gb", "NVIDIA L40S", MIB(46068), FLOPS(91.6, 183, 362), 0.864e12},
    {"a6000-48gb", "NVIDIA RTX A6000", MIB(49140), FLOPS(38.7, 77.4, 154.8), 0.768e12},
    {"rtx5090-32gb", "NVIDIA GeForce RTX 5090", MIB(32607), FLOPS(104.8, 104.8, 209.5), 1.792e12},
    {"rtx4090-24gb", "NVIDIA GeForce RTX 4090", MIB(24564), FLOPS(82.6, 82.6, 165.2), 1.008e12},
    {"rtx3090-24gb", "NVIDIA GeForce RTX 3090", MIB(24576), FLOPS(35.6, 35.6, 71), 0.936e12},
    {"a10-24gb", "NVIDIA A10", MIB(23028), FLOPS(31.2, 62.5, 125), 0.6e12},
    {"l4-24gb", "NVIDIA L4", MIB(23034), FLOPS(30.3, 60, 121), 0.3e12},
};

/* Of the published peak, by size of call: what an H200 reached. */
static const struct {
    double size, share;
} PRODUCT_SHARES[] = {{1e9, 0.10}, {1e10, 0.45}, {1e11, 0.68}, {1e12, 0.72}},
  ATTENTION_SHARES[] = {{1e8, 0.02}, {1e9, 0.10}, {1e10, 0.30}, {1e11, 0.42}},
  TRAFFIC_SHARES[] = {{1e6, 0.10}, {1e7, 0.55}, {1e8, 0.80}};
static const double CALL_SECONDS = 2e-6;

const struct card *card_at(int index) {
    return index >= 0 && index < (int)COUNT_OF(CARDS) ? &CARDS[index] : NULL;
}

/* "h100" names the first h100 of the table. */
const struct card *card_find(const char *name) {
    const size_t len = strlen(name);
    for (size_t i = 0; i < COUNT_OF(CARDS); i++) {
        const bool begins = strncasecmp(CARDS[i].id, name, len) == 0;
        const bool whole = begins && (CARDS[i].id[len] == 0 || CARDS[i].id[len] == '-');
        if (len > 0 && (whole || strcasecmp(CARDS[i].name, name) == 0)) return &CARDS[i];
    }
    return NULL;
}

struct rates card_rates(const struct card *card, enum precision precision) {
    struct rates rates = {.call_seconds = CALL_SECONDS};
    snprintf(rates.name, sizeof rates.name, "%s", card->name);
    const double peak = card->flops[precision];
    const double half = fmax(card->flops[precision], card->flops[PRECISION_TF32]);
    for (int i = 0; i < WORK_CLASS_COUNT; i++) {
        const bool product = i == WORK_PRODUCT, attention = i == WORK_ATTENTION;
        rates.counts[i] = product || attention ? 4 : (int)COUNT_OF(TRAFFIC_SHARES);
        for (int k = 0; k < rates.counts[i]; k++) {
            struct rate_point *const p = &rates.points[i][k];
            if (product) {
                *p = (struct rate_point){PRODUCT_SHARES[k].size, PRODUCT_SHARES[k].share * peak};
            } else if (attention) {
                *p =
                    (struct rate_point){ATTENTION_SHARES[k].size, ATTENTION_SHARES[k].share * half};
            } else {
                *p = (struct rate_point){TRAFFIC_SHARES[k].size,
                                         TRAFFIC_SHARES[k].share * card->bytes_per_second};
            }
        }
    }
    return rates;
}
