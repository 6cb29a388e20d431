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

static void gen_fini(struct wk_task *t)
{
    struct gen *g = (struct gen *)t;

    gen_log(g);
    for (size_t i = 0; i < g->n_prompt; i++) {
        struct gen_prompt *p = &g->prompt[i];
        for (unsigned k = 0; p->choice && k < g->req.n; k++) {
            buf_fini(&p->choice[k].text);
            ans_fini(&p->choice[k].said);
            mem_free(p->choice[k].tok);
        }
        mem_free(p->choice);
        mem_free(p->arrays);
        wk_prompt_fini(&p->p);
    }
    mem_free(g->prompt);
    wk_format_close(&g->format);
    api_req_fini(&g->req);
    t->w->requests.n_gens--;
    wk_metric_add(WK_ACTIVE, -1);
    pthread_mutex_destroy(&g->m);
}

/* ---- helper thread ---- */
static int check_size(struct gen *g, const struct gen_prompt *p)
{
    const unsigned ctx = g->t.w->ctx_max, n = p->p.n_tok;
    const int32_t want = g->req.max_tokens;
    const char *param = g->chat ? "messages" : "prompt";

    if (n + 1 > ctx)
        return api_err_set(&g->t.e, API_CONTEXT_EXCEEDED, param,
                           "This model's maximum context length is %u tokens. However, your %s "
                           "resulted in %u tokens. Please reduce the length of the %s.",
                           ctx, param, n, param);
    if (want >= 0 && n + (unsigned)want > ctx)
        return api_err_set(&g->t.e, API_CONTEXT_EXCEEDED, param,
                           "This model's maximum context length is %u tokens. However, you "
                           "requested %u tokens (%u in the %s, %d in the completion). Please "
                           "reduce the length of the %s or completion.",
                           ctx, n + (unsigned)want, n, param, want, param);
    return 0;
}

/* echo of nothing but the prompt: no token is asked for, so the engine is not. */
static bool nothing_to_generate(const struct gen *g)
{
    return !g->chat && g->req.max_tokens == 0;
}

static bool open_choices(struct gen *g, struct gen_prompt *p)
{
    struct ans_how how = g->how;

    how.thinking = p->p.thinking && how.thoughts;
    how.calling = p->p.calling && how.syntax;
    p->choice = mem_zalloc(g->req.n * sizeof *p->choice);
    for (unsigned k = 0; p->choice && k < g->req.n; k++) {
        ans_init(&p->choice[k].said, &how);
        p->choice[k].bound = g->format.must ? g->format.calls.run : g->format.form.run;
    }
    return p->choice != NULL;
}

static int prepare_all(struct wk_task *t)
{
    const struct api_limits lim = {tok_n_vocab(t->w->tok), t->w->o.engine.max_running};
    struct gen *g = (struct gen *)t;
    int rc = api_parse(t->body, t->body_len, g->chat, &lim, &g->req, &t->e);
    const struct wk_prepare q = {.w = t->w, .r = &g->req, .h = &t->hints, .e = &t->e};
    size_t n = g->chat ? 1 : g->req.n_msg;

    if (rc < 0) return rc;
    if (!wk_serves_model(t->w, g->req.model))
        return api_err_set(&t->e, API_MODEL_NOT_FOUND, "model",
                           "The model '%.100s' does not exist; this worker serves '%.100s'.",
                           g->req.model, t->w->model_name);
    if (n * g->req.n > API_PROMPTS_MAX * 2)
        return api_err_set(&t->e, API_ARRAY_TOO_LONG, "prompt",
                           "Too many choices: %zu prompts times n = %u.", n, g->req.n);
    if ((rc = wk_settings(t->w, &g->req, &t->hints, &t->e)) < 0) return rc;
    rc = wk_format_open(t->w, &g->req, (unsigned)n * g->req.n, &g->format, &t->e);
    if (rc < 0) return rc;
    g->how = wk_answer_how(t->w, &g->req);
    g->parsed = wk_answer_is_parsed(&g->how);
    g->prompt = mem_zalloc(n * sizeof *g->prompt);
    if (!g->prompt) return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        struct gen_prompt *p = &g->prompt[i];
        if (atomic_load(&t->gone)) return -ECANCELED;
        p->g = g;
        g->n_prompt = i + 1;
        rc = wk_prepare(&q, i, &p->p);
        p->p.id = g->request_id;
        p->p.alias = g->id;
        p->p.index = (unsigned)i;
        p->p.start_ns = g->start_ns;
        if (rc >= 0) rc = check_size(g, p);
        if (rc < 0) return rc;
        wk_feed_note(t->w, &p->p, g->req.kv.ns);
        if (!nothing_to_generate(g)) wk_lookup_prompt(t->w, &p->p, &g->req.kv, &t->gone);
        p->p.at.answered_ns = clock_ns();
        if (!open_choices(g, p)) return -ENOMEM;
    }
    return 0;
}

/* ---- loop ---- */
static void gen_closed(void *owner, bool aborted)
{
    struct gen *g = owner;

    gen_count(g);
    gen_put_spans(g);
    g->t.call = NULL;
    atomic_store(&g->t.gone, true);
    gen_cancel_jobs(g);
    wk_post(g->t.w, &g->t.msg); /* which may free it */
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
    struct wk_call *c = g->t.call;
    struct api_err e;

    if (wk_not_ready(g->t.w, &e) < 0) {
        gen_fail(g, &e);
        return;
    }
    c->stream = g->req.stream;
    for (size_t i = 0; i < g->n_prompt; i++)
        c->n_chunks += (unsigned)g->prompt[i].p.n_cut;
    if (nothing_to_generate(g)) {
        finish_empty(g);
        return;
    }
    for (size_t i = 0; i < g->n_prompt; i++) {
        if (may_build(g)) wk_builds_hurry(g->t.w, &g->prompt[i].p);
        int rc = gen_submit(g, &g->prompt[i]);
        if (rc >= 0) continue;
        gen_cancel_jobs(g);
        if (rc == -EAGAIN)
            (void)api_err_set(&e, API_QUEUE_FULL, NULL,
                              "This worker is busy: %u requests wait. Please try again shortly.",
                              g->t.w->requests.n_gens);
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
        if (g->prompt[i].started) wk_build_missed(g->t.w, &g->prompt[i].p, g->req.kv.ns);
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
    struct gen *g = (struct gen *)((char *)m - offsetof(struct gen, t.msg));

    count_done(g);
    gen_flush(g);
    if (g->planned) ask_builds(g);
    wk_feed_load(g->t.w);
    if (!g->t.call && g->n_open == 0) wk_task_free(&g->t);
}

static void prepared(struct wk_task *t)
{
    struct gen *g = (struct gen *)t;

    t->msg.fn = gen_news;
    t->call->on_close = gen_closed;
    admit(g);
    gen_news(&t->msg);
}

void wk_gen_post(struct worker *w, struct wk_call *c, const char *rest)
{
    struct gen *g = (struct gen *)wk_task_create(
        c, &(struct wk_work){
               .bytes = sizeof *g, .run = prepare_all, .then = prepared, .fini = gen_fini});

    if (!g) return;
    pthread_mutex_init(&g->m, NULL);
    arena_init(&g->req.arena);
    g->chat = strcmp(c->route, "chat") == 0;
    g->start_ns = c->r->start_ns;
    g->created = (int64_t)clock_wall_s();
    wk_reply_id(g->chat ? "chatcmpl" : "cmpl", g->id);
    if (wk_call_traced(c)) memcpy(g->trace, c->trace.at.trace, sizeof g->trace);
    (void)snprintf(g->request_id, sizeof g->request_id, "%s", c->id);
    w->requests.n_gens++;
    wk_metric_add(WK_ACTIVE, 1);
    wk_task_submit(&g->t);
}

void wk_gens_tick(struct worker *w)
{
    uint64_t now = clock_ns();

    for (struct wk_task *t = NULL; (t = wk_task_next(w, t, prepared));) {
        struct gen *g = (struct gen *)t;
        if (t->call && g->req.stream && !g->ended) gen_silence(g, now);
    }
}

/* The end of the drain's patience: what still runs is told so and cancelled. Those at a helper are
 * refused when they come back. */
void wk_gens_abort(struct worker *w)
{
    struct api_err e;

    (void)api_err_set(&e, API_DRAINING, NULL, "This worker is shutting down.");
    for (struct wk_task *t = NULL; (t = wk_task_next(w, t, prepared));) {
        gen_cancel_jobs((struct gen *)t);
        gen_fail((struct gen *)t, &e);
    }
}
