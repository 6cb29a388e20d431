/* Leases: which targets may take a request, which gets it, and what its end tells.
 *
 * Targets that serve the model and can take a request now are gathered in one pass; of these the
 * best group counts: workers before upstreams (they hold the chunks), then the lowest priority.
 * Within the group a target whose breaker waits for its one try is taken first, so that it comes
 * back even where the balance would rarely choose it; else policy/route.h decides.
 *
 * A report tells the work that waits in a worker; until the next one the work sent there is added
 * and the time that has passed is taken off. Reports follow each change within a tenth of a second,
 * of hundreds of workers within one, so that a worker that says nothing after it was sent something
 * is no longer heard: it is then treated as one that never reported. */
#include "gateway/fleet/fleet_int.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "gateway/fleet/residency.h"
#include "gateway/process/stats.h"
#include "policy/route.h"
#include "policy/shed.h"

#include <string.h>

enum {
    SLOW_START_MS = 10000,   /* chosen: a backend that was away gets its whole share again */
    SLOW_START_PARTS = 10,   /* it begins with a tenth */
    PROBE_OUT_WAIT_MS = 500, /* chosen: the breaker's try is out; its end comes as on_room, too */
    FIRST_CHECK_MS = 1000,   /* chosen: so long a better group is given its first health check */
    BREAKER_HALF_MIN = 10,   /* cited: half of the last 20 */
    SILENT_MAX_MS = 3000,    /* chosen: several polls of a worker's residency */
};

/* ---- load: what workers report, and what was sent since ---- */

/* Another thread may have written `then` after `now` was read. */
static double since_ms(uint64_t then, uint64_t now)
{
    return now > then ? (double)(now - then) / 1e6 : 0;
}

static bool is_known(const struct gw_target *t, uint64_t now)
{
    const struct fleet_load *l = &t->load;
    return l->known && (l->n_sent == 0 || since_ms(l->sent_ns, now) < SILENT_MAX_MS);
}

static double cost_ms(const struct gw_target *t, uint64_t computed, uint64_t reused)
{
    const struct gw_load *s = &t->load.said;
    return s->token_ms * (double)computed + s->reused_ms * (double)reused;
}

static struct pol_shed_worker now_at(const struct gw_target *t, uint64_t now)
{
    const struct fleet_load *l = &t->load;
    double left = l->said.waiting_ms + l->sent_ms - since_ms(l->said_ns, now);
    return (struct pol_shed_worker){.backlog_ms = left > 0 ? left : 0,
                                    .n_running = l->said.n_running,
                                    .n_waiting = l->said.n_waiting + l->n_sent,
                                    .slots = l->said.slots,
                                    .hold_ms = l->said.hold_ms};
}

static void load_sent(struct gw_lease *lease, uint64_t computed, uint64_t reused, uint64_t now)
{
    struct fleet_load *l = &lease->target->load;
    if (!l->known) return;
    if (l->n_sent++ == 0) l->sent_ns = now;
    lease->said_ns = l->said_ns;
    lease->sent_ms = cost_ms(lease->target, computed, reused);
    l->sent_ms += lease->sent_ms;
}

/* A later report has counted it, or not: what the worker refused was never in one. */
static void load_gone(struct gw_lease *lease)
{
    struct fleet_load *l = &lease->target->load;
    if (lease->said_ns == 0) return;
    if (l->known && lease->said_ns == l->said_ns && l->n_sent > 0) {
        l->n_sent--;
        l->sent_ms = l->n_sent > 0 ? l->sent_ms - lease->sent_ms : 0;
    }
    lease->said_ns = 0;
}

double fleet_load_wait_ms(const struct gw_target *t, uint64_t now)
{
    struct pol_shed_worker w = now_at(t, now);
    if (!t->worker || t->health.state != GW_TARGET_READY || !is_known(t, now)) return -1;
    return pol_shed(&(struct pol_shed_in){.worker = &w, .n = 1}).wait_ms;
}

void gw_fleet_report(struct gw_fleet *f, unsigned index, const struct gw_load *l)
{
    uint64_t now = clock_ns();
    fleet_lock(f);
    if (index < f->n) {
        struct gw_target *t = f->target[index];
        t->load = (struct fleet_load){.known = l != NULL, .said_ns = now};
        if (l) t->load.said = *l;
    }
    fleet_unlock(f);
}

/* Is its model for something else: answers where vectors are wanted, or the other way round? False
 * where it has not said, unless only a request can have it say so. */
static bool is_other_kind(const struct gw_target *t, const struct gw_want *w)
{
    if (t->on_demand && !t->health.ready_since_ns) return true;
    return t->worker && t->models.tasks && !(t->models.tasks & w->task);
}

struct fit {         /* of the workers there are */
    bool can, meant; /* one can do what is asked for, or was made for it */
};
static struct fit best_fit(const struct gw_fleet *f, const struct gw_want *w)
{
    struct fit best = {0};
    for (size_t i = 0; i < f->n; i++) {
        const struct gw_target *t = f->target[i];
        if (!t->worker || t->retired || t->leaving || is_other_kind(t, w)) continue;
        best.can = true;
        best.meant |= t->models.tasks && t->models.meant == w->task;
    }
    return best;
}

/* A request that names no model goes to one that was made for it, else to any that can do it. Where
 * there is none, or one worker alone, that says why by itself. */
static bool passes_over(const struct gw_fleet *f, const struct gw_target *t,
                        const struct gw_want *w, struct fit best)
{
    if (w->model && (strcmp(w->model, "default") != 0 || !best.can)) return false;
    if (!t->worker || (f->one_model && f->n_upstreams == 0)) return false;
    return is_other_kind(t, w) || (best.meant && t->models.tasks && t->models.meant != w->task);
}

/* Could it take a request for the model? A target that cannot now may soon: it counts for nothing.
 */
static bool takes(const struct gw_fleet *f, const struct gw_target *t, const char *model)
{
    const char *sent;
    return fleet_is_open(t) && t->health.state == GW_TARGET_READY && !t->health.suspect &&
           fleet_serves(f, t, model, &sent) == FLEET_YES;
}

size_t gw_fleet_forecast(struct gw_fleet *f, const struct gw_want *w, struct pol_shed_worker *ret)
{
    uint64_t held[GW_TARGETS_MAX], now = clock_coarse_ns();
    bool known = true, holds = f->directory && w->n_texts > 0;
    size_t n = 0;
    if (holds) gw_directory_resident(f->directory, w->text_id, w->n_texts, held, GW_TARGETS_MAX);
    fleet_lock(f);
    const struct fit best = best_fit(f, w);
    for (size_t i = 0; i < f->n && known; i++) {
        const struct gw_target *t = f->target[i];
        if (!t->worker || passes_over(f, t, w, best) || !takes(f, t, w->model)) continue;
        known = is_known(t, now);
        uint64_t reused = holds ? held[i] : 0;
        if (reused > w->prompt_tokens) reused = w->prompt_tokens;
        ret[n] = now_at(t, now);
        ret[n++].cost_ms = cost_ms(t, w->prompt_tokens - reused, reused);
    }
    fleet_unlock(f);
    return known ? n : 0;
}

bool gw_fleet_room(struct gw_fleet *f, const char *model)
{
    uint64_t now = clock_ns();
    bool room = false, any = false;
    fleet_lock(f);
    for (size_t i = 0; i < f->n && !room; i++) {
        const struct gw_target *t = f->target[i];
        if (!t->worker || !takes(f, t, model)) continue;
        struct pol_shed_worker w = now_at(t, now);
        any = true;
        room = !is_known(t, now) || pol_shed_room(&w);
    }
    fleet_unlock(f);
    return room || !any;
}

/* ---- breaker ---- */

/* The rules may change by a reload. */
static void breaker_rules(const struct gw_fleet *f, struct gw_target *t)
{
    unsigned run = f->set.breaker_failures;
    t->health.breaker.rule.run_max = run;
    /* A rule of more than 20 in a row bears any share of them. */
    t->health.breaker.rule.failed_min = run > BREAKER_HALF_MIN ? run : BREAKER_HALF_MIN;
    t->health.breaker.rule.backoff_first_ns = t->health.breaker.rule.backoff_max_ns =
        f->set.breaker_open_ns;
}

static double slow_start(const struct gw_target *t, uint64_t now)
{
    if (!t->health.slow_from_ns) return 1;
    double share = (double)(now - t->health.slow_from_ns) / (SLOW_START_MS * 1e6);
    return share >= 1 ? 1 : share < 1.0 / SLOW_START_PARTS ? 1.0 / SLOW_START_PARTS : share;
}

/* ---- candidates ---- */

struct candidate {
    struct gw_target *target;
    const char *sent;
    unsigned group; /* 0: workers, then by priority */
    bool trial;     /* its breaker wants one try */
};
struct search {
    size_t n;
    bool known, perhaps, loading, returning, unsure, full, open;
    struct fit best;
    struct gw_target *asleep; /* that would serve it */
    uint64_t wait_ns;         /* until the first breaker lets one through */
    unsigned new_group;       /* the best of those that were added just now */
    uint64_t new_until_ns;
    struct candidate can[GW_TARGETS_MAX]; /* the last member: it is not cleared */
};

static unsigned group_of(const struct gw_target *t)
{
    return t->worker ? 0 : 1 + t->up->priority;
}

static bool was_tried(const struct gw_want *w, unsigned index)
{
    return w->tried[index / 64] >> (index % 64) & 1;
}

/* Who names no model means the workers', ready or not, where one is for it: a prompt leaves for an
 * upstream by name, or where no worker knows the route. */
static bool means_workers(const struct gw_want *w, struct fit best)
{
    return best.can && !w->model && !w->upstream_only && !w->upstream && !w->path;
}

static void look_at(struct gw_fleet *f, struct gw_target *t, const struct gw_want *w, uint64_t now,
                    struct search *s)
{
    const char *sent = NULL;
    if (t->retired || t->leaving || (t->worker ? w->upstream_only : w->worker_only)) return;
    if (passes_over(f, t, w, s->best)) return;
    if (w->worker && w->worker != t->index + 1) return;
    if (w->upstream && (t->worker || strcmp(t->name, w->upstream) != 0)) return;
    if (w->path && !(t->up && gw_upstream_opens(t->up, w->path))) return;
    if (!t->worker && means_workers(w, s->best)) return;
    enum fleet_serves serves = fleet_serves(f, t, w->model, &sent);
    if (serves == FLEET_NO) return;
    if (serves == FLEET_YES) s->known = true;
    if (serves == FLEET_PERHAPS) s->perhaps = true;
    if (t->drained && !w->worker) return;
    if (t->health.state != GW_TARGET_READY) {
        bool loading = t->health.state == GW_TARGET_LOADING;
        bool asleep = t->health.state == GW_TARGET_ASLEEP;
        bool comes = t->own || (t->worker && loading);
        s->loading |= comes && !asleep;
        s->returning |= comes && (t->health.ready_since_ns > 0 || t->on_demand);
        if (asleep) s->asleep = t;
        s->unsure |= !t->worker && loading; /* its first health check is under way */
        uint64_t until = t->health.added_ns + FIRST_CHECK_MS * 1000000ull;
        if (!t->worker && loading && now < until && group_of(t) < s->new_group) {
            s->new_group = group_of(t);
            s->new_until_ns = until;
        }
        return;
    }
    uint64_t wait = !t->own ? breaker_wait_ns(&t->health.breaker, now) : 0;
    if (wait > 0) {
        if (t->health.breaker.state == BREAKER_HALF_OPEN) wait = PROBE_OUT_WAIT_MS * 1000000ull;
        if (!s->open || wait < s->wait_ns) s->wait_ns = wait;
        s->open = true;
    } else if (t->health.suspect) {
        s->unsure = true;
    } else if (t->up && t->up->inflight_max && t->n_inflight >= t->up->inflight_max) {
        s->full = true;
    } else if (serves == FLEET_PERHAPS) {
        s->unsure = true; /* its list of models is being asked for */
    } else {
        bool trial = !t->own && t->health.breaker.state != BREAKER_CLOSED;
        s->can[s->n++] = (struct candidate){t, sent, group_of(t), trial};
    }
}

/* Leave the best group; targets that were tried only where there is no other at all. */
static void narrow(struct search *s, const struct gw_want *w)
{
    size_t fresh = 0, n = 0;
    unsigned best = UINT32_MAX;
    bool trial = false;
    for (size_t i = 0; i < s->n; i++)
        fresh += !was_tried(w, s->can[i].target->index);
    for (int pass = 0; pass < 3; pass++) { /* find the group, then its trial, then filter */
        for (size_t i = 0; i < s->n; i++) {
            const struct candidate *c = &s->can[i];
            if (fresh && was_tried(w, c->target->index)) continue;
            if (pass == 0 && c->group < best) best = c->group;
            if (pass == 1 && c->group == best) trial |= c->trial;
            if (pass == 2 && c->group == best && c->trial == trial) s->can[n++] = *c;
        }
    }
    s->n = n;
}

static size_t choose(struct gw_fleet *f, const struct search *s, const struct gw_want *w,
                     const uint64_t *resident, uint64_t now)
{
    struct pol_route_target route[GW_TARGETS_MAX];
    for (size_t i = 0; i < s->n; i++) {
        const struct gw_target *t = s->can[i].target;
        route[i] =
            (struct pol_route_target){.weight = (t->up ? t->up->weight : 1) * slow_start(t, now),
                                      .n_inflight = t->n_inflight,
                                      .queued_tokens = t->tokens_in_flight,
                                      .resident_tokens = resident ? resident[t->index] : 0,
                                      .id = t->id};
    }
    struct pol_route_in in = {.target = route,
                              .n = s->n,
                              .balance = s->can[0].target->worker ? POL_BALANCE_RESIDENT
                                         : f->set.affinity        ? POL_BALANCE_AFFINITY
                                                                  : POL_BALANCE_LEAST,
                              .affinity = w->affinity,
                              .prompt_tokens = w->prompt_tokens,
                              .random = rng_next(&f->rng)};
    struct pol_route r = pol_route(&in);
    gw_stats_routed(r.reason, resident ? w->prompt_tokens : 0, route[r.chosen].resident_tokens);
    return r.chosen;
}

/* ---- pick ---- */

static void lease(struct gw_fleet *f, const struct candidate *c, const struct gw_want *w,
                  uint64_t resident, uint64_t now, struct gw_lease *ret)
{
    struct gw_target *t = c->target;
    uint64_t tokens = w->prompt_tokens > resident ? w->prompt_tokens - resident : 0;
    if (!t->own) {
        breaker_rules(f, t);
        bool allowed = breaker_allow(&t->health.breaker, now);
        ASSERT(allowed);
    }
    t->n_inflight++;
    t->used_ns = now;
    t->count.picked++;
    t->tokens_in_flight += tokens;
    *ret = (struct gw_lease){.target = t,
                             .index = t->index,
                             .up = fleet_upstream_hold(t->up),
                             .authorization = t->up ? t->up->authorization : t->authorization,
                             .model = c->sent,
                             .name = t->name,
                             .worker = t->worker,
                             .prompt_tokens = tokens,
                             .at_ns = now,
                             .probe = c->trial};
    load_sent(ret, tokens, w->prompt_tokens - tokens, now);
}

/* Have on_room called then. */
static void room_at(struct gw_fleet *f, uint64_t at_ns)
{
    if (f->room_at_ns && f->room_at_ns <= at_ns) return;
    f->room_at_ns = at_ns;
    fleet_wake(f);
}

static enum gw_pick refusal(struct gw_fleet *f, const struct search *s, uint64_t now,
                            uint32_t *ret_wait_ms)
{
    if (f->n_workers + f->n_upstreams == 0) return GW_PICK_LOADING; /* none registered yet */
    if (!s->known && !s->perhaps) return GW_PICK_UNKNOWN_MODEL;
    if (s->unsure) return GW_PICK_UNSURE;
    if (s->full) {
        f->wants_room = true;
        return GW_PICK_FULL;
    }
    if (s->open) {
        f->wants_room = true;
        if (ret_wait_ms) *ret_wait_ms = (uint32_t)(s->wait_ns / 1000000) + 1;
        room_at(f, now + s->wait_ns);
        return GW_PICK_OPEN;
    }
    if (s->asleep && !s->loading) { /* nothing else will come */
        s->asleep->news |= FLEET_WANTED;
        fleet_wake(f);
    }
    if (s->returning) return GW_PICK_RETURNING;
    return s->loading ? GW_PICK_LOADING : GW_PICK_DOWN;
}

enum gw_pick gw_fleet_pick(struct gw_fleet *f, const struct gw_want *w, struct gw_lease *ret,
                           uint32_t *ret_wait_ms)
{
    uint64_t now = clock_ns();
    uint64_t resident[GW_TARGETS_MAX];
    const uint64_t *held = NULL;
    struct search s;
    memset(&s, 0, offsetof(struct search, can));
    s.new_group = UINT32_MAX;
    if (f->directory && w->n_texts > 0 && !w->upstream_only) {
        gw_directory_resident(f->directory, w->text_id, w->n_texts, resident, GW_TARGETS_MAX);
        held = resident;
    }
    enum gw_pick r = GW_PICK_OK;
    fleet_lock(f);
    s.best = best_fit(f, w);
    for (size_t i = 0; i < f->n; i++)
        look_at(f, f->target[i], w, now, &s);
    narrow(&s, w);
    if (w->untried && (s.n == 0 || was_tried(w, s.can[0].target->index))) {
        r = GW_PICK_DOWN; /* the request waits for no other: nothing else is touched */
    } else if (s.n > 0 &&
               s.new_group < s.can[0].group) { /* just started: which comes first is not known */
        r = GW_PICK_UNSURE;
        room_at(f, s.new_until_ns);
    } else if (s.n > 0) {
        const struct candidate *c = &s.can[choose(f, &s, w, held, now)];
        lease(f, c, w, held ? held[c->target->index] : 0, now, ret);
    } else {
        r = refusal(f, &s, now, ret_wait_ms);
    }
    fleet_unlock(f);
    return r;
}

/* ---- release ---- */

static void judge_try(struct gw_fleet *f, struct gw_target *t, const struct gw_lease *l,
                      enum gw_outcome o, uint64_t now)
{
    static const enum breaker_result results[] = {[GW_DONE_OK] = BREAKER_OK,
                                                  [GW_DONE_BUSY] = BREAKER_OK,
                                                  [GW_DONE_FAILED] = BREAKER_FAILED,
                                                  [GW_DONE_TIMEOUT] = BREAKER_TIMEOUT};
    enum breaker_state before = t->health.breaker.state;
    if (t->own) return;
    breaker_rules(f, t);
    if (o == GW_DONE_CANCELLED)
        breaker_forget(&t->health.breaker, l->at_ns);
    else
        breaker_report(&t->health.breaker, results[o], l->at_ns, now);
    if (t->health.breaker.state == before) return;
    log_event(t->health.breaker.state == BREAKER_CLOSED ? LOG_NOTICE : LOG_WARN, "upstream.breaker",
              "target=%s state=%s", t->name, breaker_state_name(t->health.breaker.state));
    if (t->health.breaker.state == BREAKER_CLOSED) t->health.slow_from_ns = now;
}

static void count_outcome(struct gw_target *t, enum gw_outcome o, uint64_t ttfb_ns)
{
    t->count.outcome[o]++;
    if (ttfb_ns == 0) return;
    double ms = (double)ttfb_ns / 1e6;
    t->ttfb_ms = t->ttfb_ms > 0 ? 0.8 * t->ttfb_ms + 0.2 * ms : ms; /* chosen: the last ten or so */
}

static void computed(struct gw_lease *l)
{
    if (l->computed) return;
    ASSERT(l->target->tokens_in_flight >= l->prompt_tokens);
    l->target->tokens_in_flight -= l->prompt_tokens;
    load_gone(l);
    l->computed = true;
}

static void tell_room(struct gw_fleet *f)
{
    if (!f->wants_room) return;
    f->wants_room = false;
    f->room = true;
    fleet_wake(f);
}

void gw_fleet_computed(struct gw_fleet *f, struct gw_lease *l)
{
    if (!l->target) return;
    fleet_lock(f);
    computed(l);
    if (l->probe && l->status > 0 && l->status < 500) {
        judge_try(f, l->target, l, GW_DONE_OK,
                  clock_coarse_ns()); /* its stream may last for minutes */
        l->probe = false;
        tell_room(f);
    }
    fleet_unlock(f);
}

void gw_fleet_release(struct gw_fleet *f, struct gw_lease *l, enum gw_outcome o, uint64_t ttfb_ns)
{
    struct gw_target *t = l->target;
    uint64_t now = clock_coarse_ns();
    if (!t) return;
    fleet_lock(f);
    computed(l);
    ASSERT(t->n_inflight > 0);
    t->n_inflight--;
    t->used_ns = now;
    count_outcome(t, o, ttfb_ns);
    fleet_count_status(t, l->status);
    judge_try(f, t, l, o, now);
    if (o == GW_DONE_OK) t->health.why[0] = '\0';
    if (o == GW_DONE_FAILED || o == GW_DONE_TIMEOUT) fleet_blame(t, l->error, l->status, "");
    if (o == GW_DONE_FAILED && t->worker && t->health.state == GW_TARGET_READY) {
        t->health.suspect = t->news |= FLEET_PROBE;
        fleet_wake(f);
    }
    fleet_upstream_release(l->up);
    fleet_retire_if_idle(f, t);
    tell_room(f);
    fleet_unlock(f);
    *l = (struct gw_lease){0};
}
