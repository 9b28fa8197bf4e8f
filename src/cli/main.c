/* main: the table of commands. Knows their names, nothing of what they do. */
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cli/describe.h"

static const cli_command commands[] = {
    { "generate", cmd_generate, "continue a text, or answer one message",
      "(-p TEXT | --ids FILE | --chat TEXT) [-m DIR] [-n N] ..." },
    { "chat", cmd_chat, "a conversation in the terminal", "[-m DIR] [options]" },
    { "score", cmd_score, "log-likelihood and logits of given tokens", "[-m DIR] --ids FILE [--last K] [options]" },
    { "tokenize", cmd_tokenize, "text to token ids and back",
      "[-m DIR] [--special] <TEXT         ids on one line\n--decode [-m DIR] [--special] <IDS   the text" },
    { "check", cmd_check, "every candidate kernel against the reference",
      "[--op OP] [--candidate NAME] [--shape F=V,..] [--fill FILL] ..." },
    { "bench", cmd_bench, "what a candidate, a step, or the work beside the steps costs",
      "kernels --op OP [--shape N,K|F=V,..] [--m LIST] [--json] ...\ndecode [-m DIR | --synthetic m3] [--m LIST] "
      "[--json] [options]\nhost [-m DIR] [--part NAME,..] [--size X] [--rounds N] [--json] [options]" },
    { "tune", cmd_tune, "measure which kernels are fastest, and keep the decisions",
      "[-m DIR] [--plan FILE] [--all] [--json] [options]" },
    { "plan", cmd_plan, "what was decided, and why",
      "show [FILE] [-m DIR] [--json]\nwhy OP [FIELD=V|V..W]... [--plan FILE] [--json] [options]\ndiff FILE FILE" },
    { "info", cmd_info, "this machine, its candidate kernels, and what a model needs", "[-m DIR] [--json] [options]" },
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

const cli_command *cli_find_command(const char *name)
{
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

const cli_command *cli_command_at(int i) { return i < N_COMMANDS ? &commands[i] : NULL; }

static int print_help(void)
{
    printf("mm3 %s: run the MiniMax-M3 language model from its MXFP8 checkpoint\n\n"
           "usage: mm3 COMMAND [options]\n\n",
           mm3_version());
    for (int i = 0; i < N_COMMANDS; i++) printf("  %-10s %s\n", commands[i].name, commands[i].summary);
    printf("\n  mm3 help COMMAND    the options of a command\n"
           "  mm3 help options    the options of every command that opens a model\n"
           "  mm3 help man        the manual page; bash, zsh: completion for that shell\n"
           "  mm3 --version       the version\n\n"
           "The model is the folder given with -m, else $MM3_MODEL, else ./models/tiny-m3.\n"
           "Exit status: 0 done, 1 failed, 2 wrong usage, 130 stopped by Ctrl-C.\n");
    return CLI_DONE;
}

static int run_command(const char *name, int argc, char **argv)
{
    const cli_command *c = cli_find_command(name);
    if (c) return c->run(argc, argv);
    if (name[0] == '-') return cli_usage("unknown option '%s': 'mm3 help' lists what there is", name);
    return cli_usage("unknown command '%s': 'mm3 help' lists what there is", name);
}

static int help(int argc, char **argv)
{
    static char option[] = "--help";
    char *help_argv[] = { NULL, option, NULL };
    if (argc < 2) return print_help();
    if (argc > 2) return cli_usage("help takes one command, not '%s' too: use 'mm3 help COMMAND'", argv[2]);
    if (strcmp(argv[1], "options") == 0) {
        cli_print_engine_options();
        return CLI_DONE;
    }
    if (strcmp(argv[1], "man") == 0) return cli_print_manual();
    if (strcmp(argv[1], "bash") == 0) return cli_print_bash();
    if (strcmp(argv[1], "zsh") == 0) return cli_print_zsh();
    help_argv[0] = argv[1];
    return run_command(argv[1], 2, help_argv);
}

/* A standard stream that was closed would give its number to the next file that is opened, and what is printed would
 * go there. Opened the wrong way round, it fails as it should. */
static void fill_standard_streams(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) < 0) _exit(CLI_FAILED);
}

int main(int argc, char **argv)
{
    int status;
    fill_standard_streams();
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow (ulimit -f) is an error of the write, not the end */
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        status = print_help();
    } else if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        printf("mm3 %s\n", mm3_version());
        status = CLI_DONE;
    } else if (strcmp(argv[1], "help") == 0) {
        status = help(argc - 1, argv + 1);
    } else {
        status = run_command(argv[1], argc - 1, argv + 1);
    }
    return cli_finish(status);
}
