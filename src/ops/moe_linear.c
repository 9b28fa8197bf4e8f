/* moe_linear: descriptor and reference. */
#include "ops/operand.h"

int mm3_moe_linear_type(const mm3_moe_linear *op)
{
    if (!op->weights) return -1;
    for (int i = 1; i < op->n_expert * op->n_segments; i++)
        if (op->weights[i].type != op->weights[0].type) return -1;
    return (int)op->weights[0].type;
}

static bool reads_codes(const mm3_moe_linear *op)
{
    return op->act == MM3_ACT_W8A8 && mm3_moe_linear_type(op) != MM3_F32 && mm3_moe_linear_type(op) != MM3_BF16;
}

static bool reads_x(const mm3_moe_linear *op) { return op->act == MM3_ACT_W8A16 || mm3_moe_linear_type(op) != MM3_MX; }

static void key(const void *contract, mm3_key *key)
{
    const mm3_moe_linear *op = contract;
    int type = mm3_moe_linear_type(op);
    mm3_key_number(key, "m", op->m);
    mm3_key_number(key, "top_k", op->top_k);
    mm3_key_number(key, "n", op->n);
    mm3_key_number(key, "k", op->k);
    mm3_key_number(key, "experts", op->n_expert);
    mm3_key_word(key, "w", type < 0 ? "mixed" : mm3_dtype_name((mm3_dtype)type));
    mm3_key_word(key, "act", mm3_act_name(op->act));
    mm3_key_word(key, "in", op->by_pair ? "pair" : "row");
}

static int operands(void *contract, mm3_operand *out)
{
    mm3_moe_linear *op = contract;
    size_t n_pairs = (size_t)op->m * (size_t)op->top_k, k = (size_t)op->k;
    size_t n_x = (op->by_pair ? n_pairs : (size_t)op->m) * k;
    int n = 0;
    if (reads_x(op)) mm3__operand(out, &n, "x", &op->x, n_x * 4, MM3_F32, MM3_IN);
    if (reads_codes(op)) {
        mm3__operand(out, &n, "x_codes", &op->x_codes, n_x, MM3_U8, MM3_IN);
        mm3__operand(out, &n, "x_scales", &op->x_scales, n_x / MM3_MX_BLOCK, MM3_U8, MM3_IN);
    }
    mm3__operand(out, &n, "pair", &op->pair, n_pairs * 4, MM3_I32, MM3_IN);
    mm3__operand(out, &n, "begin", &op->begin, ((size_t)op->n_expert + 1) * 4, MM3_I32, MM3_IN);
    /* Rows of unlisted pairs keep what was there, so the old content matters. */
    mm3__operand(out, &n, "out", &op->out, n_pairs * (size_t)op->n * 4, MM3_F32, MM3_INOUT);
    return n;
}

/* Values and scales of the hit experts' segments in turn; those of the others are empty. */
static bool more_weights(const void *contract, int i, const void **at, size_t *n_bytes)
{
    const mm3_moe_linear *op = contract;
    const mm3_weight *w;
    size_t n_scales;
    int e = i / 2 / op->n_segments;
    if (e >= op->n_expert) return false;
    w = &op->weights[i / 2];
    n_scales = w->type == MM3_MX ? (size_t)w->n * (size_t)op->k / MM3_MX_BLOCK : 0;
    *at = i % 2 ? (const void *)w->scales : w->data;
    *n_bytes = i % 2 ? n_scales : mm3__weight_bytes(w, op->k) - n_scales;
    if (op->begin[e] == op->begin[e + 1]) *n_bytes = 0;
    return true;
}

static void one_pair(const mm3_moe_linear *op, const mm3_weight *segments, int pair, double *magnitude)
{
    size_t row = (size_t)(op->by_pair ? pair : pair / op->top_k), k = (size_t)op->k;
    for (int s = 0, first = 0; s < op->n_segments; first += segments[s++].n) {
        const mm3_weight *w = &segments[s];
        bool codes = w->type == MM3_MX && op->act == MM3_ACT_W8A8;
        for (int j = 0; j < w->n; j++) {
            size_t at = (size_t)pair * (size_t)op->n + (size_t)(first + j);
            double sum = 0, size = 0;
            for (int c = 0; c < op->k; c++) {
                size_t x_at = row * k + (size_t)c;
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

static void reference(const void *contract, double *magnitude)
{
    const mm3_moe_linear *op = contract;
    if (magnitude) /* what no pair writes must stay exactly */
        for (size_t i = 0; i < (size_t)op->m * (size_t)op->top_k * (size_t)op->n; i++) magnitude[i] = 0;
    for (int e = 0; e < op->n_expert; e++)
        for (int i = op->begin[e]; i < op->begin[e + 1]; i++)
            one_pair(op, op->weights + (size_t)e * (size_t)op->n_segments, op->pair[i], magnitude);
}

static double bytes(const void *contract)
{
    const mm3_moe_linear *op = contract;
    double n_pairs = op->begin[op->n_expert], n_x = (op->by_pair ? n_pairs : op->m) * op->k;
    double sum = n_pairs * (op->n * 4.0 + 4) + (op->n_expert + 1) * 4.0;
    for (int e = 0; e < op->n_expert; e++)
        for (int s = 0; s < op->n_segments && op->begin[e] < op->begin[e + 1]; s++)
            sum += (double)mm3__weight_bytes(&op->weights[(size_t)e * (size_t)op->n_segments + (size_t)s], op->k);
    if (reads_x(op)) sum += n_x * 4;
    if (reads_codes(op)) sum += n_x * (1 + 1.0 / MM3_MX_BLOCK);
    return sum;
}

static double flops(const void *contract)
{
    const mm3_moe_linear *op = contract;
    return 2.0 * op->begin[op->n_expert] * op->n * op->k;
}

const mm3_op_info mm3__moe_linear_info = {
    .name = "moe_linear",
    .n_bytes = sizeof(mm3_moe_linear),
    .key = key,
    .operands = operands,
    .more_weights = more_weights,
    .reference = reference,
    .bytes = bytes,
    .flops = flops,
};
