/* kernels: how operations are computed. The registry of candidates, why one refuses, the pins that force one, and the
 * recorder interface through which the network issues its operations. Knows operations, not the model.
 * Add a candidate: docs/add-a-kernel.md. */
#ifndef MM3_KERNELS_H
#define MM3_KERNELS_H

#include "device/device.h"
#include "ops/ops.h"

/* A named parameter set of a candidate, like "bm64.bn128.st4"; candidates give v[] its meaning. */
typedef struct mm3_tactic {
    const char *name;
    int v[6];
    bool row_invariant; /* a row's bits depend on that row alone: not on m, its place, or the other rows */
} mm3_tactic;

enum { MM3_MAX_PHASES = 4 };

/* One candidate. A constant; find them with mm3_kernels_of(). */
typedef struct mm3_kernel {
    mm3_op_id op;
    const char *device; /* "cpu" */
    const char *name;   /* one word for the idea: native, avx512, split */
    /* NULL: accepts. Else why not, as a sentence part: "needs avx512_bf16". NULL function: accepts everything.
     * The run functions rely on what this promised. */
    const char *(*refuses)(const mm3_device_info *device, const void *op, const mm3_tactic *tactic);
    const mm3_tactic *tactics; /* at least one; the first is the default */
    int n_tactics;
    /* Bytes of scratch a launch needs, contents undefined before and after, 64-byte aligned. NULL: none. */
    size_t (*scratch)(const void *op, const mm3_tactic *tactic, int n_threads);
    /* Phases in order, with a barrier between; NULL-terminated. A chain's `split` has none: its parts are bound. */
    mm3_run *phase[MM3_MAX_PHASES + 1];
    /* How w8a16 linears take their rows: MM3_F32 exact, MM3_BF16 rounded first. */
    mm3_dtype operand;
} mm3_kernel;

/* Candidates of an operation on a device, in list order; returns how many, at most max are stored. */
int mm3_kernels_of(mm3_op_id op, const char *device, const mm3_kernel **out, int max);
enum { MM3_MAX_CANDIDATES = 16 };
/* By name; NULL if there is none. */
const mm3_kernel *mm3_kernel_find(mm3_op_id op, const char *device, const char *name);
const mm3_tactic *mm3_tactic_find(const mm3_kernel *kernel, const char *name);
static inline bool mm3_kernel_is_split(const mm3_kernel *k) { return k->phase[0] == NULL; }

/* What a stage is bound to. */
typedef struct mm3_choice {
    const mm3_kernel *kernel;
    const mm3_tactic *tactic;
} mm3_choice;

/* ---- pins (pins.c): 'OP[,FIELD=V|V..W]...=CANDIDATE[/TACTIC]', several apart by ';' ---------------------- */

typedef struct mm3_pins mm3_pins;
/* errors  MM3_ERR_ARG an unknown op, field, candidate or tactic, with the known ones */
MM3_MUST_USE mm3_status mm3_pins_parse(mm3_pins **out, const char *text, const char *device);
void mm3_pins_free(mm3_pins **pins);
/* The last pin whose fields all match the key, if any. */
bool mm3_pins_match(const mm3_pins *pins, const mm3_key *key, mm3_choice *choice);

/* ---- recorders ------------------------------------------------------------------------------------------- */

/* The network issues each operation through one of these; what happens is the recorder's business. */
typedef struct mm3_recorder mm3_recorder;
struct mm3_recorder {
    mm3_status (*issue)(mm3_recorder *self, mm3_op_id op, const void *contract);
};
static inline mm3_status mm3_issue(mm3_recorder *r, mm3_op_id op, const void *contract)
{
    return r->issue(r, op, contract);
}

/* The eager recorder: runs the operation now with the candidate its pin names, else with native (a chain's: split).
 *   pins  borrowed, may be NULL */
MM3_MUST_USE mm3_status mm3_eager_open(mm3_recorder **out, mm3_device *device, const mm3_pins *pins);
void mm3_eager_close(mm3_recorder **recorder);

/* Bind one operation to calls: appends the phases of `choice` (or, for a split chain, of its parts' choices, found by
 * `choose`) to calls[]. Used by every recorder.
 *   parts    room for a chain's sub-stages, which the calls then point to; MM3_MAX_PARTS
 *   scratch  [n_scratch] bytes; *need is set to what the operation wants, and nothing is appended if that is more
 * errors  MM3_ERR_UNSUPPORTED the choice refuses the operation */
typedef mm3_status mm3_choose(void *user, mm3_op_id op, const void *contract, mm3_choice *choice);
enum { MM3_MAX_CALLS = MM3_MAX_PARTS * MM3_MAX_PHASES };
MM3_MUST_USE mm3_status mm3_bind(const mm3_device_info *device, mm3_op_id op, const void *contract, mm3_choose *choose,
                                 void *user, mm3_part *parts, void *scratch, size_t n_scratch, size_t *need,
                                 mm3_call *calls, int *n_calls);

#endif
