/* tokenizer_json.h - tokenizer.json in parts: its two large members as flat lists, the rest as a
 * tree.
 *
 * Nearly all of such a file is model.vocab and model.merges, up to a million strings; as a tree
 * they take ten times their text and most of the time that opening takes. Strings are RFC 8259; as
 * in the rest of the file (cJSON) control characters and bytes that are not UTF-8 pass. */
#ifndef PLIMSOLL_ENGINE_TEXT_TOKENIZER_JSON_H
#define PLIMSOLL_ENGINE_TEXT_TOKENIZER_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/str.h"

enum {
    TOKEN_ID_LIMIT = 1 << 24,
    TOKEN_BYTES_MAX = 65536, /* of one spelling */
};

/* model.vocab in the order of the file; the spellings stand one behind the other. */
struct entries {
    bool there; /* the member exists and is an object */
    struct str text;
    struct entry {
        size_t to; /* where its spelling ends */
        int32_t id;
    } * items;
    size_t count, capacity;
};

/* model.merges: left is [from, middle), right [middle, to), so that the product is what stands
 * there. The two spellings of a merge, "a b" and ["a","b"], read the same; a list that mixes them
 * is an error. */
struct merges {
    bool there; /* the member exists and is a list */
    struct str text;
    struct merge {
        size_t from, middle, to;
    } * items;
    size_t count, capacity;
    size_t skipped; /* 1 when the list begins with a "#version" line: ranks count it */
};

struct tokenizer_file {
    struct str text;
    cJSON *rest; /* the file with null for what was taken out */
    struct entries entries;
    struct merges merges;
    struct taken {
        size_t from, to;
    } taken[2];
    int taken_count;
};

/* Reads file->text into the parts; `what` names it in errors. Caller frees with
 * tokenizer_file_release, also after an error. */
enum status tokenizer_file_parse(struct tokenizer_file *file, const char *what, struct err *e);
void tokenizer_file_release(struct tokenizer_file *file);

#endif
