/* The directory has one node per text and holder, all of them in one array: hash chains by text, a
 * list by age. To forget a target is to count its generation up: its nodes are then as good as
 * free, and become so when they are met or have grown oldest. */
#include "gateway/fleet/residency.h"

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/net/http.h"
#include "gateway/fleet/fleet_int.h"
#include "gateway/process/stats.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NODES_MIN = 64,
    POLL_WAIT_MS = 20000, /* the worker answers by then, with news or without */
    POLL_GAP_MS = 50,     /* chosen: a busy worker's news come in bundles */
    POLL_GAP_EACH_MS = 2, /* chosen: and many workers' do not fill the loop */
    BACKOFF_MIN_MS = 500,
    BACKOFF_MAX_MS = 30000,
    NOT_OFFERED_MS = 60000,
};
#define NONE UINT32_MAX

/* ---- the directory ---- */

struct node {
    uint64_t text_id;
    uint32_t chain;        /* next of its bucket */
    uint32_t older, newer; /* by age */
    uint32_t tokens, generation;
    uint16_t target;
    float worth; /* 1 - cost */
};
struct gw_directory {
    pthread_mutex_t m;
    struct node *node;
    uint32_t *bucket;
    uint32_t n_nodes, mask, n_fresh; /* n_fresh: nodes that were never used stand behind it */
    uint32_t newest, oldest, free;   /* free: linked by `chain` */
    uint32_t generation[GW_TARGETS_MAX];
    size_t n_of[GW_TARGETS_MAX], n;
};

static bool stale(const struct gw_directory *d, const struct node *x)
{
    return x->generation != d->generation[x->target];
}

static uint32_t *text_bucket(struct gw_directory *d, uint64_t text_id)
{
    return &d->bucket[(text_id ^ text_id >> 32) & d->mask];
}

static void age_unlink(struct gw_directory *d, uint32_t i)
{
    struct node *x = &d->node[i];
    if (x->newer == NONE)
        d->newest = x->older;
    else
        d->node[x->newer].older = x->older;
    if (x->older == NONE)
        d->oldest = x->newer;
    else
        d->node[x->older].newer = x->newer;
}

static void age_newest(struct gw_directory *d, uint32_t i)
{
    struct node *x = &d->node[i];
    x->newer = NONE;
    x->older = d->newest;
    if (d->newest != NONE) d->node[d->newest].newer = i;
    d->newest = i;
    if (d->oldest == NONE) d->oldest = i;
}

static void seen(struct gw_directory *d, uint32_t i)
{
    if (d->newest == i) return;
    age_unlink(d, i);
    age_newest(d, i);
}

static void count_off(struct gw_directory *d, const struct node *x)
{
    if (stale(d, x)) return; /* when its target was forgotten */
    d->n_of[x->target]--;
    d->n--;
}

/* *at: the link that leads to the node. */
static void node_free(struct gw_directory *d, uint32_t *at)
{
    uint32_t i = *at;
    struct node *x = &d->node[i];
    *at = x->chain;
    count_off(d, x);
    age_unlink(d, i);
    x->chain = d->free;
    d->free = i;
}

static void free_oldest(struct gw_directory *d)
{
    uint32_t i = d->oldest, *at = text_bucket(d, d->node[i].text_id);
    while (*at != i)
        at = &d->node[*at].chain;
    node_free(d, at);
}

/* The link that leads to the target's node of the text, or to NONE at the end of its bucket. */
static uint32_t *find_holder(struct gw_directory *d, unsigned target, uint64_t text_id)
{
    uint32_t *at = text_bucket(d, text_id);
    while (*at != NONE) {
        const struct node *x = &d->node[*at];
        if (stale(d, x))
            node_free(d, at);
        else if (x->text_id == text_id && x->target == target)
            return at;
        else
            at = &d->node[*at].chain;
    }
    return at;
}

int gw_directory_create(size_t budget_bytes, struct gw_directory **ret)
{
    size_t n = budget_bytes / (sizeof(struct node) + 2 * sizeof(uint32_t)), n_buckets = 1;
    struct gw_directory *d = mem_zalloc(sizeof *d);
    if (!d) return -ENOMEM;
    n = n < NODES_MIN ? NODES_MIN : n > NONE / 2 ? NONE / 2 : n;
    while (2 * n_buckets <= n)
        n_buckets *= 2;
    d->n_nodes = (uint32_t)n;
    d->mask = (uint32_t)n_buckets - 1;
    d->newest = d->oldest = d->free = NONE;
    d->node = mem_alloc(n * sizeof *d->node);
    d->bucket = mem_alloc(n_buckets * sizeof *d->bucket);
    (void)pthread_mutex_init(&d->m, NULL);
    if (!d->node || !d->bucket) {
        gw_directory_destroy(d);
        return -ENOMEM;
    }
    for (size_t i = 0; i < n_buckets; i++)
        d->bucket[i] = NONE;
    *ret = d;
    return 0;
}

void gw_directory_destroy(struct gw_directory *d)
{
    if (!d) return;
    (void)pthread_mutex_destroy(&d->m);
    mem_free(d->node);
    mem_free(d->bucket);
    mem_free(d);
}

static uint32_t node_take(struct gw_directory *d)
{
    if (d->free == NONE && d->n_fresh < d->n_nodes) return d->n_fresh++;
    if (d->free == NONE) free_oldest(d);
    uint32_t i = d->free;
    d->free = d->node[i].chain;
    return i;
}

int gw_directory_put(struct gw_directory *d, unsigned target, uint64_t text_id, uint32_t tokens,
                     double cost)
{
    if (target >= GW_TARGETS_MAX) return -ERANGE;
    float worth = cost >= 0 && cost <= 1 ? (float)(1 - cost) : cost < 0 ? 1 : 0;
    (void)pthread_mutex_lock(&d->m);
    uint32_t i = *find_holder(d, target, text_id);
    if (i == NONE) {
        i = node_take(d);
        uint32_t *head = text_bucket(d, text_id);
        d->node[i] = (struct node){.text_id = text_id,
                                   .chain = *head,
                                   .generation = d->generation[target],
                                   .target = (uint16_t)target};
        *head = i;
        age_newest(d, i);
        d->n_of[target]++;
        d->n++;
    }
    d->node[i].tokens = tokens;
    d->node[i].worth = worth;
    seen(d, i);
    (void)pthread_mutex_unlock(&d->m);
    return 0;
}

void gw_directory_drop(struct gw_directory *d, unsigned target, uint64_t text_id)
{
    if (target >= GW_TARGETS_MAX) return;
    (void)pthread_mutex_lock(&d->m);
    uint32_t *at = find_holder(d, target, text_id);
    if (*at != NONE) node_free(d, at);
    (void)pthread_mutex_unlock(&d->m);
}

void gw_directory_forget(struct gw_directory *d, unsigned target)
{
    if (target >= GW_TARGETS_MAX) return;
    (void)pthread_mutex_lock(&d->m);
    d->generation[target]++;
    d->n -= d->n_of[target];
    d->n_of[target] = 0;
    (void)pthread_mutex_unlock(&d->m);
}

void gw_directory_resident(struct gw_directory *d, const uint64_t *text_id, size_t n_texts,
                           uint64_t *ret_tokens, size_t n_targets)
{
    for (size_t i = 0; i < n_targets; i++)
        ret_tokens[i] = 0;
    (void)pthread_mutex_lock(&d->m);
    for (size_t k = 0; k < n_texts && d->n > 0; k++) {
        for (uint32_t i = *text_bucket(d, text_id[k]); i != NONE; i = d->node[i].chain) {
            const struct node *x = &d->node[i];
            if (x->text_id != text_id[k] || x->target >= n_targets || stale(d, x)) continue;
            ret_tokens[x->target] += (uint64_t)((double)x->tokens * (double)x->worth);
            seen(d, i);
        }
    }
    (void)pthread_mutex_unlock(&d->m);
}

size_t gw_directory_count(struct gw_directory *d)
{
    (void)pthread_mutex_lock(&d->m);
    size_t n = d->n;
    (void)pthread_mutex_unlock(&d->m);
    return n;
}

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
    http_timer_set(x->timer, x->status == 404 ? NOT_OFFERED_MS : x->backoff_ms);
    x->backoff_ms = x->backoff_ms * 2 > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : x->backoff_ms * 2;
}

static void on_feed_end(void *ctx, int status)
{
    struct gw_target *t = ctx;
    struct gw_fleet *f = t->probe.fleet;
    struct gw_feed *x = &t->feed;
    x->call = NULL;
    gw_stats_set(GW_M_DIRECTORY, (double)gw_directory_count(f->directory));
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
        http_timer_set(x->timer, POLL_GAP_MS + POLL_GAP_EACH_MS * f->n_feeds);
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
    if (!t->worker || !f->directory || x->timer) return;
    x->backoff_ms = BACKOFF_MIN_MS;
    int r = http_timer_create(f->loop, on_feed_timer, t, &x->timer);
    if (r == 0) r = fleet_client_make(f, t, f->loop, &limits, &x->client, &generation);
    if (r == 0) {
        f->n_feeds++;
        http_timer_set(x->timer, 0);
        return;
    }
    http_timer_destroy(x->timer);
    x->timer = NULL;
    log_event(LOG_WARN, "residents.watch", "worker=%u error=%s", t->index, err_name(r));
}

void gw_feed_stop(struct gw_target *t)
{
    struct gw_fleet *f = t->probe.fleet;
    struct gw_feed *x = &t->feed;
    if (!x->timer) return;
    if (x->call) http_call_cancel(x->call);
    http_client_destroy(x->client);
    http_timer_destroy(x->timer);
    *x = (struct gw_feed){0};
    f->n_feeds--;
    tell_load(t, NULL);
    gw_directory_forget(f->directory, t->index);
    gw_stats_set(GW_M_DIRECTORY, (double)gw_directory_count(f->directory));
}
