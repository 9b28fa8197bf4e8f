/* fuzz: shapes of mm3 check and mm3 bench (--shape). Input: an operation, a space, the text.
 * Properties: a shape that is accepted prints as a text that gives the same shape; an error names the operation. */
#include <stdlib.h>

#include "fuzz/fuzz.h"
#include "tune/tune.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *text = fuzz_part(&data, &n, NULL), *space = strchr(text, ' '), first[1024], second[1024];
    mm3_shape shape, again;
    mm3_status st;
    int op;
    if (space) *space = 0;
    op = space ? mm3_op_find(text) : -1;
    if (op >= 0) {
        shape = mm3_shape_default((mm3_op_id)op);
        fuzz_forget_error();
        st = mm3_shape_parse((mm3_op_id)op, space + 1, &shape);
        if (st == MM3_OK) {
            mm3_shape_text((mm3_op_id)op, &shape, first, sizeof first);
            memset(&again, 0, sizeof again);
            FUZZ_CHECK(mm3_shape_parse((mm3_op_id)op, first, &again) == MM3_OK, "%s", mm3_last_error());
            mm3_shape_text((mm3_op_id)op, &again, second, sizeof second);
            FUZZ_CHECK(strcmp(first, second) == 0, "'%s', then '%s'", first, second);
        } else {
            fuzz_error(st, text);
            FUZZ_CHECK(st == MM3_ERR_ARG, "%s", mm3_status_name(st));
        }
    }
    free(text);
    return 0;
}
