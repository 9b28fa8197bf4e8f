/* The AMX product of MX weights. 16 weight rows of 32 BF16 values are the left tile, 16 input rows (as columns, pairs
 * of values together) the right one, 16 x 16 sums the result; sums run along k in one order whatever m is.
 *   stream  up to 32 input rows: 32 weight rows by 64 codes are decoded while the tiles of the 64 before are
 *           multiplied; the sums stay in tile registers
 *   block   more rows: 32 weight rows by a chunk of k are decoded while the 32 before meet all input rows; sums go
 *           through memory from chunk to chunk
 * Prediction for 512 weights (528 bytes): decoding 8 x 9 cycles of the shuffle port (2 vpermi2b at 2, 2 vpunpck,
 * 2 vptestm, 1 vpshufb), beside it one tile product of 16 cycles per 16 input rows on its own unit. So up to 64 rows
 * cost what one costs, 72 cycles or 29 GB/s at 4 GHz, and many rows run at the tile unit's rate. */
#include "kernels/cpu/rows_amx.h"

#define TACTIC(text, rows, chunk, ahead)                                         \
    {                                                                            \
        .name = (text), .v = { (rows), (chunk), (ahead) }, .row_invariant = true \
    }
const mm3_tactic mm3__amx_tactics[MM3__AMX_TACTICS] = {
    TACTIC("r256.k512.a16", 256, 512, MM3__AMX_ROW16),
    TACTIC("r128.k512.next", 128, 512, MM3__AMX_NEXT),
};

enum { TILE = 16, TILE_BYTES = 1024, PAIR_ROWS = 32, STREAM_CHUNK = 64, MAX_ROWS = 256, AHEAD_ROWS = 16 };

const char *mm3__amx_refuses(const mm3_device_info *device, int type, int m, const mm3_tactic *tactic)
{
    const unsigned need = MM3_CPU_AVX512 | MM3_CPU_AVX512_BF16 | MM3_CPU_AVX512_VBMI | MM3_CPU_AMX_BF16;
    if ((device->features & need) != need) return "needs amx_bf16, avx512_bf16 and avx512_vbmi";
    if (type != MM3_MX) return "is for MX weights only";
    /* stream does not look at the tactic; the first, which a pin without one takes, accepts all shapes */
    if (m <= 2 * TILE && tactic != &mm3__amx_tactics[0]) return "is r256.k512.a16 up to 32 rows";
    return NULL;
}

/* ---- scratch ----------------------------------------------------------------------------------------------------- */

static size_t pad(size_t n) { return (n + 63) / 64 * 64; }
static int ceil_div(int a, int b) { return (a + b - 1) / b; }

/* What a thread needs: two buffers of decoded tiles, exponents of two groups of rows, sums. */
static size_t tile_bytes(const mm3_tactic *t) { return PAIR_ROWS * (size_t)t->v[MM3__AMX_CHUNK] * 2; }
static size_t exponent_bytes(int k) { return MAX_ROWS * (size_t)(mm3__pad64(k) / MM3_MX_BLOCK) * 2; }
static size_t sum_bytes(int max_job_rows)
{
    return (size_t)(MAX_ROWS / TILE) * (size_t)(ceil_div(max_job_rows, TILE) + 1) * TILE_BYTES;
}
static size_t own_bytes(const mm3_tactic *t, int k, int max_job_rows)
{
    return pad(2 * tile_bytes(t) + 2 * exponent_bytes(k) + sum_bytes(max_job_rows));
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

/* ---- packing ----------------------------------------------------------------------------------------------------- */

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

/* ---- decoding weight rows ---------------------------------------------------------------------------------------- */

/* What is known of a group of weight rows while it is worked on. */
typedef struct group {
    uint16_t *exponent; /* [rows, kp / 32]: (scale byte - 127) << 7 */
    bool narrow[MAX_ROWS];
} group;

/* A thread's work on one job. */
typedef struct work {
    const mm3__job *job;
    const mm3__amx *a;
    mm3__decoder decoder;
    unsigned char *tiles[2], *sums;
    group group[2];  /* the next group is begun before the last is finished */
    __m512i largest; /* of all codes so far, without sign: a NaN shows as 0x7F */
} work;

static inline const uint8_t *codes_of(const work *w, int j)
{
    return (const uint8_t *)w->job->w->data + (size_t)(w->job->first + j) * (size_t)w->job->k;
}

static void begin_rows(work *w, group *g, int j, int n)
{
    int n_blocks = w->job->k / MM3_MX_BLOCK, n_padded = w->a->x.kp / MM3_MX_BLOCK;
    for (int r = 0; r < n; r++) {
        const uint8_t *scales = w->job->w->scales + (size_t)(w->job->first + j + r) * (size_t)n_blocks;
        uint16_t *to = g->exponent + (size_t)r * (size_t)n_padded;
        g->narrow[r] = mm3__narrow_weights(codes_of(w, j + r), scales, w->job->k);
        for (int b = 0; b < n_padded; b += 32) {
            int left = n_blocks - b, room = n_padded - b;
            __mmask32 in = left >= 32 ? 0xFFFFFFFFu : left <= 0 ? 0 : (1u << left) - 1;
            __mmask32 out = room >= 32 ? 0xFFFFFFFFu : (1u << room) - 1;
            __m512i d = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(in, scales + b));
            d = _mm512_slli_epi16(_mm512_sub_epi16(d, _mm512_set1_epi16(127)), 7);
            _mm512_mask_storeu_epi16(to + b, out, d);
        }
    }
}

/* A NaN loses its meaning when the scale is added to its exponent: such rows are left to the exact product. */
static void find_nans(const work *w, group *g, int j, int n)
{
    if (_mm512_cmpeq_epi8_mask(w->largest, _mm512_set1_epi8(0x7F)) == 0) return;
    for (int r = 0; r < n; r++)
        for (int c = 0; c < w->job->k; c++)
            if ((codes_of(w, j + r)[c] & 0x7F) == 0x7F) g->narrow[r] = false;
}

/* 64 codes to one row of two tiles that lie side by side. */
static inline __attribute__((always_inline)) void decode_64(work *w, const uint8_t *codes, int c,
                                                            const uint16_t *exponent, unsigned char *to)
{
    const __m512i spread = _mm512_inserti64x4(_mm512_set1_epi16(0x0100), _mm256_set1_epi16(0x0302), 1);
    __m512i first, second, v = mm3__load_codes(codes, c, w->job->k), d;
    uint32_t two;
    memcpy(&two, exponent + c / MM3_MX_BLOCK, sizeof two);
    d = _mm512_shuffle_epi8(_mm512_set1_epi32((int)two), spread);
    w->largest = _mm512_max_epu8(w->largest, _mm512_and_si512(v, _mm512_set1_epi8(0x7F)));
    mm3__decode64(&w->decoder, v, &first, &second);
    _mm512_store_si512(to, mm3__shift_exponent(first, d));
    _mm512_store_si512(to + TILE_BYTES, mm3__shift_exponent(second, d));
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

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

/* Two left tiles times one or two right tiles: one step of 32 along k. */
static inline __attribute__((always_inline)) void multiply(const unsigned char *left0, const unsigned char *left1,
                                                           const uint16_t *right0, int width0, const uint16_t *right1,
                                                           int width1, const int n_right)
{
    _tile_loadd(4, left0, 64);
    _tile_loadd(6, right0, (size_t)width0 * 4);
    _tile_dpbf16ps(0, 4, 6);
    if (n_right == 2) {
        _tile_loadd(7, right1, (size_t)width1 * 4);
        _tile_dpbf16ps(1, 4, 7);
    }
    _tile_loadd(5, left1, 64);
    _tile_dpbf16ps(2, 5, 6);
    if (n_right == 2) _tile_dpbf16ps(3, 5, 7);
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

static void finish_rows(const work *w, group *rows, int j, int n, bool any_wide)
{
    find_nans(w, rows, j, n);
    for (int g = 0; g * TILE < w->job->n_rows; g++)
        for (int t = 0; t * TILE < n; t++) write_sums(w, j + t * TILE, t, g);
    for (int r = 0; r < n; r++) mm3__finish_row(w->job, w->a->x.row, j + r, rows->narrow[r], any_wide);
}

/* Memory. A group of weight rows lies in one piece, but is decoded across its rows, which no hardware prefetcher
 * follows. So while a group is decoded, the next one is asked for into the second-level cache, line by line as it lies
 * there. */

/* ---- stream ------------------------------------------------------------------------------------------------------ */

static inline __attribute__((always_inline)) void stream_chunk(work *w, int j, int n, int c)
{
    unsigned char *to = w->tiles[c / STREAM_CHUNK % 2];
    const size_t k = (size_t)w->job->k, n_blocks = (size_t)(w->a->x.kp / MM3_MX_BLOCK);
    const uint8_t *codes = codes_of(w, j);
    const char *next = (const char *)codes + PAIR_ROWS * (k + (size_t)c);
    for (int r = 0; r < n; r++) {
        _mm_prefetch(next + r * 64, _MM_HINT_T1);
        decode_64(w, codes + (size_t)r * k, c, w->group[0].exponent + (size_t)r * n_blocks,
                  to + r / TILE * 2 * TILE_BYTES + r % TILE * 64);
    }
    memory_is_written();
}

static inline __attribute__((always_inline)) void stream(work *w, int at, const int n_right)
{
    const mm3__job *job = w->job;
    const int width0 = MM3_MIN(TILE, job->n_rows), width1 = n_right == 2 ? job->n_rows - TILE : TILE;
    bool any_wide = mm3__any_wide_row(job, w->a->x.row);
    configure(width0, width1);
    for (int j = 0; j < job->n; j += PAIR_ROWS) {
        int n = MM3_MIN(PAIR_ROWS, job->n - j);
        begin_rows(w, &w->group[0], j, n);
        clear_sums();
        for (int c = 0; c < w->a->x.kp + STREAM_CHUNK; c += STREAM_CHUNK) {
            int done = c - STREAM_CHUNK;
            const unsigned char *tile = w->tiles[done / STREAM_CHUNK % 2 != 0];
            if (c < w->a->x.kp) stream_chunk(w, j, n, c);
            for (int s = 0; s < 2 && c; s++)
                multiply(tile + s * TILE_BYTES, tile + (2 + s) * TILE_BYTES,
                         column_tile(w->a, at, width0, done / 32 + s), width0,
                         column_tile(w->a, at + TILE, width1, done / 32 + s), width1, n_right);
        }
        store_sums(w, 0, 0);
        finish_rows(w, &w->group[0], j, n, any_wide);
    }
}

/* ---- block ------------------------------------------------------------------------------------------------------- */

/* What is decoded, and later multiplied, at once: up to 32 rows of a group by a chunk of k. */
typedef struct item {
    int j, n, parity; /* the group: first row, rows, which of the work's two */
    int c, n_codes;   /* the chunk */
    int sub;          /* rows sub .. sub + 31 of the group */
} item;

static void set_group(const work *w, item *it, int j)
{
    it->j = j;
    it->n = MM3_MIN(w->a->tactic->v[MM3__AMX_ROWS], w->job->n - j);
    it->c = it->sub = 0;
    it->n_codes = MM3_MIN(w->a->tactic->v[MM3__AMX_CHUNK], w->a->x.kp);
}

/* The item after this: the group's other rows, its next chunk, the next group. False at the end. */
static bool next_item(const work *w, item *it)
{
    it->sub += PAIR_ROWS;
    if (it->sub < it->n) return true;
    it->sub = 0;
    it->c += it->n_codes;
    it->n_codes = MM3_MIN(w->a->tactic->v[MM3__AMX_CHUNK], w->a->x.kp - it->c);
    if (it->n_codes > 0) return true;
    it->parity ^= 1;
    if (it->j + it->n >= w->job->n) return false;
    set_group(w, it, it->j + it->n);
    return true;
}

/* Decoding of an item in small steps, which are mixed into the products of the item before. */
typedef struct decoding {
    int left, r, u, c, per_row; /* units of 64 codes left; row and unit of the next */
    const uint8_t *codes;       /* of row 0 */
    const char *ahead;          /* the memory of the next group, in the order it lies there; NULL: AHEAD_ROWS on */
    const uint16_t *exponent;
    unsigned char *to;
} decoding;

static decoding begin_decoding(const work *w, const item *it, unsigned char *to)
{
    decoding d = { .c = it->c, .per_row = it->n_codes / 64, .to = to };
    d.left = MM3_MIN(PAIR_ROWS, it->n - it->sub) * d.per_row;
    d.codes = codes_of(w, it->j + it->sub);
    d.exponent = w->group[it->parity].exponent + (size_t)it->sub * (size_t)(w->a->x.kp / MM3_MX_BLOCK);
    if (w->a->tactic->v[MM3__AMX_AHEAD] == MM3__AMX_NEXT)
        d.ahead = (const char *)codes_of(w, it->j + it->n) + (size_t)it->c * (size_t)it->n +
                  (size_t)it->sub * (size_t)it->n_codes;
    return d;
}

static inline __attribute__((always_inline)) void decode_some(work *w, decoding *d, int n)
{
    const size_t k = (size_t)w->job->k, n_blocks = (size_t)(w->a->x.kp / MM3_MX_BLOCK);
    for (int i = 0; i < n && d->left; i++) {
        const uint8_t *codes = d->codes + (size_t)d->r * k;
        const size_t row = (size_t)d->per_row * 2 * TILE_BYTES;
        int c = d->c + d->u * 64;
        if (d->ahead)
            _mm_prefetch(d->ahead, _MM_HINT_T1), d->ahead += 64;
        else
            _mm_prefetch((const char *)codes + AHEAD_ROWS * k + c, _MM_HINT_T0);
        decode_64(w, codes, c, d->exponent + (size_t)d->r * n_blocks,
                  d->to + (size_t)(d->r / TILE) * row + d->u * 2 * TILE_BYTES + d->r % TILE * 64);
        if (++d->u == d->per_row) {
            d->u = 0;
            d->r++;
        }
        d->left--;
    }
}

/* Two (or one) groups of columns times an item's decoded rows, while `share` units a step of the next are decoded. */
static inline __attribute__((always_inline)) void block_sums(work *w, int at, int g, const item *it,
                                                             const unsigned char *left, decoding *next, int share,
                                                             const int n_right)
{
    const size_t row = (size_t)it->n_codes / 32 * TILE_BYTES;
    const int n = w->job->n_rows, width0 = MM3_MIN(TILE, n - g * TILE);
    const int width1 = n_right == 2 ? MM3_MIN(TILE, n - (g + 1) * TILE) : TILE;
    const uint16_t *right0 = column_tile(w->a, at + g * TILE, width0, it->c / 32);
    const uint16_t *right1 = column_tile(w->a, at + (g + 1) * TILE, width1, it->c / 32);
    if (it->c)
        load_sums(w, it->sub / TILE, g);
    else
        clear_sums();
    for (int s = 0; s < it->n_codes / 32; s++) {
        multiply(left + s * TILE_BYTES, left + row + s * TILE_BYTES, right0 + (size_t)s * 32 * (size_t)width0, width0,
                 right1 + (size_t)s * 32 * (size_t)width1, width1, n_right);
        decode_some(w, next, share);
    }
    store_sums(w, it->sub / TILE, g);
}

static void block(work *w, int at)
{
    const mm3__job *job = w->job;
    const int n_pairs = ceil_div(job->n_rows, 2 * TILE), last_width = (job->n_rows - 1) % TILE + 1;
    bool any_wide = mm3__any_wide_row(job, w->a->x.row), more = true;
    item it = { 0 };
    decoding d;
    int turn = 0;
    set_group(w, &it, 0);
    begin_rows(w, &w->group[0], it.j, it.n);
    d = begin_decoding(w, &it, w->tiles[0]);
    decode_some(w, &d, d.left);
    while (more) {
        item now = it;
        int share;
        more = next_item(w, &it);
        if (more && it.parity != now.parity) begin_rows(w, &w->group[it.parity], it.j, it.n);
        if (more) d = begin_decoding(w, &it, w->tiles[turn ^ 1]);
        share = ceil_div(d.left, n_pairs * (now.n_codes / 32));
        memory_is_written();
        for (int p = 0; p < n_pairs; p++) {
            bool two = (2 * p + 1) * TILE < job->n_rows;
            if (p == 0) configure(TILE, n_pairs == 1 ? last_width : TILE);
            if (p == n_pairs - 1 && p > 0) configure(two ? TILE : last_width, two ? last_width : TILE);
            if (two)
                block_sums(w, at, 2 * p, &now, w->tiles[turn], &d, share, 2);
            else
                block_sums(w, at, 2 * p, &now, w->tiles[turn], &d, share, 1);
        }
        decode_some(w, &d, d.left);
        if (!more || it.parity != now.parity) finish_rows(w, &w->group[now.parity], now.j, now.n, any_wide);
        turn ^= 1;
    }
}

void mm3__amx_run(const mm3__job *job, void *user)
{
    const mm3__amx *a = user;
    unsigned char *own = a->own;
    int at = job->pair ? (int)(job->pair - a->pair) : 0;
    work w = { .job = job, .a = a, .decoder = mm3__decoder_load() };
    for (int i = 0; i < 2; i++, own += tile_bytes(a->tactic)) w.tiles[i] = own;
    for (int i = 0; i < 2; i++, own += exponent_bytes(job->k)) w.group[i].exponent = (uint16_t *)own;
    w.sums = own;
    if (job->n_rows <= TILE)
        stream(&w, at, 1);
    else if (job->n_rows <= 2 * TILE)
        stream(&w, at, 2);
    else
        block(&w, at);
    _tile_release();
}
