/* vec_portable: vec.h's vector in plain C; its includer says what each does. */
#ifndef KERNELS_CPU_SIMD_VEC_PORTABLE_H
#define KERNELS_CPU_SIMD_VEC_PORTABLE_H

enum { VL = 4 };
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
#define vf_add(a, b) ((a) + (b))
#define vf_sub(a, b) ((a) - (b))
#define vf_mul(a, b) ((a) * (b))
#define vf_div(a, b) ((a) / (b))
#define vf_fma(a, b, c) ((a) * (b) + (c))
VF_INLINE vf vf_set1(float x)
{
    return (vf){x, x, x, x};
}
VF_INLINE vf vf_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
VF_INLINE void vf_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}
VF_INLINE vf vf_select(vi m, vf a, vf b)
{
    return (vf)(((vi)a & m) | ((vi)b & ~m));
}
VF_INLINE vf vf_max(vf a, vf b)
{
    return vf_select((vi)(a > b), a, b);
}
VF_INLINE vf vf_min(vf a, vf b)
{
    return vf_select((vi)(a < b), a, b);
}
VF_INLINE vf vf_round(vf a)
{
    /* 1.5 * 2^23: adding it drops the fraction bits, round to nearest even. |a| < 2^22 here. */
    vf magic = vf_set1(12582912.0f);
    a = vf_max(a, vf_set1(-4000.0f));
    return (a + magic) - magic;
}
VF_INLINE vf vf_below(vf a, vf b, int n)
{
    vi lane = {0, 1, 2, 3}, lim = {n, n, n, n};
    return vf_select((vi)(lane < lim), a, b);
}
VF_INLINE vf vf_scale2(vf p, vf n, vf x)
{
    vi dead = (vi)(x < vf_set1(-126.0f));
    vi e = __builtin_convertvector(vf_max(n, vf_set1(-126.0f)), vi);
    vi bias = {127, 127, 127, 127};
    return (vf)(((vi)(p * (vf)((e + bias) << 23))) & ~dead);
}
VF_INLINE float vf_hmax(vf v)
{
    float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
}

#endif
