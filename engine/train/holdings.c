/* holdings.c - a walk over the storages of a model.
 *
 * A storage belongs to the group of the parameters that are named on it; packed ones (q, k and v)
 * are always of one group. */
#include "engine/train/holdings.h"

#include <string.h>

#include "base/mem.h"
#include "engine/model/shard_weights.h"

static const char *const GROUP_NAMES[HOLDING_GROUP_COUNT] = {[HOLDING_EMBEDDING] = "embedding",
                                                             [HOLDING_ATTENTION] = "attention",
                                                             [HOLDING_MLP] = "mlp",
                                                             [HOLDING_NORMS] = "norms",
                                                             [HOLDING_HEAD] = "head",
                                                             [HOLDING_ADAPTERS] = "adapters"};
static const char *const PART_NAMES[HOLDING_PART_COUNT] = {[HOLDING_WEIGHTS] = "weights",
                                                           [HOLDING_GRADIENTS] = "gradients",
                                                           [HOLDING_MASTER] = "master",
                                                           [HOLDING_OPTIMIZER] = "optimizer"};

static enum holding_group group_of(const struct param *p, enum param_kind kind) {
    if (strstr(p->name, "lora_")) return HOLDING_ADAPTERS;
    if (kind == PARAM_NORM) return HOLDING_NORMS;
    if (strstr(p->name, "self_attn.")) return HOLDING_ATTENTION;
    if (strstr(p->name, "mlp.")) return HOLDING_MLP;
    return strstr(p->name, "lm_head") ? HOLDING_HEAD : HOLDING_EMBEDDING;
}

static void add(struct holding *h, enum holding_part part, const struct tensor *t, int64_t count) {
    if (t) h->bytes[part][t->dtype] += count * dtype_bytes(t->dtype);
}

/* Of `count` elements what one rank holds, where the whole is divided among ranks. */
static int64_t part(int64_t count, int64_t own, int64_t whole) {
    return own == whole ? count : (int64_t)((double)count * (double)own / (double)whole);
}

static void add_storage(struct holding *h, const struct session *s, const struct storage *from) {
    const struct model *const m = &s->model;
    const int64_t count = from->rows * from->cols;
    const int64_t piece = count / s->mesh.axis[AXIS_SHARD].world;
    h->parameters += count;
    const struct quant_layout *const codes = &from->quantised.layout;
    const bool away = m->options.param_offloading && storage_is_sharded(m, from);
    const int64_t held = away ? 0 : storage_is_sharded(m, from) ? piece : count;
    if (codes->quant != QUANT_NONE) {
        h->bytes[HOLDING_WEIGHTS][DTYPE_COUNT + codes->quant] += codes->bytes * held / count;
    } else {
        add(h, HOLDING_WEIGHTS, from->value, held);
    }
    if (from->master && from->master != from->value)
        add(h, HOLDING_MASTER, from->master,
            away                          ? 0
            : storage_is_divided(m, from) ? piece
                                          : count);
    if (!from->trainable) return;
    const int64_t own = part(count, m->own_count, m->flat_count);
    h->trained += count;
    add(h, HOLDING_GRADIENTS, m->gradients,
        tensor_count(m->gradients) == m->flat_count ? count : own);
    add(h, HOLDING_OPTIMIZER, s->optimizer.exp_avg, own);
    add(h, HOLDING_OPTIMIZER, s->optimizer.exp_avg_sq, own);
}

static void mark_groups(enum holding_group *groups, const struct model *m,
                        const struct param *params, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const struct param *const p = &params[i];
        groups[p->storage] = group_of(p, m->storages[p->storage].kind);
    }
}

void holdings_find(struct holdings *out, const struct session *s) {
    const struct model *const m = &s->model;
    enum holding_group *groups = mem_new(m->storage_count, sizeof *groups);
    *out = (struct holdings){.tied = m->head == m->embedding};
    mark_groups(groups, m, m->params, m->param_count);
    mark_groups(groups, m, m->adapter_params, m->adapter_param_count);
    for (size_t i = 0; i < m->storage_count; i++) {
        add_storage(&out->groups[groups[i]], s, &m->storages[i]);
    }
    mem_free(groups);
}

static const char *type_name(int type) {
    return type < DTYPE_COUNT ? dtype_name((enum dtype)type)
                              : quant_name((enum quant)(type - DTYPE_COUNT));
}

static void add_part(cJSON *json, cJSON *bytes_json, const struct holding *h,
                     enum holding_part part) {
    struct str names = {0};
    int64_t left[HOLDING_TYPE_COUNT], all = 0;
    memcpy(left, h->bytes[part], sizeof left);
    for (;;) {
        int largest = 0;
        for (int d = 1; d < HOLDING_TYPE_COUNT; d++) {
            if (left[d] > left[largest]) largest = d;
        }
        if (left[largest] == 0) break;
        str_appendf(&names, "%s%s", names.len ? ", " : "", type_name(largest));
        all += left[largest];
        left[largest] = 0;
    }
    json_add_string(json, PART_NAMES[part], names.len ? str_text(&names) : NULL);
    json_add_i64(bytes_json, PART_NAMES[part], all);
    str_release(&names);
}

cJSON *holdings_to_json(const struct holdings *holdings) {
    cJSON *const array = cJSON_CreateArray();
    for (int g = 0; g < HOLDING_GROUP_COUNT; g++) {
        const struct holding *const h = &holdings->groups[g];
        if (h->parameters == 0) continue;
        cJSON *const json = cJSON_CreateObject(), *const bytes = cJSON_CreateObject();
        json_add_string(json, "name", GROUP_NAMES[g]);
        json_add_i64(json, "parameters", h->parameters);
        json_add_i64(json, "trained", h->trained);
        for (int part = 0; part < HOLDING_PART_COUNT; part++) {
            add_part(json, bytes, h, (enum holding_part)part);
        }
        if (g == HOLDING_EMBEDDING) json_add_bool(json, "is_head", holdings->tied);
        cJSON_AddItemToObject(json, "bytes", bytes);
        cJSON_AddItemToArray(array, json);
    }
    return array;
}
