/* faults: kernels with planted faults, for the tests of the check. A kernel here is the operation's own reference on
 * thread 0, spoilt in one way. */
#ifndef TEST_KERNELS_FAULTS_H
#define TEST_KERNELS_FAULTS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tune/tune.h"

/* ---- kernels of a function --------------------------------------------------------------------------------------- */

#define CORRECT(op_type, OP) \
    static void correct_##op_type(const op_type *op) { mm3_op_info_of(MM3_OP_##OP)->reference(op, NULL); }

/* A fault: function `name` of a contract, as a mm3_run on thread 0. */
#define FAULT(op_type, name)                                          \
    static void name(const op_type *op);                              \
    static void run_##name(const mm3_call *call, int i_thread, int n) \
    {                                                                 \
        (void)n;                                                      \
        if (i_thread == 0) name(call->op);                            \
    }                                                                 \
    static void name(const op_type *op)

/* ---- the table --------------------------------------------------------------------------------------------------- */

typedef struct fault {
    const char *name;
    mm3_op_id op;
    mm3_run *run;
    const char *shape; /* on all fills */
    const char *why;   /* part of what the verdict must say, or NULL */
} fault;

#define ON(OP, name, ...)                           \
    {                                               \
#name, MM3_OP_##OP, run_##name, __VA_ARGS__ \
    }
static size_t scratch_of_64(const void *op, const mm3_tactic *tactic, int n_threads)
{
    (void)op, (void)tactic, (void)n_threads;
    return 64;
}

/* Verify on every fill, rows too; returns the number of failures and keeps one verdict that says `why`. */
static int n_failures(const fault *f, const mm3_kernel *kernel, bool rows, mm3_verdict *kept)
{
    const mm3_device_info info = { .kind = "cpu", .n_threads = 2 };
    int n = 0;
    *kept = (mm3_verdict){ 0 };
    for (int fill = 0; fill < MM3_N_FILLS; fill++) {
        mm3_case_spec spec = { .op = f->op, .shape = mm3_shape_default(f->op), .fill = (mm3_fill)fill, .seed = 3 };
        mm3_verdict v[2] = { { 0 } };
        mm3_case *c;
        assert_int_equal(mm3_shape_parse(f->op, f->shape, &spec.shape), MM3_OK);
        assert_int_equal(mm3_case_open(&c, &spec), MM3_OK);
        assert_int_equal(mm3_verify(c, &info, kernel, &kernel->tactics[0], &v[0]), MM3_OK);
        mm3_case_close(&c);
        if (rows) assert_int_equal(mm3_verify_rows(&spec, &info, kernel, &kernel->tactics[0], &v[1]), MM3_OK);
        for (int i = 0; i < 2; i++) {
            if (v[i].outcome != MM3_FAILED) continue;
            n++;
            if (!f->why || strstr(v[i].why, f->why) || !kept->why[0]) *kept = v[i];
        }
    }
    return n;
}

static mm3_kernel kernel_of(const fault *f, const mm3_tactic *tactic)
{
    return (mm3_kernel){ .op = f->op,
                         .device = "cpu",
                         .name = f->name,
                         .tactics = tactic,
                         .n_tactics = 1,
                         .scratch = scratch_of_64,
                         .phase = { f->run },
                         .operand = MM3_F32 };
}

static const mm3_tactic tactic = { .name = "planted", .row_invariant = true };

static void is_caught(void **state)
{
    const fault *f = *state;
    const mm3_kernel kernel = kernel_of(f, &tactic);
    mm3_verdict v;
    bool rows = strncmp(f->name, "depends_on_", 11) == 0;
    int n = n_failures(f, &kernel, rows, &v);
    if (n == 0 || (f->why && !strstr(v.why, f->why)))
        fail_msg("%s: %d failures, \"%s\" should say \"%s\"", f->name, n, v.why, f->why ? f->why : "");
}

/* The same shapes with nothing spoilt: no failure. Run once for each operation and shape of the table. */
static mm3_op_id op_of_run;
static void run_reference(const mm3_call *call, int i_thread, int n_threads)
{
    (void)n_threads;
    if (i_thread == 0) mm3_op_info_of(op_of_run)->reference(call->op, NULL);
}

static void correct_kernels_pass(const fault *faults, int n_faults)
{
    for (int i = 0; i < n_faults; i++) {
        fault f = faults[i];
        mm3_kernel kernel;
        mm3_verdict v;
        bool seen = false;
        for (int j = 0; j < i; j++) seen |= faults[j].op == f.op && strcmp(faults[j].shape, f.shape) == 0;
        if (seen) continue;
        f.run = run_reference;
        op_of_run = f.op;
        kernel = kernel_of(&f, &tactic);
        if (n_failures(&f, &kernel, true, &v)) fail_msg("%s %s: %s", mm3_op_info_of(f.op)->name, f.shape, v.why);
    }
}

/* One test for each fault, after the n_own tests that `tests` begins with; it has room for all. */
static inline int run_faults(const char *name, struct CMUnitTest *tests, int n_own, const fault *faults, int n_faults)
{
    for (int i = 0; i < n_faults; i++)
        tests[n_own + i] = (struct CMUnitTest){ faults[i].name, is_caught, NULL, NULL, (void *)(uintptr_t)&faults[i] };
    return _cmocka_run_group_tests(name, tests, (size_t)(n_own + n_faults), NULL, NULL);
}

#endif
