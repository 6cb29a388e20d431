/* oneDNN 2.x as a GEMM, loaded when it is there. Never linked, and no header needed.
 *
 * The few functions and constants of its C API used here are declared below; its descriptors are
 * plain structs that only the library looks into, kept in blocks larger than theirs. Weights are
 * reordered once into the layout the library likes best for blocks of NOMINAL_ROWS rows. A
 * primitive is made for each (rows, strides, accumulate) met and kept; scratch memory is ours,
 * because the library's own is tied to the thread that made the primitive. Its threads are
 * OpenMP's, whose count is a setting of the calling thread: one.
 * Thread: any; primitives are shared under the weight's mutex. */
#include "kernels/cpu/cpu.h"
#include "base/mem.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum {
    DN_BF16 = 2,
    DN_F32 = 3,
    DN_TAG_ANY = 1,
    DN_CPU = 1,
    DN_QUERY_IMPL_NAME = 8,
    DN_QUERY_WEIGHTS = 131,
    DN_QUERY_SCRATCHPAD = 136,
    DN_SCRATCHPAD_USER = 1,
    DN_ARG_SRC = 1,
    DN_ARG_DST = 17,
    DN_ARG_WEIGHTS = 33,
    DN_ARG_SCRATCHPAD = 80,
    NOMINAL_ROWS = 168, /* the block of kn_rows() */
    PRIMITIVES = 24,
};
struct dn_desc {
    _Alignas(64) char bytes[4096]; /* memory descriptor 696 bytes, matmul descriptor 3 KiB in 2.6 */
};
struct dn_arg {
    int arg;
    void *memory;
};

/* Every function of the library used here: result, name, parameters. */
#define DN_TABLE(X)                                                                                \
    X(engine_create, (void **engine, int kind, size_t index))                                      \
    X(stream_create, (void **stream, void *engine, unsigned flags))                                \
    X(stream_destroy, (void *stream))                                                              \
    X(memory_desc_init_by_strides,                                                                 \
      (struct dn_desc * md, int nd, const int64_t *dims, int type, const int64_t *strides))        \
    X(memory_desc_init_by_tag,                                                                     \
      (struct dn_desc * md, int nd, const int64_t *dims, int type, int tag))                       \
    X(memory_create, (void **mem, const void *md, void *engine, void *handle))                     \
    X(memory_destroy, (void *mem))                                                                 \
    X(matmul_desc_init, (struct dn_desc * d, const void *src, const void *weights,                 \
                         const void *bias, const void *dst))                                       \
    X(primitive_attr_create, (void **attr))                                                        \
    X(primitive_attr_destroy, (void *attr))                                                        \
    X(primitive_attr_set_scratchpad_mode, (void *attr, int mode))                                  \
    X(primitive_attr_set_post_ops, (void *attr, const void *ops))                                  \
    X(post_ops_create, (void **ops))                                                               \
    X(post_ops_destroy, (void *ops))                                                               \
    X(post_ops_append_sum, (void *ops, float scale))                                               \
    X(primitive_desc_create,                                                                       \
      (void **pd, const void *op, const void *attr, void *engine, const void *hint))               \
    X(primitive_desc_query, (const void *pd, int what, int index, void *ret))                      \
    X(primitive_desc_destroy, (void *pd))                                                          \
    X(reorder_primitive_desc_create, (void **pd, const void *src, void *src_engine,                \
                                      const void *dst, void *dst_engine, const void *attr))        \
    X(primitive_create, (void **prim, const void *pd))                                             \
    X(primitive_destroy, (void *prim))                                                             \
    X(primitive_execute, (void *prim, void *stream, int n, const struct dn_arg *args))

static struct {
    pthread_once_t once;
    bool loaded;
    void *engine;
    void (*omp_threads)(int);
    const void *(*primitive_desc_query_md)(const void *pd, int what, int index);
    size_t (*memory_desc_get_size)(const void *md);
#define X(name, args) int(*name) args;
    DN_TABLE(X)
#undef X
} dn = {.once = PTHREAD_ONCE_INIT};
static _Thread_local bool omp_is_set;

static void dn_open(void)
{
    void *so = dlopen("libdnnl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!so) return;
    bool all = true;
#define X(name, args) all = (dn.name = (int(*) args)dlsym(so, "dnnl_" #name)) && all;
    DN_TABLE(X)
#undef X
    dn.primitive_desc_query_md =
        (const void *(*)(const void *, int, int))dlsym(so, "dnnl_primitive_desc_query_md");
    dn.memory_desc_get_size = (size_t(*)(const void *))dlsym(so, "dnnl_memory_desc_get_size");
    dn.omp_threads = (void (*)(int))dlsym(so, "omp_set_num_threads"); /* of its own dependencies */
    dn.loaded = all && dn.primitive_desc_query_md && dn.memory_desc_get_size &&
                dn.engine_create(&dn.engine, DN_CPU, 0) == 0;
}

bool kn_onednn_load(const struct kn_dev *d, bool bf16)
{
    if (d->isa < KN_ISA_AVX2 || (bf16 && !d->has_bf16)) return false;
    (void)pthread_once(&dn.once, dn_open);
    return dn.loaded;
}

static void one_thread(void)
{
    if (!omp_is_set && dn.omp_threads) dn.omp_threads(1);
    omp_is_set = true;
}

struct dn_prim {
    size_t m, lda, ldc;
    bool sum;
    unsigned users;
    void *pd, *prim;
    struct dn_desc src, dst;
};
struct dn_weight {
    size_t n, k;
    int type; /* DN_F32 or DN_BF16: weights and activations */
    struct dn_desc md;
    void *data, *mem;
    pthread_mutex_t mutex;
    struct dn_prim prims[PRIMITIVES]; /* under mutex */
    unsigned n_prims, victim;
};

static void prim_fini(struct dn_prim *p)
{
    if (p->prim) dn.primitive_destroy(p->prim);
    if (p->pd) dn.primitive_desc_destroy(p->pd);
    p->prim = p->pd = NULL;
}

/* pd for m rows; weights in layout `md`. */
static int prim_init(const struct dn_weight *w, const void *md, struct dn_prim *p)
{
    int64_t src[2] = {(int64_t)p->m, (int64_t)w->k}, dst[2] = {(int64_t)p->m, (int64_t)w->n};
    int64_t src_stride[2] = {(int64_t)p->lda, 1}, dst_stride[2] = {(int64_t)p->ldc, 1};
    struct dn_desc *op = mem_aligned(64, sizeof *op);
    void *attr = NULL, *ops = NULL;
    int bad = !op || dn.memory_desc_init_by_strides(&p->src, 2, src, w->type, src_stride) ||
              dn.memory_desc_init_by_strides(&p->dst, 2, dst, DN_F32, dst_stride) ||
              dn.matmul_desc_init(op, &p->src, md, NULL, &p->dst) ||
              dn.primitive_attr_create(&attr) ||
              dn.primitive_attr_set_scratchpad_mode(attr, DN_SCRATCHPAD_USER);
    if (!bad && p->sum)
        bad = dn.post_ops_create(&ops) || dn.post_ops_append_sum(ops, 1.0f) ||
              dn.primitive_attr_set_post_ops(attr, ops);
    bad = bad || dn.primitive_desc_create(&p->pd, op, attr, dn.engine, NULL);
    /* Some row counts have no fast code for this layout; the library's plain loop is no use. */
    const char *name = NULL;
    bad = bad || dn.primitive_desc_query(p->pd, DN_QUERY_IMPL_NAME, 0, (void *)&name) || !name ||
          strncmp(name, "ref", 3) == 0 || dn.primitive_create(&p->prim, p->pd);
    if (ops) dn.post_ops_destroy(ops);
    if (attr) dn.primitive_attr_destroy(attr);
    mem_free(op);
    if (bad) prim_fini(p);
    return bad ? -ENOTSUP : 0;
}

/* rows [n, k] f32 -> w->data in layout w->md. */
static int weight_reorder(struct dn_weight *w, const float *rows)
{
    int64_t dims[2] = {(int64_t)w->k, (int64_t)w->n}, stride[2] = {1, (int64_t)w->k};
    struct dn_desc *md = mem_aligned(64, sizeof *md);
    void *from = NULL, *pd = NULL, *prim = NULL, *stream = NULL;
    int bad = !md || dn.memory_desc_init_by_strides(md, 2, dims, DN_F32, stride) ||
              dn.memory_create(&from, md, dn.engine, (void *)rows) ||
              dn.memory_create(&w->mem, &w->md, dn.engine, w->data) ||
              dn.reorder_primitive_desc_create(&pd, md, dn.engine, &w->md, dn.engine, NULL) ||
              dn.primitive_create(&prim, pd) || dn.stream_create(&stream, dn.engine, 1);
    struct dn_arg args[2] = {{DN_ARG_SRC, from}, {DN_ARG_DST, w->mem}};
    bad = bad || dn.primitive_execute(prim, stream, 2, args);
    if (stream) dn.stream_destroy(stream);
    if (prim) dn.primitive_destroy(prim);
    if (pd) dn.primitive_desc_destroy(pd);
    if (from) dn.memory_destroy(from);
    mem_free(md);
    return bad ? -ENOTSUP : 0;
}

int kn_onednn_pack(const float *rows, size_t n, size_t k, bool bf16, void **ret_lib)
{
    int64_t dims[2] = {(int64_t)k, (int64_t)n};
    struct dn_weight *w = mem_aligned(64, sizeof *w);
    if (!w) return -ENOMEM;
    memset(w, 0, sizeof *w);
    w->n = n, w->k = k, w->type = bf16 ? DN_BF16 : DN_F32;
    pthread_mutex_init(&w->mutex, NULL);
    one_thread();
    struct dn_prim *p = &w->prims[0];
    *p = (struct dn_prim){.m = NOMINAL_ROWS, .lda = k, .ldc = n};
    int r = dn.memory_desc_init_by_tag(&w->md, 2, dims, w->type, DN_TAG_ANY) ? -ENOTSUP : 0;
    if (r == 0) r = prim_init(w, &w->md, p);
    if (r == 0) {
        /* A descriptor's tail beyond the library's struct is never read: copy what is surely there.
         */
        memcpy(&w->md, dn.primitive_desc_query_md(p->pd, DN_QUERY_WEIGHTS, 0), 696);
        w->n_prims = 1;
        p->users = 1; /* never evicted: odd row counts are padded to it */
        w->data = mem_aligned(64, dn.memory_desc_get_size(&w->md));
        r = w->data ? weight_reorder(w, rows) : -ENOMEM;
    }
    if (r < 0) {
        kn_onednn_free(w);
        return r;
    }
    *ret_lib = w;
    return 0;
}

void kn_onednn_free(void *lib)
{
    struct dn_weight *w = lib;
    if (!w) return;
    for (unsigned i = 0; i < w->n_prims; i++)
        prim_fini(&w->prims[i]);
    if (w->mem) dn.memory_destroy(w->mem);
    mem_free(w->data);
    pthread_mutex_destroy(&w->mutex);
    mem_free(w);
}

/* Find or make the primitive of a shape; -EAGAIN when all places are in use. */
static int prim_take(struct dn_weight *w, const struct dn_prim *want, struct dn_prim **ret_prim)
{
    int r = -EAGAIN;
    struct dn_prim *p = NULL;
    pthread_mutex_lock(&w->mutex);
    for (unsigned i = 0; i < w->n_prims && !p; i++) {
        struct dn_prim *q = &w->prims[i];
        if (q->m == want->m && q->lda == want->lda && q->ldc == want->ldc && q->sum == want->sum)
            p = q;
    }
    if (p) {
        r = p->prim ? 0 : -ENOTSUP; /* known to have no fast code */
    } else {
        if (w->n_prims < PRIMITIVES) p = &w->prims[w->n_prims];
        for (unsigned i = 0; i < PRIMITIVES && !p; i++, w->victim = (w->victim + 1) % PRIMITIVES)
            if (!w->prims[w->victim].users) p = &w->prims[w->victim];
        if (p) {
            prim_fini(p);
            *p = *want;
            r = prim_init(w, &w->md, p);
            if (p == &w->prims[w->n_prims]) w->n_prims++;
        }
    }
    if (r == 0) {
        p->users++;
        *ret_prim = p;
    }
    pthread_mutex_unlock(&w->mutex);
    return r;
}

static int prim_run(struct dn_weight *w, struct dn_prim *p, void *src, float *dst, void *pad)
{
    void *ms = NULL, *md = NULL, *mp = NULL, *stream = NULL;
    const void *pad_md = dn.primitive_desc_query_md(p->pd, DN_QUERY_SCRATCHPAD, 0);
    int bad = dn.memory_create(&ms, &p->src, dn.engine, src) ||
              dn.memory_create(&md, &p->dst, dn.engine, dst) ||
              dn.memory_create(&mp, pad_md, dn.engine, pad) ||
              dn.stream_create(&stream, dn.engine, 1);
    struct dn_arg args[4] = {
        {DN_ARG_SRC, ms}, {DN_ARG_WEIGHTS, w->mem}, {DN_ARG_DST, md}, {DN_ARG_SCRATCHPAD, mp}};
    bad = bad || dn.primitive_execute(p->prim, stream, 4, args);
    if (stream) dn.stream_destroy(stream);
    if (mp) dn.memory_destroy(mp);
    if (md) dn.memory_destroy(md);
    if (ms) dn.memory_destroy(ms);
    return bad ? -EIO : 0;
}

/* Rows are handed over dense: with strides of its caller's larger matrix the library falls back to
 * its reference code, a thousand times slower (measured, 2.6.3). */
/* Rows in the weights' own type, [n, k] without gaps. */
static void copy_src(const struct kn_stream *st, const struct dn_weight *w, const float *a,
                     size_t lda, size_t n, void *out)
{
    for (size_t i = 0; i < n; i++) {
        if (w->type == DN_BF16)
            st->dev->simd->encode_bf16(a + i * lda, w->k, (uint16_t *)out + i * w->k);
        else
            memcpy((float *)out + i * w->k, a + i * lda, w->k * sizeof(float));
    }
}

static size_t pad_bytes(const struct dn_prim *p)
{
    const void *md = dn.primitive_desc_query_md(p->pd, DN_QUERY_SCRATCHPAD, 0);
    return (dn.memory_desc_get_size(md) + 63) / 64 * 64;
}

/* Pieces of NOMINAL_ROWS rows, the last one filled up with zeros. C already holds its start. */
static int gemm_padded(struct kn_stream *st, struct dn_weight *w, const struct kn_gemm_job *j,
                       bool add)
{
    struct dn_prim *p = &w->prims[0];
    size_t pad = pad_bytes(p), src = NOMINAL_ROWS * w->k * sizeof(float);
    char *scratch =
        kn_cpu_scratch(st, KN_SLOT_LIB, pad + src + NOMINAL_ROWS * w->n * sizeof(float));
    if (!scratch) return -ENOMEM;
    float *out = (float *)(void *)(scratch + pad + src);
    for (size_t row = 0; row < j->m; row += NOMINAL_ROWS) {
        size_t n = j->m - row < NOMINAL_ROWS ? j->m - row : NOMINAL_ROWS;
        memset(scratch + pad, 0, src);
        copy_src(st, w, j->a + row * j->lda, j->lda, n, scratch + pad);
        int r = prim_run(w, p, scratch + pad, out, scratch);
        if (r < 0) return r;
        for (size_t i = 0; i < n; i++)
            for (size_t c = 0; c < w->n; c++) {
                float *dst = j->c + (row + i) * j->ldc + c;
                *dst = out[i * w->n + c] + (add ? *dst : 0.0f);
            }
    }
    return 0;
}

int kn_onednn_gemm(struct kn_stream *st, void *lib, const struct kn_gemm_job *j)
{
    struct dn_weight *w = lib;
    bool bf16 = w->type == DN_BF16;
    struct dn_prim want = {
        .m = j->m, .lda = bf16 ? j->k : j->lda, .ldc = j->ldc, .sum = j->accumulate || j->bias};
    struct dn_prim *p = NULL;
    one_thread();
    (void)kn_gemm_start_c(j);
    int r = prim_take(w, &want, &p);
    if (r < 0) return gemm_padded(st, w, j, want.sum);
    size_t pad = pad_bytes(p), src = bf16 ? j->m * j->k * 2 : 0;
    char *scratch = kn_cpu_scratch(st, KN_SLOT_LIB, pad + src + 64);
    r = scratch ? 0 : -ENOMEM;
    if (r == 0 && bf16) copy_src(st, w, j->a, j->lda, j->m, scratch + pad);
    if (r == 0) r = prim_run(w, p, bf16 ? (void *)(scratch + pad) : (void *)j->a, j->c, scratch);
    pthread_mutex_lock(&w->mutex);
    p->users--;
    pthread_mutex_unlock(&w->mutex);
    return r;
}
