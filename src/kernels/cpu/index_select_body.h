/* index_select_body: block scores and the choice among them, written once for every width of vectors. Included by one
 * .c file per candidate, after LANES. Phase 0 scores: an item is a block of neighbouring rows of one sequence and a
 * stretch of whole blocks. Phase 1 chooses: an item is a row and a group. A maximum has no rounding, so the work may
 * be cut anywhere. */
#ifndef MM3_INDEX_SELECT_BODY_H
#define MM3_INDEX_SELECT_BODY_H

#include "kernels/cpu/scores.h"
#include "kernels/kernels.h"

enum {
    TILE = MM3_PAGE_TOKENS,
    MAX_ROWS = 16,
    STRETCH_TOKENS = 2048 /* of an item, about */
};

typedef struct shape {
    int width;       /* d_index */
    int n_vectors;   /* of queries, in the largest block of rows */
    size_t n_blocks; /* of the longest possible context */
    int64_t stretch; /* tokens of an item, a multiple of the block size */
} shape;

static shape shape_of(const mm3_index_select *op)
{
    shape s;
    s.width = op->kv.d_index;
    s.n_vectors = (MM3_MIN(op->m, MAX_ROWS) * op->n_groups + LANES - 1) / LANES;
    s.n_blocks = ((size_t)op->kv.max_pages * TILE + (size_t)op->block - 1) / (size_t)op->block;
    s.stretch = MM3_MAX(1, STRETCH_TOKENS / op->block) * (int64_t)op->block;
    return s;
}

typedef struct area {
    float *q;       /* [n_vectors][width][LANES] */
    float *best;    /* [n_vectors][LANES] of the current block */
    float *s;       /* [SCORE_VECTORS][TILE][LANES] */
    float *k;       /* [TILE][width], where the cache is BF16 */
    uint64_t *heap; /* [top_k] */
} area;

/* Cut memory into an area; with memory NULL only count. Returns floats used. */
static size_t cut_area(area *a, const mm3_index_select *op, const shape *s, float *memory)
{
    size_t lanes = (size_t)s->n_vectors * LANES, width = (size_t)s->width, at = 0;
    float *heap, **to[] = { &a->q, &a->best, &a->s, &a->k, &heap };
    size_t n[] = { lanes * width, lanes, (size_t)SCORE_VECTORS * TILE * LANES,
                   op->kv.type == MM3_BF16 ? TILE * width : 0, 2 * (size_t)op->top_k };
    for (int i = 0; i < MM3_COUNT(to); i++) {
        if (memory) *to[i] = memory + at;
        at += (n[i] + 15) / 16 * 16;
    }
    if (memory) a->heap = (uint64_t *)(void *)heap;
    return at;
}

static size_t scratch(const void *p, const mm3_tactic *tactic, int n_threads)
{
    const mm3_index_select *op = p;
    shape s = shape_of(op);
    area a;
    (void)tactic;
    return sizeof(float) *
           (cut_area(&a, op, &s, NULL) * (size_t)n_threads + (size_t)op->m * (size_t)op->n_groups * s.n_blocks);
}

static void open_area(area *a, const mm3_call *call, const shape *s, int i_thread)
{
    cut_area(a, call->op, s, (float *)call->scratch + cut_area(a, call->op, s, NULL) * (size_t)i_thread);
}

/* [n_blocks] scores of a row and group; its own and later blocks stay undefined. */
static float *scores_of(const mm3_call *call, const shape *s, int n_threads, int row, int g)
{
    const mm3_index_select *op = call->op;
    area a;
    float *scores = (float *)call->scratch + cut_area(&a, op, s, NULL) * (size_t)n_threads;
    return scores + ((size_t)row * (size_t)op->n_groups + (size_t)g) * s->n_blocks;
}

/* Tokens of a row that need a score: none while all blocks fit; never the own block, which is forced. */
static int64_t scored_tokens(const mm3_index_select *op, int row)
{
    int own;
    if (op->slot[row] < 0) return 0;
    own = op->position[row] / op->block;
    return own < op->top_k ? 0 : (int64_t)own * op->block;
}

/* ---- phase 0 ---------------------------------------------------------------------------------------------------- */

static void pack_queries(const area *a, const mm3_index_select *op, const shape *s, int first, int n_rows)
{
    int n = n_rows * op->n_groups, n_lanes = (n + LANES - 1) / LANES * LANES;
    for (int i = 0; i < n_lanes; i++) {
        float *to = a->q + (size_t)(i / LANES) * (size_t)s->width * LANES + i % LANES;
        const float *q = op->iq + ((size_t)first * (size_t)op->n_groups + (size_t)MM3_MIN(i, n - 1)) * (size_t)s->width;
        for (int d = 0; d < s->width; d++) to[d * LANES] = q[d];
    }
}

/* The better of the two; a NaN loses against every number. */
LANES_INLINE vf better(vf x, vf best)
{
    vi nan = best != best;
    vf r = vf_max(x, best);
    return (vf)(((vi)x & nan) | ((vi)r & ~nan));
}

/* Take tokens t..end of a page, whose scores are s[t - first], into the maxima of their blocks. */
static void take(const mm3_call *call, const area *a, const shape *sh, int n_threads, int row, int n_rows, int v,
                 const float *s, int64_t first, int64_t end)
{
    const mm3_index_select *op = call->op;
    float *best = a->best + v * LANES;
    for (int64_t t = first; t < end;) {
        int64_t block = t / op->block, stop = MM3_MIN(end, (block + 1) * op->block);
        vf x = t == block * op->block ? vf_set(NAN) : vf_load(best);
        for (; t < stop; t++) x = better(vf_load(s + (t - first) * LANES), x);
        vf_store(best, x);
        if (t < (block + 1) * op->block) break;
        for (int lane = 0; lane < LANES; lane++) {
            int i = v * LANES + lane;
            if (i >= n_rows * op->n_groups) break;
            scores_of(call, sh, n_threads, row + i / op->n_groups, i % op->n_groups)[block] = best[lane];
        }
    }
}

static void score_page(const mm3_call *call, const area *a, const shape *sh, int n_threads, int row, int n_rows,
                       int64_t first, int64_t end)
{
    const mm3_index_select *op = call->op;
    int n_vectors = (n_rows * op->n_groups + LANES - 1) / LANES, n = (int)(end - first);
    size_t at = (size_t)(first % TILE) * (size_t)sh->width;
    const void *tile = mm3_kv_tile(&op->kv, op->slot[row], (int)(first / TILE), op->kv.ik_at, 0, sh->width);
    const float *k = (const float *)tile + at;
    if (op->kv.type == MM3_BF16) {
        lanes_widen(a->k, (const uint16_t *)tile + at, (size_t)n * (size_t)sh->width);
        k = a->k;
    }
    for (int v = 0; v < n_vectors; v += SCORE_VECTORS) {
        size_t step = (size_t)sh->width * LANES;
        const float *q[SCORE_VECTORS] = { a->q + (size_t)v * step, a->q + (size_t)(v + 1) * step };
        float *s[SCORE_VECTORS] = { a->s, a->s + TILE * LANES };
        if (v + 1 < n_vectors)
            score_tokens(q, 2, sh->width, k, s, n);
        else
            score_tokens(q, 1, sh->width, k, s, n);
        for (int j = 0; j < SCORE_VECTORS && v + j < n_vectors; j++)
            take(call, a, sh, n_threads, row, n_rows, v + j, s[j], first, end);
    }
}

static void phase_0(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_index_select *op = call->op;
    shape s = shape_of(op);
    area a;
    int item = 0;
    open_area(&a, call, &s, i_thread);
    for (int row = 0, n; row < op->m; row += n) {
        int64_t tokens = scored_tokens(op, row);
        for (n = 1; n < MAX_ROWS && row + n < op->m && op->slot[row + n] == op->slot[row]; n++)
            tokens = MM3_MAX(tokens, scored_tokens(op, row + n));
        for (int64_t t = 0; t < tokens; t += s.stretch) {
            int64_t last = MM3_MIN(tokens, t + s.stretch);
            if (item++ % n_threads != i_thread) continue;
            pack_queries(&a, op, &s, row, n);
            for (int64_t first = t, end; first < last; first = end) {
                end = MM3_MIN(last, (first / TILE + 1) * TILE);
                score_page(call, &a, &s, n_threads, row, n, first, end);
            }
        }
    }
}

/* ---- phase 1 ---------------------------------------------------------------------------------------------------- */

/* Larger for what is taken first: the score in the upper half (NaN 0, -0 as +0), the inverted id in the lower. */
static uint64_t rank_of(float score, int block)
{
    uint32_t u = mm3_f32_bits(score), key;
    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        key = 0;
    else if (u << 1 == 0)
        key = 0x80000000u;
    else
        key = u >> 31 ? ~u : u | 0x80000000u;
    return (uint64_t)key << 32 | (0xFFFFFFFFu - (uint32_t)block);
}

/* Restore a heap of n, least at the root, whose root was replaced. */
static void sink(uint64_t *heap, int n)
{
    uint64_t x = heap[0];
    int i = 0;
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= x) break;
        heap[i] = heap[child];
    }
    heap[i] = x;
}

static void choose(const mm3_index_select *op, const float *score, uint64_t *heap, int row, int32_t *selected)
{
    int own = op->position[row] / op->block, n = op->top_k - 1, at = 0;
    if (own < op->top_k) {
        for (int b = 0; b < op->top_k; b++) selected[b] = b <= own ? b : -1;
        return;
    }
    memset(heap, 0, (size_t)n * sizeof *heap); /* 0 ranks below every block */
    for (int b = 0; b < own && n > 0; b++) {
        uint64_t rank = rank_of(score[b], b);
        if (rank <= heap[0]) continue;
        heap[0] = rank;
        sink(heap, n);
    }
    for (int b = 0; b < own && n > 0; b++)
        if (rank_of(score[b], b) >= heap[0]) selected[at++] = b;
    selected[at] = own;
}

static void phase_1(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_index_select *op = call->op;
    shape s = shape_of(op);
    area a;
    int begin, end;
    open_area(&a, call, &s, i_thread);
    mm3_share(op->m * op->n_groups, i_thread, n_threads, &begin, &end);
    for (int i = begin; i < end; i++) {
        int row = i / op->n_groups;
        int32_t *selected = op->selected + (size_t)i * (size_t)op->top_k;
        if (op->slot[row] < 0)
            for (int j = 0; j < op->top_k; j++) selected[j] = -1;
        else
            choose(op, scores_of(call, &s, n_threads, row, i % op->n_groups), a.heap, row, selected);
    }
}

#endif
