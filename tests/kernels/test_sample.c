/* sample: every candidate against the reference, the rules one by one on crafted distributions, and statistics. */
#include "kernel_test.h"

static const mm3_sample_row plain = {
    .temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f, .counts_row = -1
};

typedef struct setup {
    mm3_sample op;
    float *logits, *logprob;
    mm3_sample_row *row;
    int32_t *counts, *slot, *position, *token;
} setup;

static setup setup_open(int m, int n_vocab, int n_token)
{
    setup s = { 0 };
    s.logits = floats((size_t)m * (size_t)n_vocab);
    s.logprob = floats((size_t)m);
    s.row = mm3_calloc((size_t)m, sizeof *s.row);
    assert_non_null(s.row);
    s.counts = ints((size_t)m * (size_t)n_vocab);
    s.slot = ints((size_t)m);
    s.position = ints((size_t)m);
    s.token = ints((size_t)m);
    for (int i = 0; i < m; i++) s.row[i] = plain;
    s.op = (mm3_sample){ .m = m,
                         .n_vocab = n_vocab,
                         .n_token = n_token,
                         .logits = s.logits,
                         .row = s.row,
                         .counts = s.counts,
                         .slot = s.slot,
                         .position = s.position,
                         .token = s.token,
                         .logprob = s.logprob };
    return s;
}

static void setup_close(setup *s)
{
    mm3_free(s->logits);
    mm3_free(s->logprob);
    mm3_free(s->row);
    mm3_free(s->counts);
    mm3_free(s->slot);
    mm3_free(s->position);
    mm3_free(s->token);
}

static bool run(const candidate *c, setup *s, int n_threads)
{
    memset(s->token, 0x7B, (size_t)s->op.m * sizeof *s->token);
    memset(s->logprob, 0x7B, (size_t)s->op.m * sizeof *s->logprob);
    return run_candidate(c, &s->op, n_threads);
}

static void check_reference(setup *s, const char *what)
{
    setup want = setup_open(s->op.m, 1, 1);
    double *magnitude = mm3_calloc((size_t)s->op.m, sizeof *magnitude);
    mm3_sample op = s->op;
    assert_non_null(magnitude);
    op.token = want.token;
    op.logprob = want.logprob;
    mm3_op_info_of(MM3_OP_SAMPLE)->reference(&op, magnitude);
    EACH_CANDIDATE(c, MM3_OP_SAMPLE)
    {
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            if (!run(c, s, n_threads)) break;
            for (int i = 0; i < s->op.m; i++)
                if (s->token[i] != want.token[i])
                    FAIL_CANDIDATE(c, "%s: row %d takes %d, expected %d", what, i, s->token[i], want.token[i]);
            check_close(c, what, s->logprob, want.logprob, magnitude, (size_t)s->op.m, 1e-6);
        }
    }
    mm3_free(magnitude);
    setup_close(&want);
}

static void test_reference(void **state)
{
    static const int vocab[][2] = { { 1, 1 }, { 5, 2 }, { 17, 17 }, { 1000, 997 }, { 4096, 4000 } };
    static const float choice[] = { 0.0f, 0.1f, 0.5f, 0.9f, 0.95f, 1.0f };
    uint64_t seed = 1;
    (void)state;
    for (int k = 0; k < MM3_COUNT(vocab); k++)
        for (int round = 0; round < 6; round++) {
            int m = 40, n = vocab[k][0];
            setup s = setup_open(m, n, vocab[k][1]);
            for (int i = 0; i < m * n; i++) {
                s.logits[i] = (round & 1 ? 20.0f : 3.0f) * random_unit(&seed);
                if (round == 2) s.logits[i] = rintf(s.logits[i]); /* ties */
                if (round == 4 && random_below(&seed, 9) == 0) s.logits[i] = -INFINITY;
                s.counts[i] = random_below(&seed, 4)
                                  ? 0
                                  : random_below(&seed, 3) | (random_below(&seed, 2) ? MM3_COUNT_IN_PROMPT : 0);
            }
            for (int i = 0; i < m; i++) {
                mm3_sample_row *r = &s.row[i];
                r->temperature = 2.0f * choice[random_below(&seed, 6)];
                r->top_k = random_below(&seed, 2) ? random_below(&seed, 2 * n) : 0;
                r->top_p = choice[random_below(&seed, 6)];
                r->min_p = random_below(&seed, 2) ? choice[random_below(&seed, 6)] * 0.3f : 0.0f;
                r->seed = random_next(&seed);
                r->counts_row = random_below(&seed, 2) ? i : -1;
                r->repetition_penalty = 1.3f;
                r->presence_penalty = 0.4f;
                r->frequency_penalty = 0.2f;
                s.position[i] = random_below(&seed, 1000000);
                s.slot[i] = random_below(&seed, 8) - 1;
            }
            check_reference(&s, "reference");
            s.op.counts = NULL; /* no counts: no penalties, whatever the rows say */
            check_reference(&s, "without counts");
            setup_close(&s);
        }
}

/* Draw n times with seeds 0.. from one row of logits; hits[id] counts. */
static void draw(const candidate *c, setup *s, const float *logits, const mm3_sample_row *row, int n, int *hits)
{
    memset(hits, 0, (size_t)s->op.n_vocab * sizeof *hits);
    for (int done = 0; done < n; done += s->op.m) {
        for (int i = 0; i < s->op.m; i++) {
            memcpy(s->logits + (size_t)i * (size_t)s->op.n_vocab, logits, (size_t)s->op.n_vocab * sizeof *logits);
            s->row[i] = *row;
            s->row[i].seed = (uint64_t)(done + i);
        }
        assert_true(run(c, s, 2));
        for (int i = 0; i < s->op.m; i++) {
            if (s->token[i] < 0 || s->token[i] >= s->op.n_token) FAIL_CANDIDATE(c, "token %d", s->token[i]);
            hits[s->token[i]]++;
        }
    }
}

/* 20000 seeds, then 20000 positions of one seed: frequencies are those of the softmax at temperature 0.7 (chi-square
 * with 11 degrees of freedom: 40 has a probability of 4e-5, and the seeds are fixed). */
static void test_frequencies(void **state)
{
    enum { V = 12, N = 20000, M = 500 };
    static const float logits[V] = { 0, 1, 2, 3, -1, 0.5f, 2.5f, 1.5f, 0.1f, -0.7f, 3.3f, 2.2f };
    (void)state;
    EACH_CANDIDATE(c, MM3_OP_SAMPLE)
    {
        setup s = setup_open(M, V, V);
        mm3_sample_row row = plain;
        int hits[V];
        double p[V], sum = 0;
        if (!run(c, &s, 1)) { /* refuses here */
            setup_close(&s);
            continue;
        }
        row.temperature = 0.7f;
        for (int i = 0; i < V; i++) sum += p[i] = exp((double)logits[i] / 0.7);
        for (int round = 0; round < 2; round++) {
            double chi = 0;
            if (round == 0) {
                draw(c, &s, logits, &row, N, hits);
            } else {
                memset(hits, 0, sizeof hits);
                for (int done = 0; done < N; done += M) {
                    for (int i = 0; i < M; i++) {
                        s.row[i].seed = 77;
                        s.position[i] = done + i;
                    }
                    run(c, &s, 2);
                    for (int i = 0; i < M; i++) hits[s.token[i]]++;
                }
            }
            for (int i = 0; i < V; i++) chi += pow(hits[i] - N * p[i] / sum, 2) / (N * p[i] / sum);
            if (chi > 40) FAIL_CANDIDATE(c, "round %d: chi-square %g", round, chi);
        }
        setup_close(&s);
    }
}

/* Probabilities 0.4, 0.3, 0.15, 0.1, 0.05 at scattered ids: exactly the tokens that a filter leaves are ever drawn, and
 * with their renormalized frequencies. */
static void test_filters(void **state)
{
    enum { V = 9, N = 4000 };
    static const int id[] = { 6, 2, 7, 0, 4 };
    static const double p[] = { 0.4, 0.3, 0.15, 0.1, 0.05 };
    static const struct {
        int top_k;
        float top_p, min_p;
        int n_left;
    } cases[] = {
        { 0, 1.0f, 0.0f, 5 },  { 3, 1.0f, 0.0f, 3 },  { 1, 1.0f, 0.0f, 1 },  { 50, 1.0f, 0.0f, 5 },
        { 0, 0.69f, 0.0f, 2 }, { 0, 0.71f, 0.0f, 3 }, { 0, 0.3f, 0.0f, 1 },  { 0, 0.0f, 0.0f, 1 },
        { 0, 0.96f, 0.0f, 5 }, { 0, 1.1f, 0.0f, 5 },  { 0, 1.0f, 0.2f, 4 },  { 0, 1.0f, 0.3f, 3 },
        { 0, 1.0f, 1.0f, 1 },  { 0, 1.0f, 2.0f, 1 },  { 2, 0.58f, 0.0f, 2 }, /* 0.4 of 0.7 left is 0.571 */
        { 2, 0.56f, 0.0f, 1 }, { 4, 0.9f, 0.4f, 2 },  { -1, 1.0f, 0.0f, 5 },
    };
    (void)state;
    EACH_CANDIDATE(c, MM3_OP_SAMPLE)
    {
        setup s = setup_open(400, V, V);
        float logits[V];
        int hits[V];
        if (!run(c, &s, 1)) { /* refuses here */
            setup_close(&s);
            continue;
        }
        for (int i = 0; i < V; i++) logits[i] = -1000.0f;
        for (int i = 0; i < 5; i++) logits[id[i]] = 5.0f + (float)log(p[i]);
        for (int k = 0; k < MM3_COUNT(cases); k++) {
            mm3_sample_row row = plain;
            double left = 0;
            row.top_k = cases[k].top_k;
            row.top_p = cases[k].top_p;
            row.min_p = cases[k].min_p;
            draw(c, &s, logits, &row, N, hits);
            for (int i = 0; i < cases[k].n_left; i++) left += p[i];
            for (int i = 0; i < 5; i++) {
                double want = i < cases[k].n_left ? N * p[i] / left : 0;
                if (fabs(hits[id[i]] - want) > 5 * sqrt(want))
                    FAIL_CANDIDATE(c, "case %d: choice %d drawn %d times, expected %g", k, i, hits[id[i]], want);
            }
        }
        setup_close(&s);
    }
}

/* Ties at a filter's edge: the lower ids stay. Greedy ties: the lowest id. */
static void test_ties(void **state)
{
    enum { V = 20 };
    (void)state;
    EACH_CANDIDATE(c, MM3_OP_SAMPLE)
    {
        setup s = setup_open(100, V, V);
        float logits[V];
        int hits[V];
        mm3_sample_row row = plain;
        if (!run(c, &s, 1)) { /* refuses here */
            setup_close(&s);
            continue;
        }
        for (int i = 0; i < V; i++) logits[i] = i == 11 ? 1.0f : i % 3 ? 0.5f : i % 2 ? 0.0f : -0.0f;
        row.top_k = 4;
        draw(c, &s, logits, &row, 2000, hits);
        for (int i = 0; i < V; i++)
            if ((hits[i] > 0) != (i == 11 || i == 1 || i == 2 || i == 4))
                FAIL_CANDIDATE(c, "top-k: id %d drawn %d times", i, hits[i]);
        for (int i = 0; i < V; i++) logits[i] = i & 1 ? -0.0f : 0.0f;
        row.top_k = 0;
        row.top_p = 0.24f; /* five of twenty */
        draw(c, &s, logits, &row, 2000, hits);
        for (int i = 0; i < V; i++)
            if ((hits[i] > 0) != (i < 5)) FAIL_CANDIDATE(c, "top-p: id %d drawn %d times", i, hits[i]);
        row.temperature = 0.0f;
        draw(c, &s, logits, &row, 100, hits);
        if (hits[0] != 100) FAIL_CANDIDATE(c, "greedy does not take the lowest id");
        setup_close(&s);
    }
}

/* Each penalty alone changes the greedy choice, in its own way. */
static void test_penalties(void **state)
{
    enum { V = 6 };
    static const float base[V] = { 2.0f, 1.9f, 1.0f, -1.0f, -3.0f, -3.0f };
    (void)state;
    EACH_CANDIDATE(c, MM3_OP_SAMPLE)
    {
        setup s = setup_open(1, V, V);
        mm3_sample_row *row = s.row;
        if (!run(c, &s, 1)) { /* refuses here */
            setup_close(&s);
            continue;
        }
        memcpy(s.logits, base, sizeof base);
        *row = plain;
        row->temperature = 0;
        row->counts_row = 0;
        s.counts[0] = 2;
        s.counts[1] = MM3_COUNT_IN_PROMPT;
        run(c, &s, 1);
        if (s.token[0] != 0) FAIL_CANDIDATE(c, "no penalty: %d", s.token[0]);
        row->repetition_penalty = 2.0f; /* 1.0, 0.95, 1.0 */
        run(c, &s, 1);
        if (s.token[0] != 0) FAIL_CANDIDATE(c, "repetition: %d", s.token[0]);
        row->repetition_penalty = 2.1f; /* both seen ones fall below id 2, prompt or generated */
        run(c, &s, 1);
        if (s.token[0] != 2) FAIL_CANDIDATE(c, "repetition: %d", s.token[0]);
        row->repetition_penalty = 1.0f;
        row->presence_penalty = 0.2f; /* generated only: 1.8, 1.9 */
        run(c, &s, 1);
        if (s.token[0] != 1) FAIL_CANDIDATE(c, "presence: %d", s.token[0]);
        row->presence_penalty = 0.0f;
        row->frequency_penalty = 0.06f; /* twice: 1.88, 1.9 */
        run(c, &s, 1);
        if (s.token[0] != 1) FAIL_CANDIDATE(c, "frequency: %d", s.token[0]);
        row->frequency_penalty = 0.04f; /* twice: 1.92; once would not matter either */
        run(c, &s, 1);
        if (s.token[0] != 0) FAIL_CANDIDATE(c, "frequency: %d", s.token[0]);
        row->frequency_penalty = -1.0f; /* a bonus */
        s.counts[3] = 4;
        run(c, &s, 1);
        if (s.token[0] != 0) FAIL_CANDIDATE(c, "negative frequency: %d", s.token[0]);
        s.counts[3] = 6;
        run(c, &s, 1);
        if (s.token[0] != 3) FAIL_CANDIDATE(c, "negative frequency: %d", s.token[0]);
        row->frequency_penalty = 0.0f;
        for (int i = 0; i < V; i++) s.counts[i] = i == 3 ? MM3_COUNT_IN_PROMPT | 1 : 0;
        for (int i = 0; i < 3; i++) s.logits[i] = -INFINITY;
        row->repetition_penalty = 2.9f; /* negative logits are multiplied: -2.9 is still above -3 */
        run(c, &s, 1);
        if (s.token[0] != 3) FAIL_CANDIDATE(c, "negative logit: %d", s.token[0]);
        row->repetition_penalty = 3.1f;
        run(c, &s, 1);
        if (s.token[0] != 4) FAIL_CANDIDATE(c, "negative logit: %d", s.token[0]);
        row->counts_row = -1;
        run(c, &s, 1);
        if (s.token[0] != 3) FAIL_CANDIDATE(c, "counts_row -1 is penalized");
        /* log-probabilities are those of the raw logits */
        if (fabs((double)s.logprob[0] + log(1 + 2 * exp(-2.0))) > 1e-6)
            FAIL_CANDIDATE(c, "logprob %g", (double)s.logprob[0]);
        setup_close(&s);
    }
}

/* D18: ids without text are never chosen, though their logits are the largest, or NaN, at any temperature. Padded rows:
 * token -1, logprob 0. A NaN among the logits of real ids: token -1, logprob NaN, and its neighbours are unharmed. */
static void test_masks(void **state)
{
    enum { V = 70, N = 67, M = 9 };
    setup s = setup_open(M, V, N);
    (void)state;
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < V; j++) s.logits[i * V + j] = j >= N ? (i & 1 ? 1000.0f : NAN) : (float)(j == 12);
        s.row[i].temperature = (float)(i % 3);
        if (i == 5) s.row[i].top_k = 3;
        s.row[i].seed = (uint64_t)i;
    }
    s.slot[4] = -1;
    s.logits[4 * V] = NAN;
    s.logits[7 * V + 66] = NAN;
    s.logits[8 * V + 12] = INFINITY;
    EACH_CANDIDATE(c, MM3_OP_SAMPLE)
    {
        if (!run(c, &s, 2)) continue;
        for (int i = 0; i < M; i++) {
            if (i == 4   ? s.token[i] != -1 || s.logprob[i] != 0.0f
                : i == 7 ? s.token[i] != -1 || !isnan(s.logprob[i])
                         : false)
                FAIL_CANDIDATE(c, "row %d: token %d, logprob %g", i, s.token[i], (double)s.logprob[i]);
            if (i == 4 || i == 7) continue;
            if (s.token[i] < 0 || s.token[i] >= N) FAIL_CANDIDATE(c, "row %d takes %d", i, s.token[i]);
            if (i % 3 == 0 && s.token[i] != 12) FAIL_CANDIDATE(c, "greedy row %d takes %d", i, s.token[i]);
        }
        if (s.token[8] != 12 || s.logprob[8] != 0.0f)
            FAIL_CANDIDATE(c, "infinity does not win: %d, %g", s.token[8], (double)s.logprob[8]);
    }
    setup_close(&s);
}

/* E13: extreme settings give a token of the vocabulary and never a crash; as the reference does. */
static void test_extremes(void **state)
{
    static const float temperature[] = { 1e-45f, 1e-30f, 1e-4f, 1e30f, INFINITY, NAN, -1.0f, 2.0f };
    static const float top_p[] = { -1.0f, 0.0f, 1e-20f, 0.99999994f, 1.1f, NAN };
    static const int top_k[] = { -5, 0, 1, INT32_MAX };
    enum { V = 50 };
    uint64_t seed = 3;
    setup s = setup_open(8 * 6 * 4, V, V);
    int n = 0;
    (void)state;
    for (int t = 0; t < 8; t++)
        for (int p = 0; p < 6; p++)
            for (int k = 0; k < 4; k++, n++) {
                s.row[n].temperature = temperature[t];
                s.row[n].top_p = top_p[p];
                s.row[n].top_k = top_k[k];
                s.row[n].seed = (uint64_t)n;
            }
    for (int kind = 0; kind < 4; kind++) {
        for (int i = 0; i < n * V; i++)
            s.logits[i] = kind == 0   ? 50.0f * random_unit(&seed)
                          : kind == 1 ? -INFINITY
                          : kind == 2 ? (random_below(&seed, 10) ? 3e38f : INFINITY)
                                      : 3e38f * random_unit(&seed);
        check_reference(&s, "extremes");
    }
    setup_close(&s);
}

/* The draw is a function of seed, position and logits: not of the row, the batch or the run; other seeds and other
 * positions give other draws. */
static void test_determinism(void **state)
{
    enum { V = 5000, M = 64 };
    setup s = setup_open(M, V, V), one = setup_open(1, V, V);
    uint64_t seed = 9;
    int32_t first[M];
    float logprob[M];
    (void)state;
    random_fill(s.logits, V, &seed, FILL_UNIT);
    for (int i = 1; i < M; i++) memcpy(s.logits + i * V, s.logits, V * sizeof(float));
    memcpy(one.logits, s.logits, V * sizeof(float));
    for (int i = 0; i < M; i++) {
        s.row[i].seed = (uint64_t)(i / 2);
        s.position[i] = i % 4;
    }
    EACH_CANDIDATE(c, MM3_OP_SAMPLE)
    {
        int n_same = 0;
        if (!run(c, &s, 2)) continue;
        memcpy(first, s.token, sizeof first);
        memcpy(logprob, s.logprob, sizeof logprob);
        for (int i = 0; i < M; i++) {
            one.row[0] = s.row[i];
            one.position[0] = s.position[i];
            run(c, &one, 1);
            if (one.token[0] != first[i] || (c->tactic->row_invariant && one.logprob[0] != logprob[i]))
                FAIL_CANDIDATE(c, "row %d draws %d alone, %d in a batch", i, one.token[0], first[i]);
            for (int j = 0; j < i; j++) n_same += first[i] == first[j];
        }
        if (n_same > 12) FAIL_CANDIDATE(c, "%d pairs of draws are equal", n_same); /* 2016 pairs, about 0.4 expected */
    }
    setup_close(&s);
    setup_close(&one);
}

/* The model's vocabulary, all ways of sampling, against the reference. */
static void test_large_vocabulary(void **state)
{
    enum { V = 200064, N = 200061, M = 8 };
    setup s = setup_open(M, V, N);
    uint64_t seed = 11;
    (void)state;
    for (int i = 0; i < M * V; i++) s.logits[i] = 4.0f * (random_unit(&seed) + random_unit(&seed) + random_unit(&seed));
    for (int i = 0; i < M; i++) {
        s.row[i].seed = (uint64_t)i;
        s.row[i].temperature = i == 0 ? 0.0f : 1.0f;
        s.row[i].top_k = i == 2 || i == 3 ? 40 : 0;
        s.row[i].top_p = i == 3 || i == 4 ? 0.95f : 1.0f;
        s.row[i].min_p = i == 5 ? 0.1f : 0.0f;
        if (i > 5) s.row[i].temperature = 5.0f;
        if (i == 7) s.row[i].top_p = 0.999f;
    }
    check_reference(&s, "200064");
    setup_close(&s);
}

/* Both ends of the uniform behind the draw stay inside (0, 1), so that no Gumbel variable is infinite. */
static void test_uniform_ends(void **state)
{
    (void)state;
    assert_true(mm3_uniform(0) > 0 && mm3_uniform(UINT64_MAX) < 1);
    assert_true(-log(-log(mm3_uniform(0))) > -3.7 && -log(-log(mm3_uniform(UINT64_MAX))) < 36.8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),        cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_filters),          cmocka_unit_test(test_ties),
        cmocka_unit_test(test_penalties),        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_extremes),         cmocka_unit_test(test_determinism),
        cmocka_unit_test(test_large_vocabulary), cmocka_unit_test(test_uniform_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
