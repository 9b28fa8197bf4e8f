/* Text to ids: against the reference's goldens, round trips, control tokens, broken UTF-8, long words. */
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

static mm3_tokenizer *tiny;
static uint64_t seed = 7;

static uint32_t random_below(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

static mm3_tokenizer *open_json(json_t *root)
{
    mm3_tokenizer *t = NULL;
    write_tokenizer(root);
    json_decref(root);
    if (mm3_tokenizer_open(&t, model_dir()) != MM3_OK) fail_msg("%s", mm3_last_error());
    return t;
}

static void assert_ids(const mm3_tokenizer *t, const char *text, size_t n, bool special, const int32_t *ids, int n_ids)
{
    int32_t *got;
    int n_got;
    assert_int_equal(mm3_tokenizer_encode(t, text, n, special, &got, &n_got), MM3_OK);
    assert_non_null(got);
    assert_int_equal(n_got, n_ids);
    if (n_ids) assert_memory_equal(got, ids, (size_t)n_ids * sizeof *ids);
    mm3_free(got);
}

/* decode(encode(text)) is these bytes. Returns the number of ids. */
static int assert_round_trip(const mm3_tokenizer *t, const void *text, size_t n, bool special, const void *bytes,
                             size_t n_bytes)
{
    int32_t *ids;
    int n_ids;
    char *back;
    size_t n_back;
    if (mm3_tokenizer_encode(t, text, n, special, &ids, &n_ids) != MM3_OK) fail_msg("%s", mm3_last_error());
    assert_int_equal(mm3_tokenizer_decode(t, ids, n_ids, true, &back, &n_back), MM3_OK);
    assert_int_equal(n_back, n_bytes);
    assert_memory_equal(back, bytes, n_bytes);
    mm3_free(ids);
    mm3_free(back);
    return n_ids;
}

/* ---- goldens ----------------------------------------------------------------------------------------------------- */

static void assert_case(const mm3_tokenizer *t, const json_t *text, const json_t *ids, const char *name)
{
    int32_t *got;
    int n_got;
    assert_int_equal(mm3_tokenizer_encode(t, json_string_value(text), json_string_length(text), true, &got, &n_got),
                     MM3_OK);
    if ((size_t)n_got != json_array_size(ids))
        fail_msg("%s: %d ids for %s", name, n_got, json_dumps(text, JSON_ENCODE_ANY));
    for (int i = 0; i < n_got; i++)
        if (got[i] != json_integer_value(json_array_get(ids, (size_t)i)))
            fail_msg("%s: id %d is %d for %s", name, i, got[i], json_dumps(text, JSON_ENCODE_ANY));
    mm3_free(got);
}

static json_t *load_golden(const char *path)
{
    json_error_t e;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &e); /* some texts hold NUL */
    if (!root) fail_msg("%s: %s", path, e.text);
    return root;
}

static void golden_of_tiny_m3(void **state)
{
    json_t *root = load_golden("tests/golden/tokenizer-tiny-m3.json");
    (void)state;
    assert_int_equal(json_array_size(root), 103);
    for (size_t i = 0; i < json_array_size(root); i++) {
        const json_t *c = json_array_get(root, i);
        assert_case(tiny, json_object_get(c, "text"), json_object_get(c, "ids"), "tiny-m3");
    }
    json_decref(root);
}

static void golden_of_variants(void **state)
{
    json_t *root = load_golden("tests/golden/tokenizer-variants.json"), *variants = json_object_get(root, "variants");
    (void)state;
    assert_int_equal(json_array_size(variants), 25);
    for (size_t i = 0; i < json_array_size(variants); i++) {
        const json_t *v = json_array_get(variants, i), *cases = json_object_get(v, "cases");
        const char *name = json_string_value(json_object_get(v, "name"));
        json_t *file = load_golden("models/tiny-m3/tokenizer.json"), *set = json_object_get(v, "set");
        mm3_tokenizer *t;
        if (json_object_get(set, "model")) {
            json_object_update(json_object_get(file, "model"), json_object_get(set, "model"));
            json_object_del(set, "model");
        }
        json_object_update(file, set);
        t = open_json(file);
        assert_true(json_array_size(cases) >= 55);
        for (size_t k = 0; k < json_array_size(cases); k++)
            assert_case(t, json_array_get(json_array_get(cases, k), 0), json_array_get(json_array_get(cases, k), 1),
                        name);
        mm3_tokenizer_close(&t);
    }
    json_decref(root);
}

/* ---- added tokens ------------------------------------------------------------------------------------------------ */

/* With `special` the text of an added token is its id; without, ordinary ids with the same bytes. Alone and in the
 * midst of random text. */
static void added_tokens(void **state)
{
    static const char *const word[] = {
        "G", " G", "  ", "\n", "the", "1", "]", "[", "<", "\xC4\xA0", "\xC3\xA9", "'s"
    };
    json_t *root = load_golden("models/tiny-m3/tokenizer.json"), *added = json_object_get(root, "added_tokens");
    int32_t first = (int32_t)json_object_size(json_object_get(json_object_get(root, "model"), "vocab"));
    (void)state;
    assert_int_equal(json_array_size(added), 61);
    assert_int_equal(mm3_tokenizer_size(tiny), first + 61);
    for (size_t i = 0; i < json_array_size(added); i++) {
        const char *text = json_string_value(json_object_get(json_array_get(added, i), "content"));
        int32_t id = (int32_t)json_integer_value(json_object_get(json_array_get(added, i), "id")), *ids;
        int n;
        assert_ids(tiny, text, strlen(text), true, &id, 1);
        assert_int_equal(mm3_tokenizer_encode(tiny, text, strlen(text), false, &ids, &n), MM3_OK);
        assert_true(n > 1);
        for (int k = 0; k < n; k++) assert_in_range(ids[k], 0, first - 1);
        mm3_free(ids);
        assert_round_trip(tiny, text, strlen(text), false, text, strlen(text));
    }
    for (int i = 0; i < 5000; i++) {
        mm3_buf b = { 0 };
        int32_t *ids;
        int n, n_added = 0, n_found = 0;
        for (int k = (int)random_below(8) + 1; k > 0; k--)
            if (random_below(2)) {
                mm3_buf_puts(&b,
                             json_string_value(json_object_get(json_array_get(added, random_below(61)), "content")));
                n_added++;
            } else
                mm3_buf_puts(&b, word[random_below(MM3_COUNT(word))]);
        assert_round_trip(tiny, b.data, b.n, true, b.data, b.n);
        assert_round_trip(tiny, b.data, b.n, false, b.data, b.n);
        assert_int_equal(mm3_tokenizer_encode(tiny, b.data, b.n, true, &ids, &n), MM3_OK);
        for (int k = 0; k < n; k++) n_found += ids[k] >= first;
        assert_true(n_added == 0 ? n_found == 0 : n_found >= 1);
        mm3_free(ids);
        assert_int_equal(mm3_tokenizer_encode(tiny, b.data, b.n, false, &ids, &n), MM3_OK);
        for (int k = 0; k < n; k++) assert_in_range(ids[k], 0, first - 1);
        mm3_free(ids);
        mm3_buf_free(&b);
    }
    json_decref(root);
}

/* Even where "vocab" lists a control token too, and merges or ignore_merges would lead to it. */
static void control_tokens_in_the_vocabulary(void **state)
{
    static const char *const merges[] = { "< s", "<s >", "< n", "<n >" };
    json_t *root = small_tokenizer(merges, 4);
    mm3_tokenizer *t;
    (void)state;
    /* "<s>" is id 257, "<n>" 259; as added tokens they have the same ids. The merge to "<s>" must go. */
    assert_true(json_put(root, "added_tokens/0/id", "257"));
    assert_true(json_put(root, "added_tokens/1/id", "259"));
    write_tokenizer(root);
    assert_int_equal(mm3_tokenizer_open(&t, model_dir()), MM3_ERR_FORMAT);
    assert_non_null(strstr(mm3_last_error(), "merges[1]"));
    assert_true(json_put(root, "model/merges/1", NULL));
    assert_true(json_put(root, "model/ignore_merges", "true"));
    assert_true(json_put(root, "pre_tokenizer/use_regex", "false"));
    t = open_json(root);
    assert_int_equal(mm3_tokenizer_size(t), 260);
    assert_ids(t, "<s>", 3, true, (const int32_t[]){ 257 }, 1);
    assert_ids(t, "<s>", 3, false, (const int32_t[]){ 256, '>' }, 2);
    assert_ids(t, "<n>", 3, true, (const int32_t[]){ 259 }, 1);
    assert_ids(t, "<n>", 3, false, (const int32_t[]){ 259 }, 1); /* no control token: an ordinary one as well */
    mm3_tokenizer_close(&t);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static void any_bytes_round_trip(void **state)
{
    json_t *root = load_golden("models/tiny-m3/tokenizer.json");
    mm3_tokenizer *t;
    (void)state;
    assert_true(json_put(root, "normalizer", "null"));
    t = open_json(root);
    for (int i = 0; i < 20000; i++) {
        unsigned char bytes[80];
        size_t n = random_below(80);
        for (size_t k = 0; k < n; k++)
            bytes[k] = (unsigned char)(random_below(3)   ? random_below(256)
                                       : random_below(2) ? ' ' + random_below(64)
                                                         : 0xC0 + random_below(64));
        assert_round_trip(t, bytes, n, random_below(2), bytes, n);
    }
    mm3_tokenizer_close(&t);
}

/* The code points below mix compositions, exclusions, hangul, marks of many classes and singletons. */
static void text_round_trips_to_its_nfc(void **state)
{
    static const int range[][2] = { { 0, 0x24F },          { 0x300, 0x36F },     { 0x370, 0x4FF },
                                    { 0x591, 0x5C7 },      { 0x900, 0x97F },     { 0x1100, 0x11FF },
                                    { 0x1E00, 0x1FFF },    { 0x2120, 0x212F },   { 0x3040, 0x30FF },
                                    { 0xAC00, 0xAC40 },    { 0xF900, 0xFA10 },   { 0xFB1D, 0xFB4F },
                                    { 0x4E00, 0x4E20 },    { 0x1D150, 0x1D170 }, { 0x11080, 0x110BF },
                                    { 0x10FFF0, 0x10FFFF } };
    (void)state;
    for (int i = 0; i < 20000; i++) {
        utf8proc_uint8_t text[256], *nfc;
        utf8proc_ssize_t n_nfc;
        size_t n = 0;
        uint32_t n_mark = random_below(2) ? 3 : 1; /* of 4 */
        for (int k = (int)random_below(40); k > 0; k--) {
            int r = random_below(4) < n_mark ? 1 : (int)random_below(MM3_COUNT(range));
            int code = range[r][0] + (int)random_below((uint32_t)(range[r][1] - range[r][0] + 1));
            n += (size_t)utf8proc_encode_char(code, text + n);
        }
        n_nfc = utf8proc_map(text, (utf8proc_ssize_t)n, &nfc, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        assert_true(n_nfc >= 0);
        assert_round_trip(tiny, text, n, false, nfc, (size_t)n_nfc);
        free(nfc);
    }
}

static void broken_utf8_is_a_piece_of_its_own(void **state)
{
    static const char text[] = "the\xFF\xFE\xC3"
                               "e\xCC\x81\xE4\xB8"
                               "\xCC\x81";
    int32_t *part, expected[64];
    int n_part, n = 0;
    static const struct {
        const char *bytes;
        size_t n;
    } run[] = { { "the", 3 }, { "\xFF\xFE\xC3", 3 }, { "\xC3\xA9", 2 }, { "\xE4\xB8", 2 }, { "\xCC\x81", 2 } };
    (void)state;
    for (int i = 0; i < MM3_COUNT(run); i++) {
        assert_int_equal(mm3_tokenizer_encode(tiny, run[i].bytes, run[i].n, false, &part, &n_part), MM3_OK);
        memcpy(expected + n, part, (size_t)n_part * sizeof *part);
        n += n_part;
        mm3_free(part);
    }
    assert_ids(tiny, text, sizeof text - 1, false, expected, n);
    assert_ids(tiny, "a\0b", 3, true, (const int32_t[]){ 64, 188, 65 }, 3);
    assert_ids(tiny, "", 0, true, NULL, 0);
    assert_ids(tiny, NULL, 0, false, NULL, 0);
}

static void too_long_a_text(void **state)
{
    int32_t *ids = (int32_t *)&seed;
    int n = 5;
    (void)state;
    assert_int_equal(mm3_tokenizer_encode(tiny, "x", (size_t)INT32_MAX + 1, true, &ids, &n), MM3_ERR_ARG);
    assert_null(ids);
    assert_int_equal(n, 0);
    assert_int_equal(mm3_tokenizer_encode(tiny, "x", SIZE_MAX, true, &ids, &n), MM3_ERR_ARG);
}

/* ---- merges ------------------------------------------------------------------------------------------------------ */

typedef struct word {
    char s[16];
} word;

static word join(const word *a, const word *b)
{
    word w = { "" };
    size_t n = strlen(a->s);
    assert_true(n + strlen(b->s) < sizeof w.s);
    memcpy(w.s, a->s, n);
    memcpy(w.s + n, b->s, strlen(b->s));
    return w;
}

/* The definition: while a merge applies, apply that of the lowest rank, at its leftmost place. */
static int merge_by_definition(word (*merge)[2], int n_merges, word *symbol, int n)
{
    for (;;) {
        int best = n_merges, at = 0;
        for (int i = 0; i + 1 < n; i++)
            for (int m = 0; m < best; m++)
                if (!strcmp(symbol[i].s, merge[m][0].s) && !strcmp(symbol[i + 1].s, merge[m][1].s)) {
                    best = m;
                    at = i;
                }
        if (best == n_merges) return n;
        symbol[at] = join(&symbol[at], &symbol[at + 1]);
        memmove(&symbol[at + 1], &symbol[at + 2], (size_t)(n - at - 2) * sizeof *symbol);
        n--;
    }
}

/* Random merges over three letters; tokens of up to 12. */
static mm3_tokenizer *open_random_merges(word (*merge)[2], int n_merges)
{
    word known[64] = { { "a" }, { "b" }, { "c" } };
    char spelled[64][40];
    const char *spelling[64];
    json_t *root;
    for (int n = 0; n < n_merges;) {
        bool repeats = false;
        merge[n][0] = known[random_below((uint32_t)n + 3)];
        merge[n][1] = known[random_below((uint32_t)n + 3)];
        for (int m = 0; m < n; m++)
            repeats |= !strcmp(merge[m][0].s, merge[n][0].s) && !strcmp(merge[m][1].s, merge[n][1].s);
        if (repeats || strlen(merge[n][0].s) + strlen(merge[n][1].s) > 12) continue;
        snprintf(spelled[n], sizeof spelled[n], "%s %s", merge[n][0].s, merge[n][1].s);
        spelling[n] = spelled[n];
        known[n + 3] = join(&merge[n][0], &merge[n][1]);
        n++;
    }
    root = small_tokenizer(spelling, n_merges);
    assert_true(json_put(root, "pre_tokenizer/use_regex", "false"));
    return open_json(root);
}

static void merges_follow_their_definition(void **state)
{
    enum { N_MERGES = 24, MAX_TEXT = 200 };
    (void)state;
    for (int round = 0; round < 60; round++) {
        word merge[N_MERGES][2];
        mm3_tokenizer *t = open_random_merges(merge, N_MERGES);
        for (int i = 0; i < 100; i++) {
            char text[MAX_TEXT];
            word symbol[MAX_TEXT] = { { "" } };
            int32_t *ids;
            int n = (int)random_below(MAX_TEXT) + 1, n_ids, n_symbols;
            uint32_t n_letters = 2 + random_below(2);
            for (int k = 0; k < n; k++) symbol[k].s[0] = text[k] = "abc"[random_below(n_letters)];
            n_symbols = merge_by_definition(merge, N_MERGES, symbol, n);
            assert_int_equal(mm3_tokenizer_encode(t, text, (size_t)n, false, &ids, &n_ids), MM3_OK);
            assert_int_equal(n_ids, n_symbols);
            for (int k = 0; k < n_ids; k++) {
                char *token;
                assert_int_equal(mm3_tokenizer_decode(t, &ids[k], 1, false, &token, NULL), MM3_OK);
                assert_string_equal(token, symbol[k].s);
                mm3_free(token);
            }
            mm3_free(ids);
        }
        mm3_tokenizer_close(&t);
    }
}

/* Words of 1 MB: quadratic code would take hours. */
static void long_words(void **state)
{
    static const char *const unit[] = {
        "a", "A", " ", "\n", "\xE4\xB8\xAD", "!", "\xCC\xA3\xCC\x81", "\xCC\x81\xCC\xA3", "1", "\xFF", "]", "\r\n"
    };
    size_t max = 1000000;
    char *text = malloc(max + 4), *nfc = malloc(max + 4);
    (void)state;
    assert_non_null(text);
    assert_non_null(nfc);
    for (int i = 0; i < MM3_COUNT(unit); i++) {
        size_t n = 0;
        while (n + strlen(unit[i]) <= max) {
            memcpy(text + n, unit[i], strlen(unit[i]));
            n += strlen(unit[i]);
        }
        memcpy(nfc, text, n);
        if (strlen(unit[i]) == 4) { /* marks in canonical order: all of the one below, then all of the one above */
            for (size_t k = 0; k < n; k += 2) memcpy(nfc + k, k < n / 2 ? "\xCC\xA3" : "\xCC\x81", 2);
        }
        assert_round_trip(tiny, text, n, true, nfc, n);
    }
    free(nfc);
    free(text);
}

/* ---- patterns that are hard on the matcher ----------------------------------------------------------------------- */

static mm3_tokenizer *open_with_pattern(const char *pattern)
{
    json_t *root = small_tokenizer(NULL, 0);
    json_object_set_new(root, "pre_tokenizer",
                        json_pack("{s:s,s:[{s:s,s:{s:s},s:s,s:b},{s:s,s:b,s:b,s:b}]}", "type", "Sequence",
                                  "pretokenizers", "type", "Split", "pattern", "Regex", pattern, "behavior", "Removed",
                                  "invert", 1, "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1,
                                  "use_regex", 0));
    return open_json(root);
}

static void deep_patterns(void **state)
{
    /* A group repeated 500 000 times, with a way back at each: more than the stack of compiled patterns holds. */
    mm3_tokenizer *t = open_with_pattern("(?:(?:a|ab)(?:b|c))+x|[ab]");
    size_t n = 1000000;
    char *text = malloc(n);
    int32_t *ids;
    int n_ids;
    (void)state;
    assert_non_null(text);
    for (size_t i = 0; i < n; i++) text[i] = "ab"[i & 1];
    text[n - 1] = 'x';
    text[n - 2] = 'c';
    text[n - 3] = 'b';
    text[n - 4] = 'a';
    assert_int_equal(assert_round_trip(t, text, n, false, text, n), (int)n);
    free(text);
    mm3_tokenizer_close(&t);
    /* Steps without end are an error, not a hang. */
    t = open_with_pattern("(?:a|a|aa)+c|[abc]");
    assert_int_equal(
        mm3_tokenizer_encode(t, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabc", 50, false, &ids, &n_ids),
        MM3_ERR_ARG);
    assert_non_null(strstr(mm3_last_error(), "limit"));
    assert_null(ids);
    mm3_tokenizer_close(&t);
}

/* The k-th allocation fails, for every k: an error and no leak, then success. */
static void out_of_memory(void **state)
{
    static const char text[] = "In the beginning <s> e\xCC\x81\xCC\xA3 \xFF God created";
    int32_t *ids;
    int n_ids;
    long k;
    mm3_tokenizer *t = open_json(small_tokenizer(NULL, 0));
    (void)state;
    for (k = 1;; k++) {
        mm3_status st;
        alloc_fail_at(k);
        st = mm3_tokenizer_encode(t, text, sizeof text - 1, true, &ids, &n_ids);
        if (st == MM3_OK) break;
        assert_int_equal(st, MM3_ERR_NOMEM);
        assert_null(ids);
    }
    alloc_fail_at(0);
    assert_true(k > 8);
    assert_int_equal(n_ids, (int)sizeof text - 1 - 2); /* all bytes, but "<s>" is one; the NFC has as many */
    mm3_free(ids);
    mm3_tokenizer_close(&t);
}

static int setup(void **state)
{
    (void)state;
    return mm3_tokenizer_open(&tiny, "models/tiny-m3") == MM3_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    mm3_tokenizer_close(&tiny);
    remove_model_dir();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_of_tiny_m3),
        cmocka_unit_test(golden_of_variants),
        cmocka_unit_test(added_tokens),
        cmocka_unit_test(control_tokens_in_the_vocabulary),
        cmocka_unit_test(any_bytes_round_trip),
        cmocka_unit_test(text_round_trips_to_its_nfc),
        cmocka_unit_test(broken_utf8_is_a_piece_of_its_own),
        cmocka_unit_test(too_long_a_text),
        cmocka_unit_test(merges_follow_their_definition),
        cmocka_unit_test(long_words),
        cmocka_unit_test(deep_patterns),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
