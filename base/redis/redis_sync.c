#include "base/redis/redis_sync.h"

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
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

static int tls_begin(struct redis_sync *s, const char *host, struct err *err)
{
    char ip[16];
    bool is_ip = inet_pton(AF_INET, host, ip) == 1 || inet_pton(AF_INET6, host, ip) == 1;
    s->ssl = SSL_new(s->tls);
    if (!s->ssl || SSL_set_fd(s->ssl, s->fd) != 1) return -ENOMEM;
    X509_VERIFY_PARAM *p = SSL_get0_param(s->ssl);
    int ok = is_ip ? 1 : SSL_set_tlsext_host_name(s->ssl, host) == 1;
    if (!s->url->insecure)
        ok &= (is_ip ? X509_VERIFY_PARAM_set1_ip_asc(p, host)
                     : X509_VERIFY_PARAM_set1_host(p, host, 0)) == 1;
    if (!ok) return -ENOMEM;
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
    if (r == 0 && s->tls && !redis_addr_is_unix(a)) r = tls_begin(s, a->host, err);
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

static int parse_addr(const char *text, const char *host_if_empty, struct redis_addr *ret)
{
    const char *colon = strrchr(text, ':');
    size_t n = colon ? (size_t)(colon - text) : 0;
    long port = colon ? strtol(colon + 1, NULL, 10) : 0;
    if (port <= 0 || port > 65535 || n >= sizeof ret->host) return -EBADMSG;
    *ret = (struct redis_addr){.port = (uint16_t)port};
    memcpy(ret->host, text, n);
    if (n == 0) (void)snprintf(ret->host, sizeof ret->host, "%s", host_if_empty);
    return 0;
}

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
    long port = 0;
    bool ok = reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
              reply->element[0]->type == REDIS_REPLY_STRING &&
              reply->element[1]->type == REDIS_REPLY_STRING;
    if (ok) port = strtol(reply->element[1]->str, NULL, 10);
    ok = ok && port > 0 && port < 65536 && strlen(reply->element[0]->str) < sizeof ret->host;
    if (ok) {
        *ret = (struct redis_addr){.port = (uint16_t)port};
        memcpy(ret->host, reply->element[0]->str, strlen(reply->element[0]->str) + 1);
    }
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
    bool ask = strncmp(text, "ASK ", 4) == 0;
    *asking = false;
    if (strncmp(text, "MOVED ", 6) == 0 || ask) {
        const char *addr = strchr(text + (ask ? 4 : 6), ' ');
        if (!addr || parse_addr(addr + 1, s->at.host, &s->moved) < 0) return 0;
        s->has_moved = true;
        *asking = ask;
    } else if (strncmp(text, "READONLY", 8) != 0 && strncmp(text, "LOADING", 7) != 0 &&
               strncmp(text, "MASTERDOWN", 10) != 0) {
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

static int tls_create(struct redis_sync *s, struct err *err)
{
    const struct redis_url *u = s->url;
    s->tls = SSL_CTX_new(TLS_client_method());
    if (!s->tls) return err_set(err, -ENOMEM, "no memory for TLS");
    (void)SSL_CTX_set_min_proto_version(s->tls, TLS1_2_VERSION);
    (void)SSL_CTX_set_mode(s->tls, SSL_MODE_ENABLE_PARTIAL_WRITE);
    SSL_CTX_set_verify(s->tls, u->insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    int ok = 1;
    if (!u->insecure)
        ok = u->ca ? SSL_CTX_load_verify_file(s->tls, u->ca)
                   : SSL_CTX_set_default_verify_paths(s->tls);
    if (ok == 1 && u->cert)
        ok = SSL_CTX_use_certificate_chain_file(s->tls, u->cert) == 1 &&
             SSL_CTX_use_PrivateKey_file(s->tls, u->key, SSL_FILETYPE_PEM) == 1 &&
             SSL_CTX_check_private_key(s->tls) == 1;
    ERR_clear_error();
    return ok == 1 ? 0 : err_set(err, -EINVAL, "the CA, certificate or key file cannot be used");
}

int redis_sync_create(const struct redis_url *u, unsigned timeout_ms, struct redis_sync **ret,
                      struct err *err)
{
    struct redis_sync *s = mem_zalloc(sizeof *s);
    if (!s) return err_set(err, -ENOMEM, "out of memory");
    s->url = u;
    s->timeout_ms = timeout_ms;
    s->fd = -1;
    int r = u->tls ? tls_create(s, err) : 0;
    if (r < 0) {
        redis_sync_destroy(s);
        return r;
    }
    *ret = s;
    return 0;
}

void redis_sync_destroy(struct redis_sync *s)
{
    if (!s) return;
    hang_up(s);
    SSL_CTX_free(s->tls);
    mem_free(s);
}
