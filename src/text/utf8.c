/* UTF-8 as bytes: where sequences begin and end, and bytes made fit for an error text. */
#include <stdio.h>

#include "text/tokenizer.h"

int mm3__utf8_want(const unsigned char *p, size_t n)
{
    unsigned char low = 0x80, high = 0xBF;
    int want, i;
    if (p[0] < 0x80) return 1;
    if (p[0] < 0xC2 || p[0] > 0xF4) return 0;
    want = p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    /* The second byte rules out overlong forms, surrogates, and what lies above U+10FFFF. */
    if (p[0] == 0xE0) low = 0xA0;
    if (p[0] == 0xED) high = 0x9F;
    if (p[0] == 0xF0) low = 0x90;
    if (p[0] == 0xF4) high = 0x8F;
    if (n > 1 && (p[1] < low || p[1] > high)) return 0;
    for (i = 2; i < want && (size_t)i < n; i++)
        if (p[i] < 0x80 || p[i] > 0xBF) return 0;
    return want;
}

size_t mm3__utf8_run(const unsigned char *p, size_t n, bool *valid)
{
    size_t i = 0;
    *valid = false;
    while (i < n) {
        int want = p[i] < 0x80 ? 1 : mm3__utf8_want(p + i, n - i);
        bool whole = want > 0 && (size_t)want <= n - i;
        if (i == 0) *valid = whole;
        if (whole != *valid) break;
        i += whole ? (size_t)want : 1;
    }
    return i;
}

int32_t mm3__utf8_code(const unsigned char *p, int n)
{
    if (n == 1) return p[0];
    if (n == 2) return (p[0] & 0x1F) << 6 | (p[1] & 0x3F);
    if (n == 3) return (p[0] & 0x0F) << 12 | (p[1] & 0x3F) << 6 | (p[2] & 0x3F);
    return (p[0] & 0x07) << 18 | (p[1] & 0x3F) << 12 | (p[2] & 0x3F) << 6 | (p[3] & 0x3F);
}

void mm3__utf8_put(mm3_buf *out, int32_t code)
{
    unsigned char b[4];
    int n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = { 0, 0, 0xC0, 0xE0, 0xF0 };
    for (int i = n - 1; i > 0; i--, code >>= 6) b[i] = (unsigned char)(0x80 | (code & 0x3F));
    b[0] = (unsigned char)(lead[n] | code);
    mm3_buf_add(out, b, (size_t)n);
}

const char *mm3__show(char out[MM3__SHOWN], const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    int at = 0;
    size_t i;
    for (i = 0; i < n && at < 40; i++) {
        if (p[i] >= 0x20 && p[i] < 0x7F)
            out[at++] = (char)p[i];
        else
            at += snprintf(out + at, (size_t)(MM3__SHOWN - at), "\\x%02X", p[i]);
    }
    snprintf(out + at, (size_t)(MM3__SHOWN - at), "%s", i < n ? "..." : "");
    return out;
}
