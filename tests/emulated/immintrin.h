/* The AVX-512 and AMX instructions that mm3 uses, one by one in plain C, for processors without them. In a build of
 * scripts/check-emulated the files *_avx512.c, *512.c and *_amx.c find this <immintrin.h> first. Up to AVX2 all is the
 * compiler's own and real. Read next: docs/emulation.md, which says what this proves and what it can't.
 *
 * Source: Intel 64 and IA-32 Architectures Software Developer's Manual, the "Operation" of each instruction. Where the
 * hardware would fault, emu_fault stops the program: an unaligned store, a tile of the wrong shape, no configuration.
 * An instruction that is not here does not compile: add it. */
#ifndef MM3_TESTS_EMULATED_IMMINTRIN_H
#define MM3_TESTS_EMULATED_IMMINTRIN_H

#include_next <immintrin.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define __AVX512BW__ 1 /* quantize_blocks.h asks for it; the compiler's header, which must not see it, is read by now */

#define EMU static inline __attribute__((always_inline, unused))

typedef int8_t emu_i8 __attribute__((vector_size(64)));
typedef uint8_t emu_u8 __attribute__((vector_size(64)));
typedef int16_t emu_i16 __attribute__((vector_size(64)));
typedef uint16_t emu_u16 __attribute__((vector_size(64)));
typedef int32_t emu_i32 __attribute__((vector_size(64)));
typedef uint32_t emu_u32 __attribute__((vector_size(64)));
typedef uint64_t emu_u64 __attribute__((vector_size(64)));

static inline __attribute__((noreturn, unused)) void emu_fault(const char *what)
{
    fprintf(stderr, "emulation: fault: %s\n", what);
    abort();
}

/* ---- constants, memory --------------------------------------------------------------------------------------- */

EMU __m512i emu_set1_epi8(char x) { return (__m512i)((emu_u8){ 0 } + (uint8_t)x); }
EMU __m512i emu_set1_epi16(short x) { return (__m512i)((emu_u16){ 0 } + (uint16_t)x); }
EMU __m512i emu_set1_epi32(int x) { return (__m512i)((emu_u32){ 0 } + (uint32_t)x); }
EMU __m512 emu_set1_ps(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits); /* an addition would lose -0 */
    return (__m512)emu_set1_epi32((int)bits);
}
EMU __m512i emu_setzero_si512(void) { return (__m512i)(emu_u64){ 0 }; }
EMU __m512 emu_setzero_ps(void) { return (__m512)(emu_u64){ 0 }; }

EMU __m512i emu_loadu_si512(const void *p)
{
    __m512i v;
    memcpy(&v, p, sizeof v);
    return v;
}
/* The low bytes; masked-out elements of memory are not touched. */
EMU void emu_256_mask_cvtepi32_storeu_epi8(void *p, __mmask8 k, __m256i v)
{
    uint32_t x[8];
    memcpy(x, &v, sizeof x);
    for (int i = 0; i < 8; i++)
        if (k >> i & 1) ((uint8_t *)p)[i] = (uint8_t)x[i];
}
EMU __m512 emu_loadu_ps(const void *p) { return (__m512)emu_loadu_si512(p); }
EMU void emu_storeu_si512(void *p, __m512i v) { memcpy(p, &v, sizeof v); }
EMU void emu_storeu_ps(void *p, __m512 v) { memcpy(p, &v, sizeof v); }
EMU void emu_store_si512(void *p, __m512i v)
{
    if ((uintptr_t)p % 64) emu_fault("vmovdqa to an address that is not a multiple of 64");
    memcpy(p, &v, sizeof v);
}

/* Masked-out elements of memory are not touched. */
EMU __m512i emu_maskz_loadu_epi8(__mmask64 k, const void *p)
{
    uint8_t v[64] = { 0 };
    for (int i = 0; i < 64; i++)
        if (k >> i & 1) v[i] = ((const uint8_t *)p)[i];
    return emu_loadu_si512(v);
}
EMU __m256i emu_256_maskz_loadu_epi8(__mmask32 k, const void *p)
{
    uint8_t v[32] = { 0 };
    for (int i = 0; i < 32; i++)
        if (k >> i & 1) v[i] = ((const uint8_t *)p)[i];
    return _mm256_loadu_si256((const __m256i *)v);
}
EMU __m128i emu_128_maskz_loadu_epi8(__mmask16 k, const void *p)
{
    uint8_t v[16] = { 0 };
    for (int i = 0; i < 16; i++)
        if (k >> i & 1) v[i] = ((const uint8_t *)p)[i];
    return _mm_loadu_si128((const __m128i *)v);
}
EMU __m512 emu_maskz_loadu_ps(__mmask16 k, const void *p)
{
    uint32_t v[16] = { 0 };
    for (int i = 0; i < 16; i++)
        if (k >> i & 1) memcpy(&v[i], (const char *)p + 4 * i, 4);
    return emu_loadu_ps(v);
}
EMU void emu_mask_storeu_epi16(void *p, __mmask32 k, __m512i v)
{
    for (int i = 0; i < 32; i++)
        if (k >> i & 1) memcpy((char *)p + 2 * i, (const char *)&v + 2 * i, 2);
}
EMU void emu_mask_storeu_ps(void *p, __mmask16 k, __m512 v)
{
    for (int i = 0; i < 16; i++)
        if (k >> i & 1) memcpy((char *)p + 4 * i, (const char *)&v + 4 * i, 4);
}

/* ---- integers ------------------------------------------------------------------------------------------------ */

EMU __m512i emu_and_si512(__m512i a, __m512i b) { return (__m512i)((emu_u64)a & (emu_u64)b); }
EMU __m512i emu_xor_si512(__m512i a, __m512i b) { return (__m512i)((emu_u64)a ^ (emu_u64)b); }
EMU __m512i emu_add_epi16(__m512i a, __m512i b) { return (__m512i)((emu_u16)a + (emu_u16)b); }
EMU __m512i emu_add_epi32(__m512i a, __m512i b) { return (__m512i)((emu_u32)a + (emu_u32)b); }
EMU __m512i emu_sub_epi8(__m512i a, __m512i b) { return (__m512i)((emu_u8)a - (emu_u8)b); }
EMU __m512i emu_sub_epi16(__m512i a, __m512i b) { return (__m512i)((emu_u16)a - (emu_u16)b); }
EMU __m512i emu_sub_epi32(__m512i a, __m512i b) { return (__m512i)((emu_u32)a - (emu_u32)b); }
/* A count of the element's width or more gives 0. */
EMU __m512i emu_slli_epi16(__m512i a, unsigned n) { return n < 16 ? (__m512i)((emu_u16)a << n) : emu_setzero_si512(); }
EMU __m512i emu_srli_epi16(__m512i a, unsigned n) { return n < 16 ? (__m512i)((emu_u16)a >> n) : emu_setzero_si512(); }
EMU __m512i emu_slli_epi32(__m512i a, unsigned n) { return n < 32 ? (__m512i)((emu_u32)a << n) : emu_setzero_si512(); }
EMU __m512i emu_max_epu8(__m512i a, __m512i b)
{
    emu_u8 larger = (emu_u8)((emu_u8)a > (emu_u8)b);
    return (__m512i)(((emu_u8)a & larger) | ((emu_u8)b & ~larger));
}
EMU __m512i emu_max_epi32(__m512i a, __m512i b)
{
    emu_i32 larger = (emu_i32)a > (emu_i32)b;
    return (__m512i)(((emu_i32)a & larger) | ((emu_i32)b & ~larger));
}
/* Products of neighbouring words, added; -2^15 squared, twice, wraps. */
EMU __m512i emu_madd_epi16(__m512i a, __m512i b)
{
    emu_u32 r;
    for (int i = 0; i < 16; i++) {
        int32_t low = (int32_t)((emu_i16)a)[2 * i] * ((emu_i16)b)[2 * i];
        int32_t high = (int32_t)((emu_i16)a)[2 * i + 1] * ((emu_i16)b)[2 * i + 1];
        r[i] = (uint32_t)low + (uint32_t)high;
    }
    return (__m512i)r;
}
EMU int emu_within(int x, int least, int most) { return x < least ? least : x > most ? most : x; }
/* Each 16 bytes: a's numbers of half the size, then b's; what does not fit becomes the nearest that does. */
EMU __m512i emu_packs_epi32(__m512i a, __m512i b)
{
    emu_i16 r;
    for (int i = 0; i < 32; i++)
        r[i] = (int16_t)emu_within(((emu_i32)(i % 8 < 4 ? a : b))[i / 8 * 4 + i % 4], INT16_MIN, INT16_MAX);
    return (__m512i)r;
}
EMU __m512i emu_packs_16(__m512i a, __m512i b, int least, int most)
{
    emu_u8 r;
    for (int i = 0; i < 64; i++)
        r[i] = (uint8_t)emu_within(((emu_i16)(i % 16 < 8 ? a : b))[i / 16 * 8 + i % 8], least, most);
    return (__m512i)r;
}
/* Bit by bit: bit (a, b, c) of the table. */
EMU __m512i emu_ternarylogic_epi32(__m512i a, __m512i b, __m512i c, unsigned table)
{
    emu_u32 r = { 0 };
    for (unsigned i = 0; i < 8; i++)
        if (table >> i & 1)
            r |= (i & 4 ? (emu_u32)a : ~(emu_u32)a) & (i & 2 ? (emu_u32)b : ~(emu_u32)b) &
                 (i & 1 ? (emu_u32)c : ~(emu_u32)c);
    return (__m512i)r;
}
EMU int emu_reduce_max_epi32(__m512i a)
{
    int32_t best = ((emu_i32)a)[0];
    for (int i = 1; i < 16; i++) best = ((emu_i32)a)[i] > best ? ((emu_i32)a)[i] : best;
    return best;
}
EMU long long emu_reduce_add_epi64(__m512i a)
{
    uint64_t sum = 0;
    for (int i = 0; i < 8; i++) sum += ((emu_u64)a)[i];
    return (long long)sum;
}

EMU __m512i emu_cvtepu8_epi16(__m256i a)
{
    uint8_t v[32];
    emu_u16 r;
    memcpy(v, &a, sizeof v);
    for (int i = 0; i < 32; i++) r[i] = v[i];
    return (__m512i)r;
}
EMU __m512i emu_cvtepu8_epi32(__m128i a)
{
    uint8_t v[16];
    emu_u32 r;
    memcpy(v, &a, sizeof v);
    for (int i = 0; i < 16; i++) r[i] = v[i];
    return (__m512i)r;
}
EMU __m512i emu_cvtepu16_epi32(__m256i a)
{
    uint16_t v[16];
    emu_u32 r;
    memcpy(v, &a, sizeof v);
    for (int i = 0; i < 16; i++) r[i] = v[i];
    return (__m512i)r;
}

/* ---- masks ---------------------------------------------------------------------------------------------------- */

#define EMU_MASK(n, condition)    \
    uint64_t k = 0;               \
    for (int i = 0; i < (n); i++) \
        if (condition) k |= (uint64_t)1 << i
EMU __mmask64 emu_cmpeq_epi8_mask(__m512i a, __m512i b)
{
    EMU_MASK(64, ((emu_u8)a)[i] == ((emu_u8)b)[i]);
    return k;
}
EMU __mmask32 emu_cmpeq_epi16_mask(__m512i a, __m512i b)
{
    EMU_MASK(32, ((emu_u16)a)[i] == ((emu_u16)b)[i]);
    return (__mmask32)k;
}
EMU __mmask64 emu_cmpgt_epu8_mask(__m512i a, __m512i b)
{
    EMU_MASK(64, ((emu_u8)a)[i] > ((emu_u8)b)[i]);
    return k;
}
EMU __mmask16 emu_cmplt_epi32_mask(__m512i a, __m512i b)
{
    EMU_MASK(16, ((emu_i32)a)[i] < ((emu_i32)b)[i]);
    return (__mmask16)k;
}
EMU __mmask16 emu_cmpneq_epi32_mask(__m512i a, __m512i b)
{
    EMU_MASK(16, ((emu_u32)a)[i] != ((emu_u32)b)[i]);
    return (__mmask16)k;
}
EMU __mmask32 emu_test_epi16_mask(__m512i a, __m512i b)
{
    EMU_MASK(32, (((emu_u16)a)[i] & ((emu_u16)b)[i]) != 0);
    return (__mmask32)k;
}
/* The two comparisons that are used; with a NaN both are false. */
EMU __mmask16 emu_cmp_ps_mask(__m512 a, __m512 b, int how)
{
    if (how != _CMP_LT_OQ && how != _CMP_GE_OQ) emu_fault("this comparison is not emulated");
    EMU_MASK(16, how == _CMP_LT_OQ ? a[i] < b[i] : a[i] >= b[i]);
    return (__mmask16)k;
}

/* Elements of b where the mask is set, else of a. */
EMU __m512i emu_pick16(__m512i a, __mmask32 k, __m512i b)
{
    emu_u16 r = (emu_u16)a;
    for (int i = 0; i < 32; i++)
        if (k >> i & 1) r[i] = ((emu_u16)b)[i];
    return (__m512i)r;
}
EMU __m512i emu_pick32(__m512i a, __mmask16 k, __m512i b)
{
    emu_u32 r = (emu_u32)a;
    for (int i = 0; i < 16; i++)
        if (k >> i & 1) r[i] = ((emu_u32)b)[i];
    return (__m512i)r;
}

/* ---- permutations --------------------------------------------------------------------------------------------- */

EMU __m512i emu_permutex2var_epi8(__m512i a, __m512i index, __m512i b)
{
    uint8_t table[128];
    emu_u8 r;
    memcpy(table, &a, 64);
    memcpy(table + 64, &b, 64);
    for (int i = 0; i < 64; i++) r[i] = table[((emu_u8)index)[i] & 127];
    return (__m512i)r;
}
EMU __m512i emu_permutexvar_epi16(__m512i index, __m512i a)
{
    emu_u16 r;
    for (int i = 0; i < 32; i++) r[i] = ((emu_u16)a)[((emu_u16)index)[i] & 31];
    return (__m512i)r;
}
EMU __m512 emu_permutexvar_ps(__m512i index, __m512 a)
{
    __m512 r;
    for (int i = 0; i < 16; i++) r[i] = a[((emu_u32)index)[i] & 15];
    return r;
}
EMU __m512i emu_shuffle_epi32(__m512i a, unsigned which)
{
    emu_u32 r;
    for (unsigned i = 0; i < 16; i++) r[i] = ((emu_u32)a)[(i & ~3u) | (which >> 2 * (i & 3) & 3)];
    return (__m512i)r;
}
/* Within each 16 bytes; an index with its upper bit set gives 0. */
EMU __m512i emu_shuffle_epi8(__m512i a, __m512i index)
{
    emu_u8 r;
    for (int i = 0; i < 64; i++) {
        uint8_t x = ((emu_u8)index)[i];
        r[i] = x & 0x80 ? 0 : ((emu_u8)a)[(i & ~15) | (x & 15)];
    }
    return (__m512i)r;
}
/* Elements of `size` bytes from the lower or upper half of each 16 bytes of a and b, in turn. */
EMU __m512i emu_unpack(__m512i a, __m512i b, int size, bool high)
{
    uint8_t x[64], y[64], r[64];
    memcpy(x, &a, 64);
    memcpy(y, &b, 64);
    for (int lane = 0; lane < 64; lane += 16)
        for (int i = 0; i < 8; i++) {
            int from = lane + (high ? 8 : 0) + i, to = lane + i / size * 2 * size + i % size;
            r[to] = x[from];
            r[to + size] = y[from];
        }
    return emu_loadu_si512(r);
}
/* 16-byte parts: two of a, then two of b. */
EMU __m512i emu_shuffle_128(__m512i a, __m512i b, unsigned which)
{
    emu_u64 r;
    for (int part = 0; part < 4; part++)
        for (int i = 0; i < 2; i++)
            r[2 * part + i] = (part < 2 ? (emu_u64)a : (emu_u64)b)[2 * (which >> 2 * part & 3) + (unsigned)i];
    return (__m512i)r;
}
EMU __m512i emu_insert_256(__m512i a, __m256i b, int where)
{
    memcpy((char *)&a + 32 * (where & 1), &b, 32);
    return a;
}

/* ---- floats ---------------------------------------------------------------------------------------------------- */

EMU __m512 emu_add_ps(__m512 a, __m512 b) { return a + b; }
EMU __m512 emu_mul_ps(__m512 a, __m512 b) { return a * b; }
EMU __m512 emu_fmadd_ps(__m512 a, __m512 b, __m512 c)
{
    __m512 r;
    for (int i = 0; i < 16; i++) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return r;
}
/* No instruction, but the compilers' sequence: halves are added until one is left. */
EMU float emu_reduce_add_ps(__m512 a)
{
    for (int n = 8; n; n /= 2)
        for (int i = 0; i < n; i++) a[i] += a[i + n];
    return a[0];
}

/* ---- BF16 ------------------------------------------------------------------------------------------------------- */

/* Subnormals are zeros, with their sign. */
EMU __m512 emu_flush(__m512 v)
{
    emu_u32 normal = (emu_u32)(((emu_u32)v & 0x7F800000u) != 0);
    return (__m512)((emu_u32)v & (normal | 0x80000000u));
}
/* a * b + c, rounded once to nearest even, subnormal operands and results flushed; MXCSR plays no part. */
EMU __m512 emu_fma_flushed(__m512 a, __m512 b, __m512 c)
{
    return emu_flush(emu_fmadd_ps(emu_flush(a), emu_flush(b), emu_flush(c)));
}
EMU __m512 emu_even(__m512i v) { return (__m512)((emu_u32)v << 16); }
EMU __m512 emu_odd(__m512i v) { return (__m512)((emu_u32)v & 0xFFFF0000u); }
/* Two multiply-adds: the upper BF16 values of the pairs first. */
EMU __m512 emu_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b)
{
    sum = emu_fma_flushed(emu_odd((__m512i)a), emu_odd((__m512i)b), sum);
    return emu_fma_flushed(emu_even((__m512i)a), emu_even((__m512i)b), sum);
}
EMU uint16_t emu_to_bf16(uint32_t u)
{
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(u >> 16 | 0x40u); /* quiet */
    if (!(u & 0x7F800000u)) return (uint16_t)(u >> 16 & 0x8000u);
    return (uint16_t)((u + 0x7FFFu + (u >> 16 & 1u)) >> 16); /* to nearest even */
}
/* The lower half is that of b. */
EMU __m512bh emu_cvtne2ps_pbh(__m512 a, __m512 b)
{
    emu_u16 r;
    for (int i = 0; i < 16; i++) {
        r[i] = emu_to_bf16(((emu_u32)b)[i]);
        r[16 + i] = emu_to_bf16(((emu_u32)a)[i]);
    }
    return (__m512bh)r;
}

/* ---- AMX -------------------------------------------------------------------------------------------------------- */

enum { EMU_TILES = 8, EMU_ROWS = 16, EMU_ROW_BYTES = 64 };
typedef struct emu_tile_state {
    bool configured;
    int rows[EMU_TILES], row_bytes[EMU_TILES]; /* 0: not configured */
    unsigned char data[EMU_TILES][EMU_ROWS][EMU_ROW_BYTES];
} emu_tile_state;
static __attribute__((unused)) _Thread_local emu_tile_state emu_tiles;

/* ldtilecfg: 64 bytes: palette, start row, 14 zeros, 16-bit bytes per row [16], rows [16]. */
EMU void emu_tile_loadconfig(const void *config)
{
    const unsigned char *c = config;
    emu_tiles = (emu_tile_state){ 0 };
    if (c[0] == 0) return;
    if (c[0] != 1) emu_fault("ldtilecfg: there is no such palette");
    for (int i = 1; i < 16; i++)
        if (c[i]) emu_fault("ldtilecfg: start row or reserved bytes are not zero");
    for (int t = 0; t < 16; t++) {
        int row_bytes = c[16 + 2 * t] | c[17 + 2 * t] << 8, rows = c[48 + t];
        if (t >= EMU_TILES ? row_bytes || rows : row_bytes > EMU_ROW_BYTES || rows > EMU_ROWS || !row_bytes != !rows)
            emu_fault("ldtilecfg: a tile is too large, or has rows without columns");
        if (t >= EMU_TILES) continue;
        emu_tiles.rows[t] = rows;
        emu_tiles.row_bytes[t] = row_bytes;
    }
    emu_tiles.configured = true;
}
EMU void emu_tile_release(void) { emu_tiles = (emu_tile_state){ 0 }; }
EMU void emu_tile_need(int t)
{
    if (!emu_tiles.configured || !emu_tiles.rows[t]) emu_fault("a tile that is not configured");
}
EMU void emu_tile_zero(int t)
{
    emu_tile_need(t);
    memset(emu_tiles.data[t], 0, sizeof emu_tiles.data[t]);
}
/* What is not loaded becomes zero. */
EMU void emu_tile_loadd(int t, const void *base, size_t stride)
{
    emu_tile_zero(t);
    for (int r = 0; r < emu_tiles.rows[t]; r++)
        memcpy(emu_tiles.data[t][r], (const char *)base + (size_t)r * stride, (size_t)emu_tiles.row_bytes[t]);
}
EMU void emu_tile_stored(int t, void *base, size_t stride)
{
    emu_tile_need(t);
    for (int r = 0; r < emu_tiles.rows[t]; r++)
        memcpy((char *)base + (size_t)r * stride, emu_tiles.data[t][r], (size_t)emu_tiles.row_bytes[t]);
}
/* c [m][n] += a [m][k] pairs * b [k][n] pairs. The products of the pairs' lower and upper values are summed apart over
 * all k, from zero; then the two sums are added, and that to c. Everything is flushed and rounded to nearest even. */
EMU void emu_tile_dpbf16ps(int c, int a, int b)
{
    emu_tile_state *s = &emu_tiles;
    int n_pairs, width;
    emu_tile_need(a);
    emu_tile_need(b);
    emu_tile_need(c);
    n_pairs = s->row_bytes[a] / 4;
    width = s->row_bytes[c];
    if (a == b || b == c || a == c) emu_fault("tdpbf16ps: the tiles are not three");
    if (s->row_bytes[a] % 4 || s->row_bytes[b] % 4 || width % 4 || width != s->row_bytes[b] ||
        s->rows[a] != s->rows[c] || n_pairs != s->rows[b])
        emu_fault("tdpbf16ps: the tiles' shapes do not fit");
    for (int m = 0; m < s->rows[c]; m++) {
        __m512 even = emu_setzero_ps(), odd = even, sum;
        for (int k = 0; k < n_pairs; k++) {
            __m512i row = emu_loadu_si512(s->data[b][k]), pair;
            int32_t two;
            memcpy(&two, &s->data[a][m][4 * k], sizeof two);
            pair = emu_set1_epi32(two);
            even = emu_fma_flushed(emu_even(pair), emu_even(row), even);
            odd = emu_fma_flushed(emu_odd(pair), emu_odd(row), odd);
        }
        sum = emu_flush(emu_flush(emu_loadu_ps(s->data[c][m])) + emu_flush(even + odd));
        memset(s->data[c][m], 0, EMU_ROW_BYTES);
        memcpy(s->data[c][m], &sum, (size_t)width);
    }
    for (int m = s->rows[c]; m < EMU_ROWS; m++) memset(s->data[c][m], 0, EMU_ROW_BYTES);
}

/* ---- their names ------------------------------------------------------------------------------------------------ */

#undef _mm512_set1_epi8
#define _mm512_set1_epi8 emu_set1_epi8
#undef _mm512_set1_epi16
#define _mm512_set1_epi16 emu_set1_epi16
#undef _mm512_set1_epi32
#define _mm512_set1_epi32 emu_set1_epi32
#undef _mm512_set1_ps
#define _mm512_set1_ps emu_set1_ps
#undef _mm512_setzero_si512
#define _mm512_setzero_si512 emu_setzero_si512
#undef _mm512_setzero_ps
#define _mm512_setzero_ps emu_setzero_ps
#undef _mm512_loadu_si512
#define _mm512_loadu_si512 emu_loadu_si512
#undef _mm512_loadu_ps
#define _mm512_loadu_ps emu_loadu_ps
#undef _mm512_storeu_si512
#define _mm512_storeu_si512 emu_storeu_si512
#undef _mm512_storeu_ps
#define _mm512_storeu_ps emu_storeu_ps
#undef _mm512_store_si512
#define _mm512_store_si512 emu_store_si512
#undef _mm512_maskz_loadu_epi8
#define _mm512_maskz_loadu_epi8 emu_maskz_loadu_epi8
#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps emu_maskz_loadu_ps
#undef _mm512_mask_storeu_epi16
#define _mm512_mask_storeu_epi16 emu_mask_storeu_epi16
#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps emu_mask_storeu_ps
#undef _mm512_and_si512
#define _mm512_and_si512 emu_and_si512
#undef _mm512_xor_si512
#define _mm512_xor_si512 emu_xor_si512
#undef _mm512_add_epi16
#define _mm512_add_epi16 emu_add_epi16
#undef _mm512_add_epi32
#define _mm512_add_epi32 emu_add_epi32
#undef _mm512_sub_epi8
#define _mm512_sub_epi8 emu_sub_epi8
#undef _mm512_sub_epi16
#define _mm512_sub_epi16 emu_sub_epi16
#undef _mm512_slli_epi16
#define _mm512_slli_epi16 emu_slli_epi16
#undef _mm512_srli_epi16
#define _mm512_srli_epi16 emu_srli_epi16
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 emu_slli_epi32
#undef _mm512_max_epu8
#define _mm512_max_epu8 emu_max_epu8
#undef _mm512_max_epi32
#define _mm512_max_epi32 emu_max_epi32
#undef _mm512_madd_epi16
#define _mm512_madd_epi16 emu_madd_epi16
#undef _mm512_packs_epi32
#define _mm512_packs_epi32 emu_packs_epi32
#undef _mm512_packs_epi16
#define _mm512_packs_epi16(a, b) emu_packs_16(a, b, INT8_MIN, INT8_MAX)
#undef _mm512_packus_epi16
#define _mm512_packus_epi16(a, b) emu_packs_16(a, b, 0, UINT8_MAX)
#undef _mm512_ternarylogic_epi32
#define _mm512_ternarylogic_epi32 emu_ternarylogic_epi32
#undef _mm512_reduce_max_epi32
#define _mm512_reduce_max_epi32 emu_reduce_max_epi32
#undef _mm512_reduce_add_epi64
#define _mm512_reduce_add_epi64 emu_reduce_add_epi64
#undef _mm512_cvtepu8_epi16
#define _mm512_cvtepu8_epi16 emu_cvtepu8_epi16
#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32 emu_cvtepu8_epi32
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32 emu_cvtepu16_epi32
#undef _mm512_cmpeq_epi8_mask
#define _mm512_cmpeq_epi8_mask emu_cmpeq_epi8_mask
#undef _mm512_cmpeq_epi16_mask
#define _mm512_cmpeq_epi16_mask emu_cmpeq_epi16_mask
#undef _mm512_cmplt_epi32_mask
#define _mm512_cmplt_epi32_mask emu_cmplt_epi32_mask
#undef _mm512_test_epi16_mask
#define _mm512_test_epi16_mask emu_test_epi16_mask
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask emu_cmp_ps_mask
#undef _mm512_permutex2var_epi8
#define _mm512_permutex2var_epi8 emu_permutex2var_epi8
#undef _mm512_permutexvar_epi16
#define _mm512_permutexvar_epi16 emu_permutexvar_epi16
#undef _mm512_permutexvar_ps
#define _mm512_permutexvar_ps emu_permutexvar_ps
#undef _mm512_permutexvar_epi32
#define _mm512_permutexvar_epi32(index, a) ((__m512i)emu_permutexvar_ps(index, (__m512)(a)))
#undef _mm512_shuffle_epi32
#define _mm512_shuffle_epi32 emu_shuffle_epi32
#undef _mm512_shuffle_epi8
#define _mm512_shuffle_epi8 emu_shuffle_epi8
#undef _mm512_add_ps
#define _mm512_add_ps emu_add_ps
#undef _mm512_mul_ps
#define _mm512_mul_ps emu_mul_ps
#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps emu_fmadd_ps
#undef _mm512_reduce_add_ps
#define _mm512_reduce_add_ps emu_reduce_add_ps
#undef _mm512_dpbf16_ps
#define _mm512_dpbf16_ps emu_dpbf16_ps
#undef _mm512_cvtne2ps_pbh
#define _mm512_cvtne2ps_pbh emu_cvtne2ps_pbh
#undef _mm512_mask_cmpgt_epu8_mask
#define _mm512_mask_cmpgt_epu8_mask(k, a, b) ((__mmask64)((k)&emu_cmpgt_epu8_mask(a, b)))
#undef _mm512_mask_cmpneq_epi32_mask
#define _mm512_mask_cmpneq_epi32_mask(k, a, b) ((__mmask16)((k)&emu_cmpneq_epi32_mask(a, b)))
#undef _mm512_mask_add_epi16
#define _mm512_mask_add_epi16(from, k, a, b) emu_pick16(from, k, emu_add_epi16(a, b))
#undef _mm512_mask_max_epi32
#define _mm512_mask_max_epi32(from, k, a, b) emu_pick32(from, k, emu_max_epi32(a, b))
#undef _mm512_mask_mov_epi16
#define _mm512_mask_mov_epi16(from, k, a) emu_pick16(from, k, a)
#undef _mm512_mask_blend_ps
#define _mm512_mask_blend_ps(k, a, b) ((__m512)emu_pick32((__m512i)(a), k, (__m512i)(b)))
#undef _mm512_unpacklo_epi8
#define _mm512_unpacklo_epi8(a, b) emu_unpack(a, b, 1, false)
#undef _mm512_unpackhi_epi8
#define _mm512_unpackhi_epi8(a, b) emu_unpack(a, b, 1, true)
#undef _mm512_unpacklo_epi32
#define _mm512_unpacklo_epi32(a, b) emu_unpack(a, b, 4, false)
#undef _mm512_unpackhi_epi32
#define _mm512_unpackhi_epi32(a, b) emu_unpack(a, b, 4, true)
#undef _mm512_unpacklo_epi64
#define _mm512_unpacklo_epi64(a, b) emu_unpack(a, b, 8, false)
#undef _mm512_unpackhi_epi64
#define _mm512_unpackhi_epi64(a, b) emu_unpack(a, b, 8, true)
#undef _mm512_shuffle_i32x4
#define _mm512_shuffle_i32x4(a, b, which) emu_shuffle_128(a, b, which)
#undef _mm512_shuffle_i64x2
#define _mm512_shuffle_i64x2(a, b, which) emu_shuffle_128(a, b, which)
#undef _mm512_inserti64x4
#define _mm512_inserti64x4(a, b, where) emu_insert_256(a, b, where)
#undef _mm512_insertf32x8
#define _mm512_insertf32x8(a, b, where) ((__m512)emu_insert_256((__m512i)(a), (__m256i)(b), where))
#undef _mm256_maskz_loadu_epi8
#define _mm256_maskz_loadu_epi8 emu_256_maskz_loadu_epi8
#undef _mm256_mask_cvtepi32_storeu_epi8
#define _mm256_mask_cvtepi32_storeu_epi8 emu_256_mask_cvtepi32_storeu_epi8
#undef _mm_maskz_loadu_epi8
#define _mm_maskz_loadu_epi8 emu_128_maskz_loadu_epi8
#undef _tile_loadconfig
#define _tile_loadconfig emu_tile_loadconfig
#undef _tile_release
#define _tile_release emu_tile_release
#undef _tile_zero
#define _tile_zero emu_tile_zero
#undef _tile_loadd
#define _tile_loadd emu_tile_loadd
#undef _tile_stored
#define _tile_stored emu_tile_stored
#undef _tile_dpbf16ps
#define _tile_dpbf16ps emu_tile_dpbf16ps

#endif
