/* weights.h - parameters between files and device memory, through bounded host buffers.
 *
 * Nothing here needs more host memory than those, however large the model is. */
#ifndef PLIMSOLL_ENGINE_MODEL_WEIGHTS_H
#define PLIMSOLL_ENGINE_MODEL_WEIGHTS_H

#include "engine/io/safetensors.h"
#include "engine/model/model.h"

/* One whole tensor between a file and the device, converted to the dtype of where it goes; as many
 * elements on both sides. */
enum status weights_read_tensor(const struct st_tensor *t, struct tensor *to, struct err *e);
enum status weights_write_tensor(const struct tensor *t, enum st_dtype dtype, struct st_writer *w,
                                 struct err *e);

/* Every tensor that the config wants is stored with its shape. Looks at headers only. */
enum status weights_check(const struct model_config *config, const struct st_set *set,
                          struct err *e);

/* Fills the base model from a folder's tensors. Every parameter must be there with its shape; what
 * is left over in the file is counted in *unused (a tied model's own lm_head among it) with the
 * first name, for a warning. */
struct weights_report {
    int64_t unused;
    char first_unused[SAFETENSORS_NAME_MAX];
};
enum status weights_load(struct model *m, const struct st_set *set, struct weights_report *report,
                         struct err *e);

/* Only what it allocates meanwhile: on a device that computes nothing. */
enum status weights_load_nothing(struct model *m, struct err *e);

/* Host memory that weights_load takes meanwhile. */
int64_t weights_staging_bytes(const struct model *m);
/* Fills the listed parameters (base or adapter) from tensors of the same names. */
enum status weights_load_params(struct model *m, const struct param *params, size_t count,
                                const struct st_set *set, struct err *e);

/* Writes the listed parameters as one safetensors file of this dtype (ST_F32 or ST_BF16), f32
 * masters where they exist. */
enum status weights_save(const struct model *m, const struct param *params, size_t count,
                         enum st_dtype dtype, const char *path, struct err *e);

/* Writes the base model with the adapters merged in: W + scaling*B*A, for DoRA m/|W+scaling*B*A|
 * times that; computed in f32 on the device, rounded once. Of a quantised base W is what its codes
 * say, which is what the adapters were trained with. */
enum status weights_save_merged(const struct model *m, enum st_dtype dtype, const char *path,
                                struct err *e);

/* A fresh adapter as PEFT initialises it: A uniform in +-1/sqrt(inputs) (Kaiming with a = sqrt(5)),
 * drawn by Philox from (seed, module name, element); B zero; magnitude the norm of each row of W.
 */
enum status weights_init_adapter(struct model *m, uint64_t seed, struct err *e);

#endif
