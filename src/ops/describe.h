/* describe: small helpers for descriptors that have optional arrays and KV pages. For files of ops/ only. */
#ifndef MM3_OPS_DESCRIBE_H
#define MM3_OPS_DESCRIBE_H

#include "ops/ops.h"

/* Append an operand; an array that is NULL is left out. Returns how many there are now.
 *   at  address of the pointer in the contract struct */
static inline int mm3__operand(mm3_operand *out, int n, const char *name, void *at, size_t n_bytes, mm3_dtype type,
                               mm3_access access)
{
    if (!*(void **)at) return n;
    out[n] = (mm3_operand){ .name = name, .at = at, .n_bytes = n_bytes, .type = type, .access = access };
    return n + 1;
}

/* The pool and the page table of a contract. */
static inline int mm3__kv_operands(mm3_operand *out, int n, mm3_kv *kv, mm3_access access)
{
    n = mm3__operand(out, n, "kv.pool", &kv->pool, (size_t)kv->n_pages * kv->page_bytes, kv->type, access);
    return mm3__operand(out, n, "kv.table", &kv->table, (size_t)kv->n_slots * (size_t)kv->max_pages * sizeof(int32_t),
                        MM3_I32, MM3_IN);
}

static inline size_t mm3__kv_element(const mm3_kv *kv) { return kv->type == MM3_BF16 ? 2 : 4; }

/* Element d of a token's row in a tile (see mm3_kv_tile). */
static inline double mm3__kv_value(const mm3_kv *kv, int slot, int token, size_t part_at, int tile, int width, int d)
{
    const void *base = mm3_kv_tile(kv, slot, token / MM3_PAGE_TOKENS, part_at, tile, width);
    size_t i = (size_t)(token % MM3_PAGE_TOKENS) * (size_t)width + (size_t)d;
    return kv->type == MM3_BF16 ? (double)mm3_bf16_to_f32(((const uint16_t *)base)[i])
                                : (double)((const float *)base)[i];
}

static inline size_t mm3__f32s(int m, int k) { return (size_t)m * (size_t)k * sizeof(float); }

#endif
