/* Weights packed for the chosen GEMM, and the GEMM itself.
 *
 * Kernels read panels of nr columns, [n / nr][k][nr] (bf16: [n / nr][k / 2][nr][2]), padded with
 * zeros. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pairs.h"
#include "kernels/turn.h"
#include "base/assert.h"
#include "base/mem.h"

#include <string.h>

const char *kn_gemm_name(enum kn_gemm_kind kind)
{
    static const char *const names[GEMM_KINDS] = {"own-f32", "own-bf16", "own-int16"};
    return names[kind];
}

static size_t panels_of(const struct kn_mat *w)
{
    return (w->n + w->dev->simd->nr - 1) / w->dev->simd->nr;
}

/* Of its kind's own form; 0 on overflow. */
static size_t data_bytes(const struct kn_mat *w)
{
    size_t nr = w->dev->simd->nr, cells, k = w->kind == GEMM_OWN_BF16 ? (w->k + 1) / 2 : w->k;
    return size_mul(panels_of(w) * nr, k, &cells) && size_mul(cells, 4, &cells) ? cells : 0;
}

static size_t mat_bytes(const struct kn_mat *w)
{
    return (w->coded  ? w->coded->bytes
            : w->data ? data_bytes(w)
                      : 0) +
           (w->int8 ? w->int8->bytes : 0);
}

int kn_mat_create_kind(struct kn_dev *d, size_t n, size_t k, enum kn_gemm_kind kind,
                       struct kn_mat **ret_mat)
{
    struct kn_mat *w = mem_zalloc(sizeof *w);
    if (!w) return -ENOMEM;
    *w = (struct kn_mat){.dev = d, .n = n, .k = k, .kind = kind};
    w->data = kn_huge_alloc(data_bytes(w));
    if (!w->data) {
        mem_free(w);
        return -ENOMEM;
    }
    *ret_mat = w;
    return 0;
}

/* Whether the codes are fewer bytes than what the chosen GEMM keeps. Those of 8 bits and less are
 * kept beside weights in 8 bits: for decode steps. */
static bool coded_pays(const struct kn_dev *d, const struct kn_part *parts, size_t n_parts,
                       bool int8)
{
    size_t bits = 0, kept = 0;
    for (size_t i = 0; i < n_parts; i++) {
        const struct codes_form *f = &parts[i].form;
        if (f->bits < 16 && f->bits && !d->simd->codes_panel(f, NULL, 0, 0, NULL)) return false;
        bits += parts[i].n * (f->bits ? f->bits : 32);
        kept += parts[i].n * (int8 || d->gemm == GEMM_OWN_BF16 ? 16 : 32);
    }
    return bits < kept;
}

static void mat_destroy(struct kn_mat *w)
{
    kn_coded_destroy(w->coded);
    kn_int8_destroy(w->int8);
    mem_free(w->data);
    mem_free(w);
}

/* The head is not in fewer bits where other kinds of numbers serve the layers. */
static enum kn_gemm_kind kind_of(const struct kn_dev *d, bool full)
{
    return full && d->gemm == GEMM_OWN_INT16 ? GEMM_OWN_F32 : d->gemm;
}

static int mat_create_coded(struct kn_dev *d, const struct kn_part *parts, size_t n_parts, size_t k,
                            bool full, struct kn_mat **ret_mat)
{
    const bool int8 = d->int8 && !d->bytes && !full;
    size_t n = 0;
    if (n_parts > KN_PARTS_MAX || !coded_pays(d, parts, n_parts, int8)) return -ENOTSUP;
    for (size_t i = 0; i < n_parts; i++)
        n += parts[i].n;
    struct kn_mat *w = mem_zalloc(sizeof *w);
    if (!w) return -ENOMEM;
    *w = (struct kn_mat){
        .dev = d, .n = n, .k = k, .kind = kind_of(d, full), .bytes = d->bytes && !full};
    int r = kn_coded_create(d, parts, n_parts, k, &w->coded);
    if (r == 0 && int8) r = kn_int8_create(d, n, k, &w->int8);
    if (r < 0) {
        mat_destroy(w);
        return r;
    }
    *ret_mat = w;
    return 0;
}

static int mat_create_full(struct kn_dev *d, size_t n, size_t k, struct kn_mat **ret_mat)
{
    return kn_mat_create_kind(d, n, k, kind_of(d, true), ret_mat);
}

static int mat_create(struct kn_dev *d, size_t n, size_t k, struct kn_mat **ret_mat)
{
    if (!d->int8) return kn_mat_create_kind(d, n, k, kind_of(d, false), ret_mat);
    if (d->bytes) {
        const int r = kn_mat_create_kind(d, n, k, GEMM_OWN_F32, ret_mat);
        if (r == 0) (*ret_mat)->bytes = true;
        return r;
    }
    struct kn_mat *w = mem_zalloc(sizeof *w);
    if (!w) return -ENOMEM;
    *w = (struct kn_mat){.dev = d, .n = n, .k = k, .kind = d->gemm};
    int r = kn_int8_create(d, n, k, &w->int8);
    if (r < 0) {
        mem_free(w);
        return r;
    }
    *ret_mat = w;
    return 0;
}

static int mat_create_f32(struct kn_dev *d, size_t n, size_t k, struct kn_mat **ret_mat)
{
    return kn_mat_create_kind(d, n, k, GEMM_OWN_F32, ret_mat);
}

static void fill_f32(struct kn_mat *w, size_t row, size_t n, const float *x)
{
    const size_t nr = w->dev->simd->nr;
    turn_floats(x, n, w->k, (float *)w->data + row / nr * w->k * nr + row % nr, nr);
}

static void fill_bf16(struct kn_mat *w, size_t row, size_t n, const float *x)
{
    enum { PIECE = 256 };
    const size_t nr = w->dev->simd->nr, pairs = (w->k + 1) / 2;
    uint32_t *to = (uint32_t *)w->data + row / nr * pairs * nr + row % nr;
    uint16_t buf[KN_TURN_ROWS][PIECE];
    const uint8_t *from[KN_TURN_ROWS];
    for (size_t i = 0; i < n; i++)
        from[i] = (const void *)buf[i];
    for (size_t k = 0, m; k < w->k; k += m) {
        m = w->k - k < PIECE ? w->k - k : PIECE;
        for (size_t i = 0; i < n; i++) {
            w->dev->simd->stored.encode_bf16(x + i * w->k + k, m, buf[i]);
            if (m % 2) buf[i][m] = 0;
        }
        turn_rows(from, n, 4, (m + 1) / 2, (void *)(to + k / 2 * nr), nr * 4);
    }
}

/* The columns past n in the last panel, and nothing else. */
static void fill_padding(struct kn_mat *w)
{
    const size_t nr = w->dev->simd->nr, units = w->kind == GEMM_OWN_BF16 ? (w->k + 1) / 2 : w->k;
    uint32_t *last = (uint32_t *)w->data + (panels_of(w) - 1) * units * nr;
    const size_t from = w->n - (panels_of(w) - 1) * nr;
    for (size_t k = 0; from < nr && k < units; k++)
        memset(last + k * nr + from, 0, (nr - from) * sizeof *last);
}

/* Rows of one panel, KN_TURN_ROWS at most. */
static int fill_rows(struct kn_mat *w, size_t row, size_t n, const float *x)
{
    const int r = w->int8 ? kn_int8_fill(w->dev, w->int8, row, n, x, w->k) : 0;
    if (r < 0) return r;
    if (w->coded)
        kn_coded_fill_f32(w->coded, row, n, x);
    else if (w->data)
        (w->kind == GEMM_OWN_BF16 ? fill_bf16 : fill_f32)(w, row, n, x);
    return 0;
}

/* How many of n rows from `row` on go together. */
static size_t rows_together(const struct kn_mat *w, size_t row, size_t n)
{
    const size_t left = w->dev->simd->nr - row % w->dev->simd->nr;
    const size_t most = left < KN_TURN_ROWS ? left : KN_TURN_ROWS;
    return n < most ? n : most;
}

static int mat_fill(struct kn_mat *w, size_t row0, size_t n_rows, const float *rows)
{
    if (row0 > w->n || n_rows > w->n - row0 || w->ready) return -EINVAL;
    for (size_t i = 0; w->coded && i < n_rows; i++)
        if (kn_coded_form(w->coded, row0 + i).bits) return -EINVAL;
    int r = 0;
    for (size_t i = 0, now; r == 0 && i < n_rows; i += now) {
        now = rows_together(w, row0 + i, n_rows - i);
        r = fill_rows(w, row0 + i, now, rows + i * w->k);
    }
    return r;
}

static int mat_fill_codes(struct kn_mat *w, size_t row0, size_t n_rows,
                          const struct codes_row *rows)
{
    if (row0 > w->n || n_rows > w->n - row0 || w->ready || !w->coded) return -EINVAL;
    bool values = w->int8;
    for (size_t i = row0; i < row0 + n_rows; i++) {
        if (kn_coded_form(w->coded, i).bits == 0) return -EINVAL;
        values = values || w->coded->panel[i / w->coded->nr].form.bits == 0;
    }
    kn_coded_fill(w->coded, row0, n_rows, rows);
    float *x = values ? mem_alloc(KN_TURN_ROWS * w->k * sizeof *x) : NULL;
    if (values && !x) return -ENOMEM;
    int r = 0;
    for (size_t i = 0, now; values && r == 0 && i < n_rows; i += now) {
        now = rows_together(w, row0 + i, n_rows - i);
        for (size_t at = 0; at < now; at++) {
            const struct codes_form f = kn_coded_form(w->coded, row0 + i + at);
            codes_values(&f, &rows[i + at], w->k, x + at * w->k);
        }
        r = fill_rows(w, row0 + i, now, x);
    }
    mem_free(x);
    return r;
}

static int mat_done(struct kn_mat *w)
{
    if (w->ready) return -EINVAL;
    if (w->data) fill_padding(w);
    w->ready = true;
    return 0;
}

/* Codes can be multiplied as they are, and not all has to be f32. */
static bool has_rows16(const struct kn_mat *w)
{
    const struct kn_dev *d = w->dev;
    const bool free = !d->forced && d->arith == KN_ARITH_AUTO && d->allow_bf16;
    if (!d->rows16 || !w->coded || w->bytes) return false;
    return (d->rows16->nibbles_only ? w->coded->nibbles : w->coded->all) &&
           (free || d->gemm != GEMM_OWN_F32 || d->int8);
}

/* Not on tiles, whose bf16 is about as fast (reckoned); nor what is in 8 bits already. */
static bool mat_rough(const struct kn_mat *w)
{
    return has_rows16(w) && !kn_cpu_tiles(w->dev) && !w->int8;
}

const struct kn_mat_ops kn_cpu_mat_ops = {.create = mat_create,
                                          .fill = mat_fill,
                                          .done = mat_done,
                                          .bytes = mat_bytes,
                                          .destroy = mat_destroy,
                                          .create_full = mat_create_full,
                                          .create_coded = mat_create_coded,
                                          .fill_codes = mat_fill_codes,
                                          .create_f32 = mat_create_f32,
                                          .rough = mat_rough};

/* Products with weights of one shape; items are whole groups of a weight's panels. */
struct gemm_par {
    const struct kn_gemm_args *a;
    size_t n_items;        /* of each product, */
    size_t n_large, large; /* whose first n_large are as long as `large` others */
    char *rows;            /* rounded, one product's behind the other's; NULL: as they are */
    char *columns;         /* the same, as columns of tiles */
    size_t row_items;      /* of each product, ROWS rows of it */
    void *pairs;    /* of the one product there is, as pairs; NULL: each item makes its own */
    kn_glu_fn *glu; /* of its columns, and where that goes; see struct kn_gemm_job */
    void *gated;
    size_t ldg;
};

enum { ROWS = 16 }; /* that are rounded together; chosen */

/* Decode steps beside codes take these, as bytes where they stay what they are, and f32 where that
 * is what a weight is kept in. */
static bool by_rows8(const struct kn_mat *w)
{
    if (!w->dev->replaying) return w->bytes || w->int8;
    return w->bytes && w->coded ? w->coded->nibbles && !w->coded->by_half : w->int8 && !w->coded;
}

/* Codes as they are: decode steps, and rows that are rounded to 8 bits. */
static bool by_rows16(const struct kn_mat *w)
{
    return w->dev->replaying ? has_rows16(w) : w->dev->rough && mat_rough(w);
}

static size_t place_rows16(const struct kn_gemm_args *a, char *at, struct kn_rows16 *ret)
{
    const size_t bytes = kn_rows16_place(a->w->coded, a->m, at, ret);
    ret->bytes = !a->w->dev->replaying;
    return bytes;
}

/* Of one product; 0: they stay f32, or are rounded elsewhere. */
static size_t rows_bytes(const struct kn_gemm_args *a)
{
    struct kn_int8_rows rows8;
    struct kn_rows16 rows16;
    if (by_rows16(a->w)) return place_rows16(a, NULL, &rows16);
    if (!by_rows8(a->w)) return 0;
    return a->w->bytes ? kn_bytes_size(a->m, a->w->k) : kn_int8_place(a->m, a->w->k, NULL, &rows8);
}

static char *rounded_at(const struct gemm_par *g, size_t i)
{
    char *at = g->rows;
    for (size_t p = 0; p < i; p++)
        at += rows_bytes(&g->a[p]);
    return at;
}

/* Some rows of one product. */
static int rows_item(struct kn_stream *st, void *arg, size_t item)
{
    const struct gemm_par *g = arg;
    const struct kn_gemm_args *a = &g->a[item / g->row_items];
    const size_t row = item % g->row_items * ROWS, left = a->m > row ? a->m - row : 0;
    const size_t n = left < ROWS ? left : ROWS;
    char *at = rounded_at(g, item / g->row_items);
    if (n == 0 || rows_bytes(a) == 0) return 0;
    if (by_rows16(a->w)) {
        struct kn_rows16 r;
        (void)place_rows16(a, at, &r);
        st->dev->rows16->round(a->a, a->lda, row, n, &r);
        return 0;
    }
#if defined(__x86_64__)
    static_assert(ROWS % KN_BYTES_ROWS == 0, "whole tiles");
    if (a->w->bytes) {
        void *to = at + kn_bytes_size(row, a->w->k);
        kn_avx2_bytes_rows(a->a + row * a->lda, a->lda, n, a->w->k, to);
        return 0;
    }
#endif
    struct kn_int8_rows r;
    (void)kn_int8_place(a->m, a->w->k, at, &r);
    float *room = kn_cpu_scratch(st, KN_SLOT_WEIGHTS, KN_GEMM_BLOCK);
    if (!room) return -ENOMEM;
    r.q += row * r.stride;
    r.scale += row;
    r.sum += row;
    kn_int8_rows_of(st->dev->isa)(a->a + row * a->lda, a->lda, n, a->w->k, room, &r);
    return 0;
}

/* Products of few rows with codes, on tiles. */
static bool by_columns(const struct kn_mat *w, size_t m)
{
    return w->coded && w->coded->all && m <= KN_COLUMN_ROWS && kn_cpu_tiles(w->dev) &&
           !by_rows16(w);
}

/* Where those of product i begin, bytes. */
static size_t columns_at(const struct gemm_par *g, size_t i)
{
    size_t at = 0;
    for (size_t p = 0; p < i; p++)
        if (by_columns(g->a[p].w, g->a[p].m)) at += kn_columns_bytes(g->a[p].m, g->a[p].w->k);
    return at;
}

/* One tile of rows of one product. */
static int columns_item(struct kn_stream *st, void *arg, size_t item)
{
#if defined(__x86_64__) /* elsewhere there are no tiles, so none comes */
    const struct gemm_par *g = arg;
    const size_t i = item / KN_COLUMN_TILES, row = item % KN_COLUMN_TILES * KN_COLUMNS;
    const struct kn_gemm_args *a = &g->a[i];
    if (by_columns(a->w, a->m) && row < a->m)
        kn_amx_columns(a->a + row * a->lda, a->lda, a->m - row, a->w->k,
                       g->columns + columns_at(g, i) + row * a->w->k * 2);
#endif
    return 0;
}

static int prepare_columns(struct kn_stream *st, struct gemm_par *g, size_t n)
{
    const size_t bytes = columns_at(g, n);
    if (bytes == 0) return 0;
    g->columns = kn_cpu_scratch(st, KN_SLOT_COLUMNS, bytes);
    if (!g->columns) return -ENOMEM;
    if (n == 1 && g->a->m <= KN_COLUMNS) return columns_item(st, g, 0);
    return kn_par(st, n * KN_COLUMN_TILES, columns_item, g);
}

/* A weight on its way to other numbers costs more than the product with one row. */
static bool by_f32(const struct kn_mat *w)
{
    const bool turned = w->coded || w->kind == GEMM_OWN_INT16;
    return w->kind == GEMM_OWN_F32 || (turned && w->dev->replaying && !by_rows16(w));
}

/* Products in bf16 that read rows as pairs. */
static bool by_pairs(const struct kn_mat *w, size_t m)
{
    return w->dev->isa == KN_ISA_AMX && w->kind == GEMM_OWN_BF16 && !by_f32(w) &&
           !by_columns(w, m) && !by_rows16(w);
}

static int pairs_item(struct kn_stream *st, void *arg, size_t item)
{
#if defined(__x86_64__)
    const struct gemm_par *g = arg;
    const struct kn_gemm_args *a = g->a;
    const size_t row = item * KN_COLUMNS, left = a->m - row;
    kn_amx_pairs(a->a + row * a->lda, a->lda, left < KN_COLUMNS ? left : KN_COLUMNS, a->w->k,
                 (uint32_t *)g->pairs + row * kn_pairs_stride(a->w->k));
#endif
    return 0;
}

/* Of one product of many rows whose columns are shared out. */
static int prepare_pairs(struct kn_stream *st, struct gemm_par *g)
{
    const struct kn_gemm_args *a = g->a;
    if (g->pairs || g->n_items == 1 || a->m <= KN_COLUMNS || a->m > KN_PAIRS_ROWS ||
        !by_pairs(a->w, a->m))
        return 0;
    g->pairs = kn_cpu_scratch(st, KN_SLOT_ROWS, kn_pairs_bytes(a->m, a->w->k));
    if (!g->pairs) return -ENOMEM;
    return kn_par(st, (a->m + KN_COLUMNS - 1) / KN_COLUMNS, pairs_item, g);
}

/* Rows are rounded before products share them. */
static int prepare_rows(struct kn_stream *st, struct gemm_par *g, size_t n)
{
    size_t bytes = 0, m = 1;
    for (size_t i = 0; i < n; i++) {
        bytes += rows_bytes(&g->a[i]);
        m = m > g->a[i].m ? m : g->a[i].m;
    }
    const int r = prepare_columns(st, g, n);
    if (r < 0) return r;
    if (bytes == 0) return n == 1 ? prepare_pairs(st, g) : 0;
    g->row_items = (m + ROWS - 1) / ROWS;
    g->rows = kn_cpu_scratch(st, KN_SLOT_ROWS, bytes);
    if (!g->rows) return -ENOMEM;
    return kn_par(st, n * g->row_items, rows_item, g);
}

/* Panels that stay together: read at once, or one of gates and its other half. */
static size_t group_of(const struct gemm_par *g, const struct kn_mat *w)
{
    return w->coded || g->glu ? KN_GEMM_FEW : 1;
}

static size_t n_groups(const struct gemm_par *g, const struct kn_mat *w)
{
    return (panels_of(w) + group_of(g, w) - 1) / group_of(g, w);
}

static size_t item_start(const struct gemm_par *g, const struct kn_mat *w, size_t item)
{
    const size_t more = g->large - 1, all = g->n_items + g->n_large * more;
    const size_t at = item + (item < g->n_large ? item : g->n_large) * more;
    const size_t p = at * n_groups(g, w) / all * group_of(g, w), end = panels_of(w);
    return p < end ? p : end;
}

/* Threads of unlike speed end together: three long items for each, and a quarter of the weight in
 * short ones. These are 64 KiB at least, so that taking one costs nothing beside it, and six panels
 * of many rows, which gemm_words.h shares among panels. */
static void cut(struct gemm_par *g, size_t n)
{
    const struct kn_mat *w = g->a->w;
    const size_t groups = n_groups(g, w), fair = 4 * (size_t)w->dev->head.info.n_threads / n;
    size_t units = groups / (1 + 16384 / (w->dev->simd->nr * group_of(g, w) * w->k + 1));
    size_t most = n == 1 ? 4 * fair : fair;
    if (g->a->m > KN_COLUMN_ROWS && most > groups / 3) most = groups / 3 > fair ? groups / 3 : fair;
    if (units > most) units = most;
    if (units < 2) return;
    g->large = units < 2 * fair ? 1 : units / fair;
    g->n_large = g->large > 1 ? fair / 4 * 3 : 0;
    g->n_items = units - g->n_large * (g->large - 1);
}

static int run_panels(const struct kn_mat *w, const struct kn_gemm_job *j, size_t p0, size_t p1)
{
    if (j->rows) return kn_int8_gemm_of(w->dev->isa)(j, p0, p1);
    if (j->rows16) return w->dev->rows16->gemm(j, p0, p1);
#if defined(__x86_64__)
    if (j->bytes) return kn_avx2_gemm_bytes(j, p0, p1);
    if (j->columns) return kn_gemm_codes_amx(j, p0, p1);
    if (w->kind == GEMM_OWN_BF16 && !j->as_f32)
        return (w->dev->isa == KN_ISA_AMX ? kn_gemm_bf16_amx : kn_gemm_bf16_avx512)(j, p0, p1);
#endif
    return (j->as_f32 ? w->dev->simd->gemm_f32 : w->dev->int16->gemm)(j, p0, p1);
}

static int gemm_item(struct kn_stream *st, void *arg, size_t item)
{
    const struct gemm_par *g = arg;
    const struct kn_gemm_args *a = &g->a[item / g->n_items];
    const struct kn_mat *w = a->w;
    struct kn_gemm_job j = {.a = a->a,
                            .lda = a->lda,
                            .m = a->m,
                            .b = w->data,
                            .n = w->n,
                            .k = w->k,
                            .bias = a->bias,
                            .c = a->c,
                            .ldc = a->ldc,
                            .accumulate = a->accumulate,
                            .as_f32 = by_f32(w),
                            .glu = g->glu,
                            .gated = g->gated,
                            .ldg = g->ldg,
                            .cancel = st->cancel};
    struct kn_int8_rows rows8;
    struct kn_rows16 rows16;
    const bool by8 = by_rows8(w), by16 = by_rows16(w), pairs = !by8 && by_pairs(w, a->m);
    const bool int16 = w->kind == GEMM_OWN_INT16 && !j.as_f32 && !by16;
    if (by16) {
        (void)place_rows16(a, rounded_at(g, item / g->n_items), &rows16);
        j.rows16 = &rows16;
        j.coded = w->coded;
    } else if (by8 && w->bytes) {
        j.bytes = (const void *)rounded_at(g, item / g->n_items);
        j.coded = w->coded;
    } else if (by8) {
        (void)kn_int8_place(a->m, w->k, rounded_at(g, item / g->n_items), &rows8);
        j.int8 = w->int8;
        j.rows = &rows8;
    } else if (w->coded) {
        j.coded = w->coded;
        j.columns = by_columns(w, a->m) ? g->columns + columns_at(g, item / g->n_items) : NULL;
    }
    if (pairs || j.rows || j.bytes || (j.coded && !j.columns && !j.rows16) || int16)
        if (!(j.block = kn_cpu_scratch(st, KN_SLOT_WEIGHTS, KN_GEMM_BLOCK))) return -ENOMEM;
    if (pairs || int16) {
        const size_t bytes = (pairs ? kn_pairs_bytes : kn_int16_bytes)(a->m, w->k);
        j.paired = g->pairs;
        j.pairs = j.paired ? g->pairs : kn_cpu_scratch(st, KN_SLOT_ROWS, bytes);
        if (!j.pairs) return -ENOMEM;
    }
    item %= g->n_items;
    return run_panels(w, &j, item_start(g, w, item), item_start(g, w, item + 1));
}

/* n products of one shape; g says more than that they are. */
static int gemms(struct kn_stream *st, struct gemm_par g, size_t n)
{
    const struct kn_gemm_args *a = g.a;
    const struct kn_mat *w = a->w;
    g.n_items = g.large = 1;
    for (size_t i = 0; i < n; i++) {
        if (a[i].w->n != w->n || a[i].w->k != w->k || !a[i].w->ready) return -EINVAL;
        if (a[i].lda < w->k || a[i].ldc < w->n) return -EINVAL;
    }
    if (st->wide) cut(&g, n);
    const int r = prepare_rows(st, &g, n);
    if (r < 0) return r;
    return n * g.n_items == 1 ? gemm_item(st, &g, 0) : kn_par(st, n * g.n_items, gemm_item, &g);
}

int kn_cpu_gemms(struct kn_stream *st, const struct kn_gemm_args *a, size_t n)
{
    return gemms(st, (struct gemm_par){.a = a}, n);
}

int kn_cpu_gemm(struct kn_stream *st, const struct kn_gemm_args *a)
{
    return a->m ? kn_cpu_gemms(st, a, 1) : a->w->ready ? 0 : -EINVAL;
}

/* Many rows in bf16 on tiles, or blocks of them in int8: gates pass where they are summed, to pairs
 * for the next product, or to f32, since rows of int8 are rounded as a whole. */
int kn_cpu_gated(struct kn_stream *st, const struct kn_gemm_args *up, enum kn_act act,
                 const struct kn_gemm_args *down)
{
    const struct kn_mat *w = up->w, *v = down->w;
    const bool int8 = !st->wide && w->int8 && v->int8 && by_rows8(w) && by_rows8(v);
    const bool pairs = !w->int8 && !v->int8 && by_pairs(w, up->m) && by_pairs(v, up->m);
    if ((!int8 && !pairs) || up->m <= KN_COLUMNS || up->m > KN_PAIRS_ROWS || up->accumulate ||
        v->k % w->dev->simd->nr)
        return -ENOTSUP;
    struct gemm_par g = {.a = up, .glu = w->dev->simd->row.glu[act]};
    g.gated =
        int8 ? (void *)down->a : kn_cpu_scratch(st, KN_SLOT_GATED, kn_pairs_bytes(up->m, v->k));
    g.ldg = int8 ? down->lda : kn_pairs_stride(v->k);
    if (!g.gated) return -ENOMEM;
    const int r = gemms(st, g, 1);
    return r < 0 ? r : gemms(st, (struct gemm_par){.a = down, .pairs = pairs ? g.gated : NULL}, 1);
}
