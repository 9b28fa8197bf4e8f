/* What mm3.h allows from several threads at once: sessions of one engine, questions to it, a second engine that opens
 * and closes meanwhile, one tokenizer for all; and how a generation is ended from outside. Short, and made for the
 * thread sanitizer ('make tsan'), which sees races that do not show. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "support/checkpoint.h"
#include "support/expect.h"
#include "support/temp_dir.h"

enum { N_PROMPT = 12, CONTEXT = 48 };
static char *dir;
static const mm3_sampling greedy = MM3_SAMPLING_GREEDY;

static mm3_engine *open_engine(int max_batch)
{
    mm3_options o = MM3_OPTIONS_INIT;
    mm3_engine *e = NULL;
    o.model_dir = dir;
    o.n_threads = 2;
    o.context = CONTEXT;
    o.chunk = 8;
    o.max_batch = max_batch;
    o.tune = "off";
    EXPECT_OK(mm3_engine_open(&e, &o));
    return e;
}

static mm3_session *open_session(mm3_engine *e)
{
    int32_t prompt[N_PROMPT];
    mm3_session *s = NULL;
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = i;
    EXPECT_OK(mm3_session_open(&s, e));
    EXPECT_OK(mm3_session_sync(s, prompt, N_PROMPT));
    return s;
}

/* ---- ended from outside ------------------------------------------------------------------------------------------ */

typedef struct talk {
    mm3_session *session;
    atomic_int n; /* tokens so far */
    atomic_bool stop;
    mm3_status status;
} talk;

static bool on_token(void *user, int32_t token, float logprob)
{
    talk *t = user;
    (void)token;
    (void)logprob;
    atomic_fetch_add(&t->n, 1);
    return !atomic_load(&t->stop);
}

static void *speak(void *user)
{
    talk *t = user;
    t->status = mm3_session_generate(t->session, &greedy, CONTEXT, NULL, 0, on_token, t, NULL, NULL);
    return NULL;
}

/* The way to close an engine under a running generation: end it through its callback,
 * wait, close session and engine. */
static void test_end_and_close(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        mm3_engine *e = open_engine(2);
        talk t[2] = { { .session = open_session(e) }, { .session = open_session(e) } };
        pthread_t thread[2];
        for (int k = 0; k < 2; k++) assert_int_equal(pthread_create(&thread[k], NULL, speak, &t[k]), 0);
        while (atomic_load(&t[0].n) < 3 + i || atomic_load(&t[1].n) < 3) sched_yield();
        for (int k = 0; k < 2; k++) atomic_store(&t[k].stop, true);
        for (int k = 0; k < 2; k++) {
            pthread_join(thread[k], NULL);
            assert_true(t[k].status == MM3_ERR_CANCELLED || (t[k].status == MM3_OK && t[k].n == CONTEXT - N_PROMPT));
            assert_int_equal(mm3_session_length(t[k].session), N_PROMPT + t[k].n);
            mm3_session_close(&t[k].session);
        }
        mm3_engine_close(&e);
    }
}

/* A callback that says stop ends its own sequence alone. */
static void test_one_of_two(void **state)
{
    mm3_engine *e = open_engine(2);
    talk t[2] = { { .session = open_session(e) }, { .session = open_session(e) } };
    pthread_t thread[2];
    (void)state;
    atomic_store(&t[0].stop, true); /* at its first token */
    for (int k = 0; k < 2; k++) assert_int_equal(pthread_create(&thread[k], NULL, speak, &t[k]), 0);
    for (int k = 0; k < 2; k++) pthread_join(thread[k], NULL);
    assert_int_equal(t[0].status, MM3_ERR_CANCELLED);
    assert_int_equal(t[0].n, 1);
    assert_int_equal(t[1].status, MM3_OK);
    assert_int_equal(t[1].n, CONTEXT - N_PROMPT);
    for (int k = 0; k < 2; k++) mm3_session_close(&t[k].session);
    mm3_engine_close(&e);
}

/* ---- all at once ------------------------------------------------------------------------------------------------- */

static mm3_engine *shared;
static mm3_tokenizer *tokenizer;
static atomic_bool enough;

/* Failures inside a thread are counted, and judged by the test. */
static atomic_int n_wrong;
static void want(bool ok) { atomic_fetch_add(&n_wrong, !ok); }

/* Threads that never rest would take the cores from those that wait for each other at every barrier. */
static bool go_on(void)
{
    const struct timespec nap = { 0, 2000000 };
    nanosleep(&nap, NULL);
    return !atomic_load(&enough);
}

static void *come_and_go(void *user)
{
    float *logits = malloc((size_t)mm3_engine_vocab_size(shared) * sizeof *logits);
    int32_t prompt[N_PROMPT] = { 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8 };
    (void)user;
    for (int i = 0; i < 3; i++) {
        mm3_session *s = NULL;
        int n = 0;
        want(mm3_session_open(&s, shared) == MM3_OK);
        want(mm3_session_sync(s, prompt, N_PROMPT) == MM3_OK);
        want(mm3_session_generate(s, &greedy, 3, NULL, 0, NULL, NULL, &n, NULL) == MM3_OK && n == 3);
        want(mm3_session_logits(s, logits) == MM3_OK);
        want(mm3_session_sync(s, prompt, CONTEXT + 1) == MM3_ERR_ARG && *mm3_last_error()); /* errors are per thread */
        mm3_session_close(&s);
    }
    free(logits);
    return NULL;
}

static void *ask(void *user)
{
    (void)user;
    while (go_on()) {
        char *text = NULL;
        int n;
        want(mm3_engine_info(shared, &text) == MM3_OK);
        mm3_free(text);
        want(mm3_engine_plan(shared, &text) == MM3_OK);
        mm3_free(text);
        want(mm3_engine_context(shared) == CONTEXT && mm3_engine_stop_ids(shared, &n));
    }
    return NULL;
}

static void *open_another(void *user)
{
    (void)user;
    for (int i = 0; i < 2; i++) {
        mm3_options o = MM3_OPTIONS_INIT;
        mm3_engine *e = NULL;
        o.model_dir = dir;
        o.n_threads = 1;
        o.context = 64;
        o.tune_budget_s = 0.05; /* what a process remembers of decisions is shared, too */
        want(mm3_engine_open(&e, &o) == MM3_OK);
        mm3_engine_close(&e);
    }
    return NULL;
}

static void *read_and_write(void *user)
{
    (void)user;
    while (go_on()) {
        int32_t *ids = NULL;
        char *text = NULL;
        int n = 0;
        size_t n_bytes = 0;
        want(mm3_tokenizer_encode(tokenizer, "In the beginning", 16, false, &ids, &n) == MM3_OK);
        want(mm3_tokenizer_decode(tokenizer, ids, n, false, &text, &n_bytes) == MM3_OK && n_bytes == 16);
        mm3_free(ids);
        mm3_free(text);
        want(mm3_chat_encode(tokenizer, "[{\"role\":\"user\",\"content\":\"go\"}]", NULL, NULL, true, &ids, &n) ==
             MM3_OK);
        mm3_free(ids);
    }
    return NULL;
}

static void test_all_at_once(void **state)
{
    static void *(*const role[])(void *) = { come_and_go,  come_and_go,    come_and_go,   ask,
                                             open_another, read_and_write, read_and_write };
    pthread_t thread[MM3_COUNT(role)];
    talk t;
    (void)state;
    shared = open_engine(5); /* KV pages for so many sessions */
    EXPECT_OK(mm3_tokenizer_open(&tokenizer, "models/tiny-m3"));
    for (int i = 0; i < MM3_COUNT(role); i++) assert_int_equal(pthread_create(&thread[i], NULL, role[i], NULL), 0);
    for (int i = 0; i < 2; i++) { /* a long sequence among short ones; and a measurement, which waits for a gap */
        char *result = NULL;
        t = (talk){ .session = open_session(shared) };
        speak(&t);
        assert_int_equal(t.status, MM3_OK);
        mm3_session_close(&t.session);
        EXPECT_OK(mm3_engine_measure(shared, "{\"m\": 1, \"context\": 16, \"seconds\": 0.01}", &result));
        mm3_free(result);
    }
    atomic_store(&enough, true);
    for (int i = 0; i < MM3_COUNT(role); i++) pthread_join(thread[i], NULL);
    assert_int_equal(n_wrong, 0);
    mm3_tokenizer_close(&tokenizer);
    mm3_engine_close(&shared);
}

int main(void)
{
    static const struct CMUnitTest tests[] = { cmocka_unit_test(test_end_and_close), cmocka_unit_test(test_one_of_two),
                                               cmocka_unit_test(test_all_at_once) };
    int rc;
    dir = test_temp_dir();
    test_checkpoint_write(dir, &test_checkpoint_small);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    test_temp_dir_remove(&dir);
    return rc;
}
