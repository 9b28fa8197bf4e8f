/* From an operation and a choice to calls: a candidate's phases, or those of a split chain's parts. */
#include "kernels/kernels.h"

static mm3_status append(const mm3_device_info *device, mm3_op_id op, const void *contract, const mm3_choice *choice,
                         void *scratch, mm3_call *calls, int *n_calls)
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
    for (int i = 0; k->phase[i]; i++)
        calls[(*n_calls)++] = (mm3_call){
            .run = k->phase[i], .op = contract, .tactic = choice->tactic, .scratch = scratch, .waits = true
        };
    return MM3_OK;
}

static size_t scratch_of(const mm3_choice *c, const void *contract, int n_threads)
{
    return c->kernel->scratch ? c->kernel->scratch(contract, c->tactic, n_threads) : 0;
}

mm3_status mm3_bind(const mm3_device_info *device, mm3_op_id op, const void *contract, mm3_choose *choose, void *user,
                    mm3_part *parts, void *scratch, size_t n_scratch, size_t *need, mm3_call *calls, int *n_calls)
{
    mm3_choice choice = { 0 }, part_choice[MM3_MAX_PARTS];
    int n_parts;
    *need = 0;
    MM3_TRY(choose(user, op, contract, &choice));
    if (!mm3_kernel_is_split(choice.kernel)) {
        *need = scratch_of(&choice, contract, device->n_threads);
        return *need > n_scratch ? MM3_OK : append(device, op, contract, &choice, scratch, calls, n_calls);
    }
    n_parts = mm3_op_info_of(op)->split(contract, parts);
    for (int i = 0; i < n_parts; i++) {
        size_t want;
        MM3_TRY(choose(user, parts[i].op, parts[i].u.bytes, &part_choice[i]));
        want = scratch_of(&part_choice[i], parts[i].u.bytes, device->n_threads);
        *need = MM3_MAX(*need, want); /* parts run one after the other */
    }
    if (*need > n_scratch) return MM3_OK;
    for (int i = 0; i < n_parts; i++)
        MM3_TRY(append(device, parts[i].op, parts[i].u.bytes, &part_choice[i], scratch, calls, n_calls));
    return MM3_OK;
}
