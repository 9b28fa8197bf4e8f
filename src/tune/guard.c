/* Arrays between no-access pages, and calls that survive touching them. Knows no operation. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tune/cases.h"

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

bool mm3__area_open(mm3__area *a, size_t n_bytes, size_t align)
{
    size_t page = page_bytes();
    *a = (mm3__area){ .n_bytes = n_bytes, .align = align };
    if (n_bytes > SIZE_MAX / 4) return false;
    a->n_room = (n_bytes + 2 * align + page - 1) / page * page;
    a->n_map = a->n_room + 2 * page;
    a->map = mmap(NULL, a->n_map, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (a->map == MAP_FAILED) {
        a->map = NULL;
        return false;
    }
    if (mprotect(a->map, page, PROT_NONE) != 0 || mprotect(a->map + page + a->n_room, page, PROT_NONE) != 0) {
        mm3__area_close(a);
        return false;
    }
    mm3__area_move(a, MM3__AT_PAGE_END, false);
    return true;
}

void mm3__area_close(mm3__area *a)
{
    if (a->map) munmap(a->map, a->n_map);
    *a = (mm3__area){ 0 };
}

void mm3__area_move(mm3__area *a, mm3__place place, bool keep)
{
    unsigned char *room = a->map + page_bytes();
    unsigned char *to =
        place == MM3__AT_ODD_START ? room + a->align : room + (a->n_room - a->n_bytes) / a->align * a->align;
    if (keep && a->data && to != a->data) memmove(to, a->data, a->n_bytes);
    a->data = to;
}

void mm3__area_protect(mm3__area *a, bool read_only)
{
    /* mprotect on a mapping of one's own fails only where the kernel is out of memory for its tables; then the array
     * stays writable and the comparison of inputs is what is lost. */
    if (mprotect(a->map + page_bytes(), a->n_room, read_only ? PROT_READ : PROT_READ | PROT_WRITE) != 0) return;
}

static unsigned char pattern(size_t i) { return (unsigned char)(0xA7u ^ (i * 29u)); }

/* Only a page on either side: beyond it lies a no-access page, or nothing that a near miss reaches. */
static void around(const mm3__area *a, size_t *front, size_t *back)
{
    size_t page = page_bytes(), before = (size_t)(a->data - (a->map + page));
    *front = MM3_MIN(before, page);
    *back = MM3_MIN(a->n_room - before - a->n_bytes, page);
}

void mm3__area_paint(mm3__area *a)
{
    size_t front, back;
    around(a, &front, &back);
    for (size_t i = 0; i < front; i++) a->data[-1 - (ptrdiff_t)i] = pattern(i);
    for (size_t i = 0; i < back; i++) a->data[a->n_bytes + i] = pattern(i);
}

bool mm3__area_is_intact(const mm3__area *a)
{
    size_t front, back;
    around(a, &front, &back);
    for (size_t i = 0; i < front; i++)
        if (a->data[-1 - (ptrdiff_t)i] != pattern(i)) return false;
    for (size_t i = 0; i < back; i++)
        if (a->data[a->n_bytes + i] != pattern(i)) return false;
    return true;
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

static _Thread_local struct {
    sigjmp_buf env;
    volatile sig_atomic_t armed;
    const unsigned char *volatile address;
} fault;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before_segv, before_bus;

/* A fault of another thread, or of ours outside a guarded call, goes where it would have gone. */
static void on_fault(int sig, siginfo_t *info, void *context)
{
    (void)context;
    if (fault.armed) {
        fault.armed = 0;
        fault.address = info->si_addr;
        siglongjmp(fault.env, 1);
    }
    sigaction(sig, sig == SIGSEGV ? &before_segv : &before_bus, NULL);
}

/* Others (a test framework) may have put their own handler in between. */
static void install(int sig, struct sigaction *before)
{
    struct sigaction now, act = { 0 };
    if (sigaction(sig, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault) return;
    act.sa_sigaction = on_fault;
    act.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigemptyset(&act.sa_mask);
    pthread_mutex_lock(&lock);
    if (sigaction(sig, &act, &now) == 0 && !((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault))
        *before = now;
    pthread_mutex_unlock(&lock);
}

bool mm3__guarded(void (*fn)(void *arg), void *arg, const unsigned char **address)
{
    install(SIGSEGV, &before_segv);
    install(SIGBUS, &before_bus);
    /* SA_NODEFER leaves the mask alone, so it need not be saved: no system call here. */
    if (sigsetjmp(fault.env, 0)) {
        *address = fault.address;
        return false;
    }
    fault.armed = 1;
    fn(arg);
    fault.armed = 0;
    return true;
}
