/* quantize, native: threads share the blocks of all rows. */
#include <assert.h>

#include "kernels/cpu/cpu.h"

static void run(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_quantize *op = call->op;
    assert(op->k % MM3_MX_BLOCK == 0);
    mm3__quantize_part(op, i_thread, n_threads);
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
