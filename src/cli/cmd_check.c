/* mm3 check: every candidate and tactic of every operation against its reference. */
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "tune/tune.h"

enum { MAX_LINES = 256 };

/* What became of one candidate and tactic. */
typedef struct tally {
    const mm3_kernel *kernel;
    const mm3_tactic *tactic;
    int n_passed, n_failed, n_refused;
    double worst;
    char refusal[sizeof((mm3_verdict *)0)->why];
} tally;

typedef struct check {
    tally line[MAX_LINES];
    int n_lines, n_passed, n_failed;
    int percent; /* shown last; -1: no terminal to show it on */
} check;

static void clear_progress(check *c)
{
    if (c->percent > 0) fputs("\r          \r", stderr);
    c->percent = MM3_MIN(c->percent, 0);
}

static tally *line_of(check *c, const mm3_kernel *kernel, const mm3_tactic *tactic)
{
    for (int i = 0; i < c->n_lines; i++)
        if (c->line[i].kernel == kernel && c->line[i].tactic == tactic) return &c->line[i];
    if (c->n_lines == MAX_LINES) return NULL;
    c->line[c->n_lines] = (tally){ .kernel = kernel, .tactic = tactic };
    return &c->line[c->n_lines++];
}

static void on_verdict(void *user, const mm3_kernel *kernel, const mm3_tactic *tactic, const mm3_verdict *v,
                       const char *repro)
{
    check *c = user;
    tally *t = line_of(c, kernel, tactic);
    c->n_passed += v->outcome == MM3_PASSED;
    c->n_failed += v->outcome == MM3_FAILED;
    if (t) {
        t->n_passed += v->outcome == MM3_PASSED;
        t->n_failed += v->outcome == MM3_FAILED;
        t->n_refused += v->outcome == MM3_REFUSED;
        t->worst = MM3_MAX(t->worst, v->worst);
        if (v->outcome == MM3_REFUSED && !t->refusal[0]) snprintf(t->refusal, sizeof t->refusal, "%s", v->why);
    }
    if (v->outcome != MM3_FAILED) return;
    clear_progress(c);
    printf("FAIL repro: %s   # %s\n", repro, v->why);
    fflush(stdout);
}

static void on_progress(void *user, double part)
{
    check *c = user;
    int percent = (int)(100 * part);
    if (c->percent < 0 || percent == c->percent) return;
    c->percent = percent;
    fprintf(stderr, "\r%3d %%", percent);
}

/* By operation, then in the order of the registry; workers met them in any order. */
static int by_registry(const void *a, const void *b)
{
    const tally *x = a, *y = b;
    const mm3_kernel *k[MM3_MAX_CANDIDATES];
    int n;
    if (x->kernel->op != y->kernel->op) return (int)x->kernel->op - (int)y->kernel->op;
    if (x->kernel == y->kernel) return x->tactic < y->tactic ? -1 : x->tactic > y->tactic;
    n = MM3_MIN(mm3_kernels_of(x->kernel->op, x->kernel->device, k, MM3_MAX_CANDIDATES), MM3_MAX_CANDIDATES);
    for (int i = 0; i < n; i++) {
        if (k[i] == x->kernel) return -1;
        if (k[i] == y->kernel) return 1;
    }
    return 0;
}

static void print_table(check *c)
{
    qsort(c->line, (size_t)c->n_lines, sizeof *c->line, by_registry);
    printf("%-22s %-22s %8s %8s  %s\n", "operation", "candidate/tactic", "passed", "failed",
           "largest error / tolerance");
    for (int i = 0; i < c->n_lines; i++) {
        const tally *t = &c->line[i];
        char name[64];
        snprintf(name, sizeof name, "%s/%s", t->kernel->name, t->tactic->name);
        printf("%-22s %-22s %8d %8d  ", mm3_op_info_of(t->kernel->op)->name, name, t->n_passed, t->n_failed);
        if (t->n_refused)
            printf("%.2f  refused %d: %s\n", t->worst, t->n_refused, t->refusal);
        else
            printf("%.2f\n", t->worst);
    }
}

/* Read what needs looking up. */
static int read_names(mm3_sweep *sweep, const char *op, const char *shape_text, const char *fill, mm3_shape *shape)
{
    if (op) {
        sweep->op = mm3_op_find(op);
        if (sweep->op < 0) return cli_usage("there is no operation '%s': 'mm3 info' lists them", op);
    }
    if (shape_text) {
        if (!op) return cli_usage("--shape needs an operation: add --op");
        *shape = mm3_shape_default((mm3_op_id)sweep->op);
        if (mm3_shape_parse((mm3_op_id)sweep->op, shape_text, shape) != MM3_OK)
            return cli_usage("%s", mm3_last_error());
        sweep->shape = shape;
    }
    if (fill) {
        sweep->fill = mm3_fill_find(fill);
        if (sweep->fill < 0) {
            char known[128] = "";
            for (int i = 0; i < MM3_N_FILLS; i++) {
                strcat(known, i ? ", " : "");
                strcat(known, mm3_fill_name((mm3_fill)i));
            }
            return cli_usage("there is no fill '%s': use one of %s", fill, known);
        }
    }
    return CLI_GO;
}

static int print_tolerances(void)
{
    char *text;
    if (mm3_tolerances_text(&text) != MM3_OK) return cli_failed();
    printf("u = 2^-24, the unit round-off of FP32. Bounds on |candidate - reference|:\n%s", text);
    mm3_free(text);
    return CLI_DONE;
}

int cmd_check(int argc, char **argv)
{
    static check c; /* too large for the stack of a small thread */
    const char *op = NULL, *shape_text = NULL, *fill = NULL;
    int64_t seed = 1;
    int n_threads = 0, status;
    bool tolerances = false;
    mm3_shape shape;
    mm3_device *device = NULL;
    mm3_sweep sweep = { .op = -1, .fill = -1, .report = on_verdict, .progress = on_progress, .user = &c };
    mm3_status st;
    const cli_option options[] = {
        { "op", 0, CLI_TEXT, &op, "OP", "only this operation", 0, 0 },
        { "candidate", 0, CLI_TEXT, &sweep.candidate, "NAME", "only candidates of this name", 0, 0 },
        { "tactic", 0, CLI_TEXT, &sweep.tactic, "NAME", "only tactics of this name", 0, 0 },
        { "shape", 0, CLI_TEXT, &shape_text, "F=V,..",
          "only this shape, with all fills; needs --op;\nfields that are not named have small values", 0, 0 },
        { "fill", 0, CLI_TEXT, &fill, "FILL",
          "only this fill: random, trained, zero, tiny, huge,\nsubnormal, nan, inf, scales, ties, exact", 0, 0 },
        { "seed", 0, CLI_INT64, &seed, "N", "of the inputs (default 1)", 0, 9007199254740992.0 },
        { "quick", 0, CLI_FLAG, &sweep.quick, NULL, "a reduced set, for sanitizer builds", 0, 0 },
        { "threads", 0, CLI_INT, &n_threads, "N", "cases at the same time; 0: one per core (default)", 0, 64 },
        { "tolerances", 0, CLI_FLAG, &tolerances, NULL, "print the table of tolerances and stop", 0, 0 },
        { .kind = CLI_HEADING,
          .help =
              "Every failure is a line that repeats it. Exit status 1 if there is one, or if nothing was checked." },
    };
    status = cli_parse(argc, argv, options, MM3_COUNT(options), NULL, 0);
    if (status != CLI_GO) return status;
    if (tolerances) return print_tolerances();
    status = read_names(&sweep, op, shape_text, fill, &shape);
    if (status != CLI_GO) return status;
    sweep.seed = (uint64_t)seed;
    c = (check){ .percent = isatty(STDERR_FILENO) ? 0 : -1 };
    if (mm3_device_open(&device, n_threads) != MM3_OK) return cli_failed();
    sweep.n_workers = mm3_device_info_of(device)->n_threads;
    st = mm3_sweep_run(&sweep, device);
    clear_progress(&c);
    mm3_device_close(&device);
    if (st == MM3_ERR_ARG && c.n_passed + c.n_failed == 0) return cli_usage("%s", mm3_last_error());
    if (st != MM3_OK) return cli_failed();
    print_table(&c);
    printf("%d passed, %d failed\n", c.n_passed, c.n_failed);
    return c.n_passed && !c.n_failed ? CLI_DONE : CLI_FAILED;
}
