/* add_rmsnorm_quantize_body: both parts of the chain on a row while it is in the first cache. Equal bits to the parts.
 */
#ifndef MM3_KERNELS_CPU_ADD_RMSNORM_QUANTIZE_BODY_H
#define MM3_KERNELS_CPU_ADD_RMSNORM_QUANTIZE_BODY_H

#include "kernels/cpu/cpu.h"

static void run(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_add_rmsnorm_quantize *op = call->op;
    size_t k = (size_t)op->k;
    int begin, end;
    mm3_share(op->m, i_thread, n_threads, &begin, &end);
    for (int i = begin; i < end; i++) {
        size_t at = (size_t)i * k;
        double scale = mm3__rms_scale(op->x + at, op->delta ? op->delta + at : NULL, op->k, op->eps);
        for (size_t b = at; b < at + k; b += MM3_MX_BLOCK) {
            mm3__rms_apply(op->x + b, op->w + (b - at), scale, op->y + b, MM3_MX_BLOCK);
            op->scales[b / MM3_MX_BLOCK] = mm3__quantize_block(op->y + b, op->codes + b);
        }
    }
}

#endif
