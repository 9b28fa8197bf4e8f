/* cli: the program mm3. The only folder that prints, exits or reads the environment: options as tables, errors as one
 * line, output that is checked. Add a command: one line in main.c's table and one file cmd_NAME.c.
 * A command gets argv with argv[0] its own name, and returns an exit status. */
#ifndef MM3_CLI_H
#define MM3_CLI_H

#include <jansson.h>
#include <stdio.h>

#include "mm3.h"

/* Exit statuses, and CLI_GO: nothing to exit for yet. */
enum { CLI_GO = -1, CLI_DONE = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_INTERRUPTED = 130 };

/* A sub-command: a line of main.c's table. */
typedef struct cli_command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary; /* one line for 'mm3 help' */
    const char *usage;   /* its arguments, at most three lines; one may begin with a word: "show [FILE] [-m DIR]" */
} cli_command;
/* NULL if there is none of that name, or at that place. */
const cli_command *cli_find_command(const char *name);
const cli_command *cli_command_at(int i);

/* ---- options (options.c) ----------------------------------------------------------------------------------------- */

/* What an option's value is, and the C type that `to` points to. */
typedef enum cli_kind {
    CLI_FLAG,   /* bool */
    CLI_INT,    /* int */
    CLI_INT64,  /* int64_t */
    CLI_FLOAT,  /* float */
    CLI_DOUBLE, /* double */
    CLI_TEXT,   /* const char *, borrowed from argv */
    CLI_WORD,   /* const char *, one of the words of `arg` */
    CLI_HEADING /* no option: `help` is a line of the help text */
} cli_kind;

/* One option. Numbers are read strictly and must lie in [low, high]. An option without help text is listed in the
 * paragraph under its heading, so that the help of a command fits a screen. */
typedef struct cli_option {
    const char *name; /* long, without the dashes */
    char letter;      /* short, or 0 */
    cli_kind kind;
    void *to;         /* where the value goes; untouched unless the option is given */
    const char *arg;  /* "N", "FILE", or the words of a CLI_WORD: "on|off", "MODE:on|off" */
    const char *help; /* one line, or NULL */
    double low, high;
} cli_option;

/* What is shown while an engine is tuned (progress.c). */
typedef struct cli_progress {
    bool shows, drawn;
    double budget_s, start, drawn_at; /* start 0: nothing had to be tuned so far */
    char best[64];                    /* the last choice */
} cli_progress;

/* The options of every command that opens an engine; start from CLI_ENGINE_INIT. */
typedef struct cli_engine {
    mm3_options options;
    const char *numerics;      /* as given, or NULL */
    const char *plan_cache;    /* as given, or NULL */
    char plan_cache_dir[1024]; /* where it is by default */
    cli_progress progress;
} cli_engine;
#define CLI_ENGINE_INIT                                                 \
    {                                                                   \
        MM3_OPTIONS_INIT, NULL, NULL, "", { false, false, 0, 0, 0, "" } \
    }

/* Read argv by a command's table and the engine's. Prints help or what is wrong.
 *   engine        NULL: the command knows no engine options
 *   max_operands  arguments that are no options, at most; they are argv[optind ..] afterwards (getopt's optind)
 * returns CLI_GO, or the status to exit with */
int cli_parse(int argc, char **argv, const cli_option *own, int n_own, cli_engine *engine, int max_operands);
/* 'mm3 help options': the options of every command that opens an engine. */
void cli_print_engine_options(void);

/* ---- shared by commands (cli.c) ---------------------------------------------------------------------------------- */

/* Print "mm3: text" on standard error as one line; returns CLI_USAGE. */
int cli_usage(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The same for what is no mistake in the arguments; returns CLI_FAILED. */
int cli_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The same with mm3_last_error(); returns CLI_FAILED. */
int cli_failed(void);

/* Print "mm3: warning: text" on standard error as one line. */
void cli_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Flush standard output; false once any write failed. main reports the failure at the end, in cli_finish(). */
bool cli_flush(void);
/* The exit status: `status`, or CLI_FAILED with a message if standard output could not be written. A reader that went
 * away is no news: that fails quietly. */
int cli_finish(int status);
/* Print as one line of JSON and give the value up; NULL (out of memory while it was built) is an error. */
int cli_print_json(json_t *value);
/* A number, or null where it is not finite. */
json_t *cli_json_real(double value);
json_t *cli_json_ids(const int32_t *ids, int n);

/* The folder of the model: as given, else $MM3_MODEL, else ./models/tiny-m3 if that
 * exists; NULL with an error printed. */
const char *cli_model_dir(const char *given);
/* Open the engine that the options describe, with progress on a terminal while it is tuned, and the tuner's warnings.
 * CLI_GO, or the status to exit with after the error was printed. */
int cli_open_engine(mm3_engine **out, cli_engine *engine);
/* Put the folder of the plan cache into the options: --plan-cache, else $XDG_CACHE_HOME/mm3, else ~/.cache/mm3; NULL
 * for "off" or without a home. False with an error printed. */
bool cli_find_plan_cache(cli_engine *engine);
/* Whether the folder has a file of that name. */
bool cli_model_has(const char *dir, const char *name);
/* Read a whole file ("-": standard input) as text for mm3_free(). False with an error printed. */
bool cli_read_text(const char *path, char **text, size_t *n_bytes);
/* Read and check a file of --tools; false with an error printed that names the file.
 * *text is for mm3_free() even then. */
bool cli_read_tools(const char *path, char **text);
/* Read token ids from a file ("-": standard input), apart by blanks, line ends or commas; for mm3_free(). */
bool cli_read_ids(const char *path, int32_t **ids, int *n_ids);
/* Zeroed memory for mm3_free(); NULL with an error printed. */
void *cli_alloc(size_t n, size_t n_bytes);
/* A seed that JSON readers keep exactly (below 2^53). */
uint64_t cli_random_seed(void);

/* While on, the first Ctrl-C only makes cli_interrupted() true, and a second one ends the process. */
void cli_catch_interrupt(bool on);
bool cli_interrupted(void);

/* ---- tuning (progress.c) ----------------------------------------------------------------------------------------- */

/* Before an engine is opened; budget_s 0: the default of 60. Draws only on a terminal. */
void cli_progress_begin(cli_progress *p, double budget_s);
mm3_on_tune cli_on_tune; /* user: cli_progress * */
/* Clear the line. Whether Ctrl-C was pressed. */
bool cli_progress_end(cli_progress *p);
/* mm3_engine_info, read; NULL with an error printed. */
json_t *cli_engine_info(mm3_engine *engine);
/* Of that summary: the tuner's warnings on standard error; the start-up ledger on a line. */
void cli_print_warnings(const json_t *info);
void cli_print_ledger(FILE *to, const json_t *info);

/* ---- text as it comes (stream.c) --------------------------------------------------------------------------------- */

/* Decodes the tokens of one generation, from the engine's thread, and keeps them. */
typedef struct cli_stream {
    mm3_tokenizer *tokenizer; /* borrowed; NULL: no text */
    mm3_decoder *decoder;     /* owned */
    const int32_t *stop_ids;  /* borrowed; they have no text */
    int n_stop;
    /* Where text goes, piece by piece; false stops the generation. */
    bool (*sink)(void *user, const char *text, bool finish);
    void *user;
    int32_t *ids; /* [max_ids] owned */
    float *logprobs;
    int n_ids, max_ids;
    char error[1024]; /* what failed on the engine's thread, or "" */
} cli_stream;
bool cli_stream_open(cli_stream *s, int max_ids, bool special);
void cli_stream_close(cli_stream *s);
/* Generate into the stream until a stop id, max_ids tokens, a caught Ctrl-C, or a sink that says stop.
 *   finish_reason  "stop", "length" or "interrupted"
 * returns whether all went well, with the error printed */
bool cli_stream_generate(cli_stream *s, mm3_session *session, const mm3_sampling *sampling, const char **finish_reason);

/* ---- commands ---------------------------------------------------------------------------------------------------- */

/* One for each line of main.c's table: argv[0] is the command's name.
 * returns an exit status */
int cmd_generate(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_score(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cli_bench_decode(int argc, char **argv); /* 'bench decode', without the second word */
int cli_bench_host(int argc, char **argv);   /* 'bench host', the same */
/* "1,2,4,8": at most CLI_MAX_M numbers of rows. CLI_GO, or the status to exit with. */
enum { CLI_MAX_M = 64 };
int cli_read_rows(const char *option, const char *text, int *m, int *n);
int cmd_info(int argc, char **argv);
int cmd_tune(int argc, char **argv);
int cmd_plan(int argc, char **argv);

#endif
