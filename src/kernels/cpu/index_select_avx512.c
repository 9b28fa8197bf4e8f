/* index_select, avx512: 16 lanes of AVX-512. */
#define LANES 16
#include "kernels/cpu/index_select_body.h"

static const char *refuses(const mm3_device_info *device, const void *op, const mm3_tactic *tactic)
{
    (void)op;
    (void)tactic;
    return device->features & MM3_CPU_AVX512 ? NULL : "needs avx512";
}

static const mm3_tactic tactics[] = {
    { .name = "lanes", .v = { 0 }, .row_invariant = true }, /* a query in each lane */
    { .name = "dot", .v = { 1 }, .row_invariant = true },   /* channels in the lanes: for few queries */
};

const mm3_kernel mm3__index_select_cpu_avx512 = {
    .op = MM3_OP_INDEX_SELECT,
    .device = "cpu",
    .name = "avx512",
    .refuses = refuses,
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .scratch = scratch,
    .phase = { phase_0, phase_1 },
};
