/* JSON through jansson: strict parsing, and members with checks and errors that name them. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/base.h"

/* ---- lack of memory ---------------------------------------------------------------------------------------------- */

/* jansson's own account of it can't be relied on: its reader calls it an invalid token, or loses a byte
 * and succeeds, or loses one and then stumbles over its own assertion (docs/decisions/0007). So a
 * function of ours stands before its allocator. It remembers, and after the first failure nothing more
 * is given: that stops a reader before the assertion. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static json_malloc_t below; /* what the process had before */
static _Thread_local bool watching, lacked;

static void *remember_failure(size_t n_bytes)
{
    void *p = watching && lacked ? NULL : below(n_bytes);
    lacked |= watching && !p;
    return p;
}

static void stand_before(void)
{
    json_free_t give;
    json_get_alloc_funcs(&below, &give);
    json_set_alloc_funcs(remember_failure, give);
}

void mm3_json_begin(void)
{
    pthread_once(&once, stand_before);
    watching = true;
    lacked = false;
}

bool mm3_json_end(void)
{
    watching = false;
    return !lacked;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

json_t *mm3_json_decode(const char *text, size_t n_bytes, size_t flags, json_error_t *e, bool *out_of_memory)
{
    json_t *v;
    mm3_json_begin();
    v = json_loadb(text ? text : "", n_bytes, flags | JSON_DECODE_ANY, e); /* an empty map: NULL */
    *out_of_memory = !mm3_json_end();
    if (!*out_of_memory) return v;
    json_decref(v);
    return NULL;
}

mm3_status mm3_json_parse(json_t **out, const char *text, size_t n_bytes, const char *what)
{
    json_error_t e;
    bool out_of_memory;
    const char *nul = n_bytes ? memchr(text, 0, n_bytes) : NULL; /* jansson passes over one that follows a number */
    *out = NULL;
    MM3_CHECK(!nul, MM3_ERR_FORMAT, "%s: not valid JSON: byte %td is a NUL", what, nul - text);
    *out = mm3_json_decode(text, n_bytes, JSON_REJECT_DUPLICATES, &e, &out_of_memory);
    if (*out) return MM3_OK;
    MM3_CHECK(!out_of_memory, MM3_ERR_NOMEM, "%s: out of memory while reading JSON", what);
    return mm3_fail(MM3_ERR_FORMAT, MM3_HERE, "%s: not valid JSON at line %d column %d: %s", what, e.line, e.column,
                    e.text);
}

mm3_status mm3_json_load(json_t **out, const char *path)
{
    mm3_file *f = NULL;
    mm3_status st;
    *out = NULL;
    MM3_TRY(mm3_file_open(&f, path));
    st = mm3_json_parse(out, (const char *)f->data, f->n_bytes, path);
    mm3_file_close(&f);
    return st;
}

static mm3_status missing(const char *key, const char *what)
{
    return mm3_fail(MM3_ERR_FORMAT, MM3_HERE, "%s: \"%s\" is missing", what, key);
}

static mm3_status wrong_type(const char *key, const char *what, const char *wanted)
{
    return mm3_fail(MM3_ERR_FORMAT, MM3_HERE, "%s: \"%s\" must be %s", what, key, wanted);
}

mm3_status mm3_json_int(const json_t *object, const char *key, const char *what, int64_t low, int64_t high,
                        bool has_default, int64_t fallback, int64_t *out)
{
    const json_t *v = json_object_get(object, key);
    double d;
    if (!v || (json_is_null(v) && has_default)) {
        *out = fallback;
        return has_default ? MM3_OK : missing(key, what);
    }
    if (!json_is_number(v)) return wrong_type(key, what, "a whole number");
    d = json_number_value(v);
    if (json_is_real(v) && d != floor(d)) return wrong_type(key, what, "a whole number");
    /* 2^63 is a double, the largest int64 is not: compare integers as integers, and cast only what fits. */
    if (json_is_integer(v) || fabs(d) < 0x1p63) {
        *out = json_is_integer(v) ? (int64_t)json_integer_value(v) : (int64_t)d;
        if (*out >= low && *out <= high) return MM3_OK;
    }
    return mm3_fail(MM3_ERR_FORMAT, MM3_HERE, "%s: \"%s\" is %.17g; expected %lld to %lld", what, key, d,
                    (long long)low, (long long)high);
}

mm3_status mm3_json_double(const json_t *object, const char *key, const char *what, bool has_default, double fallback,
                           double *out)
{
    const json_t *v = json_object_get(object, key);
    if (!v || (json_is_null(v) && has_default)) {
        *out = fallback;
        return has_default ? MM3_OK : missing(key, what);
    }
    if (!json_is_number(v)) return wrong_type(key, what, "a number");
    *out = json_number_value(v);
    return MM3_OK;
}

mm3_status mm3_json_bool(const json_t *object, const char *key, const char *what, bool has_default, bool fallback,
                         bool *out)
{
    const json_t *v = json_object_get(object, key);
    if (!v || (json_is_null(v) && has_default)) {
        *out = fallback;
        return has_default ? MM3_OK : missing(key, what);
    }
    if (!json_is_boolean(v)) return wrong_type(key, what, "true or false");
    *out = json_is_true(v);
    return MM3_OK;
}

mm3_status mm3_json_string(const json_t *object, const char *key, const char *what, bool has_default,
                           const char *fallback, const char **out)
{
    const json_t *v = json_object_get(object, key);
    if (!v || (json_is_null(v) && has_default)) {
        *out = fallback;
        return has_default ? MM3_OK : missing(key, what);
    }
    if (!json_is_string(v)) return wrong_type(key, what, "a string");
    *out = json_string_value(v);
    return MM3_OK;
}
