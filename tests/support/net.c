#include "support/net.h"

#include <math.h>
#include <string.h>

static mm3_status watch_issue(mm3_recorder *self, mm3_op_id op, const void *contract)
{
    net_watch *w = (net_watch *)self;
    MM3_TRY(mm3_issue(w->eager, op, contract));
    if (op == MM3_OP_ADD_RMSNORM || op == MM3_OP_ADD_RMSNORM_QUANTIZE) {
        /* both structs begin alike; norms alternate input, post, input, post ..., final */
        const mm3_add_rmsnorm *norm = contract;
        if (w->n_norms++ % 2 == 0 && w->hidden_row >= 0)
            memcpy(w->hidden + (size_t)w->i_norm++ * (size_t)w->hidden_size,
                   norm->x + (size_t)w->hidden_row * (size_t)norm->k, (size_t)norm->k * sizeof(float));
    }
    if (op == MM3_OP_ATTENTION) w->kv_pool = ((const mm3_attention *)contract)->kv.pool;
    if (op == MM3_OP_INDEX_SELECT && w->keep_selected) {
        const mm3_index_select *s = contract;
        mm3_buf_add(&w->selected, s->selected,
                    (size_t)s->m * (size_t)s->n_groups * (size_t)s->top_k * sizeof *s->selected);
    }
    return MM3_OK;
}

mm3_status net_open(net *n, const char *dir, mm3_numerics numerics, int max_rows, int n_slots, int max_pages,
                    const char *pins)
{
    memset(n, 0, sizeof *n);
    n->watch.hidden_row = -1;
    MM3_TRY(mm3_device_open(&n->device, 0));
    if (pins) MM3_TRY(mm3_pins_parse(&n->pins, pins, "cpu"));
    MM3_TRY(mm3_model_open(&n->model, dir));
    n->options = (mm3_forward_options){ .numerics = numerics,
                                        .max_rows = max_rows,
                                        .max_logits = max_rows,
                                        .kv_type = MM3_F32,
                                        .n_slots = n_slots,
                                        .max_pages = max_pages,
                                        .n_pages = n_slots * max_pages };
    MM3_TRY(mm3_forward_open(&n->forward, n->model, &n->options));
    MM3_TRY(mm3_eager_open(&n->watch.eager, n->device, mm3_choose_native, n->pins));
    n->watch.base.issue = watch_issue;
    n->watch.hidden_size = n->model->config.hidden_size;
    n->watch.hidden = mm3_calloc((size_t)(n->model->config.n_layers + 1) * (size_t)n->watch.hidden_size, sizeof(float));
    net_lay_pages(n, 1);
    return n->watch.hidden ? MM3_OK : MM3_ERR_NOMEM;
}

static mm3_status choose_forced(void *user, mm3_op_id op, const void *contract, mm3_choice *choice)
{
    net *n = user;
    const mm3_kernel *k = mm3_kernel_find(op, "cpu", n->candidate);
    for (int i = 0; k && i < k->n_tactics; i++)
        if (!k->refuses || !k->refuses(mm3_device_info_of(n->device), contract, &k->tactics[i])) {
            *choice = (mm3_choice){ k, &k->tactics[i] };
            n->n_forced++;
            return MM3_OK;
        }
    return mm3_choose_native(NULL, op, contract, choice);
}

mm3_status net_force(net *n, const char *candidate)
{
    n->candidate = candidate;
    n->n_forced = 0;
    mm3_eager_close(&n->watch.eager);
    return mm3_eager_open(&n->watch.eager, n->device, choose_forced, n);
}

void net_close(net *n)
{
    mm3_buf_free(&n->watch.selected);
    mm3_free(n->watch.hidden);
    mm3_eager_close(&n->watch.eager);
    mm3_forward_close(&n->forward);
    mm3_model_close(&n->model);
    mm3_pins_free(&n->pins);
    mm3_device_close(&n->device);
}

void net_lay_pages(net *n, int stride)
{
    int32_t *table = mm3_forward_step(n->forward)->table;
    int n_pages = n->options.n_pages, at = 0;
    for (int i = 0; i < n_pages; i++) {
        table[i] = at;
        at += stride;
        if (at >= n_pages) at = at % stride + 1; /* stride divides the walk: next residue class */
    }
}

mm3_status net_run(net *n, int slot, const int32_t *tokens, int first, int m)
{
    mm3_step_block *b = mm3_forward_step(n->forward);
    mm3_step_shape shape = { .m = m, .n_logits = m, .context = first + m };
    for (int i = 0; i < m; i++) {
        b->token[i] = tokens[i];
        b->slot[i] = slot;
        b->position[i] = first + i;
    }
    n->watch.n_norms = n->watch.i_norm = 0;
    return mm3_forward_issue(n->forward, &n->watch.base, &shape);
}

const unsigned char *net_kv_pool(const net *n) { return n->watch.kv_pool; }

double net_error(const float *a, const float *b, size_t n)
{
    double d = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        s += (double)b[i] * b[i];
    }
    return sqrt(d / s);
}

double net_nll(const float *logits, int n_vocab, int32_t token)
{
    double max = logits[0], sum = 0;
    for (int i = 1; i < n_vocab; i++) max = MM3_MAX(max, (double)logits[i]);
    for (int i = 0; i < n_vocab; i++) sum += exp(logits[i] - max);
    return log(sum) + max - logits[token];
}
