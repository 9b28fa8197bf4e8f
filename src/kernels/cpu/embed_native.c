/* embed, native: copy or widen table rows; threads share the columns, so that one row is shared too. */
#include "kernels/cpu/cpu.h"

static void run(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_embed *op = call->op;
    int begin, end;
    mm3_share(op->k, i_thread, n_threads, &begin, &end);
    for (int i = 0; i < op->m; i++) {
        float *out = op->out + (size_t)i * (size_t)op->k;
        size_t at = op->slot[i] < 0 ? 0 : (size_t)op->token[i] * (size_t)op->k;
        if (op->slot[i] < 0)
            for (int c = begin; c < end; c++) out[c] = 0;
        else if (op->table.type == MM3_BF16)
            for (int c = begin; c < end; c++) out[c] = mm3_bf16_to_f32(((const uint16_t *)op->table.data + at)[c]);
        else
            for (int c = begin; c < end; c++) out[c] = ((const float *)op->table.data + at)[c];
    }
}

static const mm3_tactic tactics[] = { { .name = "default", .row_invariant = true } };

const mm3_kernel mm3__embed_cpu_native = {
    .op = MM3_OP_EMBED,
    .device = "cpu",
    .name = "native",
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .phase = { run },
};
