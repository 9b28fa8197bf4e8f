/* Engine and sessions through mm3.h alone: caches, batches from several threads, limits, errors, determinism. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "mm3.h"
#include "support/checkpoint.h"
#include "support/temp_dir.h"

enum { N_PROMPT = 300, MAX_NEW = 24 };
static const mm3_sampling greedy = MM3_SAMPLING_GREEDY;
static int32_t prompt[N_PROMPT];

static mm3_engine *open_tiny(mm3_options o)
{
    mm3_engine *e = NULL;
    o.model_dir = "models/tiny-m3";
    o.tune = "off"; /* bits are compared between batches and chunks */
    assert_int_equal(mm3_engine_open(&e, &o), MM3_OK);
    return e;
}

typedef struct taken {
    int n, stop_after;
    int32_t token[64];
    float logprob[64];
} taken;

static bool take(void *user, int32_t token, float logprob)
{
    taken *t = user;
    t->token[t->n] = token;
    t->logprob[t->n++] = logprob;
    return t->n != t->stop_after;
}

static void generate(mm3_session *s, const mm3_sampling *how, int n, taken *t)
{
    int n_new;
    memset(t, 0, sizeof *t);
    assert_int_equal(mm3_session_generate(s, how, n, NULL, 0, take, t, &n_new, NULL), MM3_OK);
    assert_int_equal(n_new, n);
    assert_int_equal(t->n, n);
}

static void generate_fresh(mm3_engine *e, const int32_t *tokens, int n_tokens, const mm3_sampling *how, int n, taken *t)
{
    mm3_session *s;
    assert_int_equal(mm3_session_open(&s, e), MM3_OK);
    assert_int_equal(mm3_session_sync(s, tokens, n_tokens), MM3_OK);
    generate(s, how, n, t);
    mm3_session_close(&s);
}

static float *logits_of(mm3_engine *e, mm3_session *s)
{
    float *l = malloc((size_t)mm3_engine_vocab_size(e) * sizeof *l);
    assert_int_equal(mm3_session_logits(s, l), MM3_OK);
    return l;
}

static void assert_same_logits(mm3_engine *e, mm3_session *a, mm3_session *b)
{
    float *x = logits_of(e, a), *y = logits_of(e, b);
    assert_memory_equal(x, y, (size_t)mm3_engine_vocab_size(e) * sizeof *x);
    free(x);
    free(y);
}

/* Extending, cutting, replacing a cached sequence equals a cold run; so do logits after generate. */
static void test_sync(void **state)
{
    static const int lengths[] = { 100, 101, 128, 129, 300, 37, 0, 1, 256, 255, 257 };
    mm3_options o = MM3_OPTIONS_INIT;
    int32_t other[N_PROMPT];
    mm3_engine *e;
    mm3_session *warm, *cold;
    taken t;
    (void)state;
    o.max_batch = 2;
    o.chunk = 64;
    e = open_tiny(o);
    assert_int_equal(mm3_session_open(&warm, e), MM3_OK);
    for (int i = 0; i < (int)(sizeof lengths / sizeof *lengths); i++) {
        memcpy(other, prompt, sizeof other);
        if (i % 3 == 2) other[lengths[i] / 2] = 9; /* diverges inside the cached part */
        assert_int_equal(mm3_session_sync(warm, other, lengths[i]), MM3_OK);
        assert_int_equal(mm3_session_length(warm), lengths[i]);
        if (lengths[i] == 0) {
            float f;
            assert_int_equal(mm3_session_logits(warm, &f), MM3_ERR_ARG);
            continue;
        }
        assert_int_equal(mm3_session_open(&cold, e), MM3_OK);
        assert_int_equal(mm3_session_sync(cold, other, lengths[i]), MM3_OK);
        assert_same_logits(e, warm, cold);
        if (i % 2) { /* continue by generation, compare with all tokens given */
            int32_t all[N_PROMPT + 8];
            generate(warm, &greedy, 5, &t);
            memcpy(all, other, sizeof other);
            memcpy(all + lengths[i], t.token, 5 * sizeof *all);
            assert_int_equal(mm3_session_sync(cold, all, lengths[i] + 5), MM3_OK);
            assert_same_logits(e, warm, cold);
        }
        mm3_session_close(&cold);
    }
    mm3_session_close(&warm);
    mm3_engine_close(&e);
    assert_null(e);
}

typedef struct worker {
    mm3_engine *engine;
    int n_prompt;
    mm3_sampling how;
    taken t;
} worker;

static void *work(void *user)
{
    worker *w = user;
    generate_fresh(w->engine, prompt, w->n_prompt, &w->how, MAX_NEW, &w->t);
    return NULL;
}

/* Sequences of several threads, more than there are slots, give what each gives alone. */
static void test_threads(void **state)
{
    enum { N = 7 };
    mm3_options o = MM3_OPTIONS_INIT;
    worker w[N];
    pthread_t thread[N];
    taken alone[N];
    mm3_engine *e;
    (void)state;
    o.max_batch = 3;
    o.chunk = 50;
    e = open_tiny(o);
    for (int i = 0; i < N; i++) {
        w[i] = (worker){ .engine = e, .n_prompt = 3 + 40 * i, .how = mm3_engine_sampling(e) };
        w[i].how.seed = (uint64_t)i;
        if (i % 2) w[i].how = greedy;
        if (i == 4) w[i].how.frequency_penalty = 1.5f;
        generate_fresh(e, prompt, w[i].n_prompt, &w[i].how, MAX_NEW, &alone[i]);
    }
    for (int i = 0; i < N; i++) assert_int_equal(pthread_create(&thread[i], NULL, work, &w[i]), 0);
    for (int i = 0; i < N; i++) {
        pthread_join(thread[i], NULL);
        assert_memory_equal(w[i].t.token, alone[i].token, MAX_NEW * sizeof(int32_t));
        assert_memory_equal(w[i].t.logprob, alone[i].logprob, MAX_NEW * sizeof(float));
    }
    mm3_engine_close(&e);
}

/* Each sampling field changes the result; the seed repeats it. */
static void test_sampling(void **state)
{
    mm3_options o = MM3_OPTIONS_INIT;
    mm3_sampling hot = MM3_SAMPLING_GREEDY, s;
    taken a, b;
    mm3_engine *e = open_tiny(o);
    (void)state;
    hot.temperature = 3.0f;
    hot.seed = 42;
    generate_fresh(e, prompt, 20, &hot, MAX_NEW, &a);
    generate_fresh(e, prompt, 20, &hot, MAX_NEW, &b);
    assert_memory_equal(a.token, b.token, MAX_NEW * sizeof(int32_t));
    s = hot;
    s.seed = 43;
    generate_fresh(e, prompt, 20, &s, MAX_NEW, &b);
    assert_memory_not_equal(a.token, b.token, MAX_NEW * sizeof(int32_t));
    generate_fresh(e, prompt, 20, &greedy, MAX_NEW, &a);
    s = hot;
    s.top_k = 1;
    generate_fresh(e, prompt, 20, &s, MAX_NEW, &b);
    assert_memory_equal(a.token, b.token, MAX_NEW * sizeof(int32_t));
    s = hot;
    s.top_p = 1e-6f;
    generate_fresh(e, prompt, 20, &s, MAX_NEW, &b);
    assert_memory_equal(a.token, b.token, MAX_NEW * sizeof(int32_t));
    s = hot;
    s.min_p = 0.999f;
    generate_fresh(e, prompt, 20, &s, MAX_NEW, &b);
    assert_memory_equal(a.token, b.token, MAX_NEW * sizeof(int32_t));
    s = greedy;
    s.presence_penalty = 100;
    generate_fresh(e, prompt, 20, &s, MAX_NEW, &b);
    for (int i = 0; i < MAX_NEW; i++)
        for (int j = 0; j < i; j++) assert_int_not_equal(b.token[i], b.token[j]);
    s = greedy;
    s.repetition_penalty = 1e9f; /* prompt tokens with positive logits can't win */
    generate_fresh(e, prompt, N_PROMPT, &s, MAX_NEW, &b);
    generate_fresh(e, prompt, N_PROMPT, &greedy, MAX_NEW, &a);
    assert_memory_not_equal(a.token, b.token, MAX_NEW * sizeof(int32_t));
    mm3_engine_close(&e);
}

static void expect_bad(mm3_session *s, mm3_sampling how, const char *word)
{
    assert_int_equal(mm3_session_generate(s, &how, 1, NULL, 0, NULL, NULL, NULL, NULL), MM3_ERR_ARG);
    assert_non_null(strstr(mm3_last_error(), word));
}

static void test_bad_arguments(void **state)
{
    mm3_options o = MM3_OPTIONS_INIT, bad;
    mm3_engine *e, *none;
    mm3_session *s;
    mm3_sampling how;
    int32_t wrong[2] = { 1, 4096 };
    (void)state;
    o.context = 64;
    e = open_tiny(o);
    assert_int_equal(mm3_session_open(&s, e), MM3_OK);
    assert_int_equal(mm3_session_generate(s, &greedy, 1, NULL, 0, NULL, NULL, NULL, NULL), MM3_ERR_ARG);
    assert_non_null(strstr(mm3_last_error(), "empty"));
    assert_int_equal(mm3_session_sync(s, prompt, 65), MM3_ERR_ARG);
    assert_non_null(strstr(mm3_last_error(), "65"));
    assert_non_null(strstr(mm3_last_error(), "64"));
    assert_int_equal(mm3_session_sync(s, wrong, 2), MM3_ERR_ARG);
    assert_non_null(strstr(mm3_last_error(), "4096"));
    assert_int_equal(mm3_session_length(s), 0);
    assert_int_equal(mm3_session_sync(s, prompt, 64), MM3_OK);
#define BAD(field, value)           \
    do {                            \
        how = greedy;               \
        how.field = (value);        \
        expect_bad(s, how, #field); \
    } while (0)
    BAD(temperature, NAN);
    BAD(temperature, -1.0f);
    BAD(temperature, INFINITY);
    BAD(top_k, -1);
    BAD(top_p, 0.0f);
    BAD(top_p, 1.1f);
    BAD(top_p, NAN);
    BAD(min_p, 1.0f);
    BAD(min_p, -0.1f);
    BAD(repetition_penalty, 0.0f);
    BAD(presence_penalty, NAN);
    BAD(frequency_penalty, INFINITY);
    mm3_session_close(&s);
    mm3_engine_close(&e);
#define BAD_OPTION(field, value, word)                              \
    do {                                                            \
        bad = (mm3_options)MM3_OPTIONS_INIT;                        \
        bad.model_dir = "models/tiny-m3";                           \
        bad.field = (value);                                        \
        assert_int_not_equal(mm3_engine_open(&none, &bad), MM3_OK); \
        assert_null(none);                                          \
        assert_non_null(strstr(mm3_last_error(), word));            \
    } while (0)
    BAD_OPTION(model_dir, NULL, "folder");
    BAD_OPTION(model_dir, "tests/golden/no-such", "no-such");
    BAD_OPTION(max_batch, 0, "max_batch");
    BAD_OPTION(chunk, -1, "chunk");
    BAD_OPTION(context, 8193, "8192");
    BAD_OPTION(kv_gb, 1e-9, "kv_gb");
    BAD_OPTION(kv_dtype, "fp4", "fp4");
    BAD_OPTION(kv_dtype, "fp8", "use f32 or bf16");
    BAD_OPTION(n_threads, -2, "threads");
    BAD_OPTION(backend, "linear=nosuch", "nosuch");
    BAD_OPTION(backend, "nosuch=native", "nosuch");
    BAD_OPTION(backend, "linear,q=1=native", "'q'");
    BAD_OPTION(backend, "linear=native/nosuch", "nosuch");
    BAD_OPTION(backend, "linear=fma256",
               "candidate fma256/"); /* known, but not for these weights: no silent fallback */
    BAD_OPTION(backend, "linear=fma256", "refuses linear m=");
    BAD_OPTION(tune, "maybe", "maybe");
}

/* The context limit, stop ids, cancellation, ids without text. */
static void test_ends(void **state)
{
    mm3_options o = MM3_OPTIONS_INIT;
    mm3_engine *e;
    mm3_session *s;
    mm3_sampling hot = MM3_SAMPLING_GREEDY;
    taken t = { 0 }, u = { 0 };
    int n_new;
    bool stopped;
    (void)state;
    o.context = 40;
    o.n_token = 4093;
    e = open_tiny(o);
    assert_int_equal(mm3_session_open(&s, e), MM3_OK);
    assert_int_equal(mm3_session_sync(s, prompt, 30), MM3_OK);
    assert_int_equal(mm3_session_generate(s, &greedy, 60, NULL, 0, take, &t, &n_new, &stopped), MM3_OK);
    assert_int_equal(n_new, 10);
    assert_false(stopped);
    assert_int_equal(mm3_session_generate(s, &greedy, 5, NULL, 0, take, &t, &n_new, &stopped), MM3_OK);
    assert_int_equal(n_new, 0);

    assert_int_equal(mm3_session_sync(s, prompt, 30), MM3_OK); /* the third token as a stop id */
    assert_int_equal(mm3_session_generate(s, &greedy, 9, &t.token[2], 1, take, &u, &n_new, &stopped), MM3_OK);
    assert_true(stopped);
    assert_true(n_new <= 3);
    assert_int_equal(u.token[n_new - 1], t.token[2]);

    memset(&u, 0, sizeof u);
    u.stop_after = 2;
    assert_int_equal(mm3_session_sync(s, prompt, 30), MM3_OK);
    assert_int_equal(mm3_session_generate(s, &greedy, 9, NULL, 0, take, &u, &n_new, &stopped), MM3_ERR_CANCELLED);
    assert_int_equal(u.n, 2);
    assert_int_equal(mm3_session_length(s), 32);
    assert_int_equal(mm3_session_sync(s, prompt, 30), MM3_OK);
    mm3_session_close(&s);
    mm3_engine_close(&e);

    o.n_token = 5; /* far fewer ids with text than logits: the others never come */
    e = open_tiny(o);
    assert_int_equal(mm3_session_open(&s, e), MM3_OK);
    hot.temperature = 50;
    for (int i = 0; i < 20; i++) {
        hot.seed = (uint64_t)i;
        memset(&t, 0, sizeof t);
        assert_int_equal(mm3_session_sync(s, prompt, 3), MM3_OK);
        assert_int_equal(mm3_session_generate(s, &hot, 20, NULL, 0, take, &t, NULL, NULL), MM3_OK);
        for (int j = 0; j < t.n; j++) assert_in_range(t.token[j], 0, 4);
    }
    mm3_session_close(&s);
    mm3_engine_close(&e);
}

/* KV pages run out: one clear error, nothing lost, and they come back. */
static void test_pages(void **state)
{
    mm3_options o = MM3_OPTIONS_INIT;
    mm3_engine *e;
    mm3_session *a, *b;
    taken t = { 0 };
    float *before, *after;
    int n_new;
    (void)state;
    o.max_batch = 2;
    o.kv_gb = 3.01 * 128 * (6.0 * 2 * 2 * 128 * 4 + 4 * 128 * 4) * 1e-9; /* three pages of tiny-m3 */
    e = open_tiny(o);
    assert_int_equal(mm3_session_open(&a, e), MM3_OK);
    assert_int_equal(mm3_session_open(&b, e), MM3_OK);
    assert_int_equal(mm3_session_sync(a, prompt, 200), MM3_OK);
    assert_int_equal(mm3_session_sync(b, prompt, 127), MM3_OK);
    before = logits_of(e, b);
    assert_int_equal(mm3_session_sync(b, prompt, 129), MM3_ERR_NOMEM);
    assert_non_null(strstr(mm3_last_error(), "KV pages"));
    assert_int_equal(mm3_session_length(b), 127);
    after = logits_of(e, b);
    assert_memory_equal(before, after, (size_t)mm3_engine_vocab_size(e) * sizeof *before);
    assert_int_equal(mm3_session_generate(b, &greedy, 9, NULL, 0, take, &t, &n_new, NULL), MM3_ERR_NOMEM);
    assert_int_equal(n_new, 2); /* token 127 still fits; evaluating token 128 does not */
    assert_int_equal(mm3_session_length(b), 129);
    mm3_session_close(&a);
    assert_int_equal(mm3_session_generate(b, &greedy, 9, NULL, 0, take, &t, &n_new, NULL), MM3_OK);
    assert_int_equal(n_new, 9);
    assert_int_equal(mm3_session_sync(b, prompt, 300), MM3_OK); /* all three */
    mm3_session_close(&b);
    free(before);
    free(after);
    mm3_engine_close(&e);
}

typedef struct scored {
    int next, vocab;
    float *last;
} scored;

static void keep(void *user, int position, const float *logits)
{
    scored *s = user;
    assert_int_equal(position, s->next++);
    memcpy(s->last, logits, (size_t)s->vocab * sizeof *logits);
}

static void test_score(void **state)
{
    mm3_options o = MM3_OPTIONS_INIT;
    mm3_engine *e = open_tiny(o);
    mm3_session *s;
    scored k = { 0, mm3_engine_vocab_size(e), malloc(4096 * sizeof(float)) };
    float *l;
    (void)state;
    assert_int_equal(mm3_session_open(&s, e), MM3_OK);
    assert_int_equal(mm3_session_score(s, prompt, N_PROMPT, keep, &k), MM3_OK);
    assert_int_equal(k.next, N_PROMPT);
    l = logits_of(e, s);
    assert_memory_equal(l, k.last, 4096 * sizeof(float));
    free(l);
    free(k.last);
    mm3_session_close(&s);
    mm3_engine_close(&e);
}

/* ---- checkpoints made for a question ----------------------------------------------------------------------------- */

static mm3_engine *open_dir(const char *dir, int context)
{
    mm3_options o = MM3_OPTIONS_INIT;
    mm3_engine *e = NULL;
    o.model_dir = dir;
    o.context = context;
    o.max_batch = 2;
    o.tune = "off";
    if (mm3_engine_open(&e, &o) != MM3_OK) fail_msg("%s", mm3_last_error());
    return e;
}

/* Logits of every position of one cold run. */
static void keep_all(void *user, int position, const float *logits)
{
    memcpy((float *)user + position * test_checkpoint_small.vocab, logits,
           (size_t)test_checkpoint_small.vocab * sizeof *logits);
}

/* A04: a cached prefix that ends anywhere within a block, where blocks are chosen (three of 128 tokens): the tokens
 * after it have the logits of a cold run. */
static void test_prefix(void **state)
{
    enum { N = 530 };
    static const int hit[] = { 3 * 128 + 1, 3 * 128 + 37, 3 * 128 + 127, 4 * 128 + 1 }, more[] = { 0, 1, 2, 8 };
    int vocab = test_checkpoint_small.vocab;
    char *dir = test_temp_dir();
    mm3_engine *e;
    mm3_session *all, *s; /* `all` stays open: what is read too early must not be there from before */
    float *cold = malloc((size_t)(N * vocab) * sizeof *cold), *l;
    int32_t token[N];
    (void)state;
    for (int i = 0; i < N; i++) token[i] = (i * 7919 + 13) % 77;
    test_checkpoint_write(dir, &test_checkpoint_small);
    e = open_dir(dir, N);
    assert_int_equal(mm3_session_open(&all, e), MM3_OK);
    assert_int_equal(mm3_session_open(&s, e), MM3_OK);
    assert_int_equal(mm3_session_score(all, token, N, keep_all, cold), MM3_OK);
    for (int i = 0; i < (int)(sizeof hit / sizeof *hit); i++)
        for (int k = 0; k < (int)(sizeof more / sizeof *more); k++) {
            int n = hit[i] + more[k];
            assert_int_equal(mm3_session_sync(s, token, n), MM3_OK);
            l = logits_of(e, s);
            assert_memory_equal(l, cold + (n - 1) * vocab, (size_t)vocab * sizeof *l);
            free(l);
        }
    free(cold);
    mm3_session_close(&s);
    mm3_session_close(&all);
    mm3_engine_close(&e);
    test_temp_dir_remove(&dir);
}

/* What a model computes with beside its weights, all of it unlike the released values. */
static void other_constants(void *user, json_t *config)
{
    json_t *text = json_object_get(config, "text_config");
    (void)user;
    json_object_update_new(text, json_pack("{s:f, s:f, s:f, s:f, s:i, s:f}", "swiglu_alpha", 0.7, "swiglu_limit", 0.5,
                                           "swiglu_beta", 0.25, "rms_norm_eps", 0.1, "rope_theta", 1000,
                                           "routed_scaling_factor", 0.5));
}

/* A35: two engines in one process with the same weights and other constants do not know of each other: each says what
 * it says by itself, whichever was opened last. */
static void test_two_engines(void **state)
{
    enum { N = 6 };
    test_checkpoint c = test_checkpoint_small;
    char *dir[2] = { test_temp_dir(), test_temp_dir() };
    mm3_engine *e[2];
    taken alone[2], beside;
    (void)state;
    test_checkpoint_write(dir[0], &c);
    c.on_config = other_constants;
    test_checkpoint_write(dir[1], &c);
    for (int i = 0; i < 2; i++) {
        e[i] = open_dir(dir[i], 128);
        generate_fresh(e[i], (const int32_t[]){ 1, 2, 3 }, 3, &greedy, N, &alone[i]);
        mm3_engine_close(&e[i]);
    }
    assert_memory_not_equal(alone[0].logprob, alone[1].logprob, N * sizeof(float));
    for (int first = 0; first < 2; first++) {
        e[first] = open_dir(dir[first], 128);
        e[!first] = open_dir(dir[!first], 128);
        for (int i = 0; i < 4; i++) {
            generate_fresh(e[i % 2], (const int32_t[]){ 1, 2, 3 }, 3, &greedy, N, &beside);
            assert_memory_equal(beside.token, alone[i % 2].token, N * sizeof(int32_t));
            assert_memory_equal(beside.logprob, alone[i % 2].logprob, N * sizeof(float));
        }
        for (int i = 0; i < 2; i++) mm3_engine_close(&e[i]);
    }
    for (int i = 0; i < 2; i++) test_temp_dir_remove(&dir[i]);
}

static void eos_of_config(void *user, json_t *config)
{
    json_object_set_new(config, "eos_token_id", json_integer(*(int32_t *)user));
}

/* D19: the ids of config.json and of generation_config.json are joined; each ends a message, and none where the caller
 * does not ask for it. */
static void test_stop_ids(void **state)
{
    enum { FIRST = 2, SECOND = 5 };
    test_checkpoint c = test_checkpoint_small;
    char *dir = test_temp_dir(), text[80];
    const int32_t *stop;
    mm3_engine *e;
    mm3_session *s;
    mm3_sampling hot = MM3_SAMPLING_GREEDY;
    taken all, t = { 0 };
    int n_stop, n_new;
    bool stopped;
    (void)state;
    hot.temperature = 20; /* many different tokens */
    hot.seed = 3;
    test_checkpoint_write(dir, &c);
    e = open_dir(dir, 128);
    generate_fresh(e, (const int32_t[]){ 1, 2, 3 }, 3, &hot, MAX_NEW, &all);
    mm3_engine_close(&e);
    for (int i = 0; i < SECOND; i++) assert_int_not_equal(all.token[i], all.token[SECOND]);
    for (int i = 0; i < FIRST; i++) assert_int_not_equal(all.token[i], all.token[FIRST]);

    c.on_config = eos_of_config;
    c.user = &all.token[SECOND];
    test_checkpoint_write(dir, &c);
    snprintf(text, sizeof text, "{\"eos_token_id\": [%d, %d]}", (int)all.token[FIRST], (int)all.token[SECOND]);
    test_write_text(dir, "generation_config.json", text);
    e = open_dir(dir, 128);
    stop = mm3_engine_stop_ids(e, &n_stop);
    assert_int_equal(n_stop, 2);
    assert_int_equal(stop[0], all.token[SECOND]);
    assert_int_equal(stop[1], all.token[FIRST]);
    assert_int_equal(mm3_session_open(&s, e), MM3_OK);
    for (int i = 0; i < 4; i++) { /* both: the first to come; one alone; none, as with an ignored end */
        int want = i == 0 || i == 2 ? FIRST + 1 : i == 1 ? SECOND + 1 : MAX_NEW;
        memset(&t, 0, sizeof t);
        assert_int_equal(mm3_session_sync(s, (const int32_t[]){ 1, 2, 3 }, 3), MM3_OK);
        assert_int_equal(mm3_session_generate(s, &hot, MAX_NEW, i == 2 ? stop + 1 : stop, i == 0 ? 2 : i < 3, take, &t,
                                              &n_new, &stopped),
                         MM3_OK);
        assert_int_equal(n_new, want);
        assert_int_equal(stopped, i < 3);
        assert_memory_equal(t.token, all.token, (size_t)want * sizeof(int32_t));
    }
    mm3_session_close(&s);
    mm3_engine_close(&e);
    test_temp_dir_remove(&dir);
}

static void nan_for_token_7(void *user, const char *name, float *x, size_t n)
{
    (void)user, (void)n;
    if (strstr(name, "embed_tokens")) x[7 * 96 + 5] = NAN;
}

/* A NaN among the weights is an error of the sequence that meets it, by name, and of no other. */
static void test_nan_weight(void **state)
{
    test_checkpoint c = test_checkpoint_small;
    char *dir = test_temp_dir();
    mm3_engine *e;
    mm3_session *bad, *good;
    taken alone, after;
    (void)state;
    c.on_values = nan_for_token_7;
    test_checkpoint_write(dir, &c);
    e = open_dir(dir, 128);
    generate_fresh(e, (const int32_t[]){ 1, 2, 3 }, 3, &greedy, 3, &alone);
    assert_int_equal(mm3_session_open(&bad, e), MM3_OK);
    assert_int_equal(mm3_session_open(&good, e), MM3_OK);
    assert_int_equal(mm3_session_sync(good, (const int32_t[]){ 1, 2, 3 }, 3), MM3_OK);
    assert_int_equal(mm3_session_sync(bad, (const int32_t[]){ 1, 7, 3 }, 3), MM3_OK);
    assert_int_equal(mm3_session_generate(bad, &greedy, 3, NULL, 0, NULL, NULL, NULL, NULL), MM3_ERR_DEVICE);
    assert_non_null(strstr(mm3_last_error(), "NaN among the logits after 3 tokens"));
    generate(good, &greedy, 3, &after);
    assert_memory_equal(after.logprob, alone.logprob, 3 * sizeof(float));
    mm3_session_close(&bad);
    mm3_session_close(&good);
    mm3_engine_close(&e);
    test_temp_dir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sync),          cmocka_unit_test(test_threads),     cmocka_unit_test(test_sampling),
        cmocka_unit_test(test_bad_arguments), cmocka_unit_test(test_ends),        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_score),         cmocka_unit_test(test_two_engines), cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_stop_ids),      cmocka_unit_test(test_nan_weight),
    };
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = (i * 7919 + 13) % 4000;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
