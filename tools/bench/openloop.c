#include "tools/bench/openloop.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/net/http.h"

#include <errno.h>
#include <string.h>

enum { CONNS_MAX = 4096, ANSWER_S_MAX = 3600, LOOK_MS = 100 };

struct run;
struct shot { /* under way */
    struct run *run;
    struct openloop_shot *ret;
    struct http_call *call; /* NULL: not started, or over */
    struct sse_parser sse;
    uint64_t due_ns, last_ns;
};
struct run {
    const struct openloop_opts *o;
    struct http_loop *loop;
    struct http_client *client;
    struct http_timer *timer;
    struct shot *shot; /* [n] */
    size_t next, n_over;
    uint64_t start_ns;
    int err;
};

const char *openloop_text(const json_t *event)
{
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    const char *text =
        json_string_value(json_object_get(json_object_get(choice, "delta"), "content"));
    return text && *text ? text : NULL;
}

static int on_event(void *ctx, const char *data, size_t len)
{
    struct shot *s = ctx;
    struct openloop_shot *r = s->ret;
    json_t *event = json_loadb(data, len, 0, NULL);
    if (!event) return 0; /* [DONE] */
    if (openloop_text(event)) {
        const uint64_t now = clock_ns();
        const double gap = (double)(now - s->last_ns) / 1e6;
        if (r->n_pieces == 0) {
            r->ttft_ms = (double)(now - s->due_ns) / 1e6;
        } else {
            r->gap_ms_sum += gap;
            if (gap > r->gap_ms_max) r->gap_ms_max = gap;
        }
        r->n_pieces++;
        s->last_ns = now;
    }
    const json_t *usage = json_object_get(event, "usage");
    if (json_is_object(usage)) {
        const json_t *more = json_object_get(usage, "prompt_tokens_details");
        r->n_prompt = (unsigned)json_integer_value(json_object_get(usage, "prompt_tokens"));
        r->n_cached = (unsigned)json_integer_value(json_object_get(more, "cached_tokens"));
    }
    if (json_object_get(event, "error")) r->err = -EPROTO;
    json_decref(event);
    return 0;
}

static void on_head(void *ctx, int status, const struct http_head *h)
{
    (void)h;
    ((struct shot *)ctx)->ret->http_status = status;
}

static void on_body(void *ctx, const char *data, size_t len)
{
    struct shot *s = ctx;
    if (s->ret->http_status == 200) (void)sse_parser_push(&s->sse, data, len, on_event, s);
}

static void over(struct shot *s, int status)
{
    s->call = NULL;
    if (s->ret->err == 0) s->ret->err = status;
    s->ret->end_ms = (double)(clock_ns() - s->due_ns) / 1e6;
    if (++s->run->n_over == s->run->o->n) http_loop_stop(s->run->loop);
}

static void on_end(void *ctx, int status)
{
    over(ctx, status);
}

static const struct http_call_ops call_ops = {on_head, on_body, on_end};

static void start(struct run *u, struct shot *s, size_t i)
{
    struct buf body = BUF_INIT;
    struct buf head = BUF_INIT;
    int r = u->o->body(u->o->ctx, i, &body);
    if (r == 0) r = buf_adds(&head, "Content-Type: application/json\r\n");
    if (r == 0 && u->o->extra_headers) r = buf_adds(&head, u->o->extra_headers);
    if (r == 0)
        r = http_call_start(u->client, "POST", u->o->path, buf_cstr(&head), body.data, body.len,
                            &call_ops, s, &s->call);
    if (r == 0) http_call_may_repeat(s->call);
    buf_fini(&body);
    buf_fini(&head);
    if (r < 0) over(s, r);
}

static void cut_all(struct run *u, int status)
{
    for (size_t i = 0; i < u->next; i++) {
        struct http_call *call = u->shot[i].call;
        if (!call) continue;
        http_call_cancel(call);
        over(&u->shot[i], status);
    }
}

/* Sleep, but look now and then whether all is to stop. */
static void sleep_until(struct run *u, double at_s, double now_s)
{
    uint64_t ms = (uint64_t)((at_s - now_s) * 1e3) + 1;
    if (u->o->stopped && ms > LOOK_MS) ms = LOOK_MS;
    http_timer_set(u->timer, ms);
}

/* All that is due by now, then sleep until the next. */
static void on_time(void *arg)
{
    struct run *u = arg;
    const struct openloop_opts *o = u->o;
    const double now_s = (double)(clock_ns() - u->start_ns) / 1e9;
    if (o->stopped && o->stopped()) {
        u->err = -ECANCELED;
        cut_all(u, -ECANCELED);
        http_loop_stop(u->loop);
        return;
    }
    while (u->next < o->n && o->at_s[u->next] <= now_s) {
        struct shot *s = &u->shot[u->next];
        s->due_ns = u->start_ns + (uint64_t)(o->at_s[u->next] * 1e9);
        start(u, s, u->next++);
    }
    if (u->next < o->n) {
        sleep_until(u, o->at_s[u->next], now_s);
        return;
    }
    const double end_s = o->at_s[o->n - 1] + o->give_up_s;
    if (now_s < end_s)
        sleep_until(u, end_s, now_s);
    else
        cut_all(u, -ETIMEDOUT);
}

static int run_open(struct run *u, struct err *err)
{
    struct http_client_opts co = {.address = u->o->address,
                                  .conns_max = CONNS_MAX,
                                  .first_byte_timeout_ms = ANSWER_S_MAX * 1000,
                                  .idle_timeout_ms = ANSWER_S_MAX * 1000};
    int r = http_loop_create(&u->loop);
    if (r == 0) r = http_client_create(u->loop, &co, &u->client);
    if (r == 0) r = http_timer_create(u->loop, on_time, u, &u->timer);
    return r < 0 ? err_set(err, r, "%s: %s", u->o->address, err_name(r)) : 0;
}

static void run_close(struct run *u)
{
    if (u->timer) http_timer_destroy(u->timer);
    if (u->client) http_client_destroy(u->client);
    if (u->loop) http_loop_destroy(u->loop);
    for (size_t i = 0; u->shot && i < u->o->n; i++)
        sse_parser_fini(&u->shot[i].sse);
    mem_free(u->shot);
}

int openloop_run(const struct openloop_opts *o, struct openloop_shot *ret, struct err *err)
{
    struct run u = {.o = o, .shot = mem_zalloc((o->n + 1) * sizeof(struct shot))};
    if (!u.shot) return err_set(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < o->n; i++) {
        ret[i] = (struct openloop_shot){.ttft_ms = -1, .end_ms = -1};
        u.shot[i].run = &u;
        u.shot[i].ret = &ret[i];
    }
    int r = run_open(&u, err);
    if (r == 0 && o->n > 0) {
        u.start_ns = clock_ns();
        http_timer_set(u.timer, 0);
        r = http_loop_run(u.loop);
        if (r < 0) (void)err_set(err, r, "the HTTP loop failed");
        if (r == 0) r = u.err;
    }
    run_close(&u);
    return r;
}

/* ---- one exchange ---- */

struct exchange {
    struct http_loop *loop;
    struct buf *body;
    int http_status, status;
};

static void plain_head(void *ctx, int status, const struct http_head *h)
{
    (void)h;
    ((struct exchange *)ctx)->http_status = status;
}

static void plain_body(void *ctx, const char *data, size_t len)
{
    struct exchange *x = ctx;
    if (x->body) (void)buf_add(x->body, data, len);
}

static void plain_end(void *ctx, int status)
{
    struct exchange *x = ctx;
    x->status = status;
    http_loop_stop(x->loop);
}

int openloop_call(const char *address, const char *path, const char *body, struct buf *ret_body,
                  unsigned timeout_ms)
{
    static const struct http_call_ops ops = {plain_head, plain_body, plain_end};
    struct exchange x = {.body = ret_body};
    struct http_client *client = NULL;
    struct http_call *call;
    struct http_client_opts co = {
        .address = address, .first_byte_timeout_ms = timeout_ms, .total_timeout_ms = timeout_ms};
    int r = http_loop_create(&x.loop);
    if (r < 0) return r;
    r = http_client_create(x.loop, &co, &client);
    if (r == 0)
        r = http_call_start(client, body ? "POST" : "GET", path,
                            body ? "Content-Type: application/json\r\n" : NULL, body,
                            body ? strlen(body) : 0, &ops, &x, &call);
    if (r == 0) r = http_loop_run(x.loop);
    if (r == 0) r = x.status;
    if (client) http_client_destroy(client);
    http_loop_destroy(x.loop);
    return r < 0 ? r : x.http_status;
}
