/* router, native: scalar C. The sigmoid is taken in double and rounded once, so that the choice of experts does not
 * hang on the last bit of an approximation. Phase 0: rows. Phase 1: the lists, by counting, in linear time. */
#include <math.h>
#include <string.h>

#include "kernels/kernels.h"

static size_t ranks_of(const mm3_router *op) { return ((size_t)op->n_expert + 7) / 8 * 8; }

static size_t scratch(const void *p, const mm3_tactic *tactic, int n_threads)
{
    (void)tactic;
    return ranks_of(p) * sizeof(uint64_t) * (size_t)n_threads;
}

static double sigmoid(float x) { return 1.0 / (1.0 + exp(-(double)x)); }

/* Larger for what is taken first: the sum in the upper half (NaN 0, -0 as +0), the inverted id in the lower. */
static uint64_t rank_of(float sum, int e)
{
    uint32_t u = mm3_f32_bits(sum), key;
    if (isnan(sum))
        key = 0;
    else if (sum == 0)
        key = 0x80000000u;
    else
        key = u >> 31 ? ~u : u | 0x80000000u;
    return (uint64_t)key << 32 | (0xFFFFFFFFu - (uint32_t)e);
}

static void choose(const mm3_router *op, int row, uint64_t *rank)
{
    const float *logits = op->logits + (size_t)row * (size_t)op->n_expert;
    int32_t *expert = op->expert + (size_t)row * (size_t)op->top_k;
    float *weight = op->weight + (size_t)row * (size_t)op->top_k;
    uint64_t last = UINT64_MAX;
    double sum = 0;
    for (int e = 0; e < op->n_expert; e++) rank[e] = rank_of((float)sigmoid(logits[e]) + op->bias[e], e);
    for (int j = 0; j < op->top_k; j++) { /* the best of those after the last one taken */
        uint64_t best = 0;
        for (int e = 0; e < op->n_expert; e++)
            if (rank[e] < last && rank[e] > best) best = rank[e];
        last = best;
        expert[j] = (int32_t)(0xFFFFFFFFu - (uint32_t)best);
        sum += sigmoid(logits[expert[j]]);
    }
    for (int j = 0; j < op->top_k; j++) weight[j] = (float)(sigmoid(logits[expert[j]]) / sum);
}

static void choose_rows(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_router *op = call->op;
    uint64_t *rank = (uint64_t *)call->scratch + ranks_of(op) * (size_t)i_thread;
    int begin, end;
    mm3_share(op->m, i_thread, n_threads, &begin, &end);
    for (int i = begin; i < end; i++) {
        if (op->slot[i] >= 0) {
            choose(op, i, rank);
            continue;
        }
        for (size_t at = (size_t)i * (size_t)op->top_k; at < ((size_t)i + 1) * (size_t)op->top_k; at++) {
            op->expert[at] = -1;
            op->weight[at] = 0.0f;
        }
    }
}

/* begin[e + 1] first counts expert e, then is where e's next pair goes, and so ends as where e's list ends. */
static void list_pairs(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_router *op = call->op;
    int n_pairs = op->m * op->top_k, n = 0;
    (void)n_threads;
    if (i_thread != 0) return;
    memset(op->begin, 0, ((size_t)op->n_expert + 1) * sizeof *op->begin);
    for (int p = 0; p < n_pairs; p++)
        if (op->expert[p] >= 0) op->begin[op->expert[p] + 1]++;
    for (int e = 0; e < op->n_expert; e++) {
        int count = op->begin[e + 1];
        op->begin[e + 1] = n;
        n += count;
    }
    for (int p = 0; p < n_pairs; p++)
        if (op->expert[p] >= 0) op->pair[op->begin[op->expert[p] + 1]++] = p;
    for (; n < n_pairs; n++) op->pair[n] = -1;
}

static const mm3_tactic tactics[] = { { .name = "default", .row_invariant = true } };

const mm3_kernel mm3__router_cpu_native = {
    .op = MM3_OP_ROUTER,
    .device = "cpu",
    .name = "native",
    .tactics = tactics,
    .n_tactics = MM3_COUNT(tactics),
    .scratch = scratch,
    .phase = { choose_rows, list_pairs },
};
