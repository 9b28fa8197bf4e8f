/* fuzz: what a model writes, split into reasoning, content and tool calls. Input: up to three parts, apart by a line
 * "%%": the thinking mode, the tools ("": none, "*": those below), the text, in which '~' stands for "]<]minimax[>[". A
 * single part is the text, with the tools below.
 * Properties: the result does not depend on how the text is cut; each delta and each call's arguments are JSON; ids
 * differ; content and reasoning are made of the text, in its order; text without markers comes back whole. */
#include <stdio.h>
#include <stdlib.h>

#include "fuzz/fuzz.h"
#include "support/alloc_faults.h"
#include "text/chat.h"

static const char all_tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"n\":{\"type\":\"number\"},\"b\":{\"type\":\"boolean\"},"
    "\"a\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"}},\"o\":{\"type\":\"object\",\"properties\":{\"k\":{"
    "\"type\":\"integer\"}}},\"sn\":{\"type\":[\"string\",\"null\"]},\"in\":{\"anyOf\":[{\"type\":\"integer\"},{"
    "\"type\":\"null\"}]},\"ao\":{\"items\":{\"properties\":{\"k\":{}}}},\"u\":{}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]";

typedef struct result {
    mm3_buf text[2]; /* content, reasoning */
    mm3_buf calls;   /* a line each */
    int n_calls;
} result;

static void free_result(result *r)
{
    mm3_buf_free(&r->text[0]);
    mm3_buf_free(&r->text[1]);
    mm3_buf_free(&r->calls);
}

static void add_call(result *r, const json_t *call)
{
    const json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments");
    const char *id = json_string_value(json_object_get(call, "id")), *name;
    char line[256];
    name = json_string_value(json_object_get(function, "name"));
    FUZZ_CHECK(json_object_size(call) == 4 && json_object_size(function) == 2 && id && name && *name,
               "a call lacks a member");
    FUZZ_CHECK(json_integer_value(json_object_get(call, "index")) == r->n_calls, "calls are not numbered in order");
    FUZZ_CHECK(strcmp(json_string_value(json_object_get(call, "type")), "function") == 0, "a call of another type");
    FUZZ_CHECK(json_is_string(arguments) && json_string_value(arguments)[0] == '{' &&
                   fuzz_is_json(json_string_value(arguments), json_string_length(arguments)),
               "arguments that are no object: %s", json_string_value(arguments));
    snprintf(line, sizeof line, "%s ", id);
    FUZZ_CHECK(r->n_calls == 0 || r->n_calls > 200 || !strstr(r->calls.data, line), "the id %s twice", id);
    mm3_buf_printf(&r->calls, "%s%s(%s)\n", line, name, json_string_value(arguments));
    r->n_calls++;
}

static void add_delta(result *r, const char *delta)
{
    static const char *const names[] = { "content", "reasoning_content" };
    json_error_t e;
    json_t *d = json_loads(delta, JSON_REJECT_DUPLICATES, &e);
    const json_t *calls = json_object_get(d, "tool_calls");
    size_t n_known = calls ? 1 : 0;
    FUZZ_CHECK(d && fuzz_is_json(delta, strlen(delta)), "%s: %s", e.text, delta);
    for (int i = 0; i < 2; i++) {
        const json_t *v = json_object_get(d, names[i]);
        if (!v) continue;
        FUZZ_CHECK(json_string_length(v) > 0, "an empty %s", names[i]);
        mm3_buf_add(&r->text[i], json_string_value(v), json_string_length(v));
        n_known++;
    }
    FUZZ_CHECK(!calls || json_array_size(calls) > 0, "no calls");
    for (size_t i = 0; i < json_array_size(calls); i++) add_call(r, json_array_get(calls, i));
    FUZZ_CHECK(json_object_size(d) == n_known, "an unknown member: %s", delta);
    json_decref(d);
}

static void push(mm3_parser *p, const char *text, size_t n, bool finish, result *r)
{
    char *copy = malloc(n + 1), *delta; /* of exactly this size */
    FUZZ_CHECK(copy, "out of memory");
    memcpy(copy, text, n);
    FUZZ_CHECK(mm3_parser_push(p, copy, n, finish, &delta) == MM3_OK, "%s", mm3_last_error());
    if (strcmp(delta, "{}") != 0) add_delta(r, delta);
    mm3_free(delta);
    free(copy);
}

/* cut 0: pieces of random sizes, and the end by itself. */
static result run(const mm3_buf *text, const char *tools, const char *thinking, size_t cut)
{
    uint32_t seed = fuzz_hash(text->data, text->n);
    result r = { 0 };
    mm3_parser *p;
    size_t at = 0;
    char *delta;
    FUZZ_CHECK(mm3_parser_open(&p, tools, thinking) == MM3_OK, "%s", mm3_last_error());
    while (at < text->n) {
        size_t n;
        seed = seed * 1664525u + 1013904223u;
        n = MM3_MIN(cut ? cut : (seed >> 16) % (7 + text->n / 64), text->n - at);
        push(p, text->data + at, n, cut && at + n == text->n, &r);
        at += n;
    }
    if (!cut || text->n == 0) push(p, "", 0, true, &r);
    fuzz_forget_error();
    fuzz_error(mm3_parser_push(p, "x", 1, false, &delta), "finished");
    mm3_parser_close(&p);
    return r;
}

static void check_same(const result *a, const result *b, const char *how)
{
    static const char *const names[] = { "content", "reasoning", "calls" };
    const mm3_buf *x[] = { &a->text[0], &a->text[1], &a->calls }, *y[] = { &b->text[0], &b->text[1], &b->calls };
    for (int i = 0; i < 3; i++)
        FUZZ_CHECK(x[i]->n == y[i]->n && (x[i]->n == 0 || memcmp(x[i]->data, y[i]->data, x[i]->n) == 0),
                   "%s: whole '%s', %s '%s'", names[i], x[i]->data, how, y[i]->data);
}

static void check_text(const mm3_buf *text, const result *r, bool reasoning)
{
    mm3_buf valid = { 0 };
    fuzz_replace_invalid(&valid, text->data, text->n);
    for (int i = 0; i < 2; i++)
        FUZZ_CHECK(fuzz_is_subsequence(r->text[i].data, r->text[i].n, valid.data, valid.n),
                   "text that the model did not write: '%s'", r->text[i].data);
    if (!strstr(valid.data, MM3__NS) && !strstr(valid.data, MM3__THINK) && !strstr(valid.data, MM3__THINK_END))
        FUZZ_CHECK(r->n_calls == 0 && r->text[!reasoning].n == 0 && r->text[reasoning].n == valid.n,
                   "of a text without markers '%s' is left", r->text[reasoning].data);
    mm3_buf_free(&valid);
}

static void check_memory(const mm3_buf *text, const char *tools, const char *thinking, const uint8_t *data, size_t n,
                         long n_allocations)
{
    mm3_parser *p = NULL;
    char *delta = NULL;
    mm3_status st;
    if (!fuzz_memory_fails(data, n, n_allocations)) return;
    st = mm3_parser_open(&p, tools, thinking);
    if (st == MM3_OK) st = mm3_parser_push(p, text->data, text->n, true, &delta);
    fuzz_memory_failed(st, MM3_OK);
    mm3_free(delta);
    mm3_parser_close(&p);
}

static void check(const mm3_buf *text, const char *tools, const char *thinking, const uint8_t *data, size_t n)
{
    mm3_parser *p;
    mm3_status st;
    long before = alloc_count(), n_allocations;
    result whole, bytes, random;
    fuzz_forget_error();
    st = mm3_parser_open(&p, tools, thinking);
    if (st != MM3_OK) {
        fuzz_error(st, NULL);
        FUZZ_CHECK(st == MM3_ERR_ARG && !p, "%s", mm3_status_name(st));
        return;
    }
    mm3_parser_close(&p);
    whole = run(text, tools, thinking, text->n);
    n_allocations = alloc_count() - before;
    bytes = run(text, tools, thinking, 1 + text->n / 400); /* of a long text each byte would cost too much */
    random = run(text, tools, thinking, 0);
    check_same(&whole, &bytes, "in equal pieces");
    check_same(&whole, &random, "in random pieces");
    check_text(text, &whole, thinking && strcmp(thinking, "enabled") == 0);
    check_memory(text, tools, thinking, data, n, n_allocations);
    free_result(&whole);
    free_result(&bytes);
    free_result(&random);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *at = data;
    size_t left = n, n_text;
    mm3_buf text = { 0 };
    char *first = fuzz_part(&at, &left, &n_text), *tools = fuzz_part(&at, &left, NULL);
    if (!first) return 0;
    if (tools)
        fuzz_expand(&text, (const char *)at, left, '~', MM3__NS);
    else
        fuzz_expand(&text, first, n_text, '~', MM3__NS);
    check(&text,
          !tools || strcmp(tools, "*") == 0 ? all_tools
          : *tools                          ? tools
                                            : NULL,
          tools && *first ? first : NULL, data, n);
    mm3_buf_free(&text);
    free(first);
    free(tools);
    return 0;
}
