/* Run one candidate on one case, in every way that could show a fault, and let the judges compare. */
#include <stdio.h>
#include <string.h>

#include "tune/cases.h"

/* A launch: what it runs, and on how many threads, which one thread plays one after the other. */
typedef struct launch {
    mm3_case *c;
    const mm3_kernel *kernel;
    const mm3_tactic *tactic;
    int n_threads;
    bool reverse; /* threads in reverse order: nothing within a phase may depend on another thread */
    uint8_t poison;
    mm3_part parts[MM3_MAX_PARTS];
    mm3_call call[MM3_MAX_BOUND];
    int n_calls;
    mm3__area scratch;
} launch;

/* The candidate itself for its own operation; the first of the list for a chain's parts. */
static mm3_status choose(void *user, mm3_op_id op, const void *contract, mm3_choice *choice)
{
    const launch *l = user;
    (void)contract;
    *choice = (mm3_choice){ l->kernel, l->tactic };
    if (op == l->kernel->op) return MM3_OK;
    choice->kernel = mm3_kernel_find(op, l->kernel->device, NULL);
    choice->tactic = &choice->kernel->tactics[0];
    return MM3_OK;
}

static mm3_status prepare(launch *l, const mm3_device_info *device)
{
    mm3_device_info info = *device;
    mm3_bound bound[MM3_MAX_BOUND];
    size_t need;
    info.n_threads = l->n_threads;
    MM3_TRY(mm3_bind(&info, l->c->spec.op, l->c->op.bytes, choose, l, l->parts, &need, bound, &l->n_calls));
    MM3_CHECK(need == 0 || mm3__area_open(&l->scratch, need, 64), MM3_ERR_NOMEM,
              "out of memory: %zu bytes of scratch for %s %s", need, l->c->info->name, l->kernel->name);
    if (need) mm3__area_paint(&l->scratch);
    for (int i = 0; i < l->n_calls; i++) {
        l->call[i] = bound[i].call;
        l->call[i].scratch = l->scratch.data;
    }
    return MM3_OK;
}

static void finish(launch *l) { mm3__area_close(&l->scratch); }

static void play(void *arg)
{
    const launch *l = arg;
    for (int i = 0; i < l->n_calls; i++)
        for (int t = 0; t < l->n_threads; t++)
            l->call[i].run(&l->call[i], l->reverse ? l->n_threads - 1 - t : t, l->n_threads);
}

/* Outputs hold what no kernel would write, inout arrays what they held at first, scratch garbage. */
static void poison(const launch *l)
{
    for (int i = 0; i < l->c->n_arrays; i++) {
        mm3__array *a = &l->c->array[i];
        if (a->access == MM3_OUT) memset(a->area.data, l->poison, a->area.n_bytes);
        if (a->access == MM3_INOUT && a->initial) memcpy(a->area.data, a->initial, a->area.n_bytes);
    }
    if (l->scratch.map) memset(l->scratch.data, l->poison, l->scratch.n_bytes);
}

static bool within(const mm3__area *a, const unsigned char *p)
{
    return a->map && p >= a->map && p < a->map + a->n_map;
}

/* Which array a fault belongs to, in words. */
static bool explain_fault(const launch *l, const unsigned char *at, mm3_verdict *v)
{
    for (int i = 0; i <= l->c->n_arrays; i++) {
        const mm3__area *a = i < l->c->n_arrays ? &l->c->array[i].area : &l->scratch;
        const char *name = i < l->c->n_arrays ? l->c->array[i].name : "its scratch";
        if (!within(a, at)) continue;
        if (at < a->data) return mm3__wrong(v, "touched %s %td bytes before its start", name, a->data - at);
        if (at >= a->data + a->n_bytes)
            return mm3__wrong(v, "touched %s %td bytes past its end", name, at - (a->data + a->n_bytes) + 1);
        return mm3__wrong(v, "wrote to the input %s at byte %td", name, at - a->data);
    }
    return mm3__wrong(v, "touched memory at %p that is not its own", (const void *)at);
}

static bool guards_are_intact(const launch *l, mm3_verdict *v)
{
    for (int i = 0; i < l->c->n_arrays; i++) {
        const mm3__array *a = &l->c->array[i];
        if (a->access == MM3_IN || mm3__area_is_intact(&a->area)) continue;
        return mm3__wrong(v, "wrote beyond the output %s", a->name);
    }
    if (!l->scratch.map || mm3__area_is_intact(&l->scratch)) return true;
    return mm3__wrong(v, "wrote beyond its scratch");
}

static bool run(launch *l, uint8_t with, bool reverse, mm3_verdict *v)
{
    const unsigned char *at;
    l->poison = with;
    l->reverse = reverse;
    poison(l);
    if (!mm3__guarded(play, l, &at)) {
        explain_fault(l, at, v);
        for (int i = 0; i < l->c->n_arrays; i++) /* for the next candidate */
            if (l->c->array[i].access != MM3_IN) mm3__area_paint(&l->c->array[i].area);
        return false;
    }
    return guards_are_intact(l, v);
}

/* ---- bits of outputs --------------------------------------------------------------------------------------------- */

static bool is_compared(const mm3_case *c, const mm3__array *a)
{
    const mm3__tolerance *t = mm3__tolerance_of(c->spec.op, a->name);
    return a->access != MM3_IN && t && t->judge != mm3__judge_undefined;
}

/* Codes of a chain come from its own values: there a NaN has the sign that its computation happened to give. */
static bool is_nan(const unsigned char *p, mm3_dtype type, bool codes)
{
    uint32_t u = 0;
    if (codes) return (*p & 0x7F) == 0x7F;
    if (type == MM3_F32) memcpy(&u, p, 4);
    if (type == MM3_BF16) memcpy((unsigned char *)&u + 2, p, 2);
    return (u & 0x7FFFFFFFu) > 0x7F800000u;
}

/* First byte that differs, or n; a NaN equals any NaN, whose bits are not the operation's business. */
static size_t difference(const mm3_case *c, const mm3__array *array, const unsigned char *a, const unsigned char *b,
                         size_t n)
{
    size_t size = mm3__size_of(array->type);
    bool codes = c->info->split && strcmp(array->name, "codes") == 0;
    if (memcmp(a, b, n) == 0) return n;
    for (size_t i = 0; i < n; i += size)
        if (memcmp(a + i, b + i, size) != 0 &&
            !(is_nan(a + i, array->type, codes) && is_nan(b + i, array->type, codes)))
            return i;
    return n;
}

/* The compared outputs, one after the other. */
static size_t outputs_bytes(const mm3_case *c)
{
    size_t n = 0;
    for (int i = 0; i < c->n_arrays; i++)
        if (is_compared(c, &c->array[i])) n += c->array[i].area.n_bytes;
    return n;
}

static void save_outputs(const mm3_case *c, unsigned char *to)
{
    for (int i = 0; i < c->n_arrays; i++) {
        if (!is_compared(c, &c->array[i])) continue;
        memcpy(to, c->array[i].area.data, c->array[i].area.n_bytes);
        to += c->array[i].area.n_bytes;
    }
}

static bool same_outputs(const mm3_case *c, const unsigned char *saved, const char *what, mm3_verdict *v)
{
    for (int i = 0; i < c->n_arrays; i++) {
        const mm3__array *a = &c->array[i];
        size_t at;
        if (!is_compared(c, a)) continue;
        at = difference(c, a, a->area.data, saved, a->area.n_bytes);
        if (at < a->area.n_bytes)
            return mm3__wrong(v, "%s[%zu] has other bits %s", a->name, at / mm3__size_of(a->type), what);
        saved += a->area.n_bytes;
    }
    return true;
}

/* ---- verify ------------------------------------------------------------------------------------------------------ */

static void move(mm3_case *c, mm3__place place)
{
    for (int i = 0; i < c->n_arrays; i++) {
        mm3__array *a = &c->array[i];
        if (!a->listed) continue;
        mm3__area_protect(&a->area, false);
        mm3__area_move(&a->area, place, a->access == MM3_IN);
        mm3__area_paint(&a->area);
        mm3__area_protect(&a->area, a->access == MM3_IN);
        *a->at = a->area.data;
    }
}

static bool refuses(mm3_case *c, const mm3_device_info *device, const mm3_kernel *kernel, const mm3_tactic *tactic,
                    mm3_verdict *v)
{
    const char *why = kernel->refuses ? kernel->refuses(device, c->op.bytes, tactic) : NULL;
    if (!why) return false;
    v->outcome = MM3_REFUSED;
    snprintf(v->why, sizeof v->why, "%s", why);
    return true;
}

/* Twice on n_threads; `saved` holds the outputs afterwards. */
static mm3_status twice(launch *l, const mm3_device_info *device, int n_threads, unsigned char *saved, mm3_verdict *v)
{
    mm3_status st = MM3_OK;
    l->n_threads = n_threads;
    MM3_GOTO(prepare(l, device));
    if (!run(l, 0xC5, false, v) || !mm3__judge_all(l->c, l->kernel, v)) goto done;
    save_outputs(l->c, saved);
    if (!run(l, 0x3A, true, v)) goto done;
    same_outputs(l->c, saved, "when run again, on other garbage, its threads in reverse order", v);
done:
    finish(l);
    if (v->outcome == MM3_FAILED) {
        size_t n = strlen(v->why);
        snprintf(v->why + n, sizeof v->why - n, " (%d thread%s)", n_threads, n_threads > 1 ? "s" : "");
    }
    return st;
}

mm3_status mm3_verify(mm3_case *c, const mm3_device_info *device, const mm3_kernel *kernel, const mm3_tactic *tactic,
                      mm3_verdict *v)
{
    static const int other[] = { 1, 3, 5, 16 };
    mm3_status st = MM3_OK;
    launch l = { .c = c, .kernel = kernel, .tactic = tactic };
    size_t n = outputs_bytes(c);
    unsigned char *saved, *first = NULL;
    *v = (mm3_verdict){ .outcome = MM3_PASSED };
    if (refuses(c, device, kernel, tactic, v)) return MM3_OK;
    saved = mm3_malloc(n);
    MM3_CHECK(saved, MM3_ERR_NOMEM, "out of memory for outputs to compare");
    move(c, MM3__AT_PAGE_END);
    MM3_GOTO(twice(&l, device, 2, saved, v));
    if (v->outcome != MM3_PASSED || c->n_bytes >= MM3__LARGE) goto done;
    first = saved;
    saved = mm3_malloc(n);
    if (!saved) {
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for outputs to compare");
        goto done;
    }
    move(c, MM3__AT_ODD_START);
    MM3_GOTO(twice(&l, device, other[(c->spec.seed + (uint64_t)c->spec.shape.v[0]) % MM3_COUNT(other)], saved, v));
    if (v->outcome == MM3_PASSED && tactic->row_invariant)
        same_outputs(c, first, "on another number of threads, but it says row_invariant", v);
done:
    mm3_free(first);
    mm3_free(saved);
    return st;
}

/* ---- row invariance ---------------------------------------------------------------------------------------------- */

/* Compare the rows that two cases share; both were run. */
static bool same_rows(const mm3_case *c, const mm3_case *d, const char *what, mm3_verdict *v)
{
    int m = c->spec.shape.v[0];
    for (int i = 0; i < c->n_arrays; i++) {
        const mm3__array *a = &c->array[i], *b = mm3__array_find(d, a->name);
        if (!a->row_bytes || !is_compared(c, a)) continue;
        for (int row = 0; row < m; row++) {
            int id = mm3__row_id(c, row),
                at = d->spec.reversed ? d->spec.first_row + d->spec.shape.v[0] - 1 - id : id - d->spec.first_row;
            size_t byte;
            if (at < 0 || at >= d->spec.shape.v[0]) continue;
            byte = difference(c, a, a->area.data + (size_t)row * a->row_bytes, b->area.data + (size_t)at * b->row_bytes,
                              a->row_bytes);
            if (byte < a->row_bytes)
                return mm3__wrong(v, "%s[%d, %zu] has other bits %s, but it says row_invariant", a->name, row,
                                  byte / mm3__size_of(a->type), what);
        }
    }
    return true;
}

static mm3_status run_spec(mm3_case **out, const mm3_case_spec *spec, const mm3_device_info *device,
                           const mm3_kernel *kernel, const mm3_tactic *tactic, int n_threads, mm3_verdict *v)
{
    mm3_status st = MM3_OK;
    launch l = { .kernel = kernel, .tactic = tactic, .n_threads = n_threads };
    MM3_TRY(mm3_case_open(out, spec));
    l.c = *out;
    if (refuses(l.c, device, kernel, tactic, v)) return MM3_OK;
    st = prepare(&l, device);
    if (st == MM3_OK) run(&l, 0xC5, false, v);
    finish(&l);
    return st;
}

mm3_status mm3_verify_rows(const mm3_case_spec *spec, const mm3_device_info *device, const mm3_kernel *kernel,
                           const mm3_tactic *tactic, mm3_verdict *v)
{
    enum { N_VARIANTS = 7 };
    int m = spec->shape.v[0];
    mm3_status st = MM3_OK;
    mm3_case *c = NULL, *d = NULL;
    mm3_case_spec base = *spec;
    *v = (mm3_verdict){ .outcome = MM3_PASSED };
    base.no_reference = true;
    MM3_GOTO(run_spec(&c, &base, device, kernel, tactic, 2, v));
    for (int i = 0; i < N_VARIANTS && v->outcome == MM3_PASSED; i++) {
        mm3_case_spec s = base;
        const char *what = "alone";
        int n_threads = 1;
        switch (i) {
        case 0:
            s.reversed = true, what = "in another place", n_threads = 2;
            break;
        case 1:
            s.shape.v[0] = 1, s.first_row += m - 1;
            break;
        case 2:
            s.shape.v[0] = 1, s.first_row += m / 2, n_threads = 3;
            break;
        case 3:
            s.shape.v[0] = 1;
            break;
        case 4:
            s.shape.v[0] = m + 5, what = "in a larger batch", n_threads = 7;
            break;
        case 5:
            s.shape.v[0] = m + 37, what = "in a much larger batch", n_threads = 2;
            break;
        default:
            what = "on another number of threads", n_threads = 16;
            break;
        }
        MM3_GOTO(run_spec(&d, &s, device, kernel, tactic, n_threads, v));
        /* a candidate may refuse the larger batch: then there is nothing to compare */
        if (v->outcome == MM3_REFUSED)
            v->outcome = MM3_PASSED;
        else if (v->outcome == MM3_PASSED)
            same_rows(c, d, what, v);
        mm3_case_close(&d);
    }
done:
    mm3_case_close(&c);
    mm3_case_close(&d);
    return st;
}

/* ---- on the device ----------------------------------------------------------------------------------------------- */

mm3_status mm3_verify_device(mm3_case *c, mm3_device *device, const mm3_kernel *kernel, const mm3_tactic *tactic,
                             mm3_verdict *v)
{
    enum { TIMES = 10 };
    const mm3_device_info *info = mm3_device_info_of(device);
    mm3_status st = MM3_OK;
    launch l = { .c = c, .kernel = kernel, .tactic = tactic, .n_threads = info->n_threads };
    unsigned char *saved = NULL;
    *v = (mm3_verdict){ .outcome = MM3_PASSED };
    if (refuses(c, info, kernel, tactic, v)) return MM3_OK;
    move(c, MM3__AT_ODD_START);
    MM3_GOTO(prepare(&l, info));
    saved = mm3_malloc(outputs_bytes(c));
    if (!saved) {
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for outputs to compare");
        goto done;
    }
    if (!run(&l, 0xC5, false, v)) goto done;
    save_outputs(c, saved);
    for (int i = 0; i < TIMES && v->outcome == MM3_PASSED; i++) {
        l.poison = (uint8_t)(0x11 * (i + 1));
        poison(&l);
        mm3_device_run(device, l.call, l.n_calls);
        same_outputs(c, saved, "with its threads at the same time", v);
    }
done:
    finish(&l);
    mm3_free(saved);
    return st;
}
