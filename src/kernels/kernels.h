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

/* ---- pins (pins.c): 'OP[,FIELD=V|V..W]...=CANDIDATE[/TACTIC]', several apart by ';' ------------------------------ */

typedef struct mm3_pins mm3_pins;
/* errors  MM3_ERR_ARG an unknown op, field, candidate or tactic, with the known ones */
MM3_MUST_USE mm3_status mm3_pins_parse(mm3_pins **out, const char *text, const char *device);
void mm3_pins_free(mm3_pins **pins);
/* The last pin whose fields all match the key, if any. */
bool mm3_pins_match(const mm3_pins *pins, const mm3_key *key, mm3_choice *choice);

/* ---- recorders --------------------------------------------------------------------------------------------------- */

/* The network issues each operation through one of these; what happens is the recorder's business. */
typedef struct mm3_recorder mm3_recorder;
struct mm3_recorder {
    mm3_status (*issue)(mm3_recorder *self, mm3_op_id op, const void *contract);
};
static inline mm3_status mm3_issue(mm3_recorder *r, mm3_op_id op, const void *contract)
{
    return r->issue(r, op, contract);
}

/* Says what a stage is bound to; an error where there is no decision. */
typedef mm3_status mm3_choose(void *user, mm3_op_id op, const void *contract, mm3_choice *choice);

/* eager: runs the operation now, bound by `choose`.
 *   user  borrowed, handed to choose */
MM3_MUST_USE mm3_status mm3_eager_open(mm3_recorder **out, mm3_device *device, mm3_choose *choose, void *user);
void mm3_eager_close(mm3_recorder **recorder);

/* collect: runs nothing and lists the stages of a step, each once, with every contract that shares its key, in step
 * order. The parts of a chain come before it, as stages of their own. */
typedef struct mm3_stage {
    mm3_op_id op;
    char *key;       /* owned: the key as text */
    int n, max;      /* contracts */
    void **contract; /* owned, and each of them: copies; their arrays are the network's own buffers */
} mm3_stage;
MM3_MUST_USE mm3_status mm3_collect_open(mm3_recorder **out);
/* Borrowed; grows with every issue. */
const mm3_stage *mm3_collect_stages(const mm3_recorder *recorder, int *n);
void mm3_collect_close(mm3_recorder **recorder);

/* record: binds each operation by `choose` and appends it to a graph, with waits only between calls that touch the same
 * memory. The recorder owns the graph and the copies of the contracts: keep it as long as the graph is replayed. */
MM3_MUST_USE mm3_status mm3_record_open(mm3_recorder **out, mm3_device *device, mm3_choose *choose, void *user);
mm3_graph *mm3_record_graph(mm3_recorder *recorder);
/* Bytes of scratch the recorded calls need; they have none until it is given. Graphs that never run at the same time
 * may share it. */
size_t mm3_record_scratch(const mm3_recorder *recorder);
void mm3_record_set_scratch(mm3_recorder *recorder, void *scratch);
void mm3_record_close(mm3_recorder **recorder);

/* A choose that takes the pin of a stage (user: const mm3_pins *, may be NULL), else the first of the list. */
mm3_choose mm3_choose_native;

/* Bind one operation: the phases of its choice or, for a split chain, of its parts' choices. What recorders are made
 * of.
 *   parts  [MM3_MAX_PARTS] room for a chain's sub-stages, which the calls then point to
 *   need   bytes of scratch they want
 *   bound  [MM3_MAX_BOUND] the calls, in their order; their scratch is NULL
 * errors  MM3_ERR_UNSUPPORTED the choice refuses the operation; those of choose */
typedef struct mm3_bound {
    mm3_call call;
    mm3_op_id op; /* of call.op: a chain's parts have their own */
} mm3_bound;
enum { MM3_MAX_BOUND = MM3_MAX_PARTS * MM3_MAX_PHASES };
MM3_MUST_USE mm3_status mm3_bind(const mm3_device_info *device, mm3_op_id op, const void *contract, mm3_choose *choose,
                                 void *user, mm3_part *parts, size_t *need, mm3_bound *bound, int *n_bound);

#include "kernels/plan.h"

#endif
