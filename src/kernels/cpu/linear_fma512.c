/* linear, fma512: FP32 multiply-adds on vectors of 16 floats. */
#define LANES 16
#include "kernels/cpu/linear_fma_body.h"

static const char *refuses(const mm3_device_info *device, const void *op, const mm3_tactic *tactic)
{
    (void)tactic;
    return device->features & MM3_CPU_AVX512 ? refuses_types(op) : "needs avx512";
}

const mm3_kernel mm3__linear_cpu_fma512 = {
    .op = MM3_OP_LINEAR,
    .device = "cpu",
    .name = "fma512",
    .refuses = refuses,
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .phase = { run },
    .operand = MM3_F32,
};
