/* sample: from logits to a token: penalties, bias, temperature, top-k, top-p, min-p, seed.
 *
 * Order: logit_bias, repetition/presence/frequency penalties, what has no chance, then temperature,
 * top-k, top-p of what that leaves, min-p; temperature 0 is greedy (ties to the lower id). Logprobs
 * are of the distribution before temperature and truncation (as OpenAI reports them). The choice
 * itself is kernels/draw.h's: deterministic for a seed, and the same whether a token is picked here
 * or drawn where its logits are (kn_draw()). One sampler per choice. Thread: one at a time. */
#ifndef FUSOR_CORE_SAMPLE_H
#define FUSOR_CORE_SAMPLE_H

#include "kernels/draw.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FUS_LOGPROBS_MAX = 20 };
struct fus_bias {
    int32_t id;
    float bias;
};
struct fus_sampling {
    float temperature, top_p, min_p; /* defaults 1, 1, 0 */
    int32_t top_k;                   /* 0 or -1 = off */
    float presence, frequency;       /* 0 */
    float repetition;                /* 1 */
    uint64_t seed;
    const struct fus_bias *bias; /* copied */
    size_t n_bias;
    int n_logprobs; /* -1 = none wanted, 0 = only the chosen token's, up to FUS_LOGPROBS_MAX */
};
struct fus_picked {
    int32_t id;
    float logprob;
    int n_top;
    int32_t top_id[FUS_LOGPROBS_MAX];
    float top_logprob[FUS_LOGPROBS_MAX];
};
struct fus_sampler;
int fus_sampler_create(const struct fus_sampling *p, size_t n_vocab, struct fus_sampler **ret);
void fus_sampler_destroy(struct fus_sampler *s);
void fus_sampler_see(struct fus_sampler *s, int32_t id, bool prompt); /* feeds the penalties */
/* The logits are reported: only fus_sampler_pick() will do. */
bool fus_sampler_looks(const struct fus_sampler *s);
/* Instead of a pick, where the sampler does not look: what kn_edit() and kn_draw() need to make the
 * same choice. Each draw is good for one token, edits until the next see(). */
struct kn_draw fus_sampler_draw(struct fus_sampler *s);
/* The last n draws were for tokens that nobody took. */
void fus_sampler_put_back(struct fus_sampler *s, size_t n);
/* Does what has been seen change later draws? */
bool fus_sampler_learns(const struct fus_sampler *s);
const struct kn_edit *fus_sampler_edits(const struct fus_sampler *s, size_t *ret_n);
struct fus_chances {       /* which ids have one; zero: all */
    const int32_t *banned; /* [n_banned] have none (min_tokens: EOS) */
    size_t n_banned;
    const uint64_t *allowed; /* one bit each [n_vocab], in words; NULL: all */
};
/* logits [n_vocab] are overwritten. -EBADMSG: no id has a chance. */
int fus_sampler_pick(struct fus_sampler *s, float *logits, const struct fus_chances *c,
                     struct fus_picked *ret);

/* KL(p || q) in nats of the softmax of two rows of n logits; NAN when one is no number. ret_agree:
 * the same best id. */
double fus_kl(const float *p, const float *q, size_t n, bool *ret_agree);

#endif
