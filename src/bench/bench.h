/* bench: what things cost. Statistics, the machine's own ceilings, and kernels timed beside them.
 * Knows operations, kernels and their cases; prints nothing. */
#ifndef MM3_BENCH_H
#define MM3_BENCH_H

#include "tune/tune.h"

/* ---- statistics (statistics.c) ----------------------------------------------------------------------------------- */

/* Middle value and median absolute deviation; NaN without values. Sorts x. */
typedef struct mm3_spread {
    double median, mad;
} mm3_spread;
mm3_spread mm3_spread_of(double *x, int n);

/* ---- ceilings (ceiling.c) ---------------------------------------------------------------------------------------- */

/* Reads memory in every way that is fastest on some machine: plain loads, and loads with a non-temporal prefetch ahead
 * of them; all threads at once. Owns one large buffer. */
typedef struct mm3_ceiling mm3_ceiling;
/*   n_bytes  of the buffer
 * errors     MM3_ERR_NOMEM */
MM3_MUST_USE mm3_status mm3_ceiling_open(mm3_ceiling **out, mm3_device *device, size_t n_bytes);
void mm3_ceiling_close(mm3_ceiling **c);
/* Ways to read on this machine, and way i in words. */
int mm3_ceiling_count(const mm3_ceiling *c);
const char *mm3_ceiling_name(const mm3_ceiling *c, int i);
/* Seconds to read the next n_bytes of the buffer (going round) in way i; *n_read is what was read: whole lines. */
double mm3_ceiling_read(mm3_ceiling *c, int i, size_t n_bytes, size_t *n_read);
/* Read all of the buffer, so that nothing else stays in a cache smaller than it. */
void mm3_ceiling_evict(mm3_ceiling *c);

/* The most multiply-adds this device was seen to do, times two, per second, and by which instruction. */
double mm3_peak_flops(mm3_device *device, const char **by);

/* ---- kernels side by side (kernels.c) ---------------------------------------------------------------------------- */

/* What to time: one operation, in one shape but for m. */
typedef struct mm3_bench {
    mm3_op_id op;
    mm3_shape shape; /* m is replaced by each of m[] */
    const int *m;
    int n_m;
    const char *candidate; /* NULL: all */
    const char *tactic;    /* NULL: all */
    int rounds;            /* 0: as many as fit into `seconds`, 7 to 60 */
    double seconds;        /* for each m */
    uint64_t seed;
} mm3_bench;

/* One candidate and tactic at one m. */
typedef struct mm3_bench_row {
    int m;
    const mm3_kernel *kernel;
    const mm3_tactic *tactic;
    char key[256];     /* the stage */
    char refused[256]; /* why it was not run, or "" */
    double time_s, mad_s;
    double bytes, flops; /* what a launch must move and compute at least */
    double fraction;     /* median over rounds of the ceiling's time per byte over the candidate's */
    int n_rounds;
} mm3_bench_row;

/* What was measured; free with mm3_bench_kernels_free. */
typedef struct mm3_bench_result {
    mm3_bench_row *row; /* owned */
    int n_rows;
    double ceiling; /* bytes per second: the median of the rounds' reads, in the best way */
    const char *ceiling_by;
    double peak; /* operations per second */
    const char *peak_by;
    double launch_s;            /* of a launch that does nothing, all threads: the least median of any m */
    size_t last_cache, rotated; /* bytes: what has to be outlived, and what inputs were rotated over */
    int n_copies;
    bool evicted;     /* copies were too few for that: the cache was read full in between */
    bool may_be_warm; /* memory was too short even for that */
} mm3_bench_result;

/* Time candidates as they meet their inputs in a model: cold. Every round runs the ceiling and then each candidate
 * once, each on the next copy of the inputs.
 * errors  MM3_ERR_ARG no candidate of that name; MM3_ERR_NOMEM */
MM3_MUST_USE mm3_status mm3_bench_kernels_run(mm3_bench_result *out, const mm3_bench *bench, mm3_device *device);
void mm3_bench_kernels_free(mm3_bench_result *result);

/* ---- decode steps (decode.c) ------------------------------------------------------------------------------------- */

/* One operation of a step: all its calls. */
typedef struct mm3_bench_op {
    char name[32];
    int calls;
    double share; /* of the step */
    double time_s;
    double bytes;
} mm3_bench_op;

/* One stage of a step, as the plan has it. */
typedef struct mm3_bench_stage {
    char *key, *choice; /* owned */
    int calls;
    double time_s, bytes;
} mm3_bench_stage;

/* A step of m rows. Ratios are medians over rounds, with median absolute deviations; NaN where there is nothing to
 * compare with. */
typedef struct mm3_bench_step {
    int m, graph, context, n_rounds; /* m rows, in the graph of `graph` rows */
    bool winners;                    /* the graph that serves is the winners'; else the natives' */
    mm3_spread time, eager, natives; /* seconds; natives: of their graph */
    mm3_spread over_eager;           /* the graph's time over that of the same kernels issued one by one */
    mm3_spread over_natives;         /* the winners' graph over the natives' */
    mm3_spread over_exact;           /* the graph over one of m rows: what padding costs */
    double experts_hit;              /* on the average of layers */
    double bytes;                    /* what the step must move: of weights what is hit, once */
    double ceiling;                  /* bytes per second that this machine reads, before and after these steps */
    double fraction;                 /* of the ceiling */
    double stamped;                  /* sum over the stages over a step: what stopping after each adds */
    mm3_bench_op op[MM3_N_OPS];      /* those it has, the largest share first */
    int n_ops;
    mm3_bench_stage *stage; /* owned */
    int n_stages;
} mm3_bench_step;

/* Steps of several sizes; free with mm3_bench_decode_free. */
typedef struct mm3_bench_decode {
    mm3_bench_step *step; /* owned */
    int n_steps;
    double ceiling; /* bytes per second: the median of all reads, in the best way */
    const char *ceiling_by;
    bool may_be_warm; /* the steps' bytes would fit the last cache: the fraction says little */
    size_t last_cache;
} mm3_bench_decode;

/* Time the engine's recorded steps of m[0..n_m) rows, and the memory's speed before and after each.
 *   seconds  for each m; rounds  0: as many as fit
 * errors  those of mm3_engine_measure; MM3_ERR_NOMEM */
MM3_MUST_USE mm3_status mm3_bench_decode_run(mm3_bench_decode *out, mm3_engine *engine, const int *m, int n_m,
                                             int context, double seconds, int rounds);
void mm3_bench_decode_free(mm3_bench_decode *result);

/* ---- the host's side (host.c) ------------------------------------------------------------------------------------ */

/* What the parts are measured on, written into an empty folder: a checkpoint of the released names and shapes without
 * its data, a tokenizer.json, texts.
 *   size  1: 45 838 tensors, 200 000 tokens beside the added ones, texts of 10^6 bytes, a prompt of 8000 tokens;
 *         a fraction of that, or a multiple
 * errors  MM3_ERR_IO, MM3_ERR_NOMEM */
MM3_MUST_USE mm3_status mm3_bench_host_make(const char *dir, double size);

/* One part, run once. */
typedef struct mm3_bench_host {
    int64_t n;                   /* how many of its units it went through */
    size_t bytes;                /* of the text that it read; 0: none */
    double processor_s, clock_s; /* of the part alone; processor: of all threads */
    double before, peak;         /* bytes: resident when the part began, and the most until it ended */
} mm3_bench_host;
int mm3_bench_host_count(void);
const char *mm3_bench_host_name(int i);
const char *mm3_bench_host_unit(int i);
bool mm3_bench_host_needs_engine(int i);
/* Call it in a process of its own: memory is counted from the process's beginning.
 *   dir, size          as they were given to mm3_bench_host_make
 *   engine, model_dir  where the part needs an engine, else NULL; model_dir: the folder of its tokenizer.json
 * errors  those of the part; MM3_ERR_ARG a context or a text too short for the prompt */
MM3_MUST_USE mm3_status mm3_bench_host_run(mm3_bench_host *out, int i, const char *dir, double size, mm3_engine *engine,
                                           const char *model_dir);

#endif
