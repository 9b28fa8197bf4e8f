/* embed, gather, rope_angles, add_rmsnorm, swiglu: every candidate against the reference, and the traps of each. */
#include "kernels/harness.h"

static void embed(void **state)
{
    static const int m[] = { 1, 2, 7, 33 }, k[] = { 1, 31, 96, 257 };
    (void)state;
    for (int i = 0; i < MM3_COUNT(m); i++)
        for (int j = 0; j < MM3_COUNT(k); j++)
            for (int type = 0; type < 2; type++) {
                mm3_embed op = { .m = m[i], .k = k[j] };
                int32_t *token = array_of((size_t)op.m * 4), *slot = array_of((size_t)op.m * 4);
                for (int r = 0; r < op.m; r++) {
                    slot[r] = rng_below(4) ? r : -1;
                    token[r] = slot[r] < 0 ? 1 << 30 : r % 3 ? rng_below(11) : 10;
                }
                op.token = token;
                op.slot = slot;
                op.table = make_weight(type ? MM3_BF16 : MM3_F32, 11, op.k, FILL_ALL);
                op.out = array_of((size_t)op.m * (size_t)op.k * 4);
                check_case(MM3_OP_EMBED, &op, 0, 0, NULL, "embed");
                free_arrays();
            }
}

static void gather(void **state)
{
    static const int m[] = { 1, 2, 9, 40 }, k[] = { 1, 33, 128 };
    (void)state;
    for (int i = 0; i < MM3_COUNT(m); i++)
        for (int j = 0; j < MM3_COUNT(k); j++) {
            mm3_gather op = { .m = m[i], .k = k[j], .n_rows = 13 };
            int32_t *row = array_of((size_t)op.m * 4);
            for (int r = 0; r < op.m; r++) row[r] = rng_below(14) - 1;
            op.row = row;
            op.x = make_floats((size_t)(13 * op.k), FILL_NAN, false);
            op.out = array_of((size_t)op.m * (size_t)op.k * 4);
            check_case(MM3_OP_GATHER, &op, 0, 0, NULL, "gather");
            free_arrays();
        }
}

/* 1 / float(theta^(2j/64)), as the model code makes it. */
static void make_inv_freq(float *inv_freq)
{
    for (int j = 0; j < 32; j++) inv_freq[j] = 1.0f / (float)pow(5e6, j / 32.0);
}

static void rope_angles(void **state)
{
    static const int32_t position[] = { 0, 1, 2, 127, 128, 2048, 99999, 1000000, 1048575, 16777217, 2147483647, 5 };
    enum { M = sizeof position / sizeof position[0] };
    float inv_freq[32], *cos_at = array_of(M * 32 * 4), *sin_at = array_of(M * 32 * 4);
    int32_t slot[M] = { 0 };
    mm3_rope_angles op = {
        .m = M, .position = position, .slot = slot, .inv_freq = inv_freq, .cos = cos_at, .sin = sin_at
    };
    (void)state;
    make_inv_freq(inv_freq);
    slot[M - 1] = -1;
    check_case(MM3_OP_ROPE_ANGLES, &op, 0x1p-23, 0, NULL, "positions up to 2^31");
    mm3_op_info_of(MM3_OP_ROPE_ANGLES)->reference(&op, NULL);
    for (int j = 0; j < 32; j++) { /* position 0 and the padded row: angle 0 */
        assert_true(cos_at[j] == 1 && sin_at[j] == 0);
        assert_true(cos_at[(M - 1) * 32 + j] == 1 && sin_at[(M - 1) * 32 + j] == 0);
    }
    assert_true(cos_at[7 * 32] == (float)cos(1000000.0) && sin_at[7 * 32] == (float)sin(1000000.0));
    free_arrays();
}

static void add_rmsnorm(void **state)
{
    static const int m[] = { 1, 2, 3, 9, 33 }, k[] = { 1, 15, 16, 17, 96, 2048 };
    (void)state;
    for (int i = 0; i < MM3_COUNT(m); i++)
        for (int j = 0; j < MM3_COUNT(k); j++)
            for (int f = 0; f < N_FILLS; f++)
                for (int delta = 0; delta < 2; delta++) {
                    size_t n = (size_t)m[i] * (size_t)k[j];
                    mm3_add_rmsnorm op = { .m = m[i], .k = k[j], .eps = 1e-6f };
                    op.x = make_floats(n, (fill)f, true); /* huge: the sum of squares leaves the float range */
                    op.delta = delta ? make_floats(n, (fill)f, delta) : NULL;
                    op.w = make_floats((size_t)op.k, FILL_RANDOM, true);
                    op.y = array_of(n * 4);
                    check_case(MM3_OP_ADD_RMSNORM, &op, 0x1p-23, 0, NULL, fill_name[f]);
                    free_arrays();
                }
}

/* Stored minus one: w = 0 is the plain norm, w = -1 gives zeros. x is the sum afterwards. */
static void gemma_weight(void **state)
{
    enum { M = 3, K = 64 };
    float *x = make_floats(M * K, FILL_RANDOM, false), *delta = make_floats(M * K, FILL_RANDOM, false);
    float *w = make_floats(K, FILL_ZERO, false), *y = array_of(M * K * 4), *old = copy_of(x, M * K * 4);
    mm3_add_rmsnorm op = { .m = M, .k = K, .eps = 1e-6f, .x = x, .delta = delta, .w = w, .y = y };
    mm3_device *device = device_of(2);
    mm3_choice choice = { mm3_kernel_find(MM3_OP_ADD_RMSNORM, "cpu", NULL), NULL };
    (void)state;
    choice.tactic = &choice.kernel->tactics[0];
    run_on(device, &op, choice);
    for (int i = 0; i < M; i++) {
        double sum = 0;
        for (int c = 0; c < K; c++) sum += (double)x[i * K + c] * (double)x[i * K + c];
        for (int c = 0; c < K; c++) {
            int at = i * K + c;
            assert_true(x[at] == old[at] + delta[at]);
            assert_true(fabs((double)y[at] - (double)x[at] / sqrt(sum / K + 1e-6)) <= 1e-6 * fabs((double)y[at]));
        }
    }
    for (int c = 0; c < K; c++) w[c] = -1;
    op.delta = NULL;
    run_on(device, &op, choice);
    for (int i = 0; i < M * K; i++) assert_true(y[i] == 0);
    free_arrays();
}

static void swiglu(void **state)
{
    static const int m[] = { 1, 2, 9 }, n[] = { 1, 5, 33, 96, 300 };
    (void)state;
    for (int i = 0; i < MM3_COUNT(m); i++)
        for (int j = 0; j < MM3_COUNT(n); j++)
            for (int f = 0; f < N_FILLS + 1; f++) {
                size_t size = (size_t)m[i] * (size_t)n[j];
                mm3_swiglu op = { .m = m[i], .n = n[j], .alpha = 1.702f, .limit = 7, .beta = 1 };
                if ((i + j) % 2)
                    op.alpha = 0.75f, op.limit = 2.5f, op.beta = -0.5f; /* from the contract, not by heart */
                float *x = make_floats(2 * size, f < N_FILLS ? (fill)f : FILL_RANDOM, true);
                for (size_t e = 0; f == N_FILLS && e < 2 * size; e++) x[e] *= 20;
                op.gate_up = x;
                op.y = array_of(size * 4);
                check_case(MM3_OP_SWIGLU, &op, 0x1p-21, 0, NULL, f < N_FILLS ? fill_name[f] : "wide");
                free_arrays();
            }
}

/* The gate has an upper clamp only; up has both; up = -1 cancels beta; NaN and infinity pass through the clamps. */
static void swiglu_clamps(void **state)
{
    static const float gate[] = { -30, -7, 7, 8, 100, 3, 3, 3, 3, 3, NAN, 3, INFINITY, -1e38f, -60, -40 };
    static const float up[] = { 2, 2, 2, 2, 2, -1, -7, -8, 7, 9, 2, NAN, 2, 2, 2, -INFINITY };
    enum { N = sizeof gate / sizeof gate[0] };
    float x[2 * N], *y = array_of(N * 4);
    mm3_swiglu op = { .m = 1, .n = N, .alpha = 1.702f, .limit = 7, .beta = 1, .gate_up = x, .y = y };
    (void)state;
    memcpy(x, gate, sizeof gate);
    memcpy(x + N, up, sizeof up);
    check_case(MM3_OP_SWIGLU, &op, 0x1p-21, 0, NULL, "clamps");
    mm3_op_info_of(MM3_OP_SWIGLU)->reference(&op, NULL);
    assert_true(fabs((double)y[0] / (-30 / (1 + exp(1.702 * 30)) * 3) - 1) < 1e-5); /* not that of -7 */
    assert_true(y[0] != y[1] && y[2] == y[3] && y[3] == y[4] && y[12] == y[4]);
    assert_true(y[5] == 0 && y[6] == y[7] && y[8] == y[9] && y[6] < 0);
    assert_true(isnan(y[10]) && isnan(y[11]) && y[13] == 0);
    free_arrays();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed),         cmocka_unit_test(gather),       cmocka_unit_test(rope_angles),
        cmocka_unit_test(add_rmsnorm),   cmocka_unit_test(gemma_weight), cmocka_unit_test(swiglu),
        cmocka_unit_test(swiglu_clamps),
    };
    return cmocka_run_group_tests_name("elementwise", tests, NULL, NULL);
}
