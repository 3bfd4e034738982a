/* gemm_cache.c - the timed choices on disk: one small text file per card and version of cuBLASLt,
 * in the user's cache folder.
 *
 * cuBLASLt promises that an algorithm's 64 bytes mean the same to the same version of it, so both
 * are in the name and in the first line. Each further line is one choice, sixteen hexadecimal words
 * of which the last is a checksum; the first bad line ends the reading, and what came after it is
 * timed again. A file is replaced as a whole, after merging in what others have written meanwhile:
 * processes side by side may lose a choice to each other, never read half a one. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "kernels/cuda/gemm.h"

enum { KEY_WORDS = 7, ALGORITHM_WORDS = 8, WORDS = 16, WORD_CHARS = 16 };
enum { LINE_CHARS = WORDS * (WORD_CHARS + 1) }; /* a space or the newline after each word */
enum { FILE_BYTES_MAX = 4 << 20 };
_Static_assert(sizeof(struct gemm_key) == KEY_WORDS * sizeof(uint64_t), "seven words of key");
_Static_assert(sizeof(cublasLtMatmulAlgo_t) == ALGORITHM_WORDS * sizeof(uint64_t),
               "eight words of algorithm");

/* $XDG_CACHE_HOME/plimsoll, or ~/.cache/plimsoll; NULL where neither is known. Caller frees with
 * mem_free. */
static char *folder(void) {
    const char *cache = cuda_environment("XDG_CACHE_HOME");
    if (cache) return file_join(cache, "plimsoll");
    const char *home = cuda_environment("HOME");
    return home ? file_join(home, ".cache/plimsoll") : NULL;
}

/* The name of the card as a part of a file name. */
static void plain_name(const char *card, char out[64]) {
    size_t i = 0;
    for (; card[i] && i < 63; i++) {
        const char c = card[i];
        const bool plain =
            (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
        out[i] = plain ? c : '-';
    }
    out[i] = '\0';
}

static void append_header(struct str *out, const struct device *device) {
    const struct cuda_state *state = device->state;
    str_appendf(out, "plimsoll gemm choices 1, %s, %d SMs, capability %d, %s, workspace %lld\n",
                state->card, state->multiprocessors, state->capability, state->gemm->version,
                (long long)gemm_workspace_bytes(device));
}

static uint64_t checksum(const uint64_t words[WORDS - 1]) {
    uint64_t h = UINT64_C(0x9E3779B97F4A7C15);
    for (int i = 0; i < WORDS - 1; i++) {
        h = (h ^ words[i]) * UINT64_C(0xBF58476D1CE4E5B9);
        h ^= h >> 31;
    }
    return h;
}

static void append_choice(struct str *out, const struct gemm_choice *choice) {
    uint64_t words[WORDS];
    memcpy(words, &choice->key, sizeof choice->key);
    memcpy(words + KEY_WORDS, &choice->algorithm, sizeof choice->algorithm);
    words[WORDS - 1] = checksum(words);
    for (int i = 0; i < WORDS; i++) {
        str_appendf(out, "%016llx%c", (unsigned long long)words[i], i + 1 < WORDS ? ' ' : '\n');
    }
}

/* One word of exactly WORD_CHARS digits and the character that must follow it. */
static bool read_word(const char *text, char end, uint64_t *out) {
    uint64_t value = 0;
    for (int i = 0; i < WORD_CHARS; i++) {
        const char c = text[i];
        const bool digit = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
        if (!digit && !letter) return false;
        value = value << 4 | (uint64_t)(digit ? c - '0' : c - 'a' + 10);
    }
    *out = value;
    return text[WORD_CHARS] == end;
}

static bool read_choice(const char *line, struct gemm_choice *out) {
    uint64_t words[WORDS];
    for (int i = 0; i < WORDS; i++) {
        if (!read_word(line + i * (WORD_CHARS + 1), i + 1 < WORDS ? ' ' : '\n', &words[i]))
            return false;
    }
    if (words[WORDS - 1] != checksum(words)) return false;
    memcpy(&out->key, words, sizeof out->key);
    memcpy(&out->algorithm, words + KEY_WORDS, sizeof out->algorithm);
    return true;
}

/* Adds the choices of the file that are not known yet. */
static void merge(struct device *device) {
    struct cuda_gemm *gemm = cuda_state_of(device)->gemm;
    struct str header = {0}, text = {0};
    struct err ignored = {0};
    append_header(&header, device);
    if (file_read(gemm->path, FILE_BYTES_MAX, &text, &ignored) == STATUS_OK &&
        str_starts_with(str_text(&text), str_text(&header))) {
        for (size_t at = header.len; at + LINE_CHARS <= text.len; at += LINE_CHARS) {
            struct gemm_choice choice = {.time_ns = 0};
            if (!read_choice(text.data + at, &choice)) break;
            if (gemm_table_find(&gemm->choices, &choice.key)) continue;
            struct gemm_choice *item = mem_new(1, sizeof *item);
            *item = choice;
            gemm_table_add(&gemm->choices, item);
        }
    }
    str_release(&text);
    str_release(&header);
}

void gemm_cache_open(struct device *device) {
    const struct cuda_state *state = cuda_state_of(device);
    struct cuda_gemm *gemm = state->gemm;
    char *in = folder();
    char card[64];
    if (!in) return;
    plain_name(state->card, card);
    char *name = str_format("gemm-%s-%zu.txt", card, gemm->library.version());
    gemm->path = file_join(in, name);
    mem_free(name);
    mem_free(in);
    merge(device);
}

void gemm_cache_save(struct device *device) {
    struct cuda_gemm *gemm = cuda_state_of(device)->gemm;
    if (!gemm->unsaved || !gemm->path) return;
    struct err ignored = {0};
    struct str text = {0};
    char *in = folder();
    merge(device);
    append_header(&text, device);
    for (size_t i = 0; i < gemm->choices.capacity; i++) {
        if (gemm->choices.slots[i]) append_choice(&text, gemm->choices.slots[i]);
    }
    if (text.len <= FILE_BYTES_MAX && in && file_make_folder(in, &ignored) == STATUS_OK)
        (void)file_write_atomic(gemm->path, text.data, text.len, &ignored);
    gemm->unsaved = false;
    str_release(&text);
    mem_free(in);
}

void gemm_cache_close(struct device *device) {
    struct cuda_gemm *gemm = cuda_state_of(device)->gemm;
    for (size_t i = 0; i < gemm->choices.capacity; i++) {
        mem_free(gemm->choices.slots[i]);
    }
    mem_free(gemm->choices.slots);
    gemm->choices = (struct gemm_table){.count = 0};
    mem_free(gemm->path);
    gemm->path = NULL;
}
