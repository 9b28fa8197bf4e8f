/* add_rmsnorm_body: threads share the rows. The same C for every instruction set: equal bits. */
#ifndef MM3_KERNELS_CPU_ADD_RMSNORM_BODY_H
#define MM3_KERNELS_CPU_ADD_RMSNORM_BODY_H

#include "kernels/cpu/cpu.h"

static void run(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_add_rmsnorm *op = call->op;
    int begin, end;
    mm3_share(op->m, i_thread, n_threads, &begin, &end);
    for (int i = begin; i < end; i++) {
        size_t at = (size_t)i * (size_t)op->k;
        double scale = mm3__rms_scale(op->x + at, op->delta ? op->delta + at : NULL, op->k, op->eps);
        mm3__rms_apply(op->x + at, op->w, scale, op->y + at, op->k);
    }
}

#endif
