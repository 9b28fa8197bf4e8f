/* The decisions of a plan: kept in order, found by key, merged, hashed, compared. plan_parse.c and plan_print.c are the
 * text, plan_choose.c the way to candidates. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/plan_state.h"

enum {
    MAX_VERDICTS_OF_A_STEP = 8, /* a cache file serves several models */
    MAX_CRASHES = 1024          /* far more than operations times candidates */
};

/* ---- head -------------------------------------------------------------------------------------------------------- */

/* '|' separates fields and a line is a line, whatever a processor calls itself. */
static void to_field(char *s)
{
    for (; *s; s++)
        if (*s == '|' || (unsigned char)*s < 0x20 || *s == 0x7F) *s = ' ';
}

void mm3_plan_head_of_device(mm3_plan_head *head, const mm3_device_info *device, int policy, const char *workload)
{
    char features[128];
    mm3_device_features_text(device->features, features, sizeof features);
    memset(head, 0, sizeof *head);
    snprintf(head->device, sizeof head->device, "%s %s%s%s", device->kind, device->name, *features ? " " : "",
             features);
    snprintf(head->workload, sizeof head->workload, "%s", workload);
    snprintf(head->version, sizeof head->version, "%s", mm3_version());
    to_field(head->device);
    to_field(head->workload);
    head->n_threads = device->n_threads;
    head->policy = policy;
}

const char *mm3_plan_head_differs(const mm3_plan_head *a, const mm3_plan_head *b, char *why, size_t n)
{
    if (strcmp(a->device, b->device) != 0)
        snprintf(why, n, "it was made for '%s', not '%s'", a->device, b->device);
    else if (a->n_threads != b->n_threads)
        snprintf(why, n, "it was made for %d threads, not %d", a->n_threads, b->n_threads);
    else if (a->policy != b->policy)
        snprintf(why, n, "it was measured by policy %d, not %d", a->policy, b->policy);
    else if (strcmp(a->workload, b->workload) != 0)
        snprintf(why, n, "it was measured with '%s', not '%s'", a->workload, b->workload);
    else
        return NULL;
    return why;
}

/* ---- open, close ------------------------------------------------------------------------------------------------- */

mm3_status mm3_plan_open(mm3_plan **out, const mm3_plan_head *head)
{
    *out = mm3_calloc(1, sizeof **out);
    MM3_CHECK(*out, MM3_ERR_NOMEM, "out of memory for a plan");
    (*out)->head = *head;
    return MM3_OK;
}

static void clear_decision(mm3_decision *d)
{
    for (int i = 0; i < d->n_tried; i++) {
        mm3_free(d->tried[i].choice);
        mm3_free(d->tried[i].why);
    }
    mm3_free(d->tried);
    mm3_free(d->key);
    mm3_free(d->choice);
}

static void clear_crash(mm3__crash *c)
{
    mm3_free(c->key);
    mm3_free(c->choice);
}

void mm3_plan_close(mm3_plan **plan)
{
    mm3_plan *p = plan ? *plan : NULL;
    if (!p) return;
    for (int i = 0; i < p->n; i++) clear_decision(&p->decision[i]);
    for (int i = 0; i < p->n_steps; i++) mm3_free(p->step[i].step);
    for (int i = 0; i < p->n_crashes; i++) clear_crash(&p->crash[i]);
    mm3_free(p->decision);
    mm3_free(p->step);
    mm3_free(p->crash);
    mm3_free(p);
    *plan = NULL;
}

const mm3_plan_head *mm3_plan_head_of(const mm3_plan *plan) { return &plan->head; }

/* ---- order and look-up ------------------------------------------------------------------------------------------- */

/* "m=8" before "m=16": runs of digits by value, all else by byte. Equal only where the texts are. */
static int compare_natural(const char *a, const char *b)
{
    const char *x = a, *y = b;
    while (*x && *y) {
        if (isdigit((unsigned char)*x) && isdigit((unsigned char)*y)) {
            size_t n_x, n_y;
            int c;
            while (*x == '0') x++;
            while (*y == '0') y++;
            n_x = strspn(x, "0123456789");
            n_y = strspn(y, "0123456789");
            if (n_x != n_y) return n_x < n_y ? -1 : 1;
            c = strncmp(x, y, n_x);
            if (c) return c;
            x += n_x;
            y += n_y;
        } else if (*x != *y) {
            return (unsigned char)*x < (unsigned char)*y ? -1 : 1;
        } else {
            x++;
            y++;
        }
    }
    if (*x || *y) return *x ? 1 : -1;
    return strcmp(a, b);
}

static size_t op_length(const char *key) { return strcspn(key, " "); }

mm3_op_id mm3__op_of_key(const char *key)
{
    for (int op = 0; op < MM3_N_OPS; op++) {
        const char *name = mm3_op_info_of((mm3_op_id)op)->name;
        if (strlen(name) == op_length(key) && strncmp(name, key, strlen(name)) == 0) return (mm3_op_id)op;
    }
    return MM3_N_OPS;
}

static int compare_keys(const char *a, const char *b)
{
    mm3_op_id x = mm3__op_of_key(a), y = mm3__op_of_key(b);
    if (x != y) return x < y ? -1 : 1;
    return compare_natural(a, b);
}

/* Where the key is, or where it belongs. */
static int position(const mm3_plan *plan, const char *key, bool *found)
{
    int low = 0, high = plan->n;
    *found = false;
    while (low < high) {
        int middle = low + (high - low) / 2, c = compare_keys(plan->decision[middle].key, key);
        if (c == 0) {
            *found = true;
            return middle;
        }
        if (c < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The first decision on an operation from op on. */
static int first_from(const mm3_plan *plan, mm3_op_id op)
{
    int low = 0, high = plan->n;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (mm3__op_of_key(plan->decision[middle].key) < op)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void mm3__plan_of_op(const mm3_plan *plan, mm3_op_id op, int *begin, int *end)
{
    *begin = first_from(plan, op);
    *end = first_from(plan, (mm3_op_id)(op + 1));
}

int mm3_plan_count(const mm3_plan *plan) { return plan->n; }
const mm3_decision *mm3_plan_at(const mm3_plan *plan, int i) { return &plan->decision[i]; }

const mm3_decision *mm3_plan_find(const mm3_plan *plan, const char *key)
{
    bool found;
    int i = position(plan, key, &found);
    return found ? &plan->decision[i] : NULL;
}

/* The verdicts on a step are step[*first..*last), the newest last; where they belong, if there are none. */
static void find_steps(const mm3_plan *plan, const char *step, int *first, int *last)
{
    int low = 0, high = plan->n_steps;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (compare_natural(plan->step[middle].step, step) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *first = *last = low;
    while (*last < plan->n_steps && strcmp(plan->step[*last].step, step) == 0) ++*last;
}

int mm3_plan_count_steps(const mm3_plan *plan) { return plan->n_steps; }
const mm3_step_verdict *mm3_plan_step_at(const mm3_plan *plan, int i) { return &plan->step[i]; }

const mm3_step_verdict *mm3_plan_find_step(const mm3_plan *plan, const char *step, const char *of)
{
    int first, last;
    find_steps(plan, step, &first, &last);
    for (int i = first; i < last; i++)
        if (strcmp(plan->step[i].of, of) == 0) return &plan->step[i];
    return NULL;
}

/* ---- changes ----------------------------------------------------------------------------------------------------- */

static mm3_status room_for_one(void **array, int *max, int n, size_t element)
{
    int want = *max ? 2 * *max : 16;
    void *p;
    if (n < *max) return MM3_OK;
    p = mm3_realloc(*array, mm3_mul((size_t)want, element));
    MM3_CHECK(p, MM3_ERR_NOMEM, "out of memory for a plan");
    *array = p;
    *max = want;
    return MM3_OK;
}

/* To the four digits that are printed, so that what was printed and read again is the same. */
static double rounded(double x)
{
    char text[32];
    if (!(x > 0) || isinf(x)) return 0;
    snprintf(text, sizeof text, "%.3e", x);
    return strtod(text, NULL);
}

static double rounded_error(double x)
{
    char text[32];
    if (!(x > 0) || isinf(x)) return 0;
    snprintf(text, sizeof text, "%.0e", x);
    return strtod(text, NULL);
}

static mm3_status copy_decision(mm3_decision *to, const mm3_decision *from)
{
    *to = *from;
    to->n_tried = 0;
    to->key = mm3_strdup(from->key);
    to->choice = mm3_strdup(from->choice);
    to->tried = from->n_tried ? mm3_calloc((size_t)from->n_tried, sizeof *to->tried) : NULL;
    if (!to->key || !to->choice || (from->n_tried && !to->tried)) goto failed;
    to->us = rounded(from->us);
    to->mad = rounded(from->mad);
    to->error = rounded_error(from->error);
    while (to->n_tried < from->n_tried) {
        mm3_tried *t = &to->tried[to->n_tried];
        const mm3_tried *f = &from->tried[to->n_tried++];
        *t = *f;
        t->us = rounded(f->us);
        t->mad = rounded(f->mad);
        t->ratio = rounded(f->ratio);
        t->error = rounded_error(f->error);
        t->choice = mm3_strdup(f->choice);
        t->why = f->why ? mm3_strdup(f->why) : NULL;
        if (!t->choice || (f->why && !t->why)) goto failed;
        if (t->why) to_field(t->why);
    }
    return MM3_OK;
failed:
    clear_decision(to);
    return mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for a plan");
}

mm3_status mm3_plan_set(mm3_plan *plan, const mm3_decision *decision)
{
    mm3_decision d;
    bool found;
    int i = position(plan, decision->key, &found);
    MM3_TRY(room_for_one((void **)&plan->decision, &plan->max, plan->n, sizeof *plan->decision));
    MM3_TRY(copy_decision(&d, decision));
    if (found) {
        clear_decision(&plan->decision[i]);
    } else {
        memmove(&plan->decision[i + 1], &plan->decision[i], (size_t)(plan->n - i) * sizeof d);
        plan->n++;
    }
    plan->decision[i] = d;
    return MM3_OK;
}

/* Of the verdicts on one step, step[first..n) from old to new, the last counts among those of the same hash, and the
 * oldest make room for others. What stays moves to step[to..); returns how many that are. */
static int keep_newest(mm3_plan *plan, int first, int n, int to)
{
    int kept = 0, last = n;
    mm3_step_verdict newest[MAX_VERDICTS_OF_A_STEP]; /* from new to old */
    while (last-- > first) {
        mm3_step_verdict *v = &plan->step[last];
        bool stays = kept < MAX_VERDICTS_OF_A_STEP;
        for (int i = 0; i < kept; i++) stays &= strcmp(newest[i].of, v->of) != 0;
        if (stays)
            newest[kept++] = *v;
        else
            mm3_free(v->step);
    }
    for (int i = 0; i < kept; i++) plan->step[to + i] = newest[kept - 1 - i];
    return kept;
}

/* A copy whose texts are its own. */
static mm3_status copy_step(mm3_step_verdict *to, const mm3_step_verdict *from)
{
    *to = *from;
    to->ratio = rounded(from->ratio);
    to->mad = rounded(from->mad);
    to->step = mm3_strdup(from->step);
    MM3_CHECK(to->step, MM3_ERR_NOMEM, "out of memory for a plan");
    return MM3_OK;
}

/* Ordered by step; among those of one step the newest last, and the oldest make room. */
mm3_status mm3_plan_set_step(mm3_plan *plan, const mm3_step_verdict *verdict)
{
    int first, last, kept;
    mm3_step_verdict v;
    MM3_TRY(room_for_one((void **)&plan->step, &plan->max_steps, plan->n_steps, sizeof *plan->step));
    MM3_TRY(copy_step(&v, verdict));
    find_steps(plan, v.step, &first, &last);
    memmove(&plan->step[last + 1], &plan->step[last], (size_t)(plan->n_steps - last) * sizeof v);
    plan->step[last++] = v;
    plan->n_steps++;
    kept = keep_newest(plan, first, last, first);
    memmove(&plan->step[first + kept], &plan->step[last], (size_t)(plan->n_steps - last) * sizeof v);
    plan->n_steps -= last - first - kept;
    return MM3_OK;
}

/* ---- many changes at once -------------------------------------------------------------------------------------- */

mm3_status mm3__plan_add(mm3_plan *plan, const mm3_decision *decision)
{
    MM3_TRY(room_for_one((void **)&plan->decision, &plan->max, plan->n, sizeof *plan->decision));
    MM3_TRY(copy_decision(&plan->decision[plan->n], decision));
    plan->n++;
    return MM3_OK;
}

mm3_status mm3__plan_add_step(mm3_plan *plan, const mm3_step_verdict *verdict)
{
    MM3_TRY(room_for_one((void **)&plan->step, &plan->max_steps, plan->n_steps, sizeof *plan->step));
    MM3_TRY(copy_step(&plan->step[plan->n_steps], verdict));
    plan->n_steps++;
    return MM3_OK;
}

static int compare_decisions(const void *a, const void *b)
{
    return compare_keys(((const mm3_decision *)a)->key, ((const mm3_decision *)b)->key);
}

static int compare_steps(const void *a, const void *b)
{
    const mm3_step_verdict *x = a, *y = b;
    int c = compare_natural(x->step, y->step);
    return c ? c : x->age - y->age;
}

void mm3__plan_order(mm3_plan *plan)
{
    int n = 0;
    if (plan->n) qsort(plan->decision, (size_t)plan->n, sizeof *plan->decision, compare_decisions);
    for (int i = 0; i < plan->n_steps; i++) plan->step[i].age = i;
    if (plan->n_steps) qsort(plan->step, (size_t)plan->n_steps, sizeof *plan->step, compare_steps);
    for (int first = 0, last; first < plan->n_steps; first = last) {
        for (last = first + 1; last < plan->n_steps && strcmp(plan->step[first].step, plan->step[last].step) == 0;)
            last++;
        n += keep_newest(plan, first, last, n);
    }
    plan->n_steps = n;
}

static size_t name_length(const char *choice) { return strcspn(choice, "/"); }

static bool same_name(const char *a, const char *b)
{
    return name_length(a) == name_length(b) && strncmp(a, b, name_length(a)) == 0;
}

/* One line per operation and candidate; the oldest make room. */
mm3_status mm3_plan_set_crashed(mm3_plan *plan, const char *key, const char *choice, const char *source)
{
    mm3__crash c = { .key = mm3_strdup(key), .choice = mm3_strdup(choice), .op = mm3__op_of_key(key) };
    int i = 0;
    snprintf(c.source, sizeof c.source, "%s", source);
    if (!c.key || !c.choice ||
        room_for_one((void **)&plan->crash, &plan->max_crashes, plan->n_crashes, sizeof c) != MM3_OK) {
        clear_crash(&c);
        return mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for a plan");
    }
    while (i < plan->n_crashes && !(plan->crash[i].op == c.op && same_name(plan->crash[i].choice, choice))) i++;
    if (i < plan->n_crashes) {
        clear_crash(&plan->crash[i]);
    } else if (i == MAX_CRASHES) {
        clear_crash(&plan->crash[0]);
        memmove(&plan->crash[0], &plan->crash[1], (size_t)--i * sizeof c);
    } else {
        plan->n_crashes++;
    }
    plan->crash[i] = c;
    return MM3_OK;
}

bool mm3_plan_has_crashed(const mm3_plan *plan, mm3_op_id op, const char *candidate, const char *source)
{
    for (int i = 0; i < plan->n_crashes; i++) {
        const mm3__crash *c = &plan->crash[i];
        if (c->op == op && same_name(c->choice, candidate) && strcmp(c->source, source) == 0) return true;
    }
    return false;
}

/* Of the decisions at first only: what is added stays behind them. */
static mm3_status merge_decisions(mm3_plan *into, const mm3_plan *from, bool kept)
{
    mm3_plan before = *into; /* the same array, until it grows */
    for (int i = 0; i < from->n; i++) {
        mm3_decision d = from->decision[i], copy;
        bool found;
        int at = position(&before, d.key, &found);
        const mm3_decision *old = found ? &before.decision[at] : NULL;
        if (kept && (d.how == MM3_HOW_PINNED || (old && !d.made_here))) continue;
        if (d.how == MM3_HOW_UNTIMED && old && old->how != MM3_HOW_UNTIMED) continue;
        if (kept) d.made_here = false;
        if (!found) {
            MM3_TRY(mm3__plan_add(into, &d));
            before.decision = into->decision;
            continue;
        }
        MM3_TRY(copy_decision(&copy, &d));
        clear_decision(&into->decision[at]);
        into->decision[at] = copy;
    }
    return MM3_OK;
}

static mm3_status merge_steps(mm3_plan *into, const mm3_plan *from, bool kept)
{
    mm3_plan before = *into;
    for (int i = 0; i < from->n_steps; i++) {
        mm3_step_verdict v = from->step[i];
        if (kept && (!v.timed || (!v.made_here && mm3_plan_find_step(&before, v.step, v.of)))) continue;
        if (kept) v.made_here = false;
        MM3_TRY(mm3__plan_add_step(into, &v));
        before.step = into->step;
    }
    return MM3_OK;
}

mm3_status mm3_plan_merge(mm3_plan *into, const mm3_plan *from, bool kept)
{
    mm3_status st = merge_decisions(into, from, kept);
    if (st == MM3_OK) st = merge_steps(into, from, kept);
    mm3__plan_order(into);
    for (int i = 0; i < from->n_crashes && st == MM3_OK; i++)
        st = mm3_plan_set_crashed(into, from->crash[i].key, from->crash[i].choice, from->crash[i].source);
    return st;
}

/* ---- hash and difference ----------------------------------------------------------------------------------------- */

uint32_t mm3__hash_text(uint32_t hash, const char *text)
{
    return mm3_hash(mm3_hash(hash, text, strlen(text)), "\n", 1);
}

void mm3_plan_hash(const mm3_plan *plan, char hash[9])
{
    uint32_t h = MM3_HASH_START;
    for (int i = 0; i < plan->n; i++) {
        h = mm3__hash_text(h, plan->decision[i].key);
        h = mm3__hash_text(h, plan->decision[i].choice);
    }
    snprintf(hash, 9, "%08x", (unsigned)h);
}

static void time_text(const mm3_decision *d, char *text, size_t n)
{
    static const char *const word[] = { "", "alone", "untimed", "pinned" };
    if (d->how == MM3_HOW_TIMED)
        snprintf(text, n, "%.4gus", d->us);
    else
        snprintf(text, n, "%s", word[d->how]);
}

static void diff_decisions(const mm3_plan *a, const mm3_plan *b, mm3_buf *out)
{
    for (int i = 0, j = 0; i < a->n || j < b->n;) {
        const mm3_decision *x = i < a->n ? &a->decision[i] : NULL, *y = j < b->n ? &b->decision[j] : NULL;
        int c = !x ? 1 : !y ? -1 : compare_keys(x->key, y->key);
        char t[32], u[32];
        if (x) time_text(x, t, sizeof t);
        if (y) time_text(y, u, sizeof u);
        if (c < 0)
            mm3_buf_printf(out, "< %s | %s | %s\n", x->key, x->choice, t);
        else if (c > 0)
            mm3_buf_printf(out, "> %s | %s | %s\n", y->key, y->choice, u);
        else if (strcmp(x->choice, y->choice) != 0)
            mm3_buf_printf(out, "! %s | %s, %s | %s, %s\n", x->key, x->choice, t, y->choice, u);
        i += c <= 0;
        j += c >= 0;
    }
}

/* The newest verdict on a step; NULL if there is none. */
static const mm3_step_verdict *newest(const mm3_plan *plan, const char *step)
{
    int first, last;
    find_steps(plan, step, &first, &last);
    return last > first ? &plan->step[last - 1] : NULL;
}

/* Of steps that both know: their hashes tell only that something under them differs, which was said above. */
static void diff_steps(const mm3_plan *a, const mm3_plan *b, mm3_buf *out)
{
    for (int i = 0; i < a->n_steps; i++) {
        const mm3_step_verdict *x = &a->step[i], *y = newest(b, x->step);
        if (x != newest(a, x->step) || !y || x->winners == y->winners) continue;
        mm3_buf_printf(out, "! step %s | %s, %.4g of native | %s, %.4g of native\n", x->step,
                       x->winners ? "winners" : "natives", x->ratio, y->winners ? "winners" : "natives", y->ratio);
    }
}

mm3_status mm3_plan_diff(const mm3_plan *a, const mm3_plan *b, char **text)
{
    mm3_buf out = { 0 };
    diff_decisions(a, b, &out);
    diff_steps(a, b, &out);
    return mm3_buf_take(&out, text, NULL);
}
