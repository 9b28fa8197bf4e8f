/* Reading a plan. Strict: a line is exactly what plan_print.c writes, or it is left out. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "kernels/plan_state.h"

enum { MAX_LINE = 2048, MAX_FIELDS = 8, MAX_PLAN_BYTES = 64 << 20 };

/* ---- small pieces: each says NULL, or why not -------------------------------------------------------------------- */

/* Cut at " | "; returns the number of fields, or 0 where there are more than max. */
static int cut(char *line, char **field, int max)
{
    int n = 0;
    for (char *next = line; next; n++) {
        if (n == max) return 0;
        field[n] = next;
        next = strstr(next, " | ");
        if (next) {
            *next = 0;
            next += 3;
        }
    }
    return n;
}

static bool is_word(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && !strchr("_.-+", s[i])) return false;
    return n > 0;
}

bool mm3_plan_is_key(const char *s)
{
    size_t n = strcspn(s, " ");
    if (strlen(s) >= MM3_MAX_KEY_TEXT || mm3__op_of_key(s) == MM3_N_OPS) return false;
    for (s += n; *s; s += n) {
        size_t name = strcspn(++s, "= ");
        if (s[name] != '=') return false;
        n = strcspn(s, " ");
        if (!is_word(s, name) || n < name + 1 || !is_word(s + name + 1, n - name - 1)) return false;
    }
    return true;
}

static bool is_choice(const char *s)
{
    size_t name = strcspn(s, "/");
    if (strlen(s) >= MM3_MAX_CHOICE_TEXT || !is_word(s, name)) return false;
    return !s[name] || is_word(s + name + 1, strlen(s + name + 1));
}

static bool parse_hash(const char *s, const char *word, char hash[9])
{
    size_t n = strlen(word);
    if (strncmp(s, word, n) != 0 || s[n] != ' ' || strlen(s + n + 1) != 8) return false;
    if (strspn(s + n + 1, "0123456789abcdef") != 8) return false;
    memcpy(hash, s + n + 1, 9);
    return true;
}

static bool parse_positive(const char *s, double *x)
{
    return isdigit((unsigned char)*s) && !strpbrk(s, "xX") && mm3_parse_double(s, 0, 1e15, x);
}

/* "A<middle>B": two numbers. */
static bool parse_two(char *s, const char *middle, double *a, double *b)
{
    char *at = strstr(s, middle);
    if (!at) return false;
    *at = 0;
    return parse_positive(s, a) && parse_positive(at + strlen(middle), b);
}

static bool parse_error(const char *s, double *error)
{
    return strncmp(s, "err ", 4) == 0 && parse_positive(s + 4, error);
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

typedef struct reader {
    mm3_plan *plan;
    mm3_decision
        d; /* the stage under way; key NULL: none. Its texts are in the arena, like those before: freed at the end */
    int max_tried;
    mm3_arena texts;
    json_t *seen; /* owned: the keys of stages above, as members */
    bool skip;    /* the stage's own line was bad: what stands under it goes with it */
    bool out_of_memory;
} reader;

static char *keep(reader *r, const char *s)
{
    char *copy = mm3_arena_strdup(&r->texts, s);
    r->out_of_memory |= !copy;
    return copy;
}

/* Hand the stage under way to the plan. */
static void finish_stage(reader *r)
{
    if (r->d.key && !r->out_of_memory)
        r->out_of_memory =
            mm3__plan_add(r->plan, &r->d) != MM3_OK || json_object_set_new_nocheck(r->seen, r->d.key, json_true()) != 0;
    mm3_free(r->d.tried);
    r->d = (mm3_decision){ 0 };
    r->max_tried = 0;
}

static const char *parse_stage(reader *r, char *line)
{
    mm3_decision d = { 0 };
    char *f[MAX_FIELDS];
    int n = cut(line, f, MAX_FIELDS);
    if (n < 4) return "a stage's line has a key, a choice, a time and a source";
    if (!mm3_plan_is_key(f[0])) return "it does not begin with an operation and its fields";
    if (json_object_get(r->seen, f[0])) return "the same key stands above";
    if (!is_choice(f[1])) return "the choice is not CANDIDATE[/TACTIC]";
    if (!parse_hash(f[n - 1], "src", d.source)) return "it does not end with 'src' and eight hex digits";
    if (n == 5) {
        d.how = MM3_HOW_TIMED;
        if (!parse_two(f[2], "us mad ", &d.us, &d.mad)) return "the time is not 'Nus mad N'";
        if (!parse_error(f[3], &d.error)) return "the error is not 'err N'";
    } else if (n == 4 && strcmp(f[2], "alone") == 0) {
        d.how = MM3_HOW_ALONE;
    } else if (n == 4 && strcmp(f[2], "untimed") == 0) {
        d.how = MM3_HOW_UNTIMED;
    } else if (n == 4 && strcmp(f[2], "pinned") == 0) {
        d.how = MM3_HOW_PINNED;
    } else {
        return "it has neither a time and an error nor 'alone', 'untimed' or 'pinned'";
    }
    d.key = keep(r, f[0]);
    d.choice = keep(r, f[1]);
    r->d = d;
    return NULL;
}

static const char *parse_reason(reader *r, char *s, mm3_tried *t)
{
    static const struct {
        const char *word;
        mm3_fate fate;
    } known[] = { { "refused: ", MM3_FATE_REFUSED },
                  { "disqualified: ", MM3_FATE_DISQUALIFIED },
                  { "wrong: ", MM3_FATE_WRONG },
                  { "failed: ", MM3_FATE_FAILED } };
    for (int i = 0; i < MM3_COUNT(known); i++) {
        size_t n = strlen(known[i].word);
        if (strncmp(s, known[i].word, n) != 0) continue;
        if (!s[n]) return "there is no reason behind the colon";
        t->fate = known[i].fate;
        t->why = keep(r, s + n);
        return NULL;
    }
    return "what became of the candidate is not known";
}

static const char *parse_dropped(char *s, mm3_tried *t)
{
    char *end = strstr(s, "x after "), *rounds = end ? end + strlen("x after ") : NULL;
    char *unit = rounds ? strchr(rounds, ' ') : NULL;
    int64_t n;
    if (!unit || strcmp(unit, " rounds") != 0) return "it is not 'dropped: Nx after N rounds'";
    *end = *unit = 0;
    if (!parse_positive(s, &t->ratio) || !mm3_parse_int(rounds, 1, 1000000, &n))
        return "it is not 'dropped: Nx after N rounds'";
    t->rounds = (int)n;
    t->fate = MM3_FATE_DROPPED;
    return NULL;
}

static const char *parse_tried(reader *r, char *line)
{
    mm3_tried t = { 0 };
    char *f[MAX_FIELDS], *x;
    int n = cut(line + 2, f, MAX_FIELDS);
    const char *why = NULL;
    if (!r->d.key) return "no stage stands above it";
    if (n < 3 || !is_choice(f[0])) return "it is not a candidate and what became of it";
    if (!parse_hash(f[n - 1], "src", t.source)) return "it does not end with 'src' and eight hex digits";
    if (n == 5) {
        x = strchr(f[2], 'x');
        if (!parse_two(f[1], "us mad ", &t.us, &t.mad)) return "the time is not 'Nus mad N'";
        if (!x || x[1]) return "the ratio is not 'Nx'";
        *x = 0;
        if (!parse_positive(f[2], &t.ratio)) return "the ratio is not 'Nx'";
        if (!parse_error(f[3], &t.error)) return "the error is not 'err N'";
    } else if (n != 3) {
        return "it has too many fields";
    } else if (strcmp(f[1], "untimed") == 0) {
        t.fate = MM3_FATE_UNTIMED;
    } else if (strncmp(f[1], "dropped: ", 9) == 0) {
        why = parse_dropped(f[1] + 9, &t);
    } else {
        why = parse_reason(r, f[1], &t);
    }
    if (why) return why;
    t.choice = keep(r, f[0]);
    if (r->d.n_tried == r->max_tried) {
        int max = r->max_tried ? 2 * r->max_tried : 8;
        mm3_tried *more = mm3_realloc(r->d.tried, (size_t)max * sizeof *more);
        r->out_of_memory |= !more;
        if (!more) return NULL;
        r->d.tried = more;
        r->max_tried = max;
    }
    r->d.tried[r->d.n_tried++] = t;
    return NULL;
}

static const char *parse_step(reader *r, char *line)
{
    mm3_step_verdict v = { 0 };
    char *f[MAX_FIELDS];
    int n = cut(line, f, MAX_FIELDS);
    if (n != 4) return "a step's line has a step, a verdict, a ratio and a hash";
    if (strncmp(f[0], "step ", 5) != 0) return "there is no step behind 'step'"; /* the cut took the space */
    v.step = f[0] + strlen("step ");
    if (!*v.step || strlen(v.step) >= MM3_MAX_KEY_TEXT) return "there is no step behind 'step'";
    if (strcmp(f[1], "winners") != 0 && strcmp(f[1], "natives") != 0) return "the verdict is not winners or natives";
    v.winners = strcmp(f[1], "winners") == 0;
    v.timed = strcmp(f[2], "untimed") != 0;
    if (v.timed && !parse_two(f[2], " of native mad ", &v.ratio, &v.mad)) return "the ratio is not 'N of native mad N'";
    if (!parse_hash(f[3], "of", v.of)) return "it does not end with 'of' and eight hex digits";
    r->out_of_memory |= mm3__plan_add_step(r->plan, &v) != MM3_OK;
    return NULL;
}

static const char *parse_crashed(reader *r, char *line)
{
    char *f[MAX_FIELDS], source[9];
    int n = cut(line, f, MAX_FIELDS);
    const char *key = f[0] + strlen("crashed ");
    if (n != 3 || !mm3_plan_is_key(key) || !is_choice(f[1]) || !parse_hash(f[2], "src", source))
        return "it is not 'crashed KEY', a candidate and a source";
    r->out_of_memory |= mm3_plan_set_crashed(r->plan, key, f[1], source) != MM3_OK;
    return NULL;
}

static const char *parse_line(reader *r, char *line)
{
    const char *why;
    if (strncmp(line, "  ", 2) == 0) return r->skip ? NULL : parse_tried(r, line);
    finish_stage(r);
    r->skip = false;
    if (!*line || *line == '#') return NULL;
    if (strncmp(line, "step ", 5) == 0) return parse_step(r, line);
    if (strncmp(line, "crashed ", 8) == 0) return parse_crashed(r, line);
    why = parse_stage(r, line);
    r->skip = why != NULL;
    return why;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static bool parse_numbered(const char *s, const char *word, int low, int *value)
{
    size_t n = strlen(word);
    int64_t x;
    if (strncmp(s, word, n) != 0 || !mm3_parse_int(s + n, low, 1000000, &x)) return false;
    *value = (int)x;
    return true;
}

static mm3_status parse_head(char *line, const char *what, mm3_plan_head *head)
{
    char *f[MAX_FIELDS];
    int n = cut(line, f, MAX_FIELDS), format;
    memset(head, 0, sizeof *head);
    MM3_CHECK(n >= 1 && parse_numbered(f[0], "# mm3 plan ", 0, &format), MM3_ERR_FORMAT,
              "%s is no plan: its first line does not begin with '# mm3 plan'", what);
    MM3_CHECK(format == MM3_PLAN_FORMAT, MM3_ERR_FORMAT, "%s is a plan of format %d: this mm3 reads format %d", what,
              format, MM3_PLAN_FORMAT);
    MM3_CHECK(
        n == 6 && parse_numbered(f[2], "threads ", 1, &head->n_threads) &&
            parse_numbered(f[3], "policy ", 0, &head->policy) && strncmp(f[5], "mm3 ", 4) == 0 &&
            strlen(f[1]) < sizeof head->device && strlen(f[4]) < sizeof head->workload &&
            strlen(f[5] + 4) < sizeof head->version,
        MM3_ERR_FORMAT,
        "%s has a damaged head: expected '# mm3 plan %d | DEVICE | threads N | policy N | WORKLOAD | mm3 VERSION'",
        what, MM3_PLAN_FORMAT);
    strcpy(head->device, f[1]);
    strcpy(head->workload, f[4]);
    strcpy(head->version, f[5] + 4);
    return MM3_OK;
}

/* The next line into line[MAX_LINE] without its end; NULL or why it can't be one. */
static const char *next_line(const char **at, const char *end, char *line)
{
    const char *newline = memchr(*at, '\n', (size_t)(end - *at)), *begin = *at;
    size_t n = (size_t)((newline ? newline : end) - begin);
    *at = newline ? newline + 1 : end;
    line[0] = 0;
    if (n >= MAX_LINE) return "it is too long";
    memcpy(line, begin, n);
    line[n] = 0;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7F) return "it holds a control character";
    return newline ? NULL : "it has no end: the file was cut off";
}

mm3_status mm3_plan_parse(mm3_plan **out, const char *text, size_t n_bytes, const char *what, mm3_buf *warnings)
{
    mm3_status st = MM3_OK;
    mm3_plan_head head;
    reader r = { 0 };
    char line[MAX_LINE], first[256] = "";
    const char *at = text, *end = text + n_bytes, *why;
    int n_bad = 0;
    *out = NULL;
    why = next_line(&at, end, line);
    MM3_CHECK(!why, MM3_ERR_FORMAT, "%s is no plan: its first line is damaged: %s", what, why);
    MM3_TRY(parse_head(line, what, &head));
    MM3_TRY(mm3_plan_open(&r.plan, &head));
    r.seen = json_object();
    r.out_of_memory = !r.seen;
    for (int i = 2; at < end && !r.out_of_memory; i++) {
        bool under = at[0] == ' ';
        why = next_line(&at, end, line);
        if (why && !under) { /* a stage's line may have stood here */
            finish_stage(&r);
            r.skip = true;
        }
        if (!why) why = parse_line(&r, line);
        if (why && n_bad++ == 0) snprintf(first, sizeof first, "line %d (%s)", i, why);
    }
    finish_stage(&r);
    mm3_arena_free(&r.texts);
    json_decref(r.seen);
    mm3__plan_order(r.plan);
    if (r.out_of_memory) {
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for %s", what);
        mm3_plan_close(&r.plan);
    } else if (n_bad == 1) {
        mm3_buf_printf(warnings, "%s: %s is ignored\n", what, first);
    } else if (n_bad > 1) {
        mm3_buf_printf(warnings, "%s: %s and %d more are ignored\n", what, first, n_bad - 1);
    }
    *out = r.plan;
    return st;
}

mm3_status mm3_plan_load(mm3_plan **out, const char *path, mm3_buf *warnings)
{
    char *text = NULL;
    size_t n = 0;
    mm3_status st;
    *out = NULL;
    MM3_TRY(mm3_read_all(path, MAX_PLAN_BYTES, &text, &n));
    st = mm3_plan_parse(out, text, n, path, warnings);
    mm3_free(text);
    return st;
}
