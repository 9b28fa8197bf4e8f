/* fuzz: a tool call, written by the chat form and read back. Input: the arguments, a JSON object.
 * Property: with a schema that has the arguments' own types they come back the same; where all leaves are strings,
 * without tools as well. Left out is what the form does not carry: null, what is empty, white space around a string,
 * names and strings that hold the form's own marks. */
#include <stdio.h>
#include <stdlib.h>

#include "fuzz/fuzz.h"
#include "text/chat.h"

static bool is_name(const char *key)
{
    if (!*key || strcmp(key, "tool_call") == 0 || strcmp(key, "invoke") == 0) return false;
    for (; *key; key++)
        if ((unsigned char)*key < 0x80 &&
            !strchr("_-.:$@0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", *key))
            return false;
    return true;
}

static bool is_carried(const char *s, size_t n)
{
    return strlen(s) == n && !strstr(s, MM3__NS) &&
           (n == 0 || (!strchr(" \t\r\n", s[0]) && !strchr(" \t\r\n", s[n - 1])));
}

/* The schema of a value with its own types, or NULL if the form does not carry the value.
 *   *only_strings  cleared where there is anything that a reader without schema would take for something else */
static json_t *schema_of(const json_t *v, int depth, bool *only_strings)
{
    json_t *members, *member, *schema = NULL;
    const char *key;
    size_t i;
    if (depth > 50 || json_is_null(v)) return NULL;
    if (mm3__json_is_text(v))
        return is_carried(json_string_value(v), json_string_length(v)) ? json_pack("{s:s}", "type", "string") : NULL;
    if (json_is_object(v)) {
        if (!json_object_size(v)) return NULL;
        if (json_object_size(v) == 1 && json_object_get(v, "item")) *only_strings = false;
        members = json_object();
        json_object_foreach((json_t *)(uintptr_t)v, key, member)
        {
            schema = is_name(key) ? schema_of(member, depth + 1, only_strings) : NULL;
            if (!schema) break;
            json_object_set_new(members, key, schema);
        }
        if (schema) return json_pack("{s:s,s:o}", "type", "object", "properties", members);
        json_decref(members);
        return NULL;
    }
    if (json_is_array(v)) {
        json_t *first = schema_of(json_array_get(v, 0), depth + 1, only_strings);
        for (i = 1; first && i < json_array_size(v); i++) {
            bool same;
            schema = schema_of(json_array_get(v, i), depth + 1, only_strings);
            same = schema && json_equal(schema, first);
            json_decref(schema);
            if (same) continue;
            json_decref(first);
            first = NULL;
        }
        return first ? json_pack("{s:s,s:o}", "type", "array", "items", first) : NULL;
    }
    *only_strings = false;
    return json_pack("{s:s}", "type", json_is_boolean(v) ? "boolean" : json_is_real(v) ? "number" : "integer");
}

/* What the form writes of an assistant's message with one call, as a model would. */
static char *write_call(const mm3_buf *arguments)
{
    mm3_buf messages = { 0 };
    mm3__rendered r = { 0 };
    char *text, *begin, *end;
    mm3_buf_puts(&messages,
                 "[{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"function\": {\"name\": \"f\", "
                 "\"arguments\": ");
    mm3_buf_add(&messages, arguments->data, arguments->n);
    mm3_buf_puts(&messages, "}}]}]");
    FUZZ_CHECK(mm3__chat_render(&r, messages.data, NULL, NULL, false) == MM3_OK, "%s", mm3_last_error());
    begin = strstr(r.text.data, "]~b]ai\n");
    FUZZ_CHECK(begin && r.text.n > 6 && strcmp(r.text.data + r.text.n - 5, "[e~[\n") == 0, "no turn in '%s'",
               r.text.data);
    end = r.text.data + r.text.n - 5;
    *end = 0;
    text = strdup(begin + strlen("]~b]ai\n"));
    FUZZ_CHECK(text, "out of memory");
    mm3__rendered_free(&r);
    mm3_buf_free(&messages);
    return text;
}

static void check_read(const char *text, const char *tools, const mm3_buf *want)
{
    mm3_parser *p;
    json_error_t e;
    json_t *delta, *arguments;
    const json_t *string;
    char *json;
    mm3_buf got = { 0 };
    FUZZ_CHECK(mm3_parser_open(&p, tools, "disabled") == MM3_OK, "%s", mm3_last_error());
    FUZZ_CHECK(mm3_parser_push(p, text, strlen(text), true, &json) == MM3_OK, "%s", mm3_last_error());
    delta = json_loads(json, 0, &e);
    FUZZ_CHECK(delta && json_object_size(delta) == 1, "'%s' became %s", text, json);
    string = json_object_get(json_object_get(json_array_get(json_object_get(delta, "tool_calls"), 0), "function"),
                             "arguments");
    FUZZ_CHECK(mm3__json_load(&arguments, json_string_value(string), json_string_length(string), JSON_REJECT_DUPLICATES,
                              &e) == MM3_OK,
               "%s: %s", e.text, json_string_value(string));
    mm3__json_write(&got, arguments);
    FUZZ_CHECK(got.n == want->n && memcmp(got.data, want->data, got.n) == 0, "%s came back as %s", want->data,
               got.data);
    mm3_buf_free(&got);
    json_decref(arguments);
    json_decref(delta);
    mm3_free(json);
    mm3_parser_close(&p);
}

static void check(const json_t *v)
{
    bool only_strings = true;
    json_t *schema = schema_of(v, 0, &only_strings), *tools;
    mm3_buf arguments = { 0 };
    char *text, *tools_text;
    if (!schema) return;
    tools = json_pack("[{s:s,s:{s:s,s:o}}]", "type", "function", "function", "name", "f", "parameters", schema);
    tools_text = json_dumps(tools, JSON_COMPACT);
    FUZZ_CHECK(tools_text, "tools cannot be written");
    mm3__json_write(&arguments, v);
    text = write_call(&arguments);
    check_read(text, tools_text, &arguments);
    if (only_strings) check_read(text, NULL, &arguments);
    free(text);
    free(tools_text);
    mm3_buf_free(&arguments);
    json_decref(tools);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    json_error_t e;
    json_t *v = NULL;
    if (mm3__json_load(&v, (const char *)data, n, JSON_REJECT_DUPLICATES, &e) == MM3_OK && json_is_object(v)) check(v);
    json_decref(v);
    return 0;
}
