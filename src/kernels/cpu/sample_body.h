/* sample_body: written once for every width of vectors. Included by one .c file per candidate, after LANES. An item is
 * a row. Everything is linear in the vocabulary, and what is not a few operations per vector of tokens is done for few
 * of them: a cheap bound first leaves the tokens that can matter to a filter, a filter's threshold is then found by
 * counting (or adding up probability) over the bits of the logit, and a Gumbel variable is computed only for a token
 * that can win with it. */
#ifndef MM3_SAMPLE_BODY_H
#define MM3_SAMPLE_BODY_H

#include <float.h>

#include "kernels/cpu/lanes.h"
#include "kernels/kernels.h"

enum {
    MAX_BINS = 2048,
    SUM_STEP = 64,     /* vectors that are added up in FP32 before the sum goes on in double */
    MAX_GROUPS = 1024, /* of tokens, whose maxima bound the top_k-th logit from below */
    DRAW_STEP = 64     /* tokens that are ruled out together */
};

/* The tokens still in the draw, ids ascending. */
typedef struct list {
    int n;
    float *x; /* logits after penalties */
    float *p; /* exp((x - top) / temperature) */
    int32_t *id;
    double *bin; /* [MAX_BINS] */
} list;

static size_t padded(int n) { return ((size_t)n + 15) / 16 * 16; }

static size_t list_bytes(const mm3_sample *op) { return 12 * padded(op->n_token) + MAX_BINS * sizeof(double); }

static size_t scratch(const void *p, const mm3_tactic *tactic, int n_threads)
{
    (void)tactic;
    return list_bytes(p) * (size_t)n_threads;
}

static list list_at(const mm3_sample *op, void *memory)
{
    size_t n = padded(op->n_token);
    list c = { .n = op->n_token, .bin = memory };
    c.x = (float *)(c.bin + MAX_BINS);
    c.p = c.x + n;
    c.id = (int32_t *)(c.p + n);
    return c;
}

/* The vector at x[i], -infinity beyond n. */
LANES_INLINE vf load_part(const float *x, int i, int n)
{
    float part[LANES];
    if (i + LANES <= n) return vf_load(x + i);
    for (int lane = 0; lane < LANES; lane++) part[lane] = i + lane < n ? x[i + lane] : -INFINITY;
    return vf_load(part);
}

/* The largest of n; *nan says whether there is a NaN. */
static float largest(const float *x, int n, bool *nan)
{
    vf best = vf_set(-INFINITY);
    vi bad = { 0 };
    float flags[LANES];
    for (int i = 0; i < n; i += LANES) {
        vf v = load_part(x, i, n);
        best = vf_max(v, best);
        bad |= v != v;
    }
    *nan = false;
    vf_store(flags, (vf)bad);
    for (int lane = 0; lane < LANES; lane++) *nan |= mm3_f32_bits(flags[lane]) != 0;
    return vf_largest(best);
}

/* x - top, where infinities may be equal. */
static double below(float x, float top) { return x == top ? 0.0 : (double)x - (double)top; }

/* Sum of exp((x - top) / temperature); the terms go to p where it is not NULL. */
static double weigh(const float *x, int n, float top, float temperature, float *p)
{
    double sum = 0;
    if (!(fabsf(top) < 1e30f)) { /* infinities, or differences that overflow in FP32 */
        for (int i = 0; i < n; i++) {
            double y = exp(below(x[i], top) / (double)temperature);
            if (p) p[i] = (float)y;
            sum += y;
        }
        return sum;
    }
    for (int i = 0; i < n;) {
        vf part = vf_set(0.0f);
        for (int end = (int)MM3_MIN(n, (int64_t)i + SUM_STEP * LANES); i < end; i += LANES) {
            vf y = vf_exp((load_part(x, i, n) - vf_set(top)) / vf_set(temperature));
            if (p) vf_store(p + i, y);
            part += y;
        }
        sum += (double)vf_sum(part);
    }
    return sum;
}

/* The logits after penalties: in `spare` if there are any, else where they are. */
static const float *penalize(const mm3_sample *op, const mm3_sample_row *row, const float *logits, float *spare)
{
    const int32_t *counts;
    if (row->counts_row < 0 || !op->counts) return logits;
    counts = op->counts + (size_t)row->counts_row * (size_t)op->n_vocab;
    for (int i = 0; i < op->n_token; i++) {
        int32_t n = counts[i] & (MM3_COUNT_IN_PROMPT - 1);
        float x = logits[i];
        if (counts[i]) x = x > 0 ? x / row->repetition_penalty : x * row->repetition_penalty;
        spare[i] = n ? x - (row->presence_penalty + (float)n * row->frequency_penalty) : x;
    }
    return spare;
}

/* ---- thresholds -------------------------------------------------------------------------------------------------- */

/* Ordered as the floats are; -0 as +0. */
static inline uint32_t key_of(float x)
{
    uint32_t u = mm3_f32_bits(x);
    if (u << 1 == 0) return 0x80000000u;
    return u >> 31 ? ~u : u | 0x80000000u;
}

static inline float of_key(uint32_t key) { return mm3_f32_from_bits(key >> 31 ? key & 0x7FFFFFFFu : ~key); }

/* Where a prefix of the tokens, largest first, ends: all above the key, and the first n_ties of those at it. */
typedef struct cut {
    uint32_t key;
    int n_ties;
} cut;

/* The shortest prefix whose weight reaches `target`; at least one token. Weight is p, or 1 each where p is NULL. */
static cut find_cut(const float *x, const float *p, int n, double target, double *bin)
{
    static const struct {
        int shift, bits;
    } round[] = { { 21, 11 }, { 10, 11 }, { 0, 10 } };
    double above = 0, tie = 1;
    cut c = { .key = 0, .n_ties = 1 };
    for (int r = 0; r < MM3_COUNT(round); r++) {
        int shift = round[r].shift, known = shift + round[r].bits, n_bins = 1 << round[r].bits, at = -1;
        memset(bin, 0, (size_t)n_bins * sizeof *bin);
        for (int i = 0; i < n; i++) {
            uint32_t key = key_of(x[i]);
            if (known < 32 && key >> known != c.key) continue;
            bin[key >> shift & (uint32_t)(n_bins - 1)] += p ? (double)p[i] : 1.0;
        }
        for (int b = n_bins - 1; b >= 0; b--) {
            if (bin[b] == 0) continue;
            if (at >= 0) above += bin[at];
            at = b;
            if (above + bin[b] >= target) break; /* else the last one: a sum in another order fell short */
        }
        c.key = c.key << round[r].bits | (uint32_t)at;
    }
    for (int i = 0; p && i < n; i++)
        if (key_of(x[i]) == c.key) {
            tie = (double)p[i];
            break;
        }
    while (c.n_ties < n && above + c.n_ties * tie < target) c.n_ties++;
    return c;
}

static void apply_cut(list *c, cut at)
{
    int n = 0;
    for (int i = 0; i < c->n; i++) {
        uint32_t key = key_of(c->x[i]);
        if (key < at.key || (key == at.key && at.n_ties-- <= 0)) continue;
        c->x[n] = c->x[i];
        c->p[n] = c->p[i];
        c->id[n++] = c->id[i];
    }
    c->n = n;
}

/* Make the list of the tokens whose w is at least `least`.
 *   x  logits of all tokens; may be c->x, as w may be c->p */
static void gather(list *c, const float *x, const float *w, int n_token, float least)
{
    int n = 0;
    for (int i = 0; i < n_token; i += LANES) {
        unsigned mask = vf_mask_ge(load_part(w, i, n_token), vf_set(least));
        for (; mask; mask &= mask - 1) {
            int at = i + __builtin_ctz(mask);
            if (at >= n_token) break;
            c->x[n] = x[at];
            c->p[n] = c->p[at];
            c->id[n++] = at;
        }
    }
    c->n = n;
}

/* A number that at least k tokens reach: the k-th largest of the maxima of groups of tokens. */
static float reached_by(const list *c, const float *x, int n_token, int k)
{
    int size = (n_token / MAX_GROUPS / LANES + 1) * LANES, n = 0;
    if (k > n_token / size) return -INFINITY;
    for (int i = 0; i < n_token; i += size, n++) {
        vf best = vf_set(-INFINITY);
        for (int j = i; j < MM3_MIN(n_token, i + size); j += LANES) best = vf_max(load_part(x, j, n_token), best);
        c->p[n] = vf_largest(best);
    }
    return of_key(find_cut(c->p, NULL, n, k, c->bin).key);
}

/* The tokens that the filters leave; false if that is all of them, and then only p is set. */
static bool filter(list *c, const mm3_sample_row *row, const float *x, int n_token, float top, float temperature)
{
    float min_p = row->min_p > 0 ? MM3_MIN(1.0f, row->min_p) : 0.0f;
    double total;
    if (row->top_k > 0 && row->top_k < n_token) {
        gather(c, x, x, n_token, reached_by(c, x, n_token, row->top_k));
        apply_cut(c, find_cut(c->x, NULL, c->n, row->top_k, c->bin));
        total = weigh(c->x, c->n, top, temperature, c->p);
    } else {
        /* tokens below (1 - top_p) / n_token of the total cannot make up more than 1 - top_p together */
        total = weigh(x, n_token, top, temperature, c->p);
        c->n = n_token;
        if (!(row->top_p < 1) && min_p == 0) return false;
        gather(c, x, c->p, n_token,
               row->top_p < 1 ? (float)MM3_MIN(1.0, (1.0 - (double)row->top_p) * total / n_token * 0.999) : min_p);
    }
    if (row->top_p < 1) apply_cut(c, find_cut(c->x, c->p, c->n, (double)row->top_p * total, c->bin));
    if (min_p > 0) {
        int n = 0;
        for (int i = 0; i < c->n; i++) {
            if (c->p[i] < min_p) continue;
            c->x[n] = c->x[i];
            c->p[n] = c->p[i];
            c->id[n++] = c->id[i];
        }
        c->n = n;
    }
    return true;
}

/* ---- the draw ---------------------------------------------------------------------------------------------------- */

/* Can any of n tokens win? As -log(u) >= 1 - u, a token can win against z = best only if 1 - u < exp(z_i - best) =
 * p * bound: one multiplication instead of two logarithms. In units of 2^-52, where 1 - u is a whole number and a half.
 *   id  [n], or NULL: first, first + 1 ... */
static bool may_win(const float *p, const int32_t *id, int first, int n, uint64_t seed, int32_t position, double bound)
{
    float scale = (float)(bound * 0x1p52);
    int n_winners = 0;
    if (id)
        for (int i = 0; i < n; i++)
            n_winners += (float)(int64_t)(~mm3_random_bits(seed, position, id[i]) >> 12) < p[i] * scale;
    else
        for (int i = 0; i < n; i++)
            n_winners += (float)(int64_t)(~mm3_random_bits(seed, position, first + i) >> 12) < p[i] * scale;
    return n_winners != 0;
}

/* The token with the largest z + Gumbel, of c->n with logits x. A token whose p is 0 in FP32 cannot win: Gumbel
 * variables lie between -3.7 and 36.8, and the largest z is among the tokens.
 *   id  [c->n], or NULL: 0, 1 ... */
static int32_t draw(const list *c, const float *x, const int32_t *id, float top, float temperature, uint64_t seed,
                    int32_t position)
{
    double best = -INFINITY, bound = INFINITY;
    int32_t winner = -1;
    for (int i = 0; i < c->n && winner < 0; i++)
        if (x[i] == top) {
            winner = id ? id[i] : i;
            best = mm3_gumbel(seed, position, winner);
            bound = exp(-best) * 1.0001; /* more than FP32 can be off */
        }
    for (int first = 0; first < c->n; first += DRAW_STEP) {
        int n = MM3_MIN(DRAW_STEP, c->n - first);
        if (!may_win(c->p + first, id ? id + first : NULL, first, n, seed, position, bound)) continue;
        for (int i = first; i < first + n; i++) {
            int32_t at = id ? id[i] : i;
            double z;
            if (c->p[i] == 0) continue;
            z = below(x[i], top) / (double)temperature + mm3_gumbel(seed, position, at);
            if (!(z > best) && !(z == best && at < winner)) continue;
            winner = at;
            best = z;
            bound = exp(-best) * 1.0001;
        }
    }
    return winner;
}

static int32_t choose(const mm3_sample *op, int i, list *c, const float *logits)
{
    const mm3_sample_row *row = &op->row[i];
    const float *x = penalize(op, row, logits, c->x);
    float top, temperature = MM3_MIN(row->temperature, FLT_MAX); /* infinity would make -inf / inf */
    bool nan;
    top = largest(x, op->n_token, &nan);
    if (nan) return -1;            /* a penalty made one */
    if (!(row->temperature > 0)) { /* NaN too */
        for (int j = 0; j < op->n_token; j += LANES) {
            unsigned mask = vf_mask_ge(load_part(x, j, op->n_token), vf_set(top));
            if (mask) return j + __builtin_ctz(mask);
        }
        return -1;
    }
    if (filter(c, row, x, op->n_token, top, temperature))
        return draw(c, c->x, c->id, top, temperature, row->seed, op->position[i] + 1);
    return draw(c, x, NULL, top, temperature, row->seed, op->position[i] + 1);
}

static void run(const mm3_call *call, int i_thread, int n_threads)
{
    const mm3_sample *op = call->op;
    for (int i = i_thread; i < op->m; i += n_threads) {
        const float *logits = op->logits + (size_t)i * (size_t)op->n_vocab;
        list c = list_at(op, (char *)call->scratch + list_bytes(op) * (size_t)i_thread);
        bool nan;
        float top;
        op->token[i] = -1;
        op->logprob[i] = op->slot[i] < 0 ? 0.0f : NAN;
        if (op->slot[i] < 0) continue;
        top = largest(logits, op->n_token, &nan);
        if (nan) continue;
        op->token[i] = choose(op, i, &c, logits);
        if (op->token[i] < 0) continue;
        op->logprob[i] = (float)(below(logits[op->token[i]], top) - log(weigh(logits, op->n_token, top, 1.0f, NULL)));
    }
}

#endif
