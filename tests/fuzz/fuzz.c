/* fuzz: what the fuzz targets share. */
#include "fuzz/fuzz.h"
#include "support/alloc_faults.h"

#include <stdio.h>
#include <stdlib.h>

void fuzz_fail(const char *file, int line, const char *fmt, ...)
{
    va_list args;
    fprintf(stderr, "%s:%d: property violated: ", file, line);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fprintf(stderr, "\n");
    abort();
}

static const char stale[] = "the text of an earlier error";

void fuzz_forget_error(void) { (void)mm3_fail(MM3_ERR_ARG, MM3_HERE, "%s", stale); }

void fuzz_error(mm3_status st, const char *part)
{
    const char *text = mm3_last_error();
    FUZZ_CHECK(st > MM3_OK && st <= MM3_ERR_CANCELLED, "status %d is no error", (int)st);
    FUZZ_CHECK(*text && strcmp(text, stale) != 0, "%s without a text", mm3_status_name(st));
    FUZZ_CHECK(!part || strstr(text, part), "%s: no '%s' in: %s", mm3_status_name(st), part, text);
    for (const char *c = text; *c; c++)
        FUZZ_CHECK((unsigned char)*c >= 0x20 && *c != 0x7F, "the text of an error holds the byte %d: %s", *c, text);
}

uint32_t fuzz_hash(const void *data, size_t n)
{
    const uint8_t *bytes = data;
    uint64_t h = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < n; i++) h = (h ^ bytes[i]) * UINT64_C(1099511628211);
    return (uint32_t)(h >> 32) ^ (uint32_t)h;
}

bool fuzz_memory_fails(const uint8_t *data, size_t n, long n_allocations)
{
    uint32_t h = fuzz_hash(data, n);
    if (h % 8 != 0 || n_allocations <= 0) return false;
    fuzz_forget_error();
    alloc_fail_at(1 + (long)(h / 8) % n_allocations);
    return true;
}

void fuzz_memory_failed(mm3_status st, mm3_status before)
{
    alloc_fail_at(0);
    if (st == before) return;
    FUZZ_CHECK(st == MM3_ERR_NOMEM, "an allocation failed, and the status is %s", mm3_status_name(st));
    fuzz_error(st, NULL);
}

char *fuzz_part(const uint8_t **data, size_t *n, size_t *n_part)
{
    static const char separator[] = "\n%%\n";
    const size_t n_separator = sizeof separator - 1;
    const uint8_t *end = *data ? memmem(*data, *n, separator, n_separator) : NULL;
    size_t n_copy = end ? (size_t)(end - *data) : *n;
    char *copy;
    if (n_part) *n_part = 0;
    if (!*data) return NULL;
    copy = malloc(n_copy + 1);
    FUZZ_CHECK(copy, "out of memory");
    memcpy(copy, *data, n_copy);
    copy[n_copy] = 0;
    *data = end ? end + n_separator : NULL;
    *n = end ? *n - n_copy - n_separator : 0;
    if (n_part) *n_part = n_copy;
    return copy;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

typedef struct json_text {
    const char *at, *end;
    int depth;
} json_text;

static void skip_space(json_text *t)
{
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\t' || *t->at == '\n' || *t->at == '\r')) t->at++;
}

static bool take(json_text *t, char c)
{
    if (t->at == t->end || *t->at != c) return false;
    t->at++;
    return true;
}

static bool take_word(json_text *t, const char *word)
{
    for (; *word; word++)
        if (!take(t, *word)) return false;
    return true;
}

static bool take_digits(json_text *t)
{
    const char *from = t->at;
    while (t->at < t->end && *t->at >= '0' && *t->at <= '9') t->at++;
    return t->at > from;
}

static bool take_number(json_text *t)
{
    (void)take(t, '-');
    if (!take(t, '0') && !take_digits(t)) return false;
    if (take(t, '.') && !take_digits(t)) return false;
    if (!take(t, 'e') && !take(t, 'E')) return true;
    if (!take(t, '-')) (void)take(t, '+');
    return take_digits(t);
}

static bool take_string(json_text *t)
{
    if (!take(t, '"')) return false;
    while (t->at < t->end && *t->at != '"') {
        unsigned char c = (unsigned char)*t->at++;
        if (c < 0x20) return false;
        if (c != '\\') continue;
        if (t->at == t->end) return false;
        c = (unsigned char)*t->at++;
        if (c != 'u' && (!c || !strchr("\"\\/bfnrt", c))) return false;
        for (int i = 0; c == 'u' && i < 4; i++, t->at++)
            if (t->at == t->end || !*t->at || !strchr("0123456789abcdefABCDEF", *t->at)) return false;
    }
    return take(t, '"');
}

static bool take_value(json_text *t)
{
    char c, close;
    bool ok = true;
    skip_space(t);
    if (t->at == t->end || t->depth > 3000) return false;
    c = *t->at;
    close = c == '{' ? '}' : ']';
    if (c == '"') {
        ok = take_string(t);
    } else if (c == 't' || c == 'f' || c == 'n') {
        ok = take_word(t, c == 't' ? "true" : c == 'f' ? "false" : "null");
    } else if (c != '{' && c != '[') {
        ok = take_number(t);
    } else {
        t->depth++;
        t->at++;
        skip_space(t);
        if (!take(t, close)) {
            do {
                skip_space(t);
                if (c == '{') ok = take_string(t);
                if (ok && c == '{') skip_space(t);
                if (ok && c == '{') ok = take(t, ':');
                ok = ok && take_value(t);
            } while (ok && take(t, ','));
            ok = ok && take(t, close);
        }
        t->depth--;
    }
    skip_space(t);
    return ok;
}

bool fuzz_is_json(const char *text, size_t n)
{
    json_text t = { text, text + n, 0 };
    return take_value(&t) && t.at == t.end;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* The code points that a sequence of `want` bytes may stand for, given its first i + 1 bytes: a range. */
static bool may_go_on(uint32_t code, int want, int have)
{
    static const uint32_t smallest[] = { 0, 0, 0x80, 0x800, 0x10000 };
    uint32_t low = code << 6 * (want - have), high = low | ((1u << 6 * (want - have)) - 1);
    if (high < smallest[want] || low > 0x10FFFF) return false;
    return !(low >= 0xD800 && high <= 0xDFFF);
}

void fuzz_replace_invalid(mm3_buf *out, const char *text, size_t n)
{
    for (size_t i = 0, k; i < n; i = k) {
        unsigned char c = (unsigned char)text[i];
        int want = c < 0x80 ? 1 : c < 0xC0 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF8 ? 4 : 0;
        uint32_t code = want < 2 ? c : c & (0x7Fu >> want);
        k = i + 1;
        while (want > 1 && k < n && (text[k] & 0xC0) == 0x80 && k - i < (size_t)want) {
            if (!may_go_on(code << 6 | (text[k] & 0x3F), want, (int)(k - i) + 1)) break;
            code = code << 6 | (text[k++] & 0x3F);
        }
        if (want > 0 && k - i == (size_t)want && code && may_go_on(code, want, want))
            mm3_buf_add(out, text + i, k - i);
        else
            mm3_buf_puts(out, "\xEF\xBF\xBD");
    }
    mm3_buf_puts(out, "");
}

bool fuzz_is_subsequence(const char *a, size_t n_a, const char *b, size_t n_b)
{
    size_t i = 0;
    for (size_t k = 0; i < n_a && k < n_b; k++) i += a[i] == b[k];
    return i == n_a;
}

void fuzz_expand(mm3_buf *out, const char *text, size_t n, char c, const char *with)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] == c)
            mm3_buf_puts(out, with);
        else
            mm3_buf_add(out, text + i, 1);
    mm3_buf_puts(out, "");
}
