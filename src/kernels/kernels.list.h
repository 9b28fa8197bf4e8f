/* Every candidate: KERNEL(op, device, name), native first (it accepts everything: the fallback and the yardstick),
 * then challengers. A tie goes to the earlier line, so that the one expected to be fastest stands first: the newest
 * instructions; but fma512 is behind fma256 where weight rows are few. On a busy machine differences shrink, seldom
 * turn round; in this order a tie changes nothing.
 * No include guard: included with KERNEL defined.
 * A line names the constant mm3__<op>_<device>_<name>, defined in kernels/<device>/<op>_<name>.c. */
KERNEL(embed, cpu, native)
KERNEL(rope_angles, cpu, native)
KERNEL(add_rmsnorm, cpu, native)
#if defined(__x86_64__)
KERNEL(add_rmsnorm, cpu, avx512)
KERNEL(add_rmsnorm, cpu, avx2)
#endif
KERNEL(quantize, cpu, native)
#if defined(__x86_64__)
KERNEL(quantize, cpu, avx512)
KERNEL(quantize, cpu, avx2)
#endif
KERNEL(add_rmsnorm_quantize, cpu, split)
#if defined(__x86_64__)
KERNEL(add_rmsnorm_quantize, cpu, avx512)
KERNEL(add_rmsnorm_quantize, cpu, avx2)
#endif
KERNEL(linear, cpu, native)
#if defined(__x86_64__)
KERNEL(linear, cpu, amx)
KERNEL(linear, cpu, avx512)
KERNEL(linear, cpu, avx2)
KERNEL(linear, cpu, fma256)
KERNEL(linear, cpu, fma512)
#endif
KERNEL(qk_norm_rope, cpu, native)
#if defined(__x86_64__)
KERNEL(qk_norm_rope, cpu, avx512)
KERNEL(qk_norm_rope, cpu, avx2)
#endif
KERNEL(index_select, cpu, native)
#if defined(__x86_64__)
KERNEL(index_select, cpu, avx512)
KERNEL(index_select, cpu, avx2)
#endif
KERNEL(attention, cpu, native)
#if defined(__x86_64__)
KERNEL(attention, cpu, avx512)
KERNEL(attention, cpu, avx2)
#endif
KERNEL(swiglu, cpu, native)
#if defined(__x86_64__)
KERNEL(swiglu, cpu, avx512)
KERNEL(swiglu, cpu, avx2)
#endif
KERNEL(swiglu_quantize, cpu, split)
#if defined(__x86_64__)
KERNEL(swiglu_quantize, cpu, avx512)
KERNEL(swiglu_quantize, cpu, avx2)
#endif
KERNEL(router, cpu, native)
KERNEL(moe_linear, cpu, native)
#if defined(__x86_64__)
KERNEL(moe_linear, cpu, amx)
KERNEL(moe_linear, cpu, avx512)
KERNEL(moe_linear, cpu, avx2)
#endif
KERNEL(moe_sum, cpu, native)
#if defined(__x86_64__)
KERNEL(moe_sum, cpu, avx512)
KERNEL(moe_sum, cpu, avx2)
#endif
KERNEL(gather, cpu, native)
KERNEL(sample, cpu, native)
#if defined(__x86_64__)
KERNEL(sample, cpu, avx512)
KERNEL(sample, cpu, avx2)
#endif
