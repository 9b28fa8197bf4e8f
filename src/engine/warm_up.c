/* Operands as a real step has them, before there is a request: tokens, places, KV pages, block lists and routing, in
 * the states that what is tuned depends on (docs/tuning.md). */
#include <string.h>

#include "engine/state.h"

enum { N_DRAWS = 4 };
static const int contexts[] = { 1024, 8192, 32768 };

static int n_contexts(const mm3_engine *e)
{
    int n = 0;
    while (n < MM3_COUNT(contexts) && contexts[n] <= e->context) n++;
    return MM3_MAX(n, 1);
}

static int context_of(const mm3_engine *e, int i) { return MM3_MIN(contexts[i], e->context); }

static uint64_t next_random(uint64_t *r)
{
    *r = *r * 6364136223846793005u + 1442695040888963407u;
    return *r >> 33;
}

/* Rows of a step at the end of a context: decode rows are sequences of their own, prefill rows one sequence. No two
 * rows have the same place: they would write it at the same time. */
static void place_rows(mm3__warm *w, int context)
{
    mm3_engine *e = w->engine;
    mm3_step_block *b = mm3_forward_step(e->forward);
    int m = w->shape.m, n_slots = MM3_MIN(e->max_batch, w->n_borrowed);
    for (int i = 0; i < m; i++) {
        b->slot[i] = w->shape.sample ? i % n_slots : 0;
        b->position[i] = w->shape.sample ? context - 1 - i / n_slots : context - m + i;
        if (b->position[i] < 0 || b->position[i] >= e->context) b->position[i] = i % e->context;
    }
}

static int common_divisor(int a, int b)
{
    while (b) {
        int c = a % b;
        a = b;
        b = c;
    }
    return a;
}

typedef struct borrowed {
    mm3_forward *forward;
    int n;
} borrowed;

/* Each thread its part: most of the time goes into memory that is touched for the first time. */
static void fill_pages(const mm3_call *call, int i_thread, int n_threads)
{
    const borrowed *b = call->op;
    int first, end;
    mm3_share(b->n, i_thread, n_threads, &first, &end);
    mm3_forward_fill_pages(b->forward, first, end - first);
}

/* Pages with numbers of an ordinary size in them, lent by the sequences to come; as many as make twice the last cache
 * stand for all. Sequences that share pages have no common one at the same place, since their number and max_pages
 * have no common divisor. */
static void borrow_pages(mm3__warm *w)
{
    mm3_engine *e = w->engine;
    size_t want = 2 * mm3_device_info_of(e->device)->last_cache_bytes / mm3_page_bytes(&e->model->config, e->kv_type);
    int32_t *table = mm3_forward_step(e->forward)->table;
    int max_pages = (e->context + MM3_PAGE_TOKENS - 1) / MM3_PAGE_TOKENS;
    mm3_call fill = { .run = fill_pages };
    if (w->n_borrowed > 0) return;
    w->n_borrowed = (int)MM3_MIN(MM3_MAX(want, (size_t)e->max_batch) + (size_t)max_pages, (size_t)e->n_pages);
    if ((size_t)w->n_borrowed < mm3_mul((size_t)e->max_batch, (size_t)max_pages))
        while (common_divisor(w->n_borrowed, max_pages) != 1) w->n_borrowed--;
    fill.op = &(borrowed){ e->forward, w->n_borrowed };
    mm3_device_run(e->device, &fill, 1);
    for (int i = 0; i < e->max_batch * max_pages; i++) table[i] = i % w->n_borrowed;
}

mm3_sample_row mm3__ordinary_sampling(int i)
{
    return (mm3_sample_row){
        .temperature = 1, .top_k = 40, .top_p = 0.95f, .repetition_penalty = 1, .counts_row = -1, .seed = (uint64_t)i
    };
}

void mm3__warm_inputs(mm3__warm *w, const mm3_step_shape *shape)
{
    mm3_engine *e = w->engine;
    mm3_step_block *b = mm3_forward_step(e->forward);
    uint64_t r = 1;
    w->shape = *shape;
    borrow_pages(w);
    place_rows(w, context_of(e, 0));
    for (int i = 0; i < shape->m; i++) b->token[i] = (int32_t)(next_random(&r) % (uint64_t)e->model->config.vocab_size);
    for (int i = 0; i < shape->n_logits; i++) {
        b->logit_row[i] = shape->m - shape->n_logits + i;
        b->logit_slot[i] = 0;
        b->logit_position[i] = b->position[b->logit_row[i]];
        b->sample[i] = mm3__ordinary_sampling(i);
    }
}

mm3_status mm3__warm_up(mm3__warm *w, const mm3_step_shape *shape)
{
    mm3_engine *e = w->engine;
    mm3_recorder *eager = NULL;
    mm3_status st;
    mm3__warm_inputs(w, shape);
    MM3_TRY(mm3_eager_open(&eager, e->device, mm3_choose_native, e->pins));
    st = mm3_forward_issue(e->forward, eager, shape);
    mm3_eager_close(&eager);
    return st;
}

/* A random choice of blocks for each list, own block included, ascending: what attention meets at a long context. */
static void draw_blocks(const mm3_attention *op)
{
    int32_t *list = (int32_t *)(uintptr_t)op->selected; /* the network's own buffer */
    uint64_t r = 7;
    for (int i = 0; i < op->m * op->kv.n_kv; i++, list += op->top_k) {
        int n_blocks = op->position[i / op->kv.n_kv] / op->block + 1, n = 0, left = MM3_MIN(op->top_k, n_blocks);
        for (int block = 0; block < n_blocks && left > 0; block++) {
            int n_behind = n_blocks - 1 - block; /* 0: the own block, which is always in */
            if (n_behind > 0 && (left == 1 || next_random(&r) % (uint64_t)n_behind >= (uint64_t)(left - 1))) continue;
            list[n++] = block;
            left--;
        }
        while (n < op->top_k) list[n++] = -1;
    }
}

/* Uniform routing: top_k different experts a row, in the lists that the router leaves. */
static void draw_experts(const mm3_moe_linear *op, int i_draw)
{
    int32_t *pair = (int32_t *)(uintptr_t)op->pair, *begin = (int32_t *)(uintptr_t)op->begin;
    int n_pairs = op->m * op->top_k;
    uint64_t r = 100u + (uint64_t)i_draw;
    /* row i takes top_k experts in a row of a random cyclic order: uniform, and different without a search */
    memset(begin, 0, ((size_t)op->n_expert + 1) * sizeof *begin);
    for (int pass = 0; pass < 2; pass++) {
        uint64_t again = r;
        for (int i = 0; i < op->m; i++) {
            int first = (int)(next_random(&again) % (uint64_t)op->n_expert);
            int stride = 1 + (int)(next_random(&again) % (uint64_t)MM3_MAX(op->n_expert / op->top_k, 1));
            for (int j = 0; j < op->top_k; j++) {
                int expert = (first + j * stride) % op->n_expert;
                if (pass == 0)
                    begin[expert + 1]++;
                else
                    pair[begin[expert]++] = i * op->top_k + j;
            }
        }
        if (pass == 0)
            for (int x = 0; x < op->n_expert; x++) begin[x + 1] += begin[x];
    }
    for (int x = op->n_expert; x > 0; x--) begin[x] = begin[x - 1];
    begin[0] = 0;
    for (int i = begin[op->n_expert]; i < n_pairs; i++) pair[i] = -1;
}

int mm3__warm_state(mm3__warm *w, const mm3_stage *stage, int i)
{
    mm3_engine *e = w->engine;
    if (stage->op == MM3_OP_ATTENTION || stage->op == MM3_OP_INDEX_SELECT) {
        place_rows(w, context_of(e, MM3_MAX(i, 0)));
        if (stage->op == MM3_OP_ATTENTION && ((const mm3_attention *)stage->contract[0])->selected)
            draw_blocks(stage->contract[0]);
        return n_contexts(e);
    }
    if (stage->op == MM3_OP_MOE_LINEAR) {
        draw_experts(stage->contract[0], MM3_MAX(i, 0));
        return N_DRAWS;
    }
    return 1;
}

void mm3__warm_to_middle(mm3__warm *w) { place_rows(w, context_of(w->engine, (n_contexts(w->engine) - 1) / 2)); }

void mm3__warm_end(mm3__warm *w)
{
    if (w->n_borrowed) mm3_forward_clear_pages(w->engine->forward, 0, w->n_borrowed);
    w->n_borrowed = 0;
}
