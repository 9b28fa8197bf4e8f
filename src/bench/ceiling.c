/* The ceilings of this machine: how fast all its threads read memory, and how fast they multiply. */
#include <math.h>
#include <string.h>

#include "bench/ceiling.h"

/* ---- reading ----------------------------------------------------------------------------------------------------- */

uint64_t mm3__read_plain(const unsigned char *p, size_t n)
{
    uint64_t sum[8] = { 0 }, x[8];
    for (size_t i = 0; i < n; i += MM3__LINE) {
        memcpy(x, p + i, sizeof x);
        for (int j = 0; j < 8; j++) sum[j] += x[j];
    }
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

uint64_t mm3__read_nta(const unsigned char *p, size_t n)
{
    uint64_t sum[8] = { 0 }, x[8];
    for (size_t i = 0; i < n; i += MM3__LINE) {
        __builtin_prefetch(p + i + MM3__AHEAD, 0, 0); /* beyond the end it is a hint that comes to nothing */
        memcpy(x, p + i, sizeof x);
        for (int j = 0; j < 8; j++) sum[j] += x[j];
    }
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

typedef struct way {
    const char *name;
    mm3__read *read;
    unsigned needs; /* mm3_cpu_feature bits */
} way;

static const way ways[] = {
    { "plain loads", mm3__read_plain, 0 },
    { "loads with NTA prefetch", mm3__read_nta, 0 },
#if defined(__x86_64__)
    { "512-bit loads", mm3__read_plain_avx512, MM3_CPU_AVX512 },
    { "512-bit loads with NTA prefetch", mm3__read_nta_avx512, MM3_CPU_AVX512 },
#endif
};

enum { MAX_THREADS = 1024 };

struct mm3_ceiling {
    mm3_device *device;  /* borrowed */
    unsigned char *data; /* owned */
    size_t n_bytes, next;
    const way *way[MM3_COUNT(ways)]; /* those this machine has */
    int n_ways;
    volatile uint64_t sink[MAX_THREADS * 8]; /* a line each */
};

/* What one read is: handed to the device as a call. */
typedef struct reading {
    mm3_ceiling *c;
    const way *way;
    const unsigned char *data;
    size_t n_bytes;
} reading;

/* Part i of n steps; as mm3_share, for sizes beyond int. */
static void share(size_t n, int i, int n_workers, size_t *begin, size_t *end)
{
    size_t w = (size_t)n_workers;
    *begin = n / w * (size_t)i + MM3_MIN((size_t)i, n % w);
    *end = *begin + n / w + ((size_t)i < n % w);
}

static void run_reading(const mm3_call *call, int i_thread, int n_threads)
{
    const reading *r = call->op;
    size_t begin, end;
    share(r->n_bytes / MM3__STEP, i_thread, n_threads, &begin, &end);
    r->c->sink[i_thread * 8] = r->way->read(r->data + begin * MM3__STEP, (end - begin) * MM3__STEP);
}

mm3_status mm3_ceiling_open(mm3_ceiling **out, mm3_device *device, size_t n_bytes)
{
    mm3_ceiling *c = mm3_calloc(1, sizeof *c);
    unsigned features = mm3_device_info_of(device)->features;
    *out = NULL;
    MM3_CHECK(c, MM3_ERR_NOMEM, "out of memory for the ceiling");
    c->device = device;
    c->n_bytes = MM3_MAX(n_bytes / MM3__STEP, (size_t)1) * MM3__STEP;
    c->data = mm3_alloc_aligned(c->n_bytes);
    if (!c->data) {
        mm3_ceiling_close(&c);
        return mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory: %zu bytes to measure the memory's speed with",
                        n_bytes);
    }
    memset(c->data, 1, c->n_bytes); /* pages that were never written are all the same page of zeros */
    for (int i = 0; i < MM3_COUNT(ways); i++)
        if ((ways[i].needs & features) == ways[i].needs) c->way[c->n_ways++] = &ways[i];
    *out = c;
    return MM3_OK;
}

void mm3_ceiling_close(mm3_ceiling **c)
{
    if (!c || !*c) return;
    mm3_free((*c)->data);
    mm3_free(*c);
    *c = NULL;
}

int mm3_ceiling_count(const mm3_ceiling *c) { return c->n_ways; }
const char *mm3_ceiling_name(const mm3_ceiling *c, int i) { return c->way[i]->name; }

double mm3_ceiling_read(mm3_ceiling *c, int i, size_t n_bytes, size_t *n_read)
{
    reading r = { .c = c, .way = c->way[i] };
    mm3_call call = { .run = run_reading, .op = &r };
    double start;
    r.n_bytes = MM3_MIN(MM3_MAX(n_bytes / MM3__STEP, (size_t)1) * MM3__STEP, c->n_bytes);
    if (c->next + r.n_bytes > c->n_bytes) c->next = 0;
    r.data = c->data + c->next;
    c->next += r.n_bytes;
    *n_read = r.n_bytes;
    start = mm3_now_s();
    mm3_device_run(c->device, &call, 1);
    return mm3_now_s() - start;
}

void mm3_ceiling_evict(mm3_ceiling *c)
{
    size_t n;
    c->next = 0;
    mm3_ceiling_read(c, 0, c->n_bytes, &n);
}

/* ---- multiplying ------------------------------------------------------------------------------------------------- */

typedef float vec4 __attribute__((vector_size(16)));

/* Every turn of a chain gives 1: nothing overflows, nothing is subnormal. */
double mm3__multiply_plain(long n, float *sink)
{
    enum { CHAINS = 8 };
    vec4 sum[CHAINS], half = { 0.5f, 0.5f, 0.5f, 0.5f };
    /* 1, which the compiler cannot know: equal or constant chains would be folded into one, or into none. */
    for (int c = 0; c < CHAINS; c++) sum[c] = half + half * (1 + *sink * (float)c);
    for (long i = 0; i < n; i++)
        for (int c = 0; c < CHAINS; c++) sum[c] = sum[c] * half + half;
    for (int c = 0; c < CHAINS; c++) *sink += sum[c][0] + sum[c][1] + sum[c][2] + sum[c][3];
    return (double)n * CHAINS * 4 * 2;
}

typedef struct peak {
    const char *name;
    mm3__multiply *multiply;
    unsigned needs;
} peak;

static const peak peaks[] = {
    { "128-bit multiply and add", mm3__multiply_plain, 0 },
#if defined(__x86_64__)
    { "avx2 vfmadd", mm3__multiply_avx2, MM3_CPU_AVX2 },
    { "avx512 vfmadd", mm3__multiply_avx512, MM3_CPU_AVX512 },
    { "avx512_bf16 vdpbf16ps", mm3__multiply_bf16_avx512, MM3_CPU_AVX512_BF16 },
    { "amx_bf16 tdpbf16ps", mm3__multiply_amx, MM3_CPU_AMX_BF16 },
#endif
};

typedef struct multiplying {
    const peak *peak;
    long n;
    struct {
        double flops;
        float sink;
    } * part; /* of each thread */
} multiplying;

static void run_multiplying(const mm3_call *call, int i_thread, int n_threads)
{
    const multiplying *m = call->op;
    float sink = 0;
    (void)n_threads;
    m->part[i_thread].flops = m->peak->multiply(m->n, &sink);
    m->part[i_thread].sink = sink;
}

double mm3_peak_flops(mm3_device *device, const char **by)
{
    enum { TIMES = 5 };
    const mm3_device_info *info = mm3_device_info_of(device);
    multiplying m = { .n = 20000 };
    mm3_call call = { .run = run_multiplying, .op = &m };
    double best = 0;
    *by = "";
    m.part = mm3_calloc((size_t)info->n_threads, sizeof *m.part);
    if (!m.part) return NAN;
    for (int i = 0; i < MM3_COUNT(peaks); i++) {
        if ((peaks[i].needs & info->features) != peaks[i].needs) continue;
        m.peak = &peaks[i];
        mm3_device_run(device, &call, 1); /* wakes the unit up */
        for (int k = 0; k < TIMES; k++) {
            double start = mm3_now_s(), flops = 0, rate;
            mm3_device_run(device, &call, 1);
            start = mm3_now_s() - start;
            for (int t = 0; t < info->n_threads; t++) flops += m.part[t].flops;
            rate = flops / start;
            if (rate <= best) continue;
            best = rate;
            *by = peaks[i].name;
        }
    }
    mm3_free(m.part);
    return best;
}
