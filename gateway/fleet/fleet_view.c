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
    t->n_status[i]++;
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

const char *gw_fleet_error_words(int error)
{
    static const struct {
        int error;
        const char *words;
    } table[] = {{ECONNREFUSED, "connection refused"},
                 {ETIMEDOUT, "no answer in time"},
                 {ETIME, "the answer took too long"},
                 {EPIPE, "the connection was cut"},
                 {ECONNRESET, "the connection was cut"},
                 {EHOSTUNREACH, "no way to its address"},
                 {ENETUNREACH, "no way to its address"},
                 {EBADMSG, "the answer is not HTTP"},
                 {EPROTO, "TLS failed"},
                 {EADDRNOTAVAIL, "its name cannot be resolved"}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].error == -error) return table[i].words;
    return err_name(error);
}

void fleet_blame(struct gw_target *t, int error, int status, const char *detail)
{
    if (*detail)
        (void)snprintf(t->why, sizeof t->why, "%s", detail);
    else if (error < 0)
        (void)snprintf(t->why, sizeof t->why, "%s", gw_fleet_error_words(error));
    else if (status == 401)
        (void)snprintf(t->why, sizeof t->why, "401: the key is not accepted");
    else
        (void)snprintf(t->why, sizeof t->why, "it answers %d", status);
}

int gw_fleet_reasons(const struct gw_fleet *f, const char *model, struct buf *out)
{
    size_t begin = out->len;
    const char *sent;
    int r = 0;
    fleet_lock(f);
    for (size_t i = 0; r == 0 && i < f->n; i++) {
        const struct gw_target *t = f->target[i];
        if (!t->why[0] || !fleet_is_open(t) || fleet_serves(f, t, model, &sent) == FLEET_NO)
            continue;
        const char *said = out->len > begin ? buf_cstr(out) : "";
        if (said && strstr(said + (*said ? begin : 0), t->why)) continue;
        r = buf_addf(out, "%s%s", *said ? "; " : "", t->why);
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
        bool ready = t->health == GW_TARGET_READY && fleet_is_open(t);
        *(t->worker ? &c.workers : &c.upstreams) += 1;
        *(t->worker ? &c.workers_ready : &c.upstreams_ready) += ready;
    }
    fleet_unlock(f);
    return c;
}

const char *gw_fleet_noun(const struct gw_fleet *f)
{
    struct gw_fleet_count c = gw_fleet_count_kinds(f);
    if (!c.workers == !c.upstreams) return "backend";
    return c.workers ? "worker" : "upstream";
}

unsigned gw_fleet_n_ready(const struct gw_fleet *f)
{
    unsigned n = 0;
    fleet_lock(f);
    for (size_t i = 0; i < f->n; i++)
        n += f->target[i]->health == GW_TARGET_READY && fleet_is_open(f->target[i]);
    fleet_unlock(f);
    return n;
}

bool gw_fleet_hopeful(const struct gw_fleet *f)
{
    bool yes = false;
    fleet_lock(f);
    for (size_t i = 0; i < f->n; i++) {
        const struct gw_target *t = f->target[i];
        yes |= fleet_is_open(t) && (t->own || t->health != GW_TARGET_DOWN);
    }
    fleet_unlock(f);
    return yes;
}

static enum gw_target_state state_of(const struct gw_target *t)
{
    if (t->retired) return GW_TARGET_RETIRED;
    return t->leaving || t->drained ? GW_TARGET_DRAINING : t->health;
}

static const char *breaker_name(const struct gw_target *t)
{
    static const char *const names[] = {"closed", "open", "half_open"};
    return names[t->breaker.state];
}

static void view(const struct gw_target *t, struct gw_target_view *ret)
{
    *ret = (struct gw_target_view){
        .index = t->index,
        .own = t->own,
        .worker = t->worker,
        .state = state_of(t),
        .breaker = breaker_name(t),
        .n_inflight = t->n_inflight,
        .inflight_max = t->up ? t->up->inflight_max : 0,
        .n_models = (unsigned)t->n_models,
        .n_ok = t->n_ok,
        .n_failed = t->n_failed,
        .n_timeout = t->n_timeout,
        .n_busy = t->n_busy,
        .n_picked = t->n_picked,
        .prompt_tokens_in_flight = t->tokens_in_flight,
        .ttfb_ms = t->ttfb_ms,
        .wait_ms = fleet_load_wait_ms(t, clock_ns()),
        .ready_since_ns = t->health == GW_TARGET_READY ? t->ready_since_ns : 0,
        .weight = t->up ? t->up->weight : 1,
    };
    (void)snprintf(ret->name, sizeof ret->name, "%s", t->name);
    (void)snprintf(ret->address, sizeof ret->address, "%s", t->address);
    (void)snprintf(ret->why, sizeof ret->why, "%s", t->why);
    (void)snprintf(ret->dial, sizeof ret->dial, "%s", t->dial ? t->dial : "");
}

bool gw_fleet_view(const struct gw_fleet *f, unsigned index, struct gw_target_view *ret)
{
    fleet_lock(f);
    bool found = index < f->n;
    if (found) view(f->target[index], ret);
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
    for (size_t i = 0; r == 0 && i < t->n_models; i++) {
        if (i > 0) r = buf_addc(b, ',');
        if (r == 0) r = buf_add_json_str(b, t->model[i].id, strlen(t->model[i].id));
    }
    return r < 0 ? r : buf_addc(b, ']');
}

static int put_target(const struct gw_target *t, struct buf *b)
{
    struct gw_target_view v;
    view(t, &v);
    int r = buf_addf(b, "{\"index\":%u,", v.index);
    if (r == 0) r = put_str(b, "name", t->name);
    if (r == 0) r = buf_addc(b, ',');
    if (r == 0) r = put_str(b, "address", t->address);
    if (r == 0)
        r = buf_addf(b,
                     ",\"kind\":\"%s\",\"own\":%s,\"state\":\"%s\",\"breaker\":\"%s\","
                     "\"in_flight\":%u,\"in_flight_max\":%u,\"weight\":%g,\"priority\":%u,"
                     "\"picked\":%llu,\"ok\":%llu,\"busy\":%llu,\"failed\":%llu,\"timeouts\":%llu,"
                     "\"prompt_tokens_in_flight\":%llu,\"ttfb_ms\":%.3f,\"ready_s\":%.1f",
                     t->worker ? "worker" : "upstream", t->own ? "true" : "false",
                     gw_target_state_name(v.state), v.breaker, v.n_inflight, v.inflight_max,
                     v.weight, t->up ? t->up->priority : 0, (unsigned long long)v.n_picked,
                     (unsigned long long)v.n_ok, (unsigned long long)v.n_busy,
                     (unsigned long long)v.n_failed, (unsigned long long)v.n_timeout,
                     (unsigned long long)v.prompt_tokens_in_flight, v.ttfb_ms,
                     v.ready_since_ns ? clock_ms_since(v.ready_since_ns) / 1e3 : 0);
    if (r == 0 && v.wait_ms >= 0) r = buf_addf(b, ",\"predicted_wait_ms\":%.1f", v.wait_ms);
    if (r == 0 && t->up) r = buf_addf(b, ",\"lmcache\":%s", t->up->lmcache ? "true" : "false");
    if (r == 0 && t->why[0]) r = buf_adds(b, ",");
    if (r == 0 && t->why[0]) r = put_str(b, "reason", t->why);
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
    return t->health == GW_TARGET_READY && fleet_is_open(t);
}
static double value_inflight(const struct gw_target *t)
{
    return t->n_inflight;
}
static double value_failures(const struct gw_target *t)
{
    return (double)(t->n_failed + t->n_timeout);
}
static double value_breaker(const struct gw_target *t)
{
    return t->breaker.state != BREAKER_CLOSED;
}
static double value_picked(const struct gw_target *t)
{
    return (double)t->n_picked;
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
        if (t->n_status[i] == 0) continue;
        if (i < N_STATUSES) (void)snprintf(code, sizeof code, "%d", statuses[i]);
        r = buf_addf(b, "%s{target=\"%s\",code=\"%s\"} %llu\n", name, t->name, code,
                     (unsigned long long)t->n_status[i]);
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
