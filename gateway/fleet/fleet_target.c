/* One target under the fleet's lock: its health, its breaker, what it failed with, and the
 * connections of each loop. Connections are made outside the lock, from copies. */
#include "gateway/fleet/fleet_int.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    CONNS_MAX = 8192,      /* above any sane max_inflight: admission is the limit, not this */
    BREAKER_HALF_PCT = 50, /* cited: half of the last 20 */
};

const char *gw_target_state_name(enum gw_target_state s)
{
    static const char *const names[] = {"down",     "loading", "ready",
                                        "draining", "retired", "asleep"};
    return names[s];
}

void fleet_wake(struct gw_fleet *f)
{
    uint64_t one = 1;
    if (f->woken) return;
    f->woken = true;
    (void)!write(f->wake_fd, &one, sizeof one); /* the counter cannot overflow */
}

void fleet_breaker_reset(struct gw_fleet *f, struct gw_target *t)
{
    breaker_init(&t->health.breaker, rng_next(&f->rng));
    t->health.breaker.rule.failed_pct = BREAKER_HALF_PCT;
    t->health.breaker.rule.timeouts_max = 0;
}

void fleet_set_health(struct gw_fleet *f, struct gw_target *t, enum gw_target_state s)
{
    enum gw_target_state old = t->health.state;
    if (s != GW_TARGET_READY) t->health.suspect = false;
    if (old == s) return;
    t->health.state = s;
    log_event(LOG_NOTICE, t->worker ? "worker.state" : "upstream.state",
              "target=%s index=%u address=%s state=%s%s%s%s", t->name, t->index, t->at.address,
              gw_target_state_name(s), t->health.why[0] ? " reason=\"" : "", t->health.why,
              t->health.why[0] ? "\"" : "");
    if (s == GW_TARGET_READY) {
        uint64_t now = clock_ns();
        if (t->health.ready_since_ns) t->health.slow_from_ns = now; /* it comes back: gently */
        t->health.ready_since_ns = t->used_ns = now;
        if (t->worker) fleet_breaker_reset(f, t); /* another process, another history */
        t->news |= FLEET_READY;
    } else {
        /* Requests may wait for an upstream's first answer. */
        if (old == GW_TARGET_READY || !t->worker) t->news |= FLEET_LOST;
    }
}

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
    char answer[40];
    (void)snprintf(answer, sizeof answer,
                   status == 401 ? "401: the key is not accepted" : "it answers %d", status);
    (void)snprintf(t->health.why, sizeof t->health.why, "%s",
                   *detail     ? detail
                   : error < 0 ? gw_fleet_error_words(error)
                               : answer);
}

const struct gw_upstream *fleet_upstream_hold(const struct gw_upstream *u)
{
    if (u) u->list->n_users++;
    return u;
}

void fleet_upstream_release(const struct gw_upstream *u)
{
    if (u && --u->list->n_users == 0) gw_upstreams_free(u->list);
}

void fleet_retire_if_idle(struct gw_fleet *f, struct gw_target *t)
{
    if (!t->leaving || t->retired || t->n_inflight > 0) return;
    t->retired = true;
    t->health.state = GW_TARGET_DOWN;
    fleet_upstream_release(t->up);
    t->up = NULL;
    log_event(LOG_NOTICE, t->worker ? "worker.state" : "upstream.state",
              "target=%s index=%u address=%s state=retired", t->name, t->index, t->at.address);
    t->news |= FLEET_PROBE; /* the control loop ends its probes */
    fleet_wake(f);
}

/* ---- connections ---- */

/* Older connections go once their calls have ended. */
static void sweep_clients(struct gw_target *t, unsigned loop)
{
    struct fleet_client **p = &t->clients[loop]->next;
    while (*p) {
        struct fleet_client *c = *p;
        if (http_client_n_calls(c->client) > 0) {
            p = &c->next;
            continue;
        }
        *p = c->next;
        http_client_destroy(c->client);
        mem_free(c);
    }
}

void fleet_clients_close(struct gw_target *t, unsigned loop)
{
    struct fleet_client *next;
    for (struct fleet_client *c = t->clients[loop]; c; c = next) {
        next = c->next;
        http_client_destroy(c->client);
        mem_free(c);
    }
    t->clients[loop] = NULL;
}

/* What a client is made from, copied while the lock is held. */
static int copy_dial(const struct gw_target *t, char **ret_address, char **ret_host)
{
    const char *host = t->up ? t->up->host : t->at.is_name ? t->at.address : NULL;
    if (!t->at.dial) return -EHOSTUNREACH;
    *ret_address = mem_strdup(t->at.dial);
    *ret_host = host ? mem_strdup(host) : NULL;
    return *ret_address && (*ret_host || !host) ? 0 : -ENOMEM;
}

int fleet_client_make(struct gw_fleet *f, const struct gw_target *t, struct http_loop *loop,
                      const struct http_client_opts *limits, struct http_client **ret,
                      unsigned *ret_generation)
{
    char *address = NULL, *host = NULL;
    struct http_client_opts o = {.conns_max = CONNS_MAX};
    fleet_lock(f);
    const struct gw_upstream *u = t->up;
    unsigned generation = t->at.generation;
    int r = copy_dial(t, &address, &host);
    if (u && u->connections_max) o.conns_max = u->connections_max;
    o.connect_timeout_ms = u ? u->connect_timeout_ms : f->set.connect_ms;
    o.first_byte_timeout_ms = u ? u->first_byte_timeout_ms : f->set.first_byte_ms;
    o.idle_timeout_ms = u ? u->idle_timeout_ms : f->set.idle_ms;
    o.total_timeout_ms = u ? u->total_timeout_ms : f->set.total_ms;
    if (limits) o = *limits;
    o.tls = t->at.tls ? http_tls_ref(t->at.tls) : NULL;
    fleet_unlock(f);
    o.address = address;
    o.host = host;
    if (r == 0) r = http_client_create(loop, &o, ret);
    if (r == 0) *ret_generation = generation;
    http_tls_unref(o.tls);
    mem_free(address);
    mem_free(host);
    return r;
}

struct http_client *gw_fleet_client(struct gw_fleet *f, unsigned index, unsigned loop_index,
                                    struct http_loop *loop)
{
    ASSERT(loop_index < GW_LOOPS_MAX);
    fleet_lock(f);
    struct gw_target *t = index < f->n && !f->target[index]->retired ? f->target[index] : NULL;
    struct fleet_client *c = t ? t->clients[loop_index] : NULL;
    bool good = c && c->generation == t->at.generation;
    fleet_unlock(f);
    if (good && c->next) sweep_clients(t, loop_index);
    if (good) return c->client;
    c = t ? mem_zalloc(sizeof *c) : NULL;
    if (!c || fleet_client_make(f, t, loop, NULL, &c->client, &c->generation) < 0) {
        mem_free(c);
        return NULL;
    }
    c->next = t->clients[loop_index];
    t->clients[loop_index] = c;
    return c->client;
}

void gw_fleet_leave(struct gw_fleet *f, unsigned loop)
{
    ASSERT(loop < GW_LOOPS_MAX);
    fleet_lock(f);
    size_t n = f->n;
    fleet_unlock(f);
    for (size_t i = 0; i < n; i++)
        fleet_clients_close(f->target[i], loop);
}
