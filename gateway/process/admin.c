/* The admin API's own routes; the rest of /admin/ is the worker's and relayed to it. */
#include "gateway/front/front.h"

#include "base/clock.h"
#include "gateway/fleet/fleet.h"
#include "gateway/fleet/view.h"
#include "gateway/front/reply.h"
#include "gateway/front/keys.h"
#include "gateway/front/openapi.h"
#include "gateway/process/config.h"
#include "gateway/process/gather.h"
#include "gateway/process/own.h"
#include "gateway/process/recent.h"
#include "gateway/process/server.h"
#include "gateway/process/watch.h"
#include "gateway/request/request.h"

#include <jansson.h>
#include <string.h>
#include <unistd.h>

static void add_str(struct buf *b, const char *before, const char *v)
{
    (void)buf_adds(b, before);
    (void)buf_add_json_str(b, v, strlen(v));
}

static void begin_page(struct gw_server *server, const struct gw_page *page,
                       struct gw_target_view *ret, struct buf *b)
{
    (void)gw_fleet_view(server->fleet, page->index, ret); /* targets stay in their places */
    (void)buf_addf(b, "{\"index\":%u", page->index);
    add_str(b, ",\"address\":", ret->address);
}

static void put_worker(struct gw_server *server, const struct gw_page *page, struct buf *b)
{
    struct gw_target_view t;
    unsigned restarts;
    int pid;
    begin_page(server, page, &t, b);
    (void)buf_addf(b, ",\"own\":%s,\"state\":\"%s\",\"in_flight\":%u,\"models\":%u",
                   t.own ? "true" : "false", gw_target_state_name(t.state), t.n_inflight,
                   t.n_models);
    if (gw_own_process(server->own, page->index, &pid, &restarts))
        (void)buf_addf(b, ",\"pid\":%d,\"restarts\":%u", pid, restarts);
    if (t.why[0]) add_str(b, ",\"reason\":", t.why);
    if (page->status == 200 && page->body.len > 0) {
        (void)buf_adds(b, ",\"status\":");
        (void)buf_add_buf(b, &page->body);
    }
    (void)buf_addc(b, '}');
}

static void status_gathered(struct gw_req *q, const struct gw_page *pages, size_t n)
{
    struct gw_server *server = q->loop->server;
    struct buf b = BUF_INIT;
    struct gw_admit_view a = gw_admit_view(&server->admit);
    bool draining = server->draining;
    (void)buf_addf(&b,
                   "{\"gateway\":{\"version\":\"" KV_VERSION "\",\"pid\":%d,\"uptime_s\":%.1f,"
                   "\"ready\":%s,\"draining\":%s,\"in_flight\":%u,\"in_flight_max\":%u,"
                   "\"waiting\":%u,\"waiting_max\":%u,\"keys\":%zu,\"loops\":%u,"
                   "\"loop_lag_ms\":%.3f,\"shed\":{",
                   (int)getpid(), clock_ms_since(server->start_ns) / 1e3,
                   gw_fleet_n_ready(server->fleet) && !draining ? "true" : "false",
                   draining ? "true" : "false", a.n_running, a.running_max, a.n_waiting,
                   a.waiting_max, gw_keys_count(q->settings->keys), server->n_loops,
                   http_loop_lag_ms(q->loop->http_loop));
    gw_stats_put_shed(&b);
    (void)buf_adds(&b, "}},\"upstreams\":");
    (void)gw_fleet_format(server->fleet, GW_SERVES_UPSTREAM, &b);
    (void)buf_adds(&b, ",\"workers\":[");
    for (size_t i = 0; i < n; i++) {
        if (i > 0) (void)buf_addc(&b, ',');
        put_worker(server, &pages[i], &b);
    }
    (void)buf_adds(&b, "]}");
    gw_answer_json(q, 200, &b);
}

/* ---- /admin/quality, /admin/mrc: what every worker says ---- */

void gw_put_pages(struct gw_server *server, const struct gw_page *pages, size_t n, const char *name,
                  struct buf *b)
{
    (void)buf_adds(b, "\"workers\":[");
    for (size_t i = 0; i < n; i++) {
        struct gw_target_view t;
        if (i > 0) (void)buf_addc(b, ',');
        begin_page(server, &pages[i], &t, b);
        (void)buf_addf(b, ",\"%s\":", name);
        if (pages[i].status == 200 && pages[i].body.len > 0)
            (void)buf_add_buf(b, &pages[i].body);
        else
            (void)buf_adds(b, "null");
        (void)buf_addc(b, '}');
    }
    (void)buf_addc(b, ']');
}

static void answer_pages(struct gw_req *q, const struct gw_page *pages, size_t n, const char *name)
{
    struct buf b = BUF_INIT;
    (void)buf_addc(&b, '{');
    gw_put_pages(q->loop->server, pages, n, name, &b);
    (void)buf_addc(&b, '}');
    gw_answer_json(q, 200, &b);
}

static void quality_gathered(struct gw_req *q, const struct gw_page *pages, size_t n)
{
    answer_pages(q, pages, n, "quality");
}

static void mrc_gathered(struct gw_req *q, const struct gw_page *pages, size_t n)
{
    answer_pages(q, pages, n, "mrc");
}

static void namespaces_gathered(struct gw_req *q, const struct gw_page *pages, size_t n)
{
    answer_pages(q, pages, n, "namespaces");
}

static void past_gathered(struct gw_req *q, const struct gw_page *pages, size_t n)
{
    answer_pages(q, pages, n, "past");
}

static void put_request(const struct gw_req *q, struct buf *b)
{
    add_str(b, "{\"id\":", q->id);
    add_str(b, ",\"path\":", q->http->msg.path);
    add_str(b, ",\"client\":", q->http->peer);
    if (q->scan.has_model) add_str(b, ",\"model\":", q->scan.model);
    (void)buf_addf(b,
                   ",\"stage\":\"%s\",\"age_ms\":%.1f,\"worker\":%d,\"stream\":%s,"
                   "\"bytes_out\":%llu,\"segments\":%u,\"retries\":%u}",
                   gw_stage_name(q->stage), clock_ms_since(q->http->start_ns), q->target_index,
                   q->ans.sse ? "true" : "false", (unsigned long long)q->http->bytes_out,
                   q->scan.n_segments, q->n_retries);
}

/* Those that have ended, as the access log has them. */
static void admin_recent(struct gw_req *q)
{
    struct buf b = BUF_INIT;
    (void)buf_adds(&b, "{\"requests\":[");
    (void)gw_recent_list(gw_stats_recent(q->loop->server->stats), 0, GW_RECENT_LINES, &b);
    (void)buf_adds(&b, "]}");
    gw_answer_json(q, 200, &b);
}

static double time_of(const json_t *line)
{
    return json_real_value(json_object_get(line, "t"));
}

/* Takes the list, whose lines are the newest first, as those of `all` are. */
static void merge_lines(json_t *all, json_t *list)
{
    size_t at = 0, i;
    json_t *line;
    json_array_foreach(list, i, line) {
        while (at < json_array_size(all) && time_of(json_array_get(all, at)) >= time_of(line))
            at++;
        (void)json_array_insert(all, at++, line);
    }
    json_decref(list);
}

static void decision_lists_gathered(struct gw_req *q, const struct gw_page *pages, size_t n)
{
    json_t *all = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *root = pages[i].status == 200 ? gw_page_read(&pages[i]) : NULL;
        merge_lines(all, json_incref(json_object_get(root, "data")));
        json_decref(root);
    }
    gw_answer_value(q, 200, json_pack("{s:s, s:o}", "object", "list", "data", all));
}

static void list_requests(struct gw_loop *loop, struct gw_loop_call *e)
{
    for (struct gw_req *x = loop->reqs; x; x = x->next) {
        if (!x->active) continue;
        if (e->out.len > 0) (void)buf_addc(&e->out, ',');
        put_request(x, &e->out);
    }
    if (e->result == 0) e->result = buf_status(&e->out);
}

static void requests_listed(struct gw_req *q, struct gw_loop_call *e)
{
    struct buf b = BUF_INIT;
    (void)buf_adds(&b, "{\"requests\":[");
    (void)buf_add_buf(&b, &e->out);
    (void)buf_adds(&b, "]}");
    gw_answer_json(q, 200, &b);
}

static void admin_requests(struct gw_req *q)
{
    gw_loop_call_start(q, q->loop->server->n_loops, list_requests, requests_listed);
}

static void admin_history(struct gw_req *q)
{
    struct buf b = BUF_INIT;
    (void)buf_adds(&b, "{\"requests\":[");
    gw_stats_put_slow(q->loop->server->stats, &b);
    (void)buf_adds(&b, "]}");
    gw_answer_json(q, 200, &b);
}

static void reload(struct gw_loop *loop, struct gw_loop_call *e)
{
    e->result = loop->server->reload(loop->server->run_ctx, &e->out, &e->err);
}

static void reloaded(struct gw_req *q, struct gw_loop_call *e)
{
    struct buf b = BUF_INIT;
    if (e->result < 0) {
        gw_answer_error(q, GW_E_BAD_REQUEST, NULL, "%s",
                        e->err.msg[0] ? e->err.msg : err_name(e->result));
        return;
    }
    const char *names = buf_cstr(&e->out);
    (void)buf_adds(&b, "{\"reloaded\":true,\"restart_needed\":[");
    for (const char *p = names; p && *p; p += strspn(p, ",")) {
        size_t n = strcspn(p, ",");
        (void)buf_addf(&b, "%s\"%.*s\"", p > names ? "," : "", (int)n, p);
        p += n;
    }
    (void)buf_adds(&b, "]}");
    gw_answer_json(q, 200, &b);
}

static void admin_reload(struct gw_req *q) /* by the control loop */
{
    gw_loop_call_start(q, 1, reload, reloaded);
}

/* ---- /admin/keys: who may do what, and how much of it is left ---- */

static void put_key(const struct gw_key *key, struct gw_admit *a, struct buf *b)
{
    struct gw_limit_view v;
    struct gw_flow f = gw_admit_flow(a, &key->account->flow);
    const double all = gw_admit_view(a).work;
    gw_account_view(key->account, &key->limit, clock_ns(), &v);
    add_str(b, "{\"id\":", key->id);
    if (key->name_space) add_str(b, ",\"namespace\":", key->name_space);
    if (key->models) add_str(b, ",\"models\":", key->models);
    (void)buf_addf(b, ",\"running\":%u,\"concurrency\":%u,\"rpm\":%u,\"tpm\":%u", v.n_running,
                   v.limit.running_max, v.limit.requests_per_min, v.limit.tokens_per_min);
    if (v.limit.requests_per_min) (void)buf_addf(b, ",\"requests_left\":%u", v.requests_left);
    if (v.limit.tokens_per_min) (void)buf_addf(b, ",\"tokens_left\":%u", v.tokens_left);
    (void)buf_addf(b, ",\"weight\":%g,\"priority\":%u,\"waiting\":%u,\"work_share\":%.4f",
                   key->claims.weight, key->claims.priority, f.n_waiting,
                   all > 0 ? f.work / all : 0);
    if (key->claims.max_ttft_ms) (void)buf_addf(b, ",\"max_ttft_ms\":%u", key->claims.max_ttft_ms);
    (void)buf_addc(b, '}');
}

static void admin_keys(struct gw_req *q)
{
    const struct gw_keys *k = q->settings->keys;
    struct buf b = BUF_INIT;
    (void)buf_adds(&b, "{\"keys\":[");
    for (size_t i = 0; i < gw_keys_count(k); i++) {
        if (i > 0) (void)buf_addc(&b, ',');
        put_key(gw_keys_get(k, i), &q->loop->server->admit, &b);
    }
    (void)buf_adds(&b, "]}");
    gw_answer_json(q, 200, &b);
}

/* ---- /admin/targets: every backend with its health, breaker and load; drain and enable ---- */

static void admin_targets(struct gw_req *q)
{
    struct buf b = BUF_INIT;
    (void)buf_adds(&b, "{\"targets\":");
    (void)gw_fleet_format(q->loop->server->fleet, GW_SERVES_WORKER | GW_SERVES_UPSTREAM, &b);
    (void)buf_addc(&b, '}');
    gw_answer_json(q, 200, &b);
}

/* POST /admin/targets/NAME/drain and /enable; names may hold slashes (unix:/path). */
static void admin_target_order(struct gw_req *q)
{
    char name[256];
    const char *slash = strrchr(q->rest, '/');
    size_t len = slash ? (size_t)(slash - q->rest) : 0;
    bool drain = slash && strcmp(slash, "/drain") == 0;
    if (len == 0 || len >= sizeof name || (!drain && strcmp(slash, "/enable") != 0)) {
        gw_answer_error(q, GW_E_UNKNOWN_URL, NULL,
                        "Expected POST /admin/targets/NAME/drain or /enable.");
        return;
    }
    memcpy(name, q->rest, len);
    name[len] = '\0';
    if (gw_fleet_drain(q->loop->server->fleet, name, drain) < 0) {
        gw_answer_error(q, GW_E_UNKNOWN_TARGET, NULL, "There is no target named `%s`.", name);
        return;
    }
    admin_targets(q);
}

/* Why the gateway would cut a request as it would; nothing is learned from it. */
static void put_cuts(const struct gw_scan *s, struct buf *b)
{
    (void)buf_adds(b, "{\"segments\":[");
    for (size_t i = 0; i < s->n_chunks; i++) {
        const struct gw_scan_chunk *c = &s->chunk[i];
        if (c->msg == GW_SCAN_DOCUMENT)
            (void)buf_addf(b, "%s{\"message\":null", i ? "," : "");
        else
            (void)buf_addf(b, "%s{\"message\":%u", i ? "," : "", c->msg);
        (void)buf_addf(b, ",\"begin\":%u,\"end\":%u}", c->begin, c->end);
    }
    (void)buf_addf(b, "],\"detector\":\"%s\"", s->detector);
}

static void admin_boundaries(struct gw_req *q)
{
    struct buf why = BUF_INIT, b = BUF_INIT;
    size_t len;
    const char *body = http_req_body(q->http, &len);
    struct gw_scan s = {.body = body,
                        .len = len,
                        .presets = q->loop->server->presets,
                        .dry = true,
                        .explain = &why};
    if (gw_req_space(q, s.space)) s.learner = q->loop->server->learner;
    gw_scan_run(&s);
    if (s.failed) {
        gw_answer_error(q, s.error, NULL, "%s", s.message);
    } else {
        put_cuts(&s, &b);
        if (why.len == 0) (void)buf_adds(&why, "[]");
        (void)buf_adds(&b, ",\"boundaries\":");
        (void)buf_add_buf(&b, &why);
        (void)buf_addc(&b, '}');
        gw_answer_json(q, 200, &b);
    }
    gw_scan_fini(&s);
    buf_fini(&why);
}

const struct gw_route gw_admin_routes[] = {
    {"/admin/openapi.json", "GET", NULL, gw_openapi_answer, GW_R_ADMIN},
    {"/admin/status", "GET", NULL, gw_gather, GW_R_ADMIN, status_gathered},
    {"/admin/quality", "GET", NULL, gw_gather, GW_R_ADMIN, quality_gathered},
    {"/admin/mrc", "GET", NULL, gw_gather, GW_R_ADMIN, mrc_gathered},
    {"/admin/doctor", "GET", NULL, gw_gather, GW_R_ADMIN, gw_doctor_gathered},
    {"/admin/requests", "GET", NULL, admin_requests, GW_R_ADMIN},
    {"/admin/history", "GET", NULL, admin_history, GW_R_ADMIN},
    {"/admin/requests/recent", "GET", NULL, admin_recent, GW_R_ADMIN},
    {"/admin/watch", "GET", "/admin/now", gw_gather, GW_R_ADMIN, gw_watch_gathered},
    {"/admin/keys", "GET", NULL, admin_keys, GW_R_ADMIN},
    {"/admin/targets", "GET", NULL, admin_targets, GW_R_ADMIN},
    {"/admin/targets/", "POST", NULL, admin_target_order, GW_R_ADMIN | GW_R_REST},
    {"/admin/decisions", "GET", NULL, gw_gather, GW_R_ADMIN, decision_lists_gathered},
    {"/admin/decisions/", "GET", NULL, gw_gather, GW_R_ADMIN | GW_R_REST, gw_first_gathered},
    {"/admin/past", "GET", NULL, gw_gather, GW_R_ADMIN, past_gathered},
    {"/admin/heat/", "GET", NULL, gw_gather, GW_R_ADMIN | GW_R_REST, gw_first_gathered},
    {"/admin/reload", "POST", NULL, admin_reload, GW_R_ADMIN},
    {"/admin/boundaries", "POST", NULL, admin_boundaries, GW_R_ADMIN},
    {"/admin/segment", "POST", "/admin/segment", NULL,
     GW_R_ADMIN | GW_R_JSON | GW_R_DETECT | GW_R_WORKER | GW_R_REPEAT},
    {"/admin/chunks", "GET", "/admin/chunks", gw_admin_chunks, GW_R_ADMIN | GW_R_WORKER,
     gw_chunks_gathered},
    {"/admin/chunks/", "GET, POST, DELETE", "/admin/chunks/", gw_order,
     GW_R_ADMIN | GW_R_REST | GW_R_WORKER, gw_orders_gathered},
    {"/admin/tiers", "GET", "/admin/tiers", gw_order, GW_R_ADMIN | GW_R_WORKER, gw_tiers_gathered},
    {"/admin/tiers/", "POST", "/admin/tiers/", gw_order, GW_R_ADMIN | GW_R_REST | GW_R_WORKER,
     gw_orders_gathered},
    {"/admin/clear", "POST", "/admin/clear", gw_order, GW_R_ADMIN | GW_R_WORKER,
     gw_orders_gathered},
    {"/admin/verify", "POST", "/admin/verify", gw_order, GW_R_ADMIN | GW_R_WORKER,
     gw_orders_gathered},
    {"/admin/flush", "POST", "/admin/flush", gw_order, GW_R_ADMIN | GW_R_WORKER,
     gw_orders_gathered},
    {"/admin/namespaces", "GET", NULL, gw_gather, GW_R_ADMIN, namespaces_gathered},
    {"/admin/events/kv", "GET", "/admin/events/kv", NULL, GW_R_ADMIN | GW_R_WORKER | GW_R_ENDLESS},
    {"/admin/", "GET, POST, PUT, DELETE", "/admin/", NULL, GW_R_ADMIN | GW_R_REST | GW_R_WORKER},
};
const size_t gw_admin_n_routes = sizeof gw_admin_routes / sizeof gw_admin_routes[0];
