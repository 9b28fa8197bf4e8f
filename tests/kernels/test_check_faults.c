/* The check is checked: faults that any kernel may have, and those of products, norms and quantizers. */
#include "kernels/faults.h"

CORRECT(mm3_linear, LINEAR)
CORRECT(mm3_moe_linear, MOE_LINEAR)
CORRECT(mm3_quantize, QUANTIZE)
CORRECT(mm3_add_rmsnorm, ADD_RMSNORM)
CORRECT(mm3_add_rmsnorm_quantize, ADD_RMSNORM_QUANTIZE)
CORRECT(mm3_swiglu, SWIGLU)
CORRECT(mm3_swiglu_quantize, SWIGLU_QUANTIZE)
CORRECT(mm3_moe_sum, MOE_SUM)
CORRECT(mm3_gather, GATHER)
CORRECT(mm3_embed, EMBED)
CORRECT(mm3_rope_angles, ROPE_ANGLES)

/* What a faulty kernel wrote where it must not. */
static void spoil(const void *p, size_t n) { memset((void *)(uintptr_t)p, 1, n); }

/* ---- faults that any operation may have, on linear --------------------------------------------------------------- */

FAULT(mm3_linear, one_too_far)
{
    correct_mm3_linear(op);
    op->out[op->m * op->n] = 1;
}
FAULT(mm3_linear, one_before)
{
    correct_mm3_linear(op);
    op->out[-1] = 1;
}
FAULT(mm3_linear, last_row_skipped)
{
    mm3_linear less = *op;
    less.m--;
    correct_mm3_linear(&less);
}
FAULT(mm3_linear, last_element_skipped)
{
    float last = op->out[op->m * op->n - 1];
    correct_mm3_linear(op);
    op->out[op->m * op->n - 1] = last;
}
FAULT(mm3_linear, stale_output)
{
    static float old[1 << 16];
    memcpy(old, op->out, sizeof(float) * (size_t)(op->m * op->n));
    correct_mm3_linear(op);
    for (int i = 0; i < op->m * op->n; i++) op->out[i] += old[i];
}
FAULT(mm3_linear, input_overwritten)
{
    correct_mm3_linear(op);
    spoil(op->x ? (const void *)op->x : (const void *)op->x_codes, 1);
}
FAULT(mm3_linear, weight_overwritten)
{
    correct_mm3_linear(op);
    spoil(op->segment[0].data, 1);
}
FAULT(mm3_linear, reads_past_weights)
{
    const volatile uint8_t *data = op->segment[op->n_segments - 1].data;
    size_t element = op->segment[op->n_segments - 1].type == MM3_MX ? 1 : 2;
    correct_mm3_linear(op);
    (void)data[(size_t)op->segment[op->n_segments - 1].n * (size_t)op->k * element];
}
FAULT(mm3_linear, reads_before_input)
{
    const volatile uint8_t *data = op->x ? (const void *)op->x : (const void *)op->x_codes;
    correct_mm3_linear(op);
    (void)data[-64];
}
FAULT(mm3_linear, nan_laundered)
{
    correct_mm3_linear(op);
    for (int i = 0; i < op->m * op->n; i++)
        if (isnan(op->out[i])) op->out[i] = 0;
}
FAULT(mm3_linear, nan_spread)
{
    correct_mm3_linear(op);
    for (int i = 1; i < op->m * op->n; i++)
        if (isnan(op->out[i])) op->out[i - 1] = NAN;
}
/* Its last bit differs now and then: within the tolerance, but not the same twice. */
FAULT(mm3_linear, non_deterministic)
{
    static int calls;
    correct_mm3_linear(op);
    if (calls++ % 2) op->out[0] = nextafterf(op->out[0], INFINITY);
}
FAULT(mm3_linear, scales_transposed)
{
    static uint8_t scales[1 << 16];
    mm3_linear wrong = *op;
    int n_blocks = op->k / MM3_MX_BLOCK;
    for (int s = 0, at = 0; s < op->n_segments; s++) {
        const mm3_weight *w = &op->segment[s];
        if (w->type != MM3_MX) continue;
        wrong.segment[s].scales = scales + at;
        for (int j = 0; j < w->n; j++)
            for (int b = 0; b < n_blocks; b++) scales[at + j * n_blocks + b] = w->scales[b * w->n + j];
        at += w->n * n_blocks;
    }
    correct_mm3_linear(&wrong);
}
/* `byte << 23` for every byte: 0 is then no scale at all, and 255 infinity. */
static void with_scale(const mm3_linear *op, uint8_t byte, uint8_t as)
{
    static uint8_t scales[MM3_MAX_SEGMENTS][1 << 14];
    mm3_linear wrong = *op;
    for (int s = 0; s < op->n_segments; s++)
        for (int i = 0; i < op->segment[s].n * op->k / MM3_MX_BLOCK && op->segment[s].type == MM3_MX; i++) {
            scales[s][i] = op->segment[s].scales[i] == byte ? as : op->segment[s].scales[i];
            wrong.segment[s].scales = scales[s];
        }
    correct_mm3_linear(&wrong);
}
FAULT(mm3_linear, scale_0_is_1) { with_scale(op, 0, 1); }
FAULT(mm3_linear, scale_254_is_253) { with_scale(op, 254, 253); }
FAULT(mm3_linear, scale_255_is_254) { with_scale(op, 255, 254); }
FAULT(mm3_linear, last_block_skipped)
{
    static uint8_t codes[1 << 16];
    mm3_linear wrong = *op;
    if (!op->x_codes) {
        correct_mm3_linear(op);
        return;
    }
    memcpy(codes, op->x_codes, (size_t)(op->m * op->k));
    for (int i = 0; i < op->m; i++) codes[(i + 1) * op->k - 1] = 0; /* one element is enough */
    wrong.x_codes = codes;
    correct_mm3_linear(&wrong);
}
FAULT(mm3_linear, second_segment_first)
{
    mm3_linear wrong = *op;
    wrong.segment[0] = op->segment[op->n_segments - 1];
    wrong.segment[op->n_segments - 1] = op->segment[0];
    correct_mm3_linear(&wrong);
}
/* A rounding that depends on what a row_invariant tactic must not look at; always within the tolerance. */
static void nudge(const mm3_linear *op, bool is_odd)
{
    correct_mm3_linear(op);
    for (int i = 0; i < op->m * op->n && is_odd; i++) op->out[i] = nextafterf(op->out[i], INFINITY);
}
FAULT(mm3_linear, depends_on_m) { nudge(op, op->m > 1); }
FAULT(mm3_linear, depends_on_place)
{
    correct_mm3_linear(op);
    op->out[0] = nextafterf(op->out[0], INFINITY);
}
static void run_depends_on_threads(const mm3_call *call, int i_thread, int n_threads)
{
    if (i_thread == 0) nudge(call->op, n_threads == 16);
}
/* Thread 1 uses what thread 0 has not yet written when it comes first. */
static void run_depends_on_order(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_linear *op = call->op;
    (void)n_threads;
    if (i_thread == 0) correct_mm3_linear(op);
    if (i_thread == 1) op->out[0] = op->out[0] + 0.0f * op->out[0];
    if (i_thread == 1 && op->m * op->n > 1) op->out[1] = nextafterf(op->out[1], INFINITY);
}
static void run_past_scratch(const mm3_call *call, int i_thread, int n_threads)
{
    (void)n_threads;
    if (i_thread == 0) ((unsigned char *)call->scratch)[64] = 0;
    if (i_thread == 0) correct_mm3_linear(call->op);
}
static void run_needs_clear_scratch(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_linear *op = call->op;
    float *sum = call->scratch;
    (void)n_threads;
    if (i_thread) return;
    correct_mm3_linear(op);
    sum[0] += op->out[0];
    op->out[0] = sum[0];
}

/* ---- moe_linear -------------------------------------------------------------------------------------------------- */

FAULT(mm3_moe_linear, unlisted_rows_cleared)
{
    memset(op->out, 0, sizeof(float) * (size_t)(op->m * op->top_k * op->n));
    correct_mm3_moe_linear(op);
}
FAULT(mm3_moe_linear, first_expert_for_all)
{
    static mm3_weight same[4096];
    mm3_moe_linear wrong = *op;
    for (int i = 0; i < op->n_expert * op->n_segments; i++) same[i] = op->weights[i % op->n_segments];
    wrong.weights = same;
    correct_mm3_moe_linear(&wrong);
}

/* ---- quantize and the chains ------------------------------------------------------------------------------------- */

FAULT(mm3_quantize, quantized_nan_laundered)
{
    correct_mm3_quantize(op);
    for (int i = 0; i < op->m * op->k; i++)
        if ((op->codes[i] & 0x7F) == 0x7F) op->codes[i] = (uint8_t)((op->codes[i] & 0x80) | 0x7E);
}
FAULT(mm3_quantize, infinity_zeroes_neighbours)
{
    correct_mm3_quantize(op);
    for (int b = 0; b < op->m * op->k / MM3_MX_BLOCK; b++)
        for (int i = 0; i < MM3_MX_BLOCK; i++)
            if (isinf(op->x[b * MM3_MX_BLOCK + i])) {
                memset(op->codes + b * MM3_MX_BLOCK, 0, MM3_MX_BLOCK);
                op->scales[b] = 0xFE;
            }
}
/* The scale of floor(log2 amax) - 8: it saturates above 448. */
FAULT(mm3_quantize, floor_scale)
{
    correct_mm3_quantize(op);
    for (int b = 0; b < op->m * op->k / MM3_MX_BLOCK; b++) {
        const float *x = op->x + b * MM3_MX_BLOCK;
        uint32_t top = 0;
        for (int i = 0; i < MM3_MX_BLOCK; i++) {
            uint32_t a = mm3_f32_bits(x[i]) & 0x7FFFFFFFu;
            if (a < 0x7F800000u && a > top) top = a;
        }
        op->scales[b] = (uint8_t)MM3_MAX((int)(top >> 23) - 8, 0);
        for (int i = 0; i < MM3_MX_BLOCK; i++) op->codes[b * MM3_MX_BLOCK + i] = mm3_e4m3_from_f32(x[i], op->scales[b]);
    }
}
/* A reciprocal of 448 that is one bit too large: the scale doubles where amax is 448 * 2^e exactly. */
FAULT(mm3_quantize, rough_reciprocal)
{
    correct_mm3_quantize(op);
    for (int b = 0; b < op->m * op->k / MM3_MX_BLOCK; b++) {
        const float *x = op->x + b * MM3_MX_BLOCK;
        float top = 0;
        for (int i = 0; i < MM3_MX_BLOCK; i++)
            if (isfinite(x[i])) top = fmaxf(top, fabsf(x[i]));
        if ((mm3_f32_bits(top) & 0x7FFFFFu) != 0x600000u) continue;
        op->scales[b]++;
        for (int i = 0; i < MM3_MX_BLOCK; i++) op->codes[b * MM3_MX_BLOCK + i] = mm3_e4m3_from_f32(x[i], op->scales[b]);
    }
}
/* Halves go away from zero instead of to even. */
FAULT(mm3_quantize, ties_away)
{
    correct_mm3_quantize(op);
    for (int i = 0; i < op->m * op->k; i++) {
        int byte = op->scales[i / MM3_MX_BLOCK];
        uint8_t *code = &op->codes[i];
        double x = ldexp((double)fabsf(op->x[i]), 127 - byte), low = (double)mm3_e4m3_to_f32(*code & 0x7F);
        if ((*code & 0x7F) < 0x7E && x == (low + (double)mm3_e4m3_to_f32((uint8_t)((*code & 0x7F) + 1))) / 2) ++*code;
    }
}
FAULT(mm3_quantize, subnormals_flushed)
{
    static float x[1 << 16];
    mm3_quantize wrong = *op;
    for (int i = 0; i < op->m * op->k; i++) x[i] = fabsf(op->x[i]) < 0x1p-126f ? copysignf(0, op->x[i]) : op->x[i];
    wrong.x = x;
    correct_mm3_quantize(&wrong);
}
/* The codes of a y that was not rounded to FP32 first, here: of another y. */
FAULT(mm3_add_rmsnorm_quantize, codes_of_another_y)
{
    correct_mm3_add_rmsnorm_quantize(op);
    for (int i = 0; i < op->m * op->k; i++)
        if ((op->codes[i] & 0x7F) < 0x70) op->codes[i] ^= 1;
}
FAULT(mm3_swiglu_quantize, one_code_off)
{
    correct_mm3_swiglu_quantize(op);
    op->codes[op->m * op->n - 1] ^= 1;
}
FAULT(mm3_swiglu_quantize, scale_one_up)
{
    correct_mm3_swiglu_quantize(op);
    for (int b = 0; b < op->m * op->n / MM3_MX_BLOCK; b++) {
        op->scales[b]++;
        for (int i = 0; i < MM3_MX_BLOCK; i++)
            op->codes[b * MM3_MX_BLOCK + i] = mm3_e4m3_from_f32(op->y[b * MM3_MX_BLOCK + i], op->scales[b]);
    }
}

/* ---- norms and activations --------------------------------------------------------------------------------------- */

FAULT(mm3_add_rmsnorm, eps_ignored)
{
    mm3_add_rmsnorm wrong = *op;
    wrong.eps = 0;
    correct_mm3_add_rmsnorm(&wrong);
}
FAULT(mm3_add_rmsnorm, weight_without_one)
{
    static float w[1 << 14];
    mm3_add_rmsnorm wrong = *op;
    for (int i = 0; i < op->k; i++) w[i] = op->w[i] - 1;
    wrong.w = w;
    correct_mm3_add_rmsnorm(&wrong);
}
FAULT(mm3_add_rmsnorm, squares_overflow)
{
    correct_mm3_add_rmsnorm(op);
    for (int i = 0; i < op->m; i++) {
        float sum = 0;
        for (int c = 0; c < op->k; c++) sum += op->x[i * op->k + c] * op->x[i * op->k + c];
        for (int c = 0; c < op->k && isinf(sum); c++) op->y[i * op->k + c] = 0;
    }
}
FAULT(mm3_add_rmsnorm, delta_twice)
{
    correct_mm3_add_rmsnorm(op);
    if (op->delta) correct_mm3_add_rmsnorm(op);
}
FAULT(mm3_swiglu, lower_gate_clamp)
{
    static float x[1 << 16];
    mm3_swiglu wrong = *op;
    memcpy(x, op->gate_up, sizeof(float) * (size_t)(op->m * op->n * 2));
    for (int i = 0; i < op->m; i++)
        for (int c = 0; c < op->n; c++) /* written so that a NaN stays */
            if (x[i * 2 * op->n + c] < -op->limit) x[i * 2 * op->n + c] = -op->limit;
    wrong.gate_up = x;
    correct_mm3_swiglu(&wrong);
}
FAULT(mm3_swiglu, no_up_clamp)
{
    correct_mm3_swiglu(op);
    for (int i = 0; i < op->m; i++)
        for (int c = 0; c < op->n; c++) {
            float g = op->gate_up[i * 2 * op->n + c], u = op->gate_up[i * 2 * op->n + op->n + c];
            if (u < -op->limit)
                op->y[i * op->n + c] = fminf(g, op->limit) / (1 + expf(-op->alpha * g)) * (u + op->beta);
        }
}
FAULT(mm3_swiglu, interleaved)
{
    static float x[1 << 16];
    mm3_swiglu wrong = *op;
    for (int i = 0; i < op->m * op->n * 2; i++) {
        int row = i / (2 * op->n), c = i % (2 * op->n);
        x[row * 2 * op->n + (c % 2) * op->n + c / 2] = op->gate_up[i];
    }
    wrong.gate_up = x;
    correct_mm3_swiglu(&wrong);
}
FAULT(mm3_swiglu, fmin_launders_nan)
{
    correct_mm3_swiglu(op);
    for (int i = 0; i < op->m * op->n; i++)
        if (isnan(op->y[i])) op->y[i] = op->limit;
}
FAULT(mm3_moe_sum, shared_scaled)
{
    correct_mm3_moe_sum(op);
    for (int i = 0; i < op->m * op->k && op->shared; i++) op->out[i] += (op->scale - 1) * op->shared[i];
}
FAULT(mm3_moe_sum, reads_absent_experts)
{
    correct_mm3_moe_sum(op);
    for (int i = 0; i < op->m; i++)
        for (int j = 0; j < op->top_k; j++)
            for (int c = 0; c < op->k && op->expert[i * op->top_k + j] < 0; c++)
                op->out[i * op->k + c] += op->weight[i * op->top_k + j] * op->y[(i * op->top_k + j) * op->k + c];
}
FAULT(mm3_gather, absent_row_is_row_0)
{
    correct_mm3_gather(op);
    for (int i = 0; i < op->m; i++)
        if (op->row[i] < 0) memcpy(op->out + i * op->k, op->x, sizeof(float) * (size_t)op->k);
}
FAULT(mm3_embed, padding_not_cleared)
{
    mm3_embed one = *op;
    one.m = 1;
    for (int i = 0; i < op->m; i++) {
        one.token = op->token + i;
        one.slot = op->slot + i;
        one.out = op->out + i * op->k;
        if (op->slot[i] >= 0) correct_mm3_embed(&one);
    }
}
FAULT(mm3_rope_angles, angle_in_double)
{
    correct_mm3_rope_angles(op);
    for (int i = 0; i < op->m; i++)
        for (int j = 0; j < 32 && op->slot[i] >= 0; j++) {
            op->cos[i * 32 + j] = (float)cos((double)op->position[i] * (double)op->inv_freq[j]);
            op->sin[i * 32 + j] = (float)sin((double)op->position[i] * (double)op->inv_freq[j]);
        }
}

static const fault faults[] = {
    ON(LINEAR, one_too_far, "m=3,n=64,k=96", "past its end"),
    ON(LINEAR, one_before, "m=3,n=64,k=96", "beyond the output"),
    ON(LINEAR, last_row_skipped, "m=3,n=64,k=96", NULL),
    ON(LINEAR, last_element_skipped, "m=3,n=64,k=96", NULL),
    ON(LINEAR, stale_output, "m=3,n=64,k=96", NULL),
    ON(LINEAR, input_overwritten, "m=3,n=64,k=96", "wrote to the input x_codes"),
    ON(LINEAR, weight_overwritten, "m=3,n=64,k=96,w=bf16", "wrote to the input"),
    ON(LINEAR, reads_past_weights, "m=3,n=64,k=96", "past its end"),
    ON(LINEAR, reads_before_input, "m=3,n=64,k=96", "before its start"),
    ON(LINEAR, nan_laundered, "m=16,n=64,k=96", "nan (tol"),
    ON(LINEAR, nan_spread, "m=16,n=64,k=96", "is nan"),
    ON(LINEAR, non_deterministic, "m=3,n=64,k=96", "run again"),
    ON(LINEAR, scales_transposed, "m=3,n=64,k=96", NULL),
    ON(LINEAR, scale_0_is_1, "m=4,n=64,k=96", NULL),
    ON(LINEAR, scale_254_is_253, "m=4,n=16,k=8160", NULL),
    ON(LINEAR, scale_255_is_254, "m=4,n=64,k=96", NULL),
    ON(LINEAR, last_block_skipped, "m=3,n=64,k=96", NULL),
    ON(LINEAR, second_segment_first, "m=3,n=64,k=96,segments=4", NULL),
    ON(LINEAR, depends_on_m, "m=6,n=64,k=96", "alone"),
    ON(LINEAR, depends_on_place, "m=6,n=64,k=96", "row_invariant"),
    ON(LINEAR, depends_on_threads, "m=6,n=64,k=96", "number of threads"),
    ON(LINEAR, depends_on_order, "m=3,n=64,k=96", "reverse order"),
    ON(LINEAR, past_scratch, "m=3,n=64,k=96", "its scratch"),
    ON(LINEAR, needs_clear_scratch, "m=3,n=64,k=96", NULL),
    ON(MOE_LINEAR, unlisted_rows_cleared, "m=6,pad=1", NULL),
    ON(MOE_LINEAR, first_expert_for_all, "m=6", NULL),
    ON(QUANTIZE, quantized_nan_laundered, "m=16,k=96", NULL),
    ON(QUANTIZE, infinity_zeroes_neighbours, "m=16,k=96", NULL),
    ON(QUANTIZE, floor_scale, "m=3,k=96", NULL),
    ON(QUANTIZE, rough_reciprocal, "m=16,k=96", NULL),
    ON(QUANTIZE, ties_away, "m=3,k=96", NULL),
    ON(QUANTIZE, subnormals_flushed, "m=3,k=96", NULL),
    ON(ADD_RMSNORM_QUANTIZE, codes_of_another_y, "m=3", "the y beside it"),
    ON(SWIGLU_QUANTIZE, one_code_off, "m=3", NULL),
    ON(SWIGLU_QUANTIZE, scale_one_up, "m=3", "scales"),
    ON(ADD_RMSNORM, eps_ignored, "m=3", NULL),
    ON(ADD_RMSNORM, weight_without_one, "m=3", NULL),
    ON(ADD_RMSNORM, squares_overflow, "m=3", NULL),
    ON(ADD_RMSNORM, delta_twice, "m=3", NULL),
    ON(SWIGLU, lower_gate_clamp, "m=3", NULL),
    ON(SWIGLU, no_up_clamp, "m=3", NULL),
    ON(SWIGLU, interleaved, "m=3", NULL),
    ON(SWIGLU, fmin_launders_nan, "m=16", "nan (tol"),
    ON(MOE_SUM, shared_scaled, "m=3", NULL),
    ON(MOE_SUM, reads_absent_experts, "m=3,pad=1", "is nan"),
    ON(GATHER, absent_row_is_row_0, "m=30", NULL),
    ON(EMBED, padding_not_cleared, "m=3,pad=1", NULL),
    ON(ROPE_ANGLES, angle_in_double, "m=20", NULL),
};

/* A candidate that refuses is not run, and its reason is kept. */
static const char *refuses(const mm3_device_info *device, const void *op, const mm3_tactic *t)
{
    (void)device, (void)op, (void)t;
    return "needs another machine";
}
static void refusals_are_reported(void **state)
{
    const mm3_device_info info = { .kind = "cpu", .n_threads = 2 };
    mm3_case_spec spec = { .op = MM3_OP_LINEAR, .shape = mm3_shape_default(MM3_OP_LINEAR), .seed = 1 };
    mm3_kernel kernel = kernel_of(&faults[0], &tactic);
    mm3_case *c;
    mm3_verdict v;
    (void)state;
    kernel.refuses = refuses;
    assert_int_equal(mm3_case_open(&c, &spec), MM3_OK);
    assert_int_equal(mm3_verify(c, &info, &kernel, &tactic, &v), MM3_OK);
    assert_int_equal(v.outcome, MM3_REFUSED);
    assert_string_equal(v.why, "needs another machine");
    mm3_case_close(&c);
}

static void the_correct_pass(void **state)
{
    (void)state;
    correct_kernels_pass(faults, MM3_COUNT(faults));
}

int main(void)
{
    struct CMUnitTest tests[2 + sizeof faults / sizeof faults[0]] = { cmocka_unit_test(the_correct_pass),
                                                                      cmocka_unit_test(refusals_are_reported) };
    return run_faults("faults of values", tests, 2, faults, MM3_COUNT(faults));
}
