/* Twins of contracts, to launch candidates on without touching the network's buffers; and the question whether two
 * launches left the same. Tolerances here are coarser than those of `mm3 check`, which knows the size of every sum:
 * they catch a candidate that is wrong on this machine and at this shape. */
#include <stdio.h>
#include <string.h>

#include "tune/tuner.h"

enum { GUARD = 256, GUARD_BYTE = 0xA7, POISON_I32 = 0x5A5A5A5A };

typedef struct array {
    mm3_operand o;          /* at: in the twin's contract */
    unsigned char *memory;  /* owned: guard, data, guard */
    unsigned char *data;    /* in memory */
    unsigned char *initial; /* owned; inputs: what a launch finds */
    unsigned char *want;    /* owned; outputs */
} array;

struct mm3__twin {
    mm3_op_id op;
    union {
        max_align_t align;
        unsigned char bytes[MM3_MAX_OP_BYTES];
    } contract;
    array array[MM3_MAX_OPERANDS];
    int n;
    int m; /* rows; 1 where the key has no m */
    /* rows of KV pages that it writes */
    mm3__range *row; /* owned */
    int n_rows;
    mm3_dtype row_type;
    unsigned char *rows_before, *rows_want; /* owned; one behind the other */
    size_t n_row_bytes;
};

const void *mm3__twin_contract(const mm3__twin *twin) { return twin->contract.bytes; }
bool mm3__operand_is_kv_pool(const mm3_operand *o) { return strcmp(o->name, "kv.pool") == 0; }

/* ---- KV rows ----------------------------------------------------------------------------------------------------- */

mm3_status mm3__kv_rows(mm3_op_id op, const void *contract, mm3__range **row, int *n)
{
    const mm3_qk_norm_rope *c = contract;
    size_t element;
    *row = NULL;
    *n = 0;
    if (op != MM3_OP_QK_NORM_ROPE || !c->kv.pool) return MM3_OK;
    element = c->kv.type == MM3_BF16 ? 2 : 4;
    *row = mm3_calloc(mm3_mul((size_t)c->m, 2 * (size_t)c->kv.n_kv + 1), sizeof **row);
    MM3_CHECK(*row, MM3_ERR_NOMEM, "out of memory for the KV rows of a stage");
    for (int i = 0; i < c->m; i++) {
        int page = c->position[i] / MM3_PAGE_TOKENS;
        size_t token = (size_t)(c->position[i] % MM3_PAGE_TOKENS);
        if (c->slot[i] < 0) continue;
        for (int h = 0; h < 2 * c->kv.n_kv + (c->n_iq > 0); h++) {
            bool is_index = h == 2 * c->kv.n_kv;
            int width = is_index ? c->kv.d_index : MM3_HEAD_DIM;
            size_t part = is_index ? c->kv.ik_at : h < c->kv.n_kv ? c->kv.k_at : c->kv.v_at;
            unsigned char *tile = mm3_kv_tile(&c->kv, c->slot[i], page, part, is_index ? 0 : h % c->kv.n_kv, width);
            (*row)[(*n)++] = (mm3__range){ tile + token * (size_t)width * element, (size_t)width * element };
        }
    }
    return MM3_OK;
}

static void rows_out(const mm3__twin *t, unsigned char *to)
{
    for (int i = 0; i < t->n_rows; to += t->row[i++].n_bytes) memcpy(to, t->row[i].at, t->row[i].n_bytes);
}

static void rows_in(const mm3__twin *t, const unsigned char *from)
{
    for (int i = 0; i < t->n_rows; from += t->row[i++].n_bytes) memcpy(t->row[i].at, from, t->row[i].n_bytes);
}

static mm3_status open_rows(mm3__twin *t, mm3_op_id op, const void *contract)
{
    MM3_TRY(mm3__kv_rows(op, contract, &t->row, &t->n_rows));
    if (t->n_rows == 0) return MM3_OK;
    t->row_type = ((const mm3_qk_norm_rope *)contract)->kv.type;
    for (int i = 0; i < t->n_rows; i++) t->n_row_bytes += t->row[i].n_bytes;
    t->rows_before = mm3_malloc(t->n_row_bytes);
    t->rows_want = mm3_malloc(t->n_row_bytes);
    if (!t->rows_before || !t->rows_want) {
        t->n_rows = 0; /* nothing to put back */
        return mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for the KV rows of a stage");
    }
    rows_out(t, t->rows_before);
    return MM3_OK;
}

/* ---- open, close ------------------------------------------------------------------------------------------------- */

static int rows_of(mm3_op_id op, const void *contract)
{
    mm3_key key = { .op = op };
    mm3_op_info_of(op)->key(contract, &key);
    for (int i = 0; i < key.n; i++)
        if (strcmp(key.field[i].name, "m") == 0) return key.field[i].number > 0 ? (int)key.field[i].number : 1;
    return 1;
}

mm3_status mm3__twin_open(mm3__twin **out, mm3_op_id op, const void *contract)
{
    const mm3_op_info *info = mm3_op_info_of(op);
    mm3_operand operand[MM3_MAX_OPERANDS];
    mm3__twin *t = mm3_calloc(1, sizeof *t);
    mm3_status st = MM3_OK;
    int n;
    *out = NULL;
    MM3_CHECK(t, MM3_ERR_NOMEM, "out of memory for verifying %s", info->name);
    t->op = op;
    t->m = rows_of(op, contract);
    memcpy(t->contract.bytes, contract, info->n_bytes);
    n = info->operands(t->contract.bytes, operand);
    for (int i = 0; i < n; i++) {
        array *a = &t->array[t->n];
        bool shared =
            operand[i].weight || mm3__operand_is_kv_pool(&operand[i]) || !*operand[i].at || !operand[i].n_bytes;
        size_t bytes = operand[i].n_bytes;
        if (shared) continue;
        a->o = operand[i];
        a->memory = mm3_alloc_aligned(bytes > SIZE_MAX / 2 ? SIZE_MAX : bytes + 2 * GUARD);
        a->want = a->o.access == MM3_IN ? NULL : mm3_malloc(bytes);
        a->initial = a->o.access == MM3_OUT ? NULL : mm3_malloc(bytes);
        t->n++;
        if (!a->memory || (a->o.access != MM3_IN && !a->want) || (a->o.access != MM3_OUT && !a->initial)) {
            st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for verifying %s", info->name);
            goto done;
        }
        a->data = a->memory + GUARD;
        memcpy(a->data, *a->o.at, bytes);
        if (a->initial) memcpy(a->initial, a->data, bytes);
        *a->o.at = a->data;
    }
    MM3_GOTO(open_rows(t, op, contract));
    *out = t;
    t = NULL;
done:
    mm3__twin_close(&t);
    return st;
}

void mm3__twin_close(mm3__twin **twin)
{
    mm3__twin *t = twin ? *twin : NULL;
    if (!t) return;
    if (t->rows_before) rows_in(t, t->rows_before);
    for (int i = 0; i < t->n; i++) {
        mm3_free(t->array[i].memory);
        mm3_free(t->array[i].initial);
        mm3_free(t->array[i].want);
    }
    mm3_free(t->row);
    mm3_free(t->rows_before);
    mm3_free(t->rows_want);
    mm3_free(t);
    *twin = NULL;
}

/* ---- inputs and outputs ------------------------------------------------------------------------------------------ */

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Factors of either sign in 0.5 .. 1.5; where there is nothing but zeros to scale, numbers in -1 .. 1. */
static void perturb_floats(float *x, size_t n, uint64_t *state)
{
    bool all_zero = true;
    for (size_t i = 0; i < n && all_zero; i++) all_zero = x[i] == 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t z = next_random(state);
        float u = (float)(z >> 40) * 0x1p-24f, sign = z & 1 ? -1.0f : 1.0f;
        x[i] = sign * (all_zero ? u : x[i] * (0.5f + u));
    }
}

static void shuffle_bytes(unsigned char *x, size_t n, uint64_t *state)
{
    for (size_t i = n; i > 1; i--) {
        size_t j = (size_t)(next_random(state) % i);
        unsigned char c = x[i - 1];
        x[i - 1] = x[j];
        x[j] = c;
    }
}

void mm3__twin_perturb(mm3__twin *t, uint64_t seed)
{
    uint64_t state = seed;
    for (int i = 0; i < t->n; i++) {
        array *a = &t->array[i];
        bool mx = strstr(a->o.name, "codes") || strstr(a->o.name, "scales");
        unsigned char *x = a->initial;
        if (a->o.access == MM3_OUT) continue;
        if (a->o.type == MM3_F32) perturb_floats((float *)(void *)x, a->o.n_bytes / 4, &state);
        if (a->o.type == MM3_U8 && mx) shuffle_bytes(x, a->o.n_bytes, &state);
    }
}

void mm3__twin_poison(mm3__twin *t)
{
    for (int i = 0; i < t->n; i++) {
        array *a = &t->array[i];
        memset(a->memory, GUARD_BYTE, GUARD);
        memset(a->data + a->o.n_bytes, GUARD_BYTE, GUARD);
        if (a->initial)
            memcpy(a->data, a->initial, a->o.n_bytes);
        else
            memset(a->data, a->o.type == MM3_I32 ? POISON_I32 & 0xFF : 0xFF, a->o.n_bytes);
    }
    for (int i = 0; i < t->n_rows; i++) memset(t->row[i].at, 0xFF, t->row[i].n_bytes);
}

void mm3__twin_keep(mm3__twin *t)
{
    for (int i = 0; i < t->n; i++)
        if (t->array[i].want) memcpy(t->array[i].want, t->array[i].data, t->array[i].o.n_bytes);
    if (t->n_rows) rows_out(t, t->rows_want);
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

static const double U = 0x1p-24; /* unit round-off of FP32 */

/* K additions round once each. The exact bound is K u times the sum of the magnitudes of the terms; the row's root mean
 * square stands for that sum here, which is smaller and so stricter. Rows rounded to BF16 first are 2^-9 off in every
 * term; terms and their errors add up alike, so that is 2^-9 of the row's size too, here with room for eight
 * deviations. */
static double sum_tolerance(int k, bool takes_rows, const mm3_kernel *kernel)
{
    return MM3_MAX(k, 64) * U + (takes_rows && kernel->operand == MM3_BF16 ? 0x1p-6 : 0);
}

static double tolerance(const mm3__twin *t, const mm3_kernel *kernel)
{
    const mm3_linear *linear = mm3__twin_contract(t);
    const mm3_moe_linear *moe = mm3__twin_contract(t);
    switch (t->op) {
    case MM3_OP_LINEAR:
        return sum_tolerance(linear->k, linear->act == MM3_ACT_W8A16 || mm3_linear_type(linear) != MM3_MX, kernel);
    case MM3_OP_MOE_LINEAR:
        return sum_tolerance(moe->k, moe->act == MM3_ACT_W8A16 || mm3_moe_linear_type(moe) != MM3_MX, kernel);
    case MM3_OP_ATTENTION:
        return 1e-4; /* a score's rounding is a factor on its weight */
    default:
        return 1e-5; /* element by element: a few roundings, and exp to 2^-22 */
    }
}

static bool wrong(char *why, size_t n, const char *fmt, ...) MM3_PRINTF(3, 4);
static bool wrong(char *why, size_t n, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, n, fmt, args);
    va_end(args);
    return false;
}

static double value_at(const unsigned char *p, mm3_dtype type, size_t i)
{
    float x;
    uint16_t h;
    if (type == MM3_BF16) {
        memcpy(&h, p + 2 * i, 2);
        return (double)mm3_bf16_to_f32(h);
    }
    memcpy(&x, p + 4 * i, 4);
    return (double)x;
}

/* Elements against the largest of their own size, their row's root mean square, and `least`. */
static bool compare_values(const char *name, const unsigned char *got, const unsigned char *want, mm3_dtype type,
                           size_t n_values, size_t width, double least, double bound, double *error, char *why,
                           size_t n)
{
    if (type == MM3_BF16) bound += 0x1p-7; /* the last bit may fall either way */
    for (size_t first = 0; first < n_values; first += width) {
        size_t end = MM3_MIN(first + width, n_values);
        double sum = 0, rms;
        for (size_t i = first; i < end; i++) {
            double x = value_at(want, type, i);
            if (isfinite(x)) sum += x * x;
        }
        rms = MM3_MAX(sqrt(sum / (double)(end - first)), least);
        for (size_t i = first; i < end; i++) {
            double g = value_at(got, type, i), w = value_at(want, type, i), size = MM3_MAX(fabs(w), rms);
            if (g == w || (isnan(g) && isnan(w))) continue;
            if (!(fabs(g - w) <= bound * size + 0x1p-126))
                return wrong(why, n, "%s[%zu] is %.9g, native gives %.9g", name, i, g, w);
            if (size > 0) *error = MM3_MAX(*error, fabs(g - w) / size);
        }
    }
    return true;
}

static bool compare_bits(const array *a, char *why, size_t n)
{
    if (memcmp(a->data, a->want, a->o.n_bytes) == 0) return true;
    for (size_t i = 0; a->o.type == MM3_I32 && i < a->o.n_bytes / 4; i++) {
        int32_t g, w;
        memcpy(&g, a->data + 4 * i, 4);
        memcpy(&w, a->want + 4 * i, 4);
        if (g != w) return wrong(why, n, "%s[%zu] is %d, native gives %d", a->o.name, i, (int)g, (int)w);
    }
    for (size_t i = 0; i < a->o.n_bytes; i++)
        if (a->data[i] != a->want[i])
            return wrong(why, n, "%s[%zu] is 0x%02X, native gives 0x%02X", a->o.name, i, a->data[i], a->want[i]);
    return true;
}

static const array *find_array(const mm3__twin *t, const char *name)
{
    for (int i = 0; i < t->n; i++)
        if (strcmp(t->array[i].o.name, name) == 0) return &t->array[i];
    return NULL;
}

/* Codes of a chain are made of values that may differ in their last bit, so here and there one falls on the other side
 * of a rounding, by one step of E4M3 (2^-3 of the value, 2^-9 of the block's scale). */
static bool compare_chain_codes(const mm3__twin *t, char *why, size_t n)
{
    const array *codes = find_array(t, "codes"), *scales = find_array(t, "scales");
    size_t n_off = 0, n_codes = codes->o.n_bytes;
    for (size_t i = 0; i < n_codes; i++) {
        size_t b = i / MM3_MX_BLOCK;
        double g, w, step;
        if (codes->data[i] == codes->want[i] && scales->data[b] == scales->want[b]) continue;
        g = (double)mm3_e4m3_to_f32(codes->data[i]) * (double)mm3_e8m0_to_f32(scales->data[b]);
        w = (double)mm3_e4m3_to_f32(codes->want[i]) * (double)mm3_e8m0_to_f32(scales->want[b]);
        if (isnan(g) && isnan(w)) continue;
        step = MM3_MAX(MM3_MAX(fabs(g), fabs(w)) * 0x1p-3,
                       0x1p-9 * (double)mm3_e8m0_to_f32(MM3_MAX(scales->data[b], scales->want[b])));
        if (!(fabs(g - w) <= step)) return wrong(why, n, "codes[%zu] is %.9g, native gives %.9g", i, g, w);
        n_off += g != w;
    }
    if (n_off > 2 + n_codes / 1000) return wrong(why, n, "%zu of %zu codes differ from native's", n_off, n_codes);
    return true;
}

/* Values that are of one size with each other. */
static size_t width_of(const mm3__twin *t, const array *a)
{
    const mm3_moe_linear *moe = mm3__twin_contract(t);
    if (t->op == MM3_OP_MOE_LINEAR) return (size_t)moe->n; /* rows of unlisted pairs hold anything */
    if (t->op == MM3_OP_ATTENTION) return MM3_HEAD_DIM;
    return MM3_MAX(a->o.n_bytes / 4 / (size_t)t->m, (size_t)1);
}

static bool is_intact(const array *a)
{
    for (size_t i = 0; i < GUARD; i++)
        if (a->memory[i] != GUARD_BYTE || a->data[a->o.n_bytes + i] != GUARD_BYTE) return false;
    return true;
}

static bool compare_rows(const mm3__twin *t, double bound, double *error, char *why, size_t n)
{
    const unsigned char *want = t->rows_want;
    for (int i = 0; i < t->n_rows; want += t->row[i++].n_bytes) {
        size_t n_values = t->row[i].n_bytes / (t->row_type == MM3_BF16 ? 2 : 4);
        if (!compare_values("kv", t->row[i].at, want, t->row_type, n_values, n_values, 0, bound, error, why, n))
            return false;
    }
    return true;
}

bool mm3__twin_compare(const mm3__twin *t, const mm3_kernel *kernel, double *error, char *why, size_t n)
{
    bool is_chain = mm3_op_info_of(t->op)->split != NULL;
    double bound = tolerance(t, kernel);
    double least = t->op == MM3_OP_SAMPLE ? 1 : 0; /* a log of a probability near 1 has lost its size to cancellation */
    for (int i = 0; i < t->n; i++) {
        const array *a = &t->array[i];
        if (!is_intact(a)) return wrong(why, n, "it writes outside %s", a->o.name);
        if (a->o.access == MM3_IN) {
            if (memcmp(a->data, a->initial, a->o.n_bytes) != 0)
                return wrong(why, n, "it changes its input %s", a->o.name);
        } else if (a->o.type == MM3_F32) {
            size_t n_values = a->o.n_bytes / 4;
            if (t->op == MM3_OP_SWIGLU_QUANTIZE) continue; /* y is undefined afterwards */
            if (!compare_values(a->o.name, a->data, a->want, MM3_F32, n_values, width_of(t, a), least, bound, error,
                                why, n))
                return false;
        } else if (!is_chain && !compare_bits(a, why, n)) {
            return false;
        }
    }
    if (is_chain && find_array(t, "codes") && !compare_chain_codes(t, why, n)) return false;
    return compare_rows(t, bound, error, why, n);
}
