/* Tool calls in the model's text: the tags of one envelope to a tree, the tree to JSON arguments that the tool's
 * schema types. Must not know: streaming (output_parser.c).
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
 * Broken text. Closers may be missing: a tag beside text closes what that text belonged to, an outer closer closes all
 * within, an unknown closer closes the innermost. So may the marker before an invoke, and before a scalar's closer. A
 * tag that the text ends in is dropped. An invoke without a name, or with nothing but text that is no JSON object, is
 * no call. "tool_call" is never an argument's name. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text/tool_schema.h"

enum { MAX_DEPTH = 64 };
static const size_t ns_n = sizeof MM3__NS - 1;

/* ---- the tree --------------------------------------------------------------------------------------------- */

typedef struct element {
    size_t name;           /* in names */
    size_t begin, end;     /* of what is inside, in the block */
    int parent;            /* -1: an invoke */
    int first, last, next; /* children; sibling; -1: none */
    int same;              /* next sibling of the same name; -1: none */
    bool repeats;          /* an earlier sibling has the same name */
    bool has_text;         /* more than white space directly inside */
    bool closed;           /* by its own closer */
} element;

typedef struct tree {
    const char *s;
    size_t n;
    element *elements; /* owned */
    int n_elements, max_elements;
    mm3_buf names;  /* NUL-terminated, one after the other */
    int top, depth; /* the innermost open element, -1: none */
    bool failed, too_deep;
    const json_t *schema; /* of the call in hand: the tool's parameters; borrowed */
    struct {
        const json_t *schema; /* NULL: none */
        unsigned types;
    } known[16]; /* types that were looked up, by address: a schema of many values is not read for each item */
} tree;

static void open_element(tree *t, int parent, const char *name, size_t name_n, size_t begin)
{
    element *e;
    if (t->n_elements == t->max_elements) {
        int max = t->max_elements < 1 << 29 ? MM3_MAX(32, t->max_elements * 2) : 0;
        e = max ? mm3_realloc(t->elements, mm3_mul((size_t)max, sizeof *e)) : NULL;
        if (!e) {
            t->failed = true;
            return;
        }
        t->elements = e;
        t->max_elements = max;
    }
    e = &t->elements[t->n_elements];
    *e = (element){ .name = t->names.n,
                    .begin = begin,
                    .end = begin,
                    .parent = parent,
                    .first = -1,
                    .last = -1,
                    .next = -1,
                    .same = -1 };
    mm3_buf_add(&t->names, name, name_n);
    mm3_buf_add(&t->names, "", 1);
    if (t->names.failed) {
        t->failed = true;
        return;
    }
    if (parent >= 0) {
        element *p = &t->elements[parent];
        if (p->last >= 0)
            t->elements[p->last].next = t->n_elements;
        else
            p->first = t->n_elements;
        p->last = t->n_elements;
    }
    t->top = t->n_elements++;
    t->depth = parent < 0 ? 1 : t->depth + 1;
    t->too_deep = t->too_deep || t->depth > MAX_DEPTH;
}

/* Close the innermost element, whose inside ends at `end`. */
static void close_top(tree *t, size_t end, bool by_closer)
{
    element *e = &t->elements[t->top];
    e->end = end;
    e->closed = by_closer;
    t->top = e->parent;
    t->depth--;
}

static const char *name_of(const tree *t, int i) { return t->names.data + t->elements[i].name; }

/* ---- tags -------------------------------------------------------------------------------------------------- */

typedef enum tag_kind { TAG_NONE, TAG_CUT, TAG_OPEN, TAG_EMPTY, TAG_CLOSE, TAG_INVOKE } tag_kind;
typedef struct tag {
    tag_kind kind;
    const char *name;
    size_t name_n, end; /* the tag's end in the block */
} tag;

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
static size_t skip_space(const char *s, size_t i, size_t n)
{
    while (i < n && is_space(s[i])) i++;
    return i;
}
/* Schemas have keys like "$filter", "a.b", "2024" and "größe": more than XML's names. */
static bool is_name(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (unsigned char)c >= 0x80 ||
           (c && strchr("_-.:$@", c));
}

/* The rest of `<invoke name="f">` from behind its first word. An unfinished one is cut; a name that runs into the
 * end of the tag or of the line ends there. */
static tag read_invoke(const char *s, size_t i, size_t n)
{
    tag t = { .kind = TAG_CUT, .end = n };
    const char *end;
    char quote;
    i = skip_space(s, i, n);
    if (n - i < 4) return t;
    t.kind = TAG_NONE;
    if (memcmp(s + i, "name", 4) != 0) return t;
    i = skip_space(s, i + 4, n);
    if (i < n && s[i] != '=') return t;
    i = skip_space(s, i + (i < n), n);
    quote = i < n && (s[i] == '"' || s[i] == '\'') ? s[i++] : '>';
    t.name = s + i;
    while (i < n && s[i] != quote && s[i] && !strchr(quote == '>' ? "> \t\r\n" : ">\r\n", s[i])) i++;
    t.name_n = (size_t)(s + i - t.name);
    end = memchr(s + i, '>', n - i);
    t.kind = end ? TAG_INVOKE : TAG_CUT;
    if (end) t.end = (size_t)(end - s) + 1;
    return t;
}

/* The tag behind a MM3__NS that ends at i; spaces may stand between. */
static tag read_tag(const char *s, size_t i, size_t n)
{
    tag t = { .kind = TAG_CUT, .end = n };
    i = skip_space(s, i, n);
    if (i == n) return t;
    t.kind = TAG_NONE;
    if (s[i] != '<') return t;
    i++;
    t.kind = i < n && s[i] == '/' ? TAG_CLOSE : TAG_OPEN;
    i += t.kind == TAG_CLOSE;
    t.name = s + i;
    while (i < n && is_name(s[i])) i++;
    t.name_n = (size_t)(s + i - t.name);
    if (t.kind == TAG_OPEN && t.name_n == 6 && memcmp(t.name, "invoke", 6) == 0 && i < n && is_space(s[i])) {
        tag invoke = read_invoke(s, i, n);
        if (invoke.kind != TAG_NONE) return invoke;
    }
    i = skip_space(s, i, n);
    if (t.kind == TAG_OPEN && t.name_n && i < n && s[i] == '/') {
        t.kind = TAG_EMPTY;
        i++;
    }
    if (i >= n) return (tag){ .kind = TAG_CUT, .end = n };
    if (s[i] != '>' || !t.name_n) return (tag){ .kind = TAG_NONE };
    t.end = i + 1;
    return t;
}

static bool is_word(const tag *t, const char *word)
{
    return t->name_n == strlen(word) && memcmp(t->name, word, t->name_n) == 0;
}

/* Note what text stands in [begin, end), directly inside the innermost element. */
static void see_text(tree *t, size_t begin, size_t end)
{
    if (t->top < 0 || t->elements[t->top].has_text) return;
    while (begin < end) {
        if (end - begin >= ns_n && memcmp(t->s + begin, MM3__NS, ns_n) == 0)
            begin += ns_n;
        else if (is_space(t->s[begin]))
            begin++;
        else
            break;
    }
    t->elements[t->top].has_text = begin < end;
}

static void close_all(tree *t, size_t end)
{
    while (t->top >= 0) close_top(t, end, false);
}

static void see_closer(tree *t, const tag *g, size_t at)
{
    int i;
    for (i = t->top; i >= 0; i = t->elements[i].parent) {
        const char *name = name_of(t, i);
        if (t->elements[i].parent < 0) break;
        if (strlen(name) == g->name_n && memcmp(name, g->name, g->name_n) == 0) break;
    }
    if (i < 0) return;
    if (t->elements[i].parent >= 0) { /* the nearest of that name, and all within */
        while (t->top != i) close_top(t, at, false);
        close_top(t, at, true);
    } else if (is_word(g, "invoke")) {
        close_all(t, at);
    } else if (t->top != i) { /* a closer that nothing opened: the model misspelled the innermost one's name */
        close_top(t, at, true);
    }
}

/* Apply the tag that stands at `at`. */
static void see_tag(tree *t, const tag *g, size_t at)
{
    if (g->kind == TAG_INVOKE || is_word(g, "tool_call")) {
        close_all(t, at);
        if (g->kind == TAG_INVOKE && g->name_n) open_element(t, -1, g->name, g->name_n, g->end);
    } else if (g->kind == TAG_CLOSE) {
        see_closer(t, g, at);
    } else if (t->top >= 0) {
        if (t->elements[t->top].has_text && t->elements[t->top].parent >= 0) close_top(t, at, false);
        open_element(t, t->top, g->name, g->name_n, g->end);
        if (g->kind == TAG_EMPTY && !t->failed) close_top(t, g->end, true);
    }
}

static void read_tree(tree *t)
{
    size_t i = 0, text = 0, k;
    for (k = MM3_MIN(ns_n - 1, t->n); k >= 2; k--) { /* text that breaks off within a marker */
        if (memcmp(t->s + t->n - k, MM3__NS, k) != 0) continue;
        t->n -= k;
        break;
    }
    while (!t->failed && !t->too_deep) {
        const char *mark = memmem(t->s + i, t->n - i, MM3__NS, ns_n);
        size_t at = mark ? (size_t)(mark - t->s) : t->n;
        tag g;
        if (!mark) {
            see_text(t, text, at);
            close_all(t, at);
            break;
        }
        g = read_tag(t->s, at + ns_n, t->n);
        if (g.kind == TAG_NONE) {
            i = at + ns_n;
            continue;
        }
        see_text(t, text, at);
        if (g.kind == TAG_CUT) {
            close_all(t, at);
            break;
        }
        see_tag(t, &g, at);
        while (t->top < 0 && !t->failed) { /* between calls the marker before an invoke may be missing */
            tag bare = read_tag(t->s, g.end, t->n);
            if (bare.kind != TAG_INVOKE) break;
            see_tag(t, &bare, g.end);
            g = bare;
        }
        i = text = g.end;
    }
}

/* ---- siblings of one name ------------------------------------------------------------------------------------ */

typedef struct sibling {
    const char *name;
    int parent, i;
} sibling;

static int compare_siblings(const void *left, const void *right)
{
    const sibling *a = left, *b = right;
    int by_name;
    if (a->parent != b->parent) return a->parent < b->parent ? -1 : 1;
    by_name = strcmp(a->name, b->name);
    return by_name ? by_name : a->i < b->i ? -1 : a->i > b->i;
}

static void link_siblings(tree *t)
{
    sibling *list = mm3_malloc(mm3_mul((size_t)t->n_elements, sizeof *list));
    int i;
    if (!list) {
        t->failed = true;
        return;
    }
    for (i = 0; i < t->n_elements; i++) list[i] = (sibling){ name_of(t, i), t->elements[i].parent, i };
    qsort(list, (size_t)t->n_elements, sizeof *list, compare_siblings);
    for (i = 1; i < t->n_elements; i++) {
        if (list[i].parent < 0 || list[i].parent != list[i - 1].parent) continue;
        if (strcmp(list[i].name, list[i - 1].name) != 0) continue;
        t->elements[list[i - 1].i].same = list[i].i;
        t->elements[list[i].i].repeats = true;
    }
    mm3_free(list);
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

static unsigned types_of(tree *t, const json_t *schema)
{
    size_t i = (uintptr_t)schema / 64 % MM3_COUNT(t->known);
    if (!schema) return 0;
    if (t->known[i].schema != schema) {
        t->known[i].schema = schema;
        t->known[i].types = mm3__schema_types(t->schema, schema);
    }
    return t->known[i].types;
}

static bool is_one_of(const mm3_buf *text, const char *const *words, bool any_case)
{
    for (; *words; words++)
        if (text->n == strlen(*words) &&
            (any_case ? strncasecmp(text->data, *words, text->n) : memcmp(text->data, *words, text->n)) == 0)
            return true;
    return false;
}

/* The text inside an element, without MM3__NS and outer white space. */
static void text_of(const tree *t, int i, mm3_buf *text)
{
    const element *e = &t->elements[i];
    const char *s = t->s + e->begin, *end = t->s + e->end, *mark;
    size_t skip;
    while ((mark = memmem(s, (size_t)(end - s), MM3__NS, ns_n))) {
        mm3_buf_add(text, s, (size_t)(mark - s));
        s = mark + ns_n;
    }
    mm3_buf_add(text, s, (size_t)(end - s));
    if (text->failed) return;
    while (text->n && is_space(text->data[text->n - 1])) text->n--;
    if (!e->closed && e->first < 0 && e->parent >= 0) { /* closed without the marker: "NS<a>x</a>" */
        size_t name_n = strlen(name_of(t, i)), n = name_n + 3;
        const char *tail = text->n >= n ? text->data + text->n - n : "";
        if (tail[0] == '<' && tail[1] == '/' && tail[n - 1] == '>' && memcmp(tail + 2, name_of(t, i), name_n) == 0)
            text->n -= n;
        while (text->n && is_space(text->data[text->n - 1])) text->n--;
    }
    skip = skip_space(text->data, 0, text->n);
    memmove(text->data, text->data + skip, text->n - skip);
    text->n -= skip;
    text->data[text->n] = 0;
}

static void separate(mm3_buf *out)
{
    char before = out->n ? out->data[out->n - 1] : '[';
    if (before != '[' && before != '{') mm3_buf_puts(out, ", ");
}

/* JSON of one of the types (object, array); NULL if the text is none. */
static json_t *json_of(tree *t, const mm3_buf *text, unsigned types)
{
    json_error_t e;
    json_t *v = NULL;
    if (!text->n || (text->data[0] != '{' && text->data[0] != '[')) return NULL;
    if (mm3__json_load(&v, text->data, text->n, 0, &e) == MM3_ERR_NOMEM) t->failed = true;
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

static void write_text(tree *t, const mm3_buf *text, unsigned types, mm3_buf *out)
{
    static const char *const nulls[] = { "null", "Null", "NULL", NULL };
    bool strict = types & MM3__STRING;
    json_t *v;
    if ((types & MM3__NULL || (types && !strict)) && is_one_of(text, nulls, false)) {
        mm3_buf_puts(out, "null");
    } else if (types & (MM3__OBJECT | MM3__ARRAY) && (v = json_of(t, text, types))) {
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

static bool has_only_items(const tree *t, int i)
{
    for (i = t->elements[i].first; i >= 0; i = t->elements[i].next)
        if (strcmp(name_of(t, i), "item") != 0) return false;
    return true;
}

static void write_element(tree *t, int i, const json_t *schema, mm3_buf *out);

static void write_items(tree *t, int i, const json_t *items, mm3_buf *out)
{
    for (i = t->elements[i].first; i >= 0; i = t->elements[i].next) {
        separate(out);
        write_element(t, i, items, out);
    }
}

/* One of several occurrences of a tag that stands for an array: its items, or itself as an item. */
static void write_spread(tree *t, int i, const json_t *items, mm3_buf *out)
{
    const element *e = &t->elements[i];
    mm3_buf text = { 0 };
    json_t *v = NULL;
    if (e->first >= 0 && !e->has_text && has_only_items(t, i)) {
        write_items(t, i, items, out);
        return;
    }
    if (e->first < 0) text_of(t, i, &text);
    if (e->first < 0 && !text.failed) v = json_of(t, &text, MM3__ARRAY);
    if (v) {
        size_t k;
        for (k = 0; k < json_array_size(v); k++) {
            separate(out);
            mm3__json_write(out, json_array_get(v, k));
        }
    } else {
        separate(out);
        write_element(t, i, items, out);
    }
    t->failed = t->failed || text.failed;
    mm3_buf_free(&text);
    json_decref(v);
}

static void write_repeated(tree *t, int i, const json_t *schema, mm3_buf *out)
{
    unsigned types = types_of(t, schema);
    if (types && !(types & MM3__ARRAY)) {
        while (t->elements[i].same >= 0) i = t->elements[i].same;
        write_element(t, i, schema, out);
        return;
    }
    mm3_buf_puts(out, "[");
    for (; i >= 0; i = t->elements[i].same) {
        if (types) {
            write_spread(t, i, mm3__schema_items(t->schema, schema), out);
        } else {
            separate(out);
            write_element(t, i, NULL, out);
        }
    }
    mm3_buf_puts(out, "]");
}

static void write_members(tree *t, int i, const json_t *schema, mm3_buf *out)
{
    mm3_buf_puts(out, "{");
    for (i = t->elements[i].first; i >= 0; i = t->elements[i].next) {
        const json_t *member = mm3__schema_member(t->schema, schema, name_of(t, i));
        if (t->elements[i].repeats) continue;
        separate(out);
        mm3__json_write_string(out, name_of(t, i), strlen(name_of(t, i)));
        mm3_buf_puts(out, ": ");
        if (t->elements[i].same >= 0)
            write_repeated(t, i, member, out);
        else
            write_element(t, i, member, out);
    }
    mm3_buf_puts(out, "}");
}

/* Its depth is bounded by MAX_DEPTH. */
static void write_element(tree *t, int i, const json_t *schema, mm3_buf *out)
{
    const element *e = &t->elements[i];
    unsigned types = types_of(t, schema), nested = types & (MM3__OBJECT | MM3__ARRAY);
    mm3_buf text = { 0 };
    if (e->first >= 0 && !e->has_text && (!types || nested)) {
        bool array = has_only_items(t, i) && nested != MM3__OBJECT;
        if (array || nested == MM3__ARRAY) mm3_buf_puts(out, "[");
        if (array)
            write_items(t, i, mm3__schema_items(t->schema, schema), out);
        else
            write_members(t, i, nested == MM3__ARRAY ? mm3__schema_items(t->schema, schema) : schema, out);
        if (array || nested == MM3__ARRAY) mm3_buf_puts(out, "]");
        return;
    }
    text_of(t, i, &text);
    if (text.failed)
        t->failed = true;
    else
        write_text(t, &text, e->first < 0 ? types : MM3__STRING, out);
    mm3_buf_free(&text);
}

/* ---- calls --------------------------------------------------------------------------------------------------------
 */

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
static bool write_arguments(tree *t, int i, mm3_buf *out)
{
    mm3_buf text = { 0 };
    json_t *v = NULL;
    bool is_call;
    if (t->elements[i].first >= 0) {
        write_members(t, i, t->schema, out);
        return true;
    }
    text_of(t, i, &text);
    t->failed = t->failed || text.failed;
    if (!text.failed) v = json_of(t, &text, MM3__OBJECT);
    is_call = v || !text.n;
    if (v)
        mm3__json_write(out, v);
    else
        mm3_buf_puts(out, "{}");
    json_decref(v);
    mm3_buf_free(&text);
    return is_call;
}

static uint32_t hash(uint32_t h, const char *s, size_t n) /* FNV-1a */
{
    while (n--) h = (h ^ (unsigned char)*s++) * 16777619u;
    return h;
}

/* ids: "call_", the call's index in the answer, and a hash of name and arguments. So they differ within one answer,
 * and the same text gives the same ids. */
static void write_call(const char *name, const mm3_buf *arguments, int index, mm3_buf *calls)
{
    uint32_t h = hash(hash(2166136261u, name, strlen(name) + 1), arguments->data, arguments->n);
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
    tree t = { .s = block, .n = n, .top = -1 };
    mm3_buf arguments = { 0 };
    int i;
    *n_calls = 0;
    read_tree(&t);
    if (!t.failed && !t.too_deep && t.n_elements) link_siblings(&t);
    for (i = 0; i < t.n_elements && !t.failed && !t.too_deep; i++) {
        if (t.elements[i].parent >= 0) continue;
        mm3_buf_clear(&arguments);
        t.schema = json_object_get(parameters, name_of(&t, i));
        if (!write_arguments(&t, i, &arguments) || t.failed || arguments.failed) continue;
        write_call(name_of(&t, i), &arguments, index + *n_calls, calls);
        ++*n_calls;
    }
    t.failed = t.failed || arguments.failed || calls->failed;
    mm3_buf_free(&arguments);
    mm3_buf_free(&t.names);
    mm3_free(t.elements);
    if (t.failed) return mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory while reading a tool call of %zu bytes", n);
    return MM3_OK;
}
