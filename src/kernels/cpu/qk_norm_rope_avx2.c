/* qk_norm_rope, avx2: 8 lanes of AVX2. */
#define LANES 8
#include "kernels/cpu/qk_norm_rope_body.h"
#include "kernels/cpu/variant.h"

MM3__VARIANT(qk_norm_rope, MM3_OP_QK_NORM_ROPE, avx2, MM3_CPU_AVX2, scratch)
