/* A group's weights: a matrix a rank, made when the first row comes, because until then it may be
 * said how they are shared. Rows come decoded: the forms of files are not dealt out. */
#include "base/mem.h"
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

static int split_mat(struct kn_mat *w, enum kn_split how, const size_t *part, size_t n_parts)
{
    const unsigned n = w->dev->n;
    size_t rows = 0;
    if (w->rank[0] || w->split != KN_SPLIT_NONE) return -EINVAL;
    if (how == KN_SPLIT_SUM && w->k % n) return -EINVAL;
    if (how == KN_SPLIT_VOCAB) part = &w->n, n_parts = 1;
    if (n_parts > sizeof w->part / sizeof *w->part) return -EINVAL;
    w->n_parts = how == KN_SPLIT_HEADS || how == KN_SPLIT_VOCAB ? n_parts : 0;
    for (size_t i = 0; i < w->n_parts; i++) {
        if (part[i] % n) return -EINVAL;
        rows += w->part[i] = part[i];
    }
    if (w->n_parts && rows != w->n) return -EINVAL;
    w->split = how;
    return 0;
}

static int make(struct kn_mat *w)
{
    const unsigned n = w->dev->n;
    const size_t rows = w->n_parts ? w->n / n : w->n,
                 k = w->split == KN_SPLIT_SUM ? w->k / n : w->k;
    int r = 0;
    for (unsigned i = 0; r == 0 && i < n && !w->rank[i]; i++)
        r = w->create(w->dev->rank[i], rows, k, &w->rank[i]);
    return r;
}

/* Of the rows [row0, row0 + n) that begin at `rows`, those that are rank i's of a part that begins
 * at row `start`. */
static int fill_part(struct kn_mat *w, unsigned i, size_t start, size_t size, size_t row0, size_t n,
                     const float *rows)
{
    const size_t share = size / w->dev->n, from = start + i * share, to = from + share;
    const size_t lo = row0 > from ? row0 : from, hi = row0 + n < to ? row0 + n : to;
    if (lo >= hi) return 0;
    return kn_mat_fill(w->rank[i], start / w->dev->n + lo - from, hi - lo,
                       rows + (lo - row0) * w->k);
}

/* Its columns of the rows. */
static int fill_columns(struct kn_mat *w, unsigned i, size_t row0, size_t n, const float *rows)
{
    const size_t k = w->k / w->dev->n;
    float *own = mem_alloc(n * k * sizeof *own + 1);
    if (!own) return -ENOMEM;
    for (size_t j = 0; j < n; j++)
        memcpy(own + j * k, rows + j * w->k + i * k, k * sizeof *own);
    const int r = kn_mat_fill(w->rank[i], row0, n, own);
    mem_free(own);
    return r;
}

static int fill(struct kn_mat *w, size_t row0, size_t n_rows, const float *rows)
{
    if (row0 > w->n || n_rows > w->n - row0) return -EINVAL;
    int r = make(w);
    for (unsigned i = 0; r == 0 && i < w->dev->n; i++) {
        if (w->split == KN_SPLIT_NONE) r = kn_mat_fill(w->rank[i], row0, n_rows, rows);
        if (w->split == KN_SPLIT_SUM) r = fill_columns(w, i, row0, n_rows, rows);
        for (size_t p = 0, at = 0; r == 0 && p < w->n_parts; at += w->part[p++])
            r = fill_part(w, i, at, w->part[p], row0, n_rows, rows);
    }
    return r;
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
                                         .split = split_mat};
