/* attention, avx512: 16 lanes of AVX-512. */
#define LANES 16
#include "kernels/cpu/attention_body.h"

static const char *refuses(const mm3_device_info *device, const void *op, const mm3_tactic *tactic)
{
    (void)op;
    (void)tactic;
    return device->features & MM3_CPU_AVX512 ? NULL : "needs avx512";
}

/* v[0]: rows that share one reading of a page */
static const mm3_tactic tactics[] = {
    { .name = "r64", .v = { 64 }, .row_invariant = true },
};

const mm3_kernel mm3__attention_cpu_avx512 = {
    .op = MM3_OP_ATTENTION,
    .device = "cpu",
    .name = "avx512",
    .refuses = refuses,
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .scratch = scratch,
    .phase = { phase_0, phase_1 },
};
