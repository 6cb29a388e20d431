/* TLS on both sides: client and server in one loop, and raw OpenSSL peers in threads for what ours
 * would never do. */
#include "base/net/http.h"
#include "base/net/http_server_int.h"
#include "base/net/http_tls.c" /* its counters */

#include "tests/test.h"
#include "tests/unit/base/tls_certs.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/stat.h>

enum { CALLS = 40 };
static const long day = 86400;

struct fix;
struct one_call {
    struct fix *f;
    struct http_call *call;
    struct buf body;
    int status, end, n_ends;
    bool sent, pause_once;
    char why[240];
};
struct fix {
    struct http_loop *loop;
    struct http_server *server;
    struct http_client *client;
    struct http_tls *server_tls, *client_tls;
    struct http_timer guard;
    struct one_call calls[CALLS];
    char dir[64], path[8][128], address[64];
    int n_open, n_requests;
    unsigned keepalive_ms, connect_ms;
    size_t big_left;
    bool timed_out, tolerant;
};

/* "NAME.pem" in the fixture's folder; borrowed until the eighth call after this one. */
static const char *file(struct fix *f, const char *name)
{
    static int i;
    char *p = f->path[i++ % 8];
    (void)snprintf(p, sizeof f->path[0], "%s/%s.pem", f->dir, name);
    return p;
}

/* ---- the server's side ---- */

static void pump_big(struct fix *f, struct http_req *r)
{
    static char block[50000];
    memset(block, 'x', sizeof block);
    while (f->big_left > 0) {
        size_t n = f->big_left < sizeof block ? f->big_left : sizeof block;
        f->big_left -= n;
        if (http_reply_write(r, block, n) == 1) return;
    }
    (void)http_reply_end(r);
}

static void on_request(void *ctx, struct http_req *r)
{
    struct fix *f = ctx;
    size_t len;
    const char *body = http_req_body(r, &len), *path = r->msg.path;
    f->n_requests++;
    if (strcmp(path, "/big") == 0) {
        f->big_left = 6u << 20;
        ASSERT_OK(http_reply_start(r, 200, "text/plain", NULL, -1));
        pump_big(f, r);
    } else if (strcmp(path, "/sse") == 0) {
        ASSERT_OK(http_sse_start(r, NULL));
        ASSERT_OK(http_reply_write(r, "data: {}\n\n", 10));
        ASSERT_OK(http_reply_end(r));
    } else if (strcmp(path, "/cut") == 0) {
        ASSERT_OK(http_reply_start(r, 200, "text/plain", NULL, -1));
        ASSERT_OK(http_reply_write(r, "half", 4));
        http_reply_abort(r);
    } else {
        int e = http_reply(r, 200, "text/plain", NULL, body, len);
        ASSERT_TRUE(e == 0 || f->tolerant);
    }
}

static void on_close(void *ctx, struct http_req *r, bool aborted)
{
}

static void on_drain(void *ctx, struct http_req *r)
{
    pump_big(ctx, r);
}

static void on_guard(void *arg)
{
    struct fix *f = arg;
    f->timed_out = true;
    http_loop_stop(f->loop);
}

static void fix_init(struct fix *f)
{
    memset(f, 0, sizeof *f);
    (void)snprintf(f->dir, sizeof f->dir, "/tmp/kvblend-tls-XXXXXX");
    ASSERT_TRUE(mkdtemp(f->dir) != NULL);
    struct test_cert ca = cert_make(f->dir, "ca", NULL, NULL, -day, day);
    struct test_cert other = cert_make(f->dir, "other_ca", NULL, NULL, -day, day);
    struct test_cert c[] = {
        cert_make(f->dir, "good", "DNS:localhost,IP:127.0.0.1", &ca, -day, day),
        cert_make(f->dir, "expired", "DNS:localhost", &ca, -2 * day, -day),
        cert_make(f->dir, "not_yet", "DNS:localhost", &ca, day, 2 * day),
        cert_make(f->dir, "elsewhere", "DNS:else.where,IP:10.0.0.1", &ca, -day, day),
        cert_make(f->dir, "stranger", "DNS:localhost", &other, -day, day),
        cert_make(f->dir, "self", "DNS:localhost", NULL, -day, day),
        cert_make(f->dir, "user", "DNS:user", &ca, -day, day),
    };
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++)
        cert_free(&c[i]);
    cert_free(&ca);
    cert_free(&other);
    ASSERT_OK(http_loop_create(&f->loop));
    http_timer_init(&f->guard, f->loop, on_guard, f);
}

static void serve(struct fix *f, const char *cert, const char *client_ca,
                  const struct http_limits *lim)
{
    static const struct http_server_ops ops = {
        .on_request = on_request, .on_close = on_close, .on_drain = on_drain};
    struct http_tls_opts o = {.cert_file = file(f, cert),
                              .ca_file = client_ca ? file(f, client_ca) : NULL,
                              .server = true};
    struct err err = {0};
    ASSERT_OK(http_tls_create(&o, &f->server_tls, &err));
    ASSERT_OK(http_server_create(f->loop, lim, &ops, f, &f->server));
    struct http_listen_opts lo = {.tls = f->server_tls};
    ASSERT_OK(http_server_listen(f->server, "127.0.0.1:0", &lo, &err));
    (void)snprintf(f->address, sizeof f->address, "127.0.0.1:%d", http_server_port(f->server));
}

static void connect_as(struct fix *f, const char *host, const struct http_tls_opts *o)
{
    struct err err = {0};
    http_client_destroy(f->client);
    http_tls_unref(f->client_tls);
    ASSERT_OK(http_tls_create(o, &f->client_tls, &err));
    struct http_client_opts co = {.address = f->address,
                                  .host = host,
                                  .tls = f->client_tls,
                                  .conns_max = 4,
                                  .keepalive_ms = f->keepalive_ms,
                                  .connect_timeout_ms = f->connect_ms};
    ASSERT_OK(http_client_create(f->loop, &co, &f->client));
}

static void connect_plainly(struct fix *f)
{
    struct http_tls_opts o = {.ca_file = file(f, "ca")};
    connect_as(f, "localhost", &o);
}

static void fix_fini(struct fix *f)
{
    http_client_destroy(f->client);
    http_server_destroy(f->server);
    http_tls_unref(f->server_tls);
    http_tls_unref(f->client_tls);
    http_timer_fini(&f->guard);
    http_loop_destroy(f->loop);
    for (int i = 0; i < CALLS; i++)
        buf_fini(&f->calls[i].body);
    DIR *d = opendir(f->dir);
    for (struct dirent *e; d && (e = readdir(d));)
        (void)unlinkat(dirfd(d), e->d_name, 0);
    (void)closedir(d);
    (void)rmdir(f->dir);
}

/* ---- the client's side ---- */

static void on_head(void *ctx, int status, const struct http_head *h)
{
    struct one_call *c = ctx;
    c->status = status;
}

static void resume(void *arg)
{
    struct one_call *c = arg;
    http_call_pause(c->call, false);
}

static void on_body(void *ctx, const char *data, size_t len)
{
    struct one_call *c = ctx;
    int r = buf_add(&c->body, data, len);
    ASSERT_TRUE(r == 0 || c->f->tolerant);
    if (c->pause_once) {
        c->pause_once = false;
        http_call_pause(c->call, true);
        ASSERT_OK(http_loop_post(c->f->loop, resume, c));
    }
}

static void on_end(void *ctx, int status)
{
    struct one_call *c = ctx;
    c->end = status;
    c->sent = http_call_sent(c->call);
    c->n_ends++;
    (void)snprintf(c->why, sizeof c->why, "%s", http_call_why(c->call));
    if (--c->f->n_open == 0) http_loop_stop(c->f->loop);
}

static void run(struct fix *f)
{
    http_timer_set(&f->guard, 60000);
    ASSERT_OK(http_loop_run(f->loop));
    ASSERT_TRUE(!f->timed_out);
}

static struct one_call *ask(struct fix *f, int i, const char *target, const void *body, size_t len)
{
    static const struct http_call_ops ops = {on_head, on_body, on_end};
    struct one_call *c = &f->calls[i];
    buf_clear(&c->body);
    c->f = f;
    f->n_open++;
    const struct http_request q = {.method = "POST", .target = target, .body = body, .len = len};
    ASSERT_OK(http_call_start(f->client, &q, &ops, c, &c->call));
    return c;
}

static struct one_call *ask_and_wait(struct fix *f, const char *target)
{
    struct one_call *c = ask(f, 0, target, "hello", 5);
    run(f);
    return c;
}

/* ---- what must work ---- */

TEST(verified_exchange_over_one_connection)
{
    struct fix f;
    fix_init(&f);
    serve(&f, "good", NULL, NULL);
    connect_plainly(&f);
    for (int i = 0; i < 3; i++) {
        struct one_call *c = ask_and_wait(&f, "/echo");
        ASSERT_EQ(c->end, 0);
        ASSERT_STREQ(buf_cstr(&c->body), "hello");
        ASSERT_STREQ(c->why, "");
    }
    ASSERT_EQ(SSL_CTX_sess_accept_good(f.server_tls->ctx), 1);
    struct one_call *c = ask_and_wait(&f, "/sse");
    ASSERT_STREQ(buf_cstr(&c->body), "data: {}\n\n");
    struct http_tls_opts o = {.ca_file = file(&f, "ca")};
    connect_as(&f, NULL, &o); /* the address is the name: an IP address in the certificate */
    ASSERT_EQ(ask_and_wait(&f, "/echo")->end, 0);
    connect_as(&f, "localhost:443", &o);
    ASSERT_EQ(ask_and_wait(&f, "/echo")->end, 0);
    fix_fini(&f);
}

TEST(big_bodies_both_ways_at_once)
{
    enum { BYTES = 3 << 20 };
    struct fix f;
    fix_init(&f);
    serve(&f, "good", NULL, NULL);
    connect_plainly(&f);
    char *body = mem_alloc(BYTES);
    uint64_t seed = 5;
    for (size_t i = 0; i < BYTES; i++)
        body[i] = (char)test_rand(&seed);
    for (int i = 0; i < 3; i++)
        (void)ask(&f, i, "/echo", body, BYTES);
    run(&f);
    for (int i = 0; i < 3; i++) {
        ASSERT_EQ(f.calls[i].end, 0);
        ASSERT_EQ(f.calls[i].body.len, BYTES);
        ASSERT_MEMEQ(f.calls[i].body.data, body, BYTES);
    }
    f.calls[0].pause_once = true;
    struct one_call *c = ask_and_wait(&f, "/big"); /* with back-pressure on both sides */
    ASSERT_EQ(c->end, 0);
    ASSERT_EQ(c->body.len, 6u << 20);
    mem_free(body);
    fix_fini(&f);
}

TEST(many_calls_and_resumed_sessions)
{
    struct fix f;
    fix_init(&f);
    serve(&f, "good", NULL, NULL);
    connect_plainly(&f);
    ASSERT_EQ(ask_and_wait(&f, "/echo")->end, 0);
    for (int i = 0; i < CALLS; i++) /* three more connections, with the first one's ticket */
        (void)ask(&f, i, "/echo", "body", 4);
    run(&f);
    for (int i = 0; i < CALLS; i++) {
        ASSERT_EQ(f.calls[i].end, 0);
        ASSERT_STREQ(buf_cstr(&f.calls[i].body), "body");
    }
    ASSERT_EQ(SSL_CTX_sess_accept_good(f.server_tls->ctx), 4);
    ASSERT_EQ(SSL_CTX_sess_hits(f.server_tls->ctx), 3);
    fix_fini(&f);
}

TEST(client_certificates)
{
    struct fix f;
    fix_init(&f);
    serve(&f, "good", "ca", NULL);
    struct http_tls_opts with = {.ca_file = file(&f, "ca"), .cert_file = file(&f, "user")};
    connect_as(&f, "localhost", &with);
    ASSERT_EQ(ask_and_wait(&f, "/echo")->end, 0);
    connect_plainly(&f);
    struct one_call *c = ask_and_wait(&f, "/echo");
    ASSERT_EQ(c->end, -EPROTO);
    ASSERT_TRUE(strstr(c->why, "certificate required") != NULL);
    struct http_tls_opts wrong = {.ca_file = file(&f, "ca"), .cert_file = file(&f, "stranger")};
    connect_as(&f, "localhost", &wrong);
    ASSERT_EQ(ask_and_wait(&f, "/echo")->end, -EPROTO);
    ASSERT_EQ(f.n_requests, 1);
    fix_fini(&f);
}

/* ---- what must not ---- */

TEST(bad_certificates_are_refused_with_a_reason)
{
    static const struct {
        const char *cert, *host, *why;
    } table[] = {
        {"expired", "localhost", "expired"},
        {"not_yet", "localhost", "not yet valid"},
        {"elsewhere", "localhost", "ostname mismatch"},
        {"elsewhere", "127.0.0.1:1", "IP address mismatch"},
        {"stranger", "localhost", "unable to get local issuer"},
        {"self", "localhost", "self-signed certificate"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct fix f;
        fix_init(&f);
        serve(&f, table[i].cert, NULL, NULL);
        struct http_tls_opts o = {.ca_file = file(&f, "ca")};
        connect_as(&f, table[i].host, &o);
        struct one_call *c = ask_and_wait(&f, "/echo");
        ASSERT_EQ(c->end, -EPROTO);
        ASSERT_TRUE(!c->sent);
        if (!strstr(c->why, table[i].why)) test_fail(__FILE__, __LINE__, "row %zu: %s", i, c->why);
        ASSERT_EQ(f.n_requests, 0);
        o.insecure = true;
        connect_as(&f, table[i].host, &o);
        ASSERT_EQ(ask_and_wait(&f, "/echo")->end, 0);
        fix_fini(&f);
    }
}

TEST(files_that_cannot_be_used)
{
    struct fix f;
    fix_init(&f);
    char junk[128];
    (void)snprintf(junk, sizeof junk, "%s/junk.pem", f.dir);
    FILE *out = fopen(junk, "w");
    ASSERT_TRUE(out != NULL);
    (void)fputs("no certificate\n", out);
    (void)fclose(out);
    struct http_tls_opts bad[] = {
        {.cert_file = junk},
        {.cert_file = "/nonexistent/file"},
        {.cert_file = file(&f, "good"), .key_file = file(&f, "user")},
        {.cert_file = file(&f, "good"), .key_file = "/nonexistent/key"},
        {.cert_file = file(&f, "good"), .ca_file = junk},
        {0},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct http_tls *t = NULL;
        struct err err = {0};
        bad[i].server = true;
        ASSERT_ERR(http_tls_create(&bad[i], &t, &err), -EINVAL);
        ASSERT_TRUE(err.msg[0] && !t);
    }
    struct http_tls *t = NULL;
    struct err err = {0};
    struct http_tls_opts o = {.ca_file = junk};
    ASSERT_ERR(http_tls_create(&o, &t, &err), -EINVAL);
    fix_fini(&f);
}

static void poll_connections(void *arg)
{
    struct fix *f = arg;
    if (f->server->n_conns == 0)
        http_loop_stop(f->loop);
    else
        ASSERT_OK(http_loop_post(f->loop, poll_connections, f));
}

static void wait_for_no_connection(struct fix *f)
{
    ASSERT_OK(http_loop_post(f->loop, poll_connections, f));
    run(f);
}

TEST(reload_renews_or_keeps)
{
    struct fix f;
    fix_init(&f);
    char live[128], broken[128];
    (void)snprintf(live, sizeof live, "%s/live.pem", f.dir);
    ASSERT_EQ(link(file(&f, "expired"), live), 0);
    serve(&f, "live", NULL, NULL);
    f.keepalive_ms = 1;
    connect_plainly(&f);
    ASSERT_EQ(ask_and_wait(&f, "/echo")->end, -EPROTO);
    struct err err = {0};
    ASSERT_EQ(unlink(live), 0);
    ASSERT_ERR(http_tls_reload(f.server_tls, &err), -EINVAL); /* the old one stays */
    ASSERT_EQ(ask_and_wait(&f, "/echo")->end, -EPROTO);
    ASSERT_EQ(link(file(&f, "good"), live), 0);
    ASSERT_OK(http_tls_reload(f.server_tls, &err));
    ASSERT_EQ(ask_and_wait(&f, "/echo")->end, 0);
    /* The client's side: sessions of before do not skip the new verification. */
    (void)snprintf(broken, sizeof broken, "%s/ca.pem", f.dir);
    ASSERT_EQ(unlink(broken), 0);
    ASSERT_EQ(link(file(&f, "other_ca"), broken), 0);
    ASSERT_OK(http_tls_reload(f.client_tls, &err));
    wait_for_no_connection(&f);
    struct one_call *c = ask_and_wait(&f, "/echo");
    ASSERT_EQ(c->end, -EPROTO);
    ASSERT_TRUE(strstr(c->why, "unable to get local issuer") != NULL);
    fix_fini(&f);
}

/* ---- raw peers ---- */

static SSL_CTX *raw_ctx(struct fix *f, bool server)
{
    SSL_CTX *ctx = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());
    ASSERT_TRUE(ctx != NULL);
    if (server) {
        ASSERT_EQ(SSL_CTX_use_certificate_chain_file(ctx, file(f, "good")), 1);
        ASSERT_EQ(SSL_CTX_use_PrivateKey_file(ctx, file(f, "good"), SSL_FILETYPE_PEM), 1);
    }
    return ctx;
}

enum raw_end { RAW_CUT, RAW_NOTIFY, RAW_NOTIFY_AND_STAY, RAW_STALL, RAW_CLOSE_EARLY };
struct raw_server {
    SSL_CTX *ctx;
    const char *answer;
    enum raw_end end;
    int listen_fd, stop[2];
    pthread_t thread;
};

static void *raw_server_main(void *arg)
{
    struct raw_server *s = arg;
    int fd = accept(s->listen_fd, NULL, NULL);
    char in[4096];
    SSL *ssl = SSL_new(s->ctx);
    (void)SSL_set_fd(ssl, fd);
    if (s->end < RAW_STALL && SSL_accept(ssl) == 1 && SSL_read(ssl, in, sizeof in) > 0) {
        (void)SSL_write(ssl, s->answer, (int)strlen(s->answer));
        if (s->end != RAW_CUT) (void)SSL_shutdown(ssl);
    }
    ssize_t over = 0;
    if (s->end == RAW_NOTIFY_AND_STAY || s->end == RAW_STALL)
        over = read(s->stop[0], in, 1); /* until the test is over */
    (void)over;
    SSL_free(ssl);
    (void)close(fd);
    return NULL;
}

static void raw_server_start(struct fix *f, struct raw_server *s)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof in;
    s->ctx = raw_ctx(f, true);
    s->listen_fd = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(bind(s->listen_fd, (struct sockaddr *)&in, len), 0);
    ASSERT_EQ(listen(s->listen_fd, 8), 0);
    ASSERT_EQ(getsockname(s->listen_fd, (struct sockaddr *)&in, &len), 0);
    ASSERT_EQ(pipe(s->stop), 0);
    (void)snprintf(f->address, sizeof f->address, "127.0.0.1:%d", ntohs(in.sin_port));
    ASSERT_EQ(pthread_create(&s->thread, NULL, raw_server_main, s), 0);
}

static void raw_server_stop(struct raw_server *s)
{
    (void)close(s->stop[1]);
    pthread_join(s->thread, NULL);
    (void)close(s->stop[0]);
    (void)close(s->listen_fd);
    SSL_CTX_free(s->ctx);
}

TEST(a_cut_connection_is_no_end)
{
    static const char until_close[] = "HTTP/1.1 200 OK\r\n\r\nall of it";
    static const char sized[] = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nall of it";
    static const struct {
        const char *answer;
        enum raw_end how;
        int end, timeout_ms;
    } table[] = {
        {until_close, RAW_NOTIFY, 0, 0},     {until_close, RAW_NOTIFY_AND_STAY, 0, 0},
        {until_close, RAW_CUT, -EPIPE, 0},   {sized, RAW_CUT, 0, 0},
        {sized, RAW_NOTIFY, 0, 0},           {sized, RAW_STALL, -ETIMEDOUT, 100},
        {sized, RAW_CLOSE_EARLY, -EPIPE, 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct fix f;
        fix_init(&f);
        struct raw_server s = {.answer = table[i].answer, .end = table[i].how};
        raw_server_start(&f, &s);
        f.connect_ms = (unsigned)table[i].timeout_ms;
        connect_plainly(&f);
        struct one_call *c = ask_and_wait(&f, "/");
        if (c->end != table[i].end)
            test_fail(__FILE__, __LINE__, "row %zu: %d (%s)", i, c->end, c->why);
        ASSERT_EQ(c->sent, table[i].how < RAW_STALL);
        if (table[i].end != -ETIMEDOUT) ASSERT_TRUE(!c->why[0] == (c->end == 0));
        if (c->sent) ASSERT_STREQ(buf_cstr(&c->body), "all of it");
        raw_server_stop(&s);
        fix_fini(&f);
    }
}

/* Pass bytes one by one: every record and message is met half. */
struct drip {
    int listen_fd, to_port;
    pthread_t thread;
};

static void *drip_main(void *arg)
{
    struct drip *d = arg;
    struct sockaddr_in in = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)d->to_port)};
    int one = 1, fd[2] = {accept(d->listen_fd, NULL, NULL), socket(AF_INET, SOCK_STREAM, 0)};
    bool open = connect(fd[1], (struct sockaddr *)&in, sizeof in) == 0;
    for (int i = 0; i < 2; i++)
        (void)setsockopt(fd[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    while (open) {
        struct pollfd p[2] = {{fd[0], POLLIN, 0}, {fd[1], POLLIN, 0}};
        open = poll(p, 2, 30000) > 0;
        for (int i = 0; i < 2 && open; i++) {
            char byte;
            if (!p[i].revents) continue;
            open = recv(fd[i], &byte, 1, 0) == 1 && send(fd[!i], &byte, 1, MSG_NOSIGNAL) == 1;
        }
    }
    (void)close(fd[0]);
    (void)close(fd[1]);
    return NULL;
}

TEST(byte_by_byte)
{
    struct fix f;
    fix_init(&f);
    serve(&f, "good", "ca", NULL);
    struct drip d = {.to_port = http_server_port(f.server)};
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof in;
    d.listen_fd = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(bind(d.listen_fd, (struct sockaddr *)&in, len), 0);
    ASSERT_EQ(listen(d.listen_fd, 1), 0);
    ASSERT_EQ(getsockname(d.listen_fd, (struct sockaddr *)&in, &len), 0);
    ASSERT_EQ(pthread_create(&d.thread, NULL, drip_main, &d), 0);
    (void)snprintf(f.address, sizeof f.address, "127.0.0.1:%d", ntohs(in.sin_port));
    struct http_tls_opts o = {.ca_file = file(&f, "ca"), .cert_file = file(&f, "user")};
    f.connect_ms = 30000;
    connect_as(&f, "localhost", &o);
    for (int i = 0; i < 2; i++) {
        struct one_call *c = ask_and_wait(&f, "/echo");
        ASSERT_EQ(c->end, 0);
        ASSERT_STREQ(buf_cstr(&c->body), "hello");
    }
    ASSERT_EQ(ask_and_wait(&f, "/cut")->end, -EPIPE);
    http_client_destroy(f.client);
    f.client = NULL;
    pthread_join(d.thread, NULL);
    (void)close(d.listen_fd);
    fix_fini(&f);
}

/* A client that says what it likes; the loop runs while it talks. */
struct raw_client {
    struct fix *f;
    SSL_CTX *ctx;
    const char *alpn, *first; /* offered; sent before any handshake */
    int pieces, port, max_version;
    bool ok; /* the handshake */
    char answer[8192];
};

static void *raw_client_main(void *arg)
{
    static const char request[] =
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsecond";
    struct raw_client *r = arg;
    struct sockaddr_in in = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)r->port)};
    struct timeval tv = {.tv_sec = 20};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    (void)connect(fd, (struct sockaddr *)&in, sizeof in);
    SSL *ssl = SSL_new(r->ctx);
    (void)SSL_set_fd(ssl, fd);
    if (r->max_version) (void)SSL_set_max_proto_version(ssl, r->max_version);
    if (r->alpn)
        (void)SSL_set_alpn_protos(ssl, (const unsigned char *)r->alpn, (unsigned)strlen(r->alpn));
    size_t have = 0;
    ssize_t n;
    if (r->first) {
        (void)send(fd, r->first, strlen(r->first), MSG_NOSIGNAL);
        while ((n = recv(fd, r->answer + have, sizeof r->answer - 1 - have, 0)) > 0)
            have += (size_t)n;
    } else if (SSL_connect(ssl) == 1) {
        r->ok = true;
        int step = (int)(sizeof request - 1) / r->pieces;
        for (int at = 0, len; at < (int)sizeof request - 1; at += len) {
            len = (int)sizeof request - 1 - at < step ? (int)sizeof request - 1 - at : step;
            (void)SSL_write(ssl, request + at, len);
        }
        while ((n = SSL_read(ssl, r->answer + have, (int)(sizeof r->answer - 1 - have))) > 0)
            have += (size_t)n;
        if (SSL_get_error(ssl, (int)n) != SSL_ERROR_ZERO_RETURN) r->ok = false; /* cut */
    }
    SSL_free(ssl);
    (void)close(fd);
    http_loop_stop(r->f->loop);
    return NULL;
}

TEST(raw_clients)
{
    struct raw_client table[] = {
        {.pieces = 1}, /* pipelined in one record, and in one record a byte */
        {.pieces = 120},
        {.pieces = 1, .alpn = "\x02h2\x08http/1.1"},
        {.pieces = 1, .alpn = "\x02h2"},
        {.pieces = 1, .max_version = TLS1_2_VERSION},
        {.pieces = 1, .max_version = TLS1_1_VERSION},
        {.first = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"},
        {.first = "\x16\x03\x01 no such handshake message, and rather a long one at that"},
        {.first = "\x16\x03"}, /* and then nothing: the head timeout */
    };
    static const bool good[] = {true, true, true, false, true, false, false, false, false};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct fix f;
        fix_init(&f);
        struct http_limits lim = {.head_timeout_ms = i >= 7 ? 100 : 10000};
        serve(&f, "good", NULL, &lim);
        struct raw_client *r = &table[i];
        pthread_t t;
        r->f = &f;
        r->port = http_server_port(f.server);
        r->ctx = raw_ctx(&f, false);
        ASSERT_EQ(pthread_create(&t, NULL, raw_client_main, r), 0);
        run(&f);
        pthread_join(t, NULL);
        if (r->ok != good[i]) test_fail(__FILE__, __LINE__, "row %zu: %d", i, r->ok);
        ASSERT_EQ(f.n_requests, good[i] ? 2 : 0);
        ASSERT_EQ(strstr(r->answer, "body") && strstr(r->answer, "second"), good[i]);
        ASSERT_EQ(strstr(r->answer, "400 Bad Request") != NULL, i == 6);
        SSL_CTX_free(r->ctx);
        fix_fini(&f);
    }
}

TEST(allocations_may_fail)
{
    for (unsigned n = 1, quiet = 0; quiet < 3; n++) {
        struct fix f;
        fix_init(&f);
        serve(&f, "good", NULL, NULL);
        connect_plainly(&f);
        f.tolerant = true;
        mem_fail_nth(n);
        static const struct http_call_ops ops = {on_head, on_body, on_end};
        struct one_call *c = &f.calls[0];
        c->f = &f;
        f.n_open = 1;
        const struct http_request q = {.method = "POST", .target = "/echo", .body = "x", .len = 1};
        int r = http_call_start(f.client, &q, &ops, c, &c->call);
        if (r == 0) run(&f);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        ASSERT_EQ(c->n_ends, r == 0);
        ASSERT_TRUE(fired || (c->end == 0 && c->status == 200));
        quiet += !fired;
        f.n_open = 0;
        ASSERT_EQ(ask_and_wait(&f, "/echo")->end, 0);
        fix_fini(&f);
    }
}
