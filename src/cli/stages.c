/* Collects the stages of a model's steps and asks the candidates. */
#include <stdio.h>
#include <string.h>

#include "cli/stages.h"

static void add_reason(cli_candidate *c, const char *key, const char *why)
{
    for (int i = 0; i < c->n_reasons; i++)
        if (strcmp(c->reason[i], why) == 0) return;
    if (c->n_reasons == CLI_MAX_REASONS) return;
    snprintf(c->reason[c->n_reasons], sizeof c->reason[0], "%s", why);
    snprintf(c->stage[c->n_reasons++], sizeof c->stage[0], "%s", key);
}

/* A stage is taken if any tactic takes it; the reason is the default tactic's. */
static void ask(cli_candidate *c, const mm3_device_info *device, const mm3_stage *stage)
{
    const mm3_kernel *k = c->kernel;
    const char *why = NULL;
    for (int i = k->n_tactics - 1; i >= 0; i--) {
        why = k->refuses ? k->refuses(device, stage->contract[0], &k->tactics[i]) : NULL;
        if (!why) {
            c->n_accepted++;
            return;
        }
    }
    c->n_refused++;
    add_reason(c, stage->key, why ? why : "it has no tactic");
}

mm3_status cli_steps_open(cli_steps *out, const mm3_model *model, mm3_numerics numerics, mm3_dtype kv_type,
                          int max_batch, int chunk, int context)
{
    mm3_status st = MM3_OK;
    mm3_forward_options o = { .numerics = numerics,
                              .max_rows = MM3_MAX(chunk, max_batch),
                              .max_logits = MM3_MAX(max_batch, 64), /* as the engine makes them */
                              .kv_type = kv_type,
                              .n_slots = max_batch,
                              .max_pages = (context + MM3_PAGE_TOKENS - 1) / MM3_PAGE_TOKENS,
                              .n_pages = 1 }; /* nothing is computed: the pool need not hold a sequence */
    mm3_step_shape decode = { .m = max_batch, .n_logits = max_batch, .sample = true, .context = context };
    mm3_step_shape prefill = { .m = chunk, .n_logits = 1, .sample = true, .context = context };
    memset(out, 0, sizeof *out);
    if (!model) { /* one layer of each kind */
        mm3_synthetic m3;
        MM3_GOTO(mm3_synthetic_parse(&m3, "m3"));
        MM3_GOTO(mm3_model_outline(&out->outline, &m3));
        model = out->outline;
    }
    MM3_GOTO(mm3_forward_open(&out->forward, model, &o));
    out->step_buffer_bytes = mm3_forward_step_buffer_bytes(out->forward);
    MM3_GOTO(mm3_collect_open(&out->collect));
    MM3_GOTO(mm3_forward_issue(out->forward, out->collect, &decode));
    MM3_GOTO(mm3_forward_issue(out->forward, out->collect, &prefill));
    out->stage = mm3_collect_stages(out->collect, &out->n);
done:
    if (st != MM3_OK) cli_steps_close(out);
    return st;
}

void cli_steps_close(cli_steps *steps)
{
    mm3_collect_close(&steps->collect);
    mm3_forward_close(&steps->forward);
    mm3_model_close(&steps->outline);
    memset(steps, 0, sizeof *steps);
}

mm3_status cli_survey_model(cli_survey *out, const mm3_device_info *device, const mm3_model *model,
                            mm3_numerics numerics, mm3_dtype kv_type, int max_batch, int chunk, int context)
{
    cli_steps steps;
    memset(out, 0, sizeof *out);
    for (int op = 0; op < MM3_N_OPS; op++) {
        const mm3_kernel *found[MM3_MAX_CANDIDATES];
        int n = mm3_kernels_of((mm3_op_id)op, device->kind, found, MM3_MAX_CANDIDATES);
        out->n[op] = MM3_MIN(n, MM3_MAX_CANDIDATES);
        for (int i = 0; i < out->n[op]; i++) out->candidate[op][i].kernel = found[i];
    }
    MM3_TRY(cli_steps_open(&steps, model, numerics, kv_type, max_batch, chunk, context));
    out->step_buffer_bytes = steps.step_buffer_bytes;
    for (int s = 0; s < steps.n; s++) {
        const mm3_stage *stage = &steps.stage[s];
        for (int i = 0; i < out->n[stage->op]; i++) ask(&out->candidate[stage->op][i], device, stage);
    }
    cli_steps_close(&steps);
    return MM3_OK;
}
