#include "base/net/http_server_int.h"

#include "base/assert.h"
#include "base/mem.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    ACCEPTS_PER_WAKE = 64, /* chosen: bounded work per wake-up */
    BACKLOG = 1024,
    PAUSE_MS = 100, /* chosen: how soon accepting is tried again when descriptors ran out */
    SPARE = 16,     /* chosen: connections above the limit that are answered from memory */
};

static void set_defaults(struct http_limits *l)
{
    l->head_bytes_max = l->head_bytes_max ?: 32 * 1024;
    l->body_bytes_max = l->body_bytes_max ?: 32 * 1024 * 1024;
    l->body_rate_min = l->body_rate_min ?: 4096;
    l->out_high_bytes = l->out_high_bytes ?: 256 * 1024;
    l->headers_max = l->headers_max ?: 100;
    l->conns_max = l->conns_max ?: 10000;
    l->head_timeout_ms = l->head_timeout_ms ?: 10000;
    l->body_timeout_ms = l->body_timeout_ms ?: 60000;
    l->idle_timeout_ms = l->idle_timeout_ms ?: 75000;
    l->write_timeout_ms = l->write_timeout_ms ?: 60000;
}

static void set_accepting(struct http_server *s, bool on)
{
    s->paused = !on;
    for (size_t i = 0; i < s->n_listeners; i++) {
        if (on)
            (void)event_add(&s->listeners[i].ev, NULL);
        else
            (void)event_del(&s->listeners[i].ev);
    }
}

static struct http_conn *oldest_idle(struct http_server *s)
{
    return http_conn_oldest(&s->idle, offsetof(struct http_conn, among_all));
}

/* A handler that judges requests by their heads may look at a few that are too many. */
static bool is_full(const struct http_server *s)
{
    return s->n_conns >= (size_t)s->lim.conns_max + (s->ops.on_head ? SPARE : 0);
}

static void pause_accepting(struct http_server *s)
{
    set_accepting(s, false);
    http_timer_set(&s->resume, PAUSE_MS);
}

static void on_resume(void *arg)
{
    struct http_server *s = arg;
    if (s->draining) return;
    if (is_full(s) && !oldest_idle(s))
        pause_accepting(s);
    else
        set_accepting(s, true);
}

static void on_accept(evutil_socket_t fd, short what, void *arg)
{
    struct http_listener *ln = arg;
    struct http_server *s = ln->server;
    for (int i = 0; i < ACCEPTS_PER_WAKE; i++) {
        struct http_conn *goes = s->n_conns >= s->lim.conns_max ? oldest_idle(s) : NULL;
        if (!goes && is_full(s)) {
            pause_accepting(s);
            return;
        }
        struct http_addr peer = {.len = sizeof peer.ss};
        int c =
            accept4(ln->fd, (struct sockaddr *)&peer.ss, &peer.len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (c < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
            goes = oldest_idle(s);
            if (!goes) {
                pause_accepting(s);
                return;
            }
            http_conn_evict(goes);
            continue;
        }
        if (c < 0 && errno != ECONNABORTED && errno != EINTR) return;
        if (c < 0) continue;
        if (goes) http_conn_evict(goes);
        if (ln->port) http_io_tune(c, s->lim.write_timeout_ms);
        if (http_conn_create(s, c, &peer, ln->tls) < 0) {
            pause_accepting(s);
            return;
        }
    }
}

void http_server_conn_gone(struct http_server *s)
{
    if (s->paused && !s->draining && s->n_conns < s->lim.conns_max) set_accepting(s, true);
}

int http_server_create(struct http_loop *l, const struct http_limits *lim,
                       const struct http_server_ops *ops, void *ctx, struct http_server **ret)
{
    struct http_server *s = mem_zalloc(sizeof *s);
    if (!s) return -ENOMEM;
    s->loop = l;
    s->ops = *ops;
    s->ctx = ctx;
    if (lim) s->lim = *lim;
    set_defaults(&s->lim);
    http_link_init(&s->conns);
    http_link_init(&s->idle);
    s->place = http_bounds_join(s->lim.bounds);
    http_timer_init(&s->resume, l, on_resume, s);
    *ret = s;
    return 0;
}

/* A socket file without a listener is removed; a live one or another file is not. */
static int clear_stale(const struct http_addr *a, const char *path, struct err *err)
{
    struct stat st;
    if (lstat(path, &st) < 0) return 0;
    if (!S_ISSOCK(st.st_mode))
        return err_set(err, -EADDRINUSE, "\"%.150s\" exists and is not a socket", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return err_set(err, -errno, "cannot create a socket: %s", strerror(errno));
    bool alive = connect(fd, (const struct sockaddr *)&a->ss, a->len) == 0 || errno != ECONNREFUSED;
    (void)close(fd);
    if (alive) return err_set(err, -EADDRINUSE, "\"%.150s\" is in use by another server", path);
    if (unlink(path) < 0)
        return err_set(err, -errno, "cannot remove \"%.150s\": %s", path, strerror(errno));
    return 0;
}

enum port_sharing { PORT_ALONE, PORT_FIRST, PORT_NEXT };

/* The first of several listeners on one port binds alone, so that a port which another program
 * holds is noticed, and opens it to the others afterwards. */
static int open_listener(const struct http_addr *a, enum port_sharing sharing, unsigned unix_mode,
                         int *ret_fd)
{
    int one = 1, zero = 0;
    int fd = socket(a->ss.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -errno;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (a->ss.ss_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    const struct sockaddr_un *un = (const struct sockaddr_un *)&a->ss;
    int r = 0;
    if (unix_mode) r = fchmod(fd, unix_mode); /* the file gets it, less what the umask takes */
    if (sharing == PORT_NEXT) r = setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
    if (r == 0) r = bind(fd, (const struct sockaddr *)&a->ss, a->len);
    if (r == 0 && unix_mode) r = chmod(un->sun_path, unix_mode);
    if (r == 0 && sharing == PORT_FIRST)
        r = setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
    if (r == 0) r = listen(fd, BACKLOG);
    if (r < 0) {
        r = -errno;
        (void)close(fd);
        return r;
    }
    *ret_fd = fd;
    return 0;
}

static int bound_port(int fd)
{
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;
    if (getsockname(fd, (struct sockaddr *)&ss, &len) < 0) return 0;
    struct sockaddr_in in; /* the port of IPv6 lies in the same place */
    if (ss.ss_family != AF_INET && ss.ss_family != AF_INET6) return 0;
    memcpy(&in, &ss, sizeof in);
    return ntohs(in.sin_port);
}

/* Takes fd and path. */
static int add_listener(struct http_server *s, int fd, char *unix_path, struct http_tls *tls,
                        bool shared)
{
    struct http_listener *ln = &s->listeners[s->n_listeners++];
    ln->unix_path = unix_path;
    ln->tls = tls ? http_tls_ref(tls) : NULL;
    ln->server = s;
    ln->fd = fd;
    ln->port = bound_port(fd);
    ln->shared = shared;
    event_assign(&ln->ev, s->loop->base, fd, EV_READ | EV_PERSIST, on_accept, ln);
    (void)event_add(&ln->ev, NULL);
    return ln->port;
}

static int check_room(const struct http_server *s, struct err *err)
{
    if (s->n_listeners < HTTP_LISTENERS_MAX) return 0;
    return err_set(err, -ERANGE, "more than %d listeners", HTTP_LISTENERS_MAX);
}

/* A socket that somebody else opened. */
static int listen_fd(struct http_server *s, const char *address, const struct http_listen_opts *o,
                     struct err *err)
{
    int type = 0, listening = 0;
    socklen_t len = sizeof type;
    if (getsockopt(o->fd, SOL_SOCKET, SO_TYPE, &type, &len) < 0 || type != SOCK_STREAM ||
        getsockopt(o->fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &len) < 0 || !listening)
        return err_set(err, -EINVAL, "descriptor %d (%.100s) is not a listening stream socket",
                       o->fd, address);
    if (fcntl(o->fd, F_SETFL, fcntl(o->fd, F_GETFL) | O_NONBLOCK) < 0 ||
        fcntl(o->fd, F_SETFD, FD_CLOEXEC) < 0)
        return err_set(err, -errno, "cannot use descriptor %d: %s", o->fd, strerror(errno));
    return add_listener(s, o->fd, NULL, o->tls, false);
}

int http_server_listen(struct http_server *s, const char *address,
                       const struct http_listen_opts *opts, struct err *err)
{
    static const struct http_listen_opts plain;
    const struct http_listen_opts *o = opts ? opts : &plain;
    struct http_addr addrs[HTTP_ADDRS_MAX];
    size_t n = 0;
    int r = check_room(s, err), fd = -1;
    if (r < 0) return r;
    if (o->fd > 0) return listen_fd(s, address, o, err);
    r = http_addr_resolve(address, true, addrs, &n, err);
    if (r < 0) return r;
    const char *path = addrs[0].ss.ss_family == AF_UNIX ? address + 5 : NULL;
    if (path) r = clear_stale(&addrs[0], path, err);
    if (r < 0) return r;
    bool shared = o->reuse_port && !path;
    for (size_t i = 0; i < n && fd < 0; i++)
        r = open_listener(&addrs[i], shared ? PORT_FIRST : PORT_ALONE, path ? o->unix_mode : 0,
                          &fd);
    if (fd < 0) return err_set(err, r, "cannot listen on \"%.120s\": %s", address, strerror(-r));
    char *copy = path ? mem_strdup(path) : NULL;
    if (path && !copy) {
        (void)close(fd);
        (void)unlink(path);
        return err_set(err, -ENOMEM, "out of memory");
    }
    return add_listener(s, fd, copy, o->tls, shared);
}

int http_server_listen_same(struct http_server *s, const struct http_server *from, struct err *err)
{
    for (size_t i = 0; i < from->n_listeners; i++) {
        const struct http_listener *ln = &from->listeners[i];
        struct http_addr a = {.len = sizeof a.ss};
        int fd = -1, r = check_room(s, err);
        if (r < 0) return r;
        if (!ln->shared)
            fd = fcntl(ln->fd, F_DUPFD_CLOEXEC, 3);
        else if (getsockname(ln->fd, (struct sockaddr *)&a.ss, &a.len) == 0)
            r = open_listener(&a, PORT_NEXT, 0, &fd);
        if (fd < 0) {
            r = r < 0 ? r : -errno;
            return err_set(err, r, "cannot share a listening socket: %s", strerror(-r));
        }
        (void)add_listener(s, fd, NULL, ln->tls, ln->shared);
    }
    return 0;
}

int http_server_port(const struct http_server *s)
{
    for (size_t i = 0; i < s->n_listeners; i++)
        if (s->listeners[i].port) return s->listeners[i].port;
    return 0;
}

void http_server_stop_accepting(struct http_server *s)
{
    s->draining = true;
    http_timer_fini(&s->resume);
    for (size_t i = 0; i < s->n_listeners; i++) {
        struct http_listener *ln = &s->listeners[i];
        (void)event_del(&ln->ev);
        (void)close(ln->fd);
        if (ln->unix_path) (void)unlink(ln->unix_path);
        mem_free(ln->unix_path);
        http_tls_unref(ln->tls);
    }
    s->n_listeners = 0;
    for (struct http_link *l = s->conns.next, *next; l != &s->conns; l = next) {
        next = l->next;
        http_conn_drain(HTTP_LINK_OWNER(l, struct http_conn, among_conns));
    }
}

size_t http_server_n_requests(const struct http_server *s)
{
    return s->n_requests;
}

void http_server_destroy(struct http_server *s)
{
    if (!s) return;
    http_server_stop_accepting(s);
    while (!http_link_empty(&s->conns))
        http_conn_destroy(HTTP_LINK_OWNER(s->conns.next, struct http_conn, among_conns));
    ASSERT(s->n_requests == 0);
    mem_free(s);
}
