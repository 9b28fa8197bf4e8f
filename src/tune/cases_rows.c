/* Cases of the operations that go row by row: embed, rope_angles, the norms, swiglu, moe_sum, gather. */
#include "tune/cases.h"

static float *filled_rows(mm3_case *c, const char *name, const void *at, int n, mm3_access access)
{
    float *x = mm3__array_rows(c, name, at, n, MM3_F32, access);
    if (x) mm3__fill_rows(c, name, x, n);
    return x;
}

/* ---- embed ------------------------------------------------------------------------------------------------------- */

static const mm3__field embed_field[] = {
    { "m", NULL, 3, 1, 1 << 16 }, { "k", NULL, 96, 1, 1 << 20 }, { "n", NULL, 50, 1, 1 << 20 },
    { "w", "bf16 f32", 0, 0, 1 }, { "pad", NULL, 0, 0, 1 },
};

static mm3_status embed_build(mm3_case *c, const int *v)
{
    static const char *const name[2] = { "table", "" };
    mm3_embed *op = &c->op.embed;
    int32_t *token;
    *op = (mm3_embed){ .m = v[0], .k = v[1], .table = { .n = v[2], .type = v[3] ? MM3_F32 : MM3_BF16 } };
    MM3_TRY(mm3__weight_make(c, name, "table", &op->table, op->k));
    token = mm3__array_rows(c, "token", &op->token, 1, MM3_I32, MM3_IN);
    MM3__NEED(token);
    MM3_TRY(mm3__slots_make(c, "slot", &op->slot, v[4]));
    for (int i = 0; i < op->m; i++) {
        mm3__rng r = mm3__rng_of(c->spec.seed, "token", mm3__row_id(c, i));
        token[i] = mm3__row_id(c, i) == 0 ? op->table.n - 1 : mm3__below(&r, op->table.n);
        if (mm3__row_is_padding(c, i, v[4])) token[i] = -12345; /* must not be looked up */
    }
    MM3__NEED(mm3__array_rows(c, "out", &op->out, op->k, MM3_F32, MM3_OUT));
    return MM3_OK;
}

const mm3__case_kind mm3__embed_case = {
    .field = embed_field, .n_fields = MM3_COUNT(embed_field), .bench = "k=6144,n=4096", .build = embed_build
};

/* ---- rope_angles ------------------------------------------------------------------------------------------------- */

static const mm3__field rope_angles_field[] = { { "m", NULL, 3, 1, 1 << 16 }, { "pad", NULL, 0, 0, 1 } };

static mm3_status rope_angles_build(mm3_case *c, const int *v)
{
    static const int32_t edge[] = { 0, 1, 127, 128, 8191, 65535, 999999, 1048575 };
    mm3_rope_angles *op = &c->op.rope_angles;
    int32_t *position;
    float *inv_freq;
    *op = (mm3_rope_angles){ .m = v[0] };
    position = mm3__array_rows(c, "position", &op->position, 1, MM3_I32, MM3_IN);
    MM3__NEED(position);
    MM3_TRY(mm3__slots_make(c, "slot", &op->slot, v[1]));
    inv_freq = mm3__array_add(c, "inv_freq", &op->inv_freq, MM3_ROTARY_DIM / 2 * 4, 0, MM3_F32, MM3_IN);
    MM3__NEED(inv_freq);
    c->array[c->n_arrays - 1].weight = true;
    for (int i = 0; i < op->m; i++) {
        int id = mm3__row_id(c, i);
        mm3__rng r = mm3__rng_of(c->spec.seed, "position", id);
        position[i] = id % 2 ? mm3__below(&r, 1 << 20) : edge[id / 2 % MM3_COUNT(edge)];
        if (mm3__row_is_padding(c, i, v[1])) position[i] = -7;
    }
    for (int j = 0; j < MM3_ROTARY_DIM / 2; j++) inv_freq[j] = 1.0f / powf(5e6f, (float)(2 * j) / MM3_ROTARY_DIM);
    MM3__NEED(mm3__array_rows(c, "cos", &op->cos, MM3_ROTARY_DIM / 2, MM3_F32, MM3_OUT));
    MM3__NEED(mm3__array_rows(c, "sin", &op->sin, MM3_ROTARY_DIM / 2, MM3_F32, MM3_OUT));
    return MM3_OK;
}

const mm3__case_kind mm3__rope_angles_case = {
    .field = rope_angles_field, .n_fields = MM3_COUNT(rope_angles_field), .bench = "", .build = rope_angles_build
};

/* ---- add_rmsnorm, add_rmsnorm_quantize --------------------------------------------------------------------------- */

static const mm3__field norm_field[] = { { "m", NULL, 3, 1, 1 << 16 },
                                         { "k", NULL, 96, 1, 1 << 20 },
                                         { "delta", "no yes", 1, 0, 1 } };
static const mm3__field norm_quantize_field[] = { { "m", NULL, 3, 1, 1 << 16 },
                                                  { "k", NULL, 96, 32, 1 << 20 },
                                                  { "delta", "no yes", 1, 0, 1 } };
static const char *norm_quantize_contradiction(const int *v)
{
    return v[1] % MM3_MX_BLOCK ? "k is not a multiple of 32" : NULL;
}

/* Weights of a norm: stored "minus one", around 0, and exactly -1 somewhere. */
static float *norm_weight(mm3_case *c, const char *name, const float **at, int k)
{
    float *w = mm3__array_add(c, name, at, (size_t)k * 4, 0, MM3_F32, MM3_IN);
    if (!w) return NULL;
    c->array[c->n_arrays - 1].weight = true;
    mm3__fill_row(c->spec.fill == MM3_FILL_NAN ? MM3_FILL_NAN : MM3_FILL_RANDOM, c->spec.seed, name, 0, w, k);
    for (int i = 0; i < k; i++) w[i] *= 0.3f;
    w[k / 2] = -1;
    return w;
}

static mm3_status add_rmsnorm_build(mm3_case *c, const int *v)
{
    mm3_add_rmsnorm *op = &c->op.add_rmsnorm;
    *op = (mm3_add_rmsnorm){ .m = v[0], .k = v[1], .eps = 1e-6f };
    MM3__NEED(filled_rows(c, "x", &op->x, op->k, v[2] ? MM3_INOUT : MM3_IN));
    if (v[2]) MM3__NEED(filled_rows(c, "delta", &op->delta, op->k, MM3_IN));
    MM3__NEED(norm_weight(c, "w", &op->w, op->k));
    MM3__NEED(mm3__array_rows(c, "y", &op->y, op->k, MM3_F32, MM3_OUT));
    return MM3_OK;
}

static mm3_status add_rmsnorm_quantize_build(mm3_case *c, const int *v)
{
    mm3_add_rmsnorm_quantize *op = &c->op.add_rmsnorm_quantize;
    *op = (mm3_add_rmsnorm_quantize){ .m = v[0], .k = v[1], .eps = 1e-6f };
    MM3__NEED(filled_rows(c, "x", &op->x, op->k, v[2] ? MM3_INOUT : MM3_IN));
    if (v[2]) MM3__NEED(filled_rows(c, "delta", &op->delta, op->k, MM3_IN));
    MM3__NEED(norm_weight(c, "w", &op->w, op->k));
    MM3__NEED(mm3__array_rows(c, "y", &op->y, op->k, MM3_F32, MM3_OUT));
    MM3__NEED(mm3__array_rows(c, "codes", &op->codes, op->k, MM3_U8, MM3_OUT));
    MM3__NEED(mm3__array_rows(c, "scales", &op->scales, op->k / MM3_MX_BLOCK, MM3_U8, MM3_OUT));
    return MM3_OK;
}

const mm3__case_kind mm3__add_rmsnorm_case = {
    .field = norm_field, .n_fields = MM3_COUNT(norm_field), .bench = "k=6144", .build = add_rmsnorm_build
};
const mm3__case_kind mm3__add_rmsnorm_quantize_case = { .field = norm_quantize_field,
                                                        .n_fields = MM3_COUNT(norm_quantize_field),
                                                        .bench = "k=6144",
                                                        .contradiction = norm_quantize_contradiction,
                                                        .build = add_rmsnorm_quantize_build };

/* ---- swiglu, swiglu_quantize ------------------------------------------------------------------------------------- */

static const mm3__field swiglu_field[] = { { "m", NULL, 3, 1, 1 << 16 }, { "n", NULL, 96, 1, 1 << 20 } };
static const mm3__field swiglu_quantize_field[] = { { "m", NULL, 3, 1, 1 << 16 }, { "n", NULL, 96, 32, 1 << 20 } };

static const float ALPHA = 1.702f, LIMIT = 7, BETA = 1;

/* Both limits are passed by some values in the ordinary fills, and met exactly in `ties`. */
static float *gate_up(mm3_case *c, const float **at, int n)
{
    float *x = filled_rows(c, "gate_up", at, 2 * n, MM3_IN);
    bool scale = c->spec.fill == MM3_FILL_RANDOM || c->spec.fill == MM3_FILL_NAN || c->spec.fill == MM3_FILL_INF;
    for (int i = 0; x && i < c->spec.shape.v[0]; i++)
        for (int j = 0; j < 2 * n; j++) {
            float *v = &x[(size_t)i * 2 * (size_t)n + (size_t)j];
            if (scale) *v *= 8;
            if (c->spec.fill == MM3_FILL_TIES && j % 3 < 2) *v = j % 3 ? -BETA : copysignf(LIMIT, *v);
        }
    return x;
}

static mm3_status swiglu_build(mm3_case *c, const int *v)
{
    mm3_swiglu *op = &c->op.swiglu;
    *op = (mm3_swiglu){ .m = v[0], .n = v[1], .alpha = ALPHA, .limit = LIMIT, .beta = BETA };
    MM3__NEED(gate_up(c, &op->gate_up, op->n));
    MM3__NEED(mm3__array_rows(c, "y", &op->y, op->n, MM3_F32, MM3_OUT));
    return MM3_OK;
}

static mm3_status swiglu_quantize_build(mm3_case *c, const int *v)
{
    mm3_swiglu_quantize *op = &c->op.swiglu_quantize;
    *op = (mm3_swiglu_quantize){ .m = v[0], .n = v[1], .alpha = ALPHA, .limit = LIMIT, .beta = BETA };
    MM3__NEED(gate_up(c, &op->gate_up, op->n));
    MM3__NEED(mm3__array_rows(c, "y", &op->y, op->n, MM3_F32, MM3_OUT));
    MM3__NEED(mm3__array_rows(c, "codes", &op->codes, op->n, MM3_U8, MM3_OUT));
    MM3__NEED(mm3__array_rows(c, "scales", &op->scales, op->n / MM3_MX_BLOCK, MM3_U8, MM3_OUT));
    return MM3_OK;
}

const mm3__case_kind mm3__swiglu_case = {
    .field = swiglu_field, .n_fields = MM3_COUNT(swiglu_field), .bench = "n=3072", .build = swiglu_build
};
static const char *swiglu_quantize_contradiction(const int *v)
{
    return v[1] % MM3_MX_BLOCK ? "n is not a multiple of 32" : NULL;
}
const mm3__case_kind mm3__swiglu_quantize_case = { .field = swiglu_quantize_field,
                                                   .n_fields = MM3_COUNT(swiglu_quantize_field),
                                                   .bench = "n=3072",
                                                   .contradiction = swiglu_quantize_contradiction,
                                                   .build = swiglu_quantize_build };

/* ---- moe_sum ----------------------------------------------------------------------------------------------------- */

static const mm3__field moe_sum_field[] = {
    { "m", NULL, 3, 1, 1 << 16 }, { "top_k", NULL, 4, 1, 16 }, { "k", NULL, 96, 1, 1 << 20 },
    { "shared", NULL, 1, 0, 1 },  { "pad", NULL, 0, 0, 1 },
};

static mm3_status moe_sum_build(mm3_case *c, const int *v)
{
    mm3_moe_sum *op = &c->op.moe_sum;
    int32_t *expert;
    float *y, *weight;
    *op = (mm3_moe_sum){ .m = v[0], .top_k = v[1], .k = v[2], .scale = 2 };
    y = filled_rows(c, "y", &op->y, op->top_k * op->k, MM3_IN);
    expert = mm3__array_rows(c, "expert", &op->expert, op->top_k, MM3_I32, MM3_IN);
    weight = mm3__array_rows(c, "weight", &op->weight, op->top_k, MM3_F32, MM3_IN);
    MM3__NEED(y && expert ? weight : NULL);
    for (int i = 0; i < op->m; i++) {
        mm3__rng r = mm3__rng_of(c->spec.seed, "weight", mm3__row_id(c, i));
        for (int j = 0; j < op->top_k; j++) {
            int at = i * op->top_k + j;
            expert[at] = mm3__row_is_padding(c, i, v[4]) ? -1 : mm3__below(&r, 128);
            weight[at] = expert[at] < 0 ? 0 : (float)(1 + mm3__below(&r, 255)) / 256; /* `exact` needs few bits */
            for (int k = 0; expert[at] < 0 && k < op->k; k++) y[(size_t)at * (size_t)op->k + (size_t)k] = NAN;
        }
    }
    if (v[3]) MM3__NEED(filled_rows(c, "shared", &op->shared, op->k, MM3_IN));
    MM3__NEED(mm3__array_rows(c, "out", &op->out, op->k, MM3_F32, MM3_OUT));
    return MM3_OK;
}

const mm3__case_kind mm3__moe_sum_case = {
    .field = moe_sum_field, .n_fields = MM3_COUNT(moe_sum_field), .bench = "k=6144,top_k=4", .build = moe_sum_build
};

/* ---- gather ------------------------------------------------------------------------------------------------------ */

static const mm3__field gather_field[] = { { "m", NULL, 3, 1, 1 << 16 },
                                           { "k", NULL, 96, 1, 1 << 20 },
                                           { "rows", NULL, 7, 1, 1 << 16 } };

static mm3_status gather_build(mm3_case *c, const int *v)
{
    mm3_gather *op = &c->op.gather;
    float *x;
    int32_t *row;
    *op = (mm3_gather){ .m = v[0], .k = v[1], .n_rows = v[2] };
    x = mm3__array_add(c, "x", &op->x, (size_t)op->n_rows * (size_t)op->k * 4, 0, MM3_F32, MM3_IN);
    row = x ? mm3__array_rows(c, "row", &op->row, 1, MM3_I32, MM3_IN) : NULL;
    MM3__NEED(row);
    for (int i = 0; i < op->n_rows; i++)
        mm3__fill_row(c->spec.fill, c->spec.seed, "x", i, x + (size_t)i * (size_t)op->k, op->k);
    for (int i = 0; i < op->m; i++) {
        int id = mm3__row_id(c, i);
        mm3__rng r = mm3__rng_of(c->spec.seed, "row", id);
        row[i] = id == 0 ? op->n_rows - 1 : mm3__below(&r, op->n_rows + 1) - 1;
    }
    MM3__NEED(mm3__array_rows(c, "out", &op->out, op->k, MM3_F32, MM3_OUT));
    return MM3_OK;
}

const mm3__case_kind mm3__gather_case = {
    .field = gather_field, .n_fields = MM3_COUNT(gather_field), .bench = "k=6144,rows=256", .build = gather_build
};
