/* Ids to bytes: mm3_tokenizer_decode (exact), and mm3_decoder, which gives text as it becomes certain.
 * Knows the vocabulary's bytes and UTF-8, nothing of how text became ids. */
#include <string.h>

#include "text/tokenizer.h"

/* The bytes of an id; none for a control token without `special`. */
static mm3_status bytes_of_id(const mm3_tokenizer *t, int32_t id, bool special, const unsigned char **bytes, size_t *n)
{
    const mm3__token *token;
    *bytes = NULL;
    *n = 0;
    MM3_CHECK(id >= 0 && id < t->vocabulary.n, MM3_ERR_ARG, "token id %d has no text; the tokenizer has ids 0 to %d",
              id, t->vocabulary.n - 1);
    token = &t->vocabulary.token[id];
    *bytes = (const unsigned char *)t->vocabulary.text.data + token->start;
    *n = token->control && !special ? 0 : token->n_bytes;
    return MM3_OK;
}

mm3_status mm3_tokenizer_decode(const mm3_tokenizer *tokenizer, const int32_t *ids, int n_ids, bool special,
                                char **text, size_t *n_bytes)
{
    mm3_buf b = { 0 };
    *text = NULL;
    if (n_bytes) *n_bytes = 0;
    for (int i = 0; i < n_ids; i++) {
        const unsigned char *bytes;
        size_t n;
        mm3_status st = bytes_of_id(tokenizer, ids[i], special, &bytes, &n);
        if (st != MM3_OK) {
            mm3_buf_free(&b);
            return st;
        }
        mm3_buf_add(&b, bytes, n);
    }
    return mm3_buf_take(&b, text, n_bytes);
}

/* ---- piece by piece ---------------------------------------------------------------------------------------------- */

struct mm3_decoder {
    const mm3_tokenizer *tokenizer; /* borrowed */
    bool special;
    unsigned char pending[4]; /* the beginning of a sequence */
    int n_pending;
    mm3_buf text; /* owned; what the last call gave */
};

mm3_status mm3_decoder_open(mm3_decoder **out, const mm3_tokenizer *tokenizer, bool special)
{
    mm3_decoder *d = mm3_calloc(1, sizeof *d);
    *out = d;
    MM3_CHECK(d, MM3_ERR_NOMEM, "out of memory for a decoder");
    d->tokenizer = tokenizer;
    d->special = special;
    return MM3_OK;
}

void mm3_decoder_close(mm3_decoder **decoder)
{
    if (!decoder || !*decoder) return;
    mm3_buf_free(&(*decoder)->text);
    mm3_free(*decoder);
    *decoder = NULL;
}

static void put_replacement(mm3_buf *b) { mm3_buf_puts(b, "\xEF\xBF\xBD"); }

/* Each longest beginning of a sequence that is not continued becomes one U+FFFD, as does each other stray byte: the
 * practice that Unicode recommends (and Python and Rust follow). So does NUL, which would end a C string. */
static void put_byte(unsigned char pending[4], int *n_pending, mm3_buf *text, unsigned char byte)
{
    int want;
    pending[(*n_pending)++] = byte;
    want = mm3__utf8_want(pending, (size_t)*n_pending);
    if (want == 0 && *n_pending > 1) { /* the byte does not continue what was there: it begins anew */
        put_replacement(text);
        *n_pending = 1;
        pending[0] = byte;
        want = mm3__utf8_want(pending, 1);
    }
    if (want > *n_pending) return;
    if (want == 0 || byte == 0)
        put_replacement(text);
    else
        mm3_buf_add(text, pending, (size_t)*n_pending);
    *n_pending = 0;
}

static mm3_status give(mm3_decoder *d, const char **text)
{
    mm3_buf_add(&d->text, "", 0);
    if (d->text.failed) {
        mm3_buf_free(&d->text);
        return mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for text");
    }
    *text = d->text.data;
    return MM3_OK;
}

mm3_status mm3_decoder_push(mm3_decoder *decoder, int32_t id, const char **text)
{
    const unsigned char *bytes;
    unsigned char pending[4];
    int n_pending = decoder->n_pending;
    size_t n;
    *text = "";
    MM3_TRY(bytes_of_id(decoder->tokenizer, id, decoder->special, &bytes, &n));
    memcpy(pending, decoder->pending, sizeof pending);
    mm3_buf_clear(&decoder->text);
    for (size_t i = 0; i < n; i++) put_byte(pending, &n_pending, &decoder->text, bytes[i]);
    MM3_TRY(give(decoder, text));
    memcpy(decoder->pending, pending, sizeof pending); /* only now: after an error the id can be pushed again */
    decoder->n_pending = n_pending;
    return MM3_OK;
}

mm3_status mm3_decoder_flush(mm3_decoder *decoder, const char **text)
{
    *text = "";
    mm3_buf_clear(&decoder->text);
    if (decoder->n_pending > 0) put_replacement(&decoder->text);
    MM3_TRY(give(decoder, text));
    decoder->n_pending = 0;
    return MM3_OK;
}
