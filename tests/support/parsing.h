/* parsing: what the output parser makes of a text, whole and cut in every way; a failed test where these differ, or where
 * a delta is no JSON of the documented form. */
#ifndef MM3_TESTS_PARSING_H
#define MM3_TESTS_PARSING_H

#include "text/chat.h"

/* Pieces of what the model writes. */
#define NS MM3__NS
#define OPEN NS "<tool_call>\n"
#define CLOSE NS "</tool_call>"
#define CALL(name, arguments) NS "<invoke name=\"" name "\">" arguments NS "</invoke>\n"
#define ARG(name, value) NS "<" name ">" value NS "</" name ">"
#define ITEM(value) ARG("item", value)
#define ONE(arguments) OPEN CALL("f", arguments) CLOSE

/* A list with a function f that has a parameter of each kind, and g without parameters. */
extern const char parser_tools[];

/* Feed a text to a new parser and join its deltas: "reasoning|content|name(arguments) name(arguments)", for mm3_free().
 *   functions, thinking  as for mm3_parser_open
 *   cut    bytes of each piece; 0: random sizes, from `seed`; the last piece may be an empty one */
char *parse_text(const char *text, size_t n, const char *functions, const char *thinking, size_t cut, unsigned seed);
/* The text whole, then cut in every way: always the same. */
char *parse_all_ways(const char *text, size_t n, const char *functions, const char *thinking);

typedef struct parse_example {
    const char *thinking, *text, *want;
} parse_example;
void check_parses(const parse_example *examples, int n, const char *functions);

/* A random number below n. */
unsigned random_below(unsigned *seed, unsigned n);

#endif
