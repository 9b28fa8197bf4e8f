/* quantize, native: the shared body on the baseline. */
#include "kernels/cpu/quantize_body.h"

static const mm3_tactic tactics[] = { { .name = "default", .row_invariant = true } };

const mm3_kernel mm3__quantize_cpu_native = {
    .op = MM3_OP_QUANTIZE,
    .device = "cpu",
    .name = "native",
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .phase = { run },
};
