/* One stage from its candidates to a decision: verify, time, verify the winner as deployed, write down. */
#include <string.h>

#include "tune/tuner.h"

enum { PARTS = 50 };
static const double LEAST_S = 0.05; /* of timing, for a stage */
static const double LEAST = 0.3;    /* part of stage_s before which no near race is settled */

static int count_in(const mm3__entrant *entrant, int n)
{
    int n_in = 0;
    for (int i = 0; i < n; i++) n_in += entrant[i].in;
    return n_in;
}

static int first_in(const mm3__entrant *entrant, int n)
{
    for (int i = 0; i < n; i++)
        if (entrant[i].in) return i;
    return 0;
}

/* Competitor i of a race is entrant of[i]. */
typedef struct field {
    mm3__bench *bench;
    const int *of;
} field;

static double measure(void *user, int i, int i_workload)
{
    const field *f = user;
    return mm3__bench_measure(f->bench, f->of[i], i_workload);
}

/* How much longer than others a stage is timed, by its part of the bytes of a step: a part in 16 counts once. */
static double worth(const mm3__work *w)
{
    double bytes = 0;
    for (int i = 0; i < w->group[0]->n; i++) bytes += mm3_op_info_of(w->op)->bytes(w->group[0]->contract[i]);
    return MM3_MIN(MM3_MAX(16 * bytes / w->step_bytes, 0.5), 3.0);
}

/* Race those that are in. Candidates whose graph can't be recorded are left out. */
static mm3_status race(mm3_tuner *t, const mm3__work *w, mm3__bench *bench, mm3__entrant *entrant, int n, int *winner,
                       bool *decided)
{
    mm3_race_rules rules = MM3_RACE_RULES;
    mm3_status st = MM3_OK;
    int *of = mm3_calloc((size_t)n, sizeof *of), n_in = 0, first;
    mm3_racer *racer = mm3_calloc((size_t)n, sizeof *racer);
    field f = { bench, of };
    *decided = false;
    if (!of || !racer) {
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for a race");
        goto done;
    }
    for (int i = 0; i < n; i++) {
        if (!entrant[i].in) continue;
        if (mm3__bench_add(bench, i, n, &entrant[i]) != MM3_OK)
            mm3__entrant_leave_out(&entrant[i], MM3_FATE_FAILED, "%s", mm3_last_error());
        else
            of[n_in++] = i;
    }
    *winner = first_in(entrant, n);
    if (n_in < 1) goto done;
    rules.n_workloads = mm3__bench_workloads(bench);
    /* A part of what is left: however many stages follow, some is left for each. */
    rules.limit_s = mm3__budget_left(t, true);
    rules.likely = true;
    rules.least_s = LEAST * t->options.stage_s;
    rules.enough_s = MM3_MIN(t->options.stage_s * worth(w), MM3_MAX(rules.limit_s / PARTS, LEAST_S));
    MM3_GOTO(mm3_race(n_in, measure, &f, &rules, racer, &first, decided));
    for (int i = 0; i < n_in; i++) entrant[of[i]].result = racer[i];
    *winner = of[first];
done:
    mm3_free(of);
    mm3_free(racer);
    return st;
}

/* Verify and race until a winner holds under replay. */
static mm3_status find_winner(mm3_tuner *t, const mm3__work *w, mm3__entrant *entrant, int n, int *winner, mm3_how *how)
{
    mm3_status st = MM3_OK;
    mm3__bench *bench = NULL;
    bool decided;
    MM3_GOTO(mm3__entrants_verify(t, w, entrant, n));
    while (count_in(entrant, n) > 1 && mm3__budget_left(t, true) > 0) {
        mm3__entrant *e;
        if (!bench) MM3_GOTO(mm3__bench_open(&bench, t, w));
        MM3_GOTO(race(t, w, bench, entrant, n, winner, &decided));
        if (!decided) break;
        *how = MM3_HOW_TIMED;
        e = &entrant[*winner];
        if (*winner == first_in(entrant, n) || mm3_kernel_is_split(e->choice.kernel)) break;
        mm3__journal_begin(t, w->key, e);
        st = mm3__entrant_verify_replay(t, w, e);
        mm3__journal_end(t);
        if (st != MM3_OK) {
            mm3__entrant_leave_out(e, MM3_FATE_FAILED, "%s", mm3_last_error());
            st = MM3_OK;
        }
        if (e->in) break;
        *how = MM3_HOW_UNTIMED;
    }
    if (count_in(entrant, n) <= 1 && *how != MM3_HOW_TIMED) *how = MM3_HOW_ALONE;
done:
    mm3__bench_close(&bench);
    return st;
}

mm3_status mm3__stage_tune(mm3_tuner *t, const mm3__work *w)
{
    mm3__entrant *entrant = NULL;
    mm3_how how = MM3_HOW_UNTIMED;
    mm3_status st = MM3_OK;
    int n, winner;
    MM3_GOTO(mm3__entrants(t, w, &entrant, &n));
    t->counts.untimed -= mm3__is_left(mm3_plan_find(t->plan, w->key));
    winner = first_in(entrant, n);
    if (count_in(entrant, n) <= 1)
        how = MM3_HOW_ALONE;
    else if (mm3__budget_left(t, true) > 0 && find_winner(t, w, entrant, n, &winner, &how) != MM3_OK)
        /* Nothing about the candidates: there was no room to verify or time any of them. */
        for (int i = 1; i < n; i++)
            if (entrant[i].in && i != first_in(entrant, n)) {
                mm3__entrant_leave_out(&entrant[i], MM3_FATE_FAILED, "%s", mm3_last_error());
                how = MM3_HOW_UNTIMED;
            }
    if (how != MM3_HOW_TIMED) winner = first_in(entrant, n);
    for (int i = 0; i < n; i++)
        t->counts.rejected += entrant[i].fate == MM3_FATE_WRONG || entrant[i].fate == MM3_FATE_FAILED;
    t->counts.tuned += how == MM3_HOW_TIMED;
    t->counts.alone += how == MM3_HOW_ALONE;
    t->counts.untimed += how == MM3_HOW_UNTIMED;
    MM3_GOTO(mm3__decide(t, w, entrant, n, winner, how));
done:
    mm3_free(entrant);
    return st;
}
