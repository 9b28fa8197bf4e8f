/* fuzz: JSON, as files are read and as the chat form reads and writes it. Input: a JSON text.
 * Properties: what is accepted is JSON, by either reader; what jansson accepts is accepted, and means the same; what
 * was written can be read again, and is then written the same. */
#include "fuzz/fuzz.h"
#include "text/chat.h"

static void write_value(mm3_buf *b, const json_t *v)
{
    mm3__json_write(b, v);
    FUZZ_CHECK(!b->failed, "out of memory");
    FUZZ_CHECK(fuzz_is_json(b->data, b->n), "what was written is no JSON: %s", b->data);
}

static void check_jansson(const char *text, size_t n, size_t flags, const mm3_buf *written)
{
    json_error_t e;
    json_t *v = json_loadb(text, n, flags | JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    mm3_buf b = { 0 };
    if (!v) return;
    if (!written) { /* the mark that large integers get inside mm3 is refused where it could be taken for one */
        FUZZ_CHECK(memmem(text, n, "\xEF\xB7\x90", 3) || strcasestr(text, "\\ufdd0") || memchr(text, 0, n),
                   "jansson accepts it: %s", text);
    } else {
        json_t *again = json_loadb(written->data, written->n, flags | JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
        FUZZ_CHECK(again && json_equal(v, again), "it does not mean %s", written->data);
        json_decref(again);
        mm3__json_write(&b, v);
        FUZZ_CHECK(b.n == written->n && memcmp(b.data, written->data, b.n) == 0, "it means %s, not %s", b.data,
                   written->data);
    }
    mm3_buf_free(&b);
    json_decref(v);
}

static void check(const char *text, size_t n, size_t flags)
{
    json_error_t e;
    json_t *v, *again;
    mm3_buf first = { 0 }, second = { 0 };
    mm3_status st = mm3__json_load(&v, text, n, flags, &e);
    if (st != MM3_OK) {
        FUZZ_CHECK(st == MM3_ERR_ARG && !v && *e.text, "%s: %s", mm3_status_name(st), e.text);
        check_jansson(text, n, flags, NULL);
        return;
    }
    FUZZ_CHECK(fuzz_is_json(text, n), "it is no JSON: %s", text);
    write_value(&first, v);
    check_jansson(text, n, flags, &first);
    FUZZ_CHECK(mm3__json_load(&again, first.data, first.n, JSON_REJECT_DUPLICATES, &e) == MM3_OK, "%s: %s", e.text,
               first.data);
    write_value(&second, again);
    FUZZ_CHECK(first.n == second.n && memcmp(first.data, second.data, first.n) == 0, "written %s, then %s", first.data,
               second.data);
    mm3_buf_free(&first);
    mm3_buf_free(&second);
    json_decref(again);
    json_decref(v);
}

/* The reader of files. */
static void check_strict(const char *text, size_t n)
{
    json_t *v;
    mm3_status st;
    fuzz_forget_error();
    st = mm3_json_parse(&v, text, n, "x.json");
    if (st == MM3_OK) {
        FUZZ_CHECK(fuzz_is_json(text, n), "it is no JSON: %s", text);
        json_decref(v);
    } else {
        fuzz_error(st, "x.json");
        FUZZ_CHECK(st == MM3_ERR_FORMAT && !v, "%s", mm3_status_name(st));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    mm3_buf text = { 0 };
    mm3_buf_add(&text, data, n);
    check_strict(text.data, text.n);
    check(text.data, text.n, 0);
    check(text.data, text.n, JSON_REJECT_DUPLICATES);
    mm3_buf_free(&text);
    return 0;
}
