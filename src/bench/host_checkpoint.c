/* A checkpoint of the released model's names and shapes without its data. Knows the files' form, not how they are read.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bench/host_inputs.h"

/* source  docs/m3.md, sections 1 and 2 */
enum {
    HIDDEN = 6144,
    LAYERS = 60,
    DENSE_LAYERS = 3,
    HEADS = 64,
    KV_HEADS = 4,
    HEAD = 128,
    DENSE = 12288,
    EXPERT = 3072,
    VOCAB = 200064,
    SHARDS = 31,
    VISION = 523 /* tensors outside the text model */
};

typedef struct writer {
    mm3_buf *header; /* owned: [SHARDS] members of each file's header */
    int64_t *n_data; /* owned: [SHARDS] */
    mm3_buf index;   /* members of "weight_map" */
    int n, n_all;    /* tensors so far, and at the end: 0 while they are counted */
} writer;

/* k 0: a vector. */
static void add(writer *w, const char *name, const char *dtype, int element, int64_t n, int64_t k)
{
    int i = w->n_all ? (int)((int64_t)w->n * SHARDS / w->n_all) : 0;
    int64_t n_bytes = n * (k ? k : 1) * element;
    char shape[64];
    w->n++;
    if (!w->n_all) return;
    snprintf(shape, sizeof shape, k ? "%lld,%lld" : "%lld", (long long)n, (long long)k);
    mm3_buf_printf(&w->header[i], ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%lld,%lld]}", name, dtype,
                   shape, (long long)w->n_data[i], (long long)(w->n_data[i] + n_bytes));
    w->n_data[i] += n_bytes;
    mm3_buf_printf(&w->index, "%s\n  \"%s\": \"model-%05d-of-%05d.safetensors\"", w->index.n ? "," : "", name, i + 1,
                   SHARDS);
}

static void vector(writer *w, const char *prefix, const char *name, int64_t n)
{
    char full[192];
    snprintf(full, sizeof full, "%s%s.weight", prefix, name);
    add(w, full, "BF16", 2, n, 0);
}

static void quantized(writer *w, const char *prefix, const char *name, int64_t n, int64_t k)
{
    char full[192];
    snprintf(full, sizeof full, "%s%s.weight", prefix, name);
    add(w, full, "F8_E4M3", 1, n, k);
    snprintf(full, sizeof full, "%s%s.weight_scale_inv", prefix, name);
    add(w, full, "U8", 1, n, k / 32);
}

static void mlp(writer *w, const char *prefix, int inter)
{
    quantized(w, prefix, "gate_proj", inter, HIDDEN);
    quantized(w, prefix, "up_proj", inter, HIDDEN);
    quantized(w, prefix, "down_proj", HIDDEN, inter);
}

static void layer(writer *w, int i, int experts)
{
    char p[96], q[160];
    snprintf(p, sizeof p, "language_model.model.layers.%d.", i);
    vector(w, p, "input_layernorm", HIDDEN);
    vector(w, p, "post_attention_layernorm", HIDDEN);
    vector(w, p, "self_attn.q_norm", HEAD);
    vector(w, p, "self_attn.k_norm", HEAD);
    quantized(w, p, "self_attn.q_proj", HEADS * HEAD, HIDDEN);
    quantized(w, p, "self_attn.k_proj", KV_HEADS * HEAD, HIDDEN);
    quantized(w, p, "self_attn.v_proj", KV_HEADS * HEAD, HIDDEN);
    quantized(w, p, "self_attn.o_proj", HIDDEN, HEADS * HEAD);
    if (i < DENSE_LAYERS) {
        snprintf(q, sizeof q, "%smlp.", p);
        mlp(w, q, DENSE);
        return;
    }
    quantized(w, p, "self_attn.index_q_proj", KV_HEADS * HEAD, HIDDEN);
    quantized(w, p, "self_attn.index_k_proj", HEAD, HIDDEN);
    vector(w, p, "self_attn.index_q_norm", HEAD);
    vector(w, p, "self_attn.index_k_norm", HEAD);
    snprintf(q, sizeof q, "%sblock_sparse_moe.gate.weight", p);
    add(w, q, "F32", 4, experts, HIDDEN);
    snprintf(q, sizeof q, "%sblock_sparse_moe.e_score_correction_bias", p);
    add(w, q, "F32", 4, experts, 0);
    for (int e = 0; e < experts; e++) {
        snprintf(q, sizeof q, "%sblock_sparse_moe.experts.%d.", p, e);
        quantized(w, q, "w1", EXPERT, HIDDEN);
        quantized(w, q, "w2", HIDDEN, EXPERT);
        quantized(w, q, "w3", EXPERT, HIDDEN);
    }
    snprintf(q, sizeof q, "%sblock_sparse_moe.shared_experts.", p);
    mlp(w, q, EXPERT);
}

static void list(writer *w, int experts)
{
    char name[96];
    w->n = 0;
    add(w, "language_model.model.embed_tokens.weight", "BF16", 2, VOCAB, HIDDEN);
    for (int i = 0; i < LAYERS; i++) layer(w, i, experts);
    vector(w, "language_model.model.", "norm", HIDDEN);
    add(w, "language_model.lm_head.weight", "BF16", 2, VOCAB, HIDDEN);
    for (int i = 0; i < VISION; i++) {
        snprintf(name, sizeof name, "vision_tower.layers.%d.weight", i);
        add(w, name, "BF16", 2, HEAD, 0);
    }
}

static mm3_status write_config(const char *dir, int experts)
{
    mm3_status st;
    mm3_buf b = { 0 };
    char freq[4 * LAYERS], *at = freq;
    for (int i = 0; i < LAYERS; i++) at += sprintf(at, "%s%d", i ? "," : "", i >= DENSE_LAYERS);
    mm3_buf_printf(&b,
                   "{\"architectures\":[\"MiniMaxM3SparseForConditionalGeneration\"],\"model_type\":\"minimax_m3_vl\","
                   "\"quantization_config\":{\"quant_method\":\"mxfp8\",\"activation_scheme\":\"dynamic\","
                   "\"weight_block_size\":[1,32],\"ignored_layers\":[\"lm_head\",\"model.embed_tokens\"]},"
                   "\"text_config\":{\"hidden_size\":%d,\"intermediate_size\":%d,\"dense_intermediate_size\":%d,"
                   "\"shared_intermediate_size\":%d,\"num_hidden_layers\":%d,\"num_attention_heads\":%d,"
                   "\"num_key_value_heads\":%d,\"head_dim\":%d,\"vocab_size\":%d,\"max_position_embeddings\":1048576,",
                   HIDDEN, EXPERT, DENSE, EXPERT, LAYERS, HEADS, KV_HEADS, HEAD, VOCAB);
    mm3_buf_printf(
        &b,
        "\"rms_norm_eps\":1e-6,\"use_gemma_norm\":true,\"attention_output_gate\":false,"
        "\"rope_theta\":5000000,\"rotary_dim\":64,\"partial_rotary_factor\":0.5,\"hidden_act\":\"swigluoai\","
        "\"swiglu_alpha\":1.702,\"swiglu_limit\":7.0,\"use_qk_norm\":true,\"qk_norm_type\":\"per_head\","
        "\"tie_word_embeddings\":false,\"num_local_experts\":%d,\"num_experts_per_tok\":4,"
        "\"n_shared_experts\":1,\"scoring_func\":\"sigmoid\",\"use_routing_bias\":true,"
        "\"routed_scaling_factor\":2.0,\"moe_layer_freq\":[%s],",
        experts, freq);
    mm3_buf_printf(&b,
                   "\"sparse_attention_config\":{\"use_sparse_attention\":true,\"sparse_index_dim\":%d,"
                   "\"sparse_num_index_heads\":%d,\"sparse_topk_blocks\":16,\"sparse_block_size\":128,"
                   "\"sparse_score_type\":\"max\",\"sparse_init_block\":0,\"sparse_local_block\":1,"
                   "\"sparse_attention_freq\":[%s],\"sparse_disable_index_value\":[%s]}}}\n",
                   HEAD, KV_HEADS, freq, freq);
    st = b.failed ? mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for a configuration")
                  : mm3__host_write(dir, "config.json", b.data, b.n);
    mm3_buf_free(&b);
    return st;
}

/* The header, and then a hole as long as the data. */
static mm3_status write_shard(const char *dir, const mm3_buf *members, int64_t n_data, int i)
{
    mm3_status st;
    mm3_buf b = { 0 };
    char name[64], *path;
    unsigned char length[8];
    size_t n = 0;
    bool done;
    snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", i + 1, SHARDS);
    mm3_buf_add(&b, "12345678", sizeof length); /* the length, once it is known */
    mm3_buf_puts(&b, "{\"__metadata__\":{\"format\":\"pt\"}");
    mm3_buf_add(&b, members->data, members->n);
    mm3_buf_puts(&b, "}");
    while (b.n % 8) {
        mm3_buf_puts(&b, " ");
        if (b.failed) break;
    }
    if (b.failed || members->failed) {
        mm3_buf_free(&b);
        return mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for %s", name);
    }
    n = b.n - sizeof length;
    for (size_t k = 0; k < sizeof length; k++) length[k] = (unsigned char)(n >> (8 * k));
    memcpy(b.data, length, sizeof length);
    st = mm3__host_write(dir, name, b.data, b.n);
    path = st == MM3_OK ? mm3_path_join(dir, name) : NULL;
    done = path && truncate(path, (off_t)((int64_t)b.n + n_data)) == 0;
    if (st == MM3_OK && !done)
        st =
            mm3_fail(MM3_ERR_IO, MM3_HERE, "%s: cannot stretch %s to %lld bytes: the file system there must know holes",
                     dir, name, (long long)n_data);
    mm3_free(path);
    mm3_buf_free(&b);
    return st;
}

static mm3_status write_index(const char *dir, const writer *w)
{
    mm3_status st;
    mm3_buf b = { 0 };
    mm3_buf_puts(&b, "{\"metadata\": {}, \"weight_map\": {");
    mm3_buf_add(&b, w->index.data, w->index.n);
    mm3_buf_puts(&b, "\n}}\n");
    st = b.failed || w->index.failed ? mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for an index")
                                     : mm3__host_write(dir, "model.safetensors.index.json", b.data, b.n);
    mm3_buf_free(&b);
    return st;
}

mm3_status mm3__host_write_checkpoint(const char *dir, int experts, int *n_tensors)
{
    mm3_status st = MM3_OK;
    writer w = { .header = mm3_calloc(SHARDS, sizeof *w.header), .n_data = mm3_calloc(SHARDS, sizeof *w.n_data) };
    if (!w.header || !w.n_data) {
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for a checkpoint");
        goto done;
    }
    list(&w, experts);
    w.n_all = w.n;
    list(&w, experts);
    *n_tensors = w.n;
    MM3_GOTO(write_config(dir, experts));
    MM3_GOTO(write_index(dir, &w));
    for (int i = 0; i < SHARDS; i++) MM3_GOTO(write_shard(dir, &w.header[i], w.n_data[i], i));
done:
    for (int i = 0; i < SHARDS && w.header; i++) mm3_buf_free(&w.header[i]);
    mm3_buf_free(&w.index);
    mm3_free(w.header);
    mm3_free(w.n_data);
    return st;
}
