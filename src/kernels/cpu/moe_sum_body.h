/* moe_sum_body: written once for every width of vectors. Included by one .c file per candidate, after LANES.
 * An item is a stretch of a row's columns. */
#ifndef MM3_MOE_SUM_BODY_H
#define MM3_MOE_SUM_BODY_H

#include "kernels/cpu/lanes.h"
#include "kernels/kernels.h"

enum { STRETCH = 1024 };

static void sum_columns(const mm3_moe_sum *op, int row, int begin, int end)
{
    size_t k = (size_t)op->k, at = (size_t)row * k;
    const int32_t *expert = op->expert + (size_t)row * (size_t)op->top_k;
    const float *weight = op->weight + (size_t)row * (size_t)op->top_k;
    const float *y = op->y + (size_t)row * (size_t)op->top_k * k;
    int c = begin;
    for (; c + LANES <= end; c += LANES) {
        vf sum = vf_set(0.0f);
        for (int j = 0; j < op->top_k; j++)
            if (expert[j] >= 0) sum = vf_fma(vf_set(weight[j]), vf_load(y + (size_t)j * k + c), sum);
        sum = vf_fma(sum, vf_set(op->scale), op->shared ? vf_load(op->shared + at + c) : vf_set(0.0f));
        vf_store(op->out + at + c, sum);
    }
    for (; c < end;
         c++) { /* the same operations on a vector of equal lanes, so that a column's bits do not depend on k */
        vf sum = vf_set(0.0f);
        float lane[LANES];
        for (int j = 0; j < op->top_k; j++)
            if (expert[j] >= 0) sum = vf_fma(vf_set(weight[j]), vf_set(y[(size_t)j * k + (size_t)c]), sum);
        sum = vf_fma(sum, vf_set(op->scale), vf_set(op->shared ? op->shared[at + (size_t)c] : 0.0f));
        vf_store(lane, sum);
        op->out[at + (size_t)c] = lane[0];
    }
}

static void run(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_moe_sum *op = call->op;
    int per_row = (op->k + STRETCH - 1) / STRETCH, begin, end;
    mm3_share(op->m * per_row, i_thread, n_threads, &begin, &end);
    for (int i = begin; i < end; i++) {
        int c = i % per_row * STRETCH;
        sum_columns(op, i / per_row, c, MM3_MIN(op->k, c + STRETCH));
    }
}

#endif
