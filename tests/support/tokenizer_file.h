/* Small tokenizer.json files for tests: made, changed and written to a folder of their own. */
#ifndef MM3_TESTS_TOKENIZER_FILE_H
#define MM3_TESTS_TOKENIZER_FILE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Byte-level BPE over 256 byte tokens (the id is the byte) and the merges given as "left right" pairs;
 * NFC; words split as in GPT-2; added tokens "<s>" (special) and "<n>" (not). For json_decref(). */
json_t *small_tokenizer(const char *const *merges, int n_merges);
/* Put the value (JSON text; NULL: remove) at a path of keys and indices, "model/vocab/a". False if there is none. */
bool json_put(json_t *root, const char *path, const char *value);

/* A folder under the temporary one; the same for the whole process, removed with its file by remove_model_dir(). */
const char *model_dir(void);
void write_tokenizer_text(const char *text, size_t n_bytes);
void write_tokenizer(const json_t *root);
void remove_model_dir(void);

#endif
