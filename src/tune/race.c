/* The race: who is surely fastest, from repeated interleaved measurements. Knows times and nothing else.
 *
 * All comparisons are of two competitors within the same rounds: r = time of a / time of b, round by round, so that
 * what slows a whole round cancels; the order within a round alternates, so that a drift does. With t = 1 - margin,
 * "a beats b" is said only when, of
 *    3 rounds or more, every r is below 1/drop, or below t by 8 times what they differ among themselves
 *    5 rounds or more, every r is below t by twice what they differ among themselves
 *    7 rounds or more, every r is below 0.9, or all but one below 0.8
 *   10 rounds or more, the upper end of the interval of the median of r is below t
 *    5 rounds or more when the time is spent, if what is likely will do, three quarters of the r are below t
 * and "a does not beat b" when the same holds on the other side of t, or all of 5 are above 1. The
 * interval is the one between order statistics that holds the median with 99.8 % whatever the
 * distribution: an outlier counts as one round. */
#include <stdlib.h>
#include <string.h>

#include "tune/search.h"

enum { MIN_ROUNDS = 3, FEW = 5, SOME = 7, ENOUGH = 10 };
enum { MORE = 4 }; /* times the time for what seems ahead */
typedef enum answer { NO, UNSURE, YES } answer;

typedef struct race {
    int n, max_rounds, n_workloads;
    const mm3_race_rules *rules;
    mm3_racer *racer;
    bool *live;   /* [n] still measured */
    bool spent;   /* there is no time to be sure: what is likely is said */
    double *time; /* [n, max_rounds, n_workloads] */
    double *work; /* [max_rounds] */
} race;

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *sorted, int n)
{
    return n == 0 ? 0 : n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* Sorts x. */
static double median_and_mad(double *x, int n, double *mad)
{
    double m;
    qsort(x, (size_t)n, sizeof *x, compare_doubles);
    m = median(x, n);
    for (int i = 0; i < n; i++) x[i] = fabs(x[i] - m);
    qsort(x, (size_t)n, sizeof *x, compare_doubles);
    *mad = median(x, n);
    return m;
}

static const double *time_of(const race *r, int i, int round)
{
    return r->time + ((size_t)i * (size_t)r->max_rounds + (size_t)round) * (size_t)r->n_workloads;
}

/* Ratios of a to b in the rounds that both ran, sorted, into r->work; returns how many. */
static int ratios(const race *r, int a, int b)
{
    int n = MM3_MIN(r->racer[a].rounds, r->racer[b].rounds);
    for (int k = 0; k < n; k++) {
        const double *x = time_of(r, a, k), *y = time_of(r, b, k);
        double sum = 0;
        for (int w = 0; w < r->n_workloads; w++) sum += x[w] / y[w];
        r->work[k] = sum / r->n_workloads;
    }
    qsort(r->work, (size_t)n, sizeof *r->work, compare_doubles);
    return n;
}

static double median_ratio(const race *r, int a, int b)
{
    int n = ratios(r, a, b);
    return median(r->work, n);
}

/* The largest j such that fewer than j of n fair coins fall heads with probability at most 0.001. */
static int order_statistic(int n)
{
    double p = pow(0.5, n), sum = p;
    int j = 0;
    while (sum <= 0.001) {
        j++;
        p = p * (n - j + 1) / j;
        sum += p;
    }
    return j;
}

static answer beats(const race *r, int a, int b)
{
    int n = ratios(r, a, b), j;
    double threshold = 1 - r->rules->margin, span;
    if (n < MIN_ROUNDS) return UNSURE;
    span = (r->work[n - 1] - r->work[0]) * (n < FEW ? 8 : 2);
    if (r->work[n - 1] + span < threshold) return YES;
    if (r->work[0] - span > threshold) return NO;
    if (r->work[n - 1] < 1 / r->rules->drop) return YES;
    if (n >= SOME && (r->work[n - 2] < 0.8 || r->work[n - 1] < 0.9)) return YES;
    if (n >= FEW && r->work[0] > 1) return NO;
    if (r->spent && r->rules->likely && n >= FEW && r->work[n - 1 - n / 4] < threshold) return YES;
    if (n < ENOUGH) return UNSURE;
    j = order_statistic(n);
    if (r->work[n - j] < threshold) return YES;
    return r->work[j - 1] > threshold ? NO : UNSURE;
}

static bool is_out(const race *r, int i) { return r->racer[i].fate != MM3_FATE_TIMED; }

static int holder_of(const race *r)
{
    for (int i = 0; i < r->n; i++)
        if (!is_out(r, i)) return i;
    return -1;
}

/* Where things stand: the holder, the fastest of those that beat it, and the winner, which is the earliest that the
 * fastest doesn't beat. */
typedef struct standing {
    int holder, fastest, winner;
} standing;

static standing stand(const race *r)
{
    standing s = { .holder = holder_of(r) };
    double best = INFINITY;
    s.fastest = s.winner = s.holder;
    for (int i = s.holder + 1; i < r->n && s.holder >= 0; i++) {
        double x;
        if (is_out(r, i) || beats(r, i, s.holder) != YES) continue;
        x = median_ratio(r, i, s.holder);
        if (x < best) {
            best = x;
            s.fastest = i;
        }
    }
    s.winner = s.fastest;
    for (int i = s.holder + 1; i < s.fastest; i++)
        if (!is_out(r, i) && beats(r, i, s.holder) == YES && beats(r, s.fastest, i) != YES) {
            s.winner = i;
            break;
        }
    return s;
}

/* Far behind the fastest in every round so far: out. The holder goes only by the rule that dethrones it. */
static void drop(race *r)
{
    int leader = -1, holder = holder_of(r);
    double best = INFINITY;
    for (int i = 0; i < r->n; i++) {
        double x;
        if (is_out(r, i) || !r->live[i]) continue;
        x = i == holder ? 1 : median_ratio(r, i, holder);
        if (x < best) {
            best = x;
            leader = i;
        }
    }
    for (int i = 0; i < r->n; i++) {
        int n;
        if (is_out(r, i) || !r->live[i] || i == leader) continue;
        n = ratios(r, i, leader);
        if (n < (i == holder ? MIN_ROUNDS : 2) || !(r->work[0] > r->rules->drop)) continue;
        r->racer[i].fate = MM3_FATE_DROPPED;
        r->live[i] = false;
    }
}

/* Stop measuring those that can't win any more; true if nothing is left to find out. */
static bool settle(race *r)
{
    standing s = stand(r);
    bool open = false;
    for (int i = 0; i < r->n; i++) {
        answer over_holder, over_winner;
        bool beaten;
        if (!r->live[i] || i == s.holder || i == s.winner) continue;
        over_holder = beats(r, i, s.holder);
        beaten = i != s.fastest && s.fastest != s.holder && beats(r, s.fastest, i) == YES;
        over_winner = i > s.winner ? beats(r, i, s.winner) : UNSURE;
        if (over_holder == NO || beaten || (over_winner == NO && s.winner != s.holder))
            r->live[i] = i == s.fastest; /* the measure of the others stays in */
        else
            open = true;
    }
    return !open && r->racer[s.holder].rounds >= MIN_ROUNDS;
}

/* Whether a challenger seems ahead by what would matter, and is not known to be: it is worth some more rounds. */
static bool is_promising(const race *r)
{
    int holder = holder_of(r);
    double gain = MM3_MAX(2 * r->rules->margin, 0.03);
    for (int i = holder + 1; i < r->n && holder >= 0; i++)
        if (r->live[i] && median_ratio(r, i, holder) < 1 - gain && beats(r, i, holder) == UNSURE) return true;
    return false;
}

static int n_live(const race *r)
{
    int n = 0;
    for (int i = 0; i < r->n; i++) n += r->live[i];
    return n;
}

/* Whether the time for this race is spent: what seems ahead has more of it. */
static bool is_spent(const race *r, int n_rounds, double taken)
{
    return n_rounds >= FEW && taken > r->rules->enough_s * (is_promising(r) ? MORE : 1);
}

static void run_round(race *r, int round, mm3_race_measure *measure, void *user)
{
    for (int k = 0; k < r->n; k++) {
        int i = round % 2 ? r->n - 1 - k : k;
        double *x = r->time + ((size_t)i * (size_t)r->max_rounds + (size_t)round) * (size_t)r->n_workloads;
        bool failed = false;
        if (!r->live[i]) continue;
        for (int w = 0; w < r->n_workloads && !failed; w++) {
            x[w] = measure(user, i, w);
            failed = !(x[w] >= 0);
            if (x[w] < 1e-9) x[w] = 1e-9; /* below any clock: nothing to divide by */
        }
        if (failed) {
            r->racer[i].fate = MM3_FATE_FAILED;
            r->live[i] = false;
        } else {
            r->racer[i].rounds = round + 1;
        }
    }
}

static void report(race *r, int winner)
{
    for (int i = 0; i < r->n; i++) {
        mm3_racer *x = &r->racer[i];
        for (int k = 0; k < x->rounds; k++) {
            double sum = 0;
            for (int w = 0; w < r->n_workloads; w++) sum += time_of(r, i, k)[w];
            r->work[k] = sum / r->n_workloads;
        }
        x->seconds = median_and_mad(r->work, x->rounds, &x->mad);
        if (winner >= 0) x->ratio = median_and_mad(r->work, ratios(r, i, winner), &x->ratio_mad);
    }
}

mm3_status mm3_race(int n, mm3_race_measure *measure, void *user, const mm3_race_rules *rules, mm3_racer *racer,
                    int *winner, bool *decided)
{
    mm3_status st = MM3_OK;
    race r = {
        .n = n, .max_rounds = rules->max_rounds, .n_workloads = rules->n_workloads, .rules = rules, .racer = racer
    };
    double start = rules->now ? rules->now(user) : mm3_now_s();
    int n_rounds = 0;
    *winner = 0;
    *decided = false;
    r.live = mm3_calloc((size_t)n, sizeof *r.live);
    r.time = mm3_calloc(mm3_mul((size_t)n * (size_t)r.max_rounds, (size_t)r.n_workloads), sizeof *r.time);
    r.work = mm3_calloc((size_t)r.max_rounds, sizeof *r.work);
    if (!r.live || !r.time || !r.work) {
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for a race");
        goto done;
    }
    memset(racer, 0, (size_t)n * sizeof *racer);
    for (int i = 0; i < n; i++) r.live[i] = true;
    while (n_rounds < r.max_rounds && n_live(&r) > 0) {
        double taken = (rules->now ? rules->now(user) : mm3_now_s()) - start;
        r.spent = taken > rules->limit_s || is_spent(&r, n_rounds, taken);
        if (r.spent) break;
        run_round(&r, n_rounds++, measure, user);
        if (holder_of(&r) < 0) continue;
        if (n_rounds >= 2) drop(&r);
        if (n_rounds >= MIN_ROUNDS && (taken >= rules->least_s || n_live(&r) < 2) && settle(&r)) break;
    }
    if (holder_of(&r) >= 0) {
        *decided = n_rounds >= MIN_ROUNDS;
        *winner = *decided ? stand(&r).winner : holder_of(&r);
    }
    report(&r, holder_of(&r) >= 0 ? *winner : -1);
done:
    mm3_free(r.live);
    mm3_free(r.time);
    mm3_free(r.work);
    return st;
}
