/* What inputs hold: every fill, for FP32 rows, MXFP8 rows and weights. A row's content
 * follows from (seed, tag, row). */
#include <pthread.h>
#include <string.h>

#include "tune/cases.h"

static const char *const fill_names[MM3_N_FILLS] = { "random", "trained", "zero",   "tiny", "huge", "subnormal",
                                                     "nan",    "inf",     "scales", "ties", "exact" };

const char *mm3_fill_name(mm3_fill fill) { return fill_names[fill]; }

int mm3_fill_find(const char *name)
{
    for (int i = 0; i < MM3_N_FILLS; i++)
        if (strcmp(fill_names[i], name) == 0) return i;
    return -1;
}

mm3__rng mm3__rng_of(uint64_t seed, const char *tag, int64_t row)
{
    mm3__rng r = { seed * 0xD1342543DE82EF95u + 1 };
    for (const char *c = tag; *c; c++) {
        r.at ^= (unsigned char)*c;
        mm3__next(&r);
        r.at *= 0x2545F4914F6CDD1Du;
    }
    r.at ^= mm3__next(&r) + (uint64_t)row * 0x9FB21C651E98DF25u;
    mm3__next(&r);
    return r;
}

/* Four uniform variables added: close enough to normal, variance 1, |x| < 3.5, and it costs no logarithm. */
float mm3__normal(mm3__rng *r)
{
    uint64_t u = mm3__next(r);
    int64_t sum =
        (int64_t)(u & 0xFFFF) + (int64_t)(u >> 16 & 0xFFFF) + (int64_t)(u >> 32 & 0xFFFF) + (int64_t)(u >> 48);
    return (float)(sum - 2 * 65535) * 2.6429e-5f;
}

/* ---- FP32 rows --------------------------------------------------------------------------------------------------- */

static float trained_value(const char *tag, int c, mm3__rng *r)
{
    mm3__rng channel = mm3__rng_of(0, tag, c); /* the same channels in every row */
    float x = 0.4f * mm3__normal(r) + 0.1f;
    return mm3__below(&channel, 53) == 0 ? 40 * x : x;
}

/* A special value in half of the rows, so that the others show that it stays where it belongs. */
static void sprinkle(mm3_fill fill, mm3__rng *r, float *dst, int n)
{
    int how = mm3__below(r, 8), at = mm3__below(r, n), other = mm3__below(r, n);
    uint32_t payload = (uint32_t)mm3__next(r);
    if (how >= 4) return;
    if (fill == MM3_FILL_NAN) {
        dst[at] = mm3_f32_from_bits(0x7F800001u | (payload & 0x807FFFFFu)); /* quiet and signalling, both signs */
        if (how == 0) memset(dst + n / 2, 0xFF, (size_t)(n - n / 2) * sizeof *dst);
    } else {
        dst[at] = how & 1 ? -INFINITY : INFINITY;
        if (how == 3) dst[other] = INFINITY;
    }
}

void mm3__fill_row(mm3_fill fill, uint64_t seed, const char *tag, int64_t row, float *dst, int n)
{
    mm3__rng r = mm3__rng_of(seed, tag, row);
    for (int c = 0; c < n; c++) switch (fill) {
        case MM3_FILL_ZERO:
            dst[c] = mm3__next(&r) & 1 ? -0.0f : 0.0f;
            break;
        case MM3_FILL_TINY:
            dst[c] = mm3__normal(&r) * 0x1p-100f;
            break;
        case MM3_FILL_HUGE:
            dst[c] = mm3__normal(&r) * 0x1p90f;
            break;
        case MM3_FILL_SUBNORMAL:
            dst[c] = mm3_f32_from_bits((uint32_t)mm3__next(&r) & 0x807FFFFFu);
            break;
        case MM3_FILL_TRAINED:
            dst[c] = trained_value(tag, c, &r);
            break;
        case MM3_FILL_TIES:
            dst[c] = 0.5f * (float)(mm3__below(&r, 17) - 8);
            break;
        case MM3_FILL_EXACT:
            dst[c] = (float)(mm3__below(&r, 9) - 4);
            break;
        default:
            dst[c] = mm3__normal(&r);
            break;
        }
    if (n > 0 && (fill == MM3_FILL_NAN || fill == MM3_FILL_INF)) sprinkle(fill, &r, dst, n);
}

void mm3__fill_rows(const mm3_case *c, const char *tag, float *dst, int n)
{
    for (int i = 0; i < c->spec.shape.v[0]; i++)
        mm3__fill_row(c->spec.fill, c->spec.seed, tag, mm3__row_id(c, i), dst + (size_t)i * (size_t)n, n);
}

/* ---- MXFP8 rows -------------------------------------------------------------------------------------------------- */

typedef enum codes_kind { CODES_ANY, CODES_NORMAL, CODES_WHOLE, CODES_ZERO, CODES_SUBNORMAL, N_CODES } codes_kind;
static uint8_t code_of[N_CODES][256]; /* a code from an even byte */
static pthread_once_t codes_once = PTHREAD_ONCE_INIT;

static void make_codes(void)
{
    mm3__rng r = mm3__rng_of(0, "codes", 0);
    for (int i = 0; i < 256; i++) {
        uint8_t b = (uint8_t)i;
        code_of[CODES_ANY][i] = (b & 0x7F) == 0x7F ? (uint8_t)(b - 1) : b;
        code_of[CODES_NORMAL][i] = mm3_e4m3_from_f32(100 * mm3__normal(&r), 127);
        code_of[CODES_WHOLE][i] = mm3_e4m3_from_f32((float)(i % 9 - 4), 127);
        code_of[CODES_ZERO][i] = b & 0x80;
        code_of[CODES_SUBNORMAL][i] = b & 0x87;
    }
}

static codes_kind codes_kind_of(mm3_fill fill)
{
    switch (fill) {
    case MM3_FILL_TRAINED:
        return CODES_NORMAL;
    case MM3_FILL_EXACT:
        return CODES_WHOLE;
    case MM3_FILL_ZERO:
        return CODES_ZERO;
    case MM3_FILL_SUBNORMAL:
        return CODES_SUBNORMAL;
    default:
        return CODES_ANY;
    }
}

/* `scales`: a weight's bytes follow a base by block that runs over all bytes; every other activation row has the
 * complement, so that products are in range although neither factor is, and the others make results of every size. */
static int scale_base(uint64_t seed, int block) { return (int)((seed * 11 + (uint64_t)block * 37) % 255); }

static uint8_t scale_byte(mm3_fill fill, uint64_t seed, bool weight, int64_t row, int block, uint64_t even)
{
    int few = (int)(even >> 40 & 3);
    switch (fill) {
    case MM3_FILL_TRAINED:
        return (uint8_t)(weight ? 113 + few : 119 + few);
    case MM3_FILL_ZERO:
        return (uint8_t)(even % 255);
    case MM3_FILL_TINY:
        return (uint8_t)(72 + few);
    case MM3_FILL_HUGE:
        return (uint8_t)(weight ? 174 + few : 160 + few);
    /* odd rows of activations bring what the weights hold back into range */
    case MM3_FILL_SUBNORMAL:
        return (uint8_t)(weight ? few : row & 1 ? 247 : 120);
    case MM3_FILL_EXACT:
        return (uint8_t)(126 + MM3_MIN(few, 2));
    case MM3_FILL_SCALES:
        if (weight)
            return (uint8_t)(row % 8 == 7 && block == 0 ? 255 : MM3_MIN(scale_base(seed, block) + (int)(row % 3), 254));
        return (uint8_t)(row & 1 ? MM3_MIN(254 - scale_base(seed, block), 247) : 127);
    default:
        return (uint8_t)(weight ? 119 + few : 125 + few);
    }
}

void mm3__fill_mx_row(mm3_fill fill, uint64_t seed, const char *tag, int64_t row, bool weight, uint8_t *codes,
                      uint8_t *scales, int k)
{
    mm3__rng r = mm3__rng_of(seed, tag, row);
    const uint8_t *map;
    int how;
    pthread_once(&codes_once, make_codes);
    map = code_of[codes_kind_of(fill)];
    for (int b = 0; b < k / MM3_MX_BLOCK; b++) {
        scales[b] = scale_byte(fill, seed, weight, row, b, mm3__next(&r));
        for (int i = 0; i < MM3_MX_BLOCK; i += 8) {
            uint64_t u = mm3__next(&r);
            for (int j = 0; j < 8; j++) codes[b * MM3_MX_BLOCK + i + j] = map[u >> (8 * j) & 0xFF];
        }
    }
    if (fill != MM3_FILL_NAN) return;
    how = mm3__below(&r, 8);
    if (how == 0) scales[mm3__below(&r, k / MM3_MX_BLOCK)] = 255;
    if (how == 1 || how == 2) codes[mm3__below(&r, k)] = how == 1 ? 0x7F : 0xFF;
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* One row of a BF16 or F32 weight: as activations, but of a size that keeps products in range. */
static void fill_plain_row(mm3_fill fill, uint64_t seed, const char *tag, int row, const mm3_weight *w, float *line,
                           int k)
{
    static const mm3_fill same_as[MM3_N_FILLS] = { [MM3_FILL_TRAINED] = MM3_FILL_RANDOM,
                                                   [MM3_FILL_ZERO] = MM3_FILL_RANDOM,
                                                   [MM3_FILL_TINY] = MM3_FILL_RANDOM,
                                                   [MM3_FILL_HUGE] = MM3_FILL_RANDOM,
                                                   [MM3_FILL_SUBNORMAL] = MM3_FILL_SUBNORMAL,
                                                   [MM3_FILL_NAN] = MM3_FILL_NAN,
                                                   [MM3_FILL_INF] = MM3_FILL_INF,
                                                   [MM3_FILL_SCALES] = MM3_FILL_RANDOM,
                                                   [MM3_FILL_TIES] = MM3_FILL_TIES,
                                                   [MM3_FILL_EXACT] = MM3_FILL_EXACT };
    uint16_t *half = (uint16_t *)(uintptr_t)w->data + (size_t)row * (size_t)k;
    mm3__fill_row(same_as[fill], seed, tag, row, line, k);
    if (fill == MM3_FILL_TRAINED)
        for (int c = 0; c < k; c++) line[c] *= 0.02f;
    if (w->type == MM3_BF16)
        for (int c = 0; c < k; c++) half[c] = mm3_bf16_from_f32(line[c]);
}

mm3_status mm3__weight_make(mm3_case *c, const char *const name[2], const char *tag, mm3_weight *w, int k)
{
    const mm3_case_spec *s = &c->spec;
    size_t n = (size_t)w->n, n_data = n * (size_t)k * mm3__size_of(w->type);
    uint8_t *data = mm3__array_add(c, name[0], &w->data, n_data, 0, w->type == MM3_MX ? MM3_U8 : w->type, MM3_IN);
    MM3__NEED(data);
    c->array[c->n_arrays - 1].weight = true;
    if (w->type == MM3_MX) {
        size_t n_blocks = (size_t)(k / MM3_MX_BLOCK);
        uint8_t *scales = mm3__array_add(c, name[1], &w->scales, n * n_blocks, 0, MM3_U8, MM3_IN);
        MM3__NEED(scales);
        c->array[c->n_arrays - 1].weight = true;
        for (int j = 0; j < w->n; j++)
            mm3__fill_mx_row(s->fill, s->seed, tag, j, true, data + (size_t)j * (size_t)k,
                             scales + (size_t)j * n_blocks, k);
    } else {
        float *line = mm3_arena_alloc(&c->arena, (size_t)k * sizeof *line);
        MM3__NEED(line);
        for (int j = 0; j < w->n; j++)
            fill_plain_row(s->fill, s->seed, tag, j, w,
                           w->type == MM3_F32 ? (float *)(uintptr_t)w->data + (size_t)j * (size_t)k : line, k);
    }
    return MM3_OK;
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */

bool mm3__row_is_padding(const mm3_case *c, int i, int pad) { return pad && mm3__row_id(c, i) % 3 == 2; }

mm3_status mm3__slots_make(mm3_case *c, const char *name, const int32_t **at, int pad)
{
    int32_t *slot = mm3__array_rows(c, name, at, 1, MM3_I32, MM3_IN);
    MM3__NEED(slot);
    for (int i = 0; i < c->spec.shape.v[0]; i++) slot[i] = mm3__row_is_padding(c, i, pad) ? -1 : mm3__row_id(c, i) % 3;
    return MM3_OK;
}
