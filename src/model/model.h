/* model: the checkpoint. config.json, safetensors shards, weight names: ends in one struct of tensor views.
 * Knows files and shapes; computes nothing. Read next: forward/forward.h. */
#ifndef MM3_MODEL_H
#define MM3_MODEL_H

#include "base/base.h"
#include "ops/ops.h"

/* What config.json says, checked. Field names are the file's where they are clear. source: config.json, text_config */
typedef struct mm3_config {
    int hidden_size, n_layers, vocab_size, max_position;
    int n_heads, n_kv_heads; /* head_dim is MM3_HEAD_DIM, rotary_dim MM3_ROTARY_DIM */
    int dense_intermediate, expert_intermediate, shared_intermediate;
    int n_experts, experts_per_token, n_shared_experts; /* n_shared_experts is 0 or 1 */
    int n_index_heads, index_dim, block_size, topk_blocks;
    double rms_norm_eps, rope_theta, routed_scaling_factor;
    double swiglu_alpha, swiglu_limit, swiglu_beta;
    bool is_mxfp8;                  /* quantization_config is there; without it every weight is BF16 or F32 */
    unsigned char *layer_is_moe;    /* [n_layers] owned by the model's arena */
    unsigned char *layer_is_sparse; /* [n_layers] */
    int n_stop_ids;                 /* eos_token_id of config.json, if any */
    int32_t stop_ids[8];
} mm3_config;

/* Check and read config.json's text. Unknown keys are ignored; every key the network depends on is checked.
 *   what  named in errors
 * errors  MM3_ERR_FORMAT, MM3_ERR_UNSUPPORTED name the key, its value and what would be accepted */
MM3_MUST_USE mm3_status mm3_config_parse(mm3_config *out, mm3_arena *arena, const char *text, size_t n_bytes,
                                         const char *what);

/* ---- safetensors (safetensors.c, shards.c) ----------------------------------------------------------------------- */

/* Element types of safetensors files. */
typedef enum mm3_st_dtype {
    MM3_ST_BOOL,
    MM3_ST_U8,
    MM3_ST_I8,
    MM3_ST_F8_E4M3,
    MM3_ST_F8_E5M2,
    MM3_ST_F8_E8M0,
    MM3_ST_I16,
    MM3_ST_U16,
    MM3_ST_F16,
    MM3_ST_BF16,
    MM3_ST_I32,
    MM3_ST_U32,
    MM3_ST_F32,
    MM3_ST_I64,
    MM3_ST_U64,
    MM3_ST_F64
} mm3_st_dtype;
const char *mm3_st_dtype_name(mm3_st_dtype t); /* the file's word: "F8_E4M3" */

/* One tensor of a shard; views into the map. */
typedef struct mm3_tensor {
    const char *name;
    const char *file; /* path of its shard, for errors */
    mm3_st_dtype dtype;
    int n_dims;
    int64_t shape[8];
    const void *data;
    size_t n_bytes;
} mm3_tensor;

/* All tensors of a checkpoint folder: by model.safetensors.index.json, or model.safetensors alone. With an index only
 * the files and tensors that it lists count; other files in the folder are not opened. */
typedef struct mm3_shards mm3_shards;
/* Maps the files and checks every header whole: nothing is read of the data.
 * errors  MM3_ERR_IO, MM3_ERR_FORMAT name the file and the tensor */
MM3_MUST_USE mm3_status mm3_shards_open(mm3_shards **out, const char *dir);
void mm3_shards_close(mm3_shards **shards);
/* NULL if there is none of that name. */
const mm3_tensor *mm3_shards_find(const mm3_shards *shards, const char *name);
int mm3_shards_count(const mm3_shards *shards);
/* Tensors lie in one array: at(i) is at(0) + i. */
const mm3_tensor *mm3_shards_at(const mm3_shards *shards, int i);
/* Tensors that a shard holds and the index does not list (there): out of reach of find, counted for messages. */
int mm3_shards_count_unlisted(const mm3_shards *shards);
const mm3_tensor *mm3_shards_find_unlisted(const mm3_shards *shards, const char *name);
/* Files *.safetensors of the folder that the index does not name: not opened, counted for a note. *first: the first of
 * them by name, NULL if none; lives as long as the shards. */
int mm3_shards_count_strays(const mm3_shards *shards, const char **first);
/* Check one file's header and list its tensors (also used to read golden files). `tensors` lives in the arena, views
 * into `data`.
 * errors  MM3_ERR_FORMAT names the file and the tensor; MM3_ERR_NOMEM
 * source  the safetensors format (README of its repository); proof  tests/unit/test_safetensors.c */
MM3_MUST_USE mm3_status mm3_safetensors_parse(mm3_tensor **tensors, int *n, mm3_arena *arena, const unsigned char *data,
                                              size_t n_bytes, const char *path);

/* ---- the model (model.c) ----------------------------------------------------------------------------------------- */

/* One decoder layer. Weights are views into the maps; norms are FP32 copies in the arena. Shapes: docs/numerics.md
 * and the check in model.c. Members that a layer does not have are zero. */
typedef struct mm3_layer {
    bool is_moe, is_sparse;
    const float *input_norm, *post_norm; /* [hidden] */
    const float *q_norm, *k_norm;        /* [128] */
    const float *iq_norm, *ik_norm;      /* [index_dim], sparse layers */
    mm3_weight q, k, v, o;
    mm3_weight iq, ik;                /* sparse layers */
    mm3_weight gate, up, down;        /* dense MLP, or the shared expert of a MoE layer (absent: n = 0) */
    mm3_weight router;                /* [n_experts, hidden], MoE layers */
    const float *router_bias;         /* [n_experts] */
    const mm3_weight *expert_gate_up; /* [n_experts, 2]: w1, w3 */
    const mm3_weight *expert_down;    /* [n_experts]: w2 */
} mm3_layer;

/* An opened checkpoint; read-only. */
typedef struct mm3_model {
    mm3_config config;
    mm3_layer *layer;         /* [n_layers] */
    mm3_weight embed, head;   /* [vocab, hidden] */
    const float *norm;        /* [hidden] */
    size_t weight_bytes;      /* of all text tensors */
    size_t step_bytes;        /* weights read by one token: what a decode step of batch 1 must move */
    int n_tensors, n_skipped; /* text tensors used; vision, MTP and other known extras passed over by name */
    int n_unused;             /* others that no part reads: outside the text model's names, or rotary tables */
    int n_unlisted;           /* tensors in the shards that the index does not list */
    int n_strays;             /* model files of the folder that the index does not name */
    const char *stray;        /* the first of these by name, or NULL */
    mm3_shards *shards;       /* owned; NULL where weights are synthetic */
    unsigned char *memory;    /* owned: synthetic weights; NULL in an outline */
    mm3_arena arena;          /* owned */
    char *dir;                /* owned */
} mm3_model;

/* Open a checkpoint folder: config, shards, every tensor checked against the config (dtype, shape, scale). A BF16 or
 * F32 weight is accepted wherever an MXFP8 one may stand. A tensor with a text model's name that the network does not
 * read (a bias, a layer too many) is an error: the result would be another model's. To leave one out, take it out of
 * the index.
 * errors  as mm3_config_parse and mm3_shards_open; MM3_ERR_FORMAT a tensor missing or of the wrong shape or dtype */
MM3_MUST_USE mm3_status mm3_model_open(mm3_model **out, const char *dir);
/* NULL-safe; sets *model to NULL. */
void mm3_model_close(mm3_model **model);

/* ---- a model of random numbers, for benchmarks (synthetic.c) ----------------------------------------------------- */

/* Sizes of the released model, in part cut down. Of the layers the first `dense` have full attention and a dense MLP,
 * the others sparse attention and experts. */
typedef struct mm3_synthetic {
    int layers;         /* 0: 2 */
    int dense;          /* 0: one in twenty, at least one: of M3's 60 layers 3 are dense */
    int experts, vocab; /* 0: as in M3; mm3_synthetic_fit chooses less where memory asks for it */
    int hidden, heads, kv_heads, intermediate, expert_intermediate, experts_per_token;
    bool zipf; /* expert of rank r is chosen in proportion to 1 / r; else all alike */
    uint64_t seed;
} mm3_synthetic;

/* "m3,layers=3,experts=16,vocab=8192,routing=zipf,seed=7"; further names: dense, hidden, heads, kv_heads,
 * intermediate, expert_intermediate, top_k. What is not named is as in MiniMax-M3.
 * errors  MM3_ERR_ARG names the word */
MM3_MUST_USE mm3_status mm3_synthetic_parse(mm3_synthetic *out, const char *text);
/* Bytes of weights. */
size_t mm3_synthetic_bytes(const mm3_synthetic *spec);
/* Choose what is 0: M3's size where that stays within n_bytes. Else first the vocabulary shrinks, to the part of M3's
 * that `layers` are of its layers, so that the head keeps its share of a step; then the experts are halved. */
void mm3_synthetic_fit(mm3_synthetic *spec, size_t n_bytes);
/* Make the model: takes about a second for 4 GB. Weights have the exponents of trained ones (products of about the
 * size of their input), norms are near 0. The router is the real one: its weights read channels that hold only the
 * embedding, so that random tokens are routed by the distribution that `zipf` says.
 * errors  MM3_ERR_ARG sizes that do not go together; MM3_ERR_NOMEM more bytes than are available: names both */
MM3_MUST_USE mm3_status mm3_model_synthesize(mm3_model **out, const mm3_synthetic *spec);
/* The same model without its data: configuration, and weights by their sizes and types alone; norms are NULL. For who
 * asks about stages and computes nothing.
 * errors  MM3_ERR_ARG sizes that do not go together; MM3_ERR_NOMEM */
MM3_MUST_USE mm3_status mm3_model_outline(mm3_model **out, const mm3_synthetic *spec);

/* generation_config.json of a folder; defaults of M3 (temperature 1, top_p 0.95, top_k 40) where the file or a
 * key is absent, or the folder is NULL. */
typedef struct mm3_generation_config {
    bool found;
    double temperature, top_p, min_p, repetition_penalty; /* temperature 0 where do_sample is false */
    int top_k;
    int n_stop_ids;
    int32_t stop_ids[8];
} mm3_generation_config;
MM3_MUST_USE mm3_status mm3_generation_config_load(mm3_generation_config *out, const char *dir);
/* The file's text alone. After an error `out` holds M3's defaults.
 *   what  named in errors
 * errors  MM3_ERR_FORMAT, MM3_ERR_UNSUPPORTED name the key, its value and what would be accepted */
MM3_MUST_USE mm3_status mm3_generation_config_parse(mm3_generation_config *out, const char *text, size_t n_bytes,
                                                    const char *what);

#endif
