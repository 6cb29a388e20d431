/* Shadows: what they keep, when they run, and the change of level they lead to.
 *
 * Of a sampled request are kept its tokens, the keys of its chunks and the logits of its first
 * tokens as it decoded them. In idle time up to three idle plans run over the prompt with those
 * tokens given: a full prefill (the truth), plain reuse (the yardstick: what blending is to
 * repair), and, above level 0, the setting of the level below (whether the way back is safe). At
 * the exact level requests run in full: their own logits are the truth. A plan that must give way
 * to a request is tried again; a chunk that has left RAM costs the yardstick and the trial, not the
 * shadow. Sums over the vocabulary are a helper's work: the engine thread only copies rows. */
#include "worker/quality/guard.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/jobs.h"
#include "base/log.h"
#include "tiers/store_admin.h"
#include "worker/admin/metrics.h"
#include "worker/reuse/records.h"
#include "worker/reuse/reuse.h"
#include "worker/worker.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    GUARD_BYTES_MAX = 64 << 20, /* chosen: about 80 shadows of a vocabulary of 49k */
    TRIES_MAX = 100,            /* of a shadow that always has to give way */
    IDLE_MS = 250,              /* chosen: a pause that a client in a loop does not make */
    SEED = 1,
};

enum step { STEP_FULL, STEP_REUSE, STEP_TRIAL, STEP_END };
struct wk_shadow {
    STAILQ_ENTRY(wk_shadow) link;
    struct worker *w;
    size_t bytes;
    unsigned epoch; /* of the level it was taken at */
    bool exact;     /* it ran in full: its logits are the truth */
    uint32_t n_prompt, n_suffix;
    uint32_t n_given; /* tokens behind the prompt */
    int32_t *tok;     /* [n_prompt + n_given] */
    unsigned n_rows;
    float *row;              /* [n_rows, V]: the request's; once the truth is known, that */
    struct fus_range *range; /* of its chunks; sources while a plan has them */
    struct tier_key *key;
    size_t n_range;
    double kl[STEP_END], agree[STEP_END]; /* kl < 0: not known */
    bool has_trial;                       /* of `tried`, the level below */
    struct pol_guard_setting tried;
};

struct wk_guard {
    struct worker *w;
    pthread_mutex_t m;
    /* guarded by m */
    struct pol_guard g;
    struct pol_guard_cfg cfg;
    unsigned epoch; /* counts changes of level */
    STAILQ_HEAD(, wk_shadow) queue;
    size_t bytes;           /* of all shadows that are alive */
    struct wk_guard_view n; /* its counters alone */
    uint64_t n_seen, active_ns;
    /* the shadow that is worked on: the engine's or a helper's while it is away */
    atomic_bool away;
    void (*back)(struct wk_guard *g); /* loop: what follows when it is not any more; or NULL */
    struct wk_shadow *cur;
    enum step step;
    unsigned tries;
    int status;
    float *other; /* [WK_GUARD_ROWS, V] logits of the step */
    struct wk_msg msg;
    struct http_timer timer;
};

static bool guard_is_on(const struct worker *w)
{
    return w->guard && w->blend_ok && w->o.guard_sample > 0 && w->guard->cfg.strategy > POL_PREFIX;
}

unsigned wk_guard_rules(const struct worker *w, const struct api_settings *m,
                        struct pol_guard_setting *ret)
{
    struct wk_guard *g = w->guard;
    const bool asked =
        m->strategy == POL_REUSE || (pol_strategy_runs(m->strategy) && m->ratio >= 0);

    if (!g) return 0; /* parts of a worker, in tests */
    pthread_mutex_lock(&g->m);
    const unsigned level = g->g.level;
    *ret = pol_guard_setting(&g->cfg, level);
    pthread_mutex_unlock(&g->m);
    if (pol_strategy_is_exact(m->strategy) || (asked && !ret->exact)) return 0;
    return level;
}

/* ---- a request's shadow; engine thread ---- */

void wk_guard_drop(struct wk_shadow *s)
{
    if (!s) return;
    struct wk_guard *g = s->w->guard;
    pthread_mutex_lock(&g->m);
    g->bytes -= s->bytes;
    pthread_mutex_unlock(&g->m);
    mem_free(s->tok);
    mem_free(s->row);
    mem_free(s->range);
    mem_free(s->key);
    mem_free(s);
}

static struct wk_shadow *shadow_make(struct worker *w, const struct wk_prompt *p, unsigned epoch)
{
    const size_t V = model_config(w->model)->V;
    const size_t bytes = sizeof(struct wk_shadow) + (p->n_tok + WK_GUARD_ROWS) * sizeof *p->tok +
                         WK_GUARD_ROWS * V * sizeof(float) +
                         p->n_cut * (sizeof(struct fus_range) + sizeof(struct tier_key));
    struct wk_guard *g = w->guard;
    struct wk_shadow *s = mem_zalloc(sizeof *s);

    if (!s) return NULL;
    *s = (struct wk_shadow){.w = w, .bytes = bytes, .epoch = epoch, .n_prompt = p->n_tok};
    for (int i = 0; i < STEP_END; i++)
        s->kl[i] = -1;
    pthread_mutex_lock(&g->m);
    bool room = g->bytes + bytes <= GUARD_BYTES_MAX;
    g->bytes += bytes;
    g->n.n_dropped += !room;
    pthread_mutex_unlock(&g->m);
    s->tok = room ? mem_alloc((p->n_tok + WK_GUARD_ROWS) * sizeof *s->tok) : NULL;
    s->row = room ? mem_alloc(WK_GUARD_ROWS * V * sizeof *s->row) : NULL;
    s->range = room ? mem_alloc((p->n_cut + 1) * sizeof *s->range) : NULL;
    s->key = room ? mem_alloc((p->n_cut + 1) * sizeof *s->key) : NULL;
    if (!s->tok || !s->row || !s->range || !s->key) {
        wk_guard_drop(s);
        return NULL;
    }
    memcpy(s->tok, p->tok, p->n_tok * sizeof *s->tok);
    return s;
}

/* Left to the worker: nothing of what the guard decides was asked for. */
static bool is_governed(const struct api_settings *m)
{
    return !pol_strategy_runs(m->strategy) && m->ratio < 0;
}

struct wk_shadow *wk_guard_begin(struct worker *w, const struct wk_prompt *p,
                                 const struct api_settings *m, const struct fus_plan *plan)
{
    const bool blends = !pol_strategy_is_exact(plan->strategy);
    struct wk_guard *g = w->guard;
    struct wk_shadow *s = NULL;

    if (!guard_is_on(w) || !is_governed(m)) return NULL;
    pthread_mutex_lock(&g->m);
    const bool exact = pol_guard_setting(&g->cfg, g->g.level).exact;
    const unsigned epoch = g->epoch;
    const bool wanted =
        exact != blends && p->n_cut > 0 && pol_guard_sampled(SEED, g->n_seen++, w->o.guard_sample);
    g->active_ns = clock_ns();
    pthread_mutex_unlock(&g->m);
    if (wanted) s = shadow_make(w, p, epoch);
    if (!s) return NULL;
    s->exact = exact;
    for (size_t i = 0; i < p->n_cut; i++) {
        const struct wk_cut *c = &p->cut[i];
        const bool found = c->lookup.tier && !c->missed && c->source != WK_PREFIX;
        if (exact ? !found : c->source != WK_STORED) continue;
        s->range[s->n_range] =
            (struct fus_range){.tok0 = c->tok0, .n = c->n, .at_built = wk_at_built(w, p, c)};
        s->key[s->n_range++] = c->key;
    }
    s->n_suffix = p->n_tok - p->cut[p->n_cut - 1].tok0 - p->cut[p->n_cut - 1].n;
    if (s->n_range > 0) return s;
    wk_guard_drop(s); /* exact, and nothing was held: it would not have been blended */
    return NULL;
}

void wk_guard_logits(struct wk_shadow *s, const float *logits)
{
    const size_t V = model_config(s->w->model)->V;

    if (s->n_rows == WK_GUARD_ROWS) return;
    memcpy(s->row + s->n_rows++ * V, logits, V * sizeof *logits);
}

void wk_guard_token(struct wk_shadow *s, int32_t id)
{
    if (s->n_given + 1 < WK_GUARD_ROWS) s->tok[s->n_prompt + s->n_given++] = id;
}

void wk_guard_put(struct wk_shadow *s)
{
    struct wk_guard *g = s->w->guard;

    if (s->n_rows == 0) {
        wk_guard_drop(s);
        return;
    }
    s->n_given = s->n_rows - 1; /* the last row's own token leads to nothing */
    pthread_mutex_lock(&g->m);
    STAILQ_INSERT_TAIL(&g->queue, s, link);
    g->n.n_pending++;
    g->active_ns = clock_ns();
    pthread_mutex_unlock(&g->m);
    wk_post(s->w, &g->msg);
}

/* ---- an idle plan; engine thread ---- */

/* All of its chunks from RAM, as sources: 1, 0 when one is not there. */
static int find_sources(struct wk_shadow *s)
{
    for (size_t i = 0; i < s->n_range; i++) {
        struct fus_range *r = &s->range[i];
        int rc = rec_source_in_ram(s->w->store, &s->key[i], s->tok + r->tok0, r->n, &r->src);
        if (rc > 0) continue;
        while (i-- > 0)
            s->range[i].src.ops->release(s->range[i].src.ctx);
        return rc;
    }
    return 1;
}

static int on_plan(void *ctx, struct fus_plan *p)
{
    struct wk_guard *g = ctx;
    struct wk_shadow *s = g->cur;

    p->tok = s->tok;
    p->n_tok = s->n_prompt + s->n_given;
    p->logits_from = s->n_prompt - 1;
    p->strategy = POL_FULL;
    if (g->step == STEP_FULL) return 1;
    int rc = find_sources(s);
    if (rc <= 0) return rc;
    p->range = s->range;
    p->n_range = s->n_range;
    p->suffix = s->n_suffix + s->n_given;
    p->strategy = g->step == STEP_REUSE ? POL_REUSE
                  : s->n_suffix == 0    ? POL_HKVD /* as policy/decide.c has it */
                                        : (s->tried.strategy);
    p->ratio = (float)s->tried.ratio;
    fus_profile_apply(&g->w->profile, p);
    return 1;
}

static void on_logits(void *ctx, const float *logits, size_t n_rows, const struct fus_report *r)
{
    struct wk_guard *g = ctx;

    ASSERT(n_rows == g->cur->n_rows);
    memcpy(g->other, logits, n_rows * model_config(g->w->model)->V * sizeof *logits);
}

static void on_shadow_end(void *ctx, int status)
{
    struct wk_guard *g = ctx;

    g->status = status;
    atomic_store(&g->away, false);
    wk_post(g->w, &g->msg);
}

/* ---- arithmetic; helper thread ---- */

/* Mean over the rows of KL(truth || other), and of agreement on the best token. */
static double mean_kl(const struct wk_guard *g, const float *truth, const float *other,
                      double *ret_agree)
{
    const size_t V = model_config(g->w->model)->V, n = g->cur->n_rows;
    double sum = 0;
    size_t same = 0;

    for (size_t i = 0; i < n; i++) {
        bool agrees;
        sum += fus_kl(truth + i * V, other + i * V, V, &agrees);
        same += agrees;
    }
    *ret_agree = (double)same / (double)n;
    return sum / (double)n;
}

static void compute(void *arg)
{
    struct wk_guard *g = arg;
    struct wk_shadow *s = g->cur;

    if (g->step == STEP_FULL) { /* the truth takes the place of the request's own */
        float *blended = s->row;
        s->row = g->other;
        g->other = blended;
    }
    s->kl[g->step] = mean_kl(g, s->row, g->other, &s->agree[g->step]);
    atomic_store(&g->away, false);
    wk_post(g->w, &g->msg);
}

/* ---- the turns; loop thread ---- */

static void tell(const struct wk_guard *g, enum pol_guard_action a)
{
    const struct pol_guard_gauge v = pol_guard_gauge(&g->g.left);
    const struct pol_guard_setting s = pol_guard_setting(&g->cfg, g->g.level);
    const enum log_level level = a == POL_GUARD_DOWN ? LOG_NOTICE : s.exact ? LOG_ERROR : LOG_WARN;

    log_event(
        level,
        a == POL_GUARD_DOWN ? "guard_lowered"
        : s.exact           ? "guard_exact"
                            : "guard_raised",
        "guard_level=%u of=%u blending=%s strategy=%s ratio=%.3g shadows=%u kl=%.4g limit=%.4g "
        "reuse_kl=%.4g agreement=%.3f",
        g->g.level, pol_guard_top(&g->cfg), s.exact ? "off" : "on", pol_strategy_name(s.strategy),
        s.ratio, v.count, v.kl, v.limit, v.reuse_kl, v.agree);
}

static void conclude(struct wk_guard *g)
{
    struct wk_shadow *s = g->cur;
    const double kl = s->kl[STEP_FULL], reuse_kl = s->kl[STEP_REUSE];
    const struct pol_guard_shadow seen = {kl, reuse_kl, s->agree[STEP_FULL]};
    const struct pol_guard_shadow trial = {s->kl[STEP_TRIAL], reuse_kl, s->agree[STEP_TRIAL]};
    enum pol_guard_action a = POL_GUARD_STAY;

    pthread_mutex_lock(&g->m);
    const bool fresh = s->epoch == g->epoch; /* else it says nothing of the level in force */
    if (fresh && kl >= 0) a = pol_guard_see(&g->g, &g->cfg, &seen);
    if (fresh && a == POL_GUARD_STAY && trial.kl >= 0) a = pol_guard_trial(&g->g, &g->cfg, &trial);
    g->epoch += a != POL_GUARD_STAY;
    g->n.n_up += a == POL_GUARD_UP;
    g->n.n_down += a == POL_GUARD_DOWN;
    g->n.n_done++;
    if (a != POL_GUARD_STAY) tell(g, a);
    pthread_mutex_unlock(&g->m);
    if (kl >= 0 && isfinite(kl)) wk_metric_observe(WK_GUARD_KL, kl);
    if (kl >= 0 && reuse_kl >= 0) wk_metric_observe(WK_GUARD_REUSE_KL, reuse_kl);
    wk_guard_drop(s);
    g->cur = NULL;
}

/* The oldest shadow, at its first step; false: there is none. */
static bool take_shadow(struct wk_guard *g)
{
    pthread_mutex_lock(&g->m);
    struct wk_shadow *s = STAILQ_FIRST(&g->queue);
    if (s) {
        STAILQ_REMOVE_HEAD(&g->queue, link);
        g->n.n_pending--;
        s->has_trial = g->g.level > 0 && s->epoch == g->epoch;
        if (s->has_trial) s->tried = pol_guard_setting(&g->cfg, g->g.level - 1);
    }
    pthread_mutex_unlock(&g->m);
    g->cur = s;
    g->tries = 0;
    if (s) g->step = s->exact ? STEP_REUSE : STEP_FULL;
    return s != NULL;
}

static void next_step(struct wk_guard *g)
{
    g->step++;
    if (g->step == STEP_TRIAL && !g->cur->has_trial) g->step = STEP_END;
    if (g->step == STEP_END) conclude(g);
}

static void send_away(struct wk_guard *g, void (*back)(struct wk_guard *g))
{
    g->back = back;
    atomic_store(&g->away, true);
}

/* What an idle plan has come to. */
static void step_ended(struct wk_guard *g)
{
    if (g->status == 0) {
        send_away(g, next_step);
        g->status = jobs_submit(g->w->helpers, compute, g);
        if (g->status == 0) return;
        atomic_store(&g->away, false);
        g->back = NULL;
    }
    if (g->status == 1) {
        next_step(g); /* a chunk has left RAM */
        return;
    }
    const bool again = g->status == -EAGAIN && ++g->tries < TRIES_MAX;
    pthread_mutex_lock(&g->m);
    g->n.n_retried += again;
    g->n.n_failed += !again;
    if (again) g->active_ns = clock_ns();
    pthread_mutex_unlock(&g->m);
    if (again) return;
    log_event(LOG_DEBUG, "shadow_failed", "error=%s tries=%u", err_name(g->status), g->tries);
    wk_guard_drop(g->cur);
    g->cur = NULL;
}

static bool submit_step(struct wk_guard *g)
{
    const struct wk_shadow *s = g->cur;
    const struct fus_build b = {.n = s->n_prompt + s->n_given,
                                .gives_way = true,
                                .on_plan = on_plan,
                                .on_logits = on_logits,
                                .on_end = on_shadow_end,
                                .ctx = g};

    send_away(g, step_ended);
    if (fus_build_submit(g->w->engine, &b) == 0) return true;
    atomic_store(&g->away, false);
    g->back = NULL;
    return false; /* its list is full */
}

static bool is_idle(struct wk_guard *g)
{
    pthread_mutex_lock(&g->m);
    bool quiet = clock_ms_since(g->active_ns) >= IDLE_MS;
    pthread_mutex_unlock(&g->m);
    return g->w->requests.n_gens == 0 && quiet;
}

static void work_on_shadow(void *arg)
{
    struct wk_guard *g = arg;

    if (atomic_load(&g->w->state) != WK_READY || atomic_load(&g->away)) return;
    void (*back)(struct wk_guard * g) = g->back;
    g->back = NULL;
    if (back) back(g);
    if (atomic_load(&g->away) || g->back || (!g->cur && !take_shadow(g))) return;
    if (!is_idle(g) || !submit_step(g)) http_timer_set(&g->timer, IDLE_MS);
}

static void on_msg(struct wk_msg *m)
{
    work_on_shadow((char *)m - offsetof(struct wk_guard, msg));
}

/* ---- life ---- */

int wk_guard_create(struct worker *w)
{
    struct wk_guard *g = mem_zalloc(sizeof *g);

    if (!g) return -ENOMEM;
    http_timer_init(&g->timer, w->loop, work_on_shadow, g);
    g->w = w;
    g->msg.fn = on_msg;
    STAILQ_INIT(&g->queue);
    pthread_mutex_init(&g->m, NULL);
    w->guard = g;
    return 0;
}

/* The strategy that loses least at the largest ratio of the ladder, as far as was measured. */
static enum pol_strategy safest(const struct fus_profile *p, enum pol_strategy own)
{
    enum pol_strategy best = own == POL_HKVD ? POL_QS : POL_HKVD;
    double least = INFINITY;

    for (unsigned s = POL_HKVD; s < POL_STRATEGY_COUNT; s++)
        for (size_t i = 0; i < p->n_ratios; i++) {
            const double loss = p->losses[s][i];
            if (s == own || p->ratios[i] < 0.15 || !(loss < least)) continue;
            least = loss;
            best = (enum pol_strategy)s;
        }
    return best;
}

void wk_guard_loaded(struct worker *w)
{
    static const struct {
        const char *name;
        enum fus_fault fault;
    } faults[] = {{"reposition", FUS_FAULT_REPOSITION}, {"offset", FUS_FAULT_OFFSET}};
    const struct fus_profile *p = &w->profile;
    const char *inject = getenv("KVBLEND_INJECT");
    struct wk_guard *g = w->guard;
    const enum pol_strategy own = w->o.strategy;

    g->cfg = (struct pol_guard_cfg){.kl_max = w->o.guard_kl,
                                    .loss = p->loss,
                                    .loss_ratio = p->ratio,
                                    .reuse_kl = p->reuse_kl,
                                    .ratio = w->o.ratio >= 0 ? w->o.ratio : p->ratio,
                                    .strategy = own,
                                    .safer = safest(p, own)};
    g->other = mem_alloc(WK_GUARD_ROWS * model_config(w->model)->V * sizeof *g->other);
    if (!g->other) w->o.guard_sample = 0;
    for (size_t i = 0; inject && i < sizeof faults / sizeof *faults; i++) {
        if (strcmp(inject, faults[i].name) != 0) continue;
        fus_core_set_fault(w->core, faults[i].fault);
        log_event(LOG_ERROR, "fault_injected", "KVBLEND_INJECT=%s answers=wrong", inject);
    }
}

void wk_guard_get_view(struct worker *w, struct wk_guard_view *ret)
{
    struct wk_guard *g = w->guard;

    pthread_mutex_lock(&g->m);
    *ret = g->n;
    ret->g = g->g;
    ret->cfg = g->cfg;
    pthread_mutex_unlock(&g->m);
    ret->on = guard_is_on(w);
    ret->sample = w->o.guard_sample;
    ret->top = pol_guard_top(&ret->cfg);
    ret->setting = pol_guard_setting(&ret->cfg, ret->g.level);
}

const char *wk_guard_state_name(const struct wk_guard_view *v)
{
    if (!v->on) return "off";
    return v->setting.exact ? "exact" : v->g.level ? "raised" : "normal";
}

void wk_guard_destroy(struct worker *w)
{
    struct wk_guard *g = w->guard;

    if (!g) return;
    wk_unpost(w, &g->msg);
    http_timer_fini(&g->timer);
    if (g->cur) wk_guard_drop(g->cur);
    for (struct wk_shadow *s; (s = STAILQ_FIRST(&g->queue));) {
        STAILQ_REMOVE_HEAD(&g->queue, link);
        wk_guard_drop(s);
    }
    ASSERT(g->bytes == 0);
    mem_free(g->other);
    pthread_mutex_destroy(&g->m);
    mem_free(g);
    w->guard = NULL;
}

/* ---- in words: GET /admin/quality, and the note in a request's report ---- */
/* `"name":{…}`, or null where nothing was seen. */
static void put_means(struct buf *b, const char *name, const struct pol_guard_means *m)
{
    const struct pol_guard_gauge v = pol_guard_gauge(m);
    const struct {
        const char *name;
        double x;
    } numbers[] = {{"kl", v.kl},          {"kl_low", v.kl_low},     {"kl_high", v.kl_high},
                   {"limit", v.limit},    {"reuse_kl", v.reuse_kl}, {"loss", v.loss},
                   {"agreement", v.agree}};

    if (v.count == 0) {
        buf_addf(b, ",\"%s\":null", name);
        return;
    }
    buf_addf(b, ",\"%s\":{\"shadows\":%u", name, v.count);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        buf_addf(b, ",\"%s\":", numbers[i].name);
        buf_addf(b, isfinite(numbers[i].x) ? "%.6g" : "null", numbers[i].x);
    }
    buf_addc(b, '}');
}

void wk_guard_put_quality(struct worker *w, struct buf *out)
{
    struct wk_guard_view v;

    wk_guard_get_view(w, &v);
    buf_addf(out,
             "{\"state\":\"%s\",\"self_test\":\"%s\",\"sample\":%g,\"level\":%u,\"levels\":%u,"
             "\"blending\":%s,\"strategy\":\"%s\",\"ratio\":%g",
             wk_guard_state_name(&v), w->blend_ok ? "passed" : "failed", v.sample, v.g.level, v.top,
             w->blend_ok && !v.setting.exact ? "true" : "false",
             pol_strategy_name(v.setting.strategy), v.setting.ratio);
    buf_addf(out,
             ",\"configured\":{\"strategy\":\"%s\",\"ratio\":%g,\"kl_max\":%g,\"loss\":%g,"
             "\"margin\":%g,\"reuse_kl\":%g}",
             pol_strategy_name(v.cfg.strategy), v.cfg.ratio, v.cfg.kl_max, v.cfg.loss,
             POL_GUARD_MARGIN, v.cfg.reuse_kl);
    put_means(out, "now", &v.g.now);
    put_means(out, "level_below", &v.g.below);
    put_means(out, "last_change", &v.g.left);
    buf_addf(out,
             ",\"shadows\":{\"done\":%llu,\"pending\":%u,\"dropped\":%llu,"
             "\"failed\":%llu,\"retried\":%llu},\"alarms\":%llu,\"returns\":%llu}",
             (unsigned long long)v.n_done, v.n_pending, (unsigned long long)v.n_dropped,
             (unsigned long long)v.n_failed, (unsigned long long)v.n_retried,
             (unsigned long long)v.n_up, (unsigned long long)v.n_down);
}

void wk_guard_put_note(struct worker *w, const struct wk_prompt *p, struct buf *out)
{
    struct pol_guard_setting s;
    struct wk_guard_view v;

    if (p->guard_level == 0) return;
    wk_guard_get_view(w, &v);
    s = pol_guard_setting(&v.cfg, p->guard_level);
    const struct pol_guard_gauge left = pol_guard_gauge(&v.g.left);
    buf_addf(out, ",\"guard\":{\"level\":%u,\"action\":\"%s\",\"reason\":\"", p->guard_level,
             s.exact ? "exact" : "raised");
    if (s.exact)
        buf_adds(out, "blending is off for this model: ");
    else
        buf_addf(out, "%s at ratio %.3g: ", pol_strategy_name(s.strategy), s.ratio);
    buf_addf(out, "KL to a full prefill was %.4g nats over %u shadows, limit %.4g\"}", left.kl,
             left.count, left.limit);
}
