/* qk_norm_rope: per-head norms, partial rotation, and the KV append. */
#ifndef MM3_OPS_QK_NORM_ROPE_H
#define MM3_OPS_QK_NORM_ROPE_H

#include "ops/types.h"

/* Per row: every q, k, iq and ik head is RMS-normalized over its own width, times (1 + its weight), then its channels
 * 0..63 are rotated in pairs (j, j + 32); v is copied. k, v and ik go to the KV pages at (slot, position).
 *
 *   qkv      [m, ld]    columns q [n_q*128] | k [n_kv*128] | v [n_kv*128] | iq [n_iq*d_index] | ik [d_index];
 *                       n_iq = 0: a dense layer, no index columns
 *   q_norm, k_norm      [128]     stored "minus one"
 *   iq_norm, ik_norm    [d_index] NULL if n_iq = 0
 *   cos, sin [m, 32]    from rope_angles
 *   slot, position  [m] a padded row (slot -1) writes zeros to its q and iq, and nothing to the KV pages
 *   q        [m, n_q, 128]
 *   iq       [m, n_iq, d_index]   NULL if n_iq = 0
 *   kv       written; n_kv and d_index are its fields
 *   rounds   FP32 throughout; K, V and ik once more where kv.type is BF16
 *   source   m3 checkpoint: use_qk_norm, qk_norm_type per_head, rotary_dim 64
 *   proof    tests/kernels/test_qk_norm_rope.c */
typedef struct mm3_qk_norm_rope {
    int m, ld;
    int n_q, n_iq;
    float eps;
    const float *qkv;
    const float *q_norm, *k_norm, *iq_norm, *ik_norm;
    const float *cos, *sin;
    const int32_t *slot, *position;
    float *q, *iq;
    mm3_kv kv;
} mm3_qk_norm_rope;

#endif
