/* kernel_test: what the tests of kernels share. Random fills, a pool of KV pages, and every candidate run as deployed:
 * real threads, scratch poisoned and exactly as large as asked for. */
#ifndef MM3_KERNEL_TEST_H
#define MM3_KERNEL_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/kernels.h"

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static inline uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static inline int random_below(uint64_t *state, int n) { return (int)(random_next(state) % (uint64_t)n); }

/* Uniform in (-1, 1). */
static inline float random_unit(uint64_t *state) { return (float)((int64_t)random_next(state) >> 11) * 0x1p-52f; }

typedef enum fill { FILL_UNIT, FILL_LARGE, FILL_TINY, FILL_MIXED, N_FILLS } fill;

static inline float random_value(uint64_t *state, fill how)
{
    float x = random_unit(state);
    switch (how == FILL_MIXED ? (fill)random_below(state, 4) : how) {
    case FILL_LARGE:
        return x * 30.0f;
    case FILL_TINY:
        return x * 0x1p-130f; /* subnormal */
    case FILL_MIXED:
        return 0.0f;
    default:
        return x;
    }
}

static inline void random_fill(float *x, size_t n, uint64_t *state, fill how)
{
    for (size_t i = 0; i < n; i++) x[i] = random_value(state, how);
}

static inline float *floats(size_t n)
{
    float *x = mm3_calloc(n ? n : 1, sizeof *x);
    assert_non_null(x);
    return x;
}

static inline int32_t *ints(size_t n)
{
    int32_t *x = mm3_calloc(n ? n : 1, sizeof *x);
    assert_non_null(x);
    return x;
}

static inline bool same_bits(const void *a, const void *b, size_t n) { return memcmp(a, b, n) == 0; }

/* ---- candidates -------------------------------------------------------------------------------------------------- */

typedef struct candidate {
    const mm3_kernel *kernel;
    const mm3_tactic *tactic;
} candidate;

enum { MAX_TESTED = 128 };

/* Every tactic of every candidate of an operation; returns how many. */
static inline int candidates(mm3_op_id op, candidate *out)
{
    const mm3_kernel *k[MM3_MAX_CANDIDATES];
    int n_kernels = mm3_kernels_of(op, "cpu", k, MM3_MAX_CANDIDATES), n = 0;
    assert_in_range(n_kernels, 1, MM3_MAX_CANDIDATES);
    for (int i = 0; i < n_kernels; i++)
        for (int t = 0; t < k[i]->n_tactics && n < MAX_TESTED; t++) out[n++] = (candidate){ k[i], &k[i]->tactics[t] };
    return n;
}

#define EACH_CANDIDATE(c, op_id)                                                      \
    candidate all_##c[MAX_TESTED];                                                    \
    for (int n_##c = candidates((op_id), all_##c), i_##c = 0; i_##c < n_##c; i_##c++) \
        for (const candidate *c = &all_##c[i_##c]; c; c = NULL)

/* Run once; false if the candidate refuses this operation here (native may not). */
static inline bool run_candidate(const candidate *c, const void *op, int n_threads)
{
    mm3_device *device;
    mm3_call calls[MM3_MAX_PHASES];
    const char *why;
    void *scratch = NULL;
    int n = 0;
    size_t need;
    assert_int_equal(mm3_device_open(&device, n_threads), MM3_OK);
    why = c->kernel->refuses ? c->kernel->refuses(mm3_device_info_of(device), op, c->tactic) : NULL;
    if (why) {
        assert_string_not_equal(c->kernel->name, "native");
        mm3_device_close(&device);
        return false;
    }
    need = c->kernel->scratch ? c->kernel->scratch(op, c->tactic, n_threads) : 0;
    if (need) {
        scratch = mm3_alloc_aligned(need);
        assert_non_null(scratch);
        memset(scratch, 0xFF, need);
    }
    for (; c->kernel->phase[n]; n++) {
        calls[n] = (mm3_call){ .run = c->kernel->phase[n], .op = op, .tactic = c->tactic, .scratch = scratch };
        calls[n].waits = true;
    }
    mm3_device_run(device, calls, n);
    mm3_free(scratch);
    mm3_device_close(&device);
    return true;
}

#define FAIL_CANDIDATE(c, ...)                                                  \
    do {                                                                        \
        print_error("candidate %s/%s: ", (c)->kernel->name, (c)->tactic->name); \
        fail_msg(__VA_ARGS__);                                                  \
    } while (0)

/* Every element within tolerance of its magnitude; NaN where and only where the reference has NaN. */
static inline void check_close(const candidate *c, const char *what, const float *got, const float *want,
                               const double *magnitude, size_t n, double tolerance)
{
    for (size_t i = 0; i < n; i++) {
        double limit = tolerance * magnitude[i] + 1e-35;
        if (isnan(want[i]) ? isnan(got[i]) : fabs((double)got[i] - (double)want[i]) <= limit || got[i] == want[i])
            continue;
        FAIL_CANDIDATE(c, "%s: element %zu is %.9g, expected %.9g within %.3g", what, i, (double)got[i],
                       (double)want[i], limit);
    }
}

/* ---- KV pages ---------------------------------------------------------------------------------------------------- */

typedef struct pages {
    mm3_kv kv;
    int32_t *table; /* owned; what kv.table points to */
} pages;

/* A pool whose every byte is 0xFF (NaN in both types) with one page table of distinct pages for each slot, in an order
 * that `seed` shuffles; ids start at first_id, and what lies below is address space only. */
static inline pages pages_open(int n_kv, int d_index, mm3_dtype type, int n_slots, int max_pages, int first_id,
                               uint64_t seed)
{
    pages p = { 0 };
    size_t element = type == MM3_BF16 ? 2 : 4, tile = MM3_PAGE_TOKENS * element, used;
    int n = n_slots * max_pages;
    void *pool;
    /* some bytes that belong to another layer come first */
    p.kv = (mm3_kv){ .n_kv = n_kv, .d_index = d_index, .type = type, .n_slots = n_slots, .max_pages = max_pages };
    p.kv.k_at = 256;
    p.kv.v_at = p.kv.k_at + (size_t)n_kv * tile * MM3_HEAD_DIM;
    p.kv.ik_at = p.kv.v_at + (size_t)n_kv * tile * MM3_HEAD_DIM;
    p.kv.page_bytes = p.kv.ik_at + (size_t)d_index * tile + 64;
    p.kv.n_pages = first_id + n;
    pool = mmap(NULL, (size_t)p.kv.n_pages * p.kv.page_bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(pool, MAP_FAILED);
    p.kv.pool = pool;
    used = (size_t)n * p.kv.page_bytes;
    memset(p.kv.pool + (size_t)first_id * p.kv.page_bytes, 0xFF, used);
    p.table = ints((size_t)n);
    for (int i = 0; i < n; i++) p.table[i] = first_id + i;
    for (int i = n - 1; i > 0 && seed; i--) {
        int j = random_below(&seed, i + 1);
        int32_t t = p.table[i];
        p.table[i] = p.table[j];
        p.table[j] = t;
    }
    p.kv.table = p.table;
    return p;
}

static inline void pages_close(pages *p)
{
    munmap(p->kv.pool, (size_t)p->kv.n_pages * p->kv.page_bytes);
    mm3_free(p->table);
}

static inline void kv_put(const mm3_kv *kv, int slot, int token, size_t part_at, int tile, int width, int d, float x)
{
    void *base = mm3_kv_tile(kv, slot, token / MM3_PAGE_TOKENS, part_at, tile, width);
    size_t at = (size_t)(token % MM3_PAGE_TOKENS) * (size_t)width + (size_t)d;
    if (kv->type == MM3_BF16)
        ((uint16_t *)base)[at] = mm3_bf16_from_f32(x);
    else
        ((float *)base)[at] = x;
}

/* Random K, V and index keys for tokens 0..n-1 of a slot; the same values whatever the pages' order. */
static inline void pages_fill(const mm3_kv *kv, int slot, int n, uint64_t seed, fill how)
{
    for (int t = 0; t < n; t++) {
        for (int h = 0; h < kv->n_kv; h++)
            for (int d = 0; d < MM3_HEAD_DIM; d++) {
                kv_put(kv, slot, t, kv->k_at, h, MM3_HEAD_DIM, d, random_value(&seed, how));
                kv_put(kv, slot, t, kv->v_at, h, MM3_HEAD_DIM, d, random_value(&seed, how));
            }
        for (int d = 0; d < kv->d_index; d++)
            kv_put(kv, slot, t, kv->ik_at, 0, kv->d_index, d, random_value(&seed, how));
    }
}

#endif
