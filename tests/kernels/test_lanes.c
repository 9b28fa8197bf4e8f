/* lanes: the exponential and BF16 rounding of the baseline vectors against the C library and mx.h. */
#include "kernel_test.h"

#define LANES 4
#include "kernels/cpu/lanes.h"

/* Every 97th float of the range in use: error below 2 units in the last place of the exact value. */
static void test_exp(void **state)
{
    static const float low = -87.33f, high = 88.0f;
    double worst = 0;
    (void)state;
    for (int sign = 0; sign < 2; sign++) {
        uint32_t last = mm3_f32_bits(sign ? -low : high);
        for (uint32_t u = 0; u < last; u += 97 * LANES) {
            float x[LANES], y[LANES];
            for (int i = 0; i < LANES; i++) x[i] = mm3_f32_from_bits((u + 97 * (uint32_t)i) | (uint32_t)sign << 31);
            vf_store(y, vf_exp(vf_load(x)));
            for (int i = 0; i < LANES; i++) {
                double exact = exp((double)x[i]), ulp;
                int e;
                frexp(exact, &e);
                ulp = ldexp(1.0, e - 24);
                worst = fmax(worst, fabs((double)y[i] - exact) / ulp);
            }
        }
    }
    print_message("largest error %.3f ulp\n", worst);
    assert_true(worst < 2.0);
}

static void test_exp_ends(void **state)
{
    float x[LANES] = { 0.0f, -INFINITY, NAN, -200.0f }, y[LANES];
    (void)state;
    vf_store(y, vf_exp(vf_load(x)));
    assert_true(y[0] == 1.0f && y[1] == 0.0f && isnan(y[2]) && y[3] == 0.0f);
    x[2] = mm3_f32_from_bits(0xFFFFFFFFu); /* a NaN with every payload bit set */
    vf_store(y, vf_exp(vf_load(x)));
    assert_true(isnan(y[2]));
}

static void test_bf16(void **state)
{
    (void)state;
    for (uint64_t u = 0; u <= UINT32_MAX; u += 4001 * LANES) {
        float x[LANES], y[LANES];
        uint16_t h[LANES];
        for (uint32_t i = 0; i < LANES; i++) x[i] = mm3_f32_from_bits((uint32_t)u + 4001 * i);
        vf_store_bf16(h, vf_load(x));
        vf_store(y, vf_load_bf16(h));
        for (int i = 0; i < LANES; i++) {
            float want = mm3_bf16_to_f32(mm3_bf16_from_f32(x[i]));
            assert_int_equal(h[i], mm3_bf16_from_f32(x[i]));
            assert_true(same_bits(&y[i], &want, sizeof want));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_exp_ends),
        cmocka_unit_test(test_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
