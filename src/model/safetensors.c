/* safetensors: the header of one file, checked whole. Owns the format; knows no model and no folder.
 * Read next: shards.c. Strict where the format's prose is silent: a hole, an overlap or a byte too many means that
 * some tensor is not what it says, so the file is refused. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "model/internal.h"

/* The format's own limit; a longer header is refused before anything is allocated for it. */
#define MAX_HEADER_BYTES UINT64_C(100000000)
enum { LENGTH_BYTES = 8, MAX_DIMS = 8 };

static const struct {
    const char *name;
    int n_bytes;
} dtypes[] = {
    [MM3_ST_BOOL] = { "BOOL", 1 },       [MM3_ST_U8] = { "U8", 1 },           [MM3_ST_I8] = { "I8", 1 },
    [MM3_ST_F8_E4M3] = { "F8_E4M3", 1 }, [MM3_ST_F8_E5M2] = { "F8_E5M2", 1 }, [MM3_ST_F8_E8M0] = { "F8_E8M0", 1 },
    [MM3_ST_I16] = { "I16", 2 },         [MM3_ST_U16] = { "U16", 2 },         [MM3_ST_F16] = { "F16", 2 },
    [MM3_ST_BF16] = { "BF16", 2 },       [MM3_ST_I32] = { "I32", 4 },         [MM3_ST_U32] = { "U32", 4 },
    [MM3_ST_F32] = { "F32", 4 },         [MM3_ST_I64] = { "I64", 8 },         [MM3_ST_U64] = { "U64", 8 },
    [MM3_ST_F64] = { "F64", 8 },
};

const char *mm3_st_dtype_name(mm3_st_dtype t) { return (unsigned)t < MM3_COUNT(dtypes) ? dtypes[t].name : "?"; }

/* Where a tensor lies, counted from the end of the header. */
typedef struct range {
    uint64_t begin, end;
    mm3_tensor *tensor;
} range;

static int compare_ranges(const void *a, const void *b)
{
    const range *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static mm3_status read_dtype(mm3_tensor *t, const json_t *entry)
{
    const char *name = json_string_value(json_object_get(entry, "dtype"));
    MM3_CHECK(name, MM3_ERR_FORMAT, "%s: tensor %s: \"dtype\" must be a string", t->file, t->name);
    for (int i = 0; i < MM3_COUNT(dtypes); i++) {
        if (strcmp(dtypes[i].name, name) != 0) continue;
        t->dtype = (mm3_st_dtype)i;
        return MM3_OK;
    }
    return mm3_fail(MM3_ERR_FORMAT, MM3_HERE, "%s: tensor %s: unknown dtype \"%s\"", t->file, t->name, name);
}

static mm3_status read_shape(mm3_tensor *t, const json_t *entry)
{
    const json_t *shape = json_object_get(entry, "shape");
    uint64_t n_bytes = (uint64_t)dtypes[t->dtype].n_bytes;
    MM3_CHECK(json_is_array(shape), MM3_ERR_FORMAT, "%s: tensor %s: \"shape\" must be a list", t->file, t->name);
    MM3_CHECK(json_array_size(shape) <= MAX_DIMS, MM3_ERR_FORMAT, "%s: tensor %s: %zu dimensions; mm3 reads up to %d",
              t->file, t->name, json_array_size(shape), MAX_DIMS);
    t->n_dims = (int)json_array_size(shape);
    for (int i = 0; i < t->n_dims; i++) {
        const json_t *d = json_array_get(shape, (size_t)i);
        MM3_CHECK(json_is_integer(d) && json_integer_value(d) >= 0, MM3_ERR_FORMAT,
                  "%s: tensor %s: \"shape\"[%d] must be a whole number from 0 on", t->file, t->name, i);
        t->shape[i] = json_integer_value(d);
        MM3_CHECK(!__builtin_mul_overflow(n_bytes, (uint64_t)t->shape[i], &n_bytes) && n_bytes <= INT64_MAX,
                  MM3_ERR_FORMAT, "%s: tensor %s: its shape overflows 64 bits", t->file, t->name);
    }
    t->n_bytes = (size_t)n_bytes;
    return MM3_OK;
}

static mm3_status read_range(range *r, const mm3_tensor *t, const json_t *entry)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    MM3_CHECK(json_array_size(offsets) == 2 && json_is_integer(begin) && json_is_integer(end) &&
                  json_integer_value(begin) >= 0,
              MM3_ERR_FORMAT, "%s: tensor %s: \"data_offsets\" must be two whole numbers from 0 on", t->file, t->name);
    r->begin = (uint64_t)json_integer_value(begin);
    MM3_CHECK(json_integer_value(end) >= json_integer_value(begin), MM3_ERR_FORMAT,
              "%s: tensor %s: \"data_offsets\" end before they begin", t->file, t->name);
    r->end = (uint64_t)json_integer_value(end);
    MM3_CHECK(r->end - r->begin == t->n_bytes, MM3_ERR_FORMAT,
              "%s: tensor %s: \"data_offsets\" span %" PRIu64 " bytes, but its shape and dtype need %zu", t->file,
              t->name, r->end - r->begin, t->n_bytes);
    return MM3_OK;
}

static mm3_status read_entry(mm3_tensor *t, range *r, const json_t *entry)
{
    MM3_CHECK(json_is_object(entry), MM3_ERR_FORMAT, "%s: tensor %s: its entry must be an object", t->file, t->name);
    MM3_TRY(read_dtype(t, entry));
    MM3_TRY(read_shape(t, entry));
    MM3_TRY(read_range(r, t, entry));
    /* An entry of another length says something that mm3 would not heed. */
    MM3_CHECK(json_object_size(entry) == 3, MM3_ERR_FORMAT,
              "%s: tensor %s: unknown keys besides dtype, shape and data_offsets", t->file, t->name);
    r->tensor = t;
    return MM3_OK;
}

static mm3_status check_metadata(const json_t *metadata, const char *path)
{
    const char *key;
    json_t *value;
    MM3_CHECK(json_is_object(metadata), MM3_ERR_FORMAT, "%s: \"__metadata__\" must be an object", path);
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value)
        MM3_CHECK(json_is_string(value), MM3_ERR_FORMAT, "%s: \"__metadata__\": \"%s\" must be a string", path, key);
    return MM3_OK;
}

/* The ranges must cover the data exactly: in order of offset each begins where the one before ended. */
static mm3_status place(range *ranges, int n, const unsigned char *data, uint64_t n_header, uint64_t n_file,
                        const char *path)
{
    uint64_t at = 0, n_data = n_file - n_header;
    qsort(ranges, (size_t)n, sizeof *ranges, compare_ranges);
    for (int i = 0; i < n; i++) {
        const range *r = ranges + i;
        MM3_CHECK(r->begin >= at, MM3_ERR_FORMAT, "%s: tensors %s and %s overlap", path, ranges[i - 1].tensor->name,
                  r->tensor->name);
        MM3_CHECK(r->begin == at, MM3_ERR_FORMAT, "%s: a hole of %" PRIu64 " bytes before tensor %s", path,
                  r->begin - at, r->tensor->name);
        at = r->end;
    }
    MM3_CHECK(at <= n_data, MM3_ERR_FORMAT,
              "%s is truncated: its header describes %" PRIu64 " bytes, the file has %" PRIu64 ": copy it again", path,
              n_header + at, n_file);
    MM3_CHECK(at == n_data, MM3_ERR_FORMAT,
              "%s has %" PRIu64 " bytes after its last tensor: its header describes %" PRIu64 " bytes, the file has "
              "%" PRIu64,
              path, n_data - at, n_header + at, n_file);
    for (int i = 0; i < n; i++) ranges[i].tensor->data = data + n_header + ranges[i].begin;
    return MM3_OK;
}

static mm3_status read_header(mm3_tensor **tensors, int *n, mm3_arena *arena, const json_t *header,
                              const unsigned char *data, uint64_t n_header, uint64_t n_file, const char *path)
{
    mm3_status st = MM3_OK;
    size_t max = json_object_size(header);
    mm3_tensor *list = mm3_arena_alloc(arena, mm3_mul(max, sizeof *list));
    const char *file = mm3_arena_strdup(arena, path);
    range *ranges = mm3_calloc(max, sizeof *ranges);
    const char *key;
    json_t *entry;
    int n_read = 0;
    if (!list || !file || !ranges || max > INT32_MAX) {
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "%s: out of memory for %zu tensors", path, max);
        goto done;
    }
    json_object_foreach((json_t *)(uintptr_t)header, key, entry)
    {
        mm3_tensor *t = list + n_read;
        if (strcmp(key, "__metadata__") == 0) {
            MM3_GOTO(check_metadata(entry, path));
            continue;
        }
        t->file = file;
        t->name = mm3_arena_strdup(arena, key);
        if (!t->name) {
            st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "%s: out of memory for %zu tensors", path, max);
            goto done;
        }
        MM3_GOTO(read_entry(t, ranges + n_read, entry));
        n_read++;
    }
    MM3_GOTO(place(ranges, n_read, data, n_header, n_file, file));
    *tensors = list;
    *n = n_read;
done:
    mm3_free(ranges);
    return st;
}

mm3_status mm3_safetensors_parse(mm3_tensor **tensors, int *n, mm3_arena *arena, const unsigned char *data,
                                 size_t n_bytes, const char *path)
{
    mm3_status st;
    uint64_t n_header = 0;
    json_t *header = NULL;
    *tensors = NULL;
    *n = 0;
    MM3_CHECK(n_bytes >= LENGTH_BYTES, MM3_ERR_FORMAT,
              "%s is no safetensors file: it has %zu bytes, less than the %d of the header's length", path, n_bytes,
              LENGTH_BYTES);
    for (int i = 0; i < LENGTH_BYTES; i++) n_header |= (uint64_t)data[i] << (8 * i);
    MM3_CHECK(n_header <= MAX_HEADER_BYTES, MM3_ERR_FORMAT,
              "%s: header length %" PRIu64 " is beyond the limit of %" PRIu64 " bytes: damaged, or no safetensors file",
              path, n_header, MAX_HEADER_BYTES);
    MM3_CHECK(n_header >= 2, MM3_ERR_FORMAT, "%s: header length %" PRIu64 "; expected at least 2", path, n_header);
    MM3_CHECK(n_header <= n_bytes - LENGTH_BYTES, MM3_ERR_FORMAT,
              "%s is truncated: its header ends at byte %" PRIu64 ", the file has %zu: copy it again", path,
              n_header + LENGTH_BYTES, n_bytes);
    MM3_CHECK(data[LENGTH_BYTES] == '{', MM3_ERR_FORMAT, "%s: its header does not begin with '{'", path);
    st = mm3_json_parse(&header, (const char *)data + LENGTH_BYTES, (size_t)n_header, path);
    if (st != MM3_OK) return mm3_fail_in(st, "safetensors header");
    st = read_header(tensors, n, arena, header, data, n_header + LENGTH_BYTES, n_bytes, path);
    json_decref(header);
    return st;
}
