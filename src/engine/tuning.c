/* From natives to recorded winners: the gate, pass 1 (collect and tune), pass 2 (record), the joint check.
 * design.md section 5. Runs on the opening thread, before the scheduler and before any request.
 * Decides nothing itself: src/tune measures and decides; this hands it stages on real operands (warm_up.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/state.h"

enum { MAX_SHAPES = 64 };
static const int default_prefill[] = { 64, 256, 1024, 4096 };

/* One step that will be run: its shape, and the stages it consists of. */
typedef struct planned_step {
    mm3_step_shape shape;
    mm3_recorder *collect; /* owned */
    const mm3_stage *stages;
    int n_stages;
} planned_step;

typedef struct tuning {
    mm3_engine *e;
    const mm3_options *options;
    int shape[MAX_SHAPES]; /* graph shapes, ascending */
    int n_shapes;
    planned_step *step; /* owned: decode steps descending, then prefill steps */
    int n_decode, n_steps;
    int n_tuned_before; /* stages of the steps before the one under way, for progress */
    int n_stages_in_all;
    mm3__warm warm;
    bool natives_everywhere;
} tuning;

/* ---- shapes and the gate ----------------------------------------------------------------------------------------- */

static mm3_status add_shape(tuning *t, int m)
{
    int at = t->n_shapes;
    for (int i = 0; i < t->n_shapes; i++)
        if (t->shape[i] == m) return MM3_OK;
    MM3_CHECK(at < MAX_SHAPES, MM3_ERR_ARG, "graph_shapes: more than %d", MAX_SHAPES);
    for (; at > 0 && t->shape[at - 1] > m; at--) t->shape[at] = t->shape[at - 1];
    t->shape[at] = m;
    t->n_shapes++;
    return MM3_OK;
}

static mm3_status read_shapes(tuning *t)
{
    const char *list = t->options->graph_shapes;
    int max = t->e->max_batch;
    if (!list)
        for (int m = 1; m > 0 && m < max; m = mm3_graph_shape(m + 1)) MM3_TRY(add_shape(t, m));
    while (list && *list) {
        size_t n = strcspn(list, ",");
        char word[16] = "";
        int64_t m;
        if (n < sizeof word) memcpy(word, list, n);
        MM3_CHECK(mm3_parse_int(word, 1, 1 << 20, &m), MM3_ERR_ARG, "graph_shapes '%s': whole numbers apart by commas",
                  t->options->graph_shapes);
        if (m < max) MM3_TRY(add_shape(t, (int)m));
        list += n + (list[n] == ',');
    }
    return add_shape(t, max); /* the largest batch always has its graph */
}

static mm3_status check_word(const char *name, const char *value, const char *const *words, int n)
{
    for (int i = 0; i < n; i++)
        if (!value || strcmp(value, words[i]) == 0) return MM3_OK;
    return mm3_fail(MM3_ERR_ARG, MM3_HERE, "%s '%s': use %s, %s%s%s", name, value, words[0], words[1],
                    n > 2 ? " or " : "", n > 2 ? words[2] : "");
}

static bool is(const char *value, const char *word) { return value && strcmp(value, word) == 0; }

static mm3_status find_gate(tuning *t)
{
    static const char *const tune_words[] = { "auto", "force", "off" }, *const graph_words[] = { "on", "off" };
    const mm3_options *o = t->options;
    MM3_TRY(check_word("tune", o->tune, tune_words, 3));
    MM3_TRY(check_word("graphs", o->graphs, graph_words, 2));
    MM3_CHECK(o->tune_budget_s >= 0, MM3_ERR_ARG, "tune_budget_s %g: it can't be negative", o->tune_budget_s);
    t->e->gate = mm3_tune_gate(o->tune, o->graphs, o->plan);
    MM3_CHECK(!(o->plan && is(o->graphs, "off")), MM3_ERR_ARG, "a plan needs graphs: leave out graphs off");
    MM3_CHECK(!(o->plan && o->tune && !is(o->tune, "auto")), MM3_ERR_ARG,
              "plan and tune '%s' contradict each other: with a plan file nothing is tuned", o->tune);
    MM3_CHECK(!(o->deterministic && o->backend && is(o->graphs, "off")), MM3_ERR_ARG,
              "without graphs deterministic can't be promised for pinned kernels: leave out one of the three");
    return MM3_OK;
}

/* ---- pass 1: collect --------------------------------------------------------------------------------------------- */

static mm3_status collect(tuning *t, mm3_step_shape shape)
{
    planned_step *s = &t->step[t->n_steps++];
    s->shape = shape;
    MM3_TRY(mm3_collect_open(&s->collect));
    MM3_TRY(mm3_forward_issue(t->e->forward, s->collect, &shape));
    s->stages = mm3_collect_stages(s->collect, &s->n_stages);
    t->n_stages_in_all += s->n_stages;
    return MM3_OK;
}

/* Decode steps descending, then what prefill and score may issue: every chunk up to the largest finds a decision of its
 * size or the next larger one. */
static mm3_status collect_all(tuning *t)
{
    mm3_engine *e = t->e;
    t->step = mm3_calloc(MAX_SHAPES + 2 * (MM3_COUNT(default_prefill) + 2), sizeof *t->step);
    MM3_CHECK(t->step, MM3_ERR_NOMEM, "out of memory for the tuner");
    for (int i = t->n_shapes - 1; i >= 0; i--) {
        int m = t->shape[i];
        MM3_TRY(collect(t, (mm3_step_shape){ .m = m, .n_logits = m, .sample = true, .context = e->context }));
    }
    t->n_decode = t->n_steps;
    for (int i = 0; i <= MM3_COUNT(default_prefill); i++) {
        bool last = i == MM3_COUNT(default_prefill) || default_prefill[i] >= e->chunk;
        int m = last ? e->chunk : default_prefill[i];
        MM3_TRY(collect(t, (mm3_step_shape){ .m = m, .n_logits = 1, .context = e->context }));
        if (last) break;
    }
    /* Keys without m hold for every chunk, the shortest too: what is chosen must accept one row. */
    if (t->options->deterministic)
        MM3_TRY(collect(t, (mm3_step_shape){ .m = 1, .n_logits = 1, .context = e->context }));
    { /* score takes the logits of every row */
        int m = MM3_MIN(e->chunk, e->max_logits);
        MM3_TRY(collect(t, (mm3_step_shape){ .m = m, .n_logits = m, .context = e->context }));
    }
    return MM3_OK;
}

/* Pins are the user's word, but equal bits alone and in a batch need more. */
static mm3_status check_pins(const tuning *t)
{
    for (int i = 0; i < t->n_steps; i++)
        MM3_TRY(mm3_pins_check_deterministic(t->e->pins, t->step[i].stages, t->step[i].n_stages, t->step[0].stages,
                                             t->step[0].n_stages));
    return MM3_OK;
}

/* ---- pass 1: tune ------------------------------------------------------------------------------------------------ */

static int states(void *user, const mm3_stage *stage, int i)
{
    return mm3__warm_state(&((tuning *)user)->warm, stage, i);
}

static bool progress(void *user, int i_stage, int n_stages, const char *key, const char *best)
{
    tuning *t = user;
    (void)n_stages; /* of this list; all lists count */
    if (!t->options->on_tune) return true;
    return t->options->on_tune(t->options->on_tune_user, t->n_tuned_before + i_stage, t->n_stages_in_all, key, best);
}

static mm3_status tune_list(tuning *t, const mm3_stage *stages, int n, const mm3_step_shape *shape, double step_bytes)
{
    bool known;
    MM3_TRY(mm3_tuner_knows(t->e->tuner, stages, n, &known));
    if (!known) MM3_TRY(mm3__warm_up(&t->warm, shape));
    MM3_TRY(mm3_tuner_stages(t->e->tuner, stages, n, step_bytes));
    t->n_tuned_before += n;
    return MM3_OK;
}

static int compare_m(const void *a, const void *b)
{
    const planned_step *const *x = a, *const *y = b;
    return ((*x)->shape.m > (*y)->shape.m) - ((*x)->shape.m < (*y)->shape.m);
}

/* Keys without m are decided once, from steps of every size: all stages in one list, by m. Each contract takes the
 * first rows of the largest step. */
static mm3_status tune_together(tuning *t)
{
    mm3_status st = MM3_OK;
    const planned_step **order = mm3_calloc((size_t)t->n_steps, sizeof *order);
    mm3_stage *all = mm3_calloc((size_t)t->n_stages_in_all, sizeof *all); /* the lists' own texts and contracts */
    mm3_step_shape largest = { .sample = true, .context = t->e->context };
    int n = 0;
    if (!order || !all) {
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for the tuner");
        goto done;
    }
    for (int i = 0; i < t->n_steps; i++) {
        order[i] = &t->step[i];
        largest.m = MM3_MAX(largest.m, t->step[i].shape.m);
        largest.n_logits = MM3_MAX(largest.n_logits, t->step[i].shape.n_logits);
    }
    qsort(order, (size_t)t->n_steps, sizeof *order, compare_m);
    for (int i = 0; i < t->n_steps; i++) {
        memcpy(all + n, order[i]->stages, (size_t)order[i]->n_stages * sizeof *all);
        n += order[i]->n_stages;
    }
    MM3_GOTO(tune_list(t, all, n, &largest, t->e->model->step_bytes));
done:
    mm3_free(order);
    mm3_free(all);
    return st;
}

static mm3_status tune_steps(tuning *t)
{
    if (t->options->deterministic) return tune_together(t);
    for (int pass = 0; pass < 2; pass++) { /* what a list's share did not suffice for has what the others left */
        t->n_tuned_before = 0;
        for (int i = 0; i < t->n_steps; i++) {
            mm3_tuner_share(t->e->tuner, t->n_steps - i);
            MM3_TRY(tune_list(t, t->step[i].stages, t->step[i].n_stages, &t->step[i].shape, 0));
        }
    }
    return MM3_OK;
}

/* ---- pass 2: record, and the joint check ------------------------------------------------------------------------- */

static mm3_status record(mm3_engine *e, const mm3_step_shape *shape, mm3_choose *choose, void *user, mm3_recorder **out)
{
    MM3_TRY(mm3_record_open(out, e->device, choose, user));
    return mm3_forward_issue(e->forward, *out, shape);
}

/* Graphs of one shape: the winners', and the natives' where both are to be compared. */
typedef struct pair_of_graphs {
    mm3_recorder *winners, *natives;
} pair_of_graphs;

static mm3_status give_scratch(mm3_engine *e, pair_of_graphs *pair, int n)
{
    size_t need = 0;
    for (int i = 0; i < n; i++) {
        if (pair[i].winners) need = MM3_MAX(need, mm3_record_scratch(pair[i].winners));
        if (pair[i].natives) need = MM3_MAX(need, mm3_record_scratch(pair[i].natives));
    }
    e->graph_scratch = mm3_alloc_aligned(need);
    MM3_CHECK(e->graph_scratch, MM3_ERR_NOMEM, "out of memory: the recorded steps need %zu bytes of scratch", need);
    for (int i = 0; i < n; i++) {
        if (pair[i].winners) mm3_record_set_scratch(pair[i].winners, e->graph_scratch);
        if (pair[i].natives) mm3_record_set_scratch(pair[i].natives, e->graph_scratch);
    }
    return MM3_OK;
}

/* The verdict of a strict plan, or of the joint check. */
static mm3_status judge_step(tuning *t, const planned_step *s, const pair_of_graphs *pair, bool *winners, double *ratio)
{
    mm3_engine *e = t->e;
    char name[32], of[9];
    const mm3_step_verdict *known;
    snprintf(name, sizeof name, "m=%d", s->shape.m);
    MM3_TRY(mm3_binding_hash(&e->binding, s->stages, s->n_stages, of));
    known = mm3_plan_find_step(e->binding.plan, name, of);
    if (e->plan) {
        MM3_CHECK(known, MM3_ERR_UNSUPPORTED,
                  "%s: no line 'step %s' of these decisions: make the plan again with 'mm3 tune'", t->options->plan,
                  name);
    } else {
        char title[40];
        snprintf(title, sizeof title, "step %s", name);
        if (!known || !known->timed) { /* it will be timed, in the middle of what contexts there are */
            MM3_CHECK(progress(t, 0, 0, title, NULL), MM3_ERR_CANCELLED, "tuning was cancelled");
            mm3__warm_inputs(&t->warm, &s->shape);
            mm3__warm_to_middle(&t->warm);
        }
        MM3_TRY(mm3_tuner_joint(e->tuner, name, s->stages, s->n_stages, mm3_record_graph(pair->winners),
                                mm3_record_graph(pair->natives), NULL, NULL, winners));
        known = mm3_plan_find_step(e->binding.plan, name, of);
    }
    *winners = known && known->winners;
    *ratio = known && known->timed ? known->ratio : 0;
    return MM3_OK;
}

/* Record every decode step, descending; keep for each shape the graph that wins as a whole. Where bits must not depend
 * on the shape, winners are kept for all of them or for none. */
static mm3_status record_steps(tuning *t)
{
    mm3_engine *e = t->e;
    mm3_status st = MM3_OK;
    bool planned = e->tuner || e->plan, all_win = true;
    pair_of_graphs *pair = mm3_calloc((size_t)t->n_decode, sizeof *pair);
    double start = mm3_now_s();
    e->graph = mm3_calloc((size_t)t->n_decode, sizeof *e->graph);
    if (!pair || !e->graph) {
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for graphs");
        goto done;
    }
    for (int i = 0; i < t->n_decode; i++) {
        const mm3_step_shape *shape = &t->step[i].shape;
        if (planned) MM3_GOTO(record(e, shape, mm3_choose_planned, &e->binding, &pair[i].winners));
        MM3_GOTO(record(e, shape, mm3_choose_native, e->pins, &pair[i].natives));
    }
    MM3_GOTO(give_scratch(e, pair, t->n_decode));
    e->ledger.record_s = mm3_now_s() - start;
    start = mm3_now_s();
    for (int i = 0; i < t->n_decode; i++) {
        mm3_decode_graph *g = &e->graph[t->n_decode - 1 - i]; /* ascending */
        if (planned) MM3_GOTO(judge_step(t, &t->step[i], &pair[i], &g->winners, &g->ratio));
        g->m = t->step[i].shape.m;
        all_win &= g->winners;
    }
    t->natives_everywhere = t->options->deterministic && !all_win;
    for (int i = 0; i < t->n_decode; i++) {
        mm3_decode_graph *g = &e->graph[t->n_decode - 1 - i];
        mm3_recorder **kept;
        g->winners &= !t->natives_everywhere;
        kept = g->winners ? &pair[i].winners : &pair[i].natives;
        g->recorder = *kept;
        *kept = NULL;
        e->n_graphs++;
    }
    e->ledger.joint_s = mm3_now_s() - start;
done:
    for (int i = 0; pair && i < t->n_decode; i++) {
        mm3_record_close(&pair[i].winners);
        mm3_record_close(&pair[i].natives);
    }
    mm3_free(pair);
    return st;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static mm3_status open_tuner(tuning *t)
{
    mm3_engine *e = t->e;
    mm3_tune_options *o = &e->tune_options;
    *o = (mm3_tune_options)MM3_TUNE_OPTIONS_INIT;
    o->pins = e->pins;
    o->cache_dir = t->options->plan_cache;
    o->workload = MM3_TUNE_WORKLOAD;
    o->force = is(t->options->tune, "force");
    o->deterministic = t->options->deterministic;
    if (t->options->tune_budget_s > 0) { /* who gives more time wants closer calls decided too */
        o->stage_s *= MM3_MAX(t->options->tune_budget_s / o->budget_s, 1.0);
        o->budget_s = t->options->tune_budget_s;
    }
    o->progress = progress;
    o->states = states;
    o->user = t;
    MM3_TRY(mm3_tuner_open(&e->tuner, e->device, o));
    e->binding = mm3_tuner_binding(e->tuner);
    return MM3_OK;
}

static mm3_status read_plan(tuning *t)
{
    mm3_engine *e = t->e;
    const mm3_device_info *info = mm3_device_info_of(e->device);
    MM3_TRY(mm3_plan_load_strict(&e->plan, t->options->plan, info, MM3_TUNE_WORKLOAD, NULL));
    e->binding =
        (mm3_binding){ .plan = e->plan, .pins = e->pins, .device = info, .deterministic = t->options->deterministic };
    for (int i = 0; i < t->n_steps; i++) {
        mm3_status st = mm3_plan_require(&e->binding, t->step[i].stages, t->step[i].n_stages);
        if (st != MM3_OK) return mm3_fail_in(st, "%s", t->options->plan);
    }
    return MM3_OK;
}

/* Of all that the plan holds (its cache file serves every model on the machine), what these steps consist of. */
static mm3_status keep_used(tuning *t)
{
    mm3_engine *e = t->e;
    const mm3_plan *plan = e->binding.plan;
    MM3_TRY(mm3_plan_open(&e->used, mm3_plan_head_of(plan)));
    for (int i = 0; i < t->n_steps; i++) {
        const planned_step *s = &t->step[i];
        char name[32], of[9];
        const mm3_step_verdict *v;
        for (int j = 0; j < s->n_stages; j++) {
            char key[MM3_MAX_KEY_TEXT];
            const mm3_decision *d;
            mm3_plan_key(s->stages[j].op, s->stages[j].contract[0], e->binding.deterministic, key, sizeof key);
            d = mm3_plan_find(plan, key);
            if (d && !mm3_plan_find(e->used, key)) MM3_TRY(mm3_plan_set(e->used, d));
        }
        if (i >= t->n_decode) continue;
        snprintf(name, sizeof name, "m=%d", s->shape.m);
        MM3_TRY(mm3_binding_hash(&e->binding, s->stages, s->n_stages, of));
        v = mm3_plan_find_step(plan, name, of);
        if (v) MM3_TRY(mm3_plan_set_step(e->used, v));
    }
    return MM3_OK;
}

static mm3_status run(tuning *t)
{
    mm3_engine *e = t->e;
    double start = mm3_now_s();
    MM3_TRY(find_gate(t));
    if (!is(t->options->graphs, "off")) {
        MM3_TRY(read_shapes(t));
        /* Recorded steps hold addresses: what they may read is made now. Memory that is never touched costs nothing. */
        MM3_TRY(mm3_forward_need_counts(e->forward));
        MM3_TRY(collect_all(t));
    }
    if (t->options->deterministic && e->pins) MM3_TRY(check_pins(t));
    if (!e->gate) MM3_TRY(open_tuner(t));
    if (t->options->plan) MM3_TRY(read_plan(t));
    e->ledger.collect_s = mm3_now_s() - start;
    start = mm3_now_s();
    if (e->tuner) MM3_TRY(tune_steps(t));
    e->ledger.tune_s = mm3_now_s() - start;
    if (t->n_decode) MM3_TRY(record_steps(t));
    if (e->tuner || e->plan) MM3_TRY(keep_used(t));
    if (e->tuner) {
        e->tuned = mm3_tuner_counts(e->tuner);
        e->ledger.stages_tuned = e->tuned.tuned;
        e->ledger.stages_reused = e->tuned.reused;
    }
    e->binding.round_up = true; /* a chunk uses the decision of the next larger shape */
    return e->used && !t->natives_everywhere ? mm3_eager_open(&e->recorder, e->device, mm3_choose_planned, &e->binding)
                                             : mm3_eager_open(&e->recorder, e->device, mm3_choose_native, e->pins);
}

mm3_status mm3__tune(mm3_engine *engine, const mm3_options *options)
{
    tuning t = { .e = engine, .options = options, .warm = { .engine = engine } };
    mm3_status st = run(&t);
    if (engine->tuner) mm3_tuner_save(engine->tuner); /* also where it was cancelled: it goes on from there */
    mm3__warm_end(&t.warm);
    for (int i = 0; i < t.n_steps; i++) mm3_collect_close(&t.step[i].collect);
    mm3_free(t.step);
    engine->tune_options.user = NULL; /* nothing is tuned after this */
    engine->tune_options.progress = NULL;
    engine->tune_options.states = NULL;
    return st;
}

void mm3__tune_free(mm3_engine *engine)
{
    mm3_eager_close(&engine->recorder);
    for (int i = 0; i < engine->n_graphs; i++) mm3_record_close(&engine->graph[i].recorder);
    mm3_free(engine->graph);
    mm3_free(engine->graph_scratch);
    mm3_plan_close(&engine->used);
    mm3_plan_close(&engine->plan);
    mm3_tuner_close(&engine->tuner);
}
