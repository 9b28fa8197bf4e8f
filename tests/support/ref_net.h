/* ref_net: the whole M3 network once more, as docs/m3.md section 4 tells it: one sequence at a time, everything in
 * double, no pages, no chunks, no kernels, no recorder. What mm3's network is compared with where there is no golden
 * file. Takes mm3's view of a checkpoint (tests/unit/test_model.c proves that) and nothing else of mm3. */
#ifndef MM3_TESTS_REF_NET_H
#define MM3_TESTS_REF_NET_H

#include "model/model.h"

/* Logits of every position, [n, vocab].
 *   selected  NULL, or [n_layers, n, kv heads, topk]: the chosen blocks ascending, then -1; all -1 in dense layers
 *   margin    NULL, or [n]: how near the closest choice of a block or an expert was at that position or before it:
 *             below about 1e-4 another order of summation may choose differently
 * errors  MM3_ERR_NOMEM */
mm3_status ref_net_run(const mm3_model *model, mm3_numerics numerics, const int32_t *tokens, int n, double *logits,
                       int32_t *selected, double *margin);

#endif
