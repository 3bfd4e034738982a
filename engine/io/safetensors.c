/* safetensors.c - one safetensors file: the header's rules, the tensor table, finding.
 *
 * Owns the distrust: a file is mapped and nothing of it is used before the whole header has been
 * checked against the file's size. The JSON is walked once from child to child (a lookup by name
 * would make 100,000 tensors quadratic), and its text is bounded before it is parsed, because a
 * tree is many times larger than its text. */
#include "engine/io/safetensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "engine/io/st_internal.h"

enum { HEADER_MAX = 100000000, JSON_DEPTH_MAX = 16, JSON_VALUES_MAX = 4 << 20, PREFIX_BYTES = 8 };

static const struct {
    const char *name;
    int64_t bytes;
} DTYPES[] = {
    [ST_F64] = {"F64", 8},   [ST_F32] = {"F32", 4},         [ST_F16] = {"F16", 2},
    [ST_BF16] = {"BF16", 2}, [ST_I64] = {"I64", 8},         [ST_I32] = {"I32", 4},
    [ST_I16] = {"I16", 2},   [ST_I8] = {"I8", 1},           [ST_U8] = {"U8", 1},
    [ST_BOOL] = {"BOOL", 1}, [ST_F8_E4M3] = {"F8_E4M3", 1}, [ST_F8_E5M2] = {"F8_E5M2", 1},
};
_Static_assert(COUNT_OF(DTYPES) == ST_DTYPE_COUNT, "a name and size for every dtype");

int64_t st_dtype_bytes(enum st_dtype dtype) {
    ASSERT(dtype < ST_DTYPE_COUNT);
    return DTYPES[dtype].bytes;
}

const char *st_dtype_name(enum st_dtype dtype) {
    ASSERT(dtype < ST_DTYPE_COUNT);
    return DTYPES[dtype].name;
}

enum status st_check_json(const char *text, size_t len, const char *what, struct err *e) {
    int64_t depth = 0, values = 0;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        const char c = text[i];
        if (in_string) {
            if (c == '"') in_string = false;
            if (c != '\\') continue;
            FAIL_IF(len - i > 5 && memcmp(text + i, "\\u0000", 6) == 0, STATUS_INVALID,
                    "%s: a text holds a NUL character", what);
            i++;
            continue;
        }
        if (c == '"') in_string = true;
        if (c == '{' || c == '[') depth++;
        if (c == '}' || c == ']') depth--;
        if (c == ',') values++;
        FAIL_IF(depth > JSON_DEPTH_MAX, STATUS_INVALID, "%s: nested deeper than %d levels", what,
                JSON_DEPTH_MAX);
        FAIL_IF(values > JSON_VALUES_MAX, STATUS_INVALID, "%s: more than %d values", what,
                JSON_VALUES_MAX);
    }
    const size_t valid = utf8_valid_prefix(text, len);
    FAIL_IF(valid != len, STATUS_INVALID, "%s: not valid UTF-8 at byte %zu", what, valid);
    return STATUS_OK;
}

/* A whole number that is not negative, exactly. */
static bool read_count(const cJSON *item, int64_t *out) {
    if (!cJSON_IsNumber(item)) return false;
    const double value = item->valuedouble;
    if (!(value >= 0 && value <= 0x1p53) || value != floor(value)) return false;
    *out = (int64_t)value;
    return true;
}

static enum status read_dtype(const cJSON *item, const char *name, enum st_dtype *out,
                              struct err *e) {
    FAIL_IF(!cJSON_IsString(item), STATUS_INVALID, "tensor \"%s\": dtype is not a string", name);
    for (int i = 0; i < ST_DTYPE_COUNT; i++) {
        if (strcmp(DTYPES[i].name, item->valuestring) != 0) continue;
        *out = (enum st_dtype)i;
        return STATUS_OK;
    }
    return err_set(e, STATUS_UNSUPPORTED, "tensor \"%s\": dtype \"%.40s\" is not known", name,
                   item->valuestring);
}

static enum status read_shape(const cJSON *item, struct st_tensor *t, struct err *e) {
    FAIL_IF(!cJSON_IsArray(item), STATUS_INVALID, "tensor \"%s\": shape is not a list", t->name);
    t->rank = 0;
    t->elements = 1;
    for (const cJSON *one = item->child; one; one = one->next) {
        FAIL_IF(t->rank == SAFETENSORS_RANK_MAX, STATUS_UNSUPPORTED,
                "tensor \"%s\" has more than %d dimensions", t->name, SAFETENSORS_RANK_MAX);
        int64_t *const size = &t->shape[t->rank++];
        FAIL_IF(!read_count(one, size), STATUS_INVALID,
                "tensor \"%s\": its shape holds something that is not a size", t->name);
        FAIL_IF(__builtin_mul_overflow(t->elements, *size, &t->elements), STATUS_INVALID,
                "tensor \"%s\": the size of its shape overflows", t->name);
    }
    return STATUS_OK;
}

static enum status read_offsets(const cJSON *item, const char *name, int64_t offsets[2],
                                struct err *e) {
    const cJSON *const first = cJSON_IsArray(item) ? item->child : NULL;
    const cJSON *const second = first ? first->next : NULL;
    const bool fine = second && !second->next && read_count(first, &offsets[0]) &&
                      read_count(second, &offsets[1]);
    FAIL_IF(!fine, STATUS_INVALID, "tensor \"%s\": data_offsets is not [begin, end]", name);
    FAIL_IF(offsets[1] < offsets[0], STATUS_INVALID,
            "tensor \"%s\": its data ends at %lld, before it begins at %lld", name,
            (long long)offsets[1], (long long)offsets[0]);
    return STATUS_OK;
}

static enum status check_name(const char *name, struct err *e) {
    const size_t len = strlen(name);
    FAIL_IF(len == 0 || len > SAFETENSORS_NAME_MAX, STATUS_INVALID,
            "a tensor's name has %zu bytes, it must have 1 to %d", len, SAFETENSORS_NAME_MAX);
    for (size_t i = 0; i < len; i++) {
        FAIL_IF((unsigned char)name[i] < 0x20, STATUS_INVALID,
                "a tensor's name holds a control character");
    }
    return STATUS_OK;
}

/* The three members by which a tensor is described, each exactly once. Other members carry no
 * meaning here. */
static enum status pick_members(const cJSON *entry, const cJSON *members[3], struct err *e) {
    static const char *const NAMES[] = {"dtype", "shape", "data_offsets"};
    FAIL_IF(!cJSON_IsObject(entry), STATUS_INVALID, "tensor \"%s\": expected an object",
            entry->string);
    for (const cJSON *item = entry->child; item; item = item->next) {
        for (int i = 0; i < 3; i++) {
            if (strcmp(item->string, NAMES[i]) != 0) continue;
            FAIL_IF(members[i], STATUS_INVALID, "tensor \"%s\": %s is given twice", entry->string,
                    NAMES[i]);
            members[i] = item;
        }
    }
    for (int i = 0; i < 3; i++) {
        FAIL_IF(!members[i], STATUS_INVALID, "tensor \"%s\": %s is missing", entry->string,
                NAMES[i]);
    }
    return STATUS_OK;
}

/* `data` becomes the distance from the start of the data for now: it is made a pointer when all
 * offsets are checked. */
static enum status read_tensor(const cJSON *entry, struct st_tensor *t, int64_t offsets[2],
                               struct err *e) {
    const cJSON *members[3] = {NULL};
    TRY(check_name(entry->string, e));
    TRY(pick_members(entry, members, e));
    *t = (struct st_tensor){.name = entry->string};
    TRY(read_dtype(members[0], t->name, &t->dtype, e));
    TRY(read_shape(members[1], t, e));
    TRY(read_offsets(members[2], t->name, offsets, e));
    FAIL_IF(__builtin_mul_overflow(t->elements, st_dtype_bytes(t->dtype), &t->bytes),
            STATUS_INVALID, "tensor \"%s\": the size of its data overflows", t->name);
    FAIL_IF(t->bytes != offsets[1] - offsets[0], STATUS_INVALID,
            "tensor \"%s\": its shape and dtype need %lld bytes, its data_offsets give %lld",
            t->name, (long long)t->bytes, (long long)(offsets[1] - offsets[0]));
    return STATUS_OK;
}

struct span {
    int64_t begin, end;
    const char *name;
};

static int compare_spans(const void *a, const void *b) {
    const struct span *const x = a, *const y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* The data of all tensors, laid end to end, is exactly the rest of the file. */
static enum status check_spans(struct span *spans, int64_t count, int64_t header_bytes,
                               int64_t file_bytes, struct err *e) {
    int64_t last = 0;
    for (int64_t i = 0; i < count; i++) {
        if (spans[i].end > last) last = spans[i].end;
    }
    const int64_t expected = header_bytes + last;
    FAIL_IF(expected > file_bytes, STATUS_INVALID,
            "is truncated: its header describes %lld bytes, the file has %lld; download it again",
            (long long)expected, (long long)file_bytes);
    if (count) qsort(spans, (size_t)count, sizeof *spans, compare_spans);
    int64_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        FAIL_IF(spans[i].begin < at, STATUS_INVALID,
                "the data of tensor \"%s\" overlaps another tensor's", spans[i].name);
        FAIL_IF(spans[i].begin > at, STATUS_INVALID,
                "there are %lld unused bytes before the data of tensor \"%s\"",
                (long long)(spans[i].begin - at), spans[i].name);
        at = spans[i].end;
    }
    FAIL_IF(expected < file_bytes, STATUS_INVALID,
            "has %lld bytes behind the last tensor: its header describes %lld bytes, the file has "
            "%lld",
            (long long)(file_bytes - expected), (long long)expected, (long long)file_bytes);
    return STATUS_OK;
}

static void add_tensor(struct st_set *set, const struct st_tensor *t) {
    if (set->count == set->capacity) {
        set->capacity = set->capacity ? 2 * set->capacity : 64;
        set->tensors = mem_resize(set->tensors, (size_t)set->capacity, sizeof *set->tensors);
        set->names = mem_resize(set->names, (size_t)set->capacity, sizeof *set->names);
    }
    set->names[set->count] = mem_strdup(t->name);
    set->tensors[set->count] = *t;
    set->tensors[set->count].name = set->names[set->count];
    set->count++;
}

static enum status check_metadata(const cJSON *metadata, struct err *e) {
    FAIL_IF(!cJSON_IsObject(metadata), STATUS_INVALID, "__metadata__ is not an object");
    for (const cJSON *item = metadata->child; item; item = item->next) {
        FAIL_IF(!cJSON_IsString(item), STATUS_INVALID, "__metadata__: \"%.80s\" is not a string",
                item->string);
    }
    return STATUS_OK;
}

static enum status add_header(struct st_set *set, const cJSON *header, const char *path,
                              const unsigned char *data, int64_t file_bytes, struct err *e) {
    const struct file_map *const map = &set->maps[set->map_count - 1];
    const int64_t header_bytes = data - map->data;
    struct span *spans = NULL;
    size_t count = 0, capacity = 0;
    enum status status = STATUS_OK;
    for (const cJSON *entry = header->child; entry; entry = entry->next) {
        if (strcmp(entry->string, "__metadata__") == 0) {
            GUARD(check_metadata(entry, e));
            continue;
        }
        struct st_tensor t;
        int64_t offsets[2] = {0};
        GUARD(read_tensor(entry, &t, offsets, e));
        t.file = path;
        /* Not past the end: an offset beyond the file is never made a pointer. */
        t.data = offsets[1] <= file_bytes - header_bytes ? data + offsets[0] : data;
        add_tensor(set, &t);
        spans = mem_grow(spans, count, &capacity, sizeof *spans);
        spans[count++] = (struct span){offsets[0], offsets[1], entry->string};
    }
    GUARD(check_spans(spans, (int64_t)count, header_bytes, file_bytes, e));
done:
    mem_free(spans);
    return status;
}

static enum status check_start(const struct file_map *map, int64_t *header_bytes, struct err *e) {
    static const char LFS[] = "version https://git-lfs";
    FAIL_IF(map->bytes == 0, STATUS_INVALID, "is empty");
    FAIL_IF(map->bytes >= sizeof LFS - 1 && memcmp(map->data, LFS, sizeof LFS - 1) == 0,
            STATUS_INVALID,
            "is a Git LFS pointer, not the weights: download the real file (git lfs pull)");
    FAIL_IF(map->bytes < PREFIX_BYTES, STATUS_INVALID,
            "has %zu bytes, too few to be a safetensors file", map->bytes);
    uint64_t length = 0;
    for (int i = PREFIX_BYTES - 1; i >= 0; i--) {
        length = length << 8 | map->data[i];
    }
    FAIL_IF(length > HEADER_MAX, STATUS_INVALID,
            "is not a safetensors file: its header would have %llu bytes, the limit is %d",
            (unsigned long long)length, HEADER_MAX);
    FAIL_IF(length > map->bytes - PREFIX_BYTES, STATUS_INVALID,
            "is truncated in its header: that has %llu bytes, the file only %zu",
            (unsigned long long)length, map->bytes);
    FAIL_IF(length == 0 || map->data[PREFIX_BYTES] != '{', STATUS_INVALID,
            "is not a safetensors file: its header does not begin with {");
    *header_bytes = (int64_t)length;
    return STATUS_OK;
}

static enum status read_mapped(struct st_set *set, const char *path, struct err *e) {
    const struct file_map *const map = &set->maps[set->map_count - 1];
    int64_t length = 0;
    TRY(check_start(map, &length, e));
    const char *const text = (const char *)map->data + PREFIX_BYTES;
    TRY(st_check_json(text, (size_t)length, "header", e));
    cJSON *header = NULL;
    TRY(json_parse(text, (size_t)length, "header", &header, e));
    const unsigned char *const data = map->data + PREFIX_BYTES + length;
    const enum status status = add_header(set, header, path, data, (int64_t)map->bytes, e);
    cJSON_Delete(header);
    return status;
}

enum status st_add_file(struct st_set *set, const char *path, struct err *e) {
    struct file_map map = {0};
    TRY(file_map_open(&map, path, e));
    const size_t count = (size_t)set->map_count + 1;
    set->maps = mem_resize(set->maps, count, sizeof *set->maps);
    set->paths = mem_resize(set->paths, count, sizeof *set->paths);
    set->maps[set->map_count] = map;
    set->paths[set->map_count] = mem_strdup(path);
    set->map_count++;
    const enum status status = read_mapped(set, set->paths[set->map_count - 1], e);
    return status == STATUS_OK ? status : err_prefix(e, "%s", path);
}

static int compare_tensors(const void *a, const void *b) {
    return strcmp(((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

enum status st_finish(struct st_set *set, struct err *e) {
    if (set->count) {
        qsort(set->tensors, (size_t)set->count, sizeof *set->tensors, compare_tensors);
    }
    for (int64_t i = 1; i < set->count; i++) {
        const struct st_tensor *const a = &set->tensors[i - 1], *const b = &set->tensors[i];
        FAIL_IF(strcmp(a->name, b->name) == 0, STATUS_INVALID,
                "tensor \"%s\" is there twice: in %s and in %s", a->name, a->file, b->file);
    }
    return STATUS_OK;
}

enum status st_open_file(struct st_set *set, const char *path, struct err *e) {
    *set = (struct st_set){0};
    enum status status = st_add_file(set, path, e);
    if (status == STATUS_OK) status = st_finish(set, e);
    if (status != STATUS_OK) st_close(set);
    return status;
}

void st_close(struct st_set *set) {
    if (!set) return;
    for (int64_t i = 0; i < set->map_count; i++) {
        file_map_close(&set->maps[i]);
        mem_free(set->paths[i]);
    }
    for (int64_t i = 0; i < set->count; i++) {
        mem_free(set->names[i]);
    }
    mem_free(set->maps);
    mem_free(set->paths);
    mem_free(set->names);
    mem_free(set->tensors);
    *set = (struct st_set){0};
}

const struct st_tensor *st_find(const struct st_set *set, const char *name) {
    const struct st_tensor wanted = {.name = name};
    if (set->count == 0) return NULL;
    return bsearch(&wanted, set->tensors, (size_t)set->count, sizeof *set->tensors,
                   compare_tensors);
}
