/* swiglu_body: threads share the columns, so that one row is shared too. The same C for every instruction set. */
#ifndef MM3_KERNELS_CPU_SWIGLU_BODY_H
#define MM3_KERNELS_CPU_SWIGLU_BODY_H

#include "kernels/cpu/cpu.h"

static void run(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_swiglu *op = call->op;
    int begin, end;
    mm3_share(op->n, i_thread, n_threads, &begin, &end);
    for (int i = 0; i < op->m; i++) {
        const float *restrict gate = op->gate_up + (size_t)i * 2 * (size_t)op->n, *restrict up = gate + op->n;
        float *restrict y = op->y + (size_t)i * (size_t)op->n;
        for (int c = begin; c < end; c++) y[c] = mm3__swiglu_value(gate[c], up[c], op->alpha, op->limit, op->beta);
    }
}

#endif
