/* Life of a generation request on the loop and in the helper; see gen.h. */
#include "worker/request/gen.h"

#include "base/clock.h"
#include "base/jobs.h"
#include "base/log.h"
#include "worker/admin/metrics.h"
#include "worker/reuse/builds.h"
#include "worker/reuse/reuse.h"

#include <stdio.h>
#include <string.h>

enum { WK_LIVE_MAX = 4096 }; /* requests in any stage, before the engine's own queue says no */

static void gen_free(struct gen *g)
{
    wk_unpost(g->w, &g->msg);
    gen_log(g);
    for (size_t i = 0; i < g->n_prompt; i++) {
        struct gen_prompt *p = &g->prompt[i];
        for (unsigned k = 0; p->choice && k < g->req.n; k++) {
            buf_fini(&p->choice[k].text);
            mem_free(p->choice[k].tok);
        }
        mem_free(p->choice);
        mem_free(p->arrays);
        wk_prompt_fini(&p->p);
    }
    mem_free(g->prompt);
    api_req_fini(&g->req);
    wk_hints_fini(&g->hints);
    mem_free(g->body);
    *g->prev = g->next;
    if (g->next) g->next->prev = g->prev;
    g->w->requests.n_gens--;
    if (g->counted) wk_metric_add(WK_ACTIVE, -1);
    pthread_mutex_destroy(&g->m);
    mem_free(g);
}

static void maybe_free(struct gen *g)
{
    if (!g->busy && !g->call && !g->in_helper && g->n_open == 0) gen_free(g);
}

static void gen_closed(void *owner, bool aborted)
{
    struct gen *g = owner;

    if (!g->in_helper) gen_count(g);
    g->call = NULL;
    atomic_store(&g->gone, true);
    if (!g->in_helper) gen_cancel_jobs(g); /* a helper fills the prompts by itself until then */
    maybe_free(g);
}

/* ---- helper thread ---- */
static int check_size(struct gen *g, const struct gen_prompt *p, struct api_err *e)
{
    uint64_t ctx = g->w->ctx_max, n = p->p.n_tok, want = 0;
    const char *param = g->chat ? "messages" : "prompt";

    if (g->req.max_tokens >= 0)
        want = (uint64_t)g->req.max_tokens;
    else if (!g->chat)
        want = 16;
    else
        want = 1;
    if (n + 1 > ctx)
        return api_err_set(e, API_CONTEXT_EXCEEDED, param,
                           "This model's maximum context length is %llu tokens. However, your %s "
                           "resulted in %llu tokens. Please reduce the length of the %s.",
                           (unsigned long long)ctx, param, (unsigned long long)n, param);
    if (n + want > ctx && g->req.max_tokens >= 0)
        return api_err_set(e, API_CONTEXT_EXCEEDED, param,
                           "This model's maximum context length is %llu tokens. However, you "
                           "requested %llu tokens (%llu in the %s, %llu in the completion). Please "
                           "reduce the length of the %s or completion.",
                           (unsigned long long)ctx, (unsigned long long)(n + want),
                           (unsigned long long)n, param, (unsigned long long)want, param);
    return 0;
}

/* echo of nothing but the prompt: no token is asked for, so the engine is not. */
static bool nothing_to_generate(const struct gen *g)
{
    return !g->chat && g->req.max_tokens == 0;
}

static int prepare_all(struct gen *g)
{
    const struct api_limits lim = {tok_n_vocab(g->w->tok), g->w->o.max_running};
    int rc = api_parse(g->body, g->body_len, g->chat, &lim, &g->req, &g->e);
    const struct wk_prepare q = {.w = g->w, .r = &g->req, .h = &g->hints, .e = &g->e};
    size_t n = g->chat ? 1 : g->req.n_msg;

    if (rc < 0) return rc;
    if (!wk_serves_model(g->w, g->req.model))
        return api_err_set(&g->e, API_MODEL_NOT_FOUND, "model",
                           "The model '%.100s' does not exist; this worker serves '%.100s'.",
                           g->req.model, g->w->model_name);
    if (n * g->req.n > API_PROMPTS_MAX * 2)
        return api_err_set(&g->e, API_ARRAY_TOO_LONG, "prompt",
                           "Too many choices: %zu prompts times n = %u.", n, g->req.n);
    if ((rc = wk_settings(g->w, &g->req, &g->hints, &g->e)) < 0) return rc;
    g->prompt = mem_zalloc(n * sizeof *g->prompt);
    if (!g->prompt) return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        struct gen_prompt *p = &g->prompt[i];
        if (atomic_load(&g->gone)) return -ECANCELED;
        p->g = g;
        p->index = (unsigned)i;
        g->n_prompt = i + 1;
        rc = wk_prepare(&q, i, &p->p);
        p->p.id = g->request_id;
        p->p.alias = g->id;
        p->p.index = p->index;
        p->p.start_ns = g->start_ns;
        if (rc >= 0) rc = check_size(g, p, &g->e);
        if (rc < 0) return rc;
        wk_feed_note(g->w, &p->p);
        if (!nothing_to_generate(g)) wk_lookup_prompt(g->w, &p->p, &g->req.kv, &g->gone);
        p->choice = mem_zalloc(g->req.n * sizeof *p->choice);
        if (!p->choice) return -ENOMEM;
    }
    return 0;
}

static void helper(void *arg)
{
    struct gen *g = arg;
    int rc = prepare_all(g);

    if (rc < 0 && g->e.status == 0) (void)api_no_memory(&g->e);
    wk_post(g->w, &g->msg);
}

/* ---- loop ---- */
static void too_busy(struct api_err *e, unsigned n)
{
    (void)api_err_set(e, API_QUEUE_FULL, NULL,
                      "This worker is busy: %u requests wait. Please try again shortly.", n);
}

static void finish_empty(struct gen *g)
{
    for (size_t i = 0; i < g->n_prompt; i++) {
        struct gen_prompt *p = &g->prompt[i];
        p->done = true;
        p->report.n_computed = p->p.n_tok;
        for (unsigned k = 0; k < g->req.n; k++) {
            p->choice[k].finished = true;
            p->choice[k].finish = FUS_LENGTH;
        }
    }
    gen_flush(g);
}

static bool may_build(const struct gen *g)
{
    return g->req.kv.store && !pol_strategy_is_exact(g->req.kv.strategy);
}

static void admit(struct gen *g)
{
    struct api_err e;

    if (g->e.status) {
        gen_fail(g, &g->e);
        return;
    }
    if (wk_not_ready(g->w, &e) < 0) {
        gen_fail(g, &e);
        return;
    }
    g->call->stream = g->req.stream;
    for (size_t i = 0; i < g->n_prompt; i++) {
        g->call->n_prompt += g->prompt[i].p.n_tok;
        g->call->n_chunks += (unsigned)g->prompt[i].p.n_cut;
    }
    if (nothing_to_generate(g)) {
        finish_empty(g);
        return;
    }
    for (size_t i = 0; i < g->n_prompt; i++) {
        if (may_build(g)) wk_builds_hurry(g->w, &g->prompt[i].p);
        int rc = gen_submit(g, &g->prompt[i]);
        if (rc >= 0) continue;
        gen_cancel_jobs(g);
        if (rc == -EAGAIN)
            too_busy(&e, g->w->requests.n_gens);
        else
            (void)api_err_set(&e, API_INTERNAL_ERROR, NULL, "The engine refused the request (%s).",
                              err_name(rc));
        gen_fail(g, &e);
        return;
    }
}

/* Missed chunks are built behind the request's back. */
static void ask_builds(struct gen *g)
{
    if (g->builds_asked || !may_build(g)) return;
    g->builds_asked = true;
    for (size_t i = 0; i < g->n_prompt; i++)
        if (g->prompt[i].started) wk_build_missed(g->w, &g->prompt[i].p, g->req.kv.ns);
}

static void count_done(struct gen *g)
{
    pthread_mutex_lock(&g->m);
    g->fresh = false;
    unsigned open = 0, planned = 0;
    for (size_t i = 0; i < g->n_prompt; i++) {
        open += g->prompt[i].job != NULL;
        planned += g->prompt[i].started || g->prompt[i].done;
    }
    g->n_open = open;
    g->planned = planned == g->n_prompt;
    pthread_mutex_unlock(&g->m);
}

static void gen_news(struct wk_msg *m)
{
    struct gen *g = (struct gen *)((char *)m - offsetof(struct gen, msg));

    g->busy = true;
    if (g->in_helper) {
        g->in_helper = false;
        if (g->call) admit(g);
    }
    count_done(g);
    if (g->call && !g->ended) gen_flush(g);
    if (g->planned) ask_builds(g);
    wk_feed_load(g->w);
    g->busy = false;
    maybe_free(g);
}

static void make_id(struct gen *g)
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    unsigned char r[29];
    size_t n;

    n = (size_t)snprintf(g->id, sizeof g->id, "%s", g->chat ? "chatcmpl-" : "cmpl-");
    wk_random(r, sizeof r);
    for (size_t i = 0; i < sizeof r; i++)
        g->id[n + i] = digits[r[i] % 62];
    g->id[n + sizeof r] = 0;
}

void wk_gen_start(struct worker *w, struct wk_call *c, bool chat)
{
    struct api_err e;
    struct gen *g;

    if (wk_not_ready(w, &e) < 0) {
        wk_reply_error(c, &e);
        return;
    }
    if (w->requests.n_gens >= WK_LIVE_MAX) {
        too_busy(&e, w->requests.n_gens);
        wk_reply_error(c, &e);
        return;
    }
    g = mem_zalloc(sizeof *g);
    if (g) g->body = wk_call_body(c, &g->body_len);
    if (!g || !g->body || wk_hints_read(c->r, &g->hints) < 0) {
        if (g) mem_free(g->body);
        mem_free(g);
        wk_reply_oom(c);
        return;
    }
    pthread_mutex_init(&g->m, NULL);
    arena_init(&g->req.arena);
    g->w = w;
    g->call = c;
    g->chat = chat;
    g->msg.fn = gen_news;
    g->in_helper = true;
    g->start_ns = c->r->start_ns;
    g->created = (int64_t)clock_wall_s();
    make_id(g);
    (void)snprintf(g->request_id, sizeof g->request_id, "%s", c->id);
    g->next = w->requests.gens;
    g->prev = &w->requests.gens;
    if (g->next) g->next->prev = &g->next;
    w->requests.gens = g;
    w->requests.n_gens++;
    g->counted = true;
    wk_metric_add(WK_ACTIVE, 1);
    c->owner = g;
    c->on_close = gen_closed;
    if (jobs_submit(w->helpers, helper, g) == 0) return;
    g->in_helper = false;
    too_busy(&e, w->requests.n_gens);
    gen_fail(g, &e);
}

void wk_gens_tick(struct worker *w)
{
    uint64_t now = clock_ns();
    struct gen *next;

    for (struct gen *g = w->requests.gens; g; g = next) {
        next = g->next;
        if (!g->call || g->in_helper || !g->req.stream || g->ended) continue;
        g->busy = true; /* a write may close the call */
        gen_silence(g, now);
        g->busy = false;
        next = g->next;
        maybe_free(g);
    }
}

/* The end of the drain's patience: what still runs is told so and cancelled. */
void wk_gens_abort(struct worker *w)
{
    struct api_err e;
    struct gen *next;

    (void)api_err_set(&e, API_DRAINING, NULL, "This worker is shutting down.");
    for (struct gen *g = w->requests.gens; g; g = next) {
        next = g->next;
        if (g->in_helper) continue; /* refused when it comes back */
        gen_cancel_jobs(g);
        if (!g->call || g->ended) continue;
        g->busy = true;
        gen_fail(g, &e);
        g->busy = false;
        next = g->next;
        maybe_free(g);
    }
}

void wk_gens_abandon(struct worker *w)
{
    while (w->requests.gens)
        gen_free(w->requests.gens);
}
