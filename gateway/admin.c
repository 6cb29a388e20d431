/* The admin API's own routes; the rest of /admin/ is the worker's and relayed to it. */
#include "gateway/gate.h"

#include "base/clock.h"
#include "gateway/child.h"
#include "gateway/config.h"
#include "gateway/fleet.h"
#include "gateway/keys.h"

#include <string.h>
#include <unistd.h>

static int add_str(struct buf *b, const char *key, const char *v)
{
    int r = buf_addf(b, "\"%s\":", key);
    return r < 0 ? r : buf_add_json_str(b, v, strlen(v));
}

static int put_worker(struct gw_gate *g, const struct gw_page *page, struct buf *b)
{
    const struct gw_target *t = gw_fleet_get(g->fleet, page->index);
    bool own = g->child && gw_child_target(g->child) == t;
    int r = buf_addf(b, "{\"index\":%u,", t->index);
    if (r == 0) r = add_str(b, "address", t->address);
    if (r == 0)
        r = buf_addf(b, ",\"own\":%s,\"state\":\"%s\",\"in_flight\":%u,\"models\":[",
                     own ? "true" : "false", gw_target_state_name(t->state), t->n_inflight);
    for (size_t i = 0; r == 0 && i < t->n_models; i++) {
        if (i > 0) r = buf_addc(b, ',');
        if (r == 0) r = buf_add_json_str(b, t->model[i].id, strlen(t->model[i].id));
    }
    if (r == 0) r = buf_addc(b, ']');
    if (r == 0 && own)
        r = buf_addf(b, ",\"pid\":%d,\"restarts\":%u", (int)gw_child_pid(g->child),
                     gw_child_n_restarts(g->child));
    if (r == 0 && page->status == 200 && page->body.len > 0) {
        r = buf_adds(b, ",\"status\":");
        if (r == 0) r = buf_add(b, page->body.data, page->body.len);
    }
    return r < 0 ? r : buf_addc(b, '}');
}

static void status_gathered(struct gw_req *q, const struct gw_page *pages, size_t n)
{
    struct gw_gate *g = q->gate;
    struct buf b = BUF_INIT;
    int r = buf_addf(&b,
                     "{\"gateway\":{\"version\":\"" KV_VERSION "\",\"pid\":%d,\"uptime_s\":%.1f,"
                     "\"ready\":%s,\"draining\":%s,\"in_flight\":%u,\"in_flight_max\":%u,"
                     "\"waiting\":%u,\"waiting_max\":%u,\"keys\":%zu,\"loop_lag_ms\":%.3f},"
                     "\"workers\":[",
                     (int)getpid(), clock_ms_since(g->start_ns) / 1e3,
                     gw_fleet_n_ready(g->fleet) && !g->draining ? "true" : "false",
                     g->draining ? "true" : "false", g->admit.n_running, g->admit.running_max,
                     g->admit.n_waiting, g->admit.waiting_max, gw_keys_count(g->keys),
                     http_loop_lag_ms(g->loop));
    for (size_t i = 0; r == 0 && i < n; i++) {
        if (i > 0) r = buf_addc(&b, ',');
        if (r == 0) r = put_worker(g, &pages[i], &b);
    }
    if (r == 0) r = buf_adds(&b, "]}");
    if (r == 0)
        gw_answer_json(q, 200, &b);
    else
        gw_answer_error(q, GW_E_INTERNAL, NULL, "Out of memory.");
    buf_fini(&b);
}

static void admin_status(struct gw_req *q)
{
    if (gw_gather_start(q, "/admin/status", 2000, status_gathered) < 0)
        gw_answer_error(q, GW_E_INTERNAL, NULL, "Out of memory.");
}

static int put_request(const struct gw_req *q, struct buf *b)
{
    int r = buf_addc(b, '{');
    if (r == 0) r = add_str(b, "id", q->id);
    if (r == 0) r = buf_addc(b, ',');
    if (r == 0) r = add_str(b, "path", http_req_path(q->http));
    if (r == 0) r = buf_addc(b, ',');
    if (r == 0) r = add_str(b, "client", http_req_peer(q->http));
    if (r == 0 && q->scan.has_model) {
        r = buf_addc(b, ',');
        if (r == 0) r = add_str(b, "model", q->scan.model);
    }
    if (r == 0)
        r = buf_addf(b,
                     ",\"stage\":\"%s\",\"age_ms\":%.1f,\"worker\":%d,\"stream\":%s,"
                     "\"bytes_out\":%llu,\"segments\":%u,\"retries\":%u}",
                     gw_stage_name(q->stage), clock_ms_since(http_req_start_ns(q->http)),
                     q->target ? (int)q->target->index : -1, q->sse ? "true" : "false",
                     (unsigned long long)http_req_bytes_out(q->http), q->scan.n_segments,
                     q->n_retries);
    return r;
}

static void admin_requests(struct gw_req *q)
{
    struct buf b = BUF_INIT;
    int r = buf_adds(&b, "{\"requests\":[");
    unsigned n = 0;
    for (struct gw_req *x = q->gate->reqs; r == 0 && x; x = x->next) {
        if (!x->active) continue;
        if (n++ > 0) r = buf_addc(&b, ',');
        if (r == 0) r = put_request(x, &b);
    }
    if (r == 0) r = buf_adds(&b, "]}");
    if (r == 0)
        gw_answer_json(q, 200, &b);
    else
        gw_answer_error(q, GW_E_INTERNAL, NULL, "Out of memory.");
    buf_fini(&b);
}

static void admin_reload(struct gw_req *q)
{
    struct err err = {0};
    struct buf b = BUF_INIT;
    if (q->gate->reload(q->gate->run_ctx, &err) < 0) {
        gw_answer_error(q, GW_E_BAD_REQUEST, NULL, "%s", err.msg);
        return;
    }
    (void)buf_adds(&b, "{\"reloaded\":true}");
    gw_answer_json(q, 200, &b);
    buf_fini(&b);
}

/* ---- /admin/keys: who may do what, and how much of it is left ---- */

static int put_key(const struct gw_key *key, struct buf *b)
{
    struct gw_limit_view v;
    gw_account_view(key->account, &key->limit, clock_ns(), &v);
    int r = buf_addc(b, '{');
    if (r == 0) r = add_str(b, "id", key->id);
    if (r == 0 && key->name_space) r = buf_addc(b, ',');
    if (r == 0 && key->name_space) r = add_str(b, "namespace", key->name_space);
    if (r == 0 && key->models) r = buf_addc(b, ',');
    if (r == 0 && key->models) r = add_str(b, "models", key->models);
    if (r == 0)
        r = buf_addf(b, ",\"running\":%u,\"concurrency\":%u,\"rpm\":%u,\"tpm\":%u",
                     key->account->n_running, v.limit.running_max, v.limit.requests_per_min,
                     v.limit.tokens_per_min);
    if (r == 0 && v.limit.requests_per_min)
        r = buf_addf(b, ",\"requests_left\":%u", v.requests_left);
    if (r == 0 && v.limit.tokens_per_min) r = buf_addf(b, ",\"tokens_left\":%u", v.tokens_left);
    return r < 0 ? r : buf_addc(b, '}');
}

static void admin_keys(struct gw_req *q)
{
    const struct gw_keys *k = q->gate->keys;
    struct buf b = BUF_INIT;
    int r = buf_adds(&b, "{\"keys\":[");
    for (size_t i = 0; r == 0 && i < gw_keys_count(k); i++) {
        if (i > 0) r = buf_addc(&b, ',');
        if (r == 0) r = put_key(gw_keys_get(k, i), &b);
    }
    if (r == 0) r = buf_adds(&b, "]}");
    if (r == 0)
        gw_answer_json(q, 200, &b);
    else
        gw_answer_error(q, GW_E_INTERNAL, NULL, "Out of memory.");
    buf_fini(&b);
}

/* Why the gateway would cut a request as it would; nothing is learned from it. */
static void admin_boundaries(struct gw_req *q)
{
    struct buf why = BUF_INIT, b = BUF_INIT;
    size_t len;
    const char *body = http_req_body(q->http, &len);
    struct gw_scan s = {
        .body = body, .len = len, .presets = q->gate->presets, .dry = true, .explain = &why};
    if (gw_space_of(q, s.space)) s.learner = q->gate->learner;
    gw_scan_run(&s);
    if (s.failed) {
        gw_answer_error(q, s.error, NULL, "%s", s.message);
    } else if (buf_addf(&b, "{\"boundaries\":%s}", why.len ? buf_cstr(&why) : "[]") < 0) {
        gw_answer_error(q, GW_E_INTERNAL, NULL, "Out of memory.");
    } else {
        gw_answer_json(q, 200, &b);
    }
    gw_scan_fini(&s);
    buf_fini(&why);
    buf_fini(&b);
}

const struct gw_route gw_admin_routes[] = {
    {"/admin/status", "GET", NULL, admin_status, GW_R_ADMIN},
    {"/admin/requests", "GET", NULL, admin_requests, GW_R_ADMIN},
    {"/admin/keys", "GET", NULL, admin_keys, GW_R_ADMIN},
    {"/admin/reload", "POST", NULL, admin_reload, GW_R_ADMIN},
    {"/admin/boundaries", "POST", NULL, admin_boundaries, GW_R_ADMIN},
    {"/admin/segment", "POST", "/admin/segment", NULL, GW_R_ADMIN | GW_R_JSON | GW_R_DETECT},
    {"/admin/", "GET, POST, PUT, DELETE", "/admin/", NULL, GW_R_ADMIN | GW_R_REST},
};
const size_t gw_admin_n_routes = sizeof gw_admin_routes / sizeof gw_admin_routes[0];
