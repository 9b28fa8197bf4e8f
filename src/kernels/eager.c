/* The eager recorder: each operation is bound and run as it is issued. Owns one scratch area that grows. */
#include "kernels/kernels.h"

typedef struct eager {
    mm3_recorder base;
    mm3_device *device; /* borrowed */
    mm3_choose *choose;
    void *user;    /* borrowed */
    void *scratch; /* owned */
    size_t n_scratch;
} eager;

static mm3_status issue(mm3_recorder *self, mm3_op_id op, const void *contract)
{
    eager *r = (eager *)self;
    mm3_part parts[MM3_MAX_PARTS];
    mm3_bound bound[MM3_MAX_BOUND];
    mm3_call calls[MM3_MAX_BOUND];
    int n;
    size_t need;
    MM3_TRY(mm3_bind(mm3_device_info_of(r->device), op, contract, r->choose, r->user, parts, &need, bound, &n));
    if (need > r->n_scratch) {
        mm3_free(r->scratch);
        r->n_scratch = 0;
        r->scratch = mm3_alloc_aligned(need);
        MM3_CHECK(r->scratch, MM3_ERR_NOMEM, "out of memory: %s needs %zu bytes of scratch", mm3_op_info_of(op)->name,
                  need);
        r->n_scratch = need;
    }
    for (int i = 0; i < n; i++) {
        calls[i] = bound[i].call;
        calls[i].scratch = r->scratch;
    }
    mm3_device_run(r->device, calls, n);
    return MM3_OK;
}

mm3_status mm3_eager_open(mm3_recorder **out, mm3_device *device, mm3_choose *choose, void *user)
{
    eager *r = mm3_calloc(1, sizeof *r);
    *out = NULL;
    MM3_CHECK(r, MM3_ERR_NOMEM, "out of memory for the eager recorder");
    r->base.issue = issue;
    r->device = device;
    r->choose = choose;
    r->user = user;
    *out = &r->base;
    return MM3_OK;
}

void mm3_eager_close(mm3_recorder **recorder)
{
    if (!recorder || !*recorder) return;
    mm3_free(((eager *)*recorder)->scratch);
    mm3_free(*recorder);
    *recorder = NULL;
}
