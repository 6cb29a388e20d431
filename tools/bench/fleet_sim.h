/* fleet_sim: discrete events of many workers behind one router, with the product's own decisions.
 *
 * Requests come at given times and name chunks; policy/route picks a worker, policy/order its place
 * in that worker's queue, policy/control what is loaded and what computed and how long that takes,
 * tiers/evict who makes way in RAM and NVMe. One prefill at a time per worker, as in the engine;
 * chunks that were missing are built when a worker has nothing else to do, those missed twice at
 * once beside the next prefill, and then are in its RAM, its NVMe and the shared Redis. What is
 * modelled and not run: time itself (policy/cost), transfers (latency, bandwidth, queue per shard),
 * decoding (a step's time per token, shared by the batch). Deterministic by seed. Thread: any; pure
 * but for memory. */
#ifndef TOOLS_BENCH_FLEET_SIM_H
#define TOOLS_BENCH_FLEET_SIM_H

#include "policy/control.h"
#include "policy/order.h"
#include "policy/route.h"

#include <stddef.h>
#include <stdint.h>

enum fleet_routing { FLEET_RANDOM, FLEET_LEAST, FLEET_AFFINITY, FLEET_RESIDENT, FLEET_ROUTINGS };
const char *fleet_routing_name(enum fleet_routing r);

struct fleet_request {
    double at_s;
    const uint32_t *chunk; /* ids below n_docs */
    unsigned n_chunks;
};
struct fleet_load {
    struct fleet_request *req; /* ascending in time */
    size_t n;
    uint32_t *chunk; /* what the requests point into */
    uint32_t n_docs, chunk_tokens, suffix_tokens, answer_tokens;
};
/* Zipf over n_docs documents, k different ones a request, Poisson arrivals. 0, -EINVAL k of n_docs
 * cannot be drawn, -ENOMEM. */
int fleet_load_make(struct fleet_load *l, size_t n, double rate, double zipf, unsigned k,
                    uint64_t seed);
void fleet_load_fini(struct fleet_load *l);

struct fleet_opts {
    unsigned n_workers;
    enum fleet_routing routing;
    enum pol_order order;
    struct pol_cost cost;
    unsigned L;
    enum pol_strategy strategy; /* POL_FULL: nothing is reused */
    double ratio;               /* the quality floor of that strategy */
    double token_s;             /* a decode step */
    uint64_t chunk_bytes;
    uint64_t ram_bytes, nvme_bytes, redis_bytes; /* of each worker; of all shards */
    double nvme_bytes_per_s, nvme_first_s;
    double redis_bytes_per_s, redis_first_s; /* of one shard */
    unsigned n_shards;                       /* 0: no Redis */
    unsigned max_queue; /* of a worker: beyond it requests are refused; 0 = none */
    /* Not NULL: the prefill of each request [n], and every answer's steps take answer_s; to check
     * against a measured curve. */
    const double *prefill_s;
    double answer_s;
    bool cold;         /* nothing is held at first */
    double warm_share; /* of the requests, the first ones, that count for nothing, 0…1 */
    uint64_t seed;
};
enum { FLEET_RAM, FLEET_NVME, FLEET_REDIS, FLEET_COMPUTED, FLEET_PLACES };
/* A prompt of the load's as the controller sees it, all its chunks (`chunk`: n_chunks) in RAM. */
void fleet_prompt(const struct fleet_opts *o, const struct fleet_load *l, unsigned n_chunks,
                  struct pol_chunk_now *chunk, struct pol_control_in *ret);
/* Machine time of an answer behind its first token, which is the prefill's. Answers share decode
 * steps as far as they are long: while prefills get FUS_STEP_BUDGET_SHARE of what an answer's steps
 * take, as many answers run as prefills end by then, one at the least. */
double fleet_answer_s(const struct fleet_opts *o, uint32_t n_tokens, double ttft_s);
struct fleet_result {
    double *ttft_s; /* [n], sorted; fleet_result_fini() */
    size_t n, n_shed;
    uint64_t from[FLEET_PLACES];          /* chunks */
    double busy_share, redis_bytes_per_s; /* of the busiest shard */
    double skew;                          /* most requests of a worker over the mean */
    double route_us;                      /* measured: one routing decision */
};
int fleet_run(const struct fleet_opts *o, const struct fleet_load *l, struct fleet_result *ret);
void fleet_result_fini(struct fleet_result *r);
double fleet_quantile(const struct fleet_result *r, double q); /* of the TTFT, s */

#endif
