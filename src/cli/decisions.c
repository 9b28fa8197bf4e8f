/* What a plan says, for people and as JSON, and which of it is asked for. */
#include <string.h>

#include "cli/decisions.h"

/* ---- for people -------------------------------------------------------------------------------------------------- */

/* The first of every list: the yardstick. */
static bool is_first(const char *choice)
{
    size_t n = strcspn(choice, "/");
    return (n == 6 && strncmp(choice, "native", n) == 0) || (n == 5 && strncmp(choice, "split", n) == 0);
}

double cli_gain(const mm3_decision *d)
{
    if (d->how != MM3_HOW_TIMED) return 0;
    if (is_first(d->choice)) return 1;
    for (int i = 0; i < d->n_tried; i++)
        if (is_first(d->tried[i].choice) &&
            (d->tried[i].fate == MM3_FATE_TIMED || d->tried[i].fate == MM3_FATE_DROPPED))
            return d->tried[i].ratio;
    return 0;
}

const char *cli_time_text(double us, char *text, size_t n)
{
    if (us < 1000)
        snprintf(text, n, "%.*f us", us < 9.995 ? 2 : 1, us);
    else
        snprintf(text, n, "%.*f ms", us < 99950 ? 2 : 0, us * 1e-3);
    return text;
}

static const char *how_text(mm3_how how)
{
    static const char *const word[] = { "timed", "alone", "untimed", "pinned" };
    return word[how];
}

void cli_print_decision(const mm3_decision *d, int key_width)
{
    char time[32];
    double gain = cli_gain(d);
    printf("%-*s  %-20s ", key_width, d->key, d->choice);
    if (d->how != MM3_HOW_TIMED) {
        printf("%s\n", how_text(d->how));
        return;
    }
    printf("%9s", cli_time_text(d->us, time, sizeof time));
    if (gain > 0) printf("  %5.2fx", gain);
    putchar('\n');
}

static const char *why_chosen(const mm3_decision *d)
{
    int n_refused = 0;
    for (int i = 0; i < d->n_tried; i++) n_refused += d->tried[i].fate == MM3_FATE_REFUSED;
    switch (d->how) {
    case MM3_HOW_TIMED:
        return "chosen";
    case MM3_HOW_UNTIMED:
        return "kept: the budget was spent before anything could be decided";
    case MM3_HOW_PINNED:
        return "pinned when the plan was made";
    case MM3_HOW_ALONE:
        break;
    }
    if (d->n_tried == 0) return "chosen: the only candidate";
    return n_refused == d->n_tried ? "chosen: no challenger accepts" : "chosen: no challenger is left";
}

static void print_tried(const mm3_tried *t)
{
    static const char *const word[MM3_N_FATES] = { "", "", "", "refuses", "disqualified", "wrong", "failed" };
    char time[32];
    printf("  %-20s ", t->choice);
    switch (t->fate) {
    case MM3_FATE_TIMED:
        printf("%9s  %5.2fx%s\n", cli_time_text(t->us, time, sizeof time), t->ratio,
               t->ratio < 1 ? "  not surely faster" : "");
        break;
    case MM3_FATE_DROPPED:
        printf("%9s  %5.2fx  dropped after %d rounds\n", "", t->ratio, t->rounds);
        break;
    case MM3_FATE_UNTIMED:
        printf("accepts, not timed\n");
        break;
    default:
        printf("%s: %s\n", word[t->fate], t->why ? t->why : "no reason was given");
    }
}

void cli_explain(const mm3_decision *d, const char *note, const char *pin)
{
    char time[32];
    printf("%s\n", d->key);
    if (pin) printf("  %-20s pinned by --backend; what follows is not used\n", pin);
    printf("  %-20s ", d->choice);
    if (d->how == MM3_HOW_TIMED) printf("%9s  %5s   ", cli_time_text(d->us, time, sizeof time), "");
    printf("%s\n", note ? note : why_chosen(d));
    for (int i = 0; i < d->n_tried; i++) print_tried(&d->tried[i]);
}

void cli_print_step(const mm3_step_verdict *v)
{
    printf("decode step %-8s keeps %s", v->step, v->winners ? "winners" : "natives");
    if (!v->timed)
        printf(": the budget was spent before they could be compared\n");
    else if (v->ratio == 1 && v->mad == 0)
        printf(": no winner differs from its native\n");
    else
        printf(": the winners' step takes %.2f of the natives'\n", v->ratio);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *positive(double x) { return x > 0 ? cli_json_real(x) : json_null(); }

static json_t *tried_json(const mm3_tried *t)
{
    static const char *const word[MM3_N_FATES] = { "timed",        "dropped", "untimed", "refused",
                                                   "disqualified", "wrong",   "failed" };
    json_t *o = json_pack("{ss ss}", "choice", t->choice, "fate", word[t->fate]);
    if (t->fate == MM3_FATE_TIMED) {
        json_object_set_new(o, "us", cli_json_real(t->us));
        json_object_set_new(o, "mad_us", cli_json_real(t->mad));
        json_object_set_new(o, "err", cli_json_real(t->error));
    }
    if (t->fate == MM3_FATE_TIMED || t->fate == MM3_FATE_DROPPED)
        json_object_set_new(o, "ratio", cli_json_real(t->ratio));
    if (t->fate == MM3_FATE_DROPPED) json_object_set_new(o, "rounds", json_integer(t->rounds));
    if (t->why) json_object_set_new(o, "why", json_string(t->why));
    return o;
}

json_t *cli_decision_json(const mm3_decision *d)
{
    json_t *tried = json_array();
    bool timed = d->how == MM3_HOW_TIMED;
    for (int i = 0; i < d->n_tried; i++) json_array_append_new(tried, tried_json(&d->tried[i]));
    return json_pack("{ss ss ss so so so so ss so}", "key", d->key, "choice", d->choice, "how", how_text(d->how), "us",
                     timed ? cli_json_real(d->us) : json_null(), "mad_us", timed ? cli_json_real(d->mad) : json_null(),
                     "err", timed ? cli_json_real(d->error) : json_null(), "gain", positive(cli_gain(d)), "src",
                     d->source, "tried", tried);
}

json_t *cli_step_json(const mm3_step_verdict *v)
{
    return json_pack("{ss ss so ss}", "step", v->step, "kept", v->winners ? "winners" : "natives", "ratio",
                     v->timed ? cli_json_real(v->ratio) : json_null(), "of", v->of);
}

/* ---- which ------------------------------------------------------------------------------------------------------- */

bool cli_read_key(const char *text, char *copy, mm3_key *key)
{
    char *save = NULL, *word;
    int op;
    memset(key, 0, sizeof *key);
    if (strlen(text) >= MM3_MAX_KEY_TEXT) return false;
    strcpy(copy, text);
    word = strtok_r(copy, " ", &save);
    op = word ? mm3_op_find(word) : -1;
    if (op < 0) return false;
    key->op = (mm3_op_id)op;
    while ((word = strtok_r(NULL, " ", &save))) {
        char *value = strchr(word, '=');
        int64_t number;
        if (!value || key->n == MM3_MAX_KEY_FIELDS) return false;
        *value++ = 0;
        if (mm3_parse_int(value, INT64_MIN, INT64_MAX, &number))
            mm3_key_number(key, word, number);
        else
            mm3_key_word(key, word, value);
    }
    return true;
}

/* An operation's fields are known from a key of a zeroed contract; values do not matter. */
static bool check_field(mm3_op_id op, const char *name)
{
    union {
        max_align_t align;
        unsigned char bytes[MM3_MAX_OP_BYTES];
    } zero = { 0 };
    mm3_key key = { .op = op };
    char known[256] = "";
    mm3_op_info_of(op)->key(&zero, &key);
    for (int i = 0; i < key.n; i++) {
        if (strcmp(key.field[i].name, name) == 0) return true;
        if (i) strncat(known, ", ", sizeof known - strlen(known) - 1);
        strncat(known, key.field[i].name, sizeof known - strlen(known) - 1);
    }
    return cli_usage("%s has no field '%s'; its key has %s", mm3_op_info_of(op)->name, name, known) == CLI_DONE;
}

static bool add_field(cli_filter *f, char *text)
{
    char *value = strchr(text, '='), *range;
    int i = f->n;
    bool fits;
    if (!value || value == text || !value[1]) return cli_usage("'%s' is not FIELD=VALUE", text) == CLI_DONE;
    *value++ = 0;
    fits = i < MM3_MAX_KEY_FIELDS && strlen(text) < sizeof f->field[i].name && strlen(value) < sizeof f->field[i].word;
    if (!fits) return cli_usage("there is no field '%s=%s'", text, value) == CLI_DONE;
    if (!check_field(f->op, text)) return false;
    strcpy(f->field[i].name, text);
    strcpy(f->field[i].word, value);
    range = strstr(value, "..");
    if (range) {
        *range = 0;
        f->field[i].is_number = mm3_parse_int(value, INT64_MIN, INT64_MAX, &f->field[i].low) &&
                                mm3_parse_int(range + 2, f->field[i].low, INT64_MAX, &f->field[i].high);
        if (!f->field[i].is_number)
            return cli_usage("'%s..%s' is not a range of whole numbers", value, range + 2) == CLI_DONE;
    } else if (mm3_parse_int(value, INT64_MIN, INT64_MAX, &f->field[i].low)) {
        f->field[i].is_number = true;
        f->field[i].high = f->field[i].low;
    }
    f->n++;
    return true;
}

bool cli_filter_parse(cli_filter *f, int n, char *const *argument)
{
    bool first = true;
    memset(f, 0, sizeof *f);
    for (int i = 0; i < n; i++) {
        char *copy = mm3_strdup(argument[i]), *save = NULL;
        bool ok = true;
        if (!copy) return cli_error("out of memory") == CLI_DONE;
        for (char *word = strtok_r(copy, ", ", &save); word && ok; word = strtok_r(NULL, ", ", &save)) {
            int op = first ? mm3_op_find(word) : -1;
            if (!first)
                ok = add_field(f, word);
            else if (op < 0)
                ok = cli_usage("there is no operation '%s': 'mm3 info' lists them", word) == CLI_DONE;
            else
                f->op = (mm3_op_id)op;
            first = false;
        }
        mm3_free(copy);
        if (!ok) return false;
    }
    return !first || cli_usage("an operation is needed: 'mm3 info' lists them") == CLI_DONE;
}

bool cli_filter_matches(const cli_filter *f, const mm3_key *key)
{
    if (f->op != key->op) return false;
    for (int i = 0; i < f->n; i++) {
        bool ok = false, has = false;
        for (int j = 0; j < key->n && !has; j++) {
            if (strcmp(key->field[j].name, f->field[i].name) != 0) continue;
            has = true;
            ok = key->field[j].text ? strcmp(key->field[j].text, f->field[i].word) == 0
                                    : f->field[i].is_number && key->field[j].number >= f->field[i].low &&
                                          key->field[j].number <= f->field[i].high;
        }
        if (!has) ok = strcmp(f->field[i].name, "m") == 0; /* a decision for every m */
        if (!ok) return false;
    }
    return true;
}

int cli_filter_m(const cli_filter *f)
{
    for (int i = 0; i < f->n; i++)
        if (strcmp(f->field[i].name, "m") == 0 && f->field[i].is_number && f->field[i].low == f->field[i].high &&
            f->field[i].low > 0 && f->field[i].low <= 4096)
            return (int)f->field[i].low;
    return 0;
}
