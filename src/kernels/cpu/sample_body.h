/* sample_body: written once for every width of vectors. Included by one .c file per candidate, after LANES. An item is
 * a row. Everything is linear in the vocabulary: top-k and top-p find their threshold by three rounds of counting
 * (or of adding up probability) over the bits of the logit, and a Gumbel variable is computed only where a cheap bound
 * does not already rule its token out. */
#ifndef MM3_SAMPLE_BODY_H
#define MM3_SAMPLE_BODY_H

#include <float.h>

#include "kernels/cpu/lanes.h"
#include "kernels/kernels.h"

enum { MAX_BINS = 2048, SUM_STEP = 64 /* vectors that are added up in FP32 before the sum goes on in double */ };

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

static void penalize(const mm3_sample *op, const mm3_sample_row *row, float *x)
{
    const int32_t *counts;
    if (row->counts_row < 0 || !op->counts) return;
    counts = op->counts + (size_t)row->counts_row * (size_t)op->n_vocab;
    for (int i = 0; i < op->n_token; i++) {
        int32_t n = counts[i] & (MM3_COUNT_IN_PROMPT - 1);
        if (!counts[i]) continue;
        x[i] = x[i] > 0 ? x[i] / row->repetition_penalty : x[i] * row->repetition_penalty;
        if (n) x[i] -= row->presence_penalty + (float)n * row->frequency_penalty;
    }
}

/* ---- thresholds ------------------------------------------------------------------------------------------------- */

/* Ordered as the floats are; -0 as +0. */
static inline uint32_t key_of(float x)
{
    uint32_t u = mm3_f32_bits(x);
    if (u << 1 == 0) return 0x80000000u;
    return u >> 31 ? ~u : u | 0x80000000u;
}

/* Keep the shortest prefix, largest first, whose weight reaches `target`; at least one. Weight is p, or 1 each. */
static void keep_prefix(list *c, bool by_weight, double target)
{
    static const struct {
        int shift, bits;
    } round[] = { { 21, 11 }, { 10, 11 }, { 0, 10 } };
    uint32_t prefix = 0;
    double above = 0, tie = 1;
    int n = 0, n_ties = 1;
    for (int r = 0; r < MM3_COUNT(round); r++) {
        int shift = round[r].shift, known = shift + round[r].bits, n_bins = 1 << round[r].bits, at = -1;
        memset(c->bin, 0, (size_t)n_bins * sizeof *c->bin);
        for (int i = 0; i < c->n; i++) {
            uint32_t key = key_of(c->x[i]);
            if (known < 32 && key >> known != prefix) continue;
            c->bin[key >> shift & (uint32_t)(n_bins - 1)] += by_weight ? (double)c->p[i] : 1.0;
        }
        for (int b = n_bins - 1; b >= 0; b--) {
            if (c->bin[b] == 0) continue;
            if (at >= 0) above += c->bin[at];
            at = b;
            if (above + c->bin[b] >= target) break; /* else the last one: a sum in another order fell short */
        }
        prefix = prefix << round[r].bits | (uint32_t)at;
    }
    for (int i = 0; by_weight && i < c->n; i++)
        if (key_of(c->x[i]) == prefix) {
            tie = (double)c->p[i];
            break;
        }
    while (n_ties < c->n && above + n_ties * tie < target) n_ties++;
    for (int i = 0; i < c->n; i++) {
        uint32_t key = key_of(c->x[i]);
        if (key < prefix || (key == prefix && n_ties-- <= 0)) continue;
        c->x[n] = c->x[i];
        c->p[n] = c->p[i];
        c->id[n++] = c->id[i];
    }
    c->n = n;
}

static void filter(list *c, const mm3_sample_row *row, float top, float temperature)
{
    double total;
    int n = 0;
    if (row->top_k > 0 && row->top_k < c->n) keep_prefix(c, false, row->top_k);
    total = weigh(c->x, c->n, top, temperature, c->p);
    if (row->top_p < 1) keep_prefix(c, true, (double)row->top_p * total);
    if (!(row->min_p > 0)) return;
    for (int i = 0; i < c->n; i++) {
        if (c->p[i] < MM3_MIN(1.0f, row->min_p)) continue;
        c->x[n] = c->x[i];
        c->p[n] = c->p[i];
        c->id[n++] = c->id[i];
    }
    c->n = n;
}

/* ---- the draw --------------------------------------------------------------------------------------------------- */

/* The id with the largest z + Gumbel. As -log(u) >= 1 - u, token i can win against `best` only if
 * 1 - u < exp(z - best) = p * exp(-best): one multiplication instead of two logarithms. A token whose p is 0 in FP32
 * cannot win at all: Gumbel variables lie between -3.7 and 36.8, and the largest z is in the list. */
static int32_t draw(const list *c, float top, float temperature, uint64_t seed, int32_t position)
{
    double best = -INFINITY, bound = INFINITY;
    int32_t id = -1;
    for (int i = 0; i < c->n; i++)
        if (c->x[i] == top) {
            id = c->id[i];
            best = mm3_gumbel(seed, position, id);
            bound = exp(-best) * 1.0001;
            break;
        }
    for (int i = 0; i < c->n; i++) {
        double u = mm3_uniform(mm3_random_bits(seed, position, c->id[i])), z;
        if (!(1.0 - u < (double)c->p[i] * bound)) continue;
        z = below(c->x[i], top) / (double)temperature + mm3_gumbel(seed, position, c->id[i]);
        if (!(z > best) && !(z == best && c->id[i] < id)) continue;
        id = c->id[i];
        best = z;
        bound = exp(-best) * 1.0001;
    }
    return id;
}

static int32_t choose(const mm3_sample *op, int i, list *c, const float *logits)
{
    const mm3_sample_row *row = &op->row[i];
    bool nan;
    float top, temperature = MM3_MIN(row->temperature, FLT_MAX); /* infinity would make -inf / inf */
    memcpy(c->x, logits, (size_t)op->n_token * sizeof *c->x);
    penalize(op, row, c->x);
    top = largest(c->x, c->n, &nan);
    if (nan) return -1;            /* a penalty made one */
    if (!(row->temperature > 0)) { /* NaN too */
        for (int j = 0; j < c->n; j++)
            if (c->x[j] == top) return j;
        return -1;
    }
    for (int j = 0; j < c->n; j++) c->id[j] = j;
    filter(c, row, top, temperature);
    return draw(c, top, temperature, row->seed, op->position[i] + 1);
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
