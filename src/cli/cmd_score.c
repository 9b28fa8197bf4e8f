/* mm3 score: how probable given tokens are, and the logits after the last of them. */
#include <math.h>

#include "cli/cli.h"

typedef struct score {
    const int32_t *ids; /* borrowed */
    int n, n_vocab;
    int n_last;    /* positions whose logits are kept */
    float *logits; /* [n_last, n_vocab] owned */
    double nll;    /* summed over tokens 2..n */
} score;

/* log of the sum of exponentials, in double: a mean over thousands of tokens is compared to 1e-6 and better. */
static double log_sum_exp(const float *x, int n)
{
    double high = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++)
        if (!(x[i] <= high)) high = x[i]; /* a NaN is taken over */
    for (int i = 0; i < n; i++) sum += exp(x[i] - high);
    return high + log(sum);
}

static void on_logits(void *user, int position, const float *logits)
{
    score *s = user;
    int i_last = position - (s->n - s->n_last);
    if (position + 1 < s->n) s->nll += log_sum_exp(logits, s->n_vocab) - logits[s->ids[position + 1]];
    if (i_last < 0) return;
    for (int i = 0; i < s->n_vocab; i++) s->logits[(size_t)i_last * (size_t)s->n_vocab + (size_t)i] = logits[i];
}

/* By hand: nine digits bring a float back exactly, and a library that builds a tree of these is slow. */
static void print_json(const score *s, double nll)
{
    printf("{\"n\":%d,\"nll\":", s->n);
    if (isfinite(nll))
        printf("%.17g,\"logits\":[", nll);
    else
        printf("null,\"logits\":[");
    for (int p = 0; p < s->n_last; p++) {
        const float *x = s->logits + (size_t)p * (size_t)s->n_vocab;
        printf("%s[", p ? "," : "");
        for (int i = 0; i < s->n_vocab; i++) {
            if (i) putchar(',');
            if (isfinite(x[i]))
                printf("%.9g", (double)x[i]);
            else
                printf("null");
        }
        putchar(']');
    }
    printf("]}\n");
}

static int run(mm3_engine *engine, score *s, bool json)
{
    mm3_session *session = NULL;
    int context = mm3_engine_context(engine);
    mm3_status st;
    double nll;
    if (s->n == 0) return cli_error("there are no tokens to score: give at least one id");
    if (s->n > context)
        return cli_error("there are %d tokens and the context is %d: give fewer or raise --context", s->n, context);
    s->n_vocab = mm3_engine_vocab_size(engine);
    if (s->n_last > s->n) s->n_last = s->n;
    s->logits = cli_alloc((size_t)s->n_last * (size_t)s->n_vocab, sizeof *s->logits);
    if (!s->logits) return CLI_FAILED;
    st = mm3_session_open(&session, engine);
    if (st == MM3_OK) st = mm3_session_score(session, s->ids, s->n, on_logits, s);
    mm3_session_close(&session);
    if (st != MM3_OK) return cli_failed();
    nll = s->n > 1 ? s->nll / (s->n - 1) : 0;
    if (json)
        print_json(s, nll);
    else
        printf("n %d  nll %.6f  perplexity %.4f\n", s->n, nll, exp(nll));
    return CLI_DONE;
}

int cmd_score(int argc, char **argv)
{
    cli_engine with = CLI_ENGINE_INIT;
    score s = { .n_last = 1 };
    const char *file = NULL;
    bool json = false;
    const cli_option options[] = {
        { "ids", 0, CLI_TEXT, &file, "FILE", "token ids, by blanks or commas; -: standard input", 0, 0 },
        { "last", 0, CLI_INT, &s.n_last, "K", "with --json: logits of the last K tokens (default 1)", 0, 1 << 30 },
        { "json", 0, CLI_FLAG, &json, NULL, "n, nll (mean over tokens 2..n), raw logits as JSON", 0, 0 },
    };
    mm3_engine *engine = NULL;
    int32_t *ids = NULL;
    int status = cli_parse(argc, argv, options, sizeof options / sizeof options[0], &with, 0);
    if (status != CLI_GO) return status;
    if (!file) return cli_usage("score needs --ids FILE: see 'mm3 score --help'");
    if ((status = cli_open_engine(&engine, &with)) != CLI_GO) return status;
    status = CLI_FAILED;
    if (cli_read_ids(file, &ids, &s.n)) {
        s.ids = ids;
        status = run(engine, &s, json);
    }
    mm3_free(s.logits);
    mm3_free(ids);
    mm3_engine_close(&engine);
    return status;
}
