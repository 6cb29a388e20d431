/* The controller in the worker: snapshots in, decisions out, measurements back; see the header.
 *
 * Where a tier has never been read, a speed of its kind is assumed until the first load tells:
 * without that nothing would ever be loaded from it. The price of computing comes from calibration
 * (calib.c) and follows every prefill; a batch that is being decoded meanwhile makes it dearer by a
 * share that is measured, too. */
#include "base/clock.h"
#include "base/log.h"
#include "fusor/core/step_budget.h"
#include "policy/control.h"
#include "tiers/store_admin.h"
#include "tiers/store_write.h"
#include "worker/admin/metrics.h"
#include "worker/quality/guard.h"
#include "worker/reuse/calib.h"
#include "worker/reuse/records.h"
#include "worker/reuse/reuse.h"
#include "worker/worker.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* chosen: a plain NVMe drive, a Redis on the same network; corrected by the first load. */
#define NVME_BYTES_PER_S 1e9
#define OTHER_BYTES_PER_S 3e8
#define RAM_BYTES_PER_S 1e11                         /* placing it is compute: place_s */
#define BUSY_SHARE_FIRST (1 / FUS_STEP_BUDGET_SHARE) /* what decode steps add to a prefill */
#define AVERAGE_WEIGHT 0.1

struct wk_decider {
    bool on;
    double loss;
    pthread_mutex_t m; /* guards what follows; stands alone */
    struct pol_cost cost;
    double busy_share; /* how much longer a prefill takes while others are decoded */
    double prefill_ms; /* of a usual request; 0 = none yet */
    struct ctl_decision *kept[WK_DECISIONS_KEPT];
    size_t next;
};

/* ---- life ---- */
static int calibrate(struct worker *w, struct wk_decider *k)
{
    const struct ctl_calib_opts o = {.cache_dir = *w->cache_dir ? w->cache_dir : NULL,
                                     .kv_dtype = w->ident.dtype};
    struct err e = {0};
    uint64_t t0 = clock_ns();
    int rc = ctl_calibrate(w->core, &w->profile, &o, &k->cost, &e);

    if (rc < 0) {
        log_event(LOG_WARN, "calibration", "state=failed controller=off reason=\"%s\"", e.msg);
        return rc;
    }
    log_event(LOG_NOTICE, "calibration",
              "source=%s seconds=%.2f row_us=%.2f kv_row_us=%.2f pair_ns=%.3f place_us=%.3f "
              "layer_us=%.1f fixed_ms=%.3f",
              rc ? "measured" : "cache", clock_ms_since(t0) / 1e3, k->cost.row_s * 1e6,
              k->cost.kv_row_s * 1e6, k->cost.pair_s * 1e9, k->cost.place_s * 1e6,
              k->cost.layer_s * 1e6, k->cost.fixed_s * 1e3);
    return 0;
}

int wk_decider_open(struct worker *w, struct err *err)
{
    struct wk_decider *k = mem_zalloc(sizeof *k);

    if (!k) return err_set(err, -ENOMEM, "out of memory");
    pthread_mutex_init(&k->m, NULL);
    k->busy_share = BUSY_SHARE_FIRST;
    k->loss = w->profile.loss;
    w->reuse.decider = k;
    k->on = w->o.controller && calibrate(w, k) == 0; /* without it the rules decide */
    return 0;
}

void wk_decider_close(struct worker *w)
{
    struct wk_decider *k = w->reuse.decider;

    if (!k) return;
    for (size_t i = 0; i < WK_DECISIONS_KEPT; i++)
        ctl_decision_free(k->kept[i]);
    pthread_mutex_destroy(&k->m);
    mem_free(k);
    w->reuse.decider = NULL;
}

static bool is_on(const struct worker *w)
{
    return w->reuse.decider && w->reuse.decider->on;
}

/* ---- the snapshot ---- */
struct ctl_decision *wk_decision_create(struct worker *w, const struct wk_prompt *p)
{
    const struct fus_profile *f = &w->profile;
    size_t n = p->n_cut;
    struct ctl_decision *d = ctl_decision_create(n);
    const struct wk_cut *last = p->n_cut ? &p->cut[p->n_cut - 1] : NULL;

    if (!d) return NULL;
    (void)snprintf(d->id, sizeof d->id, "%s", p->id ? p->id : "");
    (void)snprintf(d->alias, sizeof d->alias, "%s", p->alias ? p->alias : "");
    d->prompt = p->index;
    d->t = clock_wall_s();
    d->before_s = p->start_ns ? clock_ms_since(p->start_ns) / 1e3 : 0;
    d->in.L = w->ident.L;
    d->in.check_layer = f->check_layer;
    d->in.score_lo = f->score_lo;
    d->in.score_hi = f->score_hi;
    d->in.side_layer = f->side_layer;
    d->in.n_tok = p->n_tok;
    d->in.n_suffix = last ? p->n_tok - last->tok0 - last->n : p->n_tok;
    d->in.prefix_tier = -1;
    d->in.ratio_max = 1;
    for (size_t i = 0; i < n; i++)
        d->chunk[i] = (struct pol_chunk_now){.tok0 = p->cut[i].tok0, .n = p->cut[i].n, .tier = -1};
    return d;
}

static double speed_of(const struct store_tier_stats *s)
{
    if (strcmp(s->breaker, "open") == 0) return 0;
    if (s->direct) return RAM_BYTES_PER_S; /* nothing is loaded from it */
    if (s->read_bytes_per_s > 0) return s->read_bytes_per_s;
    return strcmp(s->name, "nvme") == 0 ? NVME_BYTES_PER_S : OTHER_BYTES_PER_S;
}

static void put_tiers(struct worker *w, const uint64_t own_bytes[POL_TIERS_MAX],
                      struct ctl_decision *d)
{
    size_t n = store_n_tiers(w->store);

    d->in.n_tier = 1 + n;
    d->in.tier[0].bytes_per_s = RAM_BYTES_PER_S;
    (void)snprintf(d->tier_name[0], CTL_TIER_NAME_BYTES, "ram");
    for (size_t i = 0; i < n; i++) {
        struct pol_tier_now *t = &d->in.tier[1 + i];
        struct store_tier_stats s;
        store_get_tier_stats(w->store, i, &s);
        t->bytes_per_s = speed_of(&s);
        t->first_s = s.first_ms / 1e3;
        t->by_record = s.shared; /* a peer answers command by command */
        uint64_t own = own_bytes ? own_bytes[1 + i] : 0;
        uint64_t before = s.queued_bytes > own ? s.queued_bytes - own : 0;
        if (t->bytes_per_s > 0) t->queue_s = (double)before / t->bytes_per_s;
        (void)snprintf(d->tier_name[1 + i], CTL_TIER_NAME_BYTES, "%s", s.name);
    }
}

/* The loss that the profile's curves have to keep: they are those of merged records. */
static double loss_wanted(const struct worker *w, const struct ctl_decision *d)
{
    double held = 0, isolated = 0;

    for (size_t i = 0; i < d->in.n_chunk; i++) {
        const struct pol_chunk_now *c = &d->chunk[i];
        if (c->tier < 0) continue;
        held += c->n;
        isolated += c->merged ? 0 : c->n;
    }
    return fus_profile_loss_of(&w->profile, w->reuse.decider->loss, held > 0 ? isolated / held : 0);
}

/* What keeps the quality wanted, under what operator, client and the quality guard allow. */
static void put_floors(struct worker *w, const struct api_settings *m, struct ctl_decision *d)
{
    struct pol_guard_setting guard;
    bool guarded = wk_guard_rules(w, m, &guard) > 0, given = w->o.strategy_given;
    enum pol_strategy only = guarded ? guard.strategy : w->o.strategy;
    const double loss = loss_wanted(w, d);

    for (int i = POL_REUSE; i < POL_STRATEGY_COUNT; i++) {
        enum pol_strategy s = (enum pol_strategy)i;
        struct pol_strat_now *now = &d->in.strat[s];
        double floor = guarded ? guard.ratio : w->o.ratio, known;
        bool is_known = fus_profile_ratio_for(&w->profile, s, loss, &known) == 1;
        if (is_known && guarded) floor = fmax(floor, known);
        if (is_known && !guarded && !w->o.ratio_given) floor = known;
        now->floor = fmax(floor, m->min_ratio); /* -1: not given */
        now->allowed = w->blend_ok && !(guarded && guard.exact) &&
                       (guarded || given ? s == only : is_known) &&
                       (d->in.n_suffix > 0 || !pol_strategy_asks(s));
    }
    d->in.strat[POL_FULL].allowed = d->in.strat[POL_PREFIX].allowed = true;
}

static void put_cost(struct worker *w, struct ctl_decision *d)
{
    struct wk_decider *k = w->reuse.decider;
    struct fus_engine_stats e = {0};
    double more = 1;

    if (w->engine) fus_engine_get_stats(w->engine, &e);
    pthread_mutex_lock(&k->m);
    d->in.cost = k->cost;
    if (e.n_running > 0) more += k->busy_share;
    pthread_mutex_unlock(&k->m);
    d->n_running = e.n_running;
    struct pol_cost *c = &d->in.cost;
    double *const price[] = {&c->fixed_s, &c->layer_s, &c->row_s,  &c->kv_row_s,
                             &c->pair_s,  &c->place_s, &c->mass_s, &c->head_s};
    for (size_t i = 0; i < sizeof price / sizeof *price; i++)
        *price[i] *= more;
}

/* ---- the decision ---- */
/* What the client asks for, over what the operator set and the guard made of it. */
static struct pol_request request_of(struct worker *w, const struct api_settings *m)
{
    struct pol_request q = {.wish = m->strategy,
                            .ratio = m->ratio,
                            .strategy_default = w->o.strategy,
                            .ratio_default = w->o.ratio,
                            .blend_allowed = w->blend_ok,
                            .search = is_on(w)};
    struct pol_guard_setting guard;

    if (wk_guard_rules(w, m, &guard) > 0) {
        q.blend_allowed &= !guard.exact;
        q.ratio_default = guard.ratio;
        q.strategy_default = guard.strategy;
    }
    return q;
}

void wk_decide(struct worker *w, const struct api_settings *m,
               const uint64_t own_bytes[POL_TIERS_MAX], struct ctl_decision *d)
{
    uint64_t t0 = clock_ns();

    put_tiers(w, own_bytes, d);
    if (is_on(w)) {
        put_floors(w, m, d);
        put_cost(w, d);
    }
    if (m->max_ttft_ms > 0) { /* what parsing and the queue have left of it */
        double left_s = m->max_ttft_ms / 1e3 - d->before_s;
        d->in.max_ttft_s = left_s > 1e-6 ? left_s : 1e-6;
    }
    const struct pol_request q = request_of(w, m);
    d->by = pol_decide(&d->in, &q, &d->out, d->reuse) ? CTL_BY_CONTROLLER : CTL_BY_RULES;
    d->decide_s = (double)(clock_ns() - t0) / 1e9;
}

/* ---- what came of it ---- */
static void keep(struct wk_decider *k, const struct ctl_decision *d)
{
    struct ctl_decision *mine = ctl_decision_copy(d), *old;

    if (!mine) return;
    pthread_mutex_lock(&k->m);
    old = k->kept[k->next];
    k->kept[k->next] = mine;
    k->next = (k->next + 1) % WK_DECISIONS_KEPT;
    pthread_mutex_unlock(&k->m);
    ctl_decision_free(old);
}

void wk_decisions_visit(struct worker *w, int (*fn)(void *ctx, const struct ctl_decision *d),
                        void *ctx)
{
    struct wk_decider *k = w->reuse.decider;

    pthread_mutex_lock(&k->m);
    for (size_t i = 1; i <= WK_DECISIONS_KEPT; i++) {
        const struct ctl_decision *d =
            k->kept[(k->next + WK_DECISIONS_KEPT - i) % WK_DECISIONS_KEPT];
        if (!d || fn(ctx, d) != 0) break;
    }
    pthread_mutex_unlock(&k->m);
}

static void move(double *average, double x)
{
    *average += (x - *average) * AVERAGE_WEIGHT;
}

/* m held. What this prefill says of the price of computing. */
static void learn(struct wk_decider *k, const struct ctl_decision *d)
{
    double compute_s = d->measured.compute_s;
    struct pol_work work;

    if (!k->on || !d->measured.whole || compute_s <= 0 || d->in.n_chunk > POL_CHUNKS_MAX) return;
    pol_work_of(&d->in, d->out.strategy, d->out.ratio, d->reuse, &work);
    pol_cost_correct(&k->cost, pol_cost_time(&k->cost, &work), compute_s);
    /* Where nothing was waited for, all that is beyond its own steps went to others. */
    if (d->n_running > 0 && d->out.predicted.load_s <= 0)
        move(&k->busy_share, fmin(fmax(d->measured.prefill_s / compute_s - 1, 0), 2));
}

void wk_decision_done(struct worker *w, struct ctl_decision *d, const struct wk_outcome *r)
{
    struct wk_decider *k = w->reuse.decider;

    if (!k || !d) return;
    d->measured.prefill_s = r ? r->prefill_ms / 1e3 : -1;
    d->measured.compute_s = r ? r->report->compute_ms / 1e3 : -1;
    d->measured.ttft_s = r ? r->ttft_ms / 1e3 : -1;
    d->measured.queue_s = r ? r->queue_ms / 1e3 : -1;
    d->measured.whole = r && r->report->n_failed_ranges == 0 && !d->loose;
    if (r) {
        d->measured.n_prefix = r->report->n_prefix;
        d->measured.n_reused = r->report->n_reused;
        d->measured.n_recomputed = r->report->n_recomputed;
        d->measured.n_computed = r->report->n_computed;
        pthread_mutex_lock(&k->m);
        if (k->prefill_ms <= 0) k->prefill_ms = r->prefill_ms;
        move(&k->prefill_ms, r->prefill_ms);
        learn(k, d);
        pthread_mutex_unlock(&k->m);
        wk_metrics_decision(d);
    }
    keep(k, d);
}

double wk_decider_worth_ms(struct worker *w, uint32_t n_tok)
{
    struct wk_decider *k = w->reuse.decider;
    struct fus_engine_stats e = {0};

    if (!is_on(w)) return 0;
    if (w->engine) fus_engine_get_stats(w->engine, &e);
    struct pol_control_in in = {.L = w->ident.L, .n_tok = n_tok, .n_suffix = n_tok};
    struct pol_prediction p;
    pthread_mutex_lock(&k->m);
    in.cost = k->cost;
    double queue_ms = k->prefill_ms * e.n_active;
    pthread_mutex_unlock(&k->m);
    pol_predict(&in, POL_FULL, 0, NULL, &p);
    return queue_ms + p.ttft_s * 1e3;
}
