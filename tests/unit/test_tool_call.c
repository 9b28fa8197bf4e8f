/* Arguments of tool calls: what each schema makes of a text, nested tags, and the way back from the chat form. */
#include <string.h>

#include "support/expect.h"
#include "support/parsing.h"

/* Arguments of a call of f, and what they become. */
typedef struct argument_case {
    const char *arguments, *want;
} argument_case;

static void check_arguments(const argument_case *cases, int n)
{
    for (int i = 0; i < n; i++) {
        mm3_buf text = { 0 }, want = { 0 };
        parse_example e = { "disabled", NULL, NULL };
        mm3_buf_printf(&text, OPEN NS "<invoke name=\"f\">%s" NS "</invoke>\n" CLOSE, cases[i].arguments);
        mm3_buf_printf(&want, "||f({%s})", cases[i].want);
        e.text = text.data;
        e.want = want.data;
        check_parses(&e, 1, parser_tools);
        mm3_buf_free(&text);
        mm3_buf_free(&want);
    }
}

/* Scalars by their schema. */
static void test_types(void **state)
{
    static const argument_case cases[] = {
        { ARG("s", "02134"), "\"s\": \"02134\"" },
        { ARG("s", "1e5"), "\"s\": \"1e5\"" },
        { ARG("s", "true"), "\"s\": \"true\"" },
        { ARG("s", "null"), "\"s\": \"null\"" },
        { ARG("s", "{\"a\": 1}"), "\"s\": \"{\\\"a\\\": 1}\"" },
        { ARG("s", ""), "\"s\": \"\"" },
        { ARG("s", "\n  two\nlines \n"), "\"s\": \"two\\nlines\"" },
        { ARG("i", "5"), "\"i\": 5" },
        { ARG("i", "5.0"), "\"i\": 5" },
        { ARG("i", " -7 "), "\"i\": -7" },
        { ARG("i", "+007"), "\"i\": 7" },
        { ARG("i", "-0"), "\"i\": 0" },
        { ARG("i", "1e3"), "\"i\": 1000" },
        { ARG("i", "5.5"), "\"i\": \"5.5\"" },
        { ARG("i", "five"), "\"i\": \"five\"" },
        { ARG("i", ""), "\"i\": \"\"" },
        { ARG("i", "."), "\"i\": \".\"" },
        { ARG("i", "1e"), "\"i\": \"1e\"" },
        { ARG("i", "NULL"), "\"i\": null" },
        { ARG("i", "nUll"), "\"i\": \"nUll\"" },
        { ARG("i", "123456789012345678901234567890"), "\"i\": 123456789012345678901234567890" },
        { ARG("n", "1"), "\"n\": 1" },
        { ARG("n", "-1.50"), "\"n\": -1.50" },
        { ARG("n", "1e-7"), "\"n\": 1e-7" },
        { ARG("n", ".5"), "\"n\": 0.5" },
        { ARG("n", "+2."), "\"n\": 2.0" },
        { ARG("n", "007"), "\"n\": 7.0" },
        { ARG("n", "1e999"), "\"n\": \"1e999\"" },
        { ARG("n", "nan"), "\"n\": \"nan\"" },
        { ARG("n", "0x10"), "\"n\": \"0x10\"" },
        { ARG("n", "1,5"), "\"n\": \"1,5\"" },
        { ARG("b", "true"), "\"b\": true" },
        { ARG("b", "1"), "\"b\": true" },
        { ARG("b", "Yes"), "\"b\": true" },
        { ARG("b", "FALSE"), "\"b\": false" },
        { ARG("b", "0"), "\"b\": false" },
        { ARG("b", "no"), "\"b\": false" },
        { ARG("b", "maybe"), "\"b\": \"maybe\"" },
        { ARG("nil", "null"), "\"nil\": null" },
        { ARG("sn", "Null"), "\"sn\": null" },
        { ARG("sn", "nothing"), "\"sn\": \"nothing\"" },
        { ARG("nu", "null"), "\"nu\": null" },
        { ARG("in", "4"), "\"in\": 4" },
        { ARG("in", "null"), "\"in\": null" },
        { ARG("si", "02134"), "\"si\": \"02134\"" },
        { ARG("si", "5.0"), "\"si\": \"5.0\"" },
        { ARG("si", "5"), "\"si\": 5" },
        { ARG("sb", "yes"), "\"sb\": \"yes\"" },
        { ARG("sb", "true"), "\"sb\": true" },
        { ARG("e", "2"), "\"e\": 2" },
        { ARG("c", "true"), "\"c\": true" },
        { ARG("z", "3"), "\"z\": 3" },
        { ARG("u", "12"), "\"u\": \"12\"" },
        { ARG("any", "12"), "\"any\": \"12\"" },
        { ARG("x", "null"), "\"x\": \"null\"" },
        { ARG("r", "12"), "\"r\": \"12\"" }, /* a reference to itself says nothing */
        { ARG("w", "12"), "\"w\": \"12\"" },
        /* names beyond XML's */
        { ARG("$x", "1") ARG("a.b", "2") ARG("2024", "3") ARG("größe", "4"),
          "\"$x\": \"1\", \"a.b\": \"2\", \"2024\": \"3\", \"größe\": \"4\"" },
    };
    (void)state;
    check_arguments(cases, MM3_COUNT(cases));
}

/* Objects and arrays: as JSON, and by nested tags. */
static void test_nested(void **state)
{
    static const argument_case cases[] = {
        { ARG("a", "[1, 2]"), "\"a\": [1, 2]" },
        { ARG("a", "[]"), "\"a\": []" },
        { ARG("a", ""), "\"a\": []" },
        { ARG("a", ITEM("1") ITEM("2.0")), "\"a\": [1, 2]" },
        { ARG("a", "\n" ITEM("1") "\n" ITEM("") "\n"), "\"a\": [1, \"\"]" },
        { ARG("a", "[1, 2"), "\"a\": \"[1, 2\"" },
        { ARG("a", "{\"k\": 1}"), "\"a\": \"{\\\"k\\\": 1}\"" },
        { ARG("a", "1") ARG("a", "2"), "\"a\": [1, 2]" },
        { ARG("a", "1") ARG("s", "x") ARG("a", "[2, 3]") ARG("a", ITEM("4")), "\"a\": [1, 2, 3, 4], \"s\": \"x\"" },
        { ARG("s", "1") ARG("s", "2"), "\"s\": \"2\"" },
        { ARG("x", "1") ARG("x", "2"), "\"x\": [\"1\", \"2\"]" },
        { ARG("as", ITEM("02") ITEM("null") ITEM("[1]")), "\"as\": [\"02\", \"null\", \"[1]\"]" },
        { ARG("aa", ITEM(ITEM("1") ITEM("2")) ITEM(ITEM("3.5")) ITEM("[4]")), "\"aa\": [[1, 2], [3.5], [4]]" },
        { ARG("ao", ITEM(ARG("k", "1") ARG("x", "y")) ITEM(ARG("k", "2"))),
          "\"ao\": [{\"k\": 1, \"x\": \"y\"}, {\"k\": 2}]" },
        { ARG("ao", ARG("k", "1")), "\"ao\": [{\"k\": 1}]" },
        { ARG("ao", "[{\"k\": 1, \"k\": 2}]"), "\"ao\": [{\"k\": 2}]" },
        { ARG("o", "{\"k\": 12345678901234567890, \"f\": 1.0}"), "\"o\": {\"k\": 12345678901234567890, \"f\": 1.0}" },
        { ARG("o", "{\"k\": 3.14159265358979323846, \"f\": 1e-00000000000000000002}"),
          "\"o\": {\"k\": 3.141592653589793, \"f\": 0.01}" },
        { ARG("o", ""), "\"o\": {}" },
        { ARG("o", ARG("k", "1") ARG("a", ITEM(ARG("b", "yes")) ITEM(ARG("b", "no")))),
          "\"o\": {\"k\": 1, \"a\": [{\"b\": true}, {\"b\": false}]}" },
        { ARG("o", ITEM("x")), "\"o\": {\"item\": \"x\"}" },
        { ARG("o", "no JSON"), "\"o\": \"no JSON\"" },
        { ARG("os", "text"), "\"os\": \"text\"" },
        { ARG("os", "{\"a\": null}"), "\"os\": {\"a\": null}" },
        { ARG("os", ""), "\"os\": \"\"" },
        { ARG("m", ARG("k1", "1") ARG("k2", "2")), "\"m\": {\"k1\": 1, \"k2\": 2}" },
        { ARG("p", ARG("x", "1") ARG("next", ARG("x", "2") ARG("next", ARG("x", "3")))),
          "\"p\": {\"x\": 1, \"next\": {\"x\": 2, \"next\": {\"x\": 3}}}" },
        { ARG("x", ITEM("1") ITEM(ARG("k", "v"))), "\"x\": [\"1\", {\"k\": \"v\"}]" },
        { ARG("x", ARG("k", "v") ARG("l", NS "<item/>")), "\"x\": {\"k\": \"v\", \"l\": [\"\"]}" },
    };
    (void)state;
    check_arguments(cases, MM3_COUNT(cases));
}

/* Text that looks like tags, and tags that are not closed. */
static void test_text_and_closers(void **state)
{
    static const argument_case cases[] = {
        /* what is no tag stays */
        { ARG("s", "a <b>bold</b> &amp; \"q\" </s> <item>"), "\"s\": \"a <b>bold</b> &amp; \\\"q\\\" </s> <item>\"" },
        { ARG("s", "x" NS "y" NS " z"), "\"s\": \"xy z\"" },
        { ARG("s", "]<]minimax[> ]<]"), "\"s\": \"]<]minimax[> ]<]\"" },
        { ARG("s", "<s>x</s>"), "\"s\": \"<s>x</s>\"" },
        { ARG("s", ARG("b", "x")), "\"s\": \"<b>x</b>\"" },
        { ARG("i", ARG("b", "x")), "\"i\": \"<b>x</b>\"" },
        { ARG("x", ARG("b", "1") "tail"), "\"x\": \"<b>1</b>tail\"" },
        { ARG("s", "日本 🙂"), "\"s\": \"日本 🙂\"" },
        { "junk" ARG("s", "x") "junk", "\"s\": \"x\"" },
        /* missing closers within */
        { NS "<a>" NS "<item>1" NS "<item>2" NS "</a>", "\"a\": [1, 2]" },
        { NS "<o>" NS "<k>1" NS "</o>" ARG("s", "x"), "\"o\": {\"k\": 1}, \"s\": \"x\"" },
        { NS "<s>x" NS "<i>5" NS "<b>no", "\"s\": \"x\", \"i\": 5, \"b\": false" },
        { NS "<s>x" NS "</s" NS "</s>", "\"s\": \"x</s\"" },
        { "" NS "</nothing>" ARG("s", "x"), "\"s\": \"x\"" },
    };
    (void)state;
    check_arguments(cases, MM3_COUNT(cases));
}

/* Without tools everything is a string, nested or not. */
static void test_no_tools(void **state)
{
    static const parse_example examples[] = {
        { NULL, ONE(ARG("i", "5") ARG("a", ITEM("1")) ARG("o", ARG("k", "true")) ARG("j", "[1]")),
          "||f({\"i\": \"5\", \"a\": [\"1\"], \"o\": {\"k\": \"true\"}, \"j\": \"[1]\"})" },
    };
    (void)state;
    check_parses(examples, 1, NULL);
    check_parses(examples, 1, "[]");
}

/* What the template writes of a call is read back as the same arguments. */
static void test_round_trip(void **state)
{
    const char *arguments = "{\"s\": \"a <b> & \\\"c\\\"\\n]<]\", \"i\": -5, \"n\": 1.5, \"b\": true, \"a\": [1, 2], "
                            "\"as\": [\"\", \"null\", \"02\"], \"o\": {\"k\": 12345678901234567890, \"a\": [{\"b\": "
                            "false}, {}]}, \"ao\": [], \"aa\": [[1, 2], []], \"x\": {\"ü\": [\"日\"]}}";
    mm3__rendered r = { 0 };
    mm3_buf messages = { 0 }, want = { 0 };
    char *got;
    const char *body;
    (void)state;
    mm3_buf_puts(&messages, "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"t\", "
                            "\"reasoning\": \"r\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": ");
    mm3_buf_printf(&messages, "%s}}, {\"function\": {\"name\": \"g\", \"arguments\": \"\"}}]}]", arguments);
    assert_int_equal(mm3__chat_render(&r, messages.data, NULL, NULL, false), MM3_OK);
    body = strstr(r.text.data, "]~b]ai\n") + strlen("]~b]ai\n");
    got = parse_all_ways(body, (size_t)(strstr(body, "[e~[") - body), parser_tools, NULL);
    mm3_buf_printf(&want, "r|t|f(%s) g({})", arguments);
    assert_string_equal(got, want.data);
    mm3_free(got);
    mm3_buf_free(&want);
    mm3_buf_free(&messages);
    mm3__rendered_free(&r);
}

static void repeat(mm3_buf *b, const char *s, int n)
{
    while (n--) mm3_buf_puts(b, s);
}

/* Tags nested deeper than anybody's arguments: the block is text. At the limit it is still a call. */
static void test_nesting(void **state)
{
    static const int depths[] = { 60, 63, 64, 1000, 100000 };
    int i;
    (void)state;
    for (i = 0; i < MM3_COUNT(depths); i++) {
        mm3_buf b = { 0 }, want = { 0 };
        char *s;
        mm3_buf_puts(&b, OPEN NS "<invoke name=\"f\">");
        repeat(&b, NS "<x>", depths[i]);
        mm3_buf_puts(&b, "1");
        repeat(&b, NS "</x>", depths[i]);
        mm3_buf_puts(&b, CLOSE);
        s = parse_text(b.data, b.n, parser_tools, NULL, b.n, 0);
        mm3_buf_puts(&want, depths[i] < 64 ? "||f({" : "|");
        if (depths[i] < 64) {
            repeat(&want, "\"x\": {", depths[i] - 1);
            mm3_buf_puts(&want, "\"x\": \"1\"");
            repeat(&want, "}", depths[i]);
            mm3_buf_puts(&want, ")");
        } else {
            mm3_buf_add(&want, b.data, b.n);
            mm3_buf_puts(&want, "|");
        }
        assert_string_equal(s, want.data);
        mm3_free(s);
        mm3_buf_free(&b);
        mm3_buf_free(&want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),    cmocka_unit_test(test_nested),     cmocka_unit_test(test_text_and_closers),
        cmocka_unit_test(test_no_tools), cmocka_unit_test(test_round_trip), cmocka_unit_test(test_nesting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
