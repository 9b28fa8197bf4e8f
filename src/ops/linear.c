/* linear: descriptor and reference. */
#include "ops/operand.h"

int mm3_linear_type(const mm3_linear *op)
{
    for (int s = 1; s < op->n_segments; s++)
        if (op->segment[s].type != op->segment[0].type) return -1;
    return (int)op->segment[0].type;
}

static bool reads_codes(const mm3_linear *op)
{
    for (int s = 0; s < op->n_segments; s++)
        if (op->segment[s].type == MM3_MX && op->act == MM3_ACT_W8A8) return true;
    return false;
}

static bool reads_x(const mm3_linear *op)
{
    for (int s = 0; s < op->n_segments; s++)
        if (op->segment[s].type != MM3_MX || op->act == MM3_ACT_W8A16) return true;
    return false;
}

static void key(const void *contract, mm3_key *key)
{
    const mm3_linear *op = contract;
    int type = mm3_linear_type(op);
    mm3_key_number(key, "m", op->m);
    mm3_key_number(key, "n", op->n);
    mm3_key_number(key, "k", op->k);
    mm3_key_word(key, "w", type < 0 ? "mixed" : mm3_dtype_name((mm3_dtype)type));
    mm3_key_word(key, "act", mm3_act_name(op->act));
}

static int operands(void *contract, mm3_operand *out)
{
    static const char *const name[MM3_MAX_SEGMENTS][2] = { { "segment[0].data", "segment[0].scales" },
                                                           { "segment[1].data", "segment[1].scales" },
                                                           { "segment[2].data", "segment[2].scales" },
                                                           { "segment[3].data", "segment[3].scales" },
                                                           { "segment[4].data", "segment[4].scales" } };
    mm3_linear *op = contract;
    size_t m = (size_t)op->m, k = (size_t)op->k;
    int n = 0;
    if (reads_x(op)) mm3__operand(out, &n, "x", &op->x, m * k * 4, MM3_F32, MM3_IN);
    if (reads_codes(op)) {
        mm3__operand(out, &n, "x_codes", &op->x_codes, m * k, MM3_U8, MM3_IN);
        mm3__operand(out, &n, "x_scales", &op->x_scales, m * k / MM3_MX_BLOCK, MM3_U8, MM3_IN);
    }
    for (int s = 0; s < op->n_segments; s++) {
        mm3_weight *w = &op->segment[s];
        size_t n_w = (size_t)w->n * k;
        bool mx = w->type == MM3_MX;
        mm3__operand_weight(out, &n, name[s][0], &w->data,
                            n_w * (mx                    ? 1
                                   : w->type == MM3_BF16 ? 2
                                                         : 4),
                            mx ? MM3_U8 : w->type);
        if (mx) mm3__operand_weight(out, &n, name[s][1], &w->scales, n_w / MM3_MX_BLOCK, MM3_U8);
    }
    mm3__operand(out, &n, "out", &op->out, m * (size_t)op->n * 4, MM3_F32, MM3_OUT);
    return n;
}

static void reference(const void *contract, double *magnitude)
{
    const mm3_linear *op = contract;
    size_t k = (size_t)op->k;
    for (int i = 0; i < op->m; i++)
        for (int s = 0, first = 0; s < op->n_segments; first += op->segment[s++].n) {
            const mm3_weight *w = &op->segment[s];
            bool codes = w->type == MM3_MX && op->act == MM3_ACT_W8A8;
            for (int j = 0; j < w->n; j++) {
                size_t at = (size_t)i * (size_t)op->n + (size_t)(first + j);
                double sum = 0, size = 0;
                for (int c = 0; c < op->k; c++) {
                    size_t x_at = (size_t)i * k + (size_t)c;
                    double x = codes ? mm3__mx_value(op->x_codes, op->x_scales, x_at) : (double)op->x[x_at];
                    double product = x * mm3__weight_value(w, op->k, j, c);
                    sum += product;
                    size += fabs(product);
                }
                op->out[at] = (float)sum;
                if (magnitude) magnitude[at] = size;
            }
        }
}

static double bytes(const void *contract)
{
    const mm3_linear *op = contract;
    double m = op->m, k = op->k, sum = m * op->n * 4;
    for (int s = 0; s < op->n_segments; s++) sum += (double)mm3__weight_bytes(&op->segment[s], op->k);
    if (reads_x(op)) sum += m * k * 4;
    if (reads_codes(op)) sum += m * k * (1 + 1.0 / MM3_MX_BLOCK);
    return sum;
}

static double flops(const void *contract)
{
    const mm3_linear *op = contract;
    return 2.0 * op->m * op->n * op->k;
}

const mm3_op_info mm3__linear_info = {
    .name = "linear",
    .n_bytes = sizeof(mm3_linear),
    .key = key,
    .operands = operands,
    .reference = reference,
    .bytes = bytes,
    .flops = flops,
};
