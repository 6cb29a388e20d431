/* What others may see of the fleet: copies, JSON for operators, Prometheus' text. */
#include "gateway/fleet/fleet_int.h"

#include "base/assert.h"
#include "base/clock.h"
#include "gateway/process/stats.h"

#include <stdio.h>
#include <string.h>

static const int statuses[] = {200, 400, 401, 403, 404, 408, 413, 422,
                               429, 499, 500, 501, 502, 503, 504};
enum { N_STATUSES = sizeof statuses / sizeof statuses[0] };
static_assert((int)N_STATUSES < (int)GW_STATUSES_MAX, "the last one is for the others");

void fleet_count_status(struct gw_target *t, int status)
{
    size_t i = 0;
    if (status <= 0) return;
    while (i < N_STATUSES && statuses[i] != status)
        i++;
    t->count.status[i]++;
}

size_t gw_fleet_count(const struct gw_fleet *f)
{
    fleet_lock(f);
    size_t n = f->n;
    fleet_unlock(f);
    return n;
}

/* ---- how they are, in words ---- */

void gw_fleet_reasons(const struct gw_fleet *f, const char *model, char ret[GW_REASONS_BYTES])
{
    const char *sent;
    ret[0] = '\0';
    fleet_lock(f);
    for (size_t i = 0; i < f->n; i++) {
        const struct gw_target *t = f->target[i];
        if (!t->health.why[0] || !fleet_is_open(t) || fleet_serves(f, t, model, &sent) == FLEET_NO)
            continue;
        size_t n = strlen(ret);
        if (!strstr(ret, t->health.why))
            (void)snprintf(ret + n, GW_REASONS_BYTES - n, "%s%s", n ? "; " : ": ", t->health.why);
    }
    fleet_unlock(f);
}

struct gw_fleet_count gw_fleet_count_kinds(const struct gw_fleet *f)
{
    struct gw_fleet_count c = {0};
    fleet_lock(f);
    for (size_t i = 0; i < f->n; i++) {
        const struct gw_target *t = f->target[i];
        if (t->retired || t->leaving) continue;
        bool asleep = t->health.state == GW_TARGET_ASLEEP; /* which takes requests, too */
        bool ready = (t->health.state == GW_TARGET_READY || asleep) && fleet_is_open(t);
        *(t->worker ? &c.workers : &c.upstreams) += 1;
        *(t->worker ? &c.workers_ready : &c.upstreams_ready) += ready;
        c.lists |= t->models.n > 0;
        c.hopeful |= !t->drained && (t->own || t->health.state != GW_TARGET_DOWN);
    }
    fleet_unlock(f);
    c.choice = c.workers > 0 || c.upstreams > 1;
    return c;
}

unsigned gw_fleet_n_ready(const struct gw_fleet *f)
{
    struct gw_fleet_count c = gw_fleet_count_kinds(f);
    return c.workers_ready + c.upstreams_ready;
}

static enum gw_target_state state_of(const struct gw_target *t)
{
    if (t->retired) return GW_TARGET_RETIRED;
    return t->leaving || t->drained ? GW_TARGET_DRAINING : t->health.state;
}

static const char *breaker_name(const struct gw_target *t)
{
    static const char *const names[] = {"closed", "open", "half_open"};
    return names[t->health.breaker.state];
}

bool gw_fleet_view(const struct gw_fleet *f, unsigned index, struct gw_target_view *ret)
{
    fleet_lock(f);
    bool found = index < f->n;
    const struct gw_target *t = found ? f->target[index] : NULL;
    if (found) {
        *ret = (struct gw_target_view){.index = index,
                                       .n_inflight = t->n_inflight,
                                       .own = t->own,
                                       .worker = t->worker,
                                       .state = state_of(t),
                                       .served = t->health.ready_since_ns > 0,
                                       .n_models = (unsigned)t->models.n};
        (void)snprintf(ret->why, sizeof ret->why, "%s", t->health.why);
        (void)snprintf(ret->name, sizeof ret->name, "%s", t->name);
        (void)snprintf(ret->address, sizeof ret->address, "%s", t->at.address);
    }
    fleet_unlock(f);
    return found;
}

/* ---- JSON ---- */

static void put_str(struct buf *b, const char *before, const char *v)
{
    (void)buf_adds(b, before);
    (void)buf_add_json_str(b, v, strlen(v));
}

static void put_target(const struct gw_target *t, struct buf *b)
{
    const uint64_t *n = t->count.outcome;
    const struct gw_upstream *u = t->up;
    double wait_ms = fleet_load_wait_ms(t, clock_ns()), ready_s = 0;
    if (t->health.state == GW_TARGET_READY && t->health.ready_since_ns)
        ready_s = clock_ms_since(t->health.ready_since_ns) / 1e3;
    (void)buf_addf(b, "{\"index\":%u", t->index);
    put_str(b, ",\"name\":", t->name);
    put_str(b, ",\"address\":", t->at.address);
    (void)buf_addf(b,
                   ",\"kind\":\"%s\",\"own\":%s,\"state\":\"%s\",\"breaker\":\"%s\","
                   "\"in_flight\":%u,\"in_flight_max\":%u,\"weight\":%g,\"priority\":%u,"
                   "\"picked\":%llu,\"ok\":%llu,\"busy\":%llu,\"failed\":%llu,\"timeouts\":%llu,"
                   "\"prompt_tokens_in_flight\":%llu,\"ttfb_ms\":%.3f,\"ready_s\":%.1f",
                   t->worker ? "worker" : "upstream", t->own ? "true" : "false",
                   gw_target_state_name(state_of(t)), breaker_name(t), t->n_inflight,
                   u ? u->inflight_max : 0, u ? u->weight : 1, u ? u->priority : 0,
                   (unsigned long long)t->count.picked, (unsigned long long)n[GW_DONE_OK],
                   (unsigned long long)n[GW_DONE_BUSY], (unsigned long long)n[GW_DONE_FAILED],
                   (unsigned long long)n[GW_DONE_TIMEOUT], (unsigned long long)t->tokens_in_flight,
                   t->ttfb_ms, ready_s);
    if (wait_ms >= 0) (void)buf_addf(b, ",\"predicted_wait_ms\":%.1f", wait_ms);
    if (u) (void)buf_addf(b, ",\"lmcache\":%s", u->lmcache ? "true" : "false");
    if (t->health.why[0]) put_str(b, ",\"reason\":", t->health.why);
    (void)buf_adds(b, ",\"models\":[");
    for (size_t i = 0; i < t->models.n; i++)
        put_str(b, i ? "," : "", t->models.v[i].id);
    (void)buf_adds(b, "]}");
}

int gw_fleet_format(const struct gw_fleet *f, unsigned kinds, struct buf *out)
{
    (void)buf_addc(out, '[');
    fleet_lock(f);
    for (size_t i = 0, n = 0; i < f->n; i++) {
        unsigned kind = f->target[i]->worker ? GW_SERVES_WORKER : GW_SERVES_UPSTREAM;
        if (f->target[i]->retired || !(kinds & kind)) continue;
        if (n++ > 0) (void)buf_addc(out, ',');
        put_target(f->target[i], out);
    }
    fleet_unlock(f);
    (void)buf_addc(out, ']');
    return buf_status(out);
}

/* ---- metrics ---- */

static const struct {
    const char *name, *type, *help;
} families[] = {
    {"kvblend_gateway_upstream_up", "gauge", "1: takes requests."},
    {"kvblend_gateway_upstream_inflight", "gauge", "Requests at the backend."},
    {"kvblend_gateway_upstream_failures_total", "counter",
     "Tries that failed: not reached, lost, 5xx, too slow."},
    {"kvblend_gateway_upstream_breaker_open", "gauge", "1: its circuit breaker is not closed."},
    {"kvblend_gateway_upstream_picked_total", "counter", "Tries sent to the backend."},
    {"kvblend_gateway_upstream_predicted_wait_seconds", "gauge",
     "Predicted wait for the first token of a request that came now (0: none, or unknown)."},
    {"kvblend_gateway_upstream_requests_total", "counter", "Answers by status."},
};
enum { BY_STATUS = sizeof families / sizeof families[0] - 1 };

static void put_samples(const struct gw_target *t, size_t family, struct buf *b)
{
    const char *name = families[family].name;
    const double wait_ms = fleet_load_wait_ms(t, clock_ns());
    const double values[BY_STATUS] = {
        t->health.state == GW_TARGET_READY && fleet_is_open(t),
        t->n_inflight,
        (double)(t->count.outcome[GW_DONE_FAILED] + t->count.outcome[GW_DONE_TIMEOUT]),
        t->health.breaker.state != BREAKER_CLOSED,
        (double)t->count.picked,
        wait_ms > 0 ? wait_ms / 1e3 : 0};
    if (family < BY_STATUS)
        (void)buf_addf(b, "%s{target=\"%s\"} %.17g\n", name, t->name, values[family]);
    for (size_t i = 0; family == BY_STATUS && i <= N_STATUSES; i++) {
        char code[12] = "other";
        if (t->count.status[i] == 0) continue;
        if (i < N_STATUSES) (void)snprintf(code, sizeof code, "%d", statuses[i]);
        (void)buf_addf(b, "%s{target=\"%s\",code=\"%s\"} %llu\n", name, t->name, code,
                       (unsigned long long)t->count.status[i]);
    }
}

int gw_fleet_metrics(const struct gw_fleet *f, struct buf *out)
{
    unsigned n_ready = 0;
    if (f->directory) gw_stats_set(GW_M_DIRECTORY, (double)gw_directory_count(f->directory));
    fleet_lock(f);
    for (size_t i = 0; i < f->n; i++)
        n_ready += f->target[i]->worker && f->target[i]->health.state == GW_TARGET_READY &&
                   !f->target[i]->retired;
    gw_stats_set(GW_M_READY, n_ready);
    for (size_t i = 0; i <= BY_STATUS; i++) {
        const char *name = families[i].name;
        (void)buf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", name, families[i].help, name,
                       families[i].type);
        for (size_t j = 0; j < f->n; j++)
            if (!f->target[j]->retired) put_samples(f->target[j], i, out);
    }
    fleet_unlock(f);
    return buf_status(out);
}
