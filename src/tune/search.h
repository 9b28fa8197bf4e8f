/* search: which candidate runs each stage. Verifies, times as deployed, decides, and keeps the decisions in a plan, in
 * this process's memory and in a cache folder. Receives stages and recorded graphs; knows no network. docs/tuning.md
 * tells the method. Reading order: this, tuner.h, search.c, race.c. */
#ifndef MM3_TUNE_SEARCH_H
#define MM3_TUNE_SEARCH_H

#include "kernels/kernels.h"

/* How it is measured and decided: plans made under another number are misses. */
enum { MM3_TUNE_POLICY = 4 };
/* What the engine's states are: contexts for what reads the KV cache, draws for what reads experts. */
#define MM3_TUNE_WORKLOAD "ctx 1k,8k,32k routing uniform"

/* ---- race.c: deciding from repeated measurements; no kernel in sight --------------------------------------------- */

/* What a race may cost and when it ends; start from MM3_RACE_RULES. */
typedef struct mm3_race_rules {
    int n_workloads; /* a round's ratio is the mean over these */
    int max_rounds;
    double margin;   /* a challenger must be faster by more than this part: 0.02 */
    double drop;     /* this far behind in two rounds is out, the holder in three: 1.25 */
    double least_s;  /* before this nothing within `drop` is said to be settled: noise comes in spells */
    double enough_s; /* after this many seconds of now() five rounds are enough; 4 times that if one seems ahead */
    double limit_s;  /* after this many no round begins */
    double (*now)(void *user); /* NULL: mm3_now_s */
    bool likely;               /* when the time is over, three quarters of the rounds are enough to win */
} mm3_race_rules;
/* One workload, a margin of 2 %, no limit of time. */
#define MM3_RACE_RULES                              \
    {                                               \
        1, 60, 0.02, 1.25, 0, 1e9, 1e9, NULL, false \
    }

/* Seconds of one round of competitor i on a workload; negative: it failed and is out. */
typedef double mm3_race_measure(void *user, int i, int i_workload);

/* What came of one competitor. */
typedef struct mm3_racer {
    mm3_fate fate; /* TIMED, DROPPED or FAILED */
    int rounds;
    double seconds, mad; /* median over rounds, mean over workloads; median absolute deviation */
    double ratio;        /* median over rounds of its time over the winner's */
    double ratio_mad;
} mm3_racer;

/* Race n competitors, interleaved round by round. The first that is still in when it ends holds the title; another one
 * takes it where it is surely faster by the margin; among equals the earlier one wins.
 *   racer    [n]
 *   winner   index; 0 where there were too few rounds to say anything (*decided false)
 * errors  MM3_ERR_NOMEM
 * proof   tests/unit/test_race.c; the rule: race.c */
MM3_MUST_USE mm3_status mm3_race(int n, mm3_race_measure *measure, void *user, const mm3_race_rules *rules,
                                 mm3_racer *racer, int *winner, bool *decided);

/* ---- the tuner --------------------------------------------------------------------------------------------------- */

/* Why nothing is tuned with these options of an engine (mm3.h); NULL: tuning applies. The model is MiniMax-M3 and in
 * one pipeline stage: mm3 knows no other. */
const char *mm3_tune_gate(const char *tune, const char *graphs, const char *plan);

/* How a tuner works; start from MM3_TUNE_OPTIONS_INIT. */
typedef struct mm3_tune_options {
    const mm3_pins *pins;          /* borrowed, or NULL */
    const char *cache_dir;         /* plan cache and journals; NULL: neither read nor written */
    const char *workload;          /* head of the plan: what `states` does */
    bool force;                    /* ignore memory and cache; replace what they hold */
    bool deterministic;            /* only row-invariant tactics, one decision per key without m */
    double budget_s;               /* for everything from mm3_tuner_open on; a fifth is kept for joint checks */
    double stage_s;                /* how long a stage of ordinary weight is timed; up to 3 times that */
    size_t max_scratch;            /* bytes that a candidate may ask for; 0: a quarter of the machine's memory */
    mm3_kernels_of_fn *kernels_of; /* NULL: mm3_kernels_of */
    double (*now)(void);           /* what launches are timed by; NULL: mm3_now_s */

    /* Called before and after each stage that is tuned, `best` NULL before. False cancels.
     *   i_stage, n_stages  of this call's list */
    bool (*progress)(void *user, int i_stage, int n_stages, const char *key, const char *best);
    /* Put the inputs that a stage depends on beyond its key into their i-th state (contexts, draws of experts) and
     * return how many states there are; i = -1: put them back as they were. NULL: only what the buffers hold. */
    int (*states)(void *user, const mm3_stage *stage, int i);
    void *user;
} mm3_tune_options;
/* No cache, no pins, a budget of 60 s, 20 ms a stage. */
#define MM3_TUNE_OPTIONS_INIT                                                                            \
    {                                                                                                    \
        NULL, NULL, "ctx as is routing as is", false, false, 60.0, 0.02, 0, NULL, NULL, NULL, NULL, NULL \
    }

/* What a tuner did. */
typedef struct mm3_tune_counts {
    int tuned;    /* stages decided by timing in this run */
    int reused;   /* stages whose decision came from memory or cache */
    int alone;    /* stages that had nothing to choose from */
    int pinned;   /* stages pinned, or with a pinned part */
    int untimed;  /* stages left native because the budget was spent */
    int rejected; /* candidates found wrong or failing */
    int steps_timed, steps_reused;
    long timings; /* timed replays */
    double seconds;
} mm3_tune_counts;

/* Decides stages, and keeps what it decided. One thread at a time. */
typedef struct mm3_tuner mm3_tuner;
/* Reads memory and cache; turns journals that a dead process left behind into disqualified candidates. Starts the
 * budget. Trouble with files is a warning. Options and device are borrowed.
 * errors  MM3_ERR_NOMEM */
MM3_MUST_USE mm3_status mm3_tuner_open(mm3_tuner **out, mm3_device *device, const mm3_tune_options *options);
void mm3_tuner_close(mm3_tuner **tuner);

/* n_lists lists of stages, the next one included, are still to come: the next may take 2/(n_lists
 * + 1) of the budget for stages, and what it leaves goes to the others. Without this call it may take all. */
void mm3_tuner_share(mm3_tuner *tuner, int n_lists);

/* Decide every stage that has no valid decision yet. The contracts' arrays hold what a real step left there, and hold
 * it again afterwards. Parts of a chain stand before it (mm3_collect_stages gives them so). Trouble with a
 * candidate is in its line.
 *   step_bytes  what a whole step touches; 0: the sum over these stages
 * errors  MM3_ERR_NOMEM a decision could not be kept; MM3_ERR_CANCELLED */
MM3_MUST_USE mm3_status mm3_tuner_stages(mm3_tuner *tuner, const mm3_stage *stages, int n, double step_bytes);

/* Whether every stage has a valid decision, so that mm3_tuner_stages has nothing to do.
 * errors  MM3_ERR_NOMEM */
MM3_MUST_USE mm3_status mm3_tuner_knows(mm3_tuner *tuner, const mm3_stage *stages, int n, bool *knows);

/* Whether the winners' graph of a step is really faster than the natives'. Reuses the verdict on the same decisions;
 * both graphs have their scratch.
 *   step     names it: "m=8"
 *   stages   [n] of the step, as collected
 *   reset    called before every replay, untimed: puts back what a step changes; may be NULL
 *   winners  out: the verdict
 * errors  MM3_ERR_UNSUPPORTED a stage has no decision; MM3_ERR_NOMEM */
MM3_MUST_USE mm3_status mm3_tuner_joint(mm3_tuner *tuner, const char *step, const mm3_stage *stages, int n,
                                        mm3_graph *winners_graph, mm3_graph *natives_graph, void (*reset)(void *user),
                                        void *user, bool *winners);

/* Keep the decisions: in this process's memory, and merged into the cache file. Trouble is a warning. */
void mm3_tuner_save(mm3_tuner *tuner);

/* What recorders bind by, for reports too: the plan in it is borrowed from the tuner. */
mm3_binding mm3_tuner_binding(const mm3_tuner *tuner);
/* So far. */
mm3_tune_counts mm3_tuner_counts(const mm3_tuner *tuner);
/* A line each, or "". */
const char *mm3_tuner_warnings(const mm3_tuner *tuner);

/* A plan that must hold as it is: right device, every line readable and of today's sources.
 * errors  MM3_ERR_FORMAT, MM3_ERR_IO; MM3_ERR_UNSUPPORTED it is another device's, or a line is stale */
MM3_MUST_USE mm3_status mm3_plan_load_strict(mm3_plan **out, const char *path, const mm3_device_info *device,
                                             const char *workload, mm3_kernels_of_fn *kernels_of);
/* Write a plan to a file: a temporary one beside it, then a rename. Straight into what is no regular file.
 * errors  MM3_ERR_IO (what was there is as before); MM3_ERR_NOMEM */
MM3_MUST_USE mm3_status mm3_plan_save(const mm3_plan *plan, const char *path);
/* The cache file of a device in a folder (mm3_free). */
char *mm3_plan_cache_path(const char *dir, const mm3_plan_head *head);
/* Forget what earlier engines of this process decided: what a test does to be a new process. */
void mm3_plan_memory_clear(void);

#endif
