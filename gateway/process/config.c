#include "gateway/process/config.h"

#include "base/buf.h"
#include "base/hub/hub.h"
#include "base/mem.h"
#include "base/otlp/otlp.h"
#include "base/redis/registry.h"
#include "gateway/fleet/upstream.h"
#include "gateway/front/cors.h"
#include "gateway/front/listen.h"
#include "gateway/process/models.h"
#include "worker/opts_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- from options to fields ---- */

enum { /* the kinds as types of options */
       KIND_STR = OPT_STR,
       KIND_ENUM = OPT_ENUM,
       KIND_LIST = OPT_STR,
       KIND_BOOL = OPT_BOOL,
       KIND_INT = OPT_INT,
       KIND_DOUBLE = OPT_DOUBLE,
       KIND_SIZE = OPT_SIZE,
       KIND_MS = OPT_DURATION,
};
static const struct opt_def gateway_defs[] = {
#define X(kind, field, flag, file_key, default_text, from, to, properties, text, ...)              \
    {.name = flag,                                                                                 \
     .type = (enum opt_type)KIND_##kind,                                                           \
     .dflt = default_text,                                                                         \
     .min = from,                                                                                  \
     .max = to,                                                                                    \
     .help = text,                                                                                 \
     .props = properties,                                                                          \
     .key = file_key,                                                                              \
     __VA_ARGS__},
    GW_CONF_TABLE(X)
#undef X
        {0}};

static struct gw_strs get_LIST(const struct opts *o, const char *name)
{
    struct gw_strs list;
    list.v = opt_list(o, name, &list.n);
    return list;
}

#define get_STR(o, name) (opt_source(o, name) == OPT_UNSET ? NULL : opt_str(o, name))
#define get_ENUM get_STR
#define get_BOOL opt_bool
#define get_INT (uint32_t) opt_int
#define get_DOUBLE opt_double
#define get_SIZE opt_size
#define get_MS (uint32_t) opt_duration_ms

static void read_fields(struct gw_config *c)
{
#define X(kind, field, flag, ...) c->field = get_##kind(c->opts, flag);
    GW_CONF_TABLE(X)
#undef X
}

/* ---- what a single value cannot show ---- */

static void check_listen(const struct gw_config *c, struct buf *out)
{
    for (size_t i = 0; i < c->listen.n; i++) {
        if (!gw_listen_valid(c->listen.v[i], true))
            (void)buf_addf(out,
                           "listen: expected HOST:PORT, https://HOST:PORT, unix:/path or systemd, "
                           "found \"%.60s\"\n",
                           c->listen.v[i]);
        if (strncmp(c->listen.v[i], "https://", 8) == 0 && !c->tls_cert)
            (void)buf_addf(out, "listen: \"%.60s\" needs tls.cert\n", c->listen.v[i]);
    }
    bool tcp = false; /* systemd may pass what it likes: without a key TCP admits none there */
    for (size_t i = 0; i < c->admin.n; i++) {
        const char *address = c->admin.v[i];
        if (!gw_listen_valid(address, false))
            (void)buf_addf(out,
                           "admin.listen: expected HOST:PORT, unix:/path or systemd, found "
                           "\"%.60s\"\n",
                           address);
        if (strncmp(address, "unix:", 5) != 0 && strcmp(address, "systemd") != 0) tcp = true;
    }
    if (c->admin_keys.n == 0 && (tcp || c->admin_public))
        (void)buf_addf(out, "%s needs admin.keys: whoever reaches it could else do anything\n",
                       tcp ? "admin.listen: HOST:PORT" : "admin.public");
    if (c->ui_public && !c->admin_public)
        (void)buf_adds(out,
                       "ui.public needs admin.public: what the page shows comes from /admin\n");
}

static void check_registry(const struct gw_config *c, struct buf *out)
{
    struct redis_url u;
    struct err e = {0};
    const char *key = c->registry_api_key;
    if (key && (!*key || key[strcspn(key, " \t\r\n")]))
        (void)buf_adds(out, "registry.api_key: expected a key without spaces\n");
    if (!c->registry) return;
    if (redis_url_parse(&c->registry, 1, &u, &e) == 0)
        redis_url_fini(&u);
    else
        (void)buf_addf(out, "registry.url: %s\n", e.msg);
}

/* A model is there by its path, or by its name on the hub. */
static void check_model(const char *where, const char *model, struct buf *out)
{
    struct buf path = BUF_INIT;
    struct err err = {0};
    int r = hub_find(model, &path, &err);
    if (r < 0)
        (void)buf_addf(out, "%s: \"%.100s\": %s\n", where, model, err.code ? err.msg : err_name(r));
    else if (access(buf_cstr(&path), R_OK) != 0)
        (void)buf_addf(out, "%s: expected a readable GGUF file or folder, found \"%s\": %s\n",
                       where, model, strerror(errno));
    buf_fini(&path);
}

static void check_paths(const struct gw_config *c, struct buf *out)
{
    const char *presets = opt_str(c->opts, "worker.presets");
    const struct {
        const char *name, *path, *what;
        int mode;
    } paths[] = {{"worker.bin", c->worker_bin, "program", X_OK},
                 {"keys.file", c->api_key_file, "readable file", R_OK},
                 {"tls.cert", c->tls_cert, "readable file", R_OK},
                 {"tls.key", c->tls_key, "readable file", R_OK},
                 {"tls.client_ca", c->tls_client_ca, "readable file", R_OK}};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        if (paths[i].path && access(paths[i].path, paths[i].mode) != 0)
            (void)buf_addf(out, "%s: expected a %s, found \"%s\": %s\n", paths[i].name,
                           paths[i].what, paths[i].path, strerror(errno));
    if (c->model) check_model("model", c->model, out);
    struct stat st;
    if (*presets && (stat(presets, &st) != 0 || !S_ISDIR(st.st_mode)))
        (void)buf_addf(out, "worker.presets: expected a folder, found \"%s\"\n", presets);
}

/* ---- warnings ---- */

static void warn_exposed(struct buf *out, const char *where, const char *path)
{
    if (path && opt_file_exposed(path))
        (void)buf_addf(out,
                       "warning: %s: others than its owner may read or write %s; chmod 600 it\n",
                       where, path);
}

static void warn_of_files(struct buf *out, const char *list, const struct gw_upstreams *l)
{
    char where[40];
    for (size_t i = 0; l && i < l->n; i++) {
        (void)snprintf(where, sizeof where, "%s, entry %zu", list, i + 1);
        warn_exposed(out, where, l->up[i].exposed);
    }
}

static void warn_of_lines(const char *of, const char *lines, struct buf *out)
{
    for (const char *p = lines, *end; p && (end = strchr(p, '\n')); p = end + 1)
        (void)buf_addf(out, "warning: %s%.*s\n", of, (int)(end - p), p);
}

static void warn_of_variables(const struct gw_config *c, const struct opt_args *from,
                              struct buf *out)
{
    struct buf names = BUF_INIT;
    opts_unknown_env(c->opts, from, &names);
    warn_of_lines("environment variable ", buf_cstr(&names), out);
    buf_fini(&names);
}

static void check_devices(const struct gw_config *c, struct buf *out)
{
    struct wk_devices d;
    struct wk_nvme f;
    (void)wk_parse_devices(opt_str(c->opts, "worker.device"), &d);
    if (!d.several) return;
    if (c->worker_count > 1)
        (void)buf_adds(out, "worker.count: worker.device is a worker for each GPU already\n");
    if (wk_parse_nvme(opt_str(c->opts, "worker.nvme"), &f) == 0 && !f.bytes)
        (void)buf_adds(out, "worker.nvme: workers of several GPUs cannot share a block device\n");
}

static void check_models(const struct gw_config *c, struct buf *out)
{
    struct gw_models m = {0};
    struct wk_devices d;
    struct err err = {0};
    if (gw_models_parse(&c->models, &m, &err) < 0)
        (void)buf_addf(out, "%s\n", err.msg[0] ? err.msg : "models: out of memory");
    for (size_t i = 0; i < m.n; i++) {
        check_model("models", m.v[i].path, out);
        (void)wk_parse_devices(opt_str(m.v[i].opts, "device"), &d);
        if (d.several)
            (void)buf_addf(out, "models: \"%s\": device is one, an entry has one worker\n",
                           m.v[i].path);
    }
    gw_models_free(&m);
}

static void check_fallback(const struct gw_config *c, const struct gw_upstreams *l, struct buf *out)
{
    const char *name = c->fallback_upstream;
    if (c->fallback_model && !name)
        (void)buf_adds(out, "fallback.model: expected with fallback.upstream\n");
    for (size_t i = 0; name && l && i < l->n; i++)
        if (strcmp(l->up[i].name, name) == 0) return;
    if (name && l)
        (void)buf_addf(out,
                       "fallback.upstream: expected the name of an entry of upstreams, found "
                       "\"%.60s\"\n",
                       name);
}

static int check_whole(const struct gw_config *c, struct buf *out)
{
    const size_t before = out->len;
    check_listen(c, out);
    check_registry(c, out);
    check_paths(c, out);
    check_devices(c, out);
    check_models(c, out);
    for (size_t i = 0; i < c->cors_origins.n; i++)
        if (!gw_cors_pattern_ok(c->cors_origins.v[i]))
            (void)buf_addf(out,
                           "cors.origins: expected https://HOST, https://*.DOMAIN or *, found "
                           "\"%.60s\"\n",
                           c->cors_origins.v[i]);
    for (size_t i = 0; i < c->api_keys.n; i++)
        if (c->api_keys.v[i][0] == '\0')
            (void)buf_adds(out, "keys.list: expected a key, found an empty text\n");
    struct gw_upstreams *ups = NULL, *workers = NULL;
    struct err err = {0};
    int r = gw_upstreams_parse(c, false, &ups, &err);
    if (r == 0) r = gw_upstreams_parse(c, true, &workers, &err);
    check_fallback(c, ups, out);
    if (r < 0) (void)buf_addf(out, "%s\n", err.msg[0] ? err.msg : "upstreams: out of memory");
    r = out->len > before ? -EINVAL : 0;
    warn_exposed(out, "keys.file", c->api_key_file);
    warn_of_lines("", opts_exposed(c->opts), out);
    warn_exposed(out, c->tls_key ? "tls.key" : "tls.cert", c->tls_key ? c->tls_key : c->tls_cert);
    warn_of_files(out, "upstreams", ups);
    warn_of_files(out, "workers", workers);
    gw_upstreams_free(ups);
    gw_upstreams_free(workers);
    return r;
}

/* ---- life ---- */

static int create_opts(struct opts **ret)
{
    int r = opts_create(gateway_defs, ret);
    return r < 0 ? r : opts_add_section(*ret, "worker", wk_opts_table);
}

int gw_config_load(int argc, char *const *argv, char *const *envp, struct gw_config **ret,
                   struct buf *problems)
{
    const struct opt_args from = {argc, argv, envp, "KVBLEND", gw_config_read_yaml};
    struct gw_config *c = mem_zalloc(sizeof *c);
    if (!c) return -ENOMEM;
    int r = create_opts(&c->opts);
    if (r == 0) r = opts_read(c->opts, &from, problems);
    if (r == 0 || r == -EINVAL) read_fields(c);
    c->help = r == 1;
    if (r == 0 || r == -EINVAL) {
        const bool asks = c->version || c->hash_key;
        if (!asks && check_whole(c, problems) < 0) r = -EINVAL;
        if (!asks) warn_of_variables(c, &from, problems);
    }
    if (r < 0) {
        gw_config_free(c);
        return r;
    }
    *ret = c;
    return 0;
}

void gw_config_free(struct gw_config *c)
{
    if (!c) return;
    opts_destroy(c->opts);
    mem_free(c);
}

int gw_config_help(const struct gw_config *c, struct buf *out)
{
    return opts_help(c->opts, "kvblend",
                     "OpenAI-compatible gateway that reuses the KV cache of retrieved chunks.\n"
                     "kvblend pull NAME downloads a model from the hub; see kvblend pull --help.\n"
                     "Every flag has a variable, KVBLEND_NAME with _ for -.",
                     out);
}
