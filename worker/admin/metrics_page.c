/* What others count, read when it is asked for: Prometheus' page, and the JSON of tiers. */
#include "base/metric.h"
#include "tiers/store_admin.h"
#include "worker/admin/metrics.h"
#include "worker/admin/routes.h"
#include "worker/embed/embed.h"
#include "worker/kvlog.h"
#include "worker/quality/guard.h"
#include "worker/quality/contexts.h"
#include "worker/reuse/builds.h"
#include "worker/worker.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- lines of the page ---- */
/* What ends in _total counts. */
static void put_head(struct buf *out, const char *name, const char *help)
{
    const size_t n = strlen(name);
    const bool counts = n > 6 && strcmp(name + n - 6, "_total") == 0;

    buf_addf(out, "# HELP kvblend_%s %s\n# TYPE kvblend_%s %s\n", name, help, name,
             counts ? "counter" : "gauge");
}

static double shown(double v)
{
    return isfinite(v) ? v : 0;
}

static void put_label(struct buf *out, const char *name, const char *label, const char *of,
                      double v)
{
    buf_addf(out, "kvblend_%s{%s=\"%s\"} %.15g\n", name, label, of, shown(v));
}

static void put(struct buf *out, const char *name, const char *help, double v)
{
    put_head(out, name, help);
    buf_addf(out, "kvblend_%s %.15g\n", name, shown(v));
}

/* ---- tiers ---- */
static double breaker_number(const char *state)
{
    if (!state) return 0;
    return strcmp(state, "open") == 0 ? 2 : strcmp(state, "half-open") == 0 ? 1 : 0;
}

static double per_s(uint64_t bytes, uint64_t ns)
{
    return ns ? (double)bytes * 1e9 / (double)ns : 0;
}

/* Name on the page, name in JSON, help, value: t a tier's own figures, x the store's of it.
 * NULL: it stands in the other form alone. Of RAM the first RAM_ROWS are shown in JSON. */
enum { RAM_ROWS = 9 };
#define TIER_TABLE(X)                                                                              \
    X("capacity_bytes", "capacity_bytes", "Hard budget; of a remote tier as it says.",             \
      t->capacity_bytes)                                                                           \
    X("used_bytes", "used_bytes", "Bytes in use.", t->used_bytes)                                  \
    X("pinned_bytes", "pinned_bytes", "Bytes of records pinned by an administrator.",              \
      t->pinned_bytes)                                                                             \
    X("records", "records", "Records in this tier.", t->n_records)                                 \
    X("hit_total", "hits", "Look-ups served from this tier.", x->hits)                             \
    X("evict_total", "evictions", "Records evicted for room.", t->evictions)                       \
    X("expired_total", "expired", "Records dropped at the end of their life.", t->expired)         \
    X("corrupt_total", "corrupt", "Records dropped for a wrong checksum.", t->corrupt)             \
    X("tail_age_seconds", "tail_age_s", "Since the last use of the next victim.", t->tail_age_s)   \
    X("hit_bytes_total", "hit_bytes", "Bytes of records served from this tier.", x->hit_bytes)     \
    X("read_total", "reads", "Records read whole.", t->reads)                                      \
    X("read_bytes_total", "read_bytes", "Bytes read.", t->read_bytes)                              \
    X("read_seconds_total", NULL, "Time of reads, submit to done.", t->read_ns / 1e9)              \
    X("write_total", "writes", "Records written whole.", t->writes)                                \
    X("write_bytes_total", "write_bytes", "Bytes written.", t->write_bytes)                        \
    X("write_seconds_total", NULL, "Time of writes, submit to done.", t->write_ns / 1e9)           \
    X("device_written_bytes_total", "device_written_bytes",                                        \
      "Bytes written to the device, headers included.", t->device_written_bytes)                   \
    X("error_total", "errors", "Operations that failed.", t->errors)                               \
    X("timeout_total", "timeouts", "Operations that took too long.", t->timeouts)                  \
    X("inflight_bytes", "inflight_bytes", "Bytes being moved.", t->inflight_bytes)                 \
    X("inflight_ops", NULL, "Operations queued or under way.", t->inflight_ops)                    \
    X("breaker_state", NULL, "0 closed, 1 half-open, 2 open.", breaker_number(x->breaker))         \
    X("breaker_opened_total", "breaker_opened", "Times the breaker opened.", x->breaker_opened)    \
    X("endpoints", "endpoints", "Servers of a remote tier.", t->endpoints)                         \
    X("endpoints_open", "endpoints_open", "Servers whose breaker is open.", t->endpoints_open)     \
    X("write_budget_ratio", "write_budget_ratio", "Spent share of the write budget.",              \
      t->write_budget_ratio)                                                                       \
    X("host_pinned_bytes", NULL, "RAM pinned for its copies.", t->host_pinned_bytes)               \
    X("degraded", NULL, "1: it does not work as it was asked to; see the log.",                    \
      t->degraded[0] != 0)                                                                         \
    X("read_bandwidth_bytes_per_second", "load_bytes_per_s", "Moving average of loads.",           \
      x->read_bytes_per_s)                                                                         \
    X("first_group_seconds", NULL, "Moving average: from asking to the first layers.",             \
      x->first_ms / 1e3)                                                                           \
    X(NULL, "first_ms", NULL, x->first_ms)                                                         \
    X(NULL, "op_read_bytes_per_s", NULL, per_s(t->read_bytes, t->read_ns))                         \
    X(NULL, "op_write_bytes_per_s", NULL, per_s(t->write_bytes, t->write_ns))

static const struct {
    const char *name, *json, *help;
} rows[] = {
#define X(name, json, help, value) {name, json, help},
    TIER_TABLE(X)
#undef X
};
enum { ROWS = sizeof rows / sizeof *rows };

static void values_of(const struct store_tier_stats *x, double ret[ROWS])
{
    const struct tier_stat *t = &x->tier;

#define X(name, json, help, value) *ret++ = (double)(value);
    TIER_TABLE(X)
#undef X
}

/* RAM in the form of the tiers below it. */
static struct store_tier_stats ram_stats(const struct store_stats *s)
{
    struct store_tier_stats ram = {.name = "ram",
                                   .hits = s->hits,
                                   .tier = {.capacity_bytes = s->budget_bytes,
                                            .used_bytes = s->used_bytes,
                                            .pinned_bytes = s->pinned_bytes,
                                            .n_records = s->n_records,
                                            .evictions = s->evictions,
                                            .expired = s->expired,
                                            .corrupt = s->corrupt,
                                            .tail_age_s = s->tail_age_s}};

    memcpy(ram.misses, s->misses, sizeof ram.misses);
    return ram;
}

/* ---- tiers as JSON ---- */
void wk_put_misses(struct buf *b, const uint64_t *misses)
{
    buf_adds(b, ",\"misses\":{");
    for (unsigned i = 0; i < STORE_MISS_COUNT; i++)
        buf_addf(b, "%s\"%s\":%llu", i ? "," : "", store_miss_name((enum store_miss)i),
                 (unsigned long long)misses[i]);
    buf_addc(b, '}');
}

static void put_rows(struct buf *b, const struct store_tier_stats *x, size_t n)
{
    double v[ROWS];

    values_of(x, v);
    buf_addf(b, "{\"tier\":\"%s\",\"persistent\":%s,\"shared\":%s", x->name,
             x->persistent ? "true" : "false", x->shared ? "true" : "false");
    for (size_t i = 0; i < n; i++)
        if (rows[i].json)
            buf_addf(b, ",\"%s\":%.*f", rows[i].json, v[i] == floor(v[i]) ? 0 : 4, v[i]);
    wk_put_misses(b, x->misses);
}

static void put_tier(struct buf *b, const struct store_tier_stats *x)
{
    const struct tier_stat *t = &x->tier;

    put_rows(b, x, ROWS);
    buf_adds(b, ",\"rejected\":{");
    for (unsigned i = 0; i < TIER_REJECT_COUNT; i++)
        buf_addf(b, "%s\"%s\":%llu", i ? "," : "", tier_reject_name((enum tier_reject)i),
                 (unsigned long long)t->rejected[i]);
    buf_addf(b, "},\"codec\":\"%s\",\"breaker\":\"%s\",\"degraded\":", x->q8 ? "q8" : "none",
             x->breaker);
    if (t->degraded[0])
        buf_add_json_str(b, t->degraded, strlen(t->degraded));
    else
        buf_adds(b, "null");
    buf_addc(b, '}');
}

void wk_put_tiers(struct worker *w, struct buf *b)
{
    struct store_stats s;
    struct store_tier_stats x;

    store_get_stats(w->store, &s);
    x = ram_stats(&s);
    put_rows(b, &x, RAM_ROWS);
    buf_addf(b, ",\"forged\":%llu,\"lost\":%llu,\"dirty\":%llu,\"loading\":%llu}",
             (unsigned long long)s.forged, (unsigned long long)s.lost, (unsigned long long)s.dirty,
             (unsigned long long)s.inflight);
    for (size_t i = 0; i < store_n_tiers(w->store); i++) {
        buf_addc(b, ',');
        store_get_tier_stats(w->store, i, &x);
        put_tier(b, &x);
    }
}

/* ---- the page ---- */
static void put_reason(struct buf *out, const char *name, const char *tier, const char *reason,
                       uint64_t n)
{
    buf_addf(out, "kvblend_%s{tier=\"%s\",reason=\"%s\"} %llu\n", name, tier, reason,
             (unsigned long long)n);
}

static void page_reasons(struct buf *out, const struct store_tier_stats *x, size_t n)
{
    put_head(out, "tier_miss_total", "Look-ups that this tier could not serve, by reason.");
    for (size_t i = 0; i < n; i++)
        for (unsigned k = 0; k < STORE_MISS_COUNT; k++)
            put_reason(out, "tier_miss_total", x[i].name, store_miss_name((enum store_miss)k),
                       x[i].misses[k]);
    put_head(out, "tier_reject_total", "Writes that did not become a record, by reason.");
    for (size_t i = 0; i < n; i++)
        for (unsigned k = 0; k < TIER_REJECT_COUNT; k++)
            put_reason(out, "tier_reject_total", x[i].name, tier_reject_name((enum tier_reject)k),
                       x[i].tier.rejected[k]);
}

static void page_tiers(struct worker *w, const struct store_stats *s, struct buf *out)
{
    struct store_tier_stats x[STORE_TIERS_MAX + 1] = {ram_stats(s)};
    double v[STORE_TIERS_MAX + 1][ROWS];
    char name[64];
    size_t n = 1;

    for (; n <= STORE_TIERS_MAX && n <= store_n_tiers(w->store); n++) {
        store_get_tier_stats(w->store, n - 1, &x[n]);
        x[0].hits -= x[n].hits < x[0].hits ? x[n].hits : x[0].hits;
    }
    for (size_t i = 0; i < n; i++)
        values_of(&x[i], v[i]);
    for (size_t r = 0; r < ROWS && rows[r].name; r++) {
        (void)snprintf(name, sizeof name, "tier_%s", rows[r].name);
        put_head(out, name, rows[r].help);
        for (size_t i = 0; i < n; i++)
            put_label(out, name, "tier", x[i].name, v[i][r]);
    }
    if (n > 1) page_reasons(out, x + 1, n - 1);
}

static void page_store(struct worker *w, const struct store_stats *s, struct buf *out)
{
    put(out, "store_dirty_records", "Records that a slower tier has yet to get.", s->dirty);
    put(out, "store_loads_inflight", "Records on their way into RAM.", s->inflight);
    put(out, "store_lost_total", "Records evicted before a tier that wanted them had them.",
        s->lost);
    put(out, "store_held_bytes", "Bytes of records held for requests that wait.",
        atomic_load(&w->reuse.held_bytes));
    put(out, "store_sidecars", "Records outside RAM whose scoring layer is in RAM.", s->sides);
    put(out, "store_sidecar_bytes", "What sidecars take of RAM.", s->side_bytes);
    put(out, "store_sidecar_hits_total", "Layers that were read from a sidecar.", s->side_hits);
    put(out, "access_log_dropped_total", "Lines that the access log had no room for.",
        w->kvlog ? wk_kvlog_dropped(w->kvlog) : 0);
}

/* Of a device that has memory of its own; the CPU has none of them. */
static void page_device(struct worker *w, struct buf *out)
{
    struct kn_dev *d = fus_core_dev(w->core);

    if (kn_info(d)->is_host) return;
    const struct kn_memory m = kn_dev_memory(d);
    put_head(out, "device_bytes",
             "Memory of the device, and of this process on it (held, of it staging; shared with "
             "the host).");
    put_label(out, "device_bytes", "what", "total", m.total_bytes);
    put_label(out, "device_bytes", "what", "free", m.free_bytes);
    put_label(out, "device_bytes", "what", "held", m.device_bytes);
    put_label(out, "device_bytes", "what", "staging", m.stage_bytes);
    put_label(out, "device_bytes", "what", "shared", m.shared_bytes);
    put(out, "device_allocations_total",
        "Requests to the device for memory; they end once it is warm.", m.n_allocs);
    put(out, "device_replays_total",
        "Decode steps that were played from a recording (CUDA graph) instead of being queued "
        "kernel by kernel.",
        kn_replays(d).n_played);
    put(out, "device_gemm_refused_total",
        "Products that the GPU's library refused, so that a slow kernel made them.",
        kn_gemm_refusals(d).count);
}

static void page_guard(struct worker *w, bool serves, struct buf *out)
{
    struct wk_guard_view v = {0};

    if (serves) wk_guard_get_view(w, &v);
    const struct pol_guard_gauge g = pol_guard_gauge(&v.g.now);
    put(out, "guard_kl_mean_nats",
        "Moving mean KL at the level in force; absent evidence reads as 0.", g.kl);
    put(out, "guard_kl_limit_nats", "What that mean may be.", g.limit);
    put(out, "guard_loss_ratio", "Moving mean KL as a share of plain reuse's on the same prompts.",
        g.loss);
    put(out, "guard_agreement_ratio",
        "Share of tokens whose best candidate is that of a full prefill.", g.agree);
    put(out, "guard_shadows", "Shadows of the level in force that these means are made of.",
        g.count);
    put(out, "guard_level", "0: as configured; above: the guard has raised the ratio or more.",
        v.g.level);
    put(out, "guard_ratio", "Share that the guard has requests recompute that name none.",
        v.setting.ratio);
    put(out, "guard_exact", "1: the guard has turned blending off.", v.setting.exact);
    put(out, "guard_alarms_total", "Times that quality was too low and the level rose.", v.n_up);
    put(out, "guard_returns_total", "Times that the level fell again.", v.n_down);
    put(out, "guard_pending", "Shadows that wait for idle time.", v.n_pending);
    put_head(out, "guard_shadows_total", "Shadows by what became of them.");
    put_label(out, "guard_shadows_total", "result", "done", v.n_done);
    put_label(out, "guard_shadows_total", "result", "dropped", v.n_dropped);
    put_label(out, "guard_shadows_total", "result", "failed", v.n_failed);
}

static void page_engine(struct worker *w, const struct fus_engine_stats *e,
                        const struct store_stats *s, struct buf *out)
{
    struct wk_build_stats b;
    struct wk_contexts_stats c;

    wk_builds_get_stats(w, &b);
    wk_contexts_get_stats(w, &c);
    put(out, "requests_waiting", "Requests waiting for the engine.", e->n_waiting);
    put(out, "choices_running", "Choices being decoded.", e->n_running);
    put(out, "kv_tokens_free", "Tokens that fit into free KV pages.", e->kv_tokens_free);
    put(out, "kv_tokens_shared", "Tokens of KV that are held once for several.",
        e->kv_tokens_shared);
    put_head(out, "draft_tokens_total",
             "Tokens that decode steps tried ahead, by whether they were right.");
    put_label(out, "draft_tokens_total", "result", "right", e->n_draft_right);
    put_label(out, "draft_tokens_total", "result", "wrong", e->n_drafted - e->n_draft_right);
    put(out, "ram_bytes", "Bytes of chunk and prefix records in RAM.", s->used_bytes);
    put(out, "ram_budget_bytes", "Hard budget of the RAM tier.", s->budget_bytes);
    put(out, "store_records", "Records in the store.", s->n_records);
    put(out, "store_hits_total", "Store look-ups that hit.", s->hits);
    put(out, "store_evictions_total", "Records evicted for room.", s->evictions);
    put(out, "store_puts_total", "Records stored.", s->puts);
    put(out, "store_puts_refused_total", "Records that found no room.", s->put_refused);
    put(out, "builds_total", "Chunks built in isolation.", b.n_built);
    put(out, "builds_failed_total", "Chunk builds that failed.", b.n_failed);
    put(out, "builds_pending", "Chunk builds queued or running.", b.n_pending);
    put(out, "contexts_total", "Records that were merged with encodings behind other chunks.",
        c.n_merged);
    put(out, "contexts_pending", "Chunks that are to be encoded behind others.", c.n_pending);
    put_head(out, "store_misses_total", "Store look-ups that missed, by reason.");
    for (unsigned i = 0; i < STORE_MISS_COUNT; i++)
        put_label(out, "store_misses_total", "reason", store_miss_name((enum store_miss)i),
                  s->misses[i]);
}

static void page_embedder(struct worker *w, struct buf *out)
{
    const struct wk_embed_stats s = wk_embedder_stats(w->embedder);

    put(out, "embedding_requests_waiting", "Requests for embeddings or scores that are not done.",
        s.n_waiting);
    put(out, "embedding_texts_total", "Texts that became vectors or scores.", s.n_texts);
    put(out, "embedding_tokens_total", "Tokens of these texts.", s.n_tokens);
    put(out, "embedding_batches_total", "Runs of the model that made them.", s.n_batches);
}

/* Which model this worker's other figures are of. */
static void page_model(const struct worker *w, struct buf *out)
{
    put_head(out, "model_info", "1; the model by the name that clients ask for.");
    buf_adds(out, "kvblend_model_info{model=");
    buf_add_json_str(out, w->model_name, strlen(w->model_name));
    buf_adds(out, "} 1\n");
}

static int put_page(struct worker *w, bool traced, struct buf *out)
{
    const int state = atomic_load(&w->state);
    const bool serves = state == WK_READY || state == WK_DRAINING;
    struct store_stats s = {0};
    struct fus_engine_stats e = {0};

    if (serves && w->store) store_get_stats(w->store, &s);
    if (serves && w->engine) fus_engine_get_stats(w->engine, &e);
    (void)metric_process(out);
    if (serves) page_model(w, out);
    (void)(traced ? metric_render_traced(out) : metric_render(out));
    if (serves && w->embedder) {
        page_embedder(w, out);
        return buf_status(out);
    }
    page_engine(w, &e, &s, out);
    page_guard(w, serves, out);
    if (serves && w->store) page_tiers(w, &s, out);
    if (serves && w->store) page_store(w, &s, out);
    if (serves && w->engine) page_device(w, out);
    return buf_status(out);
}

int wk_metrics_render(struct worker *w, bool open, struct buf *out)
{
    struct buf text = BUF_INIT;

    if (!open) return put_page(w, false, out);
    (void)put_page(w, true, &text);
    (void)metric_open(text.data, text.len, out);
    (void)buf_adds(out, METRIC_OPEN_END);
    const int rc = buf_status(&text) < 0 ? -ENOMEM : buf_status(out);
    buf_fini(&text);
    return rc;
}
