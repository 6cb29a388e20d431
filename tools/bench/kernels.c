/* kvblend-bench kernels: every row operation over a model's shape: time, bytes, and the share of
 * the device's own copy bandwidth of the same run.
 *
 * Bytes are the fewest that the operation can move: what it reads and what it writes, once each
 * (tables of a row and what many rows share are left out). Operations that fill the host's memory
 * include the way there. Rows ending in "+operand" write what the products behind them read. */
#include "base/mem.h"
#include "tools/bench/bench.h"
#include "tools/bench/device.h"

#include <stdio.h>

struct bank { /* data that every operation finds */
    struct bench_device b;
    size_t m, D, F, HK, GK, K, G, H;
    size_t page_value, operand_value; /* bytes */
    float *x, *gate_up, *q, *kv;      /* [m, D], [m, 2F], [m, HK], [m, 2 GK] */
    float *out;                       /* [m, widest] */
    float *weight, *cos, *sin, *ret;
    int32_t *pos, *idx;
    char *f16, *q8;           /* [m, GK] stored */
    char *host;               /* shared: encoded rows */
    struct kn_mat *gu, *down; /* that operands are for */
    struct kn_rope rope;
    struct kn_kv pages;
    int32_t *page_ids;
};

struct kernel {
    const char *name;
    int (*run)(struct kn_stream *st, const struct bank *k, size_t row0, size_t m);
    double (*bytes)(const struct bank *k); /* of a row */
};

/* ---- operations ---- */

static int op_copy(struct kn_stream *st, const struct bank *k, size_t i, size_t m)
{
    return kn_copy(st, k->out + i * k->D, k->x + i * k->D, m * k->D * sizeof(float));
}

static int op_gather(struct kn_stream *st, const struct bank *k, size_t i, size_t m)
{
    return kn_gather(st, k->x, k->idx + i, m, k->D, k->out + i * k->D);
}

static int op_norm(struct kn_stream *st, const struct bank *k, size_t i, size_t m)
{
    return kn_rmsnorm(st, k->x + i * k->D, k->D, m, k->D, k->weight, 1e-5f, k->out + i * k->D,
                      k->D);
}

static int op_norm_operand(struct kn_stream *st, const struct bank *k, size_t i, size_t m)
{
    float *h = kn_operand(st, 0, m, k->gu);
    if (!h) return -ENOMEM;
    return kn_rmsnorm(st, k->x + i * k->D, k->D, m, k->D, k->weight, 1e-5f, h, k->D);
}

static int op_norm_heads(struct kn_stream *st, const struct bank *k, size_t i, size_t m)
{
    return kn_rmsnorm_heads(st, k->q + i * k->HK, k->HK, m, k->H, k->K, k->weight, 1e-5f);
}

static int op_swiglu(struct kn_stream *st, const struct bank *k, size_t i, size_t m)
{
    return kn_swiglu(st, k->gate_up + i * 2 * k->F, 2 * k->F, m, k->F, k->out + i * k->F, k->F);
}

static int op_swiglu_operand(struct kn_stream *st, const struct bank *k, size_t i, size_t m)
{
    float *act = kn_operand(st, 0, m, k->down);
    if (!act) return -ENOMEM;
    return kn_swiglu(st, k->gate_up + i * 2 * k->F, 2 * k->F, m, k->F, act, k->F);
}

static int op_rope(struct kn_stream *st, const struct bank *k, size_t i, size_t m)
{
    return kn_rope(st, &k->rope, k->q + i * k->HK, k->HK, m, k->H, k->pos + i);
}

static int op_put(struct kn_stream *st, const struct bank *k, size_t i, size_t m)
{
    const float *x = k->kv + i * 2 * k->GK;
    return kn_kv_put(st, &k->pages, 0, k->pos + i, m, x, 2 * k->GK, x + k->GK, 2 * k->GK);
}

static int load(struct kn_stream *st, const struct bank *k, size_t i, size_t m, const char *from,
                enum kn_dtype t)
{
    from += i * kn_row_bytes(t, k->G, k->K);
    return kn_kv_load(st, &k->pages, 0, (int32_t)i, m, from, from, t, &k->rope);
}

static int op_load_f16(struct kn_stream *st, const struct bank *k, size_t i, size_t m)
{
    return load(st, k, i, m, k->f16, KN_F16);
}

static int op_load_q8(struct kn_stream *st, const struct bank *k, size_t i, size_t m)
{
    return load(st, k, i, m, k->q8, KN_Q8);
}

static int encode(struct kn_stream *st, const struct bank *k, size_t i, size_t m, enum kn_dtype t)
{
    return kn_encode_rows(st, k->kv + i * 2 * k->GK, 2 * k->GK, m, k->GK, k->K, t,
                          k->host + i * kn_row_bytes(t, k->G, k->K));
}

static int op_encode_f16(struct kn_stream *st, const struct bank *k, size_t i, size_t m)
{
    return encode(st, k, i, m, KN_F16);
}

static int op_encode_q8(struct kn_stream *st, const struct bank *k, size_t i, size_t m)
{
    return encode(st, k, i, m, KN_Q8);
}

static int op_deviation(struct kn_stream *st, const struct bank *k, size_t i, size_t m)
{
    return kn_deviation(st, k->kv + i * 2 * k->GK, 2 * k->GK,
                        k->f16 + i * kn_row_bytes(KN_F16, k->G, k->K), KN_F16, m, k->GK, k->K,
                        k->ret + i);
}

static int op_change(struct kn_stream *st, const struct bank *k, size_t i, size_t m)
{
    return kn_change(st, k->kv + i * 2 * k->GK, 2 * k->GK,
                     k->f16 + i * kn_row_bytes(KN_F16, k->G, k->K), KN_F16, m, k->GK, k->K,
                     k->ret + i);
}

static double row_copy(const struct bank *k)
{
    return 8.0 * (double)k->D;
}

static double row_norm_operand(const struct bank *k)
{
    return (double)k->D * (4.0 + (double)k->operand_value);
}

static double row_heads(const struct bank *k)
{
    return 8.0 * (double)k->HK;
}

static double row_swiglu(const struct bank *k)
{
    return 12.0 * (double)k->F;
}

static double row_swiglu_operand(const struct bank *k)
{
    return (double)k->F * (8.0 + (double)k->operand_value);
}

static double row_put(const struct bank *k)
{
    return 2 * (double)k->GK * (4.0 + (double)k->page_value);
}

static double row_load_f16(const struct bank *k)
{
    return 2 * (double)k->GK * (2.0 + (double)k->page_value);
}

static double row_load_q8(const struct bank *k)
{
    return 2 * ((double)kn_row_bytes(KN_Q8, k->G, k->K) + (double)(k->GK * k->page_value));
}

static double row_f16(const struct bank *k)
{
    return 6.0 * (double)k->GK;
}

static double row_q8(const struct bank *k)
{
    return 4.0 * (double)k->GK + (double)kn_row_bytes(KN_Q8, k->G, k->K);
}

static const struct kernel kernels[] = {
    {"copy", op_copy, row_copy},
    {"gather", op_gather, row_copy},
    {"rmsnorm", op_norm, row_copy},
    {"rmsnorm+operand", op_norm_operand, row_norm_operand},
    {"rmsnorm_heads", op_norm_heads, row_heads},
    {"swiglu", op_swiglu, row_swiglu},
    {"swiglu+operand", op_swiglu_operand, row_swiglu_operand},
    {"rope", op_rope, row_heads},
    {"kv_put", op_put, row_put},
    {"kv_load_f16", op_load_f16, row_load_f16},
    {"kv_load_q8", op_load_q8, row_load_q8},
    {"encode_f16", op_encode_f16, row_f16},
    {"encode_q8", op_encode_q8, row_q8},
    {"deviation_f16", op_deviation, row_f16},
    {"change_f16", op_change, row_f16},
};

/* ---- data ---- */

static void *device_bytes(struct bank *k, enum kn_mem kind, size_t n)
{
    return kn_mem_alloc(k->b.dev, kind, n);
}

/* The rows' K as records have it: encoded into shared memory, then to where records are read. */
static int encode_all(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct bank *k = arg;
    int r = op_encode_f16(st, k, row0, m);
    if (r == 0) r = kn_copy(st, k->f16, k->host, m * kn_row_bytes(KN_F16, k->G, k->K));
    if (r == 0) r = kn_sync(st);
    if (r == 0) r = op_encode_q8(st, k, row0, m);
    if (r == 0) r = kn_copy(st, k->q8, k->host, m * kn_row_bytes(KN_Q8, k->G, k->K));
    return r;
}

static int make_pages(struct bank *k)
{
    const size_t n = (k->m + KN_PAGE - 1) / KN_PAGE;
    const size_t values = kn_kv_layer_values((unsigned)k->G, (unsigned)k->K);
    k->page_ids = device_bytes(k, KN_MEM_SHARED, n * sizeof *k->page_ids);
    k->pages = (struct kn_kv){.base = device_bytes(k, KN_MEM_DEVICE, n * values * k->page_value),
                              .page_stride = values,
                              .layer_stride = values,
                              .pages = k->page_ids,
                              .n_pages = n,
                              .G = (unsigned)k->G,
                              .K = (unsigned)k->K};
    if (!k->page_ids || !k->pages.base) return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        k->page_ids[i] = (int32_t)(n - 1 - i);
    return 0;
}

/* What is done in place is done often: values must neither grow nor fade. */
static float *filled(struct bank *k, size_t n, float value)
{
    float *x = device_bytes(k, KN_MEM_SHARED, n * sizeof *x);
    float *ret = device_bytes(k, KN_MEM_DEVICE, n * sizeof *ret);
    for (size_t i = 0; x && i < n; i++)
        x[i] = value;
    if (!x || !ret || kn_mem_copy(k->b.dev, ret, x, n * sizeof *x) < 0) {
        kn_mem_free(k->b.dev, ret);
        ret = NULL;
    }
    kn_mem_free(k->b.dev, x);
    return ret;
}

static int make_rope(struct bank *k)
{
    k->cos = filled(k, k->m * k->K / 2, 0.8f);
    k->sin = filled(k, k->m * k->K / 2, 0.6f);
    k->rope = (struct kn_rope){k->K, k->K, k->cos, k->sin, k->m, 1};
    return k->cos && k->sin ? 0 : -ENOMEM;
}

static int make_bank(struct bank *k, size_t m)
{
    const struct model_cfg *g = &k->b.cfg;
    const struct bench_device *b = &k->b;
    k->m = m, k->D = g->D, k->F = g->F, k->H = g->H, k->G = g->G, k->K = g->K;
    k->HK = k->H * k->K, k->GK = k->G * k->K;
    k->page_value = kn_info(b->dev)->kv_value_bytes;
    k->operand_value = bench_operand_bytes(b);
    k->x = bench_device_random(b, KN_MEM_DEVICE, m * k->D);
    k->gate_up = bench_device_random(b, KN_MEM_DEVICE, m * 2 * k->F);
    k->q = bench_device_random(b, KN_MEM_DEVICE, m * k->HK);
    k->kv = bench_device_random(b, KN_MEM_DEVICE, m * 2 * k->GK);
    k->out = bench_device_random(b, KN_MEM_DEVICE, m * (k->D > k->F ? k->D : k->F));
    k->weight = filled(k, k->D > k->K ? k->D : k->K, 1);
    k->ret = device_bytes(k, KN_MEM_DEVICE, m * sizeof *k->ret);
    k->pos = device_bytes(k, KN_MEM_SHARED, 2 * m * sizeof *k->pos);
    k->f16 = device_bytes(k, KN_MEM_DEVICE, m * kn_row_bytes(KN_F16, k->G, k->K));
    k->q8 = device_bytes(k, KN_MEM_DEVICE, m * kn_row_bytes(KN_Q8, k->G, k->K));
    k->host = device_bytes(k, KN_MEM_SHARED, m * kn_row_bytes(KN_F16, k->G, k->K));
    k->gu = bench_device_mat(b, 16, k->D, 1);
    k->down = bench_device_mat(b, 16, k->F, 2);
    if (!k->x || !k->gate_up || !k->q || !k->kv || !k->out || !k->weight || !k->ret || !k->pos ||
        !k->f16 || !k->q8 || !k->host || !k->gu || !k->down)
        return -ENOMEM;
    k->idx = k->pos + m;
    for (size_t i = 0; i < m; i++) {
        k->pos[i] = (int32_t)i;
        k->idx[i] = (int32_t)(m - 1 - i);
    }
    int r = make_rope(k);
    if (r == 0) r = make_pages(k);
    return r < 0 ? r : kn_wide(b->dev, m, NULL, encode_all, k);
}

static void drop_bank(struct bank *k)
{
    void *const all[] = {k->x,      k->gate_up, k->q,   k->kv,       k->out,
                         k->weight, k->ret,     k->pos, k->f16,      k->q8,
                         k->host,   k->cos,     k->sin, k->page_ids, k->pages.base};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        kn_mem_free(k->b.dev, all[i]);
    kn_mat_destroy(k->gu);
    kn_mat_destroy(k->down);
    *k = (struct bank){.b = k->b};
}

/* ---- measuring ---- */

struct task {
    const struct bank *k;
    const struct kernel *op;
};

static int task_rows(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct task *t = arg;
    return t->op->run(st, t->k, row0, m);
}

static int measure(struct bank *k, json_t *rows)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < sizeof kernels / sizeof *kernels; i++) {
        struct task t = {k, &kernels[i]};
        struct bench_time time;
        const double bytes = (double)k->m * kernels[i].bytes(k);
        r = bench_device_time(&k->b, k->m, task_rows, &t, &time);
        if (r < 0) break;
        const double gbps = bytes / time.us * 1e-3;
        printf("%-16s %5zu rows %10.2f us %9.2f GB/s %5.2f of copy\n", kernels[i].name, k->m,
               time.us, gbps, gbps / k->b.copy_gbps);
        json_array_append_new(
            rows, json_pack("{s:s, s:i, s:f, s:f, s:f, s:f, s:f, s:f}", "kernel", kernels[i].name,
                            "rows", (int)k->m, "bytes", bytes, "us", time.us, "us_lo", time.us_lo,
                            "us_hi", time.us_hi, "gbps", gbps, "share", gbps / k->b.copy_gbps));
    }
    return r;
}

static int measure_kernels(const struct opts *opts, struct err *err)
{
    struct bank k = {0};
    size_t m[BENCH_ROWS_MAX], n = 0;
    json_t *rows = json_array();
    int r = bench_rows_of(opt_str(opts, "at-rows"), m, &n, err);
    if (r == 0) r = bench_device_open(opts, &k.b, err);
    if (r < 0) goto out;
    printf("%s, shape %s, copy %.2f GB/s\n", kn_info(k.b.dev)->device, k.b.cfg.name, k.b.copy_gbps);
    for (size_t i = 0; r == 0 && i < n; i++) {
        r = make_bank(&k, m[i]);
        if (r == 0) r = measure(&k, rows);
        drop_bank(&k);
    }
    if (r < 0) {
        (void)err_set(err, r, "measuring failed (%s)", err_name(r));
    } else {
        json_t *meta = bench_device_meta(&k.b);
        r = bench_write_json(opts, meta, rows, err);
        json_decref(meta);
    }
    bench_device_close(&k.b);
out:
    json_decref(rows);
    return r;
}

const struct bench_sub bench_kernels = {
    .name = "kernels",
    .about = "row operations as shares of the device's copy bandwidth",
    .shared = BENCH_DEVICE_OPTIONS "shape reps at-rows",
    .run = measure_kernels};
