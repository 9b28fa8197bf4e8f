/* fuzz: JSON schemas of tools, and arguments typed by them. Input: two parts, apart by a line "%%": the parameters of a
 * tool f (a JSON schema), and what stands in a call of f, in which '~' stands for "]<]minimax[>[".
 * Properties: a reference to a member's schema allows what the schema allows; arguments are JSON, and none has a type
 * that its schema rules out, strings apart; a string's text was written by the model. */
#include <stdlib.h>

#include "fuzz/fuzz.h"
#include "support/alloc_faults.h"
#include "text/tool_schema.h"

enum { ALL = 127 };

/* "#/properties/KEY" */
static void check_reference(const json_t *root, const char *key, const json_t *schema)
{
    mm3_buf pointer = { 0 };
    json_t *reference;
    unsigned types = mm3__schema_types(root, schema), same;
    FUZZ_CHECK(types <= ALL, "types %u", types);
    if (strlen(key) > 200) return;
    mm3_buf_puts(&pointer, "#/properties/");
    for (; *key; key++)
        if (*key == '~' || *key == '/')
            mm3_buf_puts(&pointer, *key == '~' ? "~0" : "~1");
        else
            mm3_buf_add(&pointer, key, 1);
    reference = json_pack("{s:s}", "$ref", pointer.data);
    same = mm3__schema_types(root, reference);
    /* One reference more may be one too many. */
    FUZZ_CHECK(same == types || (same == 0 && json_object_get(schema, "$ref")), "%s allows %u, what it refers to %u",
               pointer.data, same, types);
    json_decref(reference);
    mm3_buf_free(&pointer);
}

static unsigned type_of(const json_t *v)
{
    if (mm3__json_integer(v)) return MM3__INTEGER | MM3__NUMBER;
    switch (json_typeof(v)) {
    case JSON_NULL:
        return MM3__NULL;
    case JSON_INTEGER:
        return MM3__INTEGER | MM3__NUMBER;
    case JSON_REAL:
        return MM3__NUMBER;
    case JSON_STRING:
        return MM3__STRING;
    case JSON_ARRAY:
        return MM3__ARRAY;
    case JSON_OBJECT:
        return MM3__OBJECT;
    default:
        return MM3__BOOLEAN;
    }
}

/* The rules at the head of tool_call.c. */
static bool is_allowed(const json_t *v, unsigned types)
{
    if (type_of(v) & (types | MM3__STRING)) return true;
    if (json_is_null(v)) return types && !(types & MM3__STRING);
    return !types && (json_is_object(v) || json_is_array(v));
}

static void check_arguments(const json_t *root, const json_t *arguments, const mm3_buf *text)
{
    json_t *v;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)arguments, key, v)
    {
        unsigned types = mm3__schema_types(root, mm3__schema_member(root, root, key));
        FUZZ_CHECK(is_allowed(v, types), "\"%s\" is of type %u, its schema allows %u", key, type_of(v), types);
        FUZZ_CHECK(!mm3__json_is_text(v) ||
                       fuzz_is_subsequence(json_string_value(v), json_string_length(v), text->data, text->n),
                   "\"%s\" is text that the model did not write: %s", key, json_string_value(v));
    }
}

static void check_call(const json_t *root, const mm3_buf *text, const uint8_t *data, size_t n)
{
    json_t *parameters = json_pack("{s:O}", "f", root);
    mm3_buf block = { 0 }, calls = { 0 };
    json_error_t e;
    int n_calls;
    long before = alloc_count(), n_allocations;
    mm3_buf_puts(&block, MM3__CALLS MM3__NS "<invoke name=\"f\">");
    mm3_buf_add(&block, text->data, text->n);
    mm3_buf_puts(&block, MM3__NS "</invoke>" MM3__CALLS_END);
    FUZZ_CHECK(mm3__calls_read(block.data, block.n, parameters, 0, &calls, &n_calls) == MM3_OK, "%s", mm3_last_error());
    n_allocations = alloc_count() - before;
    if (n_calls) {
        json_t *list, *arguments = NULL;
        const json_t *first;
        mm3_buf all = { 0 };
        mm3_buf_printf(&all, "[%s]", calls.data);
        list = json_loads(all.data, JSON_REJECT_DUPLICATES, &e);
        FUZZ_CHECK(list && (int)json_array_size(list) == n_calls, "%s: %s", e.text, all.data);
        first = json_object_get(json_object_get(json_array_get(list, 0), "function"), "arguments");
        FUZZ_CHECK(fuzz_is_json(json_string_value(first), json_string_length(first)), "no JSON: %s",
                   json_string_value(first));
        /* Refused where a mark of the text's own stands beside an integer beyond 64 bits. */
        if (mm3__json_load(&arguments, json_string_value(first), json_string_length(first), JSON_REJECT_DUPLICATES,
                           &e) != MM3_OK)
            FUZZ_CHECK(strstr(e.text, "U+FDD0"), "%s: %s", e.text, json_string_value(first));
        /* Arguments written as one JSON object are taken as they are. */
        if (strstr(text->data, MM3__NS "<")) check_arguments(root, arguments, text);
        json_decref(arguments);
        json_decref(list);
        mm3_buf_free(&all);
    } else {
        FUZZ_CHECK(calls.n == 0, "no call, but text");
    }
    mm3_buf_clear(&calls);
    if (fuzz_memory_fails(data, n, n_allocations))
        fuzz_memory_failed(mm3__calls_read(block.data, block.n, parameters, 0, &calls, &n_calls), MM3_OK);
    mm3_buf_free(&block);
    mm3_buf_free(&calls);
    json_decref(parameters);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *at = data;
    size_t left = n;
    mm3_buf text = { 0 }, valid = { 0 };
    json_error_t e;
    json_t *root = NULL, *v;
    const char *key;
    size_t n_schema;
    char *schema = fuzz_part(&at, &left, &n_schema);
    if (mm3__json_load(&root, schema, n_schema, JSON_REJECT_DUPLICATES, &e) == MM3_OK && json_is_object(root)) {
        FUZZ_CHECK(mm3__schema_types(root, root) <= ALL, "types");
        FUZZ_CHECK(mm3__schema_types(root, NULL) == 0, "types of no schema");
        (void)mm3__schema_items(root, root);
        json_object_foreach(json_object_get(root, "properties"), key, v) check_reference(root, key, v);
        fuzz_expand(&text, (const char *)at, left, '~', MM3__NS);
        fuzz_replace_invalid(&valid, text.data, text.n); /* what the parser hands on */
        check_call(root, &valid, data, n);
    }
    json_decref(root);
    free(schema);
    mm3_buf_free(&text);
    mm3_buf_free(&valid);
    return 0;
}
