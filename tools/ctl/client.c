#include "tools/ctl/ctl.h"

#include "base/mem.h"
#include "base/net/http.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct exchange {
    struct http_loop *loop;
    struct ctl_reply *reply;
    int error;
};

static void on_head(void *ctx, int status, const struct http_head *h)
{
    struct exchange *x = ctx;
    x->reply->status = status;
}

static void on_body(void *ctx, const char *data, size_t len)
{
    struct exchange *x = ctx;
    if (buf_add(&x->reply->body, data, len) < 0) x->error = -ENOMEM;
}

static void on_end(void *ctx, int status)
{
    struct exchange *x = ctx;
    if (status < 0) x->error = status;
    http_loop_stop(x->loop);
}

static const struct http_call_ops ops = {on_head, on_body, on_end};

/* The gateway's socket: the run folder of this user, or the one without $XDG_RUNTIME_DIR. */
static int find_admin(struct buf *out)
{
    const char *env = getenv("KVBLEND_ADMIN"), *xdg = getenv("XDG_RUNTIME_DIR");
    if (env && *env) return buf_adds(out, strncmp(env, "http://", 7) == 0 ? env + 7 : env);
    if (xdg && *xdg) {
        if (buf_addf(out, "unix:%s/kvblend/admin.sock", xdg) < 0 || !buf_cstr(out)) return -ENOMEM;
        if (access(buf_cstr(out) + 5, F_OK) == 0) return 0;
        buf_clear(out);
    }
    return buf_addf(out, "unix:/tmp/kvblend-%u/admin.sock", (unsigned)getuid());
}

/* The KEY of --namespace goes along: an administrator may act for any. So does the key that the
 * admin API asks for on TCP; by a variable, because ps shows flags. */
static int add_headers(const struct ctl_args *a, struct buf *out)
{
    const char *ns = a->name_space ? a->name_space : "", *key = getenv("KVBLEND_ADMIN_KEY");
    size_t n = strcspn(ns, "/\r\n");
    int r = http_header_add(out, "Content-Type", "application/json");
    if (r == 0 && n > 0) r = buf_addf(out, "X-KVBlend-Namespace: %.*s\r\n", (int)n, ns);
    if (r == 0 && key && *key && !key[strcspn(key, " \t\r\n")])
        r = buf_addf(out, "Authorization: Bearer %s\r\n", key);
    return r;
}

static int exchange_run(struct exchange *x, const char *address, const struct http_request *q)
{
    struct http_client *client = NULL;
    struct http_call *call;
    struct http_client_opts o = {.address = address,
                                 .conns_max = 1,
                                 .first_byte_timeout_ms = 3600000, /* a warm-up may take long */
                                 .idle_timeout_ms = 600000};
    int r = http_client_create(x->loop, &o, &client);
    if (r == 0) r = http_call_start(client, q, &ops, x, &call);
    if (r == 0) r = http_loop_run(x->loop);
    if (r >= 0) r = x->error;
    if (client) http_client_destroy(client);
    return r;
}

int ctl_ask(const struct ctl_args *a, const char *method, const char *target, const void *body,
            size_t len, struct ctl_reply *ret)
{
    struct buf address = BUF_INIT, headers = BUF_INIT;
    struct exchange x = {.reply = ret};
    *ret = (struct ctl_reply){.body = BUF_INIT};
    int r = a->admin ? buf_adds(&address, a->admin + (strncmp(a->admin, "http://", 7) ? 0 : 7))
                     : find_admin(&address);
    if (r == 0) r = add_headers(a, &headers);
    if (r == 0 && (!buf_cstr(&address) || !buf_cstr(&headers))) r = -ENOMEM;
    if (r == 0) r = http_loop_create(&x.loop);
    const struct http_request q = {.method = method,
                                   .target = target,
                                   .headers = buf_cstr(&headers),
                                   .body = body,
                                   .len = len};
    if (r == 0) r = exchange_run(&x, buf_cstr(&address), &q);
    http_loop_destroy(x.loop);
    if (r < 0) {
        (void)ctl_fail(a, CTL_UNREACHABLE,
                       "no answer at %s (%s); is kvblend running? --admin or KVBLEND_ADMIN names "
                       "another address",
                       buf_cstr(&address), strerror(-r));
        ctl_reply_fini(ret);
    } else {
        ret->json = json_loadb(ret->body.data ? ret->body.data : "", ret->body.len, 0, NULL);
    }
    buf_fini(&address);
    buf_fini(&headers);
    return r < 0 ? CTL_UNREACHABLE : 0;
}

void ctl_reply_fini(struct ctl_reply *r)
{
    buf_fini(&r->body);
    json_decref(r->json);
    r->json = NULL;
}

int ctl_expect(const struct ctl_args *a, const char *method, const char *target, const void *body,
               size_t len, struct ctl_reply *ret)
{
    int r = ctl_ask(a, method, target, body, len, ret);
    if (r != 0 || (ret->status >= 200 && ret->status < 300 && ret->json)) return r;
    const char *why = ctl_str(json_object_get(ret->json, "error"), "message");
    if (a->json && ret->json)
        ctl_print_json(ret);
    else
        (void)ctl_fail(a, CTL_REFUSED, "%s (status %d)", *why ? why : "unexpected answer",
                       ret->status);
    ctl_reply_fini(ret);
    return CTL_REFUSED;
}

int ctl_parameter(struct buf *out, const char *name, const char *value)
{
    int r = buf_addf(out, "&%s=", name);
    for (const unsigned char *p = (const unsigned char *)value; r == 0 && *p; p++)
        r = isalnum(*p) || strchr("-._~/", *p) ? buf_addc(out, (char)*p)
                                               : buf_addf(out, "%%%02X", *p);
    return r;
}

int ctl_print(const struct ctl_args *a, const char *method, const char *target,
              void (*print)(const json_t *answer))
{
    struct ctl_reply r;
    int rc = ctl_expect(a, method, target, NULL, 0, &r);
    if (rc != 0) return rc;
    if (a->json)
        ctl_print_json(&r);
    else
        print(r.json);
    ctl_reply_fini(&r);
    return CTL_OK;
}
