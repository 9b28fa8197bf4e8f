/* qk_norm_rope, avx512: 16 lanes of AVX-512. */
#define LANES 16
#include "kernels/cpu/qk_norm_rope_body.h"
#include "kernels/cpu/variant.h"

MM3__VARIANT(qk_norm_rope, MM3_OP_QK_NORM_ROPE, avx512, MM3_CPU_AVX512, scratch)
