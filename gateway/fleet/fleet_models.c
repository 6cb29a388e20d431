/* Which target serves which model, and what /v1/models says.
 *
 * A single worker judges names itself, because it knows more of them than it lists (its file's
 * name, "default"); beside others the listed names decide. An upstream's rules decide where it has
 * any; without them what its own /models lists. */
#include "gateway/fleet/fleet_int.h"

#include "base/clock.h"
#include "base/jsonscan.h"
#include "base/mem.h"
#include "gateway/front/keys.h"
#include "segment/segment.h"

#include <fnmatch.h>
#include <jansson.h>
#include <search.h>
#include <string.h>

enum { MODELS_MAX = 4096, ID_BYTES_MAX = 512 };

void fleet_models_clear(struct fleet_models *m)
{
    for (size_t i = 0; i < m->n; i++) {
        mem_free(m->v[i].id);
        mem_free(m->v[i].json);
    }
    mem_free(m->v);
    *m = (struct fleet_models){0};
}

static int dump_to_buf(const char *data, size_t len, void *ctx)
{
    return buf_add(ctx, data, len);
}

static bool has_model(const struct fleet_models *m, const char *id)
{
    for (size_t i = 0; i < m->n; i++)
        if (strcmp(m->v[i].id, id) == 0) return true;
    return false;
}

/* `object` describes the model at the backend (NULL: not known); it is offered as `id`. */
static int add_model(struct fleet_models *m, const char *id, const json_t *object,
                     const char *owner)
{
    if (m->n == MODELS_MAX || has_model(m, id)) return 0;
    json_t *o = object ? json_copy((json_t *)(uintptr_t)object)
                       : json_pack("{s:s,s:s,s:I,s:s}", "id", id, "object", "model", "created",
                                   (json_int_t)clock_wall_s(), "owned_by", owner);
    struct buf dump = BUF_INIT;
    struct fleet_model one = {mem_strdup(id), NULL};
    if (o && json_object_set_new(o, "id", json_string(id)) == 0 &&
        json_dump_callback(o, dump_to_buf, &dump, JSON_COMPACT) == 0)
        one.json = buf_take(&dump, NULL);
    json_decref(o);
    buf_fini(&dump);
    struct fleet_model *v = mem_realloc(m->v, (m->n + 1) * sizeof *v);
    if (v) m->v = v;
    if (!v || !one.id || !one.json) {
        mem_free(one.id);
        mem_free(one.json);
        return -ENOMEM;
    }
    v[m->n++] = one;
    return 0;
}

static const char *id_of(const json_t *entry)
{
    const char *id = json_string_value(json_object_get(entry, "id"));
    return id && *id && strlen(id) <= ID_BYTES_MAX ? id : NULL;
}

static const json_t *listed(const json_t *data, const char *id)
{
    for (size_t i = 0; i < json_array_size(data); i++) {
        const char *x = id_of(json_array_get(data, i));
        if (x && strcmp(x, id) == 0) return json_array_get(data, i);
    }
    return NULL;
}

static bool is_glob(const struct gw_model_rule *rule)
{
    return !rule->sent && strpbrk(rule->pattern, "*?[");
}

/* All that `pattern` matches of the list; NULL: all of it. */
static int add_listed(struct fleet_models *m, const json_t *data, const char *pattern)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < json_array_size(data); i++) {
        const json_t *entry = json_array_get(data, i);
        const char *id = id_of(entry);
        if (id && (!pattern || fnmatch(pattern, id, 0) == 0)) r = add_model(m, id, entry, NULL);
    }
    return r;
}

static int add_by_rules(struct fleet_models *m, const struct gw_upstream *u, const json_t *data)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < u->n_models; i++) {
        const struct gw_model_rule *rule = &u->model[i];
        r = is_glob(rule)
                ? add_listed(m, data, rule->pattern)
                : add_model(m, rule->pattern, listed(data, rule->sent ? rule->sent : rule->pattern),
                            u->name);
    }
    return r;
}

/* 0: none that is known here. */
static unsigned task_of(const json_t *name)
{
    static const struct {
        const char *name;
        enum gw_task task;
    } names[] = {{"generate", GW_GENERATE}, {"embed", GW_EMBED}, {"rerank", GW_RERANK}};
    const char *s = json_string_value(name);
    for (size_t i = 0; s && i < sizeof names / sizeof *names; i++)
        if (strcmp(s, names[i].name) == 0) return names[i].task;
    return 0;
}

/* A worker says what its model is for, and what else it can do. */
static void read_tasks(struct fleet_models *m, const json_t *data)
{
    const json_t *model = json_array_get(data, 0), *more = json_object_get(model, "tasks");
    m->meant = task_of(json_object_get(model, "task"));
    m->tasks = m->meant;
    for (size_t i = 0; i < json_array_size(more); i++)
        m->tasks |= task_of(json_array_get(more, i));
}

static void install(struct gw_target *t, struct fleet_models *m, uint64_t hash)
{
    struct fleet_models old = t->models;
    t->models = *m;
    t->models.hash = hash;
    t->models.at_ns = old.at_ns;
    t->models.known = true;
    *m = old;
}

int fleet_models_read(struct gw_fleet *f, struct gw_target *t, const struct buf *body)
{
    uint64_t hash = seg_text_id("fleet", body->data, body->len) | 1;
    struct fleet_models m = {0};
    fleet_lock(f);
    bool same = t->models.known && t->models.hash == hash;
    const struct gw_upstream *u = fleet_upstream_hold(t->up); /* a loop may retire the target */
    fleet_unlock(f);
    json_t *root = NULL;
    if (!same && json_depth(body->data, body->len) <= JSON_DEPTH_MAX)
        root = json_loadb(body->data, body->len, 0, NULL);
    const json_t *data = json_object_get(root, "data");
    int r = same || json_is_array(data) ? 0 : -EBADMSG;
    if (r == 0 && t->worker && !same && json_array_size(data) == 0) r = -EBADMSG;
    if (t->worker) read_tasks(&m, data);
    if (r == 0 && !same)
        r = u && u->n_models ? add_by_rules(&m, u, data) : add_listed(&m, data, NULL);
    fleet_lock(f);
    if (r == 0 && !same && t->up == u) {
        install(t, &m, hash);
        if (!t->worker && t->health.state == GW_TARGET_READY) t->news |= FLEET_READY;
    }
    fleet_upstream_release(u);
    fleet_unlock(f);
    fleet_models_clear(&m);
    json_decref(root);
    return r;
}

int fleet_models_from_rules(struct gw_target *t)
{
    struct fleet_models m = {0};
    fleet_models_clear(&t->models);
    if (t->up->n_models == 0) return 0;
    int r = add_by_rules(&m, t->up, NULL);
    if (r == 0) install(t, &m, 0);
    fleet_models_clear(&m);
    return r;
}

int fleet_models_named(struct gw_target *t, const char *model)
{
    struct fleet_models m = {0};
    int r = add_model(&m, model, NULL, "kvblend");
    if (r == 0) install(t, &m, 0);
    fleet_models_clear(&m);
    return r;
}

bool fleet_models_wanted(const struct gw_target *t)
{
    if (!t->up) return false;
    for (size_t i = 0; i < t->up->n_models; i++)
        if (is_glob(&t->up->model[i])) return true;
    return t->up->n_models == 0;
}

/* ---- questions ---- */

static const struct fleet_model *model_of(const struct gw_target *t, const char *id)
{
    for (size_t i = 0; i < t->models.n; i++)
        if (strcmp(t->models.v[i].id, id) == 0) return &t->models.v[i];
    return NULL;
}

enum fleet_serves fleet_serves(const struct gw_fleet *f, const struct gw_target *t,
                               const char *model, const char **ret_sent)
{
    bool by_rules = t->up && t->up->n_models > 0;
    *ret_sent = NULL;
    if (!model) return FLEET_YES;
    if (by_rules) {
        const struct gw_model_rule *rule = gw_upstream_rule(t->up, model);
        if (rule) *ret_sent = rule->sent;
        return rule ? FLEET_YES : FLEET_NO;
    }
    if (t->worker && f->one_model) {
        if (f->n_upstreams == 0 || strcmp(model, "default") == 0) return FLEET_YES;
    }
    if (t->own && f->mixed && strcmp(model, "default") == 0) return FLEET_YES;
    if (!t->models.known) return FLEET_PERHAPS;
    return t->models.any || model_of(t, model) ? FLEET_YES : FLEET_NO;
}

unsigned gw_fleet_serves(const struct gw_fleet *f, const char *model)
{
    unsigned bits = 0;
    bool perhaps = false;
    fleet_lock(f);
    for (size_t i = 0; i < f->n; i++) {
        const struct gw_target *t = f->target[i];
        const char *sent;
        if (t->retired || t->leaving) continue;
        enum fleet_serves s = fleet_serves(f, t, model, &sent);
        perhaps |= s == FLEET_PERHAPS;
        if (s != FLEET_YES) continue;
        bits |= t->worker        ? GW_SERVES_WORKER
                : t->up->lmcache ? GW_SERVES_UPSTREAM | GW_SERVES_LMCACHE
                                 : GW_SERVES_UPSTREAM;
        if (!t->worker && t->up->inflight_max) bits |= GW_SERVES_BOUNDED;
    }
    bool empty = f->n_workers + f->n_upstreams == 0; /* none has registered yet */
    fleet_unlock(f);
    return bits ? bits : perhaps || empty ? GW_SERVES_UNKNOWN : 0;
}

bool gw_fleet_opens(const struct gw_fleet *f, const char *path)
{
    bool yes = false;
    fleet_lock(f);
    for (size_t i = 0; !yes && i < f->n; i++) {
        const struct gw_target *t = f->target[i];
        yes = t->up && !t->retired && !t->leaving && gw_upstream_opens(t->up, path);
    }
    fleet_unlock(f);
    return yes;
}

enum gw_speaks gw_fleet_speaks(const struct gw_fleet *f, const char *model, const char *path)
{
    bool speaks = false, known = false, worker = false, unsure = false;
    fleet_lock(f);
    for (size_t i = 0; i < f->n; i++) {
        const struct gw_target *t = f->target[i];
        const char *sent;
        if (t->retired || t->leaving) continue;
        enum fleet_serves s = fleet_serves(f, t, model, &sent);
        bool opens = t->up && gw_upstream_opens(t->up, path);
        bool first = t->health.state == GW_TARGET_LOADING ||
                     (t->health.state == GW_TARGET_READY && !t->models.at_ns);
        known |= s == FLEET_YES;
        worker |= s == FLEET_YES && t->worker;
        speaks |= s == FLEET_YES && opens;
        unsure |= s == FLEET_PERHAPS && opens && first;
    }
    fleet_unlock(f);
    if (!known && unsure) return GW_SPEAKS_UNSURE;
    return speaks && !worker ? GW_SPEAKS_YES : GW_SPEAKS_NO;
}

int gw_fleet_model(const struct gw_fleet *f, const char *id, struct buf *out)
{
    int r = -ENOENT;
    fleet_lock(f);
    for (size_t i = 0; r == -ENOENT && i < f->n; i++) {
        const struct gw_target *t = f->target[i];
        const struct fleet_model *m = t->retired || t->leaving ? NULL : model_of(t, id);
        if (m) r = buf_adds(out, m->json);
    }
    fleet_unlock(f);
    return r;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void keep(void *name)
{
} /* it is its target's */

int gw_fleet_list_models(const struct gw_fleet *f, const struct gw_key *key, struct buf *out)
{
    int r = buf_adds(out, "{\"object\":\"list\",\"data\":[");
    void *names = NULL; /* each once; lists of thousands are joined under the lock */
    unsigned n = 0;
    fleet_lock(f);
    for (size_t i = 0; r == 0 && i < f->n; i++) {
        const struct gw_target *t = f->target[i];
        if (t->retired || t->leaving) continue;
        for (size_t j = 0; r == 0 && j < t->models.n; j++) {
            const char *id = t->models.v[j].id;
            const void *const *first = tsearch(id, &names, by_name);
            if (!first) r = -ENOMEM;
            if (!first || *first != id || (key && !gw_key_allows(key, id))) continue;
            r = buf_addf(out, "%s%s", n++ ? "," : "", t->models.v[j].json);
        }
    }
    fleet_unlock(f);
    tdestroy(names, keep);
    return r < 0 ? r : buf_adds(out, "]}");
}
