/* Error text and place of the last failure, per thread. Owns the two thread-local strings. */
#include <stdio.h>
#include <string.h>

#include "base/base.h"

enum { MAX_TEXT = 1024 };
static _Thread_local char last_text[MAX_TEXT];
static _Thread_local char last_place[128];

const char *mm3_last_error(void) { return last_text; }
const char *mm3_last_error_place(void) { return last_place; }
const char *mm3_version(void) { return MM3_VERSION; }

const char *mm3_status_name(mm3_status status)
{
    static const char *const name[] = { "MM3_OK",        "MM3_ERR_ARG", "MM3_ERR_FORMAT", "MM3_ERR_UNSUPPORTED",
                                        "MM3_ERR_NOMEM", "MM3_ERR_IO",  "MM3_ERR_DEVICE", "MM3_ERR_CANCELLED" };
    return (unsigned)status < MM3_COUNT(name) ? name[status] : "MM3_ERR_?";
}

/* An error is one line: control characters of a hostile file name or key must not break it. */
static void to_one_line(char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7F) *s = ' ';
}

mm3_status mm3_fail(mm3_status status, const char *file, int line, const char *fmt, ...)
{
    char text[MAX_TEXT]; /* an argument may be the last error itself */
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    to_one_line(text);
    memcpy(last_text, text, sizeof text);
    snprintf(last_place, sizeof last_place, "%s:%d", file, line);
    return status;
}

mm3_status mm3_fail_in(mm3_status status, const char *fmt, ...)
{
    char text[2 * MAX_TEXT];
    va_list args;
    size_t n;
    va_start(args, fmt);
    vsnprintf(text, MAX_TEXT, fmt, args);
    va_end(args);
    n = strlen(text);
    snprintf(text + n, sizeof text - n, ": %s", last_text);
    text[MAX_TEXT - 1] = 0;
    to_one_line(text);
    memcpy(last_text, text, MAX_TEXT);
    return status;
}

void mm3_error_take(mm3_error *e, mm3_status status)
{
    e->status = status;
    e->text[0] = 0;
    if (status != MM3_OK) memcpy(e->text, last_text, sizeof e->text);
}

mm3_status mm3_error_raise(const mm3_error *e)
{
    if (e->status != MM3_OK) memcpy(last_text, e->text, sizeof last_text);
    return e->status;
}
