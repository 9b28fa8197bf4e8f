/* swiglu_quantize, avx512: y stays in the core.
 * The common body (cpu.h), compiled for AVX-512: the same bits as the parts, one after the other. */
#include <assert.h>

#include "kernels/cpu/cpu.h"

static const char *refuses(const mm3_device_info *device, const void *contract, const mm3_tactic *tactic)
{
    (void)contract;
    (void)tactic;
    return device->features & MM3_CPU_AVX512 ? NULL : "needs avx512";
}

static void run(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_swiglu_quantize *op = call->op;
    assert(op->n % MM3_MX_BLOCK == 0);
    mm3__swiglu_quantize_part(op, i_thread, n_threads);
}

static const mm3_tactic tactics[] = { { .name = "default", .row_invariant = true } };

const mm3_kernel mm3__swiglu_quantize_cpu_avx512 = {
    .op = MM3_OP_SWIGLU_QUANTIZE,
    .device = "cpu",
    .name = "avx512",
    .refuses = refuses,
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .phase = { run },
};
