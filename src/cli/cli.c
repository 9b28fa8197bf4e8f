/* What commands share: errors, checked output, the environment, files of ids, Ctrl-C. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/base.h"
#include "cli/cli.h"

/* ---- errors and output ------------------------------------------------------------------------------------------- */

/* File names and arguments may hold line ends and control characters; an error stays one line. */
static void print_line(const char *what, const char *fmt, va_list args)
{
    char text[2048];
    vsnprintf(text, sizeof text, fmt, args);
    for (char *s = text; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7F) *s = ' ';
    fflush(stdout); /* what was printed before comes first where both go to one place */
    fprintf(stderr, "mm3: %s%s\n", what, text);
}

void cli_warn(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    print_line("warning: ", fmt, args);
    va_end(args);
}

int cli_usage(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    print_line("", fmt, args);
    va_end(args);
    return CLI_USAGE;
}

int cli_error(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    print_line("", fmt, args);
    va_end(args);
    return CLI_FAILED;
}

int cli_failed(void) { return cli_error("%s", mm3_last_error()); }

static int output_errno; /* of the first write that failed */

bool cli_flush(void)
{
    if (output_errno == 0) {
        errno = 0;
        if (fflush(stdout) != 0 || ferror(stdout)) output_errno = errno ? errno : EIO;
    }
    return output_errno == 0;
}

int cli_finish(int status)
{
    if (cli_flush()) return status;
    if (output_errno != EPIPE)
        fprintf(stderr, "mm3: cannot write standard output: %s: free space or send it elsewhere\n",
                strerror(output_errno));
    return CLI_FAILED;
}

int cli_print_json(json_t *value)
{
    int rc;
    if (!value) return cli_error("out of memory for the output");
    rc = json_dumpf(value, stdout, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
    json_decref(value);
    putchar('\n');
    if (rc != 0 && cli_flush()) return cli_error("cannot make JSON of the result");
    return CLI_DONE;
}

json_t *cli_json_real(double value) { return isfinite(value) ? json_real(value) : json_null(); }

json_t *cli_json_ids(const int32_t *ids, int n)
{
    json_t *array = json_array();
    for (int i = 0; i < n; i++)
        if (json_array_append_new(array, json_integer(ids[i])) != 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

bool cli_model_has(const char *dir, const char *name)
{
    char *path = mm3_path_join(dir, name);
    bool found = path && mm3_path_exists(path);
    mm3_free(path);
    return found;
}

const char *cli_model_dir(const char *given)
{
    static const char *const fallback = "models/tiny-m3";
    const char *from_environment = getenv("MM3_MODEL");
    if (given && *given) return given;
    if (given) {
        cli_usage("-m names no folder: give the folder that has config.json");
        return NULL;
    }
    if (from_environment && *from_environment) return from_environment;
    if (cli_model_has(fallback, "config.json")) return fallback;
    cli_usage("no model: give its folder with -m DIR or in $MM3_MODEL (there is no ./%s here)", fallback);
    return NULL;
}

bool cli_find_plan_cache(cli_engine *engine)
{
    const char *given = engine->plan_cache, *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n;
    if (given) {
        engine->options.plan_cache = strcmp(given, "off") == 0 ? NULL : given;
        return *given || cli_usage("--plan-cache names no folder: give one, or off") == CLI_DONE;
    }
    if (base && *base)
        n = snprintf(engine->plan_cache_dir, sizeof engine->plan_cache_dir, "%s/mm3", base);
    else if (home && *home)
        n = snprintf(engine->plan_cache_dir, sizeof engine->plan_cache_dir, "%s/.cache/mm3", home);
    else
        return true;
    engine->options.plan_cache = engine->plan_cache_dir;
    if ((size_t)n >= sizeof engine->plan_cache_dir)
        cli_usage("$XDG_CACHE_HOME or $HOME is longer than %zu bytes: give --plan-cache DIR or off",
                  sizeof engine->plan_cache_dir - 12);
    return (size_t)n < sizeof engine->plan_cache_dir;
}

int cli_open_engine(mm3_engine **out, cli_engine *engine)
{
    mm3_status st;
    json_t *info;
    bool interrupted;
    *out = NULL;
    if (!engine->options.synthetic) engine->options.model_dir = cli_model_dir(engine->options.model_dir);
    if (!engine->options.synthetic && !engine->options.model_dir) return CLI_USAGE;
    if (!engine->options.synthetic && !cli_model_has(engine->options.model_dir, "config.json"))
        return cli_error("%s has no config.json: give -m the folder of a checkpoint", engine->options.model_dir);
    if (!cli_find_plan_cache(engine)) return CLI_USAGE;
    cli_progress_begin(&engine->progress, engine->options.tune_budget_s);
    engine->options.on_tune = cli_on_tune;
    engine->options.on_tune_user = &engine->progress;
    st = mm3_engine_open(out, &engine->options);
    interrupted = cli_progress_end(&engine->progress);
    if (st != MM3_OK) {
        cli_failed();
        return interrupted ? CLI_INTERRUPTED : CLI_FAILED;
    }
    if ((info = cli_engine_info(*out))) cli_print_warnings(info);
    json_decref(info);
    if (info && !interrupted) return CLI_GO;
    mm3_engine_close(out);
    return interrupted ? CLI_INTERRUPTED : CLI_FAILED;
}

/* ---- input ------------------------------------------------------------------------------------------------------- */

bool cli_read_text(const char *path, char **text, size_t *n_bytes)
{
    enum { MAX_BYTES = 1 << 30 };
    if (mm3_read_all(path, MAX_BYTES, text, n_bytes) == MM3_OK) return true;
    cli_failed();
    return false;
}

bool cli_read_tools(const char *path, char **text)
{
    const char *what = strcmp(path, "-") == 0 ? "standard input" : path;
    mm3_parser *parser = NULL;
    size_t n = 0;
    mm3_status st;
    if (!cli_read_text(path, text, &n)) return false;
    if (strlen(*text) != n) return cli_error("%s: a NUL byte in a list of tools: JSON text only", what) == CLI_DONE;
    st = mm3_parser_open(&parser, *text, NULL);
    mm3_parser_close(&parser);
    return st == MM3_OK || cli_error("%s: %s", what, mm3_last_error()) == CLI_DONE;
}

/* "line 3, column 7" of text[at]. */
static void place_of(const char *text, size_t at, char *out, size_t n)
{
    size_t line = 1, start = 0;
    for (size_t i = 0; i < at; i++)
        if (text[i] == '\n') {
            line++;
            start = i + 1;
        }
    snprintf(out, n, "line %zu, column %zu", line, at - start + 1);
}

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

bool cli_read_ids(const char *path, int32_t **ids, int *n_ids)
{
    const char *what = strcmp(path, "-") == 0 ? "standard input" : path;
    char *text = NULL, word[24], place[64];
    size_t n = 0, at = 0, end;
    int64_t value;
    bool wants_id = false, after_id = false; /* a comma stands between two ids */
    *n_ids = 0;
    *ids = NULL;
    if (!cli_read_text(path, &text, &n)) return false;
    if (n / 2 >= INT32_MAX || !(*ids = cli_alloc(n / 2 + 1, sizeof **ids))) goto failed;
    while (at < n) {
        if (is_blank(text[at])) {
            at++;
            continue;
        }
        if (text[at] == ',') {
            if (!after_id) goto bad;
            after_id = false;
            wants_id = true;
            at++;
            continue;
        }
        for (end = at; end < n && !is_blank(text[end]) && text[end] != ','; end++) continue;
        if (end - at >= sizeof word) goto bad;
        memcpy(word, text + at, end - at);
        word[end - at] = 0;
        if (strlen(word) != end - at || !mm3_parse_int(word, 0, INT32_MAX, &value)) goto bad;
        (*ids)[(*n_ids)++] = (int32_t)value;
        after_id = true;
        wants_id = false;
        at = end;
    }
    if (wants_id) goto bad;
    mm3_free(text);
    return true;
bad:
    place_of(text, at, place, sizeof place);
    for (end = at; end < n && end - at < 20 && !is_blank(text[end]) && text[end] != ','; end++) continue;
    if (end == at && at < n) end++;
    cli_error("%s: %s: '%.*s' is not a token id: write whole numbers apart by blanks or commas", what, place,
              (int)(end - at), text + at);
failed:
    mm3_free(text);
    mm3_free(*ids);
    *ids = NULL;
    return false;
}

void *cli_alloc(size_t n, size_t n_bytes)
{
    void *p = mm3_calloc(n ? n : 1, n_bytes);
    if (!p) cli_error("out of memory for %zu values of %zu bytes: ask for less", n, n_bytes);
    return p;
}

uint64_t cli_random_seed(void)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) seed = (uint64_t)(mm3_now_s() * 1e9);
    return seed >> 11;
}

/* ---- Ctrl-C ------------------------------------------------------------------------------------------------------ */

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

void cli_catch_interrupt(bool on)
{
    struct sigaction a = { 0 };
    if (on) interrupted = 0;
    a.sa_handler = on ? on_interrupt : SIG_DFL;
    a.sa_flags = (int)SA_RESETHAND;
    sigaction(SIGINT, &a, NULL);
}

bool cli_interrupted(void) { return interrupted != 0; }
