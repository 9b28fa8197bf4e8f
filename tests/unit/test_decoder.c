/* Ids to text: whole and piece by piece, with broken UTF-8 in between. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/**/
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/base.h"
#include "support/alloc_faults.h"
#include "support/tokenizer_file.h"

static mm3_tokenizer *bytes_only; /* id b is the byte b; 256 is "<s>", special; 257 is "<n>", not */
static uint64_t seed = 1;

static uint32_t random_below(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

/* An independent replacement: at each place the longest beginning of any real character is one U+FFFD. */
static void replace(const unsigned char *p, size_t n, mm3_buf *out)
{
    while (n > 0) {
        utf8proc_int32_t code;
        utf8proc_ssize_t want = utf8proc_iterate(p, (utf8proc_ssize_t)n, &code);
        if (want > 0) {
            if (*p)
                mm3_buf_add(out, p, (size_t)want);
            else
                mm3_buf_puts(out, "\xEF\xBF\xBD");
        } else {
            /* p[0..want) begins a character if some ending makes it one: fewest and most that an ending can be */
            for (want = (utf8proc_ssize_t)MM3_MIN(n, (size_t)3); want > 1; want--) {
                bool begins = false;
                for (int length = (int)want + 1; length <= 4 && !begins; length++)
                    for (int fill = 0x80; fill <= 0xBF && !begins; fill += 0x3F) {
                        unsigned char whole[4];
                        memset(whole, fill, sizeof whole);
                        memcpy(whole, p, (size_t)want);
                        begins = utf8proc_iterate(whole, length, &code) == length;
                    }
                if (begins) break;
            }
            mm3_buf_puts(out, "\xEF\xBF\xBD");
        }
        p += want;
        n -= (size_t)want;
    }
}

static void assert_whole_utf8(const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    utf8proc_ssize_t n = (utf8proc_ssize_t)strlen(text);
    while (n > 0) {
        utf8proc_int32_t code;
        utf8proc_ssize_t want = utf8proc_iterate(p, n, &code);
        assert_true(want > 0);
        p += want;
        n -= want;
    }
}

/* Push the ids one by one and flush; the joined text. */
static char *decode_in_pieces(mm3_decoder *d, const int32_t *ids, int n)
{
    mm3_buf joined = { 0 };
    const char *text;
    char *out;
    for (int i = 0; i < n; i++) {
        assert_int_equal(mm3_decoder_push(d, ids[i], &text), MM3_OK);
        assert_whole_utf8(text);
        mm3_buf_puts(&joined, text);
    }
    assert_int_equal(mm3_decoder_flush(d, &text), MM3_OK);
    assert_whole_utf8(text);
    mm3_buf_puts(&joined, text);
    assert_int_equal(mm3_buf_take(&joined, &out, NULL), MM3_OK);
    return out;
}

static void check_list(const mm3_tokenizer *t, mm3_decoder *d, const int32_t *ids, int n, bool special)
{
    mm3_buf expected = { 0 };
    char *whole, *pieces = decode_in_pieces(d, ids, n);
    size_t n_whole;
    assert_int_equal(mm3_tokenizer_decode(t, ids, n, special, &whole, &n_whole), MM3_OK);
    assert_int_equal(whole[n_whole], 0);
    mm3_buf_puts(&expected, "");
    replace((const unsigned char *)whole, n_whole, &expected);
    assert_string_equal(pieces, expected.data);
    mm3_buf_free(&expected);
    mm3_free(whole);
    mm3_free(pieces);
}

static void random_lists(void **state)
{
    mm3_tokenizer *tiny;
    mm3_decoder *d[2][2];
    (void)state;
    assert_int_equal(mm3_tokenizer_open(&tiny, "models/tiny-m3"), MM3_OK);
    for (int special = 0; special < 2; special++) {
        assert_int_equal(mm3_decoder_open(&d[0][special], tiny, special), MM3_OK);
        assert_int_equal(mm3_decoder_open(&d[1][special], bytes_only, special), MM3_OK);
    }
    for (int i = 0; i < 20000; i++) {
        int32_t ids[24];
        int n = (int)random_below(24) + 1, which = i & 1, special = i >> 1 & 1;
        const mm3_tokenizer *t = which ? bytes_only : tiny;
        for (int k = 0; k < n; k++) ids[k] = (int32_t)random_below((uint32_t)mm3_tokenizer_size(t));
        if (which) /* mostly bytes that begin or continue a sequence */
            for (int k = 0; k < n; k++)
                if (random_below(4))
                    ids[k] = (int32_t)(random_below(2) ? 0x80 + random_below(64) : 0xC0 + random_below(64));
        check_list(t, d[which][special], ids, n, special);
    }
    for (int special = 0; special < 2; special++) {
        mm3_decoder_close(&d[0][special]);
        mm3_decoder_close(&d[1][special]);
    }
    mm3_tokenizer_close(&tiny);
}

/* The Unicode standard's own examples (tables 3-8 to 3-11), and NUL. */
static void replacement_vectors(void **state)
{
    static const struct {
        const char *bytes, *text;
        int n;
    } vector[] = {
        { "\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", "????????A", 9 },
        { "\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", "????????A", 9 },
        { "\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", "?????A??B", 9 },
        { "\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", "????A", 9 },
        { "\xE4\xB8", "?", 2 },
        { "a\0b", "a?b", 3 },
        { "\xE4\x00\xB8", "???", 3 },
    };
    mm3_decoder *d;
    (void)state;
    assert_int_equal(mm3_decoder_open(&d, bytes_only, true), MM3_OK);
    for (int i = 0; i < MM3_COUNT(vector); i++) {
        int32_t ids[16];
        mm3_buf expected = { 0 };
        char *got;
        for (int k = 0; k < vector[i].n; k++) ids[k] = (unsigned char)vector[i].bytes[k];
        for (const char *p = vector[i].text; *p; p++)
            mm3_buf_add(&expected, *p == '?' ? "\xEF\xBF\xBD" : p, *p == '?' ? 3 : 1);
        got = decode_in_pieces(d, ids, vector[i].n);
        assert_string_equal(got, expected.data);
        mm3_free(got);
        mm3_buf_free(&expected);
    }
    mm3_decoder_close(&d);
    assert_null(d);
    mm3_decoder_close(&d);
    mm3_decoder_close(NULL);
}

static void text_comes_when_it_is_complete(void **state)
{
    mm3_decoder *d;
    const char *text;
    (void)state;
    assert_int_equal(mm3_decoder_open(&d, bytes_only, false), MM3_OK);
    assert_int_equal(mm3_decoder_push(d, 0xE4, &text), MM3_OK);
    assert_string_equal(text, "");
    assert_int_equal(mm3_decoder_push(d, 0xB8, &text), MM3_OK);
    assert_string_equal(text, "");
    /* A wrong id changes nothing. */
    assert_int_equal(mm3_decoder_push(d, 258, &text), MM3_ERR_ARG);
    assert_string_equal(text, "");
    assert_non_null(strstr(mm3_last_error(), "258"));
    assert_int_equal(mm3_decoder_push(d, -1, &text), MM3_ERR_ARG);
    /* Nor does a special token that is not shown. */
    assert_int_equal(mm3_decoder_push(d, 256, &text), MM3_OK);
    assert_string_equal(text, "");
    assert_int_equal(mm3_decoder_push(d, 0xAD, &text), MM3_OK);
    assert_string_equal(text, "\xE4\xB8\xAD");
    assert_int_equal(mm3_decoder_flush(d, &text), MM3_OK);
    assert_string_equal(text, "");
    /* After a flush the decoder is as new. */
    assert_int_equal(mm3_decoder_push(d, 0xE4, &text), MM3_OK);
    assert_int_equal(mm3_decoder_flush(d, &text), MM3_OK);
    assert_string_equal(text, "\xEF\xBF\xBD");
    assert_int_equal(mm3_decoder_push(d, 0xB8, &text), MM3_OK);
    assert_string_equal(text, "\xEF\xBF\xBD");
    mm3_decoder_close(&d);
}

static void special_tokens(void **state)
{
    static const int32_t ids[] = { 'a', 256, 'b', 257, 256 };
    char *text;
    size_t n;
    (void)state;
    assert_int_equal(mm3_tokenizer_decode(bytes_only, ids, 5, true, &text, &n), MM3_OK);
    assert_string_equal(text, "a<s>b<n><s>");
    assert_int_equal(n, 11);
    mm3_free(text);
    assert_int_equal(mm3_tokenizer_decode(bytes_only, ids, 5, false, &text, NULL), MM3_OK);
    assert_string_equal(text, "ab<n>");
    mm3_free(text);
    assert_int_equal(mm3_tokenizer_decode(bytes_only, NULL, 0, true, &text, &n), MM3_OK);
    assert_string_equal(text, "");
    assert_int_equal(n, 0);
    mm3_free(text);
    assert_int_equal(mm3_tokenizer_decode(bytes_only, (const int32_t[]){ 'a', 258 }, 2, true, &text, &n), MM3_ERR_ARG);
    assert_null(text);
    assert_int_equal(mm3_tokenizer_decode(bytes_only, (const int32_t[]){ INT32_MIN }, 1, true, &text, &n), MM3_ERR_ARG);
    assert_int_equal(mm3_tokenizer_size(bytes_only), 258);
}

/* An id that failed for want of memory can be pushed again. */
static void out_of_memory(void **state)
{
    static const int32_t ids[] = { 'a', 0xE4, 0xB8, 0xAD, 0xFF };
    int n_failed = 0;
    (void)state;
    for (long k = 1; k <= 3; k++) {
        mm3_decoder *d;
        char joined[64] = "";
        const char *text;
        alloc_fail_at(k);
        if (mm3_decoder_open(&d, bytes_only, true) != MM3_OK) {
            assert_null(d);
            n_failed++;
            continue;
        }
        for (int i = 0; i < MM3_COUNT(ids); i++) {
            mm3_status st = mm3_decoder_push(d, ids[i], &text);
            if (st != MM3_OK) {
                assert_int_equal(st, MM3_ERR_NOMEM);
                assert_string_equal(text, "");
                assert_int_equal(mm3_decoder_push(d, ids[i], &text), MM3_OK);
                n_failed++;
            }
            strcat(joined, text);
        }
        alloc_fail_at(0);
        assert_string_equal(joined, "a\xE4\xB8\xAD\xEF\xBF\xBD");
        mm3_decoder_close(&d);
    }
    assert_int_equal(n_failed, 2); /* the decoder itself, and its text */
}

static int setup(void **state)
{
    json_t *root = small_tokenizer(NULL, 0);
    (void)state;
    write_tokenizer(root);
    json_decref(root);
    return mm3_tokenizer_open(&bytes_only, model_dir()) == MM3_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    mm3_tokenizer_close(&bytes_only);
    remove_model_dir();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_lists),
        cmocka_unit_test(replacement_vectors),
        cmocka_unit_test(text_comes_when_it_is_complete),
        cmocka_unit_test(special_tokens),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
