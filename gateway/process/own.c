#include "gateway/process/own.h"

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "gateway/fleet/fleet.h"
#include "gateway/fleet/view.h"
#include "gateway/process/child.h"
#include "gateway/process/config.h"
#include "gateway/process/findmodel.h"
#include "gateway/process/rundir.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { ARGS_MAX = 512, OWN_MAX = 64 };

struct own_one {
    struct gw_own *own;
    struct gw_child *child;
    char *address;
    unsigned target;
    bool refused;
};
struct gw_own {
    struct gw_fleet *fleet;
    struct gw_own_ops ops;
    void *ctx;
    uint32_t hang_ms;
    bool others;
    unsigned n, n_stopped;
    struct buf dir;
    struct own_one one[OWN_MAX];
};

static bool serves(const struct gw_own *o, unsigned target)
{
    struct gw_target_view v;
    return gw_fleet_view(o->fleet, target, &v) && v.n_models > 0;
}

/* True: nobody is worth waiting for, and whoever asked was told. */
static bool on_refused(void *ctx, int exit_code)
{
    struct own_one *x = ctx;
    struct gw_own *o = x->own;
    x->refused = true;
    if (o->others) return false;
    for (unsigned i = 0; i < o->n; i++)
        if (!o->one[i].refused || serves(o, o->one[i].target)) return false;
    o->ops.on_refused(o->ctx, exit_code);
    return true;
}

static void on_stopped(void *ctx)
{
    struct own_one *x = ctx;
    struct gw_own *o = x->own;
    if (++o->n_stopped == o->n) o->ops.on_stopped(o->ctx);
}

/* ---- arguments ---- */

struct own_args {
    struct buf bin, model, nvme, threads;
    const char *argv[ARGS_MAX];
};

/* PATH:SIZE → PATH.N:SIZE. A path may hold colons; the size is behind the last one. */
static int own_nvme(const char *value, unsigned number, struct buf *out)
{
    const char *colon = strrchr(value, ':');
    buf_clear(out);
    if (!colon) return buf_adds(out, value); /* the worker says what is wrong with it */
    return buf_addf(out, "%.*s.%u%s", (int)(colon - value), value, number, colon);
}

static int make_args(struct own_args *a, const struct gw_config *c, const char *address,
                     unsigned number)
{
    size_t n = 0, n_pass = 0;
    a->argv[n++] = buf_cstr(&a->bin);
    a->argv[n++] = "--model";
    a->argv[n++] = buf_cstr(&a->model);
    a->argv[n++] = "--listen";
    a->argv[n++] = address;
    a->argv[n++] = "--exit-on-stdin-eof";
    int r = gw_config_worker_args(c, a->argv + n, ARGS_MAX - n - 3, &n_pass);
    if (r == 0 && c->worker_count > 1 && c->nvme) r = own_nvme(c->nvme, number, &a->nvme);
    for (size_t i = n; r == 0 && i < n + n_pass; i++)
        if (a->argv[i] == c->nvme && a->nvme.len > 0) a->argv[i] = buf_cstr(&a->nvme);
    n += n_pass;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (r == 0 && c->worker_count > 1 && !c->threads && cores > 0) {
        long each = cores / (long)c->worker_count;
        buf_clear(&a->threads);
        r = buf_addf(&a->threads, "%ld", each > 0 ? each : 1);
        a->argv[n++] = "--threads";
        a->argv[n++] = buf_cstr(&a->threads);
    }
    a->argv[n] = NULL;
    return r;
}

/* ---- life ---- */

static int start_one(struct gw_own *o, struct http_loop *loop, const struct gw_config *c,
                     struct own_args *a, struct err *err)
{
    static const struct gw_child_ops ops = {on_refused, on_stopped};
    struct own_one *x = &o->one[o->n];
    struct buf address = BUF_INIT;
    x->own = o;
    int r = buf_addf(&address, "unix:%s/worker", buf_cstr(&o->dir));
    if (r == 0 && o->n > 0) r = buf_addf(&address, "-%u", o->n);
    if (r == 0) r = buf_adds(&address, ".sock");
    x->address = r == 0 ? mem_strdup(buf_cstr(&address)) : NULL;
    buf_fini(&address);
    if (!x->address) return -ENOMEM;
    r = gw_fleet_add_worker(o->fleet, x->address, true, &x->target);
    if (r >= 0) r = make_args(a, c, x->address, o->n);
    if (r == 0) r = gw_child_create(loop, o->fleet, x->target, a->argv, &ops, x, &x->child);
    if (r < 0) {
        mem_free(x->address);
        return err_set(err, r, "the worker %s could not be started", buf_cstr(&a->bin));
    }
    o->n++;
    return 0;
}

int gw_own_create(struct http_loop *loop, struct gw_fleet *fleet, const struct gw_config *c,
                  const char *dir, bool others, const struct gw_own_ops *ops, void *ctx,
                  struct gw_own **ret, struct err *err)
{
    struct own_args *a = mem_zalloc(sizeof *a);
    struct gw_own *o = mem_zalloc(sizeof *o);
    int r = a && o ? 0 : -ENOMEM;
    if (r < 0) goto out;
    o->fleet = fleet;
    o->ops = *ops;
    o->ctx = ctx;
    o->hang_ms = c->hang_timeout_ms;
    o->others = others;
    r = c->worker_bin ? buf_adds(&a->bin, c->worker_bin) : gw_find_worker(&a->bin, err);
    if (r == 0) r = c->model ? buf_adds(&a->model, c->model) : gw_find_model(&a->model, err);
    if (r == 0 && !c->model)
        log_event(LOG_NOTICE, "model.found", "path=\"%s\"", buf_cstr(&a->model));
    if (r == 0) r = gw_rundir_private(dir, &o->dir, err);
    if (r == 0) r = gw_config_worker_env(c);
    for (unsigned i = 0; r == 0 && i < c->worker_count && i < OWN_MAX; i++)
        r = start_one(o, loop, c, a, err);
    if (r == 0) {
        *ret = o;
        o = NULL;
    }
out:
    gw_own_destroy(o);
    if (a) {
        buf_fini(&a->bin);
        buf_fini(&a->model);
        buf_fini(&a->nvme);
        buf_fini(&a->threads);
    }
    mem_free(a);
    return r;
}

void gw_own_reaped(struct gw_own *o)
{
    for (unsigned i = 0; i < o->n; i++)
        gw_child_reaped(o->one[i].child);
}

void gw_own_silent(struct gw_own *o, unsigned target, uint64_t silent_ms)
{
    struct gw_child *c = gw_own_child(o, target);
    /* One that still loads its model is given all the time it needs. */
    if (c && silent_ms > o->hang_ms && serves(o, target)) gw_child_kill(c);
}

void gw_own_stop(struct gw_own *o, unsigned grace_ms)
{
    for (unsigned i = 0, n = o->n; i < n; i++)
        gw_child_stop(o->one[i].child, grace_ms);
}

struct gw_child *gw_own_child(const struct gw_own *o, unsigned target)
{
    for (unsigned i = 0; o && i < o->n; i++)
        if (o->one[i].target == target) return o->one[i].child;
    return NULL;
}

void gw_own_destroy(struct gw_own *o)
{
    if (!o) return;
    for (unsigned i = 0; i < o->n; i++) {
        gw_child_destroy(o->one[i].child);
        (void)unlink(o->one[i].address + strlen("unix:"));
        mem_free(o->one[i].address);
    }
    if (o->dir.len > 0) (void)rmdir(buf_cstr(&o->dir));
    buf_fini(&o->dir);
    mem_free(o);
}
