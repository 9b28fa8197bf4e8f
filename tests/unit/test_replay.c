/* What a replay promises: it is the eager step bit for bit, whatever the plan; it writes nothing but its outputs;
 * padding changes nothing; a captured linear works on what its rows hold then. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "forward/state.h"
#include "support/expect.h"
#include "support/net.h"

static const char tiny[] = "models/tiny-m3";
static uint32_t random_state = 1;
static int below(int n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (int)((random_state >> 8) % (uint32_t)n);
}

/* ---- plans by hand ----------------------------------------------------------------------------------------------- */

static bool takes(const mm3_device_info *device, const mm3_kernel *k, const mm3_tactic *t, const mm3_stage *s)
{
    for (int i = 0; i < s->n; i++)
        if (k->refuses && k->refuses(device, s->contract[i], t)) return false;
    return true;
}

/* Any candidate and tactic that takes the stage. */
static mm3_choice any_choice(const mm3_device_info *device, const mm3_stage *s)
{
    const mm3_kernel *k[MM3_MAX_CANDIDATES];
    int n = mm3_kernels_of(s->op, device->kind, k, MM3_MAX_CANDIDATES);
    for (;;) {
        mm3_choice c = { k[below(n)], NULL };
        c.tactic = &c.kernel->tactics[below(c.kernel->n_tactics)];
        if (takes(device, c.kernel, c.tactic, s)) return c;
    }
}

/* Add decisions for the stages of a step to the plan, by lot. */
static void decide(net *n, const mm3_step_shape *shape, mm3_plan *plan)
{
    mm3_recorder *collect;
    const mm3_stage *stage;
    int n_stages;
    EXPECT_OK(mm3_collect_open(&collect));
    EXPECT_OK(mm3_forward_issue(n->forward, collect, shape));
    stage = mm3_collect_stages(collect, &n_stages);
    for (int i = 0; i < n_stages; i++) {
        char choice[MM3_MAX_CHOICE_TEXT];
        mm3_decision d = { .key = stage[i].key, .choice = choice };
        mm3_choice c = any_choice(mm3_device_info_of(n->device), &stage[i]);
        mm3_choice_text(c.kernel, c.tactic, choice, sizeof choice);
        snprintf(d.source, sizeof d.source, "%s", mm3_kernel_source(c.kernel));
        EXPECT_OK(mm3_plan_set(plan, &d));
    }
    mm3_collect_close(&collect);
    mm3_plan_bind(plan, "cpu", mm3_kernels_of, "plan", &(mm3_buf){ 0 });
}

/* ---- a step without an engine ------------------------------------------------------------------------------------ */

/* m rows, `real` of them sequences at the given positions (row i in slot order[i]), the others padding in between. */
static void fill_rows(net *n, int m, int real, int context)
{
    mm3_step_block *b = mm3_forward_step(n->forward);
    int slot = 0;
    for (int i = 0; i < m; i++) {
        bool pad = below(m - i) >= real - slot;
        b->slot[i] = pad ? -1 : slot++;
        b->token[i] = pad ? 1 << 30 : below(n->model->config.vocab_size);
        b->position[i] = pad ? 1 << 30 : context - 1 - below(MM3_MIN(context, 5));
        b->sample[i] = (mm3_sample_row){ .temperature = (float)(i % 2),
                                         .top_k = 40,
                                         .top_p = 0.9f,
                                         .repetition_penalty = 1,
                                         .counts_row = -1,
                                         .seed = (uint64_t)i };
    }
}

/* All that a step may change: the step buffers and the KV pool. */
typedef struct image {
    unsigned char *memory, *kv;
    size_t n_memory, n_kv;
} image;

static image take_image(const net *n)
{
    const mm3_forward *f = n->forward;
    image x = { malloc(f->n_memory), malloc(mm3_forward_kv_bytes(f)), f->n_memory, mm3_forward_kv_bytes(f) };
    memcpy(x.memory, f->memory, x.n_memory);
    memcpy(x.kv, f->kv_pool, x.n_kv);
    return x;
}

static void put_image(const net *n, const image *x)
{
    memcpy(n->forward->memory, x->memory, x->n_memory);
    memcpy(n->forward->kv_pool, x->kv, x->n_kv);
}

static void free_image(image *x)
{
    free(x->memory);
    free(x->kv);
}

static mm3_recorder *record(net *n, const mm3_step_shape *shape, mm3_choose *choose, void *user, void **scratch)
{
    mm3_recorder *r;
    EXPECT_OK(mm3_record_open(&r, n->device, choose, user));
    EXPECT_OK(mm3_forward_issue(n->forward, r, shape));
    *scratch = mm3_alloc_aligned(mm3_record_scratch(r));
    mm3_record_set_scratch(r, *scratch);
    return r;
}

/* A step reads nothing of its buffers before it has written it: with all of them NaN (as codes, block ids and expert
 * numbers: nonsense) a replay says the same. */
static void check_poisoned(net *n, const mm3_step_shape *shape, mm3_graph *graph, const image *want)
{
    const mm3_forward *f = n->forward;
    const mm3_step_block *b = mm3_forward_step(n->forward);
    unsigned char *logits = (unsigned char *)b->logits, *next = (unsigned char *)b->next;
    unsigned char *first = (unsigned char *)f->cos; /* inputs and frequencies stand before */
    size_t n_row = (size_t)n->model->config.vocab_size * 4;
    memset(logits, 0xFF, (size_t)shape->m * n_row);
    memset(next, 0xFF, (size_t)shape->m * 4);
    memset(first, 0xFF, f->n_memory - (size_t)(first - f->memory));
    mm3_graph_replay(graph);
    assert_memory_equal(f->kv_pool, want->kv, want->n_kv);
    for (int i = 0; i < shape->m; i++)
        if (b->slot[i] >= 0)
            assert_memory_equal(logits + (size_t)i * n_row, want->memory + (logits - f->memory) + (size_t)i * n_row,
                                n_row);
    assert_memory_equal(next, want->memory + (next - f->memory), (size_t)shape->m * 4);
}

static void set_kv_type(net *n, mm3_dtype kv_type)
{
    n->options.kv_type = kv_type;
    mm3_forward_close(&n->forward);
    EXPECT_OK(mm3_forward_open(&n->forward, n->model, &n->options));
}

/* With decisions by lot: replay twice and issue eagerly, from the same memory; every byte is the same afterwards. */
static void check_equal(const char *dir, mm3_numerics numerics, mm3_dtype kv_type, int m, int real, int context)
{
    net n;
    mm3_plan *plan;
    mm3_plan_head head;
    mm3_binding binding = { 0 };
    mm3_step_shape shape = { .m = m, .n_logits = m, .sample = true };
    mm3_recorder *eager, *graph;
    image before, eager_after, after;
    void *scratch;
    shape.context = context;
    EXPECT_OK(net_open(&n, dir, numerics, m, m, (context + 127) / 128, NULL));
    set_kv_type(&n, kv_type);
    net_lay_pages(&n, 3);
    mm3_forward_fill_pages(n.forward, 0, n.options.n_pages);
    mm3_plan_head_of_device(&head, mm3_device_info_of(n.device), 1, "");
    EXPECT_OK(mm3_plan_open(&plan, &head));
    decide(&n, &shape, plan);
    binding.plan = plan;
    binding.device = mm3_device_info_of(n.device);
    graph = record(&n, &shape, mm3_choose_planned, &binding, &scratch);
    EXPECT_OK(mm3_eager_open(&eager, n.device, mm3_choose_planned, &binding));

    fill_rows(&n, m, real, context); /* after the recording: nothing of it may be in the graph */
    before = take_image(&n);
    EXPECT_OK(mm3_forward_issue(n.forward, eager, &shape));
    eager_after = take_image(&n);
    for (int i = 0; i < 2; i++) {
        put_image(&n, &before);
        mm3_graph_replay(mm3_record_graph(graph));
        after = take_image(&n);
        assert_memory_equal(after.memory, eager_after.memory, after.n_memory);
        assert_memory_equal(after.kv, eager_after.kv, after.n_kv);
        free_image(&after);
    }
    assert_memory_not_equal(before.memory, eager_after.memory, before.n_memory);
    put_image(&n, &before);
    check_poisoned(&n, &shape, mm3_record_graph(graph), &eager_after);
    free_image(&before);
    free_image(&eager_after);
    mm3_eager_close(&eager);
    mm3_record_close(&graph);
    mm3_free(scratch);
    mm3_plan_close(&plan);
    net_close(&n);
}

static void test_replay_is_eager(void **state)
{
    static const char *const dirs[] = { tiny, "tests/golden/rand-m3-a" };
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int w8a16 = 0; w8a16 < 2; w8a16++) {
            mm3_numerics numerics = w8a16 ? MM3_NUMERICS_W8A16 : MM3_NUMERICS_W8A8;
            check_equal(dirs[i], numerics, MM3_F32, 1, 1, 300);
            check_equal(dirs[i], numerics, MM3_BF16, 8, 5, 700);
            check_equal(dirs[i], numerics, w8a16 ? MM3_BF16 : MM3_F32, 24, 24, 140);
        }
}

/* ---- nothing else is written ------------------------------------------------------------------------------------- */

static void allow(unsigned char *map, const unsigned char *base, size_t n, const unsigned char *at, size_t n_bytes)
{
    if (at >= base && at < base + n) memset(map + (at - base), 1, n_bytes);
}

/* Bytes that the contracts of a step name as outputs. */
static void allow_outputs(net *n, const mm3_step_shape *shape, unsigned char *map)
{
    mm3_recorder *collect;
    const mm3_stage *stage;
    int n_stages;
    EXPECT_OK(mm3_collect_open(&collect));
    EXPECT_OK(mm3_forward_issue(n->forward, collect, shape));
    stage = mm3_collect_stages(collect, &n_stages);
    for (int i = 0; i < n_stages; i++)
        for (int j = 0; j < stage[i].n; j++) {
            mm3_operand operand[MM3_MAX_OPERANDS];
            int n_operands = mm3_op_info_of(stage[i].op)->operands(stage[i].contract[j], operand);
            for (int k = 0; k < n_operands; k++)
                if (operand[k].access != MM3_IN)
                    allow(map, n->forward->memory, n->forward->n_memory, *operand[k].at, operand[k].n_bytes);
        }
    mm3_collect_close(&collect);
}

/* The KV rows of one new token, in every layer. */
static void allow_token(net *n, int slot, int position, unsigned char *map)
{
    const mm3_forward *f = n->forward;
    const mm3_config *c = &n->model->config;
    for (int l = 0; l < c->n_layers; l++) {
        const mm3_kv *kv = &f->kv[l];
        for (int h = 0; h < 2 * c->n_kv_heads + c->layer_is_sparse[l]; h++) {
            bool index = h == 2 * c->n_kv_heads;
            int width = index ? c->index_dim : MM3_HEAD_DIM;
            size_t row = (size_t)width * (kv->type == MM3_BF16 ? 2 : 4);
            size_t part = index ? kv->ik_at : h < c->n_kv_heads ? kv->k_at : kv->v_at;
            unsigned char *tile =
                mm3_kv_tile(kv, slot, position / MM3_PAGE_TOKENS, part, index ? 0 : h % c->n_kv_heads, width);
            allow(map, f->kv_pool, mm3_forward_kv_bytes(f), tile + (size_t)(position % MM3_PAGE_TOKENS) * row, row);
        }
    }
}

static void assert_changed_within(const unsigned char *before, const unsigned char *after, const unsigned char *map,
                                  size_t n_bytes, const char *what)
{
    size_t n_changed = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        if (before[i] == after[i]) continue;
        n_changed++;
        if (!map[i]) fail_msg("%s: byte %zu of %zu was written", what, i, n_bytes);
    }
    assert_true(n_changed > 0);
}

static uint64_t checksum(const mm3_model *m)
{
    uint64_t h = 1;
    for (int i = 0; i < mm3_shards_count(m->shards); i++) {
        const mm3_tensor *t = mm3_shards_at(m->shards, i);
        for (size_t j = 0; j < t->n_bytes; j++) h = (h ^ ((const unsigned char *)t->data)[j]) * 1099511628211u;
    }
    return h;
}

/* A replay of `real` rows in a graph of m, in buffers for more rows and beside sequences that are not in the batch. */
static void check_writes(int m, int real, mm3_dtype kv_type)
{
    enum { SLOTS = 12, ROWS = 16, PAGES = 6, CONTEXT = 700, STEPS = 4 };
    net n;
    mm3_plan *plan;
    mm3_plan_head head;
    mm3_binding binding = { 0 };
    mm3_step_shape shape = { .m = m, .n_logits = m, .sample = true, .context = CONTEXT };
    mm3_recorder *graph;
    void *scratch;
    unsigned char *map, *kv_map;
    uint64_t weights;
    EXPECT_OK(net_open(&n, tiny, MM3_NUMERICS_W8A8, ROWS, SLOTS, PAGES, NULL));
    set_kv_type(&n, kv_type);
    net_lay_pages(&n, 5);
    weights = checksum(n.model);
    mm3_plan_head_of_device(&head, mm3_device_info_of(n.device), 1, "");
    EXPECT_OK(mm3_plan_open(&plan, &head));
    decide(&n, &shape, plan);
    binding.plan = plan;
    binding.device = mm3_device_info_of(n.device);
    graph = record(&n, &shape, mm3_choose_planned, &binding, &scratch);
    map = calloc(n.forward->n_memory, 1);
    kv_map = malloc(mm3_forward_kv_bytes(n.forward));
    allow_outputs(&n, &shape, map);
    mm3_forward_fill_pages(n.forward, 0, n.options.n_pages);
    for (int step = 0; step < STEPS; step++) {
        mm3_step_block *b = mm3_forward_step(n.forward);
        image before, after;
        fill_rows(&n, m, real, CONTEXT);
        for (int i = 0; i < m; i++) /* any sequences, not the first ones */
            if (b->slot[i] >= 0) b->slot[i] = (b->slot[i] * 7 + step) % SLOTS;
        memset(kv_map, 0, mm3_forward_kv_bytes(n.forward));
        for (int i = 0; i < m; i++)
            if (b->slot[i] >= 0) allow_token(&n, b->slot[i], b->position[i], kv_map);
        before = take_image(&n);
        mm3_graph_replay(mm3_record_graph(graph));
        after = take_image(&n);
        assert_changed_within(before.memory, after.memory, map, after.n_memory, "step buffers");
        assert_changed_within(before.kv, after.kv, kv_map, after.n_kv, "KV pages");
        for (int i = 0; i < m; i++)
            if (b->slot[i] < 0) assert_int_equal(b->next[i], -1);
        free_image(&before);
        free_image(&after);
    }
    assert_true(checksum(n.model) == weights);
    free(map);
    free(kv_map);
    mm3_record_close(&graph);
    mm3_free(scratch);
    mm3_plan_close(&plan);
    net_close(&n);
}

static void test_writes(void **state)
{
    (void)state;
    check_writes(4, 3, MM3_F32);
    check_writes(8, 5, MM3_F32);
    check_writes(8, 8, MM3_BF16);
}

/* Every number of rows in every graph that holds it: the real rows' logits do not notice the padding. */
static void test_padding(void **state)
{
    enum { MAX = 8, CONTEXT = 200 };
    static const int graphs[] = { 1, 2, 4, 8 };
    net n;
    mm3_recorder *graph[4], *eager;
    void *scratch[4];
    size_t vocab;
    (void)state;
    EXPECT_OK(net_open(&n, tiny, MM3_NUMERICS_W8A8, MAX, MAX, 2, NULL));
    vocab = (size_t)n.model->config.vocab_size;
    mm3_forward_fill_pages(n.forward, 0, n.options.n_pages);
    EXPECT_OK(mm3_eager_open(&eager, n.device, mm3_choose_native, NULL)); /* natives: rows do not see each other */
    for (int g = 0; g < 4; g++) {
        mm3_step_shape shape = { .m = graphs[g], .n_logits = graphs[g], .sample = true, .context = CONTEXT };
        graph[g] = record(&n, &shape, mm3_choose_native, NULL, &scratch[g]);
    }
    for (int m = 1; m <= MAX; m++)
        for (int g = 0; g < 4; g++) {
            mm3_step_block *b = mm3_forward_step(n.forward);
            mm3_step_shape alone = { .m = m, .n_logits = m, .sample = true, .context = CONTEXT };
            float *want;
            int32_t next[MAX];
            if (graphs[g] < m) continue;
            fill_rows(&n, m, m, CONTEXT);
            EXPECT_OK(mm3_forward_issue(n.forward, eager, &alone));
            want = malloc((size_t)m * vocab * sizeof *want);
            memcpy(want, b->logits, (size_t)m * vocab * sizeof *want);
            memcpy(next, b->next, sizeof next);
            memset(b->logits, 0xFF, (size_t)m * vocab * sizeof *want);
            for (int i = m; i < graphs[g]; i++) {
                b->slot[i] = -1;
                b->token[i] = -5;
                b->position[i] = INT32_MAX;
            }
            for (int i = graphs[g]; i < MAX; i++) { /* of an earlier, larger step */
                b->slot[i] = i;
                b->token[i] = -9;
                b->position[i] = -9;
            }
            mm3_graph_replay(mm3_record_graph(graph[g]));
            assert_memory_equal(b->logits, want, (size_t)m * vocab * sizeof *want);
            assert_memory_equal(b->next, next, (size_t)m * sizeof *next);
            free(want);
        }
    for (int g = 0; g < 4; g++) {
        mm3_record_close(&graph[g]);
        mm3_free(scratch[g]);
    }
    mm3_eager_close(&eager);
    net_close(&n);
}

/* ---- quantize and linear, captured ------------------------------------------------------------------------------- */

typedef struct fixed_choice {
    mm3_choice linear;
} fixed_choice;

static mm3_status choose_fixed(void *user, mm3_op_id op, const void *contract, mm3_choice *choice)
{
    if (op != MM3_OP_LINEAR) return mm3_choose_native(NULL, op, contract, choice);
    *choice = ((fixed_choice *)user)->linear;
    return MM3_OK;
}

static double cosine(const float *a, const float *b, size_t n)
{
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < n; i++) {
        ab += (double)a[i] * b[i];
        aa += (double)a[i] * a[i];
        bb += (double)b[i] * b[i];
    }
    return ab / sqrt(aa * bb);
}

static void issue_pair(mm3_recorder *r, const mm3_linear *op, const float *x)
{
    mm3_quantize q = { .m = op->m,
                       .k = op->k,
                       .x = x,
                       .codes = (uint8_t *)(uintptr_t)op->x_codes,
                       .scales = (uint8_t *)(uintptr_t)op->x_scales };
    if (op->x_codes) EXPECT_OK(mm3_issue(r, MM3_OP_QUANTIZE, &q));
    EXPECT_OK(mm3_issue(r, MM3_OP_LINEAR, op));
}

/* The pair with one candidate, captured over rows that then change, beside natives issued on the new rows. */
static void check_pair(mm3_device *device, const mm3_linear *of, mm3_choice choice, int m)
{
    mm3_linear op = *of;
    size_t n_x = (size_t)m * (size_t)op.k, n_out = (size_t)m * (size_t)op.n;
    float *x = mm3_alloc_aligned(n_x * sizeof *x), *want = malloc(n_out * sizeof *want);
    uint8_t *codes = mm3_alloc_aligned(n_x), *scales = mm3_alloc_aligned(n_x / 32);
    fixed_choice fixed = { choice };
    mm3_recorder *graph, *eager;
    void *scratch;
    op.m = m;
    op.out = mm3_alloc_aligned(n_out * sizeof *op.out);
    op.x = of->x ? x : NULL;
    op.x_codes = of->x_codes ? codes : NULL;
    op.x_scales = of->x_scales ? scales : NULL;
    EXPECT_OK(mm3_record_open(&graph, device, choose_fixed, &fixed));
    issue_pair(graph, &op, x);
    scratch = mm3_alloc_aligned(mm3_record_scratch(graph));
    mm3_record_set_scratch(graph, scratch);
    EXPECT_OK(mm3_eager_open(&eager, device, mm3_choose_native, NULL));
    for (int fresh = 0; fresh < 2; fresh++) {
        for (size_t i = 0; i < n_x; i++) x[i] = (float)(below(2001) - 1000) * 1e-3f * (i % 37 ? 1 : 20);
        issue_pair(eager, &op, x);
        memcpy(want, op.out, n_out * sizeof *want);
        memset(op.out, 0xFF, n_out * sizeof *want);
        memset(codes, 0x7F, n_x);
        mm3_graph_replay(mm3_record_graph(graph));
        if (!(cosine(op.out, want, n_out) >= 0.99999))
            fail_msg("linear m=%d n=%d k=%d with %s/%s: cosine %.7f", m, op.n, op.k, choice.kernel->name,
                     choice.tactic->name, cosine(op.out, want, n_out));
    }
    mm3_eager_close(&eager);
    mm3_record_close(&graph);
    mm3_free(scratch);
    mm3_free(op.out);
    mm3_free(x);
    mm3_free(codes);
    mm3_free(scales);
    free(want);
}

/* One linear with every candidate and tactic that takes it. */
static void check_linear(mm3_device *device, const mm3_linear *of, int m)
{
    const mm3_kernel *k[MM3_MAX_CANDIDATES];
    int n = mm3_kernels_of(MM3_OP_LINEAR, "cpu", k, MM3_MAX_CANDIDATES);
    mm3_linear op = *of;
    op.m = m;
    for (int i = 0; i < n; i++)
        for (int t = 0; t < k[i]->n_tactics; t++) {
            const mm3_tactic *tactic = &k[i]->tactics[t];
            if (k[i]->refuses && k[i]->refuses(mm3_device_info_of(device), &op, tactic)) continue;
            check_pair(device, of, (mm3_choice){ k[i], tactic }, m);
        }
}

static void test_captured_pairs(void **state)
{
    static const int rows[] = { 1, 24, 40, 64 };
    net n;
    mm3_recorder *collect;
    mm3_step_shape shape = { .m = 1, .n_logits = 1, .sample = true, .context = 128 };
    const mm3_stage *stage;
    int n_stages, n_linears = 0;
    (void)state;
    EXPECT_OK(net_open(&n, tiny, MM3_NUMERICS_W8A8, 1, 1, 1, NULL));
    EXPECT_OK(mm3_collect_open(&collect));
    EXPECT_OK(mm3_forward_issue(n.forward, collect, &shape));
    stage = mm3_collect_stages(collect, &n_stages);
    for (int i = 0; i < n_stages; i++) {
        if (stage[i].op != MM3_OP_LINEAR) continue;
        for (int j = 0; j < stage[i].n; j++, n_linears++)
            for (int r = 0; r < MM3_COUNT(rows); r++)
                check_linear(n.device, stage[i].contract[j], j == 0 ? rows[r] : rows[(r + j) % 4] / 8 + 1);
    }
    assert_int_equal(n_linears, 2 * 4 + 4 * 5 + 1); /* qkv, o, gate|up, down; and the router; the head */
    mm3_collect_close(&collect);
    net_close(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_replay_is_eager), cmocka_unit_test(test_writes),
                                        cmocka_unit_test(test_padding), cmocka_unit_test(test_captured_pairs) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
