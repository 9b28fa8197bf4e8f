/* quantize, native: threads share the blocks of all rows. */
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

static const mm3_tactic tactics[] = { { .name = "default", .row_invariant = true } };

const mm3_kernel mm3__quantize_cpu_native = {
    .op = MM3_OP_QUANTIZE,
    .device = "cpu",
    .name = "native",
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .phase = { run },
};
