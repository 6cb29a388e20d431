#include "tools/bench/openloop.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/net/http.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CONNS_MAX = 4096, ANSWER_S_MAX = 3600, LOOK_MS = 100, STREAM_TRIES = 50 };

static const struct openloop_shot shot_begin = {NAN, NAN, NAN, NAN, NAN};

struct run;
struct call {
    struct run *run;
    enum { OWN, FIRST, STREAM, PLAIN } kind; /* a request's own, or one that it asks first */
    struct openloop_shot shot;
    struct http_call *http; /* NULL: not started, or over */
    struct sse_parser sse;
    struct buf text; /* what came of it: FIRST, PLAIN, and where it was refused */
    uint64_t due_ns, last_ns;
    unsigned n_open; /* OWN: how many of those that it asks first are under way */
    bool answered;   /* STREAM: at least once */
};
struct run {
    const struct openloop_opts *o;
    struct openloop_ret *ret;
    struct http_loop *loop;
    struct http_client *client;
    struct http_timer timer;
    struct call *call;   /* [n] times n_calls and the own one */
    struct call *stream; /* [n_streams], behind them */
    size_t next, n_over;
    size_t n_begun, n_failed; /* streams; failures in a row before the requests began */
    int failed_status;        /* HTTP, of the last of them */
    uint64_t together_ns;     /* since when all streams answer, 0: not yet */
    uint64_t start_ns;        /* the requests' time; 0: not yet */
    bool refused;             /* one was, and it was said */
    int err;
};

static struct call *own_call(const struct run *u, size_t i)
{
    return &u->call[i * (u->o->n_calls + 1) + u->o->n_calls];
}

static size_t request_of(const struct call *c)
{
    return (size_t)(c - c->run->call) / (c->run->o->n_calls + 1);
}

/* ---- an answer as it comes ---- */

/* Between this piece of text and the one before. */
static void add_gap(struct call *c, uint64_t now)
{
    struct openloop_ret *ret = c->run->ret;
    const double ms = (double)(now - c->last_ns) / 1e6;
    const enum openloop_gap of = c->kind != STREAM       ? OPENLOOP_REQUESTS
                                 : c->run->start_ns == 0 ? OPENLOOP_ALONE
                                                         : OPENLOOP_STREAMS;
    (void)buf_add(&ret->gap[of], &ms, sizeof ms);
    if (ms > c->shot.gap_ms_max) c->shot.gap_ms_max = ms;
    if (of == OPENLOOP_STREAMS) ret->answering_s += ms / 1e3;
}

static void add_text(struct call *c, const char *text)
{
    const uint64_t now = clock_ns();
    c->answered = true;
    if (c->kind == FIRST) (void)buf_adds(&c->text, text);
    if (c->shot.n_pieces++ == 0)
        c->shot.ttft_ms = (double)(now - c->due_ns) / 1e6;
    else if (c->kind != FIRST)
        add_gap(c, now);
    c->last_ns = now;
}

static int on_event(void *ctx, const char *data, size_t len)
{
    struct call *c = ctx;
    struct openloop_shot *r = &c->shot;
    const char *text = NULL;
    json_t *event = json_loadb(data, len, 0, NULL);
    if (!event) return 0; /* [DONE] */
    (void)json_unpack(event, "{s:[{s:{s:s}}]}", "choices", "delta", "content", &text);
    if (text && *text) add_text(c, text);
    (void)json_unpack(event, "{s:{s:i, s?:{s?:i, s?:i}}}", "usage", "prompt_tokens", &r->n_prompt,
                      "prompt_tokens_details", "cached_tokens", &r->n_cached, "recomputed_tokens",
                      &r->n_recomputed);
    (void)json_unpack(event, "{s:{s?:F, s?:F, s?:F}}", "kvblend", "queue_ms", &r->queue_ms,
                      "prefill_ms", &r->prefill_ms, "engine_ms", &r->engine_ms);
    if (json_object_get(event, "error")) r->err = -EPROTO;
    json_decref(event);
    return 0;
}

static void on_head(void *ctx, int status, const struct http_head *h)
{
    (void)h;
    ((struct call *)ctx)->shot.http_status = status;
}

static void on_body(void *ctx, const char *data, size_t len)
{
    struct call *c = ctx;
    if (c->kind == PLAIN || c->shot.http_status != 200)
        (void)buf_add(&c->text, data, len);
    else if (c->shot.http_status == 200)
        (void)sse_parser_push(&c->sse, data, len, on_event, c);
}

/* ---- a request ---- */

static void first_over(struct call *c);

/* The first of a run: the others' reason is as a rule the same. */
static void tell_refusal(const struct call *c)
{
    const struct openloop_shot *s = &c->shot;
    if (c->run->refused || (s->err == 0 && s->http_status == 200)) return;
    c->run->refused = true;
    (void)fprintf(stderr, "a request failed: HTTP %d, %s: %.*s\n", s->http_status,
                  s->err < 0 ? err_name(s->err) : "no error", (int)c->text.len,
                  c->text.data ? c->text.data : "");
}

static void on_end(void *ctx, int status)
{
    struct call *c = ctx;
    struct run *u = c->run;
    c->http = NULL;
    if (c->shot.err == 0) c->shot.err = status;
    c->shot.end_ms = (double)(clock_ns() - c->due_ns) / 1e6;
    if (c->kind == FIRST) {
        first_over(c);
    } else if (c->kind == STREAM) {
        u->failed_status = c->shot.http_status;
        u->n_failed = c->shot.n_pieces > 0 ? 0 : u->n_failed + 1;
        if (u->n_failed == 0) http_timer_set(&u->timer, 0); /* else again at the next look */
    } else {
        if (c->kind == OWN) tell_refusal(c);
        if (c->kind == PLAIN || ++u->n_over == u->o->n) http_loop_stop(u->loop);
    }
}

/* r: what came of making the body, whose bytes are freed; empty: it only asks. */
static void send_call(struct call *c, int r, struct buf *body)
{
    static const struct http_call_ops ops = {on_head, on_body, on_end};
    const char *headers = body->len ? "Content-Type: application/json\r\n" : NULL;
    const struct http_request q = {.method = body->len ? "POST" : "GET",
                                   .target = c->run->o->path,
                                   .headers = headers,
                                   .body = body->data,
                                   .len = body->len,
                                   .may_repeat = true};
    if (r == 0) r = http_call_start(c->run->client, &q, &ops, c, &c->http);
    buf_fini(body);
    if (r < 0) on_end(c, r);
}

static void send_own(struct call *c)
{
    const struct openloop_opts *o = c->run->o;
    const char *text[OPENLOOP_CALLS_MAX];
    struct buf body = BUF_INIT;
    int r = 0;
    for (unsigned k = 0; k < o->n_calls; k++)
        if (!(text[k] = buf_cstr(&c[(int)k - (int)o->n_calls].text))) r = -ENOMEM;
    if (r == 0) r = o->body(o->ctx, request_of(c), o->n_calls, text, &body);
    send_call(c, r, &body);
}

/* The last one that ends lets the request go on. */
static void first_over(struct call *c)
{
    struct call *own = own_call(c->run, request_of(c));
    struct openloop_shot *r = &own->shot;
    if (r->err == 0) r->err = c->shot.err < 0 ? c->shot.err : buf_status(&c->text);
    if (r->http_status == 0 || r->http_status == 200) r->http_status = c->shot.http_status;
    if (--own->n_open > 0) return;
    if (r->err == 0 && r->http_status == 200 && !c->run->o->no_own) {
        send_own(own);
        return;
    }
    if (r->err == 0 && r->http_status == 200) r->ttft_ms = (double)(clock_ns() - own->due_ns) / 1e6;
    on_end(own, 0);
}

static void start_request(struct run *u, size_t i)
{
    const struct openloop_opts *o = u->o;
    struct call *own = own_call(u, i), *first = own - o->n_calls;
    own->due_ns = u->start_ns + (uint64_t)(o->at_s[i] * 1e9);
    own->n_open = o->n_calls;
    if (o->n_calls == 0) send_own(own);
    for (unsigned k = 0; k < o->n_calls; k++) {
        struct buf body = BUF_INIT;
        first[k].due_ns = own->due_ns;
        send_call(&first[k], o->body(o->ctx, i, k, NULL, &body), &body);
    }
}

/* ---- the run ---- */

/* Begins the streams that are not under way. Have all of them answered? */
static bool keep_streams(struct run *u)
{
    bool all = true;
    for (struct call *c = u->stream; c < u->stream + u->o->n_streams; c++) {
        struct buf body = BUF_INIT;
        all &= c->answered;
        if (c->http) continue;
        sse_parser_fini(&c->sse);
        c->shot = shot_begin;
        c->due_ns = clock_ns();
        send_call(c, u->o->body(u->o->ctx, u->n_begun++, OPENLOOP_STREAM, NULL, &body), &body);
    }
    return all;
}

/* Has the requests' time begun? */
static bool begun(struct run *u)
{
    const bool all = keep_streams(u);
    if (u->start_ns) return true;
    const uint64_t now = clock_ns();
    if (all && !u->together_ns) u->together_ns = now;
    if (!all || now - u->together_ns < (uint64_t)(u->o->alone_s * 1e9)) return false;
    u->start_ns = now;
    return true;
}

/* Ends it; requests that are under way have failed. */
static void cut_all(struct run *u, int status)
{
    for (size_t i = 0; i < u->next; i++) {
        struct call *own = own_call(u, i);
        if (!own->http && own->n_open == 0) continue;
        own->shot.err = status;
        own->shot.end_ms = (double)(clock_ns() - own->due_ns) / 1e6;
    }
    http_loop_stop(u->loop);
}

/* All that is due by now, then sleep until the next; but look now and then whether all is to stop
 * and whether a stream has ended. */
static void on_time(void *arg)
{
    struct run *u = arg;
    const struct openloop_opts *o = u->o;
    http_timer_set(&u->timer, LOOK_MS);
    const bool ready = begun(u);
    if (!ready && u->n_failed > STREAM_TRIES) u->err = -EIO;
    if (o->stopped && o->stopped()) u->err = -ECANCELED;
    if (u->err < 0) cut_all(u, u->err);
    if (u->err < 0 || !ready) return;
    const double now_s = (double)(clock_ns() - u->start_ns) / 1e9;
    while (u->next < o->n && o->at_s[u->next] <= now_s)
        start_request(u, u->next++);
    const double wake_s = u->next < o->n ? o->at_s[u->next] : o->at_s[o->n - 1] + o->give_up_s;
    if (wake_s <= now_s)
        cut_all(u, -ETIMEDOUT);
    else if ((wake_s - now_s) * 1e3 < LOOK_MS)
        http_timer_set(&u->timer, (uint64_t)((wake_s - now_s) * 1e3) + 1);
}

static int run_open(struct run *u, unsigned timeout_ms)
{
    const struct http_client_opts co = {.address = u->o->address,
                                        .conns_max = CONNS_MAX,
                                        .first_byte_timeout_ms = ANSWER_S_MAX * 1000,
                                        .idle_timeout_ms = ANSWER_S_MAX * 1000,
                                        .total_timeout_ms = timeout_ms};
    int r = http_loop_create(&u->loop);
    return r < 0 ? r : http_client_create(u->loop, &co, &u->client);
}

static void run_close(struct run *u)
{
    http_timer_fini(&u->timer);
    if (u->client) http_client_destroy(u->client);
    http_loop_destroy(u->loop);
}

static int make_calls(struct run *u, size_t n_calls)
{
    const size_t per = u->o->n_calls + 1, n = u->o->n * per;
    u->ret->shot = mem_alloc(u->o->n * sizeof *u->ret->shot);
    u->call = mem_zalloc(n_calls * sizeof *u->call);
    if (!u->ret->shot || !u->call) return -ENOMEM;
    u->stream = u->call + n;
    for (size_t i = 0; i < n_calls; i++)
        u->call[i] = (struct call){.run = u,
                                   .kind = i >= n               ? STREAM
                                           : i % per == per - 1 ? OWN
                                                                : FIRST,
                                   .shot = shot_begin};
    return 0;
}

/* Of a request: times are its own call's, tokens those of all. */
static void sum_up(const struct run *u, size_t i, struct openloop_shot *ret)
{
    const struct call *own = own_call(u, i);
    *ret = own->shot;
    for (const struct call *c = own - u->o->n_calls; c < own; c++) {
        ret->n_prompt += c->shot.n_prompt;
        ret->n_cached += c->shot.n_cached;
        ret->n_recomputed += c->shot.n_recomputed;
    }
}

int openloop_run(const struct openloop_opts *o, struct openloop_ret *ret, struct err *err)
{
    struct run u = {.o = o, .ret = ret};
    const size_t n_calls = o->n * (o->n_calls + 1) + o->n_streams;
    *ret = (struct openloop_ret){0};
    int r = make_calls(&u, n_calls);
    if (r == 0) r = run_open(&u, 0);
    if (r == 0) {
        http_timer_init(&u.timer, u.loop, on_time, &u);
        http_timer_set(&u.timer, 0);
        r = http_loop_run(u.loop);
        ret->load_s = (double)(clock_ns() - u.start_ns) / 1e9;
    }
    if (r == 0) r = u.err;
    for (enum openloop_gap g = 0; r == 0 && g < OPENLOOP_GAPS; g++)
        r = buf_status(&ret->gap[g]);
    for (size_t i = 0; r != -ENOMEM && i < o->n; i++)
        sum_up(&u, i, &ret->shot[i]);
    for (size_t i = 0; u.call && i < n_calls; i++) {
        if (u.call[i].http) http_call_cancel(u.call[i].http);
        sse_parser_fini(&u.call[i].sse);
        buf_fini(&u.call[i].text);
    }
    run_close(&u);
    mem_free(u.call);
    if (r == -EIO)
        (void)err_set(err, r, "%s: a stream gets no answer (HTTP %d)", o->address, u.failed_status);
    return r < 0 && !err->code ? err_set(err, r, "%s: %s", o->address, err_name(r)) : r;
}

void openloop_ret_fini(struct openloop_ret *r)
{
    mem_free(r->shot);
    for (enum openloop_gap g = 0; g < OPENLOOP_GAPS; g++)
        buf_fini(&r->gap[g]);
}

int openloop_call(const char *address, const char *path, const char *body, struct buf *ret_body,
                  unsigned timeout_ms)
{
    const struct openloop_opts o = {.address = address, .path = path};
    struct openloop_ret ret;
    struct run u = {.o = &o, .ret = &ret};
    struct call c = {.run = &u, .kind = PLAIN};
    struct buf out = BUF_INIT;
    int r = run_open(&u, timeout_ms);
    if (r == 0) {
        send_call(&c, body ? buf_adds(&out, body) : 0, &out);
        r = http_loop_run(u.loop);
    }
    run_close(&u);
    if (r == 0) r = c.shot.err;
    if (r == 0 && ret_body) r = buf_add_buf(ret_body, &c.text);
    buf_fini(&c.text);
    return r < 0 ? r : c.shot.http_status;
}
