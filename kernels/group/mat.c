/* A group's weights: a matrix a rank, made when the first row comes, because until then it may be
 * said how they are shared. Rows come as f32 or as a file's codes, whose scales stand for whole
 * groups of columns: a share of the columns is whole groups, or refused. */
#include "base/mem.h"
#include "kernels/codes.h"
#include "kernels/group/group.h"

#include <string.h>

static int create(struct kn_dev *d, typeof(kn_mat_create) *how, size_t n, size_t k,
                  struct kn_mat **ret_mat)
{
    struct kn_mat *w = mem_zalloc(sizeof *w);
    if (!w) return -ENOMEM;
    *w = (struct kn_mat){.dev = d, .n = n, .k = k, .create = how};
    *ret_mat = w;
    return 0;
}

static int mat_create(struct kn_dev *d, size_t n, size_t k, struct kn_mat **ret_mat)
{
    return create(d, kn_mat_create, n, k, ret_mat);
}

static int mat_create_full(struct kn_dev *d, size_t n, size_t k, struct kn_mat **ret_mat)
{
    return create(d, kn_mat_create_full, n, k, ret_mat);
}

static int mat_create_f32(struct kn_dev *d, size_t n, size_t k, struct kn_mat **ret_mat)
{
    return create(d, kn_mat_create_f32, n, k, ret_mat);
}

/* What the ranks keep as codes the first says, for a row of each part. */
static int mat_create_coded(struct kn_dev *d, const struct kn_part *parts, size_t n_parts, size_t k,
                            bool full, struct kn_mat **ret_mat)
{
    struct kn_part form[GROUP_PARTS];
    struct kn_mat *probe = NULL;
    size_t n = 0;
    if (n_parts > GROUP_PARTS) return -ENOTSUP;
    for (size_t i = 0; i < n_parts; n += parts[i++].n)
        form[i] = (struct kn_part){1, parts[i].form};
    int r = kn_mat_create_coded(d->rank[0], form, n_parts, k, full, &probe);
    if (r < 0) return r;
    kn_mat_destroy(probe);
    struct kn_mat *w = NULL;
    if ((r = create(d, NULL, n, k, &w)) < 0) return r;
    memcpy(w->form, parts, n_parts * sizeof *parts);
    w->n_forms = n_parts;
    *ret_mat = w;
    return 0;
}

static bool is_coded(const struct kn_mat *w)
{
    return w->n_forms > 0;
}

/* A rank's columns are whole groups; its rows are of the same parts. */
static bool shares_codes(const struct kn_mat *w, enum kn_split how, const size_t *part,
                         size_t n_parts)
{
    if (!is_coded(w)) return true;
    bool can = how != KN_SPLIT_VOCAB && (how != KN_SPLIT_HEADS || n_parts == w->n_forms);
    for (size_t i = 0; can && i < w->n_forms; i++) {
        if (how == KN_SPLIT_SUM) can = codes_form_fits(&w->form[i].form, w->k / w->dev->n);
        if (how == KN_SPLIT_HEADS) can = part[i] == w->form[i].n;
    }
    return can;
}

static int split_mat(struct kn_mat *w, enum kn_split how, const size_t *part, size_t n_parts)
{
    const unsigned n = w->dev->n;
    size_t rows = 0;
    if (w->rank[0] || w->split != KN_SPLIT_NONE) return -EINVAL;
    if (how == KN_SPLIT_SUM && w->k % n) return -EINVAL;
    if (how == KN_SPLIT_VOCAB) part = &w->n, n_parts = 1;
    if (n_parts > GROUP_PARTS || !shares_codes(w, how, part, n_parts)) return -EINVAL;
    w->n_parts = how == KN_SPLIT_HEADS || how == KN_SPLIT_VOCAB ? n_parts : 0;
    for (size_t i = 0; i < w->n_parts; i++) {
        if (part[i] % n) return -EINVAL;
        rows += w->part[i] = part[i];
    }
    if (w->n_parts && rows != w->n) return -EINVAL;
    w->split = how;
    return 0;
}

static int make_rank(struct kn_mat *w, unsigned i)
{
    const unsigned n = w->dev->n, by = w->n_parts ? n : 1;
    const size_t k = w->split == KN_SPLIT_SUM ? w->k / n : w->k;
    struct kn_part form[GROUP_PARTS];
    if (w->create) return w->create(w->dev->rank[i], w->n / by, k, &w->rank[i]);
    for (size_t p = 0; p < w->n_forms; p++)
        form[p] = (struct kn_part){w->form[p].n / by, w->form[p].form};
    return kn_mat_create_coded(w->dev->rank[i], form, w->n_forms, k, false, &w->rank[i]);
}

static int make(struct kn_mat *w)
{
    int r = 0;
    for (unsigned i = 0; r == 0 && i < w->dev->n && !w->rank[i]; i++)
        r = make_rank(w, i);
    return r;
}

/* Rows of a weight as they come: one of both. */
struct given {
    const float *values; /* [n, k] */
    const struct codes_row *codes;
};

static int given_to(struct kn_mat *rank, size_t row0, size_t n, const struct given *g)
{
    return g->codes ? kn_mat_fill_codes(rank, row0, n, g->codes)
                    : kn_mat_fill(rank, row0, n, g->values);
}

/* Of the rows [row0, row0 + n) that are given, those that are rank i's of a part that begins at row
 * `start`. */
static int fill_part(struct kn_mat *w, unsigned i, size_t start, size_t size, size_t row0, size_t n,
                     const struct given *g)
{
    const size_t share = size / w->dev->n, from = start + i * share, to = from + share;
    const size_t lo = row0 > from ? row0 : from, hi = row0 + n < to ? row0 + n : to;
    if (lo >= hi) return 0;
    const struct given own = {g->values ? g->values + (lo - row0) * w->k : NULL,
                              g->codes ? g->codes + (lo - row0) : NULL};
    return given_to(w->rank[i], start / w->dev->n + lo - from, hi - lo, &own);
}

static void columns_of_values(const struct kn_mat *w, unsigned i, size_t n, const float *rows,
                              float *own)
{
    const size_t k = w->k / w->dev->n;
    for (size_t j = 0; j < n; j++)
        memcpy(own + j * k, rows + j * w->k + i * k, k * sizeof *own);
}

static const struct codes_form *form_of_row(const struct kn_mat *w, size_t row)
{
    size_t p = 0;
    for (; row >= w->form[p].n; p++)
        row -= w->form[p].n;
    return &w->form[p].form;
}

static void columns_of_codes(const struct kn_mat *w, unsigned i, size_t row0, size_t n,
                             const struct codes_row *rows, struct codes_row *own)
{
    const size_t col = w->k / w->dev->n * i;
    for (size_t j = 0; j < n; j++) {
        const struct codes_form *f = form_of_row(w, row0 + j);
        const size_t group = col / f->group, scale = f->super ? col / CODES_SUPER : group;
        own[j] = rows[j];
        own[j].q += col;
        own[j].d += scale;
        if (f->min) own[j].m += scale;
        if (f->super) own[j].s += group;
        if (f->super && f->min) own[j].t += group;
    }
}

/* Its columns of the rows. */
static int fill_columns(struct kn_mat *w, unsigned i, size_t row0, size_t n, const struct given *g)
{
    const size_t row = g->codes ? sizeof *g->codes : w->k / w->dev->n * sizeof *g->values;
    void *own = mem_alloc(n * row + 1);
    if (!own) return -ENOMEM;
    if (g->codes)
        columns_of_codes(w, i, row0, n, g->codes, own);
    else
        columns_of_values(w, i, n, g->values, own);
    const struct given mine = {g->codes ? NULL : own, g->codes ? own : NULL};
    const int r = given_to(w->rank[i], row0, n, &mine);
    mem_free(own);
    return r;
}

static int fill_each(struct kn_mat *w, size_t row0, size_t n, const struct given *g)
{
    if (row0 > w->n || n > w->n - row0) return -EINVAL;
    int r = make(w);
    for (unsigned i = 0; r == 0 && i < w->dev->n; i++) {
        if (w->split == KN_SPLIT_NONE) r = given_to(w->rank[i], row0, n, g);
        if (w->split == KN_SPLIT_SUM) r = fill_columns(w, i, row0, n, g);
        for (size_t p = 0, at = 0; r == 0 && p < w->n_parts; at += w->part[p++])
            r = fill_part(w, i, at, w->part[p], row0, n, g);
    }
    return r;
}

static int fill(struct kn_mat *w, size_t row0, size_t n_rows, const float *rows)
{
    return is_coded(w) ? -EINVAL : fill_each(w, row0, n_rows, &(struct given){.values = rows});
}

static int fill_codes(struct kn_mat *w, size_t row0, size_t n_rows, const struct codes_row *rows)
{
    return is_coded(w) ? fill_each(w, row0, n_rows, &(struct given){.codes = rows}) : -EINVAL;
}

static int done(struct kn_mat *w)
{
    int r = make(w);
    for (unsigned i = 0; r == 0 && i < w->dev->n; i++)
        r = kn_mat_done(w->rank[i]);
    return r;
}

/* Of all ranks. */
static size_t bytes(const struct kn_mat *w)
{
    size_t sum = 0;
    for (unsigned i = 0; i < w->dev->n; i++)
        if (w->rank[i]) sum += kn_mat_bytes(w->rank[i]);
    return sum;
}

static void destroy_each(struct kn_mat *w)
{
    for (unsigned i = 0; i < w->dev->n; i++) {
        kn_mat_destroy(w->rank[i]);
        mem_free(w->experts[i]);
    }
    mem_free(w);
}

/* Whole parts of one whose heads are shared are as far from its first row on every rank, divided.
 */
int group_mat_rows(struct kn_mat *w, size_t row0, size_t n, struct kn_mat **ret_mat)
{
    const unsigned by = w->split == KN_SPLIT_HEADS ? w->dev->n : 1;
    if (w->split == KN_SPLIT_VOCAB || row0 % by || n % by) return -EINVAL;
    struct kn_mat *part = NULL;
    int r = create(w->dev, w->create, n, w->k, &part);
    if (r < 0) return r;
    part->split = w->split;
    for (unsigned i = 0; r == 0 && i < w->dev->n; i++)
        r = w->rank[i] ? kn_mat_rows(w->rank[i], row0 / by, n / by, &part->rank[i]) : -EINVAL;
    if (r < 0)
        destroy_each(part);
    else
        *ret_mat = part;
    return r;
}

const struct kn_mat_ops group_mat_ops = {.create = mat_create,
                                         .create_full = mat_create_full,
                                         .create_f32 = mat_create_f32,
                                         .fill = fill,
                                         .done = done,
                                         .bytes = bytes,
                                         .destroy = destroy_each,
                                         .create_coded = mat_create_coded,
                                         .fill_codes = fill_codes,
                                         .split = split_mat};
