/* add_rmsnorm_quantize, split: no code of its own; the chain's parts are bound. */
#include "kernels/kernels.h"

static const mm3_tactic tactics[] = { { .name = "default", .row_invariant = true } };

const mm3_kernel mm3__add_rmsnorm_quantize_cpu_split = {
    .op = MM3_OP_ADD_RMSNORM_QUANTIZE,
    .device = "cpu",
    .name = "split",
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
};
