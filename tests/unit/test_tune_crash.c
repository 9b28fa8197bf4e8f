/* Candidates that take the process with them, at once or by a hang: the journal has them out of the next one's race. */
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/expect.h"
#include "support/planted.h"
#include "support/temp_dir.h"
#include "support/tune_world.h"

static bool journal_has(const char *dir, const char *what)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    bool found = false;
    while (d && (e = readdir(d)) && !found) {
        char *text;
        if (!strstr(e->d_name, ".journal.")) continue;
        text = test_read_file(dir, e->d_name, NULL);
        found = strstr(text, what) != NULL;
        free(text);
    }
    if (d) closedir(d);
    return found;
}

static void check_death(const char *killer, bool by_hand)
{
    world *w = world_open(1);
    char *dir = test_temp_dir();
    mm3_tune_options o = tune_options(dir);
    mm3_tuner *t;
    const mm3_decision *d;
    int status;
    pid_t child;
    plant("slow %s fast", killer);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        mm3_tuner *mine = tune(w, &o, issue_linears_of_m);
        mm3_tuner_close(&mine);
        _exit(0);
    }
    if (by_hand) {
        char expected[128];
        snprintf(expected, sizeof expected, "%s | %s | src 00000000\n", LINEAR_KEY, killer);
        for (int i = 0; i < 2000 && !journal_has(dir, expected); i++) usleep(5000);
        assert_true(journal_has(dir, expected));
        /* a tuner that starts meanwhile leaves the living one's journal alone */
        assert_int_equal(mm3_tuner_open(&t, w->device, &o), MM3_OK);
        assert_string_equal(mm3_tuner_warnings(t), "");
        mm3_tuner_close(&t);
        assert_true(journal_has(dir, expected));
        kill(child, SIGKILL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(test_count_files(dir, ".journal."), 1);

    t = tune(w, &o, issue_linears_of_m); /* would not come back if it were tried */
    d = tune_decision(t, LINEAR_KEY);
    assert_string_equal(d->choice, "fast");
    assert_int_equal(tune_tried(d, killer)->fate, MM3_FATE_FAILED);
    assert_string_equal(tune_tried(d, killer)->why, "crashed in an earlier run");
    assert_non_null(strstr(mm3_tuner_warnings(t), killer));
    assert_non_null(strstr(mm3_tuner_warnings(t), LINEAR_KEY));
    mm3_tuner_close(&t); /* not saved: it was kept at once */
    mm3_plan_memory_clear();
    t = tune(w, &o, issue_two_sizes); /* and for other keys of the operation */
    assert_string_equal(tune_tried(tune_decision(t, LINEAR_KEY), killer)->why, "crashed in an earlier run");
    assert_string_equal(tune_tried(tune_decision(t, "linear m=1 n=64 k=64 w=mx act=w8a8"), killer)->why,
                        "crashed in an earlier run");
    assert_string_equal(mm3_tuner_warnings(t), "");
    assert_int_equal(test_count_files(dir, ".journal."), 1); /* ours */
    mm3_tuner_close(&t);
    assert_int_equal(test_count_files(dir, ".journal."), 0);
    test_temp_dir_remove(&dir);
    mm3_plan_memory_clear();
    world_close(&w);
}

static void test_crash(void **state)
{
    (void)state;
    check_death("kills", false);
}

static void test_hang(void **state)
{
    (void)state;
    check_death("hangs", true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crash),
        cmocka_unit_test(test_hang),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
