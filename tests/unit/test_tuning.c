/* The engine's tuning: deterministic bits, plans, padding, what the counters say, what is kept and what is not. The
 * search is kept short: fewer shapes, one context, a small budget, and pins where a test is not about choosing. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "support/temp_dir.h"
#include "tune/tune.h"

enum { N_PROMPT = 200, MAX_NEW = 12, N_SESSIONS = 4 };
static const mm3_sampling greedy = MM3_SAMPLING_GREEDY;
static int32_t prompt[N_PROMPT];

/* All that has a choice but one kind of linear is pinned. */
#define FEW                                                                                                    \
    "attention=native;index_select=native;qk_norm_rope=native;moe_linear=native;moe_sum=native;sample=native;" \
    "linear,n=1=native;linear,k=128..256=native;linear,k=1024=native"

static mm3_options small(void)
{
    mm3_options o = MM3_OPTIONS_INIT;
    o.model_dir = "models/tiny-m3";
    o.context = 512;
    o.chunk = 64;
    o.max_batch = 3;
    o.graph_shapes = "1";
    o.tune_budget_s = 10;
    return o;
}

static mm3_engine *open_engine(const mm3_options *o)
{
    mm3_engine *e = NULL;
    if (mm3_engine_open(&e, o) != MM3_OK) fail_msg("%s", mm3_last_error());
    return e;
}

static json_t *info_of(mm3_engine *e)
{
    char *text = NULL;
    json_t *info;
    assert_int_equal(mm3_engine_info(e, &text), MM3_OK);
    info = json_loads(text, 0, NULL);
    assert_non_null(info);
    mm3_free(text);
    return info;
}

/* A number of the summary. */
static long number(mm3_engine *e, const char *object, const char *name)
{
    json_t *info = info_of(e), *value = json_object_get(json_object_get(info, object), name);
    long n = (long)json_integer_value(value);
    assert_true(json_is_integer(value));
    json_decref(info);
    return n;
}

static char *plan_of(mm3_engine *e)
{
    char *text = NULL;
    assert_int_equal(mm3_engine_plan(e, &text), MM3_OK);
    return text;
}

typedef struct taken {
    int n;
    int32_t token[MAX_NEW];
    float logprob[MAX_NEW];
} taken;

static bool take(void *user, int32_t token, float logprob)
{
    taken *t = user;
    t->token[t->n] = token;
    t->logprob[t->n++] = logprob;
    return true;
}

typedef struct worker {
    mm3_engine *engine;
    int n_prompt, n_cached; /* the first n_cached tokens are evaluated by themselves before */
    mm3_sampling how;
    taken t;
} worker;

static void *work(void *user)
{
    worker *w = user;
    mm3_session *s = NULL;
    memset(&w->t, 0, sizeof w->t);
    assert_int_equal(mm3_session_open(&s, w->engine), MM3_OK);
    if (w->n_cached) assert_int_equal(mm3_session_sync(s, prompt, w->n_cached), MM3_OK);
    assert_int_equal(mm3_session_sync(s, prompt, w->n_prompt), MM3_OK);
    assert_int_equal(mm3_session_generate(s, &w->how, MAX_NEW, NULL, 0, take, &w->t, NULL, NULL), MM3_OK);
    mm3_session_close(&s);
    return NULL;
}

static void assert_same(const taken *a, const taken *b)
{
    assert_int_equal(a->n, MAX_NEW);
    assert_memory_equal(a->token, b->token, sizeof a->token);
    assert_memory_equal(a->logprob, b->logprob, sizeof a->logprob);
}

/* Each sequence alone, all at once, and continued from a cached prefix. */
static void check_invariance(mm3_engine *e)
{
    worker w[N_SESSIONS];
    pthread_t thread[N_SESSIONS];
    taken alone[N_SESSIONS];
    for (int i = 0; i < N_SESSIONS; i++) {
        w[i] = (worker){ .engine = e, .n_prompt = 3 + 45 * i, .how = i % 2 ? greedy : mm3_engine_sampling(e) };
        w[i].how.seed = (uint64_t)i;
        work(&w[i]);
        alone[i] = w[i].t;
        if (i) assert_memory_not_equal(alone[i].logprob, alone[0].logprob, sizeof alone[0].logprob);
    }
    for (int i = 0; i < N_SESSIONS; i++) assert_int_equal(pthread_create(&thread[i], NULL, work, &w[i]), 0);
    for (int i = 0; i < N_SESSIONS; i++) {
        pthread_join(thread[i], NULL);
        assert_same(&w[i].t, &alone[i]);
        w[i].n_cached = 1 + w[i].n_prompt / 3;
        work(&w[i]);
        assert_same(&w[i].t, &alone[i]);
    }
}

static void replace(char *text, const char *from, const char *to)
{
    size_t n = strlen(from), at = 0, end = strlen(text);
    assert_int_equal(n, strlen(to));
    while (at < end && strncmp(text + at, from, n) != 0) at++;
    assert_true(at < end);
    memcpy(text + at, to, n);
}

static int n_kept(mm3_engine *e, const char *kept)
{
    json_t *info = info_of(e), *graphs = json_object_get(info, "graphs");
    int n = 0;
    for (size_t i = 0; i < json_array_size(graphs); i++)
        n += strcmp(json_string_value(json_object_get(json_array_get(graphs, i), "kept")), kept) == 0;
    json_decref(info);
    return n;
}

/* Make every step's verdict `kept`, but those of `but` the other one. */
static char *with_verdicts(const char *plan, const char *kept, const char *but)
{
    char *text = mm3_strdup(plan);
    for (char *at = text; (at = strstr(at, "\nstep m=")); at++) {
        char *word = strstr(at, " | ") + 3;
        bool other = but && strncmp(at + 6, but, strlen(but)) == 0;
        memcpy(word, other == (strcmp(kept, "winners") == 0) ? "natives" : "winners", 7);
    }
    return text;
}

/* With `deterministic` a sequence has the same bits alone, in a padded batch, in chunks and continued from a cached
 * prefix, whatever is chosen; and the plan, given by name, keeps winners for all shapes or for none. */
static void test_deterministic(void **state)
{
    char *dir = test_temp_dir(), *path = test_path(dir, "d.plan"), *plan, *text;
    mm3_options o = small();
    mm3_engine *e;
    taken chunked[2];
    (void)state;
    o.deterministic = true;
    e = open_engine(&o);
    plan = plan_of(e);
    assert_null(strstr(plan, "linear m="));
    assert_non_null(strstr(plan, "linear n="));
    check_invariance(e);
    mm3_engine_close(&e);

    o.plan = path;
    text = with_verdicts(plan, "winners", NULL);
    test_write_text(dir, "d.plan", text);
    mm3_free(text);
    for (int i = 0; i < 2; i++) {
        worker w = { .n_prompt = N_PROMPT, .how = greedy };
        o.chunk = i ? 7 : 64;
        w.engine = e = open_engine(&o);
        assert_int_equal(n_kept(e, "winners"), 2);
        check_invariance(e);
        work(&w);
        chunked[i] = w.t;
        mm3_engine_close(&e);
    }
    assert_same(&chunked[0], &chunked[1]);
    o.chunk = 64;
    text = with_verdicts(plan, "winners", "m=3");
    test_write_text(dir, "d.plan", text);
    mm3_free(text);
    e = open_engine(&o);
    assert_int_equal(n_kept(e, "natives"), 2);
    check_invariance(e);
    mm3_engine_close(&e);

    o.plan = NULL; /* pins that would break the promise */
    o.backend = "linear,m=1..2=native";
    assert_int_equal(mm3_engine_open(&e, &o), MM3_ERR_ARG);
    assert_non_null(strstr(mm3_last_error(), "pin without m"));
    mm3_free(plan);
    free(path);
    test_temp_dir_remove(&dir);
}

/* C01, C10: prompts of any length up to the largest step run on what was decided. A step that finds no decision, or one
 * that can't run it, is an error. */
static void check_chunks(mm3_engine *e, int chunk)
{
    mm3_session *s = NULL;
    for (int n = 1; n <= chunk; n += n == chunk ? 1 : MM3_MIN(1 + n / 2, chunk - n)) {
        assert_int_equal(mm3_session_open(&s, e), MM3_OK);
        if (mm3_session_sync(s, prompt, n) != MM3_OK) fail_msg("%d tokens: %s", n, mm3_last_error());
        mm3_session_close(&s);
    }
    assert_int_equal(number(e, "counters", "tuner_calls_after_ready"), 0);
}

/* mm3_engine_plan: what this engine's steps consist of, also from a cache that holds more; "" where nothing is tuned.
 * Given back by name it binds the same, and nothing is timed. */
static void test_plan(void **state)
{
    char *dir = test_temp_dir(), *path = test_path(dir, "f.plan"), *a, *b;
    mm3_options o = small();
    mm3_engine *e;
    worker w = { .n_prompt = 20, .how = greedy };
    taken before;
    (void)state;
    o.backend = FEW;
    o.plan_cache = dir;
    o.graph_shapes = "1,2";
    o.chunk = 80; /* no size that anything else has */
    e = open_engine(&o);
    assert_true(number(e, "tuning", "tuned") + number(e, "tuning", "untimed") > 0);
    mm3_engine_close(&e);
    o.graph_shapes = "1";
    e = open_engine(&o);
    a = plan_of(e);
    assert_non_null(strstr(a, "\nlinear m=3 n=256 k=512"));
    assert_non_null(strstr(a, "\nstep m=3 |"));
    assert_null(strstr(a, "\nlinear m=2 ")); /* is in the cache, and not of these steps */
    assert_null(strstr(a, "\nstep m=2 "));
    w.engine = e;
    work(&w);
    before = w.t;
    check_chunks(e, o.chunk);
    mm3_engine_close(&e);

    test_write_text(dir, "f.plan", a);
    o.backend = NULL; /* what was pinned is decided by the plan */
    o.plan = path;
    o.plan_cache = NULL;
    w.engine = e = open_engine(&o);
    b = plan_of(e);
    assert_string_equal(a, b);
    assert_int_equal(number(e, "tuning", "timings"), 0);
    work(&w);
    assert_same(&w.t, &before);
    mm3_engine_close(&e);
    mm3_free(b);

    replace(a, "\nlinear m=3 n=256 k=512", "\nlinear m=9 n=256 k=512");
    test_write_text(dir, "f.plan", a);
    assert_int_equal(mm3_engine_open(&e, &o), MM3_ERR_UNSUPPORTED);
    assert_non_null(strstr(mm3_last_error(), "linear m=3 n=256 k=512 w=mx act=w8a8"));
    replace(a, "\nlinear m=9 n=256 k=512", "\nlinear m=3 n=256 k=512");
    replace(a, "\nstep m=3 ", "\nstep m=4 ");
    test_write_text(dir, "f.plan", a);
    assert_int_equal(mm3_engine_open(&e, &o), MM3_ERR_UNSUPPORTED);
    assert_non_null(strstr(mm3_last_error(), "step m=3"));
    o.plan = NULL;
    o.tune = "off";
    e = open_engine(&o);
    b = plan_of(e);
    assert_string_equal(b, "");
    mm3_engine_close(&e);
    mm3_free(a);
    mm3_free(b);
    free(path);
    test_temp_dir_remove(&dir);
}

static void *generate_250(void *session)
{
    assert_int_equal(mm3_session_generate(session, &greedy, 250, NULL, 0, NULL, NULL, NULL, NULL), MM3_OK);
    return NULL;
}

/* A batch is padded up to the next recorded shape, and padded rows change nothing. 1000 tokens take no allocation and
 * no call of the tuner. */
static void test_replay(void **state)
{
    mm3_options o = small();
    mm3_engine *padded, *exact;
    mm3_session *session[4] = { NULL };
    pthread_t thread[4];
    worker w = { .n_prompt = 50, .how = greedy };
    taken t;
    long n_allocations, replays;
    (void)state;
    o.tune = "off"; /* natives: their rows are independent, so that bits can be compared */
    o.max_batch = 1;
    w.engine = exact = open_engine(&o);
    work(&w);
    t = w.t;
    assert_int_equal(number(exact, "counters", "padded_rows"), 0);
    mm3_engine_close(&exact);
    o.max_batch = 24;
    o.graph_shapes = "8,16";
    w.engine = padded = open_engine(&o);
    replays = number(padded, "counters", "replays"); /* of the first token */
    work(&w);
    assert_same(&w.t, &t);
    assert_int_equal(number(padded, "counters", "replays") - replays, MAX_NEW - 1);
    assert_int_equal(number(padded, "counters", "padded_rows"), 7 * number(padded, "counters", "replays"));
    assert_int_equal(number(padded, "counters", "eager_steps"), 0);
    mm3_engine_close(&padded);

    o.tune = NULL;
    o.backend = FEW;
    o.max_batch = 4;
    exact = open_engine(&o);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(mm3_session_open(&session[i], exact), MM3_OK);
        assert_int_equal(mm3_session_sync(session[i], prompt, 4 + i), MM3_OK);
    }
    n_allocations = mm3_memory_count();
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&thread[i], NULL, generate_250, session[i]), 0);
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
    assert_int_equal(mm3_memory_count(), n_allocations);
    assert_int_equal(number(exact, "counters", "tuner_calls_after_ready"), 0);
    assert_int_equal(number(exact, "counters", "eager_steps"), 0);
    assert_true(number(exact, "counters", "replays") >= 249);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(mm3_session_length(session[i]), 254 + i);
        mm3_session_close(&session[i]);
    }
    mm3_engine_close(&exact);
}

typedef struct calls {
    int n, stop_after;
    bool after; /* whether the last call came after a stage */
} calls;

static bool on_tune(void *user, int i_stage, int n_stages, const char *key, const char *best)
{
    calls *c = user;
    assert_true(strncmp(key, "step m=", 7) == 0 || mm3_plan_is_key(key));
    assert_in_range(i_stage, 0, n_stages);
    c->after = best != NULL;
    return ++c->n != c->stop_after;
}

/* A second engine of the process finds all in memory, and says so; a cancelled one keeps what it had decided. */
static void test_second_engine(void **state)
{
    mm3_options o = small();
    calls c = { .stop_after = 9 };
    mm3_engine *e = NULL;
    long n_known, n_pages;
    (void)state;
    mm3_plan_memory_clear();
    o.backend = FEW;
    o.kv_gb = 0.1; /* as many pages as fit, whatever tuning needed before */
    o.on_tune = on_tune;
    o.on_tune_user = &c;
    assert_int_equal(mm3_engine_open(&e, &o), MM3_ERR_CANCELLED);
    assert_null(e);
    assert_int_equal(c.n, 9);
    c = (calls){ 0 };
    e = open_engine(&o);
    n_known = number(e, "tuning", "reused");
    n_pages = number(e, "memory", "kv_pages");
    assert_true(n_known >= 4); /* of the nine calls every second one came after a decision */
    assert_true(c.n > 0);
    mm3_engine_close(&e);
    c = (calls){ 0 };
    for (int i = 0; i < 3; i++) { /* what had no time on a busy machine is tried again */
        e = open_engine(&o);
        if (number(e, "tuning", "tuned") + number(e, "tuning", "untimed") + number(e, "tuning", "steps_timed") == 0)
            break;
        mm3_engine_close(&e);
        c = (calls){ 0 };
    }
    assert_non_null(e);
    assert_true(number(e, "tuning", "reused") > n_known);
    assert_int_equal(number(e, "tuning", "timings"), 0);
    assert_int_equal(number(e, "memory", "kv_pages"), n_pages);
    assert_int_equal(c.n, 0);
    mm3_engine_close(&e);
    o.tune = "force";
    e = open_engine(&o);
    assert_int_equal(number(e, "tuning", "reused"), 0);
    assert_true(number(e, "tuning", "alone") > 0);
    mm3_engine_close(&e);
}

/* The gate: each condition alone, its words, and that nothing is timed or kept. */
static void test_gate(void **state)
{
    static const struct {
        const char *tune, *graphs, *gate;
    } shut[] = { { "off", NULL, "tuning is off" },
                 { NULL, "off", "graphs are off" },
                 { "force", "off", "graphs are off" } };
    char *dir = test_temp_dir(), *cache = test_path(dir, "cache");
    mm3_options o = small();
    taken first = { 0 };
    (void)state;
    o.plan_cache = cache;
    for (int i = 0; i < MM3_COUNT(shut); i++) {
        worker w = { .n_prompt = 30, .how = greedy };
        mm3_engine *e;
        json_t *info;
        o.tune = shut[i].tune;
        o.graphs = shut[i].graphs;
        w.engine = e = open_engine(&o);
        info = info_of(e);
        assert_string_equal(json_string_value(json_object_get(json_object_get(info, "tuning"), "gate")), shut[i].gate);
        assert_true(json_is_null(json_object_get(json_object_get(info, "tuning"), "plan_hash")));
        json_decref(info);
        assert_int_equal(number(e, "tuning", "timings"), 0);
        assert_false(mm3_path_exists(cache));
        work(&w);
        if (i == 0) first = w.t;
        assert_same(&w.t, &first);
        mm3_engine_close(&e);
    }
    free(cache);
    test_temp_dir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gate),          cmocka_unit_test(test_replay),        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_second_engine), cmocka_unit_test(test_deterministic),
    };
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = (i * 7919 + 13) % 4000;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
