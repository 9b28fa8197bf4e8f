/* Files: mapped whole, or read whole. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"

int mm3_open(const char *path, int flags)
{
    int fd;
    do fd = open(path, flags | O_CLOEXEC, 0666);
    while (fd < 0 && errno == EINTR);
    return fd;
}

mm3_status mm3_file_open(mm3_file **out, const char *path)
{
    mm3_status st = MM3_OK;
    struct stat s;
    int fd = -1;
    mm3_file *f = mm3_calloc(1, sizeof *f);
    *out = NULL;
    if (f) f->path = mm3_strdup(path);
    if (!f || !f->path) {
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "%s: out of memory", path);
        goto done;
    }
    fd = mm3_open(path, O_RDONLY | O_NONBLOCK); /* a FIFO must be refused, not waited for */
    if (fd < 0 || fstat(fd, &s) < 0) {
        st = mm3_fail(MM3_ERR_IO, MM3_HERE, "cannot open %s: %s", path, strerror(errno));
        goto done;
    }
    if (!S_ISREG(s.st_mode)) {
        st = mm3_fail(MM3_ERR_IO, MM3_HERE, "cannot open %s: it is not a regular file", path);
        goto done;
    }
    f->n_bytes = (size_t)s.st_size;
    if (f->n_bytes > 0) {
        void *p = mmap(NULL, f->n_bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) {
            st = mm3_fail(errno == ENOMEM ? MM3_ERR_NOMEM : MM3_ERR_IO, MM3_HERE, "cannot map %s: %s", path,
                          strerror(errno));
            goto done;
        }
        f->data = p;
    }
    *out = f;
    f = NULL;
done:
    if (fd >= 0) close(fd);
    mm3_file_close(&f);
    return st;
}

void mm3_file_close(mm3_file **f)
{
    if (!f || !*f) return;
    if ((*f)->data) munmap((void *)(uintptr_t)(*f)->data, (*f)->n_bytes);
    mm3_free((*f)->path);
    mm3_free(*f);
    *f = NULL;
}

char *mm3_path_join(const char *dir, const char *name)
{
    size_t n = strlen(dir) + strlen(name) + 2;
    char *path = mm3_malloc(n);
    if (path) snprintf(path, n, "%s/%s", dir, name);
    return path;
}

bool mm3_path_exists(const char *path) { return access(path, F_OK) == 0; }

void mm3_dir_each(const char *dir, bool (*each)(void *user, const char *name), void *user)
{
    DIR *d = opendir(dir);
    const struct dirent *e;
    while (d && (e = readdir(d)) && each(user, e->d_name)) continue;
    if (d) closedir(d);
}

mm3_status mm3_read_all(const char *path, size_t max, char **out, size_t *n_bytes)
{
    bool from_stdin = strcmp(path, "-") == 0;
    int fd = from_stdin ? STDIN_FILENO : mm3_open(path, O_RDONLY);
    mm3_buf b = { 0 };
    char part[65536];
    ssize_t n = 1;
    mm3_status st = MM3_OK;
    *out = NULL;
    MM3_CHECK(fd >= 0, MM3_ERR_IO, "cannot open %s: %s", path, strerror(errno));
    while (n != 0 && !b.failed && b.n <= max) {
        n = read(fd, part, sizeof part);
        if (n > 0) mm3_buf_add(&b, part, (size_t)n);
        if (n >= 0 || errno == EINTR) continue;
        st = mm3_fail(MM3_ERR_IO, MM3_HERE, "cannot read %s: %s", path, strerror(errno));
        break;
    }
    if (!from_stdin) close(fd);
    if (st == MM3_OK && b.n > max) st = mm3_fail(MM3_ERR_ARG, MM3_HERE, "%s is longer than %zu bytes", path, max);
    if (st == MM3_OK && (st = mm3_buf_take(&b, out, n_bytes)) != MM3_OK) (void)mm3_fail_in(st, "%s", path);
    mm3_buf_free(&b);
    return st;
}
