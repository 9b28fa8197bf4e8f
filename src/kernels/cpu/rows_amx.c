/* The AMX product of MX weights. 16 weight rows of 32 BF16 values are the left tile, 16 input rows (as columns, pairs
 * of values together) the right one, 16 x 16 sums the result; sums run along k in one order whatever m is.
 *   stream  up to 32 input rows: 32 weight rows by 64 codes are decoded while the tiles of the 64 before are
 *           multiplied; the sums stay in tile registers
 *   block   more rows: a chunk of many weight rows is decoded once and meets all input rows; sums go through memory
 * Prediction for 512 weights (528 bytes): decoding 8 x 9 cycles of the shuffle port (2 vpermi2b at 2, 2 vpunpck,
 * 2 vptestm, 1 vpshufb), one tile product 16 cycles per 16 input rows on its own unit. So up to 16 rows cost what one
 * costs, 72 cycles: 29 GB/s at 4 GHz; at 512 rows decoding is an eighth. */
#include "kernels/cpu/rows_amx.h"

#define TACTIC(text, rows, chunk, ahead)                                 \
    {                                                                    \
        .name = text, .v = { rows, chunk, ahead }, .row_invariant = true \
    }
const mm3_tactic mm3__amx_tactics[MM3__AMX_TACTICS] = {
    TACTIC("r128.k512", 128, 512, 0),
    TACTIC("r128.k512.t512", 128, 512, 512),
    TACTIC("r64.k1024.t1k", 64, 1024, 1024),
};

enum { TILE = 16, TILE_BYTES = 1024, STREAM_ROWS = 32, STREAM_CHUNK = 64, MAX_ROWS = 128 };

const char *mm3__amx_refuses(const mm3_device_info *device, int type)
{
    const unsigned need = MM3_CPU_AVX512 | MM3_CPU_AVX512_BF16 | MM3_CPU_AVX512_VBMI | MM3_CPU_AMX_BF16;
    if ((device->features & need) != need) return "needs amx_bf16, avx512_bf16 and avx512_vbmi";
    if (type != MM3_MX) return "is for MX weights only";
    return NULL;
}

/* ---- scratch ------------------------------------------------------------------------------------------------ */

static size_t pad(size_t n) { return (n + 63) / 64 * 64; }
static int ceil_div(int a, int b) { return (a + b - 1) / b; }

/* What a thread needs: decoded tiles (two stream chunks, or a block), exponents of the rows, sums. */
static size_t tile_bytes(const mm3_tactic *t) { return (size_t)t->v[MM3__AMX_ROWS] * (size_t)t->v[MM3__AMX_CHUNK] * 2; }
static size_t exponent_bytes(int k) { return MAX_ROWS * (size_t)(mm3__pad64(k) / MM3_MX_BLOCK) * 2; }
static size_t sum_bytes(int max_job_rows)
{
    return (size_t)(MAX_ROWS / TILE) * (size_t)(ceil_div(max_job_rows, TILE) + 1) * TILE_BYTES;
}
static size_t own_bytes(const mm3_tactic *t, int k, int max_job_rows)
{
    return pad(tile_bytes(t) + exponent_bytes(k) + sum_bytes(max_job_rows));
}
static size_t column_bytes(int n_columns, int k) { return pad((size_t)n_columns * (size_t)mm3__pad64(k) * 2); }

size_t mm3__amx_scratch(const mm3_tactic *tactic, int n_rows, int n_columns, int k, int max_job_rows, int n_threads)
{
    return pad(mm3__x512_bytes(n_rows, k, false)) + column_bytes(n_columns, k) +
           (size_t)n_threads * own_bytes(tactic, k, max_job_rows);
}

mm3__amx mm3__amx_at(const mm3_tactic *tactic, void *scratch, int n_rows, int n_columns, int k, int max_job_rows,
                     int i_thread)
{
    unsigned char *at = (unsigned char *)scratch + pad(mm3__x512_bytes(n_rows, k, false));
    mm3__amx a = { .x = mm3__x512_at(scratch, n_rows, k, false), .tactic = tactic, .columns = (uint16_t *)at };
    a.own = at + column_bytes(n_columns, k) + (size_t)i_thread * own_bytes(tactic, k, max_job_rows);
    return a;
}

/* ---- packing ------------------------------------------------------------------------------------------------ */

/* 16 x 16 words of 32 bits, in place. */
static inline void transpose16(__m512i v[16])
{
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        __m512i a = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88), b = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xDD);
        __m512i c = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88),
                d = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xDD);
        t[i] = _mm512_shuffle_i32x4(a, c, 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88);
        t[i + 8] = _mm512_shuffle_i32x4(a, c, 0xDD);
        t[i + 12] = _mm512_shuffle_i32x4(b, d, 0xDD);
    }
    for (int i = 0; i < 16; i++) v[i] = t[i];
}

/* Tile s of a group of n columns: 16 pairs of values by n columns. */
static inline uint16_t *column_tile(const mm3__amx *a, int at, int n, int s)
{
    return a->columns + (size_t)at * (size_t)a->x.kp + (size_t)s * 32 * (size_t)n;
}

void mm3__amx_pack(const mm3__amx *a, const int32_t *pair, int pairs_per_row, int at, int n, int i_thread,
                   int n_threads)
{
    int begin, end;
    mm3_share(a->x.kp / 32, i_thread, n_threads, &begin, &end);
    for (int g = 0; g < n; g += TILE) {
        int width = MM3_MIN(TILE, n - g);
        const uint16_t *x[TILE];
        for (int c = 0; c < width; c++)
            x[c] = a->x.x + (size_t)(pair ? pair[g + c] / pairs_per_row : g + c) * (size_t)a->x.kp;
        for (int s = begin; s < end; s++) {
            uint32_t *to = (uint32_t *)column_tile(a, at + g, width, s);
            if (width == TILE) {
                __m512i v[TILE];
                for (int c = 0; c < TILE; c++) v[c] = _mm512_loadu_si512(x[c] + s * 32);
                transpose16(v);
                for (int p = 0; p < TILE; p++) _mm512_storeu_si512(to + p * TILE, v[p]);
            } else {
                for (int c = 0; c < width; c++)
                    for (int p = 0; p < TILE; p++) memcpy(to + p * width + c, x[c] + s * 32 + p * 2, 4);
            }
        }
    }
}

/* ---- decoding weight rows ------------------------------------------------------------------------------------ */

/* A thread's work on one job. */
typedef struct work {
    const mm3__job *job;
    const mm3__amx *a;
    mm3__decoder decoder;
    unsigned char *tiles, *sums;
    uint16_t *exponent; /* [rows, kp / 32]: (scale byte - 127) << 7 */
    bool narrow[MAX_ROWS];
    __m512i largest; /* of the codes without sign: a NaN shows as 0x7F */
} work;

static const uint8_t *codes_of(const work *w, int j)
{
    return (const uint8_t *)w->job->w->data + (size_t)(w->job->first + j) * (size_t)w->job->k;
}

static void begin_rows(work *w, int j, int n)
{
    int n_blocks = w->job->k / MM3_MX_BLOCK, n_padded = w->a->x.kp / MM3_MX_BLOCK;
    for (int r = 0; r < n; r++) {
        const uint8_t *scales = w->job->w->scales + (size_t)(w->job->first + j + r) * (size_t)n_blocks;
        uint16_t *to = w->exponent + (size_t)r * (size_t)n_padded;
        w->narrow[r] = mm3__narrow_weights(codes_of(w, j + r), scales, w->job->k);
        for (int b = 0; b < n_padded; b += 32) {
            int left = n_blocks - b, room = n_padded - b;
            __mmask32 in = left >= 32 ? 0xFFFFFFFFu : left <= 0 ? 0 : (1u << left) - 1;
            __mmask32 out = room >= 32 ? 0xFFFFFFFFu : (1u << room) - 1;
            __m512i d = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(in, scales + b));
            d = _mm512_slli_epi16(_mm512_sub_epi16(d, _mm512_set1_epi16(127)), 7);
            _mm512_mask_storeu_epi16(to + b, out, d);
        }
    }
    w->largest = _mm512_setzero_si512();
}

/* Rows with NaNs lose their exponent's meaning on the way: they are left to the exact product. */
static void end_rows(work *w, int j, int n)
{
    if (_mm512_cmpeq_epi8_mask(w->largest, _mm512_set1_epi8(0x7F)) == 0) return;
    for (int r = 0; r < n; r++)
        for (int c = 0; c < w->job->k; c++)
            if ((codes_of(w, j + r)[c] & 0x7F) == 0x7F) w->narrow[r] = false;
}

/* 64 codes of weight row j + r at c into row r % 16 of two tiles, `step` bytes apart from the next pair. */
static inline __attribute__((always_inline)) void decode_64(work *w, int j, int r, int c, unsigned char *tile)
{
    const __m512i spread = _mm512_inserti64x4(_mm512_set1_epi16(0x0100), _mm256_set1_epi16(0x0302), 1);
    const uint16_t *exponent = w->exponent + (size_t)r * (size_t)(w->a->x.kp / MM3_MX_BLOCK) + c / MM3_MX_BLOCK;
    __m512i first, second, v = mm3__load_codes(codes_of(w, j + r), c, w->job->k), d;
    uint32_t two;
    memcpy(&two, exponent, sizeof two);
    d = _mm512_shuffle_epi8(_mm512_set1_epi32((int)two), spread);
    w->largest = _mm512_max_epu8(w->largest, _mm512_and_si512(v, _mm512_set1_epi8(0x7F)));
    mm3__decode64(&w->decoder, v, &first, &second);
    _mm512_store_si512(tile + r % TILE * 64, mm3__shift_exponent(first, d));
    _mm512_store_si512(tile + TILE_BYTES + r % TILE * 64, mm3__shift_exponent(second, d));
}

/* ---- tiles -------------------------------------------------------------------------------------------------- */

typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* Registers 0..3 sums [left][right], 4, 5 left, 6, 7 right; width of the right ones in columns. */
static void configure(int width0, int width1)
{
    tile_config c = { .palette = 1 };
    for (int i = 0; i < 8; i++) {
        int width = i == 4 || i == 5 ? TILE : i % 2 ? width1 : width0;
        c.rows[i] = TILE;
        c.row_bytes[i] = (uint16_t)(width * 4);
    }
    _tile_loadconfig(&c);
}

/* The intrinsics do not tell the compiler which memory a tile load reads. */
static inline void memory_is_written(void) { __asm__ volatile("" ::: "memory"); }

/* Both rows of left tiles times both groups of right tiles, one step of 32 along k. */
static inline __attribute__((always_inline)) void multiply(const unsigned char *left0, const unsigned char *left1,
                                                           const uint16_t *right0, int width0, const uint16_t *right1,
                                                           int width1, const int n_left, const int n_right)
{
    _tile_loadd(4, left0, 64);
    _tile_loadd(6, right0, (size_t)width0 * 4);
    _tile_dpbf16ps(0, 4, 6);
    if (n_right == 2) {
        _tile_loadd(7, right1, (size_t)width1 * 4);
        _tile_dpbf16ps(1, 4, 7);
    }
    if (n_left == 2) {
        _tile_loadd(5, left1, 64);
        _tile_dpbf16ps(2, 5, 6);
        if (n_right == 2) _tile_dpbf16ps(3, 5, 7);
    }
}

static unsigned char *sum_tile(const work *w, int t, int g)
{
    return w->sums + ((size_t)g * (MAX_ROWS / TILE) + (size_t)t) * TILE_BYTES;
}

static void load_sums(const work *w, int t, int g)
{
    _tile_loadd(0, sum_tile(w, t, g), 64);
    _tile_loadd(1, sum_tile(w, t, g + 1), 64);
    _tile_loadd(2, sum_tile(w, t + 1, g), 64);
    _tile_loadd(3, sum_tile(w, t + 1, g + 1), 64);
}

static void clear_sums(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

static void store_sums(const work *w, int t, int g)
{
    _tile_stored(0, sum_tile(w, t, g), 64);
    _tile_stored(1, sum_tile(w, t, g + 1), 64);
    _tile_stored(2, sum_tile(w, t + 1, g), 64);
    _tile_stored(3, sum_tile(w, t + 1, g + 1), 64);
}

/* Sums of 16 weight rows from j on and one group of columns to their outputs, times the rows' powers of two. */
static void write_sums(const work *w, int j, int t, int g)
{
    const mm3__job *job = w->job;
    int n = MM3_MIN(TILE, job->n - j), width = MM3_MIN(TILE, job->n_rows - g * TILE);
    __mmask16 in = (__mmask16)((1u << n) - 1);
    __m512i v[TILE];
    for (int r = 0; r < TILE; r++) v[r] = _mm512_loadu_si512(sum_tile(w, t, g) + r * 64);
    transpose16(v);
    for (int c = 0; c < width; c++) {
        int exponent = w->a->x.row[mm3__job_input(job, g * TILE + c)].exponent, half = exponent / 2;
        __m512 a = _mm512_set1_ps(mm3_f32_from_bits((uint32_t)(half + 127) << 23));
        __m512 b = _mm512_set1_ps(mm3_f32_from_bits((uint32_t)(exponent - half + 127) << 23));
        _mm512_mask_storeu_ps(mm3__job_output(job, g * TILE + c) + j, in,
                              _mm512_mul_ps(_mm512_mul_ps((__m512)v[c], a), b));
    }
}

static void finish_rows(const work *w, int j, int n, bool any_wide)
{
    for (int t = 0; t * TILE < n; t++)
        for (int g = 0; g * TILE < w->job->n_rows; g++) write_sums(w, j + t * TILE, t, g);
    for (int r = 0; r < n; r++) {
        if (w->narrow[r] && !any_wide) continue;
        for (int i = 0; i < w->job->n_rows; i++)
            if (!w->narrow[r] || w->a->x.row[mm3__job_input(w->job, i)].wide)
                mm3__job_output(w->job, i)[j + r] = mm3__exact_dot(w->job, i, j + r);
    }
}

/* ---- stream ------------------------------------------------------------------------------------------------- */

static inline __attribute__((always_inline)) void stream_chunk(work *w, int j, int n, int c, int ahead)
{
    unsigned char *tile = w->tiles + c / STREAM_CHUNK % 2 * 4 * TILE_BYTES;
    for (int r = 0; r < n; r++) {
        if (ahead) {
            /* beyond the row's end: its successor, 32 rows further */
            const uint8_t *p = codes_of(w, j + r) + c + ahead;
            _mm_prefetch((const char *)(c + ahead < w->job->k ? p : p + (STREAM_ROWS - 1) * (size_t)w->job->k),
                         _MM_HINT_T0);
        }
        decode_64(w, j, r, c, tile + r / TILE * 2 * TILE_BYTES);
    }
    memory_is_written();
}

static inline __attribute__((always_inline)) void stream(work *w, int at, int ahead, const int n_right)
{
    const mm3__job *job = w->job;
    const int width0 = MM3_MIN(TILE, job->n_rows), width1 = n_right == 2 ? job->n_rows - TILE : TILE;
    bool any_wide = mm3__any_wide(job, &w->a->x);
    configure(width0, width1);
    for (int j = 0; j < job->n; j += STREAM_ROWS) {
        int n = MM3_MIN(STREAM_ROWS, job->n - j);
        begin_rows(w, j, n);
        clear_sums();
        for (int c = 0; c < w->a->x.kp + STREAM_CHUNK; c += STREAM_CHUNK) {
            int done = c - STREAM_CHUNK;
            const unsigned char *tile = w->tiles + done / STREAM_CHUNK % 2 * 4 * TILE_BYTES;
            if (c < w->a->x.kp) stream_chunk(w, j, n, c, ahead);
            for (int s = 0; s < 2 && c; s++)
                multiply(tile + s * TILE_BYTES, tile + (2 + s) * TILE_BYTES,
                         column_tile(w->a, at, width0, done / 32 + s), width0,
                         column_tile(w->a, at + TILE, width1, done / 32 + s), width1, 2, n_right);
        }
        store_sums(w, 0, 0);
        end_rows(w, j, n);
        finish_rows(w, j, n, any_wide);
    }
}

/* ---- block -------------------------------------------------------------------------------------------------- */

static inline __attribute__((always_inline)) void block_sums(work *w, int at, int t, int g, int c, int n_steps,
                                                             const int n_left, const int n_right)
{
    const size_t row = (size_t)w->a->tactic->v[MM3__AMX_CHUNK] / 32 * TILE_BYTES;
    const unsigned char *left = w->tiles + (size_t)t * row;
    const int n = w->job->n_rows, width0 = MM3_MIN(TILE, n - g * TILE);
    const int width1 = n_right == 2 ? MM3_MIN(TILE, n - (g + 1) * TILE) : TILE;
    const uint16_t *right0 = column_tile(w->a, at + g * TILE, width0, c / 32);
    const uint16_t *right1 = column_tile(w->a, at + (g + 1) * TILE, width1, c / 32);
    configure(width0, width1);
    if (c)
        load_sums(w, t, g);
    else
        clear_sums();
    for (int s = 0; s < n_steps; s++)
        multiply(left + s * TILE_BYTES, left + row + s * TILE_BYTES, right0 + (size_t)s * 32 * (size_t)width0, width0,
                 right1 + (size_t)s * 32 * (size_t)width1, width1, n_left, n_right);
    store_sums(w, t, g);
}

static void block(work *w, int at)
{
    const mm3__job *job = w->job;
    const int max_rows = w->a->tactic->v[MM3__AMX_ROWS], chunk = w->a->tactic->v[MM3__AMX_CHUNK];
    const size_t row = (size_t)chunk / 32 * TILE_BYTES;
    const int n_groups = ceil_div(job->n_rows, TILE), ahead = w->a->tactic->v[MM3__AMX_AHEAD];
    bool any_wide = mm3__any_wide(job, &w->a->x);
    for (int j = 0; j < job->n; j += max_rows) {
        int n = MM3_MIN(max_rows, job->n - j), n_tiles = ceil_div(n, TILE);
        begin_rows(w, j, n);
        for (int c = 0; c < w->a->x.kp; c += chunk) {
            int n_codes = MM3_MIN(chunk, w->a->x.kp - c);
            for (int r = 0; r < n; r++)
                for (int u = 0; u < n_codes; u += 64) {
                    if (ahead) _mm_prefetch((const char *)codes_of(w, j + r) + c + u + ahead, _MM_HINT_T0);
                    decode_64(w, j, r, c + u, w->tiles + (size_t)(r / TILE) * row + (size_t)(u / 32) * TILE_BYTES);
                }
            memory_is_written();
            for (int g = 0; g < n_groups; g += 2)
                for (int t = 0; t < n_tiles; t += 2)
                    if (t + 1 < n_tiles && g + 1 < n_groups)
                        block_sums(w, at, t, g, c, n_codes / 32, 2, 2);
                    else if (t + 1 < n_tiles)
                        block_sums(w, at, t, g, c, n_codes / 32, 2, 1);
                    else if (g + 1 < n_groups)
                        block_sums(w, at, t, g, c, n_codes / 32, 1, 2);
                    else
                        block_sums(w, at, t, g, c, n_codes / 32, 1, 1);
        }
        end_rows(w, j, n);
        finish_rows(w, j, n, any_wide);
    }
}

void mm3__amx_run(const mm3__job *job, void *user)
{
    const mm3__amx *a = user;
    int at = job->pair ? (int)(job->pair - a->pair) : 0, ahead = a->tactic->v[MM3__AMX_AHEAD];
    work w = { .job = job, .a = a, .decoder = mm3__decoder_load(), .tiles = a->own };
    w.exponent = (uint16_t *)(a->own + tile_bytes(a->tactic));
    w.sums = a->own + tile_bytes(a->tactic) + exponent_bytes(job->k);
    if (job->n_rows <= TILE)
        stream(&w, at, ahead, 1);
    else if (job->n_rows <= 2 * TILE)
        stream(&w, at, ahead, 2);
    else
        block(&w, at);
    _tile_release();
}
