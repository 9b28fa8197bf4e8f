/* How a sequence is cut into steps must not matter: chunks of any size, token by token, beside other sequences, with
 * padding, over scattered pages. Natives are row-invariant, so the results are equal bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/net.h"

enum { MAX_N = 700, MAX_ROWS = 700, N_SLOTS = 4, MAX_PAGES = 6 };
static const char *const dirs[] = { "models/tiny-m3", "tests/golden/rand-m3-a" };

static void make_tokens(int32_t *t, int n, int vocab, unsigned seed)
{
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        t[i] = (int32_t)((seed >> 8) % (unsigned)vocab);
    }
}

/* Logits of all n positions of one prefill, and the block selections of all layers, regrouped by row. */
typedef struct run {
    float *logits; /* [n, vocab] */
    mm3_buf selected;
} run;

static void run_in_chunks(net *t, int slot, const int32_t *tokens, int n, int chunk, run *out)
{
    size_t vocab = (size_t)t->model->config.vocab_size;
    const float *logits = mm3_forward_step(t->forward)->logits;
    out->logits = mm3_calloc((size_t)n * vocab, sizeof(float));
    assert_non_null(out->logits);
    for (int at = 0; at < n; at += chunk) {
        int m = MM3_MIN(chunk, n - at);
        assert_int_equal(net_run(t, slot, tokens + at, at, m), MM3_OK);
        memcpy(out->logits + (size_t)at * vocab, logits, (size_t)m * vocab * sizeof(float));
    }
}

/* Selections arrive [step][layer][row]; compare two runs of different steps by (layer, row). */
static void index_selections(const net *t, const mm3_buf *b, int n, int chunk, const int32_t **of)
{
    const mm3_config *c = &t->model->config;
    int per_row = c->n_kv_heads * c->topk_blocks, n_sparse = 0;
    const int32_t *at = (const int32_t *)(const void *)b->data;
    for (int i = 0; i < c->n_layers; i++) n_sparse += c->layer_is_sparse[i];
    assert_int_equal(b->n, (size_t)n * (size_t)per_row * (size_t)n_sparse * 4);
    for (int first = 0; first < n; first += chunk)
        for (int l = 0; l < n_sparse; l++)
            for (int i = first; i < MM3_MIN(first + chunk, n); i++, at += per_row) of[l * n + i] = at;
}

static void check_chunks(const char *dir, mm3_numerics numerics)
{
    static const int chunk[] = { 1, 7, 64, 127, 128, 129, 333 };
    net t;
    int32_t tokens[MAX_N];
    run whole, cut;
    const int32_t **a, **b;
    int n_lists, per_row;
    assert_int_equal(net_open(&t, dir, numerics, MAX_ROWS, N_SLOTS, MAX_PAGES, NULL), MM3_OK);
    make_tokens(tokens, MAX_N, t.model->config.vocab_size, 1);
    n_lists = t.model->config.n_layers * MAX_N;
    per_row = t.model->config.n_kv_heads * t.model->config.topk_blocks;
    a = mm3_calloc((size_t)n_lists, sizeof *a);
    b = mm3_calloc((size_t)n_lists, sizeof *b);
    t.watch.keep_selected = true;
    run_in_chunks(&t, 0, tokens, MAX_N, MAX_N, &whole);
    whole.selected = t.watch.selected;
    memset(&t.watch.selected, 0, sizeof t.watch.selected);
    index_selections(&t, &whole.selected, MAX_N, MAX_N, a);
    for (int i = 0; i < MM3_COUNT(chunk); i++) {
        net_lay_pages(&t, i % 2 ? 5 : 1);
        run_in_chunks(&t, i % N_SLOTS, tokens, MAX_N, chunk[i], &cut);
        assert_memory_equal(cut.logits, whole.logits,
                            (size_t)MAX_N * (size_t)t.model->config.vocab_size * sizeof(float));
        index_selections(&t, &t.watch.selected, MAX_N, chunk[i], b);
        for (int j = 0; j < n_lists; j++) {
            if (!a[j]) continue;
            assert_memory_equal(b[j], a[j], (size_t)per_row * 4);
        }
        mm3_buf_clear(&t.watch.selected);
        mm3_free(cut.logits);
    }
    mm3_free(whole.logits);
    mm3_buf_free(&whole.selected);
    mm3_free(a);
    mm3_free(b);
    net_close(&t);
}

static void test_chunks(void **state)
{
    (void)state;
    for (int i = 0; i < MM3_COUNT(dirs); i++) {
        check_chunks(dirs[i], MM3_NUMERICS_W8A16);
        check_chunks(dirs[i], MM3_NUMERICS_W8A8);
    }
}

/* Four sequences of different lengths, their rows shuffled in one step with padding between; then decoded together. */
static void check_batch(const char *dir, mm3_numerics numerics)
{
    static const int length[N_SLOTS] = { 5, 300, 129, 128 };
    enum { N_DECODE = 4 };
    net t;
    int32_t tokens[N_SLOTS][MAX_N];
    run alone[N_SLOTS];
    mm3_step_block *b;
    mm3_step_shape shape = { 0 };
    int row_of[N_SLOTS][MAX_N], next[N_SLOTS] = { 0 }, left = 0, m = 0;
    size_t vocab;
    unsigned char *before;
    assert_int_equal(net_open(&t, dir, numerics, MAX_ROWS, N_SLOTS, MAX_PAGES, NULL), MM3_OK);
    vocab = (size_t)t.model->config.vocab_size;
    for (int s = 0; s < N_SLOTS; s++) {
        make_tokens(tokens[s], length[s] + N_DECODE, (int)vocab, 10u + (unsigned)s);
        run_in_chunks(&t, s, tokens[s], length[s] + N_DECODE, MAX_ROWS, &alone[s]);
        left += length[s];
    }
    net_lay_pages(&t, 7);
    b = mm3_forward_step(t.forward);
    for (unsigned r = 5; left > 0; r = r * 1664525u + 1013904223u) {
        int s = (int)(r >> 20) % (N_SLOTS + 1);
        if (s == N_SLOTS || next[s] == length[s]) {
            if (m % 9 != 0 || m + left + 1 > MAX_ROWS) continue;
            b->slot[m] = -1; /* padding: its token and position must not matter */
            b->token[m] = 1 << 30;
            b->position[m++] = 1 << 30;
            continue;
        }
        row_of[s][next[s]] = m;
        b->slot[m] = s;
        b->token[m] = tokens[s][next[s]];
        b->position[m++] = next[s]++;
        left--;
    }
    shape = (mm3_step_shape){ .m = m, .n_logits = m, .context = 300 };
    assert_int_equal(mm3_forward_issue(t.forward, &t.watch.base, &shape), MM3_OK);
    for (int s = 0; s < N_SLOTS; s++)
        for (int i = 0; i < length[s]; i++)
            assert_memory_equal(b->logits + (size_t)row_of[s][i] * vocab, alone[s].logits + (size_t)i * vocab,
                                vocab * 4);

    /* decode steps: 4 real rows and 2 padded ones, sampled greedily */
    for (int i = 0; i < N_DECODE; i++) {
        static const int slot_of_row[6] = { 2, -1, 0, 3, -1, 1 };
        for (int r = 0; r < 6; r++) {
            int s = slot_of_row[r];
            b->slot[r] = s;
            b->token[r] = s < 0 ? -7 : tokens[s][length[s] + i];
            b->position[r] = s < 0 ? -7 : length[s] + i;
            b->sample[r] = (mm3_sample_row){ .top_p = 1, .repetition_penalty = 1, .counts_row = -1 };
        }
        shape = (mm3_step_shape){ .m = 6, .n_logits = 6, .sample = true, .context = 310 };
        assert_int_equal(mm3_forward_issue(t.forward, &t.watch.base, &shape), MM3_OK);
        for (int r = 0; r < 6; r++) {
            int s = slot_of_row[r];
            const float *want = s < 0 ? NULL : alone[s].logits + (size_t)(length[s] + i) * vocab;
            if (s < 0) {
                assert_int_equal(b->next[r], -1);
                continue;
            }
            assert_memory_equal(b->logits + (size_t)r * vocab, want, vocab * 4);
            for (size_t j = 0; j < vocab; j++) assert_true(want[j] <= want[b->next[r]]);
        }
    }

    /* a step of padding alone leaves every KV byte as it was */
    before = mm3_malloc(mm3_forward_kv_bytes(t.forward));
    net_lay_pages(&t, 1);
    memcpy(before, net_kv_pool(&t), mm3_forward_kv_bytes(t.forward));
    for (int r = 0; r < 6; r++) {
        b->slot[r] = -1;
        b->token[r] = 3;
        b->position[r] = r;
    }
    assert_int_equal(mm3_forward_issue(t.forward, &t.watch.base, &shape), MM3_OK);
    assert_memory_equal(net_kv_pool(&t), before, mm3_forward_kv_bytes(t.forward));
    mm3_free(before);
    for (int s = 0; s < N_SLOTS; s++) mm3_free(alone[s].logits);
    net_close(&t);
}

static void test_batch(void **state)
{
    (void)state;
    for (int i = 0; i < MM3_COUNT(dirs); i++) {
        check_batch(dirs[i], MM3_NUMERICS_W8A16);
        check_batch(dirs[i], MM3_NUMERICS_W8A8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_chunks), cmocka_unit_test(test_batch) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
