/* The origin: one event loop that answers at once. Streams share one clock: at each tick every
 * stream gets one event in one write, as from a server that decodes its sequences in one batch. A
 * late tick sends one event, never two. */
#include "tools/bench/proxy.h"

#include "base/net/http_loop.h"
#include "base/net/http_server.h"

#include <arpa/inet.h>
#include <event2/event.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { BACKLOG = 4096, STREAMS_MAX = 1024 };

struct origin {
    struct stream {
        struct http_req *r; /* NULL: none */
        unsigned n_events, n_sent;
    } stream[STREAMS_MAX];
    int timer;
    struct buf answer;     /* 1 KB */
    atomic_ullong *n_sent; /* events; shared with the parent */
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

/* ---- answers ---- */

int proxy_event(unsigned i, struct buf *out)
{
    return buf_addf(out,
                    "data: {\"id\":\"chatcmpl-%08u\",\"object\":\"chat.completion.chunk\","
                    "\"created\":1700000000,\"model\":\"bench\",\"choices\":[{\"index\":0,"
                    "\"delta\":{\"content\":\" token\"},\"logprobs\":null,\"finish_reason\":null}]"
                    "}\n\n",
                    i);
}

/* ---- streams ---- */

static void set_timer(struct origin *o, unsigned tick_us)
{
    const struct timespec every = {tick_us / 1000000, (long)(tick_us % 1000000) * 1000};
    (void)timerfd_settime(o->timer, 0, &(struct itimerspec){every, every}, NULL);
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    struct origin *o = arg;
    struct buf event = BUF_INIT;
    uint64_t ticks;
    bool any = false;
    (void)what;
    if (read(fd, &ticks, sizeof ticks) < 0) return;
    for (struct stream *s = o->stream; s < o->stream + STREAMS_MAX; s++) {
        if (!s->r) continue;
        any = true;
        buf_clear(&event);
        const bool last = s->n_sent == s->n_events;
        (void)(last ? buf_adds(&event, PROXY_LAST_EVENT) : proxy_event(s->n_sent, &event));
        (void)http_reply_write(s->r, event.data, event.len);
        if (last) {
            (void)http_reply_end(s->r);
            s->r = NULL;
        } else {
            s->n_sent++;
            atomic_fetch_add(o->n_sent, 1);
        }
    }
    if (!any) set_timer(o, 0);
    buf_fini(&event);
}

static void start_stream(struct origin *o, struct http_req *r, unsigned n_events, unsigned tick_us)
{
    struct stream *s = o->stream;
    while (s->r && s < o->stream + STREAMS_MAX - 1)
        s++;
    if (s->r ||
        http_reply_start(r, 200, "text/event-stream", "Cache-Control: no-cache\r\n", -1) < 0) {
        http_reply_abort(r);
        return;
    }
    *s = (struct stream){r, n_events, 0};
    r->user = s;
    set_timer(o, tick_us);
}

/* ---- requests ---- */

static void on_request(void *ctx, struct http_req *r)
{
    static const char models[] = "{\"object\":\"list\",\"data\":[{\"id\":\"bench\",\"object\":"
                                 "\"model\",\"created\":1700000000,\"owned_by\":\"bench\"}]}";
    struct origin *o = ctx;
    struct buf answer = o->answer;
    unsigned n_events, tick_us;
    r->user = NULL;
    if (strcmp(r->msg.method, "GET") == 0)
        answer = (struct buf){.data = (char *)(uintptr_t)models, .len = sizeof models - 1};
    else if (strcmp(r->msg.query, "echo") == 0)
        answer.data = (char *)(uintptr_t)http_req_body(r, &answer.len);
    else if (sscanf(r->msg.query, "events=%u&tick_us=%u", &n_events, &tick_us) == 2) {
        start_stream(o, r, n_events, tick_us);
        return;
    }
    (void)http_reply(r, 200, "application/json", NULL, answer.data, answer.len);
}

static void on_close(void *ctx, struct http_req *r, bool aborted)
{
    struct stream *s = r->user;
    (void)ctx;
    (void)aborted;
    if (s && s->r == r) s->r = NULL;
}

static _Noreturn void run_origin(int listener, atomic_ullong *n_sent)
{
    static const struct http_server_ops ops = {.on_request = on_request, .on_close = on_close};
    static struct origin o;
    const struct http_listen_opts listen = {.fd = listener};
    struct http_loop *loop;
    struct http_server *server;
    struct err err;
    o.n_sent = n_sent;
    o.timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    int r =
        buf_addf(&o.answer,
                 "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1700000000,"
                 "\"model\":\"bench\",\"choices\":[{\"index\":0,\"message\":{\"role\":"
                 "\"assistant\",\"content\":\"%0775d\"},\"finish_reason\":\"stop\"}],\"usage\":{"
                 "\"prompt_tokens\":1200,\"completion_tokens\":200,\"total_tokens\":1400}}",
                 0);
    if (r < 0 || http_loop_create(&loop) < 0) _exit(1);
    struct event *tick =
        event_new(http_loop_base(loop), o.timer, EV_READ | EV_PERSIST, on_tick, &o);
    if (tick && event_add(tick, NULL) == 0 &&
        http_server_create(loop, NULL, &ops, &o, &server) == 0 &&
        http_server_listen(server, NULL, &listen, &err) >= 0)
        (void)http_loop_run(loop);
    _exit(1);
}

int proxy_origin_start(int cpu, struct proxy_origin *ret, struct err *err)
{
    int fd, r = proxy_listen(&fd, &ret->port, err);
    if (r < 0) return r;
    void *shared = mmap(NULL, sizeof(atomic_ullong), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ret->n_events = shared;
    ret->pid = shared == MAP_FAILED ? -1 : child_fork(cpu);
    if (ret->pid == 0) run_origin(fd, shared);
    (void)close(fd);
    return ret->pid < 0 ? err_set(err, -EAGAIN, "cannot fork") : 0;
}
