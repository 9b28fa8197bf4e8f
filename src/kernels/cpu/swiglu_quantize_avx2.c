/* swiglu_quantize, avx2: the shared body, compiled for it. */
#include "kernels/cpu/swiglu_quantize_body.h"
#include "kernels/cpu/variant.h"

MM3__VARIANT(swiglu_quantize, MM3_OP_SWIGLU_QUANTIZE, avx2, MM3_CPU_AVX2)
