/* rope_angles, native: once a step, so libm's functions; they reduce a large angle exactly. Threads share the rows. */
#include "kernels/cpu/cpu.h"

static void run(const mm3_call *call, int i_thread, int n_threads)
{
    enum { PAIRS = MM3_ROTARY_DIM / 2 };
    const mm3_rope_angles *op = call->op;
    int begin, end;
    mm3_share(op->m, i_thread, n_threads, &begin, &end);
    for (int i = begin; i < end; i++) {
        float position = op->slot[i] < 0 ? 0.0f : (float)op->position[i];
        for (int j = 0; j < PAIRS; j++) {
            float angle = position * op->inv_freq[j];
            op->cos[i * PAIRS + j] = cosf(angle);
            op->sin[i * PAIRS + j] = sinf(angle);
        }
    }
}

static const mm3_tactic tactics[] = { { .name = "default", .row_invariant = true } };

const mm3_kernel mm3__rope_angles_cpu_native = {
    .op = MM3_OP_ROPE_ANGLES,
    .device = "cpu",
    .name = "native",
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .phase = { run },
};
