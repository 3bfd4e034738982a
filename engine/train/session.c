/* session.c - opening and filling what a run holds on its device.
 *
 * Nothing is read from disk before all memory is allocated: what does not fit fails at once. */
#include "engine/train/session.h"

#include <string.h>

#include "base/mem.h"
#include "base/start_trace.h"
#include "base/str.h"
#include "engine/model/adapter.h"
#include "engine/model/weights.h"

static void take_targets(struct session_options *o, char *const *items, int64_t count) {
    o->targets = mem_new((size_t)count, sizeof *o->targets);
    for (int64_t i = 0; i < count; i++) {
        o->targets[o->target_count++] = mem_strdup(items[i]);
    }
}

static enum status adopt_adapter(struct session_options *o, const char *folder, struct err *e) {
    struct adapter_config c = {0};
    const enum status status = adapter_config_load(&c, folder, e);
    if (status == STATUS_OK) {
        o->model.r = c.r;
        o->model.lora_alpha = c.lora_alpha;
        o->model.use_rslora = c.use_rslora;
        o->model.use_dora = c.use_dora;
        take_targets(o, c.target_modules, c.target_count);
    }
    adapter_config_release(&c);
    return status;
}

static enum precision precision_of(const struct spec *spec) {
    if (spec->bf16) return PRECISION_BF16;
    if (spec->fp16) return PRECISION_F16;
    return spec->tf32 ? PRECISION_TF32 : PRECISION_F32;
}

static enum dtype weight_dtype_of(enum precision precision) {
    if (precision == PRECISION_BF16) return DTYPE_BF16;
    return precision == PRECISION_F16 ? DTYPE_F16 : DTYPE_F32;
}

static enum dtype reduce_dtype_of(const struct spec *spec) {
    return strcmp(spec->parallel.reduce_dtype, "bfloat16") == 0 ? DTYPE_BF16 : DTYPE_F32;
}

static enum overlap overlap_of(const struct spec *spec) {
    if (strcmp(spec->parallel.overlap_reduce, "always") == 0) return OVERLAP_ALWAYS;
    return strcmp(spec->parallel.overlap_reduce, "never") == 0 ? OVERLAP_NEVER : OVERLAP_AUTO;
}

static enum quant quant_of(const struct spec *spec) {
    if (str_equal(spec->base_weight_dtype, "float8_e4m3")) return QUANT_FP8;
    if (!spec->load_in_4bit) return QUANT_NONE;
    return spec->bnb_4bit_use_double_quant ? QUANT_NF4_DOUBLE : QUANT_NF4;
}

struct mesh_shape session_shape(const struct spec *spec) {
    const int64_t tensor = spec->parallel.tensor_parallel_degree;
    const int64_t pipeline = spec->parallel.pipeline_parallel_degree;
    const int64_t data = spec->parallel.ranks / (tensor * pipeline);
    const int64_t asked = spec->parallel.data_parallel_shard_degree;
    const int64_t shard = asked > 0 ? asked : data;
    return (struct mesh_shape){.degree = {[AXIS_TENSOR] = tensor,
                                          [AXIS_SHARD] = shard,
                                          [AXIS_REPLICATE] = data / shard,
                                          [AXIS_PIPELINE] = pipeline}};
}

int64_t session_data_rank(const struct spec *spec, int64_t rank) {
    const struct mesh_shape shape = session_shape(spec);
    const struct mesh_place place = mesh_place_of(&shape, rank);
    return mesh_data_rank(&shape, &place);
}

enum status session_options_read(struct session_options *o, const struct spec *spec,
                                 struct err *e) {
    *o = (struct session_options){.device = {.precision = precision_of(spec),
                                             .deterministic = spec->full_determinism,
                                             .blocking = spec->cuda_launch_blocking}};
    o->model = (struct model_options){.full = str_equal(spec->finetuning_type, "full"),
                                      .r = spec->r,
                                      .lora_alpha = spec->lora_alpha,
                                      .lora_dropout = spec->lora_dropout,
                                      .use_rslora = spec->use_rslora,
                                      .use_dora = spec->use_dora,
                                      .decay_norms_and_biases = spec->decay_norms_and_biases,
                                      .quant = quant_of(spec),
                                      .weight_dtype = weight_dtype_of(o->device.precision),
                                      .stochastic_rounding = spec->stochastic_rounding,
                                      .reduce_dtype = reduce_dtype_of(spec),
                                      .keeps_gathered = !spec->parallel.reshard_after_forward,
                                      .overlap = overlap_of(spec),
                                      .length_max = spec->data.max_length};
    o->cuda_graphs = spec->cuda_graphs;
    o->shape = session_shape(spec);
    o->stages = stages_wishes_of(spec);
    o->arena = (struct arena_settings){.growth = spec->memory.growth,
                                       .split_limit = spec->memory.split_limit,
                                       .trim_threshold = spec->memory.trim_threshold};
    TRY(alloc_conf_read(&o->alloc_conf, e));
    struct arena_settings both = o->arena; /* contradictions are said before anything is opened */
    TRY(alloc_conf_apply(&o->alloc_conf, 0, &both, e));
    o->model.lora = !o->model.full;
    o->optimizer = (struct optimizer_options){.beta1 = spec->adam_beta1,
                                              .beta2 = spec->adam_beta2,
                                              .eps = spec->adam_epsilon,
                                              .weight_decay = spec->weight_decay,
                                              .max_grad_norm = spec->max_grad_norm,
                                              .seed = (uint64_t)spec->seed,
                                              .scales_loss = spec->fp16,
                                              .offloading = spec->optimizer_offloading};
    o->model.param_offloading = spec->param_offloading;
    if (o->model.lora && spec->adapter_name_or_path) {
        TRY(adopt_adapter(o, spec->adapter_name_or_path, e));
    } else if (o->model.lora) {
        take_targets(o, spec->target_modules.items, spec->target_modules.count);
    }
    o->model.target_modules = o->targets;
    o->model.target_count = o->target_count;
    return STATUS_OK;
}

void session_take_layout(struct session_options *o, const struct layout *layout) {
    o->optimizer.offloading = layout->optimizer_offloading;
    o->optimizer.zero_stage = layout->zero_stage;
    o->model.param_offloading = layout->param_offloading;
}

bool session_has_layout(const struct session_options *o, const struct layout *layout) {
    return o->optimizer.offloading == layout->optimizer_offloading &&
           o->optimizer.zero_stage == layout->zero_stage &&
           o->model.param_offloading == layout->param_offloading;
}

enum status session_options_for(struct session_options *o, const char *adapter,
                                enum precision precision, int64_t length_max, struct err *e) {
    *o = (struct session_options){.device = {.precision = precision},
                                  .model = {.length_max = length_max,
                                            .lora = adapter != NULL,
                                            .weight_dtype = weight_dtype_of(precision)}};
    if (adapter) TRY(adopt_adapter(o, adapter, e));
    o->model.target_modules = o->targets;
    o->model.target_count = o->target_count;
    return STATUS_OK;
}

void session_options_release(struct session_options *o) {
    if (!o) return;
    for (int64_t i = 0; i < o->target_count; i++) {
        mem_free(o->targets[i]);
    }
    mem_free(o->targets);
    *o = (struct session_options){0};
}

enum status session_capacity(struct device *device, const struct spec_cap *cap, int64_t sharers,
                             int64_t *capacity, struct err *e) {
    const int64_t bound = spec_cap_bytes(cap, device->total_bytes);
    *capacity = bound ? bound : device->total_bytes;
    if (!device->computes) return STATUS_OK;
    struct device_memory memory = {0};
    TRY(device_memory(device, &memory, e));
    const int64_t there = (memory.free - SESSION_MARGIN_BYTES) / sharers;
    FAIL_IF(there < device->page_bytes, STATUS_OOM,
            "%s has only %lld MiB free for %lld ranks: other programs hold its memory",
            device->name, (long long)(memory.free >> 20), (long long)sharers);
    if (*capacity > there) *capacity = there;
    return STATUS_OK;
}

int64_t session_sharers(const struct spec *spec) {
    return strcmp(spec->device, "cuda") == 0 ? 1 : spec->parallel.ranks;
}

/* Ranks whose memory is one and the same: those of a host, or of a GPU that is not theirs alone. */
static int64_t sharers_of(const struct session *s) {
    return s->comm_owned || s->comm->peers ? 1 : s->comm->local_world;
}

static enum status open_arena(struct session *s, const struct session_options *options,
                              int64_t capacity, struct err *e) {
    struct arena_settings settings = options->arena;
    TRY(alloc_conf_apply(&options->alloc_conf, capacity, &settings, e));
    TRY(arena_open(&s->arena, s->device, capacity, e));
    arena_configure(s->arena, &settings);
    arena_follow(s->arena, "loss"); /* the logits: what a large vocabulary costs */
    return STATUS_OK;
}

static enum status open_comm(struct session *s, struct comm *comm,
                             const struct session_options *options, struct err *e) {
    static const struct mesh_shape ALONE = {{1, 1, 1, 1}};
    const struct mesh_shape *const shape = options->shape.degree[0] ? &options->shape : &ALONE;
    s->comm = comm;
    s->comm_owned = !comm;
    TRY(comm ? comm_attach(comm, s->device, e)
             : comm_open_planned(&s->comm, options->rank, mesh_world(shape), e));
    return mesh_open(&s->mesh, s->comm, s->device, shape, e);
}

/* The layers of this rank. */
static enum status take_stage(const struct session *s, const struct model_config *config,
                              const struct session_options *options, struct model_options *model,
                              struct err *e) {
    const struct mesh_shape *const shape = &s->mesh.shape;
    const struct stages_place place = {
        .stage = s->mesh.place.at[AXIS_PIPELINE],
        .stages = shape->degree[AXIS_PIPELINE],
        .ranks = mesh_world(shape) / shape->degree[AXIS_TENSOR],
    };
    if (place.stages == 1) return STATUS_OK;
    return stages_range(config, &options->stages, &place, &model->first_layer, &model->end_layer,
                        e);
}

enum status session_open(struct session *s, const struct session_place *place,
                         const struct model_config *config, const struct session_options *options,
                         struct err *e) {
    *s = (struct session){0};
    int64_t capacity = 0;
    s->books = place->books;
    TRY(device_open(&s->device, place->device, &options->device, e));
    if (s->device->computes) start_trace("device open");
    TRY(open_comm(s, place->comm, options, e));
    if (place->lora_tails) s->device->lora_tails = true;
    TRY(session_capacity(s->device, &place->cap, sharers_of(s), &capacity, e));
    TRY(open_arena(s, options, capacity, e));
    arena_enter(s->arena, PHASE_LOAD);
    TRY(tensor_space_init(&s->space, s->device, s->arena, e));
    graphs_init(&s->graphs, s->device, s->arena, place->train && options->cuda_graphs);
    struct model_options model = options->model;
    model.mesh = &s->mesh;
    model.zero_stage = options->optimizer.zero_stage;
    TRY(take_stage(s, config, options, &model, e));
    TRY(model_build(&s->model, config, &model, &s->space, e));
    if (!place->train) return STATUS_OK;
    return optimizer_init(&s->optimizer, &s->model, &options->optimizer, e);
}

void session_close(struct session *s) {
    if (!s) return;
    graphs_release(&s->graphs);
    optimizer_release(&s->optimizer);
    model_release(&s->model);
    tensor_space_release(&s->space);
    arena_close(s->arena);
    mesh_close(&s->mesh);
    comm_detach(s->comm);
    device_close(s->device);
    if (s->comm_owned) comm_close(s->comm);
    *s = (struct session){0};
}

enum status session_load(struct session *s, const struct session_source *source,
                         struct weights_report *report, struct err *e) {
    struct st_set set = {0};
    enum status status = st_open_folder(&set, source->model, e);
    if (status == STATUS_OK) status = weights_load(&s->model, &set, report, e);
    st_close(&set);
    TRY(status);
    start_trace("base weights on their way");
    if (!s->model.options.lora) return STATUS_OK;
    if (source->adapter) return adapter_load(&s->model, source->adapter, e);
    return weights_init_adapter(&s->model, source->seed, e);
}

enum status session_load_nothing(struct session *s, const struct session_source *source,
                                 struct err *e) {
    ASSERT(!s->device->computes);
    TRY(weights_load_nothing(&s->model, e));
    if (!s->model.options.lora || source->adapter) return STATUS_OK;
    return weights_init_adapter(&s->model, source->seed, e);
}
