/* Weights in the form of a file: which there are, and rows of codes in the layout of coded.h.
 *
 * A weight is put together in the host's memory and copied as a whole when it is complete: rows may
 * come in any order, tiles need no second look, and the copy is one of at most 0.3 GB for a 70B
 * model's widest. The alternative, a launch a row that scatters it on the device, is seven million
 * launches for such a model. */
#include "kernels/cuda/coded.h"

#include "base/mem.h"
#include "kernels/kn.h"

#include <errno.h>
#include <string.h>

enum { GROUPS = CU_CODED_STEP / CODES_STEP, HALF = CU_CODED_ROWS / 2, LANES = HALF * GROUPS };

static size_t steps_of(const struct cu_coded *p)
{
    return (p->k + CU_CODED_STEP - 1) / CU_CODED_STEP;
}

static size_t bytes_of(const struct cu_coded *p)
{
    return (p->n + CU_CODED_ROWS - 1) / CU_CODED_ROWS * steps_of(p) * p->step_bytes;
}

static struct cu_coded part_of(const struct kn_part *from, size_t k)
{
    const struct codes_form f = from->form;
    const unsigned sides = f.min ? 2 : 1, per = f.super ? CODES_STEP / f.group : 2;
    struct cu_coded p = {.form = f,
                         .code_bytes = CU_CODED_ROWS * CU_CODED_STEP * f.bits / 8,
                         .head_bytes = sides * per < 2 ? 2 : sides * per,
                         .n = from->n,
                         .k = k};
    p.step_bytes = p.code_bytes +
                   (f.group < CU_CODED_STEP ? 2 * LANES : CU_CODED_ROWS) * p.head_bytes +
                   (f.super ? CU_CODED_ROWS * 2 * (unsigned)sizeof(uint16_t) : 0);
    memcpy(p.table, codes_table[f.table], sizeof p.table);
    return p;
}

int cu_codes_create(const struct kn_part *parts, size_t n_parts, size_t k, struct cu_codes **ret)
{
    struct cu_codes w = {0};
    for (size_t i = 0; i < n_parts; i++) {
        struct cu_coded *last = w.n_parts > 0 ? &w.part[w.n_parts - 1] : NULL;
        if (parts[i].form.bits != 4 && parts[i].form.bits != 8) return -ENOTSUP;
        if (parts[i].n == 0) continue;
        if (last && codes_form_same(&last->form, &parts[i].form)) {
            last->n += parts[i].n;
            continue;
        }
        if (w.n_parts == CU_CODED_PARTS) return -ENOTSUP;
        w.part[w.n_parts++] = part_of(&parts[i], k);
    }
    for (size_t i = 0; i < w.n_parts; i++)
        w.bytes += bytes_of(&w.part[i]);
    struct cu_codes *made = mem_alloc(sizeof *made);
    if (made) w.filling = mem_zalloc(w.bytes);
    if (!w.filling) {
        mem_free(made);
        return -ENOMEM;
    }
    *made = w;
    *ret = made;
    return 0;
}

void cu_codes_destroy(struct cu_codes *w)
{
    if (w) mem_free(w->filling);
    mem_free(w);
}

void cu_codes_place(struct cu_codes *w, char *at)
{
    for (size_t i = 0; i < w->n_parts; at += bytes_of(&w->part[i++]))
        w->part[i].data = at;
}

void cu_codes_filled(struct cu_codes *w)
{
    mem_free(w->filling);
    w->filling = NULL;
}

/* A lane's 32 codes, from column `col` on. */
static void put_codes(const struct cu_coded *p, const struct codes_row *row, size_t col,
                      unsigned lane, unsigned half, char *step)
{
    const size_t bytes = p->form.bits * 2u; /* of 16 codes */
    for (unsigned nth = 0; nth < 2; nth++) {
        uint8_t *to = (uint8_t *)step + ((half * 2 + nth) * LANES + lane) * bytes;
        const int8_t *q = row->q + col + nth * 16;
        if (p->form.bits == 8) memcpy(to, q, 16);
        for (unsigned i = 0; p->form.bits == 4 && i < 8; i++)
            to[i] = (uint8_t)((q[2 * i] - p->form.low) | (q[2 * i + 1] - p->form.low) << 4);
    }
}

static void put_scales(const struct cu_coded *p, const struct codes_row *row, size_t col,
                       char *head)
{
    const struct codes_form *f = &p->form;
    const size_t n = CODES_STEP / f->group, at = col / f->group;
    if (!f->super) {
        memcpy(head, row->d + at, 2);
        if (f->min) memcpy(head + 2, row->m + at, 2);
        return;
    }
    memcpy(head, row->s + at, n);
    if (f->min) memcpy(head + n, row->t + at, n);
}

static void put_super(const struct codes_form *f, const struct codes_row *row, size_t col, char *to)
{
    memcpy(to, row->d + col / CODES_SUPER, 2);
    if (f->min) memcpy(to + 2, row->m + col / CODES_SUPER, 2);
}

static void put_row(const struct cu_coded *p, char *base, size_t row, const struct codes_row *from)
{
    const unsigned nth = row % CU_CODED_ROWS, half = nth / HALF;
    char *step = base + row / CU_CODED_ROWS * steps_of(p) * p->step_bytes;
    for (size_t col0 = 0; col0 < p->k; col0 += CU_CODED_STEP, step += p->step_bytes) {
        char *heads = step + p->code_bytes, *units = heads + 2 * LANES * p->head_bytes;
        for (unsigned c = 0; c < GROUPS && col0 + c * CODES_STEP < p->k; c++) {
            const unsigned lane = nth % HALF * GROUPS + c;
            const size_t col = col0 + c * CODES_STEP;
            put_codes(p, from, col, lane, half, step);
            const size_t head = p->form.group < CU_CODED_STEP ? 2 * lane + half : nth;
            put_scales(p, from, col, heads + head * p->head_bytes);
        }
        if (p->form.super) put_super(&p->form, from, col0, units + nth * 4);
    }
}

int cu_codes_put(struct cu_codes *w, size_t row, const struct codes_row *codes)
{
    char *base = w->filling;
    size_t i = 0;
    for (; base && i < w->n_parts && row >= w->part[i].n; i++) {
        row -= w->part[i].n;
        base += bytes_of(&w->part[i]);
    }
    if (!base || i == w->n_parts) return -EINVAL;
    put_row(&w->part[i], base, row, codes);
    return 0;
}

int cu_codes_gemm(struct cu *c, const struct cu_codes *w, size_t row0, const struct cu_gemm *g,
                  uint16_t *values)
{
    int r = 0;
    for (size_t i = 0, part0 = 0; r == 0 && i < w->n_parts; part0 += w->part[i++].n) {
        const struct cu_coded *part = &w->part[i];
        const size_t end = part0 + part->n, g_end = row0 + g->n;
        const size_t from = part0 > row0 ? part0 : row0, to = end < g_end ? end : g_end;
        if (from >= to) continue;
        struct cu_gemm mine = *g;
        const size_t at = from - row0; /* columns of the result in front of these */
        mine.n = to - from;
        mine.c = (char *)g->c + at * cu_value_bytes(g->out);
        if (g->bias) mine.bias = g->bias + at;
        r = values ? cu_coded_values(c, part, from - part0, mine.n, values + at * g->k)
                   : cu_coded_gemm(c, part, from - part0, &mine);
    }
    return r;
}
