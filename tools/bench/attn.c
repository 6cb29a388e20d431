/* kvblend-bench attn: the attention kernel alone, on random pages in a model's shape (--shape).
 *
 * Cases: all rows of --keys tokens; 5, 10, 15 and 30 % of them, evenly spread, with a question's 32
 * rows behind, as a blend has them; one new row of each of 1 to 16 sequences; what the question's
 * rows give to each key. Rows see keys up to their position and no others are counted: 4 flops a
 * head, dimension and visible key (mass: 2). Bytes are those of the keys and values that somebody
 * sees, once. Few rows are checked against sums in double before anything is timed. Cases take
 * turns in rounds; on a device of its own a measurement repeats the operation until the way there
 * is small. The device's rate in one large product of matrices, before and behind, is what shares
 * are of. */
#include "tools/bench/bench.h"
#include "tools/bench/device.h"

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/rate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    SEQS_MAX = 16,
    QUESTION = 32,
    CASES_MAX = 12,
    HEAD_MAX = 1024, /* dimensions */
    WARM_UPS = 3,
    LONG_MS = 20, /* of a measurement on a device */
    REPEAT_MAX = 500,
    CHECKED = 3, /* rows of a case */
};

struct attn_bench {
    struct bench_device d;
    unsigned H, G, K;
    size_t n_keys;
    float *host_k, *host_v, *host_q; /* [n_keys, G, K] twice, [n_keys, H, K] */
    void *pages;                     /* of all sequences */
    int32_t *page_ids;               /* [SEQS_MAX, n_pages] */
    struct kn_kv kv[SEQS_MAX], many;
    struct kn_pages *each;               /* [SEQS_MAX] */
    float *q, *k, *v, *out, *lse, *mass; /* the device's; mass and seen are shared */
    float *seen;                         /* [H, K]: a row that came back */
    int32_t *order;                      /* 0, 1, … */
    struct attn_case {
        char name[16];
        size_t m, n_seqs; /* n_seqs > 1 or m = 1: one row of each sequence */
        bool mass;
        int32_t *pos; /* [m], or [n_seqs] */
        double visible, flops, bytes;
        unsigned repeat;
        double *ms; /* [reps] */
    } c[CASES_MAX];
    size_t n_cases;
};

static float *noise_of(size_t n, uint64_t seed, float scale)
{
    float *x = mem_alloc(n * sizeof *x);
    for (size_t i = 0; x && i < n; i++)
        x[i] = bench_noise(&seed) * scale;
    return x;
}

/* ---- memory ---- */

static int take_memory(struct attn_bench *b, enum kn_mem kind, size_t floats, const float *from,
                       float **ret)
{
    *ret = kn_mem_alloc(b->d.dev, kind, floats * sizeof **ret);
    if (!*ret) return -ENOMEM;
    return from ? kn_mem_copy(b->d.dev, *ret, from, floats * sizeof **ret) : 0;
}

static int put_all(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct attn_bench *b = arg;
    const size_t GK = (size_t)b->G * b->K;
    int r = 0;
    for (size_t s = 0; r == 0 && s < SEQS_MAX; s++)
        r = kn_kv_put(st, &b->kv[s], 0, b->order + row0, n, b->k + row0 * GK, GK, b->v + row0 * GK,
                      GK);
    return r;
}

/* Every sequence has pages of its own, none next to each other, and the same keys. */
static int make_pages(struct attn_bench *b)
{
    const size_t n = (b->n_keys + KN_PAGE - 1) / KN_PAGE, values = kn_kv_layer_values(b->G, b->K);
    b->pages = kn_mem_alloc(b->d.dev, KN_MEM_DEVICE,
                            SEQS_MAX * n * values * kn_info(b->d.dev)->kv_value_bytes);
    b->page_ids = kn_mem_alloc(b->d.dev, KN_MEM_SHARED, SEQS_MAX * n * sizeof *b->page_ids);
    b->order = kn_mem_alloc(b->d.dev, KN_MEM_SHARED, b->n_keys * sizeof *b->order);
    b->each = kn_mem_alloc(b->d.dev, KN_MEM_SHARED, SEQS_MAX * sizeof *b->each);
    if (!b->pages || !b->page_ids || !b->order || !b->each) return -ENOMEM;
    for (size_t i = 0; i < SEQS_MAX * n; i++)
        b->page_ids[i] = (int32_t)(i % n * SEQS_MAX + i / n);
    for (size_t s = 0; s < SEQS_MAX; s++) {
        b->each[s] = (struct kn_pages){b->page_ids + s * n, n};
        b->kv[s] = (struct kn_kv){b->pages, values, values, b->each[s].id, n, b->G, b->K, NULL};
    }
    b->many = b->kv[0];
    b->many.each = b->each;
    for (size_t i = 0; i < b->n_keys; i++)
        b->order[i] = (int32_t)i;
    return kn_rows(b->d.dev, b->n_keys, NULL, put_all, b);
}

static int make_tensors(struct attn_bench *b)
{
    const size_t GK = (size_t)b->G * b->K, HK = (size_t)b->H * b->K, N = b->n_keys;
    b->host_k = noise_of(N * GK, 1, 1), b->host_v = noise_of(N * GK, 2, 1);
    b->host_q = noise_of(N * HK, 3, 3); /* scores with a deviation of 1 */
    int r = b->host_k && b->host_v && b->host_q ? 0 : -ENOMEM;
    if (r == 0) r = take_memory(b, KN_MEM_DEVICE, N * GK, b->host_k, &b->k);
    if (r == 0) r = take_memory(b, KN_MEM_DEVICE, N * GK, b->host_v, &b->v);
    if (r == 0) r = take_memory(b, KN_MEM_DEVICE, N * HK, b->host_q, &b->q);
    if (r == 0) r = take_memory(b, KN_MEM_DEVICE, N * HK, NULL, &b->out);
    if (r == 0) r = take_memory(b, KN_MEM_DEVICE, N * b->H, NULL, &b->lse);
    if (r == 0) r = take_memory(b, KN_MEM_SHARED, N, NULL, &b->mass);
    if (r == 0) r = take_memory(b, KN_MEM_SHARED, HK, NULL, &b->seen);
    return r < 0 ? r : make_pages(b);
}

/* ---- cases ---- */

static int add_case(struct attn_bench *b, const char *name, size_t m, size_t n_seqs, bool mass)
{
    struct attn_case *c = &b->c[b->n_cases++];
    const size_t rows = n_seqs ? n_seqs : m, spread = m > QUESTION ? m - QUESTION : 0,
                 context = b->n_keys - QUESTION;
    const double per_key = (double)b->H * b->K * (mass ? 2 : 4);
    uint64_t seed = 9;
    (void)snprintf(c->name, sizeof c->name, "%s", name);
    c->m = m, c->n_seqs = n_seqs, c->mass = mass;
    c->pos = kn_mem_alloc(b->d.dev, KN_MEM_SHARED, rows * sizeof *c->pos);
    c->ms = mem_zalloc(b->d.reps * sizeof *c->ms);
    if (!c->pos || !c->ms) return -ENOMEM;
    for (size_t i = 0; i < rows; i++) {
        size_t pos = n_seqs ? b->n_keys - 1 : b->n_keys - m + i;
        if (!n_seqs && m < b->n_keys && i < spread)
            pos = (size_t)(((double)i + 0.5 + 0.49 * (double)bench_noise(&seed)) / (double)spread *
                           (double)context);
        c->pos[i] = (int32_t)pos;
        c->visible += (double)pos + 1;
    }
    c->flops = per_key * c->visible;
    c->bytes = (double)(n_seqs ? n_seqs : 1) * (double)b->n_keys * b->G * b->K *
               (double)kn_info(b->d.dev)->kv_value_bytes * (mass ? 1 : 2);
    return 0;
}

static int make_cases(struct attn_bench *b)
{
    static const unsigned percent[] = {5, 10, 15, 30}, seqs[] = {1, 2, 4, 8, 16};
    char name[16];
    int r = add_case(b, "full", b->n_keys, 0, false);
    for (size_t i = 0; r == 0 && i < sizeof percent / sizeof *percent; i++) {
        (void)snprintf(name, sizeof name, "sparse %u %%", percent[i]);
        r = add_case(b, name, (b->n_keys - QUESTION) * percent[i] / 100 + QUESTION, 0, false);
    }
    for (size_t i = 0; r == 0 && i < sizeof seqs / sizeof *seqs; i++) {
        (void)snprintf(name, sizeof name, "decode x%u", seqs[i]);
        r = add_case(b, name, 1, seqs[i], false);
    }
    return r < 0 ? r : add_case(b, "mass", QUESTION, 0, true);
}

/* ---- running ---- */

struct attn_run {
    struct attn_bench *b;
    const struct attn_case *c;
    unsigned repeat;
    bool lse; /* the rows' log-sum-exps are wanted, not their mass */
};

static struct kn_attn_args args_of(const struct attn_bench *b, size_t row, size_t m,
                                   const int32_t *pos)
{
    const size_t HK = (size_t)b->H * b->K;
    return (struct kn_attn_args){.q = b->q + row * HK,
                                 .ldq = HK,
                                 .m = m,
                                 .pos = pos,
                                 .H = b->H,
                                 .kv = &b->kv[0],
                                 .scale = 1.0f / sqrtf((float)b->K),
                                 .out = b->out + row * HK,
                                 .ldo = HK,
                                 .lse = b->lse + row * b->H};
}

static int rows_fn(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct attn_run *x = arg;
    const struct attn_case *c = x->c;
    struct kn_attn_args a = args_of(x->b, row0, n, c->pos + row0);
    int r = 0;
    if (c->n_seqs) a.kv = &x->b->many;
    for (unsigned i = 0; r == 0 && i < x->repeat; i++)
        r = c->mass && !x->lse ? kn_attn_mass(st, &a, x->b->mass, 0, x->b->n_keys)
                               : kn_attn(st, &a);
    return r;
}

/* As the engine runs it. */
static int run_case(struct attn_bench *b, const struct attn_case *c, unsigned repeat, bool lse)
{
    struct attn_run x = {b, c, repeat, lse};
    const size_t rows = c->n_seqs ? c->n_seqs : c->m;
    if (c->n_seqs || c->mass || rows <= kn_info(b->d.dev)->wide_rows_max)
        return kn_wide(b->d.dev, rows, NULL, rows_fn, &x);
    return kn_rows_uneven(b->d.dev, rows, NULL, rows_fn, &x);
}

/* ---- is it right? ---- */

static double worst_of_row(const struct attn_bench *b, size_t row, size_t n, double *prob)
{
    const size_t K = b->K, GK = (size_t)b->G * K;
    double worst = 0;
    const size_t step = b->H / 8 + (b->H < 8); /* heads */
    for (size_t h = 0; h < b->H; h += step) {
        const float *q = b->host_q + (row * b->H + h) * K;
        const size_t kv = h / (b->H / b->G) * K;
        double sum = 0, out[HEAD_MAX] = {0};
        for (size_t j = 0; j < n; j++) {
            double s = 0;
            for (size_t d = 0; d < K; d++)
                s += (double)q[d] * (double)b->host_k[j * GK + kv + d];
            sum += prob[j] = exp(s / sqrt((double)K));
        }
        for (size_t j = 0; j < n; j++)
            for (size_t d = 0; d < K; d++)
                out[d] += prob[j] / sum * (double)b->host_v[j * GK + kv + d];
        for (size_t d = 0; d < K; d++)
            worst = fmax(worst, fabs(out[d] - (double)b->seen[h * K + d]));
    }
    return worst;
}

/* A few rows of each case; of the mass, that it is all there. */
static int check_case(struct attn_bench *b, const struct attn_case *c, double *prob,
                      struct err *err)
{
    const size_t HK = (size_t)b->H * b->K, rows = c->n_seqs ? c->n_seqs : c->m;
    /* bf16 rounds queries, keys, values and probabilities to 2^-9. */
    const double tolerance = kn_info(b->d.dev)->kv_value_bytes == 2 ? 1e-2 : 1e-4;
    double worst = 0, sum = 0;
    int r = run_case(b, c, 1, true);
    for (size_t i = 0; r == 0 && i < CHECKED; i++) {
        const size_t row = i * (rows - 1) / (CHECKED - 1);
        r = kn_mem_copy(b->d.dev, b->seen, b->out + row * HK, HK * sizeof *b->seen);
        if (r == 0) worst = fmax(worst, worst_of_row(b, row, (size_t)c->pos[row] + 1, prob));
    }
    if (r == 0 && c->mass) {
        memset(b->mass, 0, b->n_keys * sizeof *b->mass);
        r = run_case(b, c, 1, false);
        for (size_t j = 0; j < b->n_keys; j++)
            sum += (double)b->mass[j];
        worst = fmax(worst, fabs(sum / ((double)c->m * b->H) - 1));
    }
    if (r < 0) return err_set(err, r, "%s: %s", c->name, err_name(r));
    if (worst <= tolerance) return 0;
    return err_set(err, -EBADMSG, "%s is wrong by %.3g: nothing is measured", c->name, worst);
}

/* ---- timing ---- */

static int time_case(struct attn_bench *b, const struct attn_case *c, unsigned repeat,
                     double *ret_ms)
{
    const uint64_t t0 = clock_ns();
    int r = run_case(b, c, repeat, false);
    *ret_ms = clock_ms_since(t0) / repeat;
    return r;
}

/* How often one measurement repeats it: on a device the launch and the wait cost some 20 us. */
static int warm_up(struct attn_bench *b, struct attn_case *c)
{
    double ms = 0;
    int r = 0;
    c->repeat = 1;
    for (unsigned i = 0; r == 0 && i < (kn_info(b->d.dev)->is_host ? 1 : WARM_UPS); i++) {
        r = time_case(b, c, c->repeat, &ms);
        if (kn_info(b->d.dev)->is_host) continue;
        c->repeat = ms * REPEAT_MAX < LONG_MS ? REPEAT_MAX : (unsigned)(LONG_MS / ms) + 1;
    }
    return r;
}

static size_t gemm_side(const struct attn_bench *b)
{
    return kn_info(b->d.dev)->is_host ? 2048 : b->d.emulated ? 256 : 8192;
}

/* One large product: what matrices run at here. */
static int gemm_rate(struct attn_bench *b)
{
    const size_t n = gemm_side(b);
    struct kn_mat *w = bench_device_mat(&b->d, n, n, 4);
    if (!w) return -ENOMEM;
    b->d.gemm_gflops = fmax(b->d.gemm_gflops, kn_dev_gemm_gflops(b->d.dev, &w, 1, n / 2));
    kn_mat_destroy(w);
    return 0;
}

static int measure(struct attn_bench *b)
{
    int r = gemm_rate(b);
    for (size_t i = 0; r == 0 && i < b->n_cases; i++)
        r = warm_up(b, &b->c[i]);
    for (size_t rep = 0; r == 0 && rep < b->d.reps; rep++)
        for (size_t i = 0; r == 0 && i < b->n_cases; i++) {
            struct attn_case *c = &b->c[(i + rep) % b->n_cases];
            r = time_case(b, c, c->repeat, &c->ms[rep]);
            bench_progress("measurement", rep * b->n_cases + i + 1, b->d.reps * b->n_cases);
        }
    return r < 0 ? r : gemm_rate(b);
}

/* ---- report ---- */

static json_t *meta_of(const struct attn_bench *b)
{
    json_t *meta = bench_device_meta(&b->d);
    json_object_update_new(meta, json_pack("{s:i, s:i, s:i, s:i, s:f}", "H", (int)b->H, "G",
                                           (int)b->G, "K", (int)b->K, "kv_value_bytes",
                                           (int)kn_info(b->d.dev)->kv_value_bytes, "gemm_tflops",
                                           b->d.gemm_gflops * 1e-3));
    return meta;
}

static json_t *report(struct attn_bench *b)
{
    json_t *rows = json_array();
    (void)printf("%s: %u heads on %u of %u; %zu keys; one product of matrices %.4g TFLOP/s\n",
                 kn_info(b->d.dev)->device, b->H, b->G, b->K, b->n_keys, b->d.gemm_gflops * 1e-3);
    (void)printf("%-12s %6s %10s %10s %10s %10s %8s\n", "case", "rows", "ms", "best", "TFLOP/s",
                 "KV GB/s", "of GEMM");
    for (size_t i = 0; i < b->n_cases; i++) {
        const struct attn_case *c = &b->c[i];
        const double ms = bench_quantile(c->ms, b->d.reps, 0.5), best = c->ms[0],
                     worst = c->ms[b->d.reps - 1], tflops = c->flops / ms * 1e-9,
                     share = tflops * 1e3 / b->d.gemm_gflops;
        const int n = (int)(c->n_seqs ? c->n_seqs : c->m);
        json_array_append_new(
            rows, json_pack("{s:s, s:i, s:i, s:i, s:f, s:i, s:f, s:f, s:f, s:f, s:f, s:f}", "case",
                            c->name, "rows", n, "sequences", (int)(c->n_seqs ? c->n_seqs : 1),
                            "keys", (int)b->n_keys, "visible_keys", c->visible, "repeat",
                            (int)c->repeat, "ms", ms, "ms_min", best, "ms_max", worst, "tflops",
                            tflops, "kv_gbps", c->bytes / ms * 1e-6, "gemm_share", share));
        (void)printf("%-12s %6d %10.4f %10.4f %10.4g %10.4g %7.1f%%\n", c->name, n, ms, best,
                     tflops, c->bytes / ms * 1e-6, share * 100);
    }
    return rows;
}

static void finish(struct attn_bench *b)
{
    void *const device[] = {b->pages, b->page_ids, b->q,    b->k,     b->v,   b->out,
                            b->lse,   b->mass,     b->seen, b->order, b->each};
    for (size_t i = 0; b->d.dev && i < sizeof device / sizeof *device; i++)
        kn_mem_free(b->d.dev, device[i]);
    for (size_t i = 0; i < b->n_cases; i++) {
        kn_mem_free(b->d.dev, b->c[i].pos);
        mem_free(b->c[i].ms);
    }
    mem_free(b->host_k), mem_free(b->host_v), mem_free(b->host_q);
    bench_device_close(&b->d);
}

static int open_device(struct attn_bench *b, const struct opts *opts, struct err *err)
{
    enum { GPU_TUNE_MS = 500 }; /* products are not what is measured */
    int r = bench_device_create(opts, GPU_TUNE_MS, &b->d, err);
    if (r < 0) return r;
    b->H = b->d.cfg.H, b->G = b->d.cfg.G, b->K = b->d.cfg.K;
    b->n_keys = (size_t)opt_int(opts, "keys");
    if (b->K > HEAD_MAX) return err_set(err, -ENOTSUP, "heads of %u dimensions", b->K);
    return 0;
}

static int measure_attention(const struct opts *opts, struct err *err)
{
    struct attn_bench b = {0};
    int r = open_device(&b, opts, err);
    if (r == 0) r = make_tensors(&b);
    if (r == 0) r = make_cases(&b);
    double *prob = mem_alloc((b.n_keys ? b.n_keys : 1) * sizeof *prob);
    if (!prob && r == 0) r = -ENOMEM;
    for (size_t i = 0; r == 0 && i < b.n_cases; i++)
        r = check_case(&b, &b.c[i], prob, err);
    if (r == 0) r = measure(&b);
    if (r == 0) {
        json_t *rows = report(&b), *meta = meta_of(&b);
        r = bench_write_json(opts, meta, rows, err);
        json_decref(meta);
        json_decref(rows);
    }
    if (r < 0 && err->code == 0) (void)err_set(err, r, "measuring failed: %s", err_name(r));
    mem_free(prob);
    finish(&b);
    return r;
}

static const struct opt_def measure_attention_options[] = {{.name = "keys",
                                                            .type = OPT_INT,
                                                            .dflt = "3104",
                                                            .min = 128,
                                                            .max = 1 << 20,
                                                            .help = "tokens that rows may see"},
                                                           {0}};

const struct bench_sub bench_attn = {.name = "kernels attn",
                                     .about =
                                         "the attention kernel alone, in a published model's shape",
                                     .shared = BENCH_DEVICE_OPTIONS "shape reps",
                                     .options = measure_attention_options,
                                     .run = measure_attention};
