/* operand: how the descriptors list their arrays, and what the references read of weights and KV pages. Internal to
 * this folder. */
#ifndef MM3_OPS_OPERAND_H
#define MM3_OPS_OPERAND_H

#include "ops/ops.h"

/* Append one array to out[*n]; `at` is the address of the contract's pointer. */
static inline void mm3__operand(mm3_operand *out, int *n, const char *name, const void *at, size_t n_bytes,
                                mm3_dtype type, mm3_access access)
{
    out[(*n)++] =
        (mm3_operand){ .name = name, .at = (void **)(uintptr_t)at, .n_bytes = n_bytes, .type = type, .access = access };
}

/* The same for an input that stays from step to step. */
static inline void mm3__operand_weight(mm3_operand *out, int *n, const char *name, const void *at, size_t n_bytes,
                                       mm3_dtype type)
{
    mm3__operand(out, n, name, at, n_bytes, type, MM3_IN);
    out[*n - 1].weight = true;
}

/* The pool and the page table of a contract. */
static inline void mm3__kv_operands(mm3_operand *out, int *n, mm3_kv *kv, mm3_access access)
{
    mm3__operand(out, n, "kv.pool", &kv->pool, (size_t)kv->n_pages * kv->page_bytes, kv->type, access);
    mm3__operand(out, n, "kv.table", &kv->table, (size_t)kv->n_slots * (size_t)kv->max_pages * sizeof(int32_t), MM3_I32,
                 MM3_IN);
}

/* Bytes of [m, k] elements of four bytes. */
static inline size_t mm3__f32s(int m, int k) { return (size_t)m * (size_t)k * sizeof(float); }

/* Bytes of one weight with its scales: values, or codes and one scale byte per 32. */
static inline size_t mm3__weight_bytes(const mm3_weight *w, int k)
{
    size_t n = (size_t)w->n * (size_t)k;
    if (w->type == MM3_MX) return n + n / MM3_MX_BLOCK;
    return n * (w->type == MM3_BF16 ? 2 : 4);
}

/* Element c of row j, exactly. */
static inline double mm3__weight_value(const mm3_weight *w, int k, int j, int c)
{
    size_t at = (size_t)j * (size_t)k + (size_t)c;
    uint8_t byte;
    if (w->type == MM3_F32) return ((const float *)w->data)[at];
    if (w->type == MM3_BF16) return mm3_bf16_to_f32(((const uint16_t *)w->data)[at]);
    byte = w->scales[at / MM3_MX_BLOCK];
    return byte == 255 ? (double)NAN : ldexp(mm3_e4m3_to_f32(((const uint8_t *)w->data)[at]), byte - 127);
}

/* Element `at` of rows in MXFP8, exactly. k % 32 == 0, so a block never crosses a row. */
static inline double mm3__mx_value(const uint8_t *codes, const uint8_t *scales, size_t at)
{
    uint8_t byte = scales[at / MM3_MX_BLOCK];
    return byte == 255 ? (double)NAN : ldexp(mm3_e4m3_to_f32(codes[at]), byte - 127);
}

/* Bytes of one element of the pages. */
static inline size_t mm3__kv_element(const mm3_kv *kv) { return kv->type == MM3_BF16 ? 2 : 4; }

/* Element d of a token's row in a tile (see mm3_kv_tile). */
static inline double mm3__kv_value(const mm3_kv *kv, int slot, int token, size_t part_at, int tile, int width, int d)
{
    const void *base = mm3_kv_tile(kv, slot, token / MM3_PAGE_TOKENS, part_at, tile, width);
    size_t i = (size_t)(token % MM3_PAGE_TOKENS) * (size_t)width + (size_t)d;
    return kv->type == MM3_BF16 ? (double)mm3_bf16_to_f32(((const uint16_t *)base)[i])
                                : (double)((const float *)base)[i];
}

#endif
