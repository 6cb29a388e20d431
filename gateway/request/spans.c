#include "gateway/request/spans.h"

#include "base/clock.h"
#include "base/otlp/otlp.h"
#include "gateway/front/keys.h"
#include "gateway/request/request.h"

#include <stdio.h>
#include <string.h>

/* As the conventions for generative AI name it; NULL: it is none of theirs. */
static const char *operation_of(const struct gw_route *r)
{
    const char *to = r->target ? r->target : "";
    return strcmp(to, "/v1/chat/completions") == 0 || r->dialect != GW_CHAT ? "chat"
           : strcmp(to, "/v1/completions") == 0                             ? "text_completion"
           : r->props & GW_R_VECTORS                                        ? "embeddings"
                                                                            : NULL;
}

static void put_counts(struct buf *a, const struct gw_usage *u)
{
    if (!u->known) return;
    otlp_attr_int(a, "gen_ai.usage.input_tokens", (int64_t)u->prompt);
    otlp_attr_int(a, "gen_ai.usage.output_tokens", (int64_t)u->completion);
    if (u->has_cached) otlp_attr_int(a, "gen_ai.usage.cache_read.input_tokens", (int64_t)u->cached);
}

static void put_attributes(struct buf *a, const struct gw_req *q, int status, const char *operation)
{
    otlp_attr_str(a, "http.request.method", q->http->msg.method);
    otlp_attr_str(a, "http.route", q->route->path);
    otlp_attr_int(a, "http.response.status_code", status);
    otlp_attr_str(a, "client.address", q->http->peer);
    if (operation) otlp_attr_str(a, "gen_ai.operation.name", operation);
    if (operation) otlp_attr_str(a, "gen_ai.provider.name", "kvblend");
    otlp_attr_str(a, "gen_ai.request.model", gw_req_model(q));
    put_counts(a, &q->usage);
    otlp_attr_str(a, "kvblend.request_id", q->id);
    if (q->key && q->key->id[0]) otlp_attr_str(a, "kvblend.key_id", q->key->id);
    otlp_attr_str(a, "kvblend.target", q->target_name);
    otlp_attr_int(a, "kvblend.retries", q->n_retries);
    otlp_attr_int(a, "kvblend.segments", q->scan.n_segments);
    if (q->first_byte_ns)
        otlp_attr_double(a, "kvblend.ttft_seconds",
                         (double)(q->first_byte_ns - q->http->start_ns) / 1e9);
}

static void put_server(struct otlp_spans *s, const struct gw_req *q, int status, uint64_t now_ns)
{
    const char *operation = operation_of(q->route), *what = operation;
    const char *model = gw_req_model(q);
    struct buf attributes = BUF_INIT;
    char name[2 * OTLP_TEXT_BYTES], code[12];
    if (!what) what = q->http->msg.method;
    (void)snprintf(name, sizeof name, "%s %s", what, operation && model ? model : q->route->path);
    (void)snprintf(code, sizeof code, "%d", status);
    put_attributes(&attributes, q, status, operation);
    if (status >= 500) otlp_attr_str(&attributes, "error.type", code);
    otlp_span(s, &(struct otlp_span){.trace = &q->trace,
                                     .kind = OTLP_SERVER,
                                     .name = name,
                                     .start_ns = q->http->start_ns,
                                     .end_ns = now_ns,
                                     .error = status >= 500 ? code : NULL,
                                     .attributes = &attributes});
    buf_fini(&attributes);
}

void gw_spans_put(const struct gw_req *q, bool aborted)
{
    struct otlp *to = q->loop->server->traces;
    const uint64_t now_ns = clock_ns();
    struct otlp_spans s = {.n = 0};
    if (!to || !traceparent_sampled(&q->trace)) return;
    put_server(&s, q, aborted ? 499 : q->status, now_ns);
    struct otlp_span step = {.trace = &q->trace, .kind = OTLP_INTERNAL};
    if (q->queue_begin_ns) {
        step.name = "kvblend.queue";
        step.start_ns = q->queue_begin_ns;
        step.end_ns = q->queue_ns ? q->queue_begin_ns + q->queue_ns : now_ns;
        otlp_span(&s, &step);
    }
    if (q->send.start_ns) {
        step.name = "kvblend.relay";
        step.start_ns = q->send.start_ns;
        step.end_ns = now_ns;
        otlp_span(&s, &step);
    }
    otlp_put(to, &s);
    otlp_spans_fini(&s);
}
