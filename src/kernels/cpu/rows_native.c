/* The native matrix product: a tile of weight rows is decoded to floats once and meets every input row.
 * A dot product has 8 lanes with a fixed final order, whatever the number of rows: so a row's bits are its own.
 * cost  per 32 weights and input row: 8 multiplications and 8 additions of 4 lanes, 6 more for the scale */
#include <assert.h>

#include "kernels/cpu/cpu.h"

enum { TILE = 4, LANES = 8 };

static size_t round_up(size_t n) { return (n + 15) / 16 * 16; }
static size_t tile_floats(int k) { return round_up(TILE * ((size_t)k + (size_t)k / MM3_MX_BLOCK + 1)); }
static size_t unit_floats(int n_rows, int k, bool codes) { return codes ? round_up((size_t)n_rows * (size_t)k) : 0; }

size_t mm3__native_scratch(int n_rows, int k, bool codes, int n_threads)
{
    return (unit_floats(n_rows, k, codes) + (size_t)n_threads * tile_floats(k)) * sizeof(float);
}

mm3__native mm3__native_scratch_of(void *scratch, int n_rows, int k, bool codes, int i_thread)
{
    float *units = scratch;
    return (mm3__native){ .units = units,
                          .tile = units + unit_floats(n_rows, k, codes) + (size_t)i_thread * tile_floats(k) };
}

void mm3__native_decode_input(const uint8_t *codes, int n_rows, int k, void *scratch, int i_thread, int n_threads)
{
    float *units = scratch;
    int begin, end;
    assert(k % MM3_MX_BLOCK == 0);
    mm3_share(k / MM3_MX_BLOCK, i_thread, n_threads, &begin, &end); /* columns, so that one row is shared too */
    for (int i = 0; i < n_rows; i++) {
        size_t at = (size_t)i * (size_t)k + (size_t)begin * MM3_MX_BLOCK;
        mm3__decode_e4m3(codes + at, units + at, (end - begin) * MM3_MX_BLOCK);
    }
}

/* 8 lanes as two vectors of 4, which every 64-bit processor has: spelled out, because compilers find stranger loops. */
typedef float lanes4 __attribute__((vector_size(16)));
typedef struct lanes {
    lanes4 low, high;
} lanes;

static inline lanes4 load4(const float *p)
{
    lanes4 v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline float sum_lanes(lanes a)
{
    lanes4 s = a.low + a.high;
    return (s[0] + s[2]) + (s[1] + s[3]);
}

static inline lanes block_products(const float *x, const float *w)
{
    lanes a = { load4(x) * load4(w), load4(x + 4) * load4(w + 4) };
    for (int c = LANES; c < MM3_MX_BLOCK; c += LANES) {
        a.low += load4(x + c) * load4(w + c);
        a.high += load4(x + c + 4) * load4(w + c + 4);
    }
    return a;
}

/* Codes times codes, as the MX specification writes it: per block the sum of the products, then the two scales. These
 * make 2^(a + b - 254), which no float may hold although the result fits: it is applied in two halves of one sign, so
 * that what is lost between them is lost in the result as well. */
static float dot_codes(const float *x, const uint8_t *x_scales, const float *w, const uint8_t *w_scales, int k)
{
    float sum = 0;
    for (int b = 0; b < k / MM3_MX_BLOCK; b++) {
        uint32_t e = (uint32_t)x_scales[b] + w_scales[b], half = e / 2;
        float first = mm3_f32_from_bits(half << 23), second = mm3_f32_from_bits((e - half) << 23);
        if (x_scales[b] == 255 || w_scales[b] == 255) first = NAN;
        sum += sum_lanes(block_products(x + b * MM3_MX_BLOCK, w + b * MM3_MX_BLOCK)) * first * second;
    }
    return sum;
}

/* Floats times scaled weights; what of a scale did not go into them is in post. */
static float dot_scaled(const float *x, const float *w, const float *post, int k)
{
    lanes sum = { { 0 }, { 0 } };
    for (int b = 0; b < k / MM3_MX_BLOCK; b++) {
        lanes block = block_products(x + b * MM3_MX_BLOCK, w + b * MM3_MX_BLOCK);
        sum.low += block.low * post[b];
        sum.high += block.high * post[b];
    }
    return sum_lanes(sum);
}

static float dot_plain(const float *x, const float *w, int k)
{
    lanes sum = { { 0 }, { 0 } };
    float rest = 0;
    int c = 0;
    for (; c + LANES <= k; c += LANES) {
        sum.low += load4(x + c) * load4(w + c);
        sum.high += load4(x + c + 4) * load4(w + c + 4);
    }
    for (; c < k; c++) rest += x[c] * w[c];
    return sum_lanes(sum) + rest;
}

/* One MX row as scaled floats. Scales near the ends of the range are moved by a power of two that `post` gives back
 * after the sum of a block: the weights are then normal floats of moderate size, and a product leaves the range only
 * if the result does. */
static void scale_row(const uint8_t *codes, const uint8_t *scales, float *row, float *post, int k)
{
    mm3__decode_e4m3(codes, row, k);
    for (int b = 0; b < k / MM3_MX_BLOCK; b++) {
        uint32_t byte = scales[b];
        float scale;
        post[b] = byte < 24 ? 0x1p-64f : byte >= 240 ? 0x1p16f : 1.0f;
        scale = mm3_f32_from_bits((byte < 24 ? byte + 64 : byte >= 240 ? byte - 16 : byte) << 23);
        if (byte == 255) scale = NAN;
        for (int c = 0; c < MM3_MX_BLOCK; c++) row[b * MM3_MX_BLOCK + c] *= scale;
    }
}

static void decode_bf16(const uint16_t *restrict w, float *restrict out, int k)
{
    for (int c = 0; c < k; c++) out[c] = mm3_bf16_to_f32(w[c]);
}

void mm3__native_run(const mm3__job *job, void *user)
{
    const mm3__native *native = user;
    const mm3_weight *w = job->w;
    size_t k = (size_t)job->k, n_blocks = k / MM3_MX_BLOCK;
    assert(w->type != MM3_MX || k % MM3_MX_BLOCK == 0);
    for (int j = 0; j < job->n; j += TILE) {
        int n_tile = MM3_MIN(TILE, job->n - j);
        const float *row[TILE];
        float *post = native->tile + TILE * k;
        for (int t = 0; t < n_tile; t++) {
            size_t at = (size_t)(job->first + j + t) * k;
            float *to = native->tile + (size_t)t * k;
            row[t] = to;
            if (w->type == MM3_F32)
                row[t] = (const float *)w->data + at;
            else if (w->type == MM3_BF16)
                decode_bf16((const uint16_t *)w->data + at, to, job->k);
            else if (job->codes)
                mm3__decode_e4m3((const uint8_t *)w->data + at, to, job->k);
            else
                scale_row((const uint8_t *)w->data + at, w->scales + at / MM3_MX_BLOCK, to, post + (size_t)t * n_blocks,
                          job->k);
        }
        for (int i = 0; i < job->n_rows; i++) {
            size_t x_row = mm3__job_input(job, i);
            float *out = mm3__job_output(job, i) + j;
            for (int t = 0; t < n_tile; t++) {
                if (job->codes)
                    out[t] = dot_codes(native->units + x_row * k, job->x_scales + x_row * n_blocks, row[t],
                                       w->scales + (size_t)(job->first + j + t) * n_blocks, job->k);
                else if (w->type == MM3_MX)
                    out[t] = dot_scaled(job->x + x_row * k, row[t], post + (size_t)t * n_blocks, job->k);
                else
                    out[t] = dot_plain(job->x + x_row * k, row[t], job->k);
            }
        }
    }
}

/* Block by block through the dot products above, so that nothing is assumed of the scales. */
float mm3__exact_dot(const mm3__job *job, int i, int j)
{
    size_t k = (size_t)job->k, row = mm3__job_input(job, i), w_at = (size_t)(job->first + j) * k, x_at = row * k;
    const uint8_t *codes = (const uint8_t *)job->w->data + w_at, *scales = job->w->scales + w_at / MM3_MX_BLOCK;
    float w[MM3_MX_BLOCK], x[MM3_MX_BLOCK], post, sum = 0;
    for (size_t c = 0; c < k; c += MM3_MX_BLOCK) {
        if (job->codes) {
            mm3__decode_e4m3(codes + c, w, MM3_MX_BLOCK);
            mm3__decode_e4m3(job->x_codes + x_at + c, x, MM3_MX_BLOCK);
            sum += dot_codes(x, job->x_scales + (x_at + c) / MM3_MX_BLOCK, w, scales + c / MM3_MX_BLOCK, MM3_MX_BLOCK);
        } else {
            scale_row(codes + c, scales + c / MM3_MX_BLOCK, w, &post, MM3_MX_BLOCK);
            sum += dot_scaled(job->x + x_at + c, w, &post, MM3_MX_BLOCK);
        }
    }
    return sum;
}
