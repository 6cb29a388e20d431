/* Blocks are taken apart here; what their parts mean as numbers says kernels/codes.h. Plain loops,
 * written so that the compiler vectorises them: no branches inside, fixed trip counts. */
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

/* ---- numbers ---- */

static void take_16(const uint8_t *src, size_t n, const struct codes_row *out)
{
    memcpy(out->q, src, n * sizeof(uint16_t));
}

/* ---- blocks of 32 ---- */

/* Q8_0: f16 scale, 32 signed bytes. */
static void take_q8_0(const uint8_t *src, size_t n, const struct codes_row *out)
{
    for (size_t b = 0; b < n; b++, src += 34) {
        out->d[b] = load_u16(src);
        memcpy(out->q + 32 * b, src + 2, 32);
    }
}

/* 16 bytes: low nibbles are values 0…15, high nibbles 16…31; `low` is added. In arrays of its own:
 * as far as the compiler knows q may be src, and then it takes one byte at a time. */
static inline void nibbles(const uint8_t *src, int low, int8_t *q)
{
    uint8_t b[16];
    int8_t v[32];
    memcpy(b, src, sizeof b);
    for (int i = 0; i < 16; i++) {
        v[i] = (int8_t)((b[i] & 15) + low);
        v[16 + i] = (int8_t)((b[i] >> 4) + low);
    }
    memcpy(q, v, sizeof v);
}

#define EACH_BYTE(x) ((x)*0x0101010101010101u)

/* Bytes of four bits with bit i of `fifth` above them in byte i; less 16 if so. */
static inline uint64_t five_bits(uint64_t four, uint32_t fifth, bool less_16)
{
    const uint64_t own = EACH_BYTE(fifth & 255u) & 0x8040201008040201u;
    const uint64_t x = four | ((own + EACH_BYTE(0x7fu)) >> 3 & EACH_BYTE(16u));
    const uint64_t y = x ^ EACH_BYTE(16u), sign = y & EACH_BYTE(16u);
    return less_16 ? y | sign << 1 | sign << 2 | sign << 3 : x;
}

/* The same with bit i of `fifths` for value i. */
static inline void five_bits_each(const uint8_t *src, uint32_t fifths, bool less_16, int8_t *q)
{
    for (int i = 0; i < 16; i += 8) {
        uint64_t b;
        memcpy(&b, src + i, sizeof b);
        const uint64_t v[2] = {five_bits(b & EACH_BYTE(15u), fifths >> i, less_16),
                               five_bits(b >> 4 & EACH_BYTE(15u), fifths >> (16 + i), less_16)};
        memcpy(q + i, &v[0], sizeof v[0]);
        memcpy(q + 16 + i, &v[1], sizeof v[1]);
    }
}

/* Q4_0: f16 scale, nibbles, minus 8. */
static void take_q4_0(const uint8_t *src, size_t n, const struct codes_row *out)
{
    for (size_t b = 0; b < n; b++, src += 18) {
        out->d[b] = load_u16(src);
        nibbles(src + 2, -8, out->q + 32 * b);
    }
}

/* Q4_1: f16 scale, f16 minimum, nibbles. */
static void take_q4_1(const uint8_t *src, size_t n, const struct codes_row *out)
{
    for (size_t b = 0; b < n; b++, src += 20) {
        out->d[b] = load_u16(src);
        out->m[b] = load_u16(src + 2);
        nibbles(src + 4, 0, out->q + 32 * b);
    }
}

/* Q5_0: f16 scale, 32 high bits, nibbles, minus 16. */
static void take_q5_0(const uint8_t *src, size_t n, const struct codes_row *out)
{
    for (size_t b = 0; b < n; b++, src += 22) {
        out->d[b] = load_u16(src);
        five_bits_each(src + 6, load_u32(src + 2), true, out->q + 32 * b);
    }
}

/* Q5_1: f16 scale, f16 minimum, 32 high bits, nibbles. */
static void take_q5_1(const uint8_t *src, size_t n, const struct codes_row *out)
{
    for (size_t b = 0; b < n; b++, src += 24) {
        out->d[b] = load_u16(src);
        out->m[b] = load_u16(src + 2);
        five_bits_each(src + 8, load_u32(src + 4), false, out->q + 32 * b);
    }
}

/* IQ4_NL: f16 scale, nibbles that are places in the table. */
static void take_iq4_nl(const uint8_t *src, size_t n, const struct codes_row *out)
{
    for (size_t b = 0; b < n; b++, src += 18) {
        out->d[b] = load_u16(src);
        nibbles(src + 2, 0, out->q + 32 * b);
    }
}

/* MXFP4: a scale that is the exponent of a power of two, nibbles that are places in the table,
 * whose numbers are twice what is meant. Half of the power is a bf16, the two smallest below its
 * normal numbers. */
static void take_mxfp4(const uint8_t *src, size_t n, const struct codes_row *out)
{
    for (size_t b = 0; b < n; b++, src += 17) {
        const unsigned e = src[0];
        out->d[b] = (uint16_t)(e < 2 ? 0x20u << e : (e - 1) << 7);
        nibbles(src + 1, 0, out->q + 32 * b);
    }
}

/* ---- blocks of 256 ---- */

/* Q2_K: 16 bytes of 4-bit scale (low) and minimum (high), 64 bytes of 2-bit values, f16 d, f16
 * dmin. Two halves of 128 values; in each, bit pair s of byte i is value 32 s + i. */
static void take_q2_k(const uint8_t *src, size_t n, const struct codes_row *out)
{
    for (size_t b = 0; b < n; b++, src += 84) {
        uint8_t block[64]; /* as in nibbles() */
        int8_t q[256];
        memcpy(block, src + 16, sizeof block);
        out->d[b] = load_u16(src + 80);
        out->m[b] = load_u16(src + 82);
        for (int g = 0; g < 16; g++) {
            out->s[16 * b + (size_t)g] = (int8_t)(src[g] & 15);
            out->t[16 * b + (size_t)g] = src[g] >> 4;
        }
#pragma GCC unroll 8
        for (int p = 0; p < 8; p++)
            for (int i = 0; i < 32; i++)
                q[32 * p + i] = (int8_t)(block[p / 4 * 32 + i] >> p % 4 * 2 & 3);
        memcpy(out->q + 256 * b, q, sizeof q);
    }
}

/* Q3_K: 32 bytes of high bits (set = no offset), 64 bytes of 2-bit values as in Q2_K, 12 bytes with
 * 16 scales of 6 bits (minus 32): 4 low bits in bytes 0…7, 2 high bits in bytes 8…11; f16 d. */
static void take_q3_k(const uint8_t *src, size_t n, const struct codes_row *out)
{
    for (size_t b = 0; b < n; b++, src += 110) {
        const uint8_t *sc = src + 96;
        uint8_t block[96]; /* as in nibbles() */
        int8_t q[256];
        memcpy(block, src, sizeof block);
        out->d[b] = load_u16(src + 108);
        for (int g = 0; g < 16; g++) {
            int low = sc[g % 8] >> (g / 8 * 4) & 15, high = sc[8 + g % 4] >> (g / 4 * 2) & 3;
            out->s[16 * b + (size_t)g] = (int8_t)((low | high << 4) - 32);
        }
#pragma GCC unroll 8
        for (int p = 0; p < 8; p++)
            for (int i = 0; i < 32; i++)
                q[32 * p + i] = (int8_t)((block[32 + p / 4 * 32 + i] >> p % 4 * 2 & 3) -
                                         ((block[i] >> p & 1) ^ 1) * 4);
        memcpy(out->q + 256 * b, q, sizeof q);
    }
}

/* Scale and minimum j of 8, 6 bits each, from the 12 bytes of Q4_K and Q5_K: the first four whole
 * in the low bits of bytes 0…3 and 4…7, the others as nibbles of bytes 8…11 plus the top bits
 * there. */
static inline void k_scales(const uint8_t *p, int8_t *s, uint8_t *t)
{
    for (int j = 0; j < 4; j++) {
        s[j] = (int8_t)(p[j] & 63);
        t[j] = p[j + 4] & 63;
        s[j + 4] = (int8_t)((p[j + 8] & 15) | (p[j] >> 6) << 4);
        t[j + 4] = (uint8_t)(p[j + 8] >> 4 | (p[j + 4] >> 6) << 4);
    }
}

/* Q4_K: f16 d, f16 dmin, 12 scale bytes, 128 bytes: low nibbles of 32 bytes, then the high ones. */
static void take_q4_k(const uint8_t *src, size_t n, const struct codes_row *out)
{
    for (size_t b = 0; b < n; b++, src += 144) {
        out->d[b] = load_u16(src);
        out->m[b] = load_u16(src + 2);
        k_scales(src + 4, out->s + 8 * b, out->t + 8 * b);
        uint8_t block[128]; /* as in nibbles() */
        int8_t q[256];
        memcpy(block, src + 16, sizeof block);
        for (int j = 0; j < 4; j++)
            for (int i = 0; i < 32; i++) {
                q[64 * j + i] = (int8_t)(block[32 * j + i] & 15);
                q[64 * j + 32 + i] = (int8_t)(block[32 * j + i] >> 4);
            }
        memcpy(out->q + 256 * b, q, sizeof q);
    }
}

/* Q5_K: as Q4_K with 32 bytes of high bits (bit j of byte i for value 32 j + i) before nibbles. */
static void take_q5_k(const uint8_t *src, size_t n, const struct codes_row *out)
{
    for (size_t b = 0; b < n; b++, src += 176) {
        out->d[b] = load_u16(src);
        out->m[b] = load_u16(src + 2);
        k_scales(src + 4, out->s + 8 * b, out->t + 8 * b);
        uint8_t block[160]; /* as in nibbles() */
        int8_t q[256];
        memcpy(block, src + 16, sizeof block);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            for (int i = 0; i < 32; i++) {
                const uint8_t two = block[32 + 32 * j + i];
                q[64 * j + i] = (int8_t)((two & 15) | (block[i] >> 2 * j & 1) << 4);
                q[64 * j + 32 + i] = (int8_t)(two >> 4 | (block[i] >> (2 * j + 1) & 1) << 4);
            }
        memcpy(out->q + 256 * b, q, sizeof q);
    }
}

/* Q6_K: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, f16 d; minus 32.
 * Two halves of 128 values: nibbles of 64 bytes (low ones first), pairs of 32 bytes (four shifts).
 */
static void take_q6_k(const uint8_t *src, size_t n, const struct codes_row *out)
{
    for (size_t b = 0; b < n; b++, src += 210) {
        uint8_t block[192]; /* as in nibbles() */
        int8_t q[256];
        memcpy(block, src, sizeof block);
        out->d[b] = load_u16(src + 208);
        memcpy(out->s + 16 * b, src + 192, 16);
        for (int half = 0; half < 2; half++) {
            const uint8_t *l = block + half * 64, *h = block + 128 + half * 32;
            int8_t *to = q + half * 128;
            for (int i = 0; i < 32; i++) {
                to[i] = (int8_t)(((l[i] & 15) | (h[i] & 3) << 4) - 32);
                to[32 + i] = (int8_t)(((l[32 + i] & 15) | (h[i] >> 2 & 3) << 4) - 32);
                to[64 + i] = (int8_t)((l[i] >> 4 | (h[i] >> 4 & 3) << 4) - 32);
                to[96 + i] = (int8_t)((l[32 + i] >> 4 | h[i] >> 6 << 4) - 32);
            }
        }
        memcpy(out->q + 256 * b, q, sizeof q);
    }
}

/* IQ4_XS: f16 d, eight scales of 6 bits (minus 32): their 2 high bits in 2 bytes, their 4 low bits
 * in 4; 8 times 16 bytes of nibbles that are places in the table. */
static void take_iq4_xs(const uint8_t *src, size_t n, const struct codes_row *out)
{
    for (size_t b = 0; b < n; b++, src += 136) {
        out->d[b] = load_u16(src);
        for (int g = 0; g < 8; g++) {
            const int high = load_u16(src + 2) >> 2 * g & 3, low = src[4 + g / 2] >> g % 2 * 4 & 15;
            out->s[8 * b + (size_t)g] = (int8_t)((low | high << 4) - 32);
            nibbles(src + 8 + 16 * g, 0, out->q + 256 * b + 32 * g);
        }
    }
}

#define NUMBER(is_bf16)                                                                            \
    {                                                                                              \
        .bits = 16, .bf16 = is_bf16                                                                \
    }
static const struct quant_type types[] = {
    {QUANT_F32, "F32", 1, 4, NULL, {0}},
    {QUANT_F16, "F16", 1, 2, take_16, NUMBER(false)},
    {QUANT_BF16, "BF16", 1, 2, take_16, NUMBER(true)},
    {QUANT_Q4_0, "Q4_0", 32, 18, take_q4_0, CODES_PLAIN(4, -8, false)},
    {QUANT_Q4_1, "Q4_1", 32, 20, take_q4_1, CODES_PLAIN(4, 0, true)},
    {QUANT_Q5_0, "Q5_0", 32, 22, take_q5_0, CODES_PLAIN(8, 0, false)},
    {QUANT_Q5_1, "Q5_1", 32, 24, take_q5_1, CODES_PLAIN(8, 0, true)},
    {QUANT_Q8_0, "Q8_0", 32, 34, take_q8_0, CODES_PLAIN(8, 0, false)},
    {QUANT_IQ4_NL, "IQ4_NL", 32, 18, take_iq4_nl, CODES_LOOKUP(CODES_IQ4, false, false)},
    {QUANT_MXFP4, "MXFP4", 32, 17, take_mxfp4, CODES_LOOKUP(CODES_FP4, false, true)},
    {QUANT_Q2_K, "Q2_K", 256, 84, take_q2_k, CODES_NESTED(4, 16, 0, true)},
    {QUANT_Q3_K, "Q3_K", 256, 110, take_q3_k, CODES_NESTED(4, 16, -4, false)},
    {QUANT_Q4_K, "Q4_K", 256, 144, take_q4_k, CODES_NESTED(4, 32, 0, true)},
    {QUANT_Q5_K, "Q5_K", 256, 176, take_q5_k, CODES_NESTED(8, 32, 0, true)},
    {QUANT_Q6_K, "Q6_K", 256, 210, take_q6_k, CODES_NESTED(8, 16, 0, false)},
    {QUANT_IQ4_XS, "IQ4_XS", 256, 136, take_iq4_xs, CODES_LOOKUP(CODES_IQ4, true, false)},
};

const struct quant_type *quant_type(uint32_t id)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (types[i].id == id) return &types[i];
    return NULL;
}

void quant_to_codes(const struct quant_type *t, const void *src, size_t n,
                    const struct codes_row *out)
{
    ASSERT(t->form.bits != 0);
    ASSERT(n % t->block == 0);
    t->fn(src, n / t->block, out);
}

void quant_to_f32(const struct quant_type *t, const void *src, size_t n, float *out)
{
    enum { PIECE = 256 };
    _Alignas(4) int8_t q[PIECE * 2];
    uint16_t d[PIECE / 32], m[PIECE / 32];
    int8_t s[PIECE / 16];
    uint8_t more[PIECE / 16];
    const struct codes_row codes = {q, d, m, s, more};
    const uint8_t *from = src;
    ASSERT(n % t->block == 0);
    if (t->form.bits == 0) {
        memcpy(out, src, n * sizeof(float));
        return;
    }
    for (size_t i = 0, now; i < n; i += now, from += now / t->block * t->bytes) {
        now = n - i < PIECE ? n - i : PIECE;
        t->fn(from, now / t->block, &codes);
        codes_values(&t->form, &codes, now, out + i);
    }
}
