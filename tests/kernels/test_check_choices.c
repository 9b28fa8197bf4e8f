/* The check is checked: faults of operations that choose, and of attention. */
#include "kernels/faults.h"

CORRECT(mm3_router, ROUTER)
CORRECT(mm3_index_select, INDEX_SELECT)
CORRECT(mm3_attention, ATTENTION)
CORRECT(mm3_qk_norm_rope, QK_NORM_ROPE)
CORRECT(mm3_sample, SAMPLE)

/* ---- choices ----------------------------------------------------------------------------------------------------- */

/* Ties go to the higher id: the reference on reversed ids. */
FAULT(mm3_router, router_wrong_tie)
{
    static float logits[1 << 14], bias[1 << 10];
    mm3_router wrong = *op;
    int n = op->n_expert, n_pairs = op->m * op->top_k, at = 0;
    for (int i = 0; i < op->m * n; i++) logits[i / n * n + n - 1 - i % n] = op->logits[i];
    for (int e = 0; e < n; e++) bias[n - 1 - e] = op->bias[e];
    wrong.logits = logits;
    wrong.bias = bias;
    correct_mm3_router(&wrong);
    for (int p = 0; p < n_pairs; p++)
        if (op->expert[p] >= 0) op->expert[p] = n - 1 - op->expert[p];
    for (int e = 0; e < n; e++) {
        op->begin[e] = at;
        for (int p = 0; p < n_pairs; p++)
            if (op->expert[p] == e) op->pair[at++] = p;
    }
}
FAULT(mm3_router, bias_in_weights)
{
    correct_mm3_router(op);
    for (int i = 0; i < op->m; i++) {
        float sum = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int j = 0; j < op->top_k && op->slot[i] >= 0; j++) {
                int e = op->expert[i * op->top_k + j];
                float s = 1 / (1 + expf(-op->logits[i * op->n_expert + e])) + op->bias[e];
                if (pass)
                    op->weight[i * op->top_k + j] = s / sum;
                else
                    sum += s;
            }
    }
}
FAULT(mm3_router, bias_ignored)
{
    static float zero[1 << 10];
    mm3_router wrong = *op;
    wrong.bias = zero;
    correct_mm3_router(&wrong);
}
FAULT(mm3_router, weights_not_normalized)
{
    correct_mm3_router(op);
    for (int i = 0; i < op->m * op->top_k; i++)
        if (op->expert[i] >= 0)
            op->weight[i] = 1 / (1 + expf(-op->logits[i / op->top_k * op->n_expert + op->expert[i]]));
}
FAULT(mm3_router, pairs_unsorted)
{
    correct_mm3_router(op);
    for (int e = 0; e < op->n_expert; e++)
        if (op->begin[e + 1] - op->begin[e] > 1) {
            int32_t first = op->pair[op->begin[e]];
            op->pair[op->begin[e]] = op->pair[op->begin[e] + 1];
            op->pair[op->begin[e] + 1] = first;
        }
}
FAULT(mm3_router, padding_gets_expert)
{
    correct_mm3_router(op);
    for (int i = 0; i < op->m; i++)
        if (op->slot[i] < 0) op->expert[i * op->top_k] = 0;
}

/* Blocks of one list by scores that `score` gives; ties to the lower block, or to the higher one. */
typedef struct picked {
    int n, block[64];
} picked;
typedef float score_fn(float s);
static float as_it_is(float s) { return s; }
static float relu(float s) { return s > 0 ? s : 0; }

static float best_of(const mm3_index_select *op, int i, int g, int b, score_fn *score)
{
    float best = -INFINITY;
    for (int t = b * op->block; t < (b + 1) * op->block && t <= op->position[i]; t++) {
        const void *base = mm3_kv_tile(&op->kv, op->slot[i], t / 128, op->kv.ik_at, 0, op->kv.d_index);
        float s = 0;
        for (int d = 0; d < op->kv.d_index; d++) {
            int at = t % 128 * op->kv.d_index + d;
            s += op->iq[(i * op->n_groups + g) * op->kv.d_index + d] *
                 (op->kv.type == MM3_BF16 ? mm3_bf16_to_f32(((const uint16_t *)base)[at]) : ((const float *)base)[at]);
        }
        if (score(s) > best) best = score(s);
    }
    return best;
}

/* The top `n` blocks, the own one among them if `forced`. */
static picked pick(const mm3_index_select *op, int i, int g, int n, score_fn *score, bool forced, bool higher)
{
    int own = op->position[i] / op->block;
    static float value[4096];
    picked p = { 0 };
    bool taken[4096] = { false };
    for (int b = 0; b <= own; b++) value[b] = b == own && forced ? INFINITY : best_of(op, i, g, b, score);
    for (int k = 0; k < n && k <= own; k++) {
        int best = -1;
        for (int b = 0; b <= own; b++)
            if (!taken[b] && (best < 0 || value[b] > value[best] || (higher && value[b] == value[best]))) best = b;
        taken[best] = true;
    }
    for (int b = 0; b <= own; b++)
        if (taken[b]) p.block[p.n++] = b;
    return p;
}

static void select_by(const mm3_index_select *op, int n, score_fn *score, bool forced, bool higher)
{
    for (int i = 0; i < op->m; i++)
        for (int g = 0; g < op->n_groups; g++) {
            int32_t *out = op->selected + (i * op->n_groups + g) * op->top_k;
            picked p = { 0 };
            if (op->slot[i] >= 0) p = pick(op, i, g, n, score, forced, higher);
            for (int j = 0; j < MM3_MAX(op->top_k, p.n); j++) out[j] = j < p.n ? p.block[j] : -1;
        }
}
FAULT(mm3_index_select, relu_on_scores) { select_by(op, op->top_k, relu, true, false); }
FAULT(mm3_index_select, select_wrong_tie) { select_by(op, op->top_k, as_it_is, true, true); }
FAULT(mm3_index_select, own_block_not_forced) { select_by(op, op->top_k, as_it_is, false, false); }
FAULT(mm3_index_select, own_block_as_one_more) { select_by(op, op->top_k + 1, as_it_is, true, false); }
FAULT(mm3_index_select, one_shared_selection)
{
    correct_mm3_index_select(op);
    for (int i = 0; i < op->m * op->n_groups; i++)
        memcpy(op->selected + i * op->top_k, op->selected + i / op->n_groups * op->n_groups * op->top_k,
               sizeof(int32_t) * (size_t)op->top_k);
}
FAULT(mm3_index_select, blocks_unsorted)
{
    correct_mm3_index_select(op);
    for (int i = 0; i < op->m * op->n_groups && op->top_k > 1; i++) {
        int32_t *list = op->selected + i * op->top_k, first = list[0];
        if (list[1] < 0) continue;
        list[0] = list[1];
        list[1] = first;
    }
}
FAULT(mm3_sample, sample_wrong_tie)
{
    correct_mm3_sample(op);
    for (int i = 0; i < op->m; i++)
        for (int j = 0; j < op->n_token && op->token[i] >= 0 && !(op->row[i].temperature > 0) && !op->counts; j++)
            if (op->logits[i * op->n_vocab + j] == op->logits[i * op->n_vocab + op->token[i]]) op->token[i] = j;
}
FAULT(mm3_sample, ids_without_text)
{
    mm3_sample wrong = *op;
    wrong.n_token = op->n_vocab;
    correct_mm3_sample(&wrong);
}
FAULT(mm3_sample, no_repetition_penalty)
{
    mm3_sample wrong = *op;
    wrong.counts = NULL;
    correct_mm3_sample(&wrong);
}
FAULT(mm3_sample, top_k_one_more)
{
    static mm3_sample_row row[4096];
    mm3_sample wrong = *op;
    for (int i = 0; i < op->m; i++) {
        row[i] = op->row[i];
        if (row[i].top_k) row[i].top_k++;
    }
    wrong.row = row;
    correct_mm3_sample(&wrong);
}
FAULT(mm3_sample, position_not_advanced)
{
    static int32_t position[4096];
    mm3_sample wrong = *op;
    for (int i = 0; i < op->m; i++) position[i] = op->position[i] - 1;
    wrong.position = position;
    correct_mm3_sample(&wrong);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

FAULT(mm3_attention, sees_the_future)
{
    static int32_t position[4096];
    mm3_attention wrong = *op;
    for (int i = 0; i < op->m; i++) position[i] = MM3_MIN(op->position[i] + 1, op->context - 1);
    wrong.position = position;
    correct_mm3_attention(&wrong);
}
FAULT(mm3_attention, reads_beyond_the_end)
{
    static int32_t position[4096];
    mm3_attention wrong = *op;
    for (int i = 0; i < op->m; i++) position[i] = op->position[i] | 127; /* to the end of the page */
    wrong.position = position;
    correct_mm3_attention(&wrong);
    for (int i = 0; i < op->m * op->n_q * 128; i++)
        if (isnan(op->out[i])) return;
    correct_mm3_attention(op);
}
FAULT(mm3_attention, selection_ignored)
{
    mm3_attention wrong = *op;
    wrong.selected = NULL;
    correct_mm3_attention(&wrong);
}
FAULT(mm3_attention, heads_interleaved)
{
    int n_rep = op->n_q / op->kv.n_kv, width = op->n_q * 128;
    static float q[1 << 18], out[1 << 18];
    mm3_attention wrong = *op;
    /* head h uses KV head h % n_kv: permute, compute, permute back */
    for (int i = 0; i < op->m; i++)
        for (int h = 0; h < op->n_q; h++)
            memcpy(q + i * width + (h % op->kv.n_kv * n_rep + h / op->kv.n_kv) * 128, op->q + i * width + h * 128, 512);
    wrong.q = q;
    wrong.out = out;
    correct_mm3_attention(&wrong);
    for (int i = 0; i < op->m; i++)
        for (int h = 0; h < op->n_q; h++)
            memcpy(op->out + i * width + h * 128, out + i * width + (h % op->kv.n_kv * n_rep + h / op->kv.n_kv) * 128,
                   512);
}
FAULT(mm3_attention, no_scale)
{
    mm3_attention wrong = *op;
    wrong.scale = 1;
    correct_mm3_attention(&wrong);
}
FAULT(mm3_qk_norm_rope, padding_appended)
{
    static int32_t slot[4096], position[4096];
    mm3_qk_norm_rope wrong = *op;
    correct_mm3_qk_norm_rope(op);
    for (int i = 0; i < op->m; i++) {
        slot[i] = op->slot[i] < 0 ? 0 : op->slot[i];
        position[i] = op->slot[i] < 0 ? 0 : op->position[i];
    }
    wrong.slot = slot;
    wrong.position = position;
    correct_mm3_qk_norm_rope(&wrong);
    for (int i = 0; i < op->m; i++)
        if (op->slot[i] < 0) {
            memset(op->q + i * op->n_q * 128, 0, sizeof(float) * (size_t)op->n_q * 128);
            if (op->iq)
                memset(op->iq + i * op->n_iq * op->kv.d_index, 0, sizeof(float) * (size_t)(op->n_iq * op->kv.d_index));
        }
}
FAULT(mm3_qk_norm_rope, append_one_late)
{
    static int32_t position[4096];
    mm3_qk_norm_rope wrong = *op;
    for (int i = 0; i < op->m; i++) position[i] = op->position[i] + 1;
    wrong.position = position;
    correct_mm3_qk_norm_rope(&wrong);
}
FAULT(mm3_qk_norm_rope, rotated_backwards)
{
    static float sine[1 << 14];
    mm3_qk_norm_rope wrong = *op;
    for (int i = 0; i < op->m * 32; i++) sine[i] = -op->sin[i];
    wrong.sin = sine;
    correct_mm3_qk_norm_rope(&wrong);
}
FAULT(mm3_qk_norm_rope, norms_swapped)
{
    mm3_qk_norm_rope wrong = *op;
    wrong.q_norm = op->k_norm;
    wrong.k_norm = op->q_norm;
    correct_mm3_qk_norm_rope(&wrong);
}
FAULT(mm3_qk_norm_rope, index_key_forgotten)
{
    mm3_qk_norm_rope wrong = *op;
    wrong.n_iq = 0;
    if (op->n_iq) correct_mm3_qk_norm_rope(op); /* q and iq */
    for (int i = 0; i < op->m && op->n_iq; i++)
        if (op->slot[i] >= 0) { /* the page as it was: all NaN */
            char *tile = mm3_kv_tile(&op->kv, op->slot[i], op->position[i] / 128, op->kv.ik_at, 0, op->kv.d_index);
            size_t size = op->kv.type == MM3_BF16 ? 2 : 4, width = (size_t)op->kv.d_index * size;
            memset(tile + (size_t)(op->position[i] % 128) * width, 0xFF, width);
        }
    if (!op->n_iq) correct_mm3_qk_norm_rope(&wrong);
}

static const fault faults[] = {
    ON(ROUTER, router_wrong_tie, "m=6", "comes before it"),
    ON(ROUTER, bias_in_weights, "m=3", "weight"),
    ON(ROUTER, bias_ignored, "m=6", "comes before it"),
    ON(ROUTER, weights_not_normalized, "m=3", "weight"),
    ON(ROUTER, pairs_unsorted, "m=6", "pair"),
    ON(ROUTER, padding_gets_expert, "m=3,pad=1", "padded"),
    ON(INDEX_SELECT, relu_on_scores, "m=8", "and not block"),
    ON(INDEX_SELECT, select_wrong_tie, "m=8", "and not block"),
    ON(INDEX_SELECT, own_block_not_forced, "m=8", NULL),
    ON(INDEX_SELECT, own_block_as_one_more, "m=8", NULL),
    ON(INDEX_SELECT, one_shared_selection, "m=8", NULL),
    ON(INDEX_SELECT, blocks_unsorted, "m=8", "ascending"),
    ON(SAMPLE, sample_wrong_tie, "m=3", "comes before it"),
    ON(SAMPLE, ids_without_text, "m=3", NULL),
    ON(SAMPLE, no_repetition_penalty, "m=8,penalties=1", "comes before it"),
    ON(SAMPLE, top_k_one_more, "m=30,mode=top_k", "filters remove"),
    ON(SAMPLE, position_not_advanced, "m=8,mode=temperature", NULL),
    ON(ATTENTION, sees_the_future, "m=8", NULL),
    ON(ATTENTION, reads_beyond_the_end, "m=8", NULL),
    ON(ATTENTION, selection_ignored, "m=8,top_k=1", NULL),
    ON(ATTENTION, heads_interleaved, "m=3", NULL),
    ON(ATTENTION, no_scale, "m=3", NULL),
    ON(QK_NORM_ROPE, padding_appended, "m=4,pad=1", "where nothing belongs"),
    ON(QK_NORM_ROPE, append_one_late, "m=3", NULL),
    ON(QK_NORM_ROPE, rotated_backwards, "m=3", NULL),
    ON(QK_NORM_ROPE, norms_swapped, "m=3", NULL),
    ON(QK_NORM_ROPE, index_key_forgotten, "m=3", "kv.pool"),
};

static void the_correct_pass(void **state)
{
    (void)state;
    correct_kernels_pass(faults, MM3_COUNT(faults));
}

int main(void)
{
    struct CMUnitTest tests[1 + sizeof faults / sizeof faults[0]] = { cmocka_unit_test(the_correct_pass) };
    return run_faults("faults of choices", tests, 1, faults, MM3_COUNT(faults));
}
