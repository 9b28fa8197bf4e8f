/* Ids, their bytes, and the merges: two hash tables, read from "vocab", "merges" and "added_tokens".
 * Knows the GPT-2 byte map (a token's name spells each of its bytes as one printable character), no text processing. */
#include <string.h>

#include "text/tokenizer.h"

/* ---- the byte map ------------------------------------------------------------------------------------------------ */

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

/* ---- tokens by their bytes --------------------------------------------------------------------------------------- */

static uint32_t hash_bytes(const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x100000001B3u;
    return mm3__hash_pair(h);
}

static bool has_bytes(const mm3__vocabulary *v, int32_t id, const void *bytes, size_t n)
{
    const mm3__token *t = &v->token[id];
    return t->n_bytes == n && memcmp(v->text.data + t->start, bytes, n) == 0;
}

/* The slot of these bytes, or the empty one where they belong. */
static mm3__slot *slot_of(const mm3__vocabulary *v, uint32_t hash, const void *bytes, size_t n)
{
    mm3__slot *s = &v->slot[hash & v->slot_mask];
    while (s->id >= 0 && !(s->hash == hash && has_bytes(v, s->id, bytes, n)))
        s = s == &v->slot[v->slot_mask] ? v->slot : s + 1;
    return s;
}

int32_t mm3__vocabulary_find(const mm3__vocabulary *v, const void *bytes, size_t n)
{
    return slot_of(v, hash_bytes(bytes, n), bytes, n)->id;
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
    for (uint32_t i = 0; i < n_slots; i++) v->slot[i] = (mm3__slot){ 0, -1 };
    for (uint32_t i = 0; i < n_pairs; i++) v->merge[i].rank = MM3__NO_RANK;
    v->slot_mask = n_slots - 1;
    v->merge_mask = n_pairs - 1;
    return MM3_OK;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef struct reader {
    mm3__vocabulary *v;
    const char *file;
    int64_t n_max; /* ids must be below it: there are no more tokens than that */
    int16_t byte_of_code[MAX_MAPPED];
    mm3_buf scratch, string[2];
} reader;

static mm3_status check_id(const reader *r, int64_t id, const char *name, size_t n)
{
    char shown[MM3__SHOWN];
    MM3_CHECK(id >= 0 && id < r->n_max, MM3_ERR_FORMAT,
              "%s: token \"%s\" has id %lld; with %lld tokens and no holes, ids go from 0 to %lld", r->file,
              mm3__show(shown, name, n), (long long)id, (long long)r->n_max, (long long)r->n_max - 1);
    return MM3_OK;
}

static mm3_status read_added(reader *r, const json_t *added)
{
    mm3__vocabulary *v = r->v;
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *entry = json_array_get(added, i);
        const char *name;
        char what[512], shown[MM3__SHOWN];
        bool control;
        int64_t id;
        snprintf(what, sizeof what, "%.400s: added_tokens[%zu]", r->file, i);
        MM3_CHECK(json_is_object(entry), MM3_ERR_FORMAT, "%s must be an object", what);
        MM3_TRY(mm3_json_string(entry, "content", what, false, NULL, &name));
        MM3_TRY(mm3_json_bool(entry, "special", what, false, false, &control));
        MM3_TRY(mm3_json_int(entry, "id", what, 0, INT64_MAX, false, 0, &id));
        MM3_CHECK(*name && strlen(name) <= 1024, MM3_ERR_FORMAT, "%s: \"content\" has %zu bytes; expected 1 to 1024",
                  what, strlen(name));
        MM3_TRY(check_id(r, id, name, strlen(name)));
        MM3_CHECK(!v->token[id].exists, MM3_ERR_FORMAT, "%s: token \"%s\" has id %lld, which another added token has",
                  r->file, mm3__show(shown, name, strlen(name)), (long long)id);
        v->token[id] = (mm3__token){ (uint32_t)v->text.n, (uint32_t)strlen(name), true, true, control };
        mm3_buf_puts(&v->text, name);
    }
    return MM3_OK;
}

/* One member of "vocab". */
static mm3_status add_token(reader *r, const char *name, size_t n, int32_t id)
{
    mm3__vocabulary *v = r->v;
    mm3__token *t = &v->token[id];
    char shown[MM3__SHOWN];
    bool spelled;
    uint32_t hash;
    mm3__slot *slot;
    mm3_buf_clear(&r->scratch);
    spelled = n > 0 && add_spelled(&r->scratch, r->byte_of_code, name, n);
    MM3_CHECK(!r->scratch.failed, MM3_ERR_NOMEM, "%s: out of memory", r->file);
    if (t->added) { /* the same token, listed in both places */
        MM3_CHECK(t->n_bytes == n && memcmp(v->text.data + t->start, name, n) == 0, MM3_ERR_FORMAT,
                  "%s: token \"%s\" has id %d, which an added token with another text has", r->file,
                  mm3__show(shown, name, n), id);
        /* Ordinary text must never become a control token, nor a token that decodes to other bytes. */
        if (t->control || !spelled || r->scratch.n != n || memcmp(r->scratch.data, name, n) != 0) return MM3_OK;
    } else {
        MM3_CHECK(!t->exists, MM3_ERR_FORMAT, "%s: token \"%s\" has id %d, which another token has", r->file,
                  mm3__show(shown, name, n), id);
        MM3_CHECK(spelled, MM3_ERR_UNSUPPORTED,
                  "%s: the name of token \"%s\" (id %d) is not spelled in the byte map of byte-level BPE", r->file,
                  mm3__show(shown, name, n), id);
        *t = (mm3__token){ (uint32_t)v->text.n, (uint32_t)r->scratch.n, true, false, false };
        mm3_buf_add(&v->text, r->scratch.data, r->scratch.n);
        MM3_CHECK(!v->text.failed, MM3_ERR_NOMEM, "%s: out of memory", r->file);
    }
    hash = hash_bytes(r->scratch.data, r->scratch.n);
    slot = slot_of(v, hash, r->scratch.data, r->scratch.n);
    MM3_CHECK(slot->id < 0, MM3_ERR_FORMAT, "%s: token \"%s\" has two ids, %d and %d", r->file,
              mm3__show(shown, name, n), slot->id, id);
    *slot = (mm3__slot){ hash, id };
    return MM3_OK;
}

static mm3_status read_vocab(reader *r, mm3__scan *s)
{
    if (mm3__scan_char(s, '{') && mm3__scan_char(s, '}')) return MM3_OK;
    do {
        const char *name;
        char shown[MM3__SHOWN];
        size_t n;
        int64_t id;
        MM3_TRY(mm3__scan_string(s, &r->string[0], &name, &n));
        if (!mm3__scan_char(s, ':')) return mm3__scan_fail(s, "':'");
        if (mm3__scan_int(s, &id) != MM3_OK)
            return mm3_fail(MM3_ERR_FORMAT, MM3_HERE, "%s: the id of token \"%s\" must be a whole number", r->file,
                            mm3__show(shown, name, n));
        MM3_TRY(check_id(r, id, name, n));
        MM3_TRY(add_token(r, name, n, (int32_t)id));
    } while (mm3__scan_char(s, ','));
    return mm3__scan_char(s, '}') ? MM3_OK : mm3__scan_fail(s, "',' or '}' in \"vocab\"");
}

/* The two halves of merges[i], not NUL-terminated. */
static mm3_status read_halves(reader *r, mm3__scan *s, size_t i, const char *half[2], size_t n[2])
{
    if (mm3__scan_char(s, '[')) {
        MM3_TRY(mm3__scan_string(s, &r->string[0], &half[0], &n[0]));
        if (!mm3__scan_char(s, ',')) return mm3__scan_fail(s, "a merge of two tokens");
        MM3_TRY(mm3__scan_string(s, &r->string[1], &half[1], &n[1]));
        return mm3__scan_char(s, ']') ? MM3_OK : mm3__scan_fail(s, "the end of a merge of two tokens");
    }
    if (mm3__scan_is(s, '"')) {
        const char *space;
        MM3_TRY(mm3__scan_string(s, &r->string[0], &half[0], &n[0]));
        space = memchr(half[0], ' ', n[0]);
        half[1] = space ? space + 1 : half[0];
        n[1] = n[0] - (size_t)(half[1] - half[0]);
        MM3_CHECK(space && !memchr(half[1], ' ', n[1]), MM3_ERR_FORMAT,
                  "%s: merges[%zu] must be two tokens apart by one space", r->file, i);
        n[0] -= n[1] + 1;
        return MM3_OK;
    }
    return mm3_fail(MM3_ERR_FORMAT, MM3_HERE, "%s: merges[%zu] must be \"left right\" or [\"left\", \"right\"]",
                    r->file, i);
}

static mm3_status add_merge(reader *r, size_t i, const char *const half[2], const size_t n[2])
{
    mm3__vocabulary *v = r->v;
    char shown[MM3__SHOWN];
    int32_t id[3];
    uint64_t pair;
    uint32_t at;
    mm3_buf_clear(&r->scratch);
    for (int k = 0; k < 2; k++) {
        size_t start = r->scratch.n;
        bool spelled = n[k] > 0 && add_spelled(&r->scratch, r->byte_of_code, half[k], n[k]);
        MM3_CHECK(!r->scratch.failed, MM3_ERR_NOMEM, "%s: out of memory", r->file);
        id[k] = spelled ? mm3__vocabulary_find(v, r->scratch.data + start, r->scratch.n - start) : -1;
        MM3_CHECK(id[k] >= 0, MM3_ERR_FORMAT, "%s: merges[%zu]: \"%s\" is no ordinary token of \"vocab\"", r->file, i,
                  mm3__show(shown, half[k], n[k]));
    }
    /* Results mostly have ids in the order of the merges; a right guess saves a third of the look-ups. */
    id[2] = i > 0 ? v->id_of_rank[i - 1] + 1 : 0;
    if (id[2] >= v->n || v->token[id[2]].added || !has_bytes(v, id[2], r->scratch.data, r->scratch.n))
        id[2] = mm3__vocabulary_find(v, r->scratch.data, r->scratch.n);
    MM3_CHECK(id[2] >= 0, MM3_ERR_FORMAT, "%s: merges[%zu]: its result, \"%s\", is no ordinary token of \"vocab\"",
              r->file, i, mm3__show(shown, r->scratch.data, r->scratch.n));
    pair = (uint64_t)(uint32_t)id[0] << 32 | (uint32_t)id[1];
    for (at = mm3__hash_pair(pair) & v->merge_mask; v->merge[at].rank >= 0; at = (at + 1) & v->merge_mask)
        MM3_CHECK(v->merge[at].pair != pair, MM3_ERR_FORMAT, "%s: merges[%zu] repeats merges[%d] (to \"%s\")", r->file,
                  i, v->merge[at].rank, mm3__show(shown, r->scratch.data, r->scratch.n));
    v->merge[at] = (mm3__merge){ pair, (int32_t)i };
    v->id_of_rank[i] = id[2];
    return MM3_OK;
}

static mm3_status read_merges(reader *r, mm3__scan *s)
{
    size_t i = 0;
    if (mm3__scan_char(s, '[') && mm3__scan_char(s, ']')) return MM3_OK;
    do {
        const char *half[2];
        size_t n[2];
        MM3_TRY(read_halves(r, s, i, half, n));
        MM3_TRY(add_merge(r, i++, half, n));
    } while (mm3__scan_char(s, ','));
    return mm3__scan_char(s, ']') ? MM3_OK : mm3__scan_fail(s, "',' or ']' in \"merges\"");
}

/* Every id has a token, every byte has one, and an added token has one id only. */
static mm3_status check_complete(reader *r)
{
    mm3__vocabulary *v = r->v;
    while (v->n < (int)r->n_max && v->token[v->n].exists) v->n++;
    for (int i = v->n; i < (int)r->n_max; i++)
        MM3_CHECK(!v->token[i].exists, MM3_ERR_FORMAT,
                  "%s: no token has id %d, though one has id %d; expected no holes", r->file, v->n, i);
    for (int i = 0; i < v->n; i++) {
        const mm3__token *t = &v->token[i];
        const char *name = v->text.data + t->start;
        char shown[MM3__SHOWN];
        int32_t other;
        mm3_buf_clear(&r->scratch);
        if (!t->added || !add_spelled(&r->scratch, r->byte_of_code, name, t->n_bytes)) continue;
        MM3_CHECK(!r->scratch.failed, MM3_ERR_NOMEM, "%s: out of memory", r->file);
        other = mm3__vocabulary_find(v, r->scratch.data, r->scratch.n);
        MM3_CHECK(other < 0 || other == i, MM3_ERR_FORMAT, "%s: added token \"%s\" has id %d, but \"vocab\" says %d",
                  r->file, mm3__show(shown, name, t->n_bytes), i, other);
    }
    for (int b = 0; b < 256; b++) {
        unsigned char byte = (unsigned char)b;
        v->id_of_byte[b] = mm3__vocabulary_find(v, &byte, 1);
        MM3_CHECK(v->id_of_byte[b] >= 0, MM3_ERR_UNSUPPORTED,
                  "%s: \"vocab\" has no ordinary token for the byte 0x%02X; byte-level BPE needs all 256", r->file, b);
    }
    return MM3_OK;
}

mm3_status mm3__vocabulary_read(mm3__vocabulary *v, mm3__scan *vocab, mm3__scan *merges, const json_t *added,
                                const char *file)
{
    mm3_status st = MM3_OK;
    reader r = { .v = v, .file = file };
    size_t n_max = vocab->n_items + json_array_size(added);
    MM3_CHECK(mm3__scan_is(vocab, '{'), MM3_ERR_FORMAT, "%s: model \"vocab\" must be an object", file);
    MM3_CHECK(mm3__scan_is(merges, '['), MM3_ERR_FORMAT, "%s: model \"merges\" must be an array", file);
    MM3_CHECK(!added || json_is_array(added), MM3_ERR_FORMAT, "%s: \"added_tokens\" must be an array", file);
    MM3_CHECK(n_max <= MM3__MAX_IDS && merges->n_items <= MM3__MAX_IDS, MM3_ERR_UNSUPPORTED,
              "%s: %zu tokens, %zu merges; mm3 takes up to %d", file, n_max, merges->n_items, MM3__MAX_IDS);
    r.n_max = (int64_t)n_max;
    make_byte_map(r.byte_of_code);
    MM3_TRY(make_tables(v, n_max, merges->n_items));
    MM3_GOTO(read_added(&r, added));
    MM3_GOTO(read_vocab(&r, vocab));
    MM3_GOTO(check_complete(&r));
    MM3_GOTO(read_merges(&r, merges));
done:
    mm3_buf_free(&r.scratch);
    mm3_buf_free(&r.string[0]);
    mm3_buf_free(&r.string[1]);
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
