/* spec_cap.c - upper bounds on memory, as people write them.
 *
 * The same in a spec, in control.json and in the API, so there is one reader. A share is kept as a
 * share: what it comes to depends on the device, which may be another one when a run is resumed. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/spec.h"

/* Whole numbers travel as JSON doubles: beyond this they would not come back the same. */
#define WHOLE_MAX 0x1p53

static enum status refuse(const char *path, struct err *e) {
    return err_set_param(e, STATUS_INVALID, path,
                         "%s: expected a size such as \"24GiB\", a number of bytes, or a share of "
                         "the device such as \"90%%\" or 0.9",
                         path);
}

static enum status set_number(struct spec_cap *cap, double value, const char *path, struct err *e) {
    if (!isfinite(value) || value < 0 || value > WHOLE_MAX) return refuse(path, e);
    if (value > 0 && value <= 1) {
        *cap = (struct spec_cap){.share = value};
        return STATUS_OK;
    }
    if (value != floor(value)) return refuse(path, e);
    *cap = (struct spec_cap){.bytes = (int64_t)value};
    return STATUS_OK;
}

enum status spec_cap_parse(struct spec_cap *cap, const cJSON *value, const char *path,
                           struct err *e) {
    if (cJSON_IsNumber(value)) return set_number(cap, value->valuedouble, path, e);
    if (!cJSON_IsString(value)) return refuse(path, e);
    const char *const text = value->valuestring;
    double number = 0;
    if (str_ends_with(text, "%")) {
        char *digits = mem_strndup(text, strlen(text) - 1);
        const enum status status = str_to_f64(digits, path, &number, NULL);
        mem_free(digits);
        if (status != STATUS_OK || !(number > 0 && number <= 100)) return refuse(path, e);
        *cap = (struct spec_cap){.share = number / 100};
        return STATUS_OK;
    }
    if (str_to_f64(text, path, &number, NULL) == STATUS_OK) return set_number(cap, number, path, e);
    int64_t bytes = 0;
    if (str_to_bytes(text, path, &bytes, e) != STATUS_OK) return e ? e->status : STATUS_INVALID;
    *cap = (struct spec_cap){.bytes = bytes};
    return STATUS_OK;
}

cJSON *spec_cap_to_json(const struct spec_cap *cap) {
    char text[32];
    if (!(cap->share > 0)) return cJSON_CreateNumber((double)cap->bytes);
    snprintf(text, sizeof text, "%.10g%%", 100 * cap->share);
    return cJSON_CreateString(text);
}

int64_t spec_cap_bytes(const struct spec_cap *cap, int64_t total) {
    return cap->share > 0 ? (int64_t)((double)total * cap->share) : cap->bytes;
}
