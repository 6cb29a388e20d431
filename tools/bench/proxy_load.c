/* The load generator. A request lies in a memfd and is sent with sendfile(), so that large bodies
 * cost this side next to nothing and the proxy is what is busy. */
#include "tools/bench/proxy.h"

#include "base/clock.h"
#include "base/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    HEAD_BYTES = 4096,
    EVENT_BYTES = 1024,
    SCRATCH_BYTES = 65536,
    EVENTS = 256,
    SILENCE_S = 20,    /* no answer for so long: something is broken */
    SEND_COPY = 32768, /* requests up to this go by send(): the copy is cheaper */
};

enum part { HEAD, BODY, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER };

struct load_conn {
    int fd;
    bool want_write, finished;
    size_t sent;
    uint64_t start_ns;
    /* the answer */
    enum part part;
    size_t head_len, left, body_len;
    unsigned next_event;
    size_t event_len;
    char head[HEAD_BYTES], event[EVENT_BYTES];
};

struct load {
    const struct proxy_load *o;
    struct proxy_result *ret;
    int epoll, file;
    clockid_t cpu_clock;
    struct buf request;
    struct load_conn *conn;
    unsigned n_started, n_finished, n_events; /* streams that have begun, ended; events of each */
    bool open, over, failed;                  /* the window */
    uint64_t begin_ns, open_ns, last_ns, now_ns;
    double cpu0_s;
    float *ms;
    size_t n_ms, cap_ms;
};

static void fail(struct load *l, const char *fmt, ...)
{
    if (l->failed) return;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(l->ret->why, sizeof l->ret->why, fmt, ap);
    va_end(ap);
    l->failed = true;
}

/* ---- the request ---- */

/* English prose as it is sent: about every fifty bytes an escape or a character beyond ASCII. */
static int add_text(struct buf *out, size_t end)
{
    static const char *const word[] = {
        "the",    "bridge", "was",  "opened", "in",      "1894", "and",  "carries",
        "single", "road",   "rail", "river",  "between", "two",  "km",   "engineers",
        "report", "of",     "that", "arch",   "a",       "by",   "with", "foundations"};
    static const char *const special[] = {"naïve",        "Zürich", "东京",
                                          "\\\"arch\\\"", "“span”", "caf\\u00e9"};
    uint32_t seed = 1;
    int r = 0;
    for (unsigned i = 1; r == 0; i++) {
        seed = seed * 1664525u + 1013904223u;
        uint32_t pick = seed >> 16;
        const char *w = i % 14 == 0 ? special[pick % (sizeof special / sizeof *special)]
                                    : word[pick % (sizeof word / sizeof *word)];
        const char *after = i % 60 == 0 ? ".\\n\\n" : i % 17 == 0 ? ". " : " ";
        if (out->len + strlen(w) + strlen(after) > end) break;
        r = buf_adds(out, w);
        if (r == 0) r = buf_adds(out, after);
    }
    while (r == 0 && out->len < end)
        r = buf_addc(out, '.');
    return r;
}

int proxy_body(size_t bytes, unsigned n_events, unsigned tick_us, struct buf *out)
{
    static const char tail[] = "\"}],\"temperature\":0.2}";
    size_t begin = out->len;
    int r = buf_addf(out,
                     "{\"model\":\"bench\",\"stream\":%s,\"bench_events\":%u,\"bench_tick_us\":%u,"
                     "\"messages\":[{\"role\":\"system\",\"content\":\"Answer from the documents."
                     "\"},{\"role\":\"user\",\"content\":\"",
                     n_events ? "true" : "false", n_events, tick_us);
    if (r == 0 && out->len - begin + sizeof tail > bytes) r = -EINVAL;
    if (r == 0) r = add_text(out, begin + bytes - (sizeof tail - 1));
    return r < 0 ? r : buf_adds(out, tail);
}

static int make_request(const char *query, size_t bytes, unsigned n_events, unsigned tick_us,
                        struct buf *out)
{
    int r = buf_addf(out,
                     "POST /v1/chat/completions%s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: "
                     "application/json\r\nAuthorization: Bearer sk-bench\r\nAccept: */*\r\n"
                     "User-Agent: kvblend-bench\r\nContent-Length: %zu\r\n\r\n",
                     query, bytes);
    return r < 0 ? r : proxy_body(bytes, n_events, tick_us, out);
}

static int connect_to(uint16_t port)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -errno;
    if (connect(fd, (struct sockaddr *)&a, sizeof a) < 0) {
        int e = errno;
        (void)close(fd);
        return -e;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void send_more(struct load *l, struct load_conn *c)
{
    while (c->sent < l->request.len) {
        size_t left = l->request.len - c->sent;
        off_t at = (off_t)c->sent;
        ssize_t n = left <= SEND_COPY
                        ? send(c->fd, l->request.data + c->sent, left, MSG_NOSIGNAL | MSG_DONTWAIT)
                        : sendfile(c->fd, l->file, &at, left);
        if (n < 0 && errno != EAGAIN) {
            fail(l, "sending a request: %s", strerror(errno));
            return;
        }
        if (n < 0) break;
        c->sent += (size_t)n;
    }
    bool want = c->sent < l->request.len;
    if (want == c->want_write) return;
    c->want_write = want;
    struct epoll_event e = {.events = EPOLLIN | (want ? EPOLLOUT : 0u), .data.ptr = c};
    (void)epoll_ctl(l->epoll, EPOLL_CTL_MOD, c->fd, &e);
}

static void request_begin(struct load *l, struct load_conn *c)
{
    c->sent = c->head_len = c->body_len = c->event_len = 0;
    c->part = HEAD;
    c->start_ns = clock_ns();
    send_more(l, c);
}

/* ---- the window ---- */

static double cpu_s(const struct load *l)
{
    struct timespec t;
    if (!l->o->server || clock_gettime(l->cpu_clock, &t) < 0) return 0;
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void window_open(struct load *l)
{
    l->open = true;
    l->open_ns = clock_ns();
    l->cpu0_s = cpu_s(l);
}

static void window_close(struct load *l)
{
    l->over = true;
    l->ret->cpu_s = cpu_s(l) - l->cpu0_s;
    l->ret->wall_s = (double)(clock_ns() - l->open_ns) / 1e9;
}

static void measured(struct load *l, uint64_t from_ns)
{
    uint64_t now = clock_ns();
    l->last_ns = now;
    if (!l->open || l->over) return;
    if (l->n_ms == l->cap_ms) {
        size_t cap = l->cap_ms ? l->cap_ms * 2 : 65536;
        float *p = mem_realloc(l->ms, cap * sizeof *p);
        if (!p) {
            fail(l, "out of memory");
            return;
        }
        l->ms = p;
        l->cap_ms = cap;
    }
    l->ms[l->n_ms++] = (float)((double)(now - from_ns) / 1e6);
    l->ret->done++;
}

/* ---- the answer ---- */

static void on_answer(struct load *l, struct load_conn *c)
{
    if (l->o->point.sse) {
        fail(l, "a stream ended without [DONE]");
        return;
    }
    if (c->body_len != PROXY_ANSWER_BYTES) {
        fail(l, "an answer of %zu bytes", c->body_len);
        return;
    }
    measured(l, c->start_ns);
    if (!l->over) request_begin(l, c);
}

static void on_event(struct load *l, struct load_conn *c, const char *p, size_t len)
{
    static const char id[] = "data: {\"id\":\"chatcmpl-";
    size_t at = sizeof id - 1;
    if (p[0] == ':') return; /* a comment: a proxy may keep the connection alive */
    if (len == 14 && memcmp(p, "data: [DONE]", 12) == 0) {
        if (c->next_event != l->n_events) fail(l, "a stream of %u events", c->next_event);
        c->finished = true;
        l->n_finished++;
        if (!l->over) window_close(l); /* from the first end on, not all streams are there */
        return;
    }
    if (len < at + 29 || memcmp(p, id, at) != 0 || strtoul(p + at, NULL, 10) != c->next_event) {
        fail(l, "event %u is another", c->next_event);
        return;
    }
    if (c->next_event++ == 0 && ++l->n_started == l->o->point.conns) window_open(l);
    measured(l, strtoull(p + at + 9, NULL, 10));
}

static void on_body(struct load *l, struct load_conn *c, const char *p, size_t n)
{
    c->body_len += n;
    if (!l->o->point.sse) return;
    while (n > 0 && !l->failed) {
        const char *nl = memchr(p, '\n', n);
        size_t take = nl ? (size_t)(nl - p) + 1 : n;
        if (c->event_len + take >= EVENT_BYTES) {
            fail(l, "an event that is too long");
            return;
        }
        memcpy(c->event + c->event_len, p, take);
        c->event_len += take;
        c->event[c->event_len] = '\0';
        p += take;
        n -= take;
        if (c->event_len < 2 || memcmp(c->event + c->event_len - 2, "\n\n", 2) != 0) continue;
        on_event(l, c, c->event, c->event_len);
        c->event_len = 0;
    }
}

/* Takes a line of a chunked body's framing that may come in pieces; true once it is whole. */
static bool take_line(struct load *l, struct load_conn *c, const char **p, const char *end)
{
    while (*p < end) {
        char ch = *(*p)++;
        if (ch == '\n') {
            c->head[c->head_len] = '\0';
            c->head_len = 0;
            return true;
        }
        if (ch == '\r') continue;
        if (c->head_len >= 64) {
            fail(l, "malformed chunk");
            return false;
        }
        c->head[c->head_len++] = ch;
    }
    return false;
}

static void take_head(struct load *l, struct load_conn *c, const char **p, const char *end)
{
    size_t room = HEAD_BYTES - 1 - c->head_len, had = c->head_len, n = (size_t)(end - *p);
    if (n > room) n = room;
    memcpy(c->head + had, *p, n);
    c->head[had + n] = '\0';
    char *stop = strstr(c->head + (had > 3 ? had - 3 : 0), "\r\n\r\n");
    if (!stop) {
        *p += n;
        c->head_len += n;
        if (c->head_len == HEAD_BYTES - 1) fail(l, "a head that is too long");
        return;
    }
    *p += (size_t)(stop + 4 - c->head) - had;
    stop[2] = '\0';
    if (strncmp(c->head, "HTTP/1.1 200", 12) != 0) {
        fail(l, "%.*s", (int)strcspn(c->head, "\r"), c->head);
        return;
    }
    const char *length = strcasestr(c->head, "\r\ncontent-length:");
    c->left = length ? strtoul(length + 17, NULL, 10) : 0;
    c->part = length ? BODY : CHUNK_SIZE;
    c->head_len = 0;
    if (!length && !strcasestr(c->head, "\r\ntransfer-encoding: chunked"))
        fail(l, "an answer without length");
}

static void take_data(struct load *l, struct load_conn *c, const char **p, const char *end)
{
    size_t n = (size_t)(end - *p);
    if (n > c->left) n = c->left;
    c->left -= n;
    *p += n;
    on_body(l, c, *p - n, n);
    if (c->left == 0) {
        if (c->part == BODY)
            on_answer(l, c);
        else
            c->part = CHUNK_END;
    }
}

static void take_input(struct load *l, struct load_conn *c, const char *p, size_t len)
{
    const char *end = p + len;
    while (p < end && !l->failed) {
        switch (c->part) {
        case HEAD:
            take_head(l, c, &p, end);
            break;
        case BODY:
        case CHUNK_DATA:
            take_data(l, c, &p, end);
            break;
        case CHUNK_SIZE:
            if (!take_line(l, c, &p, end)) break;
            c->left = strtoul(c->head, NULL, 16);
            c->part = c->left ? CHUNK_DATA : TRAILER;
            break;
        case CHUNK_END:
            if (take_line(l, c, &p, end)) c->part = CHUNK_SIZE;
            break;
        case TRAILER:
            if (!take_line(l, c, &p, end) || c->head[0]) break;
            if (!c->finished) on_answer(l, c);
            c->part = HEAD;
            break;
        }
    }
}

static void on_readable(struct load *l, struct load_conn *c)
{
    static char bytes[SCRATCH_BYTES];
    ssize_t n = recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
        if (c->finished) {
            (void)epoll_ctl(l->epoll, EPOLL_CTL_DEL, c->fd, NULL);
            return;
        }
        fail(l, n == 0 ? "the connection was closed" : "reading an answer: %s", strerror(errno));
        return;
    }
    if (l->open && !l->over) l->ret->reads++;
    take_input(l, c, bytes, (size_t)n);
}

/* ---- the run ---- */

static int load_open(struct load *l)
{
    const struct proxy_point *p = &l->o->point;
    double events = (l->o->seconds + l->o->warm_s) * 1e6 / (p->tick_us ? p->tick_us : 1);
    l->n_events = p->sse ? (unsigned)events + 1 : 0;
    int r = make_request("", p->body_bytes, l->n_events, p->tick_us, &l->request);
    if (r < 0) return r;
    l->file = memfd_create("request", MFD_CLOEXEC);
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    l->conn = mem_zalloc(p->conns * sizeof *l->conn);
    if (l->file < 0 || l->epoll < 0 || !l->conn ||
        write(l->file, l->request.data, l->request.len) != (ssize_t)l->request.len)
        return -ENOMEM;
    if (l->o->server && clock_getcpuclockid(l->o->server, &l->cpu_clock) != 0) return -ESRCH;
    for (unsigned i = 0; i < p->conns; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = &l->conn[i]};
        l->conn[i].fd = connect_to(l->o->port);
        if (l->conn[i].fd < 0) return l->conn[i].fd;
        if (epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->conn[i].fd, &e) < 0) return -errno;
    }
    return 0;
}

static bool finished(struct load *l)
{
    uint64_t now = clock_ns();
    if (now - l->last_ns > SILENCE_S * 1000000000ull) fail(l, "no answer for %d s", SILENCE_S);
    if (l->o->point.sse) return l->n_finished == l->o->point.conns;
    if (!l->open && (double)(now - l->begin_ns) / 1e9 >= l->o->warm_s)
        window_open(l);
    else if (l->open && (double)(now - l->open_ns) / 1e9 >= l->o->seconds)
        window_close(l);
    return l->over;
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void load_report(struct load *l)
{
    struct proxy_result *r = l->ret;
    if (l->n_ms == 0) fail(l, "nothing was measured");
    r->ok = !l->failed;
    if (l->n_ms == 0) return;
    qsort(l->ms, l->n_ms, sizeof *l->ms, by_value);
    r->p50_ms = l->ms[l->n_ms / 2];
    r->p99_ms = l->ms[(size_t)((double)l->n_ms * 0.99)];
}

void proxy_load_run(const struct proxy_load *o, struct proxy_result *ret)
{
    struct load l = {.o = o, .ret = ret, .request = BUF_INIT};
    *ret = (struct proxy_result){0};
    int r = load_open(&l);
    if (r < 0) fail(&l, "starting the load: %s", strerror(-r));
    l.begin_ns = l.last_ns = clock_ns();
    for (unsigned i = 0; i < o->point.conns && !l.failed; i++)
        request_begin(&l, &l.conn[i]);
    while (!l.failed && !finished(&l)) {
        struct epoll_event ev[EVENTS];
        int n = epoll_wait(l.epoll, ev, EVENTS, 100);
        for (int i = 0; i < n && !l.failed; i++) {
            struct load_conn *c = ev[i].data.ptr;
            if (ev[i].events & EPOLLOUT) send_more(&l, c);
            if (!l.failed && ev[i].events & ~(uint32_t)EPOLLOUT) on_readable(&l, c);
        }
    }
    load_report(&l);
    for (unsigned i = 0; l.conn && i < o->point.conns; i++)
        if (l.conn[i].fd > 0) (void)close(l.conn[i].fd);
    if (l.epoll > 0) (void)close(l.epoll);
    if (l.file > 0) (void)close(l.file);
    buf_fini(&l.request);
    mem_free(l.conn);
    mem_free(l.ms);
}

int proxy_check(uint16_t port, size_t body_bytes, struct err *err)
{
    struct buf request = BUF_INIT;
    char answer[8192], want[32];
    size_t len = 0;
    int r = make_request("?check=1", body_bytes, 0, 0, &request), fd = r < 0 ? r : connect_to(port);
    struct timeval limit = {10, 0};
    if (fd < 0) {
        buf_fini(&request);
        return err_set(err, fd, "port %u: %s", port, strerror(-fd));
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    const char *body = request.data + request.len - body_bytes;
    (void)snprintf(want, sizeof want, "%016llx", (unsigned long long)XXH64(body, body_bytes, 0));
    bool sent = send(fd, request.data, request.len, MSG_NOSIGNAL) == (ssize_t)request.len;
    answer[0] = '\0';
    while (sent && len < sizeof answer - 1 && !strstr(answer, "\"}")) {
        ssize_t n = recv(fd, answer + len, sizeof answer - 1 - len, 0);
        if (n <= 0) break;
        len += (size_t)n;
        answer[len] = '\0';
    }
    (void)close(fd);
    buf_fini(&request);
    if (strstr(answer, want)) return 0;
    return err_set(err, -EBADMSG, "a body of %zu bytes did not arrive as it was sent: %.60s",
                   body_bytes, answer);
}
