/* What the tuner decides among planted candidates (right and faster ones alone win; pins, budget, determinism), and
 * what it must leave alone. How it times: test_tune_timing.c; what it remembers: test_tune_cache.c. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "support/alloc_faults.h"
#include "support/expect.h"
#include "support/planted.h"
#include "support/temp_dir.h"
#include "support/tune_world.h"

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

static void check_unchanged(world *w, const char *names, issue_fn *issue, const char *key, const char *winner)
{
    world *before = mm3_alloc_aligned(sizeof *before);
    mm3_tune_options o = tune_options(NULL);
    mm3_tuner *t;
    assert_non_null(before);
    plant("%s", names);
    memcpy(before, w, sizeof *w);
    t = tune(w, &o, issue);
    assert_string_equal(tune_decision(t, key)->choice, winner);
    assert_int_equal(tune_decision(t, key)->how, MM3_HOW_TIMED);
    assert_memory_equal(before, w, sizeof *w);
    mm3_tuner_close(&t);
    mm3_free(before);
    mm3_plan_memory_clear();
}

/* The faster one wins, and every byte of every buffer is as before: outputs, in-out arrays, KV rows, weights. */
static void test_faster_wins(void **state)
{
    world *w = world_open(1);
    (void)state;
    check_unchanged(w, "slow fast", issue_linears_of_m, LINEAR_KEY, "fast");
    check_unchanged(w, "norm_slow norm", issue_norms, "add_rmsnorm m=4 k=64 delta=yes", "norm");
    /* put back before every replay of LAYERS launches: a few units, twice that on fresh inputs; drift would add up */
    assert_true(planted_largest_x() > 1 && planted_largest_x() < 4 * LAYERS);
    check_unchanged(w, "rope_slow rope_wrong rope", issue_ropes,
                    "qk_norm_rope m=4 heads=4 kv_heads=2 index_heads=0 index_dim=0 ld=1024 kv=f32", "rope");
    world_close(&w);
    w = world_open(2);
    check_unchanged(w, "very_slow hungry", issue_linears_of_m, LINEAR_KEY, "hungry");
    world_close(&w);
}

static void test_twins_and_reasons(void **state)
{
    world *w = world_open(1);
    mm3_tune_options o = tune_options(NULL);
    mm3_tuner *t;
    const mm3_decision *d;
    (void)state;
    plant("slow same refusing huge");
    t = tune(w, &o, issue_linears_of_m);
    d = tune_decision(t, LINEAR_KEY);
    assert_string_equal(d->choice, "slow");
    assert_int_equal(d->n_tried, 3);
    assert_int_equal(tune_tried(d, "same")->fate, MM3_FATE_TIMED);
    assert_true(fabs(tune_tried(d, "same")->ratio - 1) < 0.2 && d->us >= 300 && d->us < 3000);
    assert_int_equal(tune_tried(d, "refusing")->fate, MM3_FATE_REFUSED);
    assert_string_equal(tune_tried(d, "refusing")->why, "needs a machine that does not exist");
    assert_int_equal(tune_tried(d, "huge")->fate, MM3_FATE_FAILED);
    assert_non_null(strstr(tune_tried(d, "huge")->why, "out of memory"));
    assert_int_equal(mm3_tuner_counts(t).tuned, 1);
    assert_int_equal(mm3_tuner_counts(t).rejected, 1);
    assert_true(mm3_tuner_counts(t).timings > 0);
    mm3_tuner_close(&t);
    mm3_plan_memory_clear();

    plant("slow refusing");
    t = tune(w, &o, issue_linears_of_m);
    assert_int_equal(tune_decision(t, LINEAR_KEY)->how, MM3_HOW_ALONE);
    assert_int_equal(mm3_tuner_counts(t).timings, 0);
    mm3_tuner_close(&t);
    mm3_plan_memory_clear();
    world_close(&w);
}

/* Each of these is the fastest, and none may win. */
static void test_wrong_never_wins(void **state)
{
    static const struct {
        const char *name, *why;
    } bad[] = { { "wrong", "out[255] is" },
                { "skips_a_row", "out[192] is" },
                { "writes_outside", "it writes outside out" },
                { "changes_input", "it changes its input x_codes" },
                { "stale", "under replay on fresh inputs, out[" } };
    world *w = world_open(1);
    mm3_tune_options o = tune_options(NULL);
    (void)state;
    for (int i = 0; i < MM3_COUNT(bad); i++) {
        mm3_tuner *t;
        const mm3_decision *d;
        plant("slow %s fast", bad[i].name);
        t = tune(w, &o, issue_linears_of_m);
        d = tune_decision(t, LINEAR_KEY);
        assert_string_equal(d->choice, "fast");
        assert_int_equal(tune_tried(d, bad[i].name)->fate, MM3_FATE_WRONG);
        if (!strstr(tune_tried(d, bad[i].name)->why, bad[i].why))
            fail_msg("%s: %s", bad[i].name, tune_tried(d, bad[i].name)->why);
        mm3_tuner_close(&t);
        /* with no other challenger native stays */
        mm3_plan_memory_clear();
        plant("slow %s", bad[i].name);
        t = tune(w, &o, issue_linears_of_m);
        assert_string_equal(tune_decision(t, LINEAR_KEY)->choice, "slow");
        mm3_tuner_close(&t);
        mm3_plan_memory_clear();
    }
    world_close(&w);
}

/* ---- pins and chains --------------------------------------------------------------------------------------------- */

static void test_pins(void **state)
{
    world *w = world_open(1);
    char *dir = test_temp_dir();
    mm3_tune_options o = tune_options(dir);
    mm3_pins *pins = NULL;
    mm3_tuner *t;
    const mm3_decision *d;
    (void)state;
    assert_int_equal(mm3_pins_parse(&pins, "quantize=native", "cpu"), MM3_OK);
    plant("fused swiglu_slow");
    /* without pins the fused candidate wins over split, whose part is slow */
    t = tune(w, &o, issue_chains);
    assert_string_equal(tune_decision(t, "swiglu_quantize m=4 n=64")->choice, "fused");
    assert_int_equal(mm3_tuner_counts(t).pinned, 0);
    mm3_tuner_save(t);
    mm3_tuner_close(&t);
    /* a pinned part leaves only split, and the cached decision stands for others */
    o.pins = pins;
    t = tune(w, &o, issue_chains);
    d = tune_decision(t, "swiglu_quantize m=4 n=64");
    assert_string_equal(d->choice, "split");
    assert_int_equal(d->how, MM3_HOW_PINNED);
    assert_int_equal(tune_tried(d, "fused")->fate, MM3_FATE_DISQUALIFIED);
    assert_string_equal(tune_tried(d, "fused")->why, "its part 'quantize m=4 k=64' is pinned");
    assert_int_equal(tune_decision(t, "quantize m=4 k=64")->how, MM3_HOW_PINNED);
    assert_int_equal(mm3_tuner_counts(t).pinned, 2);
    assert_int_equal(mm3_tuner_counts(t).reused, 1); /* swiglu */
    assert_int_equal(mm3_tuner_counts(t).timings, 0);
    mm3_tuner_save(t);
    mm3_tuner_close(&t);
    o.pins = NULL;
    mm3_plan_memory_clear();
    t = tune(w, &o, issue_chains);
    assert_string_equal(tune_decision(t, "swiglu_quantize m=4 n=64")->choice, "fused");
    assert_int_equal(mm3_tuner_counts(t).timings, 0);
    mm3_tuner_close(&t);
    mm3_pins_free(&pins);
    test_temp_dir_remove(&dir);
    mm3_plan_memory_clear();
    world_close(&w);
}

/* A part that is decided otherwise makes its chain's decision old. */
static void test_chain_follows_its_parts(void **state)
{
    world *w = world_open(1);
    mm3_tune_options o = tune_options(NULL);
    mm3_tuner *t;
    (void)state;
    plant("fused swiglu_slow");
    t = tune(w, &o, issue_chains);
    mm3_tuner_save(t);
    mm3_tuner_close(&t);
    t = tune(w, &o, issue_chains);
    assert_int_equal(mm3_tuner_counts(t).reused, 3);
    mm3_tuner_close(&t);
    plant("fused"); /* swiglu is real now */
    t = tune(w, &o, issue_chains);
    assert_int_equal(mm3_tuner_counts(t).reused, 1); /* quantize */
    assert_int_equal(mm3_tuner_counts(t).tuned + mm3_tuner_counts(t).alone, 2);
    mm3_tuner_close(&t);
    mm3_plan_memory_clear();
    world_close(&w);
}

/* ---- deterministic, budget, progress ----------------------------------------------------------------------------- */

static void test_deterministic(void **state)
{
    world *w = world_open(1), *before = mm3_alloc_aligned(sizeof *before);
    mm3_tune_options o = tune_options(NULL);
    mm3_binding b;
    mm3_choice one, four;
    mm3_linear op1 = world_linear(w, 0, 1), op4 = world_linear(w, 0, M);
    mm3_tuner *t;
    const mm3_decision *d;
    (void)state;
    assert_non_null(before);
    memcpy(before, w, sizeof *w);
    o.deterministic = true;
    plant("slow large fast");
    t = tune(w, &o, issue_two_sizes);
    assert_memory_equal(before, w, sizeof *w);
    assert_int_equal(mm3_plan_count(mm3_tuner_binding(t).plan), 1);
    d = tune_decision(t, "linear n=64 k=64 w=mx act=w8a8");
    assert_string_equal(d->choice, "fast");
    assert_int_equal(tune_tried(d, "large/mixing")->fate, MM3_FATE_REFUSED); /* at m=1 */
    assert_int_equal(tune_tried(d, "large/apart")->fate, MM3_FATE_REFUSED);
    b = mm3_tuner_binding(t);
    assert_int_equal(mm3_choose_planned(&b, MM3_OP_LINEAR, &op1, &one), MM3_OK);
    assert_int_equal(mm3_choose_planned(&b, MM3_OP_LINEAR, &op4, &four), MM3_OK);
    assert_ptr_equal(one.kernel, four.kernel);
    mm3_tuner_close(&t);
    mm3_plan_memory_clear();
    plant("slow large");
    t = tune(w, &o, issue_linears_of_m);
    d = tune_decision(t, "linear n=64 k=64 w=mx act=w8a8");
    assert_string_equal(d->choice, "large/apart");
    assert_int_equal(tune_tried(d, "large/mixing")->fate, MM3_FATE_DISQUALIFIED);
    mm3_tuner_close(&t);
    mm3_plan_memory_clear();
    mm3_free(before);
    world_close(&w);
}

static void test_budget(void **state)
{
    world *w = world_open(1);
    char *dir = test_temp_dir();
    mm3_tune_options o = tune_options(dir);
    mm3_tuner *t;
    const mm3_decision *d;
    (void)state;
    plant("slow fast refusing");
    o.budget_s = 0;
    t = tune(w, &o, issue_linears_of_m);
    d = tune_decision(t, LINEAR_KEY);
    assert_string_equal(d->choice, "slow");
    assert_int_equal(d->how, MM3_HOW_UNTIMED);
    assert_int_equal(tune_tried(d, "fast")->fate, MM3_FATE_UNTIMED);
    assert_int_equal(tune_tried(d, "refusing")->fate, MM3_FATE_REFUSED);
    assert_int_equal(mm3_tuner_counts(t).untimed, 1);
    assert_int_equal(mm3_tuner_counts(t).timings, 0);
    mm3_tuner_save(t);
    mm3_tuner_close(&t);
    mm3_plan_memory_clear();
    /* the next start has a budget of its own; one of very many lists gets nothing worth mentioning of it */
    o.budget_s = 60;
    t = tune_in_share(w, &o, issue_linears_of_m, INT_MAX);
    assert_int_equal(tune_decision(t, LINEAR_KEY)->how, MM3_HOW_UNTIMED);
    assert_int_equal(mm3_tuner_counts(t).untimed, 1);
    /* what the other lists left is for it */
    tune_again(w, t, issue_linears_of_m, 1);
    assert_string_equal(tune_decision(t, LINEAR_KEY)->choice, "fast");
    assert_int_equal(mm3_tuner_counts(t).untimed, 0);
    assert_int_equal(mm3_tuner_counts(t).tuned, 1);
    mm3_tuner_close(&t);
    mm3_plan_memory_clear();
    /* what a start finds is not undone by one without */
    t = tune(w, &o, issue_linears_of_m);
    assert_string_equal(tune_decision(t, LINEAR_KEY)->choice, "fast");
    mm3_tuner_save(t);
    mm3_tuner_close(&t);
    mm3_plan_memory_clear();
    o.budget_s = 0;
    t = tune(w, &o, issue_linears_of_m);
    assert_string_equal(tune_decision(t, LINEAR_KEY)->choice, "fast");
    mm3_tuner_save(t);
    mm3_tuner_close(&t);
    test_temp_dir_remove(&dir);
    mm3_plan_memory_clear();
    world_close(&w);
}

static int n_before, n_after, cancel_at;
static bool progress(void *user, int i, int n, const char *key, const char *best)
{
    (void)user;
    assert_true(i >= 0 && i < n);
    assert_non_null(strchr(key, '='));
    n_before += !best;
    n_after += best != NULL;
    return n_before + n_after != cancel_at;
}

static void test_progress(void **state)
{
    world *w = world_open(1);
    mm3_tune_options o = tune_options(NULL);
    mm3_tuner *t = NULL;
    mm3_recorder *r = NULL;
    const mm3_stage *stages;
    int n;
    (void)state;
    plant("slow fast");
    o.progress = progress;
    n_before = n_after = cancel_at = 0;
    t = tune(w, &o, issue_chains);
    assert_int_equal(n_before, 3);
    assert_int_equal(n_after, 3);
    mm3_tuner_close(&t);
    n_before = n_after = 0;
    cancel_at = 1;
    assert_int_equal(mm3_collect_open(&r), MM3_OK);
    issue_linears_of_m(w, r);
    stages = mm3_collect_stages(r, &n);
    assert_int_equal(mm3_tuner_open(&t, w->device, &o), MM3_OK);
    assert_int_equal(mm3_tuner_stages(t, stages, n, 0), MM3_ERR_CANCELLED);
    assert_int_equal(mm3_plan_count(mm3_tuner_binding(t).plan), 0);
    mm3_tuner_close(&t);
    mm3_collect_close(&r);
    mm3_plan_memory_clear();
    world_close(&w);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Whichever allocation fails: no crash, a decision or an honest error, and the buffers as before. */
static void test_out_of_memory(void **state)
{
    world *w = world_open(1), *before = mm3_alloc_aligned(sizeof *before);
    mm3_tune_options o = tune_options(NULL);
    mm3_recorder *r = NULL;
    const mm3_stage *stages;
    int n, n_failed = 0, n_fine = 0;
    (void)state;
    assert_non_null(before);
    o.stage_s = 0.005;
    plant("slow fast norm_slow norm");
    assert_int_equal(mm3_collect_open(&r), MM3_OK);
    issue_linears(w, r, M);
    issue_norms(w, r);
    issue_ropes(w, r);
    stages = mm3_collect_stages(r, &n);
    memcpy(before, w, sizeof *w);
    for (long k = 1; k < 400; k++) {
        mm3_tuner *t = NULL;
        mm3_status st;
        assert_int_equal(mm3_tuner_open(&t, w->device, &o), MM3_OK);
        alloc_fail_at(k);
        st = mm3_tuner_stages(t, stages, n, 0);
        alloc_fail_at(0);
        if (st == MM3_OK) {
            assert_int_equal(mm3_plan_count(mm3_tuner_binding(t).plan), 3);
            assert_non_null(tune_decision(t, LINEAR_KEY)->kernel);
            n_fine++;
        } else {
            assert_int_equal(st, MM3_ERR_NOMEM);
            n_failed++;
        }
        assert_memory_equal(before, w, sizeof *w);
        mm3_tuner_close(&t);
    }
    assert_true(n_failed > 3 && n_fine > 100);
    mm3_collect_close(&r);
    mm3_free(before);
    mm3_plan_memory_clear();
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_faster_wins),
        cmocka_unit_test(test_twins_and_reasons),
        cmocka_unit_test(test_wrong_never_wins),
        cmocka_unit_test(test_pins),
        cmocka_unit_test(test_chain_follows_its_parts),
        cmocka_unit_test(test_deterministic),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
