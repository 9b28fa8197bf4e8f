/* Plans: text there and back, strict reading line by line, look-up, merging, hashing, comparing. What is chosen by
 * them: test_plan_choose.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "support/alloc_faults.h"

static const char head_line[] =
    "# mm3 plan 1 | cpu Test avx2 | threads 2 | policy 1 | ctx 1k,8k,32k routing uniform | mm3 0.1.0\n";

static mm3_plan *parse(const char *text, mm3_buf *warnings)
{
    mm3_plan *plan = NULL;
    assert_int_equal(mm3_plan_parse(&plan, text, strlen(text), "t.plan", warnings), MM3_OK);
    return plan;
}

static char *print(const mm3_plan *plan)
{
    char *text = NULL;
    assert_int_equal(mm3_plan_print(plan, &text), MM3_OK);
    return text;
}

static mm3_plan *empty(void)
{
    mm3_plan *plan = NULL;
    mm3_plan_head head = { "cpu Test avx2", 2, 1, "ctx 1k,8k,32k routing uniform", "0.1.0" };
    assert_int_equal(mm3_plan_open(&plan, &head), MM3_OK);
    return plan;
}

static void set(mm3_plan *plan, const char *key, const char *choice, mm3_how how, double us)
{
    mm3_decision d = { .key = (char *)(uintptr_t)key,
                       .choice = (char *)(uintptr_t)choice,
                       .how = how,
                       .us = us,
                       .mad = us / 100,
                       .source = "01234567",
                       .made_here = true };
    assert_int_equal(mm3_plan_set(plan, &d), MM3_OK);
}

/* Everything a plan can say, in its order. */
static const char everything[] =
    "# mm3 plan 1 | cpu Test avx2 | threads 2 | policy 1 | ctx 1k,8k,32k routing uniform | mm3 0.1.0\n"
    "quantize m=8 k=6144 | native | 2.1us mad 0 | err 0 | src 9f2c1e7a\n"
    "  avx512 | 2.12us mad 0.01 | 1.01x | err 0 | src 00112233\n"
    "linear m=1 n=64 k=64 w=mx act=w8a8 | native | alone | src 9f2c1e7a\n"
    "linear m=8 n=9216 k=6144 w=mx act=w8a8 | avx512/rows4 | 15.02us mad 0.1 | err 2e-07 | src 51b07d20\n"
    "  native | 40.11us mad 0.3 | 2.67x | err 0 | src 9f2c1e7a\n"
    "  avx512/rows8 | dropped: 1.9x after 2 rounds | src 51b07d20\n"
    "  amx | refused: needs amx_bf16 | src 07aa31c5\n"
    "  fast/a.b-c+d | wrong: out[17] is nan, native gives 0.5 | src 07aa31c6\n"
    "  huge | failed: out of memory: it needs 12 bytes of scratch, and may have 3 | src 07aa31c7\n"
    "  late | untimed | src 07aa31c8\n"
    "  odd | disqualified: a row's bits depend on other rows | src 07aa31c9\n"
    "linear m=16 n=9216 k=6144 w=mx act=w8a8 | native | untimed | src 9f2c1e7a\n"
    "linear m=128 n=9216 k=6144 w=mx act=w8a8 | avx512 | pinned | src 51b07d20\n"
    "step m=8 | winners | 0.91 of native mad 0.01 | of 77ab12cd\n"
    "step m=16 | natives | 1.034 of native mad 0.012 | of 77ab12ce\n"
    "step m=16 | natives | untimed | of 77ab12cf\n"
    "crashed router m=8 experts=128 top_k=4 | avx512/x | src 1c0ffee1\n";

static void test_round_trip(void **state)
{
    mm3_buf w = { 0 };
    mm3_plan *plan = parse(everything, &w);
    char *text = print(plan);
    const mm3_decision *d = mm3_plan_find(plan, "linear m=8 n=9216 k=6144 w=mx act=w8a8");
    (void)state;
    assert_int_equal(w.n, 0);
    assert_string_equal(text, everything);
    assert_non_null(d);
    assert_string_equal(d->choice, "avx512/rows4");
    assert_true(d->us == 15.02 && d->mad == 0.1 && d->error == 2e-7 && d->how == MM3_HOW_TIMED);
    assert_int_equal(d->n_tried, 7);
    assert_true(d->tried[0].ratio == 2.67 && d->tried[1].rounds == 2 && d->tried[1].fate == MM3_FATE_DROPPED);
    assert_string_equal(d->tried[2].why, "needs amx_bf16");
    assert_null(mm3_plan_find(plan, "linear m=8 n=9216 k=6144 w=mx act=w8a16"));
    assert_int_equal(mm3_plan_find(plan, "linear m=16 n=9216 k=6144 w=mx act=w8a8")->how, MM3_HOW_UNTIMED);
    assert_true(mm3_plan_find_step(plan, "m=8", "77ab12cd")->winners);
    assert_null(mm3_plan_find_step(plan, "m=8", "77ab12ce"));
    assert_true(mm3_plan_has_crashed(plan, MM3_OP_ROUTER, "avx512", "1c0ffee1"));
    assert_false(mm3_plan_has_crashed(plan, MM3_OP_ROUTER, "avx512", "1c0ffee2"));
    assert_false(mm3_plan_has_crashed(plan, MM3_OP_ROUTER, "avx", "1c0ffee1"));
    assert_false(mm3_plan_has_crashed(plan, MM3_OP_LINEAR, "avx512", "1c0ffee1"));
    mm3_free(text);
    mm3_plan_close(&plan);
}

/* Any order of setting gives the same text; keys count, then numbers by value. */
static void test_order(void **state)
{
    static const char *const key[] = { "quantize m=1 k=64",   "quantize m=8 k=64",    "quantize m=16 k=64",
                                       "quantize m=128 k=64", "linear m=2 n=64 k=64", "linear m=16 n=64 k=64" };
    mm3_plan *a = empty(), *b = empty();
    char *x, *y;
    (void)state;
    for (int i = 0; i < MM3_COUNT(key); i++) {
        set(a, key[i], "native", MM3_HOW_ALONE, 0);
        set(b, key[MM3_COUNT(key) - 1 - i], "native", MM3_HOW_ALONE, 0);
    }
    x = print(a);
    y = print(b);
    assert_string_equal(x, y);
    for (int i = 0; i < MM3_COUNT(key); i++) assert_string_equal(mm3_plan_at(a, i)->key, key[i]);
    mm3_free(x);
    mm3_free(y);
    mm3_plan_close(&a);
    mm3_plan_close(&b);
}

/* Numbers of any size: what was printed once stays the same for ever. */
static void test_numbers(void **state)
{
    static const double us[] = { 0.00123456, 0.0999951, 1.0 / 3, 9.99949, 9.9996,
                                 99.9996,    123.456,   1e3 / 7, 99999.6, 1.23456e7 };
    (void)state;
    for (int i = 0; i < MM3_COUNT(us); i++) {
        mm3_plan *a = empty(), *b;
        mm3_buf w = { 0 };
        char *x, *y;
        set(a, "gather m=1 k=1", "native", MM3_HOW_TIMED, us[i]);
        x = print(a);
        b = parse(x, &w);
        y = print(b);
        assert_int_equal(w.n, 0);
        assert_string_equal(x, y);
        assert_true(fabs(mm3_plan_at(b, 0)->us / us[i] - 1) < 1e-3);
        assert_true(mm3_plan_at(a, 0)->us == mm3_plan_at(b, 0)->us);
        mm3_free(x);
        mm3_free(y);
        mm3_plan_close(&a);
        mm3_plan_close(&b);
    }
}

/* Each of these between two good lines: it is left out, the others stay, and one warning names line and reason. */
static void test_bad_lines(void **state)
{
    static const char *const bad[] = {
        "nosuch m=1 | native | alone | src 01234567",
        "linear m=1 | native | alone | src 0123456",
        "linear m=1 | native | alone | src 012345678",
        "linear m=1 | native | alone | src 0123456G",
        "linear m=1 | native | alone",
        "linear m=1 | native | alone | src 01234567 | more",
        "linear m=1 | native",
        "linear m | native | alone | src 01234567",
        "linear m= | native | alone | src 01234567",
        "linear =1 | native | alone | src 01234567",
        "linear  m=1 | native | alone | src 01234567",
        "linear m=1 | | alone | src 01234567",
        "linear m=1 | native/ | alone | src 01234567",
        "linear m=1 | na tive | alone | src 01234567",
        "linear m=1 | native | 1us | err 0 | src 01234567",
        "linear m=1 | native | 1us mad x | err 0 | src 01234567",
        "linear m=1 | native | -1us mad 0 | err 0 | src 01234567",
        "linear m=1 | native | nanus mad 0 | err 0 | src 01234567",
        "linear m=1 | native | 0x10us mad 0 | err 0 | src 01234567",
        "linear m=1 | native | 1us mad 0 | err -1 | src 01234567",
        "linear m=1 | native | 1us mad 0 | src 01234567",
        "linear m=1 | native | sometimes | src 01234567",
        "quantize m=1 k=32 | native | alone | src 01234567", /* again */
        "step m=1 | maybe | 0.9 of native mad 0 | of 01234567",
        "step m=1 | winners | 0.9 of native | of 01234567",
        "step m=1 | winners | 0.9 of native mad 0 | of 0123",
        "step  | winners | 0.9 of native mad 0 | of 01234567x",
        "step | winners | 0.9 of native mad 0 | of 01234567",
        "step | winners | winners | 0.9 of native mad 0 | of 01234567",
        "crashed linear | src 01234567",
        "crashed | native | src 01234567",
        "crashed nosuch m=1 | native | src 01234567",
        "\tlinear m=1 | native | alone | src 01234567",
        "linear m=1 | native | alone | src 01234567\r",
        "  x | refused: | src 01234567",
        "  x | refused | src 01234567",
        "  x | vanished: why | src 01234567",
        "  x | dropped: 1.5x after some rounds | src 01234567",
        "  x | 1us mad 0 | 2 | err 0 | src 01234567",
        "  x | untimed",
        "   x | untimed | src 01234567",
    };
    (void)state;
    for (int i = 0; i < MM3_COUNT(bad); i++) {
        mm3_buf text = { 0 }, w = { 0 };
        mm3_plan *plan;
        mm3_buf_printf(
            &text,
            "%squantize m=1 k=32 | native | alone | src 9f2c1e7a\n%s\ngather m=1 k=1 | native | alone | src 9f2c1e7a\n",
            head_line, bad[i]);
        plan = parse(text.data, &w);
        if (mm3_plan_count(plan) != 2 || !w.data || !strstr(w.data, "t.plan: line 3 (")) fail_msg("%s", bad[i]);
        assert_int_equal(mm3_plan_find(plan, "quantize m=1 k=32")->n_tried, 0);
        assert_int_equal(mm3_plan_count_steps(plan), 0);
        mm3_plan_close(&plan);
        mm3_buf_free(&text);
        mm3_buf_free(&w);
    }
}

static void test_one_warning(void **state)
{
    mm3_buf text = { 0 }, w = { 0 };
    mm3_plan *plan;
    (void)state;
    /* what stands under a bad stage goes with it, silently; comments and empty lines are fine */
    mm3_buf_printf(
        &text,
        "%s# a comment\n\nnosuch m=1 | native | alone | src 01234567\n  x | untimed | src 01234567\n"
        "linear m=1 | native | alone | src 01234567\n  x | untimed | src 01234567\njunk\nlinear m=2 | native | al",
        head_line);
    plan = parse(text.data, &w);
    assert_int_equal(mm3_plan_count(plan), 1);
    assert_int_equal(mm3_plan_at(plan, 0)->n_tried, 1);
    assert_string_equal(w.data,
                        "t.plan: line 4 (it does not begin with an operation and its fields) and 2 more are ignored\n");
    mm3_plan_close(&plan);
    mm3_buf_free(&text);
    mm3_buf_free(&w);
}

static void test_line_without_end(void **state)
{
    mm3_buf w = { 0 };
    char text[1024];
    mm3_plan *plan;
    size_t n;
    (void)state;
    n = (size_t)snprintf(text, sizeof text, "%slinear m=1 | native | alone | src 01234567", head_line);
    assert_int_equal(mm3_plan_parse(&plan, text, n, "t.plan", &w), MM3_OK);
    assert_int_equal(mm3_plan_count(plan), 0);
    assert_non_null(strstr(w.data, "cut off"));
    mm3_plan_close(&plan);
    mm3_buf_free(&w);
}

static void test_bad_heads(void **state)
{
    static const char *const bad[] = {
        "",
        "\n",
        "# mm3 plan",
        "# mm3 plan 1\n",
        "# mm3 plan x | a | threads 1 | policy 1 | w | mm3 0.1.0\n",
        "# mm3 plan 1 | a | threads 0 | policy 1 | w | mm3 0.1.0\n",
        "# mm3 plan 1 | a | threads 1 | policy 1 | mm3 0.1.0\n",
        "# mm3 plan 1 | a | threads 1 | policy x | w | mm3 0.1.0\n",
        "# mm3 plan 1 | a | threads 1 | policy 1 | w | vllm 0.1.0\n",
        "# mm3 plan 1 | a | threads 1 | policy 1 | w | mm3 0.1.0.0.0.0.0.0.0.0.0.0\n",
        "ELF",
        "{\"plan\": 1}\n",
    };
    mm3_plan *plan;
    mm3_buf w = { 0 };
    (void)state;
    for (int i = 0; i < MM3_COUNT(bad); i++) {
        if (mm3_plan_parse(&plan, bad[i], strlen(bad[i]), "t.plan", &w) != MM3_ERR_FORMAT) fail_msg("%s", bad[i]);
        assert_null(plan);
        assert_non_null(strstr(mm3_last_error(), "t.plan"));
    }
    assert_int_equal(mm3_plan_parse(&plan, "# mm3 plan 2 | all is different\n", 32, "t.plan", &w), MM3_ERR_FORMAT);
    assert_non_null(strstr(mm3_last_error(), "format 2"));
    assert_int_equal(w.n, 0);
}

/* Cut anywhere, and with any byte flipped: never a crash, never a line that was not there. */
static void test_damage(void **state)
{
    mm3_buf w = { 0 };
    size_t n = sizeof everything - 1;
    char text[sizeof everything];
    mm3_plan *whole = parse(everything, &w);
    (void)state;
    for (size_t cut = 0; cut < n; cut++) {
        mm3_plan *plan;
        if (mm3_plan_parse(&plan, everything, cut, "t.plan", &w) != MM3_OK) continue;
        assert_true(mm3_plan_count(plan) <= mm3_plan_count(whole));
        for (int i = 0; i < mm3_plan_count(plan); i++) {
            const mm3_decision *d = mm3_plan_find(whole, mm3_plan_at(plan, i)->key);
            assert_non_null(d);
            assert_string_equal(d->choice, mm3_plan_at(plan, i)->choice);
        }
        mm3_plan_close(&plan);
    }
    for (size_t at = 0; at < n; at++)
        for (int bit = 0; bit < 8; bit++) {
            mm3_plan *plan;
            memcpy(text, everything, n);
            text[at] = (char)(text[at] ^ (1 << bit));
            if (mm3_plan_parse(&plan, text, n, "t.plan", &w) == MM3_OK) {
                char *again = print(plan);
                mm3_free(again);
                mm3_plan_close(&plan);
            }
        }
    mm3_buf_free(&w);
    mm3_plan_close(&whole);
}

static void test_merge(void **state)
{
    mm3_plan *a = empty(), *b = empty();
    mm3_step_verdict v = { "m=1", true, true, 0.9, 0.01, "00000001", true, 0 };
    (void)state;
    set(a, "linear m=1 n=1", "native", MM3_HOW_TIMED, 10);
    set(a, "linear m=2 n=1", "native", MM3_HOW_TIMED, 10);
    set(a, "linear m=3 n=1", "native", MM3_HOW_UNTIMED, 0);
    set(b, "linear m=1 n=1", "fast", MM3_HOW_TIMED, 5);
    set(b, "linear m=2 n=1", "native", MM3_HOW_UNTIMED, 0);
    set(b, "linear m=3 n=1", "fast", MM3_HOW_TIMED, 5);
    set(b, "linear m=4 n=1", "fast", MM3_HOW_PINNED, 0);
    assert_int_equal(mm3_plan_set_step(b, &v), MM3_OK);
    v.timed = false;
    strcpy(v.of, "00000002");
    assert_int_equal(mm3_plan_set_step(b, &v), MM3_OK);
    assert_int_equal(mm3_plan_set_crashed(b, "linear m=1 n=1", "bad/x", "01234567"), MM3_OK);
    assert_int_equal(mm3_plan_merge(a, b, true), MM3_OK);
    assert_int_equal(mm3_plan_count(a), 3);
    assert_string_equal(mm3_plan_find(a, "linear m=1 n=1")->choice, "fast");
    assert_int_equal(mm3_plan_find(a, "linear m=2 n=1")->how, MM3_HOW_TIMED);
    assert_string_equal(mm3_plan_find(a, "linear m=3 n=1")->choice, "fast");
    assert_false(mm3_plan_find(a, "linear m=3 n=1")->made_here);
    assert_int_equal(mm3_plan_count_steps(a), 1);
    assert_true(mm3_plan_has_crashed(a, MM3_OP_LINEAR, "bad", "01234567"));
    assert_int_equal(mm3_plan_merge(a, b, false), MM3_OK);
    assert_int_equal(mm3_plan_count(a), 4);
    assert_int_equal(mm3_plan_count_steps(a), 2);
    mm3_plan_close(&b);
    /* what the giver only knew itself does not overwrite */
    b = empty();
    assert_int_equal(mm3_plan_merge(b, a, true), MM3_OK);
    set(b, "linear m=1 n=1", "newer", MM3_HOW_TIMED, 4);
    mm3_plan_close(&a);
    a = empty();
    assert_int_equal(mm3_plan_merge(a, b, true), MM3_OK); /* nobody's own now */
    set(b, "linear m=1 n=1", "newest", MM3_HOW_TIMED, 3);
    assert_int_equal(mm3_plan_merge(b, a, true), MM3_OK);
    assert_string_equal(mm3_plan_find(b, "linear m=1 n=1")->choice, "newest");
    mm3_plan_close(&a);
    mm3_plan_close(&b);
}

/* A cache file serves many models and many tunes, and does not grow for ever. */
static void test_steps_are_bounded(void **state)
{
    mm3_plan *a = empty();
    (void)state;
    for (int i = 0; i < 100; i++)
        for (int m = 1; m <= 16; m *= 16) {
            char step[16];
            mm3_step_verdict v = { step, true, true, 0.9, 0.01, "", true, 0 };
            snprintf(step, sizeof step, "m=%d", m);
            snprintf(v.of, sizeof v.of, "%08x", i);
            assert_int_equal(mm3_plan_set_step(a, &v), MM3_OK);
        }
    assert_int_equal(mm3_plan_count_steps(a), 16);
    assert_non_null(mm3_plan_find_step(a, "m=1", "00000063"));
    assert_null(mm3_plan_find_step(a, "m=1", "00000000"));
    for (int i = 0; i < 3000; i++) {
        char choice[16];
        snprintf(choice, sizeof choice, "a%d/t", i);
        assert_int_equal(mm3_plan_set_crashed(a, "linear m=1", choice, "01234567"), MM3_OK);
    }
    assert_true(mm3_plan_has_crashed(a, MM3_OP_LINEAR, "a2999", "01234567"));
    assert_true(mm3_plan_has_crashed(a, MM3_OP_LINEAR, "a1976", "01234567"));
    assert_false(mm3_plan_has_crashed(a, MM3_OP_LINEAR, "a1975", "01234567"));
    assert_false(mm3_plan_has_crashed(a, MM3_OP_ROUTER, "a2999", "01234567"));
    mm3_plan_close(&a);
}

static void test_hash_and_diff(void **state)
{
    mm3_plan *a = empty(), *b = empty();
    char x[9], y[9], *text;
    mm3_step_verdict v = { "m=1", true, true, 0.9, 0.01, "00000001", true, 0 };
    (void)state;
    set(a, "linear m=1 n=1", "native", MM3_HOW_TIMED, 10);
    set(a, "linear m=2 n=1", "fast", MM3_HOW_TIMED, 10);
    set(b, "linear m=2 n=1", "fast", MM3_HOW_TIMED, 99); /* times do not count */
    set(b, "linear m=1 n=1", "native", MM3_HOW_TIMED, 99);
    mm3_plan_hash(a, x);
    mm3_plan_hash(b, y);
    assert_string_equal(x, y);
    assert_int_equal(mm3_plan_diff(a, b, &text), MM3_OK);
    assert_string_equal(text, "");
    mm3_free(text);
    set(b, "linear m=2 n=1", "fast/x", MM3_HOW_TIMED, 8);
    mm3_plan_hash(b, y);
    assert_string_not_equal(x, y);
    assert_int_equal(mm3_plan_set_step(a, &v), MM3_OK);
    v.winners = false;
    v.ratio = 1.02;
    assert_int_equal(mm3_plan_set_step(b, &v), MM3_OK);
    set(a, "quantize m=1 k=1", "native", MM3_HOW_ALONE, 0);
    set(b, "quantize m=2 k=1", "native", MM3_HOW_PINNED, 0);
    assert_int_equal(mm3_plan_diff(a, b, &text), MM3_OK);
    assert_string_equal(text, "< quantize m=1 k=1 | native | alone\n"
                              "> quantize m=2 k=1 | native | pinned\n"
                              "! linear m=2 n=1 | fast, 10us | fast/x, 8us\n"
                              "! step m=1 | winners, 0.9 of native | natives, 1.02 of native\n");
    mm3_free(text);
    mm3_plan_close(&a);
    mm3_plan_close(&b);
}

static void test_memory(void **state)
{
    (void)state;
    for (long k = 1; k < 200; k++) {
        mm3_buf w = { 0 };
        mm3_plan *plan = NULL;
        mm3_status st;
        alloc_fail_at(k);
        st = mm3_plan_parse(&plan, everything, sizeof everything - 1, "t.plan", &w);
        alloc_fail_at(0);
        if (st == MM3_OK && w.n == 0 && !w.failed) {
            char *text = print(plan);
            assert_string_equal(text, everything);
            mm3_free(text);
            k = 200;
        } else {
            assert_true(st == MM3_ERR_NOMEM);
            assert_null(plan);
        }
        mm3_plan_close(&plan);
        mm3_buf_free(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),    cmocka_unit_test(test_order),
        cmocka_unit_test(test_numbers),       cmocka_unit_test(test_bad_lines),
        cmocka_unit_test(test_one_warning),   cmocka_unit_test(test_line_without_end),
        cmocka_unit_test(test_bad_heads),     cmocka_unit_test(test_damage),
        cmocka_unit_test(test_merge),         cmocka_unit_test(test_steps_are_bounded),
        cmocka_unit_test(test_hash_and_diff), cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
