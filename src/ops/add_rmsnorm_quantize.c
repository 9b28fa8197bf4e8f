/* add_rmsnorm_quantize: descriptor, reference and parts of the chain. */
#include "ops/operand.h"

static mm3_add_rmsnorm norm_of(const mm3_add_rmsnorm_quantize *op)
{
    return (mm3_add_rmsnorm){
        .m = op->m, .k = op->k, .eps = op->eps, .x = op->x, .delta = op->delta, .w = op->w, .y = op->y
    };
}

static mm3_quantize quantize_of(const mm3_add_rmsnorm_quantize *op)
{
    return (mm3_quantize){ .m = op->m, .k = op->k, .x = op->y, .codes = op->codes, .scales = op->scales };
}

static void key(const void *contract, mm3_key *key)
{
    const mm3_add_rmsnorm_quantize *op = contract;
    mm3_key_number(key, "m", op->m);
    mm3_key_number(key, "k", op->k);
    mm3_key_word(key, "delta", op->delta ? "yes" : "no");
}

static int operands(void *contract, mm3_operand *out)
{
    mm3_add_rmsnorm_quantize *op = contract;
    size_t n_x = (size_t)op->m * (size_t)op->k;
    int n = 0;
    mm3__operand(out, &n, "x", &op->x, n_x * 4, MM3_F32, op->delta ? MM3_INOUT : MM3_IN);
    if (op->delta) mm3__operand(out, &n, "delta", &op->delta, n_x * 4, MM3_F32, MM3_IN);
    mm3__operand_weight(out, &n, "w", &op->w, (size_t)op->k * 4, MM3_F32);
    mm3__operand(out, &n, "y", &op->y, n_x * 4, MM3_F32, MM3_OUT);
    mm3__operand(out, &n, "codes", &op->codes, n_x, MM3_U8, MM3_OUT);
    mm3__operand(out, &n, "scales", &op->scales, n_x / MM3_MX_BLOCK, MM3_U8, MM3_OUT);
    return n;
}

static void reference(const void *contract, double *magnitude)
{
    mm3_add_rmsnorm norm = norm_of(contract);
    mm3_quantize quantize = quantize_of(contract);
    mm3_op_info_of(MM3_OP_ADD_RMSNORM)->reference(&norm, magnitude);
    mm3_op_info_of(MM3_OP_QUANTIZE)->reference(&quantize, NULL);
}

/* y is written once and need not be read again. */
static double bytes(const void *contract)
{
    const mm3_add_rmsnorm_quantize *op = contract;
    return (double)op->m * op->k * ((op->delta ? 4 : 2) * 4.0 + 1 + 1.0 / MM3_MX_BLOCK) + op->k * 4.0;
}

static double flops(const void *contract)
{
    (void)contract;
    return 0;
}

static int split(const void *contract, mm3_part *parts)
{
    mm3_add_rmsnorm norm = norm_of(contract);
    mm3_quantize quantize = quantize_of(contract);
    parts[0].op = MM3_OP_ADD_RMSNORM;
    memcpy(parts[0].u.bytes, &norm, sizeof norm);
    parts[1].op = MM3_OP_QUANTIZE;
    memcpy(parts[1].u.bytes, &quantize, sizeof quantize);
    return 2;
}

const mm3_op_info mm3__add_rmsnorm_quantize_info = {
    .name = "add_rmsnorm_quantize",
    .n_bytes = sizeof(mm3_add_rmsnorm_quantize),
    .key = key,
    .operands = operands,
    .reference = reference,
    .bytes = bytes,
    .flops = flops,
    .split = split,
};
