/* The race on a simulated clock: what it decides under noise, outliers and drift, and how much it measures for it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tune/search.h"

enum { MAX_N = 8, MAX_WORKLOADS = 3, RUNS = 60 };

/* A machine whose clock runs only while something is measured. */
typedef struct machine {
    double seconds[MAX_N][MAX_WORKLOADS]; /* the truth; negative: it fails */
    double noise;                         /* sigma of a lognormal factor */
    double outliers;                      /* part of the measurements that take ten times as long */
    double drift;                         /* all slows down by this factor per second, in a slow wave */
    double now;
    uint64_t state;
    int n_measured[MAX_N];
} machine;

static double uniform(machine *m)
{
    uint64_t z = m->state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return ((double)((z ^ (z >> 31)) >> 11) + 0.5) * 0x1p-53;
}

static double normal(machine *m) { return sqrt(-2 * log(uniform(m))) * cos(6.283185307179586 * uniform(m)); }

static double measure(void *user, int i, int i_workload)
{
    machine *m = user;
    double t = m->seconds[i][i_workload];
    m->n_measured[i]++;
    if (t < 0) return -1;
    t *= exp(m->noise * normal(m)) * (1 + m->drift * (1 + sin(m->now * 40)) + m->drift * m->now);
    if (uniform(m) < m->outliers) t *= 10;
    m->now += t;
    return t;
}

static double now(void *user) { return ((machine *)user)->now; }

static machine machine_of(uint64_t seed, double noise, double outliers, double drift)
{
    return (machine){ .noise = noise, .outliers = outliers, .drift = drift, .state = seed * 7919 + 1 };
}

static int race_with(machine *m, int n, const mm3_race_rules *rules, mm3_racer *racer, bool *decided)
{
    int winner;
    assert_int_equal(mm3_race(n, measure, m, rules, racer, &winner, decided), MM3_OK);
    return winner;
}

static int race(machine *m, int n)
{
    mm3_race_rules rules = MM3_RACE_RULES;
    mm3_racer racer[MAX_N];
    bool decided;
    int winner;
    rules.now = now;
    winner = race_with(m, n, &rules, racer, &decided);
    assert_true(decided);
    return winner;
}

static const struct {
    double noise, outliers, drift;
} weather[] = { { 0.001, 0, 0 },  { 0.01, 0, 0 },      { 0.03, 0, 0 },     { 0.03, 0.03, 0 },
                { 0.03, 0, 0.2 }, { 0.03, 0.03, 0.5 }, { 0.10, 0.05, 0.2 } };

/* Whether one of n equal candidates displaces the first. */
static bool is_displaced(int i_weather, int n, uint64_t seed, long *n_rounds)
{
    machine m = machine_of(seed, weather[i_weather].noise, weather[i_weather].outliers, weather[i_weather].drift);
    bool displaced;
    for (int k = 0; k < n; k++) m.seconds[k][0] = 1e-3;
    displaced = race(&m, n) != 0;
    *n_rounds += m.n_measured[0];
    return displaced;
}

/* 60 of 60 in every weather; and of many more runs, which show a chance of one in a thousand, next to none. */
static void test_twins(void **state)
{
    (void)state;
    for (int w = 0; w < MM3_COUNT(weather); w++)
        for (int n = 2; n <= 5; n++) {
            int wrong = 0;
            long n_rounds = 0;
            for (int i = 0; i < 5 * RUNS; i++) {
                wrong += is_displaced(w, n, (uint64_t)(w * 100000 + n * 10000 + i), &n_rounds);
                if (i + 1 == RUNS) assert_true(wrong == 0 || weather[w].noise > 0.05);
            }
            assert_true(wrong <= (weather[w].noise > 0.05 ? 2 : 1));
        }
}

/* Twins behind a slow first: the earlier of them, every time. */
static void test_ties_go_to_the_earlier(void **state)
{
    (void)state;
    for (int w = 1; w < 6; w++) {
        int wrong = 0;
        for (int i = 0; i < 5 * RUNS; i++) {
            machine m = machine_of((uint64_t)(w * 1000 + i), weather[w].noise, weather[w].outliers, weather[w].drift);
            m.seconds[0][0] = 1e-3;
            for (int k = 1; k < 4; k++) m.seconds[k][0] = 0.7e-3;
            wrong += race(&m, 4) != 1;
        }
        assert_true(wrong <= 1);
    }
}

static int wins(int n_races, double gain, double noise, double outliers, double drift)
{
    int n = 0;
    for (int i = 0; i < n_races; i++) {
        machine m = machine_of((uint64_t)(i + 5000), noise, outliers, drift);
        m.seconds[0][0] = 1e-3;
        m.seconds[1][0] = 1e-3 * (1 - gain);
        n += race(&m, 2) == 1;
    }
    return n;
}

static void test_faster_wins(void **state)
{
    (void)state;
    assert_true(wins(5 * RUNS, 0.05, 0.01, 0, 0) >= 300);
    assert_true(wins(5 * RUNS, 0.05, 0.02, 0, 0) >= 294);
    assert_true(wins(5 * RUNS, 0.05, 0.02, 0.02, 0.2) >= 285);
    assert_true(wins(5 * RUNS, 0.04, 0.01, 0.02, 0.2) >= 294);
    assert_true(wins(5 * RUNS, 0.30, 0.03, 0.03, 0.5) >= 299);
    assert_true(wins(5 * RUNS, 0.03, 0.002, 0, 0) == 300);
    /* below the margin: never */
    assert_true(wins(5 * RUNS, 0.01, 0.002, 0, 0) == 0);
    assert_true(wins(5 * RUNS, 0.015, 0.01, 0.02, 0.2) <= 3);
}

/* The figures of docs/tuning.md: MM3_RACES=1000 build/tests/unit/test_race. Without that, some of them. */
static void test_many_races(void **state)
{
    static const double gain[] = { 0.05, 0.10, 0.30, 0.03, 0.01 }, noise[] = { 0.02, 0.03, 0.10, 0.01, 0.002 };
    int n_races = getenv("MM3_RACES") ? atoi(getenv("MM3_RACES")) : 20;
    (void)state;
    assert_true(n_races > 0);
    for (int w = 0; w < MM3_COUNT(weather); w++) {
        int n = 0, wrong = 0;
        long n_rounds = 0;
        for (int twins = 2; twins <= MAX_N; twins++)
            for (int i = 0; i < n_races; i++, n++)
                wrong += is_displaced(w, twins, (uint64_t)w << 40 | (uint64_t)twins << 32 | (uint64_t)i, &n_rounds);
        printf("twins, noise %g, outliers %g, drift %g: the first displaced in %d of %d races, %.1f rounds each\n",
               weather[w].noise, weather[w].outliers, weather[w].drift, wrong, n, (double)n_rounds / n);
        assert_true(wrong <= 1 + n / (weather[w].noise > 0.05 ? 200 : 2000));
    }
    for (int g = 0; g < MM3_COUNT(gain); g++) {
        int n = wins(n_races, gain[g], noise[g], 0, 0);
        printf("%g %% faster, noise %g: wins %d of %d races\n", 100 * gain[g], noise[g], n, n_races);
        assert_true(gain[g] < 0.02 ? n == 0 : gain[g] < 0.04 ? n > n_races / 2 : n >= n_races - n_races / 100);
    }
}

/* Long launches are seen five times at most. A gap that is wide beside the noise is believed; between twins none is. */
static void test_five_rounds(void **state)
{
    mm3_race_rules rules = MM3_RACE_RULES;
    mm3_racer racer[MAX_N];
    int n_gained = 0, n_twins = 0;
    (void)state;
    rules.now = now;
    rules.max_rounds = 5;
    rules.margin = 0;
    for (int i = 0; i < 5 * RUNS; i++) {
        machine m = machine_of((uint64_t)(i + 9000), 0.01, 0, 0);
        bool decided;
        m.seconds[0][0] = 0.1;
        m.seconds[1][0] = 0.088;
        n_gained += race_with(&m, 2, &rules, racer, &decided) == 1;
        m.seconds[1][0] = 0.1;
        n_twins += race_with(&m, 2, &rules, racer, &decided) == 1;
    }
    assert_true(n_gained >= 280);
    assert_true(n_twins <= 1);
    /* a wide gap outlasts an outlier in 14 measurements */
    n_gained = 0;
    rules.max_rounds = 7;
    for (int i = 0; i < 5 * RUNS; i++) {
        machine m = machine_of((uint64_t)(i + 19000), 0.03, 0.02, 0);
        bool decided;
        m.seconds[0][0] = 0.1;
        m.seconds[1][0] = 0.067;
        n_gained += race_with(&m, 2, &rules, racer, &decided) == 1;
    }
    assert_true(n_gained >= 290);
}

/* A row of small steps, each within the margin of the next: the winner beats the first by the margin, and none beats
 * the winner by it. */
static void test_small_steps(void **state)
{
    int n_best = 0;
    (void)state;
    for (int i = 0; i < RUNS; i++) {
        machine m = machine_of((uint64_t)i, 0.005, 0.01, 0.1);
        int w;
        for (int k = 0; k < 6; k++) m.seconds[k][0] = 1e-3 * (1 - 0.012 * k);
        w = race(&m, 6);
        assert_true(w >= 2);
        assert_true(m.seconds[5][0] / m.seconds[w][0] > 0.97);
        n_best += w >= 3;
    }
    assert_true(n_best >= RUNS - 2);
}

/* The order of the list decides nothing when the gap is clear. */
static void test_any_place(void **state)
{
    (void)state;
    for (int best = 0; best < 5; best++)
        for (int i = 0; i < RUNS; i++) {
            machine m = machine_of((uint64_t)(best * RUNS + i), 0.02, 0.02, 0.2);
            for (int k = 0; k < 5; k++) m.seconds[k][0] = 1e-3 * (k == best ? 0.85 : 1 + 0.02 * k);
            assert_int_equal(race(&m, 5), best);
        }
}

/* What is far behind costs two rounds; a slow first costs three. */
static void test_few_measurements(void **state)
{
    mm3_race_rules rules = MM3_RACE_RULES;
    mm3_racer racer[MAX_N];
    bool decided;
    machine m = machine_of(1, 0.01, 0, 0);
    (void)state;
    rules.now = now;
    m.seconds[0][0] = 1e-3;
    m.seconds[1][0] = 1.9e-3;
    m.seconds[2][0] = 1.01e-3;
    assert_int_equal(race_with(&m, 3, &rules, racer, &decided), 0);
    assert_int_equal(m.n_measured[1], 2);
    assert_int_equal(racer[1].fate, MM3_FATE_DROPPED);
    assert_int_equal(racer[1].rounds, 2);
    assert_true(fabs(racer[1].ratio - 1.9) < 0.1);
    assert_true(m.n_measured[0] >= 5 && m.n_measured[0] <= 60);
    assert_int_equal(racer[2].fate, MM3_FATE_TIMED);
    assert_true(fabs(racer[0].seconds - 1e-3) < 3e-5);
    assert_true(fabs(racer[2].ratio - 1.01) < 0.02 && racer[2].mad < 5e-5);

    m = machine_of(2, 0.01, 0, 0);
    m.seconds[0][0] = 10e-3;
    m.seconds[1][0] = 1e-3;
    assert_int_equal(race_with(&m, 2, &rules, racer, &decided), 1);
    assert_true(decided);
    assert_int_equal(m.n_measured[0], 3);
    assert_int_equal(racer[0].fate, MM3_FATE_DROPPED);
}

/* Rounds are added while it is close, and not when it is clear. */
static void test_rounds_follow_the_noise(void **state)
{
    machine clear = machine_of(3, 0.01, 0, 0), close = machine_of(3, 0.01, 0, 0);
    (void)state;
    clear.seconds[0][0] = close.seconds[0][0] = 1e-3;
    clear.seconds[1][0] = 0.7e-3;
    close.seconds[1][0] = 0.98e-3;
    race(&clear, 2);
    race(&close, 2);
    assert_true(clear.n_measured[0] <= 6);
    assert_true(close.n_measured[0] >= 20 && close.n_measured[0] <= 60);
}

static void test_failures(void **state)
{
    mm3_race_rules rules = MM3_RACE_RULES;
    mm3_racer racer[MAX_N];
    bool decided;
    machine m = machine_of(4, 0.01, 0, 0);
    (void)state;
    rules.now = now;
    m.seconds[0][0] = 1e-3;
    m.seconds[1][0] = -1;
    m.seconds[2][0] = 0.5e-3;
    assert_int_equal(race_with(&m, 3, &rules, racer, &decided), 2);
    assert_int_equal(racer[1].fate, MM3_FATE_FAILED);
    assert_int_equal(m.n_measured[1], 1);
    /* the first itself */
    m = machine_of(5, 0.01, 0, 0);
    m.seconds[0][0] = -1;
    m.seconds[1][0] = 1e-3;
    m.seconds[2][0] = 1e-3;
    assert_int_equal(race_with(&m, 3, &rules, racer, &decided), 1);
    /* all */
    m = machine_of(6, 0.01, 0, 0);
    m.seconds[0][0] = m.seconds[1][0] = -1;
    assert_int_equal(race_with(&m, 2, &rules, racer, &decided), 0);
    assert_false(decided);
}

/* Too little time to say anything: the first, undecided. More: what can be said is said. */
static void test_time_limit(void **state)
{
    mm3_race_rules rules = MM3_RACE_RULES;
    mm3_racer racer[MAX_N];
    bool decided;
    machine m = machine_of(7, 0.01, 0, 0);
    (void)state;
    rules.now = now;
    rules.limit_s = 1e-3;
    m.seconds[0][0] = 1e-3;
    m.seconds[1][0] = 0.1e-3;
    assert_int_equal(race_with(&m, 2, &rules, racer, &decided), 0);
    assert_false(decided);
    /* three rounds are run where time is up only softly */
    m.now = 0;
    rules.limit_s = 1;
    rules.enough_s = 1e-3;
    assert_int_equal(race_with(&m, 2, &rules, racer, &decided), 1);
    assert_true(decided);
    assert_int_equal(racer[1].rounds, 3);
    m.now = 0;
    rules.enough_s = 20e-3;
    m.seconds[1][0] = 0.99e-3;
    assert_int_equal(race_with(&m, 2, &rules, racer, &decided), 0);
    assert_true(decided);
    assert_true(racer[0].rounds >= 10 && racer[0].rounds <= 12);
}

/* Time for a few rounds of strong noise: nothing is sure, and what most rounds say is taken; where they say nothing, the
 * first stays. */
static void test_what_is_likely(void **state)
{
    mm3_race_rules rules = MM3_RACE_RULES;
    mm3_racer racer[MAX_N];
    bool decided;
    int n_right = 0, n_displaced = 0, n_sure = 0;
    (void)state;
    rules.now = now;
    rules.enough_s = 3e-3;
    rules.likely = true;
    for (int i = 0; i < 5 * RUNS; i++) {
        machine m = machine_of((uint64_t)(i + 31000), 0.06, 0.03, 0.2);
        m.seconds[0][0] = 1e-3;
        m.seconds[1][0] = 0.85e-3;
        n_right += race_with(&m, 2, &rules, racer, &decided) == 1;
        assert_true(racer[0].rounds < 10);
        m.seconds[1][0] = 1.03e-3;
        n_displaced += race_with(&m, 2, &rules, racer, &decided) == 1;
        m.seconds[1][0] = 0.85e-3; /* a joint check does not take it */
        rules.likely = false;
        n_sure += race_with(&m, 2, &rules, racer, &decided) == 1;
        rules.likely = true;
    }
    assert_true(n_right >= 270);
    assert_true(n_displaced <= 30);
    assert_true(n_sure <= 150);
}

/* Before least_s a near race is not settled, however clear its first rounds are; one that is far behind is out. */
static void test_least_time(void **state)
{
    mm3_race_rules rules = MM3_RACE_RULES;
    mm3_racer racer[MAX_N];
    bool decided;
    machine m = machine_of(9, 0.001, 0, 0);
    (void)state;
    rules.now = now;
    rules.least_s = 40e-3;
    m.seconds[0][0] = 1e-3;
    m.seconds[1][0] = 1.1e-3;
    assert_int_equal(race_with(&m, 2, &rules, racer, &decided), 0);
    assert_true(racer[0].rounds >= 18 && racer[0].rounds <= 21);
    m.now = 0;
    m.seconds[1][0] = 2e-3;
    assert_int_equal(race_with(&m, 2, &rules, racer, &decided), 0);
    assert_int_equal(racer[0].rounds, 3);
}

/* Ratios are averaged, not times: a gain where a launch takes long does not pay for a larger loss elsewhere. */
static void test_workloads(void **state)
{
    mm3_race_rules rules = MM3_RACE_RULES;
    mm3_racer racer[MAX_N];
    bool decided;
    machine m = machine_of(8, 0.01, 0, 0);
    (void)state;
    rules.now = now;
    rules.n_workloads = 3;
    m.seconds[0][0] = 1e-3, m.seconds[0][1] = 4e-3, m.seconds[0][2] = 32e-3;
    m.seconds[1][0] = 1.4e-3, m.seconds[1][1] = 4.4e-3, m.seconds[1][2] = 28e-3;
    assert_int_equal(race_with(&m, 2, &rules, racer, &decided), 0);
    m.seconds[1][0] = 0.6e-3, m.seconds[1][1] = 3.6e-3, m.seconds[1][2] = 33e-3;
    assert_int_equal(race_with(&m, 2, &rules, racer, &decided), 1);
    assert_true(fabs(racer[1].seconds - (0.6e-3 + 3.6e-3 + 33e-3) / 3) < 1e-3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_twins),
        cmocka_unit_test(test_ties_go_to_the_earlier),
        cmocka_unit_test(test_faster_wins),
        cmocka_unit_test(test_many_races),
        cmocka_unit_test(test_five_rounds),
        cmocka_unit_test(test_small_steps),
        cmocka_unit_test(test_any_place),
        cmocka_unit_test(test_few_measurements),
        cmocka_unit_test(test_rounds_follow_the_noise),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_time_limit),
        cmocka_unit_test(test_what_is_likely),
        cmocka_unit_test(test_least_time),
        cmocka_unit_test(test_workloads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
