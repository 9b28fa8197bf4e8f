/* The tuner's life: what is known, what is to be decided, what it costs. */
#include <stdio.h>
#include <string.h>

#include "tune/tuner.h"

static const double JOINT_SHARE = 0.2; /* of the budget, kept for joint checks */

const char *mm3_tune_gate(const char *tune, const char *graphs, const char *plan)
{
    if (graphs && strcmp(graphs, "off") == 0) return "graphs are off";
    if (plan) return "a plan file is given";
    if (tune && strcmp(tune, "off") == 0) return "tuning is off";
    return NULL;
}

void mm3__warn(mm3_tuner *t, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    mm3_buf_printf(&t->warnings, "%s\n", text);
}

double mm3__budget_left(const mm3_tuner *t, bool for_stages)
{
    double now = mm3_now_s(), left = t->options.budget_s * (for_stages ? 1 - JOINT_SHARE : 1) - (now - t->start);
    return for_stages && t->share_end > 0 ? MM3_MIN(left, t->share_end - now) : left;
}

void mm3_tuner_share(mm3_tuner *t, int n_lists)
{
    t->share_end = 0;
    t->share_end = mm3_now_s() + mm3__budget_left(t, true) * 2 / (MM3_MAX(n_lists, 1) + 1.0);
}

mm3_status mm3__scratch_need(mm3_tuner *t, size_t n_bytes)
{
    unsigned char *p;
    if (n_bytes <= t->n_scratch) return MM3_OK;
    MM3_CHECK(n_bytes <= t->options.max_scratch, MM3_ERR_NOMEM,
              "out of memory: it needs %zu bytes of scratch, and may have %zu", n_bytes, t->options.max_scratch);
    p = mm3_alloc_aligned(n_bytes);
    MM3_CHECK(p, MM3_ERR_NOMEM, "out of memory: it needs %zu bytes of scratch", n_bytes);
    mm3_free(t->scratch);
    t->scratch = p;
    t->n_scratch = n_bytes;
    return MM3_OK;
}

mm3_status mm3_tuner_open(mm3_tuner **out, mm3_device *device, const mm3_tune_options *options)
{
    mm3_status st = MM3_OK;
    mm3_plan_head head;
    mm3_tuner *t = mm3_calloc(1, sizeof *t);
    *out = NULL;
    MM3_CHECK(t, MM3_ERR_NOMEM, "out of memory for the tuner");
    t->start = mm3_now_s();
    t->device = device;
    t->info = mm3_device_info_of(device);
    t->options = *options;
    if (!t->options.kernels_of) t->options.kernels_of = mm3_kernels_of;
    if (!t->options.now) t->options.now = mm3_now_s;
    if (!t->options.max_scratch) t->options.max_scratch = t->info->memory_bytes / 4;
    mm3_plan_head_of_device(&head, t->info, MM3_TUNE_POLICY, options->workload);
    MM3_GOTO(mm3_plan_open(&t->plan, &head));
    if (!options->force) {
        mm3__cache_recall(t);
        MM3_GOTO(mm3__memory_recall(t->plan));
    }
    t->journal = mm3__journal_open(t);
    mm3_plan_bind(t->plan, t->info->kind, t->options.kernels_of, "the plan cache", &t->warnings);
    *out = t;
    t = NULL;
done:
    mm3_tuner_close(&t);
    return st;
}

void mm3_tuner_close(mm3_tuner **tuner)
{
    mm3_tuner *t = tuner ? *tuner : NULL;
    if (!t) return;
    mm3__journal_close(&t->journal);
    mm3_plan_close(&t->plan);
    mm3_buf_free(&t->warnings);
    mm3_free(t->scratch);
    mm3_free(t->stream);
    mm3_free(t);
    *tuner = NULL;
}

const char *mm3_tuner_warnings(const mm3_tuner *t)
{
    if (t->warnings.failed) return "memory ran out while tuning: what else went wrong is not known\n";
    return t->warnings.data ? t->warnings.data : "";
}

mm3_binding mm3_tuner_binding(const mm3_tuner *t)
{
    return (mm3_binding){ .plan = t->plan,
                          .pins = t->options.pins,
                          .device = t->info,
                          .kernels_of = t->options.kernels_of,
                          .deterministic = t->options.deterministic };
}

mm3_tune_counts mm3_tuner_counts(const mm3_tuner *t)
{
    mm3_tune_counts c = t->counts;
    c.seconds = mm3_now_s() - t->start;
    return c;
}

void mm3_tuner_save(mm3_tuner *t)
{
    if (mm3__memory_keep(t->plan) != MM3_OK) mm3__warn(t, "%s: the next engine tunes again", mm3_last_error());
    (void)mm3__cache_keep(t);
}

/* ---- stages ------------------------------------------------------------------------------------------------------ */

/* A pinned stage is left alone: the plan says so and nothing is measured. */
static mm3_status note_pin(mm3_tuner *t, const mm3__work *w, bool *pinned)
{
    mm3_binding b = mm3_tuner_binding(t);
    const void *contract = w->group[0]->contract[0];
    mm3_key key = { .op = w->op };
    mm3__entrant *entrant = NULL, alone = { .in = true };
    char part[MM3_MAX_KEY_TEXT];
    mm3_status st = MM3_OK;
    int n = 0, chosen = -1;
    *pinned = false;
    if (!t->options.pins) return MM3_OK;
    mm3_op_info_of(w->op)->key(contract, &key);
    if (mm3_pins_match(t->options.pins, &key, &alone.choice)) {
        *pinned = true;
        snprintf(alone.source, sizeof alone.source, "%s", mm3_kernel_source(alone.choice.kernel));
        return mm3__decide(t, w, &alone, 1, 0, MM3_HOW_PINNED);
    }
    if (!mm3_part_is_pinned(t->options.pins, w->op, contract, part, sizeof part)) return MM3_OK;
    MM3_GOTO(mm3__entrants(t, w, &entrant, &n));
    MM3_GOTO(mm3_choose_planned(&b, w->op, contract, &alone.choice));
    for (int i = 0; i < n; i++)
        if (entrant[i].choice.kernel == alone.choice.kernel && entrant[i].choice.tactic == alone.choice.tactic)
            chosen = i;
    if (chosen >= 0 && mm3_kernel_is_split(alone.choice.kernel)) {
        *pinned = true;
        st = mm3__decide(t, w, entrant, n, chosen, MM3_HOW_PINNED);
    }
done:
    mm3_free(entrant);
    return st;
}

static mm3_status is_known(mm3_tuner *t, const mm3__work *w, bool *known)
{
    const mm3_decision *d = mm3_plan_find(t->plan, w->key);
    mm3__entrant *entrant = NULL;
    int n;
    *known = false;
    if (!d) return MM3_OK;
    if (d->made_here) { /* what the share of an earlier list did not suffice for is looked at again */
        *known = !mm3__is_left(d) || mm3__budget_left(t, true) <= 0;
        return MM3_OK;
    }
    MM3_TRY(mm3__entrants(t, w, &entrant, &n));
    *known = mm3__decision_is_current(d, entrant, n);
    mm3_free(entrant);
    return MM3_OK;
}

static mm3_status one_stage(mm3_tuner *t, const mm3__work *w, int i, int n)
{
    const mm3_decision *d;
    bool pinned, known;
    MM3_TRY(note_pin(t, w, &pinned));
    t->counts.pinned += pinned;
    if (pinned) return MM3_OK;
    MM3_TRY(is_known(t, w, &known));
    if (known) {
        t->counts.reused += !mm3_plan_find(t->plan, w->key)->made_here;
        return MM3_OK;
    }
    if (t->options.progress)
        MM3_CHECK(t->options.progress(t->options.user, i, n, w->key, NULL), MM3_ERR_CANCELLED, "tuning was cancelled");
    MM3_TRY(mm3__stage_tune(t, w));
    d = mm3_plan_find(t->plan, w->key);
    if (t->options.progress)
        MM3_CHECK(t->options.progress(t->options.user, i, n, w->key, d->choice), MM3_ERR_CANCELLED,
                  "tuning was cancelled");
    return MM3_OK;
}

/* Deterministic keys: those of the same operation that differ in m alone are one decision. Of many m the least, the
 * greatest and those between are timed. */
static void gather_groups(const mm3_stage *stages, int n, int first, mm3__work *w)
{
    const mm3_stage *same[256];
    int n_same = 0;
    for (int i = first; i < n && n_same < MM3_COUNT(same); i++) {
        char key[MM3_MAX_KEY_TEXT];
        if (stages[i].op != w->op || stages[i].n == 0) continue;
        mm3_plan_key(stages[i].op, stages[i].contract[0], true, key, sizeof key);
        if (strcmp(key, w->key) == 0) same[n_same++] = &stages[i];
    }
    w->n_groups = MM3_MIN(n_same, (int)MM3__MAX_GROUPS);
    for (int g = 0; g < w->n_groups; g++)
        w->group[g] = same[w->n_groups == 1 ? 0 : g * (n_same - 1) / (w->n_groups - 1)];
}

static double bytes_of_step(const mm3_stage *stages, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < stages[i].n; j++) sum += mm3_op_info_of(stages[i].op)->bytes(stages[i].contract[j]);
    return sum;
}

mm3_status mm3_tuner_stages(mm3_tuner *t, const mm3_stage *stages, int n, double step_bytes)
{
    if (step_bytes <= 0) step_bytes = bytes_of_step(stages, n);
    for (int i = 0; i < n; i++) {
        char key[MM3_MAX_KEY_TEXT];
        mm3__work w = { .op = stages[i].op, .key = key, .group = { &stages[i] }, .n_groups = 1 };
        if (stages[i].n == 0) continue;
        w.step_bytes = step_bytes;
        mm3_plan_key(w.op, stages[i].contract[0], t->options.deterministic, key, sizeof key);
        if (t->options.deterministic) gather_groups(stages, n, i, &w);
        MM3_TRY(one_stage(t, &w, i, n));
    }
    return MM3_OK;
}

mm3_status mm3_tuner_knows(mm3_tuner *t, const mm3_stage *stages, int n, bool *knows)
{
    *knows = true;
    for (int i = 0; i < n && *knows; i++) {
        char key[MM3_MAX_KEY_TEXT], part[MM3_MAX_KEY_TEXT];
        mm3__work w = { .op = stages[i].op, .key = key, .group = { &stages[i] }, .n_groups = 1 };
        mm3_key fields = { .op = w.op };
        mm3_choice pin;
        const void *contract = stages[i].n ? stages[i].contract[0] : NULL;
        if (!contract) continue;
        mm3_op_info_of(w.op)->key(contract, &fields);
        if (t->options.pins && mm3_pins_match(t->options.pins, &fields, &pin)) continue;
        if (mm3_part_is_pinned(t->options.pins, w.op, contract, part, sizeof part)) continue;
        mm3_plan_key(w.op, contract, t->options.deterministic, key, sizeof key);
        MM3_TRY(is_known(t, &w, knows));
    }
    return MM3_OK;
}
