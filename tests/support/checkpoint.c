/* checkpoint: see checkpoint.h. First the list of tensors, then their values, then the files. */
#include "support/checkpoint.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mx/mx.h"
#include "support/temp_dir.h"

const test_checkpoint test_checkpoint_small = {
    .hidden = 96,
    .layers = 4,
    .heads = 4,
    .kv_heads = 2,
    .dense_intermediate = 160,
    .expert_intermediate = 64,
    .shared_intermediate = 32,
    .experts = 5,
    .experts_per_token = 2,
    .shared_experts = 1,
    .vocab = 77,
    .max_position = 4096,
    .index_dim = 64,
    .block_size = 128,
    .topk_blocks = 3,
    .seed = 1,
};

const test_checkpoint test_checkpoint_released = {
    .hidden = 6144,
    .layers = 60,
    .heads = 64,
    .kv_heads = 4,
    .dense_intermediate = 12288,
    .expert_intermediate = 3072,
    .shared_intermediate = 3072,
    .experts = 128,
    .experts_per_token = 4,
    .shared_experts = 1,
    .vocab = 200064,
    .max_position = 1048576,
    .index_dim = 128,
    .block_size = 128,
    .topk_blocks = 16,
    .moe = "000111111111111111111111111111111111111111111111111111111111",
    .sparse = "000111111111111111111111111111111111111111111111111111111111",
    .shards = 31,
    .holes = true,
};

typedef enum kind { KIND_PLAIN, KIND_CODES, KIND_SCALES } kind;

typedef struct item {
    test_tensor t;
    char name[200]; /* as listed, before a hook renamed it: values follow it */
    kind kind;
    int64_t n, k;
    double gain;
    bool on_grid; /* values are MXFP8 values, whatever the type */
    int shard;
} item;

typedef struct list {
    const test_checkpoint *c;
    item *item;
    int n, max;
} list;

/* ---- list -------------------------------------------------------------------------------------------------------- */

static bool matches(const char *words, const char *name)
{
    char copy[512], *save = NULL;
    if (!words) return false;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save))
        if (strstr(name, w)) return true;
    return false;
}

static item *add(list *l, const char *name, const char *dtype, int64_t n, int64_t k, double gain)
{
    item *i;
    if (l->n == l->max) {
        l->max = l->max ? 2 * l->max : 256;
        l->item = realloc(l->item, (size_t)l->max * sizeof *l->item);
        if (!l->item) test_die("allocate", name);
    }
    i = memset(l->item + l->n++, 0, sizeof *i);
    snprintf(i->t.name, sizeof i->t.name, "%s", name);
    snprintf(i->name, sizeof i->name, "%s", name);
    snprintf(i->t.dtype, sizeof i->t.dtype, "%s", dtype);
    i->t.n_dims = k ? 2 : 1;
    i->t.shape[0] = n;
    i->t.shape[1] = k;
    i->n = n;
    i->k = k ? k : 1;
    i->gain = gain;
    return i;
}

/* A matrix: `released` is its type in released files. */
static void weight(list *l, const char *prefix, const char *name, int64_t n, int64_t k, const char *released,
                   double gain)
{
    char full[180], scales[200];
    const char *dtype = released;
    item *i;
    snprintf(full, sizeof full, "%s%s.weight", prefix, name);
    if (matches(l->c->as_bf16, full)) dtype = "BF16";
    if (matches(l->c->as_f32, full)) dtype = "F32";
    if (matches(l->c->as_mx, full)) dtype = "F8_E4M3";
    i = add(l, full, dtype, n, k, gain);
    i->on_grid = strcmp(released, "F8_E4M3") == 0;
    if (strcmp(dtype, "F8_E4M3") != 0) return;
    i->kind = KIND_CODES;
    snprintf(scales, sizeof scales, "%s_scale_inv", full);
    i = add(l, scales, "U8", n, k / 32, gain);
    i->kind = KIND_SCALES;
    i->on_grid = strcmp(released, "F8_E4M3") == 0; /* drawn from the same values as the codes */
    i->k = k;
    snprintf(i->name, sizeof i->name, "%s", full);
}

static void vector(list *l, const char *prefix, const char *name, int64_t n, const char *dtype, double gain)
{
    char full[180];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    if (matches(l->c->as_f32, full)) dtype = "F32";
    if (matches(l->c->as_bf16, full)) dtype = "BF16";
    add(l, full, dtype, n, 0, gain);
}

static bool pattern(const char *digits, int layer) { return digits ? digits[layer] == '1' : layer >= 2; }

static void mlp(list *l, const char *layer, const char *name, int intermediate)
{
    char p[120];
    snprintf(p, sizeof p, "%s%s.", layer, name);
    weight(l, p, "gate_proj", intermediate, l->c->hidden, "F8_E4M3", 2);
    weight(l, p, "up_proj", intermediate, l->c->hidden, "F8_E4M3", 2);
    weight(l, p, "down_proj", l->c->hidden, intermediate, "F8_E4M3", 0.5);
}

static void layer(list *l, int i)
{
    const test_checkpoint *c = l->c;
    char p[80], x[120];
    snprintf(p, sizeof p, "language_model.model.layers.%d.", i);
    vector(l, p, "input_layernorm.weight", c->hidden, "BF16", 0.3);
    vector(l, p, "post_attention_layernorm.weight", c->hidden, "BF16", 0.3);
    vector(l, p, "self_attn.q_norm.weight", 128, "BF16", 0.3);
    vector(l, p, "self_attn.k_norm.weight", 128, "BF16", 0.3);
    weight(l, p, "self_attn.q_proj", c->heads * 128, c->hidden, "F8_E4M3", 1);
    weight(l, p, "self_attn.k_proj", c->kv_heads * 128, c->hidden, "F8_E4M3", 1);
    weight(l, p, "self_attn.v_proj", c->kv_heads * 128, c->hidden, "F8_E4M3", 1);
    weight(l, p, "self_attn.o_proj", c->hidden, c->heads * 128, "F8_E4M3", 1);
    if (pattern(c->sparse, i)) {
        weight(l, p, "self_attn.index_q_proj", c->kv_heads * c->index_dim, c->hidden, "F8_E4M3", 1);
        weight(l, p, "self_attn.index_k_proj", c->index_dim, c->hidden, "F8_E4M3", 1);
        vector(l, p, "self_attn.index_q_norm.weight", c->index_dim, "BF16", 0.3);
        vector(l, p, "self_attn.index_k_norm.weight", c->index_dim, "BF16", 0.3);
    }
    if (!pattern(c->moe, i)) {
        mlp(l, p, "mlp", c->dense_intermediate);
        return;
    }
    weight(l, p, "block_sparse_moe.gate", c->experts, c->hidden, "F32", 1);
    vector(l, p, "block_sparse_moe.e_score_correction_bias", c->experts, "F32", 0.2);
    for (int e = 0; e < c->experts; e++) {
        snprintf(x, sizeof x, "%sblock_sparse_moe.experts.%d.", p, e);
        weight(l, x, "w1", c->expert_intermediate, c->hidden, "F8_E4M3", 2);
        weight(l, x, "w3", c->expert_intermediate, c->hidden, "F8_E4M3", 2);
        weight(l, x, "w2", c->hidden, c->expert_intermediate, "F8_E4M3", 0.5);
    }
    if (c->shared_experts) mlp(l, p, "block_sparse_moe.shared_experts", c->shared_intermediate);
}

static list make_list(const test_checkpoint *c)
{
    list l = { .c = c };
    int n = 0;
    weight(&l, "language_model.model.", "embed_tokens", c->vocab, c->hidden, "BF16", sqrt(c->hidden));
    for (int i = 0; i < c->layers; i++) layer(&l, i);
    vector(&l, "language_model.model.", "norm.weight", c->hidden, "BF16", 0.3);
    weight(&l, "language_model.", "lm_head", c->vocab, c->hidden, "BF16", 0.2 * sqrt(c->hidden));
    for (int i = 0; i < c->n_extra; i++) {
        item *x = add(&l, c->extra[i].name, c->extra[i].dtype, 1, 0, 0);
        x->t = c->extra[i];
    }
    for (int i = 0; i < l.n; i++) {
        if (c->on_tensor) c->on_tensor(c->user, &l.item[i].t);
        if (!l.item[i].t.drop) l.item[n++] = l.item[i];
    }
    l.n = n;
    return l;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static uint64_t next(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static float normal(uint64_t *state)
{
    double u = ((double)(next(state) >> 11) + 0.5) * 0x1p-53, v = (double)(next(state) >> 11) * 0x1p-53;
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

/* The tensor's values, a function of the seed and its name alone. */
static float *values(const test_checkpoint *c, const item *i)
{
    size_t n = (size_t)i->n, k = (size_t)i->k;
    float *x = malloc((n * k + 1) * sizeof *x);
    uint64_t state = c->seed * UINT64_C(0xD1342543DE82EF95);
    if (!x) test_die("allocate", i->name);
    for (const char *s = i->name; *s; s++) state = (state ^ (unsigned char)*s) * UINT64_C(1099511628211);
    for (size_t row = 0; row < n; row++) {
        /* Rows of MXFP8 weights differ in size, so that their scale bytes do. */
        double spread = i->on_grid ? exp2((double)(next(&state) % 6) - 3) : 1;
        double scale = i->gain * spread / (i->t.n_dims == 2 ? sqrt((double)k) : 1);
        for (size_t col = 0; col < k; col++) x[row * k + col] = (float)scale * normal(&state);
    }
    if (c->on_values) c->on_values(c->user, i->name, x, n * k);
    return x;
}

/* Round to MXFP8 in place; codes and scales may be NULL. A last part of less than 32 columns stays as it is. */
static void to_grid(float *x, int64_t n, int64_t k, uint8_t *codes, uint8_t *scales)
{
    uint8_t code[32], byte;
    for (int64_t row = 0; row < n; row++) {
        for (int64_t b = 0; b < k / 32; b++) {
            float *block = x + row * k + b * 32;
            byte = mm3_mx_quantize_block(block, code);
            for (int j = 0; j < 32; j++) block[j] = mm3_e4m3_to_f32(code[j]) * mm3_e8m0_to_f32(byte);
            if (codes) memcpy(codes + row * k + b * 32, code, 32);
            if (scales) scales[row * (k / 32) + b] = byte;
        }
    }
}

static int element_bytes(const char *dtype)
{
    static const struct {
        const char *name;
        int n;
    } size[] = { { "F32", 4 }, { "I32", 4 }, { "U32", 4 }, { "BF16", 2 }, { "F16", 2 },
                 { "I16", 2 }, { "U16", 2 }, { "I64", 8 }, { "U64", 8 },  { "F64", 8 } };
    for (size_t i = 0; i < sizeof size / sizeof size[0]; i++)
        if (strcmp(size[i].name, dtype) == 0) return size[i].n;
    return 1;
}

static size_t item_bytes(const item *i)
{
    size_t n = (size_t)element_bytes(i->t.dtype);
    for (int d = 0; d < i->t.n_dims; d++) n *= (size_t)i->t.shape[d];
    return n;
}

/* The tensor's bytes for free(), n of them: what a hook made longer is zero there, what it made shorter is cut. */
static unsigned char *item_data(const test_checkpoint *c, const item *i, size_t n)
{
    size_t n_values = (size_t)(i->n * i->k), n_full = n_values * 8 + n + 8;
    unsigned char *out = calloc(n_full, 1);
    float *x;
    if (!out) test_die("allocate", i->name);
    if (i->gain == 0) return out; /* an extra */
    x = values(c, i);
    if (i->kind != KIND_PLAIN || i->on_grid)
        to_grid(x, i->n, i->k, i->kind == KIND_CODES ? out : NULL, i->kind == KIND_SCALES ? out : NULL);
    if (i->kind == KIND_PLAIN) {
        for (size_t j = 0; j < n_values; j++) {
            uint16_t h = mm3_bf16_from_f32(x[j]);
            float rounded = mm3_bf16_to_f32(h);
            /* What is BF16 in released files has BF16 values also as F32; router and bias are F32 there. */
            bool full = strstr(i->name, "block_sparse_moe.gate") || strstr(i->name, "correction_bias");
            if (strcmp(i->t.dtype, "BF16") == 0)
                memcpy(out + 2 * j, &h, 2);
            else if (strcmp(i->t.dtype, "F32") == 0)
                memcpy(out + 4 * j, full ? &x[j] : &rounded, 4);
        }
    }
    free(x);
    return out;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static int by_alignment(const void *a, const void *b)
{
    const item *x = a, *y = b;
    int ex = element_bytes(x->t.dtype), ey = element_bytes(y->t.dtype);
    if (x->shard != y->shard) return x->shard - y->shard;
    return ex != ey ? ey - ex : strcmp(x->t.name, y->t.name);
}

static void shard_name(char *out, size_t max, int i, int n)
{
    if (n)
        snprintf(out, max, "model-%05d-of-%05d.safetensors", i + 1, n);
    else
        snprintf(out, max, "model.safetensors");
}

static void write_shard(const char *dir, const test_checkpoint *c, const item *items, int n, const char *name)
{
    char *path = test_path(dir, name), *header = NULL;
    size_t n_header, n_data = 0;
    FILE *text = open_memstream(&header, &n_header), *f = fopen(path, "wb");
    unsigned char length[8];
    if (!text || !f) test_die("write", path);
    fprintf(text, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < n; i++) {
        size_t end = n_data + item_bytes(items + i);
        fprintf(text, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", items[i].t.name, items[i].t.dtype);
        for (int d = 0; d < items[i].t.n_dims; d++) fprintf(text, d ? ",%lld" : "%lld", (long long)items[i].t.shape[d]);
        fprintf(text, "],\"data_offsets\":[%zu,%zu]}", n_data, end);
        n_data = end;
    }
    fprintf(text, "}");
    fflush(text);
    fprintf(text, "%*s", (int)((8 - n_header % 8) % 8) + c->odd_header, "");
    fclose(text);
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(n_header >> (8 * i));
    if (fwrite(length, 1, 8, f) != 8 || fwrite(header, 1, n_header, f) != n_header) test_die("write", path);
    for (int i = 0; i < n && !c->holes; i++) {
        size_t bytes = item_bytes(items + i);
        unsigned char *data = item_data(c, items + i, bytes);
        if (bytes && fwrite(data, 1, bytes, f) != bytes) test_die("write", path);
        free(data);
    }
    if (fclose(f) != 0) test_die("write", path);
    if (c->holes && truncate(path, (off_t)(8 + n_header + n_data)) != 0) test_die("stretch", path);
    free(header);
    free(path);
}

static void write_shards(const char *dir, const test_checkpoint *c)
{
    list l = make_list(c);
    json_t *map = json_object(), *index;
    size_t total = 0, at = 0;
    char name[64], *path;
    for (int i = 0; i < l.n; i++) total += item_bytes(l.item + i);
    for (int i = 0; i < l.n; i++) {
        if (c->shards) l.item[i].shard = (int)((double)at / ((double)total + 1) * c->shards);
        at += item_bytes(l.item + i);
    }
    qsort(l.item, (size_t)l.n, sizeof *l.item, by_alignment);
    for (int s = 0, first = 0, end; s < (c->shards ? c->shards : 1); s++, first = end) {
        for (end = first; end < l.n && l.item[end].shard == s; end++) continue;
        shard_name(name, sizeof name, s, c->shards);
        write_shard(dir, c, l.item + first, end - first, name);
        for (int i = first; i < end; i++) json_object_set_new(map, l.item[i].t.name, json_string(name));
    }
    if (c->shards) {
        index = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
        path = test_path(dir, "model.safetensors.index.json");
        if (!index || json_dump_file(index, path, JSON_INDENT(1)) != 0) test_die("write", path);
        free(path);
        json_decref(index);
    } else {
        json_decref(map);
    }
    free(l.item);
}

static json_t *digits(const char *digit, int n)
{
    json_t *a = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(a, json_integer(pattern(digit, i)));
    return a;
}

static void write_config(const char *dir, const test_checkpoint *c)
{
    char *path = test_path(dir, "config.json");
    json_t *ignored = json_pack("[s, s]", "lm_head", "model.embed_tokens"), *sparse, *text, *config;
    char gate[80];
    for (int i = 0; i < c->layers; i++) {
        snprintf(gate, sizeof gate, "language_model.model.layers.%d.block_sparse_moe.gate", i);
        if (pattern(c->moe, i)) json_array_append_new(ignored, json_string(gate));
    }
    sparse = json_pack("{s:b, s:i, s:i, s:i, s:i, s:s, s:i, s:i, s:o, s:o}", "use_sparse_attention", 1,
                       "sparse_index_dim", c->index_dim, "sparse_num_index_heads", c->kv_heads, "sparse_topk_blocks",
                       c->topk_blocks, "sparse_block_size", c->block_size, "sparse_score_type", "max",
                       "sparse_init_block", 0, "sparse_local_block", 1, "sparse_attention_freq",
                       digits(c->sparse, c->layers), "sparse_disable_index_value", digits(c->sparse, c->layers));
    text =
        json_pack("{s:[s], s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "architectures",
                  "MiniMaxM3SparseForCausalLM", "hidden_size", c->hidden, "intermediate_size", c->expert_intermediate,
                  "dense_intermediate_size", c->dense_intermediate, "shared_intermediate_size", c->shared_intermediate,
                  "num_hidden_layers", c->layers, "num_attention_heads", c->heads, "num_key_value_heads", c->kv_heads,
                  "head_dim", 128, "vocab_size", c->vocab, "max_position_embeddings", c->max_position);
    json_object_update_new(text, json_pack("{s:f, s:b, s:b, s:i, s:i, s:f, s:s, s:f, s:f, s:b, s:s, s:b}",
                                           "rms_norm_eps", 1e-6, "use_gemma_norm", 1, "attention_output_gate", 0,
                                           "rope_theta", 5000000, "rotary_dim", 64, "partial_rotary_factor", 0.5,
                                           "hidden_act", "swigluoai", "swiglu_alpha", 1.702, "swiglu_limit", 7.0,
                                           "use_qk_norm", 1, "qk_norm_type", "per_head", "tie_word_embeddings", 0));
    json_object_update_new(text, json_pack("{s:i, s:i, s:i, s:s, s:b, s:f, s:o, s:i, s:o}", "num_local_experts",
                                           c->experts, "num_experts_per_tok", c->experts_per_token, "n_shared_experts",
                                           c->shared_experts, "scoring_func", "sigmoid", "use_routing_bias", 1,
                                           "routed_scaling_factor", 2.0, "moe_layer_freq", digits(c->moe, c->layers),
                                           "num_mtp_modules", 1, "sparse_attention_config", sparse));
    config = json_pack("{s:[s], s:s, s:o, s:{s:s, s:s, s:[i, i], s:o}}", "architectures",
                       "MiniMaxM3SparseForConditionalGeneration", "model_type", "minimax_m3_vl", "text_config", text,
                       "quantization_config", "quant_method", "mxfp8", "activation_scheme", "dynamic",
                       "weight_block_size", 1, 32, "ignored_layers", ignored);
    if (!config) test_die("make", path);
    if (c->on_config) c->on_config(c->user, config);
    if (json_dump_file(config, path, JSON_INDENT(1)) != 0) test_die("write", path);
    json_decref(config);
    free(path);
}

void test_checkpoint_write(const char *dir, const test_checkpoint *c)
{
    write_config(dir, c);
    write_shards(dir, c);
}
