/* types: the operands that several contracts share. Weights, KV pages, element types.
 * Includes mx/mx.h for the number formats. */
#ifndef MM3_OPS_TYPES_H
#define MM3_OPS_TYPES_H

#include "mx/mx.h"

/* Element types of arrays; MX: E4M3 codes with a scale byte per 32. */
typedef enum mm3_dtype { MM3_F32, MM3_BF16, MM3_MX, MM3_I32, MM3_U8 } mm3_dtype;
const char *mm3_dtype_name(mm3_dtype t); /* "f32", "bf16", "mx", "i32", "u8" */

/* How a linear with MXFP8 weights takes its rows: quantized, or as FP32. */
typedef enum mm3_act { MM3_ACT_W8A8, MM3_ACT_W8A16 } mm3_act;
const char *mm3_act_name(mm3_act a); /* "w8a8", "w8a16" */

/* Rows [n, k] of a weight matrix, in their released row-major layout. */
typedef struct mm3_weight {
    const void *data;      /* MX: E4M3 codes [n, k]; BF16 or F32: values [n, k] */
    const uint8_t *scales; /* MX: E8M0 [n, k/32], any byte 0..255; else NULL */
    int n;
    mm3_dtype type; /* MM3_MX, MM3_BF16 or MM3_F32 */
} mm3_weight;

/* Channels of a head, those of them that are rotated, tokens of a KV page. source: m3 checkpoint (config.c checks) */
enum { MM3_HEAD_DIM = 128, MM3_ROTARY_DIM = 64, MM3_PAGE_TOKENS = 128 };

/* The KV pages of one layer, as kernels see them. A page holds 128 tokens of all layers; token t of a sequence is
 * in page table[slot * max_pages + t / 128], at row t % 128. */
typedef struct mm3_kv {
    unsigned char *pool; /* [n_pages, page_bytes] */
    size_t page_bytes;
    size_t k_at, v_at;    /* bytes from the page's start: K and V, each [n_kv, 128 tokens, 128] of `type` */
    size_t ik_at;         /* index keys [128 tokens, d_index] of `type` */
    const int32_t *table; /* [n_slots, max_pages] page ids */
    int n_pages, n_slots, max_pages;
    int n_kv, d_index;
    mm3_dtype type; /* MM3_F32 or MM3_BF16 */
} mm3_kv;

/* Address of the [128, width] tile of a page; part_at is k_at, v_at or ik_at, tile the KV head (0 for ik). */
static inline void *mm3_kv_tile(const mm3_kv *kv, int slot, int page, size_t part_at, int tile, int width)
{
    size_t element = kv->type == MM3_BF16 ? 2 : 4;
    size_t id = (size_t)kv->table[(size_t)slot * (size_t)kv->max_pages + (size_t)page];
    return kv->pool + id * kv->page_bytes + part_at + (size_t)tile * MM3_PAGE_TOKENS * (size_t)width * element;
}

#endif
