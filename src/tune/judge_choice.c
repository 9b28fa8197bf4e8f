/* Judges of choices: router, index_select, sample. A choice is right if nothing that it passed over is certainly
 * better: better by more than both scores' tolerances, or exactly equal with a lower id. */
#include <math.h>
#include <string.h>

#include "tune/cases.h"

/* A score, and how far a correct kernel's may be from it. */
typedef struct rank {
    double score; /* NaN ranks below every number */
    double slack;
    int id;
} rank;

/* `tie`: the kernel, too, must see the two as equal. */
static bool certainly_before(const rank *a, const rank *b, bool tie)
{
    if (isnan(a->score)) return isnan(b->score) && a->id < b->id;
    if (isnan(b->score)) return true;
    if (a->score == b->score && (tie || isinf(a->score) || a->slack + b->slack == 0)) return a->id < b->id;
    return a->score > b->score + a->slack + b->slack;
}

/* ---- router ------------------------------------------------------------------------------------------------------ */

static double sigmoid(float x) { return 1 / (1 + exp(-(double)x)); }

/* exp(-x) has a relative error of |x| u from the rounding of nothing but x's product
 * with log2 e, and 2 u of its own. */
static double slack_of_sigmoid(float x) { return sigmoid(x) * (5 + fmax(0, -(double)x)); }

static rank router_rank(const mm3_router *op, int i, int e)
{
    float x = op->logits[(size_t)i * (size_t)op->n_expert + (size_t)e];
    rank r = { .score = sigmoid(x) + (double)op->bias[e], .id = e };
    r.slack = isfinite(r.score) ? MM3__U * (slack_of_sigmoid(x) + fabs(r.score)) + 0x1p-126 : 0;
    return r;
}

static bool router_row(const mm3_router *op, int i, mm3_verdict *v)
{
    const int32_t *expert = op->expert + (size_t)i * (size_t)op->top_k;
    const float *x = op->logits + (size_t)i * (size_t)op->n_expert;
    double sum = 0;
    for (int j = 0; j < op->top_k; j++) {
        rank mine;
        if (expert[j] < 0 || expert[j] >= op->n_expert)
            return mm3__wrong(v, "expert[%d, %d] is %d, not an expert", i, j, expert[j]);
        mine = router_rank(op, i, expert[j]);
        for (int e = 0; e < op->n_expert; e++) {
            rank other = router_rank(op, i, e);
            bool taken = false, tie = x[e] == x[expert[j]] && op->bias[e] == op->bias[expert[j]];
            for (int k = 0; k < j; k++) taken |= expert[k] == e;
            if (taken && e == expert[j]) return mm3__wrong(v, "expert[%d, %d] is %d for the second time", i, j, e);
            if (taken || e == expert[j] || !certainly_before(&other, &mine, tie)) continue;
            return mm3__wrong(v, "expert[%d, %d] is %d (%.9g), but %d comes before it (%.9g)", i, j, expert[j],
                              mine.score, e, other.score);
        }
        sum += sigmoid(x[expert[j]]);
    }
    for (int j = 0; j < op->top_k; j++) {
        double want = sigmoid(x[expert[j]]) / sum, got = (double)op->weight[(size_t)i * (size_t)op->top_k + (size_t)j],
               n = 0;
        for (int k = 0; k < op->top_k; k++) n = fmax(n, slack_of_sigmoid(x[expert[k]]) / sigmoid(x[expert[k]]));
        if (!mm3__value_is_right(got, want, mm3__roundings(2 * n + op->top_k + 3) * want + 0x1p-126, false, &v->worst))
            return mm3__wrong(v, "weight[%d, %d] is %.9g, not %.9g", i, j, got, want);
    }
    return true;
}

/* The lists must be those of the candidate's own experts. */
static bool router_lists(const mm3_router *op, mm3_verdict *v)
{
    int n_pairs = op->m * op->top_k, n = 0;
    for (int e = 0; e < op->n_expert; e++) {
        if (op->begin[e] != n) return mm3__wrong(v, "begin[%d] is %d, not %d", e, op->begin[e], n);
        for (int p = 0; p < n_pairs; p++) {
            if (op->expert[p] != e) continue;
            if (op->pair[n] != p) return mm3__wrong(v, "pair[%d] is %d, not %d", n, op->pair[n], p);
            n++;
        }
    }
    if (op->begin[op->n_expert] != n)
        return mm3__wrong(v, "begin[%d] is %d, not %d", op->n_expert, op->begin[op->n_expert], n);
    for (; n < n_pairs; n++)
        if (op->pair[n] != -1) return mm3__wrong(v, "pair[%d] is %d, not -1", n, op->pair[n]);
    return true;
}

bool mm3__judge_router(const mm3_case *c, const mm3__array *a, const mm3__tolerance *t, const mm3_kernel *kernel,
                       mm3_verdict *v)
{
    const mm3_router *op = &c->op.router;
    (void)a, (void)t, (void)kernel;
    for (int i = 0; i < op->m; i++) {
        if (op->slot[i] >= 0) {
            if (!router_row(op, i, v)) return false;
            continue;
        }
        for (int j = 0; j < op->top_k; j++) {
            size_t at = (size_t)i * (size_t)op->top_k + (size_t)j;
            if (op->expert[at] != -1 || op->weight[at] != 0)
                return mm3__wrong(v, "padded row %d has expert %d, weight %.9g, not -1, 0", i, op->expert[at],
                                  (double)op->weight[at]);
        }
    }
    return router_lists(op, v);
}

/* ---- index_select ------------------------------------------------------------------------------------------------ */

static rank block_rank(const mm3_case *c, int i, int g, int b)
{
    const mm3_index_select *op = &c->op.index_select;
    const mm3_kv *kv = &op->kv;
    const float *iq = op->iq + ((size_t)i * (size_t)op->n_groups + (size_t)g) * (size_t)kv->d_index;
    int end = MM3_MIN((b + 1) * op->block, op->position[i] + 1);
    rank r = { .score = NAN, .id = b };
    for (int t = b * op->block; t < end; t++) {
        const void *base = mm3_kv_tile(kv, op->slot[i], t / MM3_PAGE_TOKENS, kv->ik_at, 0, kv->d_index);
        size_t at = (size_t)(t % MM3_PAGE_TOKENS) * (size_t)kv->d_index;
        double s = 0, size = 0, flushed = 0;
        for (int d = 0; d < kv->d_index; d++) {
            double y = kv->type == MM3_BF16 ? (double)mm3_bf16_to_f32(((const uint16_t *)base)[at + (size_t)d])
                                            : (double)((const float *)base)[at + (size_t)d];
            s += (double)iq[d] * y;
            size += fabs((double)iq[d] * y);
            flushed += fabs((double)iq[d]) + fabs(y) + 1;
        }
        if (isnan(r.score) || s > r.score) r.score = s;
        if (isfinite(size)) r.slack = fmax(r.slack, mm3__roundings(kv->d_index + 2.0) * size + flushed * 0x1p-126);
    }
    if (c->spec.fill == MM3_FILL_EXACT || c->spec.fill == MM3_FILL_TIES || isinf(r.score)) r.slack = 0;
    return r;
}

static bool selected_list(const mm3_case *c, int i, int g, rank *block, mm3_verdict *v)
{
    const mm3_index_select *op = &c->op.index_select;
    const int32_t *list = op->selected + ((size_t)i * (size_t)op->n_groups + (size_t)g) * (size_t)op->top_k;
    int own = op->slot[i] < 0 ? -1 : op->position[i] / op->block, n = MM3_MIN(own + 1, op->top_k), last = -1;
    for (int j = 0; j < op->top_k; j++) {
        if (j < n ? list[j] > last && list[j] <= own : list[j] == -1) {
            last = list[j];
            continue;
        }
        return mm3__wrong(v, "selected[%d, %d, %d] is %d after %d; %d blocks of 0..%d in ascending order, then -1", i,
                          g, j, list[j], last, n, own);
    }
    if (n && list[n - 1] != own)
        return mm3__wrong(v, "selected[%d, %d] ends with block %d, not with its own, %d", i, g, list[n - 1], own);
    if (n == own + 1) return true;
    for (int b = 0; b < own; b++) block[b] = block_rank(c, i, g, b);
    for (int j = 0; j < n - 1; j++)
        for (int b = 0; b < own; b++) {
            bool taken = false;
            for (int k = 0; k < n; k++) taken |= list[k] == b;
            if (taken || !certainly_before(&block[b], &block[list[j]], false)) continue;
            return mm3__wrong(v, "selected[%d, %d] has block %d (%.9g) and not block %d (%.9g)", i, g, list[j],
                              block[list[j]].score, b, block[b].score);
        }
    return true;
}

bool mm3__judge_selected(const mm3_case *c, const mm3__array *a, const mm3__tolerance *t, const mm3_kernel *kernel,
                         mm3_verdict *v)
{
    const mm3_index_select *op = &c->op.index_select;
    size_t max = (size_t)(mm3_shape_get(MM3_OP_INDEX_SELECT, &c->spec.shape, "context") / op->block) + 1;
    rank *block = mm3_malloc(max * sizeof *block);
    bool ok = block != NULL;
    (void)a, (void)t, (void)kernel;
    if (!ok) mm3__wrong(v, "out of memory while comparing");
    for (int i = 0; ok && i < op->m; i++)
        for (int g = 0; ok && g < op->n_groups; g++) ok = selected_list(c, i, g, block, v);
    mm3_free(block);
    return ok;
}

/* ---- sample ------------------------------------------------------------------------------------------------------ */

/* One token of a row that is judged. */
typedef struct option {
    double logit;     /* after penalties */
    double slack;     /* of logit: 0 where no penalty rounds it */
    double z;         /* relative to the largest, over the temperature */
    double p, before; /* exp(z), and the sum of p of what comes before it */
    bool may, must;   /* be left after the filters, as far as rounding goes */
    int id;
    float raw;
    int32_t count;
} option;

static option option_of(const mm3_sample *op, int i, int id)
{
    const mm3_sample_row *row = &op->row[i];
    option o = { .id = id, .raw = op->logits[(size_t)i * (size_t)op->n_vocab + (size_t)id] };
    int32_t n;
    o.logit = (double)o.raw;
    if (row->counts_row < 0 || !op->counts) return o;
    o.count = op->counts[(size_t)row->counts_row * (size_t)op->n_vocab + (size_t)id];
    n = o.count & (MM3_COUNT_IN_PROMPT - 1);
    if (!o.count) return o;
    o.logit = o.logit > 0 ? o.logit / (double)row->repetition_penalty : o.logit * (double)row->repetition_penalty;
    o.slack = MM3__U * 2 * fabs(o.logit);
    if (n) {
        double less = (double)row->presence_penalty + n * (double)row->frequency_penalty;
        o.logit -= less;
        o.slack += MM3__U * (3 * fabs(less) + 2 * fabs(o.logit));
    }
    if (!isfinite(o.slack)) o.slack = 0;
    return o;
}

static rank rank_of_option(const option *o) { return (rank){ .score = o->logit, .slack = o->slack, .id = o->id }; }
static bool same_option(const option *a, const option *b) { return a->raw == b->raw && a->count == b->count; }

static bool greedy(const option *o, int n, int token, int i, mm3_verdict *v)
{
    rank mine = rank_of_option(&o[token]);
    for (int j = 0; j < n; j++) {
        rank other = rank_of_option(&o[j]);
        if (j != token && certainly_before(&other, &mine, same_option(&o[j], &o[token])))
            return mm3__wrong(v, "token[%d] is %d (%.9g), but %d comes before it (%.9g)", i, token, mine.score, j,
                              other.score);
    }
    return true;
}

static int largest_first(const void *a, const void *b)
{
    const option *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Which of the sorted options are left: certainly (must), and as far as rounding allows (may). */
static void filter(const mm3_sample_row *row, option *o, int n)
{
    double tau = mm3__roundings(n + 16.0), total = 0, sum = 0;
    int k = row->top_k > 0 ? MM3_MIN(n, row->top_k) : n;
    for (int j = 0; j < n; j++) {
        o[j].z = (o[j].logit == o[0].logit ? 0 : o[j].logit - o[0].logit) / (double)row->temperature;
        o[j].p = exp(o[j].z);
        /* beyond the k-th, or before it, by no more than rounding */
        o[j].may = j < k || o[j].logit + o[j].slack + o[k - 1].slack > o[k - 1].logit;
        o[j].must = j < k && (k == n || same_option(&o[j], &o[k]) ||
                              o[j].logit - o[j].slack > o[k].logit + o[k].slack || o[j].slack + o[k].slack == 0);
        if (j >= k && o[j].slack + o[k - 1].slack == 0) o[j].may = false;
    }
    for (int j = 0; j < k; j++) total += o[j].p;
    for (int j = 0; j < n; j++) {
        double relative = tau + MM3__U * 4 * fabs(o[j].z); /* p's own error */
        if (row->top_p < 1) {
            o[j].may = o[j].may && (j == 0 || sum < (double)row->top_p * total * (1 + tau));
            o[j].must = o[j].must && (j == 0 || sum < (double)row->top_p * total * (1 - tau));
        }
        if (row->min_p > 0) {
            o[j].may = o[j].may && (j == 0 || o[j].p >= (double)row->min_p * (1 - relative));
            o[j].must = o[j].must && (j == 0 || o[j].p >= (double)row->min_p * (1 + relative));
        }
        sum += o[j].p;
    }
}

static bool drawn(const mm3_sample *op, int i, option *o, int n, int token, mm3_verdict *v)
{
    const mm3_sample_row *row = &op->row[i];
    const option *mine = NULL;
    double score, slack;
    qsort(o, (size_t)n, sizeof *o, largest_first);
    filter(row, o, n);
    for (int j = 0; j < n; j++)
        if (o[j].id == token) mine = &o[j];
    if (!mine->may) return mm3__wrong(v, "token[%d] is %d, which the filters remove", i, token);
    score = mm3_gumbel(row->seed, op->position[i] + 1, token);
    slack = MM3__U * 8 * (fabs(mine->z) + fabs(score)) + mine->slack / (double)row->temperature;
    score += mine->z;
    for (int j = 0; j < n; j++) {
        double g = mm3_gumbel(row->seed, op->position[i] + 1, o[j].id), more = MM3__U * 8 * (fabs(o[j].z) + fabs(g));
        more += o[j].slack / (double)row->temperature;
        if (!o[j].must || o[j].id == token || !isfinite(g + o[j].z) || g + o[j].z <= score + slack + more) continue;
        return mm3__wrong(v, "token[%d] is %d (%.9g), but %d draws more (%.9g)", i, token, score, o[j].id, g + o[j].z);
    }
    return true;
}

static bool logprob(const mm3_sample *op, int i, int token, mm3_verdict *v)
{
    const float *x = op->logits + (size_t)i * (size_t)op->n_vocab;
    double top = -INFINITY, sum = 0, below, want, got = (double)op->logprob[i], n = op->n_token;
    for (int j = 0; j < op->n_token; j++) top = fmax(top, (double)x[j]);
    for (int j = 0; j < op->n_token; j++) sum += (double)x[j] == top ? 1 : exp((double)x[j] - top);
    below = (double)x[token] == top ? 0 : (double)x[token] - top;
    want = below - log(sum);
    if (mm3__value_is_right(got, want, MM3__U * (n + 8 + 3 * fabs(below) + 2 * fabs(log(sum))), false, &v->worst))
        return true;
    return mm3__wrong(v, "logprob[%d] is %.9g, not %.9g", i, got, want);
}

static bool sample_row(const mm3_sample *op, int i, option *o, mm3_verdict *v)
{
    int token = op->token[i];
    bool nan = false;
    for (int j = 0; j < op->n_token; j++) nan |= isnan(op->logits[(size_t)i * (size_t)op->n_vocab + (size_t)j]);
    if (op->slot[i] < 0 || nan) {
        bool right = op->slot[i] < 0 ? op->logprob[i] == 0 : isnan(op->logprob[i]);
        if (token == -1 && right) return true;
        return mm3__wrong(v, "row %d (%s) has token %d, logprob %.9g", i, op->slot[i] < 0 ? "padded" : "with a NaN",
                          token, (double)op->logprob[i]);
    }
    if (token < 0 || token >= op->n_token)
        return mm3__wrong(v, "token[%d] is %d, not one of 0..%d", i, token, op->n_token - 1);
    for (int j = 0; j < op->n_token; j++) o[j] = option_of(op, i, j);
    if (!logprob(op, i, token, v)) return false;
    if (!(op->row[i].temperature > 0)) return greedy(o, op->n_token, token, i, v);
    return drawn(op, i, o, op->n_token, token, v);
}

bool mm3__judge_sample(const mm3_case *c, const mm3__array *a, const mm3__tolerance *t, const mm3_kernel *kernel,
                       mm3_verdict *v)
{
    const mm3_sample *op = &c->op.sample;
    option *o = mm3_malloc((size_t)op->n_token * sizeof *o);
    bool ok = o != NULL;
    (void)a, (void)t, (void)kernel;
    if (!ok) mm3__wrong(v, "out of memory while comparing");
    for (int i = 0; ok && i < op->m; i++) ok = sample_row(op, i, o, v);
    mm3_free(o);
    return ok;
}
