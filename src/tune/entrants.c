/* Who may run a stage, and what is written down about each. */
#include <stdio.h>
#include <string.h>

#include "tune/tuner.h"

void mm3__entrant_leave_out(mm3__entrant *e, mm3_fate fate, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(e->why, sizeof e->why, fmt, args);
    va_end(args);
    e->fate = fate;
    e->in = false;
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

mm3_status mm3__choose_native(void *user, mm3_op_id op, const void *contract, mm3_choice *choice)
{
    const mm3_tuner *t = user;
    const mm3_kernel *k[MM3_MAX_CANDIDATES];
    (void)contract;
    MM3_CHECK(t->options.kernels_of(op, t->info->kind, k, MM3_MAX_CANDIDATES) > 0, MM3_ERR_UNSUPPORTED,
              "%s has no candidate on %s", mm3_op_info_of(op)->name, t->info->kind);
    choice->kernel = k[0];
    choice->tactic = &k[0]->tactics[0];
    return MM3_OK;
}

mm3_status mm3__choose_entrant(void *user, mm3_op_id op, const void *contract, mm3_choice *choice)
{
    const mm3__choosing *c = user;
    mm3_binding b = mm3_tuner_binding(c->tuner);
    if (op != c->choice.kernel->op) return mm3_choose_planned(&b, op, contract, choice);
    *choice = c->choice;
    return MM3_OK;
}

/* A split chain is as new as what its parts are bound to. */
static void source_of(mm3_tuner *t, const mm3_kernel *kernel, const void *contract, char source[9])
{
    mm3_binding b = mm3_tuner_binding(t);
    mm3_part parts[MM3_MAX_PARTS];
    uint32_t h = MM3_HASH_START;
    int n;
    snprintf(source, 9, "%s", mm3_kernel_source(kernel));
    if (!mm3_kernel_is_split(kernel)) return;
    n = mm3_op_info_of(kernel->op)->split(contract, parts);
    for (int i = -1; i < n; i++) {
        char text[MM3_MAX_CHOICE_TEXT + 16], name[MM3_MAX_CHOICE_TEXT];
        mm3_choice c;
        if (i < 0) {
            snprintf(text, sizeof text, "%s", source);
        } else {
            if (mm3_choose_planned(&b, parts[i].op, parts[i].u.bytes, &c) != MM3_OK) continue;
            mm3_choice_text(c.kernel, c.tactic, name, sizeof name);
            snprintf(text, sizeof text, "%s %s", name, mm3_kernel_source(c.kernel));
        }
        h = mm3_hash(h, text, strlen(text));
    }
    snprintf(source, 9, "%08x", (unsigned)h);
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static const char *refusal(mm3_tuner *t, const mm3__work *w, const mm3_choice *c)
{
    const char *why = NULL;
    if (!c->kernel->refuses) return NULL;
    for (int g = 0; g < w->n_groups; g++)
        for (int j = 0; j < w->group[g]->n && !why; j++)
            why = c->kernel->refuses(t->info, w->group[g]->contract[j], c->tactic);
    return why;
}

static void judge(mm3_tuner *t, const mm3__work *w, mm3__entrant *e, const char *pinned_part)
{
    const char *why = refusal(t, w, &e->choice);
    e->in = true;
    if (why)
        mm3__entrant_leave_out(e, MM3_FATE_REFUSED, "%s", why);
    else if (mm3_plan_has_crashed(t->plan, w->op, e->choice.kernel->name, e->source))
        mm3__entrant_leave_out(e, MM3_FATE_FAILED, "crashed in an earlier run");
    else if (t->options.deterministic && !e->choice.tactic->row_invariant)
        mm3__entrant_leave_out(e, MM3_FATE_DISQUALIFIED, "a row's bits depend on other rows");
    else if (*pinned_part && !mm3_kernel_is_split(e->choice.kernel))
        mm3__entrant_leave_out(e, MM3_FATE_DISQUALIFIED, "its part '%s' is pinned", pinned_part);
}

mm3_status mm3__entrants(mm3_tuner *t, const mm3__work *w, mm3__entrant **entrant, int *n)
{
    const mm3_kernel *k[MM3_MAX_CANDIDATES];
    const void *contract = w->group[0]->contract[0];
    char part[MM3_MAX_KEY_TEXT] = "";
    int n_kernels = MM3_MIN(t->options.kernels_of(w->op, t->info->kind, k, MM3_MAX_CANDIDATES), MM3_MAX_CANDIDATES);
    int max = 0;
    for (int i = 0; i < n_kernels; i++) max += k[i]->n_tactics;
    *n = 0;
    *entrant = mm3_calloc((size_t)max, sizeof **entrant);
    MM3_CHECK(*entrant, MM3_ERR_NOMEM, "out of memory for the candidates of %s", w->key);
    if (!mm3_part_is_pinned(t->options.pins, w->op, contract, part, sizeof part)) part[0] = 0;
    for (int i = 0; i < n_kernels; i++)
        for (int j = 0; j < k[i]->n_tactics; j++) {
            mm3__entrant *e = &(*entrant)[(*n)++];
            e->choice = (mm3_choice){ k[i], &k[i]->tactics[j] };
            source_of(t, k[i], contract, e->source);
            judge(t, w, e, part);
        }
    return MM3_OK;
}

bool mm3__decision_is_current(const mm3_decision *d, const mm3__entrant *entrant, int n)
{
    if (!d->kernel || (d->how != MM3_HOW_TIMED && d->how != MM3_HOW_ALONE) || d->n_tried != n - 1) return false;
    for (int i = 0; i < n; i++) {
        char choice[MM3_MAX_CHOICE_TEXT];
        bool found;
        mm3_choice_text(entrant[i].choice.kernel, entrant[i].choice.tactic, choice, sizeof choice);
        found = strcmp(d->choice, choice) == 0;
        if (found && (strcmp(d->source, entrant[i].source) != 0 || !entrant[i].in)) return false;
        for (int j = 0; j < d->n_tried && !found; j++)
            found = strcmp(d->tried[j].choice, choice) == 0 && strcmp(d->tried[j].source, entrant[i].source) == 0;
        if (!found) return false;
    }
    return true;
}

bool mm3__is_left(const mm3_decision *d) { return d && d->made_here && d->how == MM3_HOW_UNTIMED; }

/* ---- what is written down ---------------------------------------------------------------------------------------- */

static mm3_tried tried_of(const mm3__entrant *e, mm3_how how, char *choice, char *why)
{
    const mm3_racer *r = &e->result;
    mm3_tried t = { .choice = choice, .fate = e->fate, .error = e->error };
    mm3_choice_text(e->choice.kernel, e->choice.tactic, choice, MM3_MAX_CHOICE_TEXT);
    memcpy(t.source, e->source, sizeof t.source);
    if (!e->in) {
        snprintf(why, sizeof e->why, "%s", e->why);
        t.why = why;
    } else if (how != MM3_HOW_TIMED || r->rounds == 0) {
        t.fate = MM3_FATE_UNTIMED;
    } else {
        t.fate = r->fate;
        t.us = r->seconds * 1e6;
        t.mad = r->mad * 1e6;
        t.ratio = r->ratio;
        t.rounds = r->rounds;
    }
    return t;
}

mm3_status mm3__decide(mm3_tuner *t, const mm3__work *w, const mm3__entrant *entrant, int n, int winner, mm3_how how)
{
    mm3_status st = MM3_OK;
    const mm3__entrant *e = &entrant[winner];
    char choice[MM3_MAX_CHOICE_TEXT];
    struct text {
        char choice[MM3_MAX_CHOICE_TEXT], why[sizeof e->why];
    } *text = mm3_calloc((size_t)n, sizeof *text);
    mm3_decision d = { .key = (char *)(uintptr_t)w->key, .choice = choice, .how = how, .made_here = true };
    d.tried = mm3_calloc((size_t)n, sizeof *d.tried);
    if (!text || !d.tried) {
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for the decision on %s", w->key);
        goto done;
    }
    d.kernel = e->choice.kernel;
    d.tactic = e->choice.tactic;
    d.error = e->error;
    d.us = e->result.seconds * 1e6;
    d.mad = e->result.mad * 1e6;
    mm3_choice_text(d.kernel, d.tactic, choice, sizeof choice);
    memcpy(d.source, e->source, sizeof d.source);
    for (int i = 0; i < n; i++)
        if (i != winner) d.tried[d.n_tried++] = tried_of(&entrant[i], how, text[i].choice, text[i].why);
    MM3_GOTO(mm3_plan_set(t->plan, &d));
done:
    mm3_free(text);
    mm3_free(d.tried);
    return st;
}
