/* Which cases are checked: for every operation shapes, and the fills for each. Whole and scaled shapes are those of M3
 * (source: m3 checkpoint, projection shapes); the small ones are there for their edges. */
#include <stdio.h>

#include "tune/sweep_cases.h"

typedef struct maker {
    mm3__case_list *list;
    const mm3_sweep *sweep;
    mm3_status st;
} maker;

#define ALL ((1u << MM3_N_FILLS) - 1)
#define BIT(fill) (1u << MM3_FILL_##fill)

/* What else a case is for. */
enum { PLAIN = 0, ROWS = 1, DEVICE = 2 };

static void append(maker *k, mm3_op_id op, const mm3_shape *shape, int fill, int also)
{
    mm3__case_list *l = k->list;
    if (k->st != MM3_OK) return;
    if (l->n == l->max) {
        int max = MM3_MAX(2 * l->max, 256);
        mm3__listed_case *more = mm3_realloc(l->item, (size_t)max * sizeof *more);
        if (!more) {
            k->st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for the list of cases");
            return;
        }
        l->item = more;
        l->max = max;
    }
    l->item[l->n] = (mm3__listed_case){ .rows = also & ROWS, .device = (also & DEVICE) != 0 };
    l->item[l->n].spec = (mm3_case_spec){
        .op = op,
        .shape = *shape,
        .fill = (mm3_fill)fill,
        /* every case has its own numbers; a repeated one has those it is given */
        .seed = k->sweep->seed + (k->sweep->shape ? 0 : (uint64_t)(l->n % 1000)),
    };
    l->n++;
}

/* Cases of one shape, with each of the fills. */
static void add(maker *k, mm3_op_id op, unsigned fills, int also, const char *fmt, ...) MM3_PRINTF(5, 6);
static void add(maker *k, mm3_op_id op, unsigned fills, int also, const char *fmt, ...)
{
    char text[256];
    mm3_shape shape = mm3_shape_default(op);
    va_list args;
    if (k->st != MM3_OK || (k->sweep->op >= 0 && k->sweep->op != (int)op)) return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    k->st = mm3_shape_parse(op, text, &shape);
    for (int f = 0; f < MM3_N_FILLS; f++)
        if ((fills >> f & 1) && (k->sweep->fill < 0 || k->sweep->fill == f)) append(k, op, &shape, f, also);
}

/* Three fills that change with i, so that all are seen in turn. */
static unsigned three(int i)
{
    return 1u << (i % MM3_N_FILLS) | 1u << ((i + 4) % MM3_N_FILLS) | 1u << ((i + 7) % MM3_N_FILLS);
}

/* 1..70 one by one and odd large ones; a few where little time may be spent. */
static int next_m(const maker *k, int m)
{
    static const int few[] = { 1, 2, 3, 5, 8, 17, 33 }, large[] = { 96, 127, 129, 200, 257, 513 };
    if (k->sweep->quick) {
        for (int i = 0; i < MM3_COUNT(few); i++)
            if (few[i] > m) return few[i];
        return 0;
    }
    if (m < 70) return m + 1;
    for (int i = 0; i < MM3_COUNT(large); i++)
        if (large[i] > m) return large[i];
    return 0;
}

/* (N, K) of every linear of M3 at TP1. */
static const int whole[][2] = { { 9216, 6144 }, { 6144, 8192 }, { 24576, 6144 }, { 6144, 12288 },
                                { 6144, 6144 }, { 6144, 3072 }, { 640, 6144 } };

static void linear_small(maker *k)
{
    static const char *const type[] = { "w=mx,act=w8a8",
                                        "w=mx,act=w8a16",
                                        "w=bf16",
                                        "w=f32",
                                        "w=mixed,segments=4",
                                        "w=mx,act=w8a8,segments=5",
                                        "w=mixed,segments=3,act=w8a16" };
    static const int nk[][2] = { { 64, 96 }, { 17, 32 },  { 128, 128 }, { 5, 32 },   { 33, 160 }, { 100, 352 },
                                 { 31, 64 }, { 96, 256 }, { 7, 512 },   { 48, 224 }, { 65, 1024 } };
    static const int odd_k[] = { 1, 7, 33, 50, 129 };
    for (int m = 1; m > 0; m = next_m(k, m))
        for (int t = 0; t < MM3_COUNT(type); t++) {
            const int *shape = nk[(m + 3 * t) % MM3_COUNT(nk)];
            unsigned fills = m > 70 ? BIT(RANDOM) | BIT(EXACT) : k->sweep->quick || t > 3 ? three(m + t) : ALL;
            add(k, MM3_OP_LINEAR, fills, PLAIN, "m=%d,n=%d,k=%d,%s", m, shape[0], shape[1], type[t]);
        }
    for (int i = 0; i < MM3_COUNT(odd_k); i++) {
        add(k, MM3_OP_LINEAR, ALL, PLAIN, "m=%d,n=%d,k=%d,w=bf16", 1 + 2 * i, 9 + i, odd_k[i]);
        add(k, MM3_OP_LINEAR, ALL, PLAIN, "m=%d,n=%d,k=%d,w=f32", 1 + 2 * i, 9 + i, odd_k[i]);
    }
    for (int t = 0; t < 4; t++) {
        add(k, MM3_OP_LINEAR, BIT(RANDOM), ROWS | DEVICE, "m=6,n=80,k=256,%s", type[t]);
        add(k, MM3_OP_LINEAR, BIT(TRAINED), ROWS, "m=33,n=80,k=96,%s", type[t]);
    }
    /* one block of K: with a new seed each time, every weight's scale byte meets every kind of row */
    for (int i = 0; i < (k->sweep->quick ? 16 : 256); i++)
        add(k, MM3_OP_LINEAR, BIT(SCALES), PLAIN, "m=4,n=16,k=32,%s", type[i % 2]);
}

static void linear_large(maker *k)
{
    static const int divisor[] = { 16, 8, 4 };
    static const int few[] = { 1, 2, 4, 5, 8, 16, 33, 64 };
    for (int i = 0; i < MM3_COUNT(whole); i++) {
        int n = whole[i][0], depth = whole[i][1];
        bool largest = (int64_t)n * depth > 60000000;
        add(k, MM3_OP_LINEAR, largest ? BIT(EXACT) : BIT(EXACT) | BIT(TRAINED), PLAIN, "m=1,n=%d,k=%d,act=w8a8", n,
            depth);
        if (!largest) add(k, MM3_OP_LINEAR, BIT(EXACT), PLAIN, "m=2,n=%d,k=%d,act=w8a16", n, depth);
    }
    add(k, MM3_OP_LINEAR, BIT(EXACT) | BIT(TRAINED), PLAIN, "m=5,n=128,k=6144,w=f32");
    add(k, MM3_OP_LINEAR, BIT(EXACT) | BIT(TRAINED), PLAIN, "m=3,n=2001,k=6144,w=bf16");
    for (int i = 0; i < MM3_COUNT(whole); i++)
        for (int j = 0; j < MM3_COUNT(few); j++) {
            int d = divisor[(i + j) % MM3_COUNT(divisor)];
            add(k, MM3_OP_LINEAR, BIT(EXACT) | BIT(RANDOM), PLAIN, "m=%d,n=%d,k=%d,act=%s", few[j], whole[i][0] / d / 4,
                whole[i][1] / d, j % 2 ? "w8a8" : "w8a16");
        }
}

static void moe_linears(maker *k)
{
    static const char *const type[] = { "w=mx,act=w8a8,segments=2",   "w=mx,act=w8a8,in=pair", "w=mx,act=w8a16",
                                        "w=mixed,segments=2,in=pair", "w=bf16,pad=1",          "w=f32,in=pair,pad=1" };
    static const int nk[][2] = { { 64, 96 }, { 17, 32 }, { 40, 128 }, { 6, 64 }, { 33, 160 } };
    for (int m = 1; m > 0; m = next_m(k, m))
        for (int t = 0; t < MM3_COUNT(type); t++) {
            const int *shape = nk[(m + 2 * t) % MM3_COUNT(nk)];
            unsigned fills = m > 70 ? BIT(EXACT) : k->sweep->quick || t > 1 ? three(m + t) : ALL;
            add(k, MM3_OP_MOE_LINEAR, fills, PLAIN, "m=%d,n=%d,k=%d,%s,experts=%d,top_k=%d", m, shape[0], shape[1],
                type[t], 4 + m % 13, 1 + m % 4);
        }
    for (int t = 0; t < MM3_COUNT(type); t++)
        add(k, MM3_OP_MOE_LINEAR, BIT(RANDOM), ROWS | DEVICE, "m=7,n=48,k=96,experts=8,top_k=3,%s", type[t]);
    if (k->sweep->quick) return;
    add(k, MM3_OP_MOE_LINEAR, BIT(EXACT), PLAIN, "m=1,n=6144,k=6144,experts=8,top_k=4,segments=2");
    add(k, MM3_OP_MOE_LINEAR, BIT(EXACT), PLAIN, "m=2,n=6144,k=3072,experts=4,top_k=2,in=pair");
    add(k, MM3_OP_MOE_LINEAR, BIT(EXACT) | BIT(RANDOM), PLAIN, "m=64,n=96,k=192,experts=128,top_k=4,segments=2");
}

static void row_operations(maker *k)
{
    static const int width[] = { 96, 32, 256, 416, 64, 1024 }, odd[] = { 1, 7, 33, 50, 129 };
    for (int m = 1; m > 0; m = next_m(k, m)) {
        int w = width[m % MM3_COUNT(width)], any = m % 3 ? w : odd[m % MM3_COUNT(odd)];
        unsigned fills = k->sweep->quick || m > 70 ? three(m) : ALL;
        const char *delta = m % 2 ? "yes" : "no";
        add(k, MM3_OP_EMBED, fills, m == 5 ? ROWS | DEVICE : PLAIN, "m=%d,k=%d,n=%d,w=%s,pad=%d", m, any, 3 + m,
            m % 2 ? "bf16" : "f32", m / 2 % 2);
        add(k, MM3_OP_ROPE_ANGLES, BIT(RANDOM), m % 16 == 5 ? ROWS | DEVICE : PLAIN, "m=%d,pad=%d", m, m % 2);
        add(k, MM3_OP_ADD_RMSNORM, fills, m == 5 ? ROWS | DEVICE : PLAIN, "m=%d,k=%d,delta=%s", m, any, delta);
        add(k, MM3_OP_QUANTIZE, fills, m == 5 ? ROWS | DEVICE : PLAIN, "m=%d,k=%d", m, w);
        add(k, MM3_OP_ADD_RMSNORM_QUANTIZE, fills, m == 5 ? ROWS | DEVICE : PLAIN, "m=%d,k=%d,delta=%s", m, w, delta);
        add(k, MM3_OP_SWIGLU, fills, m == 5 ? ROWS | DEVICE : PLAIN, "m=%d,n=%d", m, any);
        add(k, MM3_OP_SWIGLU_QUANTIZE, fills, m == 5 ? ROWS | DEVICE : PLAIN, "m=%d,n=%d", m, w);
        add(k, MM3_OP_MOE_SUM, fills, m == 5 ? ROWS | DEVICE : PLAIN, "m=%d,k=%d,top_k=%d,shared=%d,pad=%d", m, any,
            1 + m % 5, m % 3 != 0, m % 2);
        add(k, MM3_OP_GATHER, fills, m == 5 ? ROWS | DEVICE : PLAIN, "m=%d,k=%d,rows=%d", m, any, 1 + m / 2);
    }
    /* every exponent of a block's largest value, every kind of tie */
    for (int i = 0; i < (k->sweep->quick ? 4 : 40); i++) {
        add(k, MM3_OP_QUANTIZE, BIT(TIES) | BIT(SCALES) | BIT(NAN) | BIT(INF), PLAIN, "m=16,k=512");
        add(k, MM3_OP_SWIGLU_QUANTIZE, BIT(RANDOM) | BIT(NAN), PLAIN, "m=3,n=256");
    }
    for (int m = 1; m <= 33; m += 8) {
        add(k, MM3_OP_ADD_RMSNORM, BIT(RANDOM) | BIT(TRAINED) | BIT(HUGE) | BIT(TINY), ROWS, "m=%d,k=6144", m);
        add(k, MM3_OP_ADD_RMSNORM_QUANTIZE, BIT(TRAINED), ROWS, "m=%d,k=6144", m);
        add(k, MM3_OP_QUANTIZE, BIT(TRAINED), ROWS, "m=%d,k=12288", m);
        add(k, MM3_OP_SWIGLU_QUANTIZE, BIT(TRAINED), ROWS, "m=%d,n=3072", m);
        add(k, MM3_OP_SWIGLU, BIT(RANDOM), ROWS, "m=%d,n=3072", m);
        add(k, MM3_OP_MOE_SUM, BIT(RANDOM) | BIT(EXACT), ROWS, "m=%d,k=6144,top_k=4", m);
        add(k, MM3_OP_EMBED, BIT(RANDOM), ROWS, "m=%d,k=6144,n=40", m);
    }
}

static void attention_operations(maker *k)
{
    for (int m = 1; m > 0; m = next_m(k, m)) {
        const char *kv = m % 2 ? "f32" : "bf16";
        int also = m == 5 || m == 18 ? ROWS | DEVICE : PLAIN;
        unsigned fills = m > 70 ? BIT(RANDOM) : three(m);
        add(k, MM3_OP_QK_NORM_ROPE, fills | BIT(TINY), also, "m=%d,heads=%d,kv_heads=%d,index_heads=%d,kv=%s,pad=%d", m,
            3 * (1 + m % 3), 1 + 2 * (m / 2 % 2), m % 4, kv, m / 3 % 2);
        add(k, MM3_OP_INDEX_SELECT, fills | BIT(RANDOM) | BIT(TIES), also,
            "m=%d,groups=%d,kv=%s,top_k=%d,context=%d,pad=%d", m, 1 + m % 4, kv, 1 + m % 5, m % 7 ? 500 + 3 * m : 140,
            m / 2 % 2);
        add(k, MM3_OP_ATTENTION, fills | BIT(RANDOM), also, "m=%d,heads=%d,kv_heads=%d,kv=%s,context=%d,pad=%d", m,
            2 * (1 + m % 3), 1 + m % 2, kv, m % 5 ? 100 + 2 * m : 1 + m % 3, m / 2 % 2);
        add(k, MM3_OP_ATTENTION, fills | BIT(RANDOM), also,
            "m=%d,heads=%d,kv_heads=%d,kv=%s,context=%d,top_k=%d,pad=%d", m, 4, 2, kv, 300 + 5 * m, 1 + m % 3,
            m / 2 % 2);
    }
    if (k->sweep->quick) return;
    /* as in M3: 64 heads in 4 groups, 16 blocks of 128 */
    add(k, MM3_OP_QK_NORM_ROPE, ALL, ROWS, "m=5,heads=64,kv_heads=4,index_heads=4,kv=f32");
    add(k, MM3_OP_QK_NORM_ROPE, ALL, ROWS, "m=5,heads=64,kv_heads=4,index_heads=4,kv=bf16");
    add(k, MM3_OP_INDEX_SELECT, BIT(RANDOM) | BIT(TIES) | BIT(TRAINED), ROWS, "m=4,groups=4,top_k=16,context=4500");
    add(k, MM3_OP_INDEX_SELECT, BIT(RANDOM) | BIT(TIES), PLAIN, "m=4,groups=4,top_k=16,context=4500,kv=bf16");
    add(k, MM3_OP_INDEX_SELECT, BIT(RANDOM) | BIT(TIES), PLAIN, "m=20,groups=4,top_k=4,context=1400,block=64");
    add(k, MM3_OP_ATTENTION, BIT(RANDOM) | BIT(TRAINED), ROWS, "m=3,heads=64,kv_heads=4,top_k=16,context=3000");
    add(k, MM3_OP_ATTENTION, BIT(RANDOM), PLAIN, "m=2,heads=64,kv_heads=4,context=2500,kv=bf16");
    add(k, MM3_OP_ATTENTION, BIT(RANDOM), PLAIN, "m=9,heads=4,kv_heads=2,top_k=4,context=700,block=64");
}

static void choosing_operations(maker *k)
{
    static const char *const mode[] = { "greedy", "temperature", "top_k", "top_p", "min_p", "all" };
    for (int m = 1; m > 0; m = next_m(k, m)) {
        int also = m == 5 || m == 17 ? ROWS | DEVICE : PLAIN, n_expert = 4 + m % 20;
        unsigned fills = k->sweep->quick || m > 70 ? three(m) : ALL;
        add(k, MM3_OP_ROUTER, fills | BIT(TIES), also, "m=%d,experts=%d,top_k=%d,pad=%d", m, n_expert, 1 + m % 4,
            m / 2 % 2);
        if (m % 3 == 0) add(k, MM3_OP_ROUTER, ALL, also, "m=%d,experts=128,top_k=4", m);
        for (int i = 0; i < MM3_COUNT(mode); i++)
            add(k, MM3_OP_SAMPLE, i ? three(m + i) : fills, also, "m=%d,vocab=%d,tokens=%d,mode=%s,penalties=%d,pad=%d",
                m, 40 + 7 * m, 38 + 7 * m - m % 30, mode[i], m / 2 % 2, m / 3 % 2);
    }
    if (k->sweep->quick) return;
    for (int i = 0; i < MM3_COUNT(mode); i++)
        add(k, MM3_OP_SAMPLE, i ? BIT(TRAINED) : BIT(RANDOM) | BIT(TIES), PLAIN,
            "m=2,vocab=200064,tokens=200061,mode=%s", mode[i]);
}

mm3_status mm3__case_list_make(mm3__case_list *list, const mm3_sweep *sweep)
{
    maker k = { .list = list, .sweep = sweep };
    *list = (mm3__case_list){ 0 };
    if (sweep->shape) {
        for (int f = 0; f < MM3_N_FILLS; f++)
            if (sweep->fill < 0 || sweep->fill == f) append(&k, (mm3_op_id)sweep->op, sweep->shape, f, ROWS | DEVICE);
    } else {
        if (!sweep->quick) linear_large(&k); /* the longest first, so that no worker ends with one */
        linear_small(&k);
        moe_linears(&k);
        row_operations(&k);
        attention_operations(&k);
        choosing_operations(&k);
    }
    if (k.st == MM3_OK && list->n == 0)
        k.st = mm3_fail(MM3_ERR_ARG, MM3_HERE, "%s has no case with fill %s; name a --shape",
                        mm3_op_info_of((mm3_op_id)MM3_MAX(sweep->op, 0))->name,
                        sweep->fill < 0 ? "any" : mm3_fill_name((mm3_fill)sweep->fill));
    if (k.st != MM3_OK) mm3__case_list_free(list);
    return k.st;
}

void mm3__case_list_free(mm3__case_list *list)
{
    mm3_free(list->item);
    *list = (mm3__case_list){ 0 };
}
