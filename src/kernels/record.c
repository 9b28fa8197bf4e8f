/* The record recorder: a step as a graph. Owns the graph and copies of all contracts that its calls point to.
 * A call waits only where it touches memory that a call since the last wait has written, or writes what one reads. */
#include <string.h>

#include "kernels/kernels.h"

typedef struct range {
    const unsigned char *begin, *end;
    bool write;
} range;

typedef struct record {
    mm3_recorder base;
    mm3_device *device; /* borrowed */
    mm3_choose *choose;
    void *user;          /* borrowed */
    mm3_graph *graph;    /* owned */
    mm3_arena contracts; /* owned */
    size_t n_scratch;    /* largest need so far */
    range *pending;      /* owned: what the calls since the last wait touch */
    int n_pending, max_pending;
    bool pending_scratch; /* one of them uses the scratch area */
} record;

static bool overlaps(const record *r, const range *x)
{
    for (int i = 0; i < r->n_pending; i++)
        if ((x->write || r->pending[i].write) && x->begin < r->pending[i].end && r->pending[i].begin < x->end)
            return true;
    return false;
}

static mm3_status remember(record *r, const range *x)
{
    if (r->n_pending == r->max_pending) {
        int max = r->max_pending ? 2 * r->max_pending : 64;
        range *p = mm3_realloc(r->pending, (size_t)max * sizeof *p);
        MM3_CHECK(p, MM3_ERR_NOMEM, "out of memory for a recording");
        r->pending = p;
        r->max_pending = max;
    }
    r->pending[r->n_pending++] = *x;
    return MM3_OK;
}

/* Whether the operation must wait for what is pending; then only it is pending afterwards. */
static mm3_status depends(record *r, mm3_op_id op, void *contract, bool uses_scratch, bool *waits)
{
    mm3_operand operand[MM3_MAX_OPERANDS];
    range x[MM3_MAX_OPERANDS];
    int n = mm3_op_info_of(op)->operands(contract, operand);
    *waits = uses_scratch && r->pending_scratch;
    for (int i = 0; i < n; i++) {
        x[i].begin = *operand[i].at;
        x[i].end = x[i].begin + operand[i].n_bytes;
        x[i].write = operand[i].access != MM3_IN;
        *waits |= overlaps(r, &x[i]);
    }
    if (*waits) {
        r->n_pending = 0;
        r->pending_scratch = false;
    }
    r->pending_scratch |= uses_scratch;
    for (int i = 0; i < n; i++) MM3_TRY(remember(r, &x[i]));
    return MM3_OK;
}

static mm3_status issue(mm3_recorder *self, mm3_op_id op, const void *contract)
{
    record *r = (record *)self;
    const mm3_op_info *info = mm3_op_info_of(op);
    mm3_bound bound[MM3_MAX_BOUND];
    int n;
    size_t need;
    void *copy = mm3_arena_alloc(&r->contracts, info->n_bytes);
    mm3_part *parts = info->split ? mm3_arena_alloc(&r->contracts, MM3_MAX_PARTS * sizeof *parts) : NULL;
    MM3_CHECK(copy && (parts || !info->split), MM3_ERR_NOMEM, "out of memory for a recording");
    memcpy(copy, contract, info->n_bytes);
    MM3_TRY(mm3_bind(mm3_device_info_of(r->device), op, copy, r->choose, r->user, parts, &need, bound, &n));
    r->n_scratch = MM3_MAX(r->n_scratch, need);
    for (int i = 0; i < n; i++) {
        /* a kernel's later phases always wait for the earlier ones */
        bool first = i == 0 || bound[i].call.op != bound[i - 1].call.op;
        if (first)
            MM3_TRY(depends(r, bound[i].op, (void *)(uintptr_t)bound[i].call.op, need > 0, &bound[i].call.waits));
        MM3_TRY(mm3_graph_append(r->graph, &bound[i].call));
    }
    return MM3_OK;
}

mm3_status mm3_record_open(mm3_recorder **out, mm3_device *device, mm3_choose *choose, void *user)
{
    record *r = mm3_calloc(1, sizeof *r);
    mm3_status st;
    *out = NULL;
    MM3_CHECK(r, MM3_ERR_NOMEM, "out of memory for the record recorder");
    r->base.issue = issue;
    r->device = device;
    r->choose = choose;
    r->user = user;
    st = mm3_graph_open(&r->graph, device);
    *out = &r->base;
    if (st != MM3_OK) mm3_record_close(out);
    return st;
}

mm3_graph *mm3_record_graph(mm3_recorder *recorder) { return ((record *)recorder)->graph; }
size_t mm3_record_scratch(const mm3_recorder *recorder) { return ((const record *)recorder)->n_scratch; }

void mm3_record_set_scratch(mm3_recorder *recorder, void *scratch)
{
    mm3_graph_set_scratch(((record *)recorder)->graph, scratch);
}

void mm3_record_close(mm3_recorder **recorder)
{
    record *r = recorder ? (record *)*recorder : NULL;
    if (!r) return;
    mm3_graph_close(&r->graph);
    mm3_arena_free(&r->contracts);
    mm3_free(r->pending);
    mm3_free(r);
    *recorder = NULL;
}
