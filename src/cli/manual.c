/* The manual page, mm3(1), as 'mm3 help man' prints it and 'make install' installs it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/describe.h"

/* Text as roff: nothing in it is a request or an escape, and minus signs and quotes can be copied. */
static void put(FILE *to, const char *text)
{
    for (bool starts = true; *text; starts = *text++ == '\n') {
        if (starts && (*text == '.' || *text == '\'')) fputs("\\&", to);
        if (*text == '-')
            fputs("\\-", to);
        else if (*text == '\'')
            fputs("\\(aq", to);
        else if (*text == '\\')
            fputs("\\e", to);
        else
            fputc(*text, to);
    }
}

static void put_option(FILE *to, const cli_option *o)
{
    char text[128];
    cli_option_text(text, sizeof text, o);
    fputs(".TP\n.B ", to);
    put(to, text);
    fputc('\n', to);
    if (o->help)
        put(to, o->help);
    else if (o->kind == CLI_FLOAT || o->kind == CLI_DOUBLE)
        fprintf(to, "a number from %s%g to %g", o->low < 0 ? "\\-" : "", fabs(o->low), o->high);
    else
        fprintf(to, "a whole number, %.0f or more", o->low);
    fputc('\n', to);
}

static void put_options(FILE *to, const cli_option *table, int n_own, int n)
{
    for (int i = 0; i < n_own; i++) {
        if (table[i].kind != CLI_HEADING) {
            put_option(to, &table[i]);
            continue;
        }
        fputs(".PP\n.nf\n", to); /* its lines stay */
        put(to, table[i].help);
        fputs("\n.fi\n", to);
    }
    if (n > n_own) fputs(".PP\nand the engine options, below.\n", to);
}

/* For free(); NULL without memory. */
static char *options_text(const cli_command *c, const cli_word *w)
{
    char *text = NULL;
    size_t n;
    FILE *to = open_memstream(&text, &n);
    if (!to) return NULL;
    cli_ask(c, w, put_options, to);
    if (fclose(to) == 0) return text;
    free(text);
    return NULL;
}

/* The options of a command; of each of its words, if these have different ones. */
static bool put_command_options(FILE *to, const cli_command *c)
{
    cli_word word[CLI_MAX_WORDS];
    int n = cli_words_of_command(c, word);
    char *text[CLI_MAX_WORDS] = { NULL };
    bool all = true, differ = false;
    if (n == 0) cli_ask(c, NULL, put_options, to);
    for (int i = 0; i < n; i++) {
        text[i] = options_text(c, &word[i]);
        all &= text[i] != NULL;
        differ |= all && strcmp(text[i], text[0]) != 0;
    }
    for (int i = 0; i < n && all; i++) {
        if (differ) fprintf(to, ".PP\n.B mm3 %s %s\n", c->name, word[i].name);
        if (differ || i == 0) fputs(text[i], to);
    }
    for (int i = 0; i < n; i++) free(text[i]);
    return all;
}

static bool put_command(FILE *to, const cli_command *c)
{
    fprintf(to, ".SS mm3 %s\n", c->name);
    put(to, c->summary);
    fputs("\n.PP\n.nf\n", to);
    for (const char *line = c->usage, *end; *line; line = *end ? end + 1 : end) {
        char text[256];
        end = line + strcspn(line, "\n");
        snprintf(text, sizeof text, "mm3 %s %.*s\n", c->name, (int)(end - line), line);
        put(to, text);
    }
    fputs(".fi\n", to);
    return put_command_options(to, c);
}

int cli_print_manual(void)
{
    const cli_command *c;
    printf(".\\\" Written by 'mm3 help man'.\n.TH MM3 1 \"\" \"mm3 %s\" \"User Commands\"\n", mm3_version());
    fputs(".SH NAME\nmm3 \\- run the MiniMax\\-M3 language model from its MXFP8 checkpoint\n"
          ".SH SYNOPSIS\n.B mm3\n.I command\n.RI [ options ]\n.br\n.B mm3 help\n.RI [ command | topic ]\n.br\n"
          ".B mm3 \\-\\-version\n"
          ".SH DESCRIPTION\nmm3 runs MiniMax\\-M3 (428 B parameters, mixture of experts, block\\-sparse attention) on\n"
          "processors. For every stage of a decode step it checks which kernels are right, measures which is\n"
          "fastest as it will run, and keeps the decisions. The model is the folder given with\n.BR \\-m ,\n"
          "else $MM3_MODEL, else\n.IR ./models/tiny\\-m3 .\n"
          ".PP\nTopics of\n.B mm3 help\nare\n.B options\n(of every command that opens a model),\n.B man\n(this page),\n"
          ".B bash\nand\n.B zsh\n(completion for that shell).\n.SH COMMANDS\n",
          stdout);
    for (int i = 0; (c = cli_command_at(i)); i++)
        if (!put_command(stdout, c)) return cli_error("out of memory for the manual page");
    fputs(".SH ENGINE OPTIONS\nof every command that opens a model:\n", stdout);
    cli_describe_engine(put_options, stdout);
    fputs(".SH EXIT STATUS\n0 done, 1 failed, 2 wrong usage, 130 stopped by Ctrl\\-C.\n"
          "An error is one line on standard error: what went wrong, and what to do.\n"
          ".SH ENVIRONMENT\n.TP\n.B MM3_MODEL\nfolder of the model where no\n.B \\-m\nis given\n"
          ".TP\n.B XDG_CACHE_HOME\ndecisions are kept in\n.I $XDG_CACHE_HOME/mm3\n(default\n.IR ~/.cache/mm3 )\n"
          ".SH EXAMPLES\n.nf\nmm3 generate \\-p \\(aqIn the beginning\\(aq \\-n 40 \\-\\-greedy\n"
          "mm3 generate \\-\\-chat \\(aqDefine person.\\(aq \\-\\-thinking disabled\n"
          "mm3 tune \\-m DIR\nmm3 plan why linear m=2\n.fi\n",
          stdout);
    return CLI_DONE;
}
