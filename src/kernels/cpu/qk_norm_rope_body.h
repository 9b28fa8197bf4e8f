/* qk_norm_rope_body: written once for every width of vectors. Included by one .c file per candidate, after LANES.
 * An item is one head of one row: q, k, v and index heads alike. */
#ifndef MM3_QK_NORM_ROPE_BODY_H
#define MM3_QK_NORM_ROPE_BODY_H

#include "kernels/cpu/lanes.h"
#include "kernels/kernels.h"

enum { DIM = MM3_HEAD_DIM, HALF = MM3_ROTARY_DIM / 2 };

/* y = RMSNorm(x) * (1 + w), its first 64 channels rotated.
 *   width  a multiple of 32, at least 64 */
LANES_INLINE void norm_rope(float *y, const float *x, const float *w, int width, float eps, const float *cos,
                            const float *sin)
{
    vf sum = vf_set(0.0f), factor;
    for (int j = 0; j < width; j += LANES) sum = vf_fma(vf_load(x + j), vf_load(x + j), sum);
    factor = vf_set(1.0f / sqrtf(vf_sum(sum) / (float)width + eps));
    for (int j = 0; j < HALF; j += LANES) {
        vf a = vf_load(x + j) * factor * (vf_set(1.0f) + vf_load(w + j)), c = vf_load(cos + j);
        vf b = vf_load(x + j + HALF) * factor * (vf_set(1.0f) + vf_load(w + j + HALF)), s = vf_load(sin + j);
        vf_store(y + j, a * c - b * s);
        vf_store(y + j + HALF, b * c + a * s);
    }
    for (int j = 2 * HALF; j < width; j += LANES)
        vf_store(y + j, vf_load(x + j) * factor * (vf_set(1.0f) + vf_load(w + j)));
}

/* A row of a KV tile: y, rounded where the cache is BF16. */
LANES_INLINE void append(const mm3_kv *kv, int slot, int position, size_t part_at, int tile, int width, const float *y)
{
    void *base = mm3_kv_tile(kv, slot, position / MM3_PAGE_TOKENS, part_at, tile, width);
    size_t at = (size_t)(position % MM3_PAGE_TOKENS) * (size_t)width;
    if (kv->type == MM3_BF16)
        for (int j = 0; j < width; j += LANES) vf_store_bf16((uint16_t *)base + at + j, vf_load(y + j));
    else
        memcpy((float *)base + at, y, (size_t)width * sizeof *y);
}

/* Head h of a row: q heads, then k, v, index q, index k, in the order of qkv's columns.
 *   spare  [max(128, d_index)] */
static void one_head(const mm3_qk_norm_rope *op, int row, int h, float *spare)
{
    const mm3_kv *kv = &op->kv;
    const float *x = op->qkv + (size_t)row * (size_t)op->ld, *cos = op->cos + (size_t)row * HALF;
    const float *sin = op->sin + (size_t)row * HALF;
    int slot = op->slot[row], position = op->position[row], d = kv->d_index;
    float *y;
    if (h < op->n_q) {
        y = op->q + ((size_t)row * (size_t)op->n_q + (size_t)h) * DIM;
        if (slot < 0)
            memset(y, 0, DIM * sizeof *y);
        else
            norm_rope(y, x + h * DIM, op->q_norm, DIM, op->eps, cos, sin);
        return;
    }
    x += op->n_q * DIM;
    h -= op->n_q;
    if (h < 2 * kv->n_kv) {
        bool is_v = h >= kv->n_kv;
        if (slot < 0) return;
        x += h * DIM;
        if (!is_v) norm_rope(spare, x, op->k_norm, DIM, op->eps, cos, sin);
        append(kv, slot, position, is_v ? kv->v_at : kv->k_at, h % kv->n_kv, DIM, is_v ? x : spare);
        return;
    }
    x += 2 * kv->n_kv * DIM;
    h -= 2 * kv->n_kv;
    if (h < op->n_iq) {
        y = op->iq + ((size_t)row * (size_t)op->n_iq + (size_t)h) * (size_t)d;
        if (slot < 0)
            memset(y, 0, (size_t)d * sizeof *y);
        else
            norm_rope(y, x + h * d, op->iq_norm, d, op->eps, cos, sin);
        return;
    }
    if (slot < 0) return;
    norm_rope(spare, x + op->n_iq * d, op->ik_norm, d, op->eps, cos, sin);
    append(kv, slot, position, kv->ik_at, 0, d, spare);
}

static size_t spare_of(const mm3_qk_norm_rope *op) { return ((size_t)MM3_MAX(DIM, op->kv.d_index) + 15) / 16 * 16; }

static size_t scratch(const void *p, const mm3_tactic *tactic, int n_threads)
{
    (void)tactic;
    return spare_of(p) * sizeof(float) * (size_t)n_threads;
}

static void run(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_qk_norm_rope *op = call->op;
    float *spare = (float *)call->scratch + spare_of(op) * (size_t)i_thread;
    int n_heads = op->n_q + 2 * op->kv.n_kv + (op->n_iq ? op->n_iq + 1 : 0), begin, end;
    mm3_share(op->m * n_heads, i_thread, n_threads, &begin, &end);
    for (int i = begin; i < end; i++) one_head(op, i / n_heads, i % n_heads, spare);
}

#endif
