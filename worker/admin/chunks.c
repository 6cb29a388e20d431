/* Admin routes of records: a page of the listing, one record, pins, moves and removal; what
 * namespaces have. */
#include "base/clock.h"
#include "tiers/store_admin.h"
#include "worker/admin/routes.h"
#include "worker/request/request.h"
#include "worker/reuse/namespaces.h"
#include "worker/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put_one(struct worker *w, struct buf *out, const struct store_info *i)
{
    char hex[33];
    double now = clock_wall_s();
    /* A record that is being built was neither made nor used yet. */
    double age_s = i->created_s > 0 ? now - i->created_s : 0;
    double idle_s = i->used_s > 0 ? now - i->used_s : 0;

    tier_key_hex(&i->key, hex);
    buf_addf(out,
             "{\"id\":\"%s\",\"key\":\"%s\",\"kind\":\"%s\",\"tokens\":%u,\"bytes\":%llu,"
             "\"hits\":%llu,\"tier\":\"%s\",\"tiers\":\"%s\",\"pinned\":%s,"
             "\"building\":%s,\"contexts\":%u,\"context_tokens\":%u,\"sidecar\":%s,"
             "\"age_s\":%.1f,\"idle_s\":%.1f,"
             "\"expires_s\":%.1f,\"namespace_hash\":\"%016llx\",\"namespace\":",
             hex, hex, i->kind == TIER_PREFIX ? "prefix" : "chunk", i->n_tokens,
             (unsigned long long)i->size_bytes, (unsigned long long)i->hits, i->tier, i->tiers,
             i->pinned ? "true" : "false", i->building ? "true" : "false", i->n_contexts,
             i->context_tokens, i->side ? "true" : "false", age_s, idle_s,
             i->expires_s > 0 ? i->expires_s - now : 0, (unsigned long long)i->ns_hash);
    wk_namespaces_put(w->namespaces, i->ns_hash, out);
    buf_addc(out, '}');
}

/* False: it is none of this worker's, and the answer says so. */
static bool query_tier(struct worker *w, struct wk_call *c, char *ret, size_t cap)
{
    if (!wk_call_query(c, "tier", ret, cap) || !*ret || wk_tier_index(w, ret) >= 0) return true;
    wk_refuse(c, API_TIER_NOT_FOUND, "tier", "No tier '%s' here.", ret);
    return false;
}

/* ---- a page of the listing; on a helper, since a large store takes its time ---- */
enum {
    PAGE_MAX = 100000, /* chosen: records of one answer */
    PREFIX_BYTES = 33, /* an id's digits */
};
enum sort_key { SORT_NONE, SORT_AGE, SORT_BYTES, SORT_CONTEXTS, SORT_HITS, SORT_IDLE, SORT_TOKENS };
static const char *const sort_names[] = {"",     "age_s",  "bytes", "contexts",
                                         "hits", "idle_s", "tokens"};

struct total { /* of a fastest tier */
    char tier[16];
    uint64_t n_records, n_pinned, bytes;
};
struct query {
    char tier[16], prefix[PREFIX_BYTES];
    bool chunks_only, by_ns, ascending;
    uint64_t ns_hash;
    enum sort_key sort;
    size_t offset, limit;
};
struct listing {
    struct wk_task t; /* the first member */
    struct query q;
    /* on the helper */
    struct store_info *info; /* [n] what the query asks for */
    size_t n, cap, n_totals;
    struct total total[STORE_TIERS_MAX + 1];
};

/* False: it cannot be one, and the answer says so. */
static bool query_ns(struct wk_call *c, struct query *q)
{
    char given[2048], ns[512]; /* what is cut here is too long there */

    q->by_ns = wk_call_query(c, "namespace", given, sizeof given);
    if (!q->by_ns) return true;
    wk_percent_decode(given);
    if (wk_ns_parse(given, ns, sizeof ns) == 0) {
        q->ns_hash = record_ns_hash(ns);
        wk_namespaces_note(c->w->namespaces, ns);
        return true;
    }
    wk_refuse(c, API_STRING_TOO_LONG, "namespace", "The namespace is too long.");
    return false;
}

/* False: it is none, and the answer says so. */
static bool query_number(struct wk_call *c, const char *name, size_t most, size_t *to)
{
    char text[16], *end;

    if (!wk_call_query(c, name, text, sizeof text)) return true;
    unsigned long long v = strtoull(text, &end, 10);
    if (*text >= '0' && *text <= '9' && !*end && v <= most) {
        *to = (size_t)v;
        return true;
    }
    wk_refuse(c, API_INVALID_VALUE, name, "Invalid '%s': expected a number up to %zu.", name, most);
    return false;
}

static bool query_order(struct wk_call *c, struct query *q)
{
    enum { N = sizeof sort_names / sizeof *sort_names };
    char sort[16], order[8];
    size_t i = 0;

    (void)wk_call_query(c, "sort", sort, sizeof sort);
    (void)wk_call_query(c, "order", order, sizeof order);
    while (i < N && strcmp(sort, sort_names[i]) != 0)
        i++;
    q->sort = (enum sort_key)(i % N);
    q->ascending = strcmp(order, "asc") == 0;
    if (i < N && (!*order || q->ascending || strcmp(order, "desc") == 0)) return true;
    wk_refuse(c, API_INVALID_VALUE, i < N ? "order" : "sort", "Invalid '%s': expected %s.",
              i < N ? "order" : "sort",
              i < N ? "asc or desc" : "age_s, bytes, contexts, hits, idle_s or tokens");
    return false;
}

static bool query_prefix(struct wk_call *c, struct query *q)
{
    (void)wk_call_query(c, "prefix", q->prefix, sizeof q->prefix);
    if (!q->prefix[strspn(q->prefix, "0123456789abcdef")]) return true;
    wk_refuse(c, API_INVALID_VALUE, "prefix",
              "Invalid 'prefix': expected the first digits of an id, 0-9 and a-f.");
    return false;
}

static bool asked_for(const struct query *q, const struct store_info *i)
{
    char hex[PREFIX_BYTES];

    if (q->chunks_only && i->kind != TIER_CHUNK) return false;
    if (q->by_ns && i->ns_hash != q->ns_hash) return false;
    if (!*q->prefix) return true;
    tier_key_hex(&i->key, hex);
    return strncmp(hex, q->prefix, strlen(q->prefix)) == 0;
}

static void add_total(struct listing *l, const struct store_info *i)
{
    size_t k = 0;

    while (k < l->n_totals && strcmp(l->total[k].tier, i->tier) != 0)
        k++;
    if (k == STORE_TIERS_MAX + 1) return;
    struct total *to = &l->total[k];
    if (k == l->n_totals) memcpy(l->total[l->n_totals++].tier, i->tier, sizeof i->tier);
    to->n_records++;
    to->n_pinned += i->pinned;
    to->bytes += i->size_bytes;
}

static int visit(void *ctx, const struct store_info *i)
{
    struct listing *l = ctx;

    if (!asked_for(&l->q, i)) return 0;
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        struct store_info *more = mem_realloc(l->info, cap * sizeof *more);
        if (!more) return -ENOMEM;
        l->info = more;
        l->cap = cap;
    }
    l->info[l->n++] = *i;
    add_total(l, i);
    return 0;
}

static double value_of(enum sort_key key, const struct store_info *i)
{
    switch (key) {
    case SORT_AGE:
        return -i->created_s;
    case SORT_BYTES:
        return (double)i->size_bytes;
    case SORT_CONTEXTS:
        return i->n_contexts;
    case SORT_HITS:
        return (double)i->hits;
    case SORT_IDLE:
        return -i->used_s;
    case SORT_TOKENS:
        return i->n_tokens;
    case SORT_NONE:
        break;
    }
    return 0;
}

/* Equal ones by key, so that pages do not overlap. */
static int in_order(const void *a, const void *b, void *ctx)
{
    const struct query *q = ctx;
    const struct store_info *x = a, *y = b;
    double vx = value_of(q->sort, x), vy = value_of(q->sort, y);

    if (vx != vy) return (vx < vy) == q->ascending ? -1 : 1;
    return memcmp(&x->key, &y->key, sizeof x->key);
}

static void put_totals(const struct listing *l, struct buf *b)
{
    buf_addf(b, ",\"total\":%zu,\"tiers\":[", l->n);
    for (size_t i = 0; i < l->n_totals; i++)
        buf_addf(b, "%s{\"tier\":\"%s\",\"records\":%llu,\"pinned\":%llu,\"bytes\":%llu}",
                 i ? "," : "", l->total[i].tier, (unsigned long long)l->total[i].n_records,
                 (unsigned long long)l->total[i].n_pinned, (unsigned long long)l->total[i].bytes);
    buf_addc(b, ']');
}

static int list_chunks(struct wk_task *t)
{
    struct listing *l = (struct listing *)t;
    const struct query *q = &l->q;
    struct buf *b = &t->out;
    size_t count = 0;

    if (store_visit(t->w->store, *q->tier ? q->tier : NULL, visit, l) < 0) return -ENOMEM;
    if (q->sort != SORT_NONE) qsort_r(l->info, l->n, sizeof *l->info, in_order, &l->q);
    buf_adds(b, "{\"object\":\"list\",\"data\":[");
    for (size_t i = q->offset; i < l->n && count < q->limit && buf_status(b) == 0; i++, count++) {
        if (count > 0) buf_addc(b, ',');
        put_one(t->w, b, &l->info[i]);
    }
    buf_addf(b, "],\"count\":%zu", count);
    put_totals(l, b);
    buf_addc(b, '}');
    return buf_status(b);
}

static void listing_fini(struct wk_task *t)
{
    mem_free(((struct listing *)t)->info);
}

void wk_admin_chunks(struct worker *w, struct wk_call *c, const char *rest)
{
    struct query q = {.limit = PAGE_MAX};
    struct listing *l;
    char kind[16];

    (void)wk_call_query(c, "kind", kind, sizeof kind);
    q.chunks_only = strcmp(kind, "chunk") == 0;
    if (!query_tier(w, c, q.tier, sizeof q.tier) || !query_ns(c, &q) || !query_order(c, &q) ||
        !query_prefix(c, &q) || !query_number(c, "offset", UINT32_MAX, &q.offset) ||
        !query_number(c, "limit", PAGE_MAX, &q.limit))
        return;
    l = (struct listing *)wk_task_create(
        c, &(struct wk_work){.bytes = sizeof *l, .run = list_chunks, .fini = listing_fini});
    if (!l) return;
    l->q = q;
    wk_task_submit(&l->t);
}

/* ---- one record ---- */
static void reply_chunk(struct worker *w, struct wk_call *c, const struct tier_key *k)
{
    struct buf b = BUF_INIT;
    struct store_info i;

    if (store_get_info(w->store, k, &i) != 1) {
        wk_segment_absent(c, k);
        return;
    }
    put_one(w, &b, &i);
    wk_reply_buf(c, 200, &b);
}

void wk_admin_chunk(struct worker *w, struct wk_call *c, const char *id)
{
    struct tier_key k;
    char tier[16];

    if (strcmp(c->r->msg.method, "DELETE") == 0) {
        if (query_tier(w, c, tier, sizeof tier)) wk_segment_drop(w, c, id, *tier ? tier : NULL);
    } else if (wk_segment_id(c, id, &k) == 0) {
        reply_chunk(w, c, &k);
    }
}

struct move {
    struct wk_task t; /* the first member */
    struct tier_key key;
    char tier[16];
};

static int move_refused(struct wk_task *t, const char *tier, int rc)
{
    if (rc == -EBUSY)
        return api_err_set(&t->e, API_SEGMENT_PINNED, "id",
                           "The segment is pinned or in use, and stays where it is as well.");
    if (rc == -EINVAL)
        return api_err_set(&t->e, API_NOT_SUPPORTED, "tier",
                           "Nothing is moved to '%s': it gets what is used again.", tier);
    if (rc == -ENOSPC)
        return api_err_set(&t->e, API_NO_ROOM, "tier", "'%s' has no room for it.", tier);
    if (rc == -ETIMEDOUT)
        return api_err_set(&t->e, API_TIMEOUT, NULL, "Records are still waiting to be written.");
    return api_err_set(&t->e, API_TIER_FAILED, "tier", "It could not be moved to '%s' (%s).", tier,
                       err_name(rc));
}

static int move_chunk(struct wk_task *t)
{
    const uint64_t most_ns = 30ull * 1000000000; /* chosen: an operator waits that long */
    struct move *m = (struct move *)t;
    struct store_info i;
    char hex[33];

    tier_key_hex(&m->key, hex);
    if (!*m->tier) return api_missing(&t->e, "tier", "");
    int rc = store_move(t->w->store, &m->key, m->tier, clock_ns() + most_ns);
    if (rc == 0)
        return api_err_set(&t->e, API_SEGMENT_NOT_FOUND, "id", "No segment '%s' is stored here.",
                           hex);
    if (rc < 0) return move_refused(t, m->tier, rc);
    if (store_get_info(t->w->store, &m->key, &i) == 1)
        put_one(t->w, &t->out, &i);
    else /* a remote tier lists nothing */
        buf_addf(&t->out, "{\"id\":\"%s\",\"tier\":\"%s\",\"tiers\":\"%s\"}", hex, m->tier,
                 m->tier);
    return buf_status(&t->out);
}

static void start_move(struct worker *w, struct wk_call *c, const struct tier_key *k)
{
    char tier[16];

    if (!query_tier(w, c, tier, sizeof tier)) return;
    struct move *m =
        (struct move *)wk_task_create(c, &(struct wk_work){.bytes = sizeof *m, .run = move_chunk});
    if (!m) return;
    m->key = *k;
    memcpy(m->tier, tier, sizeof tier);
    wk_task_submit(&m->t);
}

/* "ID/pin", "ID/unpin" or "ID/move" */
void wk_admin_chunk_order(struct worker *w, struct wk_call *c, const char *rest)
{
    const char *verb = strchr(rest, '/');
    const bool pin = verb && strcmp(verb, "/pin") == 0;
    struct tier_key k;
    char hex[40];

    (void)snprintf(hex, sizeof hex, "%.*s", verb ? (int)(verb - rest) : 39, rest);
    if (wk_segment_id(c, hex, &k) < 0) return;
    if (verb && strcmp(verb, "/move") == 0) {
        start_move(w, c, &k);
        return;
    }
    if (!pin && (!verb || strcmp(verb, "/unpin") != 0)) {
        wk_refuse(c, API_METHOD_NOT_ALLOWED, "GET, DELETE, POST",
                  "Use GET or DELETE on a record, POST on its /pin, /unpin and /move.");
        return;
    }
    int rc = store_set_pinned(w->store, &k, pin);
    if (rc == -ENOSPC)
        wk_refuse(c, API_PINS_FULL, "id",
                  "As many bytes are pinned as may be; unpin others first.");
    else
        reply_chunk(w, c, &k);
}

/* ---- by namespace; on a helper, as the listing ---- */
enum { SPACES_MAX = 200 }; /* chosen: of one answer; those that have most, or a cap */

static uint64_t all_bytes(const struct store_space *s)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < STORE_TIERS_MAX + 1; i++)
        bytes += s->at[i].bytes;
    return bytes;
}

static bool is_capped(const struct store_space *s)
{
    bool capped = false;

    for (size_t i = 0; i < STORE_TIERS_MAX + 1; i++)
        capped |= s->at[i].cap_bytes > 0;
    return capped;
}

static int by_need(const void *a, const void *b)
{
    const struct store_space *x = a, *y = b;
    const uint64_t bx = all_bytes(x), by = all_bytes(y);

    if (is_capped(x) != is_capped(y)) return is_capped(x) ? -1 : 1;
    if (bx != by) return bx > by ? -1 : 1;
    return x->ns_hash < y->ns_hash ? -1 : 1;
}

static void put_space(struct worker *w, struct buf *b, const struct store_space *s)
{
    const char *comma = "";

    buf_addf(b, "{\"namespace_hash\":\"%016llx\",\"namespace\":", (unsigned long long)s->ns_hash);
    wk_namespaces_put(w->namespaces, s->ns_hash, b);
    buf_adds(b, ",\"tiers\":[");
    for (size_t i = 0; i <= store_n_tiers(w->store); i++) {
        const struct store_space_at *at = &s->at[i];
        struct store_tier_stats tier = {.name = "ram"};
        if (i > 0) store_get_tier_stats(w->store, i - 1, &tier);
        if (at->n_records == 0 && at->cap_bytes == 0) continue;
        buf_addf(b, "%s{\"tier\":\"%s\",\"records\":%llu,\"bytes\":%llu,\"cap_bytes\":%llu}", comma,
                 tier.name, (unsigned long long)at->n_records, (unsigned long long)at->bytes,
                 (unsigned long long)at->cap_bytes);
        comma = ",";
    }
    buf_adds(b, "]}");
}

int wk_admin_namespaces(struct wk_task *t)
{
    struct store_space *s = NULL;
    size_t n = 0;
    int rc = store_spaces(t->w->store, &s, &n);

    if (rc < 0)
        return api_err_set(&t->e, API_TIER_FAILED, NULL, "A tier could not be listed (%s).",
                           err_name(rc));
    qsort(s, n, sizeof *s, by_need);
    buf_addf(&t->out, "{\"object\":\"list\",\"total\":%zu,\"data\":[", n);
    for (size_t i = 0; i < n && i < SPACES_MAX; i++) {
        if (i > 0) buf_addc(&t->out, ',');
        put_space(t->w, &t->out, &s[i]);
    }
    buf_adds(&t->out, "]}");
    mem_free(s);
    return buf_status(&t->out);
}
