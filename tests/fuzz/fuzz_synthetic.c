/* fuzz: the sizes of a synthetic model (mm3 bench decode). Input: the text.
 * Properties: what is accepted has a size in bytes; fitting it into fewer keeps what the text says and never makes it
 * larger; an error says what it is about. */
#include <stdlib.h>

#include "fuzz/fuzz.h"
#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *text = fuzz_part(&data, &n, NULL);
    mm3_synthetic spec, fitted;
    mm3_status st;
    fuzz_forget_error();
    st = mm3_synthetic_parse(&spec, text);
    if (st != MM3_OK) {
        fuzz_error(st, "synthetic");
        FUZZ_CHECK(st == MM3_ERR_ARG, "%s", mm3_status_name(st));
    } else {
        size_t n_bytes = mm3_synthetic_bytes(&spec);
        FUZZ_CHECK(n_bytes > 0 && n_bytes < (size_t)1 << 62, "%zu bytes", n_bytes);
        for (int shift = 0; shift < 62; shift += 7) {
            fitted = spec;
            mm3_synthetic_fit(&fitted, (size_t)1 << shift);
            FUZZ_CHECK(mm3_synthetic_bytes(&fitted) <= n_bytes, "fitted it is larger");
            FUZZ_CHECK(fitted.layers > 0 && fitted.dense > 0 && fitted.dense <= fitted.layers && fitted.experts > 0 &&
                           fitted.vocab > 0,
                       "fitted it has no size");
            FUZZ_CHECK(spec.experts || 128 % fitted.experts == 0, "%d experts", fitted.experts);
            FUZZ_CHECK((!spec.experts || fitted.experts == spec.experts) &&
                           (!spec.vocab || fitted.vocab == spec.vocab) &&
                           (!spec.layers || fitted.layers == spec.layers) && fitted.hidden == spec.hidden,
                       "fitting changed what the text says");
        }
    }
    free(text);
    return 0;
}
