/* The routes: one table of path, method and handler. Paths count with and without /v1. */
#include "base/clock.h"
#include "base/log.h"
#include "base/metric.h"
#include "tiers/store_admin.h"
#include "worker/admin/metrics.h"
#include "worker/admin/routes.h"
#include "worker/embed/embed.h"
#include "worker/quality/guard.h"
#include "worker/request/request.h"
#include "worker/request/rerank.h"
#include "worker/worker.h"

#include <string.h>
#include <strings.h>

/* ---- small answers ---- */
/* Names of the tiers that refuse; why, the admin API says. */
static void put_refusing(struct worker *w, struct buf *b)
{
    const char *comma = "";
    buf_adds(b, ",\"tiers_refusing\":[");

    for (size_t i = 0; i < store_n_tiers(w->store); i++) {
        struct store_tier_stats s;
        store_get_tier_stats(w->store, i, &s);
        if (strcmp(wk_tier_state(&s), "refuses") != 0) continue;
        buf_addf(b, "%s\"%s\"", comma, s.name);
        comma = ",";
    }
    buf_addc(b, ']');
}

static void get_health(struct worker *w, struct wk_call *c, const char *rest)
{
    static const char *const names[] = {"loading", "ok", "draining", "failed"};
    struct buf b = BUF_INIT;
    int s = atomic_load(&w->state);

    buf_addf(&b, "{\"status\":\"%s\",\"progress\":%.3f",
             w->process.device_lost ? "device_lost" : names[s],
             atomic_load(&w->loader.progress) / 1000.0);
    if (s == WK_READY) {
        struct wk_guard_view v;
        wk_guard_get_view(w, &v);
        const char *device = kn_info(wk_device(w))->device;
        if (!w->embedder) buf_addf(&b, ",\"quality\":\"%s\"", wk_guard_state_name(&v));
        buf_adds(&b, ",\"device\":");
        buf_add_json_str(&b, device, strlen(device));
        if (!w->embedder) put_refusing(w, &b);
    }
    if (w->process.device_lost)
        buf_adds(&b, ",\"error\":\"The GPU has failed; this worker ends, to be started "
                     "anew.\"");
    buf_addc(&b, '}');
    wk_reply_buf(c, s == WK_READY ? 200 : 503, &b);
}

static void get_metrics(struct worker *w, struct wk_call *c, const char *rest)
{
    const bool open = metric_wants_open(http_header_find(&c->r->msg.head, "accept"));
    struct buf b = BUF_INIT;

    if (wk_metrics_render(w, open, &b) < 0) {
        buf_fini(&b);
        wk_reply_oom(c);
        return;
    }
    wk_reply(c, 200, open ? METRIC_OPEN_TYPE : METRIC_TEXT_TYPE, NULL, &b);
}

static void get_version(struct worker *w, struct wk_call *c, const char *rest)
{
    struct buf b = BUF_INIT;
    buf_addf(&b, "{\"version\":\"%s\",\"program\":\"kvblend-worker\"}", KV_VERSION);

    wk_reply_buf(c, 200, &b);
}

/* What its model was made for, and all that it can do. */
static const char *tasks_of(const struct worker *w)
{
    if (wk_embedder_scores(w->embedder)) return "\"task\":\"rerank\",\"tasks\":[\"rerank\"]";
    if (w->embedder) return "\"task\":\"embed\",\"tasks\":[\"embed\"]";
    if (!wk_reranker_can(w)) return "\"task\":\"generate\",\"tasks\":[\"generate\"]";
    return wk_reranker_is_meant(w) ? "\"task\":\"rerank\",\"tasks\":[\"rerank\",\"generate\"]"
                                   : "\"task\":\"generate\",\"tasks\":[\"generate\",\"rerank\"]";
}

static void put_model(struct worker *w, struct buf *b)
{
    buf_adds(b, "{\"id\":");
    buf_add_json_str(b, w->model_name, strlen(w->model_name));

    buf_addf(b, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"kvblend\",\"root\":",
             (long long)w->started_s);
    buf_add_json_str(b, w->model_base, strlen(w->model_base));
    buf_addf(b, ",\"parent\":null,\"max_model_len\":%u,%s}", w->ctx_max, tasks_of(w));
}

static void get_models(struct worker *w, struct wk_call *c, const char *rest)
{
    struct buf b = BUF_INIT;
    buf_adds(&b, "{\"object\":\"list\",\"data\":[");
    put_model(w, &b);
    buf_adds(&b, "]}");
    wk_reply_buf(c, 200, &b);
}

static void get_model(struct worker *w, struct wk_call *c, const char *rest)
{
    struct buf b = BUF_INIT, id = BUF_INIT;
    int rc = buf_adds(&id, rest);

    while (id.len > 1 && id.data[id.len - 1] == '/')
        id.len--;
    if (rc < 0 || !buf_cstr(&id)) {
        wk_reply_oom(c);
    } else if (!wk_serves_model(w, id.data)) {
        wk_refuse(c, API_MODEL_NOT_FOUND, "model", "The model '%.100s' does not exist.", id.data);
    } else {
        put_model(w, &b);
        wk_reply_buf(c, 200, &b);
    }
    buf_fini(&id);
}

/* ---- the table ---- */
/* Generating models and cross-encoders. */
static void post_pairs(struct worker *w, struct wk_call *c, const char *rest)
{
    (w->embedder ? wk_score_post : wk_rank_post)(w, c, rest);
}

/* What a worker serves that generates nothing is marked: R_EMBED by one that gives vectors alone,
 * R_PAIRS by a cross-encoder, too, R_BOTH by any. */
enum {
    R_OPEN = 1,  /* no key */
    R_EARLY = 2, /* before the model is there */
    R_REST = 4,
    R_EMBED = 8,
    R_BOTH = 16,
    R_PAIRS = 32
};
static const struct wk_route routes[] = {
    {"/chat/completions", "POST", "chat", 0, wk_gen_post},
    {"/completions", "POST", "completions", 0, wk_gen_post},
    {"/embeddings", "POST", "embeddings", R_EMBED, wk_embed_post},
    {"/models", "GET", "models", R_BOTH, get_models},
    {"/models/", "GET", "models", R_BOTH | R_REST, get_model},
    {"/tokenize", "POST", "tokenize", R_BOTH, .task = wk_tokenize},
    {"/detokenize", "POST", "detokenize", R_BOTH, .task = wk_detokenize},
    {"/rerank", "POST", "rerank", R_PAIRS, post_pairs},
    {"/v2/rerank", "POST", "rerank", R_PAIRS, post_pairs},
    {"/score", "POST", "score", R_PAIRS, post_pairs},
    {"/segments", "POST", "segments", 0, wk_warmups_post},
    {"/segments/", "GET", "segments", R_REST, wk_segment_get},
    {"/segments/", "DELETE", "segments", R_REST, wk_segment_delete},
    {"/health", "GET", "health", R_OPEN | R_EARLY | R_BOTH, get_health},
    {"/ready", "GET", "health", R_OPEN | R_EARLY | R_BOTH, get_health},
    {"/metrics", "GET", "metrics", R_OPEN | R_EARLY | R_BOTH, get_metrics},
    {"/version", "GET", "version", R_OPEN | R_EARLY | R_BOTH, get_version},
    {"/admin/status", "GET", "admin", R_EARLY | R_BOTH, wk_admin_status},
    {"/admin/now", "GET", "now", R_EARLY | R_BOTH, wk_admin_now},
    {"/admin/quality", "GET", "admin", 0, wk_admin_quality},
    {"/admin/profile", "GET", "admin", 0, wk_admin_profile},
    {"/admin/mrc", "GET", "admin", 0, wk_admin_mrc},
    {"/admin/doctor", "GET", "admin", 0, .task = wk_admin_doctor},
    {"/admin/residents", "GET", "residents", 0, wk_feed_get},
    {"/admin/events/kv", "GET", "events", 0, wk_events_get},
    {"/admin/decisions", "GET", "admin", 0, wk_admin_decisions},
    {"/admin/decisions/", "GET", "admin", R_REST, wk_admin_decisions},
    {"/admin/past", "GET", "admin", 0, wk_admin_past},
    {"/admin/heat/", "GET", "admin", R_REST, wk_admin_heat},
    {"/admin/chunks", "GET", "admin", 0, wk_admin_chunks},
    {"/admin/chunks/", "GET", "admin", R_REST, wk_admin_chunk},
    {"/admin/chunks/", "DELETE", "admin", R_REST, wk_admin_chunk},
    {"/admin/chunks/", "POST", "admin", R_REST, wk_admin_chunk_order},
    {"/admin/namespaces", "GET", "admin", 0, .task = wk_admin_namespaces},
    {"/admin/segment", "POST", "admin", 0, .task = wk_admin_segment},
    {"/admin/tiers", "GET", "admin", 0, .task = wk_admin_tiers},
    {"/admin/tiers/resize", "POST", "admin", 0, .order = wk_order_resize},
    {"/admin/tiers/policy", "POST", "admin", 0, .order = wk_order_policy},
    {"/admin/tiers/quota", "POST", "admin", 0, .order = wk_order_quota},
    {"/admin/tiers/preload", "POST", "admin", 0, .order = wk_order_preload},
    {"/admin/clear", "POST", "admin", 0, .order = wk_order_clear},
    {"/admin/verify", "POST", "admin", 0, .order = wk_order_verify},
    {"/admin/flush", "POST", "admin", 0, .order = wk_order_flush},
};

static bool path_matches(const struct wk_route *r, const char *path, const char **ret_rest)
{
    size_t n = strlen(r->path);

    *ret_rest = "";
    if (!(r->flags & R_REST)) return strcmp(path, r->path) == 0;
    if (strncmp(path, r->path, n) != 0 || !path[n]) return false;
    *ret_rest = path + n;
    return true;
}

/* Time that depends on the length of the key only. */
static bool same_secret(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    unsigned char diff = n != m;

    for (size_t i = 0; i < m; i++)
        diff |= (unsigned char)(b[i] ^ (i < n ? a[i] : 0));
    return diff == 0;
}

static bool authorised(const struct worker *w, const struct wk_call *c)
{
    const char *h;

    if (!w->o.api_key) return true;
    h = http_header_find(&c->r->msg.head, "Authorization");
    if (h && strncasecmp(h, "Bearer ", 7) == 0) h += 7;
    if (!h) h = http_header_find(&c->r->msg.head, "X-Api-Key");
    return h && same_secret(h, w->o.api_key);
}

/* Whose a request is only a gateway can say: on TCP, one that knows the key. A stranger's word is
 * refused, not ignored: a gateway that has no key must not put all its tenants into one. */
static bool names_namespace(const struct worker *w, const struct wk_call *c)
{
    const char *ns = http_header_find(&c->r->msg.head, "X-KVBlend-Namespace");

    return ns && *ns && !w->o.api_key && strcmp(c->r->peer, "unix") != 0;
}

static void refuse_key(struct wk_call *c)
{
    wk_refuse(c, API_INVALID_API_KEY, NULL,
              "Incorrect or missing API key. Send it as 'Authorization: Bearer KEY'.");
}

/* A unix socket is its user's own. On TCP an operator has to ask for admin routes; what is held
 * here, by which gateways route, any that knows the key may read. */
static bool admin_open(const struct worker *w, const struct wk_call *c, const char *path)
{
    if (strcmp(c->r->peer, "unix") == 0) return true;
    return w->o.api_key && (w->o.admin_tcp || strcmp(path, "/admin/residents") == 0);
}

static void refuse_path(struct wk_call *c, const char *method, const char *path, const char *allow)
{
    if (allow)
        wk_refuse(c, API_METHOD_NOT_ALLOWED, allow,
                  "Method %.20s is not allowed for %.100s; use %s.", method, path, allow);
    else
        wk_refuse(c, API_UNKNOWN_URL, NULL, "Unknown URL: %.20s %.200s.", method, path);
}

static const char *short_path(const struct wk_call *c)
{
    const char *path = c->r->msg.path;

    return strncmp(path, "/v1/", 4) == 0 ? path + 3 : path;
}

/* Of the method *ret_allow is where only the path matches. */
static void find_route(struct wk_call *c, const char **ret_allow)
{
    const char *path = short_path(c), *method = c->r->msg.method;

    if (strcmp(method, "HEAD") == 0) method = "GET";
    for (size_t i = 0; !c->found && i < sizeof routes / sizeof *routes; i++) {
        const struct wk_route *r = &routes[i];
        if (!path_matches(r, path, &c->rest)) continue;
        c->route = r->name;
        if (strcmp(method, r->method) == 0)
            c->found = r;
        else
            *ret_allow = r->method;
    }
}

void wk_route_head(struct worker *w, struct wk_call *c)
{
    const char *path = short_path(c), *allow = NULL;

    find_route(c, &allow);
    const struct wk_route *r = c->found;
    const bool admin = strncmp(path, "/admin/", 7) == 0;
    if (admin && !admin_open(w, c, path))
        wk_refuse(c, API_ADMIN_CLOSED, NULL,
                  "Admin routes are off on TCP (--admin-tcp, with --api-key).");
    else if (admin && !authorised(w, c))
        refuse_key(c);
    else if (!r)
        refuse_path(c, c->r->msg.method, path, allow);
    else if (!(r->flags & R_OPEN) && !authorised(w, c))
        refuse_key(c);
    else if (names_namespace(w, c))
        wk_refuse(c, API_NAMESPACE_CLOSED, "X-KVBlend-Namespace",
                  "On TCP a worker takes X-KVBlend-Namespace with its key only: start it with "
                  "--api-key, and give the gateway that key (workers: api_key).");
}

static bool serves_kind(const struct worker *w, const struct wk_route *r)
{
    if (r->flags & R_BOTH) return true;
    if (!w->embedder) return !(r->flags & R_EMBED);
    return r->flags & (wk_embedder_scores(w->embedder) ? R_PAIRS : R_EMBED);
}

static void refuse_kind(const struct worker *w, struct wk_call *c)
{
    if (wk_embedder_scores(w->embedder))
        wk_refuse(c, API_SCORES_ONLY, NULL,
                  "The model '%.100s' scores pairs only: POST /v1/rerank or /v1/score.",
                  w->model_name);
    else if (w->embedder)
        wk_refuse(c, API_EMBEDDINGS_ONLY, NULL,
                  "The model '%.100s' gives embeddings only: POST /v1/embeddings.", w->model_name);
    else
        wk_refuse(c, API_NO_EMBEDDINGS, NULL,
                  "The model '%.100s' gives no embeddings: nothing beside its file says how its "
                  "hidden states become vectors. Start the worker with --embed last or mean.",
                  w->model_name);
}

void wk_route(struct worker *w, struct wk_call *c)
{
    const struct wk_route *r = c->found;
    struct api_err e;

    if (!(r->flags & R_EARLY) && wk_not_ready(w, &e) < 0)
        wk_reply_error(c, &e);
    else if (!serves_kind(w, r))
        refuse_kind(w, c);
    else if (r->order)
        wk_task_start(c, &(struct wk_work){.run = wk_order_run, .data = r});
    else if (r->task)
        wk_task_start(c, &(struct wk_work){.run = r->task});
    else
        r->fn(w, c, c->rest);
}
