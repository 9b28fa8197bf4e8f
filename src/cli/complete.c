/* Completion for bash and zsh, as 'mm3 help bash' and 'mm3 help zsh' print it and 'make install' installs it. */
#include <string.h>

#include "cli/describe.h"
#include "ops/ops.h"

static void put_ops(FILE *to)
{
    for (int i = 0; i < MM3_N_OPS; i++) fprintf(to, "%s%s", i ? " " : "", mm3_op_info_of((mm3_op_id)i)->name);
}

/* The words of a CLI_WORD, apart by blanks. */
static void put_words(FILE *to, const cli_option *o)
{
    for (const char *w = cli_words_of(o); *w; w++) fputc(*w == '|' ? ' ' : *w, to);
}

/* ---- bash -------------------------------------------------------------------------------------------------------- */

/* What completes the value of an option: "--model | -m) kind=folders ;;" */
static void bash_value(FILE *to, const cli_option *o)
{
    cli_value v = cli_value_of(o);
    if (v == CLI_VALUE_NONE) return;
    fprintf(to, "        --%s", o->name);
    if (o->letter) fprintf(to, " | -%c", o->letter);
    fputs(") ", to);
    if (v == CLI_VALUE_WORDS) {
        fputs("words='", to);
        put_words(to, o);
        fputs("' ;;\n", to);
    } else {
        fprintf(to, "%s ;;\n",
                v == CLI_VALUE_FILE     ? "kind=files"
                : v == CLI_VALUE_FOLDER ? "kind=folders"
                : v == CLI_VALUE_OP     ? "words=$ops"
                                        : "return");
    }
}

static void bash_options(FILE *to, const cli_option *table, int n_own, int n)
{
    (void)n_own;
    fputs("        case $prev in\n", to);
    for (int i = 0; i < n; i++)
        if (table[i].kind != CLI_HEADING) bash_value(to, &table[i]);
    fputs("        *) words='", to);
    for (int i = 0; i < n; i++)
        if (table[i].kind != CLI_HEADING) fprintf(to, "--%s ", table[i].name);
    fputs("--help' ;;\n        esac\n", to);
}

static void bash_command(FILE *to, const cli_command *c)
{
    cli_word word[CLI_MAX_WORDS];
    int n = cli_words_of_command(c, word);
    if (n == 0) {
        fprintf(to, "    '%s '*)\n", c->name);
        cli_ask(c, NULL, bash_options, to);
        fputs("        ;;\n", to);
        return;
    }
    fprintf(to, "    '%s ') words='", c->name);
    for (int i = 0; i < n; i++) fprintf(to, "%s ", word[i].name);
    fputs("--help' ;;\n", to);
    for (int i = 0; i < n; i++) {
        fprintf(to, "    '%s %s '*)\n", c->name, word[i].name);
        cli_ask(c, &word[i], bash_options, to);
        if (word[i].operand != CLI_VALUE_NONE) /* where no option is begun and none wants a value */
            fprintf(to, "        [[ $cur == -* || $words != --* ]] || %s\n",
                    word[i].operand == CLI_VALUE_OP ? "words=$ops" : "kind=files");
        fputs("        ;;\n", to);
    }
}

static void put_commands(FILE *to)
{
    const cli_command *c;
    for (int i = 0; (c = cli_command_at(i)); i++) fprintf(to, "%s ", c->name);
}

int cli_print_bash(void)
{
    const cli_command *c;
    FILE *to = stdout;
    fprintf(
        to,
        "# bash completion for mm3 %s, written by 'mm3 help bash'\n"
        "_mm3()\n{\n"
        "    local IFS=$' \\t\\n' cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} words='' kind=''\n"
        "    local ops='",
        mm3_version());
    put_ops(to);
    fputs("'\n"
          "    [[ $cur != = ]] || cur='' # bash takes '=' for a word of its own\n"
          "    [[ $prev != = ]] || prev=${COMP_WORDS[COMP_CWORD - 2]}\n"
          "    COMPREPLY=()\n"
          "    case \"${COMP_WORDS[*]:1:COMP_CWORD-1} \" in\n"
          "    ' ') words='",
          to);
    put_commands(to);
    fputs("help --help --version' ;;\n    'help ') words='", to);
    put_commands(to);
    fputs("options man bash zsh' ;;\n", to);
    for (int i = 0; (c = cli_command_at(i)); i++) bash_command(to, c);
    fputs("    esac\n"
          "    case $kind in\n"
          "    files) mapfile -t COMPREPLY < <(compgen -f -- \"$cur\") ;;\n"
          "    folders) mapfile -t COMPREPLY < <(compgen -d -- \"$cur\") ;;\n"
          "    *) mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\") ;;\n"
          "    esac\n"
          "    [ -z \"$kind\" ] || compopt -o filenames 2>/dev/null\n"
          "}\n"
          "complete -F _mm3 mm3\n",
          to);
    return CLI_DONE;
}

/* ---- zsh --------------------------------------------------------------------------------------------------------- */

/* Text within single quotes and brackets of _arguments; one line. */
static void zsh_text(FILE *to, const char *text)
{
    for (; *text; text++) {
        if (strchr("[]:\\", *text)) fputc('\\', to);
        if (*text == '\'')
            fputs("'\\''", to);
        else
            fputc(*text == '\n' ? ' ' : *text, to);
    }
}

/* ":ARG:ACTION" */
static void zsh_action(FILE *to, cli_value v, const char *arg)
{
    if (v == CLI_VALUE_NONE) return;
    fputc(':', to);
    zsh_text(to, arg);
    fputc(':', to);
    if (v == CLI_VALUE_FILE) fputs("_files", to);
    if (v == CLI_VALUE_FOLDER) fputs("_files -/", to);
    if (v == CLI_VALUE_OP) {
        fputc('(', to);
        put_ops(to);
        fputc(')', to);
    }
}

/* '(-m --model)'{-m+,--model=}'[folder ...]:DIR:_files -/' */
static void zsh_option(FILE *to, const cli_option *o)
{
    cli_value v = cli_value_of(o);
    const char *equals = v == CLI_VALUE_NONE ? "" : "=";
    if (o->letter)
        fprintf(to, " \\\n            '(-%c --%s)'{-%c%s,--%s%s}'[", o->letter, o->name, o->letter,
                v == CLI_VALUE_NONE ? "" : "+", o->name, equals);
    else
        fprintf(to, " \\\n            '--%s%s[", o->name, equals);
    zsh_text(to, o->help ? o->help : o->arg);
    fputc(']', to);
    if (v == CLI_VALUE_WORDS) {
        fprintf(to, ":%s:(", o->name);
        put_words(to, o);
        fputc(')', to);
    } else {
        zsh_action(to, v, o->arg);
    }
    fputc('\'', to);
}

static void zsh_options(FILE *to, const cli_option *table, int n_own, int n)
{
    (void)n_own;
    fputs("_arguments -S", to);
    for (int i = 0; i < n; i++)
        if (table[i].kind != CLI_HEADING) zsh_option(to, &table[i]);
    fputs(" \\\n            '(-h --help)'{-h,--help}'[help]'", to);
}

static void zsh_command(FILE *to, const cli_command *c)
{
    cli_word word[CLI_MAX_WORDS];
    int n = cli_words_of_command(c, word);
    if (n == 0) {
        fprintf(to, "    %s | %s\\ *)\n        shift words && ((CURRENT--))\n        ", c->name, c->name);
        cli_ask(c, NULL, zsh_options, to);
        fputs("\n        ;;\n", to);
        return;
    }
    fprintf(to, "    %s)\n        compadd", c->name);
    for (int i = 0; i < n; i++) fprintf(to, " %s", word[i].name);
    fputs("\n        ;;\n", to);
    for (int i = 0; i < n; i++) {
        fprintf(to, "    %s\\ %s | %s\\ %s\\ *)\n        shift 2 words && ((CURRENT -= 2))\n        ", c->name,
                word[i].name, c->name, word[i].name);
        cli_ask(c, &word[i], zsh_options, to);
        if (word[i].operand != CLI_VALUE_NONE) {
            fputs(" \\\n            '*", to);
            zsh_action(to, word[i].operand, word[i].operand == CLI_VALUE_OP ? "OP" : "FILE");
            fputc('\'', to);
        }
        fputs("\n        ;;\n", to);
    }
}

int cli_print_zsh(void)
{
    const cli_command *c;
    FILE *to = stdout;
    fprintf(to,
            "#compdef mm3\n# zsh completion for mm3 %s, written by 'mm3 help zsh'\n"
            "_mm3()\n{\n    local -a commands\n    commands=(\n",
            mm3_version());
    for (int i = 0; (c = cli_command_at(i)); i++) {
        fprintf(to, "        '%s:", c->name);
        zsh_text(to, c->summary);
        fputs("'\n", to);
    }
    fputs("    )\n    case ${(j. .)words[2,CURRENT-1]} in\n"
          "    '')\n        _describe command commands\n        compadd -- help --help --version\n        ;;\n"
          "    help) compadd ",
          to);
    put_commands(to);
    fputs("options man bash zsh ;;\n", to);
    for (int i = 0; (c = cli_command_at(i)); i++) zsh_command(to, c);
    fputs("    esac\n}\n_mm3 \"$@\"\n", to);
    return CLI_DONE;
}
