/* tiny_model: a random model behind model.h's functions, and a slow reference of its forward pass.
 *
 * Linked instead of fusor/model/ in the core's unit tests. The reference computes every row in
 * double precision straight from the definitions (no pages, no blocks), and can override K and V of
 * any token, which is how a blend is described independently of the executor. */
#ifndef TESTS_UNIT_FUSOR_TINY_MODEL_H
#define TESTS_UNIT_FUSOR_TINY_MODEL_H

#include "fusor/model/model.h"

struct tiny_opts {
    unsigned L, D, H, G, K, F, V, ctx_max; /* 0 = default */
    bool qkv_bias, o_bias, qk_norm;
    double yarn;                              /* > 1: YaRN with this factor */
    unsigned window, local_every, nope_every; /* as of struct model_arch */
    unsigned chunk;                           /* of local layers, instead of a window */
    float temp_floor, temp_scale;             /* as of struct model_cfg, as the next */
    bool qk_unit;
    unsigned n_rot;    /* 0: all of K */
    double local_base; /* 0: as the others */
    enum model_norms norms;
    bool gelu, qk_norm_wide, layernorm, clamped, sinks;  /* clamped: KN_SILU_CLAMPED, else gelu or
                                                           SiLU */
    float attn_cap, logit_cap, embed_scale, logit_scale; /* scales: 0 = 1 */
    struct model_experts experts;                        /* n 0: none */
    bool q4; /* layers' matrices are codes of 4 bits, where whole groups fit */
    uint64_t seed;
};
int tiny_model_create(const struct tiny_opts *o, struct model **ret); /* model_close() frees */

/* What a blend does to the reference: per token and layer, where its K,V come from. */
struct ref_kv {
    const float *k, *v; /* K before RoPE; [G*K] of one token at one layer */
};
struct ref_opts {
    /* NULL, or fills *ret with stored K,V: the token's fresh values are not used at that layer. 1/0
     */
    int (*stored)(void *ctx, unsigned layer, size_t tok, struct ref_kv *ret);
    void *ctx;
    double *k_out; /* NULL, or [L, n, G*K] fresh K before RoPE */
    double *v_out;
    double *mass; /* NULL, or [n]: attention of rows >= mass_from over layers [lo, hi), all heads */
    size_t mass_from;
    unsigned lo, hi;
    /* Tokens [gap0, gap0 + gap) are not in the prompt from layer 1 on. */
    size_t gap0, gap;
    const uint8_t *anchor; /* NULL, or [n]: tokens with 0 are not seen in layers 1…lo-1 */
};
/* Logits of the last token, [V]. */
void ref_forward(const struct model *m, const int32_t *tok, size_t n, const struct ref_opts *o,
                 double *logits);

#endif
