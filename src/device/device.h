/* device: where calls run. Properties, memory, and the one way a kernel is entered.
 * Knows no operation and no candidate. The CPU device is cpu.c. Read next: ops/ops.h. */
#ifndef MM3_DEVICE_H
#define MM3_DEVICE_H

#include "base/base.h"

/* A processor and the threads that run on it. One caller at a time. */
typedef struct mm3_device mm3_device;

/* What the processor reports and the operating system allows. */
typedef enum mm3_cpu_feature {
    MM3_CPU_AVX2 = 1 << 0,        /* AVX2, FMA, F16C */
    MM3_CPU_AVX512 = 1 << 1,      /* F, BW, DQ, VL */
    MM3_CPU_AVX512_BF16 = 1 << 2, /* vdpbf16ps */
    MM3_CPU_AVX512_VBMI = 1 << 3, /* vpermi2b */
    MM3_CPU_AMX_BF16 = 1 << 4     /* tiles, with the kernel's permission to use them */
} mm3_cpu_feature;

/* What is known of a device; constant while it is open. */
typedef struct mm3_device_info {
    const char *kind; /* "cpu" */
    char name[96];    /* "Intel(R) Xeon(R) Processor" */
    int n_threads;
    unsigned features;       /* mm3_cpu_feature bits */
    size_t last_cache_bytes; /* all that this process's cores reach, as the system reports it; else 32 MiB */
    size_t memory_bytes;     /* physical memory */
} mm3_device_info;

/* Start the threads.
 *   n_threads  0: one per core this process may use
 * errors  MM3_ERR_ARG more than 4 per core (and more than 8), or more than 1024; MM3_ERR_NOMEM */
MM3_MUST_USE mm3_status mm3_device_open(mm3_device **out, int n_threads);
/* NULL-safe; sets *device to NULL. */
void mm3_device_close(mm3_device **device);
/* Borrowed from the device. */
const mm3_device_info *mm3_device_info_of(const mm3_device *device);
/* "avx2 avx512 avx512_bf16 ..." for people; into text[n]. */
void mm3_device_features_text(unsigned features, char *text, size_t n);

/* One bound call: a kernel's phase with its operation, ready to run. The pointers are borrowed. */
typedef struct mm3_call mm3_call;
typedef void mm3_run(const mm3_call *call, int i_thread, int n_threads);
struct mm3_call {
    mm3_run *run;
    const void *op;     /* the operation's contract struct */
    const void *tactic; /* mm3_tactic of the candidate, or NULL */
    void *scratch;      /* as large as the candidate asked for, shared by all threads and phases; or NULL */
    bool waits;         /* every thread must have finished all earlier calls before any starts this one */
};

/* Run calls in order on all threads, one parallel region; returns when all are done. */
void mm3_device_run(mm3_device *device, const mm3_call *calls, int n_calls);

/* Write n_bytes at p back to memory and drop them from every cache of the CPU; the calling thread's part of work that
 * others may share. Returns false, having done nothing, where a program may not do that. */
bool mm3_cache_drop(const void *p, size_t n_bytes);

/* A recorded step: calls over fixed buffers. Replay makes no allocation, no look-up and no choice.
 * errors  MM3_ERR_NOMEM
 * proof   tests/unit/test_device.c; that nothing is allocated: test_replay_engine.c, test_nothing_but_replays */
typedef struct mm3_graph mm3_graph;
MM3_MUST_USE mm3_status mm3_graph_open(mm3_graph **out, mm3_device *device);
void mm3_graph_close(mm3_graph **graph);
/* The call is copied; what it points to must outlive the graph.
 * errors  MM3_ERR_NOMEM (graph unchanged) */
MM3_MUST_USE mm3_status mm3_graph_append(mm3_graph *graph, const mm3_call *call);
/* Its calls, in order; borrowed until the next append. */
int mm3_graph_length(const mm3_graph *graph);
const mm3_call *mm3_graph_call(const mm3_graph *graph, int i);
/* Point every call's scratch to one area. */
void mm3_graph_set_scratch(mm3_graph *graph, void *scratch);
/* Run all calls on the device's threads; returns when they are done. One replay of a device at a time. */
void mm3_graph_replay(mm3_graph *graph);

#endif
