/* swiglu, avx512: the shared body, compiled for it. */
#include "kernels/cpu/swiglu_body.h"
#include "kernels/cpu/variant.h"

MM3__VARIANT(swiglu, MM3_OP_SWIGLU, avx512, MM3_CPU_AVX512)
