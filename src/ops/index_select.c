/* index_select: descriptor and reference. */
#include "ops/operand.h"

static void key(const void *p, mm3_key *key)
{
    const mm3_index_select *op = p;
    mm3_key_number(key, "m", op->m);
    mm3_key_number(key, "groups", op->n_groups);
    mm3_key_number(key, "index_dim", op->kv.d_index);
    mm3_key_word(key, "kv", mm3_dtype_name(op->kv.type));
    mm3_key_number(key, "top_k", op->top_k);
    mm3_key_number(key, "block", op->block);
}

static int operands(void *p, mm3_operand *out)
{
    mm3_index_select *op = p;
    int n = 0;
    size_t rows = (size_t)op->m * sizeof(int32_t);
    mm3__operand(out, &n, "iq", &op->iq, mm3__f32s(op->m, op->n_groups * op->kv.d_index), MM3_F32, MM3_IN);
    mm3__operand(out, &n, "slot", &op->slot, rows, MM3_I32, MM3_IN);
    mm3__operand(out, &n, "position", &op->position, rows, MM3_I32, MM3_IN);
    mm3__operand(out, &n, "selected", &op->selected, mm3__f32s(op->m, op->n_groups * op->top_k), MM3_I32, MM3_OUT);
    mm3__kv_operands(out, &n, &op->kv, MM3_IN);
    return n;
}

/* Best score of a block; NaN if it has no score that is a number. Scores are rounded to FP32, as the contract says:
 * what is equal there is a tie. */
static float block_score(const mm3_index_select *op, int i_row, const float *iq, int b)
{
    const mm3_kv *kv = &op->kv;
    float best = NAN;
    for (int64_t t = (int64_t)b * op->block; t < ((int64_t)b + 1) * op->block && t <= op->position[i_row]; t++) {
        double s = 0;
        for (int d = 0; d < kv->d_index; d++)
            s += (double)iq[d] * mm3__kv_value(kv, op->slot[i_row], (int)t, kv->ik_at, 0, kv->d_index, d);
        if (isnan(best) || (float)s > best) best = (float)s;
    }
    return best;
}

/* Is block a of score x taken before block b of score y? */
static bool before(int a, float x, int b, float y)
{
    if (isnan(x) != isnan(y)) return isnan(y);
    if (isnan(x) || x == y) return a < b;
    return x > y;
}

static void select_blocks(const mm3_index_select *op, int i_row, int group, float *score, int32_t *selected)
{
    const float *iq = op->iq + ((size_t)i_row * (size_t)op->n_groups + (size_t)group) * (size_t)op->kv.d_index;
    int own = op->position[i_row] / op->block, n = 0;
    for (int b = 0; b < own && own >= op->top_k; b++) score[b] = block_score(op, i_row, iq, b);
    for (int b = 0; b <= own; b++) {
        int n_before = 1; /* the own block */
        if (own >= op->top_k && b < own)
            for (int c = 0; c < own; c++) n_before += c != b && before(c, score[c], b, score[b]);
        if (own < op->top_k || b == own || n_before < op->top_k) selected[n++] = b;
    }
}

/* Without memory for the scores the output stays all -1, which no comparison accepts. */
static void reference(const void *p, double *magnitude)
{
    const mm3_index_select *op = p;
    int most = 0;
    float *score;
    (void)magnitude;
    for (int i = 0; i < op->m; i++)
        if (op->slot[i] >= 0) most = MM3_MAX(most, op->position[i] / op->block);
    score = mm3_calloc((size_t)most + 1, sizeof *score);
    for (int i = 0; i < op->m; i++)
        for (int g = 0; g < op->n_groups; g++) {
            int32_t *selected = op->selected + ((size_t)i * (size_t)op->n_groups + (size_t)g) * (size_t)op->top_k;
            for (int j = 0; j < op->top_k; j++) selected[j] = -1;
            if (op->slot[i] >= 0 && score) select_blocks(op, i, g, score, selected);
        }
    mm3_free(score);
}

/* Tokens whose index keys a row must read: none while all blocks fit. */
static double scanned(const mm3_index_select *op, int i)
{
    int own = op->position[i] / op->block;
    return op->slot[i] < 0 || own < op->top_k ? 0.0 : (double)own * op->block;
}

static double bytes(const void *p)
{
    const mm3_index_select *op = p;
    double tokens = 0, most = 0;
    for (int i = 0; i < op->m; i++) { /* neighbours of one sequence share what they read */
        if (i && op->slot[i] != op->slot[i - 1]) {
            tokens += most;
            most = 0;
        }
        most = MM3_MAX(most, scanned(op, i));
    }
    return (tokens + most) * op->kv.d_index * (double)mm3__kv_element(&op->kv) +
           4.0 * op->m * op->n_groups * (op->kv.d_index + op->top_k);
}

static double flops(const void *p)
{
    const mm3_index_select *op = p;
    double tokens = 0;
    for (int i = 0; i < op->m; i++) tokens += scanned(op, i);
    return 2.0 * tokens * op->n_groups * op->kv.d_index;
}

const mm3_op_info mm3__index_select_info = {
    .name = "index_select",
    .n_bytes = sizeof(mm3_index_select),
    .key = key,
    .operands = operands,
    .reference = reference,
    .bytes = bytes,
    .flops = flops,
};
