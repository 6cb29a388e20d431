/* Isolated chunk builds: which are wanted, which are under way.
 *
 * A missed chunk is queued once, as soon as the request that missed it has its first token;
 * the engine gets a few at a time and runs them when it is idle. Warm-ups run at once, and so does
 * what a second request comes with: it starts behind its builds and blends, because a worker that
 * is busy with exact prefills of the same chunks would else never find the time that makes it
 * fast. The record is claimed just before its build starts, so that a build that became needless
 * costs nothing. When the list is full a chunk is dropped: the next request that misses it asks
 * again. */
#include "worker/reuse/builds.h"

#include "base/log.h"
#include "tiers/store_write.h"
#include "worker/quality/contexts.h"
#include "worker/reuse/records.h"
#include "worker/reuse/reuse.h"
#include "worker/worker.h"

#include <string.h>

struct wk_build {
    TAILQ_ENTRY(wk_build) link;
    struct wk_msg msg;
    struct worker *w;
    struct tier_key key;
    char *ns;
    int32_t *tok; /* the sink token, if any, and the n of the chunk */
    uint32_t head, n;
    struct fus_capture capture; /* engine thread */
    bool urgent, submitted;
    int status;
};

struct wk_builds {
    void (*on_built)(struct worker *w, const struct tier_key *key, int status);
    pthread_mutex_t m; /* guards the list and its counts: the engine thread reads them */
    TAILQ_HEAD(, wk_build) list;
    unsigned n, n_flight;
    uint64_t n_built, n_failed; /* loop */
};

static struct wk_build *find_build(const struct worker *w, const struct tier_key *k)
{
    struct wk_build *b;

    TAILQ_FOREACH(b, &w->builds->list, link)
    if (tier_key_same(&b->key, k)) break;
    return b;
}

bool wk_build_pending(struct worker *w, const struct tier_key *key, const char *ns)
{
    pthread_mutex_lock(&w->builds->m);
    const struct wk_build *b = find_build(w, key);
    bool yes = b && (!ns || strcmp(b->ns, ns) == 0);
    pthread_mutex_unlock(&w->builds->m);
    return yes;
}

static void build_free(struct wk_build *b)
{
    mem_free(b->ns);
    mem_free(b->tok);
    mem_free(b);
}

static void unlink_build(struct worker *w, struct wk_build *b)
{
    pthread_mutex_lock(&w->builds->m);
    TAILQ_REMOVE(&w->builds->list, b, link);
    w->builds->n--;
    if (b->submitted) w->builds->n_flight--;
    pthread_mutex_unlock(&w->builds->m);
}

/* ---- engine thread ---- */
static int plan_build(void *ctx, struct fus_plan *ret)
{
    struct wk_build *b = ctx;
    struct store_writer *writer;
    const struct store_new new = {TIER_CHUNK, b->key, b->ns, b->tok + b->head, b->n};
    int rc = store_claim(b->w->store, &new, &writer);

    if (rc <= 0) return rc;
    b->capture = (struct fus_capture){.tok0 = b->head, .n = b->n};
    rc = rec_sink_make(writer, &b->w->ident, b->n, NULL, &b->capture.sink);
    if (rc < 0) return rc;
    *ret = (struct fus_plan){.tok = b->tok,
                             .n_tok = b->head + b->n,
                             .capture = &b->capture,
                             .n_capture = 1,
                             .logits_from = b->head + b->n,
                             .strategy = POL_FULL};
    return 1;
}

static void on_build_end(void *ctx, int status)
{
    struct wk_build *b = ctx;

    b->status = status;
    wk_post(b->w, &b->msg);
}

/* ---- loop thread ---- */
static void submit_waiting(struct worker *w);

static void build_ended(struct wk_msg *m)
{
    struct wk_build *b = (struct wk_build *)((char *)m - offsetof(struct wk_build, msg));
    struct worker *w = b->w;
    char hex[33];

    unlink_build(w, b);
    tier_key_hex(&b->key, hex);
    if (b->status < 0 && b->status != -ECANCELED) {
        w->builds->n_failed++;
        log_event(LOG_WARN, "chunk_build_failed", "id=%s tokens=%u error=%s", hex, b->n,
                  err_name(b->status));
    } else {
        w->builds->n_built += b->status == 0;
        if (b->status == 0)
            wk_contexts_want(w,
                             &(struct wk_context_wish){b->key, b->ns, b->tok + b->head, b->n, 0});
        log_event(LOG_DEBUG, "chunk_built", "id=%s tokens=%u skipped=%d", hex, b->n,
                  b->status == 1);
    }
    if (w->builds->on_built) w->builds->on_built(w, &b->key, b->status);
    build_free(b);
    submit_waiting(w);
}

static void set_submitted(struct worker *w, struct wk_build *b, bool yes)
{
    pthread_mutex_lock(&w->builds->m);
    b->submitted = yes;
    w->builds->n_flight += yes ? 1 : -1u;
    pthread_mutex_unlock(&w->builds->m);
}

/* Hand waiting builds to the engine, urgent ones first: a busy engine keeps the others, so that
 * those must not take all the places. */
static void submit_waiting(struct worker *w)
{
    for (;;) {
        struct wk_build *b = NULL, *i;
        TAILQ_FOREACH(i, &w->builds->list, link)
        {
            if (i->submitted) continue;
            if (!b || (i->urgent && !b->urgent)) b = i;
            if (i->urgent) break;
        }
        unsigned most = b && b->urgent ? 2 * WK_BUILDS_FLIGHT_MAX : WK_BUILDS_FLIGHT_MAX;
        if (!b || w->builds->n_flight >= most) return;
        const struct fus_build f = {.n = b->head + b->n,
                                    .urgent = b->urgent,
                                    .on_plan = plan_build,
                                    .on_end = on_build_end,
                                    .ctx = b};
        set_submitted(w, b, true);
        if (fus_build_submit(w->engine, &f) < 0) {
            set_submitted(w, b, false);
            return; /* the engine's list is full: the next end submits again */
        }
    }
}

/* Urgent from now on. */
static void hurry(struct worker *w, struct wk_build *b)
{
    pthread_mutex_lock(&w->builds->m);
    b->urgent = true;
    pthread_mutex_unlock(&w->builds->m);
    if (b->submitted) fus_build_hurry(w->engine, b);
}

void wk_builds_hurry(struct worker *w, const struct wk_prompt *p)
{
    for (size_t i = 0; i < p->n_cut; i++) {
        struct wk_build *b = find_build(w, &p->cut[i].key);
        if (b) hurry(w, b);
    }
    submit_waiting(w);
}

bool wk_builds_due(struct worker *w, const struct wk_prompt *p)
{
    bool due = false;

    pthread_mutex_lock(&w->builds->m);
    for (size_t i = 0; i < p->n_cut && !due; i++) {
        const struct wk_build *b = find_build(w, &p->cut[i].key);
        due = b && b->submitted && b->urgent;
    }
    pthread_mutex_unlock(&w->builds->m);
    return due;
}

int wk_build_queue(struct worker *w, const struct tier_key *key, const char *ns, const int32_t *tok,
                   uint32_t n, bool urgent)
{
    struct wk_build *b;

    if (urgent ? store_probe(w->store, key) : store_in_ram(w->store, key)) return 1;
    if (!w->blend_ok) return -ENOTSUP;
    b = find_build(w, key);
    if (b) {
        hurry(w, b);
        return 0;
    }
    if (w->builds->n >= WK_BUILDS_MAX) return -EAGAIN;
    b = mem_zalloc(sizeof *b);
    if (!b) return -ENOMEM;
    *b = (struct wk_build){.msg = {.fn = build_ended},
                           .w = w,
                           .key = *key,
                           .head = w->sink_token >= 0,
                           .n = n,
                           .urgent = urgent};
    b->ns = mem_strdup(ns);
    b->tok = mem_alloc((n + 1) * sizeof *b->tok);
    if (!b->ns || !b->tok) {
        build_free(b);
        return -ENOMEM;
    }
    b->tok[0] = w->sink_token;
    memcpy(b->tok + b->head, tok, n * sizeof *b->tok);
    pthread_mutex_lock(&w->builds->m);
    TAILQ_INSERT_TAIL(&w->builds->list, b, link);
    w->builds->n++;
    pthread_mutex_unlock(&w->builds->m);
    submit_waiting(w);
    return 0;
}

void wk_builds_get_stats(const struct worker *w, struct wk_build_stats *ret)
{
    *ret = (struct wk_build_stats){w->builds->n, w->builds->n_built, w->builds->n_failed};
}

int wk_builds_create(struct worker *w,
                     void (*on_built)(struct worker *w, const struct tier_key *key, int status))
{
    struct wk_builds *s = mem_zalloc(sizeof *s);

    if (!s) return -ENOMEM;
    pthread_mutex_init(&s->m, NULL);
    TAILQ_INIT(&s->list);
    s->on_built = on_built;
    w->builds = s;
    return 0;
}

void wk_builds_destroy(struct worker *w)
{
    struct wk_builds *s = w->builds;

    if (!s) return;
    for (struct wk_build *b; (b = TAILQ_FIRST(&s->list));) {
        TAILQ_REMOVE(&s->list, b, link);
        wk_unpost(w, &b->msg);
        build_free(b);
    }
    pthread_mutex_destroy(&s->m);
    mem_free(s);
    w->builds = NULL;
}
