/* select: which tokens are rows: the table of strategies, roles from the plan, budgets, and the
 * choice by score. */
#include "fusor/core/prefill_int.h"
#include "fusor/core/profile.h"

#include "base/assert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    POOL = 2,            /* measured: docs/decisions/token-selection.md; tokens a side */
    LAYERS_TO_FILTER = 4 /* with fewer there is nothing to spread over */
};

static const struct fus_method methods[POL_STRATEGY_COUNT] = {
    [POL_HKVD] = {.by_deviation = true},
    [POL_QUERY] = {.pass = PASS_QUERY},
    [POL_QS] = {.pass = PASS_QUERY},
    [POL_SIDE] = {.pass = PASS_SIDE},
};

static int check_ranges(const struct fus_plan *p)
{
    uint32_t end = 0;
    bool chunk_seen = false;
    for (size_t i = 0; i < p->n_range; i++) {
        const struct fus_range *g = &p->range[i];
        if (g->n == 0 || g->tok0 < end || g->n > p->n_tok || g->tok0 > p->n_tok - g->n)
            return -EINVAL;
        /* An exact range has meaning only as an unbroken prefix. */
        if (g->exact && (chunk_seen || g->tok0 != end)) return -EINVAL;
        if (!g->exact) chunk_seen = true;
        end = g->tok0 + g->n;
    }
    for (size_t i = 0; i < p->n_capture; i++) {
        const struct fus_capture *c = &p->capture[i];
        if (c->n == 0 || c->n > p->n_tok || c->tok0 > p->n_tok - c->n) return -EINVAL;
    }
    return 0;
}

int fus_plan_resolve(struct fus_prefill *f)
{
    struct fus_plan *p = &f->plan;
    const struct model_cfg *g = &f->core->cfg;
    struct fus_profile profile;
    if (p->n_tok == 0 || !p->tok || (unsigned)p->strategy >= POL_STRATEGY_COUNT) return -EINVAL;
    f->how = &methods[p->strategy];
    if (p->n_tok > f->s->cap_tokens) return -ERANGE;
    if (!(p->ratio >= 0 && p->ratio <= 1)) return -EINVAL;
    for (uint32_t i = 0; i < p->n_tok; i++)
        if (p->tok[i] < 0 || (unsigned)p->tok[i] >= g->V) return -EINVAL;
    if (p->logits_from == 0 && !p->hidden) p->logits_from = p->n_tok - 1;
    if (p->logits_from > p->n_tok) return -EINVAL;
    fus_profile_default(g, &profile);
    fus_profile_apply(&profile, p);
    if (p->check_layer >= g->L) return -EINVAL;
    if (p->side_layer >= g->L && g->L > 1) return -EINVAL;
    if (f->how->pass == PASS_SIDE) {
        p->score_lo = p->side_layer;
        p->score_hi = p->side_layer + 1;
    }
    if (p->score_hi > g->L || p->score_lo >= p->score_hi) return -EINVAL;
    if (!(p->sense_power > 0 && p->sense_power <= FUS_SENSE_POWER_MAX)) return -EINVAL;
    return check_ranges(p);
}

bool fus_at_built_position(int32_t sink_token, const int32_t *tok, uint32_t tok0)
{
    return sink_token < 0 ? tok0 == 0 : tok0 == 1 && tok[0] == sink_token;
}

/* Tokens that feed logits are always rows, so a range never reaches past logits_from. */
static uint32_t usable(const struct fus_prefill *f, const struct fus_range *g)
{
    const uint32_t limit = f->plan.logits_from;
    if (g->tok0 >= limit) return 0;
    return g->tok0 + g->n > limit ? limit - g->tok0 : g->n;
}

static bool range_used(const struct fus_prefill *f, const struct pre_range *g)
{
    if (!g->active || f->plan.strategy == POL_FULL) return false;
    return g->r.exact || f->plan.strategy != POL_PREFIX;
}

/* A prompt's first token is what all others give the attention to that they have no use for. Where
 * it begins a chunk that was built behind another such token, its KV is that of any token: without
 * it plain reuse lost thirteen times as much (docs/quality.md). */
static void leave_first(struct fus_prefill *f)
{
    if (f->kind[0] != KIND_REUSED || f->n_at_built > 0) return;
    f->kind[0] = KIND_COMPUTED;
    f->n_reusable--;
}

void fus_roles_set(struct fus_prefill *f)
{
    memset(f->kind, KIND_COMPUTED, f->plan.n_tok);
    f->n_reusable = f->n_at_built = f->n_missed = 0;
    size_t n_exact = 0;
    uint32_t last = 0; /* end of the last range */
    bool prefix_whole = true;
    for (size_t i = 0; i < f->n_range; i++) {
        struct pre_range *g = &f->range[i];
        g->r.n = usable(f, &g->r);
        g->ask0 = (uint32_t)(g->r.tok0 - f->n_missed);
        /* Behind a prefix range that failed the later ones no longer start at a known state. */
        const bool broken = g->r.exact && !prefix_whole;
        g->used = range_used(f, g) && g->r.n > 0 && !broken;
        if (g->r.exact && !g->used) {
            prefix_whole = false;
            continue;
        }
        const enum fus_kind kind = !g->used ? KIND_MISSED : g->r.exact ? KIND_EXACT : KIND_REUSED;
        memset(f->kind + g->r.tok0, kind, g->r.n);
        *(g->r.exact ? &n_exact : g->used ? &f->n_reusable : &f->n_missed) += g->r.n;
        if (g->r.at_built && kind == KIND_REUSED) f->n_at_built += g->r.n;
        if (g->r.n > 0) last = g->r.tok0 + g->r.n;
    }
    leave_first(f);
    f->n_suffix = f->plan.n_tok - last;
    if (f->plan.suffix && f->plan.suffix < f->n_suffix) f->n_suffix = f->plan.suffix;
    f->report.n_prefix = (uint32_t)n_exact;
}

/* Tokens of chunks that stand where they were built come last, and only together. */
size_t fus_select_budget(const struct fus_prefill *f)
{
    const size_t k = (size_t)lround((double)f->plan.ratio * (double)f->n_reusable);
    if (k >= f->n_reusable) return f->n_reusable;
    return k < f->n_reusable - f->n_at_built ? k : f->n_reusable - f->n_at_built;
}

static bool is_chunk(const struct pre_range *g)
{
    return g->active && g->used && !g->r.exact;
}

static void nominate(struct fus_prefill *f)
{
    for (size_t i = 0; i < f->n_range; i++) {
        const struct pre_range *g = &f->range[i];
        if (!is_chunk(g) || (g->r.at_built && f->budget < f->n_reusable)) continue;
        for (uint32_t t = g->r.tok0; t < g->r.tok0 + g->r.n; t++)
            if (f->kind[t] == KIND_REUSED) f->b.chosen[t] = CHOICE_CANDIDATE;
    }
}

static size_t candidates(struct fus_prefill *f)
{
    size_t n = 0;
    for (uint32_t t = 0; t < f->plan.n_tok; t++)
        if (f->b.chosen[t] == CHOICE_CANDIDATE) f->b.cand[n++] = (int32_t)t;
    return n;
}

struct top {
    struct fus_prefill *f;
    const float *score;
    size_t n, k;
};

static int top_block(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct top *t = arg;
    const struct fus_prefill *f = t->f;
    const struct pre_buffers *b = &f->b;
    int r = fus_part_copy(f, st, b->cand, t->n * sizeof(*b->cand), true);
    if (r == 0)
        r = kn_top(st, fus_seen(f, t->score), fus_seen(f, b->cand), t->n, t->k,
                   fus_seen(f, b->pick));
    if (r == 0) r = fus_part_copy(f, st, b->pick, t->k * sizeof(*b->pick), false);
    return r < 0 ? r : fus_part_copy(f, st, b->dev, f->plan.n_tok * sizeof(*b->dev), false);
}

/* Of the candidates, by scores that the host has looked at. */
static int top_here(struct fus_prefill *f, const float *score, size_t n, size_t k)
{
    for (size_t i = 0; i < n; i++)
        f->b.cand_score[i] = score[f->b.cand[i]];
    int r = kn_topk(f->b.cand_score, n, k, f->b.pick);
    for (size_t i = 0; r == 0 && i < k; i++)
        f->b.pick[i] = f->b.cand[f->b.pick[i]];
    return r;
}

/* The k best of the candidates become rows. Deviation may still be on its way: the device picks
 * behind what makes it, in the wait for it. */
static int take_best(struct fus_prefill *f, const float *score, size_t k)
{
    struct top t = {f, score, candidates(f), k};
    ASSERT(t.k <= t.n);
    int r = f->how->by_deviation ? kn_wide(f->core->dev, 1, f->plan.cancel, top_block, &t)
                                 : top_here(f, score, t.n, t.k);
    for (size_t i = 0; r == 0 && i < t.k; i++)
        f->b.chosen[f->b.pick[i]] = CHOICE_ROW;
    return r;
}

/* The share of the score that those hold which were not taken. */
static double share_left(const struct fus_prefill *f, const float *score)
{
    double total = 0, left = 0;
    for (uint32_t t = 0; t < f->plan.n_tok; t++) {
        if (f->b.chosen[t] == CHOICE_OUT) continue;
        total += (double)score[t];
        if (f->b.chosen[t] == CHOICE_CANDIDATE) left += (double)score[t];
    }
    return total > 0 ? left / total : 0;
}

/* Gradual filtering (CacheBlend, arXiv 2405.16444): deviation is known for every token at the check
 * layer alone, so twice as many are taken there, compared again where the first stage ends, an
 * eighth of the depth on, and so many go that the mean over the layers is the budget. Measured
 * against one set for all layers: docs/quality.md. Of n candidates, in this layer. */
static size_t layer_budget(const struct fus_prefill *f, size_t n)
{
    const unsigned L = f->core->cfg.L, layers = L - f->plan.check_layer;
    const unsigned wide = L / 8 > 1 ? L / 8 : 1;
    double share = 1;
    if (f->how->by_deviation && f->budget < f->n_reusable && layers >= LAYERS_TO_FILTER)
        share = f->layer - f->plan.check_layer < wide ? 2 : (layers - 2.0 * wide) / (layers - wide);
    const size_t k = (size_t)lround(share * (double)f->budget);
    return k < n ? k : n;
}

int fus_select(struct fus_prefill *f)
{
    const bool again = f->n_rows_chosen > 0;
    const float *score = f->how->by_deviation ? f->b.dev : f->b.score;
    if (again) {
        for (uint32_t t = 0; t < f->plan.n_tok; t++)
            if (f->b.chosen[t] == CHOICE_ROW) f->b.chosen[t] = CHOICE_CANDIDATE;
    } else {
        f->budget = fus_select_budget(f);
        nominate(f);
    }
    const size_t k = layer_budget(f, again ? f->n_rows_chosen : candidates(f));
    int r = take_best(f, score, k);
    if (r < 0) return r;
    f->n_rows_chosen = k;
    if (!again)
        *(f->how->by_deviation ? &f->report.deviation_left : &f->report.score_left) =
            share_left(f, score);
    for (uint32_t t = 0; t < f->plan.n_tok; t++) {
        if (!again && f->b.chosen[t] == CHOICE_ROW) f->b.sel[f->n_sel++] = (int32_t)t;
        if (f->b.chosen[t] == CHOICE_CANDIDATE) f->b.chosen[t] = CHOICE_OUT;
    }
    return 0;
}

bool fus_select_again(const struct fus_prefill *f)
{
    return f->how->by_deviation && f->layer > f->plan.check_layer &&
           layer_budget(f, f->n_rows_chosen) < f->n_rows_chosen;
}

/* One layer seen by rows that are blind to the chunks points beside the token as often as at it:
 * each takes the mean of its neighbourhood in the chunk. */
static void pool(struct fus_prefill *f)
{
    float *mean = f->b.cand_score; /* filled later on */
    for (size_t i = 0; i < f->n_range; i++) {
        const struct pre_range *g = &f->range[i];
        if (!is_chunk(g)) continue;
        float *s = f->b.score + g->r.tok0;
        for (uint32_t t = 0; t < g->r.n; t++) {
            const uint32_t lo = t < POOL ? 0 : t - POOL,
                           hi = t + POOL < g->r.n ? t + POOL : g->r.n - 1;
            float sum = 0;
            for (uint32_t j = lo; j <= hi; j++)
                sum += s[j];
            mean[t] = sum / (float)(hi - lo + 1);
        }
        memcpy(s, mean, g->r.n * sizeof(*s));
    }
}

/* Ranges whose sensitivity is not known yet count as the average of those whose is: what the query
 * says decides between their tokens, and no chunk is put first for being new. */
void fus_select_weigh(struct fus_prefill *f)
{
    float *s = f->b.cand_score; /* filled later on */
    double sum = 0;
    if (f->how->pass == PASS_SIDE) pool(f);
    f->report.n_sensitivity_known = 0;
    for (int known = 1; known >= 0; known--)
        for (size_t i = 0; i < f->n_range; i++) {
            const struct pre_range *g = &f->range[i];
            if (!is_chunk(g)) continue;
            const struct kv_source *src = &g->r.src;
            const bool has = src->ops->sensitivity && src->ops->sensitivity(src->ctx, s) == 1;
            if (has != known) continue;
            const float mean =
                f->report.n_sensitivity_known ? (float)(sum / f->report.n_sensitivity_known) : 1;
            for (uint32_t t = 0; t < g->r.n; t++) {
                const float weight = has ? powf(s[t], f->plan.sense_power) : mean;
                f->b.score[g->r.tok0 + t] *= weight;
                sum += has ? (double)weight : 0;
            }
            if (has) f->report.n_sensitivity_known += g->r.n;
        }
}

/* The first k tokens of every reused chunk except those whose KV is exact; at ratio 1 all. */
void fus_select_sink(struct fus_prefill *f)
{
    const size_t budget = fus_select_budget(f);
    const bool all = budget == f->n_reusable;
    size_t n_chunks = 0;
    for (size_t i = 0; i < f->n_range; i++)
        n_chunks += is_chunk(&f->range[i]) && (all || !f->range[i].r.at_built);
    if (n_chunks == 0) return;
    size_t k = all ? SIZE_MAX : (budget + n_chunks / 2) / n_chunks;
    if (k == 0 && f->plan.ratio > 0) k = 1;
    for (size_t i = 0; i < f->n_range; i++) {
        const struct pre_range *g = &f->range[i];
        if (!is_chunk(g) || (g->r.at_built && !all)) continue;
        for (uint32_t t = 0; t < g->r.n && t < k; t++) {
            if (f->kind[g->r.tok0 + t] != KIND_REUSED) continue;
            f->b.chosen[g->r.tok0 + t] = CHOICE_ROW;
            f->b.sel[f->n_sel++] = (int32_t)(g->r.tok0 + t);
        }
    }
}

void fus_prefill_heat(const struct fus_prefill *f, uint8_t *out)
{
    const float *score = f->how->by_deviation ? f->b.dev : f->b.score; /* 0 where none was made */
    float most = 0;
    for (uint32_t t = 0; t < f->plan.n_tok; t++)
        if (f->kind[t] == KIND_REUSED && score[t] > most) most = score[t];
    for (uint32_t t = 0; t < f->plan.n_tok; t++) {
        const float share = most > 0 && score[t] > 0 ? score[t] / most : 0;
        out[t] = f->kind[t] == KIND_REUSED ? (uint8_t)lroundf(sqrtf(share) * FUS_HEAT_MAX)
                                           : FUS_HEAT_NONE;
    }
    for (size_t i = 0; i < f->n_sel; i++)
        out[f->b.sel[i]] |= FUS_HEAT_AGAIN;
}

/* Every row of [tok0, tok0+n) is computed, and nothing before it is an isolated chunk. */
bool fus_rows_exact(const struct fus_prefill *f, uint32_t tok0, uint32_t n)
{
    for (uint32_t t = 0; t < tok0 + n; t++) {
        if (f->kind[t] == KIND_REUSED) return false;
        if (t >= tok0 && f->kind[t] == KIND_EXACT) return false;
    }
    return true;
}
