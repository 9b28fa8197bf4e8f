/* mm3 generate: continue a text, or answer one message. Uses the public header alone: an example of it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

typedef struct request {
    cli_engine engine;
    const char *prompt, *ids_file, *chat, *system, *tools_file, *thinking;
    bool special, greedy, json, verbose;
    int max_new;
    mm3_sampling sampling; /* NAN or -1: not given */
    int64_t seed;          /* -1: not given */
} request;

/* All that is open while a request runs; closed in one place. */
typedef struct job {
    const request *request;
    mm3_engine *engine;
    mm3_tokenizer *tokenizer; /* NULL: ids alone */
    mm3_session *session;
    cli_stream stream;
    char *tools; /* JSON text, or NULL */
    int32_t *prompt;
    int n_prompt;
    mm3_sampling sampling;
    const char *finish_reason;
    FILE *kept; /* the text of --json, a memory stream */
    char *text; /* what `kept` holds once it is closed; from malloc */
    size_t n_text;
} job;

/* The parameters of mm3_sampling that are floats: option, member, letter in the help, least and largest value. */
#define REALS(X)                                             \
    X("temperature", temperature, "T", 0, 100)               \
    X("top-p", top_p, "P", 0, 1)                             \
    X("min-p", min_p, "P", 0, 1)                             \
    X("repetition-penalty", repetition_penalty, "R", 0, 100) \
    X("presence-penalty", presence_penalty, "A", -100, 100)  \
    X("frequency-penalty", frequency_penalty, "A", -100, 100)

static int parse(request *r, int argc, char **argv)
{
    mm3_sampling *s = &r->sampling;
    const cli_option options[] = {
        { "prompt", 'p', CLI_TEXT, &r->prompt, "TEXT", "continue this text", 0, 0 },
        { "ids", 0, CLI_TEXT, &r->ids_file, "FILE", "continue these token ids; -: standard input", 0, 0 },
        { "chat", 0, CLI_TEXT, &r->chat, "TEXT", "answer this message", 0, 0 },
        { "max-new", 'n', CLI_INT, &r->max_new, "N", "tokens to generate at most (default 256)", 0, 1 << 30 },
        { "special", 0, CLI_FLAG, &r->special, NULL, "special tokens: match them in the text, show them", 0, 0 },
        { "system", 0, CLI_TEXT, &r->system, "TEXT", "with --chat: instructions that come first", 0, 0 },
        { "tools", 0, CLI_TEXT, &r->tools_file, "FILE", "with --chat: tools as JSON, as in OpenAI's API", 0, 0 },
        { "thinking", 0, CLI_WORD, &r->thinking, "MODE:enabled|disabled|adaptive",
          "with --chat: enabled, disabled or adaptive (default)", 0, 0 },
        { "json", 0, CLI_FLAG, &r->json, NULL, "ids, text, timings and start-up as JSON", 0, 0 },
        { "verbose", 'v', CLI_FLAG, &r->verbose, NULL, "start-up and timings on standard error", 0, 0 },
        { "greedy", 0, CLI_FLAG, &r->greedy, NULL, "always the most probable token", 0, 0 },
        { .kind = CLI_HEADING, .help = "sampling (what is not given is as the model says; the seed is random):" },
        { "top-k", 0, CLI_INT, &s->top_k, "K", NULL, 0, 1 << 30 },
        { "seed", 0, CLI_INT64, &r->seed, "N", NULL, 0, 0x1p63 },
#define OPTION(option, member, letter, low, high) { option, 0, CLI_FLOAT, &s->member, letter, NULL, low, high },
        REALS(OPTION)
#undef OPTION
    };
    int status = cli_parse(argc, argv, options, sizeof options / sizeof options[0], &r->engine, 0);
    int n_prompts = (r->prompt != NULL) + (r->ids_file != NULL) + (r->chat != NULL);
    if (status != CLI_GO) return status;
    if (n_prompts != 1)
        return cli_usage("generate needs one of -p, --ids and --chat, got %d: see 'mm3 generate --help'", n_prompts);
    if (!r->chat && (r->system || r->tools_file || r->thinking))
        return cli_usage("--system, --tools and --thinking belong to a message: use --chat TEXT");
    if (r->special && !r->prompt) return cli_usage("--special is for a text: use it with -p");
    if (r->greedy && s->temperature > 0) return cli_usage("--greedy and --temperature contradict: give one of them");
    return CLI_GO;
}

/* What was given on top of the model's own values. */
static void choose_sampling(job *j)
{
    const mm3_sampling *given = &j->request->sampling;
    mm3_sampling *s = &j->sampling;
    static const mm3_sampling greedy = MM3_SAMPLING_GREEDY;
    *s = j->request->greedy ? greedy : mm3_engine_sampling(j->engine);
    if (given->top_k >= 0) s->top_k = given->top_k;
#define TAKE(option, member, letter, low, high) \
    if (!isnan(given->member)) s->member = given->member;
    REALS(TAKE)
#undef TAKE
    s->seed = j->request->seed >= 0 ? (uint64_t)j->request->seed : cli_random_seed();
}

static bool encode_chat(job *j)
{
    const request *r = j->request;
    json_t *messages = json_array();
    char *text;
    mm3_status st;
    if (r->system) json_array_append_new(messages, json_pack("{ss ss}", "role", "system", "content", r->system));
    json_array_append_new(messages, json_pack("{ss ss}", "role", "user", "content", r->chat));
    if (json_array_size(messages) != (size_t)(r->system ? 2 : 1)) { /* the only reason but memory */
        json_decref(messages);
        cli_error("--chat or --system is not valid UTF-8: convert it with iconv");
        return false;
    }
    text = json_dumps(messages, JSON_COMPACT);
    json_decref(messages);
    if (!text) {
        cli_error("out of memory for the messages");
        return false;
    }
    st = mm3_chat_encode(j->tokenizer, text, j->tools, r->thinking, true, &j->prompt, &j->n_prompt);
    free(text);
    if (st != MM3_OK) cli_failed();
    return st == MM3_OK;
}

static bool make_prompt(job *j)
{
    const request *r = j->request;
    const char *dir = r->engine.options.model_dir;
    bool wants_text = !r->ids_file || cli_model_has(dir, "tokenizer.json");
    if (wants_text && mm3_tokenizer_open(&j->tokenizer, dir) != MM3_OK) {
        cli_failed();
        return false;
    }
    if (r->ids_file) return cli_read_ids(r->ids_file, &j->prompt, &j->n_prompt);
    if (r->chat) return encode_chat(j);
    if (mm3_tokenizer_encode(j->tokenizer, r->prompt, strlen(r->prompt), r->special, &j->prompt, &j->n_prompt) ==
        MM3_OK)
        return true;
    cli_failed();
    return false;
}

static bool write_text(void *user, const char *text, bool finish)
{
    const job *j = user;
    fputs(text, j->kept ? j->kept : stdout);
    return j->kept || finish || cli_flush();
}

static bool generate(job *j)
{
    const request *r = j->request;
    int context = mm3_engine_context(j->engine), max_new;
    bool show_special = r->chat || r->special; /* the marks around reasoning and calls are special tokens */
    if (j->n_prompt == 0) {
        cli_error("the prompt is empty: give at least one token");
        return false;
    }
    if (j->n_prompt > context) {
        cli_error("the prompt has %d tokens and the context %d: shorten it or raise --context", j->n_prompt, context);
        return false;
    }
    max_new = r->max_new < context - j->n_prompt ? r->max_new : context - j->n_prompt;
    choose_sampling(j);
    j->stream.tokenizer = j->tokenizer;
    j->stream.stop_ids = mm3_engine_stop_ids(j->engine, &j->stream.n_stop);
    j->stream.sink = write_text;
    j->stream.user = j;
    if (!cli_stream_open(&j->stream, max_new, show_special)) return false;
    if (mm3_session_open(&j->session, j->engine) != MM3_OK ||
        mm3_session_sync(j->session, j->prompt, j->n_prompt) != MM3_OK) {
        cli_failed();
        return false;
    }
    cli_catch_interrupt(true); /* before, there is nothing to keep: Ctrl-C just ends the process */
    return cli_stream_generate(&j->stream, j->session, &j->sampling, &j->finish_reason);
}

/* The answer split into reasoning, content and calls, as a message of OpenAI's API; NULL when it cannot be made. */
static json_t *message(const job *j)
{
    mm3_parser *parser = NULL;
    char *text = NULL;
    json_t *m = NULL;
    if (mm3_parser_open(&parser, j->tools, j->request->thinking) == MM3_OK &&
        mm3_parser_push(parser, j->text, j->n_text, true, &text) == MM3_OK)
        m = json_loads(text, 0, NULL);
    mm3_free(text);
    mm3_parser_close(&parser);
    if (m) json_object_set_new(m, "role", json_string("assistant"));
    return m;
}

static json_t *logprobs(const cli_stream *s)
{
    json_t *array = json_array();
    for (int i = 0; i < s->n_ids; i++) json_array_append_new(array, cli_json_real(s->logprobs[i]));
    return array;
}

static int print_json(job *j, double prefill_s, double decode_s, double rate)
{
    static const char *const of_engine[] = { "startup", "tuning", "graphs", "counters" };
    json_t *prompt_ids = cli_json_ids(j->prompt, j->n_prompt), *ids = cli_json_ids(j->stream.ids, j->stream.n_ids);
    json_t *info = cli_engine_info(j->engine), *text = j->tokenizer ? json_stringn(j->text, j->n_text) : json_null();
    json_t *out;
    if (!info || !text) {
        json_decref(prompt_ids);
        json_decref(ids);
        json_decref(info);
        json_decref(text);
        return info ? cli_error("the text is not valid UTF-8 or memory ran out: leave --json away") : CLI_FAILED;
    }
    out = json_pack("{so so so so ss sI s{sf sf sf}}", "prompt_ids", prompt_ids, "ids", ids, "text", text, "logprobs",
                    logprobs(&j->stream), "finish_reason", j->finish_reason, "seed", (json_int_t)j->sampling.seed,
                    "timings", "prefill_s", prefill_s, "decode_s", decode_s, "decode_tok_s", rate);
    for (size_t i = 0; i < sizeof of_engine / sizeof of_engine[0]; i++)
        json_object_set(out, of_engine[i], json_object_get(info, of_engine[i]));
    json_decref(info);
    if (out && j->request->chat) json_object_set_new(out, "message", message(j));
    return cli_print_json(out);
}

static int report(job *j)
{
    const cli_stream *s = &j->stream;
    double prefill_s, decode_s, rate;
    mm3_session_times(j->session, &prefill_s, &decode_s);
    rate = decode_s > 0 && s->n_ids > 1 ? (s->n_ids - 1) / decode_s : 0; /* the first token ends the prefill */
    if (j->request->json) {
        if (fclose(j->kept) != 0) return cli_error("out of memory for the text: leave --json away");
        j->kept = NULL;
        return print_json(j, prefill_s, decode_s, rate);
    }
    if (j->tokenizer) putchar('\n');
    if (!j->tokenizer) /* no text to show */
        for (int i = 0; i < s->n_ids; i++) printf("%d%c", (int)s->ids[i], i + 1 < s->n_ids ? ' ' : '\n');
    if (j->request->verbose && cli_flush()) {
        json_t *info = cli_engine_info(j->engine);
        cli_print_ledger(stderr, info);
        json_decref(info);
    }
    if ((j->request->verbose || isatty(STDERR_FILENO)) && cli_flush())
        fprintf(stderr, "prompt %d tokens in %.3f s; %d tokens in %.3f s, %.1f tok/s; %s; seed %llu\n", j->n_prompt,
                prefill_s, s->n_ids, decode_s, rate, j->finish_reason, (unsigned long long)j->sampling.seed);
    return CLI_DONE;
}

static int run(job *j)
{
    int status;
    if (!make_prompt(j)) return CLI_FAILED;
    if (j->request->json && !(j->kept = open_memstream(&j->text, &j->n_text))) return cli_error("out of memory");
    if (!generate(j)) return CLI_FAILED;
    status = report(j);
    return status == CLI_DONE && strcmp(j->finish_reason, "interrupted") == 0 ? CLI_INTERRUPTED : status;
}

int cmd_generate(int argc, char **argv)
{
    request r = { .engine = CLI_ENGINE_INIT, .max_new = 256, .seed = -1 };
    job j = { .request = &r };
    int status;
#define NOT_GIVEN(option, member, letter, low, high) .member = NAN,
    r.sampling = (mm3_sampling){ .top_k = -1, REALS(NOT_GIVEN) };
#undef NOT_GIVEN
    if ((status = parse(&r, argc, argv)) != CLI_GO) return status;
    if (r.tools_file && !cli_read_tools(r.tools_file, &j.tools)) /* before anything is loaded */
        status = CLI_FAILED;
    else if ((status = cli_open_engine(&j.engine, &r.engine)) == CLI_GO)
        status = run(&j);
    if (j.kept) fclose(j.kept);
    free(j.text);
    cli_stream_close(&j.stream);
    mm3_free(j.tools);
    mm3_free(j.prompt);
    mm3_session_close(&j.session);
    mm3_tokenizer_close(&j.tokenizer);
    mm3_engine_close(&j.engine);
    return status;
}
