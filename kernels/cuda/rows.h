/* rows: operations on rows, pages and keys of a device. Errors and threads as launch.h. */
#ifndef KERNELS_CUDA_ROWS_H
#define KERNELS_CUDA_ROWS_H

#include "kernels/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cu_rows { /* x [m, n], stride ldx -> out, stride ldo */
    const float *x;
    size_t ldx, m, n;
    float *out;
    size_t ldo;
    /* cu_rmsnorm(), cu_layernorm(), cu_glu(), cu_stage(): not CU_F32: out is data of a side of this
     * type. */
    enum cu_type to;
    float *scale;
};
int cu_stage(struct cu *c, const struct cu_rows *r); /* x -> a side, or rows of one */
int cu_rmsnorm(struct cu *c, const struct cu_rows *r, size_t heads, const float *weight, float eps);
int cu_rmsnorm_add(struct cu *c, const struct cu_rows *r, const float *weight, float eps);
int cu_layernorm(struct cu *c, const struct cu_rows *r, const float *weight,
                 const float *bias /* or NULL */, float eps);
/* x [m, 2n] of type from: CU_F32, CU_BF16 */
int cu_glu(struct cu *c, enum kn_act act, const struct cu_rows *r, enum cu_type from);
int cu_softcap(struct cu *c, const struct cu_rows *r, float cap);
int cu_gather(struct cu *c, const struct cu_rows *r, const int32_t *idx);
int cu_embed(struct cu *c, const void *w, size_t n_rows, const int32_t *id,
             const struct cu_rows *r);
/* x -> type t, contiguous; heads of K; *bad becomes 1 when a value does not fit. */
int cu_encode(struct cu *c, const struct cu_rows *r, size_t K, enum cu_type t, void *out, int *bad);
/* Values first … first + n - 1 of the field; struct rng_field of base/rng.h. */
struct rng_field;
int cu_random(struct cu *c, const struct rng_field *f, size_t first, size_t n, float *out);
/* pick.cu: as kn_draw(), kn_edit() and kn_top(). */
struct kn_draw;
struct kn_edit;
int cu_edit(struct cu *c, float *x, size_t ldx, size_t m, size_t n, const struct kn_edit *list,
            size_t stride, const uint32_t *n_edits);
int cu_draw(struct cu *c, const float *x, size_t ldx, size_t m, size_t n, const struct kn_draw *how,
            int32_t *ret);
int cu_topk(struct cu *c, const float *score, const int32_t *idx, size_t n, size_t k, int32_t *ret);

int cu_rope(struct cu *c, const struct kn_rope *p, float *x, size_t ldx, size_t m, size_t heads,
            const int32_t *pos);

/* Of a layer of a page, bytes. */
size_t cu_page_bytes(const struct cu *c, unsigned G, unsigned K);
struct cu_kv { /* of one layer; what a page has of it: pages.h */
    char *base;
    size_t page_bytes;
    const int32_t *pages;
    size_t n_pages;
    unsigned G, K;
    const struct kn_pages
        *each;            /* not NULL: row i is of a sequence of its own, of n_pages at most */
    ptrdiff_t each_shift; /* as of struct kn_kv */
};
struct cu_rotation {     /* of m rows */
    struct kn_rope rope; /* n_rot 0: none */
    const int32_t *pos;
};
struct cu_put { /* as kn_kv_put(), kn_rope_put() */
    const int32_t *pos;
    size_t m;
    const float *k, *v;
    size_t ldk, ldv;
    struct cu_rotation to; /* of K */
};
int cu_kv_put(struct cu *c, const struct cu_kv *kv, const struct cu_put *p);
struct cu_pieces {
    struct kn_stored piece[KN_PIECES];
    unsigned n;
    size_t most; /* rows of the longest */
};
/* As kn_kv_load() and kn_deviation(). */
int cu_kv_load(struct cu *c, const struct cu_kv *kv, const struct kn_rope *rope,
               const struct cu_pieces *s);
int cu_deviation(struct cu *c, const struct cu_rows *r, const int32_t *pos,
                 const struct cu_pieces *s, size_t K, float *ret);

struct cu_attn {
    const float *q;
    size_t ldq, m;
    const int32_t *pos; /* of one sequence: ascending */
    unsigned H;
    struct cu_kv kv;
    float scale, cap;      /* cap 0: none */
    unsigned window;       /* 0: none */
    const float *sink;     /* [H] or NULL */
    struct cu_rotation to; /* of q; cu_attn() alone */
    void *out;             /* of type `type`: CU_F32, CU_BF16 */
    size_t ldo;
    enum cu_type type;
    float *lse;     /* [m, H] or NULL; cu_mass() reads it */
    unsigned first; /* of cu_attn(): 1 to all of a row's parts of the keys; cu_attn_first() */
    /* cu_attn()'s own: */
    float *sums; /* [m, H, K], rows ld_sums apart: where sums wait for those of the next part */
    size_t ld_sums;
    float *parts; /* [m, H, ld_parts]: attn.h */
    unsigned ld_parts;
};
/* How many first parts of its rows' keys a block shall go through by itself; known: pos, as the
 * host reads it, or NULL. Changes no bit of what comes out. */
unsigned cu_attn_first(const struct cu *c, const struct cu_attn *a, const int32_t *known);
/* Floats of scratch that the launch needs. */
size_t cu_attn_floats(const struct cu_attn *a);
int cu_attn(struct cu *c, const struct cu_attn *a, float *scratch);
size_t cu_mass_parts(const struct cu *c, const struct cu_attn *a, size_t n_keys);
int cu_mass(struct cu *c, const struct cu_attn *a, float *mass, size_t key0, size_t n_keys,
            float *parts);

/* sdpa.cu: for attention of the last m of n_keys positions: the rows' queries, rotated, [m, H, K],
 * and K and V of all keys, [n_keys, G, K], in bf16, 0 up to where a tile may end; cap: keys that
 * there is room for. */
enum { CU_GATHERED_ROWS = 0, CU_GATHERED_KEYS = 4, CU_GATHERED_OFFSETS = 8 };
enum { CU_GATHERED_NUMBERS = 10 }; /* each at a multiple of 16 bytes: m; n_keys; 0 and m*H*K */
struct cu_gathered {
    int32_t *numbers;
    uint16_t *q, *k, *v;
    size_t cap;
};
int cu_gather_fits(const struct cu *c, const struct cu_attn *a, size_t n_keys);
int cu_gather_heads(struct cu *c, const struct cu_attn *a, size_t n_keys,
                    const struct cu_gathered *to);

#ifdef __cplusplus
}
#endif
#endif
