#include "tools/bench/openloop.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/net/http.h"

#include <errno.h>
#include <string.h>

enum { CONNS_MAX = 4096, ANSWER_S_MAX = 3600, LOOK_MS = 100, STREAM_TRIES = 50 };

static const struct openloop_shot shot_begin = {
    .ttft_ms = -1, .end_ms = -1, .queue_ms = -1, .prefill_ms = -1, .engine_ms = -1};

struct run;
struct shot { /* under way */
    struct run *run;
    struct openloop_shot *ret;
    struct http_call *call; /* NULL: not started, or over */
    struct sse_parser sse;
    uint64_t due_ns, last_ns;
    unsigned n_prompt, n_cached; /* of this call */
    bool of_stream, answered;    /* answered: the stream has at least once */
    struct shot *first_of;       /* one of the calls before this request's own; NULL: a request */
    size_t n_open;               /* such calls of this request that are under way */
};
/* Streams run alone until all of them answer and for alone_s more; then the requests' time begins.
 */
struct run {
    const struct openloop_opts *o;
    struct http_loop *loop;
    struct http_client *client;
    struct http_timer *timer;
    struct shot *shot;  /* [n] */
    struct shot *first; /* [n][calls->n]; as are those below */
    struct openloop_shot *first_ret;
    struct buf *first_text;
    size_t next, n_over;
    struct shot *stream;              /* [streams->n] */
    struct openloop_shot *stream_ret; /* [streams->n] */
    size_t n_begun, n_failed;         /* streams; failures in a row before the requests began */
    int failed_status;                /* HTTP, of the last of them */
    uint64_t together_ns;             /* since when all streams answer, 0: not yet */
    uint64_t start_ns;                /* the requests' time; 0: not yet */
    int err;
};

/* What an event of a stream adds to the first choice's text; NULL: nothing. */
static const char *added_text(const json_t *event)
{
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    const char *text =
        json_string_value(json_object_get(json_object_get(choice, "delta"), "content"));
    return text && *text ? text : NULL;
}

static void on_gap(const struct shot *s, uint64_t now)
{
    const struct run *u = s->run;
    struct openloop_shot *r = s->ret;
    const struct openloop_gap g = {.of_stream = s->of_stream,
                                   .alone = u->start_ns == 0 || now < u->start_ns,
                                   .ms = (double)(now - s->last_ns) / 1e6};
    if (g.ms > r->gap_ms_max) r->gap_ms_max = g.ms;
    if (g.of_stream && !g.alone) u->o->streams->answering_s += g.ms / 1e3;
    if (u->o->on_gap) u->o->on_gap(u->o->ctx, &g);
}

static struct buf *text_of(const struct shot *s)
{
    return &s->run->first_text[s - s->run->first];
}

static int on_event(void *ctx, const char *data, size_t len)
{
    struct shot *s = ctx;
    struct openloop_shot *r = s->ret;
    json_t *event = json_loadb(data, len, 0, NULL);
    if (!event) return 0; /* [DONE] */
    const char *text = added_text(event);
    if (text) {
        const uint64_t now = clock_ns();
        s->answered = true;
        if (s->first_of && buf_adds(text_of(s), text) < 0) r->err = -ENOMEM;
        if (r->n_pieces++ == 0)
            r->ttft_ms = (double)(now - s->due_ns) / 1e6;
        else if (!s->first_of)
            on_gap(s, now);
        s->last_ns = now;
    }
    const json_t *usage = json_object_get(event, "usage");
    if (json_is_object(usage)) {
        const json_t *more = json_object_get(usage, "prompt_tokens_details");
        s->n_prompt = (unsigned)json_integer_value(json_object_get(usage, "prompt_tokens"));
        s->n_cached = (unsigned)json_integer_value(json_object_get(more, "cached_tokens"));
    }
    const json_t *explained = json_object_get(event, "kvblend");
    if (json_is_object(explained)) {
        r->queue_ms = json_number_value(json_object_get(explained, "queue_ms"));
        r->prefill_ms = json_number_value(json_object_get(explained, "prefill_ms"));
        r->engine_ms = json_number_value(json_object_get(explained, "engine_ms"));
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

static void first_over(struct shot *s);

static void over(struct shot *s, int status)
{
    struct run *u = s->run;
    s->call = NULL;
    if (s->ret->err == 0) s->ret->err = status;
    s->ret->n_prompt += s->n_prompt;
    s->ret->n_cached += s->n_cached;
    if (s->first_of) {
        first_over(s);
        return;
    }
    s->ret->end_ms = (double)(clock_ns() - s->due_ns) / 1e6;
    if (s->of_stream) {
        u->failed_status = s->ret->http_status;
        u->n_failed = s->ret->n_pieces > 0 ? 0 : u->n_failed + 1;
        if (u->n_failed == 0) http_timer_set(u->timer, 0); /* else again at the next look */
        return;
    }
    if (++u->n_over < u->o->n) return;
    if (u->o->streams) u->o->streams->load_s = (double)(clock_ns() - u->start_ns) / 1e9;
    http_loop_stop(u->loop);
}

static void on_end(void *ctx, int status)
{
    over(ctx, status);
}

static const struct http_call_ops call_ops = {on_head, on_body, on_end};

/* r: what came of making the body, whose bytes are freed. */
static void send_call(struct shot *s, int r, struct buf *body)
{
    struct run *u = s->run;
    if (r == 0)
        r = http_call_start(u->client,
                            &(struct http_request){.method = "POST",
                                                   .target = u->o->path,
                                                   .headers = "Content-Type: application/json\r\n",
                                                   .body = body->data,
                                                   .len = body->len,
                                                   .may_repeat = true},
                            &call_ops, s, &s->call);
    buf_fini(body);
    if (r < 0) over(s, r);
}

static void start_calls(struct run *u, size_t i)
{
    const struct openloop_calls *c = u->o->calls;
    u->shot[i].n_open = c->n;
    for (size_t k = 0; k < c->n; k++) {
        struct buf body = BUF_INIT;
        struct shot *s = &u->first[i * c->n + k];
        s->due_ns = u->shot[i].due_ns;
        send_call(s, c->body(u->o->ctx, i, k, &body), &body);
    }
}

/* Of the calls before a request's own: the last one that ends lets it go on. */
static void first_over(struct shot *s)
{
    struct run *u = s->run;
    struct shot *q = s->first_of;
    const size_t i = (size_t)(q - u->shot);
    struct buf body = BUF_INIT;
    q->ret->n_prompt += s->ret->n_prompt;
    q->ret->n_cached += s->ret->n_cached;
    if (q->ret->err == 0) q->ret->err = s->ret->err;
    if (q->ret->http_status == 0 || q->ret->http_status == 200)
        q->ret->http_status = s->ret->http_status;
    if (--q->n_open > 0) return;
    if (q->ret->err < 0 || q->ret->http_status != 200) {
        over(q, 0);
    } else if (u->o->calls->own) {
        send_call(q, u->o->calls->own(u->o->ctx, i, &u->first_text[i * u->o->calls->n], &body),
                  &body);
    } else {
        q->ret->ttft_ms = (double)(clock_ns() - q->due_ns) / 1e6;
        over(q, 0);
    }
}

static void start(struct run *u, struct shot *s, size_t i)
{
    struct buf body = BUF_INIT;
    if (u->o->calls && !s->of_stream)
        start_calls(u, i);
    else
        send_call(s, (s->of_stream ? u->o->streams->body : u->o->body)(u->o->ctx, i, &body), &body);
}

static void cut_all(struct run *u, int status)
{
    const size_t n_first = u->o->calls ? u->o->calls->n : 0;
    for (size_t i = 0; i < u->next; i++) {
        struct shot *s = &u->shot[i];
        for (size_t k = 0; s->n_open > 0 && k < n_first; k++) {
            struct shot *f = &u->first[i * n_first + k];
            if (f->call) http_call_cancel(f->call);
            f->call = NULL;
        }
        if (!s->call && s->n_open == 0) continue;
        if (s->call) http_call_cancel(s->call);
        s->n_open = 0;
        over(s, status);
    }
}

/* Begins the streams that are not under way. Have all of them answered? */
static bool keep_streams(struct run *u)
{
    bool all = true;
    for (size_t i = 0; i < u->o->streams->n; i++) {
        struct shot *s = &u->stream[i];
        if (!s->call) {
            sse_parser_fini(&s->sse);
            *s->ret = shot_begin;
            s->due_ns = clock_ns();
            start(u, s, u->n_begun++);
        }
        all &= s->answered;
    }
    return all;
}

/* Has the requests' time begun? */
static bool begun(struct run *u)
{
    const struct openloop_streams *t = u->o->streams;
    if (!t) return true;
    const bool all = keep_streams(u);
    if (u->start_ns) return true;
    const uint64_t now = clock_ns();
    if (all && !u->together_ns) u->together_ns = now;
    if (!u->together_ns || now - u->together_ns < (uint64_t)(t->alone_s * 1e9)) return false;
    u->start_ns = now;
    return true;
}

static void stop_run(struct run *u, int status)
{
    u->err = status;
    http_loop_stop(u->loop);
}

/* Sleep, but look now and then whether all is to stop. */
static void sleep_until(struct run *u, double at_s, double now_s)
{
    uint64_t ms = (uint64_t)((at_s - now_s) * 1e3) + 1;
    if ((u->o->stopped || u->o->streams) && ms > LOOK_MS) ms = LOOK_MS;
    http_timer_set(u->timer, ms);
}

/* All that is due by now, then sleep until the next. */
static void on_time(void *arg)
{
    struct run *u = arg;
    const struct openloop_opts *o = u->o;
    if (o->stopped && o->stopped()) {
        cut_all(u, -ECANCELED);
        stop_run(u, -ECANCELED);
        return;
    }
    if (!begun(u)) {
        if (u->n_failed > STREAM_TRIES) stop_run(u, -EIO);
        http_timer_set(u->timer, LOOK_MS);
        return;
    }
    const double now_s = (double)(clock_ns() - u->start_ns) / 1e9;
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
    const size_t n_streams = u->stream && u->o->streams ? u->o->streams->n : 0;
    for (size_t i = 0; i < n_streams; i++) {
        if (u->stream[i].call) http_call_cancel(u->stream[i].call);
        sse_parser_fini(&u->stream[i].sse);
    }
    if (u->timer) http_timer_destroy(u->timer);
    if (u->client) http_client_destroy(u->client);
    if (u->loop) http_loop_destroy(u->loop);
    for (size_t i = 0; u->shot && i < u->o->n; i++)
        sse_parser_fini(&u->shot[i].sse);
    const size_t n_first = u->first_text && u->o->calls ? u->o->n * u->o->calls->n : 0;
    for (size_t i = 0; i < n_first; i++) {
        sse_parser_fini(&u->first[i].sse);
        buf_fini(&u->first_text[i]);
    }
    mem_free(u->first);
    mem_free(u->first_ret);
    mem_free(u->first_text);
    mem_free(u->shot);
    mem_free(u->stream);
    mem_free(u->stream_ret);
}

static int make_first(struct run *u)
{
    const size_t per = u->o->calls ? u->o->calls->n : 0, n = u->o->n * per;
    if (n == 0) return 0;
    u->first = mem_zalloc(n * sizeof *u->first);
    u->first_ret = mem_zalloc(n * sizeof *u->first_ret);
    u->first_text = u->first && u->first_ret ? mem_zalloc(n * sizeof *u->first_text) : NULL;
    if (!u->first_text) return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        u->first[i] =
            (struct shot){.run = u, .ret = &u->first_ret[i], .first_of = &u->shot[i / per]};
    return 0;
}

static int make_shots(struct run *u, struct openloop_shot *ret)
{
    const size_t n_streams = u->o->streams ? u->o->streams->n : 0;
    u->shot = mem_zalloc((u->o->n + 1) * sizeof *u->shot);
    u->stream = mem_zalloc((n_streams + 1) * sizeof *u->stream);
    u->stream_ret = mem_zalloc((n_streams + 1) * sizeof *u->stream_ret);
    if (!u->shot || !u->stream || !u->stream_ret) return -ENOMEM;
    for (size_t i = 0; i < u->o->n; i++) {
        ret[i] = shot_begin;
        u->shot[i] = (struct shot){.run = u, .ret = &ret[i]};
    }
    for (size_t i = 0; i < n_streams; i++)
        u->stream[i] = (struct shot){.run = u, .ret = &u->stream_ret[i], .of_stream = true};
    return make_first(u);
}

int openloop_run(const struct openloop_opts *o, struct openloop_shot *ret, struct err *err)
{
    struct run u = {.o = o};
    int r = make_shots(&u, ret);
    if (r < 0)
        (void)err_set(err, r, "out of memory");
    else
        r = run_open(&u, err);
    if (r == 0 && o->n > 0) {
        if (!o->streams) u.start_ns = clock_ns();
        http_timer_set(u.timer, 0);
        r = http_loop_run(u.loop);
        if (r < 0) (void)err_set(err, r, "the HTTP loop failed");
        if (r == 0) r = u.err;
        if (r == -EIO)
            (void)err_set(err, r, "%s: a stream gets no answer (HTTP %d)", o->address,
                          u.failed_status);
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
        r = http_call_start(
            client,
            &(struct http_request){.method = body ? "POST" : "GET",
                                   .target = path,
                                   .headers = body ? "Content-Type: application/json\r\n" : NULL,
                                   .body = body,
                                   .len = body ? strlen(body) : 0},
            &ops, &x, &call);
    if (r == 0) r = http_loop_run(x.loop);
    if (r == 0) r = x.status;
    if (client) http_client_destroy(client);
    http_loop_destroy(x.loop);
    return r < 0 ? r : x.http_status;
}
