#include "gateway/front/listen.h"

#include "base/log.h"
#include "base/machine.h"
#include "base/mem.h"
#include "gateway/fleet/upstream.h"
#include "gateway/front/front.h"
#include "gateway/process/config.h"
#include "gateway/process/server.h"
#include "gateway/process/sysd.h"

#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum {
    FDS_KEPT = 256, /* chosen: tiers, logs, workers, probes */
    CONNS_MAX = 1000000,
    BODY_MEMORY_SHARE = 8, /* chosen: scanning may hold each body twice for a moment */
    LINE_BYTES_MAX = 8192, /* as nginx has it: what it refuses must not get around it */
};

static bool is_https(const char *entry)
{
    return strncmp(entry, "https://", 8) == 0;
}

static int address_of(const char *entry, struct buf *out)
{
    return gw_parse_address(is_https(entry) ? entry + 8 : entry, out);
}

bool gw_listen_valid(const char *entry, bool tls)
{
    struct buf scratch = BUF_INIT;
    bool ok = strcmp(entry, "systemd") == 0 ||
              ((tls || !is_https(entry)) && address_of(entry, &scratch) == 0);
    buf_fini(&scratch);
    return ok;
}

unsigned gw_conns_max(void)
{
    struct rlimit lim;
    if (getrlimit(RLIMIT_NOFILE, &lim) < 0) return 0;
    if (lim.rlim_cur < lim.rlim_max) {
        lim.rlim_cur = lim.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &lim) < 0) (void)getrlimit(RLIMIT_NOFILE, &lim);
    }
    rlim_t n = lim.rlim_cur < 2 * FDS_KEPT ? lim.rlim_cur / 2 : (lim.rlim_cur - FDS_KEPT) / 2;
    return n < CONNS_MAX ? (unsigned)n : CONNS_MAX;
}

/* Bodies of all requests in flight. Where nothing is said no more than what leaves a worker its
 * room, and always one of the largest. */
static uint64_t body_memory(const struct gw_config *c)
{
    uint64_t share = c->body_memory ? c->body_memory : machine_bytes() / BODY_MEMORY_SHARE;
    return share > c->max_body_bytes ? share : c->max_body_bytes;
}

static int make_server(struct gw_loop *loop, const struct gw_config *c, unsigned conns_max)
{
    struct http_limits lim = {.body_bytes_max = c->max_body_bytes,
                              .line_bytes_max = LINE_BYTES_MAX,
                              .body_rate_min = c->body_rate,
                              .bounds = loop->server->bounds,
                              .conns_max = conns_max,
                              .body_timeout_ms = c->client_timeout_ms,
                              .write_timeout_ms = c->client_timeout_ms};
    return http_server_create(loop->http_loop, &lim, &gw_front_ops, loop, &loop->public);
}

static void say(const char *event, const char *address, int port, bool tls)
{
    log_event(LOG_NOTICE, event, "address=%s port=%d tls=%s", address, port, tls ? "on" : "off");
}

/* The TLS settings, made when the first listener needs them. */
static int need_tls(struct gw_server *server, const struct gw_config *c, struct err *err)
{
    struct http_tls_opts o = {.cert_file = c->tls_cert,
                              .key_file = c->tls_key,
                              .ca_file = c->tls_client_ca,
                              .server = true};
    if (server->tls) return 0;
    if (!c->tls_cert) return err_set(err, -EINVAL, "https needs tls.cert and tls.key");
    return http_tls_create(&o, &server->tls, err);
}

/* Passed sockets: those named "admin" are the admin server's, all others public. */
static int listen_passed(struct gw_server *server, const struct gw_config *c, bool admin,
                         struct err *err)
{
    struct http_server *s = admin ? server->loops[0].admin : server->loops[0].public;
    size_t n = 0;
    for (size_t i = 0; server->sysd && i < server->sysd->n_fds; i++) {
        const char *name = server->sysd->name[i];
        struct http_listen_opts o = {.fd = GW_SYSD_FIRST_FD + (int)i};
        bool tls = !admin && strcmp(name, "https") == 0;
        if ((strcmp(name, "admin") == 0) != admin) continue;
        int r = tls ? need_tls(server, c, err) : 0;
        if (tls) o.tls = server->tls;
        if (r == 0) r = http_server_listen(s, name, &o, err);
        if (r < 0) return r;
        say(admin ? "admin.listening" : "gateway.listening", "systemd", r, tls);
        n++;
    }
    if (n == 0)
        return err_set(err, -ENOENT, "\"systemd\" in %s, but systemd passed no such socket",
                       admin ? "admin.listen" : "listen");
    return 0;
}

int gw_listen_on(struct gw_server *server, const struct gw_config *c, const char *entry, bool admin,
                 struct err *err)
{
    struct http_server *s = admin ? server->loops[0].admin : server->loops[0].public;
    if (strcmp(entry, "systemd") == 0) return listen_passed(server, c, admin, err);
    bool tls = is_https(entry);
    struct buf a = BUF_INIT;
    int r = address_of(entry, &a);
    if (r == 0 && tls) r = need_tls(server, c, err);
    struct http_listen_opts o = {.reuse_port = !admin && server->n_loops > 1,
                                 .unix_mode = admin ? S_IRUSR | S_IWUSR : 0,
                                 .tls = tls ? server->tls : NULL};
    if (r == 0) r = http_server_listen(s, buf_cstr(&a), &o, err);
    if (r >= 0 && !admin) say("gateway.listening", buf_cstr(&a), r, tls);
    buf_fini(&a);
    return r < 0 ? r : 0;
}

int gw_listen(struct gw_server *server, const struct gw_config *c, struct err *err)
{
    int r = 0;
    unsigned conns_max = gw_conns_max();
    struct http_bounds_opts bounds = {.body_memory_bytes = body_memory(c),
                                      .conns_per_address = c->connections_per_address,
                                      .n_servers = server->n_loops};
    if (bounds.conns_per_address == 0) bounds.conns_per_address = conns_max / 2 + 1;
    r = http_bounds_create(&bounds, &server->bounds);
    for (unsigned i = 0; r == 0 && i < server->n_loops; i++)
        r = make_server(&server->loops[i], c, conns_max / server->n_loops + 1);
    for (size_t i = 0; r == 0 && i < c->listen.n; i++)
        r = gw_listen_on(server, c, c->listen.v[i], false, err);
    for (unsigned i = 1; r == 0 && i < server->n_loops; i++)
        r = http_server_listen_same(server->loops[i].public, server->loops[0].public, err);
    return r;
}
