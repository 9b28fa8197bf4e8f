/* fuzz: one safetensors file. Input: the file; or, beginning with '{', its header alone, before which its length is put
 * and behind which as many bytes as the largest number below 65536 in it.
 * Properties: tensors tile the data without hole or overlap, their bytes are what shape and dtype say; the same header
 * written once more from them, in another order, is read the same; a byte more or less at the end is refused. */
#include <stdio.h>
#include <stdlib.h>

#include "fuzz/fuzz.h"
#include "model/model.h"
#include "support/alloc_faults.h"

static const char path[] = "x.safetensors";

/* 8 bytes of length, header, n_data bytes; for free(). */
static uint8_t *make_file(const void *header, size_t n_header, size_t n_data, size_t *n_file)
{
    uint8_t *file = malloc(8 + n_header + n_data);
    FUZZ_CHECK(file, "out of memory");
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)((uint64_t)n_header >> (8 * i));
    if (n_header) memcpy(file + 8, header, n_header);
    memset(file + 8 + n_header, 0, n_data);
    *n_file = 8 + n_header + n_data;
    return file;
}

static size_t largest_number(const uint8_t *data, size_t n)
{
    size_t largest = 0, value = 0;
    for (size_t i = 0; i < n; i++) {
        value = data[i] >= '0' && data[i] <= '9' ? MM3_MIN(value * 10 + data[i] - '0', (size_t)65536) : 0;
        if (value < 65536) largest = MM3_MAX(largest, value);
    }
    return largest;
}

/* By the format's description, not by the parser's table. */
static size_t bytes_of(const char *dtype)
{
    if (strcmp(dtype, "BOOL") == 0) return 1;
    if (strncmp(dtype, "F8_", 3) == 0) return 1;
    if (strcmp(dtype, "BF16") == 0) return 2;
    return (size_t)atoi(dtype + 1) / 8;
}

static void check_tensors(const mm3_tensor *t, int n, const uint8_t *file, size_t n_file)
{
    uint64_t n_header = 0;
    size_t sum = 0;
    const uint8_t *begin;
    for (int i = 0; i < 8; i++) n_header |= (uint64_t)file[i] << (8 * i);
    begin = file + 8 + n_header;
    for (int i = 0; i < n; i++) {
        size_t n_bytes = bytes_of(mm3_st_dtype_name(t[i].dtype));
        const uint8_t *data = t[i].data;
        FUZZ_CHECK(t[i].n_dims >= 0 && t[i].n_dims <= 8, "%d dimensions", t[i].n_dims);
        for (int k = 0; k < t[i].n_dims; k++) {
            FUZZ_CHECK(t[i].shape[k] >= 0, "a negative size");
            n_bytes = t[i].shape[k] == 0 ? 0 : mm3_mul(n_bytes, (size_t)t[i].shape[k]);
        }
        FUZZ_CHECK(n_bytes == t[i].n_bytes, "%s: %zu bytes, not %zu", t[i].name, t[i].n_bytes, n_bytes);
        FUZZ_CHECK(data >= begin && data <= file + n_file && n_bytes <= (size_t)(file + n_file - data),
                   "%s lies outside of the file", t[i].name);
        FUZZ_CHECK(strcmp(t[i].file, path) == 0, "%s is of file %s", t[i].name, t[i].file);
        sum += n_bytes;
        for (int k = 0; n <= 64 && k < i; k++) {
            const uint8_t *other = t[k].data;
            FUZZ_CHECK(strcmp(t[i].name, t[k].name) != 0, "two tensors are called %s", t[i].name);
            FUZZ_CHECK(!n_bytes || !t[k].n_bytes || data >= other + t[k].n_bytes || other >= data + n_bytes,
                       "%s and %s overlap", t[i].name, t[k].name);
        }
    }
    FUZZ_CHECK(sum == (size_t)(file + n_file - begin), "tensors of %zu bytes in %zu bytes of data", sum,
               (size_t)(file + n_file - begin));
}

static const mm3_tensor *find(const mm3_tensor *t, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(t[i].name, name) == 0) return t + i;
    return NULL;
}

/* The last tensor first, white space and a comment. */
static void check_rewritten(const mm3_tensor *t, int n, const uint8_t *data, size_t n_data)
{
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    mm3_arena arena = { 0 };
    mm3_tensor *again;
    char *text;
    uint8_t *file;
    size_t n_file;
    int n_again;
    mm3_status st;
    for (int i = n - 1; i >= 0; i--) {
        json_int_t begin = (const uint8_t *)t[i].data - data;
        json_t *shape = json_array();
        for (int k = 0; k < t[i].n_dims; k++) json_array_append_new(shape, json_integer(t[i].shape[k]));
        json_object_set_new(header, t[i].name,
                            json_pack("{s:[I,I],s:o,s:s}", "data_offsets", begin, begin + (json_int_t)t[i].n_bytes,
                                      "shape", shape, "dtype", mm3_st_dtype_name(t[i].dtype)));
    }
    text = json_dumps(header, JSON_INDENT(1) | JSON_ENSURE_ASCII);
    FUZZ_CHECK(text, "the header cannot be written");
    file = make_file(text, strlen(text), n_data, &n_file);
    st = mm3_safetensors_parse(&again, &n_again, &arena, file, n_file, path);
    FUZZ_CHECK(st == MM3_OK, "the header written again: %s", mm3_last_error());
    check_tensors(again, n_again, file, n_file);
    FUZZ_CHECK(n_again == n, "%d tensors, then %d", n, n_again);
    for (int i = 0; n <= 64 && i < n; i++) {
        const mm3_tensor *u = find(again, n_again, t[i].name);
        FUZZ_CHECK(u && u->dtype == t[i].dtype && u->n_dims == t[i].n_dims && u->n_bytes == t[i].n_bytes &&
                       memcmp(u->shape, t[i].shape, sizeof u->shape) == 0,
                   "%s is another tensor when the header is written again", t[i].name);
        FUZZ_CHECK(!t[i].n_bytes ||
                       (const uint8_t *)u->data - (file + 8 + strlen(text)) == (const uint8_t *)t[i].data - data,
                   "%s is at another place when the header is written again", t[i].name);
    }
    mm3_arena_free(&arena);
    free(file);
    free(text);
    json_decref(header);
}

static mm3_status parse(const uint8_t *file, size_t n_file)
{
    mm3_arena arena = { 0 };
    mm3_tensor *t;
    int n;
    mm3_status st;
    fuzz_forget_error();
    st = mm3_safetensors_parse(&t, &n, &arena, file, n_file, path);
    if (st != MM3_OK) {
        FUZZ_CHECK(!t && n == 0, "tensors in spite of an error");
        fuzz_error(st, path);
    } else {
        uint64_t n_header = 0;
        for (int i = 0; i < 8; i++) n_header |= (uint64_t)file[i] << (8 * i);
        check_tensors(t, n, file, n_file);
        if (fuzz_hash(file, n_file) % 4 == 0) check_rewritten(t, n, file + 8 + n_header, n_file - 8 - (size_t)n_header);
    }
    mm3_arena_free(&arena);
    return st;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    bool is_header = n > 0 && data[0] == '{';
    size_t n_file = n;
    uint8_t *file = is_header ? make_file(data, n, largest_number(data, n), &n_file) : malloc(n + 1);
    long before = alloc_count();
    FUZZ_CHECK(file, "out of memory");
    if (!is_header && n) memcpy(file, data, n);
    if (parse(file, n_file) == MM3_OK) {
        long n_allocations = alloc_count() - before;
        uint8_t *longer = malloc(n_file + 1);
        mm3_arena arena = { 0 };
        mm3_tensor *t;
        int n_tensors;
        FUZZ_CHECK(longer, "out of memory");
        memcpy(longer, file, n_file);
        longer[n_file] = 0;
        FUZZ_CHECK(parse(longer, n_file + 1) == MM3_ERR_FORMAT, "a byte too many is accepted");
        FUZZ_CHECK(parse(longer, n_file - 1) == MM3_ERR_FORMAT, "a byte too few is accepted");
        free(longer);
        if (fuzz_memory_fails(data, n, n_allocations)) {
            fuzz_memory_failed(mm3_safetensors_parse(&t, &n_tensors, &arena, file, n_file, path), MM3_OK);
            mm3_arena_free(&arena);
        }
    }
    free(file);
    return 0;
}
