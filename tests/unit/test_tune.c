/* The tuner with planted candidates: wrong, crashing, hanging, hungry, refusing, equal, faster; and what it must leave
 * alone. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/alloc_faults.h"
#include "support/expect.h"
#include "support/temp_dir.h"
#include "tune/search.h"

enum { M = 4, N = 64, K = 64, LAYERS = 5, SLOTS = 4, HEADS = 4, KV_HEADS = 2, D_INDEX = 64 };
enum { LD = (HEADS + 2 * KV_HEADS) * MM3_HEAD_DIM };

/* ---- a small network's buffers ----------------------------------------------------------------------------------- */

typedef struct world {
    mm3_device *device;
    float x[M * K], delta[M * K], w[K], y[M * K], out[M * N], gate_up[M * 2 * N], act[M * N];
    uint8_t codes[M * K], scales[M * K / 32], act_codes[M * N], act_scales[M * N / 32];
    uint8_t weight[LAYERS][N * K], weight_scales[LAYERS][N * K / 32];
    float qkv[M * LD], q_norm[MM3_HEAD_DIM], cos[M * 32], sin[M * 32], q[M * HEADS * MM3_HEAD_DIM];
    int32_t slot[M], position[M], table[SLOTS];
    unsigned char pool[SLOTS * 2 * KV_HEADS * MM3_PAGE_TOKENS * MM3_HEAD_DIM * 4];
} world;

static unsigned seed = 1;
static float random_value(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / 8388608.0f - 1.0f;
}

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = random_value();
}

static world *world_open(int n_threads)
{
    world *w = mm3_alloc_aligned(sizeof *w);
    assert_non_null(w);
    assert_int_equal(mm3_device_open(&w->device, n_threads), MM3_OK);
    seed = 1;
    fill(w->x, M * K), fill(w->delta, M * K), fill(w->w, K), fill(w->y, M * K), fill(w->out, M * N);
    fill(w->gate_up, M * 2 * N), fill(w->act, M * N);
    fill(w->qkv, M * LD), fill(w->q_norm, MM3_HEAD_DIM), fill(w->cos, M * 32), fill(w->sin, M * 32);
    fill((float *)(void *)w->pool, sizeof w->pool / 4);
    for (int i = 0; i < M * K; i += 32) w->scales[i / 32] = mm3_mx_quantize_block(w->y + i, w->codes + i);
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < N * K; i += 32) {
            float block[32];
            fill(block, 32);
            w->weight_scales[l][i / 32] = mm3_mx_quantize_block(block, w->weight[l] + i);
        }
    for (int i = 0; i < M; i++) w->slot[i] = i == 2 ? -1 : i, w->position[i] = 5 + i;
    for (int i = 0; i < SLOTS; i++) w->table[i] = SLOTS - 1 - i;
    return w;
}

static void world_close(world **w)
{
    mm3_device_close(&(*w)->device);
    mm3_free(*w);
    *w = NULL;
}

static mm3_linear linear_of(world *w, int layer, int m)
{
    mm3_linear op = {
        .m = m, .n = N, .k = K, .n_segments = 1, .x_codes = w->codes, .x_scales = w->scales, .out = w->out
    };
    op.segment[0] = (mm3_weight){ w->weight[layer], w->weight_scales[layer], N, MM3_MX };
    return op;
}

static mm3_kv kv_of(world *w)
{
    size_t tile = MM3_PAGE_TOKENS * MM3_HEAD_DIM * 4;
    return (mm3_kv){ .pool = w->pool,
                     .page_bytes = 2 * KV_HEADS * tile,
                     .v_at = KV_HEADS * tile,
                     .table = w->table,
                     .n_pages = SLOTS,
                     .n_slots = SLOTS,
                     .max_pages = 1,
                     .n_kv = KV_HEADS,
                     .type = MM3_F32 };
}

static void issue_linears(world *w, mm3_recorder *r, int m)
{
    for (int l = 0; l < LAYERS; l++) {
        mm3_linear op = linear_of(w, l, m);
        assert_int_equal(mm3_issue(r, MM3_OP_LINEAR, &op), MM3_OK);
    }
}

static void issue_chains(world *w, mm3_recorder *r)
{
    mm3_swiglu_quantize op = { .m = M,
                               .n = N,
                               .alpha = 1.7f,
                               .limit = 7,
                               .beta = 1,
                               .gate_up = w->gate_up,
                               .y = w->act,
                               .codes = w->act_codes,
                               .scales = w->act_scales };
    for (int l = 0; l < LAYERS; l++) assert_int_equal(mm3_issue(r, MM3_OP_SWIGLU_QUANTIZE, &op), MM3_OK);
}

static void issue_norms(world *w, mm3_recorder *r)
{
    mm3_add_rmsnorm op = { .m = M, .k = K, .eps = 1e-6f, .x = w->x, .delta = w->delta, .w = w->w, .y = w->y };
    for (int l = 0; l < LAYERS; l++) assert_int_equal(mm3_issue(r, MM3_OP_ADD_RMSNORM, &op), MM3_OK);
}

static void issue_ropes(world *w, mm3_recorder *r)
{
    mm3_qk_norm_rope op = { .m = M,
                            .ld = LD,
                            .n_q = HEADS,
                            .eps = 1e-6f,
                            .qkv = w->qkv,
                            .q_norm = w->q_norm,
                            .k_norm = w->q_norm,
                            .cos = w->cos,
                            .sin = w->sin,
                            .slot = w->slot,
                            .position = w->position,
                            .q = w->q,
                            .kv = kv_of(w) };
    for (int l = 0; l < LAYERS; l++) assert_int_equal(mm3_issue(r, MM3_OP_QK_NORM_ROPE, &op), MM3_OK);
}

/* ---- planted candidates ------------------------------------------------------------------------------------------ */

/* The right result, and nothing of the time it takes is ours. */
static void compute(const mm3_call *call, mm3_op_id op, int i, int n)
{
    if (i == 0) mm3_op_info_of(op)->reference(call->op, NULL);
    (void)n;
}

/* The thread's own processor time: a machine that does other things too does not disturb. */
static double processor_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void spin(int i, double us)
{
    double end = processor_time() + us * 1e-6;
    while (i == 0 && processor_time() < end) continue;
}

static const mm3_linear *linear(const mm3_call *call) { return call->op; }

static void multiply(const mm3_linear *op)
{
    const uint8_t *codes = op->segment[0].data;
    for (int r = 0; r < op->m; r++)
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int c = 0; c < K; c++)
                sum += (double)mm3_e4m3_to_f32(op->x_codes[r * K + c]) * (double)mm3_e4m3_to_f32(codes[j * K + c]) *
                       (double)mm3_e8m0_to_f32(op->x_scales[(r * K + c) / 32]) *
                       (double)mm3_e8m0_to_f32(op->segment[0].scales[(j * K + c) / 32]);
            op->out[r * N + j] = (float)sum;
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
    const unsigned none = zero, n_lines = N * K / 64;
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
static double probed(void)
{
    qsort(probe.ratio, (size_t)probe.n, sizeof *probe.ratio, compare_doubles);
    return probe.ratio[probe.n / 2];
}
RUN(run_wrong)
{
    LINEAR;
    if (i == 0) linear(call)->out[linear(call)->m * N - 1] *= 1.01f;
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
    if (i == 0) linear(call)->out[linear(call)->m * N] = 0;
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
    float *out, value[M * N];
} memo[64];
static int n_memo;
RUN(run_stale)
{
    const mm3_linear *op = linear(call);
    (void)n;
    if (i) return;
    for (int k = 0; k < n_memo; k++)
        if (memo[k].out == op->out) {
            memcpy(op->out, memo[k].value, sizeof memo[k].value);
            return;
        }
    multiply(op);
    if (n_memo < MM3_COUNT(memo)) {
        memo[n_memo].out = op->out;
        memcpy(memo[n_memo++].value, op->out, sizeof memo[0].value);
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
    compute(call, MM3_OP_ADD_RMSNORM, i, n);
    for (int k = 0; k < M * K; k++) largest_x = fmaxf(largest_x, fabsf(((const mm3_add_rmsnorm *)call->op)->x[k]));
}
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

/* The registry of a test: these for their operations, the real ones for others. */
static const mm3_kernel *planted[8];
static void plant(const mm3_kernel *a, const mm3_kernel *b, const mm3_kernel *c, const mm3_kernel *d)
{
    memset(planted, 0, sizeof planted);
    planted[0] = a, planted[1] = b, planted[2] = c, planted[3] = d;
}

static int kernels_of(mm3_op_id op, const char *device, const mm3_kernel **out, int max)
{
    int n = 0;
    for (int i = 0; i < MM3_COUNT(planted) && planted[i]; i++)
        if (planted[i]->op == op && n < max) out[n++] = planted[i];
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

/* ---- helpers ----------------------------------------------------------------------------------------------------- */

static mm3_tune_options options_of(const char *dir)
{
    mm3_tune_options o = MM3_TUNE_OPTIONS_INIT;
    o.cache_dir = dir;
    o.kernels_of = kernels_of;
    o.now = processor_time;
    o.stage_s = 10;
    o.workload = "a test";
    return o;
}

typedef void issue_fn(world *w, mm3_recorder *r);
static void issue_linears_m(world *w, mm3_recorder *r) { issue_linears(w, r, M); }

static int n_lists = 1; /* that share the budget, says tune() */
static mm3_tuner *tune(world *w, const mm3_tune_options *o, issue_fn *issue)
{
    mm3_recorder *r = NULL;
    mm3_tuner *t = NULL;
    const mm3_stage *stages;
    int n;
    assert_int_equal(mm3_collect_open(&r), MM3_OK);
    issue(w, r);
    stages = mm3_collect_stages(r, &n);
    assert_int_equal(mm3_tuner_open(&t, w->device, o), MM3_OK);
    mm3_tuner_share(t, n_lists);
    assert_int_equal(mm3_tuner_stages(t, stages, n, 0), MM3_OK);
    mm3_collect_close(&r);
    return t;
}

static const mm3_decision *only(const mm3_tuner *t, const char *key)
{
    const mm3_decision *d = mm3_plan_find(mm3_tuner_plan(t), key);
    if (!d) fail_msg("no decision for %s", key);
    return d;
}

static const char linear_key[] = "linear m=4 n=64 k=64 w=mx act=w8a8";

static const mm3_tried *tried(const mm3_decision *d, const char *choice)
{
    for (int i = 0; i < d->n_tried; i++)
        if (strcmp(d->tried[i].choice, choice) == 0) return &d->tried[i];
    fail_msg("nothing is said of %s", choice);
    return NULL;
}

static void forget(void) { mm3_plan_memory_clear(); }

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

static void check_unchanged(world *w, const mm3_kernel *a, const mm3_kernel *b, const mm3_kernel *c, issue_fn *issue,
                            const char *key, const char *winner)
{
    world *before = mm3_alloc_aligned(sizeof *before);
    mm3_tune_options o = options_of(NULL);
    mm3_tuner *t;
    assert_non_null(before);
    plant(a, b, c, NULL);
    memcpy(before, w, sizeof *w);
    t = tune(w, &o, issue);
    assert_string_equal(only(t, key)->choice, winner);
    assert_int_equal(only(t, key)->how, MM3_HOW_TIMED);
    assert_memory_equal(before, w, sizeof *w);
    mm3_tuner_close(&t);
    mm3_free(before);
    forget();
}

/* The faster one wins, and every byte of every buffer is as before: outputs, in-out arrays, KV rows, weights. */
static void test_faster_wins(void **state)
{
    world *w = world_open(1);
    (void)state;
    check_unchanged(w, &slow, &fast, NULL, issue_linears_m, linear_key, "fast");
    check_unchanged(w, &norm_slow, &norm, NULL, issue_norms, "add_rmsnorm m=4 k=64 delta=yes", "norm");
    /* put back before every replay of LAYERS launches: a few units, twice that on fresh inputs; drift would add up */
    assert_true(largest_x > 1 && largest_x < 4 * LAYERS);
    check_unchanged(w, &rope_slow, &rope_wrong, &rope, issue_ropes,
                    "qk_norm_rope m=4 heads=4 kv_heads=2 index_heads=0 index_dim=0 ld=1024 kv=f32", "rope");
    world_close(&w);
    w = world_open(2);
    check_unchanged(w, &very_slow, &hungry, NULL, issue_linears_m, linear_key, "hungry");
    world_close(&w);
}

static void test_twins_and_reasons(void **state)
{
    world *w = world_open(1);
    mm3_tune_options o = options_of(NULL);
    mm3_tuner *t;
    const mm3_decision *d;
    (void)state;
    plant(&slow, &same, &refusing, &huge);
    t = tune(w, &o, issue_linears_m);
    d = only(t, linear_key);
    assert_string_equal(d->choice, "slow");
    assert_int_equal(d->n_tried, 3);
    assert_int_equal(tried(d, "same")->fate, MM3_FATE_TIMED);
    assert_true(fabs(tried(d, "same")->ratio - 1) < 0.2 && d->us >= 300 && d->us < 3000);
    assert_int_equal(tried(d, "refusing")->fate, MM3_FATE_REFUSED);
    assert_string_equal(tried(d, "refusing")->why, "needs a machine that does not exist");
    assert_int_equal(tried(d, "huge")->fate, MM3_FATE_FAILED);
    assert_non_null(strstr(tried(d, "huge")->why, "out of memory"));
    assert_int_equal(mm3_tuner_counts(t).tuned, 1);
    assert_int_equal(mm3_tuner_counts(t).rejected, 1);
    assert_true(mm3_tuner_counts(t).timings > 0);
    mm3_tuner_close(&t);
    forget();

    plant(&slow, &refusing, NULL, NULL);
    t = tune(w, &o, issue_linears_m);
    assert_int_equal(only(t, linear_key)->how, MM3_HOW_ALONE);
    assert_int_equal(mm3_tuner_counts(t).timings, 0);
    mm3_tuner_close(&t);
    forget();
    world_close(&w);
}

/* Each of these is the fastest, and none may win. */
static void test_wrong_never_wins(void **state)
{
    static const struct {
        const mm3_kernel *kernel;
        const char *why;
    } bad[] = { { &wrong, "out[255] is" },
                { &skips_a_row, "out[192] is" },
                { &writes_outside, "it writes outside out" },
                { &changes_input, "it changes its input x_codes" },
                { &stale, "under replay on fresh inputs, out[" } };
    world *w = world_open(1);
    mm3_tune_options o = options_of(NULL);
    (void)state;
    for (int i = 0; i < MM3_COUNT(bad); i++) {
        mm3_tuner *t;
        const mm3_decision *d;
        plant(&slow, bad[i].kernel, &fast, NULL);
        n_memo = 0;
        t = tune(w, &o, issue_linears_m);
        d = only(t, linear_key);
        assert_string_equal(d->choice, "fast");
        assert_int_equal(tried(d, bad[i].kernel->name)->fate, MM3_FATE_WRONG);
        if (!strstr(tried(d, bad[i].kernel->name)->why, bad[i].why))
            fail_msg("%s: %s", bad[i].kernel->name, tried(d, bad[i].kernel->name)->why);
        mm3_tuner_close(&t);
        /* with no other challenger native stays */
        forget();
        plant(&slow, bad[i].kernel, NULL, NULL);
        n_memo = 0;
        t = tune(w, &o, issue_linears_m);
        assert_string_equal(only(t, linear_key)->choice, "slow");
        mm3_tuner_close(&t);
        forget();
    }
    world_close(&w);
}

/* ---- reuse ------------------------------------------------------------------------------------------------------- */

static void test_memory_and_cache(void **state)
{
    world *w = world_open(1);
    char *dir = test_temp_dir();
    mm3_tune_options o = options_of(dir);
    mm3_tuner *t;
    (void)state;
    plant(&slow, &fast, &refusing, NULL);
    t = tune(w, &o, issue_linears_m);
    assert_string_equal(mm3_tuner_warnings(t), "");
    mm3_tuner_save(t);
    mm3_tuner_close(&t);
    /* memory, without a cache */
    o.cache_dir = NULL;
    t = tune(w, &o, issue_linears_m);
    assert_int_equal(mm3_tuner_counts(t).reused, 1);
    assert_int_equal(mm3_tuner_counts(t).timings, 0);
    mm3_tuner_close(&t);
    /* the cache, without memory */
    forget();
    t = tune(w, &o, issue_linears_m);
    assert_int_equal(mm3_tuner_counts(t).tuned, 1);
    mm3_tuner_close(&t);
    o.cache_dir = dir;
    t = tune(w, &o, issue_linears_m);
    assert_int_equal(mm3_tuner_counts(t).reused, 1);
    assert_int_equal(mm3_tuner_counts(t).timings, 0);
    assert_string_equal(only(t, linear_key)->choice, "fast");
    assert_ptr_equal(only(t, linear_key)->kernel, &fast);
    mm3_tuner_close(&t);
    /* force */
    o.force = true;
    t = tune(w, &o, issue_linears_m);
    assert_int_equal(mm3_tuner_counts(t).tuned, 1);
    mm3_tuner_close(&t);
    o.force = false;
    /* another set of candidates, another number of threads, another workload: tuned again */
    plant(&slow, &fast, &refusing, &same);
    t = tune(w, &o, issue_linears_m);
    assert_int_equal(mm3_tuner_counts(t).tuned, 1);
    mm3_tuner_close(&t);
    plant(&slow, &fast, &refusing, NULL);
    o.workload = "another";
    t = tune(w, &o, issue_linears_m);
    assert_int_equal(mm3_tuner_counts(t).tuned, 1);
    mm3_tuner_close(&t);
    test_temp_dir_remove(&dir);
    forget();
    world_close(&w);
}

/* A line of another source is ignored, alone, with one warning; so is a candidate that is gone. */
static void test_stale_lines(void **state)
{
    world *w = world_open(1);
    char *dir = test_temp_dir(), *path, *text;
    mm3_tune_options o = options_of(dir);
    mm3_tuner *t;
    size_t n;
    (void)state;
    plant(&slow, &fast, NULL, NULL);
    t = tune(w, &o, issue_linears_m);
    path = mm3_plan_cache_path(dir, mm3_plan_head_of(mm3_tuner_plan(t)));
    mm3_tuner_save(t);
    mm3_tuner_close(&t);
    assert_int_equal(mm3_read_all(path, 1 << 20, &text, &n), MM3_OK);
    memcpy(strstr(text, "| src 00000000") + 6, "deadbeef", 8);
    test_write_text("", path + 1, text);
    forget();
    t = tune(w, &o, issue_linears_m);
    assert_int_equal(mm3_tuner_counts(t).tuned, 1);
    assert_non_null(strstr(mm3_tuner_warnings(t), "stale, ignored: linear m=4"));
    mm3_tuner_close(&t);
    mm3_free(text);
    mm3_free(path);
    test_temp_dir_remove(&dir);
    forget();
    world_close(&w);
}

/* ---- pins and chains --------------------------------------------------------------------------------------------- */

static void test_pins(void **state)
{
    world *w = world_open(1);
    char *dir = test_temp_dir();
    mm3_tune_options o = options_of(dir);
    mm3_pins *pins = NULL;
    mm3_tuner *t;
    const mm3_decision *d;
    (void)state;
    assert_int_equal(mm3_pins_parse(&pins, "quantize=native", "cpu"), MM3_OK);
    plant(&fused, &swiglu_slow, NULL, NULL);
    /* without pins the fused candidate wins over split, whose part is slow */
    t = tune(w, &o, issue_chains);
    assert_string_equal(only(t, "swiglu_quantize m=4 n=64")->choice, "fused");
    assert_int_equal(mm3_tuner_counts(t).pinned, 0);
    mm3_tuner_save(t);
    mm3_tuner_close(&t);
    /* a pinned part leaves only split, and the cached decision stands for others */
    o.pins = pins;
    t = tune(w, &o, issue_chains);
    d = only(t, "swiglu_quantize m=4 n=64");
    assert_string_equal(d->choice, "split");
    assert_int_equal(d->how, MM3_HOW_PINNED);
    assert_int_equal(tried(d, "fused")->fate, MM3_FATE_DISQUALIFIED);
    assert_string_equal(tried(d, "fused")->why, "its part 'quantize m=4 k=64' is pinned");
    assert_int_equal(only(t, "quantize m=4 k=64")->how, MM3_HOW_PINNED);
    assert_int_equal(mm3_tuner_counts(t).pinned, 2);
    assert_int_equal(mm3_tuner_counts(t).reused, 1); /* swiglu */
    assert_int_equal(mm3_tuner_counts(t).timings, 0);
    mm3_tuner_save(t);
    mm3_tuner_close(&t);
    o.pins = NULL;
    forget();
    t = tune(w, &o, issue_chains);
    assert_string_equal(only(t, "swiglu_quantize m=4 n=64")->choice, "fused");
    assert_int_equal(mm3_tuner_counts(t).timings, 0);
    mm3_tuner_close(&t);
    mm3_pins_free(&pins);
    test_temp_dir_remove(&dir);
    forget();
    world_close(&w);
}

/* A part that is decided otherwise makes its chain's decision old. */
static void test_chain_follows_its_parts(void **state)
{
    world *w = world_open(1);
    mm3_tune_options o = options_of(NULL);
    mm3_tuner *t;
    (void)state;
    plant(&fused, &swiglu_slow, NULL, NULL);
    t = tune(w, &o, issue_chains);
    mm3_tuner_save(t);
    mm3_tuner_close(&t);
    t = tune(w, &o, issue_chains);
    assert_int_equal(mm3_tuner_counts(t).reused, 3);
    mm3_tuner_close(&t);
    plant(&fused, NULL, NULL, NULL); /* swiglu is real now */
    t = tune(w, &o, issue_chains);
    assert_int_equal(mm3_tuner_counts(t).reused, 1); /* quantize */
    assert_int_equal(mm3_tuner_counts(t).tuned + mm3_tuner_counts(t).alone, 2);
    mm3_tuner_close(&t);
    forget();
    world_close(&w);
}

/* ---- deterministic, budget, progress ----------------------------------------------------------------------------- */

static void issue_two_sizes(world *w, mm3_recorder *r)
{
    issue_linears(w, r, M);
    issue_linears(w, r, 1);
}

static void test_deterministic(void **state)
{
    world *w = world_open(1), *before = mm3_alloc_aligned(sizeof *before);
    mm3_tune_options o = options_of(NULL);
    mm3_binding b;
    mm3_choice one, four;
    mm3_linear op1 = linear_of(w, 0, 1), op4 = linear_of(w, 0, M);
    mm3_tuner *t;
    const mm3_decision *d;
    (void)state;
    assert_non_null(before);
    memcpy(before, w, sizeof *w);
    o.deterministic = true;
    plant(&slow, &large, &fast, NULL);
    t = tune(w, &o, issue_two_sizes);
    assert_memory_equal(before, w, sizeof *w);
    assert_int_equal(mm3_plan_count(mm3_tuner_plan(t)), 1);
    d = only(t, "linear n=64 k=64 w=mx act=w8a8");
    assert_string_equal(d->choice, "fast");
    assert_int_equal(tried(d, "large/mixing")->fate, MM3_FATE_REFUSED); /* at m=1 */
    assert_int_equal(tried(d, "large/apart")->fate, MM3_FATE_REFUSED);
    b = mm3_tuner_binding(t);
    assert_int_equal(mm3_choose_planned(&b, MM3_OP_LINEAR, &op1, &one), MM3_OK);
    assert_int_equal(mm3_choose_planned(&b, MM3_OP_LINEAR, &op4, &four), MM3_OK);
    assert_ptr_equal(one.kernel, four.kernel);
    mm3_tuner_close(&t);
    forget();
    plant(&slow, &large, NULL, NULL);
    t = tune(w, &o, issue_linears_m);
    d = only(t, "linear n=64 k=64 w=mx act=w8a8");
    assert_string_equal(d->choice, "large/apart");
    assert_int_equal(tried(d, "large/mixing")->fate, MM3_FATE_DISQUALIFIED);
    mm3_tuner_close(&t);
    forget();
    mm3_free(before);
    world_close(&w);
}

static void test_budget(void **state)
{
    world *w = world_open(1);
    char *dir = test_temp_dir();
    mm3_tune_options o = options_of(dir);
    mm3_tuner *t;
    const mm3_decision *d;
    (void)state;
    plant(&slow, &fast, &refusing, NULL);
    o.budget_s = 0;
    t = tune(w, &o, issue_linears_m);
    d = only(t, linear_key);
    assert_string_equal(d->choice, "slow");
    assert_int_equal(d->how, MM3_HOW_UNTIMED);
    assert_int_equal(tried(d, "fast")->fate, MM3_FATE_UNTIMED);
    assert_int_equal(tried(d, "refusing")->fate, MM3_FATE_REFUSED);
    assert_int_equal(mm3_tuner_counts(t).untimed, 1);
    assert_int_equal(mm3_tuner_counts(t).timings, 0);
    mm3_tuner_save(t);
    mm3_tuner_close(&t);
    forget();
    /* the next start has a budget of its own; one of very many lists gets nothing worth mentioning of it */
    o.budget_s = 60;
    n_lists = INT_MAX;
    t = tune(w, &o, issue_linears_m);
    n_lists = 1;
    assert_int_equal(only(t, linear_key)->how, MM3_HOW_UNTIMED);
    mm3_tuner_close(&t);
    forget();
    /* what a start finds is not undone by one without */
    t = tune(w, &o, issue_linears_m);
    assert_string_equal(only(t, linear_key)->choice, "fast");
    mm3_tuner_save(t);
    mm3_tuner_close(&t);
    forget();
    o.budget_s = 0;
    t = tune(w, &o, issue_linears_m);
    assert_string_equal(only(t, linear_key)->choice, "fast");
    mm3_tuner_save(t);
    mm3_tuner_close(&t);
    test_temp_dir_remove(&dir);
    forget();
    world_close(&w);
}

static int n_before, n_after, cancel_at;
static bool progress(void *user, int i, int n, const char *key, const char *best)
{
    (void)user;
    assert_true(i >= 0 && i < n);
    assert_non_null(strchr(key, '='));
    n_before += !best;
    n_after += best != NULL;
    return n_before + n_after != cancel_at;
}

static void test_progress(void **state)
{
    world *w = world_open(1);
    mm3_tune_options o = options_of(NULL);
    mm3_tuner *t = NULL;
    mm3_recorder *r = NULL;
    const mm3_stage *stages;
    int n;
    (void)state;
    plant(&slow, &fast, NULL, NULL);
    o.progress = progress;
    n_before = n_after = cancel_at = 0;
    t = tune(w, &o, issue_chains);
    assert_int_equal(n_before, 3);
    assert_int_equal(n_after, 3);
    mm3_tuner_close(&t);
    n_before = n_after = 0;
    cancel_at = 1;
    assert_int_equal(mm3_collect_open(&r), MM3_OK);
    issue_linears_m(w, r);
    stages = mm3_collect_stages(r, &n);
    assert_int_equal(mm3_tuner_open(&t, w->device, &o), MM3_OK);
    assert_int_equal(mm3_tuner_stages(t, stages, n, 0), MM3_ERR_CANCELLED);
    assert_int_equal(mm3_plan_count(mm3_tuner_plan(t)), 0);
    mm3_tuner_close(&t);
    mm3_collect_close(&r);
    forget();
    world_close(&w);
}

static int n_states_set[4];
static int states(void *user, const mm3_stage *stage, int i)
{
    (void)user, (void)stage;
    n_states_set[i + 1]++;
    spin(0, 5000);
    return 3;
}

/* Inputs in several states: all are timed, and in the end they are put back. What happens between launches, here 5 ms
 * each time, is in no candidate's time. */
static void test_states(void **state)
{
    world *w = world_open(1);
    mm3_tune_options o = options_of(NULL);
    mm3_tuner *t;
    (void)state;
    plant(&slow, &fast, NULL, NULL);
    o.states = states;
    t = tune(w, &o, issue_linears_m);
    assert_string_equal(only(t, linear_key)->choice, "fast");
    assert_true(only(t, linear_key)->us >= 100 && only(t, linear_key)->us < 900);
    for (int i = 1; i < 4; i++) assert_true(n_states_set[i] >= 6);
    assert_true(n_states_set[0] >= 2);
    mm3_tuner_close(&t);
    forget();
    world_close(&w);
}

/* Cold caches: the step is large, this stage is small. Its weights come from memory, and making that so is in no
 * candidate's time. Where a step fits into the last cache they come from there. */
static void check_eviction(int n_threads)
{
    world *w = world_open(n_threads);
    mm3_device_info *info = (mm3_device_info *)(uintptr_t)mm3_device_info_of(w->device);
    mm3_tune_options o = options_of(NULL);
    mm3_recorder *r = NULL;
    const mm3_stage *stages;
    int n;
    info->last_cache_bytes = 64 << 20;
    plant(&probing, &same, NULL, NULL); /* twins: many rounds */
    assert_int_equal(mm3_collect_open(&r), MM3_OK);
    issue_linears_m(w, r);
    stages = mm3_collect_stages(r, &n);
    assert_int_equal(n, 1);
    for (int cold = 0; cold < 2; cold++) {
        mm3_tuner *t = NULL;
        probe.n = 0;
        assert_int_equal(mm3_tuner_open(&t, w->device, &o), MM3_OK);
        assert_int_equal(mm3_tuner_stages(t, stages, n, cold ? 1e9 : 1e6), MM3_OK);
        print_message("# %s weights take %.1f times as long as in the first-level cache\n", cold ? "cold" : "warm",
                      probed());
        if (cold) assert_true(probed() > 4); /* warm ones: 1.3 to 2.6, rarely more */
        if (n_threads == 1) assert_true(only(t, linear_key)->us >= 300 && only(t, linear_key)->us < 1000);
        mm3_tuner_close(&t);
        forget();
    }
    mm3_collect_close(&r);
    world_close(&w);
}

static void test_eviction(void **state)
{
    (void)state;
    check_eviction(1);
    check_eviction(2);
}

/* ---- processes that die ------------------------------------------------------------------------------------------ */

static int count_files(const char *dir, const char *part)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    int n = 0;
    while (d && (e = readdir(d))) n += strstr(e->d_name, part) != NULL;
    if (d) closedir(d);
    return n;
}

static bool journal_has(const char *dir, const char *what)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    bool found = false;
    while (d && (e = readdir(d)) && !found) {
        char *text;
        if (!strstr(e->d_name, ".journal.")) continue;
        text = test_read_file(dir, e->d_name, NULL);
        found = strstr(text, what) != NULL;
        free(text);
    }
    if (d) closedir(d);
    return found;
}

static void check_death(const mm3_kernel *killer, bool by_hand)
{
    world *w = world_open(1);
    char *dir = test_temp_dir();
    mm3_tune_options o = options_of(dir);
    mm3_tuner *t;
    const mm3_decision *d;
    int status;
    pid_t child;
    plant(&slow, killer, &fast, NULL);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        mm3_tuner *mine = tune(w, &o, issue_linears_m);
        mm3_tuner_close(&mine);
        _exit(0);
    }
    if (by_hand) {
        char expected[128];
        snprintf(expected, sizeof expected, "%s | %s | src 00000000\n", linear_key, killer->name);
        for (int i = 0; i < 2000 && !journal_has(dir, expected); i++) usleep(5000);
        assert_true(journal_has(dir, expected));
        /* a tuner that starts meanwhile leaves the living one's journal alone */
        assert_int_equal(mm3_tuner_open(&t, w->device, &o), MM3_OK);
        assert_string_equal(mm3_tuner_warnings(t), "");
        mm3_tuner_close(&t);
        assert_true(journal_has(dir, expected));
        kill(child, SIGKILL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(count_files(dir, ".journal."), 1);

    t = tune(w, &o, issue_linears_m); /* would not come back if it were tried */
    d = only(t, linear_key);
    assert_string_equal(d->choice, "fast");
    assert_int_equal(tried(d, killer->name)->fate, MM3_FATE_FAILED);
    assert_string_equal(tried(d, killer->name)->why, "crashed in an earlier run");
    assert_non_null(strstr(mm3_tuner_warnings(t), killer->name));
    assert_non_null(strstr(mm3_tuner_warnings(t), linear_key));
    mm3_tuner_close(&t); /* not saved: it was kept at once */
    forget();
    t = tune(w, &o, issue_two_sizes); /* and for other keys of the operation */
    assert_string_equal(tried(only(t, linear_key), killer->name)->why, "crashed in an earlier run");
    assert_string_equal(tried(only(t, "linear m=1 n=64 k=64 w=mx act=w8a8"), killer->name)->why,
                        "crashed in an earlier run");
    assert_string_equal(mm3_tuner_warnings(t), "");
    assert_int_equal(count_files(dir, ".journal."), 1); /* ours */
    mm3_tuner_close(&t);
    assert_int_equal(count_files(dir, ".journal."), 0);
    test_temp_dir_remove(&dir);
    forget();
    world_close(&w);
}

static void test_crash(void **state)
{
    (void)state;
    check_death(&kills, false);
}

static void test_hang(void **state)
{
    (void)state;
    check_death(&hangs, true);
}

/* ---- the cache under trouble ------------------------------------------------------------------------------------- */

static char *cache_file(world *w, const char *dir)
{
    mm3_plan_head head;
    mm3_plan_head_of_device(&head, mm3_device_info_of(w->device), MM3_TUNE_POLICY, "a test");
    return mm3_plan_cache_path(dir, &head);
}

static void test_damaged_caches(void **state)
{
    world *w = world_open(1);
    char *dir = test_temp_dir(), *path = cache_file(w, dir), *good;
    char policy[24];
    const char *const head[] = { "| cpu ", "threads 1", policy, "a test" }; /* each field that counts */
    mm3_tune_options o = options_of(dir);
    mm3_tuner *t;
    size_t n;
    (void)state;
    snprintf(policy, sizeof policy, "policy %d", MM3_TUNE_POLICY);
    plant(&slow, &fast, NULL, NULL);
    t = tune(w, &o, issue_linears_m);
    mm3_tuner_save(t);
    mm3_tuner_close(&t);
    assert_int_equal(mm3_read_all(path, 1 << 20, &good, &n), MM3_OK);
    for (int i = 0; i < 5 + MM3_COUNT(head); i++) {
        char *text = mm3_strdup(good);
        size_t n_text = n;
        const char *warning = "is not used";
        forget();
        if (i == 0) memset(text, 0xA5, n_text);           /* garbage */
        if (i == 1) n_text = 0;                           /* empty */
        if (i == 2) n_text = 20;                          /* cut in the head */
        if (i == 3) n_text = n - 30, warning = "cut off"; /* cut in a line */
        if (i == 4) strstr(text, "mm3 plan 1")[9] = '7';  /* of the future */
        if (i >= 5) {                                     /* of another machine, another policy, another workload */
            char *field = strstr(text, head[i - 5]);
            field[strlen(head[i - 5]) - 1] = '9';
        }
        test_write_file("", path + 1, text, n_text);
        t = tune(w, &o, issue_linears_m);
        assert_int_equal(mm3_tuner_counts(t).tuned, 1);
        assert_string_equal(only(t, linear_key)->choice, "fast");
        if (!strstr(mm3_tuner_warnings(t), warning)) fail_msg("%d: %s", i, mm3_tuner_warnings(t));
        mm3_tuner_save(t);
        mm3_tuner_close(&t);
        forget();
        t = tune(w, &o, issue_linears_m); /* and is whole again */
        assert_int_equal(mm3_tuner_counts(t).reused, 1);
        assert_string_equal(mm3_tuner_warnings(t), "");
        mm3_tuner_close(&t);
        mm3_free(text);
    }
    /* a folder where the file should be */
    unlink(path);
    assert_int_equal(mkdir(path, 0777), 0);
    forget();
    t = tune(w, &o, issue_linears_m);
    assert_string_equal(only(t, linear_key)->choice, "fast");
    mm3_tuner_save(t);
    assert_non_null(strstr(mm3_tuner_warnings(t), "decisions are not kept"));
    mm3_tuner_close(&t);
    mm3_free(good);
    mm3_free(path);
    test_temp_dir_remove(&dir);
    forget();
    world_close(&w);
}

/* A folder that can't be made, and one that can't be written (root writes anywhere, so a file stands in for it). */
static void test_no_folder(void **state)
{
    world *w = world_open(1);
    char *dir = test_temp_dir(), *bad, *deep;
    mm3_tune_options o;
    mm3_tuner *t;
    (void)state;
    test_write_text(dir, "file", "x");
    bad = mm3_path_join(dir, "file");
    deep = mm3_path_join(dir, "a/b");
    plant(&slow, &fast, NULL, NULL);
    o = options_of(bad);
    t = tune(w, &o, issue_linears_m);
    assert_string_equal(only(t, linear_key)->choice, "fast");
    mm3_tuner_save(t);
    assert_non_null(strstr(mm3_tuner_warnings(t), "no journal"));
    assert_non_null(strstr(mm3_tuner_warnings(t), "decisions are not kept"));
    mm3_tuner_close(&t);
    forget();
    o = options_of(deep); /* made, with its parent */
    t = tune(w, &o, issue_linears_m);
    mm3_tuner_save(t);
    assert_string_equal(mm3_tuner_warnings(t), "");
    mm3_tuner_close(&t);
    assert_int_equal(count_files(deep, ".plan"), 2); /* and its lock */
    if (geteuid() != 0) {
        forget();
        assert_int_equal(chmod(deep, 0555), 0);
        t = tune(w, &o, issue_linears_m);
        assert_int_equal(mm3_tuner_counts(t).reused, 1);
        mm3_tuner_close(&t);
        assert_int_equal(chmod(deep, 0755), 0);
    }
    mm3_free(bad);
    mm3_free(deep);
    test_temp_dir_remove(&dir);
    forget();
    world_close(&w);
}

/* No room: what was there stays, whole, and nothing is left behind. */
static void test_full_disk(void **state)
{
    world *w = world_open(1);
    char *dir = test_temp_dir(), *path = cache_file(w, dir), *before, *after;
    mm3_tune_options o = options_of(dir);
    struct rlimit all, little;
    mm3_tuner *t;
    size_t n, n_after_full;
    (void)state;
    plant(&slow, &fast, NULL, NULL);
    t = tune(w, &o, issue_linears_m);
    mm3_tuner_save(t);
    mm3_tuner_close(&t);
    assert_int_equal(mm3_read_all(path, 1 << 20, &before, &n), MM3_OK);
    forget();
    t = tune(w, &o, issue_two_sizes);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &all), 0);
    little = all;
    little.rlim_cur = 100;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    mm3_tuner_save(t);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &all), 0);
    assert_non_null(strstr(mm3_tuner_warnings(t), "decisions are not kept: cannot write"));
    mm3_tuner_close(&t);
    assert_int_equal(mm3_read_all(path, 1 << 20, &after, &n_after_full), MM3_OK);
    assert_int_equal(n, n_after_full);
    assert_string_equal(before, after);
    assert_int_equal(count_files(dir, ".plan"), 2); /* file and lock */
    mm3_free(before);
    mm3_free(after);
    mm3_free(path);
    test_temp_dir_remove(&dir);
    forget();
    world_close(&w);
}

/* Keep EACH decisions, one at a time, from the first-th row count on; the process ends with this. */
static void write_decisions(world *w, const mm3_tune_options *o, int first, int n)
{
    for (int k = 0; k < n; k++) {
        mm3_linear op = linear_of(w, 0, first + k);
        void *contract = &op;
        char key[MM3_MAX_KEY_TEXT];
        mm3_stage stage = { .op = MM3_OP_LINEAR, .key = key, .n = 1, .max = 1, .contract = &contract };
        mm3_tuner *t = NULL;
        mm3_plan_key(MM3_OP_LINEAR, &op, false, key, sizeof key);
        if (mm3_tuner_open(&t, w->device, o) != MM3_OK || mm3_tuner_stages(t, &stage, 1, 0) != MM3_OK) _exit(1);
        mm3_tuner_save(t);
        if (*mm3_tuner_warnings(t)) _exit(2);
        mm3_tuner_close(&t);
        forget();
    }
    _exit(0);
}

/* Writers at once, some of them killed in the middle of it: a reader sees a whole file at any time, and in the end
 * every decision of each that lived is there. */
static void test_writers(void **state)
{
    enum { WRITERS = 4, VICTIMS = 4, EACH = 25, MANY = 1000 };
    world *w = world_open(1);
    char *dir = test_temp_dir(), *path = cache_file(w, dir);
    mm3_plan *plan = NULL;
    mm3_buf warnings = { 0 };
    mm3_tune_options o = options_of(dir);
    pid_t child[WRITERS + VICTIMS];
    int status, n_read = 0, n_left = WRITERS;
    (void)state;
    plant(&slow, NULL, NULL, NULL); /* alone: nothing to time */
    for (int i = 0; i < WRITERS + VICTIMS; i++) {
        child[i] = fork();
        assert_true(child[i] >= 0);
        if (child[i]) continue;
        if (i < WRITERS) write_decisions(w, &o, 1 + i * EACH, EACH);
        write_decisions(w, &o, 1 + WRITERS * EACH + (i - WRITERS) * MANY, MANY);
    }
    while (n_left) {
        pid_t ended = waitpid(-1, &status, WNOHANG);
        for (int i = 0; ended > 0 && i < WRITERS; i++) {
            if (child[i] != ended) continue;
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
            n_left--;
        }
        if (!mm3_path_exists(path)) continue;
        EXPECT_OK(mm3_plan_load(&plan, path, &warnings));
        assert_int_equal(warnings.n, 0);
        mm3_plan_close(&plan);
        if (++n_read % 4 == 0 && n_read / 4 <= VICTIMS) kill(child[WRITERS + n_read / 4 - 1], SIGKILL);
    }
    for (int i = 0; i < VICTIMS; i++) kill(child[WRITERS + i], SIGKILL); /* where all was over before */
    while (waitpid(-1, &status, 0) > 0) continue;
    assert_int_equal(mm3_plan_load(&plan, path, &warnings), MM3_OK);
    assert_int_equal(warnings.n, 0);
    for (int m = 1; m <= WRITERS * EACH; m++) {
        char key[MM3_MAX_KEY_TEXT];
        mm3_linear op = linear_of(w, 0, m);
        mm3_plan_key(MM3_OP_LINEAR, &op, false, key, sizeof key);
        if (!mm3_plan_find(plan, key)) fail_msg("%s is not there", key);
    }
    mm3_plan_close(&plan);
    mm3_free(path);
    test_temp_dir_remove(&dir);
    forget();
    world_close(&w);
}

/* ---- a plan that must hold --------------------------------------------------------------------------------------- */

static void test_strict(void **state)
{
    world *w = world_open(1);
    char *dir = test_temp_dir(), *path = mm3_path_join(dir, "mine.plan"), *text;
    const mm3_device_info *info = mm3_device_info_of(w->device);
    mm3_tune_options o = options_of(NULL);
    mm3_recorder *r = NULL;
    const mm3_stage *stages;
    mm3_plan *plan = NULL;
    mm3_binding b = { .device = info, .kernels_of = kernels_of };
    mm3_tuner *t;
    size_t n_text;
    int n;
    (void)state;
    plant(&slow, &fast, NULL, NULL);
    t = tune(w, &o, issue_linears_m);
    assert_int_equal(mm3_plan_save(mm3_tuner_plan(t), path), MM3_OK);
    mm3_tuner_close(&t);
    assert_int_equal(mm3_plan_load_strict(&plan, path, info, "a test", kernels_of), MM3_OK);
    b.plan = plan;
    assert_int_equal(mm3_collect_open(&r), MM3_OK);
    issue_linears(w, r, M);
    stages = mm3_collect_stages(r, &n);
    assert_int_equal(mm3_plan_require(&b, stages, n), MM3_OK);
    issue_linears(w, r, 2);
    stages = mm3_collect_stages(r, &n);
    assert_int_equal(mm3_plan_require(&b, stages, n), MM3_ERR_UNSUPPORTED);
    assert_non_null(strstr(mm3_last_error(), "linear m=2 n=64"));
    mm3_collect_close(&r);
    mm3_plan_close(&plan);

    assert_int_equal(mm3_plan_load_strict(&plan, path, info, "another", kernels_of), MM3_ERR_UNSUPPORTED);
    plant(&slow, &same, NULL, NULL);
    assert_int_equal(mm3_plan_load_strict(&plan, path, info, "a test", kernels_of), MM3_ERR_UNSUPPORTED);
    assert_non_null(strstr(mm3_last_error(), linear_key));
    plant(&slow, &fast, NULL, NULL);
    assert_int_equal(mm3_read_all(path, 1 << 20, &text, &n_text), MM3_OK);
    memcpy(strstr(text, "linear m=4"), "linear x 4", 10);
    test_write_text(dir, "mine.plan", text);
    assert_int_equal(mm3_plan_load_strict(&plan, path, info, "a test", kernels_of), MM3_ERR_FORMAT);
    assert_non_null(strstr(mm3_last_error(), "line 2"));
    assert_int_equal(mm3_plan_load_strict(&plan, "/nowhere.plan", info, "a test", kernels_of), MM3_ERR_IO);
    assert_null(plan);
    mm3_free(text);
    mm3_free(path);
    test_temp_dir_remove(&dir);
    forget();
    world_close(&w);
}

/* ---- the joint check --------------------------------------------------------------------------------------------- */

static mm3_status first_of_list(void *user, mm3_op_id op, const void *contract, mm3_choice *choice)
{
    const mm3_kernel *k[MM3_MAX_CANDIDATES];
    (void)user, (void)contract;
    kernels_of(op, "cpu", k, MM3_MAX_CANDIDATES);
    *choice = (mm3_choice){ k[0], &k[0]->tactics[0] };
    return MM3_OK;
}

static void issue_step(world *w, mm3_recorder *r)
{
    for (int l = 0; l < LAYERS; l++) {
        mm3_quantize q = { .m = M, .k = K, .x = w->y, .codes = w->codes, .scales = w->scales };
        mm3_linear op = linear_of(w, l, M);
        assert_int_equal(mm3_issue(r, MM3_OP_QUANTIZE, &q), MM3_OK);
        assert_int_equal(mm3_issue(r, MM3_OP_LINEAR, &op), MM3_OK);
    }
}

static bool joint(world *w, mm3_tuner *t)
{
    mm3_recorder *collected = NULL, *winners = NULL, *natives = NULL;
    mm3_binding b = mm3_tuner_binding(t);
    const mm3_stage *stages;
    bool better = false;
    int n;
    assert_int_equal(mm3_collect_open(&collected), MM3_OK);
    issue_step(w, collected);
    stages = mm3_collect_stages(collected, &n);
    assert_int_equal(mm3_record_open(&winners, w->device, mm3_choose_planned, &b), MM3_OK);
    assert_int_equal(mm3_record_open(&natives, w->device, first_of_list, NULL), MM3_OK);
    issue_step(w, winners);
    issue_step(w, natives);
    assert_int_equal(
        mm3_tuner_joint(t, "m=4", stages, n, mm3_record_graph(winners), mm3_record_graph(natives), NULL, NULL, &better),
        MM3_OK);
    mm3_record_close(&winners);
    mm3_record_close(&natives);
    mm3_collect_close(&collected);
    return better;
}

static void test_joint(void **state)
{
    world *w = world_open(1);
    char *dir = test_temp_dir(), *text;
    mm3_tune_options o = options_of(dir);
    mm3_tuner *t;
    (void)state;
    /* faster alone, slower in company: natives */
    plant(&slow, &alone_fast, &quantizer, NULL);
    t = tune(w, &o, issue_step);
    assert_string_equal(only(t, linear_key)->choice, "alone_fast");
    assert_false(joint(w, t));
    assert_int_equal(mm3_tuner_counts(t).steps_timed, 1);
    assert_int_equal(mm3_plan_print(mm3_tuner_plan(t), &text), MM3_OK);
    assert_non_null(strstr(text, "step m=4 | natives | 1."));
    mm3_free(text);
    assert_false(joint(w, t));
    assert_int_equal(mm3_tuner_counts(t).steps_reused, 1);
    mm3_tuner_save(t);
    mm3_tuner_close(&t);
    forget();
    t = tune(w, &o, issue_step);
    assert_false(joint(w, t));
    assert_int_equal(mm3_tuner_counts(t).steps_reused, 1);
    assert_int_equal(mm3_tuner_counts(t).timings, 0);
    mm3_tuner_close(&t);
    /* faster in company too; the verdict on other decisions does not count */
    plant(&slow, &fast, &quantizer, NULL);
    t = tune(w, &o, issue_step);
    assert_true(joint(w, t));
    assert_int_equal(mm3_tuner_counts(t).steps_timed, 1);
    assert_int_equal(mm3_plan_print(mm3_tuner_plan(t), &text), MM3_OK);
    assert_non_null(strstr(text, "step m=4 | winners | 0."));
    mm3_free(text);
    mm3_tuner_close(&t);
    /* nothing differs: nothing to time */
    plant(&slow, &quantizer, NULL, NULL);
    t = tune(w, &o, issue_step);
    assert_false(joint(w, t));
    assert_int_equal(mm3_tuner_counts(t).timings, 0);
    mm3_tuner_close(&t);
    test_temp_dir_remove(&dir);
    forget();
    world_close(&w);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Whichever allocation fails: no crash, a decision or an honest error, and the buffers as before. */
static void test_out_of_memory(void **state)
{
    world *w = world_open(1), *before = mm3_alloc_aligned(sizeof *before);
    mm3_tune_options o = options_of(NULL);
    mm3_recorder *r = NULL;
    const mm3_stage *stages;
    int n, n_failed = 0, n_fine = 0;
    (void)state;
    assert_non_null(before);
    o.stage_s = 0.005;
    plant(&slow, &fast, &norm_slow, &norm);
    assert_int_equal(mm3_collect_open(&r), MM3_OK);
    issue_linears(w, r, M);
    issue_norms(w, r);
    issue_ropes(w, r);
    stages = mm3_collect_stages(r, &n);
    memcpy(before, w, sizeof *w);
    for (long k = 1; k < 400; k++) {
        mm3_tuner *t = NULL;
        mm3_status st;
        assert_int_equal(mm3_tuner_open(&t, w->device, &o), MM3_OK);
        alloc_fail_at(k);
        st = mm3_tuner_stages(t, stages, n, 0);
        alloc_fail_at(0);
        if (st == MM3_OK) {
            assert_int_equal(mm3_plan_count(mm3_tuner_plan(t)), 3);
            assert_non_null(only(t, linear_key)->kernel);
            n_fine++;
        } else {
            assert_int_equal(st, MM3_ERR_NOMEM);
            n_failed++;
        }
        assert_memory_equal(before, w, sizeof *w);
        mm3_tuner_close(&t);
    }
    assert_true(n_failed > 3 && n_fine > 100);
    mm3_collect_close(&r);
    mm3_free(before);
    forget();
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crash),
        cmocka_unit_test(test_hang),
        cmocka_unit_test(test_writers),
        cmocka_unit_test(test_faster_wins),
        cmocka_unit_test(test_twins_and_reasons),
        cmocka_unit_test(test_wrong_never_wins),
        cmocka_unit_test(test_memory_and_cache),
        cmocka_unit_test(test_stale_lines),
        cmocka_unit_test(test_pins),
        cmocka_unit_test(test_chain_follows_its_parts),
        cmocka_unit_test(test_deterministic),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_eviction),
        cmocka_unit_test(test_damaged_caches),
        cmocka_unit_test(test_no_folder),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_strict),
        cmocka_unit_test(test_joint),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
