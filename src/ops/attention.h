/* attention: causal softmax attention over KV pages, dense or over selected blocks. */
#ifndef MM3_OPS_ATTENTION_H
#define MM3_OPS_ATTENTION_H

#include "ops/types.h"

/* out[i, h] = sum over t of softmax(scale * q[i, h] . K[t, g]) V[t, g], g = h / (n_q / n_kv), t <= position[i]
 *
 *   q         [m, n_q, 128]
 *   kv        read: K and V of the row's slot; n_kv is its field, n_q a multiple of it
 *   slot, position  [m]     a padded row gives zeros
 *   selected  [m, n_kv, top_k] from index_select: only tokens of these blocks of `block` tokens; NULL: all tokens
 *   out       [m, n_q, 128]
 *   context   no position reaches this; for who sizes data by it. Not in the key: a decision serves every length
 *   rounds    FP32 scores, softmax and sums, any order; weights below 2^-126 of the largest may be dropped */
typedef struct mm3_attention {
    int m, n_q, top_k, block, context;
    float scale;
    const float *q;
    const int32_t *slot, *position, *selected;
    mm3_kv kv;
    float *out;
} mm3_attention;

#endif
