/* add_rmsnorm, native: the shared body on the baseline. */
#include "kernels/cpu/add_rmsnorm_body.h"

static const mm3_tactic tactics[] = { { .name = "default", .row_invariant = true } };

const mm3_kernel mm3__add_rmsnorm_cpu_native = {
    .op = MM3_OP_ADD_RMSNORM,
    .device = "cpu",
    .name = "native",
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .phase = { run },
};
