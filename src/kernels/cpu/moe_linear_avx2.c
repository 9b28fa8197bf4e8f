/* moe_linear, avx2: MX weights by FP32 multiply-adds. Phase 1 prepares the input rows, phase 2 multiplies. */
#include "kernels/cpu/rows_avx2.h"

static const char *refuses(const mm3_device_info *device, const void *contract, const mm3_tactic *tactic)
{
    const mm3_moe_linear *op = contract;
    return mm3__avx2_refuses(device, mm3_moe_linear_type(op), op->m, tactic);
}

static size_t scratch(const void *contract, const mm3_tactic *tactic, int n_threads)
{
    const mm3_moe_linear *op = contract;
    return mm3__avx2_scratch(tactic, mm3__moe_linear_rows(op), op->k, n_threads);
}

static void prepare(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_moe_linear *op = call->op;
    mm3__avx2 a = mm3__avx2_at(call->tactic, call->scratch, mm3__moe_linear_rows(op), op->k, i_thread);
    mm3__avx2_prepare(&a, mm3__moe_linear_rows(op), op->k, op->x, op->act == MM3_ACT_W8A8 ? op->x_codes : NULL,
                      op->x_scales, i_thread, n_threads);
}

static void multiply(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_moe_linear *op = call->op;
    mm3__avx2 a = mm3__avx2_at(call->tactic, call->scratch, mm3__moe_linear_rows(op), op->k, i_thread);
    mm3__moe_linear_jobs(op, i_thread, n_threads, mm3__avx2_run, &a);
}

const mm3_kernel mm3__moe_linear_cpu_avx2 = {
    .op = MM3_OP_MOE_LINEAR,
    .device = "cpu",
    .name = "avx2",
    .refuses = refuses,
    .tactics = mm3__avx2_tactics,
    .n_tactics = MM3__AVX2_TACTICS,
    .scratch = scratch,
    .phase = { prepare, multiply },
    .operand = MM3_F32,
};
