/* kvblend-bench kernels attn: the attention kernel alone, on random pages in a model's shape.
 *
 * Cases: all rows of --keys tokens; 5, 10, 15 and 30 % of them, evenly spread, with a question's 32
 * rows behind, as a blend has them; one new row of each of 1 to 16 sequences; the question's rows
 * alone, which tell the log-sum-exp of their scores, and what they give to each key by it. Rows see
 * keys up to their position and no others are counted: 4 flops a head, dimension and visible key
 * (mass: 2). Bytes are those of the keys and values that somebody sees, once. The device's rate in
 * one large product of matrices, before them, is what shares are of. Whether results are right is
 * what tests/unit/kernels asks, on the same device. */
#include "tools/bench/device.h"
#include "tools/bench/figures.h"

#include "kernels/rate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SEQS_MAX = 16, QUESTION = 32 };

static const struct attn_case {
    const char *name;
    unsigned percent; /* of the rows before the question's */
    unsigned n_seqs;  /* > 0: one row of each of so many sequences */
    enum { NO_LSE, ASKS, MASS } lse;
    enum { TO_F32, TO_OPERAND, BY_LIBRARY } how; /* GPU: as a prefill, by our kernel and not */
} cases[] = {
    {"full", 100, 0, NO_LSE},
    {"sparse 5 %", 5, 0, NO_LSE},
    {"sparse 10 %", 10, 0, NO_LSE},
    {"sparse 15 %", 15, 0, NO_LSE},
    {"sparse 30 %", 30, 0, NO_LSE},
    {"decode x1", 0, 1, NO_LSE},
    {"decode x2", 0, 2, NO_LSE},
    {"decode x4", 0, 4, NO_LSE},
    {"decode x8", 0, 8, NO_LSE},
    {"decode x16", 0, 16, NO_LSE},
    {"question", 0, 0, ASKS},
    {"mass", 0, 0, MASS},
    {"full, bf16", 100, 0, NO_LSE, TO_OPERAND},
    {"full, library", 100, 0, NO_LSE, BY_LIBRARY},
};
enum { N_CASES = sizeof cases / sizeof *cases };

struct attn_bench {
    struct bench_device *d;
    size_t n_keys, HK, GK;
    struct kn_kv kv[SEQS_MAX], many;
    float *q, *k, *v, *out, *lse, *mass; /* [n_keys, …]; mass is shared */
    int32_t *pos;                        /* [n_keys], of the rows of a case */
    struct kn_mat *o;                    /* a product that reads what attention gives */
    const struct attn_case *c;           /* that is being measured */
};

/* The same keys for all sequences. */
static int put_all(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct attn_bench *b = arg;
    const float *k = b->k + row0 * b->GK, *v = b->v + row0 * b->GK;
    int r = 0;
    for (size_t s = 0; r == 0 && s < SEQS_MAX; s++)
        r = kn_kv_put(st, &b->kv[s], 0, b->pos + row0, n, k, b->GK, v, b->GK);
    return r;
}

static int make_tensors(struct attn_bench *b)
{
    struct bench_device *d = b->d;
    const size_t N = b->n_keys;
    struct kn_pages *each = bench_take(d, KN_MEM_SHARED, SEQS_MAX * sizeof *each);
    b->HK = (size_t)d->cfg.H * d->cfg.K, b->GK = (size_t)d->cfg.G * d->cfg.K;
    b->q = bench_take_floats(d, N * b->HK, 0, 3); /* scores with a deviation of 1 */
    b->k = bench_take_floats(d, N * b->GK, 0, 1);
    b->v = bench_take_floats(d, N * b->GK, 0, 1);
    b->out = bench_take(d, KN_MEM_DEVICE, N * b->HK * sizeof(float));
    b->lse = bench_take(d, KN_MEM_DEVICE, N * d->cfg.H * sizeof(float));
    b->mass = bench_take(d, KN_MEM_SHARED, N * sizeof(float));
    b->pos = bench_take(d, KN_MEM_SHARED, N * sizeof *b->pos);
    b->o = bench_take_mat(d, QUESTION, b->HK);
    if (bench_take_pages(d, N, SEQS_MAX, b->kv) < 0) return d->status;
    for (size_t s = 0; s < SEQS_MAX; s++)
        each[s] = (struct kn_pages){b->kv[s].pages, b->kv[s].n_pages};
    b->many = b->kv[0];
    b->many.each = each;
    for (size_t i = 0; i < N; i++)
        b->pos[i] = (int32_t)i;
    return kn_rows(d->dev, N, NULL, put_all, b);
}

/* ---- measuring ---- */

static int attend_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct attn_bench *b = arg;
    const struct model_cfg *g = &b->d->cfg;
    const bool to_operand = b->c->how != TO_F32;
    struct kn_attn_args a = {.q = b->q + row0 * b->HK,
                             .ldq = b->HK,
                             .m = n,
                             .pos = b->pos + row0,
                             .known = b->c->n_seqs ? NULL : b->pos + row0,
                             .H = g->H,
                             .kv = b->c->n_seqs ? &b->many : &b->kv[0],
                             .scale = 1.0f / sqrtf((float)g->K),
                             .out = b->out + row0 * b->HK,
                             .ldo = b->HK,
                             .lse = b->c->lse ? b->lse + row0 * g->H : NULL};
    if (b->c->how == BY_LIBRARY) a.n_keys = b->n_keys;
    if (to_operand && !(a.out = kn_operand(st, 0, n, b->o))) return -ENOMEM;
    return b->c->lse == MASS ? kn_attn_mass(st, &a, b->mass, 0, b->n_keys) : kn_attn(st, &a);
}

static const struct bench_column columns[] = {{"case", "case", -12, 0},
                                              {"rows", "rows", 6, 0},
                                              {"ms", "ms", 10, 4},
                                              {"best", "ms_min", 10, 4},
                                              {"TFLOP/s", "tflops", 10, 3},
                                              {"KV GB/s", "kv_gbps", 10, 1},
                                              {"of GEMM", "gemm_share", 8, 3},
                                              {0}};

/* Where the rows of the case stand; how many keys they see together. */
static double place_rows(struct attn_bench *b, size_t rows)
{
    const size_t before = b->c->n_seqs ? 0 : rows - QUESTION;
    double visible = 0;
    for (size_t i = 0; i < rows; i++) {
        const size_t pos = b->c->n_seqs ? b->n_keys - 1
                           : i < before ? (2 * i + 1) * (b->n_keys - QUESTION) / (2 * before)
                                        : b->n_keys - rows + i;
        b->pos[i] = (int32_t)pos;
        visible += (double)pos + 1;
    }
    return visible;
}

static int measure_case(struct attn_bench *b)
{
    const struct attn_case *c = b->c;
    const size_t rows =
        c->n_seqs ? c->n_seqs : (b->n_keys - QUESTION) * c->percent / 100 + QUESTION;
    const struct bench_work w = {rows, attend_rows, b, /* as the engine runs it */
                                 c->n_seqs || c->lse ? BENCH_AT_ONCE : BENCH_UNEVEN};
    const unsigned n_seqs = c->n_seqs ? c->n_seqs : 1, tensors = c->lse == MASS ? 1 : 2;
    const double visible = place_rows(b, rows), flops = 2.0 * tensors * (double)b->HK * visible,
                 bytes = (double)(tensors * n_seqs * b->n_keys * b->GK *
                                  kn_info(b->d->dev)->kv_value_bytes);
    struct bench_time t;
    int r = bench_time(b->d, &w, 0, &t);
    if (r < 0) return r;
    const double tflops = flops / t.us * 1e-6;
    json_t *row = json_pack("{s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "case",
                            c->name, "rows", (int)rows, "sequences", (int)n_seqs, "keys",
                            (int)b->n_keys, "visible_keys", visible, "ms", t.us * 1e-3, "ms_min",
                            t.us_lo * 1e-3, "ms_max", t.us_hi * 1e-3, "tflops", tflops, "kv_gbps",
                            bytes / t.us * 1e-3, "gemm_share", tflops / (b->d->gemm_gflops * 1e-3));
    bench_print_row(columns, row);
    json_array_append_new(b->d->rows, row);
    return 0;
}

/* One large product: what matrices run at here. */
static int measure_gemm(struct bench_device *d)
{
    const struct kn_info *info = kn_info(d->dev);
    const size_t n = info->is_host ? 2048 : d->emulated ? 256 : 8192;
    struct kn_mat *w = bench_take_mat(d, n, n);
    if (d->status < 0) return d->status;
    d->gemm_gflops = kn_dev_gemm_gflops(d->dev, &w, 1, n / 2);
    json_object_update_new(d->meta, json_pack("{s:i, s:i, s:i, s:i, s:f}", "H", (int)d->cfg.H, "G",
                                              (int)d->cfg.G, "K", (int)d->cfg.K, "kv_value_bytes",
                                              (int)info->kv_value_bytes, "gemm_tflops",
                                              d->gemm_gflops * 1e-3));
    return 0;
}

static bool has_case(const struct attn_bench *b)
{
    const struct kn_info *i = kn_info(b->d->dev);
    return b->c->how == TO_F32 ||
           (!i->is_host && (b->c->how == TO_OPERAND || strcmp(i->attn, "own") != 0));
}

static int measure_attention(struct bench_device *d, const struct opts *opts, struct err *err)
{
    struct attn_bench b = {.d = d, .n_keys = (size_t)opt_int(opts, "keys")};
    int r = make_tensors(&b);
    if (r == 0) r = measure_gemm(d);
    if (r < 0) return r;
    (void)printf("%s: %u heads on %u of %u; %zu keys; one product of matrices %.4g TFLOP/s\n",
                 kn_info(d->dev)->device, d->cfg.H, d->cfg.G, d->cfg.K, b.n_keys,
                 d->gemm_gflops * 1e-3);
    bench_print_head(columns);
    for (size_t i = 0; r == 0 && i < N_CASES; i++) {
        b.c = &cases[i];
        if (has_case(&b)) r = measure_case(&b);
    }
    return r;
}

static const struct opt_def attn_options[] = {
    {"keys", OPT_INT, "3104", 128, 1 << 20, NULL, "tokens that rows may see"}, {0}};

const struct bench_sub bench_attn = {.name = "kernels attn",
                                     .about =
                                         "the attention kernel alone, in a published model's shape",
                                     .shared = BENCH_DEVICE_OPTIONS "shape reps",
                                     .options = attn_options,
                                     .run_device = measure_attention,
                                     .gpu_tune_ms = 500, /* products are not what is measured */
                                     .tunes_attn = true};
