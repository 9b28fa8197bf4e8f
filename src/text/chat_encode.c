/* A rendered prompt to ids: its controls by name, everything between two of them as one run of plain text.
 * Must not know: what the template says, or how text becomes tokens. */
#include <string.h>

#include "text/chat.h"

typedef struct id_list {
    int32_t *data; /* owned */
    int n, max;
} id_list;

static mm3_status add_ids(id_list *l, const mm3_tokenizer *tokenizer, const char *s, size_t n_bytes, bool control)
{
    int32_t *ids = NULL;
    int n = 0;
    mm3_status st = MM3_OK;
    if (!n_bytes) return MM3_OK;
    MM3_GOTO(mm3_tokenizer_encode(tokenizer, s, n_bytes, control, &ids, &n));
    if (control && n != 1) {
        st = mm3_fail(MM3_ERR_UNSUPPORTED, MM3_HERE,
                      "tokenizer.json: \"%.*s\" is not an added token, so it is not MiniMax-M3's tokenizer",
                      (int)n_bytes, s);
        goto done;
    }
    if (n > l->max - l->n) {
        int64_t max = MM3_MAX((int64_t)l->n + n, (int64_t)l->max * 2);
        int32_t *grown = max <= INT32_MAX ? mm3_realloc(l->data, (size_t)max * sizeof *grown) : NULL;
        if (!grown) {
            st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for the ids of a prompt");
            goto done;
        }
        l->data = grown;
        l->max = (int)max;
    }
    if (n) memcpy(l->data + l->n, ids, (size_t)n * sizeof *ids);
    l->n += n;
done:
    mm3_free(ids);
    return st;
}

mm3_status mm3_chat_encode(const mm3_tokenizer *tokenizer, const char *messages, const char *tools,
                           const char *thinking, bool generate, int32_t **ids, int *n_ids)
{
    mm3__rendered r = { 0 };
    id_list list = { 0 };
    size_t at = 0;
    mm3_status st;
    int i;
    *ids = NULL;
    *n_ids = 0;
    MM3_GOTO(mm3__chat_render(&r, messages, tools, thinking, generate));
    for (i = 0; i < r.n_control; i++) {
        MM3_GOTO(add_ids(&list, tokenizer, r.text.data + at, r.control[i].at - at, false));
        MM3_GOTO(add_ids(&list, tokenizer, r.text.data + r.control[i].at, r.control[i].n, true));
        at = r.control[i].at + r.control[i].n;
    }
    MM3_GOTO(add_ids(&list, tokenizer, r.text.data + at, r.text.n - at, false));
    *ids = list.data;
    *n_ids = list.n;
    list.data = NULL;
done:
    mm3_free(list.data);
    mm3__rendered_free(&r);
    return st;
}
