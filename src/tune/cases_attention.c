/* Cases of qk_norm_rope, index_select and attention, with their KV pages. */
#include <string.h>

#include "tune/cases.h"

enum { N_SLOTS = 3, GAP = 48 }; /* bytes between the parts of a page, which nobody may touch */

/* ---- pages ------------------------------------------------------------------------------------------------------- */

/* Pages for N_SLOTS sequences of `context` tokens in a shuffled order, with spare pages between. Everything is NaN, and
 * a page past a sequence's end has an id that leads nowhere. */
static mm3_status make_pages(mm3_case *c, mm3_kv *kv, int n_kv, int d_index, mm3_dtype type, int context,
                             mm3_access access)
{
    int pages = (context + MM3_PAGE_TOKENS - 1) / MM3_PAGE_TOKENS;
    size_t element = mm3__size_of(type), part = (size_t)n_kv * MM3_PAGE_TOKENS * MM3_HEAD_DIM * element;
    int32_t *table;
    mm3__rng r = mm3__rng_of(c->spec.seed, "pages", 0);
    *kv = (mm3_kv){ .n_pages = (N_SLOTS * pages) + 2,
                    .n_slots = N_SLOTS,
                    .max_pages = pages + 1,
                    .n_kv = n_kv,
                    .d_index = d_index,
                    .type = type };
    kv->k_at = GAP;
    kv->v_at = kv->k_at + part + GAP;
    kv->ik_at = kv->v_at + part + GAP;
    kv->page_bytes = kv->ik_at + (size_t)d_index * MM3_PAGE_TOKENS * element + GAP;
    MM3__NEED(mm3__array_add(c, "kv.pool", &kv->pool, (size_t)kv->n_pages * kv->page_bytes, 0, type, access));
    memset(kv->pool, 0xFF, (size_t)kv->n_pages * kv->page_bytes);
    table = mm3__array_add(c, "kv.table", &kv->table, (size_t)N_SLOTS * (size_t)kv->max_pages * 4, 0, MM3_I32, MM3_IN);
    MM3__NEED(table);
    for (int i = 0; i < N_SLOTS * kv->max_pages; i++) table[i] = INT32_MAX / 2;
    for (int i = 0; i < N_SLOTS * pages; i++) { /* ids 1 .. n in a random order (insertion shuffle) */
        int j = mm3__below(&r, i + 1);
        int32_t *at = &table[i / pages * kv->max_pages + i % pages],
                *other = &table[j / pages * kv->max_pages + j % pages];
        *at = *other;
        *other = i + 1;
    }
    return MM3_OK;
}

/* Write the row of one token. */
static void store(const mm3_kv *kv, int slot, int token, size_t part_at, int tile, int width, const float *x)
{
    void *base = mm3_kv_tile(kv, slot, token / MM3_PAGE_TOKENS, part_at, tile, width);
    size_t at = (size_t)(token % MM3_PAGE_TOKENS) * (size_t)width;
    for (int d = 0; d < width; d++)
        if (kv->type == MM3_BF16)
            ((uint16_t *)base)[at + (size_t)d] = mm3_bf16_from_f32(x[d]);
        else
            ((float *)base)[at + (size_t)d] = x[d];
}

/* Positions: the last one, block edges, the first, and any; a function of the row's id. */
static int position_of(const mm3_case *c, int i, int context)
{
    int id = mm3__row_id(c, i);
    mm3__rng r = mm3__rng_of(c->spec.seed, "position", id);
    int any = mm3__below(&r, context), edge = any / MM3_PAGE_TOKENS * MM3_PAGE_TOKENS;
    if (id % 6 == 0) return context - 1 - id / 6 % context;
    if (id % 6 == 1) return context - 1 - mm3__below(&r, MM3_MIN(context, 130));
    if (id % 6 == 3) return edge;
    if (id % 6 == 4) return MM3_MAX(edge - 1, 0);
    return any;
}

static mm3_status make_positions(mm3_case *c, const int32_t **at, int context, int pad)
{
    int32_t *position = mm3__array_rows(c, "position", at, 1, MM3_I32, MM3_IN);
    MM3__NEED(position);
    for (int i = 0; i < c->spec.shape.v[0]; i++)
        position[i] = mm3__row_is_padding(c, i, pad) ? -3 : position_of(c, i, context);
    return MM3_OK;
}

/* ---- qk_norm_rope ------------------------------------------------------------------------------------------------ */

#define KV_WORDS "f32 bf16"
enum { QK_M, QK_HEADS, QK_KV_HEADS, QK_INDEX_HEADS, QK_INDEX_DIM, QK_KV, QK_PAD };
static const mm3__field qk_norm_rope_field[] = {
    { "m", NULL, 3, 1, 4096 },         { "heads", NULL, 4, 1, 256 },        { "kv_heads", NULL, 2, 1, 64 },
    { "index_heads", NULL, 2, 0, 64 }, { "index_dim", NULL, 128, 64, 512 }, { "kv", KV_WORDS, 0, 0, 1 },
    { "pad", NULL, 0, 0, 1 },
};

static const char *heads_contradiction(const int *v)
{
    return v[QK_HEADS] % v[QK_KV_HEADS] ? "heads is not a multiple of kv_heads" : NULL;
}

static float *weight_row(mm3_case *c, const char *name, const float **at, int n)
{
    float *w = mm3__array_add(c, name, at, (size_t)n * 4, 0, MM3_F32, MM3_IN);
    if (!w) return NULL;
    c->array[c->n_arrays - 1].weight = true;
    mm3__fill_row(MM3_FILL_RANDOM, c->spec.seed, name, 0, w, n);
    for (int i = 0; i < n; i++) w[i] *= 0.4f;
    w[n - 1] = -1;
    return w;
}

static mm3_status qk_norm_rope_build(mm3_case *c, const int *v)
{
    enum { PAIRS = MM3_ROTARY_DIM / 2 };
    mm3_qk_norm_rope *op = &c->op.qk_norm_rope;
    int m = v[QK_M], n_kv = v[QK_KV_HEADS], d = v[QK_INDEX_DIM], n_iq = v[QK_INDEX_HEADS];
    /* Rows of a slot lie at distinct positions, across a page's edge; rows of larger ids must fit as well. */
    int first = 120, context = first + c->spec.first_row + m + 16;
    int32_t *position;
    float *cosine, *sine, *qkv;
    *op = (mm3_qk_norm_rope){ .m = m, .n_q = v[QK_HEADS], .n_iq = n_iq, .eps = 1e-6f };
    op->ld = (op->n_q + 2 * n_kv) * MM3_HEAD_DIM + (n_iq ? (n_iq + 1) * d : 0) + 5; /* columns that belong to others */
    MM3_TRY(make_pages(c, &op->kv, n_kv, d, v[QK_KV] ? MM3_BF16 : MM3_F32, context, MM3_INOUT));
    qkv = mm3__array_rows(c, "qkv", &op->qkv, op->ld, MM3_F32, MM3_IN);
    MM3__NEED(qkv);
    mm3__fill_rows(c, "qkv", qkv, op->ld);
    if (c->spec.fill == MM3_FILL_HUGE) /* the contract is FP32 throughout: squares must be in range */
        for (size_t i = 0; i < (size_t)m * (size_t)op->ld; i++) qkv[i] *= 0x1p-35f;
    MM3__NEED(weight_row(c, "q_norm", &op->q_norm, MM3_HEAD_DIM));
    MM3__NEED(weight_row(c, "k_norm", &op->k_norm, MM3_HEAD_DIM));
    if (n_iq) {
        MM3__NEED(weight_row(c, "iq_norm", &op->iq_norm, d));
        MM3__NEED(weight_row(c, "ik_norm", &op->ik_norm, d));
    }
    cosine = mm3__array_rows(c, "cos", &op->cos, PAIRS, MM3_F32, MM3_IN);
    sine = cosine ? mm3__array_rows(c, "sin", &op->sin, PAIRS, MM3_F32, MM3_IN) : NULL;
    position = sine ? mm3__array_rows(c, "position", &op->position, 1, MM3_I32, MM3_IN) : NULL;
    MM3__NEED(position);
    MM3_TRY(mm3__slots_make(c, "slot", &op->slot, v[QK_PAD]));
    for (int i = 0; i < m; i++) {
        position[i] = mm3__row_is_padding(c, i, v[QK_PAD]) ? -5 : first + mm3__row_id(c, i);
        for (int j = 0; j < PAIRS; j++) {
            double angle = (double)(mm3__row_id(c, i) + 3) / (1 + j);
            cosine[i * PAIRS + j] = (float)cos(angle);
            sine[i * PAIRS + j] = (float)sin(angle);
        }
    }
    MM3__NEED(mm3__array_rows(c, "q", &op->q, op->n_q * MM3_HEAD_DIM, MM3_F32, MM3_OUT));
    if (n_iq) MM3__NEED(mm3__array_rows(c, "iq", &op->iq, n_iq * d, MM3_F32, MM3_OUT));
    return MM3_OK;
}

const mm3__case_kind mm3__qk_norm_rope_case = { .field = qk_norm_rope_field,
                                                .n_fields = MM3_COUNT(qk_norm_rope_field),
                                                .bench = "heads=64,kv_heads=4,index_heads=4",
                                                .contradiction = heads_contradiction,
                                                .build = qk_norm_rope_build };

/* ---- index_select ------------------------------------------------------------------------------------------------ */

enum { IX_M, IX_GROUPS, IX_INDEX_DIM, IX_KV, IX_TOP_K, IX_BLOCK, IX_CONTEXT, IX_PAD };
static const mm3__field index_select_field[] = {
    { "m", NULL, 3, 1, 4096 },
    { "groups", NULL, 2, 1, 64 },
    { "index_dim", NULL, 128, 1, 512 },
    { "kv", KV_WORDS, 0, 0, 1 },
    { "top_k", NULL, 3, 1, 64 },
    { "block", NULL, 128, 1, 1024 },
    { "context", NULL, 900, 1, 1 << 20 },
    { "pad", NULL, 0, 0, 1 },
};

/* Slot 1 has negative scores only: its keys are negative and its queries positive. */
static void make_one_sign(const mm3_case *c, int slot, float sign, float *x, int n)
{
    mm3_fill f = c->spec.fill;
    if (slot != 1 || f == MM3_FILL_NAN || f == MM3_FILL_INF) return;
    for (int i = 0; i < n; i++) x[i] = copysignf(x[i], sign);
}

static mm3_status index_select_build(mm3_case *c, const int *v)
{
    mm3_index_select *op = &c->op.index_select;
    int d = v[IX_INDEX_DIM], n_iq = v[IX_GROUPS] * d;
    float *iq, *line = mm3_arena_alloc(&c->arena, (size_t)d * sizeof *line);
    MM3__NEED(line);
    *op = (mm3_index_select){ .m = v[IX_M], .n_groups = v[IX_GROUPS], .top_k = v[IX_TOP_K], .block = v[IX_BLOCK] };
    MM3_TRY(make_pages(c, &op->kv, 1, d, v[IX_KV] ? MM3_BF16 : MM3_F32, v[IX_CONTEXT], MM3_IN));
    for (int s = 0; s < N_SLOTS; s++)
        for (int t = 0; t < v[IX_CONTEXT]; t++) {
            /* `ties`: blocks repeat after three, so that scores tie exactly */
            int content = c->spec.fill == MM3_FILL_TIES ? t % (3 * op->block) : t;
            mm3__fill_row(c->spec.fill, c->spec.seed, "ik", ((int64_t)s << 32) + content, line, d);
            make_one_sign(c, s, -1, line, d);
            store(&op->kv, s, t, op->kv.ik_at, 0, d, line);
        }
    iq = mm3__array_rows(c, "iq", &op->iq, n_iq, MM3_F32, MM3_IN);
    MM3__NEED(iq);
    MM3_TRY(mm3__slots_make(c, "slot", &op->slot, v[IX_PAD]));
    for (int i = 0; i < op->m; i++) {
        /* huge times huge would be infinite, and subnormal times subnormal nothing */
        bool one = c->spec.fill == MM3_FILL_HUGE || c->spec.fill == MM3_FILL_TINY || c->spec.fill == MM3_FILL_SUBNORMAL;
        mm3__fill_row(one ? MM3_FILL_RANDOM : c->spec.fill, c->spec.seed, "iq", mm3__row_id(c, i), iq + i * n_iq, n_iq);
        make_one_sign(c, mm3__row_id(c, i) % N_SLOTS, 1, iq + i * n_iq, n_iq);
    }
    MM3_TRY(make_positions(c, &op->position, v[IX_CONTEXT], v[IX_PAD]));
    MM3__NEED(mm3__array_rows(c, "selected", &op->selected, op->n_groups * op->top_k, MM3_I32, MM3_OUT));
    return MM3_OK;
}

const mm3__case_kind mm3__index_select_case = { .field = index_select_field,
                                                .n_fields = MM3_COUNT(index_select_field),
                                                .bench = "groups=4,top_k=16,context=8192",
                                                .build = index_select_build };

/* ---- attention --------------------------------------------------------------------------------------------------- */

enum { AT_M, AT_HEADS, AT_KV_HEADS, AT_KV, AT_TOP_K, AT_BLOCK, AT_CONTEXT, AT_PAD };
static const mm3__field attention_field[] = {
    { "m", NULL, 3, 1, 4096 },
    { "heads", NULL, 4, 1, 256 },
    { "kv_heads", NULL, 2, 1, 64 },
    { "kv", KV_WORDS, 0, 0, 1 },
    { "top_k", NULL, 0, 0, 64 },
    { "block", NULL, 128, 1, 1024 },
    { "context", NULL, 300, 1, 1 << 20 },
    { "pad", NULL, 0, 0, 1 },
};

/* NaN and infinity in single tokens: K of slot 0, V of slot 1; slot 2 and the other groups stay clean. */
static void spoil(const mm3_case *c, int slot, int token, int group, bool is_v, float *x)
{
    mm3_fill f = c->spec.fill;
    if ((f != MM3_FILL_NAN && f != MM3_FILL_INF) || group != 0 || token != c->spec.shape.v[AT_CONTEXT] / 2) return;
    if (slot == (is_v ? 1 : 0)) x[5] = f == MM3_FILL_NAN ? NAN : INFINITY;
}

static mm3_status fill_kv(mm3_case *c, const mm3_kv *kv, int context)
{
    mm3_fill f = c->spec.fill == MM3_FILL_NAN || c->spec.fill == MM3_FILL_INF ? MM3_FILL_RANDOM : c->spec.fill;
    float line[MM3_HEAD_DIM];
    for (int s = 0; s < N_SLOTS; s++)
        for (int t = 0; t < context; t++)
            for (int g = 0; g < kv->n_kv; g++)
                for (int is_v = 0; is_v < 2; is_v++) {
                    /* huge scores would leave one token alone: only V is huge */
                    mm3__fill_row(f == MM3_FILL_HUGE && !is_v ? MM3_FILL_RANDOM : f, c->spec.seed, is_v ? "v" : "k",
                                  ((int64_t)(s * kv->n_kv + g) << 32) + t, line, MM3_HEAD_DIM);
                    spoil(c, s, t, g, is_v, line);
                    store(kv, s, t, is_v ? kv->v_at : kv->k_at, g, MM3_HEAD_DIM, line);
                }
    return MM3_OK;
}

/* Blocks as index_select gives them: ascending, the own one among them, -1 at the end. */
static void choose_blocks(mm3__rng *r, int own, int top_k, int32_t *out)
{
    int n = 0, left = MM3_MIN(top_k, own + 1) - 1; /* of the blocks before the own one */
    for (int b = 0; b < own && left > 0; b++)
        if (mm3__below(r, own - b) < left) {
            out[n++] = b;
            left--;
        }
    out[n++] = own;
    while (n < top_k) out[n++] = -1;
}

static mm3_status attention_build(mm3_case *c, const int *v)
{
    mm3_attention *op = &c->op.attention;
    int width = v[AT_HEADS] * MM3_HEAD_DIM, n_lists = v[AT_KV_HEADS], context = v[AT_CONTEXT];
    float *q;
    *op = (mm3_attention){ .m = v[AT_M],
                           .n_q = v[AT_HEADS],
                           .top_k = v[AT_TOP_K],
                           .block = v[AT_BLOCK],
                           .context = context,
                           .scale = 0.08838834764831845f };
    MM3_TRY(make_pages(c, &op->kv, n_lists, 64, v[AT_KV] ? MM3_BF16 : MM3_F32, context, MM3_IN));
    MM3_TRY(fill_kv(c, &op->kv, context));
    q = mm3__array_rows(c, "q", &op->q, width, MM3_F32, MM3_IN);
    MM3__NEED(q);
    for (int i = 0; i < op->m; i++)
        mm3__fill_row(c->spec.fill == MM3_FILL_HUGE ? MM3_FILL_RANDOM : c->spec.fill, c->spec.seed, "q",
                      mm3__row_id(c, i), q + (size_t)i * (size_t)width, width);
    MM3_TRY(mm3__slots_make(c, "slot", &op->slot, v[AT_PAD]));
    MM3_TRY(make_positions(c, &op->position, context, v[AT_PAD]));
    if (op->top_k) {
        int32_t *selected = mm3__array_rows(c, "selected", &op->selected, n_lists * op->top_k, MM3_I32, MM3_IN);
        MM3__NEED(selected);
        for (int i = 0; i < op->m; i++)
            for (int g = 0; g < n_lists; g++) {
                mm3__rng r = mm3__rng_of(c->spec.seed, "selected", (int64_t)mm3__row_id(c, i) * n_lists + g);
                int32_t *list = selected + (i * n_lists + g) * op->top_k;
                for (int j = 0; j < op->top_k; j++) list[j] = -1;
                if (op->slot[i] >= 0) choose_blocks(&r, op->position[i] / op->block, op->top_k, list);
            }
    }
    MM3__NEED(mm3__array_rows(c, "out", &op->out, width, MM3_F32, MM3_OUT));
    return MM3_OK;
}

/* Length and largest magnitude of a token's row of K or V; 0 where it is not finite. */
static void measure(const mm3_kv *kv, int slot, int token, int group, size_t part_at, double *length, double *most)
{
    const void *base = mm3_kv_tile(kv, slot, token / MM3_PAGE_TOKENS, part_at, group, MM3_HEAD_DIM);
    size_t at = (size_t)(token % MM3_PAGE_TOKENS) * MM3_HEAD_DIM;
    double sum = 0, largest = 0;
    for (size_t d = 0; d < MM3_HEAD_DIM; d++) {
        double x = kv->type == MM3_BF16 ? (double)mm3_bf16_to_f32(((const uint16_t *)base)[at + d])
                                        : (double)((const float *)base)[at + d];
        sum += x * x;
        largest = fmax(largest, fabs(x));
    }
    *length = isfinite(sum) ? sqrt(sum) : 0;
    *most = isfinite(sum) ? largest : 0;
}

/* Into aside[]: for each row and head, the largest sum |scale q k| over visible tokens, bounded by the lengths of q and
 * k (Cauchy-Schwarz). The judge's bound needs it; one value per element keeps the judge simple. A token whose score is
 * -infinity has no weight, but makes the reference's magnitude NaN: then the largest |v| bounds it. */
static mm3_status attention_finish(mm3_case *c)
{
    const mm3_attention *op = &c->op.attention;
    const mm3_kv *kv = &op->kv;
    size_t n_tokens = (size_t)N_SLOTS * (size_t)kv->n_kv * (size_t)op->context;
    double *k_length = mm3_arena_alloc(&c->arena, n_tokens * sizeof *k_length);
    double *v_most = mm3_arena_alloc(&c->arena, n_tokens * sizeof *v_most), unused;
    c->aside = mm3_calloc((size_t)op->m * (size_t)op->n_q * MM3_HEAD_DIM, sizeof *c->aside);
    MM3__NEED(k_length && v_most ? c->aside : NULL);
    for (int s = 0, at = 0; s < N_SLOTS; s++)
        for (int g = 0; g < kv->n_kv; g++)
            for (int t = 0; t < op->context; t++, at++) {
                measure(kv, s, t, g, kv->k_at, &k_length[at], &unused);
                measure(kv, s, t, g, kv->v_at, &unused, &v_most[at]);
            }
    for (int i = 0; i < op->m; i++)
        for (int h = 0; h < op->n_q && op->slot[i] >= 0; h++) {
            size_t at = ((size_t)i * (size_t)op->n_q + (size_t)h) * MM3_HEAD_DIM;
            size_t first =
                ((size_t)op->slot[i] * (size_t)kv->n_kv + (size_t)(h / (op->n_q / kv->n_kv))) * (size_t)op->context;
            double q_sum = 0, k_top = 0, v_top = 0;
            for (size_t d = 0; d < MM3_HEAD_DIM; d++) q_sum += (double)op->q[at + d] * (double)op->q[at + d];
            for (size_t t = 0; t <= (size_t)op->position[i]; t++) {
                k_top = fmax(k_top, k_length[first + t]);
                v_top = fmax(v_top, v_most[first + t]);
            }
            for (size_t d = 0; d < MM3_HEAD_DIM; d++) {
                c->aside[at + d] = (double)op->scale * sqrt(q_sum) * k_top;
                if (isnan(c->magnitude[at + d])) c->magnitude[at + d] = v_top * (1 + c->aside[at + d]);
            }
        }
    return MM3_OK;
}

const mm3__case_kind mm3__attention_case = { .field = attention_field,
                                             .n_fields = MM3_COUNT(attention_field),
                                             .bench = "heads=64,kv_heads=4,top_k=16,context=8192",
                                             .contradiction = heads_contradiction,
                                             .build = attention_build,
                                             .finish = attention_finish };
