/* fleet: every backend a request may be sent to, with its health, its models
 * and its load.
 *
 * Backends ("targets") are own workers, workers by URL or from the registry,
 * and upstreams of any OpenAI-compatible make. A target is probed actively
 * (workers: GET /health, then their models; upstreams: the configured path,
 * thresholds and interval) and judged passively by what requests met: a circuit
 * breaker per target takes it out and lets one request try again.
 * gw_fleet_pick() leases a target for one try of a request; gw_fleet_release()
 * gives the lease back with what became of it. Which of several possible
 * targets is best policy/route.h decides. Life cycle: gw_fleet_create() →
 * gw_fleet_add()… → gw_fleet_start() → gw_fleet_stop() → gw_fleet_destroy().
 * Targets that left stay as retired, so that pointers and indices keep their
 * meaning; a worker's place is used again once the table is full. Thread: pick, release, client and
 * all questions: any loop's (one lock, held for microseconds); the rest and all callbacks: the
 * control loop's. */
#ifndef GATEWAY_FLEET_FLEET_H
#define GATEWAY_FLEET_FLEET_H

#include "base/err.h"
#include "gateway/fleet/upstream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct gw_config;
struct gw_directory;
struct gw_fleet;
struct gw_key;
struct http_client;
struct http_loop;
struct http_tls;
struct pol_shed_worker;

enum { GW_TARGETS_MAX = 256, GW_LOOPS_MAX = 64 };

enum gw_target_state {
    GW_TARGET_DOWN,
    GW_TARGET_LOADING,
    GW_TARGET_READY,
    GW_TARGET_DRAINING, /* by an operator or the registry: no new requests */
    GW_TARGET_RETIRED,  /* gone for good (its registration expired, a reload
                           removed it) */
};
struct gw_target; /* what others may see of it: gw_fleet_view() */

/* ---- one try of a request ---- */

struct gw_want {
    const char *model;       /* NULL: any */
    uint64_t affinity;       /* hash of the prompt's beginning or prompt_cache_key; 0:
                                none */
    const uint64_t *text_id; /* of the prompt's chunks: seg_text_id() */
    size_t n_texts;
    uint64_t prompt_tokens;              /* estimate */
    uint64_t tried[GW_TARGETS_MAX / 64]; /* targets not to take again, while there is another */
    bool untried;                        /* those not even where there is no other */
    bool upstream_only;                  /* a route that no worker serves */
    bool worker_only;                    /* a route that only workers know */
    const char *path; /* of a route that only upstreams' `paths` open; NULL: another */
};
struct gw_lease {             /* init {0}; held from pick to release */
    struct gw_target *target; /* NULL: none is held */
    unsigned index;           /* the target's */
    const struct gw_upstream
        *up;                   /* its settings; NULL for workers. Valid while the lease is held */
    const char *authorization; /* the key it asks for, "Bearer …", or NULL; valid likewise */
    const char *model;         /* name to send instead of the client's, NULL: as it came.
                                  Valid likewise */
    const char *name;          /* the target's, for logs and metrics; valid for the fleet's life */
    bool worker;               /* speaks the worker's own API, may get our headers */
    uint64_t prompt_tokens;    /* to compute there: without those it holds */
    bool probe;                /* the breaker's one try */
    bool computed;             /* gw_fleet_computed() was called */
    double sent_ms;            /* predicted work, counted at the target since the report of */
    uint64_t said_ns, at_ns;   /* at_ns: when it was picked */
    int status; /* the answer's HTTP status, set by the holder before release; 0: none came */
    int error;  /* negative errno that ended the try, set likewise; 0: none */
};
enum gw_pick {
    GW_PICK_OK,
    GW_PICK_UNKNOWN_MODEL, /* nobody serves it, ready or not */
    GW_PICK_LOADING,       /* somebody who serves it may come by itself soon */
    GW_PICK_RETURNING,     /* the same, and he was here before: wait */
    GW_PICK_UNSURE,        /* a target is suspect: its probe will tell in milliseconds:
                              wait */
    GW_PICK_FULL,          /* all at their limit: wait for gw_fleet_ops.on_room */
    GW_PICK_OPEN,          /* all breakers are open: try again in *ret_wait_ms */
    GW_PICK_DOWN,          /* nobody who serves it can be reached, and nobody will come by
                              itself */
};
enum gw_outcome {
    GW_DONE_OK,        /* answered, whatever it said below 500 */
    GW_DONE_BUSY,      /* 429, 503 with Retry-After: alive, but not now */
    GW_DONE_FAILED,    /* not reached, connection lost, 5xx */
    GW_DONE_TIMEOUT,   /* connected, but silent for too long */
    GW_DONE_CANCELLED, /* the client left: says nothing about the target */
};
/* ret_wait_ms may be NULL. Counts the request as in flight at the target from
 * here on. */
enum gw_pick gw_fleet_pick(struct gw_fleet *f, const struct gw_want *w, struct gw_lease *ret,
                           uint32_t *ret_wait_ms);
/* Exactly once per lease; ttfb_ns: 0 when no byte came. Clears the lease. */
void gw_fleet_release(struct gw_fleet *f, struct gw_lease *l, enum gw_outcome o, uint64_t ttfb_ns);
/* The answer began: its prompt no longer waits there to be computed, and a status below 500 in the
 * lease is what the breaker's one try was to find out. Optional. */
void gw_fleet_computed(struct gw_fleet *f, struct gw_lease *l);
/* The loop's connections to the target, made at the first call. Needs no lease. NULL: out of
 * memory, bad address. The pointer is good until this loop asks again: settings may change. */
struct http_client *gw_fleet_client(struct gw_fleet *f, struct gw_target *t, unsigned loop_index,
                                    struct http_loop *loop);
/* Before a loop is destroyed, on its thread: closes its connections. */
void gw_fleet_leave(struct gw_fleet *f, unsigned loop);

/* ---- what workers say of their load (fleet_load.c) ---- */

struct gw_load {
    double waiting_ms; /* predicted work of prefills there, and the rest of the running one */
    unsigned n_waiting, n_running;
    unsigned slots;             /* requests it can run at once */
    double hold_ms;             /* how long one keeps its slot */
    double token_ms, reused_ms; /* of a prefill, measured: a computed token's, a reused one's */
};
/* A worker's report; NULL: it does not report any more. */
void gw_fleet_report(struct gw_fleet *f, unsigned index, const struct gw_load *l);
/* What the request would meet at each worker that could take it, at most GW_TARGETS_MAX; 0: there
 * is none, or it cannot be told, because one of them does not report. */
size_t gw_fleet_forecast(struct gw_fleet *f, const struct gw_want *w, struct pol_shed_worker *ret);
/* Is there a worker with room for one more request for the model? True as well where nobody knows.
 */
bool gw_fleet_room(struct gw_fleet *f, const char *model);

/* ---- life ---- */

struct gw_fleet_ops {
    void (*on_ready)(void *ctx, unsigned index); /* became ready, or a suspicion was wrong */
    void (*on_lost)(void *ctx, unsigned index);  /* was ready, is no more */
    void (*on_room)(void *ctx);                  /* a full target has room again, a breaker lets
                                                    somebody through */
    /* A probe failed; silent_ms since the last success (or since
     * gw_fleet_expect()). */
    void (*on_silent)(void *ctx, unsigned index, uint64_t silent_ms);
};
/* loop: the control loop. directory: which chunks live where; borrowed, NULL:
 * nobody knows. */
int gw_fleet_create(struct http_loop *loop, const struct gw_config *c,
                    struct gw_directory *directory, const struct gw_fleet_ops *ops, void *ctx,
                    struct gw_fleet **ret);
/* Take over what a reload may change: intervals, thresholds, balancing. The config is not kept. */
void gw_fleet_configure(struct gw_fleet *f, const struct gw_config *c);
/* Own workers and workers by address. A retired target of the same address
 * comes back to life. 1: it is there already. -ERANGE: too many. */
int gw_fleet_add_worker(struct gw_fleet *f, const char *address, bool own, unsigned *ret_index);
/* How a worker that runs elsewhere is got into: the key and the TLS settings of u, copied, unless
 * it has some. */
int gw_fleet_secure(struct gw_fleet *f, unsigned index, const struct gw_upstream *u,
                    struct err *err);
/* The same for calls beside those of a lease: the line of the key appended; the TLS settings (a
 * reference, NULL: plain) where ret_tls is asked for. */
int gw_fleet_door(struct gw_fleet *f, unsigned index, struct buf *headers,
                  struct http_tls **ret_tls);
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

/* ---- questions ---- */

struct gw_target_view { /* a copy */
    unsigned index;
    char name[128], address[256];
    char dial[256]; /* what the address stands for, numeric: no loop must look names up */
    bool own, worker;
    enum gw_target_state state;
    const char *breaker; /* "closed", "open", "half_open" */
    char why[160];       /* what it failed with last, for people; "": it is well */
    unsigned n_inflight, inflight_max, n_models;
    uint64_t n_ok, n_failed, n_timeout, n_busy, n_picked, prompt_tokens_in_flight;
    double ttfb_ms; /* moving average, 0: unknown */
    double wait_ms; /* predicted for a request that came now; -1: unknown */
    uint64_t ready_since_ns;
    double weight;
};
size_t gw_fleet_count(const struct gw_fleet *f);    /* retired ones, too */
bool gw_fleet_has_choice(const struct gw_fleet *f); /* there may be more than one upstream */
bool gw_fleet_view(const struct gw_fleet *f, unsigned index, struct gw_target_view *ret);
/* For gw_fleet_client(); NULL: none, or retired. */
struct gw_target *gw_fleet_target(struct gw_fleet *f, unsigned index);
unsigned gw_fleet_n_ready(const struct gw_fleet *f);
struct gw_fleet_count { /* those that a registration or reload has not taken away */
    unsigned workers, upstreams, workers_ready, upstreams_ready;
};
struct gw_fleet_count gw_fleet_count_kinds(const struct gw_fleet *f);
/* What the gateway has behind it: "worker", "upstream", or "backend" where it is both or nobody. */
const char *gw_fleet_noun(const struct gw_fleet *f);
/* Why those that serve the model (NULL: any) are not well, in words for clients: no names, no
 * addresses. Appended, separated by semicolons, each once; nothing: nobody failed. */
int gw_fleet_reasons(const struct gw_fleet *f, const char *model, struct buf *out);
const char *gw_fleet_error_words(int error);     /* of a negative errno: "connection refused" */
bool gw_fleet_hopeful(const struct gw_fleet *f); /* a target that is down may come by itself */
/* What kind of backend serves the model: bits of GW_SERVES_*; 0: nobody.
 * GW_SERVES_UNKNOWN: no target's models are known yet. GW_SERVES_BOUNDED: an upstream that takes
 * so many at once only. */
enum {
    GW_SERVES_WORKER = 1,
    GW_SERVES_UPSTREAM = 2,
    GW_SERVES_LMCACHE = 4,
    GW_SERVES_UNKNOWN = 8,
    GW_SERVES_BOUNDED = 16
};
unsigned gw_fleet_serves(const struct gw_fleet *f, const char *model);
bool gw_fleet_opens(const struct gw_fleet *f, const char *path); /* does an upstream's `paths`? */
/* The model's object of /v1/models appended; -ENOENT. */
int gw_fleet_model(const struct gw_fleet *f, const char *id, struct buf *out);
/* OpenAI's list object, of what the key may use; NULL: of all. */
int gw_fleet_list_models(const struct gw_fleet *f, const struct gw_key *key, struct buf *out);
/* All targets of these kinds (GW_SERVES_WORKER | GW_SERVES_UPSTREAM) as a JSON array. */
int gw_fleet_format(const struct gw_fleet *f, unsigned kinds, struct buf *out);
/* kvblend_gateway_upstream_* of all targets, in Prometheus' text form. */
int gw_fleet_metrics(const struct gw_fleet *f, struct buf *out);
const char *gw_target_state_name(enum gw_target_state s);

#endif
