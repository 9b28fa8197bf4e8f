/* stages: which candidates would take the stages of a model's steps on this machine, and why others would not.
 * Runs nothing. */
#ifndef MM3_CLI_STAGES_H
#define MM3_CLI_STAGES_H

#include "forward/forward.h"

/* Different reasons that are kept of a candidate. */
enum { CLI_MAX_REASONS = 4 };

/* One candidate of one operation. */
typedef struct cli_candidate {
    const mm3_kernel *kernel;
    int n_accepted, n_refused; /* stages */
    int n_reasons;             /* different ones, the first few */
    char reason[CLI_MAX_REASONS][128];
    char stage[CLI_MAX_REASONS][256]; /* the key of a stage that was refused so */
} cli_candidate;

/* Every candidate of every operation: n[op] of them, in list order. */
typedef struct cli_survey {
    int n[MM3_N_OPS];
    cli_candidate candidate[MM3_N_OPS][MM3_MAX_CANDIDATES];
    size_t step_buffer_bytes; /* of the largest step */
} cli_survey;

/* The stages of one decode step of max_batch rows and one prefill step of `chunk`, for asking about: nothing of it
 * runs.
 *   model  borrowed; NULL: MiniMax-M3's sizes
 *   stage  valid until closed */
typedef struct cli_steps {
    const mm3_stage *stage;
    int n;
    size_t step_buffer_bytes; /* of the largest step */
    mm3_recorder *collect;    /* owned, as the following */
    mm3_forward *forward;
    mm3_model *outline; /* NULL where a model was given */
} cli_steps;
MM3_MUST_USE mm3_status cli_steps_open(cli_steps *out, const mm3_model *model, mm3_numerics numerics, mm3_dtype kv_type,
                                       int max_batch, int chunk, int context);
void cli_steps_close(cli_steps *steps);

/* Ask every candidate about a decode step of max_batch rows and a prefill step of `chunk`.
 *   out    from the caller; filled whole */
MM3_MUST_USE mm3_status cli_survey_model(cli_survey *out, const mm3_device_info *device, const mm3_model *model,
                                         mm3_numerics numerics, mm3_dtype kv_type, int max_batch, int chunk,
                                         int context);

#endif
