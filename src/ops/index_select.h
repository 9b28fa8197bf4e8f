/* index_select: which blocks of the context each KV group attends to. */
#ifndef MM3_OPS_INDEX_SELECT_H
#define MM3_OPS_INDEX_SELECT_H

#include "ops/types.h"

/* Per row and group g: score of block b = max over its tokens t <= position of iq[g] . ik[t]; the row's own block is
 * forced and counts; the top_k best blocks are taken, all if there are not more.
 *
 *   iq        [m, n_groups, d_index]  from qk_norm_rope
 *   kv        read: ik of the row's slot; blocks of `block` tokens are anchored at position 0 of the sequence
 *   slot, position  [m]
 *   selected  [m, n_groups, top_k]    block ids ascending, unused places -1 at the end; a padded row: all -1
 *   rounds    scores in FP32. Equal scores: the lower block id. A NaN score ranks below every number.
 *   trap      per group, also in prefill; the raw dot product, negative scores included
 *   proof     tests/kernels/test_index_select.c */
typedef struct mm3_index_select {
    int m, n_groups, top_k, block;
    const float *iq;
    const int32_t *slot, *position;
    mm3_kv kv;
    int32_t *selected;
} mm3_index_select;

#endif
