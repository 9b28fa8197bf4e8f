/* Memory that runs out, at every allocation of an engine's life and of the text functions: opening, tuning, a strict
 * plan, generating, what can be asked, closing. The k-th allocation fails, alone or with all that follow. What is
 * promised each time: an error that says so, or, within tuning, a run that goes on; no crash; what was there before is
 * as before; and the same thing done again succeeds. Leaks are what a build with SAN=-fsanitize=address,undefined
 * shows.
 *   usage  test_alloc_faults [N [TEST]]   N times as many k (1000: every one); else what takes some seconds */
#include <stdio.h>
#include <stdlib.h>

#include "support/alloc_faults.h"
#include "support/checkpoint.h"
#include "support/expect.h"
#include "support/plan_cache.h"
#include "support/temp_dir.h"
#include "tune/tune.h"

static long more = 1;
static char *dir; /* the checkpoint */

/* Something that may fail for want of memory; leaves nothing open. */
typedef mm3_status scene(void *user);

/* The error says that memory is short, in one line. */
static void check_error(const char *what, long k, mm3_status st)
{
    const char *text = mm3_last_error();
    if (st != MM3_ERR_NOMEM) fail_msg("%s, allocation %ld: %s: %s", what, k, mm3_status_name(st), text);
    if (!strstr(text, "memory") && !strstr(text, "cannot start")) fail_msg("%s, allocation %ld: %s", what, k, text);
    if (strchr(text, '\n')) fail_msg("%s, allocation %ld: more than one line", what, k);
}

/* Play the scene with each allocation failing in turn, until none is reached. About `n_points` of them.
 *   survives  whether the scene may succeed although one failed
 *   returns how often it did */
static int play(const char *what, scene *f, void *user, bool json, long n_points, bool survives)
{
    int n_survived = 0, n_failed = 0;
    long n, step;
    double start = mm3_now_s();
    alloc_json_counts(json);
    alloc_fail_at(0);
    EXPECT_OK(f(user));
    n = alloc_count();
    step = MM3_MAX(1, n / (n_points * more));
    for (int from = 0; from < 2; from++)
        for (long k = 1;; k += step) {
            mm3_status st;
            bool failed;
            from ? alloc_fail_from(k) : alloc_fail_at(k);
            st = f(user);
            failed = alloc_has_failed();
            alloc_fail_at(0);
            if (st != MM3_OK) {
                check_error(what, k, st);
                n_failed++;
            }
            if (!failed) break;
            if (st == MM3_OK && !survives) fail_msg("%s: allocation %ld failed, and nobody says so", what, k);
            n_survived += st == MM3_OK;
        }
    EXPECT_OK(f(user));
    alloc_json_counts(false);
    print_message("# %s: %ld allocations, every %ld., %d errors, %d survived, %.1f s\n", what, n, step, n_failed,
                  n_survived, mm3_now_s() - start);
    return n_survived;
}

static mm3_options small(void)
{
    mm3_options o = MM3_OPTIONS_INIT;
    o.model_dir = dir;
    o.n_threads = 2;
    o.context = 256;
    o.chunk = 32;
    o.max_batch = 2;
    o.tune = "off";
    return o;
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

static mm3_status open_and_close(void *user)
{
    mm3_engine *e = NULL;
    mm3_status st = mm3_engine_open(&e, user);
    assert_true((st == MM3_OK) == (e != NULL));
    mm3_engine_close(&e);
    return st;
}

static void test_open(void **state)
{
    mm3_options o = small();
    (void)state;
    play("open", open_and_close, &o, false, 100, false);
    play("open, and jansson", open_and_close, &o, true, 60, false);
    o.model_dir = NULL;
    o.synthetic = "m3,layers=2,experts=4,vocab=64,hidden=64,heads=2,kv_heads=1,intermediate=64,expert_intermediate=32,"
                  "top_k=2,routing=zipf";
    play("open a synthetic model", open_and_close, &o, false, 20, false);
}

/* ---- use --------------------------------------------------------------------------------------------------------- */

enum { N_PROMPT = 40, MAX_NEW = 6 };
static const mm3_sampling penalized = { .repetition_penalty = 1.1f, .top_p = 1, .frequency_penalty = 0.1f };

typedef struct heard {
    int32_t token[MAX_NEW];
    int n;
} heard;

static bool hear(void *user, int32_t token, float logprob)
{
    heard *h = user;
    (void)logprob;
    h->token[h->n++] = token;
    return true;
}

static void ignore_logits(void *user, int position, const float *logits)
{
    (void)user;
    (void)position;
    (void)logits;
}

static mm3_status use_session(mm3_engine *e, heard *h)
{
    mm3_status st = MM3_OK;
    mm3_session *s = NULL;
    int32_t prompt[N_PROMPT];
    float logits[77];
    h->n = 0;
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = i % 7;
    MM3_GOTO(mm3_session_open(&s, e));
    MM3_GOTO(mm3_session_sync(s, prompt, N_PROMPT));
    MM3_GOTO(mm3_session_generate(s, &penalized, MAX_NEW, NULL, 0, hear, h, NULL, NULL));
    MM3_GOTO(mm3_session_logits(s, logits));
    MM3_GOTO(mm3_session_score(s, prompt, N_PROMPT, ignore_logits, NULL));
done:
    mm3_session_close(&s);
    return st;
}

static mm3_engine *engine;
static heard expected;

static mm3_status use_open_engine(void *user)
{
    heard h;
    mm3_status st = use_session(engine, &h);
    (void)user;
    assert_memory_equal(h.token, expected.token, (size_t)h.n * sizeof h.token[0]);
    if (st == MM3_OK) assert_int_equal(h.n, MAX_NEW);
    return st;
}

/* An engine that is new each time: what it makes at its first use may fail too. */
static mm3_status use_new_engine(void *user)
{
    heard h;
    mm3_status st = mm3_engine_open(&engine, user);
    if (st != MM3_OK) return st;
    st = use_session(engine, &h);
    assert_memory_equal(h.token, expected.token, (size_t)h.n * sizeof h.token[0]);
    mm3_engine_close(&engine);
    return st;
}

static int count_quotes(const char *json)
{
    int n = 0;
    for (; *json; json++) n += *json == '"' || *json == ':';
    return n;
}

static mm3_status ask(void *user)
{
    char *text = NULL;
    mm3_status st = mm3_engine_info(engine, &text);
    const char *want = user;
    assert_true((st == MM3_OK) == (text != NULL));
    if (st == MM3_OK) assert_int_equal(count_quotes(text), count_quotes(want)); /* nothing is left out */
    mm3_free(text);
    if (st != MM3_OK) return st;
    st = mm3_engine_plan(engine, &text);
    assert_true((st == MM3_OK) == (text != NULL));
    mm3_free(text);
    return st;
}

static mm3_status measure(void *user)
{
    char *text = NULL;
    mm3_status st = mm3_engine_measure(engine, user, &text);
    assert_true((st == MM3_OK) == (text != NULL));
    mm3_free(text);
    return st;
}

static void test_use(void **state)
{
    mm3_options o = small();
    char *info;
    (void)state;
    EXPECT_OK(mm3_engine_open(&engine, &o));
    EXPECT_OK(use_session(engine, &expected));
    play("use", use_open_engine, NULL, true, 1000, false);
    EXPECT_OK(mm3_engine_info(engine, &info));
    mm3_free(info);
    EXPECT_OK(mm3_engine_info(engine, &info));
    play("ask", ask, info, true, 1000, false);
    mm3_free(info);
    play("measure", measure, "{\"m\": 1, \"context\": 64, \"seconds\": 0.001}", true, 12, false);
    EXPECT_OK(use_open_engine(NULL));
    mm3_engine_close(&engine);
    o.graphs = "off";
    play("open and use without graphs", use_new_engine, &o, false, 40, false);
}

/* ---- tuning ------------------------------------------------------------------------------------------------------ */

/* What each run leaves open; all else is pinned to the first of its list. Parts come with their chain. */
static const mm3_op_id open_ops[][3] = {
    { MM3_OP_ADD_RMSNORM, MM3_OP_QUANTIZE, MM3_OP_ADD_RMSNORM_QUANTIZE },
    { MM3_OP_SWIGLU, MM3_OP_QUANTIZE, MM3_OP_SWIGLU_QUANTIZE },
    { MM3_OP_QK_NORM_ROPE, MM3_OP_INDEX_SELECT, MM3_OP_ATTENTION },
    { MM3_OP_MOE_SUM, MM3_OP_MOE_LINEAR, MM3_OP_SAMPLE },
    { MM3_OP_LINEAR, MM3_OP_LINEAR, MM3_OP_LINEAR },
};

static char *pins_but(const mm3_op_id *open)
{
    mm3_buf b = { 0 };
    char *text;
    for (int op = 0; op < MM3_N_OPS; op++) {
        const mm3_kernel *k[MM3_MAX_CANDIDATES];
        if ((mm3_op_id)op == open[0] || (mm3_op_id)op == open[1] || (mm3_op_id)op == open[2]) continue;
        if (mm3_kernels_of((mm3_op_id)op, "cpu", k, MM3_MAX_CANDIDATES) < 1) continue;
        mm3_buf_printf(&b, "%s%s=%s", b.n ? ";" : "", mm3_op_info_of((mm3_op_id)op)->name, k[0]->name);
    }
    EXPECT_OK(mm3_buf_take(&b, &text, NULL));
    return text;
}

/* An allocation that failed within tuning cost a candidate or a file, and the summary says so. */
static void check_said(void)
{
    char *text;
    json_t *info, *tuning;
    EXPECT_OK(mm3_engine_info(engine, &text));
    assert_non_null(info = json_loads(text, 0, NULL));
    tuning = json_object_get(info, "tuning");
    if (json_integer_value(json_object_get(tuning, "rejected")) == 0 &&
        json_integer_value(json_object_get(tuning, "untimed")) == 0 &&
        json_array_size(json_object_get(tuning, "warnings")) == 0)
        fail_msg("an allocation failed, and the tuner does not say so");
    json_decref(info);
    mm3_free(text);
}

/* In a process that remembers nothing. */
static mm3_status tune_and_use(void *user)
{
    heard h;
    mm3_status st;
    mm3_plan_memory_clear();
    st = mm3_engine_open(&engine, user);
    if (st != MM3_OK) return st;
    alloc_pause(true);
    if (alloc_has_failed()) check_said();
    EXPECT_OK(use_session(engine, &h));
    alloc_pause(false);
    mm3_engine_close(&engine);
    return MM3_OK;
}

/* The cache file holds another model's decision; whatever fails, it is still there afterwards. */
static const char *of_another_model;

static mm3_status open_with_cache(void *user)
{
    const mm3_options *o = user;
    mm3_status st = tune_and_use(user);
    char *path, *text;
    alloc_pause(true);
    path = plan_cache_file(o->plan_cache);
    EXPECT_OK(mm3_read_all(path, 1 << 20, &text, NULL));
    if (!strstr(text, of_another_model)) fail_msg("the cache file lost what others had put there:\n%s", text);
    mm3_free(text);
    mm3_free(path);
    alloc_pause(false);
    return st;
}

static void test_tuning(void **state)
{
    int n_survived = 0;
    char *cache = test_temp_dir(), *path = plan_cache_file(cache), *plan;
    mm3_options o = small();
    (void)state;
    o.n_threads = 1;
    o.max_batch = 1;
    o.plan_cache = cache;
    o.tune_budget_s = 0.1;
    o.tune = "force";
    for (int i = 0; i < MM3_COUNT(open_ops); i++) {
        char *pins = pins_but(open_ops[i]);
        o.backend = pins;
        o.deterministic = i % 2;
        n_survived += play("tune", tune_and_use, &o, i % 2, 6, true);
        mm3_free(pins);
    }
    assert_true(n_survived > 0);
    of_another_model = plan_cache_add_foreign(path);
    o.deterministic = false;
    o.backend = pins_but(open_ops[3]);
    o.tune = "auto";
    play("tune, with a cache", open_with_cache, &o, false, 20, true);

    EXPECT_OK(mm3_engine_open(&engine, &o));
    EXPECT_OK(mm3_engine_plan(engine, &plan));
    mm3_engine_close(&engine);
    test_write_text(dir, "a.plan", plan);
    mm3_free(plan);
    plan = test_path(dir, "a.plan");
    mm3_free((char *)(uintptr_t)o.backend);
    o.backend = NULL;
    o.plan_cache = NULL;
    o.plan = plan;
    play("open with a plan", tune_and_use, &o, false, 60, false);
    free(plan);
    mm3_free(path);
    test_temp_dir_remove(&cache);
    mm3_plan_memory_clear();
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* Without the memory for compiled patterns PCRE2 interprets them: slower, and the same. */
static mm3_status open_tokenizer(void *user)
{
    static const int32_t want[] = { 1562, 260, 2562 }; /* "In the beginning" */
    mm3_tokenizer *t = NULL;
    int32_t *ids;
    int n;
    mm3_status st = mm3_tokenizer_open(&t, user);
    assert_true((st == MM3_OK) == (t != NULL));
    if (st != MM3_OK) return st;
    alloc_pause(true);
    EXPECT_OK(mm3_tokenizer_encode(t, "In the beginning", 16, false, &ids, &n));
    assert_int_equal(n, 3);
    assert_memory_equal(ids, want, sizeof want);
    mm3_free(ids);
    alloc_pause(false);
    mm3_tokenizer_close(&t);
    return st;
}

static const char tools[] = "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": "
                            "\"object\", \"properties\": {\"n\": {\"type\": \"integer\"}, \"a\": {\"type\": \"array\", "
                            "\"items\": {\"type\": \"number\"}}}}}}]";
static const char messages[] =
    "[{\"role\": \"system\", \"content\": \"brief\"}, {\"role\": \"user\", \"content\": [{\"type\": \"text\", "
    "\"text\": \"go \\u00e9\"}]}, {\"role\": \"assistant\", \"reasoning_content\": \"why\", \"content\": \"so\", "
    "\"tool_calls\": [{\"id\": \"1\", \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": "
    "\"{\\\"n\\\": "
    "12345678901234567890123, \\\"a\\\": [1, 2.5e3]}\"}}]}, {\"role\": \"tool\", \"content\": \"done\"}]";
#define NS "]<]minimax[>["
static const char answer[] = "why</mm:think>so " NS "<tool_call>" NS "<invoke name=\"f\">" NS "<n>7" NS "</n>" NS
                             "<a>" NS "<item>1" NS "</item>" NS "</a>" NS "</invoke>" NS "</tool_call>";

/* The texts of a run, one after the other: the same each time that nothing failed. */
static mm3_tokenizer *tokenizer;
static mm3_buf first_texts;

static mm3_status speak(void *user)
{
    mm3_status st = MM3_OK;
    mm3_buf all = { 0 };
    mm3_decoder *decoder = NULL;
    mm3_parser *parser = NULL;
    int32_t *ids = NULL;
    char *text = NULL;
    const char *piece;
    size_t n_bytes;
    int n;
    (void)user;
    MM3_GOTO(mm3_chat_encode(tokenizer, messages, tools, "enabled", true, &ids, &n));
    MM3_GOTO(mm3_tokenizer_decode(tokenizer, ids, n, true, &text, &n_bytes));
    mm3_buf_add(&all, text, n_bytes);
    MM3_GOTO(mm3_decoder_open(&decoder, tokenizer, true));
    for (int i = 0; i < n; i++) {
        MM3_GOTO(mm3_decoder_push(decoder, ids[i], &piece));
        mm3_buf_puts(&all, piece);
    }
    MM3_GOTO(mm3_parser_open(&parser, tools, "enabled"));
    mm3_free(text);
    text = NULL;
    MM3_GOTO(mm3_parser_push(parser, answer, strlen(answer), true, &text));
    mm3_buf_puts(&all, text);
    if (all.failed) {
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory in the test itself");
        goto done;
    }
    if (first_texts.n == 0) {
        first_texts = all;
        all = (mm3_buf){ 0 };
    } else {
        assert_string_equal(all.data, first_texts.data);
    }
done:
    mm3_parser_close(&parser);
    mm3_decoder_close(&decoder);
    mm3_free(ids);
    mm3_free(text);
    mm3_buf_free(&all);
    return st;
}

static void test_text(void **state)
{
    (void)state;
    play("open a tokenizer", open_tokenizer, "models/tiny-m3", true, 300, true);
    EXPECT_OK(mm3_tokenizer_open(&tokenizer, "models/tiny-m3"));
    EXPECT_OK(speak(NULL));
    assert_non_null(strstr(first_texts.data, "12345678901234567890123"));
    assert_non_null(strstr(first_texts.data, "{\\\"n\\\": 7, \\\"a\\\": [1]}"));
    play("text", speak, NULL, true, 2000, false);
    mm3_tokenizer_close(&tokenizer);
    mm3_buf_free(&first_texts);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = { cmocka_unit_test(test_open), cmocka_unit_test(test_use),
                                               cmocka_unit_test(test_tuning), cmocka_unit_test(test_text) };
    int rc;
    alloc_faults_in_json(); /* before mm3 looks */
    if (argc > 1) more = MM3_MAX(1, atol(argv[1]));
    if (argc > 2) cmocka_set_test_filter(argv[2]);
    dir = test_temp_dir();
    test_checkpoint_write(dir, &test_checkpoint_small);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    test_temp_dir_remove(&dir);
    return rc;
}
