/* kvblend-bench kernels: every row operation over a model's shape: time, bytes, and the share of
 * the device's own copy bandwidth of the same run.
 *
 * Bytes are the fewest that the operation can move: what it reads and what it writes, once each
 * (tables of a row and what many rows share are left out). Operations that fill the host's memory
 * include the way there. Rows ending in "+operand" write what the products behind them read.
 * "codes" is a product with a weight of [4F, D] in codes of 4 bits, where the device keeps a file's
 * form, "product" the same with what it makes of f32. */
#include "tools/bench/device.h"
#include "tools/bench/figures.h"

#include "base/rng.h"

#include <math.h>
#include <stdio.h>

struct bank { /* data that every operation finds, for m rows at most */
    const struct bench_device *b;
    size_t HK, GK, n_product;
    float *x, *gate_up, *q, *kv; /* [m, D], [m, 2F], [m, HK], [m, 2 GK] */
    float *out;                  /* [m, widest] */
    float *weight, *ret;
    int32_t *pos, *idx;
    char *f16, *q8;                 /* [m, GK] stored */
    char *host;                     /* shared: encoded rows */
    int *bad;                       /* shared: whether a value did not fit, which none does */
    struct kn_mat *gu, *down;       /* that operands are for */
    struct kn_mat *product, *codes; /* [4F, D], beyond caches; codes NULL: the device has none */
    struct kn_moe moe;              /* n 0: the shape has no experts */
    struct kn_mat *expert[2][KN_EXPERTS_MAX];
    struct kn_rope rope;
    struct kn_kv pages;
};

enum kernel_op {
    OP_COPY,
    OP_GATHER,
    OP_NORM,
    OP_NORM_HEADS,
    OP_SWIGLU,
    OP_ROPE,
    OP_PUT,
    OP_LOAD,
    OP_ENCODE,
    OP_DEVIATION,
    OP_PRODUCT,
    OP_CODES,
    OP_MOE
};
/* Bytes of a row: its width times those of floats, of values that products read and of values in
 * pages, and a row of Q8. */
static const struct kernel {
    const char *name;
    enum kernel_op op;
    enum { WIDTH_D, WIDTH_F, WIDTH_HK, WIDTH_GK } width;
    unsigned bytes, operands, paged, q8_rows;
} kernels[] = {
    {"copy", OP_COPY, WIDTH_D, 8, 0, 0, 0},
    {"gather", OP_GATHER, WIDTH_D, 8, 0, 0, 0},
    {"rmsnorm", OP_NORM, WIDTH_D, 8, 0, 0, 0},
    {"rmsnorm+operand", OP_NORM, WIDTH_D, 4, 1, 0, 0},
    {"rmsnorm_heads", OP_NORM_HEADS, WIDTH_HK, 8, 0, 0, 0},
    {"swiglu", OP_SWIGLU, WIDTH_F, 12, 0, 0, 0},
    {"swiglu+operand", OP_SWIGLU, WIDTH_F, 8, 1, 0, 0},
    {"rope", OP_ROPE, WIDTH_HK, 8, 0, 0, 0},
    {"kv_put", OP_PUT, WIDTH_GK, 8, 0, 2, 0},
    {"kv_load_f16", OP_LOAD, WIDTH_GK, 4, 0, 2, 0},
    {"kv_load_q8", OP_LOAD, WIDTH_GK, 0, 0, 2, 2},
    {"encode_f16", OP_ENCODE, WIDTH_GK, 6, 0, 0, 0},
    {"encode_q8", OP_ENCODE, WIDTH_GK, 4, 0, 0, 1},
    {"deviation_f16", OP_DEVIATION, WIDTH_GK, 6, 0, 0, 0},
    {"product", OP_PRODUCT, WIDTH_D, 4, 0, 0, 0},
    {"codes", OP_CODES, WIDTH_D, 4, 0, 0, 0},
    {"experts", OP_MOE, WIDTH_D, 8, 0, 0, 0},
};

/* Weights of as many experts as m rows of chance go to, on average. */
static double expert_bytes(const struct bank *k, size_t m)
{
    const struct kn_moe *e = &k->moe;
    const double missed = pow(1 - (double)e->used / e->n, (double)m);
    return e->n * (1 - missed) * (double)(kn_mat_bytes(e->gate_up[0]) + kn_mat_bytes(e->down[0]));
}

static bool is_product(const struct kernel *op)
{
    return op->op == OP_PRODUCT || op->op == OP_CODES;
}

static const struct kn_mat *multiplied(const struct bank *k, const struct kernel *op)
{
    return op->op == OP_CODES ? k->codes : k->product;
}

/* Beside its rows: the weight, and what m rows give. */
static double more_bytes(const struct bank *k, const struct kernel *op, size_t m)
{
    if (op->op == OP_MOE) return expert_bytes(k, m);
    if (!is_product(op)) return 0;
    return (double)kn_mat_bytes(multiplied(k, op)) + (double)(m * k->n_product * sizeof(float));
}

static bool is_there(const struct bank *k, const struct kernel *op)
{
    return op->op == OP_MOE ? k->moe.n > 0 : !is_product(op) || k->codes;
}

static double row_bytes(const struct bank *k, const struct kernel *op)
{
    const struct model_cfg *g = &k->b->cfg;
    const size_t width[] = {g->D, g->F, k->HK, k->GK};
    const size_t value = op->bytes + op->operands * bench_operand_bytes(k->b) +
                         op->paged * kn_info(k->b->dev)->kv_value_bytes;
    return (double)(width[op->width] * value + op->q8_rows * kn_row_bytes(KN_Q8, g->G, g->K));
}

struct op_run {
    const struct bank *k;
    const struct kernel *op;
};

/* Rows i … i + m of one operation. */
static int run_op(struct kn_stream *st, void *arg, size_t i, size_t m)
{
    const struct op_run *t = arg;
    const struct bank *k = t->k;
    const struct kernel *op = t->op;
    const struct model_cfg *g = &k->b->cfg;
    const size_t D = g->D, F = g->F, HK = k->HK, GK = k->GK;
    const enum kn_dtype type = op->q8_rows ? KN_Q8 : KN_F16;
    const size_t row = kn_row_bytes(type, g->G, g->K);
    const char *record = (type == KN_Q8 ? k->q8 : k->f16) + i * row;
    const struct kn_stored stored = {(int32_t)i, (int32_t)i, m, record, record, type};
    const float *x = k->x + i * D, *gate_up = k->gate_up + i * 2 * F, *kv = k->kv + i * 2 * GK;
    const size_t n_out = is_product(op) ? k->n_product : op->op == OP_SWIGLU ? F : D;
    float *q = k->q + i * HK, *out = k->out + i * n_out;
    if (op->operands) out = kn_operand(st, 0, m, op->op == OP_NORM ? k->gu : k->down);
    if (!out) return -ENOMEM;
    switch (op->op) {
    case OP_COPY:
        return kn_copy(st, out, x, m * D * sizeof(float));
    case OP_GATHER:
        return kn_gather(st, k->x, k->idx + i, m, D, out);
    case OP_NORM:
        return kn_rmsnorm(st, x, D, m, D, k->weight, 1e-5f, out, D);
    case OP_NORM_HEADS:
        return kn_rmsnorm_heads(st, q, HK, m, g->H, g->K, k->weight, 1e-5f);
    case OP_SWIGLU:
        return kn_glu(st, KN_SILU, gate_up, 2 * F, m, F, out, F);
    case OP_ROPE:
        return kn_rope(st, &k->rope, q, HK, m, g->H, k->pos + i);
    case OP_PUT:
        return kn_kv_put(st, &k->pages, 0, k->pos + i, m, kv, 2 * GK, kv + GK, 2 * GK);
    case OP_LOAD:
        return kn_kv_load(st, &k->pages, 0, &k->rope, &stored, 1);
    case OP_ENCODE:
        return kn_encode_rows(st, kv, 2 * GK, m, GK, g->K, type, k->host + i * row, k->bad);
    case OP_DEVIATION:
        return kn_deviation(st, kv, 2 * GK, k->pos + i, m, &stored, 1, g->G, g->K, k->ret);
    case OP_PRODUCT:
    case OP_CODES:
        return kn_gemm(
            st, &(struct kn_gemm_args){
                    .a = x, .lda = D, .m = m, .w = multiplied(k, op), .c = out, .ldc = n_out});
    case OP_MOE:
        return kn_moe(st, &k->moe, x, m, out, false);
    }
    return -EINVAL;
}

/* The rows' K as records have it: encoded into shared memory, then to where records are read. */
static int encode_all(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct bank *k = arg;
    const struct model_cfg *g = &k->b->cfg;
    int r = 0;
    for (int q8 = 0; r == 0 && q8 < 2; q8++) {
        const enum kn_dtype type = q8 ? KN_Q8 : KN_F16;
        r = kn_encode_rows(st, k->kv, 2 * k->GK, m, k->GK, g->K, type, k->host, k->bad);
        if (r == 0) r = kn_sync(st); /* then it is there */
        if (r == 0)
            r = kn_copy(st, q8 ? k->q8 : k->f16, k->host, m * kn_row_bytes(type, g->G, g->K));
        if (r == 0) r = kn_sync(st);
    }
    return r;
}

/* Of one layer; of an emulation small ones, which are as many launches. */
static int make_experts(struct bench_device *b, struct bank *k)
{
    const struct rng_field noise = {7, 0.1f};
    const struct model_experts *e = &b->cfg.experts;
    const size_t D = b->cfg.D, F = b->emulated ? 32 : e->F;
    const unsigned n = b->emulated && e->n > 16 ? 16 : e->n;
    struct kn_mat *router = NULL;
    for (unsigned i = 0; i < n; i++) {
        k->expert[0][i] = bench_take_mat(b, 2 * F, D);
        k->expert[1][i] = bench_take_mat(b, D, F);
    }
    if (b->status < 0) return b->status;
    int r = kn_mat_create_f32(b->dev, n, D, &router);
    if (r < 0) return r;
    b->mat[b->n_mats++] = router;
    r = kn_mat_random(router, 0, n, &noise);
    k->moe = (struct kn_moe){.router = router,
                             .gate_up = k->expert[0],
                             .down = k->expert[1],
                             .n = n,
                             .used = e->used,
                             .renorm = e->renorm};
    return r < 0 ? r : kn_mat_done(router);
}

/* What is done in place is done often: values must neither grow nor fade, hence the constants. */
static int make_bank(struct bench_device *b, size_t m, struct bank *k)
{
    const struct model_cfg *g = &b->cfg;
    const size_t D = g->D, F = g->F, K = g->K;
    k->b = b, k->HK = (size_t)g->H * K, k->GK = (size_t)g->G * K;
    k->x = bench_take_floats(b, m * D, 0, 1);
    k->gate_up = bench_take_floats(b, m * 2 * F, 0, 1);
    k->q = bench_take_floats(b, m * k->HK, 0, 1);
    k->kv = bench_take_floats(b, m * 2 * k->GK, 0, 1);
    k->out = bench_take_floats(b, m * (D > 4 * F ? D : 4 * F), 0, 1);
    k->weight = bench_take_floats(b, D > K ? D : K, 1, 0);
    k->ret = bench_take_floats(b, m, 0, 0);
    k->pos = bench_take(b, KN_MEM_SHARED, m * sizeof *k->pos);
    k->idx = bench_take(b, KN_MEM_SHARED, m * sizeof *k->idx);
    k->f16 = bench_take(b, KN_MEM_DEVICE, m * kn_row_bytes(KN_F16, g->G, K));
    k->q8 = bench_take(b, KN_MEM_DEVICE, m * kn_row_bytes(KN_Q8, g->G, K));
    k->host = bench_take(b, KN_MEM_SHARED, m * kn_row_bytes(KN_F16, g->G, K));
    k->bad = bench_take(b, KN_MEM_SHARED, sizeof *k->bad);
    k->gu = bench_take_mat(b, 16, D);
    k->down = bench_take_mat(b, 16, F);
    k->n_product = b->emulated ? 32 : 4 * F;
    k->product = bench_take_mat(b, k->n_product, D);
    k->codes = bench_take_codes(b, k->n_product, D);
    k->rope = (struct kn_rope){g->K,
                               g->K,
                               bench_take_floats(b, m * K / 2, 0.8f, 0),
                               bench_take_floats(b, m * K / 2, 0.6f, 0),
                               m,
                               1};
    if (bench_take_pages(b, m, 1, &k->pages) < 0) return b->status;
    int r = g->experts.n ? make_experts(b, k) : 0;
    if (r < 0) return r;
    for (size_t i = 0; i < m; i++) {
        k->pos[i] = (int32_t)i;
        k->idx[i] = (int32_t)(m - 1 - i);
    }
    return kn_wide(b->dev, m, NULL, encode_all, k);
}

/* ---- measuring ---- */

static const struct bench_column columns[] = {{"kernel", "kernel", -16, 0}, {"rows", "rows", 5, 0},
                                              {"us", "us", 10, 2},          {"GB/s", "gbps", 9, 2},
                                              {"of copy", "share", 7, 2},   {0}};

static int measure_ops(const struct bank *k, size_t m)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < sizeof kernels / sizeof *kernels; i++) {
        struct op_run t = {k, &kernels[i]};
        const bool moe = kernels[i].op == OP_MOE;
        const struct bench_work work = {m, run_op, &t, moe ? BENCH_AT_ONCE : BENCH_BY_SIZE};
        double bytes = (double)m * row_bytes(k, &kernels[i]);
        struct bench_time time;
        if (!is_there(k, &kernels[i])) continue;
        bytes += more_bytes(k, &kernels[i], m);
        r = bench_time(k->b, &work, 0, &time);
        if (r < 0) break;
        const double gbps = bytes / time.us * 1e-3;
        json_t *row =
            json_pack("{s:s, s:i, s:f, s:f, s:f, s:f, s:f, s:f}", "kernel", kernels[i].name, "rows",
                      (int)m, "bytes", bytes, "us", time.us, "us_lo", time.us_lo, "us_hi",
                      time.us_hi, "gbps", gbps, "share", gbps / k->b->copy_gbps);
        bench_print_row(columns, row);
        json_array_append_new(k->b->rows, row);
    }
    return r;
}

static int measure_kernels(struct bench_device *b, const struct opts *opts, struct err *err)
{
    static struct bank k; /* large */
    struct bench_rows at;
    int r = bench_at_rows(opts, &at, err);
    if (r == 0) r = make_bank(b, at.most, &k);
    if (r < 0) return r;
    printf("%s, shape %s, copy %.2f GB/s\n", kn_info(b->dev)->device, b->cfg.name, b->copy_gbps);
    bench_print_head(columns);
    for (size_t i = 0; r == 0 && i < at.n; i++)
        r = measure_ops(&k, at.m[i]);
    return r;
}

const struct bench_sub bench_kernels = {
    .name = "kernels",
    .about = "row operations as shares of the device's copy bandwidth",
    .shared = BENCH_DEVICE_OPTIONS "shape reps at-rows",
    .run_device = measure_kernels,
    .gpu_tune_ms = 500}; /* products are not what is measured */
