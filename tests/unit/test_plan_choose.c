/* From a plan to what a stage is bound to: sources that changed, pins, chains, keys without m, the next larger row
 * count. */
#include <string.h>

#include "kernels/kernels.h"
#include "support/expect.h"

static const char head_line[] =
    "# mm3 plan 1 | cpu Test avx2 | threads 2 | policy 1 | ctx 1k,8k,32k routing uniform | mm3 0.1.0\n";

static mm3_plan *parse(const char *text, mm3_buf *warnings)
{
    mm3_plan *plan = NULL;
    EXPECT_OK(mm3_plan_parse(&plan, text, strlen(text), "t.plan", warnings));
    return plan;
}

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
    mm3_buf w = { 0 };
    mm3_plan *plan = parse(head_line, &w);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_binding),
        cmocka_unit_test(test_pins_and_chains),
        cmocka_unit_test(test_sources),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
