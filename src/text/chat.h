/* chat: what the files about M3's chat form share: its markers, rendered prompts, tool calls, exact JSON.
 * Internal to this folder (and its tests); knows nothing of how a tokenizer works. */
#ifndef MM3_TEXT_CHAT_H
#define MM3_TEXT_CHAT_H

#include "base/base.h"

/* Markers, each one an added token of the tokenizer. MM3__NS stands before every tag of a tool call. */
#define MM3__NS "]<]minimax[>["
#define MM3__THINK "<mm:think>"
#define MM3__THINK_END "</mm:think>"
#define MM3__CALLS MM3__NS "<tool_call>"
#define MM3__CALLS_END MM3__NS "</tool_call>"

/* White space between tags: JSON's four. */
static inline bool mm3__is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* ---- rendered prompts (chat_template.c) -------------------------------------------------------------------------- */

/* A prompt as text, byte for byte the reference template's, and which bytes of it are control tokens. Whatever
 * lies between two controls is one run of ordinary text, whoever wrote it: template and caller together. */
typedef struct mm3__control {
    size_t at, n; /* the bytes [at, at + n) of the text */
} mm3__control;
typedef struct mm3__rendered {
    mm3_buf text;          /* owned; .failed also stands for a failed growth of `control` */
    mm3__control *control; /* owned, ascending, disjoint */
    int n_control, max_control;
} mm3__rendered;

/* mm3_chat_encode without the encoding. Zero-initialize `out`; free it also after an error. */
MM3_MUST_USE mm3_status mm3__chat_render(mm3__rendered *out, const char *messages, const char *tools,
                                         const char *thinking, bool generate);
void mm3__rendered_free(mm3__rendered *r);

typedef enum mm3__thinking { MM3__ADAPTIVE, MM3__ENABLED, MM3__DISABLED } mm3__thinking;
/* "enabled", "disabled", "adaptive"; NULL is adaptive; anything else is an error that lists the three. */
MM3_MUST_USE mm3_status mm3__thinking_parse(mm3__thinking *out, const char *thinking);
/* Parse and check a list of tools. *out: an array of {"type", "function"} whose functions have distinct names and
 * parameters that are objects or absent; NULL where `tools` is NULL. json_decref() it. */
MM3_MUST_USE mm3_status mm3__tools_read(json_t **out, const char *tools);

/* ---- tool calls in the model's text (tool_call.c) ---------------------------------------------------------------- */

/* The parameters of tools that have some, by the tool's name: an answer may call many tools many times.
 *   tools  of mm3__tools_read; NULL: none
 * errors  MM3_ERR_NOMEM */
MM3_MUST_USE mm3_status mm3__tools_by_name(json_t **out, const json_t *tools);
/* Read the calls of one envelope.
 *   block       from MM3__CALLS to MM3__CALLS_END or to the end of the text; valid UTF-8
 *   parameters  of mm3__tools_by_name: schemas that type the arguments; may be NULL
 *   index       of the first call
 *   calls       receives the calls as JSON objects with ", " before each but the first of the buffer
 *   n_calls     0: nothing in it is a call (or it nests too deep), `calls` is untouched: the block is plain text
 * errors  MM3_ERR_NOMEM */
MM3_MUST_USE mm3_status mm3__calls_read(const char *block, size_t n, const json_t *parameters, int index, mm3_buf *calls,
                                        int *n_calls);

/* ---- JSON as Python's json module reads and writes it (python_json.c) -------------------------------------------- */

/* Parse any JSON value. Unlike jansson alone it keeps integers of any size (mm3__json_integer) and U+0000.
 *   flags  more jansson flags, like JSON_REJECT_DUPLICATES
 *   e      where and why it failed
 * errors  MM3_ERR_ARG, MM3_ERR_NOMEM; no error text is recorded, that is the caller's part */
MM3_MUST_USE mm3_status mm3__json_load(json_t **out, const char *text, size_t n, size_t flags, json_error_t *e);
/* The digits of an integer too long for 64 bits, which is kept as a marked string; NULL for everything else. */
const char *mm3__json_integer(const json_t *v);
/* Whether v is a string of the caller's, and no such integer. */
bool mm3__json_is_text(const json_t *v);
/* json.dumps(v, ensure_ascii=False): given key order, separators ", " and ": ", floats by their shortest digits. */
void mm3__json_write(mm3_buf *b, const json_t *v);
void mm3__json_write_string(mm3_buf *b, const char *s, size_t n);
/* str(v) of a number. */
void mm3__json_write_number(mm3_buf *b, const json_t *v);

#endif
