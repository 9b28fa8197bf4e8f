/* describe: the tables of commands and options, for what is made of them beside help: the manual page (manual.c) and
 * completion for shells (complete.c). They are the tables that options are read by, so nothing made of them can differ
 * from the program. */
#ifndef MM3_CLI_DESCRIBE_H
#define MM3_CLI_DESCRIBE_H

#include "cli/cli.h"

/* What an option's value is. */
typedef enum cli_value {
    CLI_VALUE_NONE,
    CLI_VALUE_WORDS,
    CLI_VALUE_FILE,
    CLI_VALUE_FOLDER,
    CLI_VALUE_OP,
    CLI_VALUE_OTHER
} cli_value;
cli_value cli_value_of(const cli_option *o);
/* The words of a CLI_WORD: "on|off". */
const char *cli_words_of(const cli_option *o);
/* "-p, --prompt TEXT", of "MODE:on|off" only MODE; returns the length as snprintf does. */
int cli_option_text(char *text, size_t n, const cli_option *o);

/* A word that a command takes first: one that begins a line of its usage. */
typedef struct cli_word {
    char name[16];
    cli_value operand; /* what follows it: CLI_VALUE_FILE, CLI_VALUE_OP or CLI_VALUE_NONE */
} cli_word;
enum { CLI_MAX_WORDS = 4 };
int cli_words_of_command(const cli_command *c, cli_word *out);

/* Gets the options of a command: its own n_own, then the engine's if it has those. */
typedef void cli_describe(FILE *to, const cli_option *table, int n_own, int n);
/* Let a command, after a word or NULL, describe its options. */
void cli_ask(const cli_command *c, const cli_word *w, cli_describe *describe, FILE *to);
/* The engine's options alone. */
void cli_describe_engine(cli_describe *describe, FILE *to);
/* For cli_ask: from now on --help calls this instead of printing; NULL: prints again (options.c). */
void cli_describe_instead(cli_describe *describe, FILE *to);

/* 'mm3 help man', 'bash' and 'zsh'; an exit status. */
int cli_print_manual(void);
int cli_print_bash(void);
int cli_print_zsh(void);

#endif
