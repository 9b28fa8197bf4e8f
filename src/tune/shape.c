/* Shapes: a value for each field of an operation's table, as text and back. */
#include <stdio.h>
#include <string.h>

#include "tune/cases.h"

static const mm3__case_kind *const table[MM3_N_OPS] = {
#define OP(name, NAME) &mm3__##name##_case,
#include "ops/ops.list.h"
#undef OP
};

const mm3__case_kind *mm3__case_kind_of(mm3_op_id op) { return table[op]; }

const char *mm3_shape_bench(mm3_op_id op) { return table[op]->bench; }

static int find(mm3_op_id op, const char *name, size_t n)
{
    for (int i = 0; i < table[op]->n_fields; i++)
        if (strlen(table[op]->field[i].name) == n && memcmp(table[op]->field[i].name, name, n) == 0) return i;
    return -1;
}

/* Word i of "mx bf16 f32": its start and length; NULL if there are fewer. */
static const char *word_at(const char *words, int i, size_t *n)
{
    for (; *words; words += *n, words += *words == ' ') {
        *n = strcspn(words, " ");
        if (i-- == 0) return words;
    }
    return NULL;
}

mm3_shape mm3_shape_default(mm3_op_id op)
{
    mm3_shape shape = { { 0 } };
    for (int i = 0; i < table[op]->n_fields; i++) shape.v[i] = table[op]->field[i].fallback;
    return shape;
}

static mm3_status parse_value(mm3_op_id op, const mm3__field *f, const char *value, int *out)
{
    int64_t number;
    if (!f->words) {
        MM3_CHECK(mm3_parse_int(value, f->low, f->high, &number), MM3_ERR_ARG,
                  "shape of %s: %s=%s is not a whole number of %d..%d", mm3_op_info_of(op)->name, f->name, value,
                  f->low, f->high);
        *out = (int)number;
        return MM3_OK;
    }
    for (int i = 0;; i++) {
        size_t n;
        const char *word = word_at(f->words, i, &n);
        MM3_CHECK(word, MM3_ERR_ARG, "shape of %s: %s=%s, but %s is one of: %s", mm3_op_info_of(op)->name, f->name,
                  value, f->name, f->words);
        if (strlen(value) != n || memcmp(value, word, n) != 0) continue;
        *out = i;
        return MM3_OK;
    }
}

mm3_status mm3_shape_parse(mm3_op_id op, const char *text, mm3_shape *shape)
{
    const mm3__case_kind *kind = table[op];
    const char *why;
    while (*text) {
        size_t n_name = strcspn(text, "=,"), n_value;
        int i = find(op, text, n_name);
        char value[32];
        if (i < 0 || text[n_name] != '=') {
            char known[256] = "";
            for (int j = 0; j < kind->n_fields; j++) {
                if (j) strncat(known, ", ", sizeof known - strlen(known) - 1);
                strncat(known, kind->field[j].name, sizeof known - strlen(known) - 1);
            }
            return mm3_fail(MM3_ERR_ARG, MM3_HERE, "shape of %s: '%.*s' is not FIELD=VALUE with a field of: %s",
                            mm3_op_info_of(op)->name, (int)strcspn(text, ","), text, known);
        }
        text += n_name + 1;
        n_value = strcspn(text, ",");
        MM3_CHECK(n_value < sizeof value, MM3_ERR_ARG, "shape of %s: the value of %s is too long",
                  mm3_op_info_of(op)->name, kind->field[i].name);
        memcpy(value, text, n_value);
        value[n_value] = 0;
        MM3_TRY(parse_value(op, &kind->field[i], value, &shape->v[i]));
        text += n_value;
        text += *text == ',';
    }
    why = kind->contradiction ? kind->contradiction(shape->v) : NULL;
    MM3_CHECK(!why, MM3_ERR_ARG, "shape of %s: %s", mm3_op_info_of(op)->name, why);
    return MM3_OK;
}

void mm3_shape_text(mm3_op_id op, const mm3_shape *shape, char *text, size_t n)
{
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; i < table[op]->n_fields && at < n; i++) {
        const mm3__field *f = &table[op]->field[i];
        size_t n_word = 0;
        const char *word = f->words ? word_at(f->words, shape->v[i], &n_word) : NULL;
        if (word)
            at += (size_t)snprintf(text + at, n - at, "%s%s=%.*s", i ? "," : "", f->name, (int)n_word, word);
        else
            at += (size_t)snprintf(text + at, n - at, "%s%s=%d", i ? "," : "", f->name, shape->v[i]);
    }
}

bool mm3_shape_has(mm3_op_id op, const char *name) { return find(op, name, strlen(name)) >= 0; }
int mm3_shape_get(mm3_op_id op, const mm3_shape *shape, const char *name)
{
    return shape->v[find(op, name, strlen(name))];
}
void mm3_shape_set(mm3_op_id op, mm3_shape *shape, const char *name, int value)
{
    shape->v[find(op, name, strlen(name))] = value;
}
