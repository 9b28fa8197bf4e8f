/* Finding added tokens in text: a trie, leftmost-longest, as the reference matches them. Knows bytes and ids only. */
#include <string.h>

#include "text/tokenizer.h"

static int32_t child_of(const mm3__matcher *m, int32_t i_node, unsigned char byte)
{
    int32_t i = m->node[i_node].child;
    while (i >= 0 && m->node[i].byte != byte) i = m->node[i].sibling;
    return i;
}

static mm3_status new_node(mm3__matcher *m, unsigned char byte, int32_t sibling, int32_t *i_node)
{
    if (m->n_nodes == m->max_nodes) {
        int max = m->max_nodes ? 2 * m->max_nodes : 256;
        mm3__trie_node *node = mm3_realloc(m->node, mm3_mul((size_t)max, sizeof *node));
        MM3_CHECK(node, MM3_ERR_NOMEM, "out of memory for the added tokens");
        m->node = node;
        m->max_nodes = max;
    }
    *i_node = m->n_nodes;
    m->node[m->n_nodes++] = (mm3__trie_node){ .id = -1, .child = -1, .sibling = sibling, .byte = byte };
    return MM3_OK;
}

mm3_status mm3__matcher_add(mm3__matcher *m, const void *bytes, size_t n, int32_t id)
{
    const unsigned char *p = bytes;
    int32_t at = 0;
    if (m->n_nodes == 0) MM3_TRY(new_node(m, 0, -1, &at));
    for (size_t i = 0; i < n; i++) {
        int32_t next = child_of(m, at, p[i]);
        if (next < 0) {
            MM3_TRY(new_node(m, p[i], m->node[at].child, &next));
            m->node[at].child = next;
        }
        at = next;
    }
    MM3_CHECK(m->node[at].id < 0, MM3_ERR_FORMAT, "the ids %d and %d have the same text", m->node[at].id, id);
    m->node[at].id = id;
    m->starts[p[0]] = true;
    return MM3_OK;
}

void mm3__matcher_free(mm3__matcher *m)
{
    mm3_free(m->node);
    *m = (mm3__matcher){ 0 };
}

int32_t mm3__matcher_find(const mm3__matcher *m, const unsigned char *text, size_t n, size_t from, size_t *begin,
                          size_t *end)
{
    if (m->n_nodes == 0) return -1;
    for (size_t i = from; i < n; i++) {
        int32_t id = -1, at = 0;
        if (!m->starts[text[i]]) continue;
        for (size_t j = i; j < n; j++) {
            at = child_of(m, at, text[j]);
            if (at < 0) break;
            if (m->node[at].id >= 0) {
                id = m->node[at].id;
                *end = j + 1;
            }
        }
        if (id >= 0) {
            *begin = i;
            return id;
        }
    }
    return -1;
}
