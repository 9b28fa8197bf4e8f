/* JSON schemas of tools, as far as the types of arguments need them. Internal to this folder. */
#ifndef MM3_TEXT_TOOL_SCHEMA_H
#define MM3_TEXT_TOOL_SCHEMA_H

#include "text/chat.h"

/* Types of JSON values, to be or'ed. */
enum {
    MM3__NULL = 1,
    MM3__BOOLEAN = 2,
    MM3__INTEGER = 4,
    MM3__NUMBER = 8,
    MM3__STRING = 16,
    MM3__ARRAY = 32,
    MM3__OBJECT = 64
};

/* The types that a schema allows, or'ed; 0: it does not say. From type, else enum and const, else the union of its
 * anyOf, oneOf and allOf, else properties or items; with nullable.
 *   root    where "$ref": "#/..." begins
 *   schema  may be NULL or no object: 0 */
unsigned mm3__schema_types(const json_t *root, const json_t *schema);
/* The schema of an object's member or of an array's items; NULL where there is none. */
const json_t *mm3__schema_member(const json_t *root, const json_t *schema, const char *name);
const json_t *mm3__schema_items(const json_t *root, const json_t *schema);

#endif
