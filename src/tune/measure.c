/* Timing as deployed: a graph that launches one candidate on all contracts that share the key, in step order, on the
 * network's own buffers. The clock is read inside the graph, when all threads are awake. Where a whole step does not
 * stay in the last cache but these contracts would, what stays from step to step is made cold in between: weights and
 * KV rows to be written are dropped from the caches; for what reads the KV cache, whose rows lie anywhere, the caches
 * are filled with other bytes and the activations read again.
 *
 *   [drop the weights, or: stream the rest of a step, read the activations]  begin  launch launch launch ...  end */
#include <string.h>

#include "tune/tuner.h"

enum { MAX_STATES = 16, MAX_REPEAT = 64, N_BATCHES = 3 };
static const double SHORT_S = 40e-6; /* a measurement lasts at least this long, where nothing must be evicted */
static const double LONG_S = 1.5e-3; /* beyond this contracts are left out, if those that stay are cold */
static const double TOO_LONG_S = 50e-3;
static const double MANY_STATES_S = 0.5e-3; /* in its first state: what takes longer is timed in the middle one alone */
static const double BATCH_S = 0.5e-3;       /* below this the least of several is taken */

/* What the calls of this file work on. */
typedef struct streaming {
    const unsigned char *at;
    size_t n_bytes;
} streaming;

typedef struct saved {
    mm3__range live;
    unsigned char *copy; /* owned */
    bool inout;
} saved;

/* The contracts of one group, and how they are launched. */
typedef struct lane {
    const mm3_stage *stage; /* borrowed */
    int n_used, repeat;
    int first_state, n_states; /* those that it is timed in */
    size_t n_stream;           /* bytes to read in between; 0: nothing */
    streaming evict;
    streaming warm[MM3_MAX_OPERANDS]; /* activations, which the step has just written */
    int n_warm;
    streaming *cold; /* owned: what to drop, beside the experts that are hit */
    int n_cold, max_cold;
    bool drops;
    struct moment {
        double (*now)(void);
        double seconds;
    } begin, end; /* the clock, as the graph last left it */
} lane;

typedef struct timed {
    mm3_graph *graph; /* owned */
    int n_batches;    /* 0: not measured yet */
} timed;

struct mm3__bench {
    mm3_tuner *tuner;      /* borrowed */
    const mm3__work *work; /* borrowed */
    lane lane[MM3__MAX_GROUPS];
    timed *timed; /* owned: [n_entrants, n_groups] */
    int n_entrants;
    mm3_arena parts;
    saved *saved; /* owned */
    int n_saved, max_saved;
};

/* ---- calls of our own -------------------------------------------------------------------------------------------- */

static void read_through(const mm3_call *call, int i_thread, int n_threads)
{
    const streaming *s = call->op;
    size_t share = (s->n_bytes / (size_t)n_threads) & ~(size_t)63;
    const unsigned char *p = s->at + (size_t)i_thread * share;
    const unsigned char *end = i_thread == n_threads - 1 ? s->at + s->n_bytes : p + share;
    uint64_t sum = 0;
    volatile uint64_t sink;
    for (; p + 64 <= end; p += 64) {
        uint64_t x;
        memcpy(&x, p, sizeof x);
        sum += x;
    }
    sink = sum;
    (void)sink;
}

/* Threads share each array. */
static void drop_part(const void *at, size_t n_bytes, int i_thread, int n_threads)
{
    size_t share = n_bytes / (size_t)n_threads, begin = share * (size_t)i_thread;
    mm3_cache_drop((const unsigned char *)at + begin, i_thread == n_threads - 1 ? n_bytes - begin : share);
}

/* Which experts are hit depends on the state, so they are asked for at each launch. */
static void drop_cold(const mm3_call *call, int i_thread, int n_threads)
{
    const lane *l = call->op;
    const mm3_op_info *info = mm3_op_info_of(l->stage->op);
    const void *at;
    size_t n_bytes;
    for (int i = 0; i < l->n_cold; i++) drop_part(l->cold[i].at, l->cold[i].n_bytes, i_thread, n_threads);
    for (int j = 0; j < l->n_used && info->more_weights; j++)
        for (int i = 0; info->more_weights(l->stage->contract[j], i, &at, &n_bytes); i++)
            if (n_bytes) drop_part(at, n_bytes, i_thread, n_threads);
}

static void read_clock(const mm3_call *call, int i_thread, int n_threads)
{
    (void)n_threads;
    if (i_thread == 0) {
        struct moment *m = (struct moment *)(uintptr_t)call->op;
        m->seconds = m->now();
    }
}

static mm3_status append_own(mm3_graph *graph, mm3_run *run, const void *op)
{
    mm3_call call = { .run = run, .op = op, .waits = true };
    return mm3_graph_append(graph, &call);
}

/* ---- saving what is overwritten ---------------------------------------------------------------------------------- */

static mm3_status save(mm3__bench *b, unsigned char *at, size_t n_bytes, bool inout)
{
    saved *s;
    for (int i = 0; i < b->n_saved; i++)
        if (b->saved[i].live.at == at && b->saved[i].live.n_bytes == n_bytes) return MM3_OK;
    if (b->n_saved == b->max_saved) {
        int max = b->max_saved ? 2 * b->max_saved : 16;
        saved *more = mm3_realloc(b->saved, mm3_mul((size_t)max, sizeof *more));
        MM3_CHECK(more, MM3_ERR_NOMEM, "out of memory for the buffers of a stage");
        b->saved = more;
        b->max_saved = max;
    }
    s = &b->saved[b->n_saved];
    *s = (saved){ .live = { at, n_bytes }, .copy = mm3_malloc(n_bytes), .inout = inout };
    MM3_CHECK(s->copy, MM3_ERR_NOMEM, "out of memory for the buffers of a stage");
    memcpy(s->copy, at, n_bytes);
    b->n_saved++;
    return MM3_OK;
}

static mm3_status save_outputs(mm3__bench *b, void *contract)
{
    mm3_operand o[MM3_MAX_OPERANDS];
    mm3__range *row = NULL;
    int n = mm3_op_info_of(b->work->op)->operands(contract, o), n_rows = 0;
    mm3_status st = MM3_OK;
    for (int i = 0; i < n; i++)
        if (o[i].access != MM3_IN && !mm3__operand_is_kv_pool(&o[i]) && *o[i].at)
            MM3_TRY(save(b, *o[i].at, o[i].n_bytes, o[i].access == MM3_INOUT));
    MM3_TRY(mm3__kv_rows(b->work->op, contract, &row, &n_rows));
    for (int i = 0; i < n_rows && st == MM3_OK; i++) st = save(b, row[i].at, row[i].n_bytes, false);
    mm3_free(row);
    return st;
}

/* Backwards: of two copies of a byte the earlier was made before anything was launched on it. */
static void restore(const mm3__bench *b, bool inout_only)
{
    for (int i = b->n_saved - 1; i >= 0; i--)
        if (!inout_only || b->saved[i].inout) memcpy(b->saved[i].live.at, b->saved[i].copy, b->saved[i].live.n_bytes);
}

/* ---- how much to launch ------------------------------------------------------------------------------------------ */

static void find_warm(const mm3__bench *b, lane *l)
{
    mm3_operand o[MM3_MAX_OPERANDS];
    int n = mm3_op_info_of(b->work->op)->operands(l->stage->contract[0], o);
    for (int i = 0; i < n; i++)
        if (o[i].access != MM3_OUT && !o[i].weight && !mm3__operand_is_kv_pool(&o[i]) && *o[i].at)
            l->warm[l->n_warm++] = (streaming){ *o[i].at, o[i].n_bytes };
}

static bool reads_kv(const mm3__bench *b)
{
    return b->work->op == MM3_OP_ATTENTION || b->work->op == MM3_OP_INDEX_SELECT;
}

static mm3_status add_cold(lane *l, const void *at, size_t n_bytes)
{
    if (!n_bytes || !at) return MM3_OK;
    if (l->n_cold == l->max_cold) {
        int max = l->max_cold ? 2 * l->max_cold : 16;
        streaming *more = mm3_realloc(l->cold, mm3_mul((size_t)max, sizeof *more));
        MM3_CHECK(more, MM3_ERR_NOMEM, "out of memory for the weights of a stage");
        l->cold = more;
        l->max_cold = max;
    }
    l->cold[l->n_cold++] = (streaming){ at, n_bytes };
    return MM3_OK;
}

static mm3_status find_cold(const mm3__bench *b, lane *l, void *contract)
{
    const mm3_op_info *info = mm3_op_info_of(b->work->op);
    mm3_operand o[MM3_MAX_OPERANDS];
    mm3__range *row = NULL;
    mm3_status st = MM3_OK;
    int n = info->operands(contract, o), n_rows = 0;
    for (int i = 0; i < n; i++)
        if (o[i].weight) MM3_TRY(add_cold(l, *o[i].at, o[i].n_bytes));
    MM3_TRY(mm3__kv_rows(b->work->op, contract, &row, &n_rows));
    for (int i = 0; i < n_rows && st == MM3_OK; i++) st = add_cold(l, row[i].at, row[i].n_bytes);
    mm3_free(row);
    return st;
}

static void write_through(const mm3_call *call, int i_thread, int n_threads)
{
    const streaming *s = call->op;
    size_t share = s->n_bytes / (size_t)n_threads, begin = (size_t)i_thread * share;
    memset((unsigned char *)(uintptr_t)s->at + begin, 1, i_thread == n_threads - 1 ? s->n_bytes - begin : share);
}

/* Room to read through, as much as any stage may ask for, in pages of its own: all threads touch it, since that takes
 * long. Half as much where memory is short, and none rather than an error. */
static void need_stream(mm3_tuner *t, size_t n_bytes)
{
    while (t->n_stream < n_bytes) {
        unsigned char *p = mm3_malloc(n_bytes);
        if (p) {
            mm3_call touch = { .run = write_through, .op = &(streaming){ p, n_bytes } };
            mm3_memory_want_huge(p, n_bytes);
            mm3_device_run(t->device, &touch, 1);
            mm3_free(t->stream);
            t->stream = p;
            t->n_stream = n_bytes;
        } else if ((n_bytes /= 2) < (size_t)1 << 20) {
            mm3__warn(t, "no memory to empty the caches with: some stages are timed with warm caches");
            return;
        }
    }
}

static mm3_status size_lane(mm3__bench *b, lane *l, double launch_s)
{
    const mm3_op_info *info = mm3_op_info_of(b->work->op);
    double last = (double)b->tuner->info->last_cache_bytes, cache = 2 * last, bytes = 0, rest;
    bool cold = b->work->step_bytes >= cache, may_drop = cold && !reads_kv(b) && mm3_cache_drop(l, 0);
    while (l->n_used < l->stage->n) {
        double so_far = l->n_used * launch_s;
        bool enough = !cold || may_drop || bytes >= cache;
        if (l->n_used > 0 && (so_far > TOO_LONG_S || (so_far * l->n_states > LONG_S && enough))) break;
        bytes += info->bytes(l->stage->contract[l->n_used]);
        MM3_TRY(save_outputs(b, l->stage->contract[l->n_used++]));
    }
    rest = MM3_MIN(b->work->step_bytes, cache) - bytes;
    l->repeat = 1;
    if (cold && rest > 0) {
        if (!may_drop) {
            l->n_stream = (size_t)MM3_MIN(rest, last); /* what a cache holds replaces all that is in it */
            need_stream(b->tuner, (size_t)last);
            find_warm(b, l);
        } else {
            for (int i = 0; i < l->n_used; i++) MM3_TRY(find_cold(b, l, l->stage->contract[i]));
            l->drops = l->n_cold > 0 || info->more_weights;
        }
    }
    if (!l->n_stream && !l->drops) {
        double n = SHORT_S / MM3_MAX(launch_s * l->n_used, 1e-7);
        l->repeat = (int)MM3_MIN(MM3_MAX(n, 1.0), (double)MAX_REPEAT);
    }
    return MM3_OK;
}

/* ---- open, close ------------------------------------------------------------------------------------------------- */

/* The second launch of native: the first has touched every page. */
static mm3_status time_native(mm3_tuner *t, mm3_op_id op, const void *contract, double *seconds)
{
    for (int i = 0; i < 2; i++) {
        double start = t->options.now();
        MM3_TRY(mm3__op_run(t, op, contract, mm3__choose_native, t));
        *seconds = t->options.now() - start;
    }
    return MM3_OK;
}

mm3_status mm3__bench_open(mm3__bench **out, mm3_tuner *t, const mm3__work *w)
{
    mm3_status st = MM3_OK;
    mm3__bench *b = mm3_calloc(1, sizeof *b);
    *out = NULL;
    MM3_CHECK(b, MM3_ERR_NOMEM, "out of memory for timing %s", w->key);
    b->tuner = t;
    b->work = w;
    for (int g = 0; g < w->n_groups; g++) {
        lane *l = &b->lane[g];
        double launch_s;
        l->stage = w->group[g];
        l->begin.now = l->end.now = t->options.now;
        MM3_GOTO(save_outputs(b, l->stage->contract[0]));
        MM3_GOTO(time_native(t, w->op, l->stage->contract[0], &launch_s));
        l->n_states = 1;
        if (t->options.states)
            l->n_states = MM3_MIN(MM3_MAX(t->options.states(t->options.user, l->stage, -1), 1), (int)MAX_STATES);
        if (launch_s > MANY_STATES_S) {
            l->first_state = (l->n_states - 1) / 2;
            l->n_states = 1;
            if (l->first_state > 0) t->options.states(t->options.user, l->stage, l->first_state);
        }
        MM3_GOTO(size_lane(b, l, launch_s)); /* in the state that it is timed in: what it reads may fill the caches */
    }
    *out = b;
    b = NULL;
done:
    mm3__bench_close(&b);
    return st;
}

void mm3__bench_close(mm3__bench **bench)
{
    mm3__bench *b = bench ? *bench : NULL;
    if (!b) return;
    for (int g = 0; g < b->work->n_groups; g++)
        if (b->tuner->options.states && b->lane[g].stage)
            b->tuner->options.states(b->tuner->options.user, b->lane[g].stage, -1);
    restore(b, false);
    for (int i = 0; i < b->n_entrants * b->work->n_groups; i++) mm3_graph_close(&b->timed[i].graph);
    for (int i = 0; i < b->n_saved; i++) mm3_free(b->saved[i].copy);
    for (int g = 0; g < b->work->n_groups; g++) mm3_free(b->lane[g].cold);
    mm3_free(b->timed);
    mm3_free(b->saved);
    mm3_arena_free(&b->parts);
    mm3_free(b);
    *bench = NULL;
}

int mm3__bench_workloads(const mm3__bench *b)
{
    int n = 0;
    for (int g = 0; g < b->work->n_groups; g++) n += b->lane[g].n_states;
    return n;
}

mm3_status mm3__bench_add(mm3__bench *b, int i, int n, const mm3__entrant *entrant)
{
    mm3_tuner *t = b->tuner;
    mm3__choosing c = { t, entrant->choice };
    size_t need = 0;
    if (!b->timed) {
        b->timed = mm3_calloc(mm3_mul((size_t)n, (size_t)b->work->n_groups), sizeof *b->timed);
        MM3_CHECK(b->timed, MM3_ERR_NOMEM, "out of memory for timing %s", b->work->key);
        b->n_entrants = n;
    }
    for (int g = 0; g < b->work->n_groups; g++) {
        lane *l = &b->lane[g];
        timed *x = &b->timed[i * b->work->n_groups + g];
        mm3_graph_close(&x->graph);
        MM3_TRY(mm3_graph_open(&x->graph, t->device));
        if (l->drops) MM3_TRY(append_own(x->graph, drop_cold, l));
        if (l->n_stream && t->n_stream) {
            l->evict = (streaming){ t->stream, MM3_MIN(l->n_stream, t->n_stream) };
            MM3_TRY(append_own(x->graph, read_through, &l->evict));
            for (int k = 0; k < l->n_warm; k++) MM3_TRY(append_own(x->graph, read_through, &l->warm[k]));
        }
        MM3_TRY(append_own(x->graph, read_clock, &l->begin));
        for (int r = 0; r < l->repeat; r++)
            for (int j = 0; j < l->n_used; j++)
                MM3_TRY(mm3__op_append(t, x->graph, &b->parts, b->work->op, l->stage->contract[j], mm3__choose_entrant,
                                       &c, &need));
        MM3_TRY(append_own(x->graph, read_clock, &l->end));
    }
    return mm3__scratch_need(t, need);
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

static double replay(mm3__bench *b, lane *l, timed *x)
{
    restore(b, true);
    mm3_graph_set_scratch(x->graph, b->tuner->scratch);
    mm3_graph_replay(x->graph);
    b->tuner->counts.timings++;
    return (l->end.seconds - l->begin.seconds) / ((double)l->n_used * l->repeat);
}

double mm3__bench_measure(void *bench, int i, int i_workload)
{
    mm3__bench *b = bench;
    int g = 0;
    timed *x;
    lane *l;
    double best;
    while (i_workload >= b->lane[g].n_states) i_workload -= b->lane[g++].n_states;
    l = &b->lane[g];
    x = &b->timed[i * b->work->n_groups + g];
    if (b->tuner->options.states)
        b->tuner->options.states(b->tuner->options.user, l->stage, l->first_state + i_workload);
    if (x->n_batches == 0 && l->evict.n_bytes) {
        x->n_batches = 1;
    } else if (x->n_batches == 0) { /* caches, branches and clocks get used to it */
        best = replay(b, l, x);
        x->n_batches = best * l->n_used * l->repeat > BATCH_S ? 1 : N_BATCHES;
        if (best * l->n_used * l->repeat > TOO_LONG_S) return best;
    }
    best = replay(b, l, x);
    for (int k = 1; k < x->n_batches; k++) {
        double s = replay(b, l, x);
        best = MM3_MIN(best, s);
    }
    return best;
}
