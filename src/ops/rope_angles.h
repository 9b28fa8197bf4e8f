/* rope_angles: the cosines and sines of a step's positions, once for all layers. */
#ifndef MM3_OPS_ROPE_ANGLES_H
#define MM3_OPS_ROPE_ANGLES_H

#include "ops/types.h"

/* cos[i, j], sin[i, j] of float(position[i]) * inv_freq[j], the product rounded to FP32
 *
 *   position  [m]       >= 0; a padded row's is treated as 0
 *   slot      [m]
 *   inv_freq  [32]      1 / float(theta^(2j/64)), each step rounded to FP32 as the reference implementation does
 *   cos, sin  [m, 32]
 *   rounds    the angle to FP32 (part of the model), then the result
 *   trap      at position 10^6 an angle in another precision is another angle
 *   proof     tests/kernels/test_elementwise.c, rope_angles; trap: test_check_faults.c, angle_in_double */
typedef struct mm3_rope_angles {
    int m;
    const int32_t *position, *slot;
    const float *inv_freq;
    float *cos, *sin;
} mm3_rope_angles;

#endif
