/* changed.h - a run as it would be with some keys of its spec changed.
 *
 * What advice and layouts are planned with. What the spec forbids is refused here as it would be
 * for a user. */
#ifndef PLIMSOLL_ENGINE_TRAIN_CHANGED_H
#define PLIMSOLL_ENGINE_TRAIN_CHANGED_H

#include "engine/train/session.h"

struct changed {
    struct spec spec;
    struct session_options options;
};
/* `keys` as in a spec, one level deep. Errors of spec_parse_question. Close also after an error. */
enum status changed_open(struct changed *c, const struct spec *spec, const cJSON *keys,
                         struct err *e);
void changed_close(struct changed *c);

#endif
