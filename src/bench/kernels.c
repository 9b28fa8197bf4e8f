/* Candidates side by side, and beside the machine's ceilings: cold, interleaved, in rounds. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"

enum { MAX_ROUNDS = 60, MIN_ROUNDS = 7, MAX_COPIES = 64, MAX_WAYS = 8 };

/* Times of one m: [candidate][round], and of the ceiling per byte: [way][round]. */
typedef struct trial {
    mm3_device *device;
    const mm3_bench *bench;
    mm3_bench_result *result;
    mm3_ceiling *ceiling;
    mm3_case *copy[MAX_COPIES]; /* owned */
    int n_copies, next;
    void *scratch; /* owned; of the neediest candidate */
    size_t n_scratch;
    double *time; /* owned: [n_rows of this m][MAX_ROUNDS] */
    double per_byte[MAX_WAYS][MAX_ROUNDS];
    double all_per_byte[MAX_WAYS]; /* sums over every m, to name the best way */
    double empty[MAX_ROUNDS];      /* launches that do nothing */
    int n_rounds;
} trial;

/* ---- one launch -------------------------------------------------------------------------------------------------- */

static mm3_status choose(void *user, mm3_op_id op, const void *contract, mm3_choice *choice)
{
    const mm3_bench_row *row = user;
    (void)contract;
    *choice = (mm3_choice){ row->kernel, row->tactic };
    if (op == row->kernel->op) return MM3_OK;
    choice->kernel = mm3_kernel_find(op, row->kernel->device, NULL); /* parts of a split chain */
    choice->tactic = &choice->kernel->tactics[0];
    return MM3_OK;
}

static mm3_status bind(trial *t, const mm3_bench_row *row, mm3_case *c, mm3_part *parts, mm3_call *call, int *n,
                       size_t *need)
{
    mm3_bound bound[MM3_MAX_BOUND];
    MM3_TRY(mm3_bind(mm3_device_info_of(t->device), row->kernel->op, mm3_case_op(c), choose, (void *)(uintptr_t)row,
                     parts, need, bound, n));
    for (int i = 0; i < *n; i++) {
        call[i] = bound[i].call;
        call[i].scratch = t->scratch;
    }
    return MM3_OK;
}

static double timed(trial *t, const mm3_call *call, int n)
{
    double start;
    if (t->result->evicted) mm3_ceiling_evict(t->ceiling);
    start = mm3_now_s();
    mm3_device_run(t->device, call, n);
    return mm3_now_s() - start;
}

static void do_nothing(const mm3_call *call, int i_thread, int n_threads)
{
    (void)call;
    (void)i_thread;
    (void)n_threads;
}

/* On the next copy; seconds, with all but the launch itself done before. */
static mm3_status launch(trial *t, const mm3_bench_row *row, double *seconds)
{
    mm3_part parts[MM3_MAX_PARTS];
    mm3_call call[MM3_MAX_BOUND];
    size_t need;
    int n;
    MM3_TRY(bind(t, row, t->copy[t->next], parts, call, &n, &need));
    t->next = (t->next + 1) % t->n_copies;
    *seconds = timed(t, call, n);
    return MM3_OK;
}

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

/* Pages of outputs that were never touched would be made while the clock runs. */
static void touch_outputs(mm3_op_id op, mm3_case *c)
{
    mm3_operand operand[MM3_MAX_OPERANDS];
    int n = mm3_op_info_of(op)->operands(mm3_case_op(c), operand);
    for (int i = 0; i < n; i++)
        if (operand[i].access == MM3_OUT) memset(*operand[i].at, 0, operand[i].n_bytes);
}

/* Copies of the operation's inputs until they outlast the last cache twice, or memory or their number ends; then the
 * cache is read full between launches instead. */
static mm3_status open_copies(trial *t, int m, size_t room)
{
    const mm3_bench *b = t->bench;
    mm3_bench_result *r = t->result;
    mm3_case_spec spec = { .op = b->op, .shape = b->shape, .fill = MM3_FILL_TRAINED, .no_reference = true };
    size_t bytes = 0, enough = 2 * r->last_cache;
    mm3_shape_set(b->op, &spec.shape, "m", m);
    for (t->n_copies = 0; t->n_copies < MAX_COPIES && bytes <= enough; t->n_copies++) {
        double one;
        spec.seed = b->seed + (uint64_t)t->n_copies;
        if (t->n_copies && bytes / (size_t)t->n_copies * (size_t)(t->n_copies + 1) > room) break;
        MM3_TRY(mm3_case_open(&t->copy[t->n_copies], &spec));
        touch_outputs(b->op, t->copy[t->n_copies]);
        one = mm3_op_info_of(b->op)->bytes(mm3_case_op(t->copy[t->n_copies]));
        bytes += (size_t)one;
        if ((double)MAX_COPIES * one <= (double)enough) { /* never enough: one set will do */
            t->n_copies++;
            break;
        }
    }
    r->n_copies = t->n_copies;
    r->rotated = bytes;
    r->evicted = bytes <= enough;
    t->next = 0;
    return MM3_OK;
}

static void close_copies(trial *t)
{
    for (int i = 0; i < MAX_COPIES; i++) mm3_case_close(&t->copy[i]);
    mm3_free(t->scratch);
    t->scratch = NULL;
    t->n_scratch = 0;
}

/* ---- one m ------------------------------------------------------------------------------------------------------- */

/* Fill in what is known of the row; find out whether it refuses, and how much scratch it needs. */
static mm3_status prepare_row(trial *t, mm3_bench_row *row)
{
    mm3_op_id op = row->kernel->op;
    void *contract = mm3_case_op(t->copy[0]);
    mm3_key key = { .op = op };
    mm3_part parts[MM3_MAX_PARTS];
    mm3_call call[MM3_MAX_BOUND];
    const char *why;
    size_t need;
    int n;
    mm3_op_info_of(op)->key(contract, &key);
    mm3_key_text(&key, row->key, sizeof row->key);
    row->bytes = mm3_op_info_of(op)->bytes(contract);
    row->flops = mm3_op_info_of(op)->flops(contract);
    why = row->kernel->refuses ? row->kernel->refuses(mm3_device_info_of(t->device), contract, row->tactic) : NULL;
    if (why) {
        snprintf(row->refused, sizeof row->refused, "%s", why);
        return MM3_OK;
    }
    MM3_TRY(bind(t, row, t->copy[0], parts, call, &n, &need));
    t->n_scratch = MM3_MAX(t->n_scratch, need);
    return MM3_OK;
}

/* One round: every way of reading, an empty launch, then every candidate, each time beginning with another one. */
static mm3_status run_round(trial *t, mm3_bench_row *row, int n_rows)
{
    int r = t->n_rounds, n_ways = mm3_ceiling_count(t->ceiling);
    size_t window = MM3_MAX((size_t)row[0].bytes, (size_t)64 << 20), n_read;
    for (int i = 0; i < n_ways; i++) {
        int way = (i + r) % n_ways;
        double s = mm3_ceiling_read(t->ceiling, way, window, &n_read);
        t->per_byte[way][r] = s / (double)n_read;
        t->all_per_byte[way] += t->per_byte[way][r];
    }
    t->empty[r] = timed(t, &(mm3_call){ .run = do_nothing }, 1);
    for (int i = 0; i < n_rows; i++) {
        int k = (i + r) % n_rows;
        if (!row[k].refused[0]) MM3_TRY(launch(t, &row[k], &t->time[k * MAX_ROUNDS + r]));
    }
    t->n_rounds++;
    return MM3_OK;
}

/* The way of reading that was fastest in this m's rounds. */
static int best_way(const trial *t)
{
    int best = 0;
    double least = INFINITY;
    for (int w = 0; w < mm3_ceiling_count(t->ceiling); w++) {
        double copy[MAX_ROUNDS], median;
        memcpy(copy, t->per_byte[w], sizeof copy);
        median = mm3_spread_of(copy, t->n_rounds).median;
        if (median >= least) continue;
        least = median;
        best = w;
    }
    return best;
}

static void summarize(const trial *t, mm3_bench_row *row, const double *time)
{
    double ratio[MAX_ROUNDS], copy[MAX_ROUNDS];
    const double *per_byte = t->per_byte[best_way(t)];
    mm3_spread s;
    row->n_rounds = t->n_rounds;
    for (int r = 0; r < t->n_rounds; r++) ratio[r] = per_byte[r] / (time[r] / row->bytes);
    memcpy(copy, time, sizeof *copy * (size_t)t->n_rounds);
    s = mm3_spread_of(copy, t->n_rounds);
    row->time_s = s.median;
    row->mad_s = s.mad;
    row->fraction = mm3_spread_of(ratio, t->n_rounds).median;
}

static mm3_status run_m(trial *t, int m, mm3_bench_row *row, int n_rows, size_t room)
{
    const mm3_bench *b = t->bench;
    int max = b->rounds ? MM3_MIN(b->rounds, MAX_ROUNDS) : MAX_ROUNDS;
    double start, unused;
    MM3_TRY(open_copies(t, m, room));
    for (int i = 0; i < n_rows; i++) MM3_TRY(prepare_row(t, &row[i]));
    t->scratch = mm3_alloc_aligned(t->n_scratch);
    MM3_CHECK(t->scratch, MM3_ERR_NOMEM, "out of memory: %zu bytes of scratch", t->n_scratch);
    for (int i = 0; i < n_rows; i++)
        if (!row[i].refused[0]) MM3_TRY(launch(t, &row[i], &unused)); /* warms code and scratch, not data */
    start = mm3_now_s();
    for (t->n_rounds = 0; t->n_rounds < max;) {
        if (!b->rounds && t->n_rounds >= MIN_ROUNDS && mm3_now_s() - start > b->seconds) break;
        MM3_TRY(run_round(t, row, n_rows));
    }
    for (int i = 0; i < n_rows; i++)
        if (!row[i].refused[0]) summarize(t, &row[i], t->time + i * MAX_ROUNDS);
    t->result->launch_s = MM3_MIN(t->result->launch_s, mm3_spread_of(t->empty, t->n_rounds).median);
    return MM3_OK;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

/* The rows of one m, or only their number. */
static int list_rows(const mm3_bench *b, const char *device, mm3_bench_row *out)
{
    const mm3_kernel *kernel[MM3_MAX_CANDIDATES];
    int n_kernels = MM3_MIN(mm3_kernels_of(b->op, device, kernel, MM3_MAX_CANDIDATES), MM3_MAX_CANDIDATES), n = 0;
    for (int i = 0; i < n_kernels; i++)
        for (int j = 0; j < kernel[i]->n_tactics; j++) {
            if (b->candidate && strcmp(b->candidate, kernel[i]->name) != 0) continue;
            if (b->tactic && strcmp(b->tactic, kernel[i]->tactics[j].name) != 0) continue;
            if (out) out[n] = (mm3_bench_row){ .kernel = kernel[i], .tactic = &kernel[i]->tactics[j] };
            n++;
        }
    return n;
}

/* The ceiling over all rounds of all m. */
static void find_ceiling(const trial *t, mm3_bench_result *out, int n_rounds)
{
    int best = 0;
    for (int w = 1; w < mm3_ceiling_count(t->ceiling); w++)
        if (t->all_per_byte[w] < t->all_per_byte[best]) best = w;
    out->ceiling = n_rounds / t->all_per_byte[best];
    out->ceiling_by = mm3_ceiling_name(t->ceiling, best);
}

static mm3_status run_all(trial *t, int n_per_m, size_t available)
{
    const mm3_bench *b = t->bench;
    mm3_bench_result *out = t->result;
    size_t buffer = MM3_MIN(2 * out->last_cache + ((size_t)64 << 20), available / 4);
    int n_rounds = 0;
    out->may_be_warm = buffer < 2 * out->last_cache;
    MM3_TRY(mm3_ceiling_open(&t->ceiling, t->device, buffer));
    out->peak = mm3_peak_flops(t->device, &out->peak_by);
    for (int i = 0; i < b->n_m; i++) {
        mm3_bench_row *row = out->row + i * n_per_m;
        for (int k = 0; k < n_per_m; k++) row[k].m = b->m[i];
        MM3_TRY(run_m(t, b->m[i], row, n_per_m, available / 2));
        close_copies(t);
        n_rounds += t->n_rounds;
    }
    find_ceiling(t, out, n_rounds);
    out->may_be_warm = out->may_be_warm && out->evicted;
    return MM3_OK;
}

mm3_status mm3_bench_kernels_run(mm3_bench_result *out, const mm3_bench *bench, mm3_device *device)
{
    mm3_status st = MM3_OK;
    const mm3_device_info *info = mm3_device_info_of(device);
    int n_per_m = list_rows(bench, info->kind, NULL);
    trial *t = mm3_calloc(1, sizeof *t);
    *out = (mm3_bench_result){ .last_cache = info->last_cache_bytes, .launch_s = INFINITY };
    MM3_CHECK(t, MM3_ERR_NOMEM, "out of memory for a benchmark");
    if (n_per_m == 0) {
        st = mm3_fail(MM3_ERR_ARG, MM3_HERE, "%s has no candidate %s%s%s on %s; 'mm3 info' lists them",
                      mm3_op_info_of(bench->op)->name, bench->candidate ? bench->candidate : "",
                      bench->tactic ? "/" : "", bench->tactic ? bench->tactic : "", info->kind);
        goto done;
    }
    t->device = device;
    t->bench = bench;
    t->result = out;
    out->n_rows = n_per_m * bench->n_m;
    out->row = mm3_calloc((size_t)out->n_rows, sizeof *out->row);
    t->time = mm3_calloc((size_t)n_per_m * MAX_ROUNDS, sizeof *t->time);
    if (!out->row || !t->time) {
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for a benchmark");
        goto done;
    }
    for (int i = 0; i < bench->n_m; i++) list_rows(bench, info->kind, out->row + i * n_per_m);
    MM3_GOTO(run_all(t, n_per_m, mm3_memory_available()));
done:
    if (t) {
        close_copies(t);
        mm3_ceiling_close(&t->ceiling);
        mm3_free(t->time);
        mm3_free(t);
    }
    if (st != MM3_OK) mm3_bench_kernels_free(out);
    return st;
}

void mm3_bench_kernels_free(mm3_bench_result *result)
{
    mm3_free(result->row);
    result->row = NULL;
    result->n_rows = 0;
}
