/* add_rmsnorm_quantize, avx512: the shared body, compiled for it. */
#include "kernels/cpu/add_rmsnorm_quantize_body.h"
#include "kernels/cpu/variant.h"

MM3__VARIANT(add_rmsnorm_quantize, MM3_OP_ADD_RMSNORM_QUANTIZE, avx512, MM3_CPU_AVX512)
