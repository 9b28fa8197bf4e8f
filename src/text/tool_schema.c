/* What a tool's JSON schema says of one argument: its types, and the schemas of its members and items.
 * A schema comes from outside: its references may form rings, so every walk has a budget. */
#include <string.h>

#include "text/tool_schema.h"

enum { MAX_VISITS = 256, MAX_REFERENCES = 16 };

/* "#/$defs/name" within root; NULL where that leads nowhere. */
static const json_t *follow(const json_t *root, const char *pointer)
{
    const json_t *v = root;
    if (*pointer++ != '#') return NULL;
    while (v && *pointer == '/') {
        char key[256];
        size_t n = 0;
        for (pointer++; *pointer && *pointer != '/' && n < sizeof key - 1; pointer++) {
            bool escape = *pointer == '~' && (pointer[1] == '0' || pointer[1] == '1');
            if (escape) pointer++;
            key[n++] = (char)(!escape ? *pointer : *pointer == '0' ? '~' : '/');
        }
        key[n] = 0;
        v = json_object_get(v, key);
    }
    return *pointer ? NULL : v;
}

static const json_t *resolve(const json_t *root, const json_t *schema)
{
    int i;
    for (i = 0; i < MAX_REFERENCES; i++) {
        const char *reference = json_string_value(json_object_get(schema, "$ref"));
        if (!reference) return schema;
        schema = follow(root, reference);
    }
    return NULL;
}

/* The i-th alternative of a schema over anyOf, oneOf and allOf together; NULL past the last. */
static const json_t *alternative(const json_t *schema, size_t i)
{
    static const char *const keys[] = { "anyOf", "oneOf", "allOf" };
    int k;
    for (k = 0; k < MM3_COUNT(keys); k++) {
        const json_t *list = json_object_get(schema, keys[k]);
        if (i < json_array_size(list)) return json_array_get(list, i);
        i -= json_array_size(list);
    }
    return NULL;
}

static unsigned type_named(const json_t *name)
{
    static const char *const names[] = { "null", "boolean", "integer", "number", "string", "array", "object" };
    int i;
    for (i = 0; i < MM3_COUNT(names) && json_is_string(name); i++)
        if (strcmp(json_string_value(name), names[i]) == 0) return 1u << i;
    return 0;
}

static unsigned type_of_value(const json_t *v)
{
    if (mm3__json_integer(v)) return MM3__INTEGER;
    switch (json_typeof(v)) {
    case JSON_NULL:
        return MM3__NULL;
    case JSON_INTEGER:
        return MM3__INTEGER;
    case JSON_REAL:
        return MM3__NUMBER;
    case JSON_STRING:
        return MM3__STRING;
    case JSON_ARRAY:
        return MM3__ARRAY;
    case JSON_OBJECT:
        return MM3__OBJECT;
    default:
        return MM3__BOOLEAN;
    }
}

static unsigned types_of(const json_t *root, const json_t *schema, int *budget)
{
    const json_t *type, *values, *constant, *other;
    unsigned types = 0;
    size_t i;
    if (--*budget < 0) return 0;
    schema = resolve(root, schema);
    type = json_object_get(schema, "type");
    types = type_named(type);
    for (i = 0; i < json_array_size(type); i++) types |= type_named(json_array_get(type, i));
    if (!types) {
        values = json_object_get(schema, "enum");
        constant = json_object_get(schema, "const");
        for (i = 0; i < json_array_size(values); i++) types |= type_of_value(json_array_get(values, i));
        if (constant) types |= type_of_value(constant);
        for (i = 0; (other = alternative(schema, i)) && *budget > 0; i++) types |= types_of(root, other, budget);
    }
    if (!types && json_object_get(schema, "properties")) types = MM3__OBJECT;
    if (!types && json_object_get(schema, "items")) types = MM3__ARRAY;
    if (types && json_is_true(json_object_get(schema, "nullable"))) types |= MM3__NULL;
    return types;
}

unsigned mm3__schema_types(const json_t *root, const json_t *schema)
{
    int budget = MAX_VISITS;
    return types_of(root, schema, &budget);
}

static const json_t *find_below(const json_t *root, const json_t *schema, const char *name, int *budget)
{
    const json_t *found, *other;
    size_t i;
    if (--*budget < 0) return NULL;
    schema = resolve(root, schema);
    found = name ? json_object_get(json_object_get(schema, "properties"), name) : json_object_get(schema, "items");
    for (i = 0; !found && *budget > 0 && (other = alternative(schema, i)); i++)
        found = find_below(root, other, name, budget);
    return found;
}

const json_t *mm3__schema_member(const json_t *root, const json_t *schema, const char *name)
{
    int budget = MAX_VISITS;
    const json_t *found = find_below(root, schema, name, &budget);
    return found ? found : json_object_get(resolve(root, schema), "additionalProperties");
}

const json_t *mm3__schema_items(const json_t *root, const json_t *schema)
{
    int budget = MAX_VISITS;
    return find_below(root, schema, NULL, &budget);
}
