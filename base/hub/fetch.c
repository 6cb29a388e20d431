#include "base/hub/fetch.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/net/http.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { TRIES = 4, HOPS_MAX = 10, HOST_MAX = 260 };
enum { CONNECT_MS = 10000, ANSWER_MS = 60000, SILENCE_MS = 60000 };

struct url {
    bool tls;
    char host[HOST_MAX];    /* as in the Host header */
    char address[HOST_MAX]; /* with its port */
    struct buf target;
};

struct hub_http {
    struct http_loop *loop;
    struct http_tls *tls;
    struct url endpoint;
    struct buf headers, token; /* of each request; of those to the endpoint also */
};

/* One exchange with one server, and how it ended. */
struct exchange {
    struct hub_http *h;
    struct hub_get *g;
    struct http_call *call;
    int status;          /* HTTP's; 0: there was no answer */
    int own, net;        /* what the caller's functions said; what the connection did */
    bool reads, is_long; /* the body is what was asked for; and longer than that */
    struct buf location; /* of a redirect */
    char why[120];
};

/* ---- URLs ---- */

/* The authority of n bytes: a name or address, and a port or the scheme's own. */
static bool set_host(struct url *u, const char *s, size_t n)
{
    const char *end = s + n, *port = end;
    if (n == 0 || n + sizeof ":443" > HOST_MAX) return false;
    for (const char *p = s; p < end; p++)
        if ((unsigned char)*p <= ' ' || *p >= 0x7f || strchr("@\\,", *p)) return false;
    while (port > s && port[-1] >= '0' && port[-1] <= '9')
        port--;
    const bool has_port =
        port > s && port < end && port[-1] == ':' && (*s != '[' || port[-2] == ']');
    (void)snprintf(u->host, sizeof u->host, "%.*s", (int)n, s);
    (void)snprintf(u->address, sizeof u->address, "%.*s%s", (int)n, s,
                   has_port ? ""
                   : u->tls ? ":443"
                            : ":80");
    return true;
}

/* A path and query; a fragment is not sent. */
static int set_target(struct url *u, const char *s)
{
    for (const char *p = s; *p; p++)
        if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 0x7f) return -EINVAL;
    buf_clear(&u->target);
    if (*s != '/') (void)buf_addc(&u->target, '/');
    (void)buf_add(&u->target, s, strcspn(s, "#"));
    return buf_status(&u->target);
}

/* An absolute one, or one within the site of *u, which is replaced. -EINVAL, -ENOMEM. */
static int go_to(struct url *u, const char *s)
{
    const bool is_https = strncmp(s, "https://", 8) == 0, is_http = strncmp(s, "http://", 7) == 0;
    if (*s == '/' && s[1] != '/') return set_target(u, s);
    if (!is_https && !is_http && *s != '/') return -EINVAL;
    if (*s != '/') u->tls = is_https;
    s = strstr(s, "//") + 2;
    const size_t n = strcspn(s, "/?#");
    return set_host(u, s, n) ? set_target(u, s + n) : -EINVAL;
}

static bool same_site(const struct url *a, const struct url *b)
{
    return a->tls == b->tls && strcasecmp(a->address, b->address) == 0;
}

static int copy_site(struct url *to, const struct url *from)
{
    *to = (struct url){.tls = from->tls};
    memcpy(to->host, from->host, sizeof to->host);
    memcpy(to->address, from->address, sizeof to->address);
    return buf_add(&to->target, from->target.data, from->target.len);
}

/* ---- life ---- */

int hub_http_create(const char *endpoint, const char *token, struct hub_http **ret, struct err *err)
{
    struct hub_http *h = mem_zalloc(sizeof *h);
    if (!h) return err_set(err, -ENOMEM, "out of memory");
    int r = *endpoint == '/' || strchr(endpoint, '?') ? -EINVAL : go_to(&h->endpoint, endpoint);
    if (r == -EINVAL)
        (void)err_set(err, r, "\"%.100s\" is no address of a hub: expected https://HOST", endpoint);
    while (r == 0 && h->endpoint.target.len > 0 &&
           h->endpoint.target.data[h->endpoint.target.len - 1] == '/')
        h->endpoint.target.len--;
    if (r == 0) r = http_loop_create(&h->loop);
    if (r == 0) r = http_tls_create(&(struct http_tls_opts){0}, &h->tls, err);
    if (r == 0) r = http_header_add(&h->headers, "User-Agent", "kvblend/" KV_VERSION);
    if (r == 0) r = http_header_add(&h->headers, "Accept-Encoding", "identity");
    for (const char *p = token; r == 0 && p && *p; p++)
        if (*p <= ' ' || *p >= 0x7f)
            r = err_set(err, -EINVAL, "the token holds what no token may: a space, a line's end …");
    if (r == 0 && token && *token) r = buf_addf(&h->token, "Authorization: Bearer %s\r\n", token);
    if (r < 0) {
        if (err && !err->code) (void)err_set(err, r, "cannot start (%s)", err_name(r));
        hub_http_destroy(h);
        return r;
    }
    *ret = h;
    return 0;
}

void hub_http_destroy(struct hub_http *h)
{
    if (!h) return;
    http_tls_unref(h->tls);
    if (h->loop) http_loop_destroy(h->loop);
    buf_fini(&h->endpoint.target);
    buf_fini(&h->headers);
    if (h->token.data) explicit_bzero(h->token.data, h->token.cap);
    buf_fini(&h->token);
    mem_free(h);
}

/* ---- one exchange ---- */

static void stop(struct exchange *x)
{
    http_call_cancel(x->call);
    http_loop_stop(x->h->loop);
}

/* What the hub says in words, if it does, as text that may be shown. */
static void take_reason(struct exchange *x, const struct http_head *h)
{
    const char *s = http_header_find(h, "X-Error-Message");
    size_t n = 0;
    for (; s && *s && n + 1 < sizeof x->why; s++)
        x->why[n++] = (char)(*s < ' ' || *s == 0x7f ? ' ' : *s);
    x->why[n] = '\0';
}

/* Does a part begin where it should, and is it of that whole? */
static bool continues(const struct hub_get *g, const struct http_head *h)
{
    const char *range = http_header_find(h, "Content-Range");
    uint64_t from, to, size;
    if (!range || sscanf(range, "bytes %" SCNu64 "-%" SCNu64 "/%" SCNu64, &from, &to, &size) != 3)
        return false;
    return from == g->at && (g->size == UINT64_MAX || size == g->size);
}

static void on_head(void *ctx, int status, const struct http_head *h)
{
    struct exchange *x = ctx;
    struct hub_get *g = x->g;
    const char *to = http_header_find(h, "Location");
    x->status = status;
    if (status == 200) {
        if (g->at > 0) x->own = g->again(g->ctx);
        g->at = 0;
    }
    x->reads = x->own == 0 && (status == 200 || (status == 206 && continues(g, h)));
    if (x->reads) return;
    if (status >= 300 && status < 400 && to) x->own = buf_adds(&x->location, to);
    take_reason(x, h);
    stop(x);
}

static void on_body(void *ctx, const char *data, size_t n)
{
    struct exchange *x = ctx;
    struct hub_get *g = x->g;
    x->is_long = n > g->size - g->at;
    if (!x->is_long) x->own = g->data(g->ctx, data, n);
    if (x->is_long || x->own < 0)
        stop(x);
    else
        g->at += n;
}

static void on_end(void *ctx, int status)
{
    struct exchange *x = ctx;
    x->net = status;
    (void)snprintf(x->why, sizeof x->why, "%.110s", http_call_why(x->call));
    http_loop_stop(x->h->loop);
}

/* 0, or why the exchange could not begin. */
static int exchange(struct exchange *x, struct url *u)
{
    static const struct http_call_ops ops = {on_head, on_body, on_end};
    struct http_client *client = NULL;
    struct buf headers = BUF_INIT;
    const struct http_client_opts o = {.address = u->address,
                                       .host = u->host,
                                       .tls = u->tls ? x->h->tls : NULL,
                                       .conns_max = 1,
                                       .connect_timeout_ms = CONNECT_MS,
                                       .first_byte_timeout_ms = ANSWER_MS,
                                       .idle_timeout_ms = SILENCE_MS};
    (void)buf_add_buf(&headers, &x->h->headers);
    if (same_site(u, &x->h->endpoint)) (void)buf_add_buf(&headers, &x->h->token);
    if (x->g->at > 0) (void)buf_addf(&headers, "Range: bytes=%" PRIu64 "-\r\n", x->g->at);
    const struct http_request q = {
        .method = "GET", .target = buf_cstr(&u->target), .headers = buf_cstr(&headers)};
    int r = buf_status(&headers);
    if (r == 0) r = http_client_create(x->h->loop, &o, &client);
    if (r == 0) r = http_call_start(client, &q, &ops, x, &x->call);
    if (r == 0) r = http_loop_run(x->h->loop);
    if (client) http_client_destroy(client);
    if (headers.data) explicit_bzero(headers.data, headers.cap);
    buf_fini(&headers);
    return r < 0 ? r : 0;
}

/* ---- tries ---- */

static void wait_over(void *arg)
{
    http_loop_stop(arg);
}

static void pause_for(struct hub_http *h, unsigned ms)
{
    struct http_timer t = {0};
    http_timer_init(&t, h->loop, wait_over, h->loop);
    http_timer_set(&t, ms);
    (void)http_loop_run(h->loop);
    http_timer_fini(&t);
}

static bool is_busy(int status)
{
    return status == 408 || status == 429 || status >= 500;
}

/* A sentence for an answer that is none. */
static int say_refused(const struct exchange *x, const struct url *u, struct err *err)
{
    const char *said = x->why[0] ? x->why : "no reason given";
    if (x->status == 401 || x->status == 403)
        return err_set(err, -EACCES,
                       "%.60s refuses (status %d: %s); a private or gated model needs HF_TOKEN",
                       u->host, x->status, said);
    if (x->status == 404)
        return err_set(err, -ENOENT, "%.60s has no such thing (status 404: %s)", u->host, said);
    return err_set(err, -EBADMSG, "%.60s answers status %d: %s", u->host, x->status, said);
}

/* After an exchange: 1 follow x->location, 0 all is there, -EAGAIN try again, else an end. */
static int judge(const struct exchange *x, const struct url *u, struct err *err)
{
    struct hub_get *g = x->g;
    if (x->own < 0) return x->own;
    if (x->location.len > 0) return 1;
    if (x->is_long)
        return err_set(err, -EBADMSG, "%.60s sends more than the %" PRIu64 " bytes it spoke of",
                       u->host, g->size);
    if (x->reads && x->net == 0 && (g->size == UINT64_MAX || g->at == g->size)) return 0;
    if (x->status == 0 && x->net == -EPROTO)
        return err_set(err, -EIO, "no TLS with %.60s: %s", u->host, x->why);
    if (x->reads || x->status == 0)
        return err_set(err, -EAGAIN, "no whole answer from %.60s (%s)", u->host,
                       x->why[0] ? x->why : err_name(x->net < 0 ? x->net : -EPIPE));
    if (x->status == 416) { /* what is there fits nothing: from the start */
        g->at = 0;
        const int r = g->again(g->ctx);
        if (r < 0) return r;
    }
    if (is_busy(x->status) || x->status == 416)
        return err_set(err, -EAGAIN, "%.60s answers status %d", u->host, x->status);
    return say_refused(x, u, err);
}

/* From the endpoint to where redirects lead. */
static int try_once(struct hub_http *h, struct hub_get *g, struct err *err)
{
    struct url u;
    int r = copy_site(&u, &h->endpoint);
    if (r == 0) r = buf_adds(&u.target, g->target);
    for (unsigned hop = 0, follow = 1; r == 0 && follow; hop++) {
        struct exchange x = {.h = h, .g = g};
        const bool was_tls = u.tls;
        r = exchange(&x, &u);
        if (r < 0)
            r = err_set(err, -EAGAIN, "cannot find or reach %.100s (%s)", u.address, err_name(r));
        else
            r = judge(&x, &u, err);
        follow = r == 1;
        if (follow && hop == HOPS_MAX)
            r = err_set(err, -EBADMSG, "%.60s redirects more than %d times", u.host, HOPS_MAX);
        if (r == 1) r = go_to(&u, buf_cstr(&x.location));
        if (r == 0 && was_tls && !u.tls) r = -EINVAL;
        if (r == -EINVAL && follow)
            r = err_set(err, -EBADMSG, "a redirect from %s to \"%.80s\" is not followed",
                        was_tls ? "https" : "http", buf_cstr(&x.location));
        buf_fini(&x.location);
    }
    buf_fini(&u.target);
    return r;
}

int hub_get(struct hub_http *h, struct hub_get *g, struct err *err)
{
    struct err why = {0};
    for (unsigned fruitless = 0;;) {
        const uint64_t was = g->at;
        int r = try_once(h, g, &why);
        if (r == 0) return 0;
        if (r == -EAGAIN && g->at > was)
            fruitless = 0;
        else if (r != -EAGAIN || ++fruitless == TRIES)
            return why.code ? err_set(err, r == -EAGAIN ? -EIO : r, "%s", why.msg) : r;
        if (fruitless > 0) pause_for(h, 500u << fruitless);
    }
}
