/* Commands and options as data: see describe.h. */
#include "cli/describe.h"

#include <string.h>

cli_value cli_value_of(const cli_option *o)
{
    if (o->kind == CLI_FLAG) return CLI_VALUE_NONE;
    if (o->kind == CLI_WORD) return CLI_VALUE_WORDS;
    if (strcmp(o->arg, "FILE") == 0) return CLI_VALUE_FILE;
    if (strcmp(o->arg, "DIR") == 0) return CLI_VALUE_FOLDER;
    return strcmp(o->arg, "OP") == 0 ? CLI_VALUE_OP : CLI_VALUE_OTHER;
}

int cli_words_of_command(const cli_command *c, cli_word *out)
{
    const char *line = c->usage;
    int n = 0;
    while (line && n < CLI_MAX_WORDS) {
        size_t length = strspn(line, "abcdefghijklmnopqrstuvwxyz");
        if (length > 0 && length < sizeof out->name) {
            const char *operand = line + length + strspn(line + length, " [");
            memcpy(out[n].name, line, length);
            out[n].name[length] = 0;
            out[n++].operand = strncmp(operand, "FILE", 4) == 0 ? CLI_VALUE_FILE
                               : strncmp(operand, "OP", 2) == 0 ? CLI_VALUE_OP
                                                                : CLI_VALUE_NONE;
        }
        line = strchr(line, '\n');
        if (line) line++;
    }
    return n;
}

void cli_ask(const cli_command *c, const cli_word *w, cli_describe *describe, FILE *to)
{
    char name[16], second[16], help[] = "--help", *argv[] = { name, w ? second : help, w ? help : NULL, NULL };
    snprintf(name, sizeof name, "%s", c->name);
    snprintf(second, sizeof second, "%s", w ? w->name : "");
    cli_describe_instead(describe, to);
    c->run(w ? 3 : 2, argv);
    cli_describe_instead(NULL, NULL);
}
