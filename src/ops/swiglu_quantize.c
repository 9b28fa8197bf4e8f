/* swiglu_quantize: descriptor, reference and parts of the chain. */
#include "ops/operand.h"

static mm3_swiglu swiglu_of(const mm3_swiglu_quantize *op)
{
    return (mm3_swiglu){ .m = op->m,
                         .n = op->n,
                         .alpha = op->alpha,
                         .limit = op->limit,
                         .beta = op->beta,
                         .gate_up = op->gate_up,
                         .y = op->y };
}

static mm3_quantize quantize_of(const mm3_swiglu_quantize *op)
{
    return (mm3_quantize){ .m = op->m, .k = op->n, .x = op->y, .codes = op->codes, .scales = op->scales };
}

static void key(const void *contract, mm3_key *key)
{
    const mm3_swiglu_quantize *op = contract;
    mm3_key_number(key, "m", op->m);
    mm3_key_number(key, "n", op->n);
}

static int operands(void *contract, mm3_operand *out)
{
    mm3_swiglu_quantize *op = contract;
    size_t n_y = (size_t)op->m * (size_t)op->n;
    int n = 0;
    mm3__operand(out, &n, "gate_up", &op->gate_up, n_y * 8, MM3_F32, MM3_IN);
    mm3__operand(out, &n, "y", &op->y, n_y * 4, MM3_F32, MM3_OUT);
    mm3__operand(out, &n, "codes", &op->codes, n_y, MM3_U8, MM3_OUT);
    mm3__operand(out, &n, "scales", &op->scales, n_y / MM3_MX_BLOCK, MM3_U8, MM3_OUT);
    return n;
}

/* y holds the FP32 values that the codes were made of, with swiglu's magnitudes; a candidate need not write it. */
static void reference(const void *contract, double *magnitude)
{
    mm3_swiglu swiglu = swiglu_of(contract);
    mm3_quantize quantize = quantize_of(contract);
    mm3_op_info_of(MM3_OP_SWIGLU)->reference(&swiglu, magnitude);
    mm3_op_info_of(MM3_OP_QUANTIZE)->reference(&quantize, NULL);
}

static double bytes(const void *contract)
{
    const mm3_swiglu_quantize *op = contract;
    return (double)op->m * op->n * (8 + 1 + 1.0 / MM3_MX_BLOCK);
}

static double flops(const void *contract)
{
    (void)contract;
    return 0;
}

static int split(const void *contract, mm3_part *parts)
{
    mm3_swiglu swiglu = swiglu_of(contract);
    mm3_quantize quantize = quantize_of(contract);
    parts[0].op = MM3_OP_SWIGLU;
    memcpy(parts[0].u.bytes, &swiglu, sizeof swiglu);
    parts[1].op = MM3_OP_QUANTIZE;
    memcpy(parts[1].u.bytes, &quantize, sizeof quantize);
    return 2;
}

const mm3_op_info mm3__swiglu_quantize_info = {
    .name = "swiglu_quantize",
    .n_bytes = sizeof(mm3_swiglu_quantize),
    .key = key,
    .operands = operands,
    .reference = reference,
    .bytes = bytes,
    .flops = flops,
    .split = split,
};
