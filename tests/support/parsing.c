#include <string.h>

#include "support/expect.h"
#include "support/parsing.h"

const char parser_tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\","
    " \"$defs\": {\"point\": {\"type\": \"object\", \"properties\": {\"x\": {\"type\": \"integer\"},"
    "   \"next\": {\"$ref\": \"#/$defs/point\"}}}, \"ring\": {\"$ref\": \"#/$defs/ring\"},"
    "   \"wide\": {\"anyOf\": [{\"$ref\": \"#/$defs/wide\"}, {\"$ref\": \"#/$defs/wide\"}]}, \"a/b~c\": {\"type\": "
    "\"integer\"}},"
    " \"properties\": {\"s\": {\"type\": \"string\"}, \"t\": {\"type\": \"string\"}, \"i\": {\"type\": \"integer\"},"
    " \"n\": {\"type\": \"number\"}, \"b\": {\"type\": \"boolean\"}, \"a\": {\"type\": \"array\", \"items\": "
    "{\"type\": \"integer\"}}, \"as\": {\"type\": \"array\", \"items\": {\"type\": \"string\"}},"
    " \"o\": {\"type\": \"object\", \"properties\": {\"k\": {\"type\": \"integer\"}, \"a\": {\"type\": \"array\","
    " \"items\": {\"type\": \"object\", \"properties\": {\"b\": {\"type\": \"boolean\"}}}}}},"
    " \"ao\": {\"type\": \"array\", \"items\": {\"type\": \"object\", \"properties\": {\"k\": {\"type\": "
    "\"integer\"}}}},"
    " \"aa\": {\"items\": {\"items\": {\"type\": \"number\"}}},"
    " \"sn\": {\"type\": [\"string\", \"null\"]}, \"si\": {\"type\": [\"integer\", \"string\"]},"
    " \"in\": {\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"null\"}]}, \"e\": {\"enum\": [1, 2]},"
    " \"c\": {\"const\": true}, \"p\": {\"$ref\": \"#/$defs/point\"}, \"r\": {\"$ref\": \"#/$defs/ring\"},"
    " \"w\": {\"$ref\": \"#/$defs/wide\"}, \"z\": {\"$ref\": \"#/$defs/a~1b~0c\"}, \"nil\": {\"type\": \"null\"},"
    " \"nu\": {\"type\": \"string\", \"nullable\": true}, \"m\": {\"type\": \"object\", \"additionalProperties\": "
    "{\"type\": \"integer\"}}, \"u\": {}, \"os\": {\"type\": [\"object\", \"string\"]}, \"any\": true,"
    " \"sb\": {\"type\": [\"string\", \"boolean\"]}}}}},"
    " {\"type\": \"function\", \"function\": {\"name\": \"g\"}}]";

/* All deltas of one text, joined: "reasoning|content|name(arguments) name(arguments)". */
typedef struct joined {
    mm3_buf reasoning, content, calls, ids;
    int n_calls;
} joined;

static void join_call(joined *j, const json_t *call)
{
    const json_t *function = json_object_get(call, "function");
    const char *id = json_string_value(json_object_get(call, "id"));
    const char *arguments = json_string_value(json_object_get(function, "arguments"));
    json_t *parsed;
    assert_int_equal(json_object_size(call), 4);
    assert_int_equal(json_object_size(function), 2);
    assert_int_equal(json_integer_value(json_object_get(call, "index")), j->n_calls);
    assert_string_equal(json_string_value(json_object_get(call, "type")), "function");
    assert_non_null(id);
    assert_non_null(arguments);
    parsed = json_loads(arguments, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, NULL);
    if (!json_is_object(parsed)) fail_msg("arguments are no object: %s", arguments);
    json_decref(parsed);
    if (j->n_calls++) mm3_buf_puts(&j->calls, " ");
    mm3_buf_printf(&j->calls, "%s(%s)", json_string_value(json_object_get(function, "name")), arguments);
    assert_true(!j->ids.n || !strstr(j->ids.data, id)); /* unique in this answer */
    mm3_buf_printf(&j->ids, "%s ", id);
}

static void join_delta(joined *j, const char *delta)
{
    json_error_t e;
    json_t *d = json_loads(delta, JSON_REJECT_DUPLICATES, &e), *v;
    const char *key;
    size_t i;
    if (!d) fail_msg("no JSON: %s: %s", e.text, delta);
    json_object_foreach(d, key, v)
    {
        if (strcmp(key, "tool_calls") == 0) {
            assert_true(json_array_size(v) > 0);
            for (i = 0; i < json_array_size(v); i++) join_call(j, json_array_get(v, i));
        } else {
            bool reasoning = strcmp(key, "reasoning_content") == 0;
            assert_true(reasoning || strcmp(key, "content") == 0);
            assert_true(json_string_length(v) > 0);
            mm3_buf_add(reasoning ? &j->reasoning : &j->content, json_string_value(v), json_string_length(v));
        }
    }
    json_decref(d);
}

unsigned random_below(unsigned *seed, unsigned n)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % n;
}

char *parse_text(const char *text, size_t n, const char *functions, const char *thinking, size_t cut, unsigned seed)
{
    mm3_parser *p;
    joined j = { 0 };
    mm3_buf b = { 0 };
    size_t at = 0;
    char *s;
    bool finish = false;
    assert_int_equal(mm3_parser_open(&p, functions, thinking), MM3_OK);
    while (!finish) {
        size_t piece = cut ? cut : random_below(&seed, random_below(&seed, 2) ? 4 : 40);
        char *delta, *copy;
        piece = MM3_MIN(piece, n - at);
        finish = at + piece == n && (cut != 3 || piece < 3); /* cut 3: also an empty last piece */
        copy = mm3_malloc(piece);                            /* a block of its own: reads past it are seen */
        memcpy(copy, text + at, piece);
        assert_int_equal(mm3_parser_push(p, copy, piece, finish, &delta), MM3_OK);
        join_delta(&j, delta);
        mm3_free(copy);
        mm3_free(delta);
        at += piece;
    }
    mm3_parser_close(&p);
    assert_null(p);
    mm3_buf_add(&b, j.reasoning.data, j.reasoning.n);
    mm3_buf_puts(&b, "|");
    mm3_buf_add(&b, j.content.data, j.content.n);
    mm3_buf_puts(&b, "|");
    mm3_buf_add(&b, j.calls.data, j.calls.n);
    mm3_buf_free(&j.reasoning);
    mm3_buf_free(&j.content);
    mm3_buf_free(&j.calls);
    mm3_buf_free(&j.ids);
    assert_int_equal(mm3_buf_take(&b, &s, NULL), MM3_OK);
    return s;
}

char *parse_all_ways(const char *text, size_t n, const char *functions, const char *thinking)
{
    static const size_t cuts[] = { 1, 2, 3, 7, 64, 0, 0, 0, 0 };
    char *whole = parse_text(text, n, functions, thinking, MM3_MAX(n, (size_t)1), 0);
    unsigned i;
    for (i = 0; i < MM3_COUNT(cuts); i++) {
        char *s = parse_text(text, n, functions, thinking, cuts[i], i * 77 + (unsigned)n);
        if (strcmp(s, whole) != 0) fail_msg("'%s' cut by %zu:\n%s\nwhole:\n%s", text, cuts[i], s, whole);
        mm3_free(s);
    }
    return whole;
}

void check_parses(const parse_example *examples, int n, const char *functions)
{
    int i;
    for (i = 0; i < n; i++) {
        char *s = parse_all_ways(examples[i].text, strlen(examples[i].text), functions, examples[i].thinking);
        if (strcmp(s, examples[i].want) != 0)
            fail_msg("'%s'\ngives '%s'\nwants '%s'", examples[i].text, s, examples[i].want);
        mm3_free(s);
    }
}
