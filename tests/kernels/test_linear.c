/* linear and moe_linear: every candidate against the reference; row invariance; scales; guards (harness.h). */
#include <sys/mman.h>

#include "kernels/harness.h"

/* The FP32 bound with at least 8 partial sums, and what rounding x to BF16 may add. */
static double tolerance_of(int k) { return (k / 8 + 16) * 0x1p-24; }
#define BF16_EXTRA(k) (0x1p-8 + (k)*0x1p-24)

static void make_input(mm3_linear *op, fill f)
{
    size_t n = (size_t)op->m * (size_t)op->k;
    op->x = make_floats(n, f, false);
    if (op->k % 32 == 0) {
        op->x_codes = make_codes(n, f);
        op->x_scales = make_scales(n / 32, f, false);
    }
    op->out = array_of((size_t)op->m * (size_t)op->n * 4);
}

static const struct {
    int n, k;
} shapes[] = { { 1, 32 },    { 3, 64 },   { 7, 96 },   { 17, 160 }, { 33, 512 },
               { 48, 1024 }, { 5, 2080 }, { 150, 96 }, { 300, 64 } };
static const int rows[] = {
    1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33, 70, 130
}; /* 130: beyond any tactic's rows at once */

static void one_type(mm3_dtype type, mm3_act act)
{
    check_result all = { 0 };
    for (int s = 0; s < MM3_COUNT(shapes); s++)
        for (int r = 0; r < MM3_COUNT(rows); r++)
            for (int f = 0; f < N_FILLS; f++) {
                mm3_linear op = { .m = rows[r], .n = shapes[s].n, .k = shapes[s].k, .act = act, .n_segments = 1 };
                check_result one;
                if ((s + r + f) % 3 && f != FILL_RANDOM) continue; /* each fill at a third of the shapes */
                if (op.m > 100 && op.n * op.k > 15000) continue;   /* the reference is slow */
                op.segment[0] = make_weight(type, op.n, op.k, (fill)f);
                make_input(&op, (fill)f);
                /* F32 weights (the router's) are never multiplied with less than F32 rows */
                one = check_case(MM3_OP_LINEAR, &op, tolerance_of(op.k), type == MM3_F32 ? 0 : BF16_EXTRA(op.k), NULL,
                                 fill_name[f]);
                all.n_runs += one.n_runs;
                free_arrays();
            }
    assert_true(all.n_runs > 0);
}
static void mx_w8a8(void **state) { (void)state, one_type(MM3_MX, MM3_ACT_W8A8); }
static void mx_w8a16(void **state) { (void)state, one_type(MM3_MX, MM3_ACT_W8A16); }
static void bf16(void **state) { (void)state, one_type(MM3_BF16, MM3_ACT_W8A8); }
static void f32(void **state) { (void)state, one_type(MM3_F32, MM3_ACT_W8A8); }

/* k that is no multiple of anything: allowed where no segment is MX. */
static void odd_k(void **state)
{
    static const mm3_dtype type[] = { MM3_BF16, MM3_F32 };
    (void)state;
    for (int t = 0; t < 2; t++)
        for (int k = 1; k < 80; k += 3) {
            mm3_linear op = { .m = 3, .n = 5, .k = k, .n_segments = 2 };
            op.segment[0] = make_weight(type[t], 2, k, FILL_RANDOM);
            op.segment[1] = make_weight(type[1 - t], 3, k, FILL_RANDOM);
            make_input(&op, FILL_RANDOM);
            check_case(MM3_OP_LINEAR, &op, tolerance_of(k), BF16_EXTRA(k), NULL, "odd k");
            free_arrays();
        }
}

static void segments(void **state)
{
    (void)state;
    for (int act = 0; act < 2; act++)
        for (int m = 1; m < 24; m += 11)
            for (int f = 0; f < N_FILLS; f++) {
                static const int n[] = { 9, 1, 4, 16, 3 };
                static const mm3_dtype type[] = { MM3_MX, MM3_F32, MM3_BF16, MM3_MX, MM3_MX };
                mm3_linear op = { .m = m, .n = 33, .k = 256, .act = (mm3_act)act, .n_segments = 5 };
                for (int s = 0; s < 5; s++) op.segment[s] = make_weight(type[s], n[s], op.k, (fill)f);
                make_input(&op, (fill)f);
                check_case(MM3_OP_LINEAR, &op, tolerance_of(op.k), BF16_EXTRA(op.k), NULL, fill_name[f]);
                for (int s = 1; s < 5; s++) op.segment[s] = make_weight(MM3_MX, n[s], op.k, (fill)f);
                check_case(MM3_OP_LINEAR, &op, tolerance_of(op.k), BF16_EXTRA(op.k), NULL, "segments of one type");
                free_arrays();
            }
}

/* Every weight code times one, and every pair of scale bytes. */
static void all_codes(void **state)
{
    uint8_t *codes = array_of(256 * 32), *scales = array_of(256), *x_codes = array_of(32), *x_scales = array_of(1);
    mm3_linear op = { .m = 1, .n = 256, .k = 32, .n_segments = 1 };
    (void)state;
    memset(codes, 0, 256 * 32);
    memset(x_codes, 0, 32);
    memset(scales, 127, 256);
    x_scales[0] = 127;
    for (int j = 0; j < 256; j++) codes[j * 32 + 5] = (uint8_t)j;
    op.x = make_floats(32, FILL_RANDOM, false);
    op.x_codes = x_codes;
    op.x_scales = x_scales;
    op.segment[0] = (mm3_weight){ .data = codes, .scales = scales, .n = 256, .type = MM3_MX };
    op.out = array_of(256 * 4);
    for (int c = 0; c < 256; c++) {
        x_codes[5] = (uint8_t)c;
        op.act = MM3_ACT_W8A8;
        check_case(MM3_OP_LINEAR, &op, 0, 0, NULL, "codes times codes are exact");
    }
    op.act = MM3_ACT_W8A16;
    check_case(MM3_OP_LINEAR, &op, 0x1p-23, 0x1p-8, NULL, "codes times floats");
    free_arrays();
}

static void all_scales(void **state)
{
    uint8_t *codes = array_of(256 * 64), *scales = array_of(512), *x_codes = array_of(64), *x_scales = array_of(2);
    float *x = array_of(64 * 4);
    mm3_linear op = { .m = 1, .n = 256, .k = 64, .n_segments = 1, .x = x, .x_codes = x_codes, .x_scales = x_scales };
    (void)state;
    memset(codes, 0x38, 256 * 64); /* 1.0 */
    memset(x_codes, 0x38, 64);
    for (int j = 0; j < 256; j++) scales[2 * j] = (uint8_t)j, scales[2 * j + 1] = 127;
    op.segment[0] = (mm3_weight){ .data = codes, .scales = scales, .n = 256, .type = MM3_MX };
    op.out = array_of(256 * 4);
    x_scales[1] = 127;
    for (int b = 0; b < 256; b++) {
        x_scales[0] = (uint8_t)b;
        op.act = MM3_ACT_W8A8;
        check_case(MM3_OP_LINEAR, &op, 0x1p-20, 0, NULL, "every pair of scales");
        for (int c = 0; c < 64; c++) x[c] = c < 32 ? ldexpf(1, b - 127) : 1.0f;
        op.act = MM3_ACT_W8A16;
        check_case(MM3_OP_LINEAR, &op, 0x1p-20, 0, NULL, "every scale and power of two");
    }
    free_arrays();
}

/* Scales 2^10 and 2^-10 in turn on values that cancel: the sum is a small integer only if each block of 32 is scaled
 * on its own. */
static void alternating_scales(void **state)
{
    enum { K = 256 };
    uint8_t *codes = array_of(K), *scales = array_of(K / 32), *x_codes = array_of(K), *x_scales = array_of(K / 32);
    mm3_linear op = { .m = 1, .n = 1, .k = K, .n_segments = 1, .x_codes = x_codes, .x_scales = x_scales };
    float *out = array_of(4), *x = array_of(K * 4);
    (void)state;
    for (int b = 0; b < K / 32; b++) {
        scales[b] = (uint8_t)(b % 2 ? 117 : 137);
        x_scales[b] = (uint8_t)(b % 2 ? 137 : 117);
        for (int c = 0; c < 32; c++) {
            codes[b * 32 + c] = c % 2 ? 0xB8 : 0x38;   /* -1, 1 */
            x_codes[b * 32 + c] = c < 2 ? 0x40 : 0x38; /* 2, 1 */
        }
        x_codes[b * 32 + 1] = 0x38;
        for (int c = 0; c < 32; c++) x[b * 32 + c] = ldexpf(c == 0 ? 2 : 1, x_scales[b] - 127);
    }
    op.segment[0] = (mm3_weight){ .data = codes, .scales = scales, .n = 1, .type = MM3_MX };
    op.x = x;
    op.out = out;
    mm3_op_info_of(MM3_OP_LINEAR)->reference(&op, NULL);
    assert_true(out[0] == K / 32);
    check_case(MM3_OP_LINEAR, &op, 0, 0, NULL, "alternating scales");
    op.act = MM3_ACT_W8A16;
    check_case(MM3_OP_LINEAR, &op, 0, 0, NULL, "alternating scales");
    free_arrays();
}

/* A row of a batch has the bits it has alone, with other neighbours, and at another place. */
static void row_invariance(void **state)
{
    enum { M = 33, N = 19, K = 192 };
    static const mm3_dtype type[] = { MM3_MX, MM3_MX, MM3_BF16, MM3_F32 };
    mm3_device *device = device_of(2);
    (void)state;
    for (int kind = 0; kind < MM3_COUNT(type); kind++) {
        const mm3_kernel *kernels[MM3_MAX_CANDIDATES];
        int n_kernels = mm3_kernels_of(MM3_OP_LINEAR, "cpu", kernels, MM3_MAX_CANDIDATES);
        mm3_linear op = { .m = M, .n = N, .k = K, .n_segments = 1, .act = kind == 1 ? MM3_ACT_W8A16 : MM3_ACT_W8A8 };
        op.segment[0] = make_weight(type[kind], N, K, FILL_RANDOM);
        make_input(&op, FILL_RANDOM);
        for (int i = 0; i < n_kernels; i++)
            for (int t = 0; t < kernels[i]->n_tactics; t++) {
                mm3_choice choice = { kernels[i], &kernels[i]->tactics[t] };
                if (!choice.tactic->row_invariant) continue;
                if (kernels[i]->refuses && kernels[i]->refuses(mm3_device_info_of(device), &op, choice.tactic))
                    continue;
                run_on(device, &op, choice);
                for (int m = 1; m < 12; m += 5)
                    for (int row = 0; row + m <= M; row += 3) {
                        mm3_linear part = op;
                        float alone[12 * N];
                        part.m = m;
                        part.x = op.x + row * K;
                        part.x_codes = op.x_codes + row * K;
                        part.x_scales = op.x_scales + row * (K / 32);
                        part.out = alone;
                        if (kernels[i]->refuses &&
                            kernels[i]->refuses(mm3_device_info_of(device), &part, choice.tactic))
                            continue;
                        run_on(device, &part, choice);
                        assert_memory_equal(alone, op.out + row * N, (size_t)m * N * 4);
                    }
            }
        free_arrays();
    }
}

/* Pairs of a routing as the router lists them; expert -1 is a padded row's. */
static void list_pairs(mm3_moe_linear *op, const int *expert)
{
    int n = op->m * op->top_k, at = 0;
    int32_t *pair = array_of((size_t)n * 4), *begin = array_of(((size_t)op->n_expert + 1) * 4);
    for (int e = 0; e < op->n_expert; e++) {
        begin[e] = at;
        for (int p = 0; p < n; p++)
            if (expert[p] == e) pair[at++] = p;
    }
    begin[op->n_expert] = at;
    while (at < n) pair[at++] = -1;
    op->pair = pair;
    op->begin = begin;
}

enum { ROUTING_RANDOM, ROUTING_ONE_EXPERT, ROUTING_PADDED, ROUTING_NONE, N_ROUTINGS };

static void moe_case(int m, int n_segments, mm3_dtype type, mm3_act act, bool by_pair, fill f, int routing)
{
    enum { E = 7, TOP = 3, N = 21, K = 96 };
    mm3_moe_linear op = {
        .m = m, .top_k = TOP, .n = N, .k = K, .n_expert = E, .n_segments = n_segments, .by_pair = by_pair, .act = act
    };
    size_t n_x = (size_t)(by_pair ? m * TOP : m) * K;
    mm3_weight *weights = array_of(sizeof(mm3_weight) * E * 2);
    int expert[64 * TOP];
    for (int i = 0; i < m * TOP; i++) {
        int e = rng_below(E - 2), c = i % TOP; /* the last two experts stay empty */
        if (routing == ROUTING_RANDOM) e = (i / TOP + c + rng_below(2)) % (E - 2);
        if (routing == ROUTING_ONE_EXPERT) e = c ? -1 : 4;
        if (routing == ROUTING_PADDED && i / TOP % 2) e = -1;
        if (routing == ROUTING_NONE) e = -1;
        expert[i] = e;
    }
    list_pairs(&op, expert);
    for (int i = 0; i < E * n_segments; i++) weights[i] = make_weight(type, n_segments == 1 ? N : i % 2 ? 8 : 13, K, f);
    op.weights = weights;
    op.x = make_floats(n_x, f, false);
    op.x_codes = make_codes(n_x, f);
    op.x_scales = make_scales(n_x / 32, f, false);
    op.out = make_floats((size_t)m * TOP * N, FILL_RANDOM, false);
    check_case(MM3_OP_MOE_LINEAR, &op, tolerance_of(K), BF16_EXTRA(K), NULL, fill_name[f]);
    free_arrays();
}

static void moe(void **state)
{
    static const int m[] = { 1, 2, 3, 9, 33 };
    static const struct {
        mm3_dtype type;
        mm3_act act;
    } kind[] = {
        { MM3_MX, MM3_ACT_W8A8 }, { MM3_MX, MM3_ACT_W8A16 }, { MM3_BF16, MM3_ACT_W8A8 }, { MM3_F32, MM3_ACT_W8A8 }
    };
    (void)state;
    for (int i = 0; i < MM3_COUNT(m); i++)
        for (int t = 0; t < MM3_COUNT(kind); t++)
            for (int r = 0; r < N_ROUTINGS; r++)
                for (int f = 0; f < N_FILLS; f++)
                    for (int s = 1; s <= 2; s++) moe_case(m[i], s, kind[t].type, kind[t].act, s == 1, (fill)f, r);
}

/* C29: input and output of the last pair lie beyond 2^31 elements. Pages of the maps that nobody touches cost nothing,
 * and F32 weights need no copy of the rows. */
static void moe_large(void **state)
{
    enum { TOP = 4, M = (1 << 24) + 1, PAIRS = M * TOP, N = 32, K = 32 };
    size_t n = (size_t)PAIRS * N, n_bytes = n * sizeof(float);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    float *x = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    float *out = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, flags, -1, 0), *row = make_floats(K, FILL_RANDOM, false);
    int32_t pair[] = { PAIRS - 1 }, begin[] = { 0, 1 };
    const mm3_kernel *kernels[MM3_MAX_CANDIDATES];
    int n_kernels = mm3_kernels_of(MM3_OP_MOE_LINEAR, "cpu", kernels, MM3_MAX_CANDIDATES), n_runs = 0;
    mm3_weight w = make_weight(MM3_F32, N, K, FILL_RANDOM);
    mm3_moe_linear op = { .m = M, .top_k = TOP, .n = N, .k = K, .n_expert = 1, .n_segments = 1, .act = MM3_ACT_W8A16 };
    mm3_device *device = device_of(2);
    (void)state;
    assert_true(x != MAP_FAILED && out != MAP_FAILED);
    op.weights = &w;
    op.x = x;
    op.out = out;
    op.pair = pair;
    op.begin = begin;
    for (int by_pair = 0; by_pair < 2; by_pair++) {
        float *at = x + (size_t)(by_pair ? PAIRS - 1 : M - 1) * K;
        memcpy(at, row, K * sizeof *row);
        op.by_pair = by_pair;
        for (int i = 0; i < n_kernels; i++)
            for (int t = 0; t < kernels[i]->n_tactics; t++) {
                mm3_choice choice = { kernels[i], &kernels[i]->tactics[t] };
                if (kernels[i]->refuses && kernels[i]->refuses(mm3_device_info_of(device), &op, choice.tactic))
                    continue;
                memset(out + n - N, 0xFF, N * sizeof *out);
                run_on(device, &op, choice);
                for (int j = 0; j < N; j++) {
                    double want = 0;
                    for (int c = 0; c < K; c++) want += (double)row[c] * (double)((const float *)w.data)[j * K + c];
                    assert_true(fabs((double)out[n - N + (size_t)j] - want) < 1e-4);
                }
                n_runs++;
            }
        memset(at, 0, K * sizeof *row);
    }
    assert_true(n_runs >= 2);
    munmap(x, n_bytes);
    munmap(out, n_bytes);
    free_arrays();
}

/* A pair's bits do not depend on which other pairs its expert has. */
static void moe_row_invariance(void **state)
{
    enum { M = 20, TOP = 2, N = 10, K = 64, E = 3 };
    const mm3_kernel *kernels[MM3_MAX_CANDIDATES];
    int n_kernels = mm3_kernels_of(MM3_OP_MOE_LINEAR, "cpu", kernels, MM3_MAX_CANDIDATES);
    mm3_device *device = device_of(2);
    (void)state;
    for (int act = 0; act < 2; act++) {
        mm3_moe_linear op = {
            .m = M, .top_k = TOP, .n = N, .k = K, .n_expert = E, .n_segments = 1, .act = (mm3_act)act
        };
        mm3_weight *weights = array_of(sizeof(mm3_weight) * E);
        int expert[M * TOP];
        for (int i = 0; i < M * TOP; i++) expert[i] = (i / TOP + i % TOP) % E;
        list_pairs(&op, expert);
        for (int e = 0; e < E; e++) weights[e] = make_weight(MM3_MX, N, K, FILL_RANDOM);
        op.weights = weights;
        op.x = make_floats(M * K, FILL_RANDOM, false);
        op.x_codes = make_codes(M * K, FILL_RANDOM);
        op.x_scales = make_scales(M * K / 32, FILL_RANDOM, false);
        op.out = array_of(M * TOP * N * 4);
        for (int i = 0; i < n_kernels; i++)
            for (int t = 0; t < kernels[i]->n_tactics; t++) {
                mm3_choice choice = { kernels[i], &kernels[i]->tactics[t] };
                if (!choice.tactic->row_invariant) continue;
                if (kernels[i]->refuses && kernels[i]->refuses(mm3_device_info_of(device), &op, choice.tactic))
                    continue;
                run_on(device, &op, choice);
                for (int row = 0; row < M; row++) {
                    mm3_moe_linear part = op;
                    float alone[TOP * N];
                    part.m = 1;
                    list_pairs(&part, expert + row * TOP);
                    part.x = op.x + row * K;
                    part.x_codes = op.x_codes + row * K;
                    part.x_scales = op.x_scales + row * (K / 32);
                    part.out = alone;
                    if (kernels[i]->refuses && kernels[i]->refuses(mm3_device_info_of(device), &part, choice.tactic))
                        continue;
                    run_on(device, &part, choice);
                    assert_memory_equal(alone, op.out + row * TOP * N, TOP * N * 4);
                }
            }
        free_arrays();
    }
}

/* What the descriptors say: keys on real and zeroed structs, least bytes, and types. */
/* --backend linear=amx names no tactic: the first is taken, at every number of rows. No processor with AMX is needed. */
static void the_first_tactic_of_amx_takes_any_rows(void **state)
{
    static const mm3_device_info device = { .kind = "cpu", .n_threads = 2, .features = ~0u };
    const mm3_kernel *linear = mm3_kernel_find(MM3_OP_LINEAR, "cpu", "amx");
    const mm3_kernel *moe_linear = mm3_kernel_find(MM3_OP_MOE_LINEAR, "cpu", "amx");
    mm3_weight w = { .n = 20, .type = MM3_MX };
    (void)state;
    if (!linear) return; /* not x86-64 */
    assert_non_null(moe_linear);
    for (int m = 1; m <= 300; m++) {
        mm3_linear op = { .m = m, .n = 20, .k = 64, .n_segments = 1, .segment = { w } };
        mm3_moe_linear moe_op = { .m = m, .top_k = 1, .n = 20, .k = 64, .n_expert = 1, .n_segments = 1, .weights = &w };
        assert_null(linear->refuses(&device, &op, &linear->tactics[0]));
        assert_null(moe_linear->refuses(&device, &moe_op, &moe_linear->tactics[0]));
    }
}

static void descriptors(void **state)
{
    const mm3_op_info *info = mm3_op_info_of(MM3_OP_LINEAR);
    mm3_linear op = { .m = 8, .n = 20, .k = 64, .n_segments = 2, .act = MM3_ACT_W8A16 };
    mm3_moe_linear moe_op = { .m = 2, .top_k = 4, .n = 6, .k = 32, .n_expert = 3, .n_segments = 1, .by_pair = true };
    mm3_weight weights[3] = { { .n = 6, .type = MM3_MX }, { .n = 6, .type = MM3_MX }, { .n = 6, .type = MM3_MX } };
    int32_t begin[] = { 0, 2, 2, 8 };
    mm3_key key = { .op = MM3_OP_LINEAR };
    char text[256];
    (void)state;
    op.segment[0] = (mm3_weight){ .n = 12, .type = MM3_MX };
    op.segment[1] = (mm3_weight){ .n = 8, .type = MM3_MX };
    info->key(&op, &key);
    mm3_key_text(&key, text, sizeof text);
    assert_string_equal(text, "linear m=8 n=20 k=64 w=mx act=w8a16");
    assert_int_equal(mm3_linear_type(&op), MM3_MX);
    assert_true(info->bytes(&op) == 20 * 66 + 8 * 64 * 4 + 8 * 20 * 4);
    op.act = MM3_ACT_W8A8;
    assert_true(info->bytes(&op) == 20 * 66 + 8 * 66 + 8 * 20 * 4);
    assert_true(info->flops(&op) == 2.0 * 8 * 20 * 64);
    op.segment[1].type = MM3_F32;
    assert_int_equal(mm3_linear_type(&op), -1);
    key = (mm3_key){ .op = MM3_OP_LINEAR };
    info->key(&op, &key);
    mm3_key_text(&key, text, sizeof text);
    assert_string_equal(text, "linear m=8 n=20 k=64 w=mixed act=w8a8");
    info = mm3_op_info_of(MM3_OP_MOE_LINEAR);
    moe_op.weights = weights;
    moe_op.begin = begin;
    key = (mm3_key){ .op = MM3_OP_MOE_LINEAR };
    info->key(&moe_op, &key);
    mm3_key_text(&key, text, sizeof text);
    assert_string_equal(text, "moe_linear m=2 top_k=4 n=6 k=32 experts=3 w=mx act=w8a8 in=pair");
    assert_true(info->bytes(&moe_op) == 2 * 6 * 33 + 8 * 33 + 8 * (6 * 4 + 4) + 4 * 4); /* two experts are hit */
    assert_true(info->flops(&moe_op) == 2.0 * 8 * 6 * 32);
    for (int i = 0; i < MM3_N_OPS; i++) {
        union {
            max_align_t align;
            unsigned char bytes[MM3_MAX_OP_BYTES];
        } zero = { .bytes = { 0 } };
        key = (mm3_key){ .op = (mm3_op_id)i };
        assert_true(mm3_op_info_of((mm3_op_id)i)->n_bytes <= MM3_MAX_OP_BYTES);
        if (mm3_op_info_of((mm3_op_id)i)->key) mm3_op_info_of((mm3_op_id)i)->key(&zero, &key);
        assert_true(key.n <= MM3_MAX_KEY_FIELDS && key.op == (mm3_op_id)i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptors),
        cmocka_unit_test(the_first_tactic_of_amx_takes_any_rows),
        cmocka_unit_test(mx_w8a8),
        cmocka_unit_test(mx_w8a16),
        cmocka_unit_test(bf16),
        cmocka_unit_test(f32),
        cmocka_unit_test(odd_k),
        cmocka_unit_test(segments),
        cmocka_unit_test(all_codes),
        cmocka_unit_test(all_scales),
        cmocka_unit_test(alternating_scales),
        cmocka_unit_test(row_invariance),
        cmocka_unit_test(moe),
        cmocka_unit_test(moe_row_invariance),
        cmocka_unit_test(moe_large),
    };
    return cmocka_run_group_tests_name("linear", tests, NULL, NULL);
}
