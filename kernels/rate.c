#include "kernels/rate.h"

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/kn_int.h"

struct kn_rate {
    struct kn_dev *dev;
    struct kn_mat *const *mats;
    size_t n, rows, k_max, n_max;
    float *a, *c;
    size_t k[KN_SLOTS]; /* widths that rows are kept in as operands; 0: no more */
    bool prepares;
    double flops;
    atomic_ullong cpu_ns; /* of all threads, in this round */
};

static const struct kn_mat_head *shape_of(const struct kn_mat *w)
{
    return (const void *)w;
}

/* The slot of an operand of that width, KN_SLOTS: there is none. */
static unsigned rate_slot(const struct kn_rate *b, size_t k)
{
    unsigned i = 0;
    while (i < KN_SLOTS && b->k[i] != k)
        i++;
    return i;
}

static int rate_product(struct kn_stream *st, const struct kn_rate *b, const struct kn_mat *w,
                        size_t row0, size_t m)
{
    struct kn_gemm_args g = {.a = b->a + row0 * b->k_max,
                             .lda = b->k_max,
                             .m = m,
                             .w = w,
                             .c = b->c + row0 * b->n_max,
                             .ldc = b->n_max};
    const size_t k = shape_of(w)->k;
    const unsigned slot = rate_slot(b, k);
    if (shape_of(w)->inner && !b->prepares) {
        g.c = kn_product(st, KN_SLOTS - 1, m, w);
        g.ldc = shape_of(w)->n;
        if (!g.c) return -ENOMEM;
    }
    if (slot == KN_SLOTS) return b->prepares ? 0 : kn_gemm(st, &g);
    float *at = kn_operand(st, slot, m, w); /* where it was, as it was: nothing has grown since */
    if (!at) return -ENOMEM;
    if (b->prepares) return kn_rmsnorm(st, g.a, g.lda, m, k, b->a, 1e-5f, at, k);
    g.a = at;
    g.lda = k;
    return kn_gemm(st, &g);
}

static int rate_rows(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    struct kn_rate *b = arg;
    const uint64_t t0 = clock_thread_ns();
    int r = 0;
    for (size_t i = 0; r == 0 && i < b->n; i++)
        r = rate_product(st, b, b->mats[i], row0, m);
    atomic_fetch_add(&b->cpu_ns, clock_thread_ns() - t0);
    return r;
}

static int fill_rows(struct kn_rate *b)
{
    const size_t n = b->rows * b->k_max;
    float *x = mem_alloc((n + 1) * sizeof *x);
    for (size_t i = 0; x && i < n; i++)
        x[i] = (float)(int)(i * 2654435761u % 1000u) * 1e-3f - 0.5f;
    int r = x ? kn_mem_copy(b->dev, b->a, x, n * sizeof *x) : -ENOMEM;
    mem_free(x);
    return r;
}

int kn_rate_create(struct kn_dev *d, struct kn_mat *const *mats, size_t n, size_t rows,
                   struct kn_rate **ret)
{
    if (n == 0) return -EINVAL;
    struct kn_rate *b = mem_zalloc(sizeof *b);
    if (!b) return -ENOMEM;
    b->dev = d, b->mats = mats, b->n = n, b->rows = rows;
    for (size_t i = 0; i < n; i++) {
        const struct kn_mat_head *s = shape_of(mats[i]);
        const unsigned slot = rate_slot(b, 0);
        if (!kn_info(d)->is_host && rate_slot(b, s->k) == KN_SLOTS && slot < KN_SLOTS - 1)
            b->k[slot] = s->k;
        if (s->k > b->k_max) b->k_max = s->k;
        if (s->n > b->n_max) b->n_max = s->n;
        b->flops += 2.0 * (double)s->n * (double)s->k * (double)rows;
    }
    b->a = kn_mem_alloc(d, KN_MEM_DEVICE, rows * b->k_max * sizeof(float));
    b->c = kn_mem_alloc(d, KN_MEM_DEVICE, rows * b->n_max * sizeof(float));
    int r = b->a && b->c ? fill_rows(b) : -ENOMEM;
    b->prepares = true; /* products alone are timed: a layer's norms write their operands */
    if (r == 0 && b->k[0]) r = kn_rows(d, rows, NULL, rate_rows, b);
    b->prepares = false;
    if (r < 0)
        kn_rate_destroy(b);
    else
        *ret = b;
    return r;
}

void kn_rate_destroy(struct kn_rate *b)
{
    if (!b) return;
    kn_mem_free(b->dev, b->a);
    kn_mem_free(b->dev, b->c);
    mem_free(b);
}

int kn_rate_round(struct kn_rate *b, struct kn_round *ret)
{
    const uint64_t t0 = clock_ns();
    atomic_store(&b->cpu_ns, 0);
    int r = kn_rows(b->dev, b->rows, NULL, rate_rows, b);
    if (r < 0) return r;
    *ret =
        (struct kn_round){(double)(clock_ns() - t0) * 1e-9, (double)atomic_load(&b->cpu_ns) * 1e-9};
    return 0;
}

double kn_rate_flops(const struct kn_rate *b)
{
    return b->flops;
}

double kn_dev_gemm_gflops(struct kn_dev *d, struct kn_mat *const *mats, size_t n, size_t rows)
{
    enum { ROUNDS = 5, ENOUGH_S = 2 }; /* chosen: a large model is measured by all of its layers */
    struct kn_rate *b = NULL;
    struct kn_round t;
    double flops = 0, best_s = 0, all_s = 0;
    if (kn_rate_create(d, mats, n, rows, &b) == 0) flops = kn_rate_flops(b);
    for (int i = 0; b && i < ROUNDS && all_s < ENOUGH_S && kn_rate_round(b, &t) == 0; i++) {
        if (best_s == 0 || t.wall_s < best_s) best_s = t.wall_s;
        all_s += t.wall_s;
    }
    kn_rate_destroy(b);
    return best_s > 0 ? flops / best_s * 1e-9 : 0;
}
