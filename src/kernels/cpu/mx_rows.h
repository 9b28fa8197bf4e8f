/* mx_rows: which rows the fast products of MX weights may take, and what happens to the others. Internal to this
 * folder.
 *
 * Exactness. An E4M3 value is exact in BF16 and FP32, and so is its product with a power of two within their range.
 * BF16 dot products (vdpbf16ps, tdpbf16ps) flush subnormal inputs, products and sums to zero, and a sum of a block may
 * leave FP32's range before its scale brings it back. So values stay clear of 2^-126 and of infinity:
 * - a weight row is "narrow" if its scale bytes are in NARROW_LOW .. NARROW_HIGH (2^-50 .. 2^50), blocks of zeros
 *   excepted; real ones are within 2^-20 .. 2^1;
 * - an input row is put near 2^40 by a power of two, which is taken off at the end (row exponent); it is narrow if no
 *   non-zero block (w8a16: element) lies more than 2^98 below its largest, else "wide".
 * Then a product is at least 2^-126 and a sum of 2^13 at most 2^122. Rows that are not narrow are computed by
 * mm3__exact_dot instead: slow, right, and never seen in a model. */
#ifndef MM3_KERNELS_CPU_MX_ROWS_H
#define MM3_KERNELS_CPU_MX_ROWS_H

#include "kernels/cpu/cpu.h"

/* The limits above: scale bytes, and powers of two of an input row. */
enum { MM3__NARROW_LOW = 77, MM3__NARROW_HIGH = 177, MM3__ROW_LEVEL = 40, MM3__ROW_SPREAD = 98 };

/* What is known of an input row. */
typedef struct mm3__x_row {
    int exponent; /* sums are to be multiplied by 2^exponent */
    bool wide;    /* use mm3__exact_dot */
} mm3__x_row;

/* Whether a block of codes holds zeros alone, of either sign. */
static inline bool mm3__all_zero(const uint8_t *codes)
{
    unsigned any = 0;
    for (int i = 0; i < MM3_MX_BLOCK; i++) any |= codes[i] & 0x7Fu;
    return any == 0;
}

/* What is known of an input row of k codes; *top is its largest scale byte. */
static inline mm3__x_row mm3__code_row(const uint8_t *codes, const uint8_t *scales, int k, int *top)
{
    int high = 0;
    mm3__x_row row = { 0 };
    for (int b = 0; b < k / MM3_MX_BLOCK; b++) high = scales[b] > high ? scales[b] : high;
    for (int b = 0; b < k / MM3_MX_BLOCK; b++)
        if (scales[b] + MM3__ROW_SPREAD < high && !mm3__all_zero(codes + (size_t)b * MM3_MX_BLOCK)) row.wide = true;
    if (high == 255) row.wide = true;
    row.exponent = high - 127 - MM3__ROW_LEVEL;
    *top = high;
    return row;
}

/* x times 2^exponent, -252 to 254: exact where the result is a normal number; also where 2^exponent alone would be none. */
static inline float mm3__times_power(float x, int exponent)
{
    int half = exponent / 2; /* both halves have one sign: what one loses the result loses too */
    return x * mm3_f32_from_bits((uint32_t)(half + 127) << 23) *
           mm3_f32_from_bits((uint32_t)(exponent - half + 127) << 23);
}

/* Whether any input row of the job is wide. */
static inline bool mm3__any_wide_row(const mm3__job *job, const mm3__x_row *row)
{
    for (int i = 0; i < job->n_rows; i++)
        if (row[mm3__job_input(job, i)].wide) return true;
    return false;
}

/* Weight row j is done: what the fast product may not touch is computed again, exactly.
 *   narrow    of the weight row      any_wide  mm3__any_wide_row of the job */
static inline void mm3__finish_row(const mm3__job *job, const mm3__x_row *row, int j, bool narrow, bool any_wide)
{
    if (narrow && !any_wide) return;
    for (int i = 0; i < job->n_rows; i++)
        if (!narrow || row[mm3__job_input(job, i)].wide) mm3__job_output(job, i)[j] = mm3__exact_dot(job, i, j);
}

#endif
