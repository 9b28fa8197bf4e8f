/* gather, native: threads share the columns, so that one row is shared too. */
#include "kernels/cpu/cpu.h"

static void run(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_gather *op = call->op;
    int begin, end;
    mm3_share(op->k, i_thread, n_threads, &begin, &end);
    for (int i = 0; i < op->m && begin < end; i++) {
        float *out = op->out + (size_t)i * (size_t)op->k + begin;
        size_t n_bytes = (size_t)(end - begin) * sizeof(float);
        if (op->row[i] < 0)
            memset(out, 0, n_bytes);
        else
            memcpy(out, op->x + (size_t)op->row[i] * (size_t)op->k + begin, n_bytes);
    }
}

static const mm3_tactic tactics[] = { { .name = "default", .row_invariant = true } };

const mm3_kernel mm3__gather_cpu_native = {
    .op = MM3_OP_GATHER,
    .device = "cpu",
    .name = "native",
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .phase = { run },
};
