/* The CPU device: what the processor can do, and calls on all its threads. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "device/pool.h"

#if defined(__x86_64__) && !defined(MM3_EMULATED)
#include <cpuid.h>
#endif

struct mm3_device {
    mm3_device_info info;
    mm3__pool *pool; /* owned */
};

#if defined(MM3_EMULATED) /* a build of scripts/check-emulated: all but AVX2, which it needs, is C */
static unsigned find_features(void)
{
    return MM3_CPU_AVX2 | MM3_CPU_AVX512 | MM3_CPU_AVX512_BF16 | MM3_CPU_AVX512_VBMI | MM3_CPU_AMX_BF16;
}
#elif defined(__x86_64__)
static uint64_t xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* AMX tiles are 8 KiB of state per thread: Linux grants them on request. */
static bool request_amx(void)
{
    enum { REQUEST_XCOMP_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_XCOMP_PERMISSION, TILE_DATA) == 0;
}

static unsigned find_features(void)
{
    unsigned a, b, c, d, f = 0, b7, c7, d7, a71;
    uint64_t x;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
    x = xcr0();
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return 0;
    if ((x & 0x6) == 0x6 && (b7 & bit_AVX2) && (c & bit_FMA) && (c & bit_F16C) && (b7 & bit_BMI2)) f |= MM3_CPU_AVX2;
    if ((f & MM3_CPU_AVX2) && (x & 0xE0) == 0xE0 && (b7 & bit_AVX512F) && (b7 & bit_AVX512BW) && (b7 & bit_AVX512DQ) &&
        (b7 & bit_AVX512VL)) {
        f |= MM3_CPU_AVX512;
        if (c7 & bit_AVX512VBMI) f |= MM3_CPU_AVX512_VBMI;
        if (__get_cpuid_count(7, 1, &a71, &b, &c, &d) && (a71 & (1u << 5))) f |= MM3_CPU_AVX512_BF16;
        if ((d7 & (1u << 22)) && (d7 & (1u << 24)) && (x & 0x60000) == 0x60000 && request_amx()) f |= MM3_CPU_AMX_BF16;
    }
    return f;
}
#else
static unsigned find_features(void) { return 0; }
#endif

static void find_name(char *name, size_t n)
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    snprintf(name, n, "unknown processor");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon) {
            colon[strcspn(colon, "\n")] = 0;
            snprintf(name, n, "%.*s", (int)n - 1, colon + 2);
            break;
        }
    }
    if (f) fclose(f);
}

/* One line of a cache's description; false where there is none. */
static bool read_cache(int cpu, int index, const char *what, char *text, int n)
{
    char path[96];
    FILE *f;
    bool found;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/%s", cpu, index, what);
    f = fopen(path, "r");
    if (!f) return false;
    found = fgets(text, n, f) != NULL;
    fclose(f);
    text[strcspn(text, "\n")] = 0;
    return found;
}

/* Level and bytes of the last cache of a core, and which cores share it. */
static size_t last_cache_of(int cpu, char *sharers, int n)
{
    size_t bytes = 0;
    char text[32];
    for (int index = 0, highest = 0; read_cache(cpu, index, "level", text, sizeof text); index++) {
        int level = atoi(text);
        char *unit;
        size_t size;
        if (level <= highest || !read_cache(cpu, index, "size", text, sizeof text)) continue;
        size = strtoul(text, &unit, 10);
        size <<= *unit == 'K' ? 10 : *unit == 'M' ? 20 : 0;
        if (!size || !read_cache(cpu, index, "shared_cpu_list", sharers, n)) continue;
        highest = level;
        bytes = size;
    }
    return bytes;
}

/* The sum over the different last caches of the cores that this process may use. What sysconf says of the third level
 * is, on processors of several dies, that of all dies. */
static size_t find_last_cache(void)
{
    static const int level[] = { _SC_LEVEL4_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE };
    size_t sum = 0;
    char seen[4096] = ";", sharers[128], entry[132];
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_ZERO(&set);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        size_t bytes = CPU_ISSET(cpu, &set) ? last_cache_of(cpu, sharers, sizeof sharers) : 0;
        if (!bytes) continue;
        snprintf(entry, sizeof entry, ";%s;", sharers);
        if (strstr(seen, entry) || strlen(seen) + strlen(entry) >= sizeof seen) continue;
        strcat(seen, entry + 1);
        sum += bytes;
    }
    for (int i = 0; i < MM3_COUNT(level) && !sum; i++) sum = (size_t)MM3_MAX(sysconf(level[i]), 0L);
    return sum ? sum : (size_t)32 << 20;
}

bool mm3_cache_drop(const void *p, size_t n_bytes)
{
#if defined(__x86_64__)
    enum { LINE = 64 };
    const char *at = (const char *)((uintptr_t)p & ~(uintptr_t)(LINE - 1)), *end = (const char *)p + n_bytes;
    for (; at < end; at += LINE) __builtin_ia32_clflush(at);
    __builtin_ia32_mfence();
    return true;
#else
    (void)p;
    (void)n_bytes;
    return false;
#endif
}

static int find_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
    return 1;
}

/* Threads that share a core wait for each other's time slices at every barrier: a step takes as many times longer as
 * there are threads on a core, and with hundreds of them a token takes a minute. Some are let be, for tests. */
static mm3_status check_threads(int n_threads, int n_cores)
{
    enum { MAX_THREADS = 1024, FEW = 8, PER_CORE = 4 };
    int most = MM3_MIN(MM3_MAX(FEW, PER_CORE * n_cores), MAX_THREADS);
    MM3_CHECK(n_threads >= 0, MM3_ERR_ARG, "%d threads: use 1 to %d, or 0 for one per core", n_threads, most);
    MM3_CHECK(n_threads <= most, MM3_ERR_ARG,
              "%d threads for %d core%s would mostly wait for each other: use 1 to %d, or 0 for one per core",
              n_threads, n_cores, n_cores == 1 ? "" : "s", most);
    return MM3_OK;
}

mm3_status mm3_device_open(mm3_device **out, int n_threads)
{
    int n_cores = find_cores();
    mm3_device *d;
    mm3_status st;
    *out = NULL;
    MM3_TRY(check_threads(n_threads, n_cores));
    d = mm3_calloc(1, sizeof *d);
    MM3_CHECK(d, MM3_ERR_NOMEM, "out of memory for the device");
    d->info.kind = "cpu";
    d->info.n_threads = n_threads ? n_threads : n_cores;
    d->info.features = find_features();
    d->info.last_cache_bytes = find_last_cache();
    d->info.memory_bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    find_name(d->info.name, sizeof d->info.name);
    st = mm3__pool_open(&d->pool, d->info.n_threads);
    *out = d;
    if (st != MM3_OK) mm3_device_close(out);
    return st;
}

void mm3_device_close(mm3_device **device)
{
    if (!device || !*device) return;
    mm3__pool_close(&(*device)->pool);
    mm3_free(*device);
    *device = NULL;
}

const mm3_device_info *mm3_device_info_of(const mm3_device *device) { return &device->info; }

void mm3_device_features_text(unsigned features, char *text, size_t n)
{
    static const char *const name[] = { "avx2", "avx512", "avx512_bf16", "avx512_vbmi", "amx_bf16" };
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; i < MM3_COUNT(name); i++)
        if ((features >> i & 1) && at < n) at += (size_t)snprintf(text + at, n - at, "%s%s", at ? " " : "", name[i]);
}

void mm3_device_run(mm3_device *device, const mm3_call *calls, int n_calls)
{
    mm3__pool_run(device->pool, calls, n_calls);
}

/* ---- graphs -------------------------------------------------------------------------------------------------- */

struct mm3_graph {
    mm3_device *device; /* borrowed */
    mm3_call *call;     /* owned */
    int n, max;
};

mm3_status mm3_graph_open(mm3_graph **out, mm3_device *device)
{
    *out = mm3_calloc(1, sizeof **out);
    MM3_CHECK(*out, MM3_ERR_NOMEM, "out of memory for a graph");
    (*out)->device = device;
    return MM3_OK;
}

void mm3_graph_close(mm3_graph **graph)
{
    if (!graph || !*graph) return;
    mm3_free((*graph)->call);
    mm3_free(*graph);
    *graph = NULL;
}

mm3_status mm3_graph_append(mm3_graph *graph, const mm3_call *call)
{
    if (graph->n == graph->max) {
        int max = graph->max ? 2 * graph->max : 64;
        mm3_call *c = mm3_realloc(graph->call, (size_t)max * sizeof *c);
        MM3_CHECK(c, MM3_ERR_NOMEM, "out of memory for a graph of %d calls", max);
        graph->call = c;
        graph->max = max;
    }
    graph->call[graph->n++] = *call;
    return MM3_OK;
}

int mm3_graph_length(const mm3_graph *graph) { return graph->n; }
const mm3_call *mm3_graph_call(const mm3_graph *graph, int i) { return &graph->call[i]; }

void mm3_graph_set_scratch(mm3_graph *graph, void *scratch)
{
    for (int i = 0; i < graph->n; i++) graph->call[i].scratch = scratch;
}

void mm3_graph_replay(mm3_graph *graph) { mm3_device_run(graph->device, graph->call, graph->n); }
