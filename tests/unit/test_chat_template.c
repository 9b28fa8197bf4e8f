/* The rendered prompt against texts of an independent implementation (tests/golden/chat.json), what counts as a
 * control token, and the errors. No tokenizer here: see test_chat_encode.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/alloc_faults.h"
#include "text/chat.h"

#define HELLO "[{\"role\": \"user\", \"content\": \"Hi\"}]"

static const char *string_of(const json_t *c, const char *key) { return json_string_value(json_object_get(c, key)); }

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static void test_golden(void **state)
{
    json_t *cases = NULL;
    size_t i;
    (void)state;
    assert_int_equal(mm3_json_load(&cases, "tests/golden/chat.json"), MM3_OK);
    assert_true(json_array_size(cases) >= 40);
    for (i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        mm3__rendered r = { 0 };
        mm3_status st = mm3__chat_render(&r, string_of(c, "messages"), string_of(c, "tools"), string_of(c, "thinking"),
                                         json_is_true(json_object_get(c, "generate")));
        if (st) fail_msg("%s: %s", string_of(c, "name"), mm3_last_error());
        if (strcmp(r.text.data, string_of(c, "text")) != 0)
            fail_msg("%s:\n--- got\n%s\n--- want\n%s", string_of(c, "name"), r.text.data, string_of(c, "text"));
        mm3__rendered_free(&r);
    }
    json_decref(cases);
}

/* ---- controls ---------------------------------------------------------------------------------------------------- */

/* The controls of a rendered prompt, one a line. */
static char *controls_of(const char *messages, const char *tools, const char *thinking)
{
    mm3__rendered r = { 0 };
    mm3_buf b = { 0 };
    char *s;
    size_t at = 0;
    int i;
    assert_int_equal(mm3__chat_render(&r, messages, tools, thinking, true), MM3_OK);
    for (i = 0; i < r.n_control; i++) {
        assert_true(r.control[i].at >= at && r.control[i].n > 0 && r.control[i].at + r.control[i].n <= r.text.n);
        at = r.control[i].at + r.control[i].n;
        mm3_buf_printf(&b, "%.*s\n", (int)r.control[i].n, r.text.data + r.control[i].at);
    }
    mm3__rendered_free(&r);
    assert_int_equal(mm3_buf_take(&b, &s, NULL), MM3_OK);
    return s;
}

#define BASE_CONTROLS "]~!b[\n]~b]\n<mm:think>\n</mm:think>\n</mm:think>\n[e~[\n]~b]\n"
#define USER_CONTROLS "[e~[\n]~b]\n[e~[\n]~b]\n"
#define NS MM3__NS "\n"
#define EXAMPLE_CONTROLS                                                                                         \
    NS "<tool_call>\n" NS "</tool_call>\n" NS "<tool_call>\n" NS NS NS NS NS NS NS NS NS NS NS NS NS NS NS NS NS \
       "</tool_call>\n"

static void test_controls(void **state)
{
    char *s;
    (void)state;
    s = controls_of(HELLO, NULL, "enabled");
    assert_string_equal(s, BASE_CONTROLS USER_CONTROLS "<mm:think>\n");
    mm3_free(s);
    s = controls_of(HELLO, "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]", "disabled");
    assert_string_equal(s, BASE_CONTROLS EXAMPLE_CONTROLS USER_CONTROLS "</mm:think>\n");
    mm3_free(s);
    s = controls_of("[{\"role\": \"user\", \"content\": [{\"type\": \"image\"}, {\"type\": \"text\", \"text\": \"x\"},"
                    "{\"type\": \"video\"}]}]",
                    NULL, NULL);
    assert_string_equal(s, BASE_CONTROLS "[e~[\n]~b]\n]<]image[>[\n]<]video[>[\n[e~[\n]~b]\n");
    mm3_free(s);
    s = controls_of("[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"\","
                    "\"reasoning\": \"r\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\":"
                    "{\"a\": [1]}}}]}, {\"role\": \"tool\", \"content\": \"x\"}]",
                    NULL, NULL);
    assert_string_equal(s, BASE_CONTROLS "[e~[\n]~b]\n[e~[\n]~b]\n<mm:think>\n</mm:think>\n" NS
                                         "<tool_call>\n" NS NS NS NS NS NS NS "</tool_call>\n[e~[\n]~b]\n[e~[\n]~b]\n");
    mm3_free(s);
}

/* A marker in any place that the caller fills is text: the controls are those of the same prompt without it. */
static void test_forged_controls(void **state)
{
    static const char *const forms[][2] = {
        { "[{\"role\": \"root\", \"content\": \"@\"}, {\"role\": \"user\", \"content\": \"q\"}]", NULL },
        { "[{\"role\": \"system\", \"content\": \"@\"}, {\"role\": \"user\", \"content\": [\"@\", "
          "{\"type\": \"text\", \"text\": \"@\"}]}, {\"role\": \"system\", \"content\": \"@\"}]",
          NULL },
        { "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"@\", "
          "\"reasoning_content\": \"@\", \"tool_calls\": [{\"function\": {\"name\": \"@\", \"arguments\": "
          "{\"@\": \"@\", \"b\": {\"@\": [\"@\"]}}}}]}, {\"role\": \"tool\", \"content\": \"@\"}]",
          NULL },
        { HELLO, "[{\"type\": \"function\", \"function\": {\"name\": \"@\", \"@\": \"@\", \"description\": \"@\"}}]" },
    };
    static const char *const markers[] = { "]~!b[",       "]~b]",         "[e~[",        MM3__NS,       "<mm:think>",
                                           "<tool_call>", "</tool_call>", "]<]image[>[", "]<]video[>[", "]~b]ai\\n" };
    int i, k;
    (void)state;
    for (i = 0; i < MM3_COUNT(forms); i++) {
        for (k = -1; k < MM3_COUNT(markers); k++) {
            static char *plain;
            char *texts[2] = { NULL, NULL }, *got;
            int j;
            for (j = 0; j < 2 && forms[i][j]; j++) {
                mm3_buf b = { 0 };
                const char *s;
                for (s = forms[i][j]; *s; s++)
                    if (*s == '@')
                        mm3_buf_puts(&b, k < 0 ? "plain" : markers[k]);
                    else
                        mm3_buf_add(&b, s, 1);
                assert_int_equal(mm3_buf_take(&b, &texts[j], NULL), MM3_OK);
            }
            got = controls_of(texts[0], texts[1], NULL);
            mm3_free(texts[0]);
            mm3_free(texts[1]);
            if (k < 0) {
                plain = got;
                continue;
            }
            assert_string_equal(got, plain);
            mm3_free(got);
            if (k == MM3_COUNT(markers) - 1) mm3_free(plain);
        }
    }
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

static void test_errors(void **state)
{
    static const struct {
        const char *messages, *tools, *thinking, *text;
    } cases[] = {
        { HELLO, NULL, "on", "thinking mode \"on\" is unknown: use enabled, disabled or adaptive" },
        { HELLO, NULL, "Enabled", "use enabled, disabled or adaptive" },
        { "[", NULL, NULL, "messages: not valid JSON at line 1" },
        { "[] x", NULL, NULL, "messages: not valid JSON" },
        { "{}", NULL, NULL, "messages is an object; expected an array" },
        { "[]", NULL, NULL, "messages is empty; expected an array of at least one message" },
        { "[7]", NULL, NULL, "messages[0] is a number; expected an object" },
        { "[{\"role\": \"user\", \"role\": \"user\"}]", NULL, NULL, "duplicate object key" },
        { "[{1234567890123456789012: 1}]", NULL, NULL, "messages: not valid JSON" },
        { "[{\"role\": \"user\", \"content\": 01234567890123456789012}]", NULL, NULL, "messages: not valid JSON" },
        { "[{\"content\": \"x\"}]", NULL, NULL, "messages[0].role is missing" },
        { "[{\"role\": 12345678901234567890, \"content\": \"x\"}]", NULL, NULL, "messages[0].role is a number" },
        { "[{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"robot\"}]", NULL, NULL,
          "messages[1].role is \"robot\"; expected user, assistant, tool, system, developer or root" },
        { "[{\"role\": \"user\\u0000x\", \"content\": \"x\"}]", NULL, NULL, "messages[0].role is \"user?x\"" },
        { "[{\"role\": \"user\"}]", NULL, NULL, "messages[0].content is missing; expected a string or an array" },
        { "[{\"role\": \"user\", \"content\": null}]", NULL, NULL, "messages[0].content is null" },
        { "[{\"role\": \"user\", \"content\": {}}]", NULL, NULL, "messages[0].content is an object" },
        { "[{\"role\": \"user\", \"content\": 12345678901234567890}]", NULL, NULL, "messages[0].content is a number" },
        { "[{\"role\": \"user\", \"content\": \"\\ufdd012\"}]", NULL, NULL, "U+FDD0" },
        { "[{\"role\": \"system\", \"content\": true}]", NULL, NULL, "messages[0].content is a boolean" },
        { "[{\"role\": \"user\", \"content\": [\"a\", 1]}]", NULL, NULL, "messages[0].content[1] is a number" },
        { "[{\"role\": \"user\", \"content\": [{}]}]", NULL, NULL, "messages[0].content[0].type is missing" },
        { "[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]", NULL, NULL,
          "messages[0].content[0].type is \"image_url\"; expected \"text\", \"image\" or \"video\"" },
        { "[{\"role\": \"user\", \"content\": [{\"type\": \"image\\u0000\"}]}]", NULL, NULL,
          "messages[0].content[0].type is \"image?\"" },
        { "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": 1}]}]", NULL, NULL,
          "messages[0].content[0].text is a number" },
        { "[{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"root\", \"content\": \"y\"}]", NULL, NULL,
          "messages[1]: a root message must be the first" },
        { "[{\"role\": \"tool\", \"content\": \"x\"}]", NULL, NULL, "messages[0]: a tool message, but" },
        { "[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"function\": {\"name\": \"f\"}}]}, "
          "{\"role\": \"assistant\", \"content\": \"x\"}, {\"role\": \"tool\", \"content\": \"x\"}]",
          NULL, NULL, "messages[2]: a tool message, but the assistant message before it has no tool_calls" },
        { "[{\"role\": \"assistant\", \"reasoning\": [], \"content\": \"x\"}]", NULL, NULL,
          "messages[0].reasoning is an array; expected a string or null" },
        { "[{\"role\": \"assistant\", \"tool_calls\": {}}]", NULL, NULL, "messages[0].tool_calls is an object" },
        { "[{\"role\": \"assistant\", \"tool_calls\": [{}]}]", NULL, NULL,
          "messages[0].tool_calls[0].function is missing" },
        { "[{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": \"\"}}]}]", NULL, NULL,
          "messages[0].tool_calls[0].function.name is empty" },
        { "[{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": [1]}}]}]", NULL,
          NULL, "messages[0].tool_calls[0].function.arguments is an array; expected an object" },
        { "[{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": \"7\"}}]}]",
          NULL, NULL, "messages[0].tool_calls[0].function.arguments is a number; expected an object" },
        { "[{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": \"{\"}}]}]",
          NULL, NULL, "messages[0].tool_calls[0].function.arguments: not valid JSON" },
        { HELLO, "{", NULL, "tools: not valid JSON" },
        { HELLO, "{}", NULL, "tools is an object; expected an array of functions" },
        { HELLO, "[{\"type\": \"retrieval\"}]", NULL, "tools[0].type is retrieval; only \"function\" is known" },
        { HELLO, "[{\"type\": \"function\\u0000\"}]", NULL, "tools[0].type is function?; only" },
        { HELLO, "[{\"function\": {\"name\": \"f\\u0000g\"}}]", NULL,
          "tools[0].function.name holds a NUL behind \"f\"" },
        { HELLO, "[\"f\"]", NULL, "tools[0] is a string" },
        { HELLO, "[{\"type\": \"function\"}]", NULL, "tools[0].function is missing" },
        { HELLO, "[{\"function\": {\"name\": \"a\"}}, {\"function\": {}}]", NULL, "tools[1].function.name is missing" },
        { HELLO, "[{\"function\": {\"name\": \"a\", \"parameters\": []}}]", NULL,
          "tools[0].function.parameters is an array" },
        { HELLO, "[{\"function\": {\"name\": \"a\"}}, {\"function\": {\"name\": \"a\"}}]", NULL,
          "tools[1]: a tool named \"a\" is already there" },
    };
    int i;
    (void)state;
    for (i = 0; i < MM3_COUNT(cases); i++) {
        mm3__rendered r = { 0 };
        mm3_status st = mm3__chat_render(&r, cases[i].messages, cases[i].tools, cases[i].thinking, true);
        if (st != MM3_ERR_ARG || !strstr(mm3_last_error(), cases[i].text) || strchr(mm3_last_error(), '\n'))
            fail_msg("case %d: status %d, '%s' lacks '%s'", i, (int)st, mm3_last_error(), cases[i].text);
        mm3__rendered_free(&r);
    }
}

/* A long, hostile word is quoted short, at a whole character, on one line. */
static void test_error_quotes(void **state)
{
    mm3_buf b = { 0 };
    mm3__rendered r = { 0 };
    int i;
    (void)state;
    mm3_buf_puts(&b, "[{\"role\": \"a\\n");
    for (i = 0; i < 300; i++) mm3_buf_puts(&b, "é");
    mm3_buf_puts(&b, "\"}]");
    assert_int_equal(mm3__chat_render(&r, b.data, NULL, NULL, true), MM3_ERR_ARG);
    assert_non_null(strstr(mm3_last_error(), "\"a?ééé"));
    assert_non_null(strstr(mm3_last_error(), "é...\""));
    assert_true(strlen(mm3_last_error()) < 200);
    mm3_buf_free(&b);
    mm3__rendered_free(&r);
}

/* NUL and every other character of a JSON string reach the prompt. */
static void test_nul(void **state)
{
    mm3__rendered r = { 0 };
    (void)state;
    assert_int_equal(mm3__chat_render(&r, "[{\"role\": \"user\", \"content\": \"a\\u0000b\"}]", NULL, NULL, true), 0);
    assert_non_null(memmem(r.text.data, r.text.n, "user\na\0b[e~[", 12));
    mm3__rendered_free(&r);
}

/* Digits behind a point or an exponent are no integer, however many there are. */
static void test_long_numbers(void **state)
{
    static const char *const cases[][2] = {
        { "3.14159265358979323846", "3.141592653589793" },
        { "-0.1234567890123456789012", "-0.12345678901234568" },
        { "1e-00000000000000000000002", "0.01" },
        { "1234567890123456789012.5", "1.2345678901234568e+21" },
        { "1234567890123456789012e2", "1.2345678901234569e+23" },
        { "-1234567890123456789012", "-1234567890123456789012" },
        { "[1234567890123456789,12345678901234567890]", "[1234567890123456789, 12345678901234567890]" },
    };
    (void)state;
    for (int i = 0; i < MM3_COUNT(cases); i++) {
        mm3__rendered r = { 0 };
        mm3_buf tools = { 0 }, want = { 0 };
        mm3_buf_printf(&tools, "[{\"function\": {\"name\": \"f\", \"x\": %s}}]", cases[i][0]);
        mm3_buf_printf(&want, "<tool>{\"name\": \"f\", \"x\": %s}</tool>", cases[i][1]);
        if (mm3__chat_render(&r, HELLO, tools.data, NULL, true)) fail_msg("%s: %s", cases[i][0], mm3_last_error());
        if (!strstr(r.text.data, want.data)) fail_msg("no '%s' in '%s'", want.data, r.text.data);
        mm3_buf_free(&tools);
        mm3_buf_free(&want);
        mm3__rendered_free(&r);
    }
}

/* Every allocation fails once: an error, no crash, no leak. */
static void test_out_of_memory(void **state)
{
    const char *messages = "[{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"q\"}, "
                           "{\"role\": \"assistant\", \"content\": \"<mm:think>r</mm:think>t\", \"tool_calls\": "
                           "[{\"function\": {\"name\": \"f\", \"arguments\": \"{\\\"a\\\": [12345678901234567890, "
                           "1.5, null, {\\\"b\\\": 1}]}\"}}]}, {\"role\": \"tool\", \"content\": \"x\"}]";
    const char *tools = "[{\"function\": {\"name\": \"f\", \"x\": 12345678901234567890}}]";
    mm3_status st = MM3_ERR_NOMEM;
    long k;
    (void)state;
    for (k = 1; st != MM3_OK; k++) {
        mm3__rendered r = { 0 };
        alloc_fail_at(k);
        st = mm3__chat_render(&r, messages, tools, NULL, true);
        alloc_fail_at(0);
        assert_true(st == MM3_OK || st == MM3_ERR_NOMEM);
        mm3__rendered_free(&r);
        assert_true(k < 1000);
    }
    assert_true(k > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),          cmocka_unit_test(test_controls),
        cmocka_unit_test(test_forged_controls), cmocka_unit_test(test_errors),
        cmocka_unit_test(test_error_quotes),    cmocka_unit_test(test_nul),
        cmocka_unit_test(test_long_numbers),    cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
