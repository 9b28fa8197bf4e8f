/* From an operation and a choice to calls: a candidate's phases, or those of a split chain's parts. */
#include "kernels/kernels.h"

mm3_status mm3_choose_native(void *user, mm3_op_id op, const void *contract, mm3_choice *choice)
{
    const mm3_pins *pins = user;
    if (pins) {
        mm3_key key = { .op = op };
        mm3_op_info_of(op)->key(contract, &key);
        if (mm3_pins_match(pins, &key, choice)) return MM3_OK;
    }
    choice->kernel = mm3_kernel_find(op, "cpu", NULL); /* the first of the list: native, or split */
    choice->tactic = &choice->kernel->tactics[0];
    return MM3_OK;
}

static mm3_status append(const mm3_device_info *device, mm3_op_id op, const void *contract, const mm3_choice *choice,
                         size_t *need, mm3_bound *bound, int *n_bound)
{
    const mm3_kernel *k = choice->kernel;
    const char *why = k->refuses ? k->refuses(device, contract, choice->tactic) : NULL;
    if (why) {
        mm3_key key = { .op = op };
        char text[256];
        mm3_op_info_of(op)->key(contract, &key);
        mm3_key_text(&key, text, sizeof text);
        return mm3_fail(MM3_ERR_UNSUPPORTED, MM3_HERE, "candidate %s/%s refuses %s: %s", k->name, choice->tactic->name,
                        text, why);
    }
    if (k->scratch) *need = MM3_MAX(*need, k->scratch(contract, choice->tactic, device->n_threads));
    for (int i = 0; k->phase[i]; i++) {
        mm3_bound *b = &bound[(*n_bound)++];
        b->op = op;
        b->call = (mm3_call){ .run = k->phase[i], .op = contract, .tactic = choice->tactic, .waits = true };
    }
    return MM3_OK;
}

mm3_status mm3_bind(const mm3_device_info *device, mm3_op_id op, const void *contract, mm3_choose *choose, void *user,
                    mm3_part *parts, size_t *need, mm3_bound *bound, int *n_bound)
{
    mm3_choice choice = { 0 };
    int n_parts;
    *need = 0;
    *n_bound = 0;
    MM3_TRY(choose(user, op, contract, &choice));
    if (!mm3_kernel_is_split(choice.kernel)) return append(device, op, contract, &choice, need, bound, n_bound);
    n_parts = mm3_op_info_of(op)->split(contract, parts);
    for (int i = 0; i < n_parts; i++) {
        MM3_TRY(choose(user, parts[i].op, parts[i].u.bytes, &choice));
        MM3_TRY(append(device, parts[i].op, parts[i].u.bytes, &choice, need, bound, n_bound));
    }
    return MM3_OK;
}
