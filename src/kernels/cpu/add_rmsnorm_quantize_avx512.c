/* add_rmsnorm_quantize, avx512: the common body (cpu.h), compiled for it: the same bits as native. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/variant.h"

static void run(const mm3_call *call, int i_thread, int n_threads)
{
    mm3__add_rmsnorm_quantize_part(call->op, i_thread, n_threads);
}

MM3__VARIANT(add_rmsnorm_quantize, MM3_OP_ADD_RMSNORM_QUANTIZE, avx512, MM3_CPU_AVX512, NULL)
