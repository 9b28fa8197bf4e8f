/* Every candidate: KERNEL(op, device, name), native first (it accepts everything: the fallback and the yardstick),
 * then challengers; a tie goes to the earlier line. No include guard: included with KERNEL defined.
 * A line names the constant mm3__<op>_<device>_<name>, defined in kernels/<device>/<op>_<name>.c. */
KERNEL(embed, cpu, native)
KERNEL(rope_angles, cpu, native)
KERNEL(add_rmsnorm, cpu, native)
#if defined(__x86_64__)
KERNEL(add_rmsnorm, cpu, avx2)
KERNEL(add_rmsnorm, cpu, avx512)
#endif
KERNEL(quantize, cpu, native)
#if defined(__x86_64__)
KERNEL(quantize, cpu, avx2)
KERNEL(quantize, cpu, avx512)
#endif
KERNEL(add_rmsnorm_quantize, cpu, split)
#if defined(__x86_64__)
KERNEL(add_rmsnorm_quantize, cpu, avx2)
KERNEL(add_rmsnorm_quantize, cpu, avx512)
#endif
KERNEL(linear, cpu, native)
#if defined(__x86_64__)
KERNEL(linear, cpu, avx512)
KERNEL(linear, cpu, amx)
#endif
KERNEL(qk_norm_rope, cpu, native)
KERNEL(index_select, cpu, native)
KERNEL(attention, cpu, native)
KERNEL(swiglu, cpu, native)
#if defined(__x86_64__)
KERNEL(swiglu, cpu, avx2)
KERNEL(swiglu, cpu, avx512)
#endif
KERNEL(swiglu_quantize, cpu, split)
#if defined(__x86_64__)
KERNEL(swiglu_quantize, cpu, avx2)
KERNEL(swiglu_quantize, cpu, avx512)
#endif
KERNEL(router, cpu, native)
KERNEL(moe_linear, cpu, native)
#if defined(__x86_64__)
KERNEL(moe_linear, cpu, avx512)
KERNEL(moe_linear, cpu, amx)
#endif
KERNEL(moe_sum, cpu, native)
KERNEL(gather, cpu, native)
KERNEL(sample, cpu, native)
