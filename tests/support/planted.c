#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "support/expect.h"
#include "support/planted.h"

/* ---- what they run ----------------------------------------------------------------------------------------------- */

/* The right result, and nothing of the time it takes is ours. */
static void compute(const mm3_call *call, mm3_op_id op, int i, int n)
{
    if (i == 0) mm3_op_info_of(op)->reference(call->op, NULL);
    (void)n;
}

/* The thread's own processor time: a machine that does other things too does not disturb. */
double planted_processor_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void planted_spin(double us)
{
    double end = planted_processor_time() + us * 1e-6;
    while (planted_processor_time() < end) continue;
}

/* On the first thread. */
static void spin(int i, double us)
{
    if (i == 0) planted_spin(us);
}

static const mm3_linear *linear(const mm3_call *call) { return call->op; }

static void multiply(const mm3_linear *op)
{
    const uint8_t *codes = op->segment[0].data;
    for (int r = 0; r < op->m; r++)
        for (int j = 0; j < op->n; j++) {
            double sum = 0;
            for (int c = 0; c < op->k; c++) {
                int x = r * op->k + c, w = j * op->k + c;
                sum += (double)mm3_e4m3_to_f32(op->x_codes[x]) * (double)mm3_e4m3_to_f32(codes[w]) *
                       (double)mm3_e8m0_to_f32(op->x_scales[x / 32]) *
                       (double)mm3_e8m0_to_f32(op->segment[0].scales[w / 32]);
            }
            op->out[r * op->n + j] = (float)sum;
        }
}

#define RUN(name) static void name(const mm3_call *call, int i, int n)
#define LINEAR \
    (void)n;   \
    if (i == 0) multiply(linear(call))
RUN(run_slow)
{
    LINEAR;
    spin(i, 300);
}
RUN(run_very_slow)
{
    LINEAR;
    spin(i, 5000);
}
RUN(run_fast)
{
    LINEAR;
    spin(i, 100);
}
RUN(run_same)
{
    LINEAR;
    spin(i, 300);
}
/* How long the weights' lines take to come, beside how long to come again. */
static struct {
    double ratio[10000];
    int n;
} probe;
RUN(run_probing)
{
    static volatile unsigned zero;
    const volatile uint8_t *weight = linear(call)->segment[0].data;
    const unsigned none = zero, n_lines = (unsigned)(linear(call)->n * linear(call)->k / 64);
    double t[3];
    if (i == 0)
        for (int k = 0; k < 3; k++) { /* in no order to foresee, each address from the line before */
            t[k] = mm3_now_s();
            for (unsigned l = 0, at = 0; l < n_lines; l++) at = (at + 37 + (weight[at * 64] & none)) % n_lines;
        }
    LINEAR;
    spin(i, 300);
    if (i == 0 && probe.n < MM3_COUNT(probe.ratio)) probe.ratio[probe.n++] = (t[1] - t[0]) / (t[2] - t[1]);
}
static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
double planted_probed(void)
{
    double median;
    assert_true(probe.n > 0);
    qsort(probe.ratio, (size_t)probe.n, sizeof *probe.ratio, compare_doubles);
    median = probe.ratio[probe.n / 2];
    probe.n = 0;
    return median;
}
RUN(run_wrong)
{
    LINEAR;
    if (i == 0) linear(call)->out[linear(call)->m * linear(call)->n - 1] *= 1.01f;
}
RUN(run_skips_a_row)
{
    mm3_linear op = *linear(call);
    op.m--;
    if (i == 0) multiply(&op);
    (void)n;
}
RUN(run_writes_outside)
{
    LINEAR;
    if (i == 0) linear(call)->out[linear(call)->m * linear(call)->n] = 0;
}
RUN(run_changes_input)
{
    LINEAR;
    if (i == 0) ((uint8_t *)(uintptr_t)linear(call)->x_codes)[3] ^= 1;
}
RUN(run_kill)
{
    (void)call, (void)n;
    if (i == 0) raise(SIGKILL);
}
RUN(run_hang)
{
    (void)call, (void)n;
    while (i == 0) pause();
}
RUN(run_never)
{
    (void)call, (void)i, (void)n;
    fail_msg("a candidate ran that must not");
}

/* Remembers what it computed for an output array: right at first sight, and stale ever after. */
static struct {
    float *out, value[256];
} memo[64];
static int n_memo;
RUN(run_stale)
{
    const mm3_linear *op = linear(call);
    const size_t n_bytes = (size_t)(op->m * op->n) * sizeof *op->out;
    (void)n;
    if (i) return;
    assert_true(n_bytes <= sizeof memo[0].value);
    for (int k = 0; k < n_memo; k++)
        if (memo[k].out == op->out) {
            memcpy(op->out, memo[k].value, n_bytes);
            return;
        }
    multiply(op);
    if (n_memo < MM3_COUNT(memo)) {
        memo[n_memo].out = op->out;
        memcpy(memo[n_memo++].value, op->out, n_bytes);
    }
}

/* Alone it is fast; after another operation it is slow. */
static bool others_ran;
RUN(run_alone_fast)
{
    LINEAR;
    spin(i, others_ran ? 500 : 20);
    if (i == 0) others_ran = false;
}
RUN(run_quantize)
{
    compute(call, MM3_OP_QUANTIZE, i, n);
    if (i == 0) others_ran = true;
}

/* Needs its scratch: writes all of it, and the next phase reads it. */
enum { SCRATCH = 100000 };
static size_t some_scratch(const void *op, const mm3_tactic *t, int n)
{
    (void)op, (void)t, (void)n;
    return SCRATCH;
}
static size_t all_scratch(const void *op, const mm3_tactic *t, int n)
{
    (void)op, (void)t, (void)n;
    return SIZE_MAX / 2;
}
RUN(run_scratch_1)
{
    (void)n;
    if (i == 0) memset(call->scratch, 0x11, SCRATCH);
}
RUN(run_scratch_2)
{
    LINEAR;
    if (i == 0 && ((unsigned char *)call->scratch)[SCRATCH - 1] != 0x11) linear(call)->out[0] = NAN;
}

static const char *refuses(const mm3_device_info *d, const void *op, const mm3_tactic *t)
{
    (void)d, (void)op, (void)t;
    return "needs a machine that does not exist";
}
static const char *refuses_small(const mm3_device_info *d, const void *op, const mm3_tactic *t)
{
    (void)d, (void)t;
    return ((const mm3_linear *)op)->m < 2 ? "m is below 2" : NULL;
}

/* ---- the candidates ---------------------------------------------------------------------------------------------- */

static const mm3_tactic plain[] = { { .name = "default", .row_invariant = true } };
static const mm3_tactic mixing[] = { { .name = "mixing" }, { .name = "apart", .row_invariant = true } };
#define LINEAR_KERNEL(id, ...)                                                                           \
    static const mm3_kernel id = {                                                                       \
        .op = MM3_OP_LINEAR, .device = "cpu", .name = #id, .tactics = plain, .n_tactics = 1, __VA_ARGS__ \
    }
LINEAR_KERNEL(slow, .phase = { run_slow });
LINEAR_KERNEL(very_slow, .phase = { run_very_slow });
LINEAR_KERNEL(fast, .phase = { run_fast });
LINEAR_KERNEL(probing, .phase = { run_probing });
LINEAR_KERNEL(same, .phase = { run_same });
LINEAR_KERNEL(wrong, .phase = { run_wrong });
LINEAR_KERNEL(skips_a_row, .phase = { run_skips_a_row });
LINEAR_KERNEL(writes_outside, .phase = { run_writes_outside });
LINEAR_KERNEL(changes_input, .phase = { run_changes_input });
LINEAR_KERNEL(stale, .phase = { run_stale });
LINEAR_KERNEL(kills, .phase = { run_kill });
LINEAR_KERNEL(hangs, .phase = { run_hang });
LINEAR_KERNEL(refusing, .phase = { run_never }, .refuses = refuses);
LINEAR_KERNEL(huge, .phase = { run_never }, .scratch = all_scratch);
LINEAR_KERNEL(hungry, .phase = { run_scratch_1, run_scratch_2 }, .scratch = some_scratch);
LINEAR_KERNEL(alone_fast, .phase = { run_alone_fast });
static const mm3_kernel large = { .op = MM3_OP_LINEAR,
                                  .device = "cpu",
                                  .name = "large",
                                  .tactics = mixing,
                                  .n_tactics = 2,
                                  .refuses = refuses_small,
                                  .phase = { run_fast } };
static const mm3_kernel quantizer = { .op = MM3_OP_QUANTIZE,
                                      .device = "cpu",
                                      .name = "quantizer",
                                      .tactics = plain,
                                      .n_tactics = 1,
                                      .phase = { run_quantize } };

RUN(run_fused) { compute(call, MM3_OP_SWIGLU_QUANTIZE, i, n); }
RUN(run_slow_swiglu)
{
    compute(call, MM3_OP_SWIGLU, i, n);
    spin(i, 200);
}
/* How far the residual stream has drifted while it was timed. */
static float largest_x;
RUN(run_norm)
{
    const mm3_add_rmsnorm *op = call->op;
    compute(call, MM3_OP_ADD_RMSNORM, i, n);
    for (int k = 0; k < op->m * op->k; k++) largest_x = fmaxf(largest_x, fabsf(op->x[k]));
}
float planted_largest_x(void) { return largest_x; }
RUN(run_norm_slow)
{
    compute(call, MM3_OP_ADD_RMSNORM, i, n);
    spin(i, 100);
}
RUN(run_rope) { compute(call, MM3_OP_QK_NORM_ROPE, i, n); }
RUN(run_rope_slow)
{
    compute(call, MM3_OP_QK_NORM_ROPE, i, n);
    spin(i, 300);
}
RUN(run_rope_wrong)
{
    const mm3_qk_norm_rope *op = call->op;
    compute(call, MM3_OP_QK_NORM_ROPE, i, n);
    if (i == 0) /* one value of one row in the pages */
        ((float *)mm3_kv_tile(&op->kv, op->slot[1], 0, op->kv.v_at, 1, MM3_HEAD_DIM))[op->position[1] * MM3_HEAD_DIM] +=
            0.01f;
}
#define KERNEL_OF(id, OP_ID, run)                                                                     \
    static const mm3_kernel id = {                                                                    \
        .op = OP_ID, .device = "cpu", .name = #id, .tactics = plain, .n_tactics = 1, .phase = { run } \
    }
KERNEL_OF(fused, MM3_OP_SWIGLU_QUANTIZE, run_fused);
KERNEL_OF(swiglu_slow, MM3_OP_SWIGLU, run_slow_swiglu);
KERNEL_OF(norm_slow, MM3_OP_ADD_RMSNORM, run_norm_slow);
KERNEL_OF(norm, MM3_OP_ADD_RMSNORM, run_norm);
KERNEL_OF(rope_slow, MM3_OP_QK_NORM_ROPE, run_rope_slow);
KERNEL_OF(rope_wrong, MM3_OP_QK_NORM_ROPE, run_rope_wrong);
KERNEL_OF(rope, MM3_OP_QK_NORM_ROPE, run_rope);

static const mm3_kernel *const all[] = { &slow,       &very_slow,   &fast,           &same,          &probing,
                                         &wrong,      &skips_a_row, &writes_outside, &changes_input, &stale,
                                         &kills,      &hangs,       &refusing,       &huge,          &hungry,
                                         &alone_fast, &large,       &quantizer,      &fused,         &swiglu_slow,
                                         &norm_slow,  &norm,        &rope_slow,      &rope_wrong,    &rope };

const mm3_kernel *planted(const char *name)
{
    for (int i = 0; i < MM3_COUNT(all); i++)
        if (strcmp(all[i]->name, name) == 0) return all[i];
    fail_msg("no planted candidate is named %s", name);
    return NULL;
}

/* ---- the registry of a test -------------------------------------------------------------------------------------- */

static const mm3_kernel *registry[8];

void plant(const char *format, ...)
{
    char names[256], *rest = names, *name;
    int n = 0;
    va_list args;
    va_start(args, format);
    vsnprintf(names, sizeof names, format, args);
    va_end(args);
    memset(registry, 0, sizeof registry);
    while ((name = strtok_r(rest, " ", &rest))) {
        assert_true(n < MM3_COUNT(registry));
        registry[n++] = planted(name);
    }
    n_memo = 0;
}

int planted_kernels_of(mm3_op_id op, const char *device, const mm3_kernel **out, int max)
{
    int n = 0;
    for (int i = 0; i < MM3_COUNT(registry) && registry[i]; i++)
        if (registry[i]->op == op && n < max) out[n++] = registry[i];
    if (n && op != MM3_OP_SWIGLU_QUANTIZE) return n;
    if (n) { /* a chain: split first */
        const mm3_kernel *k[MM3_MAX_CANDIDATES];
        mm3_kernels_of(op, device, k, MM3_MAX_CANDIDATES);
        memmove(out + 1, out, (size_t)n * sizeof *out);
        out[0] = k[0];
        return n + 1;
    }
    return mm3_kernels_of(op, device, out, max);
}
