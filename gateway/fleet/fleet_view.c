/* What others may see of the fleet: copies, JSON for operators, Prometheus' text. */
#include "gateway/fleet/fleet_int.h"

#include "base/assert.h"
#include "base/clock.h"

#include <errno.h>
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

bool gw_fleet_has_choice(const struct gw_fleet *f)
{
    fleet_lock(f);
    bool choice = f->n_workers > 0 || f->n_upstreams > 1;
    fleet_unlock(f);
    return choice;
}

/* ---- how they are, in words ---- */

int gw_fleet_reasons(const struct gw_fleet *f, const char *model, struct buf *out)
{
    size_t begin = out->len;
    const char *sent;
    int r = 0;
    fleet_lock(f);
    for (size_t i = 0; r == 0 && i < f->n; i++) {
        const struct gw_target *t = f->target[i];
        if (!t->health.why[0] || !fleet_is_open(t) || fleet_serves(f, t, model, &sent) == FLEET_NO)
            continue;
        const char *said = out->len > begin ? buf_cstr(out) : "";
        if (said && strstr(said + (*said ? begin : 0), t->health.why)) continue;
        r = buf_addf(out, "%s%s", *said ? "; " : "", t->health.why);
    }
    fleet_unlock(f);
    return r;
}

struct gw_fleet_count gw_fleet_count_kinds(const struct gw_fleet *f)
{
    struct gw_fleet_count c = {0};
    fleet_lock(f);
    for (size_t i = 0; i < f->n; i++) {
        const struct gw_target *t = f->target[i];
        if (t->retired || t->leaving) continue;
        bool ready = t->health.state == GW_TARGET_READY && fleet_is_open(t);
        *(t->worker ? &c.workers : &c.upstreams) += 1;
        *(t->worker ? &c.workers_ready : &c.upstreams_ready) += ready;
        c.hopeful |= !t->drained && (t->own || t->health.state != GW_TARGET_DOWN);
    }
    fleet_unlock(f);
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
                                       .n_models = (unsigned)t->models.n};
        (void)snprintf(ret->why, sizeof ret->why, "%s", t->health.why);
        (void)snprintf(ret->name, sizeof ret->name, "%s", t->name);
        (void)snprintf(ret->address, sizeof ret->address, "%s", t->at.address);
        (void)snprintf(ret->dial, sizeof ret->dial, "%s", t->at.dial ? t->at.dial : "");
    }
    fleet_unlock(f);
    return found;
}

/* ---- JSON ---- */

static int put_str(struct buf *b, const char *key, const char *v)
{
    int r = buf_addf(b, "\"%s\":", key);
    return r < 0 ? r : buf_add_json_str(b, v, strlen(v));
}

static int put_models(const struct gw_target *t, struct buf *b)
{
    int r = buf_adds(b, ",\"models\":[");
    for (size_t i = 0; r == 0 && i < t->models.n; i++) {
        if (i > 0) r = buf_addc(b, ',');
        if (r == 0) r = buf_add_json_str(b, t->models.v[i].id, strlen(t->models.v[i].id));
    }
    return r < 0 ? r : buf_addc(b, ']');
}

static int put_target(const struct gw_target *t, struct buf *b)
{
    const uint64_t *n = t->count.outcome;
    const struct gw_upstream *u = t->up;
    double wait_ms = fleet_load_wait_ms(t, clock_ns()), ready_s = 0;
    if (t->health.state == GW_TARGET_READY && t->health.ready_since_ns)
        ready_s = clock_ms_since(t->health.ready_since_ns) / 1e3;
    int r = buf_addf(b, "{\"index\":%u,", t->index);
    if (r == 0) r = put_str(b, "name", t->name);
    if (r == 0) r = buf_addc(b, ',');
    if (r == 0) r = put_str(b, "address", t->at.address);
    if (r == 0)
        r = buf_addf(b,
                     ",\"kind\":\"%s\",\"own\":%s,\"state\":\"%s\",\"breaker\":\"%s\","
                     "\"in_flight\":%u,\"in_flight_max\":%u,\"weight\":%g,\"priority\":%u,"
                     "\"picked\":%llu,\"ok\":%llu,\"busy\":%llu,\"failed\":%llu,\"timeouts\":%llu,"
                     "\"prompt_tokens_in_flight\":%llu,\"ttfb_ms\":%.3f,\"ready_s\":%.1f",
                     t->worker ? "worker" : "upstream", t->own ? "true" : "false",
                     gw_target_state_name(state_of(t)), breaker_name(t), t->n_inflight,
                     u ? u->inflight_max : 0, u ? u->weight : 1, u ? u->priority : 0,
                     (unsigned long long)t->count.picked, (unsigned long long)n[GW_DONE_OK],
                     (unsigned long long)n[GW_DONE_BUSY], (unsigned long long)n[GW_DONE_FAILED],
                     (unsigned long long)n[GW_DONE_TIMEOUT],
                     (unsigned long long)t->tokens_in_flight, t->ttfb_ms, ready_s);
    if (r == 0 && wait_ms >= 0) r = buf_addf(b, ",\"predicted_wait_ms\":%.1f", wait_ms);
    if (r == 0 && u) r = buf_addf(b, ",\"lmcache\":%s", u->lmcache ? "true" : "false");
    if (r == 0 && t->health.why[0]) r = buf_addc(b, ',');
    if (r == 0 && t->health.why[0]) r = put_str(b, "reason", t->health.why);
    if (r == 0) r = put_models(t, b);
    return r < 0 ? r : buf_addc(b, '}');
}

int gw_fleet_format(const struct gw_fleet *f, unsigned kinds, struct buf *out)
{
    int r = buf_addc(out, '[');
    fleet_lock(f);
    for (size_t i = 0, n = 0; r == 0 && i < f->n; i++) {
        unsigned kind = f->target[i]->worker ? GW_SERVES_WORKER : GW_SERVES_UPSTREAM;
        if (f->target[i]->retired || !(kinds & kind)) continue;
        if (n++ > 0) r = buf_addc(out, ',');
        if (r == 0) r = put_target(f->target[i], out);
    }
    fleet_unlock(f);
    return r < 0 ? r : buf_addc(out, ']');
}

/* ---- metrics ---- */

static double value_up(const struct gw_target *t)
{
    return t->health.state == GW_TARGET_READY && fleet_is_open(t);
}
static double value_inflight(const struct gw_target *t)
{
    return t->n_inflight;
}
static double value_failures(const struct gw_target *t)
{
    return (double)(t->count.outcome[GW_DONE_FAILED] + t->count.outcome[GW_DONE_TIMEOUT]);
}
static double value_breaker(const struct gw_target *t)
{
    return t->health.breaker.state != BREAKER_CLOSED;
}
static double value_picked(const struct gw_target *t)
{
    return (double)t->count.picked;
}
static double value_wait(const struct gw_target *t)
{
    double ms = fleet_load_wait_ms(t, clock_ns());
    return ms > 0 ? ms / 1e3 : 0;
}

static const struct family {
    const char *name, *type, *help;
    double (*value)(const struct gw_target *t);
} families[] = {
    {"kvblend_gateway_upstream_up", "gauge", "1: takes requests.", value_up},
    {"kvblend_gateway_upstream_inflight", "gauge", "Requests at the backend.", value_inflight},
    {"kvblend_gateway_upstream_failures_total", "counter",
     "Tries that failed: not reached, lost, 5xx, too slow.", value_failures},
    {"kvblend_gateway_upstream_breaker_open", "gauge", "1: its circuit breaker is not closed.",
     value_breaker},
    {"kvblend_gateway_upstream_picked_total", "counter", "Tries sent to the backend.",
     value_picked},
    {"kvblend_gateway_upstream_predicted_wait_seconds", "gauge",
     "Predicted wait for the first token of a request that came now (0: none, or unknown).",
     value_wait},
    {"kvblend_gateway_upstream_requests_total", "counter", "Answers by status.", NULL},
};

static int put_statuses(const struct gw_target *t, const char *name, struct buf *b)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i <= N_STATUSES; i++) {
        char code[12] = "other";
        if (t->count.status[i] == 0) continue;
        if (i < N_STATUSES) (void)snprintf(code, sizeof code, "%d", statuses[i]);
        r = buf_addf(b, "%s{target=\"%s\",code=\"%s\"} %llu\n", name, t->name, code,
                     (unsigned long long)t->count.status[i]);
    }
    return r;
}

int gw_fleet_metrics(const struct gw_fleet *f, struct buf *out)
{
    int r = 0;
    fleet_lock(f);
    for (size_t i = 0; r == 0 && i < sizeof families / sizeof families[0]; i++) {
        const struct family *m = &families[i];
        r = buf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", m->name, m->help, m->name, m->type);
        for (size_t j = 0; r == 0 && j < f->n; j++) {
            const struct gw_target *t = f->target[j];
            if (t->retired) continue;
            r = m->value ? buf_addf(out, "%s{target=\"%s\"} %.17g\n", m->name, t->name, m->value(t))
                         : put_statuses(t, m->name, out);
        }
    }
    fleet_unlock(f);
    return r;
}
