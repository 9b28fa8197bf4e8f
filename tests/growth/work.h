/* work: how much the host's code did, as a number that is the same on every machine and however busy it is.
 *
 * The test links a second copy of src/base, model, text, kernels, forward and engine, compiled so that every branch
 * calls a counter (-fsanitize-coverage=trace-pc), and with the C library's functions on bytes behind the linker's
 * --wrap (Makefile). Counted are: stretches of code that were run; bytes that memcpy, strlen and the like went over;
 * bytes that were cleared or copied by an allocation that grew; the way that PCRE2 went in its subject, told by
 * callouts at every item of a pattern; allocations of jansson. Not counted: what jansson, utf8proc and qsort do inside.
 */
#ifndef MM3_TESTS_GROWTH_WORK_H
#define MM3_TESTS_GROWTH_WORK_H

#include <stdbool.h>

/* First in main. */
void work_init(void);
void work_start(void);
/* Since work_start(). */
long work_done(void);
/* Parts run by the device are left out altogether: nothing is computed, and every token is id 0. */

#endif
