/* qk_norm_rope, native: 4 lanes, any machine. */
#define LANES 4
#include "kernels/cpu/qk_norm_rope_body.h"

static const mm3_tactic tactics[] = { { .name = "default", .row_invariant = true } };

const mm3_kernel mm3__qk_norm_rope_cpu_native = {
    .op = MM3_OP_QK_NORM_ROPE,
    .device = "cpu",
    .name = "native",
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .scratch = scratch,
    .phase = { run },
};
