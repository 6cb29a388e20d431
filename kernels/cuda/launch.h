/* launch: what dev.c (C) asks of the CUDA sources: a device with one stream, and kernels on it.
 *
 * All launches are queued on the device's stream and return at once: 0, or -EIO when the device is
 * lost (for ever), -EINVAL for what no kernel can do. Pointers are the device's unless they are
 * said to be the host's. Positions out of range are found by kernels, which write nothing there;
 * cu_sync() then says -EINVAL, once. Tensors in f32 but for pages, which are of the device's type
 * (CU_F32, CU_BF16), and the sides of products, which may be of 8 bits. Thread: one at a time per
 * device. */
#ifndef KERNELS_CUDA_LAUNCH_H
#define KERNELS_CUDA_LAUNCH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum cu_type {
    CU_F32,
    CU_F16,
    CU_BF16,
    CU_Q8,  /* up to here as enum kn_dtype */
    CU_FP8, /* e4m3 */
    CU_INT8
};
enum cu_mem { CU_DEVICE, CU_SHARED, CU_HOST /* pinned */, CU_MEMS };
struct cu;

/* -ENODEV with a sentence. type: of pages, and of products that are not of 8 bits. */
int cu_open(int index, enum cu_type type, struct cu **ret, char *msg, size_t msg_size);
void cu_close(struct cu *c);
void cu_use(const struct cu *c); /* before anything else that a thread asks of it */
const char *cu_name(const struct cu *c);
int cu_index(const struct cu *c);
void *cu_stream(struct cu *c);                                /* for mem.h */
void *cu_alloc(struct cu *c, enum cu_mem kind, size_t bytes); /* cleared; NULL */
void cu_free(struct cu *c, void *p, enum cu_mem kind);
int cu_clear(struct cu *c, void *p, size_t bytes);
/* Any direction. The host's pageable memory is read before the call returns and filled when it
 * does; pinned memory when the stream gets there. */
int cu_copy(struct cu *c, void *dst, const void *src, size_t bytes);
int cu_sync(struct cu *c);

/* What is queued between cu_record() and cu_recorded() does not run: it becomes a graph, of these
 * addresses and shapes, that cu_play() queues as a whole. -ENOTSUP: it cannot be; then what was
 * queued is forgotten and the device is as it was. No memory is asked for or given back meanwhile.
 */
int cu_record(struct cu *c);
int cu_recorded(struct cu *c, void **ret_graph);
int cu_play(struct cu *c, void *graph);
void cu_graph_free(struct cu *c, void *graph); /* accepts NULL */

/* ---- products: c [m, n] = a [m, k] w [n, k]^T, both sides of one type ---- */
struct cu_side {  /* rows of one side */
    void *data;   /* contiguous */
    float *scale; /* a row's, 8 bits only: a value is data * scale */
};
enum { CU_ROWS_UNIT = 32 }; /* 8-bit sides have room for a multiple: the library wants no fewer */
static inline size_t cu_value_bytes(enum cu_type t)
{
    return t == CU_F32 ? 4 : t == CU_FP8 || t == CU_INT8 ? 1 : 2;
}
static inline int cu_is_eight(enum cu_type t)
{
    return t == CU_FP8 || t == CU_INT8;
}
static inline size_t cu_rows_room(enum cu_type t, size_t rows)
{
    return cu_is_eight(t) ? (rows + CU_ROWS_UNIT - 1) / CU_ROWS_UNIT * CU_ROWS_UNIT : rows;
}
/* Bytes of a side; its rows lie first, its scales behind them. */
size_t cu_side_bytes(enum cu_type t, size_t rows, size_t k);
struct cu_side cu_side_at(enum cu_type t, size_t rows, size_t k, void *at);

struct cu_gemm {
    enum cu_type type;
    struct cu_side a, w;
    size_t lda; /* of a in f32; other types are contiguous */
    size_t m, n, k;
    const float *bias;
    float *c; /* [m, n], stride ldc */
    size_t ldc;
    int accumulate;
    void *room; /* cu_gemm_room() bytes; NULL when 0 */
};
/* -ENOTSUP with a sentence where the GPU or the library lacks products of this type. */
int cu_gemm_open(struct cu *c, enum cu_type type, char *msg, size_t msg_size);
size_t cu_gemm_room(const struct cu *c, const struct cu_gemm *g);
int cu_gemm(struct cu *c, const struct cu_gemm *g);

/* The library's algorithms: what it suggests, best guess first, and which to take from now on for
 * this type and weight at row counts of the same bucket (NULL: its first suggestion). */
struct cu_algo {
    uint64_t word[8];
};
int cu_gemm_suggest(struct cu *c, const struct cu_gemm *g, struct cu_algo *ret, size_t cap,
                    size_t *ret_n);
int cu_gemm_prefer(struct cu *c, const struct cu_gemm *g, const struct cu_algo *algo);
/* Rows that one call of the library takes; more are cut. */
size_t cu_gemm_rows_max(const struct cu *c, enum cu_type type, size_t n);
void cu_versions(const struct cu *c, char *ret, size_t size);     /* GPU, driver, library */
int cu_noise(struct cu *c, enum cu_type type, void *p, size_t n); /* n random values in (-1, 1) */

/* tune.c: row counts that are tuned, and the smallest of them that is not below m. */
size_t cu_bucket(size_t m);
struct cu_tune {
    enum cu_type type;
    const size_t (*shape)[2]; /* n, k */
    size_t n_shapes, rows;
    unsigned budget_ms;
    const char *cache_dir; /* NULL: nothing is remembered */
};
/* Time the suggestions for each shape and bucket that no earlier start has timed, within the
 * budget; what it does not reach is left to the next start. ret_gflops: at `rows` rows, 0 where
 * nothing was timed. Thread: before anything else runs. */
int cu_tune(struct cu *c, const struct cu_tune *t, double *ret_gflops);

struct cu_rows { /* x [m, n], stride ldx -> out, stride ldo */
    const float *x;
    size_t ldx, m, n;
    float *out;
    size_t ldo;
    /* cu_rmsnorm(), cu_swiglu(), cu_stage(): not CU_F32: out is data of a side of this type. */
    enum cu_type to;
    float *scale;
};
int cu_stage(struct cu *c, const struct cu_rows *r); /* x -> a side, or rows of one */
int cu_rmsnorm(struct cu *c, const struct cu_rows *r, size_t heads, const float *weight, float eps);
int cu_swiglu(struct cu *c, const struct cu_rows *r); /* x [m, 2n] */
int cu_gather(struct cu *c, const struct cu_rows *r, const int32_t *idx);
int cu_embed(struct cu *c, const void *w, size_t n_rows, const int32_t *id,
             const struct cu_rows *r);
/* x -> type t, contiguous; heads of K; *bad becomes 1 when a value does not fit. */
int cu_encode(struct cu *c, const struct cu_rows *r, size_t K, enum cu_type t, void *out, int *bad);
int cu_decode(struct cu *c, const void *x, size_t n, size_t K, enum cu_type t, float *out);
/* Values first … first + n - 1 of the field; struct rng_field of base/rng.h. */
struct rng_field;
int cu_random(struct cu *c, const struct rng_field *f, size_t first, size_t n, float *out);
/* ret[i] = |x[i] - b[i]|^2 (b NULL: 0), or ret[i] += |x[i] - b[i]| / |x[i]| */
int cu_distance(struct cu *c, const struct cu_rows *r, const void *b, enum cu_type t, size_t K,
                int relative, float *ret);

/* pick.cu: as kn_draw(), kn_edit() and kn_top(). */
struct kn_draw;
struct kn_edit;
int cu_edit(struct cu *c, float *x, size_t ldx, size_t m, size_t n, const struct kn_edit *list,
            size_t stride, const uint32_t *n_edits);
int cu_draw(struct cu *c, const float *x, size_t ldx, size_t m, size_t n, const struct kn_draw *how,
            int32_t *ret);
int cu_topk(struct cu *c, const float *score, const int32_t *idx, size_t n, size_t k, int32_t *ret);

struct cu_rope {
    size_t K, n_rot, pos_cap;
    const float *cos, *sin;
    float mscale;
};
int cu_rope(struct cu *c, const struct cu_rope *p, float *x, size_t ldx, size_t m, size_t heads,
            const int32_t *pos);

struct cu_pages {
    const int32_t *id;
    uint64_t n; /* 0: the row is left alone */
};
struct cu_kv { /* of one layer; page p: K [G, P, K], then V [G, P, K] */
    char *base;
    size_t page_bytes;
    const int32_t *pages;
    size_t n_pages;
    unsigned G, K;
    const struct cu_pages
        *each; /* not NULL: row i is of a sequence of its own, of n_pages at most */
};
int cu_kv_put(struct cu *c, const struct cu_kv *kv, const int32_t *pos, size_t m, const float *k,
              size_t ldk, const float *v, size_t ldv);
/* Stored rows [n, G, K] of type t -> pages at pos0…, K rotated (rope NULL: as it is). */
int cu_kv_load(struct cu *c, const struct cu_kv *kv, int32_t pos0, size_t n, const void *k,
               const void *v, enum cu_type t, const struct cu_rope *rope);

struct cu_attn {
    const float *q;
    size_t ldq, m;
    const int32_t *pos; /* of one sequence: ascending */
    unsigned H;
    struct cu_kv kv;
    float scale;
    float *out;
    size_t ldo;
    float *lse; /* [m, H] or NULL; cu_mass() reads it */
    /* cu_attn()'s own: */
    float *parts;
    unsigned n_parts;
};
/* Floats of scratch that the launch needs. */
size_t cu_attn_parts(const struct cu *c, const struct cu_attn *a);
int cu_attn(struct cu *c, const struct cu_attn *a, float *parts);
size_t cu_mass_parts(const struct cu *c, const struct cu_attn *a, size_t n_keys);
int cu_mass(struct cu *c, const struct cu_attn *a, float *mass, size_t key0, size_t n_keys,
            float *parts);

#ifdef __cplusplus
}
#endif
#endif
