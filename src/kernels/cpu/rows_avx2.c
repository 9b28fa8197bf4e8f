/* The AVX2 product of MX weights by FP32 multiply-adds, in two forms.
 *   fused  each 32 codes are decoded and multiplied with up to 8 input rows at once, the scale taken per block: small m
 *   tile   some weight rows are decoded, scales included, PANEL columns at a time, and meet all input rows from there
 * An E4M3 code becomes FP16 by moving its bits, 2^8 too small, subnormals included; F16C widens it. A NaN code does not
 * survive that: rows with one are left to mm3__finish_row.
 * Prediction for 32 weights (33 bytes): 2 loads that widen, 2 shifts, 2 ands, 4 vcvtph2ps; 2 to look for NaNs; per
 * input row 5 multiply-adds. Where 256 bits are two operations (the first Zen) that is 10 cycles and 5 more per row, 9
 * GB/s a core at 2.7 GHz; half of it where they are one. */
#include "kernels/cpu/rows_avx2.h"

enum { PANEL = 512, TILE_W = 4, TILE_X = 3 };
enum { V_TILE, V_AHEAD }; /* weight rows of a tile, or 0; bytes of prefetch ahead, or 0 */
enum { FP16_SHORT = 8 };  /* decoded codes are 2^8 too small */

#define TACTIC(text, tile, ahead)                                       \
    {                                                                   \
        .name = (text), .v = { (tile), (ahead) }, .row_invariant = true \
    }
const mm3_tactic mm3__avx2_tactics[MM3__AVX2_TACTICS] = {
    TACTIC("fused", 0, 0),
    TACTIC("fused.t2k", 0, 2048),
    TACTIC("tile16", 16, 0),
    TACTIC("tile64", 64, 0),
};

const char *mm3__avx2_refuses(const mm3_device_info *device, int type, int m, const mm3_tactic *tactic)
{
    if (!(device->features & MM3_CPU_AVX2)) return "needs avx2";
    if (type != MM3_MX) return "is for MX weights only";
    if (tactic->v[V_TILE] && m < 4) return "a tile pays from 4 rows on";
    if (!tactic->v[V_TILE] && m > 32) return "decodes again for every 8 rows: for 32 rows at most";
    return NULL;
}

/* ---- scratch and input rows -------------------------------------------------------------------------------------- */

static size_t pad(size_t n) { return (n + 63) / 64 * 64; }
static size_t row_bytes(int n_rows) { return pad((size_t)n_rows * sizeof(mm3__x_row)); }
static size_t x_bytes(int n_rows, int k) { return pad((size_t)n_rows * (size_t)k * sizeof(float)); }
static size_t tile_bytes(const mm3_tactic *tactic) { return (size_t)tactic->v[V_TILE] * PANEL * sizeof(float); }

size_t mm3__avx2_scratch(const mm3_tactic *tactic, int n_rows, int k, int n_threads)
{
    return row_bytes(n_rows) + x_bytes(n_rows, k) + (size_t)n_threads * tile_bytes(tactic);
}

mm3__avx2 mm3__avx2_at(const mm3_tactic *tactic, void *scratch, int n_rows, int k, int i_thread)
{
    unsigned char *x = (unsigned char *)scratch + row_bytes(n_rows), *tiles = x + x_bytes(n_rows, k);
    return (mm3__avx2){ .tactic = tactic,
                        .row = scratch,
                        .x = (float *)x,
                        .tile = (float *)(tiles + (size_t)i_thread * tile_bytes(tactic)) };
}

/* NaNs and infinities are not counted: they come out as they should whatever the exponent. */
static mm3__x_row float_row(const float *x, int k)
{
    int32_t high = 0, low, any = 0;
    mm3__x_row row = { 0 };
    for (int c = 0; c < k; c++) {
        int32_t a = (int32_t)(mm3_f32_bits(x[c]) & 0x7FFFFFFFu);
        a = a < 0x7F800000 ? a : 0;
        high = a > high ? a : high;
    }
    high >>= 23;
    low = high > MM3__ROW_SPREAD ? (high - MM3__ROW_SPREAD) << 23 : 0;
    for (int c = 0; c < k; c++) {
        int32_t a = (int32_t)(mm3_f32_bits(x[c]) & 0x7FFFFFFFu);
        any |= (a < low) & (a != 0);
    }
    row.wide = any != 0;
    row.exponent = high - 127 - MM3__ROW_LEVEL;
    return row;
}

void mm3__avx2_prepare(const mm3__avx2 *a, int n_rows, int k, const float *x, const uint8_t *x_codes,
                       const uint8_t *x_scales, int i_thread, int n_threads)
{
    const size_t n_blocks = (size_t)k / MM3_MX_BLOCK;
    int begin, end;
    mm3_share((int)n_blocks, i_thread, n_threads, &begin, &end);
    for (size_t i = 0; i < (size_t)n_rows; i++) {
        const uint8_t *codes = x_codes ? x_codes + i * (size_t)k : NULL;
        const uint8_t *scales = x_codes ? x_scales + i * n_blocks : NULL;
        const float *from = x + i * (size_t)k; /* of floats */
        float *to = a->x + i * (size_t)k;
        int top = 0;
        mm3__x_row row = x_codes ? mm3__code_row(codes, scales, k, &top) : float_row(from, k);
        if (i_thread == 0) a->row[i] = row;
        if (row.wide) continue; /* what is there is multiplied, but not used */
        for (int b = begin; b < end; b++) {
            float *block = to + b * MM3_MX_BLOCK;
            if (x_codes) { /* a block far below the largest is one of zeros */
                int e = MM3_MAX(scales[b] - top + MM3__ROW_LEVEL, MM3__ROW_LEVEL - MM3__ROW_SPREAD);
                float scale = mm3_f32_from_bits((uint32_t)(e + 127) << 23);
                mm3__decode_e4m3(codes + b * MM3_MX_BLOCK, block, MM3_MX_BLOCK);
                for (int c = 0; c < MM3_MX_BLOCK; c++) block[c] *= scale;
            } else {
                int half = -row.exponent / 2;
                float first = mm3_f32_from_bits((uint32_t)(half + 127) << 23);
                float second = mm3_f32_from_bits((uint32_t)(-row.exponent - half + 127) << 23);
                for (int c = 0; c < MM3_MX_BLOCK; c++) block[c] = from[b * MM3_MX_BLOCK + c] * first * second;
            }
        }
    }
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

#define INLINE static inline __attribute__((always_inline))

/* Whether a weight row's scales are in the narrow range, blocks of zeros excepted. */
static bool narrow_weights(const uint8_t *codes, const uint8_t *scales, int k)
{
    const int n = k / MM3_MX_BLOCK;
    uint8_t low = 255, high = 0;
    for (int b = 0; b < n; b++) {
        low = scales[b] < low ? scales[b] : low;
        high = scales[b] > high ? scales[b] : high;
    }
    if (low >= MM3__NARROW_LOW && high <= MM3__NARROW_HIGH) return true;
    if (high == 255) return false;
    for (int b = 0; b < n; b++)
        if ((scales[b] < MM3__NARROW_LOW || scales[b] > MM3__NARROW_HIGH) &&
            !mm3__all_zero(codes + (size_t)b * MM3_MX_BLOCK))
            return false;
    return true;
}

/* 32 codes to floats, 2^-FP16_SHORT of their values; the codes' largest magnitudes are kept in *largest. */
INLINE void decode32(const uint8_t *codes, __m256 w[4], __m256i *largest)
{
    __m256i all = _mm256_loadu_si256((const __m256i *)codes);
    *largest = _mm256_max_epu8(*largest, _mm256_and_si256(all, _mm256_set1_epi8(0x7F)));
    for (int h = 0; h < 2; h++) { /* a code in the upper byte of a word, moved by one bit, its sign kept */
        __m128i v = _mm_loadu_si128((const __m128i *)(codes + 16 * h)), zero = _mm_setzero_si128();
        __m128i keep = _mm_set1_epi16((short)0xBF80);
        w[2 * h] = _mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(_mm_unpacklo_epi8(zero, v), 1), keep));
        w[2 * h + 1] = _mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(_mm_unpackhi_epi8(zero, v), 1), keep));
    }
}

static bool has_nan(__m256i largest)
{
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(largest, _mm256_set1_epi8(0x7F))) != 0;
}

/* n <= 8 scale bytes as floats; 2^-127 is not needed of them: 0 is only met by a block of zeros. */
INLINE void load_scales(const uint8_t *scales, int n, float out[8])
{
    uint64_t bytes = 0;
    memcpy(&bytes, scales, (size_t)n);
    _mm256_storeu_si256((__m256i *)out,
                        _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes)), 23));
}

/* The four sums of the lanes of s, always in the same order. */
INLINE __m128 sum_lanes4(const __m256 s[4])
{
    __m256 v = _mm256_hadd_ps(_mm256_hadd_ps(s[0], s[1]), _mm256_hadd_ps(s[2], s[3]));
    return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
}

/* ---- fused ------------------------------------------------------------------------------------------------------- */

/* Weight row j times input rows i .. i + n - 1 (n is a constant where this is inlined). The steps of a row are
 * the same whatever n is. Returns whether the weight row is free of NaNs. */
INLINE bool fused_rows(const mm3__job *job, const mm3__avx2 *a, int j, int i, const int n, int ahead)
{
    const size_t k = (size_t)job->k, at = (size_t)(job->first + j) * k;
    const uint8_t *codes = (const uint8_t *)job->w->data + at, *scales = job->w->scales + at / MM3_MX_BLOCK;
    const float *x[8];
    __m256i largest = _mm256_setzero_si256();
    __m256 sum[8];
    float scale[8];
    for (int r = 0; r < n; r++) {
        x[r] = a->x + mm3__job_input(job, i + r) * k;
        sum[r] = _mm256_setzero_ps();
    }
    for (int c = 0; c < job->k; c += 8 * MM3_MX_BLOCK) {
        int n_blocks = MM3_MIN((job->k - c) / MM3_MX_BLOCK, 8);
        load_scales(scales + c / MM3_MX_BLOCK, n_blocks, scale);
        for (int b = 0; b < n_blocks; b++) {
            size_t from = (size_t)c + (size_t)b * MM3_MX_BLOCK;
            __m256 w[4], s = _mm256_broadcast_ss(scale + b);
            if (ahead && b % 2 == 0) _mm_prefetch((const char *)codes + from + ahead, _MM_HINT_T0);
            decode32(codes + from, w, &largest);
            for (int r = 0; r < n; r++) {
                const float *y = x[r] + from;
                __m256 block = _mm256_mul_ps(w[0], _mm256_loadu_ps(y));
                block = _mm256_fmadd_ps(w[1], _mm256_loadu_ps(y + 8), block);
                block = _mm256_fmadd_ps(w[2], _mm256_loadu_ps(y + 16), block);
                block = _mm256_fmadd_ps(w[3], _mm256_loadu_ps(y + 24), block);
                sum[r] = _mm256_fmadd_ps(block, s, sum[r]);
            }
        }
    }
    for (int r = 0; r < n; r++) {
        __m256 four[4] = { sum[r], sum[r], sum[r], sum[r] };
        mm3__job_output(job, i + r)[j] =
            mm3__times_power(_mm_cvtss_f32(sum_lanes4(four)), a->row[mm3__job_input(job, i + r)].exponent + FP16_SHORT);
    }
    return !has_nan(largest);
}

static void fused(const mm3__job *job, const mm3__avx2 *a)
{
    const bool any_wide = mm3__any_wide_row(job, a->row);
    const int ahead = a->tactic->v[V_AHEAD];
    for (int j = 0; j < job->n; j++) {
        size_t at = (size_t)(job->first + j) * (size_t)job->k;
        bool narrow = narrow_weights((const uint8_t *)job->w->data + at, job->w->scales + at / MM3_MX_BLOCK, job->k);
        for (int i = 0; i < job->n_rows && narrow;) {
            int left = job->n_rows - i;
            if (left >= 8)
                narrow = fused_rows(job, a, j, i, 8, ahead), i += 8;
            else if (left >= 4)
                narrow = fused_rows(job, a, j, i, 4, ahead), i += 4;
            else if (left == 3)
                narrow = fused_rows(job, a, j, i, 3, ahead), i += 3;
            else if (left == 2)
                narrow = fused_rows(job, a, j, i, 2, ahead), i += 2;
            else
                narrow = fused_rows(job, a, j, i, 1, ahead), i += 1;
        }
        mm3__finish_row(job, a->row, j, narrow, any_wide);
    }
}

/* ---- tile -------------------------------------------------------------------------------------------------------- */

/* n columns of a weight row, scales included; false if there is a NaN among them. */
static bool decode_panel(const uint8_t *codes, const uint8_t *scales, int n, float *to)
{
    __m256i largest = _mm256_setzero_si256();
    float scale[8];
    for (int c = 0; c < n; c += MM3_MX_BLOCK) {
        int b = c / MM3_MX_BLOCK;
        __m256 w[4], s;
        if (b % 8 == 0) load_scales(scales + b, MM3_MIN(n / MM3_MX_BLOCK - b, 8), scale);
        s = _mm256_broadcast_ss(scale + b % 8);
        decode32(codes + c, w, &largest);
        for (int h = 0; h < 4; h++) _mm256_storeu_ps(to + c + 8 * h, _mm256_mul_ps(w[h], s));
    }
    return !has_nan(largest);
}

/* One panel of TILE_W decoded rows, of which n_w are real, times n_x input rows from i on; added to the output unless
 * it is the first, and the rows' exponents taken off with the last. */
INLINE void tile_block(const mm3__job *job, const mm3__avx2 *a, const float *w, int j, int n_w, int i, const int n_x,
                       int c, int n_columns)
{
    const float *x[TILE_X];
    __m256 sum[TILE_X][TILE_W];
    for (int r = 0; r < n_x; r++) {
        x[r] = a->x + mm3__job_input(job, i + r) * (size_t)job->k + c;
        for (int t = 0; t < TILE_W; t++) sum[r][t] = _mm256_setzero_ps();
    }
    for (int d = 0; d < n_columns; d += 8) {
        __m256 y[TILE_X];
        for (int r = 0; r < n_x; r++) y[r] = _mm256_loadu_ps(x[r] + d);
        for (int t = 0; t < TILE_W; t++) {
            __m256 v = _mm256_loadu_ps(w + (size_t)t * PANEL + d);
            for (int r = 0; r < n_x; r++) sum[r][t] = _mm256_fmadd_ps(v, y[r], sum[r][t]);
        }
    }
    for (int r = 0; r < n_x; r++) {
        float part[4], *out = mm3__job_output(job, i + r) + j;
        int exponent = a->row[mm3__job_input(job, i + r)].exponent + FP16_SHORT;
        _mm_storeu_ps(part, sum_lanes4(sum[r]));
        for (int t = 0; t < n_w; t++) {
            out[t] = c ? out[t] + part[t] : part[t];
            if (c + n_columns == job->k) out[t] = mm3__times_power(out[t], exponent);
        }
    }
}

static void tile(const mm3__job *job, const mm3__avx2 *a)
{
    const int n_tile = a->tactic->v[V_TILE];
    const size_t k = (size_t)job->k;
    const bool any_wide = mm3__any_wide_row(job, a->row);
    bool narrow[64];
    memset(a->tile, 0, tile_bytes(a->tactic)); /* rows beyond n are multiplied too */
    for (int j = 0; j < job->n; j += n_tile) {
        const int n = MM3_MIN(n_tile, job->n - j);
        const uint8_t *codes = (const uint8_t *)job->w->data + (size_t)(job->first + j) * k;
        const uint8_t *scales = job->w->scales + (size_t)(job->first + j) * k / MM3_MX_BLOCK;
        for (int t = 0; t < n; t++)
            narrow[t] = narrow_weights(codes + (size_t)t * k, scales + (size_t)t * k / MM3_MX_BLOCK, job->k);
        for (int c = 0; c < job->k; c += PANEL) {
            const int n_columns = MM3_MIN(PANEL, job->k - c);
            for (int t = 0; t < n; t++)
                narrow[t] &=
                    decode_panel(codes + (size_t)t * k + c, scales + ((size_t)t * k + (size_t)c) / MM3_MX_BLOCK,
                                 n_columns, a->tile + (size_t)t * PANEL);
            for (int i = 0; i < job->n_rows; i += TILE_X)
                for (int t = 0; t < n; t += TILE_W) {
                    const float *w = a->tile + (size_t)t * PANEL;
                    int n_w = MM3_MIN(TILE_W, n - t);
                    if (job->n_rows - i >= 3)
                        tile_block(job, a, w, j + t, n_w, i, 3, c, n_columns);
                    else if (job->n_rows - i == 2)
                        tile_block(job, a, w, j + t, n_w, i, 2, c, n_columns);
                    else
                        tile_block(job, a, w, j + t, n_w, i, 1, c, n_columns);
                }
        }
        for (int t = 0; t < n; t++) mm3__finish_row(job, a->row, j + t, narrow[t], any_wide);
    }
}

void mm3__avx2_run(const mm3__job *job, void *user)
{
    const mm3__avx2 *a = user;
    if (a->tactic->v[V_TILE])
        tile(job, a);
    else
        fused(job, a);
}
