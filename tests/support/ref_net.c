#include "support/ref_net.h"

#include <math.h>
#include <string.h>

enum { DIM = MM3_HEAD_DIM, ROTARY = MM3_ROTARY_DIM };

typedef struct ref {
    const mm3_model *model;
    const mm3_config *c;
    bool w8a8;
    int n;                       /* tokens */
    double *x, *y, *sum;         /* [n, hidden]: residual stream, normed rows, what a block adds */
    double *q, *k, *v, *iq, *ik; /* [n, heads, dim] of each kind */
    double *attended;            /* [n, heads, 128] */
    double *gate, *up;           /* [n, widest intermediate] */
    double *score, *weight_row;  /* [n, or 2 * experts]; [widest k] */
    double *quantized;           /* [n, widest k] */
    int32_t *chosen;             /* [kv heads, topk] of one position */
    double margin;               /* of the position at hand */
} ref;

static double element(const mm3_weight *w, size_t at)
{
    if (w->type == MM3_F32) return (double)((const float *)w->data)[at];
    if (w->type == MM3_BF16) return (double)mm3_bf16_to_f32(((const uint16_t *)w->data)[at]);
    return (double)mm3_e4m3_to_f32(((const uint8_t *)w->data)[at]) * (double)mm3_e8m0_to_f32(w->scales[at / 32]);
}

/* x[n] as MXFP8 rows would have it: FP32, then 32 elements by 32 to E4M3 with a common scale. */
static const double *quantize(const ref *r, const double *x, size_t n)
{
    for (size_t i = 0; i < n; i += 32) {
        float block[32];
        uint8_t code[32], byte;
        for (int j = 0; j < 32; j++) block[j] = (float)x[i + (size_t)j];
        byte = mm3_mx_quantize_block(block, code);
        for (size_t j = 0; j < 32; j++)
            r->quantized[i + j] = (double)mm3_e4m3_to_f32(code[j]) * (double)mm3_e8m0_to_f32(byte);
    }
    return r->quantized;
}

/* out[i] = W x[i] for m rows. */
static void multiply(const ref *r, const mm3_weight *w, int k, const double *x, int m, double *out)
{
    int ld = w->n;
    if (r->w8a8 && w->type == MM3_MX) x = quantize(r, x, (size_t)m * (size_t)k);
    for (int j = 0; j < w->n; j++) {
        for (int c = 0; c < k; c++) r->weight_row[c] = element(w, (size_t)j * (size_t)k + (size_t)c);
        for (int i = 0; i < m; i++) {
            const double *row = x + (size_t)i * (size_t)k;
            double s = 0;
            for (int c = 0; c < k; c++) s += row[c] * r->weight_row[c];
            out[(size_t)i * (size_t)ld + (size_t)j] = s;
        }
    }
}

/* x / rms(x) * (1 + w); in place where y is x. */
static void norm(const ref *r, const double *x, const float *w, int k, double *y)
{
    double s = 0, scale;
    for (int c = 0; c < k; c++) s += x[c] * x[c];
    scale = 1 / sqrt(s / k + r->c->rms_norm_eps);
    for (int c = 0; c < k; c++) y[c] = x[c] * scale * (1 + (double)w[c]);
}

/* Norm of one head, then the first 64 channels turned, in pairs (j, j + 32). The angle is made in FP32. */
static void norm_and_turn(const ref *r, double *x, const float *w, int k, int position)
{
    norm(r, x, w, k, x);
    for (int j = 0; j < ROTARY / 2; j++) {
        float frequency = 1 / (float)pow(r->c->rope_theta, 2.0 * j / ROTARY), angle = (float)position * frequency;
        double a = x[j], b = x[j + ROTARY / 2], cosine = cos((double)angle), sine = sin((double)angle);
        x[j] = a * cosine - b * sine;
        x[j + ROTARY / 2] = b * cosine + a * sine;
    }
}

/* Take the best `n_best` of score[0..n), ties to the lower index; keep in `margin` how far the last one taken is from
 * the first one left. */
static void take_best(ref *r, const double *score, int n, int n_best, int32_t *best)
{
    double last = 0, first_left = -INFINITY;
    for (int b = 0; b < n_best; b++) {
        int at = -1;
        for (int i = 0; i < n; i++) {
            bool taken = false;
            for (int j = 0; j < b; j++) taken |= best[j] == i;
            if (!taken && (at < 0 || score[i] > score[at])) at = i;
        }
        best[b] = at;
        last = score[at];
    }
    for (int i = 0; i < n; i++) {
        bool taken = false;
        for (int j = 0; j < n_best; j++) taken |= best[j] == i;
        if (!taken) first_left = fmax(first_left, score[i]);
    }
    if (n_best > 0) r->margin = fmin(r->margin, last - first_left);
}

static int ascending(const void *a, const void *b) { return *(const int32_t *)a - *(const int32_t *)b; }

/* The blocks that KV head g of position p sees. */
static void choose_blocks(ref *r, int g, int p, int32_t *out)
{
    const mm3_config *c = r->c;
    int own = p / c->block_size, n = own < c->topk_blocks ? own : c->topk_blocks - 1;
    const double *iq = r->iq + ((size_t)p * (size_t)c->n_kv_heads + (size_t)g) * (size_t)c->index_dim;
    for (int b = 0; b < c->topk_blocks; b++) out[b] = -1;
    for (int b = 0; b < own; b++) {
        r->score[b] = -INFINITY;
        for (int t = b * c->block_size; t < (b + 1) * c->block_size; t++) {
            double s = 0;
            for (int d = 0; d < c->index_dim; d++) s += iq[d] * r->ik[(size_t)t * (size_t)c->index_dim + (size_t)d];
            r->score[b] = fmax(r->score[b], s);
        }
    }
    take_best(r, r->score, own, n, out);
    out[n] = own;
    qsort(out, (size_t)n + 1, sizeof *out, ascending);
}

/* Attention of one query head over the visible tokens of position p: all, or those of the blocks. */
static void attend(const ref *r, int h, int p, const int32_t *blocks)
{
    const mm3_config *c = r->c;
    int g = h / (c->n_heads / c->n_kv_heads);
    const double *q = r->q + ((size_t)p * (size_t)c->n_heads + (size_t)h) * DIM;
    double top = -INFINITY, sum = 0, *out = r->attended + ((size_t)p * (size_t)c->n_heads + (size_t)h) * DIM;
    for (int t = 0; t <= p; t++) {
        const double *k = r->k + ((size_t)t * (size_t)c->n_kv_heads + (size_t)g) * DIM;
        bool sees = !blocks;
        for (int b = 0; blocks && b < c->topk_blocks; b++) sees |= blocks[b] == t / c->block_size;
        r->score[t] = -INFINITY;
        if (!sees) continue;
        r->score[t] = 0;
        for (int d = 0; d < DIM; d++) r->score[t] += q[d] * k[d];
        r->score[t] /= sqrt(DIM);
        top = fmax(top, r->score[t]);
    }
    memset(out, 0, DIM * sizeof *out);
    for (int t = 0; t <= p; t++) {
        const double *v = r->v + ((size_t)t * (size_t)c->n_kv_heads + (size_t)g) * DIM;
        double w = exp(r->score[t] - top);
        sum += w;
        for (int d = 0; d < DIM && w > 0; d++) out[d] += w * v[d];
    }
    for (int d = 0; d < DIM; d++) out[d] /= sum;
}

static void attention(ref *r, const mm3_layer *l, int32_t *selected, double *margin)
{
    const mm3_config *c = r->c;
    int h = c->hidden_size;
    multiply(r, &l->q, h, r->y, r->n, r->q);
    multiply(r, &l->k, h, r->y, r->n, r->k);
    multiply(r, &l->v, h, r->y, r->n, r->v);
    if (l->is_sparse) {
        multiply(r, &l->iq, h, r->y, r->n, r->iq);
        multiply(r, &l->ik, h, r->y, r->n, r->ik);
    }
    for (int p = 0; p < r->n; p++) {
        double *q = r->q + (size_t)p * (size_t)c->n_heads * DIM, *k = r->k + (size_t)p * (size_t)c->n_kv_heads * DIM;
        for (int i = 0; i < c->n_heads; i++) norm_and_turn(r, q + i * DIM, l->q_norm, DIM, p);
        for (int i = 0; i < c->n_kv_heads; i++) norm_and_turn(r, k + i * DIM, l->k_norm, DIM, p);
        if (!l->is_sparse) continue;
        for (int i = 0; i < c->n_kv_heads; i++)
            norm_and_turn(r, r->iq + ((size_t)p * (size_t)c->n_kv_heads + (size_t)i) * (size_t)c->index_dim, l->iq_norm,
                          c->index_dim, p);
        norm_and_turn(r, r->ik + (size_t)p * (size_t)c->index_dim, l->ik_norm, c->index_dim, p);
    }
    for (int p = 0; p < r->n; p++) {
        size_t per_position = (size_t)c->n_kv_heads * (size_t)c->topk_blocks;
        r->margin = INFINITY;
        for (int g = 0; l->is_sparse && g < c->n_kv_heads; g++) choose_blocks(r, g, p, r->chosen + g * c->topk_blocks);
        for (int i = 0; i < c->n_heads; i++)
            attend(r, i, p, l->is_sparse ? r->chosen + i / (c->n_heads / c->n_kv_heads) * c->topk_blocks : NULL);
        if (margin) margin[p] = fmin(margin[p], r->margin);
        if (!selected) continue;
        if (!l->is_sparse)
            for (size_t i = 0; i < per_position; i++) r->chosen[i] = -1;
        memcpy(selected + (size_t)p * per_position, r->chosen, per_position * sizeof *selected);
    }
    multiply(r, &l->o, c->n_heads * DIM, r->attended, r->n, r->sum);
}

/* out += factor * MLP(y) of m rows. */
static void add_mlp(const ref *r, const mm3_weight *gate, const mm3_weight *up, const mm3_weight *down, const double *y,
                    int m, double factor, double *out)
{
    const mm3_config *c = r->c;
    int inner = gate->n, h = c->hidden_size;
    double *result = mm3_calloc((size_t)m * (size_t)h, sizeof *result);
    multiply(r, gate, h, y, m, r->gate);
    multiply(r, up, h, y, m, r->up);
    for (int i = 0; i < m * inner; i++) {
        double g = fmin(r->gate[i], c->swiglu_limit), u = fmax(fmin(r->up[i], c->swiglu_limit), -c->swiglu_limit);
        r->gate[i] = g / (1 + exp(-c->swiglu_alpha * g)) * (u + c->swiglu_beta);
    }
    multiply(r, down, inner, r->gate, m, result);
    for (int i = 0; i < m * h; i++) out[i] += factor * result[i];
    mm3_free(result);
}

static void experts(ref *r, const mm3_layer *l, double *margin)
{
    const mm3_config *c = r->c;
    size_t h = (size_t)c->hidden_size;
    for (int p = 0; p < r->n; p++) {
        const double *y = r->y + (size_t)p * h;
        int32_t best[64];
        double *s = r->score + c->n_experts, sum = 0;
        multiply(r, &l->router, c->hidden_size, y, 1, s);
        for (int e = 0; e < c->n_experts; e++) {
            s[e] = 1 / (1 + exp(-s[e]));
            r->score[e] = s[e] + (double)l->router_bias[e];
        }
        r->margin = INFINITY;
        take_best(r, r->score, c->n_experts, c->experts_per_token, best);
        if (margin) margin[p] = fmin(margin[p], r->margin);
        for (int j = 0; j < c->experts_per_token; j++) sum += s[best[j]];
        for (int j = 0; j < c->experts_per_token; j++) {
            const mm3_weight *w = l->expert_gate_up + 2 * (size_t)best[j];
            add_mlp(r, &w[0], &w[1], &l->expert_down[best[j]], y, 1, c->routed_scaling_factor * s[best[j]] / sum,
                    r->sum + (size_t)p * h);
        }
    }
}

static double *rows(mm3_arena *a, int n, int width)
{
    return mm3_arena_alloc(a, ((size_t)n * (size_t)width + 1) * sizeof(double));
}

static bool open_ref(ref *r, mm3_arena *a)
{
    const mm3_config *c = r->c;
    int inner = MM3_MAX(c->dense_intermediate, MM3_MAX(c->expert_intermediate, c->shared_intermediate));
    int widest = MM3_MAX(inner, MM3_MAX(c->hidden_size, c->n_heads * DIM));
    double **all[] = { &r->x,  &r->y,        &r->sum,  &r->q,  &r->k,     &r->v,          &r->iq,
                       &r->ik, &r->attended, &r->gate, &r->up, &r->score, &r->weight_row, &r->quantized };
    r->x = rows(a, r->n, c->hidden_size);
    r->y = rows(a, r->n, c->hidden_size);
    r->sum = rows(a, r->n, c->hidden_size);
    r->q = rows(a, r->n, c->n_heads * DIM);
    r->k = rows(a, r->n, c->n_kv_heads * DIM);
    r->v = rows(a, r->n, c->n_kv_heads * DIM);
    r->iq = rows(a, r->n, c->n_kv_heads * c->index_dim);
    r->ik = rows(a, r->n, c->index_dim);
    r->attended = rows(a, r->n, c->n_heads * DIM);
    r->gate = rows(a, r->n, inner);
    r->up = rows(a, r->n, inner);
    r->score = rows(a, 1, MM3_MAX(r->n, 2 * c->n_experts));
    r->weight_row = rows(a, 1, widest);
    r->quantized = rows(a, r->n, widest);
    r->chosen = mm3_arena_alloc(a, ((size_t)c->n_kv_heads * (size_t)c->topk_blocks + 1) * sizeof *r->chosen);
    for (int i = 0; i < MM3_COUNT(all); i++)
        if (!*all[i]) return false;
    return r->chosen;
}

mm3_status ref_net_run(const mm3_model *model, mm3_numerics numerics, const int32_t *tokens, int n, double *logits,
                       int32_t *selected, double *margin)
{
    const mm3_config *c = &model->config;
    ref r = { .model = model, .c = c, .w8a8 = numerics == MM3_NUMERICS_W8A8, .n = n };
    mm3_arena arena = { 0 };
    size_t h = (size_t)c->hidden_size, per_layer = (size_t)n * (size_t)c->n_kv_heads * (size_t)c->topk_blocks;
    if (!open_ref(&r, &arena)) {
        mm3_arena_free(&arena);
        return mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for the reference network");
    }
    for (int p = 0; margin && p < n; p++) margin[p] = INFINITY;
    for (int p = 0; p < n; p++)
        for (size_t i = 0; i < h; i++) r.x[(size_t)p * h + i] = element(&model->embed, (size_t)tokens[p] * h + i);
    for (int i = 0; i < c->n_layers; i++) {
        const mm3_layer *l = &model->layer[i];
        for (int p = 0; p < n; p++) norm(&r, r.x + (size_t)p * h, l->input_norm, c->hidden_size, r.y + (size_t)p * h);
        attention(&r, l, selected ? selected + (size_t)i * per_layer : NULL, margin);
        for (size_t j = 0; j < (size_t)n * h; j++) r.x[j] += r.sum[j];
        for (int p = 0; p < n; p++) norm(&r, r.x + (size_t)p * h, l->post_norm, c->hidden_size, r.y + (size_t)p * h);
        memset(r.sum, 0, (size_t)n * h * sizeof *r.sum);
        if (l->is_moe) experts(&r, l, margin);
        if (l->gate.n) add_mlp(&r, &l->gate, &l->up, &l->down, r.y, n, 1, r.sum);
        for (size_t j = 0; j < (size_t)n * h; j++) r.x[j] += r.sum[j];
    }
    for (int p = 0; p < n; p++) norm(&r, r.x + (size_t)p * h, model->norm, c->hidden_size, r.y + (size_t)p * h);
    multiply(&r, &model->head, c->hidden_size, r.y, n, logits);
    for (int p = 1; margin && p < n; p++) margin[p] = fmin(margin[p], margin[p - 1]);
    mm3_arena_free(&arena);
    return MM3_OK;
}
