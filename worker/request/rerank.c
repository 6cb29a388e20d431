/* /v1/rerank and /v1/score: a request is a list of short prefills, one a pair, whose last logits
 * are the scores.
 *
 * A helper parses, tokenises and asks the tiers; the loop hands a few pairs at a time to the
 * engine, each a job of its own: a chat that comes meanwhile is not behind a hundred documents, and
 * decode steps come between as with any prefill. What pairs have in common (the prompt's head) is
 * computed by the first and loaded by the others. Freed on the loop when the call is closed and no
 * job is left. */
#include "worker/request/rerank.h"

#include "base/clock.h"
#include "policy/order.h"
#include "tiers/store_admin.h"
#include "worker/admin/metrics.h"
#include "worker/request/request.h"
#include "worker/reuse/builds.h"
#include "worker/reuse/reuse.h"
#include "worker/worker.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    WINDOW = 4,     /* chosen: the engine never waits for the loop, and others get in between */
    AFTER_US = 500, /* chosen: a pair is due behind the one before, whenever the clock is read */
};

struct rank;
struct pair {
    struct rank *r;
    struct wk_prompt p;
    bool cut; /* its document */
    void *arrays;
    struct wk_load_item load;
    uint32_t n_written;
    struct fus_job *job; /* under m; NULL: not submitted, or over */
    /* engine; the loop's once it is over */
    bool started;
    struct fus_report report;
    double score, queue_ms;
};
struct rank {
    struct wk_task t; /* msg: a job is over */
    bool score;
    uint64_t start_ns;
    int64_t created;
    char id[WK_REPLY_ID_BYTES], request_id[WK_ID_BYTES];
    struct api_rank q;
    struct pair *pair; /* [q.n] */
    size_t n_pair;     /* prepared */
    /* loop */
    size_t n_submitted;
    uint64_t due_ns; /* all of it, by the order of the queue */
    bool ended;
    pthread_mutex_t m;
    size_t n_over; /* under m, as is: */
    int status;    /* of the first that failed */
};

static void rank_fini(struct wk_task *t)
{
    struct rank *r = (struct rank *)t;

    for (size_t i = 0; i < r->n_pair; i++) {
        if (r->pair[i].load.stage != WK_LOAD_NONE) /* it was never submitted */
            wk_load_end(t->w->fleet.load, &r->pair[i].load);
        mem_free(r->pair[i].arrays);
        wk_prompt_fini(&r->pair[i].p);
    }
    mem_free(r->pair);
    api_rank_fini(&r->q);
    t->w->requests.n_gens--;
    wk_metric_add(WK_ACTIVE, -1);
    pthread_mutex_destroy(&r->m);
}

/* ---- helper thread ---- */
static int prepare_pair(struct rank *r, size_t i)
{
    struct wk_task *t = &r->t;
    struct pair *p = &r->pair[i];

    p->r = r;
    r->n_pair = i + 1;
    int rc = wk_reranker_prompt(t->w, &r->q, i, &p->p, &p->cut, &t->e);
    p->p.id = r->request_id;
    p->p.alias = r->id;
    p->p.index = (unsigned)i;
    p->p.start_ns = r->start_ns;
    if (rc >= 0) wk_lookup_prompt(t->w, &p->p, &r->q.r.kv, &t->gone);
    return rc;
}

static int prepare_all(struct wk_task *t)
{
    struct rank *r = (struct rank *)t;
    int rc = api_rank_parse(t->body, t->body_len, r->score, &r->q, &t->e);

    if (rc < 0) return rc;
    if (!wk_serves_model(t->w, r->q.r.model))
        return api_err_set(&t->e, API_MODEL_NOT_FOUND, "model",
                           "The model '%.100s' does not exist; this worker serves '%.100s'.",
                           r->q.r.model, t->w->model_name);
    rc = wk_settings(t->w, &r->q.r, &t->hints, &t->e);
    if (rc >= 0) rc = wk_reranker_settle(t->w, &r->q, &t->e);
    if (rc < 0) return rc;
    r->pair = mem_zalloc(r->q.n * sizeof *r->pair);
    if (!r->pair) return -ENOMEM;
    for (size_t i = 0, n_tok = 0; rc >= 0 && i < r->q.n; i++) {
        rc = atomic_load(&t->gone) ? -ECANCELED : prepare_pair(r, i);
        n_tok += r->pair[i].p.n_tok;
        if (rc >= 0 && n_tok > API_PAIRS_TOKENS_MAX)
            rc = api_err_set(&t->e, API_ARRAY_TOO_LONG, r->q.doc_field,
                             "Invalid '%s': the prompts up to number %zu have %zu tokens, and all "
                             "may have %d; rank fewer at a time.",
                             r->q.doc_field, i, n_tok, API_PAIRS_TOKENS_MAX);
    }
    return rc;
}

/* ---- engine thread ---- */
static int on_plan(void *ctx, struct fus_plan *plan)
{
    struct pair *p = ctx;
    struct rank *r = p->r;
    struct worker *w = r->t.w;

    if (atomic_load(&r->t.gone)) return -ECANCELED;
    wk_load_begin(w->fleet.load, &p->load);
    return wk_plan(w, &p->p, &r->q.r.kv, plan, &p->arrays, &p->n_written);
}

static void on_first(void *ctx, const struct fus_report *report, const struct fus_times *ms)
{
    struct pair *p = ctx;
    struct worker *w = p->r->t.w;
    const bool slow = wk_settle_sources(&p->p);
    const struct wk_outcome run = {.report = report,
                                   .prefill_ms = ms->prefill,
                                   .ttft_ms = clock_ms_since(p->r->start_ns),
                                   .slow = slow};

    p->report = *report;
    p->queue_ms = ms->queue;
    p->started = true;
    wk_metric_observe(WK_QUEUE, ms->queue / 1e3);
    wk_metric_add(WK_SCORED, 1);
    wk_metrics_report(report);
    wk_load_first(w->fleet.load, &p->load,
                  ms->prefill - atomic_load(&w->reuse.ms_per_token) * report->n_computed,
                  slow ? 0 : report->n_prefix + report->n_reused + report->n_recomputed);
    wk_report(w, &p->p, &run);
}

static int on_logits(void *ctx, unsigned choice, const float *logits, const uint64_t **ret_allowed)
{
    struct pair *p = ctx;

    p->score = wk_reranker_score(p->r->t.w, p->r->q.r.kv.order, logits);
    return isnan(p->score) ? -EBADMSG : 0;
}

static int on_token(void *ctx, const struct fus_event_token *t)
{
    return 1; /* the logits were all that was wanted */
}

static bool waits(void *ctx)
{
    const struct pair *p = ctx;

    return wk_builds_due(p->r->t.w, &p->p);
}

static void pair_over(void *ctx, const struct fus_event_done *d)
{
    struct pair *p = ctx;
    struct rank *r = p->r;

    wk_load_end(r->t.w->fleet.load, &p->load);
    if (!p->started) wk_report(r->t.w, &p->p, NULL);
    pthread_mutex_lock(&r->m);
    if (r->status == 0 && d->finish == FUS_FAILED) r->status = d->status;
    if (r->status == 0 && d->finish == FUS_CANCELLED) r->status = -ECANCELED;
    r->n_over++;
    p->job = NULL;
    wk_post(r->t.w, &r->t.msg); /* under m: the loop frees r only after it has had m */
    pthread_mutex_unlock(&r->m);
}

/* ---- loop ---- */
static size_t n_over(struct rank *r, int *ret_status)
{
    pthread_mutex_lock(&r->m);
    const size_t n = r->n_over;
    *ret_status = r->status;
    pthread_mutex_unlock(&r->m);
    return n;
}

/* A job is alive while p->job is set, because its on_done needs m to clear it. */
static void cancel_jobs(struct rank *r)
{
    pthread_mutex_lock(&r->m);
    for (size_t i = 0; i < r->n_submitted; i++)
        if (r->pair[i].job) fus_cancel(r->t.w->engine, r->pair[i].job);
    pthread_mutex_unlock(&r->m);
}

static void fail_rank(struct rank *r, const struct api_err *e)
{
    if (!r->t.call || r->ended) return;
    r->ended = true;
    wk_reply_error(r->t.call, e);
}

static double work_ms(const struct worker *w, const struct pair *p)
{
    uint32_t held = 0;

    for (size_t i = 0; i < p->p.n_block; i++) {
        const struct wk_block *b = &p->p.block[i];
        if (!b->lookup.pin && !store_in_ram(w->store, &b->key)) break;
        held += b->n;
    }
    return atomic_load(&w->reuse.ms_per_token) * (p->p.n_tok - held);
}

/* All pairs are due when the request is; until then what comes later and is short goes first. */
static void queue(struct rank *r)
{
    struct worker *w = r->t.w;
    double all_ms = 0;

    for (size_t i = 0; i < r->q.n; i++) {
        const double ms = work_ms(w, &r->pair[i]);
        wk_load_queued(w->fleet.load, &r->pair[i].load, ms);
        all_ms += ms;
    }
    const double due_s = pol_order_due(w->o.order, all_ms / 1e3, r->q.r.kv.max_ttft_ms / 1e3);
    r->due_ns = clock_ns() + (uint64_t)(due_s * 1e9);
}

static int submit(struct rank *r, struct pair *p)
{
    static const struct fus_request_ops ops = {.on_plan = on_plan,
                                               .on_first = on_first,
                                               .on_token = on_token,
                                               .on_done = pair_over,
                                               .on_logits = on_logits,
                                               .waits = waits};
    struct worker *w = r->t.w;
    const uint64_t now = clock_ns(), due = r->due_ns + r->n_submitted * AFTER_US * 1000ull;
    const struct fus_request q = {
        .plan = {.tok = p->p.tok, .n_tok = p->p.n_tok, .logits_from = p->p.n_tok - 1},
        .sampling = {.top_p = 1, .repetition = 1, .n_logprobs = -1},
        .n_choices = 1,
        .due_ms = due > now ? (double)(due - now) / 1e6 : 0,
        .max_new = 1,
        .ops = &ops,
        .ctx = p};
    struct fus_job *job = NULL;

    wk_builds_hurry(w, &p->p);
    pthread_mutex_lock(&r->m); /* on_done may come before fus_submit() has returned */
    int rc = fus_submit(w->engine, &q, &job);
    if (rc >= 0) p->job = job;
    pthread_mutex_unlock(&r->m);
    return rc;
}

static void submit_more(struct rank *r, size_t over)
{
    struct api_err e;

    while (r->n_submitted < r->q.n && r->n_submitted - over < WINDOW) {
        struct pair *p = &r->pair[r->n_submitted];
        int rc = submit(r, p);
        if (rc == -EAGAIN && r->n_submitted > over) return; /* again when one of ours is over */
        if (rc == -EAGAIN)
            (void)api_err_set(&e, API_QUEUE_FULL, NULL,
                              "This worker is busy: %u requests wait. Please try again shortly.",
                              r->t.w->requests.n_gens);
        else if (rc < 0)
            wk_engine_error(r->t.w, rc, NULL, &e);
        if (rc < 0) {
            fail_rank(r, &e);
            return;
        }
        r->n_submitted++;
    }
}

/* ---- the reply ---- */
static void put_pair(struct buf *out, const struct pair *p)
{
    const struct fus_report *f = &p->report;
    const struct wk_block *b = p->p.n_block ? &p->p.block[p->p.n_block - 1] : NULL;
    const char *tier = b && f->n_prefix >= b->tok0 + b->n ? b->lookup.tier : NULL;

    if (f->n_reused + f->n_recomputed > 0) tier = p->p.cut[0].lookup.tier;
    buf_addf(out,
             "{\"tokens\":%u,\"prefix\":%u,\"reused\":%u,\"recomputed\":%u,\"computed\":%u,"
             "\"source\":\"%s\",\"truncated\":%s}",
             p->p.n_tok, f->n_prefix, f->n_reused, f->n_recomputed, f->n_computed,
             tier ? tier : "computed", p->cut ? "true" : "false");
}

static void put_report(const struct rank *r, const struct api_usage *u, struct buf *out)
{
    const struct api_settings *m = &r->q.r.kv;

    buf_addf(out,
             ",\"kvblend\":{\"order\":\"%s\",\"strategy\":\"%s\",\"tokens\":{\"prefix\":%llu,"
             "\"reused\":%llu,\"recomputed\":%llu,\"computed\":%llu},\"queue_ms\":%.3f",
             api_order_name(m->order), pol_strategy_name(m->strategy),
             (unsigned long long)u->prefix, (unsigned long long)u->reused,
             (unsigned long long)u->recomputed, (unsigned long long)u->computed,
             r->pair[0].queue_ms);
    if (m->explain) buf_adds(out, ",\"documents\":[");
    for (size_t i = 0; m->explain && i < r->q.n; i++) {
        if (i) buf_addc(out, ',');
        put_pair(out, &r->pair[i]);
    }
    buf_adds(out, m->explain ? "]}" : "}");
}

static void count_tokens(const struct rank *r, struct api_usage *ret)
{
    *ret = (struct api_usage){0};
    for (size_t i = 0; i < r->q.n; i++) {
        const struct pair *p = &r->pair[i];
        ret->prompt += p->p.n_tok;
        ret->prefix += p->report.n_prefix;
        ret->reused += p->report.n_reused;
        ret->recomputed += p->report.n_recomputed;
        ret->computed += p->report.n_computed;
        ret->written += p->n_written;
    }
}

static void reply(struct rank *r)
{
    const struct api_rank_head h = {r->id, r->t.w->model_name, r->created};
    struct buf out = BUF_INIT, extra = BUF_INIT;
    double *score = mem_alloc(r->q.n * sizeof *score);
    struct wk_call *c = r->t.call;
    struct api_usage u;

    for (size_t i = 0; score && i < r->q.n; i++)
        score[i] = r->pair[i].score;
    count_tokens(r, &u);
    put_report(r, &u, &extra);
    if (!score || api_put_rank(&out, &r->q, &h, score, &u, &extra) < 0) out.status = -ENOMEM;
    for (size_t i = 0; r->q.r.kv.store && i < r->q.n; i++)
        wk_build_missed(r->t.w, &r->pair[i].p, r->q.r.kv.ns);
    r->ended = true;
    c->usage = u;
    c->queue_ms = r->pair[0].queue_ms;
    mem_free(score);
    buf_fini(&extra);
    wk_reply_buf(c, 200, &out);
}

static void rank_news(struct wk_msg *m)
{
    struct rank *r = (struct rank *)((char *)m - offsetof(struct rank, t.msg));
    struct api_err e;
    int status;
    const size_t over = n_over(r, &status);

    if (status < 0 && !r->ended) {
        cancel_jobs(r);
        wk_engine_error(r->t.w, status, NULL, &e);
        fail_rank(r, &e);
    } else if (over == r->q.n && r->t.call && !r->ended) {
        reply(r);
    } else if (r->t.call && !r->ended) {
        submit_more(r, over);
    }
    wk_feed_load(r->t.w);
    if (!r->t.call && over == r->n_submitted) wk_task_free(&r->t);
}

static void rank_closed(void *owner, bool aborted)
{
    struct rank *r = owner;

    r->t.call = NULL;
    atomic_store(&r->t.gone, true);
    cancel_jobs(r);
    wk_post(r->t.w, &r->t.msg); /* which may free it */
}

static void prepared(struct wk_task *t)
{
    struct rank *r = (struct rank *)t;
    struct api_err e;

    t->msg.fn = rank_news;
    t->call->on_close = rank_closed;
    t->call->n_chunks = (unsigned)r->q.n;
    if (wk_not_ready(t->w, &e) < 0) {
        fail_rank(r, &e);
        return;
    }
    queue(r);
    rank_news(&t->msg);
}

void wk_rank_post(struct worker *w, struct wk_call *c, const char *rest)
{
    struct rank *r = (struct rank *)wk_task_create(
        c, &(struct wk_work){
               .bytes = sizeof *r, .run = prepare_all, .then = prepared, .fini = rank_fini});

    if (!r) return;
    pthread_mutex_init(&r->m, NULL);
    r->score = strcmp(c->route, "score") == 0;
    r->start_ns = c->r->start_ns;
    r->created = (int64_t)clock_wall_s();
    wk_reply_id(c->route, r->id);
    (void)snprintf(r->request_id, sizeof r->request_id, "%s", c->id);
    arena_init(&r->q.r.arena);
    w->requests.n_gens++;
    wk_metric_add(WK_ACTIVE, 1);
    wk_task_submit(&r->t);
}

/* The end of the drain's patience; those at a helper are refused when they come back. */
void wk_ranks_abort(struct worker *w)
{
    struct api_err e;

    (void)api_err_set(&e, API_DRAINING, NULL, "This worker is shutting down.");
    for (struct wk_task *t = NULL; (t = wk_task_next(w, t, prepared));) {
        cancel_jobs((struct rank *)t);
        fail_rank((struct rank *)t, &e);
    }
}
