/* index_select, native: 4 lanes, any machine. */
#define LANES 4
#include "kernels/cpu/index_select_body.h"

static const mm3_tactic tactics[] = { { .name = "default", .row_invariant = true } };

const mm3_kernel mm3__index_select_cpu_native = {
    .op = MM3_OP_INDEX_SELECT,
    .device = "cpu",
    .name = "native",
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .scratch = scratch,
    .phase = { phase_0, phase_1 },
};
