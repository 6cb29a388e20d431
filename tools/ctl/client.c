#include "tools/ctl/ctl.h"

#include "base/net/http.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void on_head(void *ctx, int status, const struct http_head *h)
{
    struct ctl_reply *r = ctx;
    r->status = status;
}

static void on_body(void *ctx, const char *data, size_t len)
{
    struct ctl_reply *r = ctx;
    (void)buf_add(&r->body, data, len);
    if (r->on_data) r->on_data(r->ctx, data, len);
}

static void on_end(void *ctx, int status)
{
    struct ctl_reply *r = ctx;
    if (status < 0) r->status = status;
    http_loop_stop(r->loop);
}

static const struct http_call_ops ops = {on_head, on_body, on_end};

/* What --admin or the environment names, else the socket of a gateway: of this user, in the run
 * folder or without $XDG_RUNTIME_DIR, or of kvblend.service. Where there is none: this user's. */
static void add_address(const struct ctl_args *a, struct buf *out)
{
    static const char service[] = "/run/kvblend/kvblend/admin.sock";
    const char *named = a->admin ? a->admin : getenv("KVBLEND_ADMIN");
    const char *xdg = getenv("XDG_RUNTIME_DIR");
    if (a->admin || (named && *named)) {
        (void)buf_adds(out, named + (strncmp(named, "http://", 7) == 0 ? 7 : 0));
        return;
    }
    if (xdg && *xdg) {
        (void)buf_addf(out, "unix:%s/kvblend/admin.sock", xdg);
        if (buf_cstr(out) && access(out->data + 5, F_OK) == 0) return;
        buf_clear(out);
    }
    (void)buf_addf(out, "unix:/tmp/kvblend-%u/admin.sock", (unsigned)getuid());
    if (!buf_cstr(out) || access(out->data + 5, F_OK) == 0 || access(service, F_OK) < 0) return;
    buf_clear(out);
    (void)buf_addf(out, "unix:%s", service);
}

/* The KEY of --namespace goes along: an administrator may act for any. So does the key that the
 * admin API asks for on TCP; by a variable, because ps shows flags. */
static void add_headers(const struct ctl_args *a, struct buf *out)
{
    const char *ns = a->name_space ? a->name_space : "", *key = getenv("KVBLEND_ADMIN_KEY");
    size_t n = strcspn(ns, "/\r\n");
    (void)buf_adds(out, "Content-Type: application/json\r\n");
    if (n > 0) (void)buf_addf(out, "X-KVBlend-Namespace: %.*s\r\n", (int)n, ns);
    if (key && *key && !key[strcspn(key, " \t\r\n")])
        (void)buf_addf(out, "Authorization: Bearer %s\r\n", key);
}

/* 0, or why there is no answer. */
static int exchange(struct ctl_reply *x, const char *address, const struct http_request *q)
{
    struct http_client *client = NULL;
    struct http_call *call;
    const struct http_client_opts o = {.address = address,
                                       .conns_max = 1,
                                       .first_byte_timeout_ms = 3600000, /* a warm-up takes long */
                                       .idle_timeout_ms = 600000};
    int r = http_loop_create(&x->loop);
    if (r == 0) r = http_client_create(x->loop, &o, &client);
    if (r == 0) r = http_call_start(client, q, &ops, x, &call);
    if (r == 0) r = http_loop_run(x->loop);
    if (r >= 0) r = x->status < 0 ? x->status : buf_status(&x->body);
    if (client) http_client_destroy(client);
    http_loop_destroy(x->loop);
    return r;
}

/* ctl_ask(), with what *ret has been given to read the answer. */
static int converse(const struct ctl_args *a, struct buf *request, const struct buf *body,
                    struct ctl_reply *ret)
{
    struct buf address = BUF_INIT, headers = BUF_INIT;
    char method[8];
    add_address(a, &address);
    add_headers(a, &headers);
    if (strstr(buf_cstr(request), " /admin/")) ctl_parameter(request, "worker", a->worker);
    const char *line = buf_cstr(request);
    size_t n = strcspn(line, " ");
    (void)snprintf(method, sizeof method, "%.*s", (int)n, line);
    const struct http_request q = {.method = method,
                                   .target = line + n + 1,
                                   .headers = buf_cstr(&headers),
                                   .body = body ? body->data : NULL,
                                   .len = body ? body->len : 0};
    int r = buf_status(request);
    if (r == 0) r = buf_status(&headers);
    if (r == 0) r = buf_status(&address);
    if (r == 0) r = exchange(ret, buf_cstr(&address), &q);
    if (r < 0) {
        r = ctl_fail(a, CTL_UNREACHABLE,
                     "no answer at %s (%s); is kvblend running? --admin or KVBLEND_ADMIN names "
                     "another address",
                     buf_cstr(&address), strerror(-r));
        ctl_reply_fini(ret);
    } else {
        ret->json = json_loadb(ret->body.data ? ret->body.data : "", ret->body.len, 0, NULL);
    }
    buf_fini(&address);
    buf_fini(&headers);
    return r;
}

int ctl_ask(const struct ctl_args *a, struct buf *request, const struct buf *body,
            struct ctl_reply *ret)
{
    *ret = (struct ctl_reply){.body = BUF_INIT};
    return converse(a, request, body, ret);
}

void ctl_reply_fini(struct ctl_reply *r)
{
    buf_fini(&r->body);
    json_decref(r->json);
    r->json = NULL;
}

static void print_raw(const struct ctl_reply *r)
{
    (void)fwrite(r->body.data, 1, r->body.len, stdout);
    if (r->body.len == 0 || r->body.data[r->body.len - 1] != '\n') (void)putchar('\n');
}

void ctl_show(const struct ctl_args *a, struct ctl_reply *r, const char *view)
{
    if (a->json)
        print_raw(r);
    else
        ctl_say(r->json, view);
    ctl_reply_fini(r);
}

int ctl_check(const struct ctl_args *a, struct ctl_reply *r)
{
    if (r->status >= 200 && r->status < 300 && (r->json || r->on_data)) return CTL_OK;
    const char *why = ctl_str(json_object_get(r->json, "error"), "message");
    const json_t *worker = json_object_get(r->json, "worker"); /* of several the one that refuses */
    if (a->json && r->json)
        print_raw(r);
    else if (worker)
        (void)ctl_fail(a, CTL_REFUSED, "%s (status %d, of worker %.0f)", why, r->status,
                       json_number_value(worker));
    else
        (void)ctl_fail(a, CTL_REFUSED, "%s (status %d)", *why ? why : "unexpected answer",
                       r->status);
    ctl_reply_fini(r);
    return CTL_REFUSED;
}

static void escape(struct buf *out, const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (isalnum(*p) || strchr("-._~:@/", *p))
            (void)buf_addc(out, (char)*p);
        else
            (void)buf_addf(out, "%%%02X", *p);
    }
}

void ctl_parameter(struct buf *out, const char *name, const char *value)
{
    if (!value) return;
    (void)buf_addf(out, "%c%s=", out->data && memchr(out->data, '?', out->len) ? '&' : '?', name);
    escape(out, value);
}

int ctl_request(const struct ctl_args *a, const char *request, const char *operand,
                struct ctl_reply *ret)
{
    struct buf b = BUF_INIT;
    const char *at = strchrnul(request, '*');
    (void)buf_add(&b, request, (size_t)(at - request));
    if (*at) {
        escape(&b, operand);
        (void)buf_adds(&b, at + 1);
    }
    ctl_parameter(&b, "kind", a->chunks_only ? "chunk" : NULL);
    ctl_parameter(&b, "tier", a->tier);
    ctl_parameter(&b, "namespace", a->name_space);
    int rc = ctl_ask(a, &b, NULL, ret);
    buf_fini(&b);
    return rc == CTL_OK ? ctl_check(a, ret) : rc;
}

static int to_buf(const char *data, size_t len, void *ctx)
{
    return buf_add(ctx, data, len);
}

int ctl_stream(const struct ctl_args *a, const char *request, json_t *body,
               void (*on_data)(void *ctx, const char *data, size_t len), void *ctx,
               struct ctl_reply *ret)
{
    struct buf b = BUF_INIT, content = BUF_INIT;
    int rc = CTL_OK;
    *ret = (struct ctl_reply){.body = BUF_INIT, .on_data = on_data, .ctx = ctx};
    (void)buf_adds(&b, request);
    if (json_dump_callback(body, to_buf, &content, JSON_COMPACT) < 0)
        rc = ctl_fail(a, CTL_REFUSED, "an argument is not text in UTF-8");
    if (rc == CTL_OK) rc = converse(a, &b, &content, ret);
    json_decref(body);
    buf_fini(&b);
    buf_fini(&content);
    return rc == CTL_OK ? ctl_check(a, ret) : rc;
}

int ctl_order(const struct ctl_args *a, const char *request, json_t *body, struct ctl_reply *ret)
{
    return ctl_stream(a, request, body, NULL, NULL, ret);
}
