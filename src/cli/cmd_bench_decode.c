/* mm3 bench decode: whole decode steps of a model. Replay beside eager, winners beside natives, each operation's share,
 * what padding costs, bytes beside the memory's ceiling. */
#include <math.h>
#include <string.h>

#include "bench/bench.h"
#include "cli/cli.h"
#include "forward/forward.h"

enum { DEFAULT_CONTEXT = 1024, DEFAULT_BATCH = 8 };

typedef struct decode_options {
    const char *synthetic, *m_text, *routing;
    int layers, experts, vocab, rounds;
    double seconds;
    bool json;
} decode_options;

/* ---- options ----------------------------------------------------------------------------------------------------- */

/* "m3,layers=2,..." of the options; the text is for mm3_free(). False with an error printed. */
static bool synthetic_text(const decode_options *o, char **text)
{
    const struct {
        const char *name;
        int value;
    } size[] = { { "layers", o->layers }, { "experts", o->experts }, { "vocab", o->vocab } };
    mm3_buf b = { 0 };
    mm3_buf_puts(&b, o->synthetic);
    for (int i = 0; i < MM3_COUNT(size); i++)
        if (size[i].value) mm3_buf_printf(&b, ",%s=%d", size[i].name, size[i].value);
    if (o->routing) mm3_buf_printf(&b, ",routing=%s", o->routing);
    if (mm3_buf_take(&b, text, NULL) == MM3_OK) return true;
    cli_failed();
    return false;
}

/* The graph shape that m rows are padded to where nobody says otherwise. */
static int default_shape(int m)
{
    int shape = mm3_graph_shape(m);
    return shape ? shape : m;
}

/* Rows to measure, and the graphs that these need: only they are recorded, and tuned. */
static int choose_rows(const decode_options *o, mm3_options *engine, int *m, int *n_m, char *shapes, size_t n_shapes)
{
    int shape[CLI_MAX_M], n_shape = 0, largest = 0, status = CLI_GO;
    size_t at = 0;
    *n_m = 0;
    if (engine->graph_shapes) {
        status = cli_read_rows("graph-shapes", engine->graph_shapes, shape, &n_shape);
        for (int i = 0; i < n_shape; i++) largest = MM3_MAX(largest, shape[i]);
    }
    if (status == CLI_GO && o->m_text) status = cli_read_rows("m", o->m_text, m, n_m);
    if (status != CLI_GO) return status;
    if (!o->m_text && n_shape) {
        for (int i = 0; i < n_shape; i++)
            if (!engine->max_batch || shape[i] <= engine->max_batch) m[(*n_m)++] = shape[i];
    } else if (!o->m_text) {
        int max = engine->max_batch ? engine->max_batch : DEFAULT_BATCH;
        for (int i = 1; i < max && *n_m < CLI_MAX_M - 1; i = default_shape(i + 1)) m[(*n_m)++] = i;
        m[(*n_m)++] = max;
    }
    for (int i = 0; i < *n_m; i++) {
        if (engine->max_batch && m[i] > engine->max_batch)
            return cli_usage("--m %d is more than --max-batch %d: raise that", m[i], engine->max_batch);
        largest = MM3_MAX(largest, engine->graph_shapes ? m[i] : default_shape(m[i]));
    }
    if (!engine->max_batch) engine->max_batch = largest;
    if (engine->graph_shapes) return CLI_GO;
    for (int i = 0; i < *n_m && at + 8 < n_shapes; i++)
        at += (size_t)snprintf(shapes + at, n_shapes - at, "%s%d", i ? "," : "", default_shape(m[i]));
    engine->graph_shapes = shapes;
    return CLI_GO;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *ratio_json(mm3_spread s)
{
    if (isnan(s.median)) return json_null();
    return json_pack("{so so}", "ratio", cli_json_real(s.median), "mad", cli_json_real(s.mad));
}

static json_t *stages_json(const mm3_bench_step *s)
{
    json_t *stages = json_array();
    for (int i = 0; i < s->n_stages; i++) {
        const mm3_bench_stage *g = &s->stage[i];
        json_array_append_new(stages,
                              json_pack("{ss ss si so so so}", "key", g->key, "choice", g->choice, "calls", g->calls,
                                        "time_us", cli_json_real(g->time_s * 1e6), "bytes", cli_json_real(g->bytes),
                                        "gb_s", cli_json_real(g->bytes / g->time_s / 1e9)));
    }
    return stages;
}

static json_t *step_json(const mm3_bench_step *s)
{
    json_t *ops = json_array();
    for (int i = 0; i < s->n_ops; i++) {
        const mm3_bench_op *p = &s->op[i];
        json_array_append_new(ops, json_pack("{ss si so so so}", "op", p->name, "calls", p->calls, "share",
                                             cli_json_real(p->share), "time_us", cli_json_real(p->time_s * 1e6),
                                             "bytes", cli_json_real(p->bytes)));
    }
    return json_pack("{si si si ss si so so so so so so so so so so so so so so so so so}", "m", s->m, "graph",
                     s->graph, "context", s->context, "kept", s->winners ? "winners" : "natives", "rounds", s->n_rounds,
                     "step_us", cli_json_real(s->time.median * 1e6), "mad_us", cli_json_real(s->time.mad * 1e6),
                     "tokens_per_s", cli_json_real(s->m / s->time.median), "eager_us",
                     cli_json_real(s->eager.median * 1e6), "natives_us", cli_json_real(s->natives.median * 1e6),
                     "graph_over_eager", ratio_json(s->over_eager), "winners_over_natives", ratio_json(s->over_natives),
                     "padded_rows", json_real(1 - (double)s->m / s->graph), "graph_over_exact",
                     ratio_json(s->over_exact), "experts_hit", cli_json_real(s->experts_hit), "bytes",
                     cli_json_real(s->bytes), "gb_s", cli_json_real(s->bytes / s->time.median / 1e9), "ceiling_gb_s",
                     cli_json_real(s->ceiling / 1e9), "fraction", cli_json_real(s->fraction), "stamped_over_step",
                     cli_json_real(s->stamped), "ops", ops, "stages", stages_json(s));
}

static int print_json(const mm3_bench_decode *r, const char *info, const char *model, const char *routing)
{
    json_t *rows = json_array(), *root, *about = NULL;
    if (mm3_json_parse(&about, info, strlen(info), "info") != MM3_OK) return cli_failed();
    for (int i = 0; i < r->n_steps; i++) json_array_append_new(rows, step_json(&r->step[i]));
    root =
        json_pack("{ss so so ss sb sI so so}", "model", model, "routing", routing ? json_string(routing) : json_null(),
                  "ceiling_gb_s", cli_json_real(r->ceiling / 1e9), "ceiling_by", r->ceiling_by, "may_be_warm",
                  (int)r->may_be_warm, "last_cache_bytes", (json_int_t)r->last_cache, "engine", about, "rows", rows);
    return cli_print_json(root);
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* "0.83 +- 0.01", or "-" */
static const char *ratio_text(char *text, size_t n, mm3_spread s)
{
    if (isnan(s.median))
        snprintf(text, n, "-");
    else
        snprintf(text, n, "%.2f +-%.2f", s.median, s.mad);
    return text;
}

static void print_steps(const mm3_bench_decode *r)
{
    char a[32], b[32], c[32];
    printf("%4s %5s %8s %10s %6s %9s %13s %14s %13s %9s %7s %8s\n", "m", "graph", "kept", "step us", "mad %",
           "tokens/s", "graph/eager", "winner/native", "padded/exact", "MB", "GB/s", "of ceil.");
    for (int i = 0; i < r->n_steps; i++) {
        const mm3_bench_step *s = &r->step[i];
        printf("%4d %5d %8s %10.1f %6.1f %9.1f %13s %14s %13s %9.2f %7.2f %8.3f\n", s->m, s->graph,
               s->winners ? "winners" : "natives", s->time.median * 1e6, 100 * s->time.mad / s->time.median,
               s->m / s->time.median, ratio_text(a, sizeof a, s->over_eager), ratio_text(b, sizeof b, s->over_natives),
               ratio_text(c, sizeof c, s->over_exact), s->bytes / 1e6, s->bytes / s->time.median / 1e9, s->fraction);
    }
}

/* Operations down, steps across: as many steps as fit a line. */
static void print_shares(const mm3_bench_decode *r)
{
    enum { PER_LINE = 10 };
    const mm3_bench_step *first = &r->step[0];
    for (int at = 0; at < r->n_steps; at += PER_LINE) {
        int end = MM3_MIN(at + PER_LINE, r->n_steps);
        printf("\n%-22s", "share of the step, %");
        for (int i = at; i < end; i++) {
            char name[16];
            snprintf(name, sizeof name, "m=%d", r->step[i].m);
            printf(" %8s", name);
        }
        printf("\n");
        for (int k = 0; k < first->n_ops; k++) {
            printf("  %-20s", first->op[k].name);
            for (int i = at; i < end; i++) {
                const mm3_bench_step *s = &r->step[i];
                for (int j = 0; j < s->n_ops; j++)
                    if (strcmp(s->op[j].name, first->op[k].name) == 0) printf(" %8.1f", 100 * s->op[j].share);
            }
            printf("\n");
        }
        printf("  %-20s", "experts hit");
        for (int i = at; i < end; i++) printf(" %8.1f", r->step[i].experts_hit);
        printf("\n  %-20s", "stamps add, %");
        for (int i = at; i < end; i++) printf(" %8.1f", 100 * (r->step[i].stamped - 1));
        printf("\n");
    }
}

static int print_text(const mm3_bench_decode *r, const char *info, const char *model, const char *routing)
{
    json_t *about = NULL, *m, *d;
    if (mm3_json_parse(&about, info, strlen(info), "info") != MM3_OK) return cli_failed();
    m = json_object_get(about, "model");
    d = json_object_get(about, "device");
#define INT(object, key) ((int)json_integer_value(json_object_get(object, key)))
    printf("%s, %d threads\n", json_string_value(json_object_get(d, "name")), INT(d, "threads"));
    printf("%s: %d layers (%d with experts), hidden %d, %d of %d experts, vocabulary %d, %.2f GB; ", model,
           INT(m, "layers"), INT(m, "moe_layers"), INT(m, "hidden"), INT(m, "experts_per_token"), INT(m, "experts"),
           INT(m, "vocab"), json_number_value(json_object_get(m, "weight_bytes")) / 1e9);
#undef INT
    printf("each sequence at %d tokens%s%s\n", r->step[0].context, routing ? ", routing " : "", routing ? routing : "");
    printf("memory ceiling %.1f GB/s (%s), read before and after each line's steps\n", r->ceiling / 1e9, r->ceiling_by);
    if (r->may_be_warm)
        printf("but the last cache (%.0f MB) could hold all that a step moves: its GB/s may be the cache's\n",
               (double)r->last_cache / 1e6);
    printf("\n");
    print_steps(r);
    print_shares(r);
    json_decref(about);
    return CLI_DONE;
}

/* ----  ------------------------------------------------------------------------------------------------------------ */

static int run(const decode_options *o, cli_engine *with, const int *m, int n_m)
{
    const char *routing = o->synthetic ? (o->routing ? o->routing : "uniform") : NULL, *model;
    mm3_bench_decode result;
    mm3_engine *engine;
    char *info = NULL;
    int context = with->options.context, status = cli_open_engine(&engine, with);
    if (status != CLI_GO) return status;
    model = o->synthetic ? o->synthetic : with->options.model_dir;
    if (mm3_bench_decode_run(&result, engine, m, n_m, context, o->seconds, o->rounds) != MM3_OK) {
        mm3_engine_close(&engine);
        return cli_failed();
    }
    if (mm3_engine_info(engine, &info) != MM3_OK)
        status = cli_failed();
    else
        status = o->json ? print_json(&result, info, model, routing) : print_text(&result, info, model, routing);
    mm3_free(info);
    mm3_bench_decode_free(&result);
    mm3_engine_close(&engine);
    return status;
}

int cli_bench_decode(int argc, char **argv)
{
    cli_engine with = CLI_ENGINE_INIT;
    decode_options o = { .seconds = 2 };
    int m[CLI_MAX_M], n_m, status;
    char shapes[CLI_MAX_M * 8], *synthetic = NULL;
    const cli_option options[] = {
        { "synthetic", 0, CLI_TEXT, &o.synthetic, "m3[,NAME=N..]",
          "random weights of MiniMax-M3's width instead of a model", 0, 0 },
        { "layers", 0, CLI_INT, &o.layers, "N",
          "of them: the first is dense (one in 20), others have\nexperts (default 2)", 1, 4096 },
        { "experts", 0, CLI_INT, &o.experts, "N", "by default 128, or what memory holds", 1, 4096 },
        { "vocab", 0, CLI_INT, &o.vocab, "N", "by default 200064, or less where memory is short", 1, 1 << 24 },
        { "routing", 0, CLI_WORD, &o.routing, "uniform|zipf", "how random tokens spread over experts (uniform)", 0, 0 },
        { "m", 0, CLI_TEXT, &o.m_text, "LIST", "rows of the steps (default: each graph shape)", 0, 0 },
        { "seconds", 0, CLI_DOUBLE, &o.seconds, "S", "for each m (default 2)", 0, 3600 },
        { "rounds", 0, CLI_INT, &o.rounds, "N", "0 (default): what fits into --seconds, at least 3", 0, 1000 },
        { "json", 0, CLI_FLAG, &o.json, NULL, "as JSON", 0, 0 },
        { .kind = CLI_HEADING,
          .help = "Defaults here: --context 1024, which is where every sequence stands; --chunk 1,\n"
                  "since nothing is prefilled; --max-batch and --graph-shapes what --m needs (1,2,4,8)." },
    };
    with.options.max_batch = 0;
    with.options.context = DEFAULT_CONTEXT;
    with.options.chunk = 1;
    status = cli_parse(argc, argv, options, MM3_COUNT(options), &with, 0);
    if (status != CLI_GO) return status;
    if (o.synthetic && with.options.model_dir) return cli_usage("give -m or --synthetic, not both");
    if (!o.synthetic && (o.layers || o.experts || o.vocab || o.routing))
        return cli_usage("--layers, --experts, --vocab and --routing shape a --synthetic model");
    if (with.options.context == 0) with.options.context = DEFAULT_CONTEXT;
    status = choose_rows(&o, &with.options, m, &n_m, shapes, sizeof shapes);
    if (status != CLI_GO) return status;
    if (o.synthetic && !synthetic_text(&o, &synthetic)) return CLI_FAILED;
    with.options.synthetic = synthetic;
    status = run(&o, &with, m, n_m);
    mm3_free(synthetic);
    return status;
}
