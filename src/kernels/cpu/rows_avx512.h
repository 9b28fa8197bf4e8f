/* rows_avx512: the AVX-512 matrix product, for linear and moe_linear. Internal to this folder. */
#ifndef MM3_KERNELS_CPU_ROWS_AVX512_H
#define MM3_KERNELS_CPU_ROWS_AVX512_H

#include "kernels/cpu/mx_avx512.h"

/* Tactics: how rows meet, and how far ahead memory is asked for. */
enum { MM3__V_TILE, MM3__V_HINT, MM3__V_AHEAD };
enum { MM3__HINT_NONE, MM3__HINT_T0, MM3__HINT_NTA };
enum { MM3__AVX512_TACTICS = 3 };
extern const mm3_tactic mm3__avx512_tactics[MM3__AVX512_TACTICS];

/* mm3_kernel.refuses of both operations.
 *   type  of all weights, or -1 where they differ
 *   m     rows of the step */
const char *mm3__avx512_refuses(const mm3_device_info *device, int type, int m, const mm3_tactic *tactic);

/* A launch: n_rows input rows of k, prepared in phase 1 into scratch. */
typedef struct mm3__avx512 {
    mm3__x512 x;
    const mm3_tactic *tactic;
    uint16_t *tile; /* this thread's decoded weight rows */
} mm3__avx512;
/* Bytes of scratch of a launch, and its parts in it for one thread. */
size_t mm3__avx512_scratch(const mm3_tactic *tactic, int n_rows, int k, int n_threads);
mm3__avx512 mm3__avx512_at(const mm3_tactic *tactic, void *scratch, int n_rows, int k, int i_thread);
mm3__job_run mm3__avx512_run; /* user: mm3__avx512 */

#endif
