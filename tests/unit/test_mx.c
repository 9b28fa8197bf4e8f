/* mx.h: every code, every scale byte, rounding against an independent search, and the amax tables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "mx/mx.h"

/* E4M3 by its definition, in double. */
static double value_of(int code)
{
    int e = code >> 3 & 15, m = code & 7;
    double v = e ? ldexp(1 + m / 8.0, e - 7) : ldexp(m, -9);
    return code & 0x80 ? -v : v;
}

static void e4m3_decode(void **state)
{
    (void)state;
    for (int c = 0; c < 256; c++) {
        float v = mm3_e4m3_to_f32((uint8_t)c);
        if ((c & 0x7F) == 0x7F) {
            assert_true(isnan(v));
        } else {
            assert_true(v == (float)value_of(c));
            assert_int_equal(signbit(v) != 0, c >> 7);
        }
    }
    assert_true(mm3_e4m3_to_f32(0x7E) == 448.0f && mm3_e4m3_to_f32(1) == 0x1p-9f && mm3_e4m3_to_f32(8) == 0x1p-6f);
}

static void e8m0_decode(void **state)
{
    (void)state;
    for (int b = 0; b < 255; b++) assert_true((double)mm3_e8m0_to_f32((uint8_t)b) == ldexp(1, b - 127));
    assert_true(mm3_e8m0_to_f32(0) > 0);
    assert_true(isnan(mm3_e8m0_to_f32(255)));
}

/* Every code is a fixed point at every scale where the value is a float. */
static void e4m3_round_trip(void **state)
{
    (void)state;
    for (int b = 0; b < 255; b++)
        for (int c = 0; c < 256; c++) {
            double v = ldexp(value_of(c), b - 127);
            if ((c & 0x7F) == 0x7F || fabs(v) > 0x1.fffffep127) continue;
            assert_true((double)(float)v == v);
            assert_int_equal(mm3_e4m3_from_f32((float)v, b), c);
        }
}

/* The nearest code by search; ties to the even code; beyond 448 saturates. */
static int nearest(double v)
{
    int best = 0;
    double a = fabs(v);
    for (int c = 1; c <= 0x7E; c++) {
        double d = fabs(value_of(c) - a), old = fabs(value_of(best) - a);
        if (d < old || (d == old && c % 2 == 0)) best = c;
    }
    return best | (signbit(v) ? 0x80 : 0);
}

/* All midpoints and their neighbours, and a walk over all exponents, at scales from end to end. */
static void e4m3_rounding(void **state)
{
    static const int bytes[] = { 0, 1, 2, 20, 100, 126, 127, 128, 200, 234, 246, 247 };
    (void)state;
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++)
        for (int c = 0; c < 0x7E; c++) {
            float mid = (float)ldexp((value_of(c) + value_of(c + 1)) / 2, bytes[i] - 127);
            float near[3] = { nextafterf(mid, 0), mid, nextafterf(mid, INFINITY) };
            for (int n = 0; n < 3; n++) {
                if (!isfinite(near[n])) continue;
                assert_int_equal(mm3_e4m3_from_f32(near[n], bytes[i]), nearest(ldexp((double)near[n], 127 - bytes[i])));
                assert_int_equal(mm3_e4m3_from_f32(-near[n], bytes[i]),
                                 nearest(-ldexp((double)near[n], 127 - bytes[i])));
            }
        }
    for (uint32_t u = 0; u < 0x7F800000u; u += 1009 * 31) {
        float x = mm3_f32_from_bits(u);
        for (int b = 0; b < 255; b += 127)
            assert_int_equal(mm3_e4m3_from_f32(x, b), nearest(ldexp((double)x, 127 - b)));
    }
    assert_int_equal(mm3_e4m3_from_f32(1e30f, 127), 0x7E);
    assert_int_equal(mm3_e4m3_from_f32(-1e30f, 127), 0xFE);
    assert_int_equal(mm3_e4m3_from_f32(-0.0f, 127), 0x80);
    assert_int_equal(mm3_e4m3_from_f32(INFINITY, 127), 0x7F);
    assert_int_equal(mm3_e4m3_from_f32(-INFINITY, 0), 0xFF);
    assert_int_equal(mm3_e4m3_from_f32(NAN, 254), 0x7F);
    assert_int_equal(mm3_e4m3_from_f32(-NAN, 254), 0xFF);
}

/* The smallest e with 448 * 2^e >= amax, for every exponent and the mantissas around 1.75; never below 2^-127. */
static void scale_of_amax(void **state)
{
    static const uint32_t mantissa[] = { 0, 1, 0x400000, 0x5FFFFF, 0x600000, 0x600001, 0x610000, 0x7FFFFF };
    (void)state;
    for (uint32_t e = 0; e < 255; e++)
        for (size_t i = 0; i < sizeof mantissa / sizeof mantissa[0]; i++) {
            uint32_t bits = e << 23 | mantissa[i];
            double amax = (double)mm3_f32_from_bits(bits);
            int byte = mm3_e8m0_from_amax(bits);
            assert_true(byte <= 247 && ldexp(448, byte - 127) >= amax);
            assert_true(byte == 0 || ldexp(448, byte - 1 - 127) < amax);
        }
    /* Those that an approximate 1/448 doubles: 448 * 2^k exactly. */
    for (int k = -127; k <= 119; k++) assert_int_equal(mm3_e8m0_from_amax(mm3_f32_bits((float)ldexp(448, k))), k + 127);
}

static void bf16(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float v = mm3_bf16_to_f32((uint16_t)h);
        assert_int_equal(mm3_f32_bits(v), h << 16);
        if (isnan(v))
            assert_true(isnan(mm3_bf16_to_f32(mm3_bf16_from_f32(v))));
        else
            assert_int_equal(mm3_bf16_from_f32(v), h);
        if ((h & 0x7FFF) >= 0x7F80) continue;
        /* below, at and above the midpoint to the next value */
        assert_int_equal(mm3_bf16_from_f32(mm3_f32_from_bits(h << 16 | 0x7FFF)), h);
        assert_int_equal(mm3_bf16_from_f32(mm3_f32_from_bits(h << 16 | 0x8000)), h + h % 2);
        assert_int_equal(mm3_bf16_from_f32(mm3_f32_from_bits(h << 16 | 0x8001)), h + 1);
    }
    assert_true(isnan(mm3_bf16_to_f32(mm3_bf16_from_f32(mm3_f32_from_bits(0x7F800001))))); /* payload in the low half */
}

/* Infinity and NaN become NaN codes with their sign; their neighbours and the scale do not notice. */
static void blocks(void **state)
{
    float x[32];
    uint8_t codes[32], clean[32];
    (void)state;
    for (int i = 0; i < 32; i++) x[i] = ldexpf(i % 2 ? -1.0f : 1.0f, i - 20);
    x[3] = x[9] = x[17] = x[30] = 0;
    assert_int_equal(mm3_mx_quantize_block(x, clean), 127 + 3); /* 2^11 = 256 * 2^3 */
    x[3] = INFINITY, x[9] = -INFINITY, x[17] = NAN, x[30] = -NAN;
    assert_int_equal(mm3_mx_quantize_block(x, codes), 127 + 3);
    assert_int_equal(codes[3], 0x7F);
    assert_int_equal(codes[9], 0xFF);
    assert_int_equal(codes[17], 0x7F);
    assert_int_equal(codes[30], 0xFF);
    for (int i = 0; i < 32; i++)
        if (i != 3 && i != 9 && i != 17 && i != 30) assert_int_equal(codes[i], clean[i]);
    for (int i = 0; i < 32; i++) x[i] = i % 2 ? NAN : INFINITY;
    assert_int_equal(mm3_mx_quantize_block(x, codes), 0);
    for (int i = 0; i < 32; i++) assert_int_equal(codes[i], 0x7F);
    for (int i = 0; i < 32; i++) x[i] = i % 2 ? -0.0f : 0.0f;
    assert_int_equal(mm3_mx_quantize_block(x, codes), 0);
    for (int i = 0; i < 32; i++) assert_int_equal(codes[i], i % 2 ? 0x80 : 0);
    for (int i = 0; i < 32; i++) x[i] = mm3_f32_from_bits(1u << 15); /* 2^-134: a subnormal, 2^-7 at byte 0 */
    assert_int_equal(mm3_mx_quantize_block(x, codes), 0);
    for (int i = 0; i < 32; i++) assert_true(mm3_e4m3_to_f32(codes[i]) == 0x1p-7f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(e4m3_decode),   cmocka_unit_test(e8m0_decode),   cmocka_unit_test(e4m3_round_trip),
        cmocka_unit_test(e4m3_rounding), cmocka_unit_test(scale_of_amax), cmocka_unit_test(bf16),
        cmocka_unit_test(blocks),
    };
    return cmocka_run_group_tests_name("mx", tests, NULL, NULL);
}
