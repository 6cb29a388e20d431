/* The origin: takes requests, drops their bodies without copying them (MSG_TRUNC), answers at
 * once. Streams share one clock: at each tick every stream gets one event in one write, as from a
 * server that decodes its sequences in one batch. A late tick sends one event, never two. */
#include "tools/bench/proxy.h"

#include "base/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include <xxhash.h>

enum { HEAD_BYTES = 16384, EVENTS = 256, BACKLOG = 4096 };

struct origin_conn {
    struct origin_conn *next, **link; /* of the streams; link NULL: not one */
    int fd;
    size_t len, left;    /* bytes in head; of the body that are still to come */
    bool in_body, check; /* check: hash the body, do not drop it */
    unsigned n_events, n_sent;
    char head[HEAD_BYTES];
};

struct origin {
    int epoll, listener, timer;
    volatile uint64_t *n_sent; /* events */
    struct origin_conn *streams;
    XXH64_state_t *hash; /* of the body that is being checked: one at a time */
    char answer[PROXY_ANSWER_BYTES + 256];
    size_t answer_len;
};

int proxy_listen(int *ret_fd, uint16_t *ret_port, struct err *err)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, BACKLOG) < 0 ||
        getsockname(fd, (struct sockaddr *)&a, &len) < 0) {
        int e = errno;
        if (fd >= 0) (void)close(fd);
        return err_set(err, -e, "cannot listen on 127.0.0.1: %s", strerror(e));
    }
    *ret_fd = fd;
    *ret_port = ntohs(a.sin_port);
    return 0;
}

static size_t make_answer(char *out, size_t cap, const char *text, size_t bytes)
{
    int n = snprintf(out, cap,
                     "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                     "\r\n%s",
                     bytes, text);
    return (size_t)n;
}

/* A completion of PROXY_ANSWER_BYTES. */
static size_t make_completion(char *out, size_t cap)
{
    static const char head[] =
        "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":"
        "\"bench\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"";
    static const char sentence[] = "The answer is in the second document: the bridge was opened in "
                                   "1894 and carries both road and rail.\\n";
    static const char tail[] = "\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":1200,"
                               "\"completion_tokens\":200,\"total_tokens\":1400}}";
    char text[PROXY_ANSWER_BYTES + 1];
    size_t n = sizeof head - 1, end = PROXY_ANSWER_BYTES - (sizeof tail - 1);
    memcpy(text, head, n);
    for (; n + sizeof sentence - 1 <= end; n += sizeof sentence - 1)
        memcpy(text + n, sentence, sizeof sentence - 1);
    memset(text + n, '.', end - n);
    memcpy(text + end, tail, sizeof tail);
    return make_answer(out, cap, text, PROXY_ANSWER_BYTES);
}

/* All or nothing: what is sent here is small and the peer reads it. */
static bool send_all(struct origin_conn *c, const char *p, size_t len)
{
    return send(c->fd, p, len, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)len;
}

/* ---- streams ---- */

#define EVENT_FORMAT                                                                               \
    PROXY_EVENT_ID "%08u\",\"object\":\"chat.completion.chunk\","                                  \
                   "\"created\":1700000000,\"model\":\"bench\",\"choices\":[{\"index\":0,"         \
                   "\"delta\":{\"content\":"                                                       \
                   "\" token\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n"

static void stream_end(struct origin_conn *c)
{
    if (!c->link) return;
    *c->link = c->next;
    if (c->next) c->next->link = c->link;
    c->link = NULL;
}

static void send_events(struct origin *o)
{
    static const char last[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
    char event[400], frame[512];
    struct origin_conn *next;
    for (struct origin_conn *c = o->streams; c; c = next) {
        next = c->next;
        if (c->n_sent < c->n_events) {
            const int n = snprintf(event, sizeof event, EVENT_FORMAT, c->n_sent);
            const int len = snprintf(frame, sizeof frame, "%x\r\n%s\r\n", (unsigned)n, event);
            if (!send_all(c, frame, (size_t)len)) continue;
            c->n_sent++;
            ++*o->n_sent;
        } else if (send_all(c, last, sizeof last - 1)) {
            stream_end(c);
        }
    }
    if (!o->streams) (void)timerfd_settime(o->timer, 0, &(struct itimerspec){0}, NULL);
}

static void stream_start(struct origin *o, struct origin_conn *c, unsigned tick_us)
{
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                               "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n";
    (void)send_all(c, head, sizeof head - 1);
    struct timespec every = {tick_us / 1000000, (long)(tick_us % 1000000) * 1000};
    struct itimerspec it = {every, every};
    if (!o->streams) (void)timerfd_settime(o->timer, 0, &it, NULL);
    c->n_sent = 0;
    c->next = o->streams;
    c->link = &o->streams;
    if (c->next) c->next->link = &c->next;
    o->streams = c;
}

static void conn_close(struct origin_conn *c)
{
    stream_end(c);
    (void)close(c->fd);
    mem_free(c);
}

/* ---- requests ---- */

static bool number_after(const char *text, const char *name, unsigned *ret)
{
    const char *p = strstr(text, name);
    if (p) *ret = (unsigned)strtoul(p + strlen(name), NULL, 10);
    return p != NULL;
}

static void answer_text(struct origin_conn *c, const char *text)
{
    char out[1024];
    (void)send_all(c, out, make_answer(out, sizeof out, text, strlen(text)));
}

/* The body is complete; `text` is its beginning. */
static void answer_request(struct origin *o, struct origin_conn *c, const char *text)
{
    unsigned tick_us = 0;
    if (c->check) {
        char hash[64];
        (void)snprintf(hash, sizeof hash, "{\"xxh64\":\"%016llx\"}",
                       (unsigned long long)XXH64_digest(o->hash));
        answer_text(c, hash);
    } else if (strncmp(c->head, "GET /v1/models", 14) == 0) {
        answer_text(c, "{\"object\":\"list\",\"data\":[{\"id\":\"bench\",\"object\":\"model\","
                       "\"created\":1700000000,\"owned_by\":\"bench\"}]}");
    } else if (strncmp(c->head, "GET ", 4) == 0) {
        answer_text(c, "{\"status\":\"ok\"}");
    } else if (number_after(text, "\"bench_events\":", &c->n_events) && c->n_events > 0 &&
               number_after(text, "\"bench_tick_us\":", &tick_us)) {
        stream_start(o, c, tick_us);
    } else {
        (void)send_all(c, o->answer, o->answer_len);
    }
    c->len = 0;
    c->in_body = false;
}

static size_t content_length(const char *head)
{
    const char *p = strcasestr(head, "\r\ncontent-length:");
    return p ? strtoul(p + 17, NULL, 10) : 0;
}

/* True while the connection lives. */
static bool read_head(struct origin *o, struct origin_conn *c)
{
    ssize_t n = recv(c->fd, c->head + c->len, HEAD_BYTES - 1 - c->len, 0);
    if (n <= 0) return n < 0 && errno == EAGAIN;
    c->len += (size_t)n;
    c->head[c->len] = '\0';
    char *end = strstr(c->head, "\r\n\r\n");
    if (!end) return c->len < HEAD_BYTES - 1;
    *end = '\0'; /* the body must not answer for the head */
    size_t length = content_length(c->head), have = c->len - (size_t)(end + 4 - c->head);
    c->check = strstr(c->head, "?check") != NULL;
    *end = '\r';
    if (have < length && c->len < HEAD_BYTES / 4) return true; /* its beginning is needed */
    if (c->check) {
        (void)XXH64_reset(o->hash, 0);
        (void)XXH64_update(o->hash, end + 4, have);
    }
    c->in_body = have < length;
    c->left = length - have;
    if (!c->in_body) answer_request(o, c, end + 4);
    return true;
}

static bool drop_body(struct origin *o, struct origin_conn *c)
{
    static char bytes[65536];
    size_t room = c->check && c->left > sizeof bytes ? sizeof bytes : c->left;
    ssize_t n = c->check ? recv(c->fd, bytes, room, 0) : recv(c->fd, NULL, room, MSG_TRUNC);
    if (n <= 0) return n < 0 && errno == EAGAIN;
    if (c->check) (void)XXH64_update(o->hash, bytes, (size_t)n);
    c->left -= (size_t)n;
    if (c->left == 0) answer_request(o, c, strstr(c->head, "\r\n\r\n") + 4);
    return true;
}

static void accept_all(struct origin *o)
{
    for (int fd; (fd = accept4(o->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
        struct origin_conn *c = mem_zalloc(sizeof *c);
        int one = 1;
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        if (!c) {
            (void)close(fd);
            return;
        }
        c->fd = fd;
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (epoll_ctl(o->epoll, EPOLL_CTL_ADD, fd, &e) < 0) conn_close(c);
    }
}

_Noreturn void proxy_origin_run(int listen_fd, volatile uint64_t *n_events)
{
    static struct origin o;
    o.n_sent = n_events;
    o.listener = listen_fd;
    o.epoll = epoll_create1(EPOLL_CLOEXEC);
    o.hash = XXH64_createState();
    o.timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    o.answer_len = make_completion(o.answer, sizeof o.answer);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = &o.listener};
    struct epoll_event t = {.events = EPOLLIN, .data.ptr = &o.timer};
    if (!o.hash || epoll_ctl(o.epoll, EPOLL_CTL_ADD, listen_fd, &e) < 0 ||
        epoll_ctl(o.epoll, EPOLL_CTL_ADD, o.timer, &t) < 0)
        _exit(1);
    for (;;) {
        struct epoll_event ev[EVENTS];
        uint64_t ticks;
        int n = epoll_wait(o.epoll, ev, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            struct origin_conn *c = ev[i].data.ptr;
            if (ev[i].data.ptr == &o.listener) {
                accept_all(&o);
            } else if (ev[i].data.ptr == &o.timer) {
                if (read(o.timer, &ticks, sizeof ticks) == sizeof ticks) send_events(&o);
            } else if (!(c->in_body ? drop_body(&o, c) : read_head(&o, c))) {
                conn_close(c);
            }
        }
    }
}
