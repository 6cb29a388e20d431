/* coded: weights in the form of a model file, in panels of nr columns as the GEMM reads them.
 *
 * A column of a panel is a row of the weight. Where the f32 panel has [k][nr] values, this has
 *   16 bits   [k][nr] uint16
 *   4, 8 bits [k / 32] steps; super: [k / 256] units of [nr] f16 D, [nr] f16 M, 8 steps; of groups
 *             of 128 [k / 128] such units, of 4 steps that are codes alone
 *   a step    [nr] f16 D, [nr] f16 M; super: [32 / group][nr] bytes of D, as many of M; its codes
 *   8 bits    [32][nr] int8
 *   4 bits    [2][4][lanes] uint32: half of the columns, word, column: nibble j of word w is value
 *             kn_nibble(w, j): the lowest nibbles of a column's eight halfwords are its first
 *             eight values, the next ones the next
 *
 * with M only where the form has it. All little-endian. A panel in which parts of different forms
 * meet is f32. Columns past the last row are zero bytes. Thread: any once it is filled. */
#ifndef KERNELS_CPU_CODED_H
#define KERNELS_CPU_CODED_H

#include "kernels/kn.h"

struct kn_panel {
    struct codes_form form;
    size_t at; /* bytes from the data's start */
};
enum { KN_PARTS_MAX = 4 };
struct kn_coded {
    unsigned nr, lanes; /* columns of a panel, of a vector */
    size_t k, n_panels, bytes;
    bool all;              /* panels are codes */
    bool nibbles;          /* they are whole numbers of 4 bits */
    bool by_step, by_half; /* some have one scale a step, some two */
    struct kn_panel *panel;
    uint8_t *data; /* in the slab */
    struct kn_slab *slab;
    struct kn_part part[KN_PARTS_MAX];
    size_t n_parts;
};

struct kn_layout { /* bytes */
    size_t unit_head, step_head, step, unit, steps /* number of a unit's */;
};
/* Whether D and M are a unit's, of several steps. */
static inline __attribute__((always_inline)) bool kn_by_units(const struct codes_form *f)
{
    return f->super || f->group > CODES_STEP;
}

static inline __attribute__((always_inline)) struct kn_layout kn_layout(const struct codes_form *f,
                                                                        size_t nr)
{
    const size_t pair = f->min ? 2 : 1, wide = kn_by_units(f) ? pair * 2 * nr : 0;
    struct kn_layout l = {.unit_head = wide,
                          .step_head = f->super ? pair * nr * (CODES_STEP / f->group)
                                       : wide   ? 0
                                                : pair * nr * 2,
                          .steps = f->super ? CODES_SUPER / CODES_STEP
                                   : wide   ? f->group / CODES_STEP
                                            : 1};
    l.step = l.step_head + CODES_STEP * nr * f->bits / 8;
    l.unit = l.unit_head + l.steps * l.step;
    return l;
}

struct kn_step { /* bytes from the panel's start */
    size_t unit, head, codes;
};
static inline __attribute__((always_inline)) struct kn_step kn_step_at(const struct kn_layout *l,
                                                                       size_t step)
{
    const size_t unit = step / l->steps * l->unit;
    const size_t head = unit + l->unit_head + step % l->steps * l->step;
    return (struct kn_step){unit, head, head + l->step_head};
}

static inline __attribute__((always_inline)) size_t kn_nibble(size_t w, size_t j)
{
    return 8 * (j % 4) + 2 * w + j / 4;
}

/* Whole numbers of 4 bits: some products take them as they are. */
static inline __attribute__((always_inline)) bool kn_codes_nibbles(const struct codes_form *f)
{
    return f->bits == 4 && !f->table;
}
static inline __attribute__((always_inline)) bool kn_codes_by_half(const struct codes_form *f)
{
    return f->group < CODES_STEP;
}

struct kn_dev;
/* mem.c: of what is smaller than a large page a piece, aligned to 64, of a slab that the device's
 * weights share. It is freed with the last of them. */
void *kn_slab_take(struct kn_dev *d, size_t bytes, struct kn_slab **ret);
void kn_slab_unref(struct kn_slab *s); /* accepts NULL */
int kn_coded_create(struct kn_dev *d, const struct kn_part *parts, size_t n_parts, size_t k,
                    struct kn_coded **ret);
void kn_coded_destroy(struct kn_coded *c);                             /* accepts NULL */
struct codes_form kn_coded_form(const struct kn_coded *c, size_t row); /* as it came */
/* By codes where the panel has them, by values where it is f32; the other call does nothing. Values
 * are of rows of one panel, KN_TURN_ROWS at most. */
void kn_coded_fill(struct kn_coded *c, size_t row0, size_t n, const struct codes_row *rows);
void kn_coded_fill_f32(struct kn_coded *c, size_t row, size_t n, const float *x);

#endif
