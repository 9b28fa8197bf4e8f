/* lockstep: a recorder that runs each operation twice on the same inputs, by its reference and by the recorder behind
 * it, compares the outputs, and goes on with the latter's. So a whole network is checked operation by operation, with
 * its own operands, and a rounding that went the other way does not grow into a difference. */
#ifndef MM3_TESTS_LOCKSTEP_H
#define MM3_TESTS_LOCKSTEP_H

#include "kernels/kernels.h"

typedef struct lockstep {
    mm3_recorder base;
    mm3_recorder *behind;    /* borrowed */
    int n_issued[MM3_N_OPS]; /* operations seen */
    double worst[MM3_N_OPS]; /* error of the first FP32 output, relative to the size of its terms */
    char wrong[200];         /* the first output that differs by more than rounding; "" if none does */
} lockstep;

/* Zeroes *l and puts it before `behind`. */
void lockstep_open(lockstep *l, mm3_recorder *behind);

#endif
