/* The search. For one strategy, what is left is how many chunks each tier keeps. The chunks of a
 * tier go in one order, most bytes per saved work first, so a number says which. All tiers load at
 * once, and a tier that is done before the others gains nothing by dropping more: so one number
 * says all, the time E by which every tier has to be done. TTFT first falls with E (less to
 * compute) and then rises (longer loads), leaving aside the grain of the chunks: a section search
 * finds the valley and steps of single chunks, tier by tier, its ground. That is some 20
 * predictions per strategy; one whose compute alone is slower than the best so far is not searched.
 * Rejected: dropping greedily from the tier that is waited for (the same result, a prediction per
 * chunk), all splits on a grid (misses the ground with few, large chunks). */
#include "policy/control_int.h"

#include "base/assert.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Chosen: what a decision may cost to be better otherwise. Less would let noise decide between
 * choices that are equal to all who wait for them. */
static const double SLACK = 0.01;
/* Of choices that are equally fast the first: by how little they lose where the floor of their
 * ratio was not measured well (docs/quality.md). */
static const enum pol_strategy PREFERENCE[] = {
    POL_QS, POL_QUERY, POL_SIDE, POL_HKVD, POL_SINK, POL_REUSE,
};
enum { N_STRATEGIES = sizeof PREFERENCE / sizeof *PREFERENCE, SECTIONS = 7, LOOKS_MAX = 64 };

/* The chunks of all tiers, tier after tier, in the order in which each lets go of them, and what
 * remains of a tier when it keeps those from here on. */
struct place {
    uint16_t chunk;
    double dear; /* bytes per second of compute saved */
};
struct rest {
    double tokens, pairs, bytes, last_bytes;
    size_t blind;
};
struct lanes {
    struct place place[POL_CHUNKS_MAX];
    struct rest rest[POL_CHUNKS_MAX + POL_TIERS_MAX]; /* one more per tier: nothing is kept */
    size_t from[POL_TIERS_MAX], n[POL_TIERS_MAX];     /* into place; rest begins at from + tier */
    size_t n_all, n_side;                             /* chunks; with a sidecar in RAM */
};
struct drop { /* how many each tier lets go of */
    uint16_t k[POL_TIERS_MAX];
};
struct found {
    struct drop drop;
    bool keeps[POL_CHUNKS_MAX];
    bool by_chunk; /* keeps is more than drop says */
    struct set set;
    struct pol_prediction p;
    double ratio;
};

/* ---- lanes ---- */

static bool before(const struct place *a, const struct place *b)
{
    return a->dear > b->dear || (a->dear == b->dear && a->chunk < b->chunk);
}

static void sort(struct place *x, size_t n)
{
    static const size_t gaps[] = {57, 23, 10, 4, 1}; /* cited: Ciura 2001 */
    for (size_t g = 0; g < sizeof gaps / sizeof *gaps; g++)
        for (size_t i = gaps[g]; i < n; i++) {
            const struct place p = x[i];
            size_t at = i;
            for (; at >= gaps[g] && before(&p, &x[at - gaps[g]]); at -= gaps[g])
                x[at] = x[at - gaps[g]];
            x[at] = p;
        }
}

static double dearness(const struct prompt *p, const struct pol_chunk_now *c)
{
    const double row = p->cost.row_s + p->cost.kv_row_s;
    const double saved = (double)c->n * row + chunk_pairs(c) * p->cost.pair_s;
    return saved > 0 ? (double)c->bytes / saved : (double)c->bytes;
}

/* What is kept from each place on. */
static void lane_sum(const struct pol_control_in *in, struct lanes *l, size_t tier)
{
    const struct place *x = l->place + l->from[tier];
    struct rest *r = l->rest + l->from[tier] + tier;
    struct rest sum = {0};
    uint16_t last = 0;
    r[l->n[tier]] = sum;
    for (size_t k = l->n[tier]; k-- > 0;) {
        const struct pol_chunk_now *c = &in->chunk[x[k].chunk];
        sum.tokens += (double)c->n;
        sum.pairs += chunk_pairs(c);
        sum.bytes += (double)c->bytes;
        sum.blind += !c->side;
        if (x[k].chunk >= last) {
            last = x[k].chunk;
            sum.last_bytes = (double)c->bytes;
        }
        r[k] = sum;
    }
}

static void lanes_make(const struct pol_control_in *in, const struct prompt *p, struct lanes *l)
{
    const size_t n = chunks_of(in);
    size_t at[POL_TIERS_MAX], sum = 0;
    memset(l->n, 0, sizeof l->n);
    l->n_all = l->n_side = 0;
    for (size_t i = 0; i < n; i++) {
        const struct pol_chunk_now *c = &in->chunk[i];
        if (!chunk_usable(p, c)) continue;
        l->n[c->tier]++;
        l->n_all++;
        l->n_side += c->side;
    }
    for (size_t t = 0; t < p->n_tier; t++) {
        l->from[t] = at[t] = sum;
        sum += l->n[t];
    }
    for (size_t i = 0; i < n; i++) {
        const struct pol_chunk_now *c = &in->chunk[i];
        if (!chunk_usable(p, c)) continue;
        l->place[at[c->tier]++] = (struct place){(uint16_t)i, dearness(p, c)};
    }
    for (size_t t = 0; t < p->n_tier; t++) {
        sort(l->place + l->from[t], l->n[t]);
        lane_sum(in, l, t);
    }
}

/* A single chunk without a sidecar makes `side` wait for its tier: such chunks go first. */
static void lanes_for_side(const struct pol_control_in *in, const struct prompt *p,
                           const struct lanes *all, struct lanes *ret)
{
    size_t at = 0;
    for (size_t t = 0; t < p->n_tier; t++) {
        const struct place *x = all->place + all->from[t];
        ret->from[t] = at;
        for (int round = 0; round < 2; round++)
            for (size_t k = 0; k < all->n[t]; k++)
                if (in->chunk[x[k].chunk].side == round) ret->place[at++] = x[k];
        ret->n[t] = at - ret->from[t];
        lane_sum(in, ret, t);
    }
}

static void kept(const struct prompt *p, const struct lanes *l, const struct drop *d,
                 struct set *ret)
{
    *ret = (struct set){0};
    for (size_t t = 0; t < p->n_tier; t++) {
        const struct rest *r = &l->rest[l->from[t] + t + d->k[t]];
        ret->n += l->n[t] - d->k[t];
        ret->tokens += r->tokens;
        ret->pairs += r->pairs;
        ret->bytes[t] = r->bytes;
        ret->last_bytes[t] = r->last_bytes;
        ret->n_blind[t] = r->blind;
    }
}

/* ---- one strategy ---- */

struct search {
    const struct pol_control_in *in;
    const struct prompt *p;
    const struct lanes *l;
    enum pol_strategy s;
    struct found *best; /* keeps: from search_grain() on */
};

static double look(struct search *x, const struct drop *d)
{
    struct set set;
    struct pol_prediction p;
    kept(x->p, x->l, d, &set);
    predict_set(x->p, x->s, x->best->ratio, &set, &p);
    if (p.ttft_s < x->best->p.ttft_s) {
        x->best->drop = *d;
        x->best->set = set;
        x->best->p = p;
    }
    return p.ttft_s;
}

/* Every tier keeps what it can send by then. */
static struct drop drop_by(const struct search *x, double end_s)
{
    struct drop d = {0};
    for (size_t t = 1; t < x->p->n_tier; t++) {
        const struct rest *r = &x->l->rest[x->l->from[t] + t];
        const double room =
            (end_s - x->p->begin_s[t]) * x->p->tier[t].bytes_per_s - x->p->prefix_bytes[t];
        size_t lo = 0, hi = x->l->n[t]; /* the least k with r[k].bytes <= room */
        while (lo < hi) {
            const size_t mid = (lo + hi) / 2;
            if (r[mid].bytes <= room)
                hi = mid;
            else
                lo = mid + 1;
        }
        d.k[t] = (uint16_t)lo;
    }
    return d;
}

static void search_end(struct search *x)
{
    double lo = 0, hi = x->best->p.load_s;
    for (int i = 0; i < SECTIONS; i++) {
        const double a = lo + 0.382 * (hi - lo), b = lo + 0.618 * (hi - lo);
        const struct drop da = drop_by(x, a), db = drop_by(x, b);
        const bool same = memcmp(&da, &db, sizeof da) == 0;
        const double fa = look(x, &da), fb = same ? fa : look(x, &db);
        if (fa < fb)
            hi = b;
        else
            lo = a;
    }
}

/* `side` with those chunks alone that it need not wait for. */
static void look_sighted(struct search *x)
{
    struct drop d = {0};
    for (size_t t = 1; t < x->p->n_tier; t++)
        d.k[t] = (uint16_t)x->l->rest[x->l->from[t] + t].blind;
    (void)look(x, &d);
}

static void keep_by_drop(struct search *x)
{
    memset(x->best->keeps, 0, sizeof x->best->keeps);
    for (size_t t = 0; t < x->p->n_tier; t++)
        for (size_t k = x->best->drop.k[t]; k < x->l->n[t]; k++)
            x->best->keeps[x->l->place[x->l->from[t] + k].chunk] = true;
}

/* One chunk more or less. */
static void toggle(const struct search *x, bool *keeps, struct set *s, uint16_t i)
{
    const struct pol_chunk_now *c = &x->in->chunk[i];
    const double by = keeps[i] ? -1 : 1;
    keeps[i] = !keeps[i];
    s->n = keeps[i] ? s->n + 1 : s->n - 1;
    s->n_blind[c->tier] += c->side ? 0 : keeps[i] ? 1 : (size_t)-1;
    s->tokens += by * (double)c->n;
    s->pairs += by * chunk_pairs(c);
    s->bytes[c->tier] += by * (double)c->bytes;
    if (!x->p->tier[c->tier].by_record) return;
    s->last_bytes[c->tier] = 0;
    for (size_t k = x->in->n_chunk; k-- > 0;)
        if (keeps[k] && x->in->chunk[k].tier == c->tier) {
            s->last_bytes[c->tier] = (double)x->in->chunk[k].bytes;
            return;
        }
}

/* a, and b unless it is the same, change sides; undone unless that helps. */
static bool swap(struct search *x, uint16_t a, uint16_t b)
{
    struct set set = x->best->set;
    struct pol_prediction p;
    toggle(x, x->best->keeps, &set, a);
    if (a != b) toggle(x, x->best->keeps, &set, b);
    predict_set(x->p, x->s, x->best->ratio, &set, &p);
    if (p.ttft_s < x->best->p.ttft_s * (1 - 1e-9)) {
        x->best->set = set;
        x->best->p = p;
        return true;
    }
    x->best->keeps[a] = !x->best->keeps[a];
    if (a != b) x->best->keeps[b] = !x->best->keeps[b];
    return false;
}

/* The chunks at the cut of each tier, one at a time and two of them for each other, as long as that
 * helps. Few and large ones need a wider look: their order by cost knows nothing of what fits. */
static void search_grain(struct search *x)
{
    int left = LOOKS_MAX;
    x->best->by_chunk = true;
    for (bool better = true; better;) {
        better = false;
        for (size_t t = 0; t < x->p->n_tier; t++) {
            const struct place *at = x->l->place + x->l->from[t];
            const size_t n = x->l->n[t], k = x->best->drop.k[t], wide = n > 32 ? 1 : n > 16 ? 2 : 4;
            const size_t lo = k > wide ? k - wide : 0, hi = k + wide < n ? k + wide : n;
            for (size_t i = lo; i < hi; i++)
                for (size_t j = i; j < hi && left > 0; j++) {
                    const uint16_t a = at[i].chunk, b = at[j].chunk;
                    if (i != j && x->best->keeps[a] == x->best->keeps[b]) continue;
                    left--;
                    if (swap(x, a, b)) better = true;
                }
        }
    }
}

/* The fastest split with this strategy at its floor, unless it cannot beat `limit_s`. */
static void search_split(struct search *x, double limit_s)
{
    const struct drop all = {0};
    (void)look(x, &all);
    if (x->best->p.compute_s > limit_s || !(x->best->p.exposed_s > 0)) return;
    if (x->s == POL_SIDE) look_sighted(x);
    search_end(x);
    keep_by_drop(x);
    search_grain(x);
}

/* The highest ratio within the limit; TTFT grows with it. */
static void raise_ratio(const struct prompt *p, enum pol_strategy s, double ratio_max,
                        double limit_s, struct found *f)
{
    struct pol_prediction at;
    double lo = f->ratio, hi = ratio_max;
    if (s == POL_REUSE || hi <= lo) return;
    predict_set(p, s, hi, &f->set, &at);
    for (int i = 0; i < 10 && at.ttft_s > limit_s; i++) {
        const double mid = (lo + hi) / 2;
        struct pol_prediction m;
        predict_set(p, s, mid, &f->set, &m);
        if (m.ttft_s > limit_s) {
            hi = mid;
        } else {
            lo = mid;
            f->ratio = mid;
            f->p = m;
        }
    }
    if (at.ttft_s <= limit_s) {
        f->ratio = hi;
        f->p = at;
    }
}

/* ---- all ---- */

/* The exact answer: behind the prefix, or without it where that is faster. */
static enum pol_strategy exact(const struct prompt *p, struct pol_prediction *ret)
{
    const struct set none = {0};
    struct prompt bare = *p;
    struct pol_prediction without;
    prompt_drop_prefix(&bare);
    predict_set(&bare, POL_FULL, 0, &none, &without);
    predict_set(p, POL_PREFIX, 0, &none, ret);
    if (p->prefix > 0 && ret->ttft_s <= without.ttft_s) return POL_PREFIX;
    *ret = without;
    return POL_FULL;
}

static double ratio_max(const struct pol_control_in *in)
{
    return in->ratio_max >= 0 && in->ratio_max <= 1 ? in->ratio_max : 1; /* NaN: no limit */
}

static bool considered(const struct pol_control_in *in, enum pol_strategy s, double *ret_floor)
{
    const double floor = in->strat[s].floor;
    *ret_floor = s == POL_REUSE ? 0 : floor;
    return in->strat[s].allowed && floor >= 0 && floor <= ratio_max(in); /* NaN: no */
}

/* Where all chunks are alike to the strategy, the lanes of all are its own. */
static const struct lanes *lanes_of(const struct pol_control_in *in, const struct prompt *p,
                                    enum pol_strategy s, const struct lanes *all, struct lanes *own)
{
    if (s != POL_SIDE || all->n_side == 0 || all->n_side == all->n_all) return all;
    lanes_for_side(in, p, all, own);
    return own;
}

/* The first strategy by preference among those that are as good as the fastest; nothing where that
 * is the exact answer. */
static void choose(const struct pol_control_in *in, const struct prompt *p, struct pol_control *ret,
                   bool *ret_reuse)
{
    const double exact_s = ret->full.ttft_s;
    struct lanes all, own;
    struct found f[N_STRATEGIES];
    double best = exact_s;
    lanes_make(in, p, &all);
    for (size_t i = 0; i < N_STRATEGIES; i++) {
        struct search x = {.in = in, .p = p, .s = PREFERENCE[i], .best = &f[i]};
        f[i].p.ttft_s = INFINITY;
        f[i].by_chunk = false;
        if (!considered(in, x.s, &f[i].ratio)) continue;
        x.l = lanes_of(in, p, x.s, &all, &own);
        search_split(&x, best * (1 + SLACK));
        best = smaller(best, f[i].p.ttft_s);
    }
    if (exact_s <= best * (1 + SLACK)) return;
    for (size_t i = 0; i < N_STRATEGIES; i++) {
        if (!(f[i].p.ttft_s <= best * (1 + SLACK))) continue;
        struct search x = {.in = in, .p = p, .s = PREFERENCE[i], .best = &f[i]};
        if (!f[i].by_chunk) {
            x.l = lanes_of(in, p, x.s, &all, &own);
            keep_by_drop(&x);
        }
        const double limit = larger(best * (1 + SLACK), in->max_ttft_s > 0 ? in->max_ttft_s : 0);
        raise_ratio(p, x.s, ratio_max(in), limit, &f[i]);
        ASSERT(f[i].p.ttft_s <= exact_s);
        ret->strategy = x.s;
        ret->ratio = f[i].ratio;
        ret->predicted = f[i].p;
        ret->n_reused = f[i].set.n;
        memcpy(ret_reuse, f[i].keeps, chunks_of(in) * sizeof *ret_reuse);
        return;
    }
}

static void explain(const struct pol_control_in *in, struct pol_control *c)
{
    char *to = c->reason;
    const size_t cap = sizeof c->reason;
    const struct pol_prediction *p = &c->predicted;
    bool held = false;
    for (size_t i = 0; i < in->n_chunk && !held; i++)
        held = in->chunk[i].tier >= 0;
    if (c->n_reused > 0)
        (void)snprintf(to, cap, "%zu of %zu chunks; %.1f ms, exact %.1f; loads %s", c->n_reused,
                       in->n_chunk, p->ttft_s * 1e3, c->full.ttft_s * 1e3,
                       p->load_s <= 0                        ? "none"
                       : p->exposed_s > SLACK * p->compute_s ? "waited for"
                                                             : "hidden");
    else if (!held)
        (void)snprintf(to, cap, "nothing held to reuse");
    else if (in->max_ttft_s > 0 && p->ttft_s <= in->max_ttft_s)
        (void)snprintf(to, cap, "exact in %.1f ms: within the limit", p->ttft_s * 1e3);
    else
        (void)snprintf(to, cap, "exact in %.1f ms: nothing held is clearly faster",
                       p->ttft_s * 1e3);
}

void pol_control(const struct pol_control_in *in, struct pol_control *ret, bool *ret_reuse)
{
    struct prompt p;
    struct pol_control out = {0};
    prompt_make(in, &p);
    memset(ret_reuse, 0, in->n_chunk * sizeof *ret_reuse);
    out.strategy = exact(&p, &out.full);
    out.predicted = out.full;
    /* An exact answer in time is the best there is. */
    if (!(out.full.ttft_s <= in->max_ttft_s)) choose(in, &p, &out, ret_reuse);
    explain(in, &out);
    *ret = out;
}
