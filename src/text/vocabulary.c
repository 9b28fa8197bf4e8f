/* Ids, their bytes, and the merges: two hash tables, read from "vocab", "merges" and "added_tokens".
 * Knows the GPT-2 byte map (a token's name spells each of its bytes as one printable character), no text processing. */
#include <string.h>

#include "text/tokenizer.h"

/* ---- the byte map -------------------------------------------------------------------------------------------- */

enum { MAX_MAPPED = 256 + 68 }; /* bytes that are not printable in Latin-1 became U+0100 and up, in order */

static void make_byte_map(int16_t byte_of_code[MAX_MAPPED])
{
    int next = 256;
    for (int i = 0; i < MAX_MAPPED; i++) byte_of_code[i] = -1;
    for (int b = 0; b < 256; b++) {
        bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        byte_of_code[printable ? b : next++] = (int16_t)b;
    }
}

/* Append the bytes that the name spells; false if it holds a character that is outside the map. The name comes from
 * a JSON parser and is well-formed UTF-8. */
static bool add_spelled(mm3_buf *out, const int16_t byte_of_code[MAX_MAPPED], const char *name, size_t n)
{
    const unsigned char *p = (const unsigned char *)name;
    char bytes[256];
    size_t n_bytes = 0;
    for (size_t i = 0; i < n;) {
        int want = p[i] < 0x80 ? 1 : mm3__utf8_want(p + i, n - i);
        int32_t code = mm3__utf8_code(p + i, want);
        if (code >= MAX_MAPPED || byte_of_code[code] < 0) return false;
        if (n_bytes == sizeof bytes) {
            mm3_buf_add(out, bytes, n_bytes);
            n_bytes = 0;
        }
        bytes[n_bytes++] = (char)byte_of_code[code];
        i += (size_t)want;
    }
    mm3_buf_add(out, bytes, n_bytes);
    return true;
}

/* ---- tokens by their bytes ------------------------------------------------------------------------------------- */

static uint32_t hash_bytes(const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x100000001B3u;
    return mm3__hash_pair(h);
}

/* The slot of these bytes, or the empty one where they belong. */
static uint32_t slot_of(const mm3__vocabulary *v, const void *bytes, size_t n)
{
    uint32_t i = hash_bytes(bytes, n) & v->slot_mask;
    while (v->slot[i] >= 0) {
        const mm3__token *t = &v->token[v->slot[i]];
        if (t->n_bytes == n && memcmp(v->text.data + t->start, bytes, n) == 0) break;
        i = (i + 1) & v->slot_mask;
    }
    return i;
}

int32_t mm3__vocabulary_find(const mm3__vocabulary *v, const void *bytes, size_t n)
{
    return v->slot[slot_of(v, bytes, n)];
}

static uint32_t table_size(size_t n)
{
    uint32_t size = 64;
    while (size < 2 * n) size *= 2;
    return size;
}

static mm3_status make_tables(mm3__vocabulary *v, size_t n_max, size_t n_merges)
{
    uint32_t n_slots = table_size(n_max), n_pairs = table_size(n_merges);
    v->token = mm3_calloc(n_max, sizeof *v->token);
    v->slot = mm3_malloc(mm3_mul(n_slots, sizeof *v->slot));
    v->merge = mm3_malloc(mm3_mul(n_pairs, sizeof *v->merge));
    v->id_of_rank = mm3_malloc(mm3_mul(n_merges, sizeof *v->id_of_rank));
    MM3_CHECK(v->token && v->slot && v->merge && v->id_of_rank, MM3_ERR_NOMEM, "out of memory for %zu tokens", n_max);
    for (uint32_t i = 0; i < n_slots; i++) v->slot[i] = -1;
    for (uint32_t i = 0; i < n_pairs; i++) v->merge[i].rank = MM3__NO_RANK;
    v->slot_mask = n_slots - 1;
    v->merge_mask = n_pairs - 1;
    return MM3_OK;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

typedef struct reader {
    mm3__vocabulary *v;
    const char *file;
    int64_t n_max; /* ids must be below it: there are no more tokens than that */
    int16_t byte_of_code[MAX_MAPPED];
    mm3_buf scratch;
} reader;

static mm3_status read_id(const reader *r, const json_t *id, const char *name, int32_t *out)
{
    char shown[MM3__SHOWN];
    mm3__show(shown, name, strlen(name));
    MM3_CHECK(json_is_integer(id), MM3_ERR_FORMAT, "%s: the id of token \"%s\" must be a whole number", r->file, shown);
    MM3_CHECK(json_integer_value(id) >= 0 && json_integer_value(id) < r->n_max, MM3_ERR_FORMAT,
              "%s: token \"%s\" has id %lld; with %lld tokens and no holes, ids go from 0 to %lld", r->file, shown,
              (long long)json_integer_value(id), (long long)r->n_max, (long long)r->n_max - 1);
    *out = (int32_t)json_integer_value(id);
    return MM3_OK;
}

static mm3_status read_added(reader *r, const json_t *added, const json_t *vocab)
{
    mm3__vocabulary *v = r->v;
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *entry = json_array_get(added, i), *in_vocab;
        const char *name;
        char what[512], shown[MM3__SHOWN];
        bool control;
        int32_t id;
        snprintf(what, sizeof what, "%.400s: added_tokens[%zu]", r->file, i);
        MM3_CHECK(json_is_object(entry), MM3_ERR_FORMAT, "%s must be an object", what);
        MM3_TRY(mm3_json_string(entry, "content", what, false, NULL, &name));
        MM3_TRY(mm3_json_bool(entry, "special", what, false, false, &control));
        mm3__show(shown, name, strlen(name));
        MM3_CHECK(*name && strlen(name) <= 1024, MM3_ERR_FORMAT, "%s: \"content\" has %zu bytes; expected 1 to 1024",
                  what, strlen(name));
        MM3_CHECK(json_object_get(entry, "id"), MM3_ERR_FORMAT, "%s: \"id\" is missing", what);
        MM3_TRY(read_id(r, json_object_get(entry, "id"), name, &id));
        MM3_CHECK(!v->token[id].exists, MM3_ERR_FORMAT, "%s: token \"%s\" has id %d, which another added token has",
                  r->file, shown, id);
        in_vocab = json_object_get(vocab, name);
        MM3_CHECK(!in_vocab || (json_is_integer(in_vocab) && json_integer_value(in_vocab) == id), MM3_ERR_FORMAT,
                  "%s: added token \"%s\" has id %d, but \"vocab\" gives it another", r->file, shown, id);
        v->token[id] = (mm3__token){ (uint32_t)v->text.n, (uint32_t)strlen(name), true, true, control };
        mm3_buf_puts(&v->text, name);
    }
    return MM3_OK;
}

static mm3_status read_vocab(reader *r, const json_t *vocab)
{
    mm3__vocabulary *v = r->v;
    for (void *at = json_object_iter((json_t *)(uintptr_t)vocab); at;
         at = json_object_iter_next((json_t *)(uintptr_t)vocab, at)) {
        const char *name = json_object_iter_key(at);
        char shown[MM3__SHOWN];
        const mm3__token *t;
        bool spelled, taken;
        int32_t id;
        MM3_TRY(read_id(r, json_object_iter_value(at), name, &id));
        mm3_buf_clear(&r->scratch);
        spelled = add_spelled(&r->scratch, r->byte_of_code, name, strlen(name));
        MM3_CHECK(!r->scratch.failed && !v->text.failed, MM3_ERR_NOMEM, "%s: out of memory", r->file);
        t = &v->token[id];
        taken = t->exists;
        if (t->added) /* the same token, listed in both places */
            taken = t->n_bytes != strlen(name) || memcmp(v->text.data + t->start, name, t->n_bytes) != 0;
        MM3_CHECK(!taken, MM3_ERR_FORMAT, "%s: token \"%s\" has id %d, which another token has", r->file,
                  mm3__show(shown, name, strlen(name)), id);
        if (!t->added) {
            MM3_CHECK(spelled && *name, MM3_ERR_UNSUPPORTED,
                      "%s: the name of token \"%s\" (id %d) is not spelled in the byte map of byte-level BPE", r->file,
                      mm3__show(shown, name, strlen(name)), id);
            v->token[id] = (mm3__token){ (uint32_t)v->text.n, (uint32_t)r->scratch.n, true, false, false };
            mm3_buf_add(&v->text, r->scratch.data, r->scratch.n);
            MM3_CHECK(!v->text.failed, MM3_ERR_NOMEM, "%s: out of memory", r->file);
        } else if (t->control || !spelled || r->scratch.n != t->n_bytes ||
                   memcmp(r->scratch.data, v->text.data + t->start, t->n_bytes) != 0) {
            continue; /* ordinary text must never become this id, so no piece and no merge may find it */
        }
        v->slot[slot_of(v, v->text.data + v->token[id].start, v->token[id].n_bytes)] = id;
    }
    return MM3_OK;
}

/* The two halves of merges[i], not NUL-terminated. */
static mm3_status merge_halves(const reader *r, const json_t *merge, size_t i, const char *half[2], size_t n[2])
{
    if (json_is_string(merge)) {
        const char *space = strchr(json_string_value(merge), ' ');
        MM3_CHECK(space && !strchr(space + 1, ' '), MM3_ERR_FORMAT,
                  "%s: merges[%zu] must be two tokens apart by one space", r->file, i);
        half[0] = json_string_value(merge);
        n[0] = (size_t)(space - half[0]);
        half[1] = space + 1;
        n[1] = strlen(space + 1);
        return MM3_OK;
    }
    MM3_CHECK(json_array_size(merge) == 2 && json_is_string(json_array_get(merge, 0)) &&
                  json_is_string(json_array_get(merge, 1)),
              MM3_ERR_FORMAT, "%s: merges[%zu] must be \"left right\" or [\"left\", \"right\"]", r->file, i);
    for (int k = 0; k < 2; k++) {
        half[k] = json_string_value(json_array_get(merge, (size_t)k));
        n[k] = json_string_length(json_array_get(merge, (size_t)k));
    }
    return MM3_OK;
}

static mm3_status read_merges(reader *r, const json_t *merges)
{
    mm3__vocabulary *v = r->v;
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const char *half[2];
        char shown[MM3__SHOWN];
        size_t n[2], n_left;
        int32_t id[3];
        uint64_t pair;
        uint32_t at;
        MM3_TRY(merge_halves(r, json_array_get(merges, i), i, half, n));
        mm3_buf_clear(&r->scratch);
        for (int k = 0; k < 2; k++) {
            size_t start = r->scratch.n;
            bool spelled = add_spelled(&r->scratch, r->byte_of_code, half[k], n[k]);
            MM3_CHECK(!r->scratch.failed, MM3_ERR_NOMEM, "%s: out of memory", r->file);
            id[k] = spelled && n[k] > 0 ? mm3__vocabulary_find(v, r->scratch.data + start, r->scratch.n - start) : -1;
            MM3_CHECK(id[k] >= 0, MM3_ERR_FORMAT, "%s: merges[%zu]: \"%s\" is no ordinary token of \"vocab\"", r->file,
                      i, mm3__show(shown, half[k], n[k]));
        }
        n_left = v->token[id[0]].n_bytes;
        id[2] = mm3__vocabulary_find(v, r->scratch.data, r->scratch.n);
        MM3_CHECK(id[2] >= 0, MM3_ERR_FORMAT, "%s: merges[%zu]: \"%s\", its result, is no ordinary token of \"vocab\"",
                  r->file, i, mm3__show(shown, r->scratch.data, r->scratch.n));
        pair = (uint64_t)(uint32_t)id[0] << 32 | (uint32_t)id[1];
        for (at = mm3__hash_pair(pair) & v->merge_mask; v->merge[at].rank >= 0; at = (at + 1) & v->merge_mask)
            MM3_CHECK(v->merge[at].pair != pair, MM3_ERR_FORMAT,
                      "%s: merges[%zu] repeats merges[%d] (\"%s\" of %zu + %zu bytes)", r->file, i, v->merge[at].rank,
                      mm3__show(shown, r->scratch.data, r->scratch.n), n_left, r->scratch.n - n_left);
        v->merge[at] = (mm3__merge){ pair, (int32_t)i, id[2] };
        v->id_of_rank[i] = id[2];
    }
    return MM3_OK;
}

/* Every id has a token, every byte has one. */
static mm3_status check_complete(reader *r)
{
    mm3__vocabulary *v = r->v;
    while (v->n < (int)r->n_max && v->token[v->n].exists) v->n++;
    for (int i = v->n; i < (int)r->n_max; i++)
        MM3_CHECK(!v->token[i].exists, MM3_ERR_FORMAT,
                  "%s: no token has id %d, though one has id %d; expected no holes", r->file, v->n, i);
    for (int b = 0; b < 256; b++) {
        unsigned char byte = (unsigned char)b;
        v->id_of_byte[b] = mm3__vocabulary_find(v, &byte, 1);
        MM3_CHECK(v->id_of_byte[b] >= 0, MM3_ERR_UNSUPPORTED,
                  "%s: \"vocab\" has no ordinary token for the byte 0x%02X; byte-level BPE needs all 256", r->file, b);
    }
    return MM3_OK;
}

mm3_status mm3__vocabulary_read(mm3__vocabulary *v, const json_t *vocab, const json_t *merges, const json_t *added,
                                const char *file)
{
    mm3_status st = MM3_OK;
    reader r = { .v = v, .file = file };
    size_t n_max = json_object_size(vocab) + json_array_size(added);
    MM3_CHECK(json_is_object(vocab), MM3_ERR_FORMAT, "%s: model \"vocab\" must be an object", file);
    MM3_CHECK(json_is_array(merges), MM3_ERR_FORMAT, "%s: model \"merges\" must be an array", file);
    MM3_CHECK(!added || json_is_array(added), MM3_ERR_FORMAT, "%s: \"added_tokens\" must be an array", file);
    MM3_CHECK(n_max <= MM3__MAX_IDS && json_array_size(merges) <= MM3__MAX_IDS, MM3_ERR_UNSUPPORTED,
              "%s: %zu tokens, %zu merges; mm3 takes up to %d", file, n_max, json_array_size(merges), MM3__MAX_IDS);
    r.n_max = (int64_t)n_max;
    make_byte_map(r.byte_of_code);
    MM3_TRY(make_tables(v, n_max, json_array_size(merges)));
    MM3_GOTO(read_added(&r, added, vocab));
    MM3_GOTO(read_vocab(&r, vocab));
    MM3_GOTO(check_complete(&r));
    MM3_GOTO(read_merges(&r, merges));
done:
    mm3_buf_free(&r.scratch);
    return st;
}

void mm3__vocabulary_free(mm3__vocabulary *v)
{
    mm3_free(v->token);
    mm3_buf_free(&v->text);
    mm3_free(v->slot);
    mm3_free(v->merge);
    mm3_free(v->id_of_rank);
    *v = (mm3__vocabulary){ 0 };
}
