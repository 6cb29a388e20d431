/* Values are compared bit for bit with the reference dequantisers. A compiler that fuses products
 * and sums changes nothing: all products here are exact. */
#include "kernels/codes.h"

#include <string.h>

const int8_t codes_table[CODES_TABLES][16] = {
    [CODES_IQ4] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
    [CODES_FP4] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}};

bool codes_form_fits(const struct codes_form *f, size_t k)
{
    if (k == 0) return false;
    if (f->bits == 0 || f->bits == 16) return true;
    if (f->bits != 4 && f->bits != 8) return false;
    if (f->table >= CODES_TABLES || (f->table && (f->bits != 4 || f->low))) return false;
    if (f->zero && (!f->min || f->super || f->table || f->low)) return false;
    if (f->group != 32 && !(f->group == 16 && f->super) && !(f->group == 128 && f->zero))
        return false;
    return k % (f->super ? CODES_SUPER : f->group > CODES_STEP ? f->group : CODES_STEP) == 0;
}

/* The exponent is moved by scaling with a power of two, which is exact and also covers subnormals;
 * infinities and NaNs get their exponent filled. */
float codes_f16(uint16_t h)
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

static float number16(bool bf16, uint16_t q)
{
    const uint32_t bits = (uint32_t)q << 16;
    float f;
    memcpy(&f, &bits, sizeof(f));
    return bf16 ? f : codes_f16(q);
}

static void numbers(bool bf16, const uint16_t *q, size_t k, float *out)
{
    for (size_t i = 0; i < k; i++)
        out[i] = number16(bf16, q[i]);
}

/* What a place of the table stands for, or a number for itself. */
static float code(const struct codes_form *f, int8_t q)
{
    return (float)(f->table ? codes_table[f->table][q & 15] : q);
}

void codes_values(const struct codes_form *f, const struct codes_row *c, size_t k, float *out)
{
    if (f->bits == 16) {
        numbers(f->bf16, (const void *)c->q, k, out);
        return;
    }
    const int8_t *q = c->q;
    for (size_t i = 0, g = 0; i < k; i += f->group, g++) {
        const size_t at = f->super ? i / CODES_SUPER : g;
        float d = number16(f->bf16, c->d[at]), m = f->min ? codes_f16(c->m[at]) : 0;
        if (f->super) d *= (float)c->s[g];
        if (f->super && f->min) m = -(m * (float)c->t[g]);
        if (f->zero) m = -(m * d);
        if (f->min)
            for (size_t j = 0; j < f->group; j++)
                out[i + j] = code(f, q[i + j]) * d + m;
        else
            for (size_t j = 0; j < f->group; j++)
                out[i + j] = code(f, q[i + j]) * d;
    }
}
