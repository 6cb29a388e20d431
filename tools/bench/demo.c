/* kvblend-bench demo: the main job, seen from outside: a RAG question to a running gateway, then
 * the same documents in another order with another question, then full / prefix / blend side by
 * side.
 *
 * Speaks only HTTP, so it shows what an application gets: the time to first token is taken here, at
 * the first content event of the stream; token counts come from the response's own report. */
#include "tools/bench/bench.h"
#include "tools/bench/openloop.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/net/http.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TABLE_REPS = 3, BUILD_WAIT_S = 300 };

struct demo {
    struct http_loop *loop;
    struct http_client *client;
    char *doc[BENCH_DOCS_MAX];
    size_t n_docs;
};

struct reply { /* one exchange */
    struct demo *demo;
    struct sse_parser sse;
    struct buf body, answer;
    json_t *report; /* the "kvblend" object, NULL = none seen */
    uint64_t start_ns;
    double ttft_ms; /* < 0: no content came */
    int http_status, status;
    bool stream;
};

static void reply_fini(struct reply *r)
{
    sse_parser_fini(&r->sse);
    buf_fini(&r->body);
    buf_fini(&r->answer);
    json_decref(r->report);
}

/* ---- one exchange ---- */

static int on_event(void *ctx, const char *data, size_t len)
{
    struct reply *r = ctx;
    json_t *event = json_loadb(data, len, 0, NULL);
    if (!event) return 0; /* [DONE] */
    const char *text = openloop_text(event);
    if (text) {
        if (r->ttft_ms < 0) r->ttft_ms = clock_ms_since(r->start_ns);
        (void)buf_adds(&r->answer, text);
    }
    json_t *report = json_object_get(event, "kvblend");
    if (report) {
        json_decref(r->report);
        r->report = json_incref(report);
    }
    json_decref(event);
    return 0;
}

static void on_head(void *ctx, int status, const struct http_head *h)
{
    struct reply *r = ctx;
    r->http_status = status;
    const char *type = http_header_find(h, "Content-Type");
    r->stream = type && strncmp(type, "text/event-stream", 17) == 0;
}

static void on_body(void *ctx, const char *data, size_t len)
{
    struct reply *r = ctx;
    if (r->stream)
        (void)sse_parser_push(&r->sse, data, len, on_event, r);
    else
        (void)buf_add(&r->body, data, len);
}

static void on_end(void *ctx, int status)
{
    struct reply *r = ctx;
    r->status = status;
    http_loop_stop(r->demo->loop);
}

static const struct http_call_ops call_ops = {on_head, on_body, on_end};

static int exchange(struct demo *d, const char *method, const char *target, const char *body,
                    struct reply *ret)
{
    struct http_call *call;
    *ret = (struct reply){.demo = d, .ttft_ms = -1, .start_ns = clock_ns()};
    int r = http_call_start(d->client, method, target,
                            body ? "Content-Type: application/json\r\n" : NULL, body,
                            body ? strlen(body) : 0, &call_ops, ret, &call);
    if (r == 0) r = http_loop_run(d->loop);
    return r < 0 ? r : ret->status;
}

/* ---- prompts ---- */

/* The prompt a plain RAG application would send; order[i] is the i-th document shown. */
static char *request_body(const struct demo *d, const size_t *order, const char *question,
                          const char *mode)
{
    struct buf text = BUF_INIT;
    int r = buf_adds(&text, "Answer the question from these documents.\n\n");
    for (size_t i = 0; r == 0 && i < d->n_docs; i++)
        r = buf_addf(&text, "### Document %zu\n%s\n\n", i + 1, d->doc[order[i]]);
    if (r == 0) r = buf_addf(&text, "Question: %s", question);
    json_t *body =
        json_pack("{s:s, s:b, s:i, s:f, s:[{s:s, s:s}], s:{s:s, s:b}}", "model", "", "stream", 1,
                  "max_tokens", 40, "temperature", 0.0, "messages", "role", "user", "content",
                  buf_cstr(&text) ? buf_cstr(&text) : "", "kvblend", "mode", mode, "explain", 1);
    if (body) json_object_del(body, "model"); /* the gateway's own model */
    char *s = r == 0 && body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    buf_fini(&text);
    return s;
}

static int ask(struct demo *d, const size_t *order, const char *question, const char *mode,
               struct reply *ret, struct err *err)
{
    char *body = request_body(d, order, question, mode);
    if (!body) return err_set(err, -ENOMEM, "out of memory");
    int r = exchange(d, "POST", "/v1/chat/completions", body, ret);
    mem_free(body);
    if (r < 0) return err_set(err, r, "the request failed: %s", err_name(r));
    if (ret->http_status != 200)
        return err_set(err, -EIO, "HTTP %d: %.150s", ret->http_status, buf_cstr(&ret->body));
    if (ret->ttft_ms < 0) return err_set(err, -EIO, "the answer was empty");
    return 0;
}

static int report_int(const struct reply *r, const char *name)
{
    const json_t *tokens = json_object_get(r->report, "tokens");
    return (int)json_integer_value(json_object_get(tokens, name));
}

/* ---- waiting ---- */

/* The value of a metric without labels, -1 when it is not there. */
static double metric_value(struct reply *r, const char *name)
{
    const char *text = buf_cstr(&r->body);
    size_t len = strlen(name);
    for (const char *p = text; p && (p = strstr(p, name)); p += len)
        if ((p == text || p[-1] == '\n') && (p[len] == ' ' || p[len] == '{')) {
            const char *value = strchr(p, p[len] == '{' ? '}' : ' ');
            return value ? strtod(value + 1, NULL) : -1;
        }
    return -1;
}

static void wake(void *loop)
{
    http_loop_stop(loop);
}

static int pause_ms(struct demo *d, unsigned ms)
{
    struct http_timer *t;
    int r = http_timer_create(d->loop, wake, d->loop, &t);
    if (r < 0) return r;
    http_timer_set(t, ms);
    r = http_loop_run(d->loop);
    http_timer_destroy(t);
    return r;
}

/* Chunks are built in idle time after the first request; a moment later the next one finds them. */
static int wait_for_builds(struct demo *d, struct err *err)
{
    uint64_t t0 = clock_ns();
    while (clock_ms_since(t0) < BUILD_WAIT_S * 1000.0) {
        struct reply r;
        int status = exchange(d, "GET", "/metrics", NULL, &r);
        double pending = status < 0 ? 0 : metric_value(&r, "kvblend_builds_pending");
        if (status == 0 && r.http_status != 200)
            status = err_set(err, -EACCES,
                             "HTTP %d for /metrics, which says when the chunks are built: start "
                             "kvblend with --metrics-public",
                             r.http_status);
        reply_fini(&r);
        if (status < 0) return status;
        if (pending <= 0) return 0;
        if (isatty(STDERR_FILENO))
            (void)fprintf(stderr, "\r  building chunks in idle time: %.0f to go \r", pending);
        status = pause_ms(d, 200);
        if (status < 0) return status;
    }
    return -ETIMEDOUT;
}

/* ---- the show ---- */

static int show(struct demo *d, const char *title, const size_t *order, const char *question,
                struct err *err)
{
    struct reply r;
    int status = ask(d, order, question, "auto", &r, err);
    if (status == 0) {
        const char *mode = json_string_value(json_object_get(r.report, "mode"));
        (void)printf("\n%s\n  question:  %s\n  answer:    %s\n  TTFT:      %.0f ms   mode: %s\n"
                     "  tokens:    %d prefix, %d reused, %d recomputed, %d computed\n",
                     title, question, buf_cstr(&r.answer), r.ttft_ms, mode ? mode : "?",
                     report_int(&r, "prefix"), report_int(&r, "reused"),
                     report_int(&r, "recomputed"), report_int(&r, "computed"));
    }
    reply_fini(&r);
    return status;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Every round shows the documents in an order that was not seen before, which is what retrieval
 * does and what prefix caching cannot use; within a round the three modes get the same prompt. */
static int table(struct demo *d, const char *question, struct err *err)
{
    static const char *const modes[] = {"full", "prefix", "blend"};
    double ms[3][TABLE_REPS];
    int recomputed[3] = {0}, reused[3] = {0};
    for (size_t rep = 0; rep < TABLE_REPS; rep++) {
        size_t order[BENCH_DOCS_MAX];
        for (size_t i = 0; i < d->n_docs; i++)
            order[i] = (2 * d->n_docs - 1 - i - rep) % d->n_docs;
        for (size_t m = 0; m < 3; m++) { /* interleaved: a slow moment hits all three */
            struct reply r;
            int status = ask(d, order, question, modes[m], &r, err);
            ms[m][rep] = r.ttft_ms;
            recomputed[m] = report_int(&r, "recomputed") + report_int(&r, "computed");
            reused[m] = report_int(&r, "reused") + report_int(&r, "prefix");
            reply_fini(&r);
            if (status < 0) return status;
        }
    }
    (void)printf("\n3. New orders and another question, median of %d, measured at the client:\n"
                 "  %-8s %10s %10s %16s %16s\n",
                 TABLE_REPS, "mode", "TTFT ms", "speed-up", "tokens reused", "tokens computed");
    for (size_t m = 0; m < 3; m++)
        qsort(ms[m], TABLE_REPS, sizeof(double), by_value);
    for (size_t m = 0; m < 3; m++)
        (void)printf("  %-8s %10.0f %9.2fx %16d %16d\n", modes[m], ms[m][TABLE_REPS / 2],
                     ms[0][TABLE_REPS / 2] / ms[m][TABLE_REPS / 2], reused[m], recomputed[m]);
    return 0;
}

static int run_show(struct demo *d, struct err *err)
{
    size_t first[BENCH_DOCS_MAX], second[BENCH_DOCS_MAX];
    for (size_t i = 0; i < d->n_docs; i++) {
        first[i] = i;
        second[i] = (i + d->n_docs / 2) % d->n_docs;
    }
    int r = show(d, "1. First time (cold): nothing is cached", first,
                 "Who built the lighthouse at Harrow Point?", err);
    if (r == 0) r = wait_for_builds(d, err);
    if (r == 0)
        r = show(d, "2. Same documents, another order, another question (warm)", second,
                 "Who founded the observatory on Mount Ester?", err);
    if (r == 0) r = table(d, "What were the first three engines of the railway called?", err);
    if (r < 0 && err->code == 0) (void)err_set(err, r, "the demo failed: %s", err_name(r));
    return r;
}

int bench_demo(const struct opts *opts, struct err *err)
{
    struct demo d = {0};
    const char *url = opt_str(opts, "url"), *address = url;
    if (strncmp(url, "http://", 7) == 0) address += 7;
    struct http_client_opts o = {.address = address};
    int r = bench_documents(opt_str(opts, "documents"), d.doc, &d.n_docs, err);
    if (r == 0 && d.n_docs < 2) r = err_set(err, -EINVAL, "fewer than two documents");
    if (r == 0) r = http_loop_create(&d.loop);
    if (r == 0) r = http_client_create(d.loop, &o, &d.client);
    if (r < 0 && err->code == 0) (void)err_set(err, r, "%s: %s", url, err_name(r));
    if (r == 0) r = run_show(&d, err);
    http_client_destroy(d.client);
    http_loop_destroy(d.loop);
    for (size_t i = 0; i < d.n_docs; i++)
        mem_free(d.doc[i]);
    return r;
}
