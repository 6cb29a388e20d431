/* lease: one try of a request at a target: which one may take it, and what its end tells.
 *
 * gw_fleet_pick() leases a target; gw_fleet_release() gives the lease back with what became of the
 * try. Of the targets that serve the model and can take a request now the best group counts:
 * workers before upstreams, then the lowest priority; within it policy/route.h decides. Each report
 * of a worker's load makes the forecast of a wait better. Thread: any loop's. */
#ifndef GATEWAY_FLEET_LEASE_H
#define GATEWAY_FLEET_LEASE_H

#include "gateway/fleet/fleet.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gw_upstream;
struct http_client;
struct pol_shed_worker;

enum gw_task { GW_GENERATE = 1, GW_EMBED = 2, GW_RERANK = 4 }; /* what a model is asked for */
struct gw_want {
    const char *model; /* NULL: the workers', of any upstream where there is no worker */
    uint64_t affinity; /* hash of the prompt's beginning or prompt_cache_key; 0:
                                none */
    uint64_t *text_id; /* of the prompt's chunks: seg_text_id() */
    size_t n_texts;
    uint64_t prompt_tokens;              /* estimate */
    uint64_t tried[GW_TARGETS_MAX / 64]; /* targets not to take again, while there is another */
    bool untried;                        /* those not even where there is no other */
    bool upstream_only;                  /* a route that no worker serves */
    bool worker_only;                    /* a route that only workers know */
    unsigned worker;                     /* its index + 1: this one alone, drained or not; 0: any */
    enum gw_task task;                   /* of the route */
    const char *upstream;                /* this one alone, by its name; NULL: any target */
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
    GW_PICK_UNKNOWN_MODEL, /* no target serves it, ready or not */
    GW_PICK_LOADING,       /* a target that serves it may come by itself soon */
    GW_PICK_RETURNING,     /* the same, and it was here before: wait */
    GW_PICK_UNSURE,        /* a target is suspect: its probe will tell in milliseconds:
                              wait */
    GW_PICK_FULL,          /* all at their limit: wait for gw_fleet_ops.on_room */
    GW_PICK_OPEN,          /* all breakers are open: try again in *ret_wait_ms */
    GW_PICK_DOWN,          /* no target that serves it can be reached or will come by itself */
};
enum gw_outcome {
    GW_DONE_OK,        /* answered, whatever it said below 500 */
    GW_DONE_BUSY,      /* 429, 503 with Retry-After: alive, but not now */
    GW_DONE_FAILED,    /* not reached, connection lost, 5xx */
    GW_DONE_TIMEOUT,   /* connected, but silent for too long */
    GW_DONE_CANCELLED, /* the client left: says nothing about the target */
    GW_DONE_N,
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

/* ---- connections, a set for each loop ---- */

/* The loop's connections to a target, made at the first call. Needs no lease. NULL: retired, out of
 * memory, bad address. The pointer is good until this loop asks again: settings may change. */
struct http_client *gw_fleet_client(struct gw_fleet *f, unsigned index, unsigned loop_index,
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
/* Is there a worker with room for one more request for the model? True where it is unknown. */
bool gw_fleet_room(struct gw_fleet *f, const char *model);

#endif
