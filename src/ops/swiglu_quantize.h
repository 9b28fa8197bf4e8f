/* swiglu_quantize: chain of swiglu and quantize. */
#ifndef MM3_OPS_SWIGLU_QUANTIZE_H
#define MM3_OPS_SWIGLU_QUANTIZE_H

#include "ops/types.h"

/* As swiglu, then codes and scales of y as quantize.
 *
 *   y       [m, n]  room for the split form; undefined afterwards (a fused candidate need not write it)
 *   codes, scales  [m, n], [m, n/32]
 *   rounds  y to FP32, then to MXFP8, in every candidate
 *   proof   tests/kernels/test_quantize.c, swiglu_chain */
typedef struct mm3_swiglu_quantize {
    int m, n;
    float alpha, limit, beta;
    const float *gate_up;
    float *y;
    uint8_t *codes, *scales;
} mm3_swiglu_quantize;

#endif
