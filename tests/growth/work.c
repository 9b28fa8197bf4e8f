/* See work.h. What stands behind --wrap is called by its name with __real_ before it. */
#include "growth/work.h"

#include <jansson.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "device/device.h"

static atomic_long work;

static void add(size_t n) { atomic_fetch_add_explicit(&work, (long)n, memory_order_relaxed); }

void work_start(void) { atomic_store(&work, 0); }
long work_done(void) { return atomic_load(&work); }

/* The compilers' own name for it. */
void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void) { add(1); }

/* ---- bytes --------------------------------------------------------------------------------------------------------
 */

/* As declared in the C library, which is left out of headers here: the linker's names are not. */
#define DECLARE(result, name, ...)     \
    result __wrap_##name(__VA_ARGS__); \
    result __real_##name(__VA_ARGS__)
DECLARE(void *, memcpy, void *to, const void *from, size_t n);
DECLARE(void *, memmove, void *to, const void *from, size_t n);
DECLARE(void *, memset, void *to, int c, size_t n);
DECLARE(int, memcmp, const void *a, const void *b, size_t n);
DECLARE(void *, memchr, const void *s, int c, size_t n);
DECLARE(void *, memmem, const void *s, size_t n, const void *word, size_t n_word);
DECLARE(size_t, strlen, const char *s);
DECLARE(int, strcmp, const char *a, const char *b);
DECLARE(int, strncmp, const char *a, const char *b, size_t n);
DECLARE(char *, strchr, const char *s, int c);
DECLARE(char *, strstr, const char *s, const char *word);
DECLARE(size_t, strspn, const char *s, const char *set);
DECLARE(size_t, strcspn, const char *s, const char *set);

void *__wrap_memcpy(void *to, const void *from, size_t n)
{
    add(n);
    return __real_memcpy(to, from, n);
}

void *__wrap_memmove(void *to, const void *from, size_t n)
{
    add(n);
    return __real_memmove(to, from, n);
}

void *__wrap_memset(void *to, int c, size_t n)
{
    add(n);
    return __real_memset(to, c, n);
}

/* Bytes in which both agree: what a comparison has to look at. */
int __wrap_memcmp(const void *a, const void *b, size_t n)
{
    const unsigned char *x = a, *y = b;
    size_t i = 0;
    while (i < n && x[i] == y[i]) i++;
    add(i);
    return __real_memcmp(a, b, n);
}

void *__wrap_memchr(const void *s, int c, size_t n)
{
    void *at = __real_memchr(s, c, n);
    add(at ? (size_t)((const char *)at - (const char *)s) : n);
    return at;
}

void *__wrap_memmem(const void *s, size_t n, const void *word, size_t n_word)
{
    void *at = __real_memmem(s, n, word, n_word);
    add(at ? (size_t)((const char *)at - (const char *)s) : n);
    return at;
}

size_t __wrap_strlen(const char *s)
{
    size_t n = __real_strlen(s);
    add(n);
    return n;
}

int __wrap_strncmp(const char *a, const char *b, size_t n)
{
    size_t i = 0;
    while (i < n && a[i] && a[i] == b[i]) i++;
    add(i);
    return __real_strncmp(a, b, n);
}

int __wrap_strcmp(const char *a, const char *b)
{
    size_t i = 0;
    while (a[i] && a[i] == b[i]) i++;
    add(i);
    return __real_strcmp(a, b);
}

char *__wrap_strchr(const char *s, int c)
{
    char *at = __real_strchr(s, c);
    add(at ? (size_t)(at - s) : __real_strlen(s));
    return at;
}

char *__wrap_strstr(const char *s, const char *word)
{
    char *at = __real_strstr(s, word);
    add(at ? (size_t)(at - s) : __real_strlen(s));
    return at;
}

size_t __wrap_strspn(const char *s, const char *set)
{
    size_t n = __real_strspn(s, set);
    add(n);
    return n;
}

size_t __wrap_strcspn(const char *s, const char *set)
{
    size_t n = __real_strcspn(s, set);
    add(n);
    return n;
}

/* ---- allocations ----------------------------------------------------------------------------------------------------
 */

DECLARE(void *, malloc, size_t n_bytes);
DECLARE(void *, calloc, size_t n, size_t n_bytes);
DECLARE(void *, realloc, void *p, size_t n_bytes);

void *__wrap_malloc(size_t n_bytes)
{
    add(1);
    return __real_malloc(n_bytes);
}

void *__wrap_calloc(size_t n, size_t n_bytes)
{
    if (n_bytes && n < ((size_t)1 << 24) / n_bytes) add(n * n_bytes); /* what is larger comes as zeros of the system */
    return __real_calloc(n, n_bytes);
}

/* As if it were copied, which a growing array is now and then. */
void *__wrap_realloc(void *p, size_t n_bytes)
{
    add(n_bytes);
    return __real_realloc(p, n_bytes);
}

/* jansson calls the C library past the linker: before ours it gets this one. */
static void *json_malloc(size_t n) { return __wrap_malloc(n); }

void work_init(void) { json_set_alloc_funcs(json_malloc, free); }

/* ---- PCRE2 ----------------------------------------------------------------------------------------------------------
 */

DECLARE(pcre2_code *, pcre2_compile_8, PCRE2_SPTR pattern, PCRE2_SIZE n, uint32_t options, int *error, PCRE2_SIZE *at,
        pcre2_compile_context *context);
DECLARE(int, pcre2_match_8, const pcre2_code *code, PCRE2_SPTR s, PCRE2_SIZE n, PCRE2_SIZE from, uint32_t options,
        pcre2_match_data *data, pcre2_match_context *context);

pcre2_code *__wrap_pcre2_compile_8(PCRE2_SPTR pattern, PCRE2_SIZE n, uint32_t options, int *error, PCRE2_SIZE *at,
                                   pcre2_compile_context *context)
{
    return __real_pcre2_compile_8(pattern, n, options | PCRE2_AUTO_CALLOUT, error, at, context);
}

static int on_item(pcre2_callout_block *block, void *user)
{
    size_t *last = user, now = block->current_position;
    add(1 + (now > *last ? now - *last : *last - now));
    *last = now;
    return 0;
}

int __wrap_pcre2_match_8(const pcre2_code *code, PCRE2_SPTR s, PCRE2_SIZE n, PCRE2_SIZE from, uint32_t options,
                         pcre2_match_data *data, pcre2_match_context *context)
{
    size_t last = from;
    pcre2_set_callout_8(context, on_item, &last);
    return __real_pcre2_match_8(code, s, n, from, options, data, context);
}

/* ---- the device
 * ------------------------------------------------------------------------------------------------------ */

void __wrap_mm3_device_run(mm3_device *device, const mm3_call *calls, int n_calls);
void __wrap_mm3_graph_replay(mm3_graph *graph);

void __wrap_mm3_device_run(mm3_device *device, const mm3_call *calls, int n_calls)
{
    (void)device;
    (void)calls;
    (void)n_calls;
}

void __wrap_mm3_graph_replay(mm3_graph *graph) { (void)graph; }
