/* swiglu: the gated activation of all MLPs and experts (SwiGLU-OAI). */
#ifndef MM3_OPS_SWIGLU_H
#define MM3_OPS_SWIGLU_H

#include "ops/types.h"

/* g = min(gate, limit); u = clamp(up, -limit, limit); y = g * sigmoid(alpha * g) * (u + beta)
 *
 *   gate_up  [m, 2n]  gate columns, then up columns (not interleaved)
 *   y        [m, n]
 *   rounds   FP32; NaN in gives NaN out, the positive one (its sign would show in codes made of it)
 *   trap     the gate has no lower clamp
 *   source   m3 checkpoint: swiglu_alpha, swiglu_limit, swiglu_beta
 *   proof    tests/kernels/test_elementwise.c, swiglu, swiglu_clamps */
typedef struct mm3_swiglu {
    int m, n;
    float alpha, limit, beta;
    const float *gate_up;
    float *y;
} mm3_swiglu;

#endif
