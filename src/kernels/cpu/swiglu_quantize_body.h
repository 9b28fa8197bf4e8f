/* swiglu_quantize_body: both parts of the chain on a block of 32; y itself is not stored. Equal bytes to the parts. */
#ifndef MM3_KERNELS_CPU_SWIGLU_QUANTIZE_BODY_H
#define MM3_KERNELS_CPU_SWIGLU_QUANTIZE_BODY_H

#include "kernels/cpu/cpu.h"

static void run(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_swiglu_quantize *op = call->op;
    int n_blocks = op->n / MM3_MX_BLOCK, begin, end;
    mm3_share(op->m * n_blocks, i_thread, n_threads, &begin, &end);
    for (int b = begin; b < end; b++) {
        size_t row = (size_t)(b / n_blocks), c = (size_t)(b % n_blocks) * MM3_MX_BLOCK;
        const float *restrict gate = op->gate_up + row * 2 * (size_t)op->n + c, *restrict up = gate + op->n;
        float y[MM3_MX_BLOCK];
        for (int i = 0; i < MM3_MX_BLOCK; i++) y[i] = mm3__swiglu_value(gate[i], up[i], op->alpha, op->limit, op->beta);
        op->scales[b] = mm3__quantize_block(y, op->codes + (size_t)b * MM3_MX_BLOCK);
    }
}

#endif
