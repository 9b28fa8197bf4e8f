/* moe_linear: each (row, expert) pair times its expert's weight matrix. */
#ifndef MM3_OPS_MOE_LINEAR_H
#define MM3_OPS_MOE_LINEAR_H

#include "ops/types.h"

/* gate, up. */
enum { MM3_MAX_EXPERT_SEGMENTS = 2 };

/* For each pair p of expert e: out[p] = W_e @ x[row], row = p / top_k (by_pair false) or p (by_pair true)
 *
 *   weights  [n_expert, n_segments]  segments of expert e one below the other, their n add up to n
 *   act      as in linear
 *   x        [m, k] or, by_pair, [m * top_k, k]; NULL if no weight reads it
 *   x_codes, x_scales  the same rows quantized; NULL if no weight reads them
 *   pair, begin  from router
 *   out      [m * top_k, n]; rows of pairs that are in no list stay as they were
 *   cost     reads the weights of every *hit* expert once
 *   rounds   as linear
 *   proof    tests/kernels/test_linear.c, moe; bounds: src/tune/tolerance.c */
typedef struct mm3_moe_linear {
    int m, top_k, n, k, n_expert, n_segments;
    bool by_pair;
    mm3_act act;
    const mm3_weight *weights;
    const float *x;
    const uint8_t *x_codes, *x_scales;
    const int32_t *pair, *begin;
    float *out;
} mm3_moe_linear;

/* The type all weights share, or -1 where they differ. */
int mm3_moe_linear_type(const mm3_moe_linear *op);

#endif
