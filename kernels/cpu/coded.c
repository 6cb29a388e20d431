/* Packing rows into coded panels. */
#include "kernels/cpu/coded.h"

#include "base/assert.h"
#include "base/mem.h"
#include "kernels/cpu/cpu.h"

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
    c->all = true;
    c->panel = mem_alloc(c->n_panels * sizeof *c->panel);
    for (size_t i = 0; c->panel && i < c->n_panels; i++) {
        const struct codes_form f = panel_form(parts, n_parts, i * c->nr, c->nr);
        c->panel[i] = (struct kn_panel){f, c->bytes};
        c->bytes += panel_bytes(&f, k, c->nr);
        c->all &= f.bits == 4 || f.bits == 8;
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

/* Eight codes as nibbles: each less `low`, then neighbours drawn together. */
static uint32_t nibbles_of(const int8_t *q, int low)
{
    const uint64_t each = 0x0101010101010101u;
    uint64_t x;
    memcpy(&x, q, sizeof x);
    x = ((x & 15 * each) + each * (uint64_t)(-low & 15)) & 15 * each;
    x = (x | x >> 4) & 0x00ff00ff00ff00ffu;
    x = (x | x >> 8) & 0x0000ffff0000ffffu;
    return (uint32_t)(x | x >> 16);
}

/* Columns of one vector, which are next to each other in each of the places that they go to: whole
 * lines of cache, where they are as many as its lanes. */
struct columns {
    const struct codes_row *row; /* [n] */
    size_t n, first;             /* in the panel */
};
enum { LANES_MAX = 16 };

static void put_nibbles(const struct kn_coded *c, uint8_t *at, const struct columns *x, size_t from,
                        int low)
{
    uint32_t word[4][LANES_MAX];
    int8_t q[8];
    for (size_t j = 0; j < x->n; j++)
        for (size_t w = 0; w < 4; w++) {
            for (size_t i = 0; i < 8; i++)
                q[i] = x->row[j].q[from + kn_nibble(w, i)];
            word[w][j] = nibbles_of(q, low);
        }
    at += (x->first / c->lanes * 4 * c->lanes + x->first % c->lanes) * 4;
    for (size_t w = 0; w < 4; w++)
        memcpy(at + w * c->lanes * 4, word[w], x->n * 4);
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
        uint8_t *unit = panel + s / l.steps * l.unit;
        uint8_t *step = unit + l.unit_head + s % l.steps * l.step;
        put_scales(c, kn_by_units(f) ? unit : step, x, s / l.steps, f->min);
        for (size_t g = 0; f->super && g < n_groups; g++)
            for (size_t j = 0; j < x->n; j++) {
                step[g * nr + x->first + j] = (uint8_t)x->row[j].s[s * n_groups + g];
                if (f->min)
                    step[(n_groups + g) * nr + x->first + j] = x->row[j].t[s * n_groups + g];
            }
        step += l.step_head;
        if (f->bits == 4)
            put_nibbles(c, step, x, s * CODES_STEP, f->low);
        else
            for (size_t i = 0; i < CODES_STEP; i++)
                for (size_t j = 0; j < x->n; j++)
                    step[i * nr + x->first + j] = (uint8_t)x->row[j].q[s * CODES_STEP + i];
    }
}

static void put_16(const struct kn_coded *c, uint8_t *panel, size_t col, const uint16_t *x)
{
    for (size_t i = 0; i < c->k; i++)
        memcpy(panel + 2 * (i * c->nr + col), x + i, sizeof *x);
}

void kn_coded_fill(struct kn_coded *c, size_t row0, size_t n, const struct codes_row *rows)
{
    ASSERT(c->lanes <= LANES_MAX);
    for (size_t i = 0, now; i < n; i += now) {
        const struct kn_panel *p = &c->panel[(row0 + i) / c->nr];
        const size_t first = (row0 + i) % c->nr, most = c->lanes - first % c->lanes;
        now = n - i < most ? n - i : most;
        if (p->form.bits == 16)
            for (size_t j = 0; j < now; j++)
                put_16(c, c->data + p->at, first + j, (const void *)rows[i + j].q);
        else if (p->form.bits)
            put_codes(c, c->data + p->at, &p->form, &(struct columns){rows + i, now, first});
    }
}

void kn_coded_fill_f32(struct kn_coded *c, size_t row, const float *x)
{
    const struct kn_panel *p = &c->panel[row / c->nr];
    if (p->form.bits) return;
    float *to = (float *)(void *)(c->data + p->at) + row % c->nr;
    for (size_t i = 0; i < c->k; i++)
        to[i * c->nr] = x[i];
}
