/* planted: candidates for tests of the tuner (wrong, crashing, hanging, hungry, refusing, equal, faster), and a registry
 * that offers them. All but `kills`, `hangs`, `refusing` and `huge` compute a right result first, by the reference or a
 * plain product, on the first thread alone; what they are slow by is processor time of that thread, so that a machine
 * that does other things too does not disturb.
 *
 *   linear                   slow, same 300 us; fast 100 us; very_slow 5 ms; large (tactics mixing and apart, refuses
 *                            m = 1; 100 us); hungry (writes and reads its scratch)
 *   linear, timed            probing (300 us; planted_probed), alone_fast (slow after `quantizer` has run)
 *   linear, wrong            wrong, skips_a_row, writes_outside, changes_input, stale (repeats its first result)
 *   linear, not to be run    kills and hangs (the process), refusing, huge (wants half of all memory)
 *   quantize                 quantizer
 *   swiglu, swiglu_quantize  swiglu_slow 200 us, fused
 *   add_rmsnorm              norm_slow 100 us, norm (planted_largest_x)
 *   qk_norm_rope             rope_slow 300 us, rope, rope_wrong (one value in the pages) */
#ifndef MM3_TESTS_PLANTED_H
#define MM3_TESTS_PLANTED_H

#include "kernels/kernels.h"

/* The candidate of this name; a failed test if there is none. */
const mm3_kernel *planted(const char *name);
/* From now on planted_kernels_of offers these, the first the native. As printf: names, apart by one space. `stale` has
 * forgotten what it computed. */
void plant(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A mm3_kernels_of_fn: what is planted for an operation, after `split` where it is a chain; the real candidates where
 * nothing is. */
int planted_kernels_of(mm3_op_id op, const char *device, const mm3_kernel **out, int max);

/* Seconds of processor time of the calling thread; what launches of planted candidates are timed by. */
double planted_processor_time(void);
/* Use up as much of it. */
void planted_spin(double us);
/* How long the weights' lines took to come to `probing`, beside how long to come again: the median of its launches
 * since the last call. */
double planted_probed(void);
/* The largest magnitude that `norm` has left in the residual stream. */
float planted_largest_x(void);

#endif
