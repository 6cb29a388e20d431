/* The families, one row each. Source of what a row says: the configuration and modelling files of
 * transformers; of GGUF's side, llama.cpp's loader of the architecture. */
#include "fusor/model/arch.h"

#include <string.h>

static const char *const sandwich_names[] = {
    "input_layernorm.weight", "pre_feedforward_layernorm.weight", "post_attention_layernorm.weight",
    "post_feedforward_layernorm.weight"};

static const char *const behind_names[] = {NULL, NULL, "post_attention_layernorm.weight",
                                           "post_feedforward_layernorm.weight"};
static const char *const glm_names[] = {"input_layernorm.weight", "post_attention_layernorm.weight",
                                        "post_self_attn_layernorm.weight",
                                        "post_mlp_layernorm.weight"};

static const struct model_arch archs[] = {
    {.hf = "LlamaForCausalLM",
     .gguf = "llama",
     .name = "llama",
     .interleaved = true,
     .bias_key = true},
    {.hf = "MistralForCausalLM", .name = "mistral", .window = 4096},
    {.hf = "Qwen2ForCausalLM",
     .gguf = "qwen2",
     .name = "qwen2",
     .qkv_bias = true,
     .window = 4096,
     .window_switch = true},
    {.hf = "Qwen3ForCausalLM",
     .gguf = "qwen3",
     .name = "qwen3",
     .qk_norm = true,
     .bias_key = true,
     .window = 4096,
     .window_switch = true},
    {.hf = "Gemma2ForCausalLM",
     .gguf = "gemma2",
     .name = "gemma2",
     .bias_key = true,
     .tied = true,
     .norm_less_one = true,
     .scales_embed = true,
     .caps = true,
     .norms = MODEL_NORMS_AROUND,
     .hf_norms = sandwich_names,
     .act = KN_GELU_TANH,
     .window = 4096,
     .local_every = 2,
     .wide_layers = 46,
     .score_dims = 256,
     .attn_cap = 50,
     .logit_cap = 30},
    {.hf = "Gemma3ForCausalLM",
     .gguf = "gemma3",
     .name = "gemma3",
     .qk_norm = true,
     .bias_key = true,
     .tied = true,
     .norm_less_one = true,
     .scales_embed = true,
     .caps = true,
     .norms = MODEL_NORMS_AROUND,
     .hf_norms = sandwich_names,
     .act = KN_GELU_TANH,
     .window = 4096,
     .local_every = 6,
     .base = 1e6,
     .local_base = 10000,
     .wide_layers = 62,
     .score_dims = 256},
    {.hf = "Phi3ForCausalLM",
     .gguf = "phi3",
     .name = "phi3",
     .packed_qkv = true,
     .packed_ffn = true,
     .partial = true,
     .old_longrope = true},
    {.hf = "GraniteForCausalLM",
     .gguf = "granite",
     .name = "granite",
     .interleaved = true,
     .bias_key = true,
     .multipliers = true},
    {.hf = "SmolLM3ForCausalLM",
     .gguf = "smollm3",
     .name = "smollm3",
     .interleaved = true,
     .bias_key = true,
     .tied = true,
     .window_switch = true,
     .nope_every = 4,
     .base = 2e6},
    {.hf = "Olmo2ForCausalLM",
     .gguf = "olmo2",
     .name = "olmo2",
     .qk_norm = true,
     .qk_norm_wide = true,
     .bias_key = true,
     .eps = 1e-5,
     .norms = MODEL_NORMS_BEHIND,
     .hf_norms = behind_names},
    {.hf = "Glm4ForCausalLM",
     .gguf = "glm4",
     .name = "glm4",
     .interleaved = true,
     .hf_interleaved = true,
     .qkv_bias_key = true,
     .packed_ffn = true,
     .partial = true,
     .part = 0.5,
     .eps = 1.5625e-7,
     .norms = MODEL_NORMS_AROUND,
     .hf_norms = glm_names},
};
enum { N_ARCHS = sizeof archs / sizeof *archs };

const struct model_arch *model_arch_by_hf(const char *name)
{
    for (size_t i = 0; i < N_ARCHS; i++)
        if (archs[i].hf && strcmp(archs[i].hf, name) == 0) return &archs[i];
    return NULL;
}

const struct model_arch *model_arch_by_gguf(const char *name)
{
    for (size_t i = 0; i < N_ARCHS; i++)
        if (archs[i].gguf && strcmp(archs[i].gguf, name) == 0) return &archs[i];
    return NULL;
}
