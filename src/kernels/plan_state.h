/* plan_state: how a plan is kept. Internal to kernels/. */
#ifndef MM3_KERNELS_PLAN_STATE_H
#define MM3_KERNELS_PLAN_STATE_H

#include "kernels/kernels.h"

/* A "crashed" line; its texts are owned. */
typedef struct mm3__crash {
    char *key, *choice;
    mm3_op_id op; /* of the key */
    char source[9];
} mm3__crash;

/* plan.h's plan. */
struct mm3_plan {
    mm3_plan_head head;
    mm3_decision *decision; /* owned, and their texts; ordered by operation, then key */
    int n, max;
    mm3_step_verdict *step; /* owned; ordered by step, then age */
    int n_steps, max_steps;
    mm3__crash *crash; /* owned; in the order they were found */
    int n_crashes, max_crashes;
};

/* For many at once: put copies behind the others, out of order, and order all in the end; till then none of them is
 * found. Of the same key no two may be added, nor one that the plan has. What is wrong with verdicts on a step is put
 * right at the end: mm3_plan_set_step says what.
 * errors  MM3_ERR_NOMEM: order what is there */
MM3_MUST_USE mm3_status mm3__plan_add(mm3_plan *plan, const mm3_decision *decision);
MM3_MUST_USE mm3_status mm3__plan_add_step(mm3_plan *plan, const mm3_step_verdict *verdict);
void mm3__plan_order(mm3_plan *plan);

/* The decisions on an operation are decision[*begin..*end). */
void mm3__plan_of_op(const mm3_plan *plan, mm3_op_id op, int *begin, int *end);

/* The operation of a key; MM3_N_OPS if its first word is none. */
mm3_op_id mm3__op_of_key(const char *key);

/* mm3_hash over texts, each ended by a newline; from MM3_HASH_START at first. */
uint32_t mm3__hash_text(uint32_t hash, const char *text);

#endif
