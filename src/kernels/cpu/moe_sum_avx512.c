/* moe_sum, avx512: 16 lanes of AVX-512. */
#define LANES 16
#include "kernels/cpu/moe_sum_body.h"
#include "kernels/cpu/variant.h"

MM3__VARIANT(moe_sum, MM3_OP_MOE_SUM, avx512, MM3_CPU_AVX512, NULL)
