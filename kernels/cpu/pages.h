/* pages: where a layer of a page lies, who reads it, and what it looks like in 8 bits.
 *
 * A layer of a page in 8 bits is K of G heads, then V of G heads, of each f16 top[P], int8
 * code[P * K]: what stored rows of KN_Q8 (types.h) have, one key after the other in top. Codes of K
 * are [P / 16][K][16], sixteen keys beside each other, those of V [P][K]: so sixteen bytes at a
 * time become what the f32 kernels take as well as the pairs of attn_bf16.c, whatever the
 * instruction set. Attention unpacks a page for each chunk of rows, into scratch that stays in the
 * cache. Thread: any. */
#ifndef KERNELS_CPU_PAGES_H
#define KERNELS_CPU_PAGES_H

#include "kernels/kn.h"

struct kn_formats;

struct kn_attn_job {
    const struct kn_attn_args *args;
    bool tiles;     /* products of bf16: by AMX */
    bool q8;        /* pages are in 8 bits */
    float *scratch; /* kn_attn_ops.scratch() floats */
    const atomic_bool *cancel;
};
/* What pages hold unless it is 8 bits, and the readers of both. */
struct kn_attn_ops {
    enum kn_dtype type;
    /* n rows into consecutive slots of one page of a layer; -ENOTSUP: heads that it has no form
     * for. */
    int (*put)(const struct kn_kv *kv, void *layer, size_t slot, size_t n, const float *k,
               size_t ldk, const float *v, size_t ldv);
    size_t (*scratch)(size_t group, size_t K, bool q8); /* floats that attn and mass need */
    int (*attn)(const struct kn_attn_job *j, unsigned g0, unsigned g1);
    int (*mass)(const struct kn_attn_job *j, float *mass, size_t key0, size_t n_keys);
};

static inline void *kn_page_layer(const struct kn_kv *kv, unsigned layer, size_t page,
                                  size_t value_bytes)
{
    const size_t at = (size_t)kv->pages[page] * kv->page_stride + (size_t)layer * kv->layer_stride;
    return (char *)kv->base + at * value_bytes;
}

enum {
    PAGE8_KEYS = 16,      /* of K beside each other */
    PAGE8_K_MAX = 1 << 10 /* dims of a head */
};

struct page8 { /* one head of one tensor */
    uint16_t *top;
    int8_t *code;
};
static inline size_t page8_bytes(size_t K)
{
    return KN_PAGE * kn_row_bytes(KN_Q8, 1, K);
}
static inline struct page8 page8_of(const void *head)
{
    uint16_t *top = (uint16_t *)(uintptr_t)head;
    return (struct page8){top, (int8_t *)(top + KN_PAGE)};
}

/* n rows of K or V, [n, G, K], into slots that follow one another of one page of a layer. -ERANGE:
 * a value that 8 bits do not know. */
int page8_put(const struct kn_formats *f, const struct kn_kv *kv, void *layer, bool is_v,
              size_t slot, size_t n, const float *x, size_t ldx);
/* The same of stored rows of KN_Q8, which stay what they are. */
void page8_copy(const struct kn_kv *kv, void *layer, bool is_v, size_t slot, size_t n,
                const uint8_t *rows);

#endif
