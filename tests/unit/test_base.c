/* base: status text, memory, arena, strings, JSON, files, numbers. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/alloc_faults.h"
#include "support/expect.h"
#include "support/temp_dir.h"

/* ---- status ------------------------------------------------------------------------------------------------------ */

static mm3_status fails(int x)
{
    MM3_CHECK(x == 0, MM3_ERR_FORMAT, "x is %d", x);
    return MM3_OK;
}

static mm3_status forwards(int x, bool *reached)
{
    MM3_TRY(fails(x));
    *reached = true;
    return MM3_OK;
}

static void status_is_recorded_where_it_happened(void **state)
{
    bool reached = false;
    (void)state;
    EXPECT_OK(forwards(0, &reached));
    assert_true(reached);
    reached = false;
    EXPECT_FAIL(forwards(7, &reached), MM3_ERR_FORMAT, "x is 7");
    assert_false(reached);
    assert_non_null(strstr(mm3_last_error_place(), "test_base.c:"));
}

static void status_text_is_one_line_and_bounded(void **state)
{
    char longer[3000];
    (void)state;
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    mm3_fail(MM3_ERR_IO, MM3_HERE, "a\nb\tc\x7F%s", "\x1b[31m");
    assert_string_equal(mm3_last_error(), "a b c  [31m");
    mm3_fail(MM3_ERR_IO, MM3_HERE, "%s", longer);
    assert_int_equal(strlen(mm3_last_error()), 1023);
    assert_int_equal(mm3_fail_in(MM3_ERR_IO, "%s", longer), MM3_ERR_IO);
    assert_int_equal(strlen(mm3_last_error()), 1023);
    mm3_fail(MM3_ERR_IO, MM3_HERE, "cannot open");
    assert_int_equal(mm3_fail_in(MM3_ERR_IO, "in %s", "here"), MM3_ERR_IO);
    assert_string_equal(mm3_last_error(), "in here: cannot open");
    mm3_fail(MM3_ERR_IO, MM3_HERE, "again: %s", mm3_last_error());
    assert_string_equal(mm3_last_error(), "again: in here: cannot open");
}

static void status_names(void **state)
{
    (void)state;
    assert_string_equal(mm3_status_name(MM3_OK), "MM3_OK");
    assert_string_equal(mm3_status_name(MM3_ERR_CANCELLED), "MM3_ERR_CANCELLED");
    assert_string_equal(mm3_status_name((mm3_status)99), "MM3_ERR_?");
    assert_string_equal(mm3_status_name((mm3_status)-1), "MM3_ERR_?");
    assert_string_equal(mm3_version(), MM3_VERSION);
}

static void *fail_on_a_thread(void *e)
{
    mm3_fail(MM3_ERR_DEVICE, MM3_HERE, "on the other thread");
    mm3_error_take(e, MM3_ERR_DEVICE);
    return NULL;
}

static void errors_are_per_thread_and_can_be_handed_over(void **state)
{
    pthread_t t;
    mm3_error e, none;
    (void)state;
    mm3_fail(MM3_ERR_ARG, MM3_HERE, "mine");
    assert_int_equal(pthread_create(&t, NULL, fail_on_a_thread, &e), 0);
    pthread_join(t, NULL);
    assert_string_equal(mm3_last_error(), "mine");
    mm3_error_take(&none, MM3_OK);
    assert_int_equal(mm3_error_raise(&none), MM3_OK);
    assert_string_equal(mm3_last_error(), "mine");
    assert_int_equal(mm3_error_raise(&e), MM3_ERR_DEVICE);
    assert_string_equal(mm3_last_error(), "on the other thread");
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void allocation_fails_when_told(void **state)
{
    long before = mm3_memory_count();
    void *p = mm3_malloc(1), *q;
    (void)state;
    alloc_fail_at(2);
    q = mm3_calloc(1, 1);
    assert_non_null(q);
    assert_null(mm3_strdup("the second"));
    mm3_free(q);
    q = mm3_alloc_aligned(10);
    assert_non_null(q);
    assert_int_equal((uintptr_t)q % 64, 0);
    assert_int_equal(mm3_memory_count() - before, 4);
    mm3_free(q);
    mm3_free(p);
    mm3_free(NULL);
}

static void sizes_that_do_not_fit_are_refused(void **state)
{
    mm3_arena a = { 0 };
    (void)state;
    assert_true(mm3_mul(SIZE_MAX, 2) == SIZE_MAX);
    assert_true(mm3_mul((size_t)1 << 32, (size_t)1 << 32) == SIZE_MAX);
    assert_true(mm3_mul(0, SIZE_MAX) == 0);
    assert_true(mm3_mul(3, 5) == 15);
    assert_null(mm3_malloc(SIZE_MAX));
    assert_null(mm3_calloc((size_t)1 << 40, (size_t)1 << 40));
    assert_null(mm3_alloc_aligned(SIZE_MAX - 3));
    assert_null(mm3_arena_alloc(&a, SIZE_MAX));
    mm3_arena_free(&a);
}

/* Whether the system was asked for huge pages at p: "hg" among the flags of its mapping. -1: it does not say. */
static int is_huge_wanted(const void *p)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[1024];
    bool here = false;
    int wanted = -1;
    while (f && fgets(line, sizeof line, f)) {
        unsigned long first, last;
        if (sscanf(line, "%lx-%lx ", &first, &last) == 2) here = (uintptr_t)p >= first && (uintptr_t)p < last;
        if (here && strncmp(line, "VmFlags:", 8) == 0) wanted = strstr(line, " hg") != NULL;
    }
    if (f) fclose(f);
    return wanted;
}

static void huge_pages_are_wanted_where_whole_ones_lie(void **state)
{
    enum { MB = 1 << 20 };
    unsigned char *large, *raw;
    (void)state;
    if (access("/sys/kernel/mm/transparent_hugepage", F_OK) != 0 || is_huge_wanted(&(int){ 0 }) < 0)
        return; /* a system without them */
    large = mm3_alloc_aligned(9 * MB);
    assert_non_null(large);
    assert_int_equal((uintptr_t)large % (2 * MB), 0);
    assert_int_equal(is_huge_wanted(large), 1);
    assert_int_equal(is_huge_wanted(large + 9 * MB), 1); /* the size is rounded up to whole ones */
    mm3_free(large);
    raw = mmap(NULL, 8 * MB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(raw, MAP_FAILED);
    large = raw + (2 * MB - (uintptr_t)raw % (2 * MB));
    mm3_memory_want_huge(large + 4096, 2 * MB); /* no whole one */
    assert_int_equal(is_huge_wanted(large + 4096), 0);
    mm3_memory_want_huge(large + 4096, 4 * MB); /* the second is */
    assert_int_equal(is_huge_wanted(large + 4096), 0);
    assert_int_equal(is_huge_wanted(large + 2 * MB), 1);
    assert_int_equal(is_huge_wanted(large + 4 * MB), 0);
    munmap(raw, 8 * MB);
}

static void arena_pieces_are_zeroed_aligned_and_apart(void **state)
{
    enum { N = 3000 };
    mm3_arena a = { 0 };
    unsigned char *p[N];
    size_t n[N];
    (void)state;
    for (int i = 0; i < N; i++) {
        n[i] = i % 500 == 499 ? 100000 : (size_t)(i * 7 % 130); /* some larger than a block, some of no size */
        p[i] = mm3_arena_alloc(&a, n[i]);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % 16, 0);
        for (size_t k = 0; k < n[i]; k++) assert_int_equal(p[i][k], 0);
        memset(p[i], i % 255 + 1, n[i]);
    }
    for (int i = 0; i < N; i++)
        for (size_t k = 0; k < n[i]; k++) assert_int_equal(p[i][k], i % 255 + 1);
    assert_string_equal(mm3_arena_strdup(&a, "copy"), "copy");
    mm3_arena_free(&a);
    assert_null(a.block);
    alloc_fail_at(1);
    assert_null(mm3_arena_alloc(&a, 8));
    assert_non_null(mm3_arena_alloc(&a, 8));
    mm3_arena_free(&a);
}

static void buffer_grows_and_remembers_failure(void **state)
{
    mm3_buf b = { 0 };
    char *s;
    size_t n;
    (void)state;
    for (int i = 0; i < 1000; i++) mm3_buf_printf(&b, "%d,", i);
    assert_int_equal(b.n, 10 * 2 + 90 * 3 + 900 * 4);
    assert_int_equal(strlen(b.data), b.n);
    assert_memory_equal(b.data + b.n - 8, "998,999,", 8);
    mm3_buf_clear(&b);
    assert_string_equal(b.data, "");
    mm3_buf_add(&b, "a\0b", 3);
    mm3_buf_puts(&b, "c");
    EXPECT_OK(mm3_buf_take(&b, &s, &n));
    assert_int_equal(n, 4);
    assert_memory_equal(s, "a\0bc", 5);
    mm3_free(s);
    EXPECT_OK(mm3_buf_take(&b, &s, NULL)); /* an empty one gives "" */
    assert_string_equal(s, "");
    mm3_free(s);
    mm3_buf_puts(&b, "x");
    alloc_fail_at(1);
    mm3_buf_printf(&b, "%1000d", 1);
    mm3_buf_puts(&b, "y"); /* must not hide the failure */
    assert_true(b.failed);
    EXPECT_FAIL(mm3_buf_take(&b, &s, &n), MM3_ERR_NOMEM, "memory");
    assert_null(s);
    assert_null(b.data);
    mm3_buf_free(&b);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static mm3_status parse(json_t **out, const char *text) { return mm3_json_parse(out, text, strlen(text), "here"); }

static void json_is_strict(void **state)
{
    static const char *const bad[] = { "",
                                       "{",
                                       "{}x",
                                       "{} {}",
                                       "{\"a\":1,}",
                                       "[1,]",
                                       "nul",
                                       "{'a':1}",
                                       "\xEF\xBB\xBF{}",
                                       "[1e999]",
                                       "[NaN]",
                                       "[01]",
                                       "[\"\xFF\"]",
                                       "[\"\\ud800\"]",
                                       "[\"\\u0000\"]",
                                       "{\"a\\u0000b\":1}" };
    json_t *j;
    mm3_buf deep = { 0 };
    (void)state;
    for (int i = 0; i < MM3_COUNT(bad); i++) {
        EXPECT_FAIL(parse(&j, bad[i]), MM3_ERR_FORMAT, "here: not valid JSON");
        assert_null(j);
    }
    EXPECT_FAIL(mm3_json_parse(&j, NULL, 0, "empty"), MM3_ERR_FORMAT, "empty: not valid JSON");
    EXPECT_FAIL(mm3_json_parse(&j, "[1\0]", 4, "nul"), MM3_ERR_FORMAT, "nul: not valid JSON: byte 2 is a NUL");
    EXPECT_FAIL(parse(&j, "{\"a\":1,\n\"a\":2}"), MM3_ERR_FORMAT, "duplicate");
    EXPECT_FAIL(parse(&j, "{\"b\":{\"a\":1,\"a\":1}}"), MM3_ERR_FORMAT, "duplicate");
    for (int i = 0; i < 20000; i++) mm3_buf_puts(&deep, "[");
    EXPECT_FAIL(parse(&j, deep.data), MM3_ERR_FORMAT, "depth");
    mm3_buf_free(&deep);
    EXPECT_OK(parse(&j, " {\"a\": [1, \"\\u00e9\"]} \n"));
    assert_string_equal(json_string_value(json_array_get(json_object_get(j, "a"), 1)), "\xC3\xA9");
    json_decref(j);
}

static void json_members_are_checked(void **state)
{
    json_t *j;
    int64_t i;
    double d;
    bool b;
    const char *s;
    (void)state;
    EXPECT_OK(parse(&j, "{\"i\":5,\"r\":5.0,\"h\":5.5,\"s\":\"x\",\"t\":true,\"n\":null,\"big\":1e30,"
                        "\"max\":9223372036854775807,\"two63\":9223372036854775808.0,\"neg\":-1}"));
    EXPECT_OK(mm3_json_int(j, "i", "w", 5, 5, false, 0, &i));
    assert_int_equal(i, 5);
    EXPECT_OK(mm3_json_int(j, "r", "w", 0, 9, false, 0, &i));
    assert_int_equal(i, 5);
    EXPECT_FAIL(mm3_json_int(j, "h", "w", 0, 9, false, 0, &i), MM3_ERR_FORMAT, "w: \"h\" must be a whole number");
    EXPECT_FAIL(mm3_json_int(j, "s", "w", 0, 9, true, 0, &i), MM3_ERR_FORMAT, "\"s\"");
    EXPECT_FAIL(mm3_json_int(j, "t", "w", 0, 9, true, 0, &i), MM3_ERR_FORMAT, "\"t\"");
    EXPECT_FAIL(mm3_json_int(j, "i", "w", 6, 9, true, 0, &i), MM3_ERR_FORMAT, "is 5; expected 6 to 9");
    EXPECT_FAIL(mm3_json_int(j, "i", "w", 1, 4, true, 0, &i), MM3_ERR_FORMAT, "is 5; expected 1 to 4");
    EXPECT_FAIL(mm3_json_int(j, "neg", "w", 0, 4, true, 0, &i), MM3_ERR_FORMAT, "is -1");
    EXPECT_FAIL(mm3_json_int(j, "big", "w", 0, INT64_MAX, true, 0, &i), MM3_ERR_FORMAT, "\"big\"");
    EXPECT_FAIL(mm3_json_int(j, "two63", "w", 0, INT64_MAX, true, 0, &i), MM3_ERR_FORMAT, "\"two63\"");
    EXPECT_FAIL(mm3_json_int(j, "max", "w", 0, INT64_MAX - 1, true, 0, &i), MM3_ERR_FORMAT, "\"max\"");
    EXPECT_OK(mm3_json_int(j, "max", "w", 0, INT64_MAX, true, 0, &i));
    assert_true(i == INT64_MAX);
    EXPECT_FAIL(mm3_json_int(j, "x", "w", 0, 9, false, 0, &i), MM3_ERR_FORMAT, "w: \"x\" is missing");
    EXPECT_OK(mm3_json_int(j, "x", "w", 0, 9, true, 77, &i)); /* a default need not be in range */
    assert_int_equal(i, 77);
    EXPECT_OK(mm3_json_int(j, "n", "w", 0, 9, true, 7, &i)); /* null: as if absent */
    assert_int_equal(i, 7);
    EXPECT_FAIL(mm3_json_int(j, "n", "w", 0, 9, false, 7, &i), MM3_ERR_FORMAT, "\"n\"");
    EXPECT_OK(mm3_json_double(j, "h", "w", false, 0, &d));
    assert_true(d == 5.5);
    EXPECT_OK(mm3_json_double(j, "i", "w", false, 0, &d));
    assert_true(d == 5.0);
    EXPECT_FAIL(mm3_json_double(j, "s", "w", true, 0, &d), MM3_ERR_FORMAT, "\"s\" must be a number");
    EXPECT_OK(mm3_json_bool(j, "t", "w", false, false, &b));
    assert_true(b);
    EXPECT_FAIL(mm3_json_bool(j, "i", "w", true, false, &b), MM3_ERR_FORMAT, "\"i\" must be true or false");
    EXPECT_OK(mm3_json_string(j, "s", "w", false, NULL, &s));
    assert_string_equal(s, "x");
    EXPECT_OK(mm3_json_string(j, "x", "w", true, "default", &s));
    assert_string_equal(s, "default");
    EXPECT_FAIL(mm3_json_string(j, "i", "w", true, "", &s), MM3_ERR_FORMAT, "\"i\" must be a string");
    json_decref(j);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void files_are_mapped_whole(void **state)
{
    char *dir = test_temp_dir(), *path = mm3_path_join(dir, "f"), *fifo = mm3_path_join(dir, "fifo");
    mm3_file *f;
    json_t *j;
    (void)state;
    assert_false(mm3_path_exists(path));
    EXPECT_FAIL(mm3_file_open(&f, path), MM3_ERR_IO, "No such file");
    assert_null(f);
    test_write_text(dir, "f", "{\"a\": 1}");
    assert_true(mm3_path_exists(path));
    EXPECT_OK(mm3_file_open(&f, path));
    assert_int_equal(f->n_bytes, 8);
    assert_memory_equal(f->data, "{\"a\": 1}", 8);
    assert_string_equal(f->path, path);
    mm3_file_close(&f);
    assert_null(f);
    mm3_file_close(&f);
    mm3_file_close(NULL);
    EXPECT_OK(mm3_json_load(&j, path));
    assert_int_equal(json_integer_value(json_object_get(j, "a")), 1);
    json_decref(j);
    test_write_text(dir, "f", "");
    EXPECT_OK(mm3_file_open(&f, path));
    assert_int_equal(f->n_bytes, 0);
    mm3_file_close(&f);
    EXPECT_FAIL(mm3_json_load(&j, path), MM3_ERR_FORMAT, path);
    EXPECT_FAIL(mm3_file_open(&f, dir), MM3_ERR_IO, "not a regular file");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    EXPECT_FAIL(mm3_file_open(&f, fifo), MM3_ERR_IO, "not a regular file");
    for (long k = 1; k <= 2; k++) {
        alloc_fail_at(k);
        EXPECT_FAIL(mm3_file_open(&f, path), MM3_ERR_NOMEM, "memory");
    }
    mm3_free(path);
    mm3_free(fifo);
    test_temp_dir_remove(&dir);
}

static void read_all_has_a_limit(void **state)
{
    enum { N = 200000 };
    char *dir = test_temp_dir(), *path = mm3_path_join(dir, "f"), *text, *bytes = malloc(N);
    size_t n;
    (void)state;
    for (int i = 0; i < N; i++) bytes[i] = (char)(i * 31 % 251);
    test_write_file(dir, "f", bytes, N);
    EXPECT_OK(mm3_read_all(path, N, &text, &n));
    assert_int_equal(n, N);
    assert_memory_equal(text, bytes, N);
    assert_int_equal(text[N], 0);
    mm3_free(text);
    EXPECT_FAIL(mm3_read_all(path, N - 1, &text, &n), MM3_ERR_ARG, "longer than 199999 bytes");
    assert_null(text);
    EXPECT_FAIL(mm3_read_all(dir, N, &text, &n), MM3_ERR_IO, "cannot read");
    mm3_free(path);
    path = mm3_path_join(dir, "none");
    EXPECT_FAIL(mm3_read_all(path, N, &text, &n), MM3_ERR_IO, "cannot open");
    mm3_free(path);
    free(bytes);
    test_temp_dir_remove(&dir);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static void numbers_are_parsed_whole(void **state)
{
    static const char *const no_int[] = {
        "", "-", "+1", " 1", "1 ", "1x", "0x10", "1.0", "1e3", "9223372036854775808"
    };
    static const char *const no_double[] = { "",    "-",    ".",    "+1",    " 1", "1 ",   "nan",
                                             "inf", "-inf", "-nan", "1e999", "1x", "0x10", "-0X1p3" };
    int64_t i;
    double d;
    (void)state;
    for (int k = 0; k < MM3_COUNT(no_int); k++)
        if (mm3_parse_int(no_int[k], INT64_MIN, INT64_MAX, &i)) fail_msg("'%s' parsed", no_int[k]);
    for (int k = 0; k < MM3_COUNT(no_double); k++)
        if (mm3_parse_double(no_double[k], -1e300, 1e300, &d)) fail_msg("'%s' parsed", no_double[k]);
    assert_true(mm3_parse_int("-9223372036854775808", INT64_MIN, INT64_MAX, &i) && i == INT64_MIN);
    assert_true(mm3_parse_int("7", 7, 7, &i) && i == 7);
    assert_false(mm3_parse_int("8", 7, 7, &i));
    assert_false(mm3_parse_int("6", 7, 7, &i));
    assert_true(mm3_parse_double("-.5e1", -5, 0, &d) && d == -5);
    assert_true(mm3_parse_double("1e-400", 0, 1, &d) && d == 0);
    assert_false(mm3_parse_double("1.01", 0, 1, &d));
}

static void shares_cover_everything_once(void **state)
{
    static const int n[] = { 0, 1, 7, 16, 200064, INT32_MAX };
    (void)state;
    for (int k = 0; k < MM3_COUNT(n); k++) {
        for (int workers = 1; workers < 40; workers += 3) {
            int at = 0, begin, end;
            for (int i = 0; i < workers; i++, at = end) {
                mm3_share(n[k], i, workers, &begin, &end);
                assert_int_equal(begin, at);
                assert_true(end - begin == n[k] / workers || end - begin == n[k] / workers + 1);
            }
            assert_int_equal(at, n[k]);
        }
    }
}

/* The vectors of its authors; in parts as at once. */
static void hash_is_fnv_1a(void **state)
{
    (void)state;
    assert_int_equal(mm3_hash(MM3_HASH_START, "", 0), 0x811C9DC5);
    assert_int_equal(mm3_hash(MM3_HASH_START, "a", 1), 0xE40C292C);
    assert_int_equal(mm3_hash(MM3_HASH_START, "foobar", 6), 0xBF9CF968);
    assert_int_equal(mm3_hash(mm3_hash(MM3_HASH_START, "foo", 3), "bar", 3), 0xBF9CF968);
    assert_int_equal(mm3_hash(7, NULL, 0), 7);
}

static void clock_does_not_run_back(void **state)
{
    double a = mm3_now_s(), b = mm3_now_s();
    (void)state;
    assert_true(b >= a && b - a < 60);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_is_recorded_where_it_happened),
        cmocka_unit_test(status_text_is_one_line_and_bounded),
        cmocka_unit_test(status_names),
        cmocka_unit_test(errors_are_per_thread_and_can_be_handed_over),
        cmocka_unit_test(allocation_fails_when_told),
        cmocka_unit_test(sizes_that_do_not_fit_are_refused),
        cmocka_unit_test(huge_pages_are_wanted_where_whole_ones_lie),
        cmocka_unit_test(arena_pieces_are_zeroed_aligned_and_apart),
        cmocka_unit_test(buffer_grows_and_remembers_failure),
        cmocka_unit_test(json_is_strict),
        cmocka_unit_test(json_members_are_checked),
        cmocka_unit_test(files_are_mapped_whole),
        cmocka_unit_test(read_all_has_a_limit),
        cmocka_unit_test(numbers_are_parsed_whole),
        cmocka_unit_test(shares_cover_everything_once),
        cmocka_unit_test(hash_is_fnv_1a),
        cmocka_unit_test(clock_does_not_run_back),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
