/* add_rmsnorm, avx2: the shared body, compiled for it. */
#include "kernels/cpu/add_rmsnorm_body.h"
#include "kernels/cpu/variant.h"

MM3__VARIANT(add_rmsnorm, MM3_OP_ADD_RMSNORM, avx2, MM3_CPU_AVX2)
