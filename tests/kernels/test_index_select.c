/* index_select: every candidate against the reference, and the rules that a shallow one breaks. */
#include "kernel_test.h"

typedef struct setup {
    mm3_index_select op;
    pages p;
    float *iq;
    int32_t *slot, *position, *selected;
} setup;

static setup setup_open(int m, int n_groups, int d_index, mm3_dtype type, int n_slots, int max_pages, int top_k,
                        int block)
{
    setup s = { .p = pages_open(1, d_index, type, n_slots, max_pages, 2, 42) };
    s.iq = floats((size_t)(m * n_groups * d_index));
    s.slot = ints((size_t)m);
    s.position = ints((size_t)m);
    s.selected = ints((size_t)(m * n_groups * top_k));
    s.op = (mm3_index_select){ .m = m,
                               .n_groups = n_groups,
                               .top_k = top_k,
                               .block = block,
                               .iq = s.iq,
                               .slot = s.slot,
                               .position = s.position,
                               .kv = s.p.kv,
                               .selected = s.selected };
    return s;
}

static void setup_close(setup *s)
{
    pages_close(&s->p);
    mm3_free(s->iq);
    mm3_free(s->slot);
    mm3_free(s->position);
    mm3_free(s->selected);
}

static size_t n_out(const setup *s) { return (size_t)(s->op.m * s->op.n_groups * s->op.top_k); }

static bool run(const candidate *c, setup *s, int n_threads)
{
    memset(s->selected, 0x7B, n_out(s) * sizeof *s->selected);
    return run_candidate(c, &s->op, n_threads);
}

static void check_list(const candidate *c, const char *what, const int32_t *got, const int32_t *want, int n)
{
    for (int i = 0; i < n; i++)
        if (got[i] != want[i]) FAIL_CANDIDATE(c, "%s: place %d holds block %d, expected %d", what, i, got[i], want[i]);
}

/* The whole index key of token t is x in channel 0; every query is 1 there, so that x is its score. */
static void put_score(setup *s, int slot, int t, float x)
{
    for (int d = 0; d < s->op.kv.d_index; d++)
        kv_put(&s->op.kv, slot, t, s->op.kv.ik_at, 0, s->op.kv.d_index, d, d ? 0.0f : x);
}

static void unit_queries(setup *s)
{
    memset(s->iq, 0, (size_t)(s->op.m * s->op.n_groups * s->op.kv.d_index) * sizeof *s->iq);
    for (int i = 0; i < s->op.m * s->op.n_groups; i++) s->iq[i * s->op.kv.d_index] = 1.0f;
}

/* Index keys of small whole numbers: scores are exact in any order of summation, ties are common, and the lists must
 * be equal. */
static void test_reference(void **state)
{
    static const int shapes[][6] = { /* groups, d_index, block, top_k, m, pages */
                                     { 4, 128, 128, 3, 1, 9 },  { 2, 64, 128, 4, 23, 9 }, { 3, 96, 1, 5, 6, 4 },
                                     { 1, 64, 7, 9, 5, 4 },     { 5, 160, 32, 6, 18, 5 }, { 4, 128, 200, 3, 7, 11 },
                                     { 7, 64, 1000, 2, 3, 24 }, { 4, 128, 128, 1, 3, 5 }, { 2, 64, 3, 64, 4, 3 }
    };
    uint64_t seed = 1;
    (void)state;
    for (int k = 0; k < MM3_COUNT(shapes); k++)
        for (int type = MM3_F32; type <= MM3_BF16; type++) {
            int m = shapes[k][4], n_tokens = shapes[k][5] * 128;
            setup s =
                setup_open(m, shapes[k][0], shapes[k][1], (mm3_dtype)type, 2, shapes[k][5], shapes[k][3], shapes[k][2]);
            int32_t *want = ints(n_out(&s));
            for (int slot = 0; slot < 2; slot++)
                for (int t = 0; t < n_tokens - 40; t++)
                    for (int d = 0; d < shapes[k][1]; d++)
                        kv_put(&s.op.kv, slot, t, s.op.kv.ik_at, 0, shapes[k][1], d,
                               (float)(random_below(&seed, 5) - 2));
            for (int i = 0; i < m * shapes[k][0] * shapes[k][1]; i++) s.iq[i] = (float)(random_below(&seed, 7) - 3);
            for (int i = 0; i < m; i++) {
                s.slot[i] = i == 4 ? -1 : i > m / 2;
                s.position[i] = i == 0 ? n_tokens - 41 : random_below(&seed, n_tokens - 40);
            }
            s.op.selected = want;
            mm3_op_info_of(MM3_OP_INDEX_SELECT)->reference(&s.op, NULL);
            s.op.selected = s.selected;
            EACH_CANDIDATE(c, MM3_OP_INDEX_SELECT)
            {
                for (int n_threads = 1; n_threads <= 3; n_threads++)
                    if (run(c, &s, n_threads)) check_list(c, "reference", s.selected, want, (int)n_out(&s));
            }
            mm3_free(want);
            setup_close(&s);
        }
}

/* A08: 21 visible blocks, the own one with the lowest score: exactly 16, own + best 15. Positions 2047 and 2048 are the
 * last dense one and the first to drop a block. */
static void test_own_block_counts(void **state)
{
    setup s = setup_open(3, 1, 64, MM3_F32, 1, 21, 16, 128);
    int32_t want[3 * 16];
    (void)state;
    unit_queries(&s);
    for (int t = 0; t < 21 * 128; t++) put_score(&s, 0, t, t / 128 == 20 ? -1000.0f : (float)((t / 128 * 7) % 20));
    s.position[0] = 20 * 128 + 70;
    s.position[1] = 2047;
    s.position[2] = 2048;
    for (int b = 0, n = 0; b < 20; b++) /* 7b mod 20 is a permutation: the five lowest drop out */
        if (b * 7 % 20 >= 5) want[n++] = b;
    want[15] = 20;
    for (int b = 0; b < 16; b++) want[16 + b] = b;
    for (int b = 1; b <= 16; b++) want[32 + b - 1] = b; /* block 0 has the lowest score of the first 16 */
    EACH_CANDIDATE(c, MM3_OP_INDEX_SELECT)
    {
        if (run(c, &s, 2)) check_list(c, "own block", s.selected, want, 48);
    }
    setup_close(&s);
}

/* A05, A06: each row and group has its own winner; the number of rows is not the number of groups. */
static void test_per_group(void **state)
{
    enum { M = 7, GROUPS = 4, BLOCKS = 30, D = 64 };
    setup s = setup_open(M, GROUPS, D, MM3_F32, 1, BLOCKS, 2, 128);
    (void)state;
    for (int t = 0; t < BLOCKS * 128; t++)
        for (int d = 0; d < D; d++) kv_put(&s.op.kv, 0, t, s.op.kv.ik_at, 0, D, d, d == t / 128 ? 1.0f : 0.0f);
    for (int i = 0; i < M; i++) {
        s.position[i] = BLOCKS * 128 - 1 - i;
        for (int g = 0; g < GROUPS; g++) s.iq[(i * GROUPS + g) * D + i * GROUPS + g] = 2.0f;
    }
    EACH_CANDIDATE(c, MM3_OP_INDEX_SELECT)
    {
        if (!run(c, &s, 2)) continue;
        for (int i = 0; i < M * GROUPS; i++) {
            int32_t want[2] = { i, BLOCKS - 1 };
            check_list(c, "row and group", s.selected + i * 2, want, 2);
        }
    }
    setup_close(&s);
}

/* A07: negative scores are ranked by value; a ReLU would tie them. */
static void test_negative_scores(void **state)
{
    setup s = setup_open(1, 2, 64, MM3_F32, 1, 10, 4, 128);
    int32_t want[] = { 5, 6, 7, 9 };
    (void)state;
    unit_queries(&s);
    for (int t = 0; t < 1280; t++)
        put_score(&s, 0, t, t / 128 == 8 ? -50.0f : -10.0f + (float)(t / 128) - (float)(t % 128) * 0.001f);
    s.position[0] = 1279;
    EACH_CANDIDATE(c, MM3_OP_INDEX_SELECT)
    {
        if (!run(c, &s, 2)) continue;
        for (int g = 0; g < 2; g++) check_list(c, "negative scores", s.selected + g * 4, want, 4);
    }
    setup_close(&s);
}

/* The score is the maximum over the block, wherever it is; tokens of other blocks and
 * after the position don't count. */
static void test_block_maximum(void **state)
{
    static const int at[] = { 0, 1, 63, 126, 127 };
    (void)state;
    for (int k = 0; k < MM3_COUNT(at); k++) {
        setup s = setup_open(1, 1, 64, MM3_BF16, 1, 8, 3, 128);
        int32_t want[] = { 2, 4, 6 };
        unit_queries(&s);
        for (int t = 0; t < 1024; t++) put_score(&s, 0, t, -1.0f);
        put_score(&s, 0, 2 * 128 + at[k], 3.0f);
        put_score(&s, 0, 4 * 128 + at[k], 2.0f);
        put_score(&s, 0, 7 * 128, 100.0f); /* not visible yet */
        s.position[0] = 6 * 128 + 5;
        EACH_CANDIDATE(c, MM3_OP_INDEX_SELECT)
        {
            if (run(c, &s, 2)) check_list(c, "maximum", s.selected, want, 3);
        }
        setup_close(&s);
    }
}

/* Equal scores: the lower id, -0 equal to +0. NaN ranks below every number, -infinity included, and does not spoil a
 * block that has a number. */
static void test_ties_and_nan(void **state)
{
    setup s = setup_open(1, 1, 64, MM3_F32, 1, 10, 5, 128);
    int32_t ties[] = { 0, 1, 2, 3, 9 }, nans[] = { 2, 3, 5, 7, 9 }, few[] = { 0, 1, 2, 7, 9 };
    (void)state;
    unit_queries(&s);
    s.position[0] = 1279;
    EACH_CANDIDATE(c, MM3_OP_INDEX_SELECT)
    {
        for (int t = 0; t < 1280; t++) put_score(&s, 0, t, t / 128 & 1 ? 0.0f : -0.0f);
        if (!run(c, &s, 2)) continue;
        check_list(c, "ties", s.selected, ties, 5);
        for (int t = 0; t < 1280; t++) {
            int b = t / 128;
            put_score(&s, 0, t, b == 2 || b == 3 ? -INFINITY : b == 5 && t % 128 == 9 ? -1e30f : b == 7 ? 1.0f : NAN);
        }
        run(c, &s, 2);
        check_list(c, "NaN", s.selected, nans, 5);
        for (int t = 0; t < 1280; t++) put_score(&s, 0, t, t / 128 == 7 ? 1.0f : NAN);
        run(c, &s, 2);
        check_list(c, "nearly all NaN", s.selected, few, 5);
    }
    setup_close(&s);
}

/* A09: all blocks, ascending, each once, then -1, and index keys are not even read. */
static void test_fewer_blocks(void **state)
{
    static const int length[] = { 1, 2, 127, 128, 129, 255, 256, 1920, 2047 };
    setup s = setup_open(MM3_COUNT(length), 2, 64, MM3_F32, 1, 16, 16, 128); /* every key is NaN */
    (void)state;
    unit_queries(&s);
    for (int i = 0; i < MM3_COUNT(length); i++) s.position[i] = length[i] - 1;
    EACH_CANDIDATE(c, MM3_OP_INDEX_SELECT)
    {
        if (!run(c, &s, 2)) continue;
        for (int i = 0; i < MM3_COUNT(length) * 2 * 16; i++) {
            int b = i % 16, n = (length[i / 32] + 127) / 128;
            if (s.selected[i] != (b < n ? b : -1))
                FAIL_CANDIDATE(c, "length %d: place %d holds %d", length[i / 32], b, s.selected[i]);
        }
    }
    setup_close(&s);
}

/* A02, C29: any order of pages, ids from 16384 on too, a row alone or in a batch: the same lists, for scores that do
 * round. */
static void test_pages_and_rows(void **state)
{
    enum { M = 19, GROUPS = 3, D = 96, TOP = 4 };
    uint64_t seed = 8;
    setup s = setup_open(M, GROUPS, D, MM3_F32, 2, 12, TOP, 128), one = s;
    int32_t *first = ints(n_out(&s)), single[GROUPS * TOP];
    static const int first_id[] = { 0, 7, 16384, 50000 };
    (void)state;
    random_fill(s.iq, M * GROUPS * D, &seed, FILL_UNIT);
    for (int i = 0; i < M; i++) {
        s.slot[i] = i > 11;
        s.position[i] = 1400 + i;
    }
    one.op.m = 1;
    one.op.selected = single;
    EACH_CANDIDATE(c, MM3_OP_INDEX_SELECT)
    {
        for (int round = 0; round < MM3_COUNT(first_id); round++) {
            pages p = pages_open(1, D, MM3_F32, 2, 12, first_id[round], (uint64_t)round);
            pages_fill(&p.kv, 0, 1536, 80, FILL_UNIT);
            pages_fill(&p.kv, 1, 1536, 81, FILL_UNIT);
            s.op.kv = one.op.kv = p.kv;
            if (run(c, &s, 2)) {
                if (round == 0) memcpy(first, s.selected, n_out(&s) * sizeof *first);
                check_list(c, "page order", s.selected, first, (int)n_out(&s));
                for (int i = 0; i < M && c->tactic->row_invariant; i++) {
                    one.op.iq = s.iq + i * GROUPS * D;
                    one.op.slot = s.slot + i;
                    one.op.position = s.position + i;
                    assert_true(run_candidate(c, &one.op, 1 + i % 3));
                    check_list(c, "row alone", single, first + i * GROUPS * TOP, GROUPS * TOP);
                }
            }
            pages_close(&p);
        }
    }
    s.op.kv = s.p.kv;
    mm3_free(first);
    setup_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),     cmocka_unit_test(test_own_block_counts),
        cmocka_unit_test(test_per_group),     cmocka_unit_test(test_negative_scores),
        cmocka_unit_test(test_block_maximum), cmocka_unit_test(test_ties_and_nan),
        cmocka_unit_test(test_fewer_blocks),  cmocka_unit_test(test_pages_and_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
