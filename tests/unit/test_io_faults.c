/* Files that can't be opened, read, mapped or written, in every place where mm3 does so: the checkpoint, texts, plans,
 * the plan cache, the journal. One error that names the file and the reason; within tuning a warning, and the run goes
 * on. What was in a file before is there afterwards, and no temporary file stays. Reads and writes in pieces, with
 * interruptions, change nothing. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/model.h"
#include "support/alloc_faults.h"
#include "support/checkpoint.h"
#include "support/expect.h"
#include "support/io_faults.h"
#include "support/plan_cache.h"
#include "support/temp_dir.h"
#include "tune/tune.h"

static char *dir; /* the checkpoint */

/* Something with files, which leaves none open. */
typedef mm3_status scene(void *user);

static int count_fds(void) { return test_count_files("/proc/self/fd", ""); }

/* Let each call of one kind fail in turn. The scene succeeds, or says which file of `folder` and why.
 *   returns how often it failed */
static int play(scene *f, void *user, io_call call, int error, const char *folder)
{
    int n_failed = 0, n_fds = count_fds();
    for (long k = 1;; k++) {
        mm3_status st;
        bool failed;
        io_fail_at(call, k, error);
        st = f(user);
        failed = io_has_failed();
        io_fail_at(call, 0, 0);
        assert_int_equal(count_fds(), n_fds);
        if (st != MM3_OK) {
            const char *text = mm3_last_error();
            if (st != MM3_ERR_IO || !strstr(text, folder) || !strstr(text, strerror(error)) || strchr(text, '\n'))
                fail_msg("%s %ld: %s: %s", io_call_names[call], k, mm3_status_name(st), text);
            n_failed++;
        }
        if (!failed) break;
    }
    EXPECT_OK(f(user));
    return n_failed;
}

/* ---- the checkpoint ---------------------------------------------------------------------------------------------- */

static mm3_status open_model(void *user)
{
    mm3_model *m;
    mm3_status st = mm3_model_open(&m, user);
    if (st == MM3_OK) assert_int_equal(m->n_tensors, 151);
    mm3_model_close(&m);
    return st;
}

static mm3_status load_generation(void *user)
{
    mm3_generation_config c;
    return mm3_generation_config_load(&c, user);
}

static mm3_status open_tokenizer(void *user)
{
    mm3_tokenizer *t;
    mm3_status st = mm3_tokenizer_open(&t, user);
    mm3_tokenizer_close(&t);
    return st;
}

static void test_files(void **state)
{
    enum { N_FILES = 4 }; /* config.json, the index, two shards */
    (void)state;
    assert_int_equal(play(open_model, dir, IO_OPEN, EMFILE, dir), N_FILES);
    assert_int_equal(play(open_model, dir, IO_OPEN, EACCES, dir), N_FILES);
    assert_int_equal(play(open_model, dir, IO_FSTAT, EIO, dir), N_FILES);
    assert_int_equal(play(open_model, dir, IO_CLOSE, EIO, dir), 0); /* nothing was written: nothing is lost */
    test_write_text(dir, "generation_config.json", "{\"top_k\": 7}");
    assert_int_equal(play(load_generation, dir, IO_OPEN, EACCES, dir), 1);
    assert_int_equal(play(open_tokenizer, "models/tiny-m3", IO_OPEN, EACCES, "models/tiny-m3/tokenizer.json"), 1);
    io_piecemeal(true);
    EXPECT_OK(open_model(dir));
    EXPECT_OK(open_tokenizer("models/tiny-m3"));
    io_piecemeal(false);
}

/* A map that is refused for another reason than memory, as file systems may that have none. */
static void test_no_map(void **state)
{
    mm3_model *m;
    (void)state;
    for (long k = 1; k <= 200; k++) {
        alloc_fail_at(k);
        alloc_fail_with(ENODEV);
        if (mm3_model_open(&m, dir) == MM3_ERR_IO) {
            assert_non_null(strstr(mm3_last_error(), "cannot map"));
            assert_non_null(strstr(mm3_last_error(), strerror(ENODEV)));
            alloc_fail_at(0);
            return;
        }
        alloc_fail_at(0);
        mm3_model_close(&m);
    }
    fail_msg("no map was refused");
}

/* ---- texts and plans --------------------------------------------------------------------------------------------- */

static mm3_status read_text(void *user)
{
    char *text;
    size_t n;
    mm3_status st = mm3_read_all(user, 1 << 20, &text, &n);
    if (st == MM3_OK) assert_int_equal(n, 3000);
    mm3_free(text);
    return st;
}

static void test_texts(void **state)
{
    char text[3000], *path = test_path(dir, "text");
    (void)state;
    memset(text, 'x', sizeof text);
    test_write_file(dir, "text", text, sizeof text);
    assert_int_equal(play(read_text, path, IO_OPEN, EACCES, path), 1);
    assert_int_equal(play(read_text, path, IO_READ, EIO, path), 2); /* the text, and its end */
    assert_int_equal(play(read_text, path, IO_CLOSE, EIO, path), 0);
    io_piecemeal(true);
    EXPECT_OK(read_text(path));
    io_piecemeal(false);
    free(path);
}

typedef struct files {
    char *folder, *path;
    mm3_plan *plan;
} files;

static const char old_plan[] = "# mm3 plan 1 | cpu Old | threads 1 | policy 1 | w | mm3 0.1.0\n"
                               "linear m=9 n=32 k=32 w=mx act=w8a8 | native | alone | src 12345678\n";

/* Replaces the file whole or leaves it as it was. */
static mm3_status save_plan(void *user)
{
    files *f = user;
    char *text;
    mm3_status st;
    test_write_text(f->folder, "a.plan", old_plan);
    st = mm3_plan_save(f->plan, f->path);
    text = test_read_file(f->folder, "a.plan", NULL);
    if (st != MM3_OK)
        assert_string_equal(text, old_plan);
    else
        assert_non_null(strstr(text, "cpu New"));
    free(text);
    assert_int_equal(test_count_files(f->folder, ""), 3);
    return st;
}

static void test_plan_file(void **state)
{
    files f = { .folder = test_temp_dir() };
    const mm3_device_info info = { .kind = "cpu", .name = "New", .n_threads = 1 };
    mm3_plan_head head;
    char *full;
    (void)state;
    f.path = test_path(f.folder, "a.plan");
    mm3_plan_head_of_device(&head, &info, 1, "w");
    EXPECT_OK(mm3_plan_open(&f.plan, &head));
    assert_int_equal(play(save_plan, &f, IO_MKSTEMP, EROFS, f.path), 1);
    assert_int_equal(play(save_plan, &f, IO_WRITE, ENOSPC, f.path), 1);
    assert_int_equal(play(save_plan, &f, IO_CLOSE, EDQUOT, f.path), 1);
    assert_int_equal(play(save_plan, &f, IO_RENAME, EIO, f.path), 1);
    assert_int_equal(play(save_plan, &f, IO_FCHMOD, EPERM, f.path), 0); /* its owner can read it */
    io_piecemeal(true);
    EXPECT_OK(save_plan(&f));
    io_piecemeal(false);
    full = "/dev/full"; /* no file to rename over: written in place */
    EXPECT_FAIL(mm3_plan_save(f.plan, full), MM3_ERR_IO, "/dev/full: No space left on device");
    mm3_plan_close(&f.plan);
    free(f.path);
    test_temp_dir_remove(&f.folder);
}

/* ---- tuning ------------------------------------------------------------------------------------------------------ */

static mm3_options with_cache(char *cache)
{
    mm3_options o = MM3_OPTIONS_INIT;
    o.model_dir = dir;
    o.n_threads = 1;
    o.context = 256;
    o.chunk = 32;
    o.plan_cache = cache;
    o.tune_budget_s = 0.3;
    o.backend = "add_rmsnorm=native;quantize=native;linear=native;qk_norm_rope=native;index_select=native;"
                "attention=native;swiglu=native;sample=native";
    return o;
}

/* Tune in a process that remembers nothing; the warnings for mm3_free(). */
static char *tune(const mm3_options *o)
{
    mm3_engine *e;
    char *text, *warnings;
    json_t *info, *list;
    mm3_buf b = { 0 };
    mm3_plan_memory_clear();
    EXPECT_OK(mm3_engine_open(&e, o));
    EXPECT_OK(mm3_engine_info(e, &text));
    mm3_engine_close(&e);
    assert_non_null(info = json_loads(text, 0, NULL));
    list = json_object_get(json_object_get(info, "tuning"), "warnings");
    for (size_t i = 0; i < json_array_size(list); i++)
        mm3_buf_printf(&b, "%s\n", json_string_value(json_array_get(list, i)));
    json_decref(info);
    mm3_free(text);
    EXPECT_OK(mm3_buf_take(&b, &warnings, NULL));
    return warnings;
}

/* A decision that is as good as any, and none of this model's. */
static const char *of_another_model;

/* Whichever call fails: the engine opens, what others decided stays in the cache, and where anything was lost, a
 * warning says why. */
static void test_tuning(void **state)
{
    static const struct {
        io_call call;
        int error;
        bool lossless; /* nothing depends on it */
    } fault[] = { { IO_OPEN, EACCES, false },   { IO_OPEN, EMFILE, false },   { IO_READ, EIO, false },
                  { IO_WRITE, ENOSPC, false },  { IO_MKSTEMP, EROFS, false }, { IO_PWRITE, ENOSPC, false },
                  { IO_FTRUNCATE, EIO, false }, { IO_FLOCK, ENOLCK, false },  { IO_FSTAT, EIO, false },
                  { IO_FCHMOD, EPERM, true },   { IO_CLOSE, EIO, true },      { IO_RENAME, EACCES, false } };
    char *cache = test_temp_dir(), *path = plan_cache_file(cache), *warnings;
    mm3_options o = with_cache(cache);
    int n_files, n_fds;
    (void)state;
    warnings = tune(&o);
    assert_string_equal(warnings, "");
    mm3_free(warnings);
    of_another_model = plan_cache_add_foreign(path);
    n_files = test_count_files(cache, "");
    n_fds = count_fds();
    for (int i = 0; i < MM3_COUNT(fault); i++) {
        int n_met = 0, n_warned = 0;
        bool first_launches = fault[i].call == IO_PWRITE || fault[i].call == IO_FTRUNCATE; /* where nothing is known */
        o.tune = first_launches ? "force" : "auto";
        for (long k = 1;; k++) {
            bool failed, first_files;
            char *text;
            alloc_fail_at(0);
            io_fail_at(fault[i].call, k, fault[i].error);
            mm3_plan_memory_clear();
            first_files = fault[i].call == IO_OPEN || fault[i].call == IO_FSTAT;
            if (first_files) { /* the checkpoint's come first: test_files has them */
                mm3_engine *e;
                if (mm3_engine_open(&e, &o) != MM3_OK) {
                    io_fail_at(fault[i].call, 0, 0);
                    continue;
                }
                mm3_engine_close(&e);
                io_fail_at(fault[i].call, k, fault[i].error);
            }
            warnings = tune(&o);
            failed = io_has_failed();
            io_fail_at(fault[i].call, 0, 0);
            assert_int_equal(count_fds(), n_fds);
            assert_int_equal(test_count_files(cache, ""), n_files);
            EXPECT_OK(mm3_read_all(path, 1 << 20, &text, NULL));
            if (!strstr(text, of_another_model))
                fail_msg("%s %ld: another model's decision is gone", io_call_names[fault[i].call], k);
            mm3_free(text);
            n_met += failed;
            if (*warnings) {
                if (!strstr(warnings, strerror(fault[i].error)))
                    fail_msg("%s %ld: %s", io_call_names[fault[i].call], k, warnings);
                n_warned++;
            } else if (failed && !fault[i].lossless && !first_files) {
                fail_msg("%s %ld failed, and nobody says so", io_call_names[fault[i].call], k);
            }
            mm3_free(warnings);
            if (!failed) break;
        }
        if (n_met == 0) fail_msg("%s was never met", io_call_names[fault[i].call]);
        if (!fault[i].lossless && n_warned == 0) fail_msg("%s: no warning", io_call_names[fault[i].call]);
    }
    io_piecemeal(true);
    o.tune = "force";
    warnings = tune(&o);
    assert_string_equal(warnings, "");
    mm3_free(warnings);
    io_piecemeal(false);
    mm3_free(path);
    test_temp_dir_remove(&cache);
    mm3_plan_memory_clear();
}

int main(void)
{
    static const struct CMUnitTest tests[] = { cmocka_unit_test(test_files), cmocka_unit_test(test_no_map),
                                               cmocka_unit_test(test_texts), cmocka_unit_test(test_plan_file),
                                               cmocka_unit_test(test_tuning) };
    test_checkpoint c = test_checkpoint_small;
    int rc;
    c.shards = 2;
    dir = test_temp_dir();
    test_checkpoint_write(dir, &c);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    test_temp_dir_remove(&dir);
    return rc;
}
