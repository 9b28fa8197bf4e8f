/* embed: descriptor and reference. */
#include "ops/operand.h"

static void key(const void *contract, mm3_key *key)
{
    const mm3_embed *op = contract;
    mm3_key_number(key, "m", op->m);
    mm3_key_number(key, "k", op->k);
    mm3_key_word(key, "w", mm3_dtype_name(op->table.type));
}

static int operands(void *contract, mm3_operand *out)
{
    mm3_embed *op = contract;
    size_t m = (size_t)op->m, k = (size_t)op->k;
    int n = 0;
    mm3__operand(out, &n, "token", &op->token, m * 4, MM3_I32, MM3_IN);
    mm3__operand(out, &n, "slot", &op->slot, m * 4, MM3_I32, MM3_IN);
    mm3__operand_weight(out, &n, "table", &op->table.data, mm3__weight_bytes(&op->table, op->k), op->table.type);
    mm3__operand(out, &n, "out", &op->out, m * k * 4, MM3_F32, MM3_OUT);
    return n;
}

static void reference(const void *contract, double *magnitude)
{
    const mm3_embed *op = contract;
    for (int i = 0; i < op->m; i++)
        for (int c = 0; c < op->k; c++) {
            size_t at = (size_t)i * (size_t)op->k + (size_t)c;
            double v = op->slot[i] < 0 ? 0 : mm3__weight_value(&op->table, op->k, op->token[i], c);
            op->out[at] = (float)v;
            if (magnitude) magnitude[at] = fabs(v);
        }
}

static double bytes(const void *contract)
{
    const mm3_embed *op = contract;
    double element = op->table.type == MM3_BF16 ? 2 : 4;
    return (double)op->m * op->k * (element + 4) + op->m * 8.0;
}

static double flops(const void *contract)
{
    (void)contract;
    return 0;
}

const mm3_op_info mm3__embed_info = {
    .name = "embed",
    .n_bytes = sizeof(mm3_embed),
    .key = key,
    .operands = operands,
    .reference = reference,
    .bytes = bytes,
    .flops = flops,
};
