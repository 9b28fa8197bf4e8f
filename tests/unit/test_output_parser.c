/* What the model writes, split into reasoning, content and calls: tables of texts with the exact result, the same
 * result however the text is cut, hostile text, linear time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/alloc_faults.h"
#include "text/chat.h"

#define NS MM3__NS
#define OPEN NS "<tool_call>\n"
#define CLOSE NS "</tool_call>"
#define CALL(name, arguments) NS "<invoke name=\"" name "\">" arguments NS "</invoke>\n"
#define ARG(name, value) NS "<" name ">" value NS "</" name ">"
#define ITEM(value) ARG("item", value)
#define ONE(arguments) OPEN CALL("f", arguments) CLOSE

/* One function f with a parameter of each kind, g without parameters. */
static const char tools[] =
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

/* ---- running a parser -------------------------------------------------------------------------------------------- */

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

static unsigned random_below(unsigned *seed, unsigned n)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % n;
}

/* Feed the text in pieces of `cut` bytes, or of random sizes for cut 0; the last piece may be an empty one. */
static char *run(const char *text, size_t n, const char *functions, const char *thinking, size_t cut, unsigned seed)
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

/* The text whole, then cut in every way: always the same. */
static char *run_all_ways(const char *text, size_t n, const char *functions, const char *thinking)
{
    static const size_t cuts[] = { 1, 2, 3, 7, 64, 0, 0, 0, 0 };
    char *whole = run(text, n, functions, thinking, MM3_MAX(n, (size_t)1), 0);
    unsigned i;
    for (i = 0; i < MM3_COUNT(cuts); i++) {
        char *s = run(text, n, functions, thinking, cuts[i], i * 77 + (unsigned)n);
        if (strcmp(s, whole) != 0) fail_msg("'%s' cut by %zu:\n%s\nwhole:\n%s", text, cuts[i], s, whole);
        mm3_free(s);
    }
    return whole;
}

typedef struct example {
    const char *thinking, *text, *want;
} example;

static void check(const example *examples, int n, const char *functions)
{
    int i;
    for (i = 0; i < n; i++) {
        char *s = run_all_ways(examples[i].text, strlen(examples[i].text), functions, examples[i].thinking);
        if (strcmp(s, examples[i].want) != 0)
            fail_msg("'%s'\ngives '%s'\nwants '%s'", examples[i].text, s, examples[i].want);
        mm3_free(s);
    }
}

/* ---- reasoning and content --------------------------------------------------------------------------------------- */

static void test_reasoning(void **state)
{
    static const example examples[] = {
        { "enabled", "r</mm:think>a", "r|a|" },
        { "enabled", "", "||" },
        { "enabled", "never closed", "never closed||" },
        { "enabled", "<mm:think>r</mm:think>a", "r|a|" },
        { "enabled", "\n<mm:think>\nr\n</mm:think>\n\na\n", "\nr\n|\n\na\n|" },
        { "enabled", "</mm:think>a", "|a|" },
        { "enabled", "r <mm:think> x</mm:think>a", "r <mm:think> x|a|" },
        { "enabled", "r</mm:think>", "r||" },
        { "enabled", "r</mm:think>\n", "r||" },
        { "enabled", "r</mm:think></mm:think>a", "r|a|" },
        { "enabled", "r</mm:think>a</mm:think>b", "r|a</mm:think>b|" },
        { "enabled", "r</mm:think>a<mm:think>s</mm:think>b", "rs|ab|" },
        { "enabled", "r < 3 ]<] </mm:thin>", "r < 3 ]<] </mm:thin>||" },
        { "enabled", "  ", "  ||" },
        { NULL, "a", "|a|" },
        { "adaptive", "<mm:think>r</mm:think>a", "r|a|" },
        { "adaptive", "  <mm:think>r</mm:think>a", "r|a|" },
        { "adaptive", "</mm:think>a", "|a|" },
        { "adaptive", "\n\n</mm:think>a", "|a|" },
        { "adaptive", "\n\na", "|\n\na|" },
        { "adaptive", " \n", "| \n|" },
        { "adaptive", "a<mm:think>r", "r|a|" },
        { "adaptive", "<mm:think></mm:think>", "||" },
        { "adaptive", "<mm:think> </mm:think> a", "| a|" },
        { "disabled", "</mm:think>a", "|a|" },
        { "disabled", "a</mm:think>b", "|a</mm:think>b|" },
        { "disabled", "<mm:think>r</mm:think>a", "r|a|" },
        { "disabled", "<mm:thin", "|<mm:thin|" },
        { "disabled", "a <think>x</think> </think> <", "|a <think>x</think> </think> <|" },
        { "disabled", "a]<]minimax[>[", "|a]<]minimax[>[|" },
        { "disabled", "]]<]minimax[>[b]<]mini]<]minimax[>[ <tool_cal",
          "|]]<]minimax[>[b]<]mini]<]minimax[>[ <tool_cal|" },
        { "disabled", "<<mm:think>r", "r|<|" },
        { "disabled", "x[e~[\n", "|x[e~[\n|" },
        { "disabled", "日本語🙂é]<", "|日本語🙂é]<|" },
    };
    (void)state;
    check(examples, MM3_COUNT(examples), NULL);
}

static void test_envelope(void **state)
{
    static const example examples[] = {
        { "enabled", "r</mm:think>" ONE(ARG("s", "x")), "r||f({\"s\": \"x\"})" },
        { "enabled", "r" ONE(ARG("s", "x")), "r||f({\"s\": \"x\"})" },
        { "enabled", "r" ONE(ARG("s", "x")) "</mm:think>a", "r|a|f({\"s\": \"x\"})" },
        { "enabled", "r\n" ONE(ARG("s", "x")) "\n[", "r\n|\n[|f({\"s\": \"x\"})" },
        { "disabled", "I look.\n" ONE(ARG("s", "x")) "\n", "|I look.\n|f({\"s\": \"x\"})" },
        { "disabled", "\n" ONE(ARG("s", "x")), "||f({\"s\": \"x\"})" },
        { "disabled", OPEN CALL("f", ARG("s", "1")) CALL("g", "") CALL("f", ARG("s", "2")) CLOSE,
          "||f({\"s\": \"1\"}) g({}) f({\"s\": \"2\"})" },
        { "disabled", ONE(ARG("s", "1")) ONE(ARG("s", "1")), "||f({\"s\": \"1\"}) f({\"s\": \"1\"})" },
        { "disabled", ONE(ARG("s", "1")) "then" ONE(ARG("s", "2")), "|then|f({\"s\": \"1\"}) f({\"s\": \"2\"})" },
        { "disabled", OPEN CALL("g", "") CLOSE, "||g({})" },
        { "disabled", OPEN CALL("g", "\n") CLOSE, "||g({})" },
        { "disabled", OPEN CALL("unknown", ARG("x", "5")) CLOSE, "||unknown({\"x\": \"5\"})" },
        { "disabled", OPEN CALL("f", "{\"s\": \"x\", \"i\": 5}") CLOSE, "||f({\"s\": \"x\", \"i\": 5})" },
        /* spaces behind the marker */
        { "disabled",
          NS " <tool_call>" NS "\n<invoke name=\"f\">" NS " <s>x" NS "\t</s>" NS " </invoke>" NS " </tool_call>",
          "||f({\"s\": \"x\"})" },
        { "disabled", OPEN NS "<invoke  name = 'f' >" ARG("s", "x") NS "</invoke >" CLOSE, "||f({\"s\": \"x\"})" },
        { "disabled", OPEN NS "<invoke name=f>" ARG("s", "x") CLOSE, "||f({\"s\": \"x\"})" },
        { "disabled", OPEN NS "<invoke name=\"f>" ARG("s", "\"x\"") CLOSE, "||f({\"s\": \"\\\"x\\\"\"})" },
        /* missing closers and markers */
        { "disabled", OPEN CALL("f", ARG("s", "x")), "||f({\"s\": \"x\"})" },
        { "disabled", OPEN NS "<invoke name=\"f\">" ARG("s", "x"), "||f({\"s\": \"x\"})" },
        { "disabled", OPEN NS "<invoke name=\"f\">" NS "<s>x", "||f({\"s\": \"x\"})" },
        { "disabled", OPEN NS "<invoke name=\"f\">" NS "<s>x" CLOSE "\nbye", "|\nbye|f({\"s\": \"x\"})" },
        { "disabled", OPEN NS "<invoke name=\"f\">" NS "<s>x" NS "<i>5" CLOSE, "||f({\"s\": \"x\", \"i\": 5})" },
        { "disabled", OPEN NS "<invoke name=\"f\">" NS "<s>x" NS "<invoke name=\"g\">" CLOSE,
          "||f({\"s\": \"x\"}) g({})" },
        { "disabled", OPEN "<invoke name=\"f\">" NS "<s>x</s>" CLOSE, "||f({\"s\": \"x\"})" },
        { "disabled", OPEN CALL("g", "") "<invoke name=\"f\">" NS "<s>x" CLOSE, "||g({}) f({\"s\": \"x\"})" },
        { "disabled", NS "<tool_call>" ONE(ARG("s", "x")), "||f({\"s\": \"x\"})" },
        { "disabled", OPEN CALL("f", NS "<s>Paris" NS "</city>") CLOSE, "||f({\"s\": \"Paris\"})" },
        /* text that breaks off */
        { "disabled", OPEN NS "<invoke name=\"f\">" NS "<s>x" NS "</", "||f({\"s\": \"x\"})" },
        { "disabled", OPEN NS "<invoke name=\"f\">" NS "<s>x" NS "<i", "||f({\"s\": \"x\"})" },
        { "disabled", OPEN NS "<invoke name=\"f\">" NS "<s>x]<]mini", "||f({\"s\": \"x\"})" },
        { "disabled", OPEN NS "<invoke name=\"f\">" NS "<a>[1, 2]", "||f({\"a\": [1, 2]})" },
        { "disabled", OPEN CALL("g", "") NS "<invoke name=\"f", "||g({})" },
        /* no calls: text, where it stands */
        { "disabled", "a " NS "<tool_call>" NS "</tool_call> b", "|a " NS "<tool_call>" NS "</tool_call> b|" },
        { "disabled", NS "<tool_call>", "|" NS "<tool_call>|" },
        { "disabled", OPEN, "|" OPEN "|" },
        { "disabled", OPEN "hello", "|" OPEN "hello|" },
        { "disabled", " " OPEN " " NS "hello", "| " OPEN " " NS "hello|" },
        { "enabled", "I write " NS "<tool_call> here.</mm:think>a", "I write " NS "<tool_call> here.|a|" },
        { "enabled", OPEN NS "<invoke>" CLOSE "</mm:think>a", OPEN NS "<invoke>" CLOSE "|a|" },
        { "disabled", OPEN NS "<invoke name=\"\">" CLOSE, "|" OPEN NS "<invoke name=\"\">" CLOSE "|" },
        { "disabled", OPEN CALL("f", "some text") CLOSE, "|" OPEN CALL("f", "some text") CLOSE "|" },
        { "disabled", OPEN NS "<invoke name=\"f", "|" OPEN NS "<invoke name=\"f|" },
        { "disabled", NS "<tool_calls>x", "|" NS "<tool_calls>x|" },
        { "disabled", OPEN "<invok" CLOSE, "|" OPEN "<invok" CLOSE "|" },
    };
    (void)state;
    check(examples, MM3_COUNT(examples), tools);
}

/* ---- argument types ---------------------------------------------------------------------------------------------- */

static void test_types(void **state)
{
    static const struct {
        const char *arguments, *want;
    } cases[] = {
        /* scalars by schema */
        { ARG("s", "02134"), "\"s\": \"02134\"" },
        { ARG("s", "1e5"), "\"s\": \"1e5\"" },
        { ARG("s", "true"), "\"s\": \"true\"" },
        { ARG("s", "null"), "\"s\": \"null\"" },
        { ARG("s", "{\"a\": 1}"), "\"s\": \"{\\\"a\\\": 1}\"" },
        { ARG("s", ""), "\"s\": \"\"" },
        { ARG("s", "\n  two\nlines \n"), "\"s\": \"two\\nlines\"" },
        { ARG("i", "5"), "\"i\": 5" },
        { ARG("i", "5.0"), "\"i\": 5" },
        { ARG("i", " -7 "), "\"i\": -7" },
        { ARG("i", "+007"), "\"i\": 7" },
        { ARG("i", "-0"), "\"i\": 0" },
        { ARG("i", "1e3"), "\"i\": 1000" },
        { ARG("i", "5.5"), "\"i\": \"5.5\"" },
        { ARG("i", "five"), "\"i\": \"five\"" },
        { ARG("i", ""), "\"i\": \"\"" },
        { ARG("i", "."), "\"i\": \".\"" },
        { ARG("i", "1e"), "\"i\": \"1e\"" },
        { ARG("i", "NULL"), "\"i\": null" },
        { ARG("i", "nUll"), "\"i\": \"nUll\"" },
        { ARG("i", "123456789012345678901234567890"), "\"i\": 123456789012345678901234567890" },
        { ARG("n", "1"), "\"n\": 1" },
        { ARG("n", "-1.50"), "\"n\": -1.50" },
        { ARG("n", "1e-7"), "\"n\": 1e-7" },
        { ARG("n", ".5"), "\"n\": 0.5" },
        { ARG("n", "+2."), "\"n\": 2.0" },
        { ARG("n", "007"), "\"n\": 7.0" },
        { ARG("n", "1e999"), "\"n\": \"1e999\"" },
        { ARG("n", "nan"), "\"n\": \"nan\"" },
        { ARG("n", "0x10"), "\"n\": \"0x10\"" },
        { ARG("n", "1,5"), "\"n\": \"1,5\"" },
        { ARG("b", "true"), "\"b\": true" },
        { ARG("b", "1"), "\"b\": true" },
        { ARG("b", "Yes"), "\"b\": true" },
        { ARG("b", "FALSE"), "\"b\": false" },
        { ARG("b", "0"), "\"b\": false" },
        { ARG("b", "no"), "\"b\": false" },
        { ARG("b", "maybe"), "\"b\": \"maybe\"" },
        { ARG("nil", "null"), "\"nil\": null" },
        { ARG("sn", "Null"), "\"sn\": null" },
        { ARG("sn", "nothing"), "\"sn\": \"nothing\"" },
        { ARG("nu", "null"), "\"nu\": null" },
        { ARG("in", "4"), "\"in\": 4" },
        { ARG("in", "null"), "\"in\": null" },
        { ARG("si", "02134"), "\"si\": \"02134\"" },
        { ARG("si", "5.0"), "\"si\": \"5.0\"" },
        { ARG("si", "5"), "\"si\": 5" },
        { ARG("sb", "yes"), "\"sb\": \"yes\"" },
        { ARG("sb", "true"), "\"sb\": true" },
        { ARG("e", "2"), "\"e\": 2" },
        { ARG("c", "true"), "\"c\": true" },
        { ARG("z", "3"), "\"z\": 3" },
        { ARG("u", "12"), "\"u\": \"12\"" },
        { ARG("any", "12"), "\"any\": \"12\"" },
        { ARG("x", "null"), "\"x\": \"null\"" },
        { ARG("r", "12"), "\"r\": \"12\"" }, /* a reference to itself says nothing */
        { ARG("w", "12"), "\"w\": \"12\"" },
        /* names beyond XML's */
        { ARG("$x", "1") ARG("a.b", "2") ARG("2024", "3") ARG("größe", "4"),
          "\"$x\": \"1\", \"a.b\": \"2\", \"2024\": \"3\", \"größe\": \"4\"" },
        /* objects and arrays */
        { ARG("a", "[1, 2]"), "\"a\": [1, 2]" },
        { ARG("a", "[]"), "\"a\": []" },
        { ARG("a", ""), "\"a\": []" },
        { ARG("a", ITEM("1") ITEM("2.0")), "\"a\": [1, 2]" },
        { ARG("a", "\n" ITEM("1") "\n" ITEM("") "\n"), "\"a\": [1, \"\"]" },
        { ARG("a", "[1, 2"), "\"a\": \"[1, 2\"" },
        { ARG("a", "{\"k\": 1}"), "\"a\": \"{\\\"k\\\": 1}\"" },
        { ARG("a", "1") ARG("a", "2"), "\"a\": [1, 2]" },
        { ARG("a", "1") ARG("s", "x") ARG("a", "[2, 3]") ARG("a", ITEM("4")), "\"a\": [1, 2, 3, 4], \"s\": \"x\"" },
        { ARG("s", "1") ARG("s", "2"), "\"s\": \"2\"" },
        { ARG("x", "1") ARG("x", "2"), "\"x\": [\"1\", \"2\"]" },
        { ARG("as", ITEM("02") ITEM("null") ITEM("[1]")), "\"as\": [\"02\", \"null\", \"[1]\"]" },
        { ARG("aa", ITEM(ITEM("1") ITEM("2")) ITEM(ITEM("3.5")) ITEM("[4]")), "\"aa\": [[1, 2], [3.5], [4]]" },
        { ARG("ao", ITEM(ARG("k", "1") ARG("x", "y")) ITEM(ARG("k", "2"))),
          "\"ao\": [{\"k\": 1, \"x\": \"y\"}, {\"k\": 2}]" },
        { ARG("ao", ARG("k", "1")), "\"ao\": [{\"k\": 1}]" },
        { ARG("ao", "[{\"k\": 1, \"k\": 2}]"), "\"ao\": [{\"k\": 2}]" },
        { ARG("o", "{\"k\": 12345678901234567890, \"f\": 1.0}"), "\"o\": {\"k\": 12345678901234567890, \"f\": 1.0}" },
        { ARG("o", "{\"k\": 3.14159265358979323846, \"f\": 1e-00000000000000000002}"),
          "\"o\": {\"k\": 3.141592653589793, \"f\": 0.01}" },
        { ARG("o", ""), "\"o\": {}" },
        { ARG("o", ARG("k", "1") ARG("a", ITEM(ARG("b", "yes")) ITEM(ARG("b", "no")))),
          "\"o\": {\"k\": 1, \"a\": [{\"b\": true}, {\"b\": false}]}" },
        { ARG("o", ITEM("x")), "\"o\": {\"item\": \"x\"}" },
        { ARG("o", "no JSON"), "\"o\": \"no JSON\"" },
        { ARG("os", "text"), "\"os\": \"text\"" },
        { ARG("os", "{\"a\": null}"), "\"os\": {\"a\": null}" },
        { ARG("os", ""), "\"os\": \"\"" },
        { ARG("m", ARG("k1", "1") ARG("k2", "2")), "\"m\": {\"k1\": 1, \"k2\": 2}" },
        { ARG("p", ARG("x", "1") ARG("next", ARG("x", "2") ARG("next", ARG("x", "3")))),
          "\"p\": {\"x\": 1, \"next\": {\"x\": 2, \"next\": {\"x\": 3}}}" },
        { ARG("x", ITEM("1") ITEM(ARG("k", "v"))), "\"x\": [\"1\", {\"k\": \"v\"}]" },
        { ARG("x", ARG("k", "v") ARG("l", NS "<item/>")), "\"x\": {\"k\": \"v\", \"l\": [\"\"]}" },
        /* what is no tag stays */
        { ARG("s", "a <b>bold</b> &amp; \"q\" </s> <item>"), "\"s\": \"a <b>bold</b> &amp; \\\"q\\\" </s> <item>\"" },
        { ARG("s", "x" NS "y" NS " z"), "\"s\": \"xy z\"" },
        { ARG("s", "]<]minimax[> ]<]"), "\"s\": \"]<]minimax[> ]<]\"" },
        { ARG("s", "<s>x</s>"), "\"s\": \"<s>x</s>\"" },
        { ARG("s", ARG("b", "x")), "\"s\": \"<b>x</b>\"" },
        { ARG("i", ARG("b", "x")), "\"i\": \"<b>x</b>\"" },
        { ARG("x", ARG("b", "1") "tail"), "\"x\": \"<b>1</b>tail\"" },
        { ARG("s", "日本 🙂"), "\"s\": \"日本 🙂\"" },
        { "junk" ARG("s", "x") "junk", "\"s\": \"x\"" },
        /* missing closers within */
        { NS "<a>" NS "<item>1" NS "<item>2" NS "</a>", "\"a\": [1, 2]" },
        { NS "<o>" NS "<k>1" NS "</o>" ARG("s", "x"), "\"o\": {\"k\": 1}, \"s\": \"x\"" },
        { NS "<s>x" NS "<i>5" NS "<b>no", "\"s\": \"x\", \"i\": 5, \"b\": false" },
        { NS "<s>x" NS "</s" NS "</s>", "\"s\": \"x</s\"" },
        { "" NS "</nothing>" ARG("s", "x"), "\"s\": \"x\"" },
    };
    int i;
    (void)state;
    for (i = 0; i < MM3_COUNT(cases); i++) {
        mm3_buf text = { 0 }, want = { 0 };
        example e = { "disabled", NULL, NULL };
        mm3_buf_printf(&text, OPEN NS "<invoke name=\"f\">%s" NS "</invoke>\n" CLOSE, cases[i].arguments);
        mm3_buf_printf(&want, "||f({%s})", cases[i].want);
        e.text = text.data;
        e.want = want.data;
        check(&e, 1, tools);
        mm3_buf_free(&text);
        mm3_buf_free(&want);
    }
}

/* Without tools everything is a string, nested or not. */
static void test_no_tools(void **state)
{
    static const example examples[] = {
        { NULL, ONE(ARG("i", "5") ARG("a", ITEM("1")) ARG("o", ARG("k", "true")) ARG("j", "[1]")),
          "||f({\"i\": \"5\", \"a\": [\"1\"], \"o\": {\"k\": \"true\"}, \"j\": \"[1]\"})" },
    };
    (void)state;
    check(examples, 1, NULL);
    check(examples, 1, "[]");
}

/* What the template writes of a call is read back as the same arguments. */
static void test_round_trip(void **state)
{
    const char *arguments = "{\"s\": \"a <b> & \\\"c\\\"\\n]<]\", \"i\": -5, \"n\": 1.5, \"b\": true, \"a\": [1, 2], "
                            "\"as\": [\"\", \"null\", \"02\"], \"o\": {\"k\": 12345678901234567890, \"a\": [{\"b\": "
                            "false}, {}]}, \"ao\": [], \"aa\": [[1, 2], []], \"x\": {\"ü\": [\"日\"]}}";
    mm3__rendered r = { 0 };
    mm3_buf messages = { 0 }, want = { 0 };
    char *got;
    const char *body;
    (void)state;
    mm3_buf_puts(&messages, "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"t\", "
                            "\"reasoning\": \"r\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": ");
    mm3_buf_printf(&messages, "%s}}, {\"function\": {\"name\": \"g\", \"arguments\": \"\"}}]}]", arguments);
    assert_int_equal(mm3__chat_render(&r, messages.data, NULL, NULL, false), MM3_OK);
    body = strstr(r.text.data, "]~b]ai\n") + strlen("]~b]ai\n");
    got = run_all_ways(body, (size_t)(strstr(body, "[e~[") - body), tools, NULL);
    mm3_buf_printf(&want, "r|t|f(%s) g({})", arguments);
    assert_string_equal(got, want.data);
    mm3_free(got);
    mm3_buf_free(&want);
    mm3_buf_free(&messages);
    mm3__rendered_free(&r);
}

/* ---- streaming --------------------------------------------------------------------------------------------------- */

static char *push(mm3_parser *p, const char *text, bool finish)
{
    char *delta;
    assert_int_equal(mm3_parser_push(p, text, strlen(text), finish, &delta), MM3_OK);
    return delta;
}

static void expect(mm3_parser *p, const char *text, bool finish, const char *want)
{
    char *delta = push(p, text, finish);
    assert_string_equal(delta, want);
    mm3_free(delta);
}

/* Text goes out at once; only what may begin a marker waits; a call comes whole when its envelope closes. */
static void test_what_is_held_back(void **state)
{
    mm3_parser *p;
    char *delta;
    (void)state;
    assert_int_equal(mm3_parser_open(&p, tools, "enabled"), MM3_OK);
    expect(p, "why", false, "{\"reasoning_content\": \"why\"}");
    expect(p, " not <", false, "{\"reasoning_content\": \" not \"}");
    expect(p, "b> ", false, "{\"reasoning_content\": \"<b> \"}");
    expect(p, "</mm:think", false, "{}");
    expect(p, ">so", false, "{\"content\": \"so\"}");
    expect(p, "]<]minimax", false, "{}");
    expect(p, "[>[ \n<tool", false, "{}");
    expect(p, "x", false, "{\"content\": \"]<]minimax[>[ \\n<toolx\"}");
    expect(p, "\xE6\x97", false, "{}");
    expect(p, "\xA5.", false, "{\"content\": \"日.\"}");
    expect(p, "bye " OPEN NS "<invoke name=\"f\">" NS "<s>x", false, "{\"content\": \"bye \"}");
    expect(p, NS "</s>" NS "</invoke>", false, "{}");
    delta = push(p, CLOSE, false);
    assert_non_null(strstr(delta, "{\"tool_calls\": [{\"index\": 0, \"id\": \"call_0_"));
    assert_non_null(strstr(delta, "\", \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": "
                                  "\"{\\\"s\\\": \\\"x\\\"}\"}}]}"));
    mm3_free(delta);
    expect(p, "\n", false, "{}");
    expect(p, "", true, "{}");
    assert_int_equal(mm3_parser_push(p, "x", 1, false, &delta), MM3_ERR_ARG);
    assert_non_null(strstr(mm3_last_error(), "finished"));
    assert_null(delta);
    mm3_parser_close(&p);
    mm3_parser_close(&p);
}

static void test_open_errors(void **state)
{
    mm3_parser *p;
    (void)state;
    assert_int_equal(mm3_parser_open(&p, NULL, "true"), MM3_ERR_ARG);
    assert_non_null(strstr(mm3_last_error(), "enabled, disabled or adaptive"));
    assert_null(p);
    assert_int_equal(mm3_parser_open(&p, "{}", NULL), MM3_ERR_ARG);
    assert_non_null(strstr(mm3_last_error(), "tools is an object"));
    assert_null(p);
}

/* The same text gives the same ids; another place or other arguments give others. */
static void test_ids(void **state)
{
    char *ids[3];
    int i;
    (void)state;
    for (i = 0; i < 3; i++) {
        mm3_parser *p;
        char *delta;
        assert_int_equal(mm3_parser_open(&p, tools, NULL), MM3_OK);
        delta = push(p, i < 2 ? ONE(ARG("s", "x")) : ONE(ARG("s", "y")), true);
        ids[i] = mm3_malloc(64);
        if (sscanf(delta, "{\"tool_calls\": [{\"index\": 0, \"id\": \"%63[^\"]", ids[i]) != 1) fail_msg("%s", delta);
        assert_int_equal(strlen(ids[i]), strlen("call_0_01234567"));
        mm3_free(delta);
        mm3_parser_close(&p);
    }
    assert_string_equal(ids[0], ids[1]);
    assert_string_not_equal(ids[0], ids[2]);
    for (i = 0; i < 3; i++) mm3_free(ids[i]);
}

/* ---- hostile text ------------------------------------------------------------------------------------------------ */

/* Random texts out of markers, their pieces, tags and bytes: any result, but the same however cut, and valid JSON. */
static void test_random_texts(void **state)
{
    static const char *const pieces[] = {
        "<mm:think>",
        "</mm:think>",
        NS,
        "<tool_call>",
        "</tool_call>",
        NS "<tool_call>",
        NS "</tool_call>",
        "\n",
        "<invoke name=\"f\">",
        NS "<invoke name=\"f\">",
        NS "</invoke>",
        NS "<s>",
        NS "</s>",
        NS "<a>",
        NS "<item>",
        NS "</item>",
        NS "</a>",
        "<",
        "]",
        "]<",
        "/",
        ">",
        "\"",
        "text",
        "é",
        "🙂",
        "\xE6",
        "\x97",
        "\xFF",
        " ",
        "1",
        "[1]",
        NS "<o>",
        NS "<k>",
        "[e~[",
        "{\"a\":",
        "}",
        "name=",
        NS "</",
        "]<]minimax",
    };
    static const char *const modes[] = { "enabled", "disabled", "adaptive" };
    unsigned seed = 20, i, k;
    (void)state;
    for (i = 0; i < 1500; i++) {
        mm3_buf text = { 0 };
        unsigned n = random_below(&seed, 30);
        mm3_buf_puts(&text, i % 3 ? "" : OPEN NS "<invoke name=\"f\">");
        for (k = 0; k < n; k++) mm3_buf_puts(&text, pieces[random_below(&seed, MM3_COUNT(pieces))]);
        mm3_free(run_all_ways(text.data, text.n, tools, modes[i % 3]));
        mm3_buf_free(&text);
    }
}

static void test_bytes(void **state)
{
    static const struct {
        const char *text;
        size_t n;
        const char *want;
    } cases[] = {
        { "a\xFF"
          "b",
          3,
          "|a\xEF\xBF\xBD"
          "b|" },
        { "\xE6\x97", 2, "|\xEF\xBF\xBD|" },
        { "\xE6\x97x", 3, "|\xEF\xBF\xBDx|" },
        { "\xE6\xE6\x97\xA5", 4, "|\xEF\xBF\xBD日|" },
        { "\xC0\xAF", 2, "|\xEF\xBF\xBD\xEF\xBF\xBD|" },
        { "\xED\xA0\x80", 3, "|\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD|" },
        { "\xF4\x90\x80\x80", 4, "|\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD|" },
        { "\xF0\x9F\x99\x82\xF0\x9F\x99", 7, "|🙂\xEF\xBF\xBD|" },
        { "<mm:think>\xF0\x9F</mm:think>\x80", 24, "\xEF\xBF\xBD|\xEF\xBF\xBD|" },
    };
    mm3_parser *p;
    char *s;
    int i;
    (void)state;
    for (i = 0; i < MM3_COUNT(cases); i++) {
        s = run_all_ways(cases[i].text, cases[i].n, NULL, NULL);
        assert_string_equal(s, cases[i].want);
        mm3_free(s);
    }
    s = run_all_ways("a\0b\xE6\0", 5, NULL, NULL);
    assert_string_equal(s, "|a\xEF\xBF\xBD"
                           "b\xEF\xBF\xBD\xEF\xBF\xBD|");
    mm3_free(s);
    assert_int_equal(mm3_parser_open(&p, NULL, NULL), MM3_OK);
    assert_int_equal(mm3_parser_push(p, "\x01\x7F\"\\", 4, true, &s), MM3_OK);
    assert_string_equal(s, "{\"content\": \"\\u0001\x7F\\\"\\\\\"}");
    mm3_free(s);
    mm3_parser_close(&p);
    /* a NUL within a value, a tag and an invoke's name */
    mm3_free(run_all_ways(OPEN NS "<invoke name=\"f\">" NS "<s>a\0b" NS "</s>",
                          sizeof OPEN NS "<invoke name=\"f\">" NS "<s>a_b" NS "</s>" - 1, tools, NULL));
    mm3_free(run_all_ways(OPEN NS "<invoke name=\"f\">" NS "<\0>a" NS "</s>",
                          sizeof OPEN NS "<invoke name=\"f\">" NS "<_>a" NS "</s>" - 1, tools, NULL));
    mm3_free(run_all_ways(OPEN NS "<invoke name=\"\0f\">", sizeof OPEN NS "<invoke name=\"_f\">" - 1, tools, NULL));
}

static void repeat(mm3_buf *b, const char *s, int n)
{
    while (n--) mm3_buf_puts(b, s);
}

/* Tags nested deeper than anybody's arguments: the block is text. At the limit it is still a call. */
static void test_nesting(void **state)
{
    static const int depths[] = { 60, 63, 64, 1000, 100000 };
    int i;
    (void)state;
    for (i = 0; i < MM3_COUNT(depths); i++) {
        mm3_buf b = { 0 }, want = { 0 };
        char *s;
        mm3_buf_puts(&b, OPEN NS "<invoke name=\"f\">");
        repeat(&b, NS "<x>", depths[i]);
        mm3_buf_puts(&b, "1");
        repeat(&b, NS "</x>", depths[i]);
        mm3_buf_puts(&b, CLOSE);
        s = run(b.data, b.n, tools, NULL, b.n, 0);
        mm3_buf_puts(&want, depths[i] < 64 ? "||f({" : "|");
        if (depths[i] < 64) {
            repeat(&want, "\"x\": {", depths[i] - 1);
            mm3_buf_puts(&want, "\"x\": \"1\"");
            repeat(&want, "}", depths[i]);
            mm3_buf_puts(&want, ")");
        } else {
            mm3_buf_add(&want, b.data, b.n);
            mm3_buf_puts(&want, "|");
        }
        assert_string_equal(s, want.data);
        mm3_free(s);
        mm3_buf_free(&b);
        mm3_buf_free(&want);
    }
}

static double seconds_of(const mm3_buf *text, size_t cut)
{
    double begin = mm3_now_s();
    mm3_parser *p;
    size_t at;
    assert_int_equal(mm3_parser_open(&p, tools, "enabled"), MM3_OK);
    for (at = 0; at < text->n; at += cut) {
        size_t n = MM3_MIN(cut, text->n - at);
        char *delta;
        assert_int_equal(mm3_parser_push(p, text->data + at, n, at + n == text->n, &delta), MM3_OK);
        mm3_free(delta);
    }
    mm3_parser_close(&p);
    return mm3_now_s() - begin;
}

/* A megabyte byte by byte, of the texts that hold most back: a parser that looks twice would need hours. */
static void test_linear_time(void **state)
{
    static const struct {
        const char *head, *body;
    } texts[] = {
        { "", "plain text. " },
        { "", " " },
        { "", "<" },
        { "", "]<]minimax[>[" },
        { "", "]<]minimax[>[ " },
        { NS, " " },
        { "", "<mm:think></mm:think>" },
        { "", OPEN },
        { OPEN, "\n" },
        { "", OPEN NS "<invoke name=\"f\">" },
        { OPEN NS "<invoke name=\"f\">" NS "<s>", "x " },
        { OPEN NS "<invoke name=\"f\">" NS "<s>", "]<]minimax[>[ " },
        { OPEN NS "<invoke name=\"f\">", ARG("x", "1") },
        { OPEN NS "<invoke name=\"f\">", NS "<x>1" },
        { OPEN NS "<invoke name=\"f\">", NS "<x>" },
        { OPEN NS "<invoke name=\"f\">" NS "<x>" NS "<x>" NS "<x>", NS "</y>" },
        { OPEN, NS "<invoke name=\"" },
        { OPEN, NS "<invoke name=\"f\"" },
        { OPEN, CALL("f", "") },
        { "", ONE("") },
        { "", "\xF0\x9F" },
        { OPEN NS "<invoke name=\"f\">" NS "<a>", "[" },
        { OPEN NS "<invoke name=\"f\">" NS "<a>[", "-123456789012345678901 " },
        { OPEN NS "<invoke name=\"f\">" NS "<i>", "1" },
    };
    int i;
    (void)state;
    for (i = 0; i < MM3_COUNT(texts); i++) {
        mm3_buf b = { 0 };
        double by_bytes, whole;
        mm3_buf_puts(&b, texts[i].head);
        while (b.n < 1000000) mm3_buf_puts(&b, texts[i].body);
        by_bytes = seconds_of(&b, 1);
        whole = seconds_of(&b, b.n);
        if (by_bytes > 20 || whole > 10) fail_msg("text %d: %.1f s by bytes, %.1f s whole", i, by_bytes, whole);
        mm3_buf_free(&b);
    }
}

/* Every allocation fails once: an error, no crash, no leak, and the parser takes no more text. */
static void test_out_of_memory(void **state)
{
    const char *text = "why</mm:think> text " OPEN CALL("f", ARG("s", "x") ARG("a", "[1]") ARG("a", ITEM("2"))
                                                                 ARG("o", ARG("k", "1"))) CLOSE " more";
    mm3_status st = MM3_ERR_NOMEM;
    long k;
    (void)state;
    for (k = 1; st != MM3_OK; k++) {
        mm3_parser *p = NULL;
        char *delta = NULL;
        alloc_fail_at(k);
        st = mm3_parser_open(&p, tools, "enabled");
        if (!st) {
            st = mm3_parser_push(p, text, strlen(text), true, &delta);
            alloc_fail_at(0);
            if (st) {
                char *other;
                assert_null(delta);
                assert_int_equal(mm3_parser_push(p, "x", 1, true, &other), MM3_ERR_NOMEM);
            }
            mm3_parser_close(&p);
        }
        alloc_fail_at(0);
        assert_true(st == MM3_OK || st == MM3_ERR_NOMEM);
        mm3_free(delta);
        assert_true(k < 1000);
    }
    assert_true(k > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reasoning),     cmocka_unit_test(test_envelope),
        cmocka_unit_test(test_types),         cmocka_unit_test(test_no_tools),
        cmocka_unit_test(test_round_trip),    cmocka_unit_test(test_open_errors),
        cmocka_unit_test(test_ids),           cmocka_unit_test(test_what_is_held_back),
        cmocka_unit_test(test_random_texts),  cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_nesting),       cmocka_unit_test(test_linear_time),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
