/* codes: rows of a weight as model files have them, a few bits a value, whatever the file's layout.
 * Readers of files and products speak of weights in these words.
 *
 * A row of k values is either k numbers of 16 bits (f16 or bf16), or k small whole numbers in
 * groups: value i of group g is q[i] * D(g) + M(g) in f32, where the product is exact in every form
 * there is and the sum is rounded once. D(g) is f16 (or bf16), or (`super`) an f16 that 256 values
 * share times a byte of the group; M(g) likewise, and subtracted there: the blocks of GGUF files,
 * taken apart. Where there is a table, q[i] is a place in it, and the number there is meant. Where
 * there is a zero (AWQ, GPTQ, compressed-tensors), M(g) is -zero(g) * D(g), exact as well, and so
 * is the sum then: (q[i] - zero(g)) * D(g). Only kn.h's weights and readers of files need to know.
 * Thread: any (pure functions). */
#ifndef KERNELS_CODES_H
#define KERNELS_CODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CODES_STEP = 32, CODES_SUPER = 256 }; /* values: k is whole steps (super: whole 256) */

/* 16 numbers that 4 bits choose from. IQ4: those of ggml's non-linear types; FP4: twice the values
 * of e2m1 (Open Compute Project, Microscaling Formats 1.0). */
enum codes_table { CODES_NO_TABLE, CODES_IQ4, CODES_FP4, CODES_TABLES };
extern const int8_t codes_table[CODES_TABLES][16];

struct codes_form { /* all 0: f32 */
    uint8_t bits;   /* of a value: 4, 8 (codes), 16 (a number each) */
    bool bf16;      /* of 16 bits: bf16, else f16; of codes: D is */
    uint8_t group;  /* values that share D and M: 16, 32, 128 */
    int8_t low;     /* 4 bits: the least q; 16 of them from there */
    bool min;       /* there is M */
    bool super;
    bool zero;     /* with min: M is -zero * D, zero a whole number in f16, 256 at most */
    uint8_t table; /* enum codes_table; 4 bits, low 0 */
};
#define CODES_PLAIN(n_bits, least, has_min)                                                        \
    {                                                                                              \
        .bits = n_bits, .group = 32, .low = least, .min = has_min                                  \
    }
#define CODES_NESTED(n_bits, in_group, least, has_min)                                             \
    {                                                                                              \
        .bits = n_bits, .group = in_group, .low = least, .min = has_min, .super = true             \
    }
#define CODES_LOOKUP(of, is_super, d_bf16)                                                         \
    {                                                                                              \
        .bits = 4, .group = 32, .table = of, .super = is_super, .bf16 = d_bf16                     \
    }
#define CODES_ZERO(n_bits, in_group, d_bf16)                                                       \
    {                                                                                              \
        .bits = n_bits, .group = in_group, .min = true, .zero = true, .bf16 = d_bf16               \
    }
/* All there are with codes. Those of 5 and 6 bits are kept in bytes. */
#define CODES_FORMS(X)                                                                             \
    X(CODES_PLAIN(4, -8, false))             /* Q4_0 */                                            \
    X(CODES_PLAIN(4, 0, true))               /* Q4_1 */                                            \
    X(CODES_PLAIN(8, 0, false))              /* Q5_0, Q8_0 */                                      \
    X(CODES_PLAIN(8, 0, true))               /* Q5_1 */                                            \
    X(CODES_NESTED(4, 16, 0, true))          /* Q2_K */                                            \
    X(CODES_NESTED(4, 16, -4, false))        /* Q3_K */                                            \
    X(CODES_NESTED(4, 32, 0, true))          /* Q4_K */                                            \
    X(CODES_NESTED(8, 32, 0, true))          /* Q5_K */                                            \
    X(CODES_NESTED(8, 16, 0, false))         /* Q6_K */                                            \
    X(CODES_LOOKUP(CODES_IQ4, false, false)) /* IQ4_NL */                                          \
    X(CODES_LOOKUP(CODES_IQ4, true, false))  /* IQ4_XS */                                          \
    X(CODES_LOOKUP(CODES_FP4, false, true))  /* MXFP4 */                                           \
    X(CODES_ZERO(4, 32, false))              /* AWQ and the like, by their groups */               \
    X(CODES_ZERO(4, 32, true))                                                                     \
    X(CODES_ZERO(4, 128, false))                                                                   \
    X(CODES_ZERO(4, 128, true))                                                                    \
    X(CODES_ZERO(8, 32, false))                                                                    \
    X(CODES_ZERO(8, 32, true))

struct codes_row { /* one row; what a form has not is not looked at */
    int8_t *q;     /* [k]; of 16 bits: [k] uint16_t, the numbers themselves */
    uint16_t *d;   /* f16 or bf16 [k / group], super: [k / 256] */
    uint16_t *m;   /* f16, as many, of M; or zeros */
    int8_t *s;     /* super: [k / group] of D */
    uint8_t *t;    /* of M */
};

static inline bool codes_form_same(const struct codes_form *a, const struct codes_form *b)
{
    return a->bits == b->bits && a->bf16 == b->bf16 && a->group == b->group && a->low == b->low &&
           a->min == b->min && a->super == b->super && a->zero == b->zero && a->table == b->table;
}
/* Whether a row of k values can have the form. */
bool codes_form_fits(const struct codes_form *f, size_t k);
float codes_f16(uint16_t h); /* IEEE half to float, exact */
/* The values [k] of a row. */
void codes_values(const struct codes_form *f, const struct codes_row *c, size_t k, float *out);

#endif
