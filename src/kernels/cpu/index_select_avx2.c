/* index_select, avx2: 8 lanes of AVX2. */
#define LANES 8
#include "kernels/cpu/index_select_body.h"

static const char *refuses(const mm3_device_info *device, const void *op, const mm3_tactic *tactic)
{
    (void)op;
    (void)tactic;
    return device->features & MM3_CPU_AVX2 ? NULL : "needs avx2";
}

static const mm3_tactic tactics[] = {
    { .name = "lanes", .v = { 0 }, .row_invariant = true }, /* a query in each lane */
    { .name = "dot", .v = { 1 }, .row_invariant = true },   /* channels in the lanes: for few queries */
};

const mm3_kernel mm3__index_select_cpu_avx2 = {
    .op = MM3_OP_INDEX_SELECT,
    .device = "cpu",
    .name = "avx2",
    .refuses = refuses,
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .scratch = scratch,
    .phase = { phase_0, phase_1 },
};
