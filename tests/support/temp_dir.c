/* temp_dir: a folder of its own for a test, and files in it. */
#include "support/temp_dir.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void test_die(const char *what, const char *which)
{
    fprintf(stderr, "test: cannot %s %s: %s\n", what, which, strerror(errno));
    abort();
}

char *test_path(const char *dir, const char *name)
{
    size_t n = strlen(dir) + strlen(name) + 2;
    char *path = malloc(n);
    if (!path) test_die("allocate", name);
    snprintf(path, n, "%s/%s", dir, name);
    return path;
}

char *test_temp_dir(void)
{
    const char *base = getenv("TMPDIR");
    char *dir = test_path(base && *base ? base : "/tmp", "mm3-test-XXXXXX");
    if (!mkdtemp(dir)) test_die("make", dir);
    return dir;
}

int test_count_files(const char *dir, const char *part)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    int n = 0;
    if (!d) test_die("read", dir);
    while ((e = readdir(d))) n += strstr(e->d_name, part) != NULL;
    closedir(d);
    return n;
}

static int remove_one(const char *path, const struct stat *s, int type, struct FTW *at)
{
    (void)s, (void)type, (void)at;
    if (remove(path) != 0) test_die("remove", path);
    return 0;
}

void test_temp_dir_remove(char **dir)
{
    if (!*dir) return;
    nftw(*dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(*dir);
    *dir = NULL;
}

void test_write_file(const char *dir, const char *name, const void *bytes, size_t n_bytes)
{
    char *path = test_path(dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || (n_bytes && fwrite(bytes, 1, n_bytes, f) != n_bytes) || fclose(f) != 0) test_die("write", path);
    free(path);
}

void test_write_text(const char *dir, const char *name, const char *text)
{
    test_write_file(dir, name, text, strlen(text));
}

char *test_read_file(const char *dir, const char *name, size_t *n_bytes)
{
    char *path = test_path(dir, name), *bytes;
    struct stat s;
    FILE *f = fopen(path, "rb");
    if (!f || fstat(fileno(f), &s) != 0) test_die("open", path);
    bytes = malloc((size_t)s.st_size + 1);
    if (!bytes || fread(bytes, 1, (size_t)s.st_size, f) != (size_t)s.st_size) test_die("read", path);
    fclose(f);
    free(path);
    bytes[s.st_size] = 0;
    if (n_bytes) *n_bytes = (size_t)s.st_size;
    return bytes;
}
