/* The joint check: a step of winners that is not faster as a whole stays with natives, and the verdict is kept. */
#include <string.h>

#include "support/expect.h"
#include "support/planted.h"
#include "support/temp_dir.h"
#include "support/tune_world.h"

static mm3_status first_of_list(void *user, mm3_op_id op, const void *contract, mm3_choice *choice)
{
    const mm3_kernel *k[MM3_MAX_CANDIDATES];
    (void)user, (void)contract;
    planted_kernels_of(op, "cpu", k, MM3_MAX_CANDIDATES);
    *choice = (mm3_choice){ k[0], &k[0]->tactics[0] };
    return MM3_OK;
}

static void issue_step(world *w, mm3_recorder *r)
{
    for (int l = 0; l < LAYERS; l++) {
        mm3_quantize q = { .m = M, .k = K, .x = w->y, .codes = w->codes, .scales = w->scales };
        mm3_linear op = world_linear(w, l, M);
        assert_int_equal(mm3_issue(r, MM3_OP_QUANTIZE, &q), MM3_OK);
        assert_int_equal(mm3_issue(r, MM3_OP_LINEAR, &op), MM3_OK);
    }
}

static bool joint(world *w, mm3_tuner *t)
{
    mm3_recorder *collected = NULL, *winners = NULL, *natives = NULL;
    mm3_binding b = mm3_tuner_binding(t);
    const mm3_stage *stages;
    bool better = false;
    int n;
    assert_int_equal(mm3_collect_open(&collected), MM3_OK);
    issue_step(w, collected);
    stages = mm3_collect_stages(collected, &n);
    assert_int_equal(mm3_record_open(&winners, w->device, mm3_choose_planned, &b), MM3_OK);
    assert_int_equal(mm3_record_open(&natives, w->device, first_of_list, NULL), MM3_OK);
    issue_step(w, winners);
    issue_step(w, natives);
    assert_int_equal(
        mm3_tuner_joint(t, "m=4", stages, n, mm3_record_graph(winners), mm3_record_graph(natives), NULL, NULL, &better),
        MM3_OK);
    mm3_record_close(&winners);
    mm3_record_close(&natives);
    mm3_collect_close(&collected);
    return better;
}

static void test_joint(void **state)
{
    world *w = world_open(1);
    char *dir = test_temp_dir(), *text;
    mm3_tune_options o = tune_options(dir);
    mm3_tuner *t;
    (void)state;
    /* faster alone, slower in company: natives */
    plant("slow alone_fast quantizer");
    t = tune(w, &o, issue_step);
    assert_string_equal(tune_decision(t, LINEAR_KEY)->choice, "alone_fast");
    assert_false(joint(w, t));
    assert_int_equal(mm3_tuner_counts(t).steps_timed, 1);
    assert_int_equal(mm3_plan_print(mm3_tuner_binding(t).plan, &text), MM3_OK);
    assert_non_null(strstr(text, "step m=4 | natives | 1."));
    mm3_free(text);
    assert_false(joint(w, t));
    assert_int_equal(mm3_tuner_counts(t).steps_reused, 1);
    mm3_tuner_save(t);
    mm3_tuner_close(&t);
    mm3_plan_memory_clear();
    t = tune(w, &o, issue_step);
    assert_false(joint(w, t));
    assert_int_equal(mm3_tuner_counts(t).steps_reused, 1);
    assert_int_equal(mm3_tuner_counts(t).timings, 0);
    mm3_tuner_close(&t);
    /* faster in company too; the verdict on other decisions does not count */
    plant("slow fast quantizer");
    t = tune(w, &o, issue_step);
    assert_true(joint(w, t));
    assert_int_equal(mm3_tuner_counts(t).steps_timed, 1);
    assert_int_equal(mm3_plan_print(mm3_tuner_binding(t).plan, &text), MM3_OK);
    assert_non_null(strstr(text, "step m=4 | winners | 0."));
    mm3_free(text);
    mm3_tuner_close(&t);
    /* nothing differs: nothing to time */
    plant("slow quantizer");
    t = tune(w, &o, issue_step);
    assert_false(joint(w, t));
    assert_int_equal(mm3_tuner_counts(t).timings, 0);
    mm3_tuner_close(&t);
    test_temp_dir_remove(&dir);
    mm3_plan_memory_clear();
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
