/* vec_neon: vec.h's vector on 64-bit Arm; its includer says what each does. */
#ifndef KERNELS_CPU_SIMD_VEC_NEON_H
#define KERNELS_CPU_SIMD_VEC_NEON_H

#include <arm_neon.h>
enum { VL = 4 };
typedef float32x4_t vf;
#define vf_set1(x) vdupq_n_f32(x)
#define vf_load(p) vld1q_f32(p)
#define vf_store(p, v) vst1q_f32(p, v)
#define vf_add(a, b) vaddq_f32(a, b)
#define vf_sub(a, b) vsubq_f32(a, b)
#define vf_mul(a, b) vmulq_f32(a, b)
#define vf_div(a, b) vdivq_f32(a, b)
#define vf_fma(a, b, c) vfmaq_f32(c, a, b)
#define vf_round(a) vrndnq_f32(a)
/* As on x86: b where one of them is not a number. */
#define vf_max(a, b) vbslq_f32(vcgtq_f32(a, b), a, b)
#define vf_min(a, b) vbslq_f32(vcltq_f32(a, b), a, b)
VF_INLINE vf vf_below(vf a, vf b, int n)
{
    const int32x4_t lane = {0, 1, 2, 3};
    return vbslq_f32(vcltq_s32(lane, vdupq_n_s32(n)), a, b);
}
VF_INLINE vf vf_scale2(vf p, vf n, vf x)
{
    const uint32x4_t dead = vcltq_f32(x, vf_set1(-126.0f));
    const int32x4_t e = vcvtq_s32_f32(vf_max(n, vf_set1(-126.0f)));
    const vf two_n = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(e, vdupq_n_s32(127)), 23));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(vmulq_f32(p, two_n)), dead));
}
VF_INLINE float vf_hmax(vf v)
{
    return vmaxvq_f32(v);
}

#endif
