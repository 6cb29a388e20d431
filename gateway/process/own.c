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

enum {
    ARGS_MAX = 512,
    OWN_MAX = 64,
    HANG_MS = 60000, /* chosen: a worker answers health checks beside all that it computes */
};

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
    bool others;
    unsigned n, n_stopped;
    struct buf dir, bin, model;
    struct arena args;
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
    o->ops.on_refused(o->ops.ctx, exit_code);
    return true;
}

static void on_stopped(void *ctx)
{
    struct own_one *x = ctx;
    struct gw_own *o = x->own;
    if (++o->n_stopped == o->n) o->ops.on_stopped(o->ops.ctx);
}

/* ---- life ---- */

static const char *const *make_args(struct gw_own *o, const struct gw_config *c,
                                    const char *address)
{
    enum { N_OWN = 6 };
    const char *args[ARGS_MAX] = {buf_cstr(&o->bin), "--model", buf_cstr(&o->model),
                                  "--listen",        address,   "--exit-on-stdin-eof"};
    int n = gw_config_worker_args(c, o->n, &o->args, args + N_OWN, ARGS_MAX - N_OWN - 1);
    const size_t bytes = (size_t)(N_OWN + (n < 0 ? 0 : n) + 1) * sizeof *args;
    const char **copy = n < 0 ? NULL : arena_alloc(&o->args, bytes);
    if (copy) memcpy(copy, args, bytes); /* with the NULL at its end */
    return copy;
}

static int start_one(struct gw_own *o, const struct gw_own_setup *setup, struct err *err)
{
    struct own_one *x = &o->one[o->n];
    const struct gw_child_ops ops = {on_refused, on_stopped, x};
    struct buf address = BUF_INIT;
    (void)buf_addf(&address, "unix:%s/worker", buf_cstr(&o->dir));
    if (o->n > 0) (void)buf_addf(&address, "-%u", o->n);
    (void)buf_adds(&address, ".sock");
    x->own = o;
    x->address = buf_status(&address) == 0 ? buf_take(&address, NULL) : NULL;
    buf_fini(&address);
    if (!x->address) return -ENOMEM;
    int r = gw_fleet_add_worker(o->fleet, x->address, true, &x->target);
    const char *const *argv = r >= 0 ? make_args(o, setup->config, x->address) : NULL;
    if (r >= 0)
        r = argv ? gw_child_create(setup->loop, o->fleet, x->target, argv, &ops, &x->child)
                 : -ENOMEM;
    if (r < 0) {
        mem_free(x->address);
        return err_set(err, r, "the worker %s could not be started", buf_cstr(&o->bin));
    }
    o->n++;
    return 0;
}

int gw_own_create(const struct gw_own_setup *setup, const struct gw_own_ops *ops,
                  struct gw_own **ret, struct err *err)
{
    const struct gw_config *c = setup->config;
    struct gw_own *o = mem_zalloc(sizeof *o);
    if (!o) return -ENOMEM;
    arena_init(&o->args);
    o->fleet = setup->fleet;
    o->ops = *ops;
    o->others = setup->others;
    int r = c->worker_bin ? buf_adds(&o->bin, c->worker_bin) : gw_find_worker(&o->bin, err);
    if (r == 0) r = c->model ? buf_adds(&o->model, c->model) : gw_find_model(&o->model, err);
    if (r == 0 && !c->model)
        log_event(LOG_NOTICE, "model.found", "path=\"%s\"", buf_cstr(&o->model));
    if (r == 0) r = gw_rundir_private(setup->run_dir, &o->dir, err);
    if (r == 0) r = gw_config_worker_env(c);
    for (unsigned i = 0; r == 0 && i < c->worker_count && i < OWN_MAX; i++)
        r = start_one(o, setup, err);
    if (r < 0)
        gw_own_destroy(o);
    else
        *ret = o;
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
    if (c && silent_ms > HANG_MS && serves(o, target)) gw_child_kill(c);
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
    buf_fini(&o->bin);
    buf_fini(&o->model);
    arena_fini(&o->args);
    mem_free(o);
}
