/* safetensors: one file's header, and the shards of a folder: what is accepted, and each kind of damage. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "model/model.h"
#include "support/alloc_faults.h"
#include "support/checkpoint.h"
#include "support/expect.h"
#include "support/temp_dir.h"

/* ---- one file ---------------------------------------------------------------------------------------------------- */

/* Parse a file made of a length, a header and n_data bytes, in memory of exactly its size. */
static mm3_status parse_raw(uint64_t length, const char *header, size_t n_data, mm3_tensor **t, int *n,
                            mm3_arena *arena)
{
    size_t n_header = strlen(header), n_file = 8 + n_header + n_data;
    unsigned char *file = malloc(n_file);
    mm3_status st;
    for (int i = 0; i < 8; i++) file[i] = (unsigned char)(length >> (8 * i));
    memcpy(file + 8, header, n_header);
    for (size_t i = 0; i < n_data; i++) file[8 + n_header + i] = (unsigned char)i;
    st = mm3_safetensors_parse(t, n, arena, file, n_file, "x.safetensors");
    if (st == MM3_OK) { /* every view lies in the data */
        for (int i = 0; i < *n; i++) {
            const unsigned char *data = (*t)[i].data;
            assert_true(data >= file + 8 + n_header && data + (*t)[i].n_bytes <= file + n_file);
            if ((*t)[i].n_bytes) assert_int_equal(*data, (unsigned char)(data - file - 8 - (ptrdiff_t)n_header));
        }
    }
    free(file);
    return st;
}

static mm3_status parse(const char *header, size_t n_data, mm3_tensor **t, int *n, mm3_arena *arena)
{
    return parse_raw(strlen(header), header, n_data, t, n, arena);
}

#define ENTRY(name, dtype, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static void good_files(void **state)
{
    mm3_arena arena = { 0 };
    mm3_tensor *t;
    int n;
    (void)state;
    EXPECT_OK(parse("{\"__metadata__\":{\"format\":\"pt\"}," ENTRY("a", "F32", "[2,3]", 0, 24) "," ENTRY(
                        "b", "BF16", "[1,1,1,1,1,1,1,2]", 24, 28) "," ENTRY("c", "F8_E4M3", "[]", 28, 29) "}   ",
                    29, &t, &n, &arena));
    assert_int_equal(n, 3);
    assert_string_equal(t[0].name, "a");
    assert_string_equal(t[0].file, "x.safetensors");
    assert_int_equal(t[0].dtype, MM3_ST_F32);
    assert_int_equal(t[0].n_dims, 2);
    assert_int_equal(t[0].shape[1], 3);
    assert_int_equal(t[0].n_bytes, 24);
    assert_int_equal(t[1].n_dims, 8);
    assert_int_equal(t[1].shape[7], 2);
    assert_int_equal((const char *)t[1].data - (const char *)t[0].data, 24);
    assert_int_equal(t[2].n_dims, 0);
    assert_int_equal(t[2].n_bytes, 1);
    /* in any order */
    EXPECT_OK(parse("{" ENTRY("b", "U8", "[2]", 3, 5) "," ENTRY("a", "U8", "[3]", 0, 3) "}", 5, &t, &n, &arena));
    assert_int_equal((const char *)t[0].data - (const char *)t[1].data, 3);
    /* empty tensors at either end and between others; files without tensors */
    EXPECT_OK(
        parse("{" ENTRY("a", "F32", "[0]", 0, 0) "," ENTRY("b", "U8", "[2]", 0, 2) "," ENTRY(
                  "c", "F32", "[7,0,3]", 2, 2) "," ENTRY("d", "U8", "[1]", 2, 3) "," ENTRY("e", "I64", "[0]", 3, 3) "}",
              3, &t, &n, &arena));
    assert_int_equal(n, 5);
    assert_int_equal(t[2].n_bytes, 0);
    EXPECT_OK(parse("{\"__metadata__\":{\"a\":\"b\"}}", 0, &t, &n, &arena));
    assert_int_equal(n, 0);
    EXPECT_OK(parse("{}", 0, &t, &n, &arena));
    assert_int_equal(n, 0);
    mm3_arena_free(&arena);
}

static void every_dtype_has_its_size(void **state)
{
    static const struct {
        const char *name;
        mm3_st_dtype dtype;
        int n_bytes;
    } dtypes[] = {
        { "BOOL", MM3_ST_BOOL, 1 },       { "U8", MM3_ST_U8, 1 },           { "I8", MM3_ST_I8, 1 },
        { "F8_E4M3", MM3_ST_F8_E4M3, 1 }, { "F8_E5M2", MM3_ST_F8_E5M2, 1 }, { "F8_E8M0", MM3_ST_F8_E8M0, 1 },
        { "I16", MM3_ST_I16, 2 },         { "U16", MM3_ST_U16, 2 },         { "F16", MM3_ST_F16, 2 },
        { "BF16", MM3_ST_BF16, 2 },       { "I32", MM3_ST_I32, 4 },         { "U32", MM3_ST_U32, 4 },
        { "F32", MM3_ST_F32, 4 },         { "I64", MM3_ST_I64, 8 },         { "U64", MM3_ST_U64, 8 },
        { "F64", MM3_ST_F64, 8 },
    };
    mm3_arena arena = { 0 };
    mm3_tensor *t;
    char header[200];
    int n;
    (void)state;
    for (int i = 0; i < MM3_COUNT(dtypes); i++) {
        snprintf(header, sizeof header, "{\"a\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[0,%d]}}",
                 dtypes[i].name, 3 * dtypes[i].n_bytes);
        EXPECT_OK(parse(header, (size_t)(3 * dtypes[i].n_bytes), &t, &n, &arena));
        assert_int_equal(t->dtype, dtypes[i].dtype);
        assert_string_equal(mm3_st_dtype_name(t->dtype), dtypes[i].name);
    }
    assert_string_equal(mm3_st_dtype_name((mm3_st_dtype)99), "?");
    mm3_arena_free(&arena);
}

static void bad_lengths(void **state)
{
    static const char ok[] = "{" ENTRY("a", "U8", "[4]", 0, 4) "}";
    const uint64_t n_header = sizeof ok - 1, n_file = 8 + n_header + 4;
    mm3_arena arena = { 0 };
    mm3_tensor *t;
    int n;
    (void)state;
    EXPECT_OK(parse(ok, 4, &t, &n, &arena));
    EXPECT_FAIL(parse_raw(0, ok, 4, &t, &n, &arena), MM3_ERR_FORMAT, "header length 0");
    EXPECT_FAIL(parse_raw(1, ok, 4, &t, &n, &arena), MM3_ERR_FORMAT, "header length 1");
    EXPECT_FAIL(parse_raw(UINT64_C(1) << 63, ok, 4, &t, &n, &arena), MM3_ERR_FORMAT,
                "header length 9223372036854775808 is beyond the limit of 100000000");
    EXPECT_FAIL(parse_raw(UINT64_MAX, ok, 4, &t, &n, &arena), MM3_ERR_FORMAT, "limit");
    EXPECT_FAIL(parse_raw(101000000, ok, 4, &t, &n, &arena), MM3_ERR_FORMAT, "limit");
    EXPECT_FAIL(parse_raw(100000000, ok, 4, &t, &n, &arena), MM3_ERR_FORMAT, "truncated");
    EXPECT_FAIL(parse_raw(n_file + 1, ok, 4, &t, &n, &arena), MM3_ERR_FORMAT, "truncated: its header ends at byte");
    EXPECT_FAIL(parse_raw(n_file - 8 + 1, ok, 4, &t, &n, &arena), MM3_ERR_FORMAT, "truncated");
    EXPECT_FAIL(parse_raw(n_header - 1, ok, 4, &t, &n, &arena), MM3_ERR_FORMAT, "not valid JSON");
    EXPECT_FAIL(parse_raw(n_header + 1, ok, 4, &t, &n, &arena), MM3_ERR_FORMAT, "x.safetensors");
    for (size_t cut = 0; cut < 8; cut++) {
        unsigned char few[8] = { 2 };
        EXPECT_FAIL(mm3_safetensors_parse(&t, &n, &arena, cut ? few : NULL, cut, "x"), MM3_ERR_FORMAT,
                    "no safetensors file");
    }
    mm3_arena_free(&arena);
}

/* D01, D02: the sizes are named, expected and real. */
static void truncated_and_trailing(void **state)
{
    static const char header[] =
        "{" ENTRY("a", "F32", "[1000]", 0, 4000) "," ENTRY("b", "U8", "[1000]", 4000, 5000) "}";
    mm3_arena arena = { 0 };
    mm3_tensor *t;
    char want[100];
    int n;
    (void)state;
    EXPECT_OK(parse(header, 5000, &t, &n, &arena));
    snprintf(want, sizeof want, "truncated: its header describes %zu bytes, the file has %zu", sizeof header + 5007,
             sizeof header + 5006);
    EXPECT_FAIL(parse(header, 4999, &t, &n, &arena), MM3_ERR_FORMAT, want);
    EXPECT_FAIL(parse(header, 904, &t, &n, &arena), MM3_ERR_FORMAT, "truncated");
    EXPECT_FAIL(parse(header, 0, &t, &n, &arena), MM3_ERR_FORMAT, "truncated");
    EXPECT_FAIL(parse(header, 5001, &t, &n, &arena), MM3_ERR_FORMAT, "has 1 bytes after its last tensor");
    EXPECT_FAIL(parse("{}", 1, &t, &n, &arena), MM3_ERR_FORMAT, "has 1 bytes after its last tensor");
    mm3_arena_free(&arena);
}

static void bad_headers(void **state)
{
    static const struct {
        const char *header;
        int n_data;
        const char *part;
    } bad[] = {
        { "  {}", 0, "does not begin with '{'" },
        { "[]", 0, "does not begin with '{'" },
        { "{]", 0, "not valid JSON" },
        { "{\"a\":5}", 0, "tensor a: its entry must be an object" },
        { "{\"__metadata__\":5}", 0, "\"__metadata__\" must be an object" },
        { "{\"__metadata__\":{\"a\":5}}", 0, "\"a\" must be a string" },
        /* duplicate keys, outside and inside */
        { "{" ENTRY("a", "U8", "[1]", 0, 1) "," ENTRY("a", "U8", "[1]", 1, 2) "}", 2, "duplicate" },
        { "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "duplicate" },
        /* members */
        { "{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "\"dtype\" must be a string" },
        { "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "\"shape\" must be a list" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "\"data_offsets\" must be two" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"codec\":\"zip\"}}", 1, "unknown keys" },
        { "{" ENTRY("a", "X9", "[1]", 0, 99999999) "}", 1, "tensor a: unknown dtype \"X9\"" },
        { "{" ENTRY("a", "f32", "[1]", 0, 4) "}", 4, "unknown dtype \"f32\"" },
        /* shapes */
        { "{" ENTRY("a", "U8", "[-1]", 0, 1) "}", 1, "\"shape\"[0] must be a whole number" },
        { "{" ENTRY("a", "U8", "[1.0]", 0, 1) "}", 1, "\"shape\"[0] must be a whole number" },
        { "{" ENTRY("a", "U8", "[\"1\"]", 0, 1) "}", 1, "\"shape\"[0] must be a whole number" },
        { "{" ENTRY("a", "U8", "[1,1,1,1,1,1,1,1,1]", 0, 1) "}", 1, "9 dimensions" },
        { "{" ENTRY("a", "U8", "[4294967296,4294967296]", 0, 0) "}", 0, "overflows" },
        { "{" ENTRY("a", "F32", "[4611686018427387905]", 0, 4) "}", 4, "overflows" },
        { "{" ENTRY("a", "U8", "[9223372036854775808]", 0, 0) "}", 0, "x.safetensors" },
        /* offsets */
        { "{" ENTRY("a", "U8", "[1]", 0, 1.0) "}", 1, "\"data_offsets\" must be two whole numbers" },
        { "{" ENTRY("a", "U8", "[1]", -1, 0) "}", 1, "\"data_offsets\" must be two whole numbers" },
        { "{" ENTRY("a", "U8", "[1]", 1, 0) "}", 1, "end before they begin" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,1]}}", 1, "must be two whole numbers" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "must be two whole numbers" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":{}}}", 1, "must be two whole numbers" },
        { "{" ENTRY("a", "F32", "[2]", 0, 7) "}", 7, "span 7 bytes, but its shape and dtype need 8" },
        { "{" ENTRY("a", "F32", "[0]", 0, 4) "}", 4, "span 4 bytes, but its shape and dtype need 0" },
        { "{" ENTRY("a", "U8", "[9223372036854775807]", 0, 9223372036854775807) "}", 1, "truncated" },
        /* overlaps and holes */
        { "{" ENTRY("a", "U8", "[4]", 0, 4) "," ENTRY("b", "U8", "[4]", 3, 7) "}", 7, "tensors a and b overlap" },
        { "{" ENTRY("a", "U8", "[4]", 0, 4) "," ENTRY("b", "U8", "[4]", 0, 4) "}", 4, "overlap" },
        { "{" ENTRY("a", "U8", "[4]", 0, 4) "," ENTRY("b", "U8", "[1]", 1, 2) "}", 4, "tensors a and b overlap" },
        { "{" ENTRY("a", "U8", "[4]", 0, 4) "," ENTRY("b", "U8", "[0]", 2, 2) "}", 4, "tensors a and b overlap" },
        { "{" ENTRY("a", "U8", "[4]", 0, 4) "," ENTRY("b", "U8", "[4]", 5, 9) "}", 9,
          "a hole of 1 bytes before tensor b" },
        { "{" ENTRY("a", "U8", "[4]", 1, 5) "}", 5, "a hole of 1 bytes before tensor a" },
    };
    mm3_arena arena = { 0 };
    mm3_tensor *t;
    int n;
    (void)state;
    for (int i = 0; i < MM3_COUNT(bad); i++) {
        mm3_status st = parse(bad[i].header, (size_t)bad[i].n_data, &t, &n, &arena);
        if (st != MM3_ERR_FORMAT || !strstr(mm3_last_error(), bad[i].part) ||
            !strstr(mm3_last_error(), "x.safetensors"))
            fail_msg("%s: %s: %s", bad[i].header, mm3_status_name(st), st ? mm3_last_error() : "accepted");
        assert_null(t);
        assert_int_equal(n, 0);
    }
    mm3_arena_free(&arena);
}

/* D12: no size of header is special. */
static void headers_of_any_length(void **state)
{
    mm3_arena arena = { 0 };
    mm3_buf b = { 0 };
    mm3_tensor *t;
    int n;
    (void)state;
    for (size_t length = 99990; length <= 100010; length++) {
        mm3_buf_clear(&b);
        mm3_buf_puts(&b, "{\"__metadata__\":{\"a\":\"");
        while (b.n < length / 2) mm3_buf_puts(&b, "xyzzy");
        mm3_buf_puts(&b, "\"}," ENTRY("a", "U8", "[5]", 0, 5) "}");
        while (b.n < length) mm3_buf_puts(&b, " ");
        EXPECT_OK(parse(b.data, 5, &t, &n, &arena));
        assert_int_equal(n, 1);
    }
    mm3_buf_free(&b);
    mm3_arena_free(&arena);
}

/* Damage any one byte of a header: a status or the same tensors come out, and no view leaves the file. */
static void any_byte_damaged(void **state)
{
    static const char header[] = "{" ENTRY("a", "F32", "[2,3]", 0, 24) "," ENTRY("b", "U8", "[4]", 24, 28) "}";
    static const char put[] = "\"{}[],:0919-.e\\ \x01\xFF";
    char damaged[sizeof header];
    mm3_arena arena = { 0 };
    mm3_tensor *t;
    int n, n_refused = 0;
    (void)state;
    for (size_t at = 0; at < sizeof header - 1; at++) {
        for (size_t k = 0; k < sizeof put - 1; k++) {
            memcpy(damaged, header, sizeof header);
            damaged[at] = put[k];
            n_refused += parse(damaged, 28, &t, &n, &arena) != MM3_OK; /* parse() checks the views */
        }
    }
    assert_true(n_refused > 1000);
    mm3_arena_free(&arena);
}

static void memory_may_run_out(void **state)
{
    static const char header[] = "{" ENTRY("a", "U8", "[4]", 0, 4) "}";
    unsigned char file[8 + sizeof header - 1 + 4] = { sizeof header - 1 };
    mm3_arena arena = { 0 };
    mm3_status st = MM3_ERR_NOMEM;
    mm3_tensor *t;
    int n;
    long k;
    (void)state;
    memcpy(file + 8, header, sizeof header - 1);
    for (k = 1; st != MM3_OK; k++) {
        alloc_fail_at(k);
        st = mm3_safetensors_parse(&t, &n, &arena, file, sizeof file, "x.safetensors");
        alloc_fail_at(0);
        if (st != MM3_OK) EXPECT_FAIL(st, MM3_ERR_NOMEM, "memory");
        mm3_arena_free(&arena);
    }
    assert_true(k > 3);
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

static void write_shard(const char *dir, const char *name, const char *header, size_t n_data)
{
    mm3_buf b = { 0 };
    uint64_t length = strlen(header);
    for (int i = 0; i < 8; i++) {
        char byte = (char)(length >> (8 * i));
        mm3_buf_add(&b, &byte, 1);
    }
    mm3_buf_puts(&b, header);
    for (size_t i = 0; i < n_data; i++) mm3_buf_add(&b, "\x2A", 1);
    test_write_file(dir, name, b.data, b.n);
    mm3_buf_free(&b);
}

static mm3_status open_and_close(const char *dir)
{
    mm3_shards *s;
    mm3_status st = mm3_shards_open(&s, dir);
    assert_true((s == NULL) == (st != MM3_OK));
    mm3_shards_close(&s);
    return st;
}

#define INDEX "model.safetensors.index.json"

/* Two shards with tensors a, b and c. */
static char *two_shards(void)
{
    char *dir = test_temp_dir();
    write_shard(dir, "one.safetensors", "{" ENTRY("a", "U8", "[4]", 0, 4) "," ENTRY("b", "U8", "[2]", 4, 6) "}", 6);
    write_shard(dir, "two.safetensors", "{" ENTRY("c", "F32", "[3]", 0, 12) "}", 12);
    test_write_text(dir, INDEX,
                    "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"one.safetensors\",\"c\":\"two.safetensors\"}}");
    return dir;
}

static void shards_by_index(void **state)
{
    char *dir = two_shards();
    mm3_shards *s;
    const mm3_tensor *t;
    const char *stray;
    (void)state;
    /* D05: strangers in the folder do not count, whatever they hold */
    write_shard(dir, "model.safetensors", "{" ENTRY("a", "F32", "[4]", 0, 16) "," ENTRY("z", "U8", "[1]", 16, 17) "}",
                17);
    test_write_text(dir, "model-00001-of-00031.safetensors", "not a safetensors file");
    EXPECT_OK(mm3_shards_open(&s, dir));
    assert_int_equal(mm3_shards_count(s), 3);
    assert_int_equal(mm3_shards_count_unlisted(s), 0);
    assert_int_equal(mm3_shards_count_strays(s, &stray), 2);
    assert_string_equal(stray, "model-00001-of-00031.safetensors");
    t = mm3_shards_find(s, "a");
    assert_non_null(t);
    assert_int_equal(t->dtype, MM3_ST_U8);
    assert_non_null(strstr(t->file, "/one.safetensors"));
    t = mm3_shards_find(s, "c");
    assert_non_null(t);
    assert_int_equal(((const unsigned char *)t->data)[11], 0x2A);
    assert_null(mm3_shards_find(s, "z"));
    assert_null(mm3_shards_find(s, ""));
    for (int i = 0; i < 3; i++) assert_ptr_equal(mm3_shards_at(s, i), mm3_shards_find(s, mm3_shards_at(s, i)->name));
    mm3_shards_close(&s);
    assert_null(s);
    mm3_shards_close(&s);
    test_temp_dir_remove(&dir);
}

static void single_file(void **state)
{
    char *dir = test_temp_dir();
    mm3_shards *s;
    (void)state;
    EXPECT_FAIL(open_and_close(dir), MM3_ERR_IO, "neither model.safetensors.index.json nor model.safetensors");
    EXPECT_FAIL(open_and_close("no/such/folder"), MM3_ERR_IO, "no/such/folder");
    write_shard(dir, "model.safetensors", "{" ENTRY("a", "U8", "[4]", 0, 4) "}", 4);
    EXPECT_OK(mm3_shards_open(&s, dir));
    assert_int_equal(mm3_shards_count(s), 1);
    assert_non_null(mm3_shards_find(s, "a"));
    mm3_shards_close(&s);
    write_shard(dir, "model.safetensors", "{}", 0);
    EXPECT_OK(mm3_shards_open(&s, dir));
    assert_int_equal(mm3_shards_count(s), 0);
    assert_null(mm3_shards_find(s, "a"));
    mm3_shards_close(&s);
    test_temp_dir_remove(&dir);
}

/* D03, D04: what the index says and what the shards hold. */
static void index_and_shards_differ(void **state)
{
    char *dir = two_shards(), *path = test_path(dir, "two.safetensors");
    mm3_shards *s;
    (void)state;
    test_write_text(dir, INDEX, "{\"weight_map\":{\"a\":\"one.safetensors\",\"c\":\"two.safetensors\"}}");
    EXPECT_OK(mm3_shards_open(&s, dir)); /* b exists and is not listed */
    assert_int_equal(mm3_shards_count(s), 2);
    assert_int_equal(mm3_shards_count_unlisted(s), 1);
    assert_null(mm3_shards_find(s, "b"));
    assert_non_null(mm3_shards_find_unlisted(s, "b"));
    assert_null(mm3_shards_find_unlisted(s, "a"));
    mm3_shards_close(&s);
    test_write_text(dir, INDEX,
                    "{\"weight_map\":{\"a\":\"one.safetensors\",\"q\":\"one.safetensors\",\"c\":\"two.safetensors\"}}");
    EXPECT_FAIL(open_and_close(dir), MM3_ERR_FORMAT, "tensor q is not in one.safetensors");
    test_write_text(dir, INDEX, "{\"weight_map\":{\"a\":\"two.safetensors\",\"b\":\"one.safetensors\"}}");
    EXPECT_FAIL(open_and_close(dir), MM3_ERR_FORMAT, "tensor a is not in two.safetensors");
    test_write_text(
        dir, INDEX,
        "{\"weight_map\":{\"a\":\"one.safetensors\",\"x\":\"three.safetensors\",\"y\":\"four.safetensors\"}}");
    EXPECT_FAIL(open_and_close(dir), MM3_ERR_IO, "2 of 3 shards that are missing: three.safetensors, four.safetensors");
    assert_int_equal(unlink(path), 0);
    test_write_text(dir, INDEX, "{\"weight_map\":{\"a\":\"one.safetensors\",\"c\":\"two.safetensors\"}}");
    EXPECT_FAIL(open_and_close(dir), MM3_ERR_IO, "missing: two.safetensors");
    assert_int_equal(mkdir(path, 0700), 0);
    EXPECT_FAIL(open_and_close(dir), MM3_ERR_IO, "not a regular file");
    free(path);
    test_temp_dir_remove(&dir);
}

static void many_missing_shards_are_counted(void **state)
{
    char *dir = test_temp_dir();
    mm3_buf b = { 0 };
    (void)state;
    mm3_buf_puts(&b, "{\"weight_map\":{\"t\":\"s.safetensors\"");
    for (int i = 0; i < 31; i++) mm3_buf_printf(&b, ",\"t%d\":\"s%d.safetensors\"", i, i);
    mm3_buf_puts(&b, "}}");
    test_write_text(dir, INDEX, b.data);
    EXPECT_FAIL(open_and_close(dir), MM3_ERR_IO, "32 of 32 shards that are missing: s.safetensors, s0.safetensors");
    assert_non_null(strstr(mm3_last_error(), " and 24 more"));
    mm3_buf_free(&b);
    test_temp_dir_remove(&dir);
}

static void bad_indexes(void **state)
{
    static const char *const bad[][2] = {
        { "", "not valid JSON" },
        { "[]", "\"weight_map\" must be an object" },
        { "{}", "\"weight_map\" must be an object" },
        { "{\"weight_map\":{}}", "\"weight_map\" must be an object" },
        { "{\"weight_map\":[\"one.safetensors\"]}", "\"weight_map\" must be an object" },
        { "{\"weight_map\":{\"a\":5}}", "a must be the name of a file" },
        { "{\"weight_map\":{\"a\":\"\"}}", "expected a file of the same folder" },
        { "{\"weight_map\":{\"a\":\".\"}}", "expected a file of the same folder" },
        { "{\"weight_map\":{\"a\":\"..\"}}", "expected a file of the same folder" },
        { "{\"weight_map\":{\"a\":\"../one.safetensors\"}}", "expected a file of the same folder" },
        { "{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "expected a file of the same folder" },
        { "{\"weight_map\":{\"a\":\"sub/one.safetensors\"}}", "expected a file of the same folder" },
        { "{\"weight_map\":{\"a\":\"one.safetensors\\u0000\"}}", "not valid JSON" },
        { "{\"weight_map\":{\"a\":\"one.safetensors\",\"a\":\"two.safetensors\"}}", "duplicate" },
    };
    char *dir = two_shards();
    (void)state;
    for (int i = 0; i < MM3_COUNT(bad); i++) {
        test_write_text(dir, INDEX, bad[i][0]);
        EXPECT_FAIL(open_and_close(dir), MM3_ERR_FORMAT, bad[i][1]);
        assert_non_null(strstr(mm3_last_error(), INDEX));
    }
    test_temp_dir_remove(&dir);
}

/* D01: cut a byte, a page and nearly all off one shard of a real folder. */
static void cut_shards(void **state)
{
    test_checkpoint c = test_checkpoint_small;
    char *dir = test_temp_dir(), *path = test_path(dir, "model-00002-of-00003.safetensors"), want[120];
    struct stat s;
    (void)state;
    c.shards = 3;
    test_checkpoint_write(dir, &c);
    EXPECT_OK(open_and_close(dir));
    assert_int_equal(stat(path, &s), 0);
    for (int i = 0; i < 3; i++) {
        off_t cut = i == 0 ? 1 : i == 1 ? 4096 : s.st_size - 8;
        assert_int_equal(truncate(path, s.st_size - cut), 0);
        snprintf(want, sizeof want, "the file has %lld", (long long)(s.st_size - cut));
        EXPECT_FAIL(open_and_close(dir), MM3_ERR_FORMAT, want);
        assert_non_null(strstr(mm3_last_error(), "model-00002-of-00003.safetensors is truncated"));
        if (i < 2) {
            snprintf(want, sizeof want, "describes %lld bytes", (long long)s.st_size);
            assert_non_null(strstr(mm3_last_error(), want));
        }
        assert_int_equal(truncate(path, s.st_size), 0); /* the header is whole up to the last cut */
    }
    assert_int_equal(truncate(path, 0), 0);
    EXPECT_FAIL(open_and_close(dir), MM3_ERR_FORMAT, "has 0 bytes");
    free(path);
    test_temp_dir_remove(&dir);
}

static void shards_survive_lack_of_memory(void **state)
{
    char *dir = two_shards();
    mm3_shards *s;
    long n, k = 0;
    mm3_status st;
    (void)state;
    alloc_fail_at(0);
    EXPECT_OK(open_and_close(dir));
    n = alloc_count();
    assert_true(n > 5);
    for (k = 1; k <= n; k++) {
        alloc_fail_at(k);
        st = mm3_shards_open(&s, dir);
        alloc_fail_at(0);
        if (st != MM3_ERR_NOMEM) fail_msg("allocation %ld: %s", k, mm3_status_name(st));
        assert_null(s);
    }
    test_temp_dir_remove(&dir);
}

/* Processor time, so that other work on the machine does not count. */
static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Time of opening `n` tensors of one byte in one file and finding each by name: the best of five. */
static double time_of(int n)
{
    char *dir = test_temp_dir();
    mm3_buf b = { 0 };
    mm3_shards *s;
    double start, best = 1e9;
    mm3_buf_puts(&b, "{");
    for (int i = 0; i < n; i++)
        mm3_buf_printf(&b,
                       "%s\"language_model.model.layers.%d.weight\":{\"dtype\":\"U8\",\"shape\":[1],"
                       "\"data_offsets\":[%d,%d]}",
                       i ? "," : "", i, n - 1 - i, n - i);
    mm3_buf_puts(&b, "}");
    write_shard(dir, "model.safetensors", b.data, (size_t)n);
    for (int r = 0; r < 5; r++) {
        start = cpu_s();
        EXPECT_OK(mm3_shards_open(&s, dir));
        for (int i = 0; i < n; i++) {
            const mm3_tensor *t = mm3_shards_at(s, i);
            assert_ptr_equal(mm3_shards_find(s, t->name), t);
        }
        best = MM3_MIN(best, cpu_s() - start);
        assert_int_equal(mm3_shards_count(s), n);
        mm3_shards_close(&s);
    }
    mm3_buf_free(&b);
    test_temp_dir_remove(&dir);
    return best;
}

/* Eight times the tensors take about eight times the time; a quadratic step would take 64 times. */
static void time_grows_with_the_number_of_tensors(void **state)
{
    double few = time_of(10000), many = time_of(80000);
    (void)state;
    print_message("10000 tensors %.1f ms, 80000 tensors %.1f ms\n", 1e3 * few, 1e3 * many);
    assert_true(many < 32 * few);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_files),
        cmocka_unit_test(every_dtype_has_its_size),
        cmocka_unit_test(bad_lengths),
        cmocka_unit_test(truncated_and_trailing),
        cmocka_unit_test(bad_headers),
        cmocka_unit_test(headers_of_any_length),
        cmocka_unit_test(any_byte_damaged),
        cmocka_unit_test(memory_may_run_out),
        cmocka_unit_test(shards_by_index),
        cmocka_unit_test(single_file),
        cmocka_unit_test(index_and_shards_differ),
        cmocka_unit_test(many_missing_shards_are_counted),
        cmocka_unit_test(bad_indexes),
        cmocka_unit_test(cut_shards),
        cmocka_unit_test(shards_survive_lack_of_memory),
        cmocka_unit_test(time_grows_with_the_number_of_tensors),
    };
    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
