/* How the tuner times a launch: in each state of its inputs, cold where a step is, and nothing else of the host's
 * time. */
#include "support/expect.h"
#include "support/planted.h"
#include "support/tune_world.h"

static int n_states_set[4];
static int states(void *user, const mm3_stage *stage, int i)
{
    (void)user, (void)stage;
    n_states_set[i + 1]++;
    planted_spin(1000);
    return 3;
}

/* Inputs in several states: all are timed, and in the end they are put back. What happens between launches, here 1 ms
 * each time, is in no candidate's time. Where the first launch of natives takes more than 0.5 ms, which a busy machine
 * can make of it, the middle state stands for all: then once more. */
static void test_states(void **state)
{
    world *w = world_open(1);
    mm3_tune_options o = tune_options(NULL);
    (void)state;
    plant("slow fast");
    o.states = states;
    for (int i = 0; i < 6 && n_states_set[3] < 6; i++) {
        mm3_tuner *t;
        memset(n_states_set, 0, sizeof n_states_set);
        t = tune(w, &o, issue_linears_of_m);
        assert_string_equal(tune_decision(t, LINEAR_KEY)->choice, "fast");
        assert_true(tune_decision(t, LINEAR_KEY)->us >= 100 && tune_decision(t, LINEAR_KEY)->us < 900);
        mm3_tuner_close(&t);
        mm3_plan_memory_clear();
    }
    for (int i = 0; i < 4; i++) assert_true(n_states_set[i] >= (i ? 6 : 2));
    world_close(&w);
}

/* How many times as long as in the first-level cache the weights take while a stage is tuned whose step moves
 * `step_bytes`. */
static double probe_weights(const world *w, const mm3_stage *stages, double step_bytes)
{
    mm3_tune_options o = tune_options(NULL);
    mm3_tuner *t = NULL;
    double ratio;
    assert_int_equal(mm3_tuner_open(&t, w->device, &o), MM3_OK);
    assert_int_equal(mm3_tuner_stages(t, stages, 1, step_bytes), MM3_OK);
    ratio = planted_probed();
    if (mm3_device_info_of(w->device)->n_threads == 1)
        assert_true(tune_decision(t, LINEAR_KEY)->us >= 300 && tune_decision(t, LINEAR_KEY)->us < 1000);
    mm3_tuner_close(&t);
    mm3_plan_memory_clear();
    return ratio;
}

/* Cold caches: the step is large, this stage is small. Its weights come from memory, and making that so is in no
 * candidate's time. Where a step fits into the last cache they come from there. Warm ones take 1.3 to 2.6 times as
 * long, cold ones 4 and more on an idle machine; on a busy one all vary, so that one of some pairs must show it. */
static void check_eviction(int n_threads)
{
    world *w = world_open(n_threads);
    mm3_device_info *info = (mm3_device_info *)(uintptr_t)mm3_device_info_of(w->device);
    mm3_recorder *r = NULL;
    const mm3_stage *stages;
    int n;
    bool seen = false;
    info->last_cache_bytes = 64 << 20;
    plant("probing same"); /* twins: many rounds */
    assert_int_equal(mm3_collect_open(&r), MM3_OK);
    issue_linears_of_m(w, r);
    stages = mm3_collect_stages(r, &n);
    assert_int_equal(n, 1);
    for (int i = 0; i < 4 && !seen; i++) {
        double warm = probe_weights(w, stages, 1e6), cold = probe_weights(w, stages, 1e9);
        print_message("# times as long as in the first-level cache: warm %.1f, cold %.1f\n", warm, cold);
        seen = cold > 3 && cold > 1.5 * warm;
    }
    assert_true(seen);
    mm3_collect_close(&r);
    world_close(&w);
}

static void test_eviction(void **state)
{
    (void)state;
    check_eviction(1);
    check_eviction(2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_eviction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
