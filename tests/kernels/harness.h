/* harness: every candidate and tactic of an operation against its reference, for the tests of this folder.
 * The arrays of a case are found through the operation's descriptor; outputs are poisoned and guarded, run on 1 and on
 * 2 or 3 threads, and must agree bit for bit between thread counts. */
#ifndef TEST_KERNELS_HARNESS_H
#define TEST_KERNELS_HARNESS_H

#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/kernels.h"

enum { GUARD = 256, MAX_ARRAYS = 4096, MAX_DEVICES = 4 };

/* ---- random numbers, and arrays that live until the test ends ---------------------------------------------------- */

static uint64_t rng_state = 1;
static inline uint32_t rng(void)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 32) ^ (uint32_t)(rng_state >> 11);
}
static inline int rng_below(int n) { return (int)(rng() % (uint32_t)n); }
/* About normal, deviation 1. */
static inline float rng_normal(void)
{
    float sum = 0;
    for (int i = 0; i < 12; i++) sum += (float)(rng() >> 8) * 0x1p-24f;
    return sum - 6.0f;
}

static void *arrays[MAX_ARRAYS];
static int n_arrays;
/* n_bytes between two guards, 64-byte aligned; everything is 0xA5 at first. */
static inline void *array_of(size_t n_bytes)
{
    size_t n = (n_bytes + 63) / 64 * 64 + 2 * GUARD;
    unsigned char *p = aligned_alloc(64, n);
    assert_non_null(p);
    assert_true(n_arrays < MAX_ARRAYS);
    memset(p, 0xA5, n);
    arrays[n_arrays++] = p;
    return p + GUARD;
}
static inline void free_arrays(void)
{
    while (n_arrays) free(arrays[--n_arrays]);
}
static inline bool guards_intact(const void *array, size_t n_bytes)
{
    const unsigned char *p = array;
    size_t end = (n_bytes + 63) / 64 * 64 + GUARD;
    for (int i = 1; i <= GUARD; i++)
        if (p[-i] != 0xA5) return false;
    for (size_t i = n_bytes; i < end; i++)
        if (p[i] != 0xA5) return false;
    return true;
}
static inline void *copy_of(const void *src, size_t n_bytes) { return memcpy(array_of(n_bytes), src, n_bytes); }

/* ---- running one candidate --------------------------------------------------------------------------------------- */

static inline mm3_status harness_choose(void *user, mm3_op_id op, const void *contract, mm3_choice *choice)
{
    const mm3_choice *wanted = user;
    (void)contract;
    if (wanted->kernel->op == op) {
        *choice = *wanted;
    } else { /* a part of a split chain: its native */
        choice->kernel = mm3_kernel_find(op, "cpu", NULL);
        choice->tactic = &choice->kernel->tactics[0];
    }
    return MM3_OK;
}

/* Scratch is poisoned with NaNs before every run. */
static inline void run_on(mm3_device *device, const void *contract, mm3_choice choice)
{
    mm3_part parts[MM3_MAX_PARTS];
    mm3_bound bound[MM3_MAX_BOUND];
    mm3_call calls[MM3_MAX_BOUND];
    int n = 0;
    size_t need = 0;
    void *scratch = NULL;
    assert_int_equal(mm3_bind(mm3_device_info_of(device), choice.kernel->op, contract, harness_choose, &choice, parts,
                              &need, bound, &n),
                     MM3_OK);
    if (need) scratch = memset(array_of(need), 0xFF, need);
    for (int i = 0; i < n; i++) {
        calls[i] = bound[i].call;
        calls[i].scratch = scratch;
    }
    mm3_device_run(device, calls, n);
    if (need) {
        assert_true(guards_intact(scratch, need));
        free(arrays[--n_arrays]);
    }
}

/* The device with that many threads, opened once. */
static inline mm3_device *device_of(int n_threads)
{
    static mm3_device *devices[MAX_DEVICES];
    if (!devices[n_threads]) assert_int_equal(mm3_device_open(&devices[n_threads], n_threads), MM3_OK);
    return devices[n_threads];
}

/* ---- comparison -------------------------------------------------------------------------------------------------- */

/* |got - want| <= tolerance * magnitude + 2^-126. NaN must meet NaN, infinity the same infinity; where the terms
 * themselves come near the float range, any order of adding them may leave it. */
static inline bool close_to(float got, float want, double magnitude, double tolerance)
{
    if (isnan(want)) return isnan(got);
    if (isfinite(magnitude) && magnitude > 0x1p127) return true;
    if (isinf(want)) return got == want;
    return fabs((double)got - (double)want) <= tolerance * magnitude + 0x1p-126;
}

/* Bit for bit, but any NaN equals any other: which operand's payload survives is the compiler's choice. */
static inline bool same_bits(const void *a, const void *b, size_t n_bytes, mm3_dtype type)
{
    const float *x = a, *y = b;
    if (type != MM3_F32) return memcmp(a, b, n_bytes) == 0;
    for (size_t i = 0; i < n_bytes / 4; i++)
        if (mm3_f32_bits(x[i]) != mm3_f32_bits(y[i]) && !(isnan(x[i]) && isnan(y[i]))) return false;
    return true;
}

typedef struct check_result {
    int n_runs, n_refused;
} check_result;

/* One case on every candidate, tactic and thread count.
 *   tolerance  of FP32 outputs, for candidates whose operand is FP32; bf16_extra is added for the others
 *   skip       name of an output that need not be written (a fused chain's y), or NULL */
static inline check_result check_case(mm3_op_id op, const void *contract, double tolerance, double bf16_extra,
                                      const char *skip, const char *what)
{
    const mm3_op_info *info = mm3_op_info_of(op);
    const mm3_kernel *kernels[MM3_MAX_CANDIDATES];
    union {
        max_align_t align;
        unsigned char bytes[MM3_MAX_OP_BYTES];
    } want, got;
    mm3_operand a[MM3_MAX_OPERANDS], b[MM3_MAX_OPERANDS];
    int n_kernels = mm3_kernels_of(op, "cpu", kernels, MM3_MAX_CANDIDATES), n, first = -1, mark = n_arrays;
    void *old[MM3_MAX_OPERANDS] = { 0 };
    double *magnitude = NULL;
    check_result result = { 0 };
    mm3_key key = { .op = op };
    char text[256];
    assert_true(n_kernels > 0);
    info->key(contract, &key);
    mm3_key_text(&key, text, sizeof text);
    memcpy(want.bytes, contract, info->n_bytes);
    n = info->operands(want.bytes, a);
    for (int i = 0; i < n; i++) {
        if (a[i].access == MM3_IN) continue;
        old[i] = a[i].access == MM3_INOUT ? *a[i].at : NULL;
        *a[i].at = old[i] ? copy_of(old[i], a[i].n_bytes) : array_of(a[i].n_bytes);
        if (a[i].type == MM3_F32 && first < 0) first = i;
    }
    if (first >= 0) magnitude = array_of(a[first].n_bytes * 2);
    info->reference(want.bytes, magnitude);
    for (int i_kernel = 0; i_kernel < n_kernels; i_kernel++)
        for (int t = 0; t < kernels[i_kernel]->n_tactics; t++) {
            mm3_choice choice = { kernels[i_kernel], &kernels[i_kernel]->tactics[t] };
            double tol = tolerance + (choice.kernel->operand == MM3_BF16 ? bf16_extra : 0);
            void *one[MM3_MAX_OPERANDS] = { 0 };
            int inner = n_arrays;
            for (int run = 0; run < 2; run++) {
                int n_threads = run ? 2 + result.n_runs / 2 % 2 : 1;
                mm3_device *device = device_of(n_threads);
                const char *why;
                memcpy(got.bytes, contract, info->n_bytes);
                assert_int_equal(info->operands(got.bytes, b), n);
                for (int i = 0; i < n; i++) {
                    if (b[i].access == MM3_IN) continue;
                    *b[i].at = old[i] ? copy_of(old[i], b[i].n_bytes) : array_of(b[i].n_bytes);
                    if (!old[i]) memset(*b[i].at, 0xFF, b[i].n_bytes);
                }
                why = choice.kernel->refuses
                          ? choice.kernel->refuses(mm3_device_info_of(device), got.bytes, choice.tactic)
                          : NULL;
                if (why) {
                    result.n_refused++;
                    continue;
                }
                run_on(device, got.bytes, choice);
                result.n_runs++;
                for (int i = 0; i < n; i++) {
                    const float *g = *b[i].at, *w = *a[i].at;
                    if (b[i].access == MM3_IN || (skip && strcmp(skip, b[i].name) == 0)) continue;
                    if (!guards_intact(g, b[i].n_bytes))
                        fail_msg("%s %s/%s, %s, %d threads: wrote outside %s", text, choice.kernel->name,
                                 choice.tactic->name, what, n_threads, b[i].name);
                    for (size_t e = 0; b[i].type == MM3_F32 && e < b[i].n_bytes / 4; e++) {
                        double size = i == first ? magnitude[e] : fabs((double)w[e]);
                        if (!close_to(g[e], w[e], size, tol))
                            fail_msg("%s %s/%s, %s, %d threads: %s[%zu] is %.9g, reference %.9g, magnitude %.9g", text,
                                     choice.kernel->name, choice.tactic->name, what, n_threads, b[i].name, e,
                                     (double)g[e], (double)w[e], size);
                    }
                    for (size_t e = 0; b[i].type != MM3_F32 && e < b[i].n_bytes; e++)
                        if (((const uint8_t *)g)[e] != ((const uint8_t *)w)[e])
                            fail_msg("%s %s/%s, %s, %d threads: %s byte %zu is %02x, reference %02x", text,
                                     choice.kernel->name, choice.tactic->name, what, n_threads, b[i].name, e,
                                     ((const uint8_t *)g)[e], ((const uint8_t *)w)[e]);
                    if (one[i] && !same_bits(one[i], g, b[i].n_bytes, b[i].type))
                        fail_msg("%s %s/%s, %s: %s differs between 1 and %d threads", text, choice.kernel->name,
                                 choice.tactic->name, what, b[i].name, n_threads);
                    if (!one[i]) one[i] = *b[i].at;
                }
            }
            while (n_arrays > inner) free(arrays[--n_arrays]);
        }
    while (n_arrays > mark) free(arrays[--n_arrays]);
    return result;
}

/* ---- weights and rows in MXFP8 ----------------------------------------------------------------------------------- */

/* How a case is filled. */
typedef enum fill {
    FILL_RANDOM, /* as in a model */
    FILL_ZERO,   /* zeros of both signs, scale byte 0 */
    FILL_HUGE,   /* scales whose product alone leaves the float range on either side */
    FILL_TINY,   /* subnormal codes, small scales */
    FILL_ALL,    /* every code but NaN, every scale but NaN */
    FILL_NAN,    /* a few NaN codes, NaN scales, infinities */
    N_FILLS
} fill;
static const char *const fill_name[N_FILLS] = { "random", "zero", "huge", "tiny", "all", "nan" };

static inline uint8_t fill_code(fill f)
{
    uint8_t c = (uint8_t)rng();
    if (f == FILL_ZERO) return c & 0x80;
    if (f == FILL_TINY) return c & 0x87;
    if (f == FILL_NAN && rng_below(40) == 0) return c | 0x7F;
    return (c & 0x7F) == 0x7F ? c ^ 1 : c;
}
/* Byte of a scale; `weight` says which side of a product, so that huge meets tiny. */
static inline uint8_t fill_scale(fill f, bool weight)
{
    switch (f) {
    case FILL_ZERO:
        return 0;
    case FILL_HUGE:
        return (uint8_t)(weight ? 250 + rng_below(5) : rng_below(5));
    case FILL_TINY:
        return (uint8_t)(weight ? rng_below(30) : 100 + rng_below(150));
    case FILL_ALL:
        return (uint8_t)rng_below(255);
    case FILL_NAN:
        return (uint8_t)(rng_below(40) ? 120 + rng_below(10) : 255);
    default:
        return (uint8_t)((weight ? 110 : 120) + rng_below(8));
    }
}
static inline float fill_float(fill f, bool weight)
{
    float x = rng_normal();
    switch (f) {
    case FILL_ZERO:
        return copysignf(0.0f, x);
    case FILL_HUGE:
        return weight ? x * 0x1p120f : x * 0x1p-125f;
    case FILL_TINY:
        return weight ? mm3_f32_from_bits(rng() & 0x807FFFFFu) : x * 0x1p20f;
    case FILL_ALL:
        return ldexpf(x, rng_below(120) - 60);
    case FILL_NAN:
        return rng_below(60) ? x : rng_below(2) ? NAN : copysignf(INFINITY, x);
    default:
        return x;
    }
}

static inline uint8_t *make_codes(size_t n, fill f)
{
    uint8_t *p = array_of(n);
    for (size_t i = 0; i < n; i++) p[i] = fill_code(f);
    return p;
}
static inline uint8_t *make_scales(size_t n, fill f, bool weight)
{
    uint8_t *p = array_of(n);
    for (size_t i = 0; i < n; i++) p[i] = fill_scale(f, weight);
    return p;
}
static inline float *make_floats(size_t n, fill f, bool weight)
{
    float *p = array_of(n * 4);
    for (size_t i = 0; i < n; i++) p[i] = fill_float(f, weight);
    return p;
}
static inline mm3_weight make_weight(mm3_dtype type, int n, int k, fill f)
{
    mm3_weight w = { .n = n, .type = type };
    size_t size = (size_t)n * (size_t)k;
    if (type == MM3_MX) {
        w.data = make_codes(size, f);
        w.scales = make_scales(size / 32, f, true);
    } else if (type == MM3_F32) {
        w.data = make_floats(size, f, true);
    } else {
        uint16_t *p = array_of(size * 2);
        for (size_t i = 0; i < size; i++) p[i] = mm3_bf16_from_f32(fill_float(f, true));
        w.data = p;
    }
    return w;
}

#endif
