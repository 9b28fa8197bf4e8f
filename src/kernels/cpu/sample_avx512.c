/* sample, avx512: 16 lanes of AVX-512. */
#define LANES 16
#include "kernels/cpu/sample_body.h"
#include "kernels/cpu/variant.h"

MM3__VARIANT(sample, MM3_OP_SAMPLE, avx512, MM3_CPU_AVX512, scratch)
