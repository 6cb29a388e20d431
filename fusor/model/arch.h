/* arch: what an architecture's name says that its files do not. Inside of model. Thread: any. */
#ifndef FUSOR_MODEL_ARCH_H
#define FUSOR_MODEL_ARCH_H

#include "fusor/model/model.h"

struct model_arch_experts {
    const char *width;       /* config.json: key of an expert's width; NULL: there are none */
    bool optional;           /* GGUF: whether there are is for the file to say */
    bool renorm;             /* weights of those used sum to 1, unless GGUF's file says it, */
    bool renorm_key;         /* or config.json's norm_topk_prob, without which they do not */
    bool shared;             /* there is one for all tokens */
    bool biases;             /* router and experts have them */
    bool mixtral_names;      /* safetensors call them as Mixtral does */
    bool in_turns;           /* safetensors: gate and up rows take turns; MXFP4 is allowed */
    bool in_columns;         /* safetensors: rows are columns, those of gates before those of ups */
    bool scales_input;       /* as of struct model_experts */
    const char *dense_width; /* config.json: key of the width of layers without experts */
    const char *router;      /* safetensors; NULL: "mlp.gate.weight" */
    const char *part;        /* safetensors: what "mlp" is called; NULL: that */
    unsigned no_unit;        /* GGUF: with so many, qk_unit does not hold */
};
struct model_arch_window { /* config.json */
    unsigned size;         /* of a file without the key */
    bool has_switch;       /* use_sliding_window says whether there is one, */
    unsigned begin;        /* and max_window_layers from which layer on; this without the key */
    bool by_types;         /* but layer_types must say which layers have it */
    unsigned chunk;        /* instead of one: attention_chunk_size of a file without the key */
    bool tempered; /* with an attention temperature, unless attn_temperature_tuning says no */
};
struct model_arch {
    const char *hf;       /* of "architectures" in config.json; NULL: GGUF alone */
    const char *hf_outer; /* of a model around it, whose text_config is this one's; or NULL */
    const char *gguf;     /* of general.architecture; NULL: Hugging Face alone */
    const char *name;
    bool interleaved;    /* pairs of rotated dims stand side by side in GGUF's Q and K rows, */
    bool hf_interleaved; /* and in safetensors, too */
    bool qkv_bias, qk_norm, qk_norm_wide;
    bool qk_unit;  /* as of struct model_cfg, unless config.json's use_qk_norm says no */
    bool bias_key; /* config.json: attention_bias adds q, k, v and o biases (with qkv_bias: which
                      are there without the key), */
    const char *qkv_bias_key; /* or this key q, k and v biases alone; without it, qkv_bias */
    bool layernorm;           /* as of struct model_cfg */
    bool packed_qkv;          /* Q, K and V rows are one tensor, */
    bool packed_ffn;          /* and so are gate and up rows */
    bool norm_less_one;       /* safetensors have norms less 1 */
    bool scales_embed;        /* embeddings are multiplied by sqrt(D) */
    bool multipliers;         /* of embeddings, residual stream, scores and logits */
    bool caps;                /* of scores and logits */
    bool partial;             /* may rotate a part of each head; */
    double part;              /* config.json: which, without the key; 0: all */
    bool old_longrope;        /* config.json: rope types "su" and "yarn" are longrope */
    bool tied;     /* config.json: without tie_word_embeddings the head is the embeddings */
    bool sinks;    /* heads have sinks */
    bool own_yarn; /* yarn's correction range is not rounded, which GGUF cannot say, and config.json
                      must have its settings */
    enum model_norms norms;
    const char *const *hf_norms; /* [4] tensors of MODEL_NORM_ATTN and on; NULL: as Llama's */
    const char *gguf_norm_ffn;   /* tensor of MODEL_NORM_FFN; NULL: as Llama's */
    enum kn_act act;
    struct model_arch_window window; /* of local layers */
    unsigned
        local_every; /* n: layers are local but every n-th; 0: all are, where there is a window */
    unsigned nope_every;  /* every n-th layer does not rotate; 0: all do */
    double eps;           /* config.json: without the key; 0: 1e-6 */
    double base;          /* of the rotation; 0: 10000 */
    double local_base;    /* of local layers; 0: the same */
    unsigned wide_layers; /* GGUF: with so many layers scores are scaled by 1/sqrt(D/H) */
    double score_dims;    /* config.json: query_pre_attn_scalar without the key; 0: there is none */
    double attn_cap, logit_cap; /* without the key */
    struct model_arch_experts experts;
};
/* NULL: unknown. By either name in a config.json. */
const struct model_arch *model_arch_by_hf(const char *name);
const struct model_arch *model_arch_by_gguf(const char *name);

#endif
