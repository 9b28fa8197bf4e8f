/* Loading tokenizer.json: every component is either followed as the file has it, or refused by name.
 * Owns the tokenizer; reading of the parts is in vocabulary.c and pretokenize.c. */
#include <string.h>

#include "text/text.h"
#include "text/tokenizer.h"

mm3_status mm3__only_members(const json_t *object, const char *const *known, const char *what)
{
    MM3_CHECK(json_is_object(object), MM3_ERR_FORMAT, "%s must be an object", what);
    for (void *at = json_object_iter((json_t *)(uintptr_t)object); at;
         at = json_object_iter_next((json_t *)(uintptr_t)object, at)) {
        const char *key = json_object_iter_key(at);
        char shown[MM3__SHOWN];
        int i = 0;
        while (known[i] && strcmp(known[i], key) != 0) i++;
        MM3_CHECK(known[i], MM3_ERR_UNSUPPORTED, "%s: \"%s\" is unknown to mm3", what,
                  mm3__show(shown, key, strlen(key)));
    }
    return MM3_OK;
}

mm3_status mm3__component_type(const json_t *component, const char *what, const char **type)
{
    MM3_CHECK(json_is_object(component), MM3_ERR_FORMAT, "%s must be an object", what);
    return mm3_json_string(component, "type", what, false, NULL, type);
}

/* ---- components -------------------------------------------------------------------------------------------------- */

static mm3_status read_normalizer(mm3_tokenizer *t, const json_t *component, const char *what, int depth)
{
    static const char *const nfc[] = { "type", NULL };
    static const char *const sequence[] = { "type", "normalizers", NULL };
    const json_t *list = json_object_get(component, "normalizers");
    const char *type;
    if (!component || json_is_null(component)) return MM3_OK;
    MM3_TRY(mm3__component_type(component, what, &type));
    if (strcmp(type, "NFC") == 0) {
        t->nfc = true;
        return mm3__only_members(component, nfc, what);
    }
    MM3_CHECK(strcmp(type, "Sequence") == 0, MM3_ERR_UNSUPPORTED,
              "%s: type \"%.40s\"; mm3 takes NFC, Sequence and null", what, type);
    MM3_TRY(mm3__only_members(component, sequence, what));
    MM3_CHECK(json_is_array(list), MM3_ERR_FORMAT, "%s: \"normalizers\" must be an array", what);
    MM3_CHECK(depth < 4, MM3_ERR_UNSUPPORTED, "%s: Sequence in Sequence, more than 4 deep", what);
    for (size_t i = 0; i < json_array_size(list); i++) {
        char inner[512];
        snprintf(inner, sizeof inner, "%.440s[%zu]", what, i);
        MM3_TRY(read_normalizer(t, json_array_get(list, i), inner, depth + 1));
    }
    return MM3_OK;
}

/* Those that only add special tokens, or only move offsets, which mm3 does not have:
 * encode adds no token of its own. */
static mm3_status check_post_processor(const json_t *component, const char *what, int depth)
{
    const json_t *list = json_object_get(component, "processors");
    const char *type;
    if (!component || json_is_null(component)) return MM3_OK;
    MM3_TRY(mm3__component_type(component, what, &type));
    if (strcmp(type, "ByteLevel") == 0 || strcmp(type, "TemplateProcessing") == 0) return MM3_OK;
    MM3_CHECK(strcmp(type, "Sequence") == 0, MM3_ERR_UNSUPPORTED,
              "%s: type \"%.40s\"; mm3 takes ByteLevel, TemplateProcessing, Sequence and null", what, type);
    MM3_CHECK(json_is_array(list), MM3_ERR_FORMAT, "%s: \"processors\" must be an array", what);
    MM3_CHECK(depth < 4, MM3_ERR_UNSUPPORTED, "%s: Sequence in Sequence, more than 4 deep", what);
    for (size_t i = 0; i < json_array_size(list); i++) {
        char inner[512];
        snprintf(inner, sizeof inner, "%.440s[%zu]", what, i);
        MM3_TRY(check_post_processor(json_array_get(list, i), inner, depth + 1));
    }
    return MM3_OK;
}

static mm3_status check_decoder(const json_t *component, const char *file)
{
    char what[512];
    const char *type;
    snprintf(what, sizeof what, "%.400s: decoder", file);
    MM3_TRY(mm3__component_type(component, what, &type));
    MM3_CHECK(strcmp(type, "ByteLevel") == 0, MM3_ERR_UNSUPPORTED, "%s: type \"%.40s\"; mm3 takes ByteLevel", what,
              type);
    return MM3_OK;
}

/* A member that must be null, or the neutral value of its kind. */
static mm3_status must_be_neutral(const json_t *model, const char *key, const char *what)
{
    const json_t *v = json_object_get(model, key);
    bool neutral = !v || json_is_null(v) || json_is_false(v) || (json_is_string(v) && json_string_length(v) == 0) ||
                   (json_is_number(v) && json_number_value(v) == 0.0);
    MM3_CHECK(neutral, MM3_ERR_UNSUPPORTED, "%s: \"%s\" is set; mm3 runs byte-level BPE without it", what, key);
    return MM3_OK;
}

static mm3_status read_model(mm3_tokenizer *t, const json_t *model, mm3__scan *vocab, mm3__scan *merges,
                             const json_t *added, const char *file)
{
    static const char *const members[] = { "type",
                                           "dropout",
                                           "unk_token",
                                           "continuing_subword_prefix",
                                           "end_of_word_suffix",
                                           "fuse_unk",
                                           "byte_fallback",
                                           "ignore_merges",
                                           "vocab",
                                           "merges",
                                           NULL };
    char what[512];
    const char *type;
    snprintf(what, sizeof what, "%.400s: model", file);
    MM3_TRY(mm3__component_type(model, what, &type));
    MM3_CHECK(strcmp(type, "BPE") == 0, MM3_ERR_UNSUPPORTED, "%s: type \"%.40s\"; mm3 takes BPE", what, type);
    MM3_TRY(mm3__only_members(model, members, what));
    MM3_TRY(must_be_neutral(model, "dropout", what));
    MM3_TRY(must_be_neutral(model, "continuing_subword_prefix", what));
    MM3_TRY(must_be_neutral(model, "end_of_word_suffix", what));
    MM3_TRY(must_be_neutral(model, "byte_fallback", what));
    MM3_TRY(mm3_json_bool(model, "ignore_merges", what, true, false, &t->ignore_merges));
    /* unk_token and fuse_unk have no effect: every byte has a token, so nothing is unknown. */
    MM3_CHECK(vocab->at < vocab->end, MM3_ERR_FORMAT, "%s: \"vocab\" is missing", what);
    MM3_CHECK(merges->at < merges->end, MM3_ERR_FORMAT, "%s: \"merges\" is missing", what);
    return mm3__vocabulary_read(&t->vocabulary, vocab, merges, added, file);
}

/* Ids and texts were checked with the vocabulary. */
static mm3_status read_matchers(mm3_tokenizer *t, const json_t *added, const char *file)
{
    static const char *const members[] = { "id",     "content",    "single_word", "lstrip",
                                           "rstrip", "normalized", "special",     NULL };
    static const char *const refused[] = { "single_word", "lstrip", "rstrip" };
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *entry = json_array_get(added, i);
        const char *content = json_string_value(json_object_get(entry, "content"));
        int64_t id;
        char what[512], shown[MM3__SHOWN];
        bool normalized, same = true;
        mm3_buf normal = { 0 };
        mm3_status st;
        snprintf(what, sizeof what, "%.400s: added token \"%s\"", file, mm3__show(shown, content, strlen(content)));
        MM3_TRY(mm3__only_members(entry, members, what));
        MM3_TRY(mm3_json_int(entry, "id", what, 0, INT32_MAX, false, 0, &id));
        for (int k = 0; k < MM3_COUNT(refused); k++) {
            bool set;
            MM3_TRY(mm3_json_bool(entry, refused[k], what, true, false, &set));
            MM3_CHECK(!set, MM3_ERR_UNSUPPORTED, "%s: \"%s\" is true; mm3 matches added tokens exactly", what,
                      refused[k]);
        }
        MM3_TRY(mm3_json_bool(entry, "normalized", what, false, false, &normalized));
        st = normalized && t->nfc ? mm3__nfc(&normal, (const unsigned char *)content, strlen(content), &same) : MM3_OK;
        if (st == MM3_OK)
            st = mm3__matcher_add(normalized ? &t->normalized : &t->raw, same ? content : normal.data,
                                  same ? strlen(content) : normal.n, (int32_t)id);
        mm3_buf_free(&normal);
        if (st != MM3_OK) return mm3_fail_in(st, "%s", what);
    }
    return MM3_OK;
}

static mm3_status read_tokenizer(mm3_tokenizer *t, const json_t *root, mm3__scan *vocab, mm3__scan *merges,
                                 const char *file)
{
    /* truncation and padding are defaults for callers of the reference, which its users
     * switch off; no part of a token. */
    static const char *const members[] = { "version",       "truncation",     "padding", "added_tokens", "normalizer",
                                           "pre_tokenizer", "post_processor", "decoder", "model",        NULL };
    const json_t *added = json_object_get(root, "added_tokens");
    const char *version;
    char what[512];
    MM3_TRY(mm3__only_members(root, members, file));
    MM3_TRY(mm3_json_string(root, "version", file, true, "1.0", &version));
    MM3_CHECK(strcmp(version, "1.0") == 0, MM3_ERR_UNSUPPORTED, "%s: version \"%.40s\"; mm3 takes 1.0", file, version);
    MM3_CHECK(json_object_get(root, "model"), MM3_ERR_FORMAT, "%s: \"model\" is missing", file);
    snprintf(what, sizeof what, "%.400s: normalizer", file);
    MM3_TRY(read_normalizer(t, json_object_get(root, "normalizer"), what, 0));
    MM3_TRY(mm3__pretokenizer_read(&t->pretokenizer, json_object_get(root, "pre_tokenizer"), file));
    snprintf(what, sizeof what, "%.400s: post_processor", file);
    MM3_TRY(check_post_processor(json_object_get(root, "post_processor"), what, 0));
    MM3_TRY(check_decoder(json_object_get(root, "decoder"), file));
    MM3_TRY(read_model(t, json_object_get(root, "model"), vocab, merges, added, file));
    return read_matchers(t, added, file);
}

/* ---- life cycle -------------------------------------------------------------------------------------------------- */

static mm3_status read_text(mm3_tokenizer *t, const char *text, size_t n_bytes, const char *file)
{
    mm3_status st = MM3_OK;
    mm3_buf rest = { 0 };
    mm3__scan vocab, merges;
    json_t *root = NULL;
    MM3_GOTO(mm3__scan_cut(&rest, &vocab, &merges, text, n_bytes, file));
    st = mm3_json_parse(&root, rest.data, rest.n, file);
    if (st != MM3_OK) { /* once more in full, for the right line in the error; the fault may be in the part cut out */
        mm3_status in_full = mm3_json_parse(&root, text, n_bytes, file);
        if (in_full != MM3_OK) st = in_full;
        goto done;
    }
    st = read_tokenizer(t, root, &vocab, &merges, file);
done:
    json_decref(root);
    mm3_buf_free(&rest);
    return st;
}

mm3_status mm3__tokenizer_parse(mm3_tokenizer **out, const char *text, size_t n_bytes, const char *file)
{
    enum { MAX_FILE = 256 << 20 };
    mm3_status st;
    mm3_tokenizer *t;
    *out = NULL;
    MM3_CHECK(n_bytes <= MAX_FILE, MM3_ERR_UNSUPPORTED, "%s has %zu bytes; expected at most %d", file, n_bytes,
              MAX_FILE);
    t = mm3_calloc(1, sizeof *t);
    MM3_CHECK(t, MM3_ERR_NOMEM, "out of memory for the tokenizer");
    st = read_text(t, text, n_bytes, file);
    if (st != MM3_OK) mm3_tokenizer_close(&t);
    *out = t;
    return st;
}

mm3_status mm3_tokenizer_open(mm3_tokenizer **out, const char *model_dir)
{
    mm3_status st;
    mm3_file *file = NULL;
    char *path = mm3_path_join(model_dir, "tokenizer.json");
    *out = NULL;
    MM3_CHECK(path, MM3_ERR_NOMEM, "out of memory for the tokenizer");
    st = mm3_file_open(&file, path);
    if (st == MM3_OK) st = mm3__tokenizer_parse(out, (const char *)file->data, file->n_bytes, path);
    mm3_file_close(&file);
    mm3_free(path);
    return st;
}

void mm3_tokenizer_close(mm3_tokenizer **tokenizer)
{
    mm3_tokenizer *t = tokenizer ? *tokenizer : NULL;
    if (!t) return;
    mm3__vocabulary_free(&t->vocabulary);
    mm3__matcher_free(&t->raw);
    mm3__matcher_free(&t->normalized);
    mm3__pretokenizer_free(&t->pretokenizer);
    mm3_free(t);
    *tokenizer = NULL;
}

int mm3_tokenizer_size(const mm3_tokenizer *tokenizer) { return tokenizer->vocabulary.n; }
