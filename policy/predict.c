/* The time of one choice. A prefill is a few spans of layers in which every layer computes the same
 * (spans_of() mirrors the stages of fusor/core/prefill.c), and the layers of a tier's records
 * arrive at an even pace. So within a span the layer that waits longest is its first or its last
 * one, and the walk over 80 layers becomes a walk over at most nine spans: the same number, some 20
 * times as fast (the unit test walks the layers). */
#include "policy/control_int.h"

#include "base/assert.h"

#include <math.h>

enum { SPANS_MAX = 12 };
enum wait { WAIT_NOTHING, WAIT_PREFIX, WAIT_SIDE, WAIT_CHUNKS };
struct span {
    unsigned lo, hi; /* layers */
    enum wait wait;
    struct pol_work work; /* of each of them */
};
struct walk {
    struct span span[SPANS_MAX];
    size_t n;
};

/* ---- sound input ---- */

/* Beyond any machine: keeps sums and products finite. */
static const double SECONDS_MAX = 1e9, BYTES_PER_S_MIN = 1;

static double not_negative(double v)
{
    return v > 0 && v < SECONDS_MAX ? v : 0; /* NaN: 0 */
}

static unsigned at_most(unsigned v, unsigned most)
{
    return v < most ? v : most;
}

/* RAM is there at once. */
static void tiers_make(const struct pol_control_in *in, struct prompt *p)
{
    p->n_tier = in->n_tier < POL_TIERS_MAX ? in->n_tier : POL_TIERS_MAX;
    for (size_t i = 0; i < p->n_tier; i++) {
        const struct pol_tier_now *t = &in->tier[i];
        p->tier[i] = i == 0 ? (struct pol_tier_now){.bytes_per_s = INFINITY} : *t;
        p->reachable[i] = i == 0 || (t->bytes_per_s > BYTES_PER_S_MIN && t->first_s < SECONDS_MAX &&
                                     t->queue_s < SECONDS_MAX);
        p->tier[i].first_s = not_negative(p->tier[i].first_s);
        p->tier[i].queue_s = not_negative(p->tier[i].queue_s);
        p->begin_s[i] = p->tier[i].queue_s + p->tier[i].first_s;
        p->s_per_byte[i] = p->reachable[i] ? 1 / p->tier[i].bytes_per_s : 0;
    }
}

void prompt_drop_prefix(struct prompt *p)
{
    p->prefix = 0;
    for (size_t i = 0; i < POL_TIERS_MAX; i++)
        p->prefix_bytes[i] = 0;
}

/* Layers that are out of range get those that the fusor takes by itself. */
static void layers_make(const struct pol_control_in *in, struct prompt *p)
{
    const unsigned L = in->L ? in->L : 1;
    p->L = L;
    p->per_layer = L > 1 ? 1.0 / (L - 1) : 0;
    p->check = in->check_layer && in->check_layer < L ? in->check_layer : at_most(1, L - 1);
    p->score_lo = in->score_lo;
    p->score_hi = in->score_hi;
    if (p->score_hi == 0 || p->score_hi > L || p->score_lo >= p->score_hi) {
        p->score_lo = L / 3;
        p->score_hi = L > 1 ? 5 * L / 6 : 1;
        if (p->score_hi <= p->score_lo) p->score_hi = p->score_lo + 1;
    }
    p->side = in->side_layer && in->side_layer < L ? in->side_layer : at_most(L / 2, L - 1);
}

void prompt_make(const struct pol_control_in *in, struct prompt *p)
{
    const size_t n = chunks_of(in);
    double end = (double)in->n_prefix;
    layers_make(in, p);
    p->cost = in->cost;
    for (int k = 0; k < POL_PRICES; k++)
        p->cost.price[k] = not_negative(p->cost.price[k]);
    tiers_make(in, p);
    prompt_drop_prefix(p);
    for (size_t i = 0; i < n; i++)
        end = larger(end, (double)in->chunk[i].tok0 + (double)in->chunk[i].n);
    p->suffix = (double)in->n_suffix;
    p->tokens = fmax((double)in->n_tok, fmax(end + p->suffix, 1));
    const int at = in->prefix_tier;
    if (in->n_prefix > 0 && at >= 0 && (size_t)at < p->n_tier && p->reachable[at]) {
        p->prefix = fmin((double)in->n_prefix, p->tokens - 1); /* the last row is computed */
        p->prefix_bytes[at] = (double)in->prefix_bytes;
    }
    double first = p->tokens;
    p->chunk_tokens = p->chunk_pairs = 0;
    for (size_t i = 0; i < n; i++) {
        if ((double)in->chunk[i].tok0 < p->prefix) continue;
        first = smaller(first, (double)in->chunk[i].tok0);
        p->chunk_tokens += (double)in->chunk[i].n;
        p->chunk_pairs += chunk_pairs(&in->chunk[i]);
    }
    p->front = p->chunk_tokens > 0 ? first - p->prefix : 0;
    p->front_pairs = p->front * (p->prefix + (p->front + 1) / 2);
}

bool chunk_usable(const struct prompt *p, const struct pol_chunk_now *c)
{
    return c->n > 0 && c->tier >= 0 && (size_t)c->tier < p->n_tier && p->reachable[c->tier] &&
           (double)c->tok0 >= p->prefix;
}

/* ---- what is computed ---- */

/* Rows of the parts of a prefill, and the keys they see. */
struct rows {
    double all, all_pairs;   /* what is not prefix */
    double rest, rest_pairs; /* what is not reused either */
    double main, main_pairs; /* that, and the selected tokens */
    double low, low_pairs;   /* the same below layer `join`: without those in front of all chunks */
    unsigned join;
    double missed;         /* of chunks that are not reused: not asked with */
    double ask, ask_pairs; /* what is no chunk's */
    double suffix_pairs, mass, placed;
    bool choose; /* there is something to choose, and to choose from */
};

static double floor_of(double v)
{
    return (double)(int64_t)v; /* of what is positive and less than 2^63; no call */
}

static double whole_steps(double rows, double step)
{
    const double n = floor_of(rows / step);
    return (n * step < rows ? n + 1 : n) * step;
}

static struct rows rows_of(const struct prompt *p, double ratio, const struct set *s)
{
    const double T = p->tokens, step = p->cost.row_step;
    struct rows r = {.all = T - p->prefix,
                     .all_pairs = (T * (T + 1) - p->prefix * (p->prefix + 1)) / 2,
                     .placed = p->prefix + s->tokens,
                     .missed = p->chunk_tokens - s->tokens};
    const double seen = T - r.missed; /* by the end of the suffix, when it asks */
    r.suffix_pairs = p->suffix * larger(seen - (p->suffix - 1) / 2, 0);
    r.mass = p->suffix * larger(seen - p->suffix, 0);
    r.ask = larger(r.all - p->chunk_tokens, 1);
    r.ask_pairs = larger(r.all_pairs - p->chunk_pairs, 0);
    const double selected = floor_of(ratio * s->tokens + 0.5);
    r.rest = larger(r.all - s->tokens, 1);
    r.rest_pairs = larger(r.all_pairs - s->pairs, 0);
    r.main = r.rest + selected;
    r.main_pairs = r.rest_pairs + (s->tokens > 0 ? s->pairs * selected / s->tokens : 0);
    r.low = larger(r.main - p->front, 1);
    r.low_pairs = larger(r.main_pairs - p->front_pairs, 0);
    r.choose = selected > 0 && p->L > 1;
    if (step > 1) {
        r.all = whole_steps(r.all, step);
        r.rest = whole_steps(r.rest, step);
        r.ask = whole_steps(r.ask, step);
        r.main = whole_steps(r.main, step);
        r.low = whole_steps(r.low, step);
    }
    return r;
}

static void add_span(struct walk *w, unsigned lo, unsigned hi, enum wait wait,
                     const struct pol_work *k)
{
    if (lo >= hi) return;
    DEBUG_ASSERT(w->n < SPANS_MAX);
    w->span[w->n++] = (struct span){lo, hi, wait, *k};
}

/* The rows that are no chunk's run over the stored KV of the scoring layers; the last of these
 * layers only asks what the suffix attends to. Behind layer 0 the suffix, most of them as a rule,
 * does not see what is missed. */
static void add_query_pass(struct walk *w, const struct prompt *p, const struct rows *r)
{
    const unsigned last = p->score_hi - 1, lo = at_most(p->score_lo, last);
    struct pol_work k = {.layers = 1, .rows = r->ask, .pairs = r->ask_pairs};
    add_span(w, 0, at_most(1, last), WAIT_NOTHING, &k);
    k.kv_rows = r->ask;
    k.places = r->placed;
    k.pairs = larger(r->ask_pairs - p->suffix * r->missed, 0);
    add_span(w, 1, lo, WAIT_CHUNKS, &k);
    k.masses = r->mass;
    add_span(w, lo > 1 ? lo : 1, last, WAIT_CHUNKS, &k);
    k.rows = 0;
    k.kv_rows = r->ask + p->suffix; /* the suffix's queries are about as much work as its K,V */
    k.pairs = r->suffix_pairs;
    add_span(w, last, last + 1, WAIT_CHUNKS, &k);
}

/* They run blind to the chunks, whose K of one layer is asked at the end. */
static void add_side_pass(struct walk *w, const struct prompt *p, const struct rows *r)
{
    const unsigned last = p->side;
    struct pol_work k = {.layers = 1, .rows = r->ask, .pairs = r->ask_pairs};
    add_span(w, 0, at_most(1, last), WAIT_NOTHING, &k);
    k.kv_rows = r->ask;
    k.places = p->prefix;
    k.pairs = r->ask * (p->prefix + (r->ask + 1) / 2);
    add_span(w, 1, last, WAIT_PREFIX, &k);
    k.rows = 0;
    k.kv_rows = r->ask + p->suffix;
    k.pairs = r->suffix_pairs;
    k.masses = r->mass;
    k.places = p->prefix + (r->placed - p->prefix) / 2; /* K alone */
    add_span(w, last, last + 1, WAIT_SIDE, &k);
}

/* Layers of the answer: below `join` rows in front of the chunks are through since the pass. */
static void add_answer(struct walk *w, const struct rows *r, unsigned lo, unsigned hi,
                       enum wait wait, double places)
{
    const unsigned join = at_most(r->join, hi);
    struct pol_work k = {.layers = 1, .rows = r->low, .pairs = r->low_pairs, .places = places};
    k.kv_rows = lo > 0 ? r->low : 0;
    add_span(w, lo, join, wait, &k);
    k.rows = r->main;
    k.pairs = r->main_pairs;
    k.kv_rows = lo > 0 ? r->main : 0;
    add_span(w, lo > join ? lo : join, hi, wait, &k);
}

/* Layers from `lo` on with the rows of the answer; those below `loaded` have their stored KV. In
 * the last layer only one row goes on behind its K,V. */
static void add_main(struct walk *w, const struct prompt *p, const struct rows *r, unsigned lo,
                     unsigned loaded)
{
    const unsigned last = p->L - 1;
    struct pol_work k = {.layers = 1, .rows = 1, .pairs = p->tokens};
    if (lo == 0) add_answer(w, r, 0, at_most(1, last), WAIT_NOTHING, 0);
    if (lo == 0) lo = 1;
    add_answer(w, r, lo, at_most(loaded, last), WAIT_NOTHING, 0);
    add_answer(w, r, lo > loaded ? lo : loaded, last, WAIT_CHUNKS, r->placed);
    k.kv_rows = last > 0 ? r->main : 0;
    k.places = last < loaded ? 0 : r->placed;
    if (lo <= last || last == 0)
        add_span(w, last, last + 1, last < loaded ? WAIT_NOTHING : WAIT_CHUNKS, &k);
}

/* Everything but the prefix runs up to the check layer, where the choice falls. */
static void add_check(struct walk *w, const struct prompt *p, const struct rows *r)
{
    struct pol_work k = {.layers = 1, .rows = r->all, .pairs = r->all_pairs};
    add_span(w, 0, 1, WAIT_NOTHING, &k);
    k.kv_rows = r->all;
    k.places = p->prefix;
    add_span(w, 1, p->check, WAIT_PREFIX, &k);
    k.rows = p->check + 1 == p->L ? 1 : r->main;
    k.pairs = p->check + 1 == p->L ? p->tokens : r->main_pairs;
    k.places = r->placed; /* comparing reads what placing would */
    add_span(w, p->check, p->check + 1, WAIT_CHUNKS, &k);
}

static void spans_of(const struct prompt *p, enum pol_strategy s, double ratio,
                     const struct set *set, struct walk *ret)
{
    struct rows r = rows_of(p, ratio, set);
    unsigned lo = 0, loaded = 1;
    ret->n = 0;
    if (r.choose && pol_strategy_asks(s)) r.join = s == POL_SIDE ? p->side : p->score_hi - 1;
    /* K,V of layer 0 for all tokens. */
    add_span(ret, 0, 1, WAIT_NOTHING, &(struct pol_work){.layers = 1, .kv_rows = p->tokens});
    if (r.choose && (s == POL_QUERY || s == POL_QS)) {
        add_query_pass(ret, p, &r);
        if (r.missed <= 0) loaded = p->score_hi; /* else chunks stood elsewhere when asked */
    }
    if (r.choose && s == POL_SIDE) add_side_pass(ret, p, &r);
    if (r.choose && p->check > 0 && s == POL_HKVD) {
        add_check(ret, p, &r);
        lo = p->check + 1;
    }
    add_main(ret, p, &r, lo, loaded);
}

/* ---- when it arrives ---- */

/* Layer l of what a tier sends is there at at0 + l * step. */
struct arrival {
    double at0, step;
};
struct arrivals {
    struct arrival prefix, chunks[POL_TIERS_MAX], blind[POL_TIERS_MAX];
    size_t n_chunks, n_blind;
    bool has_prefix;
    double load_s; /* until the last byte */
};

static void arrivals_of(const struct prompt *p, const struct set *s, struct arrivals *ret)
{
    ret->n_chunks = ret->n_blind = 0;
    ret->has_prefix = false;
    ret->load_s = 0;
    for (size_t i = 1; i < p->n_tier; i++) {
        const struct pol_tier_now *t = &p->tier[i];
        const double prefix = p->prefix_bytes[i], all = prefix + s->bytes[i];
        if (!(all > 0)) continue;
        const double begin = p->begin_s[i], s_per_byte = p->s_per_byte[i];
        /* One after the other: what counts is the last record, and the prefix comes first. */
        const double last = t->by_record ? (s->bytes[i] > 0 ? s->last_bytes[i] : prefix) : all;
        const double head = t->by_record && s->bytes[i] > 0 ? prefix : all;
        struct arrival a = {begin + (all - last) * s_per_byte, last * s_per_byte * p->per_layer};
        if (prefix > 0) {
            ret->prefix = (struct arrival){begin, head * s_per_byte * p->per_layer};
            ret->has_prefix = true;
        }
        ret->chunks[ret->n_chunks++] = a;
        if (s->n_blind[i] > 0) ret->blind[ret->n_blind++] = a;
        ret->load_s = larger(ret->load_s, begin + all * s_per_byte);
    }
}

static double latest(const struct arrivals *a, enum wait wait, unsigned layer)
{
    const struct arrival *list = wait == WAIT_CHUNKS ? a->chunks : a->blind;
    const size_t n = wait == WAIT_CHUNKS ? a->n_chunks : wait == WAIT_SIDE ? a->n_blind : 0;
    double t = a->has_prefix ? a->prefix.at0 + a->prefix.step * layer : 0;
    for (size_t i = 0; i < n; i++) {
        const double x = list[i].at0 + list[i].step * layer;
        if (x > t) t = x;
    }
    return t;
}

static void walk_layers(const struct prompt *p, const struct walk *w, const struct arrivals *a,
                        struct pol_prediction *ret)
{
    double t = p->cost.fixed_s, compute = p->cost.fixed_s;
    for (size_t i = 0; i < w->n; i++) {
        const struct span *s = &w->span[i];
        const double each = pol_cost_time(&p->cost, &s->work), all = each * (s->hi - s->lo);
        compute += all;
        t += all;
        if (s->wait == WAIT_NOTHING || a->load_s <= 0) continue;
        t = larger(t, latest(a, s->wait, s->lo) + all);
        t = larger(t, latest(a, s->wait, s->hi - 1) + each);
    }
    *ret = (struct pol_prediction){.ttft_s = t + p->cost.head_s,
                                   .load_s = a->load_s,
                                   .compute_s = compute + p->cost.head_s,
                                   .exposed_s = t - compute};
}

void predict_set(const struct prompt *p, enum pol_strategy s, double ratio, const struct set *set,
                 struct pol_prediction *ret)
{
    struct walk w;
    struct arrivals a;
    spans_of(p, s, ratio, set, &w);
    arrivals_of(p, set, &a);
    walk_layers(p, &w, &a, ret);
}

/* ---- of an input ---- */

static void set_make(const struct pol_control_in *in, const struct prompt *p, enum pol_strategy s,
                     const bool *reuse, struct set *ret)
{
    const size_t n = chunks_of(in);
    *ret = (struct set){0};
    if (pol_strategy_is_exact(s)) return;
    for (size_t i = 0; i < n; i++) {
        const struct pol_chunk_now *c = &in->chunk[i];
        if (!reuse[i] || !chunk_usable(p, c)) continue;
        ret->n++;
        ret->tokens += (double)c->n;
        ret->pairs += chunk_pairs(c);
        ret->bytes[c->tier] += (double)c->bytes;
        ret->last_bytes[c->tier] = (double)c->bytes;
        ret->n_blind[c->tier] += !c->side;
    }
}

static double ratio_make(enum pol_strategy s, double ratio)
{
    return s != POL_REUSE && ratio > 0 ? smaller(ratio, 1) : 0; /* NaN, too */
}

static void input_make(const struct pol_control_in *in, enum pol_strategy s, const bool *reuse,
                       struct prompt *ret, struct set *ret_set)
{
    prompt_make(in, ret);
    if (s == POL_FULL) prompt_drop_prefix(ret);
    set_make(in, ret, s, reuse, ret_set);
}

void pol_work_of(const struct pol_control_in *in, enum pol_strategy s, double ratio,
                 const bool *reuse, struct pol_work *ret)
{
    struct prompt p;
    struct set set;
    struct walk w;
    struct pol_work sum = {0};
    input_make(in, s, reuse, &p, &set);
    spans_of(&p, s, ratio_make(s, ratio), &set, &w);
    for (size_t i = 0; i < w.n; i++)
        for (int k = 0; k < POL_PRICES; k++)
            sum.count[k] += w.span[i].work.count[k] * (w.span[i].hi - w.span[i].lo);
    *ret = sum;
    ret->requests = ret->heads = 1;
}

void pol_predict(const struct pol_control_in *in, enum pol_strategy s, double ratio,
                 const bool *reuse, struct pol_prediction *ret)
{
    struct prompt p;
    struct set set;
    input_make(in, s, reuse, &p, &set);
    predict_set(&p, s, ratio_make(s, ratio), &set, ret);
}
