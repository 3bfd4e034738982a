/* bench_shape.h - the published models whose shapes the GPU benchmarks train, with random weights.
 *
 * Speed and memory depend on shapes alone, so nothing is downloaded; the peers are measured on the
 * same shapes. */
#ifndef PLIMSOLL_TESTS_GPU_BENCH_SHAPE_H
#define PLIMSOLL_TESTS_GPU_BENCH_SHAPE_H

#include "engine/model/config.h"
#include "engine/train/session.h"

/* The text of config.json, or NULL for a name that is not known: llama-8b, qwen2.5-0.5b,
 * qwen2.5-1.5b, smollm2-135m. */
const char *bench_config_text(const char *shape);
enum status bench_config(struct model_config *config, const char *shape, struct err *e);

/* Fills every parameter with random numbers as an initialised model has them: matrices normal with
 * deviation 0.02, norms one, biases zero; the adapter as PEFT would. */
enum status bench_fill(struct model *m, struct err *e);

#endif
