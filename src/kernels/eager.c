/* The eager recorder: each operation is bound and run as it is issued. Owns one scratch area that grows. */
#include "kernels/kernels.h"

typedef struct eager {
    mm3_recorder base;
    mm3_device *device;   /* borrowed */
    const mm3_pins *pins; /* borrowed, may be NULL */
    void *scratch;        /* owned */
    size_t n_scratch;
} eager;

static mm3_status choose(void *user, mm3_op_id op, const void *contract, mm3_choice *choice)
{
    const eager *r = user;
    const mm3_device_info *info = mm3_device_info_of(r->device);
    if (r->pins) {
        mm3_key key = { .op = op };
        mm3_op_info_of(op)->key(contract, &key);
        if (mm3_pins_match(r->pins, &key, choice)) return MM3_OK;
    }
    choice->kernel = mm3_kernel_find(op, info->kind, NULL); /* the first of the list: native, or split */
    choice->tactic = &choice->kernel->tactics[0];
    return MM3_OK;
}

static mm3_status issue(mm3_recorder *self, mm3_op_id op, const void *contract)
{
    eager *r = (eager *)self;
    const mm3_device_info *info = mm3_device_info_of(r->device);
    mm3_part parts[MM3_MAX_PARTS];
    mm3_call calls[MM3_MAX_CALLS];
    int n_calls = 0;
    size_t need;
    MM3_TRY(mm3_bind(info, op, contract, choose, r, parts, r->scratch, r->n_scratch, &need, calls, &n_calls));
    if (need > r->n_scratch) {
        mm3_free(r->scratch);
        r->n_scratch = 0;
        r->scratch = mm3_alloc_aligned(need);
        MM3_CHECK(r->scratch, MM3_ERR_NOMEM, "out of memory: %s needs %zu bytes of scratch", mm3_op_info_of(op)->name,
                  need);
        r->n_scratch = need;
        MM3_TRY(mm3_bind(info, op, contract, choose, r, parts, r->scratch, r->n_scratch, &need, calls, &n_calls));
    }
    mm3_device_run(r->device, calls, n_calls);
    return MM3_OK;
}

mm3_status mm3_eager_open(mm3_recorder **out, mm3_device *device, const mm3_pins *pins)
{
    eager *r = mm3_calloc(1, sizeof *r);
    *out = NULL;
    MM3_CHECK(r, MM3_ERR_NOMEM, "out of memory for the eager recorder");
    r->base.issue = issue;
    r->device = device;
    r->pins = pins;
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
