/* cases: how a case is built. Guarded arrays, random numbers, fills, the table of operations' shapes, judges.
 * Internal to this folder. */
#ifndef MM3_TUNE_CASES_H
#define MM3_TUNE_CASES_H

#include "tune/tune.h"

/* ---- random numbers: a function of (seed, tag, row) alone (fill.c) ----------------------------------------------- */

/* A generator (SplitMix64), and one for a row of the array called `tag`. */
typedef struct mm3__rng {
    uint64_t at;
} mm3__rng;
mm3__rng mm3__rng_of(uint64_t seed, const char *tag, int64_t row);
/* 64 random bits. */
static inline uint64_t mm3__next(mm3__rng *r)
{
    uint64_t z = r->at += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
/* 0 .. n-1 */
static inline int mm3__below(mm3__rng *r, int n) { return (int)((mm3__next(r) >> 32) * (uint64_t)n >> 32); }
/* Mean 0, variance 1, and always within 3.5. */
float mm3__normal(mm3__rng *r);

/* ---- guarded arrays (guard.c) ------------------------------------------------------------------------------------ */

/* Where an array lies within its mapping, which no-access pages enclose. */
typedef enum mm3__place {
    MM3__AT_PAGE_END, /* its last byte is the last one that may be touched */
    MM3__AT_ODD_START /* one element after the first byte that may be touched: aligned to its element, to no more */
} mm3__place;

/* An array between no-access pages. */
typedef struct mm3__area {
    unsigned char *map;   /* owned mapping */
    size_t n_map, n_room; /* with and without the no-access pages */
    unsigned char *data;  /* n_bytes within it */
    size_t n_bytes, align;
} mm3__area;
/* Zeroed, writable, at the page's end. False, and the area closed, when out of memory. */
bool mm3__area_open(mm3__area *a, size_t n_bytes, size_t align);
/* Harmless where it is closed. */
void mm3__area_close(mm3__area *a);
/* Put the data elsewhere in the mapping; its content comes along with `keep`, else it is undefined. */
void mm3__area_move(mm3__area *a, mm3__place place, bool keep);
/* From now on a write is a fault; or no more. */
void mm3__area_protect(mm3__area *a, bool read_only);
/* Fill all around the data with a pattern, and ask whether it is still there. */
void mm3__area_paint(mm3__area *a);
bool mm3__area_is_intact(const mm3__area *a);

/* Call fn(arg); false if it touched memory that it may not: then *address says where. Nests not. Threads may each. */
bool mm3__guarded(void (*fn)(void *arg), void *arg, const unsigned char **address);

/* ---- a case (case.c) --------------------------------------------------------------------------------------------- */

/* One array of a case's contract. */
typedef struct mm3__array {
    const char *name;
    void **at; /* the pointer to set when the array moves */
    mm3__area area;
    mm3_dtype type;
    mm3_access access;
    bool weight;
    bool listed;            /* the descriptor must list it */
    size_t row_bytes;       /* bytes per token row; 0: not by row */
    unsigned char *initial; /* owned; MM3_INOUT: content before the launch */
    unsigned char *want;    /* owned; outputs: what the reference wrote */
} mm3__array;

/* tune.h's case: the contract struct and its arrays. */
struct mm3_case {
    mm3_case_spec spec;
    const mm3_op_info *info;
    union {
        max_align_t align;
        unsigned char bytes[MM3_MAX_OP_BYTES];
#define OP(name, NAME) mm3_##name name;
#include "ops/ops.list.h"
#undef OP
    } op;
    mm3__array *array; /* owned */
    int n_arrays, max_arrays;
    size_t n_bytes;    /* of all arrays */
    double *magnitude; /* owned; of the first FP32 output */
    double *aside; /* owned, or NULL: what bounds need besides, per element of that output; see finish() of the kind */
    mm3_arena arena;
};

enum { MM3__LARGE = 8 << 20 }; /* bytes of a case from which on it is placed once, not twice */

/* The id that the content of row i follows from. */
static inline int mm3__row_id(const mm3_case *c, int i)
{
    return c->spec.first_row + (c->spec.reversed ? c->spec.shape.v[0] - 1 - i : i);
}

/* Make an array of the contract: sets *at. NULL when out of memory. The descriptor must list it, unless `name` is in
 * parentheses. row_bytes: 0, or n_bytes is m of it. */
void *mm3__array_add(mm3_case *c, const char *name, const void *at, size_t n_bytes, size_t row_bytes, mm3_dtype type,
                     mm3_access access);
/* The same for structs, which need more alignment than their bytes say. */
void *mm3__array_structs(mm3_case *c, const char *name, const void *at, size_t n_bytes, size_t row_bytes);
/* The same, [m, width] elements. */
void *mm3__array_rows(mm3_case *c, const char *name, const void *at, int width, mm3_dtype type, mm3_access access);
/* NULL if there is none of that name. */
mm3__array *mm3__array_find(const mm3_case *c, const char *name);
/* Return MM3_ERR_NOMEM unless p is something. Wants a mm3_case *c. */
#define MM3__NEED(p) MM3_CHECK((p) != NULL, MM3_ERR_NOMEM, "out of memory for a case of %s", c->info->name)

/* Bytes of an element. */
static inline size_t mm3__size_of(mm3_dtype t) { return t == MM3_BF16 ? 2 : t == MM3_F32 || t == MM3_I32 ? 4 : 1; }

/* ---- fills (fill.c) ---------------------------------------------------------------------------------------------- */

/* n values of row `row` of the array called tag. */
void mm3__fill_row(mm3_fill fill, uint64_t seed, const char *tag, int64_t row, float *dst, int n);
/* [m, n] by the rows' ids. */
void mm3__fill_rows(const mm3_case *c, const char *tag, float *dst, int n);
/* One row of codes and scale bytes; rows of weights and of activations differ so that their products are in range. */
void mm3__fill_mx_row(mm3_fill fill, uint64_t seed, const char *tag, int64_t row, bool weight, uint8_t *codes,
                      uint8_t *scales, int k);
/* Arrays of a weight of w->n rows and w->type (both set), filled. `tag` names its content; its arrays are called
 * name[0] and name[1]. */
mm3_status mm3__weight_make(mm3_case *c, const char *const name[2], const char *tag, mm3_weight *w, int k);
/* Slots of the rows: with `pad`, rows whose id is 2 mod 3 are padding. */
bool mm3__row_is_padding(const mm3_case *c, int i, int pad);
mm3_status mm3__slots_make(mm3_case *c, const char *name, const int32_t **at, int pad);

/* ---- the table of cases (shape.c), one entry per operation (cases_*.c) ------------------------------------------- */

/* A field of a shape. */
typedef struct mm3__field {
    const char *name, *words; /* words: "mx bf16 f32" where the value is one of these; else NULL */
    int fallback, low, high;
} mm3__field;
/* How cases of one operation are made. v[n_fields] are the values of a shape. */
typedef struct mm3__case_kind {
    const mm3__field *field; /* the first is m */
    int n_fields;
    const char *bench;                          /* what mm3 bench measures, at every m: M3's own shape */
    const char *(*contradiction)(const int *v); /* why these values do not go together, or NULL */
    /* Fill the contract and make its arrays, inputs filled. errors  MM3_ERR_NOMEM */
    mm3_status (*build)(mm3_case *c, const int *v);
    /* After the reference: what judges need besides (NULL: nothing). */
    mm3_status (*finish)(mm3_case *c);
} mm3__case_kind;
/* Never NULL. */
const mm3__case_kind *mm3__case_kind_of(mm3_op_id op);
#define OP(name, NAME) extern const mm3__case_kind mm3__##name##_case;
#include "ops/ops.list.h"
#undef OP

/* ---- judges: is an output right? (tolerance.c holds the table, judge*.c the comparisons) ------------------------- */

/* Below. */
typedef struct mm3__tolerance mm3__tolerance;
/* Compare output `a` of a case that was run; on a fault set v->why and return false; keep v->worst the largest part of
 * the tolerance that was used. */
typedef bool mm3__judge(const mm3_case *c, const mm3__array *a, const mm3__tolerance *t, const mm3_kernel *kernel,
                        mm3_verdict *v);
typedef double mm3__bound(const mm3_case *c, const mm3__array *a, size_t i, const mm3_kernel *kernel);
/* A line of the table: how one output is judged, and the error model in words. */
struct mm3__tolerance {
    mm3_op_id op;
    const char *output;
    mm3__judge *judge;
    mm3__bound *bound; /* judges of values and of ranks; NULL: bits must agree */
    const char *model;
};
/* The line of an output. */
const mm3__tolerance *mm3__tolerance_of(mm3_op_id op, const char *output);
/* Judge every output of a case that was run; false, with v->why, at the first that is wrong. */
bool mm3__judge_all(const mm3_case *c, const mm3_kernel *kernel, mm3_verdict *v);

/* The comparisons: bit for bit; values within a bound; KV rows; codes of the y that is there; codes of some y within
 * its bound; and of the operations that choose. */
mm3__judge mm3__judge_equal, mm3__judge_value, mm3__judge_kv, mm3__judge_codes_of_y, mm3__judge_codes_near,
    mm3__judge_router, mm3__judge_selected, mm3__judge_sample;
/* Judged together with another output of the operation, or not at all because its content is undefined. */
mm3__judge mm3__judge_elsewhere, mm3__judge_undefined;
bool mm3__wrong(mm3_verdict *v, const char *fmt, ...) MM3_PRINTF(2, 3); /* sets why, returns false */
/* Is `got` right where `want` is wanted within `bound`? NaN exactly where it is wanted; keeps v->worst. */
bool mm3__value_is_right(double got, double want, double bound, bool may_overflow, double *worst);

#define MM3__U 0x1p-24 /* unit round-off of FP32 */
/* Bound of n roundings, one after the other: n u / (1 - n u). */
static inline double mm3__roundings(double n) { return n * MM3__U / (1 - n * MM3__U); }

#endif
