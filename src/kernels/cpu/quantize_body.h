/* quantize_body: threads share the blocks of all rows. The same C for every instruction set: equal bits. */
#ifndef MM3_KERNELS_CPU_QUANTIZE_BODY_H
#define MM3_KERNELS_CPU_QUANTIZE_BODY_H

#include <assert.h>

#include "kernels/cpu/cpu.h"

static void run(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_quantize *op = call->op;
    int begin, end;
    assert(op->k % MM3_MX_BLOCK == 0);
    mm3_share(op->m * (op->k / MM3_MX_BLOCK), i_thread, n_threads, &begin, &end);
    for (int b = begin; b < end; b++) {
        size_t at = (size_t)b * MM3_MX_BLOCK;
        op->scales[b] = mm3__quantize_block(op->x + at, op->codes + at);
    }
}

#endif
