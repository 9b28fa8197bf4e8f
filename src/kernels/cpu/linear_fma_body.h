/* linear_fma_body: FP32 rows times BF16 or F32 weights (head, router), a fused multiply-add per weight and row.
 * Included after LANES by one .c file per candidate.
 *
 * cost  BF16, per LANES weights: a load that widens, a shift, and one FMA per input row; so memory bounds it to about
 *       4 rows on AVX-512. ROWS weight rows meet COLUMNS input rows: ROWS * COLUMNS sums stay in registers.
 * Each sum has LANES lanes over k in order, whatever the number of rows: a row's bits are its own. */
#ifndef MM3_KERNELS_CPU_LINEAR_FMA_BODY_H
#define MM3_KERNELS_CPU_LINEAR_FMA_BODY_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/lanes.h"

enum { ROWS = 4, COLUMNS = 4, V_AHEAD = 0 };

LANES_INLINE vf load_weights(const void *w, size_t at, bool is_bf16)
{
    return is_bf16 ? vf_load_bf16((const uint16_t *)w + at) : vf_load((const float *)w + at);
}

static float weight_at(const void *w, size_t at, bool is_bf16)
{
    return is_bf16 ? mm3_bf16_to_f32(((const uint16_t *)w)[at]) : ((const float *)w)[at];
}

/* n_rows weight rows times n_columns input rows; constants where it is called, so that sums live in registers. */
LANES_INLINE void block(const mm3__job *job, int first, int n_rows, int column, int n_columns, bool is_bf16, int ahead)
{
    size_t k = (size_t)job->k, whole = k / LANES * LANES, element = is_bf16 ? 2 : 4;
    const float *x[COLUMNS];
    size_t at[ROWS];
    vf sum[ROWS][COLUMNS];
    for (int j = 0; j < n_columns; j++) x[j] = job->x + mm3__job_input(job, column + j) * k;
    for (int i = 0; i < n_rows; i++) {
        at[i] = (size_t)(job->first + first + i) * k;
        for (int j = 0; j < n_columns; j++) sum[i][j] = vf_set(0.0f);
    }
    for (size_t c = 0; c < whole; c += LANES) {
        vf w[ROWS];
        for (int i = 0; i < n_rows; i++) {
            if (ahead && column == 0) /* the weights come from memory once, for the first input rows */
                __builtin_prefetch((const char *)job->w->data + (at[i] + c) * element + ahead, 0, 0);
            w[i] = load_weights(job->w->data, at[i] + c, is_bf16);
        }
        for (int j = 0; j < n_columns; j++) {
            vf y = vf_load(x[j] + c);
            for (int i = 0; i < n_rows; i++) sum[i][j] = vf_fma(w[i], y, sum[i][j]);
        }
    }
    for (int i = 0; i < n_rows; i++)
        for (int j = 0; j < n_columns; j++) {
            float total = vf_sum(sum[i][j]);
            for (size_t c = whole; c < k; c++) total += weight_at(job->w->data, at[i] + c, is_bf16) * x[j][c];
            mm3__job_output(job, column + j)[first + i] = total;
        }
}

LANES_INLINE void rows_of(const mm3__job *job, int first, int n_rows, bool is_bf16, int ahead)
{
    int j = 0;
    for (; j + COLUMNS <= job->n_rows; j += COLUMNS) block(job, first, n_rows, j, COLUMNS, is_bf16, ahead);
    switch (job->n_rows - j) {
    case 3:
        block(job, first, n_rows, j, 3, is_bf16, ahead);
        break;
    case 2:
        block(job, first, n_rows, j, 2, is_bf16, ahead);
        break;
    case 1:
        block(job, first, n_rows, j, 1, is_bf16, ahead);
        break;
    default:
        break;
    }
}

LANES_INLINE void job_of(const mm3__job *job, bool is_bf16, int ahead)
{
    int i = 0;
    for (; i + ROWS <= job->n; i += ROWS) rows_of(job, i, ROWS, is_bf16, ahead);
    for (; i < job->n; i++) rows_of(job, i, 1, is_bf16, ahead);
}

static void run_job(const mm3__job *job, void *user)
{
    const mm3_tactic *tactic = user;
    int ahead = tactic->v[V_AHEAD];
    if (job->w->type == MM3_BF16)
        job_of(job, true, ahead);
    else
        job_of(job, false, ahead);
}

static void run(const mm3_call *call, int i_thread, int n_threads)
{
    mm3__linear_jobs(call->op, i_thread, n_threads, run_job, (void *)(uintptr_t)call->tactic);
}

static const char *refuses_types(const mm3_linear *op)
{
    for (int i = 0; i < op->n_segments; i++)
        if (op->segment[i].type == MM3_MX) return "is for BF16 and F32 weights only";
    return NULL;
}

static const mm3_tactic tactics[] = {
    { .name = "plain", .row_invariant = true },
    { .name = "nta2k", .v = { 2048 }, .row_invariant = true },
};

#endif
