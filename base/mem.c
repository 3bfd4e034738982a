/* mem.c - checked allocation.
 *
 * The only file of the project that calls malloc's family. */
#include "base/mem.h"

#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

static _Noreturn void out_of_host_memory(size_t count, size_t size) {
    fprintf(stderr, "plimsoll: the host has no memory left (%zu x %zu bytes were asked for)\n",
            count, size);
    _Exit(MEM_EXIT_CODE);
}

void *mem_new(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size ? size : 1);
    if (!memory) out_of_host_memory(count, size);
    return memory;
}

void *mem_resize(void *old, size_t count, size_t size) {
    if (size && count > SIZE_MAX / size) out_of_host_memory(count, size);
    const size_t bytes = count * size;
    void *memory = realloc(old, bytes ? bytes : 1);
    if (!memory) out_of_host_memory(count, size);
    return memory;
}

char *mem_strdup(const char *text) {
    return text ? mem_strndup(text, strlen(text)) : NULL;
}

char *mem_strndup(const char *text, size_t length) {
    char *copy = mem_new(length + 1, 1);
    if (length) memcpy(copy, text, length);
    return copy;
}

void mem_free(void *memory) {
    free(memory);
}

void *mem_grow(void *items, size_t count, size_t *capacity, size_t size) {
    ASSERT(count <= *capacity);
    if (count < *capacity) return items;
    *capacity = *capacity ? *capacity * 2 : 8;
    return mem_resize(items, *capacity, size);
}

void mem_keep_freed(void) {
    enum { KEPT_BYTES = 256 << 20, AHEAD_BYTES = 16 << 20 };
    (void)mallopt(M_MMAP_THRESHOLD, KEPT_BYTES);
    (void)mallopt(M_TRIM_THRESHOLD, KEPT_BYTES);
    (void)mallopt(M_TOP_PAD, AHEAD_BYTES);
}
