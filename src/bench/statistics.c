/* Median and spread of repeated measurements: means would follow the outliers that a busy machine makes. */
#include <math.h>
#include <stdlib.h>

#include "bench/bench.h"

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double middle(const double *x, int n) { return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2; }

mm3_spread mm3_spread_of(double *x, int n)
{
    mm3_spread s = { NAN, NAN };
    double below = 0, at = 0;
    int left, right;
    if (n <= 0) return s;
    qsort(x, (size_t)n, sizeof *x, ascending);
    s.median = middle(x, n);
    /* Deviations in ascending order, walking outwards from the median; no memory needed for them. */
    left = n / 2 - 1;
    right = n / 2;
    for (int k = 0; k <= n / 2; k++) {
        below = at;
        if (left < 0 || (right < n && x[right] - s.median <= s.median - x[left]))
            at = x[right++] - s.median;
        else
            at = s.median - x[left--];
    }
    s.mad = n % 2 ? at : (below + at) / 2;
    return s;
}
