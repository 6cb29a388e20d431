/* What the engine thread does for a request: the plan, the text of each token, stop strings.
 *
 * A token's text is ready here, so that a stop string ends the choice at once and not a round trip
 * later. The loop is woken through the mail; a request that is already on it is not queued twice.
 */
#include "base/clock.h"
#include "fusor/grammar/run.h"
#include "policy/order.h"
#include "worker/admin/metrics.h"
#include "worker/quality/guard.h"
#include "worker/request/gen.h"
#include "worker/reuse/builds.h"
#include "worker/reuse/heat.h"
#include "worker/reuse/reuse.h"

#include <string.h>

enum { PROGRESS_MS = 100 }; /* chosen: between two reports of one prefill; bars move smoothly */

static bool wants_progress(const struct gen *g)
{
    return g->req.progress && g->req.stream;
}

static void wake(struct gen *g)
{
    if (!g->fresh) {
        g->fresh = true;
        wk_post(g->t.w, &g->t.msg);
    }
}

static int on_plan(void *ctx, struct fus_plan *plan)
{
    struct gen_prompt *p = ctx;
    struct gen *g = p->g;

    if (atomic_load(&g->t.gone)) return -ECANCELED;
    wk_load_begin(g->t.w->fleet.load, &p->load);
    pthread_mutex_lock(&g->m);
    wake(g); /* gateways want to know that it waits no longer */
    pthread_mutex_unlock(&g->m);
    int rc = wk_plan(g->t.w, &p->p, &g->req.kv, plan, &p->arrays, &p->n_captured);
    if (rc >= 0) p->shadow = wk_guard_begin(g->t.w, &p->p, &g->req.kv, plan);
    return rc;
}

static bool is_judged(const struct gen_prompt *p, unsigned choice)
{
    return p->shadow && choice == 0;
}

static bool looks(void *ctx, unsigned choice)
{
    const struct gen_prompt *p = ctx;

    return is_judged(p, choice) || p->g->format.form.run || p->g->format.calls.run;
}

/* The choice's text in the format. */
static unsigned text_of(const struct gen_prompt *p, unsigned choice)
{
    return p->p.index * p->g->req.n + choice;
}

static int on_logits(void *ctx, unsigned choice, const float *logits, const uint64_t **ret_allowed)
{
    const struct gen_prompt *p = ctx;

    if (is_judged(p, choice)) wk_guard_logits(p->shadow, logits);
    const struct wk_format *f = &p->g->format;
    const struct gen_choice *c = &p->choice[choice];
    if (!c->bound) return 0;
    if (f->first && c->n_generated == 0) {
        *ret_allowed = f->first;
        return 0;
    }
    return gram_run_allowed(c->bound, text_of(p, choice), ret_allowed);
}

static bool waits(void *ctx)
{
    const struct gen_prompt *p = ctx;

    return wk_builds_due(p->g->t.w, &p->p);
}

/* gen.m is held. A restart of the prefill takes nothing back. */
static void set_progress(struct gen_prompt *p, uint32_t held, double done, double ms)
{
    const struct ctl_decision *d = p->p.decision;
    const uint32_t total = p->p.n_tok, at = held + (uint32_t)(done * (total - held));
    struct api_progress *to = &p->progress;

    if (at > to->processed) to->processed = at;
    to->total = total;
    to->cache = held;
    to->ms = ms;
    to->predicted_ms = d ? d->out.predicted.ttft_s * 1e3 : 0;
    p->advanced = true;
    p->told_ns = clock_ns();
}

static void on_progress(void *ctx, const struct fus_progress *at)
{
    struct gen_prompt *p = ctx;
    struct gen *g = p->g;

    if (p->told_ns && clock_ns() - p->told_ns < PROGRESS_MS * 1000000ull) return;
    pthread_mutex_lock(&g->m);
    set_progress(p, at->n_held, at->done, at->ms);
    wake(g);
    pthread_mutex_unlock(&g->m);
}

/* For whoever looks at the operator's page: without one this is a look at a number. */
static void on_prefilled(void *ctx, const struct fus_prefill *f)
{
    const struct gen_prompt *p = ctx;
    struct wk_heat *heat = p->g->t.w->reuse.heat;
    const struct fus_report *r = fus_prefill_report(f);

    if (!wk_heat_wanted(heat, clock_ns()) || r->n_reused + r->n_recomputed == 0) return;
    uint8_t *levels = mem_alloc(p->p.n_tok);
    if (!levels) return;
    fus_prefill_heat(f, levels);
    wk_heat_keep(heat, &p->p, p->g->req.kv.ns, levels);
}

static void on_first(void *ctx, const struct fus_report *r, const struct fus_times *ms)
{
    struct gen_prompt *p = ctx;
    struct gen *g = p->g;

    pthread_mutex_lock(&g->m);
    p->report = *r;
    p->started = true;
    bool slow =
        wk_settle_sources(&p->p); /* waiting for a tier says nothing of the time to compute */
    p->ms = *ms;
    if (wants_progress(g)) set_progress(p, r->n_prefix + r->n_reused, 1, ms->prefill);
    p->ttft_ms = clock_ms_since(g->start_ns);
    pthread_mutex_unlock(&g->m);
    wk_metric_first_token(p->ttft_ms / 1e3, g->trace);
    wk_metric_observe(WK_QUEUE, ms->queue / 1e3);
    wk_metrics_report(r);
    wk_load_first(g->t.w->fleet.load, &p->load,
                  ms->prefill - atomic_load(&g->t.w->reuse.ms_per_token) * r->n_computed,
                  slow ? 0 : r->n_prefix + r->n_reused + r->n_recomputed);
    const struct wk_outcome run = {.report = r,
                                   .prefill_ms = ms->prefill,
                                   .ttft_ms = p->ttft_ms,
                                   .queue_ms = ms->queue,
                                   .slow = slow};
    wk_report(g->t.w, &p->p, &run);
}

static int keep_token(struct gen_choice *c, const struct fus_picked *t, size_t begin)
{
    if (c->n_tok == c->cap_tok) {
        size_t cap = c->cap_tok ? 2 * c->cap_tok : 32;
        struct api_token *n = mem_realloc(c->tok, cap * sizeof *n);
        if (!n) return -ENOMEM;
        c->tok = n;
        c->cap_tok = cap;
    }
    c->tok[c->n_tok++] = (struct api_token){(uint32_t)begin, (uint32_t)c->text.len, *t};
    return 0;
}

/* Control tokens have no text, but for those that carry the syntax of calls and thoughts. */
static int add_text(struct gen *g, struct gen_choice *c, int32_t id)
{
    const char *name;
    size_t len;

    if (!g->parsed || !tok_is_special(g->t.w->tok, id) ||
        tok_bytes(g->t.w->tok, id, true, &name, &len) < 0 || !ans_is_mark(&g->how, name, len))
        return tok_stream_push(g->t.w->tok, &c->stream, id, &c->text);
    if (tok_stream_end(&c->stream, &c->text) < 0) return -ENOMEM;
    c->stream.started = true;
    return buf_add(&c->text, name, len);
}

/* 1: it has said all that it may, or there is no memory to read it. */
static int read_text(struct gen *g, struct gen_choice *c)
{
    if (!g->parsed || c->safe <= c->n_read) return 0;
    const int rc = ans_push(&c->said, c->text.data + c->n_read, c->safe - c->n_read);
    c->n_read = c->safe;
    c->n_thought += ans_is_thinking(&c->said);
    return rc < 0 || ans_is_full(&c->said);
}

/* Does a grammar let nothing but a call be written now? */
static bool is_held_to_calls(const struct gen *g, const struct gen_choice *c)
{
    return c->bound && c->bound == g->format.calls.run;
}

/* Append the token's text; 1 when a stop string ended it. What is read already ends none, and a
 * call that a grammar will make whole is not cut. Called with gen.m held. */
static int take_text(struct gen *g, struct gen_choice *c, const struct fus_event_token *t)
{
    const struct api_stops stops = {g->req.stop, g->req.stop_len, g->req.n_stop};
    const size_t from = c->text.len, read = c->n_read;
    int hit;

    if (add_text(g, c, t->picked.id) < 0) return 1;
    if (g->req.logprobs && keep_token(c, &t->picked, from) < 0) return 1;
    if (c->n_generated <= g->req.min_tokens) { /* a later token may end what begins here */
        c->safe = c->text.len - api_stop_begun(&stops, c->text.data, c->text.len);
        return 0;
    }
    if (is_held_to_calls(g, c)) {
        c->safe = c->text.len;
        return 0;
    }
    hit = api_stop_scan(&stops, c->text.data ? c->text.data + read : "", c->text.len - read,
                        from - read, &c->safe);
    c->safe += read;
    if (!hit) return 0;
    c->text.len = c->safe;
    c->stopped = true;
    while (c->n_tok && c->tok[c->n_tok - 1].begin >= c->safe)
        c->n_tok--;
    if (c->n_tok && c->tok[c->n_tok - 1].end > c->safe)
        c->tok[c->n_tok - 1].end = (uint32_t)c->safe;
    return 1;
}

/* Has the token, to its last byte, opened a call? */
static bool opens_call(const struct gen_choice *c)
{
    return ans_is_opened(&c->said) && c->n_read == c->text.len && c->stream.n_hold == 0;
}

/* 1: the answer is complete. Behind a call that the model was free to make it is free again. */
static int follow_format(const struct gen_prompt *p, struct gen_choice *c,
                         const struct fus_event_token *t)
{
    const struct wk_format *f = &p->g->format;
    const unsigned text = text_of(p, t->choice);
    const bool calls = is_held_to_calls(p->g, c);
    int rc;

    if (!calls && opens_call(c)) {
        c->bound = f->calls.run;
        if (c->bound) gram_run_again(c->bound, text);
        return 0;
    }
    if (f->first && c->n_generated == 1 && t->picked.id == f->opening) {
        c->bound = NULL; /* what opens the call is still to come */
        return 0;
    }
    rc = c->bound ? gram_run_take(c->bound, text, t->picked.id) : 0;
    if (rc != 1 || !calls || f->must || f->form.run) return rc;
    c->bound = NULL;
    return 0;
}

static int on_token(void *ctx, const struct fus_event_token *t)
{
    struct gen_prompt *p = ctx;
    struct gen *g = p->g;
    struct gen_choice *c = &p->choice[t->choice];
    uint64_t now = clock_ns();
    int stop = 0;

    if (c->last_ns) wk_metric_observe(WK_INTER_TOKEN, (double)(now - c->last_ns) / 1e9);
    c->last_ns = now;
    if (p->shadow && t->choice == 0) wk_guard_token(p->shadow, t->picked.id);
    pthread_mutex_lock(&g->m);
    c->n_generated++;
    if (!t->end) stop = take_text(g, c, t) || read_text(g, c);
    wake(g);
    pthread_mutex_unlock(&g->m);
    return t->end || stop ? stop : follow_format(p, c, t);
}

static void on_choice(void *ctx, unsigned choice, enum fus_finish f)
{
    struct gen_prompt *p = ctx;
    struct gen *g = p->g;
    struct gen_choice *c = &p->choice[choice];

    pthread_mutex_lock(&g->m);
    if (!c->stopped) {
        size_t was = c->text.len;
        (void)tok_stream_end(&c->stream, &c->text);
        if (c->text.len > was && c->n_tok) c->tok[c->n_tok - 1].end = (uint32_t)c->text.len;
    }
    c->safe = c->text.len;
    (void)read_text(g, c);
    if (g->parsed) (void)ans_end(&c->said, is_held_to_calls(g, c));
    c->finish = f;
    c->finished = true;
    wake(g);
    pthread_mutex_unlock(&g->m);
}

static void on_done(void *ctx, const struct fus_event_done *d)
{
    struct gen_prompt *p = ctx;
    struct gen *g = p->g;

    wk_load_end(g->t.w->fleet.load, &p->load);
    if (!p->started) wk_report(g->t.w, &p->p, NULL);
    if (p->shadow && d->finish != FUS_FAILED)
        wk_guard_put(p->shadow);
    else
        wk_guard_drop(p->shadow);
    p->shadow = NULL;
    pthread_mutex_lock(&g->m);
    p->status = d->finish == FUS_FAILED ? d->status : d->finish == FUS_CANCELLED ? -ECANCELED : 0;
    p->done = true;
    p->job = NULL;
    g->fresh = true;
    wk_post(g->t.w, &g->t.msg); /* under m: the loop frees g only after it has had m */
    pthread_mutex_unlock(&g->m);
}

static bool is_eog(void *ctx, int32_t id)
{
    const struct gen_prompt *p = ctx;

    return tok_is_eog(p->g->t.w->tok, id);
}

/* What the prompt will keep the engine busy for, as far as can be told before the plan is made. */
static double work_ms(const struct gen *g, const struct gen_prompt *p)
{
    const struct worker *w = g->t.w;
    const double own = w->o.ratio >= 0 ? w->o.ratio : w->profile.ratio;
    const double ratio = g->req.kv.ratio >= 0 ? g->req.kv.ratio : own;
    const bool chunks = !pol_strategy_is_exact(g->req.kv.strategy) && w->blend_ok;
    uint32_t held = 0;

    for (size_t i = 0; chunks && i < p->p.n_cut; i++) {
        const struct wk_cut *c = &p->p.cut[i];
        if (c->lookup.pin || store_in_ram(w->store, &c->key)) held += c->n;
    }
    return atomic_load(&w->reuse.ms_per_token) * (p->p.n_tok - (1 - ratio) * held);
}

int gen_submit(struct gen *g, struct gen_prompt *p)
{
    static const struct fus_request_ops ops = {on_plan, on_first,    on_token, on_choice,
                                               on_done, on_logits,   looks,    waits,
                                               NULL,    on_prefilled},
                                        telling = {on_plan,     on_first,    on_token, on_choice,
                                                   on_done,     on_logits,   looks,    waits,
                                                   on_progress, on_prefilled};
    const struct api_req *q = &g->req;
    uint32_t room = g->t.w->ctx_max - p->p.n_tok;
    const double work = work_ms(g, p);
    struct fus_request r = {
        .plan = {.tok = p->p.tok, .n_tok = p->p.n_tok, .logits_from = p->p.n_tok - 1},
        .sampling = q->sampling,
        .n_choices = q->n,
        .due_ms = pol_order_due(g->t.w->o.order, work / 1e3, g->req.kv.max_ttft_ms / 1e3) * 1e3,
        .ignore_eos = q->ignore_eos,
        .whole = !q->stream,
        .stop_ids = q->stop_ids.id,
        .n_stop_ids = q->stop_ids.n,
        .is_eog = is_eog,
        .ops = wants_progress(g) ? &telling : &ops,
        .ctx = p};
    struct fus_job *job = NULL;
    int rc;

    r.max_new = q->max_tokens >= 0 ? (uint32_t)q->max_tokens : g->chat ? room : 16;
    if (r.max_new > room) r.max_new = room;
    r.min_new = q->min_tokens < r.max_new ? q->min_tokens : r.max_new;
    if (!q->has_seed) wk_random(&r.sampling.seed, sizeof r.sampling.seed);
    wk_load_queued(g->t.w->fleet.load, &p->load, work);
    pthread_mutex_lock(&g->m); /* on_done may come before fus_submit() has returned */
    rc = fus_submit(g->t.w->engine, &r, &job);
    if (rc >= 0) {
        p->job = job;
        g->n_open++;
    }
    pthread_mutex_unlock(&g->m);
    if (rc < 0) wk_load_end(g->t.w->fleet.load, &p->load);
    return rc;
}

/* A job is alive while p->job is set, because its on_done needs m to clear it. */
void gen_cancel_jobs(struct gen *g)
{
    pthread_mutex_lock(&g->m);
    for (size_t i = 0; i < g->n_prompt; i++)
        if (g->prompt[i].job) fus_cancel(g->t.w->engine, g->prompt[i].job);
    pthread_mutex_unlock(&g->m);
}
