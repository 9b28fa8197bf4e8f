/* The CPU device: how many threads it takes, and what a list of calls promises: every thread runs every call, and a
 * call that waits sees all that was done before it. */
#include <sched.h>

#include "device/device.h"
#include "support/expect.h"

/* ---- threads ----------------------------------------------------------------------------------------------------- */

static void test_thread_count(void **state)
{
    cpu_set_t all, one;
    mm3_device *d = NULL;
    int first = 0;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    while (!CPU_ISSET(first, &all)) first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_FAIL(mm3_device_open(&d, 9), MM3_ERR_ARG,
                "9 threads for 1 core would mostly wait for each other: use 1 to 8");
    assert_null(d);
    EXPECT_FAIL(mm3_device_open(&d, 1000), MM3_ERR_ARG, "1000 threads for 1 core ");
    EXPECT_FAIL(mm3_device_open(&d, -1), MM3_ERR_ARG, "-1 threads: use 1 to 8, or 0 for one per core");
    for (int n = 0; n <= 8; n++) {
        EXPECT_OK(mm3_device_open(&d, n));
        assert_int_equal(mm3_device_info_of(d)->n_threads, n ? n : 1);
        mm3_device_close(&d);
    }
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    EXPECT_OK(mm3_device_open(&d, 0));
    assert_int_equal(mm3_device_info_of(d)->n_threads, CPU_COUNT(&all));
    mm3_device_close(&d);
    if (CPU_COUNT(&all) >= 256) return; /* there 1024 is not too many */
    EXPECT_FAIL(mm3_device_open(&d, 4 * CPU_COUNT(&all) + 8), MM3_ERR_ARG, "mostly wait");
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

enum { MAX_THREADS = 8, N_CALLS = 6 };
typedef struct tally {
    int done[N_CALLS][MAX_THREADS]; /* plain ints: what orders them is the device alone */
    int n_wrong[MAX_THREADS];
} tally;
typedef struct counted {
    tally *to;
    int i_call, n_before; /* calls that must be over */
} counted;

/* Add one to the own cell of this call, after a look at the others' cells of the calls before the wait. */
static void count(const mm3_call *call, int i_thread, int n_threads)
{
    const counted *c = call->op;
    int want = c->to->done[c->i_call][i_thread] + 1;
    for (int i = 0; i < c->n_before; i++)
        for (int j = 0; j < n_threads; j++) c->to->n_wrong[i_thread] += c->to->done[i][j] != want;
    c->to->done[c->i_call][i_thread] = want;
}

static void test_calls(void **state)
{
    static const bool waits[N_CALLS] = { false, true, false, true, true, false };
    static const int threads[] = { 1, 2, 3, MAX_THREADS };
    (void)state;
    for (int k = 0; k < MM3_COUNT(threads); k++) {
        int n_threads = threads[k];
        tally t = { 0 };
        counted op[N_CALLS];
        mm3_call calls[N_CALLS];
        mm3_device *d;
        mm3_graph *g;
        const int n_runs = 200;
        for (int i = 0, before = 0; i < N_CALLS; i++) {
            if (waits[i]) before = i;
            op[i] = (counted){ .to = &t, .i_call = i, .n_before = before };
            calls[i] = (mm3_call){ .run = count, .op = &op[i], .waits = waits[i] };
        }
        EXPECT_OK(mm3_device_open(&d, n_threads));
        EXPECT_OK(mm3_graph_open(&g, d));
        for (int i = 0; i < N_CALLS; i++) EXPECT_OK(mm3_graph_append(g, &calls[i]));
        for (int i = 0; i < n_runs; i++) mm3_graph_replay(g);
        for (int i = 0; i < N_CALLS; i++)
            for (int j = 0; j < n_threads; j++) assert_int_equal(t.done[i][j], n_runs);
        for (int j = 0; j < n_threads; j++) assert_int_equal(t.n_wrong[j], 0);
        mm3_graph_close(&g);
        mm3_device_close(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_thread_count), cmocka_unit_test(test_calls) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
