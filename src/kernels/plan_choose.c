/* From a plan's names to candidates, and back: binding, staleness, the choose that recorders take. */
#include <stdio.h>
#include <string.h>

#include "kernels/plan_state.h"
#include "kernels/source.h"

const char *mm3_kernel_source(const mm3_kernel *kernel)
{
    char file[96];
    snprintf(file, sizeof file, "%s_%s", mm3_op_info_of(kernel->op)->name, kernel->name);
    for (int i = 0; i < mm3__n_sources; i++)
        if (strcmp(mm3__sources[i].device, kernel->device) == 0 && strcmp(mm3__sources[i].file, file) == 0)
            return mm3__sources[i].hash;
    return "00000000";
}

void mm3_choice_text(const mm3_kernel *kernel, const mm3_tactic *tactic, char *text, size_t n)
{
    if (tactic == &kernel->tactics[0] && strcmp(tactic->name, "default") == 0)
        snprintf(text, n, "%s", kernel->name);
    else
        snprintf(text, n, "%s/%s", kernel->name, tactic->name);
}

static bool find_choice(mm3_op_id op, const char *choice, const char *device, mm3_kernels_of_fn *kernels_of,
                        mm3_choice *out)
{
    const mm3_kernel *k[MM3_MAX_CANDIDATES];
    int n = MM3_MIN(kernels_of(op, device, k, MM3_MAX_CANDIDATES), MM3_MAX_CANDIDATES);
    size_t name = strcspn(choice, "/");
    for (int i = 0; i < n; i++) {
        if (strlen(k[i]->name) != name || strncmp(k[i]->name, choice, name) != 0) continue;
        out->kernel = k[i];
        out->tactic = choice[name] ? mm3_tactic_find(k[i], choice + name + 1) : &k[i]->tactics[0];
        return out->tactic != NULL;
    }
    return false;
}

void mm3_plan_bind(mm3_plan *plan, const char *device, mm3_kernels_of_fn *kernels_of, const char *what,
                   mm3_buf *warnings)
{
    char first[512] = "";
    int n_stale = 0;
    for (int i = 0; i < plan->n; i++) {
        mm3_decision *d = &plan->decision[i];
        mm3_choice c = { 0 };
        const char *why = NULL;
        d->kernel = NULL;
        d->tactic = NULL;
        if (!find_choice(mm3__op_of_key(d->key), d->choice, device, kernels_of, &c))
            why = "this mm3 has no such candidate";
        else if (!mm3_kernel_is_split(c.kernel) && strcmp(mm3_kernel_source(c.kernel), d->source) != 0)
            why = "its source is another now";
        if (!why) {
            d->kernel = c.kernel;
            d->tactic = c.tactic;
        } else if (n_stale++ == 0) {
            snprintf(first, sizeof first, "%s | %s (%s)", d->key, d->choice, why);
        }
    }
    if (n_stale == 1) mm3_buf_printf(warnings, "%s: stale, ignored: %s\n", what, first);
    if (n_stale > 1) mm3_buf_printf(warnings, "%s: stale, ignored: %s and %d more\n", what, first, n_stale - 1);
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

static void remove_m(mm3_key *key)
{
    for (int i = 0; i < key->n; i++)
        if (strcmp(key->field[i].name, "m") == 0) {
            memmove(&key->field[i], &key->field[i + 1], (size_t)(key->n - i - 1) * sizeof key->field[0]);
            key->n--;
            return;
        }
}

int mm3_plan_key(mm3_op_id op, const void *contract, bool deterministic, char *text, size_t n)
{
    mm3_key key = { .op = op };
    mm3_op_info_of(op)->key(contract, &key);
    if (deterministic) remove_m(&key);
    return mm3_key_text(&key, text, n);
}

static bool is_pinned(const mm3_pins *pins, mm3_op_id op, const void *contract, mm3_choice *choice)
{
    mm3_key key = { .op = op };
    if (!pins) return false;
    mm3_op_info_of(op)->key(contract, &key);
    return mm3_pins_match(pins, &key, choice);
}

bool mm3_part_is_pinned(const mm3_pins *pins, mm3_op_id op, const void *contract, char *text, size_t n)
{
    const mm3_op_info *info = mm3_op_info_of(op);
    mm3_part parts[MM3_MAX_PARTS];
    mm3_choice choice;
    int n_parts = pins && info->split ? info->split(contract, parts) : 0;
    for (int i = 0; i < n_parts; i++)
        if (is_pinned(pins, parts[i].op, parts[i].u.bytes, &choice)) {
            mm3_plan_key(parts[i].op, parts[i].u.bytes, false, text, n);
            return true;
        }
    return false;
}

static void choose_first(const mm3_binding *b, mm3_op_id op, mm3_choice *choice)
{
    const mm3_kernel *k[MM3_MAX_CANDIDATES];
    mm3_kernels_of_fn *kernels_of = b->kernels_of ? b->kernels_of : mm3_kernels_of;
    kernels_of(op, b->device->kind, k, MM3_MAX_CANDIDATES);
    *choice = (mm3_choice){ k[0], &k[0]->tactics[0] };
}

static bool find_split(const mm3_binding *b, mm3_op_id op, mm3_choice *choice)
{
    const mm3_kernel *k[MM3_MAX_CANDIDATES];
    mm3_kernels_of_fn *kernels_of = b->kernels_of ? b->kernels_of : mm3_kernels_of;
    int n = MM3_MIN(kernels_of(op, b->device->kind, k, MM3_MAX_CANDIDATES), MM3_MAX_CANDIDATES);
    for (int i = 0; i < n; i++)
        if (mm3_kernel_is_split(k[i])) {
            choice->kernel = k[i];
            choice->tactic = &k[i]->tactics[0];
            return true;
        }
    return false;
}

/* Whether the keys differ in their m alone; then the first one's m into *m. */
static bool same_but_m(const char *a, const char *b, int64_t *m)
{
    const char *x = strstr(a, " m="), *y = strstr(b, " m=");
    size_t n_x, n_y;
    char digits[32];
    if (!x || !y || x - a != y - b || strncmp(a, b, (size_t)(x - a)) != 0) return false;
    x += 3;
    y += 3;
    n_x = strcspn(x, " ");
    n_y = strcspn(y, " ");
    if (strcmp(x + n_x, y + n_y) != 0 || n_x >= sizeof digits) return false;
    memcpy(digits, x, n_x);
    digits[n_x] = 0;
    return mm3_parse_int(digits, 1, INT64_MAX, m);
}

/* Of decisions at larger m, the next whose candidate accepts this m; where none does, the first of the list, which
 * accepts everything. False where there is no larger one. */
static bool choose_larger(const mm3_binding *b, mm3_op_id op, const char *key, const void *contract, mm3_choice *choice)
{
    const mm3_decision *best = NULL;
    int64_t m, n, best_m = INT64_MAX;
    bool found = false;
    int i, end;
    if (!same_but_m(key, key, &m)) return false;
    mm3__plan_of_op(b->plan, op, &i, &end);
    for (; i < end; i++) {
        const mm3_decision *d = &b->plan->decision[i];
        if (!d->kernel || !same_but_m(d->key, key, &n) || n < m) continue;
        found = true;
        if (n >= best_m) continue;
        if (d->kernel->refuses && d->kernel->refuses(b->device, contract, d->tactic)) continue;
        best = d;
        best_m = n;
    }
    if (best)
        *choice = (mm3_choice){ best->kernel, best->tactic };
    else if (found)
        choose_first(b, op, choice);
    return found;
}

mm3_status mm3_choose_planned(void *user, mm3_op_id op, const void *contract, mm3_choice *choice)
{
    const mm3_binding *b = user;
    const mm3_decision *d;
    char key[MM3_MAX_KEY_TEXT], part[MM3_MAX_KEY_TEXT];
    if (is_pinned(b->pins, op, contract, choice)) return MM3_OK;
    if (mm3_part_is_pinned(b->pins, op, contract, part, sizeof part) && find_split(b, op, choice)) return MM3_OK;
    mm3_plan_key(op, contract, b->deterministic, key, sizeof key);
    d = mm3_plan_find(b->plan, key);
    if (b->round_up && (!d || !d->kernel) && choose_larger(b, op, key, contract, choice)) return MM3_OK;
    MM3_CHECK(d, MM3_ERR_UNSUPPORTED, "the plan has no decision for '%s': tune for it, or pin it", key);
    MM3_CHECK(d->kernel, MM3_ERR_UNSUPPORTED,
              "the plan's decision for '%s' is stale: this mm3 has no %s of source %s: tune again", key, d->choice,
              d->source);
    choice->kernel = d->kernel;
    choice->tactic = d->tactic;
    return MM3_OK;
}

mm3_status mm3_plan_require(const mm3_binding *binding, const mm3_stage *stages, int n)
{
    mm3_binding b = *binding;
    mm3_choice choice;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < stages[i].n; j++)
            MM3_TRY(mm3_choose_planned(&b, stages[i].op, stages[i].contract[j], &choice));
    return MM3_OK;
}

/* Both pinned to the same, or neither. */
static bool pinned_alike(const mm3_pins *pins, const mm3_stage *a, const mm3_stage *b)
{
    mm3_choice x = { 0 }, y = { 0 };
    bool p = is_pinned(pins, a->op, a->contract[0], &x), q = is_pinned(pins, b->op, b->contract[0], &y);
    return p == q && x.kernel == y.kernel && x.tactic == y.tactic;
}

mm3_status mm3_pins_check_deterministic(const mm3_pins *pins, const mm3_stage *stages, int n, const mm3_stage *like,
                                        int n_like)
{
    for (int i = 0; i < n; i++) {
        const mm3_stage *s = &stages[i];
        char key[MM3_MAX_KEY_TEXT], other[MM3_MAX_KEY_TEXT];
        mm3_choice pin;
        mm3_plan_key(s->op, s->contract[0], true, key, sizeof key);
        if (is_pinned(pins, s->op, s->contract[0], &pin))
            MM3_CHECK(pin.tactic->row_invariant, MM3_ERR_ARG,
                      "deterministic: '%s' is pinned to %s/%s, whose rows depend on each other: pin another", s->key,
                      pin.kernel->name, pin.tactic->name);
        for (int j = 0; j < n_like; j++) {
            mm3_plan_key(like[j].op, like[j].contract[0], true, other, sizeof other);
            MM3_CHECK(
                strcmp(key, other) != 0 || pinned_alike(pins, s, &like[j]), MM3_ERR_ARG,
                "deterministic needs one kernel for every m, and '%s' and '%s' are pinned differently: pin without "
                "m",
                s->key, like[j].key);
        }
    }
    return MM3_OK;
}

mm3_status mm3_binding_hash(const mm3_binding *binding, const mm3_stage *stages, int n, char hash[9])
{
    mm3_binding b = *binding;
    uint32_t h = MM3_HASH_START;
    for (int i = 0; i < n; i++) {
        char text[MM3_MAX_CHOICE_TEXT + 32], name[MM3_MAX_CHOICE_TEXT];
        mm3_choice choice;
        if (stages[i].n == 0) continue;
        MM3_TRY(mm3_choose_planned(&b, stages[i].op, stages[i].contract[0], &choice));
        mm3_choice_text(choice.kernel, choice.tactic, name, sizeof name);
        snprintf(text, sizeof text, "%s x%d %s", name, stages[i].n, mm3_kernel_source(choice.kernel));
        h = mm3__hash_text(mm3__hash_text(h, stages[i].key), text);
    }
    snprintf(hash, 9, "%08x", (unsigned)h);
    return MM3_OK;
}
