/* Allocation, the arena, the growing string. Every allocation of mm3 passes here and is counted. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/base.h"

static atomic_long n_allocations;

long mm3_memory_count(void) { return atomic_load(&n_allocations); }

/* Count an allocation; true where its size did not fit into a number. */
static bool too_large(size_t n_bytes)
{
    atomic_fetch_add_explicit(&n_allocations, 1, memory_order_relaxed);
    return n_bytes == SIZE_MAX;
}

size_t mm3_mul(size_t a, size_t b)
{
    size_t c;
    return __builtin_mul_overflow(a, b, &c) ? SIZE_MAX : c;
}

void *mm3_malloc(size_t n_bytes) { return too_large(n_bytes) ? NULL : malloc(n_bytes ? n_bytes : 1); }

void *mm3_calloc(size_t n, size_t n_bytes)
{
    return too_large(mm3_mul(n, n_bytes)) ? NULL : calloc(n ? n : 1, n_bytes ? n_bytes : 1);
}

void *mm3_realloc(void *p, size_t n_bytes) { return too_large(n_bytes) ? NULL : realloc(p, n_bytes ? n_bytes : 1); }

char *mm3_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *copy = mm3_malloc(n);
    return copy ? memcpy(copy, s, n) : NULL;
}

enum { HUGE_PAGE = 2 << 20 };

void mm3_memory_want_huge(void *p, size_t n_bytes)
{
    uintptr_t first = ((uintptr_t)p + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1);
    uintptr_t last = ((uintptr_t)p + n_bytes) & ~(uintptr_t)(HUGE_PAGE - 1);
    if (first < last) (void)madvise((unsigned char *)p + (first - (uintptr_t)p), last - first, MADV_HUGEPAGE);
}

void *mm3_alloc_aligned(size_t n_bytes)
{
    size_t align = n_bytes >= 2 * HUGE_PAGE ? HUGE_PAGE : 64;
    void *p;
    if (too_large(n_bytes) || n_bytes > SIZE_MAX - HUGE_PAGE) return NULL;
    n_bytes = n_bytes ? (n_bytes + align - 1) & ~(align - 1) : 64;
    p = aligned_alloc(align, n_bytes);
    if (!p) return NULL;
    mm3_memory_want_huge(p, n_bytes);
    return memset(p, 0, n_bytes);
}

void mm3_memory_release(void *p, size_t n_bytes)
{
    enum { PAGE = 4096 };
    unsigned char *begin = p, *end = begin + n_bytes;
    unsigned char *first = (unsigned char *)(((uintptr_t)begin + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    unsigned char *last = (unsigned char *)((uintptr_t)end & ~(uintptr_t)(PAGE - 1));
    if (first >= last || madvise(first, (size_t)(last - first), MADV_DONTNEED) != 0) {
        memset(p, 0, n_bytes);
        return;
    }
    memset(begin, 0, (size_t)(first - begin));
    memset(last, 0, (size_t)(end - last));
}

size_t mm3_memory_available(void)
{
    FILE *f = fopen("/proc/meminfo", "r");
    char line[128];
    unsigned long long kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) break;
    if (f) fclose(f);
    return kib ? (size_t)kib * 1024 : (size_t)sysconf(_SC_PHYS_PAGES) / 2 * (size_t)sysconf(_SC_PAGESIZE);
}

void mm3_free(void *p) { free(p); }

/* ---- arena ------------------------------------------------------------------------------------------------------- */

enum { ARENA_BLOCK = 64 * 1024 };
struct mm3_arena_block {
    struct mm3_arena_block *next; /* owned */
    size_t used, max;
    max_align_t data[];
};

void *mm3_arena_alloc(mm3_arena *arena, size_t n_bytes)
{
    struct mm3_arena_block *b = arena->block;
    void *p;
    if (n_bytes > SIZE_MAX / 2) return NULL;
    n_bytes = (n_bytes + 15) & ~(size_t)15;
    if (!b || b->max - b->used < n_bytes) {
        size_t max = MM3_MAX(n_bytes, (size_t)ARENA_BLOCK);
        b = mm3_calloc(1, sizeof *b + max);
        if (!b) return NULL;
        b->max = max;
        if (arena->block && max > ARENA_BLOCK) { /* a large one goes behind, the open block stays in front */
            b->next = arena->block->next;
            arena->block->next = b;
        } else {
            b->next = arena->block;
            arena->block = b;
        }
    }
    p = (char *)b->data + b->used;
    b->used += n_bytes;
    return p;
}

char *mm3_arena_strdup(mm3_arena *arena, const char *s)
{
    size_t n = strlen(s) + 1;
    char *copy = mm3_arena_alloc(arena, n);
    return copy ? memcpy(copy, s, n) : NULL;
}

void mm3_arena_free(mm3_arena *arena)
{
    while (arena->block) {
        struct mm3_arena_block *next = arena->block->next;
        mm3_free(arena->block);
        arena->block = next;
    }
}

/* ---- growing string ---------------------------------------------------------------------------------------------- */

static bool reserve(mm3_buf *b, size_t more)
{
    size_t want;
    char *data;
    if (b->failed) return false;
    if (b->max - b->n > more) return true;
    want = MM3_MAX(b->n + more + 1, MM3_MAX(b->max * 2, (size_t)64));
    data = more < SIZE_MAX / 4 ? mm3_realloc(b->data, want) : NULL;
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->max = want;
    return true;
}

void mm3_buf_add(mm3_buf *b, const void *bytes, size_t n)
{
    if (!reserve(b, n)) return;
    if (n) memcpy(b->data + b->n, bytes, n);
    b->n += n;
    b->data[b->n] = 0;
}

void mm3_buf_puts(mm3_buf *b, const char *s) { mm3_buf_add(b, s, strlen(s)); }

void mm3_buf_printf(mm3_buf *b, const char *fmt, ...)
{
    va_list args;
    int n;
    va_start(args, fmt);
    n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0 || !reserve(b, (size_t)n)) return;
    va_start(args, fmt);
    vsnprintf(b->data + b->n, (size_t)n + 1, fmt, args);
    va_end(args);
    b->n += (size_t)n;
}

void mm3_buf_clear(mm3_buf *b)
{
    b->n = 0;
    if (b->data) b->data[0] = 0;
}

void mm3_buf_free(mm3_buf *b)
{
    mm3_free(b->data);
    *b = (mm3_buf){ 0 };
}

mm3_status mm3_buf_take(mm3_buf *b, char **out, size_t *n)
{
    *out = NULL;
    mm3_buf_add(b, "", 0);
    if (b->failed) {
        mm3_buf_free(b);
        return mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for text");
    }
    *out = b->data;
    if (n) *n = b->n;
    *b = (mm3_buf){ 0 };
    return MM3_OK;
}
