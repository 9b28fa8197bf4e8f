/* add_rmsnorm_quantize: chain of add_rmsnorm and quantize. */
#ifndef MM3_OPS_ADD_RMSNORM_QUANTIZE_H
#define MM3_OPS_ADD_RMSNORM_QUANTIZE_H

#include "ops/types.h"

/* As add_rmsnorm, then codes and scales of y as quantize. y is an output too (the router reads it).
 *   rounds  as the parts: y to FP32, then to MXFP8
 *   proof   tests/kernels/test_quantize.c, norm_chain */
typedef struct mm3_add_rmsnorm_quantize {
    int m, k;
    float eps;
    float *x;
    const float *delta, *w;
    float *y;
    uint8_t *codes, *scales;
} mm3_add_rmsnorm_quantize;

#endif
