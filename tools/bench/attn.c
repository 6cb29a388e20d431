/* kvblend-bench kernels attn: the attention kernel alone, on random pages in a model's shape.
 *
 * Cases: all rows of --keys tokens; 5, 10, 15 and 30 % of them, evenly spread, with a question's 32
 * rows behind, as a blend has them; one new row of each of 1 to 16 sequences; what the question's
 * rows give to each key. Rows see keys up to their position and no others are counted: 4 flops a
 * head, dimension and visible key (mass: 2). Bytes are those of the keys and values that somebody
 * sees, once. The device's rate in one large product of matrices, before and behind, is what shares
 * are of. Whether results are right is what tests/unit/kernels asks, on the same device. */
#include "tools/bench/bench.h"
#include "tools/bench/device.h"
#include "tools/bench/figures.h"

#include "base/mem.h"
#include "base/rng.h"
#include "kernels/rate.h"

#include <math.h>
#include <stdio.h>

enum {
    SEQS_MAX = 16,
    QUESTION = 32,
    CASES_MAX = 12,
    CHECKED = 3, /* rows of a case */
};

struct attn_bench {
    struct bench_device d;
    unsigned H, G, K;
    size_t n_keys;
    void *pages;       /* of all sequences */
    int32_t *page_ids; /* [SEQS_MAX, n_pages] */
    struct kn_kv kv[SEQS_MAX], many;
    struct kn_pages *each;               /* [SEQS_MAX] */
    float *q, *k, *v, *out, *lse, *mass; /* the device's; mass is shared */
    int32_t *order;                      /* 0, 1, … */
    struct attn_case {
        char name[16];
        size_t m, n_seqs; /* n_seqs > 1 or m = 1: one row of each sequence */
        bool mass;
        int32_t *pos; /* [m], or [n_seqs] */
        double visible, flops, bytes;
    } c[CASES_MAX];
    size_t n_cases;
};

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
    const struct bench_device *d = &b->d;
    float *q = bench_noise(N * HK, 3);
    for (size_t i = 0; q && i < N * HK; i++)
        q[i] *= 3; /* scores with a deviation of 1 */
    b->q = q ? bench_device_floats(d, KN_MEM_DEVICE, q, N * HK) : NULL;
    mem_free(q);
    b->k = bench_device_random(d, KN_MEM_DEVICE, N * GK);
    b->v = bench_device_random(d, KN_MEM_DEVICE, N * GK);
    b->out = bench_device_floats(d, KN_MEM_DEVICE, NULL, N * HK);
    b->mass = bench_device_floats(d, KN_MEM_SHARED, NULL, N);
    b->lse = bench_device_floats(d, KN_MEM_DEVICE, NULL, N * b->H);
    if (!b->k || !b->v || !b->q || !b->out || !b->lse || !b->mass) return -ENOMEM;
    return make_pages(b);
}

/* ---- cases ---- */

static int add_case(struct attn_bench *b, const char *name, size_t m, size_t n_seqs, bool mass)
{
    struct attn_case *c = &b->c[b->n_cases++];
    const size_t rows = n_seqs ? n_seqs : m, spread = m > QUESTION ? m - QUESTION : 0,
                 context = b->n_keys - QUESTION;
    const double per_key = (double)b->H * b->K * (mass ? 2 : 4);
    struct rng rng = {9};
    (void)snprintf(c->name, sizeof c->name, "%s", name);
    c->m = m, c->n_seqs = n_seqs, c->mass = mass;
    c->pos = kn_mem_alloc(b->d.dev, KN_MEM_SHARED, rows * sizeof *c->pos);
    if (!c->pos) return -ENOMEM;
    for (size_t i = 0; i < rows; i++) {
        size_t pos = n_seqs ? b->n_keys - 1 : b->n_keys - m + i;
        if (!n_seqs && m < b->n_keys && i < spread)
            pos = (size_t)(((double)i + 0.01 + 0.98 * rng_unit(&rng)) / (double)spread *
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

static int attend_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct attn_run *x = arg;
    const struct attn_case *c = x->c;
    struct kn_attn_args a = args_of(x->b, row0, n, c->pos + row0);
    if (c->n_seqs) a.kv = &x->b->many;
    return c->mass ? kn_attn_mass(st, &a, x->b->mass, 0, x->b->n_keys) : kn_attn(st, &a);
}

/* As the engine runs it. */
static struct bench_work work_of(struct attn_run *x)
{
    const struct attn_case *c = x->c;
    return (struct bench_work){c->n_seqs ? c->n_seqs : c->m, attend_rows, x,
                               c->n_seqs || c->mass ? BENCH_AT_ONCE : BENCH_UNEVEN};
}

/* ---- measuring and the report ---- */

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

static int measure_case(struct attn_bench *b, const struct attn_case *c, json_t *rows)
{
    struct attn_run x = {b, c};
    const struct bench_work w = work_of(&x);
    struct bench_time t;
    int r = bench_device_time(&b->d, &w, &t);
    if (r < 0) return r;
    const double ms = t.us / 1e3;
    json_array_append_new(rows, json_pack("{s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f}",
                                          "case", c->name, "rows", (int)w.rows, "sequences",
                                          (int)(c->n_seqs ? c->n_seqs : 1), "keys", (int)b->n_keys,
                                          "visible_keys", c->visible, "ms", ms, "ms_min",
                                          t.us_lo / 1e3, "ms_max", t.us_hi / 1e3, "tflops",
                                          c->flops / ms * 1e-9, "kv_gbps", c->bytes / ms * 1e-6));
    return 0;
}

static int measure_cases(struct attn_bench *b, json_t *rows)
{
    static const struct bench_column column[] = {{"case", "case", -12, 0},
                                                 {"rows", "rows", 6, 0},
                                                 {"ms", "ms", 10, 4},
                                                 {"best", "ms_min", 10, 4},
                                                 {"TFLOP/s", "tflops", 10, 3},
                                                 {"KV GB/s", "kv_gbps", 10, 1},
                                                 {"of GEMM", "gemm_share", 8, 3},
                                                 {0}};
    size_t i;
    json_t *row;
    int r = gemm_rate(b);
    for (i = 0; r == 0 && i < b->n_cases; i++) {
        r = measure_case(b, &b->c[i], rows);
        bench_progress("case", i + 1, b->n_cases);
    }
    if (r == 0) r = gemm_rate(b);
    if (r < 0) return r;
    (void)printf("%s: %u heads on %u of %u; %zu keys; one product of matrices %.4g TFLOP/s\n",
                 kn_info(b->d.dev)->device, b->H, b->G, b->K, b->n_keys, b->d.gemm_gflops * 1e-3);
    bench_print_head(column);
    json_array_foreach(rows, i, row)
    {
        const double tflops = json_number_value(json_object_get(row, "tflops"));
        json_object_set_new(row, "gemm_share", json_real(tflops * 1e3 / b->d.gemm_gflops));
        bench_print_row(column, row);
    }
    return 0;
}

static void drop_tensors(struct attn_bench *b)
{
    void *const device[] = {b->pages, b->page_ids, b->q,    b->k,     b->v,
                            b->out,   b->lse,      b->mass, b->order, b->each};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        kn_mem_free(b->d.dev, device[i]);
    for (size_t i = 0; i < b->n_cases; i++)
        kn_mem_free(b->d.dev, b->c[i].pos);
}

static int measure_attention(const struct opts *opts, struct err *err)
{
    enum { GPU_TUNE_MS = 500 }; /* products are not what is measured */
    struct attn_bench b = {.n_keys = (size_t)opt_int(opts, "keys")};
    json_t *rows = json_array(), *more = NULL;
    int r = bench_device_create(opts, GPU_TUNE_MS, &b.d, err);
    if (r < 0) return bench_device_end(opts, &b.d, rows, NULL, r, err);
    b.H = b.d.cfg.H, b.G = b.d.cfg.G, b.K = b.d.cfg.K;
    r = make_tensors(&b);
    if (r == 0) r = make_cases(&b);
    if (r == 0) r = measure_cases(&b, rows);
    if (r == 0)
        more = json_pack("{s:i, s:i, s:i, s:i, s:f}", "H", (int)b.H, "G", (int)b.G, "K", (int)b.K,
                         "kv_value_bytes", (int)kn_info(b.d.dev)->kv_value_bytes, "gemm_tflops",
                         b.d.gemm_gflops * 1e-3);
    drop_tensors(&b);
    return bench_device_end(opts, &b.d, rows, more, r, err);
}

static const struct opt_def measure_attention_options[] = {
    {"keys", OPT_INT, "3104", 128, 1 << 20, NULL, "tokens that rows may see"}, {0}};

const struct bench_sub bench_attn = {.name = "kernels attn",
                                     .about =
                                         "the attention kernel alone, in a published model's shape",
                                     .shared = BENCH_DEVICE_OPTIONS "shape reps",
                                     .options = measure_attention_options,
                                     .run = measure_attention};
