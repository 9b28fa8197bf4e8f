/* source: hashes of the candidates' sources, made at build time by scripts/src-hash. Internal to kernels/. */
#ifndef MM3_KERNELS_SOURCE_H
#define MM3_KERNELS_SOURCE_H

/* One file of candidates. */
typedef struct mm3__source {
    const char *device, *file; /* "cpu", "linear_native" */
    const char *hash;          /* eight hex digits */
} mm3__source;
/* Of build/src_hash.c; in no order. */
extern const mm3__source mm3__sources[];
extern const int mm3__n_sources;

#endif
