/* mm3_tokenizer_encode: added tokens out of the raw text, NFC of what lies between, pieces, merges.
 * Owns the state of one call; the tokenizer itself is only read. Read next: pretokenize.c, bpe.c. */
#include <string.h>

#include "text/tokenizer.h"

static void encoder_free(mm3__encoder *e)
{
    mm3_free(e->ids);
    mm3_free(e->symbol);
    mm3_free(e->heap);
    mm3_free(e->seen);
    pcre2_match_data_free(e->match);
    pcre2_match_context_free(e->context);
}

static mm3_status encoder_make(mm3__encoder *e, const mm3_tokenizer *t, size_t n_bytes)
{
    pcre2_general_context *memory = mm3__pcre2_memory();
    uint32_t n_seen = 64;
    while (n_seen < 32768 && n_seen < n_bytes / 4) n_seen *= 2;
    *e = (mm3__encoder){ .tokenizer = t, .seen_mask = n_seen - 1 };
    e->seen = mm3_calloc(n_seen, sizeof *e->seen);
    e->match = memory ? pcre2_match_data_create(1, memory) : NULL;
    e->context = memory ? pcre2_match_context_create(memory) : NULL;
    pcre2_general_context_free(memory);
    MM3_CHECK(e->seen && e->match && e->context, MM3_ERR_NOMEM, "out of memory to encode a text");
    /* Enough for any pattern that needs a fixed number of steps per byte, even if the text is a single word. */
    pcre2_set_match_limit(e->context, (uint32_t)MM3_MIN((size_t)10000000 + 64 * n_bytes, (size_t)UINT32_MAX));
    return MM3_OK;
}

/* Text without added tokens, normalized. Bytes that are no UTF-8 are pieces of their own, run by run. */
static mm3_status encode_runs(mm3__encoder *e, const unsigned char *text, size_t n)
{
    for (size_t at = 0, n_run; at < n; at += n_run) {
        bool valid;
        n_run = mm3__utf8_run(text + at, n - at, &valid);
        MM3_TRY(valid ? mm3__pretokenize(e, text + at, n_run) : mm3__bpe(e, text + at, n_run));
    }
    return MM3_OK;
}

typedef mm3_status encode_between(mm3__encoder *e, bool special, const unsigned char *text, size_t n);

/* Emit the added tokens that m finds, and hand what lies between them to `between`. */
static mm3_status encode_added(mm3__encoder *e, const mm3__matcher *m, bool special, const unsigned char *text,
                               size_t n, encode_between *between)
{
    size_t at = 0;
    while (at < n) {
        size_t begin = n, end = n;
        int32_t id = special ? mm3__matcher_find(m, text, n, at, &begin, &end) : -1;
        if (begin > at) MM3_TRY(between(e, special, text + at, begin - at));
        if (id >= 0) MM3_TRY(mm3__emit(e, id));
        at = end;
    }
    return MM3_OK;
}

static mm3_status encode_plain(mm3__encoder *e, bool special, const unsigned char *text, size_t n)
{
    (void)special;
    return encode_runs(e, text, n);
}

static mm3_status encode_ordinary(mm3__encoder *e, bool special, const unsigned char *text, size_t n)
{
    mm3_status st = MM3_OK;
    mm3_buf normal = { 0 };
    bool same = true;
    if (e->tokenizer->nfc) MM3_GOTO(mm3__nfc(&normal, text, n, &same));
    st = encode_added(e, &e->tokenizer->normalized, special, same ? text : (const unsigned char *)normal.data,
                      same ? n : normal.n, encode_plain);
done:
    mm3_buf_free(&normal);
    return st;
}

mm3_status mm3_tokenizer_encode(const mm3_tokenizer *tokenizer, const char *text, size_t n_bytes, bool special,
                                int32_t **ids, int *n_ids)
{
    mm3_status st = MM3_OK;
    mm3__encoder e = { 0 };
    *ids = NULL;
    *n_ids = 0;
    MM3_CHECK(n_bytes <= INT32_MAX, MM3_ERR_ARG, "a text of %zu bytes; expected at most %d", n_bytes, INT32_MAX);
    MM3_GOTO(encoder_make(&e, tokenizer, n_bytes));
    MM3_GOTO(mm3__emit(&e, 0)); /* so that there is an array even for no text */
    e.n_ids = 0;
    MM3_GOTO(encode_added(&e, &tokenizer->raw, special, (const unsigned char *)text, n_bytes, encode_ordinary));
    *ids = e.ids;
    *n_ids = e.n_ids;
    e.ids = NULL;
done:
    encoder_free(&e);
    return st;
}
