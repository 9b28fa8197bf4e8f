/* fuzz: tokenizer.json. Input: its text, in which the first '`' stands for the 256 byte tokens ("!":0,...), so that an
 * input that loads is short.
 * Properties: what is accepted encodes and decodes: each added token to its id, text to a part of its NFC (all of it,
 * where no split drops anything) and never to a control token; the same JSON otherwise written gives the same ids. */
#include <stdlib.h>

#include "fuzz/fuzz.h"
#include "support/alloc_faults.h"
#include "text/tokenizer.h"

static const char file[] = "tokenizer.json";

/* "name":id of each byte, by GPT-2's map: printable characters of Latin-1 are themselves, others U+0100 and up. */
static void add_byte_tokens(mm3_buf *out)
{
    int next = 256;
    for (int b = 0; b < 256; b++) {
        int code = (b > 0x20 && b < 0x7F) || (b > 0xA0 && b != 0xAD) ? b : next++;
        mm3_buf_puts(out, b ? ",\"" : "\"");
        if (code == '"' || code == '\\') mm3_buf_puts(out, "\\");
        mm3__utf8_put(out, code);
        mm3_buf_printf(out, "\":%d", b);
    }
}

static void expand(mm3_buf *out, const uint8_t *data, size_t n)
{
    const uint8_t *mark = n ? memchr(data, '`', n) : NULL;
    size_t before = mark ? (size_t)(mark - data) : n;
    mm3_buf_add(out, data, before);
    if (!mark) return;
    add_byte_tokens(out);
    mm3_buf_add(out, mark + 1, n - before - 1);
}

typedef struct ids {
    int32_t *id;
    int n;
} ids;

/* .id NULL: the pattern takes too many steps on the text. */
static ids encode(const mm3_tokenizer *t, const char *text, size_t n, bool special)
{
    ids r;
    mm3_status st;
    fuzz_forget_error();
    st = mm3_tokenizer_encode(t, text, n, special, &r.id, &r.n);
    if (st != MM3_OK) {
        fuzz_error(st, "cannot split");
        FUZZ_CHECK(st == MM3_ERR_ARG && !r.id && r.n == 0, "%s", mm3_status_name(st));
    }
    return r;
}

static bool keeps_all(const mm3_tokenizer *t)
{
    for (int i = 0; i < t->pretokenizer.n; i++)
        if (!t->pretokenizer.split[i].keep_match || !t->pretokenizer.split[i].keep_gap) return false;
    return true;
}

static void check_text(const mm3_tokenizer *t, const char *text, size_t n)
{
    ids r = encode(t, text, n, false);
    mm3_buf nfc = { 0 };
    bool same = true;
    char *back;
    size_t n_back;
    if (!r.id) return;
    for (int i = 0; i < r.n; i++)
        FUZZ_CHECK(r.id[i] >= 0 && r.id[i] < t->vocabulary.n && !t->vocabulary.token[r.id[i]].control,
                   "plain text became token %d", (int)r.id[i]);
    FUZZ_CHECK(mm3_tokenizer_decode(t, r.id, r.n, true, &back, &n_back) == MM3_OK, "%s", mm3_last_error());
    if (t->nfc) FUZZ_CHECK(mm3__nfc(&nfc, (const unsigned char *)text, n, &same) == MM3_OK, "%s", mm3_last_error());
    if (same) mm3_buf_add(&nfc, text, n);
    FUZZ_CHECK(fuzz_is_subsequence(back, n_back, nfc.data, nfc.n), "'%.*s' became '%s'", (int)n, text, back);
    FUZZ_CHECK(!keeps_all(t) || n_back == nfc.n, "'%.*s' became '%s'", (int)n, text, back);
    mm3_free(back);
    mm3_free(r.id);
    mm3_buf_free(&nfc);
}

static bool begins_another(const json_t *list, const char *content)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *other = json_string_value(json_object_get(json_array_get(list, i), "content"));
        if (strlen(other) > strlen(content) && strncmp(other, content, strlen(content)) == 0) return true;
    }
    return false;
}

/* A token that is found before normalization does not compose with the mark behind it. */
static void check_raw(const mm3_tokenizer *t, const json_t *list, const char *content, int32_t id)
{
    mm3_buf text = { 0 };
    ids r;
    if (begins_another(list, content)) return;
    mm3_buf_printf(&text, "%s\xCC\xB8", content);
    r = encode(t, text.data, text.n, true);
    FUZZ_CHECK(!r.id || (r.n >= 1 && r.id[0] == id),
               "added token '%s' with a mark behind it became %d ids, the first is %d", content, r.n,
               r.n ? (int)r.id[0] : -1);
    mm3_free(r.id);
    mm3_buf_free(&text);
}

static void check_added(const mm3_tokenizer *t, const json_t *root)
{
    const json_t *list = json_object_get(root, "added_tokens");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const char *content = json_string_value(json_object_get(entry, "content"));
        int32_t id = (int32_t)json_number_value(json_object_get(entry, "id"));
        ids r = encode(t, content, strlen(content), true);
        char *back;
        size_t n_back;
        /* A token that is found after normalization may hold one that is found before. */
        FUZZ_CHECK(json_is_true(json_object_get(entry, "normalized")) || (r.n == 1 && r.id[0] == id),
                   "added token '%s' became %d ids, the first is %d, not %d", content, r.n, r.n ? (int)r.id[0] : -1,
                   (int)id);
        if (!json_is_true(json_object_get(entry, "normalized"))) check_raw(t, list, content, id);
        FUZZ_CHECK(mm3_tokenizer_decode(t, &id, 1, true, &back, &n_back) == MM3_OK, "%s", mm3_last_error());
        FUZZ_CHECK(strcmp(back, content) == 0, "added token '%s' (%d) decodes to '%s'", content, (int)id, back);
        mm3_free(back);
        mm3_free(r.id);
    }
}

static const char sample[] =
    "In the  beginning\r\n\t 'twas IT's 12345 e\xCC\x81\xCC\x87 \xE6\x97\xA5\xE6\x9C\xAC ab<s>abc "
    "<n>aab\xFF\xC3(\xE1\x84\x80\xE1\x85\xA1)  ";

static void check_rewritten(const mm3_tokenizer *t, const json_t *root)
{
    char *text = json_dumps(root, JSON_INDENT(1) | JSON_ENSURE_ASCII | JSON_SORT_KEYS);
    mm3_tokenizer *again = NULL;
    ids a, b;
    FUZZ_CHECK(text, "cannot be written");
    FUZZ_CHECK(mm3__tokenizer_parse(&again, text, strlen(text), file) == MM3_OK, "otherwise written: %s",
               mm3_last_error());
    FUZZ_CHECK(again->vocabulary.n == t->vocabulary.n, "otherwise written: %d ids", again->vocabulary.n);
    a = encode(t, sample, sizeof sample - 1, true);
    b = encode(again, sample, sizeof sample - 1, true);
    FUZZ_CHECK(a.n == b.n && (a.n == 0 || memcmp(a.id, b.id, (size_t)a.n * sizeof *a.id) == 0),
               "otherwise written: other ids");
    mm3_free(a.id);
    mm3_free(b.id);
    mm3_tokenizer_close(&again);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    mm3_buf text = { 0 };
    mm3_tokenizer *t = NULL;
    long before = alloc_count(), n_allocations;
    mm3_status st;
    expand(&text, data, n);
    fuzz_forget_error();
    st = mm3__tokenizer_parse(&t, text.data, text.n, file);
    n_allocations = alloc_count() - before;
    if (st != MM3_OK) {
        fuzz_error(st, file);
        FUZZ_CHECK((st == MM3_ERR_FORMAT || st == MM3_ERR_UNSUPPORTED) && !t, "%s", mm3_status_name(st));
    } else {
        json_t *root;
        FUZZ_CHECK(mm3_json_parse(&root, text.data, text.n, file) == MM3_OK, "%s", mm3_last_error());
        FUZZ_CHECK(mm3_tokenizer_size(t) >= 256, "%d ids", mm3_tokenizer_size(t));
        check_text(t, sample, sizeof sample - 1);
        check_text(t, text.data, MM3_MIN(text.n, (size_t)256));
        check_added(t, root);
        if (fuzz_hash(data, n) % 4 == 0) check_rewritten(t, root);
        json_decref(root);
        mm3_tokenizer_close(&t);
    }
    if (fuzz_memory_fails(data, n, n_allocations)) {
        mm3_status again = mm3__tokenizer_parse(&t, text.data, text.n, file);
        fuzz_memory_failed(again, st);
        mm3_tokenizer_close(&t);
    }
    mm3_buf_free(&text);
    return 0;
}
