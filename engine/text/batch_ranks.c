/* batch_ranks.c - see batch_ranks.h.
 *
 * Longest processing time first (Graham 1969): at worst a third slower than the best deal, and in
 * practice, with many units a rank, within a few percent. Equal costs and equal loads go by number,
 * so that the deal is the same on every machine. */
#include "engine/text/batch_ranks.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"

struct unit {
    int64_t index, cost;
};
struct load {
    int64_t cost, units;
};

static int unit_compare(const void *left, const void *right) {
    const struct unit *const a = left, *const b = right;
    if (a->cost != b->cost) return a->cost > b->cost ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

static int64_t least_loaded(const struct load *loads, int64_t world, int64_t units_max) {
    int64_t best = -1;
    for (int64_t rank = 0; rank < world; rank++) {
        if (loads[rank].units == units_max) continue;
        if (best < 0 || loads[rank].cost < loads[best].cost) best = rank;
    }
    ASSERT(best >= 0);
    return best;
}

void batch_deal_ranks(const int64_t *costs, int64_t count, int64_t world, int64_t *owners) {
    struct unit *const units = mem_new((size_t)count, sizeof *units);
    struct load *const loads = mem_new((size_t)world, sizeof *loads);
    for (int64_t i = 0; i < count; i++) {
        units[i] = (struct unit){i, costs[i]};
    }
    qsort(units, (size_t)count, sizeof *units, unit_compare);
    for (int64_t i = 0; i < count; i++) {
        const int64_t rank = least_loaded(loads, world, (count + world - 1) / world);
        loads[rank].cost += units[i].cost;
        loads[rank].units++;
        owners[units[i].index] = rank;
    }
    mem_free(units);
    mem_free(loads);
}
