/* Targets: how they come, change and go. The mutex is held for table look-ups only; TLS settings
 * and addresses are made outside of it.
 *
 * The configuration's upstreams become targets, and a reload changes them in place: an entry is
 * known by its name, and keeps its history unless its address changed, which makes it another
 * backend. */
#include "gateway/fleet/upstream.h"
#include "gateway/fleet/fleet_int.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/jobs.h"
#include "base/log.h"
#include "base/mem.h"
#include "gateway/process/config.h"
#include "segment/segment.h"

#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ---- the control loop wakes ---- */

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
                                     .successes = 2, /* chosen: one good check may be luck */
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
    f->rng.state = clock_ns();
    (void)pthread_mutex_init(&f->m, NULL);
    f->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = f->wake_fd < 0 ? -errno : 0;
    http_timer_init(&f->room_timer, loop, on_room_timer, f);
    event_assign(&f->wake_ev, http_loop_base(loop), f->wake_fd, EV_READ | EV_PERSIST, on_wake, f);
    if (r == 0 && event_add(&f->wake_ev, NULL) < 0) r = -ENOMEM;
    if (r < 0) {
        gw_fleet_destroy(f);
        return r;
    }
    gw_fleet_configure(f, c);
    *ret = f;
    return 0;
}

static void target_free(struct gw_target *t)
{
    if (!t) return;
    fleet_probe_fini(&t->probe);
    for (unsigned i = 0; i < GW_LOOPS_MAX; i++)
        fleet_clients_close(t, i);
    fleet_models_clear(&t->models);
    fleet_upstream_release(t->up);
    if (t->at.tls) http_tls_unref(t->at.tls);
    if (t->authorization) explicit_bzero(t->authorization, strlen(t->authorization));
    mem_free(t->authorization);
    mem_free(t->at.address);
    mem_free(t->at.dial);
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
    http_timer_clear(&f->room_timer);
    f->room_due_ns = 0;
    for (size_t i = 0; i < f->n; i++) {
        fleet_probe_cancel(&f->target[i]->probe);
        gw_feed_stop(f->target[i]);
    }
}

void gw_fleet_destroy(struct gw_fleet *f)
{
    if (!f) return;
    fleet_lock(f);
    f->quitting = true;
    fleet_unlock(f);
    jobs_destroy(f->resolver);
    for (size_t i = 0; i < f->n; i++)
        target_free(f->target[i]);
    arena_fini(&f->names);
    (void)event_del(&f->wake_ev);
    if (f->wake_fd >= 0) (void)close(f->wake_fd);
    http_timer_fini(&f->room_timer);
    (void)pthread_mutex_destroy(&f->m);
    mem_free(f);
}

/* ---- coming and going ---- */

static void recount_kinds(struct gw_fleet *f)
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
    f->one_model = f->n_workers == 1 || (!f->mixed && f->n_workers > 0 && n_own == f->n_workers);
}

void gw_fleet_mix(struct gw_fleet *f)
{
    fleet_lock(f);
    f->mixed = true;
    recount_kinds(f);
    fleet_unlock(f);
}

int gw_fleet_on_demand(struct gw_fleet *f, unsigned index, const char *model)
{
    ASSERT(index < f->n && f->target[index]->own);
    struct gw_target *t = f->target[index];
    fleet_lock(f);
    int r = fleet_models_named(t, model);
    t->on_demand = r == 0;
    if (r == 0) fleet_set_health(f, t, GW_TARGET_ASLEEP);
    fleet_unlock(f);
    return r;
}

uint64_t gw_fleet_rest(struct gw_fleet *f, unsigned index, uint64_t idle_ms)
{
    ASSERT(index < f->n && f->target[index]->on_demand);
    struct gw_target *t = f->target[index];
    fleet_lock(f);
    const uint64_t idle_for_ms = (clock_ns() - t->used_ns) / 1000000;
    const bool busy = t->n_inflight > 0 || t->health.state != GW_TARGET_READY;
    const bool rests = !busy && idle_for_ms >= idle_ms;
    if (rests) fleet_set_health(f, t, GW_TARGET_ASLEEP);
    fleet_unlock(f);
    if (!rests) return busy ? idle_ms : idle_ms - idle_for_ms;
    fleet_probe_cancel(&t->probe);
    fleet_pump(f);
    return 0;
}

static struct gw_target *find_target(const struct gw_fleet *f, const char *name)
{
    for (size_t i = 0; i < f->n; i++)
        if (strcmp(f->target[i]->name, name) == 0) return f->target[i];
    return NULL;
}

/* Copies; *ret_dial stays NULL where the address is a name, which must be resolved first. */
static int copy_address(const char *address, char **ret_address, char **ret_dial)
{
    bool is_name = fleet_is_name(address);
    *ret_address = mem_strdup(address);
    *ret_dial = is_name ? NULL : mem_strdup(address);
    return *ret_address && (*ret_dial || is_name) ? 0 : -ENOMEM;
}

/* Takes both. */
static void set_address(struct gw_target *t, char *address, char *dial)
{
    mem_free(t->at.address);
    mem_free(t->at.dial);
    t->at.address = address;
    t->at.dial = dial;
    t->at.is_name = !dial;
    t->at.unresolved = false;
    t->at.generation++;
}

static int target_create(struct gw_fleet *f, const char *name, const char *address, bool worker,
                         struct gw_target **ret)
{
    struct gw_target *t = mem_zalloc(sizeof *t);
    if (!t) return -ENOMEM;
    t->name = arena_strndup(&f->names, name, strlen(name));
    t->worker = worker;
    t->id = seg_text_id("fleet", name, strlen(name));
    int r = copy_address(address, &t->at.address, &t->at.dial);
    t->at.is_name = !t->at.dial;
    if (r == 0 && !t->name) r = -ENOMEM;
    if (r < 0) {
        target_free(t);
        return r;
    }
    fleet_probe_init(f, t);
    *ret = t;
    return 0;
}

static void health_init(struct gw_fleet *f, struct gw_target *t)
{
    uint64_t now = clock_ns();
    t->health = (struct fleet_health){.state = t->worker ? GW_TARGET_DOWN : GW_TARGET_LOADING,
                                      .added_ns = now,
                                      .last_ok_ns = now};
    fleet_breaker_reset(f, t);
}

static void target_enter(struct gw_fleet *f, struct gw_target *t)
{
    ASSERT(f->n < GW_TARGETS_MAX);
    t->index = (unsigned)f->n;
    f->target[f->n++] = t;
    health_init(f, t);
    recount_kinds(f);
}

/* It is new again: nothing that was learned about it holds. */
static void target_forget(struct gw_fleet *f, struct gw_target *t)
{
    t->retired = t->leaving = t->drained = false;
    t->ttfb_ms = 0;
    t->load = (struct fleet_load){0};
    fleet_models_clear(&t->models);
    health_init(f, t);
}

static void target_leave(struct gw_fleet *f, struct gw_target *t)
{
    if (t->leaving || t->retired) return;
    if (t->health.state == GW_TARGET_READY && !t->drained) t->news |= FLEET_LOST;
    t->leaving = true;
    recount_kinds(f);
    fleet_retire_if_idle(f, t);
}

/* Workers may come and go with ever new addresses: once the table is full, the place of one that
 * left is used again. */
static struct gw_target *reuse_place(struct gw_fleet *f, const char *address)
{
    struct gw_target *t = NULL;
    char *name = arena_strndup(&f->names, address, strlen(address)), *to, *dial;
    bool ok = copy_address(address, &to, &dial) == 0 && name;
    fleet_lock(f);
    for (size_t i = 0; ok && i < f->n && !t; i++) {
        struct gw_target *x = f->target[i];
        if (x->worker && !x->own && x->retired && x->n_inflight == 0 && !x->probe.call) t = x;
    }
    if (t) {
        t->name = name;
        t->id = seg_text_id("fleet", name, strlen(name));
        set_address(t, to, dial);
        t->count = (struct fleet_counts){0};
        target_forget(f, t);
        recount_kinds(f);
    }
    fleet_unlock(f);
    if (t) return t;
    mem_free(to);
    mem_free(dial);
    return NULL;
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
        if (f->target[i]->worker && strcmp(f->target[i]->at.address, norm.data) == 0)
            t = f->target[i];
    if (t) {
        fleet_lock(f);
        bool here = !t->retired && !t->leaving;
        if (!here) target_forget(f, t);
        recount_kinds(f);
        fleet_unlock(f);
        r = here;
    } else if (f->n == GW_TARGETS_MAX) {
        t = own ? NULL : reuse_place(f, norm.data);
        r = t ? 0 : -ERANGE;
        if (r < 0) goto out;
    } else {
        (void)snprintf(name, sizeof name, "worker-%zu", f->n);
        r = target_create(f, own ? name : norm.data, norm.data, true, &t);
        if (r < 0) goto out;
        t->own = own;
        fleet_lock(f);
        target_enter(f, t);
        fleet_unlock(f);
    }
    *ret_index = t->index;
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
    if (t->authorization || t->at.tls) return 0; /* leases borrow what is there */
    char *key = u->authorization ? mem_strdup(u->authorization) : NULL;
    int r = u->authorization && !key ? -ENOMEM : 0;
    if (r == 0 && u->tls) r = http_tls_create(&o, &tls, err);
    if (r < 0) {
        mem_free(key);
        return r;
    }
    fleet_lock(f);
    t->authorization = key;
    t->at.tls = tls;
    t->at.generation++;
    fleet_unlock(f);
    return 0;
}

int gw_fleet_door(struct gw_fleet *f, unsigned index, struct buf *headers)
{
    fleet_lock(f);
    const struct gw_target *t = f->target[index];
    const char *key = t->up ? t->up->authorization : t->authorization;
    int r = key ? buf_addf(headers, "authorization: %s\r\n", key) : 0;
    fleet_unlock(f);
    return r;
}

void gw_fleet_remove(struct gw_fleet *f, unsigned index)
{
    ASSERT(index < f->n);
    fleet_lock(f);
    target_leave(f, f->target[index]);
    fleet_unlock(f);
    fleet_pump(f);
}

int gw_fleet_drain(struct gw_fleet *f, const char *name, bool drain)
{
    fleet_lock(f);
    struct gw_target *t = find_target(f, name);
    if (t && (t->retired || t->leaving)) t = NULL;
    if (t && t->drained != drain) {
        t->drained = drain;
        log_event(LOG_NOTICE, t->worker ? "worker.state" : "upstream.state",
                  "target=%s index=%u address=%s state=%s", t->name, t->index, t->at.address,
                  drain ? "draining" : gw_target_state_name(t->health.state));
        if (t->health.state == GW_TARGET_READY && drain) t->news |= FLEET_LOST;
        if (t->health.state == GW_TARGET_READY && !drain) t->news |= FLEET_READY;
        fleet_wake(f);
    }
    fleet_unlock(f);
    return t ? 0 : -ENOENT;
}

static void process_is(struct gw_fleet *f, struct gw_target *t, enum gw_target_state s)
{
    fleet_lock(f);
    fleet_set_health(f, t, s);
    fleet_unlock(f);
    fleet_probe_soon(&t->probe, 0);
    fleet_pump(f);
}

void gw_fleet_lost(struct gw_fleet *f, unsigned index)
{
    ASSERT(index < f->n);
    fleet_probe_cancel(&f->target[index]->probe);
    process_is(f, f->target[index],
               f->target[index]->on_demand ? GW_TARGET_ASLEEP : GW_TARGET_DOWN);
}

void gw_fleet_expect(struct gw_fleet *f, unsigned index)
{
    ASSERT(index < f->n);
    struct gw_target *t = f->target[index];
    t->probe.failures = 0;
    fleet_lock(f);
    t->health.last_ok_ns = clock_ns();
    fleet_unlock(f);
    process_is(f, t, GW_TARGET_LOADING);
}

/* ---- upstreams: the configuration's list becomes targets ---- */

static bool same_text(const char *a, const char *b)
{
    return (!a && !b) || (a && b && strcmp(a, b) == 0);
}

static bool same_tls(const struct gw_upstream *a, const struct gw_upstream *b)
{
    return a->tls == b->tls && a->insecure == b->insecure && same_text(a->ca_file, b->ca_file) &&
           same_text(a->cert_file, b->cert_file) && same_text(a->key_file, b->key_file);
}

/* Would connections made for `a` do for `b`? */
static bool same_dial(const struct gw_upstream *a, const struct gw_upstream *b)
{
    return same_text(a->address, b->address) && same_text(a->host, b->host) && same_tls(a, b) &&
           a->connections_max == b->connections_max &&
           a->connect_timeout_ms == b->connect_timeout_ms &&
           a->first_byte_timeout_ms == b->first_byte_timeout_ms &&
           a->idle_timeout_ms == b->idle_timeout_ms && a->total_timeout_ms == b->total_timeout_ms;
}

static bool same_rules(const struct gw_upstream *a, const struct gw_upstream *b)
{
    if (a->n_models != b->n_models) return false;
    for (size_t i = 0; i < a->n_models; i++)
        if (!same_text(a->model[i].pattern, b->model[i].pattern) ||
            !same_text(a->model[i].sent, b->model[i].sent))
            return false;
    return true;
}

struct plan { /* what an entry needs, made before anything changes */
    struct gw_target *target;
    char *address;        /* NULL: its target has this one */
    char *dial;           /* the same, unless it is a name */
    struct http_tls *tls; /* its new settings, NULL: as they were */
    bool is_new;
};

/* Certificates are read again at each reload, so that they can be renewed. */
static int plan_tls(struct plan *p, const struct gw_upstream *u, struct err *err)
{
    const struct gw_target *t = p->target;
    struct http_tls_opts o = {u->cert_file, u->key_file, u->ca_file, u->insecure};
    struct err why = {0};
    if (!u->tls) return 0;
    int r = t && t->up && t->at.tls && same_tls(t->up, u) ? http_tls_reload(t->at.tls, &why)
                                                          : http_tls_create(&o, &p->tls, &why);
    return r < 0 ? err_set(err, r, "upstream %.60s: %.150s", u->name, why.msg) : 0;
}

static int plan_entry(struct gw_fleet *f, const struct gw_upstream *u, size_t n_new, struct plan *p,
                      struct err *err)
{
    p->target = find_target(f, u->name);
    int r = plan_tls(p, u, err);
    if (r < 0) return r;
    if (p->target && p->target->worker)
        return err_set(err, -EINVAL, "upstream %.100s: a worker has this name", u->name);
    if (!p->target) {
        if (f->n + n_new >= GW_TARGETS_MAX)
            return err_set(err, -ERANGE, "more than %d backends since the start", GW_TARGETS_MAX);
        p->is_new = true;
        return target_create(f, u->name, u->address, false, &p->target);
    }
    if (strcmp(p->target->at.address, u->address) == 0) return 0;
    return copy_address(u->address, &p->address, &p->dial);
}

static void adopt_entry(struct gw_fleet *f, struct plan *p, const struct gw_upstream *u)
{
    struct gw_target *t = p->target;
    const struct gw_upstream *old = t->up;
    bool again = t->retired || p->address;
    if (p->address) set_address(t, p->address, p->dial);
    p->address = p->dial = NULL;
    if (p->tls || !u->tls) {
        struct http_tls *was_tls = t->at.tls;
        t->at.tls = p->tls;
        p->tls = was_tls;
    }
    if (again) target_forget(f, t);
    t->leaving = false;
    if (!old || !same_dial(old, u)) t->at.generation++;
    bool models = !old || again || !same_rules(old, u);
    if (!old || again || !same_text(old->text, u->text)) t->news |= FLEET_PROBE;
    t->up = fleet_upstream_hold(u);
    if (models && fleet_models_from_rules(t) < 0)
        log_event(LOG_WARN, "upstream.models", "target=%s error=ENOMEM, listed later", t->name);
    fleet_upstream_release(old);
    if (p->is_new) target_enter(f, t);
    p->is_new = false;
    if (!u->health && t->at.dial) fleet_set_health(f, t, GW_TARGET_READY);
}

int gw_fleet_set_upstreams(struct gw_fleet *f, struct gw_upstreams *list, struct err *err)
{
    size_t n = list->n; /* an empty list goes at once */
    struct plan *plan = mem_zalloc((n + 1) * sizeof *plan);
    int r = plan ? 0 : -ENOMEM;
    for (size_t i = 0, n_new = 0; r == 0 && i < n; i++) {
        r = plan_entry(f, &list->up[i], n_new, &plan[i], err);
        n_new += plan[i].is_new;
    }
    if (r < 0) goto out;
    fleet_lock(f);
    for (size_t i = 0; i < n; i++)
        adopt_entry(f, &plan[i], &list->up[i]);
    for (size_t i = 0; i < f->n; i++)
        if (f->target[i]->up && f->target[i]->up->list != list) target_leave(f, f->target[i]);
    recount_kinds(f);
    fleet_unlock(f);
out:
    for (size_t i = 0; plan && i < n; i++) {
        if (plan[i].is_new) target_free(plan[i].target);
        mem_free(plan[i].address);
        mem_free(plan[i].dial);
        if (plan[i].tls) http_tls_unref(plan[i].tls);
    }
    mem_free(plan);
    if (r < 0 || n == 0) gw_upstreams_free(list); /* else its targets hold it */
    if (r == 0) fleet_pump(f);
    return r;
}
