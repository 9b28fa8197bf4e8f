/* Multiplying with AVX2. */
#include <immintrin.h>

#include "bench/ceiling.h"

double mm3__multiply_avx2(long n, float *sink)
{
    enum { CHAINS = 12 };
    __m256 sum[CHAINS], half = _mm256_set1_ps(0.5f);
    float part[8];
    for (int c = 0; c < CHAINS; c++) sum[c] = _mm256_set1_ps(1);
    for (long i = 0; i < n; i++)
        for (int c = 0; c < CHAINS; c++) sum[c] = _mm256_fmadd_ps(sum[c], half, half);
    for (int c = 1; c < CHAINS; c++) sum[0] = _mm256_add_ps(sum[0], sum[c]);
    _mm256_storeu_ps(part, sum[0]);
    *sink += part[0];
    return (double)n * CHAINS * 8 * 2;
}
