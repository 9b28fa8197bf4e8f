/* attention: every candidate against the reference, and the rules that a shallow one breaks. */
#include "kernel_test.h"

enum { DIM = MM3_HEAD_DIM };

/* A contract with its arrays; rows and lists are set by the test. */
typedef struct setup {
    mm3_attention op;
    pages p;
    float *q, *out;
    int32_t *slot, *position, *selected;
} setup;

static setup setup_open(int m, int n_q, int n_kv, mm3_dtype type, int n_slots, int max_pages, int top_k, int block)
{
    setup s = { .p = pages_open(n_kv, 64, type, n_slots, max_pages, 3, 99) };
    s.q = floats((size_t)(m * n_q * DIM));
    s.out = floats((size_t)(m * n_q * DIM));
    s.slot = ints((size_t)m);
    s.position = ints((size_t)m);
    s.selected = top_k ? ints((size_t)(m * n_kv * top_k)) : NULL;
    s.op = (mm3_attention){ .m = m,
                            .n_q = n_q,
                            .top_k = top_k,
                            .block = block,
                            .context = 1024,
                            .scale = 0.08838835f,
                            .q = s.q,
                            .slot = s.slot,
                            .position = s.position,
                            .selected = s.selected,
                            .kv = s.p.kv,
                            .out = s.out };
    return s;
}

static void setup_close(setup *s)
{
    pages_close(&s->p);
    mm3_free(s->q);
    mm3_free(s->out);
    mm3_free(s->slot);
    mm3_free(s->position);
    mm3_free(s->selected);
}

static size_t n_out(const setup *s) { return (size_t)(s->op.m * s->op.n_q * DIM); }

/* Lists as index_select makes them: ascending, the own block last, -1 at the end; all blocks if there are not more. */
static void random_lists(setup *s, uint64_t *state)
{
    for (int i = 0; i < s->op.m * s->op.kv.n_kv; i++) {
        int row = i / s->op.kv.n_kv, own = s->position[row] / s->op.block, n = 0, need = s->op.top_k - 1;
        int32_t *list = s->selected + (size_t)i * (size_t)s->op.top_k;
        for (int j = 0; j < s->op.top_k; j++) list[j] = -1;
        if (s->slot[row] < 0) continue;
        for (int b = 0; b < own && n < s->op.top_k - 1; b++)
            if (own - b <= need - n || random_below(state, own - b) < need - n) list[n++] = b;
        list[n] = own;
    }
}

static void check_reference(setup *s, const char *what)
{
    float *want = floats(n_out(s));
    double *magnitude = mm3_calloc(n_out(s), sizeof *magnitude);
    assert_non_null(magnitude);
    s->op.out = want;
    mm3_op_info_of(MM3_OP_ATTENTION)->reference(&s->op, magnitude);
    s->op.out = s->out;
    EACH_CANDIDATE(c, MM3_OP_ATTENTION)
    {
        float *first = NULL;
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            memset(s->out, 0xAB, n_out(s) * sizeof *s->out);
            if (!run_candidate(c, &s->op, n_threads)) break;
            check_close(c, what, s->out, want, magnitude, n_out(s), 1e-6);
            if (!first) {
                first = floats(n_out(s));
                memcpy(first, s->out, n_out(s) * sizeof *first);
            }
            if (!same_bits(first, s->out, n_out(s) * sizeof *first))
                FAIL_CANDIDATE(c, "%s: %d threads give other bits than 1", what, n_threads);
        }
        mm3_free(first);
    }
    mm3_free(magnitude);
    mm3_free(want);
}

static void test_dense(void **state)
{
    static const int heads[][2] = { { 8, 2 }, { 12, 3 }, { 1, 1 }, { 5, 5 }, { 7, 1 }, { 32, 2 } };
    static const int rows[] = { 1, 2, 5, 19 };
    uint64_t seed = 1;
    (void)state;
    for (int h = 0; h < MM3_COUNT(heads); h++)
        for (int r = 0; r < MM3_COUNT(rows); r++)
            for (int type = MM3_F32; type <= MM3_BF16; type++) {
                setup s = setup_open(rows[r], heads[h][0], heads[h][1], (mm3_dtype)type, 3, 3, 0, 0);
                fill how = (fill)random_below(&seed, N_FILLS);
                for (int slot = 0; slot < 3; slot++) pages_fill(&s.op.kv, slot, 384, seed + (uint64_t)slot, how);
                random_fill(s.q, n_out(&s), &seed, how == FILL_LARGE ? FILL_UNIT : how);
                for (int i = 0; i < rows[r]; i++) {
                    s.slot[i] = i % 5 == 4 ? -1 : i * 3 / rows[r];
                    s.position[i] = random_below(&seed, 384);
                }
                check_reference(&s, "dense");
                setup_close(&s);
            }
}

static void test_sparse(void **state)
{
    static const int blocks[][2] = { { 128, 2 }, { 128, 16 }, { 1, 5 }, { 7, 9 }, { 32, 70 }, { 200, 3 }, { 256, 2 } };
    uint64_t seed = 2;
    (void)state;
    for (int b = 0; b < MM3_COUNT(blocks); b++)
        for (int m = 1; m <= 21; m += 10)
            for (int type = MM3_F32; type <= MM3_BF16; type++) {
                setup s = setup_open(m, 6, 3, (mm3_dtype)type, 2, 7, blocks[b][1], blocks[b][0]);
                for (int slot = 0; slot < 2; slot++) pages_fill(&s.op.kv, slot, 896, seed + (uint64_t)slot, FILL_UNIT);
                random_fill(s.q, n_out(&s), &seed, FILL_LARGE);
                for (int i = 0; i < m; i++) {
                    s.slot[i] = i == 2 ? -1 : i > 12;
                    s.position[i] = m == 1 ? 895 : 40 * i + random_below(&seed, 40);
                }
                random_lists(&s, &seed);
                check_reference(&s, "sparse");
                setup_close(&s);
            }
}

/* A09: with no more blocks than places the result is plain causal attention. */
static void test_all_blocks_is_dense(void **state)
{
    static const int lengths[] = { 1, 2, 127, 128, 129, 255, 256, 1920, 2047 };
    uint64_t seed = 3;
    (void)state;
    for (int l = 0; l < MM3_COUNT(lengths); l++) {
        setup s = setup_open(1, 4, 2, MM3_F32, 1, 16, 16, 128);
        pages_fill(&s.op.kv, 0, lengths[l], seed, FILL_UNIT);
        random_fill(s.q, n_out(&s), &seed, FILL_LARGE);
        s.position[0] = lengths[l] - 1;
        random_lists(&s, &seed);
        EACH_CANDIDATE(c, MM3_OP_ATTENTION)
        {
            float *sparse = floats(n_out(&s));
            s.op.selected = s.selected;
            if (run_candidate(c, &s.op, 2)) {
                memcpy(sparse, s.out, n_out(&s) * sizeof *sparse);
                s.op.selected = NULL;
                assert_true(run_candidate(c, &s.op, 2));
                for (size_t i = 0; i < n_out(&s); i++)
                    if (!(fabsf(sparse[i] - s.out[i]) <= 2e-6f))
                        FAIL_CANDIDATE(c, "length %d: %g is not %g", lengths[l], (double)sparse[i], (double)s.out[i]);
            }
            mm3_free(sparse);
        }
        setup_close(&s);
    }
}

/* A05, A06: each token and KV group reads its own list; T is not the number of groups. */
static void test_own_lists(void **state)
{
    enum { T = 7, GROUPS = 4, BLOCKS = 40 };
    setup s = setup_open(T, GROUPS * 2, GROUPS, MM3_F32, 1, BLOCKS, 2, 128);
    (void)state;
    pages_fill(&s.op.kv, 0, BLOCKS * 128, 4, FILL_UNIT);
    for (int t = 0; t < BLOCKS * 128; t++) /* V says which block it is of, and K is the same everywhere */
        for (int g = 0; g < GROUPS; g++)
            for (int d = 0; d < DIM; d++) {
                kv_put(&s.op.kv, 0, t, s.op.kv.k_at, g, DIM, d, 0.0f);
                kv_put(&s.op.kv, 0, t, s.op.kv.v_at, g, DIM, d, t / 128 == BLOCKS - 1 ? 0.0f : (float)(t / 128 + 1));
            }
    for (int i = 0; i < T; i++) {
        s.position[i] = BLOCKS * 128 - 128 + i;
        for (int g = 0; g < GROUPS; g++) {
            s.selected[(i * GROUPS + g) * 2] = i * GROUPS + g; /* planted: another one in each list */
            s.selected[(i * GROUPS + g) * 2 + 1] = BLOCKS - 1;
        }
    }
    EACH_CANDIDATE(c, MM3_OP_ATTENTION)
    {
        if (!run_candidate(c, &s.op, 2)) continue;
        for (int i = 0; i < T; i++)
            for (int h = 0; h < GROUPS * 2; h++) {
                float own = (float)(i + 1), want = (float)(i * GROUPS + h / 2 + 1) * 128.0f / (128.0f + own);
                float got = s.out[(i * GROUPS * 2 + h) * DIM + 5];
                if (fabsf(got - want) > 1e-4f)
                    FAIL_CANDIDATE(c, "row %d head %d: %g, not %g", i, h, (double)got, (double)want);
            }
    }
    setup_close(&s);
}

/* What lies beyond a row's position, or in blocks it did not select, is never touched: NaN there changes nothing. A
 * NaN that it does see reaches exactly the heads of that KV head. */
static void test_nan_stays_out(void **state)
{
    setup s = setup_open(9, 4, 2, MM3_F32, 1, 6, 2, 64);
    uint64_t seed = 5;
    float *clean = floats(n_out(&s));
    (void)state;
    pages_fill(&s.op.kv, 0, 640, seed, FILL_UNIT); /* the rest of the pool is NaN */
    random_fill(s.q, n_out(&s), &seed, FILL_UNIT);
    for (int i = 0; i < 9; i++) {
        s.position[i] = 631 + i;
        for (int g = 0; g < 2; g++) {
            s.selected[(i * 2 + g) * 2] = i % 2 ? 4 : 6;
            s.selected[(i * 2 + g) * 2 + 1] = 9;
        }
    }
    EACH_CANDIDATE(c, MM3_OP_ATTENTION)
    {
        pages_fill(&s.op.kv, 0, 640, seed, FILL_UNIT);
        if (!run_candidate(c, &s.op, 2)) continue;
        memcpy(clean, s.out, n_out(&s) * sizeof *clean);
        for (int d = 0; d < DIM; d++)
            for (int g = 0; g < 2; g++) {
                kv_put(&s.op.kv, 0, 330, s.op.kv.v_at, g, DIM, d, NAN); /* block 5: selected by none */
                kv_put(&s.op.kv, 0, 330, s.op.kv.k_at, g, DIM, d, NAN);
                kv_put(&s.op.kv, 0, 639, s.op.kv.v_at, g, DIM, d, NAN); /* the last row's own token */
                kv_put(&s.op.kv, 0, 639, s.op.kv.k_at, g, DIM, d, NAN);
            }
        kv_put(&s.op.kv, 0, 390, s.op.kv.v_at, 1, DIM, 7, NAN); /* block 6: the even rows; KV head 1, channel 7 */
        assert_true(run_candidate(c, &s.op, 2));
        for (int i = 0; i < 9; i++)
            for (int h = 0; h < 4; h++)
                for (int d = 0; d < DIM; d++) {
                    size_t at = (size_t)((i * 4 + h) * DIM + d);
                    bool nan = i == 8 || (i % 2 == 0 && h >= 2 && d == 7);
                    if (isnan(s.out[at]) != nan || (!nan && s.out[at] != clean[at]))
                        FAIL_CANDIDATE(c, "row %d head %d channel %d: %g, was %g", i, h, d, (double)s.out[at],
                                       (double)clean[at]);
                }
    }
    mm3_free(clean);
    setup_close(&s);
}

/* A row's bits depend on that row alone: in a batch of sequences, in a chunk of one sequence, or by itself. */
static void test_row_invariant(void **state)
{
    uint64_t seed = 6;
    (void)state;
    for (int round = 0; round < 4; round++) {
        int m = 37, top_k = round & 1 ? 6 : 0;
        setup s = setup_open(m, 12, 2, round & 2 ? MM3_BF16 : MM3_F32, 3, 20, top_k, 128);
        setup one = s;
        float *all = floats(n_out(&s)), single[12 * DIM];
        for (int slot = 0; slot < 3; slot++) pages_fill(&s.op.kv, slot, 2560, seed + (uint64_t)slot, FILL_UNIT);
        random_fill(s.q, n_out(&s), &seed, FILL_LARGE);
        for (int i = 0; i < m; i++) {
            s.slot[i] = i < 30 ? 0 : i < 33 ? -1 : 1 + i % 2;
            s.position[i] = i < 30 ? 2520 + i : 700 * (i - 32);
        }
        if (top_k) random_lists(&s, &seed);
        one.op.m = 1;
        one.op.out = single;
        EACH_CANDIDATE(c, MM3_OP_ATTENTION)
        {
            if (!c->tactic->row_invariant || !run_candidate(c, &s.op, 2)) continue;
            memcpy(all, s.out, n_out(&s) * sizeof *all);
            for (int i = 0; i < m; i++) {
                one.op.q = s.q + i * 12 * DIM;
                one.op.slot = s.slot + i;
                one.op.position = s.position + i;
                one.op.selected = top_k ? s.selected + i * 2 * top_k : NULL;
                assert_true(run_candidate(c, &one.op, 1 + i % 3));
                if (!same_bits(single, all + i * 12 * DIM, sizeof single))
                    FAIL_CANDIDATE(c, "round %d: row %d differs when it is alone", round, i);
            }
        }
        mm3_free(all);
        setup_close(&s);
    }
}

/* A02, C29: any order of pages gives the same bits, ids from 16384 on too. */
static void test_page_order(void **state)
{
    setup s = setup_open(5, 4, 2, MM3_F32, 2, 9, 0, 0);
    uint64_t seed = 7;
    float *first = floats(n_out(&s));
    (void)state;
    random_fill(s.q, n_out(&s), &seed, FILL_UNIT);
    for (int i = 0; i < 5; i++) {
        s.slot[i] = i > 2;
        s.position[i] = 1000 + 30 * i;
    }
    EACH_CANDIDATE(c, MM3_OP_ATTENTION)
    {
        static const int first_id[] = { 0, 5, 16380, 40000 };
        for (int round = 0; round < MM3_COUNT(first_id); round++) {
            pages p = pages_open(2, 64, MM3_F32, 2, 9, first_id[round], (uint64_t)round);
            pages_fill(&p.kv, 0, 1152, 70, FILL_UNIT);
            pages_fill(&p.kv, 1, 1152, 71, FILL_UNIT);
            s.op.kv = p.kv;
            if (run_candidate(c, &s.op, 2)) {
                if (round == 0) memcpy(first, s.out, n_out(&s) * sizeof *first);
                if (!same_bits(first, s.out, n_out(&s) * sizeof *first))
                    FAIL_CANDIDATE(c, "page order %d gives other bits", round);
            }
            pages_close(&p);
        }
    }
    s.op.kv = s.p.kv;
    mm3_free(first);
    setup_close(&s);
}

/* A softmax whose largest score is far above the others, or comes last, or is the first of thousands. */
static void test_extreme_scores(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++) {
        setup s = setup_open(2, 2, 1, MM3_F32, 1, 24, 0, 0);
        for (int t = 0; t < 3000; t++)
            for (int d = 0; d < DIM; d++) {
                float score = round == 0 ? (float)t : round == 1 ? (float)-t : t == 1500 ? 3000.0f : -3000.0f;
                kv_put(&s.op.kv, 0, t, s.op.kv.k_at, 0, DIM, d, d == 3 ? score : 0.0f);
                kv_put(&s.op.kv, 0, t, s.op.kv.v_at, 0, DIM, d, (float)(t % 100) + (float)d);
            }
        for (int i = 0; i < 2; i++) {
            s.position[i] = 2999 - 7 * i;
            s.q[i * 2 * DIM + 3] = 1.0f;
            s.q[i * 2 * DIM + DIM + 3] = -40.0f;
        }
        check_reference(&s, "extreme scores");
        setup_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_sparse),
        cmocka_unit_test(test_all_blocks_is_dense),
        cmocka_unit_test(test_own_lists),
        cmocka_unit_test(test_nan_stays_out),
        cmocka_unit_test(test_row_invariant),
        cmocka_unit_test(test_page_order),
        cmocka_unit_test(test_extreme_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
