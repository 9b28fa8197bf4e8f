/* fuzz: plan files. Input: the text.
 * Properties: what was read and printed is read again without a warning, printed the same, and hashes and compares the
 * same; a plan merged into an empty one says the same; each decision is found by its key. */
#include <stdlib.h>

#include "fuzz/fuzz.h"
#include "kernels/kernels.h"
#include "support/alloc_faults.h"

static const char what[] = "x.plan";

static char *print(const mm3_plan *plan)
{
    char *text;
    FUZZ_CHECK(mm3_plan_print(plan, &text) == MM3_OK, "%s", mm3_last_error());
    return text;
}

static void check_decisions(const mm3_plan *plan)
{
    for (int i = 0; i < mm3_plan_count(plan); i++) {
        const mm3_decision *d = mm3_plan_at(plan, i);
        FUZZ_CHECK(mm3_plan_is_key(d->key), "'%s' is no key", d->key);
        FUZZ_CHECK(mm3_plan_find(plan, d->key) == d, "'%s' is not found", d->key);
        FUZZ_CHECK(d->us >= 0 && d->mad >= 0 && d->error >= 0 && strlen(d->source) == 8, "a number out of range");
    }
    for (int i = 0; i < mm3_plan_count_steps(plan); i++) {
        const mm3_step_verdict *v = mm3_plan_step_at(plan, i);
        FUZZ_CHECK(mm3_plan_find_step(plan, v->step, v->of) == v, "step '%s' of %s is not found", v->step, v->of);
    }
}

static void check_same(const mm3_plan *a, const mm3_plan *b, const char *how)
{
    char x[9], y[9], *diff, why[512];
    mm3_plan_hash(a, x);
    mm3_plan_hash(b, y);
    FUZZ_CHECK(mm3_plan_diff(a, b, &diff) == MM3_OK, "%s", mm3_last_error());
    FUZZ_CHECK(!*diff && strcmp(x, y) == 0, "%s: %s differs from %s: %s", how, x, y, diff);
    FUZZ_CHECK(!mm3_plan_head_differs(mm3_plan_head_of(a), mm3_plan_head_of(b), why, sizeof why), "%s: %s", how, why);
    mm3_free(diff);
}

static void check(mm3_plan *plan)
{
    char *first = print(plan), *second, *third;
    mm3_buf warnings = { 0 };
    mm3_plan *again, *merged;
    check_decisions(plan);
    FUZZ_CHECK(mm3_plan_parse(&again, first, strlen(first), what, &warnings) == MM3_OK, "%s", mm3_last_error());
    FUZZ_CHECK(warnings.n == 0, "%s%s", warnings.data, first);
    second = print(again);
    FUZZ_CHECK(strcmp(first, second) == 0, "printed '%s', then '%s'", first, second);
    check_same(plan, again, "read again");
    FUZZ_CHECK(mm3_plan_open(&merged, mm3_plan_head_of(plan)) == MM3_OK, "%s", mm3_last_error());
    for (int i = 0; i < 2; i++) FUZZ_CHECK(mm3_plan_merge(merged, plan, false) == MM3_OK, "%s", mm3_last_error());
    third = print(merged);
    FUZZ_CHECK(strcmp(first, third) == 0, "printed '%s', merged '%s'", first, third);
    mm3_plan_bind(again, "cpu", mm3_kernels_of, what, &warnings);
    mm3_buf_free(&warnings);
    mm3_free(first);
    mm3_free(second);
    mm3_free(third);
    mm3_plan_close(&again);
    mm3_plan_close(&merged);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    mm3_buf warnings = { 0 };
    mm3_plan *plan;
    long before = alloc_count(), n_allocations;
    mm3_status st;
    fuzz_forget_error();
    st = mm3_plan_parse(&plan, (const char *)data, n, what, &warnings);
    n_allocations = alloc_count() - before;
    if (st != MM3_OK) {
        FUZZ_CHECK(st == MM3_ERR_FORMAT && !plan, "%s", mm3_status_name(st));
        fuzz_error(st, what);
        FUZZ_CHECK(warnings.n == 0, "an error and a warning: %s", warnings.data);
    } else {
        const char *newline = warnings.n ? strchr(warnings.data, '\n') : NULL;
        FUZZ_CHECK(warnings.n == 0 || (newline && !newline[1] && strstr(warnings.data, what)),
                   "not one line that names the file: %s", warnings.data);
        check(plan);
        mm3_plan_close(&plan);
    }
    mm3_buf_clear(&warnings);
    if (fuzz_memory_fails(data, n, n_allocations)) {
        mm3_status again = mm3_plan_parse(&plan, (const char *)data, n, what, &warnings);
        fuzz_memory_failed(again, st);
        mm3_plan_close(&plan);
    }
    mm3_buf_free(&warnings);
    return 0;
}
