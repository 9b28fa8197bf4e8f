/* swiglu, avx2: the common body (cpu.h), compiled for it: the same bits as native. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/variant.h"

static void run(const mm3_call *call, int i_thread, int n_threads) { mm3__swiglu_part(call->op, i_thread, n_threads); }

MM3__VARIANT(swiglu, MM3_OP_SWIGLU, avx2, MM3_CPU_AVX2, NULL)
