/* bench: what things cost. Statistics, the machine's own ceilings, and kernels timed beside them.
 * Knows operations, kernels and their cases; prints nothing. */
#ifndef MM3_BENCH_H
#define MM3_BENCH_H

#include "tune/tune.h"

/* ---- statistics (statistics.c) ---------------------------------------------------------------------------- */

/* Middle value and median absolute deviation; NaN without values. Sorts x. */
typedef struct mm3_spread {
    double median, mad;
} mm3_spread;
mm3_spread mm3_spread_of(double *x, int n);

/* ---- ceilings (ceiling.c) ----------------------------------------------------------------------------------- */

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

/* ---- kernels side by side (kernels.c) ------------------------------------------------------------------------- */

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

typedef struct mm3_bench_result {
    mm3_bench_row *row; /* owned */
    int n_rows;
    double ceiling; /* bytes per second: the median of the rounds' reads, in the best way */
    const char *ceiling_by;
    double peak; /* operations per second */
    const char *peak_by;
    size_t last_cache, rotated; /* bytes: what has to be outlived, and what inputs were rotated over */
    int n_copies;
    bool evicted;     /* copies were too few for that: the cache was read full in between */
    bool may_be_warm; /* memory was too short even for that */
} mm3_bench_result;

/* Time candidates as they meet their inputs in a model: cold. Every round runs the ceiling and then each candidate
 * once, each on the next copy of the inputs. errors  MM3_ERR_ARG no candidate of that name; MM3_ERR_NOMEM */
MM3_MUST_USE mm3_status mm3_bench_kernels(mm3_bench_result *out, const mm3_bench *bench, mm3_device *device);
void mm3_bench_result_free(mm3_bench_result *result);

/* The operation's shape in MiniMax-M3, on one machine; kernels.c. */
const char *mm3_bench_shape(mm3_op_id op);

#endif
