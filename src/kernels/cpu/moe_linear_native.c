/* moe_linear, native: as linear's, threads sharing the weight rows of the hit experts. */
#include "kernels/cpu/cpu.h"

static size_t scratch(const void *contract, const mm3_tactic *tactic, int n_threads)
{
    const mm3_moe_linear *op = contract;
    (void)tactic;
    return mm3__native_scratch(mm3__moe_linear_rows(op), op->k, mm3__moe_linear_reads_codes(op), n_threads);
}

static void decode(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_moe_linear *op = call->op;
    if (mm3__moe_linear_reads_codes(op))
        mm3__native_decode_input(op->x_codes, mm3__moe_linear_rows(op), op->k, call->scratch, i_thread, n_threads);
}

static void multiply(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_moe_linear *op = call->op;
    mm3__native user = mm3__native_scratch_of(call->scratch, mm3__moe_linear_rows(op), op->k,
                                              mm3__moe_linear_reads_codes(op), i_thread);
    mm3__moe_linear_jobs(op, i_thread, n_threads, mm3__native_run, &user);
}

static const mm3_tactic tactics[] = { { .name = "default", .row_invariant = true } };

const mm3_kernel mm3__moe_linear_cpu_native = {
    .op = MM3_OP_MOE_LINEAR,
    .device = "cpu",
    .name = "native",
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .scratch = scratch,
    .phase = { decode, multiply },
    .operand = MM3_F32,
};
