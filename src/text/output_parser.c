/* Splits what the model writes into reasoning, content and tool calls, while it arrives. Owns what is held back.
 * Must not know: how ids become text, or what is inside a call (tool_call.c).
 *
 * Rules. The text is cut at the mm:think tags; with thinking "enabled" it starts inside the reasoning. At the beginning
 * of a section a closer with no reasoning before it, and an opener within reasoning, vanish; elsewhere those are text.
 * A tool-call envelope ends the reasoning. It must begin with an invoke, else it is text, and so is one of which no
 * call can be read. White space that stands alone between two markers is dropped; all other text stays as it is. NUL
 * and bytes that are no UTF-8 come out as U+FFFD, as from mm3_decoder.
 *
 * Held back are: a tail that may begin a marker, white space at the beginning of a section, an envelope until it
 * closes, and a cut UTF-8 sequence. Every byte is looked at a bounded number of times, however the text is cut. */
#include <string.h>

#include "text/chat.h"
#include "text/tokenizer.h"

enum { MAX_SPACE = 64 };           /* white space between MM3__NS and its tag: bounded, so that a held tail is short */
#define REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

typedef enum state {
    LEAD,  /* at the beginning of reasoning or content: only white space so far, in `space` */
    TEXT,  /* within reasoning or content */
    HEAD,  /* behind MM3__CALLS, before the first invoke */
    BLOCK, /* in an envelope, to its closer */
} state;

struct mm3_parser {
    json_t *parameters; /* owned; of mm3__tools_by_name */
    state state;
    bool reasoning;  /* which of the two the text belongs to */
    bool has_marker; /* one was seen and removed */
    bool finished, failed;
    int n_calls;
    unsigned char cut[4]; /* the beginning of a UTF-8 sequence */
    int n_cut;
    mm3_buf in; /* valid UTF-8 that is not yet decided */
    mm3_buf space, block;
    mm3_buf text[2], calls; /* of the delta in hand: content, reasoning; JSON objects */
};

mm3_status mm3_parser_open(mm3_parser **out, const char *tools, const char *thinking)
{
    mm3_parser *p = mm3_calloc(1, sizeof *p);
    json_t *list = NULL;
    mm3__thinking mode;
    mm3_status st;
    *out = NULL;
    MM3_CHECK(p, MM3_ERR_NOMEM, "out of memory for an output parser");
    MM3_GOTO(mm3__thinking_parse(&mode, thinking));
    MM3_GOTO(mm3__tools_read(&list, tools));
    MM3_GOTO(mm3__tools_by_name(&p->parameters, list));
    p->reasoning = mode == MM3__ENABLED;
    *out = p;
    p = NULL;
done:
    json_decref(list);
    mm3_parser_close(&p);
    return st;
}

void mm3_parser_close(mm3_parser **parser)
{
    mm3_parser *p = *parser;
    if (!p) return;
    json_decref(p->parameters);
    mm3_buf_free(&p->in);
    mm3_buf_free(&p->space);
    mm3_buf_free(&p->block);
    mm3_buf_free(&p->text[0]);
    mm3_buf_free(&p->text[1]);
    mm3_buf_free(&p->calls);
    mm3_free(p);
    *parser = NULL;
}

/* ---- bytes to UTF-8 ---------------------------------------------------------------------------------------------- */

static void add_bytes(mm3_parser *p, const char *text, size_t n, bool finish)
{
    size_t i = 0, begin;
    int want;
    while (i < n) {
        for (begin = i; !p->n_cut && i < n && (unsigned char)text[i] < 0x80 && text[i];) i++;
        mm3_buf_add(&p->in, text + begin, i - begin);
        if (i == n) break;
        p->cut[p->n_cut++] = (unsigned char)text[i];
        want = text[i] || p->n_cut > 1 ? mm3__utf8_want(p->cut, (size_t)p->n_cut) : 0;
        if (want > p->n_cut) {
            i++;
            continue;
        }
        if (want)
            mm3_buf_add(&p->in, p->cut, (size_t)want);
        else
            mm3_buf_puts(&p->in, REPLACEMENT);
        if (want || p->n_cut == 1) i++; /* else the byte broke a sequence off, and is looked at anew */
        p->n_cut = 0;
    }
    if (finish && p->n_cut) mm3_buf_puts(&p->in, REPLACEMENT);
    if (finish) p->n_cut = 0;
}

/* ---- markers ----------------------------------------------------------------------------------------------------- */

typedef enum hit { NO, MAYBE, YES } hit; /* MAYBE: more text is needed to tell */

static hit match(const char *s, size_t n, const char *word, size_t *length)
{
    size_t word_n = strlen(word);
    *length = word_n;
    if (memcmp(s, word, MM3_MIN(n, word_n)) != 0) return NO;
    return n < word_n ? MAYBE : YES;
}

/* MM3__NS, white space, tag. */
static hit match_tag(const char *s, size_t n, const char *tag, size_t *length)
{
    size_t ns_n, i;
    hit h = match(s, n, MM3__NS, &ns_n);
    if (h != YES) return h;
    for (i = ns_n; i < n && i - ns_n < MAX_SPACE && mm3__is_space(s[i]);) i++;
    h = match(s + i, n - i, tag, length);
    *length += i;
    return h;
}

typedef enum marker { NONE, UNDECIDED, THINK, THINK_END, CALLS } marker;

/* What stands at the beginning of s. */
static marker marker_at(const char *s, size_t n, bool finish, size_t *length)
{
    static const marker markers[] = { THINK, THINK_END, CALLS };
    bool maybe = false;
    int i;
    for (i = 0; i < MM3_COUNT(markers); i++) {
        hit h = markers[i] == CALLS ? match_tag(s, n, "<tool_call>", length)
                                    : match(s, n, markers[i] == THINK ? MM3__THINK : MM3__THINK_END, length);
        if (h == YES) return markers[i];
        maybe = maybe || h == MAYBE;
    }
    return maybe && !finish ? UNDECIDED : NONE;
}

/* ---- the states: each takes what it can from the front of s and returns how much; 0: it needs more --------------- */

static void emit(mm3_parser *p, const char *s, size_t n) { mm3_buf_add(&p->text[p->reasoning], s, n); }

static void emit_space(mm3_parser *p)
{
    emit(p, p->space.data, p->space.n);
    mm3_buf_clear(&p->space);
}

/* A section begins: reasoning, or content. */
static void begin_section(mm3_parser *p, bool reasoning)
{
    p->reasoning = reasoning;
    p->has_marker = true;
    p->state = LEAD;
    mm3_buf_clear(&p->space);
}

static size_t begin_block(mm3_parser *p, const char *s, size_t n)
{
    mm3_buf_clear(&p->block);
    mm3_buf_add(&p->block, s, n);
    p->state = HEAD;
    return n;
}

/* The envelope is none: its text belongs to where it stands. */
static void end_as_text(mm3_parser *p)
{
    emit_space(p);
    emit(p, p->block.data, p->block.n);
    mm3_buf_clear(&p->block);
    p->state = TEXT;
}

static mm3_status end_block(mm3_parser *p)
{
    int n_calls;
    MM3_CHECK(!p->block.failed, MM3_ERR_NOMEM, "out of memory for a tool call");
    MM3_TRY(mm3__calls_read(p->block.data, p->block.n, p->parameters, p->n_calls, &p->calls, &n_calls));
    p->n_calls += n_calls;
    if (!n_calls) {
        end_as_text(p);
        return MM3_OK;
    }
    mm3_buf_clear(&p->block);
    begin_section(p, false);
    return MM3_OK;
}

static size_t step_lead(mm3_parser *p, const char *s, size_t n, bool finish)
{
    size_t i = 0;
    marker m;
    while (i < n && mm3__is_space(s[i])) i++;
    mm3_buf_add(&p->space, s, i);
    if (i) return i;
    m = marker_at(s, n, finish, &i);
    switch (m) {
    case UNDECIDED:
        return 0;
    case THINK:
        begin_section(p, true);
        return i;
    case THINK_END:
        begin_section(p, false);
        return i;
    case CALLS:
        return begin_block(p, s, i);
    case NONE:
        break;
    }
    emit_space(p);
    emit(p, s, 1);
    p->state = TEXT;
    return 1;
}

static size_t step_text(mm3_parser *p, const char *s, size_t n, bool finish)
{
    size_t i = 0;
    marker m;
    while (i < n && s[i] != '<' && s[i] != ']') i++;
    emit(p, s, i);
    if (i) return i;
    m = marker_at(s, n, finish, &i);
    if (m == UNDECIDED) return 0;
    if (m == CALLS) return begin_block(p, s, i);
    if (m == (p->reasoning ? THINK_END : THINK)) {
        begin_section(p, !p->reasoning);
        return i;
    }
    if (m == NONE) i = 1;
    emit(p, s, i);
    return i;
}

static size_t step_head(mm3_parser *p, const char *s, size_t n, bool finish)
{
    static const struct {
        const char *tag;
        bool bare; /* MM3__NS may be missing */
        state next;
    } tags[] = { { "<invoke", true, BLOCK }, { "<tool_call>", false, HEAD }, { "</tool_call>", false, TEXT } };
    bool maybe = false;
    size_t length = 0;
    int i;
    if (mm3__is_space(s[0])) {
        mm3_buf_add(&p->block, s, 1);
        return 1;
    }
    for (i = 0; i < MM3_COUNT(tags); i++) {
        hit h = match_tag(s, n, tags[i].tag, &length), bare = NO;
        if (h != YES && tags[i].bare) bare = match(s, n, tags[i].tag, &length);
        maybe = maybe || h == MAYBE || bare == MAYBE;
        if (h != YES && bare != YES) continue;
        mm3_buf_add(&p->block, s, length);
        p->state = tags[i].next;
        if (p->state == TEXT) end_as_text(p);
        return length;
    }
    if (maybe && !finish) return 0;
    end_as_text(p);
    return 0; /* decided, but s is for the next state */
}

static mm3_status step_block(mm3_parser *p, const char *s, size_t n, bool finish, size_t *taken)
{
    const char *mark = memchr(s, ']', n);
    size_t length;
    hit h;
    *taken = mark ? (size_t)(mark - s) : n;
    mm3_buf_add(&p->block, s, *taken);
    if (*taken) return MM3_OK;
    h = match_tag(s, n, "</tool_call>", &length);
    if (h == MAYBE && !finish) return MM3_OK;
    *taken = h == YES ? length : 1;
    mm3_buf_add(&p->block, s, *taken);
    return h == YES ? end_block(p) : MM3_OK;
}

static mm3_status parse(mm3_parser *p, bool finish)
{
    size_t at = 0;
    while (at < p->in.n) {
        const char *s = p->in.data + at;
        size_t n = p->in.n - at, taken = 0;
        state before = p->state;
        switch (p->state) {
        case LEAD:
            taken = step_lead(p, s, n, finish);
            break;
        case TEXT:
            taken = step_text(p, s, n, finish);
            break;
        case HEAD:
            taken = step_head(p, s, n, finish);
            break;
        case BLOCK:
            MM3_TRY(step_block(p, s, n, finish, &taken));
            break;
        }
        if (!taken && p->state == before) break;
        at += taken;
    }
    if (p->in.n) memmove(p->in.data, p->in.data + at, p->in.n - at + 1);
    p->in.n -= at;
    if (finish && p->state == HEAD) end_as_text(p);
    if (finish && p->state == BLOCK) MM3_TRY(end_block(p));
    if (finish && p->state == LEAD && !p->has_marker) emit_space(p);
    return MM3_OK;
}

/* ---- deltas ------------------------------------------------------------------------------------------------------ */

static mm3_status write_delta(mm3_parser *p, char **delta)
{
    static const char *const names[] = { "content", "reasoning_content" };
    mm3_buf b = { 0 };
    int i;
    mm3_buf_puts(&b, "{");
    for (i = 1; i >= 0; i--) {
        if (!p->text[i].n) continue;
        mm3_buf_printf(&b, "%s\"%s\": ", b.n > 1 ? ", " : "", names[i]);
        mm3__json_write_string(&b, p->text[i].data, p->text[i].n);
    }
    if (p->calls.n) {
        mm3_buf_printf(&b, "%s\"tool_calls\": [", b.n > 1 ? ", " : "");
        mm3_buf_add(&b, p->calls.data, p->calls.n);
        mm3_buf_puts(&b, "]");
    }
    mm3_buf_puts(&b, "}");
    return mm3_buf_take(&b, delta, NULL);
}

mm3_status mm3_parser_push(mm3_parser *p, const char *text, size_t n_bytes, bool finish, char **delta)
{
    mm3_status st;
    *delta = NULL;
    MM3_CHECK(!p->failed, MM3_ERR_NOMEM, "the output parser ran out of memory before: open a new one");
    MM3_CHECK(!p->finished, MM3_ERR_ARG, "the output parser was told that its text is finished: open a new one");
    p->finished = finish;
    p->failed = true; /* until all went well: a text with a hole in it must not go on */
    mm3_buf_clear(&p->text[0]);
    mm3_buf_clear(&p->text[1]);
    mm3_buf_clear(&p->calls);
    add_bytes(p, text, n_bytes, finish);
    st = p->in.failed ? MM3_ERR_NOMEM : parse(p, finish);
    if (p->in.failed || p->space.failed || p->block.failed || p->text[0].failed || p->text[1].failed || p->calls.failed)
        st = MM3_ERR_NOMEM;
    if (st) return mm3_fail(st, MM3_HERE, "out of memory in the output parser");
    MM3_TRY(write_delta(p, delta));
    p->failed = false;
    return MM3_OK;
}
