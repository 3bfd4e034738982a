/* spec.c - the table of all run-spec keys, and reading and writing by it.
 *
 * The table is the only place that knows a key: its type, its place in struct spec, its default,
 * its bounds and its sentence. Everything else walks the table, so that a new key cannot be
 * readable and not writable, or bounded in one place and free in another. A value goes through the
 * same function whether it is a default or the user's. */
#include "engine/spec.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

enum { SPEC_FILE_MAX = 16 << 20, SPEC_STRINGS_MAX = 4096, SPEC_STRING_MAX = 1 << 16 };

/* Whole numbers travel as JSON doubles: beyond this they would not come back the same. */
#define WHOLE_MAX 0x1p53
#define STEPS_MAX 1e9
#define ROWS_MAX 1e12

#define AT(member) (uint32_t) offsetof(struct spec, member)
#define KEY_BOOL(path_, member, preset_, help_)                                                    \
    {                                                                                              \
        .path = (path_), .type = SPEC_BOOL, .offset = AT(member), .preset = (preset_),             \
        .help = (help_)                                                                            \
    }
#define KEY_INT(path_, member, preset_, min_, max_, help_)                                         \
    {                                                                                              \
        .path = (path_), .type = SPEC_INT, .offset = AT(member), .preset = (preset_),              \
        .min = (min_), .max = (max_), .help = (help_)                                              \
    }
#define KEY_FLOAT(path_, member, preset_, min_, max_, help_)                                       \
    {                                                                                              \
        .path = (path_), .type = SPEC_FLOAT, .offset = AT(member), .preset = (preset_),            \
        .min = (min_), .max = (max_), .help = (help_)                                              \
    }
#define KEY_BYTES(path_, member, help_)                                                            \
    {                                                                                              \
        .path = (path_), .type = SPEC_BYTES, .offset = AT(member), .preset = "0", .min = 0,        \
        .max = WHOLE_MAX, .help = (help_)                                                          \
    }
#define KEY_TEXT(path_, type_, member, preset_, choices_, help_)                                   \
    {                                                                                              \
        .path = (path_), .type = (type_), .offset = AT(member), .preset = (preset_),               \
        .choices = (choices_), .help = (help_)                                                     \
    }

static const struct spec_key KEYS[] = {
    KEY_TEXT("model", SPEC_STRING, model, "null", NULL,
             "Folder of the model to train, in Hugging Face layout."),
    KEY_TEXT(
        "device", SPEC_STRING, device, "\"cpu\"", NULL,
        "Where to compute: cpu, cuda:N, or cuda, which gives each of parallel.ranks the GPU of "
        "its number."),
    KEY_TEXT("finetuning_type", SPEC_CHOICE, finetuning_type, "\"lora\"", "lora|full",
             "Train small low-rank adapters (lora) or every weight (full)."),
    KEY_TEXT("adapter_name_or_path", SPEC_STRING, adapter_name_or_path, "null", NULL,
             "Folder of a PEFT adapter to continue from, instead of a fresh one."),
    KEY_INT("r", r, "16", 1, 4096, "Rank of the LoRA matrices."),
    KEY_FLOAT("lora_alpha", lora_alpha, "32", 1e-6, 1e6,
              "LoRA scale: the adapter's output is multiplied by lora_alpha / r."),
    KEY_FLOAT("lora_dropout", lora_dropout, "0", 0, 0.99,
              "Share of the LoRA input that is dropped in training."),
    KEY_TEXT("target_modules", SPEC_STRINGS, target_modules, "[\"all-linear\"]", NULL,
             "Names of the linear layers that get an adapter, or all-linear."),
    KEY_BOOL("use_rslora", use_rslora, "false", "Scale by lora_alpha / sqrt(r) instead."),
    KEY_BOOL("use_dora", use_dora, "false",
             "Train the magnitude of each weight row beside its direction (DoRA)."),
    KEY_BOOL("load_in_4bit", load_in_4bit, "false",
             "Keep the frozen matrices of the layers in 4 bits (QLoRA). This changes what is "
             "learned a little."),
    KEY_TEXT("bnb_4bit_quant_type", SPEC_CHOICE, bnb_4bit_quant_type, "\"nf4\"", "nf4",
             "Which 4 bits: NormalFloat with a scale for each 64 elements."),
    KEY_BOOL("bnb_4bit_use_double_quant", bnb_4bit_use_double_quant, "false",
             "Keep those scales in 8 bits: 4.13 bits a parameter instead of 4.5."),
    KEY_TEXT("base_weight_dtype", SPEC_CHOICE, base_weight_dtype, "\"auto\"", "auto|float8_e4m3",
             "How the frozen matrices of the layers are kept: as bf16 or fp16 say (auto), or in 8 "
             "bits with a scale for each row."),
    KEY_TEXT("data.train_files", SPEC_STRINGS, data.train_files, "[]", NULL,
             "Files of training rows, one JSON object a line."),
    KEY_TEXT("data.eval_files", SPEC_STRINGS, data.eval_files, "[]", NULL,
             "Files of held-out rows that are only measured."),
    KEY_TEXT("data.format", SPEC_CHOICE, data.format, "\"auto\"",
             "auto|messages|prompt_completion|text|alpaca|sharegpt|preference",
             "Shape of the rows."),
    KEY_TEXT("data.mask", SPEC_CHOICE, data.mask, "\"assistant\"", "assistant|last|all",
             "Which tokens are learned: every answer, the last answer, or everything."),
    KEY_INT("data.max_length", data.max_length, "1024", 2, 1 << 20,
            "Longest sample in tokens; longer rows are cut and counted."),
    KEY_BOOL("data.packing", data.packing, "true",
             "Lay several short samples into one row; they do not see each other."),
    KEY_TEXT("data.packing_strategy", SPEC_CHOICE, data.packing_strategy, "\"samples\"",
             "samples|rows",
             "What an update counts its batch in: samples, or rows of max_length tokens that are "
             "packed full over the whole epoch (fewer and larger updates)."),
    KEY_BOOL("data.shuffle", data.shuffle, "true", "New order of the samples in every epoch."),
    KEY_BOOL("data.parse_special", data.parse_special, "false",
             "Read special-token spellings inside the rows' own words as those tokens."),
    KEY_BOOL("data.split_turns", data.split_turns, "false",
             "Train each answer as a row of its own, with all that is before it."),
    KEY_BOOL("data.merge_turns", data.merge_turns, "false",
             "Make one message of neighbours of the same role, with a blank line between them."),
    KEY_BOOL("data.fold_system", data.fold_system, "false",
             "Put a system message that the chat template leaves out or refuses in front of the "
             "first question, with a blank line between them."),
    KEY_BOOL("data.fix_mistral_regex", data.fix_mistral_regex, "false",
             "Cut words by Mistral's own pattern where a folder of Mistral ships Llama 3's in "
             "tokenizer.json; refused for any other tokenizer."),
    KEY_TEXT("data.invalid_utf8", SPEC_CHOICE, data.invalid_utf8, "\"error\"", "error|replace",
             "Bytes and escapes that are no text: refuse the row, or put U+FFFD in their place."),
    KEY_FLOAT("data.max_rows_untrained", data.max_rows_untrained, "0.1", 0, ROWS_MAX,
              "Rows with nothing to train that are left out before the run is refused: below 1 a "
              "share of the rows, else a number."),
    KEY_FLOAT("data.max_rows_answer_cut", data.max_rows_answer_cut, "0.1", 0, ROWS_MAX,
              "Rows whose answer lies beyond max_length that are left out before the run is "
              "refused: below 1 a share of the rows, else a number."),
    KEY_FLOAT("data.max_rows_dropped_message", data.max_rows_dropped_message, "0", 0, ROWS_MAX,
              "Rows of which the chat template leaves out a message that are trained all the same "
              "before the run is refused: below 1 a share of the rows, else a number."),
    {.path = "per_device_train_batch_size",
     .type = SPEC_INT,
     .offset = AT(per_device_train_batch_size),
     .preset = "4",
     .min = 1,
     .max = 65536,
     .choices = "auto",
     .help = "Rows that one device trains at a time; auto: as many as fit. A step then has "
             "gradient_accumulation_steps rows on each device, or, where that is 1, the rows that "
             "fit, at most 64."},
    KEY_INT("per_device_eval_batch_size", per_device_eval_batch_size, "4", 1, 65536,
            "Rows that one device evaluates at a time."),
    KEY_INT("gradient_accumulation_steps", gradient_accumulation_steps, "1", 1, 65536,
            "Micro-batches whose gradients are summed for one update."),
    KEY_INT(
        "micro_batch_tokens", micro_batch_tokens, "0", 0, 1 << 30,
        "With packed samples: most tokens that a device trains at a time, or one longer sample; "
        "0 means per_device_train_batch_size times data.max_length. The batch stays the same."),
    KEY_FLOAT("learning_rate", learning_rate, "0.0002", 0, 10, "Highest learning rate."),
    KEY_TEXT("lr_scheduler_type", SPEC_CHOICE, lr_scheduler_type, "\"linear\"",
             "linear|cosine|constant", "How the learning rate falls after the warm-up."),
    KEY_INT("warmup_steps", warmup_steps, "0", 0, STEPS_MAX,
            "Updates in which the learning rate rises from zero."),
    KEY_FLOAT("weight_decay", weight_decay, "0", 0, 10, "Weight decay of AdamW."),
    KEY_BOOL("decay_norms_and_biases", decay_norms_and_biases, "false",
             "Let weight decay also act on norms and biases."),
    KEY_FLOAT("adam_beta1", adam_beta1, "0.9", 0, 0.9999999, "Memory of the mean in AdamW."),
    KEY_FLOAT("adam_beta2", adam_beta2, "0.999", 0, 0.9999999, "Memory of the square in AdamW."),
    KEY_FLOAT("adam_epsilon", adam_epsilon, "1e-8", 1e-30, 1, "Guard against division by zero."),
    KEY_FLOAT("max_grad_norm", max_grad_norm, "1", 0, 1e9,
              "Longest gradient; longer ones are scaled down; 0 turns this off."),
    KEY_FLOAT("num_train_epochs", num_train_epochs, "3", 0, 1e6,
              "Passes over the training rows, where max_steps is 0."),
    KEY_INT("max_steps", max_steps, "0", 0, STEPS_MAX,
            "Number of updates; 0 means by num_train_epochs."),
    KEY_INT("seed", seed, "42", 0, 2147483647, "Start of all random numbers."),
    KEY_INT("created_at", created_at, "0", 0, WHOLE_MAX,
            "Unix time that chat templates take for now; 0: when the spec file was written."),
    KEY_BOOL("gradient_checkpointing", gradient_checkpointing, "false",
             "Compute activations again in the backward pass: less memory, more time."),
    KEY_INT("gradient_checkpointing_layers", gradient_checkpointing_layers, "0", 0, 1 << 20,
            "With gradient_checkpointing: only in the first so many layers; 0 means in all."),
    KEY_BOOL("activation_offloading", activation_offloading, "false",
             "With gradient_checkpointing: keep what each layer needs in host memory; slower, for "
             "long sequences (GPU)."),
    KEY_BOOL("optimizer_offloading", optimizer_offloading, "false",
             "Keep AdamW's two states (8 bytes a trained parameter) in host memory and update them "
             "slice by slice on the device: the same bits, slower steps."),
    KEY_BOOL("param_offloading", param_offloading, "false",
             "Keep weights in host memory; each layer visits the device when it is computed, and "
             "the next one is on its way meanwhile: the same bits, slower steps. With "
             "finetuning_type full what is trained waits there together with AdamW's states, as "
             "with optimizer_offloading; several ranks need parallel.zero_stage 3."),
    KEY_BOOL("bf16", bf16, "false",
             "Weights and matrix products in bfloat16; on a GPU activations too."),
    KEY_BOOL("fp16", fp16, "false",
             "Weights, activations and products in float16, with a loss scale that adapts itself "
             "(GPU)."),
    KEY_BOOL("tf32", tf32, "false",
             "Without bf16 and fp16: products of float32 with 10 bits of mantissa (GPU)."),
    KEY_BOOL("stochastic_rounding", stochastic_rounding, "false",
             "With bf16 and finetuning_type full: no float32 copies of the weights; updates are "
             "rounded at random instead (GPU)."),
    KEY_BOOL("full_determinism", full_determinism, "false",
             "Only algorithms that give the same bits every time; slower on a GPU."),
    KEY_BOOL("cuda_launch_blocking", cuda_launch_blocking, "false",
             "Wait after every operation of a GPU and name the one that fails; slow, for finding "
             "faults."),
    KEY_BOOL(
        "cuda_graphs", cuda_graphs, "true",
        "Launch a micro-batch of a shape seen before as one graph (GPU; not with lora_dropout, "
        "activation_offloading or cuda_launch_blocking; elsewhere it changes nothing)."),
    KEY_INT("eval_steps", eval_steps, "0", 0, STEPS_MAX,
            "Evaluate every so many updates; 0 means only at the end."),
    KEY_INT("save_steps", save_steps, "0", 0, STEPS_MAX,
            "Write a checkpoint every so many updates; 0 means only at the end."),
    KEY_INT("save_total_limit", save_total_limit, "2", 0, 1e6,
            "Checkpoints to keep, newest first; 0 keeps all."),
    KEY_INT("loss_chunk_rows", loss_chunk_rows, "1024", 1, 1 << 20,
            "Tokens whose logits exist at one time: smaller takes less memory."),
    KEY_TEXT("sample_prompts", SPEC_STRINGS, sample_prompts, "[]", NULL,
             "Prompts that the model answers at every evaluation."),
    KEY_INT("sample_max_tokens", sample_max_tokens, "64", 1, 65536,
            "Longest answer to a sample prompt in tokens."),
    {.path = "parallel.ranks",
     .type = SPEC_INT,
     .offset = AT(parallel.ranks),
     .preset = "1",
     .min = 1,
     .max = 4096,
     .choices = "auto",
     .help = "Processes that train together, each with a copy of the model and a part of every "
             "batch; a batch is per_device_train_batch_size x gradient_accumulation_steps x this "
             "(divided by the tensor and pipeline degrees, whose ranks share a row). auto: with "
             "device cuda every GPU of the machine, else 1."},
    KEY_TEXT("parallel.layout", SPEC_CHOICE, parallel.layout, "\"given\"", "given|auto",
             "auto: the plan chooses zero_stage, the degrees and offloading, so that the run fits "
             "and is fast; the batch stays ranks x per_device_train_batch_size x "
             "gradient_accumulation_steps. given: as the other keys say. \"parallel\": \"auto\" is "
             "short for ranks and layout auto."),
    KEY_INT("parallel.zero_stage", parallel.zero_stage, "0", 0, 3,
            "What the ranks divide among them instead of each holding all of it: nothing (0), "
            "AdamW's states (1), gradients too (2), weights too (3)."),
    KEY_INT("parallel.tensor_parallel_degree", parallel.tensor_parallel_degree, "1", 1, 4096,
            "Ranks that share every layer's matrices and attention heads: memory and work of a "
            "layer are divided by it, at the price of four exchanges a layer. Best within one "
            "machine."),
    KEY_INT("parallel.pipeline_parallel_degree", parallel.pipeline_parallel_degree, "1", 1, 4096,
            "Stages that the layers are divided into: micro-batches wander from stage to stage. "
            "Wants many micro-batches a step (gradient_accumulation_steps)."),
    KEY_TEXT("parallel.pipeline_parallel_schedule", SPEC_CHOICE,
             parallel.pipeline_parallel_schedule, "\"1f1b\"", "1f1b|gpipe",
             "Order of a pipeline's work: 1f1b keeps as many micro-batches in memory as there are "
             "stages, gpipe all of a step."),
    KEY_INT("parallel.data_parallel_shard_degree", parallel.data_parallel_shard_degree, "0", 0,
            4096,
            "With parallel.zero_stage: ranks that divide one copy among them; copies are then "
            "kept alike (hybrid sharding). 0: all ranks that train different rows."),
    KEY_BOOL("parallel.reshard_after_forward", parallel.reshard_after_forward, "true",
             "With parallel.zero_stage 3: let go of a layer's weights after forward and gather "
             "them again for backward. false keeps them: less traffic, more memory."),
    KEY_TEXT("parallel.reduce_dtype", SPEC_CHOICE, parallel.reduce_dtype, "\"float32\"",
             "float32|bfloat16",
             "In what gradients travel and are summed between GPUs; bfloat16 halves the traffic."),
    KEY_TEXT(
        "parallel.overlap_reduce", SPEC_CHOICE, parallel.overlap_reduce, "\"auto\"",
        "auto|always|never",
        "With parallel.zero_stage 0 and 1: sum a layer's gradients while backward computes the "
        "layers before it. auto: from 1 GiB of gradients on; below that one sum after "
        "backward takes less."),
    KEY_TEXT("parallel.launcher", SPEC_CHOICE, parallel.launcher, "\"local\"",
             "local|mpi|slurm|external",
             "What starts the ranks: the appliance on its own machine (local), mpirun on the hosts "
             "of parallel.hostfile (mpi), a job of Slurm (slurm), or somebody else (external), for "
             "whom the appliance waits. All machines must see the run directory."),
    KEY_TEXT("parallel.hostfile", SPEC_STRING, parallel.hostfile, "null", NULL,
             "With parallel.launcher mpi: mpirun's file of hosts. All of them must see the run "
             "directory under the same path."),
    KEY_INT("parallel.gpus_per_node", parallel.gpus_per_node, "8", 1, 4096,
            "Ranks of one machine, where there are more than one has: for estimates of time, and "
            "for layouts that keep the most talkative ranks together."),
    KEY_TEXT("parallel.network", SPEC_CHOICE, parallel.network, "\"auto\"",
             "auto|infiniband-400|infiniband-200|infiniband-100|ethernet-400|ethernet-200|"
             "ethernet-100|ethernet-25|ethernet-10",
             "What connects machines, in Gb/s for each GPU: for estimates of time. auto: what "
             "machines with such cards usually have."),
    KEY_FLOAT("parallel.silence_s", parallel.silence_s, "8", 0.5, 3600,
              "Seconds without a sign of life after which a rank counts as lost; the run then "
              "continues from its last checkpoint."),
    KEY_FLOAT("parallel.patience_s", parallel.patience_s, "600", 1, 1e6,
              "Seconds that ranks wait for one that lives but does not come."),
    {.path = "memory.cap",
     .type = SPEC_CAP,
     .offset = AT(memory.cap),
     .preset = "0",
     .min = 0,
     .max = WHOLE_MAX,
     .help = "Most memory that the run may take on a device: 24GiB, or a share of the device such "
             "as 90% or 0.9; 0 means all of it. Jobs share a device only when each has a cap."},
    KEY_TEXT("memory.on_oom", SPEC_CHOICE, memory.on_oom, "\"auto\"", "auto|ask|off",
             "When memory is short: change how a step is run, which leaves the loss curve alone "
             "(auto), stop and ask which change to make (ask), or fail (off)."),
    KEY_TEXT("memory.allow", SPEC_STRINGS, memory.allow, "[]", NULL,
             "Remedies that change what is learned and that may be proposed all the same: "
             "optimizer_8bit, nf4_base, lora, shorter."),
    KEY_BYTES("memory.growth", memory.growth,
              "Back memory in pieces of at least this size, such as 64MiB; 0 means no more than is "
              "needed."),
    KEY_BYTES("memory.split_limit", memory.split_limit,
              "Keep free blocks of at least this size whole for requests of at least this size, "
              "such as 128MiB; 0 means that every block may be split."),
    KEY_BYTES("memory.trim_threshold", memory.trim_threshold,
              "Between steps, give unused memory back to the device when more than this is "
              "reserved; for sharing a card; 0 means never."),
};
enum { KEY_COUNT = COUNT_OF(KEYS), NAME_MAX_BYTES = 64 };

const struct spec_key *spec_keys(int64_t *count) {
    *count = KEY_COUNT;
    return KEYS;
}

static void *place(struct spec *spec, const struct spec_key *key) {
    return (char *)spec + key->offset;
}

static void strings_release(struct spec_strings *list) {
    for (int64_t i = 0; i < list->count; i++) {
        mem_free(list->items[i]);
    }
    mem_free(list->items);
    *list = (struct spec_strings){0};
}

static void replace_text(char **at, const char *text) {
    mem_free(*at);
    *at = mem_strdup(text);
}

static enum status wrong_type(const struct spec_key *key, const char *expected, struct err *e) {
    return err_set_param(e, STATUS_INVALID, key->path, "%s: expected %s", key->path, expected);
}

static bool choice_contains(const char *choices, const char *value) {
    const size_t len = strlen(value);
    if (strchr(value, '|')) return false; /* two choices are not one */
    for (const char *at = choices; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL) {
        if (len && strncmp(at, value, len) == 0 && (at[len] == '|' || !at[len])) return true;
    }
    return false;
}

static enum status number_in_bounds(const struct spec_key *key, double value, struct err *e) {
    if (value >= key->min && value <= key->max) return STATUS_OK;
    return err_set_param(e, STATUS_INVALID, key->path,
                         "%s is %.17g, it must be from %.15g to %.15g", key->path, value, key->min,
                         key->max);
}

static enum status set_number(const struct spec_key *key, void *at, const cJSON *value,
                              struct err *e) {
    const bool whole = key->type == SPEC_INT;
    const char *const expected = !whole         ? "a number"
                                 : key->choices ? "a whole number or \"auto\""
                                                : "a whole number";
    if (whole && key->choices && cJSON_IsString(value) &&
        strcmp(value->valuestring, key->choices) == 0) {
        *(int64_t *)at = SPEC_AUTO;
        return STATUS_OK;
    }
    if (!cJSON_IsNumber(value) || !isfinite(value->valuedouble)) {
        return wrong_type(key, expected, e);
    }
    const double number = value->valuedouble;
    if (whole && number != floor(number)) return wrong_type(key, expected, e);
    TRY(number_in_bounds(key, number, e));
    if (whole) {
        *(int64_t *)at = (int64_t)number;
    } else {
        *(double *)at = number;
    }
    return STATUS_OK;
}

static enum status set_bytes(const struct spec_key *key, int64_t *at, const cJSON *value,
                             struct err *e) {
    int64_t bytes = 0;
    if (cJSON_IsString(value)) {
        TRY(str_to_bytes(value->valuestring, key->path, &bytes, e));
        TRY(number_in_bounds(key, (double)bytes, e));
    } else {
        const bool whole = cJSON_IsNumber(value) && value->valuedouble == floor(value->valuedouble);
        if (!whole) return wrong_type(key, "a size such as \"24GiB\" or a number of bytes", e);
        TRY(number_in_bounds(key, value->valuedouble, e));
        bytes = (int64_t)value->valuedouble;
    }
    *at = bytes;
    return STATUS_OK;
}

static enum status set_text(const struct spec_key *key, char **at, const cJSON *value,
                            struct err *e) {
    if (!cJSON_IsString(value)) return wrong_type(key, "a string", e);
    const char *const text = value->valuestring;
    if (strlen(text) > SPEC_STRING_MAX) return wrong_type(key, "a shorter string", e);
    if (key->choices && !choice_contains(key->choices, text)) {
        return err_set_param(e, STATUS_INVALID, key->path, "%s is \"%.80s\", it must be one of %s",
                             key->path, text, key->choices);
    }
    replace_text(at, text);
    return STATUS_OK;
}

static enum status set_strings(const struct spec_key *key, struct spec_strings *at,
                               const cJSON *value, struct err *e) {
    if (!cJSON_IsArray(value)) return wrong_type(key, "a list of strings", e);
    int64_t count = 0;
    for (const cJSON *item = value->child; item; item = item->next, count++) {
        const bool fine = cJSON_IsString(item) && item->valuestring[0] &&
                          strlen(item->valuestring) <= SPEC_STRING_MAX && count < SPEC_STRINGS_MAX;
        if (!fine) {
            return err_set_param(e, STATUS_INVALID, key->path,
                                 "%s: entry %lld must be a string that is not empty, of at most %d "
                                 "bytes, in a list of at most %d",
                                 key->path, (long long)count + 1, SPEC_STRING_MAX,
                                 SPEC_STRINGS_MAX);
        }
    }
    strings_release(at);
    at->items = mem_new((size_t)count, sizeof *at->items);
    for (const cJSON *item = value->child; item; item = item->next) {
        at->items[at->count++] = mem_strdup(item->valuestring);
    }
    return STATUS_OK;
}

/* null asks for the default, which is there already. */
static enum status set_value(struct spec *spec, const struct spec_key *key, const cJSON *value,
                             struct err *e) {
    void *const at = place(spec, key);
    if (cJSON_IsNull(value)) return STATUS_OK;
    switch (key->type) {
    case SPEC_BOOL:
        if (!cJSON_IsBool(value)) return wrong_type(key, "true or false", e);
        *(bool *)at = cJSON_IsTrue(value);
        return STATUS_OK;
    case SPEC_INT:
    case SPEC_FLOAT: return set_number(key, at, value, e);
    case SPEC_STRING:
    case SPEC_CHOICE: return set_text(key, at, value, e);
    case SPEC_STRINGS: return set_strings(key, at, value, e);
    case SPEC_BYTES: return set_bytes(key, at, value, e);
    case SPEC_CAP: return spec_cap_parse(at, value, key->path, e);
    }
    return err_set(e, STATUS_INTERNAL, "the spec table has an unknown type for %s", key->path);
}

static enum status set_presets(struct spec *spec, struct err *e) {
    for (size_t i = 0; i < KEY_COUNT; i++) {
        cJSON *value = NULL;
        TRY(json_parse(KEYS[i].preset, strlen(KEYS[i].preset), KEYS[i].path, &value, e));
        const enum status status = set_value(spec, &KEYS[i], value, e);
        cJSON_Delete(value);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

/* The part after the dot, for people who put a key on the wrong level. */
static const char *leaf(const char *path) {
    const char *const dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

static enum status unknown_key(const char *path, struct err *e) {
    const struct spec_key *best = &KEYS[0];
    int best_distance = NAME_MAX_BYTES;
    for (size_t i = 0; i < KEY_COUNT; i++) {
        const int whole = str_distance(path, KEYS[i].path);
        const int part = str_distance(leaf(path), leaf(KEYS[i].path));
        const int distance = whole < part ? whole : part;
        if (distance < best_distance) {
            best_distance = distance;
            best = &KEYS[i];
        }
    }
    const char *const dot = strchr(best->path, '.');
    if (best_distance > 0 || !dot) {
        return err_set_param(e, STATUS_INVALID, path,
                             "unknown key \"%.80s\"; the nearest known one is \"%s\"", path,
                             best->path);
    }
    return err_set_param(e, STATUS_INVALID, path,
                         "unknown key \"%.80s\"; write it as {\"%.*s\": {\"%s\": ...}}", path,
                         (int)(dot - best->path), best->path, dot + 1);
}

static bool is_group(const char *name) {
    const size_t len = strlen(name);
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (strncmp(KEYS[i].path, name, len) == 0 && KEYS[i].path[len] == '.') return true;
    }
    return false;
}

static enum status set_member(struct spec *spec, bool seen[KEY_COUNT], const char *path,
                              const cJSON *value, struct err *e) {
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (strcmp(KEYS[i].path, path) != 0) continue;
        if (seen[i]) {
            return err_set_param(e, STATUS_INVALID, path, "%s is given twice", path);
        }
        seen[i] = true;
        return set_value(spec, &KEYS[i], value, e);
    }
    return unknown_key(path, e);
}

/* "parallel": "auto" */
static bool is_auto_group(const cJSON *group) {
    return strcmp(group->string, "parallel") == 0 && cJSON_IsString(group) &&
           strcmp(group->valuestring, "auto") == 0;
}

static enum status set_group(struct spec *spec, bool seen[KEY_COUNT], const cJSON *group,
                             struct err *e) {
    if (cJSON_IsNull(group)) return STATUS_OK;
    if (is_auto_group(group)) {
        TRY(set_member(spec, seen, "parallel.ranks", group, e));
        return set_member(spec, seen, "parallel.layout", group, e);
    }
    if (!cJSON_IsObject(group)) {
        return err_set_param(e, STATUS_INVALID, group->string, "%s: expected an object",
                             group->string);
    }
    for (const cJSON *item = group->child; item; item = item->next) {
        char *path = str_format("%s.%s", group->string, item->string);
        const enum status status = set_member(spec, seen, path, item, e);
        mem_free(path);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

/* A top-level name with a dot is not a path: it would be a second spelling of the nested key. */
static enum status set_object(struct spec *spec, const cJSON *object, struct err *e) {
    bool seen[KEY_COUNT] = {false};
    for (const cJSON *item = object->child; item; item = item->next) {
        const char *const name = item->string;
        if (is_group(name)) {
            TRY(set_group(spec, seen, item, e));
        } else if (strchr(name, '.')) {
            return unknown_key(name, e);
        } else {
            TRY(set_member(spec, seen, name, item, e));
        }
    }
    return STATUS_OK;
}

enum status spec_parse_question(struct spec *spec, const cJSON *object, struct err *e) {
    *spec = (struct spec){0};
    TRY(set_presets(spec, e));
    FAIL_IF(!cJSON_IsObject(object), STATUS_INVALID, "the run spec must be a JSON object");
    TRY(set_object(spec, object, e));
    return spec_check(spec, e);
}

enum status spec_parse(struct spec *spec, const cJSON *object, struct err *e) {
    TRY(spec_parse_question(spec, object, e));
    if (spec->data.train_files.count > 0) return STATUS_OK;
    return err_set_param(e, STATUS_INVALID, "data.train_files",
                         "data.train_files is missing: name at least one file of training rows");
}

enum status spec_load(struct spec *spec, const char *path, struct err *e) {
    *spec = (struct spec){0};
    cJSON *object = NULL;
    TRY(json_read_file(path, SPEC_FILE_MAX, &object, e));
    enum status status = spec_parse(spec, object, e);
    cJSON_Delete(object);
    if (status != STATUS_OK) return err_prefix(e, "%s", path);
    return spec->created_at ? STATUS_OK : file_modified(path, &spec->created_at, e);
}

int64_t spec_train_rows(const struct spec *spec) {
    const int64_t rows = spec->per_device_train_batch_size;
    return rows == SPEC_AUTO ? 1 : rows;
}

int64_t spec_data_world(const struct spec *spec) {
    return spec->parallel.ranks /
           (spec->parallel.tensor_parallel_degree * spec->parallel.pipeline_parallel_degree);
}

int64_t spec_step_rows(const struct spec *spec) {
    return spec_train_rows(spec) * spec->gradient_accumulation_steps;
}

void spec_release(struct spec *spec) {
    if (!spec) return;
    for (size_t i = 0; i < KEY_COUNT; i++) {
        void *const at = place(spec, &KEYS[i]);
        if (KEYS[i].type == SPEC_STRINGS) strings_release(at);
        if (KEYS[i].type == SPEC_STRING || KEYS[i].type == SPEC_CHOICE) replace_text(at, NULL);
    }
    *spec = (struct spec){0};
}
