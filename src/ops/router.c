/* router: descriptor and reference. */
#include "ops/operand.h"

static void key(const void *p, mm3_key *key)
{
    const mm3_router *op = p;
    mm3_key_number(key, "m", op->m);
    mm3_key_number(key, "experts", op->n_expert);
    mm3_key_number(key, "top_k", op->top_k);
}

static int operands(void *p, mm3_operand *out)
{
    mm3_router *op = p;
    int n = 0;
    mm3__operand(out, &n, "logits", &op->logits, mm3__f32s(op->m, op->n_expert), MM3_F32, MM3_IN);
    mm3__operand_weight(out, &n, "bias", &op->bias, mm3__f32s(1, op->n_expert), MM3_F32);
    mm3__operand(out, &n, "slot", &op->slot, (size_t)op->m * sizeof(int32_t), MM3_I32, MM3_IN);
    mm3__operand(out, &n, "expert", &op->expert, mm3__f32s(op->m, op->top_k), MM3_I32, MM3_OUT);
    mm3__operand(out, &n, "weight", &op->weight, mm3__f32s(op->m, op->top_k), MM3_F32, MM3_OUT);
    mm3__operand(out, &n, "pair", &op->pair, mm3__f32s(op->m, op->top_k), MM3_I32, MM3_OUT);
    mm3__operand(out, &n, "begin", &op->begin, mm3__f32s(1, op->n_expert + 1), MM3_I32, MM3_OUT);
    return n;
}

static double sigmoid(float x) { return 1.0 / (1.0 + exp(-(double)x)); }

/* What experts are ranked by: s and s + bias each rounded to FP32, so that what is equal there is a tie. */
static float rank(const mm3_router *op, const float *logits, int e) { return (float)sigmoid(logits[e]) + op->bias[e]; }

static bool before(int a, float x, int b, float y)
{
    if (isnan(x) != isnan(y)) return isnan(y);
    if (isnan(x) || x == y) return a < b;
    return x > y;
}

static void choose(const mm3_router *op, int i, double *magnitude)
{
    const float *logits = op->logits + (size_t)i * (size_t)op->n_expert;
    int32_t *expert = op->expert + (size_t)i * (size_t)op->top_k;
    float *weight = op->weight + (size_t)i * (size_t)op->top_k;
    double sum = 0;
    for (int e = 0; e < op->n_expert; e++) {
        int n_before = 0;
        for (int f = 0; f < op->n_expert; f++)
            n_before += f != e && before(f, rank(op, logits, f), e, rank(op, logits, e));
        if (n_before < op->top_k) expert[n_before] = e;
    }
    for (int j = 0; j < op->top_k; j++) sum += sigmoid(logits[expert[j]]);
    for (int j = 0; j < op->top_k; j++) {
        weight[j] = (float)(sigmoid(logits[expert[j]]) / sum);
        if (magnitude) magnitude[(size_t)i * (size_t)op->top_k + (size_t)j] = sigmoid(logits[expert[j]]) / sum;
    }
}

static void reference(const void *p, double *magnitude)
{
    const mm3_router *op = p;
    int n_pairs = op->m * op->top_k, n = 0;
    for (int i = 0; i < op->m; i++) {
        if (op->slot[i] >= 0) {
            choose(op, i, magnitude);
            continue;
        }
        for (size_t at = (size_t)i * (size_t)op->top_k; at < ((size_t)i + 1) * (size_t)op->top_k; at++) {
            op->expert[at] = -1;
            op->weight[at] = 0;
            if (magnitude) magnitude[at] = 0;
        }
    }
    for (int e = 0; e < op->n_expert; e++) {
        op->begin[e] = n;
        for (int pair = 0; pair < n_pairs; pair++)
            if (op->expert[pair] == e) op->pair[n++] = pair;
    }
    op->begin[op->n_expert] = n;
    while (n < n_pairs) op->pair[n++] = -1;
}

static double bytes(const void *p)
{
    const mm3_router *op = p;
    return 4.0 * ((double)op->m * (op->n_expert + 3.0 * op->top_k + 1) + 2.0 * op->n_expert + 1);
}

static double flops(const void *p)
{
    (void)p;
    return 0;
}

const mm3_op_info mm3__router_info = {
    .name = "router",
    .n_bytes = sizeof(mm3_router),
    .key = key,
    .operands = operands,
    .reference = reference,
    .bytes = bytes,
    .flops = flops,
};
