/* rope_angles: descriptor and reference. */
#include "ops/operand.h"

enum { PAIRS = MM3_ROTARY_DIM / 2 };

static void key(const void *contract, mm3_key *key)
{
    const mm3_rope_angles *op = contract;
    mm3_key_number(key, "m", op->m);
}

static int operands(void *contract, mm3_operand *out)
{
    mm3_rope_angles *op = contract;
    size_t m = (size_t)op->m;
    int n = 0;
    mm3__operand(out, &n, "position", &op->position, m * 4, MM3_I32, MM3_IN);
    mm3__operand(out, &n, "slot", &op->slot, m * 4, MM3_I32, MM3_IN);
    mm3__operand_weight(out, &n, "inv_freq", &op->inv_freq, PAIRS * 4, MM3_F32);
    mm3__operand(out, &n, "cos", &op->cos, m * PAIRS * 4, MM3_F32, MM3_OUT);
    mm3__operand(out, &n, "sin", &op->sin, m * PAIRS * 4, MM3_F32, MM3_OUT);
    return n;
}

static void reference(const void *contract, double *magnitude)
{
    const mm3_rope_angles *op = contract;
    for (int i = 0; i < op->m; i++)
        for (int j = 0; j < PAIRS; j++) {
            int at = i * PAIRS + j;
            float position = op->slot[i] < 0 ? 0.0f : (float)op->position[i];
            float angle = (float)((double)position * op->inv_freq[j]); /* 48 bits: exact in double, rounded once */
            op->cos[at] = (float)cos(angle);
            op->sin[at] = (float)sin(angle);
            if (magnitude) magnitude[at] = 1;
        }
}

static double bytes(const void *contract)
{
    const mm3_rope_angles *op = contract;
    return op->m * (8.0 + 2.0 * PAIRS * 4) + PAIRS * 4;
}

static double flops(const void *contract)
{
    (void)contract;
    return 0;
}

const mm3_op_info mm3__rope_angles_info = {
    .name = "rope_angles",
    .n_bytes = sizeof(mm3_rope_angles),
    .key = key,
    .operands = operands,
    .reference = reference,
    .bytes = bytes,
    .flops = flops,
};
