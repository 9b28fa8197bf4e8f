/* Every operation, in the order of a decode step: OP(name, NAME). No include guard: included with OP defined.
 * name is also its file in ops/, its struct mm3_<name>, and its descriptor mm3__<name>_info. */
OP(embed, EMBED)
OP(rope_angles, ROPE_ANGLES)
OP(add_rmsnorm, ADD_RMSNORM)
OP(quantize, QUANTIZE)
OP(add_rmsnorm_quantize, ADD_RMSNORM_QUANTIZE) /* chain: add_rmsnorm, quantize */
OP(linear, LINEAR)
OP(qk_norm_rope, QK_NORM_ROPE)
OP(index_select, INDEX_SELECT)
OP(attention, ATTENTION)
OP(swiglu, SWIGLU)
OP(swiglu_quantize, SWIGLU_QUANTIZE) /* chain: swiglu, quantize */
OP(router, ROUTER)
OP(moe_linear, MOE_LINEAR)
OP(moe_sum, MOE_SUM)
OP(gather, GATHER)
OP(sample, SAMPLE)
