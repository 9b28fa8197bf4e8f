/* File operations that fail when a test says so: see the header. */
#include "support/io_faults.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const io_call_names[N_IO_CALLS] = { "open",    "fstat",     "read",   "pread", "write", "pwrite",
                                                "mkstemp", "ftruncate", "fchmod", "flock", "close", "rename" };

static atomic_int failing = -1, error_to_give;
static atomic_long left; /* calls of that kind until the one that fails */
static atomic_bool failed, piecemeal;
static atomic_int interruptions;

void io_fail_at(io_call call, long k, int error)
{
    atomic_store(&failing, -1);
    atomic_store(&left, k);
    atomic_store(&error_to_give, error);
    atomic_store(&failed, false);
    if (k > 0) atomic_store(&failing, (int)call);
}

bool io_has_failed(void) { return atomic_load(&failed); }
void io_piecemeal(bool on) { atomic_store(&piecemeal, on); }

static bool must_fail(io_call call)
{
    if (atomic_load(&failing) != (int)call || atomic_fetch_sub(&left, 1) != 1) return false;
    atomic_store(&failed, true);
    errno = atomic_load(&error_to_give);
    return true;
}

static bool interrupted(void)
{
    if (!atomic_load(&piecemeal) || atomic_fetch_add(&interruptions, 1) % 2) return false;
    errno = EINTR;
    return true;
}

static size_t part_of(size_t n) { return n > 1 && atomic_load(&piecemeal) ? 1 : n; }

/* ---- what the linker puts before the C library's ----------------------------------------------------------------- */

int __real_open(const char *path, int flags, ...);
int __real_fstat(int fd, struct stat *s);
ssize_t __real_read(int fd, void *p, size_t n);
ssize_t __real_pread(int fd, void *p, size_t n, off_t at);
ssize_t __real_write(int fd, const void *p, size_t n);
ssize_t __real_pwrite(int fd, const void *p, size_t n, off_t at);
int __real_mkstemp(char *name);
int __real_mkostemp(char *name, int flags);
int __real_ftruncate(int fd, off_t n);
int __real_fchmod(int fd, mode_t mode);
int __real_flock(int fd, int operation);
int __real_close(int fd);
int __real_rename(const char *from, const char *to);

int __wrap_open(const char *path, int flags, ...);
int __wrap_fstat(int fd, struct stat *s);
ssize_t __wrap_read(int fd, void *p, size_t n);
ssize_t __wrap_pread(int fd, void *p, size_t n, off_t at);
ssize_t __wrap_write(int fd, const void *p, size_t n);
ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t at);
int __wrap_mkstemp(char *name);
int __wrap_mkostemp(char *name, int flags);
int __wrap_ftruncate(int fd, off_t n);
int __wrap_fchmod(int fd, mode_t mode);
int __wrap_flock(int fd, int operation);
int __wrap_close(int fd);
int __wrap_rename(const char *from, const char *to);

int __wrap_open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    if (flags & O_CREAT) {
        va_list args;
        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
    }
    return must_fail(IO_OPEN) || interrupted() ? -1 : __real_open(path, flags, mode);
}

int __wrap_fstat(int fd, struct stat *s) { return must_fail(IO_FSTAT) ? -1 : __real_fstat(fd, s); }

ssize_t __wrap_read(int fd, void *p, size_t n)
{
    return must_fail(IO_READ) || interrupted() ? -1 : __real_read(fd, p, part_of(n));
}

ssize_t __wrap_pread(int fd, void *p, size_t n, off_t at)
{
    return must_fail(IO_PREAD) || interrupted() ? -1 : __real_pread(fd, p, part_of(n), at);
}

ssize_t __wrap_write(int fd, const void *p, size_t n)
{
    return must_fail(IO_WRITE) || interrupted() ? -1 : __real_write(fd, p, part_of(n));
}

ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t at)
{
    return must_fail(IO_PWRITE) || interrupted() ? -1 : __real_pwrite(fd, p, part_of(n), at);
}

int __wrap_mkstemp(char *name) { return must_fail(IO_MKSTEMP) ? -1 : __real_mkstemp(name); }
int __wrap_mkostemp(char *name, int flags) { return must_fail(IO_MKSTEMP) ? -1 : __real_mkostemp(name, flags); }
int __wrap_ftruncate(int fd, off_t n)
{
    return must_fail(IO_FTRUNCATE) || interrupted() ? -1 : __real_ftruncate(fd, n);
}
int __wrap_fchmod(int fd, mode_t mode) { return must_fail(IO_FCHMOD) ? -1 : __real_fchmod(fd, mode); }
int __wrap_flock(int fd, int operation)
{
    return must_fail(IO_FLOCK) || interrupted() ? -1 : __real_flock(fd, operation);
}

int __wrap_close(int fd)
{
    bool fails = must_fail(IO_CLOSE);
    int error = errno, rc = __real_close(fd);
    if (fails) errno = error;
    return fails ? -1 : rc;
}

int __wrap_rename(const char *from, const char *to) { return must_fail(IO_RENAME) ? -1 : __real_rename(from, to); }
