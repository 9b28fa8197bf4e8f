/* qk_norm_rope, avx512: 16 lanes of AVX-512. */
#define LANES 16
#include "kernels/cpu/qk_norm_rope_body.h"

static const char *refuses(const mm3_device_info *device, const void *op, const mm3_tactic *tactic)
{
    (void)op;
    (void)tactic;
    return device->features & MM3_CPU_AVX512 ? NULL : "needs avx512";
}

static const mm3_tactic tactics[] = { { .name = "default", .row_invariant = true } };

const mm3_kernel mm3__qk_norm_rope_cpu_avx512 = {
    .op = MM3_OP_QK_NORM_ROPE,
    .device = "cpu",
    .name = "avx512",
    .refuses = refuses,
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .scratch = scratch,
    .phase = { run },
};
