/* What others count, copied when the page is rendered. The tables below are the page: type, name,
 * help and where the number comes from. */
#include "base/metric.h"
#include "tiers/store_admin.h"
#include "worker/admin/metrics.h"
#include "worker/kvlog.h"
#include "worker/quality/guard.h"
#include "worker/quality/sensitivity.h"
#include "worker/reuse/builds.h"
#include "worker/worker.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* One metric with an optional label, and its value among what the rows of its table may name. */
#define ENGINE_TABLE(X)                                                                            \
    X(GAUGE, "requests_waiting", "Requests waiting for the engine.", e.n_waiting)                  \
    X(GAUGE, "choices_running", "Choices being decoded.", e.n_running)                             \
    X(GAUGE, "kv_tokens_free", "Tokens that fit into free KV pages.", e.kv_tokens_free)            \
    X(GAUGE, "kv_tokens_shared", "Tokens of KV that are held once for several.",                   \
      e.kv_tokens_shared)                                                                          \
    X(GAUGE, "ram_bytes", "Bytes of chunk and prefix records in RAM.", s.used_bytes)               \
    X(GAUGE, "ram_budget_bytes", "Hard budget of the RAM tier.", s.budget_bytes)                   \
    X(GAUGE, "store_records", "Records in the store.", s.n_records)                                \
    X(COUNTER, "store_hits_total", "Store look-ups that hit.", s.hits)                             \
    X(COUNTER, "store_evictions_total", "Records evicted for room.", s.evictions)                  \
    X(COUNTER, "store_puts_total", "Records stored.", s.puts)                                      \
    X(COUNTER, "store_puts_refused_total", "Records that found no room.", s.put_refused)           \
    X(COUNTER, "builds_total", "Chunks built in isolation.", b.n_built)                            \
    X(COUNTER, "builds_failed_total", "Chunk builds that failed.", b.n_failed)                     \
    X(GAUGE, "builds_pending", "Chunk builds queued or running.", b.n_pending)                     \
    X(COUNTER, "sensitivity_total", "Chunks whose context sensitivity is known.", c.n_measured)    \
    X(GAUGE, "sensitivity_pending", "Chunks whose sensitivity is to be measured.", c.n_pending)
#define GUARD_TABLE(X)                                                                             \
    X(GAUGE, "guard_kl_mean_nats",                                                                 \
      "Moving mean KL at the level in force; absent evidence reads as 0.", g.kl)                   \
    X(GAUGE, "guard_kl_limit_nats", "What that mean may be.", g.limit)                             \
    X(GAUGE, "guard_loss_ratio",                                                                   \
      "Moving mean KL as a share of plain reuse's on the same prompts.", g.loss)                   \
    X(GAUGE, "guard_agreement_ratio",                                                              \
      "Share of tokens whose best candidate is that of a full prefill.", g.agree)                  \
    X(GAUGE, "guard_shadows", "Shadows of the level in force that these means are made of.",       \
      g.count)                                                                                     \
    X(GAUGE, "guard_level", "0: as configured; above: the guard has raised the ratio or more.",    \
      v.g.level)                                                                                   \
    X(GAUGE, "guard_ratio", "Share that the guard has requests recompute that name none.",         \
      v.setting.ratio)                                                                             \
    X(GAUGE, "guard_exact", "1: the guard has turned blending off.", v.setting.exact)              \
    X(COUNTER, "guard_alarms_total", "Times that quality was too low and the level rose.", v.n_up) \
    X(COUNTER, "guard_returns_total", "Times that the level fell again.", v.n_down)                \
    X(GAUGE, "guard_pending", "Shadows that wait for idle time.", v.n_pending)
#define STORE_TABLE(X)                                                                             \
    X(GAUGE, "store_dirty_records", "Records that a slower tier has yet to get.", s->dirty)        \
    X(GAUGE, "store_loads_inflight", "Records on their way into RAM.", s->inflight)                \
    X(COUNTER, "store_lost_total", "Records evicted before a tier that wanted them had them.",     \
      s->lost)                                                                                     \
    X(GAUGE, "store_held_bytes", "Bytes of records held for requests that wait.",                  \
      atomic_load(&w->reuse.held_bytes))                                                           \
    X(GAUGE, "store_sidecars", "Records outside RAM whose scoring layer is in RAM.", s->sides)     \
    X(GAUGE, "store_sidecar_bytes", "What sidecars take of RAM.", s->side_bytes)                   \
    X(COUNTER, "store_sidecar_hits_total", "Layers that were read from a sidecar.", s->side_hits)  \
    X(COUNTER, "access_log_dropped_total", "Lines that the access log had no room for.",           \
      w->kvlog ? wk_kvlog_dropped(w->kvlog) : 0)
/* Of a device that has memory of its own; the CPU has none of them. */
#define DEVICE_TABLE(X)                                                                            \
    X(COUNTER, "device_allocations_total",                                                         \
      "Requests to the device for memory; they end once it is warm.", m.n_allocs)                  \
    X(COUNTER, "device_replays_total",                                                             \
      "Decode steps that were played from a recording (CUDA graph) instead of being queued kernel" \
      " by kernel.",                                                                               \
      kn_replays(d).n_played)
/* For each tier that there is: t its own figures, x the store's of it. */
#define TIER_TABLE(X)                                                                              \
    X(GAUGE, "capacity_bytes", "Hard budget; of a remote tier as it says.", t->capacity_bytes)     \
    X(GAUGE, "used_bytes", "Bytes in use.", t->used_bytes)                                         \
    X(GAUGE, "pinned_bytes", "Bytes of records pinned by an administrator.", t->pinned_bytes)      \
    X(GAUGE, "records", "Records in this tier.", t->n_records)                                     \
    X(COUNTER, "hit_total", "Look-ups served from this tier.", x->hits)                            \
    X(COUNTER, "hit_bytes_total", "Bytes of records served from this tier.", x->hit_bytes)         \
    X(COUNTER, "read_total", "Records read whole.", t->reads)                                      \
    X(COUNTER, "read_bytes_total", "Bytes read.", t->read_bytes)                                   \
    X(COUNTER, "read_seconds_total", "Time of reads, submit to done.", t->read_ns / 1e9)           \
    X(COUNTER, "write_total", "Records written whole.", t->writes)                                 \
    X(COUNTER, "write_bytes_total", "Bytes written.", t->write_bytes)                              \
    X(COUNTER, "write_seconds_total", "Time of writes, submit to done.", t->write_ns / 1e9)        \
    X(COUNTER, "device_written_bytes_total", "Bytes written to the device, headers included.",     \
      t->device_written_bytes)                                                                     \
    X(COUNTER, "evict_total", "Records evicted for room.", t->evictions)                           \
    X(COUNTER, "expired_total", "Records dropped at the end of their life.", t->expired)           \
    X(COUNTER, "corrupt_total", "Records dropped for a wrong checksum.", t->corrupt)               \
    X(COUNTER, "error_total", "Operations that failed.", t->errors)                                \
    X(COUNTER, "timeout_total", "Operations that took too long.", t->timeouts)                     \
    X(GAUGE, "inflight_bytes", "Bytes being moved.", t->inflight_bytes)                            \
    X(GAUGE, "inflight_ops", "Operations queued or under way.", t->inflight_ops)                   \
    X(GAUGE, "breaker_state", "0 closed, 1 half-open, 2 open.", breaker_number(x->breaker))        \
    X(COUNTER, "breaker_opened_total", "Times the breaker opened.", x->breaker_opened)             \
    X(GAUGE, "endpoints", "Servers of a remote tier.", t->endpoints)                               \
    X(GAUGE, "endpoints_open", "Servers whose breaker is open.", t->endpoints_open)                \
    X(GAUGE, "write_budget_ratio", "Spent share of the write budget.", t->write_budget_ratio)      \
    X(GAUGE, "tail_age_seconds", "Since the last use of the next victim.", t->tail_age_s)          \
    X(GAUGE, "host_pinned_bytes", "RAM pinned for its copies.", t->host_pinned_bytes)              \
    X(GAUGE, "degraded", "1: it does not work as it was asked to; see the log.",                   \
      t->degraded[0] != 0)                                                                         \
    X(GAUGE, "read_bandwidth_bytes_per_second", "Moving average of loads.", x->read_bytes_per_s)   \
    X(GAUGE, "first_group_seconds", "Moving average: from asking to the first layers.",            \
      x->first_ms / 1e3)

#define ROW(t, n, h, value) {.name = "kvblend_" n, .help = (h), .type = METRIC_##t},
#define TIER_ROW(t, n, h, value) {.name = "kvblend_tier_" n, .help = (h), .type = METRIC_##t},
#define COPY(t, n, h, value) copy(m++, (double)(value));
#define ONE(t, n, h, value) +1
enum { TIER_VALUES = 0 TIER_TABLE(ONE) };

static struct metric engine_rows[] = {ENGINE_TABLE(ROW)}, guard_rows[] = {GUARD_TABLE(ROW)},
                     store_rows[] = {STORE_TABLE(ROW)}, device_rows[] = {DEVICE_TABLE(ROW)};
static const struct metric tier_rows[TIER_VALUES] = {TIER_TABLE(TIER_ROW)};

/* ---- the same metric for each value of a label ---- */
struct labelled {
    struct metric m;
    char label[64];
};
static struct labelled misses[STORE_MISS_COUNT], shadows[3], memory[5];
static struct series {
    struct labelled value[TIER_VALUES], miss[STORE_MISS_COUNT], reject[TIER_REJECT_COUNT];
} series[STORE_TIERS_MAX + 1];

static void copy(struct metric *m, double v)
{
    metric_register(m);
    metric_set(m, isfinite(v) ? v : 0);
}

static void copy_labelled(struct labelled *l, const struct metric *like, double v)
{
    if (!l->m.name)
        l->m = (struct metric){
            .name = like->name, .labels = l->label, .help = like->help, .type = like->type};
    copy(&l->m, v);
}

/* ---- tiers ---- */
static double breaker_number(const char *state)
{
    if (!state) return 0;
    return strcmp(state, "open") == 0 ? 2 : strcmp(state, "half-open") == 0 ? 1 : 0;
}

static void copy_tier(struct series *s, const char *name, const struct store_tier_stats *x)
{
    const struct tier_stat *t = &x->tier;
    const double values[] = {
#define VALUE(t_, n, h, value) (double)(value),
        TIER_TABLE(VALUE)
#undef VALUE
    };

    for (size_t i = 0; i < TIER_VALUES; i++) {
        (void)snprintf(s->value[i].label, sizeof s->value[i].label, "tier=\"%s\"", name);
        copy_labelled(&s->value[i], &tier_rows[i], values[i]);
    }
}

static void copy_reasons(struct series *s, const struct store_tier_stats *x)
{
    static const struct metric miss = {.name = "kvblend_tier_miss_total",
                                       .type = METRIC_COUNTER,
                                       .help =
                                           "Look-ups that this tier could not serve, by reason."},
                               reject = {.name = "kvblend_tier_reject_total",
                                         .type = METRIC_COUNTER,
                                         .help = "Writes that did not become a record, by reason."};

    for (unsigned i = 0; i < STORE_MISS_COUNT; i++) {
        (void)snprintf(s->miss[i].label, sizeof s->miss[i].label, "tier=\"%s\",reason=\"%s\"",
                       x->name, store_miss_name((enum store_miss)i));
        copy_labelled(&s->miss[i], &miss, (double)x->misses[i]);
    }
    for (unsigned i = 0; i < TIER_REJECT_COUNT; i++) {
        (void)snprintf(s->reject[i].label, sizeof s->reject[i].label, "tier=\"%s\",reason=\"%s\"",
                       x->name, tier_reject_name((enum tier_reject)i));
        copy_labelled(&s->reject[i], &reject, (double)x->tier.rejected[i]);
    }
}

static void copy_tiers(struct worker *w, const struct store_stats *s)
{
    struct metric *m = store_rows;
    struct store_tier_stats ram = {.tier = {.capacity_bytes = s->budget_bytes,
                                            .used_bytes = s->used_bytes,
                                            .pinned_bytes = s->pinned_bytes,
                                            .n_records = s->n_records,
                                            .evictions = s->evictions,
                                            .expired = s->expired,
                                            .corrupt = s->corrupt,
                                            .tail_age_s = s->tail_age_s}};
    uint64_t behind = 0;

    for (size_t i = 0; i < store_n_tiers(w->store) && i < STORE_TIERS_MAX; i++) {
        struct store_tier_stats x;
        store_get_tier_stats(w->store, i, &x);
        copy_tier(&series[i + 1], x.name, &x);
        copy_reasons(&series[i + 1], &x);
        behind += x.hits;
    }
    ram.hits = s->hits - (behind < s->hits ? behind : s->hits);
    copy_tier(&series[0], "ram", &ram);
    STORE_TABLE(COPY)
}

/* ---- the rest ---- */
static void copy_device(struct worker *w)
{
    static const struct metric bytes = {
        .name = "kvblend_device_bytes",
        .help = "Memory of the device, and of this process on it (held, of it staging; shared with "
                "the host).",
        .type = METRIC_GAUGE};
    static const char *const what[] = {"total", "free", "held", "staging", "shared"};
    struct kn_dev *d = fus_core_dev(w->core);
    struct metric *row = device_rows;

    if (kn_info(d)->is_host) return;
    const struct kn_memory m = kn_dev_memory(d);
    const uint64_t now[] = {m.total_bytes, m.free_bytes, m.device_bytes, m.stage_bytes,
                            m.shared_bytes};
    for (size_t i = 0; i < sizeof now / sizeof *now; i++) {
        (void)snprintf(memory[i].label, sizeof memory[i].label, "what=\"%s\"", what[i]);
        copy_labelled(&memory[i], &bytes, (double)now[i]);
    }
#define COPY_ROW(t, n, h, value) copy(row++, (double)(value));
    DEVICE_TABLE(COPY_ROW)
#undef COPY_ROW
}

static void copy_guard(struct worker *w, bool serves)
{
    static const struct metric shadow = {.name = "kvblend_guard_shadows_total",
                                         .help = "Shadows by what became of them.",
                                         .type = METRIC_COUNTER};
    static const char *const results[] = {"done", "dropped", "failed"};
    struct metric *m = guard_rows;
    struct wk_guard_view v = {0};

    if (serves) wk_guard_get_view(w, &v);
    const struct pol_guard_gauge g = pol_guard_gauge(&v.g.now);
    const uint64_t n[] = {v.n_done, v.n_dropped, v.n_failed};
    GUARD_TABLE(COPY)
    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(shadows[i].label, sizeof shadows[i].label, "result=\"%s\"", results[i]);
        copy_labelled(&shadows[i], &shadow, (double)n[i]);
    }
}

int wk_metrics_render(struct worker *w, struct buf *out)
{
    static const struct metric miss = {.name = "kvblend_store_misses_total",
                                       .help = "Store look-ups that missed, by reason.",
                                       .type = METRIC_COUNTER};
    const int state = atomic_load(&w->state);
    const bool serves = state == WK_READY || state == WK_DRAINING;
    struct metric *m = engine_rows;
    struct store_stats s = {0};
    struct fus_engine_stats e = {0};
    struct wk_build_stats b;
    struct wk_sensitivity_stats c;

    if (serves && w->store) store_get_stats(w->store, &s);
    if (serves && w->engine) fus_engine_get_stats(w->engine, &e);
    wk_builds_get_stats(w, &b);
    wk_sensitivity_get_stats(w, &c);
    ENGINE_TABLE(COPY)
    for (unsigned i = 0; i < STORE_MISS_COUNT; i++) {
        (void)snprintf(misses[i].label, sizeof misses[i].label, "reason=\"%s\"",
                       store_miss_name((enum store_miss)i));
        copy_labelled(&misses[i], &miss, (double)s.misses[i]);
    }
    copy_guard(w, serves);
    if (serves && w->store) copy_tiers(w, &s);
    if (serves && w->engine) copy_device(w);
    return metric_render(out);
}
