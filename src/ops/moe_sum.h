/* moe_sum: the experts' outputs of a row, weighted and added, plus the shared expert. */
#ifndef MM3_OPS_MOE_SUM_H
#define MM3_OPS_MOE_SUM_H

#include "ops/types.h"

/* out[i] = scale * sum over j of weight[i, j] * y[i * top_k + j] + shared[i]
 *
 *   y       [m * top_k, k]  from moe_linear
 *   expert, weight  [m, top_k]  from router; a choice with expert -1 adds nothing (its y is not read)
 *   shared  [m, k] or NULL: unscaled, ungated
 *   out     [m, k]
 *   rounds  FP32, choices in order
 *   source  m3 checkpoint: routed_scaling_factor
 *   proof   tests/kernels/test_router.c, test_sum_reference */
typedef struct mm3_moe_sum {
    int m, top_k, k;
    float scale;
    const float *y;
    const int32_t *expert;
    const float *weight;
    const float *shared;
    float *out;
} mm3_moe_sum;

#endif
