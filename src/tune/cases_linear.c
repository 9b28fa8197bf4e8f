/* Cases of linear, moe_linear and quantize. */
#include <string.h>

#include "tune/cases.h"

enum { W_MX, W_BF16, W_F32, W_MIXED };
#define W_WORDS "mx bf16 f32 mixed"
#define ACT_WORDS "w8a8 w8a16" /* in the order of mm3_act */

/* Type of segment s. */
static mm3_dtype type_of(int w, int s)
{
    static const mm3_dtype type[] = { MM3_MX, MM3_BF16, MM3_F32 };
    return type[w == W_MIXED ? s % 3 : w];
}

/* Rows of segment s of n rows in n_segments: unequal, at least one each. */
static int rows_of(int n, int n_segments, int s)
{
    int begin, end, half = n - n_segments; /* one each, the rest shared 1 : 2 : 3 ... */
    int total = n_segments * (n_segments + 1) / 2;
    begin = (int)((int64_t)half * (s * (s + 1) / 2) / total);
    end = (int)((int64_t)half * ((s + 1) * (s + 2) / 2) / total);
    return 1 + end - begin;
}

/* Activations of n_rows rows whose content has the ids id[]: FP32 and MXFP8, as the weights read them. */
static mm3_status make_x(mm3_case *c, const int *id, int n_rows, int k, size_t row_bytes_per, bool x, bool codes,
                         const float **x_at, const uint8_t **codes_at, const uint8_t **scales_at)
{
    const mm3_case_spec *s = &c->spec;
    size_t n = (size_t)n_rows * (size_t)k, n_blocks = (size_t)(k / MM3_MX_BLOCK);
    if (x) {
        float *dst = mm3__array_add(c, "x", x_at, n * 4, row_bytes_per * (size_t)k * 4, MM3_F32, MM3_IN);
        MM3__NEED(dst);
        for (int i = 0; i < n_rows; i++) {
            float *row = dst + (size_t)i * (size_t)k;
            mm3__fill_row(s->fill, s->seed, "x", id[i], row, k);
            if (s->fill == MM3_FILL_SUBNORMAL && id[i] & 1) /* bring subnormal weights back into range */
                for (int j = 0; j < k; j++) row[j] *= 0x1p125f;
            if (s->fill == MM3_FILL_SCALES && id[i] & 1) /* the complement of the weights' scales, see fill.c */
                for (int j = 0; j < k; j++) {
                    int e = 127 - (int)((s->seed * 11 + (uint64_t)(j / MM3_MX_BLOCK) * 37) % 255);
                    row[j] = ldexpf(row[j], MM3_MIN(e, 120));
                }
        }
    }
    if (codes) {
        uint8_t *dst = mm3__array_add(c, "x_codes", codes_at, n, row_bytes_per * (size_t)k, MM3_U8, MM3_IN);
        uint8_t *scales = dst ? mm3__array_add(c, "x_scales", scales_at, (size_t)n_rows * n_blocks,
                                               row_bytes_per * n_blocks, MM3_U8, MM3_IN)
                              : NULL;
        MM3__NEED(scales);
        for (int i = 0; i < n_rows; i++)
            mm3__fill_mx_row(s->fill, s->seed, "x codes", id[i], false, dst + (size_t)i * (size_t)k,
                             scales + (size_t)i * n_blocks, k);
    }
    return MM3_OK;
}

/* What flushing subnormal operands and products to zero may cost: 2^-126 for each product, and 2^-126 times its partner
 * for each operand. Only fills that have such numbers need it; products of W8A8 are exact. */
static bool has_small(mm3_fill fill)
{
    return fill == MM3_FILL_TINY || fill == MM3_FILL_SUBNORMAL || fill == MM3_FILL_SCALES || fill == MM3_FILL_ZERO;
}

static double sum_of_row(const mm3_weight *w, int j, int k)
{
    double sum = 0;
    for (int i = 0; i < k; i++) {
        size_t at = (size_t)j * (size_t)k + (size_t)i;
        double v;
        if (w->type == MM3_F32)
            v = (double)((const float *)w->data)[at];
        else if (w->type == MM3_BF16)
            v = (double)mm3_bf16_to_f32(((const uint16_t *)w->data)[at]);
        else
            v = (double)mm3_e4m3_to_f32(((const uint8_t *)w->data)[at]) *
                (double)mm3_e8m0_to_f32(w->scales[at / MM3_MX_BLOCK]);
        sum += fabs(v);
    }
    return sum;
}

static double sum_of_x(const float *x, int k)
{
    double sum = 0;
    for (int i = 0; i < k; i++) sum += fabs((double)x[i]);
    return sum;
}

/* ---- linear ------------------------------------------------------------------------------------------------------ */

static const mm3__field linear_field[] = {
    { "m", NULL, 3, 1, 4096 }, { "n", NULL, 64, 1, 1 << 20 }, { "k", NULL, 96, 1, 1 << 20 },
    { "w", W_WORDS, 0, 0, 3 }, { "act", ACT_WORDS, 0, 0, 1 }, { "segments", NULL, 1, 1, MM3_MAX_SEGMENTS },
};

static const char *linear_contradiction(const int *v)
{
    if (v[2] % MM3_MX_BLOCK && (v[3] == W_MX || v[3] == W_MIXED)) return "k is not a multiple of 32, but w is mx";
    if (v[1] < v[5]) return "n is less than the number of segments";
    if (v[3] == W_MIXED && v[5] < 2) return "w=mixed needs segments=2 or more";
    if ((int64_t)v[1] * v[2] > INT32_MAX) return "n * k is beyond 2^31";
    return NULL;
}

static mm3_status linear_build(mm3_case *c, const int *v)
{
    static const char *const name[MM3_MAX_SEGMENTS][2] = { { "segment 0", "scales 0" },
                                                           { "segment 1", "scales 1" },
                                                           { "segment 2", "scales 2" },
                                                           { "segment 3", "scales 3" },
                                                           { "segment 4", "scales 4" } };
    mm3_linear *op = &c->op.linear;
    int *id = mm3_arena_alloc(&c->arena, (size_t)v[0] * sizeof *id);
    bool x = false, codes = false;
    MM3__NEED(id);
    *op = (mm3_linear){ .m = v[0], .n = v[1], .k = v[2], .act = (mm3_act)v[4], .n_segments = v[5] };
    for (int s = 0; s < op->n_segments; s++) {
        op->segment[s].n = rows_of(op->n, op->n_segments, s);
        op->segment[s].type = type_of(v[3], s);
        if (op->segment[s].type == MM3_MX && op->act == MM3_ACT_W8A8)
            codes = true;
        else
            x = true;
        MM3_TRY(mm3__weight_make(c, name[s], name[s][0], &op->segment[s], op->k));
    }
    for (int i = 0; i < op->m; i++) id[i] = mm3__row_id(c, i);
    MM3_TRY(make_x(c, id, op->m, op->k, 1, x, codes, &op->x, &op->x_codes, &op->x_scales));
    MM3__NEED(mm3__array_rows(c, "out", &op->out, op->n, MM3_F32, MM3_OUT));
    return MM3_OK;
}

static mm3_status linear_finish(mm3_case *c)
{
    const mm3_linear *op = &c->op.linear;
    if (!has_small(c->spec.fill)) return MM3_OK;
    c->aside = mm3_calloc((size_t)op->m * (size_t)op->n, sizeof *c->aside);
    MM3__NEED(c->aside);
    for (int s = 0, at = 0; s < op->n_segments; s++)
        for (int j = 0; j < op->segment[s].n; j++, at++) {
            bool exact = op->act == MM3_ACT_W8A8 && op->segment[s].type == MM3_MX;
            double w_sum = exact ? 0 : sum_of_row(&op->segment[s], j, op->k);
            for (int i = 0; i < op->m; i++)
                c->aside[(size_t)i * (size_t)op->n + (size_t)at] =
                    0x1p-126 * (exact ? 0 : w_sum + sum_of_x(op->x + (size_t)i * (size_t)op->k, op->k));
        }
    return MM3_OK;
}

const mm3__case_kind mm3__linear_case = {
    .field = linear_field,
    .n_fields = MM3_COUNT(linear_field),
    .bench = "n=9216,k=6144",
    .contradiction = linear_contradiction,
    .build = linear_build,
    .finish = linear_finish,
};

/* ---- moe_linear -------------------------------------------------------------------------------------------------- */

enum { MOE_M, MOE_TOP_K, MOE_N, MOE_K, MOE_EXPERTS, MOE_W, MOE_ACT, MOE_IN, MOE_SEGMENTS, MOE_PAD };
static const mm3__field moe_linear_field[] = {
    { "m", NULL, 3, 1, 4096 },     { "top_k", NULL, 2, 1, 16 },    { "n", NULL, 64, 1, 1 << 20 },
    { "k", NULL, 96, 1, 1 << 20 }, { "experts", NULL, 6, 1, 512 }, { "w", W_WORDS, 0, 0, 3 },
    { "act", ACT_WORDS, 0, 0, 1 }, { "in", "row pair", 0, 0, 1 },  { "segments", NULL, 1, 1, MM3_MAX_EXPERT_SEGMENTS },
    { "pad", NULL, 0, 0, 1 },
};

static const char *moe_linear_contradiction(const int *v)
{
    if (v[MOE_K] % MM3_MX_BLOCK && (v[MOE_W] == W_MX || v[MOE_W] == W_MIXED))
        return "k is not a multiple of 32, but w is mx";
    if (v[MOE_N] < v[MOE_SEGMENTS]) return "n is less than the number of segments";
    if (v[MOE_EXPERTS] < v[MOE_TOP_K]) return "there are fewer experts than top_k";
    if (v[MOE_W] == W_MIXED && v[MOE_SEGMENTS] < 2 && v[MOE_EXPERTS] < 2) return "w=mixed needs two weights";
    return NULL;
}

/* Lists as the router makes them: the top_k distinct experts of a row follow from its id. */
static mm3_status make_pairs(mm3_case *c, const int *v, const int32_t **pair_at, const int32_t **begin_at)
{
    int m = v[MOE_M], top_k = v[MOE_TOP_K], n_expert = v[MOE_EXPERTS], n = 0;
    int32_t *pair = mm3__array_rows(c, "pair", pair_at, top_k, MM3_I32, MM3_IN);
    int32_t *begin = pair ? mm3__array_add(c, "begin", begin_at, ((size_t)n_expert + 1) * 4, 0, MM3_I32, MM3_IN) : NULL;
    int *expert = mm3_arena_alloc(&c->arena, (size_t)m * (size_t)top_k * sizeof *expert);
    MM3__NEED(begin);
    MM3__NEED(expert);
    for (int i = 0; i < m; i++) {
        mm3__rng r = mm3__rng_of(c->spec.seed, "experts", mm3__row_id(c, i));
        for (int j = 0; j < top_k; j++) {
            int *e = &expert[i * top_k + j], k = 0;
            *e = mm3__row_is_padding(c, i, v[MOE_PAD]) ? -1 : mm3__below(&r, n_expert);
            while (*e >= 0 && k < j) { /* the next one that is free */
                if (expert[i * top_k + k++] != *e) continue;
                *e = (*e + 1) % n_expert;
                k = 0;
            }
        }
    }
    for (int e = 0; e < n_expert; e++) {
        begin[e] = n;
        for (int p = 0; p < m * top_k; p++)
            if (expert[p] == e) pair[n++] = p;
    }
    begin[n_expert] = n;
    while (n < m * top_k) pair[n++] = -1;
    return MM3_OK;
}

static mm3_status make_experts(mm3_case *c, const int *v, mm3_moe_linear *op)
{
    static const char *const name[2] = { "(expert)", "(expert scales)" };
    static const char *const tag[] = { "expert 0", "expert 1", "expert 2", "expert 3", "expert 4" };
    int n_weights = op->n_expert * op->n_segments;
    mm3_weight *table = mm3__array_structs(c, "(weights)", &op->weights, (size_t)n_weights * sizeof *table, 0);
    MM3__NEED(table);
    for (int i = 0; i < n_weights; i++) {
        mm3_weight *w = &table[i];
        w->n = rows_of(op->n, op->n_segments, i % op->n_segments);
        w->type = type_of(v[MOE_W], i);
        MM3_TRY(mm3__weight_make(c, name, tag[i % MM3_COUNT(tag)], w, op->k));
    }
    return MM3_OK;
}

static mm3_status moe_linear_build(mm3_case *c, const int *v)
{
    mm3_moe_linear *op = &c->op.moe_linear;
    bool codes, x;
    int n_rows, *id;
    float *out;
    *op = (mm3_moe_linear){ .m = v[MOE_M],
                            .top_k = v[MOE_TOP_K],
                            .n = v[MOE_N],
                            .k = v[MOE_K],
                            .n_expert = v[MOE_EXPERTS],
                            .n_segments = v[MOE_SEGMENTS],
                            .by_pair = v[MOE_IN] == 1,
                            .act = (mm3_act)v[MOE_ACT] };
    codes = op->act == MM3_ACT_W8A8 && (v[MOE_W] == W_MX || v[MOE_W] == W_MIXED);
    x = op->act == MM3_ACT_W8A16 || v[MOE_W] != W_MX;
    n_rows = op->m * (op->by_pair ? op->top_k : 1);
    id = mm3_arena_alloc(&c->arena, (size_t)n_rows * sizeof *id);
    MM3__NEED(id);
    for (int i = 0; i < n_rows; i++)
        id[i] = op->by_pair ? mm3__row_id(c, i / op->top_k) * op->top_k + i % op->top_k : mm3__row_id(c, i);
    MM3_TRY(make_experts(c, v, op));
    MM3_TRY(make_x(c, id, n_rows, op->k, op->by_pair ? (size_t)op->top_k : 1, x, codes, &op->x, &op->x_codes,
                   &op->x_scales));
    MM3_TRY(make_pairs(c, v, &op->pair, &op->begin));
    out = mm3__array_rows(c, "out", &op->out, op->top_k * op->n, MM3_F32, MM3_INOUT);
    MM3__NEED(out);
    mm3__fill_rows(c, "old out", out, op->top_k * op->n);
    return MM3_OK;
}

/* One for all: the largest sums of any row and any weight row. */
static mm3_status moe_linear_finish(mm3_case *c)
{
    const mm3_moe_linear *op = &c->op.moe_linear;
    size_t n_out = (size_t)op->m * (size_t)op->top_k * (size_t)op->n;
    int n_rows = op->m * (op->by_pair ? op->top_k : 1);
    double x_sum = 0, w_sum = 0;
    if (!has_small(c->spec.fill) || !op->x) return MM3_OK;
    c->aside = mm3_calloc(n_out, sizeof *c->aside);
    MM3__NEED(c->aside);
    for (int i = 0; i < n_rows; i++) x_sum = fmax(x_sum, sum_of_x(op->x + (size_t)i * (size_t)op->k, op->k));
    for (int i = 0; i < op->n_expert * op->n_segments; i++)
        for (int j = 0; j < op->weights[i].n; j++) w_sum = fmax(w_sum, sum_of_row(&op->weights[i], j, op->k));
    for (size_t i = 0; i < n_out; i++) c->aside[i] = c->magnitude[i] > 0 ? 0x1p-126 * (x_sum + w_sum) : 0;
    return MM3_OK;
}

const mm3__case_kind mm3__moe_linear_case = {
    .field = moe_linear_field,
    .n_fields = MM3_COUNT(moe_linear_field),
    .bench = "n=6144,k=6144,experts=16,top_k=4,segments=2",
    .contradiction = moe_linear_contradiction,
    .build = moe_linear_build,
    .finish = moe_linear_finish,
};

/* ---- quantize ---------------------------------------------------------------------------------------------------- */

static const mm3__field quantize_field[] = {
    { "m", NULL, 3, 1, 1 << 16 },
    { "k", NULL, 96, 32, 1 << 20 },
};

static const char *quantize_contradiction(const int *v)
{
    return v[1] % MM3_MX_BLOCK ? "k is not a multiple of 32" : NULL;
}

/* Blocks whose largest magnitude sits on a scale's edge, and elements half way between two codes. */
static void fill_quantizer_ties(mm3__rng *r, float *x, int k)
{
    for (int b = 0; b < k / MM3_MX_BLOCK; b++, x += MM3_MX_BLOCK) {
        int e = mm3__below(r, 254) + 1, byte;
        static const uint32_t edge[] = { 0x000000, 0x5FFFFF, 0x600000, 0x600001, 0x7FFFFF };
        float top = mm3_f32_from_bits((uint32_t)e << 23 | edge[mm3__below(r, MM3_COUNT(edge))]);
        byte = mm3_e8m0_from_amax(mm3_f32_bits(top));
        for (int i = 0; i < MM3_MX_BLOCK; i++) {
            double a = (double)mm3_e4m3_to_f32((uint8_t)mm3__below(r, 0x7E)), z;
            uint8_t next = (uint8_t)(mm3_e4m3_from_f32((float)a, 127) + 1);
            z = (a + (double)mm3_e4m3_to_f32(next)) / 2; /* the tie above a */
            if (next > 0x7E) z = 448;
            x[i] = (float)ldexp(z, byte - 127);
            if (!(fabsf(x[i]) <= top)) x[i] = top;
            if (mm3__next(r) & 1) x[i] = -x[i];
        }
        x[mm3__below(r, MM3_MX_BLOCK)] = top;
    }
}

static mm3_status quantize_build(mm3_case *c, const int *v)
{
    mm3_quantize *op = &c->op.quantize;
    float *x;
    *op = (mm3_quantize){ .m = v[0], .k = v[1] };
    x = mm3__array_rows(c, "x", &op->x, op->k, MM3_F32, MM3_IN);
    MM3__NEED(x);
    for (int i = 0; i < op->m; i++) {
        float *row = x + (size_t)i * (size_t)op->k;
        mm3__rng r = mm3__rng_of(c->spec.seed, "ties", mm3__row_id(c, i));
        mm3__fill_row(c->spec.fill, c->spec.seed, "x", mm3__row_id(c, i), row, op->k);
        if (c->spec.fill == MM3_FILL_TIES) fill_quantizer_ties(&r, row, op->k);
        for (int j = 0; j < op->k && c->spec.fill == MM3_FILL_SCALES; j++) { /* any exponent, the same in a block */
            int b = (mm3__row_id(c, i) * 31 + j / MM3_MX_BLOCK * 7 + (int)(c->spec.seed % 255)) % 255;
            row[j] = ldexpf(row[j], MM3_MIN(b - 134, 119));
        }
    }
    MM3__NEED(mm3__array_rows(c, "codes", &op->codes, op->k, MM3_U8, MM3_OUT));
    MM3__NEED(mm3__array_rows(c, "scales", &op->scales, op->k / MM3_MX_BLOCK, MM3_U8, MM3_OUT));
    return MM3_OK;
}

const mm3__case_kind mm3__quantize_case = {
    .field = quantize_field,
    .n_fields = MM3_COUNT(quantize_field),
    .bench = "k=6144",
    .contradiction = quantize_contradiction,
    .build = quantize_build,
};
