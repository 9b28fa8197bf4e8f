/* sample: the next token of each row. */
#ifndef MM3_OPS_SAMPLE_H
#define MM3_OPS_SAMPLE_H

#include "ops/types.h"

/* What one row is sampled with. Read from memory at each step, so that a recorded step never changes. */
typedef struct mm3_sample_row {
    float temperature; /* 0: greedy */
    int32_t top_k;     /* 0: all */
    float top_p, min_p;
    float repetition_penalty, presence_penalty, frequency_penalty;
    int32_t counts_row; /* row of counts, or -1: no penalties */
    uint64_t seed;
} mm3_sample_row;

/* Counts: bit 30 says that the token occurs in the prompt, the lower bits how often it was generated. */
enum { MM3_COUNT_IN_PROMPT = 1 << 30 };

/* Per row, over ids 0..n_token-1 (ids from n_token to n_vocab-1 have no text and are never chosen):
 *   1. penalties: a token seen (prompt or generated) has its logit divided (if positive) or multiplied (else) by
 *      repetition_penalty; one generated c > 0 times loses presence_penalty + c * frequency_penalty.
 *   2. temperature 0: the largest wins. Else z = logit / temperature, and in this order only those stay that are among
 *      the top_k largest; then the shortest prefix, largest first, whose probability (among those left) reaches top_p;
 *      then those with at least min_p times the largest probability. The winner has the largest
 *      z + G(seed, position + 1, id), G a Gumbel variable (mm3_gumbel): a draw from the softmax of those left.
 *   3. Ties everywhere: the lower id. +infinity is a number; a row with a NaN among its logits gives token -1.
 *
 *   logits    [m, n_vocab]  not changed
 *   row       [m]
 *   counts    [.., n_vocab] or NULL
 *   slot, position  [m]     a padded row gives token -1, logprob 0
 *   token     [m]
 *   logprob   [m]           log softmax of the raw logits (ids below n_token) at the chosen token; NaN with token -1
 *   rounds    FP32; reference in double
 */
typedef struct mm3_sample {
    int m, n_vocab, n_token;
    const float *logits;
    const mm3_sample_row *row;
    const int32_t *counts;
    const int32_t *slot, *position;
    int32_t *token;
    float *logprob;
} mm3_sample;

/* Hash of (seed, position, id) to 64 even bits; a function of its arguments alone. */
static inline uint64_t mm3_random_bits(uint64_t seed, int32_t position, int32_t id)
{
    uint64_t z = seed + 0x9E3779B97F4A7C15u * ((uint64_t)(uint32_t)position + 1);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z ^= (uint64_t)(uint32_t)id * 0xD6E8FEB86659FD93u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z = (z ^ (z >> 31)) * 0xD6E8FEB86659FD93u;
    return z ^ (z >> 32);
}

/* Uniform in (0, 1): the middles of 2^52 equal steps, each exact in a double (with 53
 * bits the last one rounds to 1). */
static inline double mm3_uniform(uint64_t bits) { return ((double)(bits >> 12) + 0.5) * 0x1p-52; }

/* A standard Gumbel variable: -log(-log(u)), u in (0, 1); always between -3.7 and 36.8. */
static inline double mm3_gumbel(uint64_t seed, int32_t position, int32_t id)
{
    return -log(-log(mm3_uniform(mm3_random_bits(seed, position, id))));
}

#endif
