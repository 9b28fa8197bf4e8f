/* mm3 bench: what things cost here. Its first argument says of what. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "cli/cli.h"

int cli_read_rows(const char *option, const char *text, int *m, int *n)
{
    char part[16];
    for (*n = 0; *text;) {
        size_t length = strcspn(text, ",");
        int64_t value;
        snprintf(part, sizeof part, "%.*s", (int)MM3_MIN(length, sizeof part - 1), text);
        if (*n == CLI_MAX_M || !mm3_parse_int(part, 1, 65536, &value))
            return cli_usage("--%s %s: use up to %d whole numbers of rows from 1, like 1,2,4,8", option, part,
                             CLI_MAX_M);
        m[(*n)++] = (int)value;
        text += length;
        text += *text == ',';
    }
    return *n ? CLI_GO : cli_usage("--%s needs a list of rows, like 1,2,4,8", option);
}

/* "9216,6144" is short for "n=9216,k=6144"; what comes after may name fields. */
static int read_shape(mm3_op_id op, const char *text, mm3_shape *shape)
{
    static const char *const name[] = { "n", "k" };
    char full[256];
    size_t at = 0;
    for (int i = 0; i < 2 && *text >= '0' && *text <= '9' && mm3_shape_has(op, name[i]); i++) {
        size_t length = strcspn(text, ",");
        at +=
            (size_t)snprintf(full + at, sizeof full - at, "%s=%.*s,", name[i], (int)MM3_MIN(length, (size_t)16), text);
        text += length;
        text += *text == ',';
    }
    snprintf(full + at, sizeof full - at, "%s", text);
    return mm3_shape_parse(op, full, shape) == MM3_OK ? CLI_GO : cli_usage("%s", mm3_last_error());
}

static json_t *row_json(const mm3_bench_row *row, const char *op, const char *shape)
{
    json_t *o = json_pack("{s:s, s:s, s:i, s:s, s:s, s:s}", "op", op, "shape", shape, "m", row->m, "candidate",
                          row->kernel->name, "tactic", row->tactic->name, "key", row->key);
    if (!o) return NULL;
    if (row->refused[0]) {
        json_object_set_new(o, "why", json_string(row->refused));
        return o;
    }
    json_object_set_new(o, "time_us", cli_json_real(row->time_s * 1e6));
    json_object_set_new(o, "mad_us", cli_json_real(row->mad_s * 1e6));
    json_object_set_new(o, "bytes", cli_json_real(row->bytes));
    json_object_set_new(o, "gb_s", cli_json_real(row->bytes / row->time_s / 1e9));
    json_object_set_new(o, "fraction", cli_json_real(row->fraction));
    json_object_set_new(o, "gflop_s", cli_json_real(row->flops / row->time_s / 1e9));
    json_object_set_new(o, "rounds", json_integer(row->n_rounds));
    return o;
}

static int print_json(const mm3_bench_result *r, const char *op, const char *shape, const mm3_device_info *info)
{
    json_t *rows = json_array(), *refused = json_array(), *root;
    for (int i = 0; i < r->n_rows; i++)
        json_array_append_new(r->row[i].refused[0] ? refused : rows, row_json(&r->row[i], op, shape));
    root = json_pack("{s:o, s:s, s:o, s:s, s:o, s:s, s:i, s:I, s:I, s:i, s:b, s:b, s:o, s:o}", "ceiling_gb_s",
                     cli_json_real(r->ceiling / 1e9), "ceiling_by", r->ceiling_by, "peak_gflop_s",
                     cli_json_real(r->peak / 1e9), "peak_by", r->peak_by, "launch_us", cli_json_real(r->launch_s * 1e6),
                     "device", info->name, "threads", info->n_threads, "last_cache_bytes", (json_int_t)r->last_cache,
                     "rotated_bytes", (json_int_t)r->rotated, "copies", r->n_copies, "evicted", (int)r->evicted,
                     "may_be_warm", (int)r->may_be_warm, "rows", rows, "refused", refused);
    return cli_print_json(root);
}

static bool same_refusal(const mm3_bench_row *a, const mm3_bench_row *b)
{
    return a->kernel == b->kernel && a->tactic == b->tactic && strcmp(a->refused, b->refused) == 0;
}

/* Each candidate once, with the rows that it refuses for that reason. */
static void print_refusals(const mm3_bench_result *r)
{
    printf("\nrefused\n");
    for (int i = 0; i < r->n_rows; i++) {
        bool seen = !r->row[i].refused[0];
        for (int j = 0; j < i; j++) seen |= same_refusal(&r->row[i], &r->row[j]);
        if (seen) continue;
        printf("      %s/%s %s: m", r->row[i].kernel->name, r->row[i].tactic->name, r->row[i].refused);
        for (int j = i; j < r->n_rows; j++)
            if (same_refusal(&r->row[i], &r->row[j])) printf(" %d", r->row[j].m);
        printf("\n");
    }
}

static void print_text(const mm3_bench_result *r, const char *op, const mm3_device_info *info)
{
    bool refused = false;
    printf("%s, %d thread%s\n", info->name, info->n_threads, info->n_threads == 1 ? "" : "s");
    printf("memory ceiling %.1f GB/s (%s), peak %.0f GFLOP/s (%s), empty launch %.1f us, in the same rounds\n",
           r->ceiling / 1e9, r->ceiling_by, r->peak / 1e9, r->peak_by, r->launch_s * 1e6);
    if (r->evicted)
        printf("cold: the last cache (%.0f MB) was read full before each launch\n", (double)r->last_cache / 1e6);
    else
        printf("cold: %d copies of the inputs in turn, %.2f GB, the last cache being %.0f MB\n", r->n_copies,
               (double)r->rotated / 1e9, (double)r->last_cache / 1e6);
    if (r->may_be_warm) printf("but memory is short: what was read may still have been in the last cache\n");
    printf("\n%s\n%4s  %-28s %11s %9s %9s %9s %9s %9s\n", op, "m", "candidate/tactic", "time us", "mad us", "MB",
           "GB/s", "GFLOP/s", "fraction");
    for (int i = 0; i < r->n_rows; i++) {
        const mm3_bench_row *row = &r->row[i];
        char name[64];
        refused |= row->refused[0] != 0;
        if (row->refused[0]) continue;
        snprintf(name, sizeof name, "%s/%s", row->kernel->name, row->tactic->name);
        printf("%4d  %-28s %11.1f %9.1f %9.2f %9.1f %9.0f %9.3f\n", row->m, name, row->time_s * 1e6, row->mad_s * 1e6,
               row->bytes / 1e6, row->bytes / row->time_s / 1e9, row->flops / row->time_s / 1e9, row->fraction);
    }
    if (refused) print_refusals(r);
}

static int bench_kernels(int argc, char **argv)
{
    const char *op = NULL, *shape = NULL, *m_text = "1,2,4,8";
    int n_threads = 0, m[CLI_MAX_M], status, found;
    bool json = false;
    mm3_bench bench = { .m = m, .seconds = 2, .seed = 1 };
    mm3_bench_result result;
    mm3_device *device = NULL;
    const cli_option options[] = {
        { "op", 0, CLI_TEXT, &op, "OP", "the operation, required", 0, 0 },
        { "shape", 0, CLI_TEXT, &shape, "N,K|F=V,..", "its sizes; what is not named is as in MiniMax-M3", 0, 0 },
        { "m", 0, CLI_TEXT, &m_text, "LIST", "rows, apart by commas (default 1,2,4,8)", 0, 0 },
        { "candidate", 0, CLI_TEXT, &bench.candidate, "NAME", "only candidates of this name", 0, 0 },
        { "tactic", 0, CLI_TEXT, &bench.tactic, "NAME", "only tactics of this name", 0, 0 },
        { "threads", 0, CLI_INT, &n_threads, "N", "0: one per core (default)", 0, 1024 },
        { "rounds", 0, CLI_INT, &bench.rounds, "N", "0 (default): what fits into --seconds, 7 to 60", 0, 60 },
        { "seconds", 0, CLI_DOUBLE, &bench.seconds, "S", "for each m (default 2)", 0, 3600 },
        { "json", 0, CLI_FLAG, &json, NULL, "as JSON", 0, 0 },
        { .kind = CLI_HEADING,
          .help = "Always cold. fraction: the time in which this machine reads as many bytes, over the\n"
                  "candidate's, round by round." },
    };
    status = cli_parse(argc, argv, options, MM3_COUNT(options), NULL, 0);
    if (status != CLI_GO) return status;
    if (!op) return cli_usage("bench kernels needs an operation: add --op; 'mm3 info' lists them");
    found = mm3_op_find(op);
    if (found < 0) return cli_usage("there is no operation '%s': 'mm3 info' lists them", op);
    bench.op = (mm3_op_id)found;
    bench.shape = mm3_shape_default(bench.op);
    if (mm3_shape_parse(bench.op, mm3_shape_bench(bench.op), &bench.shape) != MM3_OK) return cli_failed();
    status = cli_read_rows("m", m_text, m, &bench.n_m);
    if (status == CLI_GO && shape) status = read_shape(bench.op, shape, &bench.shape);
    if (status != CLI_GO) return status;
    if (mm3_device_open(&device, n_threads) != MM3_OK) return cli_failed();
    if (mm3_bench_kernels_run(&result, &bench, device) != MM3_OK) {
        mm3_device_close(&device);
        return strstr(mm3_last_error(), "has no candidate") ? cli_usage("%s", mm3_last_error()) : cli_failed();
    }
    status = CLI_DONE;
    if (json)
        status = print_json(&result, op, shape ? shape : mm3_shape_bench(bench.op), mm3_device_info_of(device));
    else
        print_text(&result, op, mm3_device_info_of(device));
    mm3_bench_kernels_free(&result);
    mm3_device_close(&device);
    return status;
}

int cmd_bench(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } what[] = { { "kernels", bench_kernels }, { "decode", cli_bench_decode }, { "host", cli_bench_host } };
    for (int i = 0; i < MM3_COUNT(what) && argc > 1; i++)
        if (strcmp(argv[1], what[i].name) == 0) {
            argv[1] = argv[0]; /* errors and help speak of 'bench' */
            return what[i].run(argc - 1, argv + 1);
        }
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) return bench_kernels(argc, argv);
    if (argc > 1) return cli_usage("bench has no '%s': use 'mm3 bench kernels', 'decode' or 'host'", argv[1]);
    return cli_usage("bench needs what to measure: use 'mm3 bench kernels', 'decode' or 'host'");
}
