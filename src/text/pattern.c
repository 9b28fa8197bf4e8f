/* Patterns of tokenizer.json are written for Oniguruma; this rewrites them so that PCRE2 finds the
 * same, or refuses. Knows the two dialects only. What differs: \s (PCRE2 adds U+180E), \v, \h, {n}?,
 * {n,m}+, nested sets, properties of newer Unicode versions, and letters that fold to several. Text
 * that is not in the grammar below is never guessed at. */
#include <string.h>

#include "text/tokenizer.h"

typedef struct translation {
    mm3_buf *out;
    const char *pattern, *at;
    const char *what;
    int caseless; /* how many open groups are (?i: */
} translation;

static mm3_status refuse(const translation *t, const char *from, size_t n, const char *why)
{
    char shown[MM3__SHOWN];
    return mm3_fail(MM3_ERR_UNSUPPORTED, MM3_HERE, "%s: pattern, byte %td: \"%s\" %s", t->what, from - t->pattern,
                    mm3__show(shown, from, strnlen(from, n)), why);
}

/* ---- sets -------------------------------------------------------------------------------------------------------- */

/* Characters with the Unicode property White_Space: what \s is to Oniguruma. */
static const char white_space[] = "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}"
                                  "\\x{202F}\\x{205F}\\x{3000}";

/* Put the members of a general category into a set. The category of PCRE2's own Unicode version, which depends on the
 * distribution, is filled up to Unicode 16, which the reference has; so ids are the same everywhere. */
static void put_category(mm3_buf *out, const char *category)
{
    static const struct {
        char category[3];
        int32_t first, last;
    } added[] = {
#define RANGE(category, first, last) { category, first, last },
#include "text/unicode16.list.h"
#undef RANGE
    };
    mm3_buf_printf(out, "\\p{%s}", category);
    for (int i = 0; i < MM3_COUNT(added); i++)
        if (strncmp(added[i].category, category, strlen(category)) == 0)
            mm3_buf_printf(out, "\\x{%X}-\\x{%X}", (unsigned)added[i].first, (unsigned)added[i].last);
}

static bool is_category(const char *name)
{
    static const char *const known[] = { "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",
                                         "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
                                         "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp" };
    for (int i = 0; i < MM3_COUNT(known); i++)
        if (strcmp(known[i], name) == 0) return true;
    return false;
}

/* ---- escapes ----------------------------------------------------------------------------------------------------- */

typedef struct escape {
    bool is_set;      /* else one character */
    bool negated;     /* of a set */
    char category[3]; /* of a set: "" is white space */
    int32_t code;
} escape;

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* \p{..}, \P{..}, \p{^..}; t->at is behind the letter. */
static mm3_status read_property(translation *t, const char *from, escape *e)
{
    const char *end = *t->at == '{' ? strchr(t->at, '}') : NULL;
    if (!end) return refuse(t, from, 3, "is not a property in braces");
    if (t->at[1] == '^') {
        e->negated = !e->negated;
        t->at++;
    }
    if (end - t->at - 1 > 2 || end - t->at - 1 < 1)
        return refuse(t, from, (size_t)(end - from) + 1, "is no general category; mm3 takes L, Lu, N, Nd, P ...");
    memcpy(e->category, t->at + 1, (size_t)(end - t->at - 1));
    if (!is_category(e->category))
        return refuse(t, from, (size_t)(end - from) + 1, "is no general category; mm3 takes L, Lu, N, Nd, P ...");
    if (t->caseless)
        return refuse(t, from, (size_t)(end - from) + 1, "under (?i: means different things to different engines");
    e->is_set = true;
    t->at = end + 1;
    return MM3_OK;
}

/* \x{H..}, \xHH below 80, \uHHHH; t->at is behind the letter. */
static mm3_status read_hex(translation *t, const char *from, escape *e)
{
    bool braces = from[1] == 'x' && *t->at == '{';
    int max = braces ? 6 : from[1] == 'x' ? 2 : 4, n = 0;
    t->at += braces;
    for (; n < max && hex_value(*t->at) >= 0; n++) e->code = e->code * 16 + hex_value(*t->at++);
    if (n == 0 || (!braces && n < max) || (braces && *t->at++ != '}') || e->code > 0x10FFFF ||
        (e->code >= 0xD800 && e->code < 0xE000))
        return refuse(t, from, (size_t)(t->at - from), "is no character");
    if (from[1] == 'x' && !braces && e->code >= 0x80)
        return refuse(t, from, 4, "is a byte of UTF-8, not a character; write \\x{..}");
    return MM3_OK;
}

static mm3_status read_escape(translation *t, escape *e)
{
    static const char letter[] = "rntfvae", value[] = "\r\n\t\f\v\a\x1B";
    const char *from = t->at, *known;
    char c = from[1];
    *e = (escape){ 0 };
    t->at += c ? 2 : 1;
    switch (c) {
    case 's':
    case 'S':
        e->is_set = true;
        e->negated = c == 'S';
        return MM3_OK;
    case 'd':
    case 'D':
        e->is_set = true;
        e->negated = c == 'D';
        memcpy(e->category, "Nd", 3);
        return MM3_OK;
    case 'p':
    case 'P':
        e->negated = c == 'P';
        return read_property(t, from, e);
    case 'x':
    case 'u':
        return read_hex(t, from, e);
    default:
        break;
    }
    known = c ? strchr(letter, c) : NULL;
    if (known)
        e->code = (unsigned char)value[known - letter];
    else if ((c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~') ||
             c == ' ')
        e->code = c;
    else
        return refuse(t, from, 2, "is no escape that mm3 takes");
    return MM3_OK;
}

/* One character, plain or escaped, or a set. */
static mm3_status read_item(translation *t, escape *e)
{
    int want;
    if (*t->at == '\\') return read_escape(t, e);
    want = mm3__utf8_want((const unsigned char *)t->at, strlen(t->at));
    *e = (escape){ .code = mm3__utf8_code((const unsigned char *)t->at, want) };
    t->at += want;
    return MM3_OK;
}

static bool is_letter(int32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

static mm3_status put_char(translation *t, const char *from, int32_t code)
{
    if (t->caseless && code >= 0x80) return refuse(t, from, 4, "under (?i: may fold to several letters");
    if (is_letter(code))
        mm3_buf_printf(t->out, "%c", (char)code);
    else
        mm3_buf_printf(t->out, "\\x{%X}", (unsigned)code);
    return MM3_OK;
}

/* ---- the grammar ------------------------------------------------------------------------------------------------- */

static mm3_status put_set_item(translation *t, const char *from, const escape *e)
{
    if (!e->is_set) return put_char(t, from, e->code);
    if (e->negated) return refuse(t, from, 2, "inside a set is not taken by mm3");
    if (e->category[0])
        put_category(t->out, e->category);
    else
        mm3_buf_puts(t->out, white_space);
    return MM3_OK;
}

/* [...]; t->at is on the bracket. */
static mm3_status read_set(translation *t)
{
    const char *from = t->at++;
    mm3_buf_puts(t->out, "[");
    if (*t->at == '^') {
        if (t->caseless) return refuse(t, from, 2, "under (?i: means different things to different engines");
        mm3_buf_puts(t->out, "^");
        t->at++;
    }
    if (*t->at == ']') return refuse(t, from, 3, "begins an empty set");
    while (*t->at != ']') {
        const char *item = t->at;
        escape low, high;
        if (!*t->at) return refuse(t, from, 8, "begins a set that does not end");
        if (*t->at == '[') return refuse(t, item, 8, "is a set in a set");
        if (strncmp(t->at, "&&", 2) == 0) return refuse(t, item, 2, "is an intersection");
        MM3_TRY(read_item(t, &low));
        MM3_TRY(put_set_item(t, item, &low));
        if (*t->at != '-' || t->at[1] == ']') continue;
        if (*item == '-' && item[1] == '-') return refuse(t, item, 3, "is no clear range; write \\-");
        t->at++;
        if (*t->at == '[' || !*t->at) return refuse(t, item, 8, "is no range");
        MM3_TRY(read_item(t, &high));
        if (low.is_set || high.is_set || low.code > high.code)
            return refuse(t, item, (size_t)(t->at - item), "is no range");
        mm3_buf_puts(t->out, "-");
        MM3_TRY(put_char(t, item, high.code));
    }
    t->at++;
    mm3_buf_puts(t->out, "]");
    return MM3_OK;
}

/* What may follow an item: ? * + {n} {n,} {n,m}, then ? or (not behind braces) +. */
static mm3_status read_quantifier(translation *t)
{
    const char *from = t->at;
    bool braces = *from == '{', plain_count = false;
    if (!*from || !strchr("?*+{", *from)) return MM3_OK;
    if (braces) {
        long low = 0, high;
        int n_low = 0, n_high = 0;
        for (t->at++; *t->at >= '0' && *t->at <= '9' && n_low < 5; n_low++) low = low * 10 + (*t->at++ - '0');
        plain_count = *t->at != ',';
        high = low;
        if (!plain_count)
            for (high = 0, t->at++; *t->at >= '0' && *t->at <= '9' && n_high < 5; n_high++)
                high = high * 10 + (*t->at++ - '0');
        if (n_low == 0 || *t->at != '}' || (n_high > 0 && high < low))
            return refuse(t, from, 12, "is no clear repetition");
    }
    t->at++;
    if (*t->at == '?' && !plain_count)
        t->at++;
    else if (*t->at == '+' && !braces)
        t->at++;
    if (*t->at && strchr("?*+{", *t->at)) return refuse(t, from, (size_t)(t->at - from) + 1, "is no clear repetition");
    mm3_buf_add(t->out, from, (size_t)(t->at - from));
    return MM3_OK;
}

/* The start of a group; t->at is on the parenthesis. Nothing refers back, so plain groups need not capture. */
static mm3_status read_group(translation *t, bool *caseless)
{
    static const char *const known[] = { "(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>" };
    *caseless = false;
    for (int i = 0; i < MM3_COUNT(known); i++)
        if (strncmp(t->at, known[i], strlen(known[i])) == 0) {
            mm3_buf_puts(t->out, known[i]);
            t->at += strlen(known[i]);
            *caseless = known[i][2] == 'i';
            return MM3_OK;
        }
    if (t->at[1] == '?' || t->at[1] == '*') return refuse(t, t->at, 4, "is no group that mm3 takes");
    mm3_buf_puts(t->out, "(?:");
    t->at++;
    return MM3_OK;
}

/* Two neighbours that one character folds to (ligatures, sharp s): Oniguruma would match that character too. */
static bool folds_together(int32_t a, int32_t b)
{
    static const char pair[][3] = { "ff", "fi", "fl", "st", "ss" };
    for (int i = 0; i < MM3_COUNT(pair); i++)
        if ((a | 0x20) == pair[i][0] && (b | 0x20) == pair[i][1]) return true;
    return false;
}

mm3_status mm3__pattern_translate(mm3_buf *out, const char *pattern, const char *what)
{
    enum { MAX_DEPTH = 32 };
    translation t = { .out = out, .pattern = pattern, .at = pattern, .what = what };
    bool caseless[MAX_DEPTH];
    int depth = 0;
    int32_t last = 0; /* the character just before, parentheses apart, if the item before was one */
    while (*t.at) {
        const char *from = t.at;
        escape e = { 0 };
        bool item = true; /* that a quantifier may follow */
        int32_t now = *from == '(' || *from == ')' ? last : 0;
        if (*from == '(') {
            if (depth == MAX_DEPTH) return refuse(&t, from, 8, "is nested too deep");
            MM3_TRY(read_group(&t, &caseless[depth]));
            t.caseless += caseless[depth++];
            item = false;
        } else if (*from == ')') {
            if (depth == 0) return refuse(&t, from, 8, "closes no group");
            t.caseless -= caseless[--depth];
            mm3_buf_puts(out, ")");
            t.at++;
        } else if (*from == '|') {
            mm3_buf_puts(out, "|");
            t.at++;
            item = false;
        } else if (*from == '[') {
            MM3_TRY(read_set(&t));
        } else if (*from == '.') {
            mm3_buf_puts(out, "[^\\x{A}]");
            t.at++;
        } else if (strchr("?*+{^$", *from)) {
            return refuse(&t, from, 8,
                          *from == '^' || *from == '$' ? "is no anchor that mm3 takes" : "repeats nothing");
        } else {
            MM3_TRY(read_item(&t, &e));
            if (e.is_set) {
                mm3_buf_puts(out, e.negated ? "[^" : "[");
                e.negated = false;
                MM3_TRY(put_set_item(&t, from, &e));
                mm3_buf_puts(out, "]");
            } else {
                now = e.code;
                if (t.caseless && folds_together(last, now))
                    return refuse(&t, from, 1, "under (?i: may be half a ligature");
                MM3_TRY(put_char(&t, from, e.code));
            }
        }
        if (item) {
            from = t.at;
            MM3_TRY(read_quantifier(&t));
            if (t.at != from && t.caseless) now = 0;
        } else if (t.at[0] && strchr("?*+{", t.at[0])) {
            return refuse(&t, t.at, 8, "repeats nothing");
        }
        last = now;
    }
    if (depth > 0) return refuse(&t, t.at, 8, "the last group is not closed");
    MM3_CHECK(!out->failed, MM3_ERR_NOMEM, "%s: out of memory for the pattern", what);
    return MM3_OK;
}
