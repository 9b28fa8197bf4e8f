/* What the model writes, split into reasoning, content and calls: tables of texts with the exact result, and when each
 * delta comes. Arguments of calls: test_tool_call.c; hostile text: test_hostile_output.c. */
#include <string.h>

#include "support/alloc_faults.h"
#include "support/expect.h"
#include "support/parsing.h"

/* ---- reasoning and content --------------------------------------------------------------------------------------- */

static void test_reasoning(void **state)
{
    static const parse_example examples[] = {
        { "enabled", "r</mm:think>a", "r|a|" },
        { "enabled", "", "||" },
        { "enabled", "never closed", "never closed||" },
        { "enabled", "<mm:think>r</mm:think>a", "r|a|" },
        { "enabled", "\n<mm:think>\nr\n</mm:think>\n\na\n", "\nr\n|\n\na\n|" },
        { "enabled", "</mm:think>a", "|a|" },
        { "enabled", "r <mm:think> x</mm:think>a", "r <mm:think> x|a|" },
        { "enabled", "r</mm:think>", "r||" },
        { "enabled", "r</mm:think>\n", "r||" },
        { "enabled", "r</mm:think></mm:think>a", "r|a|" },
        { "enabled", "r</mm:think>a</mm:think>b", "r|a</mm:think>b|" },
        { "enabled", "r</mm:think>a<mm:think>s</mm:think>b", "rs|ab|" },
        { "enabled", "r < 3 ]<] </mm:thin>", "r < 3 ]<] </mm:thin>||" },
        { "enabled", "  ", "  ||" },
        { NULL, "a", "|a|" },
        { "adaptive", "<mm:think>r</mm:think>a", "r|a|" },
        { "adaptive", "  <mm:think>r</mm:think>a", "r|a|" },
        { "adaptive", "</mm:think>a", "|a|" },
        { "adaptive", "\n\n</mm:think>a", "|a|" },
        { "adaptive", "\n\na", "|\n\na|" },
        { "adaptive", " \n", "| \n|" },
        { "adaptive", "a<mm:think>r", "r|a|" },
        { "adaptive", "<mm:think></mm:think>", "||" },
        { "adaptive", "<mm:think> </mm:think> a", "| a|" },
        { "disabled", "</mm:think>a", "|a|" },
        { "disabled", "a</mm:think>b", "|a</mm:think>b|" },
        { "disabled", "<mm:think>r</mm:think>a", "r|a|" },
        { "disabled", "<mm:thin", "|<mm:thin|" },
        { "disabled", "a <think>x</think> </think> <", "|a <think>x</think> </think> <|" },
        { "disabled", "a]<]minimax[>[", "|a]<]minimax[>[|" },
        { "disabled", "]]<]minimax[>[b]<]mini]<]minimax[>[ <tool_cal",
          "|]]<]minimax[>[b]<]mini]<]minimax[>[ <tool_cal|" },
        { "disabled", "<<mm:think>r", "r|<|" },
        { "disabled", "x[e~[\n", "|x[e~[\n|" },
        { "disabled", "日本語🙂é]<", "|日本語🙂é]<|" },
    };
    (void)state;
    check_parses(examples, MM3_COUNT(examples), NULL);
}

static void test_envelope(void **state)
{
    static const parse_example examples[] = {
        { "enabled", "r</mm:think>" ONE(ARG("s", "x")), "r||f({\"s\": \"x\"})" },
        { "enabled", "r" ONE(ARG("s", "x")), "r||f({\"s\": \"x\"})" },
        { "enabled", "r" ONE(ARG("s", "x")) "</mm:think>a", "r|a|f({\"s\": \"x\"})" },
        { "enabled", "r\n" ONE(ARG("s", "x")) "\n[", "r\n|\n[|f({\"s\": \"x\"})" },
        { "disabled", "I look.\n" ONE(ARG("s", "x")) "\n", "|I look.\n|f({\"s\": \"x\"})" },
        { "disabled", "\n" ONE(ARG("s", "x")), "||f({\"s\": \"x\"})" },
        { "disabled", OPEN CALL("f", ARG("s", "1")) CALL("g", "") CALL("f", ARG("s", "2")) CLOSE,
          "||f({\"s\": \"1\"}) g({}) f({\"s\": \"2\"})" },
        { "disabled", ONE(ARG("s", "1")) ONE(ARG("s", "1")), "||f({\"s\": \"1\"}) f({\"s\": \"1\"})" },
        { "disabled", ONE(ARG("s", "1")) "then" ONE(ARG("s", "2")), "|then|f({\"s\": \"1\"}) f({\"s\": \"2\"})" },
        { "disabled", OPEN CALL("g", "") CLOSE, "||g({})" },
        { "disabled", OPEN CALL("g", "\n") CLOSE, "||g({})" },
        { "disabled", OPEN CALL("unknown", ARG("x", "5")) CLOSE, "||unknown({\"x\": \"5\"})" },
        { "disabled", OPEN CALL("f", "{\"s\": \"x\", \"i\": 5}") CLOSE, "||f({\"s\": \"x\", \"i\": 5})" },
        /* spaces behind the marker */
        { "disabled",
          NS " <tool_call>" NS "\n<invoke name=\"f\">" NS " <s>x" NS "\t</s>" NS " </invoke>" NS " </tool_call>",
          "||f({\"s\": \"x\"})" },
        { "disabled", OPEN NS "<invoke  name = 'f' >" ARG("s", "x") NS "</invoke >" CLOSE, "||f({\"s\": \"x\"})" },
        { "disabled", OPEN NS "<invoke name=f>" ARG("s", "x") CLOSE, "||f({\"s\": \"x\"})" },
        { "disabled", OPEN NS "<invoke name=\"f>" ARG("s", "\"x\"") CLOSE, "||f({\"s\": \"\\\"x\\\"\"})" },
        /* missing closers and markers */
        { "disabled", OPEN CALL("f", ARG("s", "x")), "||f({\"s\": \"x\"})" },
        { "disabled", OPEN NS "<invoke name=\"f\">" ARG("s", "x"), "||f({\"s\": \"x\"})" },
        { "disabled", OPEN NS "<invoke name=\"f\">" NS "<s>x", "||f({\"s\": \"x\"})" },
        { "disabled", OPEN NS "<invoke name=\"f\">" NS "<s>x" CLOSE "\nbye", "|\nbye|f({\"s\": \"x\"})" },
        { "disabled", OPEN NS "<invoke name=\"f\">" NS "<s>x" NS "<i>5" CLOSE, "||f({\"s\": \"x\", \"i\": 5})" },
        { "disabled", OPEN NS "<invoke name=\"f\">" NS "<s>x" NS "<invoke name=\"g\">" CLOSE,
          "||f({\"s\": \"x\"}) g({})" },
        { "disabled", OPEN "<invoke name=\"f\">" NS "<s>x</s>" CLOSE, "||f({\"s\": \"x\"})" },
        { "disabled", OPEN CALL("g", "") "<invoke name=\"f\">" NS "<s>x" CLOSE, "||g({}) f({\"s\": \"x\"})" },
        { "disabled", NS "<tool_call>" ONE(ARG("s", "x")), "||f({\"s\": \"x\"})" },
        { "disabled", OPEN CALL("f", NS "<s>Paris" NS "</city>") CLOSE, "||f({\"s\": \"Paris\"})" },
        /* text that breaks off */
        { "disabled", OPEN NS "<invoke name=\"f\">" NS "<s>x" NS "</", "||f({\"s\": \"x\"})" },
        { "disabled", OPEN NS "<invoke name=\"f\">" NS "<s>x" NS "<i", "||f({\"s\": \"x\"})" },
        { "disabled", OPEN NS "<invoke name=\"f\">" NS "<s>x]<]mini", "||f({\"s\": \"x\"})" },
        { "disabled", OPEN NS "<invoke name=\"f\">" NS "<a>[1, 2]", "||f({\"a\": [1, 2]})" },
        { "disabled", OPEN CALL("g", "") NS "<invoke name=\"f", "||g({})" },
        /* no calls: text, where it stands */
        { "disabled", "a " NS "<tool_call>" NS "</tool_call> b", "|a " NS "<tool_call>" NS "</tool_call> b|" },
        { "disabled", NS "<tool_call>", "|" NS "<tool_call>|" },
        { "disabled", OPEN, "|" OPEN "|" },
        { "disabled", OPEN "hello", "|" OPEN "hello|" },
        { "disabled", " " OPEN " " NS "hello", "| " OPEN " " NS "hello|" },
        { "enabled", "I write " NS "<tool_call> here.</mm:think>a", "I write " NS "<tool_call> here.|a|" },
        { "enabled", OPEN NS "<invoke>" CLOSE "</mm:think>a", OPEN NS "<invoke>" CLOSE "|a|" },
        { "disabled", OPEN NS "<invoke name=\"\">" CLOSE, "|" OPEN NS "<invoke name=\"\">" CLOSE "|" },
        { "disabled", OPEN CALL("f", "some text") CLOSE, "|" OPEN CALL("f", "some text") CLOSE "|" },
        { "disabled", OPEN NS "<invoke name=\"f", "|" OPEN NS "<invoke name=\"f|" },
        { "disabled", NS "<tool_calls>x", "|" NS "<tool_calls>x|" },
        { "disabled", OPEN "<invok" CLOSE, "|" OPEN "<invok" CLOSE "|" },
    };
    (void)state;
    check_parses(examples, MM3_COUNT(examples), parser_tools);
}

/* ---- streaming --------------------------------------------------------------------------------------------------- */

static char *push(mm3_parser *p, const char *text, bool finish)
{
    char *delta;
    assert_int_equal(mm3_parser_push(p, text, strlen(text), finish, &delta), MM3_OK);
    return delta;
}

static void expect(mm3_parser *p, const char *text, bool finish, const char *want)
{
    char *delta = push(p, text, finish);
    assert_string_equal(delta, want);
    mm3_free(delta);
}

/* Text goes out at once; only what may begin a marker waits; a call comes whole when its envelope closes. */
static void test_what_is_held_back(void **state)
{
    mm3_parser *p;
    char *delta;
    (void)state;
    assert_int_equal(mm3_parser_open(&p, parser_tools, "enabled"), MM3_OK);
    expect(p, "why", false, "{\"reasoning_content\": \"why\"}");
    expect(p, " not <", false, "{\"reasoning_content\": \" not \"}");
    expect(p, "b> ", false, "{\"reasoning_content\": \"<b> \"}");
    expect(p, "</mm:think", false, "{}");
    expect(p, ">so", false, "{\"content\": \"so\"}");
    expect(p, "]<]minimax", false, "{}");
    expect(p, "[>[ \n<tool", false, "{}");
    expect(p, "x", false, "{\"content\": \"]<]minimax[>[ \\n<toolx\"}");
    expect(p, "\xE6\x97", false, "{}");
    expect(p, "\xA5.", false, "{\"content\": \"日.\"}");
    expect(p, "bye " OPEN NS "<invoke name=\"f\">" NS "<s>x", false, "{\"content\": \"bye \"}");
    expect(p, NS "</s>" NS "</invoke>", false, "{}");
    delta = push(p, CLOSE, false);
    assert_non_null(strstr(delta, "{\"tool_calls\": [{\"index\": 0, \"id\": \"call_0_"));
    assert_non_null(strstr(delta, "\", \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": "
                                  "\"{\\\"s\\\": \\\"x\\\"}\"}}]}"));
    mm3_free(delta);
    expect(p, "\n", false, "{}");
    expect(p, "", true, "{}");
    assert_int_equal(mm3_parser_push(p, "x", 1, false, &delta), MM3_ERR_ARG);
    assert_non_null(strstr(mm3_last_error(), "finished"));
    assert_null(delta);
    mm3_parser_close(&p);
    mm3_parser_close(&p);
}

static void test_open_errors(void **state)
{
    mm3_parser *p;
    (void)state;
    assert_int_equal(mm3_parser_open(&p, NULL, "true"), MM3_ERR_ARG);
    assert_non_null(strstr(mm3_last_error(), "enabled, disabled or adaptive"));
    assert_null(p);
    assert_int_equal(mm3_parser_open(&p, "{}", NULL), MM3_ERR_ARG);
    assert_non_null(strstr(mm3_last_error(), "tools is an object"));
    assert_null(p);
}

/* The same text gives the same ids; another place or other arguments give others. */
static void test_ids(void **state)
{
    char *ids[3];
    int i;
    (void)state;
    for (i = 0; i < 3; i++) {
        mm3_parser *p;
        char *delta;
        assert_int_equal(mm3_parser_open(&p, parser_tools, NULL), MM3_OK);
        delta = push(p, i < 2 ? ONE(ARG("s", "x")) : ONE(ARG("s", "y")), true);
        ids[i] = mm3_malloc(64);
        if (sscanf(delta, "{\"tool_calls\": [{\"index\": 0, \"id\": \"%63[^\"]", ids[i]) != 1) fail_msg("%s", delta);
        assert_int_equal(strlen(ids[i]), strlen("call_0_01234567"));
        mm3_free(delta);
        mm3_parser_close(&p);
    }
    assert_string_equal(ids[0], ids[1]);
    assert_string_not_equal(ids[0], ids[2]);
    for (i = 0; i < 3; i++) mm3_free(ids[i]);
}

/* Every allocation fails once: an error, no crash, no leak, and the parser takes no more text. */
static void test_out_of_memory(void **state)
{
    const char *text = "why</mm:think> text " OPEN CALL("f", ARG("s", "x") ARG("a", "[1]") ARG("a", ITEM("2"))
                                                                 ARG("o", ARG("k", "1"))) CLOSE " more";
    mm3_status st = MM3_ERR_NOMEM;
    long k;
    (void)state;
    for (k = 1; st != MM3_OK; k++) {
        mm3_parser *p = NULL;
        char *delta = NULL;
        alloc_fail_at(k);
        st = mm3_parser_open(&p, parser_tools, "enabled");
        if (!st) {
            st = mm3_parser_push(p, text, strlen(text), true, &delta);
            alloc_fail_at(0);
            if (st) {
                char *other;
                assert_null(delta);
                assert_int_equal(mm3_parser_push(p, "x", 1, true, &other), MM3_ERR_NOMEM);
            }
            mm3_parser_close(&p);
        }
        alloc_fail_at(0);
        assert_true(st == MM3_OK || st == MM3_ERR_NOMEM);
        mm3_free(delta);
        assert_true(k < 1000);
    }
    assert_true(k > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reasoning),   cmocka_unit_test(test_envelope), cmocka_unit_test(test_what_is_held_back),
        cmocka_unit_test(test_open_errors), cmocka_unit_test(test_ids),      cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
