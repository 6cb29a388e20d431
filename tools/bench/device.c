#include "tools/bench/device.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "fusor/model/shape.h"
#include "tools/bench/bench.h"
#include "tools/bench/figures.h"

#include <string.h>

enum {
    COPY_BYTES = 256 << 20,     /* of a device's own memory: beyond its caches */
    COPY_BYTES_HOST = 64 << 20, /* twice that is beyond the caches of most */
    COPY_BYTES_EMULATED = 1 << 20,
    COPY_ROW = 1 << 16,
    LONG_ENOUGH_US = 2000,
    TIMES_MAX = 200
};

/* ---- copy ---- */

struct copy {
    char *to;
    const char *from;
};

static int copy_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct copy *c = arg;
    return kn_copy(st, c->to + row0 * COPY_ROW, c->from + row0 * COPY_ROW, n * COPY_ROW);
}

static int measure_copies(struct bench_device *b)
{
    const size_t bytes = b->emulated                ? COPY_BYTES_EMULATED
                         : kn_info(b->dev)->is_host ? COPY_BYTES_HOST
                                                    : COPY_BYTES;
    struct copy c = {kn_mem_alloc(b->dev, KN_MEM_DEVICE, bytes),
                     (char *)bench_device_random(b, KN_MEM_DEVICE, bytes / sizeof(float))};
    const struct bench_work w = {bytes / COPY_ROW, copy_rows, &c, BENCH_BY_SIZE};
    struct bench_time t;
    int r = c.to && c.from ? bench_device_time(b, &w, &t) : -ENOMEM;
    if (r == 0) b->copy_gbps = 2 * (double)bytes / t.us * 1e-3;
    kn_mem_free(b->dev, c.to);
    kn_mem_free(b->dev, (void *)(uintptr_t)c.from);
    return r;
}

/* ---- device ---- */

int bench_device_create(const struct opts *opts, unsigned gpu_tune_ms, struct bench_device *ret,
                        struct err *err)
{
    enum { CPU_TUNE_MS = 500 };
    const char *dtype = opt_str(opts, "dtype");
    const bool f32 = strcmp(dtype, "f32") == 0;
    struct bench_device b = {.reps = (size_t)opt_int(opts, "reps")};
    b.weights = (enum kn_weights)kn_weights_parse(opt_str(opts, "weights"), KN_WEIGHTS_AUTO);
    struct kn_dev_opts o = {.device = opt_str(opts, "device"),
                            .n_threads = (unsigned)opt_int(opts, "threads"),
                            .isa = opt_str(opts, "isa"),
                            .gemm = opt_str(opts, "gemm"),
                            .arith = f32                          ? KN_ARITH_F32
                                     : strcmp(dtype, "bf16") == 0 ? KN_ARITH_BF16
                                                                  : KN_ARITH_AUTO,
                            .allow_bf16 = !f32,
                            .weights = b.weights};
    const char *shape = opt_str(opts, "shape");
    int r = shape_parse(*shape ? shape : "smollm2", &b.cfg, err);
    if (r < 0) return r;
    const struct model_cfg *g = &b.cfg;
    const size_t HK = (size_t)g->H * g->K, GK = (size_t)g->G * g->K;
    const struct kn_shape shapes[] = {
        {2 * GK, g->D}, {HK, g->D}, {g->D, HK}, {2 * (size_t)g->F, g->D}, {g->D, g->F}};
    o.tune = (struct kn_tuning){shapes, sizeof shapes / sizeof *shapes, 512,
                                strcmp(o.device, "cpu") == 0 ? CPU_TUNE_MS : gpu_tune_ms};
    r = kn_dev_create(&o, &b.dev, err);
    if (r < 0) return r;
    b.emulated = strncmp(kn_info(b.dev)->device, "hostcuda", 8) == 0;
    *ret = b;
    return 0;
}

int bench_device_open(const struct opts *opts, struct bench_device *ret, struct err *err)
{
    enum { GPU_TUNE_MS = 20000 }; /* every bucket is tuned */
    struct bench_device b;
    int r = bench_device_create(opts, GPU_TUNE_MS, &b, err);
    if (r < 0) return r;
    r = measure_copies(&b);
    if (r < 0) {
        bench_device_close(&b);
        return err_set(err, r, "the device could not be measured (%s)", err_name(r));
    }
    *ret = b;
    return 0;
}

void bench_device_close(struct bench_device *b)
{
    kn_dev_destroy(b->dev);
    b->dev = NULL;
}

static json_t *null_if_none(double v)
{
    return v > 0 ? bench_number(v) : json_null();
}

json_t *bench_device_meta(const struct bench_device *b)
{
    json_t *meta = bench_meta();
    json_t *own =
        json_pack("{s:s, s:s, s:i, s:s, s:s, s:s, s:{s:o, s:o}}", "device", kn_info(b->dev)->device,
                  "isa", kn_info(b->dev)->isa, "threads", (int)kn_info(b->dev)->n_threads, "gemm",
                  kn_info(b->dev)->gemm, "weights", kn_weights_name(b->weights), "shape",
                  b->cfg.name, "ceilings", "copy_gbps", null_if_none(b->copy_gbps), "gemm_gflops",
                  null_if_none(b->gemm_gflops));
    json_object_update(meta, own);
    json_decref(own);
    return meta;
}

int bench_device_end(const struct opts *opts, struct bench_device *b, json_t *rows, json_t *more,
                     int r, struct err *err)
{
    if (r == 0) {
        json_t *meta = bench_device_meta(b);
        if (more) json_object_update(meta, more);
        r = bench_write_json(opts, meta, rows, err);
        json_decref(meta);
    }
    if (r < 0 && err->code == 0) (void)err_set(err, r, "measuring failed (%s)", err_name(r));
    bench_device_close(b);
    json_decref(more);
    json_decref(rows);
    return r;
}

/* ---- data: never zeros, products of which take less power ---- */

float *bench_noise(size_t n, uint64_t seed)
{
    float *x = mem_alloc((n ? n : 1) * sizeof *x);
    struct rng r = {seed};
    for (size_t i = 0; x && i < n; i++)
        x[i] = (float)(rng_next(&r) >> 40) * 0x1p-23f - 1.0f;
    return x;
}

float *bench_device_floats(const struct bench_device *b, enum kn_mem kind, const float *from,
                           size_t n)
{
    float *ret = kn_mem_alloc(b->dev, kind, n * sizeof *ret);
    if (ret && from && kn_mem_copy(b->dev, ret, from, n * sizeof *ret) < 0) {
        kn_mem_free(b->dev, ret);
        return NULL;
    }
    return ret;
}

float *bench_device_random(const struct bench_device *b, enum kn_mem kind, size_t n)
{
    float *x = bench_noise(n, n);
    float *ret = x ? bench_device_floats(b, kind, x, n) : NULL;
    mem_free(x);
    return ret;
}

struct kn_mat *bench_device_mat(const struct bench_device *b, size_t n, size_t k, uint64_t seed)
{
    enum { SLICE = 1 << 20 };
    struct kn_mat *w = NULL;
    const size_t rows = SLICE / k ? SLICE / k : 1;
    float *x = bench_noise(rows * k, seed);
    int r = x ? kn_mat_create(b->dev, n, k, &w) : -ENOMEM;
    for (size_t at = 0; r == 0 && at < n; at += rows)
        r = kn_mat_fill(w, at, n - at < rows ? n - at : rows, x);
    if (r == 0) r = kn_mat_done(w);
    mem_free(x);
    if (r == 0) return w;
    kn_mat_destroy(w);
    return NULL;
}

size_t bench_operand_bytes(const struct bench_device *b)
{
    if (b->weights == KN_WEIGHTS_FP8 || b->weights == KN_WEIGHTS_INT8) return 1;
    return kn_info(b->dev)->is_host ? sizeof(float) : kn_info(b->dev)->kv_value_bytes;
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

int bench_device_run(const struct bench_device *b, const struct bench_work *w, unsigned times,
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

int bench_device_time(const struct bench_device *b, const struct bench_work *w,
                      struct bench_time *ret)
{
    unsigned times = 1;
    double us, *all = mem_alloc(b->reps * sizeof *all);
    int r = all ? 0 : -ENOMEM;
    for (int warm_up = 0; r == 0 && warm_up < 2; warm_up++)
        r = bench_device_run(b, w, 1, &us);
    if (r == 0 && !kn_info(b->dev)->is_host && us < LONG_ENOUGH_US) {
        times = us > 0 ? (unsigned)(LONG_ENOUGH_US / us) + 1 : TIMES_MAX;
        if (times > TIMES_MAX) times = TIMES_MAX;
    }
    for (size_t i = 0; r == 0 && i < b->reps; i++)
        r = bench_device_run(b, w, times, &all[i]);
    if (r == 0)
        *ret =
            (struct bench_time){bench_quantile(all, b->reps, 0.5), bench_quantile(all, b->reps, 0),
                                bench_quantile(all, b->reps, 1)};
    mem_free(all);
    return r;
}

int bench_at_rows(const struct opts *opts, size_t ret[BENCH_ROWS_MAX], struct err *err)
{
    double v[BENCH_ROWS_MAX];
    const char *list = opt_str(opts, "at-rows");
    int n = bench_numbers(list, true, 1 << 20, v, BENCH_ROWS_MAX);
    if (n < 0)
        return err_set(err, n, "--at-rows \"%.60s\": 1 to %d numbers with commas between", list,
                       BENCH_ROWS_MAX);
    for (int i = 0; i < n; i++)
        ret[i] = (size_t)v[i];
    return n;
}
