/* What a worker tells of the chunks that it holds and of its load: a long poll after the other. */
#include "base/log.h"
#include "gateway/fleet/fleet_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    POLL_WAIT_MS = 20000, /* the worker answers by then, with news or without */
    POLL_GAP_MS = 50,     /* chosen: a busy worker's news come in bundles */
    POLL_GAP_EACH_MS = 2, /* chosen: and many workers' do not fill the loop */
    BACKOFF_MIN_MS = 500,
    BACKOFF_MAX_MS = 30000,
    NOT_OFFERED_MS = 60000,
};

/* ---- lines ---- */

static bool read_number(const char **at, int base, uint64_t *ret)
{
    char *end;
    if (!((**at >= '0' && **at <= '9') || (base == 16 && **at >= 'a' && **at <= 'f'))) return false;
    errno = 0;
    *ret = strtoull(*at, &end, base);
    if (errno || (*end != ' ' && *end != '\0')) return false;
    *at = *end ? end + 1 : end;
    return true;
}

static bool read_ms(const char **at, double *ret)
{
    char *end;
    double v = strtod(*at, &end);
    if (end == *at || !(v >= 0 && v < 1e12) || (*end != ' ' && *end != '\0')) return false;
    *at = *end ? end + 1 : end;
    *ret = v;
    return true;
}

static bool read_count(const char **at, unsigned *ret)
{
    uint64_t v;
    if (!read_number(at, 10, &v) || v > UINT32_MAX) return false;
    *ret = (unsigned)v;
    return true;
}

/* What a later version may add behind it is no matter of ours. */
static bool load_of(const char *p, struct gw_residency_line *l)
{
    struct gw_load *w = &l->load;
    l->kind = GW_RESIDENCY_LOAD;
    return read_number(&p, 10, &l->seq) && read_ms(&p, &w->waiting_ms) &&
           read_count(&p, &w->n_waiting) && read_count(&p, &w->n_running) &&
           read_count(&p, &w->slots) && read_ms(&p, &w->hold_ms) && read_ms(&p, &w->token_ms) &&
           read_ms(&p, &w->reused_ms);
}

int gw_residency_parse(const char *line, struct gw_residency_line *ret)
{
    struct gw_residency_line l = {0};
    const char *p = line + (*line != '\0');
    uint64_t tokens;
    char *end;
    switch (*line) {
    case '@':
        l.kind = GW_RESIDENCY_HEAD;
        if (!read_number(&p, 16, &l.epoch) || !read_number(&p, 10, &l.seq)) return -EBADMSG;
        l.full = strcmp(p, "full") == 0;
        if (!l.full && strcmp(p, "delta") != 0) return -EBADMSG;
        break;
    case '-':
        l.kind = GW_RESIDENCY_GONE;
        if (!read_number(&p, 16, &l.text_id) || *p) return -EBADMSG;
        break;
    case '+':
        l.kind = GW_RESIDENCY_HELD;
        if (!read_number(&p, 16, &l.text_id) || !read_number(&p, 10, &tokens) ||
            tokens > UINT32_MAX)
            return -EBADMSG;
        l.tokens = (uint32_t)tokens;
        l.cost = strtod(p, &end);
        if (end == p || !(l.cost >= 0 && l.cost <= 1) || *end != ' ') return -EBADMSG;
        break;
    case '=':
        if (!load_of(p, &l)) return -EBADMSG;
        break;
    default:
        return -EBADMSG;
    }
    *ret = l;
    return 0;
}

/* ---- the feed of a worker ---- */

static void tell_load(struct gw_target *t, const struct gw_load *l)
{
    struct gw_fleet *f = t->probe.fleet;
    gw_fleet_report(f, t->index, l);
    if (f->ops.on_load) f->ops.on_load(f->ctx);
}

static void take_line(struct gw_target *t)
{
    struct gw_directory *d = t->probe.fleet->directory;
    struct gw_feed *x = &t->feed;
    struct gw_residency_line l;
    x->line[x->n_line] = '\0';
    x->n_line = 0;
    x->broken = x->broken || gw_residency_parse(x->line, &l) < 0 ||
                (l.kind == GW_RESIDENCY_HEAD) == x->has_head;
    if (x->broken) return;
    switch (l.kind) {
    case GW_RESIDENCY_HEAD:
        if (l.full || l.epoch != x->at.epoch) gw_directory_forget(d, t->index);
        x->has_head = true;
        x->next = (struct gw_feed_place){.epoch = l.epoch, .seq = l.seq};
        break;
    case GW_RESIDENCY_HELD:
        (void)gw_directory_put(d, t->index, l.text_id, l.tokens, l.cost);
        break;
    case GW_RESIDENCY_GONE:
        gw_directory_drop(d, t->index, l.text_id);
        break;
    case GW_RESIDENCY_LOAD:
        x->next.load_seq = l.seq;
        tell_load(t, &l.load);
        break;
    }
}

static void on_feed_head(void *ctx, int status, const struct http_head *h)
{
    struct gw_target *t = ctx;
    t->feed.status = status;
}

static void on_feed_body(void *ctx, const char *data, size_t len)
{
    struct gw_target *t = ctx;
    struct gw_feed *x = &t->feed;
    if (x->status != 200) return;
    for (size_t i = 0; i < len && !x->broken; i++) {
        if (data[i] == '\n')
            take_line(t);
        else if (x->n_line + 1 < sizeof x->line)
            x->line[x->n_line++] = data[i];
        else
            x->broken = true;
    }
}

static void try_later(struct gw_target *t, const char *why)
{
    struct gw_feed *x = &t->feed;
    x->at = (struct gw_feed_place){0}; /* what was told half is asked for anew, all of it */
    tell_load(t, NULL);
    if (!x->told)
        log_event(LOG_INFO, "residents.feed", "worker=%u state=%s status=%d", t->index, why,
                  x->status);
    x->told = true;
    http_timer_set(&x->timer, x->status == 404 ? NOT_OFFERED_MS : x->backoff_ms);
    x->backoff_ms = x->backoff_ms * 2 > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : x->backoff_ms * 2;
}

static void on_feed_end(void *ctx, int status)
{
    struct gw_target *t = ctx;
    struct gw_fleet *f = t->probe.fleet;
    struct gw_feed *x = &t->feed;
    x->call = NULL;
    if (status < 0) {
        try_later(t, "lost");
    } else if (x->status != 200) {
        try_later(t, "refused");
    } else if (x->broken || !x->has_head || x->n_line > 0) {
        try_later(t, "malformed");
    } else {
        x->at = x->next;
        x->backoff_ms = BACKOFF_MIN_MS;
        x->told = false;
        http_timer_set(&x->timer, POLL_GAP_MS + POLL_GAP_EACH_MS * f->n_feeds);
    }
}

static void on_feed_timer(void *arg)
{
    static const struct http_call_ops ops = {on_feed_head, on_feed_body, on_feed_end};
    struct gw_target *t = arg;
    struct gw_feed *x = &t->feed;
    struct buf headers = BUF_INIT;
    char target[160];
    x->status = 0;
    x->has_head = x->broken = false;
    x->n_line = 0;
    (void)snprintf(target, sizeof target,
                   "/admin/residents?epoch=%016llx&since=%llu&load=%llu&wait_ms=%d",
                   (unsigned long long)x->at.epoch, (unsigned long long)x->at.seq,
                   (unsigned long long)x->at.load_seq, POLL_WAIT_MS);
    int r = gw_fleet_door(t->probe.fleet, t->index, &headers);
    const struct http_request q = {
        .method = "GET", .target = target, .headers = buf_cstr(&headers)};
    if (r == 0) r = http_call_start(x->client, &q, &ops, t, &x->call);
    if (headers.data) explicit_bzero(headers.data, headers.cap);
    buf_fini(&headers);
    if (r == 0) return;
    x->call = NULL;
    try_later(t, "unreachable");
}

void gw_feed_start(struct gw_target *t)
{
    static const struct http_client_opts limits = {.conns_max = 1,
                                                   .connect_timeout_ms = 2000,
                                                   .first_byte_timeout_ms = 2 * POLL_WAIT_MS,
                                                   .idle_timeout_ms = 10000};
    struct gw_fleet *f = t->probe.fleet;
    struct gw_feed *x = &t->feed;
    unsigned generation;
    if (!t->worker || !f->directory || x->client) return;
    x->backoff_ms = BACKOFF_MIN_MS;
    int r = fleet_client_make(f, t, f->loop, &limits, &x->client, &generation);
    if (r < 0) {
        log_event(LOG_WARN, "residents.watch", "worker=%u error=%s", t->index, err_name(r));
        return;
    }
    f->n_feeds++;
    http_timer_init(&x->timer, f->loop, on_feed_timer, t);
    http_timer_set(&x->timer, 0);
}

void gw_feed_stop(struct gw_target *t)
{
    struct gw_fleet *f = t->probe.fleet;
    struct gw_feed *x = &t->feed;
    if (!x->client) return;
    if (x->call) http_call_cancel(x->call);
    http_client_destroy(x->client);
    http_timer_fini(&x->timer);
    *x = (struct gw_feed){0};
    f->n_feeds--;
    tell_load(t, NULL);
    gw_directory_forget(f->directory, t->index);
}
