/* What is done on the host before and after a step: listing a checkpoint, reading a vocabulary, text to tokens and
 * back, a conversation to a prompt, an answer to its parts; and the prefill of a prompt as a whole. Each part is run
 * once, by a process of its own, so that its memory is its own. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "bench/bench.h"
#include "bench/host_inputs.h"
#include "model/model.h"

enum { TOKENS = 200000, MIN_TOKENS = 4096, EXPERTS = 128, TEXT_BYTES = 1000000, PROMPT = 8000, MESSAGE_BYTES = 1000 };

/* ---- texts --------------------------------------------------------------------------------------------------------
 */

static const char calls_begin[] = "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"write\">]<]minimax[>[<text>",
                  calls_end[] = "]<]minimax[>[</text>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>";

typedef struct teller {
    const mm3__host_words *words;
    mm3_buf out;
    uint64_t random;
} teller;

static size_t below(teller *t, size_t n) { return (size_t)(mm3__host_random(&t->random) % n); }

static void put_word(teller *t, bool capital)
{
    size_t i = mm3__host_zipf(&t->random, t->words->n), from = t->words->start[i];
    char first = t->words->text.data[from];
    if (capital) first = (char)(first - 'a' + 'A');
    mm3_buf_add(&t->out, &first, 1);
    mm3_buf_add(&t->out, t->words->text.data + from + 1, t->words->start[i + 1] - from - 1);
}

static void put_prose(teller *t)
{
    for (size_t i = 0, n = 6 + below(t, 12); i < n; i++) {
        if (i) mm3_buf_puts(&t->out, below(t, 9) ? " " : ", ");
        put_word(t, i == 0);
    }
    mm3_buf_puts(&t->out, below(t, 6) ? ". " : ".\n\n");
}

static void put_code(teller *t)
{
    static const char *const operator[] = { " = ", " += ", " == ", "->", ".", "(", " && ", "[" };
    for (size_t i = below(t, 4); i < 4; i++) mm3_buf_puts(&t->out, "    ");
    for (size_t i = 0, n = 1 + below(t, 4); i < n; i++) {
        put_word(t, false);
        if (below(t, 3) == 0) mm3_buf_puts(&t->out, "_");
        if (below(t, 3) == 0) put_word(t, below(t, 2));
        mm3_buf_puts(&t->out, operator[below(t, MM3_COUNT(operator))]);
    }
    mm3_buf_printf(&t->out, "%zu%s", below(t, 4096), below(t, 5) ? ";\n" : ");\n\n");
}

static void put_han(teller *t)
{
    for (size_t i = 0, n = 4 + below(t, 16); i < n; i++) {
        int code = 0x4E00 + (int)mm3__host_zipf(&t->random, (size_t)t->words->n_han);
        char s[4] = { (char)(0xE0 | code >> 12), (char)(0x80 | ((code >> 6) & 0x3F)), (char)(0x80 | (code & 0x3F)), 0 };
        mm3_buf_puts(&t->out, s);
    }
    mm3_buf_puts(&t->out, below(t, 3) ? "\xEF\xBC\x8C" : "\xE3\x80\x82");
}

static void put_letters(teller *t) { put_word(t, false); }
static void put_space(teller *t) { mm3_buf_puts(&t->out, "          "); }
static void put_a(teller *t) { mm3_buf_puts(&t->out, "aaaaaaaaaa"); }

static mm3_status write_text(const mm3__host_words *words, const char *dir, const char *name, size_t n_bytes,
                             void (*put)(teller *))
{
    mm3_status st;
    teller t = { words, { 0 }, 11 };
    while (t.out.n < n_bytes && !t.out.failed) put(&t);
    st = t.out.failed ? mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for a text")
                      : mm3__host_write(dir, name, t.out.data, t.out.n);
    mm3_buf_free(&t.out);
    return st;
}

/* Turns of a kilobyte each; prose has nothing that JSON escapes but line ends. */
static void put_chat(teller *t)
{
    bool first = t->out.n == 0;
    size_t end;
    mm3_buf_puts(&t->out, first ? "[" : ",\n");
    mm3_buf_puts(&t->out, "{\"role\":\"user\",\"content\":\"");
    for (end = t->out.n + MESSAGE_BYTES; t->out.n < end && !t->out.failed;) {
        put_word(t, false);
        mm3_buf_puts(&t->out, below(t, 12) ? " " : ".\\n");
    }
    mm3_buf_puts(&t->out, "\"},{\"role\":\"assistant\",\"content\":\"");
    for (end = t->out.n + MESSAGE_BYTES; t->out.n < end && !t->out.failed;) {
        put_word(t, false);
        mm3_buf_puts(&t->out, below(t, 12) ? " " : ", ");
    }
    mm3_buf_puts(&t->out, "\"}");
}

static mm3_status write_chat(const mm3__host_words *words, const char *dir, size_t n_bytes)
{
    mm3_status st;
    teller t = { words, { 0 }, 13 };
    while (t.out.n < n_bytes && !t.out.failed) put_chat(&t);
    mm3_buf_puts(&t.out, "]\n");
    st = t.out.failed ? mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for a conversation")
                      : mm3__host_write(dir, "chat.json", t.out.data, t.out.n);
    mm3_buf_free(&t.out);
    return st;
}

/* Reasoning, content and a call's argument, a third each. */
static mm3_status write_answer(const mm3__host_words *words, const char *dir, size_t n_bytes)
{
    mm3_status st;
    teller t = { words, { 0 }, 17 };
    mm3_buf_puts(&t.out, "<mm:think>");
    while (t.out.n < n_bytes / 3 && !t.out.failed) put_prose(&t);
    mm3_buf_puts(&t.out, "</mm:think>");
    while (t.out.n < 2 * n_bytes / 3 && !t.out.failed) put_prose(&t);
    mm3_buf_puts(&t.out, calls_begin);
    while (t.out.n < n_bytes && !t.out.failed) put_code(&t);
    mm3_buf_puts(&t.out, calls_end);
    st = t.out.failed ? mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for an answer")
                      : mm3__host_write(dir, "answer.txt", t.out.data, t.out.n);
    mm3_buf_free(&t.out);
    return st;
}

static const struct {
    const char *file;
    void (*put)(teller *);
} texts[] = { { "prose.txt", put_prose },     { "code.txt", put_code },    { "han.txt", put_han },
              { "letters.txt", put_letters }, { "spaces.txt", put_space }, { "a.txt", put_a } };

mm3_status mm3_bench_host_make(const char *dir, double size)
{
    mm3_status st = MM3_OK;
    mm3__host_words words = { 0 };
    size_t n_bytes = (size_t)(TEXT_BYTES * size);
    int n_tensors, n_experts = MM3_MAX((int)(EXPERTS * size), 4), n_tokens = MM3_MAX((int)(TOKENS * size), MIN_TOKENS);
    MM3_TRY(mm3__host_write_checkpoint(dir, n_experts, &n_tensors));
    MM3_GOTO(mm3__host_write_tokenizer(dir, n_tokens, &words));
    for (int i = 0; i < MM3_COUNT(texts); i++) MM3_GOTO(write_text(&words, dir, texts[i].file, n_bytes, texts[i].put));
    MM3_GOTO(write_chat(&words, dir, n_bytes));
    st = write_answer(&words, dir, n_bytes);
done:
    mm3__host_words_free(&words);
    return st;
}

/* ---- the parts ------------------------------------------------------------------------------------------------------
 */

typedef struct subject {
    const char *dir, *file; /* of the text that is read */
    mm3_engine *engine;
    const char *model_dir;
    double size;
    mm3_tokenizer *tokenizer; /* owned, as the following; NULL where the part needs none */
    char *text;
    size_t n_bytes;
    int32_t *ids;
    int n_ids;
} subject;

typedef struct part {
    const char *name, *unit, *file;
    bool opens;                       /* the tokenizer, before the clock starts */
    mm3_status (*prepare)(subject *); /* or NULL */
    mm3_status (*run)(subject *, int64_t *n);
} part;

static mm3_status run_listing(subject *s, int64_t *n)
{
    mm3_model *m;
    MM3_TRY(mm3_model_open(&m, s->dir));
    *n = mm3_shards_count(m->shards);
    mm3_model_close(&m);
    return MM3_OK;
}

static mm3_status run_vocabulary(subject *s, int64_t *n)
{
    MM3_TRY(mm3_tokenizer_open(&s->tokenizer, s->dir));
    *n = mm3_tokenizer_size(s->tokenizer);
    return MM3_OK;
}

static mm3_status encode(subject *s)
{
    return mm3_tokenizer_encode(s->tokenizer, s->text, s->n_bytes, false, &s->ids, &s->n_ids);
}

static mm3_status run_encode(subject *s, int64_t *n)
{
    MM3_TRY(encode(s));
    *n = s->n_ids;
    return MM3_OK;
}

/* One id at a time, as they are generated. */
static mm3_status run_decode(subject *s, int64_t *n)
{
    mm3_status st = MM3_OK;
    mm3_decoder *d;
    const char *text;
    MM3_TRY(mm3_decoder_open(&d, s->tokenizer, false));
    for (int i = 0; i < s->n_ids; i++) MM3_GOTO(mm3_decoder_push(d, s->ids[i], &text));
    *n = s->n_ids;
done:
    mm3_decoder_close(&d);
    return st;
}

static mm3_status run_chat(subject *s, int64_t *n)
{
    MM3_TRY(mm3_chat_encode(s->tokenizer, s->text, NULL, NULL, true, &s->ids, &s->n_ids));
    *n = s->n_ids;
    return MM3_OK;
}

/* Byte by byte, the smallest pieces that there are. */
static mm3_status run_answer(subject *s, int64_t *n)
{
    mm3_status st = MM3_OK;
    mm3_parser *p;
    MM3_TRY(mm3_parser_open(&p, NULL, NULL));
    for (size_t i = 0; i < s->n_bytes; i++) {
        char *delta;
        MM3_GOTO(mm3_parser_push(p, s->text + i, 1, i + 1 == s->n_bytes, &delta));
        mm3_free(delta);
    }
    *n = (int64_t)s->n_bytes;
done:
    mm3_parser_close(&p);
    return st;
}

/* So much of the prose as is wanted, in the model's own tokens. */
static mm3_status prepare_prompt(subject *s)
{
    int want = MM3_MAX((int)(PROMPT * s->size), 1), room = mm3_engine_context(s->engine);
    MM3_TRY(mm3_tokenizer_open(&s->tokenizer, s->model_dir));
    MM3_TRY(encode(s));
    MM3_CHECK(want < room, MM3_ERR_ARG, "a prompt of %d tokens does not fit into the context of %d: raise --context",
              want, room);
    MM3_CHECK(want <= s->n_ids, MM3_ERR_ARG, "the text has %d tokens in this vocabulary; the prompt needs %d", s->n_ids,
              want);
    s->n_ids = want;
    return MM3_OK;
}

static mm3_status run_prompt(subject *s, int64_t *n)
{
    mm3_session *session;
    mm3_status st;
    MM3_TRY(mm3_session_open(&session, s->engine));
    st = mm3_session_sync(session, s->ids, s->n_ids);
    *n = s->n_ids;
    mm3_session_close(&session);
    return st;
}

static const part parts[] = {
    { "listing", "tensors", NULL, false, NULL, run_listing },
    { "vocabulary", "tokens", NULL, false, NULL, run_vocabulary },
    { "encode-prose", "tokens", "prose.txt", true, NULL, run_encode },
    { "encode-code", "tokens", "code.txt", true, NULL, run_encode },
    { "encode-chinese", "tokens", "han.txt", true, NULL, run_encode },
    { "encode-word", "tokens", "letters.txt", true, NULL, run_encode },
    { "encode-spaces", "tokens", "spaces.txt", true, NULL, run_encode },
    { "encode-a", "tokens", "a.txt", true, NULL, run_encode },
    { "decode", "tokens", "prose.txt", true, encode, run_decode },
    { "chat", "tokens", "chat.json", true, NULL, run_chat },
    { "answer", "pieces", "answer.txt", false, NULL, run_answer },
    { "prompt", "tokens", "prose.txt", false, prepare_prompt, run_prompt },
};

int mm3_bench_host_count(void) { return MM3_COUNT(parts); }
const char *mm3_bench_host_name(int i) { return parts[i].name; }
const char *mm3_bench_host_unit(int i) { return parts[i].unit; }
bool mm3_bench_host_needs_engine(int i) { return parts[i].run == run_prompt; }

static double processor_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double peak_bytes(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return 1024 * (double)u.ru_maxrss;
}

/* Resident now; and from here on the peak is of what follows, where the system lets it begin anew. */
static double begin_peak(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (f) {
        fputs("5", f);
        fclose(f);
    }
    return peak_bytes();
}

static mm3_status prepare(subject *s, const part *p)
{
    char *path;
    mm3_status st = MM3_OK;
    if (p->file) {
        path = mm3_path_join(s->dir, p->file);
        MM3_CHECK(path, MM3_ERR_NOMEM, "out of memory for %s", p->file);
        st = mm3_read_all(path, (size_t)1 << 30, &s->text, &s->n_bytes);
        mm3_free(path);
    }
    if (st == MM3_OK && p->opens) st = mm3_tokenizer_open(&s->tokenizer, s->dir);
    if (st == MM3_OK && p->prepare) st = p->prepare(s);
    return st;
}

mm3_status mm3_bench_host_run(mm3_bench_host *out, int i, const char *dir, double size, mm3_engine *engine,
                              const char *model_dir)
{
    const part *p = &parts[i];
    subject s = { .dir = dir, .engine = engine, .model_dir = model_dir, .size = size };
    mm3_status st;
    double processor, start;
    *out = (mm3_bench_host){ 0 };
    MM3_GOTO(prepare(&s, p));
    out->bytes = s.n_bytes;
    out->before = begin_peak();
    processor = processor_s();
    start = mm3_now_s();
    st = p->run(&s, &out->n);
    out->clock_s = mm3_now_s() - start;
    out->processor_s = processor_s() - processor;
    out->peak = peak_bytes();
done:
    mm3_tokenizer_close(&s.tokenizer);
    mm3_free(s.text);
    mm3_free(s.ids);
    return st;
}
