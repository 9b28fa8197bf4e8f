/* The synthetic model: its text, sizes, refusals; that it runs through the real network with finite results; and that
 * the real router sends random tokens where `routing` says. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "forward/forward.h"
#include "support/alloc_faults.h"
#include "support/expect.h"

static const char small[] = "m3,layers=3,experts=32,vocab=4096,hidden=256,heads=8,kv_heads=2,intermediate=512,"
                            "expert_intermediate=128,seed=3";

static void parse(mm3_synthetic *s, const char *more)
{
    char text[512];
    snprintf(text, sizeof text, "%s%s", small, more);
    assert_int_equal(mm3_synthetic_parse(s, text), MM3_OK);
}

static void test_text(void **state)
{
    mm3_synthetic s;
    (void)state;
    assert_int_equal(mm3_synthetic_parse(&s, "m3"), MM3_OK);
    assert_int_equal(s.hidden, 6144);
    assert_int_equal(s.heads, 64);
    assert_int_equal(s.kv_heads, 4);
    assert_int_equal(s.intermediate, 12288);
    assert_int_equal(s.expert_intermediate, 3072);
    assert_int_equal(s.experts_per_token, 4);
    assert_false(s.zipf);
    parse(&s, ",routing=zipf,top_k=2,dense=2");
    assert_int_equal(s.layers, 3);
    assert_int_equal(s.dense, 2);
    assert_int_equal(s.experts, 32);
    assert_int_equal(s.vocab, 4096);
    assert_int_equal(s.experts_per_token, 2);
    assert_int_equal(s.seed, 3);
    assert_true(s.zipf);
    EXPECT_FAIL(mm3_synthetic_parse(&s, "llama"), MM3_ERR_ARG, "llama");
    EXPECT_FAIL(mm3_synthetic_parse(&s, "m3x"), MM3_ERR_ARG, "m3x");
    EXPECT_FAIL(mm3_synthetic_parse(&s, "m3,layers"), MM3_ERR_ARG, "layers");
    EXPECT_FAIL(mm3_synthetic_parse(&s, "m3,layer=1"), MM3_ERR_ARG, "'layer'");
    EXPECT_FAIL(mm3_synthetic_parse(&s, "m3,layers=0"), MM3_ERR_ARG, "layers '0'");
    EXPECT_FAIL(mm3_synthetic_parse(&s, "m3,hidden=100"), MM3_ERR_ARG, "multiple of 32");
    EXPECT_FAIL(mm3_synthetic_parse(&s, "m3,routing=best"), MM3_ERR_ARG, "best");
    EXPECT_FAIL(mm3_synthetic_parse(&s, "m3,,"), MM3_ERR_ARG, "NAME=VALUE");
}

/* Bytes as the facts on M3 have them, what fits, and what does not. */
static void test_sizes(void **state)
{
    mm3_synthetic s, whole;
    mm3_model *m = NULL;
    size_t vectors = 2 * 6144 * 4 + 2 * 128 * 4; /* of a layer; the released ones are BF16 */
    (void)state;
    assert_int_equal(mm3_synthetic_parse(&s, "m3,layers=1"), MM3_OK);
    assert_int_equal(mm3_synthetic_bytes(&s), 343892480 - vectors / 2 + vectors + 2 * UINT64_C(2458386432) + 6144 * 4);
    assert_int_equal(mm3_synthetic_parse(&whole, "m3,layers=60"), MM3_OK);
    assert_true(fabs((double)mm3_synthetic_bytes(&whole) / 442007940096.0 - 1) < 1e-4);

    s = whole;
    mm3_synthetic_fit(&s, SIZE_MAX);
    assert_int_equal(s.experts, 128);
    assert_int_equal(s.vocab, 200064);
    assert_int_equal(s.dense, 3);
    assert_int_equal(mm3_synthetic_parse(&s, "m3"), MM3_OK);
    mm3_synthetic_fit(&s, 10000000000);
    assert_int_equal(s.layers, 2);
    assert_int_equal(s.dense, 1);
    assert_int_equal(s.experts, 128);
    assert_int_equal(s.vocab, 6656); /* 200064 * 2 / 60, in whole 64s */
    mm3_synthetic_fit(&s, 100);      /* nothing is open any more */
    assert_int_equal(s.experts, 128);
    assert_int_equal(mm3_synthetic_parse(&s, "m3"), MM3_OK);
    mm3_synthetic_fit(&s, 3000000000);
    assert_int_equal(s.experts, 32);
    assert_true(mm3_synthetic_bytes(&s) <= 3000000000);

    EXPECT_FAIL(mm3_model_synthesize(&m, &whole), MM3_ERR_NOMEM, "442.01 GB"); /* both numbers */
    assert_non_null(strstr(mm3_last_error(), "GB are free"));
    assert_null(m);
    parse(&s, ",top_k=33");
    EXPECT_FAIL(mm3_model_synthesize(&m, &s), MM3_ERR_ARG, "33 of 32");
    parse(&s, ",kv_heads=3");
    EXPECT_FAIL(mm3_model_synthesize(&m, &s), MM3_ERR_ARG, "multiple of 3");
}

/* ---- running it -------------------------------------------------------------------------------------------------- */

/* A recorder before the eager one: counts which experts the router chooses, at each layer. */
typedef struct watch {
    mm3_recorder base;
    mm3_recorder *eager;
    int layer;
    long count[8][64];
    double size; /* of the residual stream behind the last layer */
} watch;

static mm3_status issue(mm3_recorder *self, mm3_op_id op, const void *contract)
{
    watch *w = (watch *)self;
    MM3_TRY(mm3_issue(w->eager, op, contract));
    if (op == MM3_OP_ROUTER) {
        const mm3_router *r = contract;
        for (int i = 0; i < r->m * r->top_k; i++) w->count[w->layer][r->expert[i]]++;
        w->layer++;
    }
    if (op == MM3_OP_ADD_RMSNORM) {
        const mm3_add_rmsnorm *n = contract;
        w->size = 0;
        for (int i = 0; i < n->m * n->k; i++) w->size += (double)n->x[i] * n->x[i] / (n->m * n->k);
    }
    return MM3_OK;
}

/* Steps of random tokens, each a sequence's first. */
static void route(const mm3_model *m, watch *w, int n_steps)
{
    enum { ROWS = 256 };
    mm3_device *device;
    mm3_forward *forward;
    mm3_step_block *b;
    mm3_forward_options o = {
        .max_rows = ROWS, .max_logits = ROWS, .kv_type = MM3_F32, .n_slots = ROWS, .max_pages = 1, .n_pages = ROWS
    };
    mm3_step_shape shape = { .m = ROWS, .n_logits = ROWS, .context = 1 };
    uint32_t r = 1;
    memset(w, 0, sizeof *w);
    w->base.issue = issue;
    assert_int_equal(mm3_device_open(&device, 0), MM3_OK);
    assert_int_equal(mm3_forward_open(&forward, m, &o), MM3_OK);
    assert_int_equal(mm3_eager_open(&w->eager, device, mm3_choose_native, NULL), MM3_OK);
    b = mm3_forward_step(forward);
    for (int i = 0; i < ROWS; i++) {
        b->slot[i] = b->table[i] = i;
        b->position[i] = 0;
    }
    for (int s = 0; s < n_steps; s++) {
        for (int i = 0; i < ROWS; i++) {
            r = r * 1664525u + 1013904223u;
            b->token[i] = (int32_t)((r >> 8) % (uint32_t)m->config.vocab_size);
        }
        w->layer = 0;
        assert_int_equal(mm3_forward_issue(forward, &w->base, &shape), MM3_OK);
        for (int i = 0; i < ROWS * m->config.vocab_size; i++) assert_true(isfinite(b->logits[i]));
    }
    mm3_eager_close(&w->eager);
    mm3_forward_close(&forward);
    mm3_device_close(&device);
}

static int descending(const void *a, const void *b) { return *(const long *)a < *(const long *)b ? 1 : -1; }

/* Spread of the counts over what chance alone makes: 1 for even routing. */
static double unevenness(const long *count, int n, double expected)
{
    double sum = 0;
    for (int e = 0; e < n; e++) sum += ((double)count[e] - expected) * ((double)count[e] - expected);
    return sqrt(sum / n) / expected;
}

static void test_routing(void **state)
{
    enum { N_STEPS = 8, TOKENS = 256 * N_STEPS, EXPERTS = 32, TOP_K = 4 };
    mm3_synthetic s;
    mm3_model *m;
    static watch w;
    int favourite[2];
    (void)state;
    parse(&s, "");
    assert_int_equal(mm3_model_synthesize(&m, &s), MM3_OK);
    assert_false(m->layer[0].is_moe || m->layer[0].is_sparse);
    assert_true(m->layer[1].is_moe && m->layer[2].is_sparse);
    assert_in_range(m->weight_bytes, mm3_synthetic_bytes(&s), mm3_synthetic_bytes(&s));
    route(m, &w, N_STEPS);
    assert_true(w.size > 1 && w.size < 100); /* as large as a trained model's, and finite */
    for (int l = 0; l < 2; l++) assert_true(unevenness(w.count[l], EXPERTS, TOKENS * TOP_K / EXPERTS) < 0.2);
    mm3_model_close(&m);

    parse(&s, ",routing=zipf");
    assert_int_equal(mm3_model_synthesize(&m, &s), MM3_OK);
    route(m, &w, N_STEPS);
    for (int l = 0; l < 2; l++) {
        double harmonic = 0, capped = 0;
        favourite[l] = 0;
        for (int e = 1; e < EXPERTS; e++)
            if (w.count[l][e] > w.count[l][favourite[l]]) favourite[l] = e;
        qsort(w.count[l], EXPERTS, sizeof(long), descending);
        /* the first is nearly always chosen; behind it 1 / rank */
        capped = (double)w.count[l][0] / TOKENS;
        assert_true(capped > 0.75 && capped <= 1);
        for (int e = 1; e < EXPERTS; e++) harmonic += 1.0 / (e + 1);
        for (int e = 1; e < EXPERTS; e++) {
            double want = (TOP_K - capped) / harmonic / (e + 1), got = (double)w.count[l][e] / TOKENS;
            assert_true(got > want / 1.6 - 0.01 && got < want * 1.6 + 0.01);
        }
    }
    assert_int_not_equal(favourite[0], favourite[1]);
    mm3_model_close(&m);
}

static void same_shape(const mm3_weight *a, const mm3_weight *b)
{
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->type, b->type);
    assert_null(a->data);
    assert_true(b->data || b->n == 0);
}

/* The outline has the sizes of the model itself, and by default M3's own (docs/m3.md, sections 1 and 2). */
static void test_outline(void **state)
{
    mm3_synthetic s;
    mm3_model *a, *b;
    (void)state;
    parse(&s, "");
    EXPECT_OK(mm3_model_outline(&a, &s));
    EXPECT_OK(mm3_model_synthesize(&b, &s));
    assert_int_equal(a->config.n_layers, b->config.n_layers);
    same_shape(&a->embed, &b->embed);
    same_shape(&a->head, &b->head);
    for (int l = 0; l < a->config.n_layers; l++) {
        const mm3_layer *x = &a->layer[l], *y = &b->layer[l];
        assert_int_equal(x->is_moe, y->is_moe);
        assert_int_equal(x->is_sparse, y->is_sparse);
        same_shape(&x->q, &y->q);
        same_shape(&x->k, &y->k);
        same_shape(&x->v, &y->v);
        same_shape(&x->o, &y->o);
        same_shape(&x->iq, &y->iq);
        same_shape(&x->ik, &y->ik);
        same_shape(&x->gate, &y->gate);
        same_shape(&x->up, &y->up);
        same_shape(&x->down, &y->down);
        same_shape(&x->router, &y->router);
        for (int e = 0; x->is_moe && e < s.experts; e++) {
            same_shape(&x->expert_gate_up[2 * e], &y->expert_gate_up[2 * e]);
            same_shape(&x->expert_gate_up[2 * e + 1], &y->expert_gate_up[2 * e + 1]);
            same_shape(&x->expert_down[e], &y->expert_down[e]);
        }
    }
    mm3_model_close(&b);
    mm3_model_close(&a);

    EXPECT_OK(mm3_synthetic_parse(&s, "m3"));
    EXPECT_OK(mm3_model_outline(&a, &s));
    assert_int_equal(a->config.vocab_size, 200064);
    assert_int_equal(a->config.n_experts, 128);
    assert_int_equal(a->config.max_position, 1048576);
    assert_int_equal(a->head.n, 200064);
    assert_int_equal(a->layer[0].q.n, 8192);
    assert_int_equal(a->layer[0].k.n, 512);
    assert_int_equal(a->layer[0].o.n, 6144);
    assert_int_equal(a->layer[0].gate.n, 12288);
    assert_int_equal(a->layer[0].iq.n, 0);
    assert_int_equal(a->layer[1].iq.n, 512);
    assert_int_equal(a->layer[1].ik.n, 128);
    assert_int_equal(a->layer[1].gate.n, 3072);
    assert_int_equal(a->layer[1].router.n, 128);
    assert_int_equal(a->layer[1].router.type, MM3_F32);
    assert_int_equal(a->layer[1].expert_gate_up[255].n, 3072);
    assert_int_equal(a->layer[1].expert_down[127].n, 6144);
    mm3_model_close(&a);
    s.heads = 63;
    EXPECT_FAIL(mm3_model_outline(&a, &s), MM3_ERR_ARG, "63 heads");
    assert_null(a);
}

/* The same seed makes the same weights, another one others; no allocation that fails leaks or crashes. */
static void test_seed(void **state)
{
    mm3_synthetic s;
    mm3_model *a, *b;
    size_t n = 0;
    (void)state;
    parse(&s, "");
    n = (size_t)s.hidden * (size_t)s.hidden;
    assert_int_equal(mm3_model_synthesize(&a, &s), MM3_OK);
    assert_int_equal(mm3_model_synthesize(&b, &s), MM3_OK);
    assert_memory_equal(a->layer[2].expert_down[31].data, b->layer[2].expert_down[31].data, 256 * 128);
    assert_memory_equal(a->layer[0].q.data, b->layer[0].q.data, n);
    mm3_model_close(&b);
    s.seed = 4;
    assert_int_equal(mm3_model_synthesize(&b, &s), MM3_OK);
    assert_memory_not_equal(a->layer[0].q.data, b->layer[0].q.data, n);
    mm3_model_close(&b);
    mm3_model_close(&a);
    s.zipf = true;
    for (long k = 1;; k++) {
        alloc_fail_at(k);
        if (mm3_model_synthesize(&a, &s) == MM3_OK) break;
        assert_null(a);
        assert_true(k < 100);
    }
    alloc_fail_at(0);
    mm3_model_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_text), cmocka_unit_test(test_sizes),
                                        cmocka_unit_test(test_routing), cmocka_unit_test(test_outline),
                                        cmocka_unit_test(test_seed) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
