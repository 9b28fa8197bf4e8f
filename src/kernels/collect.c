/* The collect recorder: which stages a step has, with the contracts that share each key. Runs nothing. */
#include <string.h>

#include "kernels/kernels.h"

typedef struct collect {
    mm3_recorder base;
    mm3_stage *stage; /* owned */
    int n, max;
} collect;

static mm3_status grow(void **array, int *max, int n, size_t element)
{
    int want = *max ? 2 * *max : 16;
    void *p;
    if (n < *max) return MM3_OK;
    p = mm3_realloc(*array, mm3_mul((size_t)want, element));
    MM3_CHECK(p, MM3_ERR_NOMEM, "out of memory for the list of stages");
    *array = p;
    *max = want;
    return MM3_OK;
}

static mm3_status find_stage(collect *r, mm3_op_id op, const char *key, mm3_stage **out)
{
    for (int i = 0; i < r->n; i++)
        if (strcmp(r->stage[i].key, key) == 0) {
            *out = &r->stage[i];
            return MM3_OK;
        }
    MM3_TRY(grow((void **)&r->stage, &r->max, r->n, sizeof *r->stage));
    *out = &r->stage[r->n];
    memset(*out, 0, sizeof **out);
    (*out)->op = op;
    (*out)->key = mm3_strdup(key);
    MM3_CHECK((*out)->key, MM3_ERR_NOMEM, "out of memory for a stage key");
    r->n++;
    return MM3_OK;
}

static mm3_status issue(mm3_recorder *self, mm3_op_id op, const void *contract)
{
    collect *r = (collect *)self;
    const mm3_op_info *info = mm3_op_info_of(op);
    mm3_part parts[MM3_MAX_PARTS];
    mm3_key key = { .op = op };
    mm3_stage *stage;
    char text[256];
    void *copy;
    int n_parts = info->split ? info->split(contract, parts) : 0;
    for (int i = 0; i < n_parts; i++) MM3_TRY(issue(self, parts[i].op, parts[i].u.bytes));
    info->key(contract, &key);
    mm3_key_text(&key, text, sizeof text);
    MM3_TRY(find_stage(r, op, text, &stage));
    MM3_TRY(grow((void **)&stage->contract, &stage->max, stage->n, sizeof *stage->contract));
    copy = mm3_malloc(info->n_bytes);
    MM3_CHECK(copy, MM3_ERR_NOMEM, "out of memory for a stage's contract");
    stage->contract[stage->n++] = memcpy(copy, contract, info->n_bytes);
    return MM3_OK;
}

mm3_status mm3_collect_open(mm3_recorder **out)
{
    collect *r = mm3_calloc(1, sizeof *r);
    *out = NULL;
    MM3_CHECK(r, MM3_ERR_NOMEM, "out of memory for the collect recorder");
    r->base.issue = issue;
    *out = &r->base;
    return MM3_OK;
}

const mm3_stage *mm3_collect_stages(const mm3_recorder *recorder, int *n)
{
    const collect *r = (const collect *)recorder;
    *n = r->n;
    return r->stage;
}

void mm3_collect_close(mm3_recorder **recorder)
{
    collect *r = recorder ? (collect *)*recorder : NULL;
    if (!r) return;
    for (int i = 0; i < r->n; i++) {
        for (int j = 0; j < r->stage[i].n; j++) mm3_free(r->stage[i].contract[j]);
        mm3_free(r->stage[i].contract);
        mm3_free(r->stage[i].key);
    }
    mm3_free(r->stage);
    mm3_free(r);
    *recorder = NULL;
}
