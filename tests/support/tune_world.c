#include <string.h>

#include "support/expect.h"
#include "support/planted.h"
#include "support/tune_world.h"

static unsigned seed = 1;
static float random_value(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / 8388608.0f - 1.0f;
}

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = random_value();
}

world *world_open(int n_threads)
{
    world *w = mm3_alloc_aligned(sizeof *w);
    assert_non_null(w);
    assert_int_equal(mm3_device_open(&w->device, n_threads), MM3_OK);
    seed = 1;
    fill(w->x, M * K), fill(w->delta, M * K), fill(w->w, K), fill(w->y, M * K), fill(w->out, M * N);
    fill(w->gate_up, M * 2 * N), fill(w->act, M * N);
    fill(w->qkv, M * LD), fill(w->q_norm, MM3_HEAD_DIM), fill(w->cos, M * 32), fill(w->sin, M * 32);
    fill((float *)(void *)w->pool, sizeof w->pool / 4);
    for (int i = 0; i < M * K; i += 32) w->scales[i / 32] = mm3_mx_quantize_block(w->y + i, w->codes + i);
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < N * K; i += 32) {
            float block[32];
            fill(block, 32);
            w->weight_scales[l][i / 32] = mm3_mx_quantize_block(block, w->weight[l] + i);
        }
    for (int i = 0; i < M; i++) w->slot[i] = i == 2 ? -1 : i, w->position[i] = 5 + i;
    for (int i = 0; i < SLOTS; i++) w->table[i] = SLOTS - 1 - i;
    return w;
}

void world_close(world **w)
{
    mm3_device_close(&(*w)->device);
    mm3_free(*w);
    *w = NULL;
}

mm3_linear world_linear(world *w, int layer, int m)
{
    mm3_linear op = {
        .m = m, .n = N, .k = K, .n_segments = 1, .x_codes = w->codes, .x_scales = w->scales, .out = w->out
    };
    op.segment[0] = (mm3_weight){ w->weight[layer], w->weight_scales[layer], N, MM3_MX };
    return op;
}

static mm3_kv kv_of(world *w)
{
    size_t tile = MM3_PAGE_TOKENS * MM3_HEAD_DIM * 4;
    return (mm3_kv){ .pool = w->pool,
                     .page_bytes = 2 * KV_HEADS * tile,
                     .v_at = KV_HEADS * tile,
                     .table = w->table,
                     .n_pages = SLOTS,
                     .n_slots = SLOTS,
                     .max_pages = 1,
                     .n_kv = KV_HEADS,
                     .type = MM3_F32 };
}

void issue_linears(world *w, mm3_recorder *r, int m)
{
    for (int l = 0; l < LAYERS; l++) {
        mm3_linear op = world_linear(w, l, m);
        assert_int_equal(mm3_issue(r, MM3_OP_LINEAR, &op), MM3_OK);
    }
}

void issue_chains(world *w, mm3_recorder *r)
{
    mm3_swiglu_quantize op = { .m = M,
                               .n = N,
                               .alpha = 1.7f,
                               .limit = 7,
                               .beta = 1,
                               .gate_up = w->gate_up,
                               .y = w->act,
                               .codes = w->act_codes,
                               .scales = w->act_scales };
    for (int l = 0; l < LAYERS; l++) assert_int_equal(mm3_issue(r, MM3_OP_SWIGLU_QUANTIZE, &op), MM3_OK);
}

void issue_norms(world *w, mm3_recorder *r)
{
    mm3_add_rmsnorm op = { .m = M, .k = K, .eps = 1e-6f, .x = w->x, .delta = w->delta, .w = w->w, .y = w->y };
    for (int l = 0; l < LAYERS; l++) assert_int_equal(mm3_issue(r, MM3_OP_ADD_RMSNORM, &op), MM3_OK);
}

void issue_ropes(world *w, mm3_recorder *r)
{
    mm3_qk_norm_rope op = { .m = M,
                            .ld = LD,
                            .n_q = HEADS,
                            .eps = 1e-6f,
                            .qkv = w->qkv,
                            .q_norm = w->q_norm,
                            .k_norm = w->q_norm,
                            .cos = w->cos,
                            .sin = w->sin,
                            .slot = w->slot,
                            .position = w->position,
                            .q = w->q,
                            .kv = kv_of(w) };
    for (int l = 0; l < LAYERS; l++) assert_int_equal(mm3_issue(r, MM3_OP_QK_NORM_ROPE, &op), MM3_OK);
}

void issue_linears_of_m(world *w, mm3_recorder *r) { issue_linears(w, r, M); }

void issue_two_sizes(world *w, mm3_recorder *r)
{
    issue_linears(w, r, M);
    issue_linears(w, r, 1);
}

/* ---- tuning ------------------------------------------------------------------------------------------------------ */

mm3_tune_options tune_options(const char *dir)
{
    mm3_tune_options o = MM3_TUNE_OPTIONS_INIT;
    o.cache_dir = dir;
    o.kernels_of = planted_kernels_of;
    o.now = planted_processor_time;
    o.stage_s = 10;
    o.workload = "a test";
    return o;
}

void tune_again(world *w, mm3_tuner *t, issue_fn *issue, int n_lists)
{
    mm3_recorder *r = NULL;
    const mm3_stage *stages;
    int n;
    assert_int_equal(mm3_collect_open(&r), MM3_OK);
    issue(w, r);
    stages = mm3_collect_stages(r, &n);
    mm3_tuner_share(t, n_lists);
    assert_int_equal(mm3_tuner_stages(t, stages, n, 0), MM3_OK);
    mm3_collect_close(&r);
}

mm3_tuner *tune_in_share(world *w, const mm3_tune_options *o, issue_fn *issue, int n_lists)
{
    mm3_tuner *t = NULL;
    assert_int_equal(mm3_tuner_open(&t, w->device, o), MM3_OK);
    tune_again(w, t, issue, n_lists);
    return t;
}

mm3_tuner *tune(world *w, const mm3_tune_options *o, issue_fn *issue) { return tune_in_share(w, o, issue, 1); }

const mm3_decision *tune_decision(const mm3_tuner *t, const char *key)
{
    const mm3_decision *d = mm3_plan_find(mm3_tuner_binding(t).plan, key);
    if (!d) fail_msg("no decision for %s", key);
    return d;
}

const mm3_tried *tune_tried(const mm3_decision *d, const char *choice)
{
    for (int i = 0; i < d->n_tried; i++)
        if (strcmp(d->tried[i].choice, choice) == 0) return &d->tried[i];
    fail_msg("nothing is said of %s", choice);
    return NULL;
}

char *tune_cache_file(world *w, const char *dir)
{
    mm3_plan_head head;
    mm3_plan_head_of_device(&head, mm3_device_info_of(w->device), MM3_TUNE_POLICY, "a test");
    return mm3_plan_cache_path(dir, &head);
}
