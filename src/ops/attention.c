/* attention: descriptor and reference. */
#include "ops/operand.h"

static void key(const void *p, mm3_key *key)
{
    const mm3_attention *op = p;
    mm3_key_number(key, "m", op->m);
    mm3_key_number(key, "heads", op->n_q);
    mm3_key_number(key, "kv_heads", op->kv.n_kv);
    mm3_key_word(key, "kv", mm3_dtype_name(op->kv.type));
    mm3_key_number(key, "top_k", op->selected ? op->top_k : 0); /* 0: dense */
    mm3_key_number(key, "block", op->selected ? op->block : 0);
}

static int operands(void *p, mm3_operand *out)
{
    mm3_attention *op = p;
    int n = 0;
    size_t rows = (size_t)op->m * sizeof(int32_t);
    mm3__operand(out, &n, "q", &op->q, mm3__f32s(op->m, op->n_q * MM3_HEAD_DIM), MM3_F32, MM3_IN);
    mm3__operand(out, &n, "slot", &op->slot, rows, MM3_I32, MM3_IN);
    mm3__operand(out, &n, "position", &op->position, rows, MM3_I32, MM3_IN);
    if (op->selected)
        mm3__operand(out, &n, "selected", &op->selected, mm3__f32s(op->m, op->kv.n_kv * op->top_k), MM3_I32, MM3_IN);
    mm3__operand(out, &n, "out", &op->out, mm3__f32s(op->m, op->n_q * MM3_HEAD_DIM), MM3_F32, MM3_OUT);
    mm3__kv_operands(out, &n, &op->kv, MM3_IN);
    return n;
}

static const int32_t *list_of(const mm3_attention *op, int i_row, int g)
{
    return op->selected + ((size_t)i_row * (size_t)op->kv.n_kv + (size_t)g) * (size_t)op->top_k;
}

static bool sees(const mm3_attention *op, int i_row, int g, int token)
{
    if (!op->selected) return true;
    for (int j = 0; j < op->top_k; j++)
        if (list_of(op, i_row, g)[j] == token / op->block) return true;
    return false;
}

/* scale * q . K[t], and the size of its terms. */
static double score(const mm3_attention *op, int i_row, const float *q, int g, int t, double *size)
{
    double s = 0;
    *size = 0;
    for (int d = 0; d < MM3_HEAD_DIM; d++) {
        double x = (double)q[d] * mm3__kv_value(&op->kv, op->slot[i_row], t, op->kv.k_at, g, MM3_HEAD_DIM, d);
        s += x;
        *size += fabs(x);
    }
    *size *= (double)op->scale;
    return s * (double)op->scale;
}

/* Two passes over the tokens. The magnitude counts what a rounding of a score does to its weight: a factor of
 * 1 + the size of the score's terms. */
static void one_head(const mm3_attention *op, int i_row, int h, float *out, double *magnitude)
{
    const float *q = op->q + ((size_t)i_row * (size_t)op->n_q + (size_t)h) * MM3_HEAD_DIM;
    double sum = 0, top = -INFINITY, size, y[MM3_HEAD_DIM] = { 0 }, terms[MM3_HEAD_DIM] = { 0 };
    int g = h / (op->n_q / op->kv.n_kv);
    for (int t = 0; t <= op->position[i_row]; t++)
        if (sees(op, i_row, g, t)) top = fmax(top, score(op, i_row, q, g, t, &size));
    for (int t = 0; t <= op->position[i_row]; t++) {
        double w;
        if (!sees(op, i_row, g, t)) continue;
        w = exp(score(op, i_row, q, g, t, &size) - top);
        sum += w;
        for (int d = 0; d < MM3_HEAD_DIM; d++) {
            double v = mm3__kv_value(&op->kv, op->slot[i_row], t, op->kv.v_at, g, MM3_HEAD_DIM, d);
            y[d] += w * v;
            terms[d] += w * fabs(v) * (1 + size);
        }
    }
    for (int d = 0; d < MM3_HEAD_DIM; d++) {
        out[d] = (float)(y[d] / sum);
        if (magnitude) magnitude[d] = terms[d] / sum;
    }
}

static void reference(const void *p, double *magnitude)
{
    const mm3_attention *op = p;
    for (int i = 0; i < op->m; i++)
        for (int h = 0; h < op->n_q; h++) {
            size_t at = ((size_t)i * (size_t)op->n_q + (size_t)h) * MM3_HEAD_DIM;
            if (op->slot[i] >= 0) {
                one_head(op, i, h, op->out + at, magnitude ? magnitude + at : NULL);
                continue;
            }
            for (size_t d = 0; d < MM3_HEAD_DIM; d++) {
                op->out[at + d] = 0;
                if (magnitude) magnitude[at + d] = 0;
            }
        }
}

/* Tokens that a row's KV group reads. */
static double visible(const mm3_attention *op, int i, int g)
{
    double n = 0, end = (double)op->position[i] + 1;
    if (op->slot[i] < 0) return 0;
    if (!op->selected) return end;
    for (int j = 0; j < op->top_k && list_of(op, i, g)[j] >= 0; j++) {
        double begin = (double)list_of(op, i, g)[j] * op->block;
        n += MM3_MAX(0.0, MM3_MIN(end, begin + op->block) - begin);
    }
    return n;
}

static double bytes(const void *p)
{
    const mm3_attention *op = p;
    double tokens = 0;
    for (int g = 0; g < op->kv.n_kv; g++) {
        double most = 0;
        for (int i = 0; i < op->m; i++) { /* neighbours of one sequence share what they read */
            if (i && op->slot[i] != op->slot[i - 1]) {
                tokens += most;
                most = 0;
            }
            most = MM3_MAX(most, visible(op, i, g));
        }
        tokens += most;
    }
    return tokens * 2 * MM3_HEAD_DIM * (double)mm3__kv_element(&op->kv) + 8.0 * op->m * op->n_q * MM3_HEAD_DIM;
}

static double flops(const void *p)
{
    const mm3_attention *op = p;
    double tokens = 0;
    for (int g = 0; g < op->kv.n_kv; g++)
        for (int i = 0; i < op->m; i++) tokens += visible(op, i, g);
    return tokens * (op->n_q / op->kv.n_kv) * MM3_HEAD_DIM * 4.0;
}

const mm3_op_info mm3__attention_info = {
    .name = "attention",
    .n_bytes = sizeof(mm3_attention),
    .key = key,
    .operands = operands,
    .reference = reference,
    .bytes = bytes,
    .flops = flops,
};
