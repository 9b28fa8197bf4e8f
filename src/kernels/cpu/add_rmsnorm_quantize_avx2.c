/* add_rmsnorm_quantize, avx2: a row of y is quantized while it is at hand.
 * The common body (cpu.h), compiled for AVX2: the same bits as the parts, one after the other. */
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
    const mm3_add_rmsnorm_quantize *op = call->op;
    assert(op->k % MM3_MX_BLOCK == 0);
    mm3__add_rmsnorm_quantize_part(op, i_thread, n_threads);
}

static const mm3_tactic tactics[] = { { .name = "default", .row_invariant = true } };

const mm3_kernel mm3__add_rmsnorm_quantize_cpu_avx2 = {
    .op = MM3_OP_ADD_RMSNORM_QUANTIZE,
    .device = "cpu",
    .name = "avx2",
    .refuses = refuses,
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .phase = { run },
};
