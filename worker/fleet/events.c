/* GET /admin/events/kv: what KV comes, moves and goes, as vLLM's engines tell it (BlockStored,
 * BlockRemoved, AllBlocksCleared), in server-sent events.
 *
 * A reader is told first that all blocks are cleared, then all that is held, a page at a time as it
 * takes them, then each change. One that comes back with Last-Event-ID gets what it missed, as
 * long as that is remembered; else all anew. Pages have no id but the last: who is cut off among
 * them begins again. What changes meanwhile comes behind the pages, so that a block may be told of
 * twice, never not at all. The table is residency.h's. */
#include "base/clock.h"
#include "base/net/sse.h"
#include "tiers/store_admin.h"
#include "worker/admin/metrics.h"
#include "worker/call.h"
#include "worker/fleet/residency.h"
#include "worker/reuse/namespaces.h"
#include "worker/worker.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    READERS_MAX = 16,          /* chosen: a team's routers */
    EVENTS_A_MESSAGE = 256,    /* chosen: some 50 KiB */
    BACKLOG_BYTES = 256 << 10, /* chosen: who is further behind is cut off, and may come back */
    PAUSE_BYTES = 128 << 10,   /* pages wait for their reader */
    COMMENT_MS = 10000,        /* silence in which the other side could have gone */
};

struct wk_subscriber {
    struct wk_subscriber *next;
    struct wk_call *call;
    uint64_t seq;    /* it has been told up to here */
    bool pages;      /* it is being told of all */
    uint32_t cursor; /* of these */
    uint64_t written_ns;
};

/* ---- events ---- */

/* "nvme", "redis" … as vLLM writes media; the RAM of a host is its "CPU". */
static void put_medium(struct worker *w, int place, struct buf *b)
{
    struct store_tier_stats t = {.name = "CPU"};

    if (place > 0) store_get_tier_stats(w->store, (size_t)place - 1, &t);
    (void)buf_adds(b, ",\"medium\":\"");
    for (const char *p = t.name; *p; p++)
        (void)buf_addc(b, (char)toupper((unsigned char)*p));
    (void)buf_addc(b, '"');
}

static void put_type(const struct residency_change *x, const char *type, struct buf *b)
{
    char hex[33];

    tier_key_hex(&x->key, hex);
    (void)buf_addf(b, "%s{\"type\":\"%s\",\"block_hashes\":[\"%s\"]",
                   b->data[b->len - 1] == '[' ? "" : ",", type, hex);
}

static void put_change(struct worker *w, const struct residency_change *x, struct buf *b)
{
    if (x->from >= 0) {
        put_type(x, "BlockRemoved", b);
        put_medium(w, x->from, b);
        (void)buf_addc(b, '}');
    }
    if (x->to < 0) return;
    put_type(x, "BlockStored", b);
    (void)buf_addf(b,
                   ",\"parent_block_hash\":null,\"token_ids\":[],\"block_size\":%u,"
                   "\"lora_id\":null",
                   x->n_tok);
    put_medium(w, x->to, b);
    (void)buf_adds(b, ",\"namespace\":");
    (void)wk_namespaces_put(w->namespaces, x->ns, b);
    (void)buf_addc(b, '}');
}

/* A message; has_id: who has it has everything up to its number. */
static void put_message(struct wk_subscriber *s, const struct residency_change *x, size_t n,
                        bool clears, bool has_id)
{
    struct worker *w = s->call->w;
    struct buf b = BUF_INIT;

    if (has_id)
        (void)buf_addf(&b, "id: %llx-%llu\n", (unsigned long long)w->fleet.epoch,
                       (unsigned long long)s->seq);
    (void)buf_addf(&b, "data: {\"ts\":%.3f,\"events\":[", clock_wall_s());
    if (clears) (void)buf_adds(&b, "{\"type\":\"AllBlocksCleared\"}");
    for (size_t i = 0; i < n && buf_status(&b) == 0; i++)
        put_change(w, &x[i], &b);
    (void)buf_adds(&b, "]}\n\n");
    s->written_ns = clock_ns();
    if (buf_status(&b) == 0)
        (void)http_reply_write(s->call->r, b.data, b.len);
    else
        http_reply_abort(s->call->r); /* a gap would go unseen */
    buf_fini(&b);
}

/* ---- a reader ---- */

static void begin_pages(struct wk_subscriber *s)
{
    s->seq = residency_seq(s->call->w->fleet.residency);
    s->pages = true;
    s->cursor = 0;
    put_message(s, NULL, 0, true, false);
}

/* False: there is no more for now. */
static bool send_page(struct wk_subscriber *s)
{
    static struct residency_change page[EVENTS_A_MESSAGE]; /* the loop's */

    if (http_reply_pending(s->call->r) > PAUSE_BYTES) return false;
    const size_t n =
        residency_page(s->call->w->fleet.residency, &s->cursor, page, EVENTS_A_MESSAGE);
    s->pages = n > 0;
    put_message(s, page, n, false, n == 0);
    return true;
}

static bool send_changes(struct wk_subscriber *s)
{
    static struct residency_change news[EVENTS_A_MESSAGE];
    const int n = residency_changes(s->call->w->fleet.residency, s->seq, news, EVENTS_A_MESSAGE);

    if (n < 0) begin_pages(s);
    if (n <= 0) return n < 0;
    s->seq = news[n - 1].seq;
    put_message(s, news, (size_t)n, false, true);
    return true;
}

/* What it has not been told; false: it is too slow. */
static bool tell(struct wk_subscriber *s)
{
    while (http_reply_pending(s->call->r) < BACKLOG_BYTES)
        if (!(s->pages ? send_page(s) : send_changes(s))) break;
    if (clock_ms_since(s->written_ns) > COMMENT_MS) {
        (void)http_sse_comment(s->call->r, "");
        s->written_ns = clock_ns();
    }
    return http_reply_pending(s->call->r) < BACKLOG_BYTES;
}

static void drop_subscriber(struct wk_subscriber *s)
{
    struct wk_subscriber **p = &s->call->w->fleet.subscribers;

    while (*p != s)
        p = &(*p)->next;
    *p = s->next;
    s->call->on_close = NULL;
    mem_free(s);
}

static void subscriber_closed(void *owner, bool aborted)
{
    drop_subscriber(owner);
}

void wk_events_tick(struct worker *w)
{
    const bool ends = atomic_load(&w->state) != WK_READY;

    for (struct wk_subscriber *s = w->fleet.subscribers, *next; s; s = next) {
        struct http_req *r = s->call->r;
        next = s->next;
        if (ends) {
            drop_subscriber(s);
            (void)http_reply_end(r);
        } else if (!tell(s)) {
            wk_metric_add(WK_EVENT_READERS_CUT, 1);
            drop_subscriber(s);
            http_reply_abort(r);
        }
    }
}

static unsigned count_readers(const struct worker *w)
{
    unsigned n = 0;

    for (const struct wk_subscriber *s = w->fleet.subscribers; s; s = s->next)
        n++;
    return n;
}

/* Of this life, and no number that is yet to come. */
static bool read_place(const struct wk_call *c, uint64_t *ret_seq)
{
    const char *last = http_header_find(&c->r->msg.head, "Last-Event-ID");
    char *end, *after;

    if (!last) return false;
    const uint64_t epoch = strtoull(last, &end, 16);
    if (*end != '-' || !isdigit((unsigned char)end[1])) return false;
    *ret_seq = strtoull(end + 1, &after, 10);
    return *after == '\0' && epoch == c->w->fleet.epoch &&
           *ret_seq <= residency_seq(c->w->fleet.residency);
}

void wk_events_get(struct worker *w, struct wk_call *c, const char *rest)
{
    struct buf headers = BUF_INIT, none = BUF_INIT;

    if (strcmp(c->r->msg.method, "HEAD") == 0) { /* which would never end */
        wk_reply(c, 200, "text/event-stream", NULL, &none);
        return;
    }
    if (count_readers(w) >= READERS_MAX) {
        wk_refuse(c, API_QUEUE_FULL, NULL, "%d read these events already, as many as may.",
                  READERS_MAX);
        return;
    }
    struct wk_subscriber *s = mem_zalloc(sizeof *s);
    if (!s || residency_remember(w->fleet.residency) < 0 ||
        wk_call_headers(c, NULL, &headers) < 0 || !buf_cstr(&headers)) {
        mem_free(s);
        buf_fini(&headers);
        wk_reply_oom(c);
        return;
    }
    *s = (struct wk_subscriber){.next = w->fleet.subscribers, .call = c};
    w->fleet.subscribers = s;
    c->owner = s;
    c->on_close = subscriber_closed;
    c->status = 200;
    c->stream = true;
    (void)http_sse_start(c->r, headers.data);
    buf_fini(&headers);
    if (!read_place(c, &s->seq)) begin_pages(s);
    (void)tell(s);
}
