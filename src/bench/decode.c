/* Whole decode steps: what an engine measured, as medians and ratios, beside the memory's speed at the same time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"

enum { MAX_WAYS = 8, READS_PER_VISIT = 3, MAX_READS = 2 * READS_PER_VISIT };

/* Reads of one m: before its steps, and after. */
typedef struct trial {
    mm3_device *device;
    mm3_ceiling *ceiling;
    size_t window;
    double speed[MAX_WAYS][MAX_READS];
    int n_reads;
    double *all[MAX_WAYS]; /* owned: [n_all] of every m */
    int n_all;
    mm3_bench_decode *result;
} trial;

static void read_ceiling(trial *t)
{
    for (int r = 0; r < READS_PER_VISIT; r++, t->n_reads++, t->n_all++)
        for (int w = 0; w < mm3_ceiling_count(t->ceiling); w++) {
            size_t n;
            double s = mm3_ceiling_read(t->ceiling, w, t->window, &n);
            t->speed[w][t->n_reads] = t->all[w][t->n_all] = (double)n / s;
        }
}

/* The median speed in the best way. */
static double best_speed(double *const speed[MAX_WAYS], int n_ways, int n, int *way)
{
    double best = 0;
    for (int w = 0; w < n_ways; w++) {
        double median = mm3_spread_of(speed[w], n).median;
        if (median <= best) continue;
        best = median;
        *way = w;
    }
    return best;
}

/* ---- what the engine says ---------------------------------------------------------------------------------------- */

/* Values of a list of numbers; the array is for mm3_free(). */
static mm3_status numbers(const json_t *list, double **out, int *n)
{
    *n = (int)json_array_size(list);
    *out = mm3_malloc(((size_t)*n + 1) * sizeof **out);
    MM3_CHECK(*out, MM3_ERR_NOMEM, "out of memory for times");
    for (int i = 0; i < *n; i++) (*out)[i] = json_number_value(json_array_get(list, (size_t)i));
    return MM3_OK;
}

static bool is(const json_t *o, const char *key, const char *word)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s && strcmp(s, word) == 0;
}

/* A pair's times, and their ratio round by round. */
static mm3_status read_pair(const json_t *pair, mm3_spread *a, mm3_spread *b, mm3_spread *ratio)
{
    double *a_s = NULL, *b_s = NULL, *r = NULL;
    int n_a = 0, n_b = 0;
    mm3_status st = MM3_OK;
    MM3_GOTO(numbers(json_object_get(pair, "a_s"), &a_s, &n_a));
    MM3_GOTO(numbers(json_object_get(pair, "b_s"), &b_s, &n_b));
    MM3_GOTO(numbers(json_object_get(pair, "a_s"), &r, &n_a));
    for (int i = 0; i < MM3_MIN(n_a, n_b); i++) r[i] = a_s[i] / b_s[i];
    *ratio = mm3_spread_of(r, MM3_MIN(n_a, n_b));
    *a = mm3_spread_of(a_s, n_a);
    *b = mm3_spread_of(b_s, n_b);
done:
    mm3_free(a_s);
    mm3_free(b_s);
    mm3_free(r);
    return st;
}

static mm3_bench_op *op_of(mm3_bench_step *s, const char *name)
{
    int i = 0;
    while (i < s->n_ops && strcmp(s->op[i].name, name) != 0) i++;
    if (i == s->n_ops) {
        if (i == MM3_N_OPS) return NULL;
        s->n_ops++;
        snprintf(s->op[i].name, sizeof s->op[i].name, "%s", name);
    }
    return &s->op[i];
}

static mm3_status read_stage(mm3_bench_step *s, mm3_bench_stage *g, const json_t *o)
{
    double *time;
    int n;
    mm3_bench_op *op = op_of(s, json_string_value(json_object_get(o, "op")));
    g->key = mm3_strdup(json_string_value(json_object_get(o, "key")));
    g->choice = mm3_strdup(json_string_value(json_object_get(o, "choice")));
    MM3_CHECK(g->key && g->choice && op, MM3_ERR_NOMEM, "out of memory for a step's stages");
    g->calls = (int)json_integer_value(json_object_get(o, "calls"));
    g->bytes = json_number_value(json_object_get(o, "bytes"));
    MM3_TRY(numbers(json_object_get(o, "s"), &time, &n));
    g->time_s = mm3_spread_of(time, n).median;
    mm3_free(time);
    op->calls += g->calls;
    op->bytes += g->bytes;
    op->time_s += g->time_s;
    return MM3_OK;
}

static int by_time(const void *a, const void *b)
{
    const mm3_bench_op *x = a, *y = b;
    return (x->time_s < y->time_s) - (x->time_s > y->time_s);
}

static mm3_status read_stages(mm3_bench_step *s, const json_t *ops)
{
    double sum = 0;
    s->stage = mm3_calloc(json_array_size(ops) + 1, sizeof *s->stage);
    MM3_CHECK(s->stage, MM3_ERR_NOMEM, "out of memory for a step's stages");
    for (size_t i = 0; i < json_array_size(ops); i++)
        MM3_TRY(read_stage(s, &s->stage[s->n_stages++], json_array_get(ops, i)));
    for (int i = 0; i < s->n_ops; i++) sum += s->op[i].time_s;
    for (int i = 0; i < s->n_ops; i++) s->op[i].share = s->op[i].time_s / sum;
    qsort(s->op, (size_t)s->n_ops, sizeof *s->op, by_time);
    s->stamped = sum / s->time.median;
    return MM3_OK;
}

static mm3_status read_step(mm3_bench_step *s, const char *text)
{
    json_t *o, *pairs;
    mm3_status st = MM3_OK;
    mm3_spread unused;
    MM3_TRY(mm3_json_parse(&o, text, strlen(text), "a step's times"));
    s->m = (int)json_integer_value(json_object_get(o, "m"));
    s->graph = (int)json_integer_value(json_object_get(o, "graph"));
    s->context = (int)json_integer_value(json_object_get(o, "context"));
    s->n_rounds = (int)json_integer_value(json_object_get(o, "rounds"));
    s->winners = is(o, "kept", "winners");
    s->bytes = json_number_value(json_object_get(o, "bytes"));
    s->experts_hit = json_number_value(json_object_get(o, "experts_hit"));
    s->natives = s->over_natives = s->over_exact = (mm3_spread){ NAN, NAN };
    pairs = json_object_get(o, "pairs");
    for (size_t i = 0; i < json_array_size(pairs); i++) {
        const json_t *p = json_array_get(pairs, i);
        if (is(p, "b", "eager")) MM3_GOTO(read_pair(p, &s->time, &s->eager, &s->over_eager));
        if (is(p, "b", "natives")) MM3_GOTO(read_pair(p, &unused, &s->natives, &s->over_natives));
        if (is(p, "b", "exact")) MM3_GOTO(read_pair(p, &unused, &unused, &s->over_exact));
    }
    MM3_GOTO(read_stages(s, json_object_get(o, "ops")));
done:
    json_decref(o);
    return st;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static mm3_status run_step(trial *t, mm3_engine *engine, mm3_bench_step *s, const char *spec)
{
    double *speed[MAX_WAYS];
    char *text = NULL;
    mm3_status st = MM3_OK;
    int way = 0;
    t->n_reads = 0;
    read_ceiling(t);
    MM3_TRY(mm3_engine_measure(engine, spec, &text));
    read_ceiling(t);
    MM3_GOTO(read_step(s, text));
    for (int w = 0; w < MAX_WAYS; w++) speed[w] = t->speed[w];
    s->ceiling = best_speed(speed, mm3_ceiling_count(t->ceiling), t->n_reads, &way);
    s->fraction = s->bytes / s->time.median / s->ceiling;
    t->result->may_be_warm |= s->bytes < (double)t->result->last_cache;
done:
    mm3_free(text);
    return st;
}

static int threads_of(mm3_engine *engine)
{
    char *text = NULL;
    json_t *o = NULL;
    int n = 0;
    if (mm3_engine_info(engine, &text) == MM3_OK && mm3_json_parse(&o, text, strlen(text), "info") == MM3_OK)
        n = (int)json_integer_value(json_object_get(json_object_get(o, "device"), "threads"));
    json_decref(o);
    mm3_free(text);
    return n;
}

static mm3_status open_trial(trial *t, mm3_engine *engine, mm3_bench_decode *out, int n_m)
{
    size_t buffer;
    t->result = out;
    MM3_TRY(mm3_device_open(&t->device, threads_of(engine)));
    out->last_cache = mm3_device_info_of(t->device)->last_cache_bytes;
    buffer = MM3_MIN(2 * out->last_cache + ((size_t)64 << 20), mm3_memory_available() / 8);
    MM3_TRY(mm3_ceiling_open(&t->ceiling, t->device, buffer));
    t->window = MM3_MIN(buffer / 4, (size_t)64 << 20);
    for (int w = 0; w < mm3_ceiling_count(t->ceiling); w++) {
        t->all[w] = mm3_malloc((size_t)n_m * MAX_READS * sizeof *t->all[w]);
        MM3_CHECK(t->all[w], MM3_ERR_NOMEM, "out of memory for the ceiling");
    }
    return MM3_OK;
}

mm3_status mm3_bench_decode_run(mm3_bench_decode *out, mm3_engine *engine, const int *m, int n_m, int context,
                                double seconds, int rounds)
{
    trial t = { 0 };
    mm3_status st = MM3_OK;
    int way = 0;
    *out = (mm3_bench_decode){ 0 };
    MM3_GOTO(open_trial(&t, engine, out, n_m));
    out->step = mm3_calloc((size_t)n_m, sizeof *out->step);
    if (!out->step) {
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for a benchmark");
        goto done;
    }
    for (int i = 0; i < n_m; i++) {
        char spec[160];
        snprintf(spec, sizeof spec, "{\"m\":%d,\"context\":%d,\"seconds\":%.6f,\"rounds\":%d}", m[i], context, seconds,
                 rounds);
        out->n_steps++;
        MM3_GOTO(run_step(&t, engine, &out->step[i], spec));
    }
    out->ceiling = best_speed(t.all, mm3_ceiling_count(t.ceiling), t.n_all, &way);
    out->ceiling_by = mm3_ceiling_name(t.ceiling, way);
done:
    for (int w = 0; w < MAX_WAYS; w++) mm3_free(t.all[w]);
    mm3_ceiling_close(&t.ceiling);
    mm3_device_close(&t.device);
    if (st != MM3_OK) mm3_bench_decode_free(out);
    return st;
}

void mm3_bench_decode_free(mm3_bench_decode *result)
{
    for (int i = 0; i < result->n_steps; i++) {
        mm3_bench_step *s = &result->step[i];
        for (int j = 0; j < s->n_stages; j++) {
            mm3_free(s->stage[j].key);
            mm3_free(s->stage[j].choice);
        }
        mm3_free(s->stage);
    }
    mm3_free(result->step);
    *result = (mm3_bench_decode){ 0 };
}
