/* io_faults: makes chosen file operations fail, or happen a byte at a time. As alloc_faults.h, by the linker's --wrap:
 * what mm3 calls is seen, what the C library calls within itself (stdio) is not. */
#ifndef MM3_TESTS_IO_FAULTS_H
#define MM3_TESTS_IO_FAULTS_H

#include <stdbool.h>

typedef enum io_call {
    IO_OPEN,
    IO_FSTAT,
    IO_READ,
    IO_PREAD,
    IO_WRITE,
    IO_PWRITE,
    IO_MKSTEMP, /* and mkostemp */
    IO_FTRUNCATE,
    IO_FCHMOD,
    IO_FLOCK,
    IO_CLOSE, /* closes, and then says that it failed */
    IO_RENAME,
    N_IO_CALLS
} io_call;
extern const char *const io_call_names[N_IO_CALLS];

/* The k-th call of this kind from now on fails with this errno, and only it; 0: none does. */
void io_fail_at(io_call call, long k, int error);
/* Whether one has failed since then. */
bool io_has_failed(void);
/* Reads and writes move one byte each, and every other call that a signal may interrupt says EINTR. */
void io_piecemeal(bool on);

#endif
