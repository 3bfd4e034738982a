/* rope.c - rotary frequencies (Su et al. 2021) and their stretching for longer contexts.
 *
 * Sources: linear - Chen et al. 2023; dynamic - "NTK-aware" scaling; YaRN - Peng et al. 2023;
 * llama3 - the Llama 3.1 report. Steps are rounded to f32 where transformers does so, because
 * reference logits were made with those numbers. */
#include <math.h>

#include "engine/model/config.h"

#define TWO_PI 6.283185307179586

/* theta^(2i/dim): the exponent and the result are f32. */
static float position_frequency(double theta, int64_t i, int64_t dim) {
    const float exponent = (float)(2 * i) / (float)dim;
    return (float)pow(theta, (double)exponent);
}

static double dynamic_theta(const struct model_config *c, const struct rope_config *r,
                            int64_t length_max) {
    const double trained = (double)c->max_position_embeddings;
    const double dim = (double)c->rotary_dim;
    const double length = (double)length_max > trained ? (double)length_max : trained;
    const double stretch = r->factor * length / trained - (r->factor - 1);
    return r->theta * pow(stretch, dim / (dim - 2));
}

/* Long waves are divided by the factor, short ones kept, those between are blended. */
static float llama3_frequency(const struct rope_config *r, float frequency) {
    const double context = r->original_max_position_embeddings;
    const float factor = (float)r->factor;
    const float wave = (float)TWO_PI / frequency;
    if (wave > (float)(context / r->low_freq_factor)) return frequency / factor;
    if (wave < (float)(context / r->high_freq_factor)) return frequency;
    const float blend = ((float)context / wave - (float)r->low_freq_factor) /
                        (float)(r->high_freq_factor - r->low_freq_factor);
    return (1 - blend) * frequency / factor + blend * frequency;
}

static double yarn_original(const struct model_config *c, const struct rope_config *r) {
    return r->original_max_position_embeddings > 0 ? r->original_max_position_embeddings
                                                   : (double)c->max_position_embeddings;
}

/* The dimension that turns `rotations` times within the original context. */
static double yarn_dimension(const struct model_config *c, const struct rope_config *r,
                             double rotations) {
    return (double)c->rotary_dim * log(yarn_original(c, r) / (rotations * TWO_PI)) /
           (2 * log(r->theta));
}

static void yarn_frequencies(const struct model_config *c, const struct rope_config *r,
                             float *inv_freq) {
    double low = yarn_dimension(c, r, r->beta_fast), high = yarn_dimension(c, r, r->beta_slow);
    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)(c->rotary_dim - 1));
    if (low == high) high += 0.001; /* no division by zero in the ramp */
    for (int64_t i = 0; i < c->rotary_dim / 2; i++) {
        const float frequency = position_frequency(r->theta, i, c->rotary_dim);
        const float ramp = fminf(fmaxf(((float)i - (float)low) / (float)(high - low), 0), 1);
        const float keep = 1 - ramp;
        inv_freq[i] = 1.0f / ((float)r->factor * frequency) * (1 - keep) + 1.0f / frequency * keep;
    }
}

static double yarn_mscale(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static double yarn_attention_factor(const struct rope_config *r) {
    if (r->attention_factor > 0) return r->attention_factor;
    if (r->mscale > 0 && r->mscale_all_dim > 0) {
        return yarn_mscale(r->factor, r->mscale) / yarn_mscale(r->factor, r->mscale_all_dim);
    }
    return yarn_mscale(r->factor, 1);
}

void rope_frequencies(const struct model_config *c, const struct rope_config *rope,
                      int64_t length_max, float *inv_freq, float *attention_factor) {
    ASSERT(c->rotary_dim >= 2 && c->rotary_dim % 2 == 0);
    ASSERT(rope->theta > 0 && rope->factor >= 1);
    *attention_factor = rope->type == ROPE_YARN ? (float)yarn_attention_factor(rope) : 1;
    if (rope->type == ROPE_YARN) {
        yarn_frequencies(c, rope, inv_freq);
        return;
    }
    const double theta =
        rope->type == ROPE_DYNAMIC ? dynamic_theta(c, rope, length_max) : rope->theta;
    for (int64_t i = 0; i < c->rotary_dim / 2; i++) {
        const float frequency = 1.0f / position_frequency(theta, i, c->rotary_dim);
        inv_freq[i] = frequency;
        if (rope->type == ROPE_LINEAR) inv_freq[i] = frequency / (float)rope->factor;
        if (rope->type == ROPE_LLAMA3) inv_freq[i] = llama3_frequency(rope, frequency);
    }
}
