/* linear: rows times a weight matrix. */
#ifndef MM3_OPS_LINEAR_H
#define MM3_OPS_LINEAR_H

#include "ops/types.h"

enum { MM3_MAX_SEGMENTS = 5 };

/* out[i, j] = sum over c of x[i, c] * W[j, c], W the segments' rows one below the other
 *
 *   segment  n_segments row ranges of any type each; their n add up to n. k % 32 == 0 where one is MX.
 *   act      W8A8: an MX segment reads x_codes, x_scales; W8A16: it reads x. BF16 and F32 segments always read x.
 *   x        [m, k]               NULL if no segment reads it
 *   x_codes, x_scales  [m, k], [m, k/32]   NULL if no segment reads them
 *   out      [m, n]
 *   cost     reads every weight byte once: the bound at small m is bytes
 *   rounds   W8A8: products exact, FP32 accumulation. W8A16: FP32 products and accumulation; a candidate that
 *            rounds x to BF16 says operand=bf16. Any order of summation. A value whose magnitude in exact arithmetic
 *            is below 2^-126 may come out as anything up to that.
 *   trap     weight scale byte 0 is 2^-127, not zero; 255 makes its 32 weights NaN, so every out[i, j] of that row */
typedef struct mm3_linear {
    int m, n, k;
    mm3_act act;
    int n_segments;
    mm3_weight segment[MM3_MAX_SEGMENTS];
    const float *x;
    const uint8_t *x_codes, *x_scales;
    float *out;
} mm3_linear;

/* The type all segments share, or -1 where they differ. */
int mm3_linear_type(const mm3_linear *op);

#endif
