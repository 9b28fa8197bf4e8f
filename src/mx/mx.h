/* mx: number formats. E4M3 elements, E8M0 scales, BF16: codes to floats and back, exactly.
 * Knows no tensors beyond one block of 32. Usable from C and from CUDA (static inline, no state).
 * source  OCP Microscaling v1.0, and docs/numerics.md for mm3's choices on non-finite input
 * proof   tests/unit/test_mx.c: every code, every scale byte, rounding against an independent search */
#ifndef MM3_MX_H
#define MM3_MX_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Before each function: both compilers take it. */
#ifdef __CUDACC__
#define MM3_MX_FN static __host__ __device__ inline
#else
#define MM3_MX_FN static inline
#endif

enum { MM3_MX_BLOCK = 32 }; /* elements that share one scale */

/* A float's bits, and back. */
MM3_MX_FN uint32_t mm3_f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
MM3_MX_FN float mm3_f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* BF16: the upper half of a float. */
MM3_MX_FN float mm3_bf16_to_f32(uint16_t h) { return mm3_f32_from_bits((uint32_t)h << 16); }

/* Round to nearest even; NaN stays NaN (quiet, sign kept), overflow goes to infinity. */
MM3_MX_FN uint16_t mm3_bf16_from_f32(float x)
{
    uint32_t u = mm3_f32_bits(x);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)((u >> 16) | 0x0040u);
    return (uint16_t)((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

/* E8M0: 2^(byte - 127); 255 is NaN.
 * trap  byte 0 is 2^-127, a float subnormal: `byte << 23` gives 0 there, and infinity at 255 */
MM3_MX_FN float mm3_e8m0_to_f32(uint8_t byte)
{
    if (byte == 255) return mm3_f32_from_bits(0x7FC00000u);
    return mm3_f32_from_bits(byte ? (uint32_t)byte << 23 : 0x00400000u);
}

/* E4M3 (OCP, "fn"): bias 7, largest 448 (0x7E), subnormals m * 2^-9, no infinity, NaN 0x7F and 0xFF. */
MM3_MX_FN float mm3_e4m3_to_f32(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80) << 24, e = (code >> 3) & 15, m = code & 7;
    if ((code & 0x7F) == 0x7F) return mm3_f32_from_bits(sign | 0x7FC00000u);
    if (e == 0) {
        float x = (float)m * 0x1p-9f;
        return mm3_f32_from_bits(mm3_f32_bits(x) | sign);
    }
    return mm3_f32_from_bits(sign | ((e + 120) << 23) | (m << 20));
}

/* x * 2^-(byte - 127), rounded to nearest even E4M3, saturating at 448; infinity and NaN give NaN with their sign.
 * Integer arithmetic on the float's bits: no rounding mode, no flush to zero can touch it.
 *   byte  0..254 */
MM3_MX_FN uint8_t mm3_e4m3_from_f32(float x, int byte)
{
    uint32_t u = mm3_f32_bits(x), a = u & 0x7FFFFFFFu, sign = (u >> 24) & 0x80u, m, code;
    int e, shift;
    if (a >= 0x7F800000u) return (uint8_t)(sign | 0x7Fu);
    if (a == 0) return (uint8_t)sign;
    /* value = m * 2^e with m < 2^24 */
    if (a >= 0x00800000u) {
        m = (a & 0x007FFFFFu) | 0x00800000u;
        e = (int)(a >> 23) - 150;
    } else {
        m = a;
        e = -149;
    }
    e -= byte - 127;
    /* normalize m to 24 bits, so that e alone places the value */
    while (m < 0x00800000u) {
        m <<= 1;
        e--;
    }
    /* m * 2^e = 1.f * 2^(e + 23). Keep 3 fraction bits when normal (e + 23 >= -6), else units of 2^-9. */
    if (e + 23 > 8) return (uint8_t)(sign | 0x7Eu);
    shift = e + 23 >= -6 ? 20 : -9 - e;
    if (shift > 25) return (uint8_t)sign; /* below half of the least subnormal */
    {
        uint32_t half = 1u << (shift - 1), rest = m & ((half << 1) - 1), q = m >> shift;
        q += rest > half || (rest == half && (q & 1u));
        /* normal: q is 8..16 (16 carries into the exponent by the addition); subnormal: q is 0..8 */
        code = e + 23 >= -6 ? ((uint32_t)(e + 23 + 6) << 3) + q : q;
    }
    return (uint8_t)(sign | (code > 0x7Eu ? 0x7Eu : code));
}

/* The scale byte of 32 values: the smallest 2^e with 448 * 2^e >= the largest finite magnitude.
 *   amax_bits  bits of that magnitude (0 if there is no finite value) */
MM3_MX_FN uint8_t mm3_e8m0_from_amax(uint32_t amax_bits)
{
    int byte = (int)(amax_bits >> 23) - 8 + ((amax_bits & 0x007FFFFFu) > 0x00600000u);
    return (uint8_t)(byte < 0 ? 0 : byte);
}

/* One block: mm3's activation quantization, the recipe that every quantizer must equal bit for bit.
 *   x  [32]; codes  [32]; returns the scale byte (0..247 for finite input) */
MM3_MX_FN uint8_t mm3_mx_quantize_block(const float *x, uint8_t *codes)
{
    uint32_t amax = 0;
    uint8_t byte;
    for (int i = 0; i < MM3_MX_BLOCK; i++) {
        uint32_t a = mm3_f32_bits(x[i]) & 0x7FFFFFFFu;
        if (a < 0x7F800000u && a > amax) amax = a;
    }
    byte = mm3_e8m0_from_amax(amax);
    for (int i = 0; i < MM3_MX_BLOCK; i++) codes[i] = mm3_e4m3_from_f32(x[i], byte);
    return byte;
}

#endif
