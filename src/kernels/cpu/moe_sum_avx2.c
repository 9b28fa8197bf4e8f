/* moe_sum, avx2: 8 lanes of AVX2. */
#define LANES 8
#include "kernels/cpu/moe_sum_body.h"

static const char *refuses(const mm3_device_info *device, const void *op, const mm3_tactic *tactic)
{
    (void)op;
    (void)tactic;
    return device->features & MM3_CPU_AVX2 ? NULL : "needs avx2";
}

static const mm3_tactic tactics[] = { { .name = "default", .row_invariant = true } };

const mm3_kernel mm3__moe_sum_cpu_avx2 = {
    .op = MM3_OP_MOE_SUM,
    .device = "cpu",
    .name = "avx2",
    .refuses = refuses,
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .phase = { run },
};
