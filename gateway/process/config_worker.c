#include "gateway/process/config_worker.h"

#include "base/buf.h"
#include "base/machine.h"
#include "base/mem.h"
#include "gateway/process/config.h"
#include "worker/opts_table.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of "worker.access_log" there is the row "access-log" in its table; `model`: of these instead. */
static char **worker_values(const struct gw_config *c, const struct opts *model,
                            const struct opt_def *d, size_t *ret_n)
{
    char key[80];
    (void)snprintf(key, sizeof key, "%s%s", model ? "" : "worker.", d->name);
    const struct opts *o = model ? model : c->opts;
    char **values = opt_list(o, key, ret_n);
    if (!opt_given(o, key)) *ret_n = 0;
    return values;
}

/* "--NAME=VALUE"; NULL and 0: the worker's own default. value NULL: none was given. */
static int worker_arg(const struct gw_config *c, const struct gw_worker_share *s, const char *name,
                      const char *value, struct arena *a, const char **out)
{
    const unsigned cores = machine_cpus(), n_all = s->n_all ? s->n_all : s->n;
    struct buf b = BUF_INIT;
    (void)buf_addf(&b, "--%s=", name);
    const size_t bare = b.len;
    if (s->device && strcmp(name, "device") == 0)
        (void)buf_adds(&b, s->device);
    else if (s->device && strcmp(name, "ram") == 0)
        (void)buf_addf(&b, "%llu", (unsigned long long)opt_size(c->opts, "worker.ram") / s->n);
    else if (value && s->n > 1 && strcmp(name, "nvme") == 0)
        wk_share_nvme(value, s->number, s->device ? s->n : 1, &b);
    else if (value)
        (void)buf_adds(&b, value);
    else if (n_all > 1 && strcmp(name, "threads") == 0)
        (void)buf_addf(&b, "%u", cores > n_all ? cores / n_all : 1);
    const bool any = b.len > bare;
    *out = any ? arena_strndup(a, b.data, b.len) : NULL;
    const int r = buf_status(&b) < 0 || (any && !*out) ? -ENOMEM : any;
    buf_fini(&b);
    return r;
}

int gw_config_worker_args(const struct gw_config *c, const struct gw_worker_share *share,
                          struct arena *a, const char **out, size_t cap)
{
    const struct {
        const char *name, *value;
    } own[] = {{"log-level", c->log_level},
               {"log-format", opt_given(c->opts, "log-format") ? c->log_format : NULL},
               {"traces-endpoint", c->traces_endpoint}};
    int n = 0;
    for (size_t i = 0; i < sizeof own / sizeof *own && n >= 0; i++) {
        int r = (size_t)n + 2 > cap ? -ERANGE
                : own[i].value      ? worker_arg(c, share, own[i].name, own[i].value, a, out + n)
                                    : 0;
        n = r < 0 ? r : n + r;
    }
    for (const struct opt_def *d = wk_opts_table; d->name && n >= 0; d++) {
        size_t n_values;
        char **value = worker_values(c, share->model, d, &n_values);
        if (d->props & OPT_SECRET) continue; /* by the environment */
        for (size_t i = 0; i == 0 || i < n_values; i++) {
            if ((size_t)n + 2 > cap) return -ERANGE;
            int r = worker_arg(c, share, d->name, n_values ? value[i] : NULL, a, out + n);
            if (r < 0) return r;
            n += r;
        }
    }
    return n;
}

/* KVBLEND_WORKER_NAME of the flag `name`. */
static int set_worker_env(const char *flag, char *const *value, size_t n, const char *split)
{
    struct buf name = BUF_INIT, all = BUF_INIT;
    (void)buf_addf(&name, "KVBLEND_WORKER_%s", flag);
    for (size_t i = strlen("KVBLEND_WORKER_"); i < name.len; i++)
        name.data[i] = (char)(name.data[i] == '-' ? '_' : toupper((unsigned char)name.data[i]));
    for (size_t i = 0; i < n; i++)
        (void)buf_addf(&all, "%s%s", i ? split : "", value[i]);
    const bool ok = buf_status(&name) == 0 && buf_status(&all) == 0 &&
                    setenv(buf_cstr(&name), buf_cstr(&all), 1) == 0;
    if (all.data) explicit_bzero(all.data, all.cap);
    buf_fini(&name);
    buf_fini(&all);
    return ok ? 0 : -ENOMEM;
}

int gw_config_worker_env(const struct gw_config *c)
{
    const struct gw_strs *headers = &c->traces_headers;
    int r = setenv("KVBLEND_EXIT_ON_STDIN_EOF", "1", 1) < 0 ? -ENOMEM : 0;
    if (r == 0 && headers->n > 0) r = set_worker_env("traces-headers", headers->v, headers->n, ",");
    for (const struct opt_def *d = wk_opts_table; d->name && r == 0; d++) {
        size_t n;
        char **value = worker_values(c, NULL, d, &n);
        if (n > 0 && d->props & OPT_SECRET) r = set_worker_env(d->name, value, n, d->split);
    }
    return r;
}
