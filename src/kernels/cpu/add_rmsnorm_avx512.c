/* add_rmsnorm, avx512: the shared body, compiled for it. */
#include "kernels/cpu/add_rmsnorm_body.h"
#include "kernels/cpu/variant.h"

MM3__VARIANT(add_rmsnorm, MM3_OP_ADD_RMSNORM, avx512, MM3_CPU_AVX512)
