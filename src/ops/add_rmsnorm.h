/* add_rmsnorm: residual addition and Gemma RMSNorm. */
#ifndef MM3_OPS_ADD_RMSNORM_H
#define MM3_OPS_ADD_RMSNORM_H

#include "ops/types.h"

/* x += delta (if there is one);  y = x / sqrt(mean(x^2) + eps) * (1 + w)
 *
 *   x       [m, k]  residual stream, updated in place
 *   delta   [m, k]  or NULL
 *   w       [k]     FP32; stored "minus one" (trap: w = 0 is the plain norm)
 *   y       [m, k]
 *   rounds  x after the addition; y once, a NaN to the positive one. 1 + w is in FP32.
 *   source  m3 checkpoint: use_gemma_norm, rms_norm_eps
 *   proof   tests/kernels/test_elementwise.c, add_rmsnorm, gemma_weight
 * Rows are independent; padded rows too. */
typedef struct mm3_add_rmsnorm {
    int m, k;
    float eps;
    float *x;
    const float *delta, *w;
    float *y;
} mm3_add_rmsnorm;

#endif
