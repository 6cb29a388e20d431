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

static const struct quant_type types[] = {
    {QUANT_F32, "F32", 1, 4, from_f32},      {QUANT_F16, "F16", 1, 2, from_f16},
    {QUANT_Q4_0, "Q4_0", 32, 18, from_q4_0}, {QUANT_Q4_1, "Q4_1", 32, 20, from_q4_1},
    {QUANT_Q5_0, "Q5_0", 32, 22, NULL},      {QUANT_Q5_1, "Q5_1", 32, 24, NULL},
    {QUANT_Q8_0, "Q8_0", 32, 34, from_q8_0}, {QUANT_Q2_K, "Q2_K", 256, 84, NULL},
    {QUANT_Q3_K, "Q3_K", 256, 110, NULL},    {QUANT_Q4_K, "Q4_K", 256, 144, NULL},
    {QUANT_Q5_K, "Q5_K", 256, 176, NULL},    {QUANT_Q6_K, "Q6_K", 256, 210, NULL},
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
