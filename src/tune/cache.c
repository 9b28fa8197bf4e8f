/* Where decisions are kept: this process's memory, and one file per device in the cache folder. Every writer locks,
 * reads again, merges, and renames; a reader needs no lock. Nothing here can stop tuning: trouble is a warning. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tune/tuner.h"

enum { MAX_REMEMBERED = 16, LOCK_TRIES = 100, LOCK_WAIT_NS = 50000000 };

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static mm3_plan *memory[MAX_REMEMBERED]; /* guarded; owned; one per head */

static int find_memory(const mm3_plan_head *head)
{
    char why[512];
    int i = 0;
    while (i < MAX_REMEMBERED && memory[i] && mm3_plan_head_differs(mm3_plan_head_of(memory[i]), head, why, sizeof why))
        i++;
    return i;
}

mm3_status mm3__memory_recall(mm3_plan *plan)
{
    mm3_status st = MM3_OK;
    int i;
    pthread_mutex_lock(&memory_lock);
    i = find_memory(mm3_plan_head_of(plan));
    if (i < MAX_REMEMBERED && memory[i]) st = mm3_plan_merge(plan, memory[i], true);
    pthread_mutex_unlock(&memory_lock);
    return st;
}

mm3_status mm3__memory_keep(const mm3_plan *plan)
{
    mm3_status st = MM3_OK;
    int i;
    pthread_mutex_lock(&memory_lock);
    i = find_memory(mm3_plan_head_of(plan));
    if (i < MAX_REMEMBERED && !memory[i]) st = mm3_plan_open(&memory[i], mm3_plan_head_of(plan));
    if (i < MAX_REMEMBERED && st == MM3_OK) st = mm3_plan_merge(memory[i], plan, true);
    pthread_mutex_unlock(&memory_lock);
    return st;
}

void mm3_plan_memory_clear(void)
{
    pthread_mutex_lock(&memory_lock);
    for (int i = 0; i < MAX_REMEMBERED; i++) mm3_plan_close(&memory[i]);
    pthread_mutex_unlock(&memory_lock);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

bool mm3__folder_make(const char *dir)
{
    char parent[4096];
    char *slash;
    if (mkdir(dir, 0777) == 0 || errno == EEXIST) return true;
    if (errno != ENOENT || strlen(dir) >= sizeof parent) return false;
    strcpy(parent, dir);
    slash = strrchr(parent, '/');
    if (!slash || slash == parent) return false;
    *slash = 0;
    return (mkdir(parent, 0777) == 0 || errno == EEXIST) && (mkdir(dir, 0777) == 0 || errno == EEXIST);
}

/* "cpu-intel-r-xeon-r-processor-t8-1a2b3c4d.plan": for people, and a hash of the whole head. */
char *mm3_plan_cache_path(const char *dir, const mm3_plan_head *head)
{
    char name[128], *to = name;
    char whole[512];
    uint32_t h;
    int n = 0;
    snprintf(whole, sizeof whole, "%s|%d|%d|%s", head->device, head->n_threads, head->policy, head->workload);
    h = mm3_hash(MM3_HASH_START, whole, strlen(whole));
    for (const char *p = head->device; *p && n < 40; p++) {
        bool plain = isalnum((unsigned char)*p);
        if (!plain && (to == name || to[-1] == '-')) continue;
        *to++ = plain ? (char)tolower((unsigned char)*p) : '-';
        n++;
    }
    if (to > name && to[-1] == '-') to--;
    snprintf(to, sizeof name - (size_t)(to - name), "-t%d-%08x.plan", head->n_threads, (unsigned)h);
    return mm3_path_join(dir, name);
}

static mm3_status write_all(int fd, const char *text, size_t n, const char *path)
{
    while (n > 0) {
        ssize_t k = write(fd, text, n);
        if (k < 0 && errno == EINTR) continue;
        MM3_CHECK(k > 0, MM3_ERR_IO, "cannot write %s: %s", path, k < 0 ? strerror(errno) : "no room");
        text += k;
        n -= (size_t)k;
    }
    return MM3_OK;
}

/* A pipe or a device is nothing to rename over. */
static mm3_status write_in_place(const mm3_plan *plan, const char *path)
{
    char *text = NULL;
    mm3_status st;
    int fd = mm3_open(path, O_WRONLY);
    MM3_CHECK(fd >= 0, MM3_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    st = mm3_plan_print(plan, &text);
    if (st == MM3_OK) st = write_all(fd, text, strlen(text), path);
    if (close(fd) != 0 && st == MM3_OK)
        st = mm3_fail(MM3_ERR_IO, MM3_HERE, "cannot write %s: %s", path, strerror(errno));
    mm3_free(text);
    return st;
}

mm3_status mm3_plan_save(const mm3_plan *plan, const char *path)
{
    char *text = NULL, *temporary = NULL;
    mm3_status st = MM3_OK;
    int fd = -1;
    struct stat s;
    mm3_buf name = { 0 };
    if (stat(path, &s) == 0 && !S_ISREG(s.st_mode)) return write_in_place(plan, path);
    mm3_buf_printf(&name, "%s.XXXXXX", path);
    MM3_GOTO(mm3_buf_take(&name, &temporary, NULL));
    MM3_GOTO(mm3_plan_print(plan, &text));
    fd = mkstemp(temporary);
    if (fd < 0) {
        st = mm3_fail(MM3_ERR_IO, MM3_HERE, "cannot write %s: %s", path, strerror(errno));
        goto done;
    }
    st = write_all(fd, text, strlen(text), path);
    if (st == MM3_OK && fchmod(fd, 0644) != 0) st = MM3_OK; /* readable by its owner alone, then */
    if (close(fd) != 0 && st == MM3_OK)
        st = mm3_fail(MM3_ERR_IO, MM3_HERE, "cannot write %s: %s", path, strerror(errno));
    if (st == MM3_OK && rename(temporary, path) != 0)
        st = mm3_fail(MM3_ERR_IO, MM3_HERE, "cannot write %s: %s", path, strerror(errno));
    if (st != MM3_OK) unlink(temporary);
done:
    mm3_free(text);
    mm3_free(temporary);
    return st;
}

/* *out NULL: a miss. Only a file that is there and can't be used is worth a warning.
 * errors  MM3_ERR_NOMEM, MM3_ERR_IO: nothing is known about what the file holds */
static mm3_status read_cache(mm3_tuner *t, const char *path, mm3_plan **out)
{
    char why[512];
    mm3_status st;
    *out = NULL;
    if (!mm3_path_exists(path)) return MM3_OK;
    st = mm3_plan_load(out, path, &t->warnings);
    if (st == MM3_ERR_NOMEM || st == MM3_ERR_IO) return st;
    if (st != MM3_OK) {
        mm3__warn(t, "the plan cache is not used: %s", mm3_last_error());
    } else if (mm3_plan_head_differs(mm3_plan_head_of(*out), mm3_plan_head_of(t->plan), why, sizeof why)) {
        mm3__warn(t, "the plan cache is not used: %s: %s", path, why);
        mm3_plan_close(out);
    }
    return MM3_OK;
}

static char *path_of(const mm3_tuner *t)
{
    char *path = mm3_plan_cache_path(t->options.cache_dir, mm3_plan_head_of(t->plan));
    if (!path) (void)mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory");
    return path;
}

void mm3__cache_recall(mm3_tuner *t)
{
    char *path;
    mm3_plan *plan = NULL;
    if (!t->options.cache_dir) return;
    path = path_of(t);
    if (!path || read_cache(t, path, &plan) != MM3_OK || (plan && mm3_plan_merge(t->plan, plan, true) != MM3_OK))
        mm3__warn(t, "the plan cache is not used: %s", mm3_last_error());
    mm3_plan_close(&plan);
    mm3_free(path);
}

/* The lock is a file of its own, since the plan's is replaced. Waits some seconds for another writer. */
static int lock_cache(mm3_tuner *t, const char *path)
{
    char name[4200];
    struct timespec nap = { 0, LOCK_WAIT_NS };
    int fd;
    snprintf(name, sizeof name, "%s.lock", path);
    fd = mm3_open(name, O_RDWR | O_CREAT);
    if (fd < 0) {
        mm3__warn(t, "decisions are not kept: cannot open %s: %s", name, strerror(errno));
        return -1;
    }
    for (int i = 0; i < LOCK_TRIES; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
        if (errno != EWOULDBLOCK && errno != EINTR) break;
        nanosleep(&nap, NULL);
    }
    mm3__warn(t, "decisions are not kept: cannot lock %s: %s", name, strerror(errno));
    close(fd);
    return -1;
}

static bool remove_leftover(void *user, const char *name)
{
    const char *path = user, *plan = strrchr(path, '/') + 1;
    size_t n = strlen(plan);
    mm3_buf left = { 0 };
    if (strncmp(name, plan, n) != 0 || name[n] != '.' || strlen(name) != n + 7) return true;
    mm3_buf_printf(&left, "%.*s%s", (int)(plan - path), path, name);
    if (!left.failed) unlink(left.data);
    mm3_buf_free(&left);
    return true;
}

bool mm3__cache_keep(mm3_tuner *t)
{
    char *path;
    mm3_plan *merged = NULL;
    mm3_status st = MM3_OK;
    int lock;
    if (!t->options.cache_dir) return false;
    path = path_of(t);
    if (!path || !mm3__folder_make(t->options.cache_dir)) {
        if (path) (void)mm3_fail(MM3_ERR_IO, MM3_HERE, "cannot make %s: %s", t->options.cache_dir, strerror(errno));
        mm3__warn(t, "decisions are not kept: %s", mm3_last_error());
        mm3_free(path);
        return false;
    }
    lock = lock_cache(t, path);
    if (lock >= 0) {
        mm3_buf quiet = t->warnings; /* what is wrong with the file was said when it was read first */
        t->warnings = (mm3_buf){ 0 };
        mm3_dir_each(t->options.cache_dir, remove_leftover, path); /* of writers killed before their rename */
        st =
            read_cache(t, path, &merged); /* a file that can't be read now may hold other models' decisions: it stays */
        mm3_buf_free(&t->warnings);
        t->warnings = quiet;
        if (st == MM3_OK && !merged) st = mm3_plan_open(&merged, mm3_plan_head_of(t->plan));
        if (st == MM3_OK) st = mm3_plan_merge(merged, t->plan, true);
        if (st == MM3_OK) st = mm3_plan_save(merged, path);
        if (st != MM3_OK) mm3__warn(t, "decisions are not kept: %s", mm3_last_error());
        close(lock);
    }
    mm3_plan_close(&merged);
    mm3_free(path);
    return lock >= 0 && st == MM3_OK;
}

/* ---- a plan that must hold --------------------------------------------------------------------------------------- */

mm3_status mm3_plan_load_strict(mm3_plan **out, const char *path, const mm3_device_info *device, const char *workload,
                                mm3_kernels_of_fn *kernels_of)
{
    mm3_buf warnings = { 0 };
    mm3_plan_head head;
    mm3_plan *plan = NULL;
    char why[512];
    mm3_status st = MM3_OK;
    *out = NULL;
    mm3_plan_head_of_device(&head, device, MM3_TUNE_POLICY, workload);
    MM3_GOTO(mm3_plan_load(&plan, path, &warnings));
    if (warnings.n) {
        warnings.data[warnings.n - 1] = 0;
        st = mm3_fail(MM3_ERR_FORMAT, MM3_HERE, "a plan given by name must be whole: %s", warnings.data);
        goto done;
    }
    if (mm3_plan_head_differs(mm3_plan_head_of(plan), &head, why, sizeof why)) {
        st = mm3_fail(MM3_ERR_UNSUPPORTED, MM3_HERE, "%s can't be used here: %s", path, why);
        goto done;
    }
    mm3_plan_bind(plan, device->kind, kernels_of ? kernels_of : mm3_kernels_of, path, &warnings);
    if (warnings.n) {
        warnings.data[warnings.n - 1] = 0;
        st = mm3_fail(MM3_ERR_UNSUPPORTED, MM3_HERE, "%s: tune again with 'mm3 tune --plan %s'", warnings.data, path);
        goto done;
    }
    *out = plan;
    plan = NULL;
done:
    mm3_plan_close(&plan);
    mm3_buf_free(&warnings);
    return st;
}
