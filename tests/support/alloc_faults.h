/* alloc_faults: makes chosen allocations fail. The linker puts this file's functions before malloc, calloc, realloc,
 * aligned_alloc, mmap of memory, and pthread_create (--wrap, in the Makefile) for all that is linked into a test: mm3
 * itself is as it is shipped. Shared libraries go on calling the C library; jansson's share is asked for by
 * alloc_faults_in_json(). */
#ifndef MM3_TESTS_ALLOC_FAULTS_H
#define MM3_TESTS_ALLOC_FAULTS_H

#include <stdbool.h>

/* The k-th allocation of the process from now on fails, and only it; 0: none does. */
void alloc_fail_at(long k);
/* It and all that follow fail. */
void alloc_fail_from(long k);
/* With this errno instead of ENOMEM, until one of the two above is called again: a map may be refused for other
 * reasons. */
void alloc_fail_with(int error);
/* While on, allocations neither fail nor count. */
void alloc_pause(bool on);
/* Allocations since one of the first two was called. */
long alloc_count(void);
/* Whether one has failed since then. */
bool alloc_has_failed(void);
/* Stand before jansson's allocator too: at the start of main, since mm3 keeps what it finds there. */
void alloc_faults_in_json(void);
/* Whether jansson's allocations then are among those that count; at first they are not. */
void alloc_json_counts(bool on);

#endif
