/* One envelope's tags to a tree: call_tree.h says what is made of broken text. */
#include <stdlib.h>
#include <string.h>

#include "text/call_tree.h"

static const size_t ns_n = sizeof MM3__NS - 1;

/* ---- elements ---------------------------------------------------------------------------------------------------- */

static void open_element(mm3__tree *t, int parent, const char *name, size_t name_n, size_t begin)
{
    mm3__element *e;
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
    *e = (mm3__element){ .name = t->names.n,
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
        mm3__element *p = &t->elements[parent];
        if (p->last >= 0)
            t->elements[p->last].next = t->n_elements;
        else
            p->first = t->n_elements;
        p->last = t->n_elements;
    }
    t->top = t->n_elements++;
    t->depth = parent < 0 ? 1 : t->depth + 1;
    t->too_deep = t->too_deep || t->depth > MM3__MAX_CALL_DEPTH;
}

/* Close the innermost element, whose inside ends at `end`. */
static void close_top(mm3__tree *t, size_t end, bool by_closer)
{
    mm3__element *e = &t->elements[t->top];
    e->end = end;
    e->closed = by_closer;
    t->top = e->parent;
    t->depth--;
}

/* ---- tags -------------------------------------------------------------------------------------------------------- */

typedef enum tag_kind { TAG_NONE, TAG_CUT, TAG_OPEN, TAG_EMPTY, TAG_CLOSE, TAG_INVOKE } tag_kind;
typedef struct tag {
    tag_kind kind;
    const char *name;
    size_t name_n, end; /* the tag's end in the block */
} tag;

static size_t skip_space(const char *s, size_t i, size_t n)
{
    while (i < n && mm3__is_space(s[i])) i++;
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
    if (t.kind == TAG_OPEN && t.name_n == 6 && memcmp(t.name, "invoke", 6) == 0 && i < n && mm3__is_space(s[i])) {
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
static void see_text(mm3__tree *t, size_t begin, size_t end)
{
    if (t->top < 0 || t->elements[t->top].has_text) return;
    while (begin < end) {
        if (end - begin >= ns_n && memcmp(t->s + begin, MM3__NS, ns_n) == 0)
            begin += ns_n;
        else if (mm3__is_space(t->s[begin]))
            begin++;
        else
            break;
    }
    t->elements[t->top].has_text = begin < end;
}

static void close_all(mm3__tree *t, size_t end)
{
    while (t->top >= 0) close_top(t, end, false);
}

static void see_closer(mm3__tree *t, const tag *g, size_t at)
{
    int i;
    for (i = t->top; i >= 0; i = t->elements[i].parent) {
        const char *name = mm3__tree_name(t, i);
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
static void see_tag(mm3__tree *t, const tag *g, size_t at)
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

static void read_tags(mm3__tree *t)
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

/* ---- siblings of one name ---------------------------------------------------------------------------------------- */

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

static void link_siblings(mm3__tree *t)
{
    sibling *list = mm3_malloc(mm3_mul((size_t)t->n_elements, sizeof *list));
    int i;
    if (!list) {
        t->failed = true;
        return;
    }
    for (i = 0; i < t->n_elements; i++) list[i] = (sibling){ mm3__tree_name(t, i), t->elements[i].parent, i };
    qsort(list, (size_t)t->n_elements, sizeof *list, compare_siblings);
    for (i = 1; i < t->n_elements; i++) {
        if (list[i].parent < 0 || list[i].parent != list[i - 1].parent) continue;
        if (strcmp(list[i].name, list[i - 1].name) != 0) continue;
        t->elements[list[i - 1].i].same = list[i].i;
        t->elements[list[i].i].repeats = true;
    }
    mm3_free(list);
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

void mm3__tree_read(mm3__tree *t, const char *s, size_t n)
{
    *t = (mm3__tree){ .s = s, .n = n, .top = -1 };
    read_tags(t);
    if (!t->failed && !t->too_deep && t->n_elements) link_siblings(t);
}

void mm3__tree_free(mm3__tree *t)
{
    mm3_buf_free(&t->names);
    mm3_free(t->elements);
    *t = (mm3__tree){ .top = -1 };
}

void mm3__tree_text(const mm3__tree *t, int i, mm3_buf *text)
{
    const mm3__element *e = &t->elements[i];
    const char *s = t->s + e->begin, *end = t->s + e->end, *mark;
    size_t skip;
    while ((mark = memmem(s, (size_t)(end - s), MM3__NS, ns_n))) {
        mm3_buf_add(text, s, (size_t)(mark - s));
        s = mark + ns_n;
    }
    mm3_buf_add(text, s, (size_t)(end - s));
    if (text->failed) return;
    while (text->n && mm3__is_space(text->data[text->n - 1])) text->n--;
    if (!e->closed && e->first < 0 && e->parent >= 0) { /* closed without the marker: "NS<a>x</a>" */
        size_t name_n = strlen(mm3__tree_name(t, i)), n = name_n + 3;
        const char *tail = text->n >= n ? text->data + text->n - n : "";
        if (tail[0] == '<' && tail[1] == '/' && tail[n - 1] == '>' &&
            memcmp(tail + 2, mm3__tree_name(t, i), name_n) == 0)
            text->n -= n;
        while (text->n && mm3__is_space(text->data[text->n - 1])) text->n--;
    }
    skip = skip_space(text->data, 0, text->n);
    memmove(text->data, text->data + skip, text->n - skip);
    text->n -= skip;
    text->data[text->n] = 0;
}
