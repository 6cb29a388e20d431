/* Plain loops over blocks, written so that the compiler vectorises them: no branches inside, fixed
 * trip counts. The order of the float operations follows the reference dequantisers, because
 * results are compared bit for bit; contraction into fused multiply-add is switched off for that
 * reason. */
#include "fusor/model/quant.h"

#include "base/assert.h"

#include <string.h>

static inline uint16_t load_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static inline uint32_t load_u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

/* The exponent is moved by scaling with a power of two, which is exact and also covers subnormals;
 * infinities and NaNs get their exponent filled. */
float quant_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = (uint32_t)(h & 0x7fffu) << 13;
    float f;
    if ((h & 0x7c00u) == 0x7c00u) {
        rest |= 0x7f800000u;
        memcpy(&f, &rest, sizeof(f));
    } else {
        memcpy(&f, &rest, sizeof(f));
        f *= 0x1p112f;
    }
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    bits |= sign;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static inline float load_f16(const uint8_t *p)
{
    return quant_f16(load_u16(p));
}

static void from_f32(const uint8_t *src, size_t n, float *out)
{
    memcpy(out, src, n * sizeof(float));
}

static void from_f16(const uint8_t *src, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = load_f16(src + 2 * i);
}

static void from_bf16(const uint8_t *src, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)load_u16(src + 2 * i) << 16;
        memcpy(&out[i], &bits, sizeof(bits));
    }
}

/* Q8_0: f16 scale, 32 signed bytes. */
static void from_q8_0(const uint8_t *src, size_t n, float *out)
{
    for (size_t b = 0; b < n; b++, src += 34, out += 32) {
        float d = load_f16(src);
        for (int i = 0; i < 32; i++)
            out[i] = (float)(int8_t)src[2 + i] * d;
    }
}

/* Q4_0: f16 scale, 16 bytes: low nibbles are values 0…15, high nibbles 16…31, minus 8. */
static void from_q4_0(const uint8_t *src, size_t n, float *out)
{
    for (size_t b = 0; b < n; b++, src += 18, out += 32) {
        float d = load_f16(src);
        for (int i = 0; i < 16; i++) {
            out[i] = (float)((src[2 + i] & 15) - 8) * d;
            out[16 + i] = (float)((src[2 + i] >> 4) - 8) * d;
        }
    }
}

/* Q4_1: f16 scale, f16 minimum, nibbles as in Q4_0. */
static void from_q4_1(const uint8_t *src, size_t n, float *out)
{
    for (size_t b = 0; b < n; b++, src += 20, out += 32) {
        float d = load_f16(src), m = load_f16(src + 2);
        for (int i = 0; i < 16; i++) {
            out[i] = (float)(src[4 + i] & 15) * d + m;
            out[16 + i] = (float)(src[4 + i] >> 4) * d + m;
        }
    }
}

/* Q5_0: f16 scale, 32 high bits, nibbles as in Q4_0, minus 16. */
static void from_q5_0(const uint8_t *src, size_t n, float *out)
{
    for (size_t b = 0; b < n; b++, src += 22, out += 32) {
        float d = load_f16(src);
        uint32_t high = load_u32(src + 2);
        for (int i = 0; i < 16; i++) {
            int lo = (src[6 + i] & 15) | (int)((high >> i & 1) << 4);
            int hi = (src[6 + i] >> 4) | (int)((high >> (i + 16) & 1) << 4);
            out[i] = (float)(lo - 16) * d;
            out[16 + i] = (float)(hi - 16) * d;
        }
    }
}

/* Q5_1: f16 scale, f16 minimum, 32 high bits, nibbles. */
static void from_q5_1(const uint8_t *src, size_t n, float *out)
{
    for (size_t b = 0; b < n; b++, src += 24, out += 32) {
        float d = load_f16(src), m = load_f16(src + 2);
        uint32_t high = load_u32(src + 4);
        for (int i = 0; i < 16; i++) {
            int lo = (src[8 + i] & 15) | (int)((high >> i & 1) << 4);
            int hi = (src[8 + i] >> 4) | (int)((high >> (i + 16) & 1) << 4);
            out[i] = (float)lo * d + m;
            out[16 + i] = (float)hi * d + m;
        }
    }
}

/* Q2_K: 16 bytes of 4-bit scale (low) and minimum (high), 64 bytes of 2-bit values, f16 d, f16
 * dmin. Two halves of 128 values; in each, bit pair s of byte i is value 32 s + i. */
static void from_q2_k(const uint8_t *src, size_t n, float *out)
{
    for (size_t b = 0; b < n; b++, src += 84, out += 256) {
        float d = load_f16(src + 80), dmin = load_f16(src + 82);
        for (int g = 0; g < 16; g++) {
            const uint8_t *q = src + 16 + g / 8 * 32 + g % 2 * 16;
            int shift = g % 8 / 2 * 2;
            float dl = d * (float)(src[g] & 15), ml = dmin * (float)(src[g] >> 4);
            for (int i = 0; i < 16; i++)
                out[16 * g + i] = dl * (float)(q[i] >> shift & 3) - ml;
        }
    }
}

/* Q3_K: 32 bytes of high bits (set = no offset), 64 bytes of 2-bit values as in Q2_K, 12 bytes with
 * 16 scales of 6 bits (minus 32): 4 low bits in bytes 0…7, 2 high bits in bytes 8…11; f16 d. */
static void from_q3_k(const uint8_t *src, size_t n, float *out)
{
    for (size_t b = 0; b < n; b++, src += 110, out += 256) {
        const uint8_t *sc = src + 96;
        float d = load_f16(src + 108);
        for (int g = 0; g < 16; g++) {
            const uint8_t *q = src + 32 + g / 8 * 32 + g % 2 * 16, *h = src + g % 2 * 16;
            int shift = g % 8 / 2 * 2, bit = g / 2;
            int low = sc[g % 8] >> (g / 8 * 4) & 15, high = sc[8 + g % 4] >> (g / 4 * 2) & 3;
            float dl = d * (float)((low | high << 4) - 32);
            for (int i = 0; i < 16; i++) {
                int v = (q[i] >> shift & 3) - ((h[i] >> bit & 1) ^ 1) * 4;
                out[16 * g + i] = dl * (float)v;
            }
        }
    }
}

/* Scale and minimum j of 8, 6 bits each, from the 12 bytes of Q4_K and Q5_K: the first four whole
 * in the low bits of bytes 0…3 and 4…7, the others as nibbles of bytes 8…11 plus the top bits
 * there. */
static inline void k_scale(const uint8_t *p, int j, float *ret_scale, float *ret_min)
{
    int s, m;
    if (j < 4) {
        s = p[j] & 63;
        m = p[j + 4] & 63;
    } else {
        s = (p[j + 4] & 15) | (p[j - 4] >> 6) << 4;
        m = p[j + 4] >> 4 | (p[j] >> 6) << 4;
    }
    *ret_scale = (float)s;
    *ret_min = (float)m;
}

/* Q4_K: f16 d, f16 dmin, 12 scale bytes, 128 bytes: low nibbles of 32 bytes, then their high ones.
 */
static void from_q4_k(const uint8_t *src, size_t n, float *out)
{
    for (size_t b = 0; b < n; b++, src += 144, out += 256) {
        float d = load_f16(src), dmin = load_f16(src + 2);
        for (int j = 0; j < 8; j++) {
            const uint8_t *q = src + 16 + j / 2 * 32;
            int shift = j % 2 * 4;
            float sc, m;
            k_scale(src + 4, j, &sc, &m);
            sc *= d;
            m *= dmin;
            for (int i = 0; i < 32; i++)
                out[32 * j + i] = sc * (float)(q[i] >> shift & 15) - m;
        }
    }
}

/* Q5_K: as Q4_K with 32 bytes of high bits (bit j of byte i for value 32 j + i) before the nibbles.
 */
static void from_q5_k(const uint8_t *src, size_t n, float *out)
{
    for (size_t b = 0; b < n; b++, src += 176, out += 256) {
        float d = load_f16(src), dmin = load_f16(src + 2);
        for (int j = 0; j < 8; j++) {
            const uint8_t *q = src + 48 + j / 2 * 32, *h = src + 16;
            int shift = j % 2 * 4;
            float sc, m;
            k_scale(src + 4, j, &sc, &m);
            sc *= d;
            m *= dmin;
            for (int i = 0; i < 32; i++)
                out[32 * j + i] = sc * (float)((q[i] >> shift & 15) | (h[i] >> j & 1) << 4) - m;
        }
    }
}

/* Q6_K: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, f16 d; minus 32.
 * Two halves of 128 values: nibbles of 64 bytes (low ones first), pairs of 32 bytes (four shifts).
 */
static void from_q6_k(const uint8_t *src, size_t n, float *out)
{
    for (size_t b = 0; b < n; b++, src += 210, out += 256) {
        float d = load_f16(src + 208);
        for (int g = 0; g < 16; g++) {
            int half = g / 8, part = g % 8 / 2, odd = g % 2 * 16;
            const uint8_t *q = src + half * 64 + part % 2 * 32 + odd;
            const uint8_t *h = src + 128 + half * 32 + odd;
            int shift = part / 2 * 4;
            float dl = d * (float)(int8_t)src[192 + g];
            for (int i = 0; i < 16; i++) {
                int v = (q[i] >> shift & 15) | (h[i] >> (2 * part) & 3) << 4;
                out[16 * g + i] = dl * (float)(v - 32);
            }
        }
    }
}

static const struct quant_type types[] = {
    {QUANT_F32, "F32", 1, 4, from_f32},        {QUANT_F16, "F16", 1, 2, from_f16},
    {QUANT_Q4_0, "Q4_0", 32, 18, from_q4_0},   {QUANT_Q4_1, "Q4_1", 32, 20, from_q4_1},
    {QUANT_Q5_0, "Q5_0", 32, 22, from_q5_0},   {QUANT_Q5_1, "Q5_1", 32, 24, from_q5_1},
    {QUANT_Q8_0, "Q8_0", 32, 34, from_q8_0},   {QUANT_Q2_K, "Q2_K", 256, 84, from_q2_k},
    {QUANT_Q3_K, "Q3_K", 256, 110, from_q3_k}, {QUANT_Q4_K, "Q4_K", 256, 144, from_q4_k},
    {QUANT_Q5_K, "Q5_K", 256, 176, from_q5_k}, {QUANT_Q6_K, "Q6_K", 256, 210, from_q6_k},
    {QUANT_BF16, "BF16", 1, 2, from_bf16},
};

const struct quant_type *quant_type(uint32_t id)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (types[i].id == id) return &types[i];
    return NULL;
}

void quant_to_f32(const struct quant_type *t, const void *src, size_t n, float *out)
{
    ASSERT(t && t->fn);
    ASSERT(n % t->block == 0);
    t->fn(src, n / t->block, out);
}
