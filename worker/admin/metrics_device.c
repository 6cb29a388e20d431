/* Metrics of the memory of a device that has its own; the CPU has none of them. */
#include "worker/worker.h"

#include "base/metric.h"

enum what { TOTAL, FREE, HELD, STAGING, SHARED, WHAT_COUNT };
#define BYTES(what)                                                                                \
    {                                                                                              \
        .name = "kvblend_device_bytes", .labels = "what=\"" what "\"",                             \
        .help = "Memory of the device, and of this process on it (held, of it staging; shared "    \
                "with the host).",                                                                 \
        .type = METRIC_GAUGE                                                                       \
    }
static struct metric bytes[WHAT_COUNT] = {BYTES("total"), BYTES("free"), BYTES("held"),
                                          BYTES("staging"), BYTES("shared")};
static struct metric allocations = {
    .name = "kvblend_device_allocations_total",
    .type = METRIC_COUNTER,
    .help = "Requests to the device for memory; they end once it is warm."};

static struct metric replays = {
    .name = "kvblend_device_replays_total",
    .type = METRIC_COUNTER,
    .help = "Decode steps that were played from a recording (CUDA graph) instead of being queued "
            "kernel by kernel."};

void wk_metrics_device(struct worker *w)
{
    struct kn_dev *d = fus_core_dev(w->core);

    if (kn_dev_is_host(d)) return;
    const struct kn_memory m = kn_dev_memory(d);
    const uint64_t now[WHAT_COUNT] = {m.total_bytes, m.free_bytes, m.device_bytes, m.stage_bytes,
                                      m.shared_bytes};
    for (unsigned i = 0; i < WHAT_COUNT; i++) {
        metric_register(&bytes[i]);
        metric_set(&bytes[i], (double)now[i]);
    }
    metric_register(&allocations);
    metric_set(&allocations, (double)m.n_allocs);
    metric_register(&replays);
    metric_set(&replays, (double)kn_replays(d).n_played);
}
