/* Which chunks' context sensitivity is still to be measured, and with what.
 *
 * A chunk that was built, or found without scores, is measured once in idle time behind other
 * chunks of its namespace: those that were seen last, because what is retrieved in one week stands
 * together in prompts. Idle is a second without requests or new records: a burst is not over in its
 * pauses. The neighbours' stored KV is used where it is in RAM. One measurement is with the engine
 * at a time, so that builds and requests never wait for more than that; until all neighbours are
 * done nothing is stored, and the request path takes the chunk as average. */
#include "worker/quality/sensitivity.h"

#include "base/clock.h"
#include "base/log.h"
#include "tiers/store_write.h"
#include "worker/reuse/records.h"
#include "worker/worker.h"

#include <string.h>

enum {
    NEIGHBOURS_MIN = 2,                  /* of a small collection: better than none */
    RECENT_MAX = 2 * FUS_NEIGHBOURS_MAX, /* chosen: to draw neighbours from */
    PENDING_MAX = 1024,                  /* chosen: about 2 MiB of token ids */
    IDLE_MS = 1000,
};

struct text { /* of a chunk; counted references, guarded by senses.m */
    struct tier_key key;
    unsigned refs;
    char *ns;
    int32_t *tok;
    uint32_t n;
    unsigned n_behind;      /* neighbours that it has been measured with */
    TAILQ_ENTRY(text) link; /* in its queue */
};
struct queue {
    TAILQ_HEAD(, text) list;
    unsigned n;
};
struct wk_sensitivity {
    pthread_mutex_t m;
    struct text *recent[RECENT_MAX];
    size_t recent_at;          /* the next place to overwrite */
    struct queue pending, few; /* few: measured, and once more when the collection has grown */
    struct wk_sensitivity_stats stats;
    uint64_t wanted_ns; /* the last wk_sensitivity_want() */
    struct wk_msg msg;  /* something is pending, or a step of the job has ended */
    struct http_timer timer;
    struct worker *w;
    /* The job; loop thread, and the engine thread while it is submitted. */
    struct text *own, *before[FUS_NEIGHBOURS_MAX];
    size_t n_before, at;
    float *score; /* [n] */
    int32_t *tok; /* the sink token, if any, neighbour, chunk */
    struct fus_range range;
    bool submitted;
    atomic_bool ended;
    int status;
};

static void text_unref(struct text *t)
{
    if (!t || --t->refs > 0) return;
    mem_free(t->ns);
    mem_free(t->tok);
    mem_free(t);
}

static struct text *text_make(const struct tier_key *key, const char *ns, const int32_t *tok,
                              uint32_t n)
{
    struct text *t = mem_zalloc(sizeof *t);

    if (!t) return NULL;
    *t = (struct text){.key = *key, .refs = 1, .n = n, .ns = mem_strdup(ns)};
    t->tok = mem_alloc(n * sizeof *t->tok);
    if (!t->ns || !t->tok) {
        text_unref(t);
        return NULL;
    }
    memcpy(t->tok, tok, n * sizeof *tok);
    return t;
}

static void queue_put(struct queue *q, struct text *t)
{
    TAILQ_INSERT_TAIL(&q->list, t, link);
    q->n++;
}

static struct text *queue_take(struct queue *q, struct text *t)
{
    TAILQ_REMOVE(&q->list, t, link);
    q->n--;
    return t;
}

static struct text *queue_find(struct queue *q, const struct tier_key *key)
{
    struct text *t;

    TAILQ_FOREACH(t, &q->list, link)
    if (tier_key_same(&t->key, key)) break;
    return t;
}

static bool is_pending(struct wk_sensitivity *s, const struct tier_key *key)
{
    return (s->own && tier_key_same(&s->own->key, key)) || queue_find(&s->pending, key);
}

static void remember(struct wk_sensitivity *s, struct text *t)
{
    for (size_t i = 0; i < RECENT_MAX; i++)
        if (s->recent[i] && tier_key_same(&s->recent[i]->key, &t->key)) return;
    text_unref(s->recent[s->recent_at]);
    s->recent[s->recent_at] = t;
    s->recent_at = (s->recent_at + 1) % RECENT_MAX;
    t->refs++;
}

/* An operator who chose another strategy pays nothing for this one. */
static bool is_wanted(const struct worker *w)
{
    return pol_strategy_senses(w->o.strategy) && w->blend_ok;
}

void wk_sensitivity_want(struct worker *w, const struct tier_key *key, const char *ns,
                         const int32_t *tok, uint32_t n)
{
    struct wk_sensitivity *s = w->sensitivity;
    struct text *t = NULL;

    if (!s || n == 0 || !is_wanted(w)) return;
    pthread_mutex_lock(&s->m);
    if (s->pending.n < PENDING_MAX && !is_pending(s, key)) t = text_make(key, ns, tok, n);
    if (t) {
        struct text *lost = queue_find(&s->few, key); /* with its record: this is a new one */
        if (lost) text_unref(queue_take(&s->few, lost));
        remember(s, t);
        queue_put(&s->pending, t);
        s->wanted_ns = clock_ns();
    }
    pthread_mutex_unlock(&s->m);
    if (t) wk_post(w, &s->msg);
}

void wk_sensitivity_get_stats(struct worker *w, struct wk_sensitivity_stats *ret)
{
    pthread_mutex_lock(&w->sensitivity->m);
    *ret = w->sensitivity->stats;
    ret->n_pending = w->sensitivity->pending.n;
    pthread_mutex_unlock(&w->sensitivity->m);
}

/* ---- engine thread ---- */

static int plan_measurement(void *ctx, struct fus_plan *ret)
{
    struct wk_sensitivity *s = ctx;
    const struct text *own = s->own, *before = s->before[s->at];
    const uint32_t head = s->w->sink_token >= 0, tok0 = head + before->n;
    struct kv_source src;
    int rc = rec_source_in_ram(s->w->store, &own->key, own->tok, own->n, &src);

    if (rc <= 0) return rc;
    s->range = (struct fus_range){.tok0 = head, .n = before->n};
    rc = rec_source_in_ram(s->w->store, &before->key, before->tok, before->n, &s->range.src);
    if (rc < 0) {
        src.ops->release(src.ctx);
        return rc;
    }
    s->tok[0] = s->w->sink_token;
    memcpy(s->tok + head, before->tok, before->n * sizeof *s->tok);
    memcpy(s->tok + tok0, own->tok, own->n * sizeof *s->tok);
    *ret = (struct fus_plan){.tok = s->tok,
                             .n_tok = tok0 + own->n,
                             .range = &s->range,
                             .n_range = 1,
                             .measure = {tok0, src, s->score},
                             .strategy = POL_REUSE};
    return 1;
}

static void on_measured(void *ctx, int status)
{
    struct wk_sensitivity *s = ctx;

    s->status = status;
    atomic_store(&s->ended, true);
    wk_post(s->w, &s->msg);
}

/* ---- loop thread ---- */

static bool can_stand_before(const struct text *t, const struct text *own)
{
    return t && !tier_key_same(&t->key, &own->key) && strcmp(t->ns, own->ns) == 0;
}

/* Take the first of the queue that has neighbours: twice those that it was measured with, if any,
 * so that a chunk is measured a few times at most while its collection grows. m is held. */
static bool take_from(struct wk_sensitivity *s, struct queue *q)
{
    const unsigned most = s->w->profile.neighbours;

    struct text *t;

    TAILQ_FOREACH(t, &q->list, link)
    {
        const unsigned least = t->n_behind ? 2 * t->n_behind : NEIGHBOURS_MIN;
        size_t n = 0;
        for (size_t i = 1; i <= RECENT_MAX && n < most; i++) {
            struct text *r = s->recent[(s->recent_at + RECENT_MAX - i) % RECENT_MAX];
            if (can_stand_before(r, t)) s->before[n++] = r;
        }
        if (n < least && n < most) continue;
        for (size_t i = 0; i < n; i++)
            s->before[i]->refs++;
        s->n_before = n;
        s->own = queue_take(q, t);
        return true;
    }
    return false;
}

static void job_end(struct wk_sensitivity *s, bool measured, bool failed)
{
    pthread_mutex_lock(&s->m);
    s->stats.n_measured += measured;
    s->stats.n_failed += failed;
    s->own->n_behind = (unsigned)s->n_before;
    for (size_t i = 0; i < s->n_before; i++)
        text_unref(s->before[i]);
    if (measured && s->n_before < s->w->profile.neighbours && s->few.n < PENDING_MAX)
        queue_put(&s->few, s->own);
    else
        text_unref(s->own);
    s->own = NULL;
    s->n_before = s->at = 0;
    pthread_mutex_unlock(&s->m);
    mem_free(s->score);
    mem_free(s->tok);
    s->score = NULL;
    s->tok = NULL;
}

/* Behind the next neighbour; false when the engine takes no more now. */
static bool job_submit(struct wk_sensitivity *s)
{
    const uint32_t n = (s->w->sink_token >= 0) + s->before[s->at]->n + s->own->n;
    const struct fus_build b = {
        .n = n, .on_plan = plan_measurement, .on_end = on_measured, .ctx = s};
    int32_t *tok = mem_realloc(s->tok, n * sizeof *tok);

    if (!tok) return false;
    s->tok = tok;
    s->submitted = true;
    atomic_store(&s->ended, false);
    if (fus_build_submit(s->w->engine, &b) == 0) return true;
    s->submitted = false;
    return false;
}

/* A step of the job has ended: true when the job has, too. */
static bool job_step(struct wk_sensitivity *s)
{
    s->submitted = false;
    if (s->status == 0 && ++s->at < s->n_before) return false;
    int rc = s->status;
    if (rc == 0) /* 0: the record is not in RAM any more */
        rc = store_set_scores(s->w->store, &s->own->key, s->score, s->own->n);
    if (s->status == 0)
        log_event(LOG_DEBUG, "chunk_measured", "tokens=%u neighbours=%zu kept=%d", s->own->n,
                  s->n_before, rc);
    job_end(s, rc == 1 && s->status == 0, rc < 0 && rc != -ECANCELED);
    return true;
}

/* m is held. */
static bool is_idle(const struct wk_sensitivity *s)
{
    return s->w->requests.n_gens == 0 && clock_ms_since(s->wanted_ns) >= IDLE_MS;
}

static void work_on_scores(void *arg)
{
    struct wk_sensitivity *s = arg;

    if (atomic_load(&s->w->state) != WK_READY) return;
    if (s->submitted && !atomic_load(&s->ended)) return;
    if (s->submitted && !job_step(s)) {
        if (!job_submit(s)) job_end(s, false, false);
        return;
    }
    pthread_mutex_lock(&s->m);
    bool pending = s->pending.n || s->few.n, idle = is_idle(s);
    bool taken = idle && (take_from(s, &s->pending) || take_from(s, &s->few));
    pthread_mutex_unlock(&s->m);
    if (pending && !idle) http_timer_set(&s->timer, IDLE_MS);
    if (!taken) return;
    s->score = mem_zalloc(s->own->n * sizeof *s->score);
    if (!s->score || !job_submit(s)) job_end(s, false, s->score == NULL);
}

static void on_msg(struct wk_msg *m)
{
    work_on_scores((char *)m - offsetof(struct wk_sensitivity, msg));
}

int wk_sensitivity_create(struct worker *w)
{
    struct wk_sensitivity *s = mem_zalloc(sizeof *s);

    if (!s) return -ENOMEM;
    http_timer_init(&s->timer, w->loop, work_on_scores, s);
    s->w = w;
    s->msg.fn = on_msg;
    TAILQ_INIT(&s->pending.list);
    TAILQ_INIT(&s->few.list);
    pthread_mutex_init(&s->m, NULL);
    w->sensitivity = s;
    return 0;
}

void wk_sensitivity_destroy(struct worker *w)
{
    struct wk_sensitivity *s = w->sensitivity;

    if (!s) return;
    wk_unpost(w, &s->msg);
    http_timer_fini(&s->timer);
    if (s->own) job_end(s, false, false);
    while (s->pending.n)
        text_unref(queue_take(&s->pending, TAILQ_FIRST(&s->pending.list)));
    while (s->few.n)
        text_unref(queue_take(&s->few, TAILQ_FIRST(&s->few.list)));
    for (size_t i = 0; i < RECENT_MAX; i++)
        text_unref(s->recent[i]);
    pthread_mutex_destroy(&s->m);
    mem_free(s);
    w->sensitivity = NULL;
}
