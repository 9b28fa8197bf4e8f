/* moe_sum, avx2: 8 lanes of AVX2. */
#define LANES 8
#include "kernels/cpu/moe_sum_body.h"
#include "kernels/cpu/variant.h"

MM3__VARIANT(moe_sum, MM3_OP_MOE_SUM, avx2, MM3_CPU_AVX2, NULL)
