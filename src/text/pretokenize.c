/* The pre_tokenizer: a list of splits, each a pattern with a rule for what it finds, and ByteLevel at the end.
 * Owns compiled patterns; knows no vocabulary. Read next: pattern.c. */
#include <string.h>

#include "text/tokenizer.h"

static void *pcre2_take(size_t n, void *user)
{
    (void)user;
    return mm3_malloc(n);
}

static void pcre2_give(void *p, void *user)
{
    (void)user;
    mm3_free(p);
}

pcre2_general_context *mm3__pcre2_memory(void) { return pcre2_general_context_create(pcre2_take, pcre2_give, NULL); }

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Compile a pattern as the next split. literal: the text itself, no regular expression. */
static mm3_status add_split(mm3__pretokenizer *p, const char *pattern, bool literal, bool keep_match, bool keep_gap,
                            const char *what)
{
    mm3_status st = MM3_OK;
    mm3_buf regex = { 0 };
    pcre2_general_context *memory = NULL;
    pcre2_compile_context *context = NULL;
    pcre2_code *code = NULL;
    size_t at;
    int rc;
    uint32_t matches_empty = 0;

    MM3_CHECK(p->n < MM3__MAX_SPLITS, MM3_ERR_UNSUPPORTED, "%s: more than %d splits", what, MM3__MAX_SPLITS);
    MM3_CHECK(*pattern && strlen(pattern) <= 65536, MM3_ERR_UNSUPPORTED,
              "%s: a pattern of %zu bytes; expected 1 to 65536", what, strlen(pattern));
    if (literal)
        mm3_buf_puts(&regex, pattern);
    else
        MM3_GOTO(mm3__pattern_translate(&regex, pattern, what));
    memory = mm3__pcre2_memory();
    context = memory ? pcre2_compile_context_create(memory) : NULL;
    if (!context || regex.failed) {
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "%s: out of memory for the pattern", what);
        goto done;
    }
    code = pcre2_compile((PCRE2_SPTR)regex.data, regex.n, PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP), &rc, &at,
                         context);
    if (!code) {
        char text[128] = "";
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)text, sizeof text);
        st = mm3_fail(rc == PCRE2_ERROR_HEAP_FAILED ? MM3_ERR_NOMEM : MM3_ERR_FORMAT, MM3_HERE,
                      "%s: pattern, byte %zu of %zu: %s", what, at, regex.n, text);
        goto done;
    }
    pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
    if (matches_empty) {
        st =
            mm3_fail(MM3_ERR_UNSUPPORTED, MM3_HERE, "%s: the pattern may match empty text, which splits nothing", what);
        goto done;
    }
    /* Without JIT (not built in, or executable memory refused) the interpreter finds the same, more slowly. */
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    p->split[p->n++] = (mm3__split){ code, keep_match, keep_gap };
    code = NULL;
done:
    pcre2_code_free(code);
    pcre2_compile_context_free(context);
    pcre2_general_context_free(memory);
    mm3_buf_free(&regex);
    return st;
}

static mm3_status read_split(mm3__pretokenizer *p, const json_t *component, const char *what)
{
    static const char *const members[] = { "type", "pattern", "behavior", "invert", NULL };
    static const char *const forms[] = { "Regex", "String", NULL };
    const json_t *pattern = json_object_get(component, "pattern");
    const char *text, *behavior;
    bool invert, literal;
    MM3_TRY(mm3__only_members(component, members, what));
    MM3_TRY(mm3_json_string(component, "behavior", what, false, NULL, &behavior));
    MM3_TRY(mm3_json_bool(component, "invert", what, false, false, &invert));
    MM3_CHECK(json_object_size(pattern) == 1, MM3_ERR_FORMAT,
              "%s: \"pattern\" must be {\"Regex\": ..} or {\"String\": ..}", what);
    MM3_TRY(mm3__only_members(pattern, forms, what));
    literal = json_object_get(pattern, "String") != NULL;
    MM3_TRY(mm3_json_string(pattern, literal ? "String" : "Regex", what, false, NULL, &text));
    if (strcmp(behavior, "Isolated") == 0) return add_split(p, text, literal, true, true, what);
    if (strcmp(behavior, "Removed") == 0) return add_split(p, text, literal, invert, !invert, what);
    return mm3_fail(MM3_ERR_UNSUPPORTED, MM3_HERE, "%s: behavior \"%.40s\"; mm3 takes Isolated and Removed", what,
                    behavior);
}

static mm3_status read_byte_level(mm3__pretokenizer *p, const json_t *component, const char *what)
{
    /* The pattern that the reference's ByteLevel has built in; GPT-2's. */
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    static const char *const members[] = { "type", "add_prefix_space", "trim_offsets", "use_regex", NULL };
    bool add_prefix_space, use_regex;
    MM3_TRY(mm3__only_members(component, members, what));
    MM3_TRY(mm3_json_bool(component, "add_prefix_space", what, false, false, &add_prefix_space));
    MM3_TRY(mm3_json_bool(component, "use_regex", what, true, true, &use_regex));
    MM3_CHECK(!add_prefix_space, MM3_ERR_UNSUPPORTED, "%s: \"add_prefix_space\" is true; mm3 adds nothing to a text",
              what);
    p->byte_level = true;
    return use_regex ? add_split(p, gpt2, false, true, true, what) : MM3_OK;
}

static mm3_status read_component(mm3__pretokenizer *p, const json_t *component, const char *what, int depth)
{
    const char *type;
    MM3_CHECK(!p->byte_level, MM3_ERR_UNSUPPORTED, "%s follows ByteLevel, which must be the last", what);
    MM3_TRY(mm3__component_type(component, what, &type));
    if (strcmp(type, "Split") == 0) return read_split(p, component, what);
    if (strcmp(type, "ByteLevel") == 0) return read_byte_level(p, component, what);
    if (strcmp(type, "Sequence") == 0) {
        static const char *const members[] = { "type", "pretokenizers", NULL };
        const json_t *list = json_object_get(component, "pretokenizers");
        MM3_TRY(mm3__only_members(component, members, what));
        MM3_CHECK(json_is_array(list), MM3_ERR_FORMAT, "%s: \"pretokenizers\" must be an array", what);
        MM3_CHECK(depth < 4, MM3_ERR_UNSUPPORTED, "%s: Sequence in Sequence, more than 4 deep", what);
        for (size_t i = 0; i < json_array_size(list); i++) {
            char inner[512];
            snprintf(inner, sizeof inner, "%.440s[%zu]", what, i);
            MM3_TRY(read_component(p, json_array_get(list, i), inner, depth + 1));
        }
        return MM3_OK;
    }
    return mm3_fail(MM3_ERR_UNSUPPORTED, MM3_HERE, "%s: type \"%.40s\"; mm3 takes Split, ByteLevel and Sequence", what,
                    type);
}

mm3_status mm3__pretokenizer_read(mm3__pretokenizer *p, const json_t *component, const char *file)
{
    char what[512];
    snprintf(what, sizeof what, "%.400s: pre_tokenizer", file);
    MM3_TRY(read_component(p, component, what, 0));
    MM3_CHECK(p->byte_level, MM3_ERR_UNSUPPORTED, "%s has no ByteLevel; mm3 runs byte-level BPE only", what);
    return MM3_OK;
}

void mm3__pretokenizer_free(mm3__pretokenizer *p)
{
    for (int i = 0; i < p->n; i++) pcre2_code_free(p->split[i].code);
    *p = (mm3__pretokenizer){ 0 };
}

/* ---- splitting --------------------------------------------------------------------------------------------------- */

/* Where the pattern matches next at or after text + from; *found false: nowhere. */
static mm3_status next_match(mm3__encoder *e, const pcre2_code *code, const unsigned char *text, size_t n, size_t from,
                             bool *found, size_t *begin, size_t *end)
{
    char why[128] = "";
    int rc = pcre2_match(code, text, n, from, PCRE2_NO_UTF_CHECK, e->match, e->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter keeps its state on the heap */
        rc = pcre2_match(code, text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, e->match, e->context);
    *found = rc >= 0;
    if (*found) {
        const size_t *place = pcre2_get_ovector_pointer(e->match);
        *begin = place[0];
        *end = place[1];
    }
    if (*found || rc == PCRE2_ERROR_NOMATCH) return MM3_OK;
    pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
    return mm3_fail(rc == PCRE2_ERROR_NOMEMORY ? MM3_ERR_NOMEM : MM3_ERR_ARG, MM3_HERE,
                    "cannot split the text into words at byte %zu of %zu: %s", from, n, why);
}

static mm3_status split(mm3__encoder *e, int i_split, const unsigned char *text, size_t n)
{
    const mm3__split *s = &e->tokenizer->pretokenizer.split[i_split];
    size_t at = 0;
    if (n == 0) return MM3_OK;
    if (i_split == e->tokenizer->pretokenizer.n) return mm3__bpe(e, text, n);
    while (at < n) {
        size_t begin = n, end = n;
        bool found;
        MM3_TRY(next_match(e, s->code, text, n, at, &found, &begin, &end));
        if (s->keep_gap && begin > at) MM3_TRY(split(e, i_split + 1, text + at, begin - at));
        if (s->keep_match && end > begin) MM3_TRY(split(e, i_split + 1, text + begin, end - begin));
        at = end;
    }
    return MM3_OK;
}

mm3_status mm3__pretokenize(mm3__encoder *e, const unsigned char *text, size_t n) { return split(e, 0, text, n); }
