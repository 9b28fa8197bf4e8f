/* attention, avx2: 8 lanes of AVX2. */
#define LANES 8
#include "kernels/cpu/attention_body.h"

static const char *refuses(const mm3_device_info *device, const void *op, const mm3_tactic *tactic)
{
    (void)op;
    (void)tactic;
    return device->features & MM3_CPU_AVX2 ? NULL : "needs avx2";
}

/* v[0]: rows that share one reading of a page */
static const mm3_tactic tactics[] = {
    { .name = "r64", .v = { 64 }, .row_invariant = true },
};

const mm3_kernel mm3__attention_cpu_avx2 = {
    .op = MM3_OP_ATTENTION,
    .device = "cpu",
    .name = "avx2",
    .refuses = refuses,
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .scratch = scratch,
    .phase = { phase_0, phase_1 },
};
