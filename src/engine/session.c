/* Sessions: arguments are checked here, on the caller's thread; the work is a job for the scheduler. */
#include <math.h>
#include <string.h>

#include "engine/state.h"

mm3_status mm3_session_open(mm3_session **out, mm3_engine *engine)
{
    mm3_session *s = mm3_calloc(1, sizeof *s);
    *out = NULL;
    if (s) {
        s->engine = engine;
        s->max = engine->context;
        s->max_pages = (engine->context + MM3_PAGE_TOKENS - 1) / MM3_PAGE_TOKENS;
        s->token = mm3_calloc((size_t)s->max, sizeof *s->token);
        s->page = mm3_calloc((size_t)s->max_pages, sizeof *s->page);
        s->logits = mm3_calloc((size_t)engine->model->config.vocab_size, sizeof *s->logits);
    }
    if (!s || !s->token || !s->page || !s->logits) {
        if (s) {
            mm3_free(s->token);
            mm3_free(s->page);
            mm3_free(s->logits);
            mm3_free(s);
        }
        return mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for a session");
    }
    *out = s;
    return MM3_OK;
}

void mm3_session_close(mm3_session **session)
{
    mm3_session *s = session ? *session : NULL;
    mm3_engine *e;
    mm3_job job = { .kind = MM3_JOB_RELEASE, .session = s };
    if (!s) return;
    e = s->engine;
    (void)mm3__scheduler_run(e, &job); /* giving pages back can't fail */
    mm3_free(s->token);
    mm3_free(s->page);
    mm3_free(s->logits);
    mm3_free(s);
    *session = NULL;
}

int mm3_session_length(const mm3_session *session) { return session->n; }

static mm3_status check_tokens(const mm3_engine *e, const int32_t *tokens, int n)
{
    MM3_CHECK(n >= 0, MM3_ERR_ARG, "%d tokens: the count can't be negative", n);
    MM3_CHECK(n <= e->context, MM3_ERR_ARG, "%d tokens do not fit into the context of %d", n, e->context);
    for (int i = 0; i < n; i++)
        MM3_CHECK(tokens[i] >= 0 && tokens[i] < e->model->config.vocab_size, MM3_ERR_ARG,
                  "token %d is id %d; the vocabulary has ids 0 to %d", i, tokens[i], e->model->config.vocab_size - 1);
    return MM3_OK;
}

static mm3_status run_evaluation(mm3_session *s, mm3_job *job)
{
    double start = mm3_now_s();
    mm3_status st = mm3__scheduler_run(s->engine, job);
    s->prefill_s += mm3_now_s() - start;
    return st;
}

mm3_status mm3_session_sync(mm3_session *session, const int32_t *tokens, int n)
{
    mm3_job job = { .kind = MM3_JOB_EVALUATE, .session = session, .tokens = tokens, .n_tokens = n };
    MM3_TRY(check_tokens(session->engine, tokens, n));
    return run_evaluation(session, &job);
}

mm3_status mm3_session_logits(mm3_session *session, float *logits)
{
    MM3_CHECK(session->n > 0, MM3_ERR_ARG, "the sequence is empty: there are no logits before the first token");
    if (!session->has_logits) { /* the last token came from generate and was not evaluated yet */
        mm3_job job = {
            .kind = MM3_JOB_EVALUATE, .session = session, .tokens = session->token, .n_tokens = session->n
        };
        MM3_TRY(run_evaluation(session, &job));
    }
    memcpy(logits, session->logits, (size_t)session->engine->model->config.vocab_size * sizeof *logits);
    return MM3_OK;
}

static mm3_status check_sampling(const mm3_sampling *s)
{
    MM3_CHECK(s->temperature >= 0 && isfinite(s->temperature), MM3_ERR_ARG,
              "temperature %g: use 0 (greedy) or a positive number", (double)s->temperature);
    MM3_CHECK(s->top_k >= 0, MM3_ERR_ARG, "top_k %d: use 0 (all) or a positive number", s->top_k);
    MM3_CHECK(s->top_p > 0 && s->top_p <= 1, MM3_ERR_ARG, "top_p %g: it must be above 0 and at most 1",
              (double)s->top_p);
    MM3_CHECK(s->min_p >= 0 && s->min_p < 1, MM3_ERR_ARG, "min_p %g: it must be at least 0 and below 1",
              (double)s->min_p);
    MM3_CHECK(s->repetition_penalty > 0 && isfinite(s->repetition_penalty), MM3_ERR_ARG,
              "repetition_penalty %g: it must be above 0 (1: none)", (double)s->repetition_penalty);
    MM3_CHECK(isfinite(s->presence_penalty) && isfinite(s->frequency_penalty), MM3_ERR_ARG,
              "presence_penalty %g, frequency_penalty %g: they must be finite", (double)s->presence_penalty,
              (double)s->frequency_penalty);
    return MM3_OK;
}

mm3_status mm3_session_generate(mm3_session *session, const mm3_sampling *sampling, int max_new,
                                const int32_t *stop_ids, int n_stop, mm3_on_token *on_token, void *user, int *n_new,
                                bool *stopped)
{
    mm3_job job = { .kind = MM3_JOB_GENERATE,
                    .session = session,
                    .sampling = *sampling,
                    .max_new = max_new,
                    .stop_ids = stop_ids,
                    .n_stop = n_stop,
                    .on_token = on_token,
                    .user = user };
    double start = mm3_now_s(), end;
    mm3_status st = MM3_OK;
    if (n_new) *n_new = 0;
    if (stopped) *stopped = false;
    MM3_CHECK(max_new >= 0, MM3_ERR_ARG, "max_new is %d: it can't be negative", max_new);
    MM3_CHECK(session->n > 0, MM3_ERR_ARG, "the sequence is empty: give it a prompt first");
    MM3_TRY(check_sampling(sampling));
    if (max_new == 0 || session->n == session->engine->context) return MM3_OK;
    st = mm3__scheduler_run(session->engine, &job);
    end = mm3_now_s();
    if (job.n_new == 0) job.first_token_at = end;
    session->prefill_s += job.first_token_at - start;
    session->decode_s += end - job.first_token_at;
    if (n_new) *n_new = job.n_new;
    if (stopped) *stopped = job.stopped;
    return st;
}

mm3_status mm3_session_score(mm3_session *session, const int32_t *tokens, int n, mm3_on_logits *on_logits, void *user)
{
    mm3_job job = {
        .kind = MM3_JOB_SCORE, .session = session, .tokens = tokens, .n_tokens = n, .on_logits = on_logits, .user = user
    };
    MM3_TRY(check_tokens(session->engine, tokens, n));
    return run_evaluation(session, &job);
}

void mm3_session_times(const mm3_session *session, double *prefill_s, double *decode_s)
{
    *prefill_s = session->prefill_s;
    *decode_s = session->decode_s;
}
