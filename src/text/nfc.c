/* NFC of UTF-8 text, in linear time. Owns nothing; knows code points, not tokens.
 * utf8proc gives decompositions and compositions; its own ordering of combining marks is quadratic, hence this. The
 * result is that of Unicode 9, whichever version utf8proc has: what the reference, and so the training, used. */
#include <string.h>
#include <utf8proc.h>

#include "text/tokenizer.h"

/* Whether NFC leaves c alone and nothing before c composes with it: a place where text can be cut. A subset that is
 * quick to test; true of all of Latin-1 and Latin Extended, most Cyrillic, kana, han and hangul syllables. */
static bool is_safe(int32_t c)
{
    return c < 0x300 || (c >= 0x400 && c <= 0x482) || (c >= 0x3041 && c <= 0x3096) || (c >= 0x30A1 && c <= 0x30FA) ||
           (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0xAC00 && c <= 0xD7A3);
}

/* Characters that Unicode 9 lacks: nothing reorders or composes across them. */
static bool is_inert(int32_t c)
{
    static const struct {
        int32_t first, last;
    } later[] = {
#define RANGE(first, last) { first, last },
#include "text/unicode_after9.list.h"
#undef RANGE
    };
    int low = 0, high = MM3_COUNT(later);
    while (low < high) {
        int middle = (low + high) / 2;
        if (later[middle].last < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < MM3_COUNT(later) && c >= later[low].first;
}

static int combining_class(int32_t c) { return (int)utf8proc_get_property(c)->combining_class; }

/* Order code[0..n), all of a class above 0, by class, equal ones staying in order. spare: room for n. */
static void order_marks(int32_t *code, size_t n, int32_t *spare)
{
    if (n <= 16) {
        for (size_t i = 1; i < n; i++) {
            int32_t c = code[i];
            size_t j = i;
            for (; j > 0 && combining_class(code[j - 1]) > combining_class(c); j--) code[j] = code[j - 1];
            code[j] = c;
        }
    } else {
        size_t place[257] = { 0 };
        for (size_t i = 0; i < n; i++) place[combining_class(code[i]) + 1]++;
        for (int i = 1; i <= 256; i++) place[i] += place[i - 1];
        for (size_t i = 0; i < n; i++) spare[place[combining_class(code[i])]++] = code[i];
        memcpy(code, spare, n * sizeof *code);
    }
}

/* Append NFC(src), src being well-formed. */
static mm3_status normalize(mm3_buf *out, const unsigned char *src, size_t n_bytes)
{
    enum { MAX_DECOMPOSED = 18 };
    mm3_status st = MM3_OK;
    size_t n = 0, n_codes = 0, max;
    int32_t *code = NULL, *spare = NULL;
    utf8proc_ssize_t n_composed;

    for (size_t i = 0; i < n_bytes; i++) n_codes += (src[i] & 0xC0) != 0x80;
    max = n_codes + n_codes / 2 + MAX_DECOMPOSED;
    code = mm3_malloc(mm3_mul(max, sizeof *code));
    for (size_t i = 0; code && i < n_bytes;) {
        int last_class = 0, want = mm3__utf8_want(src + i, n_bytes - i);
        if (max - n < MAX_DECOMPOSED) {
            int32_t *larger = mm3_realloc(code, mm3_mul(max *= 2, sizeof *code));
            if (!larger) break;
            code = larger;
        }
        n += (size_t)utf8proc_decompose_char(mm3__utf8_code(src + i, want), code + n, MAX_DECOMPOSED,
                                             UTF8PROC_DECOMPOSE, &last_class);
        i += (size_t)want;
        n_codes--;
    }
    if (n_codes == 0) spare = mm3_malloc(mm3_mul(n, sizeof *spare));
    if (!spare) {
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for the NFC of %zu bytes", n_bytes);
        goto done;
    }
    for (size_t i = 0, j; i < n; i = j) {
        for (j = i; j < n && combining_class(code[j]) > 0; j++) {}
        if (j > i + 1) order_marks(code + i, j - i, spare);
        if (j == i) j++;
    }
    n_composed = utf8proc_normalize_utf32(code, (utf8proc_ssize_t)n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    for (utf8proc_ssize_t i = 0; i < n_composed; i++) {
        unsigned char bytes[4];
        mm3_buf_add(out, bytes, (size_t)utf8proc_encode_char(code[i], bytes));
    }
done:
    mm3_free(spare);
    mm3_free(code);
    return st;
}

typedef enum kind { SAFE, MUST_NORMALIZE, BARRIER } kind;

static kind kind_at(const unsigned char *p, size_t n, size_t *n_char)
{
    int want = p[0] < 0x80 ? 1 : mm3__utf8_want(p, n);
    bool whole = want > 0 && (size_t)want <= n;
    int32_t code = whole ? mm3__utf8_code(p, want) : -1;
    *n_char = whole ? (size_t)want : 1;
    if (whole && is_safe(code)) return SAFE;
    return !whole || is_inert(code) ? BARRIER : MUST_NORMALIZE;
}

mm3_status mm3__nfc(mm3_buf *out, const unsigned char *src, size_t n_bytes, bool *same)
{
    size_t n_copied = 0, n_char;
    size_t start = 0; /* of what a mark at i would compose with: a safe character just before i, or i itself */
    *same = true;
    for (size_t i = 0; i < n_bytes;) {
        kind k = kind_at(src + i, n_bytes - i, &n_char);
        if (k != MUST_NORMALIZE) {
            start = k == SAFE ? i : i + n_char;
            i += n_char;
            continue;
        }
        mm3_buf_add(out, src + n_copied, start - n_copied);
        while (i < n_bytes && kind_at(src + i, n_bytes - i, &n_char) == MUST_NORMALIZE) i += n_char;
        MM3_TRY(normalize(out, src + start, i - start));
        *same = false;
        n_copied = start = i;
    }
    if (!*same) mm3_buf_add(out, src + n_copied, n_bytes - n_copied);
    MM3_CHECK(!out->failed, MM3_ERR_NOMEM, "out of memory for the NFC of %zu bytes", n_bytes);
    return MM3_OK;
}
