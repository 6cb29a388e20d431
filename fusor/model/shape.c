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
static const struct shape {
    const char *name, *arch;
    unsigned L, D, H, G, K, F, V, ctx_max;
    float eps;
    double rope_base;
    bool qk_norm, tied;
} shapes[] = {
    /* HuggingFaceTB/SmolLM2-135M-Instruct */
    {"smollm2", "llama", 30, 576, 9, 3, 64, 1536, 49152, 8192, 1e-5f, 1e5, false, true},
    /* mistralai/Mistral-7B-Instruct-v0.2 */
    {"mistral-7b", "mistral", 32, 4096, 32, 8, 128, 14336, 32000, 32768, 1e-5f, 1e6, false, false},
    /* 01-ai/Yi-34B-Chat */
    {"yi-34b", "llama", 60, 7168, 56, 8, 128, 20480, 64000, 4096, 1e-5f, 5e6, false, false},
    /* meta-llama/Meta-Llama-3-70B-Instruct */
    {"llama-70b", "llama", 80, 8192, 64, 8, 128, 28672, 128256, 8192, 1e-5f, 5e5, false, false},
    /* Qwen/Qwen3-8B */
    {"qwen3-8b", "qwen3", 36, 4096, 32, 8, 128, 12288, 151936, 40960, 1e-6f, 1e6, true, false},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static int unknown(const char *text, struct err *err)
{
    char known[96] = "";
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
    const struct shape *s = NULL;
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
    struct model_cfg c = {.L = L,
                          .D = s->D,
                          .H = s->H,
                          .G = s->G,
                          .K = s->K,
                          .F = s->F,
                          .V = s->V,
                          .ctx_max = s->ctx_max,
                          .rms_eps = s->eps,
                          .qk_norm = s->qk_norm,
                          .tied = s->tied,
                          .rope = {.base = s->rope_base},
                          .attn_scale = 1 / sqrtf((float)s->K),
                          .file_bf16_or_less = true};
    (void)snprintf(c.arch, sizeof c.arch, "%s", s->arch);
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
    const double spread = w == MODEL_EMBED                  ? token
                          : w == MODEL_LM_HEAD              ? logit
                          : w == MODEL_Q || w == MODEL_K    ? keep * sqrt(2)
                          : w == MODEL_O || w == MODEL_DOWN ? keep * token / sqrt(2.0 * c->L)
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
