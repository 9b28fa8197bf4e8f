/* The threads of the CPU device. They spin for some microseconds, since the calls of a decode step are as short, and
 * then sleep, since a processor may be shared: threads that spin on one core wait for each other's time slices to end
 * (why this is not OpenMP: docs/decisions/0005). Read next: cpu.c. */
#include "device/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A number that others wait for to change. */
typedef struct signal_word {
    _Alignas(64) atomic_int value; /* a futex */
    atomic_int sleepers;
} signal_word;

struct mm3__pool {
    int n_threads;
    pthread_t *thread; /* owned: [n_threads - 1] */
    int n_started;
    const mm3_call *calls; /* the run under way; published by `run` */
    int n_calls;
    signal_word run;   /* counts runs; workers wait for the next */
    signal_word round; /* counts barriers passed */
    _Alignas(64) atomic_int arrived;
    bool quit;
};

static void futex(atomic_int *word, int operation, int value)
{
    syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void wait_for_change(signal_word *w, int old)
{
    enum { SPINS = 2000 };
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&w->value, memory_order_acquire) != old) return;
        pause_briefly();
    }
    atomic_fetch_add(&w->sleepers, 1);
    while (atomic_load(&w->value) == old) futex(&w->value, FUTEX_WAIT, old);
    atomic_fetch_sub(&w->sleepers, 1);
}

static void change(signal_word *w)
{
    atomic_fetch_add(&w->value, 1);
    if (atomic_load(&w->sleepers) > 0) futex(&w->value, FUTEX_WAKE, 1 << 30);
}

static void wait_for_all(mm3__pool *p)
{
    int round = atomic_load(&p->round.value);
    if (atomic_fetch_add(&p->arrived, 1) == p->n_threads - 1) {
        atomic_store(&p->arrived, 0);
        change(&p->round);
    } else {
        wait_for_change(&p->round, round);
    }
}

static void walk(mm3__pool *p, int i_thread)
{
    for (int i = 0; i < p->n_calls; i++) {
        if (i > 0 && p->calls[i].waits) wait_for_all(p);
        p->calls[i].run(&p->calls[i], i_thread, p->n_threads);
    }
    wait_for_all(p);
}

typedef struct start {
    mm3__pool *pool;
    int i_thread;
    atomic_bool taken;
} start;

static void *work(void *user)
{
    start *s = user;
    mm3__pool *p = s->pool;
    int i_thread = s->i_thread, seen = 0;
    atomic_store(&s->taken, true);
    for (;;) {
        wait_for_change(&p->run, seen);
        seen = (int)((unsigned)seen + 1u); /* wraps, as the counter does */
        if (p->quit) return NULL;
        walk(p, i_thread);
    }
}

mm3_status mm3__pool_open(mm3__pool **out, int n_threads)
{
    mm3__pool *p = mm3_alloc_aligned(sizeof *p);
    *out = p;
    MM3_CHECK(p, MM3_ERR_NOMEM, "out of memory for the threads");
    p->n_threads = n_threads;
    p->thread = mm3_calloc((size_t)n_threads, sizeof *p->thread);
    for (int i = 1; p->thread && i < n_threads; i++) {
        start s = { .pool = p, .i_thread = i };
        if (pthread_create(&p->thread[p->n_started], NULL, work, &s) != 0) break;
        p->n_started++;
        while (!atomic_load(&s.taken)) pause_briefly();
    }
    if (p->thread && p->n_started == n_threads - 1) return MM3_OK;
    mm3__pool_close(out);
    return mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "cannot start %d threads: use fewer", n_threads);
}

void mm3__pool_close(mm3__pool **pool)
{
    mm3__pool *p = pool ? *pool : NULL;
    if (!p) return;
    p->quit = true;
    change(&p->run);
    for (int i = 0; i < p->n_started; i++) pthread_join(p->thread[i], NULL);
    mm3_free(p->thread);
    mm3_free(p);
    *pool = NULL;
}

void mm3__pool_run(mm3__pool *pool, const mm3_call *calls, int n_calls)
{
    pool->calls = calls;
    pool->n_calls = n_calls;
    if (pool->n_threads > 1) change(&pool->run);
    walk(pool, 0);
}
