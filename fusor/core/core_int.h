/* core_int: what core.c, layer.c, prefill.c and selftest.c share. Internal to fusor/.
 *
 * Ownership: a core owns weights, rope tables and the page pool; a session owns references to
 * pages; a prefill owns its sources, sinks and one work block (recycled through the core). Thread:
 * as core.h. */
#ifndef FUSOR_CORE_CORE_INT_H
#define FUSOR_CORE_CORE_INT_H

#include "fusor/core/core.h"
#include "fusor/core/kv_io.h"

struct fus_linear {
    struct kn_mat *w; /* [n, k] */
    float *bias;      /* [n] or NULL */
    size_t n, k;
    float *norm; /* [n_norm] of each of the first n_norms such parts of a row, or NULL */
    unsigned n_norms;
    size_t n_norm;
};
struct fus_norm {
    float *w;    /* [D], or NULL: none */
    float *bias; /* [D] of a LayerNorm; NULL: the root mean square's */
};
struct fus_layer {
    struct fus_linear qkv;               /* [H*K + 2*G*K, D] on a GPU: q and kv are rows of it */
    struct fus_linear kv;                /* [2*G*K, D]: K rows, then V rows */
    struct fus_linear q;                 /* [H*K, D] */
    struct fus_linear o;                 /* [D, H*K] */
    struct fus_linear gu;                /* [2*F, D]: gate rows, then up rows */
    struct fus_linear down;              /* [D, F] */
    struct kn_moe moe;                   /* instead of these two; router NULL: none */
    struct fus_norm norm_attn, norm_ffn; /* in front of both, */
    float *post_attn, *post_ffn;         /* [D] and behind; NULL: there is none */
    const struct kn_rope *rope;          /* NULL: nothing is rotated */
    unsigned window;                     /* keys that a row sees; 0: all */
    unsigned chunk;                      /* or where they begin, as of kn_attn(); 0: at key 0 */
    float *sinks;                        /* [H] or NULL */
};

/* Work memory of a prefill: a part that only operations touch, one of rows of heads, one that the
 * host shares. */
struct fus_block {
    char *device, *heads, *shared;
    size_t device_bytes, heads_bytes, shared_bytes;
};

/* What decode steps keep. A device plays a step again and again (kn_replay), so all of it has its
 * place until there is a larger batch. */
struct fus_decoder {
    size_t cap;        /* rows */
    char *rows, *near; /* what a step's rows are (layer.c): as the host fills it, as operations read
                          it; one where memory is plain */
    float *x;          /* [cap, D] residual */
    struct kn_edit *edits, *edits_near; /* [cap, FUS_EDITS_MAX]; likewise */
    int32_t *next, *next_near;          /* [cap] the tokens that follow; likewise */
    float *logits;                      /* [cap, V] NULL: the head writes to the caller */
    float *seen;                        /* [cap, V] rows of logits that the host wants */
};

struct fus_core {
    const struct model *model; /* borrowed: embedding rows are read from it */
    struct model_cfg cfg;
    struct kn_dev *dev;
    struct fus_layer *layer;   /* [L] */
    struct fus_linear lm_head; /* [V, D] */
    struct fus_linear embed; /* [V, D] where the device cannot read the model's file, else empty */
    struct fus_norm norm_out;
    struct kn_rope rope[2]; /* of local layers the second */
    float *rope_tab;        /* cos, then sin, of the first, then of the second where it differs */
    enum fus_fault fault;
    unsigned ctx_max;
    /* page pool */
    char *pool;
    size_t pool_bytes, page_stride, layer_stride; /* strides in values of the device's KV type */
    size_t page_bytes;
    uint32_t n_pages, n_free;       /* that sequences may have; that they may still have */
    uint32_t n_touched;             /* pages from the first on that have memory */
    uint32_t used_max, session_max; /* pages ever in use at once, and of one session */
    struct fus_lender lender;       /* of pages; lend NULL: free_page has them */
    int32_t *free_page;             /* stack of free ids */
    uint16_t *page_ref;             /* [n_pages] sessions that hold the page */
    uint32_t n_doubled;             /* pages that would be taken more if none was shared */
    struct fus_prefix_sharing *sharing;
    /* recycled work block of the last finished prefill */
    struct fus_block spare;
    struct fus_decoder dec;
};

struct fus_session {
    struct fus_core *core;
    int32_t *page;     /* [n_pages] */
    int32_t *page_dev; /* the same for operations; `page` itself where memory is plain */
    uint32_t n_pages, cap_tokens, len;
};
struct kn_kv fus_pool_kv(const struct fus_core *c); /* of no sequence yet */
struct kn_kv fus_session_kv(const struct fus_session *s);
/* Give the session pages of its own for everything it is going to write from token `from` on. */
int fus_session_own(struct fus_session *s, uint32_t from);
int fus_session_pages_changed(struct fus_session *s); /* after `page` was written to */
uint32_t fus_pages_for(uint32_t n_tokens);
void fus_page_share(struct fus_core *c, int32_t page); /* one session more holds it */
void fus_page_give(struct fus_core *c, int32_t page);  /* one less */
/* One of the sizes in *want, or more. */
int fus_core_take_block(struct fus_core *c, const struct fus_block *want, struct fus_block *ret);
void fus_core_give_block(struct fus_core *c, struct fus_block *b);

/* ---- prefix_sharing.c ---- */
struct fus_prefix_sharing;
int fus_prefix_sharing_create(uint32_t n_pages, struct fus_prefix_sharing **ret);
void fus_prefix_sharing_destroy(struct fus_prefix_sharing *s); /* accepts NULL */
void fus_prefix_sharing_forget(struct fus_prefix_sharing *s,
                               int32_t page); /* it is going to hold something else */

/* ---- layer.c: one half of a layer over a set of rows ---- */
typedef int (*fus_kv_hook)(void *ctx, const struct kv_rows *rows);
struct fus_phase {
    struct fus_core *core;
    struct kn_kv kv;
    unsigned layer;
    float *x;             /* [n, D] residual */
    const int32_t *pos;   /* [n] ascending */
    const int32_t *slot;  /* [n] where their K,V are stored, and up to where rows see; NULL: pos */
    const int32_t *known; /* [n] slot, or pos, as the host reads it */
    const int32_t *from;  /* [n] with slots, of layers with chunks: the first that a row sees */
    size_t n;
    const int32_t *embed_tok; /* phase A of layer 0: [n] x is filled with their embeddings first */
    fus_kv_hook hook;         /* phase A: sees K before RoPE and V; may be NULL */
    void *hook_ctx;
    float *keep_q, *keep_lse; /* phase B: rows from keep_from on are copied here (query score) */
    size_t keep_from;
    float *att;     /* the host's: [rows of a phase B call, H*K] attention output */
    bool goes_on;   /* phase A: B follows, without a look in between */
    bool joint;     /* phase B: does phase A, too, of the same rows, all of them */
    bool attn_only; /* phase B: stop after the attention (last layer of the scoring pass) */
    const atomic_bool *cancel;
};
/* Of rows [row0, row0 + m): phase A puts K,V into the pages, phase B does attention and FFN. */
int fus_phase_a(struct fus_phase *p, size_t row0, size_t m);
int fus_phase_b(struct fus_phase *p, size_t row0, size_t m);
void fus_scale(float *x, size_t n, float by); /* in place */
/* What attention of this layer has in common for all rows: heads, pages, scale, bounds. */
struct kn_attn_args fus_attn_args(const struct fus_core *c, const struct kn_kv *kv, unsigned layer);
/* Final norm and head of rows x [n, D] into logits [n, V]. */
int fus_phase_logits(struct fus_core *c, const float *x, size_t n, const atomic_bool *cancel,
                     float *logits);
/* Final norm alone: [n, D]. */
int fus_phase_hidden(struct fus_core *c, const float *x, size_t n, const atomic_bool *cancel,
                     float *hidden);
void fus_decode_fini(struct fus_core *c); /* frees what fus_decode() keeps */
/* Rows of one phase B call that keep a step short. */
size_t fus_slice_rows(const struct fus_core *c, size_t n_keys);

#endif
