/* Input rows as BF16 for the AVX-512 and AMX products, and the decoding tables. */
#include "kernels/cpu/mx_avx512.h"

/* BF16 of a code: its bits shifted into place and the exponents' biases made equal; subnormals 1..7 normalized. */
#define BITS(c)                         \
    ((c) == 127 ? 0x7FC0                \
     : (c) >= 8 ? (c)*16 + 0x3C00       \
     : (c) >= 4 ? 0x3C00 + ((c)-4) * 32 \
     : (c) >= 2 ? 0x3B80 + ((c)-2) * 64 \
     : (c) == 1 ? 0x3B00                \
                : 0)
#define HIGH(c) (BITS(c) >> 8)
#define LOW(c) (BITS(c) & 0xFF)
#define EIGHT(f, c) f(c), f((c) + 1), f((c) + 2), f((c) + 3), f((c) + 4), f((c) + 5), f((c) + 6), f((c) + 7)
#define ALL(f)                                                                                                    \
    EIGHT(f, 0), EIGHT(f, 8), EIGHT(f, 16), EIGHT(f, 24), EIGHT(f, 32), EIGHT(f, 40), EIGHT(f, 48), EIGHT(f, 56), \
        EIGHT(f, 64), EIGHT(f, 72), EIGHT(f, 80), EIGHT(f, 88), EIGHT(f, 96), EIGHT(f, 104), EIGHT(f, 112),       \
        EIGHT(f, 120)
const uint8_t mm3__bf16_high[128] = { ALL(HIGH) };
const uint8_t mm3__bf16_low[128] = { ALL(LOW) };

static size_t pad(size_t n) { return (n + 63) / 64 * 64; }
static size_t row_bytes(int n_rows) { return pad((size_t)n_rows * sizeof(mm3__x_row)); }

size_t mm3__x512_bytes(int n_rows, int k, bool with_scale)
{
    size_t n = (size_t)n_rows * (size_t)mm3__pad64(k);
    return row_bytes(n_rows) + n * 2 + (with_scale ? n : 0);
}

mm3__x512 mm3__x512_at(void *scratch, int n_rows, int k, bool with_scale)
{
    unsigned char *at = scratch;
    mm3__x512 p = { .n_rows = n_rows, .k = k, .kp = mm3__pad64(k), .row = scratch };
    size_t n = (size_t)n_rows * (size_t)p.kp;
    p.x = (uint16_t *)(at + row_bytes(n_rows));
    if (with_scale) p.scale = (float *)(at + row_bytes(n_rows) + n * 2);
    return p;
}

bool mm3__narrow_weights(const uint8_t *codes, const uint8_t *scales, int k)
{
    int n = k / MM3_MX_BLOCK;
    for (int b = 0; b < n; b += 64) {
        __mmask64 in = n - b >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << (n - b)) - 1;
        __m512i v = _mm512_sub_epi8(_mm512_maskz_loadu_epi8(in, scales + b), _mm512_set1_epi8(MM3__NARROW_LOW));
        __mmask64 out = _mm512_mask_cmpgt_epu8_mask(in, v, _mm512_set1_epi8(MM3__NARROW_HIGH - MM3__NARROW_LOW));
        for (; out; out &= out - 1) {
            int i = b + __builtin_ctzll(out);
            if (scales[i] == 255 || !mm3__all_zero(codes + (size_t)i * MM3_MX_BLOCK)) return false;
        }
    }
    return true;
}

/* ---- rows of codes ----------------------------------------------------------------------------------------------- */

/* Exponent that block b gets: 2^(scale - top + level); 0 for a block of zeros far below. */
static int block_exponent(const uint8_t *scales, int b, int n_blocks, int top)
{
    int e = b < n_blocks ? scales[b] - top + MM3__ROW_LEVEL : 0;
    return e < MM3__ROW_LEVEL - MM3__ROW_SPREAD ? 0 : e;
}

static void prepare_codes(const mm3__x512 *p, int i, const uint8_t *codes, const uint8_t *scales, int top, int begin,
                          int end)
{
    const mm3__decoder decoder = mm3__decoder_load();
    uint16_t *x = p->x + (size_t)i * (size_t)p->kp;
    int n_blocks = p->k / MM3_MX_BLOCK;
    for (int t = begin; t < end; t++) {
        __m512i first, second, c = mm3__load_codes(codes, t * 64, p->k);
        int e0 = block_exponent(scales, 2 * t, n_blocks, top), e1 = block_exponent(scales, 2 * t + 1, n_blocks, top);
        mm3__decode64(&decoder, c, &first, &second);
        if (p->scale) {
            __m512 s = _mm512_insertf32x8(_mm512_set1_ps(mm3_f32_from_bits((uint32_t)(e0 + 127) << 23)),
                                          _mm256_set1_ps(mm3_f32_from_bits((uint32_t)(e1 + 127) << 23)), 1);
            _mm512_storeu_ps(p->scale + ((size_t)i * (size_t)p->kp / 64 + (size_t)t) * 16, s);
        } else {
            __m512i d =
                _mm512_inserti64x4(_mm512_set1_epi16((short)(e0 * 128)), _mm256_set1_epi16((short)(e1 * 128)), 1);
            __m512i nan = _mm512_set1_epi16(0x7FC0), magnitude = _mm512_set1_epi16(0x7FFF);
            __mmask32 k0 = _mm512_cmpeq_epi16_mask(_mm512_and_si512(first, magnitude), nan);
            __mmask32 k1 = _mm512_cmpeq_epi16_mask(_mm512_and_si512(second, magnitude), nan);
            first = _mm512_mask_mov_epi16(mm3__shift_exponent(first, d), k0, nan);
            second = _mm512_mask_mov_epi16(mm3__shift_exponent(second, d), k1, nan);
        }
        _mm512_storeu_si512(x + t * 64, first);
        _mm512_storeu_si512(x + t * 64 + 32, second);
    }
}

/* ---- rows of floats ---------------------------------------------------------------------------------------------- */

static mm3__x_row float_row(const float *x, int k)
{
    const __m512i zero = _mm512_setzero_si512(), infinity = _mm512_set1_epi32(0x7F800000);
    __m512i high = zero;
    mm3__x_row row = { 0 };
    int top, floor_bits;
    for (int c = 0; c < k; c += 16) {
        __m512i a = _mm512_and_si512(_mm512_loadu_si512(x + c), _mm512_set1_epi32(0x7FFFFFFF));
        high = _mm512_mask_max_epi32(high, _mm512_cmplt_epi32_mask(a, infinity), high, a);
    }
    top = _mm512_reduce_max_epi32(high) >> 23;
    floor_bits = top > MM3__ROW_SPREAD ? (top - MM3__ROW_SPREAD) << 23 : 0;
    for (int c = 0; c < k; c += 16) {
        __m512i a = _mm512_and_si512(_mm512_loadu_si512(x + c), _mm512_set1_epi32(0x7FFFFFFF));
        __mmask16 small = _mm512_cmplt_epi32_mask(a, _mm512_set1_epi32(floor_bits));
        if (_mm512_mask_cmpneq_epi32_mask(small, a, zero)) row.wide = true;
    }
    row.exponent = top - 127 - MM3__ROW_LEVEL;
    return row;
}

static __m512i floats_to_bf16(const float *x, int c, int k, __m512 half0, __m512 half1)
{
    __m512 v[2];
    for (int h = 0; h < 2; h++) {
        int left = k - c - 16 * h;
        __mmask16 in = left >= 16 ? (__mmask16)0xFFFF : left <= 0 ? 0 : (__mmask16)((1u << left) - 1);
        v[h] = _mm512_mul_ps(_mm512_mul_ps(_mm512_maskz_loadu_ps(in, x + c + 16 * h), half0), half1);
    }
    return (__m512i)_mm512_cvtne2ps_pbh(v[1], v[0]);
}

/* Scaled before it is rounded, so that small rows keep their bits. */
static void prepare_floats(const mm3__x512 *p, int i, const float *x, int exponent, int begin, int end)
{
    int half = -exponent / 2;
    __m512 half0 = _mm512_set1_ps(mm3_f32_from_bits((uint32_t)(half + 127) << 23));
    __m512 half1 = _mm512_set1_ps(mm3_f32_from_bits((uint32_t)(-exponent - half + 127) << 23));
    uint16_t *to = p->x + (size_t)i * (size_t)p->kp;
    for (int t = begin; t < end; t++) {
        __m512i v0 = floats_to_bf16(x, t * 64, p->k, half0, half1);
        __m512i v1 = floats_to_bf16(x, t * 64 + 32, p->k, half0, half1);
        _mm512_storeu_si512(to + t * 64, _mm512_shuffle_i64x2(v0, v1, 0x88));
        _mm512_storeu_si512(to + t * 64 + 32, _mm512_shuffle_i64x2(v0, v1, 0xDD));
        if (p->scale)
            _mm512_storeu_ps(p->scale + ((size_t)i * (size_t)p->kp / 64 + (size_t)t) * 16, _mm512_set1_ps(1.0f));
    }
}

void mm3__x512_prepare(const mm3__x512 *p, const float *x, const uint8_t *x_codes, const uint8_t *x_scales,
                       int i_thread, int n_threads)
{
    size_t k = (size_t)p->k;
    int begin, end;
    mm3_share(p->kp / 64, i_thread, n_threads, &begin, &end);
    for (int i = 0; i < p->n_rows; i++) {
        const uint8_t *codes = x_codes ? x_codes + (size_t)i * k : NULL;
        const uint8_t *scales = x_codes ? x_scales + (size_t)i * (k / MM3_MX_BLOCK) : NULL;
        int top = 0;
        mm3__x_row row = x_codes ? mm3__code_row(codes, scales, p->k, &top) : float_row(x + (size_t)i * k, p->k);
        if (i_thread == 0) p->row[i] = row;
        if (row.wide) continue; /* what is there is multiplied, but not used */
        if (x_codes)
            prepare_codes(p, i, codes, scales, top, begin, end);
        else
            prepare_floats(p, i, x + (size_t)i * k, row.exponent, begin, end);
    }
}
