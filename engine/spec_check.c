/* spec_check.c - what no single key can tell: values that exclude or need each other.
 *
 * The bounds of single keys are in the table of spec.c. Every text names both keys, because the
 * user may have meant either. */
#include "engine/spec.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

static bool device_is_known(const char *device) {
    if (strcmp(device, "cpu") == 0 || strcmp(device, "cuda") == 0) return true;
    if (!str_starts_with(device, "cuda:")) return false;
    const char *const digits = device + strlen("cuda:");
    return digits[0] && strlen(digits) <= 3 && strspn(digits, "0123456789") == strlen(digits);
}

void spec_device_of(const struct spec *spec, int64_t local_rank, char name[SPEC_DEVICE_MAX]) {
    if (strcmp(spec->device, "cuda") == 0) {
        snprintf(name, SPEC_DEVICE_MAX, "cuda:%lld", (long long)local_rank);
    } else {
        snprintf(name, SPEC_DEVICE_MAX, "%s", spec->device);
    }
}

#define CHECK(condition, path, ...)                                                                \
    do {                                                                                           \
        if (!(condition)) return err_set_param(e, STATUS_INVALID, (path), __VA_ARGS__);            \
    } while (0)

/* The largest divisor of n that is at most k. */
static int64_t divisor_below(int64_t n, int64_t k) {
    while (k > 1 && n % k != 0) {
        k--;
    }
    return k;
}

static enum status check_mesh(const struct spec *s, struct err *e) {
    const int64_t tensor = s->parallel.tensor_parallel_degree,
                  pipeline = s->parallel.pipeline_parallel_degree, ranks = s->parallel.ranks,
                  shard = s->parallel.data_parallel_shard_degree;
    CHECK(
        ranks % tensor == 0, "parallel.tensor_parallel_degree",
        "parallel.tensor_parallel_degree %lld does not divide parallel.ranks %lld; the nearest is "
        "%lld",
        (long long)tensor, (long long)ranks, (long long)divisor_below(ranks, tensor));
    CHECK(ranks / tensor % pipeline == 0, "parallel.pipeline_parallel_degree",
          "parallel.pipeline_parallel_degree %lld does not divide the %lld ranks that "
          "parallel.tensor_parallel_degree leaves; the nearest is %lld",
          (long long)pipeline, (long long)(ranks / tensor),
          (long long)divisor_below(ranks / tensor, pipeline));
    CHECK(shard == 0 || spec_data_world(s) % shard == 0, "parallel.data_parallel_shard_degree",
          "parallel.data_parallel_shard_degree %lld does not divide the %lld ranks that train "
          "different rows; the nearest is %lld",
          (long long)shard, (long long)spec_data_world(s),
          (long long)divisor_below(spec_data_world(s), shard));
    CHECK(shard == 0 || s->parallel.zero_stage > 0, "parallel.data_parallel_shard_degree",
          "parallel.data_parallel_shard_degree is %lld and parallel.zero_stage is 0, which divides "
          "nothing: set parallel.zero_stage to 1, 2 or 3",
          (long long)shard);
    return STATUS_OK;
}

/* What is to be chosen is not said. */
static enum status check_auto(const struct spec *s, struct err *e) {
    const struct {
        const char *path;
        bool said;
    } chosen[] = {
        {"parallel.zero_stage", s->parallel.zero_stage != 0},
        {"parallel.tensor_parallel_degree", s->parallel.tensor_parallel_degree != 1},
        {"parallel.pipeline_parallel_degree", s->parallel.pipeline_parallel_degree != 1},
        {"parallel.data_parallel_shard_degree", s->parallel.data_parallel_shard_degree != 0},
        {"optimizer_offloading", s->optimizer_offloading},
        {"param_offloading", s->param_offloading},
    };
    for (size_t i = 0; i < COUNT_OF(chosen); i++) {
        CHECK(!chosen[i].said, chosen[i].path,
              "parallel.layout auto chooses %s: leave it out, or set parallel.layout to given",
              chosen[i].path);
    }
    return STATUS_OK;
}

static enum status check_launcher(const struct spec *s, struct err *e) {
    const bool mpi = strcmp(s->parallel.launcher, "mpi") == 0;
    CHECK(mpi || !s->parallel.hostfile, "parallel.hostfile",
          "parallel.hostfile is for parallel.launcher mpi, it is %s", s->parallel.launcher);
    CHECK(!mpi || s->parallel.hostfile, "parallel.hostfile",
          "parallel.launcher mpi needs parallel.hostfile, the path of a file with a host a line: "
          "node1 slots=8");
    CHECK(!mpi || s->parallel.hostfile[0] == '/', "parallel.hostfile",
          "parallel.hostfile must be a whole path that begins with /, it is %.200s",
          s->parallel.hostfile);
    return STATUS_OK;
}

/* What the keys promise and this version does not have yet. */
static enum status check_parallel(const struct spec *s, struct err *e) {
    if (strcmp(s->parallel.layout, "auto") == 0) TRY(check_auto(s, e));
    TRY(check_mesh(s, e));
    CHECK(s->parallel.pipeline_parallel_degree == 1 || s->parallel.zero_stage < 2,
          "parallel.zero_stage",
          "parallel.zero_stage %lld does not go with parallel.pipeline_parallel_degree %lld, where "
          "it "
          "would exchange a layer for every micro-batch; the nearest is 1",
          (long long)s->parallel.zero_stage, (long long)s->parallel.pipeline_parallel_degree);
    CHECK(s->parallel.pipeline_parallel_degree == 1 || !s->stochastic_rounding,
          "stochastic_rounding",
          "stochastic_rounding does not go with parallel.pipeline_parallel_degree %lld in this "
          "version: turn it off, or set the degree to 1",
          (long long)s->parallel.pipeline_parallel_degree);
    return check_launcher(s, e);
}

/* What is quantised is frozen. */
static enum status check_quantised(const struct spec *s, struct err *e) {
    const bool lora = strcmp(s->finetuning_type, "lora") == 0;
    const bool fp8 = strcmp(s->base_weight_dtype, "auto") != 0;
    CHECK(lora || !s->load_in_4bit, "load_in_4bit", "load_in_4bit needs finetuning_type lora");
    CHECK(lora || !fp8, "base_weight_dtype",
          "base_weight_dtype %s needs finetuning_type lora; for full fine-tuning it is auto",
          s->base_weight_dtype);
    CHECK(!fp8 || !s->load_in_4bit, "base_weight_dtype",
          "base_weight_dtype %s and load_in_4bit exclude each other", s->base_weight_dtype);
    CHECK(s->load_in_4bit || !s->bnb_4bit_use_double_quant, "bnb_4bit_use_double_quant",
          "bnb_4bit_use_double_quant needs load_in_4bit");
    return STATUS_OK;
}

/* Of what is trained only one copy waits in host memory. */
static enum status check_away(const struct spec *s, struct err *e) {
    const int64_t copies = spec_data_world(s), shard = s->parallel.data_parallel_shard_degree;
    const bool one = copies == 1 || (s->parallel.zero_stage == 3 && shard != 1);
    CHECK(!s->param_offloading || !s->stochastic_rounding, "param_offloading",
          "param_offloading with finetuning_type full keeps float32 masters in host memory, and "
          "stochastic_rounding is for runs without them: turn one of the two off");
    CHECK(
        !s->param_offloading || one, "param_offloading",
        "param_offloading with finetuning_type full on %lld ranks that train different rows needs "
        "parallel.zero_stage 3 that divides the weights among them; it is %lld%s",
        (long long)copies, (long long)s->parallel.zero_stage,
        shard == 1 ? " with parallel.data_parallel_shard_degree 1" : "");
    return STATUS_OK;
}

static enum status check_adapter(const struct spec *s, struct err *e) {
    TRY(check_quantised(s, e));
    CHECK(!s->param_offloading || s->parallel.reshard_after_forward, "param_offloading",
          "param_offloading and parallel.reshard_after_forward false contradict each other: layers "
          "either leave the device or stay on it");
    if (strcmp(s->finetuning_type, "full") == 0) {
        TRY(check_away(s, e));
        CHECK(!s->use_dora, "use_dora", "use_dora needs finetuning_type lora, it is full");
        CHECK(!s->adapter_name_or_path, "adapter_name_or_path",
              "adapter_name_or_path needs finetuning_type lora, it is full");
        return STATUS_OK;
    }
    const struct spec_strings *const targets = &s->target_modules;
    CHECK(targets->count > 0, "target_modules",
          "target_modules is empty: name at least one linear layer, or all-linear");
    for (int64_t i = 0; i < targets->count && targets->count > 1; i++) {
        CHECK(strcmp(targets->items[i], "all-linear") != 0, "target_modules",
              "target_modules: all-linear must stand alone");
    }
    return STATUS_OK;
}

static enum status check_precision(const struct spec *s, struct err *e) {
    const bool gpu = str_starts_with(s->device, "cuda");
    CHECK(s->gradient_checkpointing || !s->activation_offloading, "activation_offloading",
          "activation_offloading needs gradient_checkpointing");
    CHECK(!(s->fp16 && s->bf16), "fp16", "fp16 and bf16 are both true: choose one");
    CHECK(gpu || !s->fp16, "fp16", "fp16 needs a device cuda:N, it is %.80s", s->device);
    CHECK(gpu || !s->tf32, "tf32", "tf32 needs a device cuda:N, it is %.80s", s->device);
    if (!s->stochastic_rounding) return STATUS_OK;
    CHECK(gpu, "stochastic_rounding", "stochastic_rounding needs a device cuda:N, it is %.80s",
          s->device);
    CHECK(s->bf16 && strcmp(s->finetuning_type, "full") == 0, "stochastic_rounding",
          "stochastic_rounding needs bf16 and finetuning_type full");
    return STATUS_OK;
}

/* A setting that could never act is a mistake; the text names both keys. */
static enum status check_sizes(const struct spec *s, struct err *e) {
    const struct {
        const char *path;
        int64_t bytes;
    } inside[] = {{"memory.growth", s->memory.growth},
                  {"memory.split_limit", s->memory.split_limit},
                  {"memory.trim_threshold", s->memory.trim_threshold}};
    for (size_t i = 0; s->memory.cap.bytes && i < COUNT_OF(inside); i++) {
        CHECK(inside[i].bytes <= s->memory.cap.bytes, inside[i].path,
              "%s is %lld bytes, it must not be more than memory.cap, which is %lld",
              inside[i].path, (long long)inside[i].bytes, (long long)s->memory.cap.bytes);
    }
    return STATUS_OK;
}

static enum status check_memory(const struct spec *s, struct err *e) {
    static const char *const NAMES[] = {"optimizer_8bit", "nf4_base", "lora", "shorter"};
    CHECK(s->gradient_checkpointing || s->gradient_checkpointing_layers == 0,
          "gradient_checkpointing_layers",
          "gradient_checkpointing_layers needs gradient_checkpointing");
    for (int64_t i = 0; i < s->memory.allow.count; i++) {
        bool known = false;
        for (size_t k = 0; k < COUNT_OF(NAMES); k++) {
            known = known || strcmp(s->memory.allow.items[i], NAMES[k]) == 0;
        }
        CHECK(known, "memory.allow",
              "memory.allow: \"%.80s\" is none of optimizer_8bit, nf4_base, lora, shorter",
              s->memory.allow.items[i]);
    }
    return check_sizes(s, e);
}

enum status spec_check(const struct spec *s, struct err *e) {
    CHECK(s->model && s->model[0], "model", "model is missing: name the folder of the model");
    TRY(check_parallel(s, e));
    CHECK(device_is_known(s->device), "device",
          "device is \"%.80s\", it must be cpu, cuda or cuda:N", s->device);
    TRY(check_precision(s, e));
    CHECK(s->max_steps > 0 || s->num_train_epochs > 0, "num_train_epochs",
          "num_train_epochs and max_steps are both 0: one of them must say how long to train");
    CHECK(s->max_steps == 0 || s->warmup_steps < s->max_steps, "warmup_steps",
          "warmup_steps is %lld, it must be less than max_steps, which is %lld",
          (long long)s->warmup_steps, (long long)s->max_steps);
    CHECK(s->eval_steps == 0 || s->data.eval_files.count > 0, "eval_steps",
          "eval_steps is %lld, but data.eval_files names no file to evaluate on",
          (long long)s->eval_steps);
    CHECK(!s->data.split_turns || strcmp(s->data.mask, "assistant") == 0, "data.split_turns",
          "data.split_turns trains one answer a row: it needs data.mask assistant, it is %s",
          s->data.mask);
    TRY(check_memory(s, e));
    return check_adapter(s, e);
}
