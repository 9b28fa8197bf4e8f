/* The engine's life cycle: load, plan memory, make buffers, one real token, ready. And what can be asked of it. */
#include <math.h>
#include <string.h>

#include "engine/state.h"

enum { DEFAULT_CONTEXT = 8192, DEFAULT_CHUNK = 256, MIN_LOGITS = 64, MAX_BATCH = 4096, MAX_CHUNK = 65536 };

static mm3_status check_options(const mm3_options *o)
{
    MM3_CHECK(o->synthetic || (o->model_dir && *o->model_dir), MM3_ERR_ARG, "no model folder was given");
    MM3_CHECK(o->numerics == MM3_NUMERICS_W8A8 || o->numerics == MM3_NUMERICS_W8A16, MM3_ERR_ARG,
              "numerics %d: use w8a8 or w8a16", (int)o->numerics);
    MM3_CHECK(o->max_batch >= 1 && o->max_batch <= MAX_BATCH, MM3_ERR_ARG, "max_batch %d: use 1 to %d", o->max_batch,
              MAX_BATCH);
    MM3_CHECK(o->chunk >= 0 && o->chunk <= MAX_CHUNK, MM3_ERR_ARG, "chunk %d: use 1 to %d, or 0 for %d", o->chunk,
              MAX_CHUNK, DEFAULT_CHUNK);
    MM3_CHECK(o->context >= 0, MM3_ERR_ARG, "context %d: it can't be negative", o->context);
    MM3_CHECK(o->kv_gb >= 0 && isfinite(o->kv_gb), MM3_ERR_ARG, "kv_gb %g: it can't be negative", o->kv_gb);
    MM3_CHECK(o->n_token >= 0, MM3_ERR_ARG, "n_token %d: it can't be negative", o->n_token);
    MM3_CHECK(!o->kv_dtype || strcmp(o->kv_dtype, "f32") == 0 || strcmp(o->kv_dtype, "bf16") == 0, MM3_ERR_ARG,
              "kv_dtype '%s': use f32 or bf16", o->kv_dtype);
    return MM3_OK;
}

static mm3_status open_model(mm3_engine *e, const mm3_options *o)
{
    mm3_synthetic s;
    if (o->synthetic) {
        size_t available = mm3_memory_available();
        MM3_TRY(mm3_synthetic_parse(&s, o->synthetic));
        mm3_synthetic_fit(&s, available - available / 4); /* buffers and KV pages want room too */
        MM3_TRY(mm3_model_synthesize(&e->model, &s));
    } else {
        MM3_TRY(mm3_model_open(&e->model, o->model_dir));
    }
    return mm3_generation_config_load(&e->generation, o->synthetic ? NULL : o->model_dir);
}

/* Sizes that the options leave open. */
static mm3_status plan_sizes(mm3_engine *e, const mm3_options *o)
{
    const mm3_config *c = &e->model->config;
    size_t page = 0, per_session;
    MM3_CHECK(o->context <= c->max_position, MM3_ERR_ARG,
              "context %d is beyond the model's max_position_embeddings, %d: lower it", o->context, c->max_position);
    e->context = o->context ? o->context : MM3_MIN(c->max_position, DEFAULT_CONTEXT);
    e->chunk = MM3_MIN(o->chunk ? o->chunk : DEFAULT_CHUNK, MM3_MAX(e->context, 1));
    e->max_batch = o->max_batch;
    e->max_logits = MM3_MAX(e->max_batch, MIN_LOGITS);
    e->kv_type = o->kv_dtype && strcmp(o->kv_dtype, "bf16") == 0 ? MM3_BF16 : MM3_F32;
    page = mm3_page_bytes(c, e->kv_type);
    per_session = ((size_t)e->context + MM3_PAGE_TOKENS - 1) / MM3_PAGE_TOKENS;
    if (o->kv_gb > 0) {
        double n = floor(o->kv_gb * 1e9 / (double)page);
        MM3_CHECK(n >= 1, MM3_ERR_ARG, "kv_gb %g holds no KV page: one of 128 tokens takes %.6f", o->kv_gb,
                  (double)page * 1e-9);
        e->n_pages = (int)MM3_MIN(n, 2147483647.0);
    } else {
        size_t n = mm3_mul(per_session, (size_t)e->max_batch);
        MM3_CHECK(n <= INT32_MAX, MM3_ERR_ARG, "%d sessions of %d tokens need too many KV pages: give kv_gb",
                  e->max_batch, e->context);
        e->n_pages = (int)n;
    }
    return MM3_OK;
}

static void add_stop_ids(mm3_engine *e, const int32_t *ids, int n)
{
    for (int i = 0; i < n; i++) {
        bool known = false;
        for (int j = 0; j < e->n_stop_ids; j++) known |= e->stop_ids[j] == ids[i];
        if (!known && e->n_stop_ids < MM3_COUNT(e->stop_ids)) e->stop_ids[e->n_stop_ids++] = ids[i];
    }
}

static bool keep_first(void *user, int32_t token, float logprob)
{
    (void)logprob;
    *(int32_t *)user = token;
    return true;
}

/* One real token through every operation of a step: a model that can't run fails here and not at a request. */
static mm3_status first_token(mm3_engine *e)
{
    static const mm3_sampling greedy = MM3_SAMPLING_GREEDY;
    mm3_session *s = NULL;
    mm3_status st = MM3_OK;
    int32_t prompt = 0, token;
    int n = MM3_MIN(e->context, 2) - 1;
    double start = mm3_now_s();
    MM3_TRY(mm3_session_open(&s, e));
    MM3_GOTO(mm3_session_sync(s, &prompt, 1));
    if (n > 0) MM3_GOTO(mm3_session_generate(s, &greedy, n, NULL, 0, keep_first, &token, NULL, NULL));
    e->ledger.first_token_s = mm3_now_s() - start;
done:
    mm3_session_close(&s);
    return st == MM3_OK ? MM3_OK : mm3_fail_in(st, "the first token failed");
}

mm3_status mm3_engine_open(mm3_engine **out, const mm3_options *options)
{
    mm3_status st = MM3_OK;
    mm3_forward_options fo = { 0 };
    double start = mm3_now_s();
    mm3_engine *e;
    *out = NULL;
    MM3_TRY(check_options(options));
    e = mm3_calloc(1, sizeof *e);
    MM3_CHECK(e, MM3_ERR_NOMEM, "out of memory for the engine");
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->wake, NULL);
    e->numerics = options->numerics;

    MM3_GOTO(mm3_device_open(&e->device, options->n_threads));
    if (options->backend) MM3_GOTO(mm3_pins_parse(&e->pins, options->backend, mm3_device_info_of(e->device)->kind));
    MM3_GOTO(open_model(e, options));
    add_stop_ids(e, e->model->config.stop_ids, e->model->config.n_stop_ids);
    add_stop_ids(e, e->generation.stop_ids, e->generation.n_stop_ids);

    MM3_GOTO(plan_sizes(e, options));
    fo = (mm3_forward_options){ .numerics = e->numerics,
                                .max_rows = MM3_MAX(e->chunk, e->max_batch),
                                .max_logits = e->max_logits,
                                .kv_type = e->kv_type,
                                .n_slots = e->max_batch,
                                .max_pages = (e->context + MM3_PAGE_TOKENS - 1) / MM3_PAGE_TOKENS,
                                .n_pages = e->n_pages };
    MM3_GOTO(mm3_forward_open(&e->forward, e->model, &fo));
    if (options->n_token) mm3_forward_set_n_token(e->forward, options->n_token);
    e->running = mm3_calloc((size_t)e->max_batch, sizeof *e->running);
    e->slot_of_row = mm3_calloc((size_t)e->max_batch, sizeof *e->slot_of_row);
    e->free_page = mm3_calloc((size_t)e->n_pages, sizeof *e->free_page);
    if (!e->running || !e->slot_of_row || !e->free_page) {
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for the scheduler");
        goto done;
    }
    while (e->n_free_pages < e->n_pages) { /* page 0 on top of the stack */
        e->free_page[e->n_free_pages] = e->n_pages - 1 - e->n_free_pages;
        e->n_free_pages++;
    }
    e->ledger.load_s = mm3_now_s() - start;
    MM3_GOTO(mm3__tune(e, options));
    MM3_GOTO(mm3__scheduler_start(e));
    MM3_GOTO(first_token(e));
    *out = e;
    e = NULL;
done:
    mm3_engine_close(&e);
    return st;
}

void mm3_engine_close(mm3_engine **engine)
{
    mm3_engine *e = engine ? *engine : NULL;
    if (!e) return;
    mm3__scheduler_stop(e);
    mm3__tune_free(e);
    mm3_forward_close(&e->forward);
    mm3_pins_free(&e->pins);
    mm3_model_close(&e->model);
    mm3_device_close(&e->device);
    mm3_free(e->running);
    mm3_free(e->slot_of_row);
    mm3_free(e->free_page);
    pthread_cond_destroy(&e->wake);
    pthread_mutex_destroy(&e->lock);
    mm3_free(e);
    *engine = NULL;
}

mm3_status mm3_engine_plan(mm3_engine *engine, char **text)
{
    *text = NULL;
    if (engine->used) return mm3_plan_print(engine->used, text);
    *text = mm3_strdup("");
    MM3_CHECK(*text, MM3_ERR_NOMEM, "out of memory for the plan");
    return MM3_OK;
}

int mm3_engine_vocab_size(const mm3_engine *engine) { return engine->model->config.vocab_size; }
int mm3_engine_context(const mm3_engine *engine) { return engine->context; }

const int32_t *mm3_engine_stop_ids(const mm3_engine *engine, int *n)
{
    *n = engine->n_stop_ids;
    return engine->stop_ids;
}

mm3_sampling mm3_engine_sampling(const mm3_engine *engine)
{
    const mm3_generation_config *g = &engine->generation;
    mm3_sampling s = MM3_SAMPLING_GREEDY;
    s.temperature = (float)g->temperature;
    s.top_k = g->top_k;
    s.top_p = (float)g->top_p;
    s.min_p = (float)g->min_p;
    s.repetition_penalty = (float)g->repetition_penalty;
    return s;
}

/* A line each, as an array. */
static json_t *lines(const char *text)
{
    json_t *array = json_array();
    for (size_t n; *text; text += n + (text[n] == '\n')) {
        n = strcspn(text, "\n");
        if (n) json_array_append_new(array, json_stringn_nocheck(text, n));
    }
    return array;
}

static json_t *tuning_json(const mm3_engine *e)
{
    const mm3_tune_counts *c = &e->tuned;
    char hash[9] = "";
    if (e->used) mm3_plan_hash(e->used, hash);
    return json_pack("{s:s?, s:o, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:o}", "gate", e->gate, "plan_hash",
                     e->used ? json_string(hash) : json_null(), "tuned", c->tuned, "reused", c->reused, "alone",
                     c->alone, "pinned", c->pinned, "untimed", c->untimed, "rejected", c->rejected, "steps_timed",
                     c->steps_timed, "steps_reused", c->steps_reused, "timings", (json_int_t)c->timings, "warnings",
                     lines(e->tuner ? mm3_tuner_warnings(e->tuner) : ""));
}

static json_t *graphs_json(const mm3_engine *e)
{
    json_t *array = json_array();
    for (int i = 0; i < e->n_graphs; i++) {
        const mm3_decode_graph *g = &e->graph[i];
        json_array_append_new(array, json_pack("{s:i, s:s, s:o}", "m", g->m, "kept", g->winners ? "winners" : "natives",
                                               "ratio", g->ratio > 0 ? json_real(g->ratio) : json_null()));
    }
    return array;
}

/* What happened since the engine became ready. */
static json_t *counters_json(const mm3_engine *e)
{
    const mm3_tune_counts *then = &e->tuned;
    json_int_t calls = 0;
    if (e->tuner) {
        mm3_tune_counts now = mm3_tuner_counts(e->tuner);
        calls = now.tuned + now.reused + now.alone + now.pinned + now.untimed + now.steps_timed + now.steps_reused +
                now.timings - then->tuned - then->reused - then->alone - then->pinned - then->untimed -
                then->steps_timed - then->steps_reused - then->timings;
    }
    return json_pack("{s:I, s:I, s:I, s:I}", "replays", (json_int_t)e->n_replays, "padded_rows",
                     (json_int_t)e->n_padded_rows, "eager_steps", (json_int_t)e->n_eager_steps,
                     "tuner_calls_after_ready", calls);
}

/* A text of many parts is whole or not there. */
mm3_status mm3__json_whole(char **json, const char *what)
{
    if (mm3_json_end() && *json) return MM3_OK;
    mm3_free(*json);
    *json = NULL;
    return mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for %s", what);
}

mm3_status mm3_engine_info(mm3_engine *engine, char **json)
{
    const mm3_engine *e = engine;
    const mm3_config *c = &e->model->config;
    const mm3_device_info *d = mm3_device_info_of(e->device);
    const mm3_ledger *l = &e->ledger;
    char features[128];
    int n_moe = 0, n_sparse = 0;
    json_t *root;
    *json = NULL;
    for (int i = 0; i < c->n_layers; i++) {
        n_moe += c->layer_is_moe[i];
        n_sparse += c->layer_is_sparse[i];
    }
    mm3_device_features_text(d->features, features, sizeof features);
    mm3_json_begin();
    root = json_pack("{s:s, s:s, s:{s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:I,s:I,s:i,s:i},"
                     " s:{s:s,s:s,s:i,s:s}, s:{s:i,s:i,s:i,s:s,s:i,s:I,s:I},"
                     " s:{s:f,s:f,s:f,s:f,s:f,s:f,s:i,s:i}}",
                     "version", MM3_VERSION, "numerics", e->numerics == MM3_NUMERICS_W8A8 ? "w8a8" : "w8a16", /**/
                     "model", "layers", c->n_layers, "sparse_layers", n_sparse, "moe_layers", n_moe, "hidden",
                     c->hidden_size, "heads", c->n_heads, "kv_heads", c->n_kv_heads, "experts", c->n_experts,
                     "experts_per_token", c->experts_per_token, "vocab", c->vocab_size, "max_position", c->max_position,
                     "block_size", c->block_size, "topk_blocks", c->topk_blocks, "index_heads", c->n_index_heads,
                     "weight_bytes", (json_int_t)e->model->weight_bytes, "step_bytes", (json_int_t)e->model->step_bytes,
                     "tensors", e->model->n_tensors, "skipped", e->model->n_skipped, "device", "kind", d->kind, "name",
                     d->name, "threads", d->n_threads, "features", features, /**/
                     "memory", "context", e->context, "max_batch", e->max_batch, "chunk", e->chunk, "kv_dtype",
                     mm3_dtype_name(e->kv_type), "kv_pages", e->n_pages, "kv_bytes",
                     (json_int_t)mm3_forward_kv_bytes(e->forward), "step_buffer_bytes",
                     (json_int_t)mm3_forward_step_buffer_bytes(e->forward), /**/
                     "startup", "load_s", l->load_s, "collect_s", l->collect_s, "tune_s", l->tune_s, "record_s",
                     l->record_s, "joint_s", l->joint_s, "first_token_s", l->first_token_s, "stages_tuned",
                     l->stages_tuned, "stages_reused", l->stages_reused);
    if (root && json_object_set_new(root, "tuning", tuning_json(e)) == 0 &&
        json_object_set_new(root, "graphs", graphs_json(e)) == 0 &&
        json_object_set_new(root, "counters", counters_json(e)) == 0)
        *json = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return mm3__json_whole(json, "the summary");
}
