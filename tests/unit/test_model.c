/* model: checkpoints bound to the network, and every way a folder can differ from its config.json. */
#include <stdio.h>
#include <stdlib.h>

#include "model/model.h"
#include "support/alloc_faults.h"
#include "support/checkpoint.h"
#include "support/expect.h"
#include "support/temp_dir.h"

#define P "language_model.model.layers."

/* Write `c` into a new folder and open it; the folder is removed at once (maps outlive names). */
static mm3_status open_checkpoint(mm3_model **m, const test_checkpoint *c)
{
    char *dir = test_temp_dir();
    mm3_status st;
    test_checkpoint_write(dir, c);
    st = mm3_model_open(m, dir);
    assert_true((*m == NULL) == (st != MM3_OK));
    test_temp_dir_remove(&dir);
    return st;
}

/* As open_checkpoint, for folders whose result does not matter beyond its status. */
static mm3_status try_checkpoint(const test_checkpoint *c)
{
    mm3_model *m;
    mm3_status st = open_checkpoint(&m, c);
    mm3_model_close(&m);
    return st;
}

/* Small, with nothing in it: quick to write many times. */
static test_checkpoint hollow(void)
{
    test_checkpoint c = test_checkpoint_small;
    c.holes = true;
    return c;
}

/* Element (i, j) of a weight of k columns. */
static float at(const mm3_weight *w, int k, int i, int j)
{
    size_t n = (size_t)i * (size_t)k + (size_t)j;
    if (w->type == MM3_F32) return ((const float *)w->data)[n];
    if (w->type == MM3_BF16) return mm3_bf16_to_f32(((const uint16_t *)w->data)[n]);
    return mm3_e4m3_to_f32(((const uint8_t *)w->data)[n]) * mm3_e8m0_to_f32(w->scales[n / 32]);
}

static void expect_same(const mm3_weight *a, const mm3_weight *b, int k)
{
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++)
        for (int j = 0; j < k; j++)
            if (at(a, k, i, j) != at(b, k, i, j)) fail_msg("element %d, %d differs", i, j);
}

/* All values of two models of the same sizes are the same, whatever their types. */
static void expect_same_values(const mm3_model *a, const mm3_model *b)
{
    const mm3_config *c = &a->config;
    int h = c->hidden_size;
    expect_same(&a->embed, &b->embed, h);
    expect_same(&a->head, &b->head, h);
    assert_memory_equal(a->norm, b->norm, (size_t)h * sizeof(float));
    for (int i = 0; i < c->n_layers; i++) {
        const mm3_layer *x = a->layer + i, *y = b->layer + i;
        expect_same(&x->q, &y->q, h);
        expect_same(&x->k, &y->k, h);
        expect_same(&x->v, &y->v, h);
        expect_same(&x->o, &y->o, c->n_heads * 128);
        assert_memory_equal(x->input_norm, y->input_norm, (size_t)h * sizeof(float));
        assert_memory_equal(x->post_norm, y->post_norm, (size_t)h * sizeof(float));
        assert_memory_equal(x->q_norm, y->q_norm, 128 * sizeof(float));
        assert_memory_equal(x->k_norm, y->k_norm, 128 * sizeof(float));
        expect_same(&x->gate, &y->gate, h);
        expect_same(&x->up, &y->up, h);
        expect_same(&x->down, &y->down, x->is_moe ? c->shared_intermediate : c->dense_intermediate);
        if (x->is_sparse) {
            expect_same(&x->iq, &y->iq, h);
            expect_same(&x->ik, &y->ik, h);
            assert_memory_equal(x->iq_norm, y->iq_norm, (size_t)c->index_dim * sizeof(float));
            assert_memory_equal(x->ik_norm, y->ik_norm, (size_t)c->index_dim * sizeof(float));
        }
        if (!x->is_moe) continue;
        expect_same(&x->router, &y->router, h);
        assert_memory_equal(x->router_bias, y->router_bias, (size_t)c->n_experts * sizeof(float));
        for (int e = 0; e < c->n_experts; e++) {
            expect_same(x->expert_gate_up + 2 * e, y->expert_gate_up + 2 * e, h);
            expect_same(x->expert_gate_up + 2 * e + 1, y->expert_gate_up + 2 * e + 1, h);
            expect_same(x->expert_down + e, y->expert_down + e, c->expert_intermediate);
        }
    }
}

/* ---- checkpoints of the repository ------------------------------------------------------------------------------- */

static void tiny_m3_opens(void **state)
{
    mm3_model *m;
    (void)state;
    EXPECT_OK(mm3_model_open(&m, "models/tiny-m3"));
    assert_int_equal(m->n_tensors, 527);
    assert_int_equal(m->n_skipped + m->n_unused + m->n_unlisted, 0);
    assert_int_equal(m->weight_bytes, 16436992); /* the index's total_size */
    assert_string_equal(m->dir, "models/tiny-m3");
    assert_int_equal(m->config.hidden_size, 256);
    assert_int_equal(m->embed.type, MM3_BF16);
    assert_int_equal(m->embed.n, 4096);
    assert_int_equal(m->head.n, 4096);
    assert_int_equal(m->layer[0].q.type, MM3_MX);
    assert_int_equal(m->layer[0].q.n, 1024);
    assert_false(m->layer[1].is_moe || m->layer[1].is_sparse);
    assert_true(m->layer[2].is_moe && m->layer[2].is_sparse);
    assert_int_equal(m->layer[2].router.type, MM3_F32);
    assert_int_equal(m->layer[2].expert_gate_up[31].n, 128);
    assert_int_equal(m->layer[2].expert_down[15].n, 256);
    mm3_model_close(&m);
    assert_null(m);
    mm3_model_close(&m);
    mm3_model_close(NULL);
}

/* Names end up in their places: compare with the tensors, found by name in the same file. */
static void random_model_is_bound_by_name(void **state)
{
    static const char *const expert[] = { "w1", "w3", "w2" };
    mm3_model *m;
    const mm3_tensor *t;
    char name[200];
    uint16_t bf16;
    (void)state;
    EXPECT_OK(mm3_model_open(&m, "tests/golden/rand-m3-a"));
    assert_int_equal(m->n_tensors, 243);
    assert_int_equal(m->weight_bytes, 11075540);
    for (int e = 0; e < 7; e++) {
        const mm3_layer *y = m->layer + 4;
        const mm3_weight *w[] = { y->expert_gate_up + 2 * e, y->expert_gate_up + 2 * e + 1, y->expert_down + e };
        for (int k = 0; k < 3; k++) {
            snprintf(name, sizeof name, P "4.block_sparse_moe.experts.%d.%s.weight", e, expert[k]);
            t = mm3_shards_find(m->shards, name);
            assert_non_null(t);
            assert_ptr_equal(w[k]->data, t->data);
            snprintf(name, sizeof name, P "4.block_sparse_moe.experts.%d.%s.weight_scale_inv", e, expert[k]);
            t = mm3_shards_find(m->shards, name);
            assert_non_null(t);
            assert_ptr_equal(w[k]->scales, t->data);
        }
    }
#define SAME(member, tensor) \
    assert_ptr_equal(m->layer[3].member.data, mm3_shards_find(m->shards, P "3." tensor ".weight")->data)
    SAME(q, "self_attn.q_proj");
    SAME(k, "self_attn.k_proj");
    SAME(v, "self_attn.v_proj");
    SAME(o, "self_attn.o_proj");
    SAME(iq, "self_attn.index_q_proj");
    SAME(ik, "self_attn.index_k_proj");
    SAME(router, "block_sparse_moe.gate");
    SAME(gate, "block_sparse_moe.shared_experts.gate_proj");
    SAME(up, "block_sparse_moe.shared_experts.up_proj");
    SAME(down, "block_sparse_moe.shared_experts.down_proj");
#undef SAME
    assert_ptr_equal(m->layer[1].up.data, mm3_shards_find(m->shards, P "1.mlp.up_proj.weight")->data);
    assert_ptr_equal(m->head.data, mm3_shards_find(m->shards, "language_model.lm_head.weight")->data);
    for (int k = 0; k < 6; k++) {
        static const char *const norm[] = { "input_layernorm",  "post_attention_layernorm", "self_attn.q_norm",
                                            "self_attn.k_norm", "self_attn.index_q_norm",   "self_attn.index_k_norm" };
        const mm3_layer *y = m->layer + 2;
        const float *x[] = { y->input_norm, y->post_norm, y->q_norm, y->k_norm, y->iq_norm, y->ik_norm };
        snprintf(name, sizeof name, P "2.%s.weight", norm[k]);
        t = mm3_shards_find(m->shards, name);
        assert_non_null(t);
        for (int64_t i = 0; i < t->shape[0]; i++) {
            memcpy(&bf16, (const char *)t->data + 2 * i, 2);
            assert_true(x[k][i] == mm3_bf16_to_f32(bf16));
        }
    }
    t = mm3_shards_find(m->shards, P "2.block_sparse_moe.e_score_correction_bias");
    assert_memory_equal(m->layer[2].router_bias, t->data, 7 * sizeof(float));
    mm3_model_close(&m);
}

/* ---- the released sizes ------------------------------------------------------------------------------------------ */

/* The released listing: 45838 tensors in 31 shards, 523 of them not of the text model; its figures are known. */
static void released_listing_opens_at_once(void **state)
{
    static test_tensor vision[523];
    test_checkpoint c = test_checkpoint_released;
    mm3_model *m;
    char *dir = test_temp_dir();
    double start;
    (void)state;
    for (int i = 0; i < 523; i++) {
        snprintf(vision[i].name, sizeof vision[i].name, "vision_tower.layers.%d.weight", i);
        snprintf(vision[i].dtype, sizeof vision[i].dtype, "BF16");
        vision[i].n_dims = 1;
        vision[i].shape[0] = 1280;
    }
    c.extra = vision;
    c.n_extra = 523;
    test_checkpoint_write(dir, &c);
    start = mm3_now_s();
    EXPECT_OK(mm3_model_open(&m, dir));
    print_message("45838 tensors in 31 shards: opened in %.0f ms\n", 1e3 * (mm3_now_s() - start));
    assert_int_equal(mm3_shards_count(m->shards), 45838);
    assert_int_equal(m->n_tensors, 45315);
    assert_int_equal(m->n_skipped, 523);
    assert_true(m->weight_bytes == 442007940096u);
    assert_true(m->step_bytes > 26830000000u && m->step_bytes < 26835000000u);
    assert_int_equal(m->config.n_experts, 128);
    assert_int_equal(m->layer[59].expert_down[127].n, 6144);
    mm3_model_close(&m);
    test_temp_dir_remove(&dir);
}

/* ---- types and layouts ------------------------------------------------------------------------------------------- */

static void weights_in_any_type_have_the_same_values(void **state)
{
    test_checkpoint c = test_checkpoint_small;
    mm3_model *released, *bf16, *f32, *mixed, *odd, *sharded;
    (void)state;
    EXPECT_OK(open_checkpoint(&released, &c));
    assert_int_equal(released->layer[2].q.type, MM3_MX);
    c.as_bf16 = "proj w1 w2 w3";
    EXPECT_OK(open_checkpoint(&bf16, &c));
    assert_int_equal(bf16->layer[2].q.type, MM3_BF16);
    assert_null(bf16->layer[2].q.scales);
    expect_same_values(released, bf16);
    c.as_bf16 = NULL;
    c.as_f32 = "proj w1 w2 w3 embed lm_head norm";
    EXPECT_OK(open_checkpoint(&f32, &c));
    assert_int_equal(f32->layer[3].expert_down[4].type, MM3_F32);
    assert_int_equal(f32->embed.type, MM3_F32);
    expect_same_values(released, f32);
    c.as_f32 = "layers.1. experts.3.w1";
    c.as_bf16 = "k_proj down_proj experts.4.w1";
    EXPECT_OK(open_checkpoint(&mixed, &c));
    assert_int_equal(mixed->layer[3].expert_gate_up[6].type, MM3_F32);
    assert_int_equal(mixed->layer[3].expert_gate_up[8].type, MM3_BF16);
    expect_same_values(released, mixed);
    c = test_checkpoint_small;
    c.odd_header = true; /* BF16 and F32 data at odd addresses: copied, as C cannot read it there */
    c.as_f32 = "layers.0.";
    EXPECT_OK(open_checkpoint(&odd, &c));
    assert_int_equal((uintptr_t)odd->embed.data % 2, 0);
    assert_int_equal((uintptr_t)odd->layer[3].router.data % 4, 0);
    expect_same_values(released, odd);
    c = test_checkpoint_small;
    c.shards = 7;
    EXPECT_OK(open_checkpoint(&sharded, &c));
    expect_same_values(released, sharded);
    assert_int_equal(sharded->weight_bytes, released->weight_bytes);
    mm3_model_close(&released);
    mm3_model_close(&bf16);
    mm3_model_close(&f32);
    mm3_model_close(&mixed);
    mm3_model_close(&odd);
    mm3_model_close(&sharded);
}

static void retype_scales(void *dtype, test_tensor *t)
{
    if (strstr(t->name, "weight_scale_inv")) snprintf(t->dtype, sizeof t->dtype, "%s", (const char *)dtype);
}

static void head_and_router_may_be_mxfp8_embed_not(void **state)
{
    test_checkpoint c = test_checkpoint_small;
    mm3_model *m;
    (void)state;
    c.as_mx = "lm_head block_sparse_moe.gate";
    EXPECT_OK(open_checkpoint(&m, &c));
    assert_int_equal(m->head.type, MM3_MX);
    assert_non_null(m->head.scales);
    assert_int_equal(m->layer[2].router.type, MM3_MX);
    mm3_model_close(&m);
    c.as_mx = NULL;
    c.as_bf16 = "block_sparse_moe.gate e_score_correction_bias";
    EXPECT_OK(open_checkpoint(&m, &c));
    assert_int_equal(m->layer[2].router.type, MM3_BF16);
    mm3_model_close(&m);
    c.as_bf16 = NULL;
    c.as_mx = "embed_tokens";
    EXPECT_FAIL(try_checkpoint(&c), MM3_ERR_UNSUPPORTED, "embed_tokens.weight is F8_E4M3");
}

static void scales_are_u8_or_e8m0(void **state)
{
    static const char *const bad[] = { "F32", "F8_E4M3", "BF16", "I8" };
    test_checkpoint c = test_checkpoint_small;
    mm3_model *u8, *e8m0;
    (void)state;
    EXPECT_OK(open_checkpoint(&u8, &c));
    c.on_tensor = retype_scales;
    c.user = "F8_E8M0";
    EXPECT_OK(open_checkpoint(&e8m0, &c));
    expect_same_values(u8, e8m0);
    assert_memory_equal(u8->layer[0].q.scales, e8m0->layer[0].q.scales, 512 * 3);
    mm3_model_close(&u8);
    mm3_model_close(&e8m0);
    c = hollow();
    c.on_tensor = retype_scales;
    for (int i = 0; i < MM3_COUNT(bad); i++) {
        c.user = (void *)(uintptr_t)bad[i];
        EXPECT_FAIL(try_checkpoint(&c), MM3_ERR_FORMAT, "expected U8 or F8_E8M0");
        assert_non_null(strstr(mm3_last_error(), bad[i]));
    }
}

static void rename_scale(void *user, test_tensor *t)
{
    (void)user;
    if (strcmp(t->name, P "3.self_attn.o_proj.weight_scale_inv") == 0)
        snprintf(t->name, sizeof t->name, P "3.self_attn.o_proj.weight_scale");
}

static void no_quantization(void *user, json_t *config)
{
    (void)user;
    json_object_del(config, "quantization_config");
}

static void mxfp8_needs_its_scales_and_its_word(void **state)
{
    test_checkpoint c = hollow();
    (void)state;
    c.on_tensor = rename_scale;
    EXPECT_FAIL(try_checkpoint(&c), MM3_ERR_FORMAT,
                "o_proj.weight has no scales: " P "3.self_attn.o_proj.weight_scale_inv is missing");
    c = hollow();
    c.on_config = no_quantization;
    EXPECT_FAIL(try_checkpoint(&c), MM3_ERR_FORMAT, "config.json has no \"quantization_config\"");
    c.as_bf16 = "proj w1 w2 w3";
    EXPECT_OK(try_checkpoint(&c));
    c = hollow();
    c.hidden = 100; /* columns of q_proj: no whole number of blocks */
    EXPECT_FAIL(try_checkpoint(&c), MM3_ERR_FORMAT, "q_proj.weight is MXFP8 with 100 columns");
    c.as_bf16 = "proj w1 w2 w3"; /* then any width is right */
    EXPECT_OK(try_checkpoint(&c));
}

/* ---- every tensor, missing or wrong ------------------------------------------------------------------------------ */

typedef struct damage {
    int nth;        /* which tensor, in order of the listing */
    int kind;       /* 0: dropped, 1: a row more, 2: a dimension more, 3: another dtype, 4: a column more */
    int seen;       /* counted by the hook */
    char name[200]; /* whose it was */
} damage;

static void damage_nth(void *user, test_tensor *t)
{
    damage *d = user;
    if (d->seen++ != d->nth) return;
    snprintf(d->name, sizeof d->name, "%s", t->name);
    if (d->kind == 0) t->drop = true;
    if (d->kind == 1) t->shape[0]++;
    if (d->kind == 2) t->shape[t->n_dims++] = 1;
    if (d->kind == 4) t->shape[t->n_dims - 1]++;
    if (d->kind == 3) snprintf(t->dtype, sizeof t->dtype, "I16");
}

static void every_tensor_is_needed_and_checked(void **state)
{
    test_checkpoint c = hollow();
    damage d = { 0 };
    int n_failed = 0;
    (void)state;
    c.on_tensor = damage_nth;
    c.user = &d;
    for (d.kind = 0; d.kind < 5; d.kind++) {
        for (d.nth = 0; d.nth < 151; d.nth++) {
            mm3_status st;
            d.seen = 0;
            st = try_checkpoint(&c);
            assert_int_equal(d.seen, 151);
            if (st != MM3_ERR_FORMAT && st != MM3_ERR_UNSUPPORTED) fail_msg("kind %d of %s: opened", d.kind, d.name);
            if (!strstr(mm3_last_error(), d.name)) fail_msg("kind %d of %s: %s", d.kind, d.name, mm3_last_error());
            n_failed++;
        }
    }
    assert_int_equal(n_failed, 5 * 151);
}

static void unlist(const char *dir, const char *tensor)
{
    char *path = test_path(dir, "model.safetensors.index.json");
    json_t *index = json_load_file(path, 0, NULL);
    assert_int_equal(json_object_del(json_object_get(index, "weight_map"), tensor), 0);
    assert_int_equal(json_dump_file(index, path, 0), 0);
    json_decref(index);
    free(path);
}

static void a_needed_tensor_must_be_listed(void **state)
{
    test_checkpoint c = hollow();
    test_tensor stray = { .name = "language_model.model.layers.0.self_attn.q_proj.bias", .dtype = "F32", .n_dims = 1 };
    char *dir = test_temp_dir();
    mm3_model *m;
    (void)state;
    stray.shape[0] = 512;
    c.shards = 2;
    c.extra = &stray;
    c.n_extra = 1;
    test_checkpoint_write(dir, &c);
    EXPECT_FAIL(mm3_model_open(&m, dir), MM3_ERR_UNSUPPORTED, "q_proj.bias has no place");
    unlist(dir, stray.name);
    EXPECT_OK(mm3_model_open(&m, dir));
    assert_int_equal(m->n_unlisted, 1);
    mm3_model_close(&m);
    unlist(dir, P "2.self_attn.index_k_norm.weight");
    EXPECT_FAIL(mm3_model_open(&m, dir), MM3_ERR_FORMAT, "index_k_norm.weight is in ");
    assert_non_null(strstr(mm3_last_error(), "the index does not list it"));
    test_temp_dir_remove(&dir);
}

/* ---- extras ------------------------------------------------------------------------------------------------------ */

static mm3_status with_extra(const test_checkpoint *base, const char *name, mm3_model **m)
{
    test_checkpoint c = *base;
    test_tensor extra = { .dtype = "F32", .n_dims = 2, .shape = { 2, 3 } };
    snprintf(extra.name, sizeof extra.name, "%s", name);
    c.extra = &extra;
    c.n_extra = 1;
    return open_checkpoint(m, &c);
}

static void extras_are_skipped_counted_or_refused(void **state)
{
    static const char *const skipped[] = { "vision_tower.x.weight", "multi_modal_projector.linear_1.weight",
                                           "patch_merge_mlp.0.bias", "language_model.model.mtp.layers.0.enorm.weight",
                                           "model.mtp.layers.0.hnorm.weight" };
    static const char *const unused[] = { "some.other.tensor", P "0.self_attn.rotary_emb.inv_freq" };
    static const char *const refused[][2] = {
        { P "4.self_attn.q_proj.weight", "is of layer 4, but config.json has 4 layers" },
        { P "400.input_layernorm.weight", "is of layer 400" },
        { P "2.block_sparse_moe.experts.5.w1.weight", "is of expert 5, but config.json has 5 experts" },
        { P "0.self_attn.q_proj.bias", "has no place in the network" },
        { P "0.self_attn.index_q_proj.weight", "has no place in the network" },
        { P "2.mlp.gate_proj.weight", "has no place in the network" },
        { P "0.block_sparse_moe.experts.0.w1.weight", "has no place in the network" },
        { P "2.self_attn.index_v_proj.weight", "has no place in the network" },
        { P "2.block_sparse_moe.gate.weight_scale_inv", "scales no MXFP8 weight" },
        { "language_model.lm_head.bias", "has no place in the network" },
        { P "99999999999999999999.x", "x" },
        { P "-1.x", "has no place in the network" },
    };
    test_checkpoint c = hollow();
    mm3_model *m;
    (void)state;
    for (int i = 0; i < MM3_COUNT(skipped); i++) {
        EXPECT_OK(with_extra(&c, skipped[i], &m));
        assert_int_equal(m->n_skipped, 1);
        assert_int_equal(m->n_unused, 0);
        assert_int_equal(m->n_tensors, 151);
        mm3_model_close(&m);
    }
    for (int i = 0; i < MM3_COUNT(unused); i++) {
        EXPECT_OK(with_extra(&c, unused[i], &m));
        assert_int_equal(m->n_skipped, 0);
        assert_int_equal(m->n_unused, 1);
        mm3_model_close(&m);
    }
    for (int i = 0; i < MM3_COUNT(refused); i++) {
        mm3_status st = with_extra(&c, refused[i][0], &m);
        if (st == MM3_OK || !strstr(mm3_last_error(), refused[i][1]) || !strstr(mm3_last_error(), refused[i][0]))
            fail_msg("%s: %s", refused[i][0], st ? mm3_last_error() : "opened");
    }
    c.shared_experts = 0;
    EXPECT_OK(with_extra(&c, "vision_tower.x", &m));
    assert_null(m->layer[2].gate.data);
    assert_int_equal(m->layer[2].gate.n, 0);
    mm3_model_close(&m);
    EXPECT_FAIL(with_extra(&c, P "2.block_sparse_moe.shared_experts.up_proj.weight", &m), MM3_ERR_UNSUPPORTED,
                "has no place in the network");
}

static void drop_prefix(void *user, test_tensor *t)
{
    size_t n = strlen("language_model.");
    (void)user;
    if (strncmp(t->name, "language_model.", n) == 0) memmove(t->name, t->name + n, strlen(t->name) - n + 1);
}

static void text_only_names(void **state)
{
    test_checkpoint c = test_checkpoint_small;
    mm3_model *a, *b;
    (void)state;
    EXPECT_OK(open_checkpoint(&a, &c));
    c.on_tensor = drop_prefix;
    EXPECT_OK(open_checkpoint(&b, &c));
    expect_same_values(a, b);
    mm3_model_close(&a);
    mm3_model_close(&b);
    c.holes = true;
    EXPECT_FAIL(with_extra(&c, "lm_head.bias", &b), MM3_ERR_UNSUPPORTED, "lm_head.bias has no place");
    EXPECT_FAIL(with_extra(&c, "model.layers.4.x", &b), MM3_ERR_FORMAT, "is of layer 4");
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

static void patterns_and_counts(void **state)
{
    test_checkpoint c = hollow();
    mm3_model *m;
    size_t mx = 33, expert = (2 * 64 * 3 + 96 * 2) * mx,
           step; /* one block of 32 codes and its scale; blocks of w1, w3, w2 */
    (void)state;
    c.moe = "1010";
    c.sparse = "0110";
    EXPECT_OK(open_checkpoint(&m, &c));
    for (int i = 0; i < 4; i++) {
        assert_int_equal(m->layer[i].is_moe, c.moe[i] == '1');
        assert_int_equal(m->layer[i].is_sparse, c.sparse[i] == '1');
        assert_int_equal(m->layer[i].iq.n, c.sparse[i] == '1' ? 2 * 64 : 0);
        assert_int_equal(m->layer[i].router.n, c.moe[i] == '1' ? 5 : 0);
        assert_int_equal(m->layer[i].gate.n, c.moe[i] == '1' ? 32 : 160);
        assert_true((m->layer[i].expert_down != NULL) == (c.moe[i] == '1'));
        assert_true((m->layer[i].iq_norm != NULL) == (c.sparse[i] == '1'));
    }
    /* 2 of 5 experts in 2 layers, one row of 77 of the embedding */
    step = m->weight_bytes - 2 * 3 * expert - 76 * 96 * 2;
    assert_int_equal(m->step_bytes, step);
    mm3_model_close(&m);
    c.moe = c.sparse = "0000";
    EXPECT_OK(open_checkpoint(&m, &c));
    assert_int_equal(m->step_bytes, m->weight_bytes - 76 * 96 * 2);
    mm3_model_close(&m);
}

static void folders_that_are_none(void **state)
{
    char *dir = test_temp_dir();
    mm3_model *m;
    (void)state;
    EXPECT_FAIL(mm3_model_open(&m, "no/such/folder"), MM3_ERR_IO, "no/such/folder/config.json");
    assert_null(m);
    EXPECT_FAIL(mm3_model_open(&m, dir), MM3_ERR_IO, "config.json");
    test_write_text(dir, "config.json", "");
    EXPECT_FAIL(mm3_model_open(&m, dir), MM3_ERR_FORMAT, "config.json");
    test_temp_dir_remove(&dir);
}

static void lack_of_memory_is_reported(void **state)
{
    mm3_model *m;
    long n;
    (void)state;
    alloc_fail_at(0);
    EXPECT_OK(mm3_model_open(&m, "models/tiny-m3"));
    mm3_model_close(&m);
    n = alloc_count();
    assert_true(n > 10);
    for (long k = 1; k <= n; k++) {
        mm3_status st;
        alloc_fail_at(k);
        st = mm3_model_open(&m, "models/tiny-m3");
        alloc_fail_at(0);
        if (st != MM3_ERR_NOMEM) fail_msg("allocation %ld of %ld: %s", k, n, mm3_status_name(st));
        assert_null(m);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_m3_opens),
        cmocka_unit_test(random_model_is_bound_by_name),
        cmocka_unit_test(released_listing_opens_at_once),
        cmocka_unit_test(weights_in_any_type_have_the_same_values),
        cmocka_unit_test(head_and_router_may_be_mxfp8_embed_not),
        cmocka_unit_test(scales_are_u8_or_e8m0),
        cmocka_unit_test(mxfp8_needs_its_scales_and_its_word),
        cmocka_unit_test(every_tensor_is_needed_and_checked),
        cmocka_unit_test(a_needed_tensor_must_be_listed),
        cmocka_unit_test(extras_are_skipped_counted_or_refused),
        cmocka_unit_test(text_only_names),
        cmocka_unit_test(patterns_and_counts),
        cmocka_unit_test(folders_that_are_none),
        cmocka_unit_test(lack_of_memory_is_reported),
    };
    return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
