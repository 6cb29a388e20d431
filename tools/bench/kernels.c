/* kvblend-bench kernels: every row operation over a model's shape: time, bytes, and the share of
 * the device's own copy bandwidth of the same run.
 *
 * Bytes are the fewest that the operation can move: what it reads and what it writes, once each
 * (tables of a row and what many rows share are left out). Operations that fill the host's memory
 * include the way there. Rows ending in "+operand" write what the products behind them read. */
#include "base/mem.h"
#include "tools/bench/bench.h"
#include "tools/bench/device.h"
#include "tools/bench/figures.h"

#include <stdio.h>

enum { MEMORIES = 15 };
struct bank { /* data that every operation finds */
    struct bench_device b;
    size_t m, D, F, HK, GK, K, G, H;
    float *x, *gate_up, *q, *kv; /* [m, D], [m, 2F], [m, HK], [m, 2 GK] */
    float *out;                  /* [m, widest] */
    float *weight, *cos, *sin, *ret;
    int32_t *pos, *idx;
    char *f16, *q8;           /* [m, GK] stored */
    char *host;               /* shared: encoded rows */
    struct kn_mat *gu, *down; /* that operands are for */
    struct kn_rope rope;
    struct kn_kv pages;
    void *memory[MEMORIES]; /* all of the above */
    size_t n_memory;
};

enum kernel_op {
    OP_COPY,
    OP_GATHER,
    OP_NORM,
    OP_NORM_OPERAND,
    OP_NORM_HEADS,
    OP_SWIGLU,
    OP_SWIGLU_OPERAND,
    OP_ROPE,
    OP_PUT,
    OP_LOAD_F16,
    OP_LOAD_Q8,
    OP_ENCODE_F16,
    OP_ENCODE_Q8,
    OP_DEVIATION,
    OP_CHANGE
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
    {"rmsnorm+operand", OP_NORM_OPERAND, WIDTH_D, 4, 1, 0, 0},
    {"rmsnorm_heads", OP_NORM_HEADS, WIDTH_HK, 8, 0, 0, 0},
    {"swiglu", OP_SWIGLU, WIDTH_F, 12, 0, 0, 0},
    {"swiglu+operand", OP_SWIGLU_OPERAND, WIDTH_F, 8, 1, 0, 0},
    {"rope", OP_ROPE, WIDTH_HK, 8, 0, 0, 0},
    {"kv_put", OP_PUT, WIDTH_GK, 8, 0, 2, 0},
    {"kv_load_f16", OP_LOAD_F16, WIDTH_GK, 4, 0, 2, 0},
    {"kv_load_q8", OP_LOAD_Q8, WIDTH_GK, 0, 0, 2, 2},
    {"encode_f16", OP_ENCODE_F16, WIDTH_GK, 6, 0, 0, 0},
    {"encode_q8", OP_ENCODE_Q8, WIDTH_GK, 4, 0, 0, 1},
    {"deviation_f16", OP_DEVIATION, WIDTH_GK, 6, 0, 0, 0},
    {"change_f16", OP_CHANGE, WIDTH_GK, 6, 0, 0, 0},
};

static double row_bytes(const struct bank *k, const struct kernel *op)
{
    const size_t width[] = {k->D, k->F, k->HK, k->GK};
    const size_t value = op->bytes + op->operands * bench_operand_bytes(&k->b) +
                         op->paged * kn_info(k->b.dev)->kv_value_bytes;
    return (double)(width[op->width] * value + op->q8_rows * kn_row_bytes(KN_Q8, k->G, k->K));
}

/* Rows i … i + m of one operation. */
static int run_op(struct kn_stream *st, const struct bank *k, enum kernel_op op, size_t i, size_t m)
{
    const size_t D = k->D, F = k->F, HK = k->HK, GK = k->GK;
    const enum kn_dtype type = op == OP_LOAD_Q8 || op == OP_ENCODE_Q8 ? KN_Q8 : KN_F16;
    const size_t stored = kn_row_bytes(type, k->G, k->K);
    const char *record = (type == KN_Q8 ? k->q8 : k->f16) + i * stored;
    const float *x = k->x + i * D, *gate_up = k->gate_up + i * 2 * F, *kv = k->kv + i * 2 * GK;
    float *q = k->q + i * HK, *operand = k->out + i * (op == OP_SWIGLU ? F : D);
    if (op == OP_NORM_OPERAND || op == OP_SWIGLU_OPERAND) {
        operand = kn_operand(st, 0, m, op == OP_NORM_OPERAND ? k->gu : k->down);
        if (!operand) return -ENOMEM;
    }
    switch (op) {
    case OP_COPY:
        return kn_copy(st, operand, x, m * D * sizeof(float));
    case OP_GATHER:
        return kn_gather(st, k->x, k->idx + i, m, D, operand);
    case OP_NORM:
    case OP_NORM_OPERAND:
        return kn_rmsnorm(st, x, D, m, D, k->weight, 1e-5f, operand, D);
    case OP_NORM_HEADS:
        return kn_rmsnorm_heads(st, q, HK, m, k->H, k->K, k->weight, 1e-5f);
    case OP_SWIGLU:
    case OP_SWIGLU_OPERAND:
        return kn_swiglu(st, gate_up, 2 * F, m, F, operand, F);
    case OP_ROPE:
        return kn_rope(st, &k->rope, q, HK, m, k->H, k->pos + i);
    case OP_PUT:
        return kn_kv_put(st, &k->pages, 0, k->pos + i, m, kv, 2 * GK, kv + GK, 2 * GK);
    case OP_LOAD_F16:
    case OP_LOAD_Q8:
        return kn_kv_load(st, &k->pages, 0, (int32_t)i, m, record, record, type, &k->rope);
    case OP_ENCODE_F16:
    case OP_ENCODE_Q8:
        return kn_encode_rows(st, kv, 2 * GK, m, GK, k->K, type, k->host + i * stored);
    case OP_DEVIATION:
        return kn_deviation(st, kv, 2 * GK, record, type, m, GK, k->K, k->ret + i);
    case OP_CHANGE:
        return kn_change(st, kv, 2 * GK, record, type, m, GK, k->K, k->ret + i);
    }
    return -EINVAL;
}

/* ---- data ---- */

/* NULL is noticed at the end, by make_bank(). */
static void *keep(struct bank *k, void *memory)
{
    return k->memory[k->n_memory++] = memory;
}

static void *take(struct bank *k, enum kn_mem kind, size_t bytes)
{
    return keep(k, kn_mem_alloc(k->b.dev, kind, bytes));
}

static float *take_random(struct bank *k, size_t n)
{
    return keep(k, bench_device_random(&k->b, KN_MEM_DEVICE, n));
}

/* What is done in place is done often: values must neither grow nor fade. */
static float *take_filled(struct bank *k, size_t n, float value)
{
    float *x = mem_alloc(n * sizeof *x);
    for (size_t i = 0; x && i < n; i++)
        x[i] = value;
    float *ret = keep(k, x ? bench_device_floats(&k->b, KN_MEM_DEVICE, x, n) : NULL);
    mem_free(x);
    return ret;
}

/* The rows' K as records have it: encoded into shared memory, then to where records are read. */
static int encode_all(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct bank *k = arg;
    int r = run_op(st, k, OP_ENCODE_F16, row0, m);
    if (r == 0) r = kn_copy(st, k->f16, k->host, m * kn_row_bytes(KN_F16, k->G, k->K));
    if (r == 0) r = kn_sync(st);
    if (r == 0) r = run_op(st, k, OP_ENCODE_Q8, row0, m);
    if (r == 0) r = kn_copy(st, k->q8, k->host, m * kn_row_bytes(KN_Q8, k->G, k->K));
    return r;
}

static int make_bank(struct bank *k, size_t m)
{
    const struct model_cfg *g = &k->b.cfg;
    const size_t n_pages = (m + KN_PAGE - 1) / KN_PAGE, values = kn_kv_layer_values(g->G, g->K);
    int32_t *page_ids = take(k, KN_MEM_SHARED, n_pages * sizeof *page_ids);
    void *pages = take(k, KN_MEM_DEVICE, n_pages * values * kn_info(k->b.dev)->kv_value_bytes);
    k->m = m, k->D = g->D, k->F = g->F, k->H = g->H, k->G = g->G, k->K = g->K;
    k->HK = k->H * k->K, k->GK = k->G * k->K;
    k->x = take_random(k, m * k->D);
    k->gate_up = take_random(k, m * 2 * k->F);
    k->q = take_random(k, m * k->HK);
    k->kv = take_random(k, m * 2 * k->GK);
    k->out = take_random(k, m * (k->D > k->F ? k->D : k->F));
    k->weight = take_filled(k, k->D > k->K ? k->D : k->K, 1);
    k->cos = take_filled(k, m * k->K / 2, 0.8f);
    k->sin = take_filled(k, m * k->K / 2, 0.6f);
    k->ret = take(k, KN_MEM_DEVICE, m * sizeof *k->ret);
    k->pos = take(k, KN_MEM_SHARED, 2 * m * sizeof *k->pos);
    k->f16 = take(k, KN_MEM_DEVICE, m * kn_row_bytes(KN_F16, k->G, k->K));
    k->q8 = take(k, KN_MEM_DEVICE, m * kn_row_bytes(KN_Q8, k->G, k->K));
    k->host = take(k, KN_MEM_SHARED, m * kn_row_bytes(KN_F16, k->G, k->K));
    k->gu = bench_device_mat(&k->b, 16, k->D, 1);
    k->down = bench_device_mat(&k->b, 16, k->F, 2);
    for (size_t i = 0; i < k->n_memory; i++)
        if (!k->memory[i]) return -ENOMEM;
    if (!k->gu || !k->down) return -ENOMEM;
    k->idx = k->pos + m;
    for (size_t i = 0; i < m; i++) {
        k->pos[i] = (int32_t)i;
        k->idx[i] = (int32_t)(m - 1 - i);
    }
    for (size_t i = 0; i < n_pages; i++)
        page_ids[i] = (int32_t)(n_pages - 1 - i);
    k->rope = (struct kn_rope){k->K, k->K, k->cos, k->sin, m, 1};
    k->pages = (struct kn_kv){pages, values, values, page_ids, n_pages, g->G, g->K, NULL};
    return kn_wide(k->b.dev, m, NULL, encode_all, k);
}

static void drop_bank(struct bank *k)
{
    for (size_t i = 0; i < k->n_memory; i++)
        kn_mem_free(k->b.dev, k->memory[i]);
    kn_mat_destroy(k->gu);
    kn_mat_destroy(k->down);
    *k = (struct bank){.b = k->b};
}

/* ---- measuring ---- */

static const struct bench_column columns[] = {{"kernel", "kernel", -16, 0}, {"rows", "rows", 5, 0},
                                              {"us", "us", 10, 2},          {"GB/s", "gbps", 9, 2},
                                              {"of copy", "share", 7, 2},   {0}};

struct op_rows {
    const struct bank *k;
    enum kernel_op op;
};

static int run_op_rows(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct op_rows *t = arg;
    return run_op(st, t->k, t->op, row0, m);
}

static int measure_ops(struct bank *k, json_t *rows)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < sizeof kernels / sizeof *kernels; i++) {
        struct op_rows t = {k, kernels[i].op};
        const struct bench_work work = {k->m, run_op_rows, &t, BENCH_BY_SIZE};
        const double bytes = (double)k->m * row_bytes(k, &kernels[i]);
        struct bench_time time;
        r = bench_device_time(&k->b, &work, &time);
        if (r < 0) break;
        const double gbps = bytes / time.us * 1e-3;
        json_t *row =
            json_pack("{s:s, s:i, s:f, s:f, s:f, s:f, s:f, s:f}", "kernel", kernels[i].name, "rows",
                      (int)k->m, "bytes", bytes, "us", time.us, "us_lo", time.us_lo, "us_hi",
                      time.us_hi, "gbps", gbps, "share", gbps / k->b.copy_gbps);
        bench_print_row(columns, row);
        json_array_append_new(rows, row);
    }
    return r;
}

static int measure_kernels(const struct opts *opts, struct err *err)
{
    struct bank k = {0};
    size_t m[BENCH_ROWS_MAX];
    json_t *rows = json_array();
    const int n = bench_at_rows(opts, m, err);
    int r = n < 0 ? n : bench_device_open(opts, &k.b, err);
    if (r == 0) {
        printf("%s, shape %s, copy %.2f GB/s\n", kn_info(k.b.dev)->device, k.b.cfg.name,
               k.b.copy_gbps);
        bench_print_head(columns);
    }
    for (int i = 0; r == 0 && i < n; i++) {
        r = make_bank(&k, m[i]);
        if (r == 0) r = measure_ops(&k, rows);
        drop_bank(&k);
    }
    return bench_device_end(opts, &k.b, rows, NULL, r, err);
}

const struct bench_sub bench_kernels = {
    .name = "kernels",
    .about = "row operations as shares of the device's copy bandwidth",
    .shared = BENCH_DEVICE_OPTIONS "shape reps at-rows",
    .run = measure_kernels};
