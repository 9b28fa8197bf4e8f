/* Tool calls in the model's text: the tree of an envelope (call_tree.h) to JSON arguments that the tool's schema types.
 * Must not know: streaming (output_parser.c).
 *
 * Types. A value is text, without MM3__NS and outer white space. By the schema's types:
 *   null     null, Null or NULL, if null is allowed, or if there are types and string is not among them
 *   object, array   JSON of that kind; else nested tags: <item> tags make an array, others an object; empty text is
 *            an empty one; a tag that occurs several times is an array where the schema has an array or no types
 *            (spread, if its parts are arrays), else its last occurrence counts
 *   integer  digits, also "5.0" and "+5"       number   also ".5", "1e3"; a JSON literal is kept digit by digit
 *   boolean  true, 1, yes, false, 0, no
 *   string, no types, or none of the above: the text itself ("02134", "<b>", "&amp;")
 * Where string is allowed beside other types, those need JSON's own spelling. Tags below a value that can only be a
 * scalar, or beside text, are kept as text.
 *
 * An invoke without a name, or with nothing but text that is no JSON object, is no call. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text/call_tree.h"
#include "text/tool_schema.h"

typedef struct reading {
    mm3__tree tree;
    const json_t *schema; /* of the call in hand: the tool's parameters; borrowed */
    struct {
        const json_t *schema; /* NULL: none */
        unsigned types;
    } known[16]; /* types that were looked up, by address: a schema of many values is not read for each item */
    bool failed; /* no memory */
} reading;

/* ---- values ------------------------------------------------------------------------------------------------------ */

static unsigned types_of(reading *r, const json_t *schema)
{
    size_t i = (uintptr_t)schema / 64 % MM3_COUNT(r->known);
    if (!schema) return 0;
    if (r->known[i].schema != schema) {
        r->known[i].schema = schema;
        r->known[i].types = mm3__schema_types(r->schema, schema);
    }
    return r->known[i].types;
}

static bool is_one_of(const mm3_buf *text, const char *const *words, bool any_case)
{
    for (; *words; words++)
        if (text->n == strlen(*words) &&
            (any_case ? strncasecmp(text->data, *words, text->n) : memcmp(text->data, *words, text->n)) == 0)
            return true;
    return false;
}

static void separate(mm3_buf *out)
{
    char before = out->n ? out->data[out->n - 1] : '[';
    if (before != '[' && before != '{') mm3_buf_puts(out, ", ");
}

/* JSON of one of the types (object, array); NULL if the text is none. */
static json_t *json_of(reading *r, const mm3_buf *text, unsigned types)
{
    json_error_t e;
    json_t *v = NULL;
    if (!text->n || (text->data[0] != '{' && text->data[0] != '[')) return NULL;
    if (mm3__json_load(&v, text->data, text->n, 0, &e) == MM3_ERR_NOMEM) r->failed = true;
    if (!v || (json_is_object(v) && types & MM3__OBJECT) || (json_is_array(v) && types & MM3__ARRAY)) return v;
    json_decref(v);
    return NULL;
}

/* Whether the whole text is a number as JSON spells it, and whether it has neither fraction nor exponent. */
static bool is_json_number(const mm3_buf *text, bool *whole)
{
    const char *s = text->data;
    size_t n;
    s += *s == '-';
    n = strspn(s, "0123456789");
    if (!n || (*s == '0' && n > 1)) return false;
    s += n;
    *whole = true;
    if (*s == '.') {
        n = strspn(s + 1, "0123456789");
        if (!n) return false;
        s += n + 1;
        *whole = false;
    }
    if (*s == 'e' || *s == 'E') {
        s++;
        s += *s == '+' || *s == '-';
        n = strspn(s, "0123456789");
        if (!n) return false;
        s += n;
        *whole = false;
    }
    return s == text->data + text->n;
}

/* Whole numbers however spelled: "+5", "007", "5.0", "1e3". */
static bool write_integer(const mm3_buf *text, mm3_buf *out)
{
    const char *s = text->data, *digits, *end;
    char *stop;
    size_t n;
    double x;
    digits = s + (*s == '-' || *s == '+');
    n = strspn(digits, "0123456789");
    end = digits + n;
    if (*end == '.' && n) end += 1 + strspn(end + 1, "0");
    if (n && end == s + text->n) {
        while (n > 1 && *digits == '0') digits++, n--;
        if (*s == '-' && *digits != '0') mm3_buf_puts(out, "-");
        mm3_buf_add(out, digits, n);
        return true;
    }
    if (strspn(s, "0123456789+-.eE") != text->n) return false;
    x = strtod(s, &stop);
    if (stop != s + text->n || stop == s || x != floor(x) || fabs(x) > 9007199254740992.0) return false;
    mm3_buf_printf(out, "%.0f", x);
    return true;
}

static bool write_number(const mm3_buf *text, mm3_buf *out)
{
    bool whole;
    char *end;
    double x;
    json_t *v;
    if (!text->n || strspn(text->data, "0123456789+-.eE") != text->n) return false;
    x = strtod(text->data, &end);
    if (is_json_number(text, &whole) && isfinite(x)) {
        mm3_buf_add(out, text->data, text->n);
        return true;
    }
    if (end != text->data + text->n || !isfinite(x)) return false;
    v = json_real(x);
    if (v)
        mm3__json_write_number(out, v);
    else
        out->failed = true;
    json_decref(v);
    return true;
}

static bool write_boolean(const mm3_buf *text, bool strict, mm3_buf *out)
{
    static const char *const yes[] = { "true", "1", "yes", NULL }, *const no[] = { "false", "0", "no", NULL };
    static const char *const strict_yes[] = { "true", NULL }, *const strict_no[] = { "false", NULL };
    bool is_yes = is_one_of(text, strict ? strict_yes : yes, !strict);
    if (!is_yes && !is_one_of(text, strict ? strict_no : no, !strict)) return false;
    mm3_buf_puts(out, is_yes ? "true" : "false");
    return true;
}

static bool write_number_of(const mm3_buf *text, unsigned types, bool strict, mm3_buf *out)
{
    bool whole = false;
    if (strict && !is_json_number(text, &whole)) return false;
    if (types & MM3__INTEGER && (!strict || whole) && write_integer(text, out)) return true;
    return types & MM3__NUMBER && write_number(text, out);
}

static void write_text(reading *r, const mm3_buf *text, unsigned types, mm3_buf *out)
{
    static const char *const nulls[] = { "null", "Null", "NULL", NULL };
    bool strict = types & MM3__STRING;
    json_t *v;
    if ((types & MM3__NULL || (types && !strict)) && is_one_of(text, nulls, false)) {
        mm3_buf_puts(out, "null");
    } else if (types & (MM3__OBJECT | MM3__ARRAY) && (v = json_of(r, text, types))) {
        mm3__json_write(out, v);
        json_decref(v);
    } else if (types & (MM3__OBJECT | MM3__ARRAY) && !strict && !text->n) {
        mm3_buf_puts(out, types & MM3__ARRAY ? "[]" : "{}");
    } else if (text->n && write_number_of(text, types, strict, out)) {
        return;
    } else if (!(types & MM3__BOOLEAN) || !write_boolean(text, strict, out)) {
        mm3__json_write_string(out, text->data, text->n);
    }
}

static bool has_only_items(const reading *r, int i)
{
    for (i = r->tree.elements[i].first; i >= 0; i = r->tree.elements[i].next)
        if (strcmp(mm3__tree_name(&r->tree, i), "item") != 0) return false;
    return true;
}

static void write_element(reading *r, int i, const json_t *schema, mm3_buf *out);

static void write_items(reading *r, int i, const json_t *items, mm3_buf *out)
{
    for (i = r->tree.elements[i].first; i >= 0; i = r->tree.elements[i].next) {
        separate(out);
        write_element(r, i, items, out);
    }
}

/* One of several occurrences of a tag that stands for an array: its items, or itself as an item. */
static void write_spread(reading *r, int i, const json_t *items, mm3_buf *out)
{
    const mm3__element *e = &r->tree.elements[i];
    mm3_buf text = { 0 };
    json_t *v = NULL;
    if (e->first >= 0 && !e->has_text && has_only_items(r, i)) {
        write_items(r, i, items, out);
        return;
    }
    if (e->first < 0) mm3__tree_text(&r->tree, i, &text);
    if (e->first < 0 && !text.failed) v = json_of(r, &text, MM3__ARRAY);
    if (v) {
        size_t k;
        for (k = 0; k < json_array_size(v); k++) {
            separate(out);
            mm3__json_write(out, json_array_get(v, k));
        }
    } else {
        separate(out);
        write_element(r, i, items, out);
    }
    r->failed = r->failed || text.failed;
    mm3_buf_free(&text);
    json_decref(v);
}

static void write_repeated(reading *r, int i, const json_t *schema, mm3_buf *out)
{
    unsigned types = types_of(r, schema);
    if (types && !(types & MM3__ARRAY)) {
        while (r->tree.elements[i].same >= 0) i = r->tree.elements[i].same;
        write_element(r, i, schema, out);
        return;
    }
    mm3_buf_puts(out, "[");
    for (; i >= 0; i = r->tree.elements[i].same) {
        if (types) {
            write_spread(r, i, mm3__schema_items(r->schema, schema), out);
        } else {
            separate(out);
            write_element(r, i, NULL, out);
        }
    }
    mm3_buf_puts(out, "]");
}

static void write_members(reading *r, int i, const json_t *schema, mm3_buf *out)
{
    mm3_buf_puts(out, "{");
    for (i = r->tree.elements[i].first; i >= 0; i = r->tree.elements[i].next) {
        const json_t *member = mm3__schema_member(r->schema, schema, mm3__tree_name(&r->tree, i));
        if (r->tree.elements[i].repeats) continue;
        separate(out);
        mm3__json_write_string(out, mm3__tree_name(&r->tree, i), strlen(mm3__tree_name(&r->tree, i)));
        mm3_buf_puts(out, ": ");
        if (r->tree.elements[i].same >= 0)
            write_repeated(r, i, member, out);
        else
            write_element(r, i, member, out);
    }
    mm3_buf_puts(out, "}");
}

/* Its depth is bounded by MM3__MAX_CALL_DEPTH. */
static void write_element(reading *r, int i, const json_t *schema, mm3_buf *out)
{
    const mm3__element *e = &r->tree.elements[i];
    unsigned types = types_of(r, schema), nested = types & (MM3__OBJECT | MM3__ARRAY);
    mm3_buf text = { 0 };
    if (e->first >= 0 && !e->has_text && (!types || nested)) {
        bool array = has_only_items(r, i) && nested != MM3__OBJECT;
        if (array || nested == MM3__ARRAY) mm3_buf_puts(out, "[");
        if (array)
            write_items(r, i, mm3__schema_items(r->schema, schema), out);
        else
            write_members(r, i, nested == MM3__ARRAY ? mm3__schema_items(r->schema, schema) : schema, out);
        if (array || nested == MM3__ARRAY) mm3_buf_puts(out, "]");
        return;
    }
    mm3__tree_text(&r->tree, i, &text);
    if (text.failed)
        r->failed = true;
    else
        write_text(r, &text, e->first < 0 ? types : MM3__STRING, out);
    mm3_buf_free(&text);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

mm3_status mm3__tools_by_name(json_t **out, const json_t *tools)
{
    json_t *by_name = json_object();
    bool failed = !by_name;
    for (size_t i = 0; !failed && i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        json_t *parameters = json_object_get(function, "parameters");
        const char *name = json_string_value(json_object_get(function, "name"));
        if (parameters) failed = json_object_set_nocheck(by_name, name, parameters) != 0;
    }
    *out = by_name;
    if (!failed) return MM3_OK;
    json_decref(by_name);
    *out = NULL;
    return mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for the tools");
}

/* The arguments of the call at i into `out`; false if it is none. */
static bool write_arguments(reading *r, int i, mm3_buf *out)
{
    mm3_buf text = { 0 };
    json_t *v = NULL;
    bool is_call;
    if (r->tree.elements[i].first >= 0) {
        write_members(r, i, r->schema, out);
        return true;
    }
    mm3__tree_text(&r->tree, i, &text);
    r->failed = r->failed || text.failed;
    if (!text.failed) v = json_of(r, &text, MM3__OBJECT);
    is_call = v || !text.n;
    if (v)
        mm3__json_write(out, v);
    else
        mm3_buf_puts(out, "{}");
    json_decref(v);
    mm3_buf_free(&text);
    return is_call;
}

/* ids: "call_", the call's index in the answer, and a hash of name and arguments. So they differ within one answer,
 * and the same text gives the same ids. */
static void write_call(const char *name, const mm3_buf *arguments, int index, mm3_buf *calls)
{
    uint32_t h = mm3_hash(mm3_hash(MM3_HASH_START, name, strlen(name) + 1), arguments->data, arguments->n);
    if (calls->n) mm3_buf_puts(calls, ", ");
    mm3_buf_printf(calls,
                   "{\"index\": %d, \"id\": \"call_%d_%08x\", \"type\": \"function\", \"function\": {\"name\": ", index,
                   index, (unsigned)h);
    mm3__json_write_string(calls, name, strlen(name));
    mm3_buf_puts(calls, ", \"arguments\": ");
    mm3__json_write_string(calls, arguments->data, arguments->n);
    mm3_buf_puts(calls, "}}");
}

mm3_status mm3__calls_read(const char *block, size_t n, const json_t *parameters, int index, mm3_buf *calls,
                           int *n_calls)
{
    reading r = { 0 };
    mm3_buf arguments = { 0 };
    const mm3__tree *t = &r.tree;
    int i;
    *n_calls = 0;
    mm3__tree_read(&r.tree, block, n);
    r.failed = t->failed;
    for (i = 0; i < t->n_elements && !r.failed && !t->too_deep; i++) {
        if (t->elements[i].parent >= 0) continue;
        mm3_buf_clear(&arguments);
        r.schema = json_object_get(parameters, mm3__tree_name(t, i));
        if (!write_arguments(&r, i, &arguments) || r.failed || arguments.failed) continue;
        write_call(mm3__tree_name(t, i), &arguments, index + *n_calls, calls);
        ++*n_calls;
    }
    r.failed = r.failed || arguments.failed || calls->failed;
    mm3_buf_free(&arguments);
    mm3__tree_free(&r.tree);
    if (r.failed) return mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory while reading a tool call of %zu bytes", n);
    return MM3_OK;
}
