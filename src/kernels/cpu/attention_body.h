/* attention_body: online softmax over KV pages, written once for every width of vectors. Included by one .c file per
 * candidate, after LANES. Order of summation: tokens ascending within a part of the context (PART_PAGES pages, or
 * PART_BLOCKS selected blocks), then the parts ascending. It depends on the row alone: threads, chunks and neighbours
 * decide only who computes what, so one row of a batch is computed to the same bits as that row alone.
 *
 * Two ways to share the work, same bits:
 *   rows   an item is a block of neighbouring rows of one sequence and a KV head; a page is read once for all of them
 *   parts  few rows: an item is one part of one row; partial results go to scratch and phase 1 adds them up */
#ifndef MM3_ATTENTION_BODY_H
#define MM3_ATTENTION_BODY_H

#include "kernels/cpu/scores.h"
#include "kernels/kernels.h"

enum {
    DIM = MM3_HEAD_DIM,
    TILE = MM3_PAGE_TOKENS,
    PART_PAGES = 8,
    PART_BLOCKS = 4,
    MAX_PARTS = 64,
    PARTIAL = DIM + 2, /* floats of a partial result: largest score, sum of weights, weighted sum of V */
    PIECE = 32,        /* tokens whose keys or values stay in the first cache while all queries use them */
    MAX_ROWS = 64      /* of a block, at most; a tactic's v[0] says how many */
};

typedef struct shape {
    int n_rep;       /* query heads of a KV head */
    int part_pages;  /* of a part of the dense context */
    int part_blocks; /* of a part of a selection */
    int n_parts;     /* at most, of a row */
    int max_rows;    /* of a block */
    int n_vectors;   /* of queries, in the largest block */
    bool by_part;
} shape;

static shape shape_of(const mm3_attention *op, const mm3_tactic *tactic, int n_threads)
{
    shape s;
    s.n_rep = op->n_q / op->kv.n_kv;
    s.part_pages = MM3_MAX(PART_PAGES, (op->kv.max_pages + MAX_PARTS - 1) / MAX_PARTS);
    s.part_blocks = MM3_MAX(PART_BLOCKS, (op->top_k + MAX_PARTS - 1) / MAX_PARTS);
    s.n_parts = op->selected ? (op->top_k + s.part_blocks - 1) / s.part_blocks
                             : (op->kv.max_pages + s.part_pages - 1) / s.part_pages;
    s.max_rows = MM3_MIN(op->m, tactic->v[0]);
    s.n_vectors = (s.max_rows * s.n_rep + LANES - 1) / LANES;
    s.by_part = (int64_t)op->m * op->kv.n_kv < 2 * (int64_t)n_threads;
    return s;
}

/* One thread's memory. State of a query is [vector][lane]; weighted sums are [query][DIM]. */
typedef struct area {
    float *q;                         /* [n_vectors][DIM][LANES] */
    float *top, *sum, *y;             /* of the current part: largest score, sum of weights, weighted sum of V */
    float *begin, *end;               /* tokens of the current tile that a query sees */
    float *all_top, *all_sum, *all_y; /* of the parts before */
    float *s;                         /* [n_vectors][TILE][LANES] scores, then weights */
    float *wide;                      /* [PIECE][DIM], where the cache is BF16 */
} area;

/* Cut memory into an area; with memory NULL only count. Returns floats used. */
static size_t cut_area(area *a, const mm3_attention *op, const shape *s, float *memory)
{
    size_t lanes = (size_t)s->n_vectors * LANES, wide = op->kv.type == MM3_BF16 ? PIECE * DIM : 0, at = 0;
    float **to[] = { &a->q,   &a->y,     &a->all_y, &a->s,       &a->wide,   &a->top,
                     &a->sum, &a->begin, &a->end,   &a->all_top, &a->all_sum };
    size_t n[] = {
        lanes * DIM, lanes * DIM, lanes * DIM, lanes * TILE, wide, lanes, lanes, lanes, lanes, lanes, lanes
    };
    for (int i = 0; i < MM3_COUNT(to); i++) {
        if (memory) *to[i] = memory + at;
        at += (n[i] + 15) / 16 * 16;
    }
    return at;
}

static size_t scratch(const void *p, const mm3_tactic *tactic, int n_threads)
{
    const mm3_attention *op = p;
    shape s = shape_of(op, tactic, n_threads);
    size_t n_partials = s.by_part ? (size_t)op->m * (size_t)op->n_q * (size_t)s.n_parts : 0;
    area a;
    return sizeof(float) * (cut_area(&a, op, &s, NULL) * (size_t)n_threads + n_partials * PARTIAL);
}

/* ---- which tokens a row sees, as runs within pages --------------------------------------------------------------- */

typedef struct cursor {
    const int32_t *selected; /* the row's list, or NULL */
    int i, n;                /* entries of the list still to come */
    int64_t token, last;     /* next token; one past the last that is visible */
    int page, begin, end;    /* the current run: tokens of a page */
    int part;                /* of the current run */
    bool live;
} cursor;

static void next_run(cursor *c, const mm3_attention *op, const shape *s)
{
    int64_t end = c->last;
    c->live = false;
    for (; c->selected; c->i++) {
        int64_t block;
        if (c->i >= c->n || c->selected[c->i] < 0) return;
        block = (int64_t)c->selected[c->i] * op->block;
        c->token = MM3_MAX(c->token, block);
        end = MM3_MIN(c->last, block + op->block);
        if (c->token < end) break;
    }
    if (c->token >= end) return;
    c->live = true;
    c->page = (int)(c->token / TILE);
    c->part = c->selected ? c->i / s->part_blocks : c->page / s->part_pages;
    c->begin = (int)(c->token % TILE);
    c->end = (int)MM3_MIN(TILE, c->begin + (end - c->token));
    c->token += c->end - c->begin;
}

/* The runs of a row's part, or of all (part < 0). */
static void start_runs(cursor *c, const mm3_attention *op, const shape *s, int row, int g, int part)
{
    *c = (cursor){ .last = (int64_t)op->position[row] + 1, .n = op->top_k };
    if (op->selected) c->selected = op->selected + ((size_t)row * (size_t)op->kv.n_kv + (size_t)g) * (size_t)op->top_k;
    if (part >= 0 && op->selected) {
        c->i = part * s->part_blocks;
        c->n = MM3_MIN(op->top_k, c->i + s->part_blocks);
    } else if (part >= 0) {
        c->token = (int64_t)part * s->part_pages * TILE;
        c->last = MM3_MIN(c->last, c->token + (int64_t)s->part_pages * TILE);
    }
    next_run(c, op, s);
}

/* ---- one tile ---------------------------------------------------------------------------------------------------- */

/* Scores to weights exp(score - largest), and the running largest and sum brought up to date.
 *   v  the vector of queries; begin, end tokens of the tile
 * A query that sees none of these tokens keeps its state: its correction is exactly 1 (or 0 times nothing yet). */
LANES_INLINE void soften(const area *a, int v, int begin, int end, float scale)
{
    float *s = a->s + ((size_t)v * TILE + (size_t)begin) * LANES;
    vf first = vf_load(a->begin + v * LANES), last = vf_load(a->end + v * LANES);
    vf old = vf_load(a->top + v * LANES), top = old, sum = vf_set(0.0f), base, correction;
    vf none = vf_set(-INFINITY), factor = vf_set(scale);
    float ratio[LANES];
    for (int t = begin; t < end; t++) {
        vf here = vf_set((float)t), x = vf_load(s + (t - begin) * LANES) * factor;
        x = vf_if_lt(here, first, none, x);
        x = vf_if_lt(here, last, x, none);
        vf_store(s + (t - begin) * LANES, x);
        top = vf_max(x, top);
    }
    base = vf_if_lt(top, vf_set(-3.4028234e38f), vf_set(0.0f), top); /* nothing seen yet: not -inf - -inf */
    for (int t = 0; t < end - begin; t++) {
        vf w = vf_exp(vf_load(s + t * LANES) - base);
        vf_store(s + t * LANES, w);
        sum += w;
    }
    correction = vf_exp(old - base);
    vf_store(a->top + v * LANES, top);
    vf_store(a->sum + v * LANES, vf_load(a->sum + v * LANES) * correction + sum);
    vf_store(ratio, correction);
    for (int lane = 0; lane < LANES; lane++) {
        float *y = a->y + (size_t)(v * LANES + lane) * DIM;
        if (ratio[lane] == 1.0f) continue;
        for (int d = 0; d < DIM; d += LANES) vf_store(y + d, vf_load(y + d) * vf_set(ratio[lane]));
    }
}

enum { MIX_HEADS = LANES == 4 ? 2 : 4, MIX_VECTORS = LANES == 8 ? 2 : 4 };

/* y[h] += sum over t of w[t][h] * v[t], for n_h queries side by side; n_h and fetch are constants where inlined.
 *   soon, per_token  where fetch is set: the place of the first of these tokens in memory to fetch */
LANES_INLINE void mix(float *y, const float *w, const float *v, int n, const char *soon, int per_token, int n_h,
                      bool fetch)
{
    enum { LINES = MIX_VECTORS * LANES / 16 };
    for (int d = 0; d < DIM; d += MIX_VECTORS * LANES) {
        vf sum[MIX_HEADS][MIX_VECTORS];
        for (int h = 0; h < n_h; h++)
            for (int j = 0; j < MIX_VECTORS; j++) sum[h][j] = vf_load(y + h * DIM + d + j * LANES);
        for (int t = 0; t < n; t++) {
            vf x[MIX_VECTORS];
            for (int l = 0; fetch && l < LINES; l++)
                __builtin_prefetch(soon + t * per_token + (d / 16 + l) * (per_token / 8), 0, 2);
            for (int j = 0; j < MIX_VECTORS; j++) x[j] = vf_load(v + t * DIM + d + j * LANES);
            for (int h = 0; h < n_h; h++) {
                vf weight = vf_set(w[t * LANES + h]);
                for (int j = 0; j < MIX_VECTORS; j++) sum[h][j] = vf_fma(weight, x[j], sum[h][j]);
            }
        }
        for (int h = 0; h < n_h; h++)
            for (int j = 0; j < MIX_VECTORS; j++) vf_store(y + h * DIM + d + j * LANES, sum[h][j]);
    }
}

/* Add weighted values of tokens first..last of a tile to a vector's queries; each reads V of the tokens that it sees
 * and of no others.
 *   w  weight of token `first`; value its V; next  fetched by the way */
LANES_INLINE void mix_lanes(const area *a, int v, const float *w, const float *value, int first, int last, ahead next)
{
    const float *begin = a->begin + v * LANES, *end = a->end + v * LANES;
    for (int lane = 0, n_h; lane < LANES; lane += n_h) {
        int skip = MM3_MAX(0, (int)begin[lane] - first), n = MM3_MIN(last, (int)end[lane]) - first - skip;
        float *y = a->y + (size_t)(v * LANES + lane) * DIM;
        const float *weight = w + skip * LANES + lane, *x = value + skip * DIM;
        for (n_h = 1; n_h < MIX_HEADS && lane + n_h < LANES; n_h++)
            if (begin[lane + n_h] != begin[lane] || end[lane + n_h] != end[lane]) break;
        if (n_h < MIX_HEADS) n_h = 1;
        if (n <= 0) continue;
        if (n_h == 1)
            mix(y, weight, x, n, NULL, 0, 1, false);
        else if (next.at)
            mix(y, weight, x, n, next.at + (ptrdiff_t)(first + skip) * next.per_token, next.per_token, MIX_HEADS, true);
        else
            mix(y, weight, x, n, NULL, 0, MIX_HEADS, false);
        next.at = NULL; /* one head group is enough */
    }
}

/* One page, what of it is read, and what is read after its keys and after its values. */
typedef struct tile {
    const void *k, *v; /* of token 0 */
    bool bf16;
    int begin, end; /* tokens that any query sees */
    ahead after_k, after_v;
} tile;

/* n tokens of K or V as floats. */
LANES_INLINE const float *piece_of(const area *a, const tile *now, const void *part, int token, int n)
{
    if (!now->bf16) return (const float *)part + token * DIM;
    lanes_widen(a->wide, (const uint16_t *)part + token * DIM, (size_t)(n * DIM));
    return a->wide;
}

/* The next one or two vectors from *v on that see something of the tile; returns how many. */
LANES_INLINE int next_vectors(const area *a, int n_vectors, int *v, int *out)
{
    int n = 0;
    for (; *v < n_vectors && n < SCORE_VECTORS; ++*v) {
        bool any = false;
        for (int lane = *v * LANES; lane < (*v + 1) * LANES; lane++) any |= a->begin[lane] < a->end[lane];
        if (any) out[n++] = *v;
    }
    return n;
}

static void score_piece(const area *a, int n_vectors, const tile *now, int first, int last)
{
    const float *k = piece_of(a, now, now->k, first, last - first);
    ahead next = { now->after_k.at ? now->after_k.at + (ptrdiff_t)first * now->after_k.per_token : NULL,
                   now->after_k.per_token };
    for (int v = 0, n, at[SCORE_VECTORS]; (n = next_vectors(a, n_vectors, &v, at)) > 0; next.at = NULL) {
        const float *q[SCORE_VECTORS];
        float *s[SCORE_VECTORS];
        for (int j = 0; j < n; j++) {
            q[j] = a->q + (size_t)at[j] * DIM * LANES;
            s[j] = a->s + ((size_t)at[j] * TILE + (size_t)first) * LANES;
        }
        if (n == 1)
            score_tokens(q, 1, DIM, k, s, next, last - first);
        else
            score_tokens(q, 2, DIM, k, s, next, last - first);
    }
}

static void mix_piece(const area *a, int n_vectors, const tile *now, int first, int last)
{
    const float *value = piece_of(a, now, now->v, first, last - first);
    ahead next = now->after_v;
    for (int v = 0, n, at[SCORE_VECTORS]; (n = next_vectors(a, n_vectors, &v, at)) > 0;)
        for (int j = 0; j < n; j++, next.at = NULL)
            mix_lanes(a, at[j], a->s + ((size_t)at[j] * TILE + (size_t)first) * LANES, value, first, last, next);
}

/* All queries that see something of a tile. */
static void attend(const area *a, int n_vectors, const tile *now, float scale)
{
    for (int t = now->begin; t < now->end; t += PIECE) score_piece(a, n_vectors, now, t, MM3_MIN(now->end, t + PIECE));
    for (int v = 0, n, at[SCORE_VECTORS]; (n = next_vectors(a, n_vectors, &v, at)) > 0;)
        for (int j = 0; j < n; j++) soften(a, at[j], now->begin, now->end, scale);
    for (int t = now->begin; t < now->end; t += PIECE) mix_piece(a, n_vectors, now, t, MM3_MIN(now->end, t + PIECE));
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Add one part's result (top, sum, y) to what the parts before gave. */
static void add_part(float *all_top, float *all_sum, float *all_y, float top, float sum, const float *y)
{
    float new_top = top > *all_top ? top : *all_top, before[LANES], now[LANES];
    if (sum == 0.0f) return; /* an empty part */
    vf_store(before, vf_exp(vf_set(*all_top - new_top)));
    vf_store(now, vf_exp(vf_set(top - new_top)));
    for (int d = 0; d < DIM; d += LANES)
        vf_store(all_y + d, vf_load(all_y + d) * vf_set(before[0]) + vf_load(y + d) * vf_set(now[0]));
    *all_sum = *all_sum * before[0] + sum * now[0];
    *all_top = new_top;
}

static void clear_part(float *top, float *sum, float *y)
{
    *top = -INFINITY;
    *sum = 0.0f;
    memset(y, 0, DIM * sizeof *y);
}

static void pack_queries(const area *a, const mm3_attention *op, const shape *s, int first, int n_rows, int g)
{
    int n = n_rows * s->n_rep, n_lanes = (n + LANES - 1) / LANES * LANES;
    for (int i = 0; i < n_lanes; i++) {
        float *to = a->q + (size_t)(i / LANES) * DIM * LANES + i % LANES;
        const float *q = NULL;
        if (i < n)
            q = op->q +
                ((size_t)(first + i / s->n_rep) * (size_t)op->n_q + (size_t)(g * s->n_rep + i % s->n_rep)) * DIM;
        for (int d = 0; d < DIM; d++) to[d * LANES] = q ? q[d] : 0.0f;
        a->begin[i] = a->end[i] = 0;
        clear_part(&a->top[i], &a->sum[i], a->y + (size_t)i * DIM);
        clear_part(&a->all_top[i], &a->all_sum[i], a->all_y + (size_t)i * DIM);
    }
}

/* One page of a KV head.
 *   next  the page that is read after it, or -1 */
static tile open_tile(const mm3_attention *op, int slot, int page, int next, int g, int begin, int end)
{
    bool bf16 = op->kv.type == MM3_BF16;
    int per_token = DIM * (bf16 ? 2 : 4);
    tile x = {
        .bf16 = bf16, .begin = begin, .end = end, .after_k.per_token = per_token, .after_v.per_token = per_token
    };
    x.k = mm3_kv_tile(&op->kv, slot, page, op->kv.k_at, g, DIM);
    x.v = mm3_kv_tile(&op->kv, slot, page, op->kv.v_at, g, DIM);
    x.after_k.at = x.v;
    if (next >= 0) x.after_v.at = mm3_kv_tile(&op->kv, slot, next, op->kv.k_at, g, DIM);
    return x;
}

/* Close the current part of row r of the block: add it and start the next. */
static void close_part(const area *a, const shape *s, int r)
{
    for (int i = r * s->n_rep; i < (r + 1) * s->n_rep; i++) {
        float *y = a->y + (size_t)i * DIM;
        add_part(&a->all_top[i], &a->all_sum[i], a->all_y + (size_t)i * DIM, a->top[i], a->sum[i], y);
        clear_part(&a->top[i], &a->sum[i], y);
    }
}

/* n_rows rows of one sequence, pages ascending. With part >= 0 (then n_rows is 1) only that part, left open. */
static void run_rows(const area *a, const mm3_attention *op, const shape *s, int first, int n_rows, int g, int part)
{
    cursor row[MAX_ROWS];
    int n_vectors = (n_rows * s->n_rep + LANES - 1) / LANES;
    pack_queries(a, op, s, first, n_rows, g);
    for (int r = 0; r < n_rows; r++) start_runs(&row[r], op, s, first + r, g, part);
    for (;;) {
        int page = INT32_MAX, begin = TILE, end = 0;
        cursor next = row[0];
        tile now;
        for (int r = 0; r < n_rows; r++)
            if (row[r].live) page = MM3_MIN(page, row[r].page);
        if (page == INT32_MAX) return;
        for (int r = 0; r < n_rows; r++) {
            bool here = row[r].live && row[r].page == page;
            for (int i = r * s->n_rep; i < (r + 1) * s->n_rep; i++) {
                a->begin[i] = here ? (float)row[r].begin : 0.0f;
                a->end[i] = here ? (float)row[r].end : 0.0f;
            }
            if (!here) continue;
            begin = MM3_MIN(begin, row[r].begin);
            end = MM3_MAX(end, row[r].end);
        }
        if (next.live && next.page == page) next_run(&next, op, s);
        now = open_tile(op, op->slot[first], page, next.live ? next.page : -1, g, begin, end);
        attend(a, n_vectors, &now, op->scale);
        for (int r = 0; r < n_rows; r++) {
            int was = row[r].part;
            if (!row[r].live || row[r].page != page) continue;
            next_run(&row[r], op, s);
            if (part < 0 && (!row[r].live || row[r].part != was)) close_part(a, s, r);
        }
    }
}

static void finish(float *out, const float *y, float sum)
{
    for (int d = 0; d < DIM; d += LANES) vf_store(out + d, vf_load(y + d) / vf_set(sum));
}

/* ---- phases ------------------------------------------------------------------------------------------------------ */

static float *partial_of(const mm3_call *call, const shape *s, int n_threads, int row, int h, int part)
{
    const mm3_attention *op = call->op;
    area a;
    float *partials = (float *)call->scratch + cut_area(&a, op, s, NULL) * (size_t)n_threads;
    return partials + (((size_t)row * (size_t)op->n_q + (size_t)h) * (size_t)s->n_parts + (size_t)part) * PARTIAL;
}

static int parts_of_row(const mm3_attention *op, const shape *s, int row)
{
    if (op->slot[row] < 0) return 0;
    return op->selected ? s->n_parts : op->position[row] / TILE / s->part_pages + 1;
}

static void run_parts(const mm3_call *call, const shape *s, const area *a, int i_thread, int n_threads)
{
    const mm3_attention *op = call->op;
    int item = 0;
    for (int row = 0; row < op->m; row++)
        for (int part = 0; part < parts_of_row(op, s, row); part++)
            for (int g = 0; g < op->kv.n_kv; g++) {
                if (item++ % n_threads != i_thread) continue;
                run_rows(a, op, s, row, 1, g, part);
                for (int i = 0; i < s->n_rep; i++) {
                    float *to = partial_of(call, s, n_threads, row, g * s->n_rep + i, part);
                    to[0] = a->top[i];
                    to[1] = a->sum[i];
                    memcpy(to + 2, a->y + (size_t)i * DIM, DIM * sizeof *to);
                }
            }
}

static void run_blocks(const mm3_call *call, const shape *s, const area *a, int i_thread, int n_threads)
{
    const mm3_attention *op = call->op;
    int most = (int)MM3_MIN(s->max_rows, ((int64_t)op->m * op->kv.n_kv + 2 * n_threads - 1) / (2 * n_threads)),
        item = 0;
    for (int row = 0, n; row < op->m; row += n) {
        for (n = 1; n < most && row + n < op->m && op->slot[row + n] == op->slot[row];) n++;
        for (int g = 0; g < op->kv.n_kv; g++) {
            if (item++ % n_threads != i_thread || op->slot[row] < 0) continue;
            run_rows(a, op, s, row, n, g, -1);
            for (int i = 0; i < n * s->n_rep; i++) {
                size_t head = (size_t)(row + i / s->n_rep) * (size_t)op->n_q + (size_t)(g * s->n_rep + i % s->n_rep);
                finish(op->out + head * DIM, a->all_y + (size_t)i * DIM, a->all_sum[i]);
            }
        }
    }
}

static void phase_0(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_attention *op = call->op;
    shape s = shape_of(op, call->tactic, n_threads);
    area a;
    size_t n = cut_area(&a, op, &s, NULL);
    cut_area(&a, op, &s, (float *)call->scratch + n * (size_t)i_thread);
    if (s.by_part)
        run_parts(call, &s, &a, i_thread, n_threads);
    else
        run_blocks(call, &s, &a, i_thread, n_threads);
}

/* Parts to rows; zeros to padded rows. */
static void phase_1(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_attention *op = call->op;
    shape s = shape_of(op, call->tactic, n_threads);
    int begin, end;
    mm3_share(op->m * op->n_q, i_thread, n_threads, &begin, &end);
    for (int i = begin; i < end; i++) {
        int row = i / op->n_q;
        float top, sum, y[DIM], *out = op->out + (size_t)i * DIM;
        if (op->slot[row] < 0) {
            memset(out, 0, DIM * sizeof *out);
            continue;
        }
        if (!s.by_part) continue;
        clear_part(&top, &sum, y);
        for (int part = 0; part < parts_of_row(op, &s, row); part++) {
            const float *from = partial_of(call, &s, n_threads, row, i % op->n_q, part);
            add_part(&top, &sum, y, from[0], from[1], from + 2);
        }
        finish(out, y, sum);
    }
}

#endif
