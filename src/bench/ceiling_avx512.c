/* Reading and multiplying with AVX-512. */
#include <immintrin.h>

#include "bench/ceiling.h"

uint64_t mm3__read_plain_avx512(const unsigned char *p, size_t n)
{
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t i = 0; i < n; i += MM3__STEP) {
        a = _mm512_xor_si512(a, _mm512_loadu_si512(p + i));
        b = _mm512_xor_si512(b, _mm512_loadu_si512(p + i + 64));
        c = _mm512_xor_si512(c, _mm512_loadu_si512(p + i + 128));
        d = _mm512_xor_si512(d, _mm512_loadu_si512(p + i + 192));
    }
    a = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d));
    return (uint64_t)_mm512_reduce_add_epi64(a);
}

uint64_t mm3__read_nta_avx512(const unsigned char *p, size_t n)
{
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t i = 0; i < n; i += MM3__STEP) {
        for (int j = 0; j < MM3__STEP; j += MM3__LINE) _mm_prefetch((const char *)p + i + MM3__AHEAD + j, _MM_HINT_NTA);
        a = _mm512_xor_si512(a, _mm512_loadu_si512(p + i));
        b = _mm512_xor_si512(b, _mm512_loadu_si512(p + i + 64));
        c = _mm512_xor_si512(c, _mm512_loadu_si512(p + i + 128));
        d = _mm512_xor_si512(d, _mm512_loadu_si512(p + i + 192));
    }
    a = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d));
    return (uint64_t)_mm512_reduce_add_epi64(a);
}

/* Enough chains to hide a latency of 6 at two a clock. */
enum { CHAINS = 14 };

double mm3__multiply_avx512(long n, float *sink)
{
    __m512 sum[CHAINS], half = _mm512_set1_ps(0.5f);
    for (int c = 0; c < CHAINS; c++) sum[c] = _mm512_set1_ps(1);
    for (long i = 0; i < n; i++)
        for (int c = 0; c < CHAINS; c++) sum[c] = _mm512_fmadd_ps(sum[c], half, half);
    for (int c = 0; c < CHAINS; c++) *sink += _mm512_reduce_add_ps(sum[c]);
    return (double)n * CHAINS * 16 * 2;
}

double mm3__multiply_bf16_avx512(long n, float *sink)
{
    __m512 sum[CHAINS];
    __m512bh one = (__m512bh)_mm512_set1_epi32(0x3F803F80), minus = (__m512bh)_mm512_set1_epi32(0x3F80BF80);
    for (int c = 0; c < CHAINS; c++) sum[c] = _mm512_set1_ps(1);
    for (long i = 0; i < n; i++) /* adds 1 - 1 */
        for (int c = 0; c < CHAINS; c++) sum[c] = _mm512_dpbf16_ps(sum[c], one, minus);
    for (int c = 0; c < CHAINS; c++) *sink += _mm512_reduce_add_ps(sum[c]);
    return (double)n * CHAINS * 32 * 2;
}
