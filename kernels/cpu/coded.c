/* Packing rows into coded panels.
 *
 * Values of a row lie side by side in a file, columns in a panel: so up to 16 rows at a time are
 * turned, 16 bytes of each in a register. */
#include "kernels/cpu/coded.h"

#include "base/mem.h"
#include "kernels/cpu/cpu.h"
#include "kernels/turn.h"

#include <string.h>

static size_t panel_bytes(const struct codes_form *f, size_t k, size_t nr)
{
    if (f->bits == 0) return k * nr * sizeof(float);
    if (f->bits == 16) return k * nr * sizeof(uint16_t);
    const struct kn_layout l = kn_layout(f, nr);
    return k / CODES_STEP / l.steps * l.unit;
}

/* The form of a panel: f32 where rows of different forms meet. */
static struct codes_form panel_form(const struct kn_part *parts, size_t n_parts, size_t row0,
                                    size_t nr)
{
    struct codes_form f = {0};
    bool any = false;
    for (size_t i = 0, at = 0; i < n_parts; at += parts[i++].n) {
        if (at >= row0 + nr || at + parts[i].n <= row0) continue;
        if (any && !codes_form_same(&f, &parts[i].form)) return (struct codes_form){0};
        f = parts[i].form;
        any = true;
    }
    return f;
}

int kn_coded_create(struct kn_dev *d, const struct kn_part *parts, size_t n_parts, size_t k,
                    struct kn_coded **ret)
{
    struct kn_coded *c = mem_zalloc(sizeof *c);
    size_t n = 0;
    if (!c) return -ENOMEM;
    *c = (struct kn_coded){.nr = d->simd->nr, .lanes = d->simd->nr / 2, .k = k, .n_parts = n_parts};
    for (size_t i = 0; i < n_parts; i++) {
        c->part[i] = parts[i];
        n += parts[i].n;
    }
    c->n_panels = (n + c->nr - 1) / c->nr;
    c->all = c->nibbles = true;
    c->panel = mem_alloc(c->n_panels * sizeof *c->panel);
    for (size_t i = 0; c->panel && i < c->n_panels; i++) {
        const struct codes_form f = panel_form(parts, n_parts, i * c->nr, c->nr);
        c->panel[i] = (struct kn_panel){f, c->bytes};
        c->bytes += panel_bytes(&f, k, c->nr);
        c->all &= f.bits == 4 || f.bits == 8;
        c->nibbles &= kn_codes_nibbles(&f);
        c->by_step |= !kn_codes_by_half(&f);
        c->by_half |= kn_codes_by_half(&f);
    }
    if (c->panel) c->data = kn_slab_take(d, c->bytes, &c->slab);
    if (!c->data) {
        kn_coded_destroy(c);
        return -ENOMEM;
    }
    /* All else is written when it is filled, by the thread that fills it. */
    if (n % c->nr)
        memset(c->data + c->panel[c->n_panels - 1].at, 0, c->bytes - c->panel[c->n_panels - 1].at);
    *ret = c;
    return 0;
}

void kn_coded_destroy(struct kn_coded *c)
{
    if (!c) return;
    mem_free(c->panel);
    kn_slab_unref(c->slab);
    mem_free(c);
}

struct codes_form kn_coded_form(const struct kn_coded *c, size_t row)
{
    size_t i = 0;
    while (i + 1 < c->n_parts && row >= c->part[i].n)
        row -= c->part[i++].n;
    return c->part[i].form;
}

/* Columns of one vector, which are next to each other in each of the places that they go to: whole
 * lines of cache, where they are as many as its lanes. */
struct columns {
    const struct codes_row *row; /* [n] */
    size_t n, first;             /* in the panel */
};

/* Of n codes of so many bytes code i of column j to to + i * stride + j * size. */
TURN_INLINE void put_turned(const struct columns *x, size_t size, size_t from, size_t n,
                            uint8_t *to, size_t stride)
{
    const uint8_t *row[KN_TURN_ROWS];
    for (size_t j = 0; j < x->n; j++)
        row[j] = (const uint8_t *)x->row[j].q + from * size;
    turn_rows(row, x->n, size, n, to, stride);
}

/* 32 codes, each less `low`, as four words of nibbles: the low nibbles of halfword h are values h
 * and 8 + h, the high ones 16 + h and 24 + h. */
static inline turn_8 nibbles_of(const int8_t *q, int low)
{
    const turn_8 a = (turn_load(q) - (uint8_t)low) & 15,
                 b = (turn_load(q + 16) - (uint8_t)low) & 15;
    return turn_low_8(a, b) | turn_high_8(a, b) << 4;
}

static void put_nibbles(const struct kn_coded *c, uint8_t *at, const struct columns *x, size_t from,
                        int low)
{
    at += (x->first / c->lanes * 4 * c->lanes + x->first % c->lanes) * 4;
    for (size_t j = 0, now; j < x->n; j += now) {
        turn_8 word[4];
        now = x->n - j < 4 ? x->n - j : 4;
#pragma GCC unroll 4
        for (size_t r = 0; r < 4; r++)
            word[r] = r < now ? nibbles_of(x->row[j + r].q + from, low) : (turn_8){0};
        turn(4, word);
#pragma GCC unroll 4
        for (size_t w = 0; w < 4; w++)
            turn_store(at + (w * c->lanes + j) * 4, word[w], now * 4);
    }
}

static void put_scales(const struct kn_coded *c, uint8_t *at, const struct columns *x, size_t i,
                       bool min)
{
    for (size_t j = 0; j < x->n; j++)
        memcpy(at + 2 * (x->first + j), x->row[j].d + i, 2);
    for (size_t j = 0; min && j < x->n; j++)
        memcpy(at + 2 * (c->nr + x->first + j), x->row[j].m + i, 2);
}

static void put_codes(const struct kn_coded *c, uint8_t *panel, const struct codes_form *f,
                      const struct columns *x)
{
    const size_t nr = c->nr, n_groups = CODES_STEP / f->group;
    const struct kn_layout l = kn_layout(f, nr);
    for (size_t s = 0; s < c->k / CODES_STEP; s++) {
        const struct kn_step at = kn_step_at(&l, s);
        uint8_t *step = panel + at.head, *codes = panel + at.codes;
        put_scales(c, kn_by_units(f) ? panel + at.unit : step, x, s / l.steps, f->min);
        for (size_t g = 0; f->super && g < n_groups; g++)
            for (size_t j = 0; j < x->n; j++) {
                step[g * nr + x->first + j] = (uint8_t)x->row[j].s[s * n_groups + g];
                if (f->min)
                    step[(n_groups + g) * nr + x->first + j] = x->row[j].t[s * n_groups + g];
            }
        if (f->bits == 4)
            put_nibbles(c, codes, x, s * CODES_STEP, f->low);
        else
            put_turned(x, 1, s * CODES_STEP, CODES_STEP, codes + x->first, nr);
    }
}

void kn_coded_fill(struct kn_coded *c, size_t row0, size_t n, const struct codes_row *rows)
{
    for (size_t i = 0, now; i < n; i += now) {
        const struct kn_panel *p = &c->panel[(row0 + i) / c->nr];
        const size_t first = (row0 + i) % c->nr, most = c->lanes - first % c->lanes;
        now = n - i < most ? n - i : most;
        const struct columns x = {rows + i, now, first};
        if (p->form.bits == 16)
            put_turned(&x, 2, 0, c->k, c->data + p->at + 2 * first, 2 * c->nr);
        else if (p->form.bits)
            put_codes(c, c->data + p->at, &p->form, &x);
    }
}

void kn_coded_fill_f32(struct kn_coded *c, size_t row, size_t n, const float *x)
{
    const struct kn_panel *p = &c->panel[row / c->nr];
    if (p->form.bits == 0) turn_floats(x, n, c->k, c->data + p->at + row % c->nr * 4, c->nr);
}
