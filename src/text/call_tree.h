/* The tags of one envelope of tool calls as a tree. Internal to this folder. Knows neither schemas nor JSON: what the
 * text means is tool_call.c's.
 *
 * A tag is MM3__NS and then <name>, </name>, <name/> or <invoke name="...">. Broken text: closers may be missing. A tag
 * beside text closes what that text belonged to, an outer closer closes all within, an unknown closer closes the
 * innermost. So may the marker before an invoke, and before a scalar's closer. A tag that the text ends in is dropped.
 * "tool_call" is never an argument's name. */
#ifndef MM3_TEXT_CALL_TREE_H
#define MM3_TEXT_CALL_TREE_H

#include "text/chat.h"

enum { MM3__MAX_CALL_DEPTH = 64 };

typedef struct mm3__element {
    size_t name;           /* in names */
    size_t begin, end;     /* of what is inside, in the block */
    int parent;            /* -1: an invoke */
    int first, last, next; /* children; sibling; -1: none */
    int same;              /* next sibling of the same name; -1: none */
    bool repeats;          /* an earlier sibling has the same name */
    bool has_text;         /* more than white space directly inside */
    bool closed;           /* by its own closer */
} mm3__element;

typedef struct mm3__tree {
    const char *s;          /* the block, borrowed */
    size_t n;               /* without what breaks off within a marker at its end */
    mm3__element *elements; /* owned, in the order of their openers */
    int n_elements, max_elements;
    mm3_buf names;  /* owned: NUL-terminated, one after the other */
    int top, depth; /* while reading: the innermost open element, -1: none */
    bool failed;    /* no memory */
    bool too_deep;  /* more than MM3__MAX_CALL_DEPTH */
} mm3__tree;

/* Read s[0..n), valid UTF-8, to a tree, whose roots are the calls. Where too_deep or failed is set the tree is not
 * whole. Linear in n but for the sorting of siblings.
 * proof  tests/unit/test_tool_call.c, test_hostile_output.c */
void mm3__tree_read(mm3__tree *t, const char *s, size_t n);
void mm3__tree_free(mm3__tree *t);
/* Borrowed; valid until the tree is freed. */
static inline const char *mm3__tree_name(const mm3__tree *t, int i) { return t->names.data + t->elements[i].name; }
/* Append the text inside an element, without MM3__NS and outer white space. A failed `text` is the caller's to see. */
void mm3__tree_text(const mm3__tree *t, int i, mm3_buf *text);

#endif
