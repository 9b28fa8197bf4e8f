/* fuzz: config.json. Input: its text.
 * Properties: what is accepted has the file's sizes, and they go together; the same JSON otherwise written, and the
 * config written anew from what was read, in the released form and in the flat one, are read the same. */
#include <math.h>
#include <stdlib.h>

#include "fuzz/fuzz.h"
#include "model/model.h"
#include "support/alloc_faults.h"

static const char what[] = "config.json";

static void check_sizes(const mm3_config *c)
{
    int n_moe = 0, n_sparse = 0;
    FUZZ_CHECK(c->hidden_size > 0 && c->n_layers > 0 && c->vocab_size > 0 && c->max_position > 0, "a size below 1");
    FUZZ_CHECK(c->n_heads > 0 && c->n_kv_heads > 0 && c->n_heads % c->n_kv_heads == 0, "%d heads, %d KV heads",
               c->n_heads, c->n_kv_heads);
    FUZZ_CHECK(c->rms_norm_eps > 0 && (float)c->rms_norm_eps > 0 && isfinite((float)c->rope_theta) &&
                   (float)c->rope_theta > 0 && (float)c->swiglu_limit > 0 && isfinite(c->swiglu_alpha) &&
                   isfinite(c->swiglu_beta),
               "a number out of range");
    for (int i = 0; i < c->n_layers; i++) {
        FUZZ_CHECK(c->layer_is_moe[i] <= 1 && c->layer_is_sparse[i] <= 1, "layer %d is neither", i);
        n_moe += c->layer_is_moe[i];
        n_sparse += c->layer_is_sparse[i];
    }
    FUZZ_CHECK(n_moe == c->n_layers || c->dense_intermediate > 0, "dense layers without a size");
    FUZZ_CHECK(!n_moe || (c->expert_intermediate > 0 && c->experts_per_token > 0 &&
                          c->experts_per_token <= c->n_experts && (float)c->routed_scaling_factor > 0 &&
                          (c->n_shared_experts == 0 || (c->n_shared_experts == 1 && c->shared_intermediate > 0))),
               "expert layers without a size");
    FUZZ_CHECK(!n_sparse || (c->n_index_heads == c->n_kv_heads && c->index_dim >= MM3_ROTARY_DIM &&
                             c->index_dim % 32 == 0 && c->block_size > 0 && c->topk_blocks > 0),
               "sparse layers without a size");
    FUZZ_CHECK(c->n_stop_ids >= 0 && c->n_stop_ids <= MM3_COUNT(c->stop_ids), "%d stop ids", c->n_stop_ids);
    for (int i = 0; i < c->n_stop_ids; i++) {
        FUZZ_CHECK(c->stop_ids[i] >= 0 && c->stop_ids[i] < c->vocab_size, "stop id %d", (int)c->stop_ids[i]);
        for (int k = 0; k < i; k++) FUZZ_CHECK(c->stop_ids[i] != c->stop_ids[k], "a stop id twice");
    }
}

static void check_same(const mm3_config *a, const mm3_config *b, const char *how)
{
    mm3_config x = *a, y = *b;
    FUZZ_CHECK(x.n_layers == y.n_layers && memcmp(x.layer_is_moe, y.layer_is_moe, (size_t)x.n_layers) == 0 &&
                   memcmp(x.layer_is_sparse, y.layer_is_sparse, (size_t)x.n_layers) == 0,
               "%s: other layers", how);
    FUZZ_CHECK(x.hidden_size == y.hidden_size && x.vocab_size == y.vocab_size && x.max_position == y.max_position &&
                   x.n_heads == y.n_heads && x.n_kv_heads == y.n_kv_heads &&
                   x.dense_intermediate == y.dense_intermediate && x.expert_intermediate == y.expert_intermediate &&
                   x.shared_intermediate == y.shared_intermediate && x.n_experts == y.n_experts &&
                   x.experts_per_token == y.experts_per_token && x.n_shared_experts == y.n_shared_experts &&
                   x.n_index_heads == y.n_index_heads && x.index_dim == y.index_dim && x.block_size == y.block_size &&
                   x.topk_blocks == y.topk_blocks && x.is_mxfp8 == y.is_mxfp8 && x.n_stop_ids == y.n_stop_ids &&
                   memcmp(x.stop_ids, y.stop_ids, sizeof x.stop_ids) == 0,
               "%s: another size", how);
    FUZZ_CHECK(x.rms_norm_eps == y.rms_norm_eps && x.rope_theta == y.rope_theta &&
                   x.routed_scaling_factor == y.routed_scaling_factor && x.swiglu_alpha == y.swiglu_alpha &&
                   x.swiglu_limit == y.swiglu_limit && x.swiglu_beta == y.swiglu_beta,
               "%s: another number", how);
}

static void check_reads_as(const json_t *root, const mm3_config *want, size_t flags, const char *how)
{
    char *text = json_dumps(root, flags | JSON_ENCODE_ANY);
    mm3_arena arena = { 0 };
    mm3_config c;
    FUZZ_CHECK(text, "%s: cannot be written", how);
    FUZZ_CHECK(mm3_config_parse(&c, &arena, text, strlen(text), what) == MM3_OK, "%s: %s", how, mm3_last_error());
    check_same(want, &c, how);
    mm3_arena_free(&arena);
    free(text);
}

/* What the file says under names that mean one thing only. */
static void check_values(const mm3_config *c, const json_t *root)
{
    const json_t *nested = json_object_get(root, "text_config"), *text = nested ? nested : root;
    bool any_moe = memchr(c->layer_is_moe, 1, (size_t)c->n_layers),
         all_moe = !memchr(c->layer_is_moe, 0, (size_t)c->n_layers);
    const struct {
        const char *key;
        double value;
        bool is_read;
    } values[] = {
        { "hidden_size", c->hidden_size, true },
        { "num_hidden_layers", c->n_layers, true },
        { "vocab_size", c->vocab_size, true },
        { "max_position_embeddings", c->max_position, true },
        { "num_attention_heads", c->n_heads, true },
        { "num_key_value_heads", c->n_kv_heads, true },
        { "dense_intermediate_size", c->dense_intermediate, !all_moe },
        { "intermediate_size", c->expert_intermediate, any_moe },
        { "num_local_experts", c->n_experts, any_moe },
        { "num_experts_per_tok", c->experts_per_token, any_moe },
        { "n_shared_experts", c->n_shared_experts, any_moe },
        { "shared_intermediate_size", c->shared_intermediate, any_moe && c->n_shared_experts },
        { "routed_scaling_factor", c->routed_scaling_factor, any_moe },
        { "rms_norm_eps", c->rms_norm_eps, true },
        { "swiglu_alpha", c->swiglu_alpha, true },
        { "swiglu_limit", c->swiglu_limit, true },
    };
    for (int i = 0; i < MM3_COUNT(values); i++)
        FUZZ_CHECK(!values[i].is_read || json_number_value(json_object_get(text, values[i].key)) == values[i].value,
                   "%s was read as %g", values[i].key, values[i].value);
}

/* ---- written anew ------------------------------------------------------------------------------------------------ */

static json_t *flags_of(const unsigned char *flag, int n, const char *no, const char *yes)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, no ? json_string(flag[i] ? yes : no) : json_integer(flag[i]));
    return list;
}

static bool any(const unsigned char *flag, int n) { return memchr(flag, 1, (size_t)n) != NULL; }

static json_t *text_part(const mm3_config *c, bool flat)
{
    json_t *stop = json_array();
    json_t *t =
        json_pack("{s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:f,s:f,s:f,s:f,s:f,s:i,s:b,s:b,s:b,s:s,s:s,s:b}", "hidden_size",
                  c->hidden_size, "num_hidden_layers", c->n_layers, "vocab_size", c->vocab_size,
                  "max_position_embeddings", c->max_position, "num_attention_heads", c->n_heads, "num_key_value_heads",
                  c->n_kv_heads, "head_dim", MM3_HEAD_DIM, "rms_norm_eps", c->rms_norm_eps, "rope_theta", c->rope_theta,
                  "swiglu_alpha", c->swiglu_alpha, "swiglu_limit", c->swiglu_limit, "swiglu_beta", c->swiglu_beta,
                  "rotary_dim", MM3_ROTARY_DIM, "use_gemma_norm", 1, "attention_output_gate", 0, "use_qk_norm", 1,
                  "qk_norm_type", "per_head", "hidden_act", "swigluoai", "tie_word_embeddings", 0);
    json_object_set_new(t, flat ? "mlp_layer_types" : "moe_layer_freq",
                        flags_of(c->layer_is_moe, c->n_layers, flat ? "dense" : NULL, "sparse"));
    if (c->dense_intermediate) json_object_set_new(t, "dense_intermediate_size", json_integer(c->dense_intermediate));
    if (any(c->layer_is_moe, c->n_layers)) {
        json_t *experts = json_pack("{s:s,s:b,s:i,s:i,s:i,s:f,s:i}", "scoring_func", "sigmoid", "use_routing_bias", 1,
                                    "intermediate_size", c->expert_intermediate, "num_local_experts", c->n_experts,
                                    "num_experts_per_tok", c->experts_per_token, "routed_scaling_factor",
                                    c->routed_scaling_factor, "n_shared_experts", c->n_shared_experts);
        json_object_update(t, experts);
        json_decref(experts);
        if (c->n_shared_experts)
            json_object_set_new(t, "shared_intermediate_size", json_integer(c->shared_intermediate));
    }
    for (int i = 0; i < c->n_stop_ids; i++) json_array_append_new(stop, json_integer(c->stop_ids[i]));
    json_object_set_new(t, "eos_token_id", stop);
    return t;
}

static void put_sparse(const mm3_config *c, json_t *t, bool flat)
{
    if (!any(c->layer_is_sparse, c->n_layers)) return;
    if (flat) {
        json_object_set_new(t, "layer_types",
                            flags_of(c->layer_is_sparse, c->n_layers, "full_attention", "minimax_m3_sparse"));
        json_object_set_new(t, "index_n_heads", json_integer(c->n_index_heads));
        json_object_set_new(t, "index_head_dim", json_integer(c->index_dim));
        json_object_set_new(t, "index_block_size", json_integer(c->block_size));
        json_object_set_new(t, "index_topk_blocks", json_integer(c->topk_blocks));
        return;
    }
    json_object_set_new(t, "sparse_attention_config",
                        json_pack("{s:b,s:i,s:i,s:i,s:i,s:s,s:i,s:i,s:o,s:o}", "use_sparse_attention", 1,
                                  "sparse_num_index_heads", c->n_index_heads, "sparse_index_dim", c->index_dim,
                                  "sparse_block_size", c->block_size, "sparse_topk_blocks", c->topk_blocks,
                                  "sparse_score_type", "max", "sparse_init_block", 0, "sparse_local_block", 1,
                                  "sparse_attention_freq", flags_of(c->layer_is_sparse, c->n_layers, NULL, NULL),
                                  "sparse_disable_index_value", flags_of(c->layer_is_sparse, c->n_layers, NULL, NULL)));
}

static void check_written_anew(const mm3_config *c, bool flat)
{
    json_t *text = text_part(c, flat);
    json_t *root =
        flat ? json_incref(text) : json_pack("{s:s,s:O}", "model_type", "minimax_m3_vl", "text_config", text);
    put_sparse(c, text, flat);
    if (c->is_mxfp8)
        json_object_set_new(root, "quantization_config",
                            json_pack("{s:s,s:s,s:[i,i]}", "quant_method", "mxfp8", "activation_scheme", "dynamic",
                                      "weight_block_size", 1, MM3_MX_BLOCK));
    check_reads_as(root, c, JSON_COMPACT, flat ? "the flat form" : "the released form");
    json_decref(root);
    json_decref(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    mm3_arena arena = { 0 };
    mm3_config c;
    long before = alloc_count(), n_allocations;
    mm3_status st;
    fuzz_forget_error();
    st = mm3_config_parse(&c, &arena, n ? (const char *)data : NULL, n, what);
    n_allocations = alloc_count() - before;
    if (st != MM3_OK) {
        static const mm3_config none;
        fuzz_error(st, what);
        FUZZ_CHECK(st == MM3_ERR_FORMAT || st == MM3_ERR_UNSUPPORTED, "%s", mm3_status_name(st));
        FUZZ_CHECK(memcmp(&c, &none, sizeof c) == 0, "a config in spite of an error");
    } else {
        json_t *root;
        check_sizes(&c);
        check_written_anew(&c, false);
        check_written_anew(&c, true);
        FUZZ_CHECK(mm3_json_parse(&root, (const char *)data, n, what) == MM3_OK, "%s", mm3_last_error());
        check_values(&c, root);
        check_reads_as(root, &c, JSON_INDENT(3) | JSON_SORT_KEYS | JSON_ENSURE_ASCII, "otherwise written");
        json_decref(root);
    }
    mm3_arena_free(&arena);
    if (fuzz_memory_fails(data, n, n_allocations)) {
        mm3_status again = mm3_config_parse(&c, &arena, (const char *)data, n, what);
        fuzz_memory_failed(again, st);
        mm3_arena_free(&arena);
    }
    return 0;
}
