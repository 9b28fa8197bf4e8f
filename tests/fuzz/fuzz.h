/* fuzz: what the fuzz targets share. A target is one file fuzz_NAME.c with LLVMFuzzerTestOneInput: it runs a parser on
 * any bytes and ends the program with a reason where a property does not hold. libFuzzer drives it (make fuzz), and
 * replay.c with the committed corpus (make test). See docs/fuzzing.md. */
#ifndef MM3_TESTS_FUZZ_H
#define MM3_TESTS_FUZZ_H

#include <stdint.h>
#include <string.h>

#include "base/base.h"

/* Returns 0; does not return where a property fails. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Print place and reason, and abort: libFuzzer then keeps the input. */
_Noreturn void fuzz_fail(const char *file, int line, const char *fmt, ...) MM3_PRINTF(3, 4);
#define FUZZ_CHECK(condition, ...)                          \
    do {                                                    \
        if (!(condition)) fuzz_fail(MM3_HERE, __VA_ARGS__); \
    } while (0)

/* Forget the last error's text, so that fuzz_error sees that a call left one of its own. */
void fuzz_forget_error(void);
/* The status is an error, and its text is one line that is not empty and contains `part` (NULL: any). */
void fuzz_error(mm3_status st, const char *part);

/* Run the same again with one allocation failing, for one input in eight; which one depends on the input's bytes.
 *   n_allocations  made when nothing failed
 * Returns whether to do it. Afterwards call fuzz_memory_failed(): the status must then be the same as before (the
 * allocation could be done without, or was not reached), or MM3_ERR_NOMEM with a text. */
bool fuzz_memory_fails(const uint8_t *data, size_t n, long n_allocations);
void fuzz_memory_failed(mm3_status st, mm3_status before);

/* Cut the next part off: up to a line that is "%%" alone, or all that is left; NULL: nothing is left. The part is
 * copied to memory of exactly its size, NUL-terminated, for free(). *n_part may be NULL. */
char *fuzz_part(const uint8_t **data, size_t *n, size_t *n_part);

/* A number that depends on the bytes. */
uint32_t fuzz_hash(const void *data, size_t n);

/* ---- oracles: each written without mm3's own code, to hold against it -------------------------------------------- */

/* Whether the text is one JSON value (RFC 8259), white space around it; numbers of any size, any depth below 3000. */
bool fuzz_is_json(const char *text, size_t n);
/* Append the text with U+FFFD for each longest beginning of a UTF-8 sequence that is not continued, for each other
 * stray byte, and for NUL. */
void fuzz_replace_invalid(mm3_buf *out, const char *text, size_t n);
/* Whether all bytes of a stand in b, in the same order. */
bool fuzz_is_subsequence(const char *a, size_t n_a, const char *b, size_t n_b);
/* Append the text with `with` for each byte c. */
void fuzz_expand(mm3_buf *out, const char *text, size_t n, char c, const char *with);

#endif
