/* The way from kn.h to a backend: shape checks, then its table. */
#include "kernels/kn_int.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "kernels/module.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { P = KN_PAGE };

static const struct kn_head *dev_head(const struct kn_dev *d)
{
    return (const void *)d;
}

static const struct kn_ops *dev_ops(const struct kn_dev *d)
{
    return dev_head(d)->ops;
}

static const struct kn_ops *stream_ops(const struct kn_stream *st)
{
    return dev_ops(*(struct kn_dev *const *)(const void *)st);
}

static const struct kn_ops *mat_ops(const struct kn_mat *w)
{
    return dev_ops(*(struct kn_dev *const *)(const void *)w);
}

/* ---- device ---- */

static int create_apart(const struct kn_dev_opts *o, const char *kind, int index,
                        struct kn_dev **ret_dev, struct err *err)
{
    typedef int (*create_fn)(const struct kn_dev_opts *, const char *, int, struct kn_dev **,
                             struct err *);
    create_fn create;
    int r = kn_module_find(kind, "kn_cuda_create", (void **)&create, err);
    return r < 0 ? r : create(o, kind, index, ret_dev, err);
}

/* The device's options, with weights of 16 bits said as arithmetic. */
static int plain_weights(struct kn_dev_opts *o, bool cpu, struct err *err)
{
    const bool eight = o->weights == KN_WEIGHTS_FP8 || o->weights == KN_WEIGHTS_INT8;
    if (cpu && eight)
        return err_set(err, -ENOTSUP, "weights in %s need a GPU (the CPU has f32 and bf16)",
                       kn_weights_name(o->weights));
    if (o->weights != KN_WEIGHTS_BF16) return 0;
    if (o->arith == KN_ARITH_F32)
        return err_set(err, -EINVAL, "weights in bf16 contradict arithmetic in f32");
    o->arith = KN_ARITH_BF16;
    o->weights = KN_WEIGHTS_AUTO;
    return 0;
}

static int create(const struct kn_dev_opts *opts, struct kn_dev **ret_dev, struct err *err)
{
    struct kn_dev_opts o = *opts;
    const char *name = o.device && *o.device ? o.device : "cpu";
    const bool cpu = strcmp(name, "cpu") == 0;
    char rest;
    int index = 0, r = plain_weights(&o, cpu, err);
    if (r < 0) return r;
    if (cpu) return kn_cpu_create(&o, ret_dev, err);
    if (strcmp(name, "hostcuda") == 0) return create_apart(&o, "hostcuda", 0, ret_dev, err);
    if (strcmp(name, "cuda") == 0 || (sscanf(name, "cuda:%3d%c", &index, &rest) == 1 && index >= 0))
        return create_apart(&o, "cuda", index, ret_dev, err);
    return err_set(err, -EINVAL, "device \"%.60s\" is unknown (known: cpu, cuda, cuda:N)", name);
}

int kn_dev_create(const struct kn_dev_opts *o, struct kn_dev **ret_dev, struct err *err)
{
    struct kn_dev *d = NULL;
    int r = create(o, &d, err);
    if (r == 0 && o->tune.n_shapes) {
        r = o->tune.rows ? dev_ops(d)->tune(d, &o->tune) : -EINVAL;
        if (r < 0)
            (void)err_set(err, r, "matrix multiplication could not be set up (%s)", err_name(r));
    }
    if (r < 0)
        kn_dev_destroy(d);
    else
        *ret_dev = d;
    return r;
}

void kn_dev_destroy(struct kn_dev *d)
{
    if (d) dev_ops(d)->destroy(d);
}

const char *kn_dev_device(const struct kn_dev *d)
{
    return dev_ops(d)->device(d);
}

bool kn_dev_is_host(const struct kn_dev *d)
{
    return dev_ops(d)->is_host;
}

bool kn_dev_lost(const struct kn_dev *d)
{
    return dev_ops(d)->lost && dev_ops(d)->lost(d);
}

int kn_dev_gpu(struct kn_dev *d, struct gpu **ret, struct err *err)
{
    if (!dev_ops(d)->gpu) return err_set(err, -ENOTSUP, "the CPU has no memory of its own");
    return dev_ops(d)->gpu(d, ret, err);
}

struct kn_memory kn_dev_memory(struct kn_dev *d)
{
    return dev_ops(d)->memory ? dev_ops(d)->memory(d) : (struct kn_memory){0};
}

unsigned kn_dev_threads(const struct kn_dev *d)
{
    return dev_ops(d)->threads(d);
}

const char *kn_dev_isa(const struct kn_dev *d)
{
    return dev_ops(d)->isa(d);
}

const char *kn_dev_gemm(const struct kn_dev *d)
{
    return dev_ops(d)->gemm_name(d);
}

bool kn_gemm_invariant(const struct kn_dev *d)
{
    return dev_ops(d)->gemm_invariant;
}

const struct kn_gemm_rate *kn_dev_rates(const struct kn_dev *d, size_t *ret_n)
{
    *ret_n = dev_head(d)->n_rates;
    return dev_head(d)->rate;
}

static const char *const dtype_names[] = {"f32", "f16", "bf16", "q8"};
enum { DTYPES = sizeof dtype_names / sizeof *dtype_names };

const char *kn_dtype_name(enum kn_dtype t)
{
    return (unsigned)t < DTYPES ? dtype_names[t] : "unknown";
}

static int named(const char *const *names, int n, const char *name, int dflt)
{
    for (int i = 0; i < n; i++)
        if (strcmp(name, names[i]) == 0) return i;
    return dflt;
}

int kn_dtype_parse(const char *name, int dflt)
{
    return named(dtype_names, DTYPES, name, dflt);
}

static const char *const weight_names[] = {"auto", "bf16", "fp8", "int8"};
enum { WEIGHTS = sizeof weight_names / sizeof *weight_names };

const char *kn_weights_name(enum kn_weights w)
{
    return (unsigned)w < WEIGHTS ? weight_names[w] : "unknown";
}

int kn_weights_parse(const char *name, int dflt)
{
    return named(weight_names, WEIGHTS, name, dflt);
}

struct rate {
    struct kn_mat *const *mats;
    size_t n;
    const float *a;
    size_t k_max;
    float *c;
    size_t n_max;
    size_t k[KN_SLOTS]; /* widths that rows are kept in as operands; 0: no more */
    bool prepares;
};

/* The slot of an operand of that width, KN_SLOTS: there is none. */
static unsigned rate_slot(const struct rate *b, size_t k)
{
    unsigned i = 0;
    while (i < KN_SLOTS && b->k[i] != k)
        i++;
    return i;
}

static int rate_product(struct kn_stream *st, const struct rate *b, const struct kn_mat *w,
                        size_t row0, size_t m)
{
    struct kn_gemm_args g = {.a = b->a + row0 * b->k_max,
                             .lda = b->k_max,
                             .m = m,
                             .w = w,
                             .c = b->c + row0 * b->n_max,
                             .ldc = b->n_max};
    const size_t k = mat_ops(w)->mat_shape(w).k;
    const unsigned slot = rate_slot(b, k);
    if (slot == KN_SLOTS) return b->prepares ? 0 : kn_gemm(st, &g);
    float *at = kn_operand(st, slot, m, w); /* where it was, as it was: nothing has grown since */
    if (!at) return -ENOMEM;
    if (b->prepares) return kn_rmsnorm(st, g.a, g.lda, m, k, b->a, 1e-5f, at, k);
    g.a = at;
    g.lda = k;
    return kn_gemm(st, &g);
}

static int rate_rows(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct rate *b = arg;
    int r = 0;
    for (size_t i = 0; r == 0 && i < b->n; i++)
        r = rate_product(st, b, b->mats[i], row0, m);
    return r;
}

double kn_dev_gemm_gflops(struct kn_dev *d, struct kn_mat *const *mats, size_t n, size_t rows)
{
    enum { ROUNDS = 5 };
    struct rate b = {.mats = mats, .n = n};
    double flops = 0, best_s = 0;
    for (size_t i = 0; i < n; i++) {
        const struct kn_shape s = mat_ops(mats[i])->mat_shape(mats[i]);
        const unsigned slot = rate_slot(&b, 0);
        if (!kn_dev_is_host(d) && rate_slot(&b, s.k) == KN_SLOTS && slot < KN_SLOTS)
            b.k[slot] = s.k;
        if (s.k > b.k_max) b.k_max = s.k;
        if (s.n > b.n_max) b.n_max = s.n;
        flops += 2.0 * (double)s.n * (double)s.k * (double)rows;
    }
    const size_t n_a = rows * b.k_max;
    float *x = mem_alloc((n_a + 1) * sizeof *x);
    float *a = kn_mem_alloc(d, KN_MEM_DEVICE, n_a * sizeof *a);
    b.c = kn_mem_alloc(d, KN_MEM_DEVICE, rows * b.n_max * sizeof(float));
    for (size_t i = 0; x && i < n_a; i++)
        x[i] = (float)(int)(i * 2654435761u % 1000u) * 1e-3f - 0.5f;
    b.a = a;
    const bool ready = x && a && b.c && n > 0 && kn_mem_write(d, a, x, n_a * sizeof *a) == 0;
    b.prepares = true; /* products alone are timed: a layer's norms write their operands */
    bool goes = ready && kn_rows(d, rows, NULL, rate_rows, &b) == 0;
    b.prepares = false;
    for (int i = 0; goes && i < ROUNDS; i++) {
        const uint64_t t0 = clock_ns();
        if (kn_rows(d, rows, NULL, rate_rows, &b) < 0) break;
        const double s = (double)(clock_ns() - t0) * 1e-9;
        if (best_s == 0 || s < best_s) best_s = s;
    }
    mem_free(x);
    kn_mem_free(d, a);
    kn_mem_free(d, b.c);
    return best_s > 0 ? flops / best_s * 1e-9 : 0;
}

/* ---- memory ---- */

void *kn_mem_alloc(struct kn_dev *d, enum kn_mem kind, size_t bytes)
{
    return dev_ops(d)->mem_alloc(d, kind, bytes ? bytes : 1);
}

void kn_mem_free(struct kn_dev *d, void *p)
{
    if (p) dev_ops(d)->mem_free(d, p);
}

int kn_mem_write(struct kn_dev *d, void *dst, const void *src, size_t bytes)
{
    return bytes ? dev_ops(d)->mem_write(d, dst, src, bytes) : 0;
}

int kn_mem_copy(struct kn_dev *d, void *dst, const void *src, size_t bytes)
{
    return bytes ? dev_ops(d)->mem_copy(d, dst, src, bytes) : 0;
}

/* Where memory is plain, everything is near. */
int kn_stage(struct kn_dev *d, struct kn_piece *p, size_t n, uint64_t *ret_turn)
{
    if (dev_ops(d)->stage) return dev_ops(d)->stage(d, p, n, ret_turn);
    for (size_t i = 0; i < n; i++)
        p[i].at = p[i].from;
    *ret_turn = 0;
    return 0;
}

int kn_staged(struct kn_stream *st, uint64_t turn)
{
    return turn ? stream_ops(st)->staged(st, turn) : 0;
}

void kn_unstage(struct kn_dev *d, uint64_t turn)
{
    if (turn) dev_ops(d)->unstage(d, turn);
}

int kn_stage_room(struct kn_dev *d, size_t bytes)
{
    return dev_ops(d)->stage_room ? dev_ops(d)->stage_room(d, bytes) : 0;
}

/* ---- weights ---- */

int kn_mat_create(struct kn_dev *d, size_t n, size_t k, struct kn_mat **ret_mat)
{
    if (n == 0 || k == 0) return -EINVAL;
    return dev_ops(d)->mat_create(d, n, k, ret_mat);
}

int kn_mat_create_full(struct kn_dev *d, size_t n, size_t k, struct kn_mat **ret_mat)
{
    const struct kn_ops *ops = dev_ops(d);
    if (n == 0 || k == 0) return -EINVAL;
    return (ops->mat_create_full ? ops->mat_create_full : ops->mat_create)(d, n, k, ret_mat);
}

size_t kn_mat_bytes(const struct kn_mat *w)
{
    return mat_ops(w)->mat_bytes(w);
}

int kn_mat_fill(struct kn_mat *w, size_t row0, size_t n_rows, const float *rows)
{
    return mat_ops(w)->mat_fill(w, row0, n_rows, rows);
}

static int random_from_host(struct kn_mat *w, size_t row0, size_t n_rows, const struct rng_field *f)
{
    enum { SLICE = 1 << 16 }; /* chosen: values that stay in L2 until they are packed */
    const size_t k = mat_ops(w)->mat_shape(w).k, most = SLICE / k + 1;
    float *rows = mem_alloc(most * k * sizeof *rows);
    int r = rows ? 0 : -ENOMEM;
    for (size_t at = 0, n; r == 0 && at < n_rows; at += n) {
        n = n_rows - at < most ? n_rows - at : most;
        for (size_t i = 0; i < n * k; i++)
            rows[i] = rng_field_at(f, at * k + i);
        r = kn_mat_fill(w, row0 + at, n, rows);
    }
    mem_free(rows);
    return r;
}

int kn_mat_random(struct kn_mat *w, size_t row0, size_t n_rows, const struct rng_field *f)
{
    const struct kn_ops *ops = mat_ops(w);
    const size_t n = ops->mat_shape(w).n;
    if (row0 > n || n_rows > n - row0) return -EINVAL;
    return (ops->mat_random ? ops->mat_random : random_from_host)(w, row0, n_rows, f);
}

int kn_mat_create_coded(struct kn_dev *d, const struct kn_part *parts, size_t n_parts, size_t k,
                        struct kn_mat **ret_mat)
{
    const struct kn_ops *ops = dev_ops(d);
    size_t n = 0, n_codes = 0;
    for (size_t i = 0; i < n_parts; i++) {
        if (!codes_form_fits(&parts[i].form, k)) return -EINVAL;
        n += parts[i].n;
        n_codes += parts[i].form.bits ? parts[i].n : 0;
    }
    if (n == 0 || k == 0) return -EINVAL;
    if (n_codes == 0 || !ops->mat_create_coded) return -ENOTSUP;
    return ops->mat_create_coded(d, parts, n_parts, k, ret_mat);
}

int kn_mat_fill_codes(struct kn_mat *w, size_t row, const struct codes_row *c)
{
    const struct kn_ops *ops = mat_ops(w);
    return ops->mat_fill_codes ? ops->mat_fill_codes(w, row, c) : -ENOTSUP;
}

int kn_mat_done(struct kn_mat *w)
{
    return mat_ops(w)->mat_done(w);
}

void kn_mat_destroy(struct kn_mat *w)
{
    if (w) mat_ops(w)->mat_destroy(w);
}

/* ---- running ---- */

int kn_rows(struct kn_dev *d, size_t n_rows, const atomic_bool *cancel, kn_rows_fn fn, void *arg)
{
    return n_rows ? dev_ops(d)->rows(d, n_rows, cancel, fn, arg) : 0;
}

int kn_rows_uneven(struct kn_dev *d, size_t n_rows, const atomic_bool *cancel, kn_rows_fn fn,
                   void *arg)
{
    return n_rows ? dev_ops(d)->rows_uneven(d, n_rows, cancel, fn, arg) : 0;
}

int kn_wide(struct kn_dev *d, size_t n_rows, const atomic_bool *cancel, kn_rows_fn fn, void *arg)
{
    return n_rows ? dev_ops(d)->wide(d, n_rows, cancel, fn, arg) : 0;
}

size_t kn_wide_rows_max(const struct kn_dev *d)
{
    return dev_ops(d)->wide_rows_max(d);
}

void kn_defer(struct kn_dev *d, bool on)
{
    if (dev_ops(d)->defer) dev_ops(d)->defer(d, on);
}

void kn_pipeline(struct kn_dev *d, bool on)
{
    if (dev_ops(d)->pipeline) dev_ops(d)->pipeline(d, on);
}

int kn_fence(struct kn_dev *d)
{
    return dev_ops(d)->fence ? dev_ops(d)->fence(d) : 0;
}

int kn_replay(struct kn_dev *d, uint64_t key, size_t n_rows, const atomic_bool *cancel,
              kn_rows_fn fn, void *arg)
{
    const struct kn_ops *ops = dev_ops(d);
    if (!ops->replay || n_rows == 0) return kn_wide(d, n_rows, cancel, fn, arg);
    return ops->replay(d, key, n_rows, cancel, fn, arg);
}

size_t kn_replay_rows(const struct kn_dev *d, size_t n)
{
    return dev_ops(d)->replay_rows ? dev_ops(d)->replay_rows(d, n) : n;
}

void kn_forget(struct kn_dev *d)
{
    if (dev_ops(d)->forget) dev_ops(d)->forget(d);
}

struct kn_replays kn_replays(const struct kn_dev *d)
{
    return dev_ops(d)->replays ? dev_ops(d)->replays(d) : (struct kn_replays){0};
}

int kn_sync(struct kn_stream *st)
{
    return stream_ops(st)->sync(st);
}

void *kn_scratch(struct kn_stream *st, unsigned slot, size_t size_bytes)
{
    return slot < KN_SLOTS ? stream_ops(st)->scratch(st, slot, size_bytes) : NULL;
}

float *kn_operand(struct kn_stream *st, unsigned slot, size_t m, const struct kn_mat *w)
{
    const struct kn_ops *ops = stream_ops(st);
    if (slot >= KN_SLOTS) return NULL;
    if (ops->operand) return ops->operand(st, slot, m, w);
    return ops->scratch(st, slot, m * ops->mat_shape(w).k * sizeof(float));
}

/* ---- operations ---- */

int kn_gemm(struct kn_stream *st, const struct kn_gemm_args *a)
{
    return stream_ops(st)->gemm(st, a);
}

int kn_embed(struct kn_stream *st, const struct kn_mat *w, const int32_t *id, size_t m, float *out,
             size_t ldo)
{
    const struct kn_ops *ops = stream_ops(st);
    if (!ops->embed) return -ENOTSUP;
    return m ? ops->embed(st, w, id, m, out, ldo) : 0;
}

int kn_gather(struct kn_stream *st, const float *x, const int32_t *idx, size_t m, size_t n,
              float *out)
{
    return m && n ? stream_ops(st)->gather(st, x, idx, m, n, out) : 0;
}

int kn_copy(struct kn_stream *st, void *dst, const void *src, size_t bytes)
{
    return bytes ? stream_ops(st)->copy(st, dst, src, bytes) : 0;
}

int kn_rmsnorm(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t D,
               const float *weight, float eps, float *out, size_t ldo)
{
    if (ldx < D || ldo < D || D == 0) return -EINVAL;
    return m ? stream_ops(st)->rmsnorm(st, x, ldx, m, D, weight, eps, out, ldo) : 0;
}

int kn_rmsnorm_heads(struct kn_stream *st, float *x, size_t ldx, size_t m, size_t heads, size_t K,
                     const float *weight, float eps)
{
    if (ldx < heads * K || K == 0) return -EINVAL;
    return m ? stream_ops(st)->rmsnorm_heads(st, x, ldx, m, heads, K, weight, eps) : 0;
}

int kn_swiglu(struct kn_stream *st, const float *gate_up, size_t ldg, size_t m, size_t F,
              float *out, size_t ldo)
{
    if (ldg < 2 * F || ldo < F) return -EINVAL;
    return m && F ? stream_ops(st)->swiglu(st, gate_up, ldg, m, F, out, ldo) : 0;
}

int kn_rope(struct kn_stream *st, const struct kn_rope *r, float *x, size_t ldx, size_t m,
            size_t heads, const int32_t *pos)
{
    if (ldx < heads * r->K || r->n_rot > r->K || r->n_rot % 2) return -EINVAL;
    return m ? stream_ops(st)->rope(st, r, x, ldx, m, heads, pos) : 0;
}

size_t kn_kv_layer_values(unsigned G, unsigned K)
{
    return (size_t)2 * G * K * P;
}

size_t kn_kv_value_bytes(const struct kn_dev *d)
{
    return dev_ops(d)->kv_value_bytes(d);
}

int kn_kv_put(struct kn_stream *st, const struct kn_kv *kv, unsigned layer, const int32_t *pos,
              size_t m, const float *k, size_t ldk, const float *v, size_t ldv)
{
    const size_t GK = (size_t)kv->G * kv->K;
    if (ldk < GK || ldv < GK) return -EINVAL;
    return m ? stream_ops(st)->kv_put(st, kv, layer, pos, m, k, ldk, v, ldv) : 0;
}

int kn_kv_load(struct kn_stream *st, const struct kn_kv *kv, unsigned layer, int32_t pos0, size_t n,
               const void *k, const void *v, enum kn_dtype t, const struct kn_rope *rope)
{
    if (n == 0) return 0;
    if (kv->each || pos0 < 0 || n > kv->n_pages * P || (size_t)pos0 > kv->n_pages * P - n)
        return -EINVAL;
    if (rope && (rope->K != kv->K || rope->n_rot > rope->K || rope->n_rot % 2 ||
                 (size_t)pos0 + n > rope->pos_cap))
        return -EINVAL;
    return stream_ops(st)->kv_load(st, kv, layer, pos0, n, k, v, t, rope);
}

int kn_encode_rows(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t n, size_t K,
                   enum kn_dtype t, void *out)
{
    if (ldx < n || K == 0 || n % K || (unsigned)t >= DTYPES) return -EINVAL;
    return m && n ? stream_ops(st)->encode_rows(st, x, ldx, m, n, K, t, out) : 0;
}

int kn_encode(struct kn_stream *st, const float *x, size_t n, size_t K, enum kn_dtype t, void *out)
{
    return kn_encode_rows(st, x, n, 1, n, K, t, out);
}

int kn_decode(struct kn_stream *st, const void *x, size_t n, size_t K, enum kn_dtype t, float *out)
{
    if (K == 0 || (unsigned)t >= DTYPES) return -EINVAL;
    return n ? stream_ops(st)->decode(st, x, n, K, t, out) : 0;
}

static bool attn_fits(const struct kn_attn_args *a)
{
    const struct kn_kv *kv = a->kv;
    if (kv->G == 0 || kv->K == 0 || a->H == 0 || a->H % kv->G) return false;
    return a->ldq >= (size_t)a->H * kv->K;
}

int kn_attn(struct kn_stream *st, const struct kn_attn_args *a)
{
    if (!attn_fits(a) || a->ldo < (size_t)a->H * a->kv->K) return -EINVAL;
    return a->m ? stream_ops(st)->attn(st, a) : 0;
}

int kn_attn_mass(struct kn_stream *st, const struct kn_attn_args *a, float *mass, size_t key0,
                 size_t n_keys)
{
    if (!attn_fits(a) || a->kv->each || !a->lse || key0 % P) return -EINVAL;
    return a->m && n_keys ? stream_ops(st)->attn_mass(st, a, mass, key0, n_keys) : 0;
}

int kn_deviation(struct kn_stream *st, const float *a, size_t lda, const void *b, enum kn_dtype t,
                 size_t m, size_t n, size_t K, float *ret)
{
    if (lda < n || (b && (K == 0 || (unsigned)t >= DTYPES))) return -EINVAL;
    return m ? stream_ops(st)->deviation(st, a, lda, b, t, m, n, K, ret) : 0;
}

int kn_change(struct kn_stream *st, const float *a, size_t lda, const void *b, enum kn_dtype t,
              size_t m, size_t n, size_t K, float *ret)
{
    if (lda < n || K == 0 || (unsigned)t >= DTYPES) return -EINVAL;
    return m && n ? stream_ops(st)->change(st, a, lda, b, t, m, n, K, ret) : 0;
}

int kn_edit(struct kn_stream *st, float *x, size_t ldx, size_t m, size_t n,
            const struct kn_edit *list, size_t stride, const uint32_t *n_edits)
{
    if (ldx < n) return -EINVAL;
    return m ? stream_ops(st)->edit(st, x, ldx, m, n, list, stride, n_edits) : 0;
}

int kn_draw(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t n,
            const struct kn_draw *how, int32_t *ret)
{
    if (n == 0 || n > DRAW_ROWS_MAX || ldx < n) return -EINVAL;
    return m ? stream_ops(st)->draw(st, x, ldx, m, n, how, ret) : 0;
}

int kn_top(struct kn_stream *st, const float *score, const int32_t *idx, size_t n, size_t k,
           int32_t *ret)
{
    if (k > n || n > INT32_MAX) return -EINVAL;
    return k ? stream_ops(st)->top(st, score, idx, n, k, ret) : 0;
}

/* Score -> unsigned key that sorts alike; NaN and -0 are given a place: lowest, and equal to +0. */
static uint32_t sort_key(float f)
{
    uint32_t u;
    if (isnan(f)) return 0;
    f += 0.0f;
    memcpy(&u, &f, 4);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

int kn_topk(const float *score, size_t n, size_t k, int32_t *ret_idx)
{
    if (k > n || n > INT32_MAX) return -EINVAL;
    if (k == 0) return 0;
    /* Radix selection, byte by byte from the top: `want` counts down to the rank inside the bucket
     * that holds the k-th largest key. */
    uint32_t prefix = 0, mask = 0;
    size_t want = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        size_t count[256] = {0};
        for (size_t i = 0; i < n; i++) {
            uint32_t u = sort_key(score[i]);
            if ((u & mask) == prefix) count[u >> shift & 255u]++;
        }
        uint32_t b = 255;
        while (count[b] < want)
            want -= count[b--];
        prefix |= b << shift;
        mask |= 255u << shift;
    }
    size_t out = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t u = sort_key(score[i]);
        if (u > prefix || (u == prefix && want > 0)) {
            want -= u == prefix;
            ret_idx[out++] = (int32_t)i;
        }
    }
    return 0;
}
