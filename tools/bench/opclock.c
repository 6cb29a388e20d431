/* The tables of a device under the clock.
 *
 * Operations have no context to pass a clock in, so the clock is found from the table itself: it
 * contains the struct kn_row_ops and kn_run_ops that the device has between begin and end.
 *
 * Rejected: hooks in the backend (a branch in every operation of the product, for a bench), and
 * perf (it knows functions, not what a thread waits for, nor whose weights a product reads). */
#include "tools/bench/opclock.h"

#include "base/assert.h"
#include "base/mem.h"
#include "kernels/cpu/cpu.h"

#include <string.h>

/* Written by its thread, and by the caller's while it has nothing to do. */
struct thread {
    _Alignas(64) uint64_t ns[OPCLOCK_N];
    double flops[OPCLOCK_N];
    uint64_t since;
    enum opclock_kind kind;
};

struct weight {
    const struct kn_mat *w; /* NULL: free */
    enum opclock_kind kind;
};

struct opclock {
    struct kn_row_ops row;
    struct kn_run_ops run;
    struct kn_ops own; /* the device's tables */
    struct kn_dev *dev;
    opclock_now now;
    uint64_t begin;
    struct thread *thread; /* [n_threads] */
    unsigned n_threads;
    struct weight *weight; /* [n_slots] by hash of the address, a power of two */
    size_t n_slots, n_weights;
};

const char *opclock_name(enum opclock_kind kind)
{
#define NAME(kind, name) [OPCLOCK_##kind] = (name),
    static const char *const names[OPCLOCK_N] = {OPCLOCK_KINDS(NAME)};
#undef NAME
    return names[kind];
}

/* ---- threads ---- */

static struct opclock *of_dev(struct kn_dev *dev)
{
    const struct kn_row_ops *row = ((struct kn_dev_head *)dev)->ops.row;
    return (struct opclock *)((char *)(uintptr_t)row - offsetof(struct opclock, row));
}

/* What the thread does from now on; what it did. */
static enum opclock_kind turn(struct opclock *o, struct thread *t, enum opclock_kind kind)
{
    const enum opclock_kind before = t->kind;
    const uint64_t now = o->now();
    t->ns[before] += now - t->since;
    t->since = now;
    t->kind = kind;
    return before;
}

/* The same of all threads, as a run or a spread operation begins or ends: the others have nothing
 * to do then. */
static enum opclock_kind turn_all(struct opclock *o, enum opclock_kind own,
                                  enum opclock_kind others)
{
    const enum opclock_kind before = turn(o, o->thread, own);
    const uint64_t now = o->thread->since;
    for (struct thread *t = o->thread + 1; t < o->thread + o->n_threads; t++) {
        t->ns[t->kind] += now - t->since;
        t->since = now;
        t->kind = others;
    }
    return before;
}

/* ---- operations ---- */

static size_t slot_of(const struct opclock *o, const struct kn_mat *w)
{
    size_t i = (size_t)((uint64_t)(uintptr_t)w * 0x9e3779b97f4a7c15u >> 32) & (o->n_slots - 1);
    while (o->weight[i].w && o->weight[i].w != w)
        i = (i + 1) & (o->n_slots - 1);
    return i;
}

static enum opclock_kind product_kind(struct opclock *o, const struct kn_mat *w)
{
    const struct weight *found = &o->weight[slot_of(o, w)];
    return found->w ? found->kind : OPCLOCK_PRODUCT;
}

static double product_flops(const struct kn_mat *w, size_t m)
{
    return w ? 2.0 * (double)m * (double)w->n * (double)w->k : 0;
}

static double moe_flops(const struct kn_moe *e, size_t m)
{
    return product_flops(e->router, m) + product_flops(e->gate_up[0], m * e->used) +
           product_flops(e->down[0], m * e->used) + product_flops(e->shared_gate_up, m) +
           product_flops(e->shared_down, m);
}

/* Of the keys that rows see: scores, and values by probability. */
static double attn_flops(const struct kn_attn_args *a)
{
    double keys = 0;
    for (size_t i = 0; i < a->m; i++) {
        const int32_t end = a->pos[i] + 1;
        int32_t first = a->from ? a->from[i] : 0;
        if (a->window && end > (int32_t)a->window) first = end - (int32_t)a->window;
        if (a->chunk) first = a->pos[i] / (int32_t)a->chunk * (int32_t)a->chunk;
        keys += end - first;
    }
    return 4.0 * a->H * a->kv->K * keys;
}

/* clang-format off */
/* An operation, its kind, its floating-point operations, its parameters behind the stream, and what
 * they are called. */
#define PASS(...) __VA_ARGS__
#define OPS(X) \
    X(gemm, product_kind(o, a->w), product_flops(a->w, a->m), \
      PASS(const struct kn_gemm_args *a), PASS(a)) \
    X(gated, OPCLOCK_GATED, product_flops(up->w, up->m) + product_flops(down->w, down->m), \
      PASS(const struct kn_gemm_args *up, enum kn_act act, const struct kn_gemm_args *down), \
      PASS(up, act, down)) \
    X(moe, OPCLOCK_EXPERTS, moe_flops(e, m), \
      PASS(const struct kn_moe *e, const float *h, size_t m, float *x, bool add), \
      PASS(e, h, m, x, add)) \
    X(attn, OPCLOCK_ATTENTION, attn_flops(a), \
      PASS(const struct kn_attn_args *a), PASS(a)) \
    X(attn_mass, OPCLOCK_MASS, 0, \
      PASS(const struct kn_attn_args *a, float *mass, size_t key0, size_t n), \
      PASS(a, mass, key0, n)) \
    X(rmsnorm, OPCLOCK_NORMS, 0, \
      PASS(const float *x, size_t ldx, size_t m, size_t D, const float *w, float eps, \
           float *out, size_t ldo), PASS(x, ldx, m, D, w, eps, out, ldo)) \
    X(rmsnorm_add, OPCLOCK_NORMS, 0, \
      PASS(const float *x, size_t ldx, size_t m, size_t D, const float *w, float eps, \
           float *out, size_t ldo), PASS(x, ldx, m, D, w, eps, out, ldo)) \
    X(rmsnorm_heads, OPCLOCK_NORMS, 0, \
      PASS(float *x, size_t ldx, size_t m, size_t heads, size_t K, const float *w, \
           float eps), PASS(x, ldx, m, heads, K, w, eps)) \
    X(layernorm, OPCLOCK_NORMS, 0, \
      PASS(const float *x, size_t ldx, size_t m, size_t D, const float *w, \
           const float *bias, float eps, float *out, size_t ldo), \
      PASS(x, ldx, m, D, w, bias, eps, out, ldo)) \
    X(rope, OPCLOCK_ROPE, 0, \
      PASS(const struct kn_rope *r, float *x, size_t ldx, size_t m, size_t heads, \
           const int32_t *pos), PASS(r, x, ldx, m, heads, pos)) \
    X(glu, OPCLOCK_ACTIVATION, 0, \
      PASS(enum kn_act act, const float *gate_up, size_t ldg, size_t m, size_t F, \
           float *out, size_t ldo), PASS(act, gate_up, ldg, m, F, out, ldo)) \
    X(gelu, OPCLOCK_ACTIVATION, 0, \
      PASS(float *x, size_t ldx, size_t m, size_t n), PASS(x, ldx, m, n)) \
    X(softcap, OPCLOCK_ACTIVATION, 0, \
      PASS(float *x, size_t ldx, size_t m, size_t n, float cap), PASS(x, ldx, m, n, cap)) \
    X(kv_put, OPCLOCK_KV_PUT, 0, \
      PASS(const struct kn_kv *kv, unsigned layer, const int32_t *pos, size_t m, \
           const float *k, size_t ldk, const float *v, size_t ldv), \
      PASS(kv, layer, pos, m, k, ldk, v, ldv)) \
    X(kv_load, OPCLOCK_KV_LOAD, 0, \
      PASS(const struct kn_kv *kv, unsigned layer, const struct kn_rope *rope, \
           const struct kn_stored *piece, size_t n), PASS(kv, layer, rope, piece, n)) \
    X(deviation, OPCLOCK_SELECTION, 0, \
      PASS(const float *a, size_t lda, const int32_t *pos, size_t m, \
           const struct kn_stored *piece, size_t n, unsigned G, unsigned K, float *to), \
      PASS(a, lda, pos, m, piece, n, G, K, to)) \
    X(top, OPCLOCK_SELECTION, 0, \
      PASS(const float *score, const int32_t *idx, size_t n, size_t k, int32_t *to), \
      PASS(score, idx, n, k, to)) \
    X(draw, OPCLOCK_SELECTION, 0, \
      PASS(const float *x, size_t ldx, size_t m, size_t n, const struct kn_draw *how, \
           int32_t *to), PASS(x, ldx, m, n, how, to)) \
    X(edit, OPCLOCK_SELECTION, 0, \
      PASS(float *x, size_t ldx, size_t m, size_t n, const struct kn_edit *list, \
           size_t stride, const uint32_t *n_edits), PASS(x, ldx, m, n, list, stride, n_edits)) \
    X(gather, OPCLOCK_COPIES, 0, \
      PASS(const float *x, const int32_t *idx, size_t m, size_t n, float *out), \
      PASS(x, idx, m, n, out)) \
    X(copy, OPCLOCK_COPIES, 0, \
      PASS(void *dst, const void *src, size_t bytes), PASS(dst, src, bytes)) \
    X(encode_rows, OPCLOCK_COPIES, 0, \
      PASS(const float *x, size_t ldx, size_t m, size_t n, size_t K, enum kn_dtype t, \
           void *out, int *bad), PASS(x, ldx, m, n, K, t, out, bad))
/* clang-format on */

#define CLOCKED(op, its_kind, its_flops, parameters, names)                                        \
    static int clocked_##op(struct kn_stream *st, parameters)                                      \
    {                                                                                              \
        struct opclock *o = of_dev(st->dev);                                                       \
        struct thread *own = &o->thread[st->index];                                                \
        const enum opclock_kind kind = (its_kind), before = turn(o, own, kind);                    \
        const int status = o->own.row->op(st, names);                                              \
        if (status == 0) own->flops[kind] += (its_flops); /* else others did, or nobody */         \
        (void)turn(o, own, before);                                                                \
        return status;                                                                             \
    }
OPS(CLOCKED)

/* ---- runs ---- */

struct run {
    struct opclock *o;
    kn_rows_fn fn;
    void *arg;
    enum opclock_kind before; /* what the caller did */
};

static int clocked_block(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct run *run = arg;
    struct thread *own = &run->o->thread[st->index];
    const enum opclock_kind before = turn(run->o, own, OPCLOCK_REST);
    const int r = run->fn(st, run->arg, row0, n);
    (void)turn(run->o, own, before);
    return r;
}

static struct run run_begin(struct opclock *o, enum opclock_kind wait, kn_rows_fn fn, void *arg)
{
    return (struct run){o, fn, arg, turn_all(o, wait, wait)};
}

static int run_end(const struct run *run, int status)
{
    (void)turn_all(run->o, run->before, OPCLOCK_IDLE);
    return status;
}

static int clocked_rows(struct kn_dev *d, size_t n, const atomic_bool *cancel, kn_rows_fn fn,
                        void *arg)
{
    struct opclock *o = of_dev(d);
    struct run run = run_begin(o, OPCLOCK_WAIT_EQUAL, fn, arg);
    return run_end(&run, o->own.run->rows(d, n, cancel, clocked_block, &run));
}

static int clocked_uneven(struct kn_dev *d, size_t n, const atomic_bool *cancel, kn_rows_fn fn,
                          void *arg)
{
    struct opclock *o = of_dev(d);
    struct run run = run_begin(o, OPCLOCK_WAIT_UNEVEN, fn, arg);
    return run_end(&run, o->own.run->rows_uneven(d, n, cancel, clocked_block, &run));
}

static int clocked_wide(struct kn_dev *d, size_t n, const atomic_bool *cancel, kn_rows_fn fn,
                        void *arg)
{
    struct opclock *o = of_dev(d);
    struct run run = run_begin(o, OPCLOCK_WAIT_SINGLE, fn, arg);
    return run_end(&run, o->own.run->wide(d, n, cancel, clocked_block, &run));
}

static int clocked_replay(struct kn_dev *d, uint64_t key, size_t n, const atomic_bool *cancel,
                          kn_rows_fn fn, void *arg)
{
    struct opclock *o = of_dev(d);
    struct run run = run_begin(o, OPCLOCK_WAIT_SINGLE, fn, arg);
    return run_end(&run, o->own.run->replay(d, key, n, cancel, clocked_block, &run));
}

/* Items are of the kind of the operation that is spread. */
struct items {
    struct opclock *o;
    enum opclock_kind kind;
    pool_fn fn;
    void *arg;
};

static int clocked_item(struct kn_stream *st, void *arg, size_t item)
{
    const struct items *items = arg;
    struct thread *own = &items->o->thread[st->index];
    const enum opclock_kind before = turn(items->o, own, items->kind);
    const int r = items->fn(st, items->arg, item);
    (void)turn(items->o, own, before);
    return r;
}

static int clocked_par(struct kn_stream *st, size_t n_items, pool_fn fn, void *arg)
{
    struct opclock *o = of_dev(st->dev);
    struct items items = {o, turn_all(o, OPCLOCK_WAIT_SPREAD, OPCLOCK_WAIT_SPREAD), fn, arg};
    const int r = o->own.run->par(st, n_items, clocked_item, &items);
    (void)turn_all(o, items.kind, OPCLOCK_WAIT_SINGLE);
    return r;
}

static const struct kn_run_ops clocked_runs = {.rows = clocked_rows,
                                               .rows_uneven = clocked_uneven,
                                               .wide = clocked_wide,
                                               .replay = clocked_replay,
                                               .par = clocked_par};

/* ---- life ---- */

int opclock_create(struct kn_dev *dev, size_t n_weights_max, opclock_now now, struct opclock **ret)
{
    if (!kn_info(dev)->is_host) return -ENOTSUP;
    struct opclock *o = mem_zalloc(sizeof *o);
    if (!o) return -ENOMEM;
    o->dev = dev;
    o->now = now;
    o->own = ((struct kn_dev_head *)dev)->ops;
    o->row = *o->own.row;
    o->run = clocked_runs;
#define PUT(op, its_kind, its_flops, parameters, names)                                            \
    if (o->row.op) o->row.op = clocked_##op;
    OPS(PUT)
#undef PUT
    o->n_threads = kn_info(dev)->n_threads;
    o->n_slots = 16;
    while (o->n_slots < 2 * n_weights_max)
        o->n_slots *= 2;
    o->thread = mem_aligned(_Alignof(struct thread), o->n_threads * sizeof *o->thread);
    o->weight = mem_zalloc(o->n_slots * sizeof *o->weight);
    if (!o->thread || !o->weight) {
        opclock_destroy(o);
        return -ENOMEM;
    }
    *ret = o;
    return 0;
}

void opclock_destroy(struct opclock *o)
{
    if (!o) return;
    mem_free(o->thread);
    mem_free(o->weight);
    mem_free(o);
}

void opclock_weight(struct opclock *o, const char *name, const struct kn_mat *w)
{
    unsigned kind = 0;
    while (kind < OPCLOCK_PRODUCT && strcmp(opclock_name(kind), name) != 0)
        kind++;
    struct weight *at = &o->weight[slot_of(o, w)];
    if (!at->w) o->n_weights++;
    ASSERT(o->n_weights < o->n_slots);
    *at = (struct weight){w, (enum opclock_kind)kind};
}

void opclock_begin(struct opclock *o)
{
    struct kn_ops *ops = &((struct kn_dev_head *)o->dev)->ops;
    ASSERT(ops->row == o->own.row);
    ASSERT(ops->run == o->own.run);
    memset(o->thread, 0, o->n_threads * sizeof *o->thread);
    o->begin = o->now();
    for (unsigned i = 0; i < o->n_threads; i++) {
        o->thread[i].since = o->begin;
        o->thread[i].kind = i == 0 ? OPCLOCK_ALONE : OPCLOCK_IDLE;
    }
    ops->row = &o->row;
    ops->run = &o->run;
}

void opclock_end(struct opclock *o, struct opclock_account *ret)
{
    struct kn_ops *ops = &((struct kn_dev_head *)o->dev)->ops;
    const uint64_t now = o->now();
    *ops = o->own;
    *ret = (struct opclock_account){.n_threads = o->n_threads, .wall_ns = now - o->begin};
    for (unsigned i = 0; i < o->n_threads; i++) {
        struct thread *t = &o->thread[i];
        ASSERT(t->kind == (i == 0 ? OPCLOCK_ALONE : OPCLOCK_IDLE));
        t->ns[t->kind] += now - t->since;
        for (unsigned k = 0; k < OPCLOCK_N; k++) {
            ret->ns[k] += t->ns[k];
            ret->flops[k] += t->flops[k];
        }
    }
}
