/* qk_norm_rope: descriptor and reference. */
#include "ops/operand.h"

static void key(const void *p, mm3_key *key)
{
    const mm3_qk_norm_rope *op = p;
    mm3_key_number(key, "m", op->m);
    mm3_key_number(key, "heads", op->n_q);
    mm3_key_number(key, "kv_heads", op->kv.n_kv);
    mm3_key_number(key, "index_heads", op->n_iq);
    mm3_key_number(key, "index_dim", op->kv.d_index);
    mm3_key_number(key, "ld", op->ld);
    mm3_key_word(key, "kv", mm3_dtype_name(op->kv.type));
}

static int operands(void *p, mm3_operand *out)
{
    mm3_qk_norm_rope *op = p;
    int n = 0, d = op->kv.d_index;
    size_t rows = (size_t)op->m * sizeof(int32_t);
    mm3__operand(out, &n, "qkv", &op->qkv, mm3__f32s(op->m, op->ld), MM3_F32, MM3_IN);
    mm3__operand_weight(out, &n, "q_norm", &op->q_norm, mm3__f32s(1, MM3_HEAD_DIM), MM3_F32);
    mm3__operand_weight(out, &n, "k_norm", &op->k_norm, mm3__f32s(1, MM3_HEAD_DIM), MM3_F32);
    if (op->iq_norm) mm3__operand_weight(out, &n, "iq_norm", &op->iq_norm, mm3__f32s(1, d), MM3_F32);
    if (op->ik_norm) mm3__operand_weight(out, &n, "ik_norm", &op->ik_norm, mm3__f32s(1, d), MM3_F32);
    mm3__operand(out, &n, "cos", &op->cos, mm3__f32s(op->m, MM3_ROTARY_DIM / 2), MM3_F32, MM3_IN);
    mm3__operand(out, &n, "sin", &op->sin, mm3__f32s(op->m, MM3_ROTARY_DIM / 2), MM3_F32, MM3_IN);
    mm3__operand(out, &n, "slot", &op->slot, rows, MM3_I32, MM3_IN);
    mm3__operand(out, &n, "position", &op->position, rows, MM3_I32, MM3_IN);
    mm3__operand(out, &n, "q", &op->q, mm3__f32s(op->m, op->n_q * MM3_HEAD_DIM), MM3_F32, MM3_OUT);
    if (op->iq) mm3__operand(out, &n, "iq", &op->iq, mm3__f32s(op->m, op->n_iq * d), MM3_F32, MM3_OUT);
    mm3__kv_operands(out, &n, &op->kv, MM3_INOUT);
    return n;
}

/* One head: y and, where not NULL, magnitude. w NULL: a plain copy (v). */
static void head(const mm3_qk_norm_rope *op, int i_row, const float *x, const float *w, int width, double *y,
                 double *magnitude)
{
    enum { HALF = MM3_ROTARY_DIM / 2 };
    const float *cos = op->cos + (size_t)i_row * HALF, *sin = op->sin + (size_t)i_row * HALF;
    double sum = 0;
    for (int j = 0; j < width; j++) sum += (double)x[j] * (double)x[j];
    for (int j = 0; j < width; j++) {
        y[j] = x[j];
        if (w) y[j] = y[j] / sqrt(sum / width + (double)op->eps) * (1.0 + (double)w[j]);
        magnitude[j] = fabs(y[j]);
    }
    for (int j = 0; w && j < HALF; j++) {
        double a = y[j], b = y[j + HALF], c = cos[j], s = sin[j];
        y[j] = a * c - b * s;
        y[j + HALF] = b * c + a * s;
        magnitude[j] = fabs(a * c) + fabs(b * s);
        magnitude[j + HALF] = fabs(b * c) + fabs(a * s);
    }
}

static void store(const mm3_kv *kv, int slot, int position, size_t part_at, int tile, int width, const double *y)
{
    void *base = mm3_kv_tile(kv, slot, position / MM3_PAGE_TOKENS, part_at, tile, width);
    size_t at = (size_t)(position % MM3_PAGE_TOKENS) * (size_t)width;
    for (int j = 0; j < width; j++)
        if (kv->type == MM3_BF16)
            ((uint16_t *)base)[at + (size_t)j] = mm3_bf16_from_f32((float)y[j]);
        else
            ((float *)base)[at + (size_t)j] = (float)y[j];
}

enum { MAX_WIDTH = 4096 }; /* of an index head, far beyond any model */

static void reference(const void *p, double *magnitude)
{
    const mm3_qk_norm_rope *op = p;
    const mm3_kv *kv = &op->kv;
    double y[MAX_WIDTH], size[MAX_WIDTH];
    int d = kv->d_index;
    for (int i = 0; i < op->m; i++) {
        const float *x = op->qkv + (size_t)i * (size_t)op->ld;
        bool padded = op->slot[i] < 0;
        for (int h = 0; h < op->n_q; h++, x += MM3_HEAD_DIM) {
            size_t at = ((size_t)i * (size_t)op->n_q + (size_t)h) * MM3_HEAD_DIM;
            head(op, i, x, op->q_norm, MM3_HEAD_DIM, y, size);
            for (int j = 0; j < MM3_HEAD_DIM; j++) {
                op->q[at + (size_t)j] = padded ? 0.0f : (float)y[j];
                if (magnitude) magnitude[at + (size_t)j] = padded ? 0.0 : size[j];
            }
        }
        for (int h = 0; h < 2 * kv->n_kv; h++, x += MM3_HEAD_DIM) {
            bool is_v = h >= kv->n_kv;
            if (padded) continue;
            head(op, i, x, is_v ? NULL : op->k_norm, MM3_HEAD_DIM, y, size);
            store(kv, op->slot[i], op->position[i], is_v ? kv->v_at : kv->k_at, h % kv->n_kv, MM3_HEAD_DIM, y);
        }
        for (int h = 0; h < op->n_iq; h++, x += d) {
            head(op, i, x, op->iq_norm, d, y, size);
            for (int j = 0; j < d; j++)
                op->iq[((size_t)i * (size_t)op->n_iq + (size_t)h) * (size_t)d + (size_t)j] =
                    padded ? 0.0f : (float)y[j];
        }
        if (op->n_iq && !padded) {
            head(op, i, x, op->ik_norm, d, y, size);
            store(kv, op->slot[i], op->position[i], kv->ik_at, 0, d, y);
        }
    }
}

static double bytes(const void *p)
{
    const mm3_qk_norm_rope *op = p;
    double q = (double)(op->n_q * MM3_HEAD_DIM + op->n_iq * op->kv.d_index);
    double kv = (double)(2 * op->kv.n_kv * MM3_HEAD_DIM + (op->n_iq ? op->kv.d_index : 0));
    return op->m * (4.0 * (2.0 * q + kv) + (double)mm3__kv_element(&op->kv) * kv);
}

static double flops(const void *p)
{
    (void)p;
    return 0;
}

const mm3_op_info mm3__qk_norm_rope_info = {
    .name = "qk_norm_rope",
    .n_bytes = sizeof(mm3_qk_norm_rope),
    .key = key,
    .operands = operands,
    .reference = reference,
    .bytes = bytes,
    .flops = flops,
};
