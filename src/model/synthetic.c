/* synthetic: a model of M3's width with random weights, for benchmarks on machines that do not hold the released one.
 * Owns the sizes and what the weights hold. Knows no file. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "model/internal.h"

enum {
    M3_LAYERS = 60,
    M3_EXPERTS = 128,
    M3_VOCAB = 200064,
    MAX_CHANNELS = 256, /* that only the embedding writes: what the router reads */
    N_BLOCKS = 8192,    /* different blocks of codes; weights are made of them at random */
    N_DRAWS = 2048,     /* tokens by which the popularity of experts is set */
    MAX_EXPERTS = 4096  /* config.c accepts as many */
};

/* source  docs/m3.md, section 1: config.json */
static const mm3_synthetic m3 = { .hidden = 6144,
                                  .heads = 64,
                                  .kv_heads = 4,
                                  .intermediate = 12288,
                                  .expert_intermediate = 3072,
                                  .experts_per_token = 4,
                                  .seed = 1 };

/* ---- the text ---------------------------------------------------------------------------------------------------- */

/* Sizes that can be given, with what they must be multiples of. */
static const struct {
    const char *name;
    size_t at;
    int multiple, max;
} sizes[] = {
    { "layers", offsetof(mm3_synthetic, layers), 1, 4096 },
    { "dense", offsetof(mm3_synthetic, dense), 1, 4096 },
    { "experts", offsetof(mm3_synthetic, experts), 1, MAX_EXPERTS },
    { "vocab", offsetof(mm3_synthetic, vocab), 1, 1 << 24 },
    { "hidden", offsetof(mm3_synthetic, hidden), 32, 1 << 16 },
    { "heads", offsetof(mm3_synthetic, heads), 1, 1024 },
    { "kv_heads", offsetof(mm3_synthetic, kv_heads), 1, 1024 },
    { "intermediate", offsetof(mm3_synthetic, intermediate), 32, 1 << 17 },
    { "expert_intermediate", offsetof(mm3_synthetic, expert_intermediate), 32, 1 << 17 },
    { "top_k", offsetof(mm3_synthetic, experts_per_token), 1, 64 },
};

static mm3_status read_size(mm3_synthetic *out, const char *name, const char *value)
{
    for (int i = 0; i < MM3_COUNT(sizes); i++) {
        int64_t v;
        int n;
        if (strcmp(sizes[i].name, name) != 0) continue;
        MM3_CHECK(mm3_parse_int(value, 1, sizes[i].max, &v) && v % sizes[i].multiple == 0, MM3_ERR_ARG,
                  "synthetic: %s '%s': use a multiple of %d from %d to %d", name, value, sizes[i].multiple,
                  sizes[i].multiple, sizes[i].max);
        n = (int)v;
        memcpy((unsigned char *)out + sizes[i].at, &n, sizeof n);
        return MM3_OK;
    }
    return mm3_fail(MM3_ERR_ARG, MM3_HERE,
                    "synthetic: there is no '%s': use layers, dense, experts, vocab, hidden, heads, kv_heads, "
                    "intermediate, expert_intermediate, top_k, routing or seed",
                    name);
}

static mm3_status read_word(mm3_synthetic *out, char *word)
{
    char *value = strchr(word, '=');
    int64_t seed;
    MM3_CHECK(value, MM3_ERR_ARG, "synthetic: '%s': use NAME=VALUE, like layers=2", word);
    *value++ = 0;
    if (strcmp(word, "routing") == 0) {
        out->zipf = strcmp(value, "zipf") == 0;
        MM3_CHECK(out->zipf || strcmp(value, "uniform") == 0, MM3_ERR_ARG,
                  "synthetic: routing '%s': use uniform or zipf", value);
        return MM3_OK;
    }
    if (strcmp(word, "seed") == 0) {
        MM3_CHECK(mm3_parse_int(value, 0, INT64_MAX, &seed), MM3_ERR_ARG, "synthetic: seed '%s': use a whole number",
                  value);
        out->seed = (uint64_t)seed;
        return MM3_OK;
    }
    return read_size(out, word, value);
}

mm3_status mm3_synthetic_parse(mm3_synthetic *out, const char *text)
{
    const char *at = text;
    *out = m3;
    MM3_CHECK(strncmp(at, "m3", 2) == 0 && (at[2] == 0 || at[2] == ','), MM3_ERR_ARG,
              "synthetic '%s': it begins with m3, the one model that is known", text);
    for (at += 2; *at == ',';) {
        char word[64];
        size_t n = strcspn(++at, ",");
        MM3_CHECK(n < sizeof word, MM3_ERR_ARG, "synthetic: '%.*s' is too long", (int)MM3_MIN(n, (size_t)99), at);
        memcpy(word, at, n);
        word[n] = 0;
        MM3_TRY(read_word(out, word));
        at += n;
    }
    return MM3_OK;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

static void complete(mm3_synthetic *s)
{
    if (!s->layers) s->layers = 2;
    if (!s->dense) s->dense = MM3_MAX(1, s->layers / 20);
    s->dense = MM3_MIN(s->dense, s->layers);
    if (!s->experts) s->experts = M3_EXPERTS;
    if (!s->vocab) s->vocab = M3_VOCAB;
}

static size_t mx_bytes(size_t n, size_t k) { return n * k + n * k / MM3_MX_BLOCK; }

static size_t attention_bytes(const mm3_synthetic *s, bool sparse)
{
    size_t h = (size_t)s->hidden, q = (size_t)s->heads * MM3_HEAD_DIM, kv = (size_t)s->kv_heads * MM3_HEAD_DIM;
    size_t index = sparse ? kv + MM3_HEAD_DIM : 0, n_norms = sparse ? 4 : 2;
    return mx_bytes(q + 2 * kv + index, h) + mx_bytes(h, q) + (2 * h + n_norms * MM3_HEAD_DIM) * sizeof(float);
}

static size_t mlp_bytes(size_t h, size_t inter) { return 2 * mx_bytes(inter, h) + mx_bytes(h, inter); }

static size_t expert_bytes(const mm3_synthetic *s)
{
    return mlp_bytes((size_t)s->hidden, (size_t)s->expert_intermediate);
}

static size_t moe_layer_bytes(const mm3_synthetic *s)
{
    size_t n = (size_t)s->experts, router = n * ((size_t)s->hidden + 1) * sizeof(float);
    return attention_bytes(s, true) + router + (n + 1) * expert_bytes(s);
}

static size_t vocab_bytes(const mm3_synthetic *s) { return (size_t)s->vocab * (size_t)s->hidden * 2; }

size_t mm3_synthetic_bytes(const mm3_synthetic *spec)
{
    mm3_synthetic s = *spec;
    size_t dense, h = (size_t)s.hidden;
    complete(&s);
    dense = attention_bytes(&s, false) + mlp_bytes(h, (size_t)s.intermediate);
    return 2 * vocab_bytes(&s) + h * sizeof(float) + (size_t)s.dense * dense +
           (size_t)(s.layers - s.dense) * moe_layer_bytes(&s);
}

void mm3_synthetic_fit(mm3_synthetic *spec, size_t n_bytes)
{
    bool free_vocab = !spec->vocab, free_experts = !spec->experts;
    complete(spec);
    if (free_vocab && mm3_synthetic_bytes(spec) > n_bytes)
        spec->vocab = MM3_MAX(M3_VOCAB / M3_LAYERS * MM3_MIN(spec->layers, M3_LAYERS) / 64 * 64, 64);
    while (free_experts && spec->experts / 2 >= MM3_MAX(8, spec->experts_per_token) &&
           mm3_synthetic_bytes(spec) > n_bytes)
        spec->experts /= 2;
}

/* ---- the model without its data ---------------------------------------------------------------------------------- */

static mm3_status shape_config(mm3_model *m, const mm3_synthetic *s)
{
    mm3_config *c = &m->config;
    *c = (mm3_config){ .hidden_size = s->hidden,
                       .n_layers = s->layers,
                       .vocab_size = s->vocab,
                       .max_position = 1048576,
                       .n_heads = s->heads,
                       .n_kv_heads = s->kv_heads,
                       .dense_intermediate = s->intermediate,
                       .expert_intermediate = s->expert_intermediate,
                       .shared_intermediate = s->expert_intermediate,
                       .n_experts = s->experts,
                       .experts_per_token = s->experts_per_token,
                       .n_shared_experts = 1,
                       .n_index_heads = s->kv_heads,
                       .index_dim = MM3_HEAD_DIM,
                       .block_size = 128,
                       .topk_blocks = 16,
                       .rms_norm_eps = 1e-6,
                       .rope_theta = 5e6,
                       .routed_scaling_factor = 2,
                       .swiglu_alpha = 1.702,
                       .swiglu_limit = 7,
                       .swiglu_beta = 1,
                       .is_mxfp8 = true };
    c->layer_is_moe = mm3_arena_alloc(&m->arena, (size_t)s->layers);
    c->layer_is_sparse = mm3_arena_alloc(&m->arena, (size_t)s->layers);
    m->layer = mm3_arena_alloc(&m->arena, (size_t)s->layers * sizeof *m->layer);
    m->dir = mm3_strdup("synthetic");
    MM3_CHECK(c->layer_is_moe && c->layer_is_sparse && m->layer && m->dir, MM3_ERR_NOMEM,
              "out of memory for %d synthetic layers", s->layers);
    memset(c->layer_is_moe + s->dense, 1, (size_t)(s->layers - s->dense));
    memset(c->layer_is_sparse + s->dense, 1, (size_t)(s->layers - s->dense));
    return MM3_OK;
}

static mm3_weight mx(int n) { return (mm3_weight){ .n = n, .type = MM3_MX }; }

static mm3_status shape_layer(mm3_model *m, const mm3_synthetic *s, mm3_layer *y)
{
    int kv = s->kv_heads * MM3_HEAD_DIM, inter = y->is_moe ? s->expert_intermediate : s->intermediate;
    mm3_weight *gate_up, *down;
    y->q = mx(s->heads * MM3_HEAD_DIM);
    y->k = y->v = mx(kv);
    y->gate = y->up = mx(inter);
    y->o = y->down = mx(s->hidden);
    if (!y->is_moe) return MM3_OK;
    y->iq = mx(kv);
    y->ik = mx(MM3_HEAD_DIM);
    y->router = (mm3_weight){ .n = s->experts, .type = MM3_F32 };
    gate_up = mm3_arena_alloc(&m->arena, 2 * (size_t)s->experts * sizeof *gate_up);
    down = mm3_arena_alloc(&m->arena, (size_t)s->experts * sizeof *down);
    MM3_CHECK(gate_up && down, MM3_ERR_NOMEM, "out of memory for %d synthetic experts", s->experts);
    for (int e = 0; e < s->experts; e++) {
        gate_up[2 * e] = gate_up[2 * e + 1] = mx(inter);
        down[e] = mx(s->hidden);
    }
    y->expert_gate_up = gate_up;
    y->expert_down = down;
    return MM3_OK;
}

static mm3_status shape(mm3_model *m, const mm3_synthetic *s)
{
    MM3_CHECK(s->heads % s->kv_heads == 0, MM3_ERR_ARG, "synthetic: %d heads are no multiple of %d KV heads", s->heads,
              s->kv_heads);
    MM3_CHECK(s->experts_per_token <= s->experts, MM3_ERR_ARG, "synthetic: top_k %d of %d experts",
              s->experts_per_token, s->experts);
    MM3_TRY(shape_config(m, s));
    m->embed = m->head = (mm3_weight){ .n = s->vocab, .type = MM3_BF16 };
    for (int i = 0; i < s->layers; i++) {
        m->layer[i].is_moe = m->layer[i].is_sparse = i >= s->dense;
        MM3_TRY(shape_layer(m, s, &m->layer[i]));
    }
    return MM3_OK;
}

mm3_status mm3_model_outline(mm3_model **out, const mm3_synthetic *spec)
{
    mm3_synthetic s = *spec;
    mm3_status st;
    complete(&s);
    *out = mm3_calloc(1, sizeof **out);
    MM3_CHECK(*out, MM3_ERR_NOMEM, "out of memory for the sizes of a model");
    st = shape(*out, &s);
    if (st != MM3_OK) mm3_model_close(out);
    return st;
}

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

typedef struct maker {
    mm3_model *m;
    const mm3_synthetic *spec;
    uint64_t random;
    size_t at;                             /* bytes of the memory that are given away */
    int n_channels;                        /* the last ones; the very last is the same in every token */
    uint8_t code[N_BLOCKS][MM3_MX_BLOCK];  /* quantized normal values */
    uint16_t half[N_BLOCKS][MM3_MX_BLOCK]; /* normal values as BF16 */
    float popularity[MAX_EXPERTS];         /* by rank: what is added to a router logit of variance 1 */
} maker;

static uint64_t next(maker *k)
{
    k->random ^= k->random << 13;
    k->random ^= k->random >> 7;
    k->random ^= k->random << 17;
    return k->random;
}

static float uniform(maker *k) { return (float)((double)(next(k) >> 11) + 0.5) * 0x1p-53f; }

static float normal(maker *k)
{
    float u = uniform(k), v = uniform(k);
    return sqrtf(-2 * logf(u)) * cosf(6.2831853f * v);
}

static void make_codes(maker *k)
{
    float x[MM3_MX_BLOCK];
    for (int i = 0; i < N_BLOCKS; i++) {
        for (int j = 0; j < MM3_MX_BLOCK; j++) x[j] = normal(k);
        (void)mm3_mx_quantize_block(x, k->code[i]);
    }
}

static void *take(maker *k, size_t n_bytes)
{
    void *p = k->m->memory + k->at;
    k->at += (n_bytes + 63) & ~(size_t)63;
    k->m->weight_bytes += n_bytes;
    k->m->n_tensors++;
    return p;
}

/* An MXFP8 weight whose products with rows of variance 1 have about that variance again: the codes' is 2^14 (blocks
 * that reach 448), so scale bytes lie about 120 - log2(K) / 2. The last n_zero rows are zero. */
static void make_mx(maker *k, mm3_weight *w, int columns, int n_zero)
{
    size_t n_codes = (size_t)w->n * (size_t)columns, n_zeros = (size_t)n_zero * (size_t)columns;
    uint8_t *codes = take(k, n_codes), *scales = take(k, n_codes / MM3_MX_BLOCK);
    int base = 119 - (int)lround(log2(columns) / 2);
    k->m->n_tensors--; /* codes and scales are one */
    for (size_t i = 0; i < n_codes - n_zeros; i += MM3_MX_BLOCK)
        memcpy(codes + i, k->code[next(k) % N_BLOCKS], MM3_MX_BLOCK);
    for (size_t i = 0; i < n_codes / MM3_MX_BLOCK; i += 16) {
        uint64_t u = next(k);
        for (size_t j = i; j < MM3_MIN(i + 16, n_codes / MM3_MX_BLOCK); j++, u >>= 4)
            scales[j] = (uint8_t)(base + (int)(u & 1) + (int)(u >> 1 & 1)); /* base, twice base + 1, base + 2 */
    }
    w->data = codes;
    w->scales = scales;
}

/* A BF16 weight of normal values. */
static uint16_t *make_half(maker *k, mm3_weight *w, float size)
{
    size_t n = (size_t)w->n * (size_t)k->spec->hidden;
    uint16_t *x = take(k, n * sizeof *x);
    for (int i = 0; i < N_BLOCKS; i++)
        for (int j = 0; j < MM3_MX_BLOCK; j++) k->half[i][j] = mm3_bf16_from_f32(size * normal(k));
    for (size_t i = 0; i < n; i += MM3_MX_BLOCK) memcpy(x + i, k->half[next(k) % N_BLOCKS], sizeof k->half[0]);
    w->data = x;
    return x;
}

/* A norm's weight, stored "minus one". The last n_plain are zero. */
static const float *make_norm(maker *k, int n, int n_plain)
{
    float *x = take(k, (size_t)n * sizeof *x);
    for (int i = 0; i < n - n_plain; i++) x[i] = 0.05f * normal(k);
    return x;
}

/* ---- routing ----------------------------------------------------------------------------------------------------- */

/* The chance of each rank to be among the chosen: in proportion to 1 / rank, none above 0.9, the sum what is chosen. */
static void zipf(int n, int top_k, double *chance)
{
    double scale = 1;
    for (int i = 0; i < 60; i++) {
        double sum = 0;
        for (int r = 0; r < n; r++) sum += chance[r] = MM3_MIN(0.9, scale / (r + 1));
        scale *= top_k / sum;
    }
}

/* How many of the draws choose each rank, logits being a normal value plus the rank's popularity. */
static void count_choices(const maker *k, const float *draw, int *count)
{
    int n = k->spec->experts, top_k = k->spec->experts_per_token;
    memset(count, 0, (size_t)n * sizeof *count);
    for (int i = 0; i < N_DRAWS; i++, draw += n) {
        int best[64], n_best = 0; /* descending */
        for (int e = 0; e < n; e++) {
            float x = draw[e] + k->popularity[e];
            int at = n_best;
            while (at > 0 && x > draw[best[at - 1]] + k->popularity[best[at - 1]]) at--;
            if (at == top_k) continue;
            n_best = MM3_MIN(n_best + 1, top_k);
            memmove(best + at + 1, best + at, (size_t)(n_best - 1 - at) * sizeof *best);
            best[at] = e;
        }
        for (int j = 0; j < n_best; j++) count[best[j]]++;
    }
}

static double log_odds(double p) { return log(p / (1 - p)); }

/* Find the popularity of each rank by trying: which logits give which chance has no closed form. */
static mm3_status make_popularity(maker *k)
{
    int n = k->spec->experts, n_all = n * N_DRAWS;
    float *draw = mm3_malloc((size_t)n_all * sizeof *draw);
    int *count = mm3_malloc((size_t)n * sizeof *count);
    double *chance = mm3_malloc((size_t)n * sizeof *chance);
    if (draw && count && chance) {
        zipf(n, k->spec->experts_per_token, chance);
        for (int i = 0; i < n_all; i++) draw[i] = normal(k);
        for (int i = 0; i < 20; i++) {
            count_choices(k, draw, count);
            for (int e = 0; e < n; e++) {
                double got = MM3_MIN(count[e] + 0.5, N_DRAWS - 0.5) / N_DRAWS;
                k->popularity[e] += (float)(0.5 * (log_odds(chance[e]) - log_odds(got)));
            }
        }
    }
    mm3_free(draw);
    mm3_free(count);
    mm3_free(chance);
    MM3_CHECK(draw && count && chance, MM3_ERR_NOMEM, "out of memory for a synthetic router");
    return MM3_OK;
}

/* Logits of expert e: a direction of its own in the channels that only the embedding writes, which even tokens make a
 * normal value, plus its popularity, which the constant channel brings. Both shrink alike as the residual stream
 * grows, and sigmoid keeps the order, so that the choice is the same at every layer. */
static void make_router(maker *k, mm3_layer *y)
{
    int n = k->spec->experts, h = k->spec->hidden, first = h - k->n_channels;
    float *w = take(k, (size_t)n * (size_t)h * sizeof *w);
    int rank[MAX_EXPERTS];
    for (int e = 0; e < n; e++) rank[e] = e;
    for (int e = n - 1; e > 0; e--) { /* each layer prefers others */
        int other = (int)(next(k) % (uint64_t)(e + 1)), t = rank[e];
        rank[e] = rank[other];
        rank[other] = t;
    }
    for (int e = 0; e < n; e++) {
        float *row = w + (size_t)e * (size_t)h;
        double size = 0;
        for (int c = first; c < h - 1; c++) {
            row[c] = normal(k);
            size += (double)row[c] * row[c];
        }
        for (int c = first; c < h - 1; c++) row[c] /= (float)sqrt(size);
        row[h - 1] = k->popularity[rank[e]];
    }
    y->router.data = w;
    y->router_bias = take(k, (size_t)n * sizeof(float)); /* zero */
}

/* ---- layers ------------------------------------------------------------------------------------------------------ */

static void make_attention(maker *k, mm3_layer *y)
{
    int h = k->spec->hidden;
    y->input_norm = make_norm(k, h, 0);
    y->post_norm = make_norm(k, h, k->n_channels);
    y->q_norm = make_norm(k, MM3_HEAD_DIM, 0);
    y->k_norm = make_norm(k, MM3_HEAD_DIM, 0);
    make_mx(k, &y->q, h, 0);
    make_mx(k, &y->k, h, 0);
    make_mx(k, &y->v, h, 0);
    make_mx(k, &y->o, y->q.n, k->n_channels);
    if (!y->is_sparse) return;
    y->iq_norm = make_norm(k, MM3_HEAD_DIM, 0);
    y->ik_norm = make_norm(k, MM3_HEAD_DIM, 0);
    make_mx(k, &y->iq, h, 0);
    make_mx(k, &y->ik, h, 0);
}

static void make_feed_forward(maker *k, mm3_layer *y)
{
    int h = k->spec->hidden;
    mm3_weight *gate_up = (mm3_weight *)(uintptr_t)y->expert_gate_up, *down = (mm3_weight *)(uintptr_t)y->expert_down;
    make_mx(k, &y->gate, h, 0);
    make_mx(k, &y->up, h, 0);
    make_mx(k, &y->down, y->gate.n, k->n_channels);
    if (!y->is_moe) return;
    make_router(k, y);
    for (int e = 0; e < k->spec->experts; e++) {
        make_mx(k, &gate_up[2 * e], h, 0);
        make_mx(k, &gate_up[2 * e + 1], h, 0);
        make_mx(k, &down[e], gate_up[2 * e].n, k->n_channels);
    }
}

static mm3_status make(maker *k)
{
    const mm3_synthetic *s = k->spec;
    mm3_model *m = k->m;
    uint16_t *embed;
    size_t unused;
    make_codes(k);
    if (s->zipf) MM3_TRY(make_popularity(k));
    embed = make_half(k, &m->embed, 1);
    for (int i = 0; i < s->vocab; i++) embed[(size_t)(i + 1) * (size_t)s->hidden - 1] = 0x3F80; /* the channel of 1 */
    m->norm = make_norm(k, s->hidden, 0);
    for (int i = 0; i < s->layers; i++) {
        make_attention(k, &m->layer[i]);
        make_feed_forward(k, &m->layer[i]);
    }
    (void)make_half(k, &m->head, 2 / sqrtf((float)s->hidden)); /* logits of variance 4 */
    unused = (size_t)(s->layers - s->dense) * (size_t)(s->experts - s->experts_per_token) * expert_bytes(s);
    m->step_bytes = m->weight_bytes - vocab_bytes(s) + (size_t)s->hidden * 2 - unused;
    return MM3_OK;
}

mm3_status mm3_model_synthesize(mm3_model **out, const mm3_synthetic *spec)
{
    enum { MAX_PER_LAYER = 64 }; /* tensors besides those of experts */
    mm3_status st = MM3_OK;
    mm3_synthetic s = *spec;
    maker *k = NULL;
    size_t n_bytes, available = mm3_memory_available();
    *out = NULL;
    complete(&s);
    n_bytes = mm3_synthetic_bytes(&s);
    MM3_CHECK(n_bytes <= available, MM3_ERR_NOMEM,
              "a synthetic model of %d layers, %d experts and a vocabulary of %d takes %.2f GB, and %.2f GB are free: "
              "lower its layers, experts or vocab",
              s.layers, s.experts, s.vocab, (double)n_bytes * 1e-9, (double)available * 1e-9);
    k = mm3_calloc(1, sizeof *k);
    MM3_CHECK(k, MM3_ERR_NOMEM, "out of memory for a synthetic model");
    MM3_GOTO(mm3_model_outline(&k->m, &s));
    /* every array is rounded up to whole lines */
    n_bytes += 64 * ((size_t)s.layers * (MAX_PER_LAYER + 6 * (size_t)s.experts) + MAX_PER_LAYER);
    /* calloc: zeros that nothing is written to cost nothing; in small pages, as mapped files are */
    k->m->memory = mm3_calloc(n_bytes, 1);
    if (!k->m->memory) {
        st =
            mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory: a synthetic model takes %.2f GB", (double)n_bytes * 1e-9);
        goto done;
    }
    k->spec = &s;
    k->at = -(uintptr_t)k->m->memory & 63;
    k->random = s.seed * UINT64_C(0x9E3779B97F4A7C15) | 1;
    k->n_channels = MM3_MIN(s.hidden / 4, MAX_CHANNELS);
    MM3_GOTO(make(k));
    *out = k->m;
    k->m = NULL;
done:
    mm3_model_close(&k->m);
    mm3_free(k);
    return st;
}
