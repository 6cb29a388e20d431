/* The client against our own server in one loop: pool, streaming, retry, cancel, back-pressure. */
#include "base/buf.h"
#include "base/mem.h"
#include "base/net/http.h"
#include "tests/test.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CALLS_MAX = 64 };

struct fix;
struct one_call {
    struct fix *f;
    struct http_call *call;
    struct buf body;
    int status, end, n_ends, n_heads;
    bool sent, sent_all; /* in on_end, in on_head */
    bool cancel_in_body, pause_in_body, restart_in_end;
};
struct fix {
    struct http_loop *loop;
    struct http_server *server;
    struct http_client *client;
    struct http_timer guard;
    struct one_call calls[CALLS_MAX];
    int n_open; /* calls that have not ended; the loop stops at 0 */
    int n_closed, n_aborted, n_drains, n_requests;
    struct http_req *held;
    char peers[CALLS_MAX][64];
    size_t big_left;
    bool timed_out, tolerant, may_repeat;
    char host[64];
};

static void pump_big(struct fix *f, struct http_req *r)
{
    static char block[65536];
    memset(block, 'x', sizeof block);
    while (f->big_left > 0) {
        size_t n = f->big_left < sizeof block ? f->big_left : sizeof block;
        f->big_left -= n;
        if (http_reply_write(r, block, n) == 1) return;
    }
    ASSERT_EQ(http_reply_end(r), 0);
}

static void on_request(void *ctx, struct http_req *r)
{
    struct fix *f = ctx;
    const char *path = r->msg.path;
    size_t len;
    const char *body = http_req_body(r, &len);
    if (f->n_requests < CALLS_MAX) (void)snprintf(f->peers[f->n_requests], 64, "%s", r->peer);
    f->n_requests++;
    (void)snprintf(f->host, sizeof f->host, "%s", http_header_find(&r->msg.head, "host"));
    if (strcmp(path, "/echo") == 0) {
        int e = http_reply(r, 200, "text/plain", NULL, body, len);
        ASSERT_TRUE(e == 0 || f->tolerant);
    } else if (strcmp(path, "/drop") == 0) {
        http_req_drop_body(r);
        http_req_drop_body(r);
        ASSERT_STREQ(http_req_body(r, &len), "");
        ASSERT_EQ(len, 0);
        ASSERT_EQ(r->bytes_in, 40000);
        ASSERT_EQ(http_reply(r, 200, "text/plain", NULL, "dropped", 7), 0);
    } else if (strcmp(path, "/hold") == 0) {
        f->held = r;
    } else if (strcmp(path, "/big") == 0) {
        f->big_left = 8u << 20;
        ASSERT_EQ(http_reply_start(r, 200, "application/octet-stream", NULL, -1), 0);
        pump_big(f, r);
    } else if (strcmp(path, "/sized") == 0) {
        ASSERT_EQ(http_reply_start(r, 200, "text/plain", NULL, 6), 0);
        ASSERT_EQ(http_reply_write(r, "abc", 3), 0);
        bool no_body = strcmp(r->msg.method, "HEAD") == 0;
        ASSERT_EQ(http_reply_write(r, "abcd", 4), no_body ? 0 : -EMSGSIZE);
        if (len == 0) ASSERT_EQ(http_reply_write(r, "def", 3), 0);
        ASSERT_EQ(http_reply_end(r), len == 0 ? 0 : -EPIPE);
    } else if (strcmp(path, "/sse") == 0) {
        ASSERT_EQ(http_sse_start(r, "X-Test: yes\r\n"), 0);
        ASSERT_EQ(http_sse_comment(r, "hello"), 0);
        ASSERT_OK(http_reply_write(r, "data: {\"a\":1}\n\ndata: two\ndata: lines\n\n", 38));
        ASSERT_EQ(http_reply_end(r), 0);
        ASSERT_EQ(http_reply_write(r, "x", 1), -EPIPE);
    } else if (strcmp(path, "/cut") == 0) {
        ASSERT_EQ(http_reply_start(r, 200, "text/plain", NULL, -1), 0);
        ASSERT_EQ(http_reply_write(r, "half", 4), 0);
        http_reply_abort(r);
        ASSERT_EQ(http_reply_write(r, "x", 1), -EPIPE);
    } else {
        ASSERT_EQ(http_reply(r, 404, "text/plain", NULL, "no\n", 3), 0);
    }
}

static void on_close(void *ctx, struct http_req *r, bool aborted)
{
    struct fix *f = ctx;
    f->n_closed++;
    f->n_aborted += aborted;
    if (f->held == r) f->held = NULL;
}

static void on_drain(void *ctx, struct http_req *r)
{
    struct fix *f = ctx;
    f->n_drains++;
    pump_big(f, r);
}

static void on_guard(void *arg)
{
    struct fix *f = arg;
    f->timed_out = true;
    http_loop_stop(f->loop);
}

static void fix_init(struct fix *f, const char *client_address)
{
    static const struct http_server_ops ops = {
        .on_request = on_request, .on_close = on_close, .on_drain = on_drain};
    memset(f, 0, sizeof *f);
    ASSERT_OK(http_loop_create(&f->loop));
    ASSERT_OK(http_server_create(f->loop, NULL, &ops, f, &f->server));
    struct err err = {0};
    ASSERT_OK(http_server_listen(f->server, "127.0.0.1:0", NULL, &err));
    char address[64];
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", http_server_port(f->server));
    struct http_client_opts o = {.address = client_address ? client_address : address,
                                 .conns_max = 8};
    ASSERT_OK(http_client_create(f->loop, &o, &f->client));
    http_timer_init(&f->guard, f->loop, on_guard, f);
}

static void run(struct fix *f)
{
    http_timer_set(&f->guard, 30000);
    ASSERT_OK(http_loop_run(f->loop));
    ASSERT_TRUE(!f->timed_out);
}

static void fix_fini(struct fix *f)
{
    http_client_destroy(f->client);
    http_server_destroy(f->server);
    ASSERT_EQ(f->n_closed, f->n_requests);
    http_timer_fini(&f->guard);
    http_loop_destroy(f->loop);
    for (int i = 0; i < CALLS_MAX; i++)
        buf_fini(&f->calls[i].body);
}

static void on_head(void *ctx, int status, const struct http_head *h)
{
    struct one_call *c = ctx;
    c->status = status;
    c->n_heads++;
    c->sent_all = http_call_sent_all(c->call);
    ASSERT_TRUE(http_header_find(h, "dATE") != NULL);
}

static void start(struct fix *f, int i, const char *method, const char *target, const char *body);

static void stop_waiting(struct fix *f)
{
    if (--f->n_open == 0) http_loop_stop(f->loop);
}

static void on_body(void *ctx, const char *data, size_t len)
{
    struct one_call *c = ctx;
    int r = buf_add(&c->body, data, len);
    ASSERT_TRUE(r == 0 || c->f->tolerant);
    if (c->cancel_in_body) {
        size_t n = http_client_n_calls(c->f->client);
        http_call_cancel(c->call);
        ASSERT_EQ(http_client_n_calls(c->f->client), n); /* its connection is still in use */
        stop_waiting(c->f);
    } else if (c->pause_in_body) {
        http_call_pause(c->call, true);
        http_call_pause(c->call, false);
        http_call_pause(c->call, true);
        http_loop_post(c->f->loop, (void (*)(void *))http_loop_stop, c->f->loop);
    }
}

static void on_end(void *ctx, int status)
{
    struct one_call *c = ctx;
    c->end = status;
    c->sent = http_call_sent(c->call);
    c->n_ends++;
    if (c->restart_in_end) {
        c->restart_in_end = false;
        buf_clear(&c->body);
        start(c->f, (int)(c - c->f->calls), "POST", "/echo", "again");
    }
    stop_waiting(c->f);
}

static void start(struct fix *f, int i, const char *method, const char *target, const char *body)
{
    static const struct http_call_ops ops = {on_head, on_body, on_end};
    struct one_call *c = &f->calls[i];
    c->f = f;
    f->n_open++;
    const struct http_request q = {.method = method,
                                   .target = target,
                                   .headers = "X-A: b\r\n",
                                   .body = body,
                                   .len = body ? strlen(body) : 0,
                                   .may_repeat = f->may_repeat};
    ASSERT_OK(http_call_start(f->client, &q, &ops, c, &c->call));
}

TEST(echo_and_pool_reuse)
{
    struct fix f;
    fix_init(&f, NULL);
    for (int i = 0; i < 3; i++) {
        start(&f, i, "POST", "/echo", i == 1 ? "second" : "body");
        run(&f);
        ASSERT_EQ(f.calls[i].end, 0);
        ASSERT_EQ(f.calls[i].status, 200);
        ASSERT_STREQ(buf_cstr(&f.calls[i].body), i == 1 ? "second" : "body");
        ASSERT_STREQ(f.peers[i], f.peers[0]); /* the same connection */
    }
    start(&f, 3, "GET", "/none", NULL);
    run(&f);
    ASSERT_EQ(f.calls[3].status, 404);
    ASSERT_EQ(f.n_aborted, 0);
    fix_fini(&f);
}

/* A body of several megabytes in pieces of every odd size, and again over the reused connection. */
TEST(borrowed_bodies)
{
    enum { BYTES = 3 << 20, PIECES_MAX = 200 };
    static const struct http_call_ops ops = {on_head, on_body, on_end};
    struct fix f;
    fix_init(&f, NULL);
    char *body = mem_alloc(BYTES);
    struct iovec pieces[PIECES_MAX];
    uint64_t seed = 3;
    for (size_t i = 0; i < BYTES; i++)
        body[i] = (char)test_rand(&seed);
    for (int round = 0; round < 3; round++) {
        int n = 0;
        for (size_t at = 0; at < BYTES; n++) {
            size_t len = n == PIECES_MAX - 1 ? BYTES - at : test_rand(&seed) % 40000;
            if (len > BYTES - at) len = BYTES - at;
            pieces[n] = (struct iovec){body + at, len};
            at += len;
        }
        struct one_call *c = &f.calls[round];
        c->f = &f;
        f.n_open++;
        const struct http_request q = {
            .method = "POST", .target = "/echo", .pieces = pieces, .n_pieces = n};
        ASSERT_OK(http_call_start(f.client, &q, &ops, c, &c->call));
        memset(pieces, 0, sizeof pieces); /* only what they point to is borrowed */
        run(&f);
        ASSERT_EQ(c->end, 0);
        ASSERT_TRUE(c->sent && c->sent_all);
        ASSERT_EQ(c->body.len, BYTES);
        ASSERT_MEMEQ(c->body.data, body, BYTES);
        ASSERT_STREQ(f.peers[round], f.peers[0]);
    }
    mem_free(body);
    fix_fini(&f);
}

TEST(bodies_that_are_not_kept)
{
    static char body[40001];
    struct fix f;
    fix_init(&f, NULL);
    memset(body, 'b', sizeof body - 1);
    for (int i = 0; i < 2; i++) {
        start(&f, i, "POST", "/drop", body);
        run(&f);
        ASSERT_STREQ(buf_cstr(&f.calls[i].body), "dropped");
    }
    fix_fini(&f);
}

TEST(sized_replies)
{
    struct fix f;
    fix_init(&f, NULL);
    start(&f, 0, "GET", "/sized", NULL);
    run(&f);
    ASSERT_EQ(f.calls[0].end, 0);
    ASSERT_STREQ(buf_cstr(&f.calls[0].body), "abcdef");
    start(&f, 1, "HEAD", "/sized", NULL);
    run(&f);
    ASSERT_EQ(f.calls[1].end, 0);
    ASSERT_EQ(f.calls[1].body.len, 0);
    ASSERT_STREQ(f.peers[1], f.peers[0]);
    start(&f, 2, "POST", "/sized", "short"); /* too few bytes: an unclean end */
    run(&f);
    ASSERT_EQ(f.calls[2].end, -EPIPE);
    fix_fini(&f);
}

TEST(total_time_is_bounded)
{
    struct fix f;
    fix_init(&f, NULL);
    char address[64];
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", http_server_port(f.server));
    http_client_destroy(f.client);
    struct http_client_opts o = {
        .address = address, .conns_max = 1, .total_timeout_ms = 100, .host = "some.host:99"};
    ASSERT_OK(http_client_create(f.loop, &o, &f.client));
    start(&f, 0, "GET", "/hold", NULL);
    start(&f, 1, "GET", "/echo", NULL); /* waits for the only connection */
    run(&f);
    ASSERT_EQ(f.calls[0].end, -ETIME);
    ASSERT_TRUE(f.calls[0].sent);
    ASSERT_EQ(f.calls[1].n_ends, 1);
    ASSERT_TRUE(f.calls[1].end == 0 || (f.calls[1].end == -ETIME && !f.calls[1].sent));
    ASSERT_STREQ(f.host, "some.host:99");
    fix_fini(&f);
}

TEST(restart_from_on_end)
{
    struct fix f;
    fix_init(&f, NULL);
    f.calls[0].restart_in_end = true;
    start(&f, 0, "POST", "/echo", "first");
    run(&f);
    ASSERT_EQ(f.calls[0].n_ends, 2);
    ASSERT_STREQ(buf_cstr(&f.calls[0].body), "again");
    fix_fini(&f);
}

TEST(many_calls_over_few_connections)
{
    struct fix f;
    fix_init(&f, NULL);
    for (int i = 0; i < CALLS_MAX; i++)
        start(&f, i, "POST", "/echo", "some body");
    run(&f);
    for (int i = 0; i < CALLS_MAX; i++) {
        ASSERT_EQ(f.calls[i].n_ends, 1);
        ASSERT_EQ(f.calls[i].end, 0);
        ASSERT_STREQ(buf_cstr(&f.calls[i].body), "some body");
    }
    fix_fini(&f);
}

static int count_event(void *ctx, const char *data, size_t len)
{
    struct buf *b = ctx;
    return buf_addf(b, "<%.*s>", (int)len, data);
}

TEST(sse_end_to_end)
{
    struct fix f;
    fix_init(&f, NULL);
    start(&f, 0, "GET", "/sse", NULL);
    run(&f);
    ASSERT_STREQ(buf_cstr(&f.calls[0].body),
                 ": hello\n\ndata: {\"a\":1}\n\ndata: two\ndata: lines\n\n");
    struct sse_parser p = {0};
    struct buf events = BUF_INIT;
    ASSERT_OK(sse_parser_push(&p, f.calls[0].body.data, f.calls[0].body.len, count_event, &events));
    ASSERT_STREQ(buf_cstr(&events), "<{\"a\":1}><two\nlines>");
    sse_parser_fini(&p);
    buf_fini(&events);
    fix_fini(&f);
}

TEST(unclean_end_is_an_error)
{
    struct fix f;
    fix_init(&f, NULL);
    start(&f, 0, "GET", "/cut", NULL);
    run(&f);
    ASSERT_EQ(f.calls[0].end, -EPIPE);
    ASSERT_EQ(f.calls[0].status == 200 || f.calls[0].status == 0, 1);
    ASSERT_EQ(f.n_aborted, 1);
    fix_fini(&f);
}

TEST(back_pressure_and_drain)
{
    struct fix f;
    fix_init(&f, NULL);
    f.calls[0].pause_in_body = true;
    start(&f, 0, "GET", "/big", NULL);
    run(&f); /* stopped by the pause */
    ASSERT_EQ(f.calls[0].n_ends, 0);
    f.calls[0].pause_in_body = false;
    http_call_pause(f.calls[0].call, false);
    run(&f);
    ASSERT_EQ(f.calls[0].end, 0);
    ASSERT_EQ(f.calls[0].body.len, 8 << 20);
    ASSERT_TRUE(f.n_drains > 0);
    fix_fini(&f);
}

static void on_abort_poll(void *arg)
{
    struct fix *f = arg;
    if (f->n_aborted > 0)
        http_loop_stop(f->loop);
    else
        http_loop_post(f->loop, on_abort_poll, f);
}

TEST(cancel_in_body_aborts_the_server_side)
{
    struct fix f;
    fix_init(&f, NULL);
    f.calls[0].cancel_in_body = true;
    start(&f, 0, "GET", "/big", NULL);
    run(&f);
    ASSERT_EQ(f.calls[0].n_ends, 0);
    ASSERT_OK(http_loop_post(f.loop, on_abort_poll, &f));
    run(&f);
    ASSERT_EQ(f.n_aborted, 1);
    fix_fini(&f);
}

static void cancel_held(void *arg)
{
    struct fix *f = arg;
    if (!f->held) {
        http_loop_post(f->loop, cancel_held, f);
        return;
    }
    http_call_cancel(f->calls[0].call);
    f->n_open--;
    on_abort_poll(f);
}

TEST(cancel_while_pending)
{
    struct fix f;
    fix_init(&f, NULL);
    start(&f, 0, "GET", "/hold", NULL);
    ASSERT_OK(http_loop_post(f.loop, cancel_held, &f));
    run(&f);
    ASSERT_EQ(f.n_aborted, 1);
    ASSERT_EQ(f.calls[0].n_ends + f.calls[0].n_heads, 0);
    fix_fini(&f);
}

TEST(cancel_before_anything)
{
    struct fix f;
    fix_init(&f, NULL);
    start(&f, 0, "GET", "/echo", NULL);
    http_call_cancel(f.calls[0].call);
    f.n_open = 0;
    start(&f, 1, "GET", "/echo", NULL);
    run(&f);
    ASSERT_EQ(f.calls[0].n_ends, 0);
    ASSERT_EQ(f.calls[1].end, 0);
    fix_fini(&f);
}

TEST(refused_connection)
{
    struct fix f;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof in;
    ASSERT_EQ(bind(fd, (struct sockaddr *)&in, len), 0);
    ASSERT_EQ(getsockname(fd, (struct sockaddr *)&in, &len), 0);
    char address[64];
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(in.sin_port));
    fix_init(&f, address); /* bound, but nobody listens */
    start(&f, 0, "GET", "/", NULL);
    ASSERT_EQ(f.calls[0].n_ends, 0); /* never from inside the call */
    run(&f);
    ASSERT_EQ(f.calls[0].end, -ECONNREFUSED);
    ASSERT_TRUE(!f.calls[0].sent);
    close(fd);
    fix_fini(&f);
    fix_init(&f, "unix:/nonexistent/socket");
    start(&f, 0, "GET", "/", NULL);
    ASSERT_EQ(f.calls[0].n_ends, 0);
    run(&f);
    ASSERT_EQ(f.calls[0].end, -ECONNREFUSED);
    fix_fini(&f);
}

/* Several addresses: what refuses or swallows is passed over, and what worked is tried first. */
TEST(fallback_over_addresses)
{
    struct fix f;
    int silent = socket(AF_INET, SOCK_STREAM, 0), filler[8];
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof in;
    ASSERT_EQ(bind(silent, (struct sockaddr *)&in, len), 0);
    ASSERT_EQ(getsockname(silent, (struct sockaddr *)&in, &len), 0);
    char refusing[64], list[200];
    (void)snprintf(refusing, sizeof refusing, "127.0.0.1:%d", ntohs(in.sin_port));
    fix_init(&f, refusing);
    http_client_destroy(f.client);
    (void)snprintf(list, sizeof list, "%s,127.0.0.1:%d,%s", refusing, http_server_port(f.server),
                   refusing);
    struct http_client_opts o = {.address = list, .connect_timeout_ms = 10000, .keepalive_ms = 1};
    ASSERT_OK(http_client_create(f.loop, &o, &f.client));
    for (int i = 0; i < 2; i++) {
        start(&f, i, "POST", "/echo", "x");
        run(&f);
        ASSERT_EQ(f.calls[i].end, 0);
    }
    /* A full backlog swallows: the next address gets its share of the time. */
    ASSERT_EQ(listen(silent, 0), 0);
    for (int i = 0; i < 8; i++) {
        filler[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)connect(filler[i], (struct sockaddr *)&in, sizeof in);
    }
    http_client_destroy(f.client);
    o.connect_timeout_ms = 1500;
    ASSERT_OK(http_client_create(f.loop, &o, &f.client));
    start(&f, 2, "POST", "/echo", "x");
    run(&f);
    ASSERT_EQ(f.calls[2].end, 0);
    for (int i = 0; i < 8; i++)
        close(filler[i]);
    close(silent);
    fix_fini(&f);
}

/* A scripted peer in a thread: per connection, read one request for each answer, write it, close.
 */
struct script {
    int listen_fd;
    const char *answers[4][3]; /* [connection][request]; NULL ends */
    int n_conns;
};

static void *script_main(void *arg)
{
    struct script *s = arg;
    for (int i = 0; i < s->n_conns; i++) {
        int fd = accept(s->listen_fd, NULL, NULL);
        for (int k = 0; k < 3 && s->answers[i][k]; k++) {
            char in[4096];
            size_t have = 0;
            while (have < sizeof in - 1) {
                ssize_t n = recv(fd, in + have, sizeof in - 1 - have, 0);
                if (n <= 0) break;
                have += (size_t)n;
                in[have] = '\0';
                if (strstr(in, "\r\n\r\n")) break;
            }
            (void)send(fd, s->answers[i][k], strlen(s->answers[i][k]), MSG_NOSIGNAL);
        }
        close(fd);
    }
    return NULL;
}

static void script_start(struct script *s, pthread_t *t, char *address)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof in;
    s->listen_fd = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(bind(s->listen_fd, (struct sockaddr *)&in, len), 0);
    ASSERT_EQ(listen(s->listen_fd, 8), 0);
    ASSERT_EQ(getsockname(s->listen_fd, (struct sockaddr *)&in, &len), 0);
    (void)snprintf(address, 64, "127.0.0.1:%d", ntohs(in.sin_port));
    ASSERT_EQ(pthread_create(t, NULL, script_main, s), 0);
}

#define DATE "Date: now\r\n"

/* Of a peer whose first connection answers once and dies on the second request without a byte. */
struct dying {
    struct script s;
    struct fix f;
    pthread_t t;
};

static void dying_start(struct dying *d)
{
    char address[64];
    d->s =
        (struct script){.n_conns = 2,
                        .answers = {{"HTTP/1.1 200 OK\r\n" DATE "Content-Length: 3\r\n\r\none", ""},
                                    {"HTTP/1.1 200 OK\r\n" DATE "Content-Length: 3\r\n\r\ntwo"}}};
    script_start(&d->s, &d->t, address);
    fix_init(&d->f, address);
    start(&d->f, 0, "POST", "/", "a");
    run(&d->f);
    ASSERT_STREQ(buf_cstr(&d->f.calls[0].body), "one");
}

static void dying_end(struct dying *d)
{
    pthread_join(d->t, NULL);
    close(d->s.listen_fd);
    fix_fini(&d->f);
}

TEST(dead_idle_connection_is_retried)
{
    struct dying d;
    dying_start(&d);
    d.f.may_repeat = true;
    start(&d.f, 1, "POST", "/", "b");
    run(&d.f);
    ASSERT_EQ(d.f.calls[1].end, 0);
    ASSERT_STREQ(buf_cstr(&d.f.calls[1].body), "two");
    dying_end(&d);
}

/* The peer read the request before it closed, so it may have done what was asked: once more only
 * where that does no harm. */
TEST(what_was_sent_is_not_repeated_unasked)
{
    static const struct {
        const char *method, *body;
        int end;
    } all[] = {{"POST", "b", -EPIPE}, {"DELETE", NULL, -EPIPE}, {"GET", NULL, 0}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct dying d;
        dying_start(&d);
        start(&d.f, 1, all[i].method, "/", all[i].body);
        run(&d.f);
        ASSERT_EQ(d.f.calls[1].end, all[i].end);
        ASSERT_EQ(d.f.calls[1].sent, true);
        if (all[i].end < 0) { /* nothing else has come there */
            start(&d.f, 2, "GET", "/", NULL);
            run(&d.f);
            ASSERT_STREQ(buf_cstr(&d.f.calls[2].body), "two");
        }
        dying_end(&d);
    }
}

/* What comes on an idle connection is nobody's answer. */
TEST(unsolicited_answers)
{
    static const char answer[] = "HTTP/1.1 200 OK\r\n" DATE "Content-Length: 4\r\n\r\n";
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof in;
    int listen_fd = socket(AF_INET, SOCK_STREAM, 0), fd[2];
    ASSERT_EQ(bind(listen_fd, (struct sockaddr *)&in, len), 0);
    ASSERT_EQ(listen(listen_fd, 8), 0);
    ASSERT_EQ(getsockname(listen_fd, (struct sockaddr *)&in, &len), 0);
    char address[64];
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(in.sin_port));
    struct fix f;
    fix_init(&f, address);
    for (int i = 0; i < 2; i++) {
        start(&f, i, "POST", "/", "x");
        fd[i] = accept(listen_fd, NULL, NULL); /* the second time: a connection of its own */
        ASSERT_EQ(send(fd[i], answer, sizeof answer - 1, MSG_NOSIGNAL), sizeof answer - 1);
        ASSERT_EQ(send(fd[i], i ? "good" : "zero", 4, MSG_NOSIGNAL), 4);
        run(&f);
        ASSERT_STREQ(buf_cstr(&f.calls[i].body), i ? "good" : "zero");
        ASSERT_EQ(send(fd[i], answer, sizeof answer - 1, MSG_NOSIGNAL), sizeof answer - 1);
    }
    close(fd[0]);
    close(fd[1]);
    close(listen_fd);
    fix_fini(&f);
}

TEST(odd_responses)
{
    static const struct {
        const char *answer, *body;
        int end;
    } table[] = {
        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n" DATE "Content-Length: 2\r\n\r\nok",
         "ok", 0},
        {"HTTP/1.0 200 OK\r\n" DATE "\r\nuntil the end", "until the end", 0},
        {"HTTP/1.1 200 OK\r\n" DATE "Transfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\n1\r\nc\r\n"
         "0\r\nTrailer: 1\r\n\r\n",
         "abc", 0},
        {"HTTP/1.1 204 No Content\r\n" DATE "\r\n", "", 0},
        {"HTTP/1.1 200 OK\r\n" DATE "Content-Length: 5\r\n\r\nabc", "abc", -EPIPE},
        {"HTTP/1.1 200 OK\r\n" DATE "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", "ab", -EPIPE},
        {"HTTP/1.1 200 OK\r\n" DATE "Transfer-Encoding: chunked\r\n\r\nz\r\n", "", -EBADMSG},
        {"HTTP/1.1 200 OK\r\n" DATE "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", "",
         -EBADMSG},
        {"HTTP/1.1 200 OK\r\n" DATE "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "",
         -EBADMSG},
        {"SSH-2.0-x\r\n\r\n", "", -EBADMSG},
        {"HTTP/1.0 200 OK\r\n" DATE "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "", -EBADMSG},
        {"HTTP/1.1 200 OK\r\n" DATE "Transfer-Encoding: gzip, chunked\r\n\r\n", "", -EBADMSG},
        {"HTTP/1.1 200 OK\r\n" DATE "Content-Length: -1\r\n\r\n", "", -EBADMSG},
        {"HTTP/1.1 200 OK\r\n" DATE "Content-Length: 2, 2\r\n\r\nab", "", -EBADMSG},
        {"HTTP/1.1 200 OK\r\n" DATE "X: a\rHTTP/1.1 200 OK\r\n\r\n", "", -EBADMSG},
        {"HTTP/1.1 200 OK\r\n" DATE "X: a\n\nHTTP/1.1 200 OK\r\n\r\n", "", -EBADMSG},
        {"HTTP/1.1 200 OK\r\n" DATE " folded\r\n\r\n", "", -EBADMSG},
        {"HTTP/1.1 200 OK\r\n" DATE "X : a\r\n\r\n", "", -EBADMSG},
        {"HTTP/1.1 101 Switching Protocols\r\n\r\n", "", -EBADMSG},
        {"HTTP/1.1 099 Odd\r\n\r\n", "", -EBADMSG},
        {"HTTP/2 200\r\n\r\n", "", -EBADMSG},
        {"HTTP/1.1 200 OK\r\n" DATE "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\nab", "",
         -EBADMSG},
        {"HTTP/1.1 200 OK\r\n" DATE "Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n", "ab",
         -EBADMSG},
        {"HTTP/1.1 204 No Content\r\n" DATE "Content-Length: 5\r\n\r\nHTTP/", "", 0},
        {"HTTP/1.1 20 OK\r\n\r\n", "", -EBADMSG},
        {"HTTP/1.1 200 OK\nA: b\n\n", "", -EBADMSG},
        {"", "", -EPIPE},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct script s = {.n_conns = 1, .answers = {{table[i].answer}}};
        pthread_t t;
        char address[64];
        script_start(&s, &t, address);
        struct fix f;
        fix_init(&f, address);
        start(&f, 0, "GET", "/", NULL);
        run(&f);
        if (f.calls[0].end != table[i].end)
            test_fail(__FILE__, __LINE__, "row %zu: end %d, not %d", i, f.calls[0].end,
                      table[i].end);
        ASSERT_STREQ(buf_cstr(&f.calls[0].body), table[i].body);
        pthread_join(t, NULL);
        close(s.listen_fd);
        fix_fini(&f);
    }
}

/* An upstream that never comes to the point. */
TEST(floods_before_the_answer)
{
    struct buf flood = BUF_INIT;
    for (int kind = 0; kind < 2; kind++) {
        buf_clear(&flood);
        if (kind == 1) ASSERT_OK(buf_adds(&flood, "HTTP/1.1 200 OK\r\n"));
        for (int i = 0; i < 3000; i++)
            ASSERT_OK(buf_adds(&flood, kind == 0 ? "HTTP/1.1 103 Early Hints\r\n\r\n"
                                                 : "X-Header: and another one, and on and on\r\n"));
        struct script s = {.n_conns = 1, .answers = {{buf_cstr(&flood)}}};
        pthread_t t;
        char address[64];
        script_start(&s, &t, address);
        struct fix f;
        fix_init(&f, address);
        start(&f, 0, "GET", "/", NULL);
        run(&f);
        ASSERT_EQ(f.calls[0].end, -EBADMSG);
        pthread_join(t, NULL);
        close(s.listen_fd);
        fix_fini(&f);
    }
    buf_fini(&flood);
}

static void *post_many(void *arg)
{
    struct fix *f = arg;
    for (int i = 0; i < 20000;) /* the ring is smaller: full is an answer, not a loss */
        if (http_loop_post(f->loop, (void (*)(void *))stop_waiting, f) == 0) i++;
    return NULL;
}

TEST(posts_from_threads_all_arrive)
{
    struct fix f;
    fix_init(&f, NULL);
    f.n_open = 60000;
    pthread_t t[3];
    for (int i = 0; i < 3; i++)
        ASSERT_EQ(pthread_create(&t[i], NULL, post_many, &f), 0);
    run(&f);
    for (int i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
    ASSERT_EQ(f.n_open, 0);
    fix_fini(&f);
}

TEST(unix_socket_and_stale_file)
{
    char path[] = "/tmp/kvblend-test-XXXXXX";
    ASSERT_TRUE(mkdtemp(path) != NULL);
    char address[80], file[64];
    (void)snprintf(file, sizeof file, "%s/s", path);
    (void)snprintf(address, sizeof address, "unix:%s", file);
    struct fix f;
    fix_init(&f, address);
    struct err err = {0};
    ASSERT_OK(http_server_listen(f.server, address, NULL, &err));
    ASSERT_ERR(http_server_listen(f.server, address, NULL, &err), -EADDRINUSE); /* it is alive */
    start(&f, 0, "POST", "/echo", "over unix");
    run(&f);
    ASSERT_STREQ(buf_cstr(&f.calls[0].body), "over unix");
    ASSERT_STREQ(f.peers[0], "unix");
    fix_fini(&f);
    ASSERT_TRUE(access(file, F_OK) != 0);
    /* A socket file whose server died. */
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    struct {
        sa_family_t family;
        char path[108];
    } un = {.family = AF_UNIX};
    (void)snprintf(un.path, sizeof un.path, "%s", file);
    ASSERT_EQ(bind(fd, (struct sockaddr *)&un, sizeof un), 0);
    close(fd);
    ASSERT_EQ(access(file, F_OK), 0);
    fix_init(&f, NULL);
    ASSERT_OK(http_server_listen(f.server, address, NULL, &err));
    fix_fini(&f);
    (void)rmdir(path);
}

/* Whatever allocation fails, on either side: the call ends once (or never starts), nothing leaks,
 * and the next call works. */
TEST(every_allocation_may_fail)
{
    static char body[5000];
    memset(body, 'b', sizeof body - 1);
    for (unsigned n = 1;; n++) {
        static const struct http_call_ops ops = {on_head, on_body, on_end};
        struct fix f;
        fix_init(&f, NULL);
        f.tolerant = true;
        struct one_call *c = &f.calls[0];
        c->f = &f;
        f.n_open = 1;
        mem_fail_nth(n);
        const struct http_request q = {
            .method = "POST", .target = "/echo", .body = body, .len = strlen(body)};
        int r = http_call_start(f.client, &q, &ops, c, &c->call);
        if (r == 0) run(&f);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        ASSERT_EQ(c->n_ends, r == 0);
        ASSERT_TRUE(fired || (c->end == 0 && c->status == 200));
        f.n_open = 0;
        start(&f, 1, "POST", "/echo", "after");
        run(&f);
        ASSERT_EQ(f.calls[1].end, 0);
        ASSERT_STREQ(buf_cstr(&f.calls[1].body), "after");
        fix_fini(&f);
        if (!fired) break;
    }
}
