/* gpu_model.c - a model folder of a benchmarked shape with random weights: gpu_model FOLDER SHAPE
 *
 * Written as training reads it: config.json and one model.safetensors in bf16. The tokenizer is
 * another model's, which the caller copies: speed does not depend on it, as long as its ids are
 * below the vocabulary. The weights are made on the CPU device, so no card is needed. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/model/weights.h"
#include "tests/gpu/bench_shape.h"

static enum status write_config(const char *folder, const char *shape, struct err *e) {
    const char *const text = bench_config_text(shape);
    FAIL_IF(!text, STATUS_INVALID, "the shape %s is not known", shape);
    char *const path = file_join(folder, "config.json");
    const enum status status = file_write_atomic(path, text, strlen(text), e);
    mem_free(path);
    return status;
}

static enum status write_weights(const char *folder, const char *shape, struct err *e) {
    struct model_config *const config = mem_new(1, sizeof *config);
    struct session s = {0};
    /* No adapter, so what is stored is all there is. */
    const struct session_options options = {
        .device = {.precision = PRECISION_F32},
        .model = {.weight_dtype = DTYPE_BF16, .length_max = 4096}};
    const struct session_place place = {.device = "cpu"};
    char *const path = file_join(folder, "model.safetensors");
    enum status status = bench_config(config, shape, e);
    if (status == STATUS_OK) status = session_open(&s, &place, config, &options, e);
    if (status == STATUS_OK) status = bench_fill(&s.model, e);
    if (status == STATUS_OK)
        status = weights_save(&s.model, s.model.params, s.model.param_count, ST_BF16, path, e);
    session_close(&s);
    mem_free(path);
    mem_free(config);
    return status;
}

int main(int argc, char **argv) {
    struct err e = {0};
    if (argc != 3) {
        fputs("usage: gpu_model FOLDER SHAPE\n", stderr);
        return 2;
    }
    enum status status = file_make_folder(argv[1], &e);
    if (status == STATUS_OK) status = write_config(argv[1], argv[2], &e);
    if (status == STATUS_OK) status = write_weights(argv[1], argv[2], &e);
    if (status == STATUS_OK) return 0;
    fprintf(stderr, "gpu_model: %s\n", e.text);
    return 1;
}
