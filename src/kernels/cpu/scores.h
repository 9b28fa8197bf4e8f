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

/* Memory that will be read soon: while a token is worked on, `per_token` bytes of it are fetched into the cache, at the
 * same distance from `at` as the token from its tile's first. Without it a page starts cold, and the processor's own
 * prefetchers stop at its end. */
typedef struct ahead {
    const char *at;
    int per_token;
} ahead;

/* s[j][t][lane] = sum over d of k[t][d] * q[j][d][lane] for n_t tokens and n_j vectors (constants where inlined).
 *   soon, stride  bytes to fetch for each channel */
LANES_INLINE void score_step(const float *const *q, int width, const float *k, float *const *s, const char *soon,
                             int stride, int n_t, int n_j)
{
    vf sum[16][SCORE_VECTORS];
    for (int t = 0; t < n_t; t++)
        for (int j = 0; j < n_j; j++) sum[t][j] = vf_set(0.0f);
    for (int d = 0; d < width; d++) {
        vf x[SCORE_VECTORS];
        __builtin_prefetch(soon + d * stride, 0, 2);
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
LANES_INLINE void score_tokens(const float *const *q, int n_j, int width, const float *k, float *const *s, ahead next,
                               int n)
{
    int step = LANES == 16 ? 16 / n_j : 8 / n_j, t = 0;
    if (!next.at) next = (ahead){ (const char *)k, 0 };
    for (; t + step <= n; t += step) {
        float *to[SCORE_VECTORS] = { s[0] + t * LANES, n_j > 1 ? s[1] + t * LANES : NULL };
        const char *soon = next.at + (ptrdiff_t)t * next.per_token;
        if (n_j == 1)
            score_step(q, width, k + t * width, to, soon, step * next.per_token / width, LANES == 16 ? 16 : 8, 1);
        else
            score_step(q, width, k + t * width, to, soon, step * next.per_token / width, LANES == 16 ? 8 : 4, 2);
    }
    for (; t < n; t++) {
        float *to[SCORE_VECTORS] = { s[0] + t * LANES, n_j > 1 ? s[1] + t * LANES : NULL };
        const char *soon = next.at + (ptrdiff_t)t * next.per_token;
        if (n_j == 1)
            score_step(q, width, k + t * width, to, soon, next.per_token / width, 1, 1);
        else
            score_step(q, width, k + t * width, to, soon, next.per_token / width, 1, 2);
    }
}

#endif
