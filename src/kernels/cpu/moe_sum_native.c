/* moe_sum, native: 4 lanes, any machine. */
#define LANES 4
#include "kernels/cpu/moe_sum_body.h"

static const mm3_tactic tactics[] = { { .name = "default", .row_invariant = true } };

const mm3_kernel mm3__moe_sum_cpu_native = {
    .op = MM3_OP_MOE_SUM,
    .device = "cpu",
    .name = "native",
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .phase = { run },
};
