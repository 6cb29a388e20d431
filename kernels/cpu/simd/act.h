/* act: the curves that values go through: activations of gates, bounds of scores and logits. On
 * vectors of vec.h, which the includer has. Thread: any. */
#ifndef KERNELS_CPU_SIMD_ACT_H
#define KERNELS_CPU_SIMD_ACT_H

#include "kernels/cpu/simd/vec.h"

#define LOG2_E 1.44269504088896341f
#define LN_2 0.693147180559945309f

VF_INLINE vf silu_mul(vf g, vf u)
{
    vf e = vf_exp(vf_sub(vf_set1(0.0f), g));
    return vf_mul(vf_div(g, vf_add(vf_set1(1.0f), e)), u);
}

/* 0.5 g (1 + tanh(z)) = g / (1 + e^-2z), z = sqrt(2 / pi) (g + 0.044715 g^3). */
VF_INLINE vf gelu_mul(vf g, vf u)
{
    const vf cubic = vf_fma(vf_mul(g, g), vf_set1(0.044715f), vf_set1(1.0f));
    vf e = vf_exp(vf_mul(vf_mul(g, cubic), vf_set1(-1.5957691216057308f)));
    return vf_mul(vf_div(g, vf_add(vf_set1(1.0f), e)), u);
}

/* See enum kn_act. Of two numbers the bound comes first, so that NaN stays. */
VF_INLINE vf silu_clamped_mul(vf g, vf u)
{
    const vf most = vf_set1(7.0f), least = vf_set1(-7.0f);
    g = vf_min(most, g);
    u = vf_max(least, vf_min(most, u));
    const vf e = vf_exp(vf_mul(g, vf_set1(-1.702f)));
    return vf_mul(vf_div(g, vf_add(vf_set1(1.0f), e)), vf_add(u, vf_set1(1.0f)));
}

/* cap * tanh(x / cap) = cap - 2 cap / (1 + e^(2 x / cap)), where the exponent is x * by in powers
 * of two. Off by 1e-7 of cap; NaN stays NaN. */
VF_INLINE vf softcapped(vf x, float cap, float by)
{
    const vf e = vf_exp2(vf_min(vf_set1(126.0f), vf_mul(x, vf_set1(by))));
    return vf_sub(vf_set1(cap), vf_div(vf_set1(2 * cap), vf_add(vf_set1(1.0f), e)));
}

#endif
