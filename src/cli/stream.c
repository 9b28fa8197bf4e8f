/* Tokens as they are generated: kept, decoded, handed on as text. */
#include <string.h>

#include "cli/cli.h"

bool cli_stream_open(cli_stream *s, int max_ids, bool special)
{
    s->max_ids = max_ids;
    s->n_ids = 0;
    s->error[0] = 0;
    s->ids = cli_alloc((size_t)max_ids, sizeof *s->ids);
    s->logprobs = cli_alloc((size_t)max_ids, sizeof *s->logprobs);
    if (!s->ids || !s->logprobs) return false;
    if (!s->tokenizer || mm3_decoder_open(&s->decoder, s->tokenizer, special) == MM3_OK) return true;
    cli_failed();
    return false;
}

void cli_stream_close(cli_stream *s)
{
    mm3_decoder_close(&s->decoder);
    mm3_free(s->ids);
    mm3_free(s->logprobs);
    s->ids = NULL;
    s->logprobs = NULL;
}

static bool is_stop(const cli_stream *s, int32_t id)
{
    for (int i = 0; i < s->n_stop; i++)
        if (s->stop_ids[i] == id) return true;
    return false;
}

/* Errors are recorded per thread, and this runs on the engine's: keep the text for the main thread. */
static bool keep_error(cli_stream *s)
{
    snprintf(s->error, sizeof s->error, "%s", mm3_last_error());
    return false;
}

static bool on_token(void *user, int32_t id, float logprob)
{
    cli_stream *s = user;
    const char *text = "";
    s->ids[s->n_ids] = id;
    s->logprobs[s->n_ids++] = logprob;
    if (s->decoder && !is_stop(s, id)) {
        if (id >= mm3_tokenizer_size(s->tokenizer))
            text = "\xEF\xBF\xBD"; /* the model's vocabulary is wider than the tokenizer's: U+FFFD, as for bad bytes */
        else if (mm3_decoder_push(s->decoder, id, &text) != MM3_OK)
            return keep_error(s);
        if (*text && !s->sink(s->user, text, false)) return false;
    }
    return !cli_interrupted();
}

bool cli_stream_generate(cli_stream *s, mm3_session *session, const mm3_sampling *sampling, const char **finish_reason)
{
    mm3_status st = MM3_OK;
    bool stopped = false, ok = true;
    const char *text = "";
    if (s->max_ids > 0 && !cli_interrupted())
        st = mm3_session_generate(session, sampling, s->max_ids, s->stop_ids, s->n_stop, on_token, s, NULL, &stopped);
    *finish_reason = stopped ? "stop" : cli_interrupted() ? "interrupted" : "length";
    if (st != MM3_OK && st != MM3_ERR_CANCELLED) {
        cli_failed();
        ok = false;
    } else if (s->error[0]) {
        cli_error("%s", s->error);
        ok = false;
    }
    if (s->decoder && mm3_decoder_flush(s->decoder, &text) == MM3_OK) s->sink(s->user, text, true);
    return ok;
}
