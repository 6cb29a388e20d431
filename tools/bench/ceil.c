/* kvblend-bench kernels ceil: what the device can do at best, so that other figures have something
 * to be a share of: products over a model's weights at many row counts, copies of its memory,
 * copies from and to the host, what a launch and a wait cost.
 *
 * On a device of its own weights change from call to call (a layer's, in several copies), so that
 * no cache holds what a model would read from memory. `layer` is one layer's five products in a
 * row. */
#include "base/clock.h"
#include "base/mem.h"
#include "kernels/rate.h"
#include "tools/bench/device.h"
#include "tools/bench/figures.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { COPIES_MAX = 32, LINK_BYTES = 64 << 20, LAUNCHES = 1000 };
static const size_t COPIES_BYTES = (size_t)192 << 20; /* chosen: beyond any cache */

struct ceiling {
    struct bench_device *b;
    struct weight {
        size_t n_copies;
        struct kn_mat *copy[COPIES_MAX];
    } w[BENCH_WEIGHTS];
    float *a, *c; /* [rows, widest] */
};

/* ---- products ---- */

static int make_operands(struct ceiling *x, size_t rows)
{
    const bool turns = !kn_info(x->b->dev)->is_host && !x->b->emulated;
    size_t k_max = 0, n_max = 0;
    for (size_t i = 0; i < BENCH_WEIGHTS; i++) {
        const struct kn_shape *shape = &x->b->weight[i];
        struct weight *w = &x->w[i];
        size_t bytes = 0;
        if (shape->k > k_max) k_max = shape->k;
        if (shape->n > n_max) n_max = shape->n;
        do {
            struct kn_mat *m = bench_take_mat(x->b, shape->n, shape->k);
            if (x->b->status < 0) return x->b->status;
            if (shape->inner) kn_mat_inner(m);
            w->copy[w->n_copies++] = m;
            bytes += kn_mat_bytes(m);
        } while (turns && bytes < COPIES_BYTES && w->n_copies < COPIES_MAX);
    }
    x->a = bench_take_floats(x->b, rows * k_max, 0, 1);
    x->c = bench_take(x->b, KN_MEM_DEVICE, rows * n_max * sizeof *x->c);
    return x->b->status;
}

struct product {
    const struct ceiling *x;
    size_t first, end; /* weights */
    unsigned turn;
};

static int product_rows(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    struct product *p = arg;
    const struct ceiling *x = p->x;
    const unsigned turn = kn_info(x->b->dev)->is_host ? 0 : p->turn++; /* there threads share p */
    int r = 0;
    for (size_t i = p->first; r == 0 && i < p->end; i++) {
        const struct weight *w = &x->w[i];
        const struct kn_shape *shape = &x->b->weight[i];
        const struct kn_mat *mat = w->copy[turn % w->n_copies];
        float *c = shape->inner ? kn_product(st, 0, m, mat) : x->c + row0 * shape->n;
        const struct kn_gemm_args g = {.a = x->a + row0 * shape->k,
                                       .lda = shape->k,
                                       .m = m,
                                       .w = mat,
                                       .c = c,
                                       .ldc = shape->n};
        r = c ? kn_gemm(st, &g) : -ENOMEM;
    }
    return r;
}

/* Of the weights first … end - 1 in a row. */
static int measure_product(const struct ceiling *x, const char *name, size_t first, size_t end,
                           size_t rows)
{
    struct product p = {x, first, end, 0};
    const struct bench_work work = {rows, product_rows, &p, BENCH_BY_SIZE};
    struct bench_time t;
    double flops = 0;
    for (size_t i = first; i < end; i++)
        flops += 2.0 * (double)rows * (double)x->b->weight[i].n * (double)x->b->weight[i].k;
    int r = bench_time(x->b, &work, 0, &t);
    if (r < 0) return r;
    const double gflops = flops / t.us * 1e-3;
    x->b->gemm_gflops = fmax(x->b->gemm_gflops, gflops);
    json_array_append_new(x->b->rows,
                          json_pack("{s:s, s:s, s:i, s:f, s:f, s:f, s:f}", "kind", "gemm", "weight",
                                    name, "rows", (int)rows, "us", t.us, "us_lo", t.us_lo, "us_hi",
                                    t.us_hi, "gflops", gflops));
    return 0;
}

static int measure_products(struct bench_device *b, const struct bench_rows *at)
{
    static const char *const name[BENCH_WEIGHTS] = {"kv", "q", "o", "gate_up", "down"};
    struct ceiling x = {.b = b};
    int r = make_operands(&x, at->most);
    for (size_t i = 0; r == 0 && i < at->n; i++) {
        bench_progress("products", i + 1, at->n);
        for (size_t w = 0; r == 0 && w < BENCH_WEIGHTS; w++)
            r = measure_product(&x, name[w], w, w + 1, at->m[i]);
        if (r == 0) r = measure_product(&x, "layer", 0, BENCH_WEIGHTS, at->m[i]);
    }
    return r;
}

/* One large product, which no model's shape flatters or spoils: what the others are held against.
 * Untuned, as whoever else measures it would. */
static int measure_square(struct bench_device *b)
{
    const size_t n = b->emulated ? 256 : 8192;
    struct kn_mat *w = bench_take_mat(b, n, n);
    const double gflops = b->status < 0 ? 0 : kn_dev_gemm_gflops(b->dev, &w, 1, n);
    if (gflops <= 0) return b->status < 0 ? b->status : -EIO;
    json_array_append_new(
        b->rows, json_pack("{s:s, s:i, s:f}", "kind", "square", "n", (int)n, "gflops", gflops));
    return 0;
}

/* ---- copies, launches ---- */

static int measure_link(struct bench_device *b, const char *kind, void *to, const void *from)
{
    double *us = mem_alloc((b->reps + 1) * sizeof *us);
    int r = us && b->status == 0 ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < b->reps + 1; i++) { /* the first one warms up */
        const uint64_t t0 = clock_ns();
        r = kn_mem_copy(b->dev, to, from, LINK_BYTES);
        us[i] = (double)(clock_ns() - t0) * 1e-3;
    }
    if (r == 0) {
        const double median = bench_quantile(us + 1, b->reps, 0.5);
        json_array_append_new(b->rows, json_pack("{s:s, s:f, s:f, s:f}", "kind", kind, "bytes",
                                                 (double)LINK_BYTES, "us", median, "gbps",
                                                 LINK_BYTES / median * 1e-3));
    }
    mem_free(us);
    return r;
}

/* From and to the host's pinned memory, and from its pageable memory. */
static int measure_links(struct bench_device *b)
{
    char *pageable = mem_alloc(LINK_BYTES), *there = bench_take(b, KN_MEM_DEVICE, LINK_BYTES);
    char *pinned = bench_take(b, KN_MEM_HOST, LINK_BYTES);
    int r = pageable ? b->status : -ENOMEM;
    if (r == 0) memset(pageable, 0x5a, LINK_BYTES);
    if (r == 0) r = measure_link(b, "from_host", there, pinned);
    if (r == 0) r = measure_link(b, "to_host", pinned, there);
    if (r == 0) r = measure_link(b, "from_pageable", there, pageable);
    mem_free(pageable);
    return r;
}

static int norm_once(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    float *x = arg;
    return kn_rmsnorm(st, x, 32, 1, 32, x + 32, 1e-5f, x + 64, 32);
}

/* A run of one operation, and what every further one adds. */
static int measure_launches(struct bench_device *b)
{
    const struct bench_work work = {1, norm_once, bench_take_floats(b, 96, 0, 1), BENCH_BY_SIZE};
    struct bench_time one, many;
    int r = b->status;
    if (r == 0) r = bench_time(b, &work, 1, &one);
    if (r == 0) r = bench_time(b, &work, LAUNCHES + 1, &many);
    if (r < 0) return r;
    const double more = many.us_lo * (LAUNCHES + 1) - one.us_lo;
    json_array_append_new(b->rows, json_pack("{s:s, s:f}", "kind", "run", "us", one.us_lo));
    json_array_append_new(
        b->rows, json_pack("{s:s, s:f}", "kind", "launch", "us", fmax(more, 0) / LAUNCHES));
    return 0;
}

/* ---- report ---- */

static void print_ceilings(const struct bench_device *b)
{
    static const struct bench_column column[] = {
        {"", "kind", -10, 0},         {"weight", "weight", -8, 0},
        {"rows", "rows", 6, 0},       {"us", "us", 12, 1},
        {"GFLOP/s", "gflops", 10, 1}, {"of the best", "share", 11, 2},
        {"GB/s", "gbps", 9, 2},       {0}};
    size_t i;
    json_t *row;
    printf("%s, %s, shape %s\n", kn_info(b->dev)->device, kn_info(b->dev)->gemm, b->cfg.name);
    bench_print_head(column);
    json_array_foreach(b->rows, i, row) {
        const double rate = json_number_value(json_object_get(row, "gflops"));
        if (rate > 0) json_object_set_new(row, "share", json_real(rate / b->gemm_gflops));
        bench_print_row(column, row);
    }
}

static int measure_ceilings(struct bench_device *b, const struct opts *opts, struct err *err)
{
    struct bench_rows at;
    int r = bench_at_rows(opts, &at, err);
    if (r < 0) return r;
    json_array_append_new(b->rows, json_pack("{s:s, s:f}", "kind", "copy", "gbps", b->copy_gbps));
    r = measure_links(b);
    if (r == 0) r = measure_launches(b);
    if (r == 0) r = measure_products(b, &at);
    if (r == 0 && !kn_info(b->dev)->is_host) r = measure_square(b);
    if (r == 0) print_ceilings(b);
    return r;
}

const struct bench_sub bench_ceil = {
    .name = "kernels ceil",
    .about = "what the device can do at best: products, copies, launches",
    .shared = BENCH_DEVICE_OPTIONS "shape reps at-rows",
    .run_device = measure_ceilings,
    .gpu_tune_ms = 20000}; /* every bucket */
