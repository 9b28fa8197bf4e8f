/* config: the released file, its other spellings, and every way to be wrong. */
#include <stdio.h>
#include <stdlib.h>

#include "model/model.h"
#include "support/alloc_faults.h"
#include "support/expect.h"
#include "support/temp_dir.h"

/* The released config.json without the two 60-entry lists, which make() adds. */
static const char released[] =
    "{\"architectures\":[\"MiniMaxM3SparseForConditionalGeneration\"],\"model_type\":\"minimax_m3_vl\","
    "\"text_config\":{\"hidden_size\":6144,\"intermediate_size\":3072,\"dense_intermediate_size\":12288,"
    "\"shared_intermediate_size\":3072,\"num_hidden_layers\":60,\"num_attention_heads\":64,"
    "\"num_key_value_heads\":4,\"head_dim\":128,\"vocab_size\":200064,\"max_position_embeddings\":1048576,"
    "\"rms_norm_eps\":1e-6,\"use_gemma_norm\":true,\"attention_output_gate\":false,\"rope_theta\":5000000,"
    "\"rotary_dim\":64,\"partial_rotary_factor\":0.5,\"hidden_act\":\"swigluoai\",\"swiglu_alpha\":1.702,"
    "\"swiglu_limit\":7.0,\"use_qk_norm\":true,\"qk_norm_type\":\"per_head\",\"tie_word_embeddings\":false,"
    "\"num_local_experts\":128,\"num_experts_per_tok\":4,\"n_shared_experts\":1,\"scoring_func\":\"sigmoid\","
    "\"use_routing_bias\":true,\"routed_scaling_factor\":2.0,\"num_mtp_modules\":1,"
    "\"sparse_attention_config\":{\"use_sparse_attention\":true,\"sparse_index_dim\":128,"
    "\"sparse_num_index_heads\":4,\"sparse_topk_blocks\":16,\"sparse_block_size\":128,\"sparse_score_type\":\"max\","
    "\"sparse_init_block\":0,\"sparse_local_block\":1}},"
    "\"quantization_config\":{\"quant_method\":\"mxfp8\",\"activation_scheme\":\"dynamic\","
    "\"weight_block_size\":[1,32],\"ignored_layers\":[\"lm_head\"]}}";

/* A patch's value that stands for JSON null (null itself removes the key). */
static const char put_null[] = "<null>";

static void merge(json_t *target, const json_t *patch)
{
    const char *key;
    json_t *value, *old;
    json_object_foreach((json_t *)(uintptr_t)patch, key, value)
    {
        old = json_object_get(target, key);
        if (json_is_null(value))
            json_object_del(target, key);
        else if (json_is_object(value) && json_is_object(old))
            merge(old, value);
        else if (json_is_string(value) && strcmp(json_string_value(value), put_null) == 0)
            json_object_set_new(target, key, json_null());
        else
            json_object_set(target, key, value);
    }
}

static json_t *sixty(bool words, const char *zero, const char *one)
{
    json_t *a = json_array();
    for (int i = 0; i < 60; i++)
        json_array_append_new(a, words ? json_string(i < 3 ? zero : one) : json_integer(i >= 3));
    return a;
}

static json_t *text_of(json_t *j) { return json_object_get(j, "text_config"); }
static json_t *sparse_of(json_t *j) { return json_object_get(text_of(j), "sparse_attention_config"); }

/* The released config with `patch` merged in (NULL: none). */
static json_t *make(const char *patch)
{
    json_error_t e;
    json_t *j = json_loads(released, 0, &e), *p;
    if (!j) fail_msg("released: %s", e.text);
    json_object_set_new(text_of(j), "moe_layer_freq", sixty(false, "", ""));
    json_object_set_new(sparse_of(j), "sparse_attention_freq", sixty(false, "", ""));
    json_object_set_new(sparse_of(j), "sparse_disable_index_value", sixty(false, "", ""));
    if (!patch) return j;
    p = json_loads(patch, 0, &e);
    if (!p) fail_msg("%s: %s", patch, e.text);
    merge(j, p);
    json_decref(p);
    return j;
}

/* Parse and free `j`. */
static mm3_status parse(mm3_config *c, mm3_arena *arena, json_t *j)
{
    char *text = json_dumps(j, 0);
    mm3_status st = mm3_config_parse(c, arena, text, strlen(text), "config.json");
    free(text);
    json_decref(j);
    return st;
}

static void expect_released(const mm3_config *c)
{
    assert_int_equal(c->hidden_size, 6144);
    assert_int_equal(c->n_layers, 60);
    assert_int_equal(c->vocab_size, 200064);
    assert_int_equal(c->max_position, 1048576);
    assert_int_equal(c->n_heads, 64);
    assert_int_equal(c->n_kv_heads, 4);
    assert_int_equal(c->dense_intermediate, 12288);
    assert_int_equal(c->expert_intermediate, 3072);
    assert_int_equal(c->shared_intermediate, 3072);
    assert_int_equal(c->n_experts, 128);
    assert_int_equal(c->experts_per_token, 4);
    assert_int_equal(c->n_shared_experts, 1);
    assert_int_equal(c->n_index_heads, 4);
    assert_int_equal(c->index_dim, 128);
    assert_int_equal(c->block_size, 128);
    assert_int_equal(c->topk_blocks, 16);
    assert_true(c->rms_norm_eps == 1e-6 && c->rope_theta == 5e6 && c->routed_scaling_factor == 2);
    assert_true(c->swiglu_alpha == 1.702 && c->swiglu_limit == 7 && c->swiglu_beta == 1);
    assert_true(c->is_mxfp8);
    for (int i = 0; i < 60; i++) {
        assert_int_equal(c->layer_is_moe[i], i >= 3);
        assert_int_equal(c->layer_is_sparse[i], i >= 3);
    }
    assert_int_equal(c->n_stop_ids, 0);
}

static void released_form(void **state)
{
    mm3_arena arena = { 0 };
    mm3_config c;
    (void)state;
    EXPECT_OK(parse(&c, &arena, make(NULL)));
    expect_released(&c);
    mm3_arena_free(&arena);
}

/* A flat file is a text_config with the quantization beside its keys; nested and flat must mean the same. */
static void flat_form(void **state)
{
    static const char *const drop[] = { "architectures", "model_type" };
    mm3_arena arena = { 0 };
    mm3_config c;
    json_t *j = make(NULL), *flat = json_deep_copy(text_of(j));
    (void)state;
    json_object_set(flat, "quantization_config", json_object_get(j, "quantization_config"));
    json_decref(j);
    EXPECT_OK(parse(&c, &arena, json_deep_copy(flat))); /* without a word on which model it is */
    expect_released(&c);
    json_object_set_new(flat, "model_type", json_string("minimax_m3"));
    EXPECT_OK(parse(&c, &arena, flat));
    expect_released(&c);
    j = make(NULL);
    for (int i = 0; i < MM3_COUNT(drop); i++) json_object_del(j, drop[i]);
    EXPECT_OK(parse(&c, &arena, j));
    expect_released(&c);
    mm3_arena_free(&arena);
}

/* The later spelling: layer_types, mlp_layer_types, index_*, rope_parameters. */
static void canonical_form(void **state)
{
    mm3_arena arena = { 0 };
    mm3_config c;
    json_t *j = make("{\"text_config\":{\"sparse_attention_config\":null,\"moe_layer_freq\":null,\"rope_theta\":null,"
                     "\"partial_rotary_factor\":null,\"rotary_dim\":null,\"index_n_heads\":4,\"index_head_dim\":128,"
                     "\"index_block_size\":128,\"index_topk_blocks\":16,\"index_local_blocks\":1,\"rope_parameters\":"
                     "{\"rope_type\":\"default\",\"rope_theta\":5000000.0,\"partial_rotary_factor\":0.5}}}");
    json_t *both;
    (void)state;
    json_object_set_new(text_of(j), "layer_types", sixty(true, "full_attention", "minimax_m3_sparse"));
    json_object_set_new(text_of(j), "mlp_layer_types", sixty(true, "dense", "sparse"));
    both = make(NULL);
    json_object_update(text_of(both), text_of(j));
    EXPECT_OK(parse(&c, &arena, j));
    expect_released(&c);
    EXPECT_OK(parse(&c, &arena, json_deep_copy(both)));
    expect_released(&c);
    json_array_set_new(json_object_get(text_of(both), "layer_types"), 7, json_string("full_attention"));
    EXPECT_FAIL(parse(&c, &arena, json_deep_copy(both)), MM3_ERR_FORMAT, "contradict each other at layer 7");
    json_array_set_new(json_object_get(text_of(both), "layer_types"), 7, json_string("linear_attention"));
    EXPECT_FAIL(parse(&c, &arena, json_deep_copy(both)), MM3_ERR_UNSUPPORTED, "\"layer_types\"[7] is linear_attention");
    json_array_set_new(json_object_get(text_of(both), "layer_types"), 7, json_string("minimax_m3_sparse"));
    json_array_set_new(json_object_get(text_of(both), "mlp_layer_types"), 59, json_string("dense"));
    EXPECT_FAIL(parse(&c, &arena, both), MM3_ERR_FORMAT, "contradict each other at layer 59");
    mm3_arena_free(&arena);
}

/* What may differ from the released file. T wraps a patch of text_config, S one of sparse_attention_config. */
#define T(keys) "{\"text_config\":{" keys "}}"
#define S(keys) "{\"text_config\":{\"sparse_attention_config\":{" keys "}}}"
#define ONE_LAYER "\"num_hidden_layers\":1,\"moe_layer_freq\":[1],\"sparse_attention_config\":"

static const char *const accepted[] = {
    "{\"some_new_key\":{\"a\":[1]},\"vision_config\":{\"hidden_size\":-1},\"torch_dtype\":\"bfloat16\"}",
    T("\"num_mtp_modules\":7,\"some_new_key\":null"),
    T("\"rotary_dim\":null"),
    T("\"partial_rotary_factor\":null"),
    T("\"rope_scaling\":\"<null>\""),
    T("\"rope_scaling\":{\"type\":\"default\"}"),
    T("\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":5000000,\"partial_rotary_factor\":0.5}"),
    T("\"rope_theta\":5e6,\"vocab_size\":200064.0"),
    T("\"swiglu_beta\":1.0"),
    T("\"attention_output_gate\":null,\"use_gemma_norm\":null,\"use_qk_norm\":null,\"qk_norm_type\":null,"
      "\"scoring_func\":null,\"use_routing_bias\":null,\"tie_word_embeddings\":null"),
    "{\"architectures\":null,\"text_config\":{\"use_gemma_norm\":null}}",
    "{\"model_type\":null,\"text_config\":{\"use_gemma_norm\":null}}",
    S("\"sparse_score_type\":null,\"sparse_init_block\":null,\"sparse_local_block\":null,"
      "\"sparse_disable_index_value\":null,\"use_sparse_attention\":null"),
};

static void what_may_differ(void **state)
{
    mm3_arena arena = { 0 };
    mm3_config c;
    (void)state;
    for (int i = 0; i < MM3_COUNT(accepted); i++) {
        if (parse(&c, &arena, make(accepted[i])) != MM3_OK) fail_msg("%s: %s", accepted[i], mm3_last_error());
        expect_released(&c);
    }
    mm3_arena_free(&arena);
}

static void sizes_are_free(void **state)
{
    mm3_arena arena = { 0 };
    mm3_config c;
    (void)state;
    EXPECT_OK(parse(&c, &arena,
                    make(T("\"hidden_size\":37,\"num_attention_heads\":12,\"num_key_value_heads\":3,"
                           "\"num_local_experts\":4096,\"num_experts_per_tok\":64,\"n_shared_experts\":0,"
                           "\"shared_intermediate_size\":null,\"rope_theta\":12345.5,\"rms_norm_eps\":1e-5,"
                           "\"swiglu_beta\":0.25,\"sparse_attention_config\":{\"sparse_num_index_heads\":3,"
                           "\"sparse_index_dim\":96,\"sparse_block_size\":1,\"sparse_topk_blocks\":10000000}"))));
    assert_int_equal(c.hidden_size, 37);
    assert_int_equal(c.n_experts, 4096);
    assert_int_equal(c.experts_per_token, 64);
    assert_int_equal(c.n_shared_experts, 0);
    assert_int_equal(c.index_dim, 96);
    assert_int_equal(c.block_size, 1);
    assert_int_equal(c.topk_blocks, 10000000);
    assert_true(c.rope_theta == 12345.5 && c.rms_norm_eps == 1e-5 && c.swiglu_beta == 0.25);
    /* Only dense layers: the experts' keys and the sparse ones may be absent. */
    EXPECT_OK(parse(&c, &arena,
                    make(T("\"num_hidden_layers\":2,\"moe_layer_freq\":[0,0],\"sparse_attention_config\":null,"
                           "\"num_local_experts\":null,\"num_experts_per_tok\":null,\"n_shared_experts\":null,"
                           "\"intermediate_size\":null,\"routed_scaling_factor\":null"))));
    assert_int_equal(c.n_experts, 0);
    assert_int_equal(c.layer_is_sparse[1], 0);
    /* Only MoE layers, dense attention: no dense MLP. */
    EXPECT_OK(parse(&c, &arena,
                    make(T("\"num_hidden_layers\":2,\"moe_layer_freq\":[1,1],\"dense_intermediate_size\":null,"
                           "\"sparse_attention_config\":{\"use_sparse_attention\":false,"
                           "\"sparse_attention_freq\":[0,0],\"sparse_disable_index_value\":[0,0]}"))));
    assert_int_equal(c.dense_intermediate, 0);
    assert_int_equal(c.layer_is_moe[1], 1);
    EXPECT_OK(parse(&c, &arena, make("{\"quantization_config\":null}")));
    assert_false(c.is_mxfp8);
    mm3_arena_free(&arena);
}

static void stop_ids_are_joined(void **state)
{
    mm3_arena arena = { 0 };
    mm3_config c;
    (void)state;
    EXPECT_OK(parse(&c, &arena, make("{\"eos_token_id\":[200020,5],\"text_config\":{\"eos_token_id\":200020}}")));
    assert_int_equal(c.n_stop_ids, 2);
    assert_int_equal(c.stop_ids[0], 200020);
    assert_int_equal(c.stop_ids[1], 5);
    EXPECT_OK(parse(&c, &arena, make("{\"eos_token_id\":\"<null>\",\"text_config\":{\"eos_token_id\":[]}}")));
    assert_int_equal(c.n_stop_ids, 0);
    mm3_arena_free(&arena);
}

typedef struct refusal {
    mm3_status status;
    const char *patch, *part;
} refusal;

#define F MM3_ERR_FORMAT
#define U MM3_ERR_UNSUPPORTED

static const refusal refusals[] = {
    /* another model */
    { U, "{\"model_type\":\"minimax_m2\"}", "\"model_type\" is \"minimax_m2\"" },
    { U, "{\"architectures\":[\"LlamaForCausalLM\"]}", "\"architectures\" is \"LlamaForCausalLM\"" },
    { U, T("\"architectures\":[\"LlamaForCausalLM\"]"), "text_config: \"architectures\" is \"LlamaForCausalLM\"" },
    { F, "{\"architectures\":\"MiniMaxM3\"}", "list of names" },
    { F, "{\"architectures\":[]}", "list of names" },
    { F, "{\"text_config\":5}", "\"text_config\" must be an object" },
    /* another network */
    { U, T("\"head_dim\":64"), "text_config: \"head_dim\" is 64; mm3 supports 128 only" },
    { F, T("\"head_dim\":null"), "\"head_dim\" is missing" },
    { U, T("\"use_gemma_norm\":false"), "\"use_gemma_norm\" is false; mm3 supports true only" },
    { U, T("\"attention_output_gate\":true"), "\"attention_output_gate\" is true; mm3 supports false only" },
    { U, T("\"use_qk_norm\":false"), "\"use_qk_norm\"" },
    { U, T("\"qk_norm_type\":\"per_layer\""), "\"qk_norm_type\" is \"per_layer\"" },
    { U, T("\"hidden_act\":\"silu\""), "\"hidden_act\" is \"silu\"; mm3 supports \"swigluoai\" only" },
    { F, T("\"hidden_act\":null"), "\"hidden_act\" is missing" },
    { F, T("\"hidden_act\":7"), "\"hidden_act\" must be a string" },
    { U, T("\"tie_word_embeddings\":true"), "\"tie_word_embeddings\"" },
    { U, "{\"tie_word_embeddings\":true}", "\"tie_word_embeddings\"" },
    { U, T("\"scoring_func\":\"softmax\""), "\"scoring_func\" is \"softmax\"" },
    { U, T("\"use_routing_bias\":false"), "\"use_routing_bias\"" },
    { F, T("\"use_routing_bias\":1"), "\"use_routing_bias\" must be true or false" },
    { U, T("\"n_shared_experts\":2"), "\"n_shared_experts\" is 2; mm3 supports 0 and 1" },
    { F, T("\"n_shared_experts\":-1"), "\"n_shared_experts\" is -1" },
    /* rope */
    { U, T("\"rotary_dim\":128"), "\"rotary_dim\" is 128; mm3 supports 64 only" },
    { U, T("\"rotary_dim\":null,\"partial_rotary_factor\":1.0"), "\"partial_rotary_factor\" is 1" },
    { U, T("\"partial_rotary_factor\":0.25"), "\"partial_rotary_factor\" is 0.25" },
    { F, T("\"rotary_dim\":null,\"partial_rotary_factor\":null"), "\"rotary_dim\" is missing" },
    { U, T("\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}"), "\"type\" is \"yarn\"" },
    { U, T("\"rope_scaling\":{\"rope_type\":\"linear\"}"), "\"rope_type\" is \"linear\"" },
    { U, T("\"rope_parameters\":{\"rope_type\":\"llama3\"}"), "rope_parameters: \"rope_type\" is \"llama3\"" },
    { F, T("\"rope_parameters\":[]"), "\"rope_parameters\" must be an object" },
    { F, T("\"rope_parameters\":{\"rope_theta\":10000}"), "must agree" },
    { F, T("\"rope_parameters\":{\"partial_rotary_factor\":1.0}"), "must agree" },
    { F, T("\"rope_theta\":null"), "\"rope_theta\" is missing" },
    { F, T("\"rope_theta\":0"), "\"rope_theta\" is 0" },
    { F, T("\"rope_theta\":-5"), "\"rope_theta\" is -5" },
    { F, T("\"rope_theta\":1e300"), "\"rope_theta\" is 1e+300" },
    { F, T("\"rope_theta\":\"5000000\""), "\"rope_theta\" must be a number" },
    /* sizes */
    { F, T("\"hidden_size\":null"), "\"hidden_size\" is missing" },
    { F, T("\"hidden_size\":0"), "\"hidden_size\" is 0; expected 1 to" },
    { F, T("\"hidden_size\":-6144"), "\"hidden_size\" is -6144" },
    { F, T("\"hidden_size\":1e30"), "\"hidden_size\" is 1" },
    { F, T("\"hidden_size\":6144.5"), "\"hidden_size\" must be a whole number" },
    { F, T("\"hidden_size\":\"6144\""), "\"hidden_size\" must be a whole number" },
    { F, T("\"hidden_size\":9223372036854775807"), "\"hidden_size\" is 9" },
    { F, T("\"num_hidden_layers\":0"), "\"num_hidden_layers\"" },
    { F, T("\"num_hidden_layers\":1000000000"), "\"num_hidden_layers\"" },
    { F, T("\"vocab_size\":0"), "\"vocab_size\"" },
    { F, T("\"vocab_size\":2147483647"), "\"vocab_size\"" },
    { F, T("\"max_position_embeddings\":-1"), "\"max_position_embeddings\"" },
    { F, T("\"num_attention_heads\":0"), "\"num_attention_heads\"" },
    { F, T("\"num_attention_heads\":16777217"), "\"num_attention_heads\"" },
    { F, T("\"num_key_value_heads\":0"), "\"num_key_value_heads\"" },
    { F, T("\"num_attention_heads\":62"), "expected a multiple of \"num_key_value_heads\", which is 4" },
    { F, T("\"rms_norm_eps\":0"), "\"rms_norm_eps\"" },
    { F, T("\"rms_norm_eps\":-1e-6"), "\"rms_norm_eps\"" },
    { F, T("\"rms_norm_eps\":1e-60"), "\"rms_norm_eps\" is 1e-60" },
    { F, T("\"rms_norm_eps\":2"), "\"rms_norm_eps\" is 2" },
    { F, T("\"swiglu_alpha\":null"), "\"swiglu_alpha\" is missing" },
    { F, T("\"swiglu_limit\":0"), "\"swiglu_limit\" is 0" },
    { F, T("\"swiglu_limit\":1e39"), "\"swiglu_limit\"" },
    { F, T("\"swiglu_limit\":1e-60"), "\"swiglu_limit\" is 1e-60" }, /* 0 as a float */
    { F, T("\"swiglu_beta\":\"1\""), "\"swiglu_beta\"" },
    { F, T("\"dense_intermediate_size\":0"), "\"dense_intermediate_size\"" },
    { F, T("\"dense_intermediate_size\":null"), "\"dense_intermediate_size\" is missing" },
    /* experts */
    { F, T("\"intermediate_size\":-1"), "\"intermediate_size\"" },
    { F, T("\"shared_intermediate_size\":null"), "\"shared_intermediate_size\" is missing" },
    { F, T("\"num_local_experts\":4097"), "\"num_local_experts\" is 4097; expected 1 to 4096" },
    { F, T("\"num_experts_per_tok\":65"), "\"num_experts_per_tok\" is 65; expected 1 to 64" },
    { F, T("\"num_experts_per_tok\":0"), "\"num_experts_per_tok\"" },
    { F, T("\"num_local_experts\":3"), "expected at most \"num_local_experts\", which is 3" },
    { F, T("\"routed_scaling_factor\":0"), "\"routed_scaling_factor\"" },
    { F, T("\"moe_layer_freq\":null"), "\"moe_layer_freq\" is missing" },
    { F, T("\"moe_layer_freq\":1"), "\"moe_layer_freq\" must be a list" },
    { F, T("\"moe_layer_freq\":[0,1]"), "\"moe_layer_freq\" has 2 entries; expected 60" },
    { F, T("\"num_hidden_layers\":1,\"moe_layer_freq\":[2]"), "\"moe_layer_freq\"[0] must be 0 or 1" },
    { F, T("\"num_hidden_layers\":1,\"moe_layer_freq\":[true]"), "\"moe_layer_freq\"[0] must be 0 or 1" },
    { F, T("\"num_hidden_layers\":1,\"moe_layer_freq\":[1.0]"), "\"moe_layer_freq\"[0] must be 0 or 1" },
    { U, T("\"num_hidden_layers\":1,\"moe_layer_freq\":null,\"mlp_layer_types\":[5]"),
      "\"mlp_layer_types\"[0] is not a string" },
    /* sparse attention */
    { F, T("\"sparse_attention_config\":[]"), "sparse_attention_config must be an object" },
    { F, S("\"sparse_attention_freq\":null"), "\"sparse_attention_freq\" is missing" },
    { F, S("\"sparse_attention_freq\":[1]"), "\"sparse_attention_freq\" has 1 entries; expected 60" },
    { F, S("\"use_sparse_attention\":false"), "is false, but 57 layers are listed as sparse" },
    { U, S("\"sparse_num_index_heads\":1"), "\"sparse_num_index_heads\" is 1; mm3 supports one per KV head" },
    { U, S("\"sparse_index_dim\":32"), "\"sparse_index_dim\" is 32" },
    { U, S("\"sparse_index_dim\":80"), "\"sparse_index_dim\" is 80" },
    { F, S("\"sparse_index_dim\":1048576"), "\"sparse_index_dim\"" },
    { F, S("\"sparse_index_dim\":null"), "\"sparse_index_dim\" is missing" },
    { F, S("\"sparse_block_size\":0"), "\"sparse_block_size\" is 0" },
    { F, S("\"sparse_topk_blocks\":0"), "\"sparse_topk_blocks\" is 0" },
    { U, S("\"sparse_score_type\":\"mean\""), "\"sparse_score_type\" is \"mean\"" },
    { U, S("\"sparse_init_block\":1"), "\"sparse_init_block\" is 1; mm3 supports 0 only" },
    { U, S("\"sparse_local_block\":2"), "\"sparse_local_block\" is 2; mm3 supports 1 only" },
    { F, T("\"index_topk_blocks\":8"), "\"sparse_topk_blocks\" is 16 but \"index_topk_blocks\" is 8" },
    { U, T("\"index_local_blocks\":2"), "\"index_local_blocks\" is 2" },
    { F, T("\"sparse_attention_config\":null,\"index_topk_blocks\":16"), "\"layer_types\" is missing" },
    { U, T(ONE_LAYER "{\"sparse_attention_freq\":[1],\"sparse_disable_index_value\":[0]}"),
      "\"sparse_disable_index_value\"[0] is 0, but layer 0 is sparse" },
    { F, S("\"sparse_disable_index_value\":[1,1]"), "\"sparse_disable_index_value\" has 2 entries" },
    /* quantization */
    { U, "{\"quantization_config\":{\"quant_method\":\"fp8\"}}", "\"quant_method\" is \"fp8\"" },
    { F, "{\"quantization_config\":{\"quant_method\":null}}", "\"quant_method\" is missing" },
    { U, "{\"quantization_config\":{\"activation_scheme\":\"static\"}}", "\"activation_scheme\" is \"static\"" },
    { U, "{\"quantization_config\":{\"weight_block_size\":[128,128]}}", "must be [1, 32]" },
    { U, "{\"quantization_config\":{\"weight_block_size\":[1,32,1]}}", "must be [1, 32]" },
    { U, "{\"quantization_config\":{\"weight_block_size\":null}}", "must be [1, 32]" },
    { U, "{\"text_config\":{\"quantization_config\":{\"quant_method\":\"nvfp4\"}}}", "\"quant_method\" is \"nvfp4\"" },
    { F, "{\"quantization_config\":\"mxfp8\"}", "quantization_config must be an object" },
    /* stop ids */
    { F, "{\"eos_token_id\":-1}", "\"eos_token_id\"" },
    { F, "{\"eos_token_id\":200064}", "from 0 to 200063" },
    { F, "{\"eos_token_id\":\"</s>\"}", "\"eos_token_id\"" },
    { F, T("\"eos_token_id\":[1,[2]]"), "\"eos_token_id\"" },
    { U, "{\"eos_token_id\":[1,2,3,4,5,6,7,8,9]}", "more than 8 ids" },
};

static void what_mm3_cannot_run_is_refused(void **state)
{
    mm3_arena arena = { 0 };
    mm3_config c;
    (void)state;
    for (int i = 0; i < MM3_COUNT(refusals); i++) {
        const refusal *r = refusals + i;
        mm3_status st = parse(&c, &arena, make(r->patch));
        bool named = st != MM3_OK && strstr(mm3_last_error(), r->part) && strstr(mm3_last_error(), "config.json");
        if (st != r->status || !named)
            fail_msg("%s: %s: %s", r->patch, mm3_status_name(st), st ? mm3_last_error() : "accepted");
        assert_int_equal(c.n_layers, 0); /* nothing half-read comes out */
    }
    mm3_arena_free(&arena);
}

/* Without a word that it is M3, a file must say what another model might do otherwise. */
static void unnamed_models_must_be_explicit(void **state)
{
    static const char *const key[] = { "use_gemma_norm",        "use_qk_norm",  "qk_norm_type",
                                       "attention_output_gate", "scoring_func", "use_routing_bias",
                                       "tie_word_embeddings" };
    mm3_arena arena = { 0 };
    mm3_config c;
    (void)state;
    for (int i = 0; i < MM3_COUNT(key); i++) {
        json_t *j = make("{\"architectures\":null,\"model_type\":null}");
        json_object_del(text_of(j), key[i]);
        EXPECT_FAIL(parse(&c, &arena, j), MM3_ERR_FORMAT, key[i]);
    }
    mm3_arena_free(&arena);
}

static void text_that_is_no_config(void **state)
{
    static const char *const bad[] = { "", "[]", "5", "null", "{", "{\"text_config\":{},\"text_config\":{}}", "{}" };
    mm3_arena arena = { 0 };
    mm3_config c;
    (void)state;
    for (int i = 0; i < MM3_COUNT(bad); i++)
        EXPECT_FAIL(mm3_config_parse(&c, &arena, bad[i], strlen(bad[i]), "config.json"), MM3_ERR_FORMAT, "config.json");
    EXPECT_FAIL(mm3_config_parse(&c, &arena, NULL, 0, "config.json"), MM3_ERR_FORMAT, "config.json");
    mm3_arena_free(&arena);
}

/* Every key taken out, or replaced by something else, ends in a status and never in a crash. */
static void every_key_damaged(void **state)
{
    static const char *const junk[] = { "null", "-1", "0", "1e30", "\"x\"", "[]", "{}", "true", "[1,2,3]", "1e-300" };
    mm3_arena arena = { 0 };
    mm3_config c;
    json_t *model = make(NULL);
    const char *key;
    json_t *value;
    int n_tried = 0;
    (void)state;
    for (int depth = 0; depth < 3; depth++) {
        json_t *keys = depth == 0 ? model : depth == 1 ? text_of(model) : sparse_of(model);
        json_object_foreach(keys, key, value)
        {
            for (int k = 0; k < MM3_COUNT(junk); k++) {
                json_t *j = make(NULL), *at = depth == 0 ? j : depth == 1 ? text_of(j) : sparse_of(j);
                mm3_status st;
                json_object_set_new(at, key, json_loads(junk[k], JSON_DECODE_ANY, NULL));
                st = parse(&c, &arena, j);
                assert_true(st == MM3_OK || st == MM3_ERR_FORMAT || st == MM3_ERR_UNSUPPORTED);
                assert_true(st == MM3_OK || strlen(mm3_last_error()) > 10);
                n_tried++;
            }
        }
    }
    assert_true(n_tried > 300);
    json_decref(model);
    mm3_arena_free(&arena);
}

static void memory_may_run_out(void **state)
{
    mm3_arena arena = { 0 };
    mm3_config c;
    (void)state;
    alloc_fail_at(1);
    EXPECT_FAIL(parse(&c, &arena, make(NULL)), MM3_ERR_NOMEM, "memory");
    alloc_fail_at(0);
    mm3_arena_free(&arena);
}

/* ---- generation_config.json -------------------------------------------------------------------------------------- */

static mm3_status load_generation(mm3_generation_config *g, const char *text)
{
    char *dir = test_temp_dir();
    mm3_status st;
    if (text) test_write_text(dir, "generation_config.json", text);
    st = mm3_generation_config_load(g, dir);
    test_temp_dir_remove(&dir);
    return st;
}

static void generation_defaults(void **state)
{
    mm3_generation_config g;
    (void)state;
    EXPECT_OK(load_generation(&g, NULL));
    assert_false(g.found);
    assert_true(g.temperature == 1 && g.top_p == 0.95 && g.min_p == 0 && g.repetition_penalty == 1);
    assert_int_equal(g.top_k, 40);
    assert_int_equal(g.n_stop_ids, 0);
    EXPECT_OK(load_generation(&g, "{\"bos_token_id\":1,\"top_k\":null}"));
    assert_true(g.found);
    assert_true(g.temperature == 1 && g.top_p == 0.95 && g.top_k == 40);
    EXPECT_OK(load_generation(&g, "{\"temperature\":0.5,\"top_p\":1,\"top_k\":0,\"min_p\":0.125,"
                                  "\"repetition_penalty\":1.5,\"eos_token_id\":[7,8,7],\"do_sample\":true}"));
    assert_true(g.temperature == 0.5 && g.top_p == 1 && g.min_p == 0.125 && g.repetition_penalty == 1.5);
    assert_int_equal(g.top_k, 0);
    assert_int_equal(g.n_stop_ids, 2);
    assert_int_equal(g.stop_ids[1], 8);
    EXPECT_OK(load_generation(&g, "{\"temperature\":0.5,\"do_sample\":false,\"eos_token_id\":3}"));
    assert_true(g.temperature == 0);
    assert_int_equal(g.stop_ids[0], 3);
    EXPECT_OK(mm3_generation_config_load(&g, "models/tiny-m3"));
    assert_true(g.found && g.top_p == 0.95 && g.n_stop_ids == 1 && g.stop_ids[0] == 4052);
}

static void generation_refusals(void **state)
{
    static const char *const bad[][2] = {
        { "", "not valid JSON" },
        { "[]", "must be a JSON object" },
        { "{\"temperature\":-0.1}", "\"temperature\"" },
        { "{\"temperature\":\"hot\"}", "\"temperature\"" },
        { "{\"temperature\":1e9}", "\"temperature\"" },
        { "{\"top_p\":0}", "\"top_p\"" },
        { "{\"top_p\":1.01}", "\"top_p\"" },
        { "{\"min_p\":1}", "\"min_p\"" },
        { "{\"min_p\":0.99999999999}", "\"min_p\" is 0.99999999999" }, /* 1 as a float */
        { "{\"top_p\":1e-60}", "\"top_p\" is 1e-60" },                 /* 0 as a float */
        { "{\"repetition_penalty\":1e-60}", "\"repetition_penalty\"" },
        { "{\"min_p\":-0.5}", "\"min_p\"" },
        { "{\"repetition_penalty\":0}", "\"repetition_penalty\"" },
        { "{\"top_k\":-1}", "\"top_k\"" },
        { "{\"temperature\":0.5,\"top_k\":2.5}", "\"top_k\"" },
        { "{\"top_k\":4294967296}", "\"top_k\"" },
        { "{\"do_sample\":1}", "\"do_sample\"" },
        { "{\"eos_token_id\":-1}", "\"eos_token_id\"" },
        { "{\"eos_token_id\":4294967296}", "\"eos_token_id\"" },
        { "{\"eos_token_id\":\"x\"}", "\"eos_token_id\"" },
        { "{\"top_k\":1,\"top_k\":2}", "duplicate" },
    };
    mm3_generation_config g;
    (void)state;
    for (int i = 0; i < MM3_COUNT(bad); i++) {
        EXPECT_FAIL(load_generation(&g, bad[i][0]), MM3_ERR_FORMAT, bad[i][1]);
        assert_non_null(strstr(mm3_last_error(), "generation_config.json"));
        assert_true(g.temperature == 1 && !g.found);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_form),
        cmocka_unit_test(flat_form),
        cmocka_unit_test(canonical_form),
        cmocka_unit_test(what_may_differ),
        cmocka_unit_test(sizes_are_free),
        cmocka_unit_test(stop_ids_are_joined),
        cmocka_unit_test(what_mm3_cannot_run_is_refused),
        cmocka_unit_test(unnamed_models_must_be_explicit),
        cmocka_unit_test(text_that_is_no_config),
        cmocka_unit_test(every_key_damaged),
        cmocka_unit_test(memory_may_run_out),
        cmocka_unit_test(generation_defaults),
        cmocka_unit_test(generation_refusals),
    };
    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
