/* mm3 plan: show, explain and compare decisions. Measures nothing. */
#include <getopt.h>
#include <string.h>

#include "cli/decisions.h"
#include "cli/stages.h"
#include "tune/tune.h"

/* What a sub-command works on. */
typedef struct job {
    cli_engine with;
    bool json;
    mm3_device *device;
    const mm3_device_info *info;
    mm3_pins *pins;
    mm3_model *model; /* NULL: none was asked for, or is needed */
    mm3_plan *plan;   /* NULL: there is none yet */
    char *path;       /* of the plan */
} job;

static void close_job(job *j)
{
    mm3_plan_close(&j->plan);
    mm3_model_close(&j->model);
    mm3_pins_free(&j->pins);
    mm3_device_close(&j->device);
    mm3_free(j->path);
}

/* ---- plans and models -------------------------------------------------------------------------------------------- */

static mm3_status load(mm3_plan **out, const char *path)
{
    mm3_buf warnings = { 0 };
    mm3_status st = mm3_plan_load(out, path, &warnings);
    if (warnings.n) cli_warn("%.*s", (int)warnings.n - 1, warnings.data); /* one line */
    mm3_buf_free(&warnings);
    return st;
}

/* The cache file of this device, thread count and policy, if it is there. */
static mm3_status load_cache(job *j)
{
    mm3_plan_head head;
    if (!j->with.options.plan_cache) return MM3_OK;
    mm3_plan_head_of_device(&head, j->info, MM3_TUNE_POLICY, MM3_TUNE_WORKLOAD);
    j->path = mm3_plan_cache_path(j->with.options.plan_cache, &head);
    MM3_CHECK(j->path, MM3_ERR_NOMEM, "out of memory");
    return mm3_path_exists(j->path) ? load(&j->plan, j->path) : MM3_OK;
}

static mm3_status load_file(job *j, const char *path)
{
    j->path = mm3_strdup(path);
    MM3_CHECK(j->path, MM3_ERR_NOMEM, "out of memory");
    return load(&j->plan, path);
}

static mm3_status open_device(job *j)
{
    MM3_TRY(mm3_device_open(&j->device, j->with.options.n_threads));
    j->info = mm3_device_info_of(j->device);
    return j->with.options.backend ? mm3_pins_parse(&j->pins, j->with.options.backend, j->info->kind) : MM3_OK;
}

/* Stages of the model's steps at these sizes, as the engine would choose them. */
static mm3_status open_steps(job *j, int max_batch, cli_steps *steps)
{
    enum { CONTEXT = 8192, CHUNK = 256 };
    const mm3_options *o = &j->with.options;
    int context = o->context ? o->context : MM3_MIN(CONTEXT, j->model->config.max_position);
    mm3_dtype kv_type = o->kv_dtype && strcmp(o->kv_dtype, "bf16") == 0 ? MM3_BF16 : MM3_F32;
    return cli_steps_open(steps, j->model, o->numerics, kv_type, max_batch,
                          MM3_MIN(o->chunk ? o->chunk : CHUNK, context), context);
}

/* ---- show -------------------------------------------------------------------------------------------------------- */

/* Whether the keys differ in m at most. */
static bool same_but_m(const mm3_key *a, const mm3_key *b)
{
    int i = 0, k = 0;
    if (a->op != b->op) return false;
    for (;; i++, k++) {
        if (i < a->n && strcmp(a->field[i].name, "m") == 0) i++;
        if (k < b->n && strcmp(b->field[k].name, "m") == 0) k++;
        if (i >= a->n || k >= b->n) return i >= a->n && k >= b->n;
        if (strcmp(a->field[i].name, b->field[k].name) != 0 || !a->field[i].text != !b->field[k].text) return false;
        if (a->field[i].text ? strcmp(a->field[i].text, b->field[k].text) != 0
                             : a->field[i].number != b->field[k].number)
            return false;
    }
}

static bool is_of_model(const cli_steps *steps, const mm3_decision *d)
{
    char copy[MM3_MAX_KEY_TEXT], other[MM3_MAX_KEY_TEXT];
    mm3_key key, of;
    if (!cli_read_key(d->key, copy, &key)) return false;
    for (int i = 0; i < steps->n; i++)
        if (cli_read_key(steps->stage[i].key, other, &of) && same_but_m(&key, &of)) return true;
    return false;
}

/* steps  of the model whose decisions are wanted, or NULL: all */
static int show_text(const job *j, const cli_steps *steps)
{
    const mm3_plan_head *h = mm3_plan_head_of(j->plan);
    int width = 0, n = 0;
    char hash[9];
    for (int i = 0; i < mm3_plan_count(j->plan); i++) {
        const mm3_decision *d = mm3_plan_at(j->plan, i);
        if (steps && !is_of_model(steps, d)) continue;
        width = MM3_MAX(width, (int)strlen(d->key));
        n++;
    }
    mm3_plan_hash(j->plan, hash);
    printf("%s\n%s, %d threads; %s; policy %d; mm3 %s; %d decisions, hash %s\n", j->path, h->device, h->n_threads,
           h->workload, h->policy, h->version, n, hash);
    for (int i = 0; i < mm3_plan_count(j->plan); i++)
        if (!steps || is_of_model(steps, mm3_plan_at(j->plan, i))) cli_print_decision(mm3_plan_at(j->plan, i), width);
    for (int i = 0; i < mm3_plan_count_steps(j->plan) && !steps; i++) cli_print_step(mm3_plan_step_at(j->plan, i));
    return CLI_DONE;
}

static int show_json(const job *j, const cli_steps *steps)
{
    const mm3_plan_head *h = mm3_plan_head_of(j->plan);
    json_t *stages = json_array(), *verdicts = json_array();
    char hash[9];
    mm3_plan_hash(j->plan, hash);
    for (int i = 0; i < mm3_plan_count(j->plan); i++)
        if (!steps || is_of_model(steps, mm3_plan_at(j->plan, i)))
            json_array_append_new(stages, cli_decision_json(mm3_plan_at(j->plan, i)));
    for (int i = 0; i < mm3_plan_count_steps(j->plan) && !steps; i++)
        json_array_append_new(verdicts, cli_step_json(mm3_plan_step_at(j->plan, i)));
    return cli_print_json(json_pack("{ss ss si ss si ss ss so so}", "path", j->path, "device", h->device, "threads",
                                    h->n_threads, "workload", h->workload, "policy", h->policy, "version", h->version,
                                    "hash", hash, "stages", stages, "steps", verdicts));
}

static int show(job *j, int n, char **operand)
{
    cli_steps steps = { 0 };
    const cli_steps *of = NULL;
    mm3_status st = n ? load_file(j, operand[0]) : MM3_OK;
    if (n > 1) return cli_usage("plan show takes one file, not '%s' too", operand[1]);
    if (st == MM3_OK && !n) st = open_device(j);
    if (st == MM3_OK && !n) st = load_cache(j);
    if (st == MM3_OK && j->with.options.model_dir) {
        st = mm3_model_open(&j->model, j->with.options.model_dir);
        if (st == MM3_OK) st = open_steps(j, j->with.options.max_batch, &steps);
        of = &steps;
    }
    if (st == MM3_OK && !j->plan)
        st = mm3_fail(MM3_ERR_IO, MM3_HERE, "no decisions are kept for this machine (%s is not there): run 'mm3 tune'",
                      j->path ? j->path : "--plan-cache off:");
    if (st == MM3_OK)
        n = j->json ? show_json(j, of) : show_text(j, of);
    else
        n = cli_failed();
    cli_steps_close(&steps);
    return n;
}

/* ---- why --------------------------------------------------------------------------------------------------------- */

/* A stage that the plan doesn't decide: what would run, and which candidates accept it. The decision's arrays are the
 * caller's: tried[MM3_MAX_CANDIDATES * MAX_TACTICS], and text for it. */
enum { MAX_TRIED = 256 };
typedef struct undecided {
    mm3_decision d;
    mm3_tried tried[MAX_TRIED];
    char choice[MAX_TRIED][MM3_MAX_CHOICE_TEXT], why[MAX_TRIED][128];
} undecided;

static void ask(undecided *u, const mm3_device_info *device, const mm3_stage *stage)
{
    const mm3_kernel *k[MM3_MAX_CANDIDATES];
    int n = MM3_MIN(mm3_kernels_of(stage->op, device->kind, k, MM3_MAX_CANDIDATES), MM3_MAX_CANDIDATES), at = 0;
    u->d = (mm3_decision){ .key = stage->key, .how = MM3_HOW_UNTIMED, .tried = u->tried };
    for (int i = 0; i < n; i++)
        for (int t = 0; t < k[i]->n_tactics && at < MAX_TRIED; t++, at++) {
            const char *why = k[i]->refuses ? k[i]->refuses(device, stage->contract[0], &k[i]->tactics[t]) : NULL;
            mm3_choice_text(k[i], &k[i]->tactics[t], u->choice[at], sizeof u->choice[at]);
            snprintf(u->why[at], sizeof u->why[at], "%s", why ? why : "");
            if (at == 0) { /* accepts everything */
                u->d.choice = u->choice[0];
                snprintf(u->d.source, sizeof u->d.source, "%s", mm3_kernel_source(k[0]));
                continue;
            }
            u->tried[u->d.n_tried++] = (mm3_tried){ .choice = u->choice[at],
                                                    .fate = why ? MM3_FATE_REFUSED : MM3_FATE_UNTIMED,
                                                    .why = why ? u->why[at] : NULL };
        }
}

typedef struct answer {
    const job *j;
    const char *gate; /* why nothing is tuned, or NULL */
    json_t *stages, *steps;
    int n;
} answer;

static void say(answer *a, const mm3_decision *d, const mm3_key *key, const char *note)
{
    const char *pinned = NULL;
    char pin[MM3_MAX_CHOICE_TEXT];
    mm3_choice choice;
    if (a->j->pins && mm3_pins_match(a->j->pins, key, &choice)) {
        mm3_choice_text(choice.kernel, choice.tactic, pin, sizeof pin);
        pinned = pin;
    }
    if (a->j->json) {
        json_t *o = cli_decision_json(d);
        json_object_set_new(o, "pin", pinned ? json_string(pinned) : json_null());
        json_object_set_new(o, "note", note ? json_string(note) : json_null());
        json_array_append_new(a->stages, o);
    } else {
        cli_explain(d, note, pinned);
    }
    a->n++;
}

/* The verdict on the decode steps of that many rows: it may keep natives whatever a stage's winner is. */
static void say_step(answer *a, int m)
{
    char name[32];
    snprintf(name, sizeof name, "m=%d", m);
    for (int i = 0; i < mm3_plan_count_steps(a->j->plan); i++) {
        const mm3_step_verdict *v = mm3_plan_step_at(a->j->plan, i);
        if (strcmp(v->step, name) != 0) continue;
        if (a->j->json)
            json_array_append_new(a->steps, cli_step_json(v));
        else
            cli_print_step(v);
    }
}

static void say_decided(answer *a, const cli_filter *f)
{
    const mm3_plan *plan = a->j->plan;
    bool seen[4097] = { false };
    for (int i = 0; i < mm3_plan_count(plan); i++) {
        const mm3_decision *d = mm3_plan_at(plan, i);
        char copy[MM3_MAX_KEY_TEXT];
        mm3_key key;
        if (!cli_read_key(d->key, copy, &key) || !cli_filter_matches(f, &key)) continue;
        say(a, d, &key, d->kernel ? NULL : "stale: it was chosen among other kernels than this mm3 has");
        for (int k = 0; k < key.n; k++)
            if (strcmp(key.field[k].name, "m") == 0 && key.field[k].number <= 4096) seen[key.field[k].number] = true;
    }
    for (int m = 1; m <= 4096; m++)
        if (seen[m]) say_step(a, m);
}

static int say_undecided(answer *a, job *j, const cli_filter *f)
{
    int m = cli_filter_m(f);
    const char *dir = cli_model_dir(j->with.options.model_dir);
    undecided *u;
    cli_steps steps = { 0 };
    mm3_status st;
    if (!dir) return CLI_USAGE;
    if (!(u = cli_alloc(1, sizeof *u))) return CLI_FAILED;
    st = mm3_model_open(&j->model, dir);
    if (st == MM3_OK) st = open_steps(j, m ? m : j->with.options.max_batch, &steps);
    for (int i = 0; i < steps.n && st == MM3_OK; i++) {
        char copy[MM3_MAX_KEY_TEXT];
        mm3_key key;
        if (!cli_read_key(steps.stage[i].key, copy, &key) || !cli_filter_matches(f, &key)) continue;
        ask(u, j->info, &steps.stage[i]);
        say(a, &u->d, &key, a->gate ? "runs: nothing is tuned" : "not decided yet: 'mm3 tune' decides");
    }
    cli_steps_close(&steps);
    mm3_free(u);
    return st == MM3_OK ? CLI_GO : cli_failed();
}

/* Decisions that this mm3 would not follow have no kernel then. */
static void find_stale(job *j)
{
    mm3_plan_head head;
    mm3_buf warnings = { 0 };
    char differs[640];
    mm3_plan_head_of_device(&head, j->info, MM3_TUNE_POLICY, MM3_TUNE_WORKLOAD);
    if (mm3_plan_head_differs(mm3_plan_head_of(j->plan), &head, differs, sizeof differs))
        cli_warn("%s can't be used here: %s", j->path, differs);
    mm3_plan_bind(j->plan, j->info->kind, mm3_kernels_of, j->path, &warnings);
    mm3_buf_free(&warnings);
}

static int why(job *j, int n, char **operand)
{
    cli_filter f;
    const mm3_options *o = &j->with.options;
    answer a = { .j = j, .gate = mm3_tune_gate(o->tune, o->graphs, NULL) };
    mm3_status st;
    int status = CLI_GO;
    if (n < 1) return cli_usage("plan why needs an operation, and fields of its key: see 'mm3 plan --help'");
    if (!cli_filter_parse(&f, n, operand)) return CLI_USAGE;
    st = open_device(j);
    if (st == MM3_OK && !a.gate) st = o->plan ? load_file(j, o->plan) : load_cache(j);
    if (st != MM3_OK) return cli_failed();
    if (j->plan) find_stale(j);
    if (j->json) {
        a.stages = json_array();
        a.steps = json_array();
    } else if (a.gate) {
        printf("nothing is tuned: %s; every stage runs its pin, or the first of its candidates\n", a.gate);
    }
    if (j->plan) say_decided(&a, &f);
    if (a.n == 0) status = say_undecided(&a, j, &f);
    if (status == CLI_GO && a.n == 0)
        status = cli_error("no stage of that key: the plan has none, and the model's steps of %d and %d rows neither",
                           cli_filter_m(&f) ? cli_filter_m(&f) : o->max_batch, o->chunk ? o->chunk : 256);
    if (status == CLI_GO && j->json)
        return cli_print_json(json_pack("{ss? ss? so so}", "gate", a.gate, "plan", j->plan ? j->path : NULL, "stages",
                                        a.stages, "steps", a.steps));
    json_decref(a.stages);
    json_decref(a.steps);
    return status == CLI_GO ? CLI_DONE : status;
}

/* ---- diff -------------------------------------------------------------------------------------------------------- */

static int diff(job *j, int n, char **operand)
{
    mm3_plan *other = NULL;
    char *text = NULL, differs[640];
    mm3_status st;
    if (n != 2) return cli_usage("plan diff takes two files, not %d", n);
    st = load_file(j, operand[0]);
    if (st == MM3_OK) st = load(&other, operand[1]);
    if (st == MM3_OK) st = mm3_plan_diff(j->plan, other, &text);
    if (st == MM3_OK) {
        if (mm3_plan_head_differs(mm3_plan_head_of(other), mm3_plan_head_of(j->plan), differs, sizeof differs))
            cli_warn("%s does not go with %s: %s", operand[1], operand[0], differs);
        fputs(text, stdout);
    }
    mm3_free(text);
    mm3_plan_close(&other);
    return st == MM3_OK ? CLI_DONE : cli_failed();
}

/* ----  ------------------------------------------------------------------------------------------------------------ */

int cmd_plan(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(job *j, int n, char **operand);
    } commands[] = { { "show", show }, { "why", why }, { "diff", diff } };
    job j = { .with = CLI_ENGINE_INIT };
    const cli_option options[] = {
        { "json", 0, CLI_FLAG, &j.json, NULL, "as JSON (show, why)", 0, 0 },
        { .kind = CLI_HEADING,
          .help = "show: of a file, or what is kept for this machine; -m: of that model alone\n"
                  "why:  what was chosen for each stage of that key, and what became of the others\n"
                  "diff: '<' only in the first, '>' only in the second, '!' decided differently" },
    };
    int status = cli_parse(argc, argv, options, MM3_COUNT(options), &j.with, MM3_MAX_KEY_FIELDS + 2);
    char **operand = argv + optind;
    int n = argc - optind;
    if (status != CLI_GO) return status;
    if (n < 1) return cli_usage("plan needs what to do: show, why or diff; see 'mm3 plan --help'");
    if (!cli_find_plan_cache(&j.with)) return CLI_USAGE;
    for (int i = 0; i < MM3_COUNT(commands); i++) {
        if (strcmp(operand[0], commands[i].name) != 0) continue;
        status = commands[i].run(&j, n - 1, operand + 1);
        close_job(&j);
        return status;
    }
    return cli_usage("plan has no '%s': it has show, why and diff", operand[0]);
}
