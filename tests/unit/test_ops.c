/* An operation is complete: what its descriptor and lists cannot tell the compiler is lacking. */
#include "support/expect.h"
#include "tune/sweep_cases.h"

/* Whether a case has that word for field i of its shape. */
static bool has_word(const mm3__case_list *list, int i, int word)
{
    for (int j = 0; j < list->n; j++)
        if (list->item[j].spec.shape.v[i] == word) return true;
    return false;
}

/* mm3 check has cases of every operation, also those for rows and for the device's threads; and, unless it is quick, of
 * every word that a field of a shape may have. */
static void test_cases(void **state)
{
    (void)state;
    for (int op = 0; op < MM3_N_OPS; op++)
        for (int quick = 0; quick < 2; quick++) {
            const char *name = mm3_op_info_of((mm3_op_id)op)->name;
            const mm3__case_kind *kind = mm3__case_kind_of((mm3_op_id)op);
            mm3_sweep sweep = { .op = op, .fill = -1, .quick = quick };
            mm3__case_list list;
            bool rows = false, device = false;
            if (mm3__case_list_make(&list, &sweep) != MM3_OK) fail_msg("%s", mm3_last_error());
            for (int i = 0; i < list.n; i++) {
                assert_int_equal(list.item[i].spec.op, op);
                rows |= list.item[i].rows;
                device |= list.item[i].device;
            }
            if (!rows || !device) fail_msg("%s: no case for %s", name, rows ? "the device's threads" : "single rows");
            for (int i = 0; i < kind->n_fields && !quick; i++)
                for (int word = 0; kind->field[i].words && word <= kind->field[i].high; word++)
                    if (!has_word(&list, i, word))
                        fail_msg("%s: no case has word %d of %s=%s", name, word, kind->field[i].name,
                                 kind->field[i].words);
            mm3__case_list_free(&list);
        }
}

/* A shape's words are as many as its values. */
static void test_words(void **state)
{
    (void)state;
    for (int op = 0; op < MM3_N_OPS; op++) {
        const mm3__case_kind *kind = mm3__case_kind_of((mm3_op_id)op);
        for (int i = 0; i < kind->n_fields; i++) {
            const char *s = kind->field[i].words;
            int n = s != NULL;
            for (; s && *s; s++) n += *s == ' ';
            if (n && n != kind->field[i].high + 1)
                fail_msg("%s: %s has %d words", mm3_op_info_of((mm3_op_id)op)->name, kind->field[i].name, n);
        }
        assert_string_equal(kind->field[0].name, "m");
    }
}

/* Every output has a tolerance; the descriptor lists what the case has (mm3_case_open asks). */
static void test_outputs(void **state)
{
    (void)state;
    for (int op = 0; op < MM3_N_OPS; op++) {
        const mm3_op_info *info = mm3_op_info_of((mm3_op_id)op);
        mm3_case_spec spec = { .op = (mm3_op_id)op, .shape = mm3_shape_default((mm3_op_id)op), .seed = 1 };
        mm3_operand operand[MM3_MAX_OPERANDS];
        mm3_case *c;
        int n, n_outputs = 0;
        assert_int_equal(mm3_case_open(&c, &spec), MM3_OK);
        n = info->operands(mm3_case_op(c), operand);
        for (int i = 0; i < n; i++) {
            if (operand[i].access == MM3_IN) continue;
            if (!mm3__tolerance_of((mm3_op_id)op, operand[i].name))
                fail_msg("%s: no tolerance for %s in src/tune/tolerance.c", info->name, operand[i].name);
            n_outputs++;
        }
        assert_true(n_outputs > 0 && info->bytes(mm3_case_op(c)) > 0);
        mm3_case_close(&c);
    }
}

/* mm3 bench kernels has M3's own shape of every operation; it leaves m open. */
static void test_bench(void **state)
{
    (void)state;
    for (int op = 0; op < MM3_N_OPS; op++) {
        mm3_shape shape = mm3_shape_default((mm3_op_id)op);
        const char *text = mm3_shape_bench((mm3_op_id)op);
        if (!text) fail_msg("%s: its kind of case says no .bench", mm3_op_info_of((mm3_op_id)op)->name);
        EXPECT_OK(mm3_shape_parse((mm3_op_id)op, text, &shape));
        assert_null(strstr(text, "m="));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_outputs),
        cmocka_unit_test(test_bench),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
