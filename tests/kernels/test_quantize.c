/* quantize and the two chains that end in it: bit for bit, on edges and on everything. */
#include "kernels/harness.h"

static void check(const float *x, int m, int k, const char *what)
{
    mm3_quantize op = {
        .m = m, .k = k, .x = x, .codes = array_of((size_t)m * (size_t)k), .scales = array_of((size_t)m * (size_t)k / 32)
    };
    check_case(MM3_OP_QUANTIZE, &op, 0, 0, NULL, what);
}

static void shapes(void **state)
{
    static const int m[] = { 1, 2, 3, 5, 31, 33, 129 }, k[] = { 32, 64, 96, 384, 3072 };
    (void)state;
    for (int i = 0; i < MM3_COUNT(m); i++)
        for (int j = 0; j < MM3_COUNT(k); j++)
            for (int f = 0; f < N_FILLS; f++) {
                check(make_floats((size_t)m[i] * (size_t)k[j], (fill)f, f % 2), m[i], k[j], fill_name[f]);
                free_arrays();
            }
}

/* A block of every (exponent, mantissa near 1.75 or a tie) as its maximum, with elements at all ties below it. */
static void edges(void **state)
{
    static const uint32_t mantissa[] = { 0,        1,        0x080000, 0x180000, 0x5FFFFF,
                                         0x600000, 0x600001, 0x610000, 0x780000, 0x7FFFFF };
    enum { ROWS = 255 * 10 };
    float *x = array_of(ROWS * 32 * 4);
    (void)state;
    for (int r = 0; r < ROWS; r++) {
        uint32_t e = (uint32_t)r / 10, top = e << 23 | mantissa[r % 10];
        x[r * 32] = mm3_f32_from_bits(top);
        for (int i = 1; i < 32; i++) {
            /* halves of units at falling exponents, and one bit beside them */
            int down = rng_below(22);
            uint32_t at = e > (uint32_t)down ? (e - (uint32_t)down) << 23 : 0;
            uint32_t u = at | (rng_below(16) << 19) | (uint32_t)(rng_below(3) == 0);
            if (u > top) u = top;
            if (u && rng_below(5) == 0) u--;
            x[r * 32 + i] = mm3_f32_from_bits(u | (rng() & 0x80000000u));
        }
    }
    check(x, ROWS, 32, "every exponent");
    free_arrays();
}

/* 448 * 2^k exactly keeps its scale; one bit more takes the next. */
static void powers(void **state)
{
    float *x = array_of(2 * 247 * 32 * 4);
    (void)state;
    for (int r = 0; r < 2 * 247; r++)
        for (int i = 0; i < 32; i++) {
            float v = (float)ldexp(448, r / 2 - 127);
            x[r * 32 + i] = i ? v / 3 : r % 2 ? nextafterf(v, INFINITY) : v;
        }
    check(x, 2 * 247, 32, "448 * 2^k");
    free_arrays();
}

/* All subnormals' magnitudes by a stride, infinities and NaNs at every place, blocks of nothing else. */
static void specials(void **state)
{
    enum { ROWS = 64 };
    float *x = array_of(ROWS * 64 * 4);
    (void)state;
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < 64; i++) {
            float v = rng_normal();
            if (r < 32 && i == r) v = r % 2 ? INFINITY : -NAN;
            if (r >= 32 && r < 36) v = r % 2 ? mm3_f32_from_bits(0xFF800001u + (uint32_t)i) : -INFINITY;
            if (r >= 36 && r < 50) v = mm3_f32_from_bits((rng() & 0x80000000u) | (rng() & 0x7FFFFFu) >> (r - 36));
            if (r >= 50 && r < 56) v = i == 40 ? FLT_MAX : v * FLT_MIN;
            if (r >= 56 && r < 60) v = copysignf(0, v);
            if (r == 60) v = i == 33 ? 1e30f : v; /* an outlier in block 1 only */
            x[r * 64 + i] = v;
        }
    check(x, ROWS, 64, "specials");
    for (size_t i = 0; i < ROWS * 64; i++) x[i] = mm3_f32_from_bits(rng());
    check(x, ROWS, 64, "any bits");
    free_arrays();
}

static void norm_chain(void **state)
{
    static const int m[] = { 1, 2, 5, 33 }, k[] = { 32, 96, 6144 };
    (void)state;
    for (int i = 0; i < MM3_COUNT(m); i++)
        for (int j = 0; j < MM3_COUNT(k); j++)
            for (int delta = 0; delta < 2; delta++) {
                size_t n = (size_t)m[i] * (size_t)k[j];
                mm3_add_rmsnorm_quantize op = { .m = m[i], .k = k[j], .eps = 1e-6f };
                op.x = make_floats(n, FILL_RANDOM, false);
                op.delta = delta ? make_floats(n, FILL_ALL, false) : NULL;
                op.w = make_floats((size_t)k[j], FILL_RANDOM, true);
                op.y = array_of(n * 4);
                op.codes = array_of(n);
                op.scales = array_of(n / 32);
                check_case(MM3_OP_ADD_RMSNORM_QUANTIZE, &op, 0x1p-23, 0, NULL, delta ? "delta" : "no delta");
                free_arrays();
            }
}

/* The bytes of a fused swiglu_quantize are those of its parts run one after the other: y is rounded in between. */
static void swiglu_chain(void **state)
{
    static const int m[] = { 1, 3, 17 }, n[] = { 32, 96, 3072 };
    const mm3_kernel *kernels[MM3_MAX_CANDIDATES];
    int n_kernels = mm3_kernels_of(MM3_OP_SWIGLU_QUANTIZE, "cpu", kernels, MM3_MAX_CANDIDATES);
    mm3_device *device = device_of(2);
    (void)state;
    for (int i = 0; i < MM3_COUNT(m); i++)
        for (int j = 0; j < MM3_COUNT(n); j++)
            for (int f = 0; f < N_FILLS; f++) {
                size_t size = (size_t)m[i] * (size_t)n[j];
                mm3_swiglu_quantize op = { .m = m[i], .n = n[j], .alpha = 1.702f, .limit = 7, .beta = 1 }, got;
                if ((i + j) % 2) op.alpha = 0.75f, op.limit = 2.5f, op.beta = -0.5f;
                uint8_t *codes = array_of(size), *scales = array_of(size / 32);
                op.gate_up = make_floats(2 * size, (fill)f, false);
                op.y = array_of(size * 4);
                op.codes = codes;
                op.scales = scales;
                run_on(device, &op, (mm3_choice){ kernels[0], &kernels[0]->tactics[0] });
                assert_true(mm3_kernel_is_split(kernels[0]));
                for (size_t b = 0; b < size / 32; b++) { /* against the recipe, on the y that was written */
                    uint8_t want[32];
                    assert_int_equal(mm3_mx_quantize_block(op.y + b * 32, want), scales[b]);
                    assert_memory_equal(want, codes + b * 32, 32);
                }
                got = op;
                got.y = array_of(size * 4);
                got.codes = array_of(size);
                got.scales = array_of(size / 32);
                for (int c = 1; c < n_kernels; c++)
                    for (int t = 0; t < kernels[c]->n_tactics; t++) {
                        mm3_choice choice = { kernels[c], &kernels[c]->tactics[t] };
                        if (kernels[c]->refuses && kernels[c]->refuses(mm3_device_info_of(device), &got, choice.tactic))
                            continue;
                        memset(got.codes, 0x55, size);
                        memset(got.scales, 0x55, size / 32);
                        run_on(device, &got, choice);
                        assert_memory_equal(got.codes, codes, size);
                        assert_memory_equal(got.scales, scales, size / 32);
                        assert_true(guards_intact(got.codes, size) && guards_intact(got.scales, size / 32));
                    }
                free_arrays();
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes),   cmocka_unit_test(edges),      cmocka_unit_test(powers),
        cmocka_unit_test(specials), cmocka_unit_test(norm_chain), cmocka_unit_test(swiglu_chain),
    };
    return cmocka_run_group_tests_name("quantize", tests, NULL, NULL);
}
