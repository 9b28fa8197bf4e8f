/* moe_sum: descriptor and reference. */
#include "ops/operand.h"

static void key(const void *p, mm3_key *key)
{
    const mm3_moe_sum *op = p;
    mm3_key_number(key, "m", op->m);
    mm3_key_number(key, "top_k", op->top_k);
    mm3_key_number(key, "k", op->k);
    mm3_key_number(key, "shared", op->shared != NULL);
}

static int operands(void *p, mm3_operand *out)
{
    mm3_moe_sum *op = p;
    int n = 0;
    mm3__operand(out, &n, "y", &op->y, mm3__f32s(op->m * op->top_k, op->k), MM3_F32, MM3_IN);
    mm3__operand(out, &n, "expert", &op->expert, mm3__f32s(op->m, op->top_k), MM3_I32, MM3_IN);
    mm3__operand(out, &n, "weight", &op->weight, mm3__f32s(op->m, op->top_k), MM3_F32, MM3_IN);
    if (op->shared) mm3__operand(out, &n, "shared", &op->shared, mm3__f32s(op->m, op->k), MM3_F32, MM3_IN);
    mm3__operand(out, &n, "out", &op->out, mm3__f32s(op->m, op->k), MM3_F32, MM3_OUT);
    return n;
}

static void reference(const void *p, double *magnitude)
{
    const mm3_moe_sum *op = p;
    for (int i = 0; i < op->m; i++)
        for (int c = 0; c < op->k; c++) {
            size_t at = (size_t)i * (size_t)op->k + (size_t)c;
            double sum = 0, size = 0, shared = op->shared ? (double)op->shared[at] : 0.0;
            for (int j = 0; j < op->top_k; j++) {
                size_t pair = (size_t)i * (size_t)op->top_k + (size_t)j;
                double term;
                if (op->expert[pair] < 0) continue;
                term = (double)op->weight[pair] * (double)op->y[pair * (size_t)op->k + (size_t)c];
                sum += term;
                size += fabs(term);
            }
            op->out[at] = (float)((double)op->scale * sum + shared);
            if (magnitude) magnitude[at] = fabs((double)op->scale) * size + fabs(shared);
        }
}

static double bytes(const void *p)
{
    const mm3_moe_sum *op = p;
    double rows = op->m * (op->shared ? 2.0 : 1.0);
    for (size_t i = 0; i < (size_t)op->m * (size_t)op->top_k; i++) rows += op->expert[i] >= 0;
    return 4.0 * rows * op->k + 8.0 * op->m * op->top_k;
}

static double flops(const void *p)
{
    (void)p;
    return 0;
}

const mm3_op_info mm3__moe_sum_info = {
    .name = "moe_sum",
    .n_bytes = sizeof(mm3_moe_sum),
    .key = key,
    .operands = operands,
    .reference = reference,
    .bytes = bytes,
    .flops = flops,
};
