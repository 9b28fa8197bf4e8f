/* Median and median absolute deviation, against the definition on sorted deviations. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bench/bench.h"

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, ascending);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

static void assert_near(double a, double b, double tolerance)
{
    if (!(fabs(a - b) <= tolerance)) fail_msg("%.17g is not %.17g", a, b);
}

static void is(const double *values, int n, double median, double mad)
{
    double x[16];
    mm3_spread s;
    memcpy(x, values, sizeof *x * (size_t)n);
    s = mm3_spread_of(x, n);
    assert_near(s.median, median, 0);
    assert_near(s.mad, mad, 0);
}

static void known_values(void **state)
{
    (void)state;
    is((const double[]){ 5 }, 1, 5, 0);
    is((const double[]){ 4, 2 }, 2, 3, 1);
    is((const double[]){ 3, 1, 2 }, 3, 2, 1);
    is((const double[]){ 1, 1, 2, 2, 4, 6, 9 }, 7, 2, 1);
    is((const double[]){ 7, 7, 7, 7 }, 4, 7, 0);
    is((const double[]){ -10, 0, 1, 1000 }, 4, 0.5, 5.5);
}

/* One outlier moves neither. */
static void outliers(void **state)
{
    (void)state;
    is((const double[]){ 10, 11, 12, 13, 1e9 }, 5, 12, 1);
    is((const double[]){ 10, 11, 12, 13, INFINITY }, 5, 12, 1);
}

static void nothing(void **state)
{
    mm3_spread s = mm3_spread_of(NULL, 0);
    (void)state;
    assert_true(isnan(s.median) && isnan(s.mad));
}

static void the_definition(void **state)
{
    uint32_t r = 1;
    (void)state;
    for (int round = 0; round < 2000; round++) {
        double x[64], y[64], deviation[64], median;
        int n = 1 + round % 64;
        mm3_spread s;
        for (int i = 0; i < n; i++) {
            r = r * 1664525u + 1013904223u;
            x[i] = y[i] = round % 3 ? (double)(r >> 8) / 1024 : (double)(r >> 29); /* with many ties */
        }
        s = mm3_spread_of(x, n);
        median = median_of(y, n);
        assert_near(s.median, median, 0);
        for (int i = 0; i < n; i++) deviation[i] = fabs(y[i] - median);
        assert_near(s.mad, median_of(deviation, n), 1e-9);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_values),
        cmocka_unit_test(outliers),
        cmocka_unit_test(nothing),
        cmocka_unit_test(the_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
