/* gather: descriptor and reference. */
#include "ops/operand.h"

static void key(const void *contract, mm3_key *key)
{
    const mm3_gather *op = contract;
    mm3_key_number(key, "m", op->m);
    mm3_key_number(key, "k", op->k);
}

static int operands(void *contract, mm3_operand *out)
{
    mm3_gather *op = contract;
    size_t m = (size_t)op->m, k = (size_t)op->k;
    int n = 0;
    mm3__operand(out, &n, "x", &op->x, (size_t)op->n_rows * k * 4, MM3_F32, MM3_IN);
    mm3__operand(out, &n, "row", &op->row, m * 4, MM3_I32, MM3_IN);
    mm3__operand(out, &n, "out", &op->out, m * k * 4, MM3_F32, MM3_OUT);
    return n;
}

static void reference(const void *contract, double *magnitude)
{
    const mm3_gather *op = contract;
    for (int i = 0; i < op->m; i++)
        for (int c = 0; c < op->k; c++) {
            size_t at = (size_t)i * (size_t)op->k + (size_t)c;
            op->out[at] = op->row[i] < 0 ? 0 : op->x[(size_t)op->row[i] * (size_t)op->k + (size_t)c];
            if (magnitude) magnitude[at] = fabs((double)op->out[at]);
        }
}

static double bytes(const void *contract)
{
    const mm3_gather *op = contract;
    return (double)op->m * op->k * 8 + op->m * 4.0;
}

static double flops(const void *contract)
{
    (void)contract;
    return 0;
}

const mm3_op_info mm3__gather_info = {
    .name = "gather",
    .n_bytes = sizeof(mm3_gather),
    .key = key,
    .operands = operands,
    .reference = reference,
    .bytes = bytes,
    .flops = flops,
};
