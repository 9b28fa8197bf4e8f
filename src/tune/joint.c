/* The joint check: stages influence each other, so the winners' graph of a step must be faster than the natives' as a
 * whole. */
#include <stdio.h>
#include <string.h>

#include "tune/tuner.h"

enum { NATIVES, WINNERS, N_ARMS }; /* a tie goes to the earlier */

typedef struct joint {
    mm3_tuner *tuner;
    mm3_graph *graph[N_ARMS];
    void (*reset)(void *user);
    void *user;
    bool is_short;
} joint;

static double replay(joint *j, int arm)
{
    double start;
    if (j->reset) j->reset(j->user);
    start = j->tuner->options.now();
    mm3_graph_replay(j->graph[arm]);
    j->tuner->counts.timings++;
    return j->tuner->options.now() - start;
}

static double measure(void *user, int arm, int i_workload)
{
    joint *j = user;
    double a = replay(j, arm);
    (void)i_workload;
    for (int k = 0; k < 2 && j->is_short; k++) {
        double b = replay(j, arm);
        a = MM3_MIN(a, b);
    }
    return a;
}

/* Whether any stage is bound otherwise than the natives' graph has it. */
static mm3_status differs(mm3_tuner *t, const mm3_stage *stages, int n, bool *out)
{
    mm3_binding b = mm3_tuner_binding(t);
    *out = false;
    for (int i = 0; i < n && !*out; i++) {
        mm3_choice winner, native, pin;
        mm3_key key = { .op = stages[i].op };
        if (stages[i].n == 0) continue;
        mm3_op_info_of(stages[i].op)->key(stages[i].contract[0], &key);
        if (t->options.pins && mm3_pins_match(t->options.pins, &key, &pin)) continue;
        MM3_TRY(mm3_choose_planned(&b, stages[i].op, stages[i].contract[0], &winner));
        MM3_TRY(mm3__choose_native(t, stages[i].op, stages[i].contract[0], &native));
        *out = winner.kernel != native.kernel || winner.tactic != native.tactic;
    }
    return MM3_OK;
}

mm3_status mm3_tuner_joint(mm3_tuner *t, const char *step, const mm3_stage *stages, int n, mm3_graph *winners_graph,
                           mm3_graph *natives_graph, void (*reset)(void *user), void *user, bool *winners)
{
    mm3_binding b = mm3_tuner_binding(t);
    mm3_race_rules rules = MM3_RACE_RULES;
    mm3_racer racer[N_ARMS] = { 0 };
    mm3_step_verdict v = { .step = (char *)(uintptr_t)step, .timed = true, .ratio = 1, .made_here = true };
    const mm3_step_verdict *known;
    joint j = { .tuner = t, .graph = { natives_graph, winners_graph }, .reset = reset, .user = user };
    bool other, decided;
    int winner;
    *winners = false;
    MM3_TRY(mm3_binding_hash(&b, stages, n, v.of));
    known = mm3_plan_find_step(t->plan, step, v.of);
    if (known && known->timed) {
        *winners = known->winners;
        t->counts.steps_reused++;
        return MM3_OK;
    }
    MM3_TRY(differs(t, stages, n, &other));
    if (!other) return mm3_plan_set_step(t->plan, &v);
    v.timed = mm3__budget_left(t, false) > 0;
    if (v.timed) {
        double first;
        rules.margin = 0; /* the interval alone: any sure gain counts */
        rules.enough_s = 10 * t->options.stage_s;
        rules.limit_s = mm3__budget_left(t, false);
        first = replay(&j, NATIVES);
        j.is_short = first < 10e-3 && replay(&j, NATIVES) < 1e-3;
        MM3_TRY(mm3_race(N_ARMS, measure, &j, &rules, racer, &winner, &decided));
        v.timed = decided;
        v.winners = decided && winner == WINNERS;
        t->counts.steps_timed += decided;
    }
    if (v.timed) {
        double a = racer[WINNERS].ratio, c = racer[NATIVES].ratio; /* one of them is 1 */
        v.ratio = v.winners ? 1 / c : a;
        v.mad = v.winners ? racer[NATIVES].ratio_mad / (c * c) : racer[WINNERS].ratio_mad;
    }
    *winners = v.winners;
    return mm3_plan_set_step(t->plan, &v);
}
