/* Packing rows into coded panels. */
#include "kernels/cpu/coded.h"

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
    c->panel = mem_alloc(c->n_panels * sizeof *c->panel);
    for (size_t i = 0; c->panel && i < c->n_panels; i++) {
        const struct codes_form f = panel_form(parts, n_parts, i * c->nr, c->nr);
        c->panel[i] = (struct kn_panel){f, c->bytes};
        c->bytes += panel_bytes(&f, k, c->nr);
    }
    if (c->panel) c->data = kn_slab_take(d, c->bytes, &c->slab);
    if (!c->data) {
        kn_coded_destroy(c);
        return -ENOMEM;
    }
    memset(c->data, 0, c->bytes);
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

static void put_nibbles(uint8_t *at, const int8_t *q, int low, const struct kn_coded *c, size_t col)
{
    for (size_t w = 0; w < 4; w++) {
        uint32_t word = 0;
        for (size_t j = 0; j < 8; j++)
            word |= (uint32_t)(q[8 * w + j] - low) << 4 * j;
        memcpy(at + ((col / c->lanes * 4 + w) * c->lanes + col % c->lanes) * 4, &word, 4);
    }
}

static void put_codes(const struct kn_coded *c, uint8_t *panel, size_t col,
                      const struct codes_form *f, const struct codes_row *row)
{
    const size_t nr = c->nr;
    const struct kn_layout l = kn_layout(f, nr);
    const size_t n_groups = CODES_STEP / f->group;
    for (size_t s = 0; s < c->k / CODES_STEP; s++) {
        uint8_t *unit = panel + s / l.steps * l.unit;
        uint8_t *step = unit + l.unit_head + s % l.steps * l.step;
        uint8_t *head = f->super ? unit : step;
        const int8_t *q = row->q + s * CODES_STEP;
        memcpy(head + 2 * col, row->d + s / l.steps, 2);
        if (f->min) memcpy(head + 2 * (nr + col), row->m + s / l.steps, 2);
        for (size_t g = 0; f->super && g < n_groups; g++) {
            step[g * nr + col] = (uint8_t)row->s[s * n_groups + g];
            if (f->min) step[(n_groups + g) * nr + col] = row->t[s * n_groups + g];
        }
        if (f->bits == 4)
            put_nibbles(step + l.step_head, q, f->low, c, col);
        else
            for (size_t i = 0; i < CODES_STEP; i++)
                step[l.step_head + i * nr + col] = (uint8_t)q[i];
    }
}

static void put_16(const struct kn_coded *c, uint8_t *panel, size_t col, const uint16_t *x)
{
    for (size_t i = 0; i < c->k; i++)
        memcpy(panel + 2 * (i * c->nr + col), x + i, sizeof *x);
}

void kn_coded_fill(struct kn_coded *c, size_t row, const struct codes_row *codes)
{
    const struct kn_panel *p = &c->panel[row / c->nr];
    if (p->form.bits == 16)
        put_16(c, c->data + p->at, row % c->nr, (const void *)codes->q);
    else if (p->form.bits)
        put_codes(c, c->data + p->at, row % c->nr, &p->form, codes);
}

void kn_coded_fill_f32(struct kn_coded *c, size_t row, const float *x)
{
    const struct kn_panel *p = &c->panel[row / c->nr];
    if (p->form.bits) return;
    float *to = (float *)(void *)(c->data + p->at) + row % c->nr;
    for (size_t i = 0; i < c->k; i++)
        to[i * c->nr] = x[i];
}
