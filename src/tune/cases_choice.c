/* Cases of the operations that choose: router and sample. */
#include "tune/cases.h"

/* ---- router ------------------------------------------------------------------------------------------------------ */

static const mm3__field router_field[] = { { "m", NULL, 3, 1, 1 << 16 },
                                           { "experts", NULL, 16, 1, 1024 },
                                           { "top_k", NULL, 4, 1, 64 },
                                           { "pad", NULL, 0, 0, 1 } };

static const char *router_contradiction(const int *v)
{
    return v[1] < v[2] ? "there are fewer experts than top_k" : NULL;
}

static mm3_status router_build(mm3_case *c, const int *v)
{
    mm3_router *op = &c->op.router;
    float *logits, *bias;
    *op = (mm3_router){ .m = v[0], .n_expert = v[1], .top_k = v[2] };
    logits = mm3__array_rows(c, "logits", &op->logits, op->n_expert, MM3_F32, MM3_IN);
    MM3__NEED(logits);
    mm3__fill_rows(c, "logits", logits, op->n_expert);
    bias = mm3__array_add(c, "bias", &op->bias, (size_t)op->n_expert * 4, 0, MM3_F32, MM3_IN);
    MM3__NEED(bias);
    c->array[c->n_arrays - 1].weight = true;
    mm3__fill_row(c->spec.fill == MM3_FILL_HUGE ? MM3_FILL_RANDOM : c->spec.fill, c->spec.seed, "bias", 0, bias,
                  op->n_expert);
    for (int e = 0; e < op->n_expert; e++) bias[e] *= 0.5f; /* enough to change the order of many */
    MM3_TRY(mm3__slots_make(c, "slot", &op->slot, v[3]));
    MM3__NEED(mm3__array_rows(c, "expert", &op->expert, op->top_k, MM3_I32, MM3_OUT));
    MM3__NEED(mm3__array_rows(c, "weight", &op->weight, op->top_k, MM3_F32, MM3_OUT));
    MM3__NEED(mm3__array_rows(c, "pair", &op->pair, op->top_k, MM3_I32, MM3_OUT));
    /* the lists depend on all rows, whatever their shape */
    mm3__array_find(c, "pair")->row_bytes = 0;
    MM3__NEED(mm3__array_add(c, "begin", &op->begin, ((size_t)op->n_expert + 1) * 4, 0, MM3_I32, MM3_OUT));
    return MM3_OK;
}

const mm3__case_kind mm3__router_case = { .field = router_field,
                                          .n_fields = MM3_COUNT(router_field),
                                          .bench = "experts=128,top_k=4",
                                          .contradiction = router_contradiction,
                                          .build = router_build };

/* ---- sample ------------------------------------------------------------------------------------------------------ */

enum { MODE_GREEDY, MODE_TEMPERATURE, MODE_TOP_K, MODE_TOP_P, MODE_MIN_P, MODE_ALL };
enum { SA_M, SA_VOCAB, SA_TOKENS, SA_MODE, SA_PENALTIES, SA_PAD };
static const mm3__field sample_field[] = {
    { "m", NULL, 3, 1, 4096 },          { "vocab", NULL, 100, 1, 1 << 20 },
    { "tokens", NULL, 97, 1, 1 << 20 }, { "mode", "greedy temperature top_k top_p min_p all", 0, 0, 5 },
    { "penalties", NULL, 0, 0, 1 },     { "pad", NULL, 0, 0, 1 },
};

static const char *sample_contradiction(const int *v)
{
    return v[SA_TOKENS] > v[SA_VOCAB] ? "tokens is more than vocab" : NULL;
}

enum { N_COUNTS = 4 };

static mm3_sample_row row_of(const mm3_case *c, int i, const int *v)
{
    int id = mm3__row_id(c, i), mode = v[SA_MODE];
    mm3__rng r = mm3__rng_of(c->spec.seed, "sampling", id);
    mm3_sample_row row = { .top_p = 1, .repetition_penalty = 1, .counts_row = -1, .seed = mm3__next(&r) };
    if (mode != MODE_GREEDY) row.temperature = 0.4f + 0.2f * (float)(id % 6);
    if (mode == MODE_TOP_K || mode == MODE_ALL) row.top_k = 1 + mm3__below(&r, 12);
    if (mode == MODE_TOP_P || mode == MODE_ALL) row.top_p = 0.05f + 0.1f * (float)mm3__below(&r, 10);
    if (mode == MODE_MIN_P || mode == MODE_ALL) row.min_p = 0.02f * (float)mm3__below(&r, 20);
    if (v[SA_PENALTIES] && id % 4 != 3) {
        row.counts_row = id % N_COUNTS;
        row.repetition_penalty = 1.3f;
        row.presence_penalty = 0.25f;
        row.frequency_penalty = 0.125f;
    }
    return row;
}

static mm3_status sample_build(mm3_case *c, const int *v)
{
    mm3_sample *op = &c->op.sample;
    float *logits;
    mm3_sample_row *row;
    int32_t *position;
    int n_counts = 0;
    *op = (mm3_sample){ .m = v[SA_M], .n_vocab = v[SA_VOCAB], .n_token = v[SA_TOKENS] };
    logits = mm3__array_rows(c, "logits", &op->logits, op->n_vocab, MM3_F32, MM3_IN);
    MM3__NEED(logits);
    mm3__fill_rows(c, "logits", logits, op->n_vocab);
    for (int i = 0; i < op->m; i++) /* ids without text must not win */
        for (int j = op->n_token; j < op->n_vocab; j++) logits[(size_t)i * (size_t)op->n_vocab + (size_t)j] = 0x1p100f;
    row = mm3__array_structs(c, "row", &op->row, (size_t)op->m * sizeof *row, sizeof *row);
    MM3__NEED(row);
    for (int i = 0; i < op->m; i++) {
        row[i] = row_of(c, i, v);
        n_counts = MM3_MAX(n_counts, row[i].counts_row + 1);
    }
    if (n_counts) {
        size_t n = (size_t)n_counts * (size_t)op->n_vocab;
        mm3__rng r = mm3__rng_of(c->spec.seed, "counts", 0);
        int32_t *counts = mm3__array_add(c, "counts", &op->counts, n * 4, 0, MM3_I32, MM3_IN);
        MM3__NEED(counts);
        for (size_t i = 0; i < n; i++) {
            int what = mm3__below(&r, 12); /* most tokens were never seen */
            counts[i] = what == 0 ? MM3_COUNT_IN_PROMPT : what == 1 ? 1 + mm3__below(&r, 5) : 0;
            if (what == 2) counts[i] = MM3_COUNT_IN_PROMPT + 1 + mm3__below(&r, 3);
        }
    }
    MM3_TRY(mm3__slots_make(c, "slot", &op->slot, v[SA_PAD]));
    position = mm3__array_rows(c, "position", &op->position, 1, MM3_I32, MM3_IN);
    MM3__NEED(position);
    for (int i = 0; i < op->m; i++) position[i] = mm3__row_id(c, i) * 7;
    MM3__NEED(mm3__array_rows(c, "token", &op->token, 1, MM3_I32, MM3_OUT));
    MM3__NEED(mm3__array_rows(c, "logprob", &op->logprob, 1, MM3_F32, MM3_OUT));
    return MM3_OK;
}

const mm3__case_kind mm3__sample_case = { .field = sample_field,
                                          .n_fields = MM3_COUNT(sample_field),
                                          .bench = "vocab=200064,tokens=200061,mode=all",
                                          .contradiction = sample_contradiction,
                                          .build = sample_build };
