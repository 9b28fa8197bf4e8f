/* expect: cmocka with what it needs before it, and checks of mm3's status idiom. */
#ifndef TEST_EXPECT_H
#define TEST_EXPECT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka last: it wants the four above */
#include <cmocka.h>
#include <string.h>

#include "base/base.h"

/* The call succeeds; its error text is shown when it does not. */
#define EXPECT_OK(call)                                                                                   \
    do {                                                                                                  \
        mm3_status expect_ = (call);                                                                      \
        if (expect_ != MM3_OK) fail_msg("%s: %s: %s", #call, mm3_status_name(expect_), mm3_last_error()); \
    } while (0)

/* The call fails with this status, and its error is one line that contains `part`. */
#define EXPECT_FAIL(call, status, part)                                                                       \
    do {                                                                                                      \
        mm3_status expect_ = (call);                                                                          \
        if (expect_ == MM3_OK) fail_msg("%s: succeeded", #call);                                              \
        if (expect_ != (status)) fail_msg("%s: %s: %s", #call, mm3_status_name(expect_), mm3_last_error());   \
        if (!strstr(mm3_last_error(), part)) fail_msg("%s: no \"%s\" in: %s", #call, part, mm3_last_error()); \
        if (strchr(mm3_last_error(), '\n')) fail_msg("%s: more than one line", #call);                        \
    } while (0)

#endif
