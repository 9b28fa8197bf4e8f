/* rows_avx2: the AVX2 product of MX weights, for linear and moe_linear. Internal to this folder. */
#ifndef MM3_KERNELS_CPU_ROWS_AVX2_H
#define MM3_KERNELS_CPU_ROWS_AVX2_H

#include "kernels/cpu/mx_rows.h"

/* Its tactics: weight rows that are decoded together, and how far ahead memory is asked for (rows_avx2.c). */
enum { MM3__AVX2_TACTICS = 4 };
extern const mm3_tactic mm3__avx2_tactics[MM3__AVX2_TACTICS];

/* mm3_kernel.refuses of both operations.
 *   type  of all weights, or -1 where they differ
 *   m     rows of the step */
const char *mm3__avx2_refuses(const mm3_device_info *device, int type, int m, const mm3_tactic *tactic);

/* A launch: n_rows input rows of k, prepared in phase 1 into scratch. */
typedef struct mm3__avx2 {
    const mm3_tactic *tactic;
    mm3__x_row *row; /* [n_rows] */
    float *x;        /* [n_rows, k], each row times 2^-exponent */
    float *tile;     /* this thread's decoded weights */
} mm3__avx2;
/* Bytes of scratch of a launch, and its parts in it for one thread. */
size_t mm3__avx2_scratch(const mm3_tactic *tactic, int n_rows, int k, int n_threads);
mm3__avx2 mm3__avx2_at(const mm3_tactic *tactic, void *scratch, int n_rows, int k, int i_thread);
/* Prepare all rows, this thread its columns: from codes where x_codes is not NULL, else from floats. */
void mm3__avx2_prepare(const mm3__avx2 *a, int n_rows, int k, const float *x, const uint8_t *x_codes,
                       const uint8_t *x_scales, int i_thread, int n_threads);
mm3__job_run mm3__avx2_run; /* user: mm3__avx2 */

#endif
