/* cpu: what the CPU candidates share. Element-wise bodies that every instruction set compiles from the same C (so their
 * bits agree: no contraction, fixed lanes), and how a matrix product falls into jobs. Internal to this folder.
 * Knows one thread's part of one operation; never starts a thread. */
#ifndef MM3_KERNELS_CPU_H
#define MM3_KERNELS_CPU_H

#include "kernels/cpu/quantize_blocks.h"
#include "kernels/kernels.h"

/* ---- element-wise bodies ----------------------------------------------------------------------------------------- */

/* c ? a : b without control flow: compilers will not vectorize a branch around arithmetic that might trap. */
static inline uint32_t mm3__pick(bool c, uint32_t a, uint32_t b)
{
    uint32_t mask = 0u - (uint32_t)c;
    return (a & mask) | (b & ~mask);
}
static inline float mm3__pick_f32(bool c, float a, float b)
{
    return mm3_f32_from_bits(mm3__pick(c, mm3_f32_bits(a), mm3_f32_bits(b)));
}

/* E4M3 codes to floats, scales left out. Branch-free, so that it vectorizes, and without a subnormal operand (a
 * multiplication by 2^120 would be shorter and 50 times slower on small codes): a code of exponent 0 is built as
 * 2^-6 * (1 + m/8), and 2^-6 is taken off again. */
static inline void mm3__decode_e4m3(const uint8_t *restrict codes, float *restrict out, int n)
{
    for (int i = 0; i < n; i++) {
        uint32_t c = codes[i], a = c & 0x7Fu;
        uint32_t tiny = a < 8u ? 0xFFFFFFFFu : 0, nan = a == 0x7Fu ? 0x7FC00000u : 0;
        float v = mm3_f32_from_bits((a << 20) + (120u << 23) + (tiny & (1u << 23)));
        v -= mm3_f32_from_bits(tiny & (121u << 23));
        out[i] = mm3_f32_from_bits(mm3_f32_bits(v) | nan | (c & 0x80u) << 24);
    }
}

/* exp(-a) for a >= 0 (NaN gives 0): 2^n * p(r) with |r| <= ln(2)/2, relative error below 2^-22.5. The power is applied
 * in two halves, so that results down to the least subnormal come out. */
static inline float mm3__exp_minus(float a)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: the sum's last bit is 1 */
    float t = mm3__pick_f32(a < 110.0f, -a, -110.0f);
    float rounded = t * 1.44269504088896341f + magic;
    float n = rounded - magic;
    float r = (t - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    int32_t e = (int32_t)(mm3_f32_bits(rounded) - 0x4B400000u), half = e >> 1;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * mm3_f32_from_bits((uint32_t)(half + 127) << 23) * mm3_f32_from_bits((uint32_t)(e - half + 127) << 23);
}

/* One value of swiglu. A comparison with NaN is false, so NaN passes the clamps. exp is taken of a negative number
 * only: nothing overflows, and a gate far below zero gives a small result, not none. */
static inline float mm3__swiglu_value(float gate, float up, float alpha, float limit, float beta)
{
    float g = mm3__pick_f32(gate > limit, limit, gate);
    float above = mm3__pick_f32(up > limit, limit, up), u = mm3__pick_f32(above < -limit, -limit, above);
    float a = alpha * g, z = mm3__exp_minus(fabsf(a));
    float sigmoid = mm3__pick_f32(a < 0.0f, z, 1.0f) / (1.0f + z);
    float y = g * sigmoid * (u + beta);
    return mm3__pick_f32(y == y, y, NAN);
}

/* x += delta (unless NULL), then 1 / sqrt(mean(x^2) + eps). The squares of floats are exact in double and cannot
 * overflow there; 16 lanes and their order are fixed, so every instruction set gives the same bits. */
static inline double mm3__rms_scale(float *restrict x, const float *restrict delta, int k, float eps)
{
    double lane[16] = { 0 };
    int c = 0;
    if (delta)
        for (int i = 0; i < k; i++) x[i] += delta[i];
    for (; c + 16 <= k; c += 16)
        for (int l = 0; l < 16; l++) lane[l] += (double)x[c + l] * (double)x[c + l];
    for (int l = 0; c + l < k; l++) lane[l] += (double)x[c + l] * (double)x[c + l];
    for (int n = 8; n; n /= 2)
        for (int l = 0; l < n; l++) lane[l] += lane[l + n];
    return 1 / sqrt(lane[0] / k + (double)eps);
}

/* y = x * scale * (1 + w), rounded once; a NaN is the positive one. */
static inline void mm3__rms_apply(const float *restrict x, const float *restrict w, double scale, float *restrict y,
                                  int k)
{
    for (int c = 0; c < k; c++) {
        float v = (float)((double)x[c] * scale * (double)(1.0f + w[c]));
        y[c] = mm3__pick_f32(v == v, v, NAN);
    }
}

/* ---- one thread's part of the element-wise operations ------------------------------------------------------------ */

/* Threads share the blocks of all rows, so that one row is shared too. */
static inline void mm3__quantize_part(const mm3_quantize *op, int i_thread, int n_threads)
{
    int begin, end;
    mm3_share(op->m * (op->k / MM3_MX_BLOCK), i_thread, n_threads, &begin, &end);
    mm3__quantize_blocks(op->x + (size_t)begin * MM3_MX_BLOCK, op->codes + (size_t)begin * MM3_MX_BLOCK,
                         op->scales + begin, end - begin);
}

/* Threads share the columns. */
static inline void mm3__swiglu_part(const mm3_swiglu *op, int i_thread, int n_threads)
{
    int begin, end;
    mm3_share(op->n, i_thread, n_threads, &begin, &end);
    for (int i = 0; i < op->m; i++) {
        const float *restrict gate = op->gate_up + (size_t)i * 2 * (size_t)op->n, *restrict up = gate + op->n;
        float *restrict y = op->y + (size_t)i * (size_t)op->n;
        for (int c = begin; c < end; c++) y[c] = mm3__swiglu_value(gate[c], up[c], op->alpha, op->limit, op->beta);
    }
}

/* y goes to the codes by pieces that stay in the first-level cache; op->y is not written. */
static inline void mm3__swiglu_quantize_part(const mm3_swiglu_quantize *op, int i_thread, int n_threads)
{
    enum { PIECE = 8 * MM3_MX_BLOCK };
    size_t n = (size_t)op->n;
    int begin, end;
    mm3_share(op->n / MM3_MX_BLOCK, i_thread, n_threads, &begin, &end);
    for (int i = 0; i < op->m; i++)
        for (int c = begin * MM3_MX_BLOCK; c < end * MM3_MX_BLOCK; c += PIECE) {
            const float *gate = op->gate_up + (size_t)i * 2 * n + c, *up = gate + n;
            int n_piece = MM3_MIN(PIECE, end * MM3_MX_BLOCK - c);
            size_t to = (size_t)i * n + (size_t)c;
            float y[PIECE];
            for (int z = 0; z < n_piece; z++) y[z] = mm3__swiglu_value(gate[z], up[z], op->alpha, op->limit, op->beta);
            mm3__quantize_blocks(y, op->codes + to, op->scales + to / MM3_MX_BLOCK, n_piece / MM3_MX_BLOCK);
        }
}

/* Threads share the rows. */
static inline void mm3__add_rmsnorm_part(const mm3_add_rmsnorm *op, int i_thread, int n_threads)
{
    int begin, end;
    mm3_share(op->m, i_thread, n_threads, &begin, &end);
    for (int i = begin; i < end; i++) {
        size_t at = (size_t)i * (size_t)op->k;
        double scale = mm3__rms_scale(op->x + at, op->delta ? op->delta + at : NULL, op->k, op->eps);
        mm3__rms_apply(op->x + at, op->w, scale, op->y + at, op->k);
    }
}

/* Threads share the rows; the codes of a row are made while it is in the cache. */
static inline void mm3__add_rmsnorm_quantize_part(const mm3_add_rmsnorm_quantize *op, int i_thread, int n_threads)
{
    int begin, end;
    mm3_share(op->m, i_thread, n_threads, &begin, &end);
    for (int i = begin; i < end; i++) {
        size_t at = (size_t)i * (size_t)op->k;
        double scale = mm3__rms_scale(op->x + at, op->delta ? op->delta + at : NULL, op->k, op->eps);
        mm3__rms_apply(op->x + at, op->w, scale, op->y + at, op->k);
        mm3__quantize_blocks(op->y + at, op->codes + at, op->scales + at / MM3_MX_BLOCK, op->k / MM3_MX_BLOCK);
    }
}

/* ---- matrix products as jobs ------------------------------------------------------------------------------------- */

/* One thread's piece of linear or moe_linear: some rows of one weight segment times a list of input rows. */
typedef struct mm3__job {
    const mm3_weight *w;
    int first, n; /* weight rows first .. first + n - 1 of the segment */
    int k;
    bool codes;                        /* w is MX and meets codes (w8a8); else it meets x */
    const float *x;                    /* [.., k] */
    const uint8_t *x_codes, *x_scales; /* [.., k], [.., k/32] */
    /* Input row and output row of the i-th row: pair[i] / pairs_per_row and pair[i]; i and i where pair is NULL. */
    int n_rows, pairs_per_row;
    const int32_t *pair;
    float *out; /* column of weight row `first` in output row 0 */
    size_t ld;  /* columns of an output row */
} mm3__job;

/* Input row of the i-th row of a job, and the address of its output: of weight row `first`. */
static inline size_t mm3__job_input(const mm3__job *job, int i)
{
    return (size_t)(job->pair ? job->pair[i] / job->pairs_per_row : i);
}
static inline float *mm3__job_output(const mm3__job *job, int i)
{
    return job->out + (size_t)(job->pair ? job->pair[i] : i) * job->ld;
}

/* Call run for every job of this thread. Threads share the weight rows (moe_linear: those of the hit experts), so each
 * weight byte is read by one thread, once. */
typedef void mm3__job_run(const mm3__job *job, void *user);
void mm3__linear_jobs(const mm3_linear *op, int i_thread, int n_threads, mm3__job_run *run, void *user);
void mm3__moe_linear_jobs(const mm3_moe_linear *op, int i_thread, int n_threads, mm3__job_run *run, void *user);
/* Whether any weight of it meets codes: it is MX, and the activations are w8a8. */
bool mm3__linear_reads_codes(const mm3_linear *op);
bool mm3__moe_linear_reads_codes(const mm3_moe_linear *op);
/* Rows of x that a moe_linear can read. */
static inline int mm3__moe_linear_rows(const mm3_moe_linear *op) { return op->by_pair ? op->m * op->top_k : op->m; }

/* ---- the native product (rows_native.c) -------------------------------------------------------------------------- */

/* Scratch: the input codes of all rows as floats (where codes are read), then a tile of weight rows per thread. */
size_t mm3__native_scratch(int n_rows, int k, bool codes, int n_threads);
void mm3__native_decode_input(const uint8_t *codes, int n_rows, int k, void *scratch, int i_thread, int n_threads);
typedef struct mm3__native {
    const float *units; /* the decoded input codes */
    float *tile;        /* this thread's */
} mm3__native;
mm3__native mm3__native_scratch_of(void *scratch, int n_rows, int k, bool codes, int i_thread);
mm3__job_run mm3__native_run; /* user: mm3__native */
/* Weight row j of the job (an MX one) times its input row i, right whatever the scales; for the rare rows that a faster
 * product has to leave out. No scratch. */
float mm3__exact_dot(const mm3__job *job, int i, int j);

#endif
