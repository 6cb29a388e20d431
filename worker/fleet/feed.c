/* GET /admin/residents: gateways learn which texts' KV is here, and where (residency.h), and if
 * they ask for it what waits here (load.c).
 *
 * A reader that is up to date is answered when something changes, or when its wait is over. The
 * table is swept a part at a time on the worker's tick, and only while somebody reads: a quarter of
 * a second is soon enough for routing. Shared tiers are left out: what every worker can fetch makes
 * none of them a better choice. */
#include "base/clock.h"
#include "base/fnv.h"
#include "tiers/record.h"
#include "tiers/store_admin.h"
#include "worker/call.h"
#include "worker/fleet/residency.h"
#include "worker/reuse/prompt.h"
#include "worker/reuse/records.h"
#include "worker/worker.h"

#include <stdlib.h>
#include <string.h>

enum {
    SWEEP_MAX = 4096, /* texts a tick: below a millisecond */
    WAIT_MS_MAX = 60000,
    READ_S = 120, /* sweeps end when no gateway has asked for so long */
    USUAL_TOKENS = 512,
};

struct wk_reader { /* a long poll */
    struct wk_reader *next;
    struct wk_call *call;
    struct wanted {
        uint64_t epoch, since, load_seq;
        bool load;
    } a;
    uint64_t until_ns;
};

static uint64_t query_number(const struct wk_call *c, const char *name, int base)
{
    char text[24];

    (void)wk_call_query(c, name, text, sizeof text);
    return strtoull(text, NULL, base);
}

static bool is_news(struct worker *w, const struct wanted *a)
{
    return a->epoch != w->fleet.epoch || a->since != residency_seq(w->fleet.residency) ||
           (a->load && a->load_seq != wk_load_seq(w->fleet.load));
}

/* What a look-up in each place takes. */
static size_t places(struct worker *w, struct residency_place ret[RESIDENCY_PLACES_MAX],
                     struct store_tier_stats name[STORE_TIERS_MAX])
{
    size_t n = store_n_tiers(w->store);

    ret[0] = (struct residency_place){"ram", 0, 0};
    for (size_t i = 0; i < n; i++) {
        double one = store_predict_ms(w->store, i, 0);
        double usual = store_predict_ms(w->store, i, rec_bytes(&w->ident, USUAL_TOKENS));
        store_get_tier_stats(w->store, i, &name[i]);
        if (name[i].direct) one = usual = 0;
        ret[1 + i] = (struct residency_place){name[i].name, one, (usual - one) / USUAL_TOKENS};
    }
    return 1 + n;
}

static void answer_reader(struct worker *w, struct wk_call *c, const struct wanted *x)
{
    struct residency_place place[RESIDENCY_PLACES_MAX];
    struct store_tier_stats name[STORE_TIERS_MAX];
    struct residency_ask a = {.epoch = x->epoch,
                              .since = x->since,
                              .place = place,
                              .n_places = places(w, place, name),
                              .ms_per_token = atomic_load(&w->reuse.ms_per_token)};
    struct buf b = BUF_INIT;

    (void)residency_format(w->fleet.residency, &a, &b);
    if (x->load)
        (void)wk_load_put(w->fleet.load, atomic_load(&w->reuse.ms_per_token),
                          w->o.engine.max_running, &b);
    wk_reply(c, 200, "text/plain; charset=utf-8", NULL, &b);
}

static void reader_closed(void *owner, bool aborted)
{
    struct wk_reader *x = owner, **p = &x->call->w->fleet.readers;

    while (*p != x)
        p = &(*p)->next;
    *p = x->next;
    mem_free(x);
}

void wk_feed_get(struct worker *w, struct wk_call *c, const char *rest)
{
    char load[24];
    const struct wanted a = {.epoch = query_number(c, "epoch", 16),
                             .since = query_number(c, "since", 10),
                             .load_seq = query_number(c, "load", 10),
                             .load = wk_call_query(c, "load", load, sizeof load)};
    uint64_t wait_ms = query_number(c, "wait_ms", 10);
    struct wk_reader *x;

    w->fleet.read_ns = clock_ns();
    if (wait_ms == 0 || is_news(w, &a)) {
        answer_reader(w, c, &a);
        return;
    }
    x = mem_alloc(sizeof *x);
    if (!x) {
        wk_reply_oom(c);
        return;
    }
    if (wait_ms > WAIT_MS_MAX) wait_ms = WAIT_MS_MAX;
    *x = (struct wk_reader){w->fleet.readers, c, a, w->fleet.read_ns + wait_ms * 1000000};
    w->fleet.readers = x;
    c->owner = x;
    c->on_close = reader_closed;
}

static int where(void *ctx, const struct tier_key *key)
{
    return store_where(ctx, key);
}

/* Of all places that where() answers. */
static uint64_t moves(struct worker *w)
{
    struct store_stats ram;
    struct store_tier_stats t;
    uint64_t hash = FNV_START;

    store_get_stats(w->store, &ram);
    const uint64_t here[] = {ram.n_records, ram.hits, ram.puts, ram.evictions, ram.expired};
    hash = fnv_add(hash, here, sizeof here);
    for (size_t i = 0; i < store_n_tiers(w->store); i++) {
        store_get_tier_stats(w->store, i, &t);
        const struct tier_stat *s = &t.tier;
        const uint64_t there[] = {s->n_records, s->writes, s->evictions, s->expired, t.hits};
        if (!t.shared) hash = fnv_add(hash, there, sizeof there);
    }
    return hash;
}

static struct wk_reader *find_due(struct worker *w, uint64_t now)
{
    bool ends = atomic_load(&w->state) != WK_READY;

    for (struct wk_reader *x = w->fleet.readers; x; x = x->next)
        if (ends || is_news(w, &x->a) || now >= x->until_ns) return x;
    return NULL;
}

static void answer_due(struct worker *w, uint64_t now)
{
    for (struct wk_reader *x; (x = find_due(w, now));) {
        struct wk_call *c = x->call;
        const struct wanted a = x->a;
        c->on_close = NULL; /* answering may close the call at once, or later */
        reader_closed(x, false);
        answer_reader(w, c, &a);
    }
}

void wk_feed_load(struct worker *w)
{
    if (w->fleet.readers) answer_due(w, clock_ns());
}

void wk_feed_tick(struct worker *w)
{
    uint64_t now = clock_ns();

    if (w->fleet.subscribers) w->fleet.read_ns = now;
    if (w->fleet.read_ns == 0 || now - w->fleet.read_ns > (uint64_t)READ_S * 1000000000) return;
    (void)residency_sweep(w->fleet.residency, where, w->store, SWEEP_MAX, moves(w));
    answer_due(w, now);
    wk_events_tick(w);
}

void wk_feed_note(struct worker *w, const struct wk_prompt *p, const char *ns)
{
    const uint64_t hash = p->n_cut ? record_ns_hash(ns) : 0;

    for (size_t i = 0; i < p->n_cut; i++) {
        const struct wk_cut *c = &p->cut[i];
        const struct residency_chunk chunk = {c->text_id, c->key, hash, c->n};
        if (c->text_id) residency_note(w->fleet.residency, &chunk);
    }
}
