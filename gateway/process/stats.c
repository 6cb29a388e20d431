#include "gateway/process/stats.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/jobs.h"
#include "base/mem.h"
#include "base/metric.h"
#include "gateway/front/keys.h"
#include "gateway/process/recent.h"
#include "gateway/process/slow.h"
#include "gateway/request/request.h"
#include "policy/route.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- metrics ---- */

static const double overhead_bounds[] = {25e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3,
                                         5e-3,  10e-3, 20e-3,  50e-3,  0.1,    0.5,  1};
static const double queue_bounds[] = {1e-3, 5e-3, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60};

static struct metric single[] = {
#define X(id, kind, metric_name, text)                                                             \
    [GW_M_##id] = {.name = metric_name, .help = text, .type = METRIC_##kind},
    GW_METRIC_TABLE(X)
#undef X
};
static struct metric overhead = {
    .name = "kvblend_gateway_overhead_seconds",
    .help = "Time the gateway itself took before a request went to a worker.",
    .type = METRIC_HISTOGRAM,
    .bounds = overhead_bounds,
    .n_bounds = sizeof overhead_bounds / sizeof *overhead_bounds};
static struct metric queue_wait = {.name = "kvblend_gateway_queue_seconds",
                                   .help = "Wait for a turn at the gateway.",
                                   .type = METRIC_HISTOGRAM,
                                   .bounds = queue_bounds,
                                   .n_bounds = sizeof queue_bounds / sizeof *queue_bounds};

enum { VALUES_MAX = 20, LABEL_BYTES = 32 };
struct counters { /* one for each value of a label; the last for all that is no other */
    const char *name, *label, *help, *value[VALUES_MAX];
    struct metric metric[VALUES_MAX];
    char labels[VALUES_MAX][LABEL_BYTES];
};
static struct counters requests = {"kvblend_requests_total",
                                   "code",
                                   "Requests by status; 499: the client left.",
                                   {"200", "204", "400", "401", "403", "404", "405", "408", "413",
                                    "415", "429", "431", "499", "500", "502", "503", "504", "508",
                                    "other"}};
/* Of segment/segment.h, those that the gateway itself runs. */
static struct counters detected = {"kvblend_gateway_detector_hits_total",
                                   "detector",
                                   "Requests in which a detector found chunks.",
                                   {"blocks", "known", "learned", "separator", "preset"}};
static struct counters routed = {"kvblend_gateway_routed_total", "reason",
                                 "Requests by why their target was chosen (policy/route.h).",
                                 POL_ROUTE_REASONS};
static struct counters routed_tokens = {
    "kvblend_gateway_routed_tokens_total",
    "kind",
    "Tokens of prompts with chunks sent to workers: all, and those held where they went.",
    {"prompt", "resident"}};
static struct counters shed = {
    "kvblend_gateway_shed_total",
    "reason",
    "Completions sent away because they would have waited, or had, too long.",
    {"objective", "share", "full", "timeout"}};

static struct counters fallback = {"kvblend_gateway_fallback_total",
                                   "what",
                                   "Requests that workers cannot serve, by what became of them.",
                                   {"asked", "failed", "forbidden", "unset"}};

static void register_by(struct counters *c)
{
    for (size_t i = 0; i < VALUES_MAX && c->value[i]; i++) {
        struct metric *m = &c->metric[i];
        (void)snprintf(c->labels[i], LABEL_BYTES, "%s=\"%s\"", c->label, c->value[i]);
        m->name = c->name;
        m->help = c->help;
        m->labels = c->labels[i];
        m->type = METRIC_COUNTER;
        metric_register(m);
    }
}

static void count(struct counters *c, const char *value)
{
    size_t i = 0;
    while (strcmp(value, c->value[i]) != 0 && i + 1 < VALUES_MAX && c->value[i + 1])
        i++;
    metric_add(&c->metric[i], 1);
}

static void register_all(void)
{
    register_by(&routed);
    register_by(&routed_tokens);
    register_by(&shed);
    register_by(&fallback);
    register_by(&requests);
    register_by(&detected);
    for (size_t i = 0; i < GW_M_COUNT; i++)
        metric_register(&single[i]);
    metric_register(&overhead);
    metric_register(&queue_wait);
}

void gw_stats_add(enum gw_metric m, double v)
{
    metric_add(&single[m], v);
}

void gw_stats_set(enum gw_metric m, double v)
{
    metric_set(&single[m], v);
}

void gw_stats_detected(const char *detector, unsigned n_segments)
{
    gw_stats_add(GW_M_SEGMENTS, n_segments);
    count(&detected, detector);
}

void gw_stats_routed(const char *reason, uint64_t prompt_tokens, uint64_t resident_tokens)
{
    count(&routed, reason);
    if (resident_tokens > prompt_tokens) resident_tokens = prompt_tokens;
    metric_add(&routed_tokens.metric[0], (double)prompt_tokens);
    metric_add(&routed_tokens.metric[1], (double)resident_tokens);
}

void gw_stats_fallback(enum gw_fallback_end what)
{
    metric_add(&fallback.metric[what], 1);
}

void gw_stats_shed(enum gw_shed_reason why)
{
    metric_add(&shed.metric[why], 1);
}

void gw_stats_put_shed(struct buf *b)
{
    for (int i = 0; i < GW_SHED_COUNT; i++)
        (void)buf_addf(b, "%s\"%s\":%.0f", i ? "," : "", shed.value[i],
                       atomic_load(&shed.metric[i].value));
}

/* ---- access log ---- */

struct gw_stats {
    struct jobs *writer; /* one thread: lines keep their order */
    bool on;
    struct gw_slow *slow;
    const char *path; /* the configuration's; NULL: no file */
    int fd;           /* -1: off; the writer's own once it runs */
    struct gw_recent *recent;
};
struct log_line {
    struct gw_stats *stats;
    int new_fd; /* >= 0: no line, but the file to go on with */
    size_t len;
    char text[];
};

static int open_log(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
    return fd < 0 ? -errno : fd;
}

int gw_stats_create(const char *access_log, struct gw_stats **ret)
{
    struct gw_stats *s = mem_zalloc(sizeof *s);
    if (!s) return -ENOMEM;
    int r = gw_slow_create(&s->slow);
    s->fd = -1;
    register_all();
    if (strcmp(access_log, "stdout") == 0 || strcmp(access_log, "-") == 0) {
        s->fd = STDOUT_FILENO;
    } else if (strcmp(access_log, "off") != 0) {
        s->path = access_log;
        s->fd = open_log(access_log);
        if (s->fd < 0) r = s->fd;
    }
    s->on = s->fd >= 0;
    if (r == 0) r = gw_recent_create(&s->recent);
    if (r == 0 && s->on) r = jobs_create(&(struct jobs_opts){1, 4096, NULL}, &s->writer);
    if (r < 0) {
        gw_stats_destroy(s);
        return r;
    }
    *ret = s;
    return 0;
}

void gw_stats_destroy(struct gw_stats *s)
{
    if (!s) return;
    jobs_destroy(s->writer);
    gw_slow_destroy(s->slow);
    gw_recent_destroy(s->recent);
    if (s->fd > STDERR_FILENO) (void)close(s->fd);
    mem_free(s);
}

struct gw_recent *gw_stats_recent(const struct gw_stats *s)
{
    return s->recent;
}

static void write_line(void *arg)
{
    struct log_line *l = arg;
    if (l->new_fd >= 0) {
        (void)close(l->stats->fd);
        l->stats->fd = l->new_fd;
    }
    for (size_t done = 0; done < l->len;) {
        ssize_t n = write(l->stats->fd, l->text + done, l->len - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break; /* a closed pipe: there is nobody to tell */
        done += (size_t)n;
    }
    mem_free(l);
}

int gw_stats_reopen(struct gw_stats *s)
{
    if (!s->path) return 0;
    struct log_line *l = mem_zalloc(sizeof *l);
    if (!l) return -ENOMEM;
    *l = (struct log_line){.stats = s, .new_fd = open_log(s->path)};
    int r = l->new_fd < 0 ? l->new_fd : jobs_submit(s->writer, write_line, l);
    if (r == 0) return 0;
    if (l->new_fd >= 0) (void)close(l->new_fd);
    mem_free(l);
    return r;
}

enum { SDK_RETRY_MAX = 8 }; /* a count; whatever else a client writes there is not logged */

static void add_field(struct buf *b, const char *key, const char *v)
{
    (void)buf_addf(b, ",\"%s\":", key);
    if (v)
        (void)buf_add_json_str(b, v, strlen(v));
    else
        (void)buf_adds(b, "null");
}

/* Of a request that was refused by its first lines (http NULL) no more is known for certain. */
static void render(struct buf *b, const struct gw_req *q, int status, enum gw_end end)
{
    static const char *const ends[] = {"ok",       "client_abort", "refused", "shed",
                                       "upstream", "timeout",      "drain"};
    const struct http_req *r = q->http;
    const struct gw_usage *u = &q->usage;
    uint64_t start_ns = r ? r->start_ns : clock_ns();
    double now = clock_wall_s();
    time_t secs = (time_t)now;
    struct tm tm;
    char ts[32];
    (void)gmtime_r(&secs, &tm);
    (void)strftime(ts, sizeof ts, "%Y-%m-%dT%H:%M:%S", &tm);
    (void)buf_addf(b, "{\"ts\":\"%s.%03dZ\"", ts, (int)((now - (double)secs) * 1e3));
    add_field(b, "request_id", q->id);
    if (q->trace.trace[0]) {
        add_field(b, "trace_id", q->trace.trace);
        add_field(b, "span_id", q->trace.span);
        if (q->trace.parent[0]) add_field(b, "parent_id", q->trace.parent);
    }
    add_field(b, "client", r ? r->peer : NULL);
    if (q->key && q->key->id[0]) add_field(b, "key_id", q->key->id);
    add_field(b, "method", r ? r->msg.method : NULL);
    add_field(b, "path", r ? r->msg.path : NULL);
    add_field(b, "model", gw_req_model(q));
    add_field(b, "target", q->target_name);
    (void)buf_addf(b,
                   ",\"stream\":%s,\"status\":%d,\"end\":\"%s\",\"bytes_in\":%llu,"
                   "\"bytes_out\":%llu,\"segments\":%u",
                   q->ans.sse || q->ans.early ? "true" : "false", status, ends[end],
                   r ? (unsigned long long)r->bytes_in : 0,
                   r ? (unsigned long long)r->bytes_out : 0, q->scan.n_segments);
    if (u->known)
        (void)buf_addf(b, ",\"prompt_tokens\":%llu,\"completion_tokens\":%llu",
                       (unsigned long long)u->prompt, (unsigned long long)u->completion);
    if (u->has_cached) (void)buf_addf(b, ",\"cached_tokens\":%llu", (unsigned long long)u->cached);
    if (q->scan.n_segments) add_field(b, "detector", q->scan.detector);
    if (q->fallback.field[0]) add_field(b, "unsupported", q->fallback.field);
    const char *retry = r ? http_header_find(&r->msg.head, "x-stainless-retry-count") : NULL;
    if (retry && strlen(retry) <= SDK_RETRY_MAX) add_field(b, "sdk_retry", retry);
    if (q->first_byte_ns)
        (void)buf_addf(b, ",\"ttft_ms\":%.3f", (double)(q->first_byte_ns - start_ns) / 1e6);
    (void)buf_addf(b, ",\"queue_ms\":%.3f,\"dur_ms\":%.3f,\"overhead_us\":%.0f,\"retries\":%u}\n",
                   (double)q->queue_ns / 1e6, clock_ms_since(start_ns),
                   (double)q->overhead_ns / 1e3, q->n_retries);
}

void gw_stats_request(struct gw_stats *s, const struct gw_req *q, bool aborted)
{
    char code[12];
    int status = aborted ? 499 : q->status;
    (void)snprintf(code, sizeof code, "%d", status);
    count(&requests, code);
    if (aborted) gw_stats_add(GW_M_ABORTS, 1);
    if (q->target_name) {
        metric_observe(&overhead, (double)q->overhead_ns / 1e9);
        metric_observe(&queue_wait, (double)q->queue_ns / 1e9);
    }
    const uint64_t now_ns = clock_ns();
    const double took_ms = q->http ? (double)(now_ns - q->http->start_ns) / 1e6 : 0;
    const bool slow =
        q->target_name && q->route->props & GW_R_ADMIT && gw_slow_wants(s->slow, took_ms, now_ns);
    const bool client = q->http && q->route && !(q->route->props & GW_R_ADMIN);
    if (!s->on && !slow && !client) return;
    struct buf b = BUF_INIT;
    struct log_line *l = NULL;
    render(&b, q, status, aborted ? GW_END_CLIENT_ABORT : q->end);
    const bool whole = buf_status(&b) == 0;
    if (slow && whole) gw_slow_note(s->slow, took_ms, now_ns, b.data, b.len);
    if (client && whole) gw_recent_put(s->recent, b.data, b.len - 1); /* without its end of line */
    if (s->on && whole) l = mem_alloc(sizeof *l + b.len);
    if (l) {
        l->stats = s;
        l->new_fd = -1;
        l->len = b.len;
        memcpy(l->text, b.data, b.len);
    }
    buf_fini(&b);
    if (!s->on) return;
    if (l && jobs_submit(s->writer, write_line, l) == 0) return;
    mem_free(l);
    gw_stats_add(GW_M_LOG_LOST, 1);
}

void gw_stats_put_slow(struct gw_stats *s, struct buf *b)
{
    gw_slow_put(s->slow, clock_ns(), b);
}
