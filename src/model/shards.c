/* shards: all tensors of a checkpoint folder under one look-up. Owns the maps and the name table.
 * Knows no model. Read next: model.c. The index decides: what it does not list is out of reach, whatever other files
 * the folder holds, so that a stray or stale file cannot mix in. */
#include <stdio.h>
#include <string.h>

#include "model/internal.h"

static const char index_name[] = "model.safetensors.index.json";
static const char single_name[] = "model.safetensors";

struct mm3_shards {
    mm3_arena arena; /* owned: names, tensors, table */
    mm3_file **file; /* owned, in the arena: n_files maps */
    int n_files;
    mm3_tensor *tensor; /* [n] the listed ones, then [n_unlisted] */
    int n, n_unlisted;
    int n_strays;      /* *.safetensors of the folder that the index does not name */
    const char *stray; /* in the arena: the first of these by name; NULL: none */
    int *slot_of_hash; /* [n_slots] 1 + tensor, 0: free; linear probing, at most half full */
    size_t n_slots;    /* a power of two */
};

/* One file's parsed header, before the listed tensors are gathered. */
typedef struct part {
    const char *name; /* borrowed from the index */
    mm3_tensor *tensor;
    int n;
} part;

/* ---- look-up ----------------------------------------------------------------------------------------------------- */

static size_t hash(const char *s)
{
    uint64_t h = UINT64_C(14695981039346656037); /* FNV-1a */
    for (; *s; s++) h = (h ^ (unsigned char)*s) * UINT64_C(1099511628211);
    return (size_t)(h ^ (h >> 32));
}

/* The slot that holds `name`, or the free one where it belongs. */
static size_t slot_of(const mm3_shards *s, const char *name)
{
    size_t i = hash(name) & (s->n_slots - 1);
    while (s->slot_of_hash[i] && strcmp(s->tensor[s->slot_of_hash[i] - 1].name, name) != 0)
        i = (i + 1) & (s->n_slots - 1);
    return i;
}

static mm3_status build_table(mm3_shards *s, const char *dir)
{
    s->n_slots = 16;
    while (s->n_slots < 2 * (size_t)s->n) s->n_slots *= 2;
    s->slot_of_hash = mm3_arena_alloc(&s->arena, s->n_slots * sizeof *s->slot_of_hash);
    MM3_CHECK(s->slot_of_hash, MM3_ERR_NOMEM, "%s: out of memory for %d tensors", dir, s->n);
    for (int i = 0; i < s->n; i++) s->slot_of_hash[slot_of(s, s->tensor[i].name)] = i + 1;
    return MM3_OK;
}

const mm3_tensor *mm3_shards_find(const mm3_shards *shards, const char *name)
{
    int i = shards->slot_of_hash[slot_of(shards, name)];
    return i ? shards->tensor + i - 1 : NULL;
}

int mm3_shards_count(const mm3_shards *shards) { return shards->n; }
const mm3_tensor *mm3_shards_at(const mm3_shards *shards, int i) { return shards->tensor + i; }
int mm3_shards_count_unlisted(const mm3_shards *shards) { return shards->n_unlisted; }
int mm3_shards_count_strays(const mm3_shards *shards, const char **first)
{
    *first = shards->stray;
    return shards->n_strays;
}

const mm3_tensor *mm3_shards_find_unlisted(const mm3_shards *shards, const char *name)
{
    for (int i = shards->n; i < shards->n + shards->n_unlisted; i++)
        if (strcmp(shards->tensor[i].name, name) == 0) return shards->tensor + i;
    return NULL;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static mm3_status open_file(mm3_shards *s, const char *dir, part *p)
{
    mm3_status st;
    mm3_file *f = NULL;
    char *path = mm3_path_join(dir, p->name);
    MM3_CHECK(path, MM3_ERR_NOMEM, "%s: out of memory", dir);
    st = mm3_file_open(&f, path);
    mm3_free(path);
    if (st != MM3_OK) return st;
    s->file[s->n_files++] = f; /* owned from here on, whatever the header says */
    return mm3_safetensors_parse(&p->tensor, &p->n, &s->arena, f->data, f->n_bytes, f->path);
}

/* Is the tensor of this file the one that the index means? */
static bool is_listed(const json_t *map, const part *p, int i)
{
    const char *file = map ? json_string_value(json_object_get(map, p->tensor[i].name)) : p->name;
    return file && strcmp(file, p->name) == 0;
}

/* Copy the parts' tensors into one array, listed ones first. map NULL: all are listed. */
static mm3_status gather(mm3_shards *s, const char *dir, const part *parts, int n_parts, const json_t *map)
{
    size_t n = 0;
    for (int p = 0; p < n_parts; p++) n += (size_t)parts[p].n;
    MM3_CHECK(n < INT32_MAX / 4, MM3_ERR_UNSUPPORTED, "%s: %zu tensors are too many", dir, n);
    s->tensor = mm3_arena_alloc(&s->arena, mm3_mul(n, sizeof *s->tensor));
    MM3_CHECK(s->tensor, MM3_ERR_NOMEM, "%s: out of memory for %zu tensors", dir, n);
    for (int p = 0; p < n_parts; p++) {
        for (int i = 0; i < parts[p].n; i++) {
            if (is_listed(map, parts + p, i))
                s->tensor[s->n++] = parts[p].tensor[i];
            else
                s->tensor[n - 1 - (size_t)s->n_unlisted++] = parts[p].tensor[i];
        }
    }
    return build_table(s, dir);
}

static mm3_status alloc_parts(mm3_shards *s, const char *dir, size_t n, part **parts)
{
    s->file = mm3_arena_alloc(&s->arena, mm3_mul(n, sizeof(mm3_file *)));
    *parts = mm3_arena_alloc(&s->arena, mm3_mul(n, sizeof **parts));
    MM3_CHECK(s->file && *parts && n <= INT32_MAX, MM3_ERR_NOMEM, "%s: out of memory for %zu shards", dir, n);
    return MM3_OK;
}

static mm3_status open_single(mm3_shards *s, const char *dir)
{
    part *p;
    MM3_TRY(alloc_parts(s, dir, 1, &p));
    p->name = single_name;
    MM3_TRY(open_file(s, dir, p));
    return gather(s, dir, p, 1, NULL);
}

/* ---- index ------------------------------------------------------------------------------------------------------- */

/* Every file the map names, once, in the order of the map; file names that leave the folder are refused. */
static mm3_status list_files(json_t *files, const json_t *map, const char *index)
{
    const char *tensor;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)map, tensor, value)
    {
        const char *name = json_string_value(value);
        MM3_CHECK(name, MM3_ERR_FORMAT, "%s: \"weight_map\": %s must be the name of a file", index, tensor);
        MM3_CHECK(*name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0, MM3_ERR_FORMAT,
                  "%s: tensor %s is in \"%s\"; expected a file of the same folder", index, tensor, name);
        if (json_object_get(files, name)) continue;
        MM3_CHECK(json_object_set_new(files, name, json_true()) == 0, MM3_ERR_NOMEM, "%s: out of memory", index);
    }
    return MM3_OK;
}

typedef struct stray_count {
    mm3_shards *s;
    const json_t *files;
    bool failed;
} stray_count;

static bool count_stray(void *user, const char *name)
{
    static const char suffix[] = ".safetensors";
    stray_count *c = user;
    size_t n = strlen(name);
    char *copy;
    if (n < sizeof suffix || strcmp(name + n - (sizeof suffix - 1), suffix) != 0) return true;
    if (json_object_get(c->files, name)) return true;
    c->s->n_strays++;
    if (c->s->stray && strcmp(c->s->stray, name) < 0) return true;
    copy = mm3_arena_alloc(&c->s->arena, n + 1);
    c->failed = !copy;
    if (copy) memcpy(copy, name, n + 1);
    c->s->stray = copy;
    return !c->failed;
}

/* The folder's other model files: not opened, counted for a note. */
static mm3_status count_strays(mm3_shards *s, const json_t *files, const char *dir)
{
    stray_count c = { .s = s, .files = files };
    mm3_dir_each(dir, count_stray, &c);
    MM3_CHECK(!c.failed, MM3_ERR_NOMEM, "%s: out of memory", dir);
    return MM3_OK;
}

/* Name all missing files in one error: the user copies them in one go. */
static mm3_status check_present(json_t *files, const char *dir, const char *index)
{
    enum { MAX_NAMED = 8 };
    mm3_status st = MM3_OK;
    mm3_buf missing = { 0 };
    int n_missing = 0;
    const char *name;
    json_t *value;
    json_object_foreach(files, name, value)
    {
        char *path = mm3_path_join(dir, name);
        bool present = path && mm3_path_exists(path);
        mm3_free(path);
        if (!path) {
            st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "%s: out of memory", dir);
            goto done;
        }
        if (present) continue;
        if (n_missing < MAX_NAMED) mm3_buf_printf(&missing, "%s%s", n_missing ? ", " : "", name);
        n_missing++;
    }
    if (n_missing > MAX_NAMED) mm3_buf_printf(&missing, " and %d more", n_missing - MAX_NAMED);
    if (n_missing && missing.failed)
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "%s: out of memory", dir);
    else if (n_missing)
        st = mm3_fail(MM3_ERR_IO, MM3_HERE, "%s names %d of %zu shards that are missing: %s", index, n_missing,
                      json_object_size(files), missing.data);
done:
    mm3_buf_free(&missing);
    return st;
}

/* Every name of the map must have been found in the file that the map gives. */
static mm3_status check_complete(const mm3_shards *s, const json_t *map, const char *index)
{
    const char *name;
    json_t *value;
    if (json_object_size(map) == (size_t)s->n) return MM3_OK; /* the listed are names of the map, each once */
    json_object_foreach((json_t *)(uintptr_t)map, name, value)
        MM3_CHECK(mm3_shards_find(s, name), MM3_ERR_FORMAT,
                  "%s: tensor %s is not in %s, where the index says it is (%zu of %zu tensors are missing)", index,
                  name, json_string_value(value), json_object_size(map) - (size_t)s->n, json_object_size(map));
    return MM3_OK;
}

static mm3_status open_by_index(mm3_shards *s, const char *dir, const char *index)
{
    mm3_status st = MM3_OK;
    json_t *root = NULL, *files = json_object(), *value;
    const json_t *map;
    const char *name;
    part *parts = NULL;
    int n_parts = 0;
    if (!files) {
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "%s: out of memory", index);
        goto done;
    }
    MM3_GOTO(mm3_json_load(&root, index));
    map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0) {
        st = mm3_fail(MM3_ERR_FORMAT, MM3_HERE, "%s: \"weight_map\" must be an object with a file per tensor", index);
        goto done;
    }
    MM3_GOTO(list_files(files, map, index));
    MM3_GOTO(check_present(files, dir, index));
    MM3_GOTO(count_strays(s, files, dir));
    MM3_GOTO(alloc_parts(s, dir, json_object_size(files), &parts));
    json_object_foreach(files, name, value)
    {
        parts[n_parts].name = name;
        MM3_GOTO(open_file(s, dir, parts + n_parts));
        n_parts++;
    }
    MM3_GOTO(gather(s, dir, parts, n_parts, map));
    st = check_complete(s, map, index);
done:
    json_decref(files);
    json_decref(root);
    return st;
}

mm3_status mm3_shards_open(mm3_shards **out, const char *dir)
{
    mm3_status st = MM3_OK;
    mm3_shards *s = mm3_calloc(1, sizeof *s);
    char *index = mm3_path_join(dir, index_name), *single = mm3_path_join(dir, single_name);
    *out = NULL;
    if (!s || !index || !single) {
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "%s: out of memory", dir);
        goto done;
    }
    if (mm3_path_exists(index))
        st = open_by_index(s, dir, index);
    else if (mm3_path_exists(single))
        st = open_single(s, dir);
    else
        st = mm3_fail(MM3_ERR_IO, MM3_HERE, "%s has no weights: neither %s nor %s is there", dir, index_name,
                      single_name);
    if (st != MM3_OK) goto done;
    *out = s;
    s = NULL;
done:
    mm3_free(index);
    mm3_free(single);
    mm3_shards_close(&s);
    return st;
}

void mm3_shards_close(mm3_shards **shards)
{
    mm3_shards *s = shards ? *shards : NULL;
    if (!s) return;
    for (int i = 0; i < s->n_files; i++) mm3_file_close(&s->file[i]);
    mm3_arena_free(&s->arena);
    mm3_free(s);
    *shards = NULL;
}
