/* The tolerance table: what may differ between a candidate and the reference, output by output, with its error model.
 * Every bound is derived: roundings on the way x unit round-off (u = 2^-24) x size of what was added. None is fitted.
 * u also bounds a product and a sum in another order; a fused multiply-add only saves a rounding. */
#include <string.h>

#include "tune/cases.h"

/* FP32 kernels may treat numbers below 2^-126 as zero (vdpbf16ps does): an absolute error of 2^-126 each. */
#define FLUSH 0x1p-126

/* weight: an mm3_dtype, or -1 where a linear has several */
static bool reads_bf16_operand(const mm3_kernel *k, mm3_act act, int weight)
{
    return k->operand == MM3_BF16 && !(act == MM3_ACT_W8A8 && weight == MM3_MX);
}

static double bound_of_dot(const mm3_case *c, size_t i, int k, bool rounds_operand)
{
    double n = k + 2.0, bound; /* k - 1 additions, a product, the scale, the result */
    if (c->spec.fill == MM3_FILL_EXACT) return 0;
    bound = mm3__roundings(n) * c->magnitude[i] + k * FLUSH;
    if (rounds_operand) bound += 0x1p-8 * c->magnitude[i]; /* BF16 has 8 bits */
    return bound + (c->aside ? c->aside[i] : 0);
}

static double bound_linear(const mm3_case *c, const mm3__array *a, size_t i, const mm3_kernel *kernel)
{
    const mm3_linear *op = &c->op.linear;
    int column = (int)(i % (size_t)op->n), s = 0;
    (void)a;
    for (; column >= op->segment[s].n; s++) column -= op->segment[s].n;
    return bound_of_dot(c, i, op->k, reads_bf16_operand(kernel, op->act, (int)op->segment[s].type));
}

static double bound_moe_linear(const mm3_case *c, const mm3__array *a, size_t i, const mm3_kernel *kernel)
{
    const mm3_moe_linear *op = &c->op.moe_linear;
    (void)a;
    if (c->magnitude[i] == 0 && c->spec.fill != MM3_FILL_ZERO) return 0; /* of a pair in no list: stays as it was */
    return bound_of_dot(c, i, op->k, reads_bf16_operand(kernel, op->act, mm3_moe_linear_type(op)));
}

static double bound_moe_sum(const mm3_case *c, const mm3__array *a, size_t i, const mm3_kernel *kernel)
{
    (void)a, (void)kernel;
    if (c->spec.fill == MM3_FILL_EXACT) return 0;
    return mm3__roundings(c->op.moe_sum.top_k + 3.0) * c->magnitude[i] + 4 * FLUSH;
}

/* The mean of squares has no cancellation: k roundings at most, halved by the root; then a division, a root, 1 + w and
 * two products. */
static double bound_norm(const mm3_case *c, const mm3__array *a, size_t i, const mm3_kernel *kernel)
{
    (void)kernel;
    return mm3__roundings(c->spec.shape.v[1] / 2.0 + 8) * fabs((double)((const float *)a->want)[i]) + FLUSH;
}

/* cos and sin are at most 1: an error of one unit in the last place, and the rounding of the wanted value. */
static double bound_angle(const mm3_case *c, const mm3__array *a, size_t i, const mm3_kernel *kernel)
{
    (void)c, (void)a, (void)i, (void)kernel;
    return 3 * MM3__U;
}

/* A norm over `width` values, then a rotation: y = a cos - b sin. Rotations keep a^2 + b^2, so |a cos| + |b sin| is at
 * most sqrt(2) times the length of the rotated pair. */
static double rotated(const float *want, size_t i, int width)
{
    int j = (int)(i % (size_t)width), half = MM3_ROTARY_DIM / 2;
    double y = (double)want[i], pair;
    if (j >= 2 * half) return fabs(y);
    pair = (double)want[j < half ? i + (size_t)half : i - (size_t)half];
    return sqrt(2) * hypot(y, pair);
}

static double bound_q(const mm3_case *c, const mm3__array *a, size_t i, const mm3_kernel *kernel)
{
    int width = a->at == (void **)(uintptr_t)&c->op.qk_norm_rope.iq ? c->op.qk_norm_rope.kv.d_index : MM3_HEAD_DIM;
    (void)kernel;
    return mm3__roundings(width / 2.0 + 11) * rotated((const float *)a->want, i, width) + 4 * FLUSH;
}

/* An element of the KV pages; V is a copy. BF16 rounds both the wanted value and the candidate's. */
static double bound_kv(const mm3_case *c, const mm3__array *a, size_t i, const mm3_kernel *kernel)
{
    const mm3_kv *kv = &c->op.qk_norm_rope.kv;
    size_t element = mm3__size_of(kv->type), at = i * element % kv->page_bytes;
    size_t tile = (size_t)kv->n_kv * MM3_PAGE_TOKENS * MM3_HEAD_DIM * element;
    size_t part_at = at >= kv->ik_at ? kv->ik_at : at >= kv->v_at ? kv->v_at : kv->k_at, j, first;
    int width = at >= kv->ik_at ? kv->d_index : MM3_HEAD_DIM;
    float row[MM3_ROTARY_DIM];
    double size, want;
    (void)kernel;
    if (at >= kv->v_at && at < kv->v_at + tile) return 0;
    j = (at - part_at) / element % (size_t)width;
    first = i - j;
    want = kv->type == MM3_BF16 ? (double)mm3_bf16_to_f32(((const uint16_t *)a->want)[i])
                                : (double)((const float *)a->want)[i];
    size = fabs(want);
    if (j < MM3_ROTARY_DIM) {
        for (size_t d = 0; d < MM3_ROTARY_DIM; d++)
            row[d] = kv->type == MM3_BF16 ? mm3_bf16_to_f32(((const uint16_t *)a->want)[first + d])
                                          : ((const float *)a->want)[first + d];
        size = rotated(row, j, MM3_ROTARY_DIM);
    }
    return mm3__roundings(width / 2.0 + 11) * size + (kv->type == MM3_BF16 ? 0x1p-7 * (fabs(want) + FLUSH) : 0) +
           4 * FLUSH;
}

/* A weight exp(s - top) has a relative error of d = u (128 + 2) (terms of s) + u (|s - top| + 4); T tokens are added.
 *   magnitude  sum of w |v| (1 + terms of s) / sum of w;  aside  S, at least the terms of any s
 * Numerator: u (136 + S + T) magnitude. Denominator: its relative error, at most u (136 + S) (1 + S), times |out|. */
static double bound_attention(const mm3_case *c, const mm3__array *a, size_t i, const mm3_kernel *kernel)
{
    const mm3_attention *op = &c->op.attention;
    double out = fabs((double)((const float *)a->want)[i]), s = c->aside[i];
    int row = (int)(i / ((size_t)op->n_q * MM3_HEAD_DIM));
    double n = op->slot[row] < 0 ? 0 : op->position[row] + 1.0, d = MM3_HEAD_DIM + 8 + s;
    (void)kernel;
    if (op->slot[row] < 0) return 0;
    if (isnan(s)) s = 0;
    return MM3__U * ((d + n) * c->magnitude[i] + (d * (1 + s) + n) * out) + n * FLUSH * (1 + c->magnitude[i]);
}

/* The reference's magnitude counts what a rounding of alpha g does to the sigmoid. An exp that flushes or overflows
 * makes a sigmoid below 2^-126 zero. */
static double swiglu_bound(double magnitude, const float *gate_up, int n, float limit, float beta, size_t i)
{
    const float *row = gate_up + i / (size_t)n * 2 * (size_t)n;
    double g = fmin((double)row[i % (size_t)n], (double)limit), u = fabs((double)row[(size_t)n + i % (size_t)n]);
    return mm3__roundings(12) * magnitude +
           FLUSH * (1 + (isinf(g) ? 0 : fabs(g)) * (fmin(u, (double)limit) + (double)beta));
}

static double bound_swiglu(const mm3_case *c, const mm3__array *a, size_t i, const mm3_kernel *kernel)
{
    const mm3_swiglu *op = &c->op.swiglu;
    (void)a, (void)kernel;
    return swiglu_bound(c->magnitude[i], op->gate_up, op->n, op->limit, op->beta, i);
}

static double bound_swiglu_quantize(const mm3_case *c, const mm3__array *a, size_t i, const mm3_kernel *kernel)
{
    const mm3_swiglu_quantize *op = &c->op.swiglu_quantize;
    (void)a, (void)kernel;
    return swiglu_bound(c->magnitude[i], op->gate_up, op->n, op->limit, op->beta, i);
}

#define DOT "(k + 2) u sum|x w| + k 2^-126 + flushed operands; operand=bf16: + 2^-8 sum|x w|; exact fill: 0"
#define NORM "(k/2 + 8) u |y|: k positive squares under a root, then five roundings"
static const mm3__tolerance table[] = {
    { MM3_OP_EMBED, "out", mm3__judge_equal, NULL, "bits: BF16 is exact in FP32" },
    { MM3_OP_ROPE_ANGLES, "cos", mm3__judge_value, bound_angle, "3 u: one unit in the last place of a value <= 1" },
    { MM3_OP_ROPE_ANGLES, "sin", mm3__judge_value, bound_angle, "3 u: one unit in the last place of a value <= 1" },
    { MM3_OP_ADD_RMSNORM, "x", mm3__judge_equal, NULL, "bits: one FP32 addition" },
    { MM3_OP_ADD_RMSNORM, "y", mm3__judge_value, bound_norm, NORM },
    { MM3_OP_QUANTIZE, "codes", mm3__judge_equal, NULL, "bits" },
    { MM3_OP_QUANTIZE, "scales", mm3__judge_equal, NULL, "bits" },
    { MM3_OP_ADD_RMSNORM_QUANTIZE, "x", mm3__judge_equal, NULL, "bits: one FP32 addition" },
    { MM3_OP_ADD_RMSNORM_QUANTIZE, "y", mm3__judge_value, bound_norm, NORM },
    { MM3_OP_ADD_RMSNORM_QUANTIZE, "codes", mm3__judge_codes_of_y, NULL, "bits: the quantized y of the candidate" },
    { MM3_OP_ADD_RMSNORM_QUANTIZE, "scales", mm3__judge_elsewhere, NULL, "with codes" },
    { MM3_OP_LINEAR, "out", mm3__judge_value, bound_linear, DOT },
    { MM3_OP_QK_NORM_ROPE, "q", mm3__judge_value, bound_q, "(d/2 + 11) u sqrt(2) |rotated pair|" },
    { MM3_OP_QK_NORM_ROPE, "iq", mm3__judge_value, bound_q, "(d/2 + 11) u sqrt(2) |rotated pair|" },
    { MM3_OP_QK_NORM_ROPE, "kv.pool", mm3__judge_kv, bound_kv,
      "k, ik as q; bf16: + 2^-7 |y|, both values are rounded; v: equal; all else: bits as before" },
    { MM3_OP_INDEX_SELECT, "selected", mm3__judge_selected, NULL,
      "blocks whose scores differ by (d + 2) u sum|iq ik| or less may change places; exact ties and the exact and ties "
      "fills may not" },
    { MM3_OP_ATTENTION, "out", mm3__judge_value, bound_attention,
      "u (136 + S + T) sum w|v|(1 + S)/sum w and the same for the denominator; S = |scale q k|, T tokens" },
    { MM3_OP_SWIGLU, "y", mm3__judge_value, bound_swiglu,
      "12 u |g sigmoid| (|u| + beta) (1 + |alpha g| (1 - sigmoid))" },
    { MM3_OP_SWIGLU_QUANTIZE, "y", mm3__judge_undefined, NULL, "undefined afterwards" },
    { MM3_OP_SWIGLU_QUANTIZE, "codes", mm3__judge_codes_near, bound_swiglu_quantize,
      "the quantized values of some y within swiglu's tolerance" },
    { MM3_OP_SWIGLU_QUANTIZE, "scales", mm3__judge_elsewhere, NULL, "with codes" },
    { MM3_OP_ROUTER, "expert", mm3__judge_router, NULL,
      "experts whose sums differ by u (s (5 + |x|) + |s + bias|) or less may change places; exact ties may not" },
    { MM3_OP_ROUTER, "weight", mm3__judge_elsewhere, NULL, "with expert: (2 (5 + |x|) + top_k + 3) u weight" },
    { MM3_OP_ROUTER, "pair", mm3__judge_elsewhere, NULL, "with expert: the lists of the candidate's experts" },
    { MM3_OP_ROUTER, "begin", mm3__judge_elsewhere, NULL, "with expert" },
    { MM3_OP_MOE_LINEAR, "out", mm3__judge_value, bound_moe_linear, DOT "; rows of unlisted pairs: bits as before" },
    { MM3_OP_MOE_SUM, "out", mm3__judge_value, bound_moe_sum,
      "(top_k + 3) u (scale sum|w y| + |shared|); exact fill: 0" },
    { MM3_OP_GATHER, "out", mm3__judge_equal, NULL, "bits" },
    { MM3_OP_SAMPLE, "token", mm3__judge_sample, NULL,
      "greedy without penalties: equal; else tokens whose z + G differ by 8 u (|z| + |G|) or less, and those at a "
      "threshold of top_p or min_p by (n + 16) u, may change places" },
    { MM3_OP_SAMPLE, "logprob", mm3__judge_elsewhere, NULL, "with token: u (n + 8 + 3 |x - top| + 2 |log sum|)" },
};

const mm3__tolerance *mm3__tolerance_of(mm3_op_id op, const char *output)
{
    for (int i = 0; i < MM3_COUNT(table); i++)
        if (table[i].op == op && strcmp(table[i].output, output) == 0) return &table[i];
    return NULL;
}

mm3_status mm3_tolerances_text(char **text)
{
    mm3_buf b = { 0 };
    for (int i = 0; i < MM3_COUNT(table); i++)
        mm3_buf_printf(&b, "%-22s%-9s%s\n", mm3_op_info_of(table[i].op)->name, table[i].output, table[i].model);
    return mm3_buf_take(&b, text, NULL);
}
