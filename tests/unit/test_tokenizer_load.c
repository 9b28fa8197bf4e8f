/* Loading tokenizer.json: what is followed, what is refused and by what words, and files that are damaged. */
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

static const char *const merges[] = { "a b", "ab c", "c a" }; /* ids 256 to 258; "<s>" is 259, "<n>" 260 */

static json_t *base_file(void) { return small_tokenizer(merges, 3); }

/* One change to a file that loads, and what comes of it. */
typedef struct change {
    const char *path, *value; /* as for json_put() */
    mm3_status status;
    const char *says; /* part of the error */
} change;

static void check_changes(const change *c, int n)
{
    for (int i = 0; i < n; i++) {
        json_t *root = base_file();
        mm3_tokenizer *t = NULL;
        mm3_status st;
        assert_true(json_put(root, c[i].path, c[i].value));
        write_tokenizer(root);
        json_decref(root);
        st = mm3_tokenizer_open(&t, model_dir());
        if (st != c[i].status)
            fail_msg("%s = %s: %s, %s", c[i].path, c[i].value, mm3_status_name(st), mm3_last_error());
        assert_int_equal(t != NULL, st == MM3_OK);
        if (st != MM3_OK && (!strstr(mm3_last_error(), c[i].says) || !strstr(mm3_last_error(), "tokenizer.json")))
            fail_msg("%s = %s: no \"%s\" in: %s", c[i].path, c[i].value, c[i].says, mm3_last_error());
        mm3_tokenizer_close(&t);
    }
}

#define FORMAT MM3_ERR_FORMAT
#define UNSUPPORTED MM3_ERR_UNSUPPORTED

static void components(void **state)
{
    static const change changes[] = {
        { "version", "\"1.0\"", MM3_OK, "" },
        { "version", "\"2.0\"", UNSUPPORTED, "version \"2.0\"" },
        { "colour", "1", UNSUPPORTED, "\"colour\" is unknown" },
        { "truncation", "{\"max_length\": 5}", MM3_OK, "" },
        { "normalizer", "null", MM3_OK, "" },
        { "normalizer", NULL, MM3_OK, "" },
        { "normalizer", "5", FORMAT, "normalizer must be an object" },
        { "normalizer", "{}", FORMAT, "normalizer: \"type\" is missing" },
        { "normalizer", "{\"type\": \"NFKC\"}", UNSUPPORTED, "normalizer: type \"NFKC\"" },
        { "normalizer", "{\"type\": \"NFC\", \"x\": 1}", UNSUPPORTED, "\"x\" is unknown" },
        { "normalizer", "{\"type\": \"Sequence\", \"normalizers\": []}", MM3_OK, "" },
        { "normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, {\"type\": \"Lowercase\"}]}",
          UNSUPPORTED, "normalizer[1]: type \"Lowercase\"" },
        { "normalizer", "{\"type\": \"Sequence\", \"normalizers\": {}}", FORMAT, "must be an array" },
        { "pre_tokenizer", "null", FORMAT, "pre_tokenizer must be an object" },
        { "pre_tokenizer", "{\"type\": \"Whitespace\"}", UNSUPPORTED, "pre_tokenizer: type \"Whitespace\"" },
        { "pre_tokenizer", "{\"type\": \"Sequence\", \"pretokenizers\": []}", UNSUPPORTED, "no ByteLevel" },
        { "pre_tokenizer", "{\"type\": \"Sequence\", \"pretokenizers\": 5}", FORMAT, "must be an array" },
        { "pre_tokenizer", "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\"}]}", UNSUPPORTED,
          "pre_tokenizer[0]: type \"Digits\"" },
        { "pre_tokenizer/add_prefix_space", "true", UNSUPPORTED, "add_prefix_space" },
        { "pre_tokenizer/add_prefix_space", "0", FORMAT, "must be true or false" },
        { "pre_tokenizer/use_regex", NULL, MM3_OK, "" },
        { "pre_tokenizer/extra", "1", UNSUPPORTED, "\"extra\"" },
        { "post_processor", "{\"type\": \"ByteLevel\"}", MM3_OK, "" },
        { "post_processor", "{\"type\": \"TemplateProcessing\", \"single\": []}", MM3_OK, "" },
        { "post_processor", "{\"type\": \"BertProcessing\"}", UNSUPPORTED, "post_processor: type \"BertProcessing\"" },
        { "post_processor", "{\"type\": \"Sequence\", \"processors\": [{\"type\": \"X\"}]}", UNSUPPORTED,
          "post_processor[0]: type \"X\"" },
        { "post_processor", "[]", FORMAT, "post_processor must be an object" },
        { "decoder", "null", FORMAT, "decoder must be an object" },
        { "decoder", "{\"type\": \"Metaspace\"}", UNSUPPORTED, "decoder: type \"Metaspace\"" },
        { "model", NULL, FORMAT, "\"model\" is missing" },
        { "model", "5", FORMAT, "model must be an object" },
        { "model/type", "\"Unigram\"", UNSUPPORTED, "model: type \"Unigram\"" },
        { "model/dropout", "0.1", UNSUPPORTED, "\"dropout\" is set" },
        { "model/byte_fallback", "true", UNSUPPORTED, "\"byte_fallback\" is set" },
        { "model/continuing_subword_prefix", "\"##\"", UNSUPPORTED, "\"continuing_subword_prefix\" is set" },
        { "model/continuing_subword_prefix", "\"\"", MM3_OK, "" },
        { "model/end_of_word_suffix", "\"</w>\"", UNSUPPORTED, "\"end_of_word_suffix\" is set" },
        { "model/unk_token", "\"<n>\"", MM3_OK, "" },
        { "model/ignore_merges", "1", FORMAT, "\"ignore_merges\" must be true or false" },
        { "model/new_idea", "1", UNSUPPORTED, "model: \"new_idea\" is unknown" },
    };
    (void)state;
    check_changes(changes, MM3_COUNT(changes));
}

static void vocabularies(void **state)
{
    static const change changes[] = {
        { "model/vocab", NULL, FORMAT, "\"vocab\" is missing" },
        { "model/vocab", "[]", FORMAT, "\"vocab\" must be an object" },
        { "model/vocab", "{}", FORMAT, "token \"<s>\" has id 259" },
        { "model/merges", NULL, FORMAT, "\"merges\" is missing" },
        { "model/merges", "{}", FORMAT, "\"merges\" must be an array" },
        { "model/merges", "[]", MM3_OK, "" },
        { "model/vocab/a", NULL, FORMAT, "has id 260" }, /* one fewer: the last id is out of range */
        { "model/vocab/a", "255", FORMAT, "has id 255, which another token has" },
        { "model/vocab/a", "\"97\"", FORMAT, "the id of token \"a\" must be a whole number" },
        { "model/vocab/a", "97.5", FORMAT, "the id of token \"a\" must be a whole number" },
        { "model/vocab/a", "null", FORMAT, "the id of token \"a\" must be a whole number" },
        { "model/vocab/a", "[97]", FORMAT, "the id of token \"a\" must be a whole number" },
        { "model/vocab/a", "-1", FORMAT, "token \"a\" has id -1" },
        { "model/vocab/a", "2147483648", FORMAT, "token \"a\" has id 2147483648" },
        { "model/vocab/a", "4294967393", FORMAT, "token \"a\" has id 4294967393" },
        { "model/vocab/a", "9223372036854775807", FORMAT, "token \"a\"" },
        { "model/vocab/zz", "300", FORMAT, "token \"zz\" has id 300" },
        { "model/vocab/zz", "261", MM3_OK, "" },
        { "model/vocab/z z", "261", UNSUPPORTED, "token \"z z\" (id 261) is not spelled" },
        { "model/vocab/", "261", UNSUPPORTED, "token \"\" (id 261) is not spelled" },
        { "model/vocab/<s>", "5", FORMAT, "token \"<s>\" has id 5, which another token has" },
        { "model/merges/0", "[\"a\", \"q!\"]", FORMAT, "merges[0]: \"q!\" is no ordinary token" },
        { "model/merges/0", "[\"a\", \"d\"]", FORMAT, "merges[0]: its result, \"ad\"" },
        { "model/merges/0", "[\"a\"]", FORMAT, "expected a merge of two tokens" },
        { "model/merges/0", "[\"a\", \"b\", \"c\"]", FORMAT, "expected the end of a merge" },
        { "model/merges/0", "[1, 2]", FORMAT, "expected a string" },
        { "model/merges/0", "5", FORMAT, "merges[0] must be" },
        { "model/merges/0", "\"ab\"", FORMAT, "merges[0] must be two tokens" },
        { "model/merges/0", "\"a b c\"", FORMAT, "merges[0] must be two tokens" },
        { "model/merges/0", "\" b\"", FORMAT, "merges[0]: \"\" is no ordinary token" },
        { "model/merges/0", "\"a b\"", MM3_OK, "" },
        { "model/merges/2", "[\"a\", \"b\"]", FORMAT, "merges[2] repeats merges[0]" },
    };
    (void)state;
    check_changes(changes, MM3_COUNT(changes));
}

static void added_tokens(void **state)
{
    static const change changes[] = {
        { "added_tokens", NULL, MM3_OK, "" },
        { "added_tokens", "{}", FORMAT, "\"added_tokens\" must be an array" },
        { "added_tokens/0", "7", FORMAT, "added_tokens[0] must be an object" },
        { "added_tokens/0/content", NULL, FORMAT, "added_tokens[0]: \"content\" is missing" },
        { "added_tokens/0/content", "\"\"", FORMAT, "has 0 bytes" },
        { "added_tokens/0/content", "\"<n>\"", FORMAT, "have the same text" },
        { "added_tokens/0/content", "\"a\"", FORMAT, "added token \"a\" has id 259, but \"vocab\" says 97" },
        { "added_tokens/0/id", NULL, FORMAT, "\"id\" is missing" },
        { "added_tokens/0/id", "\"x\"", FORMAT, "\"id\" must be a whole number" },
        { "added_tokens/0/id", "260", FORMAT, "token \"<n>\" has id 260, which another added token has" },
        { "added_tokens/0/id", "97", FORMAT, "token \"a\" has id 97, which an added token with another text has" },
        { "added_tokens/0/id", "2147483648", FORMAT, "token \"<s>\" has id 2147483648" },
        { "added_tokens/0/id", "-1", FORMAT, "\"id\" is -1" },
        { "added_tokens/0/special", NULL, FORMAT, "\"special\" is missing" },
        { "added_tokens/0/special", "1", FORMAT, "\"special\" must be true or false" },
        { "added_tokens/0/single_word", "true", UNSUPPORTED, "added token \"<s>\": \"single_word\" is true" },
        { "added_tokens/0/lstrip", "true", UNSUPPORTED, "added token \"<s>\": \"lstrip\" is true" },
        { "added_tokens/0/rstrip", "true", UNSUPPORTED, "added token \"<s>\": \"rstrip\" is true" },
        { "added_tokens/0/normalized", "true", MM3_OK, "" },
        { "added_tokens/0/normalized", NULL, FORMAT, "\"normalized\" is missing" },
        { "added_tokens/0/other", "1", UNSUPPORTED, "added token \"<s>\": \"other\" is unknown" },
    };
    (void)state;
    check_changes(changes, MM3_COUNT(changes));
}

static void splits(void **state)
{
    static const struct {
        const char *split;
        mm3_status status;
        const char *says;
    } row[] = {
        { "'pattern': {'Regex': 'a'}, 'behavior': 'Isolated', 'invert': false", MM3_OK, "" },
        { "'pattern': {'Regex': 'a'}, 'behavior': 'Contiguous', 'invert': false", UNSUPPORTED,
          "behavior \"Contiguous\"" },
        { "'pattern': {'Regex': 'a'}, 'behavior': 'MergedWithNext', 'invert': false", UNSUPPORTED, "MergedWithNext" },
        { "'pattern': {'Regex': 'a'}, 'behavior': 'Isolated'", FORMAT, "\"invert\" is missing" },
        { "'pattern': {'Regex': 'a'}, 'invert': true", FORMAT, "\"behavior\" is missing" },
        { "'pattern': 'a', 'behavior': 'Isolated', 'invert': true", FORMAT, "\"pattern\" must be" },
        { "'pattern': {'Glob': 'a'}, 'behavior': 'Isolated', 'invert': true", UNSUPPORTED, "\"Glob\" is unknown" },
        { "'pattern': {'Regex': 5}, 'behavior': 'Isolated', 'invert': true", FORMAT, "must be a string" },
        { "'pattern': {'Regex': ''}, 'behavior': 'Isolated', 'invert': true", UNSUPPORTED, "pattern of 0 bytes" },
        { "'pattern': {'String': ''}, 'behavior': 'Isolated', 'invert': true", UNSUPPORTED, "pattern of 0 bytes" },
        { "'pattern': {'String': '('}, 'behavior': 'Isolated', 'invert': true", MM3_OK, "" },
        { "'pattern': {'Regex': 'a*'}, 'behavior': 'Isolated', 'invert': true", UNSUPPORTED, "may match empty text" },
    };
    /* What Oniguruma reads differently from PCRE2, or PCRE2 does not read. */
    static const char *const refused[] = {
        "\\\\w",       "\\\\h",
        "\\\\R",       "\\\\X",
        "\\\\b",       "\\\\Aa",
        "a\\\\z",      "a\\\\1",
        "^a",          "a$",
        "a**",         "a{2}?b",
        "a{1,2}+",     "a{,3}",
        "a{3,2}",      "{",
        "*a",          "(",
        "a)",          "(a",
        "(?i)a",       "(?<n>a)",
        "(?#c)a",      "(*UTF)a",
        "[]a]",        "[",
        "[a",          "[[:alpha:]]",
        "[a&&b]",      "[a-\\\\d]",
        "[\\\\s-z]",   "[z-a]",
        "[\\\\S]",     "[^\\\\P{L}]",
        "\\\\p{Han}",  "\\\\p{Cn}",
        "\\\\p{}",     "\\\\pL",
        "\\\\p{L",     "(?i:\\\\p{Lu})",
        "(?i:[^a])",   "(?i:\\u00e9)",
        "(?i:stop)",   "(?i:o(?:f)f)",
        "\\\\xE9",     "\\\\x{110000}",
        "\\\\x{D800}", "\\\\",
        "(?<=a+)b",    "a|",
        "\\\\x{}",     "\\\\u12",
    };
    (void)state;
    for (int i = 0; i < MM3_COUNT(row) + MM3_COUNT(refused); i++) {
        char split[512];
        change c = { "pre_tokenizer", split, UNSUPPORTED, "pattern" };
        if (i < MM3_COUNT(row)) {
            snprintf(split, sizeof split,
                     "{'type': 'Sequence', 'pretokenizers': [{'type': 'Split', %s}, {'type': 'ByteLevel', "
                     "'add_prefix_space': false, 'trim_offsets': true, 'use_regex': false}]}",
                     row[i].split);
            c.status = row[i].status;
            c.says = row[i].says;
        } else {
            snprintf(split, sizeof split,
                     "{'type': 'Sequence', 'pretokenizers': [{'type': 'Split', 'pattern': {'Regex': '%s'}, 'behavior': "
                     "'Isolated', "
                     "'invert': false}, {'type': 'ByteLevel', 'add_prefix_space': false}]}",
                     refused[i - MM3_COUNT(row)]);
            if (strstr(split, "<=a+")) c.status = FORMAT; /* by PCRE2 itself */
        }
        for (char *p = split; *p; p++)
            if (*p == '\'') *p = '"';
        check_changes(&c, 1);
    }
}

/* The last component must be ByteLevel, as pieces are spelled from there on. */
static void order_of_components(void **state)
{
    static const change late = {
        "pre_tokenizer",
        "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\", \"add_prefix_space\": false},"
        "{\"type\": \"Split\"}]}",
        UNSUPPORTED, "pre_tokenizer[1] follows ByteLevel"
    };
    (void)state;
    check_changes(&late, 1);
}

/* ---- damaged files ----------------------------------------------------------------------------------------------- */

static mm3_status open_text(const char *text, size_t n, mm3_tokenizer **t)
{
    write_tokenizer_text(text, n);
    return mm3_tokenizer_open(t, model_dir());
}

static void assert_clear_error(mm3_status st)
{
    assert_true(st == MM3_ERR_FORMAT || st == MM3_ERR_UNSUPPORTED);
    assert_non_null(strstr(mm3_last_error(), "tokenizer.json"));
    assert_null(strchr(mm3_last_error(), '\n'));
}

static void truncated(void **state)
{
    json_t *root = base_file();
    char *text = json_dumps(root, JSON_INDENT(1));
    mm3_tokenizer *t = NULL;
    (void)state;
    assert_int_equal(open_text(text, strlen(text), &t), MM3_OK);
    mm3_tokenizer_close(&t);
    for (size_t n = 0; n < strlen(text); n += n < 200 || n + 200 > strlen(text) ? 1 : 37) {
        assert_clear_error(open_text(text, n, &t));
        assert_null(t);
    }
    free(text);
    json_decref(root);
}

static void mutated(void **state)
{
    json_t *root = base_file();
    char *text = json_dumps(root, JSON_COMPACT);
    size_t n = strlen(text);
    uint64_t seed = 3;
    int n_loaded = 0;
    (void)state;
    for (int i = 0; i < 2000; i++) {
        static const char taste[] = "\"\\{}[],:0129.-eutn/\xC4\xA0\x00 <>s";
        char *copy = malloc(n);
        mm3_tokenizer *t = NULL;
        mm3_status st;
        assert_non_null(copy);
        memcpy(copy, text, n);
        for (int k = 0; k <= i % 3; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            copy[(seed >> 20) % n] = taste[(seed >> 50) % (sizeof taste - 1)];
        }
        st = open_text(copy, n, &t);
        if (st == MM3_OK) {
            int32_t *ids;
            int n_ids;
            n_loaded++;
            assert_int_equal(mm3_tokenizer_encode(t, "abc <s> ca", 10, true, &ids, &n_ids), MM3_OK);
            mm3_free(ids);
            mm3_tokenizer_close(&t);
        } else {
            assert_clear_error(st);
        }
        free(copy);
    }
    assert_in_range(n_loaded, 1, 1999);
    free(text);
    json_decref(root);
}

static void strange_texts(void **state)
{
    static const char *const text[] = {
        "",
        " ",
        "null",
        "5",
        "[]",
        "{}",
        "\"x\"",
        "{",
        "{\"model\"",
        "{\"model\":",
        "{\"model\": {",
        "{\"model\": {\"vocab\"",
        "{\"model\": {\"vocab\": {\"a",
        "{\"model\": {\"vocab\": {\"a\\",
        "{\"model\": {\"vocab\": {\"a\\u00",
        "{\"model\": {}}",
        "{\"model\": {\"vocab\": {}, \"vocab\": {}}}",
        "{\"model\": {}, \"model\": {}}",
        "\xEF\xBB\xBF{}",
        "{} {}",
    };
    enum { DEPTH = 200000 };
    char *deep = malloc(DEPTH + 64);
    mm3_tokenizer *t = NULL;
    (void)state;
    assert_non_null(deep);
    for (int i = 0; i < MM3_COUNT(text); i++) assert_clear_error(open_text(text[i], strlen(text[i]), &t));
    for (int i = 0; i < 3; i++) {
        static const char *const before[] = { "", "{\"model\": {\"vocab\": ", "{\"normalizer\": " };
        size_t n = strlen(before[i]);
        memcpy(deep, before[i], n);
        memset(deep + n, i == 1 ? '{' : '[', DEPTH);
        assert_clear_error(open_text(deep, n + DEPTH, &t));
    }
    free(deep);
}

/* Escapes, white space and order do not matter; the places that are read without a tree follow the same rules. */
static void same_file_otherwise_written(void **state)
{
    json_t *root = base_file();
    mm3_tokenizer *t = NULL;
    int32_t *ids;
    int n_ids;
    (void)state;
    for (int flags = 0; flags < 8; flags++) {
        char *text = json_dumps(root, (flags & 1 ? JSON_INDENT(3) : JSON_COMPACT) |
                                          (flags & 2 ? JSON_ENSURE_ASCII : 0) | (flags & 4 ? JSON_SORT_KEYS : 0));
        assert_int_equal(open_text(text, strlen(text), &t), MM3_OK);
        assert_int_equal(mm3_tokenizer_encode(t, "ab abc \x01\xAD", 9, true, &ids, &n_ids), MM3_OK);
        assert_int_equal(n_ids, 6);
        assert_memory_equal(ids, ((const int32_t[]){ 256, ' ', 257, ' ', 1, 0xAD }), sizeof(int32_t[6]));
        mm3_free(ids);
        mm3_tokenizer_close(&t);
        free(text);
    }
    json_decref(root);
}

static void files_that_are_not_there(void **state)
{
    mm3_tokenizer *t = NULL;
    (void)state;
    assert_int_equal(mm3_tokenizer_open(&t, "no/such/folder"), MM3_ERR_IO);
    assert_non_null(strstr(mm3_last_error(), "no/such/folder/tokenizer.json"));
    assert_null(t);
    mm3_tokenizer_close(&t);
    mm3_tokenizer_close(NULL);
}

static void missing_byte(void **state)
{
    json_t *root = base_file();
    mm3_tokenizer *t = NULL;
    (void)state;
    assert_true(json_put(root, "model/vocab/q", NULL));
    assert_true(json_put(root, "model/vocab/qq", "113"));
    write_tokenizer(root);
    json_decref(root);
    assert_int_equal(mm3_tokenizer_open(&t, model_dir()), MM3_ERR_UNSUPPORTED);
    assert_non_null(strstr(mm3_last_error(), "byte 0x71"));
}

static void holes(void **state)
{
    json_t *root = base_file();
    mm3_tokenizer *t = NULL;
    (void)state;
    assert_true(json_put(root, "model/vocab/ca", "261")); /* was 258 */
    assert_true(json_put(root, "model/vocab/zz", "262"));
    write_tokenizer(root);
    assert_int_equal(mm3_tokenizer_open(&t, model_dir()), MM3_ERR_FORMAT);
    assert_non_null(strstr(mm3_last_error(), "262"));
    assert_true(json_put(root, "model/vocab/zz", NULL));
    /* An added token that is also in "vocab" leaves room for a hole within the range. */
    assert_true(json_put(root, "model/vocab/<n>", "260"));
    write_tokenizer(root);
    json_decref(root);
    assert_int_equal(mm3_tokenizer_open(&t, model_dir()), MM3_ERR_FORMAT);
    assert_non_null(strstr(mm3_last_error(), "no token has id 258, though one has id 259"));
}

/* A whole number may be written with a point: the token is then found as the same id. */
static void id_with_a_point(void **state)
{
    json_t *root = base_file();
    mm3_tokenizer *t = NULL;
    int32_t *ids;
    int n_ids;
    (void)state;
    assert_true(json_put(root, "added_tokens/0/id", "259.0"));
    write_tokenizer(root);
    json_decref(root);
    assert_int_equal(mm3_tokenizer_open(&t, model_dir()), MM3_OK);
    assert_int_equal(mm3_tokenizer_encode(t, "<s>", 3, true, &ids, &n_ids), MM3_OK);
    assert_int_equal(n_ids, 1);
    assert_int_equal(ids[0], 259);
    mm3_free(ids);
    mm3_tokenizer_close(&t);
}

static void out_of_memory(void **state)
{
    json_t *root = base_file();
    char *text = json_dumps(root, JSON_COMPACT), *model = text ? strstr(text, "\"model\":") : NULL;
    mm3_buf escaped = { 0 }; /* a key with an escape needs memory too */
    mm3_tokenizer *t = NULL;
    long k;
    (void)state;
    assert_non_null(model);
    mm3_buf_printf(&escaped, "%.*s\"mode\\u006c\":%s", (int)(model - text), text, model + strlen("\"model\":"));
    write_tokenizer_text(escaped.data, escaped.n);
    mm3_buf_free(&escaped);
    free(text);
    json_decref(root);
    for (k = 1;; k++) {
        mm3_status st;
        alloc_fail_at(k);
        st = mm3_tokenizer_open(&t, model_dir());
        if (st == MM3_OK) {
            int32_t *ids;
            int n_ids;
            bool reached = alloc_count() > 0;
            alloc_fail_at(0);
            assert_true(reached);
            assert_int_equal(mm3_tokenizer_encode(t, "abc<s>", 6, true, &ids, &n_ids), MM3_OK);
            assert_int_equal(n_ids, 2);
            mm3_free(ids);
            mm3_tokenizer_close(&t);
            if (k > 200) break; /* compiling to machine code may fail without harm: go on until nothing fails */
        } else {
            assert_int_equal(st, MM3_ERR_NOMEM);
            assert_null(t);
        }
    }
}

static int teardown(void **state)
{
    (void)state;
    remove_model_dir();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(components),
        cmocka_unit_test(vocabularies),
        cmocka_unit_test(added_tokens),
        cmocka_unit_test(splits),
        cmocka_unit_test(order_of_components),
        cmocka_unit_test(truncated),
        cmocka_unit_test(mutated),
        cmocka_unit_test(strange_texts),
        cmocka_unit_test(same_file_otherwise_written),
        cmocka_unit_test(files_that_are_not_there),
        cmocka_unit_test(missing_byte),
        cmocka_unit_test(holes),
        cmocka_unit_test(id_with_a_point),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
