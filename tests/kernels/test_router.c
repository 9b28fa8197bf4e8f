/* router and moe_sum: every candidate against the reference, and the rules that a shallow one breaks. */
#include "kernel_test.h"

typedef struct setup {
    mm3_router op;
    float *logits, *bias, *weight;
    int32_t *slot, *expert, *pair, *begin;
} setup;

static setup setup_open(int m, int n_expert, int top_k)
{
    setup s = { 0 };
    s.logits = floats((size_t)(m * n_expert));
    s.bias = floats((size_t)n_expert);
    s.weight = floats((size_t)(m * top_k));
    s.slot = ints((size_t)m);
    s.expert = ints((size_t)(m * top_k));
    s.pair = ints((size_t)(m * top_k));
    s.begin = ints((size_t)n_expert + 1);
    s.op = (mm3_router){ .m = m,
                         .n_expert = n_expert,
                         .top_k = top_k,
                         .logits = s.logits,
                         .bias = s.bias,
                         .slot = s.slot,
                         .expert = s.expert,
                         .weight = s.weight,
                         .pair = s.pair,
                         .begin = s.begin };
    return s;
}

static void setup_close(setup *s)
{
    mm3_free(s->logits);
    mm3_free(s->bias);
    mm3_free(s->weight);
    mm3_free(s->slot);
    mm3_free(s->expert);
    mm3_free(s->pair);
    mm3_free(s->begin);
}

static bool run(const candidate *c, setup *s, int n_threads)
{
    size_t n = (size_t)(s->op.m * s->op.top_k);
    memset(s->expert, 0x7B, n * 4);
    memset(s->weight, 0x7B, n * 4);
    memset(s->pair, 0x7B, n * 4);
    memset(s->begin, 0x7B, ((size_t)s->op.n_expert + 1) * 4);
    return run_candidate(c, &s->op, n_threads);
}

static void check_ints(const candidate *c, const char *what, const int32_t *got, const int32_t *want, int n)
{
    for (int i = 0; i < n; i++)
        if (got[i] != want[i]) FAIL_CANDIDATE(c, "%s[%d] is %d, expected %d", what, i, got[i], want[i]);
}

static void check_reference(setup *s)
{
    int n = s->op.m * s->op.top_k;
    setup want = setup_open(s->op.m, s->op.n_expert, s->op.top_k);
    double *magnitude = mm3_calloc((size_t)n, sizeof *magnitude);
    assert_non_null(magnitude);
    want.op.logits = s->logits;
    want.op.bias = s->bias;
    want.op.slot = s->slot;
    mm3_op_info_of(MM3_OP_ROUTER)->reference(&want.op, magnitude);
    EACH_CANDIDATE(c, MM3_OP_ROUTER)
    {
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            if (!run(c, s, n_threads)) break;
            check_ints(c, "expert", s->expert, want.expert, n);
            check_close(c, "weight", s->weight, want.weight, magnitude, (size_t)n, 1e-6);
            check_ints(c, "begin", s->begin, want.begin, s->op.n_expert + 1);
            check_ints(c, "pair", s->pair, want.pair, n);
        }
    }
    mm3_free(magnitude);
    setup_close(&want);
}

/* A23 is in here: all logits negative, all positive. */
static void test_reference(void **state)
{
    static const int shapes[][3] = { { 1, 128, 4 }, { 67, 128, 4 }, { 5, 16, 4 },  { 9, 7, 2 },
                                     { 3, 1, 1 },   { 4, 5, 5 },    { 200, 33, 9 } };
    static const float low[] = { -3, -8, 5, -30, 60 }, width[] = { 6, 3, 3, 60, 10 };
    uint64_t seed = 1;
    (void)state;
    for (int k = 0; k < MM3_COUNT(shapes); k++)
        for (int range = 0; range < MM3_COUNT(low); range++) {
            setup s = setup_open(shapes[k][0], shapes[k][1], shapes[k][2]);
            for (int i = 0; i < shapes[k][0] * shapes[k][1]; i++)
                s.logits[i] = low[range] + width[range] * (random_unit(&seed) + 1) / 2;
            for (int e = 0; e < shapes[k][1]; e++) s.bias[e] = 0.25f * random_unit(&seed);
            for (int i = 1; i < shapes[k][0]; i++) s.slot[i] = random_below(&seed, 5) - 1;
            check_reference(&s);
            setup_close(&s);
        }
}

/* A21: bias +10 on the expert with the lowest score: it is chosen first, and its weight is its score's share. */
static void test_bias_only_chooses(void **state)
{
    setup s = setup_open(1, 8, 4);
    int32_t want[] = { 3, 7, 6, 5 };
    double sum = 0;
    (void)state;
    for (int e = 0; e < 8; e++) s.logits[e] = 0.5f * (float)e;
    s.logits[3] = -4.0f;
    s.bias[3] = 10.0f;
    for (int j = 0; j < 4; j++) sum += 1 / (1 + exp(-(double)s.logits[want[j]]));
    EACH_CANDIDATE(c, MM3_OP_ROUTER)
    {
        if (!run(c, &s, 2)) continue;
        check_ints(c, "expert", s.expert, want, 4);
        for (int j = 0; j < 4; j++)
            if (fabs((double)s.weight[j] * sum * (1 + exp(-(double)s.logits[want[j]])) - 1) > 1e-6)
                FAIL_CANDIDATE(c, "weight %d is %g", j, (double)s.weight[j]);
    }
    setup_close(&s);
}

/* Equal sums: the lower id, -0 as +0. NaN below every number, and chosen only when nothing else is left. */
static void test_ties_and_nan(void **state)
{
    setup s = setup_open(4, 6, 3);
    int32_t want[] = { 0, 1, 2, 4, 0, 5, 1, 0, 2, 3, 0, 1 };
    (void)state;
    for (int e = 0; e < 6; e++) {
        s.logits[6 + e] = e == 4 ? 2.0f : e == 0 || e == 5 ? 1.0f : -1.0f;
        s.logits[12 + e] = e == 1 ? -INFINITY : NAN;
        s.logits[18 + e] = e == 3 ? 30.0f : -200.0f; /* sigmoid 0: ties of 0, where -0 must not lose */
    }
    EACH_CANDIDATE(c, MM3_OP_ROUTER)
    {
        if (!run(c, &s, 2)) continue;
        check_ints(c, "expert", s.expert, want, 12);
        if (s.weight[9] != 1.0f) FAIL_CANDIDATE(c, "the only weight is %g", (double)s.weight[9]);
    }
    setup_close(&s);
}

/* Padded rows: expert -1, weight 0, no place in the lists; a batch of nothing but padding has empty lists. */
static void test_padding(void **state)
{
    setup s = setup_open(3, 4, 2);
    int32_t none[] = { -1, -1, -1, -1, -1, -1 }, empty[] = { 0, 0, 0, 0, 0 };
    (void)state;
    for (int i = 0; i < 3; i++) s.slot[i] = -1;
    for (int i = 0; i < 12; i++) s.logits[i] = NAN;
    EACH_CANDIDATE(c, MM3_OP_ROUTER)
    {
        if (!run(c, &s, 2)) continue;
        check_ints(c, "expert", s.expert, none, 6);
        check_ints(c, "pair", s.pair, none, 6);
        check_ints(c, "begin", s.begin, empty, 5);
        for (int i = 0; i < 6; i++)
            if (s.weight[i] != 0.0f) FAIL_CANDIDATE(c, "weight %d is %g", i, (double)s.weight[i]);
    }
    setup_close(&s);
}

/* A row alone gives the bits it has in a batch. */
static void test_row_invariant(void **state)
{
    enum { M = 33, N = 128, TOP = 4 };
    setup s = setup_open(M, N, TOP), one = setup_open(1, N, TOP);
    uint64_t seed = 4;
    (void)state;
    random_fill(s.logits, M * N, &seed, FILL_UNIT);
    random_fill(s.bias, N, &seed, FILL_UNIT);
    one.op.bias = s.bias;
    EACH_CANDIDATE(c, MM3_OP_ROUTER)
    {
        if (!c->tactic->row_invariant || !run(c, &s, 2)) continue;
        for (int i = 0; i < M; i++) {
            one.op.logits = s.logits + i * N;
            assert_true(run(c, &one, 1));
            if (!same_bits(one.expert, s.expert + i * TOP, TOP * 4) ||
                !same_bits(one.weight, s.weight + i * TOP, TOP * 4))
                FAIL_CANDIDATE(c, "row %d differs when it is alone", i);
        }
    }
    setup_close(&s);
    setup_close(&one);
}

/* ---- moe_sum ----------------------------------------------------------------------------------------------------- */

static void test_sum_reference(void **state)
{
    static const int shapes[][3] = { { 1, 4, 6144 }, { 5, 4, 256 }, { 3, 2, 320 },
                                     { 7, 1, 33 },   { 2, 9, 1 },   { 4, 3, 1030 } };
    uint64_t seed = 5;
    (void)state;
    for (int k = 0; k < MM3_COUNT(shapes); k++)
        for (int how = 0; how < N_FILLS; how++) {
            int m = shapes[k][0], top_k = shapes[k][1], n = shapes[k][2];
            float *y = floats((size_t)(m * top_k * n)), *weight = floats((size_t)(m * top_k));
            float *shared = floats((size_t)(m * n)), *want = floats((size_t)(m * n)), *out = floats((size_t)(m * n));
            int32_t *expert = ints((size_t)(m * top_k));
            double *magnitude = mm3_calloc((size_t)(m * n), sizeof *magnitude);
            mm3_moe_sum op = { .m = m,
                               .top_k = top_k,
                               .k = n,
                               .scale = 2.0f,
                               .y = y,
                               .expert = expert,
                               .weight = weight,
                               .shared = how & 1 ? shared : NULL,
                               .out = want };
            assert_non_null(magnitude);
            random_fill(y, (size_t)(m * top_k * n), &seed, (fill)how);
            random_fill(weight, (size_t)(m * top_k), &seed, FILL_UNIT);
            random_fill(shared, (size_t)(m * n), &seed, (fill)how);
            for (int i = 0; i < m * top_k; i++) {
                expert[i] = i % 7 == 3 ? -1 : i;
                for (int j = 0; expert[i] < 0 && j < n; j++)
                    y[(size_t)i * (size_t)n + (size_t)j] = NAN; /* not to be read */
            }
            mm3_op_info_of(MM3_OP_MOE_SUM)->reference(&op, magnitude);
            op.out = out;
            EACH_CANDIDATE(c, MM3_OP_MOE_SUM)
            {
                for (int n_threads = 1; n_threads <= 3; n_threads++) {
                    memset(out, 0xFF, (size_t)(m * n) * sizeof *out);
                    if (run_candidate(c, &op, n_threads))
                        check_close(c, "out", out, want, magnitude, (size_t)(m * n), 1e-6);
                }
            }
            mm3_free(y);
            mm3_free(weight);
            mm3_free(shared);
            mm3_free(want);
            mm3_free(out);
            mm3_free(expert);
            mm3_free(magnitude);
        }
}

/* A24: with all weights 0 the shared expert alone is left, unscaled; without it the routed part is scaled. */
static void test_scale_is_for_routed(void **state)
{
    float y[2 * 16], shared[16], out[16], weight[2] = { 0, 0 };
    int32_t expert[2] = { 0, 1 };
    mm3_moe_sum op = { .m = 1,
                       .top_k = 2,
                       .k = 16,
                       .scale = 2.0f,
                       .y = y,
                       .expert = expert,
                       .weight = weight,
                       .shared = shared,
                       .out = out };
    (void)state;
    for (int i = 0; i < 16; i++) {
        y[i] = (float)i;
        y[16 + i] = 100.0f;
        shared[i] = 0.1f * (float)i + 7.0f;
    }
    EACH_CANDIDATE(c, MM3_OP_MOE_SUM)
    {
        op.shared = shared;
        weight[0] = weight[1] = 0.0f;
        if (!run_candidate(c, &op, 1)) continue;
        if (!same_bits(out, shared, sizeof out)) FAIL_CANDIDATE(c, "weights 0: not the shared expert's output");
        weight[0] = 0.75f;
        weight[1] = 0.25f;
        run_candidate(c, &op, 1);
        for (int i = 0; i < 16; i++)
            if (fabsf(out[i] - (2.0f * (0.75f * (float)i + 25.0f) + shared[i])) > 1e-5f)
                FAIL_CANDIDATE(c, "column %d: %g", i, (double)out[i]);
        op.shared = NULL;
        run_candidate(c, &op, 1);
        if (out[0] != 50.0f) FAIL_CANDIDATE(c, "without a shared expert: %g", (double)out[0]);
    }
}

/* C29: the pairs of the last row begin beyond 2^31 elements of y. Untouched pages of the map cost nothing. */
static void test_sum_large(void **state)
{
    enum { TOP = 180000, K = 6144 };
    size_t n_y = (size_t)2 * TOP * K;
    float *y = mmap(NULL, n_y * sizeof *y, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    float *weight = floats(2 * TOP), *out = floats(2 * K);
    int32_t *expert = ints(2 * TOP);
    mm3_moe_sum op = {
        .m = 2, .top_k = TOP, .k = K, .scale = 2.0f, .y = y, .expert = expert, .weight = weight, .out = out
    };
    (void)state;
    assert_ptr_not_equal(y, MAP_FAILED);
    for (int i = 0; i < 2 * TOP; i++) expert[i] = -1;
    expert[2 * TOP - 1] = 3;
    weight[2 * TOP - 1] = 0.5f;
    for (int i = 0; i < K; i++) y[n_y - K + (size_t)i] = (float)i;
    EACH_CANDIDATE(c, MM3_OP_MOE_SUM)
    {
        if (!run_candidate(c, &op, 2)) continue;
        for (int i = 0; i < K; i++)
            if (out[i] != 0.0f || out[K + i] != (float)i)
                FAIL_CANDIDATE(c, "column %d: %g and %g", i, (double)out[i], (double)out[K + i]);
    }
    munmap(y, n_y * sizeof *y);
    mm3_free(weight);
    mm3_free(out);
    mm3_free(expert);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),           cmocka_unit_test(test_bias_only_chooses),
        cmocka_unit_test(test_ties_and_nan),        cmocka_unit_test(test_padding),
        cmocka_unit_test(test_row_invariant),       cmocka_unit_test(test_sum_reference),
        cmocka_unit_test(test_scale_is_for_routed), cmocka_unit_test(test_sum_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
