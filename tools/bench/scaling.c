/* kvblend-bench kernels scaling: what further threads would bring, on a machine that has them or
 * not.
 *
 * Measured at 1, 2, 4, ... threads up to those that --threads allows: a barrier (a run whose items
 * wait for each other), a copy of memory, one layer's products over the rows of a full prefill, of
 * a blend and of a decode step. Modelled at any number, from one thread's blocks of rows, which
 * cost `begin` (codes are unpacked) and `row` for each row, cut as the pool cuts them:
 *     rows:   blocks of a thread x (begin + row x rows of a block) + a barrier
 *     decode: max(time of one thread / n, bytes of weights / bandwidth(n)) + a barrier a product
 * bandwidth(n): n times that of one thread, at most the best that was measured; barrier(n): the
 * line through the first two or the second and the last that were measured. So beyond the measured
 * counts the model knows of no memory that more threads open up, no second node, and no slower
 * clock. Attention is not in it: its items are many and independent. */
#include "base/clock.h"
#include "base/mem.h"
#include "tools/bench/device.h"
#include "tools/bench/figures.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum {
    MEASURED_MAX = 12,
    MODELLED_TO = 64, /* threads; further where more are measured */
    BARRIERS = 2000,
    COPY_ROW = 1 << 16,
    COPY_BYTES = 64 << 20,
    ROWS_EACH = 16 /* of a thread: fewer and a run has fewer blocks than threads */
};

static const struct load {
    const char *name;
    size_t rows;
} loads[] = {{"prefill", 3104}, {"blend", 188}, {"decode", 1}, {"half", 96}, {"block", 192}};
enum { PREFILL, BLEND, DECODE, REPORTED, HALF = REPORTED, BLOCK, LOADS }; /* the last two: to fit */

struct point {
    unsigned threads;
    double barrier_us, copy_gbps, us[LOADS]; /* of one layer's products */
};

struct products {
    struct kn_mat *w[BENCH_WEIGHTS];
    const struct kn_shape *shape;
    float *a, *c;
};

struct meeting {
    atomic_uint here; /* items that have begun, of all runs */
    unsigned due;     /* at the end of this one */
};

/* Each item waits for all others: a run is as long as waking every thread and its coming back. */
static int meet(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    struct meeting *m = arg;
    atomic_fetch_add(&m->here, 1);
    while (atomic_load(&m->here) < m->due)
        (void)sched_yield(); /* there may be fewer cores than threads */
    return 0;
}

static int copy_part(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    char *const *c = arg;
    return kn_copy(st, c[0] + row0 * COPY_ROW, c[1] + row0 * COPY_ROW, n * COPY_ROW);
}

static int multiply_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct products *p = arg;
    int r = 0;
    for (size_t i = 0; r == 0 && i < BENCH_WEIGHTS; i++) {
        const struct kn_shape *s = &p->shape[i];
        r = kn_gemm(st, &(struct kn_gemm_args){.a = p->a + row0 * s->k,
                                               .lda = s->k,
                                               .m = n,
                                               .w = p->w[i],
                                               .c = p->c + row0 * s->n,
                                               .ldc = s->n});
    }
    return r;
}

/* ---- measured ---- */

static int measure_barrier(struct bench_device *d, struct point *ret)
{
    const size_t rows = (size_t)ret->threads * ROWS_EACH;
    const uint64_t since = clock_ns();
    struct meeting m = {0};
    int r = 0;
    for (int i = 0; r == 0 && i < BARRIERS; i++) {
        m.due += ret->threads;
        r = kn_rows(d->dev, rows, NULL, meet, &m);
    }
    ret->barrier_us = (double)(clock_ns() - since) * 1e-3 / BARRIERS;
    return r;
}

static int measure_memory(struct bench_device *d, struct point *ret)
{
    char *c[] = {bench_take(d, KN_MEM_DEVICE, COPY_BYTES),
                 (char *)bench_take_floats(d, COPY_BYTES / sizeof(float), 0, 1)};
    const struct bench_work w = {COPY_BYTES / COPY_ROW, copy_part, c, BENCH_BY_SIZE};
    struct bench_time t;
    int r = d->status < 0 ? d->status : bench_time(d, &w, 1, &t);
    if (r == 0) ret->copy_gbps = 2.0 * COPY_BYTES / t.us * 1e-3;
    return r;
}

/* Weights in codes of 4 bits, where the device keeps such. */
static int measure_products(struct bench_device *d, struct point *ret, double *ret_bytes)
{
    struct products p = {.shape = d->weight};
    size_t n_max = 0, k_max = 0;
    *ret_bytes = 0;
    for (size_t i = 0; d->status == 0 && i < BENCH_WEIGHTS; i++) {
        const struct kn_shape *s = &d->weight[i];
        p.w[i] = bench_take_codes(d, s->n, s->k);
        if (!p.w[i] && d->status == 0) p.w[i] = bench_take_mat(d, s->n, s->k);
        if (d->status == 0) *ret_bytes += (double)kn_mat_bytes(p.w[i]);
        n_max = s->n > n_max ? s->n : n_max;
        k_max = s->k > k_max ? s->k : k_max;
    }
    p.a = bench_take_floats(d, loads[0].rows * k_max, 0, 1);
    p.c = bench_take(d, KN_MEM_DEVICE, loads[0].rows * n_max * sizeof *p.c);
    int r = d->status;
    for (size_t i = 0; r == 0 && i < LOADS; i++) {
        const struct bench_work w = {loads[i].rows, multiply_rows, &p, BENCH_BY_SIZE};
        struct bench_time t;
        r = bench_time(d, &w, 1, &t);
        if (r == 0) ret->us[i] = t.us;
    }
    return r;
}

/* On a device of so many threads. */
static int measure_point(const struct bench_device *b, const struct opts *opts, struct point *ret,
                         double *ret_bytes, struct err *err)
{
    struct bench_device d = {.cfg = b->cfg, .reps = b->reps, .weights = b->weights};
    struct kn_dev_opts o = bench_device_opts(opts);
    o.n_threads = ret->threads;
    if (b->weights != KN_WEIGHTS_INT8) o.gemm = kn_info(b->dev)->gemm; /* one for all */
    memcpy(d.weight, b->weight, sizeof d.weight);
    int r = kn_dev_create(&o, &d.dev, err);
    if (r < 0) return r;
    r = measure_barrier(&d, ret);
    if (r == 0) r = measure_memory(&d, ret);
    if (r == 0) r = measure_products(&d, ret, ret_bytes);
    bench_device_close(&d);
    return r;
}

/* ---- modelled ---- */

struct model {
    const struct point *at; /* the first is of one thread */
    size_t n;
    double weight_bytes; /* of a layer */
    double block_max;    /* rows */
};

static double barrier_of(const struct model *m, unsigned threads)
{
    const struct point *last = &m->at[m->n - 1], *second = m->n > 1 ? &m->at[1] : m->at;
    if (threads == 1 || m->n == 1) return threads == 1 ? m->at->barrier_us : NAN;
    const double more =
        m->n > 2 ? (last->barrier_us - second->barrier_us) / (last->threads - second->threads)
                 : second->barrier_us - m->at->barrier_us;
    return second->barrier_us + fmax(more, 0) * (threads - 2.0);
}

static double bandwidth_of(const struct model *m, unsigned threads)
{
    double best = 0;
    for (size_t i = 0; i < m->n; i++)
        best = fmax(best, m->at[i].copy_gbps);
    return fmin(best, threads * m->at->copy_gbps);
}

/* As kn_rows() cuts them. */
static double rows_us(const struct model *m, double rows, double threads)
{
    const double *us = m->at->us;
    const double row = (us[BLOCK] - us[HALF]) / (double)(loads[BLOCK].rows - loads[HALF].rows);
    const double begin = fmax(us[HALF] - row * (double)loads[HALF].rows, 0);
    double blocks = fmin(floor(rows / ROWS_EACH), threads);
    if (rows > threads * m->block_max) blocks = ceil(ceil(rows / m->block_max) / threads) * threads;
    return ceil(blocks / threads) * (begin + row * ceil(rows / blocks));
}

static double modelled_us(const struct model *m, size_t load, unsigned threads)
{
    if (load != DECODE)
        return rows_us(m, (double)loads[load].rows, threads) + barrier_of(m, threads);
    const double memory = m->weight_bytes / bandwidth_of(m, threads) * 1e-3;
    return fmax(m->at->us[load] / threads, memory) + BENCH_WEIGHTS * barrier_of(m, threads);
}

/* ---- report ---- */

static const struct bench_column columns[] = {
    {"threads", "threads", 7, 0},           {"barrier us", "barrier_us", 11, 2},
    {"copy GB/s", "copy_gbps", 10, 1},      {"prefill ms", "prefill_ms", 11, 1},
    {"modelled", "prefill_model_ms", 9, 1}, {"blend ms", "blend_ms", 9, 2},
    {"modelled", "blend_model_ms", 9, 2},   {"decode ms", "decode_ms", 10, 2},
    {"modelled", "decode_model_ms", 9, 2},  {0}};

static void print_point(struct bench_device *b, const struct model *m, unsigned threads,
                        const struct point *p)
{
    json_t *row = json_pack("{s:i, s:o, s:o}", "threads", (int)threads, "barrier_us",
                            bench_number(p ? p->barrier_us : NAN), "copy_gbps",
                            bench_number(p ? p->copy_gbps : NAN));
    for (size_t i = 0; i < REPORTED; i++) {
        char key[32];
        (void)snprintf(key, sizeof key, "%s_ms", loads[i].name);
        json_object_set_new(row, key, bench_number(p ? p->us[i] * b->cfg.L * 1e-3 : NAN));
        (void)snprintf(key, sizeof key, "%s_model_ms", loads[i].name);
        json_object_set_new(row, key, bench_number(modelled_us(m, i, threads) * b->cfg.L * 1e-3));
    }
    bench_print_row(columns, row);
    json_array_append_new(b->rows, row);
}

static int measure_scaling(struct bench_device *b, const struct opts *opts, struct err *err)
{
    const unsigned most = kn_info(b->dev)->n_threads;
    struct point at[MEASURED_MAX] = {0};
    const bool tiles = strcmp(kn_info(b->dev)->isa, "amx") == 0; /* blocks as in cpu/pool.c */
    struct model m = {.at = at, .block_max = tiles ? 256 : 196};
    int r = 0;
    if (!kn_info(b->dev)->is_host)
        return err_set(err, -EINVAL, "kernels scaling is of threads: --device cpu");
    for (unsigned n = 1; r == 0 && m.n < MEASURED_MAX; n = 2 * n < most ? 2 * n : most) {
        at[m.n].threads = n;
        r = measure_point(b, opts, &at[m.n++], &m.weight_bytes, err);
        if (n == most) break;
    }
    if (r < 0) return r;
    printf("%s, shape %s: products of all layers over 3104, 188 and 1 rows\n",
           kn_info(b->dev)->gemm, b->cfg.name);
    bench_print_head(columns);
    for (size_t i = 0; i < m.n; i++)
        print_point(b, &m, at[i].threads, &at[i]);
    for (unsigned n = 1; n <= MODELLED_TO; n *= 2)
        if (n > most && m.n > 1) print_point(b, &m, n, NULL);
    return 0;
}

const struct bench_sub bench_scaling = {
    .name = "kernels scaling",
    .about = "what further threads bring: barriers, memory, products; and a model of it",
    .shared = BENCH_DEVICE_OPTIONS "shape reps",
    .run_device = measure_scaling};
