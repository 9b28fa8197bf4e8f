/* Is a candidate right, on this machine and at this stage? Once at first sight, and for the winner again as deployed: a
 * recorded graph, replayed on inputs it has not seen. */
#include <stdio.h>
#include <string.h>

#include "tune/tuner.h"

enum { MAX_TWINS = MM3__MAX_GROUPS + 2, N_REPLAYS = 2, N_TRIES = 2 };
static const double SLOW_S = 5e-3;        /* a launch that takes longer is verified on one contract */
static const double SLOW_REPLAY_S = 1e-3; /* the same under replay, where the others have been seen */

typedef struct twins {
    mm3__twin *twin[MAX_TWINS]; /* owned */
    int n;
} twins;

/* ---- running ----------------------------------------------------------------------------------------------------- */

mm3_status mm3__op_append(mm3_tuner *t, mm3_graph *graph, mm3_arena *arena, mm3_op_id op, const void *contract,
                          mm3_choose *choose, void *user, size_t *need)
{
    mm3_bound bound[MM3_MAX_BOUND];
    size_t bytes;
    int n;
    mm3_part *parts = mm3_arena_alloc(arena, MM3_MAX_PARTS * sizeof *parts);
    MM3_CHECK(parts, MM3_ERR_NOMEM, "out of memory for a graph");
    MM3_TRY(mm3_bind(t->info, op, contract, choose, user, parts, &bytes, bound, &n));
    *need = MM3_MAX(*need, bytes);
    for (int i = 0; i < n; i++) MM3_TRY(mm3_graph_append(graph, &bound[i].call));
    return MM3_OK;
}

mm3_status mm3__op_run(mm3_tuner *t, mm3_op_id op, const void *contract, mm3_choose *choose, void *user)
{
    mm3_part parts[MM3_MAX_PARTS];
    mm3_bound bound[MM3_MAX_BOUND];
    mm3_call calls[MM3_MAX_BOUND];
    size_t need;
    int n;
    MM3_TRY(mm3_bind(t->info, op, contract, choose, user, parts, &need, bound, &n));
    MM3_TRY(mm3__scratch_need(t, need));
    for (int i = 0; i < n; i++) {
        calls[i] = bound[i].call;
        calls[i].scratch = need ? t->scratch : NULL;
    }
    mm3_device_run(t->device, calls, n);
    return MM3_OK;
}

/* ---- twins ------------------------------------------------------------------------------------------------------- */

static void close_twins(twins *s)
{
    while (s->n > 0) mm3__twin_close(&s->twin[--s->n]);
}

static mm3_status add_twin(twins *s, const mm3__work *w, const void *contract)
{
    MM3_TRY(mm3__twin_open(&s->twin[s->n], w->op, contract));
    s->n++;
    return MM3_OK;
}

/* One contract of each group; where a launch is short, of the first group also the middle one and the last: their
 * weights are others. */
static mm3_status open_twins(mm3_tuner *t, const mm3__work *w, double slow_s, twins *s)
{
    const mm3_stage *first = w->group[0];
    double start;
    s->n = 0;
    for (int g = 0; g < w->n_groups; g++) MM3_TRY(add_twin(s, w, w->group[g]->contract[0]));
    start = mm3_now_s();
    MM3_TRY(mm3__op_run(t, w->op, mm3__twin_contract(s->twin[0]), mm3__choose_native, t));
    if (mm3_now_s() - start > slow_s) return MM3_OK;
    if (first->n > 2) MM3_TRY(add_twin(s, w, first->contract[first->n / 2]));
    if (first->n > 1) MM3_TRY(add_twin(s, w, first->contract[first->n - 1]));
    return MM3_OK;
}

static void poison(twins *s)
{
    for (int i = 0; i < s->n; i++) mm3__twin_poison(s->twin[i]);
}

static void perturb(twins *s, uint64_t seed)
{
    for (int i = 0; i < s->n; i++) mm3__twin_perturb(s->twin[i], seed + (uint64_t)i * 977);
}

static mm3_status run_natives(mm3_tuner *t, const mm3__work *w, twins *s)
{
    poison(s);
    for (int i = 0; i < s->n; i++) {
        MM3_TRY(mm3__op_run(t, w->op, mm3__twin_contract(s->twin[i]), mm3__choose_native, t));
        mm3__twin_keep(s->twin[i]);
    }
    return MM3_OK;
}

static bool compare(twins *s, mm3__entrant *e, char *why, size_t n)
{
    for (int i = 0; i < s->n; i++)
        if (!mm3__twin_compare(s->twin[i], e->choice.kernel, &e->error, why, n)) return false;
    return true;
}

/* A choice among scores that are equal up to rounding may fall either way, and be right; hardly twice. */
static bool may_tie(mm3_op_id op) { return op == MM3_OP_ROUTER || op == MM3_OP_INDEX_SELECT || op == MM3_OP_SAMPLE; }

/* ---- first sight ------------------------------------------------------------------------------------------------- */

/* What a candidate leaves on the twins. *right: whether that is what natives left; else why[n]. */
static mm3_status look(mm3_tuner *t, const mm3__work *w, twins *s, mm3__entrant *e, bool *right, char *why, size_t n)
{
    mm3__choosing c = { t, e->choice };
    for (int k = 0; k < N_TRIES; k++) {
        if (k > 0) {
            perturb(s, 77);
            MM3_TRY(run_natives(t, w, s));
        }
        poison(s);
        for (int i = 0; i < s->n; i++)
            MM3_TRY(mm3__op_run(t, w->op, mm3__twin_contract(s->twin[i]), mm3__choose_entrant, &c));
        *right = compare(s, e, why, n);
        if (*right || !may_tie(w->op)) break;
    }
    return MM3_OK;
}

mm3_status mm3__entrants_verify(mm3_tuner *t, const mm3__work *w, mm3__entrant *entrant, int n)
{
    twins s = { 0 };
    mm3_status st = MM3_OK;
    if (t->options.states) t->options.states(t->options.user, w->group[0], 0);
    MM3_GOTO(open_twins(t, w, SLOW_S, &s));
    MM3_GOTO(run_natives(t, w, &s));
    for (int i = 1; i < n; i++) {
        mm3__entrant *e = &entrant[i];
        char why[sizeof e->why];
        mm3_status looked;
        bool right = false;
        if (!e->in || mm3_kernel_is_split(e->choice.kernel)) continue;
        mm3__journal_begin(t, w->key, e);
        looked = look(t, w, &s, e, &right, why, sizeof why);
        mm3__journal_end(t);
        if (looked != MM3_OK)
            mm3__entrant_leave_out(e, MM3_FATE_FAILED, "%s", mm3_last_error());
        else if (!right)
            mm3__entrant_leave_out(e, MM3_FATE_WRONG, "%s", why);
    }
done:
    close_twins(&s);
    if (t->options.states) t->options.states(t->options.user, w->group[0], -1);
    return st;
}

/* ---- under replay ------------------------------------------------------------------------------------------------ */

static mm3_status record(mm3_tuner *t, const mm3__work *w, twins *s, mm3_graph *graph, mm3_arena *arena,
                         mm3_choose *choose, void *user)
{
    size_t need = 0;
    for (int i = 0; i < s->n; i++)
        MM3_TRY(mm3__op_append(t, graph, arena, w->op, mm3__twin_contract(s->twin[i]), choose, user, &need));
    MM3_TRY(mm3__scratch_need(t, need));
    return MM3_OK;
}

static void replay(mm3_tuner *t, mm3_graph *graph)
{
    mm3_graph_set_scratch(graph, t->scratch);
    mm3_graph_replay(graph);
}

/* In the middle state, at first sight it was the first. The graphs are recorded before the inputs change, so
 * that what a candidate remembers of them shows. */
mm3_status mm3__entrant_verify_replay(mm3_tuner *t, const mm3__work *w, mm3__entrant *e)
{
    twins s = { 0 };
    mm3_arena arena = { 0 };
    mm3_graph *natives = NULL, *graph = NULL;
    mm3__choosing c = { t, e->choice };
    char why[sizeof e->why];
    mm3_status st = MM3_OK;
    bool right = true;
    int n_wrong = 0, n_states = t->options.states ? t->options.states(t->options.user, w->group[0], -1) : 0;
    if (n_states) t->options.states(t->options.user, w->group[0], (n_states - 1) / 2);
    MM3_GOTO(open_twins(t, w, SLOW_REPLAY_S, &s));
    MM3_GOTO(mm3_graph_open(&natives, t->device));
    MM3_GOTO(mm3_graph_open(&graph, t->device));
    MM3_GOTO(record(t, w, &s, natives, &arena, mm3__choose_native, t));
    MM3_GOTO(record(t, w, &s, graph, &arena, mm3__choose_entrant, &c));
    for (int k = 0; k < N_REPLAYS + (n_wrong > 0 && may_tie(w->op)); k++) {
        perturb(&s, 1000 + (uint64_t)k);
        poison(&s);
        replay(t, natives);
        for (int i = 0; i < s.n; i++) mm3__twin_keep(s.twin[i]);
        poison(&s);
        replay(t, graph);
        right = compare(&s, e, why, sizeof why);
        n_wrong += !right;
        if (n_wrong > may_tie(w->op)) break;
    }
    if (n_wrong > may_tie(w->op)) mm3__entrant_leave_out(e, MM3_FATE_WRONG, "under replay on fresh inputs, %s", why);
done:
    mm3_graph_close(&natives);
    mm3_graph_close(&graph);
    mm3_arena_free(&arena);
    close_twins(&s);
    if (n_states) t->options.states(t->options.user, w->group[0], -1);
    return st;
}
