/* add_rmsnorm: descriptor and reference. */
#include "ops/operand.h"

static void key(const void *contract, mm3_key *key)
{
    const mm3_add_rmsnorm *op = contract;
    mm3_key_number(key, "m", op->m);
    mm3_key_number(key, "k", op->k);
    mm3_key_word(key, "delta", op->delta ? "yes" : "no");
}

static int operands(void *contract, mm3_operand *out)
{
    mm3_add_rmsnorm *op = contract;
    size_t n_x = (size_t)op->m * (size_t)op->k * 4;
    int n = 0;
    mm3__operand(out, &n, "x", &op->x, n_x, MM3_F32, op->delta ? MM3_INOUT : MM3_IN);
    if (op->delta) mm3__operand(out, &n, "delta", &op->delta, n_x, MM3_F32, MM3_IN);
    mm3__operand_weight(out, &n, "w", &op->w, (size_t)op->k * 4, MM3_F32);
    mm3__operand(out, &n, "y", &op->y, n_x, MM3_F32, MM3_OUT);
    return n;
}

/* The magnitudes are those of x with a delta, else of y: of the first output either way. y needs none of its own:
 * nothing cancels in it, so its error is relative to itself. */
static void reference(const void *contract, double *magnitude)
{
    const mm3_add_rmsnorm *op = contract;
    for (int i = 0; i < op->m; i++) {
        size_t at = (size_t)i * (size_t)op->k;
        float *x = op->x + at, *y = op->y + at;
        double sum = 0, scale;
        for (int c = 0; c < op->k; c++) {
            if (op->delta) {
                double d = op->delta[at + (size_t)c];
                if (magnitude) magnitude[at + (size_t)c] = fabs((double)x[c]) + fabs(d);
                x[c] = (float)((double)x[c] + d);
            }
            sum += (double)x[c] * x[c];
        }
        scale = 1 / sqrt(sum / op->k + (double)op->eps);
        for (int c = 0; c < op->k; c++) {
            y[c] = (float)((double)x[c] * scale * (double)(1.0f + op->w[c]));
            if (isnan(y[c])) y[c] = NAN;
            if (!op->delta && magnitude) magnitude[at + (size_t)c] = fabs((double)y[c]);
        }
    }
}

static double bytes(const void *contract)
{
    const mm3_add_rmsnorm *op = contract;
    return ((double)op->m * op->k * (op->delta ? 4 : 2) + op->k) * 4;
}

static double flops(const void *contract)
{
    (void)contract;
    return 0;
}

const mm3_op_info mm3__add_rmsnorm_info = {
    .name = "add_rmsnorm",
    .n_bytes = sizeof(mm3_add_rmsnorm),
    .key = key,
    .operands = operands,
    .reference = reference,
    .bytes = bytes,
    .flops = flops,
};
