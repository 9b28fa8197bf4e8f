/* What the tuner remembers: in the process and in cache files, whole, damaged, of others, written by several at once;
 * and plans that must hold as they are. */
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/expect.h"
#include "support/planted.h"
#include "support/temp_dir.h"
#include "support/tune_world.h"

/* ---- reuse ------------------------------------------------------------------------------------------------------- */

static void test_memory_and_cache(void **state)
{
    world *w = world_open(1);
    char *dir = test_temp_dir();
    mm3_tune_options o = tune_options(dir);
    mm3_tuner *t;
    (void)state;
    plant("slow fast refusing");
    t = tune(w, &o, issue_linears_of_m);
    assert_string_equal(mm3_tuner_warnings(t), "");
    mm3_tuner_save(t);
    mm3_tuner_close(&t);
    /* memory, without a cache */
    o.cache_dir = NULL;
    t = tune(w, &o, issue_linears_of_m);
    assert_int_equal(mm3_tuner_counts(t).reused, 1);
    assert_int_equal(mm3_tuner_counts(t).timings, 0);
    mm3_tuner_close(&t);
    /* the cache, without memory */
    mm3_plan_memory_clear();
    t = tune(w, &o, issue_linears_of_m);
    assert_int_equal(mm3_tuner_counts(t).tuned, 1);
    mm3_tuner_close(&t);
    o.cache_dir = dir;
    t = tune(w, &o, issue_linears_of_m);
    assert_int_equal(mm3_tuner_counts(t).reused, 1);
    assert_int_equal(mm3_tuner_counts(t).timings, 0);
    assert_string_equal(tune_decision(t, LINEAR_KEY)->choice, "fast");
    assert_ptr_equal(tune_decision(t, LINEAR_KEY)->kernel, planted("fast"));
    mm3_tuner_close(&t);
    /* force */
    o.force = true;
    t = tune(w, &o, issue_linears_of_m);
    assert_int_equal(mm3_tuner_counts(t).tuned, 1);
    mm3_tuner_close(&t);
    o.force = false;
    /* another set of candidates, another workload: tuned again */
    plant("slow fast refusing same");
    t = tune(w, &o, issue_linears_of_m);
    assert_int_equal(mm3_tuner_counts(t).tuned, 1);
    mm3_tuner_close(&t);
    plant("slow fast refusing");
    o.workload = "another";
    t = tune(w, &o, issue_linears_of_m);
    assert_int_equal(mm3_tuner_counts(t).tuned, 1);
    mm3_tuner_close(&t);
    test_temp_dir_remove(&dir);
    mm3_plan_memory_clear();
    world_close(&w);
}

/* A line of another source is ignored, alone, with one warning; so is a candidate that is gone. */
static void test_stale_lines(void **state)
{
    world *w = world_open(1);
    char *dir = test_temp_dir(), *path, *text;
    mm3_tune_options o = tune_options(dir);
    mm3_tuner *t;
    size_t n;
    (void)state;
    plant("slow fast");
    t = tune(w, &o, issue_linears_of_m);
    path = mm3_plan_cache_path(dir, mm3_plan_head_of(mm3_tuner_binding(t).plan));
    mm3_tuner_save(t);
    mm3_tuner_close(&t);
    assert_int_equal(mm3_read_all(path, 1 << 20, &text, &n), MM3_OK);
    memcpy(strstr(text, "| src 00000000") + 6, "deadbeef", 8);
    test_write_text("", path + 1, text);
    mm3_plan_memory_clear();
    t = tune(w, &o, issue_linears_of_m);
    assert_int_equal(mm3_tuner_counts(t).tuned, 1);
    assert_non_null(strstr(mm3_tuner_warnings(t), "stale, ignored: linear m=4"));
    mm3_tuner_close(&t);
    mm3_free(text);
    mm3_free(path);
    test_temp_dir_remove(&dir);
    mm3_plan_memory_clear();
    world_close(&w);
}

/* ---- under trouble ----------------------------------------------------------------------------------------------- */

static void test_damaged_caches(void **state)
{
    world *w = world_open(1);
    char *dir = test_temp_dir(), *path = tune_cache_file(w, dir), *good;
    char policy[24];
    const char *const head[] = { "| cpu ", "threads 1", policy, "a test" }; /* each field that counts */
    mm3_tune_options o = tune_options(dir);
    mm3_tuner *t;
    size_t n;
    (void)state;
    snprintf(policy, sizeof policy, "policy %d", MM3_TUNE_POLICY);
    plant("slow fast");
    t = tune(w, &o, issue_linears_of_m);
    mm3_tuner_save(t);
    mm3_tuner_close(&t);
    assert_int_equal(mm3_read_all(path, 1 << 20, &good, &n), MM3_OK);
    for (int i = 0; i < 5 + MM3_COUNT(head); i++) {
        char *text = mm3_strdup(good);
        size_t n_text = n;
        const char *warning = "is not used";
        mm3_plan_memory_clear();
        if (i == 0) memset(text, 0xA5, n_text);           /* garbage */
        if (i == 1) n_text = 0;                           /* empty */
        if (i == 2) n_text = 20;                          /* cut in the head */
        if (i == 3) n_text = n - 30, warning = "cut off"; /* cut in a line */
        if (i == 4) strstr(text, "mm3 plan 1")[9] = '7';  /* of the future */
        if (i >= 5) {                                     /* of another machine, another policy, another workload */
            char *field = strstr(text, head[i - 5]);
            field[strlen(head[i - 5]) - 1] = '9';
        }
        test_write_file("", path + 1, text, n_text);
        t = tune(w, &o, issue_linears_of_m);
        assert_int_equal(mm3_tuner_counts(t).tuned, 1);
        assert_string_equal(tune_decision(t, LINEAR_KEY)->choice, "fast");
        if (!strstr(mm3_tuner_warnings(t), warning)) fail_msg("%d: %s", i, mm3_tuner_warnings(t));
        mm3_tuner_save(t);
        mm3_tuner_close(&t);
        mm3_plan_memory_clear();
        t = tune(w, &o, issue_linears_of_m); /* and is whole again */
        assert_int_equal(mm3_tuner_counts(t).reused, 1);
        assert_string_equal(mm3_tuner_warnings(t), "");
        mm3_tuner_close(&t);
        mm3_free(text);
    }
    /* a folder where the file should be */
    unlink(path);
    assert_int_equal(mkdir(path, 0777), 0);
    mm3_plan_memory_clear();
    t = tune(w, &o, issue_linears_of_m);
    assert_string_equal(tune_decision(t, LINEAR_KEY)->choice, "fast");
    mm3_tuner_save(t);
    assert_non_null(strstr(mm3_tuner_warnings(t), "decisions are not kept"));
    mm3_tuner_close(&t);
    mm3_free(good);
    mm3_free(path);
    test_temp_dir_remove(&dir);
    mm3_plan_memory_clear();
    world_close(&w);
}

/* A folder that can't be made, and one that can't be written (root writes anywhere, so a file stands in for it). */
static void test_no_folder(void **state)
{
    world *w = world_open(1);
    char *dir = test_temp_dir(), *bad, *deep;
    mm3_tune_options o;
    mm3_tuner *t;
    (void)state;
    test_write_text(dir, "file", "x");
    bad = mm3_path_join(dir, "file");
    deep = mm3_path_join(dir, "a/b");
    plant("slow fast");
    o = tune_options(bad);
    t = tune(w, &o, issue_linears_of_m);
    assert_string_equal(tune_decision(t, LINEAR_KEY)->choice, "fast");
    mm3_tuner_save(t);
    assert_non_null(strstr(mm3_tuner_warnings(t), "no journal"));
    assert_non_null(strstr(mm3_tuner_warnings(t), "decisions are not kept"));
    mm3_tuner_close(&t);
    mm3_plan_memory_clear();
    o = tune_options(deep); /* made, with its parent */
    t = tune(w, &o, issue_linears_of_m);
    mm3_tuner_save(t);
    assert_string_equal(mm3_tuner_warnings(t), "");
    mm3_tuner_close(&t);
    assert_int_equal(test_count_files(deep, ".plan"), 2); /* and its lock */
    if (geteuid() != 0) {
        mm3_plan_memory_clear();
        assert_int_equal(chmod(deep, 0555), 0);
        t = tune(w, &o, issue_linears_of_m);
        assert_int_equal(mm3_tuner_counts(t).reused, 1);
        mm3_tuner_close(&t);
        assert_int_equal(chmod(deep, 0755), 0);
    }
    mm3_free(bad);
    mm3_free(deep);
    test_temp_dir_remove(&dir);
    mm3_plan_memory_clear();
    world_close(&w);
}

/* No room: what was there stays, whole, and nothing is left behind. */
static void test_full_disk(void **state)
{
    world *w = world_open(1);
    char *dir = test_temp_dir(), *path = tune_cache_file(w, dir), *before, *after;
    mm3_tune_options o = tune_options(dir);
    struct rlimit all, little;
    mm3_tuner *t;
    size_t n, n_after_full;
    (void)state;
    plant("slow fast");
    t = tune(w, &o, issue_linears_of_m);
    mm3_tuner_save(t);
    mm3_tuner_close(&t);
    assert_int_equal(mm3_read_all(path, 1 << 20, &before, &n), MM3_OK);
    mm3_plan_memory_clear();
    t = tune(w, &o, issue_two_sizes);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &all), 0);
    little = all;
    little.rlim_cur = 100;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    mm3_tuner_save(t);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &all), 0);
    assert_non_null(strstr(mm3_tuner_warnings(t), "decisions are not kept: cannot write"));
    mm3_tuner_close(&t);
    assert_int_equal(mm3_read_all(path, 1 << 20, &after, &n_after_full), MM3_OK);
    assert_int_equal(n, n_after_full);
    assert_string_equal(before, after);
    assert_int_equal(test_count_files(dir, ".plan"), 2); /* file and lock */
    mm3_free(before);
    mm3_free(after);
    mm3_free(path);
    test_temp_dir_remove(&dir);
    mm3_plan_memory_clear();
    world_close(&w);
}

/* Keep EACH decisions, one at a time, from the first-th row count on; the process ends with this. */
static void write_decisions(world *w, const mm3_tune_options *o, int first, int n)
{
    for (int k = 0; k < n; k++) {
        mm3_linear op = world_linear(w, 0, first + k);
        void *contract = &op;
        char key[MM3_MAX_KEY_TEXT];
        mm3_stage stage = { .op = MM3_OP_LINEAR, .key = key, .n = 1, .max = 1, .contract = &contract };
        mm3_tuner *t = NULL;
        mm3_plan_key(MM3_OP_LINEAR, &op, false, key, sizeof key);
        if (mm3_tuner_open(&t, w->device, o) != MM3_OK || mm3_tuner_stages(t, &stage, 1, 0) != MM3_OK) _exit(1);
        mm3_tuner_save(t);
        if (*mm3_tuner_warnings(t)) _exit(2);
        mm3_tuner_close(&t);
        mm3_plan_memory_clear();
    }
    _exit(0);
}

/* Writers at once, some of them killed in the middle of it: a reader sees a whole file at any time, and in the end
 * every decision of each that lived is there. */
static void test_writers(void **state)
{
    enum { WRITERS = 4, VICTIMS = 4, EACH = 25, MANY = 1000 };
    world *w = world_open(1);
    char *dir = test_temp_dir(), *path = tune_cache_file(w, dir);
    mm3_plan *plan = NULL;
    mm3_buf warnings = { 0 };
    mm3_tune_options o = tune_options(dir);
    pid_t child[WRITERS + VICTIMS];
    int status, n_read = 0, n_left = WRITERS;
    (void)state;
    plant("slow"); /* alone: nothing to time */
    for (int i = 0; i < WRITERS + VICTIMS; i++) {
        child[i] = fork();
        assert_true(child[i] >= 0);
        if (child[i]) continue;
        if (i < WRITERS) write_decisions(w, &o, 1 + i * EACH, EACH);
        write_decisions(w, &o, 1 + WRITERS * EACH + (i - WRITERS) * MANY, MANY);
    }
    while (n_left) {
        pid_t ended = waitpid(-1, &status, WNOHANG);
        for (int i = 0; ended > 0 && i < WRITERS; i++) {
            if (child[i] != ended) continue;
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
            n_left--;
        }
        if (!mm3_path_exists(path)) continue;
        EXPECT_OK(mm3_plan_load(&plan, path, &warnings));
        assert_int_equal(warnings.n, 0);
        mm3_plan_close(&plan);
        if (++n_read % 4 == 0 && n_read / 4 <= VICTIMS) kill(child[WRITERS + n_read / 4 - 1], SIGKILL);
    }
    for (int i = 0; i < VICTIMS; i++) kill(child[WRITERS + i], SIGKILL); /* where all was over before */
    while (waitpid(-1, &status, 0) > 0) continue;
    assert_int_equal(mm3_plan_load(&plan, path, &warnings), MM3_OK);
    assert_int_equal(warnings.n, 0);
    for (int m = 1; m <= WRITERS * EACH; m++) {
        char key[MM3_MAX_KEY_TEXT];
        mm3_linear op = world_linear(w, 0, m);
        mm3_plan_key(MM3_OP_LINEAR, &op, false, key, sizeof key);
        if (!mm3_plan_find(plan, key)) fail_msg("%s is not there", key);
    }
    mm3_plan_close(&plan);
    mm3_free(path);
    test_temp_dir_remove(&dir);
    mm3_plan_memory_clear();
    world_close(&w);
}

/* ---- a plan that must hold --------------------------------------------------------------------------------------- */

static void test_strict(void **state)
{
    world *w = world_open(1);
    char *dir = test_temp_dir(), *path = mm3_path_join(dir, "mine.plan"), *text;
    const mm3_device_info *info = mm3_device_info_of(w->device);
    mm3_tune_options o = tune_options(NULL);
    mm3_recorder *r = NULL;
    const mm3_stage *stages;
    mm3_plan *plan = NULL;
    mm3_binding b = { .device = info, .kernels_of = planted_kernels_of };
    mm3_tuner *t;
    size_t n_text;
    int n;
    (void)state;
    plant("slow fast");
    t = tune(w, &o, issue_linears_of_m);
    assert_int_equal(mm3_plan_save(mm3_tuner_binding(t).plan, path), MM3_OK);
    mm3_tuner_close(&t);
    assert_int_equal(mm3_plan_load_strict(&plan, path, info, "a test", planted_kernels_of), MM3_OK);
    b.plan = plan;
    assert_int_equal(mm3_collect_open(&r), MM3_OK);
    issue_linears(w, r, M);
    stages = mm3_collect_stages(r, &n);
    assert_int_equal(mm3_plan_require(&b, stages, n), MM3_OK);
    issue_linears(w, r, 2);
    stages = mm3_collect_stages(r, &n);
    assert_int_equal(mm3_plan_require(&b, stages, n), MM3_ERR_UNSUPPORTED);
    assert_non_null(strstr(mm3_last_error(), "linear m=2 n=64"));
    mm3_collect_close(&r);
    mm3_plan_close(&plan);

    assert_int_equal(mm3_plan_load_strict(&plan, path, info, "another", planted_kernels_of), MM3_ERR_UNSUPPORTED);
    plant("slow same");
    assert_int_equal(mm3_plan_load_strict(&plan, path, info, "a test", planted_kernels_of), MM3_ERR_UNSUPPORTED);
    assert_non_null(strstr(mm3_last_error(), LINEAR_KEY));
    plant("slow fast");
    assert_int_equal(mm3_read_all(path, 1 << 20, &text, &n_text), MM3_OK);
    memcpy(strstr(text, "linear m=4"), "linear x 4", 10);
    test_write_text(dir, "mine.plan", text);
    assert_int_equal(mm3_plan_load_strict(&plan, path, info, "a test", planted_kernels_of), MM3_ERR_FORMAT);
    assert_non_null(strstr(mm3_last_error(), "line 2"));
    assert_int_equal(mm3_plan_load_strict(&plan, "/nowhere.plan", info, "a test", planted_kernels_of), MM3_ERR_IO);
    assert_null(plan);
    mm3_free(text);
    mm3_free(path);
    test_temp_dir_remove(&dir);
    mm3_plan_memory_clear();
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_and_cache), cmocka_unit_test(test_stale_lines),
        cmocka_unit_test(test_damaged_caches),   cmocka_unit_test(test_no_folder),
        cmocka_unit_test(test_full_disk),        cmocka_unit_test(test_writers),
        cmocka_unit_test(test_strict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
