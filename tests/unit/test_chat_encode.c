/* Prompts to ids with tiny-m3's tokenizer: ids of an independent tokenizer, the chat goldens of the model, and that
 * no text of the caller's becomes a control token. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/alloc_faults.h"
#include "text/chat.h"

static mm3_tokenizer *tokenizer;

static int open_tokenizer(void **state)
{
    (void)state;
    if (mm3_tokenizer_open(&tokenizer, "models/tiny-m3") == MM3_OK) return 0;
    print_error("%s\n", mm3_last_error());
    return -1;
}
static int close_tokenizer(void **state)
{
    (void)state;
    mm3_tokenizer_close(&tokenizer);
    return 0;
}

typedef struct prompt {
    const char *messages, *tools, *thinking;
    bool generate;
} prompt;

static prompt prompt_of(const json_t *c)
{
    return (prompt){ json_string_value(json_object_get(c, "messages")), json_string_value(json_object_get(c, "tools")),
                     json_string_value(json_object_get(c, "thinking")), json_is_true(json_object_get(c, "generate")) };
}

static int32_t *encode(prompt q, int *n)
{
    int32_t *ids;
    if (mm3_chat_encode(tokenizer, q.messages, q.tools, q.thinking, q.generate, &ids, n))
        fail_msg("%s", mm3_last_error());
    return ids;
}

/* ---- ids --------------------------------------------------------------------------------------------------------- */

static void test_golden_ids(void **state)
{
    json_t *cases = NULL;
    size_t i, k;
    int n_checked = 0;
    (void)state;
    assert_int_equal(mm3_json_load(&cases, "tests/golden/chat.json"), MM3_OK);
    for (i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *want = json_object_get(c, "ids");
        const char *name = json_string_value(json_object_get(c, "name"));
        int32_t *ids;
        int n;
        if (!want) continue; /* its texts hold markers: the reference would make controls of them */
        ids = encode(prompt_of(c), &n);
        if ((size_t)n != json_array_size(want)) fail_msg("%s: %d ids, want %zu", name, n, json_array_size(want));
        for (k = 0; k < (size_t)n; k++)
            if (ids[k] != json_integer_value(json_array_get(want, k)))
                fail_msg("%s: id %zu is %d, want %d", name, k, (int)ids[k],
                         (int)json_integer_value(json_array_get(want, k)));
        mm3_free(ids);
        n_checked++;
    }
    json_decref(cases);
    assert_true(n_checked >= 30);
}

/* NAME.ids of a safetensors file: little-endian int32. */
static const int32_t *golden_ids(const mm3_file *f, const json_t *header, uint64_t n_header, const char *name, int *n)
{
    char key[64];
    const json_t *offsets;
    size_t begin, end;
    snprintf(key, sizeof key, "%s.ids", name);
    offsets = json_object_get(json_object_get(header, key), "data_offsets");
    assert_int_equal(json_array_size(offsets), 2);
    begin = (size_t)json_integer_value(json_array_get(offsets, 0));
    end = (size_t)json_integer_value(json_array_get(offsets, 1));
    *n = (int)((end - begin) / 4);
    return (const int32_t *)(const void *)(f->data + 8 + n_header + begin);
}

/* The prompts that tiny-m3's reference outputs were made for. */
static void test_model_goldens(void **state)
{
    static const char *const names[] = { "chat_disabled", "chat_enabled", "tool_call" };
    json_t *cases = NULL, *header = NULL;
    mm3_file *f = NULL;
    uint64_t n_header;
    size_t i;
    int k, n_checked = 0;
    (void)state;
    assert_int_equal(mm3_json_load(&cases, "tests/golden/chat.json"), MM3_OK);
    assert_int_equal(mm3_file_open(&f, "tests/golden/tiny-m3.safetensors"), MM3_OK);
    memcpy(&n_header, f->data, 8);
    assert_int_equal(mm3_json_parse(&header, (const char *)f->data + 8, n_header, f->path), MM3_OK);
    for (i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        for (k = 0; k < MM3_COUNT(names); k++) {
            int n_want, n;
            const int32_t *want;
            int32_t *ids;
            if (strcmp(json_string_value(json_object_get(c, "name")), names[k]) != 0) continue;
            want = golden_ids(f, header, n_header, names[k], &n_want);
            ids = encode(prompt_of(c), &n);
            assert_int_equal(n, n_want);
            assert_memory_equal(ids, want, (size_t)n * sizeof *ids);
            mm3_free(ids);
            n_checked++;
        }
    }
    assert_int_equal(n_checked, 3);
    json_decref(header);
    json_decref(cases);
    mm3_file_close(&f);
}

/* ---- forged controls --------------------------------------------------------------------------------------------- */

/* `form` with every @ replaced by a JSON-escaped text. */
static char *fill(const char *form, const char *text)
{
    mm3_buf b = { 0 };
    char *s;
    for (; *form; form++)
        if (*form == '@')
            mm3_buf_puts(&b, text);
        else
            mm3_buf_add(&b, form, 1);
    assert_int_equal(mm3_buf_take(&b, &s, NULL), MM3_OK);
    return s;
}

/* The ids from `first_added` on, in order. */
static int controls_of(prompt q, int first_added, int32_t *controls, int max)
{
    int n, n_controls = 0, i;
    int32_t *ids = encode(q, &n);
    mm3__rendered r = { 0 };
    char *text;
    size_t n_text;
    for (i = 0; i < n; i++) {
        if (ids[i] < first_added) continue;
        assert_true(n_controls < max);
        controls[n_controls++] = ids[i];
    }
    /* and nothing of the text is lost */
    assert_int_equal(mm3__chat_render(&r, q.messages, q.tools, q.thinking, q.generate), MM3_OK);
    assert_int_equal(mm3_tokenizer_decode(tokenizer, ids, n, true, &text, &n_text), MM3_OK);
    assert_int_equal(n_text, r.text.n);
    assert_memory_equal(text, r.text.data, n_text);
    mm3_free(text);
    mm3__rendered_free(&r);
    mm3_free(ids);
    return n_controls;
}

/* Every added token's text, anywhere a caller's text may stand, leaves the controls of the prompt as they are. */
static void test_forged_controls(void **state)
{
    static const char form[] =
        "[{\"role\": \"root\", \"content\": \"@ a@\"}, {\"role\": \"system\", \"content\": \"@\"},"
        " {\"role\": \"user\", \"content\": [\"@\", {\"type\": \"text\", \"text\": \"@@\"}]},"
        " {\"role\": \"assistant\", \"content\": \"@\", \"reasoning_content\": \"@\", \"tool_calls\": [{\"function\":"
        "  {\"name\": \"@\", \"arguments\": {\"@\": \"@\", \"b\": [{\"@\": \"x@\"}]}}}]},"
        " {\"role\": \"tool\", \"content\": \"@\"}, {\"role\": \"developer\", \"content\": \"@\"}]";
    static const char tool_form[] = "[{\"type\": \"function\", \"function\": {\"name\": \"@\", \"description\": \"@\","
                                    " \"parameters\": {\"properties\": {\"@\": {}}}}}]";
    json_t *json = NULL;
    const json_t *added;
    int32_t want[256], got[256];
    int n_want, first_added;
    size_t i;
    char *messages = fill(form, "plain"), *tools = fill(tool_form, "plain");
    (void)state;
    assert_int_equal(mm3_json_load(&json, "models/tiny-m3/tokenizer.json"), MM3_OK);
    added = json_object_get(json, "added_tokens");
    assert_int_equal(json_array_size(added), 61);
    first_added = (int)json_integer_value(json_object_get(json_array_get(added, 0), "id"));
    n_want = controls_of((prompt){ messages, tools, "enabled", true }, first_added, want, MM3_COUNT(want));
    assert_true(n_want > 40);
    mm3_free(messages);
    mm3_free(tools);
    for (i = 0; i < json_array_size(added); i++) {
        const char *content = json_string_value(json_object_get(json_array_get(added, i), "content"));
        int n;
        assert_true(json_integer_value(json_object_get(json_array_get(added, i), "id")) >= first_added);
        messages = fill(form, content);
        tools = fill(tool_form, content);
        n = controls_of((prompt){ messages, tools, "enabled", true }, first_added, got, MM3_COUNT(got));
        if (n != n_want || memcmp(got, want, (size_t)n * sizeof *got) != 0)
            fail_msg("\"%s\" in a text changes the controls: %d, want %d", content, n, n_want);
        mm3_free(messages);
        mm3_free(tools);
    }
    json_decref(json);
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

static void test_errors(void **state)
{
    int32_t *ids = (int32_t *)state;
    int n = 7;
    assert_int_equal(mm3_chat_encode(tokenizer, "[]", NULL, NULL, true, &ids, &n), MM3_ERR_ARG);
    assert_null(ids);
    assert_int_equal(n, 0);
}

static void test_out_of_memory(void **state)
{
    mm3_status st = MM3_ERR_NOMEM;
    long k;
    (void)state;
    for (k = 1; st != MM3_OK; k++) {
        int32_t *ids;
        int n;
        alloc_fail_at(k);
        st = mm3_chat_encode(tokenizer, "[{\"role\": \"user\", \"content\": \"Hello, world\"}]", NULL, NULL, true, &ids,
                             &n);
        alloc_fail_at(0);
        assert_true(st == MM3_OK || (st == MM3_ERR_NOMEM && !ids && !n));
        mm3_free(ids);
        assert_true(k < 10000);
    }
    assert_true(k > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_ids), cmocka_unit_test(test_model_goldens), cmocka_unit_test(test_forged_controls),
        cmocka_unit_test(test_errors),     cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
