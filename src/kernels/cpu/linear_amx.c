/* linear, amx: MX weights by BF16 tiles. Three phases: prepare the input rows, pack them as columns, multiply. */
#include "kernels/cpu/rows_amx.h"

static const char *refuses(const mm3_device_info *device, const void *contract, const mm3_tactic *tactic)
{
    const mm3_linear *op = contract;
    return mm3__amx_refuses(device, mm3_linear_type(op), op->m, tactic);
}

static size_t scratch(const void *contract, const mm3_tactic *tactic, int n_threads)
{
    const mm3_linear *op = contract;
    return mm3__amx_scratch(tactic, op->m, op->m, op->k, op->m, n_threads);
}

static mm3__amx amx_of(const mm3_call *call, int i_thread)
{
    const mm3_linear *op = call->op;
    mm3__amx a = mm3__amx_at(call->tactic, call->scratch, op->m, op->m, op->k, op->m, i_thread);
    return a;
}

static void prepare(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_linear *op = call->op;
    mm3__amx a = amx_of(call, i_thread);
    mm3__x512_prepare(&a.x, op->x, op->act == MM3_ACT_W8A8 ? op->x_codes : NULL, op->x_scales, i_thread, n_threads);
}

static void pack(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_linear *op = call->op;
    mm3__amx a = amx_of(call, i_thread);
    mm3__amx_pack(&a, NULL, 1, 0, op->m, i_thread, n_threads);
}

static void multiply(const mm3_call *call, int i_thread, int n_threads)
{
    mm3__amx a = amx_of(call, i_thread);
    mm3__linear_jobs(call->op, i_thread, n_threads, mm3__amx_run, &a);
}

const mm3_kernel mm3__linear_cpu_amx = {
    .op = MM3_OP_LINEAR,
    .device = "cpu",
    .name = "amx",
    .refuses = refuses,
    .tactics = mm3__amx_tactics,
    .n_tactics = MM3__AMX_TACTICS,
    .scratch = scratch,
    .phase = { prepare, pack, multiply },
    .operand = MM3_BF16,
};
