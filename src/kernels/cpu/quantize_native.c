/* quantize, native: the common body (cpu.h) on the baseline. */
#include "kernels/cpu/cpu.h"

static void run(const mm3_call *call, int i_thread, int n_threads)
{
    mm3__quantize_part(call->op, i_thread, n_threads);
}

static const mm3_tactic tactics[] = { { .name = "default", .row_invariant = true } };

const mm3_kernel mm3__quantize_cpu_native = {
    .op = MM3_OP_QUANTIZE,
    .device = "cpu",
    .name = "native",
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .phase = { run },
};
