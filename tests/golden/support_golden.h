/* support_golden.h - a golden family opened in the engine: model, batch, reference numbers.
 *
 * Every test of tests/golden goes through golden_open, so that what is proven is what a run does.
 */
#ifndef PLIMSOLL_TESTS_SUPPORT_GOLDEN_H
#define PLIMSOLL_TESTS_SUPPORT_GOLDEN_H

#include "engine/text/batch.h"
#include "engine/train/session.h"

/* Which part of a golden folder is replayed. `variant` is "full", or "lora", "rslora", "dora": the
 * names of the sections of golden.json and of the adapter folders. */
struct golden {
    char *folder;
    cJSON *json;
    const cJSON *section;
    struct spec spec;
    struct session_options options;
    struct model_config config;
    struct session session;
    struct batch batch;
};

/* Where the tests run: PLIMSOLL_TEST_DEVICE (cpu, cuda:N; default cpu) and PLIMSOLL_TEST_PRECISION
 * (fp32, tf32, bf16, fp16; default fp32). A word that is none of these fails the running test. */
struct golden_place {
    const char *device;
    enum precision precision;
    bool card;
};
struct golden_place golden_place(void);
/* Device names for golden_open: the place above, and the null device that plans for it. */
#define GOLDEN_HERE "here"
#define GOLDEN_HERE_PLANNED "null:here"

/* How far numbers may lie from the reference's, relative but for `logits` in fp32 (absolute). */
struct golden_bounds {
    double logits;    /* narrow precisions: relative L2 */
    double loss;      /* of the first step */
    double gradients; /* relative L2 of a tensor */
    double curve;     /* loss of every step */
    double norm;      /* gradient norm of every step */
    double layout;    /* loss of every step between two layouts of the same rows */
};
struct golden_bounds golden_bounds(void);

/* Opens family `name` on a device ("cpu", "null:cuda" and so on in fp32, or GOLDEN_HERE...); on a
 * device that computes, weights and start adapter are loaded. Fails the running test on any error.
 * `changes` is a JSON object of further spec keys, or NULL. */
void golden_open(struct golden *g, const char *name, const char *variant, const char *device,
                 const char *changes);
/* The same with adapters in the tails of their operands (op_linear_tail.c), whatever the device
 * likes. */
void golden_open_tails(struct golden *g, const char *name, const char *variant, const char *device,
                       const char *changes);
void golden_close(struct golden *g);

/* A file of the family's folder; the caller frees. */
char *golden_path(const struct golden *g, const char *name);
bool golden_has(const char *name, const char *variant);

/* |a - b| / |b| over all elements. */
double relative_l2(const float *a, const float *b, int64_t count);

#endif
