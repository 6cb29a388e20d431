/* One HTTP request as the worker sees it: its id, its answer, its line in the access log. */
#include "worker/call.h"

#include "base/clock.h"
#include "base/jobs.h"
#include "base/log.h"
#include "worker/admin/metrics.h"
#include "worker/worker.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

void wk_random(void *to, size_t n)
{
    const uint64_t t = clock_ns() ^ (uint64_t)(uintptr_t)to;

    if (getrandom(to, n, 0) == (ssize_t)n) return;
    for (size_t i = 0; i < n; i++)
        ((unsigned char *)to)[i] = (unsigned char)(t >> (i % 8 * 8));
}

void wk_reply_id(const char *kind, char ret[WK_REPLY_ID_BYTES])
{
    uint64_t r[2];

    wk_random(r, sizeof r);
    (void)snprintf(ret, WK_REPLY_ID_BYTES, "%.12s-%016llx%016llx", kind, (unsigned long long)r[0],
                   (unsigned long long)r[1]);
}

void wk_call_id(const char *sent, char ret[WK_ID_BYTES])
{
    size_t n = sent ? strlen(sent) : 0;
    uint64_t r[2];

    for (size_t i = 0; i < n; i++)
        if (sent[i] <= 32 || sent[i] > 126) n = 0;
    if (n > 0 && n < WK_ID_BYTES) {
        memcpy(ret, sent, n + 1);
        return;
    }
    wk_random(r, sizeof r);
    (void)snprintf(ret, WK_ID_BYTES, "req_%016llx%016llx", (unsigned long long)r[0],
                   (unsigned long long)r[1]);
}

int wk_call_create(struct worker *w, struct http_req *r, struct wk_call **ret)
{
    struct wk_call *c = mem_zalloc(sizeof *c);

    if (!c) return -ENOMEM;
    c->w = w;
    c->r = r;
    c->route = "other";
    c->ttft_ms = c->queue_ms = -1;
    wk_call_id(http_header_find(&r->msg.head, "x-request-id"), c->id);
    const bool asks = strcmp(r->msg.method, "POST") == 0;
    if (w->process.traces && asks && strncmp(r->msg.path, "/admin/", 7) != 0)
        otlp_begin(w->process.traces, &r->msg.head, &c->trace.at);
    r->user = c;
    *ret = c;
    return 0;
}

bool wk_call_traced(const struct wk_call *c)
{
    return traceparent_sampled(&c->trace.at);
}

/* As the conventions for generative AI name it; NULL: it is none of theirs. */
static const char *operation_of(const struct wk_call *c)
{
    return strcmp(c->route, "chat") == 0          ? "chat"
           : strcmp(c->route, "completions") == 0 ? "text_completion"
           : strcmp(c->route, "embeddings") == 0  ? "embeddings"
                                                  : NULL;
}

static void put_attributes(struct wk_call *c, int status)
{
    struct buf *a = &c->trace.attributes;
    const struct api_usage *u = &c->usage;
    const char *operation = operation_of(c);

    otlp_attr_str(a, "http.request.method", c->r->msg.method);
    otlp_attr_str(a, "http.route", c->route);
    otlp_attr_int(a, "http.response.status_code", status);
    otlp_attr_str(a, "kvblend.request_id", c->id);
    otlp_attr_str(a, "gen_ai.operation.name", operation);
    if (operation) otlp_attr_str(a, "gen_ai.provider.name", "kvblend");
    if (u->prompt == 0) return;
    otlp_attr_int(a, "gen_ai.usage.input_tokens", (int64_t)u->prompt);
    otlp_attr_int(a, "gen_ai.usage.output_tokens", (int64_t)u->completion);
    otlp_attr_int(a, "gen_ai.usage.cache_read.input_tokens", (int64_t)(u->prefix + u->reused));
    otlp_attr_int(a, "kvblend.chunks", c->n_chunks);
    if (c->ttft_ms >= 0) otlp_attr_double(a, "kvblend.ttft_seconds", c->ttft_ms / 1e3);
}

static void put_spans(struct wk_call *c, int status)
{
    const char *operation = operation_of(c), *of = operation ? c->w->model_name : c->route;
    char name[2 * OTLP_TEXT_BYTES], code[12];

    if (!wk_call_traced(c)) return;
    (void)snprintf(name, sizeof name, "%s %s", operation ? operation : c->r->msg.method, of);
    (void)snprintf(code, sizeof code, "%d", status);
    put_attributes(c, status);
    if (status >= 500) otlp_attr_str(&c->trace.attributes, "error.type", code);
    otlp_span(&c->trace.steps, &(struct otlp_span){.trace = &c->trace.at,
                                                   .kind = OTLP_SERVER,
                                                   .name = name,
                                                   .start_ns = c->r->start_ns,
                                                   .end_ns = clock_ns(),
                                                   .error = status >= 500 ? code : NULL,
                                                   .attributes = &c->trace.attributes});
    otlp_put(c->w->process.traces, &c->trace.steps);
}

void wk_call_closed(struct wk_call *c, bool aborted)
{
    int status = aborted && c->status < 400 ? 499 : c->status;
    const struct api_usage *u = &c->usage;

    if (c->on_close) c->on_close(c->owner, aborted);
    wk_metrics_request(status ? status : 499);
    bool often = strcmp(c->route, "health") == 0 || strcmp(c->route, "metrics") == 0 ||
                 strcmp(c->route, "residents") == 0 || strcmp(c->route, "now") == 0;
    log_event(often ? LOG_DEBUG : LOG_INFO, "request",
              "request_id=%s method=%s route=%s status=%d stream=%d aborted=%d ms=%.1f "
              "ttft_ms=%.1f queue_ms=%.1f prompt=%llu completion=%llu chunks=%u prefix=%llu "
              "reused=%llu recomputed=%llu bytes_out=%llu peer=%s",
              c->id, c->r->msg.method, c->route, status, c->stream, aborted,
              clock_ms_since(c->r->start_ns), c->ttft_ms, c->queue_ms,
              (unsigned long long)u->prompt, (unsigned long long)u->completion, c->n_chunks,
              (unsigned long long)u->prefix, (unsigned long long)u->reused,
              (unsigned long long)u->recomputed, (unsigned long long)c->r->bytes_out, c->r->peer);
    put_spans(c, status ? status : 499);
    otlp_spans_fini(&c->trace.steps);
    buf_fini(&c->trace.attributes);
    mem_free(c);
}

char *wk_call_body(const struct wk_call *c, size_t *ret_len)
{
    const char *body = http_req_body(c->r, ret_len);
    char *copy = mem_alloc(*ret_len + 1);

    if (!copy) return NULL;
    memcpy(copy, body, *ret_len);
    copy[*ret_len] = 0;
    return copy;
}

int wk_call_headers(const struct wk_call *c, const char *extra, struct buf *out)
{
    buf_addf(out, "x-request-id: %s\r\n", c->id);
    if (extra) buf_adds(out, extra);
    return buf_status(out);
}

bool wk_call_query(const struct wk_call *c, const char *name, char *ret, size_t cap)
{
    const char *p = c->r->msg.query;
    size_t len = strlen(name);
    bool found = false;

    *ret = 0;
    while (p && *p) {
        size_t n = strcspn(p, "&");
        if (n > len && p[len] == '=' && strncmp(p, name, len) == 0) {
            (void)snprintf(ret, cap, "%.*s", (int)(n - len - 1), p + len + 1);
            found = true;
        }
        p += n + (p[n] == '&');
    }
    return found;
}

void wk_reply(struct wk_call *c, int status, const char *type, const char *extra, struct buf *body)
{
    struct buf h = BUF_INIT;

    c->status = status;
    if (buf_status(body) < 0)
        wk_reply_oom(c);
    else if (wk_call_headers(c, extra, &h) < 0)
        http_reply_abort(c->r);
    else
        (void)http_reply(c->r, status, type, buf_cstr(&h), body->data ? body->data : "", body->len);
    buf_fini(&h);
    buf_fini(body);
}

void wk_reply_buf(struct wk_call *c, int status, struct buf *b)
{
    wk_reply(c, status, "application/json", NULL, b);
}

void wk_reply_error(struct wk_call *c, const struct api_err *e)
{
    struct buf body = BUF_INIT, h = BUF_INIT;
    struct api_err shown = *e;
    if (e->status == 405) shown.param[0] = '\0'; /* carries the Allow header's value */
    api_put_error(&body, &shown);
    if (e->retry_after_s) buf_addf(&h, "Retry-After: %u\r\n", e->retry_after_s);
    /* What the request itself got wrong fails again. */
    if (e->retry != API_RETRY_DEFAULT || (e->status < 500 && e->status != 408 && e->status != 429))
        buf_addf(&h, "x-should-retry: %s\r\n", e->retry == API_RETRY_YES ? "true" : "false");
    if (api_err_is(e, API_UNSUPPORTED_PARAMETER)) /* another server may: the gateway asks one */
        (void)http_header_add(&h, "x-kvblend-unsupported", e->param);
    if (e->status == 401) buf_adds(&h, "WWW-Authenticate: Bearer\r\n");
    if (e->status == 405) buf_addf(&h, "Allow: %s\r\n", e->param[0] ? e->param : "GET");
    if (buf_status(&body) < 0 || buf_status(&h) < 0)
        http_reply_abort(c->r);
    else
        wk_reply(c, e->status, "application/json", buf_cstr(&h), &body);
    buf_fini(&h);
    buf_fini(&body);
}

void wk_refuse(struct wk_call *c, enum api_fault f, const char *param, const char *fmt, ...)
{
    struct api_err e;
    va_list ap;

    va_start(ap, fmt);
    (void)api_err_setv(&e, f, param, fmt, ap);
    va_end(ap);
    wk_reply_error(c, &e);
}

void wk_reply_oom(struct wk_call *c)
{
    wk_refuse(c, API_INTERNAL_ERROR, NULL, "Out of memory.");
}

int wk_not_ready(struct worker *w, struct api_err *e)
{
    int s = atomic_load(&w->state);

    if (s == WK_READY) return 0;
    if (w->process.device_lost)
        (void)api_err_set(e, API_DEVICE_LOST, NULL,
                          "The GPU has failed; this worker ends, to be started anew.");
    else if (s == WK_DRAINING)
        (void)api_err_set(e, API_DRAINING, NULL, "This worker is shutting down.");
    else
        (void)api_err_set(e, API_MODEL_LOADING, NULL, "The model is loading (%u %%).",
                          atomic_load(&w->loader.progress) / 10);
    return -EAGAIN;
}

/* ---- headers of the gateway ---- */
void wk_percent_decode(char *s)
{
    char *o = s;

    for (unsigned v = 0; *s; v = 0) {
        const bool coded = *s == '%' && isxdigit((unsigned char)s[1]) &&
                           isxdigit((unsigned char)s[2]) && sscanf(s + 1, "%2x", &v) == 1 && v > 0;
        *o++ = coded ? (char)v : *s;
        s += coded ? 3 : 1;
    }
    *o = 0;
}

int wk_hints_read(const struct http_req *r, struct wk_hints *ret)
{
    const struct {
        const char *name;
        char **to;
    } hints[] = {{"X-KVBlend-Segments", &ret->segments},
                 {"X-KVBlend-Mode", &ret->mode},
                 {"X-KVBlend-Namespace", &ret->ns},
                 {"X-KVBlend-Separator", &ret->separator}};

    memset(ret, 0, sizeof *ret);
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++) {
        const char *v = http_header_find(&r->msg.head, hints[i].name);
        if (!v || !*v || (*hints[i].to = mem_strdup(v))) continue;
        wk_hints_fini(ret);
        return -ENOMEM;
    }
    if (ret->separator) wk_percent_decode(ret->separator);
    return 0;
}

void wk_hints_fini(struct wk_hints *h)
{
    mem_free(h->segments);
    mem_free(h->mode);
    mem_free(h->ns);
    mem_free(h->separator);
    memset(h, 0, sizeof *h);
}

/* ---- tasks: a POST body worked on by a helper ---- */
static void task_run(void *arg)
{
    struct wk_task *t = arg;
    int rc = t->work.run(t);

    if (rc < 0 && t->e.status == 0)
        (void)api_err_set(&t->e, API_INTERNAL_ERROR, NULL, "%s.",
                          rc == -ENOMEM ? "Out of memory" : "The request failed");
    wk_post(t->w, &t->msg);
}

static void task_closed(void *owner, bool aborted)
{
    struct wk_task *t = owner;

    t->call = NULL; /* the result has no reader; task_back() frees */
    atomic_store(&t->gone, true);
}

static void task_back(struct wk_msg *m)
{
    struct wk_task *t = (struct wk_task *)((char *)m - offsetof(struct wk_task, msg));
    struct wk_call *c = t->call;

    t->at_helper = false;
    if (c && t->e.status == 0 && t->work.then) {
        t->work.then(t); /* takes the task */
        return;
    }
    if (c) c->on_close = NULL;
    if (c && t->e.status)
        wk_reply_error(c, &t->e);
    else if (c)
        wk_reply_buf(c, 200, &t->out);
    wk_task_free(t);
}

void wk_task_free(struct wk_task *t)
{
    LIST_REMOVE(t, link);
    wk_unpost(t->w, &t->msg);
    if (t->work.fini) t->work.fini(t);
    wk_hints_fini(&t->hints);
    mem_free(t->body);
    buf_fini(&t->out);
    mem_free(t);
}

struct wk_task *wk_task_create(struct wk_call *c, const struct wk_work *work)
{
    struct wk_task *t = mem_zalloc(work->bytes ? work->bytes : sizeof *t);

    if (t) t->body = wk_call_body(c, &t->body_len);
    if (!t || !t->body || wk_hints_read(c->r, &t->hints) < 0) {
        if (t) mem_free(t->body);
        mem_free(t);
        wk_reply_oom(c);
        return NULL;
    }
    t->w = c->w;
    t->call = c;
    t->work = *work;
    t->msg.fn = task_back;
    LIST_INSERT_HEAD(&t->w->requests.tasks, t, link);
    c->owner = t;
    c->on_close = task_closed;
    return t;
}

void wk_task_submit(struct wk_task *t)
{
    struct wk_call *c = t->call;

    t->at_helper = true;
    if (jobs_submit(t->w->helpers, task_run, t) == 0) return;
    c->on_close = NULL;
    wk_task_free(t);
    wk_refuse(c, API_QUEUE_FULL, NULL, "This worker is busy. Please try again shortly.");
}

void wk_task_start(struct wk_call *c, const struct wk_work *work)
{
    struct wk_task *t = wk_task_create(c, work);

    if (t) wk_task_submit(t);
}

struct wk_task *wk_task_next(struct worker *w, struct wk_task *t, void (*then)(struct wk_task *t))
{
    t = t ? LIST_NEXT(t, link) : LIST_FIRST(&w->requests.tasks);
    while (t && (t->work.then != then || t->at_helper))
        t = LIST_NEXT(t, link);
    return t;
}
