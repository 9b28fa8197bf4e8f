/* mm3 bench host: what is done beside the steps, each part in a process of its own: its time and its memory. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "bench/bench.h"
#include "cli/cli.h"

enum { MAX_PARTS = 32, MAX_ROUNDS = 100 };

typedef struct host_options {
    const char *parts; /* names apart by commas; NULL: all */
    double size;
    int rounds;
    bool json;
} host_options;

/* What a child hands to its parent. */
typedef struct reply {
    mm3_bench_host result;
    int status;
    char error[1024]; /* "": it printed the error itself, or there is none */
} reply;

typedef struct measured {
    mm3_bench_host of[MAX_ROUNDS];
    int n;
} measured;

/* ---- the folder of inputs ------------------------------------------------------------------------------------ */

static bool make_folder(char *dir, size_t n)
{
    const char *tmp = getenv("TMPDIR");
    int length = snprintf(dir, n, "%s/mm3-bench-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if ((size_t)length < n && mkdtemp(dir)) return true;
    dir[0] = 0;
    cli_error("cannot make a folder in %s: set $TMPDIR to one that can be written", tmp && *tmp ? tmp : "/tmp");
    return false;
}

static bool remove_file(void *dir, const char *name)
{
    char *path = name[0] == '.' ? NULL : mm3_path_join(dir, name);
    if (path) (void)unlink(path);
    mm3_free(path);
    return true;
}

static void remove_folder(char *dir)
{
    if (!*dir) return;
    mm3_dir_each(dir, remove_file, dir);
    (void)rmdir(dir);
}

/* ---- children -------------------------------------------------------------------------------------------------- */

static reply run_part(int i, const char *dir, double size, cli_engine *with)
{
    reply r = { .status = CLI_GO };
    mm3_engine *engine = NULL;
    if (mm3_bench_host_needs_engine(i)) r.status = cli_open_engine(&engine, with);
    if (r.status != CLI_GO) return r;
    r.status =
        mm3_bench_host_run(&r.result, i, dir, size, engine, with->options.model_dir) == MM3_OK ? CLI_DONE : CLI_FAILED;
    if (r.status != CLI_DONE) snprintf(r.error, sizeof r.error, "%s", mm3_last_error());
    mm3_engine_close(&engine);
    return r;
}

/* i -1: write the inputs, so that what that takes is not in the memory of the parts. */
static void child(int fd, int i, const char *dir, double size, cli_engine *with)
{
    reply r = { .status = CLI_DONE };
    ssize_t n;
    cli_catch_interrupt(false);
    if (i >= 0) {
        r = run_part(i, dir, size, with);
    } else if (mm3_bench_host_make(dir, size) != MM3_OK) {
        r.status = CLI_FAILED;
        snprintf(r.error, sizeof r.error, "%s", mm3_last_error());
    }
    n = write(fd, &r, sizeof r);
    fflush(stderr);
    _exit(n == (ssize_t)sizeof r ? 0 : 1);
}

/* CLI_DONE, or the status to exit with after the error was printed. */
static int ask_child(mm3_bench_host *out, int i, const char *dir, double size, cli_engine *with)
{
    const char *name = i < 0 ? "the inputs" : mm3_bench_host_name(i);
    int pipes[2], how = 0;
    ssize_t n = 0;
    pid_t pid;
    reply r;
    if (cli_interrupted()) return CLI_INTERRUPTED;
    if (pipe(pipes) != 0) return cli_error("no pipe for %s: too many files are open", name);
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        close(pipes[0]);
        child(pipes[1], i, dir, size, with);
    }
    close(pipes[1]);
    while (pid > 0 && (n = read(pipes[0], &r, sizeof r)) < 0 && !cli_interrupted()) continue;
    close(pipes[0]);
    if (pid > 0 && cli_interrupted()) (void)kill(pid, SIGTERM);
    while (pid > 0 && waitpid(pid, &how, 0) < 0) continue;
    if (cli_interrupted()) return CLI_INTERRUPTED;
    if (pid < 0) return cli_error("no process for %s: memory or the number of processes is limited", name);
    if (n != (ssize_t)sizeof r)
        return cli_error("%s ended early, by signal %d: is memory short?", name, WIFSIGNALED(how) ? WTERMSIG(how) : 0);
    if (r.error[0]) return cli_error("%s: %s", name, r.error);
    if (r.status == CLI_DONE && out) *out = r.result;
    return r.status;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static mm3_spread spread_of(const measured *m, size_t at)
{
    double x[MAX_ROUNDS];
    for (int i = 0; i < m->n; i++) memcpy(&x[i], (const char *)&m->of[i] + at, sizeof x[i]);
    return mm3_spread_of(x, m->n);
}
#define SPREAD(m, member) spread_of(m, offsetof(mm3_bench_host, member))

static int print_json(const measured *parts, const host_options *o)
{
    json_t *rows = json_array();
    for (int i = 0; i < mm3_bench_host_count(); i++) {
        const measured *m = &parts[i];
        mm3_spread processor = SPREAD(m, processor_s), clock = SPREAD(m, clock_s);
        if (!m->n) continue;
        json_array_append_new(
            rows,
            json_pack("{ss sI ss sI so so so so so so}", "part", mm3_bench_host_name(i), "n", (json_int_t)m->of[0].n,
                      "unit", mm3_bench_host_unit(i), "text_bytes", (json_int_t)m->of[0].bytes, "processor_s",
                      cli_json_real(processor.median), "mad_s", cli_json_real(processor.mad), "clock_s",
                      cli_json_real(clock.median), "clock_mad_s", cli_json_real(clock.mad), "before_bytes",
                      cli_json_real(SPREAD(m, before).median), "peak_bytes", cli_json_real(SPREAD(m, peak).median)));
    }
    return cli_print_json(json_pack("{so si so}", "size", json_real(o->size), "rounds", o->rounds, "parts", rows));
}

static int print_text(const measured *parts, const host_options *o)
{
    printf(
        "median of %d run%s, each in a process of its own; MB before: resident when the part begins\n\n%-15s %21s %9s "
        "%13s %7s %10s %10s %8s\n",
        o->rounds, o->rounds == 1 ? "" : "s", "part", "what", "text MB", "processor ms", "mad %", "clock ms",
        "MB before", "MB peak");
    for (int i = 0; i < mm3_bench_host_count(); i++) {
        const measured *m = &parts[i];
        mm3_spread processor = SPREAD(m, processor_s);
        char what[40], text[16] = "-";
        if (!m->n) continue;
        snprintf(what, sizeof what, "%lld %s", (long long)m->of[0].n, mm3_bench_host_unit(i));
        if (m->of[0].bytes) snprintf(text, sizeof text, "%.2f", (double)m->of[0].bytes * 1e-6);
        printf("%-15s %21s %9s %13.1f %7.1f %10.1f %10.1f %8.1f\n", mm3_bench_host_name(i), what, text,
               processor.median * 1e3, 100 * processor.mad / processor.median, SPREAD(m, clock_s).median * 1e3,
               SPREAD(m, before).median * 1e-6, SPREAD(m, peak).median * 1e-6);
    }
    return CLI_DONE;
}

/* Mark the parts of the list. CLI_GO, or the status to exit with. */
static int choose_parts(const char *list, bool *chosen)
{
    for (int i = 0; i < mm3_bench_host_count(); i++) chosen[i] = !list;
    if (list && !*list) return cli_usage("--part names none: leave it out for all");
    for (size_t n; list && *list; list += n + (list[n] == ',')) {
        int i = 0;
        n = strcspn(list, ",");
        while (i < mm3_bench_host_count() &&
               (strlen(mm3_bench_host_name(i)) != n || strncmp(list, mm3_bench_host_name(i), n) != 0))
            i++;
        if (i == mm3_bench_host_count())
            return cli_usage("bench host has no part '%.*s': run it without --part to see them",
                             (int)MM3_MIN(n, (size_t)40), list);
        chosen[i] = true;
    }
    return CLI_GO;
}

static int run(const host_options *o, cli_engine *with, const bool *chosen, measured *parts)
{
    char dir[1024];
    int status;
    if (!make_folder(dir, sizeof dir)) return CLI_FAILED;
    cli_catch_interrupt(true);
    status = ask_child(NULL, -1, dir, o->size, with);
    for (int round = 0; round < o->rounds && status == CLI_DONE; round++) {
        for (int i = 0; i < mm3_bench_host_count() && status == CLI_DONE; i++) {
            if (!chosen[i]) continue;
            status = ask_child(&parts[i].of[parts[i].n++], i, dir, o->size, with);
        }
    }
    cli_catch_interrupt(false);
    remove_folder(dir);
    if (status != CLI_DONE) return status;
    return o->json ? print_json(parts, o) : print_text(parts, o);
}

int cli_bench_host(int argc, char **argv)
{
    cli_engine with = CLI_ENGINE_INIT;
    host_options o = { .size = 1, .rounds = 5 };
    measured *parts;
    bool chosen[MAX_PARTS];
    int status;
    const cli_option options[] = {
        { "part", 0, CLI_TEXT, &o.parts, "NAME,..", "these alone, by their names in the table", 0, 0 },
        { "size", 0, CLI_DOUBLE, &o.size, "X", "of all inputs: 1 (default) is a release's", 0.001, 100 },
        { "rounds", 0, CLI_INT, &o.rounds, "N", "runs of each part (default 5)", 1, MAX_ROUNDS },
        { "json", 0, CLI_FLAG, &o.json, NULL, "as JSON", 0, 0 },
        { .kind = CLI_HEADING,
          .help = "Inputs are made in $TMPDIR, 27 MB, and removed: a listing of 45838 tensors,\n"
                  "200000 tokens, texts of a megabyte. The prompt alone needs the model (-m) and\n"
                  "takes its options." },
    };
    status = cli_parse(argc, argv, options, MM3_COUNT(options), &with, 0);
    if (status != CLI_GO) return status;
    status = choose_parts(o.parts, chosen);
    if (status != CLI_GO) return status;
    parts = cli_alloc(MAX_PARTS, sizeof *parts);
    if (!parts) return CLI_FAILED;
    status = run(&o, &with, chosen, parts);
    mm3_free(parts);
    return status;
}
