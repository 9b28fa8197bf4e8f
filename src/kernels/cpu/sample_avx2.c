/* sample, avx2: 8 lanes of AVX2. */
#define LANES 8
#include "kernels/cpu/sample_body.h"
#include "kernels/cpu/variant.h"

MM3__VARIANT(sample, MM3_OP_SAMPLE, avx2, MM3_CPU_AVX2, scratch)
