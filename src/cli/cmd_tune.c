/* mm3 tune: the start-up life cycle up to a plan, and what came of it. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "cli/decisions.h"
#include "tune/tune.h"

enum { DEFAULT_MAX_BATCH = 64, MAX_CHOICES = 32 };

typedef struct report {
    cli_engine *with;
    const char *file; /* where the plan goes, or NULL */
    bool all;
    mm3_plan *plan;
    json_t *info;
} report;

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* How often something was chosen. */
typedef struct tally {
    const char *choice; /* borrowed from the plan */
    int n;
} tally;

static void count(tally *t, int *n, const char *choice)
{
    int i = 0;
    while (i < *n && strcmp(t[i].choice, choice) != 0) i++;
    if (i == MAX_CHOICES) return;
    if (i == *n) t[(*n)++] = (tally){ choice, 0 };
    t[i].n++;
    for (; i > 0 && t[i].n > t[i - 1].n; i--) {
        tally swap = t[i];
        t[i] = t[i - 1];
        t[i - 1] = swap;
    }
}

/* All stages of an operation on one line: their times, what they would take with natives, what was chosen. */
static void print_op(const mm3_plan *plan, mm3_op_id op)
{
    tally chosen[MAX_CHOICES];
    int n_chosen = 0, n = 0, n_timed = 0;
    double us = 0, native_us = 0;
    char time[32];
    for (int i = 0; i < mm3_plan_count(plan); i++) {
        const mm3_decision *d = mm3_plan_at(plan, i);
        const char *name = mm3_op_info_of(op)->name;
        double gain = cli_gain(d);
        if (strcspn(d->key, " ") != strlen(name) || strncmp(d->key, name, strlen(name)) != 0) continue;
        n++;
        count(chosen, &n_chosen, d->choice);
        if (d->how != MM3_HOW_TIMED || gain <= 0) continue;
        n_timed++;
        us += d->us;
        native_us += d->us * gain;
    }
    if (n == 0) return;
    printf("%-21s %6d ", mm3_op_info_of(op)->name, n);
    if (n_timed)
        printf("%9s %6.2fx  ", cli_time_text(us, time, sizeof time), native_us / us);
    else
        printf("%9s %7s  ", "-", "-");
    for (int i = 0; i < n_chosen && i < 3; i++) printf("%s%s %d", i ? ", " : "", chosen[i].choice, chosen[i].n);
    if (n_chosen > 3) printf(", %d others", n_chosen - 3);
    putchar('\n');
}

static void print_decisions(const report *r)
{
    int width = 0;
    if (!r->all) {
        printf("%-21s %6s %9s %7s  %s\n", "operation", "stages", "time", "gain", "chosen");
        for (int op = 0; op < MM3_N_OPS; op++) print_op(r->plan, (mm3_op_id)op);
        return;
    }
    for (int i = 0; i < mm3_plan_count(r->plan); i++) width = MM3_MAX(width, (int)strlen(mm3_plan_at(r->plan, i)->key));
    for (int i = 0; i < mm3_plan_count(r->plan); i++) cli_print_decision(mm3_plan_at(r->plan, i), width);
}

static void print_text(const report *r)
{
    const json_t *tuning = json_object_get(r->info, "tuning");
    int untimed = (int)json_integer_value(json_object_get(tuning, "untimed"));
    int rejected = (int)json_integer_value(json_object_get(tuning, "rejected"));
    print_decisions(r);
    putchar('\n');
    for (int i = 0; i < mm3_plan_count_steps(r->plan); i++) cli_print_step(mm3_plan_step_at(r->plan, i));
    putchar('\n');
    cli_print_ledger(stdout, r->info);
    if (untimed)
        printf("%d stages were not decided within the budget and stay native: run it again, or raise --tune-budget\n",
               untimed);
    if (rejected) printf("%d candidates were rejected as wrong or failing: 'mm3 plan why' says which\n", rejected);
    printf("plan %s", json_string_value(json_object_get(tuning, "plan_hash")));
    if (r->with->options.plan_cache) printf(", kept in %s", r->with->options.plan_cache);
    if (r->file) printf(", written to %s", r->file);
    putchar('\n');
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static int print_json(const report *r)
{
    static const char *const parts[] = { "startup", "tuning", "graphs" };
    json_t *out = json_object(), *stages = json_array(), *steps = json_array();
    for (int i = 0; i < mm3_plan_count(r->plan); i++)
        json_array_append_new(stages, cli_decision_json(mm3_plan_at(r->plan, i)));
    for (int i = 0; i < mm3_plan_count_steps(r->plan); i++)
        json_array_append_new(steps, cli_step_json(mm3_plan_step_at(r->plan, i)));
    json_object_set_new(out, "plan", r->file ? json_string(r->file) : json_null());
    for (int i = 0; i < MM3_COUNT(parts); i++) json_object_set(out, parts[i], json_object_get(r->info, parts[i]));
    json_object_set_new(out, "stages", stages);
    json_object_set_new(out, "steps", steps);
    return cli_print_json(out);
}

/* ----  ------------------------------------------------------------------------------------------------------------ */

/* Said before a minute is spent. */
static bool can_write(const char *path)
{
    char folder[4096];
    const char *slash = strrchr(path, '/');
    int n = slash ? (int)(slash - path) + 1 : 0;
    if (n >= (int)sizeof folder) return cli_error("cannot write %s: its name is too long", path) == CLI_DONE;
    snprintf(folder, sizeof folder, "%.*s.", n, path);
    if (access(folder, W_OK | X_OK) == 0 || access(path, W_OK) == 0) return true;
    return cli_error("cannot write %s: %s", path, strerror(errno)) == CLI_DONE;
}

static mm3_status take_plan(report *r, mm3_engine *engine)
{
    mm3_buf warnings = { 0 };
    char *text = NULL;
    mm3_status st;
    MM3_TRY(mm3_engine_plan(engine, &text));
    st = mm3_plan_parse(&r->plan, text, strlen(text), "the plan", &warnings);
    mm3_free(text);
    mm3_buf_free(&warnings);
    return st == MM3_OK && r->file ? mm3_plan_save(r->plan, r->file) : st;
}

int cmd_tune(int argc, char **argv)
{
    cli_engine with = CLI_ENGINE_INIT;
    report r = { .with = &with };
    bool json = false;
    const cli_option options[] = {
        { "all", 'a', CLI_FLAG, &r.all, NULL, "a line for every stage, not for every operation", 0, 0 },
        { "json", 0, CLI_FLAG, &json, NULL, "all of it as JSON", 0, 0 },
        { .kind = CLI_HEADING,
          .help = "--plan FILE: where to write the decisions, for --plan of the other commands.\n"
                  "--max-batch: 64 unless it is given. Ctrl-C stops and keeps what is decided." },
    };
    mm3_engine *engine = NULL;
    const char *gate;
    int status;
    with.options.max_batch = DEFAULT_MAX_BATCH;
    if ((status = cli_parse(argc, argv, options, MM3_COUNT(options), &with, 0)) != CLI_GO) return status;
    r.file = with.options.plan;
    with.options.plan = NULL;
    gate = mm3_tune_gate(with.options.tune, with.options.graphs, NULL);
    if (gate) return cli_usage("there is nothing to tune where %s: leave that option out", gate);
    if (r.file && !can_write(r.file)) return CLI_FAILED;
    if ((status = cli_open_engine(&engine, &with)) != CLI_GO) return status;
    r.info = cli_engine_info(engine);
    if (!r.info)
        status = CLI_FAILED;
    else if (take_plan(&r, engine) != MM3_OK)
        status = cli_failed();
    else if (json)
        status = print_json(&r);
    else {
        print_text(&r);
        status = CLI_DONE;
    }
    json_decref(r.info);
    mm3_plan_close(&r.plan);
    mm3_engine_close(&engine);
    return status;
}
