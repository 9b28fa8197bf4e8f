/* quantize, avx2: threads share the blocks of all rows.
 * The common body (cpu.h), compiled for AVX2: the same bits as native. */
#include <assert.h>

#include "kernels/cpu/cpu.h"

static const char *refuses(const mm3_device_info *device, const void *contract, const mm3_tactic *tactic)
{
    (void)contract;
    (void)tactic;
    return device->features & MM3_CPU_AVX2 ? NULL : "needs avx2";
}

static void run(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_quantize *op = call->op;
    assert(op->k % MM3_MX_BLOCK == 0);
    mm3__quantize_part(op, i_thread, n_threads);
}

static const mm3_tactic tactics[] = { { .name = "default", .row_invariant = true } };

const mm3_kernel mm3__quantize_cpu_avx2 = {
    .op = MM3_OP_QUANTIZE,
    .device = "cpu",
    .name = "avx2",
    .refuses = refuses,
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .phase = { run },
};
