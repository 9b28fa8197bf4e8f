/* fuzz: model.safetensors.index.json, over two shards that are there: a.safetensors with the tensors x and y, and
 * b.safetensors with y and z. Input: the index.
 * Properties: an index that is accepted lists tensors where they are, each is found, in its file, and nothing else is;
 * an error names the folder. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "fuzz/fuzz.h"
#include "model/model.h"
#include "support/alloc_faults.h"
#include "support/temp_dir.h"

static char *dir;

static void remove_dir(void) { test_temp_dir_remove(&dir); }

static void write_shard(const char *name, const char *first, const char *second)
{
    char header[256], file[300] = { 0 };
    int n = snprintf(header, sizeof header,
                     "{\"%s\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                     "\"%s\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[2,5]}}",
                     first, second);
    file[0] = (char)n;
    memcpy(file + 8, header, (size_t)n);
    test_write_file(dir, name, file, 8 + (size_t)n + 5);
}

static void make_dir(void)
{
    dir = test_temp_dir();
    atexit(remove_dir);
    write_shard("a.safetensors", "x", "y");
    write_shard("b.safetensors", "y", "z");
}

static bool ends_with(const char *s, const char *tail)
{
    return strlen(s) >= strlen(tail) && strcmp(s + strlen(s) - strlen(tail), tail) == 0;
}

static void check(const mm3_shards *shards, const uint8_t *data, size_t n)
{
    json_t *root, *map, *file;
    const char *name;
    FUZZ_CHECK(mm3_json_parse(&root, (const char *)data, n, "index") == MM3_OK, "%s", mm3_last_error());
    map = json_object_get(root, "weight_map");
    FUZZ_CHECK(mm3_shards_count(shards) == (int)json_object_size(map), "%d tensors of %zu", mm3_shards_count(shards),
               json_object_size(map));
    json_object_foreach(map, name, file)
    {
        const mm3_tensor *t = mm3_shards_find(shards, name);
        FUZZ_CHECK(t && strcmp(t->name, name) == 0 && ends_with(t->file, json_string_value(file)),
                   "%s is not where the index says", name);
        FUZZ_CHECK(t >= mm3_shards_at(shards, 0) && t <= mm3_shards_at(shards, mm3_shards_count(shards) - 1),
                   "%s is not among the tensors", name);
    }
    FUZZ_CHECK(mm3_shards_count(shards) + mm3_shards_count_unlisted(shards) <= 4, "more tensors than there are");
    FUZZ_CHECK(!mm3_shards_find(shards, "w") && !mm3_shards_find(shards, ""), "a tensor that is nowhere");
    json_decref(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    mm3_shards *shards;
    long before, n_allocations;
    mm3_status st;
    if (!dir) make_dir();
    test_write_file(dir, "model.safetensors.index.json", data, n);
    before = alloc_count();
    fuzz_forget_error();
    st = mm3_shards_open(&shards, dir);
    n_allocations = alloc_count() - before;
    if (st != MM3_OK) {
        fuzz_error(st, dir);
        FUZZ_CHECK(!shards && (st == MM3_ERR_FORMAT || st == MM3_ERR_IO), "%s", mm3_status_name(st));
    } else {
        check(shards, data, n);
        mm3_shards_close(&shards);
    }
    if (fuzz_memory_fails(data, n, n_allocations)) {
        mm3_status again = mm3_shards_open(&shards, dir);
        fuzz_memory_failed(again, st);
        mm3_shards_close(&shards);
    }
    return 0;
}
