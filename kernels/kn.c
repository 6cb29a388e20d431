/* The way from kn.h to a backend: shape checks, then its tables. */
#include "kernels/kn_int.h"

#include "base/mem.h"
#include "base/rng.h"

#include <string.h>

enum { P = KN_PAGE };

static const struct kn_dev_head *dev_head(const struct kn_dev *d)
{
    return (const void *)d;
}

static const struct kn_mat_head *mat_head(const struct kn_mat *w)
{
    return (const void *)w;
}

static const struct kn_ops *dev_ops(const struct kn_dev *d)
{
    return &dev_head(d)->ops;
}

static const struct kn_ops *stream_ops(const struct kn_stream *st)
{
    return dev_ops(((const struct kn_stream_head *)(const void *)st)->dev);
}

static const struct kn_ops *mat_ops(const struct kn_mat *w)
{
    return dev_ops(mat_head(w)->dev);
}

/* ---- device ---- */

void kn_dev_destroy(struct kn_dev *d)
{
    if (d) dev_ops(d)->dev->destroy(d);
}

const struct kn_info *kn_info(const struct kn_dev *d)
{
    return &dev_head(d)->info;
}

bool kn_dev_lost(const struct kn_dev *d)
{
    return dev_ops(d)->gpu && dev_ops(d)->gpu->lost(d);
}

int kn_dev_gpu(struct kn_dev *d, struct gpu **ret, struct err *err)
{
    if (!dev_ops(d)->gpu) return err_set(err, -ENOTSUP, "the CPU has no memory of its own");
    return dev_ops(d)->gpu->gpu(d, ret, err);
}

struct kn_memory kn_dev_memory(struct kn_dev *d)
{
    return dev_ops(d)->gpu ? dev_ops(d)->gpu->memory(d) : (struct kn_memory){0};
}

static const char *const dtype_names[] = {"f32", "f16", "bf16", "q8", "q16"};
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
    return named(dtype_names, KN_Q16, name, dflt);
}

static const char *const weight_names[] = {"auto", "bf16", "fp8", "int8", "file"};
enum { WEIGHTS = sizeof weight_names / sizeof *weight_names };

const char *kn_weights_name(enum kn_weights w)
{
    return (unsigned)w < WEIGHTS ? weight_names[w] : "unknown";
}

int kn_weights_parse(const char *name, int dflt)
{
    return named(weight_names, WEIGHTS, name, dflt);
}

/* ---- memory ---- */

void *kn_mem_alloc(struct kn_dev *d, enum kn_mem kind, size_t bytes)
{
    const bool plain = kind >= KN_MEMS && kn_info(d)->n_ranks == 1;
    return dev_ops(d)->dev->mem_alloc(d, plain ? KN_MEM_DEVICE : kind, bytes ? bytes : 1);
}

void kn_mem_free(struct kn_dev *d, void *p)
{
    if (p) dev_ops(d)->dev->mem_free(d, p);
}

int kn_mem_copy(struct kn_dev *d, void *dst, const void *src, size_t bytes)
{
    return bytes ? dev_ops(d)->dev->mem_copy(d, dst, src, bytes) : 0;
}

/* Where memory is plain, everything is near. */
int kn_stage(struct kn_dev *d, struct kn_piece *p, size_t n, uint64_t *ret_turn)
{
    if (dev_ops(d)->gpu) return dev_ops(d)->gpu->stage(d, p, n, ret_turn);
    for (size_t i = 0; i < n; i++)
        p[i].at = p[i].from;
    *ret_turn = 0;
    return 0;
}

int kn_staged(struct kn_stream *st, uint64_t turn)
{
    return turn ? stream_ops(st)->gpu->staged(st, turn) : 0;
}

void kn_unstage(struct kn_dev *d, uint64_t turn)
{
    if (turn) dev_ops(d)->gpu->unstage(d, turn);
}

int kn_stage_room(struct kn_dev *d, size_t bytes)
{
    return dev_ops(d)->gpu ? dev_ops(d)->gpu->stage_room(d, bytes) : 0;
}

/* ---- weights ---- */

int kn_mat_create(struct kn_dev *d, size_t n, size_t k, struct kn_mat **ret_mat)
{
    return n && k ? dev_ops(d)->mat->create(d, n, k, ret_mat) : -EINVAL;
}

int kn_mat_create_full(struct kn_dev *d, size_t n, size_t k, struct kn_mat **ret_mat)
{
    return n && k ? dev_ops(d)->mat->create_full(d, n, k, ret_mat) : -EINVAL;
}

int kn_mat_create_f32(struct kn_dev *d, size_t n, size_t k, struct kn_mat **ret_mat)
{
    return n && k ? dev_ops(d)->mat->create_f32(d, n, k, ret_mat) : -EINVAL;
}

size_t kn_mat_bytes(const struct kn_mat *w)
{
    return mat_ops(w)->mat->bytes(w);
}

int kn_mat_fill(struct kn_mat *w, size_t row0, size_t n_rows, const float *rows)
{
    return mat_ops(w)->mat->fill(w, row0, n_rows, rows);
}

static int random_from_host(struct kn_mat *w, size_t row0, size_t n_rows, const struct rng_field *f)
{
    enum { SLICE = 1 << 16 }; /* chosen: values that stay in L2 until they are packed */
    const size_t k = mat_head(w)->k, most = SLICE / k + 1;
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
    const struct kn_gpu_ops *gpu = mat_ops(w)->gpu;
    const size_t n = mat_head(w)->n;
    if (row0 > n || n_rows > n - row0) return -EINVAL;
    return (gpu && gpu->mat_random ? gpu->mat_random : random_from_host)(w, row0, n_rows, f);
}

int kn_mat_create_coded(struct kn_dev *d, const struct kn_part *parts, size_t n_parts, size_t k,
                        bool full, struct kn_mat **ret_mat)
{
    size_t n = 0, n_codes = 0;
    for (size_t i = 0; i < n_parts; i++) {
        if (!codes_form_fits(&parts[i].form, k)) return -EINVAL;
        n += parts[i].n;
        n_codes += parts[i].form.bits ? parts[i].n : 0;
    }
    if (n == 0 || k == 0) return -EINVAL;
    if (n_codes == 0) return -ENOTSUP;
    return dev_ops(d)->mat->create_coded(d, parts, n_parts, k, full, ret_mat);
}

int kn_mat_fill_codes(struct kn_mat *w, size_t row0, size_t n_rows, const struct codes_row *rows)
{
    return mat_ops(w)->mat->fill_codes(w, row0, n_rows, rows);
}

int kn_mat_rows(struct kn_mat *w, size_t row0, size_t n, struct kn_mat **ret_mat)
{
    const struct kn_gpu_ops *gpu = mat_ops(w)->gpu;
    const size_t all = mat_head(w)->n;
    if (!gpu) return -ENOTSUP;
    return row0 < all && n > 0 && n <= all - row0 ? gpu->mat_rows(w, row0, n, ret_mat) : -EINVAL;
}

bool kn_mat_rough(const struct kn_mat *w)
{
    return mat_ops(w)->mat->rough && mat_ops(w)->mat->rough(w);
}

void kn_mat_inner(struct kn_mat *w)
{
    ((struct kn_mat_head *)w)->inner = true;
}

int kn_mat_split(struct kn_mat *w, enum kn_split how, const size_t *part, size_t n_parts)
{
    const struct kn_mat_ops *ops = mat_ops(w)->mat;
    return ops->split ? ops->split(w, how, part, n_parts) : 0;
}

int kn_mat_done(struct kn_mat *w)
{
    return mat_ops(w)->mat->done(w);
}

void kn_mat_destroy(struct kn_mat *w)
{
    if (w) mat_ops(w)->mat->destroy(w);
}

/* ---- running ---- */

int kn_rows(struct kn_dev *d, size_t n_rows, const atomic_bool *cancel, kn_rows_fn fn, void *arg)
{
    return n_rows ? dev_ops(d)->run->rows(d, n_rows, cancel, fn, arg) : 0;
}

int kn_rows_uneven(struct kn_dev *d, size_t n_rows, const atomic_bool *cancel, kn_rows_fn fn,
                   void *arg)
{
    return n_rows ? dev_ops(d)->run->rows_uneven(d, n_rows, cancel, fn, arg) : 0;
}

int kn_wide(struct kn_dev *d, size_t n_rows, const atomic_bool *cancel, kn_rows_fn fn, void *arg)
{
    return n_rows ? dev_ops(d)->run->wide(d, n_rows, cancel, fn, arg) : 0;
}

void kn_rough(struct kn_dev *d, bool on)
{
    if (dev_ops(d)->run->rough) dev_ops(d)->run->rough(d, on);
}

int kn_replay(struct kn_dev *d, uint64_t key, size_t n_rows, const atomic_bool *cancel,
              kn_rows_fn fn, void *arg)
{
    return n_rows ? dev_ops(d)->run->replay(d, key, n_rows, cancel, fn, arg) : 0;
}

/* The CPU's runs are over when they return, and nothing is recorded. */
void kn_defer(struct kn_dev *d, bool on)
{
    if (dev_ops(d)->gpu) dev_ops(d)->gpu->defer(d, on);
}

void kn_pipeline(struct kn_dev *d, bool on)
{
    if (dev_ops(d)->gpu) dev_ops(d)->gpu->pipeline(d, on);
}

int kn_fence(struct kn_dev *d)
{
    return dev_ops(d)->gpu ? dev_ops(d)->gpu->fence(d) : 0;
}

size_t kn_replay_rows(const struct kn_dev *d, size_t n)
{
    return dev_ops(d)->gpu ? dev_ops(d)->gpu->replay_rows(d, n) : n;
}

void kn_forget(struct kn_dev *d)
{
    if (dev_ops(d)->gpu) dev_ops(d)->gpu->forget(d);
}

struct kn_refusals kn_gemm_refusals(const struct kn_dev *d)
{
    return dev_ops(d)->gpu ? dev_ops(d)->gpu->gemm_refusals(d) : (struct kn_refusals){0};
}

struct kn_replays kn_replays(const struct kn_dev *d)
{
    return dev_ops(d)->gpu ? dev_ops(d)->gpu->replays(d) : (struct kn_replays){0};
}

int kn_sync(struct kn_stream *st)
{
    return stream_ops(st)->gpu ? stream_ops(st)->gpu->sync(st) : 0;
}

void *kn_scratch(struct kn_stream *st, unsigned slot, size_t size_bytes)
{
    return slot < KN_SLOTS ? stream_ops(st)->dev->scratch(st, slot, size_bytes) : NULL;
}

float *kn_operand(struct kn_stream *st, unsigned slot, size_t m, const struct kn_mat *w)
{
    const struct kn_gpu_ops *gpu = stream_ops(st)->gpu;
    if (!gpu) return kn_scratch(st, slot, m * mat_head(w)->k * sizeof(float));
    return slot < KN_SLOTS ? gpu->operand(st, slot, m, w) : NULL;
}

float *kn_product(struct kn_stream *st, unsigned slot, size_t m, const struct kn_mat *w)
{
    const struct kn_gpu_ops *gpu = stream_ops(st)->gpu;
    if (!gpu) return kn_scratch(st, slot, m * mat_head(w)->n * sizeof(float));
    return slot < KN_SLOTS ? gpu->product(st, slot, m, w) : NULL;
}

/* ---- operations ---- */

int kn_gemm(struct kn_stream *st, const struct kn_gemm_args *a)
{
    return stream_ops(st)->row->gemm(st, a);
}

int kn_gated(struct kn_stream *st, const struct kn_gemm_args *up, enum kn_act act,
             const struct kn_gemm_args *down)
{
    const struct kn_row_ops *ops = stream_ops(st)->row;
    const size_t F = down->lda, m = up->m;
    if (down->m != m || up->ldc != 2 * F || mat_head(up->w)->n != 2 * F ||
        mat_head(down->w)->k != F)
        return -EINVAL;
    int r = ops->gated ? ops->gated(st, up, act, down) : -ENOTSUP;
    if (r != -ENOTSUP) return r;
    r = kn_gemm(st, up);
    if (r == 0) r = kn_glu(st, act, up->c, 2 * F, m, F, (float *)down->a, F);
    return r < 0 ? r : kn_gemm(st, down);
}

int kn_embed(struct kn_stream *st, const struct kn_mat *w, const int32_t *id, size_t m, float *out,
             size_t ldo)
{
    const struct kn_gpu_ops *gpu = stream_ops(st)->gpu;
    if (!gpu) return -ENOTSUP;
    return m ? gpu->embed(st, w, id, m, out, ldo) : 0;
}

int kn_gather(struct kn_stream *st, const float *x, const int32_t *idx, size_t m, size_t n,
              float *out)
{
    return m && n ? stream_ops(st)->row->gather(st, x, idx, m, n, out) : 0;
}

int kn_copy(struct kn_stream *st, void *dst, const void *src, size_t bytes)
{
    return bytes ? stream_ops(st)->row->copy(st, dst, src, bytes) : 0;
}

int kn_rmsnorm(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t D,
               const float *weight, float eps, float *out, size_t ldo)
{
    if (ldx < D || ldo < D || D == 0) return -EINVAL;
    return m ? stream_ops(st)->row->rmsnorm(st, x, ldx, m, D, weight, eps, out, ldo) : 0;
}

int kn_rmsnorm_add(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t D,
                   const float *weight, float eps, float *out, size_t ldo)
{
    if (ldx < D || ldo < D || D == 0) return -EINVAL;
    return m ? stream_ops(st)->row->rmsnorm_add(st, x, ldx, m, D, weight, eps, out, ldo) : 0;
}

int kn_rmsnorm_heads(struct kn_stream *st, float *x, size_t ldx, size_t m, size_t heads, size_t K,
                     const float *weight, float eps)
{
    if (ldx < heads * K || K == 0) return -EINVAL;
    return m ? stream_ops(st)->row->rmsnorm_heads(st, x, ldx, m, heads, K, weight, eps) : 0;
}

int kn_glu(struct kn_stream *st, enum kn_act act, const float *gate_up, size_t ldg, size_t m,
           size_t F, float *out, size_t ldo)
{
    if (ldg < 2 * F || ldo < F) return -EINVAL;
    return m && F ? stream_ops(st)->row->glu(st, act, gate_up, ldg, m, F, out, ldo) : 0;
}

int kn_softcap(struct kn_stream *st, float *x, size_t ldx, size_t m, size_t n, float cap)
{
    if (ldx < n || !(cap > 0)) return -EINVAL;
    return m && n ? stream_ops(st)->row->softcap(st, x, ldx, m, n, cap) : 0;
}

int kn_layernorm(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t D,
                 const float *weight, const float *bias, float eps, float *out, size_t ldo)
{
    const struct kn_row_ops *row = stream_ops(st)->row;
    if (ldx < D || ldo < D || D == 0) return -EINVAL;
    return m ? row->layernorm(st, x, ldx, m, D, weight, bias, eps, out, ldo) : 0;
}

int kn_gelu(struct kn_stream *st, float *x, size_t ldx, size_t m, size_t n)
{
    const struct kn_row_ops *row = stream_ops(st)->row;
    if (ldx < n) return -EINVAL;
    if (!row->gelu) return -ENOTSUP;
    return m && n ? row->gelu(st, x, ldx, m, n) : 0;
}

int kn_rope(struct kn_stream *st, const struct kn_rope *r, float *x, size_t ldx, size_t m,
            size_t heads, const int32_t *pos)
{
    if (ldx < heads * r->K || r->n_rot > r->K || r->n_rot % 2) return -EINVAL;
    return m ? stream_ops(st)->row->rope(st, r, x, ldx, m, heads, pos) : 0;
}

size_t kn_kv_layer_values(enum kn_dtype kv, unsigned G, unsigned K)
{
    if (kv == KN_Q8) return 2 * P * kn_row_bytes(kv, G, K);
    return 2 * P * (kv == KN_Q16 ? kn_row_bytes(kv, G, K) / 2 : (size_t)G * K);
}

int kn_kv_put(struct kn_stream *st, const struct kn_kv *kv, unsigned layer, const int32_t *pos,
              size_t m, const float *k, size_t ldk, const float *v, size_t ldv)
{
    const size_t GK = (size_t)kv->G * kv->K;
    if (ldk < GK || ldv < GK) return -EINVAL;
    return m ? stream_ops(st)->row->kv_put(st, kv, layer, pos, m, k, ldk, v, ldv) : 0;
}

static bool rotates(const struct kn_rope *r, unsigned K)
{
    return r->K == K && r->n_rot <= K && r->n_rot % 2 == 0;
}

int kn_rope_put(struct kn_stream *st, const struct kn_kv *kv, unsigned layer,
                const struct kn_rotation *to, const int32_t *pos, size_t m, float *k, size_t ldk,
                const float *v, size_t ldv)
{
    const struct kn_row_ops *row = stream_ops(st)->row;
    const size_t GK = (size_t)kv->G * kv->K;
    if (!to->rope) return kn_kv_put(st, kv, layer, pos, m, k, ldk, v, ldv);
    if (ldk < GK || ldv < GK || !rotates(to->rope, kv->K)) return -EINVAL;
    if (m == 0) return 0;
    if (row->rope_put) return row->rope_put(st, kv, layer, to, pos, m, k, ldk, v, ldv);
    int r = row->rope(st, to->rope, k, ldk, m, kv->G, to->pos);
    return r < 0 ? r : row->kv_put(st, kv, layer, pos, m, k, ldk, v, ldv);
}

static bool stored_fits(const struct kn_stored *s, const struct kn_kv *kv,
                        const struct kn_rope *rope)
{
    const size_t cap = kv->n_pages * P;
    if ((unsigned)s->t >= DTYPES || s->n == 0 || s->pos0 < 0) return false;
    if (s->n > cap || (size_t)s->pos0 > cap - s->n) return false;
    return s->rot0 < 0 || (rope && (size_t)s->rot0 + s->n <= rope->pos_cap);
}

int kn_kv_load(struct kn_stream *st, const struct kn_kv *kv, unsigned layer,
               const struct kn_rope *rope, const struct kn_stored *piece, size_t n_pieces)
{
    if (kv->each || n_pieces > KN_PIECES) return -EINVAL;
    if (rope && !rotates(rope, kv->K)) return -EINVAL;
    for (size_t i = 0; i < n_pieces; i++)
        if (!stored_fits(&piece[i], kv, rope)) return -EINVAL;
    return n_pieces ? stream_ops(st)->row->kv_load(st, kv, layer, rope, piece, n_pieces) : 0;
}

int kn_encode_rows(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t n, size_t K,
                   enum kn_dtype t, void *out, int *bad)
{
    if (ldx < n || K == 0 || n % K || (unsigned)t >= DTYPES) return -EINVAL;
    return m && n ? stream_ops(st)->row->encode_rows(st, x, ldx, m, n, K, t, out, bad) : 0;
}

static bool attn_fits(const struct kn_attn_args *a)
{
    const struct kn_kv *kv = a->kv;
    if (kv->G == 0 || kv->K == 0 || a->H == 0 || a->H % kv->G || !(a->cap >= 0)) return false;
    if (a->to.rope && !rotates(a->to.rope, kv->K)) return false;
    return a->ldq >= (size_t)a->H * kv->K;
}

int kn_attn(struct kn_stream *st, const struct kn_attn_args *a)
{
    if (!attn_fits(a) || a->ldo < (size_t)a->H * a->kv->K) return -EINVAL;
    return a->m ? stream_ops(st)->row->attn(st, a) : 0;
}

int kn_attn_mass(struct kn_stream *st, const struct kn_attn_args *a, float *mass, size_t key0,
                 size_t n_keys)
{
    if (!attn_fits(a) || a->kv->each || a->to.rope || !a->lse || key0 % P) return -EINVAL;
    return a->m && n_keys ? stream_ops(st)->row->attn_mass(st, a, mass, key0, n_keys) : 0;
}

int kn_deviation(struct kn_stream *st, const float *a, size_t lda, const int32_t *pos, size_t m,
                 const struct kn_stored *piece, size_t n_pieces, unsigned G, unsigned K, float *ret)
{
    if (K == 0 || lda < (size_t)G * K || n_pieces > KN_PIECES) return -EINVAL;
    for (size_t i = 0; i < n_pieces; i++)
        if ((unsigned)piece[i].t >= DTYPES) return -EINVAL;
    if (m == 0 || n_pieces == 0) return 0;
    return stream_ops(st)->row->deviation(st, a, lda, pos, m, piece, n_pieces, G, K, ret);
}

int kn_edit(struct kn_stream *st, float *x, size_t ldx, size_t m, size_t n,
            const struct kn_edit *list, size_t stride, const uint32_t *n_edits)
{
    if (ldx < n) return -EINVAL;
    return m ? stream_ops(st)->row->edit(st, x, ldx, m, n, list, stride, n_edits) : 0;
}

int kn_draw(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t n,
            const struct kn_draw *how, int32_t *ret)
{
    if (n == 0 || n > DRAW_ROWS_MAX || ldx < n) return -EINVAL;
    return m ? stream_ops(st)->row->draw(st, x, ldx, m, n, how, ret) : 0;
}

int kn_top(struct kn_stream *st, const float *score, const int32_t *idx, size_t n, size_t k,
           int32_t *ret)
{
    if (k > n || n > INT32_MAX) return -EINVAL;
    return k ? stream_ops(st)->row->top(st, score, idx, n, k, ret) : 0;
}

/* The first expert stands for all. */
static bool moe_fits(const struct kn_moe *e, size_t m)
{
    const bool shared = e->shared_down, weighed = shared && !e->scales_input;
    if (e->n == 0 || e->n > KN_EXPERTS_MAX || e->used == 0 || e->used > e->n) return false;
    if (m > UINT32_MAX / e->used || shared != (e->shared_gate_up != NULL)) return false;
    const struct kn_mat_head *router = mat_head(e->router), *up = mat_head(e->gate_up[0]),
                             *down = mat_head(e->down[0]);
    if (router->n != e->n + (size_t)weighed || up->k != router->k) return false;
    if (up->n != 2 * down->k || down->n != router->k) return false;
    if (!shared) return true;
    up = mat_head(e->shared_gate_up), down = mat_head(e->shared_down);
    return !e->router_bias && !e->gate_up_bias && !e->down_bias && up->n == 2 * down->k &&
           up->k == router->k && down->n == router->k;
}

int kn_moe(struct kn_stream *st, const struct kn_moe *e, const float *h, size_t m, float *x,
           bool accumulate)
{
    if (!moe_fits(e, m)) return -EINVAL;
    return m ? stream_ops(st)->row->moe(st, e, h, m, x, accumulate) : 0;
}
