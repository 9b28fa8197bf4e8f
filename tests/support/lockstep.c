#include "support/lockstep.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef union contract_copy {
    max_align_t align;
    unsigned char bytes[MM3_MAX_OP_BYTES];
} contract_copy;

/* FP32 outputs may be off by this much of their terms: natives add a few hundred of them, 2^-24 each. */
static const double TOLERANCE = 1e-5;

static void say(lockstep *l, mm3_op_id op, const mm3_operand *o, const char *what, double by)
{
    if (!*l->wrong)
        snprintf(l->wrong, sizeof l->wrong, "%s %d: %s %s (%g)", mm3_op_info_of(op)->name, l->n_issued[op], o->name,
                 what, by);
}

/* The operation's first FP32 output, element by element. */
static void compare_terms(lockstep *l, mm3_op_id op, const mm3_operand *o, const float *want, const double *magnitude)
{
    const float *got = *o->at;
    for (size_t i = 0; i < o->n_bytes / sizeof(float); i++) {
        double d = fabs((double)got[i] - (double)want[i]);
        double error = d == 0 || (isnan(got[i]) && isnan(want[i])) ? 0 : d / (magnitude[i] + 0x1p-126);
        if (!(error <= TOLERANCE)) say(l, op, o, "differs", error);
        if (error > l->worst[op]) l->worst[op] = error;
    }
}

/* Other outputs: FP32 as a whole, codes and choices byte by byte. */
static void compare_whole(lockstep *l, mm3_op_id op, const mm3_operand *o, const void *want)
{
    double d = 0, s = 0;
    const float *x = *o->at, *y = want;
    if (memcmp(x, y, o->n_bytes) == 0) return;
    if (o->type != MM3_F32) {
        say(l, op, o, "is not the same", 0);
        return;
    }
    for (size_t i = 0; i < o->n_bytes / sizeof(float); i++) {
        d += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        s += (double)y[i] * (double)y[i];
    }
    if (!(sqrt(d / s) <= TOLERANCE)) say(l, op, o, "differs as a whole", sqrt(d / s));
}

static mm3_status issue(mm3_recorder *self, mm3_op_id op, const void *contract)
{
    lockstep *l = (lockstep *)self;
    const mm3_op_info *info = mm3_op_info_of(op);
    contract_copy real, ref;
    mm3_operand a[MM3_MAX_OPERANDS], b[MM3_MAX_OPERANDS];
    void *want[MM3_MAX_OPERANDS] = { 0 };
    double *magnitude = NULL;
    int n, first = -1;
    mm3_status st = MM3_OK;
    memcpy(real.bytes, contract, info->n_bytes);
    memcpy(ref.bytes, contract, info->n_bytes);
    n = info->operands(real.bytes, a);
    info->operands(ref.bytes, b);
    for (int i = 0; i < n; i++) {
        if (a[i].access == MM3_IN) continue;
        want[i] = mm3_malloc(a[i].n_bytes + 1);
        if (!want[i]) goto done;
        memcpy(want[i], *a[i].at, a[i].n_bytes); /* what neither writes stays the same */
        *b[i].at = want[i];
        if (a[i].type == MM3_F32 && first < 0) first = i;
    }
    if (first >= 0) {
        magnitude = mm3_calloc(a[first].n_bytes / sizeof(float) + 1, sizeof *magnitude);
        if (!magnitude) goto done;
    }
    l->n_issued[op]++;
    info->reference(ref.bytes, magnitude);
    st = mm3_issue(l->behind, op, contract);
    for (int i = 0; st == MM3_OK && i < n; i++) {
        if (a[i].access == MM3_IN) continue;
        if (i == first)
            compare_terms(l, op, &a[i], want[i], magnitude);
        else
            compare_whole(l, op, &a[i], want[i]);
    }
done:
    if (first >= 0 && !magnitude) st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for the reference's outputs");
    for (int i = 0; i < n; i++) mm3_free(want[i]);
    mm3_free(magnitude);
    return st;
}

void lockstep_open(lockstep *l, mm3_recorder *behind) { *l = (lockstep){ .base.issue = issue, .behind = behind }; }
