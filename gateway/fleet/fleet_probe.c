/* Active health: one timer and at most one call per target, all on the control loop.
 *
 * Own workers are asked often while they are not ready, so that they are used as soon as they can
 * be. An upstream becomes ready by its first good answer after the start, later by two
 * of them, and is taken out by health.failures bad ones. Where its health is its list of models one
 * request serves both. Whatever answers without a fault of the server counts as alive there: a list
 * of models that is not offered (404) or not for this key (403) says nothing against completions; a
 * key that is not accepted (401) does.
 *
 * Names of backends become addresses on a helper thread: getaddrinfo() may take seconds, and no
 * loop may wait for it. Connections are kept while a name stands for the same addresses, in
 * whatever order. */
#include "gateway/fleet/fleet_int.h"

#include "base/clock.h"
#include "base/jobs.h"
#include "base/log.h"
#include "base/mem.h"
#include "segment/segment.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

enum {
    FAST_MS = 50,    /* chosen: an own worker is used as soon as it can be */
    REMOTE_MS = 500, /* chosen: a remote one that is down is asked gently */
    SLOW_MS = 2000,
    TIMEOUT_MS = 5000,
    WORKER_FAILURES = 3,
    MODELS_MS = 60000, /* chosen: how long a list of models is believed */
    MODELS_AGAIN_MS = 1000,
    BODY_MAX = 1 << 20,
    ADDRESSES_MAX = 4, /* as many as a client tries */
    AGAIN_MS = 30000,  /* chosen: how long an address is believed */
    NUMERIC_BYTES = INET6_ADDRSTRLEN + 10,
};

static void begin_probe(struct fleet_probe *p, bool models);

/* ---- what others must be told ---- */

/* One target's news, taken under the lock; 0: there are none. */
static unsigned take_news(struct gw_fleet *f, struct gw_target **ret)
{
    for (size_t i = 0; i < f->n; i++) {
        unsigned news = f->target[i]->news;
        *ret = f->target[i];
        f->target[i]->news = 0;
        if (news) return news;
    }
    return 0;
}

static void arm_room_timer(struct gw_fleet *f)
{
    fleet_lock(f);
    uint64_t at = f->room_at_ns, now = clock_ns();
    f->room_at_ns = 0;
    fleet_unlock(f);
    bool sooner = at && (!f->room_due_ns || at < f->room_due_ns);
    if (!sooner || !f->started) return;
    f->room_due_ns = at;
    http_timer_set(&f->room_timer, at > now ? (at - now) / 1000000 + 1 : 0);
}

void fleet_pump(struct gw_fleet *f)
{
    if (f->pumping) return; /* a callback brought news: the loop below finds them */
    f->pumping = true;
    for (;;) {
        struct gw_target *t = NULL;
        fleet_lock(f);
        unsigned news = take_news(f, &t);
        bool room = f->room;
        f->room = false;
        fleet_unlock(f);
        if (!news && !room) break;
        if (news & FLEET_WANTED && f->ops.on_wanted) f->ops.on_wanted(f->ctx, t->index);
        if (news & FLEET_PROBE) fleet_probe_soon(&t->probe, 1);
        if (news & FLEET_LOST) gw_feed_stop(t);
        if (news & FLEET_READY) gw_feed_start(t);
        if (news & FLEET_LOST) f->ops.on_lost(f->ctx);
        if (news & FLEET_READY) f->ops.on_ready(f->ctx);
        if (room) f->ops.on_room(f->ctx);
    }
    f->pumping = false;
    arm_room_timer(f);
}

/* ---- when ---- */

static uint64_t interval_ms(struct fleet_probe *p)
{
    struct gw_fleet *f = p->fleet;
    struct gw_target *t = p->target;
    uint64_t ms;
    fleet_lock(f);
    uint64_t jitter = 800 + rng_next(&f->rng) % 401;
    if (t->worker) {
        ms = t->health.state == GW_TARGET_READY ? SLOW_MS : t->own ? FAST_MS : REMOTE_MS;
        jitter = 1000;
    } else if (!t->up) {
        ms = 0;
    } else if (!t->up->health) {
        ms = fleet_models_wanted(t) && !t->models.known ? MODELS_AGAIN_MS : MODELS_MS;
    } else {
        ms = t->up->health_interval_ms;
        if (t->health.ready_since_ns == 0 && ms > REMOTE_MS) ms = REMOTE_MS;
    }
    bool gone = t->retired || t->health.state == GW_TARGET_ASLEEP;
    fleet_unlock(f);
    return gone ? 0 : ms * jitter / 1000;
}

void fleet_probe_soon(struct fleet_probe *p, uint64_t ms)
{
    if (!p->fleet->started || p->call) return;
    uint64_t regular = interval_ms(p);
    if (regular == 0)
        http_timer_clear(&p->timer); /* it is gone, or asleep */
    else
        http_timer_set(&p->timer, ms ? ms : regular);
}

void fleet_probe_cancel(struct fleet_probe *p)
{
    http_timer_clear(&p->timer);
    if (p->call) http_call_cancel(p->call);
    p->call = NULL;
}

/* ---- what was answered ---- */

/* error: a negative errno, or 0 and the answer's status tells. */
static void probe_failed(struct fleet_probe *p, int error, const char *detail)
{
    struct gw_fleet *f = p->fleet;
    struct gw_target *t = p->target;
    p->failures++;
    p->successes = 0;
    fleet_lock(f);
    /* An own worker that does not answer yet is starting: its death would come as a signal. */
    bool starting = t->own && t->health.state == GW_TARGET_LOADING;
    if (!starting) fleet_blame(t, error, p->status, detail);
    unsigned max = t->worker ? WORKER_FAILURES : f->set.failures;
    bool out = t->health.state == GW_TARGET_LOADING || t->health.suspect || p->failures >= max;
    if (out && !starting && !t->retired) fleet_set_health(f, t, GW_TARGET_DOWN);
    uint64_t silent_ms = (clock_ns() - t->health.last_ok_ns) / 1000000;
    fleet_unlock(f);
    fleet_probe_soon(p, 0);
    fleet_pump(f);
    if (f->ops.on_silent) f->ops.on_silent(f->ctx, t->index, silent_ms);
}

static void worker_answered(struct fleet_probe *p)
{
    struct gw_fleet *f = p->fleet;
    struct gw_target *t = p->target;
    p->failures = 0;
    int r = 0;
    if (p->models && p->status == 200) {
        r = fleet_models_read(f, t, &p->body);
        if (r < 0) log_event(LOG_WARN, "worker.models", "target=%s error=%s", t->name, err_name(r));
    }
    fleet_lock(f);
    bool ready = t->health.state == GW_TARGET_READY;
    t->health.last_ok_ns = clock_ns(); /* it answers, whatever it says */
    t->health.why[0] = '\0';
    if (t->health.suspect && p->status == 200 && ready) t->news |= FLEET_READY;
    t->health.suspect = false;
    bool next = p->status == 200 && !p->models && !ready;
    if (!t->retired && !next && (p->models || p->status != 200))
        fleet_set_health(f, t, p->status == 200 && r == 0 ? GW_TARGET_READY : GW_TARGET_LOADING);
    fleet_unlock(f);
    if (next)
        begin_probe(p, true);
    else
        fleet_probe_soon(p, 0);
    fleet_pump(f);
}

static bool is_alive(const struct fleet_probe *p)
{
    static const int fine[] = {403, 404, 405, 501};
    if ((p->status >= 200 && p->status < 300) || p->status == 429) return true;
    for (size_t i = 0; p->models && i < sizeof fine / sizeof fine[0]; i++)
        if (p->status == fine[i]) return true;
    return false;
}

static void read_models(struct fleet_probe *p)
{
    struct gw_fleet *f = p->fleet;
    struct gw_target *t = p->target;
    int r = p->status == 200 ? fleet_models_read(f, t, &p->body) : 0;
    fleet_lock(f);
    t->models.at_ns = clock_ns();
    /* Nothing is listed: whatever clients ask for may be served. */
    if (!t->models.known && (r == -EBADMSG || (p->status >= 300 && p->status != 429))) {
        t->models.known = t->models.any = true;
        if (t->health.state == GW_TARGET_READY) t->news |= FLEET_READY;
    }
    fleet_unlock(f);
    if (r < 0) log_event(LOG_WARN, "upstream.models", "target=%s error=%s", t->name, err_name(r));
}

static void upstream_answered(struct fleet_probe *p)
{
    struct gw_fleet *f = p->fleet;
    struct gw_target *t = p->target;
    if (p->models && is_alive(p)) read_models(p);
    fleet_lock(f);
    uint64_t now = clock_ns();
    if (p->health) {
        p->failures = 0;
        p->successes++;
        t->health.last_ok_ns = now;
        if (t->health.breaker.state == BREAKER_CLOSED) t->health.why[0] = '\0';
        bool enough = t->health.ready_since_ns == 0 || p->successes >= f->set.successes;
        if (enough && !t->retired) fleet_set_health(f, t, GW_TARGET_READY);
    }
    bool next = !p->models && !t->retired && fleet_models_wanted(t) &&
                (t->models.at_ns == 0 || now - t->models.at_ns > MODELS_MS * 1000000ull);
    fleet_unlock(f);
    if (next)
        begin_probe(p, true);
    else
        fleet_probe_soon(p, 0);
    fleet_pump(f);
}

static void on_probe_head(void *ctx, int status, const struct http_head *h)
{
    struct fleet_probe *p = ctx;
    p->status = status;
}

static void on_probe_body(void *ctx, const char *data, size_t len)
{
    struct fleet_probe *p = ctx;
    if (p->body.len + len <= BODY_MAX) (void)buf_add(&p->body, data, len);
}

static void on_probe_end(void *ctx, int status)
{
    struct fleet_probe *p = ctx;
    char why[160];
    /* Of TLS more is worth saying; other sentences name addresses, which are not clients' to know.
     */
    (void)snprintf(why, sizeof why, "%s", status == -EPROTO ? http_call_why(p->call) : "");
    p->call = NULL;
    fleet_lock(p->fleet);
    bool stale = p->generation != p->target->at.generation;
    fleet_unlock(p->fleet);
    if (stale) /* another address by now, or another certificate: what was said counts no more */
        fleet_probe_soon(p, 1);
    else if (p->target->worker)
        status < 0 ? probe_failed(p, status, why) : worker_answered(p);
    else if (status == 0 && (is_alive(p) || !p->health))
        upstream_answered(p);
    else if (p->health)
        probe_failed(p, status, why);
    else
        fleet_probe_soon(p, 0);
}

static const struct http_call_ops call_ops = {on_probe_head, on_probe_body, on_probe_end};

/* ---- names ---- */

/* HOST of "HOST:PORT" or "[V6]:PORT" without brackets; the port is returned. */
static const char *split(const char *address, char *host, size_t cap)
{
    const char *colon = strrchr(address, ':'), *from = address, *to = colon;
    if (!colon || strncmp(address, "unix:", 5) == 0) return NULL;
    if (*from == '[') {
        from++;
        to--;
    }
    if (to <= from || (size_t)(to - from) >= cap) return NULL;
    memcpy(host, from, (size_t)(to - from));
    host[to - from] = '\0';
    return colon + 1;
}

bool fleet_is_name(const char *address)
{
    char host[256];
    unsigned char scratch[sizeof(struct in6_addr)];
    if (!split(address, host, sizeof host)) return false;
    return inet_pton(AF_INET, host, scratch) != 1 && inet_pton(AF_INET6, host, scratch) != 1;
}

static size_t look_up(const char *address, char text[ADDRESSES_MAX][NUMERIC_BYTES])
{
    char host[256], ip[INET6_ADDRSTRLEN];
    const char *port = split(address, host, sizeof host);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list = NULL;
    size_t n = 0;
    if (!port || getaddrinfo(host, NULL, &hints, &list) != 0) return 0;
    for (const struct addrinfo *a = list; a && n < ADDRESSES_MAX; a = a->ai_next) {
        if (getnameinfo(a->ai_addr, a->ai_addrlen, ip, sizeof ip, NULL, 0, NI_NUMERICHOST) != 0)
            continue;
        bool v6 = a->ai_family == AF_INET6;
        (void)snprintf(text[n++], NUMERIC_BYTES, v6 ? "[%s]:%s" : "%s:%s", ip, port);
    }
    freeaddrinfo(list);
    return n;
}

/* The list as a client takes it, and a hash that its order does not change. */
static char *join(char text[][NUMERIC_BYTES], size_t n, uint64_t *ret_hash)
{
    struct buf b = BUF_INIT;
    uint64_t sum = n;
    int r = 0;
    for (size_t i = 0; r == 0 && i < n; i++) {
        sum += seg_text_id("fleet", text[i], strlen(text[i]));
        r = buf_addf(&b, "%s%s", i ? "," : "", text[i]);
    }
    *ret_hash = sum;
    char *joined = r == 0 && n > 0 && buf_cstr(&b) ? buf_take(&b, NULL) : NULL;
    buf_fini(&b);
    return joined;
}

static void resolve_name(void *arg) /* helper thread */
{
    struct gw_target *t = arg;
    struct gw_fleet *f = t->probe.fleet;
    char text[ADDRESSES_MAX][NUMERIC_BYTES];
    uint64_t hash = 0;
    fleet_lock(f);
    char *address = f->quitting ? NULL : mem_strdup(t->at.address);
    fleet_unlock(f);
    size_t n = address ? look_up(address, text) : 0;
    char *dial = join(text, n, &hash);
    fleet_lock(f);
    bool same = address && strcmp(address, t->at.address) == 0, first = !t->at.dial;
    t->at.resolving = false;
    t->at.resolved_at_ns = clock_ns();
    t->at.unresolved = !dial;
    if (same && dial && (first || hash != t->at.dial_hash)) {
        char *was = t->at.dial;
        t->at.dial = dial;
        t->at.dial_hash = hash;
        t->at.generation++;
        dial = was;
    }
    if (first || !same) {
        t->news |= FLEET_PROBE;
        fleet_wake(f);
    }
    fleet_unlock(f);
    mem_free(dial);
    mem_free(address);
}

static void resolve_if_due(struct gw_target *t)
{
    struct gw_fleet *f = t->probe.fleet;
    uint64_t now = clock_ns();
    fleet_lock(f);
    bool fresh = t->at.dial && now - t->at.resolved_at_ns < AGAIN_MS * 1000000ull;
    bool due = t->at.is_name && !t->at.resolving && !t->retired && !fresh;
    t->at.resolving |= due;
    fleet_unlock(f);
    if (!due) return;
    int r =
        f->resolver ? 0 : jobs_create(&(struct jobs_opts){1, GW_TARGETS_MAX, NULL}, &f->resolver);
    if (r == 0) r = jobs_submit(f->resolver, resolve_name, t);
    if (r == 0) return;
    fleet_lock(f);
    t->at.resolving = false;
    fleet_unlock(f);
}

/* ---- asking ---- */

/* The request's path and headers; what its answer will tell. */
static int compose(struct fleet_probe *p, bool models, struct buf *path, struct buf *headers)
{
    const struct gw_upstream *u = p->target->up;
    p->models = models;
    p->health = !models;
    if (p->target->worker) {
        const char *key = p->target->authorization;
        int r = buf_adds(path, models ? "/v1/models" : "/health");
        return r < 0 || !key ? r : buf_addf(headers, "authorization: %s\r\n", key);
    }
    if (!u) return -ENOENT;
    int r = buf_addf(path, "%s/models", u->base);
    if (r == 0 && buf_addc(path, '\0') == 0) path->len--;
    if (r == 0 && !u->health) {
        p->models = true;
        p->health = false;
    } else if (r == 0 && strcmp(path->data, u->health) == 0) {
        p->models = p->health = true;
    } else if (r == 0 && !models) {
        buf_clear(path);
        r = buf_adds(path, u->health);
    }
    if (r == 0 && u->authorization)
        r = buf_addf(headers, "authorization: %s\r\n", u->authorization);
    return r < 0 ? r : buf_adds(headers, "accept: application/json\r\n");
}

static int ensure_client(struct fleet_probe *p)
{
    static const struct http_client_opts limits = {
        .conns_max = 1,
        .connect_timeout_ms = TIMEOUT_MS,
        .first_byte_timeout_ms = TIMEOUT_MS,
        .idle_timeout_ms = TIMEOUT_MS,
        .total_timeout_ms = 2 * TIMEOUT_MS}; /* an answer may not drip for ever */
    fleet_lock(p->fleet);
    bool good = p->client && p->generation == p->target->at.generation;
    fleet_unlock(p->fleet);
    if (good) return 0;
    http_client_destroy(p->client);
    p->client = NULL;
    return fleet_client_make(p->fleet, p->target, p->fleet->loop, &limits, &p->client,
                             &p->generation);
}

/* Health checks are off: it is ready as soon as its address is known, and is asked for nothing but
 * a list of models that is needed. Locked. */
static bool is_quiet(struct fleet_probe *p)
{
    struct gw_target *t = p->target;
    if (!t->up || t->up->health) return false;
    if (!t->retired) fleet_set_health(p->fleet, t, GW_TARGET_READY);
    return !fleet_models_wanted(t);
}

/* Nothing can be asked before its name stands for an address. */
static void await_address(struct fleet_probe *p)
{
    fleet_lock(p->fleet);
    bool hopeless = p->target->at.unresolved;
    p->target->at.unresolved = false; /* asked again the next time */
    fleet_unlock(p->fleet);
    if (hopeless)
        probe_failed(p, -EADDRNOTAVAIL, "");
    else
        resolve_if_due(p->target);
    fleet_probe_soon(p, 0);
}

static void begin_probe(struct fleet_probe *p, bool models)
{
    struct buf path = BUF_INIT, headers = BUF_INIT;
    p->status = 0;
    buf_clear(&p->body);
    int r = ensure_client(p);
    if (r == -EHOSTUNREACH) {
        await_address(p);
        return;
    }
    resolve_if_due(p->target);
    fleet_lock(p->fleet);
    bool quiet = is_quiet(p);
    if (r == 0 && !quiet) r = compose(p, models, &path, &headers);
    fleet_unlock(p->fleet);
    if (quiet) {
        fleet_probe_soon(p, 0);
        fleet_pump(p->fleet);
        return;
    }
    if (r == 0)
        r = http_call_start(p->client,
                            &(struct http_request){.method = "GET",
                                                   .target = buf_cstr(&path),
                                                   .headers = buf_cstr(&headers)},
                            &call_ops, p, &p->call);
    if (headers.data) explicit_bzero(headers.data, headers.cap);
    buf_fini(&path);
    buf_fini(&headers);
    if (r == 0) return;
    p->call = NULL;
    probe_failed(p, r, "");
}

static void on_probe_timer(void *arg)
{
    struct fleet_probe *p = arg;
    if (!p->call) begin_probe(p, false);
}

void fleet_probe_init(struct gw_fleet *f, struct gw_target *t)
{
    t->probe.fleet = f;
    t->probe.target = t;
    http_timer_init(&t->probe.timer, f->loop, on_probe_timer, &t->probe);
}

void fleet_probe_fini(struct fleet_probe *p)
{
    if (p->call) http_call_cancel(p->call);
    http_timer_fini(&p->timer);
    http_client_destroy(p->client);
    buf_fini(&p->body);
}
