/* A server in a thread of its own, and blocking sockets to speak to it.
 *
 * Paths with a meaning: /hold is answered later, /big is 256 MiB, /stream is chunked.
 * With `heads` set requests are judged by their heads: /no is refused there, and /crowded on a
 * connection that is one too many. */
#ifndef TESTS_UNIT_BASE_HTTP_FIX_H
#define TESTS_UNIT_BASE_HTTP_FIX_H

#include "base/buf.h"
#include "base/net/http.h"
#include "tests/test.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

struct fix {
    struct http_loop *loop;
    struct http_server *server;
    pthread_t thread;
    int port;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int n_requests, n_closed, n_aborted, n_drains, n_full; /* guarded by lock */
    struct http_req *held;                                 /* loop thread only */
    size_t big_left;
    bool heads;
    int n_heads, n_faults, fault; /* fault: the last status */
};

static void note(struct fix *f, int *counter)
{
    pthread_mutex_lock(&f->lock);
    ++*counter;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

static void wait_for(struct fix *f, const int *counter, int at_least)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 20;
    pthread_mutex_lock(&f->lock);
    int r = 0;
    while (*counter < at_least && r == 0)
        r = pthread_cond_timedwait(&f->changed, &f->lock, &end);
    pthread_mutex_unlock(&f->lock);
    ASSERT_EQ(r, 0);
}

static void pump_big(struct fix *f, struct http_req *r)
{
    static char block[65536];
    memset(block, 'y', sizeof block);
    int full = 0;
    while (f->big_left > 0 && full == 0) {
        f->big_left -= sizeof block;
        full = http_reply_write(r, block, sizeof block);
    }
    if (f->big_left == 0) (void)http_reply_end(r);
    if (full == 1) note(f, &f->n_full);
}

static void on_request(void *ctx, struct http_req *r)
{
    struct fix *f = ctx;
    size_t len;
    const char *body = http_req_body(r, &len), *path = r->msg.path;
    struct buf b = BUF_INIT;
    if (strcmp(path, "/hold") == 0) {
        f->held = r;
    } else if (strcmp(path, "/big") == 0) {
        f->big_left = 256u << 20;
        (void)http_reply_start(r, 200, "text/plain", NULL, -1);
        pump_big(f, r);
    } else if (strcmp(path, "/stream") == 0) {
        (void)http_reply_start(r, 200, "text/plain", NULL, -1);
        (void)http_reply_write(r, "one", 3);
        (void)http_reply_write(r, "twotwotwotwotwotwo", 18);
        (void)http_reply_end(r);
    } else {
        (void)buf_addf(&b, "%s|%s|%s|%zu|%.*s", r->msg.method, path, r->msg.query, len, (int)len,
                       body);
        (void)http_reply(r, 200, "text/plain", NULL, b.data, b.len);
    }
    buf_fini(&b);
    note(f, &f->n_requests);
}

static void on_close(void *ctx, struct http_req *r, bool aborted)
{
    struct fix *f = ctx;
    if (f->held == r) f->held = NULL;
    if (aborted) note(f, &f->n_aborted);
    note(f, &f->n_closed);
}

static void on_drain(void *ctx, struct http_req *r)
{
    struct fix *f = ctx;
    note(f, &f->n_drains);
    pump_big(f, r);
}

static void on_head(void *ctx, struct http_req *r)
{
    struct fix *f = ctx;
    if (strcmp(r->msg.path, "/no") == 0) (void)http_reply(r, 401, "text/plain", NULL, "no", 2);
    if (strcmp(r->msg.path, "/cut") == 0) http_reply_abort(r);
    if (strcmp(r->msg.path, "/later") == 0) f->held = r;
    if (r->crowded && strcmp(r->msg.path, "/crowded") == 0)
        (void)http_reply(r, 429, "text/plain", NULL, "no", 2);
    note(f, &f->n_heads);
}

static void on_fault(void *ctx, struct http_req *r, int status, const char *why)
{
    struct fix *f = ctx;
    f->fault = status;
    if (strcmp(r->msg.path, "/mute") != 0)
        (void)http_reply(r, status, "text/plain", NULL, why, strlen(why));
    note(f, &f->n_faults);
}

static void on_refuse(void *ctx, int status, const char *why, const struct http_head *head,
                      struct buf *ret_headers, struct buf *ret_body)
{
    const char *id = http_header_find(head, "x-request-id");
    (void)buf_addf(ret_headers, "x-request-id: %s\r\n", id ? id : "none");
    (void)buf_addf(ret_body, "{\"refused\":%d}", status);
}

static void *loop_main(void *arg)
{
    struct fix *f = arg;
    (void)http_loop_run(f->loop);
    return NULL;
}

static inline void fix_init_ops(struct fix *f, const struct http_limits *lim,
                                const struct http_server_ops *ops)
{
    memset(f, 0, sizeof *f);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    ASSERT_OK(http_loop_create(&f->loop));
    ASSERT_OK(http_server_create(f->loop, lim, ops, f, &f->server));
    struct err err = {0};
    ASSERT_OK(http_server_listen(f->server, "127.0.0.1:0", NULL, &err));
    f->port = http_server_port(f->server);
    ASSERT_EQ(pthread_create(&f->thread, NULL, loop_main, f), 0);
}

static inline void fix_init(struct fix *f, const struct http_limits *lim)
{
    static const struct http_server_ops ops = {.on_request = on_request,
                                               .on_close = on_close,
                                               .on_drain = on_drain,
                                               .on_refuse = on_refuse};
    fix_init_ops(f, lim, &ops);
}

/* Requests are judged by their heads. */
static inline void fix_init_heads(struct fix *f, const struct http_limits *lim)
{
    static const struct http_server_ops ops = {on_head,  on_fault, on_request,
                                               on_close, on_drain, on_refuse};
    fix_init_ops(f, lim, &ops);
    f->heads = true;
}

static inline void fix_fini(struct fix *f)
{
    http_loop_stop(f->loop);
    pthread_join(f->thread, NULL);
    http_server_destroy(f->server);
    ASSERT_EQ(f->n_closed, f->heads ? f->n_heads : f->n_requests);
    http_loop_destroy(f->loop);
}

static int dial(const struct fix *f)
{
    struct sockaddr_in in = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)f->port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct timeval tv = {.tv_sec = 20};
    ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv), 0);
    ASSERT_EQ(connect(fd, (struct sockaddr *)&in, sizeof in), 0);
    return fd;
}

static void put(int fd, const char *text, size_t len)
{
    while (len > 0) {
        ssize_t n = send(fd, text, len, MSG_NOSIGNAL);
        if (n < 0) return; /* the server may have cut us off; what it said is what counts */
        text += n;
        len -= (size_t)n;
    }
}

static void puts_fd(int fd, const char *text)
{
    put(fd, text, strlen(text));
}

/* Read until `until` was seen or the end; the text stays in a static buffer. */
static const char *get(int fd, const char *until)
{
    static char text[1 << 20];
    size_t have = 0;
    text[0] = '\0';
    while (have < sizeof text - 1 && (!until || !strstr(text, until))) {
        ssize_t n = recv(fd, text + have, sizeof text - 1 - have, 0);
        if (n < 0) ASSERT_TRUE(errno == ECONNRESET);
        if (n <= 0) break;
        have += (size_t)n;
        text[have] = '\0';
    }
    return text;
}

static inline size_t count(const char *text, const char *what)
{
    size_t n = 0;
    for (const char *p = text; (p = strstr(p, what)); p++)
        n++;
    return n;
}

#define H "Host: x\r\n"

#endif
