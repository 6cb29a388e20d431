/* model: shapes and weights of a language model from a GGUF file or a Hugging Face folder, or
 * random weights in the shape of a published one (shape.h).
 *
 * model_open() reads the configuration, checks that the engine can honour it (else -ENOTSUP with
 * the reason by name: unknown architecture, rope type, activation, …), maps the weight files and
 * checks every tensor's shape. Weights are handed out as f32 rows, dequantised on the fly, so that
 * the caller packs them piecewise, or in the file's form. Conventions are normalised here:
 * rotate-half rope (interleaved Q/K rows are put back), [out, in] row-major, gate before up, packed
 * tensors apart, norms as factors. Immutable after open. Thread: any. Dimension letters:
 * kernels/kn.h. */
#ifndef FUSOR_MODEL_MODEL_H
#define FUSOR_MODEL_MODEL_H

#include "base/err.h"
#include "kernels/codes.h"
#include "kernels/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum model_rope_type { ROPE_NONE, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_LONG };
struct model_rope {
    enum model_rope_type type;
    double base;                              /* theta */
    double factor;                            /* linear, llama3, yarn */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double orig_ctx;                          /* original_max_position_embeddings */
    double beta_fast, beta_slow, attn_factor; /* yarn; attn_factor 0 = default 0.1 ln s + 1; long */
    bool no_truncate; /* yarn: correction range not rounded to whole dimensions */
    /* [n_rot/2] or NULL: divisors of the frequencies (GGUF's rope_freqs; long: of contexts up to
     * orig_ctx, and of longer ones) */
    const float *freq_factors, *long_factors;
};
/* How layers differ. */
enum {
    MODEL_LAYER_LOCAL = 1, /* a window or a chunk, rope_local */
    MODEL_LAYER_NOPE = 2,  /* no rotation */
    MODEL_LAYER_DENSE = 4  /* of a mixture: without experts */
};
/* Where a block's norms stand: before what it computes, behind it (before it is added), or both. */
enum model_norms { MODEL_NORMS_BEFORE, MODEL_NORMS_BEHIND, MODEL_NORMS_AROUND };
/* A mixture of experts in place of each layer's feed-forward part: kn_moe(). */
struct model_experts {
    unsigned n, used;  /* that there are, 0: no mixture; that a token goes through */
    unsigned F;        /* width of one */
    unsigned shared_F; /* of the one that every token goes through; 0: none */
    bool renorm;       /* weights of those used sum to 1 */
    bool biases;       /* of router and experts */
    bool scales_input; /* as of struct kn_moe; then nothing weighs the shared one */
    unsigned every;    /* only every n-th layer has them, unless a file lists which; 0: all */
    unsigned dense_F;  /* width of layers without; 0: there are none */
};
struct model_cfg {
    char arch[32];                /* "llama", "mistral", "qwen2", … */
    char name[128];               /* from the file, or the path's last part */
    unsigned L, D, H, G, K, F, V; /* F: of a mixture, the most that a token goes through */
    struct model_experts experts;
    unsigned ctx_max; /* tokens the model was made for */
    float rms_eps;
    bool qkv_bias, o_bias, tied;
    bool sinks;                 /* each head has one: kn_attn() */
    bool qk_norm, qk_norm_wide; /* each head of Q and K is normed; wide: all heads as one vector */
    bool qk_unit;               /* the same by factors of 1, where a layer rotates */
    enum model_norms norms;
    bool layernorm; /* but those of heads, norms take the mean away and have a bias */
    enum kn_act act;
    const uint8_t *layers; /* [L] MODEL_LAYER_… bits; NULL: 0 everywhere */
    unsigned window;       /* keys that a row of a local layer sees, its own included; 0: all */
    unsigned chunk;        /* or these begin at a multiple of this (kn_attn_args); 0: at key 0 */
    /* Queries of layers that do not rotate are times log1p(floor((position + 1) / temp_floor)) *
     * temp_scale + 1 (Llama 4's attention temperature); temp_floor 0: are not. */
    float temp_floor, temp_scale;
    unsigned n_rot; /* of the K dims of a head the first so many rotate */
    struct model_rope rope, rope_local;
    float attn_scale;          /* usually 1/sqrt(K) */
    float attn_cap, logit_cap; /* bounds of scores and logits (kn_softcap()); 0: none */
    float embed_scale;         /* of embeddings on their way in */
    float logit_scale;         /* of the head's products */
    bool file_f32;             /* weights stored as F32 (decides dtype auto) */
    bool file_bf16_or_less;    /* 16 bits or fewer per weight */
    unsigned n_packed;         /* linear layers of a quantization_config (packed.h), and of them */
    unsigned n_packed_apart;   /* those that no form of codes fits: they come as values alone */
    uint64_t fingerprint[2];   /* of configuration and weights */
};
enum model_w {                  /* weight kinds; per-layer ones take a layer index */
               MODEL_EMBED,     /* [V, D] */
               MODEL_NORM_OUT,  /* [D] */
               MODEL_LM_HEAD,   /* [V, D]; the embedding when tied */
               MODEL_NORM_ATTN, /* [D] before attention */
               MODEL_NORM_FFN,  /* [D] and before the feed-forward part */
               MODEL_Q,
               MODEL_K,
               MODEL_V, /* [H*K, D], [G*K, D], [G*K, D] */
               MODEL_O, /* [D, H*K] */
               MODEL_GATE,
               MODEL_UP,   /* [F, D] */
               MODEL_DOWN, /* [D, F] */
               MODEL_Q_BIAS,
               MODEL_K_BIAS,
               MODEL_V_BIAS,
               MODEL_O_BIAS, /* vectors */
               MODEL_Q_NORM,
               MODEL_K_NORM, /* [K]; wide: [H*K], [G*K] */
               MODEL_POST_ATTN,
               MODEL_POST_FFN, /* [D] norms behind these two */
               MODEL_ROUTER,   /* [experts.n, D] */
               MODEL_EXPERT_GATE,
               MODEL_EXPERT_UP,   /* [experts.n * experts.F, D]: one expert below the other */
               MODEL_EXPERT_DOWN, /* [experts.n * D, experts.F] */
               MODEL_SHARED_GATE,
               MODEL_SHARED_UP,     /* [shared_F, D] */
               MODEL_SHARED_DOWN,   /* [D, shared_F] */
               MODEL_SHARED_ROUTER, /* [D] */
               MODEL_SINKS,         /* [H] */
               MODEL_ROUTER_BIAS,   /* [experts.n] */
               MODEL_EXPERT_GATE_BIAS,
               MODEL_EXPERT_UP_BIAS,   /* [experts.n * experts.F, 1] */
               MODEL_EXPERT_DOWN_BIAS, /* [experts.n * D, 1] */
               MODEL_NORM_OUT_BIAS,    /* [D], of the model as a whole, and of layers: */
               MODEL_NORM_ATTN_BIAS,
               MODEL_NORM_FFN_BIAS,
               MODEL_W_COUNT
};
struct model;
struct gguf;

int model_open(const char *path, struct model **ret, struct err *err);
void model_close(struct model *m);
const struct model_cfg *model_config(const struct model *m);
bool model_has(const struct model *m, enum model_w w, unsigned layer);
/* Rows [row0, row0+n) as f32 into out [n, row length]; vectors are one row. */
int model_rows(const struct model *m, enum model_w w, unsigned layer, size_t row0, size_t n,
               float *out);
/* How the file has the rows of w; all 0: f32, or there is no file. */
struct codes_form model_form(const struct model *m, enum model_w w, unsigned layer);
/* n of its rows, taken apart into the arrays of `rows`, for which model_codes_place() finds places
 * in n times model_codes_room() bytes, aligned to 2. A weight that is f32 has none: -EINVAL. */
size_t model_codes_room(size_t cols); /* even */
void model_codes_place(size_t cols, size_t n, void *room, struct codes_row *ret);
int model_codes(const struct model *m, enum model_w w, unsigned layer, size_t row0, size_t n,
                const struct codes_row *rows);
/* How many rows are best taken at a time: enough for whole lines of cache, and for vectors. */
enum { MODEL_CODES_GROUP_MAX = 128 };
size_t model_codes_group(const struct model *m, enum model_w w, unsigned layer);
/* What was read so far is packed: pages of the files leave the process (map_drop_pages()). */
void model_drop_pages(const struct model *m);
/* This layer is packed next: what of it is on a disk alone is asked for. */
void model_read_ahead(const struct model *m, unsigned layer);
/* What matrix w is drawn from, its rows one after another; false: it is in a file. */
struct rng_field;
bool model_random(const struct model *m, enum model_w w, unsigned layer, struct rng_field *ret);
size_t model_w_rows(const struct model *m, enum model_w w); /* and row length: */
size_t model_w_cols(const struct model *m, enum model_w w);
/* The rope settings r of c as they hold for contexts of ctx tokens: of two sets of factors one. A
 * core keeps to it for all its prompts, so that what it computes is one function. */
struct model_rope model_rope_for(const struct model_rope *r, unsigned ctx);
/* inv_freq [n_rot/2] and the attention factor from the rope settings (f32 arithmetic as in HF). */
void model_rope_freqs(const struct model_cfg *c, const struct model_rope *r, float *ret_inv_freq,
                      float *ret_mscale);
static inline bool model_layer_is(const struct model_cfg *c, unsigned layer, unsigned bit)
{
    return c->layers && c->layers[layer] & bit;
}
/* Where the tokenizer lives: the GGUF (borrow) or NULL, and the folder or file path. */
const struct gguf *model_gguf(const struct model *m);
const char *model_path(const struct model *m);

#endif
