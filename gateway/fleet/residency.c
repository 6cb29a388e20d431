/* The directory has one node per text and holder, all of them in one array: hash chains by text, a
 * list by age. To forget a target is to count its generation up: its nodes are then as good as
 * free, and become so when they are met or have grown oldest. */
#include "gateway/fleet/residency.h"

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/net/http.h"
#include "gateway/process/stats.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NODES_MIN = 64,
    LINE_MAX_BYTES = 128,
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

/* ---- polls ---- */

struct poll { /* of one worker */
    struct gw_residency *r;
    unsigned target, backoff_ms;
    struct http_client *client;
    struct http_call *call;
    struct http_timer *timer;
    char *headers;
    uint64_t epoch, seq, load_seq; /* as of the last answer that came whole */
    /* the answer under way */
    uint64_t next_epoch, next_seq, next_load_seq;
    int status;
    bool has_head, broken, told;
    size_t n_line;
    char line[LINE_MAX_BYTES];
};
struct gw_residency {
    struct http_loop *loop;
    struct gw_directory *directory;
    gw_load_fn on_load;
    void *ctx;
    unsigned n_polls;
    struct poll *poll[GW_TARGETS_MAX];
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

static void tell_load(const struct poll *f, const struct gw_load *l)
{
    f->r->on_load(f->r->ctx, f->target, l);
}

static void take_line(struct poll *f)
{
    struct gw_directory *d = f->r->directory;
    struct gw_residency_line l;
    f->line[f->n_line] = '\0';
    f->n_line = 0;
    f->broken = f->broken || gw_residency_parse(f->line, &l) < 0 ||
                (l.kind == GW_RESIDENCY_HEAD) == f->has_head;
    if (f->broken) return;
    switch (l.kind) {
    case GW_RESIDENCY_HEAD:
        if (l.full || l.epoch != f->epoch) gw_directory_forget(d, f->target);
        f->next_load_seq = 0;
        f->has_head = true;
        f->next_epoch = l.epoch;
        f->next_seq = l.seq;
        break;
    case GW_RESIDENCY_HELD:
        (void)gw_directory_put(d, f->target, l.text_id, l.tokens, l.cost);
        break;
    case GW_RESIDENCY_GONE:
        gw_directory_drop(d, f->target, l.text_id);
        break;
    case GW_RESIDENCY_LOAD:
        f->next_load_seq = l.seq;
        tell_load(f, &l.load);
        break;
    }
}

/* ---- polling ---- */

static void on_poll_head(void *ctx, int status, const struct http_head *h)
{
    struct poll *f = ctx;
    f->status = status;
}

static void on_poll_body(void *ctx, const char *data, size_t len)
{
    struct poll *f = ctx;
    if (f->status != 200) return;
    for (size_t i = 0; i < len && !f->broken; i++) {
        if (data[i] == '\n')
            take_line(f);
        else if (f->n_line + 1 < sizeof f->line)
            f->line[f->n_line++] = data[i];
        else
            f->broken = true;
    }
}

static void try_later(struct poll *f, const char *why)
{
    /* What was told half is asked for anew, all of it. */
    f->epoch = f->seq = f->load_seq = 0;
    tell_load(f, NULL);
    if (!f->told)
        log_event(LOG_INFO, "residents.feed", "worker=%u state=%s status=%d", f->target, why,
                  f->status);
    f->told = true;
    http_timer_set(f->timer, f->status == 404 ? NOT_OFFERED_MS : f->backoff_ms);
    f->backoff_ms = f->backoff_ms * 2 > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : f->backoff_ms * 2;
}

static void on_poll_end(void *ctx, int status)
{
    struct poll *f = ctx;
    f->call = NULL;
    gw_stats_set(GW_M_DIRECTORY, (double)gw_directory_count(f->r->directory));
    if (status < 0) {
        try_later(f, "lost");
    } else if (f->status != 200) {
        try_later(f, "refused");
    } else if (f->broken || !f->has_head || f->n_line > 0) {
        try_later(f, "malformed");
    } else {
        f->epoch = f->next_epoch;
        f->seq = f->next_seq;
        f->load_seq = f->next_load_seq;
        f->backoff_ms = BACKOFF_MIN_MS;
        f->told = false;
        http_timer_set(f->timer, POLL_GAP_MS + POLL_GAP_EACH_MS * f->r->n_polls);
    }
}

static void on_poll_timer(void *arg)
{
    static const struct http_call_ops ops = {on_poll_head, on_poll_body, on_poll_end};
    struct poll *f = arg;
    char target[160];
    if (f->call) return;
    f->status = 0;
    f->has_head = f->broken = false;
    f->n_line = 0;
    (void)snprintf(target, sizeof target,
                   "/admin/residents?epoch=%016llx&since=%llu&load=%llu&wait_ms=%d",
                   (unsigned long long)f->epoch, (unsigned long long)f->seq,
                   (unsigned long long)f->load_seq, POLL_WAIT_MS);
    const struct http_request q = {.method = "GET", .target = target, .headers = f->headers};
    if (http_call_start(f->client, &q, &ops, f, &f->call) < 0) {
        f->call = NULL;
        try_later(f, "unreachable");
    }
}

/* ---- life ---- */

int gw_residency_create(struct http_loop *loop, struct gw_directory *d, gw_load_fn on_load,
                        void *ctx, struct gw_residency **ret)
{
    struct gw_residency *r = mem_zalloc(sizeof *r);
    if (!r) return -ENOMEM;
    r->loop = loop;
    r->directory = d;
    r->on_load = on_load;
    r->ctx = ctx;
    *ret = r;
    return 0;
}

static void poll_free(struct poll *f)
{
    if (!f) return;
    if (f->call) http_call_cancel(f->call);
    if (f->timer) http_timer_destroy(f->timer);
    if (f->client) http_client_destroy(f->client);
    if (f->headers) explicit_bzero(f->headers, strlen(f->headers));
    mem_free(f->headers);
    mem_free(f);
}

int gw_residency_watch(struct gw_residency *r, unsigned target, const char *address,
                       const char *host, struct http_tls *tls, const char *headers)
{
    if (target >= GW_TARGETS_MAX) return -ERANGE;
    if (r->poll[target]) return 0;
    struct http_client_opts o = {.address = address,
                                 .host = host,
                                 .tls = tls,
                                 .conns_max = 1,
                                 .connect_timeout_ms = 2000,
                                 .first_byte_timeout_ms = 2 * POLL_WAIT_MS,
                                 .idle_timeout_ms = 10000};
    struct poll *f = mem_zalloc(sizeof *f);
    if (!f) return -ENOMEM;
    f->r = r;
    f->target = target;
    f->backoff_ms = BACKOFF_MIN_MS;
    f->headers = mem_strdup(headers);
    int rc = f->headers ? http_client_create(r->loop, &o, &f->client) : -ENOMEM;
    if (rc == 0) rc = http_timer_create(r->loop, on_poll_timer, f, &f->timer);
    if (rc < 0) {
        poll_free(f);
        return rc;
    }
    r->poll[target] = f;
    r->n_polls++;
    http_timer_set(f->timer, 0);
    return 0;
}

void gw_residency_forget(struct gw_residency *r, unsigned target)
{
    if (target >= GW_TARGETS_MAX || !r->poll[target]) return;
    tell_load(r->poll[target], NULL);
    poll_free(r->poll[target]);
    r->poll[target] = NULL;
    r->n_polls--;
    gw_directory_forget(r->directory, target);
    gw_stats_set(GW_M_DIRECTORY, (double)gw_directory_count(r->directory));
}

void gw_residency_destroy(struct gw_residency *r)
{
    if (!r) return;
    for (unsigned i = 0; i < GW_TARGETS_MAX; i++)
        poll_free(r->poll[i]);
    mem_free(r);
}
