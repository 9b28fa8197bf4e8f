/* quantize: descriptor and reference. */
#include "ops/operand.h"

static void key(const void *contract, mm3_key *key)
{
    const mm3_quantize *op = contract;
    mm3_key_number(key, "m", op->m);
    mm3_key_number(key, "k", op->k);
}

static int operands(void *contract, mm3_operand *out)
{
    mm3_quantize *op = contract;
    size_t n_x = (size_t)op->m * (size_t)op->k;
    int n = 0;
    mm3__operand(out, &n, "x", &op->x, n_x * 4, MM3_F32, MM3_IN);
    mm3__operand(out, &n, "codes", &op->codes, n_x, MM3_U8, MM3_OUT);
    mm3__operand(out, &n, "scales", &op->scales, n_x / MM3_MX_BLOCK, MM3_U8, MM3_OUT);
    return n;
}

/* No FP32 output, so no magnitudes: candidates agree bit for bit. */
static void reference(const void *contract, double *magnitude)
{
    const mm3_quantize *op = contract;
    size_t n_blocks = (size_t)op->m * (size_t)op->k / MM3_MX_BLOCK;
    (void)magnitude;
    for (size_t b = 0; b < n_blocks; b++)
        op->scales[b] = mm3_mx_quantize_block(op->x + b * MM3_MX_BLOCK, op->codes + b * MM3_MX_BLOCK);
}

static double bytes(const void *contract)
{
    const mm3_quantize *op = contract;
    return (double)op->m * op->k * (5 + 1.0 / MM3_MX_BLOCK);
}

static double flops(const void *contract)
{
    (void)contract;
    return 0;
}

const mm3_op_info mm3__quantize_info = {
    .name = "quantize",
    .n_bytes = sizeof(mm3_quantize),
    .key = key,
    .operands = operands,
    .reference = reference,
    .bytes = bytes,
    .flops = flops,
};
