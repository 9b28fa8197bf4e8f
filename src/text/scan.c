/* Strict reading of the two large values of tokenizer.json, "vocab" and "merges", straight from the file: a tree of
 * their 600 000 strings takes longer than all else of loading. The rest of the file goes to the JSON parser. */
#include <string.h>

#include "text/tokenizer.h"

static void skip_space(mm3__scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\r' || *s->at == '\t')) s->at++;
}

mm3_status mm3__scan_fail(const mm3__scan *s, const char *expected)
{
    return mm3_fail(MM3_ERR_FORMAT, MM3_HERE, "%s: not valid JSON at byte %td: expected %s", s->file, s->at - s->start,
                    expected);
}

bool mm3__scan_is(mm3__scan *s, char c)
{
    skip_space(s);
    return s->at < s->end && *s->at == (unsigned char)c;
}

bool mm3__scan_char(mm3__scan *s, char c)
{
    if (!mm3__scan_is(s, c)) return false;
    s->at++;
    return true;
}

/* Four hexadecimal digits at p, or -1. */
static int32_t hex4(const unsigned char *p, const unsigned char *end)
{
    int32_t code = 0;
    if (end - p < 4) return -1;
    for (int i = 0; i < 4; i++) {
        int c = p[i] | 0x20;
        if (p[i] >= '0' && p[i] <= '9')
            code = code * 16 + p[i] - '0';
        else if (c >= 'a' && c <= 'f')
            code = code * 16 + c - 'a' + 10;
        else
            return -1;
    }
    return code;
}

/* The escape at s->at, behind the backslash. */
static mm3_status scan_escape(mm3__scan *s, mm3_buf *buf)
{
    static const char letter[] = "\"\\/bfnrt", value[] = "\"\\/\b\f\n\r\t";
    const char *known = s->at < s->end && *s->at ? strchr(letter, *s->at) : NULL;
    int32_t code, low;
    if (known) {
        s->at++;
        mm3_buf_add(buf, value + (known - letter), 1);
        return MM3_OK;
    }
    code = s->at < s->end && *s->at == 'u' ? hex4(s->at + 1, s->end) : -1;
    if (code <= 0 || (code >= 0xDC00 && code < 0xE000)) return mm3__scan_fail(s, "a known escape, not of NUL");
    s->at += 5;
    if (code >= 0xD800 && code < 0xDC00) {
        low = s->end - s->at >= 6 && s->at[0] == '\\' && s->at[1] == 'u' ? hex4(s->at + 2, s->end) : -1;
        if (low < 0xDC00 || low >= 0xE000) return mm3__scan_fail(s, "the second half of a surrogate pair");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        s->at += 6;
    }
    mm3__utf8_put(buf, code);
    return MM3_OK;
}

mm3_status mm3__scan_string(mm3__scan *s, mm3_buf *buf, const char **string, size_t *n)
{
    const unsigned char *from;
    bool escaped = false;
    *string = "";
    *n = 0;
    if (!mm3__scan_char(s, '"')) return mm3__scan_fail(s, "a string");
    mm3_buf_clear(buf);
    for (from = s->at; s->at < s->end && *s->at != '"';) {
        if (*s->at == '\\') {
            mm3_buf_add(buf, from, (size_t)(s->at - from));
            s->at++;
            MM3_TRY(scan_escape(s, buf));
            from = s->at;
            escaped = true;
        } else {
            int want = *s->at < 0x80 ? 1 : mm3__utf8_want(s->at, (size_t)(s->end - s->at));
            if (want == 0 || want > s->end - s->at || *s->at < 0x20) return mm3__scan_fail(s, "UTF-8 text in a string");
            s->at += want;
        }
    }
    if (s->at == s->end) return mm3__scan_fail(s, "the end of a string");
    if (escaped) {
        mm3_buf_add(buf, from, (size_t)(s->at - from));
        MM3_CHECK(!buf->failed, MM3_ERR_NOMEM, "%s: out of memory", s->file);
        *string = buf->data;
        *n = buf->n;
    } else {
        *string = (const char *)from;
        *n = (size_t)(s->at - from);
    }
    s->at++;
    return MM3_OK;
}

mm3_status mm3__scan_int(mm3__scan *s, int64_t *value)
{
    bool negative = mm3__scan_char(s, '-');
    const unsigned char *from;
    int64_t v = 0;
    for (from = s->at; s->at < s->end && *s->at >= '0' && *s->at <= '9'; s->at++) {
        if (s->at - from >= 18) return mm3__scan_fail(s, "a smaller number");
        v = v * 10 + (*s->at - '0');
    }
    if (s->at == from || (*from == '0' && s->at - from > 1) || (s->at < s->end && *s->at && strchr(".eE", *s->at)))
        return mm3__scan_fail(s, "a whole number");
    *value = negative ? -v : v;
    return MM3_OK;
}

/* ---- cutting the large values out -------------------------------------------------------------------------------- */

/* Pass over one value, whatever it is; loosely, as it is read again by a strict reader.
 *   n_items  members or elements of it, if it is an object or array: one more than its own commas */
static void skip_value(mm3__scan *s, size_t *n_items)
{
    int64_t depth = 0;
    *n_items = 1;
    skip_space(s);
    while (s->at < s->end) {
        unsigned char c = *s->at;
        if (c == '"') {
            for (s->at++; s->at < s->end && *s->at != '"'; s->at++) s->at += *s->at == '\\' && s->end - s->at > 1;
            if (s->at == s->end) return;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            if (--depth < 0) return;
        } else if (c == ',') {
            if (depth == 0) return;
            *n_items += depth == 1;
        }
        s->at++;
        if (depth == 0 && (c == '"' || c == '}' || c == ']')) return;
    }
}

/* Go to the value of the next member of an object: false at its end, or where it is no JSON (found later). */
static bool next_member(mm3__scan *s, mm3_buf *buf, const char **key, size_t *n_key)
{
    if (!mm3__scan_char(s, ',') && !mm3__scan_char(s, '{')) return false;
    return mm3__scan_string(s, buf, key, n_key) == MM3_OK && mm3__scan_char(s, ':');
}

static bool is_key(const char *key, size_t n, const char *wanted)
{
    return n == strlen(wanted) && memcmp(key, wanted, n) == 0;
}

mm3_status mm3__scan_cut(mm3_buf *rest, mm3__scan *vocab, mm3__scan *merges, const char *text, size_t n_bytes,
                         const char *file)
{
    const unsigned char *start = (const unsigned char *)text, *copied = start;
    mm3__scan s = { start, start, start + n_bytes, 0, file };
    mm3_buf buf = { 0 };
    const char *key;
    size_t n_key, n_items;
    bool in_model = false, failed;
    *vocab = *merges = (mm3__scan){ start, start, start, 0, file };
    while (next_member(&s, &buf, &key, &n_key)) {
        mm3__scan *large = !in_model                      ? NULL
                           : is_key(key, n_key, "vocab")  ? vocab
                           : is_key(key, n_key, "merges") ? merges
                                                          : NULL;
        if (!in_model && is_key(key, n_key, "model") && mm3__scan_is(&s, '{')) {
            in_model = true; /* its members come next */
            continue;
        }
        skip_space(&s);
        if (large && large->at == large->end) {
            mm3_buf_add(rest, copied, (size_t)(s.at - copied));
            mm3_buf_puts(rest, "null");
            large->at = s.at;
            skip_value(&s, &large->n_items);
            large->end = copied = s.at;
        } else {
            skip_value(&s, &n_items);
        }
        if (in_model && mm3__scan_char(&s, '}')) in_model = false;
    }
    mm3_buf_add(rest, copied, (size_t)(s.end - copied));
    failed = buf.failed || rest->failed; /* a key that could not be read may have been the model's */
    mm3_buf_free(&buf);
    MM3_CHECK(!failed, MM3_ERR_NOMEM, "%s: out of memory", file);
    return MM3_OK;
}
