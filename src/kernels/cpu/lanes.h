/* lanes: LANES floats side by side. One source of a kernel serves the baseline (4 lanes of plain GNU C, any machine),
 * AVX2 (8) and AVX-512 (16): define LANES, then include this. Every function acts on each lane alone, so a lane's
 * bits do not depend on its neighbours. Knows no operation. */
#ifndef MM3_LANES_H
#define MM3_LANES_H

#include "base/base.h"
#include "mx/mx.h"

#if LANES != 4
#include <immintrin.h>
#endif

/* Vectors of LANES: floats, signed and unsigned whole numbers, halves (BF16 bits). */
typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * LANES)));

/* Always inlined: a call would pass vectors through memory. */
#define LANES_INLINE static inline __attribute__((always_inline))

/* To and from memory of any alignment. */
LANES_INLINE vf vf_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
LANES_INLINE void vf_store(float *p, vf v) { memcpy(p, &v, sizeof v); }

/* vf_set: x in every lane. */
#if LANES == 4
LANES_INLINE vf vf_set(float x) { return (vf){ x, x, x, x }; }
/* a * b + c: rounded once where the machine can, twice on the baseline. */
LANES_INLINE vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
/* x < y ? a : b */
LANES_INLINE vf vf_if_lt(vf x, vf y, vf a, vf b)
{
    vi mask = x < y;
    return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}
#elif LANES == 8 /* as above, by instructions */
LANES_INLINE vf vf_set(float x) { return _mm256_set1_ps(x); }
LANES_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
LANES_INLINE vf vf_if_lt(vf x, vf y, vf a, vf b) { return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, y, _CMP_LT_OQ)); }
#else
LANES_INLINE vf vf_set(float x) { return _mm512_set1_ps(x); }
LANES_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
LANES_INLINE vf vf_if_lt(vf x, vf y, vf a, vf b)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_LT_OQ), b, a);
}
#endif

/* Bit i says whether lane i of x is at least that of y. */
LANES_INLINE unsigned vf_mask_ge(vf x, vf y)
{
#if LANES == 4
    vi m = x >= y;
    return ((unsigned)m[0] & 1u) | ((unsigned)m[1] & 2u) | ((unsigned)m[2] & 4u) | ((unsigned)m[3] & 8u);
#elif LANES == 8
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_GE_OQ));
#else
    return _mm512_cmp_ps_mask(x, y, _CMP_GE_OQ);
#endif
}

/* The larger of a number in `best` and x; a NaN in x is passed over. */
LANES_INLINE vf vf_max(vf x, vf best) { return vf_if_lt(best, x, x, best); }

/* Sum of the lanes, in a fixed order. */
LANES_INLINE float vf_sum(vf v)
{
    float x[LANES];
    vf_store(x, v);
    for (int n = LANES / 2; n; n /= 2)
        for (int i = 0; i < n; i++) x[i] += x[i + n];
    return x[0];
}

/* Lanes 0, 2, 4 ... and 1, 3, 5 ... of two vectors, for a shuffle. */
#if LANES == 4
#define LANES_EVEN 0, 2, 4, 6
#define LANES_ODD 1, 3, 5, 7
#elif LANES == 8
#define LANES_EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define LANES_ODD 1, 3, 5, 7, 9, 11, 13, 15
#else
#define LANES_EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define LANES_ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#endif

/* Sums of neighbouring lanes, those of a, then those of b. */
LANES_INLINE vf vf_fold(vf a, vf b)
{
    return __builtin_shufflevector(a, b, LANES_EVEN) + __builtin_shufflevector(a, b, LANES_ODD);
}

/* Lane i is the sum of the lanes of x[i], each in the same fixed order. x is spoilt. */
LANES_INLINE vf vf_sums(vf *x)
{
#if LANES > 8
    for (int i = 0; i < 8; i++) x[i] = vf_fold(x[2 * i], x[2 * i + 1]);
#endif
#if LANES > 4
    for (int i = 0; i < 4; i++) x[i] = vf_fold(x[2 * i], x[2 * i + 1]);
#endif
    for (int i = 0; i < 2; i++) x[i] = vf_fold(x[2 * i], x[2 * i + 1]);
    return vf_fold(x[0], x[1]);
}

/* The largest lane; NaNs are passed over. */
LANES_INLINE float vf_largest(vf v)
{
    float x[LANES], best = -INFINITY;
    vf_store(x, v);
    for (int i = 0; i < LANES; i++) best = x[i] > best ? x[i] : best;
    return best;
}

/* exp(x) for x <= 88 within 2 units in the last place (tests/kernels/test_lanes.c measures it); 0 where the result
 * would be below 2^-126; NaN for NaN. The polynomial is that of Cephes' expf. */
LANES_INLINE vf vf_exp(vf x)
{
    vf t = vf_fma(x, vf_set(1.44269504f), vf_set(0x1.8p23f)); /* the nearest integer is in t's lowest bits */
    vf n = t - vf_set(0x1.8p23f), r, y, power;
    r = vf_fma(n, vf_set(-0.693359375f), x); /* exact: the constant has 9 bits */
    r = vf_fma(n, vf_set(2.12194440e-4f), r);
    y = vf_fma(r, vf_set(1.9875691500e-4f), vf_set(1.3981999507e-3f));
    y = vf_fma(y, r, vf_set(8.3334519073e-3f));
    y = vf_fma(y, r, vf_set(4.1665795894e-2f));
    y = vf_fma(y, r, vf_set(1.6666665459e-1f));
    y = vf_fma(y, r, vf_set(5.0000001201e-1f));
    y = vf_fma(y, r * r, r) + vf_set(1.0f);
    power = (vf)(((vu)t << 23) + 0x3F800000u);
    return vf_if_lt(x, vf_set(-87.3365f), vf_set(0.0f), y * power);
}

/* LANES values of a KV array to floats. */
LANES_INLINE vf vf_load_bf16(const uint16_t *p)
{
#if LANES == 4
    vh h;
    memcpy(&h, p, sizeof h);
    return (vf)(__builtin_convertvector(h, vu) << 16);
#elif LANES == 8
    return (vf)((vu)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i_u *)p)) << 16);
#else
    return (vf)((vu)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i_u *)p)) << 16);
#endif
}

/* Round to BF16 as mm3_bf16_from_f32. */
LANES_INLINE void vf_store_bf16(uint16_t *p, vf v)
{
    vu u = (vu)v, nan = (vu)((vi)(u & 0x7FFFFFFFu) > (vi)(vu){ 0 } + 0x7F800000);
    vu rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16, quiet = (u >> 16) | 0x40u;
    vh h = __builtin_convertvector((quiet & nan) | (rounded & ~nan), vh);
    memcpy(p, &h, sizeof h);
}

/* n values (a multiple of LANES) of BF16 to floats. */
LANES_INLINE void lanes_widen(float *dst, const uint16_t *src, size_t n)
{
    for (size_t i = 0; i < n; i += LANES) vf_store(dst + i, vf_load_bf16(src + i));
}

#endif
