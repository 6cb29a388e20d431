/* The public side: request in, route, key, answer. Routes are a table; what a worker must answer
 * goes to relay.c, everything else is answered here from memory. */
#include "gateway/front/front.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/otlp/otlp.h"
#include "gateway/fleet/fleet.h"
#include "gateway/fleet/view.h"
#include "gateway/front/cors.h"
#include "gateway/front/keys.h"
#include "gateway/front/openapi.h"
#include "gateway/front/reply.h"
#include "gateway/front/ui.h"
#include "gateway/process/config.h"
#include "gateway/process/gather.h"
#include "gateway/process/server.h"
#include "gateway/process/watch.h"
#include "gateway/request/merge.h"
#include "gateway/request/relay.h"
#include "gateway/request/request.h"
#include "gateway/request/spans.h"
#include "gateway/translate/store.h"

#include <string.h>

/* ---- routes answered from memory ---- */

static void answer_health(struct gw_req *q)
{
    struct buf b = BUF_INIT;
    (void)buf_addf(
        &b, "{\"status\":\"ok\",\"ready\":%s}",
        gw_fleet_n_ready(q->loop->server->fleet) && !q->loop->server->draining ? "true" : "false");
    gw_answer_json(q, 200, &b);
}

static void answer_ready(struct gw_req *q)
{
    struct gw_server *g = q->loop->server;
    struct gw_fleet_count n = gw_fleet_count_kinds(g->fleet);
    struct buf b = BUF_INIT;
    if (g->draining) {
        gw_answer_error(q, GW_E_DRAINING, NULL, "The server is shutting down.");
    } else if (n.workers_ready + n.upstreams_ready == 0) {
        bool upstreams = n.upstreams > 0 && n.workers == 0;
        gw_answer_no_backend(q, upstreams ? GW_E_UNAVAILABLE : GW_E_LOADING, "is ready yet");
    } else {
        (void)buf_adds(&b, "{\"status\":\"ready\"");
        if (n.workers) (void)buf_addf(&b, ",\"workers\":%u", n.workers_ready);
        if (n.upstreams) (void)buf_addf(&b, ",\"upstreams\":%u", n.upstreams_ready);
        (void)buf_addc(&b, '}');
        gw_answer_json(q, 200, &b);
    }
}

static void answer_version(struct gw_req *q)
{
    struct buf b = BUF_INIT;
    (void)buf_adds(&b, "{\"name\":\"kvblend\",\"version\":\"" KV_VERSION "\"}");
    gw_answer_json(q, 200, &b);
}

static void models_unknown(struct gw_req *q, bool hopeful)
{
    if (hopeful)
        gw_answer_error(q, GW_E_LOADING, NULL, "The model is being loaded. Please try again soon.");
    else
        gw_answer_no_backend(q, GW_E_UPSTREAM, "can be reached");
}

static void answer_models(struct gw_req *q)
{
    struct gw_fleet *f = q->loop->server->fleet;
    const struct gw_fleet_count n = gw_fleet_count_kinds(f);
    struct buf b = BUF_INIT;
    if (n.workers_ready + n.upstreams_ready == 0 && !n.lists) {
        models_unknown(q, n.hopeful);
        return;
    }
    (void)gw_fleet_list_models(f, q->key, &b);
    gw_answer_json(q, 200, &b);
}

static void answer_model(struct gw_req *q)
{
    struct gw_fleet *f = q->loop->server->fleet;
    struct buf b = BUF_INIT, id = BUF_INIT;
    int r = buf_adds(&id, q->rest);
    while (id.len > 1 && id.data[id.len - 1] == '/')
        id.len--;
    const char *model = r == 0 ? buf_cstr(&id) : NULL;
    if (!model)
        gw_answer_no_memory(q);
    else if ((!q->key || gw_key_allows(q->key, model)) && gw_fleet_model(f, model, &b) == 0)
        gw_answer_json(q, 200, &b);
    else if (gw_fleet_serves(f, model) & GW_SERVES_UNKNOWN)
        models_unknown(q, gw_fleet_count_kinds(f).hopeful);
    else
        gw_answer_error(q, GW_E_UNKNOWN_MODEL, "model", "The model `%s` does not exist.", model);
    buf_fini(&id);
}

/* GET and DELETE of a response that this gateway keeps. */
static void answer_stored(struct gw_req *q)
{
    struct gw_store *store = q->loop->server->store;
    bool drop = strcmp(q->http->msg.method, "DELETE") == 0;
    char owner[GW_STORE_OWNER_BYTES];
    struct buf b = BUF_INIT;
    int r = !gw_req_owner(q, owner) ? 0
            : drop                  ? gw_store_drop(store, owner, q->rest)
                                    : gw_store_get(store, owner, q->rest, NULL, &b);
    if (r == 1 && drop)
        (void)buf_addf(&b, "{\"id\":\"%s\",\"object\":\"response\",\"deleted\":true}", q->rest);
    if (r != 0)
        gw_answer_json(q, 200, &b); /* or out of memory */
    else
        gw_answer_error(q, GW_E_NO_RESPONSE, NULL, "No response `%.64s` is stored for this key.",
                        q->rest);
}

/* In the form that all pages have; a worker of another version may know the text format alone. */
static int merge_page(struct gw_merge *m, int worker, const struct buf *page, bool open)
{
    const size_t end = strlen(METRIC_OPEN_END);
    struct buf b = BUF_INIT;
    const bool is_open =
        page->len >= end && memcmp(page->data + page->len - end, METRIC_OPEN_END, end) == 0;
    int r = open && !is_open ? metric_open(page->data, page->len, &b) : 0;
    const struct buf *p = open && !is_open ? &b : page;
    if (r == 0) r = gw_merge_page(m, worker, p->data, p->len);
    buf_fini(&b);
    return r;
}

static void metrics_gathered(struct gw_req *q, const struct gw_page *pages, size_t n)
{
    const bool open = gw_gather_open(q);
    struct buf own = BUF_INIT, all = BUF_INIT;
    struct gw_merge m = {0};
    struct http_bounds_view bounds = http_bounds_view(q->loop->server->bounds);
    gw_stats_set(GW_M_BODY_BYTES, (double)bounds.body_bytes);
    gw_stats_set(GW_M_EVICTED, (double)bounds.n_evicted);
    gw_stats_set(GW_M_WAITING, gw_admit_view(&q->loop->server->admit).n_waiting);
    int r = gw_fleet_metrics(q->loop->server->fleet, &own);
    if (r == 0) r = metric_process(&own);
    if (r == 0) r = metric_render(&own);
    if (r == 0) r = gw_admission_metrics(&q->loop->server->admit, q->settings->keys, &own);
    if (r == 0) r = merge_page(&m, -1, &own, open);
    for (size_t i = 0; r == 0 && i < n; i++)
        if (pages[i].status == 200) r = merge_page(&m, (int)pages[i].index, &pages[i].body, open);
    if (r == 0) r = gw_merge_render(&m, &all);
    if (r == 0 && open) r = buf_adds(&all, METRIC_OPEN_END);
    if (r == 0)
        gw_answer_text(q, 200, open ? METRIC_OPEN_TYPE : METRIC_TEXT_TYPE, &all);
    else
        gw_answer_no_memory(q);
    gw_merge_fini(&m);
    buf_fini(&own);
    buf_fini(&all);
}

/* Routes of other backends that generate or compute and keep nothing: safe to repeat. */
enum {
    COMPLETION = GW_R_JSON | GW_R_ADMIT | GW_R_DONE | GW_R_REPEAT,
    PASSED = GW_R_OPAQUE | GW_R_UPSTREAM | GW_R_ADMIT,
    COMPUTED = PASSED | GW_R_REPEAT,
    EMBEDDINGS = (COMPUTED & ~GW_R_UPSTREAM) | GW_R_VECTORS, /* own workers give them, too */
    RANKED = GW_R_OPAQUE | GW_R_ADMIT | GW_R_DETECT | GW_R_RANKS | GW_R_REPEAT,
};

/* Dialects of chat, to upstreams that say that they speak them. */
static const struct gw_route spoken_responses = {
    "/responses", "POST", "/v1/responses", NULL, PASSED | GW_R_SPOKEN, NULL, GW_RESPONSES, NULL};
static const struct gw_route spoken_messages = {
    "/messages", "POST", "/v1/messages", NULL, COMPUTED | GW_R_SPOKEN, NULL, GW_MESSAGES, NULL};
static const struct gw_route spoken_count = {"/messages/count_tokens",
                                             "POST",
                                             "/v1/messages/count_tokens",
                                             NULL,
                                             COMPUTED | GW_R_SPOKEN,
                                             NULL,
                                             GW_MESSAGES,
                                             NULL};

static const struct gw_route public_routes[] = {
    {"/chat/completions", "POST", "/v1/chat/completions", NULL, COMPLETION | GW_R_DETECT},
    {"/completions", "POST", "/v1/completions", NULL, COMPLETION | GW_R_DETECT},
    {"/responses", "POST", "/v1/chat/completions", NULL, COMPLETION | GW_R_DETECT, NULL,
     GW_RESPONSES, &spoken_responses},
    {"/responses/", "GET, DELETE", NULL, answer_stored, GW_R_REST, NULL, GW_RESPONSES, NULL},
    {"/messages", "POST", "/v1/chat/completions", NULL, COMPLETION | GW_R_DETECT, NULL, GW_MESSAGES,
     &spoken_messages},
    {"/messages/count_tokens", "POST", "/tokenize", NULL, GW_R_JSON | GW_R_REPEAT | GW_R_COUNT,
     NULL, GW_MESSAGES, &spoken_count},
    {"/embeddings", "POST", "/v1/embeddings", NULL, EMBEDDINGS},
    {"/rerank", "POST", "/v1/rerank", NULL, RANKED},
    {"/v2/rerank", "POST", "/v1/rerank", NULL, RANKED}, /* as Cohere's client names it */
    {"/score", "POST", "/v1/score", NULL, RANKED},
    {"/models", "GET", NULL, answer_models, 0},
    {"/models/", "GET", NULL, answer_model, GW_R_REST},
    {"/tokenize", "POST", "/tokenize", NULL, GW_R_JSON | GW_R_REPEAT},
    {"/detokenize", "POST", "/detokenize", NULL, GW_R_JSON | GW_R_REPEAT},
    {"/segments", "POST", "/v1/segments", NULL, GW_R_JSON | GW_R_WORKER | GW_R_REPEAT},
    {"/segments/", "GET, DELETE", "/v1/segments/", gw_order, GW_R_REST | GW_R_WORKER | GW_R_REPEAT,
     gw_orders_gathered},
    {"/health", "GET", NULL, answer_health, GW_R_OPEN},
    {"/ready", "GET", NULL, answer_ready, GW_R_OPEN},
    {"/metrics", "GET", NULL, gw_gather, GW_R_OPEN | GW_R_METRICS, metrics_gathered},
    {"/version", "GET", NULL, answer_version, GW_R_OPEN},
    {"/ping", "GET", NULL, answer_health, GW_R_OPEN},
    {"/openapi.json", "GET", NULL, gw_openapi_answer, GW_R_OPEN},
    /* What upstreams compute; their key opens nothing else to clients. */
    {"/classify", "POST", "/v1/classify", NULL, COMPUTED},
    {"/pooling", "POST", "/v1/pooling", NULL, COMPUTED},
    {"/moderations", "POST", "/v1/moderations", NULL, COMPUTED},
    {"/images/generations", "POST", "/v1/images/generations", NULL, PASSED},
    {"/images/edits", "POST", "/v1/images/edits", NULL, PASSED},
    {"/images/variations", "POST", "/v1/images/variations", NULL, PASSED},
    {"/audio/speech", "POST", "/v1/audio/speech", NULL, PASSED},
    {"/audio/transcriptions", "POST", "/v1/audio/transcriptions", NULL, PASSED},
    {"/audio/translations", "POST", "/v1/audio/translations", NULL, PASSED},
};
/* Whatever else a client asks for below /v1, where an upstream's `paths` let it. */
static const struct gw_route opened = {"/", "GET, POST, PUT, PATCH, DELETE, OPTIONS", "/v1/", NULL,
                                       PASSED | GW_R_OPENED};
enum { N_PUBLIC = sizeof public_routes / sizeof public_routes[0] };

/* ---- routing ---- */

static const struct gw_route *find_route(const struct gw_route *table, size_t n, const char *path,
                                         const char **ret_rest)
{
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    for (size_t i = 0; i < n; i++) {
        const char *p = table[i].path;
        size_t plen = strlen(p);
        bool rest = table[i].props & GW_R_REST;
        if (rest ? len <= plen : len != plen) continue;
        if (strncmp(path, p, plen) != 0) continue;
        *ret_rest = path + plen;
        return &table[i];
    }
    return NULL;
}

static bool method_allowed(const char *methods, const char *method)
{
    if (strcmp(method, "HEAD") == 0) method = "GET"; /* the same answer, without its body */
    size_t len = strlen(method);
    for (const char *p = methods; *p;) {
        size_t n = strcspn(p, ", ");
        if (n == len && strncmp(p, method, n) == 0) return true;
        p += n;
        p += strspn(p, ", ");
    }
    return false;
}

/* A path for others to read must not lead out of its place, however they read it: nothing in it is
 * escaped twice, a parameter (';') or a separator of other systems. Identifiers of ours are plain,
 * so that nothing needs escaping. */
static bool path_ok(const struct gw_req *q)
{
    for (const char *p = q->http->msg.path; (p = strchr(p, '/')); p++) {
        size_t n = strcspn(p + 1, "/");
        if ((n == 1 && p[1] == '.') || (n == 2 && p[1] == '.' && p[2] == '.')) return false;
    }
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/";
    const char *opened_path = q->http->msg.path;
    if (q->route->props & GW_R_OPENED) return !opened_path[strcspn(opened_path, "%;\\")];
    return !(q->route->props & GW_R_REST) || q->rest[strspn(q->rest, plain)] == '\0';
}

static bool key_ok(struct gw_req *q)
{
    const struct http_head *h = &q->http->msg.head;
    q->key = gw_keys_find(q->settings->keys, http_header_find(h, "authorization"),
                          http_header_find(h, "x-api-key"));
    return q->key != NULL;
}

/* A page in an operator's browser must not reach through it: neither name nor origin are borrowed.
 * A unix socket is asked by no browser, unless something leads to it, such as ssh -L; tools name
 * there what host they like. */
static bool origin_ok(struct gw_req *q, bool private)
{
    const struct http_head *h = &q->http->msg.head;
    const struct gw_config *c = gw_config_of(q);
    const char *host = http_header_find(h, "host"), *origin = http_header_find(h, "origin"),
               *site = http_header_find(h, "sec-fetch-site");
    if (private && !origin && !site) return true;
    if (gw_cors_host_is_ours(host, c->admin_hosts.v, c->admin_hosts.n) &&
        (!origin || gw_cors_is_own(origin, host)) &&
        (!site || strcmp(site, "same-origin") == 0 || strcmp(site, "none") == 0))
        return true;
    gw_answer_error(q, GW_E_FOREIGN, NULL,
                    "The admin API takes no request of another origin, nor by a name that "
                    "admin.hosts does not have.");
    return false;
}

/* Where more than a file's mode must keep strangers out. */
static bool admin_key_ok(struct gw_req *q)
{
    const struct http_head *h = &q->http->msg.head;
    struct gw_keys *keys = q->settings->admin_keys;
    if (gw_keys_count(keys) > 0 &&
        gw_keys_find(keys, http_header_find(h, "authorization"), http_header_find(h, "x-api-key")))
        return true;
    gw_answer_error(
        q, GW_E_INVALID_KEY, NULL,
        "Incorrect admin key. Send one of admin.keys as \"Authorization: Bearer KEY\".");
    return false;
}

/* Before the key: browsers send none with it. */
static bool preflight(struct gw_req *q)
{
    const struct http_head *h = &q->http->msg.head;
    const struct gw_strs *origins = &gw_config_of(q)->cors_origins;
    struct buf headers = BUF_INIT;
    if (!gw_cors_is_preflight(origins, q->http->msg.method, h)) return false;
    (void)http_header_add(&headers, "x-request-id", q->id);
    (void)gw_cors_preflight(origins, h, q->route->methods, &headers);
    q->stage = GW_ANSWERED;
    q->status = 204;
    (void)http_reply(q->http, 204, NULL, buf_cstr(&headers), NULL, 0);
    buf_fini(&headers);
    return true;
}

static bool closing(struct gw_req *q)
{
    if (q->loop->accepting || q->route->answer || (q->route->props & GW_R_ADMIN)) return false;
    gw_relay_cut(q, GW_E_DRAINING, "The server is shutting down.");
    return true;
}

enum asked_for { NO_KEY, CLIENT_KEY, ADMIN_KEY };

/* By its head alone, before anything of a body is taken: a request that is turned away costs
 * nothing. */
static void judge_head(struct gw_req *q, const struct gw_route *route, enum asked_for key)
{
    const char *method = q->http->msg.method;
    q->route = route;
    if (!route || !path_ok(q)) {
        gw_answer_error(q, GW_E_UNKNOWN_URL, NULL, "Invalid URL (%s %.200s)", method,
                        q->http->msg.path);
        return;
    }
    if (q->http->crowded && !(route->props & GW_R_OPEN)) {
        gw_answer_error(q, GW_E_CONNECTIONS, NULL,
                        "There are too many connections, from this address or from all.");
        return;
    }
    if (preflight(q)) return;
    if (key == CLIENT_KEY && (route->props & GW_R_METRICS) && !gw_config_of(q)->metrics_public) {
        gw_answer_error(q, GW_E_NOT_PUBLIC, NULL,
                        "Metrics are served on the admin address (here, too: metrics.public).");
        return;
    }
    bool open = (route->props & GW_R_OPEN) && !(key == ADMIN_KEY && (route->props & GW_R_METRICS));
    if (key != CLIENT_KEY && !open && !origin_ok(q, key == NO_KEY)) return;
    if (key == ADMIN_KEY && !open && !admin_key_ok(q)) return;
    if (key == CLIENT_KEY && !open && !key_ok(q)) {
        gw_answer_error(q, GW_E_INVALID_KEY, NULL,
                        "Incorrect API key provided. Send it as \"Authorization: Bearer KEY\".");
        return;
    }
    if (!method_allowed(q->route->methods, method)) {
        gw_answer_error(q, GW_E_METHOD, NULL, "Not allowed to %s on %.200s.", method,
                        q->http->msg.path);
        return;
    }
    if ((route->props & GW_R_ADMIN) && !gw_worker_named(q)) return;
    if (gw_hop_loops(&q->http->msg.head, q->loop->server->hop))
        gw_answer_error(
            q, GW_E_LOOP, NULL,
            "This request has been here before: an upstream leads back to this server.");
    else if ((q->route->props & GW_R_OPEN) && q->http->msg.framing != HTTP_BODY_NONE)
        gw_answer_error(q, GW_E_TOO_LARGE, NULL, "%.200s takes no body.", q->http->msg.path);
    else
        (void)closing(q);
}

static struct gw_req *req_create(struct gw_loop *loop, struct http_req *r)
{
    struct gw_req *q = mem_stock_take(&loop->stock);
    if (!q) {
        (void)http_reply(r, 500, "application/json", NULL, NULL, 0); /* and that was it */
        return NULL;
    }
    memset(q, 0, offsetof(struct gw_req, scan));
    gw_scan_init(&q->scan, NULL, 0, false);
    q->loop = loop;
    q->http = r;
    q->settings = gw_server_settings(loop->server);
    q->target_index = -1;
    q->rest = "";
    q->next = loop->reqs;
    if (loop->reqs) loop->reqs->prev = q;
    loop->reqs = q;
    (void)atomic_fetch_add(&loop->server->n_reqs, 1);
    r->user = q;
    gw_id_choose(&r->msg.head, q->id);
    if (loop->server->traces)
        otlp_begin(loop->server->traces, &r->msg.head, &q->trace);
    else
        (void)traceparent_read(&r->msg.head, &q->trace);
    return q;
}

static const struct gw_route *find_public(struct gw_req *q, const char *path)
{
    bool v1 = strncmp(path, "/v1/", 4) == 0;
    const struct gw_route *t = find_route(public_routes, N_PUBLIC, v1 ? path + 3 : path, &q->rest);
    struct gw_fleet *f = q->loop->server->fleet;
    bool elsewhere = t && t->answer == answer_stored &&
                     strncmp(q->rest, GW_STORE_PREFIX, strlen(GW_STORE_PREFIX)) != 0;
    if (!t || elsewhere) {
        if (v1 && gw_fleet_opens(f, path + 4)) return &opened;
        if (!t) return NULL;
    }
    bool here = !(t->props & GW_R_UPSTREAM) || gw_fleet_serves(f, NULL) & GW_SERVES_UPSTREAM;
    return here ? t : NULL;
}

/* On the admin server an operator may also warm and ask. */
static void judge_request(struct gw_loop *loop, struct http_req *r, bool admin_server)
{
    struct gw_req *q = req_create(loop, r);
    if (!q) return;
    const char *path = r->msg.path;
    bool open = admin_server || gw_config_of(q)->admin_public;
    bool admin = open && strncmp(path, "/admin/", 7) == 0;
    /* Of a unix socket the file's mode is the key. */
    bool private = admin_server && strcmp(r->peer, "unix") == 0;
    const struct gw_route *route =
        admin ? find_route(gw_admin_routes, gw_admin_n_routes, path, &q->rest)
        : admin_server || gw_config_of(q)->ui_public ? gw_ui_route(path)
                                                     : NULL;
    judge_head(q, route || admin ? route : find_public(q, path),
               private                 ? NO_KEY
               : admin || admin_server ? ADMIN_KEY
                                       : CLIENT_KEY);
}

static void public_head(void *ctx, struct http_req *r)
{
    judge_request(ctx, r, false);
}

static void admin_head(void *ctx, struct http_req *r)
{
    judge_request(ctx, r, true);
}

static void on_request(void *ctx, struct http_req *r)
{
    struct gw_req *q = r->user;
    if (q->route->answer)
        q->route->answer(q);
    else if (!closing(q))
        gw_read_begin(q);
}

static void on_fault(void *ctx, struct http_req *r, int status, const char *why)
{
    struct gw_req *q = r->user;
    if (status == 503) gw_stats_add(GW_M_BODY_REFUSED, 1);
    gw_answer_error(q, gw_error_of_status(status), NULL, "%s", why);
}

/* ---- ends ---- */

static void log_access(const struct gw_req *q, bool aborted)
{
    if (!q->route || !(q->route->props & GW_R_OPEN))
        gw_stats_request(q->loop->server->stats, q, aborted);
    if (q->route && !(q->route->props & (GW_R_OPEN | GW_R_ADMIN))) gw_spans_put(q, aborted);
}

static void on_close(void *ctx, struct http_req *r, bool aborted)
{
    struct gw_loop *loop = ctx;
    struct gw_req *q = r->user;
    if (!q) return;
    log_access(q, aborted);
    *(q->prev ? &q->prev->next : &loop->reqs) = q->next;
    if (q->next) q->next->prev = q->prev;
    if (q->asking.gather) gw_gather_cancel(q->asking.gather);
    gw_watch_close(q);
    gw_relay_close(q);
    gw_read_forget(q);
    gw_settings_unref(q->settings);
    mem_stock_give(&loop->stock, q);
    (void)atomic_fetch_sub(&loop->server->n_reqs, 1);
}

static void on_drain(void *ctx, struct http_req *r)
{
    struct gw_req *q = r->user;
    if (q && q->send.call) http_call_pause(q->send.call, false);
}

static void on_refuse(void *ctx, int status, const char *why, const struct http_head *head,
                      struct buf *ret_headers, struct buf *ret_body)
{
    struct gw_loop *loop = ctx;
    enum gw_error e = gw_error_of_status(status);
    struct gw_settings *settings = gw_server_settings(loop->server);
    struct gw_req q = {.status = status, .end = GW_END_REFUSED};
    gw_id_choose(head, q.id);
    (void)traceparent_read(head, &q.trace);
    gw_stats_request(loop->server->stats, &q, false);
    (void)http_header_add(ret_headers, "x-request-id", q.id);
    (void)gw_cors_headers(&settings->config->cors_origins, head, ret_headers);
    (void)gw_error_headers(e, ret_headers);
    (void)gw_error_body(e, why, NULL, ret_body);
    gw_settings_unref(settings);
}

const struct http_server_ops gw_front_ops = {public_head, on_fault, on_request,
                                             on_close,    on_drain, on_refuse};
const struct http_server_ops gw_admin_ops = {admin_head, on_fault, on_request,
                                             on_close,   on_drain, on_refuse};
