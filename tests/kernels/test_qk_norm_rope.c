/* qk_norm_rope: every candidate against the reference, and the rules that a shallow one breaks. */
#include "kernel_test.h"

enum { DIM = MM3_HEAD_DIM, HALF = MM3_ROTARY_DIM / 2 };

typedef struct setup {
    mm3_qk_norm_rope op;
    pages p;
    float *qkv, *norm[4], *cos, *sin, *q, *iq;
    int32_t *slot, *position;
} setup;

static setup setup_open(int m, int n_q, int n_kv, int n_iq, int d_index, mm3_dtype type, uint64_t seed, fill how)
{
    setup s = { .p = pages_open(n_kv, d_index, type, 2, 3, 1, 17) };
    int ld = (n_q + 2 * n_kv) * DIM + (n_iq ? (n_iq + 1) * d_index : 0);
    s.qkv = floats((size_t)(m * ld));
    random_fill(s.qkv, (size_t)(m * ld), &seed, how);
    for (int i = 0; i < 4; i++) {
        s.norm[i] = floats((size_t)MM3_MAX(DIM, d_index));
        random_fill(s.norm[i], (size_t)(i < 2 ? DIM : d_index), &seed, FILL_UNIT);
    }
    s.cos = floats((size_t)(m * HALF));
    s.sin = floats((size_t)(m * HALF));
    for (int i = 0; i < m * HALF; i++) {
        float angle = 3.0f * random_unit(&seed);
        s.cos[i] = cosf(angle);
        s.sin[i] = sinf(angle);
    }
    s.slot = ints((size_t)m);
    s.position = ints((size_t)m);
    for (int i = 0; i < m; i++) {
        s.slot[i] = i % 2;
        s.position[i] = 120 + i; /* across a page's edge */
    }
    s.q = floats((size_t)(m * n_q * DIM));
    s.iq = floats((size_t)(m * n_iq * d_index));
    s.op = (mm3_qk_norm_rope){ .m = m,
                               .ld = ld,
                               .n_q = n_q,
                               .n_iq = n_iq,
                               .eps = 1e-6f,
                               .qkv = s.qkv,
                               .q_norm = s.norm[0],
                               .k_norm = s.norm[1],
                               .iq_norm = n_iq ? s.norm[2] : NULL,
                               .ik_norm = n_iq ? s.norm[3] : NULL,
                               .cos = s.cos,
                               .sin = s.sin,
                               .slot = s.slot,
                               .position = s.position,
                               .q = s.q,
                               .iq = n_iq ? s.iq : NULL,
                               .kv = s.p.kv };
    return s;
}

static void setup_close(setup *s)
{
    pages_close(&s->p);
    for (int i = 0; i < 4; i++) mm3_free(s->norm[i]);
    mm3_free(s->qkv);
    mm3_free(s->cos);
    mm3_free(s->sin);
    mm3_free(s->q);
    mm3_free(s->iq);
    mm3_free(s->slot);
    mm3_free(s->position);
}

static size_t pool_bytes(const setup *s) { return (size_t)s->p.kv.n_pages * s->p.kv.page_bytes; }

static float kv_get(const mm3_kv *kv, int slot, int token, size_t part_at, int tile, int width, int d)
{
    const void *base = mm3_kv_tile(kv, slot, token / MM3_PAGE_TOKENS, part_at, tile, width);
    size_t at = (size_t)(token % MM3_PAGE_TOKENS) * (size_t)width + (size_t)d;
    return kv->type == MM3_BF16 ? mm3_bf16_to_f32(((const uint16_t *)base)[at]) : ((const float *)base)[at];
}

static void fresh(setup *s)
{
    memset(s->p.kv.pool, 0xFF, pool_bytes(s));
    memset(s->q, 0xFF, (size_t)(s->op.m * s->op.n_q * DIM) * sizeof *s->q);
    memset(s->iq, 0xFF, (size_t)(s->op.m * s->op.n_iq * s->op.kv.d_index) * sizeof *s->iq);
}

static void near(const candidate *c, const char *what, float got, float want, float scale, float tolerance)
{
    if (isnan(want) ? isnan(got) : fabsf(got - want) <= tolerance * scale) return;
    FAIL_CANDIDATE(c, "%s: %.9g, expected %.9g", what, (double)got, (double)want);
}

/* q, iq and every byte of the pool against the reference; K, V and index keys within tolerance, the rest equal. */
static void check_reference(setup *s)
{
    size_t n_q = (size_t)(s->op.m * s->op.n_q * DIM), n_iq = (size_t)(s->op.m * s->op.n_iq * s->op.kv.d_index);
    double *magnitude = mm3_calloc(n_q, sizeof *magnitude);
    float *q = floats(n_q), *iq = floats(n_iq);
    unsigned char *pool = mm3_malloc(pool_bytes(s));
    assert_true(magnitude && pool);
    fresh(s);
    mm3_op_info_of(MM3_OP_QK_NORM_ROPE)->reference(&s->op, magnitude);
    memcpy(q, s->q, n_q * sizeof *q);
    memcpy(iq, s->iq, n_iq * sizeof *iq);
    memcpy(pool, s->p.kv.pool, pool_bytes(s));
    EACH_CANDIDATE(c, MM3_OP_QK_NORM_ROPE)
    {
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            bool bf16 = s->op.kv.type == MM3_BF16;
            fresh(s);
            if (!run_candidate(c, &s->op, n_threads)) break;
            check_close(c, "q", s->q, q, magnitude, n_q, 2e-6);
            for (size_t i = 0; i < n_iq; i++) near(c, "iq", s->iq[i], iq[i], 20.0f, 2e-6f);
            for (size_t i = 0; i < pool_bytes(s) / (bf16 ? 2 : 4); i++) {
                const void *got = s->p.kv.pool + i * (bf16 ? 2 : 4), *want = pool + i * (bf16 ? 2 : 4);
                float x, y;
                if (same_bits(got, want, bf16 ? 2 : 4)) continue;
                x = bf16 ? mm3_bf16_to_f32(*(const uint16_t *)got) : *(const float *)got;
                y = bf16 ? mm3_bf16_to_f32(*(const uint16_t *)want) : *(const float *)want;
                near(c, "KV pool", x, y, fabsf(y) + (bf16 ? 1e-3f : 10.0f), bf16 ? 0.01f : 1e-6f);
                if (isnan(x) || isnan(y))
                    FAIL_CANDIDATE(c, "pool element %zu: %g, expected %g", i, (double)x, (double)y);
            }
        }
    }
    mm3_free(pool);
    mm3_free(magnitude);
    mm3_free(q);
    mm3_free(iq);
}

static void test_reference(void **state)
{
    static const int shapes[][5] = { { 1, 64, 4, 4, 128 }, { 3, 8, 2, 2, 128 }, { 5, 12, 3, 3, 96 },
                                     { 9, 1, 1, 0, 64 },   { 2, 7, 1, 1, 64 },  { 17, 5, 5, 2, 160 } };
    (void)state;
    for (int k = 0; k < MM3_COUNT(shapes); k++)
        for (int type = MM3_F32; type <= MM3_BF16; type++)
            for (int how = 0; how < N_FILLS; how++) {
                const int *x = shapes[k];
                setup s =
                    setup_open(x[0], x[1], x[2], x[3], x[4], (mm3_dtype)type, (uint64_t)(k * 10 + how), (fill)how);
                if (x[0] > 2) s.slot[1] = -1;
                check_reference(&s);
                setup_close(&s);
            }
}

/* Channels 64..127 pass the rotation unchanged, and pairs are (j, j + 32). */
static void test_partial_rotation(void **state)
{
    setup s = setup_open(1, 2, 1, 1, 128, MM3_F32, 5, FILL_UNIT);
    (void)state;
    for (int j = 0; j < HALF; j++) { /* a quarter turn: y[j] = -x[j + 32], y[j + 32] = x[j] */
        s.cos[j] = 0.0f;
        s.sin[j] = 1.0f;
    }
    for (int i = 0; i < 4; i++) memset(s.norm[i], 0, DIM * sizeof(float));
    EACH_CANDIDATE(c, MM3_OP_QK_NORM_ROPE)
    {
        int head[] = { 0, DIM, 2 * DIM, 4 * DIM, 5 * DIM };
        fresh(&s);
        if (!run_candidate(c, &s.op, 2)) continue;
        for (int h = 0; h < MM3_COUNT(head); h++) {
            const float *x = s.qkv + head[h];
            double sum = 0;
            for (int d = 0; d < DIM; d++) sum += (double)x[d] * (double)x[d];
            for (int d = 0; d < DIM; d++) {
                float got = h < 2    ? s.q[h * DIM + d]
                            : h == 2 ? kv_get(&s.op.kv, 0, 120, s.op.kv.k_at, 0, DIM, d)
                            : h == 3 ? s.iq[d]
                                     : kv_get(&s.op.kv, 0, 120, s.op.kv.ik_at, 0, DIM, d);
                float from = d < 32 ? -x[d + 32] : d < 64 ? x[d - 32] : x[d];
                near(c, "rotation", got, from * (float)(1.0 / sqrt(sum / DIM + 1e-6)), 4.0f, 1e-6f);
            }
        }
        for (int d = 0; d < DIM; d++)
            near(c, "v", kv_get(&s.op.kv, 0, 120, s.op.kv.v_at, 0, DIM, d), s.qkv[3 * DIM + d], 0.0f, 0.0f);
    }
    setup_close(&s);
}

/* A13: heads are normalized one by one: scaling one changes no other, and changes itself hardly at all. A17: 1 + w,
 * so w = -1 gives zeros; q_norm, k_norm, iq_norm and ik_norm each act on their own heads. */
static void test_norms(void **state)
{
    setup s = setup_open(2, 4, 2, 2, 96, MM3_F32, 6, FILL_UNIT);
    float before[2 * 4 * DIM];
    size_t n = sizeof before;
    (void)state;
    EACH_CANDIDATE(c, MM3_OP_QK_NORM_ROPE)
    {
        if (!run_candidate(c, &s.op, 2)) continue;
        memcpy(before, s.q, n);
        for (int d = 0; d < DIM; d++) s.qkv[2 * DIM + d] *= 128.0f;
        run_candidate(c, &s.op, 2);
        for (int d = 0; d < DIM; d++) s.qkv[2 * DIM + d] /= 128.0f;
        for (int i = 0; i < 2 * 4 * DIM; i++) {
            bool scaled = i / DIM == 2;
            near(c, "another head's scale", s.q[i], before[i], 4.0f, scaled ? 1e-5f : 0.0f);
        }
        for (int which = 0; which < 4; which++) {
            float saved[DIM];
            int width = which < 2 ? DIM : 96;
            memcpy(saved, s.norm[which], (size_t)width * sizeof *saved);
            for (int d = 0; d < width; d++) s.norm[which][d] = -1.0f;
            fresh(&s);
            run_candidate(c, &s.op, 2);
            for (int d = 0; d < width; d++) {
                float got[] = { d < DIM ? s.q[DIM + d] : 0.0f, kv_get(&s.op.kv, 0, 120, s.op.kv.k_at, 1, DIM, d),
                                d < 96 ? s.iq[96 + d] : 0.0f,
                                d < 96 ? kv_get(&s.op.kv, 0, 120, s.op.kv.ik_at, 0, 96, d) : 0.0f };
                for (int i = 0; i < (d < 96 ? 4 : 2); i++)
                    if ((got[i] == 0.0f) != (i == which))
                        FAIL_CANDIDATE(c, "w = -1 in norm %d: head kind %d has %g", which, i, (double)got[i]);
            }
            memcpy(s.norm[which], saved, (size_t)width * sizeof *saved);
        }
    }
    setup_close(&s);
}

/* C15: exactly the rows' own places in the pool are written, byte for byte, none by a padded row. */
static void test_writes(void **state)
{
    (void)state;
    for (int type = MM3_F32; type <= MM3_BF16; type++) {
        setup s = setup_open(4, 3, 2, 2, 64, (mm3_dtype)type, 7, FILL_UNIT);
        unsigned char *expected = mm3_malloc(pool_bytes(&s));
        size_t element = type == MM3_BF16 ? 2 : 4;
        assert_non_null(expected);
        s.slot[1] = s.slot[3] = -1;
        s.position[1] = 0;
        EACH_CANDIDATE(c, MM3_OP_QK_NORM_ROPE)
        {
            fresh(&s);
            if (!run_candidate(c, &s.op, 3)) continue;
            memset(expected, 0xFF, pool_bytes(&s));
            for (int i = 0; i < 4; i += 2) /* copy what was written where it had to be; the rest must be untouched */
                for (int h = 0; h < 5; h++) {
                    size_t part = h < 2 ? s.op.kv.k_at : h < 4 ? s.op.kv.v_at : s.op.kv.ik_at;
                    int width = h < 4 ? DIM : 64, t = s.position[i];
                    unsigned char *at = mm3_kv_tile(&s.op.kv, s.slot[i], t / 128, part, h < 4 ? h % 2 : 0, width);
                    at += (size_t)(t % 128) * (size_t)width * element;
                    memcpy(expected + (at - s.p.kv.pool), at, (size_t)width * element);
                    for (size_t b = 0; b < (size_t)width * element; b += element)
                        if (same_bits(at + b, "\xFF\xFF\xFF\xFF", element))
                            FAIL_CANDIDATE(c, "row %d: part %d was not written", i, h);
                }
            if (!same_bits(expected, s.p.kv.pool, pool_bytes(&s))) FAIL_CANDIDATE(c, "wrote outside the rows' places");
            for (int i = 0; i < 3 * DIM; i++)
                if (s.q[3 * DIM + i] != 0.0f || s.q[9 * DIM + i] != 0.0f)
                    FAIL_CANDIDATE(c, "a padded row's q is not zero");
            for (int i = 0; i < 2 * 64; i++)
                if (s.iq[2 * 64 + i] != 0.0f) FAIL_CANDIDATE(c, "a padded row's iq is not zero");
        }
        mm3_free(expected);
        setup_close(&s);
    }
}

/* BF16 keys are the FP32 ones rounded to nearest even, NaN kept. */
static void test_bf16_rounding(void **state)
{
    setup a = setup_open(6, 2, 2, 1, 64, MM3_F32, 8, FILL_LARGE),
          b = setup_open(6, 2, 2, 1, 64, MM3_BF16, 8, FILL_LARGE);
    (void)state;
    a.qkv[2 * a.op.ld + 4 * DIM + 3] = b.qkv[2 * a.op.ld + 4 * DIM + 3] = NAN;
    a.qkv[2 * a.op.ld + 4 * DIM + 4] = b.qkv[2 * a.op.ld + 4 * DIM + 4] = mm3_f32_from_bits(0x7F800001u);
    a.qkv[2 * a.op.ld + 4 * DIM + 5] = b.qkv[2 * a.op.ld + 4 * DIM + 5] = -FLT_MAX;
    EACH_CANDIDATE(c, MM3_OP_QK_NORM_ROPE)
    {
        if (!run_candidate(c, &a.op, 2) || !run_candidate(c, &b.op, 2)) continue;
        for (int i = 0; i < 6; i++)
            for (int h = 0; h < 5; h++)
                for (int d = 0; d < (h < 4 ? DIM : 64); d++) {
                    int width = h < 4 ? DIM : 64, tile = h < 4 ? h % 2 : 0;
                    float x = kv_get(&a.op.kv, a.slot[i], a.position[i],
                                     h < 2   ? a.op.kv.k_at
                                     : h < 4 ? a.op.kv.v_at
                                             : a.op.kv.ik_at,
                                     tile, width, d);
                    float y = kv_get(&b.op.kv, b.slot[i], b.position[i],
                                     h < 2   ? b.op.kv.k_at
                                     : h < 4 ? b.op.kv.v_at
                                             : b.op.kv.ik_at,
                                     tile, width, d);
                    if (mm3_bf16_from_f32(x) != (uint16_t)(mm3_f32_bits(y) >> 16))
                        FAIL_CANDIDATE(c, "%a became %a", (double)x, (double)y);
                }
    }
    setup_close(&a);
    setup_close(&b);
}

/* C29 and row invariance: page ids from 16384 on; a row alone gives the same bits. */
static void test_large_ids_and_rows(void **state)
{
    setup s = setup_open(7, 4, 2, 2, 128, MM3_F32, 9, FILL_UNIT), one = s;
    float q[4 * DIM], iq[2 * 128];
    pages big = pages_open(2, 128, MM3_F32, 2, 3, 30000, 3);
    (void)state;
    one.op.m = 1;
    one.op.q = q;
    one.op.iq = iq;
    one.op.kv = big.kv;
    EACH_CANDIDATE(c, MM3_OP_QK_NORM_ROPE)
    {
        if (!c->tactic->row_invariant || !run_candidate(c, &s.op, 2)) continue;
        for (int i = 0; i < 7; i++) {
            one.op.qkv = s.qkv + i * s.op.ld;
            one.op.cos = s.cos + i * HALF;
            one.op.sin = s.sin + i * HALF;
            one.op.slot = s.slot + i;
            one.op.position = s.position + i;
            assert_true(run_candidate(c, &one.op, 1 + i % 3));
            if (!same_bits(q, s.q + i * 4 * DIM, sizeof q) || !same_bits(iq, s.iq + i * 256, sizeof iq))
                FAIL_CANDIDATE(c, "row %d differs when it is alone", i);
            for (int h = 0; h < 5; h++) {
                size_t part = h < 2 ? s.op.kv.k_at : h < 4 ? s.op.kv.v_at : s.op.kv.ik_at;
                size_t row = (size_t)(s.position[i] % 128) * DIM;
                const float *x = mm3_kv_tile(&s.op.kv, s.slot[i], s.position[i] / 128, part, h < 4 ? h % 2 : 0, DIM);
                const float *y = mm3_kv_tile(&big.kv, s.slot[i], s.position[i] / 128, part, h < 4 ? h % 2 : 0, DIM);
                if (!same_bits(x + row, y + row, DIM * sizeof *x))
                    FAIL_CANDIDATE(c, "row %d: other bits in a large pool", i);
            }
        }
    }
    pages_close(&big);
    setup_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),     cmocka_unit_test(test_partial_rotation),
        cmocka_unit_test(test_norms),         cmocka_unit_test(test_writes),
        cmocka_unit_test(test_bf16_rounding), cmocka_unit_test(test_large_ids_and_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
