/* swiglu: descriptor and reference. */
#include "ops/operand.h"

static void key(const void *contract, mm3_key *key)
{
    const mm3_swiglu *op = contract;
    mm3_key_number(key, "m", op->m);
    mm3_key_number(key, "n", op->n);
}

static int operands(void *contract, mm3_operand *out)
{
    mm3_swiglu *op = contract;
    size_t n_y = (size_t)op->m * (size_t)op->n * 4;
    int n = 0;
    mm3__operand(out, &n, "gate_up", &op->gate_up, n_y * 2, MM3_F32, MM3_IN);
    mm3__operand(out, &n, "y", &op->y, n_y, MM3_F32, MM3_OUT);
    return n;
}

/* An error of alpha * g in its last bit is |alpha g| times that in exp, as far as the sigmoid is not saturated: the
 * magnitude says so. Comparisons are written so that a NaN passes through them. */
static void reference(const void *contract, double *magnitude)
{
    const mm3_swiglu *op = contract;
    double limit = (double)op->limit;
    for (int i = 0; i < op->m; i++)
        for (int c = 0; c < op->n; c++) {
            size_t at = (size_t)i * (size_t)op->n + (size_t)c;
            const float *row = op->gate_up + (size_t)i * 2 * (size_t)op->n;
            double g = (double)row[c], u = (double)row[op->n + c], a, sigmoid;
            if (g > limit) g = limit;
            if (u > limit) u = limit;
            if (u < -limit) u = -limit;
            a = (double)op->alpha * g;
            sigmoid = 1 / (1 + exp(-a));
            op->y[at] = (float)(g * sigmoid * (u + (double)op->beta));
            if (isnan(op->y[at])) op->y[at] = NAN;
            if (magnitude)
                magnitude[at] = fabs(g * sigmoid) * (fabs(u) + fabs((double)op->beta)) * (1 + fabs(a) * (1 - sigmoid));
        }
}

static double bytes(const void *contract)
{
    const mm3_swiglu *op = contract;
    return (double)op->m * op->n * 12;
}

static double flops(const void *contract)
{
    (void)contract;
    return 0;
}

const mm3_op_info mm3__swiglu_info = {
    .name = "swiglu",
    .n_bytes = sizeof(mm3_swiglu),
    .key = key,
    .operands = operands,
    .reference = reference,
    .bytes = bytes,
    .flops = flops,
};
