/* Allocations that fail when a test says so: see the header. */
#include "support/alloc_faults.h"

#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

static atomic_long n_so_far, first; /* 0: never */
static atomic_int error_to_give;
static atomic_bool all_after, failed, paused;

static void begin(long k, bool all)
{
    atomic_store(&first, 0);
    atomic_store(&n_so_far, 0);
    atomic_store(&failed, false);
    atomic_store(&paused, false);
    atomic_store(&error_to_give, ENOMEM);
    atomic_store(&all_after, all);
    atomic_store(&first, k);
}

void alloc_fail_at(long k) { begin(k, false); }
void alloc_fail_from(long k) { begin(k, true); }
long alloc_count(void) { return atomic_load(&n_so_far); }
void alloc_fail_with(int error) { atomic_store(&error_to_give, error); }
void alloc_pause(bool on) { atomic_store(&paused, on); }
bool alloc_has_failed(void) { return atomic_load(&failed); }

static bool must_fail(void)
{
    long n, k = atomic_load(&first);
    if (atomic_load(&paused)) return false;
    n = atomic_fetch_add(&n_so_far, 1) + 1;
    if (k == 0 || n < k || (n > k && !atomic_load(&all_after))) return false;
    atomic_store(&failed, true);
    errno = atomic_load(&error_to_give);
    return true;
}

/* ---- what the linker puts before the C library's ----------------------------------------------------------------- */

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
void *__real_mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *user);

void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
void *__wrap_mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *user);

void *__wrap_malloc(size_t n) { return must_fail() ? NULL : __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t size) { return must_fail() ? NULL : __real_calloc(n, size); }
void *__wrap_realloc(void *p, size_t n) { return must_fail() ? NULL : __real_realloc(p, n); }
void *__wrap_aligned_alloc(size_t align, size_t n) { return must_fail() ? NULL : __real_aligned_alloc(align, n); }

/* Maps of files too: the kernel wants memory for them. */
void *__wrap_mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    return must_fail() ? MAP_FAILED : __real_mmap(at, n, protection, flags, fd, offset);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *user)
{
    return must_fail() ? EAGAIN : __real_pthread_create(thread, attributes, run, user);
}

/* ---- jansson ----------------------------------------------------------------------------------------------------- */

static atomic_bool json_counts;

static void *json_malloc(size_t n) { return atomic_load(&json_counts) ? __wrap_malloc(n) : __real_malloc(n); }

void alloc_faults_in_json(void) { json_set_alloc_funcs(json_malloc, free); }
void alloc_json_counts(bool on) { atomic_store(&json_counts, on); }
