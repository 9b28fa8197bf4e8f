/* quantize_blocks: FP32 to MXFP8, for every operation that ends in codes. Each instruction set gives the bits of
 * mm3_mx_quantize_block (mx/mx.h). Internal to this folder. */
#ifndef MM3_KERNELS_CPU_QUANTIZE_BLOCKS_H
#define MM3_KERNELS_CPU_QUANTIZE_BLOCKS_H

#include "mx/mx.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

/* One block, portable. x * 2^-e is exact wherever it does not round to zero in E4M3 too; then rounding to 3 fraction
 * bits is integer arithmetic, and rounding to units of 2^-9 is the addition of 2^14, whose last bit that is. Numbers
 * below 2^31 are compared by the sign of their difference. */
static inline uint8_t mm3__quantize_portably(const float *restrict x, uint8_t *restrict codes)
{
    int32_t lane[8] = { 0 }, amax = 0, code[MM3_MX_BLOCK];
    uint8_t byte;
    float up;
    for (int i = 0; i < MM3_MX_BLOCK; i += 8)
        for (int l = 0; l < 8; l++) {
            int32_t a = (int32_t)(mm3_f32_bits(x[i + l]) & 0x7FFFFFFFu), more;
            a &= (a - 0x7F800000) >> 31;
            more = a - lane[l];
            lane[l] += more & ~(more >> 31);
        }
    for (int l = 0; l < 8; l++) amax = lane[l] > amax ? lane[l] : amax;
    byte = mm3_e8m0_from_amax((uint32_t)amax);
    up = mm3_f32_from_bits((254u - byte) << 23); /* 2^-(byte - 127), a normal number: byte <= 247 */
    for (int i = 0; i < MM3_MX_BLOCK; i++) {
        int32_t bits = (int32_t)mm3_f32_bits(x[i]), a = bits & 0x7FFFFFFF;
        float y = mm3_f32_from_bits((uint32_t)a) * up;
        int32_t u = (int32_t)mm3_f32_bits(y), is_tiny = (u - (121 << 23)) >> 31, is_finite = (a - 0x7F800000) >> 31;
        uint32_t rounded = ((uint32_t)u + 0x7FFFFu + ((uint32_t)u >> 20 & 1u)) >> 20; /* a NaN's may wrap: not used */
        int32_t normal = (int32_t)rounded - (120 << 3);
        int32_t tiny = (int32_t)mm3_f32_bits(y + 16384.0f) - (141 << 23);
        int32_t c = (tiny & is_tiny) | (normal & ~is_tiny);
        code[i] = (c & is_finite) | (0x7F & ~is_finite) | (bits >> 24 & 0x80);
    }
    for (int i = 0; i < MM3_MX_BLOCK; i++) codes[i] = (uint8_t)code[i];
    return byte;
}

enum { MM3__GROUP = 8 }; /* blocks whose scales are found first, so that none waits for its own largest element */

#if defined(__AVX512BW__)

/* Scale bytes of n blocks, at most MM3__GROUP, and 1 / scale as floats; false if a NaN or an infinity is among them.
 * One tree finds the largest magnitude of all eight: each step folds pairs of vectors into one. */
static inline bool mm3__group_scales(const float *x, int n, uint8_t *scales, float *up)
{
    static const int32_t in_order[16] = { 0, 1, 8, 9, 4, 5, 12, 13 }; /* of the last step's lanes */
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    __m512i a[MM3__GROUP];
    __m256i top, over, byte;
    for (int b = 0; b < MM3__GROUP; b++) { /* what is beyond the n-th is the first once more */
        const float *block = x + (b < n ? b : 0) * MM3_MX_BLOCK;
        a[b] = _mm512_max_epi32(_mm512_and_si512(_mm512_loadu_si512(block), magnitude),
                                _mm512_and_si512(_mm512_loadu_si512(block + 16), magnitude));
    }
    for (int n_left = MM3__GROUP / 2; n_left >= 2; n_left /= 2) /* in the end quarters of b, b + 4, b + 2, b + 6 */
        for (int b = 0; b < n_left; b++)
            a[b] = _mm512_max_epi32(_mm512_shuffle_i32x4(a[b], a[b + n_left], 0x88),
                                    _mm512_shuffle_i32x4(a[b], a[b + n_left], 0xDD));
    a[0] = _mm512_max_epi32(_mm512_unpacklo_epi32(a[0], a[1]), _mm512_unpackhi_epi32(a[0], a[1]));
    a[0] = _mm512_max_epi32(a[0], _mm512_shuffle_epi32(a[0], 0x4E)); /* each quarter: b, b + 1, and once more */
    a[0] = _mm512_permutexvar_epi32(_mm512_loadu_si512(in_order), a[0]);
    memcpy(&top, &a[0], sizeof top);
    over = _mm256_cmpgt_epi32(_mm256_and_si256(top, _mm256_set1_epi32(0x007FFFFF)), _mm256_set1_epi32(0x00600000));
    byte = _mm256_sub_epi32(_mm256_sub_epi32(_mm256_srli_epi32(top, 23), _mm256_set1_epi32(8)), over);
    byte = _mm256_max_epi32(byte, _mm256_setzero_si256()); /* mm3_e8m0_from_amax, eight at a time */
    _mm256_mask_cvtepi32_storeu_epi8(scales, (__mmask8)((1u << n) - 1), byte);
    _mm256_storeu_ps(up, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_sub_epi32(_mm256_set1_epi32(254), byte), 23)));
    return _mm256_testz_si256(_mm256_cmpgt_epi32(top, _mm256_set1_epi32(0x7F7FFFFF)), _mm256_set1_epi32(-1));
}

/* 16 times the codes of 32 finite numbers, without their signs, and with 121 * 8 too much; as words, each 16 bytes
 * four of the first half, then four of the second. The arithmetic is that of AVX2's mm3__block_codes. */
static inline __m512i mm3__block_words(__m512i first, __m512i second, float up)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF), exponent = _mm512_set1_epi32(0x7F800000);
    const __m512i least = _mm512_set1_epi32(121 << 23), by_2_20 = _mm512_set1_epi32(20 << 23);
    __m512i x[2] = { first, second };
    for (int h = 0; h < 2; h++) {
        __m512 y = _mm512_mul_ps((__m512)_mm512_and_si512(x[h], magnitude), _mm512_set1_ps(up));
        __m512i e = _mm512_max_epi32(_mm512_and_si512((__m512i)y, exponent), least);
        __m512 sum = _mm512_add_ps(y, (__m512)_mm512_add_epi32(e, by_2_20));
        x[h] = _mm512_madd_epi16(_mm512_mask_mov_epi16((__m512i)sum, 0xAAAAAAAA, e), _mm512_set1_epi32(1 << 16 | 16));
    }
    return _mm512_packs_epi32(x[0], x[1]);
}

/* The codes of two finite blocks, one after the other. */
static inline __m512i mm3__two_blocks(const float *first, const float *second, float up_first, float up_second)
{
    static const int32_t in_order[16] = { 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15 };
    const __m512i too_much = _mm512_set1_epi16(121 * 8);
    __m512i x[4] = { _mm512_loadu_si512(first), _mm512_loadu_si512(first + 16), _mm512_loadu_si512(second),
                     _mm512_loadu_si512(second + 16) };
    __m512i low = _mm512_srli_epi16(mm3__block_words(x[0], x[1], up_first), 4), codes, sign;
    __m512i high = _mm512_srli_epi16(mm3__block_words(x[2], x[3], up_second), 4);
    codes = _mm512_packus_epi16(_mm512_sub_epi16(low, too_much), _mm512_sub_epi16(high, too_much));
    sign = _mm512_packs_epi16(_mm512_packs_epi32(x[0], x[1]), _mm512_packs_epi32(x[2], x[3]));
    codes = _mm512_ternarylogic_epi32(codes, sign, _mm512_set1_epi8((char)0x80), 0xF8); /* codes | sign & 0x80 */
    return _mm512_permutexvar_epi32(_mm512_loadu_si512(in_order), codes);
}

/* n blocks, at most MM3__GROUP. */
static inline void mm3__quantize_group(const float *restrict x, uint8_t *restrict codes, uint8_t *restrict scales,
                                       int n)
{
    float up[MM3__GROUP];
    bool finite = mm3__group_scales(x, n, scales, up);
    for (int b = 0; b < n && !finite; b++)
        scales[b] = mm3__quantize_portably(x + b * MM3_MX_BLOCK, codes + b * MM3_MX_BLOCK);
    for (int b = 0; b < n && finite; b += 2) {
        int second = b + 1 < n ? b + 1 : b; /* an odd one at the end is its own neighbour, stored once */
        __m512i two = mm3__two_blocks(x + b * MM3_MX_BLOCK, x + second * MM3_MX_BLOCK, up[b], up[second]);
        if (second > b)
            _mm512_storeu_si512(codes + b * MM3_MX_BLOCK, two);
        else
            memcpy(codes + b * MM3_MX_BLOCK, &two, MM3_MX_BLOCK);
    }
}

#elif defined(__AVX2__)

/* The largest magnitude of a block, as an integer: a NaN or an infinity gives one of 0x7F800000 or more. */
static inline uint32_t mm3__block_top(const float *x)
{
    const __m256i *v = (const __m256i *)x, magnitude = _mm256_set1_epi32(0x7FFFFFFF);
    __m256i a = _mm256_and_si256(_mm256_loadu_si256(v), magnitude);
    __m128i half;
    for (int h = 1; h < 4; h++) a = _mm256_max_epi32(a, _mm256_and_si256(_mm256_loadu_si256(v + h), magnitude));
    half = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4E));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xB1));
    return (uint32_t)_mm_cvtsi128_si32(half);
}

/* The codes of a finite block with scale byte `byte`. One addition rounds: to y = |x / s| of exponent e >= -6 is added
 * 2^(e + 20), whose last bit is y's last in E4M3; the sum's low word is then y's fraction with its hidden bit, n of 16,
 * and the code 8 (e + 6) + n. */
static inline void mm3__block_codes(const float *restrict x, uint8_t byte, uint8_t *restrict codes)
{
    const __m256i *v = (const __m256i *)x;
    const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF), exponent = _mm256_set1_epi32(0x7F800000);
    const __m256i least = _mm256_set1_epi32(121 << 23), by_2_20 = _mm256_set1_epi32(20 << 23);
    const __m256 up = _mm256_castsi256_ps(_mm256_set1_epi32((254 - byte) << 23));
    __m256i code[4], low, high, sign;
    for (int h = 0; h < 4; h++) { /* 16 times 8 e + n, of words: 16 n + 1 (e << 7) */
        __m256 y = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(v + h), magnitude)), up);
        __m256i e = _mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(y), exponent), least);
        __m256 sum = _mm256_add_ps(y, _mm256_castsi256_ps(_mm256_add_epi32(e, by_2_20)));
        code[h] =
            _mm256_madd_epi16(_mm256_blend_epi16(_mm256_castps_si256(sum), e, 0xAA), _mm256_set1_epi32(1 << 16 | 16));
    }
    low = _mm256_srli_epi16(_mm256_packs_epi32(code[0], code[1]), 4);
    high = _mm256_srli_epi16(_mm256_packs_epi32(code[2], code[3]), 4);
    low = _mm256_sub_epi16(low, _mm256_set1_epi16(121 * 8));
    high = _mm256_sub_epi16(high, _mm256_set1_epi16(121 * 8));
    sign = _mm256_packs_epi16(_mm256_packs_epi32(_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)),
                              _mm256_packs_epi32(_mm256_loadu_si256(v + 2), _mm256_loadu_si256(v + 3)));
    low = _mm256_or_si256(_mm256_packus_epi16(low, high), _mm256_and_si256(sign, _mm256_set1_epi8((char)0x80)));
    low = _mm256_permutevar8x32_epi32(low, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)); /* packs work by halves */
    _mm256_storeu_si256((__m256i *)codes, low);
}

/* n blocks, at most MM3__GROUP. */
static inline void mm3__quantize_group(const float *restrict x, uint8_t *restrict codes, uint8_t *restrict scales,
                                       int n)
{
    uint32_t top = 0;
    for (int b = 0; b < n; b++) {
        uint32_t t = mm3__block_top(x + b * MM3_MX_BLOCK);
        top = t > top ? t : top;
        scales[b] = mm3_e8m0_from_amax(t);
    }
    for (int b = 0; b < n; b++) {
        if (top < 0x7F800000u)
            mm3__block_codes(x + b * MM3_MX_BLOCK, scales[b], codes + b * MM3_MX_BLOCK);
        else
            scales[b] = mm3__quantize_portably(x + b * MM3_MX_BLOCK, codes + b * MM3_MX_BLOCK);
    }
}

#endif

/* n blocks.
 *   x  [32 n]   codes  [32 n]   scales  [n], 0 .. 247
 * Proof: mm3 check --op quantize; tests/kernels/test_quantize.c (every exponent, ties, NaN, infinity). */
static inline void mm3__quantize_blocks(const float *restrict x, uint8_t *restrict codes, uint8_t *restrict scales,
                                        int n)
{
#if defined(__AVX2__)
    for (int b = 0; b < n; b += MM3__GROUP)
        mm3__quantize_group(x + b * MM3_MX_BLOCK, codes + b * MM3_MX_BLOCK, scales + b,
                            n - b < MM3__GROUP ? n - b : MM3__GROUP);
#else
    for (int b = 0; b < n; b++) scales[b] = mm3__quantize_portably(x + b * MM3_MX_BLOCK, codes + b * MM3_MX_BLOCK);
#endif
}

#endif
