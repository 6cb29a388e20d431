/* prompt_kit: prompts made of stored chunks, misses and prefixes, run over the kit's tiny model. */
#ifndef TESTS_UNIT_FUSOR_PROMPT_KIT_H
#define TESTS_UNIT_FUSOR_PROMPT_KIT_H

#include "tests/unit/fusor/blend_kit.h"

enum { V_MAX = 96, T_MAX = 400, N_PARTS = 20 };

/* A prompt made of parts: 'S' one sink token, 'g' glue, 'm' miss (a range without KV), 'p' exact
 * prefix, 'A'…'D' chunks (the same letter is the same chunk). */
struct prompt {
    struct kit *k;
    int32_t tok[T_MAX];
    uint32_t n;
    struct fus_range range[N_PARTS];
    struct kit_chunk *of_range[N_PARTS];
    size_t n_range;
    struct kit_chunk chunk[4], prefix;
    int32_t chunk_tok[4][T_MAX];
    bool have[4], have_prefix;
};
struct result {
    float logits[V_MAX];
    int32_t sel[T_MAX];
    size_t n_sel;
    struct fus_report report;
};

void prompt_init(struct prompt *p, struct kit *k, const char *parts);
void prompt_fini(struct prompt *p);
void add_tokens(struct prompt *p, uint64_t seed, uint32_t n); /* random ones */
struct fus_plan plan_of(const struct prompt *p, enum pol_strategy s, float ratio);
/* Sources for a plan of it; each is taken by a prefill that begins. */
void use_sources(struct prompt *p);
/* A plan that did not begin has touched no source. */
void forget_sources(struct prompt *p);
int run_on(struct fus_session *s, struct prompt *p, const struct fus_plan *plan,
           struct result *res);
void run_plan(struct prompt *p, const struct fus_plan *plan, struct result *res);
void run(struct prompt *p, enum pol_strategy s, float ratio, struct result *res);
/* Logits of the same row, computed among other rows: equal to the bit where the GEMM keeps rows
 * apart. */
void same_row(const struct kit *k, const float *a, const float *b);
void same_logits(const struct kit *k, const struct result *a, const struct result *b);
double max_diff(const struct kit *k, const float *a, const double *b);

#endif
