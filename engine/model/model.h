/* model.h - a decoder in device memory: parameters, adapters, and the flat buffers that the
 * optimizer sees.
 *
 * A `storage` is one matrix in memory: a packed weight (q, k and v side by side; gate and up), a
 * norm, an adapter. A `param` is a name on rows of a storage, as files know it, or on the block of
 * it that this rank has (one name may then have several). Everything that is trained lies in one
 * flat f32 buffer; gradients lie in a second one of the same layout, and where the forward pass
 * reads something narrower, the rounded copies in a third. */
#ifndef PLIMSOLL_ENGINE_MODEL_MODEL_H
#define PLIMSOLL_ENGINE_MODEL_MODEL_H

#include "engine/dist/mesh.h"
#include "engine/model/division.h"
#include "engine/model/config.h"
#include "engine/tensor/ops.h"

enum param_kind {
    PARAM_WEIGHT,
    PARAM_EMBEDDING,
    PARAM_NORM,
    PARAM_BIAS,
    PARAM_LORA_A,
    PARAM_LORA_B,
    PARAM_MAGNITUDE
};

struct storage {
    enum param_kind kind;
    int64_t rows, cols;
    bool trainable, decayed;
    int64_t unit;       /* what it is summed, gathered and owned with: a layer, or UNIT_* */
    int64_t flat_first; /* elements from the start of the flat buffers; -1 when not trained */
    int64_t held_first; /* among vectors, where those alone are on the device (params_away) */
    /* Of its elements, the last `shared` lie on `sharers` neighbours along the tensor axis alike:
     * what each computes of their gradients is a part of a sum (replicated.h). 0 and 1: none. */
    int64_t shared, sharers;
    /* LoRA in the tails of its layer (op_linear_tail.c): a weight has room for `tail` more rows and
     * columns, in `augmented`; its adapters are blocks of that matrix. */
    int64_t tail;
    struct tensor *augmented;
    int64_t inside, inside_row, inside_col; /* storage of the weight, or -1; where in it */
    float scale;                            /* value = scale * master */
    struct quantised quantised; /* what value is made of for a product, and has no bytes between */
    struct tensor *value;       /* what the forward pass reads */
    struct tensor *master; /* what is trained, or a bias in full precision; may be value itself */
};

/* The longest name: "base_model.model." and an adapter's end around a module name. */
enum { PARAM_NAME_MAX = 192 };

struct param {
    char name[PARAM_NAME_MAX]; /* as in the file it comes from or goes to */
    int64_t storage, first_row, rows;
    int64_t rank; /* 1: vector (norm, bias, magnitude), 2: matrix */
    /* The tensor in files, and where in it this block begins: a rank may have only a part of it. A
     * vector's elements are its rows, and it has one column. */
    int64_t whole_rows, whole_cols, from_row, from_col;
    int64_t sharers; /* neighbours along the tensor axis that have the same block; the first of them
                        speaks for it */
};

/* Whether a layer's gradients are summed while backward computes the layers before it; auto: where
 * there is much to sum (shard.h). */
enum overlap { OVERLAP_AUTO, OVERLAP_ALWAYS, OVERLAP_NEVER };

/* How a run wants its model. */
struct model_options {
    bool full; /* train every weight; otherwise only adapters, if any */
    bool lora;
    int64_t r;
    double lora_alpha, lora_dropout;
    char *const *target_modules; /* module names, or "all-linear"; borrowed during model_build */
    int64_t target_count;
    bool use_rslora, use_dora;
    bool decay_norms_and_biases;
    enum quant quant;         /* adapters only: how the matrices of layers are kept (quantised.h) */
    enum dtype weight_dtype;  /* of matrices. Norms and magnitudes are always f32, biases and
                                adapters of the activations' dtype */
    bool stochastic_rounding; /* full, CUDA: no f32 masters of what is narrower */
    int64_t length_max;       /* longest sequence of the run */
    struct mesh *mesh;        /* borrowed; NULL: this rank is alone */
    int64_t first_layer, end_layer; /* of this pipeline stage, the end excluded; both 0: all. The
                                       first stage has the embedding too, the last one final norm
                                       and head; layers keep their numbers */
    enum dtype reduce_dtype;        /* of gradients on their way to a sum: f32 or bf16 */
    bool keeps_gathered;   /* zero_stage 3: a layer's weights stay from forward to backward */
    enum overlap overlap;  /* of sums with backward, for zero_stage 0 and 1 */
    bool param_offloading; /* weights wait in host memory (shard_weights.h); what is trained too */
    int64_t zero_stage;    /* from 1 on what is updated is divided among the ranks, from 2 on
                                 gradients (shard.h), with 3 weights (shard_weights.h) */
};

struct layer {
    struct norm norm_attention, norm_attention_after, norm_mlp,
        norm_mlp_after; /* *_after may have no weight: there is none */
    struct linear qkv, o, gate_up, down;
    struct attention_options attention;
};

/* What is not in a layer's unit. Vectors: norms, biases and magnitudes of all layers; and all that
 * is trained, where nothing is done layer by layer. */
enum { UNIT_EMBEDDING = -1, UNIT_HEAD = -2, UNIT_VECTORS = -3, UNITS_BESIDE = 3 };
/* A contiguous part of the flat buffers that ranks sum, own and gather together. */
struct unit {
    int64_t first, count;  /* of the flat buffers; padded so that all ranks own as much */
    int64_t used;          /* what lies behind it is padding */
    struct comm_piece own; /* of the unit: what this rank updates of it */
    int64_t own_first;     /* where that begins in the own buffers (pieces.h) */
};

/* Where in `storages` those of a unit are, with others between them. */
struct storage_span {
    size_t first, end;
};

/* A run of elements that one call of the optimizer updates. */
struct flat_part {
    int64_t first;  /* among all that are trained */
    int64_t held;   /* in flat_narrow and flat, one behind the other */
    int64_t copied; /* in copies */
    int64_t summed; /* in gradients */
    int64_t own;    /* in the states of the optimizer */
    int64_t count;
    bool decayed, narrow; /* narrow: lies in flat_narrow */
    bool away;            /* or it waits in host memory, at `own` (params_away) */
};

/* With param_offloading in full fine-tuning: masters, and what forward reads of them, in
 * page-locked host memory, in the order of the own buffers (pieces.h). Vectors have room there, and
 * are not there. */
struct params_away {
    int64_t count;          /* elements; 0: everything that is trained is on the device */
    char *masters, *copies; /* copies: NULL where forward reads masters */
    enum dtype masters_dtype, copies_dtype;
};

struct model {
    struct model_config config;
    struct model_options options; /* target_modules is cleared: see `targets` */
    struct division division;     /* of each layer, this rank's */
    struct comm_group *group;     /* who has the others, or NULL (division_group) */
    struct tensor_space *space;
    struct storage *storages;
    size_t storage_count, storage_capacity;
    struct param *params; /* of the base model, in file order */
    size_t param_count, param_capacity;
    struct param *adapter_params; /* names as PEFT writes them */
    size_t adapter_param_count, adapter_param_capacity;
    /* The parameters that are trained as files know them, where this rank has only blocks or layers
     * of them; else NULL: the lists above are complete. */
    struct param *whole;
    size_t whole_count;
    struct layer *layers;
    struct tensor *embedding, *head; /* head is the embedding when tied */
    struct norm final_norm;
    struct tensor *inv_freq[2]; /* global, local */
    float rope_scale[2];
    /* All that is trained are flat_count elements: every storage begins at a whole FLAT_PITCH, the
     * gaps are zero. Here are held_count of them: all, or where masters are divided the own pieces,
     * and behind them all vectors. NULL when nothing is trained. */
    struct tensor *flat;        /* [1, held_count - flat_from] f32: what lies behind the narrow */
    struct tensor *flat_narrow; /* [1, narrow_count] with stochastic rounding, else NULL */
    struct tensor *gradients;   /* [1, flat_count], or where they are divided [1, own_count] f32 */
    struct tensor *copies; /* of what forward reads, or NULL: it reads `flat`. [1, flat_count], or
                              where it is gathered [1, held_count], or of vectors alone */
    struct storage_span *spans; /* [layers + UNITS_BESIDE] */
    struct unit *units;         /* [layers + UNITS_BESIDE]; NULL: no other rank trains other rows */
    struct shards *shards;      /* how gradients are summed; NULL likewise (shard.h) */
    struct replicated *replicated;       /* NULL: nobody shares layers (replicated.h) */
    struct weight_shards *weight_shards; /* NULL: weights are whole (shard_weights.h) */
    struct params_away away;
    bool forgets; /* the next micro-batch begins the gradients anew: see model_begin_gradients */
    /* How the adapters in tails are made from their masters: struct convert_item, device memory. */
    struct tensor *tail_items;
    int64_t tail_count, tail_largest, tail_elements;
    struct flat_part *parts; /* all that this rank updates, in order */
    size_t part_count, part_capacity;
    int64_t flat_count, held_count, narrow_count;
    int64_t flat_from; /* of the held elements: the first in `flat`. It is narrow_count, or behind
                          all that is away */
    int64_t own_count; /* elements that this rank updates, gaps included */
    int64_t trainable_count;     /* elements that are trained here */
    int64_t trainable_elsewhere; /* and only by other ranks that hold this copy of the model */
    int64_t parameter_count;     /* elements of the base model, all stages */
};
enum { FLAT_PITCH = 64 };

/* Allocates everything, contents undefined. STATUS_INVALID for target modules that match nothing
 * (names what there is). Release with model_release, also after an error. */
enum status model_build(struct model *m, const struct model_config *config,
                        const struct model_options *options, struct tensor_space *space,
                        struct err *e);
void model_release(struct model *m);
/* Whether this pipeline stage is the first, the last: a model that is whole is both. */
bool model_begins(const struct model *m);
bool model_ends(const struct model *m);

/* All tensors that are trained, whole, in the order in which files have them, whichever rank holds
 * what of them. Points into the model. */
const struct param *model_whole_params(const struct model *m, size_t *count);
/* Columns of the block that a parameter names: of a vector one. */
int64_t model_param_cols(const struct model *m, const struct param *p);
/* The matrix [rows, cols] of a parameter inside its storage: a new view of the master when
 * `master`, else of what forward reads. Caller releases. */
struct tensor *model_param_view(const struct model *m, const struct param *p, bool master);
/* The same rows of the gradient buffer, or NULL if it is not trained. Caller releases. */
struct tensor *model_param_gradient(const struct model *m, const struct param *p);

/* What the gradients hold is over: whoever writes one first overwrites it, which spares a pass that
 * fills them with zeros, and the reading of those. After backward, model_end_gradients fills those
 * that nobody wrote. */
void model_begin_gradients(struct model *m);
enum status model_end_gradients(struct model *m, struct err *e);

/* After masters were filled: makes everything that forward reads of them. */
enum status model_refresh(struct model *m, struct err *e);
/* After the optimizer wrote masters and copies: makes what it cannot write, the adapters in tails.
 */
enum status model_refresh_tails(struct model *m, struct err *e);

#endif
