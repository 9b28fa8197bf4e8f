/* quantize: FP32 rows to MXFP8. */
#ifndef MM3_OPS_QUANTIZE_H
#define MM3_OPS_QUANTIZE_H

#include "ops/types.h"

/* codes, scales = MXFP8 of x, per 32 consecutive elements of a row (mm3_mx_quantize_block)
 *
 *   x       [m, k]     k % 32 == 0; any bits
 *   codes   [m, k]     E4M3
 *   scales  [m, k/32]  E8M0, row-major
 *   rounds  each element once; the scale is the smallest power of two that holds the block's finite maximum
 *   proof   tests/kernels/test_quantize.c: every candidate equals the reference bit for bit, NaN and infinity
 *           included */
typedef struct mm3_quantize {
    int m, k;
    const float *x;
    uint8_t *codes, *scales;
} mm3_quantize;

#endif
