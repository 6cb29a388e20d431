/* sample: bias and penalties as a list of edits, then the choice of kernels/draw.h. */
#include "fusor/core/sample.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/rng.h"
#include "kernels/kn.h"

#include <errno.h>
#include <math.h>
#include <string.h>

struct fus_sampler {
    struct fus_sampling p;
    size_t n_vocab;
    struct rng rng;
    struct kn_edit *edit; /* [n_edit] of all ids that have a bias or were seen */
    uint32_t *n_out;      /* [n_edit] times generated */
    int32_t *edit_of;     /* [V] the place of an id's edit, plus 1; 0: it has none */
    size_t n_edit;
    uint32_t *room; /* [V] of the choice */
};

static int check(const struct fus_sampling *p, size_t n_vocab)
{
    if (n_vocab == 0 || n_vocab > DRAW_ROWS_MAX) return -EINVAL;
    if (!(p->temperature >= 0) || !(p->top_p >= 0 && p->top_p <= 1)) return -EINVAL;
    if (!(p->min_p >= 0 && p->min_p <= 1) || !(p->repetition > 0)) return -EINVAL;
    if (!isfinite(p->temperature) || !isfinite(p->presence) || !isfinite(p->frequency) ||
        !isfinite(p->repetition))
        return -EINVAL;
    if (p->n_logprobs < -1 || p->n_logprobs > FUS_LOGPROBS_MAX) return -EINVAL;
    for (size_t i = 0; i < p->n_bias; i++)
        if (p->bias[i].id < 0 || (size_t)p->bias[i].id >= n_vocab || !isfinite(p->bias[i].bias))
            return -EINVAL;
    return 0;
}

static bool penalizes(const struct fus_sampling *p)
{
    return p->presence != 0 || p->frequency != 0 || p->repetition != 1;
}

/* The place of the id's edit, which is made if there is none. */
static size_t edit_for(struct fus_sampler *s, int32_t id)
{
    if (s->edit_of[id] == 0) {
        s->edit[s->n_edit] = (struct kn_edit){.id = id, .factor = 1};
        s->edit_of[id] = (int32_t)++s->n_edit;
    }
    return (size_t)s->edit_of[id] - 1;
}

int fus_sampler_create(const struct fus_sampling *p, size_t n_vocab, struct fus_sampler **ret)
{
    int r = check(p, n_vocab);
    if (r < 0) return r;
    struct fus_sampler *s = mem_zalloc(sizeof(*s));
    if (!s) return -ENOMEM;
    s->p = *p;
    s->p.bias = NULL;
    s->n_vocab = n_vocab;
    s->rng.state = p->seed;
    s->room = mem_alloc(n_vocab * sizeof(*s->room));
    bool ok = s->room;
    if (penalizes(p) || p->n_bias > 0) {
        const size_t most = penalizes(p) ? n_vocab : p->n_bias; /* untouched pages cost nothing */
        s->edit = mem_alloc(most * sizeof(*s->edit));
        s->n_out = mem_zalloc(most * sizeof(*s->n_out));
        s->edit_of = mem_zalloc(n_vocab * sizeof(*s->edit_of));
        ok = ok && s->edit && s->n_out && s->edit_of;
    }
    if (!ok) {
        fus_sampler_destroy(s);
        return -ENOMEM;
    }
    for (size_t i = 0; i < p->n_bias; i++)
        s->edit[edit_for(s, p->bias[i].id)].bias += p->bias[i].bias;
    *ret = s;
    return 0;
}

void fus_sampler_destroy(struct fus_sampler *s)
{
    if (!s) return;
    mem_free(s->edit);
    mem_free(s->n_out);
    mem_free(s->edit_of);
    mem_free(s->room);
    mem_free(s);
}

/* Presence and frequency count generated tokens (as OpenAI), repetition the prompt as well (as the
 * CTRL paper's users do). */
void fus_sampler_see(struct fus_sampler *s, int32_t id, bool prompt)
{
    const struct fus_sampling *p = &s->p;
    if (!penalizes(p) || id < 0 || (size_t)id >= s->n_vocab) return;
    if (prompt && p->repetition == 1) return;
    const size_t i = edit_for(s, id);
    s->edit[i].factor = p->repetition;
    if (!prompt) s->edit[i].minus = p->presence + p->frequency * (float)++s->n_out[i];
}

bool fus_sampler_learns(const struct fus_sampler *s)
{
    return penalizes(&s->p);
}

bool fus_sampler_looks(const struct fus_sampler *s)
{
    return s->p.n_logprobs >= 0;
}

const struct kn_edit *fus_sampler_edits(const struct fus_sampler *s, size_t *ret_n)
{
    *ret_n = s->n_edit;
    return s->edit;
}

static bool is_greedy(const struct fus_sampler *s)
{
    return !(s->p.temperature > 1e-5f);
}

struct kn_draw fus_sampler_draw(struct fus_sampler *s)
{
    const struct fus_sampling *p = &s->p;
    if (is_greedy(s)) return (struct kn_draw){0};
    return kn_draw_of(p->temperature, p->top_k, p->top_p, p->min_p, rng_next(&s->rng));
}

void fus_sampler_put_back(struct fus_sampler *s, size_t n)
{
    if (!is_greedy(s)) s->rng.state -= n * RNG_STEP;
}

static void forbid(float *l, uint64_t bits)
{
    for (; bits; bits &= bits - 1)
        l[__builtin_ctzll(bits)] = -INFINITY;
}

/* Nearly all ids are allowed, or nearly none: what is less is gone through bit by bit. */
static void keep_allowed(float *logits, size_t n, const uint64_t *allowed)
{
    for (size_t w = 0; w * 64 < n; w++) {
        const size_t end = n - w * 64 < 64 ? n - w * 64 : 64;
        const uint64_t there = end < 64 ? (1ull << end) - 1 : UINT64_MAX;
        float *const l = logits + w * 64;
        float kept[64];
        uint64_t yes = allowed[w] & there;
        if (__builtin_popcountll(yes) > 16) {
            forbid(l, there & ~yes);
            continue;
        }
        memcpy(kept, l, end * sizeof *l);
        for (size_t i = 0; i < end; i++)
            l[i] = -INFINITY;
        for (; yes; yes &= yes - 1)
            l[__builtin_ctzll(yes)] = kept[__builtin_ctzll(yes)];
    }
}

static void adjust(struct fus_sampler *s, float *logits, const struct fus_chances *c)
{
    for (size_t i = 0; i < s->n_edit; i++)
        logits[s->edit[i].id] = draw_edited(logits[s->edit[i].id], &s->edit[i]);
    for (size_t i = 0; i < c->n_banned; i++)
        if (c->banned[i] >= 0 && (size_t)c->banned[i] < s->n_vocab)
            logits[c->banned[i]] = -INFINITY;
    if (c->allowed) keep_allowed(logits, s->n_vocab, c->allowed);
}

/* ---- choosing ---- */

static int32_t arg_max(const float *logits, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

/* Sum of exp(logit - max). */
static double exp_sum(const float *logits, size_t n, double max)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - max);
    return sum;
}

/* The most probable ids, in this order (ties: the lower id first). */
static int report_top(const struct fus_sampler *s, const float *logits, double lse,
                      struct fus_picked *ret)
{
    const int n = (size_t)s->p.n_logprobs < s->n_vocab ? s->p.n_logprobs : (int)s->n_vocab;
    int r = kn_topk(logits, s->n_vocab, (size_t)n, ret->top_id);
    if (r < 0) return r;
    for (int i = 1; i < n; i++) {
        const int32_t id = ret->top_id[i];
        int at = i;
        for (; at > 0 && logits[ret->top_id[at - 1]] < logits[id]; at--)
            ret->top_id[at] = ret->top_id[at - 1];
        ret->top_id[at] = id;
    }
    ret->n_top = 0; /* those that have no chance are not among them */
    for (; ret->n_top < n && logits[ret->top_id[ret->n_top]] > -INFINITY; ret->n_top++)
        ret->top_logprob[ret->n_top] = (float)((double)logits[ret->top_id[ret->n_top]] - lse);
    return 0;
}

int fus_sampler_pick(struct fus_sampler *s, float *logits, const struct fus_chances *c,
                     struct fus_picked *ret)
{
    const size_t V = s->n_vocab;
    adjust(s, logits, c);
    const struct kn_draw how = fus_sampler_draw(s);
    const int32_t id = kn_draw_row(logits, V, &how, s->room);
    if (id < 0) return -EBADMSG; /* no token has a chance */
    *ret = (struct fus_picked){.id = id};
    if (s->p.n_logprobs >= 0) {
        for (size_t i = 0; i < V; i++)
            if (isnan(logits[i])) logits[i] = -INFINITY;
        const double max = (double)logits[arg_max(logits, V)];
        const double lse = max + log(exp_sum(logits, V, max));
        ret->logprob = (float)((double)logits[id] - lse);
        return report_top(s, logits, lse, ret);
    }
    return 0;
}

double fus_kl(const float *p, const float *q, size_t n, bool *ret_agree)
{
    const int32_t best_p = arg_max(p, n), best_q = arg_max(q, n);
    const double z_p = (double)p[best_p] + log(exp_sum(p, n, (double)p[best_p])),
                 z_q = (double)q[best_q] + log(exp_sum(q, n, (double)q[best_q]));
    double kl = 0; /* summed as it is small: of rows that are close nothing cancels */
    for (size_t i = 0; i < n; i++) {
        const double lp = (double)p[i] - z_p, w = exp(lp);
        if (!(w <= 0)) kl += w * (lp - ((double)q[i] - z_q));
    }
    *ret_agree = best_p == best_q;
    return kl < 0 ? 0 : kl; /* rounding; NAN stays */
}
