/* fuzz: conversations to prompts. Input: up to three parts, apart by a line "%%": the thinking mode (empty: none; with
 * a '+' at its end the assistant's turn is opened), the messages, the tools. A single part is the messages.
 * Properties: the controls of a prompt are markers, as many as its messages ask for, whatever the caller's text says;
 * in the ids they are these and no others; what users say stands in the prompt; the same JSON otherwise written gives
 * the same prompt. */
#include <stdlib.h>

#include "fuzz/fuzz.h"
#include "support/alloc_faults.h"
#include "text/chat.h"
#include "text/tokenizer.h"

typedef struct input {
    char *mode, *messages, *tools; /* owned; tools may be NULL */
    const char *thinking;          /* in mode; NULL: none */
    bool generate;
} input;

static input read_input(const uint8_t *data, size_t n)
{
    input in = { .generate = true };
    char *first = fuzz_part(&data, &n, NULL);
    if (!data) {
        in.messages = first;
        return in;
    }
    in.mode = first;
    in.generate = *first && first[strlen(first) - 1] == '+';
    if (in.generate) first[strlen(first) - 1] = 0;
    in.thinking = *first ? first : NULL;
    in.messages = fuzz_part(&data, &n, NULL);
    in.tools = fuzz_part(&data, &n, NULL);
    return in;
}

static const mm3_tokenizer *tiny(void)
{
    static mm3_tokenizer *t;
    if (!t) FUZZ_CHECK(mm3_tokenizer_open(&t, "models/tiny-m3") == MM3_OK, "%s", mm3_last_error());
    return t;
}

static int count_controls(const mm3__rendered *r, const char *marker)
{
    int n = 0;
    for (int i = 0; i < r->n_control; i++)
        n += r->control[i].n == strlen(marker) && memcmp(r->text.data + r->control[i].at, marker, strlen(marker)) == 0;
    return n;
}

static void check_controls(const mm3__rendered *r)
{
    static const char *const markers[] = {
        "]~!b[",        "]~b]",        "[e~[",         MM3__NS,       MM3__THINK,
        MM3__THINK_END, "<tool_call>", "</tool_call>", "]<]image[>[", "]<]video[>["
    };
    int n = 0;
    size_t at = 0;
    for (int i = 0; i < r->n_control; i++) {
        FUZZ_CHECK(r->control[i].at >= at && r->control[i].at + r->control[i].n <= r->text.n, "controls out of order");
        at = r->control[i].at + r->control[i].n;
    }
    for (int i = 0; i < MM3_COUNT(markers); i++) n += count_controls(r, markers[i]);
    FUZZ_CHECK(n == r->n_control, "%d controls are no marker", r->n_control - n);
}

static bool has_role(const json_t *message, const char *role)
{
    const json_t *v = json_object_get(message, "role");
    return json_string_length(v) == strlen(role) && strcmp(json_string_value(v), role) == 0;
}

/* What the messages ask for, counted once more. */
static void check_against_messages(const mm3__rendered *r, const json_t *messages, bool generate)
{
    int n_blocks = 2; /* system, developer */
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *m = json_array_get(messages, i), *content = json_object_get(m, "content");
        bool is_user = has_role(m, "user"), is_tool = has_role(m, "tool"), is_assistant = has_role(m, "assistant");
        FUZZ_CHECK(is_user || is_tool || is_assistant || has_role(m, "system") || has_role(m, "developer") ||
                       has_role(m, "root"),
                   "messages[%zu] has no role", i);
        n_blocks += is_user || is_assistant || (is_tool && !(i && has_role(json_array_get(messages, i - 1), "tool")));
        if (is_user && json_is_string(content) && !mm3__json_integer(content))
            FUZZ_CHECK(memmem(r->text.data, r->text.n, json_string_value(content), json_string_length(content)),
                       "the text of messages[%zu] is missing", i);
    }
    FUZZ_CHECK(count_controls(r, "]~!b[") == 1, "%d starts", count_controls(r, "]~!b["));
    FUZZ_CHECK(count_controls(r, "]~b]") == n_blocks + generate, "%d roles of %d", count_controls(r, "]~b]"),
               n_blocks + generate);
    FUZZ_CHECK(count_controls(r, "[e~[") == n_blocks, "%d ends of %d", count_controls(r, "[e~["), n_blocks);
}

static void check_rewritten(const input *in, const mm3__rendered *want)
{
    json_error_t e;
    json_t *messages = NULL, *tools = NULL;
    mm3_buf m = { 0 }, t = { 0 };
    mm3__rendered r = { 0 };
    FUZZ_CHECK(mm3__json_load(&messages, in->messages, strlen(in->messages), 0, &e) == MM3_OK, "%s", e.text);
    check_against_messages(want, messages, in->generate);
    mm3__json_write(&m, messages);
    if (in->tools) FUZZ_CHECK(mm3__json_load(&tools, in->tools, strlen(in->tools), 0, &e) == MM3_OK, "%s", e.text);
    if (tools) mm3__json_write(&t, tools);
    FUZZ_CHECK(mm3__chat_render(&r, m.data, tools ? t.data : NULL, in->thinking, in->generate) == MM3_OK,
               "otherwise written: %s", mm3_last_error());
    FUZZ_CHECK(r.text.n == want->text.n && memcmp(r.text.data, want->text.data, r.text.n) == 0 &&
                   r.n_control == want->n_control,
               "otherwise written it is '%s', not '%s'", r.text.data, want->text.data);
    mm3__rendered_free(&r);
    mm3_buf_free(&m);
    mm3_buf_free(&t);
    json_decref(messages);
    json_decref(tools);
}

/* Append the NFC of a run of plain text. */
static void add_plain(mm3_buf *out, const mm3__rendered *r, size_t begin, size_t end)
{
    bool same;
    const char *text = r->text.data + begin;
    mm3_buf nfc = { 0 };
    FUZZ_CHECK(mm3__nfc(&nfc, (const unsigned char *)text, end - begin, &same) == MM3_OK, "%s", mm3_last_error());
    mm3_buf_add(out, same ? text : nfc.data, same ? end - begin : nfc.n);
    mm3_buf_free(&nfc);
}

static void check_ids(const input *in, const mm3__rendered *r)
{
    int32_t *ids;
    int n_ids, i_control = 0;
    size_t at = 0, n_back;
    mm3_buf want = { 0 };
    char *back;
    FUZZ_CHECK(mm3_chat_encode(tiny(), in->messages, in->tools, in->thinking, in->generate, &ids, &n_ids) == MM3_OK,
               "%s", mm3_last_error());
    for (int i = 0; i < n_ids; i++) {
        const mm3__token *t = &tiny()->vocabulary.token[ids[i]];
        const mm3__control *c = &r->control[i_control];
        if (!t->added) continue;
        FUZZ_CHECK(i_control < r->n_control, "more control tokens than controls");
        FUZZ_CHECK(t->n_bytes == c->n &&
                       memcmp(tiny()->vocabulary.text.data + t->start, r->text.data + c->at, c->n) == 0,
                   "control %d is token %d", i_control, (int)ids[i]);
        i_control++;
    }
    FUZZ_CHECK(i_control == r->n_control, "%d control tokens of %d controls", i_control, r->n_control);
    for (int i = 0; i < r->n_control; i++) {
        add_plain(&want, r, at, r->control[i].at);
        mm3_buf_add(&want, r->text.data + r->control[i].at, r->control[i].n);
        at = r->control[i].at + r->control[i].n;
    }
    add_plain(&want, r, at, r->text.n);
    FUZZ_CHECK(mm3_tokenizer_decode(tiny(), ids, n_ids, true, &back, &n_back) == MM3_OK, "%s", mm3_last_error());
    FUZZ_CHECK(n_back == want.n && memcmp(back, want.data, n_back) == 0, "the ids say '%s', the prompt '%s'", back,
               want.data);
    mm3_free(back);
    mm3_free(ids);
    mm3_buf_free(&want);
}

static void check(const input *in, const uint8_t *data, size_t n)
{
    mm3__rendered r = { 0 }, again = { 0 };
    int32_t *ids = NULL;
    int n_ids = 0;
    long before = alloc_count(), n_allocations;
    mm3_status st;
    fuzz_forget_error();
    st = mm3__chat_render(&r, in->messages, in->tools, in->thinking, in->generate);
    n_allocations = alloc_count() - before;
    if (st != MM3_OK) {
        FUZZ_CHECK(st == MM3_ERR_ARG, "%s", mm3_status_name(st));
        fuzz_error(st, NULL);
        FUZZ_CHECK(mm3_chat_encode(tiny(), in->messages, in->tools, in->thinking, in->generate, &ids, &n_ids) == st &&
                       !ids && n_ids == 0,
                   "ids in spite of an error");
    } else {
        check_controls(&r);
        check_rewritten(in, &r);
        check_ids(in, &r);
    }
    mm3__rendered_free(&r);
    if (fuzz_memory_fails(data, n, n_allocations)) {
        mm3_status st_again = mm3__chat_render(&again, in->messages, in->tools, in->thinking, in->generate);
        fuzz_memory_failed(st_again, st);
        mm3__rendered_free(&again);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    input in = read_input(data, n);
    (void)tiny();
    if (in.messages) check(&in, data, n);
    free(in.mode);
    free(in.messages);
    free(in.tools);
    return 0;
}
