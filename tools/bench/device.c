#include "tools/bench/device.h"

#include "base/clock.h"
#include "base/mem.h"
#include "fusor/model/shape.h"
#include "tools/bench/bench.h"

#include <stdlib.h>
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

static int measure_copy(struct bench_device *b)
{
    const size_t bytes = b->emulated                ? COPY_BYTES_EMULATED
                         : kn_info(b->dev)->is_host ? COPY_BYTES_HOST
                                                    : COPY_BYTES;
    struct copy c = {kn_mem_alloc(b->dev, KN_MEM_DEVICE, bytes),
                     (char *)bench_device_random(b, KN_MEM_DEVICE, bytes / sizeof(float))};
    struct bench_time t;
    int r = c.to && c.from ? bench_device_time(b, bytes / COPY_ROW, copy_rows, &c, &t) : -ENOMEM;
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
    r = measure_copy(&b);
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

static json_t *measured(double v)
{
    return v > 0 ? bench_number(v) : json_null();
}

json_t *bench_device_meta(const struct bench_device *b)
{
    json_t *meta = bench_meta();
    json_t *own = json_pack(
        "{s:s, s:s, s:i, s:s, s:s, s:s, s:{s:o, s:o}}", "device", kn_info(b->dev)->device, "isa",
        kn_info(b->dev)->isa, "threads", (int)kn_info(b->dev)->n_threads, "gemm",
        kn_info(b->dev)->gemm, "weights", kn_weights_name(b->weights), "shape", b->cfg.name,
        "ceilings", "copy_gbps", measured(b->copy_gbps), "gemm_gflops", measured(b->gemm_gflops));
    json_object_update(meta, own);
    json_decref(own);
    return meta;
}

/* ---- data: never zeros, products of which take less power ---- */

float bench_noise(uint64_t *seed)
{
    *seed ^= *seed << 13, *seed ^= *seed >> 7, *seed ^= *seed << 17;
    return (float)(*seed >> 40) * 0x1p-23f - 1.0f;
}

static float *noise(size_t n, uint64_t seed)
{
    float *x = mem_alloc((n ? n : 1) * sizeof *x);
    uint64_t s = seed * 0x9e3779b97f4a7c15u + 1;
    for (size_t i = 0; x && i < n; i++)
        x[i] = bench_noise(&s);
    return x;
}

float *bench_device_random(const struct bench_device *b, enum kn_mem kind, size_t n)
{
    float *ret = kn_mem_alloc(b->dev, kind, n * sizeof *ret), *x = noise(n, n);
    if (!ret || !x || kn_mem_copy(b->dev, ret, x, n * sizeof *ret) < 0) {
        kn_mem_free(b->dev, ret);
        ret = NULL;
    }
    mem_free(x);
    return ret;
}

struct kn_mat *bench_device_mat(const struct bench_device *b, size_t n, size_t k, uint64_t seed)
{
    enum { SLICE = 1 << 20 };
    struct kn_mat *w = NULL;
    const size_t rows = SLICE / k ? SLICE / k : 1;
    float *x = noise(rows * k, seed);
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

struct loop {
    kn_rows_fn fn;
    void *arg;
    unsigned times;
};

static int loop_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct loop *l = arg;
    int r = 0;
    for (unsigned i = 0; r == 0 && i < l->times; i++)
        r = l->fn(st, l->arg, row0, n);
    return r;
}

int bench_device_run(const struct bench_device *b, size_t rows, kn_rows_fn fn, void *arg,
                     unsigned times, double *ret_us)
{
    struct loop l = {fn, arg, times};
    const uint64_t t0 = clock_ns();
    int r = rows <= kn_info(b->dev)->wide_rows_max ? kn_wide(b->dev, rows, NULL, loop_rows, &l)
                                                   : kn_rows(b->dev, rows, NULL, loop_rows, &l);
    *ret_us = (double)(clock_ns() - t0) * 1e-3 / times;
    return r;
}

int bench_device_time(const struct bench_device *b, size_t rows, kn_rows_fn fn, void *arg,
                      struct bench_time *ret)
{
    unsigned times = 1;
    double us, *all = mem_alloc(b->reps * sizeof *all);
    int r = all ? 0 : -ENOMEM;
    for (int warm_up = 0; r == 0 && warm_up < 2; warm_up++)
        r = bench_device_run(b, rows, fn, arg, 1, &us);
    if (r == 0 && !kn_info(b->dev)->is_host && us < LONG_ENOUGH_US) {
        times = us > 0 ? (unsigned)(LONG_ENOUGH_US / us) + 1 : TIMES_MAX;
        if (times > TIMES_MAX) times = TIMES_MAX;
    }
    for (size_t i = 0; r == 0 && i < b->reps; i++)
        r = bench_device_run(b, rows, fn, arg, times, &all[i]);
    if (r == 0)
        *ret =
            (struct bench_time){bench_quantile(all, b->reps, 0.5), bench_quantile(all, b->reps, 0),
                                bench_quantile(all, b->reps, 1)};
    mem_free(all);
    return r;
}

int bench_rows_of(const char *list, size_t ret[BENCH_ROWS_MAX], size_t *ret_n, struct err *err)
{
    size_t n = 0;
    const char *p = list;
    for (bool more = true; more; n++) {
        char *end;
        const unsigned long v = strtoul(p, &end, 10);
        more = *end == ',';
        if (end == p || v == 0 || v > 1 << 20 || n == BENCH_ROWS_MAX || (*end && !more))
            return err_set(err, -EINVAL,
                           "row counts \"%.60s\": 1 to %d numbers with commas between", list,
                           BENCH_ROWS_MAX);
        ret[n] = v;
        p = end + more;
    }
    *ret_n = n;
    return 0;
}
