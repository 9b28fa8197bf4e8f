/* Step buffers and the layout of KV pages. One allocation holds all buffers: sizes first, then addresses. */
#include <math.h>
#include <string.h>

#include "forward/state.h"

int mm3__qkv_width(const mm3_config *c, bool is_sparse)
{
    int n = (c->n_heads + 2 * c->n_kv_heads) * MM3_HEAD_DIM;
    return is_sparse ? n + (c->n_index_heads + 1) * c->index_dim : n;
}

static size_t kv_element(mm3_dtype t) { return t == MM3_BF16 ? 2 : 4; }

/* Bytes of a layer's part of a page, and where its arrays start within the part. */
static size_t layer_page(const mm3_config *c, int i_layer, mm3_dtype t, size_t *v_at, size_t *ik_at)
{
    size_t kv = (size_t)c->n_kv_heads * MM3_PAGE_TOKENS * MM3_HEAD_DIM * kv_element(t);
    size_t ik = c->layer_is_sparse[i_layer] ? (size_t)MM3_PAGE_TOKENS * (size_t)c->index_dim * kv_element(t) : 0;
    *v_at = kv;
    *ik_at = 2 * kv;
    return 2 * kv + ik;
}

size_t mm3_page_bytes(const mm3_config *config, mm3_dtype kv_type)
{
    size_t n = 0, v_at, ik_at;
    for (int i = 0; i < config->n_layers; i++) n += layer_page(config, i, kv_type, &v_at, &ik_at);
    return n;
}

static void lay_out_pages(mm3_forward *f)
{
    const mm3_config *c = &f->model->config;
    size_t at = 0;
    for (int i = 0; i < c->n_layers; i++) {
        size_t v_at, ik_at, n = layer_page(c, i, f->options.kv_type, &v_at, &ik_at);
        f->kv[i] = (mm3_kv){ .pool = f->kv_pool,
                             .page_bytes = f->page_bytes,
                             .k_at = at,
                             .v_at = at + v_at,
                             .ik_at = at + ik_at,
                             .table = f->step.table,
                             .n_pages = f->options.n_pages,
                             .n_slots = f->options.n_slots,
                             .max_pages = f->options.max_pages,
                             .n_kv = c->n_kv_heads,
                             .d_index = c->layer_is_sparse[i] ? c->index_dim : 0,
                             .type = f->options.kv_type };
        at += n;
    }
}

/* Sizes and addresses come from one pass each over the same list, so that they can't disagree. */
typedef struct carver {
    unsigned char *base; /* NULL while sizes are counted */
    size_t at;
} carver;

static void *carve(carver *c, size_t n, size_t element)
{
    void *p = c->base ? c->base + c->at : NULL;
    size_t bytes = mm3_mul(n, element);
    c->at = bytes == SIZE_MAX || c->at > SIZE_MAX / 4 ? SIZE_MAX / 2 : c->at + ((bytes + 63) & ~(size_t)63);
    return p;
}

static mm3_mx_rows carve_mx(carver *c, const mm3_forward *f, size_t rows, size_t k)
{
    mm3_mx_rows r = { NULL, NULL };
    if (f->options.numerics != MM3_NUMERICS_W8A8 || k % MM3_MX_BLOCK != 0) return r;
    r.codes = carve(c, mm3_mul(rows, k), 1);
    r.scales = carve(c, mm3_mul(rows, k / MM3_MX_BLOCK), 1);
    return r;
}

static void carve_all(mm3_forward *f, carver *c)
{
    const mm3_config *g = &f->model->config;
    const mm3_forward_options *o = &f->options;
    mm3_step_block *s = &f->step;
    size_t m = (size_t)o->max_rows, l = (size_t)o->max_logits, h = (size_t)g->hidden_size, half = MM3_ROTARY_DIM / 2;
    size_t heads = (size_t)g->n_heads * MM3_HEAD_DIM, topk = (size_t)g->experts_per_token, p = mm3_mul(m, topk);
    size_t wide = (size_t)MM3_MAX(g->dense_intermediate, g->shared_intermediate),
           inter = (size_t)g->expert_intermediate;
    bool any_sparse = memchr(g->layer_is_sparse, 1, (size_t)g->n_layers) != NULL;

    s->token = carve(c, m, 4);
    s->slot = carve(c, m, 4);
    s->position = carve(c, m, 4);
    s->logit_row = carve(c, l, 4);
    s->logit_slot = carve(c, l, 4);
    s->logit_position = carve(c, l, 4);
    s->table = carve(c, mm3_mul((size_t)o->n_slots, (size_t)o->max_pages), 4);
    s->sample = carve(c, l, sizeof *s->sample);
    s->logits = carve(c, mm3_mul(l, (size_t)g->vocab_size), 4);
    s->next = carve(c, l, 4);
    s->logprob = carve(c, l, 4);

    f->inv_freq = carve(c, half, 4);
    f->cos = carve(c, m * half, 4);
    f->sin = carve(c, m * half, 4);
    f->x = carve(c, mm3_mul(m, h), 4);
    f->y = carve(c, mm3_mul(m, h), 4);
    f->delta = carve(c, mm3_mul(m, h), 4);
    f->y_mx = carve_mx(c, f, m, h);
    f->qkv = carve(c, mm3_mul(m, (size_t)mm3__qkv_width(g, any_sparse)), 4);
    f->q = carve(c, mm3_mul(m, heads), 4);
    f->iq = carve(c, mm3_mul(m, (size_t)g->n_index_heads * (size_t)g->index_dim), 4);
    f->selected = carve(c, mm3_mul(m, (size_t)g->n_kv_heads * (size_t)g->topk_blocks), 4);
    f->attention = carve(c, mm3_mul(m, heads), 4);
    f->attention_mx = carve_mx(c, f, m, heads);
    f->gate_up = carve(c, mm3_mul(m, 2 * wide), 4);
    f->act = carve(c, mm3_mul(m, wide), 4);
    f->act_mx = carve_mx(c, f, m, (wide + 31) & ~(size_t)31);
    f->router_logits = carve(c, mm3_mul(m, (size_t)g->n_experts), 4);
    f->expert_weight = carve(c, p, 4);
    f->expert = carve(c, p, 4);
    f->pair = carve(c, p, 4);
    f->begin = carve(c, (size_t)g->n_experts + 1, 4);
    f->pair_gate_up = carve(c, mm3_mul(p, 2 * inter), 4);
    f->pair_act = carve(c, mm3_mul(p, inter), 4);
    f->pair_act_mx = carve_mx(c, f, p, (inter + 31) & ~(size_t)31);
    f->pair_out = carve(c, mm3_mul(p, h), 4);
    f->shared = carve(c, mm3_mul(m, h), 4);
    f->final = carve(c, mm3_mul(l, h), 4);
    f->final_mx = carve_mx(c, f, l, h);
}

/* 1 / theta^(2j/64), each step rounded to FP32 as the reference implementation does (docs/numerics.md). */
static void fill_inv_freq(mm3_forward *f)
{
    for (int j = 0; j < MM3_ROTARY_DIM / 2; j++) {
        float power = (float)pow(f->model->config.rope_theta, (double)((float)(2 * j) / (float)MM3_ROTARY_DIM));
        f->inv_freq[j] = 1.0f / power;
    }
}

mm3_status mm3_forward_open(mm3_forward **out, const mm3_model *model, const mm3_forward_options *options)
{
    mm3_status st = MM3_OK;
    carver count = { NULL, 0 }, place = { NULL, 0 };
    size_t kv_bytes;
    mm3_forward *f = mm3_calloc(1, sizeof *f);
    *out = NULL;
    if (!f) return mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for the network");
    f->model = model;
    f->options = *options;
    f->n_token = model->config.vocab_size;
    f->page_bytes = mm3_page_bytes(&model->config, options->kv_type);
    carve_all(f, &count);
    kv_bytes = mm3_mul(f->page_bytes, (size_t)options->n_pages);
    f->n_memory = count.at;
    f->kv = mm3_calloc((size_t)model->config.n_layers, sizeof *f->kv);
    f->memory = mm3_alloc_aligned(f->n_memory);
    /* calloc: pages that no sequence uses yet cost nothing */
    f->kv_memory = kv_bytes < SIZE_MAX - 64 ? mm3_calloc(kv_bytes + 64, 1) : NULL;
    if (f->kv_memory) mm3_memory_want_huge(f->kv_memory, kv_bytes + 64);
    if (!f->kv || !f->memory || !f->kv_memory) {
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE,
                      "out of memory: %.3f GB of step buffers and %.3f GB of KV pages: lower --context, --max-batch, "
                      "--chunk or --kv-gb",
                      (double)f->n_memory * 1e-9, (double)kv_bytes * 1e-9);
        goto done;
    }
    f->kv_pool = (unsigned char *)(((uintptr_t)f->kv_memory + 63) & ~(uintptr_t)63);
    place.base = f->memory;
    carve_all(f, &place);
    lay_out_pages(f);
    fill_inv_freq(f);
    *out = f;
    f = NULL;
done:
    mm3_forward_close(&f);
    return st;
}

void mm3_forward_close(mm3_forward **forward)
{
    if (!forward || !*forward) return;
    mm3_free((*forward)->step.counts);
    mm3_free((*forward)->kv_memory);
    mm3_free((*forward)->memory);
    mm3_free((*forward)->kv);
    mm3_free(*forward);
    *forward = NULL;
}

size_t mm3_forward_step_buffer_bytes(const mm3_forward *forward) { return forward->n_memory; }

size_t mm3_forward_kv_bytes(const mm3_forward *forward)
{
    return forward->page_bytes * (size_t)forward->options.n_pages;
}

mm3_step_block *mm3_forward_step(mm3_forward *forward) { return &forward->step; }

mm3_status mm3_forward_need_counts(mm3_forward *forward)
{
    size_t n = mm3_mul((size_t)forward->options.n_slots, (size_t)forward->model->config.vocab_size);
    if (forward->step.counts) return MM3_OK;
    forward->step.counts = mm3_calloc(n, sizeof *forward->step.counts);
    MM3_CHECK(forward->step.counts, MM3_ERR_NOMEM, "out of memory for penalty counts of %d sequences",
              forward->options.n_slots);
    return MM3_OK;
}

void mm3_forward_set_n_token(mm3_forward *forward, int n)
{
    forward->n_token = MM3_MIN(n, forward->model->config.vocab_size);
}

void mm3_forward_fill_pages(mm3_forward *forward, int first, int n)
{
    size_t size = forward->page_bytes, n_lines = size / 64;
    unsigned char *page = forward->kv_pool + size * (size_t)first;
    uint32_t r = 12345u + 2654435761u * (uint32_t)first;
    for (size_t at = 0; at + 4 <= size && n > 0; at += 4) { /* +-[0.5, 2) as FP32, or as two BF16 */
        uint32_t bits;
        r = r * 1664525u + 1013904223u;
        bits = (r & 0x80FFFFFFu) | 0x3F000000u;
        if (forward->options.kv_type == MM3_BF16) bits = (r & 0x80FF80FFu) | 0x3F003F00u;
        memcpy(page + at, &bits, 4);
    }
    for (int i = 1; i < n; i++) { /* the others are the first one, each turned by another number of lines */
        size_t turn = 64 * ((size_t)i * 37 % MM3_MAX(n_lines, (size_t)1));
        memcpy(page + size * (size_t)i, page + turn, size - turn);
        memcpy(page + size * (size_t)i + (size - turn), page, turn);
    }
}

void mm3_forward_clear_pages(mm3_forward *forward, int first, int n)
{
    mm3_memory_release(forward->kv_pool + forward->page_bytes * (size_t)first, forward->page_bytes * (size_t)n);
}
