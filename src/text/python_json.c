/* JSON as Python's json module reads and writes it, because the reference template is run by Python: integers of any
 * size, floats by their shortest digits, separators ", " and ": ". Knows nothing of chats. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/chat.h"

/* jansson has no integers beyond 64 bits. Long literals are parsed as strings that begin with this noncharacter; a
 * text of which one could be mistaken for the other is refused, so a marked string is always such an integer. */
#define MARK "\xEF\xB7\x90" /* U+FDD0 */

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* The end of the number at i: of all of it, so that the digits behind a point or an exponent are not taken for another.
 *   is_long  an integer that may be too long for 64 bits, and stands where a value may */
static size_t number_end(const char *s, size_t i, size_t n, bool *is_long)
{
    size_t begin = i + (s[i] == '-'), digits = begin, end;
    while (digits < n && is_digit(s[digits])) digits++;
    for (end = digits; end < n && s[end] && strchr("0123456789+-.eE", s[end]);) end++;
    *is_long = end == digits && digits - begin >= 19 && s[begin] != '0';
    if (!*is_long) return end;
    i = end;
    while (i < n && (s[i] == ' ' || s[i] == '\n' || s[i] == '\t' || s[i] == '\r')) i++;
    if (i < n && s[i] == ':') *is_long = false; /* a key must stay an error */
    return end;
}

/* Copy s with every such literal in quotes and marked; returns how many there were. */
static size_t mark_integers(mm3_buf *b, const char *s, size_t n)
{
    size_t n_marked = 0, copied = 0, i = 0;
    bool in_string = false;
    while (i < n) {
        if (in_string) {
            if (s[i] == '\\')
                i++;
            else if (s[i] == '"')
                in_string = false;
            i++;
        } else if (s[i] == '-' || is_digit(s[i])) {
            bool is_long;
            size_t end = number_end(s, i, n, &is_long);
            if (is_long) {
                mm3_buf_add(b, s + copied, i - copied);
                mm3_buf_puts(b, "\"" MARK);
                mm3_buf_add(b, s + i, end - i);
                mm3_buf_puts(b, "\"");
                copied = end;
                n_marked++;
            }
            i = end;
        } else {
            in_string = s[i] == '"';
            i++;
        }
    }
    if (n_marked) mm3_buf_add(b, s + copied, n - copied);
    return n_marked;
}

static bool has_mark(const char *s, size_t n)
{
    static const char escape[] = "\\ufdd0";
    size_t i, k;
    for (i = 0; i < n; i++) {
        if (n - i >= 3 && memcmp(s + i, MARK, 3) == 0) return true;
        for (k = 0; k < 6 && i + k < n && (s[i + k] == escape[k] || (s[i + k] | 0x20) == escape[k]);) k++;
        if (k == 6) return true;
    }
    return false;
}

/* Whether a string of the caller's would pass for a marked integer. */
static bool has_impostor(const json_t *v)
{
    const char *key;
    json_t *member;
    size_t i;
    if (json_is_string(v)) return mm3__json_integer(v) != NULL;
    for (i = 0; i < json_array_size(v); i++)
        if (has_impostor(json_array_get(v, i))) return true;
    json_object_foreach((json_t *)(uintptr_t)v, key, member)
    {
        if (has_impostor(member)) return true;
    }
    return false;
}

mm3_status mm3__json_load(json_t **out, const char *text, size_t n, size_t flags, json_error_t *e)
{
    bool mark = has_mark(text, n), refused = false;
    mm3_buf marked = { 0 };
    mm3_status st = MM3_OK;
    *out = NULL;
    memset(e, 0, sizeof *e);
    if (n && memchr(text, 0, n)) { /* jansson passes over one that follows a number */
        snprintf(e->text, sizeof e->text, "a NUL, which must be written \\u0000");
        return MM3_ERR_ARG;
    }
    if (mark_integers(&marked, text, n)) {
        refused = mark;
        text = marked.data;
        n = marked.n;
    }
    if (marked.failed) st = MM3_ERR_NOMEM;
    if (st == MM3_OK && !refused) {
        bool out_of_memory;
        *out = mm3_json_decode(text, n, flags | JSON_ALLOW_NUL, e, &out_of_memory);
        if (!*out) st = out_of_memory ? MM3_ERR_NOMEM : MM3_ERR_ARG;
        refused = mark && has_impostor(*out);
    }
    if (st == MM3_OK && refused) {
        snprintf(e->text, sizeof e->text, "U+FDD0 together with an integer, which mm3 cannot tell apart");
        json_decref(*out);
        *out = NULL;
        st = MM3_ERR_ARG;
    }
    mm3_buf_free(&marked);
    return st;
}

const char *mm3__json_integer(const json_t *v)
{
    const char *s = json_string_value(v);
    return s && strncmp(s, MARK, 3) == 0 && (s[3] == '-' || (s[3] >= '1' && s[3] <= '9')) ? s + 3 : NULL;
}

bool mm3__json_is_text(const json_t *v) { return json_is_string(v) && !mm3__json_integer(v); }

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* repr(float): the fewest digits that read back as the same number. */
static void write_real(mm3_buf *b, double x)
{
    char s[40], digits[20];
    int n_digits = 0, exponent, precision, i;
    for (precision = 0; precision < 17; precision++) {
        snprintf(s, sizeof s, "%.*e", precision, x);
        if (strtod(s, NULL) == x) break;
    }
    for (i = s[0] == '-'; s[i] != 'e'; i++) /* the decimal point depends on the locale: take the digits alone */
        if (s[i] >= '0' && s[i] <= '9') digits[n_digits++] = s[i];
    exponent = atoi(s + i + 1);
    if (s[0] == '-') mm3_buf_puts(b, "-");
    if (exponent < -4 || exponent >= 16) {
        mm3_buf_printf(b, "%c%s%.*s", digits[0], n_digits > 1 ? "." : "", n_digits - 1, digits + 1);
        mm3_buf_printf(b, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    if (exponent < 0) mm3_buf_puts(b, "0.");
    for (i = exponent; i < -1; i++) mm3_buf_puts(b, "0");
    for (i = 0; i < n_digits || i <= exponent; i++) {
        mm3_buf_add(b, i < n_digits ? digits + i : "0", 1);
        if (i == exponent) mm3_buf_puts(b, i + 1 < n_digits ? "." : ".0");
    }
}

void mm3__json_write_number(mm3_buf *b, const json_t *v)
{
    if (json_is_integer(v))
        mm3_buf_printf(b, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    else if (json_is_real(v))
        write_real(b, json_real_value(v));
    else
        mm3_buf_puts(b, mm3__json_integer(v));
}

void mm3__json_write_string(mm3_buf *b, const char *s, size_t n)
{
    static const char escapes[] = "\b\f\n\r\t\"\\", letters[] = "bfnrt\"\\";
    size_t i, copied = 0;
    mm3_buf_puts(b, "\"");
    for (i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        const char *known;
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        mm3_buf_add(b, s + copied, i - copied);
        copied = i + 1;
        known = c ? strchr(escapes, c) : NULL;
        if (known)
            mm3_buf_printf(b, "\\%c", letters[known - escapes]);
        else
            mm3_buf_printf(b, "\\u%04x", c);
    }
    mm3_buf_add(b, s + copied, n - copied);
    mm3_buf_puts(b, "\"");
}

void mm3__json_write(mm3_buf *b, const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: {
        const char *key, *comma = "";
        json_t *member;
        mm3_buf_puts(b, "{");
        json_object_foreach((json_t *)(uintptr_t)v, key, member)
        {
            mm3_buf_puts(b, comma);
            mm3__json_write_string(b, key, strlen(key));
            mm3_buf_puts(b, ": ");
            mm3__json_write(b, member);
            comma = ", ";
        }
        mm3_buf_puts(b, "}");
        break;
    }
    case JSON_ARRAY: {
        size_t i;
        mm3_buf_puts(b, "[");
        for (i = 0; i < json_array_size(v); i++) {
            if (i) mm3_buf_puts(b, ", ");
            mm3__json_write(b, json_array_get(v, i));
        }
        mm3_buf_puts(b, "]");
        break;
    }
    case JSON_STRING:
        if (mm3__json_integer(v))
            mm3__json_write_number(b, v);
        else
            mm3__json_write_string(b, json_string_value(v), json_string_length(v));
        break;
    case JSON_INTEGER:
    case JSON_REAL:
        mm3__json_write_number(b, v);
        break;
    case JSON_TRUE:
        mm3_buf_puts(b, "true");
        break;
    case JSON_FALSE:
        mm3_buf_puts(b, "false");
        break;
    case JSON_NULL:
        mm3_buf_puts(b, "null");
        break;
    }
}
