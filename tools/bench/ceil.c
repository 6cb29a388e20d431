/* kvblend-bench kernels ceil: what the device can do at best, so that other figures have something
 * to be a share of: products over a model's weights at many row counts, copies of its memory,
 * copies from and to the host, what a launch and a wait cost.
 *
 * On a device of its own weights change from call to call (a layer's, in several copies), so that
 * no cache holds what a model would read from memory. `layer` is one layer's five products in a
 * row. */
#include "base/clock.h"
#include "base/mem.h"
#include "tools/bench/bench.h"
#include "tools/bench/device.h"
#include "tools/bench/figures.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    WEIGHTS = 5,
    COPIES_MAX = 32,
    LINK_BYTES = 64 << 20,
    LAUNCHES = 1000,
    LAUNCHES_EMULATED = 10
};
static const size_t COPIES_BYTES = (size_t)192 << 20; /* chosen: beyond any cache */

struct ceiling {
    struct bench_device b;
    struct weight {
        const char *name;
        size_t n, k, n_copies;
        struct kn_mat *copy[COPIES_MAX];
    } w[WEIGHTS];
    float *a, *c; /* [rows_max, widest] */
    size_t k_max, n_max;
    json_t *rows;
};

/* ---- products ---- */

static int make_weights(struct ceiling *x)
{
    const struct model_cfg *g = &x->b.cfg;
    const size_t HK = (size_t)g->H * g->K, GK = (size_t)g->G * g->K;
    const struct weight all[WEIGHTS] = {{.name = "kv", .n = 2 * GK, .k = g->D},
                                        {.name = "q", .n = HK, .k = g->D},
                                        {.name = "o", .n = g->D, .k = HK},
                                        {.name = "gate_up", .n = 2 * (size_t)g->F, .k = g->D},
                                        {.name = "down", .n = g->D, .k = g->F}};
    const bool turns = !kn_info(x->b.dev)->is_host && !x->b.emulated;
    memcpy(x->w, all, sizeof all);
    for (size_t i = 0; i < WEIGHTS; i++) {
        struct weight *w = &x->w[i];
        size_t bytes = 0;
        if (w->k > x->k_max) x->k_max = w->k;
        if (w->n > x->n_max) x->n_max = w->n;
        do {
            struct kn_mat *m = bench_device_mat(&x->b, w->n, w->k, i * COPIES_MAX + w->n_copies);
            if (!m) return -ENOMEM;
            w->copy[w->n_copies++] = m;
            bytes += kn_mat_bytes(m);
        } while (turns && bytes < COPIES_BYTES && w->n_copies < COPIES_MAX);
    }
    return 0;
}

struct product {
    struct ceiling *x;
    size_t first, n; /* weights */
    unsigned turn;
};

static int product_rows(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    struct product *p = arg;
    const struct ceiling *x = p->x;
    const unsigned turn = kn_info(x->b.dev)->is_host ? 0 : p->turn++; /* there threads share p */
    int r = 0;
    for (size_t i = 0; r == 0 && i < p->n; i++) {
        const struct weight *w = &x->w[p->first + i];
        const struct kn_gemm_args g = {.a = x->a + row0 * w->k,
                                       .lda = w->k,
                                       .m = m,
                                       .w = w->copy[turn % w->n_copies],
                                       .c = x->c + row0 * w->n,
                                       .ldc = w->n};
        r = kn_gemm(st, &g);
    }
    return r;
}

static int measure_product(struct ceiling *x, const char *name, size_t first, size_t n, size_t rows)
{
    struct product p = {x, first, n, 0};
    struct bench_time t;
    double flops = 0;
    for (size_t i = first; i < first + n; i++)
        flops += 2.0 * (double)rows * (double)x->w[i].n * (double)x->w[i].k;
    const struct bench_work work = {rows, product_rows, &p, BENCH_BY_SIZE};
    int r = bench_device_time(&x->b, &work, &t);
    if (r < 0) return r;
    const double gflops = flops / t.us * 1e-3;
    if (gflops > x->b.gemm_gflops) x->b.gemm_gflops = gflops;
    json_array_append_new(x->rows, json_pack("{s:s, s:s, s:i, s:f, s:f, s:f, s:f}", "kind", "gemm",
                                             "weight", name, "rows", (int)rows, "us", t.us, "us_lo",
                                             t.us_lo, "us_hi", t.us_hi, "gflops", gflops));
    return 0;
}

static int measure_products(struct ceiling *x, const size_t *rows, size_t n_rows)
{
    size_t most = 0;
    for (size_t i = 0; i < n_rows; i++)
        if (rows[i] > most) most = rows[i];
    int r = make_weights(x);
    if (r < 0) return r;
    x->a = bench_device_random(&x->b, KN_MEM_DEVICE, most * x->k_max);
    x->c = kn_mem_alloc(x->b.dev, KN_MEM_DEVICE, most * x->n_max * sizeof *x->c);
    if (!x->a || !x->c) return -ENOMEM;
    for (size_t i = 0; r == 0 && i < n_rows; i++) {
        bench_progress("products", i + 1, n_rows);
        for (size_t w = 0; r == 0 && w < WEIGHTS; w++)
            r = measure_product(x, x->w[w].name, w, 1, rows[i]);
        if (r == 0) r = measure_product(x, "layer", 0, WEIGHTS, rows[i]);
    }
    return r;
}

/* ---- copies, launches ---- */

static void add_rate(struct ceiling *x, const char *kind, double bytes, double us)
{
    json_array_append_new(x->rows, json_pack("{s:s, s:f, s:f, s:f}", "kind", kind, "bytes", bytes,
                                             "us", us, "gbps", bytes / us * 1e-3));
}

/* From the host's pageable memory, and into memory that both sides see. */
static int measure_links(struct ceiling *x)
{
    struct kn_dev *d = x->b.dev;
    char *host = mem_alloc(LINK_BYTES), *there = kn_mem_alloc(d, KN_MEM_DEVICE, LINK_BYTES);
    char *back = kn_mem_alloc(d, KN_MEM_SHARED, LINK_BYTES);
    double *to = mem_alloc(2 * x->b.reps * sizeof *to), *from = to ? to + x->b.reps : NULL;
    int r = host && there && back && to ? 0 : -ENOMEM;
    if (r == 0) memset(host, 0x5a, LINK_BYTES);
    for (size_t i = 0; r == 0 && i < x->b.reps + 1; i++) { /* the first one warms up */
        const size_t at = i ? i - 1 : 0;
        const uint64_t t0 = clock_ns();
        r = kn_mem_copy(d, there, host, LINK_BYTES);
        const uint64_t t1 = clock_ns();
        if (r == 0) r = kn_mem_copy(d, back, there, LINK_BYTES);
        to[at] = (double)(t1 - t0) * 1e-3;
        from[at] = (double)(clock_ns() - t1) * 1e-3;
    }
    if (r == 0) {
        add_rate(x, "from_host", LINK_BYTES, bench_quantile(to, x->b.reps, 0.5));
        add_rate(x, "to_host", LINK_BYTES, bench_quantile(from, x->b.reps, 0.5));
    }
    mem_free(host);
    kn_mem_free(d, there);
    kn_mem_free(d, back);
    mem_free(to);
    return r;
}

static int norm_once(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    float *x = arg;
    return kn_rmsnorm(st, x, 32, 1, 32, x + 32, 1e-5f, x + 64, 32);
}

static int run_us(struct ceiling *x, float *data, unsigned times, double *ret)
{
    const struct bench_work work = {1, norm_once, data, BENCH_BY_SIZE};
    double us, best = INFINITY;
    int r = 0;
    for (size_t i = 0; r == 0 && i < x->b.reps + 1; i++) {
        r = bench_device_run(&x->b, &work, times, &us);
        best = fmin(best, us * times);
    }
    *ret = best;
    return r;
}

/* A run of one operation, and what every further one adds. */
static int measure_launches(struct ceiling *x)
{
    const unsigned more = x->b.emulated ? LAUNCHES_EMULATED : LAUNCHES;
    float *data = bench_device_random(&x->b, KN_MEM_DEVICE, 96);
    double one = 0, many = 0;
    int r = data ? run_us(x, data, 1, &one) : -ENOMEM;
    if (r == 0) r = run_us(x, data, more + 1, &many);
    kn_mem_free(x->b.dev, data);
    if (r < 0) return r;
    json_array_append_new(x->rows, json_pack("{s:s, s:f}", "kind", "run", "us", one));
    json_array_append_new(x->rows, json_pack("{s:s, s:f}", "kind", "launch", "us",
                                             many > one ? (many - one) / more : 0.0));
    return 0;
}

/* ---- report ---- */

static void print_ceilings(struct ceiling *x)
{
    static const struct bench_column column[] = {
        {"", "kind", -10, 0},         {"weight", "weight", -8, 0},
        {"rows", "rows", 6, 0},       {"us", "us", 12, 1},
        {"GFLOP/s", "gflops", 10, 1}, {"of the best", "share", 11, 2},
        {"GB/s", "gbps", 9, 2},       {0}};
    size_t i;
    json_t *row;
    printf("%s, %s, shape %s\n", kn_info(x->b.dev)->device, kn_info(x->b.dev)->gemm, x->b.cfg.name);
    bench_print_head(column);
    json_array_foreach(x->rows, i, row)
    {
        const double rate = json_number_value(json_object_get(row, "gflops"));
        if (rate > 0) json_object_set_new(row, "share", json_real(rate / x->b.gemm_gflops));
        bench_print_row(column, row);
    }
}

static int measure_ceilings(const struct opts *opts, struct err *err)
{
    struct ceiling x = {.rows = json_array()};
    size_t rows[BENCH_ROWS_MAX];
    const int n = bench_at_rows(opts, rows, err);
    int r = n < 0 ? n : bench_device_open(opts, &x.b, err);
    if (r == 0) {
        json_array_append_new(x.rows,
                              json_pack("{s:s, s:f}", "kind", "copy", "gbps", x.b.copy_gbps));
        r = measure_links(&x);
        if (r == 0) r = measure_launches(&x);
        if (r == 0) r = measure_products(&x, rows, (size_t)n);
        if (r == 0) print_ceilings(&x);
        for (size_t i = 0; i < WEIGHTS; i++)
            for (size_t c = 0; c < x.w[i].n_copies; c++)
                kn_mat_destroy(x.w[i].copy[c]);
        kn_mem_free(x.b.dev, x.a);
        kn_mem_free(x.b.dev, x.c);
    }
    return bench_device_end(opts, &x.b, x.rows, NULL, r, err);
}

const struct bench_sub bench_ceil = {
    .name = "kernels ceil",
    .about = "what the device can do at best: products, copies, launches",
    .shared = BENCH_DEVICE_OPTIONS "shape reps at-rows",
    .run = measure_ceilings};
