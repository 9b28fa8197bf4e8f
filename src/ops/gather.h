/* gather: some rows of a matrix, in a given order. */
#ifndef MM3_OPS_GATHER_H
#define MM3_OPS_GATHER_H

#include "ops/types.h"

/* out[i] = x[row[i]]; zeros where row[i] is -1
 *
 *   x    [n_rows, k];  row  [m];  out  [m, k]
 *   proof   tests/kernels/test_elementwise.c, gather */
typedef struct mm3_gather {
    int m, k, n_rows;
    const float *x;
    const int32_t *row;
    float *out;
} mm3_gather;

#endif
