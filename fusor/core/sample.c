/* sample: bias and penalties as a list of edits, then the choice of kernels/draw.h; what
 * is reported beside it is taken from a heap in order of probability. */
#include "fusor/core/sample.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/rng.h"

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
    int32_t *heap;  /* [V]; NULL where nothing is reported */
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
    if (p->n_logprobs > 0) {
        s->heap = mem_alloc(n_vocab * sizeof(*s->heap));
        ok = ok && s->heap;
    }
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
    mem_free(s->heap);
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

static bool draws(const struct fus_sampler *s)
{
    return s->p.temperature > 1e-5f;
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

struct kn_draw fus_sampler_draw(struct fus_sampler *s)
{
    const struct fus_sampling *p = &s->p;
    if (!draws(s)) return (struct kn_draw){0};
    return kn_draw_of(p->temperature, p->top_k, p->top_p, p->min_p, rng_next(&s->rng));
}

static void adjust(struct fus_sampler *s, float *logits, const int32_t *banned, size_t n_banned)
{
    for (size_t i = 0; i < s->n_edit; i++)
        logits[s->edit[i].id] = draw_edited(logits[s->edit[i].id], &s->edit[i]);
    for (size_t i = 0; i < n_banned; i++)
        if (banned[i] >= 0 && (size_t)banned[i] < s->n_vocab) logits[banned[i]] = -INFINITY;
}

/* ---- heap of ids, the most probable on top (ties: the lower id) ---- */

static bool above(const float *logits, int32_t a, int32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static void sift_down(const float *logits, int32_t *heap, size_t n, size_t i)
{
    const int32_t id = heap[i];
    for (size_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && above(logits, heap[c + 1], heap[c])) c++;
        if (!above(logits, heap[c], id)) break;
        heap[i] = heap[c];
    }
    heap[i] = id;
}

static void heap_make(struct fus_sampler *s, const float *logits)
{
    for (size_t i = 0; i < s->n_vocab; i++)
        s->heap[i] = (int32_t)i;
    for (size_t i = s->n_vocab / 2; i-- > 0;)
        sift_down(logits, s->heap, s->n_vocab, i);
}

static int32_t heap_pop(struct fus_sampler *s, const float *logits, size_t *n)
{
    const int32_t top = s->heap[0];
    s->heap[0] = s->heap[--*n];
    if (*n) sift_down(logits, s->heap, *n, 0);
    return top;
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

static void report_top(struct fus_sampler *s, const float *logits, double lse,
                       struct fus_picked *ret)
{
    size_t left = s->n_vocab;
    const int n = (size_t)s->p.n_logprobs < s->n_vocab ? s->p.n_logprobs : (int)s->n_vocab;
    if (n > 0) heap_make(s, logits);
    for (int i = 0; i < n; i++) {
        ret->top_id[i] = heap_pop(s, logits, &left);
        ret->top_logprob[i] = (float)((double)logits[ret->top_id[i]] - lse);
    }
    ret->n_top = n;
}

int fus_sampler_pick(struct fus_sampler *s, float *logits, const int32_t *banned, size_t n_banned,
                     struct fus_picked *ret)
{
    const size_t V = s->n_vocab;
    adjust(s, logits, banned, n_banned);
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
        report_top(s, logits, lse, ret);
    }
    return 0;
}

double fus_kl(const float *p, const float *q, size_t n, bool *ret_agree)
{
    const int32_t best_p = arg_max(p, n), best_q = arg_max(q, n);
    const double max_p = (double)p[best_p], max_q = (double)q[best_q];
    double sum_p = 0, sum_q = 0, sum = 0;
    for (size_t i = 0; i < n; i++) {
        const double w = exp((double)p[i] - max_p);
        sum_p += w;
        sum_q += exp((double)q[i] - max_q);
        if (w > 0) sum += w * (((double)p[i] - max_p) - ((double)q[i] - max_q));
    }
    *ret_agree = best_p == best_q;
    const double kl = sum / sum_p - log(sum_p) + log(sum_q);
    return kl < 0 ? 0 : kl; /* rounding; NAN stays */
}
