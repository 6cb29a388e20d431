/* One redis_conn, driven here until what is waited for is there. */
#include "base/redis/redis_sync.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/redis/redis_conn.h"
#include "base/redis/redis_resolve.h"
#include "base/redis/redis_topo.h"

#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum { FOLLOW_MAX = 5 };

struct redis_sync {
    const struct redis_url *url;
    unsigned timeout_ms;
    SSL_CTX *tls;
    int epoll;
    struct redis_login login;
    struct redis_conn conn;
    struct redis_addr at, moved; /* whom it is connected to; whom a cluster named last */
    bool has_moved;
    uint64_t n_connects, until_ns;
    bool ready, over; /* logged in; the command has ended … */
    int status;       /* … so */
    redisReply *reply;
};

/* ---- one connection ---- */

static void on_ready(struct redis_conn *c)
{
    ((struct redis_sync *)c->owner)->ready = true;
}

static void on_reply(struct redis_cmd *c, redisReply *reply)
{
    ((struct redis_sync *)c->ctx)->reply = reply;
}

static void on_done(struct redis_cmd *c, int status)
{
    struct redis_sync *s = c->ctx;
    s->over = true;
    s->status = status;
}

static int ms_left(const struct redis_sync *s)
{
    const uint64_t now = clock_ns();
    return now < s->until_ns ? (int)((s->until_ns - now) / 1000000 + 1) : 0;
}

/* Until it is so, the connection breaks or the time is over. */
static int drive(struct redis_sync *s, const bool *so)
{
    while (!*so && !s->conn.doom) {
        struct epoll_event e;
        const int ms = ms_left(s);
        if (ms == 0) return -ETIMEDOUT;
        if (epoll_wait(s->epoll, &e, 1, ms) == 1) redis_conn_event(&s->conn, e.events, clock_ns());
    }
    return *so ? 0 : s->conn.doom;
}

/* 0 and the reply, also where it is an error. */
static int exchange(struct redis_sync *s, int argc, const char *const *argv, redisReply **ret)
{
    struct buf text = BUF_INIT;
    int r = redis_format(&text, argc, argv);
    struct redis_cmd *cmd = r == 0 ? redis_conn_push(&s->conn) : NULL;
    if (r == 0 && !cmd) r = -ECONNRESET;
    if (cmd) {
        cmd->on_reply = on_reply;
        cmd->done = on_done;
        cmd->ctx = s;
        s->over = false;
        s->reply = NULL;
        redis_cmd_out(cmd, text.data, text.len);
        redis_conn_flush(&s->conn, clock_ns());
        r = drive(s, &s->over);
        if (r < 0) redis_conn_close(&s->conn, r); /* the command's text is looked at no more */
        if (r == 0) r = s->status;
        if (r == 0)
            *ret = s->reply;
        else if (s->reply)
            freeReplyObject(s->reply);
    }
    buf_fini(&text);
    return r;
}

/* An error of the server's, without what it repeats of the command. */
static int refused(struct err *err, int code, const redisReply *r)
{
    int n = (int)strcspn(r->str ? r->str : "", ",");
    return err_set(err, code, "%.*s", n < 200 ? n : 200, r->str ? r->str : "refused");
}

static int say_asking(struct redis_sync *s, struct err *err)
{
    const char *argv[] = {"ASKING"};
    redisReply *reply = NULL;
    int r = exchange(s, 1, argv, &reply);
    if (r < 0) return r;
    if (reply->type == REDIS_REPLY_ERROR) r = refused(err, -EACCES, reply);
    freeReplyObject(reply);
    return r;
}

/* The next address of a name; its look-up is waited for. */
static int next_address(struct redis_sync *s, struct names *n, const struct redis_addr *a,
                        const struct sockaddr **ret, socklen_t *ret_len)
{
    int r;
    while ((r = names_get(n, a, ret, ret_len)) == -EAGAIN && ms_left(s) > 0)
        (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){0, 2000000}, NULL);
    return r == -EAGAIN ? -ETIMEDOUT : r == -EIO ? -EHOSTUNREACH : r;
}

/* Connects to one of its addresses and logs in. */
static int dial(struct redis_sync *s, const struct redis_addr *a, const struct redis_login *login,
                struct err *err)
{
    struct names names = {0};
    const struct sockaddr *sa;
    socklen_t len;
    int r;
    redis_conn_close(&s->conn, -ECONNRESET);
    s->login = *login;
    redis_conn_init(&s->conn, s->epoll, &s->login, on_ready, s);
    do {
        r = next_address(s, &names, a, &sa, &len);
        if (r < 0) break;
        s->ready = false;
        r = redis_conn_open(&s->conn, sa, len, a->host, clock_ns());
        if (r == 0) r = drive(s, &s->ready);
        if (r < 0) redis_conn_close(&s->conn, r);
    } while (r < 0 && r != -EACCES && r != -ETIMEDOUT && names_next(&names));
    names_fini(&names);
    if (r < 0 && s->conn.why[0]) {
        if (strncmp(s->conn.why, "certificate", 11) == 0) r = -EACCES;
        (void)err_set(err, r, "%s", s->conn.why);
    }
    if (r == 0) s->at = *a;
    return r;
}

/* ---- which server ---- */

static int ask_sentinel(struct redis_sync *s, const struct redis_addr *sentinel,
                        struct redis_addr *ret, struct err *err)
{
    const struct redis_url *u = s->url;
    const char *argv[] = {"SENTINEL", "get-master-addr-by-name", u->master};
    const struct redis_login login = {.user = u->sentinel_user,
                                      .password = u->sentinel_password,
                                      .tls = s->tls,
                                      .insecure = u->insecure,
                                      .user_timeout_ms = (int)s->timeout_ms};
    redisReply *reply = NULL;
    int r = dial(s, sentinel, &login, err);
    if (r == 0) r = exchange(s, 3, argv, &reply);
    if (r < 0) return r;
    bool ok = redis_sentinel_parse_master(reply, ret) == 1;
    freeReplyObject(reply);
    return ok ? 0 : err_set(err, -EIO, "the sentinel does not know the master");
}

static int dial_data(struct redis_sync *s, const struct redis_addr *a, struct err *err)
{
    const struct redis_url *u = s->url;
    const struct redis_login login = {.user = u->user,
                                      .password = u->password,
                                      .db = u->db,
                                      .tls = s->tls,
                                      .insecure = u->insecure,
                                      .user_timeout_ms = (int)s->timeout_ms};
    int r = dial(s, a, &login, err);
    s->n_connects += r == 0;
    return r;
}

static int open_any(struct redis_sync *s, struct err *err)
{
    const struct redis_url *u = s->url;
    int r = -EHOSTUNREACH;
    if (s->has_moved) {
        s->has_moved = false;
        r = dial_data(s, &s->moved, err);
    }
    for (size_t i = 0; r < 0 && i < u->n_hosts; i++) {
        struct redis_addr a = u->host[i];
        r = u->mode == REDIS_SENTINEL ? ask_sentinel(s, &u->host[i], &a, err) : 0;
        if (r == 0) r = dial_data(s, &a, err);
    }
    return r;
}

/* What an error reply asks for: 1 go on (connected anew if need be), 0 nothing. */
static int follow(struct redis_sync *s, const redisReply *reply, bool *asking)
{
    const char *text = reply->str ? reply->str : "";
    struct redis_redirect to;
    int r = redis_redirect_parse(text, &s->at, &to);
    *asking = false;
    if (r == 1) {
        s->moved = to.addr;
        s->has_moved = true;
        *asking = to.ask;
    } else if (r < 0 || (strncmp(text, "READONLY", 8) != 0 && strncmp(text, "LOADING", 7) != 0 &&
                         strncmp(text, "MASTERDOWN", 10) != 0)) {
        return 0;
    }
    redis_conn_close(&s->conn, -ECONNRESET);
    return 1;
}

int redis_sync_command(struct redis_sync *s, int argc, const char *const *argv, redisReply **ret,
                       struct err *err)
{
    bool asking = false, reused = s->conn.state == REDIS_CONN_READY;
    int r = 0;
    if (err) *err = (struct err){0};
    s->until_ns = clock_ns() + s->timeout_ms * 1000000ull;
    for (int i = 0; i < FOLLOW_MAX; i++) {
        redisReply *reply = NULL;
        r = s->conn.state == REDIS_CONN_READY ? 0 : open_any(s, err);
        if (r == 0 && asking) r = say_asking(s, err);
        if (r == 0) r = exchange(s, argc, argv, &reply);
        if (r < 0) {
            redis_conn_close(&s->conn, r);
            if (!reused || r == -ETIMEDOUT) break;
            reused = false; /* it may have died while idle: once more on a fresh one */
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
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    int r = s->epoll < 0 ? err_set(err, -errno, "no epoll: %s", strerror(errno)) : 0;
    if (r == 0 && u->tls && !(s->tls = redis_tls_create(u, err))) r = -EINVAL;
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
    redis_conn_close(&s->conn, -ECONNRESET);
    if (s->epoll >= 0) (void)close(s->epoll);
    redis_tls_destroy(s->tls);
    mem_free(s);
}
