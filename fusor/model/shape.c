/* Published configurations, and weights for them that were never trained.
 *
 * A matrix is uniform noise that keeps the spread of what it is given. What layers add to the
 * residual stream is smaller, by the root of how many additions there are, so that a token stays
 * itself through any number of layers and nothing comes near a format's end (as GPT-2 starts:
 * Radford et al. 2019). Queries and keys are wider by the square root of 2: scores then spread by
 * 2, and a row's attention rests on about n / e^4 of its n keys, neither on all nor on one. Logits
 * spread by 3. Norms are 1. Values come from their place (rng_field), so that any device can make
 * them where they are needed and nothing is stored. */
#include "fusor/model/shape.h"

#include "base/rng.h"
#include "fusor/model/model_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Source: config.json of the repository on huggingface.co that each row names. */
#define DIMS(l, d, h, g, k, f, v, ctx)                                                             \
    .L = l, .D = d, .H = h, .G = g, .K = k, .F = f, .V = v, .ctx_max = ctx
static const struct model_cfg shapes[] = {
    /* HuggingFaceTB/SmolLM2-135M-Instruct */
    {"llama", "smollm2", DIMS(30, 576, 9, 3, 64, 1536, 49152, 8192), .rms_eps = 1e-5f,
     .rope.base = 1e5, .tied = true},
    /* meta-llama/Llama-3.2-3B-Instruct */
    {"llama", "llama-3.2-3b", DIMS(28, 3072, 24, 8, 128, 8192, 128256, 131072), .rms_eps = 1e-5f,
     .rope = {.type = ROPE_LLAMA3,
              .base = 5e5,
              .factor = 32,
              .low_freq_factor = 1,
              .high_freq_factor = 4,
              .orig_ctx = 8192},
     .tied = true},
    /* mistralai/Mistral-7B-Instruct-v0.2 */
    {"mistral", "mistral-7b", DIMS(32, 4096, 32, 8, 128, 14336, 32000, 32768), .rms_eps = 1e-5f,
     .rope.base = 1e6},
    /* 01-ai/Yi-34B-Chat */
    {"llama", "yi-34b", DIMS(60, 7168, 56, 8, 128, 20480, 64000, 4096), .rms_eps = 1e-5f,
     .rope.base = 5e6},
    /* meta-llama/Meta-Llama-3-70B-Instruct */
    {"llama", "llama-70b", DIMS(80, 8192, 64, 8, 128, 28672, 128256, 8192), .rms_eps = 1e-5f,
     .rope.base = 5e5},
    /* Qwen/Qwen3-8B */
    {"qwen3", "qwen3-8b", DIMS(36, 4096, 32, 8, 128, 12288, 151936, 40960), .rms_eps = 1e-6f,
     .rope.base = 1e6, .qk_norm = true},
    /* mistralai/Mixtral-8x7B-Instruct-v0.1 */
    {"mixtral", "mixtral-8x7b", DIMS(32, 4096, 32, 8, 128, 0, 32000, 32768), .rms_eps = 1e-5f,
     .rope.base = 1e6, .experts = {8, 2, 14336, 0, true}},
    /* Qwen/Qwen3-30B-A3B */
    {"qwen3moe", "qwen3-30b-a3b", DIMS(48, 2048, 32, 4, 128, 0, 151936, 40960), .rms_eps = 1e-6f,
     .rope.base = 1e6, .qk_norm = true, .experts = {128, 8, 768, 0, true}},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static int unknown(const char *text, struct err *err)
{
    char known[128] = "";
    size_t at = 0;
    for (size_t i = 0; i < N_SHAPES; i++)
        at +=
            (size_t)snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", shapes[i].name);
    return err_set(err, -EINVAL, "shape \"%.40s\" is unknown (known: %s; NAME:layers=N for fewer)",
                   text, known);
}

int shape_parse(const char *text, struct model_cfg *ret, struct err *err)
{
    static const char layers[] = "layers=";
    const char *colon = strchr(text, ':');
    const size_t len = colon ? (size_t)(colon - text) : strlen(text);
    const struct model_cfg *s = NULL;
    for (size_t i = 0; i < N_SHAPES; i++)
        if (strlen(shapes[i].name) == len && memcmp(shapes[i].name, text, len) == 0) s = &shapes[i];
    if (!s) return unknown(text, err);
    unsigned L = s->L;
    if (colon) {
        const char *n = colon + 1 + sizeof layers - 1;
        char *end = NULL;
        const bool named = strncmp(colon + 1, layers, sizeof layers - 1) == 0;
        const unsigned long v = named && *n >= '0' && *n <= '9' ? strtoul(n, &end, 10) : 0;
        if (v < 1 || v > MODEL_L_MAX || *end) return unknown(text, err);
        L = (unsigned)v;
    }
    struct model_cfg c = *s;
    c.L = L;
    int r = model_settle_experts(&c, err);
    if (r < 0) return r;
    c.attn_scale = 1 / sqrtf((float)c.K);
    c.embed_scale = c.logit_scale = 1;
    c.n_rot = c.K;
    c.rope_local = c.rope;
    c.file_bf16_or_less = true;
    (void)snprintf(c.name, sizeof c.name, "%s", text);
    *ret = c;
    return 0;
}

struct rng_field shape_field(const struct model *m, enum model_w w, unsigned layer)
{
    const struct model_cfg *c = &m->cfg;
    const double keep = 1 / sqrt((double)model_w_cols(m, w)), logit = 3 / sqrt((double)c->D),
                 token = c->tied ? logit : 1;
    if (w == MODEL_LM_HEAD && c->tied) w = MODEL_EMBED;
    const double spread = w == MODEL_EMBED               ? token
                          : w == MODEL_LM_HEAD           ? logit
                          : w == MODEL_Q || w == MODEL_K ? keep * sqrt(2)
                          : w == MODEL_O || w == MODEL_DOWN || w == MODEL_EXPERT_DOWN
                              ? keep * token / sqrt(2.0 * c->L)
                              : keep;
    struct rng r = {(uint64_t)w << 32 | layer};
    return (struct rng_field){.seed = rng_next(&r), .scale = (float)(sqrt(3) * spread)};
}

void shape_rows(const struct model *m, enum model_w w, unsigned layer, size_t row0, size_t n,
                float *out)
{
    const size_t cols = model_w_cols(m, w);
    const struct rng_field f = shape_field(m, w, layer);
    if (model_w_rows(m, w) > 1)
        for (size_t i = 0; i < n * cols; i++)
            out[i] = rng_field_at(&f, row0 * cols + i);
    else
        for (size_t i = 0; i < n * cols; i++)
            out[i] = w == MODEL_Q_NORM || w == MODEL_K_NORM ? (float)sqrt(2) : 1;
}
