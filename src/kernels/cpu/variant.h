/* variant: what candidates that are one source for several instruction sets repeat. Included after a static run(). */
#ifndef MM3_KERNELS_CPU_VARIANT_H
#define MM3_KERNELS_CPU_VARIANT_H

#include "kernels/kernels.h"

/* The candidate mm3__<op>_cpu_<isa>: one tactic, rows on their own, refused where the processor lacks the feature. */
#define MM3__VARIANT(op_name, id, isa, feature)                                                         \
    static const char *refuses(const mm3_device_info *device, const void *op, const mm3_tactic *tactic) \
    {                                                                                                   \
        (void)op;                                                                                       \
        (void)tactic;                                                                                   \
        return device->features & (feature) ? NULL : "needs " #isa;                                     \
    }                                                                                                   \
    static const mm3_tactic tactics[] = { { .name = "default", .row_invariant = true } };               \
    const mm3_kernel mm3__##op_name##_cpu_##isa = {                                                     \
        .op = (id),                                                                                     \
        .device = "cpu",                                                                                \
        .name = #isa,                                                                                   \
        .refuses = refuses,                                                                             \
        .tactics = tactics,                                                                             \
        .n_tactics = MM3_COUNT(tactics),                                                                \
        .phase = { run },                                                                               \
    };

#endif
