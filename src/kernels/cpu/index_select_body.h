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
    PIECE = 32, /* tokens whose keys stay in the first cache while all queries use them */
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
    float *s;       /* [SCORE_VECTORS][PIECE][LANES] */
    float *k;       /* [PIECE][width], where the cache is BF16 */
    uint64_t *heap; /* [top_k] */
} area;

/* Cut memory into an area; with memory NULL only count. Returns floats used. */
static size_t cut_area(area *a, const mm3_index_select *op, const shape *s, float *memory)
{
    size_t lanes = (size_t)s->n_vectors * LANES, width = (size_t)s->width, at = 0;
    float *heap, **to[] = { &a->q, &a->best, &a->s, &a->k, &heap };
    size_t n[] = { lanes * width, lanes, (size_t)SCORE_VECTORS * PIECE * LANES,
                   op->kv.type == MM3_BF16 ? PIECE * width : 0, 2 * (size_t)op->top_k };
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

/* ---- phase 0 ----------------------------------------------------------------------------------------------------- */

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

/* What one item works on. */
typedef struct job {
    const mm3_call *call;
    const area *a;
    const shape *s;
    int n_threads;
    int row, n_rows; /* of one sequence */
    int n;           /* queries: n_rows * n_groups */
    int64_t last;    /* one past the item's last token */
} job;

/* Tokens first..end of one page, as they lie. */
typedef struct piece {
    int64_t first, end;
    const void *k; /* index key of token `first` */
    ahead next;    /* the same place in the next page */
} piece;

static void put_score(const job *j, int query, int64_t block, float score)
{
    const mm3_index_select *op = j->call->op;
    scores_of(j->call, j->s, j->n_threads, j->row + query / op->n_groups, query % op->n_groups)[block] = score;
}

/* Take the tokens' scores of vector v, s[token - first], into the maxima of their blocks. */
static void take_lanes(const job *j, const piece *p, int v, const float *s)
{
    const mm3_index_select *op = j->call->op;
    float *best = j->a->best + v * LANES;
    for (int64_t t = p->first; t < p->end;) {
        int64_t block = t / op->block, stop = MM3_MIN(p->end, (block + 1) * op->block);
        vf x = t == block * op->block ? vf_set(NAN) : vf_load(best);
        for (; t < stop; t++) x = better(vf_load(s + (t - p->first) * LANES), x);
        vf_store(best, x);
        if (t < (block + 1) * op->block) break;
        for (int i = v * LANES; i < MM3_MIN(j->n, (v + 1) * LANES); i++) put_score(j, i, block, j->a->best[i]);
    }
}

/* A query in each lane: every lane is used where there are LANES queries or more. */
static void score_lanes(const job *j, const piece *p)
{
    const mm3_index_select *op = j->call->op;
    int width = j->s->width, n_vectors = (j->n + LANES - 1) / LANES, n = (int)(p->end - p->first);
    const float *k = p->k;
    ahead next = p->next;
    if (op->kv.type == MM3_BF16) {
        lanes_widen(j->a->k, p->k, (size_t)n * (size_t)width);
        k = j->a->k;
    }
    for (int v = 0; v < n_vectors; v += SCORE_VECTORS, next.at = NULL) {
        const float *q = j->a->q + (size_t)v * (size_t)width * LANES, *both[SCORE_VECTORS] = { q, q + width * LANES };
        float *s[SCORE_VECTORS] = { j->a->s, j->a->s + PIECE * LANES };
        if (v + 1 < n_vectors)
            score_tokens(both, 2, width, k, s, next, n);
        else
            score_tokens(both, 1, width, k, s, next, n);
        for (int i = 0; i < SCORE_VECTORS && v + i < n_vectors; i++) take_lanes(j, p, v + i, s[i]);
    }
}

enum { DOT_QUERIES = 4, DOT_TOKENS = LANES / DOT_QUERIES };

/* sum[i * DOT_QUERIES + q] = iq[q] . k[i], each over the lanes of a vector that walks along the channels; bf16 is a
 * constant where inlined. */
LANES_INLINE void dot_step(const float *const *q, const void *const *k, int width, bool bf16, float *sum)
{
    vf part[LANES];
    for (int i = 0; i < LANES; i++) part[i] = vf_set(0.0f);
    for (int d = 0; d < width; d += LANES) {
        vf x[DOT_QUERIES];
        for (int i = 0; i < DOT_QUERIES; i++) x[i] = vf_load(q[i] + d);
        for (int t = 0; t < DOT_TOKENS; t++) {
            vf y = bf16 ? vf_load_bf16((const uint16_t *)k[t] + d) : vf_load((const float *)k[t] + d);
            for (int i = 0; i < DOT_QUERIES; i++)
                part[t * DOT_QUERIES + i] = vf_fma(x[i], y, part[t * DOT_QUERIES + i]);
        }
    }
    vf_store(sum, vf_sums(part));
}

/* Scores s[token - first][DOT_QUERIES] of four queries; beyond the piece's last token the last one again. */
LANES_INLINE void dot_tokens(const float *const *q, const piece *p, int width, bool bf16, bool fetch, float *s)
{
    size_t key_bytes = (size_t)width * (bf16 ? 2 : 4);
    int n = (int)(p->end - p->first);
    for (int t = 0; t < n; t += DOT_TOKENS) {
        const void *k[DOT_TOKENS];
        for (int i = 0; i < DOT_TOKENS; i++) k[i] = (const char *)p->k + (size_t)MM3_MIN(t + i, n - 1) * key_bytes;
        for (size_t b = 0; fetch && b < DOT_TOKENS * key_bytes; b += 64)
            __builtin_prefetch(p->next.at + (size_t)t * key_bytes + b, 0, 2);
        dot_step(q, k, width, bf16, s + t * DOT_QUERIES);
    }
}

static void take_dot(const job *j, const piece *p, int first, const float *s)
{
    const mm3_index_select *op = j->call->op;
    float *best = j->a->best + first;
    for (int64_t t = p->first; t < p->end;) {
        int64_t block = t / op->block, stop = MM3_MIN(p->end, (block + 1) * op->block);
        float x[DOT_QUERIES];
        for (int i = 0; i < DOT_QUERIES; i++) x[i] = t == block * op->block ? NAN : best[i];
        for (; t < stop; t++)
            for (int i = 0; i < DOT_QUERIES; i++) {
                float y = s[(t - p->first) * DOT_QUERIES + i];
                x[i] = y > x[i] || isnan(x[i]) ? y : x[i];
            }
        memcpy(best, x, sizeof x);
        if (t < (block + 1) * op->block) break;
        for (int i = 0; i < MM3_MIN(DOT_QUERIES, j->n - first); i++) put_score(j, first + i, block, x[i]);
    }
}

/* Channels in the lanes: no lane is idle with four queries, as when one row of the released model decodes. */
static void score_dot(const job *j, const piece *p)
{
    const mm3_index_select *op = j->call->op;
    size_t width = (size_t)j->s->width;
    const float *iq = op->iq + (size_t)j->row * (size_t)op->n_groups * width;
    for (int first = 0; first < j->n; first += DOT_QUERIES) {
        const float *q[DOT_QUERIES];
        bool fetch = p->next.at && first == 0;
        for (int i = 0; i < DOT_QUERIES; i++) q[i] = iq + (size_t)MM3_MIN(first + i, j->n - 1) * width;
        if (op->kv.type == MM3_BF16)
            dot_tokens(q, p, j->s->width, true, fetch, j->a->s);
        else
            dot_tokens(q, p, j->s->width, false, fetch, j->a->s);
        take_dot(j, p, first, j->a->s);
    }
}

static void run_item(const job *j, int64_t first)
{
    const mm3_index_select *op = j->call->op;
    const mm3_tactic *tactic = j->call->tactic;
    size_t key_bytes = (size_t)j->s->width * (op->kv.type == MM3_BF16 ? 2 : 4);
    bool dot = tactic->v[0];
    piece p = { .first = first, .next.per_token = (int)key_bytes };
    if (!dot) pack_queries(j->a, op, j->s, j->row, j->n_rows);
    for (; p.first < j->last; p.first = p.end) {
        const char *tile = mm3_kv_tile(&op->kv, op->slot[j->row], (int)(p.first / TILE), op->kv.ik_at, 0, j->s->width);
        size_t at = (size_t)(p.first % TILE) * key_bytes;
        p.end = MM3_MIN(j->last, (p.first / PIECE + 1) * PIECE);
        p.k = tile + at;
        p.next.at = NULL;
        if (p.first + TILE < j->last) {
            p.next.at = mm3_kv_tile(&op->kv, op->slot[j->row], (int)(p.first / TILE) + 1, op->kv.ik_at, 0, j->s->width);
            p.next.at += at;
        }
        if (dot)
            score_dot(j, &p);
        else
            score_lanes(j, &p);
    }
}

static void phase_0(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_index_select *op = call->op;
    shape s = shape_of(op);
    area a;
    job j = { .call = call, .a = &a, .s = &s, .n_threads = n_threads };
    int item = 0;
    open_area(&a, call, &s, i_thread);
    for (j.row = 0; j.row < op->m; j.row += j.n_rows) {
        int64_t tokens = scored_tokens(op, j.row);
        for (j.n_rows = 1; j.n_rows < MAX_ROWS && j.row + j.n_rows < op->m; j.n_rows++) {
            if (op->slot[j.row + j.n_rows] != op->slot[j.row]) break;
            tokens = MM3_MAX(tokens, scored_tokens(op, j.row + j.n_rows));
        }
        j.n = j.n_rows * op->n_groups;
        for (int64_t t = 0; t < tokens; t += s.stretch) {
            j.last = MM3_MIN(tokens, t + s.stretch);
            if (item++ % n_threads == i_thread) run_item(&j, t);
        }
    }
}

/* ---- phase 1 ----------------------------------------------------------------------------------------------------- */

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
