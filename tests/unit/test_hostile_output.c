/* Output that no model should write: random texts out of markers, bytes that are no UTF-8, and megabytes that hold most
 * back, in linear time. */
#include <string.h>

#include "support/expect.h"
#include "support/parsing.h"

/* Random texts out of markers, their pieces, tags and bytes: any result, but the same however cut, and valid JSON. */
static void test_random_texts(void **state)
{
    static const char *const pieces[] = {
        "<mm:think>",
        "</mm:think>",
        NS,
        "<tool_call>",
        "</tool_call>",
        NS "<tool_call>",
        NS "</tool_call>",
        "\n",
        "<invoke name=\"f\">",
        NS "<invoke name=\"f\">",
        NS "</invoke>",
        NS "<s>",
        NS "</s>",
        NS "<a>",
        NS "<item>",
        NS "</item>",
        NS "</a>",
        "<",
        "]",
        "]<",
        "/",
        ">",
        "\"",
        "text",
        "é",
        "🙂",
        "\xE6",
        "\x97",
        "\xFF",
        " ",
        "1",
        "[1]",
        NS "<o>",
        NS "<k>",
        "[e~[",
        "{\"a\":",
        "}",
        "name=",
        NS "</",
        "]<]minimax",
    };
    static const char *const modes[] = { "enabled", "disabled", "adaptive" };
    unsigned seed = 20, i, k;
    (void)state;
    for (i = 0; i < 1500; i++) {
        mm3_buf text = { 0 };
        unsigned n = random_below(&seed, 30);
        mm3_buf_puts(&text, i % 3 ? "" : OPEN NS "<invoke name=\"f\">");
        for (k = 0; k < n; k++) mm3_buf_puts(&text, pieces[random_below(&seed, MM3_COUNT(pieces))]);
        mm3_free(parse_all_ways(text.data, text.n, parser_tools, modes[i % 3]));
        mm3_buf_free(&text);
    }
}

static void test_bytes(void **state)
{
    static const struct {
        const char *text;
        size_t n;
        const char *want;
    } cases[] = {
        { "a\xFF"
          "b",
          3,
          "|a\xEF\xBF\xBD"
          "b|" },
        { "\xE6\x97", 2, "|\xEF\xBF\xBD|" },
        { "\xE6\x97x", 3, "|\xEF\xBF\xBDx|" },
        { "\xE6\xE6\x97\xA5", 4, "|\xEF\xBF\xBD日|" },
        { "\xC0\xAF", 2, "|\xEF\xBF\xBD\xEF\xBF\xBD|" },
        { "\xED\xA0\x80", 3, "|\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD|" },
        { "\xF4\x90\x80\x80", 4, "|\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD|" },
        { "\xF0\x9F\x99\x82\xF0\x9F\x99", 7, "|🙂\xEF\xBF\xBD|" },
        { "<mm:think>\xF0\x9F</mm:think>\x80", 24, "\xEF\xBF\xBD|\xEF\xBF\xBD|" },
    };
    mm3_parser *p;
    char *s;
    int i;
    (void)state;
    for (i = 0; i < MM3_COUNT(cases); i++) {
        s = parse_all_ways(cases[i].text, cases[i].n, NULL, NULL);
        assert_string_equal(s, cases[i].want);
        mm3_free(s);
    }
    s = parse_all_ways("a\0b\xE6\0", 5, NULL, NULL);
    assert_string_equal(s, "|a\xEF\xBF\xBD"
                           "b\xEF\xBF\xBD\xEF\xBF\xBD|");
    mm3_free(s);
    assert_int_equal(mm3_parser_open(&p, NULL, NULL), MM3_OK);
    assert_int_equal(mm3_parser_push(p, "\x01\x7F\"\\", 4, true, &s), MM3_OK);
    assert_string_equal(s, "{\"content\": \"\\u0001\x7F\\\"\\\\\"}");
    mm3_free(s);
    mm3_parser_close(&p);
    /* a NUL within a value, a tag and an invoke's name */
    mm3_free(parse_all_ways(OPEN NS "<invoke name=\"f\">" NS "<s>a\0b" NS "</s>",
                            sizeof OPEN NS "<invoke name=\"f\">" NS "<s>a_b" NS "</s>" - 1, parser_tools, NULL));
    mm3_free(parse_all_ways(OPEN NS "<invoke name=\"f\">" NS "<\0>a" NS "</s>",
                            sizeof OPEN NS "<invoke name=\"f\">" NS "<_>a" NS "</s>" - 1, parser_tools, NULL));
    mm3_free(
        parse_all_ways(OPEN NS "<invoke name=\"\0f\">", sizeof OPEN NS "<invoke name=\"_f\">" - 1, parser_tools, NULL));
}

static double seconds_of(const mm3_buf *text, size_t cut)
{
    double begin = mm3_now_s();
    mm3_parser *p;
    size_t at;
    assert_int_equal(mm3_parser_open(&p, parser_tools, "enabled"), MM3_OK);
    for (at = 0; at < text->n; at += cut) {
        size_t n = MM3_MIN(cut, text->n - at);
        char *delta;
        assert_int_equal(mm3_parser_push(p, text->data + at, n, at + n == text->n, &delta), MM3_OK);
        mm3_free(delta);
    }
    mm3_parser_close(&p);
    return mm3_now_s() - begin;
}

/* A megabyte byte by byte, of the texts that hold most back: a parser that looks twice would need hours. */
static void test_linear_time(void **state)
{
    static const struct {
        const char *head, *body;
    } texts[] = {
        { "", "plain text. " },
        { "", " " },
        { "", "<" },
        { "", "]<]minimax[>[" },
        { "", "]<]minimax[>[ " },
        { NS, " " },
        { "", "<mm:think></mm:think>" },
        { "", OPEN },
        { OPEN, "\n" },
        { "", OPEN NS "<invoke name=\"f\">" },
        { OPEN NS "<invoke name=\"f\">" NS "<s>", "x " },
        { OPEN NS "<invoke name=\"f\">" NS "<s>", "]<]minimax[>[ " },
        { OPEN NS "<invoke name=\"f\">", ARG("x", "1") },
        { OPEN NS "<invoke name=\"f\">", NS "<x>1" },
        { OPEN NS "<invoke name=\"f\">", NS "<x>" },
        { OPEN NS "<invoke name=\"f\">" NS "<x>" NS "<x>" NS "<x>", NS "</y>" },
        { OPEN, NS "<invoke name=\"" },
        { OPEN, NS "<invoke name=\"f\"" },
        { OPEN, CALL("f", "") },
        { "", ONE("") },
        { "", "\xF0\x9F" },
        { OPEN NS "<invoke name=\"f\">" NS "<a>", "[" },
        { OPEN NS "<invoke name=\"f\">" NS "<a>[", "-123456789012345678901 " },
        { OPEN NS "<invoke name=\"f\">" NS "<i>", "1" },
    };
    int i;
    (void)state;
    for (i = 0; i < MM3_COUNT(texts); i++) {
        mm3_buf b = { 0 };
        double by_bytes, whole;
        mm3_buf_puts(&b, texts[i].head);
        while (b.n < 1000000) mm3_buf_puts(&b, texts[i].body);
        by_bytes = seconds_of(&b, 1);
        whole = seconds_of(&b, b.n);
        if (by_bytes > 20 || whole > 10) fail_msg("text %d: %.1f s by bytes, %.1f s whole", i, by_bytes, whole);
        mm3_buf_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_texts),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_linear_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
