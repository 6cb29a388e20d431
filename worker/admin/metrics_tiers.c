/* Metrics per tier: a table of names, and one series for each tier that there is. The label's
 * values are the names of tiers, so their number is bounded. */
#include "worker/worker.h"

#include "base/metric.h"

#include <stdio.h>
#include <string.h>

enum value {
    CAPACITY,
    USED,
    PINNED,
    RECORDS,
    HIT,
    HIT_BYTES,
    READ,
    READ_BYTES,
    READ_SECONDS,
    WRITE,
    WRITE_BYTES,
    WRITE_SECONDS,
    DEVICE_WRITTEN,
    EVICT,
    EXPIRED,
    CORRUPT,
    ERRORS,
    TIMEOUTS,
    INFLIGHT_BYTES,
    INFLIGHT_OPS,
    BREAKER,
    BREAKER_OPENED,
    ENDPOINTS,
    ENDPOINTS_OPEN,
    WRITE_BUDGET,
    TAIL_AGE,
    HOST_PINNED,
    DEGRADED,
    BANDWIDTH,
    FIRST_GROUP,
    VALUE_COUNT
};
static const struct {
    const char *name;
    enum metric_type type;
    const char *help;
} values[VALUE_COUNT] = {
    [CAPACITY] = {"capacity_bytes", METRIC_GAUGE, "Hard budget; of a remote tier as it says."},
    [USED] = {"used_bytes", METRIC_GAUGE, "Bytes in use."},
    [PINNED] = {"pinned_bytes", METRIC_GAUGE, "Bytes of records pinned by an administrator."},
    [RECORDS] = {"records", METRIC_GAUGE, "Records in this tier."},
    [HIT] = {"hit_total", METRIC_COUNTER, "Look-ups served from this tier."},
    [HIT_BYTES] = {"hit_bytes_total", METRIC_COUNTER, "Bytes of records served from this tier."},
    [READ] = {"read_total", METRIC_COUNTER, "Records read whole."},
    [READ_BYTES] = {"read_bytes_total", METRIC_COUNTER, "Bytes read."},
    [READ_SECONDS] = {"read_seconds_total", METRIC_COUNTER, "Time of reads, submit to done."},
    [WRITE] = {"write_total", METRIC_COUNTER, "Records written whole."},
    [WRITE_BYTES] = {"write_bytes_total", METRIC_COUNTER, "Bytes written."},
    [WRITE_SECONDS] = {"write_seconds_total", METRIC_COUNTER, "Time of writes, submit to done."},
    [DEVICE_WRITTEN] = {"device_written_bytes_total", METRIC_COUNTER,
                        "Bytes written to the device, headers included."},
    [EVICT] = {"evict_total", METRIC_COUNTER, "Records evicted for room."},
    [EXPIRED] = {"expired_total", METRIC_COUNTER, "Records dropped at the end of their life."},
    [CORRUPT] = {"corrupt_total", METRIC_COUNTER, "Records dropped for a wrong checksum."},
    [ERRORS] = {"error_total", METRIC_COUNTER, "Operations that failed."},
    [TIMEOUTS] = {"timeout_total", METRIC_COUNTER, "Operations that took too long."},
    [INFLIGHT_BYTES] = {"inflight_bytes", METRIC_GAUGE, "Bytes being moved."},
    [INFLIGHT_OPS] = {"inflight_ops", METRIC_GAUGE, "Operations queued or under way."},
    [BREAKER] = {"breaker_state", METRIC_GAUGE, "0 closed, 1 half-open, 2 open."},
    [BREAKER_OPENED] = {"breaker_opened_total", METRIC_COUNTER, "Times the breaker opened."},
    [ENDPOINTS] = {"endpoints", METRIC_GAUGE, "Servers of a remote tier."},
    [ENDPOINTS_OPEN] = {"endpoints_open", METRIC_GAUGE, "Servers whose breaker is open."},
    [WRITE_BUDGET] = {"write_budget_ratio", METRIC_GAUGE, "Spent share of the write budget."},
    [TAIL_AGE] = {"tail_age_seconds", METRIC_GAUGE, "Since the last use of the next victim."},
    [HOST_PINNED] = {"host_pinned_bytes", METRIC_GAUGE, "RAM pinned for its copies."},
    [DEGRADED] = {"degraded", METRIC_GAUGE, "1: it does not work as it was asked to; see the log."},
    [BANDWIDTH] = {"read_bandwidth_bytes_per_second", METRIC_GAUGE, "Moving average of loads."},
    [FIRST_GROUP] = {"first_group_seconds", METRIC_GAUGE,
                     "Moving average: from asking to the first layers."},
};

struct series {
    struct metric value[VALUE_COUNT], miss[STORE_MISS_COUNT], reject[TIER_REJECT_COUNT];
    char name[VALUE_COUNT][64], label[32];
    char miss_label[STORE_MISS_COUNT][64], reject_label[TIER_REJECT_COUNT][64];
    bool registered;
};
static struct series series[STORE_TIERS_MAX + 1];
static struct metric dirty = {.name = "kvblend_store_dirty_records",
                              .type = METRIC_GAUGE,
                              .help = "Records that a slower tier has yet to get."};
static struct metric loads = {.name = "kvblend_store_loads_inflight",
                              .type = METRIC_GAUGE,
                              .help = "Records on their way into RAM."};
static struct metric lost = {.name = "kvblend_store_lost_total",
                             .type = METRIC_COUNTER,
                             .help = "Records evicted before a tier that wanted them had them."};
static struct metric sides = {.name = "kvblend_store_sidecars",
                              .type = METRIC_GAUGE,
                              .help = "Records outside RAM whose scoring layer is in RAM."};
static struct metric side_bytes = {.name = "kvblend_store_sidecar_bytes",
                                   .type = METRIC_GAUGE,
                                   .help = "What sidecars take of RAM."};
static struct metric side_hits = {.name = "kvblend_store_sidecar_hits_total",
                                  .type = METRIC_COUNTER,
                                  .help = "Layers that were read from a sidecar."};
static struct metric held = {.name = "kvblend_store_held_bytes",
                             .type = METRIC_GAUGE,
                             .help = "Bytes of records held for requests that wait."};
static struct metric dropped = {.name = "kvblend_access_log_dropped_total",
                                .type = METRIC_COUNTER,
                                .help = "Lines that the access log had no room for."};

static void add_labelled(struct metric *m, char *label, size_t cap, const char *name,
                         const char *tier, const char *reason, const char *help)
{
    (void)snprintf(label, cap, "tier=\"%s\",reason=\"%s\"", tier, reason);
    *m = (struct metric){.name = name, .labels = label, .type = METRIC_COUNTER, .help = help};
    metric_register(m);
}

static void add_series(struct series *s, const char *tier, bool ram)
{
    if (s->registered) return;
    s->registered = true;
    (void)snprintf(s->label, sizeof s->label, "tier=\"%s\"", tier);
    for (unsigned i = 0; i < VALUE_COUNT; i++) {
        (void)snprintf(s->name[i], sizeof s->name[i], "kvblend_tier_%s", values[i].name);
        s->value[i] = (struct metric){
            .name = s->name[i], .labels = s->label, .type = values[i].type, .help = values[i].help};
        metric_register(&s->value[i]);
    }
    for (unsigned i = 0; i < STORE_MISS_COUNT && !ram; i++)
        add_labelled(&s->miss[i], s->miss_label[i], sizeof s->miss_label[i],
                     "kvblend_tier_miss_total", tier, store_miss_name((enum store_miss)i),
                     "Look-ups that this tier could not serve, by reason.");
    for (unsigned i = 0; i < TIER_REJECT_COUNT && !ram; i++)
        add_labelled(&s->reject[i], s->reject_label[i], sizeof s->reject_label[i],
                     "kvblend_tier_reject_total", tier, tier_reject_name((enum tier_reject)i),
                     "Writes that did not become a record, by reason.");
}

static void set_value(struct series *s, enum value v, double x)
{
    metric_set(&s->value[v], x);
}

static double breaker_number(const char *state)
{
    return strcmp(state, "open") == 0 ? 2 : strcmp(state, "half-open") == 0 ? 1 : 0;
}

static void set_space(struct series *s, const struct tier_stat *t)
{
    set_value(s, CAPACITY, (double)t->capacity_bytes);
    set_value(s, USED, (double)t->used_bytes);
    set_value(s, PINNED, (double)t->pinned_bytes);
    set_value(s, RECORDS, (double)t->n_records);
    set_value(s, EVICT, (double)t->evictions);
    set_value(s, EXPIRED, (double)t->expired);
    set_value(s, CORRUPT, (double)t->corrupt);
    set_value(s, TAIL_AGE, t->tail_age_s);
}

static void set_tier(struct series *s, const struct store_tier_stats *x)
{
    const struct tier_stat *t = &x->tier;

    set_space(s, t);
    set_value(s, HIT, (double)x->hits);
    set_value(s, HIT_BYTES, (double)x->hit_bytes);
    set_value(s, READ, (double)t->reads);
    set_value(s, READ_BYTES, (double)t->read_bytes);
    set_value(s, READ_SECONDS, (double)t->read_ns / 1e9);
    set_value(s, WRITE, (double)t->writes);
    set_value(s, WRITE_BYTES, (double)t->write_bytes);
    set_value(s, WRITE_SECONDS, (double)t->write_ns / 1e9);
    set_value(s, DEVICE_WRITTEN, (double)t->device_written_bytes);
    set_value(s, ERRORS, (double)t->errors);
    set_value(s, TIMEOUTS, (double)t->timeouts);
    set_value(s, INFLIGHT_BYTES, (double)t->inflight_bytes);
    set_value(s, INFLIGHT_OPS, (double)t->inflight_ops);
    set_value(s, BREAKER, breaker_number(x->breaker));
    set_value(s, BREAKER_OPENED, (double)x->breaker_opened);
    set_value(s, ENDPOINTS, t->endpoints);
    set_value(s, ENDPOINTS_OPEN, t->endpoints_open);
    set_value(s, WRITE_BUDGET, t->write_budget_ratio);
    set_value(s, HOST_PINNED, (double)t->host_pinned_bytes);
    set_value(s, DEGRADED, t->degraded[0] ? 1 : 0);
    set_value(s, BANDWIDTH, x->read_bytes_per_s);
    set_value(s, FIRST_GROUP, x->first_ms / 1e3);
    for (unsigned i = 0; i < STORE_MISS_COUNT; i++)
        metric_set(&s->miss[i], (double)x->misses[i]);
    for (unsigned i = 0; i < TIER_REJECT_COUNT; i++)
        metric_set(&s->reject[i], (double)t->rejected[i]);
}

void wk_metrics_tiers(struct worker *w, const struct store_stats *s)
{
    const struct tier_stat ram = {.capacity_bytes = s->budget_bytes,
                                  .used_bytes = s->used_bytes,
                                  .pinned_bytes = s->pinned_bytes,
                                  .n_records = s->n_records,
                                  .evictions = s->evictions,
                                  .expired = s->expired,
                                  .corrupt = s->corrupt,
                                  .tail_age_s = s->tail_age_s};
    struct metric *const ones[] = {&dirty, &loads,      &lost,      &held,
                                   &sides, &side_bytes, &side_hits, &dropped};
    uint64_t behind = 0;

    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++)
        metric_register(ones[i]);
    for (size_t i = 0; i < store_n_tiers(w->store) && i < STORE_TIERS_MAX; i++) {
        struct store_tier_stats x;
        store_get_tier_stats(w->store, i, &x);
        add_series(&series[i + 1], x.name, false);
        set_tier(&series[i + 1], &x);
        behind += x.hits;
    }
    add_series(&series[0], "ram", true);
    set_space(&series[0], &ram);
    set_value(&series[0], HIT, (double)(s->hits - (behind < s->hits ? behind : s->hits)));
    metric_set(&dirty, (double)s->dirty);
    metric_set(&loads, (double)s->inflight);
    metric_set(&lost, (double)s->lost);
    metric_set(&sides, (double)s->sides);
    metric_set(&side_bytes, (double)s->side_bytes);
    metric_set(&side_hits, (double)s->side_hits);
    metric_set(&held, (double)atomic_load(&w->held_bytes));
    if (w->kvlog) metric_set(&dropped, (double)wk_kvlog_dropped(w->kvlog));
}
