/* A tokenizer.json of any size: words of syllables, their parts in layers of merges, as a trained one has them.
 * Knows the file's form, not how it is read. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/host_inputs.h"

static const char consonants[] = "bcdfghjklmnprstvwz", vowels[] = "aeiou";

size_t mm3__host_zipf(uint64_t *state, size_t n)
{
    double u = (double)(mm3__host_random(state) >> 11) * 0x1p-53;
    size_t i = (size_t)exp(u * log((double)n + 1)) - 1;
    return MM3_MIN(i, n - 1);
}

mm3_status mm3__host_write(const char *dir, const char *name, const void *bytes, size_t n)
{
    char *path = mm3_path_join(dir, name);
    FILE *f = path ? fopen(path, "wb") : NULL;
    bool ok = f && fwrite(bytes, 1, n, f) == n;
    if (f) ok = fclose(f) == 0 && ok;
    mm3_free(path);
    MM3_CHECK(ok, MM3_ERR_IO, "cannot write %zu bytes to %s/%s", n, dir, name);
    return MM3_OK;
}

void mm3__host_words_free(mm3__host_words *words)
{
    mm3_buf_free(&words->text);
    mm3_free(words->start);
    *words = (mm3__host_words){ 0 };
}

/* ---- tokens by their bytes ------------------------------------------------------------------------------------- */

enum { BYTES = 256 };

typedef struct maker {
    mm3_buf text;  /* the bytes of all tokens */
    size_t *start; /* owned: [n_max + 1] */
    int *slot;     /* owned: [n_slots] 1 + id, 0: free */
    size_t n_slots;
    int n, n_max;
    mm3_buf merges; /* JSON, the elements of "merges" */
} maker;

static mm3_status open_maker(maker *m, int n_tokens)
{
    *m = (maker){ .n_slots = 1024, .n_max = n_tokens };
    while (m->n_slots < 2 * (size_t)n_tokens) m->n_slots *= 2;
    m->start = mm3_calloc((size_t)n_tokens + 1, sizeof *m->start);
    m->slot = mm3_calloc(m->n_slots, sizeof *m->slot);
    MM3_CHECK(m->start && m->slot, MM3_ERR_NOMEM, "out of memory for %d tokens", n_tokens);
    return MM3_OK;
}

static void close_maker(maker *m)
{
    mm3_buf_free(&m->text);
    mm3_buf_free(&m->merges);
    mm3_free(m->start);
    mm3_free(m->slot);
}

static int *slot_of(const maker *m, const char *s, size_t n)
{
    uint64_t h = UINT64_C(14695981039346656037);
    size_t i;
    for (i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * UINT64_C(1099511628211);
    for (i = (size_t)(h ^ h >> 32) & (m->n_slots - 1); m->slot[i]; i = (i + 1) & (m->n_slots - 1)) {
        size_t from = m->start[m->slot[i] - 1];
        if (m->start[m->slot[i]] - from == n && memcmp(m->text.data + from, s, n) == 0) break;
    }
    return &m->slot[i];
}

/* A token's name as JSON: each byte as the character that stands for it (GPT-2's map). */
static void spell(mm3_buf *out, const char *s, size_t n)
{
    mm3_buf_puts(out, "\"");
    for (size_t i = 0; i < n; i++) {
        int b = (unsigned char)s[i], code = b;
        char utf8[3] = { 0 };
        if (b <= 0x20) code = 256 + b; /* what is not printable in Latin-1, in order */
        if (b >= 0x7F && b <= 0xA0) code = 256 + 33 + b - 0x7F;
        if (b == 0xAD) code = 256 + 67;
        if (code == '"' || code == '\\') mm3_buf_puts(out, "\\");
        utf8[0] = (char)(code < 0x80 ? code : 0xC0 | code >> 6);
        if (code >= 0x80) utf8[1] = (char)(0x80 | (code & 0x3F));
        mm3_buf_puts(out, utf8);
    }
    mm3_buf_puts(out, "\"");
}

/* The token of these bytes, new if there is room for one; -1 where there is none. left: bytes of its left half. */
static int merge(maker *m, const char *s, size_t n, size_t left)
{
    int *slot = slot_of(m, s, n);
    if (*slot) return *slot - 1;
    if (m->n == m->n_max) return -1;
    mm3_buf_add(&m->text, s, n);
    if (m->text.failed) return -1;
    if (left) {
        mm3_buf_puts(&m->merges, m->merges.n ? ",[" : "[");
        spell(&m->merges, s, left);
        mm3_buf_puts(&m->merges, ",");
        spell(&m->merges, s + left, n - left);
        mm3_buf_puts(&m->merges, "]");
    }
    m->start[m->n + 1] = m->text.n;
    *slot = ++m->n;
    return m->n - 1;
}

/* ---- layers of merges ------------------------------------------------------------------------------------------ */

/* Byte after byte. */
static void merge_bytes(maker *m, const char *s)
{
    for (size_t n = 2; n <= strlen(s); n++) (void)merge(m, s, n, n - 1);
}

static void add_small(maker *m)
{
    static const char run[] = " \n\t=-*#/_.a";
    static const char *const code[] = { " =",  " ==", " +", " {\n", "();\n", ");\n", "->", "0x",  "//",
                                        " <=", " &&", "()", " (",   "(&",    "[i",   "];", ";\n", "}\n" };
    char s[64];
    for (int b = 0; b < BYTES; b++) {
        s[0] = (char)b;
        (void)merge(m, s, 1, 0);
    }
    for (int i = 0; run[i]; i++) {
        memset(s, run[i], sizeof s);
        for (size_t n = 2; n <= sizeof s; n *= 2) (void)merge(m, s, n, n / 2);
    }
    for (int i = 0; i < MM3_COUNT(code); i++) merge_bytes(m, code[i]);
    for (int i = 0; i < 1000; i++) {
        snprintf(s, sizeof s, "%03d", i);
        merge_bytes(m, s);
    }
}

/* "ba", "Ba" and " ba": the last from " b", so that a space stays with its word. */
static void add_syllables(maker *m)
{
    for (const char *c = consonants; *c; c++) {
        for (const char *v = vowels; *v; v++) {
            char s[4] = { ' ', *c, *v, 0 };
            merge_bytes(m, s + 1);
            merge_bytes(m, s);
            s[1] = (char)(*c - 'a' + 'A');
            merge_bytes(m, s + 1);
        }
    }
}

/* Three bytes each; half of what may be added are characters, as many as there are; then pairs of frequent ones. */
static void add_han(maker *m, mm3__host_words *words, int n)
{
    uint64_t random = 7;
    int end = m->n + n;
    char s[8];
#define PUT_HAN(to, i)                                  \
    do {                                                \
        int code_ = 0x4E00 + (int)(i);                  \
        (to)[0] = (char)(0xE0 | code_ >> 12);           \
        (to)[1] = (char)(0x80 | ((code_ >> 6) & 0x3F)); \
        (to)[2] = (char)(0x80 | (code_ & 0x3F));        \
        (to)[3] = 0;                                    \
    } while (0)
    while (words->n_han < 20000 && m->n < end - n / 2) {
        PUT_HAN(s, words->n_han++);
        merge_bytes(m, s);
    }
    for (int tries = 0; m->n < end && tries < 8 * n; tries++) {
        PUT_HAN(s, mm3__host_zipf(&random, (size_t)words->n_han));
        PUT_HAN(s + 3, mm3__host_zipf(&random, (size_t)words->n_han));
        (void)merge(m, s, 6, 3);
    }
#undef PUT_HAN
}

/* A new word; one syllable and up. */
static mm3_status add_word(mm3__host_words *words, uint64_t *random)
{
    int n_syllables = 1 + (int)(mm3__host_random(random) % 3) + (int)(mm3__host_random(random) % 3);
    if (words->n == words->n_max) {
        size_t n_max = MM3_MAX(2 * words->n_max, (size_t)1024), *start;
        start = mm3_realloc(words->start, mm3_mul(n_max + 1, sizeof *start));
        MM3_CHECK(start, MM3_ERR_NOMEM, "out of memory for %zu words", n_max);
        words->start = start;
        words->n_max = n_max;
        start[0] = 0;
    }
    for (int i = 0; i < n_syllables; i++) {
        char s[2] = { consonants[mm3__host_zipf(random, sizeof consonants - 1)],
                      vowels[mm3__host_random(random) % (sizeof vowels - 1)] };
        mm3_buf_add(&words->text, s, sizeof s);
    }
    MM3_CHECK(!words->text.failed, MM3_ERR_NOMEM, "out of memory for words");
    words->start[++words->n] = words->text.n;
    return MM3_OK;
}

/* Words, each once with a space before it and once without, syllable after syllable, until there are enough tokens. */
static mm3_status add_words(maker *m, mm3__host_words *words)
{
    uint64_t random = 3;
    while (m->n < m->n_max && !m->text.failed) {
        char s[64] = " ";
        size_t n;
        MM3_TRY(add_word(words, &random));
        n = words->start[words->n] - words->start[words->n - 1];
        memcpy(s + 1, words->text.data + words->start[words->n - 1], n);
        for (size_t k = 4; k <= n; k += 2) (void)merge(m, s, k + 1, k - 1);
        for (size_t k = 4; k <= n && words->n % 3 == 0; k += 2) (void)merge(m, s + 1, k, k - 2);
    }
    return MM3_OK;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* source  docs/m3.md, section 7 */
static const char
    head[] = "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[",
    middle[] =
        "],\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
        "\"Split\",\"pattern\":{\"Regex\":\"[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}"
        "]*[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{Lu}"
        "\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]+[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        "\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},"
        "\"behavior\":\"Removed\",\"invert\":true},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":"
        "true,\"use_regex\":false}]},\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":"
        "true,\"trim_offsets\":true,\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":"
        "null,"
        "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,"
        "\"ignore_merges\":false,\"vocab\":{",
    before_merges[] = "},\"merges\":[";

static mm3_status write_file(const maker *m, const char *dir)
{
    /* what chats and answers are made of */
    static const char *const added[] = { "]!p~[",         "]~b]",        "[e~[",        "]~!b[",
                                         "]<]minimax[>[", "]<]image[>[", "]<]video[>[", "<mm:think>",
                                         "</mm:think>",   "<tool_call>", "</tool_call>" };
    mm3_status st = MM3_OK;
    mm3_buf b = { 0 };
    mm3_buf_puts(&b, head);
    for (int i = 0; i < MM3_COUNT(added); i++)
        mm3_buf_printf(&b,
                       "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                       "\"normalized\":false,\"special\":true}",
                       i ? "," : "", m->n + i, added[i]);
    mm3_buf_puts(&b, middle);
    for (int i = 0; i < m->n; i++) {
        mm3_buf_puts(&b, i ? "," : "");
        spell(&b, m->text.data + m->start[i], m->start[i + 1] - m->start[i]);
        mm3_buf_printf(&b, ":%d", i);
    }
    mm3_buf_puts(&b, before_merges);
    mm3_buf_add(&b, m->merges.data, m->merges.n);
    mm3_buf_puts(&b, "]}}\n");
    if (b.failed || m->text.failed || m->merges.failed)
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for a tokenizer of %d tokens", m->n_max);
    else
        st = mm3__host_write(dir, "tokenizer.json", b.data, b.n);
    mm3_buf_free(&b);
    return st;
}

mm3_status mm3__host_write_tokenizer(const char *dir, int n_tokens, mm3__host_words *words)
{
    mm3_status st;
    maker m;
    *words = (mm3__host_words){ 0 };
    MM3_GOTO(open_maker(&m, n_tokens));
    add_small(&m);
    add_syllables(&m);
    add_han(&m, words, (n_tokens - m.n) / 4);
    MM3_GOTO(add_words(&m, words));
    st = write_file(&m, dir);
done:
    close_maker(&m);
    if (st != MM3_OK) mm3__host_words_free(words);
    return st;
}
