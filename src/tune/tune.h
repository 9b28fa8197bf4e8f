/* tune: which candidate. Verifies candidates against the references, with cases made here; times and decides.
 * Knows operations and kernels; no network, no files, no command line.
 * Reading order: this, cases.h (how a case is built), verify.c, sweep.c (which cases), tolerance.c (how right is
 * right). */
#ifndef MM3_TUNE_H
#define MM3_TUNE_H

#include "kernels/kernels.h"
#include "tune/search.h"

/* ---- shapes and fills: what a case is made from ------------------------------------------------------------------ */

/* A shape is a value for every field of the operation's shape table, in its order: sizes, and words by their index. */
enum { MM3_MAX_SHAPE_FIELDS = 12 };
typedef struct mm3_shape {
    int v[MM3_MAX_SHAPE_FIELDS];
} mm3_shape;

/* The operation's default shape: small. */
mm3_shape mm3_shape_default(mm3_op_id op);
/* Its shape in MiniMax-M3 on one machine, as text without m. */
const char *mm3_shape_bench(mm3_op_id op);
/* 'm=3,n=64,w=mx': sets the named fields of *shape, leaves the others.
 * errors  MM3_ERR_ARG an unknown field, with the known ones; a value out of range; fields that contradict each other */
MM3_MUST_USE mm3_status mm3_shape_parse(mm3_op_id op, const char *text, mm3_shape *shape);
/* Every field, as mm3_shape_parse reads it, into text[n]. */
void mm3_shape_text(mm3_op_id op, const mm3_shape *shape, char *text, size_t n);
/* Field `name` (one that the operation has), and whether it has one. */
int mm3_shape_get(mm3_op_id op, const mm3_shape *shape, const char *name);
void mm3_shape_set(mm3_op_id op, mm3_shape *shape, const char *name, int value);
bool mm3_shape_has(mm3_op_id op, const char *name);

/* What the inputs are filled with. */
typedef enum mm3_fill {
    MM3_FILL_RANDOM,    /* normal variables */
    MM3_FILL_TRAINED,   /* as in a trained network: outlier channels, an offset, small weights */
    MM3_FILL_ZERO,      /* zeros of both signs */
    MM3_FILL_TINY,      /* around 2^-100 */
    MM3_FILL_HUGE,      /* around 2^90; sums of squares overflow, sums do not */
    MM3_FILL_SUBNORMAL, /* FP32 subnormals, subnormal codes, scale bytes near 0 */
    MM3_FILL_NAN,       /* random, with NaN in some rows */
    MM3_FILL_INF,       /* random, with infinities in some rows */
    MM3_FILL_SCALES,    /* every scale byte 0..255 */
    MM3_FILL_TIES,      /* exact ties: of ranks, of roundings, of limits */
    MM3_FILL_EXACT,     /* small whole numbers: every order of summation is exact, so every bit must agree */
    MM3_N_FILLS
} mm3_fill;
const char *mm3_fill_name(mm3_fill fill);
/* The fill of that name, or -1. */
int mm3_fill_find(const char *name);

/* ---- cases ------------------------------------------------------------------------------------------------------- */

/* One operation on inputs that follow from this alone. The content of a row depends on its id, not on its place:
 * row i has id first_row + i, or, reversed, first_row + m - 1 - i. */
typedef struct mm3_case_spec {
    mm3_op_id op;
    mm3_shape shape;
    mm3_fill fill;
    uint64_t seed;
    int first_row;
    bool reversed;
    bool no_reference; /* for timing: leave out what only comparisons need */
} mm3_case_spec;

/* A contract with guarded, filled arrays, and what the reference makes of them. One thread at a time. */
typedef struct mm3_case mm3_case;
/* errors  MM3_ERR_NOMEM; MM3_ERR_ARG an operand that the descriptor describes otherwise than the contract (a bug) */
MM3_MUST_USE mm3_status mm3_case_open(mm3_case **out, const mm3_case_spec *spec);
void mm3_case_close(mm3_case **c);
/* The contract struct. */
void *mm3_case_op(mm3_case *c);

/* ---- verify ------------------------------------------------------------------------------------------------------ */

/* What came of one candidate on one case. */
typedef enum mm3_outcome { MM3_PASSED, MM3_FAILED, MM3_REFUSED } mm3_outcome;
typedef struct mm3_verdict {
    mm3_outcome outcome;
    char why[320]; /* failed: the first thing that is wrong; refused: the reason */
    double worst;  /* largest error as a part of its tolerance, 0..1 when passed */
} mm3_verdict;

/* Run one candidate on a case and compare with the reference: poisoned outputs, guarded arrays at page ends and at odd
 * addresses, inputs unchanged, several numbers of threads, twice for equal bits. Faults are caught.
 * The calling thread plays all threads of the launch, in order and in reverse.
 *   device  for refusals; its n_threads is not used
 *   kernel  need not be in the registry
 * errors  MM3_ERR_NOMEM; what is wrong with the candidate is in the verdict */
MM3_MUST_USE mm3_status mm3_verify(mm3_case *c, const mm3_device_info *device, const mm3_kernel *kernel,
                                   const mm3_tactic *tactic, mm3_verdict *verdict);
/* The rows of this case alone, reversed, in a larger batch and on other numbers of threads: equal bits? For tactics
 * that say row_invariant. */
MM3_MUST_USE mm3_status mm3_verify_rows(const mm3_case_spec *spec, const mm3_device_info *device,
                                        const mm3_kernel *kernel, const mm3_tactic *tactic, mm3_verdict *verdict);
/* On the device itself, with its threads at the same time: equal bits to one thread after the other, ten times. */
MM3_MUST_USE mm3_status mm3_verify_device(mm3_case *c, mm3_device *device, const mm3_kernel *kernel,
                                          const mm3_tactic *tactic, mm3_verdict *verdict);

/* The tolerance table as text, one line per output: bound and error model (mm3_free).
 * errors  MM3_ERR_NOMEM */
MM3_MUST_USE mm3_status mm3_tolerances_text(char **text);

/* ---- sweep: every candidate on every case ------------------------------------------------------------------------ */

/* Which candidates, on which cases, and who is told. */
typedef struct mm3_sweep {
    int op;                 /* mm3_op_id or -1: all */
    const char *candidate;  /* NULL: all */
    const char *tactic;     /* NULL: all */
    const mm3_shape *shape; /* NULL: the operation's list; needs op */
    int fill;               /* mm3_fill or -1: all */
    uint64_t seed;
    bool quick;    /* a reduced set, for sanitizer builds */
    int n_workers; /* cases checked at the same time */
    /* Called for every verdict, one at a time. `repro` is the line that repeats it. */
    void (*report)(void *user, const mm3_kernel *kernel, const mm3_tactic *tactic, const mm3_verdict *verdict,
                   const char *repro);
    /* Called now and then with the part done, 0..1; may be NULL. */
    void (*progress)(void *user, double part);
    void *user;
} mm3_sweep;
/* errors  MM3_ERR_ARG an unknown candidate or tactic, a shape without an operation; MM3_ERR_NOMEM; wrong candidates are
 *         reported, not errors
 * proof   tests/kernels/test_check_faults.c, test_check_choices.c: planted faults are found */
MM3_MUST_USE mm3_status mm3_sweep_run(const mm3_sweep *sweep, mm3_device *device);

#endif
