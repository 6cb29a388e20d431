#include "base/otlp/otlp.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/net/http.h"

#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    QUEUE_BYTES = 4 << 20, /* chosen: some ten thousand spans; a batch is all that waits */
    SOON_BYTES = QUEUE_BYTES / 2,
    ANSWER_BYTES = 64 << 10,
    FLUSH_MS = 1000, /* chosen: an operator looks at once, a collector likes batches */
    CONNECT_MS = 5000,
    CALL_MS = 10000, /* OTLP's default */
    TRIES = 5,
    PAUSE_MS = 1000, /* doubled with each try */
    PAUSE_MAX_MS = 30000,
    END_MS = 2000, /* chosen: that the end of a process may take for it */
    HOST_BYTES = 260,
};

struct otlp {
    pthread_mutex_t lock;
    struct buf waiting; /* under lock: spans, commas between */
    unsigned n_waiting; /* under lock */
    bool ends;          /* under lock */
    /* constant */
    double sample;
    struct buf path, headers, head; /* head: what a request begins with, up to the spans */
    /* the thread's */
    pthread_t thread;
    bool has_thread;
    struct http_loop *loop;
    struct http_tls *tls;
    struct http_client *client;
    struct http_timer timer;
    struct http_call *call;
    struct buf batch, answer; /* batch: a whole request */
    unsigned n_batch, n_tries;
    uint64_t end_ns; /* of its patience; 0: it does not end */
    int status;      /* HTTP's; 0: there is no answer yet */
    bool ailing;     /* that was logged */
};

static struct metric sent = {.name = "kvblend_trace_spans_sent_total",
                             .help = "Spans that the collector has taken.",
                             .type = METRIC_COUNTER};
static struct metric dropped = {
    .name = "kvblend_trace_spans_dropped_total",
    .help = "Spans that were lost: the queue was full, or the collector did not take them.",
    .type = METRIC_COUNTER};

/* ---- spans ---- */

static size_t text_len(const char *s)
{
    return strnlen(s, OTLP_TEXT_BYTES);
}

static void attr_begin(struct buf *a, const char *key, const char *type)
{
    (void)buf_addf(a, "%s{\"key\":\"%s\",\"value\":{\"%s\":", a->len ? "," : "", key, type);
}

void otlp_attr_str(struct buf *a, const char *key, const char *v)
{
    if (!v) return;
    attr_begin(a, key, "stringValue");
    (void)buf_add_json_str(a, v, text_len(v));
    (void)buf_adds(a, "}}");
}

void otlp_attr_int(struct buf *a, const char *key, int64_t v)
{
    attr_begin(a, key, "intValue"); /* 64 bits are texts in JSON of protobuf */
    (void)buf_addf(a, "\"%" PRId64 "\"}}", v);
}

void otlp_attr_double(struct buf *a, const char *key, double v)
{
    attr_begin(a, key, "doubleValue");
    (void)buf_addf(a, "%.9g}}", v);
}

void otlp_span(struct otlp_spans *s, const struct otlp_span *x)
{
    const struct traceparent *t = x->trace;
    const bool own = x->kind == OTLP_SERVER;
    const uint64_t epoch_ns = (uint64_t)(clock_wall_s() * 1e9) - clock_ns();
    const uint64_t end_ns = x->end_ns > x->start_ns ? x->end_ns : x->start_ns;
    const char *parent = own ? t->parent : t->span;
    char id[SPAN_ID_BYTES];
    struct buf *b = &s->json;
    if (own)
        memcpy(id, t->span, sizeof id);
    else
        trace_random_hex(id, 8);
    (void)buf_addf(b, "%s{\"traceId\":\"%s\",\"spanId\":\"%s\",", s->n++ ? "," : "", t->trace, id);
    if (*parent) (void)buf_addf(b, "\"parentSpanId\":\"%s\",", parent);
    (void)buf_adds(b, "\"name\":");
    (void)buf_add_json_str(b, x->name, text_len(x->name));
    (void)buf_addf(b,
                   ",\"kind\":%d,\"startTimeUnixNano\":\"%" PRIu64
                   "\",\"endTimeUnixNano\":\"%" PRIu64 "\",\"attributes\":[",
                   (int)x->kind, epoch_ns + x->start_ns, epoch_ns + end_ns);
    if (x->attributes) (void)buf_add_buf(b, x->attributes);
    (void)buf_adds(b, "],\"status\":{");
    if (x->error) {
        (void)buf_adds(b, "\"code\":2,\"message\":");
        (void)buf_add_json_str(b, x->error, text_len(x->error));
    }
    (void)buf_adds(b, "}}");
}

void otlp_spans_fini(struct otlp_spans *s)
{
    buf_fini(&s->json);
    s->n = 0;
}

/* ---- queue ---- */

static void on_told(void *arg);

void otlp_put(struct otlp *o, struct otlp_spans *s)
{
    struct buf *w = &o->waiting;
    bool tell = false, full = true;
    if (s->n == 0) return;
    pthread_mutex_lock(&o->lock);
    if (buf_status(&s->json) == 0 && w->len + s->json.len < QUEUE_BYTES &&
        buf_reserve(w, s->json.len + 1) == 0) {
        const size_t before = w->len;
        full = false;
        if (before) (void)buf_addc(w, ',');
        (void)buf_add(w, s->json.data, s->json.len);
        o->n_waiting += s->n;
        tell = !before || (before < SOON_BYTES && w->len >= SOON_BYTES);
    }
    pthread_mutex_unlock(&o->lock);
    if (full) metric_add(&dropped, s->n);
    if (tell) (void)http_loop_post(o->loop, on_told, o);
    otlp_spans_fini(s);
}

void otlp_begin(const struct otlp *o, const struct http_head *h, struct traceparent *ret)
{
    if (traceparent_read(h, ret)) return;
    traceparent_begin(ret, false);
    /* The id itself is the draw: whoever samples by it elsewhere chooses alike. */
    char tail[14];
    (void)snprintf(tail, sizeof tail, "%s", ret->trace + TRACE_ID_BYTES - sizeof tail);
    const bool kept = (double)strtoull(tail, NULL, 16) < o->sample * (double)(1ull << 52);
    ret->flags[1] = kept ? '1' : '0';
}

/* ---- sending; the thread's ---- */

/* What waits becomes a request. False: nothing waits, or there is no memory for it. */
static bool take_batch(struct otlp *o)
{
    struct buf spans;
    pthread_mutex_lock(&o->lock);
    spans = o->waiting;
    o->waiting = (struct buf)BUF_INIT;
    o->n_batch = o->n_waiting;
    o->n_waiting = 0;
    pthread_mutex_unlock(&o->lock);
    buf_clear(&o->batch);
    (void)buf_add_buf(&o->batch, &o->head);
    (void)buf_add_buf(&o->batch, &spans);
    (void)buf_adds(&o->batch, "]}]}]}");
    buf_fini(&spans);
    o->n_tries = 0;
    if (o->n_batch > 0 && buf_status(&o->batch) == 0) return true;
    metric_add(&dropped, o->n_batch);
    o->n_batch = 0;
    return false;
}

/* Without a batch in hand: the next one, in time. */
static void go_on(struct otlp *o)
{
    pthread_mutex_lock(&o->lock);
    const size_t len = o->waiting.len;
    pthread_mutex_unlock(&o->lock);
    if (len > 0)
        http_timer_set(&o->timer, o->end_ns || len >= SOON_BYTES ? 0 : FLUSH_MS);
    else if (o->end_ns)
        http_loop_stop(o->loop);
}

static void forget_batch(struct otlp *o)
{
    buf_fini(&o->batch);
    buf_fini(&o->answer);
    o->n_batch = 0;
    go_on(o);
}

static void drop_batch(struct otlp *o, const char *why)
{
    metric_add(&dropped, o->n_batch);
    if (!o->ailing)
        log_event(LOG_WARN, "traces.lost", "spans=%u status=%d reason=\"%s\"", o->n_batch,
                  o->status, why);
    o->ailing = true;
    forget_batch(o);
}

/* "partialSuccess": {"rejectedSpans": "2"}; the number may be one, too. */
static unsigned rejected(const struct otlp *o)
{
    json_t *root = json_loadb(o->answer.data ? o->answer.data : "", o->answer.len, 0, NULL);
    const json_t *n = json_object_get(json_object_get(root, "partialSuccess"), "rejectedSpans");
    const double v = json_is_string(n) ? strtod(json_string_value(n), NULL) : json_number_value(n);
    const unsigned all = o->n_batch, ret = v >= all ? all : v > 0 ? (unsigned)v : 0;
    json_decref(root);
    return ret;
}

static bool may_come_again(const struct otlp *o)
{
    const int s = o->status;
    return s == 0 || s == 429 || s == 502 || s == 503 || s == 504;
}

static void on_ended(void *ctx, int status)
{
    struct otlp *o = ctx;
    o->call = NULL;
    if (status < 0) o->status = 0; /* an answer that is cut off is none */
    if (o->status / 100 == 2) {
        const unsigned lost = rejected(o);
        metric_add(&sent, o->n_batch - lost);
        metric_add(&dropped, lost);
        if (o->ailing) log_event(LOG_NOTICE, "traces.taken", "spans=%u", o->n_batch);
        o->ailing = false;
        forget_batch(o);
    } else if (may_come_again(o) && ++o->n_tries < TRIES && !o->end_ns) {
        const unsigned ms = PAUSE_MS << (o->n_tries - 1);
        http_timer_set(&o->timer, ms > PAUSE_MAX_MS ? PAUSE_MAX_MS : ms);
    } else {
        drop_batch(o, status < 0 ? err_name(status) : "the collector did not take them");
    }
}

static void on_answer(void *ctx, int status, const struct http_head *h)
{
    struct otlp *o = ctx;
    o->status = status;
}

static void on_more(void *ctx, const char *data, size_t len)
{
    struct otlp *o = ctx;
    if (o->answer.len + len <= ANSWER_BYTES) (void)buf_add(&o->answer, data, len);
}

static void send_batch(struct otlp *o)
{
    static const struct http_call_ops ops = {on_answer, on_more, on_ended};
    o->status = 0;
    buf_clear(&o->answer);
    int r = http_call_start(o->client,
                            &(struct http_request){.method = "POST",
                                                   .target = buf_cstr(&o->path),
                                                   .headers = buf_cstr(&o->headers),
                                                   .body = o->batch.data,
                                                   .len = o->batch.len,
                                                   .may_repeat = true},
                            &ops, o, &o->call);
    if (r < 0) o->call = NULL;
    if (r < 0) on_ended(o, r);
}

/* The end's patience is over. */
static void give_up(struct otlp *o)
{
    if (o->call) http_call_cancel(o->call);
    o->call = NULL;
    pthread_mutex_lock(&o->lock);
    o->n_batch += o->n_waiting;
    o->n_waiting = 0;
    buf_clear(&o->waiting);
    pthread_mutex_unlock(&o->lock);
    drop_batch(o, "the process ends");
}

/* A batch is due: a new one, or the last one again. */
static void on_timer(void *arg)
{
    struct otlp *o = arg;
    const uint64_t now = clock_ns();
    if (o->end_ns && now >= o->end_ns) {
        give_up(o);
        return;
    }
    if (o->end_ns) http_timer_set(&o->timer, (o->end_ns - now) / 1000000 + 1);
    if (o->call) return;
    if (o->n_batch > 0 || take_batch(o))
        send_batch(o);
    else
        go_on(o);
}

static void on_told(void *arg)
{
    struct otlp *o = arg;
    pthread_mutex_lock(&o->lock);
    const bool ends = o->ends;
    pthread_mutex_unlock(&o->lock);
    if (ends && !o->end_ns) {
        o->end_ns = clock_ns() + END_MS * 1000000ull;
        on_timer(o);
    } else if (!o->call && o->n_batch == 0) {
        go_on(o);
    }
}

static void *run(void *arg)
{
    struct otlp *o = arg;
    (void)http_loop_run(o->loop);
    return NULL;
}

/* ---- options ---- */

/* "HOST:PORT" into host, the path behind whatever is in *path. False: it is no endpoint. */
static bool read_endpoint(const char *s, struct buf *path, char host[HOST_BYTES], bool *ret_tls)
{
    static const char suffix[] = "/v1/traces";
    const bool tls = strncmp(s, "https://", 8) == 0;
    if (!tls && strncmp(s, "http://", 7) != 0) return false;
    s += tls ? 8 : 7;
    for (const char *p = s; *p; p++)
        if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 0x7f || strchr("?#@\\,", *p))
            return false;
    size_t n = strcspn(s, "/"), len = strlen(s + n);
    if (n == 0 || n + sizeof ":443" > HOST_BYTES) return false;
    const char *bracket = memchr(s, ']', n), *from = bracket ? bracket : s;
    const bool has_port = memchr(from, ':', n - (size_t)(from - s)) != NULL;
    (void)snprintf(host, HOST_BYTES, "%.*s%s", (int)n, s, has_port ? "" : tls ? ":443" : ":80");
    while (len > 0 && s[n + len - 1] == '/')
        len--;
    (void)buf_add(path, s + n, len);
    const size_t end = sizeof suffix - 1;
    if (len < end || memcmp(s + n + len - end, suffix, end) != 0) (void)buf_adds(path, suffix);
    *ret_tls = tls;
    return true;
}

bool otlp_endpoint_ok(const char *text)
{
    struct buf path = BUF_INIT;
    char host[HOST_BYTES];
    bool tls;
    const bool ok = read_endpoint(text, &path, host, &tls);
    buf_fini(&path);
    return ok;
}

bool otlp_header_ok(const char *text)
{
    const size_t n = http_token_len(text);
    if (n == 0 || text[n] != '=') return false;
    for (const char *p = text + n + 1; *p; p++)
        if ((unsigned char)*p < ' ' || (unsigned char)*p >= 0x7f) return false;
    return true;
}

/* ---- life ---- */

static int put_headers(struct otlp *o, const struct otlp_opts *from)
{
    int r = buf_adds(&o->headers,
                     "Content-Type: application/json\r\nUser-Agent: kvblend/" KV_VERSION "\r\n");
    for (size_t i = 0; r == 0 && i < from->n_headers; i++) {
        const char *h = from->header[i];
        const size_t n = strcspn(h, "=");
        r = buf_addf(&o->headers, "%.*s: %s\r\n", (int)n, h, h + n + 1);
    }
    return r;
}

static int put_resource(struct buf *b, const char *service)
{
    struct buf a = BUF_INIT;
    char host[256] = "";
    (void)gethostname(host, sizeof host - 1);
    otlp_attr_str(&a, "service.name", service);
    otlp_attr_str(&a, "service.version", KV_VERSION);
    otlp_attr_str(&a, "host.name", host);
    otlp_attr_int(&a, "process.pid", getpid());
    (void)buf_adds(b, "{\"resourceSpans\":[{\"resource\":{\"attributes\":[");
    (void)buf_add_buf(b, &a);
    (void)buf_adds(b,
                   "]},\"scopeSpans\":[{\"scope\":{\"name\":\"kvblend\",\"version\":\"" KV_VERSION
                   "\"},\"spans\":[");
    buf_fini(&a);
    return buf_status(b);
}

int otlp_create(const struct otlp_opts *from, struct otlp **ret, struct err *err)
{
    struct otlp *o = mem_zalloc(sizeof *o);
    char host[HOST_BYTES];
    bool tls = false;
    if (!o) return err_set(err, -ENOMEM, "out of memory");
    pthread_mutex_init(&o->lock, NULL);
    o->sample = from->sample;
    int r = read_endpoint(from->endpoint, &o->path, host, &tls)
                ? 0
                : err_set(err, -EINVAL, "\"%.100s\" is no http(s)://HOST:PORT", from->endpoint);
    if (r == 0) r = put_headers(o, from);
    if (r == 0) r = put_resource(&o->head, from->service);
    if (r == 0 && (!buf_cstr(&o->path) || !buf_cstr(&o->headers))) r = -ENOMEM;
    if (r == 0) r = http_loop_create(&o->loop);
    if (r == 0) http_timer_init(&o->timer, o->loop, on_timer, o);
    if (r == 0 && tls) r = http_tls_create(&(struct http_tls_opts){0}, &o->tls, err);
    const struct http_client_opts client = {.address = host,
                                            .conns_max = 1,
                                            .connect_timeout_ms = CONNECT_MS,
                                            .first_byte_timeout_ms = CALL_MS,
                                            .total_timeout_ms = CALL_MS,
                                            .tls = o->tls};
    if (r == 0) r = http_client_create(o->loop, &client, &o->client);
    if (r == 0) r = -pthread_create(&o->thread, NULL, run, o);
    o->has_thread = r == 0;
    if (r < 0) {
        if (err && !err->code) (void)err_set(err, r, "traces cannot be sent (%s)", err_name(r));
        otlp_destroy(o);
        return r;
    }
    metric_register(&sent);
    metric_register(&dropped);
    *ret = o;
    return 0;
}

void otlp_destroy(struct otlp *o)
{
    if (!o) return;
    if (o->has_thread) {
        pthread_mutex_lock(&o->lock);
        o->ends = true;
        pthread_mutex_unlock(&o->lock);
        if (http_loop_post(o->loop, on_told, o) < 0) http_loop_stop(o->loop);
        (void)pthread_join(o->thread, NULL);
    }
    if (o->loop) http_timer_fini(&o->timer);
    if (o->client) http_client_destroy(o->client);
    http_tls_unref(o->tls);
    if (o->loop) http_loop_destroy(o->loop);
    buf_fini(&o->waiting);
    buf_fini(&o->batch);
    buf_fini(&o->answer);
    buf_fini(&o->path);
    buf_fini(&o->head);
    if (o->headers.data) explicit_bzero(o->headers.data, o->headers.cap);
    buf_fini(&o->headers);
    pthread_mutex_destroy(&o->lock);
    mem_free(o);
}
