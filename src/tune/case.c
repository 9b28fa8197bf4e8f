/* A case: its contract, arrays, and what the reference makes of them. Building is the kinds' business (cases_*.c). */
#include <string.h>

#include "tune/cases.h"

static void *add(mm3_case *c, const char *name, const void *at, size_t n_bytes, size_t row_bytes, mm3_dtype type,
                 mm3_access access, size_t align)
{
    mm3__array *a;
    if (c->n_arrays == c->max_arrays) {
        int max = MM3_MAX(2 * c->max_arrays, 16);
        mm3__array *more = mm3_realloc(c->array, (size_t)max * sizeof *more);
        if (!more) return NULL;
        c->array = more;
        c->max_arrays = max;
    }
    a = &c->array[c->n_arrays];
    *a = (mm3__array){ .name = name,
                       .at = (void **)(uintptr_t)at,
                       .type = type,
                       .access = access,
                       .listed = name[0] != '(',
                       .row_bytes = row_bytes };
    if (!mm3__area_open(&a->area, n_bytes, align)) return NULL;
    /* Arrays that a table points to stay where they are: half of them at odd addresses. */
    if (!a->listed && (c->spec.seed + (uint64_t)c->n_arrays) % 2) mm3__area_move(&a->area, MM3__AT_ODD_START, false);
    c->n_arrays++;
    c->n_bytes += n_bytes;
    return *a->at = a->area.data;
}

void *mm3__array_add(mm3_case *c, const char *name, const void *at, size_t n_bytes, size_t row_bytes, mm3_dtype type,
                     mm3_access access)
{
    return add(c, name, at, n_bytes, row_bytes, type, access, mm3__size_of(type));
}

void *mm3__array_structs(mm3_case *c, const char *name, const void *at, size_t n_bytes, size_t row_bytes)
{
    return add(c, name, at, n_bytes, row_bytes, MM3_U8, MM3_IN, sizeof(max_align_t));
}

void *mm3__array_rows(mm3_case *c, const char *name, const void *at, int width, mm3_dtype type, mm3_access access)
{
    size_t row_bytes = (size_t)width * mm3__size_of(type);
    return mm3__array_add(c, name, at, (size_t)c->spec.shape.v[0] * row_bytes, row_bytes, type, access);
}

mm3__array *mm3__array_find(const mm3_case *c, const char *name)
{
    for (int i = 0; i < c->n_arrays; i++)
        if (strcmp(c->array[i].name, name) == 0) return &c->array[i];
    return NULL;
}

void *mm3_case_op(mm3_case *c) { return c->op.bytes; }

/* The descriptor and the case were written apart: each array must be described as it was made. */
static mm3_status check_descriptor(mm3_case *c)
{
    mm3_operand operand[MM3_MAX_OPERANDS];
    int n = c->info->operands(c->op.bytes, operand);
    for (int i = 0; i < c->n_arrays; i++) {
        const mm3__array *a = &c->array[i];
        int j = 0;
        while (j < n && operand[j].at != a->at) j++;
        if (j == n) {
            MM3_CHECK(!a->listed, MM3_ERR_ARG, "descriptor of %s: operands() does not list %s", c->info->name, a->name);
            continue;
        }
        MM3_CHECK(operand[j].n_bytes == a->area.n_bytes && operand[j].access == a->access && operand[j].type == a->type,
                  MM3_ERR_ARG, "descriptor of %s: %s is %zu bytes of %s, access %d; the contract says %zu of %s, %d",
                  c->info->name, operand[j].name, operand[j].n_bytes, mm3_dtype_name(operand[j].type),
                  (int)operand[j].access, a->area.n_bytes, mm3_dtype_name(a->type), (int)a->access);
        operand[j].at = NULL;
    }
    for (int j = 0; j < n; j++)
        MM3_CHECK(!operand[j].at || !*operand[j].at, MM3_ERR_ARG, "descriptor of %s: operands() lists %s twice",
                  c->info->name, operand[j].name);
    return MM3_OK;
}

/* Keep each INOUT array's content, and run the reference on poisoned outputs. */
static mm3_status make_reference(mm3_case *c)
{
    size_t n_values = 0;
    for (int i = 0; i < c->n_arrays; i++) {
        mm3__array *a = &c->array[i];
        size_t n = a->area.n_bytes;
        if (a->access == MM3_IN) continue;
        if (a->type == MM3_F32) n_values = MM3_MAX(n_values, n / 4);
        if (a->access == MM3_INOUT) {
            a->initial = mm3_malloc(n);
            MM3__NEED(a->initial);
            memcpy(a->initial, a->area.data, n);
        } else {
            memset(a->area.data, 0xC5, n);
        }
        a->want = mm3_malloc(n);
        MM3__NEED(a->want);
    }
    c->magnitude = mm3_calloc(n_values, sizeof *c->magnitude);
    MM3__NEED(c->magnitude);
    c->info->reference(c->op.bytes, c->magnitude);
    for (int i = 0; i < c->n_arrays; i++)
        if (c->array[i].want) memcpy(c->array[i].want, c->array[i].area.data, c->array[i].area.n_bytes);
    return MM3_OK;
}

mm3_status mm3_case_open(mm3_case **out, const mm3_case_spec *spec)
{
    mm3_status st = MM3_OK;
    const mm3__case_kind *kind = mm3__case_kind_of(spec->op);
    mm3_case *c = mm3_calloc(1, sizeof *c);
    *out = NULL;
    MM3_CHECK(c, MM3_ERR_NOMEM, "out of memory for a case");
    c->spec = *spec;
    c->info = mm3_op_info_of(spec->op);
    MM3_GOTO(kind->build(c, spec->shape.v));
    MM3_GOTO(check_descriptor(c));
    if (!spec->no_reference) {
        MM3_GOTO(make_reference(c));
        if (kind->finish) MM3_GOTO(kind->finish(c));
    }
    for (int i = 0; i < c->n_arrays; i++) {
        mm3__area_paint(&c->array[i].area);
        mm3__area_protect(&c->array[i].area, c->array[i].access == MM3_IN);
    }
    *out = c;
    c = NULL;
done:
    mm3_case_close(&c);
    return st;
}

void mm3_case_close(mm3_case **c)
{
    if (!c || !*c) return;
    for (int i = 0; i < (*c)->n_arrays; i++) {
        mm3__area_close(&(*c)->array[i].area);
        mm3_free((*c)->array[i].initial);
        mm3_free((*c)->array[i].want);
    }
    mm3_free((*c)->array);
    mm3_free((*c)->magnitude);
    mm3_free((*c)->aside);
    mm3_arena_free(&(*c)->arena);
    mm3_free(*c);
    *c = NULL;
}
