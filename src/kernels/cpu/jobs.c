/* How linear and moe_linear fall into jobs, and which thread gets which. */
#include "kernels/cpu/cpu.h"

bool mm3__linear_reads_codes(const mm3_linear *op)
{
    for (int s = 0; s < op->n_segments; s++)
        if (op->segment[s].type == MM3_MX && op->act == MM3_ACT_W8A8) return true;
    return false;
}

bool mm3__moe_linear_reads_codes(const mm3_moe_linear *op)
{
    for (int i = 0; i < op->n_expert * op->n_segments; i++)
        if (op->weights[i].type == MM3_MX && op->act == MM3_ACT_W8A8) return true;
    return false;
}

/* The jobs of rows [begin, end) of a list of segments, `out` being column 0. */
static void segment_jobs(mm3__job *job, mm3_act act, const mm3_weight *segment, int n_segments, int begin, int end,
                         float *out, mm3__job_run *run, void *user)
{
    for (int s = 0, at = 0; s < n_segments; at += segment[s++].n) {
        int low = MM3_MAX(begin, at), high = MM3_MIN(end, at + segment[s].n);
        if (low >= high) continue;
        job->w = &segment[s];
        job->codes = segment[s].type == MM3_MX && act == MM3_ACT_W8A8;
        job->first = low - at;
        job->n = high - low;
        job->out = out + low;
        run(job, user);
    }
}

void mm3__linear_jobs(const mm3_linear *op, int i_thread, int n_threads, mm3__job_run *run, void *user)
{
    mm3__job job = {
        .k = op->k, .x = op->x, .x_codes = op->x_codes, .x_scales = op->x_scales, .n_rows = op->m, .ld = (size_t)op->n
    };
    int begin, end;
    mm3_share(op->n, i_thread, n_threads, &begin, &end);
    segment_jobs(&job, op->act, op->segment, op->n_segments, begin, end, op->out, run, user);
}

void mm3__moe_linear_jobs(const mm3_moe_linear *op, int i_thread, int n_threads, mm3__job_run *run, void *user)
{
    mm3__job job = { .k = op->k,
                     .x = op->x,
                     .x_codes = op->x_codes,
                     .x_scales = op->x_scales,
                     .pairs_per_row = op->by_pair ? 1 : op->top_k,
                     .ld = (size_t)op->n };
    int n_hit = 0, begin, end, at = 0;
    for (int e = 0; e < op->n_expert; e++) n_hit += op->begin[e] < op->begin[e + 1];
    mm3_share(n_hit * op->n, i_thread, n_threads, &begin, &end);
    for (int e = 0; e < op->n_expert && at < end; e++) {
        if (op->begin[e] == op->begin[e + 1]) continue;
        job.pair = op->pair + op->begin[e];
        job.n_rows = op->begin[e + 1] - op->begin[e];
        segment_jobs(&job, op->act, op->weights + (size_t)e * (size_t)op->n_segments, op->n_segments, begin - at,
                     end - at, op->out, run, user);
        at += op->n;
    }
}
