/* The tuner on a real step of a real network: every byte that the step uses is as before, whatever the candidates, and
 * the step that it binds computes what the natives' step computes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/net.h"
#include "tune/tune.h"

enum { M = 4, CONTEXT = 200, CHUNK = 64 };

static uint64_t hash_bytes(uint64_t h, const unsigned char *p, size_t n)
{
    uint64_t x;
    for (; n >= 8; n -= 8, p += 8) {
        memcpy(&x, p, 8);
        h = (h ^ x) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
    }
    for (; n; n--) h = (h ^ *p++) * 0xD6E8FEB86659FD93u;
    return h;
}

/* All arrays of all stages, and the experts' weights that no operand lists. */
static uint64_t hash_stages(const mm3_stage *stages, int n)
{
    uint64_t h = 1;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < stages[i].n; j++) {
            mm3_operand o[MM3_MAX_OPERANDS];
            int n_o = mm3_op_info_of(stages[i].op)->operands(stages[i].contract[j], o);
            for (int k = 0; k < n_o; k++) h = hash_bytes(h, *o[k].at, o[k].n_bytes);
        }
    return h;
}

static void warm_up(net *n, const int32_t *tokens)
{
    mm3_step_block *b = mm3_forward_step(n->forward);
    for (int s = 0; s < M; s++)
        for (int at = 0; at < CONTEXT; at += CHUNK)
            assert_int_equal(net_run(n, s, tokens + at + s, at, MM3_MIN(CHUNK, CONTEXT - at)), MM3_OK);
    for (int i = 0; i < M; i++) {
        b->token[i] = tokens[i];
        b->slot[i] = i == 2 ? -1 : i; /* one row is padding */
        b->position[i] = CONTEXT;
        b->sample[i] = (mm3_sample_row){ .top_p = 1, .repetition_penalty = 1, .counts_row = -1 };
    }
}

static void check(mm3_numerics numerics, bool deterministic)
{
    net n;
    int32_t tokens[CONTEXT + M];
    mm3_step_shape shape = { .m = M, .n_logits = M, .sample = true, .context = CONTEXT + 1 };
    mm3_recorder *r = NULL, *winners = NULL;
    mm3_tune_options o = MM3_TUNE_OPTIONS_INIT;
    mm3_tuner *t = NULL;
    mm3_binding b;
    const mm3_stage *stages;
    float *logits;
    int32_t next[M];
    uint64_t before;
    size_t n_logits;
    void *scratch;
    int n_stages;
    for (int i = 0; i < CONTEXT + M; i++) tokens[i] = (i * 37 + 5) % 251;
    assert_int_equal(net_open(&n, "models/tiny-m3", numerics, CHUNK, M, 2, NULL), MM3_OK);
    warm_up(&n, tokens);
    assert_int_equal(mm3_forward_issue(n.forward, &n.watch.base, &shape), MM3_OK);
    n_logits = (size_t)M * (size_t)n.model->config.vocab_size;
    logits = mm3_malloc(n_logits * sizeof *logits);
    assert_non_null(logits);
    memcpy(logits, mm3_forward_step(n.forward)->logits, n_logits * sizeof *logits);
    memcpy(next, mm3_forward_step(n.forward)->next, sizeof next);

    assert_int_equal(mm3_collect_open(&r), MM3_OK);
    assert_int_equal(mm3_forward_issue(n.forward, r, &shape), MM3_OK);
    stages = mm3_collect_stages(r, &n_stages);
    before = hash_stages(stages, n_stages);
    o.stage_s = 0.02;
    o.deterministic = deterministic;
    assert_int_equal(mm3_tuner_open(&t, n.device, &o), MM3_OK);
    assert_int_equal(mm3_tuner_stages(t, stages, n_stages, 0), MM3_OK);
    assert_true(hash_stages(stages, n_stages) == before);
    assert_string_equal(mm3_tuner_warnings(t), "");
    for (int i = 0; i < mm3_plan_count(mm3_tuner_binding(t).plan); i++) {
        const mm3_decision *d = mm3_plan_at(mm3_tuner_binding(t).plan, i);
        assert_true(d->how == MM3_HOW_TIMED || d->how == MM3_HOW_ALONE);
        for (int k = 0; k < d->n_tried; k++) {
            if (d->tried[k].fate != MM3_FATE_WRONG && d->tried[k].fate != MM3_FATE_FAILED) continue;
            fail_msg("%s | %s: %s", d->key, d->tried[k].choice, d->tried[k].why);
        }
        if (deterministic) assert_null(strstr(d->key, " m="));
        if (deterministic) assert_true(d->tactic->row_invariant);
    }

    b = mm3_tuner_binding(t);
    assert_int_equal(mm3_plan_require(&b, stages, n_stages), MM3_OK);
    assert_int_equal(mm3_record_open(&winners, n.device, mm3_choose_planned, &b), MM3_OK);
    assert_int_equal(mm3_forward_issue(n.forward, winners, &shape), MM3_OK);
    scratch = mm3_alloc_aligned(mm3_record_scratch(winners));
    assert_non_null(scratch);
    mm3_record_set_scratch(winners, scratch);
    memset(mm3_forward_step(n.forward)->logits, 0xFF, n_logits * sizeof *logits);
    mm3_graph_replay(mm3_record_graph(winners));
    /* w8a8: a last bit may flip the rounding of an element to E4M3, a step of 1/8 (docs/numerics.md) */
    assert_true(net_error(mm3_forward_step(n.forward)->logits, logits, n_logits) <
                (numerics == MM3_NUMERICS_W8A16 ? 2e-2 : 0.3));
    assert_int_equal(mm3_forward_step(n.forward)->next[2], -1);
    if (numerics == MM3_NUMERICS_W8A16) assert_memory_equal(mm3_forward_step(n.forward)->next, next, sizeof next);
    mm3_record_close(&winners);
    mm3_collect_close(&r);
    mm3_tuner_close(&t);
    mm3_free(scratch);
    mm3_free(logits);
    net_close(&n);
}

static void test_w8a8(void **state)
{
    (void)state;
    check(MM3_NUMERICS_W8A8, false);
}

static void test_w8a16(void **state)
{
    (void)state;
    check(MM3_NUMERICS_W8A16, false);
}

static void test_deterministic(void **state)
{
    (void)state;
    check(MM3_NUMERICS_W8A8, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_w8a8), cmocka_unit_test(test_w8a16),
                                        cmocka_unit_test(test_deterministic) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
