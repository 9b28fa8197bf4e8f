/* Networks of odd shapes against the same network in double (support/ref_net.h), which knows nothing of operations,
 * pages, chunks or kernels; and operation by operation (support/lockstep.h), where quantized rows make whole runs
 * incomparable. What the golden files can't show, which exist for two shapes only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/checkpoint.h"
#include "support/lockstep.h"
#include "support/net.h"
#include "support/ref_net.h"
#include "support/temp_dir.h"

enum { MAX_N = 400, CHUNK = 70 };

typedef struct odd {
    const char *name;
    int n;             /* tokens; 0: 170 */
    test_checkpoint c; /* what is zero is as in test_checkpoint_small, but blocks have 32 tokens */
} odd;

/* Everything that a network computes with beside its weights, unlike M3's own. */
static void other_constants(void *user, json_t *config)
{
    json_object_update_new(json_object_get(config, "text_config"),
                           json_pack("{s:f, s:f, s:f, s:f, s:i, s:f}", "swiglu_alpha", 0.7, "swiglu_limit", 0.5,
                                     "swiglu_beta", 0.25, "rms_norm_eps", 0.1, "rope_theta", 1000,
                                     "routed_scaling_factor", 0.5));
    (void)user;
}

#define ALL_BF16 .as_bf16 = ".weight"
static const odd models[] = {
    { "small", 0, { 0 } },
    { "blocks of a page", 400, { .block_size = 128 } },
    { "no shared expert, one KV head, the best expert only",
      0,
      { .shared_experts = -1, .kv_heads = 1, .experts_per_token = 1 } },
    { "a KV head for each head", 0, { .heads = 3, .kv_heads = 3, .vocab = 1 } },
    { "all dense", 0, { .moe = "0000", .sparse = "0000" } },
    { "all sparse, all experts", 0, { .moe = "1111", .sparse = "1111" } },
    { "sparse without experts, experts without sparse", 0, { .moe = "0101", .sparse = "1010" } },
    { "more blocks than there are", 0, { .topk_blocks = 100 } },
    { "the own block alone", 0, { .topk_blocks = 1 } },
    { "blocks of half a page", 0, { .block_size = 64 } },
    { "blocks of one token", 0, { .block_size = 1, .topk_blocks = 5 } },
    { "blocks of 7", 0, { .block_size = 7, .topk_blocks = 4 } },
    { "blocks beyond a page", 400, { .block_size = 150, .topk_blocks = 2 } },
    { "wide index", 0, { .index_dim = 160 } },
    { "one expert, one layer", 0, { .experts = 1, .experts_per_token = 1, .layers = 1, .moe = "1", .sparse = "1" } },
    { "every expert", 0, { .experts = 3, .experts_per_token = 3 } },
    { "one block of columns", 0, { .hidden = 32, .expert_intermediate = 32, .dense_intermediate = 32 } },
    { "BF16, no size a multiple of anything",
      0,
      { .hidden = 37, .dense_intermediate = 33, .expert_intermediate = 5, .shared_intermediate = 3, ALL_BF16 } },
    { "F32, the same",
      0,
      { .hidden = 37,
        .dense_intermediate = 33,
        .expert_intermediate = 5,
        .shared_intermediate = 3,
        .as_f32 = ".weight" } },
    { "mixed types within every product",
      0,
      { .as_bf16 = "k_proj up_proj experts.1. w3", .as_f32 = "v_proj index_q_proj experts.2." } },
    { "MXFP8 where releases have none", 0, { .as_mx = "lm_head block_sparse_moe.gate" } },
    { "MXFP8 only behind the activation", 0, { .as_bf16 = "q_proj k_proj v_proj index_ gate_proj up_proj w1 w3" } },
    { "MXFP8 only before the activation", 0, { .as_bf16 = "o_proj down_proj w2" } },
    { "some experts quantized behind the activation", 0, { .as_bf16 = "experts.0.w2 experts.3.w2" } },
    { "other constants", 0, { .on_config = other_constants } },
};

static test_checkpoint complete(const test_checkpoint *c)
{
    test_checkpoint all = test_checkpoint_small;
    struct {
        int *to;
        int from;
    } size[] = {
        { &all.hidden, c->hidden },
        { &all.layers, c->layers },
        { &all.heads, c->heads },
        { &all.kv_heads, c->kv_heads },
        { &all.dense_intermediate, c->dense_intermediate },
        { &all.expert_intermediate, c->expert_intermediate },
        { &all.shared_intermediate, c->shared_intermediate },
        { &all.experts, c->experts },
        { &all.experts_per_token, c->experts_per_token },
        { &all.shared_experts, c->shared_experts },
        { &all.vocab, c->vocab },
        { &all.index_dim, c->index_dim },
        { &all.block_size, c->block_size },
        { &all.topk_blocks, c->topk_blocks },
    };
    for (int i = 0; i < MM3_COUNT(size); i++)
        if (size[i].from) *size[i].to = MM3_MAX(size[i].from, 0);
    if (!c->block_size) all.block_size = 32;
    all.moe = c->moe;
    all.sparse = c->sparse;
    all.as_bf16 = c->as_bf16;
    all.as_f32 = c->as_f32;
    all.as_mx = c->as_mx;
    all.on_config = c->on_config;
    return all;
}

/* One model under test: its folder, mm3's network, and the tokens it is run on. */
typedef struct subject {
    char *dir;
    net t;
    int32_t token[MAX_N];
    size_t vocab;
    float *got;   /* [MAX_N, vocab] */
    double *want; /* [MAX_N, vocab] */
} subject;

static void subject_open(subject *s, const test_checkpoint *c, mm3_numerics numerics)
{
    unsigned r = 11;
    s->dir = test_temp_dir();
    test_checkpoint_write(s->dir, c);
    if (net_open(&s->t, s->dir, numerics, CHUNK, 2, (MAX_N + 127) / 128, NULL) != MM3_OK)
        fail_msg("%s", mm3_last_error());
    net_lay_pages(&s->t, 3);
    s->vocab = (size_t)c->vocab;
    for (int i = 0; i < MAX_N; i++) {
        r = r * 1664525u + 1013904223u;
        s->token[i] = (int32_t)((r >> 8) % (unsigned)c->vocab);
    }
    s->got = calloc(MAX_N * s->vocab, sizeof *s->got);
    s->want = calloc(MAX_N * s->vocab, sizeof *s->want);
    assert_true(s->got && s->want);
}

static void subject_close(subject *s)
{
    free(s->got);
    free(s->want);
    net_close(&s->t);
    test_temp_dir_remove(&s->dir);
}

static void run(subject *s, int n, int chunk)
{
    for (int at = 0; at < n; at += chunk) {
        int m = MM3_MIN(chunk, n - at);
        if (net_run(&s->t, 1, s->token + at, at, m) != MM3_OK) fail_msg("%s", mm3_last_error());
        memcpy(s->got + (size_t)at * s->vocab, mm3_forward_step(s->t.forward)->logits,
               (size_t)m * s->vocab * sizeof *s->got);
    }
}

static double error_of(const float *got, const double *want, size_t n)
{
    double d = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        s += want[i] * want[i];
    }
    return sqrt(d / s);
}

/* mm3's selections of one chunk, layer by layer, against the reference's. */
static void check_selections(const subject *s, const char *name, int n, const int32_t *want)
{
    const mm3_config *c = &s->t.model->config;
    size_t per_row = (size_t)c->n_kv_heads * (size_t)c->topk_blocks * sizeof(int32_t);
    const char *got = s->t.watch.selected.data;
    for (int first = 0; first < n; first += CHUNK)
        for (int l = 0; l < c->n_layers; l++)
            for (int i = first; c->layer_is_sparse[l] && i < MM3_MIN(n, first + CHUNK); i++, got += per_row)
                if (memcmp(got, (const char *)want + ((size_t)l * (size_t)n + (size_t)i) * per_row, per_row) != 0)
                    fail_msg("%s: layer %d chooses other blocks at position %d", name, l, i);
    assert_ptr_equal(got, s->t.watch.selected.data + s->t.watch.selected.n);
}

/* w8a16: logits and selections of all positions, in chunks, are those of the network in double. */
static void test_w8a16(void **state)
{
    (void)state;
    for (int i = 0; i < MM3_COUNT(models); i++) {
        const char *name = models[i].name;
        int n = models[i].n ? models[i].n : 170;
        test_checkpoint c = complete(&models[i].c);
        size_t n_selected = (size_t)c.layers * (size_t)n * (size_t)c.kv_heads * (size_t)c.topk_blocks;
        int32_t *selected = calloc(n_selected, sizeof *selected);
        double margin[MAX_N], error, worst = 0;
        subject s;
        subject_open(&s, &c, MM3_NUMERICS_W8A16);
        s.t.watch.keep_selected = true;
        run(&s, n, CHUNK);
        assert_int_equal(ref_net_run(s.t.model, MM3_NUMERICS_W8A16, s.token, n, s.want, selected, margin), MM3_OK);
        if (margin[n - 1] < 1e-5) fail_msg("%s: a choice is too near (%g): take another seed", name, margin[n - 1]);
        for (int p = 0; p < n; p++) {
            error = error_of(s.got + (size_t)p * s.vocab, s.want + (size_t)p * s.vocab, s.vocab);
            if (!(error < 3e-5)) fail_msg("%s: logits of position %d differ by %g", name, p, error);
            if (error > worst) worst = error;
        }
        check_selections(&s, name, n, selected);
        print_message("%-50s error %.1e margin %.1e\n", name, worst, margin[n - 1]);
        free(selected);
        subject_close(&s);
    }
}

/* w8a8: each operation is its reference on the operands that it gets; and a few tokens, where no rounding flips,
 * are those of the network in double, so the operands are the right ones. */
static void test_w8a8(void **state)
{
    (void)state;
    for (int i = 0; i < MM3_COUNT(models); i++) {
        const char *name = models[i].name;
        test_checkpoint c = complete(&models[i].c);
        mm3_recorder *eager;
        lockstep l;
        subject s;
        double error;
        subject_open(&s, &c, MM3_NUMERICS_W8A8);
        eager = s.t.watch.eager;
        lockstep_open(&l, eager);
        s.t.watch.eager = &l.base;
        run(&s, CHUNK + 2, CHUNK);
        s.t.watch.eager = eager;
        if (*l.wrong) fail_msg("%s: %s", name, l.wrong);
        assert_int_equal(ref_net_run(s.t.model, MM3_NUMERICS_W8A8, s.token, 3, s.want, NULL, NULL), MM3_OK);
        error = error_of(s.got, s.want, 3 * s.vocab);
        if (!(error < 1e-3)) fail_msg("%s: logits of three tokens differ by %g", name, error);
        print_message("%-50s error of three tokens %.1e\n", name, error);
        subject_close(&s);
    }
}

/* A BF16 or F32 weight takes FP32 rows: without an MXFP8 weight nothing is quantized, and w8a8 is w8a16 to the bit. */
static void test_nothing_to_quantize(void **state)
{
    test_checkpoint c = test_checkpoint_small;
    mm3_recorder *eager;
    lockstep l;
    subject a, b;
    (void)state;
    c.as_bf16 = "mlp. shared experts.";
    c.as_f32 = "self_attn.";
    subject_open(&a, &c, MM3_NUMERICS_W8A8);
    subject_open(&b, &c, MM3_NUMERICS_W8A16);
    eager = a.t.watch.eager;
    lockstep_open(&l, eager);
    a.t.watch.eager = &l.base;
    run(&a, 170, CHUNK);
    a.t.watch.eager = eager;
    run(&b, 170, CHUNK);
    assert_memory_equal(a.got, b.got, 170 * a.vocab * sizeof *a.got);
    assert_int_equal(
        l.n_issued[MM3_OP_QUANTIZE] + l.n_issued[MM3_OP_ADD_RMSNORM_QUANTIZE] + l.n_issued[MM3_OP_SWIGLU_QUANTIZE], 0);
    subject_close(&a);
    subject_close(&b);
}

/* The same values as MXFP8, BF16 and F32 are the same network in double, and so in mm3 up to the order of summation. */
static void test_same_values(void **state)
{
    static const char *const all = ".weight";
    double *first = NULL;
    (void)state;
    for (int type = 0; type < 3; type++) {
        test_checkpoint c = test_checkpoint_small;
        subject s;
        if (type == 1) c.as_bf16 = all;
        if (type == 2) c.as_f32 = all;
        c.as_mx = NULL;
        subject_open(&s, &c, MM3_NUMERICS_W8A16);
        run(&s, 170, CHUNK);
        assert_int_equal(ref_net_run(s.t.model, MM3_NUMERICS_W8A16, s.token, 170, s.want, NULL, NULL), MM3_OK);
        assert_true(error_of(s.got, s.want, 170 * s.vocab) < 3e-5);
        if (!first) {
            first = s.want;
            s.want = NULL;
        } else if (type == 2) { /* type 1 rounds the router, which is F32 in releases, to BF16 */
            assert_memory_equal(s.want, first, 170 * s.vocab * sizeof *first);
        }
        subject_close(&s);
    }
    free(first);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_w8a16), cmocka_unit_test(test_w8a8),
                                        cmocka_unit_test(test_nothing_to_quantize),
                                        cmocka_unit_test(test_same_values) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
