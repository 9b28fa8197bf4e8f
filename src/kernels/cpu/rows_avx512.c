/* The AVX-512 product of MX weights by BF16 dot products, in two forms.
 *   fused  each 64 codes are decoded, multiplied with up to 4 input rows and scaled in FP32 at once: for small m
 *   tile   some weight rows are decoded, scales included, into a buffer, and meet all input rows from there
 * Prediction for 64 weights (66 bytes): decoding 2 vpermi2b, 1 vpternlog, 2 vpunpck; scale 1 vpermps; per input row
 * 2 vdpbf16ps, 1 vmulps, 1 vfmadd. Where vpermi2b is 3 operations of which 2 are on the shuffle port, and vdpbf16ps
 * takes 2 cycles, that is 7 cycles of the shuffle port: 37 GB/s at 4 GHz, above what one core gets from memory. */
#include "kernels/cpu/rows_avx512.h"

enum { TILE_COLUMNS = 4, TILE_ROWS = 4 };

#define TACTIC(text, tile, hint, ahead)                                         \
    {                                                                           \
        .name = (text), .v = { (tile), (hint), (ahead) }, .row_invariant = true \
    }
const mm3_tactic mm3__avx512_tactics[MM3__AVX512_TACTICS] = {
    TACTIC("fused.t2k", 0, MM3__HINT_T0, 2048),
    TACTIC("fused.nta4k", 0, MM3__HINT_NTA, 4096),
    TACTIC("tile32", 32, MM3__HINT_NONE, 0),
};

const char *mm3__avx512_refuses(const mm3_device_info *device, int type, int m, const mm3_tactic *tactic)
{
    const unsigned need = MM3_CPU_AVX512 | MM3_CPU_AVX512_BF16 | MM3_CPU_AVX512_VBMI;
    if ((device->features & need) != need) return "needs avx512_bf16 and avx512_vbmi";
    if (type != MM3_MX) return "is for MX weights only";
    if (tactic->v[MM3__V_TILE] && m < 3) return "a tile pays from 3 rows on";
    if (!tactic->v[MM3__V_TILE] && m > 16) return "decodes again for every 4 rows: for 16 rows at most";
    return NULL;
}

static bool is_fused(const mm3_tactic *tactic) { return tactic->v[MM3__V_TILE] == 0; }

size_t mm3__avx512_scratch(const mm3_tactic *tactic, int n_rows, int k, int n_threads)
{
    size_t tile = (size_t)tactic->v[MM3__V_TILE] * (size_t)mm3__pad64(k) * 2;
    return mm3__x512_bytes(n_rows, k, is_fused(tactic)) + (size_t)n_threads * tile;
}

mm3__avx512 mm3__avx512_at(const mm3_tactic *tactic, void *scratch, int n_rows, int k, int i_thread)
{
    unsigned char *tiles = (unsigned char *)scratch + mm3__x512_bytes(n_rows, k, is_fused(tactic));
    size_t tile = (size_t)tactic->v[MM3__V_TILE] * (size_t)mm3__pad64(k) * 2;
    return (mm3__avx512){ .x = mm3__x512_at(scratch, n_rows, k, is_fused(tactic)),
                          .tactic = tactic,
                          .tile = (uint16_t *)(tiles + (size_t)i_thread * tile) };
}

static inline __m512 dot(__m512 sum, __m512i a, __m512i b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }

/* ---- fused ------------------------------------------------------------------------------------------------------- */

/* Weight row j times input rows i .. i + n - 1 (n, hint are constants where this is inlined). The steps of 64 of a row
 * are the same whatever n is. */
static inline __attribute__((always_inline)) void fused_rows(const mm3__job *job, const mm3__x512 *p,
                                                             const mm3__decoder *decoder, int j, int i, const int n,
                                                             const int hint, int ahead)
{
    const size_t k = (size_t)job->k, at = (size_t)(job->first + j) * k;
    const uint8_t *codes = (const uint8_t *)job->w->data + at, *scales = job->w->scales + at / MM3_MX_BLOCK;
    const __m512i pairs = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi32(1), 1);
    const uint16_t *x[4];
    const float *x_scale[4];
    __m512 sum[4];
    for (int r = 0; r < n; r++) {
        size_t row = mm3__job_input(job, i + r);
        x[r] = p->x + row * (size_t)p->kp;
        x_scale[r] = p->scale + row * (size_t)(p->kp / 4);
        sum[r] = _mm512_setzero_ps();
    }
    for (int c = 0; c < job->k; c += 512) {
        int n_steps = (MM3_MIN(job->k - c, 512) + 63) / 64, n_scales = MM3_MIN(job->k - c, 512) / MM3_MX_BLOCK;
        __m128i bytes = _mm_maskz_loadu_epi8((__mmask16)((1u << n_scales) - 1), scales + c / MM3_MX_BLOCK);
        __m512 scale = (__m512)_mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23);
        for (int u = 0; u < n_steps; u++) {
            int at64 = c / 64 + u;
            __m512i first, second, v = mm3__load_codes(codes, c + 64 * u, job->k);
            __m512 s = _mm512_permutexvar_ps(_mm512_add_epi32(pairs, _mm512_set1_epi32(2 * u)), scale);
            if (hint == MM3__HINT_T0)
                _mm_prefetch((const char *)codes + c + 64 * u + ahead, _MM_HINT_T0);
            else
                _mm_prefetch((const char *)codes + c + 64 * u + ahead, _MM_HINT_NTA);
            mm3__decode64(decoder, v, &first, &second);
            for (int r = 0; r < n; r++) {
                __m512 product = dot(_mm512_setzero_ps(), _mm512_loadu_si512(x[r] + 64 * at64), first);
                product = dot(product, _mm512_loadu_si512(x[r] + 64 * at64 + 32), second);
                sum[r] = _mm512_fmadd_ps(_mm512_mul_ps(product, s), _mm512_loadu_ps(x_scale[r] + 16 * at64), sum[r]);
            }
        }
    }
    for (int r = 0; r < n; r++)
        mm3__job_output(job, i + r)[j] =
            mm3__times_power(_mm512_reduce_add_ps(sum[r]), p->row[mm3__job_input(job, i + r)].exponent);
}

static inline __attribute__((always_inline)) void fused(const mm3__job *job, const mm3__x512 *p, const int hint,
                                                        int ahead)
{
    const mm3__decoder decoder = mm3__decoder_load();
    bool any_wide = mm3__any_wide_row(job, p->row);
    for (int j = 0; j < job->n; j++) {
        size_t at = (size_t)(job->first + j) * (size_t)job->k;
        bool narrow =
            mm3__narrow_weights((const uint8_t *)job->w->data + at, job->w->scales + at / MM3_MX_BLOCK, job->k);
        for (int i = 0; i < job->n_rows && narrow; i += 4) switch (job->n_rows - i) {
            case 1:
                fused_rows(job, p, &decoder, j, i, 1, hint, ahead);
                break;
            case 2:
                fused_rows(job, p, &decoder, j, i, 2, hint, ahead);
                break;
            case 3:
                fused_rows(job, p, &decoder, j, i, 3, hint, ahead);
                break;
            default:
                fused_rows(job, p, &decoder, j, i, 4, hint, ahead);
            }
        mm3__finish_row(job, p->row, j, narrow, any_wide);
    }
}

/* ---- tile -------------------------------------------------------------------------------------------------------- */

/* A weight row to BF16 with its scales; false if it is not narrow or has a NaN. */
static bool decode_row(const mm3__job *job, int j, uint16_t *to)
{
    const mm3__decoder decoder = mm3__decoder_load();
    const __m512i half = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(1), 1);
    const size_t at = (size_t)(job->first + j) * (size_t)job->k;
    const uint8_t *codes = (const uint8_t *)job->w->data + at, *scales = job->w->scales + at / MM3_MX_BLOCK;
    __m512i largest = _mm512_setzero_si512();
    if (!mm3__narrow_weights(codes, scales, job->k)) return false;
    for (int c = 0; c < job->k; c += 1024) {
        int n_steps = (MM3_MIN(job->k - c, 1024) + 63) / 64, n_scales = MM3_MIN(job->k - c, 1024) / MM3_MX_BLOCK;
        __mmask32 in = (__mmask32)(((uint64_t)1 << n_scales) - 1);
        __m512i d = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(in, scales + c / MM3_MX_BLOCK));
        d = _mm512_slli_epi16(_mm512_sub_epi16(d, _mm512_set1_epi16(127)), 7);
        for (int u = 0; u < n_steps; u++) {
            __m512i first, second, v = mm3__load_codes(codes, c + 64 * u, job->k);
            __m512i e = _mm512_permutexvar_epi16(_mm512_add_epi16(half, _mm512_set1_epi16((short)(2 * u))), d);
            largest = _mm512_max_epu8(largest, _mm512_and_si512(v, _mm512_set1_epi8(0x7F)));
            mm3__decode64(&decoder, v, &first, &second);
            _mm512_storeu_si512(to + c + 64 * u, mm3__shift_exponent(first, e));
            _mm512_storeu_si512(to + c + 64 * u + 32, mm3__shift_exponent(second, e));
        }
    }
    return _mm512_cmpeq_epi8_mask(largest, _mm512_set1_epi8(0x7F)) == 0;
}

/* n_w decoded weight rows times n_x input rows from i on. */
static inline __attribute__((always_inline)) void tile_block(const mm3__job *job, const mm3__x512 *p, const uint16_t *w,
                                                             int j, int i, const int n_w, const int n_x)
{
    const size_t kp = (size_t)p->kp;
    const uint16_t *x[TILE_ROWS];
    __m512 sum[TILE_ROWS][TILE_COLUMNS];
    for (int r = 0; r < n_x; r++) {
        x[r] = p->x + mm3__job_input(job, i + r) * kp;
        for (int t = 0; t < n_w; t++) sum[r][t] = _mm512_setzero_ps();
    }
    for (size_t c = 0; c < kp; c += 32) {
        __m512i v[TILE_COLUMNS];
        for (int t = 0; t < n_w; t++) v[t] = _mm512_loadu_si512(w + (size_t)t * kp + c);
        for (int r = 0; r < n_x; r++) {
            __m512i u = _mm512_loadu_si512(x[r] + c);
            for (int t = 0; t < n_w; t++) sum[r][t] = dot(sum[r][t], u, v[t]);
        }
    }
    for (int r = 0; r < n_x; r++)
        for (int t = 0; t < n_w; t++)
            mm3__job_output(job, i + r)[j + t] =
                mm3__times_power(_mm512_reduce_add_ps(sum[r][t]), p->row[mm3__job_input(job, i + r)].exponent);
}

static void tile(const mm3__job *job, const mm3__avx512 *a)
{
    const mm3__x512 *p = &a->x;
    const int n_tile = a->tactic->v[MM3__V_TILE];
    bool any_wide = mm3__any_wide_row(job, p->row), narrow[64];
    for (int j = 0; j < job->n; j += n_tile) {
        int n = MM3_MIN(n_tile, job->n - j);
        for (int t = 0; t < n; t++) narrow[t] = decode_row(job, j + t, a->tile + (size_t)t * (size_t)p->kp);
        for (int i = 0; i < job->n_rows; i += TILE_ROWS)
            for (int t = 0; t < n; t += TILE_COLUMNS) {
                const uint16_t *w = a->tile + (size_t)t * (size_t)p->kp;
                int n_x = MM3_MIN(TILE_ROWS, job->n_rows - i), n_w = MM3_MIN(TILE_COLUMNS, n - t);
                if (n_x == TILE_ROWS && n_w == TILE_COLUMNS)
                    tile_block(job, p, w, j + t, i, TILE_COLUMNS, TILE_ROWS);
                else
                    for (int r = 0; r < n_x; r++)
                        for (int s = 0; s < n_w; s++)
                            tile_block(job, p, w + (size_t)s * (size_t)p->kp, j + t + s, i + r, 1, 1);
            }
        for (int t = 0; t < n; t++) mm3__finish_row(job, p->row, j + t, narrow[t], any_wide);
    }
}

void mm3__avx512_run(const mm3__job *job, void *user)
{
    const mm3__avx512 *a = user;
    int hint = a->tactic->v[MM3__V_HINT], ahead = a->tactic->v[MM3__V_AHEAD];
    if (!is_fused(a->tactic))
        tile(job, a);
    else if (hint == MM3__HINT_T0)
        fused(job, &a->x, MM3__HINT_T0, ahead);
    else
        fused(job, &a->x, MM3__HINT_NTA, ahead);
}
