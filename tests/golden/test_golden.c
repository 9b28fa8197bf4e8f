/* The whole network against the outputs of Hugging Face's implementation (tests/golden/README.md).
 * Tolerances are those of docs/numerics.md, section "Whole runs". */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/net.h"

enum { CHUNK = 256, MAX_PAGES = 34, LAST = 8 };

typedef struct golden {
    mm3_arena arena;
    mm3_file *file;
    mm3_tensor *tensor;
    int n;
} golden;

static void golden_open(golden *g, const char *path)
{
    memset(g, 0, sizeof *g);
    assert_int_equal(mm3_file_open(&g->file, path), MM3_OK);
    assert_int_equal(mm3_safetensors_parse(&g->tensor, &g->n, &g->arena, g->file->data, g->file->n_bytes, path),
                     MM3_OK);
}

static void golden_close(golden *g)
{
    mm3_arena_free(&g->arena);
    mm3_file_close(&g->file);
}

static const void *find(const golden *g, const char *name, const char *part, int *n)
{
    char full[128];
    snprintf(full, sizeof full, "%s.%s", name, part);
    for (int i = 0; i < g->n; i++)
        if (strcmp(g->tensor[i].name, full) == 0) {
            *n = (int)(g->tensor[i].n_bytes / 4);
            return g->tensor[i].data;
        }
    fail_msg("no golden %s", full); /* does not return */
    return NULL;
}

/* What one case came to. */
typedef struct outcome {
    double logits, worst_hidden, nll, golden_nll;
    int n, n_greedy, n_wrong;
} outcome;

static int argmax(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* Prefill in chunks with all logits, then decode the golden tokens one by one (teacher forcing: a wrong choice at a
 * near-tie must not spoil what follows). */
static outcome run_case(net *t, const golden *g, const char *name, int n_token, double min_margin)
{
    outcome r = { 0 };
    int n = 0, n_logits = 0, n_hidden = 0, n_nll = 0, n_greedy = 0, vocab = t->model->config.vocab_size, kept = 0;
    const int32_t *ids = find(g, name, "ids", &n), *greedy = find(g, name, "greedy", &n_greedy);
    const float *logits = find(g, name, "logits", &n_logits), *hidden = find(g, name, "hidden", &n_hidden);
    const float *margin = find(g, name, "margin", &n_greedy), *nll = find(g, name, "nll", &n_nll);
    int last = n_logits / vocab, h = t->model->config.hidden_size;
    float *got = mm3_calloc((size_t)n_logits, sizeof *got);
    const float *all = mm3_forward_step(t->forward)->logits;
    int next;

    r.n = n;
    assert_int_equal(n_hidden, (t->model->config.n_layers + 1) * h);
    for (int at = 0; at < n; at += CHUNK) {
        int m = MM3_MIN(CHUNK, n - at);
        t->watch.hidden_row = at + m == n ? m - 1 : -1;
        assert_int_equal(net_run(t, 0, ids + at, at, m), MM3_OK);
        for (int i = 0; i < m; i++) {
            if (at + i >= n - last)
                memcpy(got + (size_t)vocab * (size_t)kept++, all + (size_t)vocab * (size_t)i, (size_t)vocab * 4);
            if (at + i + 1 < n) r.nll += net_nll(all + (size_t)vocab * (size_t)i, vocab, ids[at + i + 1]);
        }
    }
    t->watch.hidden_row = -1;
    if (n > 1) r.nll /= n - 1;
    r.golden_nll = nll[0];
    r.logits = net_error(got, logits, (size_t)n_logits);
    for (int l = 0; l * h < n_hidden; l++) {
        double e = net_error(t->watch.hidden + l * h, hidden + l * h, (size_t)h);
        r.worst_hidden = MM3_MAX(r.worst_hidden, e);
    }
    next = argmax(got + (size_t)vocab * (size_t)(last - 1), n_token);
    for (int i = 0; i < n_greedy; i++) {
        if (margin[i] > min_margin) {
            r.n_greedy++;
            r.n_wrong += next != greedy[i];
        }
        if (i + 1 == n_greedy) break;
        assert_int_equal(net_run(t, 0, &greedy[i], n + i, 1), MM3_OK);
        next = argmax(all, n_token);
    }
    mm3_free(got);
    print_message("# %-14s n %4d logits %.2e hidden %.2e nll %.5f (golden %.5f) greedy %d of %d\n", name, n, r.logits,
                  r.worst_hidden, r.nll, r.golden_nll, r.n_greedy - r.n_wrong, r.n_greedy);
    return r;
}

typedef struct suite {
    const char *dir, *path, *pins;
    mm3_numerics numerics;
    int n_token;
    const char *const *cases;
    int n_cases;
} suite;

static const char *const tiny_cases[] = { "one_token", "genesis", "psalm",   "chat_disabled", "chat_enabled",
                                          "tool_call", "len_512", "len_513", "long_1500",     "long_4000" };
static const char *const rand_cases[] = { "r1", "r31", "r257", "r385", "r1111", "r3000" };

static void check_w8a16(const suite *s)
{
    golden g;
    net t;
    golden_open(&g, s->path);
    assert_int_equal(net_open(&t, s->dir, MM3_NUMERICS_W8A16, CHUNK, 1, MAX_PAGES, s->pins), MM3_OK);
    for (int i = 0; i < s->n_cases; i++) {
        outcome r = run_case(&t, &g, s->cases[i], s->n_token, 1e-3);
        double bound = r.n <= 3000 ? 3e-5 : 1e-4;
        assert_true(r.logits < bound);
        assert_true(r.worst_hidden < bound);
        assert_true(fabs(r.nll - r.golden_nll) < 1e-4);
        assert_true(r.n_greedy > 0);
        assert_int_equal(r.n_wrong, 0);
    }
    net_close(&t);
    golden_close(&g);
}

/* Whole runs in w8a8 differ between correct implementations (docs/numerics.md): at step 5 of
 * long_1500, margin 1.06, even a float64 evaluation of the same rules chooses another token than
 * the reference. Natives happen to choose alike. */
static void check_w8a8(const suite *s)
{
    golden g;
    net t;
    golden_open(&g, s->path);
    assert_int_equal(net_open(&t, s->dir, MM3_NUMERICS_W8A8, CHUNK, 1, MAX_PAGES, s->pins), MM3_OK);
    for (int i = 0; i < s->n_cases; i++) {
        outcome r = run_case(&t, &g, s->cases[i], s->n_token, 1.0);
        double bound = strcmp(s->cases[i], "one_token") == 0 ? 1e-4 : strcmp(s->cases[i], "genesis") == 0 ? 5e-2 : 0.3;
        assert_true(r.logits < bound);
        assert_true(fabs(r.nll - r.golden_nll) <= 0.01 + 0.02 * r.golden_nll);
        assert_int_equal(r.n_wrong, 0);
    }
    net_close(&t);
    golden_close(&g);
}

static void test_tiny_w8a16(void **state)
{
    (void)state;
    check_w8a16(&(suite){ .dir = "models/tiny-m3",
                          .path = "tests/golden/tiny-m3.safetensors",
                          .n_token = 4093,
                          .cases = tiny_cases,
                          .n_cases = MM3_COUNT(tiny_cases) });
}

static void test_rand_w8a16(void **state)
{
    (void)state;
    check_w8a16(&(suite){ .dir = "tests/golden/rand-m3-a",
                          .path = "tests/golden/rand-m3-a.safetensors",
                          .n_token = 1000,
                          .cases = rand_cases,
                          .n_cases = MM3_COUNT(rand_cases) });
}

static void test_tiny_w8a8(void **state)
{
    (void)state;
    check_w8a8(&(suite){ .dir = "models/tiny-m3",
                         .path = "tests/golden/tiny-m3.w8a8.safetensors",
                         .n_token = 4093,
                         .cases = tiny_cases,
                         .n_cases = MM3_COUNT(tiny_cases) });
}

static void test_rand_w8a8(void **state)
{
    (void)state;
    check_w8a8(&(suite){ .dir = "tests/golden/rand-m3-a",
                         .path = "tests/golden/rand-m3-a.w8a8.safetensors",
                         .n_token = 1000,
                         .cases = rand_cases,
                         .n_cases = MM3_COUNT(rand_cases) });
}

/* Keys, values and index keys rounded to BF16, by 2^-9 at most. A wrong type anywhere
 * on the way gives errors near 1. */
static void test_kv_bf16(void **state)
{
    static const struct {
        const char *dir, *path, *name;
    } cases[] = { { "models/tiny-m3", "tests/golden/tiny-m3.safetensors", "len_513" },
                  { "tests/golden/rand-m3-a", "tests/golden/rand-m3-a.safetensors", "r385" } };
    (void)state;
    for (int i = 0; i < MM3_COUNT(cases); i++) {
        golden g;
        net t;
        outcome r;
        golden_open(&g, cases[i].path);
        assert_int_equal(net_open(&t, cases[i].dir, MM3_NUMERICS_W8A16, CHUNK, 1, MAX_PAGES, NULL), MM3_OK);
        mm3_forward_close(&t.forward);
        t.options.kv_type = MM3_BF16;
        assert_int_equal(mm3_forward_open(&t.forward, t.model, &t.options), MM3_OK);
        net_lay_pages(&t, 1);
        r = run_case(&t, &g, cases[i].name, t.model->config.vocab_size, INFINITY);
        assert_true(r.logits < 2e-2);
        assert_true(r.worst_hidden < 2e-2);
        assert_true(fabs(r.nll - r.golden_nll) <= 0.01);
        net_close(&t);
        golden_close(&g);
    }
}

/* ---- with each vector candidate forced --------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A candidate may round rows to BF16 in w8a16 (operand=bf16): hence wider bounds than natives'. Greedy choices beyond
 * the 768 tokens that tiny-m3 was trained on are compared at a margin of 2: see check_w8a8. */
static void check_forced(const char *candidate, mm3_numerics numerics)
{
    bool w8a8 = numerics == MM3_NUMERICS_W8A8;
    double errors[MM3_COUNT(tiny_cases)];
    int n_run = 0;
    golden g;
    net t;
    golden_open(&g, w8a8 ? "tests/golden/tiny-m3.w8a8.safetensors" : "tests/golden/tiny-m3.safetensors");
    assert_int_equal(net_open(&t, "models/tiny-m3", numerics, CHUNK, 1, MAX_PAGES, NULL), MM3_OK);
    assert_int_equal(net_force(&t, candidate), MM3_OK);
    for (int i = 0; i < MM3_COUNT(tiny_cases); i++) {
        int n;
        bool trained = find(&g, tiny_cases[i], "ids", &n) && n <= 768;
        double bound = !w8a8                                     ? 0.1
                       : strcmp(tiny_cases[i], "one_token") == 0 ? 1e-4
                       : strcmp(tiny_cases[i], "genesis") == 0   ? 5e-2
                                                                 : 0.3;
        outcome r;
        if (!trained && w8a8 && !getenv("MM3_TEST_LONG")) continue; /* a minute more: make test-long */
        if (i > 0 && t.n_forced == 0) break;                        /* this processor does not have it */
        r = run_case(&t, &g, tiny_cases[i], 4093, !w8a8 ? 1.0 : trained ? 1.0 : 2.0);
        errors[n_run++] = r.logits;
        assert_true(r.logits < bound);
        assert_true(fabs(r.nll - r.golden_nll) <= 0.01 + (w8a8 ? 0.02 : 0.01) * r.golden_nll);
        assert_int_equal(r.n_wrong, 0);
    }
    qsort(errors, (size_t)n_run, sizeof *errors, by_value);
    if (!w8a8) assert_true(errors[n_run / 2] < 1e-2);
    print_message("# %s ran %ld stages\n", candidate, t.n_forced);
    net_close(&t);
    golden_close(&g);
}

/* Every name that a candidate of the registry has, natives aside; those that this processor lacks run nothing. */
static void test_forced(void **state)
{
    const char *names[32];
    int n_names = 0;
    (void)state;
    for (int op = 0; op < MM3_N_OPS; op++) {
        const mm3_kernel *k[MM3_MAX_CANDIDATES];
        int n = mm3_kernels_of((mm3_op_id)op, "cpu", k, MM3_MAX_CANDIDATES);
        for (int i = 1; i < n; i++) {
            bool known = false;
            for (int j = 0; j < n_names; j++) known |= strcmp(names[j], k[i]->name) == 0;
            if (!known) names[n_names++] = k[i]->name;
        }
    }
    for (int i = 0; i < n_names; i++) {
        print_message("# forced: %s\n", names[i]);
        check_forced(names[i], MM3_NUMERICS_W8A16);
        check_forced(names[i], MM3_NUMERICS_W8A8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny_w8a16), cmocka_unit_test(test_rand_w8a16), cmocka_unit_test(test_tiny_w8a8),
        cmocka_unit_test(test_rand_w8a8),  cmocka_unit_test(test_kv_bf16),    cmocka_unit_test(test_forced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
