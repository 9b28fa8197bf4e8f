/* attention, native: 4 lanes, any machine. */
#define LANES 4
#include "kernels/cpu/attention_body.h"

static const mm3_tactic tactics[] = { { .name = "default", .v = { 16 }, .row_invariant = true } };

const mm3_kernel mm3__attention_cpu_native = {
    .op = MM3_OP_ATTENTION,
    .device = "cpu",
    .name = "native",
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .scratch = scratch,
    .phase = { phase_0, phase_1 },
};
