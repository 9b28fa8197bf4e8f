/* The MiniMax-M3 network, written once: each step is a straight line of operations issued to a recorder.
 * source  docs/numerics.md (the forward pass, rule by rule). Names no kernel. */
#include "forward/state.h"

/* One step under way. */
typedef struct pass {
    mm3_forward *f;
    mm3_recorder *recorder;
    const mm3_step_shape *shape;
    const mm3_config *c;
} pass;

/* Whether a linear with this weight reads quantized rows, plain rows. */
static bool reads_mx(const pass *p, const mm3_weight *w)
{
    return w->type == MM3_MX && p->f->options.numerics == MM3_NUMERICS_W8A8;
}

static bool any_reads_mx(const pass *p, const mm3_weight *w, int n)
{
    for (int i = 0; i < n; i++)
        if (reads_mx(p, &w[i])) return true;
    return false;
}

static bool all_read_mx(const pass *p, const mm3_weight *w, int n)
{
    for (int i = 0; i < n; i++)
        if (!reads_mx(p, &w[i])) return false;
    return true;
}

static mm3_act act_of(const pass *p)
{
    return p->f->options.numerics == MM3_NUMERICS_W8A8 ? MM3_ACT_W8A8 : MM3_ACT_W8A16;
}

/* x += delta; y = norm(x); and y as MXFP8 where a linear that follows wants it. */
static mm3_status norm(pass *p, const float *delta, const float *w, bool quantized)
{
    mm3_forward *f = p->f;
    int m = p->shape->m, k = p->c->hidden_size;
    float eps = (float)p->c->rms_norm_eps;
    if (quantized) {
        mm3_add_rmsnorm_quantize op = { .m = m,
                                        .k = k,
                                        .eps = eps,
                                        .x = f->x,
                                        .delta = delta,
                                        .w = w,
                                        .y = f->y,
                                        .codes = f->y_mx.codes,
                                        .scales = f->y_mx.scales };
        return mm3_issue(p->recorder, MM3_OP_ADD_RMSNORM_QUANTIZE, &op);
    }
    mm3_add_rmsnorm op = { .m = m, .k = k, .eps = eps, .x = f->x, .delta = delta, .w = w, .y = f->y };
    return mm3_issue(p->recorder, MM3_OP_ADD_RMSNORM, &op);
}

static mm3_status quantize(pass *p, int m, int k, const float *x, const mm3_mx_rows *to)
{
    mm3_quantize op = { .m = m, .k = k, .x = x, .codes = to->codes, .scales = to->scales };
    return mm3_issue(p->recorder, MM3_OP_QUANTIZE, &op);
}

/* out = x times the segments one below the other. */
static mm3_status linear(pass *p, int m, int k, const float *x, const mm3_mx_rows *x_mx, const mm3_weight *segments,
                         int n_segments, float *out)
{
    mm3_linear op = { .m = m,
                      .k = k,
                      .act = act_of(p),
                      .n_segments = n_segments,
                      .x = x,
                      .x_codes = x_mx->codes,
                      .x_scales = x_mx->scales,
                      .out = out };
    for (int i = 0; i < n_segments; i++) {
        op.segment[i] = segments[i];
        op.n += segments[i].n;
    }
    return mm3_issue(p->recorder, MM3_OP_LINEAR, &op);
}

/* y = SwiGLU(gate_up) in the forms that the down weights read. */
static mm3_status activate(pass *p, int m, int n, const float *gate_up, const mm3_weight *down, int n_down, float *y,
                           const mm3_mx_rows *y_mx)
{
    const mm3_config *c = p->c;
    mm3_swiglu plain = { .m = m,
                         .n = n,
                         .alpha = (float)c->swiglu_alpha,
                         .limit = (float)c->swiglu_limit,
                         .beta = (float)c->swiglu_beta,
                         .gate_up = gate_up,
                         .y = y };
    if (all_read_mx(p, down, n_down)) {
        mm3_swiglu_quantize op = { .m = m,
                                   .n = n,
                                   .alpha = plain.alpha,
                                   .limit = plain.limit,
                                   .beta = plain.beta,
                                   .gate_up = gate_up,
                                   .y = y,
                                   .codes = y_mx->codes,
                                   .scales = y_mx->scales };
        return mm3_issue(p->recorder, MM3_OP_SWIGLU_QUANTIZE, &op);
    }
    MM3_TRY(mm3_issue(p->recorder, MM3_OP_SWIGLU, &plain));
    return any_reads_mx(p, down, n_down) ? quantize(p, m, n, y, y_mx) : MM3_OK;
}

static mm3_status attention(pass *p, int i_layer, const float *delta)
{
    mm3_forward *f = p->f;
    const mm3_config *c = p->c;
    const mm3_layer *l = &f->model->layer[i_layer];
    const mm3_step_block *s = &f->step;
    int m = p->shape->m, width = mm3__qkv_width(c, l->is_sparse), n_segments = l->is_sparse ? 5 : 3;
    mm3_weight qkv[5] = { l->q, l->k, l->v, l->iq, l->ik };

    MM3_TRY(norm(p, delta, l->input_norm, any_reads_mx(p, qkv, n_segments)));
    MM3_TRY(linear(p, m, c->hidden_size, f->y, &f->y_mx, qkv, n_segments, f->qkv));
    mm3_qk_norm_rope rope = { .m = m,
                              .ld = width,
                              .n_q = c->n_heads,
                              .n_iq = l->is_sparse ? c->n_index_heads : 0,
                              .eps = (float)c->rms_norm_eps,
                              .qkv = f->qkv,
                              .q_norm = l->q_norm,
                              .k_norm = l->k_norm,
                              .iq_norm = l->iq_norm,
                              .ik_norm = l->ik_norm,
                              .cos = f->cos,
                              .sin = f->sin,
                              .slot = s->slot,
                              .position = s->position,
                              .q = f->q,
                              .iq = l->is_sparse ? f->iq : NULL,
                              .kv = f->kv[i_layer] };
    MM3_TRY(mm3_issue(p->recorder, MM3_OP_QK_NORM_ROPE, &rope));
    if (l->is_sparse) {
        /* index head i selects for KV head i: config.c checks that there are as many */
        mm3_index_select select = { .m = m,
                                    .n_groups = c->n_kv_heads,
                                    .top_k = c->topk_blocks,
                                    .block = c->block_size,
                                    .iq = f->iq,
                                    .slot = s->slot,
                                    .position = s->position,
                                    .kv = f->kv[i_layer],
                                    .selected = f->selected };
        MM3_TRY(mm3_issue(p->recorder, MM3_OP_INDEX_SELECT, &select));
    }
    mm3_attention attend = { .m = m,
                             .n_q = c->n_heads,
                             .top_k = l->is_sparse ? c->topk_blocks : 0,
                             .block = l->is_sparse ? c->block_size : MM3_PAGE_TOKENS,
                             .context = p->shape->context,
                             .scale = 0.08838834764831845f, /* 128^-0.5 */
                             .q = f->q,
                             .slot = s->slot,
                             .position = s->position,
                             .selected = l->is_sparse ? f->selected : NULL,
                             .kv = f->kv[i_layer],
                             .out = f->attention };
    MM3_TRY(mm3_issue(p->recorder, MM3_OP_ATTENTION, &attend));
    if (reads_mx(p, &l->o)) MM3_TRY(quantize(p, m, c->n_heads * MM3_HEAD_DIM, f->attention, &f->attention_mx));
    return linear(p, m, c->n_heads * MM3_HEAD_DIM, f->attention, &f->attention_mx, &l->o, 1, f->delta);
}

/* The dense MLP of a layer, or its shared expert: same members of mm3_layer, other widths. */
static mm3_status mlp(pass *p, const mm3_layer *l, float *out)
{
    mm3_forward *f = p->f;
    int m = p->shape->m;
    mm3_weight gate_up[2] = { l->gate, l->up };
    MM3_TRY(linear(p, m, p->c->hidden_size, f->y, &f->y_mx, gate_up, 2, f->gate_up));
    MM3_TRY(activate(p, m, l->gate.n, f->gate_up, &l->down, 1, f->act, &f->act_mx));
    return linear(p, m, l->gate.n, f->act, &f->act_mx, &l->down, 1, out);
}

static mm3_status experts(pass *p, const mm3_layer *l)
{
    mm3_forward *f = p->f;
    const mm3_config *c = p->c;
    int m = p->shape->m, topk = c->experts_per_token, inter = c->expert_intermediate, h = c->hidden_size;

    MM3_TRY(linear(p, m, h, f->y, &f->y_mx, &l->router, 1, f->router_logits));
    mm3_router route = { .m = m,
                         .n_expert = c->n_experts,
                         .top_k = topk,
                         .logits = f->router_logits,
                         .bias = l->router_bias,
                         .slot = f->step.slot,
                         .expert = f->expert,
                         .weight = f->expert_weight,
                         .pair = f->pair,
                         .begin = f->begin };
    MM3_TRY(mm3_issue(p->recorder, MM3_OP_ROUTER, &route));
    mm3_moe_linear gate_up = { .m = m,
                               .top_k = topk,
                               .n = 2 * inter,
                               .k = h,
                               .n_expert = c->n_experts,
                               .n_segments = 2,
                               .by_pair = false,
                               .act = act_of(p),
                               .weights = l->expert_gate_up,
                               .x = f->y,
                               .x_codes = f->y_mx.codes,
                               .x_scales = f->y_mx.scales,
                               .pair = f->pair,
                               .begin = f->begin,
                               .out = f->pair_gate_up };
    MM3_TRY(mm3_issue(p->recorder, MM3_OP_MOE_LINEAR, &gate_up));
    MM3_TRY(activate(p, m * topk, inter, f->pair_gate_up, l->expert_down, c->n_experts, f->pair_act, &f->pair_act_mx));
    mm3_moe_linear down = { .m = m,
                            .top_k = topk,
                            .n = h,
                            .k = inter,
                            .n_expert = c->n_experts,
                            .n_segments = 1,
                            .by_pair = true,
                            .act = act_of(p),
                            .weights = l->expert_down,
                            .x = f->pair_act,
                            .x_codes = f->pair_act_mx.codes,
                            .x_scales = f->pair_act_mx.scales,
                            .pair = f->pair,
                            .begin = f->begin,
                            .out = f->pair_out };
    MM3_TRY(mm3_issue(p->recorder, MM3_OP_MOE_LINEAR, &down));
    if (l->gate.n) MM3_TRY(mlp(p, l, f->shared));
    mm3_moe_sum sum = { .m = m,
                        .top_k = topk,
                        .k = h,
                        .scale = (float)c->routed_scaling_factor,
                        .y = f->pair_out,
                        .expert = f->expert,
                        .weight = f->expert_weight,
                        .shared = l->gate.n ? f->shared : NULL,
                        .out = f->delta };
    return mm3_issue(p->recorder, MM3_OP_MOE_SUM, &sum);
}

/* Whether any linear behind a layer's second norm reads quantized rows. */
static bool feed_forward_reads_mx(const pass *p, const mm3_layer *l)
{
    if (reads_mx(p, &l->gate) || reads_mx(p, &l->up)) return true;
    return l->is_moe && (reads_mx(p, &l->router) || any_reads_mx(p, l->expert_gate_up, 2 * p->c->n_experts));
}

static mm3_status head(pass *p)
{
    mm3_forward *f = p->f;
    const mm3_config *c = p->c;
    const mm3_weight *w = &f->model->head;
    const float *rows = f->y;
    int n = p->shape->n_logits;
    if (n < p->shape->m) {
        mm3_gather op = {
            .m = n, .k = c->hidden_size, .n_rows = p->shape->m, .x = f->y, .row = f->step.logit_row, .out = f->final
        };
        MM3_TRY(mm3_issue(p->recorder, MM3_OP_GATHER, &op));
        rows = f->final;
    }
    if (reads_mx(p, w)) MM3_TRY(quantize(p, n, c->hidden_size, rows, &f->final_mx));
    return linear(p, n, c->hidden_size, rows, &f->final_mx, w, 1, f->step.logits);
}

static mm3_status sample(mm3_forward *f, mm3_recorder *recorder, int n, const int32_t *slot, const int32_t *position)
{
    mm3_sample op = { .m = n,
                      .n_vocab = f->model->config.vocab_size,
                      .n_token = f->n_token,
                      .logits = f->step.logits,
                      .row = f->step.sample,
                      .counts = f->step.counts,
                      .slot = slot,
                      .position = position,
                      .token = f->step.next,
                      .logprob = f->step.logprob };
    return mm3_issue(recorder, MM3_OP_SAMPLE, &op);
}

mm3_status mm3_forward_issue(mm3_forward *forward, mm3_recorder *recorder, const mm3_step_shape *shape)
{
    mm3_forward *f = forward;
    const mm3_model *model = f->model;
    pass p = { .f = f, .recorder = recorder, .shape = shape, .c = &model->config };
    const float *delta = NULL;
    mm3_embed embed = { .m = shape->m,
                        .k = p.c->hidden_size,
                        .token = f->step.token,
                        .slot = f->step.slot,
                        .table = model->embed,
                        .out = f->x };
    mm3_rope_angles angles = { .m = shape->m,
                               .position = f->step.position,
                               .slot = f->step.slot,
                               .inv_freq = f->inv_freq,
                               .cos = f->cos,
                               .sin = f->sin };

    MM3_TRY(mm3_issue(recorder, MM3_OP_EMBED, &embed));
    MM3_TRY(mm3_issue(recorder, MM3_OP_ROPE_ANGLES, &angles));
    for (int i = 0; i < p.c->n_layers; i++) {
        const mm3_layer *l = &model->layer[i];
        MM3_TRY(attention(&p, i, delta));
        MM3_TRY(norm(&p, f->delta, l->post_norm, feed_forward_reads_mx(&p, l)));
        MM3_TRY(l->is_moe ? experts(&p, l) : mlp(&p, l, f->delta));
        delta = f->delta;
    }
    if (shape->n_logits == 0) return MM3_OK;
    MM3_TRY(norm(&p, delta, model->norm, false));
    MM3_TRY(head(&p));
    if (!shape->sample) return MM3_OK;
    if (shape->n_logits == shape->m) return sample(f, recorder, shape->m, f->step.slot, f->step.position);
    return sample(f, recorder, shape->n_logits, f->step.logit_slot, f->step.logit_position);
}

mm3_status mm3_forward_issue_sample(mm3_forward *forward, mm3_recorder *recorder, int n)
{
    return sample(forward, recorder, n, forward->step.logit_slot, forward->step.logit_position);
}
