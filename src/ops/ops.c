/* The table of operations, keys as text, and names. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ops/ops.h"

#define OP(name, NAME) extern const mm3_op_info mm3__##name##_info;
#include "ops/ops.list.h"
#undef OP

static const mm3_op_info *const table[MM3_N_OPS] = {
#define OP(name, NAME) &mm3__##name##_info,
#include "ops/ops.list.h"
#undef OP
};

const mm3_op_info *mm3_op_info_of(mm3_op_id op) { return table[op]; }

int mm3_op_find(const char *name)
{
    for (int i = 0; i < MM3_N_OPS; i++)
        if (strcmp(table[i]->name, name) == 0) return i;
    return -1;
}

const char *mm3_dtype_name(mm3_dtype t)
{
    static const char *const name[] = { "f32", "bf16", "mx", "i32", "u8" };
    return name[t];
}

const char *mm3_act_name(mm3_act a)
{
    static const char *const name[] = { "w8a8", "w8a16" };
    return name[a];
}

void mm3_key_number(mm3_key *key, const char *name, int64_t value)
{
    key->field[key->n].name = name;
    key->field[key->n].text = NULL;
    key->field[key->n++].number = value;
}

void mm3_key_word(mm3_key *key, const char *name, const char *value)
{
    key->field[key->n].name = name;
    key->field[key->n++].text = value;
}

int mm3_key_text(const mm3_key *key, char *text, size_t n)
{
    int at = snprintf(text, n, "%s", table[key->op]->name);
    for (int i = 0; i < key->n; i++) {
        size_t left = (size_t)at < n ? n - (size_t)at : 0;
        char *to = left ? text + at : text;
        if (key->field[i].text)
            at += snprintf(to, left, " %s=%s", key->field[i].name, key->field[i].text);
        else
            at += snprintf(to, left, " %s=%" PRId64, key->field[i].name, key->field[i].number);
    }
    return at;
}
