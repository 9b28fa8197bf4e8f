/* mm3 chat: a conversation in the terminal, or line by line from a pipe. Owns the list of messages; the session keeps
 * what it evaluated, so each turn costs only what is new. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

typedef enum shown { NOTHING, REASONING, CONTENT, CALL } shown;

typedef struct chat {
    const char *system_option, *tools_file, *thinking;
    int max_new;
    bool greedy, interrupted;
    bool on_terminal; /* standard input is one */
    bool dims;        /* standard output is one: reasoning is dimmed */
    char *system;     /* owned, may be NULL */
    char *tools;      /* owned JSON text, or NULL */
    mm3_engine *engine;
    mm3_tokenizer *tokenizer;
    mm3_session *session;
    mm3_sampling sampling;
    json_t *messages; /* owned: without the system message */

    /* The answer that is being written. */
    cli_stream stream;
    mm3_parser *parser;
    json_t *calls;
    FILE *reasoning_file, *content_file;
    char *reasoning, *content; /* what those hold once closed; from malloc */
    size_t n_reasoning, n_content;
    shown last_shown;
} chat;

/* ---- showing an answer, on the engine's thread ------------------------------------------------------------------- */

static void show(chat *c, shown what, const char *text)
{
    if (*text == 0 && what != NOTHING) return;
    if (what != c->last_shown) {
        if (c->dims && c->last_shown == REASONING) fputs("\033[0m", stdout);
        if (c->last_shown != NOTHING) putchar('\n');
        if (c->dims && what == REASONING) fputs("\033[2m", stdout);
    }
    fputs(text, stdout);
    c->last_shown = what;
}

/* A call comes whole or its arguments in pieces; kept as one member of the message. */
static bool take_call(chat *c, const json_t *delta)
{
    size_t index = (size_t)json_integer_value(json_object_get(delta, "index"));
    const json_t *function = json_object_get(delta, "function");
    const char *name = json_string_value(json_object_get(function, "name"));
    const char *arguments = json_string_value(json_object_get(function, "arguments"));
    json_t *call = json_array_get(c->calls, index), *kept;
    char *joined = NULL;
    if (!call) {
        if (!(call = json_deep_copy(delta))) return false;
        json_object_del(call, "index");
        if (json_array_append_new(c->calls, call) != 0) return false;
        show(c, CALL, "call ");
        show(c, CALL, name ? name : "");
        show(c, CALL, " ");
        show(c, CALL, arguments ? arguments : "");
        return true;
    }
    if (!arguments) return true;
    kept = json_object_get(json_object_get(call, "function"), "arguments");
    if (asprintf(&joined, "%s%s", json_string_value(kept) ? json_string_value(kept) : "", arguments) < 0) return false;
    show(c, CALL, arguments);
    kept = json_string(joined);
    free(joined);
    return json_object_set_new(json_object_get(call, "function"), "arguments", kept) == 0;
}

static bool take_delta(chat *c, const char *json)
{
    json_t *delta = json_loads(json, 0, NULL), *call;
    const char *reasoning = json_string_value(json_object_get(delta, "reasoning_content"));
    const char *content = json_string_value(json_object_get(delta, "content"));
    size_t i;
    bool ok = delta != NULL;
    if (reasoning) {
        fputs(reasoning, c->reasoning_file);
        show(c, REASONING, reasoning);
    }
    if (content) {
        fputs(content, c->content_file);
        show(c, CONTENT, content);
    }
    json_array_foreach(json_object_get(delta, "tool_calls"), i, call) ok = ok && take_call(c, call);
    json_decref(delta);
    if (!ok) snprintf(c->stream.error, sizeof c->stream.error, "out of memory for the answer");
    return ok && cli_flush();
}

static bool on_text(void *user, const char *text, bool finish)
{
    chat *c = user;
    char *delta = NULL;
    bool ok;
    if (mm3_parser_push(c->parser, text, strlen(text), finish, &delta) != MM3_OK) {
        snprintf(c->stream.error, sizeof c->stream.error, "%s", mm3_last_error());
        return false;
    }
    ok = take_delta(c, delta);
    mm3_free(delta);
    return ok;
}

/* ---- one turn ---------------------------------------------------------------------------------------------------- */

static bool encode(chat *c, int32_t **ids, int *n_ids)
{
    json_t *all = json_array();
    char *text = NULL;
    mm3_status st = MM3_OK;
    bool ok = all != NULL;
    if (c->system)
        ok = ok && json_array_append_new(all, json_pack("{ss ss}", "role", "system", "content", c->system)) == 0;
    ok = ok && json_array_extend(all, c->messages) == 0 && (text = json_dumps(all, JSON_COMPACT));
    json_decref(all);
    if (!ok)
        cli_error("out of memory, or the system text is not valid UTF-8");
    else if ((st = mm3_chat_encode(c->tokenizer, text, c->tools, c->thinking, true, ids, n_ids)) != MM3_OK)
        cli_failed();
    free(text);
    return ok && st == MM3_OK;
}

static bool open_answer(chat *c, int max_new)
{
    c->last_shown = NOTHING;
    c->stream.tokenizer = c->tokenizer;
    c->stream.stop_ids = mm3_engine_stop_ids(c->engine, &c->stream.n_stop);
    c->stream.sink = on_text;
    c->stream.user = c;
    c->calls = json_array();
    c->reasoning_file = open_memstream(&c->reasoning, &c->n_reasoning);
    c->content_file = open_memstream(&c->content, &c->n_content);
    if (!c->calls || !c->reasoning_file || !c->content_file) return cli_error("out of memory") == CLI_DONE;
    if (mm3_parser_open(&c->parser, c->tools, c->thinking) != MM3_OK) return cli_failed() == CLI_DONE;
    return cli_stream_open(&c->stream, max_new, true);
}

/* Everything that open_answer made, half-made or not. */
static void close_answer(chat *c)
{
    if (c->reasoning_file) fclose(c->reasoning_file);
    if (c->content_file) fclose(c->content_file);
    c->reasoning_file = c->content_file = NULL;
    free(c->reasoning);
    free(c->content);
    c->reasoning = c->content = NULL;
    json_decref(c->calls);
    c->calls = NULL;
    mm3_parser_close(&c->parser);
    cli_stream_close(&c->stream);
}

/* Add what was answered to the messages. */
static bool keep_answer(chat *c)
{
    json_t *m = json_pack("{ss}", "role", "assistant");
    bool ok = m && fclose(c->reasoning_file) == 0;
    c->reasoning_file = NULL;
    ok = ok && fclose(c->content_file) == 0;
    c->content_file = NULL;
    ok = ok && json_object_set_new(m, "content", json_stringn(c->content, c->n_content)) == 0;
    if (ok && c->n_reasoning > 0)
        ok = json_object_set_new(m, "reasoning_content", json_stringn(c->reasoning, c->n_reasoning)) == 0;
    if (ok && json_array_size(c->calls) > 0) ok = json_object_set(m, "tool_calls", c->calls) == 0;
    ok = ok && json_array_append(c->messages, m) == 0;
    json_decref(m);
    if (!ok) cli_error("out of memory for the conversation");
    return ok;
}

/* Answer what was said; on failure the messages are as before and the error is printed. */
static bool answer(chat *c, const char *role, const char *said)
{
    size_t n_before = json_array_size(c->messages);
    int32_t *ids = NULL;
    int n_ids = 0, context = mm3_engine_context(c->engine), max_new;
    const char *finish_reason = "";
    bool ok = json_array_append_new(c->messages, json_pack("{ss ss}", "role", role, "content", said)) == 0;
    if (!ok) cli_error("that is not valid UTF-8: send it converted");
    ok = ok && encode(c, &ids, &n_ids);
    if (ok && n_ids >= context) {
        cli_error("the conversation has %d tokens and the context %d: /reset, or raise --context", n_ids, context);
        ok = false;
    }
    max_new = c->max_new > 0 && c->max_new < context - n_ids ? c->max_new : context - n_ids;
    ok = ok && open_answer(c, max_new);
    cli_catch_interrupt(true);
    if (ok && mm3_session_sync(c->session, ids, n_ids) != MM3_OK) ok = cli_failed() == CLI_DONE;
    if (ok) {
        ok = cli_stream_generate(&c->stream, c->session, &c->sampling, &finish_reason);
        puts("");
        c->interrupted = strcmp(finish_reason, "interrupted") == 0; /* from a pipe, that ends all */
        if (ok && strcmp(finish_reason, "stop") != 0)
            fprintf(stderr, "(%s after %d tokens)\n", c->interrupted ? "stopped" : "cut off", c->stream.n_ids);
        ok = cli_flush() && ok && keep_answer(c);
    }
    cli_catch_interrupt(false);
    mm3_free(ids);
    close_answer(c);
    while (!ok && json_array_size(c->messages) > n_before) json_array_remove(c->messages, n_before);
    return ok;
}

/* ---- the conversation -------------------------------------------------------------------------------------------- */

static bool replace_text(char **to, const char *text)
{
    char *copy = *text ? strdup(text) : NULL;
    if (*text && !copy) return cli_error("out of memory") == CLI_DONE;
    free(*to);
    *to = copy;
    return true;
}

/* Lines that start with '/': false with an error printed. */
static bool obey(chat *c, char *line, bool *quit)
{
    static const char *const modes[] = { "enabled", "disabled", "adaptive" };
    char *rest = line + strcspn(line, " ");
    if (*rest) *rest++ = 0;
    if (strcmp(line, "/quit") == 0) return *quit = true;
    if (strcmp(line, "/reset") == 0) return json_array_clear(c->messages) == 0;
    if (strcmp(line, "/system") == 0) return replace_text(&c->system, rest);
    if (strcmp(line, "/tool") == 0) return answer(c, "tool", rest);
    if (strcmp(line, "/thinking") == 0) {
        for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
            if (strcmp(rest, modes[i]) == 0) {
                c->thinking = modes[i];
                return true;
            }
        return cli_error("/thinking takes enabled, disabled or adaptive, not '%s'", rest) == CLI_DONE;
    }
    return cli_error("no such command: %s; there are /quit, /reset, /thinking MODE, /system TEXT and /tool RESULT",
                     line) == CLI_DONE;
}

static int converse(chat *c)
{
    char *line = NULL;
    size_t max = 0;
    ssize_t n;
    bool quit = false, ok = true;
    while (!quit && (c->on_terminal || (ok && !c->interrupted))) {
        if (c->on_terminal) fputs("> ", stdout);
        if (!cli_flush() || (n = getline(&line, &max, stdin)) < 0) break;
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) line[--n] = 0;
        if (n == 0) continue;
        if (strlen(line) != (size_t)n)
            ok = cli_error("a line holds a NUL byte: text only") == CLI_DONE;
        else
            ok = line[0] == '/' ? obey(c, line, &quit) : answer(c, "user", line);
    }
    if (ferror(stdin)) ok = cli_error("cannot read standard input") == CLI_DONE;
    if (c->on_terminal && !quit) puts("");
    free(line);
    if (c->on_terminal) return CLI_DONE;
    return c->interrupted ? CLI_INTERRUPTED : ok ? CLI_DONE : CLI_FAILED;
}

static int run(chat *c, cli_engine *with, int64_t seed)
{
    static const mm3_sampling greedy = MM3_SAMPLING_GREEDY;
    int status;
    if (c->tools_file && !cli_read_tools(c->tools_file, &c->tools)) return CLI_FAILED; /* before anything is loaded */
    if ((status = cli_open_engine(&c->engine, with)) != CLI_GO) return status;
    if (mm3_tokenizer_open(&c->tokenizer, with->options.model_dir) != MM3_OK ||
        mm3_session_open(&c->session, c->engine) != MM3_OK)
        return cli_failed();
    if (c->system_option && !replace_text(&c->system, c->system_option)) return CLI_FAILED;
    if (!(c->messages = json_array())) return cli_error("out of memory");
    c->sampling = c->greedy ? greedy : mm3_engine_sampling(c->engine);
    c->sampling.seed = seed >= 0 ? (uint64_t)seed : cli_random_seed();
    if (c->on_terminal)
        fprintf(stderr, "/quit, /reset, /thinking MODE, /system TEXT, /tool RESULT; Ctrl-C stops an answer\n");
    return converse(c);
}

int cmd_chat(int argc, char **argv)
{
    cli_engine with = CLI_ENGINE_INIT;
    chat c = { .on_terminal = isatty(STDIN_FILENO), .dims = isatty(STDOUT_FILENO) };
    int64_t seed = -1;
    const cli_option options[] = {
        { "system", 0, CLI_TEXT, &c.system_option, "TEXT", "instructions that come first", 0, 0 },
        { "tools", 0, CLI_TEXT, &c.tools_file, "FILE",
          "tools as JSON, as in OpenAI's API; a call is shown,\nand answered with /tool RESULT", 0, 0 },
        { "thinking", 0, CLI_WORD, &c.thinking, "MODE:enabled|disabled|adaptive",
          "reason first: enabled, disabled, adaptive (default)", 0, 0 },
        { "max-new", 'n', CLI_INT, &c.max_new, "N",
          "tokens per answer at most; 0 (default): no limit but\nthe context's", 0, 1 << 30 },
        { "greedy", 0, CLI_FLAG, &c.greedy, NULL, "always the most probable token", 0, 0 },
        { "seed", 0, CLI_INT64, &seed, "N", "repeat a conversation (default: random)", 0, 0x1p63 },
        { .kind = CLI_HEADING,
          .help = "in the conversation: /quit, /reset, /thinking MODE, /system TEXT, /tool RESULT" },
    };
    int status = cli_parse(argc, argv, options, sizeof options / sizeof options[0], &with, 0);
    if (status != CLI_GO) return status;
    status = run(&c, &with, seed);
    free(c.system);
    json_decref(c.messages);
    mm3_free(c.tools);
    mm3_session_close(&c.session);
    mm3_tokenizer_close(&c.tokenizer);
    mm3_engine_close(&c.engine);
    return status;
}
