/* Row kernels of one instruction set: norm, activation, rotation, conversions, distances.
 *
 * Memory-bound or small next to the GEMMs, so they are plain loops over vectors with a masked tail;
 * a value's arithmetic depends on its column alone. The file ends with the table of the set. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/act.h"
#include "kernels/cpu/simd/table.h"
#include "kernels/cpu/simd/vec_load.h"

/* A part of a row: whole vectors, and what is left of them. */
VF_INLINE vf part(const float *x, size_t n)
{
    return n >= VL ? vf_load(x) : vf_loadn(x, n);
}

VF_INLINE void put_part(float *x, vf v, size_t n)
{
    if (n >= VL)
        vf_store(x, v);
    else
        vf_storen(x, v, n);
}

enum { ROWS_AHEAD = 1024 }; /* floats, chosen; rows follow one another, and come from beyond L2 */

/* 1 / rms(x) */
VF_INLINE vf inverse_rms(const float *x, size_t D, float eps)
{
    vf s[4] = {vf_set1(0), vf_set1(0), vf_set1(0), vf_set1(0)};
    size_t i = 0;
    for (; i + 4 * VL <= D; i += 4 * VL)
        for (int v = 0; v < 4; v++) {
            vf a = vf_load(x + i + v * VL);
            __builtin_prefetch(x + i + v * VL + ROWS_AHEAD);
            s[v] = vf_fma(a, a, s[v]);
        }
    for (; i < D; i += VL) {
        vf a = part(x + i, D - i);
        s[0] = vf_fma(a, a, s[0]);
    }
    float sum = vf_hsum(vf_add(vf_add(s[0], s[1]), vf_add(s[2], s[3])));
    return vf_set1(1.0f / sqrtf(sum / (float)D + eps));
}

static void rmsnorm(const float *x, size_t D, const float *w, float eps, float *out)
{
    const vf inv = inverse_rms(x, D, eps);
    for (size_t i = 0; i < D; i += VL)
        put_part(out + i, vf_mul(vf_mul(part(x + i, D - i), inv), part(w + i, D - i)), D - i);
}

/* The variance is that of the differences, a pass of its own: x^2 - mean^2 cancels. */
static void layernorm(const float *x, size_t D, const float *w, const float *b, float eps,
                      float *out)
{
    vf s = vf_set1(0), q = vf_set1(0);
    for (size_t i = 0; i < D; i += VL)
        s = vf_add(s, part(x + i, D - i));
    const vf mean = vf_set1(vf_hsum(s) / (float)D);
    for (size_t i = 0; i < D; i += VL) {
        vf d = vf_sub(part(x + i, D - i), mean);
        if (D - i < VL) d = vf_below(d, vf_set1(0), (int)(D - i));
        q = vf_fma(d, d, q);
    }
    const vf inv = vf_set1(1.0f / sqrtf(vf_hsum(q) / (float)D + eps));
    for (size_t i = 0; i < D; i += VL) {
        vf v = vf_mul(vf_sub(part(x + i, D - i), mean), inv);
        v = vf_mul(v, part(w + i, D - i));
        put_part(out + i, b ? vf_add(v, part(b + i, D - i)) : v, D - i);
    }
}

/* x * Phi(x) = max(x, 0) - |x| * Q(|x|). Q, the upper tail, by Abramowitz and Stegun 7.1.26 for
 * erfc(|x| / sqrt 2) / 2: at most 7.5e-8 from it. */
VF_INLINE vf gelu_of(vf x)
{
    const vf zero = vf_set1(0.0f), a = vf_max(x, vf_sub(zero, x));
    const vf z = vf_mul(a, vf_set1(0.70710678118654752f));
    const vf t = vf_div(vf_set1(1.0f), vf_fma(z, vf_set1(0.3275911f), vf_set1(1.0f)));
    vf p = vf_set1(0.5f * 1.061405429f);
    p = vf_fma(p, t, vf_set1(0.5f * -1.453152027f));
    p = vf_fma(p, t, vf_set1(0.5f * 1.421413741f));
    p = vf_fma(p, t, vf_set1(0.5f * -0.284496736f));
    p = vf_fma(p, t, vf_set1(0.5f * 0.254829592f));
    const vf tail = vf_mul(vf_mul(p, t), vf_exp(vf_sub(zero, vf_mul(z, z))));
    return vf_sub(vf_max(x, zero), vf_mul(a, tail));
}

static void gelu(float *x, size_t n)
{
    for (size_t i = 0; i < n; i += VL)
        put_part(x + i, gelu_of(part(x + i, n - i)), n - i);
}

static void rmsnorm_add(const float *x, size_t D, const float *w, float eps, float *out)
{
    const vf inv = inverse_rms(x, D, eps);
    for (size_t i = 0; i < D; i += VL) {
        const size_t n = D - i < VL ? D - i : VL;
        const vf y = vf_mul(vf_mul(vf_loadn(x + i, n), inv), vf_loadn(w + i, n));
        vf_storen(out + i, vf_add(vf_loadn(out + i, n), y), n);
    }
}

VF_INLINE void glu(vf (*act)(vf g, vf u), const float *gate, const float *up, size_t F, float *out)
{
    size_t i = 0;
    for (; i + VL <= F; i += VL)
        vf_store(out + i, act(vf_load(gate + i), vf_load(up + i)));
    if (i < F) vf_storen(out + i, act(vf_loadn(gate + i, F - i), vf_loadn(up + i, F - i)), F - i);
}

static void swiglu(const float *gate, const float *up, size_t F, float *out)
{
    glu(silu_mul, gate, up, F, out);
}

static void geglu_tanh(const float *gate, const float *up, size_t F, float *out)
{
    glu(gelu_mul, gate, up, F, out);
}

VF_INLINE vf gelu_erf_mul(vf g, vf u)
{
    return vf_mul(gelu_of(g), u);
}

static void geglu(const float *gate, const float *up, size_t F, float *out)
{
    glu(gelu_erf_mul, gate, up, F, out);
}

static void swiglu_clamped(const float *gate, const float *up, size_t F, float *out)
{
    glu(silu_clamped_mul, gate, up, F, out);
}

static void softcap(float *x, size_t n, float cap)
{
    for (size_t i = 0; i < n; i += VL) {
        const size_t w = n - i < VL ? n - i : VL;
        vf_storen(x + i, softcapped(vf_loadn(x + i, w), cap, 2 * LOG2_E / cap), w);
    }
}

VF_INLINE void rotate(vf *a, vf *b, vf c, vf s, vf scale)
{
    vf x = *a, y = *b;
    *a = vf_mul(vf_sub(vf_mul(x, c), vf_mul(y, s)), scale);
    *b = vf_mul(vf_add(vf_mul(y, c), vf_mul(x, s)), scale);
}

static void rope(float *x, size_t half, const float *cos, const float *sin, float mscale)
{
    vf scale = vf_set1(mscale);
    size_t i = 0;
    for (; i + VL <= half; i += VL) {
        vf a = vf_load(x + i), b = vf_load(x + half + i);
        rotate(&a, &b, vf_load(cos + i), vf_load(sin + i), scale);
        vf_store(x + i, a);
        vf_store(x + half + i, b);
    }
    if (i < half) {
        size_t n = half - i;
        vf a = vf_loadn(x + i, n), b = vf_loadn(x + half + i, n);
        rotate(&a, &b, vf_loadn(cos + i, n), vf_loadn(sin + i, n), scale);
        vf_storen(x + i, a, n);
        vf_storen(x + half + i, b, n);
    }
}

static float sqdist(const float *a, const float *b, size_t n)
{
    vf s[2] = {vf_set1(0), vf_set1(0)};
    size_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL)
        for (int v = 0; v < 2; v++) {
            vf d = vf_sub(vf_load(a + i + v * VL), vf_load(b + i + v * VL));
            s[v] = vf_fma(d, d, s[v]);
        }
    for (; i < n; i += VL) {
        size_t w = n - i < VL ? n - i : VL;
        vf d = w == VL ? vf_sub(vf_load(a + i), vf_load(b + i))
                       : vf_sub(vf_loadn(a + i, w), vf_loadn(b + i, w));
        s[0] = vf_fma(d, d, s[0]);
    }
    return vf_hsum(vf_add(s[0], s[1]));
}

/* f32 bits -> bf16, round to nearest even; a NaN stays a (quiet) NaN. */
static void encode_bf16(const float *x, size_t n, uint16_t *out)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, x + i, 4);
        uint32_t r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
        out[i] = (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : r);
    }
}

static void decode_bf16(const uint16_t *x, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u = (uint32_t)x[i] << 16;
        memcpy(out + i, &u, 4);
    }
}

/* One value, by integer arithmetic; the vector paths below give the same bits. */
static uint16_t f16_from_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t sign = (u >> 16) & 0x8000u, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (mag >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to 65536 or more */
    if (mag < 0x33000000u) return (uint16_t)sign;              /* below half of the least */
    if (mag < 0x38800000u) {                                   /* subnormal in f16 */
        uint32_t m = (mag & 0x7fffffu) | 0x800000u, shift = 126u - (mag >> 23);
        uint32_t q = m >> shift, rest = m & ((1u << shift) - 1u), half = 1u << (shift - 1u);
        q += rest > half || (rest == half && (q & 1u));
        return (uint16_t)(sign | q);
    }
    uint32_t r = mag - 0x38000000u;
    r = (r + 0xfffu + ((r >> 13) & 1u)) >> 13;
    return (uint16_t)(sign | r);
}

static int encode_f16(const float *x, size_t n, uint16_t *out)
{
    size_t i = 0;
    unsigned bad = 0;
#if KN_SIMD >= 256
    __m128i inf = _mm_set1_epi16(0x7c00);
    __m128i any = _mm_setzero_si128();
    for (; i + 8 <= n; i += 8) {
        __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
        any = _mm_or_si128(any, _mm_cmpeq_epi16(_mm_and_si128(h, inf), inf));
        _mm_storeu_si128((__m128i *)(void *)(out + i), h);
    }
    bad = (unsigned)_mm_movemask_epi8(any);
#elif KN_SIMD == 128
    const uint16x4_t inf = vdup_n_u16(0x7c00);
    uint16x4_t any = vdup_n_u16(0);
    for (; i + 4 <= n; i += 4) {
        const uint16x4_t h = vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i)));
        any = vorr_u16(any, vceq_u16(vand_u16(h, inf), inf));
        vst1_u16(out + i, h);
    }
    bad = vmaxv_u16(any);
#endif
    for (; i < n; i++) {
        out[i] = f16_from_f32(x[i]);
        bad |= (out[i] & 0x7c00u) == 0x7c00u;
    }
    return bad ? -ERANGE : 0;
}

static void decode_f16(const uint16_t *x, size_t n, float *out)
{
    size_t i = 0;
    for (; i + VL <= n; i += VL)
        vf_store(out + i, vf_from_f16(x + i));
    for (; i < n; i++)
        out[i] = f16_to_f32(x[i]);
}

/* The scale is the largest magnitude itself and not a 127th of it: f16 reaches 127 times further
 * down that way. Rounded towards zero, so that no step is wider than promised. */
static uint16_t q8_scale(float top)
{
    uint16_t h = f16_from_f32(top);
    return f16_to_f32(h) > top ? (uint16_t)(h - 1) : h;
}

static int encode_q8(const float *x, size_t K, uint8_t *out)
{
    vf top = vf_set1(0), odd = vf_set1(0), zero = vf_set1(0);
    for (size_t i = 0; i < K; i += VL) {
        vf v = K - i >= VL ? vf_load(x + i) : vf_loadn(x + i, K - i);
        top = vf_max(top, vf_max(v, vf_sub(zero, v)));
        odd = vf_add(odd, vf_mul(v, zero)); /* NaN from an infinity or a NaN */
    }
    float bad = vf_hsum(odd), m = vf_hmax(top);
    if (!(bad == 0.0f) || m >= 65520.0f) return -ERANGE;
    uint16_t h = q8_scale(m);
    float step = f16_to_f32(h), inv = step > 0 ? 127.0f / step : 0;
    memcpy(out, &h, sizeof h);
    int8_t *dst = (int8_t *)out + sizeof h;
    size_t i = 0;
#if KN_SIMD == 512
    const __m512 by = _mm512_set1_ps(inv), most = _mm512_set1_ps(127), least = _mm512_set1_ps(-127);
    for (; i + 16 <= K; i += 16) {
        __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x + i), by);
        __m512i w = _mm512_cvtps_epi32(_mm512_max_ps(_mm512_min_ps(v, most), least));
        _mm_storeu_si128((__m128i *)(void *)(dst + i), _mm512_cvtepi32_epi8(w));
    }
#elif KN_SIMD == 256
    const __m256 by = _mm256_set1_ps(inv), most = _mm256_set1_ps(127), least = _mm256_set1_ps(-127);
    for (; i + 8 <= K; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), by);
        __m256i w = _mm256_cvtps_epi32(_mm256_max_ps(_mm256_min_ps(v, most), least));
        __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
        _mm_storel_epi64((__m128i *)(void *)(dst + i), _mm_packs_epi16(half, half));
    }
#elif KN_SIMD == 128
    for (; i + 8 <= K; i += 8) {
        const int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i), inv));
        const int32x4_t b = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i + 4), inv));
        const int16x8_t w = vcombine_s16(vqmovn_s32(a), vqmovn_s32(b));
        vst1_s8(dst + i, vmax_s8(vqmovn_s16(w), vdup_n_s8(-127)));
    }
#endif
    for (; i < K; i++) { /* to the nearest, ties to even, as above */
        float v = x[i] * inv;
        dst[i] = (int8_t)__builtin_rintf(v > 127 ? 127 : v < -127 ? -127 : v);
    }
    return 0;
}

static void decode_q8(const uint8_t *head, size_t first, size_t n, float *out)
{
    uint16_t h;
    memcpy(&h, head, sizeof h);
    const float step = f16_to_f32(h) / 127.0f;
    const int8_t *q = (const int8_t *)head + sizeof h + first;
    size_t i = 0;
    for (; i + VL <= n; i += VL)
        vf_store(out + i, vf_mul(vf_from_i8(q + i), vf_set1(step)));
    for (; i < n; i++)
        out[i] = (float)q[i] * step;
}

const struct kn_simd KN_TABLE = {
#if KN_SIMD == 512
    .name = "avx512",
    .mr = 14,
    .nr = 32,
#elif KN_SIMD == 256
    .name = "avx2",
    .mr = 6,
    .nr = 16,
#elif KN_SIMD == 128
    .name = "neon",
    .mr = 12,
    .nr = 8,
#else
    .name = "portable",
    .mr = 4,
    .nr = 8,
#endif
    .gemm_f32 = KN_NAME(gemm_f32),
    .codes_panel = KN_NAME(codes_panel),
    .attn = {KN_F32, KN_NAME(attn_put), KN_NAME(attn_scratch), KN_NAME(attn), KN_NAME(attn_mass)},
    .row = {rmsnorm,
            rmsnorm_add,
            layernorm,
            gelu,
            {swiglu, geglu_tanh, geglu, swiglu_clamped},
            softcap},
    .rope = rope,
    .sqdist = sqdist,
    .stored = {encode_f16, decode_f16, encode_bf16, decode_bf16, encode_q8, decode_q8},
};
