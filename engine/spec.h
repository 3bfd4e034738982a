/* spec.h - the run spec: every key, its default, its bounds, its error. One of the three headers
 * the server knows.
 *
 * The keys carry the names people know from Hugging Face TrainingArguments and PEFT LoraConfig
 * wherever one exists. One table (spec_keys) drives reading, writing, checking, the documentation
 * and the form in the page. */
#ifndef PLIMSOLL_ENGINE_SPEC_H
#define PLIMSOLL_ENGINE_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"

enum spec_type {
    SPEC_BOOL,
    SPEC_INT,     /* int64_t */
    SPEC_FLOAT,   /* double */
    SPEC_STRING,  /* char *, NULL when absent */
    SPEC_CHOICE,  /* char *, one of `choices` */
    SPEC_STRINGS, /* struct spec_strings */
    SPEC_BYTES,   /* int64_t; "24GiB" or a number; 0 when absent */
    SPEC_CAP,     /* struct spec_cap; bytes, or a share of what is there */
};

/* A list of strings, owned by the spec. */
struct spec_strings {
    char **items;
    int64_t count;
};

/* An upper bound on memory: so many bytes, or a share of the device's. Both 0: no bound. */
struct spec_cap {
    int64_t bytes;
    double share; /* above 0 and at most 1, else 0 */
};
/* 24GiB, 900000000, "90%", 0.9, 0. Numbers above 0 up to 1 are shares. STATUS_INVALID names `path`.
 */
enum status spec_cap_parse(struct spec_cap *cap, const cJSON *value, const char *path,
                           struct err *e);
/* A number of bytes or "90%". */
cJSON *spec_cap_to_json(const struct spec_cap *cap);
/* Of a device with `total` bytes; 0 when there is no bound. */
int64_t spec_cap_bytes(const struct spec_cap *cap, int64_t total);

struct spec {
    char *model;                /* folder in Hugging Face layout */
    char *device;               /* cpu | cuda | cuda:N */
    char *finetuning_type;      /* lora | full */
    char *adapter_name_or_path; /* start from this PEFT adapter instead of a fresh one */
    int64_t r;
    double lora_alpha, lora_dropout;
    struct spec_strings target_modules; /* module names, or the one entry "all-linear" */
    bool use_rslora, use_dora;
    bool load_in_4bit, bnb_4bit_use_double_quant;
    char *bnb_4bit_quant_type; /* nf4 */
    char *base_weight_dtype;   /* auto | float8_e4m3 */
    struct {
        struct spec_strings train_files, eval_files;
        char *format; /* auto | messages | prompt_completion | text | alpaca | sharegpt |
                         preference */
        char *mask;   /* assistant | last | all */
        int64_t max_length;
        bool packing, shuffle;
        char *packing_strategy; /* samples | rows */
        bool parse_special, split_turns, merge_turns, fold_system, fix_mistral_regex;
        char *invalid_utf8; /* error | replace */
        /* below 1: a share of the rows; else a number of rows */
        double max_rows_untrained, max_rows_answer_cut, max_rows_dropped_message;
    } data;
    int64_t per_device_train_batch_size, per_device_eval_batch_size, gradient_accumulation_steps;
    double learning_rate;
    char *lr_scheduler_type; /* linear | cosine | constant */
    int64_t warmup_steps;
    double weight_decay;
    bool decay_norms_and_biases;
    double adam_beta1, adam_beta2, adam_epsilon, max_grad_norm;
    double num_train_epochs;
    int64_t max_steps; /* 0: by epochs */
    int64_t seed;
    int64_t created_at; /* unix seconds; 0 in a parsed object, the file's own age in a loaded one */
    bool gradient_checkpointing, activation_offloading, optimizer_offloading, param_offloading;
    int64_t micro_batch_tokens;            /* of packed samples; 0: as many as the rows hold */
    int64_t gradient_checkpointing_layers; /* the first so many; 0: all */
    bool bf16, fp16, tf32, stochastic_rounding, full_determinism, cuda_launch_blocking;
    bool cuda_graphs;
    int64_t eval_steps, save_steps, save_total_limit; /* 0: only at the end / keep all */
    int64_t loss_chunk_rows;
    struct spec_strings sample_prompts;
    int64_t sample_max_tokens;
    struct {
        int64_t ranks; /* SPEC_AUTO: every GPU that is here, or 1 on a CPU */
        char *layout;  /* given | auto: as the other keys say, or the fastest that fits */
        int64_t zero_stage;
        int64_t tensor_parallel_degree, pipeline_parallel_degree;
        int64_t data_parallel_shard_degree; /* 0: all that train different rows */
        char *pipeline_parallel_schedule;   /* 1f1b | gpipe */
        bool reshard_after_forward;
        char *reduce_dtype;   /* float32 | bfloat16 */
        char *overlap_reduce; /* auto | always | never */
        char *launcher;       /* local | mpi | slurm | external */
        char *hostfile;
        int64_t gpus_per_node; /* ranks of one machine, for estimates and layouts */
        char *network;         /* between machines: auto | infiniband-400 | ... */
        double silence_s, patience_s;
    } parallel;
    struct {
        struct spec_cap cap;
        char *on_oom; /* auto | ask | off */
        struct spec_strings allow;
        int64_t growth, split_limit, trim_threshold; /* struct arena_settings; 0: the default */
    } memory;
};

/* per_device_train_batch_size "auto", until it is known how much fits (engine/train/auto_batch.h):
 * then the rows of a step are gradient_accumulation_steps. */
enum { SPEC_AUTO = 0 };
/* Rows of a micro-batch as far as they are known, 1 for "auto"; and of a step on one device. */
int64_t spec_train_rows(const struct spec *spec);
int64_t spec_step_rows(const struct spec *spec);

/* Ranks that train different rows: all but those that share a row's work. */
int64_t spec_data_world(const struct spec *spec);

/* One key of the spec. `path` uses a dot for nested objects ("data.max_length"). */
struct spec_key {
    const char *path;
    enum spec_type type;
    uint32_t offset;    /* in struct spec */
    const char *preset; /* default as JSON text, e.g. "16", "\"cosine\"", "[]"; "null" for absent */
    double min, max;    /* for numbers, both inclusive */
    const char
        *choices;     /* "a|b|c" for SPEC_CHOICE; for SPEC_INT a word that stands for SPEC_AUTO */
    const char *help; /* one sentence, with unit */
};
const struct spec_key *spec_keys(int64_t *count);

/* Fills `spec` with the defaults and then with the object's values. Unknown keys, wrong types and
 * values out of bounds are STATUS_INVALID, name the key (err.param) and, for an unknown key, the
 * nearest known one. Checks that need more than one key (warmup_steps < max_steps, ...) are done
 * here too. Release with spec_release, also after an error. */
enum status spec_parse(struct spec *spec, const cJSON *object, struct err *e);
/* The checks of spec_parse_question that need more than one key. */
enum status spec_check(const struct spec *spec, struct err *e);
/* The same for a question about a run that is not to be started as it is: data.train_files may be
 * missing. */
enum status spec_parse_question(struct spec *spec, const cJSON *object, struct err *e);
/* Reads a JSON file. Relative paths in `model`, `adapter_name_or_path` and `data.*_files` are taken
 * from the process's working folder. */
enum status spec_load(struct spec *spec, const char *path, struct err *e);
/* The whole resolved spec, defaults included. Caller frees with cJSON_Delete. */
cJSON *spec_to_json(const struct spec *spec);
void spec_release(struct spec *spec);
/* Where a rank computes, as device_open takes it: "cuda" is the GPU of the rank's number on its
 * machine, "cuda:N" that one for all ranks. */
enum { SPEC_DEVICE_MAX = 24 };
void spec_device_of(const struct spec *spec, int64_t local_rank, char name[SPEC_DEVICE_MAX]);

/* The table as JSON, for GET /v1/spec and the page:
 * [{"path","type","default","min","max","choices","help"}]. */
cJSON *spec_keys_to_json(void);

#endif
