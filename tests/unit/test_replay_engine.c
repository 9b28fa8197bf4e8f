/* Decoding in an engine is replaying: no allocation, no look-up, no tuner call; the right graph for every batch; what
 * eager steps give. And measuring, which runs between other jobs. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/state.h"
#include "support/expect.h"

static const char small[] = "m3,layers=3,experts=8,vocab=512,hidden=128,heads=4,kv_heads=2,intermediate=256,"
                            "expert_intermediate=64,top_k=2";

static mm3_engine *open_engine(mm3_options o)
{
    mm3_engine *e = NULL;
    EXPECT_OK(mm3_engine_open(&e, &o));
    return e;
}

/* What a replay must not touch, watched from within the steps. */
typedef struct watch {
    mm3_engine *e;
    int n;
    mm3_recorder trap, *recorder; /* stands in for the eager recorder between the first token and the last */
    mm3_binding binding;
    long allocations, replays, timings, n_issued;
    uint64_t weights;
} watch;

static mm3_status issue_trap(mm3_recorder *self, mm3_op_id op, const void *contract)
{
    watch *w = (watch *)((char *)self - offsetof(watch, trap));
    (void)op;
    (void)contract;
    w->n_issued++;
    return MM3_OK;
}

static uint64_t synthetic_checksum(const mm3_model *m)
{
    uint64_t h = 1;
    for (size_t i = 0; i < m->weight_bytes; i++) h = (h ^ m->memory[i]) * 1099511628211u;
    return h;
}

enum { N_STEPS = 1000 };

/* Called on the engine's thread: the first token comes from the eager recorder, all others from replays. */
static bool on_token(void *user, int32_t token, float logprob)
{
    watch *w = user;
    mm3_engine *e = w->e;
    (void)token;
    (void)logprob;
    if (++w->n == 1) {
        w->allocations = mm3_memory_count();
        w->replays = e->n_replays;
        w->timings = mm3_tuner_counts(e->tuner).timings;
        w->recorder = e->recorder;
        w->binding = e->binding;
        e->recorder = &w->trap;
        memset(&e->binding, 0, sizeof e->binding); /* a look-up would crash */
    }
    if (w->n == N_STEPS + 1) {
        w->allocations = mm3_memory_count() - w->allocations;
        w->replays = e->n_replays - w->replays;
        w->timings = mm3_tuner_counts(e->tuner).timings - w->timings;
        e->recorder = w->recorder;
        e->binding = w->binding;
    }
    return true;
}

/* 1000 decode steps of a tuned engine: replays, and nothing else. */
static void test_nothing_but_replays(void **state)
{
    static const mm3_sampling greedy = MM3_SAMPLING_GREEDY;
    mm3_options o = MM3_OPTIONS_INIT;
    mm3_session *s;
    watch w = { .trap = { issue_trap } };
    int32_t prompt[5] = { 1, 2, 3, 4, 5 };
    uint64_t weights;
    int n_new;
    (void)state;
    o.synthetic = small;
    o.context = 2048;
    o.chunk = 8;
    o.tune_budget_s = 2;
    w.e = open_engine(o);
    assert_non_null(w.e->tuner);
    assert_true(mm3_tuner_counts(w.e->tuner).timings > 0); /* the counter counts */
    weights = synthetic_checksum(w.e->model);
    EXPECT_OK(mm3_session_open(&s, w.e));
    EXPECT_OK(mm3_session_sync(s, prompt, 5));
    EXPECT_OK(mm3_session_generate(s, &greedy, N_STEPS + 1, NULL, 0, on_token, &w, &n_new, NULL));
    assert_int_equal(n_new, N_STEPS + 1);
    assert_int_equal(w.replays, N_STEPS);
    assert_int_equal(w.allocations, 0);
    assert_int_equal(w.timings, 0);
    assert_int_equal(w.n_issued, 0);
    assert_int_equal(w.e->n_eager_steps, 0);
    assert_true(synthetic_checksum(w.e->model) == weights);
    mm3_session_close(&s);
    mm3_engine_close(&w.e);
}

/* The largest batch always has its graph, whatever the list. */
static void test_largest(void **state)
{
    static const struct {
        int max_batch;
        const char *shapes;
        int n_graphs;
    } want[] = { { 1, NULL, 1 },  { 7, NULL, 4 },         { 700, NULL, 16 },
                 { 700, "8", 2 }, { 7, "1,2,4,8,16", 4 }, { 3, "", 1 } };
    (void)state;
    for (int i = 0; i < MM3_COUNT(want); i++) {
        mm3_options o = MM3_OPTIONS_INIT;
        mm3_engine *e;
        o.synthetic = small;
        o.tune = "off";
        o.context = 64;
        o.chunk = 1;
        o.max_batch = want[i].max_batch;
        o.graph_shapes = want[i].shapes;
        e = open_engine(o);
        assert_int_equal(e->n_graphs, want[i].n_graphs);
        assert_int_equal(e->graph[e->n_graphs - 1].m, want[i].max_batch);
        for (int m = 1; m <= want[i].max_batch; m++) {
            assert_non_null(mm3__decode_graph_for(e, m));
            assert_true(mm3__decode_graph_for(e, m)->m >= m);
        }
        assert_null(mm3__decode_graph_for(e, want[i].max_batch + 1));
        assert_int_equal(e->n_eager_steps, 0);
        mm3_engine_close(&e);
    }
}

/* ---- many sequences ---------------------------------------------------------------------------------------------- */

enum { MAX_SEQUENCES = 40, MAX_NEW = 64 };

typedef struct crowd crowd;
typedef struct sequence {
    crowd *crowd;
    mm3_session *session;
    int n_new, n;
    int32_t token[MAX_NEW];
    float logprob[MAX_NEW];
} sequence;

struct crowd {
    mm3_engine *e;
    sequence s[MAX_SEQUENCES];
    int n;
    /* seen on the engine's thread: the replay under way, its tokens, and the padded rows before it */
    long replay, padded;
    int rows, padding, most_rows, padding_of_most;
    uint64_t seed;
};

static bool take(void *user, int32_t token, float logprob)
{
    sequence *s = user;
    crowd *c = s->crowd;
    s->token[s->n] = token;
    s->logprob[s->n++] = logprob;
    if (s->n == 1) return true; /* no replay made it */
    if (c->replay != c->e->n_replays) {
        c->rows = 0;
        c->padding = (int)(c->e->n_padded_rows - c->padded);
        c->replay = c->e->n_replays;
        c->padded = c->e->n_padded_rows;
    }
    if (++c->rows > c->most_rows) {
        c->most_rows = c->rows;
        c->padding_of_most = c->padding;
    }
    return true;
}

static void *generate(void *user)
{
    sequence *s = user;
    mm3_sampling how = MM3_SAMPLING_GREEDY;
    how.temperature = 0.8f;
    how.top_p = 0.95f;
    how.seed = s->crowd->seed + (uint64_t)(s - s->crowd->s);
    EXPECT_OK(mm3_session_generate(s->session, &how, s->n_new, NULL, 0, take, s, NULL, NULL));
    return NULL;
}

/* n sequences with prompts of the given lengths decode together. */
static void run_crowd(crowd *c, mm3_engine *e, int n, const int *length, int n_lengths, int n_new)
{
    pthread_t thread[MAX_SEQUENCES];
    int32_t *prompt = malloc((size_t)e->context * sizeof *prompt);
    memset(c, 0, sizeof *c);
    c->e = e;
    c->n = n;
    c->seed = 11;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < e->context; j++) prompt[j] = (j * 7919 + i * 31 + 5) % e->model->config.vocab_size;
        c->s[i] = (sequence){ .crowd = c, .n_new = n_new };
        EXPECT_OK(mm3_session_open(&c->s[i].session, e));
        EXPECT_OK(mm3_session_sync(c->s[i].session, prompt, length[i % n_lengths]));
    }
    c->replay = e->n_replays;
    c->padded = e->n_padded_rows;
    for (int i = 0; i < n; i++) assert_int_equal(pthread_create(&thread[i], NULL, generate, &c->s[i]), 0);
    for (int i = 0; i < n; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < n; i++) {
        assert_int_equal(c->s[i].n, n_new);
        mm3_session_close(&c->s[i].session);
    }
    free(prompt);
}

static void assert_same_crowd(const crowd *a, const crowd *b)
{
    for (int i = 0; i < a->n; i++) {
        assert_memory_equal(a->s[i].token, b->s[i].token, (size_t)a->s[i].n * sizeof(int32_t));
        assert_memory_equal(a->s[i].logprob, b->s[i].logprob, (size_t)a->s[i].n * sizeof(float));
    }
}

/* 24 and 40 rows in a list that has neither: the graphs of 32 and 48, with the tokens that eager steps give; 64 of
 * them, with KV pages of either type. */
static void test_next_larger_graph(void **state)
{
    static const int length[] = { 3, 9, 1, 126, 20 };
    static crowd in_graphs, eager;
    mm3_options o = MM3_OPTIONS_INIT;
    mm3_engine *e, *without;
    (void)state;
    o.synthetic = small;
    o.tune = "off";
    o.context = 256;
    o.chunk = 32;
    o.max_batch = 48;
    o.graph_shapes = "1,2,4,8,16,32,48";
    for (int n = 24; n <= 40; n += 16) {
        o.kv_dtype = n == 24 ? "f32" : "bf16";
        o.graphs = "on";
        e = open_engine(o);
        o.graphs = "off";
        without = open_engine(o);
        run_crowd(&in_graphs, e, n, length, MM3_COUNT(length), MAX_NEW);
        assert_int_equal(in_graphs.most_rows, n); /* they did decode together */
        assert_int_equal(in_graphs.padding_of_most, 8);
        assert_int_equal(mm3__decode_graph_for(e, n)->m, n + 8);
        run_crowd(&eager, without, n, length, MM3_COUNT(length), MAX_NEW);
        assert_same_crowd(&in_graphs, &eager);
        assert_int_equal(e->n_eager_steps, 0);
        assert_int_equal(without->n_replays, 0);
        assert_true(without->n_eager_steps > 0);
        mm3_engine_close(&e);
        mm3_engine_close(&without);
    }
}

/* Six sequences whose contexts cross a page, and the length from which blocks are chosen. */
static void test_edges(void **state)
{
    static const int length[] = { 126, 2046, 126, 2046, 2047, 127 };
    static crowd in_graphs, eager;
    mm3_options o = MM3_OPTIONS_INIT;
    mm3_engine *e, *without;
    (void)state;
    o.synthetic = "m3,layers=2,experts=4,vocab=512,hidden=64,heads=2,kv_heads=1,intermediate=64,"
                  "expert_intermediate=32,top_k=2";
    o.tune = "off";
    o.context = 2100;
    o.chunk = 128;
    o.max_batch = 6;
    e = open_engine(o);
    assert_true(mm3__decode_graph_for(e, 6)->m == 6);
    run_crowd(&in_graphs, e, 6, length, 6, 10);
    mm3_engine_close(&e);
    o.graphs = "off";
    without = open_engine(o);
    run_crowd(&eager, without, 6, length, 6, 10);
    assert_same_crowd(&in_graphs, &eager);
    mm3_engine_close(&without);
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

static json_t *measure(mm3_engine *e, const char *spec)
{
    char *text;
    json_t *o;
    EXPECT_OK(mm3_engine_measure(e, spec, &text));
    EXPECT_OK(mm3_json_parse(&o, text, strlen(text), "result"));
    mm3_free(text);
    return o;
}

static int64_t whole(const json_t *o, const char *key) { return json_integer_value(json_object_get(o, key)); }

static void assert_times(const json_t *list, int n)
{
    assert_int_equal(json_array_size(list), n);
    for (int i = 0; i < n; i++) assert_true(json_number_value(json_array_get(list, (size_t)i)) > 0);
}

static atomic_bool is_running;

/* In the middle of the sequence: wait until the measuring job is queued. */
static bool take_and_wait(void *user, int32_t token, float logprob)
{
    sequence *s = user;
    mm3_engine *e = s->crowd->e;
    if (s->n == 5) atomic_store(&is_running, true);
    for (bool queued = s->n != 5; !queued; usleep(100)) {
        pthread_mutex_lock(&e->lock);
        queued = e->queue_head != NULL;
        pthread_mutex_unlock(&e->lock);
    }
    return take(user, token, logprob);
}

static void generate_one(sequence *s, mm3_on_token *on_one)
{
    mm3_sampling greedy = MM3_SAMPLING_GREEDY;
    s->n = 0;
    EXPECT_OK(mm3_session_generate(s->session, &greedy, s->n_new, NULL, 0, on_one, s, NULL, NULL));
}

static void *generate_and_wait(void *user)
{
    generate_one(user, take_and_wait);
    return NULL;
}

/* What it says, and that sequences do not notice it. */
static void test_measure(void **state)
{
    mm3_options o = MM3_OPTIONS_INIT;
    mm3_engine *e;
    static crowd c;
    sequence *s = &c.s[0];
    pthread_t thread;
    char *none;
    json_t *r;
    int32_t prompt[40], *alone = malloc(MAX_NEW * sizeof *alone);
    double bytes = 0;
    int calls = 0;
    (void)state;
    for (int i = 0; i < 40; i++) prompt[i] = i * 3;
    o.synthetic = small;
    o.context = 300;
    o.chunk = 8;
    o.max_batch = 8;
    o.graph_shapes = "4,8";
    o.tune_budget_s = 2;
    e = open_engine(o);
    c.e = e;
    *s = (sequence){ .crowd = &c, .n_new = MAX_NEW };
    EXPECT_OK(mm3_session_open(&s->session, e));
    EXPECT_OK(mm3_session_sync(s->session, prompt, 40));
    generate_one(s, take);
    memcpy(alone, s->token, MAX_NEW * sizeof *alone);

    EXPECT_OK(mm3_session_sync(s->session, prompt, 40));
    assert_int_equal(pthread_create(&thread, NULL, generate_and_wait, s), 0);
    while (!atomic_load(&is_running)) usleep(100);
    r = measure(e, "{\"m\":3,\"context\":200,\"rounds\":4}");
    pthread_join(thread, NULL);
    assert_memory_equal(s->token, alone, MAX_NEW * sizeof *alone);

    assert_int_equal(whole(r, "m"), 3);
    assert_int_equal(whole(r, "graph"), 4);
    assert_int_equal(whole(r, "context"), 200);
    assert_int_equal(whole(r, "rounds"), 4);
    assert_int_equal(whole(r, "allocations"), 0);
    assert_int_equal(json_array_size(json_object_get(r, "pairs")), 3);
    for (size_t i = 0; i < 3; i++) {
        static const char *const names[][2] = { { "graph", "eager" }, { "winners", "natives" }, { "graph", "exact" } };
        const json_t *p = json_array_get(json_object_get(r, "pairs"), i);
        assert_string_equal(json_string_value(json_object_get(p, "a")), names[i][0]);
        assert_string_equal(json_string_value(json_object_get(p, "b")), names[i][1]);
        assert_times(json_object_get(p, "a_s"), 4);
        assert_times(json_object_get(p, "b_s"), 4);
    }
    for (size_t i = 0; i < json_array_size(json_object_get(r, "ops")); i++) {
        const json_t *p = json_array_get(json_object_get(r, "ops"), i);
        assert_times(json_object_get(p, "s"), 4);
        bytes += json_number_value(json_object_get(p, "bytes"));
        calls += (int)whole(p, "calls");
    }
    /* embed, angles; 3 x (norm, qkv, rope, attention, quantize, o, norm, gate_up, act, down); 2 x (select, router
     * linear, router, experts: linear, act, linear, sum); norm, head, sample */
    assert_int_equal(calls, 2 + 3 * 10 + 2 * 7 + 3);
    assert_true(fabs(bytes / json_number_value(json_object_get(r, "bytes")) - 1) < 1e-9);
    /* between the weights of a token alone and all weights, and some for activations and the cache */
    assert_true(bytes > (double)e->model->step_bytes && bytes < 2.0 * (double)e->model->weight_bytes + 3e6);
    assert_true(json_number_value(json_object_get(r, "experts_hit")) >= 2);
    assert_true(json_number_value(json_object_get(r, "experts_hit")) <= 6);
    json_decref(r);

    mm3_session_close(&s->session); /* all pages are needed */
    r = measure(e, "{\"m\":8,\"rounds\":1}");
    assert_int_equal(whole(r, "context"), 300);
    assert_int_equal(json_array_size(json_object_get(r, "pairs")), 2); /* no padding, nothing exact to compare with */
    json_decref(r);
    EXPECT_FAIL(mm3_engine_measure(e, "{\"m\":9}", &none), MM3_ERR_ARG, "9 rows");
    EXPECT_FAIL(mm3_engine_measure(e, "{\"m\":0}", &none), MM3_ERR_FORMAT, "\"m\"");
    EXPECT_FAIL(mm3_engine_measure(e, "{\"m\":1,\"context\":301}", &none), MM3_ERR_FORMAT, "300");
    EXPECT_FAIL(mm3_engine_measure(e, "m=1", &none), MM3_ERR_FORMAT, "measure");
    assert_null(none);
    free(alone);
    mm3_engine_close(&e);

    o.max_batch = 2; /* two sequences of two pages each do not go beside one that holds a page */
    o.kv_gb = 4.5 * 128 * (3 * 2 * 2 * 128 * 4 + 2 * 128 * 4) * 1e-9;
    e = open_engine(o);
    EXPECT_OK(mm3_session_open(&s->session, e));
    EXPECT_OK(mm3_session_sync(s->session, prompt, 40));
    EXPECT_FAIL(mm3_engine_measure(e, "{\"m\":2,\"context\":129,\"rounds\":1}", &none), MM3_ERR_NOMEM,
                "3 of 4 are free");
    json_decref(measure(e, "{\"m\":2,\"context\":128,\"rounds\":1}"));
    mm3_session_close(&s->session);
    mm3_engine_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_nothing_but_replays), cmocka_unit_test(test_largest),
                                        cmocka_unit_test(test_next_larger_graph), cmocka_unit_test(test_edges),
                                        cmocka_unit_test(test_measure) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
