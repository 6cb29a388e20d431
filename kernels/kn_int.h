/* kn_int: what kn.c and the backends share: the table of a backend, and how objects lead to it.
 *
 * Every backend has its own struct kn_dev, kn_stream and kn_mat. A device starts with a struct
 * kn_head, a stream and a weight with a pointer to their device: this is all that kn.c knows of
 * them. kn.c checks shapes (not positions, they may lie on the device) and returns at once when
 * there is nothing to do; backends are not asked for m = 0 or n = 0. Each function is kn.h's of the
 * same name. Thread: as kn.h. */
#ifndef KERNELS_KN_INT_H
#define KERNELS_KN_INT_H

#include "kernels/kn.h"

enum { KN_SLOTS = 8 }; /* scratch slots of the caller; a backend may have more of its own */

struct kn_ops {
    void (*destroy)(struct kn_dev *d);
    bool is_host;
    bool gemm_invariant;                  /* kn_gemm_invariant() */
    bool (*lost)(const struct kn_dev *d); /* NULL: never */
    /* NULL on the CPU: from here … */
    int (*gpu)(struct kn_dev *d, struct gpu **ret, struct err *err);
    struct kn_memory (*memory)(struct kn_dev *d);
    int (*stage_room)(struct kn_dev *d, size_t bytes);
    int (*stage)(struct kn_dev *d, struct kn_piece *p, size_t n, uint64_t *ret_turn);
    int (*staged)(struct kn_stream *st, uint64_t turn);
    void (*unstage)(struct kn_dev *d, uint64_t turn);
    /* … to here. */
    unsigned (*threads)(const struct kn_dev *d);
    const char *(*device)(const struct kn_dev *d);
    const char *(*isa)(const struct kn_dev *d);
    const char *(*gemm_name)(const struct kn_dev *d);
    int (*tune)(struct kn_dev *d, const struct kn_tuning *t); /* fills the head's rates */
    void *(*mem_alloc)(struct kn_dev *d, enum kn_mem kind, size_t bytes);
    void (*mem_free)(struct kn_dev *d, void *p);
    int (*mem_write)(struct kn_dev *d, void *dst, const void *src, size_t bytes);
    int (*mem_copy)(struct kn_dev *d, void *dst, const void *src, size_t bytes);
    int (*mat_create)(struct kn_dev *d, size_t n, size_t k, struct kn_mat **ret_mat);
    int (*mat_fill)(struct kn_mat *w, size_t row0, size_t n_rows, const float *rows);
    int (*mat_random)(struct kn_mat *w, size_t row0, size_t n_rows,
                      const struct rng_field *f); /* NULL: rows come from the host */
    int (*mat_create_coded)(struct kn_dev *d, const struct kn_part *parts, size_t n_parts, size_t k,
                            struct kn_mat **ret_mat); /* NULL: -ENOTSUP, and no … */
    int (*mat_fill_codes)(struct kn_mat *w, size_t row, const struct codes_row *c);
    int (*mat_done)(struct kn_mat *w);
    int (*mat_create_full)(struct kn_dev *d, size_t n, size_t k,
                           struct kn_mat **ret_mat); /* NULL: as mat_create */
    struct kn_shape (*mat_shape)(const struct kn_mat *w);
    size_t (*mat_bytes)(const struct kn_mat *w);
    void (*mat_destroy)(struct kn_mat *w);
    int (*rows)(struct kn_dev *d, size_t n_rows, const atomic_bool *cancel, kn_rows_fn fn,
                void *arg);
    int (*rows_uneven)(struct kn_dev *d, size_t n_rows, const atomic_bool *cancel, kn_rows_fn fn,
                       void *arg);
    int (*wide)(struct kn_dev *d, size_t n_rows, const atomic_bool *cancel, kn_rows_fn fn,
                void *arg);
    size_t (*wide_rows_max)(const struct kn_dev *d);
    /* NULL: runs are over when they return; from here … */
    void (*defer)(struct kn_dev *d, bool on);
    void (*pipeline)(struct kn_dev *d, bool on);
    int (*fence)(struct kn_dev *d);
    /* … to here. */
    /* NULL: nothing is recorded; from here … */
    int (*replay)(struct kn_dev *d, uint64_t key, size_t n_rows, const atomic_bool *cancel,
                  kn_rows_fn fn, void *arg);
    size_t (*replay_rows)(const struct kn_dev *d, size_t n);
    void (*forget)(struct kn_dev *d);
    struct kn_replays (*replays)(const struct kn_dev *d);
    /* … to here. */
    int (*sync)(struct kn_stream *st);
    void *(*scratch)(struct kn_stream *st, unsigned slot, size_t size_bytes);
    /* NULL: scratch */
    float *(*operand)(struct kn_stream *st, unsigned slot, size_t m, const struct kn_mat *w);
    size_t (*kv_value_bytes)(const struct kn_dev *d);
    int (*gemm)(struct kn_stream *st, const struct kn_gemm_args *a);
    int (*embed)(struct kn_stream *st, const struct kn_mat *w, const int32_t *id, size_t m,
                 float *out, size_t ldo);
    int (*gather)(struct kn_stream *st, const float *x, const int32_t *idx, size_t m, size_t n,
                  float *out);
    int (*copy)(struct kn_stream *st, void *dst, const void *src, size_t bytes);
    int (*rmsnorm)(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t D,
                   const float *weight, float eps, float *out, size_t ldo);
    int (*rmsnorm_heads)(struct kn_stream *st, float *x, size_t ldx, size_t m, size_t heads,
                         size_t K, const float *weight, float eps);
    int (*swiglu)(struct kn_stream *st, const float *gate_up, size_t ldg, size_t m, size_t F,
                  float *out, size_t ldo);
    int (*rope)(struct kn_stream *st, const struct kn_rope *r, float *x, size_t ldx, size_t m,
                size_t heads, const int32_t *pos);
    int (*kv_put)(struct kn_stream *st, const struct kn_kv *kv, unsigned layer, const int32_t *pos,
                  size_t m, const float *k, size_t ldk, const float *v, size_t ldv);
    int (*kv_load)(struct kn_stream *st, const struct kn_kv *kv, unsigned layer, int32_t pos0,
                   size_t n, const void *k, const void *v, enum kn_dtype t,
                   const struct kn_rope *rope);
    int (*encode_rows)(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t n,
                       size_t K, enum kn_dtype t, void *out);
    int (*decode)(struct kn_stream *st, const void *x, size_t n, size_t K, enum kn_dtype t,
                  float *out);
    int (*attn)(struct kn_stream *st, const struct kn_attn_args *a);
    int (*attn_mass)(struct kn_stream *st, const struct kn_attn_args *a, float *mass, size_t key0,
                     size_t n_keys);
    int (*deviation)(struct kn_stream *st, const float *a, size_t lda, const void *b,
                     enum kn_dtype t, size_t m, size_t n, size_t K, float *ret);
    int (*change)(struct kn_stream *st, const float *a, size_t lda, const void *b, enum kn_dtype t,
                  size_t m, size_t n, size_t K, float *ret);
    int (*edit)(struct kn_stream *st, float *x, size_t ldx, size_t m, size_t n,
                const struct kn_edit *list, size_t stride, const uint32_t *n_edits);
    int (*draw)(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t n,
                const struct kn_draw *how, int32_t *ret);
    int (*top)(struct kn_stream *st, const float *score, const int32_t *idx, size_t n, size_t k,
               int32_t *ret);
};
struct kn_head {
    const struct kn_ops *ops;
    struct kn_gemm_rate rate[KN_RATES_MAX];
    size_t n_rates;
};

int kn_cpu_create(const struct kn_dev_opts *o, struct kn_dev **ret_dev, struct err *err);

#endif
