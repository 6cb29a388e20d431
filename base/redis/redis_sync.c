#include "base/redis/redis_sync.h"

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/redis/redis_conn.h"
#include "base/redis/redis_topo.h"

#include <fcntl.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

enum { FOLLOW_MAX = 5, READ_BYTES = 4096 };

struct redis_sync {
    const struct redis_url *url;
    unsigned timeout_ms;
    SSL_CTX *tls;
    int fd; /* -1: closed */
    SSL *ssl;
    redisReader *reader;
    struct redis_addr at, moved; /* whom it is connected to; whom a cluster named last */
    bool has_moved;
    uint64_t n_connects, until_ns;
};

/* ---- one connection ---- */

static void hang_up(struct redis_sync *s)
{
    if (s->ssl) SSL_free(s->ssl);
    if (s->fd >= 0) (void)close(s->fd);
    if (s->reader) redisReaderFree(s->reader);
    s->ssl = NULL;
    s->fd = -1;
    s->reader = NULL;
}

/* Until the socket is ready or the time is over. */
static int wait_for(struct redis_sync *s, short events)
{
    struct pollfd p = {.fd = s->fd, .events = events};
    for (;;) {
        uint64_t now = clock_ns();
        if (now >= s->until_ns) return -ETIMEDOUT;
        int r = poll(&p, 1, (int)((s->until_ns - now) / 1000000 + 1));
        if (r > 0) return 0;
        if (r < 0 && errno != EINTR) return -errno;
    }
}

/* What an SSL call that gave r needs before it can go on; <0 it broke. */
static int tls_wait(struct redis_sync *s, int r)
{
    int e = SSL_get_error(s->ssl, r);
    if (e == SSL_ERROR_WANT_READ) return wait_for(s, POLLIN);
    if (e == SSL_ERROR_WANT_WRITE) return wait_for(s, POLLOUT);
    ERR_clear_error();
    return e == SSL_ERROR_ZERO_RETURN ? -ECONNRESET : -EIO;
}

static int send_all(struct redis_sync *s, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t k = s->ssl ? SSL_write(s->ssl, p, (int)(n < 65536 ? n : 65536))
                           : send(s->fd, p, n, MSG_NOSIGNAL);
        int r = 0;
        if (k > 0) {
            p += k;
            n -= (size_t)k;
        } else if (s->ssl) {
            r = tls_wait(s, (int)k);
        } else if (errno == EAGAIN || errno == EINTR) {
            r = wait_for(s, POLLOUT);
        } else {
            r = -errno;
        }
        if (r < 0) return r;
    }
    return 0;
}

static int receive(struct redis_sync *s, redisReply **ret)
{
    char data[READ_BYTES];
    for (;;) {
        void *reply = NULL;
        if (redisReaderGetReply(s->reader, &reply) != REDIS_OK) return -EBADMSG;
        if (reply) {
            *ret = reply;
            return 0;
        }
        ssize_t k =
            s->ssl ? SSL_read(s->ssl, data, sizeof data) : recv(s->fd, data, sizeof data, 0);
        int r = 0;
        if (k > 0)
            r = redisReaderFeed(s->reader, data, (size_t)k) == REDIS_OK ? 0 : -ENOMEM;
        else if (s->ssl)
            r = tls_wait(s, (int)k);
        else if (k == 0)
            r = -ECONNRESET;
        else
            r = errno == EAGAIN || errno == EINTR ? wait_for(s, POLLIN) : -errno;
        if (r < 0) return r;
    }
}

static int exchange(struct redis_sync *s, int argc, const char *const *argv, redisReply **ret)
{
    struct buf b = BUF_INIT;
    int r = buf_addf(&b, "*%d\r\n", argc);
    for (int i = 0; r == 0 && i < argc; i++)
        r = buf_addf(&b, "$%zu\r\n%s\r\n", strlen(argv[i]), argv[i]);
    if (r == 0) r = send_all(s, b.data, b.len);
    buf_fini(&b);
    return r < 0 ? r : receive(s, ret);
}

static int shake_hands(struct redis_sync *s, const char *host, struct err *err)
{
    s->ssl = redis_tls_open(s->tls, s->fd, host, s->url->insecure);
    if (!s->ssl) return -ENOMEM;
    for (;;) {
        int k = SSL_connect(s->ssl), r;
        if (k == 1) return 0;
        long verify = SSL_get_verify_result(s->ssl);
        r = tls_wait(s, k);
        if (r < 0 && verify != X509_V_OK && !s->url->insecure)
            return err_set(err, -EACCES, "certificate: %s", X509_verify_cert_error_string(verify));
        if (r < 0) return r;
    }
}

static int connect_to(struct redis_sync *s, const struct sockaddr *sa, socklen_t len)
{
    s->fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->fd < 0) return -errno;
    int r = connect(s->fd, sa, len) == 0 || errno == EINPROGRESS ? 0 : -errno;
    if (r == 0) r = wait_for(s, POLLOUT);
    int e = 0;
    socklen_t n = sizeof e;
    if (r == 0 && getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &e, &n) < 0) r = -errno;
    if (r == 0) r = -e;
    if (r < 0) {
        (void)close(s->fd);
        s->fd = -1;
    }
    return r;
}

static int connect_any(struct redis_sync *s, const struct redis_addr *a)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list = NULL;
    char port[8];
    int r = -EHOSTUNREACH;
    if (redis_addr_is_unix(a)) {
        struct sockaddr_un un = {.sun_family = AF_UNIX};
        (void)snprintf(un.sun_path, sizeof un.sun_path, "%.*s", (int)sizeof un.sun_path - 1,
                       a->host);
        return connect_to(s, (const struct sockaddr *)&un, sizeof un);
    }
    (void)snprintf(port, sizeof port, "%u", a->port);
    if (getaddrinfo(a->host, port, &hints, &list) != 0) return -EHOSTUNREACH;
    for (const struct addrinfo *i = list; i && r < 0; i = i->ai_next)
        r = connect_to(s, i->ai_addr, i->ai_addrlen);
    freeaddrinfo(list);
    return r;
}

/* An error of the server's, without what it repeats of the command. */
static int refused(struct err *err, int code, const redisReply *r)
{
    int n = (int)strcspn(r->str ? r->str : "", ",");
    return err_set(err, code, "%.*s", n < 200 ? n : 200, r->str ? r->str : "refused");
}

static int say(struct redis_sync *s, int argc, const char *const *argv, struct err *err)
{
    redisReply *reply;
    int r = exchange(s, argc, argv, &reply);
    if (r < 0) return r;
    if (reply->type == REDIS_REPLY_ERROR) r = refused(err, -EACCES, reply);
    freeReplyObject(reply);
    return r;
}

static int dial(struct redis_sync *s, const struct redis_addr *a, const char *user,
                const char *password, unsigned db, struct err *err)
{
    char number[16];
    hang_up(s);
    int r = connect_any(s, a);
    if (r < 0) return r;
    s->reader = redisReaderCreate();
    if (!s->reader) r = -ENOMEM;
    if (r == 0 && s->tls && !redis_addr_is_unix(a)) r = shake_hands(s, a->host, err);
    const char *auth[] = {"AUTH", user ? user : password, password};
    if (r == 0 && password) r = say(s, user ? 3 : 2, auth, err);
    (void)snprintf(number, sizeof number, "%u", db);
    const char *select[] = {"SELECT", number};
    if (r == 0 && db > 0) r = say(s, 2, select, err);
    if (r < 0) {
        hang_up(s);
        return r;
    }
    s->at = *a;
    s->n_connects++;
    return 0;
}

/* ---- which server ---- */

static int ask_sentinel(struct redis_sync *s, const struct redis_addr *sentinel,
                        struct redis_addr *ret, struct err *err)
{
    const struct redis_url *u = s->url;
    const char *argv[] = {"SENTINEL", "get-master-addr-by-name", u->master};
    redisReply *reply;
    int r = dial(s, sentinel, u->sentinel_user, u->sentinel_password, 0, err);
    s->n_connects -= r == 0; /* of the data alone */
    if (r == 0) r = exchange(s, 3, argv, &reply);
    if (r < 0) return r;
    bool ok = redis_sentinel_parse_master(reply, ret) == 1;
    freeReplyObject(reply);
    return ok ? 0 : err_set(err, -EIO, "the sentinel does not know the master");
}

static int open_any(struct redis_sync *s, struct err *err)
{
    const struct redis_url *u = s->url;
    int r = -EHOSTUNREACH;
    if (s->has_moved) {
        s->has_moved = false;
        r = dial(s, &s->moved, u->user, u->password, u->db, err);
    }
    for (size_t i = 0; r < 0 && i < u->n_hosts; i++) {
        struct redis_addr a = u->host[i];
        r = u->mode == REDIS_SENTINEL ? ask_sentinel(s, &u->host[i], &a, err) : 0;
        if (r == 0) r = dial(s, &a, u->user, u->password, u->db, err);
    }
    return r;
}

/* What an error reply asks for: 1 go on (connected anew if need be), 0 nothing. */
static int follow(struct redis_sync *s, const redisReply *reply, bool *asking)
{
    const char *text = reply->str ? reply->str : "";
    struct redis_redirect to;
    int r = redis_redirect_parse(text, strlen(text), &s->at, &to);
    *asking = false;
    if (r == 1) {
        s->moved = to.addr;
        s->has_moved = true;
        *asking = to.ask;
    } else if (r < 0 || (strncmp(text, "READONLY", 8) != 0 && strncmp(text, "LOADING", 7) != 0 &&
                         strncmp(text, "MASTERDOWN", 10) != 0)) {
        return 0;
    }
    hang_up(s);
    return 1;
}

int redis_sync_command(struct redis_sync *s, int argc, const char *const *argv, redisReply **ret,
                       struct err *err)
{
    static const char *const asking_argv[] = {"ASKING"};
    bool asking = false, reused = s->fd >= 0;
    int r = 0;
    if (err) *err = (struct err){0};
    s->until_ns = clock_ns() + s->timeout_ms * 1000000ull;
    for (int i = 0; i < FOLLOW_MAX; i++) {
        redisReply *reply = NULL;
        r = s->fd >= 0 ? 0 : open_any(s, err);
        if (r == 0 && asking) r = say(s, 1, asking_argv, err);
        if (r == 0) r = exchange(s, argc, argv, &reply);
        if (r < 0) {
            hang_up(s);
            if (!reused || r == -ETIMEDOUT) break;
            reused = false; /* it may have died while nobody looked: once more on a fresh one */
            continue;
        }
        if (reply->type != REDIS_REPLY_ERROR) {
            *ret = reply;
            return 0;
        }
        r = refused(err, -EPERM, reply);
        int go_on = follow(s, reply, &asking);
        freeReplyObject(reply);
        if (!go_on) return r;
        reused = false;
    }
    if (err && err->code == 0) (void)err_set(err, r, "%s", strerror(-r));
    return r;
}

uint64_t redis_sync_n_connects(const struct redis_sync *s)
{
    return s->n_connects;
}

/* ---- life ---- */

int redis_sync_create(const struct redis_url *u, unsigned timeout_ms, struct redis_sync **ret,
                      struct err *err)
{
    struct redis_sync *s = mem_zalloc(sizeof *s);
    if (!s) return err_set(err, -ENOMEM, "out of memory");
    s->url = u;
    s->timeout_ms = timeout_ms;
    s->fd = -1;
    if (u->tls && !(s->tls = redis_tls_create(u, err))) {
        redis_sync_destroy(s);
        return -EINVAL;
    }
    *ret = s;
    return 0;
}

void redis_sync_destroy(struct redis_sync *s)
{
    if (!s) return;
    hang_up(s);
    redis_tls_destroy(s->tls);
    mem_free(s);
}
