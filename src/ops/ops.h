/* ops: what is computed. One contract (a struct) and one slow, exact reference per operation.
 * Knows no kernel, no device, no model. This is the folder's public header; each operation has its own pair of
 * files (linear.h, linear.c ...). Read linear.h first, then kernels/kernels.h.
 *
 * Common terms: m token rows; a row with slot -1 is padding. Arrays are row-major, outermost index first, and
 * contiguous unless a field says otherwise. Activations are FP32; MXFP8 rows are codes [m, k] and scale bytes
 * [m, k/32]. All pointers are borrowed.
 */
#ifndef MM3_OPS_H
#define MM3_OPS_H

#include "base/base.h"
#include "ops/types.h"

typedef enum mm3_op_id {
#define OP(name, NAME) MM3_OP_##NAME,
#include "ops/ops.list.h"
#undef OP
    MM3_N_OPS
} mm3_op_id;

/* ---- descriptors: what check, bench and the tuner need to know of any operation ---------------------------------- */

/* The stage key: every field that a launch depends on, in a fixed order, as name=value. */
enum { MM3_MAX_KEY_FIELDS = 16 };
typedef struct mm3_key {
    mm3_op_id op;
    int n;
    struct {
        const char *name;
        const char *text; /* the value where it is a word ("mx"); NULL where it is a number */
        int64_t number;
    } field[MM3_MAX_KEY_FIELDS];
} mm3_key;
void mm3_key_number(mm3_key *key, const char *name, int64_t value);
void mm3_key_word(mm3_key *key, const char *name, const char *value);
/* "linear m=8 n=9216 k=6144 w=mx act=w8a8" into text[n]; returns the length as snprintf does. */
int mm3_key_text(const mm3_key *key, char *text, size_t n);

/* One array that an operation reads or writes. `at` is the address of the pointer in the contract struct, so that
 * a harness can place the array elsewhere. */
typedef enum mm3_access { MM3_IN, MM3_OUT, MM3_INOUT } mm3_access;
typedef struct mm3_operand {
    const char *name; /* the field's name */
    void **at;
    size_t n_bytes;
    mm3_dtype type; /* element type; MM3_U8 for codes and scale bytes */
    mm3_access access;
    bool weight; /* an input that stays the same from step to step */
} mm3_operand;
enum { MM3_MAX_OPERANDS = 24 };

/* A chain's sub-stages, built from the chain's own struct. */
enum { MM3_MAX_PARTS = 2, MM3_MAX_OP_BYTES = 512 };
typedef struct mm3_part {
    mm3_op_id op;
    union {
        max_align_t align;
        unsigned char bytes[MM3_MAX_OP_BYTES]; /* the sub-stage's contract struct */
    } u;
} mm3_part;

typedef struct mm3_op_info {
    const char *name;
    size_t n_bytes; /* of the contract struct, at most MM3_MAX_OP_BYTES */
    /* Append the fields of the key; its op is set already. */
    void (*key)(const void *op, mm3_key *key);
    /* Arrays in a fixed order, but for weights that are too many (moe_linear's experts). */
    int (*operands)(void *op, mm3_operand *out);
    /* The i-th of those others; false beyond the last. NULL: `operands` lists all. */
    bool (*more_weights)(const void *op, int i, const void **at, size_t *n_bytes);
    /* Compute every output in double, round once. Single-threaded, obvious, slow.
     *   magnitude  NULL, or one double per element of the operation's *first* FP32 output, in its order: the size of
     * the terms that were summed to make it (what a rounding error is relative to); see docs/numerics.md */
    void (*reference)(const void *op, double *magnitude);
    /* Bytes a launch must move at least: each input once, each output once, of a weight only what is hit. */
    double (*bytes)(const void *op);
    /* Multiply-adds times two, 0 where it is not what bounds the operation. */
    double (*flops)(const void *op);
    /* Chains: fill parts[], return how many; NULL for other operations. */
    int (*split)(const void *op, mm3_part *parts);
} mm3_op_info;

const mm3_op_info *mm3_op_info_of(mm3_op_id op);
/* The operation of that name, or -1. */
int mm3_op_find(const char *name);

#include "ops/add_rmsnorm.h"
#include "ops/add_rmsnorm_quantize.h"
#include "ops/attention.h"
#include "ops/embed.h"
#include "ops/gather.h"
#include "ops/index_select.h"
#include "ops/linear.h"
#include "ops/moe_linear.h"
#include "ops/moe_sum.h"
#include "ops/qk_norm_rope.h"
#include "ops/quantize.h"
#include "ops/rope_angles.h"
#include "ops/router.h"
#include "ops/sample.h"
#include "ops/swiglu.h"
#include "ops/swiglu_quantize.h"

#endif
