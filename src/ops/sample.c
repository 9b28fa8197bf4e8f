/* sample: descriptor and reference. */
#include <float.h>
#include <stdlib.h>

#include "ops/operand.h"

static void key(const void *p, mm3_key *key)
{
    const mm3_sample *op = p;
    mm3_key_number(key, "m", op->m);
    mm3_key_number(key, "vocab", op->n_vocab);
    mm3_key_number(key, "tokens", op->n_token);
}

static int operands(void *p, mm3_operand *out)
{
    mm3_sample *op = p;
    int n = 0, n_counts = 0;
    size_t rows = (size_t)op->m * sizeof(int32_t);
    for (int i = 0; op->row && i < op->m; i++) n_counts = MM3_MAX(n_counts, op->row[i].counts_row + 1);
    mm3__operand(out, &n, "logits", &op->logits, mm3__f32s(op->m, op->n_vocab), MM3_F32, MM3_IN);
    mm3__operand(out, &n, "row", &op->row, (size_t)op->m * sizeof *op->row, MM3_U8, MM3_IN);
    if (op->counts) mm3__operand(out, &n, "counts", &op->counts, mm3__f32s(n_counts, op->n_vocab), MM3_I32, MM3_IN);
    mm3__operand(out, &n, "slot", &op->slot, rows, MM3_I32, MM3_IN);
    mm3__operand(out, &n, "position", &op->position, rows, MM3_I32, MM3_IN);
    mm3__operand(out, &n, "token", &op->token, rows, MM3_I32, MM3_OUT);
    mm3__operand(out, &n, "logprob", &op->logprob, rows, MM3_F32, MM3_OUT);
    return n;
}

typedef struct choice {
    double logit; /* after penalties */
    double p;     /* exp(z - largest z): probability up to a common factor */
    int32_t id;
} choice;

static int largest_first(const void *a, const void *b)
{
    const choice *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static double penalized(const mm3_sample *op, const mm3_sample_row *row, int id, double x)
{
    int32_t count;
    if (row->counts_row < 0 || !op->counts) return x;
    count = op->counts[(size_t)row->counts_row * (size_t)op->n_vocab + (size_t)id];
    if (!count) return x;
    x = x > 0 ? x / (double)row->repetition_penalty : x * (double)row->repetition_penalty;
    count &= MM3_COUNT_IN_PROMPT - 1;
    return count ? x - ((double)row->presence_penalty + count * (double)row->frequency_penalty) : x;
}

/* x - top, where infinities may be equal. */
static double below(double x, double top) { return x == top ? 0.0 : x - top; }

/* How many of the n sorted choices stay. */
static int filter(const mm3_sample_row *row, const choice *c, int n)
{
    double total = 0, sum = 0;
    int k;
    if (row->top_k > 0) n = MM3_MIN(n, row->top_k);
    if (row->top_p < 1) {
        for (int i = 0; i < n; i++) total += c[i].p;
        for (k = 0; k < n && (k == 0 || sum < (double)row->top_p * total); k++) sum += c[k].p;
        n = k;
    }
    if (row->min_p > 0)
        for (k = 1; k < n; k++)
            if (c[k].p < fmin(1.0, (double)row->min_p)) n = k;
    return n;
}

static int32_t choose(const mm3_sample *op, int i, choice *c)
{
    const mm3_sample_row *row = &op->row[i];
    const float *x = op->logits + (size_t)i * (size_t)op->n_vocab;
    double best = -INFINITY, temperature = fmin((double)row->temperature, (double)FLT_MAX); /* not -inf / inf */
    int32_t id = -1;
    int n = op->n_token;
    for (int j = 0; j < n; j++) c[j] = (choice){ .id = j, .logit = penalized(op, row, j, (double)x[j]) };
    qsort(c, (size_t)n, sizeof *c, largest_first);
    if (!(temperature > 0) || isnan(row->temperature)) return c[0].id;
    for (int j = 0; j < n; j++) c[j].p = exp(below(c[j].logit, c[0].logit) / temperature);
    n = filter(row, c, n);
    for (int j = 0; j < n; j++) {
        double z = below(c[j].logit, c[0].logit) / temperature + mm3_gumbel(row->seed, op->position[i] + 1, c[j].id);
        if (id >= 0 && !(z > best) && !(z == best && c[j].id < id)) continue;
        best = z;
        id = c[j].id;
    }
    return id;
}

/* Without memory for the sort every token is -1, which no comparison accepts. */
static void reference(const void *p, double *magnitude)
{
    const mm3_sample *op = p;
    choice *c = mm3_malloc(mm3_mul((size_t)op->n_token, sizeof *c));
    for (int i = 0; i < op->m; i++) {
        const float *x = op->logits + (size_t)i * (size_t)op->n_vocab;
        double top = -INFINITY, sum = 0;
        bool nan = c == NULL;
        op->token[i] = -1;
        op->logprob[i] = op->slot[i] < 0 ? 0 : NAN;
        if (magnitude) magnitude[i] = 0;
        for (int j = 0; j < op->n_token; j++) {
            nan |= isnan(x[j]);
            top = fmax(top, (double)x[j]);
        }
        if (op->slot[i] < 0 || nan) continue;
        for (int j = 0; j < op->n_token; j++) sum += exp(below((double)x[j], top));
        op->token[i] = choose(op, i, c);
        op->logprob[i] = (float)(below((double)x[op->token[i]], top) - log(sum));
        if (magnitude) magnitude[i] = fabs(below((double)x[op->token[i]], top)) + log(sum) + 1;
    }
    mm3_free(c);
}

static double bytes(const void *p)
{
    const mm3_sample *op = p;
    double rows = 0;
    for (int i = 0; i < op->m; i++)
        if (op->slot[i] >= 0) rows += op->row[i].counts_row >= 0 && op->counts ? 2 : 1;
    return 4.0 * rows * op->n_token;
}

static double flops(const void *p)
{
    (void)p;
    return 0;
}

const mm3_op_info mm3__sample_info = {
    .name = "sample",
    .n_bytes = sizeof(mm3_sample),
    .key = key,
    .operands = operands,
    .reference = reference,
    .bytes = bytes,
    .flops = flops,
};
