/* MiniMax-M3's chat form: messages and tools to a prompt. Owns every word that the template adds.
 * Must not know: how text becomes tokens, or what the model answers. Read next: chat_encode.c, output_parser.c. */
#include <stdio.h>
#include <string.h>

#include "text/chat.h"

/* source: chat_template.jinja of the checkpoint; the strings below are its own */
#define IDENTITY                                                                                                      \
    "Your model version is MiniMax-M3, developed by MiniMax. Knowledge cutoff: January 2026. Founded in early 2022, " \
    "MiniMax is a global AI foundation model company committed to advancing the frontiers of AI towards AGI."
#define THINKING_HEAD                                                                                              \
    "\n\n<thinking_instructions>\n"                                                                                \
    "You have a thinking capability that allows you to reason step by step before responding. When thinking is "   \
    "enabled, wrap your reasoning in <mm:think></mm:think> tags before your response. When thinking is disabled, " \
    "begin your response directly after the </mm:think> prefix. When thinking is adaptive, decide on your own "    \
    "whether to think for the current turn.\nCurrent thinking mode: "
#define THINKING_TAIL "\n</thinking_instructions>"
#define ASSISTANT "You are a helpful assistant."
#define TOOLS_HEAD                                                                 \
    "\n\n# Tools\nYou may call one or more tools to assist with the user query.\n" \
    "Here are the tools available in JSONSchema format:\n\n<tools>\n"
#define TOOLS_TAIL                                                                                                   \
    "</tools>\n\nTo call tools, wrap all invocations in a single " MM3__CALLS MM3__CALLS_END " block. Parameter "    \
    "values containing nested objects or arrays are recursively expanded into XML elements. Example:\n\n" MM3__CALLS \
    "\n" MM3__NS "<invoke name=\"tool-name-1\">" MM3__NS "<param-1>value-1" MM3__NS "</param-1>" MM3__NS             \
    "<param-2>" MM3__NS "<item>" MM3__NS "<key-a>val-a" MM3__NS "</key-a>" MM3__NS "<key-b>val-b" MM3__NS            \
    "</key-b>" MM3__NS "</item>" MM3__NS "</param-2>" MM3__NS "</invoke>\n" MM3__NS                                  \
    "<invoke name=\"tool-name-2\">" MM3__NS "<param-1>value-1" MM3__NS "</param-1>" MM3__NS                          \
    "</invoke>\n" MM3__CALLS_END
#define START "]~!b["
#define ROLE "]~b]"
#define END "[e~[\n"

static const struct {
    const char *name, *instruction, *prefix;
} modes[] = {
    [MM3__ADAPTIVE] = { "adaptive",
                        "adaptive. You are encouraged to think for complex decision-making, multi-step reasoning, or "
                        "when analyzing function/tool results.",
                        "" },
    [MM3__ENABLED] = { "enabled",
                       "enabled. You MUST think step by step before every response, including after receiving "
                       "function/tool results.",
                       MM3__THINK },
    [MM3__DISABLED] = { "disabled", "disabled. Do not output any thinking process.", MM3__THINK_END },
};

/* What the template itself may write as a control token. In the caller's text the same words are plain text. */
static const char *const markers[] = { START,          "]~b]",        "[e~[",         MM3__NS,       MM3__THINK,
                                       MM3__THINK_END, "<tool_call>", "</tool_call>", "]<]image[>[", "]<]video[>[" };

/* ---- building the prompt ----------------------------------------------------------------------------------------- */

static void add_control(mm3__rendered *r, size_t at, size_t n)
{
    if (r->n_control == r->max_control) {
        int max = MM3_MAX(64, r->max_control * 2);
        mm3__control *grown = mm3_realloc(r->control, mm3_mul((size_t)max, sizeof *grown));
        if (!grown) {
            r->text.failed = true;
            return;
        }
        r->control = grown;
        r->max_control = max;
    }
    r->control[r->n_control++] = (mm3__control){ at, n };
}

void mm3__rendered_free(mm3__rendered *r)
{
    mm3_buf_free(&r->text);
    mm3_free(r->control);
    *r = (mm3__rendered){ 0 };
}

/* The template's own words: markers in them are controls. */
static void own(mm3__rendered *r, const char *s)
{
    size_t at = r->text.n;
    mm3_buf_puts(&r->text, s);
    while (*s) {
        size_t n = 1;
        int i;
        for (i = 0; i < MM3_COUNT(markers); i++) {
            if (strncmp(s, markers[i], strlen(markers[i])) != 0) continue;
            n = strlen(markers[i]);
            add_control(r, at, n);
            break;
        }
        s += n;
        at += n;
    }
}

/* The caller's words: plain text, whatever they say. */
static void say(mm3__rendered *r, const char *s, size_t n) { mm3_buf_add(&r->text, s, n); }

static void say_json_text(mm3__rendered *r, const json_t *v) { say(r, json_string_value(v), json_string_length(v)); }

/* The bytes [begin, end) of another text, with the controls among them. */
static void say_part(mm3__rendered *r, const mm3__rendered *from, size_t begin, size_t end)
{
    size_t shift = r->text.n;
    int i;
    if (from->text.failed) r->text.failed = true;
    if (begin >= end) return;
    say(r, from->text.data + begin, end - begin);
    for (i = 0; i < from->n_control; i++)
        if (from->control[i].at >= begin && from->control[i].at < end)
            add_control(r, from->control[i].at - begin + shift, from->control[i].n);
}

/* ---- checking what the caller gave ------------------------------------------------------------------------------- */

/* A caller's word for an error line: cut at a whole character, one line. */
typedef struct quotable {
    char s[48];
} quotable;
static quotable quote_bytes(const char *s, size_t n_bytes)
{
    quotable q;
    size_t i, n = MM3_MIN(n_bytes, sizeof q.s - 1);
    bool cut = n < n_bytes;
    if (cut)
        for (n -= 3; n > 0 && ((unsigned char)s[n] & 0xC0) == 0x80;) n--;
    for (i = 0; i < n; i++) q.s[i] = (unsigned char)s[i] < 0x20 ? '?' : s[i];
    memcpy(q.s + n, cut ? "..." : "", cut ? 4 : 1);
    return q;
}
static quotable quote(const char *s) { return quote_bytes(s, strlen(s)); }
static quotable quote_text(const json_t *v) { return quote_bytes(json_string_value(v), json_string_length(v)); }

static const char *type_name(const json_t *v)
{
    if (!v) return "missing";
    if (mm3__json_integer(v)) return "a number";
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_NULL:
        return "null";
    default:
        return "a boolean";
    }
}

/* Whether v is this string, and not one that only begins with it before a NUL. */
static bool is_word(const json_t *v, const char *word)
{
    return mm3__json_is_text(v) && json_string_length(v) == strlen(word) && strcmp(json_string_value(v), word) == 0;
}

static bool has_nul(const json_t *text) { return strlen(json_string_value(text)) != json_string_length(text); }

static mm3_status read_json(json_t **out, const char *text, const char *what)
{
    json_error_t e;
    mm3_status st = mm3__json_load(out, text, strlen(text), JSON_REJECT_DUPLICATES, &e);
    if (st == MM3_ERR_NOMEM) return mm3_fail(st, MM3_HERE, "%s: out of memory while reading JSON", what);
    if (st != MM3_OK)
        return mm3_fail(st, MM3_HERE, "%s: not valid JSON at line %d column %d: %s", what, e.line, e.column, e.text);
    return MM3_OK;
}

mm3_status mm3__thinking_parse(mm3__thinking *out, const char *thinking)
{
    int i;
    *out = MM3__ADAPTIVE;
    if (!thinking) return MM3_OK;
    for (i = 0; i < MM3_COUNT(modes); i++) {
        if (strcmp(thinking, modes[i].name) != 0) continue;
        *out = (mm3__thinking)i;
        return MM3_OK;
    }
    return mm3_fail(MM3_ERR_ARG, MM3_HERE, "thinking mode \"%s\" is unknown: use enabled, disabled or adaptive",
                    quote(thinking).s);
}

static mm3_status check_tool(const json_t *tool, size_t i, json_t *seen)
{
    const json_t *type = json_object_get(tool, "type"), *function = json_object_get(tool, "function");
    const json_t *name = json_object_get(function, "name"), *parameters = json_object_get(function, "parameters");
    MM3_CHECK(json_is_object(tool), MM3_ERR_ARG,
              "tools[%zu] is %s; expected {\"type\": \"function\", \"function\": ...}", i, type_name(tool));
    MM3_CHECK(!type || is_word(type, "function"), MM3_ERR_ARG, "tools[%zu].type is %s; only \"function\" is known", i,
              mm3__json_is_text(type) ? quote_text(type).s : type_name(type));
    MM3_CHECK(json_is_object(function), MM3_ERR_ARG, "tools[%zu].function is %s; expected an object with a name", i,
              type_name(function));
    MM3_CHECK(mm3__json_is_text(name) && json_string_length(name), MM3_ERR_ARG,
              "tools[%zu].function.name is %s; expected a string that is not empty", i,
              json_is_string(name) ? "empty" : type_name(name));
    MM3_CHECK(!has_nul(name), MM3_ERR_ARG, "tools[%zu].function.name holds a NUL behind \"%s\"", i,
              quote(json_string_value(name)).s);
    MM3_CHECK(!parameters || json_is_null(parameters) || json_is_object(parameters), MM3_ERR_ARG,
              "tools[%zu].function.parameters is %s; expected an object (a JSON schema)", i, type_name(parameters));
    MM3_CHECK(!json_object_get(seen, json_string_value(name)), MM3_ERR_ARG,
              "tools[%zu]: a tool named \"%s\" is already there; names must differ", i,
              quote(json_string_value(name)).s);
    MM3_CHECK(json_object_set_new(seen, json_string_value(name), json_true()) == 0, MM3_ERR_NOMEM,
              "tools[%zu]: out of memory", i);
    return MM3_OK;
}

mm3_status mm3__tools_read(json_t **out, const char *tools)
{
    mm3_status st = MM3_OK;
    json_t *list = NULL, *seen = json_object();
    size_t i;
    *out = NULL;
    if (!tools) goto done;
    MM3_GOTO(read_json(&list, tools, "tools"));
    if (!json_is_array(list)) {
        st = mm3_fail(MM3_ERR_ARG, MM3_HERE, "tools is %s; expected an array of functions", type_name(list));
        goto done;
    }
    for (i = 0; i < json_array_size(list); i++) MM3_GOTO(check_tool(json_array_get(list, i), i, seen));
    *out = json_incref(list);
done:
    json_decref(list);
    json_decref(seen);
    return st;
}

/* ---- parts of a message ------------------------------------------------------------------------------------------ */

static mm3_status say_content_part(mm3__rendered *r, const json_t *part, size_t i_message, size_t i_part)
{
    const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
    if (mm3__json_is_text(part)) {
        say_json_text(r, part);
        return MM3_OK;
    }
    MM3_CHECK(json_is_object(part), MM3_ERR_ARG, "messages[%zu].content[%zu] is %s; expected {\"type\": \"text\", ...}",
              i_message, i_part, type_name(part));
    MM3_CHECK(mm3__json_is_text(type), MM3_ERR_ARG,
              "messages[%zu].content[%zu].type is %s; expected \"text\", \"image\" or \"video\"", i_message, i_part,
              type_name(type));
    if (is_word(type, "image")) {
        own(r, "]<]image[>[");
    } else if (is_word(type, "video")) {
        own(r, "]<]video[>[");
    } else {
        MM3_CHECK(is_word(type, "text"), MM3_ERR_ARG,
                  "messages[%zu].content[%zu].type is \"%s\"; expected \"text\", \"image\" or \"video\"", i_message,
                  i_part, quote_text(type).s);
        MM3_CHECK(mm3__json_is_text(text), MM3_ERR_ARG, "messages[%zu].content[%zu].text is %s; expected a string",
                  i_message, i_part, type_name(text));
        say_json_text(r, text);
    }
    return MM3_OK;
}

/* A string, or an array of parts joined without separator; null and absent are empty where `optional`. */
static mm3_status say_content(mm3__rendered *r, const json_t *message, size_t i_message, bool optional)
{
    const json_t *content = json_object_get(message, "content");
    size_t i;
    if (optional && (!content || json_is_null(content))) return MM3_OK;
    if (mm3__json_is_text(content)) {
        say_json_text(r, content);
        return MM3_OK;
    }
    MM3_CHECK(json_is_array(content), MM3_ERR_ARG,
              "messages[%zu].content is %s; expected a string or an array of parts", i_message, type_name(content));
    for (i = 0; i < json_array_size(content); i++)
        MM3_TRY(say_content_part(r, json_array_get(content, i), i_message, i));
    return MM3_OK;
}

/* An argument's value: objects and arrays become tags, null becomes nothing. Its depth is bounded by the parser's. */
static void say_value(mm3__rendered *r, const json_t *v)
{
    const char *key;
    json_t *member;
    size_t i;
    if (mm3__json_is_text(v))
        say_json_text(r, v);
    else if (json_is_boolean(v))
        own(r, json_is_true(v) ? "true" : "false");
    else if (json_is_number(v) || json_is_string(v))
        mm3__json_write_number(&r->text, v);
    for (i = 0; i < json_array_size(v); i++) {
        own(r, MM3__NS "<item>");
        say_value(r, json_array_get(v, i));
        own(r, MM3__NS "</item>");
    }
    json_object_foreach((json_t *)(uintptr_t)v, key, member)
    {
        if (json_is_null(member)) continue;
        own(r, MM3__NS "<");
        say(r, key, strlen(key));
        own(r, ">");
        say_value(r, member);
        own(r, MM3__NS "</");
        say(r, key, strlen(key));
        own(r, ">");
    }
}

static bool is_blank(const json_t *text)
{
    const char *s = json_string_value(text);
    return strspn(s, " \t\r\n") == json_string_length(text);
}

/* Arguments come as an object, or as a string that holds one; none at all are an empty object. */
static mm3_status say_arguments(mm3__rendered *r, const json_t *arguments, size_t i_message, size_t i_call)
{
    json_t *parsed = NULL;
    mm3_status st = MM3_OK;
    if (!arguments || json_is_null(arguments)) return MM3_OK;
    if (mm3__json_is_text(arguments)) {
        json_error_t e;
        if (is_blank(arguments)) return MM3_OK;
        st = mm3__json_load(&parsed, json_string_value(arguments), json_string_length(arguments),
                            JSON_REJECT_DUPLICATES, &e);
        MM3_CHECK(st != MM3_ERR_NOMEM, st, "messages[%zu].tool_calls[%zu]: out of memory", i_message, i_call);
        MM3_CHECK(st == MM3_OK, st, "messages[%zu].tool_calls[%zu].function.arguments: not valid JSON: %s", i_message,
                  i_call, e.text);
        arguments = parsed;
    }
    if (json_is_object(arguments))
        say_value(r, arguments);
    else
        st = mm3_fail(MM3_ERR_ARG, MM3_HERE,
                      "messages[%zu].tool_calls[%zu].function.arguments is %s; expected an object", i_message, i_call,
                      type_name(arguments));
    json_decref(parsed);
    return st;
}

static mm3_status say_calls(mm3__rendered *r, const json_t *calls, size_t i_message)
{
    size_t i;
    own(r, MM3__CALLS "\n");
    for (i = 0; i < json_array_size(calls); i++) {
        const json_t *function = json_object_get(json_array_get(calls, i), "function");
        const json_t *name = json_object_get(function, "name");
        MM3_CHECK(json_is_object(function), MM3_ERR_ARG,
                  "messages[%zu].tool_calls[%zu].function is %s; expected an object with name and arguments", i_message,
                  i, type_name(function));
        MM3_CHECK(mm3__json_is_text(name) && json_string_length(name), MM3_ERR_ARG,
                  "messages[%zu].tool_calls[%zu].function.name is %s; expected a string that is not empty", i_message,
                  i, json_is_string(name) ? "empty" : type_name(name));
        own(r, MM3__NS "<invoke name=\"");
        say_json_text(r, name);
        own(r, "\">");
        MM3_TRY(say_arguments(r, json_object_get(function, "arguments"), i_message, i));
        own(r, MM3__NS "</invoke>\n");
    }
    own(r, MM3__CALLS_END);
    return MM3_OK;
}

/* ---- one assistant message --------------------------------------------------------------------------------------- */

static const char *find(const char *s, const char *end, const char *word)
{
    return s < end ? memmem(s, (size_t)(end - s), word, strlen(word)) : NULL;
}
static const char *after_last(const char *s, const char *end, const char *word)
{
    const char *hit;
    while ((hit = find(s, end, word))) s = hit + strlen(word);
    return s;
}

/* BODY without calls, from a content that may hold its own reasoning: reasoning is what stands before the first
 * closer and after the last opener there, text what stands after the last closer, both without outer newlines. */
static void say_split(mm3__rendered *r, const mm3__rendered *content)
{
    const char *s = content->text.data, *end = s + content->text.n, *first = find(s, end, MM3__THINK_END);
    const char *text = after_last(first, end, MM3__THINK_END), *reasoning = after_last(s, first, MM3__THINK);
    while (reasoning < first && *reasoning == '\n') reasoning++;
    while (first > reasoning && first[-1] == '\n') first--;
    while (text < end && *text == '\n') text++;
    while (end > text && end[-1] == '\n') end--;
    if (first > reasoning) own(r, MM3__THINK);
    say_part(r, content, (size_t)(reasoning - s), (size_t)(first - s));
    own(r, MM3__THINK_END);
    say_part(r, content, (size_t)(text - s), (size_t)(end - s));
}

/* Past reasoning: "reasoning_content", or "reasoning" where that is no string. NULL: look into the content. */
static mm3_status get_reasoning(const json_t *message, size_t i_message, const json_t **out)
{
    static const char *const keys[] = { "reasoning", "reasoning_content" };
    int i;
    *out = NULL;
    for (i = 0; i < MM3_COUNT(keys); i++) {
        const json_t *v = json_object_get(message, keys[i]);
        MM3_CHECK(!v || json_is_null(v) || mm3__json_is_text(v), MM3_ERR_ARG,
                  "messages[%zu].%s is %s; expected a string or null", i_message, keys[i], type_name(v));
        if (json_is_string(v)) *out = v;
    }
    return MM3_OK;
}

static mm3_status say_assistant(mm3__rendered *r, const json_t *message, size_t i_message, bool *has_calls)
{
    const json_t *calls = json_object_get(message, "tool_calls"), *reasoning;
    mm3__rendered content = { 0 };
    mm3_status st;
    MM3_CHECK(!calls || json_is_null(calls) || json_is_array(calls), MM3_ERR_ARG,
              "messages[%zu].tool_calls is %s; expected an array", i_message, type_name(calls));
    *has_calls = json_array_size(calls) > 0;
    MM3_TRY(get_reasoning(message, i_message, &reasoning));
    own(r, ROLE "ai\n");
    MM3_GOTO(say_content(&content, message, i_message, true));
    if (reasoning || content.text.failed || !content.text.n ||
        !find(content.text.data, content.text.data + content.text.n, MM3__THINK_END)) {
        if (reasoning && json_string_length(reasoning)) {
            own(r, MM3__THINK);
            say_json_text(r, reasoning);
        }
        own(r, MM3__THINK_END);
        say_part(r, &content, 0, content.text.n);
    } else {
        say_split(r, &content);
    }
    if (*has_calls) MM3_GOTO(say_calls(r, calls, i_message));
    own(r, END);
done:
    mm3__rendered_free(&content);
    return st;
}

/* ---- the whole prompt -------------------------------------------------------------------------------------------- */

typedef enum role { ROOT, SYSTEM, DEVELOPER, USER, AI, TOOL } role;

static mm3_status get_role(const json_t *message, size_t i_message, role *out)
{
    static const char *const names[] = { "root", "system", "developer", "user", "assistant", "tool" };
    const json_t *v = json_object_get(message, "role");
    int i;
    MM3_CHECK(json_is_object(message), MM3_ERR_ARG, "messages[%zu] is %s; expected an object with role and content",
              i_message, type_name(message));
    MM3_CHECK(mm3__json_is_text(v), MM3_ERR_ARG, "messages[%zu].role is %s; expected a string", i_message,
              type_name(v));
    for (i = 0; i < MM3_COUNT(names); i++) {
        if (!is_word(v, names[i])) continue;
        *out = (role)i;
        return MM3_OK;
    }
    return mm3_fail(MM3_ERR_ARG, MM3_HERE,
                    "messages[%zu].role is \"%s\"; expected user, assistant, tool, system, developer or root",
                    i_message, quote_text(v).s);
}

/* "]~!b[]~b]system ...": who the model is, and how it is to think. */
static mm3_status say_system(mm3__rendered *r, const json_t *messages, mm3__thinking thinking)
{
    role first;
    size_t before;
    own(r, START ROLE "system\n");
    before = r->text.n;
    MM3_TRY(get_role(json_array_get(messages, 0), 0, &first));
    if (first == ROOT) MM3_TRY(say_content(r, json_array_get(messages, 0), 0, false));
    if (r->text.n == before) own(r, IDENTITY); /* an empty root message counts as none, as in the template */
    own(r, THINKING_HEAD);
    own(r, modes[thinking].instruction);
    own(r, THINKING_TAIL END);
    return MM3_OK;
}

/* "]~b]developer ...": what the caller wants of it. The template knows one such message, in first place or after a
 * root message, and drops later ones silently; here they follow in order, each after a blank line. */
static mm3_status say_developer(mm3__rendered *r, const json_t *messages, const json_t *tools)
{
    size_t i, n = json_array_size(messages), begin;
    role who, first;
    own(r, ROLE "developer\n");
    begin = r->text.n;
    MM3_TRY(get_role(json_array_get(messages, 0), 0, &first));
    for (i = 0; i < n; i++) {
        bool leads = i == (first == ROOT);
        size_t before = r->text.n;
        MM3_TRY(get_role(json_array_get(messages, i), i, &who));
        if (who == SYSTEM || who == DEVELOPER) {
            mm3__rendered text = { 0 };
            mm3_status st = say_content(&text, json_array_get(messages, i), i, false);
            if (st == MM3_OK && text.text.n && before > begin) own(r, "\n\n");
            if (st == MM3_OK) say_part(r, &text, 0, text.text.n);
            mm3__rendered_free(&text);
            MM3_TRY(st);
        }
        if (leads && r->text.n == begin) own(r, ASSISTANT);
    }
    if (r->text.n == begin) own(r, ASSISTANT);
    if (json_array_size(tools)) {
        own(r, TOOLS_HEAD);
        for (i = 0; i < json_array_size(tools); i++) {
            own(r, "<tool>");
            mm3__json_write(&r->text, json_object_get(json_array_get(tools, i), "function"));
            own(r, "</tool>\n");
        }
        own(r, TOOLS_TAIL);
    }
    own(r, END);
    return MM3_OK;
}

static mm3_status say_messages(mm3__rendered *r, const json_t *messages)
{
    size_t i, n = json_array_size(messages);
    bool has_calls = false; /* of the latest assistant message */
    role before = ROOT, who, next;
    for (i = 0; i < n; i++, before = who) {
        const json_t *message = json_array_get(messages, i);
        MM3_TRY(get_role(message, i, &who));
        switch (who) {
        case ROOT:
            MM3_CHECK(i == 0, MM3_ERR_ARG, "messages[%zu]: a root message must be the first message", i);
            break;
        case SYSTEM:
        case DEVELOPER:
            break; /* in the developer block */
        case USER:
            own(r, ROLE "user\n");
            MM3_TRY(say_content(r, message, i, false));
            own(r, END);
            break;
        case AI:
            MM3_TRY(say_assistant(r, message, i, &has_calls));
            break;
        case TOOL:
            MM3_CHECK(has_calls, MM3_ERR_ARG,
                      "messages[%zu]: a tool message, but the assistant message before it has no tool_calls", i);
            if (before != TOOL) own(r, ROLE "tool");
            own(r, "\n<response>");
            MM3_TRY(say_content(r, message, i, true));
            own(r, "</response>");
            next = USER;
            if (i + 1 < n) MM3_TRY(get_role(json_array_get(messages, i + 1), i + 1, &next));
            if (next != TOOL) own(r, END);
            break;
        }
    }
    return MM3_OK;
}

mm3_status mm3__chat_render(mm3__rendered *out, const char *messages, const char *tools, const char *thinking,
                            bool generate)
{
    json_t *list = NULL, *functions = NULL;
    mm3__thinking mode;
    mm3_status st;
    MM3_CHECK(messages, MM3_ERR_ARG, "messages is NULL; expected a JSON array");
    MM3_TRY(mm3__thinking_parse(&mode, thinking));
    MM3_GOTO(mm3__tools_read(&functions, tools));
    MM3_GOTO(read_json(&list, messages, "messages"));
    if (!json_is_array(list) || !json_array_size(list)) {
        st = mm3_fail(MM3_ERR_ARG, MM3_HERE, "messages is %s; expected an array of at least one message",
                      json_is_array(list) ? "empty" : type_name(list));
        goto done;
    }
    MM3_GOTO(say_system(out, list, mode));
    MM3_GOTO(say_developer(out, list, functions));
    MM3_GOTO(say_messages(out, list));
    if (generate) {
        own(out, ROLE "ai\n");
        own(out, modes[mode].prefix);
    }
    if (out->text.failed)
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory while rendering %zu messages", json_array_size(list));
done:
    json_decref(list);
    json_decref(functions);
    return st;
}
