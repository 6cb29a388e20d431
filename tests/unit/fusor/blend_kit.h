/* blend_kit: what the core's and the engine's tests share: a tiny core, chunks in memory, counters.
 */
#ifndef TESTS_UNIT_FUSOR_BLEND_KIT_H
#define TESTS_UNIT_FUSOR_BLEND_KIT_H

#include "fusor/core/prefill.h"
#include "tests/unit/fusor/tiny_model.h"

/* A chunk built in isolation: sink of its build, source of any number of uses. */
struct kit_chunk {
    const struct model_cfg *cfg;
    uint32_t n;
    float *k, *v;          /* [L, n, G*K]; layer 0 unused */
    uint8_t *coded;        /* the same in `dtype`, layers of K then V; NULL = not yet */
    enum kn_dtype dtype;   /* as it is handed out */
    const float *score;    /* [n] context sensitivity, NULL: not measured */
    unsigned side_layer;   /* side() has K of it; 0: of none */
    unsigned layers_asked; /* bit l: layer(l) was called */
    uint32_t *rows_seen;   /* [L] rows delivered */
    int done, status;      /* times and last value */
    int released, uses;
    const bool *flag; /* NULL, or what layer() counts its calls by */
    unsigned calls[2];
    int fail_layer;               /* layer() fails there; -1 never */
    int fail_rows_at;             /* rows() fails at this layer; -1 never */
    atomic_bool *cancel_in_layer; /* set by layer() when not NULL */
    atomic_int held_layer;        /* ready() says "not yet" from this layer on; 0 never */
};
void kit_chunk_init(struct kit_chunk *c, const struct model_cfg *cfg, uint32_t n);
void kit_chunk_fini(struct kit_chunk *c);
struct kv_sink kit_sink(struct kit_chunk *c);
struct kv_source kit_source(struct kit_chunk *c); /* counts a use */

struct kit {
    struct model *m;
    struct fus_core *c;
    const struct model_cfg *cfg;
};
/* Layers of several kinds: windows shorter and longer than chunks and pages, layers without
 * rotation, norms elsewhere, bounds and scales. */
enum { KIT_LAYERS = 6 };
extern const struct tiny_opts kit_layers[KIT_LAYERS];
void kit_open(struct kit *k, const struct tiny_opts *o, uint64_t kv_tokens);
void kit_close(struct kit *k);
void kit_tokens(const struct kit *k, uint64_t seed, int32_t *tok, size_t n);
/* The plan of a build, over own [1 + c->n] and *capture. */
void kit_build_plan(struct kit_chunk *c, int32_t sink_token, const int32_t *tok, int32_t *own,
                    struct fus_capture *capture, struct fus_plan *ret);
void kit_build(struct kit *k, int32_t sink_token, const int32_t *tok, struct kit_chunk *c);

#endif
