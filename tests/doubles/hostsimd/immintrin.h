/* hostsimd: the AVX-512, AVX512-BF16 and AMX intrinsics that kernels/cpu/simd uses, on any x86-64
 * CPU with AVX2: tests run those kernels' own source wherever they run.
 *
 * Found before the compiler's <immintrin.h>, which it includes. A vector is two of AVX2 or its
 * lanes one by one, tiles are arrays of the thread, zeros where a smaller shape has nothing. As
 * Intel's intrinsics guide defines each, but for two things: denormals are kept, and the two
 * products of a pair are added one after the other. So results are close to the hardware's, not its
 * bits. Thread: any; tiles belong to their thread. */
#ifndef TESTS_DOUBLES_HOSTSIMD_IMMINTRIN_H
#define TESTS_DOUBLES_HOSTSIMD_IMMINTRIN_H

#include_next <immintrin.h>

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define HS_FN static __attribute__((noinline, unused))
#define HS_INLINE static inline __attribute__((always_inline, unused))

enum { HS_LANES = 16 };
typedef union {
    __m512 v;
    __m512i w;
    __m256 half[2];
    __m256i halfw[2];
    float f[HS_LANES];
    int32_t i[HS_LANES];
    uint32_t u[HS_LANES];
    uint16_t h[2 * HS_LANES];
    uint8_t b[4 * HS_LANES];
    __m128i quarter[4];
} hs_reg;

#define HS_LANE(expr)                                                                              \
    hs_reg r;                                                                                      \
    for (int l = 0; l < HS_LANES; l++)                                                             \
        expr;                                                                                      \
    return r

HS_INLINE hs_reg hs_v(__m512 v)
{
    return (hs_reg){.v = v};
}
HS_INLINE hs_reg hs_w(__m512i w)
{
    return (hs_reg){.w = w};
}

/* ---- memory: what a mask leaves out is not touched ---- */

HS_INLINE hs_reg hs_load(const void *p)
{
    hs_reg r;
    memcpy(&r, p, sizeof r);
    return r;
}
HS_FN hs_reg hs_load_some(__mmask16 m, const void *p)
{
    HS_LANE({
        r.u[l] = 0;
        if (m >> l & 1) memcpy(&r.u[l], (const char *)p + 4 * l, 4);
    });
}
HS_INLINE void hs_store(void *p, hs_reg r)
{
    memcpy(p, &r, sizeof r);
}
HS_FN void hs_store_some(void *p, __mmask16 m, hs_reg r)
{
    for (int l = 0; l < HS_LANES; l++)
        if (m >> l & 1) memcpy((char *)p + 4 * l, &r.u[l], 4);
}

/* ---- f32 ---- */

HS_INLINE hs_reg hs_set1(float x)
{
    return (hs_reg){.half = {_mm256_set1_ps(x), _mm256_set1_ps(x)}};
}
#define HS_BOTH(name, op)                                                                          \
    HS_INLINE hs_reg name(hs_reg a, hs_reg b)                                                      \
    {                                                                                              \
        return (hs_reg){.half = {op(a.half[0], b.half[0]), op(a.half[1], b.half[1])}};             \
    }
HS_BOTH(hs_add, _mm256_add_ps)
HS_BOTH(hs_sub, _mm256_sub_ps)
HS_BOTH(hs_mul, _mm256_mul_ps)
HS_BOTH(hs_div, _mm256_div_ps)
HS_BOTH(hs_max, _mm256_max_ps)
HS_BOTH(hs_min, _mm256_min_ps)
HS_INLINE hs_reg hs_fma(hs_reg a, hs_reg b, hs_reg c)
{
    return (hs_reg){.half = {_mm256_fmadd_ps(a.half[0], b.half[0], c.half[0]),
                             _mm256_fmadd_ps(a.half[1], b.half[1], c.half[1])}};
}
HS_INLINE hs_reg hs_rint(hs_reg a)
{
    enum { NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    return (hs_reg){
        .half = {_mm256_round_ps(a.half[0], NEAREST), _mm256_round_ps(a.half[1], NEAREST)}};
}
HS_INLINE hs_reg hs_above_floor(hs_reg a)
{
    HS_LANE(r.f[l] = isinf(a.f[l]) ? 0 : a.f[l] - floorf(a.f[l]));
}
HS_FN hs_reg hs_blend(__mmask16 m, hs_reg off, hs_reg on)
{
    HS_LANE(r.u[l] = m >> l & 1 ? on.u[l] : off.u[l]);
}
HS_FN __mmask16 hs_not_less(hs_reg a, hs_reg b)
{
    unsigned m = 0;
    for (int l = 0; l < HS_LANES; l++)
        m |= (unsigned)!(a.f[l] < b.f[l]) << l;
    return (__mmask16)m;
}
HS_FN hs_reg hs_scale2(__mmask16 m, hs_reg a, hs_reg n)
{
    HS_LANE(r.f[l] = m >> l & 1 ? ldexpf(a.f[l], (int)floorf(n.f[l])) : 0);
}
HS_FN float hs_hmax(hs_reg a)
{
    for (int l = 1; l < HS_LANES; l++)
        if (a.f[l] > a.f[0]) a.f[0] = a.f[l];
    return a.f[0];
}
HS_FN int32_t hs_hmaxi(hs_reg a)
{
    for (int l = 1; l < HS_LANES; l++)
        if (a.i[l] > a.i[0]) a.i[0] = a.i[l];
    return a.i[0];
}
HS_FN hs_reg hs_pick(hs_reg at, hs_reg a)
{
    HS_LANE(r.u[l] = a.u[at.u[l] % HS_LANES]);
}

/* ---- whole numbers ---- */

HS_INLINE hs_reg hs_set1i(int32_t x)
{
    return (hs_reg){.halfw = {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}};
}
HS_FN hs_reg hs_addi(hs_reg a, hs_reg b)
{
    HS_LANE(r.u[l] = a.u[l] + b.u[l]);
}
HS_FN hs_reg hs_maxi(hs_reg a, hs_reg b)
{
    HS_LANE(r.i[l] = a.i[l] > b.i[l] ? a.i[l] : b.i[l]);
}
HS_FN hs_reg hs_or(hs_reg a, hs_reg b)
{
    HS_LANE(r.u[l] = a.u[l] | b.u[l]);
}
HS_FN hs_reg hs_left(hs_reg a, unsigned n)
{
    HS_LANE(r.u[l] = a.u[l] << n);
}
HS_FN hs_reg hs_right(hs_reg a, unsigned n)
{
    HS_LANE(r.u[l] = a.u[l] >> n);
}
HS_FN hs_reg hs_from_i32(hs_reg a)
{
    HS_LANE(r.f[l] = (float)a.i[l]);
}
HS_FN hs_reg hs_to_i32(hs_reg a)
{
    HS_LANE(r.i[l] = (int32_t)nearbyintf(a.f[l]));
}
HS_FN hs_reg hs_from_i8(__m128i a)
{
    int8_t b[HS_LANES];
    memcpy(b, &a, sizeof b);
    HS_LANE(r.i[l] = b[l]);
}
HS_FN hs_reg hs_from_i16(__m256i a)
{
    int16_t h[HS_LANES];
    memcpy(h, &a, sizeof h);
    HS_LANE(r.i[l] = h[l]);
}
HS_FN __m256i hs_to_i16(hs_reg a)
{
    uint16_t h[HS_LANES];
    __m256i r;
    for (int l = 0; l < HS_LANES; l++)
        h[l] = a.h[2 * l];
    memcpy(&r, h, sizeof r);
    return r;
}
HS_FN __m128i hs_to_i8(hs_reg a)
{
    int8_t b[HS_LANES];
    __m128i r;
    for (int l = 0; l < HS_LANES; l++)
        b[l] = (int8_t)a.i[l];
    memcpy(&r, b, sizeof r);
    return r;
}
HS_FN hs_reg hs_pick16(hs_reg at, hs_reg a)
{
    hs_reg r;
    for (int l = 0; l < 2 * HS_LANES; l++)
        r.h[l] = a.h[at.h[l] % (2 * HS_LANES)];
    return r;
}

HS_FN hs_reg hs_pick16_of_two(hs_reg a, hs_reg at, hs_reg b)
{
    hs_reg r;
    for (int l = 0; l < 2 * HS_LANES; l++)
        r.h[l] = (at.h[l] & 2 * HS_LANES ? b : a).h[at.h[l] % (2 * HS_LANES)];
    return r;
}

HS_FN hs_reg hs_right16(hs_reg a, hs_reg n)
{
    hs_reg r;
    for (int l = 0; l < 2 * HS_LANES; l++)
        r.h[l] = n.h[l] < 16 ? (uint16_t)(a.h[l] >> n.h[l]) : 0;
    return r;
}
/* Bit by bit: what the table says of the bits of a, b and c. */
HS_FN hs_reg hs_logic(hs_reg a, hs_reg b, hs_reg c, unsigned table)
{
    HS_LANE({
        r.u[l] = 0;
        for (int i = 0; i < 32; i++) {
            const unsigned at = (a.u[l] >> i & 1) << 2 | (b.u[l] >> i & 1) << 1 | (c.u[l] >> i & 1);
            r.u[l] |= (uint32_t)(table >> at & 1) << i;
        }
    });
}
HS_FN hs_reg hs_quarters(__m128i a)
{
    return (hs_reg){.quarter = {a, a, a, a}};
}
HS_FN hs_reg hs_shuffle8(hs_reg a, hs_reg at)
{
    return (hs_reg){.halfw = {_mm256_shuffle_epi8(a.halfw[0], at.halfw[0]),
                              _mm256_shuffle_epi8(a.halfw[1], at.halfw[1])}};
}
HS_FN hs_reg hs_put_quarter(hs_reg a, __m128i b, int i)
{
    a.quarter[i] = b;
    return a;
}
/* Two quarters of a and two of b, by two bits each. */
HS_FN hs_reg hs_pick_quarters(hs_reg a, hs_reg b, unsigned by)
{
    return (hs_reg){.quarter = {a.quarter[by & 3], a.quarter[by >> 2 & 3], b.quarter[by >> 4 & 3],
                                b.quarter[by >> 6 & 3]}};
}
/* In each quarter the values of `size` bytes of one half of a and of b, in turn. */
HS_FN hs_reg hs_zip(hs_reg a, hs_reg b, size_t size, size_t half)
{
    hs_reg r;
    for (size_t q = 0; q < 4; q++)
        for (size_t i = 0; i < 8; i += size) {
            memcpy(r.b + q * 16 + 2 * i, a.b + q * 16 + half * 8 + i, size);
            memcpy(r.b + q * 16 + 2 * i + size, b.b + q * 16 + half * 8 + i, size);
        }
    return r;
}

/* ---- 16-bit floats ---- */

HS_FN hs_reg hs_from_f16(__m256i a)
{
    const __m256 lo = _mm256_cvtph_ps(_mm256_castsi256_si128(a));
    const __m256 hi = _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1));
    return (hs_reg){.half = {lo, hi}};
}
/* To nearest even; NaN stays NaN. */
HS_FN uint16_t hs_bf16(float f)
{
    uint32_t x;
    memcpy(&x, &f, sizeof x);
    if (f != f) return (uint16_t)(x >> 16 | 0x40);
    return (uint16_t)((x + 0x7fff + (x >> 16 & 1)) >> 16);
}
HS_FN hs_reg hs_to_bf16(hs_reg hi, hs_reg lo)
{
    hs_reg r;
    for (int l = 0; l < HS_LANES; l++) {
        r.h[l] = hs_bf16(lo.f[l]);
        r.h[HS_LANES + l] = hs_bf16(hi.f[l]);
    }
    return r;
}
HS_FN __m128i hs_to_bf16_4(__m128 a)
{
    float f[4];
    uint16_t h[8] = {0};
    __m128i r;
    memcpy(f, &a, sizeof f);
    for (int l = 0; l < 4; l++)
        h[l] = hs_bf16(f[l]);
    memcpy(&r, h, sizeof r);
    return r;
}
/* The upper of each pair first. */
HS_INLINE __m256 hs_dot_half(__m256 c, __m256i a, __m256i b)
{
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000);
    c = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(a, upper)),
                        _mm256_castsi256_ps(_mm256_and_si256(b, upper)), c);
    return _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
                           _mm256_castsi256_ps(_mm256_slli_epi32(b, 16)), c);
}
HS_INLINE hs_reg hs_dot(hs_reg c, hs_reg a, hs_reg b)
{
    return (hs_reg){.half = {hs_dot_half(c.half[0], a.halfw[0], b.halfw[0]),
                             hs_dot_half(c.half[1], a.halfw[1], b.halfw[1])}};
}

/* ---- tiles: eight of 16 rows of 64 bytes at most ---- */

enum { HS_TILES = 8, HS_TILE_ROWS = 16 };
static _Thread_local hs_reg hs_tile[HS_TILES][HS_TILE_ROWS] __attribute__((unused));
static _Thread_local struct {
    uint8_t palette, start_row, zero[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} hs_shape __attribute__((unused));

HS_FN void hs_tile_load(int t, const void *base, size_t stride_bytes)
{
    memset(hs_tile[t], 0, sizeof hs_tile[t]);
    for (int i = 0; i < hs_shape.rows[t]; i++)
        memcpy(&hs_tile[t][i], (const char *)base + (size_t)i * stride_bytes,
               hs_shape.row_bytes[t]);
}
HS_FN void hs_tile_store(int t, void *base, size_t stride_bytes)
{
    for (int i = 0; i < hs_shape.rows[t]; i++)
        memcpy((char *)base + (size_t)i * stride_bytes, &hs_tile[t][i], hs_shape.row_bytes[t]);
}
/* Four products of bytes, of a without sign, to each lane. */
HS_FN hs_reg hs_dot_bytes(hs_reg c, hs_reg a, hs_reg b)
{
    uint8_t x[4 * HS_LANES];
    int8_t y[4 * HS_LANES];
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    for (int i = 0; i < 4 * HS_LANES; i++)
        c.i[i / 4] += x[i] * y[i];
    return c;
}
HS_FN hs_reg hs_dot_halves(hs_reg c, hs_reg a, hs_reg b)
{
    HS_LANE(r.u[l] = c.u[l] + (uint32_t)((int16_t)a.h[2 * l] * (int16_t)b.h[2 * l]) +
                     (uint32_t)((int16_t)a.h[2 * l + 1] * (int16_t)b.h[2 * l + 1]));
}
HS_FN void hs_tile_dot_bytes(int c, int a, int b, bool signed_b)
{
    for (int i = 0; i < HS_TILE_ROWS; i++)
        for (int k = 0; k < 4 * HS_LANES; k++) {
            const int x = (int8_t)(hs_tile[a][i].u[k / 4] >> k % 4 * 8);
            for (int l = 0; l < HS_LANES; l++) {
                const uint8_t y = (uint8_t)(hs_tile[b][k / 4].u[l] >> k % 4 * 8);
                hs_tile[c][i].i[l] += x * (signed_b ? (int8_t)y : y);
            }
        }
}
HS_FN void hs_tile_dot(int c, int a, int b)
{
    for (int i = 0; i < HS_TILE_ROWS; i++)
        for (int k = 0; k < HS_LANES; k++)
            hs_tile[c][i] = hs_dot(hs_tile[c][i], hs_set1i(hs_tile[a][i].i[k]), hs_tile[b][k]);
}

/* ---- by their names ---- */

#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _mm512_cmp_ps_mask
#undef _mm512_setr_epi32
#undef _mm512_roundscale_ps
#undef _mm512_reduce_ps
#undef _mm512_scalef_ps
#undef _mm512_slli_epi32
#undef _mm512_srli_epi32
#undef _mm512_inserti32x4
#undef _mm512_extracti32x4_epi32
#undef _mm512_ternarylogic_epi32

#define _tile_loadconfig(c) memcpy(&hs_shape, c, sizeof hs_shape)
#define _tile_release() ((void)0)
#define _tile_zero(t) memset(hs_tile[t], 0, sizeof hs_tile[t])
#define _tile_loadd(t, base, stride) hs_tile_load(t, base, stride)
#define _tile_stream_loadd(t, base, stride) hs_tile_load(t, base, stride)
#define _tile_stored(t, base, stride) hs_tile_store(t, base, stride)
#define _tile_dpbf16ps(c, a, b) hs_tile_dot(c, a, b)
#define _tile_dpbssd(c, a, b) hs_tile_dot_bytes(c, a, b, true)
#define _tile_dpbsud(c, a, b) hs_tile_dot_bytes(c, a, b, false)

#define _mm512_loadu_ps(p) hs_load(p).v
#define _mm512_storeu_ps(p, a) hs_store(p, hs_v(a))
#define _mm512_maskz_loadu_ps(m, p) hs_load_some(m, p).v
#define _mm512_mask_loadu_ps(off, m, p) hs_blend(m, hs_v(off), hs_load_some(m, p)).v
#define _mm512_mask_storeu_ps(p, m, a) hs_store_some(p, m, hs_v(a))
#define _mm512_loadu_si512(p) hs_load(p).w
#define _mm512_storeu_si512(p, a) hs_store(p, hs_w(a))
#define _mm512_mask_storeu_epi32(p, m, a) hs_store_some(p, m, hs_w(a))

#define _mm512_set1_ps(x) hs_set1(x).v
#define _mm512_add_ps(a, b) hs_add(hs_v(a), hs_v(b)).v
#define _mm512_sub_ps(a, b) hs_sub(hs_v(a), hs_v(b)).v
#define _mm512_mul_ps(a, b) hs_mul(hs_v(a), hs_v(b)).v
#define _mm512_div_ps(a, b) hs_div(hs_v(a), hs_v(b)).v
#define _mm512_max_ps(a, b) hs_max(hs_v(a), hs_v(b)).v
#define _mm512_min_ps(a, b) hs_min(hs_v(a), hs_v(b)).v
#define _mm512_fmadd_ps(a, b, c) hs_fma(hs_v(a), hs_v(b), hs_v(c)).v
#define _mm512_roundscale_ps(a, scale) hs_rint(hs_v(a)).v  /* scale 0, the only one used */
#define _mm512_reduce_ps(a, how) hs_above_floor(hs_v(a)).v /* down, likewise */
#define _mm512_scalef_ps(a, n) hs_scale2(0xffff, hs_v(a), hs_v(n)).v
#define _mm512_mask_blend_ps(m, a, b) hs_blend(m, hs_v(a), hs_v(b)).v
#define _mm512_cmp_ps_mask(a, b, op) hs_not_less(hs_v(a), hs_v(b)) /* _CMP_NLT_UQ, likewise */
#define _mm512_maskz_scalef_ps(m, a, n) hs_scale2(m, hs_v(a), hs_v(n)).v
#define _mm512_reduce_max_ps(a) hs_hmax(hs_v(a))
#define _mm512_permutexvar_ps(at, a) hs_pick(hs_w(at), hs_v(a)).v

#define _mm512_set1_epi32(x) hs_set1i(x).w
#define _mm512_setr_epi32(...) ((hs_reg){.i = {__VA_ARGS__}}).w
#define _mm512_add_epi32(a, b) hs_addi(hs_w(a), hs_w(b)).w
#define _mm512_max_epi32(a, b) hs_maxi(hs_w(a), hs_w(b)).w
#define _mm512_reduce_max_epi32(a) hs_hmaxi(hs_w(a))
#define _mm512_or_si512(a, b) hs_or(hs_w(a), hs_w(b)).w
#define _mm512_slli_epi32(a, n) hs_left(hs_w(a), n).w
#define _mm512_srli_epi32(a, n) hs_right(hs_w(a), n).w
#define _mm512_dpbusd_epi32(c, a, b) hs_dot_bytes(hs_w(c), hs_w(a), hs_w(b)).w
#define _mm512_dpwssd_epi32(c, a, b) hs_dot_halves(hs_w(c), hs_w(a), hs_w(b)).w
#define _mm512_cvtepi32_ps(a) hs_from_i32(hs_w(a)).v
#define _mm512_cvtps_epi32(a) hs_to_i32(hs_v(a)).w
#define _mm512_cvtepi8_epi32(a) hs_from_i8(a).w
#define _mm512_cvtepi16_epi32(a) hs_from_i16(a).w
#define _mm512_cvtepi32_epi8(a) hs_to_i8(hs_w(a))
#define _mm512_cvtepi32_epi16(a) hs_to_i16(hs_w(a))
#define _mm512_permutexvar_epi16(at, a) hs_pick16(hs_w(at), hs_w(a)).w
#define _mm512_permutex2var_epi16(a, at, b) hs_pick16_of_two(hs_w(a), hs_w(at), hs_w(b)).w
#define _mm512_permutexvar_epi32(at, a) hs_pick(hs_w(at), hs_w(a)).w
#define _mm512_srlv_epi16(a, n) hs_right16(hs_w(a), hs_w(n)).w
#define _mm512_ternarylogic_epi32(a, b, c, table) hs_logic(hs_w(a), hs_w(b), hs_w(c), table).w
#define _mm512_shuffle_epi8(a, at) hs_shuffle8(hs_w(a), hs_w(at)).w
#define _mm512_unpacklo_epi8(a, b) hs_zip(hs_w(a), hs_w(b), 1, 0).w
#define _mm512_unpackhi_epi8(a, b) hs_zip(hs_w(a), hs_w(b), 1, 1).w
#define _mm512_unpacklo_epi32(a, b) hs_zip(hs_w(a), hs_w(b), 4, 0).w
#define _mm512_unpackhi_epi32(a, b) hs_zip(hs_w(a), hs_w(b), 4, 1).w
#define _mm512_unpacklo_epi64(a, b) hs_zip(hs_w(a), hs_w(b), 8, 0).w
#define _mm512_unpackhi_epi64(a, b) hs_zip(hs_w(a), hs_w(b), 8, 1).w
#define _mm512_broadcast_i32x4(a) hs_quarters(a).w
#define _mm512_castsi128_si512(a) hs_quarters(a).w
#define _mm512_inserti32x4(a, b, i) hs_put_quarter(hs_w(a), b, i).w
#define _mm512_shuffle_i32x4(a, b, by) hs_pick_quarters(hs_w(a), hs_w(b), by).w
#define _mm512_extracti32x4_epi32(a, i) hs_w(a).quarter[i]
#define _mm512_castsi512_si128(a) _mm256_castsi256_si128(hs_w(a).halfw[0])

#define _mm512_cvtph_ps(a) hs_from_f16(a).v
#define _mm_cvtneps_pbh(a) hs_to_bf16_4(a)
#define _mm512_cvtne2ps_pbh(hi, lo) hs_to_bf16(hs_v(hi), hs_v(lo)).w
#define _mm512_dpbf16_ps(c, a, b) hs_dot(hs_v(c), hs_w((__m512i)(a)), hs_w((__m512i)(b))).v

#endif
