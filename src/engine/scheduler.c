/* The scheduler: one thread that owns the device, turns jobs into steps, and hands pages out.
 *
 *   queue --admit--> slots (max_batch of them) --steps--> done
 *
 * A step is either a piece of one sequence's prefill or one token of every generating sequence; the two take turns,
 * so that a long prompt does not stop running streams and streams do not starve a prompt. */
#include <string.h>

#include "engine/state.h"

/* ---- pages ------------------------------------------------------------------------------------------------------- */

/* Make the session own pages for its first n tokens. */
static mm3_status reserve_pages(mm3_engine *e, mm3_session *s, int n)
{
    int want = (n + MM3_PAGE_TOKENS - 1) / MM3_PAGE_TOKENS, lack = want - s->n_pages;
    if (lack <= 0) return MM3_OK;
    MM3_CHECK(lack <= e->n_free_pages, MM3_ERR_NOMEM,
              "no free KV pages: %d tokens need %d more, %d of %d are free: close sessions, or open with more kv_gb", n,
              lack, e->n_free_pages, e->n_pages);
    while (lack-- > 0) s->page[s->n_pages++] = e->free_page[--e->n_free_pages];
    return MM3_OK;
}

static void release_pages(mm3_engine *e, mm3_session *s, int n_keep)
{
    while (s->n_pages > n_keep) e->free_page[e->n_free_pages++] = s->page[--s->n_pages];
}

/* Bring the slot's row of the page table up to date. */
static void show_pages(mm3_engine *e, mm3_job *job)
{
    const mm3_session *s = job->session;
    int32_t *row = mm3_forward_step(e->forward)->table + (size_t)job->slot * (size_t)s->max_pages;
    for (; job->n_table < s->n_pages; job->n_table++) row[job->n_table] = s->page[job->n_table];
}

/* ---- penalties --------------------------------------------------------------------------------------------------- */

static bool wants_counts(const mm3_sampling *s)
{
    return s->repetition_penalty != 1.0f || s->presence_penalty != 0.0f || s->frequency_penalty != 0.0f;
}

static int32_t *counts_of(const mm3_engine *e, const mm3_job *job)
{
    size_t n_vocab = (size_t)e->model->config.vocab_size;
    return job->slot_counts ? mm3_forward_step(e->forward)->counts + (size_t)job->slot * n_vocab : NULL;
}

static mm3_status start_counts(mm3_engine *e, mm3_job *job)
{
    int32_t *counts;
    if (!wants_counts(&job->sampling)) return MM3_OK;
    MM3_TRY(mm3_forward_need_counts(e->forward));
    job->slot_counts = true;
    counts = counts_of(e, job);
    memset(counts, 0, (size_t)e->model->config.vocab_size * sizeof *counts);
    for (int i = 0; i < job->session->n; i++) counts[job->session->token[i]] |= MM3_COUNT_IN_PROMPT;
    return MM3_OK;
}

static mm3_sample_row sample_row_of(const mm3_job *job)
{
    const mm3_sampling *s = &job->sampling;
    return (mm3_sample_row){ .temperature = s->temperature,
                             .top_k = s->top_k,
                             .top_p = s->top_p,
                             .min_p = s->min_p,
                             .repetition_penalty = s->repetition_penalty,
                             .presence_penalty = s->presence_penalty,
                             .frequency_penalty = s->frequency_penalty,
                             .counts_row = job->slot_counts ? job->slot : -1,
                             .seed = s->seed };
}

/* ---- the life of a job ------------------------------------------------------------------------------------------- */

static void finish(mm3_engine *e, mm3_job *job, mm3_status st)
{
    mm3_error_take(&job->error, st);
    if (job->slot >= 0) e->running[job->slot] = NULL;
    pthread_mutex_lock(&e->lock);
    job->done = true;
    pthread_cond_signal(&job->finished);
    pthread_mutex_unlock(&e->lock); /* the job belongs to its waiter again */
}

/* What is left to evaluate before the job can end (evaluate, score) or sample (generate). */
static int n_left(const mm3_job *job) { return job->session->n - job->session->n_evaluated; }

/* Whether a job takes part in decode steps; before that it is in prefill. */
static bool is_decoding(const mm3_job *job) { return job->kind == MM3_JOB_GENERATE && job->n_new > 0; }

/* A token was chosen after the session's last one. Ends the job when it is time to. */
static void take_token(mm3_engine *e, mm3_job *job, int32_t token, float logprob)
{
    mm3_session *s = job->session;
    bool go_on = true;
    if (token < 0) {
        finish(e, job,
               mm3_fail(MM3_ERR_DEVICE, MM3_HERE,
                        "NaN among the logits after %d tokens: nothing to sample from; "
                        "check the weights with 'mm3 score'",
                        s->n));
        return;
    }
    s->token[s->n++] = token;
    s->has_logits = false;
    if (job->n_new++ == 0) job->first_token_at = mm3_now_s();
    if (job->slot_counts) counts_of(e, job)[token]++;
    for (int i = 0; i < job->n_stop; i++) job->stopped |= job->stop_ids[i] == token;
    if (job->on_token) go_on = job->on_token(job->user, token, logprob);
    if (!go_on)
        finish(e, job, mm3_fail(MM3_ERR_CANCELLED, MM3_HERE, "generation was stopped after %d tokens", job->n_new));
    else if (job->stopped || job->n_new == job->max_new || s->n == e->context)
        finish(e, job, MM3_OK);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static void fill_row(mm3_step_block *b, int i, const mm3_job *job, int position)
{
    b->token[i] = job->session->token[position];
    b->slot[i] = job->slot;
    b->position[i] = position;
}

static void keep_logits(const mm3_engine *e, mm3_session *s, int i_row)
{
    size_t n = (size_t)e->model->config.vocab_size;
    memcpy(s->logits, mm3_forward_step(e->forward)->logits + (size_t)i_row * n, n * sizeof *s->logits);
    s->has_logits = true;
}

/* One piece of a sequence: up to chunk tokens. The last piece leaves logits in the session; score takes all. */
static mm3_status step_prefill(mm3_engine *e, mm3_job *job)
{
    mm3_session *s = job->session;
    mm3_step_block *b = mm3_forward_step(e->forward);
    bool score = job->kind == MM3_JOB_SCORE;
    int m = MM3_MIN(n_left(job), score ? MM3_MIN(e->chunk, e->max_logits) : e->chunk);
    bool last = m == n_left(job);
    mm3_step_shape shape = { .m = m, .n_logits = score ? m : last, .context = s->n_evaluated + m };
    MM3_TRY(reserve_pages(e, s, s->n_evaluated + m));
    show_pages(e, job);
    for (int i = 0; i < m; i++) fill_row(b, i, job, s->n_evaluated + i);
    b->logit_row[0] = m - 1;
    MM3_TRY(mm3_forward_issue(e->forward, e->recorder, &shape));
    if (score)
        for (int i = 0; i < m; i++)
            job->on_logits(job->user, s->n_evaluated + i, b->logits + (size_t)i * (size_t)e->model->config.vocab_size);
    s->n_evaluated += m;
    if (last) keep_logits(e, s, shape.n_logits - 1);
    return MM3_OK;
}

/* The first token of a generation: its logits are in the session already. */
static mm3_status step_first_sample(mm3_engine *e, mm3_job *job)
{
    mm3_session *s = job->session;
    mm3_step_block *b = mm3_forward_step(e->forward);
    memcpy(b->logits, s->logits, (size_t)e->model->config.vocab_size * sizeof *s->logits);
    b->logit_slot[0] = job->slot;
    b->logit_position[0] = s->n - 1;
    b->sample[0] = sample_row_of(job);
    MM3_TRY(mm3_forward_issue_sample(e->forward, e->recorder, 1));
    take_token(e, job, b->next[0], b->logprob[0]);
    return MM3_OK;
}

/* The padding rule. Which shapes there are: read_shapes in tuning.c, mm3_graph_shape in forward/shapes.c. */
mm3_decode_graph *mm3__decode_graph_for(mm3_engine *engine, int m)
{
    for (int i = 0; i < engine->n_graphs; i++)
        if (engine->graph[i].m >= m) return &engine->graph[i];
    return NULL;
}

/* Replay the recorded step that holds the rows, padded; or, where nothing is recorded, issue them eagerly. */
static mm3_status run_decode(mm3_engine *e, mm3_step_shape *shape)
{
    mm3_step_block *b = mm3_forward_step(e->forward);
    mm3_decode_graph *g = mm3__decode_graph_for(e, shape->m);
    shape->n_logits = shape->m;
    if (!g) {
        e->n_eager_steps++;
        return mm3_forward_issue(e->forward, e->recorder, shape);
    }
    for (int i = shape->m; i < g->m; i++) b->slot[i] = -1;
    e->n_replays++;
    e->n_padded_rows += g->m - shape->m;
    mm3_graph_replay(mm3_record_graph(g->recorder));
    return MM3_OK;
}

/* One token of every generating sequence. */
static void step_decode(mm3_engine *e)
{
    mm3_step_block *b = mm3_forward_step(e->forward);
    mm3_step_shape shape = { .sample = true };
    mm3_status st;
    int *slot_of_row = e->slot_of_row;
    for (int slot = 0; slot < e->max_batch; slot++) {
        mm3_job *job = e->running[slot];
        if (!job || !is_decoding(job)) continue;
        st = reserve_pages(e, job->session, job->session->n);
        if (st != MM3_OK) {
            finish(e, job, st);
            continue;
        }
        show_pages(e, job);
        fill_row(b, shape.m, job, job->session->n - 1);
        b->sample[shape.m] = sample_row_of(job);
        shape.context = MM3_MAX(shape.context, job->session->n);
        slot_of_row[shape.m++] = slot;
    }
    if (shape.m == 0) return;
    st = run_decode(e, &shape);
    for (int i = 0; i < shape.m; i++) {
        mm3_job *job = e->running[slot_of_row[i]];
        if (st != MM3_OK) {
            finish(e, job, st);
            continue;
        }
        job->session->n_evaluated = job->session->n;
        take_token(e, job, b->next[i], b->logprob[i]);
    }
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

/* Evaluate and score: make the sequence hold the job's tokens, keeping what the cache has of them. */
static mm3_status set_tokens(mm3_engine *e, mm3_job *job)
{
    mm3_session *s = job->session;
    int keep = 0, n = job->n_tokens;
    if (job->kind == MM3_JOB_EVALUATE)
        while (keep < n && keep < s->n && s->token[keep] == job->tokens[keep]) keep++;
    MM3_TRY(reserve_pages(e, s, n)); /* before anything changes */
    s->has_logits = s->has_logits && keep == n && keep == s->n;
    s->n_evaluated = MM3_MIN(s->n_evaluated, keep);
    if (n > keep) memcpy(s->token + keep, job->tokens + keep, (size_t)(n - keep) * sizeof *s->token);
    s->n = n;
    release_pages(e, s, (n + MM3_PAGE_TOKENS - 1) / MM3_PAGE_TOKENS);
    return MM3_OK;
}

/* Give a queued job its slot. A job with nothing to compute ends here. */
static void admit(mm3_engine *e, mm3_job *job, int slot)
{
    mm3_session *s = job->session;
    mm3_status st = MM3_OK;
    if (job->kind == MM3_JOB_RELEASE) {
        release_pages(e, s, 0);
        finish(e, job, MM3_OK);
        return;
    }
    if (job->kind == MM3_JOB_MEASURE) {
        finish(e, job, mm3__measure(e, job->spec, job->result));
        return;
    }
    job->slot = slot;
    e->running[slot] = job;
    if (job->kind == MM3_JOB_GENERATE)
        st = start_counts(e, job);
    else
        st = set_tokens(e, job);
    /* logits that are wanted but not there cost the last token again */
    if (!s->has_logits && s->n_evaluated == s->n && s->n > 0) s->n_evaluated--;
    if (st != MM3_OK || s->n == 0 || (job->kind == MM3_JOB_EVALUATE && s->has_logits)) finish(e, job, st);
}

/* Fill free slots from the queue. Returns false when the engine closes; waits while there is nothing to do. */
static bool admit_waiting(mm3_engine *e)
{
    for (;;) {
        mm3_job *job = NULL;
        int slot = 0;
        bool busy = false;
        for (int i = 0; i < e->max_batch; i++) busy |= e->running[i] != NULL;
        while (slot < e->max_batch && e->running[slot]) slot++;
        pthread_mutex_lock(&e->lock);
        while (!busy && !e->queue_head && !e->quit) pthread_cond_wait(&e->wake, &e->lock);
        if (!busy && e->quit && !e->queue_head) {
            pthread_mutex_unlock(&e->lock);
            return false;
        }
        if (e->queue_head && slot < e->max_batch && !(busy && e->queue_head->kind == MM3_JOB_MEASURE)) {
            job = e->queue_head;
            e->queue_head = job->next;
            if (!e->queue_head) e->queue_tail = NULL;
        }
        pthread_mutex_unlock(&e->lock);
        if (!job) return true;
        admit(e, job, slot);
    }
}

static void step_prefill_of(mm3_engine *e, mm3_job *job)
{
    int slot = job->slot;
    mm3_status st = job->session->has_logits ? step_first_sample(e, job) : step_prefill(e, job);
    if (e->running[slot] != job) return; /* it ended, and belongs to its waiter: not to be touched */
    if (st != MM3_OK || (job->kind != MM3_JOB_GENERATE && n_left(job) == 0)) finish(e, job, st);
}

static void *scheduler_main(void *user)
{
    mm3_engine *e = user;
    while (admit_waiting(e)) {
        mm3_job *prefill = NULL;
        bool decode = false;
        for (int i = 0; i < e->max_batch; i++) {
            mm3_job *job = e->running[i];
            if (!job) continue;
            if (is_decoding(job))
                decode = true;
            else if (!prefill)
                prefill = job;
        }
        e->prefill_last = prefill && (!decode || !e->prefill_last);
        if (e->prefill_last)
            step_prefill_of(e, prefill);
        else
            step_decode(e);
    }
    return NULL;
}

mm3_status mm3__scheduler_start(mm3_engine *engine)
{
    MM3_CHECK(pthread_create(&engine->thread, NULL, scheduler_main, engine) == 0, MM3_ERR_NOMEM,
              "cannot start the scheduler thread: memory or the number of threads is limited");
    engine->thread_started = true;
    return MM3_OK;
}

void mm3__scheduler_stop(mm3_engine *engine)
{
    if (!engine->thread_started) return;
    pthread_mutex_lock(&engine->lock);
    engine->quit = true;
    pthread_cond_signal(&engine->wake);
    pthread_mutex_unlock(&engine->lock);
    pthread_join(engine->thread, NULL);
    engine->thread_started = false;
}

mm3_status mm3__scheduler_run(mm3_engine *engine, mm3_job *job)
{
    job->slot = -1;
    pthread_cond_init(&job->finished, NULL);
    pthread_mutex_lock(&engine->lock);
    if (engine->queue_tail)
        engine->queue_tail->next = job;
    else
        engine->queue_head = job;
    engine->queue_tail = job;
    pthread_cond_signal(&engine->wake);
    while (!job->done) pthread_cond_wait(&job->finished, &engine->lock);
    pthread_mutex_unlock(&engine->lock);
    pthread_cond_destroy(&job->finished);
    return mm3_error_raise(&job->error);
}
