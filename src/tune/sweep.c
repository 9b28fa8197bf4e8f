/* Every candidate and tactic on every case of a list, several cases at a time. The lists are in sweep_cases.c. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "tune/sweep_cases.h"

typedef struct work {
    const mm3_sweep *sweep;
    mm3_device *device;
    const mm3_device_info *info;
    mm3__case_list list;
    int next; /* case to be taken */
    int n_done;
    mm3_error error; /* the first */
    pthread_mutex_t lock;
} work;

static bool is_wanted(const mm3_sweep *s, const mm3_kernel *k, const mm3_tactic *t)
{
    if (s->candidate && strcmp(s->candidate, k->name) != 0) return false;
    return !t || !s->tactic || strcmp(s->tactic, t->name) == 0;
}

static void report(work *w, const mm3_case_spec *spec, const mm3_kernel *k, const mm3_tactic *t, const mm3_verdict *v)
{
    char shape[256], repro[640];
    mm3_shape_text(spec->op, &spec->shape, shape, sizeof shape);
    snprintf(repro, sizeof repro, "mm3 check --op %s --candidate %s --tactic %s --shape %s --fill %s --seed %llu",
             mm3_op_info_of(spec->op)->name, k->name, t->name, shape, mm3_fill_name(spec->fill),
             (unsigned long long)spec->seed);
    pthread_mutex_lock(&w->lock);
    w->sweep->report(w->sweep->user, k, t, v, repro);
    pthread_mutex_unlock(&w->lock);
}

/* Call fn for every wanted candidate and tactic of an operation. */
typedef mm3_status each_fn(work *w, mm3_case *c, const mm3__listed_case *l, const mm3_kernel *k, const mm3_tactic *t);
static mm3_status each(work *w, mm3_case *c, const mm3__listed_case *l, each_fn *fn)
{
    const mm3_kernel *kernel[MM3_MAX_CANDIDATES];
    int n = mm3_kernels_of(l->spec.op, w->info->kind, kernel, MM3_MAX_CANDIDATES);
    for (int i = 0; i < MM3_MIN(n, MM3_MAX_CANDIDATES); i++)
        for (int j = 0; j < kernel[i]->n_tactics; j++)
            if (is_wanted(w->sweep, kernel[i], &kernel[i]->tactics[j]))
                MM3_TRY(fn(w, c, l, kernel[i], &kernel[i]->tactics[j]));
    return MM3_OK;
}

static mm3_status verify_one(work *w, mm3_case *c, const mm3__listed_case *l, const mm3_kernel *k, const mm3_tactic *t)
{
    mm3_verdict v;
    MM3_TRY(mm3_verify(c, w->info, k, t, &v));
    report(w, &l->spec, k, t, &v);
    if (!l->rows || !t->row_invariant || v.outcome != MM3_PASSED) return MM3_OK;
    MM3_TRY(mm3_verify_rows(&l->spec, w->info, k, t, &v));
    report(w, &l->spec, k, t, &v);
    return MM3_OK;
}

static void *worker(void *arg)
{
    work *w = arg;
    for (;;) {
        const mm3__listed_case *l = NULL;
        mm3_case *c;
        mm3_status st;
        pthread_mutex_lock(&w->lock);
        if (w->error.status == MM3_OK && w->next < w->list.n) l = &w->list.item[w->next++];
        pthread_mutex_unlock(&w->lock);
        if (!l) return NULL;
        st = mm3_case_open(&c, &l->spec);
        if (st == MM3_OK) st = each(w, c, l, verify_one);
        mm3_case_close(&c);
        pthread_mutex_lock(&w->lock);
        if (st != MM3_OK && w->error.status == MM3_OK) mm3_error_take(&w->error, st);
        w->n_done++;
        if (w->sweep->progress) w->sweep->progress(w->sweep->user, (double)w->n_done / w->list.n);
        pthread_mutex_unlock(&w->lock);
    }
}

/* The device has its own threads: these cases come one after the other, when the others are through. */
static mm3_status verify_on_device(work *w, mm3_case *c, const mm3__listed_case *l, const mm3_kernel *k,
                                   const mm3_tactic *t)
{
    mm3_verdict v;
    MM3_TRY(mm3_verify_device(c, w->device, k, t, &v));
    report(w, &l->spec, k, t, &v);
    return MM3_OK;
}

static mm3_status run_workers(work *w)
{
    enum { MAX_WORKERS = 64 };
    pthread_t thread[MAX_WORKERS];
    int n = MM3_MIN(MM3_MAX(w->sweep->n_workers, 1), MAX_WORKERS), n_started = 0;
    /* one less than asked for is no fault: the others do its work, and this thread does if there is none */
    while (n > 1 && n_started < n && pthread_create(&thread[n_started], NULL, worker, w) == 0) n_started++;
    if (n_started == 0) worker(w);
    for (int i = 0; i < n_started; i++) pthread_join(thread[i], NULL);
    return w->error.status == MM3_OK ? MM3_OK : mm3_error_raise(&w->error);
}

/* An unknown name checks nothing, which must not look like success. */
static mm3_status check_names(const mm3_sweep *s, const char *device)
{
    bool candidate = false, tactic = false;
    for (int op = 0; op < MM3_N_OPS; op++) {
        const mm3_kernel *kernel[MM3_MAX_CANDIDATES];
        int n = s->op < 0 || s->op == op ? mm3_kernels_of((mm3_op_id)op, device, kernel, MM3_MAX_CANDIDATES) : 0;
        for (int i = 0; i < MM3_MIN(n, MM3_MAX_CANDIDATES); i++) {
            candidate |= is_wanted(s, kernel[i], NULL);
            for (int j = 0; j < kernel[i]->n_tactics; j++) tactic |= is_wanted(s, kernel[i], &kernel[i]->tactics[j]);
        }
    }
    MM3_CHECK(candidate, MM3_ERR_ARG, "%s has no candidate '%s' on %s; 'mm3 info' lists them",
              s->op < 0 ? "no operation" : mm3_op_info_of((mm3_op_id)s->op)->name, s->candidate, device);
    MM3_CHECK(tactic, MM3_ERR_ARG, "there is no tactic '%s' of this candidate; 'mm3 info' lists them", s->tactic);
    return MM3_OK;
}

mm3_status mm3_sweep_run(const mm3_sweep *sweep, mm3_device *device)
{
    mm3_status st = MM3_OK;
    work w = {
        .sweep = sweep, .device = device, .info = mm3_device_info_of(device), .lock = PTHREAD_MUTEX_INITIALIZER
    };
    MM3_CHECK(!sweep->shape || sweep->op >= 0, MM3_ERR_ARG, "a shape needs an operation: add --op");
    MM3_TRY(check_names(sweep, w.info->kind));
    MM3_GOTO(mm3__case_list_make(&w.list, sweep));
    MM3_GOTO(run_workers(&w));
    for (int i = 0; i < w.list.n; i++) {
        mm3_case *c;
        if (!w.list.item[i].device) continue;
        MM3_GOTO(mm3_case_open(&c, &w.list.item[i].spec));
        st = each(&w, c, &w.list.item[i], verify_on_device);
        mm3_case_close(&c);
        if (st != MM3_OK) goto done;
    }
done:
    mm3__case_list_free(&w.list);
    return st;
}
