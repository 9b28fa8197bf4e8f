/* embed: token ids to rows of the embedding table, unscaled. */
#ifndef MM3_OPS_EMBED_H
#define MM3_OPS_EMBED_H

#include "ops/types.h"

/* out[i] = table[token[i]]; a padded row becomes zeros
 *
 *   token   [m]   0 <= id < table.n (ignored where slot is -1)
 *   slot    [m]   -1: padding
 *   table   [table.n, k]  BF16 or F32
 *   out     [m, k]
 *   rounds  nothing: BF16 is exact in FP32
 *   proof   tests/kernels/test_elementwise.c, embed */
typedef struct mm3_embed {
    int m, k;
    const int32_t *token, *slot;
    mm3_weight table;
    float *out;
} mm3_embed;

#endif
