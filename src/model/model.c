/* model: names and shapes of the checkpoint's tensors, bound to the network's places. Owns the name table of M3.
 * Computes nothing but copies of small vectors. Read next: forward/forward.h.
 * Shapes: rows are outputs, columns inputs; in[K] MXFP8 has one scale per 32 columns, named weight_scale_inv. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/internal.h"

enum { MAX_NAME = 160 };

typedef struct loader {
    mm3_model *m;
    mm3_shards *shards;
    const char *prefix;  /* "language_model." or "" */
    unsigned char *used; /* [tensors] */
    size_t expert_bytes; /* of all routed experts */
    bool takes_mx;       /* the weight being bound may be MXFP8 */
} loader;

/* Names of tensors are short by construction: layers and experts are counted, the rest is in this file. */
static void put_name(char out[MAX_NAME], const char *fmt, ...) MM3_PRINTF(2, 3);
static void put_name(char out[MAX_NAME], const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(out, MAX_NAME, fmt, args);
    va_end(args);
}

/* ---- one tensor -------------------------------------------------------------------------------------------------- */

static mm3_status missing(const loader *l, const char *name)
{
    const mm3_tensor *t = mm3_shards_find_unlisted(l->shards, name);
    if (t)
        return mm3_fail(MM3_ERR_FORMAT, MM3_HERE, "%s: tensor %s is in %s, but the index does not list it there",
                        l->m->dir, name, t->file);
    return mm3_fail(MM3_ERR_FORMAT, MM3_HERE, "%s: tensor %s is missing", l->m->dir, name);
}

static void shape_text(char *out, size_t max, int n_dims, const int64_t *shape)
{
    size_t at = 0;
    *out = 0;
    for (int i = 0; i < n_dims && at < max; i++)
        at += (size_t)snprintf(out + at, max - at, i ? ", %" PRId64 : "%" PRId64, shape[i]);
}

static mm3_status check_shape(const mm3_tensor *t, int n_dims, const int64_t *shape)
{
    bool same = t->n_dims == n_dims;
    char want[64], got[192];
    for (int i = 0; same && i < n_dims; i++) same = t->shape[i] == shape[i];
    if (same) return MM3_OK;
    shape_text(want, sizeof want, n_dims, shape);
    shape_text(got, sizeof got, t->n_dims, t->shape);
    return mm3_fail(MM3_ERR_FORMAT, MM3_HERE, "%s: tensor %s has shape [%s]; config.json makes it [%s]", t->file,
                    t->name, got, want);
}

/* Find a tensor, check its shape, count it. */
static mm3_status take(loader *l, const char *name, int n_dims, const int64_t *shape, const mm3_tensor **out)
{
    const mm3_tensor *t = mm3_shards_find(l->shards, name);
    if (!t) return missing(l, name);
    MM3_TRY(check_shape(t, n_dims, shape));
    l->used[t - mm3_shards_at(l->shards, 0)] = 1;
    l->m->n_tensors++;
    l->m->weight_bytes += t->n_bytes;
    *out = t;
    return MM3_OK;
}

/* A view of BF16 or F32 data; a copy where the file puts it at an odd address (the format allows that, kernels and
 * C do not). Released files are aligned. */
static mm3_status aligned_view(loader *l, const mm3_tensor *t, size_t element, const void **out)
{
    void *copy;
    *out = t->data;
    if ((uintptr_t)t->data % element == 0) return MM3_OK;
    copy = mm3_arena_alloc(&l->m->arena, t->n_bytes);
    MM3_CHECK(copy, MM3_ERR_NOMEM, "%s: out of memory for a copy of tensor %s", t->file, t->name);
    memcpy(copy, t->data, t->n_bytes);
    *out = copy;
    return MM3_OK;
}

/* The scales of an MXFP8 weight: bytes, under either of the two dtypes that writers use for them. */
static mm3_status bind_scales(loader *l, mm3_weight *w, const mm3_tensor *codes, int k)
{
    int64_t shape[2] = { w->n, k / MM3_MX_BLOCK };
    const mm3_tensor *t;
    char name[MAX_NAME];
    MM3_CHECK(k % MM3_MX_BLOCK == 0, MM3_ERR_FORMAT,
              "%s: tensor %s is MXFP8 with %d columns; expected a multiple of %d, or a BF16 or F32 tensor", codes->file,
              codes->name, k, MM3_MX_BLOCK);
    put_name(name, "%s_scale_inv", codes->name);
    MM3_CHECK(mm3_shards_find(l->shards, name) || mm3_shards_find_unlisted(l->shards, name), MM3_ERR_FORMAT,
              "%s: tensor %s has no scales: %s is missing", codes->file, codes->name, name);
    MM3_TRY(take(l, name, 2, shape, &t));
    MM3_CHECK(t->dtype == MM3_ST_U8 || t->dtype == MM3_ST_F8_E8M0, MM3_ERR_FORMAT,
              "%s: scales %s have dtype %s; expected U8 or F8_E8M0", t->file, t->name, mm3_st_dtype_name(t->dtype));
    w->scales = t->data;
    return MM3_OK;
}

/* prefix.name.weight as a matrix [n, k]. */
static mm3_status bind(loader *l, mm3_weight *w, const char *prefix, const char *name, int n, int k)
{
    int64_t shape[2] = { n, k };
    const mm3_tensor *t;
    char full[MAX_NAME];
    put_name(full, "%s%s.weight", prefix, name);
    MM3_TRY(take(l, full, 2, shape, &t));
    w->n = n;
    switch (t->dtype) {
    case MM3_ST_F8_E4M3:
        MM3_CHECK(l->takes_mx, MM3_ERR_UNSUPPORTED, "%s: tensor %s is F8_E4M3; mm3 supports BF16 and F32 there",
                  t->file, t->name);
        MM3_CHECK(l->m->config.is_mxfp8, MM3_ERR_FORMAT,
                  "%s: tensor %s is F8_E4M3, but config.json has no \"quantization_config\" that says how to read it",
                  t->file, t->name);
        w->type = MM3_MX;
        w->data = t->data;
        return bind_scales(l, w, t, k);
    case MM3_ST_BF16:
        w->type = MM3_BF16;
        return aligned_view(l, t, 2, &w->data);
    case MM3_ST_F32:
        w->type = MM3_F32;
        return aligned_view(l, t, 4, &w->data);
    default:
        return mm3_fail(MM3_ERR_UNSUPPORTED, MM3_HERE, "%s: tensor %s has dtype %s; mm3 supports %sBF16 and F32 there",
                        t->file, t->name, mm3_st_dtype_name(t->dtype), l->takes_mx ? "F8_E4M3 (MXFP8), " : "");
    }
}

/* prefix.name as an FP32 vector [n], copied. */
static mm3_status bind_vector(loader *l, const float **out, const char *prefix, const char *name, int n)
{
    int64_t shape[1] = { n };
    const mm3_tensor *t;
    const unsigned char *src;
    float *x;
    char full[MAX_NAME];
    put_name(full, "%s%s", prefix, name);
    MM3_TRY(take(l, full, 1, shape, &t));
    MM3_CHECK(t->dtype == MM3_ST_BF16 || t->dtype == MM3_ST_F32, MM3_ERR_UNSUPPORTED,
              "%s: tensor %s has dtype %s; mm3 supports BF16 and F32 there", t->file, t->name,
              mm3_st_dtype_name(t->dtype));
    x = mm3_arena_alloc(&l->m->arena, (size_t)n * sizeof *x);
    MM3_CHECK(x, MM3_ERR_NOMEM, "%s: out of memory for tensor %s", t->file, t->name);
    src = t->data;
    for (int i = 0; i < n; i++, src += t->dtype == MM3_ST_F32 ? 4 : 2) {
        uint16_t h;
        if (t->dtype == MM3_ST_F32) {
            memcpy(x + i, src, sizeof *x);
        } else {
            memcpy(&h, src, sizeof h);
            x[i] = mm3_bf16_to_f32(h);
        }
    }
    *out = x;
    return MM3_OK;
}

/* ---- layers ------------------------------------------------------------------------------------------------------ */

static mm3_status load_attention(loader *l, mm3_layer *y, const char *p)
{
    const mm3_config *c = &l->m->config;
    int n_q = c->n_heads * MM3_HEAD_DIM, n_kv = c->n_kv_heads * MM3_HEAD_DIM, hidden = c->hidden_size;
    MM3_TRY(bind(l, &y->q, p, "self_attn.q_proj", n_q, hidden));
    MM3_TRY(bind(l, &y->k, p, "self_attn.k_proj", n_kv, hidden));
    MM3_TRY(bind(l, &y->v, p, "self_attn.v_proj", n_kv, hidden));
    MM3_TRY(bind(l, &y->o, p, "self_attn.o_proj", hidden, n_q));
    MM3_TRY(bind_vector(l, &y->q_norm, p, "self_attn.q_norm.weight", MM3_HEAD_DIM));
    MM3_TRY(bind_vector(l, &y->k_norm, p, "self_attn.k_norm.weight", MM3_HEAD_DIM));
    if (!y->is_sparse) return MM3_OK;
    MM3_TRY(bind(l, &y->iq, p, "self_attn.index_q_proj", c->n_index_heads * c->index_dim, hidden));
    MM3_TRY(bind(l, &y->ik, p, "self_attn.index_k_proj", c->index_dim, hidden));
    MM3_TRY(bind_vector(l, &y->iq_norm, p, "self_attn.index_q_norm.weight", c->index_dim));
    MM3_TRY(bind_vector(l, &y->ik_norm, p, "self_attn.index_k_norm.weight", c->index_dim));
    return MM3_OK;
}

/* The dense MLP, or the shared expert. */
static mm3_status load_mlp(loader *l, mm3_layer *y, const char *layer, const char *name, int intermediate)
{
    int hidden = l->m->config.hidden_size;
    char p[MAX_NAME];
    put_name(p, "%s%s.", layer, name);
    MM3_TRY(bind(l, &y->gate, p, "gate_proj", intermediate, hidden));
    MM3_TRY(bind(l, &y->up, p, "up_proj", intermediate, hidden));
    MM3_TRY(bind(l, &y->down, p, "down_proj", hidden, intermediate));
    return MM3_OK;
}

static mm3_status load_experts(loader *l, mm3_layer *y, const char *layer)
{
    const mm3_config *c = &l->m->config;
    size_t n = (size_t)c->n_experts, before;
    mm3_weight *gate_up = mm3_arena_alloc(&l->m->arena, 2 * n * sizeof *gate_up);
    mm3_weight *down = mm3_arena_alloc(&l->m->arena, n * sizeof *down);
    char p[MAX_NAME];
    MM3_CHECK(gate_up && down, MM3_ERR_NOMEM, "%s: out of memory for %zu experts", l->m->dir, n);
    MM3_TRY(bind(l, &y->router, layer, "block_sparse_moe.gate", c->n_experts, c->hidden_size));
    MM3_TRY(bind_vector(l, &y->router_bias, layer, "block_sparse_moe.e_score_correction_bias", c->n_experts));
    before = l->m->weight_bytes;
    for (int e = 0; e < c->n_experts; e++) {
        put_name(p, "%sblock_sparse_moe.experts.%d.", layer, e);
        MM3_TRY(bind(l, gate_up + 2 * e, p, "w1", c->expert_intermediate, c->hidden_size));
        MM3_TRY(bind(l, gate_up + 2 * e + 1, p, "w3", c->expert_intermediate, c->hidden_size));
        MM3_TRY(bind(l, down + e, p, "w2", c->hidden_size, c->expert_intermediate));
    }
    l->expert_bytes += l->m->weight_bytes - before;
    y->expert_gate_up = gate_up;
    y->expert_down = down;
    if (c->n_shared_experts == 0) return MM3_OK;
    return load_mlp(l, y, layer, "block_sparse_moe.shared_experts", c->shared_intermediate);
}

static mm3_status load_layer(loader *l, int i)
{
    const mm3_config *c = &l->m->config;
    mm3_layer *y = l->m->layer + i;
    char p[MAX_NAME];
    put_name(p, "%smodel.layers.%d.", l->prefix, i);
    y->is_moe = c->layer_is_moe[i];
    y->is_sparse = c->layer_is_sparse[i];
    MM3_TRY(bind_vector(l, &y->input_norm, p, "input_layernorm.weight", c->hidden_size));
    MM3_TRY(bind_vector(l, &y->post_norm, p, "post_attention_layernorm.weight", c->hidden_size));
    MM3_TRY(load_attention(l, y, p));
    if (y->is_moe) return load_experts(l, y, p);
    return load_mlp(l, y, p, "mlp", c->dense_intermediate);
}

/* ---- tensors that nobody read ------------------------------------------------------------------------------------ */

static bool starts_with(const char *s, const char *prefix) { return strncmp(s, prefix, strlen(prefix)) == 0; }

static bool ends_with(const char *s, const char *suffix)
{
    size_t n = strlen(s), n_suffix = strlen(suffix);
    return n >= n_suffix && strcmp(s + n - n_suffix, suffix) == 0;
}

/* Parts of the released model that mm3 leaves out. */
static bool is_skipped(const char *name)
{
    static const char *const prefix[] = { "vision_tower.", "multi_modal_projector.", "patch_merge_mlp.",
                                          "language_model.model.mtp.", "model.mtp." };
    for (int i = 0; i < MM3_COUNT(prefix); i++)
        if (starts_with(name, prefix[i])) return true;
    return false;
}

/* Why a tensor with a text model's name has no place in the network that config.json describes. */
static mm3_status unexpected(const loader *l, const mm3_tensor *t)
{
    const mm3_config *c = &l->m->config;
    const char *rest = t->name + strlen(l->prefix);
    int layer = -1, expert = -1;
    if (sscanf(rest, "model.layers.%8d.block_sparse_moe.experts.%8d.", &layer, &expert) < 1) layer = -1;
    MM3_CHECK(layer < c->n_layers, MM3_ERR_FORMAT, "%s: tensor %s is of layer %d, but config.json has %d layers",
              t->file, t->name, layer, c->n_layers);
    MM3_CHECK(expert < 0 || layer < 0 || !c->layer_is_moe[layer] || expert < c->n_experts, MM3_ERR_FORMAT,
              "%s: tensor %s is of expert %d, but config.json has %d experts", t->file, t->name, expert, c->n_experts);
    if (ends_with(t->name, ".weight_scale_inv"))
        return mm3_fail(MM3_ERR_FORMAT, MM3_HERE, "%s: tensor %s scales no MXFP8 weight", t->file, t->name);
    return mm3_fail(MM3_ERR_UNSUPPORTED, MM3_HERE,
                    "%s: tensor %s has no place in the network that config.json describes; mm3 would not read it",
                    t->file, t->name);
}

static mm3_status check_unread(loader *l)
{
    int n = mm3_shards_count(l->shards);
    for (int i = 0; i < n; i++) {
        const mm3_tensor *t = mm3_shards_at(l->shards, i);
        bool is_text = *l->prefix ? starts_with(t->name, l->prefix)
                                  : starts_with(t->name, "model.") || starts_with(t->name, "lm_head.");
        if (l->used[i]) continue;
        if (is_skipped(t->name))
            l->m->n_skipped++;
        else if (!is_text || ends_with(t->name, ".rotary_emb.inv_freq")) /* derived from rope_theta */
            l->m->n_unused++;
        else
            return unexpected(l, t);
    }
    l->m->n_unlisted = mm3_shards_count_unlisted(l->shards);
    l->m->n_strays = mm3_shards_count_strays(l->shards, &l->m->stray);
    return MM3_OK;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

/* Weights that one token reads: everything, but one row of the embedding and experts_per_token of the experts. */
static size_t count_step_bytes(const loader *l, size_t embed_bytes)
{
    const mm3_config *c = &l->m->config;
    size_t n = (size_t)MM3_MAX(c->n_experts, 1), k = (size_t)c->experts_per_token;
    return l->m->weight_bytes - embed_bytes + embed_bytes / (size_t)c->vocab_size - l->expert_bytes +
           l->expert_bytes / n * k + l->expert_bytes % n * k / n;
}

static mm3_status load(loader *l)
{
    mm3_model *m = l->m;
    const mm3_config *c = &m->config;
    size_t embed_bytes;
    char text[MAX_NAME];
    /* Text-only files drop the prefix that the vision-language model gives to its text part. */
    l->prefix = mm3_shards_find(l->shards, "model.embed_tokens.weight") ? "" : "language_model.";
    l->used = mm3_calloc((size_t)mm3_shards_count(l->shards), 1);
    m->layer = mm3_arena_alloc(&m->arena, (size_t)c->n_layers * sizeof *m->layer);
    MM3_CHECK(l->used && m->layer, MM3_ERR_NOMEM, "%s: out of memory for %d layers", m->dir, c->n_layers);
    put_name(text, "%smodel.", l->prefix);
    l->takes_mx = false; /* embed copies rows, it does not multiply */
    MM3_TRY(bind(l, &m->embed, text, "embed_tokens", c->vocab_size, c->hidden_size));
    embed_bytes = m->weight_bytes;
    l->takes_mx = true;
    MM3_TRY(bind_vector(l, &m->norm, text, "norm.weight", c->hidden_size));
    for (int i = 0; i < c->n_layers; i++) MM3_TRY(load_layer(l, i));
    MM3_TRY(bind(l, &m->head, l->prefix, "lm_head", c->vocab_size, c->hidden_size));
    MM3_TRY(check_unread(l));
    m->step_bytes = count_step_bytes(l, embed_bytes);
    return MM3_OK;
}

static mm3_status load_config(mm3_model *m)
{
    mm3_status st;
    mm3_file *f = NULL;
    char *path = mm3_path_join(m->dir, "config.json");
    MM3_CHECK(path, MM3_ERR_NOMEM, "%s: out of memory", m->dir);
    st = mm3_file_open(&f, path);
    if (st == MM3_OK) st = mm3_config_parse(&m->config, &m->arena, (const char *)f->data, f->n_bytes, path);
    mm3_file_close(&f);
    mm3_free(path);
    return st;
}

mm3_status mm3_model_open(mm3_model **out, const char *dir)
{
    mm3_status st = MM3_OK;
    loader l = { 0 };
    mm3_model *m = mm3_calloc(1, sizeof *m);
    *out = NULL;
    if (m) m->dir = mm3_strdup(dir);
    if (!m || !m->dir) {
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "%s: out of memory", dir);
        goto done;
    }
    MM3_GOTO(load_config(m));
    MM3_GOTO(mm3_shards_open(&m->shards, dir));
    l.m = m;
    l.shards = m->shards;
    MM3_GOTO(load(&l));
    *out = m;
    m = NULL;
done:
    mm3_free(l.used);
    mm3_model_close(&m);
    return st;
}

void mm3_model_close(mm3_model **model)
{
    mm3_model *m = model ? *model : NULL;
    if (!m) return;
    mm3_shards_close(&m->shards);
    mm3_free(m->memory);
    mm3_arena_free(&m->arena);
    mm3_free(m->dir);
    mm3_free(m);
    *model = NULL;
}
