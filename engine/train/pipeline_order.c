/* pipeline_order.c - see pipeline_order.h: a few lines of counting.
 *
 * The order is all that the schedules differ in, so it is found here and executed elsewhere. */
#include "engine/train/pipeline_order.h"

#include <string.h>

#include "base/err.h"

enum pipeline_kind pipeline_kind_parse(const char *name) {
    return strcmp(name, "gpipe") == 0 ? PIPELINE_GPIPE : PIPELINE_1F1B;
}

/* Forward passes before the first backward one. */
static int64_t ahead_of(enum pipeline_kind kind, const struct pipeline_place *place,
                        int64_t micros) {
    const int64_t ahead = kind == PIPELINE_GPIPE ? micros : place->stages - place->stage;
    return ahead < micros ? ahead : micros;
}

void pipeline_order(enum pipeline_kind kind, const struct pipeline_place *place, int64_t micros,
                    struct pipeline_work *works) {
    const int64_t ahead = ahead_of(kind, place, micros);
    int64_t forward = 0, backward = 0;
    ASSERT(place->stage >= 0 && place->stage < place->stages);
    while (backward < micros) {
        const bool waits = forward == micros || forward - backward == ahead;
        *works++ = (struct pipeline_work){waits, waits ? backward++ : forward++};
    }
}

bool pipeline_receives(const struct pipeline_place *place, const struct pipeline_work *work,
                       int64_t *from) {
    *from = work->backward ? place->stage + 1 : place->stage - 1;
    return *from >= 0 && *from < place->stages;
}

bool pipeline_sends(const struct pipeline_place *place, const struct pipeline_work *work,
                    int64_t *to) {
    *to = work->backward ? place->stage - 1 : place->stage + 1;
    return *to >= 0 && *to < place->stages;
}
