/* Targets: how they come, change and go. The mutex is held for table look-ups only; connections,
 * TLS settings and addresses are made outside of it from copies. */
#include "gateway/fleet/address.h"
#include "gateway/fleet/fleet_int.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "gateway/process/config.h"
#include "gateway/process/pool.h"
#include "gateway/process/stats.h"

#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    CONNS_MAX = 8192, /* above any sane max_inflight: admission is the limit, not this */
};

const char *gw_target_state_name(enum gw_target_state s)
{
    static const char *const names[] = {"down", "loading", "ready", "draining", "retired"};
    return names[s];
}

uint64_t fleet_random(struct gw_fleet *f) /* splitmix64 */
{
    uint64_t z = (f->random += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

uint64_t fleet_hash(const char *p, size_t len) /* FNV-1a */
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)p[i]) * 0x100000001b3u;
    return h;
}

/* ---- what others must be told ---- */

void fleet_wake(struct gw_fleet *f)
{
    uint64_t one = 1;
    if (f->woken) return;
    f->woken = true;
    (void)!write(f->wake_fd, &one, sizeof one); /* the counter cannot overflow */
}

static void count_ready(struct gw_fleet *f)
{
    unsigned n = 0;
    for (size_t i = 0; i < f->n; i++)
        n += f->target[i]->worker && f->target[i]->health == GW_TARGET_READY &&
             !f->target[i]->retired;
    gw_stats_workers_ready(n);
}

void fleet_set_health(struct gw_fleet *f, struct gw_target *t, enum gw_target_state s)
{
    enum gw_target_state old = t->health;
    if (s != GW_TARGET_READY) t->suspect = false;
    if (old == s) return;
    t->health = s;
    log_event(LOG_NOTICE, t->worker ? "worker.state" : "upstream.state",
              "target=%s index=%u address=%s state=%s%s%s%s", t->name, t->index, t->address,
              gw_target_state_name(s), t->why[0] ? " reason=\"" : "", t->why,
              t->why[0] ? "\"" : "");
    count_ready(f);
    if (s == GW_TARGET_READY) {
        uint64_t now = clock_ns();
        if (t->ready_since_ns) t->slow_from_ns = now; /* it comes back: gently */
        t->ready_since_ns = now;
        if (t->worker) fleet_breaker_reset(f, t); /* another process, another history */
        t->tell_ready = true;
    } else {
        t->n_went_down += old == GW_TARGET_READY;
        /* Requests may wait for an upstream's first answer. */
        t->tell_lost = old == GW_TARGET_READY || !t->worker;
    }
}

/* One thing to tell, taken under the lock; false: none is left. */
static bool take_news(struct gw_fleet *f, struct gw_target **ret_t, bool *ret_ready, bool *ret_lost,
                      bool *ret_probe)
{
    for (size_t i = 0; i < f->n; i++) {
        struct gw_target *t = f->target[i];
        if (!t->tell_ready && !t->tell_lost && !t->probe_now) continue;
        *ret_t = t;
        *ret_ready = t->tell_ready;
        *ret_lost = t->tell_lost;
        *ret_probe = t->probe_now;
        t->tell_ready = t->tell_lost = t->probe_now = false;
        return true;
    }
    return false;
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
    http_timer_set(f->room_timer, at > now ? (at - now) / 1000000 + 1 : 0);
}

void fleet_pump(struct gw_fleet *f)
{
    struct gw_target *t = NULL;
    bool ready = false, lost = false, probe = false;
    if (f->pumping) return; /* a callback brought news: the loop below finds them */
    f->pumping = true;
    for (;;) {
        fleet_lock(f);
        bool more = take_news(f, &t, &ready, &lost, &probe), room = f->room;
        f->room = false;
        fleet_unlock(f);
        if (!more && !room) break;
        if (more && probe) fleet_probe_soon(&t->probe, 1);
        if (more && lost) f->ops.on_lost(f->ctx, t->index);
        if (more && ready) f->ops.on_ready(f->ctx, t->index);
        if (room && f->ops.on_room) f->ops.on_room(f->ctx);
    }
    f->pumping = false;
    arm_room_timer(f);
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    struct gw_fleet *f = arg;
    uint64_t count;
    (void)!read(f->wake_fd, &count, sizeof count);
    fleet_lock(f);
    f->woken = false;
    fleet_unlock(f);
    fleet_pump(f);
}

static void on_room_timer(void *arg)
{
    struct gw_fleet *f = arg;
    f->room_due_ns = 0;
    fleet_lock(f);
    f->room = true;
    f->wants_room = false;
    fleet_unlock(f);
    fleet_pump(f);
}

/* ---- life cycle ---- */

void gw_fleet_configure(struct gw_fleet *f, const struct gw_config *c)
{
    fleet_lock(f);
    f->set = (struct fleet_settings){.connect_ms = c->connect_timeout_ms,
                                     .first_byte_ms = c->first_byte_timeout_ms,
                                     .idle_ms = c->idle_timeout_ms,
                                     .total_ms = c->total_timeout_ms,
                                     .failures = c->health_failures,
                                     .successes = c->health_successes,
                                     .breaker_failures = c->breaker_failures,
                                     .breaker_open_ns = c->breaker_open_ms * 1000000ull,
                                     .affinity = c->balance && strcmp(c->balance, "affinity") == 0};
    fleet_unlock(f);
}

int gw_fleet_create(struct http_loop *loop, const struct gw_config *c,
                    struct gw_directory *directory, const struct gw_fleet_ops *ops, void *ctx,
                    struct gw_fleet **ret)
{
    struct gw_fleet *f = mem_zalloc(sizeof *f);
    if (!f) return -ENOMEM;
    f->loop = loop;
    f->directory = directory;
    f->ops = *ops;
    f->ctx = ctx;
    f->random = clock_ns();
    int r = -ENOMEM;
    if (pthread_mutex_init(&f->m, NULL) != 0) goto fail;
    r = http_timer_create(loop, on_room_timer, f, &f->room_timer);
    if (r < 0) goto fail_mutex;
    f->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r = -errno;
    if (f->wake_fd < 0) goto fail_timer;
    event_assign(&f->wake_ev, http_loop_base(loop), f->wake_fd, EV_READ | EV_PERSIST, on_wake, f);
    r = -ENOMEM;
    if (event_add(&f->wake_ev, NULL) < 0) goto fail_fd;
    gw_fleet_configure(f, c);
    *ret = f;
    return 0;
fail_fd:
    (void)close(f->wake_fd);
fail_timer:
    http_timer_destroy(f->room_timer);
fail_mutex:
    (void)pthread_mutex_destroy(&f->m);
fail:
    mem_free(f);
    return r;
}

/* Older connections go once their calls have ended. */
static void clients_sweep(struct gw_target *t, unsigned loop)
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

static void clients_close(struct gw_target *t, unsigned loop)
{
    struct fleet_client *next;
    for (struct fleet_client *c = t->clients[loop]; c; c = next) {
        next = c->next;
        http_client_destroy(c->client);
        mem_free(c);
    }
    t->clients[loop] = NULL;
}

void fleet_target_free(struct gw_target *t)
{
    if (!t) return;
    fleet_probe_fini(&t->probe);
    for (unsigned i = 0; i < GW_LOOPS_MAX; i++)
        clients_close(t, i);
    fleet_models_clear(t);
    if (t->tls) http_tls_unref(t->tls);
    if (t->authorization) explicit_bzero(t->authorization, strlen(t->authorization));
    mem_free(t->authorization);
    mem_free(t->address);
    mem_free(t->dial);
    mem_free(t->name);
    mem_free(t);
}

void gw_fleet_start(struct gw_fleet *f)
{
    f->started = true;
    for (size_t i = 0; i < f->n; i++)
        if (!f->target[i]->retired) fleet_probe_soon(&f->target[i]->probe, 1);
    fleet_pump(f);
}

void gw_fleet_stop(struct gw_fleet *f)
{
    f->started = false;
    http_timer_clear(f->room_timer);
    f->room_due_ns = 0;
    for (size_t i = 0; i < f->n; i++)
        fleet_probe_cancel(&f->target[i]->probe);
}

void gw_fleet_destroy(struct gw_fleet *f)
{
    if (!f) return;
    fleet_lock(f);
    f->quitting = true;
    fleet_unlock(f);
    gw_pool_destroy(f->resolver);
    for (size_t i = 0; i < f->n; i++)
        fleet_target_free(f->target[i]);
    while (f->old_names) {
        struct fleet_name *old = f->old_names;
        f->old_names = old->next;
        mem_free(old->name);
        mem_free(old);
    }
    struct fleet_set *next;
    for (struct fleet_set *s = f->sets; s; s = next) {
        next = s->next;
        gw_upstreams_free(s->list);
        mem_free(s);
    }
    (void)event_del(&f->wake_ev);
    (void)close(f->wake_fd);
    http_timer_destroy(f->room_timer);
    (void)pthread_mutex_destroy(&f->m);
    mem_free(f);
}

/* ---- coming and going ---- */

void fleet_recount(struct gw_fleet *f)
{
    unsigned n_own = 0;
    f->n_workers = f->n_upstreams = 0;
    for (size_t i = 0; i < f->n; i++) {
        const struct gw_target *t = f->target[i];
        if (t->retired || t->leaving) continue;
        f->n_workers += t->worker;
        n_own += t->own;
        f->n_upstreams += !t->worker;
    }
    f->one_model = f->n_workers == 1 || (f->n_workers > 0 && n_own == f->n_workers);
}

struct gw_target *fleet_find(const struct gw_fleet *f, const char *name)
{
    for (size_t i = 0; i < f->n; i++)
        if (strcmp(f->target[i]->name, name) == 0) return f->target[i];
    return NULL;
}

int fleet_target_create(struct gw_fleet *f, const char *name, const char *address, bool worker,
                        struct gw_target **ret)
{
    struct gw_target *t = mem_zalloc(sizeof *t);
    if (!t) return -ENOMEM;
    t->name = mem_strdup(name);
    t->address = mem_strdup(address);
    t->is_name = fleet_is_name(address);
    if (!t->is_name) t->dial = mem_strdup(address);
    t->worker = worker;
    t->last_ok_ns = t->added_ns = clock_ns();
    t->health = worker ? GW_TARGET_DOWN : GW_TARGET_LOADING;
    t->id = fleet_hash(name, strlen(name));
    int r = t->name && t->address && (t->dial || t->is_name) ? fleet_probe_init(f, t) : -ENOMEM;
    if (r < 0) {
        fleet_target_free(t);
        return r;
    }
    *ret = t;
    return 0;
}

void fleet_target_enter(struct gw_fleet *f, struct gw_target *t)
{
    ASSERT(f->n < GW_TARGETS_MAX);
    t->index = (unsigned)f->n;
    f->target[f->n++] = t;
    fleet_breaker_reset(f, t);
    fleet_recount(f);
}

/* It is new again: nothing that was learned about it holds. */
void fleet_target_forget(struct gw_fleet *f, struct gw_target *t)
{
    t->retired = t->leaving = t->drained = t->suspect = t->seen = false;
    t->health = t->worker ? GW_TARGET_DOWN : GW_TARGET_LOADING;
    t->ready_since_ns = t->slow_from_ns = t->models_at_ns = t->models_hash = 0;
    t->last_ok_ns = t->added_ns = clock_ns();
    t->ttfb_ms = 0;
    t->why[0] = '\0';
    t->load = (struct fleet_load){0};
    fleet_models_clear(t);
    fleet_breaker_reset(f, t);
}

void fleet_set_address(struct gw_target *t, char *address, char *dial)
{
    mem_free(t->address);
    mem_free(t->dial);
    t->address = address;
    t->dial = dial;
    t->is_name = !dial;
    t->unresolved = false;
    t->generation++;
}

void fleet_retire_if_idle(struct gw_fleet *f, struct gw_target *t)
{
    if (!t->leaving || t->retired || t->n_inflight > 0) return;
    t->retired = true;
    t->health = GW_TARGET_DOWN;
    if (t->set) fleet_set_release(f, t->set);
    t->set = NULL;
    t->up = NULL;
    log_event(LOG_NOTICE, t->worker ? "worker.state" : "upstream.state",
              "target=%s index=%u address=%s state=retired", t->name, t->index, t->address);
    count_ready(f);
    t->probe_now = true; /* the control loop ends its probes */
    fleet_wake(f);
}

void fleet_target_leave(struct gw_fleet *f, struct gw_target *t)
{
    if (t->leaving || t->retired) return;
    if (t->health == GW_TARGET_READY && !t->drained) t->tell_lost = true;
    t->leaving = true;
    fleet_recount(f);
    fleet_retire_if_idle(f, t);
}

/* Workers may come and go with ever new addresses: once the table is full, the place of one that
 * left is used again. Its name is kept: the logs of its last requests point at it. */
static struct gw_target *reuse(struct gw_fleet *f, const char *address)
{
    struct gw_target *t = NULL;
    bool is_name = fleet_is_name(address);
    char *name = mem_strdup(address), *to = mem_strdup(address);
    char *dial = is_name ? NULL : mem_strdup(address);
    struct fleet_name *old = mem_alloc(sizeof *old);
    bool ok = name && to && old && (dial || is_name);
    fleet_lock(f);
    for (size_t i = 0; ok && i < f->n && !t; i++) {
        struct gw_target *x = f->target[i];
        if (x->worker && !x->own && x->retired && x->n_inflight == 0 && !x->probe.call) t = x;
    }
    if (t) {
        *old = (struct fleet_name){f->old_names, t->name};
        f->old_names = old;
        t->name = name;
        t->id = fleet_hash(name, strlen(name));
        fleet_set_address(t, to, dial);
        t->n_ok = t->n_failed = t->n_timeout = t->n_busy = t->n_cancelled = t->n_picked = 0;
        memset(t->n_status, 0, sizeof t->n_status);
        fleet_target_forget(f, t);
        fleet_recount(f);
    }
    fleet_unlock(f);
    void *unused[] = {name, to, dial, old};
    for (size_t i = 0; !t && i < 4; i++)
        mem_free(unused[i]);
    return t;
}

int gw_fleet_add_worker(struct gw_fleet *f, const char *address, bool own, unsigned *ret_index)
{
    struct buf norm = BUF_INIT;
    struct gw_target *t = NULL;
    char name[32];
    int r = gw_parse_address(address, &norm);
    if (r == 0 && !buf_cstr(&norm)) r = -ENOMEM;
    if (r < 0) goto out;
    for (size_t i = 0; i < f->n && !t; i++)
        if (f->target[i]->worker && strcmp(f->target[i]->address, norm.data) == 0) t = f->target[i];
    if (t) {
        fleet_lock(f);
        bool here = !t->retired && !t->leaving;
        if (!here) fleet_target_forget(f, t);
        fleet_recount(f);
        fleet_unlock(f);
        *ret_index = t->index;
        r = here;
    } else if (!own && f->n == GW_TARGETS_MAX) {
        t = reuse(f, norm.data);
        r = t ? 0 : -ERANGE;
        if (r < 0) goto out;
        *ret_index = t->index;
    } else {
        (void)snprintf(name, sizeof name, "worker-%zu", f->n);
        r = f->n < GW_TARGETS_MAX
                ? fleet_target_create(f, own ? name : norm.data, norm.data, true, &t)
                : -ERANGE;
        if (r < 0) goto out;
        t->own = own;
        fleet_lock(f);
        fleet_target_enter(f, t);
        fleet_unlock(f);
        *ret_index = t->index;
    }
    if (f->started) fleet_probe_soon(&t->probe, 1);
out:
    buf_fini(&norm);
    return r;
}

int gw_fleet_secure(struct gw_fleet *f, unsigned index, const struct gw_upstream *u,
                    struct err *err)
{
    struct http_tls_opts o = {u->cert_file, u->key_file, u->ca_file, u->insecure};
    struct http_tls *tls = NULL;
    struct gw_target *t = f->target[index];
    if (t->authorization || t->tls) return 0; /* leases borrow what is there */
    char *key = u->authorization ? mem_strdup(u->authorization) : NULL;
    int r = u->authorization && !key ? -ENOMEM : 0;
    if (r == 0 && u->tls) r = http_tls_client(&o, &tls, err);
    if (r < 0) {
        mem_free(key);
        return r;
    }
    fleet_lock(f);
    t->authorization = key;
    t->tls = tls;
    t->generation++;
    fleet_unlock(f);
    return 0;
}

int gw_fleet_door(struct gw_fleet *f, unsigned index, struct buf *headers,
                  struct http_tls **ret_tls)
{
    fleet_lock(f);
    const struct gw_target *t = f->target[index];
    const char *key = t->up ? t->up->authorization : t->authorization;
    int r = key ? buf_addf(headers, "authorization: %s\r\n", key) : 0;
    if (r == 0 && ret_tls) *ret_tls = t->tls ? http_tls_ref(t->tls) : NULL;
    fleet_unlock(f);
    return r;
}

void gw_fleet_remove(struct gw_fleet *f, unsigned index)
{
    ASSERT(index < f->n);
    fleet_lock(f);
    fleet_target_leave(f, f->target[index]);
    fleet_unlock(f);
    fleet_pump(f);
}

int gw_fleet_drain(struct gw_fleet *f, const char *name, bool drain)
{
    fleet_lock(f);
    struct gw_target *t = fleet_find(f, name);
    if (t && (t->retired || t->leaving)) t = NULL;
    if (t && t->drained != drain) {
        t->drained = drain;
        log_event(LOG_NOTICE, t->worker ? "worker.state" : "upstream.state",
                  "target=%s index=%u address=%s state=%s", t->name, t->index, t->address,
                  drain ? "draining" : gw_target_state_name(t->health));
        if (t->health == GW_TARGET_READY && drain) t->tell_lost = true;
        if (t->health == GW_TARGET_READY && !drain) t->tell_ready = true;
        fleet_wake(f);
    }
    fleet_unlock(f);
    return t ? 0 : -ENOENT;
}

void gw_fleet_lost(struct gw_fleet *f, unsigned index)
{
    ASSERT(index < f->n);
    struct gw_target *t = f->target[index];
    fleet_probe_cancel(&t->probe);
    fleet_lock(f);
    fleet_set_health(f, t, GW_TARGET_DOWN);
    fleet_unlock(f);
    fleet_probe_soon(&t->probe, 0);
    fleet_pump(f);
}

void gw_fleet_expect(struct gw_fleet *f, unsigned index)
{
    ASSERT(index < f->n);
    struct gw_target *t = f->target[index];
    t->probe.failures = 0;
    fleet_lock(f);
    t->last_ok_ns = clock_ns();
    fleet_set_health(f, t, GW_TARGET_LOADING);
    fleet_unlock(f);
    fleet_probe_soon(&t->probe, 0);
    fleet_pump(f);
}

/* ---- connections ---- */

int fleet_dial_init(const struct gw_target *t, const struct gw_fleet *f, struct fleet_dial *ret)
{
    const struct gw_upstream *u = t->up;
    struct fleet_dial d = {.generation = t->generation};
    if (!t->dial) return -EHOSTUNREACH;
    d.address = mem_strdup(t->dial);
    d.host = u || t->is_name ? mem_strdup(u ? u->host : t->address) : NULL;
    if (!d.address || (!d.host && (u || t->is_name))) {
        fleet_dial_fini(&d);
        return -ENOMEM;
    }
    d.opts = (struct http_client_opts){
        .tls = t->tls ? http_tls_ref(t->tls) : NULL,
        .address = d.address,
        .host = d.host,
        .conns_max = u && u->connections_max ? u->connections_max : CONNS_MAX,
        .connect_timeout_ms = u ? u->connect_timeout_ms : f->set.connect_ms,
        .first_byte_timeout_ms = u ? u->first_byte_timeout_ms : f->set.first_byte_ms,
        .idle_timeout_ms = u ? u->idle_timeout_ms : f->set.idle_ms,
        .total_timeout_ms = u ? u->total_timeout_ms : f->set.total_ms,
    };
    *ret = d;
    return 0;
}

void fleet_dial_fini(struct fleet_dial *d)
{
    if (d->opts.tls) http_tls_unref(d->opts.tls);
    mem_free(d->address);
    mem_free(d->host);
}

struct gw_target *gw_fleet_target(struct gw_fleet *f, unsigned index)
{
    fleet_lock(f);
    struct gw_target *t = index < f->n && !f->target[index]->retired ? f->target[index] : NULL;
    fleet_unlock(f);
    return t;
}

struct http_client *gw_fleet_client(struct gw_fleet *f, struct gw_target *t, unsigned loop_index,
                                    struct http_loop *loop)
{
    struct fleet_dial d;
    struct fleet_client *c = t->clients[loop_index];
    ASSERT(loop_index < GW_LOOPS_MAX);
    fleet_lock(f);
    bool good = c && c->generation == t->generation;
    int r = good ? 0 : fleet_dial_init(t, f, &d);
    fleet_unlock(f);
    if (good && c->next) clients_sweep(t, loop_index);
    if (good) return c->client;
    if (r < 0) return NULL;
    c = mem_zalloc(sizeof *c);
    if (c && http_client_create(loop, &d.opts, &c->client) == 0) {
        c->generation = d.generation;
        c->next = t->clients[loop_index];
        t->clients[loop_index] = c;
    } else {
        mem_free(c);
        c = NULL;
    }
    fleet_dial_fini(&d);
    return c ? c->client : NULL;
}

void gw_fleet_leave(struct gw_fleet *f, unsigned loop)
{
    ASSERT(loop < GW_LOOPS_MAX);
    fleet_lock(f);
    size_t n = f->n;
    fleet_unlock(f);
    for (size_t i = 0; i < n; i++)
        clients_close(f->target[i], loop);
}
