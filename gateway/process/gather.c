/* The same page of every ready worker, or the same order to each: asked at once, answered together,
 * with a time limit, so that one hanging worker cannot hold the page back. */
#include "gateway/process/gather.h"

#include "base/mem.h"
#include "base/metric.h"
#include "gateway/fleet/fleet.h"
#include "gateway/fleet/lease.h"
#include "gateway/fleet/view.h"
#include "gateway/front/reply.h"
#include "gateway/process/config.h"
#include "gateway/request/request.h"

#include <string.h>

enum {
    PAGE_BYTES_MAX = 4 << 20,
    METRICS_MS = 1000, /* whoever scrapes has little patience */
    OTHERS_MS = 2000,
};

struct gw_gather {
    struct gw_req *q;
    struct http_timer timer;
    size_t n, n_open;
    struct gw_page *page;
};

void gw_gather_cancel(struct gw_gather *g)
{
    if (!g) return;
    for (size_t i = 0; i < g->n; i++) {
        if (g->page[i].call) http_call_cancel(g->page[i].call);
        buf_fini(&g->page[i].body);
    }
    http_timer_fini(&g->timer);
    mem_free(g->page);
    mem_free(g);
}

json_t *gw_page_read(const struct gw_page *p)
{
    return json_loadb(p->body.data ? p->body.data : "", p->body.len, 0, NULL);
}

static int append(const char *text, size_t len, void *ctx)
{
    return buf_add(ctx, text, len);
}

void gw_answer_value(struct gw_req *q, int status, json_t *answer)
{
    struct buf b = BUF_INIT;
    /* 15 digits: every number as the worker wrote it. */
    int r = answer ? json_dump_callback(answer, append, &b, JSON_COMPACT | JSON_REAL_PRECISION(15))
                   : -1;
    json_decref(answer);
    if (r == 0) {
        gw_answer_json(q, status, &b);
        return;
    }
    buf_fini(&b);
    gw_answer_no_memory(q);
}

/* What says most: done, refused, not known here, no answer. */
static int worth_of(const struct gw_page *page)
{
    if (page->body.len == 0 || page->status == 0) return 0;
    return page->status == 200 ? 3 : page->status == 404 ? 1 : 2;
}

void gw_first_gathered(struct gw_req *q, const struct gw_page *pages, size_t n)
{
    const struct gw_page *best = NULL;
    struct buf b = BUF_INIT;
    for (size_t i = 0; i < n; i++)
        if (worth_of(&pages[i]) > (best ? worth_of(best) : 0)) best = &pages[i];
    if (!best) {
        gw_answer_error(q, GW_E_UNAVAILABLE, NULL,
                        n ? "No worker answers." : "No worker is there.");
        return;
    }
    (void)buf_add_buf(&b, &best->body);
    gw_answer_json(q, best->status, &b);
}

static void gather_finish(void *arg) /* also when the time is over */
{
    struct gw_gather *g = arg;
    g->q->asking.gather = NULL;
    g->q->route->gathered(g->q, g->page, g->n);
    gw_gather_cancel(g);
}

static void part_head(void *ctx, int status, const struct http_head *h)
{
    struct gw_page *p = ctx;
    p->status = status;
}

static void part_body(void *ctx, const char *data, size_t len)
{
    struct gw_page *p = ctx;
    if (p->body.len + len <= PAGE_BYTES_MAX) (void)buf_add(&p->body, data, len);
}

static void part_end(void *ctx, int status)
{
    struct gw_page *p = ctx;
    struct gw_gather *g = p->gather;
    p->call = NULL;
    if (status < 0) p->status = 0;
    /* Not from inside the last call's end: the timer's callback may free everything. */
    if (--g->n_open == 0) http_timer_set(&g->timer, 0);
}

static const struct http_call_ops part_ops = {part_head, part_body, part_end};

bool gw_gather_open(const struct gw_req *q)
{
    return q->route->props & GW_R_METRICS &&
           metric_wants_open(http_header_find(&q->http->msg.head, "accept"));
}

/* Metrics in the form that is asked for (exemplars are in one alone); whose records are meant,
 * which a key may settle. */
static int add_headers(const struct gw_req *q, struct buf *out)
{
    static const char *const passed[] = {"content-type", "x-kvblend-namespace"};
    const char *own = q->key ? q->key->name_space : NULL;
    int r = gw_gather_open(q) ? http_header_add(out, "Accept", METRIC_OPEN_TYPE) : 0;
    if (r == 0 && own) r = http_header_add(out, "X-KVBlend-Namespace", own);
    for (size_t i = 0; r == 0 && i < sizeof passed / sizeof *passed - (own != NULL); i++) {
        const char *v = http_header_find(&q->http->msg.head, passed[i]);
        if (v) r = http_header_add(out, passed[i], v);
    }
    return r;
}

static void ask_target(struct gw_req *q, unsigned index, const char *path, struct gw_page *p)
{
    size_t len;
    const char *method = q->http->msg.method, *body = http_req_body(q->http, &len);
    struct gw_fleet *f = q->loop->server->fleet;
    struct http_client *c = gw_fleet_client(f, index, q->loop->index, q->loop->http_loop);
    struct buf headers = BUF_INIT;
    if (c && gw_hop_header(&q->http->msg.head, q->loop->server->hop, &headers) == 0 &&
        gw_fleet_door(f, index, &headers) == 0 && add_headers(q, &headers) == 0 &&
        buf_cstr(&headers) &&
        http_call_start(
            c,
            &(struct http_request){.method = strcmp(method, "HEAD") == 0 ? "GET" : method,
                                   .target = path,
                                   .headers = headers.data,
                                   .body = body,
                                   .len = len},
            &part_ops, p, &p->call) == 0)
        p->gather->n_open++;
    if (headers.data) explicit_bzero(headers.data, headers.cap);
    buf_fini(&headers);
}

static struct gw_gather *gather_create(struct gw_req *q, size_t n_targets)
{
    struct gw_gather *g = mem_zalloc(sizeof *g);
    if (!g) return NULL;
    g->q = q;
    g->page = mem_zalloc((n_targets + 1) * sizeof *g->page);
    http_timer_init(&g->timer, q->loop->http_loop, gather_finish, g);
    if (g->page) return g;
    gw_gather_cancel(g);
    return NULL;
}

void gw_gather_path(struct gw_req *q, struct buf *path)
{
    struct gw_fleet *f = q->loop->server->fleet;
    size_t n = gw_fleet_count(f);
    struct gw_gather *g = gather_create(q, n);
    const unsigned timeout_ms = q->route->props & GW_R_METRICS ? METRICS_MS
                                : strcmp(q->http->msg.method, "GET") == 0
                                    ? OTHERS_MS
                                    : (unsigned)gw_config_of(q)->first_byte_timeout_ms;
    if (!g || !buf_cstr(path)) {
        gw_gather_cancel(g);
        buf_fini(path);
        gw_answer_no_memory(q);
        return;
    }
    for (unsigned i = 0; i < n; i++) {
        struct gw_target_view v;
        if (!gw_fleet_view(f, i, &v) || !v.worker || v.state == GW_TARGET_RETIRED) continue;
        if (q->want.worker && q->want.worker != i + 1) continue;
        g->page[g->n].index = i;
        g->page[g->n].gather = g;
        if (v.state == GW_TARGET_READY || v.state == GW_TARGET_DRAINING)
            ask_target(q, i, path->data, &g->page[g->n]);
        g->n++;
    }
    buf_fini(path);
    http_timer_set(&g->timer, g->n_open ? timeout_ms : 0);
    q->asking.gather = g;
}

void gw_gather(struct gw_req *q)
{
    const struct gw_route *route = q->route;
    struct buf path = BUF_INIT;
    const char *query = q->http->msg.query;
    (void)buf_addf(&path, "%s%s%s%s", route->target ? route->target : route->path,
                   route->props & GW_R_REST ? q->rest : "", *query ? "?" : "", query);
    gw_gather_path(q, &path);
}
