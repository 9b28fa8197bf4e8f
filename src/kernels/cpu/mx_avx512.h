/* mx_avx512: what the AVX-512 and AMX products share. Decoding of E4M3 to BF16, and the input rows as BF16.
 * For files compiled with AVX-512 only. Internal to this folder. Which rows they may take: mx_rows.h. */
#ifndef MM3_KERNELS_CPU_MX_AVX512_H
#define MM3_KERNELS_CPU_MX_AVX512_H

#include <immintrin.h>

#include "kernels/cpu/mx_rows.h"

/* The input rows, prepared. k is padded to kp, a multiple of 64; each 64 elements are in the order that decoding
 * gives: 0-7, 16-23, 32-39, 48-55, then 8-15, 24-31, 40-47, 56-63. */
typedef struct mm3__x512 {
    int n_rows, k, kp;
    mm3__x_row *row; /* [n_rows] */
    uint16_t *x;     /* [n_rows, kp] BF16 */
    float *scale;    /* [n_rows, kp / 64, 16]: the scales of two blocks, 8 times each; NULL: they are in x */
} mm3__x512;

/* k rounded up to a multiple of 64. */
static inline int mm3__pad64(int k) { return (k + 63) / 64 * 64; }

/* Bytes of prepared rows, and their place in a scratch area. */
size_t mm3__x512_bytes(int n_rows, int k, bool with_scale);
mm3__x512 mm3__x512_at(void *scratch, int n_rows, int k, bool with_scale);
/* Prepare all rows, this thread its columns: from codes where x_codes is not NULL, else from floats. */
void mm3__x512_prepare(const mm3__x512 *p, const float *x, const uint8_t *x_codes, const uint8_t *x_scales,
                       int i_thread, int n_threads);

/* BF16 bits of the 128 codes without sign, upper and lower bytes. */
extern const uint8_t mm3__bf16_high[128], mm3__bf16_low[128];

/* The two tables in registers; load it outside of loops. */
typedef struct mm3__decoder {
    __m512i high[2], low[2];
} mm3__decoder;
static inline mm3__decoder mm3__decoder_load(void)
{
    mm3__decoder d;
    for (int i = 0; i < 2; i++) {
        d.high[i] = _mm512_loadu_si512(mm3__bf16_high + 64 * i);
        d.low[i] = _mm512_loadu_si512(mm3__bf16_low + 64 * i);
    }
    return d;
}

/* 64 codes to BF16, in the order above. */
static inline void mm3__decode64(const mm3__decoder *d, __m512i codes, __m512i *first, __m512i *second)
{
    __m512i high = _mm512_permutex2var_epi8(d->high[0], codes, d->high[1]);
    __m512i low = _mm512_permutex2var_epi8(d->low[0], codes, d->low[1]);
    high = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8((char)0x80), 0xF8); /* high | (codes & 0x80) */
    *first = _mm512_unpacklo_epi8(low, high);
    *second = _mm512_unpackhi_epi8(low, high);
}

/* The codes from c on, zeros from k on. */
static inline __m512i mm3__load_codes(const uint8_t *codes, int c, int k)
{
    int left = k - c;
    return left >= 64 ? _mm512_loadu_si512(codes + c) : _mm512_maskz_loadu_epi8(((__mmask64)1 << left) - 1, codes + c);
}

/* BF16 values times 2^d, d in the upper 9 bits of each lane; zeros stay. NaNs do not. */
static inline __m512i mm3__shift_exponent(__m512i v, __m512i d)
{
    return _mm512_mask_add_epi16(v, _mm512_test_epi16_mask(v, _mm512_set1_epi16(0x7FFF)), v, d);
}

/* Whether a weight row's scales are in the narrow range, blocks of zeros excepted. */
bool mm3__narrow_weights(const uint8_t *codes, const uint8_t *scales, int k);

#endif
