/* sim: what a cache of a given size and policy would have hit on a trace.
 *
 * Replays a trace through tiers/evict.h itself, not a model of it. A request is looked up as a
 * whole, then its records are touched from its end to its beginning, as the worker does: the head
 * of a prompt outlives its tail. A hit is a record that is there, wherever it stands in its prompt;
 * every record of a request counts. What does not fit at all is not kept. Thread: any. */
#ifndef TOOLS_BENCH_SIM_H
#define TOOLS_BENCH_SIM_H

#include "base/err.h"
#include "tiers/evict.h"
#include "tools/bench/trace.h"

#define SIM_NO_LIMIT UINT64_MAX
struct sim_opts {
    enum evict_policy policy;
    uint64_t capacity; /* records, or bytes; SIM_NO_LIMIT: everything stays */
    bool bytes;        /* records have their sizes, else size 1 */
};
struct sim_result {
    uint64_t accesses, hits, tokens, hit_tokens, evictions;
    double ns_per_access;
};
int sim_run(const struct trace *t, const struct sim_opts *o, struct sim_result *ret);

/* The hits of LRU at every capacity in records in one pass, from stack distances: ret_hits[c - 1]
 * for c in 1…t->n_records. */
int sim_lru_curve(const struct trace *t, uint64_t *ret_hits);

uint64_t sim_total_bytes(const struct trace *t); /* of all distinct records */

#endif
