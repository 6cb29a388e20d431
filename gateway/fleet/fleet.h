/* fleet: every backend a request may be sent to, with its health, its models
 * and its load.
 *
 * Backends ("targets") are own workers, workers by URL or from the registry,
 * and upstreams of any OpenAI-compatible make. A target is probed actively
 * (workers: GET /health, then their models; upstreams: the configured path,
 * thresholds and interval) and judged passively by what requests met: a circuit
 * breaker per target takes it out and lets one request try again.
 * lease.h sends requests there, view.h answers questions. Life cycle: gw_fleet_create() →
 * gw_fleet_add_worker()… → gw_fleet_start() → gw_fleet_stop() → gw_fleet_destroy(). Targets that
 * left stay as retired, so that pointers and indices keep their meaning; a worker's place is used
 * again once the table is full. Thread: the control loop's, callbacks too, where nothing else is
 * said; of lease.h and view.h any (one lock, held for microseconds). */
#ifndef GATEWAY_FLEET_FLEET_H
#define GATEWAY_FLEET_FLEET_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct buf;
struct gw_config;
struct gw_directory;
struct gw_fleet;
struct gw_upstream;
struct gw_upstreams;
struct http_loop;

enum { GW_TARGETS_MAX = 256, GW_LOOPS_MAX = 64 };

enum gw_target_state {
    GW_TARGET_DOWN,
    GW_TARGET_LOADING,
    GW_TARGET_READY,
    GW_TARGET_DRAINING, /* by an operator or the registry: no new requests */
    GW_TARGET_RETIRED,  /* gone for good (its registration expired, a reload
                           removed it) */
    GW_TARGET_ASLEEP,   /* on demand: its process does not run, a request starts it */
};
const char *gw_target_state_name(enum gw_target_state s);
struct gw_target; /* what others may see of it: gw_fleet_view() */

struct gw_fleet_ops {
    void (*on_ready)(void *ctx); /* a target became ready, or a suspicion was wrong */
    void (*on_lost)(void *ctx);  /* was ready, is no more */
    void (*on_room)(void *ctx);  /* a full target has room again, or a breaker lets one through */
    /* A probe failed; silent_ms since the last success (or since
     * gw_fleet_expect()). */
    void (*on_silent)(void *ctx, unsigned index, uint64_t silent_ms);
    void (*on_load)(void *ctx); /* a worker told its load, or tells it no more; NULL: no matter */
    void (*on_wanted)(void *ctx, unsigned index); /* a request waits for one that is asleep */
};
/* loop: the control loop. directory: which chunks live where; borrowed, NULL: unknown. */
int gw_fleet_create(struct http_loop *loop, const struct gw_config *c,
                    struct gw_directory *directory, const struct gw_fleet_ops *ops, void *ctx,
                    struct gw_fleet **ret);
/* Take over what a reload may change: intervals, thresholds, balancing. The config is not kept. */
void gw_fleet_configure(struct gw_fleet *f, const struct gw_config *c);
/* Own workers and workers by address. A retired target of the same address
 * comes back to life. 1: it is there already. -ERANGE: too many. */
int gw_fleet_add_worker(struct gw_fleet *f, const char *address, bool own, unsigned *ret_index);
/* From now on own workers serve different models: which one, the names that they list decide. */
void gw_fleet_mix(struct gw_fleet *f);
/* This own worker's process is started by the first request for `model`, the name that it will
 * list: until gw_fleet_expect() it is asleep, and listed; gw_fleet_lost() puts it to sleep again.
 */
int gw_fleet_on_demand(struct gw_fleet *f, unsigned index, const char *model);
/* It falls asleep (0) if it is ready, no request is there and none was for so long; else ms after
 * which that is worth asking again. */
uint64_t gw_fleet_rest(struct gw_fleet *f, unsigned index, uint64_t idle_ms);
/* How a worker that runs elsewhere is got into: the key and the TLS settings of u, copied, unless
 * it has some. */
int gw_fleet_secure(struct gw_fleet *f, unsigned index, const struct gw_upstream *u,
                    struct err *err);
/* The same for calls beside those of a lease: the line of the key appended. */
int gw_fleet_door(struct gw_fleet *f, unsigned index, struct buf *headers);
/* The registration ended: drains, then retires. */
void gw_fleet_remove(struct gw_fleet *f, unsigned index);
/* Make the upstreams those of `list` (start, reload): new ones are added,
 * missing ones drain and retire, changed ones go on with their history. Takes
 * the list. */
int gw_fleet_set_upstreams(struct gw_fleet *f, struct gw_upstreams *list, struct err *err);
void gw_fleet_start(struct gw_fleet *f); /* begin to probe */
void gw_fleet_stop(struct gw_fleet *f);  /* no more probes; cancels those under way */
void gw_fleet_destroy(struct gw_fleet *f);
void gw_fleet_lost(struct gw_fleet *f, unsigned index);   /* its process ended */
void gw_fleet_expect(struct gw_fleet *f, unsigned index); /* its process was started */
/* An operator's word: drain (no new requests), enable again. -ENOENT. Thread: any. */
int gw_fleet_drain(struct gw_fleet *f, const char *name, bool drain);

#endif
