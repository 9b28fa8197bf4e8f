/* config: what config.json says about the text model, checked key by key. Owns the meaning of each key.
 * Knows no tensors. Read next: model.c. Two spellings are read: the released one, whose sparse attention has a
 * sub-object of its own, and the later flat one (layer_types, index_*); where a file has both, they must agree. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "model/internal.h"

/* Limits that keep every product of sizes inside int64 and every row count inside int. */
enum {
    MAX_HIDDEN = 1 << 20,
    MAX_LAYERS = 4096,
    MAX_HEADS = 65536,
    MAX_VOCAB = 1 << 24,
    MAX_POSITION = 1 << 30,
    MAX_EXPERTS = 4096,
    MAX_EXPERTS_PER_TOKEN = 64,
    MAX_INDEX_DIM = 4096,
    MAX_BLOCKS = 1 << 24
};

typedef struct reader {
    const json_t *top, *text, *sparse; /* borrowed; sparse is NULL where the file has no sparse_attention_config */
    const char *top_what, *text_what, *sparse_what;
    bool says_m3; /* the file names its architecture: switches that it leaves out then have M3's value */
    mm3_config *c;
    mm3_arena *arena;
} reader;

/* ---- one key ----------------------------------------------------------------------------------------------------- */

static bool has(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return v && !json_is_null(v);
}

static mm3_status get_int(const json_t *object, const char *key, const char *what, int low, int high, int *out)
{
    int64_t v;
    MM3_TRY(mm3_json_int(object, key, what, low, high, false, 0, &v));
    *out = (int)v;
    return MM3_OK;
}

/* A number that becomes a float somewhere: finite there, and above `above`. */
static mm3_status get_real(const json_t *object, const char *key, const char *what, double above, double *out)
{
    MM3_TRY(mm3_json_double(object, key, what, false, 0, out));
    MM3_CHECK(*out > above && fabs(*out) <= 1e30 && (above < 0 || (float)*out > above), MM3_ERR_FORMAT,
              "%s: \"%s\" is %g; expected a number above %g", what, key, *out, above);
    return MM3_OK;
}

/* A switch of which mm3's network has one position only. */
static mm3_status need_bool(const reader *r, const char *key, bool needed)
{
    bool v;
    MM3_TRY(mm3_json_bool(r->text, key, r->text_what, r->says_m3, needed, &v));
    MM3_CHECK(v == needed, MM3_ERR_UNSUPPORTED, "%s: \"%s\" is %s; mm3 supports %s only", r->text_what, key,
              v ? "true" : "false", needed ? "true" : "false");
    return MM3_OK;
}

static mm3_status need_string(const json_t *object, const char *key, const char *what, bool may_lack,
                              const char *needed)
{
    const char *v;
    MM3_TRY(mm3_json_string(object, key, what, may_lack, needed, &v));
    MM3_CHECK(strcmp(v, needed) == 0, MM3_ERR_UNSUPPORTED, "%s: \"%s\" is \"%s\"; mm3 supports \"%s\" only", what, key,
              v, needed);
    return MM3_OK;
}

static mm3_status need_int(const json_t *object, const char *key, const char *what, bool may_lack, int needed)
{
    int64_t v;
    MM3_TRY(mm3_json_int(object, key, what, INT32_MIN, INT32_MAX, may_lack, needed, &v));
    MM3_CHECK(v == needed, MM3_ERR_UNSUPPORTED, "%s: \"%s\" is %lld; mm3 supports %d only", what, key, (long long)v,
              needed);
    return MM3_OK;
}

/* ---- which model it is ------------------------------------------------------------------------------------------- */

/* architectures and model_type, where present, must be M3's. text_config's own model_type is not asked: released
 * files lack it, and exports carry that of the model they started from. */
static mm3_status check_identity(reader *r)
{
    const json_t *list[2] = { json_object_get(r->top, "architectures"), json_object_get(r->text, "architectures") };
    const char *type;
    MM3_TRY(mm3_json_string(r->top, "model_type", r->top_what, true, "", &type));
    if (*type) {
        MM3_CHECK(strncmp(type, "minimax_m3", 10) == 0, MM3_ERR_UNSUPPORTED,
                  "%s: \"model_type\" is \"%s\"; mm3 runs MiniMax-M3 only (\"minimax_m3_vl\")", r->top_what, type);
        r->says_m3 = true;
    }
    for (int i = 0; i < 2; i++) {
        const char *name = json_string_value(json_array_get(list[i], 0));
        if (!list[i] || json_is_null(list[i])) continue;
        MM3_CHECK(name, MM3_ERR_FORMAT, "%s: \"architectures\" must be a list of names",
                  i ? r->text_what : r->top_what);
        MM3_CHECK(strncmp(name, "MiniMaxM3", 9) == 0, MM3_ERR_UNSUPPORTED,
                  "%s: \"architectures\" is \"%s\"; mm3 runs MiniMax-M3 only (\"MiniMaxM3SparseForCausalLM\")",
                  i ? r->text_what : r->top_what, name);
        r->says_m3 = true;
    }
    return MM3_OK;
}

static mm3_status check_switches(const reader *r)
{
    bool tied;
    MM3_TRY(need_int(r->text, "head_dim", r->text_what, false, MM3_HEAD_DIM));
    MM3_TRY(need_bool(r, "use_gemma_norm", true));
    MM3_TRY(need_bool(r, "attention_output_gate", false));
    MM3_TRY(need_bool(r, "use_qk_norm", true));
    MM3_TRY(need_string(r->text, "qk_norm_type", r->text_what, r->says_m3, "per_head"));
    MM3_TRY(need_string(r->text, "hidden_act", r->text_what, false, "swigluoai"));
    MM3_TRY(need_bool(r, "tie_word_embeddings", false));
    MM3_TRY(mm3_json_bool(r->top, "tie_word_embeddings", r->top_what, true, false, &tied));
    MM3_CHECK(!tied, MM3_ERR_UNSUPPORTED, "%s: \"tie_word_embeddings\" is true; mm3 supports false only", r->top_what);
    return MM3_OK;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

static mm3_status read_sizes(const reader *r)
{
    mm3_config *c = r->c;
    const json_t *t = r->text;
    const char *what = r->text_what;
    MM3_TRY(get_int(t, "hidden_size", what, 1, MAX_HIDDEN, &c->hidden_size));
    MM3_TRY(get_int(t, "num_hidden_layers", what, 1, MAX_LAYERS, &c->n_layers));
    MM3_TRY(get_int(t, "vocab_size", what, 1, MAX_VOCAB, &c->vocab_size));
    MM3_TRY(get_int(t, "max_position_embeddings", what, 1, MAX_POSITION, &c->max_position));
    MM3_TRY(get_int(t, "num_attention_heads", what, 1, MAX_HEADS, &c->n_heads));
    MM3_TRY(get_int(t, "num_key_value_heads", what, 1, MAX_HEADS, &c->n_kv_heads));
    MM3_CHECK(c->n_heads % c->n_kv_heads == 0, MM3_ERR_FORMAT,
              "%s: \"num_attention_heads\" is %d; expected a multiple of \"num_key_value_heads\", which is %d", what,
              c->n_heads, c->n_kv_heads);
    MM3_TRY(get_real(t, "rms_norm_eps", what, 0, &c->rms_norm_eps));
    MM3_CHECK(c->rms_norm_eps >= 1e-30 && c->rms_norm_eps <= 1, MM3_ERR_FORMAT,
              "%s: \"rms_norm_eps\" is %g; expected 1e-30 to 1", what, c->rms_norm_eps);
    MM3_TRY(get_real(t, "swiglu_alpha", what, -1e30, &c->swiglu_alpha));
    MM3_TRY(get_real(t, "swiglu_limit", what, 0, &c->swiglu_limit));
    c->swiglu_beta = 1.0; /* released files before the key existed mean 1 */
    if (has(t, "swiglu_beta")) MM3_TRY(get_real(t, "swiglu_beta", what, -1e30, &c->swiglu_beta));
    return MM3_OK;
}

/* rope_theta stands beside the sizes or in rope_parameters; scaled variants change the angles and are refused. */
static mm3_status read_rope(const reader *r)
{
    static const char *const object_key[] = { "rope_parameters", "rope_scaling" };
    static const char *const type_key[] = { "rope_type", "type" };
    const json_t *t = r->text;
    double theta = 0, factor = 0, v;
    bool has_dim = has(t, "rotary_dim");
    char what[560];
    if (has(t, "rope_theta")) MM3_TRY(get_real(t, "rope_theta", r->text_what, 0, &theta));
    if (has(t, "partial_rotary_factor")) MM3_TRY(get_real(t, "partial_rotary_factor", r->text_what, 0, &factor));
    for (int i = 0; i < MM3_COUNT(object_key); i++) {
        const json_t *o = json_object_get(t, object_key[i]);
        if (!o || json_is_null(o)) continue;
        MM3_CHECK(json_is_object(o), MM3_ERR_FORMAT, "%s: \"%s\" must be an object or null", r->text_what,
                  object_key[i]);
        snprintf(what, sizeof what, "%s: %s", r->text_what, object_key[i]);
        for (int k = 0; k < MM3_COUNT(type_key); k++) MM3_TRY(need_string(o, type_key[k], what, true, "default"));
        if (has(o, "rope_theta")) {
            MM3_TRY(get_real(o, "rope_theta", what, 0, &v));
            MM3_CHECK(theta == 0 || theta == v, MM3_ERR_FORMAT, "%s: \"rope_theta\" is %g and %g: they must agree",
                      r->text_what, theta, v);
            theta = v;
        }
        if (has(o, "partial_rotary_factor")) {
            MM3_TRY(get_real(o, "partial_rotary_factor", what, 0, &v));
            MM3_CHECK(factor == 0 || factor == v, MM3_ERR_FORMAT,
                      "%s: \"partial_rotary_factor\" is %g and %g: they must agree", r->text_what, factor, v);
            factor = v;
        }
    }
    MM3_CHECK(theta > 0, MM3_ERR_FORMAT, "%s: \"rope_theta\" is missing", r->text_what);
    r->c->rope_theta = theta;
    MM3_CHECK(has_dim || factor > 0, MM3_ERR_FORMAT,
              "%s: \"rotary_dim\" is missing, and \"partial_rotary_factor\" too; expected %d, or %g", r->text_what,
              MM3_ROTARY_DIM, (double)MM3_ROTARY_DIM / MM3_HEAD_DIM);
    if (has_dim) MM3_TRY(need_int(t, "rotary_dim", r->text_what, false, MM3_ROTARY_DIM));
    MM3_CHECK(factor == 0 || factor * MM3_HEAD_DIM == MM3_ROTARY_DIM, MM3_ERR_UNSUPPORTED,
              "%s: \"partial_rotary_factor\" is %g; mm3 supports %g only (%d of %d channels)", r->text_what, factor,
              (double)MM3_ROTARY_DIM / MM3_HEAD_DIM, MM3_ROTARY_DIM, MM3_HEAD_DIM);
    return MM3_OK;
}

/* ---- per-layer lists --------------------------------------------------------------------------------------------- */

/* One of the two spellings of a per-layer list: 0 and 1, or two words. */
typedef struct layer_list {
    const json_t *object;
    const char *what, *key;
    const char *word[2]; /* NULL: the entries are 0 and 1 */
} layer_list;

static mm3_status read_entry(const layer_list *l, size_t i, unsigned char *out)
{
    const json_t *v = json_array_get(json_object_get(l->object, l->key), i);
    if (l->word[0]) {
        const char *s = json_string_value(v);
        MM3_CHECK(s && (strcmp(s, l->word[0]) == 0 || strcmp(s, l->word[1]) == 0), MM3_ERR_UNSUPPORTED,
                  "%s: \"%s\"[%zu] is %s; mm3 supports \"%s\" and \"%s\"", l->what, l->key, i, s ? s : "not a string",
                  l->word[0], l->word[1]);
        *out = strcmp(s, l->word[1]) == 0;
        return MM3_OK;
    }
    MM3_CHECK(json_is_integer(v) && (json_integer_value(v) == 0 || json_integer_value(v) == 1), MM3_ERR_FORMAT,
              "%s: \"%s\"[%zu] must be 0 or 1", l->what, l->key, i);
    *out = (unsigned char)json_integer_value(v);
    return MM3_OK;
}

/* out[n_layers]; *present says whether the list is there. */
static mm3_status read_list(const layer_list *l, int n_layers, unsigned char *out, bool *present)
{
    const json_t *list = json_object_get(l->object, l->key);
    *present = list && !json_is_null(list);
    if (!*present) return MM3_OK;
    MM3_CHECK(json_is_array(list), MM3_ERR_FORMAT, "%s: \"%s\" must be a list with one entry per layer", l->what,
              l->key);
    MM3_CHECK(json_array_size(list) == (size_t)n_layers, MM3_ERR_FORMAT,
              "%s: \"%s\" has %zu entries; expected %d (\"num_hidden_layers\")", l->what, l->key, json_array_size(list),
              n_layers);
    for (int i = 0; i < n_layers; i++) MM3_TRY(read_entry(l, (size_t)i, out + i));
    return MM3_OK;
}

/* Both spellings of one fact: either alone, or both and equal. */
static mm3_status read_both(const reader *r, const layer_list *a, const layer_list *b, unsigned char **out,
                            bool *present)
{
    int n = r->c->n_layers;
    unsigned char *x = mm3_arena_alloc(r->arena, (size_t)n), *y = mm3_arena_alloc(r->arena, (size_t)n);
    bool has_a = false, has_b = false;
    MM3_CHECK(x && y, MM3_ERR_NOMEM, "%s: out of memory", r->top_what);
    if (a->object) MM3_TRY(read_list(a, n, x, &has_a));
    MM3_TRY(read_list(b, n, y, &has_b));
    for (int i = 0; has_a && has_b && i < n; i++)
        MM3_CHECK(x[i] == y[i], MM3_ERR_FORMAT, "%s: \"%s\" and \"%s\" contradict each other at layer %d", r->top_what,
                  a->key, b->key, i);
    *out = has_a ? x : y;
    *present = has_a || has_b;
    return MM3_OK;
}

/* ---- experts ----------------------------------------------------------------------------------------------------- */

static mm3_status read_experts(const reader *r)
{
    mm3_config *c = r->c;
    const json_t *t = r->text;
    const char *what = r->text_what;
    layer_list freq = { t, what, "moe_layer_freq", { NULL, NULL } };
    layer_list words = { t, what, "mlp_layer_types", { "dense", "sparse" } };
    bool present;
    int n_moe = 0;
    int64_t n_shared;
    MM3_TRY(read_both(r, &freq, &words, &c->layer_is_moe, &present));
    MM3_CHECK(present, MM3_ERR_FORMAT, "%s: \"moe_layer_freq\" is missing: which layers have experts?", what);
    for (int i = 0; i < c->n_layers; i++) n_moe += c->layer_is_moe[i];
    if (n_moe < c->n_layers)
        MM3_TRY(get_int(t, "dense_intermediate_size", what, 1, MAX_HIDDEN, &c->dense_intermediate));
    if (n_moe == 0) return MM3_OK;
    MM3_TRY(need_string(t, "scoring_func", what, r->says_m3, "sigmoid"));
    MM3_TRY(need_bool(r, "use_routing_bias", true));
    MM3_TRY(get_int(t, "intermediate_size", what, 1, MAX_HIDDEN, &c->expert_intermediate));
    MM3_TRY(get_int(t, "num_local_experts", what, 1, MAX_EXPERTS, &c->n_experts));
    MM3_TRY(get_int(t, "num_experts_per_tok", what, 1, MAX_EXPERTS_PER_TOKEN, &c->experts_per_token));
    MM3_CHECK(c->experts_per_token <= c->n_experts, MM3_ERR_FORMAT,
              "%s: \"num_experts_per_tok\" is %d; expected at most \"num_local_experts\", which is %d", what,
              c->experts_per_token, c->n_experts);
    MM3_TRY(get_real(t, "routed_scaling_factor", what, 0, &c->routed_scaling_factor));
    MM3_TRY(mm3_json_int(t, "n_shared_experts", what, 0, INT32_MAX, false, 0, &n_shared));
    MM3_CHECK(n_shared <= 1, MM3_ERR_UNSUPPORTED, "%s: \"n_shared_experts\" is %lld; mm3 supports 0 and 1", what,
              (long long)n_shared);
    c->n_shared_experts = (int)n_shared;
    if (n_shared) MM3_TRY(get_int(t, "shared_intermediate_size", what, 1, MAX_HIDDEN, &c->shared_intermediate));
    return MM3_OK;
}

/* ---- sparse attention -------------------------------------------------------------------------------------------- */

/* A size under its released name in sparse_attention_config, its later name beside the sizes, or both and equal. */
static mm3_status get_index_int(const reader *r, const char *released, const char *later, int high, int *out)
{
    int v;
    bool found = r->sparse && has(r->sparse, released);
    if (found) MM3_TRY(get_int(r->sparse, released, r->sparse_what, 1, high, out));
    if (has(r->text, later)) {
        MM3_TRY(get_int(r->text, later, r->text_what, 1, high, &v));
        MM3_CHECK(!found || v == *out, MM3_ERR_FORMAT, "%s: \"%s\" is %d but \"%s\" is %d: they must agree",
                  r->top_what, released, *out, later, v);
        *out = v;
        found = true;
    }
    MM3_CHECK(found, MM3_ERR_FORMAT, "%s: \"%s\" is missing", r->sparse_what, released);
    return MM3_OK;
}

/* The index branch must steer the choice of blocks only: a layer whose index values are not disabled adds more. */
static mm3_status check_index_value(const reader *r)
{
    const mm3_config *c = r->c;
    layer_list l = { r->sparse, r->sparse_what, "sparse_disable_index_value", { NULL, NULL } };
    unsigned char *disabled = mm3_arena_alloc(r->arena, (size_t)c->n_layers);
    bool present;
    MM3_CHECK(disabled, MM3_ERR_NOMEM, "%s: out of memory", r->top_what);
    MM3_TRY(read_list(&l, c->n_layers, disabled, &present));
    for (int i = 0; present && i < c->n_layers; i++)
        MM3_CHECK(!c->layer_is_sparse[i] || disabled[i], MM3_ERR_UNSUPPORTED,
                  "%s: \"sparse_disable_index_value\"[%d] is 0, but layer %d is sparse; mm3 supports 1 only",
                  r->sparse_what, i, i);
    return MM3_OK;
}

static mm3_status read_sparse(const reader *r)
{
    mm3_config *c = r->c;
    layer_list freq = { r->sparse, r->sparse_what, "sparse_attention_freq", { NULL, NULL } };
    layer_list words = { r->text, r->text_what, "layer_types", { "full_attention", "minimax_m3_sparse" } };
    bool present, use = true;
    int n_sparse = 0;
    MM3_TRY(read_both(r, &freq, &words, &c->layer_is_sparse, &present));
    if (r->sparse) MM3_TRY(mm3_json_bool(r->sparse, "use_sparse_attention", r->sparse_what, true, true, &use));
    MM3_CHECK(present || !r->sparse || !use, MM3_ERR_FORMAT,
              "%s: \"sparse_attention_freq\" is missing: which layers are sparse?", r->sparse_what);
    MM3_CHECK(present || !has(r->text, "index_topk_blocks"), MM3_ERR_FORMAT,
              "%s: \"layer_types\" is missing: which layers are sparse?", r->text_what);
    for (int i = 0; i < c->n_layers; i++) n_sparse += c->layer_is_sparse[i];
    MM3_CHECK(use || n_sparse == 0, MM3_ERR_FORMAT,
              "%s: \"use_sparse_attention\" is false, but %d layers are listed as sparse", r->sparse_what, n_sparse);
    if (n_sparse == 0) return MM3_OK;
    MM3_TRY(get_index_int(r, "sparse_num_index_heads", "index_n_heads", MAX_HEADS, &c->n_index_heads));
    MM3_CHECK(c->n_index_heads == c->n_kv_heads, MM3_ERR_UNSUPPORTED,
              "%s: \"sparse_num_index_heads\" is %d; mm3 supports one per KV head only "
              "(\"num_key_value_heads\" is %d)",
              r->sparse_what, c->n_index_heads, c->n_kv_heads);
    MM3_TRY(get_index_int(r, "sparse_index_dim", "index_head_dim", MAX_INDEX_DIM, &c->index_dim));
    MM3_CHECK(c->index_dim % 32 == 0 && c->index_dim >= MM3_ROTARY_DIM, MM3_ERR_UNSUPPORTED,
              "%s: \"sparse_index_dim\" is %d; mm3 supports multiples of 32 from %d on", r->sparse_what, c->index_dim,
              MM3_ROTARY_DIM);
    MM3_TRY(get_index_int(r, "sparse_block_size", "index_block_size", MAX_BLOCKS, &c->block_size));
    MM3_TRY(get_index_int(r, "sparse_topk_blocks", "index_topk_blocks", MAX_BLOCKS, &c->topk_blocks));
    if (has(r->text, "index_local_blocks")) MM3_TRY(need_int(r->text, "index_local_blocks", r->text_what, false, 1));
    if (!r->sparse) return MM3_OK;
    MM3_TRY(need_string(r->sparse, "sparse_score_type", r->sparse_what, r->says_m3, "max"));
    MM3_TRY(need_int(r->sparse, "sparse_init_block", r->sparse_what, r->says_m3, 0));
    MM3_TRY(need_int(r->sparse, "sparse_local_block", r->sparse_what, r->says_m3, 1));
    return check_index_value(r);
}

/* ---- quantization and stop ids ----------------------------------------------------------------------------------- */

static mm3_status read_quantization(const reader *r, const json_t *object, const char *owner)
{
    const json_t *q = json_object_get(object, "quantization_config"), *block;
    char what[600];
    if (!q || json_is_null(q)) return MM3_OK;
    snprintf(what, sizeof what, "%s: quantization_config", owner);
    MM3_CHECK(json_is_object(q), MM3_ERR_FORMAT, "%s must be an object", what);
    MM3_TRY(need_string(q, "quant_method", what, false, "mxfp8"));
    MM3_TRY(need_string(q, "activation_scheme", what, false, "dynamic"));
    block = json_object_get(q, "weight_block_size");
    MM3_CHECK(json_array_size(block) == 2 && json_integer_value(json_array_get(block, 0)) == 1 &&
                  json_integer_value(json_array_get(block, 1)) == MM3_MX_BLOCK,
              MM3_ERR_UNSUPPORTED, "%s: \"weight_block_size\" must be [1, %d]; mm3 supports no other", what,
              MM3_MX_BLOCK);
    r->c->is_mxfp8 = true;
    return MM3_OK;
}

mm3_status mm3__stop_ids(const json_t *object, const char *what, int64_t max_id, int32_t *ids, int *n, int max_ids)
{
    const json_t *v = json_object_get(object, "eos_token_id");
    size_t n_listed = json_is_array(v) ? json_array_size(v) : 1;
    if (!v || json_is_null(v)) return MM3_OK;
    for (size_t i = 0; i < n_listed; i++) {
        const json_t *e = json_is_array(v) ? json_array_get(v, i) : v;
        int64_t id = json_integer_value(e);
        bool known = false;
        MM3_CHECK(json_is_integer(e) && id >= 0 && id <= max_id, MM3_ERR_FORMAT,
                  "%s: \"eos_token_id\" must be a token id from 0 to %lld, or a list of such", what, (long long)max_id);
        for (int k = 0; k < *n; k++) known = known || ids[k] == id;
        if (known) continue;
        MM3_CHECK(*n < max_ids, MM3_ERR_UNSUPPORTED, "%s: \"eos_token_id\" lists more than %d ids", what, max_ids);
        ids[(*n)++] = (int32_t)id;
    }
    return MM3_OK;
}

static mm3_status read_all_keys(reader *r)
{
    mm3_config *c = r->c;
    bool flat = r->top == r->text;
    MM3_TRY(check_identity(r));
    MM3_TRY(check_switches(r));
    MM3_TRY(read_sizes(r));
    MM3_TRY(read_rope(r));
    MM3_TRY(read_experts(r));
    MM3_TRY(read_sparse(r));
    MM3_TRY(read_quantization(r, r->top, r->top_what));
    if (!flat) MM3_TRY(read_quantization(r, r->text, r->text_what));
    MM3_TRY(
        mm3__stop_ids(r->text, r->text_what, c->vocab_size - 1, c->stop_ids, &c->n_stop_ids, MM3_COUNT(c->stop_ids)));
    if (!flat)
        MM3_TRY(
            mm3__stop_ids(r->top, r->top_what, c->vocab_size - 1, c->stop_ids, &c->n_stop_ids, MM3_COUNT(c->stop_ids)));
    return MM3_OK;
}

mm3_status mm3_config_parse(mm3_config *out, mm3_arena *arena, const char *text, size_t n_bytes, const char *what)
{
    mm3_status st = MM3_OK;
    json_t *root = NULL, *nested, *sparse;
    char text_what[512], sparse_what[560];
    reader r = { .top_what = what, .text_what = text_what, .sparse_what = sparse_what, .c = out, .arena = arena };
    *out = (mm3_config){ 0 };
    MM3_GOTO(mm3_json_parse(&root, text, n_bytes, what));
    if (!json_is_object(root)) {
        st = mm3_fail(MM3_ERR_FORMAT, MM3_HERE, "%s: must be a JSON object", what);
        goto done;
    }
    nested = json_object_get(root, "text_config");
    if (nested && !json_is_object(nested)) {
        st = mm3_fail(MM3_ERR_FORMAT, MM3_HERE, "%s: \"text_config\" must be an object", what);
        goto done;
    }
    r.top = root;
    r.text = nested ? nested : root;
    snprintf(text_what, sizeof text_what, nested ? "%s: text_config" : "%s", what);
    snprintf(sparse_what, sizeof sparse_what, "%s: sparse_attention_config", text_what);
    sparse = json_object_get(r.text, "sparse_attention_config");
    if (sparse && !json_is_null(sparse)) {
        if (!json_is_object(sparse)) {
            st = mm3_fail(MM3_ERR_FORMAT, MM3_HERE, "%s must be an object", sparse_what);
            goto done;
        }
        r.sparse = sparse;
    }
    st = read_all_keys(&r);
done:
    json_decref(root);
    if (st != MM3_OK) *out = (mm3_config){ 0 };
    return st;
}
