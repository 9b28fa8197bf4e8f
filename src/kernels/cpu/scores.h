/* scores: dot products of LANES queries with the keys of a KV tile, one query in each lane. What attention and
 * index_select have in common. A query's score is one chain of additions over the channels, in their order, whatever
 * queries and tokens are computed beside it.
 *
 * Queries are packed with the lane innermost, [width][LANES]; keys are read where they lie, one broadcast per value,
 * and the scores of successive tokens lie LANES apart, so that maximum and exponential need no shuffles. */
#ifndef MM3_SCORES_H
#define MM3_SCORES_H

#include "kernels/cpu/lanes.h"

enum { SCORE_VECTORS = 2 }; /* vectors of queries that one reading of a key serves */

/* s[j][t][lane] = sum over d of k[t][d] * q[j][d][lane] for n_t tokens and n_j vectors (constants where inlined). */
LANES_INLINE void score_step(const float *const *q, int width, const float *k, float *const *s, int n_t, int n_j)
{
    vf sum[8][SCORE_VECTORS];
    for (int t = 0; t < n_t; t++)
        for (int j = 0; j < n_j; j++) sum[t][j] = vf_set(0.0f);
    for (int d = 0; d < width; d++) {
        vf x[SCORE_VECTORS];
        for (int j = 0; j < n_j; j++) x[j] = vf_load(q[j] + d * LANES);
        for (int t = 0; t < n_t; t++) {
            vf y = vf_set(k[t * width + d]);
            for (int j = 0; j < n_j; j++) sum[t][j] = vf_fma(y, x[j], sum[t][j]);
        }
    }
    for (int t = 0; t < n_t; t++)
        for (int j = 0; j < n_j; j++) vf_store(s[j] + t * LANES, sum[t][j]);
}

/* Scores of n tokens with one or two vectors of queries.
 *   q  [n_j] of [width][LANES]; k [n, width]; s [n_j] of [n][LANES] */
LANES_INLINE void score_tokens(const float *const *q, int n_j, int width, const float *k, float *const *s, int n)
{
    int step = n_j == 1 || LANES == 16 ? 8 : 4, t = 0;
    for (; t < n; t += step) {
        float *to[SCORE_VECTORS] = { s[0] + t * LANES, n_j > 1 ? s[1] + t * LANES : NULL };
        const float *key = k + t * width;
        if (t + step > n) break;
        if (n_j == 1)
            score_step(q, width, key, to, 8, 1);
        else if (LANES == 16)
            score_step(q, width, key, to, 8, 2);
        else
            score_step(q, width, key, to, 4, 2);
    }
    for (; t < n; t++) {
        float *to[SCORE_VECTORS] = { s[0] + t * LANES, n_j > 1 ? s[1] + t * LANES : NULL };
        if (n_j == 1)
            score_step(q, width, k + t * width, to, 1, 1);
        else
            score_step(q, width, k + t * width, to, 1, 2);
    }
}

#endif
