/* rows_amx: the AMX matrix product, for linear and moe_linear. Internal to this folder. */
#ifndef MM3_KERNELS_CPU_ROWS_AMX_H
#define MM3_KERNELS_CPU_ROWS_AMX_H

#include "kernels/cpu/mx_avx512.h"

/* Of a tactic's v: weight rows of a group, codes of a chunk, and which memory is asked for ahead. */
enum { MM3__AMX_ROWS, MM3__AMX_CHUNK, MM3__AMX_AHEAD };
enum { MM3__AMX_NEXT, MM3__AMX_ROW16 };
enum { MM3__AMX_TACTICS = 2 };
extern const mm3_tactic mm3__amx_tactics[MM3__AMX_TACTICS];

/* mm3_kernel.refuses of both operations.
 *   type  of all weights, or -1 where they differ
 *   m     rows of the step */
const char *mm3__amx_refuses(const mm3_device_info *device, int type, int m, const mm3_tactic *tactic);

/* A launch. Phase 1 prepares the input rows (mm3__x512_prepare), phase 2 packs them as columns of tiles, phase 3
 * multiplies. Column c is the input row of the c-th listed pair; without a list it is row c. */
typedef struct mm3__amx {
    mm3__x512 x;
    const mm3_tactic *tactic;
    const int32_t *pair; /* the whole list, or NULL */
    uint16_t *columns;   /* [n_columns, kp] BF16 in groups of up to 16 columns */
    unsigned char *own;  /* this thread's tiles */
} mm3__amx;
/* Bytes of scratch of a launch, and its parts in it for one thread.
 *   max_job_rows  the longest list of rows that one job can have */
size_t mm3__amx_scratch(const mm3_tactic *tactic, int n_rows, int n_columns, int k, int max_job_rows, int n_threads);
mm3__amx mm3__amx_at(const mm3_tactic *tactic, void *scratch, int n_rows, int n_columns, int k, int max_job_rows,
                     int i_thread);
/* Pack one list: n columns from column `at` on, each thread its part of k. */
void mm3__amx_pack(const mm3__amx *a, const int32_t *pair, int pairs_per_row, int at, int n, int i_thread,
                   int n_threads);
mm3__job_run mm3__amx_run; /* user: mm3__amx */

#endif
