/* state: what a step works on. Internal to forward/; made by state.c, used by network.c. */
#ifndef MM3_FORWARD_STATE_H
#define MM3_FORWARD_STATE_H

#include "forward/forward.h"

/* MXFP8 rows, where numerics are w8a8; else NULL. */
typedef struct mm3_mx_rows {
    uint8_t *codes, *scales;
} mm3_mx_rows;

/* Shapes as [rows, columns] of FP32 unless said otherwise; all of it is reused by every layer. */
struct mm3_forward {
    const mm3_model *model; /* borrowed */
    mm3_forward_options options;
    mm3_step_block step;
    int n_token;
    unsigned char *kv_memory; /* owned */
    unsigned char *kv_pool;   /* kv_memory, aligned: [n_pages, page_bytes] */
    size_t page_bytes;
    mm3_kv *kv;            /* owned: [n_layers] */
    unsigned char *memory; /* owned: everything below and the step block */
    size_t n_memory;
    /* m = max_rows, p = pairs = m * experts_per_token, widest intermediate of each kind */
    float *inv_freq;   /* [32] */
    float *cos, *sin;  /* [m, 32] */
    float *x, *y;      /* [m, hidden] residual stream; normed rows */
    float *delta;      /* [m, hidden] what the last block adds to x */
    mm3_mx_rows y_mx;  /* [m, hidden] */
    float *qkv;        /* [m, q|k|v|iq|ik] */
    float *q, *iq;     /* [m, heads, 128]; [m, index heads, index_dim] */
    int32_t *selected; /* [m, kv heads, topk] */
    float *attention;  /* [m, heads * 128] */
    mm3_mx_rows attention_mx;
    float *gate_up; /* [m, 2 * dense or shared intermediate] */
    float *act;     /* [m, that intermediate] */
    mm3_mx_rows act_mx;
    float *router_logits, *expert_weight; /* [m, n_experts]; [m, topk] */
    int32_t *expert, *pair, *begin;       /* [m, topk]; [p]; [n_experts + 1] */
    float *pair_gate_up, *pair_act;       /* [p, 2 * expert intermediate]; [p, that] */
    mm3_mx_rows pair_act_mx;
    float *pair_out;      /* [p, hidden] */
    float *shared;        /* [m, hidden] */
    float *final;         /* [max_logits, hidden] rows whose logits are wanted */
    mm3_mx_rows final_mx; /* the head may be MXFP8 */
};

/* Columns of a layer's fused projection. */
int mm3__qkv_width(const mm3_config *c, bool is_sparse);

#endif
