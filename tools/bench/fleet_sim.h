/* fleet_sim: discrete events of many workers behind one router, with the product's own decisions.
 *
 * Requests come at given times and name chunks; policy/route picks a worker, policy/order its place
 * in that worker's queue, policy/control what is loaded and what computed and how long that takes,
 * tiers/evict who makes way in RAM and NVMe. One prefill at a time per worker, as in the engine;
 * chunks that were missing are built when a worker has nothing else to do, those missed twice at
 * once beside the next prefill, and then are in its RAM, its NVMe and the shared Redis. What is
 * modelled and not run: time itself (policy/cost), transfers (latency, bandwidth, queue per shard),
 * decoding (a step's time per token, shared by the batch). Deterministic. Thread: any; pure but for
 * memory. */
#ifndef TOOLS_BENCH_FLEET_SIM_H
#define TOOLS_BENCH_FLEET_SIM_H

#include "policy/control.h"

#include <stddef.h>
#include <stdint.h>

struct fleet_load {
    size_t n;   /* requests */
    unsigned k; /* chunks of each, all different */
    uint32_t n_docs, chunk_tokens, suffix_tokens, answer_tokens;
    double *at_s;    /* [n] ascending */
    uint32_t *chunk; /* [n][k], below n_docs */
    /* Not NULL: what each prefill takes [n], and what every answer does, whatever is held where; to
     * check against a measured curve. */
    double *prefill_s, answer_s;
};
/* n requests of k documents by Zipf, Poisson arrivals. 0, -EINVAL k of n_docs cannot be drawn,
 * -ENOMEM. */
int fleet_load_make(struct fleet_load *l, double rate, double zipf, uint64_t seed);
void fleet_load_fini(struct fleet_load *l);

enum fleet_routing { FLEET_RANDOM, FLEET_LEAST, FLEET_AFFINITY, FLEET_RESIDENT, FLEET_ROUTINGS };
struct fleet_opts {
    unsigned n_workers;
    enum fleet_routing routing;
    struct pol_cost cost;
    enum pol_strategy strategy;                  /* POL_FULL: nothing is reused */
    double ratio;                                /* the quality floor of that strategy */
    double token_s;                              /* a decode step */
    uint64_t ram_bytes, nvme_bytes, redis_bytes; /* of each worker; of all shards */
    unsigned n_shards;                           /* 0: no Redis */
    unsigned max_queue; /* of a worker: beyond it requests are refused; 0 = none */
    bool cold;          /* nothing is held at first */
};
enum { FLEET_RAM, FLEET_NVME, FLEET_REDIS, FLEET_COMPUTED, FLEET_PLACES };
struct fleet_result { /* without the first requests, which warm the fleet up */
    double *ttft_ms;  /* [n], mem_free() */
    size_t n, n_shed;
    uint64_t from[FLEET_PLACES];          /* chunks */
    double busy_share, redis_bytes_per_s; /* of the busiest shard */
    double skew;                          /* most requests of a worker over the mean */
    double route_us;                      /* measured: one routing decision */
};
int fleet_run(const struct fleet_opts *o, const struct fleet_load *l, struct fleet_result *ret);
/* What a request takes of a worker with all its chunks in RAM (or none reused, for POL_FULL). */
double fleet_service_s(const struct fleet_opts *o, const struct fleet_load *l);

#endif
