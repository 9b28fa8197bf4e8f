/* Byte-pair merges of one piece: of all neighbours the pair of the lowest rank merges, the leftmost first.
 * A heap and a linked list: n log n for a piece of n bytes, whatever it holds. Knows ids and ranks, no text rules. */
#include <string.h>

#include "text/tokenizer.h"

mm3_status mm3__emit(mm3__encoder *e, int32_t id)
{
    if (e->n_ids == e->max_ids) {
        int max = e->max_ids > INT32_MAX / 2 ? INT32_MAX : MM3_MAX(2 * e->max_ids, 64);
        int32_t *ids;
        MM3_CHECK(e->n_ids < INT32_MAX, MM3_ERR_ARG, "the text has more than %d tokens", INT32_MAX);
        ids = mm3_realloc(e->ids, mm3_mul((size_t)max, sizeof *ids));
        MM3_CHECK(ids, MM3_ERR_NOMEM, "out of memory for %d tokens", max);
        e->ids = ids;
        e->max_ids = max;
    }
    e->ids[e->n_ids++] = id;
    return MM3_OK;
}

/* ---- the heap: the smallest rank << 32 | position on top --------------------------------------------------------- */

static mm3_status heap_push(mm3__encoder *e, uint64_t key)
{
    size_t i = e->n_heap;
    if (e->n_heap == e->max_heap) {
        size_t max = MM3_MAX(2 * e->max_heap, (size_t)64);
        uint64_t *heap = mm3_realloc(e->heap, mm3_mul(max, sizeof *heap));
        MM3_CHECK(heap, MM3_ERR_NOMEM, "out of memory for %zu merges", max);
        e->heap = heap;
        e->max_heap = max;
    }
    e->n_heap++;
    for (; i > 0 && e->heap[(i - 1) / 2] > key; i = (i - 1) / 2) e->heap[i] = e->heap[(i - 1) / 2];
    e->heap[i] = key;
    return MM3_OK;
}

static uint64_t heap_pop(mm3__encoder *e)
{
    uint64_t top = e->heap[0], key = e->heap[--e->n_heap];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < e->n_heap) {
        if (child + 1 < e->n_heap && e->heap[child + 1] < e->heap[child]) child++;
        if (e->heap[child] >= key) break;
        e->heap[i] = e->heap[child];
        i = child;
    }
    e->heap[i] = key;
    return top;
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */

/* Look the pair (i, its next) up, and queue it if it merges. */
static mm3_status consider(mm3__encoder *e, int32_t i)
{
    mm3__symbol *s = &e->symbol[i];
    s->rank = MM3__NO_RANK;
    if (s->next >= 0) s->rank = mm3__merge_rank(&e->tokenizer->vocabulary, s->id, e->symbol[s->next].id);
    return s->rank >= 0 ? heap_push(e, (uint64_t)(uint32_t)s->rank << 32 | (uint32_t)i) : MM3_OK;
}

static mm3_status merge_all(mm3__encoder *e)
{
    while (e->n_heap > 0) {
        uint64_t top = heap_pop(e);
        int32_t i = (int32_t)(uint32_t)top, i_next;
        mm3__symbol *s = &e->symbol[i];
        if (s->rank != (int32_t)(top >> 32)) continue; /* one of the pair has merged elsewhere since */
        i_next = s->next;
        s->id = e->tokenizer->vocabulary.id_of_rank[s->rank];
        s->next = e->symbol[i_next].next;
        e->symbol[i_next].rank = MM3__NO_RANK;
        if (s->next >= 0) e->symbol[s->next].prev = i;
        MM3_TRY(consider(e, i));
        if (s->prev >= 0) MM3_TRY(consider(e, s->prev));
    }
    return MM3_OK;
}

static mm3_status merge_piece(mm3__encoder *e, const unsigned char *piece, size_t n)
{
    if (n > e->max_symbols) {
        size_t max = MM3_MAX(n, (size_t)256);
        mm3_free(e->symbol);
        e->max_symbols = 0;
        e->symbol = mm3_malloc(mm3_mul(max, sizeof *e->symbol));
        MM3_CHECK(e->symbol, MM3_ERR_NOMEM, "out of memory for a word of %zu bytes", n);
        e->max_symbols = max;
    }
    for (size_t i = 0; i < n; i++) {
        int32_t at = (int32_t)i;
        e->symbol[i] = (mm3__symbol){ e->tokenizer->vocabulary.id_of_byte[piece[i]], at - 1, i + 1 < n ? at + 1 : -1,
                                      MM3__NO_RANK };
    }
    e->n_heap = 0;
    for (size_t i = 0; i < n; i++) MM3_TRY(consider(e, (int32_t)i));
    MM3_TRY(merge_all(e));
    for (int32_t i = 0; i >= 0; i = e->symbol[i].next) MM3_TRY(mm3__emit(e, e->symbol[i].id));
    return MM3_OK;
}

mm3_status mm3__bpe(mm3__encoder *e, const unsigned char *piece, size_t n)
{
    mm3__seen *seen = NULL;
    int i_ids = e->n_ids;
    if (n == 1) return mm3__emit(e, e->tokenizer->vocabulary.id_of_byte[piece[0]]);
    if (n <= sizeof seen->bytes) {
        uint64_t h = n;
        for (size_t i = 0; i < n; i++) h = (h ^ piece[i]) * 0x100000001B3u;
        seen = &e->seen[mm3__hash_pair(h) & e->seen_mask];
        if (seen->n_bytes == n && memcmp(seen->bytes, piece, n) == 0) {
            for (int i = 0; i < seen->n_ids; i++) MM3_TRY(mm3__emit(e, e->ids[seen->i_ids + i]));
            return MM3_OK;
        }
    }
    if (e->tokenizer->ignore_merges) {
        int32_t id = mm3__vocabulary_find(&e->tokenizer->vocabulary, piece, n);
        if (id >= 0) return mm3__emit(e, id);
    }
    MM3_TRY(merge_piece(e, piece, n));
    if (seen) {
        *seen = (mm3__seen){ .i_ids = i_ids, .n_ids = (uint8_t)(e->n_ids - i_ids), .n_bytes = (uint8_t)n };
        memcpy(seen->bytes, piece, n);
    }
    return MM3_OK;
}
