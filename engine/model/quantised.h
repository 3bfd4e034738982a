/* quantised.h - frozen matrices that are kept as codes: which, how they are cut, how they are
 * loaded.
 *
 * The matrices of decoder layers are (QLoRA, Dettmers et al. 2023); embedding, head, norms and
 * biases are not. Every stored tensor is quantised by itself, however many of them are one matrix
 * here. */
#ifndef PLIMSOLL_ENGINE_MODEL_QUANTISED_H
#define PLIMSOLL_ENGINE_MODEL_QUANTISED_H

#include "engine/model/load.h"
#include "engine/model/model.h"

bool storage_is_quantised(const struct storage *s);
/* After storages and parameters are declared: places codes and scales. STATUS_UNSUPPORTED for
 * matrices that cannot be cut into blocks. Nothing without options.quant. */
enum status quantised_declare(struct model *m, struct err *e);
/* Memory for the codes and for what rides in the tails, and a value without bytes. */
enum status quantised_allocate(struct model *m, struct storage *s, struct err *e);
/* An adapter's place in the tails of such a weight: a new view. */
struct tensor *quantised_tail_view(const struct storage *weight, const struct storage *adapter);
void quantised_release(struct storage *s);
/* Where a parameter's codes go: fills to (which the caller releases), layout and part, or nothing.
 */
void quantised_target(const struct model *m, const struct param *p, struct load_item *item);

#endif
