/* fuzz: pins (--backend). Input: the text.
 * Properties: an error names the option; a pin put behind the others wins. */
#include <stdlib.h>

#include "fuzz/fuzz.h"
#include "kernels/kernels.h"
#include "support/alloc_faults.h"

static const mm3_key *some_key(void)
{
    static const mm3_key key = { .op = MM3_OP_LINEAR,
                                 .n = 4,
                                 .field = { { .name = "m", .number = 8 },
                                            { .name = "n", .number = 64 },
                                            { .name = "k", .number = 32 },
                                            { .name = "w", .text = "mx" } } };
    return &key;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *at = data;
    size_t left = n;
    char *text = fuzz_part(&at, &left, NULL);
    mm3_pins *pins = NULL;
    mm3_choice choice = { 0 };
    mm3_buf joined = { 0 };
    long before = alloc_count(), n_allocations;
    mm3_status st;
    fuzz_forget_error();
    st = mm3_pins_parse(&pins, text, "cpu");
    n_allocations = alloc_count() - before;
    if (st != MM3_OK) {
        fuzz_error(st, "--backend");
        FUZZ_CHECK(st == MM3_ERR_ARG && !pins, "%s", mm3_status_name(st));
    } else {
        if (mm3_pins_match(pins, some_key(), &choice))
            FUZZ_CHECK(choice.kernel && choice.tactic && choice.kernel->op == MM3_OP_LINEAR, "a pin of another stage");
        mm3_pins_free(&pins);
        mm3_buf_printf(&joined, "%s;linear,m=8=native", text);
        FUZZ_CHECK(mm3_pins_parse(&pins, joined.data, "cpu") == MM3_OK, "%s", mm3_last_error());
        FUZZ_CHECK(mm3_pins_match(pins, some_key(), &choice) && strcmp(choice.kernel->name, "native") == 0,
                   "the last pin does not win");
        mm3_pins_free(&pins);
    }
    if (fuzz_memory_fails(data, n, n_allocations)) {
        mm3_status again = mm3_pins_parse(&pins, text, "cpu");
        fuzz_memory_failed(again, st);
        mm3_pins_free(&pins);
    }
    mm3_buf_free(&joined);
    free(text);
    return 0;
}
