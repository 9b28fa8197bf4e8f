/* decisions: what a plan says, for people and as JSON, and which of it is asked for. Shared by tune and plan. */
#ifndef MM3_CLI_DECISIONS_H
#define MM3_CLI_DECISIONS_H

#include "base/base.h"
#include "cli/cli.h"
#include "kernels/kernels.h"

/* Time of the list's first candidate over the chosen one's: what tuning gained. 1 where the first was chosen; 0 where
 * nothing was timed. */
double cli_gain(const mm3_decision *d);
/* "15.0 us", "1.204 ms" into text[n]; returns text. */
const char *cli_time_text(double us, char *text, size_t n);
/* One line: key, choice, time, gain. */
void cli_print_decision(const mm3_decision *d, int key_width);
/* A paragraph: the choice and why, and what became of every other candidate.
 *   note  takes the place of why, or NULL
 *   pin   what the stage is pinned to, or NULL */
void cli_explain(const mm3_decision *d, const char *note, const char *pin);
void cli_print_step(const mm3_step_verdict *v);

/* The same as JSON, new references; NULL when out of memory. */
json_t *cli_decision_json(const mm3_decision *d);
json_t *cli_step_json(const mm3_step_verdict *v);

/* 'OP[,FIELD=V|V..W]...', as pins have it, with blanks or commas between. */
typedef struct cli_filter {
    mm3_op_id op;
    int n;
    struct {
        char name[32], word[64];
        int64_t low, high; /* where the value is a number or a range */
        bool is_number;
    } field[MM3_MAX_KEY_FIELDS];
} cli_filter;
/* False with an error printed. */
bool cli_filter_parse(cli_filter *f, int n, char *const *argument);
bool cli_filter_matches(const cli_filter *f, const mm3_key *key);
/* The one value of m that is asked for; 0 if there is none. */
int cli_filter_m(const cli_filter *f);

/* Read a stage's key. The key's texts point into copy[MM3_MAX_KEY_TEXT]. False if it is none. */
bool cli_read_key(const char *text, char *copy, mm3_key *key);

#endif
