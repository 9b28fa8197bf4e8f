/* replay: run a fuzz target over its committed corpus, without libFuzzer: a TAP test per file.
 *   usage  test_NAME [FILE|FOLDER...]   default tests/fuzz/corpus/NAME
 * A target that finds a property violated ends the program; the file in hand is then the one that failed. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz/fuzz.h"

enum { MAX_SECONDS = 60 }; /* of one file: a hang, whatever else the machine does */

static int n_run;
static char now[512]; /* the file in hand */

/* Only calls that are safe in a signal handler. */
static void fell(int signal)
{
    static const char text[] = "not ok - ";
    ssize_t done = write(STDOUT_FILENO, text, sizeof text - 1);
    done = done < 0 ? done : write(STDOUT_FILENO, now, strlen(now));
    _exit(done < 0 || write(STDOUT_FILENO, "\n", 1) < 0 ? 1 : 128 + signal);
}

static void run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct stat s;
    uint8_t *data;
    size_t n;
    if (!f || fstat(fileno(f), &s) != 0) fuzz_fail(MM3_HERE, "cannot open %s: %s", path, strerror(errno));
    n = (size_t)s.st_size;
    data = malloc(n ? n : 1); /* of exactly this size, for sanitizers and valgrind */
    if (!data || fread(data, 1, n, f) != n) fuzz_fail(MM3_HERE, "cannot read %s: %s", path, strerror(errno));
    fclose(f);
    snprintf(now, sizeof now, "%s", path);
    alarm(MAX_SECONDS);
    (void)LLVMFuzzerTestOneInput(data, n);
    alarm(0);
    free(data);
    printf("ok %d - %s\n", ++n_run, path);
    fflush(stdout);
}

static int is_visible(const struct dirent *e) { return e->d_name[0] != '.'; }

static void run_path(const char *path)
{
    struct dirent **entry = NULL;
    struct stat s;
    int n;
    if (stat(path, &s) != 0) fuzz_fail(MM3_HERE, "cannot open %s: %s", path, strerror(errno));
    if (!S_ISDIR(s.st_mode)) {
        run_file(path);
        return;
    }
    n = scandir(path, &entry, is_visible, alphasort);
    if (n <= 0) fuzz_fail(MM3_HERE, "%s: no corpus", path);
    for (int i = 0; i < n; i++) {
        char *file = mm3_path_join(path, entry[i]->d_name);
        FUZZ_CHECK(file, "out of memory");
        run_file(file);
        mm3_free(file);
        free(entry[i]);
    }
    free(entry);
}

int main(int argc, char **argv)
{
    const char *name = strrchr(argv[0], '/');
    char corpus[512];
    signal(SIGABRT, fell);
    signal(SIGSEGV, fell);
    signal(SIGFPE, fell);
    signal(SIGALRM, fell);
    for (int i = 1; i < argc; i++) run_path(argv[i]);
    if (argc > 1) return 0;
    name = name ? name + 1 : argv[0];
    snprintf(corpus, sizeof corpus, "tests/fuzz/corpus/%s", strncmp(name, "test_", 5) == 0 ? name + 5 : name);
    run_path(corpus);
    printf("1..%d\n", n_run);
    return 0;
}
