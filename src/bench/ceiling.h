/* ceiling: loops that do nothing but read, or nothing but multiply. Internal to this folder. */
#ifndef MM3_BENCH_CEILING_H
#define MM3_BENCH_CEILING_H

#include "bench/bench.h"

/* Sizes of the reading loops, bytes. */
enum {
    MM3__LINE = 64,
    MM3__AHEAD = 4096, /* bytes of prefetch ahead of the loads: far enough for a memory latency at full speed */
    MM3__STEP = 256    /* bytes per turn of the loop; shares are whole steps */
};

/* Read n bytes (whole steps) at p; the result depends on all of them, so that none is left out. */
typedef uint64_t mm3__read(const unsigned char *p, size_t n);
mm3__read mm3__read_plain, mm3__read_nta;
#if defined(__x86_64__)
mm3__read mm3__read_plain_avx512, mm3__read_nta_avx512;
#endif

/* Do n turns of multiply-adds that do not wait for each other; returns how many operations they were, and a value that
 * depends on them in *sink. */
typedef double mm3__multiply(long n, float *sink);
mm3__multiply mm3__multiply_plain;
#if defined(__x86_64__)
mm3__multiply mm3__multiply_avx2, mm3__multiply_avx512, mm3__multiply_bf16_avx512, mm3__multiply_amx;
#endif

#endif
