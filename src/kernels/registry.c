/* The table of candidates, from the list. */
#include <string.h>

#include "kernels/kernels.h"

#define KERNEL(op, device, name) extern const mm3_kernel mm3__##op##_##device##_##name;
#include "kernels/kernels.list.h"
#undef KERNEL

static const mm3_kernel *const table[] = {
#define KERNEL(op, device, name) &mm3__##op##_##device##_##name,
#include "kernels/kernels.list.h"
#undef KERNEL
};

int mm3_kernels_of(mm3_op_id op, const char *device, const mm3_kernel **out, int max)
{
    int n = 0;
    for (int i = 0; i < MM3_COUNT(table); i++) {
        if (table[i]->op != op || strcmp(table[i]->device, device) != 0) continue;
        if (n < max) out[n] = table[i];
        n++;
    }
    return n;
}

const mm3_kernel *mm3_kernel_find(mm3_op_id op, const char *device, const char *name)
{
    for (int i = 0; i < MM3_COUNT(table); i++)
        if (table[i]->op == op && strcmp(table[i]->device, device) == 0 && (!name || strcmp(table[i]->name, name) == 0))
            return table[i];
    return NULL;
}

const mm3_tactic *mm3_tactic_find(const mm3_kernel *kernel, const char *name)
{
    for (int i = 0; i < kernel->n_tactics; i++)
        if (strcmp(kernel->tactics[i].name, name) == 0) return &kernel->tactics[i];
    return NULL;
}
