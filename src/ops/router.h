/* router: which experts a token goes to, and with what weight. */
#ifndef MM3_OPS_ROUTER_H
#define MM3_OPS_ROUTER_H

#include "ops/types.h"

/* s = sigmoid(logits); the top_k experts by s + bias, best first; weight = s / sum of the chosen s
 *
 *   logits  [m, n_expert]  FP32, from a linear
 *   bias    [n_expert]     steers the choice, is not in the weights
 *   slot    [m]            a padded row gets expert -1, weight 0, and no place in the lists
 *   expert  [m, top_k]
 *   weight  [m, top_k]
 *   pair    [m * top_k]    pair ids (row * top_k + choice) sorted by expert, then by id; the tail is -1
 *   begin   [n_expert + 1] pairs of expert e are pair[begin[e] .. begin[e + 1])
 *   rounds  FP32; ties go to the lower expert id; a NaN sum ranks below every number; no epsilon
 *   source  m3 checkpoint: scoring_func sigmoid, use_routing_bias
 *   proof   tests/kernels/test_router.c */
typedef struct mm3_router {
    int m, n_expert, top_k;
    const float *logits, *bias;
    const int32_t *slot;
    int32_t *expert;
    float *weight;
    int32_t *pair, *begin;
} mm3_router;

#endif
