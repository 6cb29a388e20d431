/* cpu: the inside of the CPU backend: device, pool, streams, packed weights, kernel tables.
 *
 * A device owns one `struct kn_stream` per thread; stream 0 belongs to the thread that calls
 * kn_rows()/kn_wide(), stream i to pool thread i. A `struct kn_simd` is the table of kernels of one
 * instruction set (simd/ is compiled once for each). Kernels see raw pointers and never fail but
 * for cancellation; the wrappers in ops.c check shapes.
 * Thread: see kn.h; pool_run() only from the thread that called kn_rows()/kn_wide(). */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include "kernels/kn.h"

#include <pthread.h>

enum {
    KN_SLOTS = 8,     /* scratch slots of the caller; the operations' own follow */
    KN_SLOT_ATTN = 8, /* packed queries and accumulators */
    KN_SLOT_KV = 9,   /* rows of a record on their way into pages */
    KN_SLOT_LIB = 10, /* activations converted for a library GEMM */
    KN_SLOTS_ALL = 11,
};

struct kn_gemm_job {
    const float *a;
    size_t lda, m;
    const void *b; /* packed panels: [n / nr][k][nr] f32, or [n / nr][k / 2][nr][2] bf16 */
    size_t n, k;
    const float *bias;
    float *c;
    size_t ldc;
    bool accumulate;
    const atomic_bool *cancel;
};
struct kn_attn_job {
    const struct kn_attn_args *args;
    float *scratch; /* kn_simd.attn_scratch() floats */
    const atomic_bool *cancel;
};

struct kn_simd {
    const char *name;
    unsigned mr, nr; /* register tile: rows, columns = panel width */
    int (*gemm_f32)(const struct kn_gemm_job *j, size_t panel0, size_t panel1);
    size_t (*attn_scratch)(size_t group, size_t K); /* floats that attn and attn_mass need */
    int (*attn)(const struct kn_attn_job *j, unsigned g0, unsigned g1);
    int (*attn_mass)(const struct kn_attn_job *j, float *mass, size_t key0, size_t n_keys);
    void (*rmsnorm)(const float *x, size_t D, const float *w, float eps, float *out);
    void (*swiglu)(const float *gate, const float *up, size_t F, float *out);
    void (*rope)(float *x, size_t half, const float *cos, const float *sin, float mscale);
    float (*sqdist)(const float *a, const float *b, size_t n);
    int (*encode_f16)(const float *x, size_t n, uint16_t *out);
    void (*decode_f16)(const uint16_t *x, size_t n, float *out);
    void (*encode_bf16)(const float *x, size_t n, uint16_t *out);
    void (*decode_bf16)(const uint16_t *x, size_t n, float *out);
    int (*encode_q8)(const float *x, size_t K, uint8_t *out); /* one head */
    /* Values [first, first+n) of one head. */
    void (*decode_q8)(const uint8_t *head, size_t first, size_t n, float *out);
};
extern const struct kn_simd kn_simd_portable;
#if defined(__x86_64__)
extern const struct kn_simd kn_simd_avx2, kn_simd_avx512;
int kn_gemm_bf16_avx512(const struct kn_gemm_job *j, size_t panel0, size_t panel1);
#endif

enum kn_gemm_kind {
    GEMM_OWN_F32,
    GEMM_OWN_BF16,
    GEMM_OPENBLAS,
    GEMM_ONEDNN_F32,
    GEMM_ONEDNN_BF16,
    GEMM_KINDS
};

struct kn_stream {
    struct kn_dev *dev;
    unsigned index;
    bool wide; /* operations spread over the pool */
    const atomic_bool *cancel;
    void *slot[KN_SLOTS_ALL];
    size_t slot_size[KN_SLOTS_ALL];
};

typedef int (*pool_fn)(struct kn_stream *st, void *arg, size_t item);
struct pool;

struct kn_dev {
    unsigned n_threads;
    enum kn_isa isa;
    const struct kn_simd *simd;
    bool has_bf16; /* AVX512-BF16 usable with the chosen kernels */
    enum kn_arith arith;
    bool allow_bf16;
    enum kn_gemm_kind gemm;
    bool forced;
    char *cache_dir;
    struct kn_stream *streams; /* [n_threads] */
    struct pool *pool;
};

struct kn_mat {
    struct kn_dev *dev;
    size_t n, k;
    enum kn_gemm_kind kind;
    void *data; /* panels, or row-major for a library */
    void *lib;  /* the library's own packed form */
    bool ready;
};

/* pool.c. Run fn for items 0…n-1 on all threads, the caller included, in ascending order of start;
 * the first error stops the handing out of items and is returned. */
int pool_create(struct kn_dev *d, struct pool **ret_pool);
void pool_destroy(struct pool *p);
int pool_run(struct kn_dev *d, const atomic_bool *cancel, size_t n_items, pool_fn fn, void *arg);
/* Items over the pool when the stream is wide, else one after the other on this thread. */
int kn_par(struct kn_stream *st, size_t n_items, pool_fn fn, void *arg);
static inline bool kn_cancelled(const atomic_bool *cancel)
{
    return cancel && atomic_load_explicit(cancel, memory_order_relaxed);
}

/* isa.c */
int kn_isa_pick(const char *name, enum kn_isa *ret_isa, struct err *err);
const struct kn_simd *kn_isa_table(enum kn_isa isa);
const char *kn_isa_name(enum kn_isa isa);
void kn_cpu_model(char *buf, size_t size);

/* mat.c: candidates by name and what this machine offers. */
const char *kn_gemm_name(enum kn_gemm_kind kind);
bool kn_gemm_is_bf16(enum kn_gemm_kind kind);
bool kn_gemm_available(const struct kn_dev *d, enum kn_gemm_kind kind);
int kn_mat_create_kind(struct kn_dev *d, size_t n, size_t k, enum kn_gemm_kind kind,
                       struct kn_mat **ret_mat);

/* lib_openblas.c, lib_onednn.c: optional libraries, loaded at run time; false when absent. One call
 * computes one block of rows on the calling thread. */
bool kn_openblas_load(const struct kn_dev *d);
/* Bias (and old values) into C, so that a library only adds a product; returns BLAS's beta. */
float kn_gemm_start_c(const struct kn_gemm_job *j);
void kn_openblas_gemm(const struct kn_gemm_job *j);
bool kn_onednn_load(const struct kn_dev *d, bool bf16);
int kn_onednn_pack(const float *rows, size_t n, size_t k, bool bf16, void **ret_lib);
void kn_onednn_free(void *lib);
int kn_onednn_gemm(struct kn_stream *st, void *lib, const struct kn_gemm_job *j);

#endif
