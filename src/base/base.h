/* base: status text, memory, JSON, files, clock, log. Knows nothing of models, devices or numbers.
 * The public header of this folder; read next: mx/mx.h. */
#ifndef MM3_BASE_H
#define MM3_BASE_H

#include <jansson.h>
#include <stdarg.h>

#include "mm3.h"

/* ---- status (status.c) ------------------------------------------------------------------------------------------- */

/* The place of an error, two arguments of mm3_fail. */
#define MM3_HERE __FILE__, __LINE__
/* On a declaration: argument fmt_at is a printf format for those from args_at on. */
#define MM3_PRINTF(fmt_at, args_at) __attribute__((format(printf, fmt_at, args_at)))

/* Record the error text of this thread and return `status`. One line, 'what went wrong: what to do'. */
mm3_status mm3_fail(mm3_status status, const char *file, int line, const char *fmt, ...) MM3_PRINTF(4, 5);
/* Put 'fmt: ' before the error text recorded last; returns `status` unchanged. */
mm3_status mm3_fail_in(mm3_status status, const char *fmt, ...) MM3_PRINTF(2, 3);
/* Where the last error was raised, "src/model/config.c:41": for debuggers and tests. */
const char *mm3_last_error_place(void);

/* A status in hand and its text: errors are recorded per thread, and a job that fails on the engine's
 * thread hands its error to the thread that waits. */
typedef struct mm3_error {
    mm3_status status;
    char text[1024];
} mm3_error;
void mm3_error_take(mm3_error *e, mm3_status status); /* copy this thread's last error */
mm3_status mm3_error_raise(const mm3_error *e);       /* make it this thread's last error */

/* Return `status` with a text unless the condition holds. */
#define MM3_CHECK(condition, status, ...)                                   \
    do {                                                                    \
        if (!(condition)) return mm3_fail((status), MM3_HERE, __VA_ARGS__); \
    } while (0)
/* Return what a call failed with. */
#define MM3_TRY(call)                                  \
    do {                                               \
        mm3_status try_status_ = (call);               \
        if (try_status_ != MM3_OK) return try_status_; \
    } while (0)
/* The same inside a function with one exit label `done` and a variable `st`. */
#define MM3_GOTO(call)               \
    do {                             \
        st = (call);                 \
        if (st != MM3_OK) goto done; \
    } while (0)

/* ---- memory (memory.c) ------------------------------------------------------------------------------------------- */

/* malloc/calloc/realloc of everything in mm3 go through these, so that a step can be shown to make none. */
void *mm3_malloc(size_t n_bytes);
void *mm3_calloc(size_t n, size_t n_bytes);
void *mm3_realloc(void *p, size_t n_bytes);
char *mm3_strdup(const char *s);
/* Zeroed, 64-byte aligned; for mm3_free(). */
void *mm3_alloc_aligned(size_t n_bytes);
/* Ask for huge pages where the area has whole ones, before it is first touched; the system may not. A KV pool is read a
 * page here and a page there, and with pages of 4 KiB the look-ups of addresses cost a quarter of the time. */
void mm3_memory_want_huge(void *p, size_t n_bytes);
/* Forget the contents of a part of an allocation: it reads as zeros, and its memory goes back to the system. */
void mm3_memory_release(void *p, size_t n_bytes);
/* Bytes that may be used without pushing anybody out; half of the machine's memory where the system does not say. */
size_t mm3_memory_available(void);
/* a * b, or SIZE_MAX where it does not fit (which every allocator refuses). */
size_t mm3_mul(size_t a, size_t b);
/* Allocations of the process so far. */
long mm3_memory_count(void);

/* Grows by blocks, freed as one. For many small things with one lifetime. */
typedef struct mm3_arena {
    struct mm3_arena_block *block; /* owned */
} mm3_arena;
void *mm3_arena_alloc(mm3_arena *arena, size_t n_bytes); /* zeroed, 16-byte aligned; NULL when out of memory */
char *mm3_arena_strdup(mm3_arena *arena, const char *s);
void mm3_arena_free(mm3_arena *arena);

/* A growing byte string, always NUL-terminated once something was added. Zero-initialize. */
typedef struct mm3_buf {
    char *data; /* owned */
    size_t n, max;
    bool failed; /* an allocation failed: the content is incomplete; check once at the end */
} mm3_buf;
void mm3_buf_add(mm3_buf *b, const void *bytes, size_t n);
void mm3_buf_puts(mm3_buf *b, const char *s);
void mm3_buf_printf(mm3_buf *b, const char *fmt, ...) MM3_PRINTF(2, 3);
void mm3_buf_clear(mm3_buf *b); /* length 0, memory kept */
void mm3_buf_free(mm3_buf *b);
/* Hand the string over (mm3_free); MM3_ERR_NOMEM if an addition failed. An empty buffer gives "". */
MM3_MUST_USE mm3_status mm3_buf_take(mm3_buf *b, char **out, size_t *n);

/* ---- JSON (json.c) ----------------------------------------------------------------------------------------------- */

/* Parse text; duplicate keys, trailing garbage, depth beyond 2048 (jansson's limit) and NUL are refused.
 *   what  named in the error: a file's path, "--tools" ... */
MM3_MUST_USE mm3_status mm3_json_parse(json_t **out, const char *text, size_t n_bytes, const char *what);
MM3_MUST_USE mm3_status mm3_json_load(json_t **out, const char *path);
/* Around the making of a value of many parts by jansson. end: false where memory was refused on this thread in between
 * (and all that followed): what was made is incomplete. They do not nest. */
void mm3_json_begin(void);
bool mm3_json_end(void);
/* Any JSON value; NULL where it can't be read: *e says why, unless it was for want of memory.
 *   flags  of jansson's decoder */
json_t *mm3_json_decode(const char *text, size_t n_bytes, size_t flags, json_error_t *e, bool *out_of_memory);
/* Members of an object. `what` names the object in errors. A missing member is an error unless has_default.
 * An integer member accepts 5 and 5.0, not 5.5, and must lie in [low, high]. */
MM3_MUST_USE mm3_status mm3_json_int(const json_t *object, const char *key, const char *what, int64_t low, int64_t high,
                                     bool has_default, int64_t fallback, int64_t *out);
MM3_MUST_USE mm3_status mm3_json_double(const json_t *object, const char *key, const char *what, bool has_default,
                                        double fallback, double *out);
MM3_MUST_USE mm3_status mm3_json_bool(const json_t *object, const char *key, const char *what, bool has_default,
                                      bool fallback, bool *out);
/* Borrowed from the object. */
MM3_MUST_USE mm3_status mm3_json_string(const json_t *object, const char *key, const char *what, bool has_default,
                                        const char *fallback, const char **out);

/* ---- files (file.c) ---------------------------------------------------------------------------------------------- */

/* As open(2) with mode 0666 and O_CLOEXEC, past interruptions by signals: a pipe or a slow file system waits. */
int mm3_open(const char *path, int flags);
/* A whole file mapped read-only. */
typedef struct mm3_file {
    char *path; /* owned */
    const unsigned char *data;
    size_t n_bytes;
} mm3_file;
MM3_MUST_USE mm3_status mm3_file_open(mm3_file **out, const char *path);
void mm3_file_close(mm3_file **f);
/* "dir/name" (mm3_free). */
char *mm3_path_join(const char *dir, const char *name);
bool mm3_path_exists(const char *path);
/* Call each(user, name) for the names in a folder, in no order, until it returns false. A folder that can't be listed
 * has none. */
void mm3_dir_each(const char *dir, bool (*each)(void *user, const char *name), void *user);
/* Read a file or, for "-", standard input to its end (mm3_free). Refuses more than max bytes. */
MM3_MUST_USE mm3_status mm3_read_all(const char *path, size_t max, char **out, size_t *n_bytes);

/* ---- clock, numbers (clock.c, number.c) -------------------------------------------------------------------------- */

double mm3_now_s(void); /* monotonic seconds */
/* The part [*begin, *end) of n units that falls to worker i of n_workers; parts differ by one at most. */
void mm3_share(int n, int i, int n_workers, int *begin, int *end);
/* Parse a whole string as a decimal number; false if there is anything else in it or it is out of range. */
bool mm3_parse_int(const char *s, int64_t low, int64_t high, int64_t *out);
bool mm3_parse_double(const char *s, double low, double high, double *out);

/* FNV-1a of n bytes, going on from h; from MM3_HASH_START at first. For telling texts apart, not for secrets. */
#define MM3_HASH_START 2166136261u
uint32_t mm3_hash(uint32_t h, const void *bytes, size_t n);

/* Elements of an array (not of a pointer). */
#define MM3_COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))
/* The smaller and the larger; both evaluate the one they give twice. */
#define MM3_MIN(a, b) ((a) < (b) ? (a) : (b))
#define MM3_MAX(a, b) ((a) > (b) ? (a) : (b))

#endif
