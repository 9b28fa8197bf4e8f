/* fuzz: text through models/tiny-m3's tokenizer. Input: any bytes.
 * Properties: ids decode to the text's NFC; encoding that again changes nothing; without `special` no id is a control
 * token's; the decoder gives the same as decode, id by id, with U+FFFD for what is no UTF-8. */
#include <stdlib.h>

#include "fuzz/fuzz.h"
#include "support/alloc_faults.h"
#include "text/tokenizer.h"

typedef struct ids {
    int32_t *id;
    int n;
} ids;

static const mm3_tokenizer *tiny(void)
{
    static mm3_tokenizer *t;
    if (!t) FUZZ_CHECK(mm3_tokenizer_open(&t, "models/tiny-m3") == MM3_OK, "%s", mm3_last_error());
    return t;
}

static ids encode(const char *text, size_t n, bool special)
{
    ids r = { 0 };
    FUZZ_CHECK(mm3_tokenizer_encode(tiny(), text, n, special, &r.id, &r.n) == MM3_OK, "%s", mm3_last_error());
    FUZZ_CHECK(r.id && r.n >= 0 && (size_t)r.n <= 4 * n, "%d ids of %zu bytes", r.n, n);
    for (int i = 0; i < r.n; i++) {
        FUZZ_CHECK(r.id[i] >= 0 && r.id[i] < mm3_tokenizer_size(tiny()), "id %d", (int)r.id[i]);
        FUZZ_CHECK(special || !tiny()->vocabulary.token[r.id[i]].control, "plain text became control token %d",
                   (int)r.id[i]);
    }
    return r;
}

static void normalize(mm3_buf *out, const char *text, size_t n)
{
    bool same;
    FUZZ_CHECK(mm3__nfc(out, (const unsigned char *)text, n, &same) == MM3_OK, "%s", mm3_last_error());
    FUZZ_CHECK(!same || out->n == 0, "something was appended to a text that is its own NFC");
    if (same) mm3_buf_add(out, text, n);
    mm3_buf_puts(out, "");
}

static bool is_equal(const mm3_buf *a, const char *text, size_t n)
{
    return a->n == n && (n == 0 || memcmp(a->data, text, n) == 0);
}

static void check_decoder(ids r, bool special, const char *want, size_t n_want)
{
    mm3_decoder *d;
    mm3_buf got = { 0 }, valid = { 0 };
    const char *piece;
    FUZZ_CHECK(mm3_decoder_open(&d, tiny(), special) == MM3_OK, "%s", mm3_last_error());
    for (int i = 0; i <= r.n; i++) {
        mm3_status st = i < r.n ? mm3_decoder_push(d, r.id[i], &piece) : mm3_decoder_flush(d, &piece);
        FUZZ_CHECK(st == MM3_OK, "%s", mm3_last_error());
        mm3_buf_puts(&got, piece);
    }
    fuzz_replace_invalid(&valid, want, n_want);
    FUZZ_CHECK(got.n == valid.n && (got.n == 0 || memcmp(got.data, valid.data, got.n) == 0),
               "the decoder gives other text: '%s', not '%s'", got.data, valid.data);
    mm3_decoder_close(&d);
    mm3_buf_free(&got);
    mm3_buf_free(&valid);
}

/* Bytes of the text that are no part of a control token. */
static void check_without_controls(ids r)
{
    char *text;
    size_t n;
    mm3_buf want = { 0 };
    for (int i = 0; i < r.n; i++) {
        const mm3__token *t = &tiny()->vocabulary.token[r.id[i]];
        if (!t->control) mm3_buf_add(&want, tiny()->vocabulary.text.data + t->start, t->n_bytes);
    }
    FUZZ_CHECK(mm3_tokenizer_decode(tiny(), r.id, r.n, false, &text, &n) == MM3_OK, "%s", mm3_last_error());
    FUZZ_CHECK(is_equal(&want, text, n), "decoded without controls it is '%s'", text);
    check_decoder(r, false, text, n);
    mm3_free(text);
    mm3_buf_free(&want);
}

static void check(const char *text, size_t n, bool special)
{
    ids r = encode(text, n, special), again;
    mm3_buf nfc = { 0 }, nfc_of_nfc = { 0 };
    char *back;
    size_t n_back;
    FUZZ_CHECK(mm3_tokenizer_decode(tiny(), r.id, r.n, true, &back, &n_back) == MM3_OK, "%s", mm3_last_error());
    FUZZ_CHECK(back[n_back] == 0, "no NUL at the end");
    normalize(&nfc, text, n);
    /* Between control tokens each part is normalized by itself. */
    normalize(&nfc_of_nfc, special ? back : nfc.data, special ? n_back : nfc.n);
    FUZZ_CHECK(is_equal(&nfc_of_nfc, nfc.data, nfc.n), "ids decode to '%s'", back);
    FUZZ_CHECK(special || is_equal(&nfc, back, n_back), "ids decode to '%s'", back);
    again = encode(back, n_back, special);
    FUZZ_CHECK(again.n == r.n && memcmp(again.id, r.id, (size_t)r.n * sizeof *r.id) == 0,
               "what was decoded encodes to other ids: '%s'", back);
    check_decoder(r, true, back, n_back);
    check_without_controls(r);
    mm3_free(again.id);
    mm3_free(r.id);
    mm3_free(back);
    mm3_buf_free(&nfc);
    mm3_buf_free(&nfc_of_nfc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const mm3_tokenizer *t = tiny();
    long before = alloc_count();
    ids r;
    mm3_free(encode((const char *)data, n, true).id);
    if (fuzz_memory_fails(data, n, alloc_count() - before)) {
        fuzz_memory_failed(mm3_tokenizer_encode(t, (const char *)data, n, true, &r.id, &r.n), MM3_OK);
        mm3_free(r.id);
    }
    check((const char *)data, n, false);
    check((const char *)data, n, true);
    return 0;
}
