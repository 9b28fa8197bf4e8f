/* While an engine is tuned: one line on the terminal that is drawn anew, and Ctrl-C that keeps what was decided. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "cli/cli.h"

enum { LINE = 79 };
static const double REDRAW_S = 0.05;

/* "linear m=8 n=256 k=512 -> avx512/tile32", cut to what is left of the line. */
static void draw(cli_progress *p, int i, int n, const char *key, const char *best)
{
    char text[LINE + 1];
    int at = snprintf(text, sizeof text, "tuning");
    if (n > 0) at += snprintf(text + at, sizeof text - (size_t)at, " %d/%d", i + 1, n);
    at += snprintf(text + at, sizeof text - (size_t)at, ", %.0f of %.0f s: ", mm3_now_s() - p->start, p->budget_s);
    if (*p->best && !best) best = p->best;
    snprintf(text + at, sizeof text - (size_t)at, "%.*s%s%s", best ? LINE - at - (int)strlen(best) - 4 : LINE - at, key,
             best ? " -> " : "", best ? best : "");
    fprintf(stderr, "\r\033[K%s", text);
    fflush(stderr);
    p->drawn = true;
    p->drawn_at = mm3_now_s();
}

bool cli_on_tune(void *user, int i_stage, int n_stages, const char *key, const char *best)
{
    cli_progress *p = user;
    if (p->start == 0) {
        p->start = mm3_now_s();
        cli_catch_interrupt(
            true); /* a process that dies while a candidate runs for the first time blames the candidate */
    }
    if (best) snprintf(p->best, sizeof p->best, "%s", best);
    if (p->shows && (mm3_now_s() - p->drawn_at > REDRAW_S)) draw(p, i_stage, n_stages, key, best);
    return !cli_interrupted();
}

void cli_progress_begin(cli_progress *p, double budget_s)
{
    *p = (cli_progress){ .shows = isatty(STDERR_FILENO), .budget_s = budget_s > 0 ? budget_s : 60 };
}

bool cli_progress_end(cli_progress *p)
{
    bool interrupted = p->start > 0 && cli_interrupted();
    if (p->drawn) fputs("\r\033[K", stderr);
    if (p->start > 0) cli_catch_interrupt(false);
    return interrupted;
}

json_t *cli_engine_info(mm3_engine *engine)
{
    char *text = NULL;
    json_t *info;
    if (mm3_engine_info(engine, &text) != MM3_OK) {
        cli_failed();
        return NULL;
    }
    info = json_loads(text, 0, NULL);
    mm3_free(text);
    if (!info) cli_error("out of memory for the engine's summary");
    return info;
}

void cli_print_warnings(const json_t *info)
{
    const json_t *warnings = json_object_get(json_object_get(info, "tuning"), "warnings");
    for (size_t i = 0; i < json_array_size(warnings); i++)
        cli_warn("%s", json_string_value(json_array_get(warnings, i)));
}

static double number(const json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name));
}

void cli_print_ledger(FILE *to, const json_t *info)
{
    const json_t *l = json_object_get(info, "startup"), *t = json_object_get(info, "tuning");
    const char *gate = json_string_value(json_object_get(t, "gate"));
    fprintf(to, "start-up: load %.2f s, collect %.3f, tune %.2f, record %.3f, joint check %.2f, first token %.3f",
            number(l, "load_s"), number(l, "collect_s"), number(l, "tune_s"), number(l, "record_s"),
            number(l, "joint_s"), number(l, "first_token_s"));
    if (gate)
        fprintf(to, "; nothing tuned: %s\n", gate);
    else
        fprintf(to, "; %.0f stages tuned, %.0f known\n", number(t, "tuned"), number(t, "reused"));
}
