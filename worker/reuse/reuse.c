/* The path of reuse, top to bottom: ask early, look up, decide, load, report, build.
 *
 * A slower tier takes a round trip to say whether it has a record, and longer to bring it. So the
 * helper that prepares a prompt asks for all its records at once, waits (bounded) for the answers
 * and leaves the pins with the prompt; the parts arrive meanwhile. The rest happens on the engine
 * thread just before the prefill starts, so that a chunk that was built while the request waited is
 * still used. What is asked for early is not yet decided on: the decision, which sees the whole
 * prompt and what has arrived by then, cancels what it does not want. Without slower tiers nothing
 * is asked early. Sources and sinks own nothing but their pin or writer: they may outlive the
 * request. A source that fails makes the fusor compute that range; nothing is answered from it. */
#include "worker/reuse/reuse.h"

#include "base/clock.h"
#include "tiers/mrc.h"
#include "tiers/store_admin.h"
#include "tiers/store_write.h"
#include "worker/quality/guard.h"
#include "worker/quality/contexts.h"
#include "worker/reuse/builds.h"
#include "worker/reuse/lookup.h"
#include "worker/reuse/records.h"
#include "worker/reuse/recuts.h"
#include "worker/worker.h"

#include <stdio.h>
#include <string.h>

enum {
    ASK_WINDOW = 16,     /* chosen: prefix blocks asked for ahead; a miss ends the chain */
    SETTLE_MS_MIN = 250, /* chosen: a tier that has not said "yes" by then is no help */
    LATE_MS = 5,         /* chosen: of the engine thread's time, for a prompt that could not ask */
};

struct reuse { /* of one prompt */
    struct worker *w;
    struct wk_prompt *p;
    const struct api_settings *m;
    double prompt_ms; /* worth of any record, by the controller; 0: of each by itself */
    uint64_t batch;
    /* early */
    double worth_ms;    /* of all that was asked for */
    uint64_t cap_bytes; /* that all prompts may hold */
    bool full;
    /* on the engine thread */
    struct ctl_decision *d;
    uint64_t own_bytes[POL_TIERS_MAX]; /* yet to come, by tier */
    struct store_pin **block, **chunk; /* [n_block], [n_cut] as found; NULL: a miss */
    size_t n_block;
    uint32_t n_prefix; /* that is used */
    struct fus_range *range;
    size_t n_range;
    struct fus_capture *capture;
    size_t n_capture;
    uint32_t n_captured; /* tokens */
    uint64_t late_ns;
};

static struct reuse reuse_of(struct worker *w, struct wk_prompt *p, const struct api_settings *m)
{
    /* With the controller any record of the prompt may be waited for, since it decides later. */
    double all = wk_decider_worth_ms(w, p->n_tok), least = (double)w->o.tiers.wait_ms;

    return (struct reuse){.w = w,
                          .p = p,
                          .m = m,
                          .prompt_ms = all <= 0 || all > least ? all : least,
                          .batch = atomic_fetch_add(&w->reuse.n_batches, 1) + 1};
}

static struct wk_wanted record_at(const struct reuse *q, const struct tier_key *key, uint32_t tok0,
                                  uint32_t n)
{
    double worth_ms = q->prompt_ms > 0 ? q->prompt_ms : wk_worth_ms(q->w, q->m, n);

    return (struct wk_wanted){.key = key, .tok = q->p->tok + tok0, .n = n, .worth_ms = worth_ms};
}

static struct wk_wanted block_at(const struct reuse *q, size_t i)
{
    return record_at(q, &q->p->block[i].key, q->p->block[i].tok0, q->p->block[i].n);
}

static struct wk_wanted chunk_at(const struct reuse *q, size_t i)
{
    return record_at(q, &q->p->cut[i].key, q->p->cut[i].tok0, q->p->cut[i].n);
}

/* ---- 1. ask early; helper thread ---- */
/* No room to hold it: it comes nearer all the same, and stays as long as RAM has room. */
static void warm(struct reuse *q, const struct wk_wanted *x)
{
    uint64_t bytes = rec_bytes(&q->w->ident, x->n);
    struct wk_lookup l = {.batch = q->batch};

    if (atomic_fetch_add(&q->w->reuse.warm_bytes, bytes) + bytes > q->cap_bytes / 2) {
        atomic_fetch_sub(&q->w->reuse.warm_bytes, bytes);
        return;
    }
    q->p->warm_bytes += bytes;
    if (wk_lookup_ask(q->w, x, &l) > 0) store_pin_release(l.pin);
}

static bool ask_early(struct reuse *q, struct wk_wanted x, struct wk_lookup *l)
{
    if (q->full || !wk_lookup_hold(q->w, l, x.n, q->cap_bytes)) {
        q->full = true;
        warm(q, &x);
        return false;
    }
    l->asked = true;
    l->batch = q->batch;
    q->worth_ms = q->prompt_ms > 0 ? q->prompt_ms : q->worth_ms + x.worth_ms;
    if (wk_lookup_ask(q->w, &x, l) > 0) return true;
    wk_lookup_unhold(q->w, l);
    return false;
}

/* The curve is of what the prompt can use, found or not. From its end, as pins are given back. */
static void note_prompt(const struct worker *w, const struct wk_prompt *p,
                        const struct api_settings *m)
{
    if (!w->reuse.mrc || !m->store) return;
    for (size_t i = m->strategy == POL_PREFIX ? 0 : p->n_cut; i-- > 0;) {
        const struct wk_cut *c = &p->cut[i];
        mrc_look_up(w->reuse.mrc, &c->key, c->n, rec_bytes(&w->ident, c->n));
        wk_recuts_note(w->reuse.recuts, p->tok + c->tok0, c->n, &c->key);
    }
    for (size_t i = p->n_block; i-- > 0;)
        mrc_look_up(w->reuse.mrc, &p->block[i].key, p->block[i].n,
                    rec_bytes(&w->ident, p->block[i].n));
}

void wk_lookup_prompt(struct worker *w, struct wk_prompt *p, const struct api_settings *m,
                      const atomic_bool *gone)
{
    size_t n_asked = 0, i;
    bool chain = true;

    if (m->strategy == POL_FULL) return;
    note_prompt(w, p, m);
    if (store_n_tiers(w->store) == 0) return;
    struct reuse q = reuse_of(w, p, m);
    p->held_by = w;
    q.cap_bytes = wk_hold_cap(w);
    for (; n_asked < p->n_block && n_asked < ASK_WINDOW && chain; n_asked++)
        chain = ask_early(&q, block_at(&q, n_asked), &p->block[n_asked].lookup);
    for (i = 0; i < p->n_cut && m->strategy != POL_PREFIX && w->blend_ok; i++)
        (void)ask_early(&q, chunk_at(&q, i), &p->cut[i].lookup);
    double wait_ms = q.worth_ms / 4 > SETTLE_MS_MIN ? q.worth_ms / 4 : SETTLE_MS_MIN;
    uint64_t until_ns = clock_ns() + (uint64_t)(wait_ms * 1e6);
    for (i = 0; i < n_asked; i++) {
        if (!wk_lookup_settle(w, &p->block[i].lookup, atomic_load(gone) ? 1 : until_ns)) break;
        if (n_asked == p->n_block || !chain) continue;
        chain = ask_early(&q, block_at(&q, n_asked), &p->block[n_asked].lookup);
        n_asked++;
    }
    while (n_asked-- > i + 1) /* behind the first miss */
        wk_lookup_drop(w, &p->block[n_asked].lookup);
    for (i = 0; i < p->n_cut; i++)
        (void)wk_lookup_settle(w, &p->cut[i].lookup, atomic_load(gone) ? 1 : until_ns);
}

/* ---- 2. look up; from here on the engine thread ---- */
static int find_record(struct reuse *q, struct wk_wanted x, struct wk_lookup *l,
                       struct store_pin **ret)
{
    if (!l->asked) l->batch = q->batch;
    return wk_lookup_find(q->w, &x, l, q->late_ns, ret);
}

/* From where a record still has to come, and how much of it; what is here is in RAM. */
static int comes_from(struct reuse *q, const struct store_pin *pin, uint64_t *ret_bytes)
{
    *ret_bytes = store_pin_missing(pin);
    int tier = *ret_bytes ? wk_tier_index(q->w, store_pin_tier(pin)) : 0;
    if (tier > 0) q->own_bytes[tier] += *ret_bytes;
    return tier;
}

static int find_prefix(struct reuse *q)
{
    struct ctl_decision *d = q->d;

    for (size_t i = 0; i < q->p->n_block; i++) {
        uint64_t bytes;
        int rc = find_record(q, block_at(q, i), &q->p->block[i].lookup, &q->block[i]);
        if (rc <= 0) return rc;
        q->n_block++;
        int tier = comes_from(q, q->block[i], &bytes);
        if (tier > d->in.prefix_tier) d->in.prefix_tier = tier; /* the slowest decides */
        d->in.prefix_bytes += bytes;
        d->in.n_prefix += q->p->block[i].n;
    }
    return 0;
}

/* It is there, but so far away that it was not even asked for: the decision is told so. */
static void tell_of_gated(struct reuse *q, const struct wk_cut *c, struct pol_chunk_now *now)
{
    int tier = store_where(q->w->store, &c->key);

    if (tier <= 0) return;
    now->tier = tier;
    now->bytes = store_record_bytes(q->w->store, tier, c->n);
    now->side = store_has_side(q->w->store, &c->key);
}

static int find_chunk(struct reuse *q, size_t i)
{
    struct wk_cut *c = &q->p->cut[i];
    struct pol_chunk_now *now = &q->d->chunk[i];

    if (c->tok0 < q->d->in.n_prefix) return 0; /* within the exact prefix: better than any chunk */
    int rc = find_record(q, chunk_at(q, i), &c->lookup, &q->chunk[i]);
    if (rc < 0) return rc;
    if (rc == 0) {
        c->missed = true;
        if (wk_build_pending(q->w, &c->key, NULL)) c->lookup.why = STORE_MISS_BUILDING;
        if (c->lookup.why == STORE_MISS_GATE) tell_of_gated(q, c, now);
        return 0;
    }
    const struct store_pin *pin = q->chunk[i];
    now->tier = comes_from(q, pin, &now->bytes);
    now->side = now->tier == 0 || store_has_side(q->w->store, &c->key);
    uint32_t behind;
    c->merged = now->merged = store_pin_contexts(pin, &behind) > 0;
    if (q->m->store)
        wk_contexts_want(
            q->w, &(struct wk_context_wish){c->key, q->m->ns, q->p->tok + c->tok0, c->n, behind});
    return 0;
}

static int look_up(struct reuse *q)
{
    if (q->m->strategy == POL_FULL) return 0;
    int rc = find_prefix(q);

    if (q->m->strategy == POL_PREFIX || !q->w->blend_ok) return rc;
    for (size_t i = 0; rc >= 0 && i < q->p->n_cut; i++)
        rc = find_chunk(q, i);
    return rc;
}

/* ---- 3. decide: decide.c ---- */
/* ---- 4. load ---- */
bool wk_at_built(const struct worker *w, const struct wk_prompt *p, const struct wk_cut *c)
{
    return !c->merged && fus_at_built_position(w->sink_token, p->tok, c->tok0);
}

static int make_source(struct store_pin **pin, struct wk_lookup *l, struct fus_range *r)
{
    int rc = rec_source_make(*pin, &r->src);

    *pin = NULL; /* the source's, or gone */
    l->load = (struct store_load){0};
    if (rc >= 0) rec_source_tell(&r->src, &l->status, &l->load);
    return rc;
}

/* The prefix is held, and what was chosen uses it. */
static int load_prefix(struct reuse *q)
{
    if (q->d->out.strategy != POL_FULL) q->n_prefix = q->d->in.n_prefix;
    for (size_t i = 0; i < q->p->n_block && q->p->block[i].tok0 < q->n_prefix; i++) {
        struct wk_block *b = &q->p->block[i];
        struct fus_range *r = &q->range[q->n_range];
        *r = (struct fus_range){.tok0 = b->tok0, .n = b->n, .exact = true};
        int rc = make_source(&q->block[i], &b->lookup, r);
        if (rc < 0) return rc;
        q->n_range++;
    }
    return 0;
}

/* What stays behind is not loaded any further, except one record of each request, which tells how
 * fast its tier is by now, and what is asked for again and again climbs to RAM. */
static void refuse_chunk(struct reuse *q, size_t i, bool *probed)
{
    struct wk_cut *c = &q->p->cut[i];
    struct store_pin *pin = q->chunk[i];

    q->chunk[i] = NULL;
    c->lookup.why = STORE_MISS_GATE;
    c->missed = q->d->by == CTL_BY_CONTROLLER;
    if (q->d->chunk[i].tier > 0 && *probed)
        store_pin_cancel(pin);
    else
        store_pin_release(pin);
    *probed |= q->d->chunk[i].tier > 0;
}

static int load_chunks(struct reuse *q)
{
    bool exact = pol_strategy_is_exact(q->d->out.strategy);
    bool probed = q->d->out.n_reused > 0; /* a record that is used tells as well */

    for (size_t i = 0; i < q->p->n_cut; i++) {
        struct wk_cut *c = &q->p->cut[i];
        struct fus_range *r = &q->range[q->n_range];
        c->source = c->tok0 + c->n <= q->n_prefix ? WK_PREFIX : WK_COMPUTED;
        if (q->chunk[i] && !q->d->reuse[i]) refuse_chunk(q, i, &probed);
        if (exact || c->tok0 < q->n_prefix) continue;
        *r = (struct fus_range){.tok0 = c->tok0, .n = c->n, .at_built = wk_at_built(q->w, q->p, c)};
        int rc = q->chunk[i] ? make_source(&q->chunk[i], &c->lookup, r) : 0;
        if (rc < 0) return rc;
        if (r->src.ops) c->source = WK_STORED;
        if (!r->src.ops && q->d->reuse[i]) q->d->loose = true; /* chosen, but not asked for */
        q->n_range++;
    }
    return 0;
}

/* The blocks that this request computes exactly go to the store. */
static void claim_blocks(struct reuse *q)
{
    for (size_t i = 0; i < q->p->n_block; i++) {
        const struct wk_block *b = &q->p->block[i];
        struct fus_capture *c = &q->capture[q->n_capture];
        struct store_writer *writer;
        if (b->tok0 < q->d->in.n_prefix) continue;
        const struct store_new new = {TIER_PREFIX, b->key, q->m->ns, q->p->tok + b->tok0, b->n};
        int rc = store_claim(q->w->store, &new, &writer);
        if (rc == -ENOSPC || rc == -ENOMEM) return; /* a full store fails no request */
        if (rc <= 0) continue;
        *c = (struct fus_capture){.tok0 = b->tok0, .n = b->n};
        if (rec_sink_make(writer, &q->w->ident, b->n, NULL, &c->sink) < 0) return;
        q->n_capture++;
        q->n_captured += b->n;
    }
}

/* What was chosen, as the fusor understands it. */
static int load_plan(struct reuse *q, struct fus_plan *plan)
{
    const struct wk_prompt *p = q->p;
    const struct wk_cut *last = p->n_cut ? &p->cut[p->n_cut - 1] : NULL;
    int rc = load_prefix(q);

    if (rc >= 0) rc = load_chunks(q);
    if (rc < 0) return rc;
    plan->strategy = q->d->out.strategy;
    plan->ratio = (float)q->d->out.ratio;
    plan->suffix = last ? p->n_tok - last->tok0 - last->n : 0;
    fus_profile_apply(&q->w->profile, plan);
    if (q->m->strategy != POL_FULL && q->m->store) claim_blocks(q);
    plan->range = q->range;
    plan->n_range = q->n_range;
    plan->capture = q->capture;
    plan->n_capture = q->n_capture;
    return 0;
}

/* ---- the plan: 2 to 4 ---- */
static void forget_last_plan(struct wk_prompt *p)
{
    for (size_t i = 0; i < p->n_cut; i++) {
        p->cut[i].source = WK_COMPUTED;
        p->cut[i].missed = false;
    }
    ctl_decision_free(p->decision);
    p->decision = NULL;
}

/* What the plan has no use for; the tail first, as in wk_lookups_drop(). */
static void drop_pins(struct reuse *q)
{
    for (size_t i = q->p->n_cut; i-- > 0;)
        store_pin_release(q->chunk[i]);
    while (q->n_block-- > 0)
        store_pin_release(q->block[q->n_block]);
}

int wk_plan(struct worker *w, struct wk_prompt *p, const struct api_settings *m,
            struct fus_plan *plan, void **ret_arrays, uint32_t *ret_captured)
{
    size_t n = p->n_block + p->n_cut + 1;
    size_t bytes = n * sizeof(struct fus_range) + (p->n_block + 1) * sizeof(struct fus_capture) +
                   n * sizeof(struct store_pin *);
    struct reuse q = reuse_of(w, p, m);
    char *mem = mem_zalloc(bytes);
    struct pol_guard_setting guard;

    forget_last_plan(p);
    p->decision = q.d = mem ? wk_decision_create(w, p) : NULL;
    if (!q.d) {
        mem_free(mem);
        return -ENOMEM;
    }
    q.late_ns = clock_ns() + (uint64_t)LATE_MS * 1000000;
    q.range = (struct fus_range *)(void *)mem;
    q.capture = (struct fus_capture *)(void *)(mem + n * sizeof *q.range);
    q.block = (struct store_pin **)(void *)(q.capture + p->n_block + 1);
    q.chunk = q.block + p->n_block;
    int rc = look_up(&q);
    wk_lookups_drop(w, p); /* what was not found */
    if (rc >= 0) {
        p->guard_level = wk_guard_rules(w, m, &guard);
        wk_decide(w, m, q.own_bytes, q.d);
        rc = load_plan(&q, plan);
        p->at.looked_ns = clock_ns();
    }
    drop_pins(&q);
    for (size_t i = 0; rc < 0 && i < q.n_range; i++)
        if (q.range[i].src.ops) q.range[i].src.ops->release(q.range[i].src.ctx);
    if (rc < 0) {
        mem_free(mem);
        return rc;
    }
    *ret_arrays = mem;
    *ret_captured = q.n_captured;
    return 0;
}

/* ---- 5. report ---- */
bool wk_settle_sources(struct wk_prompt *p)
{
    bool slow = false;

    for (size_t i = 0; i < p->n_cut; i++) {
        struct wk_cut *c = &p->cut[i];
        slow |= c->lookup.tier && strcmp(c->lookup.tier, "ram") != 0;
        if (c->lookup.status >= 0 || c->source != WK_STORED) continue;
        c->source = WK_COMPUTED;
        c->missed = true;
        c->lookup.why = c->lookup.status == -EBADMSG     ? STORE_MISS_CORRUPT
                        : c->lookup.status == -ETIMEDOUT ? STORE_MISS_DEADLINE
                                                         : STORE_MISS_IO;
    }
    return slow;
}

const char *wk_source_name(const struct wk_cut *c)
{
    if (c->source == WK_PREFIX) return "prefix";
    return c->source == WK_STORED && c->lookup.tier ? c->lookup.tier : "computed";
}

static void put_ends(const struct wk_prompt *p, struct ctl_decision *d)
{
    for (size_t i = 0; i < p->n_cut && i < d->in.n_chunk; i++) {
        const struct wk_cut *c = &p->cut[i];
        struct ctl_end *e = &d->end[i];
        tier_key_hex(&c->key, e->id);
        (void)snprintf(e->source, sizeof e->source, "%s", wk_source_name(c));
        (void)snprintf(e->detector, sizeof e->detector, "%s", c->detector ? c->detector : "");
        e->miss = c->missed ? store_miss_name(c->lookup.why) : NULL;
    }
}

/* A moment of the request, from when it came; else from when its records were found. */
static double moment_s(const struct wk_prompt *p, uint64_t ns)
{
    const uint64_t from_ns = p->start_ns ? p->start_ns : p->at.looked_ns;

    return ((double)ns - (double)from_ns) / 1e9;
}

static void put_load(const struct wk_prompt *p, const struct wk_lookup *l)
{
    struct ctl_decision *d = p->decision;
    size_t tier = 0;

    if (!l->load.end_ns) return;
    while (tier < d->in.n_tier && strcmp(d->tier_name[tier], l->tier) != 0)
        tier++;
    if (tier == d->in.n_tier) return;
    struct ctl_load *to = &d->measured.load[tier];
    const double begin_s = moment_s(p, l->load.begin_ns), end_s = moment_s(p, l->load.end_ns);
    if (to->n == 0 || begin_s < to->begin_s) to->begin_s = begin_s;
    if (to->n == 0 || end_s > to->end_s) to->end_s = end_s;
    to->bytes += l->load.bytes;
    to->n++;
}

static void put_loads(const struct wk_prompt *p, uint32_t n_prefix)
{
    for (size_t i = 0; i < p->n_block && p->block[i].tok0 < n_prefix; i++)
        put_load(p, &p->block[i].lookup);
    for (size_t i = 0; i < p->n_cut; i++)
        if (p->cut[i].source == WK_STORED) put_load(p, &p->cut[i].lookup);
}

/* The first layer of a group of them. */
static unsigned group_begin(unsigned i, unsigned L)
{
    return (i * L + FUS_LAYER_GROUPS - 1) / FUS_LAYER_GROUPS;
}

static void put_steps(const struct wk_prompt *p, const struct fus_report *r)
{
    struct ctl_decision *d = p->decision;

    for (unsigned i = 0; i < FUS_PARTS; i++) {
        const struct fus_time *t = &r->part[i];
        struct ctl_step *to = &d->measured.step[d->measured.n_step];
        const bool layers = i >= FUS_PART_LAYERS && i < FUS_PART_HEAD;
        if (!t->begin_ns) continue;
        *to = (struct ctl_step){.name = i == FUS_PART_EMBED   ? "embed"
                                        : i == FUS_PART_SCORE ? "score"
                                        : layers              ? "layers"
                                                              : "head",
                                .begin_s = moment_s(p, t->begin_ns),
                                .end_s = moment_s(p, t->end_ns),
                                .compute_s = t->compute_ms / 1e3};
        if (layers) to->layer_begin = group_begin(i - FUS_PART_LAYERS, d->in.L);
        if (layers) to->layer_end = group_begin(i - FUS_PART_LAYERS + 1, d->in.L);
        d->measured.n_step++;
    }
}

void wk_report(struct worker *w, struct wk_prompt *p, const struct wk_outcome *r)
{
    if (p->decision) put_ends(p, p->decision);
    if (p->decision && r) {
        put_loads(p, r->report->n_prefix);
        put_steps(p, r->report);
    }
    wk_decision_done(w, p->decision, r);
    if (r && !r->slow && r->report->n_failed_ranges == 0)
        wk_measured(w, r->prefill_ms, r->report->cost * p->n_tok);
}

/* ---- 6. build; loop ---- */
void wk_build_missed(struct worker *w, const struct wk_prompt *p, const char *ns)
{
    for (size_t i = 0; i < p->n_cut; i++) {
        const struct wk_cut *c = &p->cut[i];
        if (c->missed) (void)wk_build_queue(w, &c->key, ns, p->tok + c->tok0, c->n, false);
    }
}
