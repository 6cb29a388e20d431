#include "gateway/fleet.h"

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/net/http.h"
#include "gateway/config.h"
#include "gateway/keys.h"
#include "gateway/stats.h"

#include <jansson.h>
#include <string.h>

enum {
    TARGETS_MAX = 64,
    PROBE_FAST_MS = 50,    /* chosen: an own worker is used as soon as it can be */
    PROBE_REMOTE_MS = 500, /* chosen: a remote one that is down is asked gently */
    PROBE_SLOW_MS = 2000,
    PROBE_TIMEOUT_MS = 5000,
    PROBE_FAILURES = 3,
    PROBE_BODY_MAX = 1 << 20,
    CONNS_MAX = 8192, /* above any sane max_inflight: admission is the limit, not this */
};

struct gw_fleet {
    struct http_loop *loop;
    const struct gw_config *config;
    struct gw_fleet_ops ops;
    void *ctx;
    struct gw_target *target[TARGETS_MAX];
    size_t n;
    bool started;
};

struct gw_probe { /* one per target: its timer and the request under way */
    struct gw_fleet *fleet;
    struct gw_target *target;
    struct http_client *client; /* of its own: short timeouts */
    struct http_timer *timer;
    struct http_call *call;
    bool models; /* the call asks for /v1/models, not /health */
    int status;
    unsigned failures;
    struct buf body;
};

const char *gw_target_state_name(enum gw_target_state s)
{
    static const char *const names[] = {"down", "loading", "ready"};
    return names[s];
}

static void models_clear(struct gw_target *t)
{
    for (size_t i = 0; i < t->n_models; i++) {
        mem_free(t->model[i].id);
        mem_free(t->model[i].json);
    }
    mem_free(t->model);
    t->model = NULL;
    t->n_models = 0;
}

static int dump_to_buf(const char *data, size_t len, void *ctx)
{
    return buf_add(ctx, data, len);
}

static int model_add(struct gw_target *t, const json_t *entry)
{
    const char *id = json_string_value(json_object_get(entry, "id"));
    if (!id) return -EBADMSG;
    struct buf dump = BUF_INIT;
    struct gw_model m = {mem_strdup(id), NULL};
    if (json_dump_callback(entry, dump_to_buf, &dump, JSON_COMPACT) == 0)
        m.json = buf_take(&dump, NULL);
    buf_fini(&dump);
    struct gw_model *v = mem_realloc(t->model, (t->n_models + 1) * sizeof *v);
    if (v) t->model = v;
    if (!v || !m.id || !m.json) {
        mem_free(m.id);
        mem_free(m.json);
        return -ENOMEM;
    }
    t->model[t->n_models++] = m;
    return 0;
}

static int models_read(struct gw_target *t, const struct buf *body)
{
    json_error_t e;
    json_t *root = json_loadb(body->data, body->len, 0, &e);
    const json_t *data = json_object_get(root, "data");
    int r = json_array_size(data) > 0 ? 0 : -EBADMSG;
    if (r == 0) models_clear(t);
    for (size_t i = 0; r == 0 && i < json_array_size(data); i++)
        r = model_add(t, json_array_get(data, i));
    json_decref(root);
    return r;
}

/* ---- state ---- */

unsigned gw_fleet_n_ready(const struct gw_fleet *f)
{
    unsigned n = 0;
    for (size_t i = 0; i < f->n; i++)
        n += f->target[i]->state == GW_TARGET_READY;
    return n;
}

static void set_state(struct gw_fleet *f, struct gw_target *t, enum gw_target_state s)
{
    enum gw_target_state old = t->state;
    if (s != GW_TARGET_READY) t->suspect = false;
    if (old == s) return;
    t->state = s;
    log_event(LOG_NOTICE, "worker.state", "worker=%u address=%s state=%s", t->index, t->address,
              gw_target_state_name(s));
    gw_stats_workers_ready(gw_fleet_n_ready(f));
    if (s == GW_TARGET_READY) {
        t->ready_since_ns = clock_ns();
        f->ops.on_ready(f->ctx, t);
    } else if (old == GW_TARGET_READY) {
        f->ops.on_lost(f->ctx, t);
    }
}

/* ---- probing ---- */

static void probe_start(struct gw_probe *p, bool models);

static void probe_again(struct gw_probe *p)
{
    const struct gw_target *t = p->target;
    if (!p->fleet->started) return;
    uint64_t ms = t->state == GW_TARGET_READY ? PROBE_SLOW_MS
                  : t->own                    ? PROBE_FAST_MS
                                              : PROBE_REMOTE_MS;
    http_timer_set(p->timer, ms);
}

static void probe_failed(struct gw_probe *p)
{
    struct gw_fleet *f = p->fleet;
    struct gw_target *t = p->target;
    p->failures++;
    /* An own worker that does not answer yet is starting: its death would come as a signal. */
    bool starting = t->own && t->state == GW_TARGET_LOADING;
    if (!starting && (t->state == GW_TARGET_LOADING || t->suspect || p->failures >= PROBE_FAILURES))
        set_state(f, t, GW_TARGET_DOWN);
    probe_again(p);
    f->ops.on_silent(f->ctx, t, (clock_ns() - t->last_ok_ns) / 1000000);
}

static void probe_on_head(void *ctx, int status, const struct http_head *h)
{
    struct gw_probe *p = ctx;
    p->status = status;
}

static void probe_on_body(void *ctx, const char *data, size_t len)
{
    struct gw_probe *p = ctx;
    if (p->body.len + len <= PROBE_BODY_MAX) (void)buf_add(&p->body, data, len);
}

static void probe_on_end(void *ctx, int status)
{
    struct gw_probe *p = ctx;
    struct gw_target *t = p->target;
    p->call = NULL;
    if (status < 0) {
        probe_failed(p);
        return;
    }
    t->last_ok_ns = clock_ns(); /* it answers, whatever it says */
    p->failures = 0;
    bool cleared = t->suspect && p->status == 200 && t->state == GW_TARGET_READY;
    t->suspect = false;
    if (p->status != 200) {
        set_state(p->fleet, t, GW_TARGET_LOADING);
    } else if (!p->models && t->state != GW_TARGET_READY) {
        probe_start(p, true);
        return;
    } else if (p->models) {
        int r = models_read(t, &p->body);
        if (r < 0)
            log_event(LOG_WARN, "worker.models", "worker=%u error=%s", t->index, err_name(r));
        set_state(p->fleet, t, r < 0 ? GW_TARGET_LOADING : GW_TARGET_READY);
    }
    if (cleared) p->fleet->ops.on_ready(p->fleet->ctx, t);
    probe_again(p);
}

static const struct http_call_ops probe_ops = {probe_on_head, probe_on_body, probe_on_end};

static void probe_start(struct gw_probe *p, bool models)
{
    p->models = models;
    p->status = 0;
    buf_clear(&p->body);
    int r = http_call_start(p->client, "GET", models ? "/v1/models" : "/health", "", NULL, 0,
                            &probe_ops, p, &p->call);
    if (r < 0) {
        p->call = NULL;
        probe_failed(p);
    }
}

static void probe_on_timer(void *arg)
{
    struct gw_probe *p = arg;
    if (!p->call) probe_start(p, false);
}

static void probe_free(struct gw_probe *p)
{
    if (!p) return;
    if (p->call) http_call_cancel(p->call);
    if (p->timer) http_timer_destroy(p->timer);
    if (p->client) http_client_destroy(p->client);
    buf_fini(&p->body);
    mem_free(p);
}

/* ---- life cycle ---- */

int gw_fleet_create(struct http_loop *loop, const struct gw_config *c,
                    const struct gw_fleet_ops *ops, void *ctx, struct gw_fleet **ret)
{
    struct gw_fleet *f = mem_zalloc(sizeof *f);
    if (!f) return -ENOMEM;
    f->loop = loop;
    f->config = c;
    f->ops = *ops;
    f->ctx = ctx;
    *ret = f;
    return 0;
}

static void target_free(struct gw_target *t)
{
    if (!t) return;
    probe_free(t->probe);
    if (t->client) http_client_destroy(t->client);
    models_clear(t);
    mem_free(t->address);
    mem_free(t);
}

int gw_fleet_add(struct gw_fleet *f, const char *address, bool own, struct gw_target **ret)
{
    if (f->n == TARGETS_MAX) return -ERANGE;
    const struct gw_config *c = f->config;
    struct buf norm = BUF_INIT;
    struct gw_target *t = mem_zalloc(sizeof *t);
    if (!t) return -ENOMEM;
    int r = gw_parse_address(address, &norm);
    if (r == 0 && buf_cstr(&norm)) t->address = mem_strdup(buf_cstr(&norm));
    buf_fini(&norm);
    t->probe = mem_zalloc(sizeof *t->probe);
    if (r == 0 && (!t->address || !t->probe)) r = -ENOMEM;
    if (r < 0) goto fail;
    t->index = (unsigned)f->n;
    t->own = own;
    t->last_ok_ns = clock_ns();
    t->probe->fleet = f;
    t->probe->target = t;
    struct http_client_opts o = {.address = t->address,
                                 .conns_max = CONNS_MAX,
                                 .connect_timeout_ms = c->connect_timeout_ms,
                                 .first_byte_timeout_ms = c->first_byte_timeout_ms,
                                 .idle_timeout_ms = c->idle_timeout_ms};
    struct http_client_opts probe = {.address = t->address,
                                     .conns_max = 1,
                                     .connect_timeout_ms = PROBE_TIMEOUT_MS,
                                     .first_byte_timeout_ms = PROBE_TIMEOUT_MS,
                                     .idle_timeout_ms = PROBE_TIMEOUT_MS};
    r = http_client_create(f->loop, &o, &t->client);
    if (r == 0) r = http_client_create(f->loop, &probe, &t->probe->client);
    if (r == 0) r = http_timer_create(f->loop, probe_on_timer, t->probe, &t->probe->timer);
    if (r < 0) goto fail;
    f->target[f->n++] = t;
    *ret = t;
    return 0;
fail:
    target_free(t);
    return r;
}

void gw_fleet_start(struct gw_fleet *f)
{
    f->started = true;
    for (size_t i = 0; i < f->n; i++)
        http_timer_set(f->target[i]->probe->timer, 1);
}

void gw_fleet_stop(struct gw_fleet *f)
{
    f->started = false;
    for (size_t i = 0; i < f->n; i++) {
        struct gw_probe *p = f->target[i]->probe;
        http_timer_clear(p->timer);
        if (p->call) http_call_cancel(p->call);
        p->call = NULL;
    }
}

void gw_fleet_destroy(struct gw_fleet *f)
{
    if (!f) return;
    for (size_t i = 0; i < f->n; i++)
        target_free(f->target[i]);
    mem_free(f);
}

void gw_fleet_lost(struct gw_fleet *f, struct gw_target *t)
{
    struct gw_probe *p = t->probe;
    if (p->call) http_call_cancel(p->call);
    p->call = NULL;
    set_state(f, t, GW_TARGET_DOWN);
    probe_again(p);
}

void gw_fleet_expect(struct gw_fleet *f, struct gw_target *t)
{
    t->last_ok_ns = clock_ns();
    t->probe->failures = 0;
    set_state(f, t, GW_TARGET_LOADING);
    if (f->started && !t->probe->call) http_timer_set(t->probe->timer, PROBE_FAST_MS);
}

void gw_fleet_suspect(struct gw_fleet *f, struct gw_target *t)
{
    if (t->state != GW_TARGET_READY || !f->started) return;
    t->suspect = true;
    if (!t->probe->call) http_timer_set(t->probe->timer, 1);
}

/* ---- questions ---- */

size_t gw_fleet_count(const struct gw_fleet *f)
{
    return f->n;
}

struct gw_target *gw_fleet_get(struct gw_fleet *f, size_t i)
{
    ASSERT(i < f->n);
    return f->target[i];
}

static const struct gw_model *target_model(const struct gw_target *t, const char *id)
{
    for (size_t i = 0; i < t->n_models; i++)
        if (strcmp(t->model[i].id, id) == 0) return &t->model[i];
    return NULL;
}

/* A single worker judges names itself, because it knows more of them than it lists (its file's
 * name, "default"); among several the listed names decide. */
static bool serves(const struct gw_fleet *f, const struct gw_target *t, const char *model)
{
    return !model || f->n == 1 || target_model(t, model);
}

struct gw_target *gw_fleet_pick(struct gw_fleet *f, const char *model)
{
    struct gw_target *best = NULL;
    for (size_t i = 0; i < f->n; i++) {
        struct gw_target *t = f->target[i];
        if (t->state != GW_TARGET_READY || t->suspect || !serves(f, t, model)) continue;
        if (!best || t->n_inflight < best->n_inflight) best = t;
    }
    return best;
}

bool gw_fleet_unsure(const struct gw_fleet *f)
{
    for (size_t i = 0; i < f->n; i++)
        if (f->target[i]->suspect) return true;
    return false;
}

const struct gw_model *gw_fleet_model(const struct gw_fleet *f, const char *id)
{
    for (size_t i = 0; i < f->n; i++) {
        const struct gw_model *m = target_model(f->target[i], id);
        if (m) return m;
    }
    return NULL;
}

int gw_fleet_knows(const struct gw_fleet *f, const char *model)
{
    size_t n_known = 0;
    for (size_t i = 0; i < f->n; i++)
        n_known += f->target[i]->n_models > 0;
    if (n_known == 0) return -EAGAIN;
    return f->n == 1 || gw_fleet_model(f, model) != NULL;
}

bool gw_fleet_hopeful(const struct gw_fleet *f)
{
    for (size_t i = 0; i < f->n; i++)
        if (f->target[i]->own || f->target[i]->state != GW_TARGET_DOWN) return true;
    return false;
}

int gw_fleet_list_models(const struct gw_fleet *f, const struct gw_key *key, struct buf *out)
{
    int r = buf_adds(out, "{\"object\":\"list\",\"data\":[");
    unsigned n = 0;
    for (size_t i = 0; r == 0 && i < f->n; i++) {
        const struct gw_target *t = f->target[i];
        for (size_t j = 0; r == 0 && j < t->n_models; j++) {
            if (gw_fleet_model(f, t->model[j].id) != &t->model[j]) continue; /* named before */
            if (key && !gw_key_allows(key, t->model[j].id)) continue;
            r = buf_addf(out, "%s%s", n++ ? "," : "", t->model[j].json);
        }
    }
    return r < 0 ? r : buf_adds(out, "]}");
}
