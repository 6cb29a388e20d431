/* kv_source and kv_sink: how the fusor gets stored KV and hands computed KV out.
 *
 * The fusor knows no tiers; the submitter of a request gives each reusable range a source, and each
 * range worth keeping a sink. All KV here is position-free: K before RoPE (after any QK norm), V as
 * it is, rows [n, G, K] contiguous, per layer. Layer 0 is never asked for nor delivered for chunks
 * (it depends on the token alone); prefix ranges use layers 1…L-1 as well, layer 0 is recomputed
 * from the embeddings.
 * Thread: engine thread. A source stays valid until release(); a sink until done(). */
#ifndef FUSOR_CORE_KV_IO_H
#define FUSOR_CORE_KV_IO_H

#include "kernels/kn.h"

struct kv_layer {
    const void *k, *v; /* [n, G, K] in `dtype`; borrow until the source's release() */
    enum kn_dtype dtype;
};

struct kv_source {
    const struct kv_source_ops *ops;
    void *ctx;
};
struct kv_source_ops {
    /* Start bringing layers [lo, hi) near, in that order; a hint, may be NULL. */
    void (*prefetch)(void *ctx, unsigned lo, unsigned hi);
    /* Wait until `layer` is here and checked. 0, or -EBADMSG, -EIO, -ETIMEDOUT: then the range is
     * computed instead, never answered from. */
    int (*layer)(void *ctx, unsigned layer, struct kv_layer *ret);
    void (*release)(void *ctx); /* exactly once, when the fusor needs it no more */
    /* Would layer() return at once? 1 yes, 0 it would wait, <0 it has failed (layer() says how).
     * Never waits. May be NULL: always 1. */
    int (*ready)(void *ctx, unsigned layer);
    /* How much each token's KV changes behind other text (blending.md 7.3), [n]: 1 copied, 0 not
     * measured yet. Never waits. May be NULL: never known. */
    int (*sensitivity)(void *ctx, float *ret);
    /* The record's sidecar, K of one layer [n, G, K] (before RoPE), resident apart from it: 1 and
     * ret->k (ret->v NULL), 0 it has none for that layer. Borrow until release(). Never waits. May
     * be NULL: never. */
    int (*side)(void *ctx, unsigned layer, struct kv_layer *ret);
};

/* Rows [row0, row0 + n) of something at a layer as they have been computed: f32, `ld` floats from
 * row to row, in the device's memory; kn_encode_rows() brings them to the host, at done() at the
 * latest. */
struct kv_rows {
    struct kn_stream *st;
    unsigned layer;
    size_t row0, n;
    const float *k, *v; /* K before RoPE */
    size_t ld;
    int *bad; /* kn_encode_rows(): 1 when a value does not fit; then the sink is aborted */
};
struct kv_sink {
    const struct kv_sink_ops *ops;
    void *ctx;
};
struct kv_sink_ops {
    /* Rows of the range, called from pool threads, each row once per layer, layers ascending; 0 or
     * an error, which makes the sink be aborted. */
    int (*rows)(void *ctx, const struct kv_rows *rows);
    void (*done)(void *ctx, int status); /* exactly once: 0 complete, <0 aborted */
};

#endif
