/* plan: which candidate each stage runs, as text with one decision a line, and a mm3_choose over it.
 * Knows no clock and no folder: tune/ makes plans, anyone reads them. Include kernels.h, which ends with this.
 *
 *   # mm3 plan 1 | cpu Intel(R) Xeon(R) Processor avx2 avx512 | threads 8 | policy 4 | ctx 1k,8k,32k routing uniform | mm3 0.1.0
 *   linear m=8 n=9216 k=6144 w=mx act=w8a8 | avx512/tile32 | 15.02us mad 0.1 | err 2e-07 | src 51b07d20
 *     native | 40.11us mad 0.3 | 2.67x | err 0 | src 9f2c1e7a
 *     amx | refused: needs amx_bf16 | src 07aa31c5
 *   step m=8 | winners | 0.91 of native mad 0.01 | of 77ab12cd
 *   crashed router m=8 experts=128 top_k=4 | avx512 | src 1c0ffee1
 *
 * Under a stage stands what else was tried, and what became of it. The format is docs/tuning.md's.
 * proof  tests/unit/test_plan.c, test_plan_choose.c; tests/fuzz/fuzz_plan.c */
#ifndef MM3_KERNELS_PLAN_H
#define MM3_KERNELS_PLAN_H

#include "device/device.h"
#include "ops/ops.h"

/* kernels.h's. */
typedef struct mm3_kernel mm3_kernel;
typedef struct mm3_tactic mm3_tactic;
typedef struct mm3_choice mm3_choice;
typedef struct mm3_pins mm3_pins;
typedef struct mm3_stage mm3_stage;

/* The number in the first line; room for a key and for "CANDIDATE/TACTIC", NUL included. */
enum { MM3_PLAN_FORMAT = 1, MM3_MAX_KEY_TEXT = 256, MM3_MAX_CHOICE_TEXT = 96 };

/* What all decisions of a plan hold for. */
typedef struct mm3_plan_head {
    char device[256]; /* "cpu Intel(R) Xeon(R) Processor avx2 avx512": kind, name, features */
    int n_threads;
    int policy;        /* how it was measured and decided: MM3_TUNE_POLICY */
    char workload[64]; /* "ctx 1k,8k,32k routing uniform" */
    char version[16];  /* of the mm3 that wrote it; decides nothing */
} mm3_plan_head;
/* The head of what is decided on this device. */
void mm3_plan_head_of_device(mm3_plan_head *head, const mm3_device_info *device, int policy, const char *workload);
/* NULL where a plan made under `a` holds under `b`, else why not: "it was made for 8 threads, not 2". Into why[n]. */
const char *mm3_plan_head_differs(const mm3_plan_head *a, const mm3_plan_head *b, char *why, size_t n);

/* How a decision came about. */
typedef enum mm3_how {
    MM3_HOW_TIMED,
    MM3_HOW_ALONE,   /* nothing else was left to time it against */
    MM3_HOW_UNTIMED, /* the budget was spent: the first of the list */
    MM3_HOW_PINNED   /* by the user; never kept in memory or cache */
} mm3_how;

/* What became of a candidate that was not chosen. */
typedef enum mm3_fate {
    MM3_FATE_TIMED,        /* timed, and not the best */
    MM3_FATE_DROPPED,      /* far behind after few rounds */
    MM3_FATE_UNTIMED,      /* right, but the budget ended */
    MM3_FATE_REFUSED,      /* it does not accept the stage */
    MM3_FATE_DISQUALIFIED, /* a rule of the tuner leaves it out */
    MM3_FATE_WRONG,        /* its output differs from native's */
    MM3_FATE_FAILED,       /* out of memory; crashed in an earlier run */
    MM3_N_FATES
} mm3_fate;

/* A candidate that was not chosen. */
typedef struct mm3_tried {
    char *choice; /* "avx512/tile32"; without a tactic: its first */
    mm3_fate fate;
    double us, mad; /* timed: median of one launch and its median absolute deviation */
    double ratio;   /* timed: time over the winner's. dropped: over the best's */
    int rounds;     /* dropped: after how many */
    double error;   /* timed: against native, as a part of the output's magnitude */
    char *why;      /* the others */
    char source[9]; /* mm3_kernel_source, for a split chain with its parts' */
} mm3_tried;

/* What one stage is bound to. In a plan the texts are owned by it. */
typedef struct mm3_decision {
    char *key;
    char *choice;
    mm3_how how;
    double us, mad, error; /* timed */
    char source[9];
    mm3_tried *tried;
    int n_tried;
    /* Not part of the text. Set by mm3_plan_bind; NULL: this build has no such candidate, or another source of it. */
    const mm3_kernel *kernel;
    const mm3_tactic *tactic;
    bool made_here; /* by this run: neither read from a file nor remembered */
} mm3_decision;

/* The verdict on a whole step. */
typedef struct mm3_step_verdict {
    char *step;   /* "m=8" */
    bool winners; /* else natives */
    bool timed;
    double ratio, mad; /* winners over natives, per round */
    char of[9];        /* hash of the decisions that the step was recorded with */
    bool made_here;    /* not part of the text */
    int age;           /* nor this: of mm3__plan_order alone */
} mm3_step_verdict;

/* Decisions, verdicts and crashes under one head. One thread at a time.
 * errors  MM3_ERR_NOMEM */
typedef struct mm3_plan mm3_plan;
MM3_MUST_USE mm3_status mm3_plan_open(mm3_plan **out, const mm3_plan_head *head);
void mm3_plan_close(mm3_plan **plan);
const mm3_plan_head *mm3_plan_head_of(const mm3_plan *plan);

/* Decisions, ordered by operation and key. Borrowed until the plan changes. */
int mm3_plan_count(const mm3_plan *plan);
const mm3_decision *mm3_plan_at(const mm3_plan *plan, int i);
const mm3_decision *mm3_plan_find(const mm3_plan *plan, const char *key);
/* Copies; replaces a decision of the same key. Times are rounded to the digits that are printed.
 * errors  MM3_ERR_NOMEM (plan unchanged) */
MM3_MUST_USE mm3_status mm3_plan_set(mm3_plan *plan, const mm3_decision *decision);

/* Verdicts, ordered by step and age; of a step the newest 8 are kept. find: the one on these very decisions (`of`:
 * mm3_binding_hash), NULL if there is none. set copies, and replaces one of the same step and decisions.
 * errors  MM3_ERR_NOMEM (plan unchanged) */
const mm3_step_verdict *mm3_plan_find_step(const mm3_plan *plan, const char *step, const char *of);
int mm3_plan_count_steps(const mm3_plan *plan);
const mm3_step_verdict *mm3_plan_step_at(const mm3_plan *plan, int i);
MM3_MUST_USE mm3_status mm3_plan_set_step(mm3_plan *plan, const mm3_step_verdict *verdict);

/* A candidate that took the process with it at its first launch; it counts while its source is the same.
 * errors  MM3_ERR_NOMEM (plan unchanged) */
MM3_MUST_USE mm3_status mm3_plan_set_crashed(mm3_plan *plan, const char *key, const char *choice, const char *source);
bool mm3_plan_has_crashed(const mm3_plan *plan, mm3_op_id op, const char *candidate, const char *source);

/* Take over what `from` holds; where both decide, from's stands, except that untimed never replaces timed.
 *   kept  between a run and what it keeps (memory, cache): nothing pinned and no untimed verdict passes, what `from`
 *         did not make itself only fills gaps, and the copies are nobody's own
 * errors  MM3_ERR_NOMEM (some of it was taken over) */
MM3_MUST_USE mm3_status mm3_plan_merge(mm3_plan *into, const mm3_plan *from, bool kept);

/* Text, stable: the same decisions give the same text (mm3_free).
 * errors  MM3_ERR_NOMEM */
MM3_MUST_USE mm3_status mm3_plan_print(const mm3_plan *plan, char **text);
void mm3_plan_print_decision(const mm3_decision *decision, mm3_buf *to);
/* Eight hex digits of a hash of keys and choices; times, errors and sources do not count. */
void mm3_plan_hash(const mm3_plan *plan, char hash[9]);
/* What differs, a line each: '< ' only in a, '> ' only in b, '! ' another choice. "" where nothing does.
 *   text  for mm3_free()
 * errors  MM3_ERR_NOMEM */
MM3_MUST_USE mm3_status mm3_plan_diff(const mm3_plan *a, const mm3_plan *b, char **text);

/* Read a plan (plan_parse.c). A bad line is left out, with one warning for all of them appended to `warnings`.
 *   what    names the text in messages
 *   out     NULL after an error
 * errors  MM3_ERR_FORMAT the first line is no head of this format; MM3_ERR_NOMEM; load: MM3_ERR_IO */
MM3_MUST_USE mm3_status mm3_plan_parse(mm3_plan **out, const char *text, size_t n_bytes, const char *what,
                                       mm3_buf *warnings);
MM3_MUST_USE mm3_status mm3_plan_load(mm3_plan **out, const char *path, mm3_buf *warnings);
/* Whether the text is a stage's key: an operation and its fields. */
bool mm3_plan_is_key(const char *text);

/* ---- from names to candidates (plan_choose.c) -------------------------------------------------------------------- */

/* mm3_kernels_of, or what stands in for it. */
typedef int mm3_kernels_of_fn(mm3_op_id op, const char *device, const mm3_kernel **out, int max);

/* Eight hex digits that change when the candidate's file, a header or a shared file of its folder, or the compiler's
 * options change; "00000000" for a candidate that was not built with mm3. */
const char *mm3_kernel_source(const mm3_kernel *kernel);
/* "avx512/tile32", or "native" where the tactic is the first and is called default; into text[n]. */
void mm3_choice_text(const mm3_kernel *kernel, const mm3_tactic *tactic, char *text, size_t n);
/* Find the candidate of every decision. One that is unknown, or whose source is another now, is left unbound, with one
 * warning for all of them. What a split chain depends on is not known here: its source is not compared. */
void mm3_plan_bind(mm3_plan *plan, const char *device, mm3_kernels_of_fn *kernels_of, const char *what,
                   mm3_buf *warnings);

/* What a recorder binds stages by. All borrowed. */
typedef struct mm3_binding {
    const mm3_plan *plan;          /* bound */
    const mm3_pins *pins;          /* or NULL */
    const mm3_device_info *device; /* for round_up and pinned parts */
    mm3_kernels_of_fn *kernels_of; /* NULL: mm3_kernels_of */
    bool deterministic;            /* decisions have keys without m */
    bool round_up; /* no decision at this m: the one at the next larger m that accepts it; if none, the list's first */
} mm3_binding;
/* The pin, else the plan's decision; for a chain that has a pinned part: its split form.
 *   user    const mm3_binding *
 * errors  MM3_ERR_UNSUPPORTED the plan has no decision for the key, or a stale one */
mm3_status mm3_choose_planned(void *user, mm3_op_id op, const void *contract, mm3_choice *choice);
/* The key that a decision is kept under; returns its length as snprintf does. */
int mm3_plan_key(mm3_op_id op, const void *contract, bool deterministic, char *text, size_t n);
/* Whether a part of the chain is pinned; its key into text[n]. */
bool mm3_part_is_pinned(const mm3_pins *pins, mm3_op_id op, const void *contract, char *text, size_t n);
/* Every stage has a decision that can be bound.
 * errors  MM3_ERR_UNSUPPORTED names the first key that has none */
MM3_MUST_USE mm3_status mm3_plan_require(const mm3_binding *binding, const mm3_stage *stages, int n);
/* Whether equal bits alone and in a batch can be promised with these pins: what is pinned has independent rows, and
 * stages that differ from one of `like` in m alone are pinned as it is.
 * errors  MM3_ERR_ARG names the stage */
MM3_MUST_USE mm3_status mm3_pins_check_deterministic(const mm3_pins *pins, const mm3_stage *stages, int n,
                                                     const mm3_stage *like, int n_like);
/* Hash of what the stages are bound to, in order: what a step's verdict is of. */
MM3_MUST_USE mm3_status mm3_binding_hash(const mm3_binding *binding, const mm3_stage *stages, int n, char hash[9]);

#endif
