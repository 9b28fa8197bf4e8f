/* linear, fma256: FP32 multiply-adds on vectors of 8 floats. */
#define LANES 8
#include "kernels/cpu/linear_fma_body.h"

static const char *refuses(const mm3_device_info *device, const void *op, const mm3_tactic *tactic)
{
    (void)tactic;
    return device->features & MM3_CPU_AVX2 ? refuses_types(op) : "needs avx2";
}

const mm3_kernel mm3__linear_cpu_fma256 = {
    .op = MM3_OP_LINEAR,
    .device = "cpu",
    .name = "fma256",
    .refuses = refuses,
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .phase = { run },
    .operand = MM3_F32,
};
