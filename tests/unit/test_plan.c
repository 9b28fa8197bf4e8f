/* Plans: text there and back, strict reading line by line, look-up, merging, hashing, comparing, binding. */
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
        assert_int_equal(mm3_plan_n_steps(plan), 0);
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
    mm3_step_verdict v = { "m=1", true, true, 0.9, 0.01, "00000001", true };
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
    assert_int_equal(mm3_plan_n_steps(a), 1);
    assert_true(mm3_plan_has_crashed(a, MM3_OP_LINEAR, "bad", "01234567"));
    assert_int_equal(mm3_plan_merge(a, b, false), MM3_OK);
    assert_int_equal(mm3_plan_count(a), 4);
    assert_int_equal(mm3_plan_n_steps(a), 2);
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
            mm3_step_verdict v = { step, true, true, 0.9, 0.01, "", true };
            snprintf(step, sizeof step, "m=%d", m);
            snprintf(v.of, sizeof v.of, "%08x", i);
            assert_int_equal(mm3_plan_set_step(a, &v), MM3_OK);
        }
    assert_int_equal(mm3_plan_n_steps(a), 16);
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
    mm3_step_verdict v = { "m=1", true, true, 0.9, 0.01, "00000001", true };
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

/* ---- binding ----------------------------------------------------------------------------------------------------- */

static void none(const mm3_call *call, int i, int n) { (void)call, (void)i, (void)n; }

static const char *refuses_odd(const mm3_device_info *d, const void *op, const mm3_tactic *t)
{
    (void)d, (void)t;
    return ((const mm3_quantize *)op)->m % 2 ? "m is odd" : NULL;
}

static const mm3_tactic two[] = { { .name = "a" }, { .name = "b" } }, one[] = { { .name = "default" } };
static const mm3_kernel plain = {
    .op = MM3_OP_QUANTIZE, .device = "cpu", .name = "plain", .tactics = one, .n_tactics = 1, .phase = { none }
};
static const mm3_kernel even = { .op = MM3_OP_QUANTIZE,
                                 .device = "cpu",
                                 .name = "even",
                                 .refuses = refuses_odd,
                                 .tactics = two,
                                 .n_tactics = 2,
                                 .phase = { none } };

static int kernels_of(mm3_op_id op, const char *device, const mm3_kernel **out, int max)
{
    (void)device;
    if (op != MM3_OP_QUANTIZE) return mm3_kernels_of(op, device, out, max);
    out[0] = &plain;
    out[1] = &even;
    return 2;
}

static void test_binding(void **state)
{
    static const char lines[] = "quantize m=4 k=32 | even/b | alone | src 2c1e8223\n"
                                "quantize m=8 k=32 | even/b | alone | src 00000000\n"
                                "quantize m=16 k=32 | even/c | alone | src 00000000\n"
                                "quantize m=32 k=32 | gone | alone | src 00000000\n"
                                "quantize m=64 k=32 | plain | alone | src 00000000\n";
    mm3_buf text = { 0 }, w = { 0 };
    mm3_plan *plan;
    mm3_device_info device = { .kind = "cpu" };
    mm3_binding b = { .device = &device, .kernels_of = kernels_of };
    mm3_quantize op = { .m = 8, .k = 32 };
    mm3_choice c;
    (void)state;
    mm3_buf_printf(&text, "%s%s", head_line, lines);
    b.plan = plan = parse(text.data, &w);
    mm3_plan_bind(plan, "cpu", kernels_of, "t.plan", &w);
    assert_non_null(
        strstr(w.data, "t.plan: stale, ignored: quantize m=4 k=32 | even/b (its source is another now) and 2 more\n"));
    assert_int_equal(mm3_choose_planned(&b, MM3_OP_QUANTIZE, &op, &c), MM3_OK);
    assert_true(c.kernel == &even && c.tactic == &two[1]);
    op.m = 4;
    assert_int_equal(mm3_choose_planned(&b, MM3_OP_QUANTIZE, &op, &c), MM3_ERR_UNSUPPORTED);
    assert_non_null(strstr(mm3_last_error(), "'quantize m=4 k=32' is stale"));
    op.m = 2;
    assert_int_equal(mm3_choose_planned(&b, MM3_OP_QUANTIZE, &op, &c), MM3_ERR_UNSUPPORTED);
    assert_non_null(strstr(mm3_last_error(), "no decision for 'quantize m=2 k=32'"));
    /* rounding up: the next larger that is bound and accepts */
    b.round_up = true;
    assert_int_equal(mm3_choose_planned(&b, MM3_OP_QUANTIZE, &op, &c), MM3_OK);
    assert_true(c.kernel == &even);
    op.m = 3;
    assert_int_equal(mm3_choose_planned(&b, MM3_OP_QUANTIZE, &op, &c), MM3_OK);
    assert_true(c.kernel == &plain);
    op.m = 65;
    assert_int_equal(mm3_choose_planned(&b, MM3_OP_QUANTIZE, &op, &c), MM3_ERR_UNSUPPORTED);
    op.m = 8, op.k = 64;
    assert_int_equal(mm3_choose_planned(&b, MM3_OP_QUANTIZE, &op, &c), MM3_ERR_UNSUPPORTED);
    mm3_plan_close(&plan);
    /* a larger one is there, but refuses: the first of the list */
    mm3_buf_clear(&text);
    mm3_buf_printf(&text, "%squantize m=8 k=32 | even/b | alone | src 00000000\n", head_line);
    b.plan = plan = parse(text.data, &w);
    mm3_plan_bind(plan, "cpu", kernels_of, "t.plan", &w);
    op.m = 3, op.k = 32;
    assert_int_equal(mm3_choose_planned(&b, MM3_OP_QUANTIZE, &op, &c), MM3_OK);
    assert_true(c.kernel == &plain);
    mm3_plan_close(&plan);
    mm3_buf_free(&text);
    mm3_buf_free(&w);
}

/* Pins come first; a pinned part of a chain means its split form; deterministic keys have no m. */
static void test_pins_and_chains(void **state)
{
    mm3_device_info device = { .kind = "cpu" };
    mm3_plan *plan = empty();
    mm3_pins *pins = NULL;
    mm3_binding b = { .plan = plan, .device = &device };
    mm3_swiglu_quantize chain = { .m = 4, .n = 64 };
    mm3_quantize part = { .m = 4, .k = 64 };
    mm3_choice c;
    char key[MM3_MAX_KEY_TEXT];
    (void)state;
    assert_int_equal(mm3_choose_planned(&b, MM3_OP_SWIGLU_QUANTIZE, &chain, &c), MM3_ERR_UNSUPPORTED);
    assert_int_equal(mm3_pins_parse(&pins, "quantize,m=4=native", "cpu"), MM3_OK);
    b.pins = pins;
    assert_int_equal(mm3_choose_planned(&b, MM3_OP_QUANTIZE, &part, &c), MM3_OK);
    assert_string_equal(c.kernel->name, "native");
    assert_int_equal(mm3_choose_planned(&b, MM3_OP_SWIGLU_QUANTIZE, &chain, &c), MM3_OK);
    assert_true(mm3_kernel_is_split(c.kernel));
    assert_true(mm3_part_is_pinned(pins, MM3_OP_SWIGLU_QUANTIZE, &chain, key, sizeof key));
    assert_string_equal(key, "quantize m=4 k=64");
    chain.m = 5;
    assert_int_equal(mm3_choose_planned(&b, MM3_OP_SWIGLU_QUANTIZE, &chain, &c), MM3_ERR_UNSUPPORTED);
    mm3_plan_key(MM3_OP_QUANTIZE, &part, true, key, sizeof key);
    assert_string_equal(key, "quantize k=64");
    mm3_pins_free(&pins);
    mm3_plan_close(&plan);
}

/* Every registered candidate has a hash of its source, and two of different files have different ones. */
static void test_sources(void **state)
{
    const mm3_kernel *k[MM3_MAX_CANDIDATES];
    const char *first = NULL;
    (void)state;
    for (int op = 0; op < MM3_N_OPS; op++) {
        int n = mm3_kernels_of((mm3_op_id)op, "cpu", k, MM3_MAX_CANDIDATES);
        for (int i = 0; i < n; i++) {
            const char *hash = mm3_kernel_source(k[i]);
            assert_int_equal(strlen(hash), 8);
            assert_string_not_equal(hash, "00000000");
            if (first) assert_string_not_equal(hash, first);
            first = hash;
        }
    }
    assert_string_equal(mm3_kernel_source(&even), "00000000");
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

typedef struct keys {
    mm3_op_id op;
    int n;
    char text[16][2][MM3_MAX_KEY_TEXT]; /* with m, and without */
} keys;

static void add_key(keys *k, const void *contract)
{
    assert_true(k->n < MM3_COUNT(k->text));
    for (int i = 0; i < 2; i++) mm3_plan_key(k->op, contract, i, k->text[k->n][i], sizeof k->text[k->n][i]);
    k->n++;
}

static bool has_keys[MM3_N_OPS];

/* The first is the base, the second another m: the same key where m does not count. All others are different. */
static void check_keys(const keys *k)
{
    has_keys[k->op] = true;
    for (int i = 0; i < k->n; i++)
        for (int j = 0; j < i; j++)
            for (int without_m = 0; without_m < 2; without_m++) {
                bool same = strcmp(k->text[i][without_m], k->text[j][without_m]) == 0;
                if (same != (without_m && i == 1)) fail_msg("%s, %s", k->text[i][without_m], k->text[j][without_m]);
            }
}

/* Two stages that differ in anything a launch depends on never share a decision. */
static void test_keys(void **state)
{
    int32_t block;
    float row;
    (void)state;
#define BASE(type, OP, ...)            \
    keys k = { .op = MM3_OP_##OP };    \
    const type base = { __VA_ARGS__ }; \
    type v = base;                     \
    add_key(&k, &base);                \
    v.m++;                             \
    add_key(&k, &v)
#define OTHER(change) \
    v = base, change; \
    add_key(&k, &v)
    {
        BASE(mm3_linear, LINEAR, .m = 8, .n = 64, .k = 96, .n_segments = 2,
             .segment = { { .n = 32, .type = MM3_MX }, { .n = 32, .type = MM3_MX } });
        OTHER(v.k = 64);
        OTHER((v.n = 96, v.segment[1].n = 64));
        OTHER(v.act = MM3_ACT_W8A16);
        OTHER((v.segment[0].type = v.segment[1].type = MM3_BF16));
        OTHER((v.segment[0].type = v.segment[1].type = MM3_F32));
        OTHER(v.segment[0].type = MM3_BF16);
        check_keys(&k);
    }
    {
        const mm3_weight mx[2] = { { .type = MM3_MX }, { .type = MM3_MX } };
        const mm3_weight bf16[2] = { { .type = MM3_BF16 }, { .type = MM3_BF16 } };
        BASE(mm3_moe_linear, MOE_LINEAR, .m = 8, .top_k = 4, .n = 64, .k = 96, .n_expert = 2, .n_segments = 1,
             .weights = mx);
        OTHER(v.top_k = 2);
        OTHER(v.n = 96);
        OTHER(v.k = 64);
        OTHER(v.n_expert = 1);
        OTHER(v.by_pair = true);
        OTHER(v.act = MM3_ACT_W8A16);
        OTHER(v.weights = bf16);
        check_keys(&k);
    }
    {
        BASE(mm3_attention, ATTENTION, .m = 8, .n_q = 8, .top_k = 4, .block = 128, .selected = &block,
             .kv = { .n_kv = 2, .type = MM3_F32 });
        OTHER(v.n_q = 4);
        OTHER(v.top_k = 3);
        OTHER(v.block = 64);
        OTHER(v.selected = NULL);
        OTHER(v.kv.n_kv = 4);
        OTHER(v.kv.type = MM3_BF16);
        check_keys(&k);
    }
    {
        BASE(mm3_index_select, INDEX_SELECT, .m = 8, .n_groups = 2, .top_k = 4, .block = 128,
             .kv = { .d_index = 64, .type = MM3_F32 });
        OTHER(v.n_groups = 4);
        OTHER(v.top_k = 3);
        OTHER(v.block = 64);
        OTHER(v.kv.d_index = 128);
        OTHER(v.kv.type = MM3_BF16);
        check_keys(&k);
    }
    {
        BASE(mm3_qk_norm_rope, QK_NORM_ROPE, .m = 8, .ld = 2048, .n_q = 8, .n_iq = 2,
             .kv = { .n_kv = 2, .d_index = 64, .type = MM3_F32 });
        OTHER(v.ld = 1024);
        OTHER(v.n_q = 4);
        OTHER(v.n_iq = 0);
        OTHER(v.kv.n_kv = 4);
        OTHER(v.kv.d_index = 128);
        OTHER(v.kv.type = MM3_BF16);
        check_keys(&k);
    }
    {
        BASE(mm3_add_rmsnorm, ADD_RMSNORM, .m = 8, .k = 64, .delta = &row);
        OTHER(v.k = 96);
        OTHER(v.delta = NULL);
        check_keys(&k);
    }
    {
        BASE(mm3_add_rmsnorm_quantize, ADD_RMSNORM_QUANTIZE, .m = 8, .k = 64, .delta = &row);
        OTHER(v.k = 96);
        OTHER(v.delta = NULL);
        check_keys(&k);
    }
    {
        BASE(mm3_embed, EMBED, .m = 8, .k = 64, .table = { .type = MM3_BF16 });
        OTHER(v.k = 96);
        OTHER(v.table.type = MM3_F32);
        check_keys(&k);
    }
    {
        BASE(mm3_moe_sum, MOE_SUM, .m = 8, .top_k = 4, .k = 64, .shared = &row);
        OTHER(v.top_k = 2);
        OTHER(v.k = 96);
        OTHER(v.shared = NULL);
        check_keys(&k);
    }
    {
        BASE(mm3_router, ROUTER, .m = 8, .n_expert = 16, .top_k = 4);
        OTHER(v.n_expert = 8);
        OTHER(v.top_k = 2);
        check_keys(&k);
    }
    {
        BASE(mm3_sample, SAMPLE, .m = 8, .n_vocab = 100, .n_token = 90);
        OTHER(v.n_vocab = 90);
        OTHER(v.n_token = 100);
        check_keys(&k);
    }
    {
        BASE(mm3_quantize, QUANTIZE, .m = 8, .k = 64);
        OTHER(v.k = 96);
        check_keys(&k);
    }
    {
        BASE(mm3_swiglu, SWIGLU, .m = 8, .n = 64);
        OTHER(v.n = 96);
        check_keys(&k);
    }
    {
        BASE(mm3_swiglu_quantize, SWIGLU_QUANTIZE, .m = 8, .n = 64);
        OTHER(v.n = 96);
        check_keys(&k);
    }
    {
        BASE(mm3_gather, GATHER, .m = 8, .k = 64);
        OTHER(v.k = 96);
        check_keys(&k);
    }
    {
        BASE(mm3_rope_angles, ROPE_ANGLES, .m = 8);
        check_keys(&k);
    }
    for (int op = 0; op < MM3_N_OPS; op++)
        if (!has_keys[op]) fail_msg("test_keys lacks %s", mm3_op_info_of((mm3_op_id)op)->name);
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
        cmocka_unit_test(test_round_trip),      cmocka_unit_test(test_order),
        cmocka_unit_test(test_numbers),         cmocka_unit_test(test_bad_lines),
        cmocka_unit_test(test_one_warning),     cmocka_unit_test(test_line_without_end),
        cmocka_unit_test(test_bad_heads),       cmocka_unit_test(test_damage),
        cmocka_unit_test(test_merge),           cmocka_unit_test(test_steps_are_bounded),
        cmocka_unit_test(test_hash_and_diff),   cmocka_unit_test(test_binding),
        cmocka_unit_test(test_pins_and_chains), cmocka_unit_test(test_sources),
        cmocka_unit_test(test_memory),          cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
