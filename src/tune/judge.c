/* Judges of values: is an array what the reference wrote, within its bound? Judges of choices are in judge_choice.c. */
#include <float.h>
#include <stdio.h>
#include <string.h>

#include "tune/cases.h"

bool mm3__wrong(mm3_verdict *v, const char *fmt, ...)
{
    va_list args;
    v->outcome = MM3_FAILED;
    va_start(args, fmt);
    vsnprintf(v->why, sizeof v->why, fmt, args);
    va_end(args);
    return false;
}

/* "out[2, 17]" for element i. */
static const char *place(const mm3__array *a, size_t i, char *text, size_t n)
{
    size_t width = a->row_bytes / mm3__size_of(a->type);
    if (width)
        snprintf(text, n, "%s[%zu, %zu]", a->name, i / width, i % width);
    else
        snprintf(text, n, "%s[%zu]", a->name, i);
    return text;
}

static double value_at(const void *data, mm3_dtype type, size_t i)
{
    switch (type) {
    case MM3_F32:
        return (double)((const float *)data)[i];
    case MM3_BF16:
        return (double)mm3_bf16_to_f32(((const uint16_t *)data)[i]);
    case MM3_I32:
        return ((const int32_t *)data)[i];
    default:
        return ((const uint8_t *)data)[i];
    }
}

bool mm3__value_is_right(double got, double want, double bound, bool may_overflow, double *worst)
{
    double error;
    if (isnan(want)) return isnan(got);
    if (may_overflow) return true;
    if (isnan(got)) return false;
    if (isinf(want) || isinf(got)) return got == want;
    error = fabs(got - want);
    if (error == 0) return true;
    if (!(error <= bound)) return false;
    *worst = fmax(*worst, error / bound);
    return true;
}

/* Sums whose terms are beyond FP32 may overflow on the way, although a lucky order would not. */
static bool may_overflow(const mm3_case *c, const mm3__array *a, size_t i)
{
    const mm3_op_id op = c->spec.op;
    if (op != MM3_OP_LINEAR && op != MM3_OP_MOE_LINEAR && op != MM3_OP_MOE_SUM) return false;
    (void)a;
    return isfinite(c->magnitude[i]) && c->magnitude[i] > (double)FLT_MAX * (1 - 0x1p-10);
}

static bool judge_one(const mm3_case *c, const mm3__array *a, size_t i, double bound, mm3_verdict *v)
{
    char text[64];
    double got = value_at(a->area.data, a->type, i), want = value_at(a->want, a->type, i);
    if (mm3__value_is_right(got, want, bound, may_overflow(c, a, i), &v->worst)) return true;
    return mm3__wrong(v, "%s is %.9g, not %.9g (tolerance %.2g)", place(a, i, text, sizeof text), got, want, bound);
}

bool mm3__judge_value(const mm3_case *c, const mm3__array *a, const mm3__tolerance *t, const mm3_kernel *kernel,
                      mm3_verdict *v)
{
    size_t n = a->area.n_bytes / mm3__size_of(a->type);
    if (memcmp(a->area.data, a->want, a->area.n_bytes) == 0) return true;
    for (size_t i = 0; i < n; i++)
        if (!judge_one(c, a, i, t->bound(c, a, i, kernel), v)) return false;
    return true;
}

/* Equal bits; of floats any NaN equals any NaN. */
bool mm3__judge_equal(const mm3_case *c, const mm3__array *a, const mm3__tolerance *t, const mm3_kernel *kernel,
                      mm3_verdict *v)
{
    size_t size = mm3__size_of(a->type), n = a->area.n_bytes / size;
    char text[64];
    (void)c, (void)t, (void)kernel;
    if (memcmp(a->area.data, a->want, a->area.n_bytes) == 0) return true;
    for (size_t i = 0; i < n; i++) {
        double got = value_at(a->area.data, a->type, i), want = value_at(a->want, a->type, i);
        if (memcmp(a->area.data + i * size, a->want + i * size, size) == 0 || (isnan(got) && isnan(want))) continue;
        return mm3__wrong(v, "%s is %.9g, not %.9g (bits must agree)", place(a, i, text, sizeof text), got, want);
    }
    return true;
}

/* What the reference left alone must have the bits that it had. */
bool mm3__judge_kv(const mm3_case *c, const mm3__array *a, const mm3__tolerance *t, const mm3_kernel *kernel,
                   mm3_verdict *v)
{
    const mm3_kv *kv = &c->op.qk_norm_rope.kv;
    size_t size = mm3__size_of(a->type), n = a->area.n_bytes / size, page = kv->page_bytes / size;
    for (size_t i = 0; i < n; i++) {
        const unsigned char *got = a->area.data + i * size, *want = a->want + i * size, *old = a->initial + i * size;
        if (memcmp(got, want, size) == 0) continue;
        if (memcmp(want, old, size) == 0)
            return mm3__wrong(v, "page %zu of the KV pool was written at byte %zu, where nothing belongs", i / page,
                              i % page * size);
        if (!judge_one(c, a, i, t->bound(c, a, i, kernel), v)) return false;
    }
    return true;
}

bool mm3__judge_elsewhere(const mm3_case *c, const mm3__array *a, const mm3__tolerance *t, const mm3_kernel *kernel,
                          mm3_verdict *v)
{
    (void)c, (void)a, (void)t, (void)kernel, (void)v;
    return true;
}

bool mm3__judge_undefined(const mm3_case *c, const mm3__array *a, const mm3__tolerance *t, const mm3_kernel *kernel,
                          mm3_verdict *v)
{
    return mm3__judge_elsewhere(c, a, t, kernel, v);
}

/* ---- codes of chains --------------------------------------------------------------------------------------------- */

/* add_rmsnorm_quantize: y is an output, so the codes must be those of the candidate's own y. */
bool mm3__judge_codes_of_y(const mm3_case *c, const mm3__array *a, const mm3__tolerance *t, const mm3_kernel *kernel,
                           mm3_verdict *v)
{
    const float *y = (const float *)mm3__array_find(c, "y")->area.data;
    const uint8_t *scales = mm3__array_find(c, "scales")->area.data;
    (void)t, (void)kernel;
    for (size_t b = 0; b < a->area.n_bytes / MM3_MX_BLOCK; b++) {
        uint8_t codes[MM3_MX_BLOCK], byte = mm3_mx_quantize_block(y + b * MM3_MX_BLOCK, codes);
        char text[64];
        if (scales[b] != byte)
            return mm3__wrong(v, "scales[%zu] is %d, not %d as for the y beside it", b, scales[b], byte);
        for (size_t i = 0; i < MM3_MX_BLOCK; i++)
            if (a->area.data[b * MM3_MX_BLOCK + i] != codes[i])
                return mm3__wrong(v, "%s is 0x%02x, not 0x%02x as for the y beside it",
                                  place(a, b * MM3_MX_BLOCK + i, text, sizeof text), a->area.data[b * MM3_MX_BLOCK + i],
                                  codes[i]);
    }
    return true;
}

/* Codes in the order of their values; both zeros are one. */
static int order(uint8_t code) { return code & 0x80 ? -(code & 0x7F) : code; }

/* Round towards what is wanted: the ends of an interval of FP32 values. */
static float float_below(double x) { return (double)(float)x <= x ? (float)x : nextafterf((float)x, -INFINITY); }
static float float_above(double x) { return (double)(float)x >= x ? (float)x : nextafterf((float)x, INFINITY); }

static bool code_is_near(uint8_t code, float want, double bound, int byte)
{
    bool is_nan = (code & 0x7F) == 0x7F;
    if (isnan(want)) return is_nan;
    if (isinf(want)) return is_nan && (code >> 7) == (signbit(want) != 0);
    return !is_nan && order(code) >= order(mm3_e4m3_from_f32(float_below((double)want - bound), byte)) &&
           order(code) <= order(mm3_e4m3_from_f32(float_above((double)want + bound), byte));
}

/* swiglu_quantize: y is not an output. Some y within swiglu's bound must have this scale and these codes. */
bool mm3__judge_codes_near(const mm3_case *c, const mm3__array *a, const mm3__tolerance *t, const mm3_kernel *kernel,
                           mm3_verdict *v)
{
    const float *y = (const float *)mm3__array_find(c, "y")->want;
    const uint8_t *scales = mm3__array_find(c, "scales")->area.data;
    for (size_t b = 0; b < a->area.n_bytes / MM3_MX_BLOCK; b++) {
        double low = 0, high = 0;
        int least, most;
        char text[64];
        for (size_t i = b * MM3_MX_BLOCK; i < (b + 1) * MM3_MX_BLOCK; i++) {
            double bound = t->bound(c, a, i, kernel);
            if (!isfinite(y[i])) continue;
            low = fmax(low, fabs((double)y[i]) - bound);
            high = fmax(high, fabs((double)y[i]) + bound);
        }
        least = mm3_e8m0_from_amax(mm3_f32_bits(float_below(fmax(low, 0))));
        most = mm3_e8m0_from_amax(mm3_f32_bits(float_above(high)));
        if (scales[b] < least || scales[b] > most)
            return mm3__wrong(v, "scales[%zu] is %d, not %d", b, scales[b], most);
        for (size_t i = b * MM3_MX_BLOCK; i < (b + 1) * MM3_MX_BLOCK; i++)
            if (!code_is_near(a->area.data[i], y[i], t->bound(c, a, i, kernel), scales[b]))
                return mm3__wrong(v, "%s is 0x%02x at scale %d, which is not %.9g", place(a, i, text, sizeof text),
                                  a->area.data[i], scales[b], (double)y[i]);
    }
    return true;
}

bool mm3__judge_all(const mm3_case *c, const mm3_kernel *kernel, mm3_verdict *v)
{
    for (int i = 0; i < c->n_arrays; i++) {
        const mm3__array *a = &c->array[i];
        const mm3__tolerance *t = mm3__tolerance_of(c->spec.op, a->name);
        if (a->access == MM3_IN) continue;
        if (!t) return mm3__wrong(v, "there is no tolerance for output %s", a->name);
        if (!t->judge(c, a, t, kernel, v)) return false;
    }
    return true;
}
