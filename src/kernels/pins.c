/* Pins: 'OP[,FIELD=V|V..W]...=CANDIDATE[/TACTIC]', several apart by ';'. Parsed once, matched against stage keys. */
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

typedef struct field {
    const char *name, *word; /* in the pins' text */
    int64_t low, high;
} field;

typedef struct pin {
    mm3_op_id op;
    int n_fields;
    field fields[MM3_MAX_KEY_FIELDS];
    mm3_choice choice;
} pin;

struct mm3_pins {
    char *text; /* owned; cut into pieces */
    int n;
    pin *pin; /* owned */
};

static mm3_status unknown_candidate(mm3_op_id op, const char *device, const char *name)
{
    const mm3_kernel *k[MM3_MAX_CANDIDATES];
    int n = mm3_kernels_of(op, device, k, MM3_MAX_CANDIDATES);
    char known[512] = "";
    for (int i = 0; i < n && i < MM3_MAX_CANDIDATES; i++) {
        if (i) strncat(known, ", ", sizeof known - strlen(known) - 1);
        strncat(known, k[i]->name, sizeof known - strlen(known) - 1);
    }
    return mm3_fail(MM3_ERR_ARG, MM3_HERE, "--backend: %s has no candidate '%s'; it has %s", mm3_op_info_of(op)->name,
                    name, known);
}

static mm3_status unknown_tactic(const mm3_kernel *k, const char *name)
{
    char known[512] = "";
    for (int i = 0; i < k->n_tactics; i++) {
        if (i) strncat(known, ", ", sizeof known - strlen(known) - 1);
        strncat(known, k->tactics[i].name, sizeof known - strlen(known) - 1);
    }
    return mm3_fail(MM3_ERR_ARG, MM3_HERE, "--backend: candidate %s of %s has no tactic '%s'; it has %s", k->name,
                    mm3_op_info_of(k->op)->name, name, known);
}

static mm3_status parse_field(pin *p, char *text)
{
    field *f = &p->fields[p->n_fields];
    char *value = strchr(text, '='), *range;
    MM3_CHECK(value && value > text && value[1], MM3_ERR_ARG, "--backend: '%s' is not FIELD=VALUE", text);
    MM3_CHECK(p->n_fields < MM3_MAX_KEY_FIELDS, MM3_ERR_ARG, "--backend: too many fields at '%s'", text);
    *value++ = 0;
    f->name = text;
    range = strstr(value, "..");
    if (range) {
        *range = 0;
        MM3_CHECK(mm3_parse_int(value, INT64_MIN, INT64_MAX, &f->low) &&
                      mm3_parse_int(range + 2, f->low, INT64_MAX, &f->high),
                  MM3_ERR_ARG, "--backend: '%s..%s' is not a range of whole numbers", value, range + 2);
    } else if (mm3_parse_int(value, INT64_MIN, INT64_MAX, &f->low)) {
        f->high = f->low;
    } else {
        f->word = value;
    }
    p->n_fields++;
    return MM3_OK;
}

/* Fields of an operation's key are known from a key of a zeroed contract; values do not matter. */
static mm3_status check_fields(const pin *p)
{
    union {
        max_align_t align;
        unsigned char bytes[MM3_MAX_OP_BYTES];
    } zero = { 0 };
    mm3_key key = { .op = p->op };
    mm3_op_info_of(p->op)->key(&zero, &key);
    for (int i = 0; i < p->n_fields; i++) {
        char known[256] = "";
        bool found = false;
        for (int j = 0; j < key.n; j++) {
            found |= strcmp(key.field[j].name, p->fields[i].name) == 0;
            if (j) strncat(known, ", ", sizeof known - strlen(known) - 1);
            strncat(known, key.field[j].name, sizeof known - strlen(known) - 1);
        }
        MM3_CHECK(found, MM3_ERR_ARG, "--backend: %s has no field '%s'; its key has %s", mm3_op_info_of(p->op)->name,
                  p->fields[i].name, known);
    }
    return MM3_OK;
}

static mm3_status parse_pin(pin *p, char *text, const char *device)
{
    char *target = strrchr(text, '='), *tactic, *next;
    int op;
    MM3_CHECK(target && target > text && target[1], MM3_ERR_ARG,
              "--backend: '%s' is not OP[,FIELD=V|V..W]...=CANDIDATE[/TACTIC]", text);
    *target++ = 0;
    tactic = strchr(target, '/');
    if (tactic) *tactic++ = 0;
    next = strchr(text, ',');
    if (next) *next++ = 0;
    op = mm3_op_find(text);
    MM3_CHECK(op >= 0, MM3_ERR_ARG, "--backend: there is no operation '%s'; 'mm3 info' lists them", text);
    p->op = (mm3_op_id)op;
    while (next) {
        char *this = next;
        next = strchr(this, ',');
        if (next) *next++ = 0;
        MM3_TRY(parse_field(p, this));
    }
    MM3_TRY(check_fields(p));
    p->choice.kernel = mm3_kernel_find(p->op, device, target);
    if (!p->choice.kernel) return unknown_candidate(p->op, device, target);
    p->choice.tactic = tactic ? mm3_tactic_find(p->choice.kernel, tactic) : &p->choice.kernel->tactics[0];
    if (!p->choice.tactic) return unknown_tactic(p->choice.kernel, tactic);
    return MM3_OK;
}

mm3_status mm3_pins_parse(mm3_pins **out, const char *text, const char *device)
{
    mm3_status st = MM3_OK;
    mm3_pins *pins = mm3_calloc(1, sizeof *pins);
    int max = 1;
    char *save = NULL;
    *out = NULL;
    for (const char *c = text; *c; c++) max += *c == ';';
    if (pins) pins->text = mm3_strdup(text);
    if (pins) pins->pin = mm3_calloc((size_t)max, sizeof *pins->pin);
    if (!pins || !pins->text || !pins->pin) {
        st = mm3_fail(MM3_ERR_NOMEM, MM3_HERE, "out of memory for pins");
        goto done;
    }
    for (char *one = strtok_r(pins->text, ";", &save); one; one = strtok_r(NULL, ";", &save))
        MM3_GOTO(parse_pin(&pins->pin[pins->n++], one, device));
    *out = pins;
    pins = NULL;
done:
    mm3_pins_free(&pins);
    return st;
}

void mm3_pins_free(mm3_pins **pins)
{
    if (!pins || !*pins) return;
    mm3_free((*pins)->text);
    mm3_free((*pins)->pin);
    mm3_free(*pins);
    *pins = NULL;
}

static bool matches(const pin *p, const mm3_key *key)
{
    if (p->op != key->op) return false;
    for (int i = 0; i < p->n_fields; i++) {
        const field *f = &p->fields[i];
        bool ok = false;
        for (int j = 0; j < key->n && !ok; j++) {
            if (strcmp(key->field[j].name, f->name) != 0) continue;
            ok = f->word ? key->field[j].text && strcmp(key->field[j].text, f->word) == 0
                         : !key->field[j].text && key->field[j].number >= f->low && key->field[j].number <= f->high;
        }
        if (!ok) return false;
    }
    return true;
}

bool mm3_pins_match(const mm3_pins *pins, const mm3_key *key, mm3_choice *choice)
{
    for (int i = pins->n - 1; i >= 0; i--)
        if (matches(&pins->pin[i], key)) {
            *choice = pins->pin[i].choice;
            return true;
        }
    return false;
}
