/* mm3 info: this machine, the candidates of every operation, and what a model is and needs. Runs no model. */
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli/cli.h"
#include "cli/stages.h"
#include "device/device.h"
#include "forward/forward.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "ops/ops.h"

typedef struct report {
    mm3_options options;
    const mm3_device_info *device;
    mm3_model *model; /* NULL: none */
    int context, chunk;
    mm3_dtype kv_type;
    int n_moe, n_sparse;
    size_t kv_bytes;
    cli_survey survey;
} report;

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *device_json(const mm3_device_info *d)
{
    char features[128];
    mm3_device_features_text(d->features, features, sizeof features);
    return json_pack("{ss ss si ss sI sI}", "kind", d->kind, "name", d->name, "threads", d->n_threads, "features",
                     features, "last_cache_bytes", (json_int_t)d->last_cache_bytes, "memory_bytes",
                     (json_int_t)d->memory_bytes);
}

static json_t *candidate_json(const cli_candidate *c)
{
    json_t *tactics = json_array(), *refusals = json_array();
    for (int i = 0; i < c->kernel->n_tactics; i++)
        json_array_append_new(tactics, json_string(c->kernel->tactics[i].name));
    for (int i = 0; i < c->n_reasons; i++)
        json_array_append_new(refusals, json_pack("{ss ss}", "reason", c->reason[i], "stage", c->stage[i]));
    return json_pack("{ss ss sb so so}", "op", mm3_op_info_of(c->kernel->op)->name, "name", c->kernel->name,
                     "available", c->n_accepted > 0, "tactics", tactics, "refusals", refusals);
}

static json_t *candidates_json(const cli_survey *s)
{
    json_t *all = json_array();
    for (int op = 0; op < MM3_N_OPS; op++)
        for (int i = 0; i < s->n[op]; i++) json_array_append_new(all, candidate_json(&s->candidate[op][i]));
    return all;
}

static json_t *model_json(const report *r)
{
    const mm3_model *m = r->model;
    const mm3_config *c = &m->config;
    return json_pack("{ss si si si si si si si si si si sI sI si si si si si}", "dir", m->dir, "layers", c->n_layers,
                     "moe_layers", r->n_moe, "sparse_layers", r->n_sparse, "hidden", c->hidden_size, "heads",
                     c->n_heads, "kv_heads", c->n_kv_heads, "experts", c->n_experts, "experts_per_token",
                     c->experts_per_token, "vocab", c->vocab_size, "max_position", c->max_position, "weight_bytes",
                     (json_int_t)m->weight_bytes, "step_bytes", (json_int_t)m->step_bytes, "tensors", m->n_tensors,
                     "skipped", m->n_skipped, "unused", m->n_unused, "unlisted", m->n_unlisted, "stray_files",
                     m->n_strays);
}

static json_t *memory_json(const report *r)
{
    return json_pack("{si si si ss sI sI sI sI}", "context", r->context, "max_batch", r->options.max_batch, "chunk",
                     r->chunk, "kv_dtype", mm3_dtype_name(r->kv_type), "weight_bytes",
                     (json_int_t)r->model->weight_bytes, "kv_bytes", (json_int_t)r->kv_bytes, "step_buffer_bytes",
                     (json_int_t)r->survey.step_buffer_bytes, "total_bytes",
                     (json_int_t)(r->model->weight_bytes + r->kv_bytes + r->survey.step_buffer_bytes));
}

static int print_json(const report *r)
{
    json_t *out = json_pack("{ss so so}", "version", mm3_version(), "device", device_json(r->device), "candidates",
                            candidates_json(&r->survey));
    if (out && r->model) {
        json_object_set_new(out, "model", model_json(r));
        json_object_set_new(out, "memory", memory_json(r));
    }
    return cli_print_json(out);
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* "16.4 MB": at most four digits. */
static const char *size_text(char *text, size_t n, size_t bytes)
{
    static const char *const unit[] = { "bytes", "kB", "MB", "GB", "TB" };
    double x = (double)bytes;
    int i = 0;
    while (x >= 1000 && i + 1 < MM3_COUNT(unit)) {
        x /= 1000;
        i++;
    }
    snprintf(text, n, i && x < 100 ? "%.1f %s" : "%.0f %s", x, unit[i]);
    return text;
}

static void print_candidates(const cli_survey *s)
{
    for (int op = 0; op < MM3_N_OPS; op++)
        for (int i = 0; i < s->n[op]; i++) {
            const cli_candidate *c = &s->candidate[op][i];
            printf("  %-21s %-10s ", i ? "" : mm3_op_info_of((mm3_op_id)op)->name, c->kernel->name);
            if (c->n_accepted + c->n_refused == 0)
                printf("not used by this model\n");
            else if (c->n_refused == 0)
                printf("%d tactic%s\n", c->kernel->n_tactics, c->kernel->n_tactics == 1 ? "" : "s");
            else
                printf("%s: %s\n", c->n_accepted ? "not for every stage" : "unavailable", c->reason[0]);
        }
}

/* What lies in the folder and takes no part: none of it is wrong, but its owner may have meant it to. */
static void print_notes(const mm3_model *m)
{
    if (m->n_unused) printf("note      %d tensors are no part of the text model\n", m->n_unused);
    if (m->n_unlisted) printf("note      %d tensors of the shards are not in the index: ignored\n", m->n_unlisted);
    if (m->n_strays)
        printf("note      %s%s not in the index: ignored\n", m->stray, m->n_strays == 1 ? " is" : " and others are");
}

static void print_text(const report *r)
{
    char features[128], a[32], b[32], c[32], d[32];
    const mm3_config *g = r->model ? &r->model->config : NULL;
    mm3_device_features_text(r->device->features, features, sizeof features);
    printf("mm3 %s\n", mm3_version());
    printf("device    %s: %s, %d threads\n", r->device->kind, r->device->name, r->device->n_threads);
    printf("features  %s\n", features[0] ? features : "none that mm3 uses");
    printf("memory    %s, last cache %s\n", size_text(a, sizeof a, r->device->memory_bytes),
           size_text(b, sizeof b, r->device->last_cache_bytes));
    if (g) {
        printf("model     %s: %d layers (%d with experts, %d sparse), hidden %d, %d heads, %d KV heads,\n",
               r->model->dir, g->n_layers, r->n_moe, r->n_sparse, g->hidden_size, g->n_heads, g->n_kv_heads);
        printf("          %d of %d experts, vocabulary %d; %d tensors, %d skipped\n", g->experts_per_token,
               g->n_experts, g->vocab_size, r->model->n_tensors, r->model->n_skipped);
        printf("needs     %s: weights %s, KV %s (%d x %d tokens, %s), step buffers %s\n",
               size_text(a, sizeof a, r->model->weight_bytes + r->kv_bytes + r->survey.step_buffer_bytes),
               size_text(b, sizeof b, r->model->weight_bytes), size_text(c, sizeof c, r->kv_bytes),
               r->options.max_batch, r->context, mm3_dtype_name(r->kv_type),
               size_text(d, sizeof d, r->survey.step_buffer_bytes));
        printf("a token   reads %s of weights\n", size_text(a, sizeof a, r->model->step_bytes));
        print_notes(r->model);
    }
    printf("\ncandidates, asked about %s sizes:\n", g ? "this model's" : "MiniMax-M3's");
    print_candidates(&r->survey);
}

/* ----  ------------------------------------------------------------------------------------------------------------ */

/* The sizes that the engine would choose. */
static mm3_status fill(report *r)
{
    enum { DEFAULT_CONTEXT = 8192, DEFAULT_CHUNK = 256 };
    const mm3_options *o = &r->options;
    r->context = o->context ? o->context : DEFAULT_CONTEXT;
    if (r->model && r->context > r->model->config.max_position) {
        MM3_CHECK(!o->context, MM3_ERR_ARG, "context %d is beyond the model's max_position_embeddings, %d: lower it",
                  o->context, r->model->config.max_position);
        r->context = r->model->config.max_position;
    }
    r->chunk = MM3_MIN(o->chunk ? o->chunk : DEFAULT_CHUNK, r->context);
    r->kv_type = o->kv_dtype && strcmp(o->kv_dtype, "bf16") == 0 ? MM3_BF16 : MM3_F32;
    if (r->model) {
        const mm3_config *c = &r->model->config;
        size_t pages = ((size_t)r->context + MM3_PAGE_TOKENS - 1) / MM3_PAGE_TOKENS;
        for (int i = 0; i < c->n_layers; i++) {
            r->n_moe += c->layer_is_moe[i];
            r->n_sparse += c->layer_is_sparse[i];
        }
        r->kv_bytes = mm3_mul(mm3_mul(pages, (size_t)o->max_batch), mm3_page_bytes(c, r->kv_type));
    }
    return cli_survey_model(&r->survey, r->device, r->model, o->numerics, r->kv_type, o->max_batch, r->chunk,
                            r->context);
}

int cmd_info(int argc, char **argv)
{
    cli_engine with = CLI_ENGINE_INIT;
    bool json = false;
    const cli_option options[] = {
        { "json", 0, CLI_FLAG, &json, NULL, "as JSON", 0, 0 },
        { .kind = CLI_HEADING, .help = "without -m: the machine and its candidates alone" },
    };
    mm3_device *device = NULL;
    mm3_pins *pins = NULL; /* only checked: nothing runs */
    report *r;
    mm3_status st;
    int status = cli_parse(argc, argv, options, MM3_COUNT(options), &with, 0);
    if (status != CLI_GO) return status;
    if (!(r = cli_alloc(1, sizeof *r))) return CLI_FAILED;
    r->options = with.options;
    st = mm3_device_open(&device, r->options.n_threads);
    if (st == MM3_OK) r->device = mm3_device_info_of(device);
    if (st == MM3_OK && r->options.backend) st = mm3_pins_parse(&pins, r->options.backend, r->device->kind);
    if (st == MM3_OK && r->options.model_dir) st = mm3_model_open(&r->model, r->options.model_dir);
    if (st == MM3_OK) st = fill(r);
    if (st != MM3_OK)
        status = cli_failed();
    else if (json)
        status = print_json(r);
    else {
        print_text(r);
        status = CLI_DONE;
    }
    mm3_pins_free(&pins);
    mm3_model_close(&r->model);
    mm3_device_close(&device);
    mm3_free(r);
    return status;
}
