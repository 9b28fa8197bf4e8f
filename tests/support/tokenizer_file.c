/* Small tokenizer.json files for tests. Knows the file's form, not the library. */
#include "support/tokenizer_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The characters that spell the 256 bytes, by byte. */
static void spell(unsigned char byte, char out[3])
{
    int code = byte;
    if (!((byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD))) {
        code = 256;
        for (int b = 0; b < byte; b++) code += !((b >= '!' && b <= '~') || (b >= 0xA1 && b != 0xAD));
    }
    memset(out, 0, 3);
    out[0] = (char)code;
    if (code >= 0x80) {
        out[0] = (char)(0xC0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3F));
    }
}

json_t *small_tokenizer(const char *const *merges, int n_merges)
{
    json_t *vocab = json_object(), *pairs = json_array(), *added = json_array();
    for (int b = 0; b < 256; b++) {
        char name[3];
        spell((unsigned char)b, name);
        json_object_set_new(vocab, name, json_integer(b));
    }
    for (int i = 0; i < n_merges; i++) {
        const char *space = strchr(merges[i], ' ');
        char result[64];
        snprintf(result, sizeof result, "%.*s%s", (int)(space - merges[i]), merges[i], space + 1);
        json_array_append_new(pairs, json_pack("[s%,s]", merges[i], (size_t)(space - merges[i]), space + 1));
        if (!json_object_get(vocab, result))
            json_object_set_new(vocab, result, json_integer((json_int_t)json_object_size(vocab)));
    }
    for (int i = 0; i < 2; i++)
        json_array_append_new(added, json_pack("{s:i,s:s,s:b,s:b,s:b,s:b,s:b}", "id", (int)json_object_size(vocab) + i,
                                               "content", i ? "<n>" : "<s>", "single_word", 0, "lstrip", 0, "rstrip", 0,
                                               "normalized", 0, "special", i == 0));
    return json_pack("{s:s,s:n,s:n,s:o,s:{s:s},s:{s:s,s:b,s:b,s:b},s:n,s:{s:s},s:{s:s,s:n,s:n,s:b,s:b,s:o,s:o}}",
                     "version", "1.0", "truncation", "padding", "added_tokens", added, "normalizer", "type", "NFC",
                     "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 1,
                     "post_processor", "decoder", "type", "ByteLevel", "model", "type", "BPE", "dropout", "unk_token",
                     "byte_fallback", 0, "ignore_merges", 0, "vocab", vocab, "merges", pairs);
}

bool json_put(json_t *root, const char *path, const char *value)
{
    char key[256];
    const char *slash;
    json_t *at = root, *v = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    if (value && !v) return false;
    while (at && (slash = strchr(path, '/')) != NULL) {
        snprintf(key, sizeof key, "%.*s", (int)(slash - path), path);
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(key)) : json_object_get(at, key);
        path = slash + 1;
    }
    if (json_is_array(at) && v) return json_array_set_new(at, (size_t)atoi(path), v) == 0;
    if (json_is_array(at)) return json_array_remove(at, (size_t)atoi(path)) == 0;
    if (v) return json_object_set_new(at, path, v) == 0;
    return json_object_del(at, path) == 0;
}

static char dir[512];

const char *model_dir(void)
{
    const char *tmp = getenv("TMPDIR");
    if (!dir[0]) {
        snprintf(dir, sizeof dir, "%s/mm3-test-XXXXXX", tmp && *tmp ? tmp : "/tmp");
        if (!mkdtemp(dir)) {
            perror(dir);
            exit(1);
        }
    }
    return dir;
}

static const char *file_path(void)
{
    static char path[600];
    snprintf(path, sizeof path, "%s/tokenizer.json", model_dir());
    return path;
}

void write_tokenizer_text(const char *text, size_t n_bytes)
{
    FILE *f = fopen(file_path(), "wb");
    if (!f || fwrite(text, 1, n_bytes, f) != n_bytes || fclose(f) != 0) {
        perror(file_path());
        exit(1);
    }
}

void write_tokenizer(const json_t *root)
{
    char *text = json_dumps(root, JSON_COMPACT);
    if (!text) exit(1);
    write_tokenizer_text(text, strlen(text));
    free(text);
}

void remove_model_dir(void)
{
    if (!dir[0]) return;
    unlink(file_path());
    rmdir(dir);
    dir[0] = 0;
}
