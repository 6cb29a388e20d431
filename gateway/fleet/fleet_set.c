/* The configuration's upstreams become targets; a reload changes them in place. An entry is known
 * by its name. Its history stays unless its address changed: that is another backend. */
#include "gateway/fleet/fleet_int.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/mem.h"

#include <string.h>

void fleet_set_release(struct gw_fleet *f, struct fleet_set *s)
{
    ASSERT(s->n_users > 0);
    if (--s->n_users > 0) return;
    struct fleet_set **p = &f->sets;
    while (*p != s)
        p = &(*p)->next;
    *p = s->next;
    gw_upstreams_free(s->list);
    mem_free(s);
}

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
    int r = t && t->up && t->tls && same_tls(t->up, u) ? http_tls_reload(t->tls, &why)
                                                       : http_tls_client(&o, &p->tls, &why);
    return r < 0 ? err_set(err, r, "upstream %.60s: %.150s", u->name, why.msg) : 0;
}

static int make_plan(struct gw_fleet *f, const struct gw_upstream *u, size_t n_new, struct plan *p,
                     struct err *err)
{
    p->target = fleet_find(f, u->name);
    int r = plan_tls(p, u, err);
    if (r < 0) return r;
    if (p->target && p->target->worker)
        return err_set(err, -EINVAL, "upstream %.100s: a worker has this name", u->name);
    if (!p->target) {
        if (f->n + n_new >= GW_TARGETS_MAX)
            return err_set(err, -ERANGE, "more than %d backends since the start", GW_TARGETS_MAX);
        p->is_new = true;
        return fleet_target_create(f, u->name, u->address, false, &p->target);
    }
    if (strcmp(p->target->address, u->address) == 0) return 0;
    p->address = mem_strdup(u->address);
    bool is_name = fleet_is_name(u->address);
    if (!is_name) p->dial = mem_strdup(u->address);
    return p->address && (p->dial || is_name) ? 0 : -ENOMEM;
}

static void adopt(struct gw_fleet *f, struct plan *p, const struct gw_upstream *u,
                  struct fleet_set *set)
{
    struct gw_target *t = p->target;
    const struct gw_upstream *old = t->up;
    bool again = t->retired || p->address;
    if (p->address) fleet_set_address(t, p->address, p->dial);
    p->address = p->dial = NULL;
    if (p->tls || !u->tls) {
        struct http_tls *was_tls = t->tls;
        t->tls = p->tls;
        p->tls = was_tls;
    }
    if (again) fleet_target_forget(f, t);
    t->leaving = false;
    if (!old || !same_dial(old, u)) t->generation++;
    bool models = !old || again || !same_rules(old, u);
    t->probe_now = !old || again || !same_text(old->text, u->text);
    struct fleet_set *was = t->set;
    t->set = set;
    t->up = u;
    set->n_users++;
    if (models && fleet_models_from_rules(t) < 0)
        log_event(LOG_WARN, "upstream.models", "target=%s error=ENOMEM, listed later", t->name);
    if (was) fleet_set_release(f, was);
    if (p->is_new) fleet_target_enter(f, t);
    p->is_new = false;
    if (!u->health && t->dial) fleet_set_health(f, t, GW_TARGET_READY);
}

int gw_fleet_set_upstreams(struct gw_fleet *f, struct gw_upstreams *list, struct err *err)
{
    size_t n = list->n; /* an empty list goes at once */
    struct fleet_set *set = mem_zalloc(sizeof *set);
    struct plan *plan = mem_zalloc((n + 1) * sizeof *plan);
    int r = set && plan ? 0 : -ENOMEM;
    for (size_t i = 0, n_new = 0; r == 0 && i < n; i++) {
        r = make_plan(f, &list->up[i], n_new, &plan[i], err);
        n_new += plan[i].is_new;
    }
    if (r < 0) goto out;
    fleet_lock(f);
    *set = (struct fleet_set){.next = f->sets, .list = list, .n_users = 1};
    f->sets = set;
    for (size_t i = 0; i < n; i++)
        adopt(f, &plan[i], &list->up[i], set);
    for (size_t i = 0; i < f->n; i++)
        if (!f->target[i]->worker && f->target[i]->set != set) fleet_target_leave(f, f->target[i]);
    fleet_recount(f);
    fleet_set_release(f, set);
    set = NULL;
    fleet_unlock(f);
out:
    for (size_t i = 0; plan && i < n; i++) {
        if (plan[i].is_new) fleet_target_free(plan[i].target);
        mem_free(plan[i].address);
        mem_free(plan[i].dial);
        if (plan[i].tls) http_tls_unref(plan[i].tls);
    }
    mem_free(plan);
    if (r < 0) {
        mem_free(set);
        gw_upstreams_free(list);
        return r;
    }
    fleet_pump(f);
    return 0;
}
