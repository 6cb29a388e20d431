/* cpu: the inside of the CPU backend: device, pool, streams, packed weights, kernel tables.
 *
 * A device has a `struct kn_stream` for each thread; stream 0 belongs to the thread that calls
 * kn_rows()/kn_wide(), stream i to pool thread i. A `struct kn_simd` is the kernels of an
 * instruction set, which see raw pointers and fail by cancellation alone. Thread: see kn.h. */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include "kernels/cpu/bytes.h"
#include "kernels/cpu/coded.h"
#include "kernels/cpu/int8.h"
#include "kernels/cpu/pages.h"
#include "kernels/cpu/rows16.h"
#include "kernels/cpu/simd/row_table.h"
#include "kernels/kn_int.h"

enum {
    KN_SLOT_ATTN = KN_SLOTS, /* the operations' own: packed queries and accumulators */
    KN_SLOT_KV,              /* rows of a record on their way into pages */
    KN_SLOT_WEIGHTS,         /* coded weights as f32, a block of the GEMM's */
    KN_SLOT_ROWS,            /* rows in 8 bits, or as pairs of bf16 */
    KN_SLOT_GATED,           /* the same of what kn_gated() has between its products */
    KN_SLOT_COLUMNS,         /* rows as columns of tiles, for all items of a product */
    KN_SLOT_PICK,            /* the scores that kn_top() is asked for, kn_draw()'s distances */
    KN_SLOT_MOE,             /* rows on their way to experts and back */
    KN_SLOTS_ALL,
};

/* Panels for few rows (gemm_tile.h); bytes of room for weights and sums (gemm_words.h). */
enum { KN_GEMM_FEW = 2, KN_GEMM_BLOCK = 1152 << 10 };

struct kn_gemm_job {
    const float *a;
    size_t lda, m;
    const void *b; /* packed panels (mat.c), or NULL: */
    const struct kn_coded *coded;
    bool as_f32;         /* not rounded on the way */
    void *block, *pairs; /* room for a block of them, unpacked: KN_GEMM_BLOCK bytes; for pairs.h */
    bool paired;         /* they are there already, all rows at once */
    const void *columns; /* pairs.h: instead of a */
    const struct kn_int8 *int8;        /* in 8 bits, with: */
    const struct kn_int8_rows *rows;   /* instead of a */
    const struct kn_bytes_rows *bytes; /* bytes.h: instead of a; with b or coded, and block */
    const struct kn_rows16 *rows16;    /* rows16.h: instead of a; with coded */
    size_t n, k;
    const float *bias;
    float *c;
    size_t ldc;
    bool accumulate;
    /* Not NULL: by pairs on tiles or by rows, without accumulate: half of the columns are gates.
     * What they let through goes to `gated`, [m, n / 2] pairs or f32, row stride ldg, not to c. */
    kn_glu_fn *glu;
    void *gated;
    size_t ldg;
    const atomic_bool *cancel;
};

typedef int kn_gemm_fn(const struct kn_gemm_job *j, size_t panel0, size_t panel1); /* of C */

/* Rows of values to and from enum kn_dtype. */
struct kn_formats {
    int (*encode_f16)(const float *x, size_t n, uint16_t *out);
    void (*decode_f16)(const uint16_t *x, size_t n, float *out);
    void (*encode_bf16)(const float *x, size_t n, uint16_t *out);
    void (*decode_bf16)(const uint16_t *x, size_t n, float *out);
    int (*encode_q8)(const float *x, size_t K, uint8_t *out); /* one head */
    /* Values [first, first+n) of one head. */
    void (*decode_q8)(const uint8_t *head, size_t first, size_t n, float *out);
};

struct kn_int16_ops { /* whole numbers of 16 bits */
    kn_gemm_fn *gemm;
    struct kn_attn_ops attn;
};
struct kn_simd {
    const char *name;
    unsigned mr, nr; /* register tile: rows, columns = panel width */
    kn_gemm_fn *gemm_f32;
    bool (*codes_panel)(const struct codes_form *f, const uint8_t *panel, size_t k0, size_t kc,
                        float *out);
    struct kn_attn_ops attn; /* in f32 */
    struct kn_row_simd row;
    void (*rope)(float *x, size_t half, const float *cos, const float *sin, float mscale);
    float (*sqdist)(const float *a, const float *b, size_t n);
    struct kn_formats stored;
};
extern const struct kn_simd kn_simd_portable, kn_simd_neon;
#if defined(__x86_64__)
extern const struct kn_simd kn_simd_avx2, kn_simd_avx512;
kn_gemm_fn kn_gemm_bf16_avx512, kn_gemm_bf16_amx;
extern const struct kn_attn_ops kn_attn_bf16;
extern const struct kn_int16_ops kn_avx2_int16, kn_avx2_vnni_int16, kn_avx512_int16;
extern const struct kn_attn_ops kn_avx2_attn8, kn_avx512_attn8;
bool kn_avx512_codes_panel(const struct codes_form *f, const uint8_t *panel, size_t k0, size_t kc,
                           float *out);
#endif
enum kn_gemm_kind { GEMM_OWN_F32, GEMM_OWN_BF16, GEMM_OWN_INT16, GEMM_KINDS };

struct kn_stream { /* as struct kn_stream_head */
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
    struct kn_dev_head head;
    enum kn_isa isa;
    const struct kn_simd *simd;
    bool has_bf16;                      /* AVX512-BF16 usable with the chosen kernels */
    const struct kn_int16_ops *int16;   /* or NULL */
    const struct kn_rows16_ops *rows16; /* or NULL */
    const struct kn_attn_ops *attn8;    /* or NULL: attention is not in 8 bits */
    bool int8;  /* weights of the layers are in 8 bits, as well or alone, but with */
    bool bytes; /* multiplied as bytes.h says, and kept as without int8 */
    bool kv_q8; /* pages are those of pages.h */
    enum kn_arith arith;
    bool allow_bf16;
    enum kn_gemm_kind gemm;
    bool forced;
    char *cache_dir;
    char model[300];           /* info.model */
    bool replaying;            /* kn_replay(): few rows, whose time is that of reading weights */
    bool rough;                /* kn_rough() */
    struct kn_stream *streams; /* [info.n_threads] */
    struct pool *pool;
    struct kn_slab *slab;  /* that new weights go to, or NULL */
    struct mapped *mapped; /* large blocks that are in use */
};

struct kn_mat { /* as struct kn_mat_head */
    struct kn_dev *dev;
    size_t n, k;
    bool inner, ready;
    bool bytes; /* as the device: products by bytes.h */
    enum kn_gemm_kind kind;
    void *data;             /* panels */
    struct kn_coded *coded; /* instead of data, or NULL */
    struct kn_int8 *int8;   /* beside coded, or instead of data, or NULL */
};

/* dev.c fills the device's tables from these and its own. */
extern const struct kn_mat_ops kn_cpu_mat_ops;                                  /* mat.c */
extern const struct kn_run_ops kn_cpu_run_ops;                                  /* pool.c */
extern const struct kn_row_ops kn_cpu_row_ops;                                  /* ops.c */
int kn_cpu_gemm(struct kn_stream *st, const struct kn_gemm_args *a);            /* mat.c */
int kn_cpu_gemms(struct kn_stream *st, const struct kn_gemm_args *a, size_t n); /* of one shape */
typeof(kn_gated) kn_cpu_gated;                                                  /* mat.c */
typeof(kn_moe) kn_cpu_moe;                                                      /* moe.c */
int kn_cpu_tune(struct kn_dev *d, const struct kn_tuning *t);

/* pool.c */
int pool_create(struct kn_dev *d, struct pool **ret_pool);
void pool_destroy(struct pool *p);
/* Run fn for items 0…n-1: on all threads, the caller's included, in ascending order of start, when
 * the stream is wide, else one after the other on this thread. The first error stops the handing
 * out of items and is returned. */
int kn_par(struct kn_stream *st, size_t n_items, pool_fn fn, void *arg);
static inline bool kn_cancelled(const atomic_bool *cancel)
{
    return cancel && atomic_load_explicit(cancel, memory_order_relaxed);
}

/* isa.c */
const struct kn_int16_ops *kn_isa_int16(enum kn_isa isa);
const struct kn_attn_ops *kn_isa_attn8(enum kn_isa isa);
int kn_isa_pick(const char *name, enum kn_isa *ret_isa, struct err *err);
const struct kn_simd *kn_isa_table(enum kn_isa isa);
const char *kn_isa_name(enum kn_isa isa);
void kn_cpu_model(char *buf, size_t size);

/* mat.c: candidates by name. */
const char *kn_gemm_name(enum kn_gemm_kind kind);
int kn_mat_create_kind(struct kn_dev *d, size_t n, size_t k, enum kn_gemm_kind kind,
                       struct kn_mat **ret_mat);
static inline bool kn_gemm_available(const struct kn_dev *d, enum kn_gemm_kind kind)
{
    return kind == GEMM_OWN_F32 || (kind == GEMM_OWN_BF16 ? d->has_bf16 : d->int16 && !d->int8);
}
/* Products round to bf16 on tiles. Settled by the choice of the GEMM, as are what pages hold. */
static inline bool kn_cpu_tiles(const struct kn_dev *d)
{
    return d->isa == KN_ISA_AMX && d->gemm == GEMM_OWN_BF16;
}
const struct kn_attn_ops *kn_cpu_attn_ops(const struct kn_dev *d); /* dev.c */

/* mem.c: what the caller asks for, what a weight does, what an operation does. */
void *kn_cpu_mem_alloc(struct kn_dev *d, enum kn_mem kind, size_t bytes);
void kn_cpu_mem_free(struct kn_dev *d, void *p);
/* Uncleared, on large pages where that matters; NULL for 0 bytes. mem_free(). */
void *kn_huge_alloc(size_t bytes);
void *kn_cpu_scratch(struct kn_stream *st, unsigned slot, size_t size_bytes);

#endif
