/* config_rope.c - the rotary parameters of config.json in all their spellings.
 *
 * Two layouts are in use: rope_theta at the top with an optional rope_scaling, and rope_parameters,
 * which holds both and may be nested by layer type. Both end in the same struct. Where two places
 * contradict each other the file is refused: a wrong theta trains without any visible fault. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/model/config_internal.h"

static const char *const TYPE_NAMES[] = {
    [ROPE_DEFAULT] = "default", [ROPE_LINEAR] = "linear", [ROPE_DYNAMIC] = "dynamic",
    [ROPE_LLAMA3] = "llama3",   [ROPE_YARN] = "yarn",
};
_Static_assert(COUNT_OF(TYPE_NAMES) == ROPE_TYPE_COUNT, "a name for every rope type");

#define THETA_MIN 1.0
#define THETA_MAX 1e15
#define FACTOR_MAX 1e6

const char *rope_type_name(enum rope_type type) {
    ASSERT(type < ROPE_TYPE_COUNT);
    return TYPE_NAMES[type];
}

static enum status read_type(const cJSON *rope, enum rope_type *out, struct err *e) {
    const char *name = NULL, *old_name = NULL;
    TRY(json_get_string(rope, "rope_type", &name, e));
    TRY(json_get_string(rope, "type", &old_name, e));
    if (name && old_name && strcmp(name, old_name) != 0) {
        return err_set_param(e, STATUS_INVALID, "rope_type",
                             "rope_type is \"%.40s\" and type is \"%.40s\": they must agree", name,
                             old_name);
    }
    if (!name) name = old_name ? old_name : "default";
    for (int i = 0; i < ROPE_TYPE_COUNT; i++) {
        if (strcmp(TYPE_NAMES[i], name) != 0) continue;
        *out = (enum rope_type)i;
        return STATUS_OK;
    }
    return err_set_param(e, STATUS_UNSUPPORTED, "rope_type",
                         "rope type \"%.40s\" is not supported; supported are default, linear, "
                         "dynamic, llama3, yarn",
                         name);
}

static enum status need(const cJSON *rope, const char *key, const struct rope_config *r,
                        struct err *e) {
    const cJSON *const item = json_member(rope, key);
    if (item && !cJSON_IsNull(item)) return STATUS_OK;
    return err_set_param(e, STATUS_INVALID, key, "%s is missing: rope type %s needs it", key,
                         rope_type_name(r->type));
}

static enum status read_llama3(const cJSON *rope, struct rope_config *r, struct err *e) {
    TRY(need(rope, "low_freq_factor", r, e));
    TRY(need(rope, "high_freq_factor", r, e));
    TRY(need(rope, "original_max_position_embeddings", r, e));
    TRY(config_number(rope, "low_freq_factor", 1e-6, FACTOR_MAX, &r->low_freq_factor, e));
    TRY(config_number(rope, "high_freq_factor", 1e-6, FACTOR_MAX, &r->high_freq_factor, e));
    if (r->high_freq_factor > r->low_freq_factor) return STATUS_OK;
    return err_set_param(e, STATUS_INVALID, "high_freq_factor",
                         "high_freq_factor is %g, it must be more than low_freq_factor, %g",
                         r->high_freq_factor, r->low_freq_factor);
}

static enum status read_yarn(const cJSON *rope, struct rope_config *r, struct err *e) {
    TRY(config_number(rope, "beta_fast", 0, FACTOR_MAX, &r->beta_fast, e));
    TRY(config_number(rope, "beta_slow", 0, FACTOR_MAX, &r->beta_slow, e));
    TRY(config_number(rope, "attention_factor", 1e-6, FACTOR_MAX, &r->attention_factor, e));
    TRY(config_number(rope, "mscale", 0, FACTOR_MAX, &r->mscale, e));
    TRY(config_number(rope, "mscale_all_dim", 0, FACTOR_MAX, &r->mscale_all_dim, e));
    TRY(json_get_bool(rope, "truncate", &r->truncate, e));
    /* As transformers does, 0 asks for the default. */
    if (r->beta_fast == 0) r->beta_fast = 32;
    if (r->beta_slow == 0) r->beta_slow = 1;
    if (r->beta_fast >= r->beta_slow) return STATUS_OK;
    return err_set_param(e, STATUS_INVALID, "beta_fast",
                         "beta_fast is %g, it must not be less than beta_slow, %g", r->beta_fast,
                         r->beta_slow);
}

/* Everything but theta, from rope_scaling or from (one part of) rope_parameters. */
static enum status read_scaling(const cJSON *rope, struct rope_config *r, struct err *e) {
    TRY(read_type(rope, &r->type, e));
    if (r->type == ROPE_DEFAULT) return STATUS_OK;
    TRY(need(rope, "factor", r, e));
    TRY(config_number(rope, "factor", 1, FACTOR_MAX, &r->factor, e));
    TRY(config_number(rope, "original_max_position_embeddings", 1, 0x1p30,
                      &r->original_max_position_embeddings, e));
    if (r->type == ROPE_LLAMA3) return read_llama3(rope, r, e);
    if (r->type == ROPE_YARN) return read_yarn(rope, r, e);
    return STATUS_OK;
}

/* theta inside `rope` against the one at the top (0: not given). */
static enum status read_theta(const cJSON *rope, double theta_top, double preset, double *out,
                              struct err *e) {
    double inside = 0;
    TRY(config_number(rope, "rope_theta", THETA_MIN, THETA_MAX, &inside, e));
    if (inside > 0 && theta_top > 0 && inside != theta_top) {
        return err_set_param(e, STATUS_INVALID, "rope_theta",
                             "rope_theta is %g at the top and %g in the rope parameters: they "
                             "must agree",
                             theta_top, inside);
    }
    *out = inside > 0 ? inside : theta_top > 0 ? theta_top : preset;
    return STATUS_OK;
}

static enum status read_part(const cJSON *rope, double theta_top, double preset,
                             struct rope_config *r, struct err *e) {
    TRY(read_theta(rope, theta_top, preset, &r->theta, e));
    return read_scaling(rope, r, e);
}

static enum status read_nested(struct model_config *c, const cJSON *rope, double theta_top,
                               const struct rope_presets *presets, struct err *e) {
    const cJSON *const full = json_member(rope, "full_attention");
    const cJSON *const sliding = json_member(rope, "sliding_attention");
    if (!cJSON_IsObject(full) || !cJSON_IsObject(sliding)) {
        return err_set_param(e, STATUS_INVALID, "rope_parameters",
                             "rope_parameters by layer type must hold the objects full_attention "
                             "and sliding_attention");
    }
    const double local = presets->theta_local > 0 ? presets->theta_local : presets->theta;
    c->has_rope_local = true;
    TRY(read_part(full, theta_top, presets->theta, &c->rope, e));
    return read_part(sliding, 0, local, &c->rope_local, e);
}

/* The older layout of Gemma 3: the scaling is for full layers, sliding ones only have their own
 * theta. */
static enum status read_flat(struct model_config *c, const cJSON *json, const cJSON *rope,
                             const struct rope_presets *presets, struct err *e) {
    double theta_top = 0;
    TRY(config_number(json, "rope_theta", THETA_MIN, THETA_MAX, &theta_top, e));
    TRY(read_part(rope, theta_top, presets->theta, &c->rope, e));
    if (presets->theta_local == 0) return STATUS_OK;
    c->has_rope_local = true;
    c->rope_local.theta = presets->theta_local;
    return config_number(json, "rope_local_base_freq", THETA_MIN, THETA_MAX, &c->rope_local.theta,
                         e);
}

static enum status pick_object(const cJSON *json, const cJSON **out, struct err *e) {
    static const char *const KEYS[] = {"rope_parameters", "rope_scaling"};
    *out = NULL;
    for (size_t i = 0; i < COUNT_OF(KEYS); i++) {
        const cJSON *const item = json_member(json, KEYS[i]);
        if (!item || cJSON_IsNull(item)) continue;
        if (!cJSON_IsObject(item)) {
            return err_set_param(e, STATUS_INVALID, KEYS[i], "%s: expected an object", KEYS[i]);
        }
        if (*out && !cJSON_Compare(*out, item, true)) {
            return err_set_param(e, STATUS_INVALID, KEYS[i],
                                 "rope_parameters and rope_scaling are both given and differ");
        }
        if (!*out) *out = item;
    }
    return STATUS_OK;
}

static enum status read_rotary_dim(struct model_config *c, const cJSON *json, const cJSON *rope,
                                   struct err *e) {
    double top = 0, inside = 0;
    TRY(config_number(json, "partial_rotary_factor", 1e-3, 1, &top, e));
    TRY(config_number(rope, "partial_rotary_factor", 1e-3, 1, &inside, e));
    if (top > 0 && inside > 0 && top != inside) {
        return err_set_param(e, STATUS_INVALID, "partial_rotary_factor",
                             "partial_rotary_factor is %g at the top and %g in the rope "
                             "parameters: they must agree",
                             top, inside);
    }
    const double share = inside > 0 ? inside : top > 0 ? top : 1;
    c->rotary_dim = (int64_t)((double)c->head_dim * share);
    if (c->rotary_dim >= 2 && c->rotary_dim % 2 == 0) return STATUS_OK;
    return err_set_param(e, STATUS_INVALID, "partial_rotary_factor",
                         "%lld of %lld dimensions of a head would be rotated; it must be an even "
                         "number, at least 2",
                         (long long)c->rotary_dim, (long long)c->head_dim);
}

static enum status check_part(const struct model_config *c, const struct rope_config *r,
                              struct err *e) {
    if (r->type != ROPE_DYNAMIC && r->type != ROPE_YARN) return STATUS_OK;
    /* Both formulas divide: by rotary_dim - 2, and by the logarithm of theta. */
    if (c->rotary_dim > 2 && r->theta > 1) return STATUS_OK;
    return err_set_param(e, STATUS_INVALID, "rope_type",
                         "rope type %s needs more than 2 rotated dimensions and rope_theta above 1",
                         rope_type_name(r->type));
}

enum status config_parse_rope(struct model_config *c, const cJSON *json,
                              const struct rope_presets *presets, struct err *e) {
    const struct rope_config fresh = {
        .factor = 1, .beta_fast = 32, .beta_slow = 1, .truncate = true};
    const cJSON *rope = NULL;
    c->rope = c->rope_local = fresh;
    TRY(pick_object(json, &rope, e));
    const cJSON *const full = json_member(rope, "full_attention");
    if (full || json_member(rope, "sliding_attention")) {
        double theta_top = 0;
        TRY(config_number(json, "rope_theta", THETA_MIN, THETA_MAX, &theta_top, e));
        TRY(read_nested(c, rope, theta_top, presets, e));
        TRY(read_rotary_dim(c, json, full, e));
    } else {
        TRY(read_flat(c, json, rope, presets, e));
        TRY(read_rotary_dim(c, json, rope, e));
    }
    TRY(check_part(c, &c->rope, e));
    return check_part(c, &c->rope_local, e);
}
