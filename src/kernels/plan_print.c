/* A plan as text. plan_parse.c reads what this writes; plan.h shows it. */
#include <stdio.h>
#include <string.h>

#include "kernels/plan_state.h"

/* Four digits, no exponent, no trailing zeros: mm3_plan_set has rounded to what is shown. */
static void put_number(mm3_buf *to, double x)
{
    char text[64];
    int decimals = x > 0 ? 3 - (int)floor(log10(x) + 1e-9) : 0;
    size_t n;
    decimals = MM3_MIN(MM3_MAX(decimals, 0), 12);
    snprintf(text, sizeof text, "%.*f", decimals, x);
    n = strlen(text);
    if (strchr(text, '.')) {
        while (text[n - 1] == '0') text[--n] = 0;
        if (text[n - 1] == '.') text[--n] = 0;
    }
    mm3_buf_puts(to, text);
}

static void put_time(mm3_buf *to, double us, double mad)
{
    mm3_buf_puts(to, " | ");
    put_number(to, us);
    mm3_buf_puts(to, "us mad ");
    put_number(to, mad);
}

static void put_error(mm3_buf *to, double error)
{
    if (error > 0)
        mm3_buf_printf(to, " | err %.0e", error);
    else
        mm3_buf_puts(to, " | err 0");
}

static void put_tried(mm3_buf *to, const mm3_tried *t)
{
    static const char *const word[MM3_N_FATES] = { "", "", "", "refused", "disqualified", "wrong", "failed" };
    mm3_buf_printf(to, "  %s", t->choice);
    switch (t->fate) {
    case MM3_FATE_TIMED:
        put_time(to, t->us, t->mad);
        mm3_buf_puts(to, " | ");
        put_number(to, t->ratio);
        mm3_buf_puts(to, "x");
        put_error(to, t->error);
        break;
    case MM3_FATE_DROPPED:
        mm3_buf_puts(to, " | dropped: ");
        put_number(to, t->ratio);
        mm3_buf_printf(to, "x after %d rounds", t->rounds);
        break;
    case MM3_FATE_UNTIMED:
        mm3_buf_puts(to, " | untimed");
        break;
    default:
        mm3_buf_printf(to, " | %s: %s", word[t->fate], t->why ? t->why : "no reason was given");
    }
    mm3_buf_printf(to, " | src %s\n", t->source);
}

void mm3_plan_print_decision(const mm3_decision *d, mm3_buf *to)
{
    mm3_buf_printf(to, "%s | %s", d->key, d->choice);
    switch (d->how) {
    case MM3_HOW_TIMED:
        put_time(to, d->us, d->mad);
        put_error(to, d->error);
        break;
    case MM3_HOW_ALONE:
        mm3_buf_puts(to, " | alone");
        break;
    case MM3_HOW_UNTIMED:
        mm3_buf_puts(to, " | untimed");
        break;
    case MM3_HOW_PINNED:
        mm3_buf_puts(to, " | pinned");
        break;
    }
    mm3_buf_printf(to, " | src %s\n", d->source);
    for (int i = 0; i < d->n_tried; i++) put_tried(to, &d->tried[i]);
}

static void put_step(mm3_buf *to, const mm3_step_verdict *v)
{
    mm3_buf_printf(to, "step %s | %s | ", v->step, v->winners ? "winners" : "natives");
    if (v->timed) {
        put_number(to, v->ratio);
        mm3_buf_puts(to, " of native mad ");
        put_number(to, v->mad);
    } else {
        mm3_buf_puts(to, "untimed");
    }
    mm3_buf_printf(to, " | of %s\n", v->of);
}

mm3_status mm3_plan_print(const mm3_plan *plan, char **text)
{
    const mm3_plan_head *h = &plan->head;
    mm3_buf b = { 0 };
    mm3_buf_printf(&b, "# mm3 plan %d | %s | threads %d | policy %d | %s | mm3 %s\n", MM3_PLAN_FORMAT, h->device,
                   h->n_threads, h->policy, h->workload, h->version);
    for (int i = 0; i < plan->n; i++) mm3_plan_print_decision(&plan->decision[i], &b);
    for (int i = 0; i < plan->n_steps; i++) put_step(&b, &plan->step[i]);
    for (int i = 0; i < plan->n_crashes; i++)
        mm3_buf_printf(&b, "crashed %s | %s | src %s\n", plan->crash[i].key, plan->crash[i].choice,
                       plan->crash[i].source);
    return mm3_buf_take(&b, text, NULL);
}
