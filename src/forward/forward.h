/* forward: the MiniMax-M3 network as straight-line calls of operations, its step buffers, and the layout of KV pages.
 * Names no kernel; sees neither the tuner nor text. Read network.c for the model itself. */
#ifndef MM3_FORWARD_H
#define MM3_FORWARD_H

#include "base/base.h"
#include "kernels/kernels.h"
#include "model/model.h"

/* The network over one model's weights, with the buffers of its steps. One step at a time. */
typedef struct mm3_forward mm3_forward;

/* How large steps may be. */
typedef struct mm3_forward_options {
    mm3_numerics numerics;
    int max_rows;      /* token rows of the largest step */
    int max_logits;    /* rows of logits of the largest step */
    mm3_dtype kv_type; /* MM3_F32 or MM3_BF16 */
    int n_slots;       /* sequences that may be in one step */
    int max_pages;     /* pages of the longest sequence */
    int n_pages;       /* pages in all */
} mm3_forward_options;

/* Bytes of one KV page: K, V and index keys of 128 tokens of all layers. */
size_t mm3_page_bytes(const mm3_config *config, mm3_dtype kv_type);

/* Buffers for steps of the given sizes. The model is borrowed.
 * errors  MM3_ERR_NOMEM */
MM3_MUST_USE mm3_status mm3_forward_open(mm3_forward **out, const mm3_model *model, const mm3_forward_options *options);
void mm3_forward_close(mm3_forward **forward);
/* Bytes held: step buffers, and the KV pool. */
size_t mm3_forward_step_buffer_bytes(const mm3_forward *forward);
size_t mm3_forward_kv_bytes(const mm3_forward *forward);

/* For measuring where there are no sequences: put numbers of an ordinary size into n pages from `first` on; give their
 * memory back to the system (they read as zeros then). */
void mm3_forward_fill_pages(mm3_forward *forward, int first, int n);
void mm3_forward_clear_pages(mm3_forward *forward, int first, int n);

/* All that changes from step to step; kernels read and write it in place, so a recorded step never changes. */
typedef struct mm3_step_block {
    /* in, per token row */
    int32_t *token, *slot, *position; /* [max_rows]; slot -1: padding */
    /* in, per row of logits: the token row it belongs to (-1: none), with that row's slot and position */
    int32_t *logit_row, *logit_slot, *logit_position; /* [max_logits] */
    int32_t *table;                                   /* [n_slots, max_pages] page ids */
    mm3_sample_row *sample;                           /* [max_logits] */
    int32_t *counts; /* [n_slots, vocab] for penalties; NULL until mm3_forward_need_counts */
    /* out */
    float *logits; /* [max_logits, vocab] */
    int32_t *next; /* [max_logits] sampled token, -1 where there is none */
    float *logprob;
} mm3_step_block;
/* Borrowed; the same as long as the network is open. */
mm3_step_block *mm3_forward_step(mm3_forward *forward);
/* Make room for penalty counts: zeros, all rows.
 * errors  MM3_ERR_NOMEM */
MM3_MUST_USE mm3_status mm3_forward_need_counts(mm3_forward *forward);

/* What one step computes. */
typedef struct mm3_step_shape {
    int m;        /* token rows */
    int n_logits; /* rows of logits: 0; or m, then logit row i is token row i and logit_row is not read; or fewer */
    bool sample;  /* sample from the logits */
    int context;  /* no position of the step reaches this */
} mm3_step_shape;

/* The least default graph shape (design.md, section 2) of at least m rows; 0 where all have fewer. What a batch is
 * padded to in an engine, whose shapes may be given: mm3__decode_graph_for in engine/scheduler.c. */
int mm3_graph_shape(int m);

/* Issue the operations of one step to a recorder, in order.
 * errors  those of the recorder
 * proof   tests/unit/test_forward.c, against tests/support/ref_net.c; tests/golden, against the reference
 *         implementation */
MM3_MUST_USE mm3_status mm3_forward_issue(mm3_forward *forward, mm3_recorder *recorder, const mm3_step_shape *shape);
/* Issue only the sampling of n rows of the step block's logits (logit_slot and logit_position are read). */
MM3_MUST_USE mm3_status mm3_forward_issue_sample(mm3_forward *forward, mm3_recorder *recorder, int n);
/* Ids from n on have no text and are never sampled; vocab_size at first. */
void mm3_forward_set_n_token(mm3_forward *forward, int n);

#endif
