/* tokenizer_parts.h - what the tokenizer is made of; seen by engine/text/tokenizer*.c only.
 *
 * A text walks: added tokens on the raw text -> normalizer -> added tokens on the normalized text
 * -> pre-tokenizer -> BPE. Every stage is a flat list of steps (nested Sequences of the file are
 * unrolled when it is read). A tokenizer is immutable; what a walk writes to lives in a struct
 * scratch, one per thread at a time, lent by the pool. */
#ifndef PLIMSOLL_ENGINE_TEXT_TOKENIZER_PARTS_H
#define PLIMSOLL_ENGINE_TEXT_TOKENIZER_PARTS_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/json.h"
#include "engine/text/regex.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_cache.h"
#include "engine/text/tokenizer_json.h"
#include "engine/text/unicode.h"

enum {
    STEP_COUNT_MAX = 64, /* of one stage; real files have at most five */
    STEP_DEPTH_MAX = 8,  /* Sequence in Sequence */
    SCRATCH_KEPT_MAX = 64,
    TEXT_BYTES_MAX = 1 << 30, /* of one call: offsets are 32 bits wide */
    POST_IDS_MAX = 64,
};

/* ---- vocabulary and merges (tokenizer_vocab.c) ---- */

struct span {
    uint32_t from, to;
};

/* Zero when free. The tag saves looking at the spelling of another token. */
struct vocab_slot {
    uint32_t tag;
    int32_t id_above; /* id + 1 */
};

struct merge_slot {
    uint64_t pair; /* (left id << 32 | right id) + 1; 0 when free */
    uint32_t rank;
    int32_t id;
};

struct vocab {
    struct str spellings; /* each followed by a NUL */
    struct span *tokens;  /* by id; from == to == 0 with no `used` bit: a hole */
    unsigned char *flags; /* by id: enum token_flag */
    int32_t size, id_capacity;
    struct vocab_slot *slots; /* spelling -> id, open addressing */
    size_t slot_mask;
    struct merge_slot *merges;
    size_t merge_mask, merge_count;
};

enum token_flag { TOKEN_USED = 1, TOKEN_ADDED = 2, TOKEN_SPECIAL = 4, TOKEN_MERGED = 8 };

/* A stretch of text, borrowed. */
struct piece {
    const char *text;
    size_t len;
};

void vocab_release(struct vocab *v);
/* Makes room for `count` spellings with ids below `id_limit`; before any vocab_add. */
void vocab_reserve(struct vocab *v, size_t count, int32_t id_limit);
/* STATUS_INVALID if the id or the spelling is taken. */
enum status vocab_add(struct vocab *v, const char *spelling, size_t len, int32_t id, struct err *e);
/* The id of this spelling, or -1. */
int32_t vocab_find(const struct vocab *v, const char *spelling, size_t len);
/* Tells the processor that this spelling is about to be added. */
void vocab_expect(const struct vocab *v, const char *spelling, size_t len);
/* The ids of many spellings, -1 where there is none. As vocab_find for each, but the tables are
 * larger than any cache and this waits for memory once for many. */
void vocab_find_many(const struct vocab *v, const struct piece *spellings, size_t count,
                     int32_t *ids);
void vocab_reserve_merges(struct vocab *v, size_t count);
/* Merges from[0] and from[1] into from[2], and marks that one as TOKEN_MERGED. A pair that is
 * already there gets the new rank. */
enum status vocab_add_merge(struct vocab *v, const int32_t from[3], uint32_t rank, struct err *e);
/* Tells the processor that these merges, three ids each, are about to be added. */
void vocab_expect_merges(const struct vocab *v, const int32_t *from, size_t count);
/* The slot of this pair, or NULL if the pair does not merge. */
const struct merge_slot *vocab_find_merge(const struct vocab *v, int32_t left, int32_t right);
/* Mixes all bytes; for tables in memory only. */
uint64_t bytes_hash(const char *bytes, size_t len);

/* ---- text on its way (tokenizer_text.c) ---- */

/* A text and, for each of its bytes, where in the original text the source of that byte ends. */
struct view {
    const char *text;
    size_t len;
    const uint32_t *ends; /* NULL: byte i ends at base + i + 1, or nobody asks */
    size_t base;          /* offset of the view in the original text */
};

/* A rewritten text with its ends, owned. */
struct rewrite {
    struct str text;
    uint32_t *ends;
    size_t capacity;
    bool tracked; /* false: nobody asks for ends, and there are none */
};
void rewrite_clear(struct rewrite *r);
void rewrite_release(struct rewrite *r);
/* Appends bytes that all end at `end`. */
void rewrite_append(struct rewrite *r, const char *bytes, size_t len, uint32_t end);
/* Appends view bytes [from, to) with their own ends. */
void rewrite_copy(struct rewrite *r, const struct view *v, size_t from, size_t to);
struct view rewrite_view(const struct rewrite *r, size_t base);
/* Where the source of byte `at` ends. */
uint32_t view_end(const struct view *v, size_t at);

struct spans {
    struct span *items;
    size_t count, capacity;
};
void spans_add(struct spans *s, size_t from, size_t to);

/* ---- a pattern of the file: {"String": ...} or {"Regex": ...} ---- */

struct pattern {
    char *literal; /* NULL when it is a regex */
    size_t literal_len;
    struct regex *regex;
    char *source; /* of the regex, as the file has it */
};
void pattern_release(struct pattern *p);
/* The first non-empty match at or after `from`. */
enum status pattern_find(const struct pattern *p, struct regex_state *state, const struct view *v,
                         size_t from, struct span *match, bool *found, struct err *e);

/* ---- steps ---- */

enum norm_kind { NORM_FORM, NORM_LOWERCASE, NORM_PREPEND, NORM_REPLACE, NORM_STRIP };
struct norm_step {
    enum norm_kind kind;
    enum unicode_form form;
    bool left, right; /* NORM_STRIP */
    char *content;    /* NORM_PREPEND, NORM_REPLACE */
    struct pattern pattern;
};

enum pre_kind {
    PRE_SPLIT,
    PRE_PREFIX_SPACE, /* of ByteLevel: a space in front of each piece that has none */
    PRE_BYTE_ALPHABET,
    PRE_DIGITS,
    PRE_PUNCTUATION,
    PRE_WORDS, /* "Whitespace": runs of \w and runs of the rest */
    PRE_SPACES,
    PRE_METASPACE
};
enum split_behavior { SPLIT_REMOVED, SPLIT_ISOLATED, SPLIT_PREVIOUS, SPLIT_NEXT, SPLIT_CONTIGUOUS };
enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };
struct pre_step {
    enum pre_kind kind;
    enum split_behavior behavior;
    bool invert;
    struct pattern pattern;
    enum prepend_scheme scheme; /* PRE_METASPACE */
    char *replacement;
};

enum decode_kind {
    DECODE_BYTE_LEVEL,
    DECODE_REPLACE,
    DECODE_BYTE_FALLBACK,
    DECODE_FUSE,
    DECODE_STRIP,
    DECODE_METASPACE
};
struct decode_step {
    enum decode_kind kind;
    struct pattern pattern; /* DECODE_REPLACE */
    char *content;          /* DECODE_REPLACE, _STRIP, _METASPACE: one character for the last two */
    int32_t start, stop;    /* DECODE_STRIP */
    enum prepend_scheme scheme;
};

struct added_token {
    int32_t id;
    bool lstrip, rstrip, single_word, special, normalized;
    char *content;
};

/* Longest-match search over the spellings of added tokens. */
struct trie {
    struct trie_edge *edges; /* open addressing by (node, byte) */
    size_t edge_mask, edge_count;
    int32_t *token_of; /* by node: index into added tokens, or -1 */
    size_t node_count, node_capacity;
    bool first[256];
    bool has_special;
};

/* Everything a walk writes to. */
struct scratch {
    struct scratch *next; /* in the pool */
    struct regex_state *regex;
    struct rewrite norm[2], pre[2];
    struct spans pieces[2], matches;
    struct str spelling; /* of one piece in the byte alphabet */
    struct symbol *symbols;
    size_t symbol_count, symbol_capacity;
    struct part *parts; /* of the piece at work */
    size_t part_count, part_capacity;
    uint64_t *heap;
    size_t heap_count, heap_capacity;
    struct cache *cache;
};

struct scratch_pool {
    pthread_mutex_t lock;
    struct scratch *idle;
    int idle_count;
    atomic_llong dropped; /* characters that had no token */
};

struct tokenizer {
    struct vocab vocab;
    int32_t unk_id; /* -1: none */
    bool byte_fallback, fuse_unk, ignore_merges;
    struct cuts *cuts; /* where a piece may be cut before it is merged; NULL: nowhere */
    bool needs_ends;   /* a step asks where in the text it is */
    bool bytes_direct; /* the last pre-tokenizer step is the byte alphabet: pieces stay raw bytes */
    int32_t byte_ids[256];     /* of the byte alphabet's characters, -1: not in the vocabulary */
    int32_t fallback_ids[256]; /* of <0x00>..<0xFF> */

    struct norm_step norm[STEP_COUNT_MAX];
    struct pre_step pre[STEP_COUNT_MAX];
    struct decode_step decode[STEP_COUNT_MAX];
    int norm_count, pre_count, decode_count;
    bool has_decoder;

    struct added_token *added;
    size_t added_count, added_capacity;
    struct trie raw, normalized;

    int32_t prefix[POST_IDS_MAX], suffix[POST_IDS_MAX]; /* what the post-processor adds */
    int prefix_count, suffix_count;

    char *named[8]; /* parallel to TOKENIZER_NAMES */
    struct str notes, warnings;
    bool pattern_replaced; /* by fix_mistral_regex */
    struct scratch_pool *pool;
};

/* ---- reading the file: each stage reads its part of tokenizer.json ---- */

/* Where in the file we are, for errors: "model.merges[3]". */
struct where {
    char text[200];
};
struct where where_root(const char *name);
struct where where_key(const struct where *parent, const char *key);
struct where where_index(const struct where *parent, int index);
/* STATUS_UNSUPPORTED naming the first key that is not in the NULL-terminated list. */
enum status json_only(const cJSON *object, const struct where *at, const char *const *keys,
                      struct err *e);
enum status json_bool_or(const cJSON *object, const char *key, bool otherwise,
                         const struct where *at, bool *out, struct err *e);
/* The member must be a string. */
enum status json_text(const cJSON *object, const char *key, const struct where *at,
                      const char **out, struct err *e);
/* Calls `read` for `value`, or for each member of nested Sequences (their list is under `list`). */
typedef enum status (*read_step)(struct tokenizer *t, const cJSON *value, const char *type,
                                 const struct where *at, struct err *e);
enum status read_sequence(struct tokenizer *t, const cJSON *value, const char *list,
                          const struct where *at, int depth, read_step read, struct err *e);
enum status read_pattern(const cJSON *step, const struct where *at, struct pattern *out,
                         struct err *e);
enum status refuse_type(const char *type, const struct where *at, struct err *e);

enum status read_normalizer(struct tokenizer *t, const cJSON *file, struct err *e);
enum status read_pre_tokenizer(struct tokenizer *t, const cJSON *file, struct err *e);
enum status read_post_processor(struct tokenizer *t, const cJSON *file, struct err *e);
enum status read_decoder(struct tokenizer *t, const cJSON *file, struct err *e);
enum status read_model(struct tokenizer *t, struct tokenizer_file *file, struct err *e);
enum status read_added_tokens(struct tokenizer *t, const cJSON *file, struct err *e);
enum status read_config(struct tokenizer *t, const char *folder, struct err *e);
/* Tells of a wrong pattern, or with `fix` puts the right one in its place; `file` is the text of
 * tokenizer.json. Comes after all reading. */
enum status mistral_pattern(struct tokenizer *t, const char *folder, const struct str *file,
                            bool fix, struct err *e);

void norm_step_release(struct norm_step *s);
void pre_step_release(struct pre_step *s);
void decode_step_release(struct decode_step *s);
void trie_release(struct trie *trie);

/* ---- running ---- */

struct scratch *scratch_take(const struct tokenizer *t);
void scratch_give(const struct tokenizer *t, struct scratch *s);
struct scratch_pool *scratch_pool_new(void);
void scratch_pool_free(struct scratch_pool *pool);

/* Where the ids of one walk go. */
struct sink {
    struct token_list *ids, *ends; /* ends may be NULL */
};
void sink_add(struct sink *sink, int32_t id, size_t end);
/* The tokens of a word that begins at `at` in the view. */
void sink_add_parts(struct sink *sink, const struct view *v, size_t at, const struct part *parts,
                    size_t count);

/* Normalizes; *out is `in` itself when nothing changed, otherwise a view on the scratch. */
enum status normalize(const struct tokenizer *t, struct scratch *s, const struct view *in,
                      struct view *out, struct err *e);
/* Cuts into pieces: s->pieces[*which] are spans of *out. */
enum status pre_tokenize(const struct tokenizer *t, struct scratch *s, const struct view *in,
                         struct view *out, int *which, struct err *e);
/* Finds out where pieces may be cut (tokenizer_cuts.c); after vocabulary and merges. */
void cuts_prepare(struct tokenizer *t);
/* The end of the first stretch of v[from, to) that merges by itself. */
size_t cuts_next(const struct cuts *cuts, const struct view *v, size_t from, size_t to);
/* The id of the character at text[0..step), known by its code; -1: it has no token. */
int32_t cuts_char(const struct tokenizer *t, uint32_t code, const char *text, size_t step);
/* Encodes one piece. Bytes of a character without a token count for the token behind it, or the
 * last one. */
void bpe_encode(const struct tokenizer *t, struct scratch *s, const struct view *v,
                struct span piece, struct sink *sink);

/* A walk over the added tokens of a text: starts zeroed, and each call moves it to the next one.
 * False: none left. */
struct added_match {
    int32_t index;    /* into t->added */
    struct span text; /* what it takes of the text, white space that it swallows included */
    size_t resume;    /* where the search goes on */
};
bool added_next(const struct tokenizer *t, const struct trie *trie, const char *text, size_t len,
                enum special_mode mode, struct added_match *match);

/* The byte alphabet of byte-level tokenizers: the code point of a byte, and the byte of a code
 * point or -1. */
uint32_t byte_to_code(unsigned char byte);
int code_to_byte(uint32_t code);
/* Appends the token's bytes read in the byte alphabet; its own bytes if any character is outside
 * it. */
void append_alphabet_bytes(struct str *out, const char *token, size_t len);
/* 0..255 for "<0xHH>", else -1. */
int fallback_byte(const char *token, size_t len);

/* The spelling of an id for decoding; NULL for a special token that is skipped, U+FFFD for an id
 * without a token. */
enum status token_spelling(const struct tokenizer *t, int32_t id, bool skip_special,
                           const char **text, size_t *len, struct err *e);
/* One spelling through a step that looks at each spelling alone (Replace, Strip, Metaspace). */
enum status decode_one(const struct decode_step *step, struct scratch *s, bool first,
                       const char *text, size_t len, struct str *out, struct err *e);
/* Appends bytes as UTF-8, a maximal bad part as U+FFFD; unless `final`, an unfinished character at
 * the end waits. Returns the number of bytes used. */
size_t append_lossy(struct str *out, const char *bytes, size_t len, bool final);

#endif
