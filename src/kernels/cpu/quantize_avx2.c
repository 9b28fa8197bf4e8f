/* quantize, avx2: the shared body, compiled for it. */
#include "kernels/cpu/quantize_body.h"
#include "kernels/cpu/variant.h"

MM3__VARIANT(quantize, MM3_OP_QUANTIZE, avx2, MM3_CPU_AVX2)
