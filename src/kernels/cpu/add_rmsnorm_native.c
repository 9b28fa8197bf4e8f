/* add_rmsnorm, native: threads share the rows. */
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

static const mm3_tactic tactics[] = { { .name = "default", .row_invariant = true } };

const mm3_kernel mm3__add_rmsnorm_cpu_native = {
    .op = MM3_OP_ADD_RMSNORM,
    .device = "cpu",
    .name = "native",
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .phase = { run },
};
