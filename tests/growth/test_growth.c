/* Nothing on the host's side is quadratic: each part is run on n and on 8 n of what it is about, and the work, counted
 * (work.h), may grow to 12 times at most. n log n grows to 10 times, a quadratic part that shows at all to 64. And it
 * must grow to 4 times at least, else n is so small that what does not grow would hide the rest. */
#include <stdio.h>
#include <stdlib.h>

#include "bench/host_inputs.h"
#include "growth/work.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "support/checkpoint.h"
#include "support/expect.h"
#include "support/temp_dir.h"
#include "text/chat.h"

enum { TIMES = 8, AT_MOST = 12, AT_LEAST = 4 };

static char *tokens_dir; /* with a tokenizer.json of 20 000 tokens */
static mm3_tokenizer *tokenizer;

/* `unit` over and over, up to n bytes; behind it, what stands once. For mm3_free(). */
static char *repeat(const char *head, const char *unit, const char *tail, long n, size_t *n_bytes)
{
    mm3_buf b = { 0 };
    char *text;
    mm3_buf_puts(&b, head);
    while ((long)b.n < n) mm3_buf_puts(&b, unit);
    mm3_buf_puts(&b, tail);
    EXPECT_OK(mm3_buf_take(&b, &text, n_bytes));
    return text;
}

typedef struct growth_case {
    const char *name;
    long (*work)(const struct growth_case *, long n); /* of n units */
    long n;
    const char *head, *unit, *tail; /* of a text, or what the case makes of them */
} growth_case;

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

static long open_checkpoint(const test_checkpoint *c)
{
    char *dir = test_temp_dir();
    mm3_model *m;
    long work;
    test_checkpoint_write(dir, c);
    work_start();
    EXPECT_OK(mm3_model_open(&m, dir));
    work = work_done();
    mm3_model_close(&m);
    test_temp_dir_remove(&dir);
    return work;
}

static long listing_of_experts(const growth_case *g, long n)
{
    test_checkpoint c = test_checkpoint_small;
    (void)g;
    c.experts = (int)n;
    c.holes = true;
    c.shards = 3;
    return open_checkpoint(&c);
}

static long listing_of_layers(const growth_case *g, long n)
{
    test_checkpoint c = test_checkpoint_small;
    (void)g;
    c.layers = (int)n;
    c.moe = c.sparse = NULL;
    c.holes = true;
    c.shards = (int)n;
    return open_checkpoint(&c);
}

/* Tensors that the network has no place for, and more of them that the index does not list. */
static long listing_of_extras(const growth_case *g, long n)
{
    test_checkpoint c = test_checkpoint_small;
    test_tensor *extra = calloc((size_t)n, sizeof *extra);
    long work;
    (void)g;
    assert_non_null(extra);
    for (long i = 0; i < n; i++) {
        snprintf(extra[i].name, sizeof extra[i].name, "vision_tower.%ld.weight", i);
        snprintf(extra[i].dtype, sizeof extra[i].dtype, "BF16");
        extra[i].n_dims = 1;
        extra[i].shape[0] = 1;
    }
    c.holes = true;
    c.extra = extra;
    c.n_extra = (int)n;
    work = open_checkpoint(&c);
    free(extra);
    return work;
}

/* ---- tokens --------------------------------------------------------------------------------------------------------
 */

static long vocabulary(const growth_case *g, long n)
{
    char *dir = test_temp_dir();
    mm3__host_words words;
    mm3_tokenizer *t;
    long work;
    (void)g;
    EXPECT_OK(mm3__host_write_tokenizer(dir, (int)n, &words));
    work_start();
    EXPECT_OK(mm3_tokenizer_open(&t, dir));
    work = work_done();
    mm3_tokenizer_close(&t);
    mm3__host_words_free(&words);
    test_temp_dir_remove(&dir);
    return work;
}

static long encode(const growth_case *g, long n)
{
    size_t n_bytes;
    char *text = repeat(g->head, g->unit, g->tail, n, &n_bytes);
    int32_t *ids;
    int n_ids;
    long work;
    work_start();
    EXPECT_OK(mm3_tokenizer_encode(tokenizer, text, n_bytes, true, &ids, &n_ids));
    work = work_done();
    mm3_free(ids);
    mm3_free(text);
    return work;
}

/* Letters without a space and without a period. */
static long encode_letters(const growth_case *g, long n)
{
    char *text = malloc((size_t)n);
    uint64_t random = 5;
    int32_t *ids;
    int n_ids;
    long work;
    (void)g;
    assert_non_null(text);
    for (long i = 0; i < n; i++) text[i] = "bcdfghjklmnpaeiouaeiou"[mm3__host_random(&random) % 22];
    work_start();
    EXPECT_OK(mm3_tokenizer_encode(tokenizer, text, (size_t)n, false, &ids, &n_ids));
    work = work_done();
    mm3_free(ids);
    free(text);
    return work;
}

static long decode(const growth_case *g, long n)
{
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    mm3_decoder *d;
    const char *piece;
    char *text;
    long work;
    (void)g;
    assert_non_null(ids);
    for (long i = 0; i < n; i++) ids[i] = (int32_t)(i * 7919 % mm3_tokenizer_size(tokenizer));
    work_start();
    EXPECT_OK(mm3_tokenizer_decode(tokenizer, ids, (int)n, true, &text, NULL));
    EXPECT_OK(mm3_decoder_open(&d, tokenizer, true));
    for (long i = 0; i < n; i++) EXPECT_OK(mm3_decoder_push(d, ids[i], &piece));
    EXPECT_OK(mm3_decoder_flush(d, &piece));
    work = work_done();
    mm3_decoder_close(&d);
    mm3_free(text);
    free(ids);
    return work;
}

/* ---- chats ----------------------------------------------------------------------------------------------------------
 */

/* head, n units apart by commas, tail: messages; or, where there is no head, n tools. */
static char *list_of(const growth_case *g, long n)
{
    mm3_buf b = { 0 };
    char *text;
    mm3_buf_puts(&b, g->head);
    for (long i = 0; i < n; i++) {
        mm3_buf_puts(&b, i ? "," : "");
        mm3_buf_puts(&b, g->unit);
    }
    mm3_buf_puts(&b, g->tail);
    EXPECT_OK(mm3_buf_take(&b, &text, NULL));
    return text;
}

static char *n_tools(long n)
{
    mm3_buf b = { 0 };
    char *text;
    for (long i = 0; i < n; i++)
        mm3_buf_printf(
            &b,
            "%s{\"type\":\"function\",\"function\":{\"name\":\"tool%ld\",\"parameters\":{\"type\":\"object\","
            "\"properties\":{\"x\":{\"type\":\"integer\"}}}}}",
            i ? "," : "[", i);
    mm3_buf_puts(&b, "]");
    EXPECT_OK(mm3_buf_take(&b, &text, NULL));
    return text;
}

static long chat_work(const char *messages, const char *tools)
{
    int32_t *ids;
    int n_ids;
    long work;
    work_start();
    EXPECT_OK(mm3_chat_encode(tokenizer, messages, tools, NULL, true, &ids, &n_ids));
    work = work_done();
    mm3_free(ids);
    return work;
}

static long chat(const growth_case *g, long n)
{
    char *messages = list_of(g, n);
    long work = chat_work(messages, NULL);
    mm3_free(messages);
    return work;
}

static long chat_with_tools(const growth_case *g, long n)
{
    char *tools = n_tools(n);
    long work = chat_work(g->unit, tools);
    mm3_free(tools);
    return work;
}

/* ---- answers --------------------------------------------------------------------------------------------------------
 */

static long push_all(const char *text, size_t n_bytes, size_t step, const char *tools)
{
    mm3_parser *p;
    long work;
    work_start();
    EXPECT_OK(mm3_parser_open(&p, tools, NULL));
    for (size_t i = 0; i < n_bytes; i += step) {
        char *delta;
        EXPECT_OK(mm3_parser_push(p, text + i, MM3_MIN(step, n_bytes - i), i + step >= n_bytes, &delta));
        mm3_free(delta);
    }
    work = work_done();
    mm3_parser_close(&p);
    return work;
}

static long answer(const growth_case *g, long n)
{
    size_t n_bytes;
    char *text = repeat(g->head, g->unit, g->tail, n, &n_bytes);
    long work = push_all(text, n_bytes, 1, NULL);
    mm3_free(text);
    return work;
}

static long answer_at_once(const growth_case *g, long n)
{
    size_t n_bytes;
    char *text = repeat(g->head, g->unit, g->tail, n, &n_bytes);
    long work = push_all(text, n_bytes, n_bytes, NULL);
    mm3_free(text);
    return work;
}

#define NS "]<]minimax[>["
#define INVOKE NS "<invoke name=\"f\">"
#define CALLS NS "<tool_call>\n"
#define CALLS_END NS "</tool_call>"

/* As many calls as tools, each of another. */
static long calls_of_tools(const growth_case *g, long n)
{
    mm3_buf b = { 0 };
    char *tools = n_tools(n);
    long work;
    (void)g;
    mm3_buf_puts(&b, CALLS);
    for (long i = 0; i < n; i++)
        mm3_buf_printf(&b, NS "<invoke name=\"tool%ld\">" NS "<x>1" NS "</x>" NS "</invoke>\n", n - 1 - i);
    mm3_buf_puts(&b, CALLS_END);
    work = push_all(b.data, b.n, 64, tools);
    mm3_buf_free(&b);
    mm3_free(tools);
    return work;
}

/* ---- JSON -----------------------------------------------------------------------------------------------------------
 */

static long json_written(const growth_case *g, long n)
{
    char *text = list_of(g, n);
    json_t *v = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    mm3_buf b = { 0 };
    long work;
    assert_non_null(v);
    work_start();
    mm3__json_write(&b, v);
    work = work_done();
    assert_false(b.failed);
    mm3_buf_free(&b);
    json_decref(v);
    mm3_free(text);
    return work;
}

static long json_read(const growth_case *g, long n)
{
    char *text = list_of(g, n);
    json_error_t e;
    json_t *v;
    long work;
    work_start();
    EXPECT_OK(mm3__json_load(&v, text, strlen(text), 0, &e));
    json_decref(v);
    EXPECT_OK(mm3_json_parse(&v, text, strlen(text), "a list"));
    work = work_done();
    json_decref(v);
    mm3_free(text);
    return work;
}

/* ---- plans ----------------------------------------------------------------------------------------------------------
 */

/* Decisions first, first + step, ... n of them; on steps too, and what crashed. */
static char *plan_text(long first, long step, long n)
{
    mm3_buf b = { 0 };
    char *text;
    mm3_buf_puts(&b,
                 "# mm3 plan 1 | cpu Test avx2 | threads 2 | policy 1 | ctx 1k,8k,32k routing uniform | mm3 0.1.0\n");
    for (long i = 0; i < n; i++)
        mm3_buf_printf(&b,
                       "linear m=%ld n=64 k=64 w=mx act=w8a8 | native | 15us mad 0.1 | err 2e-07 | src 51b07d20\n"
                       "  avx512 | refused: needs avx512 | src 07aa31c5\n",
                       first + i * step);
    for (long i = 0; i < n; i++)
        mm3_buf_printf(&b, "step m=%ld | winners | 0.9 of native mad 0.01 | of %08lx\n", first + i * step, i);
    EXPECT_OK(mm3_buf_take(&b, &text, NULL));
    return text;
}

static mm3_plan *read_plan(char *text)
{
    mm3_buf warnings = { 0 };
    mm3_plan *plan;
    EXPECT_OK(mm3_plan_parse(&plan, text, strlen(text), "a plan", &warnings));
    assert_int_equal(warnings.n, 0);
    mm3_buf_free(&warnings);
    return plan;
}

static long plan_read(const growth_case *g, long n)
{
    bool backwards = g->unit != NULL;
    char *text = backwards ? plan_text(n, -1, n) : plan_text(1, 1, n);
    mm3_plan *plan;
    long work;
    work_start();
    plan = read_plan(text);
    work = work_done();
    assert_int_equal(mm3_plan_count(plan), n);
    assert_int_equal(mm3_plan_count_steps(plan), n);
    mm3_plan_close(&plan);
    mm3_free(text);
    return work;
}

/* Every second one is new. */
static long plan_merged(const growth_case *g, long n)
{
    char *a = plan_text(1, 2, n), *b = plan_text(2, 2, n), *text;
    mm3_plan *into = read_plan(a), *from = read_plan(b);
    char hash[9];
    long work;
    (void)g;
    work_start();
    EXPECT_OK(mm3_plan_merge(into, from, false));
    mm3_plan_hash(into, hash);
    work = work_done();
    assert_int_equal(mm3_plan_count(into), 2 * n);
    assert_int_equal(mm3_plan_count_steps(into), 2 * n);
    EXPECT_OK(mm3_plan_print(into, &text));
    mm3_free(text);
    mm3_plan_close(&into);
    mm3_plan_close(&from);
    mm3_free(a);
    mm3_free(b);
    return work;
}

static long plan_shown(const growth_case *g, long n)
{
    char *a = plan_text(1, 2, n), *b = plan_text(2, 2, n), *text, *diff;
    mm3_plan *one = read_plan(a), *other = read_plan(b);
    long work;
    (void)g;
    work_start();
    EXPECT_OK(mm3_plan_print(one, &text));
    EXPECT_OK(mm3_plan_diff(one, other, &diff));
    work = work_done();
    mm3_free(text);
    mm3_free(diff);
    mm3_plan_close(&one);
    mm3_plan_close(&other);
    mm3_free(a);
    mm3_free(b);
    return work;
}

/* What a plan keeps of them is limited, to 1024: more than that, or the limit itself would look like growth. */
static long plan_crashes(const growth_case *g, long n)
{
    char *head = plan_text(1, 1, 1);
    mm3_plan *plan = read_plan(head);
    long work;
    (void)g;
    work_start();
    for (long i = 0; i < n; i++) {
        char choice[32];
        snprintf(choice, sizeof choice, "c%06ld", i);
        EXPECT_OK(mm3_plan_set_crashed(plan, "linear m=1 n=64 k=64 w=mx act=w8a8", choice, "01234567"));
    }
    work = work_done();
    mm3_plan_close(&plan);
    mm3_free(head);
    return work;
}

/* ---- the engine: nothing is computed, all else is done
 * ---------------------------------------------------------------- */

static char *engine_dir;

static mm3_engine *open_engine(int context, int max_batch, int chunk)
{
    mm3_options o = MM3_OPTIONS_INIT;
    mm3_engine *e;
    o.model_dir = engine_dir;
    o.n_threads = 1;
    o.context = context;
    o.max_batch = max_batch;
    o.chunk = chunk;
    o.kv_gb = 1;
    o.tune = "off";
    EXPECT_OK(mm3_engine_open(&e, &o));
    return e;
}

static int32_t *some_ids(long n)
{
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    assert_non_null(ids);
    for (long i = 0; i < n; i++) ids[i] = (int32_t)(i % test_checkpoint_small.vocab);
    return ids;
}

static long prefill(const growth_case *g, long n)
{
    mm3_engine *e = open_engine((int)n, 1, 64);
    int32_t *ids = some_ids(n);
    mm3_session *s;
    long work;
    (void)g;
    work_start();
    EXPECT_OK(mm3_session_open(&s, e));
    EXPECT_OK(mm3_session_sync(s, ids, (int)n));
    mm3_session_close(&s);
    work = work_done();
    mm3_engine_close(&e);
    free(ids);
    return work;
}

static void drop_logits(void *user, int position, const float *logits)
{
    (void)user;
    (void)position;
    (void)logits;
}

static long score(const growth_case *g, long n)
{
    mm3_engine *e = open_engine((int)n, 1, 64);
    int32_t *ids = some_ids(n);
    mm3_session *s;
    long work;
    (void)g;
    EXPECT_OK(mm3_session_open(&s, e));
    work_start();
    EXPECT_OK(mm3_session_score(s, ids, (int)n, drop_logits, NULL));
    work = work_done();
    mm3_session_close(&s);
    mm3_engine_close(&e);
    free(ids);
    return work;
}

static long generate(const growth_case *g, long n)
{
    static const mm3_sampling sampling = { .temperature = 1, .top_p = 1, .repetition_penalty = 1.1f };
    mm3_engine *e = open_engine((int)n + 8, 1, 64);
    int32_t *ids = some_ids(8);
    mm3_session *s;
    int n_new;
    long work;
    (void)g;
    EXPECT_OK(mm3_session_open(&s, e));
    EXPECT_OK(mm3_session_sync(s, ids, 8));
    work_start();
    EXPECT_OK(mm3_session_generate(s, &sampling, (int)n, NULL, 0, NULL, NULL, &n_new, NULL));
    work = work_done();
    assert_int_equal(n_new, n);
    mm3_session_close(&s);
    mm3_engine_close(&e);
    free(ids);
    return work;
}

/* n sequences that stay, of 300 tokens each; then each in turn gives its pages back and takes others. */
static long many_sequences(const growth_case *g, long n)
{
    mm3_engine *e = open_engine(512, (int)n, 64);
    mm3_session **s = calloc((size_t)n, sizeof *s);
    int32_t *ids = some_ids(300);
    long work;
    (void)g;
    assert_non_null(s);
    work_start();
    for (long i = 0; i < n; i++) {
        EXPECT_OK(mm3_session_open(&s[i], e));
        EXPECT_OK(mm3_session_sync(s[i], ids, 300));
    }
    for (long i = 0; i < n; i++) {
        EXPECT_OK(mm3_session_sync(s[i], ids, 10));
        EXPECT_OK(mm3_session_sync(s[i], ids, 300));
    }
    for (long i = 0; i < n; i++) mm3_session_close(&s[i]);
    work = work_done();
    mm3_engine_close(&e);
    free(ids);
    free(s);
    return work;
}

/* Opening: the listing again, and a recorded step of each shape. */
static long recording(const growth_case *g, long n)
{
    test_checkpoint c = test_checkpoint_small;
    char *dir = test_temp_dir(), *before = engine_dir;
    mm3_engine *e;
    long work;
    (void)g;
    c.layers = (int)n;
    c.holes = true;
    test_checkpoint_write(dir, &c);
    engine_dir = dir;
    work_start();
    e = open_engine(256, 4, 64);
    work = work_done();
    mm3_engine_close(&e);
    engine_dir = before;
    test_temp_dir_remove(&dir);
    return work;
}

/* ---- all of them
 * ------------------------------------------------------------------------------------------------------ */

#define USER "{\"role\":\"user\",\"content\":\"How are you?\"}"
#define TOOL_TURN                                                                                                      \
    "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1}}}" \
    "]},"                                                                                                              \
    "{\"role\":\"tool\",\"content\":\"one\"},{\"role\":\"tool\",\"content\":\"two\"}"

static const growth_case cases[] = {
    { .name = "listing: experts", .work = listing_of_experts, .n = 250 },
    { .name = "listing: layers and shards", .work = listing_of_layers, .n = 16 },
    { .name = "listing: tensors that are passed over", .work = listing_of_extras, .n = 2000 },

    { .name = "vocabulary", .work = vocabulary, .n = 5000 },
    { .name = "encode: prose",
      .work = encode,
      .n = 20000,
      .unit = "In the beginning, God created 1234 heavens.\n\n  " },
    { .name = "encode: one word of one letter", .work = encode, .n = 20000, .unit = "a" },
    { .name = "encode: one word of capitals", .work = encode, .n = 20000, .unit = "A" },
    { .name = "encode: one word of letters", .work = encode_letters, .n = 20000 },
    { .name = "encode: letters with an apostrophe behind", .work = encode, .n = 20000, .unit = "ab'" },
    { .name = "encode: spaces", .work = encode, .n = 20000, .unit = " ", .tail = "x" },
    { .name = "encode: spaces and line ends", .work = encode, .n = 20000, .unit = " \n ", .tail = "x" },
    { .name = "encode: line ends", .work = encode, .n = 20000, .unit = "\r\n" },
    { .name = "encode: digits", .work = encode, .n = 20000, .unit = "1" },
    { .name = "encode: signs", .work = encode, .n = 20000, .unit = "!" },
    { .name = "encode: Chinese", .work = encode, .n = 20000, .unit = "\xE4\xB8\xAD\xE6\x96\x87" },
    { .name = "encode: marks out of order", .work = encode, .n = 20000, .head = "e", .unit = "\xCC\x81\xCC\xA3" },
    { .name = "encode: letters with marks", .work = encode, .n = 20000, .unit = "e\xCC\x81" },
    { .name = "encode: no UTF-8", .work = encode, .n = 20000, .unit = "\xFF" },
    { .name = "encode: no UTF-8 now and then", .work = encode, .n = 20000, .unit = "ab\xFF" },
    { .name = "encode: added tokens", .work = encode, .n = 20000, .unit = "<mm:think>" },
    { .name = "encode: beginnings of added tokens", .work = encode, .n = 20000, .unit = "]<]minimax[>" },
    { .name = "decode", .work = decode, .n = 5000 },

    { .name = "chat: user", .work = chat, .n = 200, .head = "[", .unit = USER, .tail = "]" },
    { .name = "chat: turns with calls", .work = chat, .n = 200, .head = "[", .unit = USER "," TOOL_TURN, .tail = "]" },
    { .name = "chat: developer messages",
      .work = chat,
      .n = 200,
      .head = "[" USER ",",
      .unit = "{\"role\":\"system\",\"content\":\"Be brief.\"}",
      .tail = "]" },
    { .name = "chat: parts of one message",
      .work = chat,
      .n = 500,
      .head = "[{\"role\":\"user\",\"content\":[",
      .unit = "{\"type\":\"image\"}",
      .tail = "]}]" },
    { .name = "chat: images in an answer with reasoning",
      .work = chat,
      .n = 500,
      .head = "[{\"role\":\"assistant\",\"content\":[\"a</mm:think>b\",",
      .unit = "{\"type\":\"image\"}",
      .tail = "]}]" },
    { .name = "chat: reasoning that ends again and again",
      .work = chat,
      .n = 500,
      .head = "[{\"role\":\"assistant\",\"content\":[",
      .unit = "\"<mm:think>a</mm:think>\"",
      .tail = "]}]" },
    { .name = "chat: one message",
      .work = chat,
      .n = 2000,
      .head = "[{\"role\":\"user\",\"content\":[",
      .unit = "\"ten letters\"",
      .tail = "]}]" },
    { .name = "chat: calls of one message",
      .work = chat,
      .n = 500,
      .head = "[{\"role\":\"assistant\",\"tool_calls\":[",
      .unit = "{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":[1,2]}\"}}",
      .tail = "]}]" },
    { .name = "chat: items of one argument",
      .work = chat,
      .n = 500,
      .head = "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"x\":[",
      .unit = "12345678901234567890123",
      .tail = "]}}}]}]" },
    { .name = "chat: tools", .work = chat_with_tools, .n = 200, .unit = "[" USER "]" },

    { .name = "answer: text", .work = answer, .n = 5000, .unit = "plain text. " },
    { .name = "answer: spaces", .work = answer, .n = 5000, .unit = " " },
    { .name = "answer: beginnings of tags", .work = answer, .n = 5000, .unit = "<" },
    { .name = "answer: beginnings of calls", .work = answer, .n = 5000, .unit = NS " " },
    { .name = "answer: a beginning and spaces", .work = answer, .n = 5000, .head = NS, .unit = " " },
    { .name = "answer: sections", .work = answer, .n = 5000, .unit = "<mm:think></mm:think>" },
    { .name = "answer: calls that begin", .work = answer, .n = 5000, .unit = CALLS },
    { .name = "answer: a call and line ends", .work = answer, .n = 5000, .head = CALLS, .unit = "\n" },
    { .name = "answer: blocks", .work = answer, .n = 5000, .unit = CALLS INVOKE NS "</invoke>" CALLS_END },
    { .name = "answer: calls of one block",
      .work = answer,
      .n = 5000,
      .head = CALLS,
      .unit = INVOKE NS "</invoke>",
      .tail = CALLS_END },
    { .name = "answer: a long argument",
      .work = answer,
      .n = 5000,
      .head = CALLS INVOKE NS "<s>",
      .unit = "x ",
      .tail = CALLS_END },
    { .name = "answer: markers in an argument",
      .work = answer,
      .n = 5000,
      .head = CALLS INVOKE NS "<s>",
      .unit = NS " " },
    { .name = "answer: arguments of one name",
      .work = answer,
      .n = 5000,
      .head = CALLS INVOKE,
      .unit = NS "<x>1" NS "</x>",
      .tail = CALLS_END },
    { .name = "answer: tags that stay open", .work = answer, .n = 5000, .head = CALLS INVOKE, .unit = NS "<x>1" },
    { .name = "answer: closers of nothing",
      .work = answer,
      .n = 5000,
      .head = CALLS INVOKE NS "<x>" NS "<x>",
      .unit = NS "</y>" },
    { .name = "answer: names cut off", .work = answer, .n = 5000, .head = CALLS, .unit = NS "<invoke name=\"" },
    { .name = "answer: JSON in an argument",
      .work = answer_at_once,
      .n = 20000,
      .head = CALLS INVOKE NS "<a>[1",
      .unit = ",[2]",
      .tail = "]" CALLS_END },
    { .name = "answer: calls of as many tools", .work = calls_of_tools, .n = 200 },

    { .name = "JSON: strings", .work = json_written, .n = 500, .head = "[", .unit = "\"a\\n\\u0000b\"", .tail = "]" },
    { .name = "JSON: numbers", .work = json_written, .n = 500, .head = "[", .unit = "0.1,12", .tail = "]" },
    { .name = "JSON: objects",
      .work = json_written,
      .n = 500,
      .head = "[",
      .unit = "{\"a\":{\"b\":null}}",
      .tail = "]" },
    { .name = "JSON: read", .work = json_read, .n = 2000, .head = "[", .unit = "{\"a\":[12345,\"x\"]}", .tail = "]" },

    { .name = "plan: read", .work = plan_read, .n = 500 },
    { .name = "plan: read backwards", .work = plan_read, .n = 500, .unit = "backwards" },
    { .name = "plan: merge", .work = plan_merged, .n = 500 },
    { .name = "plan: print and compare", .work = plan_shown, .n = 500 },
    { .name = "plan: crashes", .work = plan_crashes, .n = 3000 },

    { .name = "engine: a long prompt", .work = prefill, .n = 4000 },
    { .name = "engine: scores", .work = score, .n = 4000 },
    { .name = "engine: a long answer", .work = generate, .n = 4000 },
    { .name = "engine: many sequences", .work = many_sequences, .n = 16 },
    { .name = "engine: recording of layers", .work = recording, .n = 16 },
};

static void grows_evenly(void **state)
{
    growth_case g = *(const growth_case *)*state;
    long few, many;
    double times;
    g.head = g.head ? g.head : "";
    g.tail = g.tail ? g.tail : "";
    few = g.work(&g, g.n);
    many = g.work(&g, TIMES * g.n);
    times = (double)many / (double)few;
    print_message("%s: %ld for %ld, %ld for %ld: %.1f times\n", g.name, few, g.n, many, TIMES * g.n, times);
    if (times > AT_MOST || times < AT_LEAST)
        fail_msg("%s: the work grows to %.1f times: %ld for %ld, %ld for %ld; expected %d to %d times", g.name, times,
                 few, g.n, many, TIMES * g.n, AT_LEAST, AT_MOST);
}

static int open_all(void **state)
{
    test_checkpoint c = test_checkpoint_small;
    mm3__host_words words;
    (void)state;
    c.holes = true;
    c.max_position = 1 << 20;
    tokens_dir = test_temp_dir();
    engine_dir = test_temp_dir();
    test_checkpoint_write(engine_dir, &c);
    EXPECT_OK(mm3__host_write_tokenizer(tokens_dir, 20000, &words));
    mm3__host_words_free(&words);
    EXPECT_OK(mm3_tokenizer_open(&tokenizer, tokens_dir));
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    mm3_tokenizer_close(&tokenizer);
    test_temp_dir_remove(&tokens_dir);
    test_temp_dir_remove(&engine_dir);
    return 0;
}

int main(int argc, char **argv)
{
    static struct CMUnitTest tests[MM3_COUNT(cases)];
    for (int i = 0; i < MM3_COUNT(cases); i++)
        tests[i] = (struct CMUnitTest){ cases[i].name, grows_evenly, NULL, NULL, (void *)(uintptr_t)&cases[i] };
    work_init();
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("growth", tests, open_all, close_all);
}
