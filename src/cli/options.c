/* Options of a command, from its table: read by getopt_long, values checked, help printed. */
#include <getopt.h>
#include <string.h>

#include "base/base.h"
#include "cli/describe.h"

enum { MAX_OPTIONS = 64, N_ENGINE = 15, LINE = 79 };

static void engine_table(cli_engine *e, cli_option *out)
{
    const cli_option table[N_ENGINE] = {
        { "model", 'm', CLI_TEXT, &e->options.model_dir, "DIR",
          "folder with config.json and the shards; else\n$MM3_MODEL, else models/tiny-m3", 0, 0 },
        { "numerics", 0, CLI_WORD, &e->numerics, "w8a8|w8a16",
          "w8a8 (default): rows become MXFP8 before every MXFP8\nlinear, as the checkpoint means it; w8a16: they "
          "stay\nFP32",
          0, 0 },
        { "threads", 0, CLI_INT, &e->options.n_threads, "N", "worker threads; 0: one per core (default)", 0, 1024 },
        { "context", 0, CLI_INT, &e->options.context, "N",
          "tokens per sequence; 0 (default): the model's limit,\nat most 8192", 0, 1 << 30 },
        { "max-batch", 0, CLI_INT, &e->options.max_batch, "N", "sequences that decode together (default 1)", 1, 4096 },
        { "chunk", 0, CLI_INT, &e->options.chunk, "N", "tokens per prefill step; 0: 256 (default)", 0, 1 << 20 },
        { "kv-dtype", 0, CLI_WORD, &e->options.kv_dtype, "f32|bf16", "how keys and values are kept (default f32)", 0,
          0 },
        { "backend", 0, CLI_TEXT, &e->options.backend, "PINS",
          "force candidates, several apart by ';':\nOP[,FIELD=V|V..W]...=CANDIDATE[/TACTIC] ('mm3 info')", 0, 0 },
        { "tune", 0, CLI_WORD, &e->options.tune, "auto|force|off",
          "auto (default): use decisions that are known, tune the\nrest; force: tune anew; off: natives and pins", 0,
          0 },
        { "graphs", 0, CLI_WORD, &e->options.graphs, "on|off", "off: nothing is recorded or tuned (default on)", 0, 0 },
        { "graph-shapes", 0, CLI_TEXT, &e->options.graph_shapes, "LIST",
          "rows of the recorded steps (default 1,2,4,8,16,24 ..)", 0, 0 },
        { "plan", 0, CLI_TEXT, &e->options.plan, "FILE", "decisions as 'mm3 tune' wrote them; nothing is timed", 0, 0 },
        { "plan-cache", 0, CLI_TEXT, &e->plan_cache, "DIR",
          "where decisions are kept (default\n$XDG_CACHE_HOME/mm3), or off", 0, 0 },
        { "tune-budget", 0, CLI_DOUBLE, &e->options.tune_budget_s, "SECONDS", "of tuning at most (default 60)", 0,
          1e6 },
        { "deterministic", 0, CLI_FLAG, &e->options.deterministic, NULL, "equal bits alone, in a batch and in chunks",
          0, 0 },
    };
    memcpy(out, table, sizeof table);
}

int cli_option_text(char *text, size_t n, const cli_option *o)
{
    int at = o->letter ? snprintf(text, n, "-%c, --%s", o->letter, o->name) : snprintf(text, n, "--%s", o->name);
    if (o->arg) at += snprintf(text + at, n - (size_t)at, " %.*s", (int)strcspn(o->arg, ":"), o->arg);
    return at;
}

/* A help text of several lines continues under its first. */
static void print_indented(const char *text, int indent)
{
    for (const char *end; (end = strchr(text, '\n')); text = end + 1)
        printf("%.*s\n%*s", (int)(end - text), text, indent, "");
    printf("%s\n", text);
}

static void print_options(const cli_option *table, int n)
{
    int column = 0; /* of an open paragraph */
    for (int i = 0; i < n; i++) {
        const cli_option *o = &table[i];
        char text[128];
        int width = o->kind == CLI_HEADING ? 0 : cli_option_text(text, sizeof text, o);
        if (column && (o->kind == CLI_HEADING || o->help)) {
            putchar('\n');
            column = 0;
        }
        if (o->kind == CLI_HEADING) {
            printf("%s\n", o->help);
        } else if (o->help) {
            printf("  %-24s ", text);
            if (width > 24) printf("\n%27s", "");
            print_indented(o->help, 27);
        } else {
            if (column && column + 3 + width > LINE) {
                putchar('\n');
                column = 0;
            }
            column += printf("  %s", text);
        }
    }
    if (column) putchar('\n');
}

void cli_print_engine_options(void)
{
    cli_engine e = CLI_ENGINE_INIT;
    cli_option table[N_ENGINE];
    engine_table(&e, table);
    printf("Options of every command that opens a model:\n\n");
    print_options(table, N_ENGINE);
}

/* What --help does instead of printing, while set. */
static struct {
    cli_describe *describe;
    FILE *to;
} instead;

void cli_describe_instead(cli_describe *describe, FILE *to)
{
    instead.describe = describe;
    instead.to = to;
}

void cli_describe_engine(cli_describe *describe, FILE *to)
{
    cli_engine e = CLI_ENGINE_INIT;
    cli_option table[N_ENGINE];
    engine_table(&e, table);
    describe(to, table, N_ENGINE, N_ENGINE);
}

static void print_help(const char *name, const cli_option *own, int n_own, const cli_option *engine, int n_engine)
{
    const cli_command *c = cli_find_command(name);
    cli_option paragraph[N_ENGINE + 1] = { { .kind = CLI_HEADING, .help = "engine ('mm3 help options' explains):" } };
    int indent = (int)strlen("usage: mm3  ") + (int)strlen(name);
    printf("mm3 %s: %s\n\nusage: mm3 %s ", name, c ? c->summary : "", name);
    print_indented(c ? c->usage : "", indent);
    putchar('\n');
    print_options(own, n_own);
    if (n_engine == 0) return;
    for (int i = 0; i < n_engine; i++) {
        paragraph[i + 1] = engine[i];
        paragraph[i + 1].help = NULL;
    }
    print_options(paragraph, n_engine + 1);
}

const char *cli_words_of(const cli_option *o)
{
    const char *colon = strchr(o->arg, ':');
    return colon ? colon + 1 : o->arg;
}

static bool is_word(const char *words, const char *s)
{
    size_t n = strlen(s);
    if (n == 0 || strchr(s, '|')) return false;
    for (const char *at = words; at; at = strchr(at, '|')) {
        if (*at == '|') at++;
        if (strncmp(at, s, n) == 0 && (at[n] == 0 || at[n] == '|')) return true;
    }
    return false;
}

/* Store a value; CLI_GO or CLI_USAGE. */
static int take(const char *command, const cli_option *o, const char *value)
{
    int64_t i = 0;
    double d = 0;
    switch (o->kind) {
    case CLI_FLAG:
        *(bool *)o->to = true;
        return CLI_GO;
    case CLI_TEXT:
        *(const char **)o->to = value;
        return CLI_GO;
    case CLI_WORD:
        if (!is_word(cli_words_of(o), value))
            return cli_usage("--%s '%s' is not one of %s: see 'mm3 %s --help'", o->name, value, cli_words_of(o),
                             command);
        *(const char **)o->to = value;
        return CLI_GO;
    case CLI_INT:
    case CLI_INT64:
        if (!mm3_parse_int(value, (int64_t)o->low, o->high >= 0x1p63 ? INT64_MAX : (int64_t)o->high, &i))
            return cli_usage("--%s '%s' is not a whole number from %.0f to %.0f: see 'mm3 %s --help'", o->name, value,
                             o->low, o->high, command);
        if (o->kind == CLI_INT)
            *(int *)o->to = (int)i;
        else
            *(int64_t *)o->to = i;
        return CLI_GO;
    case CLI_FLOAT:
    case CLI_DOUBLE:
        if (!mm3_parse_double(value, o->low, o->high, &d))
            return cli_usage("--%s '%s' is not a number from %g to %g: see 'mm3 %s --help'", o->name, value, o->low,
                             o->high, command);
        if (o->kind == CLI_FLOAT)
            *(float *)o->to = (float)d;
        else
            *(double *)o->to = d;
        return CLI_GO;
    case CLI_HEADING:
        break;
    }
    return CLI_GO;
}

/* getopt_long takes any unique beginning of a name; a script that relied on one would break when an option is added. */
static bool is_abbreviated(char **argv, const char *name)
{
    const char *given = argv[optind - 1];
    if (optarg && given == optarg) given = argv[optind - 2];
    size_t n = strlen(name);
    return strncmp(given, "--", 2) == 0 &&
           !(strncmp(given + 2, name, n) == 0 && (given[2 + n] == 0 || given[2 + n] == '='));
}

static int unknown(const char *command, char **argv, const cli_option *of_letter)
{
    if (optopt && of_letter) return cli_usage("--%s takes no value: see 'mm3 %s --help'", of_letter->name, command);
    if (optopt && optopt < 256)
        return cli_usage("%s has no option '-%c': see 'mm3 %s --help'", command, optopt, command);
    return cli_usage("%s has no option '%s': see 'mm3 %s --help'", command, argv[optind - 1], command);
}

int cli_parse(int argc, char **argv, const cli_option *own, int n_own, cli_engine *engine, int max_operands)
{
    static const cli_option help_option = { "help", 'h', CLI_FLAG, NULL, NULL, NULL, 0, 0 };
    cli_option table[MAX_OPTIONS];
    struct option longs[MAX_OPTIONS + 1] = { 0 };
    char shorts[3 * MAX_OPTIONS] = ":";
    int n = 0, n_long = 0, c, index, n_engine = engine ? N_ENGINE : 0;
    size_t at = 1;
    if (n_own + N_ENGINE + 1 > MAX_OPTIONS) return cli_error("%s has too many options", argv[0]);
    for (int i = 0; i < n_own; i++) table[n++] = own[i];
    if (engine) engine_table(engine, table + n);
    n += n_engine;
    table[n++] = help_option;
    for (int i = 0; i < n; i++) {
        if (table[i].kind == CLI_HEADING) continue;
        /* getopt returns 256 + i: the place in the table. */
        longs[n_long++] = (struct option){ table[i].name, table[i].kind == CLI_FLAG ? no_argument : required_argument,
                                           NULL, 256 + i };
        if (!table[i].letter) continue;
        shorts[at++] = table[i].letter;
        if (table[i].kind != CLI_FLAG) shorts[at++] = ':';
    }
    shorts[at] = 0;
    opterr = 0;
    optind = 1;
    while ((c = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
        index = -1;
        if (c == '?' || c == ':') {
            for (int i = 0; i < n; i++)
                if (optopt == 256 + i || (optopt && table[i].letter == optopt)) index = i;
            if (c == '?') return unknown(argv[0], argv, index < 0 ? NULL : &table[index]);
            return cli_usage("--%s needs a value: see 'mm3 %s --help'", table[index].name, argv[0]);
        }
        for (int i = 0; i < n; i++)
            if (c == 256 + i || (table[i].letter && table[i].letter == c)) index = i;
        if (c >= 256 && is_abbreviated(argv, table[index].name))
            return cli_usage("%s has no option '%s': write --%s in full", argv[0],
                             optarg && argv[optind - 1] == optarg ? argv[optind - 2] : argv[optind - 1],
                             table[index].name);
        if (index == n - 1) {
            if (instead.describe)
                instead.describe(instead.to, table, n_own, n_own + n_engine);
            else
                print_help(argv[0], own, n_own, table + n_own, n_engine);
            return CLI_DONE;
        }
        if ((c = take(argv[0], &table[index], optarg)) != CLI_GO) return c;
    }
    if (argc - optind > max_operands)
        return cli_usage("%s does not know what to do with '%s': see 'mm3 %s --help'", argv[0],
                         argv[optind + max_operands], argv[0]);
    if (engine) {
        engine->options.numerics =
            engine->numerics && strcmp(engine->numerics, "w8a16") == 0 ? MM3_NUMERICS_W8A16 : MM3_NUMERICS_W8A8;
    }
    return CLI_GO;
}
