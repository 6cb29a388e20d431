/* Which chunks are still to be encoded behind others of their collection, and with which.
 *
 * A group of chunks of one namespace that were missed or used last, because what is retrieved in
 * one week stands together in prompts, runs as one prompt behind the sink token, once in this order
 * and once backwards (more often where the profile wants more contexts), and every chunk of it that
 * waits takes its K and V out of each pass: its contexts are computed exactly, and cost no more
 * than builds of their own. A chunk that has stood behind too little for want of others waits until
 * its collection has grown to twice as much. Idle is a second without requests, builds or new
 * records: a burst is not over in its pauses. One pass is with the engine at a time; requests go
 * first. */
#include "worker/quality/contexts.h"

#include "base/clock.h"
#include "base/log.h"
#include "worker/opts_table.h"
#include "worker/reuse/merge.h"
#include "worker/worker.h"

#include <string.h>

enum {
    GROUP_MAX = 32,
    RECENT_MAX = 2 * GROUP_MAX, /* chosen: to fill groups up from */
    PENDING_MAX = 1024,         /* chosen: about 2 MiB of token ids */
    IDLE_MS = 1000,
};

struct text { /* of a chunk; counted references, guarded by contexts.m */
    struct tier_key key;
    unsigned refs;
    char *ns;
    int32_t *tok;
    uint32_t n, behind;     /* behind: tokens of all contexts that its record has */
    TAILQ_ENTRY(text) link; /* while it waits */
};
struct member { /* of the group */
    struct text *text;
    bool waits;              /* its record takes part; the others are context alone */
    struct rec_merge *merge; /* engine thread, while the job is submitted */
    int status;              /* 0: its next version is kept; 1: there is none */
};
struct wk_contexts {
    pthread_mutex_t m;
    struct text *recent[RECENT_MAX];
    size_t recent_at; /* the next place to overwrite */
    TAILQ_HEAD(, text) pending;
    struct wk_contexts_stats stats;
    uint64_t wanted_ns; /* the last wk_contexts_want() */
    struct wk_msg msg;  /* something is pending, or a pass has ended */
    struct http_timer timer;
    struct worker *w;
    /* The job; loop thread, and the engine thread while it is submitted. */
    struct member group[GROUP_MAX];
    size_t n_group;
    unsigned pass;
    int32_t *tok; /* the sink token, if any, and the group in this pass's order */
    uint32_t n_tok;
    struct fus_capture capture[GROUP_MAX];
    bool submitted;
    atomic_bool ended;
    int status;
};

/* ---- texts; m is held ---- */

static void text_unref(struct text *t)
{
    if (!t || --t->refs > 0) return;
    mem_free(t->ns);
    mem_free(t->tok);
    mem_free(t);
}

static struct text *text_make(const struct wk_context_wish *x)
{
    struct text *t = mem_zalloc(sizeof *t);

    if (!t) return NULL;
    *t = (struct text){
        .key = x->key, .refs = 1, .n = x->n, .behind = x->behind, .ns = mem_strdup(x->ns)};
    t->tok = mem_alloc(x->n * sizeof *t->tok);
    if (!t->ns || !t->tok) {
        text_unref(t);
        return NULL;
    }
    memcpy(t->tok, x->tok, x->n * sizeof *t->tok);
    return t;
}

static void pending_put(struct wk_contexts *s, struct text *t)
{
    TAILQ_INSERT_TAIL(&s->pending, t, link);
    s->stats.n_pending++;
}

static struct text *pending_take(struct wk_contexts *s, struct text *t)
{
    TAILQ_REMOVE(&s->pending, t, link);
    s->stats.n_pending--;
    return t;
}

static bool in_group(const struct wk_contexts *s, const struct tier_key *key)
{
    for (size_t i = 0; i < s->n_group; i++)
        if (tier_key_same(&s->group[i].text->key, key)) return true;
    return false;
}

static struct text *pending_find(const struct wk_contexts *s, const struct tier_key *key)
{
    struct text *t;

    TAILQ_FOREACH(t, &s->pending, link)
    if (tier_key_same(&t->key, key)) break;
    return t;
}

static void remember(struct wk_contexts *s, struct text *t)
{
    for (size_t i = 0; i < RECENT_MAX; i++)
        if (s->recent[i] && tier_key_same(&s->recent[i]->key, &t->key)) return;
    text_unref(s->recent[s->recent_at]);
    s->recent[s->recent_at] = t;
    s->recent_at = (s->recent_at + 1) % RECENT_MAX;
    t->refs++;
}

/* ---- what is wanted ---- */

/* Tokens of a group: in its two orders a chunk stands behind all the others once. */
static uint32_t group_tokens(const struct worker *w)
{
    return 2 * w->profile.context_tokens;
}

/* The record's contexts need not be as long as the profile wants them: half is most of the gain. */
static bool is_enough(const struct worker *w, uint32_t behind)
{
    return 2 * (uint64_t)behind >= (uint64_t)w->profile.contexts * w->profile.context_tokens;
}

/* What a group adds to a record's contexts: in two orders a chunk stands behind all others. */
static uint32_t gain(const struct wk_contexts *s, const struct text *t)
{
    return (s->n_tok - t->n) * s->w->profile.contexts / 2;
}

/* What is off for a namespace is off for all within it. */
static bool is_off(const struct wk_tier_opts *t, const char *ns)
{
    for (size_t i = 0; i < t->n_limits; i++) {
        const struct wk_limits *l = &t->limits[i];
        const size_t n = strlen(l->ns);
        const bool within = strncmp(ns, l->ns, n) == 0 && (!ns[n] || ns[n] == SEG_SPACE_INNER);
        if (l->contexts_off && within) return true;
    }
    return t->contexts_off;
}

/* An operator who chose an exact strategy pays nothing for the others. */
static bool is_wanted(const struct worker *w, const char *ns)
{
    return w->profile.contexts > 0 && w->blend_ok && !pol_strategy_is_exact(w->o.strategy) &&
           !is_off(&w->o.tiers, ns);
}

void wk_contexts_want(struct worker *w, const struct wk_context_wish *x)
{
    struct wk_contexts *s = w->contexts;
    struct text *t = NULL;

    if (!s || x->n == 0 || is_enough(w, x->behind) || !is_wanted(w, x->ns)) return;
    pthread_mutex_lock(&s->m);
    if (!in_group(s, &x->key) && !pending_find(s, &x->key)) t = text_make(x);
    if (t) {
        if (s->stats.n_pending == PENDING_MAX) /* what has waited longest has found no company */
            text_unref(pending_take(s, TAILQ_FIRST(&s->pending)));
        remember(s, t);
        pending_put(s, t);
        s->wanted_ns = clock_ns();
    }
    pthread_mutex_unlock(&s->m);
    if (t) wk_post(w, &s->msg);
}

void wk_contexts_get_stats(struct worker *w, struct wk_contexts_stats *ret)
{
    pthread_mutex_lock(&w->contexts->m);
    *ret = w->contexts->stats;
    pthread_mutex_unlock(&w->contexts->m);
}

/* ---- engine thread ---- */

/* Which member stands at a place: forwards, backwards, and then the same from the middle on. */
static size_t member_at(const struct wk_contexts *s, unsigned pass, size_t place)
{
    const size_t i = pass % 2 ? s->n_group - 1 - place : place;
    return (i + pass / 2 * ((s->n_group + 1) / 2)) % s->n_group;
}

/* Whether a member stands behind others in a pass after this one: the first has no context. */
static bool is_last(const struct wk_contexts *s, size_t member)
{
    for (unsigned p = s->pass + 1; p < s->w->profile.contexts; p++)
        if (member_at(s, p, 0) != member) return false;
    return true;
}

static void begin_merges(struct wk_contexts *s)
{
    for (size_t i = 0; i < s->n_group; i++) {
        struct member *m = &s->group[i];
        const int rc = m->waits ? rec_merge_begin(s->w->store, &m->text->key,
                                                  s->w->profile.side_layer, &m->merge)
                                : 0;
        if (rc < 0) m->status = rc;
    }
}

/* The group in the pass's order; how many of its members have their rows taken. */
static size_t lay_out(struct wk_contexts *s)
{
    const uint32_t head = s->w->sink_token >= 0;
    uint32_t at = head;
    size_t n = 0;

    s->tok[0] = s->w->sink_token;
    for (size_t place = 0; place < s->n_group; place++) {
        const size_t i = member_at(s, s->pass, place);
        struct member *m = &s->group[i];
        memcpy(s->tok + at, m->text->tok, m->text->n * sizeof *s->tok);
        if (m->merge && place > 0) {
            const bool last = is_last(s, i);
            s->capture[n++] =
                (struct fus_capture){.tok0 = at,
                                     .n = m->text->n,
                                     .sink = rec_merge_sink(m->merge, at - head, last, &m->status)};
            if (last) m->merge = NULL;
        }
        at += m->text->n;
    }
    return n;
}

static int plan_pass(void *ctx, struct fus_plan *ret)
{
    struct wk_contexts *s = ctx;

    if (s->pass == 0) begin_merges(s);
    const size_t n = lay_out(s);
    if (n == 0) return 0;
    *ret = (struct fus_plan){.tok = s->tok,
                             .n_tok = s->n_tok,
                             .capture = s->capture,
                             .n_capture = n,
                             .logits_from = s->n_tok,
                             .strategy = POL_FULL};
    return 1;
}

static void on_pass_end(void *ctx, int status)
{
    struct wk_contexts *s = ctx;

    s->status = status;
    atomic_store(&s->ended, true);
    wk_post(s->w, &s->msg);
}

/* ---- loop thread ---- */

static void group_add(struct wk_contexts *s, struct text *t, bool waits)
{
    s->group[s->n_group++] = (struct member){.text = t, .waits = waits, .status = 1};
    s->n_tok += t->n;
    t->refs++;
}

static void group_clear(struct wk_contexts *s)
{
    while (s->n_group > 0)
        text_unref(s->group[--s->n_group].text);
    s->n_tok = s->w->sink_token >= 0;
}

/* m is held. Add a text of the group's namespace while there is room. */
static void group_fill(struct wk_contexts *s, struct text *t, bool waits)
{
    const struct text *first = s->group[0].text;

    const bool full = s->n_group > 1 && s->n_tok >= group_tokens(s->w);

    if (full || s->n_group == GROUP_MAX || s->n_tok + t->n > s->w->ctx_max) return;
    if (strcmp(t->ns, first->ns) == 0 && !in_group(s, &t->key)) group_add(s, t, waits);
}

/* m is held. A group around one that waits: what waits behind it in the queue was missed together
 * with it, then what was seen last. True: it is worth it. */
static bool group_around(struct wk_contexts *s, struct text *first)
{
    group_clear(s);
    group_add(s, first, true);
    for (struct text *t = TAILQ_NEXT(first, link); t; t = TAILQ_NEXT(t, link))
        group_fill(s, t, true);
    for (size_t i = 1; i <= RECENT_MAX; i++) {
        struct text *t = s->recent[(s->recent_at + RECENT_MAX - i) % RECENT_MAX];
        if (t) group_fill(s, t, false);
    }
    for (size_t i = 0; i < s->n_group; i++) {
        struct member *m = &s->group[i];
        m->waits = m->waits && s->n_group > 1 && gain(s, m->text) >= 2 * m->text->behind;
    }
    return s->group[0].waits;
}

static bool take_group(struct wk_contexts *s)
{
    struct text *first;

    TAILQ_FOREACH(first, &s->pending, link)
    if (group_around(s, first)) break;
    if (!first) group_clear(s);
    for (size_t i = 0; i < s->n_group; i++)
        if (s->group[i].waits) text_unref(pending_take(s, s->group[i].text));
    s->pass = 0;
    return first != NULL;
}

static void job_end(struct wk_contexts *s)
{
    size_t n_kept = 0;

    for (size_t i = 0; i < s->n_group; i++) {
        rec_merge_abort(s->group[i].merge);
        n_kept += s->group[i].status == 0;
    }
    log_event(LOG_DEBUG, "contexts_merged", "chunks=%zu kept=%zu tokens=%u status=%d", s->n_group,
              n_kept, s->n_tok, s->status);
    pthread_mutex_lock(&s->m);
    s->stats.n_merged += n_kept;
    for (size_t i = 0; i < s->n_group; i++) {
        struct text *t = s->group[i].text;
        s->stats.n_failed += s->group[i].status < 0 && s->group[i].status != -ECANCELED;
        if (s->group[i].status != 0) continue;
        t->behind += gain(s, t);
        if (is_enough(s->w, t->behind)) continue;
        t->refs++;
        pending_put(s, t);
    }
    group_clear(s);
    pthread_mutex_unlock(&s->m);
    mem_free(s->tok);
    s->tok = NULL;
}

/* False when the engine takes no more now. */
static bool submit_pass(struct wk_contexts *s)
{
    const struct fus_build b = {
        .n = s->n_tok, .on_plan = plan_pass, .on_end = on_pass_end, .ctx = s};

    s->submitted = true;
    atomic_store(&s->ended, false);
    if (fus_build_submit(s->w->engine, &b) == 0) return true;
    s->submitted = false;
    return false;
}

/* m is held. */
static bool is_idle(const struct wk_contexts *s)
{
    struct fus_engine_stats e;

    fus_engine_get_stats(s->w->engine, &e);
    return s->w->requests.n_gens == 0 && e.n_builds == 0 && clock_ms_since(s->wanted_ns) >= IDLE_MS;
}

/* A pass has ended: true when the job has, too. */
static bool pass_ended(struct wk_contexts *s)
{
    s->submitted = false;
    if (s->status == 0 && ++s->pass < s->w->profile.contexts && submit_pass(s)) return false;
    job_end(s);
    return true;
}

static void work_on_contexts(void *arg)
{
    struct wk_contexts *s = arg;

    if (atomic_load(&s->w->state) != WK_READY) return;
    if (s->submitted && (!atomic_load(&s->ended) || !pass_ended(s))) return;
    pthread_mutex_lock(&s->m);
    bool pending = s->stats.n_pending, idle = is_idle(s), taken = idle && take_group(s);
    pthread_mutex_unlock(&s->m);
    if (pending && !idle) http_timer_set(&s->timer, IDLE_MS);
    if (!taken) return;
    s->tok = mem_alloc((s->n_tok + 1) * sizeof *s->tok);
    if (!s->tok || !submit_pass(s)) job_end(s);
}

static void on_msg(struct wk_msg *m)
{
    work_on_contexts((char *)m - offsetof(struct wk_contexts, msg));
}

int wk_contexts_create(struct worker *w)
{
    struct wk_contexts *s = mem_zalloc(sizeof *s);

    if (!s) return -ENOMEM;
    http_timer_init(&s->timer, w->loop, work_on_contexts, s);
    s->w = w;
    s->msg.fn = on_msg;
    TAILQ_INIT(&s->pending);
    pthread_mutex_init(&s->m, NULL);
    w->contexts = s;
    return 0;
}

void wk_contexts_destroy(struct worker *w)
{
    struct wk_contexts *s = w->contexts;

    if (!s) return;
    wk_unpost(w, &s->msg);
    http_timer_fini(&s->timer);
    if (s->n_group > 0) job_end(s);
    while (s->stats.n_pending)
        text_unref(pending_take(s, TAILQ_FIRST(&s->pending)));
    for (size_t i = 0; i < RECENT_MAX; i++)
        text_unref(s->recent[i]);
    pthread_mutex_destroy(&s->m);
    mem_free(s);
    w->contexts = NULL;
}
