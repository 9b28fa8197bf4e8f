/* The journal: which candidate is at its first launch. A process that dies there leaves the line
 * behind, and the next one disqualifies the candidate. One file per tuner, locked as long as its
 * owner lives: "<plan file>.journal.XXXXXX". */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tune/tuner.h"

struct mm3__journal {
    int fd;     /* owned, locked */
    char *path; /* owned */
};

static bool lock(int fd, int how)
{
    int rc;
    do rc = flock(fd, how);
    while (rc != 0 && errno == EINTR);
    return rc == 0;
}

/* ---- what others left -------------------------------------------------------------------------------------------- */

/* "KEY | CHOICE | src HASH". Whether the file is needed no more: what it says is in the
 * cache now, or it says nothing. */
static bool take_line(mm3_tuner *t, char *line)
{
    char *choice = strstr(line, " | "), *source = choice ? strstr(choice + 3, " | src ") : NULL;
    if (!source) return true;
    *choice = *source = 0;
    choice += 3;
    source += strlen(" | src ");
    source[strcspn(source, "\n")] = 0;
    if (!mm3_plan_is_key(line) || strlen(source) != 8) return true;
    mm3__warn(t, "%s did not survive its first launch in an earlier run (%s) and is disqualified", choice, line);
    if (mm3_plan_set_crashed(t->plan, line, choice, source) != MM3_OK) {
        mm3__warn(t, "%s", mm3_last_error());
        return false;
    }
    return mm3__cache_keep(t); /* at once: this run may not live to its end either */
}

static void take_file(mm3_tuner *t, const char *path)
{
    char line[1024];
    ssize_t n;
    int fd = mm3_open(path, O_RDWR | O_NOFOLLOW);
    if (fd < 0) return;
    if (lock(fd, LOCK_EX | LOCK_NB)) { /* its owner is gone */
        bool done = true;
        do n = pread(fd, line, sizeof line - 1, 0);
        while (n < 0 && errno == EINTR);
        if (n > 0 && memchr(line, '\n', (size_t)n)) {
            line[n] = 0;
            done = take_line(t, line);
        }
        if (done && n >= 0) unlink(path);
    }
    close(fd);
}

typedef struct collection {
    mm3_tuner *t;
    const char *name; /* what a journal's begins with */
} collection;

static bool collect_one(void *user, const char *name)
{
    const collection *c = user;
    char *path;
    if (strncmp(name, c->name, strlen(c->name)) != 0) return true;
    path = mm3_path_join(c->t->options.cache_dir, name);
    if (path) take_file(c->t, path);
    mm3_free(path);
    return true;
}

static void collect(mm3_tuner *t, const char *prefix)
{
    collection c = { .t = t, .name = strrchr(prefix, '/') + 1 };
    mm3_dir_each(t->options.cache_dir, collect_one, &c);
}

/* ---- our own ----------------------------------------------------------------------------------------------------- */

/* Someone may take the file between its making and its locking, for one that was left behind: then another is made. */
static int make_file(const char *path, char *name, size_t n)
{
    for (int i = 0; i < 10; i++) {
        struct stat s;
        int fd;
        snprintf(name, n, "%sXXXXXX", path);
        fd = mkostemp(name, O_CLOEXEC);
        if (fd < 0) return -1;
        if (!lock(fd, LOCK_EX) || fstat(fd, &s) != 0) {
            int why = errno;
            unlink(name);
            close(fd);
            errno = why;
            return -1;
        }
        if (s.st_nlink > 0) return fd;
        close(fd);
    }
    errno = EAGAIN;
    return -1;
}

mm3__journal *mm3__journal_open(mm3_tuner *t)
{
    mm3__journal *j = NULL;
    char prefix[4096], name[4200];
    char *path;
    int fd;
    if (!t->options.cache_dir) return NULL;
    path = mm3_plan_cache_path(t->options.cache_dir, mm3_plan_head_of(t->plan));
    if (!path) {
        mm3__warn(t, "no journal, a candidate that crashes is tried again: out of memory");
        return NULL;
    }
    snprintf(prefix, sizeof prefix, "%s.journal.", path);
    mm3_free(path);
    if (!mm3__folder_make(t->options.cache_dir)) {
        mm3__warn(t, "no journal, a candidate that crashes is tried again: cannot make %s: %s", t->options.cache_dir,
                  strerror(errno));
        return NULL;
    }
    collect(t, prefix);
    fd = make_file(prefix, name, sizeof name);
    if (fd < 0) {
        mm3__warn(t, "no journal, a candidate that crashes is tried again: cannot write in %s: %s",
                  t->options.cache_dir, strerror(errno));
        return NULL;
    }
    j = mm3_calloc(1, sizeof *j);
    if (j) j->path = mm3_strdup(name);
    if (!j || !j->path) {
        mm3__warn(t, "no journal, a candidate that crashes is tried again: out of memory");
        unlink(name);
        close(fd);
        mm3_free(j);
        return NULL;
    }
    j->fd = fd;
    return j;
}

void mm3__journal_close(mm3__journal **journal)
{
    if (!journal || !*journal) return;
    unlink((*journal)->path);
    close((*journal)->fd);
    mm3_free((*journal)->path);
    mm3_free(*journal);
    *journal = NULL;
}

static void give_up(mm3_tuner *t, const char *why)
{
    mm3__warn(t, "the journal can't be written, a candidate that crashes is tried again: %s", why);
    mm3__journal_close(&t->journal);
}

void mm3__journal_begin(mm3_tuner *t, const char *key, const mm3__entrant *e)
{
    mm3__journal *j = t->journal;
    char line[1024], choice[MM3_MAX_CHOICE_TEXT];
    int n, at = 0;
    if (!j) return;
    mm3_choice_text(e->choice.kernel, e->choice.tactic, choice, sizeof choice);
    n = snprintf(line, sizeof line, "%s | %s | src %s\n", key, choice, mm3_kernel_source(e->choice.kernel));
    while (at < n) {
        ssize_t k = pwrite(j->fd, line + at, (size_t)(n - at), at);
        if (k > 0) at += (int)k;
        if (k > 0 || (k < 0 && errno == EINTR)) continue;
        give_up(t, k < 0 ? strerror(errno) : "no room");
        return;
    }
}

void mm3__journal_end(mm3_tuner *t)
{
    int rc;
    if (!t->journal) return;
    do rc = ftruncate(t->journal->fd, 0);
    while (rc != 0 && errno == EINTR);
    if (rc != 0) give_up(t, strerror(errno)); /* a line that stays would blame the innocent */
}
