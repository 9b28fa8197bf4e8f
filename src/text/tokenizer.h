/* What the files of the tokenizer share; internal to src/text.
 * The way of a text: added tokens (added.c), NFC (nfc.c), pieces (pretokenize.c), merges (bpe.c), ids (encode.c). */
#ifndef MM3_TEXT_TOKENIZER_H
#define MM3_TEXT_TOKENIZER_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/base.h"

/* ---- bytes (utf8.c) ---------------------------------------------------------------------------------------------- */

/* The length, 1 to 4, of the UTF-8 sequence of which p[0..n) holds a valid beginning; 0 if there is none. The
 * sequence is whole when the length is at most n. n > 0. */
int mm3__utf8_want(const unsigned char *p, size_t n);
/* Bytes of p[0..n) that form one maximal run of either whole sequences (*valid) or bytes outside of any. n > 0. */
size_t mm3__utf8_run(const unsigned char *p, size_t n, bool *valid);
/* The code point of the whole sequence at p. */
int32_t mm3__utf8_code(const unsigned char *p, int n);

/* Append the code point as UTF-8. */
void mm3__utf8_put(mm3_buf *out, int32_t code);

/* For error texts: printable ASCII as it is, other bytes as \xNN, cut after some 40 characters. Returns out. */
enum { MM3__SHOWN = 64 };
const char *mm3__show(char out[MM3__SHOWN], const void *bytes, size_t n);

/* ---- normalization (nfc.c) --------------------------------------------------------------------------------------- */

/* Append NFC(src) to out; bytes that are no UTF-8 are kept, and nothing composes across them. Time is linear in
 * n_bytes. *same: src is its own NFC as far as a quick look tells, and nothing was appended.
 * errors  MM3_ERR_NOMEM */
mm3_status mm3__nfc(mm3_buf *out, const unsigned char *src, size_t n_bytes, bool *same);

/* ---- large JSON values (scan.c) ---------------------------------------------------------------------------------- */

typedef struct mm3__scan {
    const unsigned char *start, *at, *end; /* borrowed; start: of the file, for places in errors */
    size_t n_items;                        /* elements or members, at most */
    const char *file;                      /* borrowed; named in errors */
} mm3__scan;

/* Find model.vocab and model.merges in the text of tokenizer.json (a value not found: at == end), and append to rest
 * the text with null in their places.
 * errors  MM3_ERR_NOMEM; what is no JSON is left to the readers of the three parts */
mm3_status mm3__scan_cut(mm3_buf *rest, mm3__scan *vocab, mm3__scan *merges, const char *text, size_t n_bytes,
                         const char *file);
/* Whether c comes next, white space apart; _char also passes over it. */
bool mm3__scan_is(mm3__scan *s, char c);
bool mm3__scan_char(mm3__scan *s, char c);
/* The string that comes next: in the file itself, or in buf if it has escapes. Not NUL-terminated.
 * errors  MM3_ERR_FORMAT no string, or not UTF-8; MM3_ERR_NOMEM */
mm3_status mm3__scan_string(mm3__scan *s, mm3_buf *buf, const char **string, size_t *n);
mm3_status mm3__scan_int(mm3__scan *s, int64_t *value);
/* MM3_ERR_FORMAT with the place. */
mm3_status mm3__scan_fail(const mm3__scan *s, const char *expected);

/* ---- vocabulary and merges (vocabulary.c) ------------------------------------------------------------------------ */

enum { MM3__NO_RANK = -1, MM3__MAX_IDS = 1 << 24 };

typedef struct mm3__token {
    uint32_t start, n_bytes; /* in mm3__vocabulary.text */
    bool exists;
    bool added;   /* one of "added_tokens": text taken literally */
    bool control; /* ... and marked "special" */
} mm3__token;

typedef struct mm3__slot {
    uint32_t hash;
    int32_t id; /* -1: empty */
} mm3__slot;

typedef struct mm3__merge {
    uint64_t pair; /* left id << 32 | right id */
    int32_t rank;  /* place in "merges"; MM3__NO_RANK: an empty slot */
} mm3__merge;

typedef struct mm3__vocabulary {
    int n;             /* ids are 0 .. n - 1 */
    mm3__token *token; /* owned [n] */
    mm3_buf text;      /* owned; the bytes of all tokens */
    mm3__slot *slot;   /* owned; by hash of the bytes; tokens of "vocab" only */
    uint32_t slot_mask;
    int32_t id_of_byte[256];
    mm3__merge *merge; /* owned; by hash of the pair */
    uint32_t merge_mask;
    int32_t *id_of_rank; /* owned [n_merges]; what a merge gives */
} mm3__vocabulary;

/* Read "vocab", "merges" and "added_tokens"; `file` is named in errors.
 * errors  MM3_ERR_FORMAT, MM3_ERR_UNSUPPORTED name the entry; MM3_ERR_NOMEM */
mm3_status mm3__vocabulary_read(mm3__vocabulary *v, mm3__scan *vocab, mm3__scan *merges, const json_t *added,
                                const char *file);
void mm3__vocabulary_free(mm3__vocabulary *v);
/* The token of "vocab" with these bytes, or -1. */
int32_t mm3__vocabulary_find(const mm3__vocabulary *v, const void *bytes, size_t n);

static inline uint32_t mm3__hash_pair(uint64_t pair)
{
    pair ^= pair >> 33;
    pair *= 0xFF51AFD7ED558CCDu;
    return (uint32_t)(pair >> 32) ^ (uint32_t)pair;
}

/* The rank of a merge, or MM3__NO_RANK. */
static inline int32_t mm3__merge_rank(const mm3__vocabulary *v, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint32_t i = mm3__hash_pair(pair) & v->merge_mask;
    while (v->merge[i].rank != MM3__NO_RANK) {
        if (v->merge[i].pair == pair) return v->merge[i].rank;
        i = (i + 1) & v->merge_mask;
    }
    return MM3__NO_RANK;
}

/* ---- added tokens in text (added.c) ------------------------------------------------------------------------------ */

typedef struct mm3__trie_node {
    int32_t id; /* of the token that ends here, or -1 */
    int32_t child, sibling;
    unsigned char byte;
} mm3__trie_node;

/* Finds the added tokens in a text: the leftmost first, of several there the longest. */
typedef struct mm3__matcher {
    mm3__trie_node *node; /* owned; node 0 is the root; none: nothing to find */
    int n_nodes, max_nodes;
    bool starts[256]; /* whether a token begins with this byte */
} mm3__matcher;

/* errors  MM3_ERR_FORMAT two tokens with the same text; MM3_ERR_NOMEM */
mm3_status mm3__matcher_add(mm3__matcher *m, const void *bytes, size_t n, int32_t id);
void mm3__matcher_free(mm3__matcher *m);
/* The first token at or after text + from: its id, and its place in [*begin, *end); -1 if there is none. */
int32_t mm3__matcher_find(const mm3__matcher *m, const unsigned char *text, size_t n, size_t from, size_t *begin,
                          size_t *end);

/* ---- pieces (pattern.c, pretokenize.c) --------------------------------------------------------------------------- */

/* Write the pattern, made for Oniguruma, so that PCRE2 (UTF, UCP) finds the same with it; what differs between the
 * two and is not rewritten is refused.
 *   what  named in errors
 * errors  MM3_ERR_UNSUPPORTED says which part of the pattern */
mm3_status mm3__pattern_translate(mm3_buf *out, const char *pattern, const char *what);

enum { MM3__MAX_SPLITS = 8 };
typedef struct mm3__split {
    pcre2_code *code; /* owned */
    bool keep_match;  /* which parts of the text go on to the next split */
    bool keep_gap;
} mm3__split;

typedef struct mm3__pretokenizer {
    mm3__split split[MM3__MAX_SPLITS];
    int n;
    bool byte_level; /* whether the ByteLevel component was met; it is the last */
} mm3__pretokenizer;

mm3_status mm3__pretokenizer_read(mm3__pretokenizer *p, const json_t *component, const char *file);
void mm3__pretokenizer_free(mm3__pretokenizer *p);

/* ---- the tokenizer (tokenizer.c) --------------------------------------------------------------------------------- */

struct mm3_tokenizer {
    mm3__vocabulary vocabulary;
    mm3__matcher raw;        /* added tokens found before normalization */
    mm3__matcher normalized; /* ... and those found after it */
    mm3__pretokenizer pretokenizer;
    bool nfc;
    bool ignore_merges; /* a piece that is a token is not built from merges */
};

/* mm3_tokenizer_open with the text of tokenizer.json in hand; `file` is named in errors. */
mm3_status mm3__tokenizer_parse(mm3_tokenizer **out, const char *text, size_t n_bytes, const char *file);

/* Refuse members that are not in `known`, a list ended by NULL.
 * errors  MM3_ERR_UNSUPPORTED names the member */
mm3_status mm3__only_members(const json_t *object, const char *const *known, const char *what);
/* The "type" of a component.
 * errors  MM3_ERR_FORMAT no object, or no type */
mm3_status mm3__component_type(const json_t *component, const char *what, const char **type);

/* ---- one call of encode (encode.c, bpe.c) ------------------------------------------------------------------------ */

typedef struct mm3__symbol {
    int32_t id, prev, next;
    int32_t rank; /* of the merge with the next symbol; MM3__NO_RANK: none, or the symbol is gone */
} mm3__symbol;

/* A piece met before: where its ids are in the output. */
typedef struct mm3__seen {
    int32_t i_ids;
    uint8_t n_ids, n_bytes; /* n_bytes 0: empty */
    unsigned char bytes[26];
} mm3__seen;

typedef struct mm3__encoder {
    const mm3_tokenizer *tokenizer; /* borrowed */
    int32_t *ids;                   /* owned */
    int n_ids, max_ids;
    mm3__symbol *symbol; /* owned */
    size_t max_symbols;
    uint64_t *heap; /* owned; rank << 32 | position */
    size_t n_heap, max_heap;
    mm3__seen *seen; /* owned */
    uint32_t seen_mask;
    pcre2_match_data *match;      /* owned */
    pcre2_match_context *context; /* owned */
} mm3__encoder;

mm3_status mm3__emit(mm3__encoder *e, int32_t id);
/* Append the ids of one piece. n > 0. */
mm3_status mm3__bpe(mm3__encoder *e, const unsigned char *piece, size_t n);
/* Cut well-formed UTF-8 into pieces and append their ids. */
mm3_status mm3__pretokenize(mm3__encoder *e, const unsigned char *text, size_t n);

/* PCRE2's memory through mm3_malloc. NULL when out of memory. */
pcre2_general_context *mm3__pcre2_memory(void);

#endif
