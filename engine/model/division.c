/* division.c - see division.h.
 *
 * What can be cut is a pure function of config and degree, so that a refusal can name the nearest
 * degree that works. */
#include "engine/model/division.h"

#include <stdio.h>
#include <string.h>

struct comm_group *division_group(struct mesh *mesh) {
    return mesh && mesh->axis[AXIS_TENSOR].world > 1 ? &mesh->axis[AXIS_TENSOR] : NULL;
}

static bool kv_divides(const struct model_config *c, int64_t degree) {
    return c->kv_heads % degree == 0 || (degree % c->kv_heads == 0 && !c->fused_projections);
}

/* Nobody is left without a row of the vocabulary. */
static bool vocab_divides(const struct model_config *c, int64_t degree) {
    return comm_piece_of(c->vocab_size, 1, degree - 1, degree).count > 0;
}

static bool is_legal(const struct model_config *c, int64_t degree) {
    return c->heads % degree == 0 && kv_divides(c, degree) && c->intermediate_size % degree == 0 &&
           vocab_divides(c, degree);
}

/* Among those that the ranks at hand can be divided by; 1 always can. */
static int64_t nearest(const struct model_config *c, int64_t degree, int64_t ranks) {
    for (int64_t off = 1;; off++) {
        if (degree - off >= 1 && ranks % (degree - off) == 0 && is_legal(c, degree - off))
            return degree - off;
        if (ranks % (degree + off) == 0 && is_legal(c, degree + off)) return degree + off;
    }
}

static enum status refuse(const struct model_config *c, const struct mesh *mesh, struct err *e) {
    const int64_t degree = mesh->axis[AXIS_TENSOR].world;
    const int64_t ranks = degree * mesh_data_world(&mesh->shape);
    char what[96];
    if (c->heads % degree != 0) {
        snprintf(what, sizeof what, "%lld attention heads", (long long)c->heads);
    } else if (!kv_divides(c, degree)) {
        snprintf(what, sizeof what, "%lld key/value heads%s", (long long)c->kv_heads,
                 c->fused_projections ? " in one projection" : "");
    } else if (c->intermediate_size % degree != 0) {
        snprintf(what, sizeof what, "an intermediate_size of %lld",
                 (long long)c->intermediate_size);
    } else {
        snprintf(what, sizeof what, "a vocabulary of %lld", (long long)c->vocab_size);
    }
    return err_set_param(
        e, STATUS_INVALID, "parallel.tensor_parallel_degree",
        "parallel.tensor_parallel_degree %lld does not divide this %s model, which "
        "has %s; the nearest is %lld",
        (long long)degree, c->model_type, what, (long long)nearest(c, degree, ranks));
}

static struct cut even(int64_t whole, int64_t rank, int64_t world) {
    return (struct cut){rank * (whole / world), whole / world, whole};
}

enum status division_of(struct division *out, const struct model_config *config,
                        const struct mesh *mesh, struct err *e) {
    const int64_t world = mesh ? mesh->axis[AXIS_TENSOR].world : 1;
    const int64_t rank = mesh ? mesh->axis[AXIS_TENSOR].rank : 0;
    if (!is_legal(config, world)) return refuse(config, mesh, e);
    const int64_t sharers = world > config->kv_heads ? world / config->kv_heads : 1;
    const struct comm_piece vocab = comm_piece_of(config->vocab_size, 1, rank, world);
    *out = (struct division){.rank = rank,
                             .world = world,
                             .heads = even(config->heads, rank, world),
                             .kv_heads = even(config->kv_heads, rank / sharers, world / sharers),
                             .width = even(config->intermediate_size, rank, world),
                             .vocab = {vocab.first, vocab.count, config->vocab_size},
                             .kv_sharers = sharers};
    return STATUS_OK;
}
