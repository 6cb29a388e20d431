/* One connection.
 *
 * Receiving: a small buffer takes answer lines; once a bulk's length is known, readv() scatters
 * into the rest of the body's memory and, behind it, into the buffer, which so gets the line end
 * and the next answer's line with the same call. What of a body came along with its line (a few
 * KiB of a MiB) is copied. Sending: sendmsg() gathers the texts and bodies of all commands that
 * wait. A command's answers need no allocation; hiredis' reader is made for control answers alone
 * and asked how far it read, so that bytes behind its answer stay ours. */
#include "base/redis/redis_conn.h"

#include "base/assert.h"
#include "base/buf.h"

#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    SPILL_BYTES = 4096, /* chosen: of a read beyond the body; later copied if it is a body again */
    IOV_MAX_SEND = 32,
    SOCKET_BUFFER_BYTES = 4 << 20, /* chosen: asked of unix sockets; the kernel caps it */
};

void redis_conn_init(struct redis_conn *c, int epoll, const struct redis_login *l,
                     void (*on_ready)(struct redis_conn *c), void *owner)
{
    memset(c, 0, sizeof *c);
    c->fd = -1;
    c->epoll = epoll;
    c->login = l;
    c->on_ready = on_ready;
    c->owner = owner;
}

void redis_conn_doom(struct redis_conn *c, int status, const char *why)
{
    if (c->doom) return; /* the first reason is the true one */
    c->doom = status;
    snprintf(c->why, sizeof c->why, "%.*s", (int)sizeof c->why - 1, why ? why : "");
}

static struct redis_cmd *cmd_at(struct redis_conn *c, unsigned i)
{
    return &c->ring[i % REDIS_RING];
}

struct redis_cmd *redis_conn_push(struct redis_conn *c)
{
    if (c->state < REDIS_CONN_LOGIN || c->doom || c->hi - c->lo == REDIS_RING) return NULL;
    struct redis_cmd *cmd = cmd_at(c, c->hi++);
    memset(cmd, 0, sizeof *cmd);
    cmd->conn = c;
    cmd->n_replies = 1;
    return cmd;
}

void redis_cmd_out(struct redis_cmd *c, const void *p, size_t n)
{
    ASSERT(c->n_out < sizeof c->out / sizeof *c->out);
    c->out[c->n_out++] = (struct iovec){.iov_base = (void *)p, .iov_len = n};
}

int redis_format(struct buf *b, int argc, const char *const *argv)
{
    (void)buf_addf(b, "*%d\r\n", argc);
    for (int i = 0; i < argc; i++) {
        const size_t n = strlen(argv[i]);
        (void)buf_addf(b, "$%zu\r\n", n);
        (void)buf_add(b, argv[i], n);
        (void)buf_adds(b, "\r\n");
    }
    return buf_status(b);
}

bool redis_cmd_head(struct redis_cmd *c, struct buf *text)
{
    bool fits = buf_status(text) == 0 && text->len <= sizeof c->head;
    if (fits) {
        memcpy(c->head, text->data, text->len);
        redis_cmd_out(c, c->head, text->len);
    }
    buf_fini(text);
    return fits;
}

void redis_cmd_in(struct redis_cmd *c, void *p, size_t n)
{
    ASSERT(c->n_in < sizeof c->in / sizeof *c->in);
    if (n) c->in[c->n_in++] = (struct iovec){.iov_base = p, .iov_len = n};
}

/* ---- the socket ---- */

static void want(struct redis_conn *c, uint32_t events)
{
    if (c->events == events) return;
    struct epoll_event e = {.events = events, .data.ptr = c};
    if (epoll_ctl(c->epoll, c->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->fd, &e) < 0)
        redis_conn_doom(c, -errno, "epoll");
    c->events = events;
}

static const char *tls_error(void)
{
    const char *s = ERR_reason_error_string(ERR_peek_error());
    ERR_clear_error();
    return s ? s : "TLS failed";
}

/* Bytes, -EAGAIN, or what broke. */
static ssize_t tls_result(struct redis_conn *c, int r)
{
    int e = SSL_get_error(c->ssl, r);
    if (e == SSL_ERROR_WANT_READ) return -EAGAIN;
    if (e == SSL_ERROR_WANT_WRITE) {
        want(c, EPOLLIN | EPOLLOUT);
        return -EAGAIN;
    }
    if (e == SSL_ERROR_ZERO_RETURN || (e == SSL_ERROR_SYSCALL && ERR_peek_error() == 0))
        return -ECONNRESET;
    redis_conn_doom(c, -EIO, tls_error());
    return -EIO;
}

static ssize_t conn_readv(struct redis_conn *c, struct iovec *v, int n)
{
    if (c->ssl) {
        ERR_clear_error();
        int len = v[0].iov_len > INT_MAX ? INT_MAX : (int)v[0].iov_len;
        int r = SSL_read(c->ssl, v[0].iov_base, len);
        return r > 0 ? r : tls_result(c, r);
    }
    ssize_t r = TEMP_FAILURE_RETRY(readv(c->fd, v, n));
    if (r == 0) return -ECONNRESET;
    return r < 0 ? -errno : r;
}

static ssize_t conn_writev(struct redis_conn *c, struct iovec *v, int n)
{
    if (c->ssl) {
        ERR_clear_error();
        int len = v[0].iov_len > INT_MAX ? INT_MAX : (int)v[0].iov_len;
        int r = SSL_write(c->ssl, v[0].iov_base, len);
        return r > 0 ? r : tls_result(c, r);
    }
    struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)n};
    ssize_t r = TEMP_FAILURE_RETRY(sendmsg(c->fd, &m, MSG_NOSIGNAL));
    return r < 0 ? -errno : r;
}

static void set_int(int fd, int level, int name, int value)
{
    (void)setsockopt(fd, level, name, &value, sizeof value); /* a tuning, not a need */
}

static void tune(struct redis_conn *c, int family)
{
    if (family == AF_UNIX) {
        set_int(c->fd, SOL_SOCKET, SO_SNDBUF, SOCKET_BUFFER_BYTES);
        return;
    }
    set_int(c->fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(c->fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_int(c->fd, IPPROTO_TCP, TCP_KEEPIDLE, 15);
    set_int(c->fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
    set_int(c->fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    set_int(c->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, c->login->user_timeout_ms);
}

int redis_conn_open(struct redis_conn *c, const struct sockaddr *sa, socklen_t len,
                    const char *name, uint64_t now_ns)
{
    ASSERT(c->state == REDIS_CONN_CLOSED && c->lo == c->hi);
    c->doom = 0;
    c->why[0] = '\0';
    c->opened_ns = c->moved_ns = now_ns;
    c->fd = socket(sa->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0) return -errno;
    c->state = REDIS_CONN_CONNECTING;
    tune(c, sa->sa_family);
    int r = 0;
    if (c->login->tls && sa->sa_family != AF_UNIX) {
        c->ssl = redis_tls_open(c->login->tls, c->fd, name, c->login->insecure);
        r = c->ssl ? 0 : -ENOMEM;
    }
    if (r == 0 && connect(c->fd, sa, len) < 0 && errno != EINPROGRESS) r = -errno;
    if (r == 0) {
        want(c, EPOLLIN | EPOLLOUT);
        r = c->doom;
    }
    if (r < 0) redis_conn_close(c, r);
    return r;
}

void redis_conn_close(struct redis_conn *c, int status)
{
    if (c->state == REDIS_CONN_CLOSED) return;
    c->state = REDIS_CONN_CLOSED;
    if (!c->doom) c->doom = status;
    if (c->ssl) SSL_free(c->ssl); /* no shutdown: the peer is told by the close */
    c->ssl = NULL;
    close(c->fd);
    c->fd = -1;
    c->events = 0;
    if (c->reader) redisReaderFree(c->reader);
    c->reader = NULL;
    c->in_body = false;
    c->body_left = 0;
    c->rx_lo = c->rx_hi = 0;
    c->out_i = c->in_i = 0;
    c->out_off = c->in_off = 0;
    while (c->lo != c->hi) {
        struct redis_cmd *cmd = cmd_at(c, c->lo);
        c->bytes -= cmd->bytes;
        cmd->done(cmd, status);
        c->lo++;
    }
    c->mid = c->lo;
}

/* ---- sending ---- */

static void sent(struct redis_conn *c, size_t n)
{
    while (n > 0 || (c->mid != c->hi && c->out_i == cmd_at(c, c->mid)->n_out)) {
        struct redis_cmd *cmd = cmd_at(c, c->mid);
        if (c->out_i == cmd->n_out) {
            c->mid++;
            c->out_i = 0;
            continue;
        }
        size_t left = cmd->out[c->out_i].iov_len - c->out_off;
        size_t step = n < left ? n : left;
        c->out_off += step;
        n -= step;
        if (step < left) break;
        c->out_i++;
        c->out_off = 0;
    }
}

void redis_conn_flush(struct redis_conn *c, uint64_t now_ns)
{
    if (c->state < REDIS_CONN_LOGIN || c->doom) return;
    while (c->mid != c->hi) {
        struct iovec v[IOV_MAX_SEND];
        int n = 0;
        size_t asked = 0;
        unsigned i0 = c->out_i;
        size_t off = c->out_off;
        for (unsigned m = c->mid; m != c->hi && n < IOV_MAX_SEND; m++, i0 = 0) {
            struct redis_cmd *cmd = cmd_at(c, m);
            for (unsigned i = i0; i < cmd->n_out && n < IOV_MAX_SEND; i++, off = 0) {
                v[n].iov_base = (char *)cmd->out[i].iov_base + off;
                v[n].iov_len = cmd->out[i].iov_len - off;
                asked += v[n++].iov_len;
            }
        }
        ssize_t r = conn_writev(c, v, n);
        if (r == -EAGAIN) break;
        if (r < 0) {
            redis_conn_doom(c, (int)r, NULL);
            return;
        }
        c->moved_ns = now_ns;
        sent(c, (size_t)r);
        if (!c->ssl && (size_t)r < asked) break;
    }
    want(c, c->mid != c->hi ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

/* ---- receiving ---- */

/* The command that the next byte belongs to: it may still be being sent when it is refused. */
static struct redis_cmd *receiving(struct redis_conn *c)
{
    if (c->lo == c->hi || (c->lo == c->mid && c->out_i == 0 && c->out_off == 0)) return NULL;
    return cmd_at(c, c->lo);
}

static void finish_command(struct redis_conn *c, struct redis_cmd *cmd)
{
    if (c->lo == c->mid) { /* an answer to what was not asked whole: the server gave up on us */
        redis_conn_doom(c, -EPROTO, cmd->text);
        return; /* it ends with the connection */
    }
    c->bytes -= cmd->bytes;
    cmd->done(cmd, 0);
    c->lo++;
}

static void answered(struct redis_conn *c, struct redis_cmd *cmd, char type, long long n)
{
    if (cmd->n_got < REDIS_REPLIES_MAX) {
        cmd->reply[cmd->n_got].type = type;
        cmd->reply[cmd->n_got].n = n;
    }
    if (++cmd->n_got == cmd->n_replies) finish_command(c, cmd);
}

static bool parse_int(const char *s, size_t n, long long *ret)
{
    bool neg = n > 0 && *s == '-';
    unsigned long long v = 0;
    size_t i = neg;
    if (n - neg == 0 || n - neg > 18) return false;
    for (; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        v = v * 10 + (unsigned)(s[i] - '0');
    }
    *ret = neg ? -(long long)v : (long long)v;
    return true;
}

static uint64_t in_bytes(const struct redis_cmd *cmd)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < cmd->n_in; i++)
        n += cmd->in[i].iov_len;
    return n;
}

/* One answer line without its end. */
static void line(struct redis_conn *c, struct redis_cmd *cmd, const char *s, size_t n)
{
    long long v = 0;
    if (n == 0) {
        redis_conn_doom(c, -EPROTO, "empty answer");
        return;
    }
    switch (*s) {
    case '-':
        if (!cmd->text[0]) snprintf(cmd->text, sizeof cmd->text, "%.*s", (int)(n - 1), s + 1);
        answered(c, cmd, '-', 0);
        return;
    case '+':
        answered(c, cmd, '+', 0);
        return;
    case ':':
        if (parse_int(s + 1, n - 1, &v)) {
            answered(c, cmd, ':', v);
            return;
        }
        break;
    case '$':
        if (!parse_int(s + 1, n - 1, &v)) break;
        if (v == -1) {
            answered(c, cmd, '0', 0);
            return;
        }
        if (v < 0 || cmd->n_in == 0 || (uint64_t)v != in_bytes(cmd)) {
            /* Another length than can be: the caller learns it, the connection ends. */
            redis_conn_doom(c, -EPROTO, "a value of another size");
            for (int i = 0; i < REDIS_REPLIES_MAX; i++)
                cmd->reply[i].type = 'x';
            cmd->n_got = cmd->n_replies - 1;
            answered(c, cmd, 'x', v);
            return;
        }
        c->in_body = true;
        c->body_left = (uint64_t)v;
        c->in_i = 0;
        c->in_off = 0;
        return;
    default:
        break;
    }
    redis_conn_doom(c, -EPROTO, "an answer that cannot be");
}

static void body_moved(struct redis_conn *c, const struct redis_cmd *cmd, size_t n)
{
    c->body_left -= n;
    while (n > 0) {
        size_t left = cmd->in[c->in_i].iov_len - c->in_off, step = n < left ? n : left;
        c->in_off += step;
        n -= step;
        if (step == left) {
            c->in_i++;
            c->in_off = 0;
        }
    }
}

/* Body bytes that came along with the line. */
static void body_from_rx(struct redis_conn *c, struct redis_cmd *cmd)
{
    while (c->body_left > 0 && c->rx_lo < c->rx_hi) {
        size_t left = cmd->in[c->in_i].iov_len - c->in_off, n = c->rx_hi - c->rx_lo;
        if (n > left) n = left;
        memcpy((char *)cmd->in[c->in_i].iov_base + c->in_off, c->rx + c->rx_lo, n);
        c->rx_lo += n;
        body_moved(c, cmd, n);
    }
}

/* Control answers. True: an answer was complete. */
static bool control(struct redis_conn *c, struct redis_cmd *cmd)
{
    if (!c->reader) c->reader = redisReaderCreate();
    if (!c->reader) {
        redis_conn_doom(c, -ENOMEM, NULL);
        return false;
    }
    void *reply = NULL;
    if (redisReaderFeed(c->reader, c->rx + c->rx_lo, c->rx_hi - c->rx_lo) != REDIS_OK ||
        redisReaderGetReply(c->reader, &reply) != REDIS_OK) {
        redis_conn_doom(c, -EPROTO, c->reader->errstr);
        return false;
    }
    c->rx_lo = c->rx_hi;
    if (!reply) return false;
    /* What it was fed beyond the answer is ours again; it is at most what was just read. */
    size_t extra = c->reader->len - c->reader->pos;
    ASSERT(extra <= c->rx_hi);
    c->rx_lo = c->rx_hi - extra;
    redisReaderFree(c->reader);
    c->reader = NULL;
    cmd->on_reply(cmd, reply);
    if (cmd->n_replies != UINT_MAX && ++cmd->n_got == cmd->n_replies) finish_command(c, cmd);
    return true;
}

/* Takes what the buffer holds. True: there may be more to take. */
static bool parse(struct redis_conn *c)
{
    if (c->doom || (c->rx_lo == c->rx_hi && !(c->in_body && c->body_left == 0))) return false;
    struct redis_cmd *cmd = receiving(c);
    if (!cmd) {
        redis_conn_doom(c, -EPROTO, "an answer nobody asked for");
        return false;
    }
    if (cmd->on_reply) return control(c, cmd);
    if (c->in_body) {
        body_from_rx(c, cmd);
        if (c->body_left > 0 || c->rx_hi - c->rx_lo < 2) return false;
        bool sound = memcmp(c->rx + c->rx_lo, "\r\n", 2) == 0;
        c->rx_lo += 2;
        c->in_body = false;
        if (sound)
            answered(c, cmd, '$', (long long)in_bytes(cmd));
        else
            redis_conn_doom(c, -EPROTO, "a value without its end");
        return sound;
    }
    char *s = c->rx + c->rx_lo, *end = memchr(s, '\n', c->rx_hi - c->rx_lo);
    if (!end) {
        if (c->rx_hi - c->rx_lo == REDIS_RX_BYTES) redis_conn_doom(c, -EPROTO, "an endless line");
        return false;
    }
    c->rx_lo = (size_t)(end + 1 - c->rx);
    if (end == s || end[-1] != '\r')
        redis_conn_doom(c, -EPROTO, "a line without its end");
    else
        line(c, cmd, s, (size_t)(end - 1 - s));
    return true;
}

/* One read: into the body's memory and the buffer behind it. Bytes asked for in *ret_asked. */
static ssize_t fill(struct redis_conn *c, size_t *ret_asked)
{
    struct redis_cmd *cmd = c->in_body && c->body_left > 0 ? receiving(c) : NULL;
    struct iovec v[4];
    int n = 0;
    size_t body = 0, off = c->in_off;
    if (c->rx_lo == c->rx_hi) c->rx_lo = c->rx_hi = 0;
    if (cmd) {
        for (unsigned i = c->in_i; i < cmd->n_in; i++, off = 0) {
            v[n] = (struct iovec){(char *)cmd->in[i].iov_base + off, cmd->in[i].iov_len - off};
            body += v[n++].iov_len;
        }
    } else if (c->rx_lo > 0) {
        memmove(c->rx, c->rx + c->rx_lo, c->rx_hi - c->rx_lo);
        c->rx_hi -= c->rx_lo;
        c->rx_lo = 0;
    }
    size_t room = REDIS_RX_BYTES - c->rx_hi;
    if (room > SPILL_BYTES && cmd) room = SPILL_BYTES;
    if (room > 0) v[n++] = (struct iovec){c->rx + c->rx_hi, room};
    *ret_asked = body + room;
    ssize_t r = conn_readv(c, v, n);
    if (r <= 0) return r;
    size_t in = (size_t)r < body ? (size_t)r : body;
    if (cmd) body_moved(c, cmd, in);
    c->rx_hi += (size_t)r - in;
    return r;
}

static void readable(struct redis_conn *c, uint64_t now_ns)
{
    for (;;) {
        size_t asked;
        ssize_t r = fill(c, &asked);
        if (r == -EAGAIN) return;
        if (r < 0) {
            redis_conn_doom(c, (int)r, NULL);
            return;
        }
        c->moved_ns = now_ns;
        while (parse(c))
            ;
        if (c->doom) return;
        /* A short read has emptied the socket; TLS may hold more decrypted than it gave. */
        if (!c->ssl && (size_t)r < asked) return;
    }
}

/* ---- login ---- */

static void logged_in(struct redis_cmd *cmd, int status)
{
    struct redis_conn *c = cmd->conn;
    if (status < 0) return;
    unsigned n = cmd->n_replies;
    if (cmd->reply[n - 1].type != '+' || (cmd->tag && cmd->reply[0].type != '+') ||
        (c->login->db && cmd->reply[n - 2].type != '+')) {
        /* "unknown command 'AUTH', with args beginning with: 'the password'": it goes into logs. */
        char *args = strstr(cmd->text, ", with args");
        if (args) *args = '\0';
        redis_conn_doom(c, -EACCES, cmd->text[0] ? cmd->text : "the login was not understood");
        return;
    }
    c->state = REDIS_CONN_READY;
    c->on_ready(c);
}

static void login(struct redis_conn *c)
{
    const struct redis_login *l = c->login;
    c->state = REDIS_CONN_LOGIN;
    struct redis_cmd *cmd = redis_conn_push(c);
    ASSERT(cmd);
    cmd->done = logged_in;
    cmd->tag = l->password != NULL;
    const char *auth[] = {"AUTH", l->user ? l->user : l->password, l->password};
    char db[16];
    snprintf(db, sizeof db, "%u", l->db);
    const char *name[] = {"CLIENT", "SETNAME", l->client_name};
    const char *select[] = {"SELECT", db};
    const char *ping[] = {"PING"};
    const struct {
        bool wanted;
        int argc;
        const char **argv;
    } step[] = {{l->password, l->user ? 3 : 2, auth},
                {l->client_name, 3, name},
                {l->db, 2, select},
                {true, 1, ping}};
    struct buf text = BUF_INIT;
    cmd->n_replies = 0;
    for (size_t i = 0; i < sizeof step / sizeof *step; i++) {
        if (!step[i].wanted) continue;
        (void)redis_format(&text, step[i].argc, step[i].argv);
        cmd->n_replies++;
    }
    if (redis_cmd_head(cmd, &text))
        redis_conn_flush(c, c->opened_ns);
    else
        redis_conn_doom(c, -EINVAL, "a name or password is too long");
}

static void handshake(struct redis_conn *c)
{
    ERR_clear_error();
    int r = SSL_do_handshake(c->ssl);
    if (r == 1) {
        login(c);
        return;
    }
    long verify = SSL_get_verify_result(c->ssl);
    want(c, EPOLLIN);
    ssize_t e = tls_result(c, r);
    if (e == -EAGAIN) return;
    if (verify != X509_V_OK && !c->login->insecure)
        snprintf(c->why, sizeof c->why, "certificate: %s", X509_verify_cert_error_string(verify));
    redis_conn_doom(c, (int)e, NULL);
}

void redis_conn_event(struct redis_conn *c, uint32_t events, uint64_t now_ns)
{
    if (c->state == REDIS_CONN_CLOSED || c->doom) return;
    if (c->state == REDIS_CONN_CONNECTING) {
        int e = 0;
        socklen_t len = sizeof e;
        if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &e, &len) < 0) e = errno;
        if (e) {
            redis_conn_doom(c, -e, NULL);
            return;
        }
        if (!(events & (EPOLLOUT | EPOLLHUP | EPOLLERR))) return;
        c->state = c->ssl ? REDIS_CONN_TLS : REDIS_CONN_LOGIN;
        if (!c->ssl) login(c);
    }
    if (c->state == REDIS_CONN_TLS) handshake(c);
    if (c->doom || c->state < REDIS_CONN_LOGIN) return;
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) readable(c, now_ns);
    redis_conn_flush(c, now_ns);
}

/* ---- TLS ---- */

static int tls_files(SSL_CTX *t, const struct redis_url *u, struct err *err)
{
    if (u->insecure) {
        SSL_CTX_set_verify(t, SSL_VERIFY_NONE, NULL);
    } else {
        SSL_CTX_set_verify(t, SSL_VERIFY_PEER, NULL);
        if ((u->ca ? SSL_CTX_load_verify_file(t, u->ca) : SSL_CTX_set_default_verify_paths(t)) != 1)
            return err_set(err, -EINVAL, "redis: cannot use the CA file %s: %s",
                           u->ca ? u->ca : "of the system", tls_error());
    }
    if (!u->cert) return 0;
    if (SSL_CTX_use_certificate_chain_file(t, u->cert) != 1)
        return err_set(err, -EINVAL, "redis: cannot use the certificate %s: %s", u->cert,
                       tls_error());
    if (SSL_CTX_use_PrivateKey_file(t, u->key, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(t) != 1)
        return err_set(err, -EINVAL, "redis: cannot use the key %s: %s", u->key, tls_error());
    return 0;
}

SSL_CTX *redis_tls_create(const struct redis_url *u, struct err *err)
{
    SSL_CTX *t = SSL_CTX_new(TLS_client_method());
    if (!t) {
        err_set(err, -ENOMEM, "redis: no memory for TLS");
        return NULL;
    }
    SSL_CTX_set_min_proto_version(t, TLS1_2_VERSION);
    SSL_CTX_set_mode(t, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(t, 1);
    SSL_CTX_set_default_read_buffer_len(t, 128 * 1024); /* several records with one read */
    if (tls_files(t, u, err) == 0) return t;
    SSL_CTX_free(t);
    return NULL;
}

SSL *redis_tls_open(SSL_CTX *t, int fd, const char *name, bool insecure)
{
    unsigned char ip[16];
    const bool is_ip = inet_pton(AF_INET, name, ip) == 1 || inet_pton(AF_INET6, name, ip) == 1;
    SSL *ssl = SSL_new(t);
    bool ok = ssl && SSL_set_fd(ssl, fd) == 1;
    ok = ok && (is_ip || SSL_set_tlsext_host_name(ssl, name) == 1);
    if (ok && !insecure) {
        X509_VERIFY_PARAM *p = SSL_get0_param(ssl);
        ok = (is_ip ? X509_VERIFY_PARAM_set1_ip_asc(p, name)
                    : X509_VERIFY_PARAM_set1_host(p, name, 0)) == 1;
    }
    if (ok) {
        SSL_set_connect_state(ssl);
        return ssl;
    }
    SSL_free(ssl);
    return NULL;
}

void redis_tls_destroy(SSL_CTX *c)
{
    SSL_CTX_free(c);
}
