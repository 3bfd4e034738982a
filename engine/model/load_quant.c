/* load_quant.c - stored tensors that become codes on their way to the device.
 *
 * A reader quantises what it reads a few thousand elements at a time, so the full precision exists
 * only in its own stack; what travels is codes and scales. Scales that are quantised themselves
 * wait on the host for the last piece of their tensor: a sixteenth of its f32 size. */
#include "base/mem.h"
#include "engine/model/load_internal.h"
#include "engine/model/quantize.h"

/* Read at a time: whole blocks. */
enum { CHUNK = 64 * QUANT_BLOCK };

static const struct quant_part *part_of(const struct load_item *item) {
    return &item->layout->parts[item->part];
}

static bool is_strided(const struct load_item *item) {
    return item->pitch > 0 && item->pitch != item->layout->cols && part_of(item)->rows > 1;
}

bool load_quant_by_rows(const struct load_item *item) {
    return item->layout->quant == QUANT_FP8 || is_strided(item);
}

struct load_scales *load_quant_scales(const struct load_item *item) {
    return item->layout->quant == QUANT_NF4_DOUBLE ? mem_new(1, sizeof(struct load_scales)) : NULL;
}

void load_quant_free(struct load_scales *scales) {
    if (scales) mem_free(scales->values);
    mem_free(scales);
}

static int64_t scale_count(const struct load_item *item) {
    return quant_scale_count(item->layout->quant, part_of(item)->rows, item->layout->cols);
}

void load_quant_begin(const struct piece *p) {
    if (!p->scales || p->scales->values) return;
    p->scales->values = mem_new((size_t)scale_count(p->item), sizeof *p->scales->values);
}

static int64_t code_bytes(const struct piece *p) {
    return quant_code_bytes(p->item->layout->quant, p->rows * p->cols);
}

/* Where the scales of a piece begin, among those of its tensor. */
static int64_t first_scale(const struct piece *p) {
    return p->item->layout->quant == QUANT_FP8 ? p->row : p->first / QUANT_BLOCK;
}

/* `count` stored elements from `from` on, as the blocks that they are. */
static enum status read_nf4(const struct load_item *item, int64_t from, int64_t count,
                            uint8_t *codes, float *scales, struct err *e) {
    float chunk[CHUNK];
    for (int64_t at = 0; at < count; at += CHUNK) {
        const int64_t left = count - at, part = left < CHUNK ? left : CHUNK;
        TRY(st_read_f32(item->from, from + at, part, chunk, e));
        for (int64_t i = 0; i < part; i += QUANT_BLOCK) {
            const int64_t block = part - i < QUANT_BLOCK ? part - i : QUANT_BLOCK;
            scales[(at + i) / QUANT_BLOCK] = quantize_nf4(chunk + i, block, codes + (at + i) / 2);
        }
    }
    return STATUS_OK;
}

/* A row's scale is that of the whole row in the file, of which this may be a block: so it does not
 * depend on how many ranks have a part of it. */
static enum status row_scale(const struct load_item *item, int64_t from, int64_t count,
                             float *scale, struct err *e) {
    const int64_t pitch = item->pitch > 0 ? item->pitch : count;
    const int64_t begin = from / pitch * pitch;
    float chunk[CHUNK], largest = 0;
    for (int64_t at = 0; at < pitch; at += CHUNK) {
        const int64_t left = pitch - at, part = left < CHUNK ? left : CHUNK;
        TRY(st_read_f32(item->from, begin + at, part, chunk, e));
        const float here = quantize_largest(chunk, part);
        largest = here > largest ? here : largest;
    }
    *scale = quantize_fp8_scale(largest);
    return STATUS_OK;
}

static enum status read_fp8(const struct load_item *item, int64_t from, int64_t count,
                            uint8_t *codes, float *scale, struct err *e) {
    float chunk[CHUNK];
    TRY(row_scale(item, from, count, scale, e));
    for (int64_t at = 0; at < count; at += CHUNK) {
        const int64_t left = count - at, part = left < CHUNK ? left : CHUNK;
        TRY(st_read_f32(item->from, from + at, part, chunk, e));
        quantize_fp8(chunk, part, *scale, codes + at);
    }
    return STATUS_OK;
}

enum status load_quant_read(const struct piece *p, void *out, struct err *e) {
    const struct load_item *const item = p->item;
    const bool strided = is_strided(item), rows = item->layout->quant == QUANT_FP8;
    const int64_t stored = st_dtype_bytes(item->from->dtype);
    const int64_t first = item->first + (strided ? p->row * item->pitch : p->first);
    const int64_t step = strided ? item->pitch : p->cols;
    uint8_t *codes = out;
    float *scales =
        p->scales ? p->scales->values + first_scale(p) : (float *)((char *)out + code_bytes(p));
    file_map_populate(item->from->data + first * stored,
                      (size_t)(((p->rows - 1) * step + p->cols) * stored));
    for (int64_t row = 0; row < p->rows; row++) {
        TRY((rows ? read_fp8 : read_nf4)(item, first + row * step, p->cols, codes, scales, e));
        codes += quant_code_bytes(item->layout->quant, p->cols);
        scales += rows ? 1 : p->cols / QUANT_BLOCK;
    }
    return STATUS_OK;
}

static enum status upload_run(const struct piece *p, int64_t to, void *host, int64_t bytes,
                              struct err *e) {
    const struct transfer run = {.device = (char *)p->item->to->data + to,
                                 .device_pitch = bytes,
                                 .host = host,
                                 .host_pitch = bytes,
                                 .width = bytes,
                                 .rows = 1};
    return device_stage_upload(p->item->to->space->device, &run, e);
}

/* All scales of the tensor are there. */
static enum status upload_scales(const struct piece *p, struct err *e) {
    const struct quant_layout *const l = p->item->layout;
    const struct quant_part *const part = part_of(p->item);
    struct device *const device = p->item->to->space->device;
    char *const base = p->item->to->data;
    const int64_t count = scale_count(p->item);
    const int64_t nested_count = quant_nested_count(l->quant, part->rows, l->cols);
    uint8_t *const codes = mem_new((size_t)count, 1);
    float *const nested = mem_new((size_t)nested_count, sizeof *nested);
    quantize_scales(p->scales->values, count, codes, nested);
    enum status status = device_upload(device, base + part->scales, codes, count, e);
    if (status == STATUS_OK)
        status = device_upload(device, base + part->nested, nested, nested_count * 4, e);
    mem_free(codes);
    mem_free(nested);
    mem_free(p->scales->values);
    p->scales->values = NULL;
    return status;
}

enum status load_quant_upload(const struct piece *p, void *host, struct err *e) {
    const struct quant_layout *const l = p->item->layout;
    const struct quant_part *const part = part_of(p->item);
    const int64_t bytes = code_bytes(p);
    TRY(upload_run(p, part->codes + quant_code_bytes(l->quant, p->first), host, bytes, e));
    if (p->scales) return p->last ? upload_scales(p, e) : STATUS_OK;
    const int64_t scales = quant_scale_count(l->quant, p->rows, p->cols);
    return upload_run(p, part->scales + first_scale(p) * 4, (char *)host + bytes, scales * 4, e);
}
