#include "tools/bench/device.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "fusor/model/shape.h"
#include "tools/bench/figures.h"

#include <math.h>
#include <string.h>

enum {
    COPY_BYTES = 256 << 20,     /* of a device's own memory: beyond its caches */
    COPY_BYTES_HOST = 64 << 20, /* twice that is beyond the caches of most */
    COPY_BYTES_EMULATED = 1 << 20,
    COPY_ROW = 1 << 16,
    CPU_TUNE_MS = 500,
    LONG_ENOUGH_US = 2000,
    TIMES_MAX = 200
};

/* ---- data ---- */

void *bench_take(struct bench_device *b, enum kn_mem kind, size_t bytes)
{
    void *p = kn_mem_alloc(b->dev, kind, bytes);
    ASSERT(b->n_memory < BENCH_MEMORY_MAX);
    if (!p) b->status = -ENOMEM;
    return b->memory[b->n_memory++] = p;
}

float *bench_take_floats(struct bench_device *b, size_t n, float mean, float spread)
{
    const struct rng_field noise = {b->n_memory + 1, spread};
    float *x = mem_alloc((n + 1) * sizeof *x), *ret = bench_take(b, KN_MEM_DEVICE, n * sizeof *x);
    for (size_t i = 0; x && i < n; i++)
        x[i] = mean + rng_field_at(&noise, i);
    if (!x || !ret || kn_mem_copy(b->dev, ret, x, n * sizeof *x) < 0) b->status = -ENOMEM;
    mem_free(x);
    return ret;
}

static int fill_codes(struct kn_mat *w, size_t n, size_t k)
{
    const struct rng_field noise = {11, 8};
    int8_t *q = mem_alloc(k);
    uint16_t *scale = mem_alloc(k / CODES_STEP * sizeof *scale);
    int r = q && scale ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < k / CODES_STEP; i++)
        scale[i] = 0x2c00; /* 2^-4 */
    for (size_t row = 0; r == 0 && row < n; row++) {
        for (size_t i = 0; i < k; i++)
            q[i] = (int8_t)floorf(rng_field_at(&noise, row * k + i));
        r = kn_mat_fill_codes(w, row, 1, &(struct codes_row){.q = q, .d = scale});
    }
    mem_free(q);
    mem_free(scale);
    return r < 0 ? r : kn_mat_done(w);
}

struct kn_mat *bench_take_codes(struct bench_device *b, size_t n, size_t k)
{
    const struct kn_part part = {n, CODES_PLAIN(4, -8, false)};
    struct kn_mat *w = NULL;
    ASSERT(b->n_mats < BENCH_MATS_MAX);
    int r = kn_mat_create_coded(b->dev, &part, 1, k, false, &w);
    if (r == -ENOTSUP) return NULL;
    if (r == 0) r = fill_codes(w, n, k);
    if (r < 0) b->status = r;
    return b->mat[b->n_mats++] = w;
}

struct kn_mat *bench_take_mat(struct bench_device *b, size_t n, size_t k)
{
    const struct rng_field noise = {b->n_mats + 1, 1};
    struct kn_mat *w = NULL;
    ASSERT(b->n_mats < BENCH_MATS_MAX);
    int r = kn_mat_create(b->dev, n, k, &w);
    if (r == 0) r = kn_mat_random(w, 0, n, &noise);
    if (r == 0) r = kn_mat_done(w);
    if (r < 0) b->status = r;
    return b->mat[b->n_mats++] = w;
}

int bench_take_pages(struct bench_device *b, size_t n, size_t n_seqs, struct kn_kv *ret)
{
    const unsigned G = b->cfg.G, K = b->cfg.K;
    const size_t n_pages = (n + KN_PAGE - 1) / KN_PAGE,
                 values = kn_kv_layer_values(kn_info(b->dev)->kv, G, K);
    int32_t *id = bench_take(b, KN_MEM_SHARED, n_seqs * n_pages * sizeof *id);
    void *base =
        bench_take(b, KN_MEM_DEVICE, n_seqs * n_pages * values * kn_info(b->dev)->kv_value_bytes);
    if (b->status < 0) return b->status;
    for (size_t s = 0; s < n_seqs; s++, id += n_pages) {
        for (size_t i = 0; i < n_pages; i++)
            id[i] = (int32_t)((n_pages - 1 - i) * n_seqs + s);
        ret[s] = (struct kn_kv){base, values, values, id, n_pages, G, K, NULL};
    }
    return 0;
}

size_t bench_operand_bytes(const struct bench_device *b)
{
    if (b->weights == KN_WEIGHTS_FP8 || b->weights == KN_WEIGHTS_INT8) return 1;
    return kn_info(b->dev)->is_host || strcmp(kn_info(b->dev)->gemm, "cublaslt-f32") == 0 ? 4 : 2;
}

/* ---- time ---- */

struct repeated {
    const struct bench_work *work;
    unsigned times;
};

static int repeat_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct repeated *l = arg;
    int r = 0;
    for (unsigned i = 0; r == 0 && i < l->times; i++)
        r = l->work->fn(st, l->work->arg, row0, n);
    return r;
}

static int run_times(const struct bench_device *b, const struct bench_work *w, unsigned times,
                     double *ret_us)
{
    struct repeated l = {w, times};
    const bool at_once = w->how == BENCH_AT_ONCE || w->rows <= kn_info(b->dev)->wide_rows_max;
    const uint64_t t0 = clock_ns();
    int r = at_once                  ? kn_wide(b->dev, w->rows, NULL, repeat_rows, &l)
            : w->how == BENCH_UNEVEN ? kn_rows_uneven(b->dev, w->rows, NULL, repeat_rows, &l)
                                     : kn_rows(b->dev, w->rows, NULL, repeat_rows, &l);
    *ret_us = (double)(clock_ns() - t0) * 1e-3 / times;
    return r;
}

int bench_time(const struct bench_device *b, const struct bench_work *w, unsigned times,
               struct bench_time *ret)
{
    double us, *all = mem_alloc(b->reps * sizeof *all);
    int r = all ? 0 : -ENOMEM;
    for (int warm_up = 0; r == 0 && warm_up < 2; warm_up++)
        r = run_times(b, w, times ? times : 1, &us);
    if (r == 0 && times == 0)
        times = kn_info(b->dev)->is_host
                    ? 1
                    : (unsigned)fmin(LONG_ENOUGH_US / fmax(us, 1) + 1, TIMES_MAX);
    for (size_t i = 0; r == 0 && i < b->reps; i++)
        r = run_times(b, w, times, &all[i]);
    if (r == 0) {
        ret->us = bench_quantile(all, b->reps, 0.5); /* sorts */
        ret->us_lo = all[0];
        ret->us_hi = all[b->reps - 1];
    }
    mem_free(all);
    return r;
}

static int copy_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    char *const *c = arg;
    return kn_copy(st, c[0] + row0 * COPY_ROW, c[1] + row0 * COPY_ROW, n * COPY_ROW);
}

static int measure_copies(struct bench_device *b)
{
    const size_t bytes = b->emulated                ? COPY_BYTES_EMULATED
                         : kn_info(b->dev)->is_host ? COPY_BYTES_HOST
                                                    : COPY_BYTES;
    char *c[] = {bench_take(b, KN_MEM_DEVICE, bytes),
                 (char *)bench_take_floats(b, bytes / sizeof(float), 0, 1)};
    const struct bench_work w = {bytes / COPY_ROW, copy_rows, c, BENCH_BY_SIZE};
    struct bench_time t;
    int r = b->status < 0 ? b->status : bench_time(b, &w, 0, &t);
    if (r == 0) b->copy_gbps = 2 * (double)bytes / t.us * 1e-3;
    return r;
}

/* ---- the device and its report ---- */

struct kn_dev_opts bench_device_opts(const struct opts *opts)
{
    const char *dtype = opt_str(opts, "dtype");
    const bool f32 = strcmp(dtype, "f32") == 0;
    return (struct kn_dev_opts){
        .device = opt_str(opts, "device"),
        .n_threads = (unsigned)opt_int(opts, "threads"),
        .isa = opt_str(opts, "isa"),
        .gemm = opt_str(opts, "gemm"),
        .arith = f32                          ? KN_ARITH_F32
                 : strcmp(dtype, "bf16") == 0 ? KN_ARITH_BF16
                                              : KN_ARITH_AUTO,
        .allow_bf16 = !f32,
        .kv_q8 = strcmp(opt_str(opts, "kv-pages-dtype"), "q8") == 0,
        .weights = (enum kn_weights)kn_weights_parse(opt_str(opts, "weights"), KN_WEIGHTS_AUTO)};
}

static int open_device(const struct opts *opts, const struct bench_sub *sub, struct bench_device *b,
                       struct err *err)
{
    struct kn_dev_opts o = bench_device_opts(opts);
    const char *shape = opt_str(opts, "shape");
    int r = shape_parse(*shape ? shape : "smollm2", &b->cfg, err);
    if (r < 0) return r;
    const struct model_cfg *g = &b->cfg;
    const size_t HK = (size_t)g->H * g->K, GK = (size_t)g->G * g->K;
    const struct kn_shape weight[BENCH_WEIGHTS] = {{2 * GK, g->D, false},
                                                   {HK, g->D, false},
                                                   {g->D, HK, false},
                                                   {2 * (size_t)g->F, g->D, true},
                                                   {g->D, g->F, false}};
    memcpy(b->weight, weight, sizeof weight);
    o.tune = (struct kn_tuning){.shapes = b->weight,
                                .n_shapes = BENCH_WEIGHTS,
                                .rows = 512,
                                .budget_ms =
                                    strcmp(o.device, "cpu") == 0 ? CPU_TUNE_MS : sub->gpu_tune_ms,
                                .H = g->H,
                                .G = g->G,
                                .K = g->K,
                                .keys_max = sub->tunes_attn ? (size_t)opt_int(opts, "keys") : 0};
    r = kn_dev_create(&o, &b->dev, err);
    if (r < 0) return r;
    const struct kn_info *i = kn_info(b->dev);
    b->weights = o.weights;
    b->reps = (size_t)opt_int(opts, "reps");
    b->emulated = strncmp(i->device, "hostcuda", 8) == 0;
    b->rows = json_array();
    b->meta = bench_meta();
    json_object_update_new(b->meta,
                           json_pack("{s:s, s:s, s:i, s:s, s:s, s:s}", "device", i->device, "isa",
                                     i->isa, "threads", (int)i->n_threads, "gemm", i->gemm,
                                     "weights", kn_weights_name(b->weights), "shape", g->name));
    return measure_copies(b);
}

static int write_report(struct bench_device *b, const struct opts *opts, struct err *err)
{
    const double gemm = b->gemm_gflops > 0 ? b->gemm_gflops : NAN;
    json_object_set_new(b->meta, "attn", json_string(kn_info(b->dev)->attn));
    json_object_set_new(
        b->meta, "ceilings",
        json_pack("{s:f, s:o}", "copy_gbps", b->copy_gbps, "gemm_gflops", bench_number(gemm)));
    json_object_set_new(b->meta, "gemm_refused",
                        json_integer((json_int_t)kn_gemm_refusals(b->dev).count));
    return bench_write_json(opts, b->meta, b->rows, err);
}

void bench_device_close(struct bench_device *b)
{
    for (size_t i = 0; i < b->n_memory; i++)
        kn_mem_free(b->dev, b->memory[i]);
    for (size_t i = 0; i < b->n_mats; i++)
        kn_mat_destroy(b->mat[i]);
    kn_dev_destroy(b->dev);
    json_decref(b->meta);
    json_decref(b->rows);
}

int bench_on_device(const struct opts *opts, const struct bench_sub *sub, struct err *err)
{
    struct bench_device b = {0};
    int r = open_device(opts, sub, &b, err);
    if (r == 0) r = sub->run_device(&b, opts, err);
    if (r == 0) r = write_report(&b, opts, err);
    if (r < 0 && err->code == 0) (void)err_set(err, r, "measuring failed (%s)", err_name(r));
    bench_device_close(&b);
    return r;
}

int bench_at_rows(const struct opts *opts, struct bench_rows *ret, struct err *err)
{
    double v[BENCH_ROWS_MAX];
    const char *list = opt_str(opts, "at-rows");
    const int n = bench_numbers(list, true, 1 << 20, v, BENCH_ROWS_MAX);
    if (n < 0)
        return err_set(err, n, "--at-rows \"%.60s\": 1 to %d numbers with commas between", list,
                       BENCH_ROWS_MAX);
    *ret = (struct bench_rows){.n = (size_t)n};
    for (size_t i = 0; i < ret->n; i++) {
        ret->m[i] = (size_t)v[i];
        if (ret->m[i] > ret->most) ret->most = ret->m[i];
    }
    return 0;
}
