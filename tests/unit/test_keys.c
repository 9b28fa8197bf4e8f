/* The keys of stages: every field that a launch depends on is in them (src/ops). */
#include <string.h>

#include "kernels/kernels.h"
#include "support/expect.h"

typedef struct keys {
    mm3_op_id op;
    int n;
    char text[16][2][MM3_MAX_KEY_TEXT]; /* with m, and without */
} keys;

static void add_key(keys *k, const void *contract)
{
    assert_true(k->n < MM3_COUNT(k->text));
    for (int i = 0; i < 2; i++) mm3_plan_key(k->op, contract, i, k->text[k->n][i], sizeof k->text[k->n][i]);
    k->n++;
}

static bool has_keys[MM3_N_OPS];

/* The first is the base, the second another m: the same key where m does not count. All others are different. */
static void check_keys(const keys *k)
{
    has_keys[k->op] = true;
    for (int i = 0; i < k->n; i++)
        for (int j = 0; j < i; j++)
            for (int without_m = 0; without_m < 2; without_m++) {
                bool same = strcmp(k->text[i][without_m], k->text[j][without_m]) == 0;
                if (same != (without_m && i == 1)) fail_msg("%s, %s", k->text[i][without_m], k->text[j][without_m]);
            }
}

#define BASE(type, OP, ...)            \
    keys k = { .op = MM3_OP_##OP };    \
    const type base = { __VA_ARGS__ }; \
    type v = base;                     \
    add_key(&k, &base);                \
    v.m++;                             \
    add_key(&k, &v)
#define OTHER(change) \
    v = base, change; \
    add_key(&k, &v)

static void check_products(void)
{
    {
        BASE(mm3_linear, LINEAR, .m = 8, .n = 64, .k = 96, .n_segments = 2,
             .segment = { { .n = 32, .type = MM3_MX }, { .n = 32, .type = MM3_MX } });
        OTHER(v.k = 64);
        OTHER((v.n = 96, v.segment[1].n = 64));
        OTHER(v.act = MM3_ACT_W8A16);
        OTHER((v.segment[0].type = v.segment[1].type = MM3_BF16));
        OTHER((v.segment[0].type = v.segment[1].type = MM3_F32));
        OTHER(v.segment[0].type = MM3_BF16);
        check_keys(&k);
    }
    {
        const mm3_weight mx[2] = { { .type = MM3_MX }, { .type = MM3_MX } };
        const mm3_weight bf16[2] = { { .type = MM3_BF16 }, { .type = MM3_BF16 } };
        BASE(mm3_moe_linear, MOE_LINEAR, .m = 8, .top_k = 4, .n = 64, .k = 96, .n_expert = 2, .n_segments = 1,
             .weights = mx);
        OTHER(v.top_k = 2);
        OTHER(v.n = 96);
        OTHER(v.k = 64);
        OTHER(v.n_expert = 1);
        OTHER(v.by_pair = true);
        OTHER(v.act = MM3_ACT_W8A16);
        OTHER(v.weights = bf16);
        check_keys(&k);
    }
}

static void check_attention(void)
{
    int32_t block;
    {
        BASE(mm3_attention, ATTENTION, .m = 8, .n_q = 8, .top_k = 4, .block = 128, .selected = &block,
             .kv = { .n_kv = 2, .type = MM3_F32 });
        OTHER(v.n_q = 4);
        OTHER(v.top_k = 3);
        OTHER(v.block = 64);
        OTHER(v.selected = NULL);
        OTHER(v.kv.n_kv = 4);
        OTHER(v.kv.type = MM3_BF16);
        check_keys(&k);
    }
    {
        BASE(mm3_index_select, INDEX_SELECT, .m = 8, .n_groups = 2, .top_k = 4, .block = 128,
             .kv = { .d_index = 64, .type = MM3_F32 });
        OTHER(v.n_groups = 4);
        OTHER(v.top_k = 3);
        OTHER(v.block = 64);
        OTHER(v.kv.d_index = 128);
        OTHER(v.kv.type = MM3_BF16);
        check_keys(&k);
    }
    {
        BASE(mm3_qk_norm_rope, QK_NORM_ROPE, .m = 8, .ld = 2048, .n_q = 8, .n_iq = 2,
             .kv = { .n_kv = 2, .d_index = 64, .type = MM3_F32 });
        OTHER(v.ld = 1024);
        OTHER(v.n_q = 4);
        OTHER(v.n_iq = 0);
        OTHER(v.kv.n_kv = 4);
        OTHER(v.kv.d_index = 128);
        OTHER(v.kv.type = MM3_BF16);
        check_keys(&k);
    }
}

static void check_rows(void)
{
    float row;
    {
        BASE(mm3_add_rmsnorm, ADD_RMSNORM, .m = 8, .k = 64, .delta = &row);
        OTHER(v.k = 96);
        OTHER(v.delta = NULL);
        check_keys(&k);
    }
    {
        BASE(mm3_add_rmsnorm_quantize, ADD_RMSNORM_QUANTIZE, .m = 8, .k = 64, .delta = &row);
        OTHER(v.k = 96);
        OTHER(v.delta = NULL);
        check_keys(&k);
    }
    {
        BASE(mm3_embed, EMBED, .m = 8, .k = 64, .table = { .type = MM3_BF16 });
        OTHER(v.k = 96);
        OTHER(v.table.type = MM3_F32);
        check_keys(&k);
    }
    {
        BASE(mm3_moe_sum, MOE_SUM, .m = 8, .top_k = 4, .k = 64, .shared = &row);
        OTHER(v.top_k = 2);
        OTHER(v.k = 96);
        OTHER(v.shared = NULL);
        check_keys(&k);
    }
    {
        BASE(mm3_router, ROUTER, .m = 8, .n_expert = 16, .top_k = 4);
        OTHER(v.n_expert = 8);
        OTHER(v.top_k = 2);
        check_keys(&k);
    }
    {
        BASE(mm3_sample, SAMPLE, .m = 8, .n_vocab = 100, .n_token = 90);
        OTHER(v.n_vocab = 90);
        OTHER(v.n_token = 100);
        check_keys(&k);
    }
    {
        BASE(mm3_quantize, QUANTIZE, .m = 8, .k = 64);
        OTHER(v.k = 96);
        check_keys(&k);
    }
    {
        BASE(mm3_swiglu, SWIGLU, .m = 8, .n = 64);
        OTHER(v.n = 96);
        check_keys(&k);
    }
    {
        BASE(mm3_swiglu_quantize, SWIGLU_QUANTIZE, .m = 8, .n = 64);
        OTHER(v.n = 96);
        check_keys(&k);
    }
    {
        BASE(mm3_gather, GATHER, .m = 8, .k = 64);
        OTHER(v.k = 96);
        check_keys(&k);
    }
    {
        BASE(mm3_rope_angles, ROPE_ANGLES, .m = 8);
        check_keys(&k);
    }
}

/* Two stages that differ in anything a launch depends on never share a decision. */
static void test_keys(void **state)
{
    (void)state;
    check_products();
    check_attention();
    check_rows();
    for (int op = 0; op < MM3_N_OPS; op++)
        if (!has_keys[op]) fail_msg("test_keys lacks %s", mm3_op_info_of((mm3_op_id)op)->name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
