/* state: what the engine's files share: the engine, its sessions, and the jobs that sessions hand to the scheduler.
 * Internal to engine/. Read scheduler.c for how a job becomes steps. */
#ifndef MM3_ENGINE_STATE_H
#define MM3_ENGINE_STATE_H

#include <pthread.h>

#include "base/base.h"
#include "device/device.h"
#include "forward/forward.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "tune/tune.h"

/* Seconds of each part of start-up; parts that do not exist yet stay zero. */
typedef struct mm3_ledger {
    double load_s, collect_s, tune_s, record_s, joint_s, first_token_s;
    int stages_tuned, stages_reused;
} mm3_ledger;

/* A request to the scheduler; below. */
typedef struct mm3_job mm3_job;

/* One recorded decode step. */
typedef struct mm3_decode_graph {
    int m;                  /* token rows; fewer are padded */
    mm3_recorder *recorder; /* owned: holds the graph */
    bool winners;           /* else natives (and pins): the joint check's verdict, or nothing was tuned */
    double ratio;           /* time of the winners' step over the natives'; 0: not timed */
} mm3_decode_graph;

/* mm3.h's engine. What a part of it may touch, and when, is said at its members. */
struct mm3_engine {
    mm3_numerics numerics;
    mm3_model *model; /* owned, as the following */
    mm3_device *device;
    mm3_pins *pins;
    mm3_forward *forward;
    mm3_recorder *recorder; /* eager: prefill, first samples, and decode where graphs are off */
    mm3_generation_config generation;
    int32_t stop_ids[16];
    int n_stop_ids;
    int context, chunk, max_batch, max_logits;
    mm3_dtype kv_type;
    mm3_ledger ledger;

    /* What tuning.c made. */
    const char *gate;              /* why nothing is tuned; NULL: tuning applies */
    mm3_tuner *tuner;              /* owned; NULL where the gate is shut */
    mm3_plan *plan;                /* owned: a strict plan file, instead of a tuner */
    mm3_plan *used;                /* owned: of tuner or plan, what this engine's steps consist of; NULL: neither */
    mm3_tune_counts tuned;         /* when the engine became ready */
    mm3_tune_options tune_options; /* borrowed by the tuner */
    mm3_binding binding;
    mm3_decode_graph *graph; /* owned: [n_graphs], rows ascending */
    int n_graphs;
    void *graph_scratch;                                  /* owned: shared, since one graph runs at a time */
    _Atomic long n_replays, n_padded_rows, n_eager_steps; /* written by the scheduler, read by anyone */

    /* The scheduler thread alone touches the device, the step block, slots and pages. */
    pthread_t thread;
    bool thread_started;
    int32_t *free_page; /* owned: stack of page ids */
    int n_free_pages, n_pages;
    mm3_job **running; /* owned: [max_batch], NULL where a slot is free; the index is the slot */
    int *slot_of_row;  /* owned: [max_batch] which slot a row of the decode step belongs to */
    bool prefill_last; /* whether the last step was a prefill: prefill and decode take turns */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;  /* a job was queued, or quit was set */
    mm3_job *queue_head, *queue_tail;
    bool quit;
};

/* mm3.h's session. Between calls its thread owns it; while a job of it is under way, the scheduler. */
struct mm3_session {
    mm3_engine *engine; /* borrowed */
    int32_t *token;     /* owned: [max] */
    int n, max;
    int n_evaluated; /* tokens whose K and V are in the pages; at most n */
    bool has_logits; /* logits holds those after token n - 1 */
    float *logits;   /* owned: [vocab] */
    int32_t *page;   /* owned: [n_pages] page ids of the sequence */
    int n_pages, max_pages;
    double prefill_s, decode_s;
};

/* What a job asks for. */
typedef enum mm3_job_kind {
    MM3_JOB_EVALUATE,
    MM3_JOB_GENERATE,
    MM3_JOB_SCORE,
    MM3_JOB_RELEASE,
    MM3_JOB_MEASURE /* of no session; waits until nothing runs */
} mm3_job_kind;

/* A request of one session, waited for by the thread that made it. */
struct mm3_job {
    mm3_job_kind kind;
    mm3_session *session;
    const int32_t *tokens; /* evaluate, score: what the sequence is to hold */
    int n_tokens;
    mm3_sampling sampling; /* generate */
    int max_new;
    const int32_t *stop_ids;
    int n_stop;
    mm3_on_token *on_token;
    mm3_on_logits *on_logits;
    void *user;
    const char *spec; /* measure */
    char **result;

    int slot;         /* while running */
    int n_table;      /* pages of the session that are in the step block's table */
    bool slot_counts; /* this job uses the slot's penalty counts */
    int n_new;
    bool stopped;
    double first_token_at; /* mm3_now_s */
    mm3_error error;
    bool done; /* guarded by the engine's lock */
    pthread_cond_t finished;
    mm3_job *next;
};

/* tuning.c: design.md section 5, steps 3 to 7. Before the scheduler starts.
 * errors  MM3_ERR_ARG a switch; MM3_ERR_UNSUPPORTED a strict plan lacks a stage; MM3_ERR_NOMEM, MM3_ERR_CANCELLED */
mm3_status mm3__tune(mm3_engine *engine, const mm3_options *options);
/* Close what mm3__tune made; half of it, too. */
void mm3__tune_free(mm3_engine *engine);

/* warm_up.c: buffers that hold what a real step leaves, for what is timed before the first request. Zero-initialize all
 * but `engine`. */
typedef struct mm3__warm {
    mm3_engine *engine;   /* borrowed */
    mm3_step_shape shape; /* that the step block is filled for */
    int n_borrowed;       /* KV pages, from the first on: they are lent by the sequences to come */
} mm3__warm;
/* Fill the step block: random tokens, at the end of the shortest context, over borrowed pages. */
void mm3__warm_inputs(mm3__warm *w, const mm3_step_shape *shape);
/* The same, and run one step with natives.
 * errors  those of the step */
mm3_status mm3__warm_up(mm3__warm *w, const mm3_step_shape *shape);
/* mm3_tune_options.states: contexts for what reads the cache, draws for what reads experts. */
int mm3__warm_state(mm3__warm *w, const mm3_stage *stage, int i);
/* Move the rows to the middle one of the contexts. */
void mm3__warm_to_middle(mm3__warm *w);
/* Give the pages back, as they were. */
void mm3__warm_end(mm3__warm *w);
/* How the i-th row is sampled in steps that only time counts of: temperature 1, the 40 likeliest, 0.95 of the mass. */
mm3_sample_row mm3__ordinary_sampling(int i);

/* measure.c: on the scheduler thread, with no job running. As mm3_engine_measure. */
mm3_status mm3__measure(mm3_engine *engine, const char *spec, char **result);

/* engine.c: the end of a text made by jansson, begun with mm3_json_begin(): MM3_ERR_NOMEM, and *json NULL,
 * where any part of it is missing. */
mm3_status mm3__json_whole(char **json, const char *what);

/* scheduler.c: the recorded step that m rows are padded up to; NULL where there is none. */
mm3_decode_graph *mm3__decode_graph_for(mm3_engine *engine, int m);

/* The engine's thread. Stop waits for its end and is harmless where none was started.
 * errors  MM3_ERR_NOMEM no thread */
mm3_status mm3__scheduler_start(mm3_engine *engine);
void mm3__scheduler_stop(mm3_engine *engine);
/* Queue a job and wait for its end; its error becomes this thread's. */
mm3_status mm3__scheduler_run(mm3_engine *engine, mm3_job *job);

#endif
