/* host_inputs: what the host's work is measured on, made by rule into a folder. Internal to bench/. */
#ifndef MM3_BENCH_HOST_INPUTS_H
#define MM3_BENCH_HOST_INPUTS_H

#include "base/base.h"

/* xorshift64: the same numbers everywhere. */
static inline uint64_t mm3__host_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}
/* Below n, the small ones more often: each as often as Zipf's law says, 1 / (1 + value). n > 0. */
size_t mm3__host_zipf(uint64_t *state, size_t n);

/* Write dir/name. */
MM3_MUST_USE mm3_status mm3__host_write(const char *dir, const char *name, const void *bytes, size_t n);

/* config.json, the index and 31 shards under the released checkpoint's names and shapes; headers alone, the data being
 * holes that take no room on the disk.
 *   experts    in each of the 57 layers that have them: 128 as released
 *   n_tensors  what the index lists: 45838 with 128 experts
 * source  docs/m3.md, section 2 */
MM3_MUST_USE mm3_status mm3__host_write_checkpoint(const char *dir, int experts, int *n_tensors);

/* The words that texts are made of. */
typedef struct mm3__host_words {
    mm3_buf text;  /* owned */
    size_t *start; /* owned: [n + 1] word i is text[start[i], start[i + 1]); lower case, no space */
    size_t n, n_max;
    int n_han; /* Chinese characters that the vocabulary has whole, from U+4E00 on */
} mm3__host_words;
void mm3__host_words_free(mm3__host_words *words);

/* tokenizer.json in the released form (its pattern, NFC, added tokens of this name) with n_tokens ids, each one beyond
 * the 256 bytes the result of a merge; and the words that it was made for, the frequent ones first. n_tokens from
 * 4096 on. errors  MM3_ERR_NOMEM, MM3_ERR_IO */
MM3_MUST_USE mm3_status mm3__host_write_tokenizer(const char *dir, int n_tokens, mm3__host_words *words);

#endif
