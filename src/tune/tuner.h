/* tuner: what the files of the search share. Internal to this folder. */
#ifndef MM3_TUNE_TUNER_H
#define MM3_TUNE_TUNER_H

#include "tune/search.h"

/* ---- the tuner (search.c) ---------------------------------------------------------------------------------------- */

/* A file that names the candidate at its first launch (journal.c). */
typedef struct mm3__journal mm3__journal;

/* search.h's tuner. */
struct mm3_tuner {
    mm3_device *device;          /* borrowed */
    const mm3_device_info *info; /* borrowed */
    mm3_tune_options options;
    mm3_plan *plan; /* owned: what is remembered, cached and decided here */
    mm3_buf warnings;
    mm3_tune_counts counts;
    double start;           /* mm3_now_s at open */
    double share_end;       /* when this list's share of the budget is spent; 0: it has all */
    mm3__journal *journal;  /* owned; NULL: none */
    unsigned char *scratch; /* owned: what launches get */
    size_t n_scratch;
    unsigned char *stream; /* owned: read through to evict everything else from the caches */
    size_t n_stream;
};

/* Add a line to the warnings. */
void mm3__warn(mm3_tuner *t, const char *fmt, ...) MM3_PRINTF(2, 3);
/* Seconds of the budget that are left; for stages, of this list's share, without what is kept for joint checks. */
double mm3__budget_left(const mm3_tuner *t, bool for_stages);
/* Make the scratch area this large.
 * errors  MM3_ERR_NOMEM more than a candidate may ask for, or than there is */
mm3_status mm3__scratch_need(mm3_tuner *t, size_t n_bytes);

/* One key to decide: the contracts that share it. Deterministic keys have no m, so theirs come in groups of different
 * m. */
enum { MM3__MAX_GROUPS = 4 };
typedef struct mm3__work {
    mm3_op_id op;
    const char *key;
    const mm3_stage *group[MM3__MAX_GROUPS]; /* borrowed */
    int n_groups;
    double step_bytes;
} mm3__work;

/* ---- who may run (entrants.c) ------------------------------------------------------------------------------------ */

/* A candidate with a tactic, on its way through a stage. */
typedef struct mm3__entrant {
    mm3_choice choice;
    bool in;       /* still a candidate */
    mm3_fate fate; /* where it is out: why */
    char why[240];
    double error;
    char source[9];
    mm3_racer result; /* once raced */
} mm3__entrant;
/* Every tactic of every candidate, in list order, with those out that refuse, have crashed or break a rule.
 *   entrant  owned by the caller (mm3_free)
 * errors  MM3_ERR_NOMEM */
mm3_status mm3__entrants(mm3_tuner *t, const mm3__work *w, mm3__entrant **entrant, int *n);
/* Take it out of the race, and say why. */
void mm3__entrant_leave_out(mm3__entrant *e, mm3_fate fate, const char *fmt, ...) MM3_PRINTF(3, 4);
/* Whether the decision was made among these very entrants. */
bool mm3__decision_is_current(const mm3_decision *d, const mm3__entrant *entrant, int n);
/* Whether this run left the stage native because a share of the budget was spent; NULL: no decision. */
bool mm3__is_left(const mm3_decision *d);
/* Keep a decision: `winner` was chosen, the others are what was tried. */
mm3_status mm3__decide(mm3_tuner *t, const mm3__work *w, const mm3__entrant *entrant, int n, int winner, mm3_how how);

/* Choose functions. native: the first of each list. entrant: it for its operation, and what the plan says for parts. */
mm3_choose mm3__choose_native;  /* user: mm3_tuner * */
mm3_choose mm3__choose_entrant; /* user: mm3__choosing * */
typedef struct mm3__choosing {
    mm3_tuner *tuner;
    mm3_choice choice;
} mm3__choosing;

/* ---- one stage (stage.c) ----------------------------------------------------------------------------------------- */

/* Verify, time and decide. Buffers are as before afterwards.
 * errors  MM3_ERR_NOMEM the decision could not be kept */
mm3_status mm3__stage_tune(mm3_tuner *t, const mm3__work *w);

/* ---- verifying (verify_stage.c, twin.c) -------------------------------------------------------------------------- */

/* A contract with arrays of its own: copies of the inputs, guarded outputs. Weights and KV pages are the network's;
 * rows of KV pages that the operation writes are put back when the twin is closed. */
typedef struct mm3__twin mm3__twin;
/* errors  MM3_ERR_NOMEM */
mm3_status mm3__twin_open(mm3__twin **out, mm3_op_id op, const void *contract);
void mm3__twin_close(mm3__twin **twin);
/* Borrowed. */
const void *mm3__twin_contract(const mm3__twin *twin);
/* Other inputs of the same kind: FP32 values are scaled at random, codes and scale
 * bytes shuffled; whole numbers stay. */
void mm3__twin_perturb(mm3__twin *twin, uint64_t seed);
/* Before a launch: outputs become NaN and nonsense, inputs what they were. */
void mm3__twin_poison(mm3__twin *twin);
/* What the last launch left is right. */
void mm3__twin_keep(mm3__twin *twin);
/* Is what the last launch left right? Else why[n]. *error: the largest, as a part of the output's size. */
bool mm3__twin_compare(const mm3__twin *twin, const mm3_kernel *kernel, double *error, char *why, size_t n);

/* Run every entrant but the first once, on the same inputs as native, and leave out those that are wrong or fail. */
mm3_status mm3__entrants_verify(mm3_tuner *t, const mm3__work *w, mm3__entrant *entrant, int n);
/* The same for one entrant, through a graph that is replayed, on fresh inputs. */
mm3_status mm3__entrant_verify_replay(mm3_tuner *t, const mm3__work *w, mm3__entrant *entrant);

/* Bind and run one operation on the device, now. */
mm3_status mm3__op_run(mm3_tuner *t, mm3_op_id op, const void *contract, mm3_choose *choose, void *user);
/* Append the calls of one operation to a graph; what they point to goes to the arena. */
mm3_status mm3__op_append(mm3_tuner *t, mm3_graph *graph, mm3_arena *arena, mm3_op_id op, const void *contract,
                          mm3_choose *choose, void *user, size_t *need);
/* Rows of KV pages that an operation writes: their addresses and bytes; NULL where it writes none. *row is for
 * mm3_free().
 * errors  MM3_ERR_NOMEM */
typedef struct mm3__range {
    unsigned char *at;
    size_t n_bytes;
} mm3__range;
mm3_status mm3__kv_rows(mm3_op_id op, const void *contract, mm3__range **row, int *n);
/* Whether the operand is the pool of KV pages, which no copy is made of. */
bool mm3__operand_is_kv_pool(const mm3_operand *operand);

/* ---- timing (measure.c) ------------------------------------------------------------------------------------------ */

/* Times entrants on the network's own buffers and puts back what they overwrite. */
typedef struct mm3__bench mm3__bench;
mm3_status mm3__bench_open(mm3__bench **out, mm3_tuner *t, const mm3__work *w);
void mm3__bench_close(mm3__bench **bench);
/* How many states its inputs have. */
int mm3__bench_workloads(const mm3__bench *bench);
/* Record the graphs of entrant i of n. */
mm3_status mm3__bench_add(mm3__bench *bench, int i, int n, const mm3__entrant *entrant);
/* Seconds of one launch, on the average over the contracts; a mm3_race_measure. */
double mm3__bench_measure(void *bench, int i, int i_workload);

/* ---- files (cache.c, journal.c) ---------------------------------------------------------------------------------- */

/* What this process remembers, into the plan; and back. */
mm3_status mm3__memory_recall(mm3_plan *plan);
mm3_status mm3__memory_keep(const mm3_plan *plan);
/* What the cache file says, into the plan; trouble is a warning. */
void mm3__cache_recall(mm3_tuner *t);
/* The plan into the cache file, merged with what is there. Whether it is in the file now; else a warning says why. */
bool mm3__cache_keep(mm3_tuner *t);

/* NULL where the folder can't be written: a warning. Collects what dead processes left: crashed lines of the plan. */
mm3__journal *mm3__journal_open(mm3_tuner *t);
void mm3__journal_close(mm3__journal **journal);
/* Around a candidate's first launch. */
void mm3__journal_begin(mm3_tuner *t, const char *key, const mm3__entrant *entrant);
void mm3__journal_end(mm3_tuner *t);
/* Make the folder, and its parent. */
bool mm3__folder_make(const char *dir);

#endif
